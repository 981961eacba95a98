//! Slow namespaces: attempts there hang, usually because of a webhook or a service mesh in the namespace. They have workers of
//! their own and take none from the other namespaces.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

use super::lane::{Lane, Lanes};

/// Duration of an attempt that marks its namespace as slow. A healthy API server answers a handful of requests in less time.
pub(super) const HUNG: Duration = Duration::from_secs(1);

/// How long a namespace stays slow after a slow attempt that succeeded. The next attempt at that key may have nothing to do,
/// and so does not show that other keys have recovered.
pub(super) const REMEMBERED: Duration = Duration::from_mins(1);

/// Namespaces with an attempt that hangs, that hung and failed, or that hung and succeeded recently. They are remembered
/// because a new key there would hang as well.
pub(super) struct SlowNamespaces<K> {
    /// Returns the namespace of a key.
    namespace: fn(&K) -> &str,
    /// Number of workers for slow namespaces.
    workers: usize,
    namespaces: HashMap<Box<str>, Namespace<K>>,
    /// Slow namespaces with waiting keys, in round-robin order, the next one first.
    line: VecDeque<Box<str>>,
    /// Keys that occupy a worker for slow namespaces.
    running: HashSet<K>,
    /// No later than the earliest [`Namespace::until`].
    next_end: Option<Instant>,
}

struct Namespace<K> {
    /// Keys that hang, or hung and failed.
    mark_slow: HashSet<K>,
    /// The namespace is slow until this time even if `mark_slow` is empty.
    until: Option<Instant>,
    waiting: Lanes<K>,
}

impl<K: Clone + Eq + Hash> SlowNamespaces<K> {
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

    /// Whether the namespace of a key is slow.
    pub(super) fn has(&self, key: &K) -> bool {
        self.namespaces.contains_key((self.namespace)(key))
    }

    /// Records that a key hangs, or hung and failed.
    ///
    /// If this makes its namespace slow, the keys of the namespace in `running` occupy workers for slow namespaces from then
    /// on. Its keys in `waiting` are removed and returned. The caller must queue them again.
    pub(super) fn mark_slow<'a>(
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
            slow.mark_slow.insert(key.clone());
            return Vec::new();
        }
        let slow = Namespace {
            mark_slow: HashSet::from([key.clone()]),
            until: None,
            waiting: Lanes::default(),
        };
        self.namespaces.insert(name.into(), slow);
        let is_there = |other: &K| namespace(other) == name;
        self.running
            .extend(running.filter(|other| is_there(other)).cloned());
        waiting.extract(is_there)
    }

    /// Records that a key of a slow namespace hung and succeeded.
    pub(super) fn got_through(&mut self, key: &K, now: Instant) {
        if let Some(slow) = self.namespaces.get_mut((self.namespace)(key)) {
            slow.mark_slow.remove(key);
            let until = now + REMEMBERED;
            slow.until = Some(until);
            self.next_end.get_or_insert(until);
        }
    }

    /// Records that an attempt at a key did not hang, or that the key was deleted. If its namespace recovers, returns the
    /// waiting keys, which the caller must queue again.
    pub(super) fn mark_recovered(&mut self, key: &K) -> Vec<(Lane, K, Instant)> {
        let name = (self.namespace)(key);
        if let Some(slow) = self.namespaces.get_mut(name) {
            slow.mark_slow.remove(key);
        }
        self.end(name)
    }

    /// Returns the time when [`end_next`](Self::end_next) is due.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.next_end
    }

    /// Ends the slow state that has expired. Returns the waiting keys of the namespaces that recovered, which the caller must
    /// queue again.
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

    /// Removes the namespace if it is slow no longer. Returns its waiting keys.
    fn end(&mut self, name: &str) -> Vec<(Lane, K, Instant)> {
        let slow = self.namespaces.get_mut(name);
        let Some(slow) = slow.filter(|slow| slow.mark_slow.is_empty() && slow.until.is_none())
        else {
            return Vec::new();
        };
        let waiting = slow.waiting.extract(|_| true);
        self.namespaces.remove(name);
        self.line.retain(|other| **other != *name);
        waiting
    }

    /// Adds a key of a slow namespace to its lane.
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

    /// Removes a waiting key. Returns the start of its wait.
    pub(super) fn remove(&mut self, key: &K, lane: Lane, ticket: u64) -> Option<Instant> {
        let name = (self.namespace)(key);
        let slow = self.namespaces.get_mut(name)?;
        let since = slow.waiting.remove(lane, ticket)?;
        if slow.waiting.is_empty() {
            self.line.retain(|other| **other != *name);
        }
        Some(since)
    }

    /// Whether a key waits and a worker for slow namespaces is free.
    pub(super) fn is_ready(&self) -> bool {
        self.running.len() < self.workers && !self.line.is_empty()
    }

    /// Removes and returns the next key, if [`is_ready`](Self::is_ready).
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

    /// Frees the worker of a key.
    pub(super) fn release(&mut self, key: &K) {
        self.running.remove(key);
    }

    /// Returns the number of waiting keys by lane.
    pub(super) fn depth(&self) -> [usize; 3] {
        let mut depth = [0; 3];
        for slow in self.namespaces.values() {
            for (sum, lane) in depth.iter_mut().zip(slow.waiting.depth()) {
                *sum += lane;
            }
        }
        depth
    }

    /// Removes all waiting keys and all slow namespaces. Keys in progress stay.
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
