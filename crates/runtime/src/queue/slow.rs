//! Namespaces whose work hangs, apart from all others: no more than some of the workers are with them, so that the rest
//! are there for everybody else. What hangs is one namespace's as a rule: its webhook, its quota's, its mesh's.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::lane::{Lane, Lanes};

/// An attempt that takes longer hung: no healthy API server needs as long for a handful of requests.
pub(super) const HUNG: Duration = Duration::from_secs(1);

/// The slow namespaces: those with a key whose last attempt hung and failed. A new key there would hang as well, so
/// that the namespace is what is remembered; and one that has nothing to do and succeeds says nothing of the others.
pub(super) struct Slow<K> {
    /// The namespace of a key.
    namespace: fn(&K) -> &str,
    /// How many workers may be with slow namespaces.
    most: usize,
    namespaces: HashMap<Box<str>, Namespace<K>>,
    /// Those of them where keys wait, the one whose turn it is first: none holds up another.
    line: VecDeque<Box<str>>,
    /// What workers are with.
    running: HashSet<K>,
}

struct Namespace<K> {
    /// The keys that hung and failed; never empty.
    hung: HashSet<K>,
    waiting: Lanes<K>,
}

impl<K: Clone + Eq + Hash> Slow<K> {
    pub(super) fn new(workers: u32, namespace: fn(&K) -> &str) -> Self {
        Self {
            namespace,
            most: usize::try_from(workers / 2).unwrap_or(usize::MAX).max(1),
            namespaces: HashMap::new(),
            line: VecDeque::new(),
            running: HashSet::new(),
        }
    }

    /// Whether the key's namespace is slow.
    pub(super) fn has(&self, key: &K) -> bool {
        self.namespaces.contains_key((self.namespace)(key))
    }

    /// Notes that a key hung and failed. Returned is what is to be placed anew where its namespace was not slow before, out
    /// of `waiting`; what of `running` is of that namespace counts from now on.
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
            waiting: Lanes::default(),
        };
        self.namespaces.insert(name.into(), slow);
        let is_there = |other: &K| namespace(other) == name;
        self.running
            .extend(running.filter(|other| is_there(other)).cloned());
        waiting.extract(is_there)
    }

    /// Notes that a key did not hang, or is none any more. Returned is what is to be placed anew where no other one of its
    /// namespace hangs.
    pub(super) fn went_well(&mut self, key: &K) -> Vec<(Lane, K, Instant)> {
        let name = (self.namespace)(key);
        let Some(slow) = self.namespaces.get_mut(name) else {
            return Vec::new();
        };
        slow.hung.remove(key);
        if !slow.hung.is_empty() {
            return Vec::new();
        }
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
        self.running.len() < self.most && !self.line.is_empty()
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
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.line.is_empty() && self.running.is_empty()
    }
}
