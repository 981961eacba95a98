//! Work queue. Decides which key is reconciled next, and when.
//!
//! It gives the guarantees of client-go's work queue:
//!
//! - A key is with at most one worker.
//! - Adds of a waiting key collapse into one.
//! - A key that is added during its reconcile is queued again afterwards.
//! - Failures back off.
//!
//! In addition, keys have [lanes](Lane) by urgency. No lane can starve another.
//!
//! The queue has no task of its own, so no task can die unnoticed. A single worker in [`Queue::get`] also wakes when the next
//! delayed key is due. When it leaves, it passes that duty on. A queue is cheap and belongs to one term of leadership. The end
//! of the term shuts it down. The next term creates a new queue and enqueues all objects that are not up to date.
//!
//! # Fairness
//!
//! A lane is a FIFO queue. While keys wait in all lanes, eight keys in a row are six of [`Lane::Event`], one of [`Lane::Retry`]
//! and one of [`Lane::Background`]. Unused turns of [`Lane::Event`] go to the other two lanes alternately. So the initial sync
//! of a new leader does not wait for failing objects. Unused turns of the other two lanes go to [`Lane::Event`] first.
//!
//! Hence the bound: **a key with `n` keys before it in its lane is handed out within the next `8 * (n + 1)` calls of `get` that
//! return a key.** Keys of slow namespaces do not count: see below. Later adds do not change this. A key that moves to a more
//! urgent lane goes to its end, and the count starts again. That can happen twice. The [change limit](#change-limit) may delay
//! such a move.
//!
//! # Change limit
//!
//! [`Lane::Event`] hands out a key at most 20 times in a burst, then once per second. This breaks feedback loops at request
//! speed. An example is a webhook that adds the current time to every status.
//!
//! # Slow namespaces
//!
//! A namespace becomes slow when an attempt of one of its keys has taken a second, for example because a webhook hangs. It
//! stays slow until all conditions hold:
//!
//! - No slow attempt is in progress.
//! - Each key with a slow attempt that failed has succeeded, or failed faster.
//! - A minute has passed since the last slow attempt that succeeded.
//!
//! **Slow namespaces have workers of their own, as many as all other namespaces together.** The attempts that make a namespace
//! slow occupy these workers from that moment. So a namespace that starts to hang delays the others by a second, independently
//! of its number of keys and of the number of workers.
//!
//! Slow namespaces are served in round-robin order, each with lanes of its own, so that none can block another. When a
//! namespace becomes slow or recovers, its waiting keys move to the end of their new lanes, and their counts start again.

mod bucket;
mod change_limit;
pub(crate) mod lane;
#[cfg(test)]
mod model;
mod slow_namespaces;
mod state;
pub(crate) mod status_changes;
#[cfg(test)]
mod tests;

use std::{hash::Hash, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use crate::{api::failure::Retry, config::settings::Backoff};
use bucket::later;
use lane::{KeyState, Lane, Stats};
use state::{RetryCounts, State};

/// Shortest delay of a requeue that the reconciler requests. It limits such reconciles of one object to ten per second.
pub(crate) const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(100);

/// Result of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// The object is in its desired state. The failures of the key are forgotten.
    Done,
    /// Like [`Done`](Self::Done), but the key is queued again after this delay, at least [`MIN_REQUEUE_DELAY`].
    After(Duration),
    /// The status is not written yet: neither a success nor a failure. The key is queued again on [`Lane::Background`]. If the
    /// previous attempt had this outcome too (`again`), it is queued after [`MIN_REQUEUE_DELAY`].
    StatusPending { again: bool },
    /// The attempt failed.
    Failed(Retry),
}

/// Work queue; clones share it. The [module](self) describes its guarantees.
pub(crate) struct Queue<K: Clone + Eq + Hash>(Arc<Shared<K>>);

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Wakes a waiting worker.
    work: Notify,
    /// Signals that the last key was released after the shutdown.
    drained: Notify,
}

