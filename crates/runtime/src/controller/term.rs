//! Parts of one term: its beginning and end, the checks of all objects, and the [`Attempt`] that reconciles receive.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch as channel;
use tracing::info;

use crate::{
    api::key::Key,
    client::fence::term::Term,
    controller::{
        object_reconciler::ObjectReconciler, queue::lane::Lane, resync, work_queue::WorkQueue,
    },
    reconcile::{context::Attempt, reconciler::Reconciler},
};

/// Waits for a term, and returns its ID.
pub(super) async fn gained(term: &mut channel::Receiver<Option<Term>>) -> u64 {
    let gained = term.wait_for(Option::is_some).await;
    let id = gained.ok().and_then(|term| term.as_ref().map(Term::id));
    match id {
        Some(id) if term.has_changed().is_ok() => id,
        // The election task has ended. Its caller reports the reason and ends the process.
        _ => std::future::pending().await,
    }
}

/// Waits for the end of the term `id`.
pub(super) async fn lost(term: &mut channel::Receiver<Option<Term>>, id: u64) {
    let other = |term: &Option<Term>| term.as_ref().is_none_or(|term| term.id() != id);
    // A closed channel means that the election task has ended, so no task renews the term.
    term.wait_for(other).await.map(drop).unwrap_or_default();
}

/// Checks objects, and enqueues those that are not up to date. Checks the objects of a scope when it is in sync and when missing
/// permissions are restored, and all objects at each resync. Enqueues all objects at each request in `all`.
pub(super) async fn check_objects<R: Reconciler>(
    work: Arc<ObjectReconciler<R>>,
    work_queue: WorkQueue,
    mut in_sync: channel::Receiver<Vec<(usize, usize)>>,
    all: channel::Receiver<u64>,
    period: Duration,
) {
    let (scopes, objects) = (&work.scopes, &**work.primary.store());
    let is_up_to_date = |key: &Key| work.is_up_to_date(key);
    let controller = work.controller;
    let is_in_sync = |key: &Key| scopes.is_in_sync(controller, key);
    let is_left_alone = |key: &Key| !is_in_sync(key) || is_up_to_date(key);
    let regained = scopes.all_rights_regained(controller);
    let changes = || (work.informers.changes(), regained.borrow().clone());
    let covers = |cell, key: &Key| scopes.covers(controller, cell, key);
    let first = async {
        for begun in 0.. {
            let next = in_sync.wait_for(|cells| cells.len() > begun).await;
            let Ok((of, cell)) = next.map(|cells| cells[begun]) else {
                return;
            };
            if of != controller {
                continue;
            }
            if begun > 0 {
                let namespace = scopes.namespace(controller, cell);
                info!(namespace, "namespace in sync: reconciling its objects");
            }
            let is_in_scope = |key: &Key| covers(cell, key);
            resync::first(
                &work_queue,
                objects,
                work.log.controller,
                is_in_scope,
                is_up_to_date,
            )
            .await;
        }
    };
    let queue = &work_queue.queue;
    tokio::join!(
        first,
        resync::resync(queue, objects, is_left_alone, changes, period),
        resync::requested(&work_queue, objects, is_in_sync, all),
        resync::regained(queue, objects, covers, is_left_alone, regained.clone())
    );
}

/// The attempts of the workers in the term `id`.
#[derive(Clone)]
pub(super) struct TermAttempt {
    pub kind: &'static str,
    pub work_queue: WorkQueue,
    pub term: channel::Receiver<Option<Term>>,
    pub id: u64,
}

impl Attempt for TermAttempt {
    fn has_urgent_work(&self) -> bool {
        self.work_queue.queue.is_busy(Lane::Event)
    }

    fn leads(&self) -> bool {
        is_live(self.term.borrow().as_ref(), self.id)
    }

    fn heartbeat(&self, key: &Key) {
        self.work_queue.queue.heartbeat(key);
    }

    fn enqueue(&self, key: Key) {
        self.work_queue.changed(key, self.kind);
    }
}

/// Whether `term` is the term `id` and has not ended.
fn is_live(term: Option<&Term>, id: u64) -> bool {
    term.is_some_and(|term| term.id() == id && term.remaining().is_some())
}
