//! The queue's state behind its lock: plain data. It reads no clock: every operation takes the current time as an argument.
//!
//! An operation takes O(log(waiting keys) + slow namespaces). In addition, it moves each delayed key that has become due to its
//! lane. Three scans are longer:
//!
//! - All waiting keys when a namespace becomes slow.
//! - The keys of a namespace when it recovers.
//! - The keys with a change limit, every 20 s.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    bucket::{Bucket, later},
    change_limit::ChangeLimit,
    lane::{KeyState, Lane, Lanes, Stats},
    slow_namespaces::{HUNG, SlowNamespaces},
    status_changes::StatusChanges,
};
use crate::config::{backoff::Delays, settings::Backoff};

/// Place of a queued key. A key has at most one.
enum Pending {
    /// In its lane, under `ticket`.
    Waiting { lane: Lane, ticket: u64 },
    /// Added while with a worker ("dirty" in client-go). Moves to its lane when the worker releases it.
    Again { lane: Lane, since: Instant },
    /// In `delayed` under `due` and `ticket`, since `since`. A retry has a `slot`: the time of the token that it reserved in
    /// the bucket. `least` is the end of a `Retry-After`: nothing queues the key before it.
    Delayed {
        lane: Lane,
        due: Instant,
        ticket: u64,
        slot: Option<Instant>,
        since: Instant,
        least: Instant,
    },
}

/// A key that is handed out, with its lane, the start of its wait and its retries.
pub(super) struct Next<K> {
    pub(super) key: K,
    pub(super) lane: Lane,
    pub(super) since: Instant,
    pub(super) tries: RetryCounts,
}

/// Retries of a key since its last success. In `State::tries`, not both counts are zero.
#[derive(Clone, Copy, Default)]
pub(super) struct RetryCounts {
    pub(super) failures: u32,
    /// Retries since the last failure that do not count as failures.
    pub(super) quiet: u32,
}

/// An attempt in progress.
struct Running {
    /// Value of [`State::turn`] when the key was handed out. Together with `since`, this is the key of the attempt in
    /// [`State::swift`].
    turn: u64,
    since: Instant,
    /// Time of the last progress.
    got_on: Instant,
}

pub(super) struct State<K> {
    /// Queued keys. A key that is neither queued, nor with a worker, nor failing has no entry here, in `processing` or in
    /// `tries`. Only two other records of it may remain: the change limit for some seconds, and the slow namespaces.
    pending: HashMap<K, Pending>,
    /// Keys with a worker.
    processing: HashMap<K, Running>,
    /// The *swift* attempts: keys in `processing` that occupy a worker for namespaces that are not slow, by start and turn.
    swift: BTreeMap<(Instant, u64), K>,
    /// Number of workers for namespaces that are not slow; slow namespaces have as many again.
    workers: usize,
    /// Retries of each key that has failed and not succeeded since.
    tries: HashMap<K, RetryCounts>,
    status_changes: StatusChanges<K>,
    /// Waiting keys of namespaces that are not slow.
    lanes: Lanes<K>,
    /// Slow namespaces with their waiting keys.
    slow: SlowNamespaces<K>,
    /// Delayed keys by due time and ticket.
    delayed: BTreeMap<(Instant, u64), K>,
    /// Earliest time when a worker in `get` wakes without a notification.
    alarm: Option<Instant>,
    /// Ticket of the last key that was queued.
    ticket: u64,
    /// Number of calls of [`take`](State::take).
    turn: u64,
    delays: Delays,
    bucket: Bucket,
    pace: ChangeLimit<K>,
    adds: u64,
    retries: u64,
    shut_down: bool,
}

impl<K: Clone + Eq + Hash> State<K> {
    pub(super) fn new(
        backoff: &Backoff,
        workers: u32,
        namespace: fn(&K) -> &str,
        now: Instant,
    ) -> Self {
        let workers = usize::try_from(workers).unwrap_or(usize::MAX);
        Self {
            pending: HashMap::new(),
            processing: HashMap::new(),
            swift: BTreeMap::new(),
            workers,
            tries: HashMap::new(),
            status_changes: StatusChanges::default(),
            lanes: Lanes::default(),
            slow: SlowNamespaces::new(workers, namespace),
            delayed: BTreeMap::new(),
            alarm: None,
            ticket: 0,
            turn: 0,
            delays: Delays::new(backoff.initial, backoff.max),
            bucket: Bucket::new(backoff, now),
            pace: ChangeLimit::new(now),
            adds: 0,
            retries: 0,
            shut_down: false,
        }
    }

