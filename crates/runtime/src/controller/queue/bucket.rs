//! Retry time of a failed key: the later of its own backoff and the token of the bucket that all retries share. Computes times
//! and never waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::settings::Backoff;

/// Longest delay: never, for practical purposes, and safe to add to an `Instant`.
const NEVER: Duration = Duration::from_hours(30 * 365 * 24);

/// Returns `at + delay` for any delay.
pub(super) fn later(at: Instant, delay: Duration) -> Instant {
    at.checked_add(delay.min(NEVER)).unwrap_or(at)
}

/// Token bucket with reservations in advance: an empty bucket lends a token and returns the time when it is due. client-go's
/// `BucketRateLimiter` does the same with `Reserve`.
pub(super) struct Bucket {
    /// Time when the bucket is full again without further reservations. A time in the past means full.
    full_at: Instant,
    /// Time to earn one token.
    interval: Duration,
    /// Time from empty to full.
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

    /// Reserves a token. Returns the time when it is due: `now`, or later if it is borrowed.
    pub(super) fn reserve(&mut self, now: Instant) -> Instant {
        self.full_at = later(self.full_at.max(now), self.interval);
        let wait = self.full_at.duration_since(now).saturating_sub(self.span);
        later(now, wait)
    }

    /// Gives a token back if it is not due yet. So the debt is at most one token for each key that waits for its retry.
    /// client-go gives none back: an object that fails and keeps changing delays all retries there more and more.
    pub(super) fn give_back(&mut self, slot: Instant, now: Instant) {
        if slot > now {
            self.full_at -= self.interval;
        }
    }
}
