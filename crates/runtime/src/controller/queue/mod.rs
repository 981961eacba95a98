//! The work queue: which key is to be reconciled next, and when. It keeps client-go's promises: a
//! key is never with two workers, what happens while it waits collapses into one, what happens
//! while it is worked on queues it again, and failures back off. Beyond client-go
//! it has lanes by urgency, none of which can starve another.
//!
//! There is no task behind it. A worker that waits in [`Queue::get`] also waits for the next
//! delayed key, and passes that duty on when it leaves, so nothing can die unnoticed. A queue is
//! cheap to make and belongs to one term of leadership: a term that ends shuts its queue down, the
//! next one starts with a new queue and enqueues everything.
//!
//! # Fairness
//!
//! Within a lane, first come, first served. Of any eight keys handed out in a row, one comes from
//! [`Lane::Background`], one from [`Lane::Retry`] and six from [`Lane::Event`], as far as
//! something waits there. What [`Lane::Event`] leaves goes to the other two by turns, so that a new
//! leader's initial sync does not wait for those that fail; what they leave goes to it
//! first. Hence the bound: **a key with `n` keys before it in its lane is handed out within the next
//! `8 * (n + 1)` calls of `get` that return a key** of a namespace that is not slow, whatever is added meanwhile. A key
//! that moves up, which it can twice, counts anew in its new lane, once its [pace](#pace) lets it in there.
//!
//! # Pace
//!
//! However often it changes, a key is handed out from [`Lane::Event`] 20 times at once, and then once in a second. What answers each
//! write with another change, such as a webhook that adds the time to a status, is no loop at request speed.
//!
//! # Slow namespaces
//!
//! A namespace is slow from when an attempt of one of its keys has gone on for a second, as with a webhook that hangs, until
//! each key that did so and failed has come to an end faster, and a minute has passed since one did so and succeeded.
//! **Slow namespaces have workers of their own, as many as there are for all the others**, and the attempts that make a namespace
//! slow count as theirs from then on. So a namespace that begins to hang holds up the others for a second, however many keys it
//! has, and however many workers there are.
//!
//! Slow namespaces take turns, each with lanes of its own, so that none of them holds up another for ever. Where a namespace
//! becomes slow, or ceases to be, its keys that wait go to the end of their new lanes, and count anew.

mod backoff;
mod change_limit;
pub(crate) mod lane;
#[cfg(test)]
mod model;
mod slow_namespaces;
mod state;
#[cfg(test)]
mod tests;

use std::{hash::Hash, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use crate::config::settings::Backoff;
use backoff::later;
use lane::{Lane, Stats};
use state::{State, Tries};

/// The work queue; clones share it. See the [module](self) for what it promises.
pub struct Queue<K: Clone + Eq + Hash>(Arc<Shared<K>>);

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Calls a worker that waits.
    work: Notify,
    /// Tells that the last key was given back after the shutdown.
    drained: Notify,
}

impl<K: Clone + Eq + Hash> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue for so many workers, and as many for slow namespaces, whose retries are paced as `backoff` says; `namespace`
    /// is that of a key.
    #[must_use]
    pub fn new(backoff: &Backoff, workers: u32, namespace: fn(&K) -> &str) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(backoff, workers, namespace, Instant::now())),
            work: Notify::new(),
            drained: Notify::new(),
        }))
    }

    /// Queues `key` on `lane`, at its end. A key that waits already stays where it is, or moves up
    /// to the end of `lane` if that is more urgent; one that is with a worker is queued when the
    /// worker is done with it; a delayed add of it is overtaken, its failures stay counted (row
    /// Q1). Only an add on [`Lane::Background`] overtakes nothing: without a cause, a key that waits
    /// for its retry has to wait. And what the API server asked for is waited for, whatever the cause,
    /// as is the [pace](self#pace): the key is queued on `lane` then.
    pub fn add(&self, key: K, lane: Lane) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.enqueue(key, lane, now);
        self.call_worker(state);
    }

    /// Queues `key` on `lane` after `delay`, unless it is queued sooner anyway: of several adds of
    /// a key the earliest counts. Who needs a later reconcile, too, asks for it again when it has been
    /// worked on.
    pub fn add_after(&self, key: K, lane: Lane, delay: Duration) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.enqueue_at(key, lane, later(now, delay), None, now);
        self.call_worker(state);
    }

    /// Queues `key` on [`Lane::Background`], as [`add`](Self::add) does. A failed key that has waited for its retry for `longest` waits
    /// for a token of the bucket only.
    pub fn resync(&self, key: K, longest: Duration) {
        let now = Instant::now();
        let mut state = self.state(now);
        state.resync(key, longest, now);
        self.call_worker(state);
    }

    /// The next key to work on, waiting for one if need be; `None` once the queue is shut down.
    /// Safe to cancel: a key is either returned or still in the queue.
    pub async fn get(&self) -> Option<WorkItem<K>> {
        // A worker that never has to wait still lets other tasks run.
        consume_budget().await;
        let mut watch = Watch {
            queue: self,
            alarm: None,
        };
        loop {
            // Made before the state is read, so that a shutdown in between is not missed.
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

    /// Notes that the work on `key`, which is with a worker, gets on: it is not stuck, however long it takes.
    pub fn gets_on(&self, key: &K) {
        self.0.state.lock().gets_on(key, Instant::now());
    }

    /// Forgets the failures of `key`; it keeps its place if it is queued, unless its namespace was slow for it alone. For
    /// what that makes ready a worker is called when the key is given back.
    fn forget(&self, key: &K) {
        let now = Instant::now();
        self.state(now).forget(key, now);
    }

    /// Stops the intake: what waits is dropped, later adds are ignored, and every
    /// [`get`](Self::get) returns `None`. Work in progress goes on.
    pub fn shut_down(&self) {
        self.0.state.lock().shut_down();
        self.0.work.notify_waiters();
        self.0.drained.notify_waiters();
    }

    /// Resolves once the queue is shut down and no key is with a worker any more.
    pub async fn drained(&self) {
        loop {
            let drained = self.0.drained.notified();
            if self.0.state.lock().is_drained() {
                return;
            }
            drained.await;
        }
    }

    /// Whether a key waits for a worker that is as urgent as `lane`, or more so. Those of slow namespaces do not count:
    /// they may wait for long while workers are free.
    #[must_use]
    pub fn is_busy(&self, lane: Lane) -> bool {
        self.state(Instant::now()).is_busy(lane)
    }

    /// What the queue looks like now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let now = Instant::now();
        self.state(now).stats(now)
    }

    /// The keys that are with a worker, and for how long.
    #[must_use]
    pub fn running(&self) -> Vec<(K, Duration)> {
        self.0.state.lock().running(Instant::now())
    }

    /// How often each of these keys was tried in vain of late, and in what time it is queued; `None`: it is with a worker, or nowhere.
    #[must_use]
    pub fn tries<'a>(&self, keys: impl Iterator<Item = &'a K>) -> Vec<(u32, Option<Duration>)>
    where
        K: 'a,
    {
        let now = Instant::now();
        let state = self.state(now);
        keys.map(|key| state.tries(key, now)).collect()
    }

    /// The state, with what has fallen due by `now` in its lane.
    fn state(&self, now: Instant) -> MutexGuard<'_, State<K>> {
        let mut state = self.0.state.lock();
        state.advance(now);
        state
    }

    /// Wakes one worker if there is something that none knows of. Each one woken does the same when
    /// it leaves [`get`](Self::get), so one at a time is enough and no herd comes running.
    fn call_worker(&self, state: MutexGuard<'_, State<K>>) {
        let needed = state.needs_worker();
        drop(state);
        if needed {
            self.0.work.notify_one();
        }
    }
}

