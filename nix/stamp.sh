#!/usr/bin/env bash
# stamp.sh PROGRAM COMMIT: writes the commit into the linked program, over the one place that crates/runtime/src/config/build_info.rs keeps for it.
# Fails where that place is not found exactly once, or anything else would differ.
set -euo pipefail

program=$1 commit=$2
label='built by the runtime from commit '
blank='????????????????????????????????????????'
die() { echo "stamp: $program: $*" >&2; exit 1; }

[ ${#commit} = ${#blank} ] || die "\"$commit\" has ${#commit} characters, not ${#blank}"
mapfile -t places < <(LC_ALL=C grep --text --byte-offset --only-matching --fixed-strings "$label$blank" "$program" | cut -d: -f1)
[ ${#places[@]} = 1 ] || die "${#places[@]} places for a commit, not one"
from=$((places[0] + ${#label}))

# Beside it, so that a program that was stamped in part is never left.
stamped=$program.stamped
cp --preserve=mode "$program" "$stamped"
printf %s "$commit" | dd of="$stamped" bs=1 seek=$from conv=notrunc status=none
# Where it differs, byte by byte: all of the blank, which no commit has a character of, and nothing else.
differs=$({ cmp --verbose "$program" "$stamped" || true; } | while read -r byte _; do echo "$byte"; done)
[ "$differs" = "$(seq $((from + 1)) $((from + ${#blank})))" ] || die "not only the commit's bytes would differ"
mv "$stamped" "$program"
