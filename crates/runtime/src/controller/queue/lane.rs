//! The lanes of the queue, and what it looks like at one moment.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Why a key is in the queue, and so how urgent it is. Less is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The object or what it owns changed: someone may be waiting.
    Event,
    /// It failed before.
    Retry,
    /// It can wait: a resync, a new leader's initial sync, a status that is pending until the Deployments are made.
    Background,
}

impl Lane {
    /// All of them, the most urgent first; the order of [`Stats::depth`].
    pub const ALL: [Self; 3] = [Self::Event, Self::Retry, Self::Background];

    /// The lane whose turn it is, and where to go on instead if nothing waits there; `turn` counts
    /// keys handed out.
    pub(super) fn by_turn(turn: u64) -> [Self; 3] {
        match turn % 8 {
            3 => [Self::Retry, Self::Event, Self::Background],
            7 => [Self::Background, Self::Event, Self::Retry],
            even if even % 2 == 0 => [Self::Event, Self::Background, Self::Retry],
            _ => Self::ALL,
        }
    }
}

/// Keys that wait, by lane and ticket, and since when; handed out as [`Lane::by_turn`] says.
pub(super) struct Lanes<K> {
    lanes: [BTreeMap<u64, (K, Instant)>; 3],
    /// How many keys have been handed out.
    turn: u64,
}

impl<K> Default for Lanes<K> {
    fn default() -> Self {
        Self {
            lanes: Default::default(),
            turn: 0,
        }
    }
}

impl<K> Lanes<K> {
    pub(super) fn insert(&mut self, lane: Lane, ticket: u64, key: K, since: Instant) {
        self.lanes[lane as usize].insert(ticket, (key, since));
    }

    /// Takes out a key; says since when it waited.
    pub(super) fn remove(&mut self, lane: Lane, ticket: u64) -> Option<Instant> {
        let (_, since) = self.lanes[lane as usize].remove(&ticket)?;
        Some(since)
    }

    /// The next key.
    pub(super) fn pop(&mut self) -> Option<(Lane, K, Instant)> {
        let next = Lane::by_turn(self.turn).into_iter().find_map(|lane| {
            let (_, (key, since)) = self.lanes[lane as usize].pop_first()?;
            Some((lane, key, since))
        })?;
        self.turn += 1;
        Some(next)
    }

    /// Takes out all keys of which `is_one` is true, in their order in each lane.
    pub(super) fn extract(&mut self, is_one: impl Fn(&K) -> bool) -> Vec<(Lane, K, Instant)> {
        let mut out = Vec::new();
        for lane in Lane::ALL {
            let keys = &mut self.lanes[lane as usize];
            let extracted = keys.extract_if(.., |_, (key, _)| is_one(key));
            out.extend(extracted.map(|(_, (key, since))| (lane, key, since)));
        }
        out
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_busy(Lane::Background)
    }

    /// Whether a key waits in `lane`, or in one more urgent.
    pub(super) fn is_busy(&self, lane: Lane) -> bool {
        let mut lanes = self.lanes.iter().take(lane as usize + 1);
        lanes.any(|lane| !lane.is_empty())
    }

    /// How many keys wait, by lane.
    pub(super) fn depth(&self) -> [usize; 3] {
        self.lanes.each_ref().map(BTreeMap::len)
    }
}

/// What the queue looks like at one moment, for metrics. Costs as much as there are keys being
/// worked on, and slow namespaces.
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
    /// How long the work in progress has gone on since it last [got on](super::Queue::gets_on), at the longest.
    pub longest_standstill: Duration,
    /// The sum of how long each work in progress has been going on.
    pub unfinished: Duration,
    /// Keys that came to wait for a worker since the queue was made; adds that collapsed are not
    /// counted.
    pub adds: u64,
    /// Retries asked for since the queue was made.
    pub retries: u64,
}
