#!/usr/bin/env bash
# install.sh NAME VERSION [OPTION OF cargo install...]: builds a program of crates.io into the folder NAME-VERSION of the user's
# cache. Takes minutes the first time, and nothing afterwards. Concurrent callers wait for one another.
set -euo pipefail

folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/$1-$2
mkdir -p "$folder"
exec 9>"$folder.lock"
flock 9
# A fast build matters more than a fast program: cargo-deny's own profile has the slowest settings. Builds of this project need
# not wait for it.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
unset CARGO_TARGET_DIR
[ -x "$folder/bin/$1" ] || cargo install --quiet --locked "$1" --version "$2" --root "$folder" "${@:3}"
