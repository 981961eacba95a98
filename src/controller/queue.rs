//! The work queue: which key is to be reconciled next, and when. It keeps client-go's promises: a key is never with two
//! workers, what happens while it waits collapses into one, what happens while it is worked on queues it again (row
//! Q1), and failures back off (row Q3). Beyond client-go it has lanes by urgency, none of which can starve another.
//!
//! There is no task behind it. A worker that waits in [`Queue::get`] also waits for the next delayed key, and passes
//! that duty on when it leaves, so nothing can die unnoticed. A queue is cheap to make and belongs to one term of
//! leadership: a term that ends shuts its queue down, the next one starts with a new queue and enqueues everything.
//!
//! # Fairness
//!
//! Within a lane, first come, first served. Of any eight keys handed out in a row, one comes from
//! [`Lane::Background`], one from [`Lane::Retry`] and six from [`Lane::Change`], as far as something waits there; a turn
//! for which its lane has nothing goes to the most urgent lane that has. Hence the bound: **a key with `n` keys before
//! it in its lane is handed out within the next `8 * (n + 1)` calls of `get` that return a key**, whatever is added
//! meanwhile.

mod limiter;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::config::Backoff;
use limiter::{Bucket, Delays, later};

/// Why a key is in the queue, and so how urgent it is. Less is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The object or what it owns changed: someone may be looking.
    Change,
    /// It failed before.
    Retry,
    /// Nothing is known to have happened: a resync, or a new leader looking at everything.
    Background,
}

impl Lane {
    /// All of them, the most urgent first; the order of [`Stats::depth`].
    pub const ALL: [Self; 3] = [Self::Change, Self::Retry, Self::Background];

    /// The lane whose turn it is, and where to look instead if nothing waits there; `turn` counts keys handed out.
    fn by_turn(turn: u64) -> [Self; 3] {
        match turn % 8 {
            3 => [Self::Retry, Self::Change, Self::Background],
            7 => [Self::Background, Self::Change, Self::Retry],
            _ => Self::ALL,
        }
    }
}

/// What the queue looks like at one moment, for metrics. Costs as much as there are keys being worked on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Keys that a worker could take now, by lane, in the order of [`Lane::ALL`].
    pub depth: [usize; 3],
    /// Keys that wait for their time: retries and other delayed adds.
    pub delayed: usize,
    /// Keys that are with a worker.
    pub processing: usize,
    /// Keys whose last outcome was a failure.
    pub failing: usize,
    /// How long the oldest work in progress has been going on.
    pub longest_running: Duration,
    /// The sum of how long each work in progress has been going on.
    pub unfinished: Duration,
    /// Keys that came to wait for a worker since the queue was made; adds that collapsed are not counted.
    pub adds: u64,
    /// Retries asked for since the queue was made.
    pub retries: u64,
}

/// The work queue; clones share it. See the [module](self) for what it promises.
#[derive(Debug)]
pub struct Queue<K: Clone + Eq + Hash>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    state: Mutex<State<K>>,
    /// One permit for each piece of work that no worker knows of yet.
    work: Notify,
    /// The last key was given back after the shutdown.
    drained: Notify,
}