impl<K: Clone + Eq + Hash> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Returns an empty queue for `workers` workers, and as many again for slow namespaces. `namespace` returns the namespace
    /// of a key.
    #[must_use]
    pub(crate) fn new(backoff: &Backoff, workers: u32, namespace: fn(&K) -> &str) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(backoff, workers, namespace, Instant::now())),
            work: Notify::new(),
            drained: Notify::new(),
        }))
    }

    /// Adds `key` to the end of `lane`.
    ///
    /// - A waiting key keeps its place, or moves to the end of `lane` if that is more urgent.
    /// - A key with a worker is queued when the worker releases it.
    /// - A delayed key is queued now and keeps its count of failures. An add to [`Lane::Background`] has no change as its
    ///   cause, so the key keeps its delay.
    /// - A `Retry-After` of the API server and the [change limit](self#change-limit) always apply. The key is queued on `lane`
    ///   when they permit it.
    pub(crate) fn add(&self, key: K, lane: Lane) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.enqueue(key, lane, now);
        self.call_worker(state);
    }

    /// Adds `key` to `lane` after `delay`. If a key is added several times, only the earliest time counts. To reconcile the key
    /// at the later time as well, add it again after the earlier reconcile.
    pub(crate) fn add_after(&self, key: K, lane: Lane, delay: Duration) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.enqueue_at(key, lane, later(now, delay), None, now);
        self.call_worker(state);
    }

    /// Adds `key` to [`Lane::Background`] for a reason that no earlier attempt has seen. Unlike [`add`](Self::add), also queues a
    /// key that waits for the time of [`Outcome::After`], or that an attempt in progress will delay so.
    pub(crate) fn add_anew(&self, key: K) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.enqueue_anew(key, now);
        self.call_worker(state);
    }

    /// Adds `key` to [`Lane::Background`], as [`add`](Self::add) does. A failed key that has waited `longest` for its retry
    /// skips the rest of its backoff. It waits only for a token of the bucket that all retries share.
    pub(crate) fn resync(&self, key: K, longest: Duration) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.resync(key, longest, now);
        self.call_worker(state);
    }

    /// Records a change that kept the object's spec. Returns `true` if the change is [deferred to the retry](status_changes) of
    /// the failing object. If the next attempt does not fail, there is no such retry, and the queue enqueues the key after that
    /// attempt.
    #[must_use]
    pub(crate) fn defer_to_retry(&self, key: &K) -> bool {
        self.0.state.lock().defer_to_retry(key)
    }

    /// Forgets the failures of `key`, for a request of a user. A delay stays until the next [`add`](Self::add). Does nothing while
    /// the [change limit](self#change-limit) delays the key: each request would cause retries without backoff.
    pub(crate) fn reset(&self, key: &K) {
        self.0.state.lock().reset(key, Instant::now());
    }

    /// Whether the last attempt was a failure. Conflicts and postponed writes are not failures.
    #[must_use]
    pub(crate) fn has_failed(&self, key: &K) -> bool {
        self.0.state.lock().has_failed(key)
    }

    /// Waits for the next key and returns it, or `None` after the shutdown. Cancel-safe: a key is either returned or still in
    /// the queue.
    pub(crate) async fn get(&self) -> Option<WorkItem<K>> {
        // A worker that never waits must still let other tasks run.
        consume_budget().await;
        let mut watch = Watch {
            queue: self,
            alarm: None,
        };
        loop {
            // Created before the state is read, so that a shutdown in between is not missed.
            let called = self.0.work.notified();
            {
                let now = Instant::now();
                let mut state = self.state(now);
                if state.is_shut_down() {
                    return None;
                }
                if let Some(next) = state.take(now) {
                    return Some(WorkItem {
                        queue: self.clone(),
                        key: next.key,
                        lane: next.lane,
                        waited: now - next.since,
                        tries: next.tries,
                    });
                }
                state.disarm(watch.alarm.take());
                watch.alarm = state.arm();
            }
            match watch.alarm {
                Some(due) => _ = timeout_at(due, called).await,
                None => called.await,
            }
        }
    }

    /// Records progress of the attempt at `key`. An attempt that makes progress is not stuck, however long it takes.
    pub(crate) fn heartbeat(&self, key: &K) {
        self.0.state.lock().heartbeat(key, Instant::now());
    }

    /// Forgets the failures of `key`. A queued key keeps its place, unless its namespace was slow only because of it. If the
    /// namespace recovers, other keys become ready. The release of `key` wakes a worker for them.
    fn forget(&self, key: &K) {
        let now = Instant::now();
        self.state(now).forget(key, now);
    }

    /// Drops all waiting keys and ignores later adds. Every [`get`](Self::get) returns `None`. Attempts in progress continue.
    pub(crate) fn shut_down(&self) {
        self.0.state.lock().shut_down();
        self.0.work.notify_waiters();
        self.0.drained.notify_waiters();
    }

    /// Resolves when the queue is shut down and no key is with a worker.
    pub(crate) async fn drained(&self) {
        loop {
            let drained = self.0.drained.notified();
            if self.0.state.lock().is_drained() {
                return;
            }
            drained.await;
        }
    }

    /// Whether a key of `lane`, or of a more urgent lane, waits for a worker. Keys of slow namespaces do not count: they can
    /// wait for a long time while workers are idle.
    #[must_use]
    pub(crate) fn is_busy(&self, lane: Lane) -> bool {
        self.state(Instant::now()).is_busy(lane)
    }

    /// Returns a snapshot for metrics.
    #[must_use]
    pub(crate) fn stats(&self) -> Stats {
        let now = Instant::now();
        self.state(now).stats(now)
    }

    /// Returns the keys in progress and the duration of each attempt.
    #[must_use]
    pub(crate) fn running(&self) -> Vec<(K, Duration)> {
        self.0.state.lock().running(Instant::now())
    }

    /// Returns the number of failures and quiet retries of each key, and the time until it is queued. The time is `None` for a
    /// key that is not queued.
    #[must_use]
    pub(crate) fn tries<'a>(
        &self,
        keys: impl Iterator<Item = &'a K>,
    ) -> Vec<(u32, Option<Duration>)>
    where
        K: 'a,
    {
        let now = Instant::now();
        let state = self.state(now);
        keys.map(|key| state.tries(key, now)).collect()
    }

    /// Returns the place of one key, and its delays.
    #[must_use]
    pub(crate) fn key_state(&self, key: &K) -> KeyState {
        let now = Instant::now();
        self.state(now).key_state(key, now)
    }

    /// Locks the state and moves the keys that are due by `now` to their lanes.
    fn state(&self, now: Instant) -> MutexGuard<'_, State<K>> {
        let mut state = self.0.state.lock();
        state.advance(now);
        state
    }

    /// Wakes one worker if there is work that no waiting worker would find. A woken worker calls this too when it leaves
    /// [`get`](Self::get), so one is enough.
    fn call_worker(&self, state: MutexGuard<'_, State<K>>) {
        let needed = state.needs_worker();
        drop(state);
        if needed {
            self.0.work.notify_one();
        }
    }
}

