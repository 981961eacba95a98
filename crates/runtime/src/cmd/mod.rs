//! Entry points: the command line, the order of start and stop, `doctor` and `migrate`.

pub mod cli;
pub(crate) mod doctor;
mod migrate;
pub mod run;
