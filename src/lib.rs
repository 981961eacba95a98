//! The crate.

pub mod config;
