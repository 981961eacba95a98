//! The context of one reconcile.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::{debug, warn};

use crate::{
    api::{
        difference::changes::redacted,
        failure::Failure,
        key::Key,
        kind::Kind,
        object::{Cached, Primary, kind_of},
        reference::{ObjectRef, References},
    },
    cache::store::{Snapshot, Store},
    config::environment::Host,
    reconcile::{error::ApiError, writer::disputes::Requester},
    telemetry::{
        events::{Recorder, event::Event},
        log_limiter::LogLimiter,
    },
};

/// Context of one reconcile: its object, its queue, its log and its events. It contains no client: objects are written only
/// through a [`Writer`](crate::Writer).
///
/// ```compile_fail,E0616
/// fn write<P: operator_runtime::Primary>(cx: &operator_runtime::Context<'_, P>) {
///     let _ = cx.client;
/// }
/// ```
///
/// ```compile_fail,E0616
/// fn write<P: operator_runtime::Primary>(writer: &operator_runtime::Writer<P>) {
///     let _ = &writer.shared;
/// }
/// ```
pub struct Context<'a, P: Primary> {
    pub(crate) key: &'a Key,
    pub(crate) seen: &'a Snapshot<P>,
    pub(crate) host: &'a Host,
    pub(crate) recorder: &'a Recorder,
    pub(crate) log: &'a LogLimiter,
    pub(crate) attempt: &'a dyn Attempt,
    /// Fingerprint of the referenced objects; see [`Informers::inputs`](crate::controller::informers::Informers::inputs).
    pub(crate) inputs: u64,
    /// Whether this is a dry run.
    pub(crate) is_dry_run: bool,
    /// Writer of the object.
    pub(crate) primary: &'a dyn PrimaryWriter<P>,
    /// Whether the reconcile has reached an action.
    pub(crate) has_changes: AtomicBool,
    /// Requests that a dry run would have sent.
    pub(crate) steps: Mutex<Vec<Step>>,
    /// Errors of steps in a dry run, each with its step.
    pub(crate) errors: Mutex<Vec<(String, ApiError)>>,
    pub(crate) reads: Mutex<Reads>,
    /// Objects whose patch the reconcile has reached.
    pub(crate) patched: Mutex<Vec<(&'static Kind, Key)>>,
}

/// The live reads of one attempt.
#[derive(Default)]
pub(crate) struct Reads {
    /// Whether the plan depends on one. Its result then holds only for a time.
    pub is_used: bool,
    pub wanted: WantedReads,
    pub done: DoneReads,
}

