#!/usr/bin/env bash
# install.sh NAME VERSION [OPTION OF cargo install...]: builds a program of crates.io into a folder of the user's cache, NAME-VERSION.
# Minutes the first time, nothing afterwards. Callers at the same time wait for one another.
set -euo pipefail

folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/$1-$2
mkdir -p "$folder"
exec 9>"$folder.lock"
flock 9
# It should be there soon rather than run fast: cargo-deny's own profile has the slowest settings that there are. And the
# builds of this project need not wait for it.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
unset CARGO_TARGET_DIR
[ -x "$folder/bin/$1" ] || cargo install --quiet --locked "$1" --version "$2" --root "$folder" "${@:3}"
