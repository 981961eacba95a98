//! The crate.

pub mod controller;
