//! Acquires, renews and releases the Lease, and publishes the term.

mod alone;
mod attempt;
pub(crate) mod candidate;
mod cause;
pub(crate) mod error;
mod events;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod fencing_record;
pub(crate) mod identity;
pub(crate) mod lease_guard;
mod metrics;
mod observed_lease;
pub(crate) mod run;
pub(crate) mod standalone;
pub(crate) mod state_machine;
#[cfg(test)]
mod tests;
mod watch;

pub use self::error::Error;
pub use crate::{
    client::fence::{FenceLayer, Refused, TimedOut, is_refused, term::Term},
    config::clock::Clock,
};
