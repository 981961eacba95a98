//! One Foo, from what is to what should be: observe, decide, apply, retire what it replaces, tell.
//!
//! What to do is decided in [`desired`](super::desired) and [`status`](super::status), without a client;
//! here it is done. Every write names the UID and the resourceVersion that it is based on, and its answer
//! enters the cache before anybody looks again.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request},
};
use serde_json::{Value, json};
use tracing::{Span, debug, info, warn};

use super::{
    cache::{Cache, Snapshot},
    desired::Desired,
    error::Error,
    events::{Event, Events},
    key::Key,
    repeats::Repeats,
    status::{self, Deployed},
    view::{Deployment, Foo, Object, View},
};
use crate::{
    api::{self, FooStatus},
    telemetry::trace,
};

/// The field manager of all our writes.
pub const MANAGER: &str = "foo-controller";

/// What reconcile works with: the caches to look into, the client to write through.
pub struct Reconciler {
    /// Refuses writes past the end of the term.
    pub client: Client,
    /// All Foos.
    pub foos: Arc<Cache<Foo>>,
    /// All Deployments, whoever made them.
    pub deployments: Arc<Cache<Deployment>>,
    /// The container image of every Deployment.
    pub image: String,
    /// Where events go.
    pub events: Events,
    /// What keeps the log short.
    pub repeats: Arc<Repeats>,
}

/// What a Foo's Deployment needs.
enum Need<'a> {
    /// Nothing: it is right at this version.
    Nothing(Deployed, u64),
    Create(Desired<'a>),
    /// The strategic merge patch that puts this Deployment right.
    Patch(Key, Value),
}

/// What a reconcile that did not fail has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The Deployment is right, and the status says so.
    Settled,
    /// The Deployment was put right; the status is to be told by another reconcile, which the caller queues.
    Untold,
}

impl Reconciler {
    /// Brings the Foo's Deployment, and then its status, to what they should be. Without anything to
    /// change, no request is sent (invariant I6). While `others_wait`, who may need a Deployment, the status of one that
    /// has just got it can wait.
    ///
    /// # Errors
    /// See [`Error`]. What the user has to know is in the Foo's status by then.
    pub async fn reconcile(
        &self,
        key: &Key,
        others_wait: impl Fn() -> bool,
    ) -> Result<Done, Error> {
        let Some(foo) = self.foos.get(key).filter(|foo| !foo.view.deleting) else {
            trace::decided("nothing: the Foo is gone");
            return Ok(Done::Settled); // Row R8.
        };
        let span = Span::current();
        span.record("foo.uid", &*foo.view.uid);
        span.record("foo.generation", foo.view.generation);
        if let Some(by) = &foo.view.trace
            && foo.view.status.observed_generation != Some(foo.view.generation)
        {
            trace::because_of(by);
        }
        let result = self.deploy(key, &foo.view).await;
        let told = self.tell(key, &foo, result.as_ref(), others_wait).await;
        match (result, told) {
            // What is final is not tried again: it must have been told.
            (Err(error), Err(untold)) if error.is_final() => Err(untold),
            (result, told) => result.and(told),
        }
    }

    /// Whether [`reconcile`](Self::reconcile) would find nothing to do: the same questions, for the caches alone.
    ///
    /// That is noted, and holds until the Foo or its Deployment has another version. (A Deployment of an earlier
    /// name that turns up again wakes its Foo by itself.)
    #[must_use]
    pub fn is_settled(&self, key: &Key) -> bool {
        if let Some((deployment, version)) = self.foos.settled_with(key)
            && self.deployments.version(&deployment) == Some(version)
        {
            return true;
        }
        let Some(foo) = self.foos.get(key).filter(|foo| !foo.view.deleting) else {
            return true;
        };
        let mut settled_with = None;
        let result = match self.compare(key, &foo.view) {
            Ok(Need::Nothing(deployed, version))
                if self.predecessors(key, &foo.view, &deployed).is_empty() =>
            {
                settled_with = Some(version);
                Ok(deployed)
            }
            Ok(_) => return false,
            Err(error) => Err(error),
        };
        let status = status::of(&foo.view, result.as_ref(), Timestamp::now());
        let settled = status.is_none_or(|status| status == foo.view.status);
        if let Some(version) = settled_with.filter(|_| settled) {
            self.foos.settle(key, foo.version, version);
        }
        settled
    }

