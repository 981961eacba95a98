#!/usr/bin/env bash
# stamp.sh PROGRAM COMMIT: writes the commit into the linked program, over the placeholder of
# crates/runtime/src/config/build_info.rs. Fails unless there is exactly one placeholder, and if any other byte would change.
set -euo pipefail

program=$1 commit=$2
label='built by the runtime from commit '
blank='????????????????????????????????????????'
die() { echo "stamp: $program: $*" >&2; exit 1; }

[ ${#commit} = ${#blank} ] || die "\"$commit\" has ${#commit} characters, not ${#blank}"
mapfile -t places < <(LC_ALL=C grep --text --byte-offset --only-matching --fixed-strings "$label$blank" "$program" | cut -d: -f1)
[ ${#places[@]} = 1 ] || die "${#places[@]} places for a commit, not one"
from=$((places[0] + ${#label}))

# Works on a copy, so that a partly stamped program is never left behind.
stamped=$program.stamped
cp --preserve=mode "$program" "$stamped"
printf %s "$commit" | dd of="$stamped" bs=1 seek=$from conv=notrunc status=none
# The changed bytes must be exactly the placeholder. All of its bytes change, since no commit contains its character.
differs=$({ cmp --verbose "$program" "$stamped" || true; } | while read -r byte _; do echo "$byte"; done)
[ "$differs" = "$(seq $((from + 1)) $((from + ${#blank})))" ] || die "not only the commit's bytes would differ"
mv "$stamped" "$program"
