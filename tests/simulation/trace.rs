//! What happened, with the world's time of everything. A judge reads it; [`Trace::lines`] tells it in words: the same for the
//! same plan, in every process.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    api::{Revision, Store},
    plan::{Fault, Settings},
};

/// Since the world began.
pub type Time = Duration;

/// Which of a replica's two clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Work,
    Lease,
}

/// Which process: the replica's place, and how many it has had there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    pub replica: usize,
    pub life: u32,
}

/// A request of a replica's, from its begin to its end.
#[derive(Clone, Debug)]
pub struct Call {
    pub who: Who,
    pub role: Role,
    pub method: http::Method,
    /// Path and query.
    pub path: String,
    /// `get`, `list`, `stream` (a list that comes as a watch), `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// `foos`, `foos/status`, `deployments`, …
    pub resource: String,
    /// What was sent; null where that is no JSON.
    pub body: Value,
    /// When the client was given it.
    pub begun: Time,
    /// When it was handed to its connection: what the fence counts from.
    pub sent: Time,
    /// When the API server got it, if it did.
    pub arrived: Option<Time>,
    pub server: usize,
    /// What it wrote: indexes into [`Store::history`].
    pub written: Range<usize>,
    /// The API server's code, whether the replica was told or not.
    pub code: Option<u16>,
    /// The API server's answer, but for what is listed or watched.
    pub answer: Option<Arc<Value>>,
    /// When the replica had the answer's beginning, and the code that it was told.
    pub answered: Option<(Time, u16)>,
    /// When the replica had its end: of the answer, of the connection, or by giving it up. `None`: it ended with its process, or
    /// goes on.
    pub over: Option<Time>,
    /// For how long the answer asks not to be asked again.
    pub retry_after: Option<Duration>,
    /// Of a list or a watch: up to which version the replica was told of everything, and when.
    pub told: Vec<(Time, u64)>,
    /// What was to be done to it.
    pub fault: Option<String>,
    /// By which of [`Trace::faults`].
    pub of_fault: Option<usize>,
    /// Whether that was done: what is to become of an answer is not where none is on its way.
    pub felt: bool,
}

impl Call {
    /// Whether what was done to it kept its answer from being read as it was given.
    pub fn is_spoilt(&self) -> bool {
        let fault = self.fault.as_deref().unwrap_or_default();
        // Late, or right before its reader's end, it is read, if it comes before it is given up.
        let reads = ["RequestLate", "AnswerLate", "CrashAfter"].map(|kind| fault.starts_with(kind));
        let given_up = self.over.unwrap_or(Time::MAX);
        let comes = self.answered.is_some_and(|(at, _)| at <= given_up);
        self.felt && !(comes && reads.contains(&true))
    }

    /// Whether it is a write of the work: of what only who leads may write.
    pub fn is_work(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete")
            && matches!(&*self.resource, "deployments" | "foos/status")
    }

    /// The last part of its path: the name of its object, unless the request is for a list, a creation or a subresource.
    pub fn name(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether it is a watch, or a list that comes as one.
    pub fn is_watch(&self) -> bool {
        matches!(self.verb, "stream" | "watch")
    }

    /// How long it says that the API server may take.
    pub fn limit(&self) -> Option<Duration> {
        self.path.split(['?', '&']).find_map(|part| {
            let milliseconds = part.strip_prefix("timeout=")?.strip_suffix("ms")?;
            Some(Duration::from_millis(milliseconds.parse().ok()?))
        })
    }
}

/// A line of a replica's log.
#[derive(Clone, Debug)]
pub struct Log {
    pub at: Time,
    pub who: Who,
    pub level: tracing::Level,
    /// Fields in front, as `name=value`.
    pub text: String,
}

/// One reconcile.
#[derive(Clone, Debug)]
pub struct Reconcile {
    pub who: Who,
    /// `namespace/name`
    pub key: String,
    /// `change`, `retry`, `resync`, `takeover`, `status`
    pub trigger: String,
    /// From 1; one more than it has failed since it was last right.
    pub attempt: u32,
    pub begun: Time,
    /// `None`: it had not ended when the process did.
    pub ended: Option<Time>,
    pub failed: bool,
}

/// How much a replica has, as its metrics say, if they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Foos that wait for a worker.
    pub queue: Option<usize>,
    /// Objects in its caches.
    pub foos: Option<usize>,
    pub deployments: Option<usize>,
}

/// The time of one process.
#[derive(Clone, Debug)]
pub struct Life {
    pub who: Who,
    /// The pod's name and UID: `<name>_<uid>` stands in the Lease.
    pub pod: (String, String),
    pub settings: Settings,
    pub begun: Time,
    /// When it was asked to stop, by the kubelet, too.
    pub asked: Option<Time>,
    /// When its liveness failed.
    pub unwell: Option<Time>,
    /// When it was frozen, or its machine slept.
    pub still: Vec<Range<Time>>,
    pub ended: Option<(Time, End)>,
}

impl Life {
    /// What it calls itself in the Lease.
    pub fn identity(&self) -> String {
        format!("{}_{}", self.pod.0, self.pod.1)
    }

    /// For how long it stood still in this time.
    pub fn stood_still(&self, time: &Range<Time>) -> Duration {
        let within = |still: &Range<Time>| {
            let (from, until) = (still.start.max(time.start), still.end.min(time.end));
            until.saturating_sub(from)
        };
        self.still.iter().map(within).sum()
    }

    /// When it has had so much time from then on in which it did not stand still.
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

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `run` returned: asked to, or not.
    Returned,
    /// `run` failed.
    Failed(String),
    /// It panicked.
    Panicked(String),
    /// It was killed: by a fault, or by the kubelet.
    Killed,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Trace {
    pub calls: Vec<Call>,
    pub logs: Vec<Log>,
    pub reconciles: Vec<Reconcile>,
    pub lives: Vec<Life>,
    pub sizes: Vec<(Time, Who, Sizes)>,
    /// What went wrong, from when to when; what is to last to the end is never over.
    pub faults: Vec<(Range<Time>, Fault)>,
    /// Faults, and what users did and were answered, in words.
    pub events: Vec<(Time, String)>,
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

/// How a time is written.
pub fn seconds(time: Time) -> String {
    format!("{}.{:03}", time.as_secs(), time.subsec_millis())
}

/// When what was to come to a machine at this time comes, which slept then, or before that: by its clock, which stood still.
pub fn comes_at(asleep: &[Range<Time>], due: Time) -> Time {
    /// The longest that anything is on its way.
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
    /// By place, when its machine slept, whatever number of faults had it sleep.
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

    /// Everything that is judged, but for the store's history, which is in [`lines`](Self::lines).
    pub fn records(&self) -> String {
        format!("{self:#?}")
    }

    /// What happened in words, in the order of time.
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
        // What happened at the same time stays in the order in which it was put down.
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
