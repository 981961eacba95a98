//! The clock of the election's deadlines.

use std::{sync::Arc, time::Duration};

/// Monotonic clock: the time since a fixed instant.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Returns a clock of the time since boot, including suspended time. It is `CLOCK_BOOTTIME` on Linux and `CLOCK_MONOTONIC`
    /// elsewhere, which includes suspended time on macOS.
    #[must_use]
    pub fn boottime() -> Self {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        Self::from_fn(move || {
            let now = rustix::time::clock_gettime(id);
            Duration::try_from(now).unwrap_or_default()
        })
    }

    /// Returns a clock for tests. `now` returns the time since a fixed instant and never goes back.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}