    /// Moves keys that are due to their lanes, and updates which namespaces are slow. Every operation on the lanes starts with
    /// this. So the order in a lane is the order in time, even if no worker was free.
    pub(super) fn advance(&mut self, now: Instant) {
        self.pace.advance(now);
        loop {
            let hangs = self.next_hang().filter(|at| *at <= now);
            let ends = self.slow.next_end().filter(|at| *at <= now);
            let due = self.delayed.first_key_value().map(|((due, _), _)| *due);
            let due = due.filter(|at| *at <= now);
            let Some(next) = [hangs, ends, due].into_iter().flatten().min() else {
                return;
            };
            if hangs == Some(next)
                && let Some(key) = self.swift.values().next().cloned()
            {
                self.mark_slow(&key);
            } else if ends == Some(next) {
                let moved = self.slow.end_next(next);
                self.place_all(moved);
            } else if let Some(((due, _), key)) = self.delayed.pop_first()
                && let Some(Pending::Delayed { lane, .. }) = self.pending.remove(&key)
            {
                self.place(key, lane, due);
                self.adds += 1;
            }
        }
    }

    /// Returns the time when the oldest attempt in `swift` becomes slow.
    fn next_hang(&self) -> Option<Instant> {
        let ((since, _), _) = self.swift.first_key_value()?;
        Some(*since + HUNG)
    }

    /// Marks the namespace of `key` as slow: an attempt at `key` hangs, or hung and failed.
    fn mark_slow(&mut self, key: &K) {
        let running = self.processing.keys();
        let moved = self.slow.mark_slow(key, &mut self.lanes, running);
        self.swift.retain(|_, key| !self.slow.has(key));
        self.place_all(moved);
    }

    /// Whether a worker for namespaces that are not slow is free.
    fn has_room(&self) -> bool {
        self.swift.len() < self.workers
    }

    /// [`Queue::add`](super::Queue::add).
    pub(super) fn enqueue(&mut self, key: K, lane: Lane, now: Instant) {
        let due = self.pace.due(&key, lane, now);
        let waits_in = match self.pending.get(&key) {
            Some(Pending::Waiting { lane: l, .. }) if *l > lane && due > now => {
                self.unplace(&key, now);
                return self.enqueue_at(key, lane, due, None, now);
            }
            Some(Pending::Waiting { lane, .. } | Pending::Again { lane, .. }) => Some(*lane),
            // Background work does not shorten a delay.
            Some(Pending::Delayed { .. }) if lane == Lane::Background => Some(lane),
            Some(&Pending::Delayed { least, .. }) if due.max(least) > now => {
                return self.enqueue_at(key, lane, due.max(least), None, now);
            }
            None if due > now && !self.processing.contains_key(&key) => {
                return self.enqueue_at(key, lane, due, None, now);
            }
            Some(Pending::Delayed { .. }) | None => None,
        };
        if self.shut_down || waits_in.is_some_and(|l| l <= lane) {
            return;
        }
        let since = self.unplace(&key, now).unwrap_or_else(|| {
            self.adds += 1;
            now
        });
        self.place(key, lane, since);
    }

    /// [`Queue::add_after`](super::Queue::add_after). `slot` is the time of the bucket's token, for a retry.
    pub(super) fn enqueue_at(
        &mut self,
        key: K,
        lane: Lane,
        due: Instant,
        slot: Option<Instant>,
        now: Instant,
    ) {
        if self.shut_down {
            return;
        }
        let (sooner, least) = match self.pending.get(&key) {
            // Background work does not shorten a delay, in either order of the two adds.
            None
            | Some(Pending::Again {
                lane: Lane::Background,
                ..
            }) => (false, now),
            Some(&Pending::Delayed {
                lane: l,
                due: d,
                least,
                ..
            }) => ((d, l) <= (due.max(least), lane), least),
            Some(Pending::Waiting { .. } | Pending::Again { .. }) => (true, now),
        };
        let due = due.max(least);
        if sooner {
            if let Some(slot) = slot {
                self.bucket.give_back(slot, now);
            }
        } else if due <= now {
            self.enqueue(key, lane, now);
        } else {
            self.unplace(&key, now);
            let ticket = self.next_ticket();
            self.delayed.insert((due, ticket), key.clone());
            self.pending.insert(
                key,
                Pending::Delayed {
                    lane,
                    due,
                    ticket,
                    slot,
                    since: now,
                    least,
                },
            );
        }
    }

