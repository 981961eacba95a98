//! Permit of a write in flight.

use std::time::Duration;

use tokio::sync::watch;

use crate::{
    client::fence::{in_flight::Write, term::Term},
    config::settings::MUTATION_TIMEOUT,
};

/// The write was not sent, or the API server's fencing policy rejected it. This replica does not lead, or lost its leadership
/// before the write was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write rejected: this replica is not the leader")]
pub struct Refused;

/// Permit of a write, as granted at its admission.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    pub term: watch::Receiver<Option<Term>>,
    /// Time that the API server gets, from the arrival of the request.
    pub limit: Duration,
    pub write: Option<Write>,
}

impl Permit {
    /// Whether the write can still be sent: the term is live, and `limit` ends before another replica can take the Lease. A
    /// renewal after the admission counts.
    pub(super) fn is_valid(&self) -> bool {
        room(&self.term).is_some_and(|room| room >= self.limit)
    }
}

/// Returns how long the API server may take for a write that is sent now. `None` without a live term.
pub(super) fn room(term: &watch::Receiver<Option<Term>>) -> Option<Duration> {
    term.borrow().as_ref().and_then(Term::room)
}

/// Returns the time that the API server gets for a write that begins now.
///
/// `room` is divided: the API server gets this time, and the wait for a connection gets the rest. The rest is one eighth. It is
/// less if the API server would otherwise get less than [`DEFAULT_WEBHOOK`]. In that time, a webhook that hangs and fails open
/// lets the write succeed.
pub(crate) fn limit(room: Duration) -> Duration {
    let for_a_webhook = room.saturating_sub(SHORTEST_WAIT).min(DEFAULT_WEBHOOK);
    let limit = (room / 8 * 7).max(for_a_webhook);
    // The API server treats `timeout=0ms` as no timeout.
    limit.clamp(Duration::from_millis(1), MUTATION_TIMEOUT)
}

/// Default `timeoutSeconds` of a webhook (10 s), and time for the API server's work before and after the call.
pub(crate) const DEFAULT_WEBHOOK: Duration = Duration::from_millis(10_500);

/// Minimum time for the wait for a connection, if `room` is at least 2 s.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);
