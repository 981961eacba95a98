//! Everything under the queue's lock: plain data and the rules on it, given the time. No operation
//! costs more than the logarithm of the keys that wait, or the number of slow namespaces, not counting
//! that each delayed key is moved to its lane once, and that what waits is gone through when a
//! namespace becomes slow, and its own keys when it ceases to be; and those of the last seconds each 20 s.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    backoff::{Bucket, Delays, later},
    change_limit::Pace,
    lane::{Lane, Lanes, Stats},
    slow_namespaces::{HUNG, Slow},
};
use crate::config::settings::Backoff;

/// Where a key is that is to be worked on: in one place only.
enum Pending {
    /// In its lane, under `ticket`.
    Waiting { lane: Lane, ticket: u64 },
    /// Added while with a worker ("dirty"): in its lane as soon as the worker is done.
    Again { lane: Lane, since: Instant },
    /// Among the delayed, under `due` and `ticket`, since `since`. `slot` is when the bucket has the token of a
    /// retry. Before `least`, nothing has it queued.
    Delayed {
        lane: Lane,
        due: Instant,
        ticket: u64,
        slot: Option<Instant>,
        since: Instant,
        least: Instant,
    },
}

/// A key that is handed out, its lane, since when it waited, and how it has gone.
pub(super) struct Next<K> {
    pub(super) key: K,
    pub(super) lane: Lane,
    pub(super) since: Instant,
    pub(super) tries: Tries,
}

/// How a key has gone since its last success; never all zero.
#[derive(Clone, Copy, Default)]
pub(super) struct Tries {
    pub(super) failures: u32,
    /// Tries since the last failure that went wrong and are not counted as one.
    pub(super) quiet: u32,
}

/// What is known of a key that is with a worker.
struct Running {
    /// How many were handed out before it.
    turn: u64,
    since: Instant,
    /// When the work on it last got on.
    got_on: Instant,
}

