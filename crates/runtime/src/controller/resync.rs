//! Enqueues objects without a change: the initial sync of a new leader, and the periodic resync.
//!
//! A resync checks each object against the stores and enqueues only those that are not up to date. The check needs no worker
//! and no trace. It is skipped while nothing changes.

use std::{collections::HashSet, time::Duration};

use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, sleep_until},
};

use tracing::warn;

use crate::{
    api::{key::Key, object::Primary, panic::catch},
    cache::store::Store,
    controller::{
        queue::{Queue, lane::Lane},
        trigger::TRIGGER,
        work_queue::WorkQueue,
    },
};

/// Steps of a resync period. They spread the objects over the period.
const RESYNC_STEPS: u32 = 32;

/// A resync retries a failed object at the latest after this number of resync periods, even if its backoff is longer.
const LONGEST_DELAY: u32 = 10;

/// Objects that are checked before the task yields: well under a millisecond of work.
const AT_A_TIME: usize = 100;

/// Initial sync of a scope by a new leader. First enqueues the objects that changed while there was no leader, the oldest
/// first. Then yields, so that the workers begin with these objects, and checks the others.
pub(crate) async fn first<P: Primary>(
    work_queue: &WorkQueue,
    objects: &Store<P>,
    controller: &'static str,
    is_in_scope: impl Fn(&Key) -> bool,
    is_up_to_date: impl Fn(&Key) -> bool,
) {
    let is_unobserved = |key: &Key, object: &P| is_unobserved(key, object, controller);
    let unobserved =
        objects.served_keys_where(|key, object| is_in_scope(key) && is_unobserved(key, object));
    for key in &unobserved {
        work_queue.changed(key.clone(), P::KIND.kind);
    }
    yield_now().await;
    let begun: HashSet<Key> = unobserved.into_iter().collect();
    let others = objects.served_keys_where(|key, _| is_in_scope(key) && !begun.contains(key));
    for some in others.chunks(AT_A_TIME) {
        for key in some.iter().filter(|key| !is_up_to_date(key)) {
            work_queue.triggers.note(key, Lane::Background, "takeover");
            work_queue.queue.add(key.clone(), Lane::Background);
        }
        yield_now().await;
    }
}

fn is_unobserved<P: Primary>(key: &Key, object: &P, controller: &'static str) -> bool {
    let observed = catch(&P::KIND, "Primary::is_observed", || object.is_observed());
    !observed.unwrap_or_else(|panicked| {
        warn!(object = %key, controller, "{panicked}; treating the object as observed");
        true
    })
}

/// Checks every object once in each period, a few at a time. Runs until cancelled.
///
/// `changes` identifies the state of the stores. If a resync finds that all objects are up to date until their next change
/// ([`Store::note_up_to_date`]), the following resyncs are skipped until `changes` differs.
pub(crate) async fn resync<P: Primary, C: PartialEq>(
    queue: &Queue<Key>,
    objects: &Store<P>,
    is_up_to_date: impl Fn(&Key) -> bool,
    changes: impl Fn() -> C,
    period: Duration,
) {
    let step = period / RESYNC_STEPS;
    let mut at_rest = None;
    loop {
        let begun = Instant::now();
        let before = changes();
        if at_rest.as_ref() == Some(&before) {
            sleep_until(begun + period).await;
            continue;
        }
        let keys = objects.keys();
        let mut portions = keys.chunks(keys.len().div_ceil(RESYNC_STEPS as usize).max(1));
        let mut is_settled = true;
        for number in 1..=RESYNC_STEPS {
            sleep_until(begun + step * number).await;
            for some in portions.next().unwrap_or_default().chunks(AT_A_TIME) {
                for key in some {
                    let is_up_to_date = is_up_to_date(key);
                    if !is_up_to_date {
                        queue.resync(key.clone(), period * LONGEST_DELAY);
                    }
                    is_settled &= is_up_to_date && objects.input_fingerprint(key).is_some();
                }
                yield_now().await;
            }
        }
        at_rest = is_settled.then_some(before);
    }
}

/// Enqueues all objects at each request in `all`. Runs until cancelled.
pub(crate) async fn requested<P: Primary>(
    work_queue: &WorkQueue,
    objects: &Store<P>,
    is_in_sync: impl Fn(&Key) -> bool,
    mut all: watch::Receiver<u64>,
) {
    while all.changed().await.is_ok() {
        for some in objects.keys().chunks(AT_A_TIME) {
            for key in some.iter().filter(|key| is_in_sync(key)) {
                work_queue.triggers.note(key, Lane::Background, TRIGGER);
                work_queue.queue.add_anew(key.clone());
            }
            yield_now().await;
        }
    }
}

/// Enqueues the objects of a scope that are not up to date when its missing permissions are restored, instead of waiting for
/// their backoff. Runs until the channel closes. `regained` counts the restorations in each scope.
pub(crate) async fn regained<P: Primary>(
    queue: &Queue<Key>,
    objects: &Store<P>,
    is_in_scope: impl Fn(usize, &Key) -> bool,
    is_up_to_date: impl Fn(&Key) -> bool,
    mut regained: watch::Receiver<Vec<u64>>,
) {
    let mut before = regained.borrow_and_update().clone();
    while regained.changed().await.is_ok() {
        let now = regained.borrow_and_update().clone();
        let changed = |(_, (now, before)): &(usize, (&u64, &u64))| now != before;
        let scopes = now.iter().zip(&before).enumerate().filter(changed);
        let scopes: Vec<_> = scopes.map(|(scope, _)| scope).collect();
        let is_concerned = |key: &Key| scopes.iter().any(|scope| is_in_scope(*scope, key));
        for some in objects.keys().chunks(AT_A_TIME) {
            let some = some.iter().filter(|key| is_concerned(key));
            for key in some.filter(|key| !is_up_to_date(key)) {
                queue.add(key.clone(), Lane::Event);
            }
            yield_now().await;
        }
        before = now;
    }
}
