//! Metrics of the election.

use opentelemetry::{
    KeyValue,
    metrics::{BoundCounter, BoundGauge},
};

use crate::{
    config::environment::Host,
    telemetry::metrics::{Metrics, table, timer::Timer},
};

/// Metrics of the election.
pub(super) struct Counts {
    pub leading: BoundGauge<u64>,
    pub transitions: BoundCounter<u64>,
    pub term_start: BoundGauge<u64>,
    rejecting: BoundGauge<u64>,
    pub record_missing: BoundGauge<u64>,
    pub renew: Timer,
}

impl Counts {
    pub(super) fn new(metrics: &Metrics, lease: &str, installation: &str) -> Self {
        let labels = [
            KeyValue::new("installation", installation.to_owned()),
            KeyValue::new("name", lease.to_owned()),
        ];
        let record_missing = metrics.gauge(&table::FENCING_RECORD_MISSING, &[]);
        record_missing.record(0);
        Self {
            leading: metrics.gauge(&table::LEADING, &labels),
            transitions: metrics.counter(&table::LEADER_TRANSITIONS, &[]),
            term_start: metrics.gauge(&table::TERM_START, &[]),
            rejecting: metrics.gauge(&table::FENCING_REJECTS_LEADER, &[]),
            record_missing,
            renew: metrics.timer(&table::LEASE_RENEW, &[]),
        }
    }

    /// Records the start of a term.
    pub(super) fn began(&self, host: &Host) {
        self.transitions.add(1);
        // The first writes of the term show whether the fencing policy rejects this leader.
        self.rejecting.record(0);
        let since_1970 = host.now().as_second();
        self.term_start
            .record(u64::try_from(since_1970).unwrap_or_default());
    }
}