impl<K: Clone + Eq + Hash> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue whose retries are paced as `backoff` says.
    #[must_use]
    pub fn new(backoff: &Backoff) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(backoff, Instant::now())),
            work: Notify::new(),
            drained: Notify::new(),
        }))
    }

    /// Queues `key` on `lane`, at its end. A key that waits already stays where it is, or moves up to the end of `lane`
    /// if that is more urgent; one that is with a worker is queued when the worker is done with it; a delayed add of it
    /// is overtaken, its failures stay counted (row Q1).
    pub fn add(&self, key: K, lane: Lane) {
        let now = Instant::now();
        let mut state = self.state(now);
        if !state.shut_down {
            state.enqueue(key, lane, now);
        }
        self.call_worker(state);
    }

    /// Queues `key` on `lane` after `delay`, unless it is queued sooner anyway: of several adds of a key the earliest
    /// counts. Who needs a later look, too, asks for it again when it has been worked on.
    pub fn add_after(&self, key: K, lane: Lane, delay: Duration) {
        let now = Instant::now();
        let mut state = self.state(now);
        if !state.shut_down {
            state.enqueue_at(key, lane, later(now, delay), None, now);
        }
        self.call_worker(state);
    }

    /// The next key to work on, waiting for one if need be; `None` once the queue is shut down. Safe to cancel: a key
    /// is either returned or still in the queue.
    pub async fn get(&self) -> Option<Taken<K>> {
        let mut watch = Watch {
            queue: self,
            alarm: None,
        };
        loop {
            // Made before the state is looked at, so that a shutdown in between is not missed.
            let called = self.0.work.notified();
            {
                let now = Instant::now();
                let mut state = self.state(now);
                if state.shut_down {
                    return None;
                }
                if let Some((key, lane, since)) = state.take(now) {
                    return Some(Taken {
                        queue: self.clone(),
                        lane,
                        waited: now - since,
                        failures: state.failures.get(&key).copied().unwrap_or(0),
                        key,
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

    /// Forgets the failures of `key`; it keeps its place if it is queued.
    pub fn forget(&self, key: &K) {
        self.0.state.lock().failures.remove(key);
    }

    /// Stops the intake: what waits is dropped, later adds are ignored, and every [`get`](Self::get) returns `None`.
    /// Work in progress goes on (row P2).
    pub fn shut_down(&self) {
        let mut state = self.0.state.lock();
        state.shut_down = true;
        let waiting = (
            mem::take(&mut state.pending),
            mem::take(&mut state.lanes),
            mem::take(&mut state.delayed),
        );
        drop(state);
        drop(waiting);
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

    /// What the queue looks like now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let now = Instant::now();
        self.state(now).stats(now)
    }

    /// The state, with what has fallen due by `now` in its lane.
    fn state(&self, now: Instant) -> MutexGuard<'_, State<K>> {
        let mut state = self.0.state.lock();
        state.advance(now);
        state
    }

    /// Wakes one worker if there is something that none knows of. Each one woken does the same when it leaves
    /// [`get`](Self::get), so one at a time is enough and no herd comes running.
    fn call_worker(&self, state: MutexGuard<'_, State<K>>) {
        let needed = state.needs_worker();
        drop(state);
        if needed {
            self.0.work.notify_one();
        }
    }
}

/// A worker's stay in [`Queue::get`]. However that ends, with a key or cancelled, the duty to wait for the next delayed
/// key passes on to another worker.
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

/// A key with a worker. No other worker gets it until this is dropped, whatever becomes of the worker: a drop alone
/// says that the work is over and nothing about how it went, as when it was cut short.
#[must_use = "dropping it gives the key back"]
pub struct Taken<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    lane: Lane,
    waited: Duration,
    failures: u32,
}

impl<K: Clone + Eq + Hash> Taken<K> {
    /// What to work on.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Why.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// How long it could have been worked on but wasn't: since it was added or its delay was over.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How often it has failed since it last succeeded.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Gives the key back; its failures are forgotten. Also right for an object that is gone: nothing stays behind.
    pub fn succeed(self) {
        self.queue.forget(&self.key);
    }

    /// Gives the key back, counts a failure, and queues it again on [`Lane::Retry`] after the returned delay (row Q3).
    /// The delay is zero if the key was added meanwhile: then it is queued at once, as if it had not failed. A conflict
    /// is retried in this way, too, so that it cannot spin; whether it is worth an error in the log, the caller knows.
    pub fn retry(self) -> Duration {
        let now = Instant::now();
        let mut state = self.queue.state(now);
        let delay = state.retry(&self.key, now);
        self.queue.call_worker(state);
        delay
    }
}

impl<K: Clone + Eq + Hash> Drop for Taken<K> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.state(now);
        state.release(&self.key);
        let drained = state.is_drained();
        self.queue.call_worker(state);
        if drained {
            self.queue.0.drained.notify_waiters();
        }
    }
}

impl<K: Clone + Eq + Hash + fmt::Debug> fmt::Debug for Taken<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("key", &self.key)
            .field("lane", &self.lane)
            .field("waited", &self.waited)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

/// Where a key is that is to be worked on: in one place only.
#[derive(Debug)]
enum Pending {
    /// In its lane, under `ticket`.
    Waiting { lane: Lane, ticket: u64 },
    /// Added while with a worker ("dirty"): in its lane as soon as the worker is done.
    Again { lane: Lane, since: Instant },
    /// Among the delayed, under `due` and `ticket`. `slot` is when the bucket has the token of a retry.
    Delayed {
        lane: Lane,
        due: Instant,
        ticket: u64,
        slot: Option<Instant>,
    },
}

/// Everything under the lock: plain data and the rules on it, told the time. No operation costs more than the logarithm
/// of the keys that wait, not counting that each delayed key is moved to its lane once.
#[derive(Debug)]
struct State<K> {
    /// Keys to be worked on. With the next two maps, all that is kept of a key: of one at rest, nothing.
    pending: HashMap<K, Pending>,
    /// Keys with a worker, and since when.
    processing: HashMap<K, Instant>,
    /// Failures since the last success; never zero.
    failures: HashMap<K, u32>,
    /// The keys that wait, by lane and ticket, and since when.
    lanes: [BTreeMap<u64, (K, Instant)>; 3],
    /// The keys that are delayed, the next one first.
    delayed: BTreeMap<(Instant, u64), K>,
    /// The earliest time at which a worker in `get` wakes by itself.
    alarm: Option<Instant>,
    /// The number that the next key to be queued gets.
    ticket: u64,
    /// How many keys have been handed out.
    turn: u64,
    delays: Delays,
    bucket: Bucket,
    adds: u64,
    retries: u64,
    shut_down: bool,
}

impl<K: Clone + Eq + Hash> State<K> {
    fn new(backoff: &Backoff, now: Instant) -> Self {
        Self {
            pending: HashMap::new(),
            processing: HashMap::new(),
            failures: HashMap::new(),
            lanes: Default::default(),
            delayed: BTreeMap::new(),
            alarm: None,
            ticket: 0,
            turn: 0,
            delays: Delays::new(backoff),
            bucket: Bucket::new(backoff, now),
            adds: 0,
            retries: 0,
            shut_down: false,
        }
    }

    /// Queues what has fallen due. Every operation starts with this, so that the order in a lane is the order in time,
    /// whether or not a worker was there to see it.
    fn advance(&mut self, now: Instant) {
        while let Some(next) = self
            .delayed
            .first_entry()
            .filter(|next| next.key().0 <= now)
        {
            let ((due, _), key) = next.remove_entry();
            if let Some(Pending::Delayed { lane, .. }) = self.pending.remove(&key) {
                self.place(key, lane, due);
                self.adds += 1;
            }
        }
    }

    fn enqueue(&mut self, key: K, lane: Lane, now: Instant) {
        if let Some(Pending::Waiting { lane: l, .. } | Pending::Again { lane: l, .. }) =
            self.pending.get(&key)
            && *l <= lane
        {
            return;
        }
        let since = self.unplace(&key, now).unwrap_or_else(|| {
            self.adds += 1;
            now
        });
        self.place(key, lane, since);
    }

    fn enqueue_at(
        &mut self,
        key: K,
        lane: Lane,
        due: Instant,
        slot: Option<Instant>,
        now: Instant,
    ) {
        let sooner = match self.pending.get(&key) {
            None => false,
            Some(Pending::Delayed {
                lane: l, due: d, ..
            }) => (*d, *l) <= (due, lane),
            Some(Pending::Waiting { .. } | Pending::Again { .. }) => true,
        };
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
                },
            );
        }
    }

    /// Puts a key that is nowhere at the end of its lane, or notes it for when its worker is done.
    fn place(&mut self, key: K, lane: Lane, since: Instant) {
        let place = if self.processing.contains_key(&key) {
            Pending::Again { lane, since }
        } else {
            let ticket = self.next_ticket();
            self.lanes[lane as usize].insert(ticket, (key.clone(), since));
            Pending::Waiting { lane, ticket }
        };
        self.pending.insert(key, place);
    }

    /// Takes a key from where it is, if it is anywhere; says since when it waited, if it did.
    fn unplace(&mut self, key: &K, now: Instant) -> Option<Instant> {
        match self.pending.remove(key)? {
            Pending::Waiting { lane, ticket } => {
                let (_, since) = self.lanes[lane as usize].remove(&ticket)?;
                Some(since)
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

    /// Hands out the next key: its lane and since when it waited.
    fn take(&mut self, now: Instant) -> Option<(K, Lane, Instant)> {
        let (lane, (key, since)) = Lane::by_turn(self.turn).into_iter().find_map(|lane| {
            let (_, first) = self.lanes[lane as usize].pop_first()?;
            Some((lane, first))
        })?;
        self.turn += 1;
        self.pending.remove(&key);
        self.processing.insert(key.clone(), now);
        Some((key, lane, since))
    }

    /// Takes a key back from its worker.
    fn release(&mut self, key: &K) {
        self.processing.remove(key);
        if let Some(&Pending::Again { lane, since }) = self.pending.get(key) {
            self.place(key.clone(), lane, since);
        }
    }

    /// Counts a failure of a key that is with a worker and queues its retry; says in what time.
    fn retry(&mut self, key: &K, now: Instant) -> Duration {
        self.retries += 1;
        let failures = self.failures.entry(key.clone()).or_default();
        let backoff = self.delays.after(*failures);
        *failures = failures.saturating_add(1);
        if self.shut_down || matches!(self.pending.get(key), Some(Pending::Again { .. })) {
            return Duration::ZERO;
        }
        let slot = self.bucket.reserve(now);
        let due = later(now, backoff).max(slot);
        self.enqueue_at(key.clone(), Lane::Retry, due, Some(slot), now);
        match self.pending.get(key) {
            Some(Pending::Delayed { due, .. }) => *due - now,
            _ => Duration::ZERO,
        }
    }

    /// Whether there is work that no worker in `get` will see by itself.
    fn needs_worker(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_empty()) || self.unwatched().is_some()
    }

    /// The time of the next delayed key, if no worker wakes by then.
    fn unwatched(&self) -> Option<Instant> {
        let (&(due, _), _) = self.delayed.first_key_value()?;
        self.alarm.is_none_or(|alarm| due < alarm).then_some(due)
    }

    /// Makes the caller the worker that wakes for the next delayed key, unless another one does.
    fn arm(&mut self) -> Option<Instant> {
        let due = self.unwatched()?;
        self.alarm = Some(due);
        Some(due)
    }

    fn disarm(&mut self, alarm: Option<Instant>) {
        if alarm.is_some() && self.alarm == alarm {
            self.alarm = None;
        }
    }

    fn next_ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    fn is_drained(&self) -> bool {
        self.shut_down && self.processing.is_empty()
    }

    fn stats(&self, now: Instant) -> Stats {
        let running = || self.processing.values().map(|since| now - *since);
        Stats {
            depth: self.lanes.each_ref().map(BTreeMap::len),
            delayed: self.delayed.len(),
            processing: self.processing.len(),
            failing: self.failures.len(),
            longest_running: running().max().unwrap_or_default(),
            unfinished: running().sum(),
            adds: self.adds,
            retries: self.retries,
        }
    }
}
