//! Leadership without an election (`leader_election.enabled = false`), from start to end. The fencing record names the replica:
//! otherwise the fencing policy would reject its writes.

use std::{pin::pin, sync::Arc};

use kube::Client;
use tokio::{sync::watch, time};

use super::{
    fencing_record::{FencingRecord, FencingRecordWriter},
    identity::ElectionTarget,
    metrics::Counts,
};
use crate::{
    client::fence::{rejections::RejectionReports, term::Term},
    config::{environment::Host, settings::LeaderElection},
    telemetry::{fencing_record::FencingRecordState, metrics::Metrics},
};

/// Publishes a term without an end until `stop`. The first assertion of the record precedes it, for at most one call timeout.
/// Later assertions follow a rejection or a failure.
pub(super) async fn run(
    host: Host,
    settings: &LeaderElection,
    target: &ElectionTarget,
    client: &Client,
    term: &watch::Sender<Option<Term>>,
    metrics: &Metrics,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let app = metrics.app();
    let counts = Counts::new(metrics, &settings.lease_name, &target.installation);
    counts.leading.record(0);
    // Outside a pod, the namespace of the record is unknown.
    let mut record = target.namespace.as_deref().map(|namespace| {
        let record = FencingRecord::new(app, client, namespace, settings, &target.identity);
        FencingRecordWriter::new(host, record, settings.call_timeout(), settings.retry_period)
    });
    if let Some(record) = &mut record {
        record.acquired("", 0);
        tokio::select! {
            biased;
            () = &mut stop => return,
            _ = time::timeout(settings.call_timeout(), record.ended()) => {}
        }
    }
    let rejections = Arc::<RejectionReports>::default();
    let unlimited = Term::unlimited().rejections_to(Arc::clone(&rejections));
    term.send_replace(Some(unlimited));
    counts.leading.record(1);
    match &mut record {
        None => stop.await,
        Some(record) => {
            tokio::select! {
                biased;
                () = stop => {}
                never = keep(record, &rejections, settings) => never,
            }
        }
    }
    term.send_replace(None);
}

/// Asserts the record after a rejection or a failure, at most once per retry period.
async fn keep(
    record: &mut FencingRecordWriter,
    rejections: &RejectionReports,
    settings: &LeaderElection,
) -> ! {
    let mut period = time::interval(settings.retry_period);
    period.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = record.ended(), if record.is_under_way() => {}
            message = rejections.next() => record.rejected(&message),
            _ = period.tick(), if record.is() == FencingRecordState::Pending => record.assert_if_due(),
        }
    }
}