/// Reads that a plan lacks.
pub(crate) type WantedReads = Vec<(Read, BoxFuture<'static, ReadResult>)>;

/// Reads of an attempt, with their results.
pub(crate) type DoneReads = Vec<(Read, ReadResult)>;

/// The cached form and the key of an object that is read.
pub(crate) type Read = (TypeId, Key);

/// An `Option<Snapshot<V>>` of the cached form `V`, or the error of the plan.
type ReadResult = Result<Arc<dyn Any + Send + Sync>, ApiError>;

/// Context of a plan. Unlike a [`Context`], it can neither send an event nor enqueue an object.
pub struct View<'a, P: Primary>(pub(crate) &'a Context<'a, P>);

impl<P: Primary> View<'_, P> {
    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// See [`Context::now`].
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Returns an object that the plan depends on. Add it to the [references](Cached::references), so that its appearance
    /// enqueues the reconciled object.
    ///
    /// # Errors
    ///
    /// - [`ApiError::Waiting`] if it does not exist.
    /// - [`ApiError::NotWatched`] if its namespace is not watched.
    /// - [`ApiError::InvalidSpec`] if a namespaced object requires an object of another namespace: its user may not be allowed to
    ///   read that. [`granted`](Self::granted) asks the other namespace. Also if the key has no namespace and the resource type is
    ///   namespaced, or the reverse: no object could have such a key.
    pub fn require<V: Cached>(&self, store: &Store<V>, key: &Key) -> Result<Snapshot<V>, ApiError> {
        self.check_namespace::<V>(key)?;
        if !store.covers(key) {
            return Err(ApiError::NotWatched(key.namespace().to_owned()));
        }
        let missing = || ApiError::Waiting(format!("no {} {:?}", V::KIND.kind, key.name()));
        store.get(key).ok_or_else(missing)
    }

    /// Fails for an object in another namespace.
    pub(crate) fn check_namespace<V: Cached>(&self, key: &Key) -> Result<(), ApiError> {
        let (namespace, own) = (key.namespace(), self.key().namespace());
        if V::KIND.is_cluster_scoped() != key.is_cluster_scoped() {
            let kind = V::KIND.kind;
            let who = if key.is_cluster_scoped() {
                "the reference has"
            } else {
                "objects of this kind have"
            };
            let words = format!("{kind} {key}: {who} no namespace");
            return Err(ApiError::InvalidSpec(words));
        }
        if !namespace.is_empty() && !own.is_empty() && namespace != own {
            let kind = V::KIND.kind;
            let words = format!("{kind} {key} is not in the namespace {own}");
            return Err(ApiError::InvalidSpec(words));
        }
        Ok(())
    }

    /// Returns an object that the plan depends on, from any watched namespace. Add it to the references by
    /// [`References::object`](crate::References::object), so that a change of its content or of its grant enqueues the reconciled
    /// object.
    ///
    /// | the object is | result |
    /// |---|---|
    /// | in the namespace of the reconciled object | as by [`require`](Self::require) |
    /// | in another namespace, with the annotation `<group>/grant-to` | the object, if the annotation contains the namespace of the reconciled object or `*` |
    /// | in another namespace, otherwise | [`ApiError::NotGranted`] |
    ///
    /// The annotation is a list of namespaces, separated by commas, for example `team-a,team-b`; `<group>` is the API group of the
    /// [`App`](crate::App). So the users with the permission to change an object decide about its readers, as by a [ReferenceGrant] of
    /// the Gateway API. A withdrawn grant enqueues the reconciled object, whose plan then fails. The results of its former plans stay.
    ///
    /// A missing object, a missing grant and a namespace that is not watched are the same error with the same text. Changes of an
    /// object without a grant neither enqueue the reconciled object nor delay it. So a spec cannot find out which objects exist in
    /// other namespaces. This does not hold for [`Store::get`], which checks nothing: do not call it with a key from a spec.
    ///
    /// The reference of a cluster-scoped object needs no grant: only users who may read all objects should
    /// have the permission to write it. It needs a namespace.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use operator_runtime::{ApiError, Cached, ObjectRef, Primary, Snapshot, Store, View};
    /// /// The Secret that a spec refers to.
    /// fn password<P: Primary, S: Cached>(
    ///     cx: &View<'_, P>,
    ///     secrets: &Store<S>,
    ///     spec: &ObjectRef,
    /// ) -> Result<Arc<S>, ApiError> {
    ///     Ok(cx.granted(secrets, spec)?.view)
    /// }
    /// ```
    ///
    /// # Panics
    /// If the object is of another namespace, and is not one of the [references](Cached::references).
    ///
    /// # Errors
    ///
    /// - [`ApiError::NotGranted`].
    /// - [`ApiError::NotListed`], until the objects of the other namespace have been listed after a start.
    /// - For an object of the same namespace, and for a cluster-scoped reconciled object: those of [`require`](Self::require).
    ///
    /// [ReferenceGrant]: https://gateway-api.sigs.k8s.io/api-types/referencegrant/
    pub fn granted<V: Cached>(
        &self,
        store: &Store<V>,
        reference: &ObjectRef,
    ) -> Result<Snapshot<V>, ApiError> {
        const { assert!(!V::KIND.is_cluster_scoped(), "use require") };
        let from = self.key();
        let key = reference
            .key(from)
            .unwrap_or_else(|| Key::cluster(&reference.name));
        if from.is_cluster_scoped() || key.namespace() == from.namespace() {
            return self.require(store, &key);
        }
        let references = References::of(from, &*self.0.seen.view);
        assert!(
            references
                .iter()
                .any(|(kind, to)| kind.is_same(&V::KIND) && *to == key),
            "the references of {from} lack {} {key}: its changes would not enqueue it",
            V::KIND.kind
        );
        if store.is_unlisted(&key) {
            return Err(ApiError::NotListed(key.namespace().to_owned()));
        }
        let found = store.get(&key);
        let granted = found.filter(|it| it.may_be_read_by(from, &key));
        granted.ok_or_else(|| {
            // Each cause has the same text.
            ApiError::NotGranted(format!(
                "no access to {} {key}: it does not exist, it is not watched, or its annotation {} does not contain {}",
                V::KIND.kind,
                store.grant_annotation(),
                from.namespace()
            ))
        })
    }
}

/// A request that a dry run has not sent.
#[derive(Clone, PartialEq)]
pub struct Step {
    /// The verb of the request, or `outside`.
    pub verb: &'static str,
    /// Kind of the object.
    pub kind: &'static str,
    /// Key of the object.
    pub key: Key,
    /// The manifest or the patch, without preconditions. The name of the finalizer for an action `outside`.
    pub body: Value,
    /// The fields that the store keeps of the object, for a `patch` or an `update`. Otherwise null.
    pub actual: Value,
    /// The field whose concurrent changes are [limited](crate::Apply::limited), and the setting with the limit. `None` unless
    /// the patch changes the field.
    pub limited: Option<(&'static str, &'static str)>,
    /// The part of a patch without its [stamp](crate::Apply::stamp). Null for other requests.
    pub(crate) compared: Value,
    pub(crate) of: &'static Kind,
}

impl Step {
    pub(crate) fn of<V: Cached>(verb: &'static str, key: &Key, body: Value) -> Self {
        Self {
            verb,
            kind: V::KIND.kind,
            key: key.clone(),
            body,
            actual: Value::Null,
            limited: None,
            compared: Value::Null,
            of: kind_of::<V>(),
        }
    }

    /// Returns the body without the values of a Secret.
    pub(crate) fn redacted(&self) -> Value {
        redacted(self.kind, &self.body)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb, kind, key, ..
        } = self;
        let body = self.redacted();
        write!(f, "{verb} {kind} {key}: {body}")
    }
}

