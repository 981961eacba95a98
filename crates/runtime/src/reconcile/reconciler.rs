//! The reconciler of a resource type, and the context of one reconcile.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::jiff::Timestamp;
use tracing::{debug, warn};

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        object::Primary,
        panic::{Panicked, catch},
    },
    cache::store::Snapshot,
    config::environment::Host,
    reconcile::{error::ApiError, writer::disputes::Requester},
    telemetry::{
        events::{Recorder, event::Event},
        log::log_once::LogLimiter,
    },
};

/// Brings the objects of one resource type to their desired state.
///
/// The desired state must follow from the stored objects. A reconciler that computes another desired state each time writes at
/// each reconcile.
///
/// # Guarantees
///
/// - At most one worker reconciles an object at a time. A change during a reconcile enqueues the object again.
/// - A reconcile runs during a term: the time while this replica leads. After the term has ended, a write fails with
///   [`ApiError::NotLeading`], and nothing is written.
/// - An object in a store is never older than the last write of this process to it, except during a relist. A write that is
///   based on an older state is a conflict, and a repeated create returns `AlreadyExists`.
/// - Before the first reconcile in a namespace, all watched resource types have been listed there.
/// - An error is retried according to [`Failure::retry`]. A panic costs its object a retry, and does not end the process. If
///   [`Cached::decode`](crate::Cached::decode) or [`references`](crate::Cached::references) panics, the object is treated as
///   missing until it changes. The log names the method, the resource type and the object.
/// - Each request of a reconcile ends within 36 s. The reconcile as a whole has no time limit. The liveness check fails if none
///   of its requests ends, with or without a response, for over two minutes.
///
/// An object may be reconciled although it is in its desired state. It may also be reconciled after it was deleted from the API
/// server, but not yet from the store. Each write then fails with [`ApiError::Conflict`], and is retried.
pub trait Reconciler: Send + Sync + 'static {
    /// The resource type that is reconciled.
    type Primary: Primary;
    /// Error of a reconcile.
    type Error: Failure + From<ApiError>;

    /// Brings one object to its desired state, and reports its status.
    ///
    /// All requests go through `cx` and the [`Writer`](crate::Writer)s. If nothing has to change, it sends no request and
    /// awaits nothing. It is also called while the object is terminating.
    fn reconcile(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// Returns whether [`reconcile`](Self::reconcile) would find nothing to do. Called at each resync, and by a new leader for
    /// all objects. `true` holds until the object or one of its [references](crate::Cached::references) has another version.
    ///
    /// By default, this is a dry run of `reconcile`. It ends at the first action: with this `cx`, nothing is written, and no
    /// event or log line is produced. An override must be fast and send no request.
    fn is_up_to_date(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> bool {
        let nothing_to_do = match self.reconcile(cx, seen).now_or_never() {
            Some(Ok(action)) => action == Action::Done,
            Some(Err(error)) => error.retry() == Retry::OnChange,
            // It awaits something, so its result is unknown.
            None => false,
        };
        nothing_to_do && !cx.has_changes.load(Relaxed)
    }

    /// Returns the name and a sentence for each of the reconciler's own records that delay or skip a write of this object.
    /// `/debug/state?object=` and `doctor --object` show them. The method must be fast and send no request.
    fn why(&self, _key: &Key) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Result of a reconcile that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The object is in its desired state, and its status reports that.
    Done,
    /// The desired state is applied, but the status is not reported. Another reconcile reports the status when nothing more
    /// urgent waits. If that reconcile also returns `StatusPending`, the next reconcile follows after 100 ms.
    StatusPending,
    /// Reconcile the object again after this delay, at least 100 ms. For state that no watch reports.
    ///
    /// The delay holds until the next reconcile of the object, which a change may trigger earlier. The result of that reconcile
    /// replaces the delay. A resync does not shorten it.
    ///
    /// The delay is lost at the end of the term. The new leader reconciles the object unless [`Reconciler::is_up_to_date`]
    /// returns `true`. By default, it returns `false` for this result.
    After(Duration),
}

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
pub struct Context<'a, P> {
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
    /// Whether the reconcile has reached an action.
    pub(crate) has_changes: AtomicBool,
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

    /// Records an action, and fails in a dry run. Does not check leadership, which is up to the fence.
    pub(crate) fn check_dry_run(&self) -> Result<(), ApiError> {
        self.has_changes();
        if self.is_dry_run {
            return Err(ApiError::NotLeading);
        }
        Ok(())
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
        let object = self.key;
        if self.log.should_log(error) {
            warn!(%object, reason = error.reason(), "{error}; {then}");
        } else {
            debug!(%object, reason = error.reason(), "{error}; {then}");
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

/// Copy of a reconcile's error. The copy calls each method of the error only once, because the method may panic.
#[derive(Debug)]
pub(crate) struct Failed {
    name: &'static str,
    reason: Option<&'static str>,
    retry: Retry,
    text: String,
    /// Whether the cause is a panic.
    pub panicked: bool,
}

impl Failed {
    /// Copies the error of a reconciler. If one of its methods panics, that panic is the error.
    pub fn of(kind: &Kind, error: &impl Failure) -> Self {
        let asked = || -> Result<Self, Panicked> {
            Ok(Self {
                name: catch(kind, "Failure::name", || error.name())?,
                reason: catch(kind, "Failure::reason", || error.reason())?,
                retry: catch(kind, "Failure::retry", || error.retry())?,
                text: catch(kind, "Display::fmt", || error.to_string())?,
                panicked: false,
            })
        };
        asked().unwrap_or_else(Into::into)
    }
}

impl From<Panicked> for Failed {
    fn from(panicked: Panicked) -> Self {
        Self {
            name: "Panicked",
            reason: None,
            retry: Retry::Backoff(Duration::ZERO),
            text: panicked.to_string(),
            panicked: true,
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

impl Failure for Failed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    fn retry(&self) -> Retry {
        self.retry
    }
}
