//! Local copies of the watched objects, and the readiness of each namespace.

mod index;
mod outage;
pub(crate) mod readiness;
pub mod store;
pub(crate) mod watch;
