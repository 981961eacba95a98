//! A small controller on a control plane in memory: it sets the status of each `Shirt`. No cluster is needed, and time flies.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example whose user reads what it prints, and which fails by panicking"
)]

use futures::TryStreamExt as _;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::GroupVersionKind,
};
use operator_testkit::{ADMIN, ControlPlane, Scripted};
use serde_json::{Value, json};

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "shirts.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shirt", "plural": "shirts" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": { "type": "object", "properties": { "size": { "type": "string", "default": "M" } } },
                        "status": { "type": "object", "properties": { "sewn": { "type": "string" } } },
                    },
                } },
            }],
        },
    })
}

fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("example.com", "v1", "Shirt"),
        "shirts",
    )
}

/// The controller: watches shirts, and writes their status. A failed write is tried again.
async fn controller(client: Client) {
    let shirts: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource());
    let mut events = std::pin::pin!(shirts.watch(&WatchParams::default(), "0").await.unwrap());
    while let Some(event) = events.try_next().await.unwrap() {
        let (WatchEvent::Added(shirt) | WatchEvent::Modified(shirt)) = event else {
            continue;
        };
        let sewn = &shirt.data["spec"]["size"];
        if shirt.data["status"]["sewn"] == *sewn {
            continue;
        }
        let status = Patch::Merge(json!({ "status": { "sewn": sewn } }));
        while let Err(error) = shirts
            .patch_status(&shirt.name_any(), &PatchParams::default(), &status)
            .await
        {
            println!("trying again: {error}");
        }
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let plane = ControlPlane::new();
    plane.install(&crd()).unwrap();
    plane
        .grant(
            "tailor",
            "{ kind: ClusterRole, rules: [{ apiGroups: [example.com], resources: [shirts, shirts/status], verbs: [list, watch, patch] }] }",
        )
        .unwrap();
    // The first write of the status fails once.
    plane.next("patch", "shirts/status", Scripted::Code(503));
    tokio::spawn(controller(plane.client("tailor")));

    let shirts: Api<DynamicObject> =
        Api::namespaced_with(plane.client(ADMIN), "default", &resource());
    let mut shirt = DynamicObject::new("blue", &resource());
    shirt.data = json!({ "spec": {} });
    shirts.create(&PostParams::default(), &shirt).await.unwrap();
    plane.settle().await;

    for change in plane.history("shirts.example.com") {
        let status = change
            .after
            .map_or(Value::Null, |after| after["status"].clone());
        println!(
            "version {} by {}: status {status}",
            change.version, change.by
        );
    }
    assert_eq!(
        plane.get("shirts.example.com", "default", "blue").unwrap()["status"]["sewn"],
        "M"
    );
    assert!(plane.not_modelled().is_empty());
}