    /// [`Queue::add_anew`](super::Queue::add_anew).
    pub(super) fn enqueue_anew(&mut self, key: K, now: Instant) {
        // The delay of an attempt in progress replaces an add to the background lane.
        let lane = if self.processing.contains_key(&key) {
            Lane::Retry
        } else {
            Lane::Background
        };
        if let Some(&Pending::Delayed {
            lane: Lane::Background,
            slot: None,
            least,
            ..
        }) = self.pending.get(&key)
            && least <= now
        {
            self.unplace(&key, now);
        }
        self.enqueue(key, lane, now);
    }

    /// [`Queue::resync`](super::Queue::resync).
    pub(super) fn resync(&mut self, key: K, longest: Duration, now: Instant) {
        match self.pending.get(&key) {
            Some(&Pending::Delayed {
                lane: Lane::Retry,
                slot: Some(_),
                due,
                since,
                least,
                ..
            }) if later(since, longest).max(least) <= now => {
                let slot = self.bucket.reserve(now);
                if slot >= due {
                    self.bucket.give_back(slot, now);
                    return;
                }
                self.unplace(&key, now);
                self.enqueue_at(key, Lane::Background, slot, Some(slot), now);
            }
            _ => self.enqueue(key, Lane::Background, now),
        }
    }

    /// Adds a key to the end of its lane, or marks it as dirty if a worker has it. The key must have no place yet.
    fn place(&mut self, key: K, lane: Lane, since: Instant) {
        let place = if self.processing.contains_key(&key) {
            Pending::Again { lane, since }
        } else {
            let ticket = self.next_ticket();
            if self.slow.has(&key) {
                self.slow.insert(lane, ticket, key.clone(), since);
            } else {
                self.lanes.insert(lane, ticket, key.clone(), since);
            }
            Pending::Waiting { lane, ticket }
        };
        self.pending.insert(key, place);
    }

    /// Adds keys to the end of their new lanes after their namespace became slow or recovered.
    fn place_all(&mut self, moved: Vec<(Lane, K, Instant)>) {
        for (lane, key, since) in moved {
            self.place(key, lane, since);
        }
    }

    /// Removes a key from its place. Returns the start of its wait, unless it was delayed or not queued.
    fn unplace(&mut self, key: &K, now: Instant) -> Option<Instant> {
        match self.pending.remove(key)? {
            Pending::Waiting { lane, ticket } => {
                let slow = self.slow.remove(key, lane, ticket);
                slow.or_else(|| self.lanes.remove(lane, ticket))
            }
            Pending::Again { since, .. } => Some(since),
            Pending::Delayed {
                due, ticket, slot, ..
            } => {
                self.delayed.remove(&(due, ticket));
                if let Some(slot) = slot {
                    self.bucket.give_back(slot, now);
                }
                None
            }
        }
    }

    /// Hands out the next key.
    pub(super) fn take(&mut self, now: Instant) -> Option<Next<K>> {
        let swift = self.has_room().then(|| self.lanes.pop()).flatten();
        self.turn += 1;
        if let Some((_, key, _)) = &swift {
            self.swift.insert((now, self.turn), key.clone());
        }
        let (lane, key, since) = swift.or_else(|| self.slow.pop())?;
        self.pace.handed_out(&key, lane, now);
        self.pending.remove(&key);
        let running = Running {
            turn: self.turn,
            since: now,
            got_on: now,
        };
        self.processing.insert(key.clone(), running);
        Some(Next {
            tries: self.tries.get(&key).copied().unwrap_or_default(),
            key,
            lane,
            since,
        })
    }

    /// [`Queue::heartbeat`](super::Queue::heartbeat).
    pub(super) fn heartbeat(&mut self, key: &K, now: Instant) {
        if let Some(running) = self.processing.get_mut(key) {
            running.got_on = now;
        }
    }

    /// Releases a key from its worker. Queues it if it was added during the attempt.
    pub(super) fn release(&mut self, key: &K, now: Instant) {
        if let Some(running) = self.processing.remove(key) {
            self.swift.remove(&(running.since, running.turn));
        }
        self.slow.release(key);
        if let Some(&Pending::Again { lane, since }) = self.pending.get(key) {
            self.pending.remove(key);
            let due = self.pace.due(key, lane, now);
            if due > now {
                self.enqueue_at(key.clone(), lane, due, None, now);
            } else {
                self.place(key.clone(), lane, since);
            }
        }
    }

    /// Counts a failure of a key with a worker and queues its retry. Nothing queues the key before `least`. Returns the delay.
    pub(super) fn retry(&mut self, key: &K, least: Duration, now: Instant) -> Duration {
        let tries = self.tries.entry(key.clone()).or_default();
        let backoff = self.delays.after(tries.failures);
        tries.failures = tries.failures.saturating_add(1);
        tries.quiet = 0;
        self.status_changes.failed(key);
        self.back_off(key, backoff, least, now)
    }

