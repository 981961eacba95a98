//! Logs, traces, metrics, health checks and `/debug/state`.
//!
//! The log is written to standard error. With an OTLP endpoint, traces, logs and metrics are also exported by OTLP, over gRPC or
//! HTTP. The `OTEL_*` variables configure the rest of the export. A collector that is slow or down never blocks the work: data
//! waits in bounded queues, and overflow is dropped and counted.

#[cfg(feature = "operator")]
mod error;
pub(crate) mod events;
#[cfg(feature = "operator")]
pub(crate) mod export;
pub mod health;
#[cfg(feature = "operator")]
pub(crate) mod log;
pub(crate) mod log_once;
pub mod metrics;
pub(crate) mod object_state;
#[cfg(feature = "operator")]
pub mod server;
#[cfg(feature = "operator")]
mod start;
pub(crate) mod state;
pub mod trace;

pub use self::metrics::Metrics;
#[cfg(feature = "operator")]
pub(crate) use self::start::{log_only, ways};
#[cfg(feature = "operator")]
pub use self::{error::Error, log::LogLevel, start::Telemetry};