    /// The Deployment, and none of the Foo's beside it.
    async fn deploy(&self, key: &Key, foo: &Foo) -> Result<Deployed, Error> {
        let mut deployed = match self.compare(key, foo)? {
            Need::Nothing(deployed, _) => deployed,
            Need::Create(desired) => {
                trace::decided("create");
                let view = self.create(key, &desired).await?;
                Deployed {
                    key: desired.key,
                    view,
                    changed: true,
                }
            }
            Need::Patch(deployment, patch) => {
                trace::decided("patch");
                let view = self.patch(key, &deployment, &patch).await?;
                Deployed {
                    key: deployment,
                    view,
                    changed: true,
                }
            }
        };
        for old in self.predecessors(key, foo, &deployed) {
            trace::decided("retire");
            self.retire(key, old).await?;
            deployed.changed = true;
        }
        Ok(deployed)
    }

    /// What the Deployment needs: to be created, to be put right, or nothing (rows R1, R3, R4 and R6).
    fn compare<'a>(&'a self, key: &'a Key, foo: &'a Foo) -> Result<Need<'a>, Error> {
        let desired = Desired::of(key, foo, &self.image)?;
        let Some(actual) = self.deployments.get(&desired.key) else {
            return Ok(Need::Create(desired));
        };
        if let Some(patch) = desired.difference(&actual)? {
            return Ok(Need::Patch(desired.key, patch));
        }
        let deployed = Deployed {
            key: desired.key,
            view: actual.view,
            changed: false,
        };
        Ok(Need::Nothing(deployed, actual.version))
    }

    /// What the Foo had under an earlier name, once the new one is available (row R11).
    fn predecessors(
        &self,
        key: &Key,
        foo: &Foo,
        new: &Deployed,
    ) -> Vec<(Key, Snapshot<Deployment>)> {
        if !status::is_complete(&new.view) {
            return Vec::new();
        }
        let others = self
            .deployments
            .referring(key)
            .into_iter()
            .filter(|old| *old != new.key);
        let there = others.filter_map(|old| self.deployments.get(&old).map(|actual| (old, actual)));
        let ours = |actual: &Deployment| {
            actual
                .owner
                .as_ref()
                .is_some_and(|owner| owner.uid == foo.uid)
        };
        there
            .filter(|(_, actual)| !actual.view.deleting && ours(&actual.view))
            .collect()
    }

    async fn retire(
        &self,
        foo: &Key,
        (key, actual): (Key, Snapshot<Deployment>),
    ) -> Result<(), Error> {
        let preconditions = Preconditions {
            uid: Some(actual.view.uid.to_string()),
            resource_version: Some(actual.version.to_string()),
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        self.deployments.mark(&key);
        self.api::<Deployment>(&key)
            .delete(key.name(), &params)
            .await?;
        info!(%foo, deployment = %key, "deleted the Deployment of the Foo's earlier spec.deploymentName");
        Ok(())
    }

    /// Writes the status where it says something new, and an event where something was done or went
    /// wrong in a new way (rows R4, R5, R7 and R9).
    async fn tell(
        &self,
        key: &Key,
        foo: &Snapshot<Foo>,
        result: Result<&Deployed, &Error>,
        others_wait: impl Fn() -> bool,
    ) -> Result<Done, Error> {
        let Some(status) = status::of(&foo.view, result, Timestamp::now()) else {
            return Ok(Done::Settled);
        };
        let news = status != foo.view.status;
        match result {
            Ok(deployed) if deployed.changed => self.events.send(key, &foo.view.uid, Event::Synced),
            Err(error) if news => {
                if error.is_final() {
                    self.say(key, error, "waiting for the Foo to change");
                }
                self.events.send(key, &foo.view.uid, Event::failed(error));
            }
            _ => {}
        }
        if !news {
            if matches!(result, Ok(Deployed { changed: false, .. })) {
                trace::decided("nothing");
            }
            return Ok(Done::Settled);
        }
        if matches!(result, Ok(Deployed { changed: true, .. })) && others_wait() {
            trace::decided("status later");
            return Ok(Done::Untold);
        }
        trace::decided("status");
        match self.put_status(key, foo, &status).await {
            // A Foo from before the schema may be so far from it that no status can be written. What is
            // wrong with the Foo decides about trying again.
            Err(refused @ Error::StatusRejected(_)) if result.is_err() => {
                self.say(key, &refused, "nothing can be told on the Foo");
                Ok(Done::Settled)
            }
            told => told.map(|()| Done::Settled),
        }
    }

    /// A plain create, so that a Deployment that the cache has not seen yet is not taken over.
    async fn create(&self, foo: &Key, desired: &Desired<'_>) -> Result<Arc<Deployment>, Error> {
        let key = &desired.key;
        let mark = self.deployments.mark(key);
        let url = Object::<Deployment>::url_path(&(), Some(key.namespace()));
        let body = serde_json::to_vec(&desired.manifest())
            .map_err(|error| Error::Transient(error.to_string()))?;
        let request = Request::new(url)
            .create(&by_us(), body)
            .map_err(kube::Error::BuildRequest)?;
        let answer = self.client.request(request).await?;
        info!(%foo, deployment = %key, "created the Deployment");
        Ok(self.deployments.observe(answer, mark))
    }

    async fn patch(&self, foo: &Key, key: &Key, patch: &Value) -> Result<Arc<Deployment>, Error> {
        let mark = self.deployments.mark(key);
        let params = PatchParams {
            field_manager: by_us().field_manager,
            ..PatchParams::default()
        };
        let answer = self
            .api::<Deployment>(key)
            .patch(key.name(), &params, &Patch::Strategic(patch))
            .await?;
        info!(%foo, deployment = %key, spec = %patch["spec"], "changed the Deployment");
        Ok(self.deployments.observe(answer, mark))
    }

    /// An update rather than a patch: it costs the API server an eighth less. Of an update of the status
    /// it takes nothing but the status, so the spec need not be sent.
    async fn put_status(
        &self,
        key: &Key,
        foo: &Snapshot<Foo>,
        status: &FooStatus,
    ) -> Result<(), Error> {
        let mark = self.foos.mark(key);
        let update = json!({
            "apiVersion": api::api_version(),
            "kind": api::KIND,
            "metadata": {
                "name": key.name(),
                "namespace": key.namespace(),
                "uid": foo.view.uid,
                // Somebody may have annotated the Foo while the Deployment was written: no conflict.
                "resourceVersion": self.foos.newest(key, foo).to_string(),
            },
            "status": status,
        });
        let answer = self
            .api(key)
            .replace_subresource("status", key.name(), &by_us(), &update)
            .await
            .map_err(|error| match error.into() {
                Error::Rejected(words) => Error::StatusRejected(words),
                other => other,
            })?;
        self.foos.observe(answer, mark);
        Ok(())
    }

    /// One line about what is not tried again, unless many like it were told of late.
    fn say(&self, foo: &Key, error: &Error, then: &str) {
        if self.repeats.is_news(error) {
            warn!(%foo, reason = error.reason(), "{error}; {then}");
        } else {
            debug!(%foo, reason = error.reason(), "{error}; {then}");
        }
    }

    fn api<V: View>(&self, key: &Key) -> Api<Object<V>> {
        Api::namespaced(self.client.clone(), key.namespace())
    }
}

