//! A worker takes keys from the queue, reconciles them, and reports the results to the queue.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt as _, TryFutureExt as _};
use tokio::time::Instant;
use tracing::{Instrument as _, Span, debug, field::Empty, info_span, warn};

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        panic::Panicked,
    },
    controller::{
        metrics::Instruments,
        queue::{Outcome, WorkItem, lane::Lane},
        trigger::TRIGGER,
        work_queue::WorkQueue,
    },
    reconcile::reconciler::{Action, Failed},
    telemetry::{log_limiter::LogLimiter, trace},
};

/// Trigger of a reconcile that follows [`Action::StatusPending`]. Traces contain it. It also shows whether this action is
/// returned twice in a row.
const STATUS: &str = "status";

/// Number of consecutive conflicts of one object that are logged only at the debug level. They are common while a watch lags
/// behind.
pub(super) const QUIET_CONFLICTS: u32 = 10;

/// A worker and its shared state.
#[derive(Clone)]
pub(super) struct Worker {
    pub kind: Kind,
    pub work_queue: WorkQueue,
    pub instruments: Instruments,
    pub log: Arc<LogLimiter>,
}

impl Worker {
    /// Reconciles keys until the queue is shut down.
    pub(super) async fn work<E: Failure, F: Future<Output = Result<Action, E>>>(
        self,
        reconcile: impl Fn(Key) -> F,
    ) {
        let WorkQueue {
            queue, triggers, ..
        } = &self.work_queue;
        while let Some(item) = queue.get().await {
            let noted = triggers.take(item.key(), item.lane());
            let span = span(&item, noted, self.log.controller);
            let begun = Instant::now();
            let attempt = reconcile(item.key().clone());
            let attempt = attempt.map_err(|error| Failed::of(&self.kind, &error));
            let attempt = AssertUnwindSafe(attempt.instrument(span.clone()));
            // A panic counts as a failure of this object. The error is now a `Failed`, so no code of the reconciler runs
            // outside of `catch_unwind`.
            let result = attempt.catch_unwind().await.unwrap_or_else(|_| {
                Err(Failed::from(Panicked {
                    kind: self.kind.kind,
                    method: "Reconciler::reconcile",
                }))
            });
            span.in_scope(|| {
                self.instruments
                    .ended(&result, item.waited(), begun.elapsed());
                self.complete(item, result, noted == Some(STATUS));
            });
        }
    }

    /// Reports the result of an attempt to the queue. Logs each retry with its object and delay.
    pub(super) fn complete(
        &self,
        item: WorkItem<Key>,
        result: Result<Action, Failed>,
        was_status_pending: bool,
    ) {
        let object = item.key().clone();
        let failures = &self.work_queue.failures;
        match &result {
            Ok(Action::StatusPending) => {}
            Err(error) if error.retry() != Retry::OnChange => failures.note(&object, error),
            _ => failures.forget(&object),
        }
        let error = match result {
            Ok(action) => {
                item.complete(match action {
                    Action::Done => Outcome::Done,
                    Action::After(delay) => Outcome::After(delay),
                    Action::StatusPending => {
                        (self.work_queue.triggers).note(&object, Lane::Background, STATUS);
                        Outcome::StatusPending {
                            again: was_status_pending,
                        }
                    }
                });
                return;
            }
            Err(error) => error,
        };
        trace::failed(&Span::current(), error.name(), &error);
        let retry = error.retry();
        let attempt = 1 + if retry.is_quiet() {
            item.requeues()
        } else {
            item.failures()
        };
        let delay = item.complete(Outcome::Failed(retry));
        // The reconciler has logged a failure that is not retried. After so many conflicts, the watch does not merely lag behind.
        let is_stuck = retry == Retry::Conflict && attempt > QUIET_CONFLICTS;
        if retry == Retry::OnChange {
            return;
        }
        let controller = self.log.controller;
        if (is_stuck || !retry.is_quiet()) && self.log.should_log(&error) {
            warn!(%object, controller, reason = error.reason(), attempt, ?delay, "{error}; retrying");
        } else {
            debug!(%object, controller, attempt, ?delay, "{error}; retrying");
        }
    }
}

/// Returns the root span of a reconcile's trace. Its kind is internal, because a change is not a message.
fn span(item: &WorkItem<Key>, noted: Option<&'static str>, controller: &'static str) -> Span {
    let (trigger, changed) = match item.lane() {
        Lane::Event if noted == Some(TRIGGER) => (TRIGGER, None),
        Lane::Event => ("change", noted),
        Lane::Retry => ("retry", None),
        Lane::Background => (noted.unwrap_or("resync"), None),
    };
    info_span!(
        parent: None,
        "reconcile",
        otel.status_description = Empty,
        error.type = Empty,
        controller,
        // Not `k8s.namespace.name`: that is the namespace of this process.
        object.namespace = item.key().namespace(),
        object.name = item.key().name(),
        object.uid = Empty,
        object.generation = Empty,
        reconcile.trigger = trigger,
        // Kind of the last changed object.
        reconcile.changed = changed,
        reconcile.queue_seconds = item.waited().as_secs_f64(),
        reconcile.attempt = i64::from(item.failures()) + 1,
    )
}
