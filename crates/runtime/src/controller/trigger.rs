//! Reconciles for a reason that no watch reports.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::sync::watch as channel;

use crate::{api::key::Key, controller::work_queue::WorkQueue};

/// Name of this trigger in traces.
pub(super) const TRIGGER: &str = "trigger";

/// Enqueues objects of one reconciled resource type, for a reason that no watch reports, such as a change outside the cluster.
/// [`Builder::trigger`](crate::Builder::trigger) returns it.
///
/// While this replica does not lead, nothing is enqueued. The next term plans every object, even if it was up to date before the
/// call.
pub struct Trigger<P> {
    inbox: Inbox,
    reconciled: PhantomData<fn() -> P>,
}

/// Where the reconciles of one controller are requested.
#[derive(Clone, Default)]
pub(crate) struct Inbox {
    /// Work queue of the current term. `None` between terms.
    pub work_queue: channel::Sender<Option<WorkQueue>>,
    /// Number of requests to reconcile all objects.
    pub all: channel::Sender<u64>,
    /// Number of all requests. An object that was up to date before a request must be planned again.
    pub requests: Arc<AtomicU64>,
}

impl<P> Clone for Trigger<P> {
    fn clone(&self) -> Self {
        Self::new(self.inbox.clone())
    }
}

impl<P> Trigger<P> {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self {
            inbox,
            reconciled: PhantomData,
        }
    }

    /// Reconciles an object like after a change: before its pending retry, but not before a `Retry-After` of the API server. At
    /// most 20 changes of one object start a reconcile in a burst, then one per second.
    pub fn reconcile(&self, key: Key) {
        self.inbox.requests.fetch_add(1, Relaxed);
        if let Some(work_queue) = &*self.inbox.work_queue.borrow() {
            work_queue.changed(key, TRIGGER);
        }
    }

    /// Reconciles all objects after all more urgent work, also before the time of [`Action::After`](crate::Action::After). A
    /// failing object keeps its backoff. Calls before the objects are enqueued count as one.
    pub fn reconcile_all(&self) {
        self.inbox.reconcile_all();
    }
}

impl Inbox {
    /// See [`Trigger::reconcile_all`].
    pub(crate) fn reconcile_all(&self) {
        self.requests.fetch_add(1, Relaxed);
        self.all.send_modify(|requests| *requests += 1);
    }
}
