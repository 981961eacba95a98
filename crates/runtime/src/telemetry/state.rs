//! What `/debug/state` answers, and `doctor` prints: what one replica is about, at a glance. Nothing is kept for it but why
//! objects fail ([`Failures`](crate::controller::agenda::Failures)); all else is looked up when somebody asks, and costs as much as there
//! are watches and workers, and [`MOST`] objects.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where it is served.
pub const PATH: &str = "/debug/state";

/// So many objects are named in a [`List`] at most.
pub const MOST: usize = 100;

/// What a replica is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// What it is called in the Lease.
    pub identity: String,
    /// The program's version.
    pub version: String,
    /// The commit that it was built from, where that is known.
    pub commit: Option<String>,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// Each watch and what it has brought, by scope.
    pub caches: Vec<Cache>,
    /// The Lease as last seen; `None` without an election, and before it was read.
    pub lease: Option<Lease>,
    /// The term, while it leads.
    pub term: Option<Term>,
    /// What lets writes through.
    pub fence: Fence,
    /// The queue, while it leads and has something in sync.
    pub queue: Option<Queue>,
}

/// One kind in one scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Of what.
    pub kind: String,
    /// Where; `None`: in all namespaces.
    pub namespace: Option<String>,
    /// How many there are.
    pub objects: usize,
    /// What the watch has come to; empty before the end of the first list.
    pub resource_version: String,
    /// Whether it has been listed.
    pub in_sync: bool,
    /// How long ago the API server last told anything: an event, a part of a list, or a bookmark.
    pub age_seconds: f64,
    /// Why the watch does not work, if it does not.
    pub failure: Option<String>,
}

/// The Lease, as this replica has seen it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// `namespace/name`.
    pub name: String,
    /// Whether there is one; else this is what it said before it was deleted.
    pub exists: bool,
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// How long ago its last change was seen, by this replica's clock.
    pub seen_seconds_ago: f64,
    /// How long it lasts.
    pub duration_seconds: f64,
    /// How often it has changed hands.
    pub transitions: i32,
}

/// A term of leadership.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Term {
    /// The Lease's transitions in it.
    pub transitions: i32,
    /// When it ends, unless it is renewed; `None`: never, without an election.
    pub ends_in_seconds: Option<f64>,
}

/// The fence, here and at the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// Whether writes are let through: until the end of the term.
    pub open: bool,
    /// How far the fencing record is, while it leads by a Lease.
    pub record: Option<RecordIs>,
    /// For how long the fencing policy has rejected this leader's writes, if it has.
    pub policy_rejects_for_seconds: Option<f64>,
}

/// How far the fencing record is in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordIs {
    /// It may not name the leader yet.
    Pending,
    /// It names the leader.
    Written,
    /// There is none: the component is not installed.
    NotInstalled,
}

/// The queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Objects that a worker could take now, by lane.
    pub waiting: Waiting,
    /// Objects that wait for their time: retries, and what comes later.
    pub delayed: usize,
    /// Objects that are with a worker, the longest first.
    pub in_work: List<Running>,
    /// Objects that failed, and are tried again, by name: those that began to fail first.
    pub failing: List<Failing>,
}

/// Objects that wait, by lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Something changed.
    pub event: usize,
    /// It failed.
    pub retry: usize,
    /// It can wait.
    pub background: usize,
}

/// Some objects, of so many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// How many there are.
    pub total: usize,
    /// [`MOST`] of them at most.
    pub objects: Vec<T>,
}

/// An object that is with a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// For how long.
    pub seconds: f64,
}

/// An object that fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How often in a row.
    pub attempts: u32,
    /// Of the last failure, in a word.
    pub reason: String,
    /// The same, in full.
    pub error: String,
    /// When it is tried again; `None`: just now.
    pub retry_in_seconds: Option<f64>,
}

/// As they are written: to the millisecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    let whole = Duration::from_secs(time.as_secs());
    (whole + Duration::from_millis(time.subsec_millis().into())).as_secs_f64()
}
