//! Users that create and change Foos while the replicas run.

use std::{sync::Arc, time::Duration};

use foo_controller::api::Foo;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::{
    sync::{
        Semaphore,
        oneshot::{self, error::TryRecvError},
    },
    task::{JoinHandle, JoinSet},
    time::{interval, sleep, timeout},
};

use super::{DEADLINE, Fleet};
use crate::support::foos::foo;

/// Interval between new Foos.
const ARRIVAL: Duration = Duration::from_millis(50);
/// Delay until most Foos change.
const CHANGE: Duration = Duration::from_secs(1);
/// Poll interval of a wait for a Deployment, and number of kinds of lives. Only a single life of each kind waits at a time, so that
/// polling adds little load.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const HANDS: usize = 8;

/// Load that creates, changes, renames, deletes and recreates Foos and edits their Deployments, until it is stopped.
pub struct Load {
    stop: oneshot::Sender<()>,
    task: JoinHandle<usize>,
}

impl Load {
    pub fn start(fleet: &Fleet) -> Self {
        let user = User {
            foos: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            deployments: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            hands: std::array::from_fn(|_| Arc::new(Semaphore::new(1))),
        };
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut arrivals = interval(ARRIVAL);
            let mut lives = JoinSet::new();
            let mut count = 0;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                arrivals.tick().await;
                let user = user.clone();
                lives.spawn(async move {
                    match timeout(DEADLINE, user.clone().life_of(count)).await {
                        Ok(done) => done.unwrap(),
                        Err(_) => user.is_stuck(count).await,
                    }
                });
                count += 1;
            }
            while let Some(life) = lives.join_next().await {
                life.unwrap();
            }
            count
        });
        Self { stop, task }
    }

    /// Stops the load and returns the number of Foos.
    pub async fn stop(self) -> usize {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// User of the Foos. It also acts for the other controllers of a cluster as far as Foos need them, because none runs here.
#[derive(Clone)]
struct User {
    foos: Api<Foo>,
    deployments: Api<Deployment>,
    hands: [Arc<Semaphore>; HANDS],
}

impl User {
    async fn life_of(self, number: usize) -> kube::Result<()> {
        let name = &format!("foo-{number}");
        let old = self.create(name).await?;
        let replicas = 2 + number % 7;
        if number % 2 == 1 {
            return self.change(name, json!({ "replicas": replicas })).await;
        }
        let Ok(_hand) = self.hands[number / 2 % HANDS].try_acquire() else {
            return Ok(());
        };
        self.deployment(name).await?;
        match number % 16 {
            2 => self.rename(name).await,
            6 | 10 => {
                self.change(name, json!({ "replicas": replicas })).await?;
                // The next Foo of this name specifies another number.
                let replicas = i32::try_from(replicas).ok();
                while self.deployment(name).await?.spec.unwrap().replicas != replicas {}
                self.foos.delete(name, &DeleteParams::default()).await?;
                let new = self.create(name).await?;
                self.hand_over(name, [&old, &new], number % 16 == 10).await
            }
            14 => self.edit(name).await,
            _ => Ok(()),
        }
    }

    /// Panics with the state of the Foo whose life should have ended.
    async fn is_stuck(&self, number: usize) {
        let name = format!("foo-{number}");
        let foo = self.foos.get(&name).await;
        let deployments = self.deployments.list(&ListParams::default()).await;
        let mut of_it = deployments.unwrap().items;
        of_it.retain(|one| one.name_any().trim_end_matches("-renamed") == name);
        panic!("{name} should have its Deployment by now: {foo:#?} {of_it:#?}");
    }

    /// Creates a Foo and returns its UID.
    async fn create(&self, name: &str) -> kube::Result<String> {
        let new = self.foos.create(&PostParams::default(), &foo(name)).await?;
        Ok(new.uid().unwrap())
    }

    async fn change(&self, name: &str, spec: Value) -> kube::Result<()> {
        sleep(CHANGE).await;
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        self.foos.patch(name, &params, &patch).await.map(drop)
    }

    /// Renames the Foo's Deployment. Reports the new one as available when it exists, so that the old one is deleted.
    async fn rename(&self, name: &str) -> kube::Result<()> {
        let new = format!("{name}-renamed");
        self.change(name, json!({ "deploymentName": new })).await?;
        let created = self.deployment(&new).await?;
        let replicas = created.spec.unwrap().replicas;
        let status = Patch::Merge(json!({ "status": {
            "observedGeneration": created.metadata.generation, "replicas": replicas,
            "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        } }));
        let params = PatchParams::default();
        let patched = self.deployments.patch_status(&new, &params, &status);
        patched.await.map(drop)
    }

    /// Deletes the Deployment of the previous Foo with this name, as the garbage collector does, or transfers it to the new
    /// Foo.
    async fn hand_over(&self, name: &str, [old, new]: [&str; 2], adopt: bool) -> kube::Result<()> {
        let uid = "/metadata/ownerReferences/0/uid";
        let adoption = json!([
            { "op": "test", "path": uid, "value": old },
            { "op": "replace", "path": uid, "value": new },
        ]);
        let adoption = Patch::Json::<()>(serde_json::from_value(adoption).unwrap());
        loop {
            let found = self.deployment(name).await?;
            if found.owner_references()[0].uid == *new {
                return Ok(());
            }
            let done = if adopt {
                let params = PatchParams::default();
                let patched = self.deployments.patch(name, &params, &adoption);
                patched.await.map(drop)
            } else {
                let this = Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                };
                let params = DeleteParams::default().preconditions(this);
                self.deployments.delete(name, &params).await.map(drop)
            };
            match done {
                // The Deployment has changed or was replaced.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
                done => done?,
            }
        }
    }

    /// Edits the Deployment of a Foo, as a user might.
    async fn edit(&self, name: &str) -> kube::Result<()> {
        sleep(CHANGE).await;
        let edited =
            json!({ "metadata": { "labels": { "app": "theirs" } }, "spec": { "replicas": 9 } });
        let (params, edited) = (PatchParams::default(), Patch::Merge(edited));
        let patched = self.deployments.patch(name, &params, &edited);
        patched.await.map(drop)
    }

    /// Waits for a Deployment and returns it.
    async fn deployment(&self, name: &str) -> kube::Result<Deployment> {
        loop {
            sleep(POLL_INTERVAL).await;
            if let Some(found) = self.deployments.get_opt(name).await? {
                return Ok(found);
            }
        }
    }
}