    /// Like [`retry`](Self::retry), without counting a failure.
    pub(super) fn retry_quietly(&mut self, key: &K, now: Instant) -> Duration {
        self.enqueue_deferred(key, now);
        let tries = self.tries.entry(key.clone()).or_default();
        let backoff = self.delays.after(tries.quiet);
        tries.quiet = tries.quiet.saturating_add(1);
        self.back_off(key, backoff, Duration::ZERO, now)
    }

    fn back_off(&mut self, key: &K, backoff: Duration, least: Duration, now: Instant) -> Duration {
        self.retries += 1;
        if self.has_hung(key, now) {
            self.mark_slow(key);
        } else {
            let moved = self.slow.mark_recovered(key);
            self.place_all(moved);
        }
        if self.shut_down {
            return Duration::ZERO;
        }
        let added = match self.pending.get(key) {
            Some(Pending::Again {
                lane: Lane::Background,
                ..
            }) => None,
            Some(&Pending::Again { lane, .. }) => {
                let due = self.pace.due(key, lane, now);
                if least.is_zero() && due <= now {
                    return Duration::ZERO;
                }
                Some((lane, due))
            }
            Some(&Pending::Delayed { lane, due, .. }) => Some((lane, due)),
            _ => None,
        };
        self.unplace(key, now);
        let slot = self.bucket.reserve(now);
        let due = later(now, backoff.max(least)).max(slot);
        self.enqueue_at(key.clone(), Lane::Retry, due, Some(slot), now);
        if let Some(Pending::Delayed { least: it, .. }) = self.pending.get_mut(key) {
            *it = later(now, least);
        }
        if let Some((lane, due)) = added {
            self.enqueue_at(key.clone(), lane, due, None, now);
        }
        self.delay(key, now)
    }

    /// Whether the attempt in progress at a key is slow.
    fn has_hung(&self, key: &K, now: Instant) -> bool {
        let begun = self.processing.get(key);
        begun.is_some_and(|begun| now - begun.since >= HUNG)
    }

    /// Updates the slow namespaces after an attempt that did not fail, or after the object was deleted.
    fn is_over(&mut self, key: &K, now: Instant) {
        if self.has_hung(key, now) {
            // The namespace may have recovered since the key was handed out to a worker for slow namespaces.
            self.mark_slow(key);
            self.slow.got_through(key, now);
        } else {
            let moved = self.slow.mark_recovered(key);
            self.place_all(moved);
        }
    }

    /// Queues a key with a worker after `delay`. Returns the actual delay.
    pub(super) fn put_off(&mut self, key: &K, delay: Duration, now: Instant) -> Duration {
        self.retries += 1;
        self.enqueue_deferred(key, now);
        self.is_over(key, now);
        self.enqueue_at(key.clone(), Lane::Retry, later(now, delay), None, now);
        self.delay(key, now)
    }