/// The writer of the reconciled object. A trait, because [`Writer`](crate::Writer) imports this file.
pub(crate) trait PrimaryWriter<P: Primary>: Sync {
    fn verify_current<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// See [`Store::is_served`].
    fn is_served(&self, key: &Key) -> bool;

    fn needs_status_update(&self, key: &Key, seen: &Snapshot<P>, status: &P::Status) -> bool;

    fn report<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        status: &'a P::Status,
        event: Event,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    fn suppress_status(&self, cx: &Context<'_, P>, seen: &Snapshot<P>, status: &P::Status);
}

impl<P: Primary> Context<'_, P> {
    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.key
    }

    /// Returns the current time for conditions, in whole seconds. The API server stores whole seconds, so a stored status
    /// equals the written one.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = self.host.now();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Returns the context of a plan.
    #[must_use]
    pub fn view(&self) -> View<'_, P> {
        View(self)
    }

    /// Returns whether this is a dry run, which sends no request. It must not change records of the reconciler's own.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// Returns whether the reconcile has reached a request, even if the request must wait or this is a dry run.
    #[must_use]
    pub fn has_acted(&self) -> bool {
        self.has_changes.load(Relaxed)
    }

    /// Returns whether other objects wait in the queue that may need more than a status.
    #[must_use]
    pub fn has_urgent_work(&self) -> bool {
        self.attempt.has_urgent_work()
    }

    /// Enqueues another object of the primary resource type, for a dependency that neither a reference nor a watch shows.
    ///
    /// Has no effect after the end of the term. The new leader reconciles every object that is not up to date.
    pub fn enqueue(&self, key: Key) {
        if !self.is_dry_run {
            self.attempt.enqueue(key);
        }
    }

    /// Records that the reconcile has reached an action.
    pub(crate) fn has_changes(&self) {
        self.has_changes.store(true, Relaxed);
    }

    /// Records an action. In a dry run, also records its `step`, and fails. Also fails if the object has left this installation
    /// since the reconcile began: its new installation carries out the rest. Does not check leadership, which is up to the fence.
    pub(crate) fn check_dry_run(&self, step: impl FnOnce() -> Step) -> Result<(), ApiError> {
        self.has_changes();
        if self.is_dry_run {
            self.steps.lock().push(step());
            return Err(ApiError::NotLeading);
        }
        let is_served = self.primary.is_served(self.key);
        is_served.then_some(()).ok_or(ApiError::Conflict)
    }

    /// Records that the reconcile has reached a patch of this object.
    pub(crate) fn note_patch(&self, kind: &'static Kind, key: &Key) {
        self.patched.lock().push((kind, key.clone()));
    }

    /// Returns whether [`note_patch`](Self::note_patch) has recorded this object.
    pub(crate) fn has_patched(&self, kind: &Kind, key: &Key) -> bool {
        let patched = self.patched.lock();
        patched.iter().any(|(of, it)| of.is_same(kind) && it == key)
    }

    /// Records an error of a step in a dry run.
    pub(crate) fn note_error(&self, step: impl FnOnce() -> String, error: &ApiError) {
        if self.is_dry_run {
            self.errors.lock().push((step(), error.clone()));
        }
    }

    /// Queues an event about the object.
    pub fn event(&self, event: Event) {
        if self.is_dry_run {
            return;
        }
        self.recorder.send(self.key, self.seen.view.uid(), event);
    }

    /// Logs an error that is not retried, at debug level if many similar ones were logged within a short time.
    pub fn log_once(&self, error: &impl Failure, then: &str) {
        if self.is_dry_run {
            return;
        }
        let (object, controller) = (self.key, self.log.controller);
        if self.log.should_log(error) {
            warn!(%object, controller, reason = error.reason(), "{error}; {then}");
        } else {
            debug!(%object, controller, reason = error.reason(), "{error}; {then}");
        }
    }

    /// Returns the owner of a write: the object's UID and generation. Referenced objects are not part of the owner. If a
    /// referenced object changes the desired write, the new write is not a correction.
    pub(crate) fn wanted_by(&self) -> Requester<'_> {
        Requester::of(&*self.seen.view)
    }
}

/// Queue and term of one reconcile.
pub(crate) trait Attempt: Sync {
    /// Returns whether other objects wait in the queue that may need more than a status.
    fn has_urgent_work(&self) -> bool;

    /// Returns whether this replica still leads.
    fn leads(&self) -> bool;

    /// Records that a request of the object's reconcile has ended, so the reconcile has not stalled.
    fn heartbeat(&self, key: &Key);

    /// Enqueues an object of the primary resource type.
    fn enqueue(&self, key: Key);
}

/// Attempt without a queue, of a leader or a standby.
pub(crate) struct Detached {
    pub leads: bool,
}

impl Attempt for Detached {
    fn has_urgent_work(&self) -> bool {
        false
    }

    fn leads(&self) -> bool {
        self.leads
    }

    fn heartbeat(&self, _: &Key) {}

    fn enqueue(&self, _: Key) {}
}

#[cfg(test)]
mod tests;
