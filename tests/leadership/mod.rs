//! Leader election, and the guarantee that only the leader writes.

mod election;
pub mod fencing;
mod replicas;
mod takeover;
