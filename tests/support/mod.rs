//! What the tests use, and tests of it.

mod checker;
pub mod controller;
mod differential;
pub mod fleet;
pub mod foos;
mod harness;
mod observers;
