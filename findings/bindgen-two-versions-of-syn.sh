#!/usr/bin/env bash
# bindgen 0.73.2, added with `cargo add` to a package whose Cargo.lock already has syn 2 (most lock files have it).
# Expected: it compiles.
# Seen: bindgen accepts `syn = ">=2, <4"` and `prettyplease = ">=0.2.7, <0.4"`, two independent ranges. Cargo keeps the locked
# syn 2 for bindgen, and adds the newest prettyplease, which needs syn 3. bindgen passes a `File` of one version to the other:
# "the trait `Parse` is not implemented for `syn::file::File`". In an empty package both get syn 3, and it compiles.
# Way out: `cargo update -p prettyplease --precise 0.2.37`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target
package() { # name, dependencies
  mkdir -p "$folder/$1/src"
  cd "$folder/$1"
  touch src/lib.rs
  printf '[package]\nname = "%s"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\n' "$1" >Cargo.toml
  printf '%s\n' "${@:2}" >>Cargo.toml
  cargo generate-lockfile --quiet
}
of() { grep -A1 "^name = \"$1\"" Cargo.lock | sed -n 's/^version = "\([0-9]*\).*/\1/p' | xargs; }

package empty 'bindgen = "=0.73.2"'
echo "added to an empty package: syn $(of syn)"
[ "$(of syn)" = 3 ]
cargo check --quiet
echo "it compiles"

package older 'syn = "2"'
[ "$(of syn)" = 2 ]
echo 'bindgen = "=0.73.2"' >>Cargo.toml
cargo update --workspace --quiet
echo "added to a package with syn 2 in its lock file: syn $(of syn)"
[ "$(of syn)" = "2 3" ]
status=0
cargo check --quiet >output 2>&1 || status=$?
grep -E '^error' output
[ "$status" = 101 ]
grep -q 'the trait bound `syn::file::File: .*` is not satisfied' output
grep -q 'could not compile `bindgen` (lib)' output

cargo update --quiet --package prettyplease --precise 0.2.37
cargo check --quiet
echo "with prettyplease 0.2.37 it compiles"
