//! Heartbeat of a task: the source of its liveness check.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Heartbeat of a task. Dropping it marks the task as dead.
#[derive(Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Sign>>);

/// The last announcement of a task.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "operator"),
    allow(dead_code, reason = "the liveness checks read it")
)]
pub(super) struct Sign {
    pub doing: &'static str,
    pub since: Instant,
    /// Time limit of the step; `None`: unlimited.
    pub limit: Option<Duration>,
}

impl Default for Sign {
    fn default() -> Self {
        Self {
            doing: "",
            since: Instant::now(),
            limit: None,
        }
    }
}

impl Heartbeat {
    /// Returns the last announcement, for a liveness check.
    #[cfg(feature = "operator")]
    pub(super) fn sign(&self) -> Arc<Mutex<Sign>> {
        Arc::clone(&self.0)
    }

    /// Announces that the task is now `doing` this, and that its next announcement follows within `limit`. The check passes
    /// before the first announcement.
    pub fn beat(&self, doing: &'static str, limit: Duration) {
        *self.0.lock() = Sign {
            doing,
            since: Instant::now(),
            limit: Some(limit),
        };
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.beat("dead", Duration::ZERO);
    }
}
