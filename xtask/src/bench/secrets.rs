//! Memory of operators that read 10 of 10,000 Secrets: `second_kind`, which reads only referenced ones, and the peer with the
//! defaults of its library.

use std::{path::PathBuf, process::Command};

use operator_testkit::cluster::bound_command;
use serde_json::json;

use super::{
    load::names,
    plane::{NO_RESYNC, Plane},
    process::{Subject, built, program},
    report::Side,
    watch::Watch,
    writes::{self, DEPLOYMENTS},
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RELAYS: &str = "/apis/example.com/v1/namespaces/default/relays";

/// Content of each Secret. The API adds a third, in base64.
const BYTES: usize = 10 << 10;

/// Secrets that are read, and others.
const READ: usize = 10;
const OTHERS: usize = 10_000;

/// Memory in MiB: the peak since the start, and when idle.
struct Memory {
    peak: f64,
    idle: f64,
}

/// Measures both operators without and with the other Secrets, and prints a table.
pub async fn run() {
    let plane = Plane::start().await;
    let relays = example();
    let crd = Command::new(&relays).arg("crd").output();
    let crd = String::from_utf8(crd.unwrap().stdout).unwrap();
    plane.cluster.install_crds(&crd).await;
    for name in names("read", READ) {
        create(&plane, &name).await;
    }
    let without = [ours(&plane, "a").await, peer(&plane, "b").await];
    let create = async |client: &kube::Client, name: &str| secret(client, name).await;
    plane.load.each(&names("other", OTHERS), create).await;
    let with = [ours(&plane, "c").await, peer(&plane, "d").await];
    println!(
        "| MiB | without | with {OTHERS} Secrets of {BYTES} bytes | more |\n|---|---|---|---|"
    );
    let programs = ["second_kind", "controller-runtime, defaults"];
    for ((program, without), with) in programs.iter().zip(&without).zip(&with) {
        for (name, without, with) in [
            ("peak", without.peak, with.peak),
            ("idle", without.idle, with.idle),
        ] {
            let more = with - without;
            println!("| {program}, {name} | {without:.1} | {with:.1} | {more:.1} |");
        }
    }
}

fn example() -> PathBuf {
    built("examples/second_kind")
}

/// Creates a Relay and a Foo that read the Secret of their name, and that Secret.
async fn create(plane: &Plane, name: &str) {
    let client = plane.load.client();
    secret(client, name).await;
    let relay = json!({
        "apiVersion": "example.com/v1", "kind": "Relay", "metadata": { "name": name },
        "spec": { "port": 80, "secretName": name },
    });
    writes::create(client, RELAYS, &relay).await;
    writes::create_foo(client, name).await;
}

async fn secret(client: &kube::Client, name: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "token": "a".repeat(BYTES) },
    });
    writes::create(client, SECRETS, &secret).await;
}

async fn ours(plane: &Plane, name: &str) -> Memory {
    let registry = tempfile::tempdir().unwrap();
    let mut command = bound_command(example());
    command
        .env_clear()
        .env("RELAY_OPERATOR__HTTP__ADDR", "")
        .env(
            "RELAY_OPERATOR__LEADER_ELECTION__LEASE_NAMESPACE",
            "default",
        )
        .env("RELAY_OPERATOR__REGISTRY", registry.path());
    (plane.cluster)
        .release_lease("default", "relay-operator")
        .await;
    measure(plane, command, CONFIG_MAPS, name).await
}

async fn peer(plane: &Plane, name: &str) -> Memory {
    let mut command = bound_command(program(Side::Defaults));
    command.env_clear().args([
        "--secrets",
        "--resync",
        &format!("{}s", NO_RESYNC.as_secs()),
    ]);
    plane.release_lease().await;
    measure(plane, command, DEPLOYMENTS, name).await
}

/// Starts an operator, creates an object, waits for its result and for the operator to become idle.
async fn measure(plane: &Plane, command: Command, results: &'static str, name: &str) -> Memory {
    let mut watch = Watch::new(plane.load.client(), results).await;
    let mut subject = Subject::spawn(&plane.cluster, command, "bench-1");
    create(plane, name).await;
    watch.until(1, |it| it.metadata.name == name).await;
    subject.rest().await;
    let memory = Memory {
        peak: subject.memory("VmHWM"),
        idle: subject.memory("VmRSS"),
    };
    subject.end();
    memory
}
