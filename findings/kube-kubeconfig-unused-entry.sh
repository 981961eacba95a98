#!/usr/bin/env bash
# kube 4.2.0 beside client-go 0.36.3 (kubectl 1.36): a kubeconfig with an incomplete entry that is not used.
# Expected: kube goes by the current context, whose cluster and user are complete, as client-go does.
# Seen: `Kubeconfig::read_from` fails on a context without a cluster, on a user whose exec plugin has an unknown
# interactiveMode, and on one whose variable is null. One such entry makes the whole file unusable to kube, and client-go
# reports nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir go rust rust/src

kubeconfig() { # NAME, a further context, a further user
    cat >"$1.yaml" <<YAML
apiVersion: v1
kind: Config
current-context: used
clusters:
- {name: used, cluster: {server: "https://127.0.0.1:6443"}}
contexts:
- {name: used, context: {cluster: used, user: used}}
$2
users:
- {name: used, user: {token: abc}}
$3
YAML
}
exec='apiVersion: client.authentication.k8s.io/v1, command: login'
kubeconfig complete '- {name: other, context: {cluster: used}}' "- {name: other, user: {exec: {$exec, interactiveMode: Never}}}"
kubeconfig context '- {name: other, context: {namespace: shop}}' ''
kubeconfig mode '' "- {name: other, user: {exec: {$exec, interactiveMode: Sometimes}}}"
kubeconfig variable '' "- {name: other, user: {exec: {$exec, env: [{name: REGION, value: null}]}}}"

cat >go/main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	for _, name := range os.Args[1:] {
		config, err := clientcmd.BuildConfigFromFlags("", "../"+name+".yaml")
		if err != nil {
			fmt.Printf("client-go: %s: %v\n", name, err)
		} else {
			fmt.Printf("client-go: %s: %s\n", name, config.Host)
		}
	}
}
GO
names=(complete context mode variable)
cd go
go mod init finding 2>/dev/null
go get k8s.io/client-go/tools/clientcmd@v0.36.3 2>/dev/null
go run . "${names[@]}" | tee ../seen
cd ../rust

cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
k8s-openapi = { version = "=0.28.0", features = ["v1_36"] }
kube = { version = "=4.2.0", default-features = false, features = ["config"] }
[profile.dev]
debug = false
[workspace]
TOML
cat >src/main.rs <<'RUST'
use kube::config::{Kubeconfig, KubeconfigError};

fn main() {
    for name in std::env::args().skip(1) {
        let read = Kubeconfig::read_from(format!("../{name}.yaml")).map(|_| "read".to_owned());
        let seen = read.unwrap_or_else(|error| match error {
            KubeconfigError::Parse(_) => error.to_string().lines().next().unwrap().to_owned(),
            other => panic!("{other}"),
        });
        println!("kube: {name}: {seen}");
    }
}
RUST
cargo run --quiet -- "${names[@]}" | tee -a ../seen
cd ..
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
client-go: complete: https://127.0.0.1:6443
client-go: context: https://127.0.0.1:6443
client-go: mode: https://127.0.0.1:6443
client-go: variable: https://127.0.0.1:6443
kube: complete: read
kube: context: failed to parse kubeconfig YAML: error: line 8 column 27: missing field `cluster`
kube: mode: failed to parse kubeconfig YAML: error: line 11 column 109: unknown variant `Sometimes`, expected one of Never, IfAvailable, Always
kube: variable: failed to parse kubeconfig YAML: error: line 11 column 120: cannot deserialize null into string; use Option<String>
TEXT
echo 'as described: an entry that is not used is an error of the whole file'
