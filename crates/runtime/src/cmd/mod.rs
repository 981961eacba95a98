//! Entry points: the command line, the order of start and stop, `convert`, `doctor`, `migrate`, `plan` and the generated manifests.

pub(crate) mod access;
pub(crate) mod cli;
mod convert;
pub(crate) mod doctor;
mod migrate;
mod names;
mod plan;
pub(crate) mod run;
