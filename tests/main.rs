//! Integration tests, linked into one program so that shared code is built once. The head of each file describes it, and README.md in
//! this folder has the commands. To run one file: `cargo test --test integration scenarios::`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

// Support code.
mod controller;
mod fleet;
mod foos;

// Tests.
mod admission;
mod campaign;
mod checker;
mod cli;
mod conditions;
mod descriptors;
mod differential;
mod doctor;
mod election;
mod environment;
mod faults;
mod fencing;
mod harness;
mod health;
mod hostile;
mod kubeconfig;
mod manifests;
mod mended;
mod metrics;
mod node;
mod observers;
mod process;
mod release;
mod replicas;
mod rollouts;
mod scenarios;
mod second_kind;
mod state;
mod stderr;
mod takeover;
mod telemetry;