/// Wait of one worker in [`Queue::get`] (not a watch of the API server). Dropped when the worker gets a key or is cancelled.
/// Then another worker waits for the next delayed key.
struct Watch<'a, K: Clone + Eq + Hash> {
    queue: &'a Queue<K>,
    /// Wake-up time of this worker, if no notification comes first.
    alarm: Option<Instant>,
}

impl<K: Clone + Eq + Hash> Drop for Watch<'_, K> {
    fn drop(&mut self) {
        let mut state = self.queue.0.state.lock();
        state.disarm(self.alarm);
        self.queue.call_worker(state);
    }
}

/// A key with a worker. No other worker gets the key until this is dropped.
///
/// A drop releases the key without a result, for example when an attempt was cut short. The key is queued again only if it was
/// added during the attempt. Keep the item outside of code that may panic, so that its owner can count the panic as a failure.
#[must_use = "dropping it gives the key back"]
pub(crate) struct WorkItem<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    lane: Lane,
    waited: Duration,
    tries: RetryCounts,
}

impl<K: Clone + Eq + Hash> WorkItem<K> {
    /// Returns the key.
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    /// Returns the lane that handed out the key.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// Returns the time that the key waited for a worker, from its add or the end of its delay.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the number of failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.tries.failures
    }

    /// Returns the number of [quiet retries](Retry::is_quiet) since the last failure.
    pub(crate) fn requeues(&self) -> u32 {
        self.tries.quiet
    }

    /// Releases the key, and queues it again as the outcome requires. Returns the delay of a retry, else zero.
    pub(crate) fn complete(self, outcome: Outcome) -> Duration {
        match outcome {
            Outcome::Done | Outcome::Failed(Retry::OnChange) => self.forget(),
            Outcome::After(delay) => {
                let delay = delay.max(MIN_REQUEUE_DELAY);
                (self.queue).add_after(self.key.clone(), Lane::Background, delay);
                self.forget();
            }
            // The count of failures is kept. Otherwise each postponed status would reset the backoff of a status that cannot be
            // written.
            Outcome::StatusPending { again: true } => {
                (self.queue).add_after(self.key.clone(), Lane::Background, MIN_REQUEUE_DELAY);
            }
            Outcome::StatusPending { again: false } => {
                self.queue.add(self.key.clone(), Lane::Background);
            }
            Outcome::Failed(Retry::Backoff(least)) => return self.add_rate_limited_after(least),
            Outcome::Failed(Retry::After(time)) => {
                return self.add_after(time.max(MIN_REQUEUE_DELAY));
            }
            Outcome::Failed(Retry::Conflict | Retry::Requeue) => {
                return self.requeue_rate_limited();
            }
        }
        Duration::ZERO
    }

    /// Releases the key and forgets its failures. Use it for deleted objects too: nothing of the key remains.
    fn forget(self) {
        self.queue.forget(&self.key);
    }

    /// Counts a failure, releases the key and queues it on [`Lane::Retry`]. Returns the delay.
    ///
    /// The delay is zero if the key was added during the attempt: it is then queued without backoff. Nothing queues the key
    /// before `least`, the `Retry-After` of the API server.
    fn add_rate_limited_after(self, least: Duration) -> Duration {
        self.give_back(|state, key, now| state.retry(key, least, now))
    }

    /// Releases the key and queues it with backoff, without counting a failure. These retries have their own backoff, which
    /// each failure resets. So a conflict of an object with many failures does not wait for the long delay of those failures.
    fn requeue_rate_limited(self) -> Duration {
        self.give_back(State::retry_quietly)
    }

    /// Releases the key and queues it on [`Lane::Retry`] after `delay`, or sooner if it was added during the attempt. Returns
    /// the actual delay. This is not a failure: the count of failures, their backoff and the bucket stay unchanged.
    fn add_after(self, delay: Duration) -> Duration {
        self.give_back(|state, key, now| state.put_off(key, delay, now))
    }

    /// Calls `again`, which queues the key and returns the delay, then releases the key.
    fn give_back(self, again: impl FnOnce(&mut State<K>, &K, Instant) -> Duration) -> Duration {
        let now = Instant::now();
        let mut state = self.queue.state(now);
        let delay = again(&mut state, &self.key, now);
        self.queue.call_worker(state);
        delay
    }
}

impl<K: Clone + Eq + Hash> Drop for WorkItem<K> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.state(now);
        state.release(&self.key, now);
        let drained = state.is_drained();
        self.queue.call_worker(state);
        if drained {
            self.queue.0.drained.notify_waiters();
        }
    }
}
