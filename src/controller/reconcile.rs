//! One Foo, from what is to what should be: observe, decide, apply, retire what it replaces, tell.
//!
//! What to do is decided in [`desired`](super::desired) and [`status`](super::status), without a client;
//! here it is done. Every write names the UID and the resourceVersion that it is based on, and its answer
//! enters the cache before anybody looks again.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request},
    core::{Status, response::StatusDetails},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{Span, debug, info, warn};

use super::{
    cache::{Cache, Snapshot},
    corrections::Corrections,
    desired::Desired,
    error::Error,
    events::{Event, Events},
    repeats::Repeats,
    scopes::Scopes,
    status::{self, Content, Deployed},
    view::{Deployment, Foo, Object, View},
};
use crate::api::{self, FooStatus};
use operator_runtime::{Key, ineffective::Ineffective, telemetry::trace};

/// The field manager of all our writes.
pub const MANAGER: &str = "foo-controller";

/// How long the answer to a question about one Foo may take: as long as that to a write.
const LOOK_UP: Duration = Duration::from_secs(10);

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
    /// Where the Foos are served from, and with which rights.
    pub scopes: Arc<Scopes>,
    /// What keeps the log short.
    pub repeats: Arc<Repeats>,
    /// What was asked in vain.
    pub ineffective: IneffectiveWrites,
    /// What was put right of late.
    pub corrections: Corrections,
}

/// What was asked of Deployments and of the statuses of Foos, and did not come to be.
#[derive(Default)]
pub struct IneffectiveWrites {
    patches: Ineffective,
    statuses: Ineffective,
    /// Statuses that were not taken at all, beside an error that decides about trying again.
    refused: Ineffective,
}

/// What a patch of a Deployment asks for, whatever version it is based on.
struct Asked<'a>(&'a Value);

impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self(patch) = self;
        patch["metadata"]["labels"].to_string().hash(state);
        patch["metadata"]["annotations"].to_string().hash(state);
        patch["spec"].to_string().hash(state);
    }
}

/// What a change that somebody makes to the Deployment is seen by: its rollout is none.
fn left(deployment: &Deployment) -> impl Hash {
    (&deployment.uid, deployment.generation, &deployment.labels)
}

