#!/usr/bin/env bash
# cel 0.13.0 (Rust), optional values (`optional.of`) in the variable of a macro.
# Expected: the variable is the optional value, as in cel-go: `[optional.of(1)].map(o, o.hasValue())` is `[true]`.
# Seen: `optional.of(1).hasValue()` is true, but a macro unwraps the value: its variable is the number 1, which has no `hasValue`.
# An expression that works outside of a macro fails inside.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target
mkdir "$folder/src"
cd "$folder"
printf '[package]\nname = "optional"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\ncel = "=0.13.0"\n' >Cargo.toml
cat >src/main.rs <<'RUST'
use cel::{Context, Program};

fn main() {
    for rule in ["optional.of(1).hasValue()", "[optional.of(1)].map(o, o.hasValue())", "[optional.of(1)].map(o, o + 1)"] {
        let result = Program::compile(rule).unwrap().execute(&Context::default());
        println!("{rule} -> {}", result.map_or_else(|error| error.to_string(), |value| format!("{value:?}")));
    }
}
RUST
cargo run --quiet | tee output
grep -qF 'optional.of(1).hasValue() -> Bool(true)' output
grep -qF '[optional.of(1)].map(o, o + 1) -> List([Int(2)])' output
grep -F 'o.hasValue()) -> ' output | grep -vq 'List'
