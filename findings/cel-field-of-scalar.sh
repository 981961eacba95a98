#!/usr/bin/env bash
# cel 0.13.0 (Rust), a field of a value that is neither a map nor a message.
# Expected: an error. The specification of CEL, "Field Selection", defines `e.f` for messages and maps only; a field that a map
# lacks is the error no_such_field.
# Seen: a missing field of a map is an error, but a field of a string, a number or a list is `false`. A rule such as
# `!self.name.deprecated` therefore holds for each string.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target
mkdir "$folder/src"
cd "$folder"
printf '[package]\nname = "field"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\ncel = "=0.13.0"\n' >Cargo.toml
cat >src/main.rs <<'RUST'
use cel::{Context, Program};

fn main() {
    for rule in ["{'a': 1}.b", "'a'.b", "1.5.b", "[1].b", "!'a'.deprecated"] {
        let result = Program::compile(rule).unwrap().execute(&Context::default());
        println!("{rule} -> {}", result.map_or_else(|_| "error".to_owned(), |value| format!("{value:?}")));
    }
}
RUST
cargo run --quiet | tee output
diff output - <<'EXPECTED'
{'a': 1}.b -> error
'a'.b -> Bool(false)
1.5.b -> Bool(false)
[1].b -> Bool(false)
!'a'.deprecated -> Bool(true)
EXPECTED
