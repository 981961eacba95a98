//! Local copies of the watched objects, and whether a namespace is ready.

pub(crate) mod readiness;
pub mod store;
pub(crate) mod watch;
