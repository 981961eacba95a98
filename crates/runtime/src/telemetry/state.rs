//! The response of `/debug/state`, which `doctor` prints: the internal state of one replica.
//!
//! Only the errors of failing objects are stored for it, in [`Failures`](crate::controller::work_queue::Failures). All other
//! values are collected per request; the cost grows with the number of watches and workers, plus at most [`MOST`] objects.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::fencing_record::FencingRecordState;

/// Path of the endpoint.
pub(crate) const PATH: &str = "/debug/state";

/// Maximum number of objects in a [`List`].
pub(crate) const MOST: usize = 100;

/// Internal state of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    /// Name of this replica in the Lease.
    pub identity: String,
    pub version: String,
    /// The setting `installation`. Empty: the default installation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub installation: String,
    /// The commit of the build, if known.
    pub commit: Option<String>,
    pub uptime_seconds: f64,
    /// Each watch and its cache, per kind and scope.
    pub caches: Vec<Cache>,
    /// The Lease as last seen; `None` without leader election, and before the first read.
    pub lease: Option<Lease>,
    /// The current term; `None` if this replica does not lead.
    pub term: Option<Term>,
    pub fence: Fence,
    /// The queue of the first controller; `None` if this replica does not lead, or if nothing is in sync yet.
    pub queue: Option<Queue>,
    /// All controllers with their queues, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<Controller>,
}

/// A controller of a program with several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Controller {
    pub name: String,
    /// The reconciled kind.
    #[serde(default)]
    pub kind: String,
    /// See [`State::queue`].
    pub queue: Option<Queue>,
}

/// Cache of one kind in one scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cache {
    pub kind: String,
    /// `None`: all namespaces. Empty: the type is cluster-scoped.
    pub namespace: Option<String>,
    /// The selected objects, such as `labels a=b; referenced only`. Empty: all.
    #[serde(default)]
    pub selector: String,
    pub objects: usize,
    /// resourceVersion that the watch has reached; empty before the end of the first list.
    pub resource_version: String,
    /// Whether the first list is complete.
    pub in_sync: bool,
    /// Whether the kind may be missing: it is installed if the cache is in sync. Its failures do not affect readiness.
    #[serde(default, rename = "optional", skip_serializing_if = "is_false")]
    pub is_optional: bool,
    /// Time since the last message of the API server: an event, a part of a list, or a bookmark.
    pub age_seconds: f64,
    /// The error of the watch, if it fails. A missing optional kind is no error.
    pub failure: Option<String>,
}

/// The Lease, as this replica has seen it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    /// `namespace/name`.
    pub name: String,
    /// Whether the Lease exists. If not, the other fields describe it before its deletion.
    pub exists: bool,
    /// Identity of the holder; empty without a holder.
    pub holder: String,
    /// Time since this replica saw the last change, measured with its own clock.
    pub seen_seconds_ago: f64,
    /// `leaseDurationSeconds`.
    pub duration_seconds: f64,
    /// `leaseTransitions`.
    pub transitions: i32,
}

/// A term of leadership.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Term {
    /// `leaseTransitions` of the Lease in this term.
    pub transitions: i32,
    /// Time until the end of the term unless it is renewed; `None` without leader election, where a term has no end.
    pub ends_in_seconds: Option<f64>,
}

/// The fence, in this process and in the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fence {
    /// Whether writes may be sent: until the end of the term.
    pub open: bool,
    /// State of the fencing record; only while this replica leads with a Lease.
    pub record: Option<FencingRecordState>,
    /// How long the fencing policy has rejected the writes of this leader; `None` if it has not.
    pub policy_rejects_for_seconds: Option<f64>,
}

/// The work queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queue {
    /// Objects that wait for a worker, by lane.
    pub waiting: Waiting,
    /// Objects that are not due yet: retries and delayed reconciles.
    pub delayed: usize,
    /// Objects that workers are reconciling, longest-running first.
    pub in_work: List<Running>,
    /// Failing objects that will be retried, by name. If there are more than [`MOST`], the first to fail.
    pub failing: List<Failing>,
}

/// Number of waiting objects per lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    /// Objects that changed.
    pub event: usize,
    /// Retries of failed objects.
    pub retry: usize,
    /// Work that is not urgent.
    pub background: usize,
}

/// A list that is cut at [`MOST`] objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct List<T> {
    /// Number of objects before the cut.
    pub total: usize,
    pub objects: Vec<T>,
}

/// An object that a worker is reconciling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    pub namespace: String,
    pub name: String,
    /// How long the worker has had the object.
    pub seconds: f64,
}

/// An object whose reconcile fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failing {
    pub namespace: String,
    pub name: String,
    /// Consecutive attempts without success.
    pub attempts: u32,
    /// Reason of the last failure, or the name of its error.
    pub reason: String,
    /// Message of the last failure.
    pub error: String,
    /// Time until the next attempt; `None`: an attempt is running.
    pub retry_in_seconds: Option<f64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_false(it: &bool) -> bool {
    !it
}

/// Returns the duration in seconds, truncated to milliseconds.
pub(crate) fn seconds(time: Duration) -> f64 {
    let whole = Duration::from_secs(time.as_secs());
    (whole + Duration::from_millis(time.subsec_millis().into())).as_secs_f64()
}

/// Formats a duration in whole seconds, such as `1h 2m 3s`.
pub(crate) fn span(seconds: f64) -> String {
    let whole = SignedDuration::try_from_secs_f64(seconds.round());
    format!("{:#}", whole.unwrap_or(SignedDuration::MAX))
}
