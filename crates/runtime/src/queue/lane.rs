//! The lanes of the queue, and what it looks like at one moment.

use std::time::Duration;

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

/// What the queue looks like at one moment, for metrics. Costs as much as there are keys being
/// worked on.
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
    /// Keys that came to wait for a worker since the queue was made; adds that collapsed are not
    /// counted.
    pub adds: u64,
    /// Retries asked for since the queue was made.
    pub retries: u64,
}
