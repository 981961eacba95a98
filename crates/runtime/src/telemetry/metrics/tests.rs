#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use opentelemetry::{
    Context, SpanId, TraceId,
    trace::{SpanContext, TraceContextExt as _, TraceFlags, TraceState},
};

use super::*;
use crate::config::app::tests::APP;

const OPEN: Option<&str> = Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");

fn metrics() -> (Metrics, SdkMeterProvider) {
    Metrics::new(&APP, Resource::builder_empty().build(), None)
}

/// The lines that contain `name`.
fn about(metrics: &Metrics, accept: Option<&str>, name: &str) -> Vec<String> {
    let (_, text) = metrics.scrape(accept);
    text.lines()
        .filter(|line| line.contains(name))
        .map(str::to_owned)
        .collect()
}

/// `values` returns the same values as a scrape.
#[cfg(feature = "testing")]
#[test]
fn values_are_read_without_a_scrape() {
    let (metrics, _provider) = metrics();
    metrics.observe(&table::CACHE_OBJECTS, |see| {
        see(3., &[KeyValue::new("kind", "Relay")]);
        see(4., &[KeyValue::new("kind", "Bar")]);
    });
    let of = |kind: &str, value| (kind.to_owned(), value);
    let values = metrics.values("_cache_objects");
    assert_eq!(values, [of("Relay", 3.), of("Bar", 4.)]);
    for (kind, value) in values {
        let line = format!("_cache_objects{{kind=\"{kind}\"}} {value}");
        assert_eq!(about(&metrics, None, &line).len(), 1, "{line}");
    }
}

/// Every series exists from the start, with the value 0.
#[test]
fn every_series_starts_at_0() {
    let (metrics, _provider) = metrics();
    let result = [KeyValue::new("result", "success")];
    let succeeded = metrics.counter(&table::RECONCILES, &result);
    let series = "controller_runtime_reconcile_total{result=\"success\"}";
    assert_eq!(about(&metrics, None, series), [format!("{series} 0")]);
    succeeded.add(2);
    assert_eq!(about(&metrics, None, series), [format!("{series} 2")]);

    let timer = metrics.timer(&table::LEASE_RENEW, &[]);
    let lines = about(&metrics, None, &table::LEASE_RENEW.name(&APP));
    assert_eq!(lines.len(), 2 + BOUNDS.len() + 1 + 2);
    assert!(lines[2..].iter().all(|line| line.ends_with(" 0")));
    timer.record(Duration::from_millis(1500));
    let lines = about(&metrics, None, &table::LEASE_RENEW.name(&APP));
    let name = table::LEASE_RENEW.name(&APP);
    for line in [
        r#"_bucket{le="1.0"} 0"#,
        r#"_bucket{le="2.5"} 1"#,
        r#"_bucket{le="+Inf"} 1"#,
        "_sum 1.5",
        "_count 1",
    ] {
        assert!(
            lines.contains(&format!("{name}{line}")),
            "{line} in {lines:#?}"
        );
    }
}

/// A value in a sampled span becomes an exemplar with the trace ID, if the format supports exemplars.
#[test]
fn a_traced_value_is_an_exemplar() {
    let (metrics, _provider) = metrics();
    let timer = metrics.timer(&table::RECONCILE_TIME, &[]);
    let record = |trace: u128, flags, milliseconds| {
        let span = SpanContext::new(
            TraceId::from(trace),
            SpanId::from(0x51),
            flags,
            false,
            TraceState::NONE,
        );
        let _current = Context::new().with_remote_span_context(span).attach();
        timer.record(Duration::from_millis(milliseconds));
    };
    record(0xa, TraceFlags::SAMPLED, 20);
    record(0xb, TraceFlags::SAMPLED, 21);
    record(0xc, TraceFlags::NOT_SAMPLED, 22);
    record(0xd, TraceFlags::SAMPLED, 2_000_000);
    // A second request for the same series returns the same timer.
    let _again = metrics.timer(&table::RECONCILE_TIME, &[]);
    let exemplars = |accept| -> Vec<String> {
        about(&metrics, accept, "trace_id")
            .iter()
            .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
            .collect()
    };
    assert_eq!(exemplars(None), [""; 0], "Prometheus' text has none");
    let name = table::RECONCILE_TIME.name(&APP);
    let exemplar = |trace| format!("# {{trace_id=\"{trace:032x}\",span_id=\"{:016x}\"}}", 0x51);
    assert_eq!(
        exemplars(OPEN),
        [
            format!("{name}_bucket{{le=\"0.025\"}} 3 {} 0.021", exemplar(0xb)),
            format!("{name}_bucket{{le=\"+Inf\"}} 4 {} 2000", exemplar(0xd)),
        ]
    );
}

