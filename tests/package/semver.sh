#!/usr/bin/env bash
# Reports changes of the runtime's public interface since the last release tag that its version does not allow, by
# cargo-semver-checks. BASE=REVISION compares with another revision.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
# Supports format 57 of rustdoc's JSON, which the pinned compiler writes.
version=0.51.0
base=${BASE:-$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true)}
[ -n "$base" ] || { echo 'semver: there is no release tag yet, so nothing to compare with'; exit 0; }
tests/tools/install.sh cargo-semver-checks $version
tool=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/cargo-semver-checks-$version/bin/cargo-semver-checks

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/base"
git archive "$base" | tar x -C "$work/base"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_INCREMENTAL=0
for folder in "$work/base" "$root"; do
  cd "$folder"
  "$root/tests/package/interface.sh" --locked
  mv "$CARGO_TARGET_DIR/doc/operator_runtime.json" "$work/$([ "$folder" = "$root" ] && echo current || echo base).json"
done
"$tool" semver-checks check-release --baseline-rustdoc "$work/base.json" --current-rustdoc "$work/current.json"
