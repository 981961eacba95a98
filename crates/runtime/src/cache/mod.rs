//! Local copies of the watched objects, and the readiness of each namespace.

pub(crate) mod contents;
pub(crate) mod index;
pub(crate) mod live;
mod outage;
pub(crate) mod presence;
pub(crate) mod readiness;
pub(crate) mod store;
pub(crate) mod target;
pub(crate) mod watch;