    /// Returns the time until a key is queued.
    fn delay(&self, key: &K, now: Instant) -> Duration {
        match self.pending.get(key) {
            Some(Pending::Delayed { due, .. }) => *due - now,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn forget(&mut self, key: &K, now: Instant) {
        self.enqueue_deferred(key, now);
        self.tries.remove(key);
        self.is_over(key, now);
    }

    /// [`Queue::reset`](super::Queue::reset).
    pub(super) fn reset(&mut self, key: &K, now: Instant) {
        if self.pace.due(key, Lane::Event, now) <= now {
            let Self {
                tries,
                status_changes,
                ..
            } = self;
            tries.remove(key);
            status_changes.forget(key);
        }
    }

    /// Queues a key with a [deferred](Self::defer_to_retry) change, after an attempt that did not fail.
    fn enqueue_deferred(&mut self, key: &K, now: Instant) {
        if self.status_changes.take_deferred(key) {
            self.enqueue(key.clone(), Lane::Event, now);
        }
    }

    /// [`Queue::defer_to_retry`](super::Queue::defer_to_retry).
    pub(super) fn defer_to_retry(&mut self, key: &K) -> bool {
        self.status_changes.defer_to_retry(key)
    }

    /// [`Queue::has_failed`](super::Queue::has_failed).
    pub(super) fn has_failed(&self, key: &K) -> bool {
        self.status_changes.has_failed(key)
    }

    /// Drops all queued keys and rejects later ones.
    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
        self.pending.clear();
        self.delayed.clear();
        self.lanes = Lanes::default();
        self.slow.clear();
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    /// Whether there is work that no waiting worker will find without a notification.
    pub(super) fn needs_worker(&self) -> bool {
        let swift = self.has_room() && !self.lanes.is_empty();
        swift || self.slow.is_ready() || self.unwatched().is_some()
    }

    /// Returns the next time when a worker must wake, or `None` if a worker already wakes by that time. It is the due time of
    /// the next delayed key. If keys in `lanes` wait for a free worker, it may be earlier: when the oldest swift attempt
    /// becomes slow and frees its worker.
    fn unwatched(&self) -> Option<Instant> {
        let due = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let is_full = !self.lanes.is_empty() && !self.has_room();
        let hangs = self.next_hang().filter(|_| is_full);
        let due = [due, hangs].into_iter().flatten().min()?;
        self.alarm.is_none_or(|alarm| due < alarm).then_some(due)
    }

    /// Makes the caller the worker that wakes at the next due time, unless another worker does.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        let due = self.unwatched()?;
        self.alarm = Some(due);
        Some(due)
    }

    pub(super) fn disarm(&mut self, alarm: Option<Instant>) {
        if alarm.is_some() && self.alarm == alarm {
            self.alarm = None;
        }
    }

    fn next_ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    pub(super) fn is_drained(&self) -> bool {
        self.shut_down && self.processing.is_empty()
    }

    /// [`Queue::is_busy`](super::Queue::is_busy).
    pub(super) fn is_busy(&self, lane: Lane) -> bool {
        self.lanes.is_busy(lane)
    }

    pub(super) fn stats(&self, now: Instant) -> Stats {
        let running = || self.processing.values().map(|work| now - work.since);
        let standstills = self.processing.values().map(|work| now - work.got_on);
        let slow = self.slow.depth();
        let mut depth = self.lanes.depth();
        (depth.iter_mut().zip(slow)).for_each(|(depth, slow)| *depth += slow);
        Stats {
            depth,
            delayed: self.delayed.len(),
            processing: self.processing.len(),
            failing: self.tries.len(),
            longest_running: running().max().unwrap_or_default(),
            longest_standstill: standstills.max().unwrap_or_default(),
            unfinished: running().sum(),
            adds: self.adds,
            retries: self.retries,
        }
    }

    /// [`Queue::running`](super::Queue::running).
    pub(super) fn running(&self, now: Instant) -> Vec<(K, Duration)> {
        let running = self.processing.iter();
        running
            .map(|(key, work)| (key.clone(), now - work.since))
            .collect()
    }

    /// [`Queue::tries`](super::Queue::tries).
    pub(super) fn tries(&self, key: &K, now: Instant) -> (u32, Option<Duration>) {
        let tries = self.tries.get(key).copied().unwrap_or_default();
        let pending = self.pending.get(key).map(|_| self.delay(key, now));
        (tries.failures.saturating_add(tries.quiet), pending)
    }

    /// [`Queue::key_state`](super::Queue::key_state).
    pub(super) fn key_state(&self, key: &K, now: Instant) -> KeyState {
        let left = |until: Instant| Some(until - now).filter(|left| !left.is_zero());
        let state = KeyState {
            in_work: self.processing.get(key).map(|running| now - running.since),
            attempts: self.tries(key, now).0,
            is_slow: self.slow.has(key),
            has_deferred: self.status_changes.are_deferred(key),
            ..KeyState::default()
        };
        match self.pending.get(key) {
            None => state,
            Some(&(Pending::Waiting { lane, .. } | Pending::Again { lane, .. })) => KeyState {
                lane: Some(lane),
                ..state
            },
            Some(&Pending::Delayed {
                lane,
                due,
                slot,
                least,
                ..
            }) => KeyState {
                lane: Some(lane),
                delay: Some(due - now),
                is_retry: lane == Lane::Retry || slot.is_some(),
                least: left(least),
                change_limit: left(self.pace.due(key, lane, now)),
                ..state
            },
        }
    }

    /// Whether the namespace of a key is slow.
    #[cfg(test)]
    pub(super) fn is_slow(&self, key: &K) -> bool {
        self.slow.has(key)
    }

    /// Whether the queue holds no record of any key.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
            && self.processing.is_empty()
            && self.swift.is_empty()
            && self.tries.is_empty()
            && self.status_changes.is_empty()
            && self.pace.is_empty()
            && self.delayed.is_empty()
            && self.lanes.is_empty()
            && self.slow.is_empty()
    }
}
