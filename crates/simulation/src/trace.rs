//! Trace of a run, with the world's time of each event. Judges read it. [`Trace::lines`] formats it as text, identical for the
//! same plan in every process.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use operator_testkit::api_server::{Revision, Store};
use serde_json::Value;

use super::{
    outside::Systems,
    plan::{Fault, Settings},
};

/// Time since the world began.
pub type Time = Duration;

/// Client of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Work,
    Lease,
}

/// A process: its place, and the number of earlier processes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    pub replica: usize,
    pub life: u32,
}

/// A request of a replica, from start to end.
#[derive(Clone, Debug)]
pub struct Call {
    pub who: Who,
    pub role: Role,
    pub method: http::Method,
    /// Path and query.
    pub path: String,
    /// `get`, `list`, `stream` (a list delivered as a watch), `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// `shops`, `shops/status`, `deployments`, …
    pub resource: String,
    /// Request body; null if it is not JSON.
    pub body: Value,
    /// When the request was passed to the client.
    pub begun: Time,
    /// When the request was passed to its connection. The fence counts from here.
    pub sent: Time,
    /// When the API server received the request, if at all.
    pub arrived: Option<Time>,
    pub server: usize,
    /// Revisions that it wrote: indexes into [`Store::history`].
    pub written: Range<usize>,
    /// Status code of the API server, even if the replica did not receive it.
    pub code: Option<u16>,
    /// Response of the API server, except for lists and watches.
    pub answer: Option<Arc<Value>>,
    /// When the replica received the head of the response, and its status code.
    pub answered: Option<(Time, u16)>,
    /// When the replica saw the end: of the response, of the connection, or by giving up. `None`: the process ended first, or
    /// the request is still open.
    pub over: Option<Time>,
    /// `Retry-After` of the response.
    pub retry_after: Option<Duration>,
    /// For a list or a watch: when the replica knew all changes up to a version.
    pub told: Vec<(Time, u64)>,
    /// Fault that was injected.
    pub fault: Option<String>,
    /// Index of this fault in [`Trace::faults`].
    pub of_fault: Option<usize>,
    /// Whether the fault had an effect. A fault of the response has no effect if there is no response.
    pub felt: bool,
}

impl Call {
    /// Returns whether the fault kept the replica from reading the response as it was sent.
    pub fn is_spoilt(&self) -> bool {
        let fault = self.fault.as_deref().unwrap_or_default();
        // The replica still reads a response that is late or precedes its crash, unless it has given up.
        let reads = ["RequestLate", "AnswerLate", "CrashAfter", "Hangs"]
            .map(|kind| fault.starts_with(kind));
        let given_up = self.over.unwrap_or(Time::MAX);
        let comes = self.answered.is_some_and(|(at, _)| at <= given_up);
        self.felt && !(comes && reads.contains(&true))
    }

    /// Returns whether this is a write that only the leader may send.
    pub fn is_work(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete")
            && !matches!(&*self.resource, "leases" | "events" | "serviceaccounts")
            && !self.resource.ends_with("reviews")
    }

    /// Returns the last segment of the path: the object's name, except for a list, a creation or a subresource.
    pub fn name(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns whether this is a watch or a streamed list.
    pub fn is_watch(&self) -> bool {
        matches!(self.verb, "stream" | "watch")
    }

    /// Returns the request's limit for the API server (`timeout=`).
    pub fn limit(&self) -> Option<Duration> {
        self.path.split(['?', '&']).find_map(|part| {
            let milliseconds = part.strip_prefix("timeout=")?.strip_suffix("ms")?;
            Some(Duration::from_millis(milliseconds.parse().ok()?))
        })
    }
}

/// A log line of a replica.
#[derive(Clone, Debug)]
pub struct Log {
    pub at: Time,
    pub who: Who,
    pub level: tracing::Level,
    /// Begins with the fields, as `name=value`.
    pub text: String,
}

#[derive(Clone, Debug)]
pub struct Reconcile {
    pub who: Who,
    /// `namespace/name`
    pub key: String,
    /// `change`, `retry`, `resync`, `takeover`, `status`
    pub trigger: String,
    /// 1, plus the number of failures since the last success.
    pub attempt: u32,
    pub begun: Time,
    /// `None` if the process ended first.
    pub ended: Option<Time>,
    pub failed: bool,
}

/// Sizes from a replica's metrics, if it exports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Objects that wait for a worker, of all controllers.
    pub queue: Option<usize>,
    /// Objects in the caches, by kind.
    pub caches: BTreeMap<String, usize>,
}

