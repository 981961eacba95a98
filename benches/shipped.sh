#!/usr/bin/env bash
# shipped.sh ARCHIVE TO: writes the program of the image in this archive to the file TO. Without an image of the current commit,
# there is no such file.
set -euo pipefail
archive=$1 to=$2
rm -f "$to"
skip() { echo "$archive: $1: the program of the image is not measured" >&2; exit 0; }
[ -e "$archive" ] || skip "no archive (make image)"
for layer in $(tar xOf "$archive" manifest.json | jq -r '.[0].Layers[]'); do
  program=$(tar xOf "$archive" "$layer" | tar t | grep '/bin/foo-controller$') || continue
  tar xOf "$archive" "$layer" | tar xO "$program" >"$to"
done
[ -s "$to" ] || { echo "$archive: no layer contains the program" >&2; exit 1; }
chmod +x "$to"
commit=$(git rev-parse HEAD)
"$to" --version | grep -qF "($commit)" || { rm "$to"; skip "not of the commit $commit"; }
