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
pub(crate) mod fencing_record;
#[cfg(feature = "operator")]
pub(crate) mod health;
pub(crate) mod heartbeat;
#[cfg(feature = "operator")]
pub(crate) mod log;
#[cfg(feature = "operator")]
pub(crate) mod log_limiter;
pub(crate) mod log_once;
pub mod metrics;
#[cfg(feature = "operator")]
pub(crate) mod object_state;
#[cfg(feature = "operator")]
pub(crate) mod server;
#[cfg(feature = "operator")]
pub(crate) mod start;
#[cfg(feature = "operator")]
pub(crate) mod state;
pub mod trace;

#[cfg(feature = "operator")]
pub use self::server::Error as ServerError;
#[cfg(feature = "operator")]
pub(crate) use self::{
    error::Error,
    start::{Telemetry, log_only, ways},
};
