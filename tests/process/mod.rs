//! The program: command line, start, stop, logs, probes, metrics and traces.

mod cli;
mod conversion;
mod descriptors;
mod doctor;
mod health;
mod kubeconfig;
mod lifecycle;
mod metrics;
mod migrate;
mod plan;
mod state;
mod stderr;
mod telemetry;
