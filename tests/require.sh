#!/bin/sh
# Reports the missing programs that README requires, and fails, before another command fails halfway.
missing=''
for program in cargo cc make flock chrt sha256sum; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
[ "$(bash -c 'echo "${BASH_VERSINFO[0]}"' 2>/dev/null || echo 0)" -ge 4 ] || missing="$missing bash-4"
[ "$(uname)" = Linux ] || echo "this is tried on Linux alone" >&2
[ -z "$missing" ] || { echo "not on PATH, but needed:$missing" >&2; exit 1; }
