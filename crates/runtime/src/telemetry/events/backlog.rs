//! Backlog of namespaces whose last event could not be written. Their events are retried in order, with exponential backoff.
//!
//! Only a single event is attempted at a time. Namespaces share the time of attempts by start-time fair queueing. The due
//! namespace with the earliest expected virtual finish time goes first. The last attempt of a namespace predicts the duration
//! of its next. So a namespace that has recovered waits for at most one attempt that hangs, and a namespace that hangs still
//! gets its attempts.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    dropped::DroppedEvents,
    event::{Queued, WAITING, WRITE_TIMEOUT},
};
use crate::config::backoff::Backoff;

/// Maximum number of events in the backlog, and of one namespace in it.
pub(super) const CAPACITY: usize = WAITING;
pub(super) const NAMESPACE_CAPACITY: usize = WAITING / 2;

/// Time limit of a retry as a multiple of the time limit of the first attempt.
pub(super) const PATIENCE: u32 = 11;

/// Delay before the first retry. It doubles up to the second value.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Backlog {
    state: Mutex<State>,
    /// Notified when an event is added and when the backlog is closed.
    changed: Notify,
    drops: Arc<DroppedEvents>,
}

#[derive(Default)]
struct State {
    namespaces: BTreeMap<Box<str>, Namespace>,
    /// Number of events of all namespaces.
    count: usize,
    /// Virtual time: the latest virtual start of an attempt.
    turn: Duration,
    /// Whether no more events will be added.
    closed: bool,
}

/// Events of one namespace, in order.
struct Namespace {
    events: VecDeque<Queued>,
    /// Time of the first attempt of the first event.
    since: Instant,
    pauses: Backoff,
    due: Instant,
    /// Virtual start time of the next attempt.
    turn: Duration,
    /// Duration of the last attempt, scaled to the time limit of the next.
    took: Duration,
}

/// A failed write, and the minimum delay before the next attempt.
pub(super) struct Unwritten {
    pub error: String,
    pub wait: Duration,
}

impl Backlog {
    pub(super) fn new(drops: Arc<DroppedEvents>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            drops,
        }
    }

    /// Queues the event if its namespace has a backlog, or drops it if the backlog is full. Otherwise returns the event.
    pub(super) fn push_if_blocked(&self, queued: Queued) -> Option<Queued> {
        let mut state = self.state.lock();
        let full = state.count >= CAPACITY;
        let Some(namespace) = state.namespaces.get_mut(queued.namespace()) else {
            return Some(queued);
        };
        if full || namespace.events.len() >= NAMESPACE_CAPACITY {
            drop(state);
            self.drops.full(&queued.key);
        } else {
            namespace.events.push_back(queued);
            state.count += 1;
        }
        None
    }

    /// Queues an event whose first attempt, begun at `since`, failed. Its namespace may have a backlog already if first
    /// attempts ran in parallel.
    pub(super) fn put(&self, queued: Queued, since: Instant, failure: &Unwritten) {
        let mut state = self.state.lock();
        if state.count >= CAPACITY {
            drop(state);
            self.drops.full(&queued.key);
            return;
        }
        let took = since.elapsed();
        let mut pauses = Backoff::new(PAUSE, MAX_PAUSE);
        let due = Instant::now() + failure.wait.max(pauses.advance());
        let namespace = Namespace {
            since,
            pauses,
            due,
            turn: state.turn + took,
            took: took * PATIENCE,
            events: VecDeque::new(),
        };
        let name = queued.namespace().into();
        let others = state.namespaces.entry(name);
        let namespace = others
            // First attempts ran in parallel.
            .and_modify(|others| others.due = others.due.max(due))
            .or_insert(namespace);
        namespace.events.push_back(queued);
        state.count += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Marks the backlog as complete: no more events will be added.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().count
    }

    /// Whether the backlog is closed and empty.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.closed && state.namespaces.is_empty()
    }

    /// Waits until an event is added or the backlog is closed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the namespace whose first event is attempted next, and the time of that attempt.
    pub(super) fn next(&self) -> Option<(Box<str>, Instant)> {
        let (state, now) = (self.state.lock(), Instant::now());
        let namespaces = state.namespaces.iter();
        let next = namespaces
            .min_by_key(|(_, namespace)| (namespace.due.max(now), namespace.turn + namespace.took));
        next.map(|(name, namespace)| (name.clone(), namespace.due))
    }

    /// Removes the first event of a namespace. The namespace keeps its backlog, even if this was the last event.
    pub(super) fn take_first(&self, namespace: &str) -> Option<Queued> {
        let mut state = self.state.lock();
        let queued = state.namespaces.get_mut(namespace)?.events.pop_front()?;
        state.count -= 1;
        Some(queued)
    }

    /// Handles the result of an attempt of the event from [`take_first`](Self::take_first). A failed event goes back to the
    /// front, or is dropped after [`WRITE_TIMEOUT`]. A namespace without further events leaves the backlog.
    ///
    /// `took` is the delay that the attempt caused for the other namespaces.
    pub(super) fn tried(
        &self,
        name: &str,
        queued: Queued,
        result: Result<(), Unwritten>,
        took: Duration,
    ) {
        let now = Instant::now();
        let mut overdue = None;
        let mut state = self.state.lock();
        let turn = state.turn;
        let Some(namespace) = state.namespaces.get_mut(name) else {
            return;
        };
        let turn = turn.max(namespace.turn);
        namespace.turn = turn.max(namespace.turn + took);
        namespace.took = took;
        let mut back = 0;
        match result {
            Ok(()) => {
                (namespace.since, namespace.due) = (now, now);
                namespace.pauses.reset();
            }
            Err(failure) => {
                namespace.due = now + failure.wait.max(namespace.pauses.advance());
                if now - namespace.since < WRITE_TIMEOUT {
                    namespace.events.push_front(queued);
                    back = 1;
                } else {
                    namespace.since = namespace.due;
                    overdue = Some((queued.key, failure.error));
                }
            }
        }
        if namespace.events.is_empty() {
            state.namespaces.remove(name);
        }
        state.turn = turn;
        state.count += back;
        drop(state);
        if let Some((key, error)) = overdue {
            self.drops.late(&key, &error);
        }
    }
}
