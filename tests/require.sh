#!/bin/sh
# Says what is missing of what README asks for, before something else fails halfway, and fails then.
missing=''
for program in cargo cc make flock chrt sha256sum; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
[ "$(bash -c 'echo "${BASH_VERSINFO[0]}"' 2>/dev/null || echo 0)" -ge 4 ] || missing="$missing bash-4"
[ "$(uname)" = Linux ] || echo "this is tried on Linux alone" >&2
[ -z "$missing" ] || { echo "not on PATH, but needed:$missing" >&2; exit 1; }
