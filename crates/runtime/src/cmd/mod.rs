//! Entry points: the command line, the order of start and stop, `doctor`, `migrate`, `plan` and the generated manifests.

mod access;
pub mod cli;
pub(crate) mod doctor;
mod migrate;
mod plan;
pub mod run;
