//! Namespaces where attempts hang, apart from all others: they have workers of their own, and take none from the others.
//! The cause is a namespace's as a rule: a webhook, a service mesh.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::lane::{Lane, Lanes};

/// An attempt that takes as long hangs: no healthy API server needs as long for a handful of requests.
pub(super) const HUNG: Duration = Duration::from_secs(1);

/// How long a namespace stays slow after an attempt that hung and succeeded. Its key may have nothing to do next, which shows
/// nothing about the namespace's other keys.
pub(super) const REMEMBERED: Duration = Duration::from_mins(1);

/// The slow namespaces: those with a key whose attempt hangs, or hung and failed, or hung and succeeded a short while ago. A new
/// key there would hang as well, so the namespace is remembered; and a key with nothing to do that succeeds shows nothing about
/// the others.
pub(super) struct Slow<K> {
    /// The namespace of a key.
    namespace: fn(&K) -> &str,
    /// How many workers there are for slow namespaces.
    workers: usize,
    namespaces: HashMap<Box<str>, Namespace<K>>,
    /// Those of them where keys wait, the one whose turn it is first: none holds up another.
    line: VecDeque<Box<str>>,
    /// The keys that workers are with.
    running: HashSet<K>,
    /// When the next namespace may cease to be slow without an attempt.
    next_end: Option<Instant>,
}

struct Namespace<K> {
    /// The keys that hang, or hung and failed.
    hung: HashSet<K>,
    /// Slow until then even without such a key.
    until: Option<Instant>,
    waiting: Lanes<K>,
}

impl<K: Clone + Eq + Hash> Slow<K> {
    pub(super) fn new(workers: usize, namespace: fn(&K) -> &str) -> Self {
        Self {
            namespace,
            workers,
            namespaces: HashMap::new(),
            line: VecDeque::new(),
            running: HashSet::new(),
            next_end: None,
        }
    }

    /// Whether the key's namespace is slow.
    pub(super) fn has(&self, key: &K) -> bool {
        self.namespaces.contains_key((self.namespace)(key))
    }

    /// Notes that a key hangs, or hung and failed. Returned is what is to be placed anew where its namespace was not slow before,
    /// out of `waiting`; what of `running` is of that namespace counts from now on.
    pub(super) fn hung<'a>(
        &mut self,
        key: &K,
        waiting: &mut Lanes<K>,
        running: impl Iterator<Item = &'a K>,
    ) -> Vec<(Lane, K, Instant)>
    where
        K: 'a,
    {
        let namespace = self.namespace;
        let name = namespace(key);
        if let Some(slow) = self.namespaces.get_mut(name) {
            slow.hung.insert(key.clone());
            return Vec::new();
        }
        let slow = Namespace {
            hung: HashSet::from([key.clone()]),
            until: None,
            waiting: Lanes::default(),
        };
        self.namespaces.insert(name.into(), slow);
        let is_there = |other: &K| namespace(other) == name;
        self.running
            .extend(running.filter(|other| is_there(other)).cloned());
        waiting.extract(is_there)
    }

    /// Notes that a key hung and succeeded, in a namespace that is slow.
    pub(super) fn got_through(&mut self, key: &K, now: Instant) {
        if let Some(slow) = self.namespaces.get_mut((self.namespace)(key)) {
            slow.hung.remove(key);
            let until = now + REMEMBERED;
            slow.until = Some(until);
            self.next_end.get_or_insert(until);
        }
    }

    /// Notes that a key did not hang, or is none any more. Returned is what is to be placed anew where no other one of its
    /// namespace hangs.
    pub(super) fn went_well(&mut self, key: &K) -> Vec<(Lane, K, Instant)> {
        let name = (self.namespace)(key);
        if let Some(slow) = self.namespaces.get_mut(name) {
            slow.hung.remove(key);
        }
        self.end(name)
    }

    /// When [`end_next`](Self::end_next) is due.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.next_end
    }

    /// Has those namespaces cease to be slow whose time is up; returned is what is to be placed anew.
    pub(super) fn end_next(&mut self, now: Instant) -> Vec<(Lane, K, Instant)> {
        let mut over = Vec::new();
        for (name, slow) in &mut self.namespaces {
            if slow.until.take_if(|until| *until <= now).is_some() {
                over.push(name.clone());
            }
        }
        over.sort_unstable();
        let ends = self.namespaces.values().filter_map(|slow| slow.until);
        self.next_end = ends.min();
        over.iter().flat_map(|name| self.end(name)).collect()
    }

    /// Takes the namespace out if nothing makes it slow any more.
    fn end(&mut self, name: &str) -> Vec<(Lane, K, Instant)> {
        let slow = self.namespaces.get_mut(name);
        let Some(slow) = slow.filter(|slow| slow.hung.is_empty() && slow.until.is_none()) else {
            return Vec::new();
        };
        let waiting = slow.waiting.extract(|_| true);
        self.namespaces.remove(name);
        self.line.retain(|other| **other != *name);
        waiting
    }

    /// Lets a key of a slow namespace wait.
    pub(super) fn insert(&mut self, lane: Lane, ticket: u64, key: K, since: Instant) {
        let name = (self.namespace)(&key);
        let Some(slow) = self.namespaces.get_mut(name) else {
            return;
        };
        if slow.waiting.is_empty() {
            self.line.push_back(name.into());
        }
        slow.waiting.insert(lane, ticket, key, since);
    }

    /// Takes out a key that waits; says since when.
    pub(super) fn remove(&mut self, key: &K, lane: Lane, ticket: u64) -> Option<Instant> {
        let name = (self.namespace)(key);
        let slow = self.namespaces.get_mut(name)?;
        let since = slow.waiting.remove(lane, ticket)?;
        if slow.waiting.is_empty() {
            self.line.retain(|other| **other != *name);
        }
        Some(since)
    }

    /// Whether a worker may have one of the keys that wait.
    pub(super) fn is_ready(&self) -> bool {
        self.running.len() < self.workers && !self.line.is_empty()
    }

    /// The next key for a worker, if it may have one.
    pub(super) fn pop(&mut self) -> Option<(Lane, K, Instant)> {
        if !self.is_ready() {
            return None;
        }
        let name = self.line.pop_front()?;
        let slow = self.namespaces.get_mut(&name)?;
        let next = slow.waiting.pop()?;
        if !slow.waiting.is_empty() {
            self.line.push_back(name);
        }
        self.running.insert(next.1.clone());
        Some(next)
    }

    /// A worker is done with a key.
    pub(super) fn release(&mut self, key: &K) {
        self.running.remove(key);
    }

    /// How many keys wait, by lane.
    pub(super) fn depth(&self) -> [usize; 3] {
        let mut depth = [0; 3];
        for slow in self.namespaces.values() {
            for (sum, lane) in depth.iter_mut().zip(slow.waiting.depth()) {
                *sum += lane;
            }
        }
        depth
    }

    /// Drops what waits, and forgets what hung.
    pub(super) fn clear(&mut self) {
        self.namespaces.clear();
        self.line.clear();
        self.next_end = None;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.line.is_empty() && self.running.is_empty()
    }
}