/// Lifetime of one process.
#[derive(Clone, Debug)]
pub struct Life {
    pub who: Who,
    /// Name and UID of the pod; the Lease contains `<name>_<uid>`.
    pub pod: (String, String),
    pub settings: Settings,
    pub begun: Time,
    /// When a user or the kubelet sent SIGTERM.
    pub asked: Option<Time>,
    /// When its liveness check failed.
    pub unwell: Option<Time>,
    /// When it was frozen, or its machine slept.
    pub still: Vec<Range<Time>>,
    pub ended: Option<(Time, End)>,
}

impl Life {
    /// Returns its identity in the Lease.
    pub fn identity(&self) -> String {
        format!("{}_{}", self.pod.0, self.pod.1)
    }

    /// Returns how long it was frozen or asleep during `time`.
    pub fn stood_still(&self, time: &Range<Time>) -> Duration {
        let within = |still: &Range<Time>| {
            let (from, until) = (still.start.max(time.start), still.end.min(time.end));
            until.saturating_sub(from)
        };
        self.still.iter().map(within).sum()
    }

    /// Returns when it has run for `time` since `from`, not counting freezes and sleep.
    pub fn has_had(&self, from: Time, time: Duration) -> Time {
        let later = self.still.iter().filter(|still| still.end > from);
        later.fold(from + time, |until, still| {
            if still.start >= until {
                return until;
            }
            until.saturating_add(still.end.saturating_sub(still.start.max(from)))
        })
    }
}

/// Reason for the end of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `run` returned, with or without SIGTERM.
    Returned,
    /// `run` returned an error.
    Failed(String),
    Panicked(String),
    /// Killed by a fault or by the kubelet.
    Killed,
}

/// Everything that happened.
#[derive(Debug, Default)]
pub struct Trace {
    pub calls: Vec<Call>,
    pub logs: Vec<Log>,
    pub reconciles: Vec<Reconcile>,
    pub lives: Vec<Life>,
    pub sizes: Vec<(Time, Who, Sizes)>,
    /// Faults and their times. A fault that lasts to the end of the run ends at `Time::MAX`.
    pub faults: Vec<(Range<Time>, Fault)>,
    /// Faults, user actions and their status codes, as text.
    pub events: Vec<(Time, String)>,
    /// Systems outside the cluster.
    pub systems: Systems,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.replica)?;
        if self.life > 0 {
            write!(f, ".{}", self.life)?;
        }
        Ok(())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Work => "work",
            Self::Lease => "lease",
        })
    }
}

/// Formats a time in seconds.
pub fn seconds(time: Time) -> String {
    format!("{}.{:03}", time.as_secs(), time.subsec_millis())
}

/// Returns when an event that is due at `due` reaches a machine that slept then or before. The clock of the machine stopped, so
/// each sleep delays the event.
pub fn comes_at(asleep: &[Range<Time>], due: Time) -> Time {
    /// Longest time in flight.
    const LATE: Duration = Duration::from_secs(62);
    let before = |slept: &&Range<Time>| due < slept.end.saturating_add(LATE);
    asleep.iter().filter(before).fold(due, |at, slept| {
        if slept.start >= at {
            return at;
        }
        at.saturating_add(slept.end.saturating_sub(slept.start))
    })
}

impl Trace {
    /// Returns when the machine of each place slept, with overlapping faults merged.
    pub fn asleep(&self) -> BTreeMap<usize, Vec<Range<Time>>> {
        let mut asleep = BTreeMap::<_, Vec<Range<Time>>>::new();
        for (time, fault) in &self.faults {
            let Fault::Suspend { replica } = fault else {
                continue;
            };
            let its = asleep.entry(*replica).or_default();
            match its.last_mut() {
                Some(last) if time.start <= last.end => last.end = last.end.max(time.end),
                _ => its.push(time.clone()),
            }
        }
        asleep
    }