/// The formats differ in the name of a counter's family, the last line and the content type.
#[test]
fn the_formats_differ_in_names_and_content_type() {
    let (metrics, _provider) = metrics();
    let _refusals = metrics.counter(&table::FENCE_REFUSALS, &[]);
    let (kind, text) = metrics.scrape(OPEN);
    assert!(kind.starts_with("application/openmetrics-text"));
    assert!(text.contains("# TYPE some_operator_fence_refusals counter\n"));
    assert!(text.contains("\nsome_operator_fence_refusals_total 0\n"));
    assert!(text.ends_with("\n# EOF\n"));
    for accept in [None, Some("*/*"), Some("text/plain")] {
        let (kind, text) = metrics.scrape(accept);
        assert!(kind.starts_with("text/plain; version=0.0.4"));
        assert!(text.contains("# TYPE some_operator_fence_refusals_total counter\n"));
        assert!(!text.contains("EOF"));
    }
}

/// The SDK's own metrics get valid Prometheus names. The value of a label can be any text.
#[test]
fn names_and_labels_are_legal() {
    let (metrics, _provider) = metrics();
    let meter = &metrics.0.meter;
    let label = [KeyValue::new("error.type", "a\"b\\c\nd")];
    let processed = meter.u64_counter("otel.sdk.processor.span.processed");
    processed.with_unit("{span}").build().add(1, &label);
    meter
        .f64_gauge("a.b")
        .with_unit("s")
        .build()
        .record(0.5, &[]);
    let lines = |name| about(&metrics, None, name).pop();
    assert_eq!(
        lines("otel_sdk").as_deref(),
        Some(r#"otel_sdk_processor_span_processed_total{error_type="a\"b\\c\nd"} 1"#)
    );
    assert_eq!(lines("a_b").as_deref(), Some("a_b_seconds 0.5"));
}

/// Requests are counted as in client-go. Two clients of one host share a series.
#[test]
fn requests_are_counted() {
    let (metrics, _provider) = metrics();
    let (work, lease) = (
        requests::Requests::new(&metrics, "h:1"),
        requests::Requests::new(&metrics, "h:1"),
    );
    for requests in [work, lease] {
        requests.ended(&http::Method::GET, Some(404), Duration::from_millis(3));
        requests.ended(&http::Method::PATCH, None, Duration::from_secs(5));
    }
    let lines = about(&metrics, None, "rest_client");
    for line in [
        r#"rest_client_requests_total{code="404",host="h:1",method="GET"} 2"#,
        r#"rest_client_requests_total{code="200",host="h:1",method="GET"} 0"#,
        r#"rest_client_requests_total{code="<error>",host="h:1",method="PATCH"} 2"#,
        r#"rest_client_request_duration_seconds_count{host="h:1",verb="GET"} 2"#,
        r#"rest_client_request_duration_seconds_count{host="h:1",verb="POST"} 0"#,
    ] {
        assert!(lines.iter().any(|l| l == line), "{line} in {lines:#?}");
    }
}

/// The table has unique names that follow Prometheus' rules.
#[test]
fn the_table_keeps_the_rules() {
    let mut names = BTreeSet::new();
    for metric in table::SECTIONS.iter().flat_map(|(_, metrics)| *metrics) {
        assert!(
            names.insert(metric.name(&APP)),
            "{} twice",
            metric.name(&APP)
        );
        assert_eq!(
            metric.name(&APP).ends_with("_total"),
            metric.kind == Kind::Counter
        );
        assert_eq!(metric.name(&APP).contains("_seconds"), metric.unit == "s");
        assert!(metric.kind != Kind::Histogram || metric.unit == "s");
        assert!(metric.help.ends_with('.') && !metric.help.contains(['"', '\\', '\n']));
        assert!(metric.labels.is_sorted());
    }
}
