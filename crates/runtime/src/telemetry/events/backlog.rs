//! Events of namespaces where the last one could not be written: tried again in their order, and ever more slowly.
//!
//! One is tried at a time. Namespaces share the time that tries take as flows share a link in start-time fair queueing, and
//! of those whose turn it may be, the one goes first whose try is done first, to judge by its last: where tries are quick
//! again, none waits for more than one that hangs; and where they hang, each is made.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    dropped::Drops,
    event::{Queued, WAITING, WRITE_TIMEOUT},
};

/// How many events there may be in the backlog, and how many of one namespace.
pub(super) const CAPACITY: usize = WAITING;
pub(super) const NAMESPACE_CAPACITY: usize = WAITING / 2;

/// A try of what is in the backlog may last so many times as long as the first one.
pub(super) const PATIENCE: u32 = 11;

/// The pause before the second try, doubled before each of the next.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Backlog {
    state: Mutex<State>,
    /// Something came into it, or nothing will any more.
    changed: Notify,
    drops: Arc<Drops>,
}

#[derive(Default)]
struct State {
    namespaces: BTreeMap<Box<str>, Namespace>,
    /// How many events there are in all of them.
    count: usize,
    /// The virtual time: how far the namespaces are that were tried.
    turn: Duration,
    /// Nothing comes any more.
    closed: bool,
}

/// The events of one namespace, in their order.
struct Namespace {
    events: VecDeque<Queued>,
    /// When the first of them was first tried.
    since: Instant,
    pause: Duration,
    due: Instant,
    /// The virtual time at which its next try begins.
    turn: Duration,
    /// How long its last try took, or would have with the time limit of the next.
    took: Duration,
}

/// Why an event is not written, and how soon it may be tried again.
pub(super) struct Unwritten {
    pub error: String,
    pub wait: Duration,
}

impl Backlog {
    pub fn new(drops: Arc<Drops>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            drops,
        }
    }

    /// Takes an event in where there are others of its namespace; hands it back where there are none.
    pub fn behind_others(&self, queued: Queued) -> Option<Queued> {
        let mut state = self.state.lock();
        let full = state.count >= CAPACITY;
        let Some(namespace) = state.namespaces.get_mut(queued.key.namespace()) else {
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

    /// Takes in the first of a namespace, or one that was tried beside it, which was first tried at `since`.
    pub fn put(&self, queued: Queued, since: Instant, failure: &Unwritten) {
        let mut state = self.state.lock();
        if state.count >= CAPACITY {
            drop(state);
            self.drops.full(&queued.key);
            return;
        }
        let took = since.elapsed();
        let due = Instant::now() + failure.wait.max(PAUSE);
        let namespace = Namespace {
            since,
            pause: PAUSE,
            due,
            turn: state.turn + took,
            took: took * PATIENCE,
            events: VecDeque::new(),
        };
        let name = queued.key.namespace().into();
        let others = state.namespaces.entry(name);
        let namespace = others
            // Tried at the same time.
            .and_modify(|others| others.due = others.due.max(due))
            .or_insert(namespace);
        namespace.events.push_back(queued);
        state.count += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Nothing comes any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.state.lock().count
    }

    /// Nothing comes any more, and nothing is left.
    pub fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.closed && state.namespaces.is_empty()
    }

    /// Something came into it, or nothing will any more.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The namespace whose first event is to be tried next, and when.
    pub fn next(&self) -> Option<(Box<str>, Instant)> {
        let (state, now) = (self.state.lock(), Instant::now());
        let namespaces = state.namespaces.iter();
        let next = namespaces
            .min_by_key(|(_, namespace)| (namespace.due.max(now), namespace.turn + namespace.took));
        next.map(|(name, namespace)| (name.clone(), namespace.due))
    }

    /// Takes out the first event of a namespace, whose others stay.
    pub fn take_first(&self, namespace: &str) -> Option<Queued> {
        let mut state = self.state.lock();
        let queued = state.namespaces.get_mut(namespace)?.events.pop_front()?;
        state.count -= 1;
        Some(queued)
    }

    /// Has the namespace's next event tried, or the same one after a while; without any it is like all others. The try
    /// held up others for as long as it `took`.
    pub fn tried(&self, name: &str, queued: Queued, result: Result<(), Unwritten>, took: Duration) {
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
            Ok(()) => (namespace.since, namespace.pause, namespace.due) = (now, PAUSE, now),
            Err(failure) => {
                namespace.pause = (namespace.pause * 2).min(MAX_PAUSE);
                namespace.due = now + failure.wait.max(namespace.pause);
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
