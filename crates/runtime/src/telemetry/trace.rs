//! Traces: the span of a reconcile, and its links to the traces that caused it.
//!
//! Spans are created with `tracing` macros for the export layer only. If that layer is missing, they are disabled and recording
//! has no effect. A span ends when it is dropped. A span with an `otel.status_description` is exported as failed.

#[cfg(feature = "operator")]
use std::borrow::Cow;
use std::collections::HashMap;

#[cfg(feature = "operator")]
use opentelemetry::KeyValue;
use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Span, info_span};
#[cfg(feature = "operator")]
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Returns the span that a `traceparent` annotation names; `None` if it is malformed.
#[must_use]
pub fn parse(traceparent: &str) -> Option<SpanContext> {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    let named = context.span().span_context().clone();
    named.is_valid().then_some(named)
}

/// Returns the `traceparent` annotation that names `trace`.
#[must_use]
pub(crate) fn annotation(trace: &SpanContext) -> String {
    let flags = trace.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", trace.trace_id(), trace.span_id())
}

/// Returns the current span, if it is exported.
#[must_use]
pub(crate) fn current() -> Option<SpanContext> {
    let current = Context::map_current(|context| context.span().span_context().clone());
    current.is_sampled().then_some(current)
}

/// Returns a span for work done later on behalf of the span `of`; a disabled span without `of`.
#[must_use]
#[cfg_attr(
    not(feature = "operator"),
    expect(unused_variables, reason = "without an export, there are no spans")
)]
pub(crate) fn within(of: Option<&SpanContext>, name: &str) -> Span {
    let Some(of) = of else { return Span::none() };
    let span = info_span!(parent: None, "later", otel.name = name);
    // Fails if the span has already started or is disabled.
    #[cfg(feature = "operator")]
    let _ = span.set_parent(Context::new().with_remote_span_context(of.clone()));
    span
}

/// Records a decision as an event of the current span.
#[cfg(feature = "operator")]
pub fn decided(decision: impl Into<Cow<'static, str>>) {
    let span = Span::current();
    if !span.is_none() {
        span.add_event("decided", vec![KeyValue::new("decision", decision.into())]);
    }
}

/// Links the current span to a span in another trace that caused it.
#[cfg(feature = "operator")]
pub(crate) fn because_of(other: &SpanContext) {
    let span = Span::current();
    if !span.is_none() {
        span.add_link(other.clone());
    }
}

/// Records on `span` that it failed. `kind` has few possible values; `error` is the full message.
pub(crate) fn failed(span: &Span, kind: &str, error: &dyn std::fmt::Display) {
    span.record("error.type", kind);
    span.record("otel.status_description", tracing::field::display(error));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Any client can write any value into an annotation.
    #[test]
    fn a_malformed_annotation_names_no_trace() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let named = parse(good).unwrap();
        assert_eq!(named.trace_id().to_string(), &good[3..35]);
        assert_eq!(named.span_id().to_string(), &good[36..52]);
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031\u{e9}c-b7ad6b7169203331-01",
            "\n",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
