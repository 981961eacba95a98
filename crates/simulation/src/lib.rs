//! Simulation of the whole operator: the shipped replicas, each in its own runtime, against API servers in memory. The seed
//! determines everything: the same seed gives the same trace, byte for byte.
//!
//! [`invariants`] checks the audit logs of real API servers by the same rules.
#![allow(
    missing_docs,
    clippy::must_use_candidate,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "only the workspace uses it"
)]
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

pub mod actors;
pub mod cases;
pub mod databases;
pub mod draw;
pub mod found;
pub mod invariants;
pub mod judge;
pub mod mutants;
pub mod network;
pub mod one_fault;
pub mod plan;
pub mod program;
mod record;
pub mod replica;
pub mod responses;
pub mod scripts;
pub mod seeds;
pub mod shops;
pub mod shrink;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod users;
pub mod world;
