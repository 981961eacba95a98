#!/usr/bin/env bash
# serde-saphyr 0.0.29 beside sigs.k8s.io/yaml 1.6.0: `defaultMode: 0644`, as manifests write the mode of a volume's files.
# Expected: 420, an octal number by YAML 1.1, since serde-saphyr goes by YAML 1.1 for `on`, `off`, `y` and `n`, which are
# booleans; or else 644, an integer by YAML 1.2.
# Seen: neither. An untyped value is the float 644.0, and an i32 is refused with "invalid i32". The option
# `legacy_octal_numbers`, off by default, gives 420. sigs.k8s.io/yaml, which kubectl reads with, gives 420.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir go rust rust/src
cat >go/main.go <<'GO'
package main

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

func main() {
	var value map[string]any
	err := yaml.Unmarshal([]byte("{defaultMode: 0644, optional: off}"), &value)
	fmt.Println("sigs.k8s.io/yaml: untyped:", value["defaultMode"], value["optional"], err)
}
GO
cd go
go mod init finding 2>/dev/null
go get sigs.k8s.io/yaml@v1.6.0 2>/dev/null
go run . | tee ../seen
cd ../rust

cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
serde_json = "1"
serde-saphyr = { version = "=0.0.29", default-features = false, features = ["deserialize"] }
[workspace]
TOML
cat >src/main.rs <<'RUST'
use std::collections::HashMap;

use serde_json::Value;

fn main() {
    let untyped: Value = serde_saphyr::from_str("{defaultMode: 0644, optional: off}").unwrap();
    println!("serde-saphyr: untyped: {} {}", untyped["defaultMode"], untyped["optional"]);

    let mode = "defaultMode: 0644";
    let typed = serde_saphyr::from_str::<HashMap<String, i32>>(mode).unwrap_err();
    println!("serde-saphyr: i32: {}", typed.to_string().lines().next().unwrap());

    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let typed: HashMap<String, i32> = serde_saphyr::from_str_with_options(mode, options).unwrap();
    println!("serde-saphyr: i32, legacy_octal_numbers: {}", typed["defaultMode"]);
}
RUST
cargo run --quiet | tee -a ../seen
cd ..
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
sigs.k8s.io/yaml: untyped: 420 false <nil>
serde-saphyr: untyped: 644.0 false
serde-saphyr: i32: error: line 1 column 14: invalid i32
serde-saphyr: i32, legacy_octal_numbers: 420
TEXT
echo 'as described: `off` is a boolean, and 0644 is neither 420 nor an integer'
