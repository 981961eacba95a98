//! What a kind brings: what is watched, and how one object gets to be as it should be.

use std::{
    fmt,
    hash::Hash,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::jiff::Timestamp;
use tracing::{debug, warn};

use crate::{
    Host, Key, Primary, Snapshot,
    error::{ApiError, Failure, Retry},
    log_once::LogDeduplication,
    recorder::{Event, Recorder},
};

/// Brings the objects of one kind, and what they ask for, to what they should be.
///
/// What is wanted must follow from what is stored; a reconcile that wants something else each time writes each time.
///
/// # What is guaranteed
///
/// - An object is with one worker at a time. What changes meanwhile has it reconciled again.
/// - It is called under a live term. A write past the end of the term fails with [`ApiError::NotLeading`], and nothing was
///   written.
/// - What the stores show is never older than the last write of this process to the same object, and all kinds of the object's
///   namespace have been listed before.
/// - An error is tried again as [`Failure::retry`] says, and a panic costs its object a retry, not the process. A reconcile that
///   takes longer than two minutes fails liveness.
///
/// It may be called again for what is right already, and for an object that is gone from the API server but not yet from the
/// store: each write is then a conflict, which is tried again.
pub trait Reconciler: Send + Sync + 'static {
    /// The kind that is reconciled.
    type Primary: Primary;
    /// What goes wrong.
    type Error: Failure + From<ApiError>;

    /// Brings one object to what it should be, and reports its status. It is called for one object by one worker at a time;
    /// where nothing is to be changed, it sends no request, and awaits nothing. It is called while the object is being deleted,
    /// too, if that takes a while. What it does, it does through `cx` and its [`Writer`](crate::Writer)s.
    fn reconcile(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// Whether [`reconcile`](Self::reconcile) would find nothing to do: asked at each resync, and of all objects by a new
    /// leader. An answer that is yes holds until the object, or one that it [refers to](crate::Cached::references), has
    /// another version.
    ///
    /// Unless a kind knows something cheaper, it is reconciled up to the first thing that it would do: with this `cx`, nothing
    /// is written, done or reported. What takes its place must send no request, and be quick.
    fn is_up_to_date(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> bool {
        let nothing_to_do = match self.reconcile(cx, seen).now_or_never() {
            Some(Ok(action)) => action == Action::Done,
            Some(Err(error)) => error.retry() == Retry::OnChange,
            // It waits for something: who knows what comes then.
            None => false,
        };
        nothing_to_do && !cx.would_act.load(Relaxed)
    }
}

/// What a reconcile that did not fail has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// All is as it should be, and the status says so.
    Done,
    /// What the object asks for was put right; its status is to be reported by another reconcile, when nothing more urgent
    /// waits.
    StatusPending,
    /// It is to be reconciled again after this, 100 ms at least, unless something has it reconciled before, which then says
    /// anew what comes next: for what no watch tells of. A resync does not leave such an object alone.
    After(Duration),
}

/// One reconcile of one object: what it is about, and who is told of it. There is no client in it: objects are written
/// through a [`Writer`](crate::Writer) alone.
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
    pub(crate) log: &'a LogDeduplication,
    pub(crate) others_wait: &'a (dyn Fn() -> bool + Sync),
    pub(crate) leads: &'a (dyn Fn() -> bool + Sync),
    /// A fingerprint of what is read of others: see [`Informers::inputs`](crate::builder::Informers::inputs).
    pub(crate) inputs: u64,
    /// Whether nothing is to be done.
    pub(crate) rehearses: bool,
    /// Whether something would have been done.
    pub(crate) would_act: AtomicBool,
}

impl<P: Primary> Context<'_, P> {
    /// The object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.key
    }

    /// The time, for conditions.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// Whether others wait that may need more than a status.
    #[must_use]
    pub fn others_wait(&self) -> bool {
        (self.others_wait)()
    }

    /// Notes that something would be done, if not now.
    pub(crate) fn would_act(&self) {
        self.would_act.store(true, Relaxed);
    }

    /// Whether something is to be done, rather than to be known.
    pub(crate) fn may_act(&self) -> Result<(), ApiError> {
        self.would_act();
        if self.rehearses {
            return Err(ApiError::NotLeading);
        }
        Ok(())
    }

    /// Has an event about the object written, when there is time.
    pub fn event(&self, event: Event) {
        if self.rehearses {
            return;
        }
        self.recorder.send(self.key, self.seen.view.uid(), event);
    }

    /// One line about what is not tried again, unless many like it were logged of late.
    pub fn log_once(&self, error: &impl Failure, then: &str) {
        if self.rehearses {
            return;
        }
        let object = self.key;
        if self.log.should_log(error) {
            warn!(%object, reason = error.reason(), "{error}; {then}");
        } else {
            debug!(%object, reason = error.reason(), "{error}; {then}");
        }
    }

    /// What corrections are for: another object, another generation, or something else in what it refers to, is another
    /// matter.
    pub(crate) fn wanted_by(&self) -> impl Hash {
        (
            self.seen.view.uid(),
            self.seen.view.generation(),
            self.inputs,
        )
    }
}

/// Why a reconcile did not come to its end.
#[derive(Debug)]
pub(crate) enum Failed<E> {
    Error(E),
    Panicked,
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panicked => {
                f.write_str("the reconcile panicked: see the log line before this one")
            }
        }
    }
}

impl<E: Failure> std::error::Error for Failed<E> {}

impl<E: Failure> Failure for Failed<E> {
    fn name(&self) -> &'static str {
        match self {
            Self::Error(error) => error.name(),
            Self::Panicked => "Panicked",
        }
    }

    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Error(error) => error.reason(),
            Self::Panicked => None,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Error(error) => error.retry(),
            Self::Panicked => Retry::Backoff(Duration::ZERO),
        }
    }
}
