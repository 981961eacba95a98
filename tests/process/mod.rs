//! The program: command line, start and stop, and what it reports.

mod cli;
mod descriptors;
mod doctor;
mod health;
mod kubeconfig;
mod lifecycle;
mod metrics;
mod state;
mod stderr;
mod telemetry;
