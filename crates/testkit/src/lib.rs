//! Servers that tests of an operator use: real and simulated API servers, a collector, Prometheus, webhooks and a proxy. Nothing
//! here depends on the operator or its runtime.
#![allow(
    missing_docs,
    clippy::must_use_candidate,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::return_self_not_must_use,
    reason = "only the workspace uses it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and shows a log then"
)]

// A unit test includes the example, which names the crate.
#[cfg(test)]
extern crate self as operator_testkit;

pub mod api_server;
pub mod cluster;
pub mod collector;
pub mod differential;
mod http;
mod plane;
pub mod prometheus;
pub mod proxy;
pub mod webhooks;

pub use api_server::Release;
pub use http::Served;
pub use plane::{ADMIN, Change, ControlPlane, Rejected, Scripted};