/// All that the queue knows, and the rules.
pub(super) struct State<K> {
    /// Keys to be worked on. With the next two maps, what of those that fail hung, and for some seconds the pace, all that is kept
    /// of a key: of one at rest, nothing.
    pending: HashMap<K, Pending>,
    /// Keys with a worker.
    processing: HashMap<K, Running>,
    /// Those of them that count as with one of the workers that are not for slow namespaces: since when, and the turn.
    swift: BTreeMap<(Instant, u64), K>,
    /// How many of those workers there are.
    workers: usize,
    /// Those that are tried again until they succeed.
    tries: HashMap<K, Tries>,
    /// The keys that wait, but for those of slow namespaces.
    lanes: Lanes<K>,
    /// The slow namespaces, with the keys that wait there.
    slow: Slow<K>,
    /// The keys that are delayed, the next one first.
    delayed: BTreeMap<(Instant, u64), K>,
    /// The earliest time at which a worker in `get` wakes by itself.
    alarm: Option<Instant>,
    /// The number that the next key to be queued gets.
    ticket: u64,
    /// How many keys were asked for.
    turn: u64,
    delays: Delays,
    bucket: Bucket,
    pace: Pace<K>,
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
            lanes: Lanes::default(),
            slow: Slow::new(workers, namespace),
            delayed: BTreeMap::new(),
            alarm: None,
            ticket: 0,
            turn: 0,
            delays: Delays::new(backoff),
            bucket: Bucket::new(backoff, now),
            pace: Pace::new(now),
            adds: 0,
            retries: 0,
            shut_down: false,
        }
    }

    /// Queues what has fallen due. Every operation starts with this, so that the order in a lane is
    /// the order in time, whether or not a worker was there to see it.
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
                self.hung(&key);
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

    /// When the attempt that has gone on for longest, of those in no slow namespace, will have hung.
    fn next_hang(&self) -> Option<Instant> {
        let ((since, _), _) = self.swift.first_key_value()?;
        Some(*since + HUNG)
    }

    /// Notes that a key hangs, or hung and failed.
    fn hung(&mut self, key: &K) {
        let running = self.processing.keys();
        let moved = self.slow.hung(key, &mut self.lanes, running);
        self.swift.retain(|_, key| !self.slow.has(key));
        self.place_all(moved);
    }

    /// Whether one of the workers is free that are not for slow namespaces.
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
            // What can wait does not overtake a delay.
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

    /// [`Queue::add_after`](super::Queue::add_after); `slot` is when the bucket has the token, for a
    /// retry.
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
            // What can wait does not overtake a delay, whether it was added before or after.
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

    /// Puts a key that is nowhere at the end of its lane, or notes it for when its worker is done.
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

    /// Puts keys that waited in lanes at the end of others, since their namespace became slow or is so no more.
    fn place_all(&mut self, moved: Vec<(Lane, K, Instant)>) {
        for (lane, key, since) in moved {
            self.place(key, lane, since);
        }
    }

    /// Takes a key from where it is, if it is anywhere; says since when it waited, if it did.
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

    /// Hands out the next key, which is with a worker from now on.
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

    /// [`Queue::gets_on`](super::Queue::gets_on).
    pub(super) fn gets_on(&mut self, key: &K, now: Instant) {
        if let Some(running) = self.processing.get_mut(key) {
            running.got_on = now;
        }
    }

    /// Takes a key back from its worker.
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

    /// Counts a failure of a key that is with a worker and queues its retry, and whatever else of it, after `least` at the
    /// soonest; says in what time.
    pub(super) fn retry(&mut self, key: &K, least: Duration, now: Instant) -> Duration {
        let tries = self.tries.entry(key.clone()).or_default();
        let backoff = self.delays.after(tries.failures);
        tries.failures = tries.failures.saturating_add(1);
        tries.quiet = 0;
        self.back_off(key, backoff, least, now)
    }

    /// The same for a try that is not counted as a failure.
    pub(super) fn retry_quietly(&mut self, key: &K, now: Instant) -> Duration {
        let tries = self.tries.entry(key.clone()).or_default();
        let backoff = self.delays.after(tries.quiet);
        tries.quiet = tries.quiet.saturating_add(1);
        self.back_off(key, backoff, Duration::ZERO, now)
    }

    fn back_off(&mut self, key: &K, backoff: Duration, least: Duration, now: Instant) -> Duration {
        self.retries += 1;
        if self.has_hung(key, now) {
            self.hung(key);
        } else {
            let moved = self.slow.went_well(key);
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

    /// Whether the attempt at a key that is with a worker takes too long.
    fn has_hung(&self, key: &K, now: Instant) -> bool {
        let begun = self.processing.get(key);
        begun.is_some_and(|begun| now - begun.since >= HUNG)
    }

    /// Notes how the attempt at a key went that is over, and no failure; or that the key is none any more.
    fn is_over(&mut self, key: &K, now: Instant) {
        if self.has_hung(key, now) {
            // As it does where its namespace was slow when it was handed out, and then was not.
            self.hung(key);
            self.slow.got_through(key, now);
        } else {
            let moved = self.slow.went_well(key);
            self.place_all(moved);
        }
    }

    /// Queues a key that is with a worker again after `delay`; says in what time.
    pub(super) fn put_off(&mut self, key: &K, delay: Duration, now: Instant) -> Duration {
        self.retries += 1;
        self.is_over(key, now);
        self.enqueue_at(key.clone(), Lane::Retry, later(now, delay), None, now);
        self.delay(key, now)
    }

    /// In what time a key is queued.
    fn delay(&self, key: &K, now: Instant) -> Duration {
        match self.pending.get(key) {
            Some(Pending::Delayed { due, .. }) => *due - now,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn forget(&mut self, key: &K, now: Instant) {
        self.tries.remove(key);
        self.is_over(key, now);
    }

    /// Drops what waits; nothing is queued from now on.
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

    /// Whether there is work that no worker in `get` will see by itself.
    pub(super) fn needs_worker(&self) -> bool {
        let swift = self.has_room() && !self.lanes.is_empty();
        swift || self.slow.is_ready() || self.unwatched().is_some()
    }

    /// The time of the next delayed key, or when an attempt hangs that others wait for, if no worker wakes by then.
    fn unwatched(&self) -> Option<Instant> {
        let due = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let is_full = !self.lanes.is_empty() && !self.has_room();
        let hangs = self.next_hang().filter(|_| is_full);
        let due = [due, hangs].into_iter().flatten().min()?;
        self.alarm.is_none_or(|alarm| due < alarm).then_some(due)
    }

    /// Makes the caller the worker that wakes for the next delayed key, unless another one does.
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

    /// Whether the namespace of a key is slow.
    #[cfg(test)]
    pub(super) fn is_slow(&self, key: &K) -> bool {
        self.slow.has(key)
    }

    /// Whether nothing is kept of any key.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
            && self.processing.is_empty()
            && self.swift.is_empty()
            && self.tries.is_empty()
            && self.pace.is_empty()
            && self.delayed.is_empty()
            && self.lanes.is_empty()
            && self.slow.is_empty()
    }
}
