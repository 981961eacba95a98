//! State of the fencing record, as the election reports it.

use serde::{Deserialize, Serialize};

/// State of the fencing record in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FencingRecordState {
    /// The record may not name the leader yet.
    Pending,
    /// The record names the leader.
    Written,
    /// The record does not exist: the component is not installed.
    NotInstalled,
}
