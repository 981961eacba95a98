//! What a write that has begun may still do.

use std::time::Duration;

use tokio::sync::watch;

use crate::{
    config::grace,
    election::{term::Term, writes::Write},
};

/// A write that was not sent, or that the API server refused, because this replica does not lead, or no longer did when
/// the write's turn came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused to write: this replica does not lead")]
pub struct Refused;

/// The permit of a write, as it was when the write began.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    pub term: watch::Receiver<Option<Term>>,
    /// How long the API server is given, from when it gets it.
    pub limit: Duration,
    pub write: Option<Write>,
}

impl Permit {
    /// Whether the write can still be sent. The API server may then carry it out for `limit`, so that has to end with
    /// the term. A [`grace`] is given to that, since each write waits a little on its way to here; the configuration has the
    /// Lease last longer than that and the way to the API server.
    pub fn is_valid(&self) -> bool {
        let left = left(&self.term);
        left.is_some_and(|left| left.saturating_add(grace(self.limit)) >= self.limit)
    }
}

/// What is left of the term, if it is live.
pub(super) fn left(term: &watch::Receiver<Option<Term>>) -> Option<Duration> {
    let left = term.borrow().as_ref().and_then(Term::remaining);
    // The API server takes `timeout=0ms` for "none".
    left.filter(|left| *left >= Duration::from_millis(1))
}
