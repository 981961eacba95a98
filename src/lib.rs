//! The crate.