/// A worker's stay in [`Queue::get`]. However that ends, with a key or cancelled, the duty to wait
/// for the next delayed key passes on to another worker.
struct Watch<'a, K: Clone + Eq + Hash> {
    queue: &'a Queue<K>,
    /// The time at which this worker wakes by itself.
    alarm: Option<Instant>,
}

impl<K: Clone + Eq + Hash> Drop for Watch<'_, K> {
    fn drop(&mut self) {
        let mut state = self.queue.0.state.lock();
        state.disarm(self.alarm);
        self.queue.call_worker(state);
    }
}

/// A work item: a key with a worker. No other worker gets it until this is dropped, whatever becomes of the
/// worker. A drop alone says that the work is over and nothing about how it went, as when it was
/// cut short: the key is queued again only if it was added meanwhile. So that a panic can be
/// answered with [`add_rate_limited_after`](Self::add_rate_limited_after), keep this outside of what may panic.
#[must_use = "dropping it gives the key back"]
pub struct WorkItem<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    lane: Lane,
    waited: Duration,
    tries: Tries,
}

impl<K: Clone + Eq + Hash> WorkItem<K> {
    /// What to work on.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Why.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// How long it waited for a worker: since it was added or its delay was over.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How often it has failed since it last succeeded.
    pub fn failures(&self) -> u32 {
        self.tries.failures
    }

    /// How often it was tried since its last failure, and [came to nothing](Self::add_rate_limited_quietly).
    pub fn quiet_tries(&self) -> u32 {
        self.tries.quiet
    }

    /// Has the key queued again when it is given back, as if it had [changed](Lane::Event) meanwhile.
    pub fn add(&self) {
        self.queue.add(self.key.clone(), Lane::Event);
    }

    /// Gives the key back; its failures are forgotten. Also right for an object that is gone:
    /// nothing stays behind.
    pub fn forget(self) {
        self.queue.forget(&self.key);
    }

    /// Gives the key back, counts a failure, and queues it again on [`Lane::Retry`] after the
    /// returned delay. The delay is zero if the key was added meanwhile: then it is queued
    /// at once, as if it had not failed. Not before `least`, for which the API server has asked: neither the retry nor what was added
    /// meanwhile, or will be.
    pub fn add_rate_limited_after(self, least: Duration) -> Duration {
        self.give_back(|state, key, now| state.retry(key, least, now))
    }

    /// The same for what is no failure of the object's: it is not counted among them, and has a backoff of its own, which begins
    /// anew with each failure. So that an object that has failed for long does not wait for hours for what passes in a moment.
    pub fn add_rate_limited_quietly(self) -> Duration {
        self.give_back(State::retry_quietly)
    }

    /// Gives the key back and queues it again on [`Lane::Retry`] after `delay`, or sooner if it was added meanwhile. That
    /// is no failure: those that are counted stay, and so do what they ask for and the bucket. In what time is returned.
    pub fn add_after(self, delay: Duration) -> Duration {
        self.give_back(|state, key, now| state.put_off(key, delay, now))
    }

    /// Gives the key back, to come again when `again` says.
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
