#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::config::app::tests::APP;

/// Repeated failures of three signals for one cause are one line with repetitions, and one line when all have recovered.
#[test]
fn an_outage_is_logged_at_increasing_intervals() {
    let mut outages = Outages::default();
    let start = Instant::now();
    let mut logged = Vec::new();
    for second in 0..100 {
        for signal in Signal::ALL {
            let now = start + Duration::from_secs(second);
            logged.extend(outages.failed(signal, "Unavailable: refused", now));
        }
    }
    let lasting = [0, 60].map(|seconds| Lasting(Duration::from_secs(seconds)));
    assert_eq!(logged, lasting);
    let end = start + Duration::from_secs(100);
    assert_eq!(outages.taken(Signal::Logs, end), None);
    assert_eq!(outages.taken(Signal::Traces, end), None);
    assert_eq!(
        outages.taken(Signal::Metrics, end),
        Some((end - start, 300))
    );
    assert_eq!(
        outages.taken(Signal::Metrics, end),
        None,
        "nothing was wrong"
    );
    assert!(
        outages
            .failed(Signal::Logs, "Unavailable: refused", end)
            .is_some(),
        "a new outage"
    );
}

/// Each further cause in an outage is logged once for all signals, up to a limit.
#[test]
fn each_new_cause_is_logged_once() {
    let mut outages = Outages::default();
    let now = Instant::now();
    let mut failed = |signal, cause: &str| outages.failed(signal, cause, now).is_some();
    assert!(failed(Signal::Traces, "Unavailable: refused"));
    assert!(failed(Signal::Metrics, "Unimplemented"));
    for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
        let logged = failed(signal, "Unauthenticated: no token");
        assert_eq!(logged, signal == Signal::Traces, "{signal}");
        assert!(!failed(signal, "Unavailable: refused"), "{signal}");
    }
    let logged = (0..1000).filter(|number| failed(Signal::Traces, &format!("request {number}")));
    assert!(logged.count() < CAUSES);
    assert!(outages.took_partly(Signal::Logs, "too old"));
    assert!(!outages.took_partly(Signal::Logs, "too old"));
    assert!(outages.took_partly(Signal::Logs, "too long"));
    assert!(outages.took_partly(Signal::Traces, "too old"));
}

/// A cause contains the status and the collector's message. Connection errors of gRPC are unchanged.
#[test]
fn the_collectors_own_words_are_in_the_cause() {
    const GRPC: &str = "Operation failed: TonicLogsClient export failed with gRPC code: ";
    const HTTP: &str = "Operation failed: HTTP export failed";
    for (reason, logged, said, expected) in [
        (
            HTTP,
            ": network error",
            "Connection refused",
            "HTTP export failed: network error: Connection refused",
        ),
        (
            HTTP,
            " with status code: 503",
            "busy",
            "HTTP export failed with status code: 503: busy",
        ),
        (
            GRPC,
            "Unauthenticated",
            "no such tenant",
            "Unauthenticated: no such tenant",
        ),
        (GRPC, "Unavailable", "", "Unavailable"),
        (
            GRPC,
            "Unavailable: transport error: refused",
            "transport error",
            "Unavailable: transport error: refused",
        ),
    ] {
        assert_eq!(cause(&format!("{reason}{logged}"), said), expected);
    }
}

/// Exports do not collect the metrics before the first drop, and rarely afterwards.
#[tokio::test]
async fn an_export_costs_no_scrape() {
    let metrics = Metrics::disconnected(&APP);
    let layer = export_events(metrics.clone(), Failures::default());
    let subscriber =
        tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), layer);
    let _default = tracing::subscriber::set_default(subscriber);
    let handled = async |event: fn()| {
        for _ in 0..200 {
            event();
            tokio::task::yield_now().await;
        }
    };
    handled(|| {
        tracing::debug!(name: "TonicLogsClient.ExportSucceeded", "");
        tracing::error!(name: "BatchSpanProcessor.ExportError", error = "e");
    })
    .await;
    assert_eq!(metrics.times_counted(), 0);
    handled(|| {
        tracing::warn!(name: "BatchSpanProcessor.SpanDroppingStarted", "");
        tracing::debug!(name: "TonicLogsClient.ExportSucceeded", "");
    })
    .await;
    assert!(
        (1..=5).contains(&metrics.times_counted()),
        "{}",
        metrics.times_counted()
    );
}

