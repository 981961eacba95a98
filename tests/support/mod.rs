//! Support code of the tests, and the tests of this code.

mod checker;
pub mod controller;
mod differential;
pub mod fencing;
pub mod fleet;
pub mod foos;
mod harness;
pub mod installations;
mod observers;