fn by_us() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;

    use parking_lot::Mutex;

    use super::*;
    use crate::controller::fixtures::{deployment, foo, object};

    /// What somebody changes of a Foo beside what reconcile reads, while its Deployment is written, is no conflict; what
    /// it reads is one.
    #[tokio::test]
    async fn a_status_names_the_newest_version_that_reads_the_same() {
        let sent = Arc::<Mutex<Vec<Value>>>::default();
        let server = {
            let sent = Arc::clone(&sent);
            tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let sent = Arc::clone(&sent);
                async move {
                    let body = request.into_body().collect_bytes().await?;
                    sent.lock().push(serde_json::from_slice(&body).unwrap());
                    Ok::<_, kube::Error>(http::Response::new(kube::client::Body::empty()))
                }
            })
        };
        let reconciler = reconciler(Client::new(server, "default"), foo(), deployment());
        let key = &foo().key;
        let seen = reconciler.foos.get(key).unwrap();
        for (version, generation, named) in [(8, 2, "8"), (9, 3, "7")] {
            let mut changed = foo();
            (changed.version, changed.view.generation) = (version, generation);
            reconciler.foos.apply(0, changed);
            let status = FooStatus::default();
            let _no_answer = reconciler.put_status(key, &seen, &status).await;
            let update = sent.lock().pop().unwrap();
            assert_eq!(update["metadata"]["resourceVersion"], named);
        }
    }

    /// Row Q4: what a resync leaves alone is what reconcile would leave alone.
    #[tokio::test]
    async fn settled_is_what_needs_nothing() {
        let told = |change: &dyn Fn(&mut Object<Foo>, &mut Object<Deployment>)| {
            let (mut foo, mut deployment) = (foo(), deployment());
            let deployed = Deployed {
                key: deployment.key.clone(),
                view: deployment.view.clone().into(),
                changed: false,
            };
            foo.view.status = status::of(&foo.view, Ok(&deployed), Timestamp::now()).unwrap();
            change(&mut foo, &mut deployment);
            let nobody = tower::service_fn(|_| async {
                Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
            });
            reconciler(Client::new(nobody, "default"), foo, deployment)
        };
        let key = &foo().key;
        assert!(told(&|_, _| {}).is_settled(key));
        assert!(told(&|foo, _| foo.view.deleting = true).is_settled(key));
        assert!(!told(&|foo, _| foo.view.status = FooStatus::default()).is_settled(key));
        assert!(!told(&|_, deployment| deployment.view.replicas = 5).is_settled(key));
        assert!(!told(&|_, deployment| deployment.view.progress.available = 1).is_settled(key));
        assert!(!told(&|_, deployment| deployment.view.owner = None).is_settled(key));
        assert!(!told(&|_, deployment| deployment.key = key.sibling("other")).is_settled(key));

        // What was noted holds as long as both are as they were.
        let noted = told(&|_, _| {});
        for _ in 0..2 {
            assert!(noted.is_settled(key));
        }
        assert!(noted.foos.settled_with(key).is_some());
        let mut scaled = deployment();
        (scaled.version, scaled.view.replicas) = (10, 5);
        noted.deployments.apply(0, scaled);
        assert!(!noted.is_settled(key), "the Deployment has changed");
        let mut as_before = deployment();
        as_before.version = 11;
        noted.deployments.apply(0, as_before);
        assert!(noted.is_settled(key));
        let mut renamed = foo();
        (renamed.version, renamed.view.status) = (8, FooStatus::default());
        noted.foos.apply(0, renamed);
        assert!(!noted.is_settled(key), "the Foo has changed");

        let two = told(&|_, _| {});
        let mut old = deployment();
        old.key = key.sibling("old");
        two.deployments.apply(0, old);
        assert!(!two.is_settled(key), "there is a predecessor");

        let gone: Object<Foo> =
            object("metadata: {name: gone, namespace: default, uid: u, resourceVersion: '1'}");
        assert!(two.is_settled(&gone.key));
    }

    fn reconciler(client: Client, foo: Object<Foo>, deployment: Object<Deployment>) -> Reconciler {
        let reconciler = Reconciler {
            client: client.clone(),
            foos: Arc::new(Cache::new(&[None])),
            deployments: Arc::new(Cache::new(&[None])),
            image: "nginx:latest".into(),
            events: Events::new(client, "test".into(), || false).0,
            repeats: Arc::default(),
        };
        reconciler.foos.apply(0, foo);
        reconciler.deployments.apply(0, deployment);
        reconciler
    }
}