    /// Returns the records of the processes in some of the places. The events and the faults concern all places.
    #[must_use]
    pub fn of_places(&self, is_one: impl Fn(usize) -> bool) -> Self {
        let is_one = |who: &Who| is_one(who.replica);
        let calls = self.calls.iter().filter(|it| is_one(&it.who));
        let logs = self.logs.iter().filter(|it| is_one(&it.who));
        let reconciles = self.reconciles.iter().filter(|it| is_one(&it.who));
        let lives = self.lives.iter().filter(|it| is_one(&it.who));
        let sizes = self.sizes.iter().filter(|(_, who, _)| is_one(who));
        Self {
            calls: calls.cloned().collect(),
            logs: logs.cloned().collect(),
            reconciles: reconciles.cloned().collect(),
            lives: lives.cloned().collect(),
            sizes: sizes.cloned().collect(),
            faults: self.faults.clone(),
            events: self.events.clone(),
            systems: self.systems.clone(),
        }
    }

    /// Returns all judged data, except the store's history, which [`lines`](Self::lines) contains.
    pub fn records(&self) -> String {
        format!("{self:#?}")
    }

    /// Returns the events as text, in order of time.
    pub fn lines(&self, store: &Store) -> Vec<String> {
        let mut lines: Vec<(Time, String)> = Vec::new();
        for (at, text) in &self.events {
            lines.push((*at, text.clone()));
        }
        for life in &self.lives {
            let Life { who, pod, .. } = life;
            lines.push((
                life.begun,
                format!("{who}: starts as {} ({})", pod.0, pod.1),
            ));
            if let Some(at) = life.asked {
                lines.push((at, format!("{who}: is asked to stop")));
            }
            if let Some((at, end)) = &life.ended {
                lines.push((*at, format!("{who}: {end}")));
            }
        }
        for call in &self.calls {
            call.tell(&mut lines);
        }
        for revision in store.history() {
            lines.push((revision.at.since_start, told(revision)));
        }
        for Log {
            at,
            who,
            level,
            text,
        } in &self.logs
        {
            lines.push((*at, format!("{who}: {level} {text}")));
        }
        for one in &self.reconciles {
            let Reconcile {
                who,
                key,
                trigger,
                begun,
                ended,
                failed,
                ..
            } = one;
            lines.push((*begun, format!("{who}: reconciles {key} ({trigger})")));
            if let Some(at) = ended {
                let how = if *failed { "fails at" } else { "is done with" };
                lines.push((*at, format!("{who}: {how} {key}")));
            }
        }
        // Stable: simultaneous events stay in this order.
        lines.sort_by_key(|(at, _)| *at);
        let timed = lines.into_iter();
        timed
            .map(|(at, text)| format!("{:>9} {text}", seconds(at)))
            .collect()
    }
}

impl Call {
    fn tell(&self, lines: &mut Vec<(Time, String)>) {
        let Self {
            who,
            role,
            method,
            path,
            ..
        } = self;
        let call = format!("{who}: {role}: {method} {path}");
        let mut sent = call.clone();
        if !self.body.is_null() {
            _ = write!(sent, " {}", self.body);
        }
        if let Some(fault) = &self.fault {
            _ = write!(sent, " [{fault}]");
        }
        lines.push((self.sent, sent));
        if let (Some(at), Some(code)) = (self.arrived, self.code) {
            lines.push((at, format!("server {}: {code} to {call}", self.server)));
        }
        if let Some((at, code)) = self.answered {
            lines.push((at, format!("{call}: is answered {code}")));
        }
    }
}

fn told(revision: &Revision) -> String {
    let Revision {
        version,
        by,
        key,
        before,
        after,
        ..
    } = revision;
    let what = match (before, after) {
        (None, _) => "creates",
        (_, Some(_)) => "changes",
        (_, None) => "deletes",
    };
    let object = after.as_deref().map(Value::to_string).unwrap_or_default();
    format!("store {version}: {by} {what} {} {object}", key.name)
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned => f.write_str("ends"),
            Self::Failed(error) => write!(f, "fails: {error}"),
            Self::Panicked(text) => write!(f, "panics: {text}"),
            Self::Killed => f.write_str("is killed"),
        }
    }
}
