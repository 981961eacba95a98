//! Imitations of the Deployment controller and the garbage collector, and watches on the cluster's state.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fmt::Debug, future::ready, hash::Hash, time::Duration};

use foo_controller::api;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    runtime::{
        reflector::{Store, reflector, store::Writer},
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use super::states::{self, LEAVING, SLOW, STUCK, TAKEN};

/// Current objects, from watches.
pub struct Stores {
    pub foos: Store<DynamicObject>,
    pub deployments: Store<Deployment>,
    /// Watch tasks, aborted on drop. Otherwise they would reconnect in a loop while the API server shuts down.
    _tasks: JoinSet<()>,
}

impl Stores {
    pub fn foo(&self, uid: &str) -> Option<std::sync::Arc<DynamicObject>> {
        self.foos
            .find(|foo| foo.metadata.uid.as_deref() == Some(uid))
    }

    /// Returns the Deployments of the Foo with this UID.
    pub fn owned(&self, uid: &str) -> Vec<std::sync::Arc<Deployment>> {
        let mut all = self.deployments.state();
        all.retain(|deployment| owner(deployment) == Some(uid));
        all
    }
}

fn owner(deployment: &Deployment) -> Option<&str> {
    deployment
        .owner_references()
        .first()
        .map(|owner| &*owner.uid)
}

pub fn start(client: &Client) -> Stores {
    let foos = Api::all_with(client.clone(), &states::resource(api::VERSION));
    let mut tasks = JoinSet::new();
    let foos = watch(&mut tasks, foos, states::resource(api::VERSION));
    let deployments = watch(&mut tasks, Api::all(client.clone()), ());
    tasks.spawn(act(client.clone(), foos.clone(), deployments.clone()));
    Stores {
        foos,
        deployments,
        _tasks: tasks,
    }
}

fn watch<K>(tasks: &mut JoinSet<()>, api: Api<K>, type_: K::DynamicType) -> Store<K>
where
    K: Resource<DynamicType: Eq + Hash + Clone + Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let writer = Writer::new(type_);
    let store = writer.as_reader();
    let events = reflector(writer, watcher(api, watcher::Config::default()));
    tasks.spawn(events.for_each(|_| ready(())));
    store
}

async fn act(client: Client, foos: Store<DynamicObject>, deployments: Store<Deployment>) {
    loop {
        for deployment in deployments.state() {
            let api: Api<Deployment> =
                Api::namespaced(client.clone(), &deployment.namespace().unwrap());
            // On a conflict, the next round tries again.
            if is_garbage(&client, &foos, &deployment).await {
                _ = collect(&api, &deployment).await;
            } else if !deployment.name_any().starts_with(TAKEN) {
                _ = progress(&api, &deployment).await;
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn is_garbage(client: &Client, foos: &Store<DynamicObject>, deployment: &Deployment) -> bool {
    let Some(uid) = owner(deployment) else {
        return false;
    };
    if foos
        .find(|foo| foo.metadata.uid.as_deref() == Some(uid))
        .is_some()
    {
        return false;
    }
    let api = states::api(client, &deployment.namespace().unwrap(), api::VERSION);
    let found = api
        .get_metadata_opt(&deployment.owner_references()[0].name)
        .await;
    found.is_ok_and(|foo| foo.and_then(|foo| foo.metadata.uid).as_deref() != Some(uid))
}

async fn collect(api: &Api<Deployment>, deployment: &Deployment) -> kube::Result<()> {
    let name = deployment.name_any();
    if deployment.metadata.finalizers.is_some() {
        let release = json!({ "metadata": { "uid": deployment.uid(), "finalizers": null } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(release))
            .await?;
    }
    let uid = deployment.uid();
    let params = DeleteParams::default().preconditions(Preconditions {
        uid,
        resource_version: None,
    });
    api.delete(&name, &params).await.map(drop)
}

/// Reports all pods of a Deployment as available, except for the special names.
async fn progress(api: &Api<Deployment>, deployment: &Deployment) -> kube::Result<()> {
    let name = deployment.name_any();
    let params = PatchParams::default();
    if name == LEAVING {
        if deployment.metadata.finalizers.is_none() {
            let held = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
            api.patch(&name, &params, &Patch::Merge(held)).await?;
            api.delete(&name, &DeleteParams::default()).await?;
        }
        return Ok(());
    }
    let generation = deployment.metadata.generation;
    let status = deployment.status.as_ref();
    if status.and_then(|status| status.observed_generation) == generation {
        return Ok(());
    }
    let replicas = deployment.spec.as_ref().unwrap().replicas;
    let available = if [STUCK, SLOW].contains(&&*name) {
        Some(0)
    } else {
        replicas
    };
    let mut status = json!({
        "observedGeneration": generation,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": available,
        "availableReplicas": available,
    });
    if name == STUCK {
        status["conditions"] = json!([
            { "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded" },
        ]);
    }
    api.patch_status(&name, &params, &Patch::Merge(json!({ "status": status })))
        .await
        .map(drop)
}
