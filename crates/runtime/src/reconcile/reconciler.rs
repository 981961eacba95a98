//! The reconciler of a resource type, and the context of one reconcile.

use std::{fmt, time::Duration};

use futures::FutureExt as _;

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        object::{Cached as _, Primary},
        panic::{Panicked, catch},
    },
    cache::store::Snapshot,
    reconcile::{
        context::{Context, View},
        error::ApiError,
        plan::Plan,
    },
    telemetry::events::event::Event,
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
/// - An object may be reconciled although it is in its desired state. It may also be reconciled after it was deleted from the API
///   server, but not yet from the store. Each write then fails with [`ApiError::Conflict`], and is retried.
///
/// # Pauses and requests
///
/// `<group>` is the API group of the [`App`](crate::App).
///
/// - While the annotation `<group>/paused` of an object is `true`, the object is reconciled only if it is terminating. The runtime
///   adds the condition Paused to the status once, with an event. A reconcile in progress ends first; from the condition on,
///   nothing is written. The runtime removes the condition before the next reconcile.
/// - A new value of the annotation `<group>/reconcile-requested-at` enqueues the object without delay, and makes the runtime forget
///   its backoff, its disputes and its writes without effect. After the reconcile, `status.lastHandledReconcileAt` repeats the
///   value that the reconcile saw, even if the reconcile failed. After a [quiet](Retry::is_quiet) error, only the retry
///   acknowledges.
///
/// Both change the status through [`Primary::noted`](crate::Primary::noted). A reconciler that computes a whole new status
/// keeps the condition Paused and `lastHandledReconcileAt` of the stored one. The condition type Paused is reserved: if the
/// object has such a condition with another reason than Paused, the runtime reports no pause.
pub trait Reconciler: Send + Sync + 'static {
    /// The resource type that is reconciled.
    type Primary: Primary;
    /// Error of a reconcile.
    type Error: Failure + From<ApiError>;

    /// Returns the steps that bring the object to its desired state. Also called while the object is terminating.
    ///
    /// The method sends no request. The plan follows from `cx`, `seen` and the stores. For other state, add
    /// [`again_after`](Plan::again_after).
    ///
    /// Check whether the object is terminating before the spec: an invalid spec must not keep the finalizer. While the object is
    /// terminating, objects of the plan are neither created nor changed.
    ///
    /// # Errors
    /// No step runs. The status reports the error if it has a [reason](Failure::reason).
    fn plan(
        &self,
        cx: &View<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> Result<Plan<Self::Primary>, Self::Error>;

    /// Returns the status after the plan was carried out. It is written if it differs from the stored one, with an event: the
    /// error as a Warning, or `Synced`.
    ///
    /// Not called if the error has no [reason](Failure::reason). Not called after the success of the plan of a terminating
    /// object. The default adds the condition Ready if the status is [`Reported`](crate::Reported).
    fn status(
        &self,
        cx: &View<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
        outcome: &Outcome<'_, Self::Error>,
    ) -> Option<<Self::Primary as Primary>::Status> {
        let verdict = outcome.verdict((true, "Synced", String::new()));
        seen.view.with_condition("Ready", verdict, cx.now())
    }

    /// Brings one object to its desired state, and reports its status. The default carries out the plan, and writes the status
    /// after it. After a change, the status waits while other objects that may need more than a status are in the queue. Override
    /// it for another order of requests.
    ///
    /// All requests go through `cx` and the [`Writer`](crate::Writer)s. If nothing has to change, it sends no request and
    /// awaits nothing. It is also called while the object is terminating.
    fn reconcile(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send {
        async move {
            let mut now = seen.clone();
            let (mut again, mut is_changed) = (None, false);
            let done = match self.plan(&View(cx), seen) {
                Ok(plan) => {
                    again = plan.again();
                    let carried = plan.carry_out(cx, &mut now).await;
                    is_changed = carried.is_changed;
                    carried
                        .into_error()
                        .map_or(Ok(()), |error| Err(error.into()))
                }
                Err(error) => Err(error),
            };
            let finish = |done: Result<(), Self::Error>| match (done, again) {
                (Err(error), None) => Err(error),
                (Err(error), _) if error.retry() != Retry::OnChange => Err(error),
                (_, again) => Ok(again.map_or(Action::Done, Action::After)),
            };
            let outcome = Outcome {
                error: done.as_ref().err(),
            };
            let is_reported = match outcome.error {
                Some(error) => error.reason().is_some(),
                None => !seen.view.is_deleting(),
            };
            if !is_reported {
                return finish(done);
            }
            let Some(status) = self.status(&View(cx), &now, &outcome) else {
                if let Some(error) = outcome.error.filter(|it| it.retry() == Retry::OnChange) {
                    cx.log_once(error, "waiting for a change");
                }
                return finish(done);
            };
            let is_news = || (cx.primary).needs_status_update(cx.key(), &now, &status);
            if done.is_ok() && is_changed && cx.has_urgent_work() && is_news() {
                return Ok(Action::StatusPending);
            }
            let synced = || Event::normal("Synced", format!("{} synced", Self::Primary::KIND.kind));
            let event = outcome.error.map_or_else(synced, Event::failed);
            match cx.primary.report(cx, &now, &status, event).await {
                // An older object may violate the schema, so that every status of it is rejected.
                Err(rejected @ ApiError::Rejected(_)) if done.is_err() => {
                    cx.log_once(&rejected, "the status cannot be written");
                    cx.primary.suppress_status(cx, &now, &status);
                    finish(done)
                }
                reported => {
                    reported?;
                    finish(done)
                }
            }
        }
    }

    /// Returns whether [`reconcile`](Self::reconcile) would find nothing to do. Called at each resync, and by a new leader for
    /// all objects. `true` holds until the object or one of its [references](crate::Cached::references) has another version.
    ///
    /// By default, this is a dry run of `reconcile`, with the same plan and status. With this `cx`, a write or a live read ends
    /// its step, and no event or log line is produced. An override must be fast and send no request.
    fn is_up_to_date(
        &self,
        cx: &Context<'_, Self::Primary>,
        seen: &Snapshot<Self::Primary>,
    ) -> bool {
        let nothing_to_do = match self.reconcile(cx, seen).now_or_never() {
            Some(Ok(action)) => action == Action::Done,
            Some(Err(error)) => error.is_settled(),
            // It awaits something, so its result is unknown.
            None => false,
        };
        nothing_to_do && !cx.has_acted()
    }

    /// Called instead of [`reconcile`](Self::reconcile) while the object is [paused](Self#pauses-and-requests), after it has left for
    /// another installation, and after it was deleted. It may be called several times. Returns the objects to reconcile, which wait
    /// for state of this object: for example, for a place that it no longer holds. The method must be fast and send no request.
    fn release(&self, _key: &Key) -> Vec<Key> {
        Vec::new()
    }

    /// Returns the name and a sentence for each of the reconciler's own records that delay or skip a write of this object.
    /// `/debug/state?object=` and `doctor --object` show them. The method must be fast and send no request.
    fn why(&self, _key: &Key) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Result of a plan that was carried out, or failed.
#[derive(Debug)]
pub struct Outcome<'a, E> {
    /// The error of the plan or of its first failed step.
    pub error: Option<&'a E>,
}

impl<E: Failure> Outcome<'_, E> {
    /// Returns the status, reason and message of a condition, from the error or else from `otherwise`.
    #[must_use]
    pub fn verdict<'a>(&self, otherwise: (bool, &'a str, String)) -> (bool, &'a str, String) {
        self.error.map_or(otherwise, |error| {
            (false, error.reason().unwrap_or("Error"), error.to_string())
        })
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
    pub(crate) fn of(kind: &Kind, error: &impl Failure) -> Self {
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
