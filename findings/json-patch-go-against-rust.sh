#!/usr/bin/env bash
# gopkg.in/evanphx/json-patch.v4 4.13.0 (Go), which kube-apiserver 1.36 applies JSON patches with, and json-patch 4.2.0 (Rust), with
# the same patches.
# Expected: the same results. RFC 6902, section 4, names the patches that are errors: the target of `replace` must exist (4.3), and
# an array index is a number without a sign (RFC 6901, section 4).
# Seen: the Go library counts a negative index from the end, adds a member that `replace` does not find, and accepts leading zeros
# of an index. The Rust crate rejects all of these. A `test` of a missing member against null succeeds in Go alone. So a patch that
# a program checks with the Rust crate may fail there and change the object in the cluster.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target GOFLAGS=-mod=mod GOWORK=off
mkdir -p "$folder/rust/src" "$folder/go"
cat >"$folder/cases" <<'CASES'
[{"op": "replace", "path": "/a", "value": 2}]
[{"op": "replace", "path": "/b", "value": 2}]
[{"op": "replace", "path": "/list/-1", "value": 9}]
[{"op": "remove", "path": "/list/-2"}]
[{"op": "replace", "path": "/list/01", "value": 9}]
[{"op": "test", "path": "/b", "value": null}]
[{"op": "remove", "path": "/b"}]
CASES

cd "$folder/rust"
printf '[package]\nname = "patch"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\njson-patch = "=4.2.0"\nserde_json = "1"\n' >Cargo.toml
cat >src/main.rs <<'RUST'
use json_patch::Patch;
use serde_json::{Value, json};

fn main() {
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let patch: Patch = serde_json::from_str(&line).unwrap();
        let mut object: Value = json!({ "a": 1, "list": [1, 2] });
        let result = json_patch::patch(&mut object, &patch);
        println!("{}", result.map_or_else(|_| "error".to_owned(), |()| object.to_string()));
    }
}
RUST
cargo run --quiet <"$folder/cases" >"$folder/rust.out"

cd "$folder/go"
cat >main.go <<'GO'
package main

import (
	"bufio"
	"fmt"
	"os"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		patch, err := jsonpatch.DecodePatch(lines.Bytes())
		if err != nil {
			panic(err)
		}
		object, err := patch.Apply([]byte(`{"a":1,"list":[1,2]}`))
		if err != nil {
			object = []byte("error")
		}
		fmt.Println(string(object))
	}
}
GO
go mod init patch 2>/dev/null
go get gopkg.in/evanphx/json-patch.v4@v4.13.0 2>/dev/null
go run . <"$folder/cases" >"$folder/go.out"

paste -d '|' "$folder/go.out" "$folder/rust.out" | tee "$folder/output"
diff "$folder/output" - <<'EXPECTED'
{"a":2,"list":[1,2]}|{"a":2,"list":[1,2]}
{"a":1,"b":2,"list":[1,2]}|error
{"a":1,"list":[1,9]}|error
{"a":1,"list":[2]}|error
{"a":1,"list":[1,9]}|error
{"a":1,"list":[1,2]}|error
error|error
EXPECTED
