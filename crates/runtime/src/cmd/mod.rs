//! Entry points: the command line, the order of start and stop, `doctor`.

pub mod cli;
pub(crate) mod doctor;
pub mod run;
