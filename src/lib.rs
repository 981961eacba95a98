//! The crate.
pub mod api;
