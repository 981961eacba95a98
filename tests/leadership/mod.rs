//! Leader election, and the guarantee that only the leader writes.

mod election;
mod fast_failover;
mod fencing;
mod replicas;
mod takeover;
