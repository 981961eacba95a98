//! Exponential backoff of everything that is retried, on the crate [`backoff`].
//!
//! The crate's jitter and its time limit are off. Delays double exactly, as in client-go. A caller that needs jitter takes it
//! from [`Host`](super::environment::Host), so that a simulation can repeat it. A controller never stops retrying.

#[cfg(feature = "operator")]
use std::iter;
use std::time::Duration;

use backoff::{ExponentialBackoff, backoff::Backoff as _};

/// Delay that doubles with each attempt, up to a maximum.
#[derive(Clone, Debug)]
pub(crate) struct Backoff(ExponentialBackoff);

impl Backoff {
    /// Creates a backoff whose first delay is `first`.
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self(ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            max_interval: max,
            multiplier: 2.0,
            randomization_factor: 0.0,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        })
    }

    /// Returns the delay before the next attempt.
    pub(crate) fn delay(&self) -> Duration {
        self.0.current_interval
    }

    /// Returns the delay before the next attempt, and doubles the delay after it.
    pub(crate) fn advance(&mut self) -> Duration {
        let delay = self.delay();
        // Its result is a random value, up to a nanosecond off.
        self.0.next_backoff();
        delay
    }

    /// Returns to the first delay.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }
}

/// Delays of a [`Backoff`] by the number of failures, computed once: a million failures cost one look-up.
#[cfg(feature = "operator")]
pub(crate) struct Delays(Vec<Duration>);

#[cfg(feature = "operator")]
impl Delays {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        let mut backoff = Backoff::new(first, max);
        let mut longest = None;
        let growing = iter::repeat_with(|| backoff.advance().min(max));
        let growing = growing.map_while(|delay| {
            (longest < Some(delay)).then(|| {
                longest = Some(delay);
                delay
            })
        });
        Self(growing.collect())
    }

    /// Returns the delay after one more failure than `failures`.
    pub(crate) fn after(&self, failures: u32) -> Duration {
        let index = usize::try_from(failures).unwrap_or(usize::MAX);
        self.0
            .get(index)
            .or(self.0.last())
            .copied()
            .unwrap_or_default()
    }
}
