//! Counters and log lines of dropped events.

use std::time::Duration;

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::event::WRITE_TIMEOUT;
use crate::{
    api::key::Key,
    telemetry::metrics::{Metrics, table},
};

/// Minimum interval between warnings about dropped events.
const LOG_INTERVAL: Duration = Duration::from_mins(10);

/// Counts dropped events by reason, and logs some of them.
pub(super) struct DroppedEvents {
    refused: BoundCounter<u64>,
    late: BoundCounter<u64>,
    full: BoundCounter<u64>,
    /// Time of the last warning.
    logged: Mutex<Option<Instant>>,
}

impl DroppedEvents {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter = |reason| {
            let labels = [KeyValue::new("reason", reason)];
            metrics.counter(&table::EVENTS_DROPPED, &labels)
        };
        Self {
            refused: counter("refused"),
            late: counter("late"),
            full: counter("full"),
            logged: Mutex::default(),
        }
    }

    /// Logs at debug level only: events of a terminating namespace are always rejected, and the user need not know.
    pub(super) fn refused(&self, key: &Key, refusal: &str) {
        self.refused.add(1);
        debug!(object = %key, "the API server rejected an event: {refusal}");
    }

    pub(super) fn late(&self, key: &Key, error: &str) {
        self.late.add(1);
        self.log(
            key,
            &format!("not written within {WRITE_TIMEOUT:?}: {error}"),
        );
    }

    pub(super) fn full(&self, key: &Key) {
        self.full.add(1);
        self.log(key, "too many events are waiting");
    }

    fn log(&self, key: &Key, why: &str) {
        let now = Instant::now();
        let mut logged = self.logged.lock();
        if logged.is_none_or(|logged| now - logged >= LOG_INTERVAL) {
            *logged = Some(now);
            warn!(object = %key, "event dropped: {why} (further drops are not logged for {LOG_INTERVAL:?})");
        } else {
            debug!(object = %key, "event dropped: {why}");
        }
    }
}
