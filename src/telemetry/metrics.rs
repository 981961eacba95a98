//! The instruments, by the names that dashboards know.

use std::time::Duration;

use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
};

/// All instruments; clones share them. By default they count for nobody.
#[derive(Clone, Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// The instruments, and the provider that they belong to: what is scraped and what goes out by `otlp` is
    /// the same.
    #[must_use]
    pub fn new(
        resource: Resource,
        otlp: Option<PeriodicReader<MetricExporter>>,
    ) -> (Self, SdkMeterProvider) {
        let mut provider = SdkMeterProvider::builder().with_resource(resource);
        if let Some(otlp) = otlp {
            provider = provider.with_reader(otlp);
        }
        (Self::default(), provider.build())
    }

    /// What is counted, as a content type and a body: OpenMetrics where `accept` asks for it, Prometheus'
    /// text format otherwise.
    #[must_use]
    pub fn scrape(&self, accept: Option<&str>) -> (&'static str, String) {
        let open = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if open {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (kind, "# EOF\n".to_owned())
        } else {
            ("text/plain; version=0.0.4; charset=utf-8", String::new())
        }
    }

    /// A request to the API server at `host` was answered with `code`, or came to nothing (`None`), after
    /// `elapsed`.
    pub fn request(&self, method: &http::Method, host: &str, code: Option<u16>, elapsed: Duration) {
        let _ = (self, method, host, code, elapsed);
    }
}
