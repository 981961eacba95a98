//! What a kind brings: what is watched, and how one object gets to be as it should be.

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
    reconcile::{error::ApiError, writer::corrections::WantedBy},
    telemetry::{
        events::{Recorder, event::Event},
        log::log_once::LogDeduplication,
    },
};

/// Brings the objects of one kind, and what they ask for, to what they should be.
///
/// What is wanted must follow from what is stored; a reconcile that wants something else each time writes each time.
///
/// # What is guaranteed
///
/// - An object is with one worker at a time. What changes meanwhile has it reconciled again.
/// - It is called under a term. A write past the end of the term fails with [`ApiError::NotLeading`], and nothing was
///   written.
/// - What the stores show is not older than the last write of this process to the same object, but while the objects are
///   listed anew: a write that is based on it is then a conflict, and what is created twice `AlreadyExists`. All kinds of the
///   object's namespace have been listed before.
/// - An error is tried again as [`Failure::retry`] says. A panic costs its object a retry, not the process; in
///   [`Cached::decode`](crate::Cached::decode) or [`references`](crate::Cached::references), the object is as if it were not
///   there until it changes. The log names the method, the kind and the object.
/// - A reconcile may take as long as its requests do, each of which ends within 36 s: there is no bound to it as a whole.
///   Liveness fails where it goes on for over two minutes without one of them coming to its end, with an answer or without.
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
    /// waits. Where that one says the same, the next one comes after 100 ms.
    StatusPending,
    /// It is to be reconciled again after this, 100 ms at least: for what no watch tells of.
    ///
    /// It holds until the object's next reconcile, and no longer. A change has the object reconciled before that, and what comes
    /// of *that* says what comes next: [`Done`](Self::Done) takes this back, another `After` counts from then, and an error is
    /// tried again as [`Failure::retry`] says. A resync brings it on no sooner. It is forgotten with the term, too: a new
    /// leader reconciles the object unless [`Reconciler::is_up_to_date`] says that there is nothing to do, which it does not
    /// say by default where the answer is this one.
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
    pub(crate) attempt: &'a dyn Attempt,
    /// A fingerprint of what is read of others: see [`Informers::inputs`](crate::controller::builder::Informers::inputs).
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

    /// The time, for conditions: in whole seconds, as the API server keeps them, so that what it answers is what was asked.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = self.host.now();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Whether others wait that may need more than a status.
    #[must_use]
    pub fn others_wait(&self) -> bool {
        self.attempt.others_wait()
    }

    /// Enqueues another object of the primary kind, for a dependency that no reference and no watch shows. It has no effect after
    /// the end of the term; a new leader reconciles every object that is not up to date.
    pub fn enqueue(&self, key: Key) {
        if !self.rehearses {
            self.attempt.enqueue(key);
        }
    }

    /// Notes that something would be done, if not now.
    pub(crate) fn would_act(&self) {
        self.would_act.store(true, Relaxed);
    }

    /// Whether something is to be done, rather than to be known. Whether this replica leads is the fence's matter.
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

    /// What corrections are for: another object, or another generation, is another matter. (What it refers to is not: where that
    /// makes another request, the request is no correction.)
    pub(crate) fn wanted_by(&self) -> WantedBy<'_> {
        WantedBy {
            uid: self.seen.view.uid(),
            generation: self.seen.view.generation(),
        }
    }
}

/// The queue and the term that a reconcile is part of.
pub(crate) trait Attempt: Sync {
    /// Whether others wait that may need more than a status.
    fn others_wait(&self) -> bool;

    /// Whether this replica leads.
    fn leads(&self) -> bool;

    /// Notes that a request of this object's reconcile has ended: the reconcile is not stuck.
    fn gets_on(&self, key: &Key);

    /// Enqueues an object of the primary kind.
    fn enqueue(&self, key: Key);
}

/// A reconcile without a queue, which leads or not.
pub(crate) struct Detached {
    pub leads: bool,
}

impl Attempt for Detached {
    fn others_wait(&self) -> bool {
        false
    }

    fn leads(&self) -> bool {
        self.leads
    }

    fn gets_on(&self, _: &Key) {}

    fn enqueue(&self, _: Key) {}
}

/// Why a reconcile did not come to its end: what its error says of itself, asked once.
#[derive(Debug)]
pub(crate) struct Failed {
    name: &'static str,
    reason: Option<&'static str>,
    retry: Retry,
    text: String,
    /// Whether a panic was why.
    pub panicked: bool,
}

impl Failed {
    /// What an error of this kind's reconciler says.
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
