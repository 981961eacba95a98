//! The clock of the election's deadlines.

use std::{sync::Arc, time::Duration};

/// A clock that never goes back, in time since some fixed instant.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Time since boot, suspended time included (`CLOCK_BOOTTIME`; elsewhere `CLOCK_MONOTONIC`, which counts it on macOS).
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

    /// A clock for tests: `now` returns the time since a fixed instant and never goes back.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}
