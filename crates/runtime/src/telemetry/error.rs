//! Why there is no telemetry.

use std::io;

use opentelemetry_otlp::ExporterBuildError;

use crate::api::failure::with_causes;

/// Telemetry cannot be set up as it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An `OTEL_*` variable that there is no doing without is not what it must be; the text names it.
    #[error("{0}")]
    Variable(String),
    /// The log cannot be written.
    #[error("cannot start the thread that writes standard error: {0}")]
    Stderr(io::Error),
    /// No connection can be made of what is configured.
    #[error("{signal} cannot be exported: {}", with_causes(.error))]
    Connection {
        /// Which signal.
        signal: String,
        /// What is wrong.
        error: tonic::transport::Error,
    },
    /// The SDK does not like what it finds in the environment.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}
