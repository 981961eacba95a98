//! Entry points: the command line, the order of start and stop, and `doctor`.

pub mod cli;
pub(crate) mod doctor;
pub mod run;
