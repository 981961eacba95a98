//! Errors of the telemetry setup.

use std::io;

use opentelemetry_otlp::ExporterBuildError;

use crate::api::failure::with_causes;

/// The configured telemetry cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An `OTEL_*` variable without a safe default has an invalid value; the text names the variable.
    #[error("{0}")]
    Variable(String),
    /// The log cannot be written.
    #[error("cannot start the thread that writes standard error: {0}")]
    Stderr(io::Error),
    /// The address of the collector is invalid.
    #[error("{signal} cannot be exported: {}", with_causes(.error))]
    Connection {
        /// The signal: `traces`, `logs` or `metrics`.
        signal: String,
        /// The cause.
        error: http::uri::InvalidUri,
    },
    /// The SDK rejects a value in the environment.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}
