//! Lanes of the queue, its statistics, and the state of one key.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Why a key is in the queue, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    /// The object or a related one changed: a user may be waiting.
    Event,
    /// Retry after a failure.
    Retry,
    /// Work that can wait: a resync, the initial sync of a new leader, or a pending status.
    Background,
}

impl Lane {
    /// All lanes, the most urgent first; the order of [`Stats::depth`].
    pub(crate) const ALL: [Self; 3] = [Self::Event, Self::Retry, Self::Background];

    /// Returns the name for `/debug/state`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Retry => "retry",
            Self::Background => "background",
        }
    }

    /// Returns the lanes in search order. `turn` is the number of keys handed out before.
    pub(super) fn by_turn(turn: u64) -> [Self; 3] {
        match turn % 8 {
            3 => [Self::Retry, Self::Event, Self::Background],
            7 => [Self::Background, Self::Event, Self::Retry],
            even if even % 2 == 0 => [Self::Event, Self::Background, Self::Retry],
            _ => Self::ALL,
        }
    }
}

/// Waiting keys with the start of their wait, by lane and ticket.
pub(super) struct Lanes<K> {
    lanes: [BTreeMap<u64, (K, Instant)>; 3],
    /// Number of keys handed out.
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

    /// Removes a key. Returns the start of its wait.
    pub(super) fn remove(&mut self, lane: Lane, ticket: u64) -> Option<Instant> {
        let (_, since) = self.lanes[lane as usize].remove(&ticket)?;
        Some(since)
    }

    /// Removes and returns the next key, in the order of [`Lane::by_turn`].
    pub(super) fn pop(&mut self) -> Option<(Lane, K, Instant)> {
        let next = Lane::by_turn(self.turn).into_iter().find_map(|lane| {
            let (_, (key, since)) = self.lanes[lane as usize].pop_first()?;
            Some((lane, key, since))
        })?;
        self.turn += 1;
        Some(next)
    }

    /// Removes and returns the keys that match `is_one`, by lane, in their order.
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

    /// Whether a key waits in `lane` or in a more urgent lane.
    pub(super) fn is_busy(&self, lane: Lane) -> bool {
        let mut lanes = self.lanes.iter().take(lane as usize + 1);
        lanes.any(|lane| !lane.is_empty())
    }

    /// Returns the number of waiting keys by lane.
    pub(super) fn depth(&self) -> [usize; 3] {
        self.lanes.each_ref().map(BTreeMap::len)
    }
}

/// Snapshot of the queue for metrics. Its cost is O(keys in progress + slow namespaces).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    /// Waiting keys by lane, in the order of [`Lane::ALL`].
    pub depth: [usize; 3],
    /// Delayed keys: retries and other delayed adds.
    pub delayed: usize,
    /// Keys with a worker.
    pub processing: usize,
    /// Keys with a failure or a quiet retry since their last success.
    pub failing: usize,
    /// Duration of the longest attempt in progress.
    pub longest_running: Duration,
    /// Longest time since an attempt in progress [made progress](super::Queue::heartbeat) or started.
    pub longest_standstill: Duration,
    /// Total duration of all attempts in progress.
    pub unfinished: Duration,
    /// Number of keys that started to wait for a worker. Adds that collapsed into an earlier one are not counted.
    pub adds: u64,
    /// Number of requested retries.
    pub retries: u64,
}

/// Place of one key in the queue, and the remaining times of its delays.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeyState {
    /// The lane in which the key waits, or will wait after its delay.
    pub lane: Option<Lane>,
    /// Time until a delayed key is queued.
    pub delay: Option<Duration>,
    /// Duration of the attempt in progress.
    pub in_work: Option<Duration>,
    /// Failures since the last success, and quiet retries since the last failure.
    pub attempts: u32,
    /// Whether the delay belongs to a retry.
    pub is_retry: bool,
    /// Rest of a `Retry-After`. No change queues the key earlier.
    pub least: Option<Duration>,
    /// Time until the [change limit](super#change-limit) permits the key, if it is delayed on [`Lane::Event`].
    pub change_limit: Option<Duration>,
    /// Whether the namespace of the key is slow.
    pub is_slow: bool,
    /// Whether a change that kept the spec is [deferred to the retry](super::Queue::defer_to_retry).
    pub has_deferred: bool,
}
