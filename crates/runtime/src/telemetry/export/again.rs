//! Exporters that resend a batch once if its connection broke before the response.
//!
//! The SDK retries the gRPC code "unavailable". For a reset connection tonic returns "unknown", which is not retried. A load
//! balancer that has forgotten an idle connection would cost the first batch after each pause. OTLP delivers at least once, so
//! a batch whose response was lost may be delivered twice.

use std::time::Duration;

use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    logs::{self, LogBatch},
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{self, SpanData},
};

use super::connection::Breaks;

/// An exporter, and the breaks of its connections.
#[derive(Debug)]
pub struct Again<E> {
    exporter: E,
    breaks: Breaks,
}

impl<E> Again<E> {
    pub fn new(exporter: E, breaks: Breaks) -> Self {
        Self { exporter, breaks }
    }

    /// Sends a batch with `first`. If that fails and a connection broke during it, sends the batch with `again`.
    async fn sent(
        &self,
        first: impl Future<Output = OTelSdkResult>,
        again: impl Future<Output = OTelSdkResult>,
    ) -> OTelSdkResult {
        let before = self.breaks.count();
        let sent = first.await;
        if sent.is_ok() || self.breaks.count() == before {
            return sent;
        }
        again.await
    }
}

impl trace::SpanExporter for Again<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let first = self.exporter.export(batch.clone());
        self.sent(first, self.exporter.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl logs::LogExporter for Again<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let records: Vec<_> = batch.iter().collect();
        let first = self.exporter.export(LogBatch::new(&records));
        let again = self.exporter.export(LogBatch::new(&records));
        self.sent(first, again).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl PushMetricExporter for Again<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let first = self.exporter.export(metrics);
        self.sent(first, self.exporter.export(metrics)).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
