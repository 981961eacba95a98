#!/usr/bin/env bash
# kube 4.2.0, `Client::try_from` with an exec plugin (`client.authentication.k8s.io/v1`) as the user of the kubeconfig.
# Expected: one run of the plugin for a client, at its first request, as in client-go.
# Seen: three runs before the first request, one after another on the thread of the caller: for the Authorization header, for a
# client certificate, and for the expiry of that certificate. Where the plugin prints a token, the last two runs have no use. A
# plugin that takes one second delays the client by three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
k8s-openapi = { version = "=0.28.0", features = ["v1_36"] }
kube = { version = "=4.2.0", default-features = false, features = ["client", "ring", "rustls-tls"] }
tokio = { version = "1", features = ["macros", "rt"] }
[profile.dev]
debug = false
[workspace]
TOML
cat >src/main.rs <<'RUST'
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let runs = || std::fs::read_to_string("runs").map_or(0, |runs| runs.lines().count());
    let file = Kubeconfig::read_from("kubeconfig.yaml").unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    println!("Config: {} runs", runs());
    let _client = Client::try_from(config).unwrap();
    println!("Client: {} runs", runs());
}
RUST
cat >kubeconfig.yaml <<'YAML'
apiVersion: v1
kind: Config
current-context: it
clusters: [{name: it, cluster: {server: "https://127.0.0.1:6443"}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
users:
- name: it
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}
YAML
cat >plugin <<'SH'
#!/bin/sh
echo run >>runs
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "abc"}}'
SH
chmod +x plugin
cargo run --quiet | tee seen
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
Config: 0 runs
Client: 3 runs
TEXT
echo 'as described: a client costs three runs of the plugin'
