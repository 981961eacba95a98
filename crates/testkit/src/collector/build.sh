#!/usr/bin/env bash
# Builds the OpenTelemetry Collector of main.go into the user's cache, a minute the first time and nothing afterwards, and
# prints the program's path. A newer one: raise the versions in go.mod, and `go build -mod=mod` writes the rest of it
# (`go mod tidy` would want modules that only the tests of those modules import).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "collector: $*" >&2; }

# The project's name is not in it: a fork has the same program.
key=$(grep -hv foo-controller main.go go.mod go.sum build.sh | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/collector/$key
mkdir -p "$folder"
exec 9>"$folder/lock" # callers at the same time wait for one another
flock 9

if [ ! -x "$folder/collector" ]; then
  command -v go >/dev/null || { say "it is to be built, but Go is not on PATH"; exit 1; }
  say "building it (the first time on a machine takes a minute) ..."
  started=$SECONDS
  GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/collector.new" . \
    2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
  mv "$folder/collector.new" "$folder/collector"
  say "built in $((SECONDS - started)) s"
fi
echo "$folder/collector"
