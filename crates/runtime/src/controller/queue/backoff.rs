//! When a failed key may be tried again: the later of what its own failures ask for and what the
//! bucket over all retries allows. Nothing here waits; it computes times.

use std::{iter, time::Duration};

use backoff::{ExponentialBackoff, backoff::Backoff as _};
use tokio::time::Instant;

use crate::config::settings::Backoff;

/// A time so far off that it is never, yet safe to reckon with.
const NEVER: Duration = Duration::from_hours(30 * 365 * 24);

/// `at + delay`, for any delay.
pub(super) fn later(at: Instant, delay: Duration) -> Instant {
    at.checked_add(delay.min(NEVER)).unwrap_or(at)
}

/// The per-object delays, worked out once, so that a key which failed a million times costs a
/// look-up like any other.
pub(super) struct Delays(Vec<Duration>);

impl Delays {
    pub(super) fn new(config: &Backoff) -> Self {
        let mut policy = ExponentialBackoff {
            current_interval: config.initial,
            initial_interval: config.initial,
            max_interval: config.max,
            multiplier: 2.0,
            // Exactly the doubling that users know from client-go; the bucket is what spreads a
            // storm.
            randomization_factor: 0.0,
            // The crate's default gives up after 15 minutes; a controller never does.
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        let mut longest = None;
        let growing = iter::repeat_with(|| {
            // What the crate returns is drawn, if only by a nanosecond.
            let delay = policy.current_interval;
            policy.next_backoff();
            delay
        });
        let growing = growing.map_while(|delay| {
            let delay = delay.min(config.max);
            (longest < Some(delay)).then(|| {
                longest = Some(delay);
                delay
            })
        });
        Self(growing.collect())
    }

    /// The delay of an object that had failed `failures` times before the failure at hand.
    pub(super) fn after(&self, failures: u32) -> Duration {
        let index = usize::try_from(failures).unwrap_or(usize::MAX);
        self.0
            .get(index)
            .or(self.0.last())
            .copied()
            .unwrap_or_default()
    }
}

/// A token bucket that lends: who comes when it is empty learns when his token will be there
/// (client-go's `BucketRateLimiter`, which calls `Reserve`). A single time says all there is to
/// know about it.
pub(super) struct Bucket {
    /// When it will be full again if nobody takes from it; in the past, it is full.
    full_at: Instant,
    /// The time that one token takes to come.
    interval: Duration,
    /// The time from empty to full.
    span: Duration,
}

impl Bucket {
    pub(super) fn new(config: &Backoff, now: Instant) -> Self {
        let interval = Duration::try_from_secs_f64(config.qps.recip()).unwrap_or(NEVER);
        Self {
            full_at: now,
            interval,
            span: interval.saturating_mul(config.burst),
        }
    }

    /// Takes a token and says when it is there: `now`, or later if it had to be borrowed.
    pub(super) fn reserve(&mut self, now: Instant) -> Instant {
        self.full_at = later(self.full_at.max(now), self.interval);
        let wait = self.full_at.duration_since(now).saturating_sub(self.span);
        later(now, wait)
    }

    /// Gives back a token reserved for the time `slot` if it had to be borrowed and isn't there
    /// yet. So the debt is at most one token for each key that waits for its retry. (client-go gives
    /// none back: an object that fails and keeps changing delays everyone's retries ever more.)
    pub(super) fn give_back(&mut self, slot: Instant, now: Instant) {
        if slot > now {
            self.full_at -= self.interval;
        }
    }
}