/// Lost batches and rejected records are counted.
#[tokio::test]
async fn lost_batches_and_rejected_records_are_counted() {
    // The provider must outlive the scrape.
    let resource = opentelemetry_sdk::Resource::builder_empty().build();
    let (metrics, _provider) = Metrics::new(&APP, resource, None);
    let subscriber = tracing_subscriber::layer::SubscriberExt::with(
        tracing_subscriber::registry(),
        export_events(metrics.clone(), Failures::default()),
    );
    tracing::subscriber::with_default(subscriber, || {
        // More than the channel can hold.
        for _ in 0..100 {
            tracing::warn!(
                name: "TonicTracesClient.PartialSuccess",
                rejected_spans = 3_i64,
                error_message = "too old"
            );
            tracing::warn!(name: "TonicLogsClient.PartialSuccess", rejected_log_records = 1_i64);
            tracing::warn!(name: "TonicMetricsClient.PartialSuccess", rejected_data_points = 2_i64);
            tracing::error!(name: "PeriodicReader.ExportError", error = "e");
        }
    });
    let (_, text) = metrics.scrape(None);
    for line in [
        r#"telemetry_rejected_total{signal="traces"} 300"#,
        r#"telemetry_rejected_total{signal="logs"} 100"#,
        r#"telemetry_rejected_total{signal="metrics"} 200"#,
        r#"telemetry_lost_total{signal="metrics"} 100"#,
        r#"telemetry_lost_total{signal="logs"} 0"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// The first drop and the end of a burst are logged each time. Drops with short pauses are one burst.
#[test]
fn each_burst_of_drops_is_logged_once() {
    let mut drops = Drops::default();
    let start = Instant::now();
    let mut at = |second, count| drops.counted(count, start + Duration::from_secs(second));
    assert_eq!(at(0, 0), None);
    assert_eq!(at(1, 1), Some(Drop::Begins));
    assert_eq!(at(2, 1), None);
    assert_eq!(at(60, 5), None, "the same");
    assert_eq!(at(119, 5), None);
    assert_eq!(at(120, 5), Some(Drop::Ended(5)));
    assert_eq!(at(600, 5), None);
    assert_eq!(at(601, 7), Some(Drop::Begins));
    assert_eq!(at(661, 7), Some(Drop::Ended(2)));
}

/// A collector that does not support metrics does not hide an outage of traces.
#[test]
fn another_cause_is_another_outage() {
    let mut outages = Outages::default();
    let now = Instant::now();
    assert!(
        outages
            .failed(Signal::Metrics, "Unimplemented", now)
            .is_some()
    );
    assert!(outages.failed(Signal::Traces, "Unavailable", now).is_some());
    assert!(outages.taken(Signal::Traces, now).is_some());
}

/// The message of an attempt that was repeated with success is not the cause of a later failure.
#[tokio::test]
async fn a_message_belongs_to_its_batch() {
    let (log, _guard) = crate::testing::fixtures::logged(tracing::Level::INFO);
    let layer = export_events(Metrics::disconnected(&APP), Failures::default());
    let subscriber =
        tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), layer);
    tracing::subscriber::with_default(subscriber, || {
        tracing::debug!(name: "HttpLogsClient.ExportFailed", error = "first");
        tracing::debug!(name: "HttpLogsClient.ExportSucceeded", "");
        tracing::error!(name: "BatchLogProcessor.ExportError", error = "too large");
        tracing::debug!(name: "HttpTracesClient.ExportFailed", error = "second");
        tracing::error!(name: "BatchSpanProcessor.ExportError", error = "busy");
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let log = String::from_utf8(log.lock().clone()).unwrap();
    assert!(log.contains("cannot export: too large: data"), "{log}");
    assert!(log.contains("cannot export: busy: second: data"), "{log}");
}
