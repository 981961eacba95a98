#!/usr/bin/env bash
# opentelemetry_sdk 0.33.1: `shutdown` of the three providers when the exporter refuses the last batch.
# Expected: an error from each, since each exports what is left and knows the result.
# Seen: the providers of traces and logs return Ok although their exporter returned an error for the last batch; the provider of
# metrics returns the error. A program that goes by the result of `shutdown` reports lost metrics, and never lost spans or records.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
opentelemetry = { version = "=0.33.1", default-features = false, features = ["trace", "logs", "metrics"] }
opentelemetry_sdk = { version = "=0.33.1", default-features = false, features = ["trace", "logs", "metrics"] }
[workspace]
TOML
cat >src/main.rs <<'RUST'
use std::time::Duration;

use opentelemetry::{
    logs::{LogRecord as _, Logger as _, LoggerProvider as _},
    metrics::MeterProvider as _,
    trace::{Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    error::{OTelSdkError, OTelSdkResult},
    logs::{LogBatch, LogExporter, SdkLoggerProvider},
    metrics::{SdkMeterProvider, Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};

#[derive(Debug)]
struct Refuses;

fn refused() -> OTelSdkResult {
    Err(OTelSdkError::InternalFailure("refused".into()))
}

impl SpanExporter for Refuses {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        println!("spans: exporter refuses");
        refused()
    }
}

impl LogExporter for Refuses {
    async fn export(&self, _: LogBatch<'_>) -> OTelSdkResult {
        println!("logs: exporter refuses");
        refused()
    }
}

impl PushMetricExporter for Refuses {
    async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
        println!("metrics: exporter refuses");
        refused()
    }
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

fn main() {
    let traces = SdkTracerProvider::builder().with_batch_exporter(Refuses).build();
    drop(traces.tracer("t").start("span"));
    println!("spans: shutdown is_ok={}", traces.shutdown().is_ok());

    let logs = SdkLoggerProvider::builder().with_batch_exporter(Refuses).build();
    let logger = logs.logger("l");
    let mut record = logger.create_log_record();
    record.set_body("line".into());
    logger.emit(record);
    println!("logs: shutdown is_ok={}", logs.shutdown().is_ok());

    let metrics = SdkMeterProvider::builder().with_periodic_exporter(Refuses).build();
    metrics.meter("m").u64_counter("c").build().add(1, &[]);
    println!("metrics: shutdown is_ok={}", metrics.shutdown().is_ok());
}
RUST
cargo run --quiet | tee seen
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
spans: exporter refuses
spans: shutdown is_ok=true
logs: exporter refuses
logs: shutdown is_ok=true
metrics: exporter refuses
metrics: shutdown is_ok=false
TEXT
echo 'as described: traces and logs lose their last batch without an error'