/// What a Foo's Deployment needs.
enum Need<'a> {
    /// Nothing that would help: it is right at this version, or as right as the API server lets it be.
    Nothing(Deployed, u64),
    Create(Desired<'a>),
    /// The strategic merge patch that puts this Deployment right.
    Patch(Desired<'a>, Snapshot<Deployment>, Value),
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
            self.ineffective.statuses.forget(key);
            self.ineffective.refused.forget(key);
            return Ok(Done::Settled); // Row R8.
        };
        if self.foos.is_outdated(key) {
            trace::decided("nothing: the Foo is gone, and the watch behind");
            return Err(Error::Conflict);
        }
        let span = Span::current();
        span.record("foo.uid", &*foo.view.uid);
        span.record("foo.generation", foo.view.generation);
        if let Some(by) = &foo.view.trace
            && foo.view.status.observed_generation != Some(foo.view.generation)
        {
            trace::because_of(by);
        }
        let (deployed, result) = self.deploy(key, &foo.view).await;
        let error = result.as_ref().err();
        let told = self
            .tell(key, &foo, deployed.as_ref(), error, others_wait)
            .await;
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
        if self.foos.is_outdated(key) {
            return true;
        }
        let mut settled_with = None;
        let (deployed, error) = match self.compare(key, &foo.view) {
            Ok(Need::Nothing(deployed, version))
                if self.superseded(key, &foo.view, &deployed).is_empty() =>
            {
                settled_with = Some(version);
                (Some(deployed), None)
            }
            Ok(_) => return false,
            Err(error) => (self.serving(key, &foo.view), Some(error)),
        };
        let now = Timestamp::now();
        let status = status::of(&foo.view, deployed.as_ref(), error.as_ref(), now);
        let settled = status.is_none_or(|status| !self.is_news(key, &foo, &status));
        if let Some(version) = settled_with.filter(|_| settled) {
            self.foos.settle(key, foo.version, version);
        }
        settled
    }

    /// The Deployment, and none of the Foo's beside it. What there is of it is returned whatever goes wrong.
    async fn deploy(&self, key: &Key, foo: &Foo) -> (Option<Deployed>, Result<(), Error>) {
        let mut deployed = match self.put_right(key, foo).await {
            Ok(deployed) => deployed,
            Err(error) => return (self.serving(key, foo), Err(error)),
        };
        for old in self.superseded(key, foo, &deployed) {
            trace::decided("retire");
            if let Err(error) = self.retire(key, foo, old).await {
                return (Some(deployed), Err(error));
            }
            deployed.changed = true;
        }
        (Some(deployed), Ok(()))
    }

    /// Asks the API server whether the Foo is as the cache has it: before what a Foo of an earlier generation must not do,
    /// and which no precondition of the write itself keeps it from. The answer is one of now, not of a watch that may be
    /// behind.
    async fn confirm(&self, key: &Key, foo: &Foo) -> Result<(), Error> {
        let this_one = ListParams::default().fields(&format!("metadata.name={}", key.name()));
        let api = self.api::<Foo>(key);
        let answer = timeout(LOOK_UP, api.list(&this_one)).await;
        let answer = answer.map_err(|_| {
            Error::transient(format!(
                "the API server has not answered within {LOOK_UP:?}"
            ))
        })?;
        let found = answer.map_err(|error| match error.into() {
            Error::Rejected(words) => Error::transient(words),
            other => other,
        })?;
        let is_current = found.items.iter().any(|now| {
            now.key == *key
                && (&now.view.uid, now.view.generation) == (&foo.uid, foo.generation)
                && !now.view.deleting
        });
        if is_current {
            Ok(())
        } else {
            Err(Error::Conflict)
        }
    }

    async fn put_right(&self, key: &Key, foo: &Foo) -> Result<Deployed, Error> {
        match self.compare(key, foo)? {
            Need::Nothing(deployed, _) => Ok(deployed),
            Need::Create(desired) => {
                trace::decided("create");
                // A Foo's first Deployment corrects nothing.
                let status = &foo.status;
                let again = status.deployment_name.as_deref() == Some(desired.key.name())
                    && status.observed_generation == Some(foo.generation);
                if again {
                    self.may_correct(&desired.key, foo, "it to be there")?;
                }
                let replaced = self.earlier(key, foo, &desired.key).into_iter().next();
                let replaced = replaced.map(|(_, old)| old.view);
                let view = self.create(key, &desired, replaced.as_deref()).await?;
                if again {
                    self.corrections.record(&desired.key, wanted_by(foo));
                }
                Ok(Deployed {
                    key: desired.key,
                    view,
                    changed: true,
                })
            }
            Need::Patch(desired, actual, patch) => {
                trace::decided("patch");
                self.may_correct(&desired.key, foo, &wanted(&patch))?;
                // Where the Foo is current, no Foo has had the generation that this version of the Deployment names: it is an
                // edit like any other (row R6). What a newer Foo makes of it meanwhile is another version.
                if desired.is_behind(&actual.view) {
                    self.confirm(key, foo).await?;
                }
                let (view, changed) = self.patch(key, foo, &desired, &actual, &patch).await?;
                if changed {
                    self.corrections.record(&desired.key, wanted_by(foo));
                }
                Ok(Deployed {
                    key: desired.key,
                    view,
                    changed,
                })
            }
        }
    }

    /// Whether it is time to put the Deployment right, of which `what` is wanted.
    fn may_correct(&self, deployment: &Key, foo: &Foo, what: &str) -> Result<(), Error> {
        let wait = self.corrections.wait(deployment, wanted_by(foo));
        if wait.is_zero() {
            return Ok(());
        }
        trace::decided("put off");
        let name = deployment.name().to_owned();
        Err(Error::Contested(name, what.to_owned(), wait))
    }

    /// What the Deployment needs: to be created, to be put right, or nothing (rows R1, R3, R4 and R6).
    fn compare<'a>(&'a self, key: &'a Key, foo: &'a Foo) -> Result<Need<'a>, Error> {
        let desired = Desired::of(key, foo, &self.image)?;
        let Some(actual) = self.deployments.get(&desired.key) else {
            return Ok(Need::Create(desired));
        };
        let patches = &self.ineffective.patches;
        let patch = desired.difference(&actual)?;
        if let Some(patch) =
            patch.filter(|patch| !patches.contains(&desired.key, Asked(patch), left(&actual.view)))
        {
            return Ok(Need::Patch(desired, actual, patch));
        }
        let deployed = Deployed {
            key: desired.key,
            view: actual.view,
            changed: false,
        };
        Ok(Need::Nothing(deployed, actual.version))
    }

    /// The Deployment that serves the Foo where the one that it asks for cannot be had: that one, as it is, if it is the
    /// Foo's; else the one that it had before.
    fn serving(&self, key: &Key, foo: &Foo) -> Option<Deployed> {
        let wanted = foo.spec.as_ref().map(|spec| &*spec.deployment_name);
        let wanted = key.sibling(wanted.unwrap_or_default());
        let actual = self.deployments.get(&wanted);
        let ours = actual.filter(|actual| is_controlled_by(&actual.view, foo));
        let (key, actual) = match ours {
            Some(actual) => (wanted, actual),
            None => self.earlier(key, foo, &wanted).into_iter().next()?,
        };
        Some(Deployed {
            key,
            view: actual.view,
            changed: false,
        })
    }

    /// What the Foo had under earlier names, `wanted` being the present one: the Deployment that its status names, which
    /// comes first, and those that the controller made and that were never available. A Deployment that somebody else
    /// made is not among them, even if it is a copy that names the Foo as its controller.
    fn earlier(&self, key: &Key, foo: &Foo, wanted: &Key) -> Vec<(Key, Snapshot<Deployment>)> {
        let served = |old: &Key| foo.status.deployment_name.as_deref() == Some(old.name());
        let others = self.deployments.referring(key).into_iter();
        let others = others.filter(|old| old != wanted);
        let there = others.filter_map(|old| self.deployments.get(&old).map(|actual| (old, actual)));
        let mut earlier: Vec<_> = there
            .filter(|(old, actual)| {
                is_controlled_by(&actual.view, foo)
                    && (actual.view.foo_generation.is_some() || served(old))
            })
            .collect();
        earlier.sort_by_key(|(old, actual)| (!served(old), actual.view.foo_generation));
        earlier
    }

    /// What is to be deleted of it, once the new one is available (row R11).
    fn superseded(&self, key: &Key, foo: &Foo, new: &Deployed) -> Vec<(Key, Snapshot<Deployment>)> {
        if !status::is_complete(&new.view) {
            return Vec::new();
        }
        let mut earlier = self.earlier(key, foo, &new.key);
        earlier.retain(|(_, old)| !old.view.deleting);
        earlier
    }

    /// Only for a Foo that is current: one that has been renamed back wants the old Deployment.
    async fn retire(
        &self,
        foo_key: &Key,
        foo: &Foo,
        (key, actual): (Key, Snapshot<Deployment>),
    ) -> Result<(), Error> {
        self.confirm(foo_key, foo).await?;
        let preconditions = Preconditions {
            uid: Some(actual.view.uid.to_string()),
            resource_version: Some(actual.version.to_string()),
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        self.deployments.mark(&key);
        let answer = self
            .api::<Deployment>(&key)
            .delete(key.name(), &params)
            .await;
        self.written(foo_key, answer).map_err(|error| match error {
            Error::Rejected(words) => Error::DeletionFailed(words, Duration::ZERO),
            Error::Transient(words, time) => Error::DeletionFailed(words, time),
            other => other,
        })?;
        info!(foo = %foo_key, deployment = %key, "deleted the Deployment of the Foo's earlier spec.deploymentName");
        Ok(())
    }

    /// Writes the status where it says something new, and an event where something was done or went
    /// wrong in a new way (rows R4, R5, R7 and R9).
    async fn tell(
        &self,
        key: &Key,
        foo: &Snapshot<Foo>,
        deployed: Option<&Deployed>,
        error: Option<&Error>,
        others_wait: impl Fn() -> bool,
    ) -> Result<Done, Error> {
        let Some(status) = status::of(&foo.view, deployed, error, Timestamp::now()) else {
            return Ok(Done::Settled);
        };
        let news = self.is_news(key, foo, &status);
        let changed = deployed.is_some_and(|deployed| deployed.changed);
        match error {
            None if changed => self.events.send(key, &foo.view.uid, Event::Synced),
            Some(error) if news && error.reason().is_some() => {
                if error.is_final() {
                    self.say(key, error, "waiting for the Foo to change");
                }
                self.events.send(key, &foo.view.uid, Event::failed(error));
            }
            _ => {}
        }
        if !news {
            if error.is_none() && !changed {
                trace::decided("nothing");
            }
            return Ok(Done::Settled);
        }
        if error.is_none() && changed && others_wait() {
            trace::decided("status later");
            return Ok(Done::Untold);
        }
        trace::decided("status");
        match self.put_status(key, foo, &status).await {
            // A Foo from before the schema may be so far from it that no status can be written. What is
            // wrong with the Foo decides about trying again.
            Err(refused @ Error::StatusRejected(_)) if error.is_some() => {
                self.say(key, &refused, "nothing can be told on the Foo");
                let exists = |key: &Key| self.foos.version(key).is_some();
                let (asked, left) = (Content(&status), self.refuses(key, foo));
                self.ineffective.refused.record(key, asked, left, exists);
                Ok(Done::Settled)
            }
            told => told.map(|()| Done::Settled),
        }
    }

    /// Whether this status is to be written: it says something else than the Foo's, and not what was written in vain.
    fn is_news(&self, key: &Key, foo: &Snapshot<Foo>, status: &FooStatus) -> bool {
        let IneffectiveWrites {
            statuses, refused, ..
        } = &self.ineffective;
        let left = (&foo.view.uid, Content(&foo.view.status));
        *status != foo.view.status
            && !statuses.contains(key, Content(status), left)
            && !refused.contains(key, Content(status), self.refuses(key, foo))
    }

    /// What a refusal of a status is about: another Foo, or other rights, may be another matter.
    fn refuses(&self, key: &Key, foo: &Snapshot<Foo>) -> impl Hash {
        (foo.version, self.scopes.rights_regained(key))
    }

    /// A plain create, so that a Deployment that the cache has not seen yet is not taken over.
    async fn create(
        &self,
        foo: &Key,
        desired: &Desired<'_>,
        replaced: Option<&Deployment>,
    ) -> Result<Arc<Deployment>, Error> {
        let key = &desired.key;
        let mark = self.deployments.mark(key);
        let url = Object::<Deployment>::url_path(&(), Some(key.namespace()));
        let body = serde_json::to_vec(&desired.manifest(replaced))
            .map_err(|error| Error::transient(error.to_string()))?;
        let request = Request::new(url)
            .create(&by_us(), body)
            .map_err(kube::Error::BuildRequest)?;
        let answer = self.client.request(request).await;
        let answer = self.written(foo, answer)?;
        info!(%foo, deployment = %key, "created the Deployment");
        Ok(self.deployments.observe(answer, mark))
    }

    /// Returns the Deployment, and whether it is another one now.
    async fn patch(
        &self,
        foo_key: &Key,
        foo: &Foo,
        desired: &Desired<'_>,
        actual: &Snapshot<Deployment>,
        patch: &Value,
    ) -> Result<(Arc<Deployment>, bool), Error> {
        let key = &desired.key;
        let mark = self.deployments.mark(key);
        let params = PatchParams {
            field_manager: by_us().field_manager,
            ..PatchParams::default()
        };
        let answer = self
            .api::<Deployment>(key)
            .patch(key.name(), &params, &Patch::Strategic(patch))
            .await;
        let answer = self.written(foo_key, answer)?;
        let version = answer.version;
        let view = self.deployments.observe(answer, mark);
        let changed = version != actual.version;
        if changed {
            info!(foo = %foo_key, deployment = %key, spec = %patch["spec"], "changed the Deployment");
        }
        let stored = Snapshot {
            version,
            view: Arc::clone(&view),
        };
        let patches = &self.ineffective.patches;
        if let Ok(Some(missing)) = desired.difference(&stored) {
            let exists = |key: &Key| self.deployments.version(key).is_some();
            patches.record(key, Asked(patch), left(&view), exists);
            let error = Error::Overruled(wanted(&missing));
            self.say(
                foo_key,
                &error,
                "leaving it until the Foo or the Deployment changes",
            );
            self.events.send(foo_key, &foo.uid, Event::failed(&error));
        } else {
            patches.forget(key);
        }
        Ok((view, changed))
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
        // Somebody may have annotated the Foo while the Deployment was written: no conflict.
        let version = self.foos.newest(key, foo);
        let update = json!({
            "apiVersion": api::api_version(),
            "kind": api::KIND,
            "metadata": {
                "name": key.name(),
                "namespace": key.namespace(),
                "uid": foo.view.uid,
                "resourceVersion": version.to_string(),
            },
            "status": status,
        });
        let answer = self
            .api(key)
            .replace_subresource("status", key.name(), &by_us(), &update)
            .await;
        if let Err(kube::Error::Api(status)) = &answer
            && is_gone(status, key)
        {
            self.foos.outdate(key, version);
        }
        let answer = self.written(key, answer).map_err(|error| match error {
            Error::Rejected(words) => Error::StatusRejected(words),
            other => other,
        })?;
        let stored = self.foos.observe(answer, mark);
        let statuses = &self.ineffective.statuses;
        if Content(&stored.status) == Content(status) {
            statuses.forget(key);
        } else {
            let left = (&stored.uid, Content(&stored.status));
            let exists = |key: &Key| self.foos.version(key).is_some();
            statuses.record(key, Content(status), left, exists);
        }
        Ok(())
    }

    /// What a write for this Foo came to. A refused one calls for a check of the rights, whatever else becomes of it.
    fn written<T>(&self, foo: &Key, answer: kube::Result<T>) -> Result<T, Error> {
        let answer = answer.map_err(Error::from);
        if let Err(Error::Rejected(_)) = answer {
            self.scopes.refused(foo);
        }
        answer
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

/// What corrections of a Deployment are for: another one is another matter.
fn wanted_by(foo: &Foo) -> impl Hash {
    (&foo.uid, foo.generation)
}

/// What a patch of a Deployment is to change, for people.
fn wanted(patch: &Value) -> String {
    let metadata = &patch["metadata"];
    let mut wanted = json!({ "labels": metadata["labels"], "spec": patch["spec"] });
    if metadata["labels"].is_null() && patch["spec"] == json!({}) {
        wanted["annotations"] = metadata["annotations"].clone();
    }
    wanted.to_string()
}

/// Whether there is no Foo of this name any more, or another one. (A 404 that names no object is about the resource.)
fn is_gone(status: &Status, foo: &Key) -> bool {
    let is_named = |details: &StatusDetails| details.name == foo.name();
    match status.code {
        404 => status.details.as_ref().is_some_and(is_named),
        409 => status.message.contains("UID in precondition"),
        _ => false,
    }
}

fn is_controlled_by(deployment: &Deployment, foo: &Foo) -> bool {
    let owner = deployment.owner.as_ref();
    owner.is_some_and(|owner| owner.uid == foo.uid)
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

    use http::Method;
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
            let now = Timestamp::now();
            foo.view.status = status::of(&foo.view, Some(&deployed), None, now).unwrap();
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

    /// An API server that answers each request with what `answer` makes of its method, path and body; and what it was
    /// asked, in a few words.
    fn server(
        answer: impl Fn(&Method, &str, &Value) -> (u16, Value) + Clone + Send + 'static,
    ) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (seen, answer) = (Arc::clone(&seen), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let path = head.uri.path();
                let what = path.split_once("/default/").map_or(path, |(_, what)| what);
                seen.lock().push(format!("{} {what}", head.method));
                let (code, answer) = answer(&head.method, path, &body);
                let answer = kube::client::Body::from(serde_json::to_vec(&answer).unwrap());
                let response = http::Response::builder().status(code).body(answer);
                Ok::<_, tower::BoxError>(response.unwrap())
            }
        });
        (Client::new(service, "default"), asked)
    }

    /// The fixture Deployment as the API server has it at this version, with this image.
    fn stored(version: &str, image: &str, replicas: i32) -> Value {
        json!({
            "metadata": {
                "name": "web", "namespace": "default", "uid": "web-uid", "resourceVersion": version, "generation": 4,
                "labels": { "app": "nginx", "controller": "foo" },
                "ownerReferences": [{ "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "foo",
                    "uid": "foo-uid", "controller": true }],
            },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": "nginx", "controller": "foo" } },
                "template": {
                    "metadata": { "labels": { "app": "nginx", "controller": "foo" } },
                    "spec": { "containers": [{ "name": "nginx", "image": image }] },
                },
            },
            "status": { "observedGeneration": 4, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3 },
        })
    }

    /// A Foo whose status is as it was before anybody wrote one, whatever is written.
    fn pruned() -> (u16, Value) {
        let metadata = json!({
            "name": "foo", "namespace": "default", "uid": "foo-uid", "resourceVersion": "7", "generation": 2
        });
        let spec = json!({ "deploymentName": "web", "replicas": 3 });
        (200, json!({ "metadata": metadata, "spec": spec }))
    }

    /// Invariant I6: a webhook that puts its own image in the place of ours, and stamps every write (so that the version
    /// moves each time), and a schema that prunes the status: each is asked once, until something changes.
    #[tokio::test]
    async fn what_is_stored_otherwise_is_not_asked_for_again() {
        for stamped in [false, true] {
            let (client, asked) = server(move |method, path, _| {
                let version = if stamped { "10" } else { "9" };
                match (method, path.ends_with("/status")) {
                    (&Method::PATCH, _) => (200, stored(version, "mirror", 3)),
                    (_, true) => pruned(),
                    _ => (500, Value::Null),
                }
            });
            let mut rewritten = deployment();
            rewritten.view.image = Some("mirror".into());
            let reconciler = reconciler(client, foo(), rewritten);
            let key = &foo().key;
            let reconcile = async || {
                let done = reconciler.reconcile(key, || false).await;
                assert_eq!(done.unwrap(), Done::Settled);
                std::mem::take(&mut *asked.lock())
            };
            assert_eq!(
                reconcile().await,
                ["PATCH deployments/web", "PUT foos/foo/status"]
            );
            for _ in 0..3 {
                assert!(reconciler.is_settled(key));
                assert_eq!(reconcile().await, [""; 0]);
            }
            // A rollout, of which both the counts and the version tell, is no reason to ask for the image again.
            let mut rolling: Object<Deployment> =
                serde_json::from_str(&stored("11", "mirror", 3).to_string()).unwrap();
            rolling.view.progress.available = 2;
            reconciler.deployments.apply(0, rolling);
            assert!(!reconciler.is_settled(key));
            assert_eq!(reconcile().await, ["PUT foos/foo/status"]);
            // What somebody changes is.
            let mut edited: Object<Deployment> =
                serde_json::from_str(&stored("12", "theirs", 3).to_string()).unwrap();
            edited.view.generation = 5;
            reconciler.deployments.apply(0, edited);
            assert_eq!(reconcile().await[0], "PATCH deployments/web");
            // And so is a Foo that asks for something else.
            let mut changed = foo();
            (changed.version, changed.view.generation) = (13, 3);
            reconciler.foos.apply(0, changed);
            assert_eq!(
                reconcile().await,
                ["PATCH deployments/web", "PUT foos/foo/status"]
            );
        }
    }

    /// Row R8: the Foo is gone, and the watch has not told yet, while the garbage collector deletes what is made for it.
    #[tokio::test]
    async fn a_foo_whose_status_is_gone_gets_no_deployment_until_the_watch_has_caught_up() {
        for (code, message) in [
            (404, "foos.samplecontroller.k8s.io \"foo\" not found"),
            (
                409,
                "Precondition failed: UID in precondition: foo-uid, UID in object meta: other",
            ),
        ] {
            let (client, asked) = server(move |method, _, _| match *method {
                Method::POST => (201, stored("20", "nginx:latest", 3)),
                _ => (
                    code,
                    json!({
                        "kind": "Status", "status": "Failure", "code": code, "reason": "r", "message": message,
                        "details": { "name": "foo", "kind": "foos" }
                    }),
                ),
            });
            let reconciler = reconciler(client, foo(), deployment());
            let key = &foo().key;
            let collect = |version| {
                let mut collected = deployment();
                collected.version = version;
                reconciler.deployments.delete(0, &collected);
            };
            collect(10);
            let reconcile = async || {
                let done = reconciler.reconcile(key, || false).await;
                assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
                std::mem::take(&mut *asked.lock())
            };
            assert_eq!(
                reconcile().await,
                ["POST deployments", "PUT foos/foo/status"]
            );
            collect(21);
            for _ in 0..3 {
                assert_eq!(reconcile().await, [""; 0]);
            }
            let mut again = foo();
            (again.version, again.view.uid) = (30, "other".into());
            reconciler.foos.apply(0, again);
            assert_eq!(reconcile().await[0], "POST deployments");
        }
    }

    /// A 404 that is about the resource says nothing of the Foo: the CRD may be without the subresource.
    #[tokio::test]
    async fn a_missing_status_subresource_stops_no_deployment() {
        let (client, asked) = server(|method, _, _| match *method {
            Method::POST => (201, stored("20", "nginx:latest", 3)),
            _ => (
                404,
                json!({
                    "kind": "Status", "code": 404, "reason": "NotFound",
                    "message": "the server could not find the requested resource", "details": {}
                }),
            ),
        });
        let reconciler = reconciler(client, foo(), deployment());
        for version in [10, 21] {
            let mut deleted = deployment();
            deleted.version = version;
            reconciler.deployments.delete(0, &deleted);
            let _conflict = reconciler.reconcile(&foo().key, || false).await;
            let asked = std::mem::take(&mut *asked.lock());
            assert_eq!(asked[0], "POST deployments");
        }
    }

    /// Row R11: what is deleted is what the status names, and what the controller made; not a copy, nor what is another
    /// Foo's.
    #[tokio::test]
    async fn superseded_is_what_the_foo_had() {
        let (client, _) = server(|_, _, _| (500, Value::Null));
        let mut renamed = foo();
        renamed.view.status.deployment_name = Some("served".into());
        let reconciler = reconciler(client, renamed.clone(), deployment());
        let add = |name: &str, change: fn(&mut Deployment)| {
            let mut other = deployment();
            other.key = renamed.key.sibling(name);
            change(&mut other.view);
            reconciler.deployments.apply(0, other);
        };
        // From before the annotation, as every Deployment of an earlier release.
        add("served", |d| d.foo_generation = None);
        add("never-available", |d| d.foo_generation = Some(1));
        add("a-copy", |d| d.foo_generation = None);
        add("of-an-earlier-foo", |d| {
            d.owner.as_mut().unwrap().uid = "earlier".into();
        });
        let new = reconciler.serving(&renamed.key, &renamed.view).unwrap();
        assert_eq!(new.key.name(), "web");
        let superseded = reconciler.superseded(&renamed.key, &renamed.view, &new);
        let names = superseded.iter().map(|(key, _)| key.name());
        assert_eq!(names.collect::<Vec<_>>(), ["served", "never-available"]);
    }

    /// An API server for the fixture Foo, which it has with this UID and generation, and its Deployment.
    fn server_of(uid: &'static str, generation: i64) -> (Client, Arc<Mutex<Vec<String>>>) {
        server(move |method, _, _| match *method {
            Method::GET => {
                let (_, mut foo) = pruned();
                foo["metadata"]["uid"] = uid.into();
                foo["metadata"]["generation"] = generation.into();
                (
                    200,
                    json!({ "metadata": { "resourceVersion": "30" }, "items": [foo] }),
                )
            }
            Method::PATCH => {
                let mut answer = stored("31", "nginx:latest", 3);
                answer["metadata"]["annotations"] = json!({
                    "samplecontroller.k8s.io/foo-generation": "2",
                    "samplecontroller.k8s.io/made-for": "183fc5f534cdc963",
                });
                (200, answer)
            }
            Method::DELETE => (200, json!({ "kind": "Status", "status": "Success" })),
            _ => pruned(),
        })
    }

    /// Invariant I7: a Deployment that names a newer generation is left alone as long as the Foo may have it, and is put right
    /// like after any edit (row R6) where the API server says that it has not.
    #[tokio::test]
    async fn a_generation_that_the_foo_never_had_is_an_edit() {
        let edits: [fn(&mut Deployment); 3] = [
            |_| {},
            |deployment| deployment.replicas = 5,
            |deployment| deployment.image = Some("evil".into()),
        ];
        for edit in edits {
            let edited = || {
                let mut edited = deployment();
                edited.view.foo_generation = Some(99);
                edit(&mut edited.view);
                edited
            };
            let key = &foo().key;
            // The Foo is another one, or at a later generation, and the cache is behind.
            for (uid, generation) in [("foo-uid", 3), ("foo-uid", 99), ("another", 2)] {
                let (client, asked) = server_of(uid, generation);
                let reconciler = reconciler(client, foo(), edited());
                for _ in 0..3 {
                    assert!(!reconciler.is_settled(key));
                    let done = reconciler.reconcile(key, || false).await;
                    assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
                    assert_eq!(std::mem::take(&mut *asked.lock()), ["GET foos"]);
                }
            }
            let (client, asked) = server_of("foo-uid", 2);
            let reconciler = reconciler(client, foo(), edited());
            reconciler.reconcile(key, || false).await.unwrap();
            assert_eq!(
                std::mem::take(&mut *asked.lock()),
                ["GET foos", "PATCH deployments/web", "PUT foos/foo/status"]
            );
            let stored = reconciler.deployments.get(&key.sibling("web")).unwrap();
            assert_eq!(stored.view.foo_generation, Some(2));
            assert!(reconciler.is_settled(key));
        }
    }

    /// A Foo that may not be looked up leaves the Deployment alone, and says why.
    #[tokio::test]
    async fn a_generation_that_cannot_be_confirmed_is_told() {
        for code in [403, 500, 503] {
            let (client, asked) = server(move |_, _, _| {
                (
                    code,
                    json!({ "kind": "Status", "code": code, "message": "no" }),
                )
            });
            let mut edited = deployment();
            edited.view.foo_generation = Some(99);
            let reconciler = reconciler(client, foo(), edited);
            let done = reconciler.reconcile(&foo().key, || false).await;
            let error = done.unwrap_err();
            assert!(!error.is_quiet() && !error.is_final(), "{error:?}");
            assert_eq!(*asked.lock(), ["GET foos"]);
        }
    }

    /// Row R11 behind a watch that is late: a Foo that has been renamed back meanwhile wants what it had.
    #[tokio::test]
    async fn a_foo_that_is_not_current_deletes_nothing() {
        for (uid, generation, deletes) in [
            ("foo-uid", 3, false),
            ("another", 2, false),
            ("foo-uid", 2, true),
        ] {
            let (client, asked) = server_of(uid, generation);
            let mut renamed = foo();
            renamed.view.status.deployment_name = Some("old".into());
            let reconciler = reconciler(client, renamed, deployment());
            let mut old = deployment();
            old.key = old.key.sibling("old");
            reconciler.deployments.apply(0, old);
            let done = reconciler.reconcile(&foo().key, || false).await;
            let mut expected = vec!["GET foos"];
            if deletes {
                assert_eq!(done.unwrap(), Done::Settled);
                expected.extend(["DELETE deployments/old", "PUT foos/foo/status"]);
            } else {
                assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
            }
            assert_eq!(*asked.lock(), expected);
        }
    }

    /// A refusal: a status of this code, with the time that is asked for.
    fn refusal(code: u16, retry_after: u64) -> (u16, Value) {
        let details = json!({ "name": "foo", "retryAfterSeconds": retry_after });
        (
            code,
            json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "details": details }),
        )
    }

    /// Rows R5 and R11: what is answered with a wish for time tells as much as what is answered without, and the wish is
    /// heeded.
    #[tokio::test]
    async fn what_is_put_off_is_told_whether_or_not_the_api_server_asks_for_time() {
        for (code, seconds) in [(503, 0), (503, 7), (429, 0), (429, 7), (500, 0)] {
            for verb in [Method::PATCH, Method::DELETE] {
                let put_off = verb.clone();
                let told = Arc::<Mutex<Value>>::default();
                let status = Arc::clone(&told);
                let (client, _) = server(move |method, _, body| match *method {
                    Method::GET => {
                        let (code, foo) = pruned();
                        (
                            code,
                            json!({ "metadata": { "resourceVersion": "30" }, "items": [foo] }),
                        )
                    }
                    ref method if *method == put_off => refusal(code, seconds),
                    Method::PUT => {
                        *status.lock() = body["status"].clone();
                        pruned()
                    }
                    _ => (500, Value::Null),
                });
                let mut foo = foo();
                foo.view.status.observed_generation = Some(2);
                foo.view.status.deployment_name = Some("old".into());
                let mut new = deployment();
                if verb == Method::PATCH {
                    new.view.replicas = 5;
                    new.view.progress.available = 2;
                }
                let reconciler = reconciler(client, foo.clone(), new);
                let mut old = deployment();
                old.key = old.key.sibling("old");
                reconciler.deployments.apply(0, old);
                let error = reconciler.reconcile(&foo.key, || false).await.unwrap_err();
                assert_eq!(
                    error.retry_after(),
                    Duration::from_secs(seconds),
                    "{error:?}"
                );
                let told = told.lock();
                if verb == Method::PATCH {
                    assert_eq!(told["availableReplicas"], 2, "{code} {seconds}: {told}");
                } else {
                    assert_eq!(
                        told["conditions"][1]["reason"], "DeletionFailed",
                        "{code} {seconds}"
                    );
                }
            }
        }
    }

    /// Whichever write is refused, and whatever else is wrong with the Foo: the rights are checked.
    #[tokio::test]
    async fn every_refused_write_calls_for_a_check_of_the_rights() {
        type Change = fn(&mut Object<Foo>, &mut Object<Deployment>);
        let changes: [(&str, Change); 7] = [
            ("POST deployments", |_, deployment| {
                deployment.key = deployment.key.sibling("other");
            }),
            ("PATCH deployments/web", |_, deployment| {
                deployment.view.replicas = 5;
            }),
            ("DELETE deployments/old", |foo, _| {
                foo.view.status.deployment_name = Some("old".into());
            }),
            ("PUT foos/foo/status", |_, _| {}),
            ("PUT foos/foo/status", |_, deployment| {
                deployment.view.owner = None;
            }),
            ("PUT foos/foo/status", |foo, _| {
                foo.view.spec = Err("spec: no".into());
            }),
            ("PUT foos/foo/status", |foo, _| {
                foo.view.spec.as_mut().unwrap().deployment_name.clear();
            }),
        ];
        for (refused, change) in changes {
            let (client, asked) = server(move |method, path, _| match *method {
                Method::GET => {
                    let (code, foo) = pruned();
                    (
                        code,
                        json!({ "metadata": { "resourceVersion": "30" }, "items": [foo] }),
                    )
                }
                Method::POST if path.ends_with("reviews") => {
                    (201, json!({ "spec": {}, "status": { "allowed": true } }))
                }
                _ if format!("{method} {path}").ends_with(refused.split_once(' ').unwrap().1) => {
                    refusal(403, 0)
                }
                _ => pruned(),
            });
            let (mut foo, mut deployment) = (foo(), deployment());
            let mut old = deployment.clone();
            change(&mut foo, &mut deployment);
            let reconciler = reconciler(client.clone(), foo.clone(), deployment);
            old.key = old.key.sibling("old");
            reconciler.deployments.apply(0, old);
            let check = tokio::spawn(Arc::clone(&reconciler.scopes).check_rights(0, client));
            let _refused = reconciler.reconcile(&foo.key, || false).await;
            let is_checked = async {
                while !asked.lock().iter().any(|asked| asked.ends_with("reviews")) {
                    tokio::task::yield_now().await;
                }
            };
            let checked = timeout(Duration::from_secs(10), is_checked).await;
            assert!(checked.is_ok(), "{refused}: {:?}", asked.lock());
            assert!(
                asked.lock().iter().any(|asked| asked == refused),
                "{:?}",
                asked.lock()
            );
            check.abort();
        }
    }

    /// Row R7 and invariant I6: a status that is not taken is not written again until the Foo changes, or the rights come back.
    #[tokio::test(start_paused = true)]
    async fn a_refused_status_is_written_again_when_there_is_cause() {
        for code in [403, 422] {
            let allowed = Arc::new(Mutex::new(false));
            let (now, is_review) = (Arc::clone(&allowed), |path: &str| path.ends_with("reviews"));
            let (client, asked) = server(move |_, path, _| {
                if is_review(path) {
                    let status = json!({ "allowed": code != 403 || *now.lock() });
                    (201, json!({ "spec": {}, "status": status }))
                } else {
                    refusal(code, 0)
                }
            });
            let mut invalid = foo();
            invalid.view.spec.as_mut().unwrap().deployment_name.clear();
            let key = &foo().key;
            let reconciler = reconciler(client.clone(), invalid.clone(), deployment());
            let check = tokio::spawn(Arc::clone(&reconciler.scopes).check_rights(0, client));
            let written = async || {
                let error = reconciler.reconcile(key, || false).await.unwrap_err();
                assert!(error.is_final(), "{error:?}");
                let asked = std::mem::take(&mut *asked.lock());
                asked.iter().filter(|asked| !is_review(asked)).count()
            };
            assert_eq!(written().await, 1);
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(30)).await;
                assert!(reconciler.is_settled(key));
                assert_eq!(written().await, 0);
            }
            if code == 403 {
                let before = reconciler.scopes.all_rights_regained();
                *allowed.lock() = true;
                tokio::time::sleep(Duration::from_secs(30)).await;
                assert_eq!(reconciler.scopes.all_rights_regained(), before + 1);
                assert!(!reconciler.is_settled(key));
                assert_eq!(written().await, 1);
                assert_eq!(written().await, 0);
            }
            (invalid.version, invalid.view.generation) = (8, 3);
            reconciler.foos.apply(0, invalid.clone());
            assert!(!reconciler.is_settled(key));
            assert_eq!(written().await, 1);
            assert_eq!(written().await, 0);
            check.abort();
        }
    }

    /// Row R6 against somebody who changes the Deployment back at once, or deletes it: the first corrections are made at once,
    /// then ever more slowly, and the user is told; what the Foo asks for next is not held up.
    #[tokio::test(start_paused = true)]
    async fn who_changes_the_deployment_again_and_again_is_not_fought_without_end() {
        for deletes in [false, true] {
            let version = Arc::new(Mutex::new(100_u64));
            let next = Arc::clone(&version);
            let (client, asked) = server(move |method, _, _| match *method {
                Method::PATCH | Method::POST => {
                    let mut next = next.lock();
                    *next += 1;
                    (201, stored(&next.to_string(), "nginx:latest", 3))
                }
                _ => pruned(),
            });
            let mut foo = foo();
            foo.view.status.observed_generation = Some(2);
            foo.view.status.deployment_name = Some("web".into());
            let reconciler = reconciler(client, foo.clone(), deployment());
            let fight = async |time| {
                let mut reasons = Vec::new();
                let end = tokio::time::Instant::now() + time;
                while tokio::time::Instant::now() < end {
                    let number = {
                        let mut version = version.lock();
                        *version += 1;
                        *version
                    };
                    let theirs = stored(&number.to_string(), "mirror", 3).to_string();
                    let mut theirs: Object<Deployment> = serde_json::from_str(&theirs).unwrap();
                    theirs.view.generation = i64::try_from(number).unwrap();
                    if deletes {
                        reconciler.deployments.delete(0, &theirs);
                    } else {
                        reconciler.deployments.apply(0, theirs);
                    }
                    let done = reconciler.reconcile(&foo.key, || false).await;
                    let wait = done
                        .as_ref()
                        .map_or_else(Error::retry_after, |_| Duration::ZERO);
                    reasons.extend(done.err().and_then(|error| error.reason()));
                    tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
                }
                let asked = std::mem::take(&mut *asked.lock());
                let is_write = |asked: &&String| asked.contains("deployments");
                (asked.iter().filter(is_write).count(), reasons)
            };
            let (writes, reasons) = fight(Duration::from_mins(10)).await;
            // Ten at once, and then after 1, 2, 4, … s.
            assert!(
                (16..=20).contains(&writes),
                "{writes} writes in ten minutes"
            );
            assert!(reasons.len() >= 6 && reasons.iter().all(|it| *it == "DeploymentContested"));
            (foo.version, foo.view.generation) = (1000, 3);
            foo.view.status.observed_generation = Some(3);
            reconciler.foos.apply(0, foo.clone());
            let (writes, _) = fight(Duration::from_millis(9)).await;
            assert!(writes >= 8, "{writes} for the changed Foo");
        }
    }

    /// Row R5: the spec asks for nothing that can be had, and the pods of before are there: they are counted.
    #[tokio::test]
    async fn what_serves_is_counted_where_the_spec_is_invalid() {
        let (client, _) = server(|_, _, _| (500, Value::Null));
        let mut emptied = foo();
        let spec = emptied.view.spec.as_mut().unwrap();
        spec.deployment_name.clear();
        emptied.view.status.deployment_name = Some("web".into());
        let reconciler = reconciler(client, emptied.clone(), deployment());
        let serving = reconciler.serving(&emptied.key, &emptied.view).unwrap();
        assert_eq!(
            (serving.key.name(), serving.view.progress.available),
            ("web", 3)
        );
    }

    fn reconciler(client: Client, foo: Object<Foo>, deployment: Object<Deployment>) -> Reconciler {
        let reconciler = Reconciler {
            client: client.clone(),
            foos: Arc::new(Cache::new(&[None])),
            deployments: Arc::new(Cache::new(&[None])),
            image: "nginx:latest".into(),
            events: Events::new(
                client,
                "test".into(),
                &crate::Metrics::disconnected(&crate::APP),
                || false,
            )
            .0,
            scopes: Scopes::new(&[None], Duration::from_secs(15)),
            repeats: Arc::default(),
            ineffective: IneffectiveWrites::default(),
            corrections: Corrections::default(),
        };
        reconciler.foos.apply(0, foo);
        reconciler.deployments.apply(0, deployment);
        reconciler
    }
}
