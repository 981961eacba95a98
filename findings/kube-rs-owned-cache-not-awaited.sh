#!/usr/bin/env bash
# kube 5.0.0 (feature `unstable-runtime`): a `Controller` whose reconciler reads owned objects from a reflector's store, with
# `for_stream(objects, store)` and `owns_stream(owned)`. The streams are made by hand: the list of owned objects arrives last.
# Expected: reconciles begin when both stores are filled, as a manager of controller-runtime waits for all caches of a controller.
# Seen: the controller waits for the store of its main objects only. The first reconcile finds the other store empty, as if the
# owned object did not exist, and nothing reports it. A reconciler that creates missing objects then sends a request for each
# existing one at every start.
# Way out: `owned_store.wait_until_ready().await` at the beginning of the reconciler. Unless the concurrency is 1, only one reconcile
# may wait for the store, and the others for the first, as by a `tokio::sync::OnceCell`: a store wakes only one of its waiting
# tasks (`utils/delayed_init.rs`).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target
mkdir -p "$folder/src"
cd "$folder"
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2024"
[workspace]
[dependencies]
futures = "0.3"
k8s-openapi = { version = "=0.29.0", features = ["v1_36"] }
kube = { version = "=5.0.0", default-features = false, features = ["runtime", "unstable-runtime"] }
tokio = { version = "1", features = ["macros", "rt", "time"] }
TOML
cat >src/main.rs <<'RUST'
use std::{env, sync::{Arc, Mutex}, time::Duration};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    core::ObjectMeta,
    runtime::{Controller, WatchStreamExt, controller::Action, reflector, watcher},
};

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("default".into()),
        name: Some(name.into()),
        uid: Some(format!("uid of {name}")),
        ..ObjectMeta::default()
    }
}

/// A watch whose initial list has one object.
fn watch<K: Send + 'static>(object: K) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let list = [watcher::Event::Init, watcher::Event::InitApply(object), watcher::Event::InitDone];
    stream::iter(list.map(Ok)).chain(stream::pending())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let waits = env::args().nth(1).is_some();
    let parent = ConfigMap { metadata: metadata("parent"), ..ConfigMap::default() };
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: "parent".into(),
        uid: "uid of parent".into(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let child = Secret {
        metadata: ObjectMeta { owner_references: Some(vec![owner]), ..metadata("child") },
        ..Secret::default()
    };
    let (parents, writer) = reflector::store();
    let objects = watch(parent).reflect(writer).applied_objects();
    let (children, writer) = reflector::store();
    // The list of the owned objects arrives when the first reconcile has ended, or begun to wait.
    let late = stream::once(tokio::time::sleep(Duration::from_millis(300))).flat_map(move |()| watch(child.clone()));
    let owned = Box::pin(late).reflect(writer).touched_objects();

    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let reconcile = move |_: Arc<ConfigMap>, _: Arc<()>| {
        let (children, noted) = (children.clone(), noted.clone());
        async move {
            if waits {
                children.wait_until_ready().await.unwrap();
            }
            noted.lock().unwrap().push(children.state().len());
            Ok::<_, std::io::Error>(Action::await_change())
        }
    };
    let controller = Controller::for_stream(objects, parents)
        .owns_stream(owned)
        .run(reconcile, |_, _, _| Action::await_change(), Arc::new(()))
        .for_each(|_| async {});
    let _ = tokio::time::timeout(Duration::from_secs(3), controller).await;
    println!("owned objects in the store, by reconcile: {:?}", seen.lock().unwrap());
}
RUST
cargo build --quiet
echo "without waiting:"
"$CARGO_TARGET_DIR/debug/finding" | tee output
grep -qx 'owned objects in the store, by reconcile: \[0, 1\]' output
echo "with wait_until_ready in the reconciler:"
"$CARGO_TARGET_DIR/debug/finding" waits | tee output
grep -qxE 'owned objects in the store, by reconcile: \[1(, 1)?\]' output
