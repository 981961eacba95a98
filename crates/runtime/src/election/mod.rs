//! Acquires, renews and releases the Lease, and publishes the term.

mod alone;
mod attempt;
mod candidate;
mod cause;
pub(crate) mod error;
mod events;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod fencing_record;
pub(crate) mod identity;
pub mod lease_guard;
mod metrics;
mod observed_lease;
pub(crate) mod run;
pub(crate) mod standalone;
pub mod state_machine;
#[cfg(test)]
mod tests;
mod watch;

pub use self::{
    candidate::YIELD_DELAY,
    error::Error,
    identity::{ElectionTarget, Identity},
    lease_guard::SeenLease,
    run::{Election, run},
};
pub use crate::{
    client::fence::{self, eligibility::Eligibility, term::Term},
    config::clock::Clock,
};
