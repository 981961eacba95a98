//! Which replica leads, and that no other writes.

mod election;
pub mod fencing;
mod replicas;
mod takeover;
