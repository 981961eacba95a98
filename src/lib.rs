//! The crate.

pub mod election;
