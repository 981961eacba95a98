//! A controller of kube-rs on a control plane in memory: each `Shirt` gets a `ConfigMap`, and has a finalizer. No cluster is needed,
//! and time flies.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example whose user reads what it prints, and which fails by panicking"
)]

use std::{future, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, CustomResource, CustomResourceExt as _, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{
        Controller,
        controller::Action,
        finalizer::{Error, Event, finalizer},
        watcher,
    },
};
use operator_testkit::{ADMIN, ControlPlane, Scripted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Shirt", namespaced)]
struct ShirtSpec {
    size: String,
}

const ROLE: &str = "
kind: ClusterRole
rules:
  - { apiGroups: [example.com], resources: [shirts], verbs: [list, watch, patch] }
  - { apiGroups: [''], resources: [configmaps], verbs: [list, watch, create, patch] }
";

async fn reconcile(shirt: Arc<Shirt>, client: Arc<Client>) -> Result<Action, Error<kube::Error>> {
    let namespace = shirt.namespace().unwrap_or_default();
    let shirts: Api<Shirt> = Api::namespaced((*client).clone(), &namespace);
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), &namespace);
    finalizer(&shirts, "example.com/tailor", shirt, |event| async {
        let Event::Apply(shirt) = event else {
            return Ok(Action::await_change());
        };
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: shirt.metadata.name.clone(),
                owner_references: shirt.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([("size".to_owned(), shirt.spec.size.clone())].into()),
            ..ConfigMap::default()
        };
        let params = PatchParams::apply("tailor").force();
        maps.patch(&shirt.name_any(), &params, &Patch::Apply(map))
            .await?;
        Ok(Action::await_change())
    })
    .await
}

fn error_policy(_: Arc<Shirt>, error: &Error<kube::Error>, _: Arc<Client>) -> Action {
    println!("trying again: {error}");
    Action::requeue(Duration::from_secs(5))
}

/// Runs the controller, and prints the changes of its shirts. A unit test calls it.
#[tokio::main(flavor = "current_thread", start_paused = true)]
pub async fn main() {
    let plane = ControlPlane::new();
    plane
        .install(&serde_json::to_value(Shirt::crd()).unwrap())
        .unwrap();
    plane.grant("tailor", ROLE).unwrap();
    // The first write of a ConfigMap fails.
    plane.next("patch", "configmaps", Scripted::Code(503));
    let client = plane.client("tailor");
    let controller = Controller::new(
        Api::<Shirt>::all(client.clone()),
        watcher::Config::default(),
    )
    .owns(
        Api::<ConfigMap>::all(client.clone()),
        watcher::Config::default(),
    )
    .run(reconcile, error_policy, Arc::new(client));
    tokio::spawn(controller.for_each(|_| future::ready(())));

    let shirts: Api<Shirt> = Api::namespaced(plane.client(ADMIN), "default");
    let spec = ShirtSpec {
        size: "M".to_owned(),
    };
    let shirt = Shirt::new("blue", spec);
    shirts.create(&PostParams::default(), &shirt).await.unwrap();
    // Longer than the pause before the second attempt.
    plane.settle_for(Duration::from_secs(10)).await;
    let map = plane.get("configmaps", "default", "blue").unwrap();
    assert_eq!(map["data"]["size"], "M");

    shirts
        .delete("blue", &DeleteParams::default())
        .await
        .unwrap();
    plane.settle().await;
    assert!(plane.get("shirts.example.com", "default", "blue").is_none());
    assert!(plane.get("configmaps", "default", "blue").is_none());
    for change in plane.history("shirts.example.com") {
        println!("version {} by {}", change.version, change.by);
    }
    // A watcher tries again after a response that is not modelled.
    assert!(plane.not_modelled().is_empty());
}
