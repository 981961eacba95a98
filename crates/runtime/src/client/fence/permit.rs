//! What a write that has begun may still do.

use std::time::Duration;

use tokio::sync::watch;

use crate::{
    client::fence::{in_flight::Write, term::Term},
    config::settings::MUTATION_TIMEOUT,
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
    /// Whether the write can still be sent: the term is live, and the API server may carry the write out for `limit` before
    /// the Lease can be taken by another replica. A renewal since the write began counts.
    pub fn is_valid(&self) -> bool {
        room(&self.term).is_some_and(|room| room >= self.limit)
    }
}

/// How long the API server may take for a write that is sent now, if the term is live.
pub(super) fn room(term: &watch::Receiver<Option<Term>>) -> Option<Duration> {
    term.borrow().as_ref().and_then(Term::room)
}

/// How long the API server is given for a write that begins now.
///
/// The rest of the room is for the time that the write waits for its connection. It is an eighth, or less where a webhook that
/// fails open after its default time would not leave the API server enough to carry the write out.
pub(crate) fn limit(room: Duration) -> Duration {
    let for_a_webhook = room.saturating_sub(SHORTEST_WAIT).min(DEFAULT_WEBHOOK);
    let limit = (room / 8 * 7).max(for_a_webhook);
    // The API server takes `timeout=0ms` for "none".
    limit.clamp(Duration::from_millis(1), MUTATION_TIMEOUT)
}

/// A webhook's 10 s (its default `timeoutSeconds`), and what the API server does before and after.
pub(super) const DEFAULT_WEBHOOK: Duration = Duration::from_millis(10_500);

/// The least that is left for a write to wait for its connection, where the room is long.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);
