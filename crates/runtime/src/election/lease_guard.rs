//! The lease guard: a tower layer that makes `kube-leader-election` safe (H1–H7, H11, H12, H15, H16).
//!
//! It sits in the client that the crate is given and changes what passes: a Lease is written only on the condition that
//! it is still what was read, and created with no holder; a Lease that is read is judged by how long this process has seen
//! it unchanged, never by the time in it; a reply that changed nothing is a failure; every call ends in bounded time. One
//! guard per lock, and one call of the lock after the other.

use super::observed_lease::{ObservedRecord, Record};
use crate::{
    client::{
        instrumented::FailedBy,
        middleware::{Around, Layered},
    },
    config::environment::Host,
    telemetry::state::{self, RecordIs},
};
use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as HttpBody, Bytes};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tower::{BoxError, Layer, Service};

/// What a reader of a Lease gets instead of its `renewTime`: these are far enough from any clock that is merely wrong.
const LONG_AGO: Timestamp = Timestamp::UNIX_EPOCH;
const FAR_AHEAD: Timestamp = Timestamp::constant(200_000_000_000, 0);

/// How far at least each write is dated after the one before: what a Lease's dates are counted in.
const MOVES_ON: SignedDuration = SignedDuration::from_micros(1);

/// The longest that a holder that went silent is believed in: as long as the configuration allows a lease to be.
const LONGEST: Duration = Duration::from_hours(1);
/// How far ahead a date may be of this process's clock that the next one is to be later than.
const BELIEVED: SignedDuration = SignedDuration::from_hours(1);
/// The duration of a Lease that was given back, in seconds.
const RELEASED: u64 = 1;
/// What the crate says of a Lease's holder when it creates one.
const HELD: [&str; 3] = ["holderIdentity", "acquireTime", "renewTime"];

/// What else it says of times.
const DATES: [&str; 2] = ["acquireTime", "renewTime"];

/// Why the guard failed a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Lease was to be written that had not been read since the last write, or what was read turned out to be a copy (H21).
    #[error("a Lease write without a read before it that still counts")]
    WriteWithoutRead,
    /// A Lease was read that is older than what came by another way meanwhile.
    #[error("the watch has told of a newer version meanwhile")]
    Overtaken,
    /// The API server took the write for one that changes nothing, so nobody else sees it (H11).
    #[error(
        "the write left the Lease as it was (resourceVersion {0}), or is answered with an older one"
    )]
    Unchanged(String),
    /// A write whose body is not in memory; kube makes none.
    #[error("a Lease write with a streamed body")]
    Streamed,
    /// The call took longer than this (H6).
    #[error("no answer from the API server in {0:?}")]
    TimedOut(Duration),
}

/// The kind of failure of a request without an answer, for `RequestLayer`.
#[must_use]
pub fn failed_by(error: &BoxError) -> FailedBy {
    match error.downcast_ref() {
        Some(Error::TimedOut(_)) => FailedBy::Timeout,
        Some(_) => FailedBy::Layer("lease_guard"),
        None => FailedBy::Connection,
    }
}

/// The guard: a layer for the lease's client, and what it has seen of the Lease.
#[derive(Clone)]
pub struct LeaseGuardLayer {
    seen: SeenLease,
    host: Host,
    timeout: Duration,
    duration: Duration,
}

/// What a guard has seen of the Lease, for whoever else wants to know.
#[derive(Clone, Default)]
pub struct SeenLease(Arc<Mutex<Seen>>);

impl SeenLease {
    /// The Lease of this name at `now`, for `/debug/state`; `None` where it was never seen.
    pub(crate) fn state(&self, name: &str, now: Duration) -> Option<state::Lease> {
        self.0.lock().observed.state(name, now)
    }

    /// How far the fencing record is; `None` while this process does not lead.
    pub(crate) fn record(&self) -> Option<RecordIs> {
        self.0.lock().record
    }
}

#[derive(Default)]
struct Seen {
    /// The resourceVersion of the last read, until a write uses it up.
    read: Option<String>,
    /// The newest version seen: a watch may be served by an API server that is behind.
    version: u64,
    observed: ObservedRecord,
    /// Who held it when this process first saw it.
    found: Option<String>,
    /// When the term of this process ends, if it has one.
    deadline: Duration,
    /// The date of the last write.
    dated: Timestamp,
    /// Whether a write was sent that is not answered.
    writing: bool,
    record: Option<RecordIs>,
}

impl Seen {
    fn take(&mut self, now: Duration, record: Option<Record>) -> bool {
        if let Some(record) = &record {
            self.found.get_or_insert_with(|| record.holder.clone());
        }
        self.observed.observe(now, record)
    }
}

fn spec(record: Record) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(record.holder),
        lease_transitions: Some(record.transitions),
        ..LeaseSpec::default()
    }
}

fn version(lease: &Lease) -> u64 {
    let version = lease.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// Whether this is what a write made of the version that it was based on.
fn is_newer(lease: &Lease, base: &str) -> bool {
    base.parse().map_or_else(
        |_| lease.metadata.resource_version.as_deref() != Some(base),
        |base: u64| version(lease) > base,
    )
}

impl LeaseGuardLayer {
    /// A guard by the clocks of `host` that bounds each call by `timeout`, and takes no Lease to have a duration under
    /// `duration`.
    #[must_use]
    pub fn new(host: Host, timeout: Duration, duration: Duration) -> Self {
        Self {
            seen: SeenLease::default(),
            host,
            timeout,
            duration,
        }
    }

    /// The same, which sees it for others, too.
    #[must_use]
    pub fn seeing(self, seen: SeenLease) -> Self {
        Self { seen, ..self }
    }

    /// Takes note of how far the fencing record of this process is, while it leads.
    pub(crate) fn record_is(&self, record: Option<RecordIs>) {
        self.seen.0.lock().record = record;
    }

    /// Takes note of a Lease that came by another way than the lock's own reads, such as a watch; true when that is a change,
    /// `None` when it is older than what was seen. A write still needs a read of its own.
    #[must_use]
    pub fn observe(&self, lease: &Lease) -> Option<bool> {
        self.see(version(lease), Some(self.record(lease)))
    }

    /// The same of a Lease that was deleted, with the version of its deletion.
    #[must_use]
    pub fn observe_deleted(&self, lease: &Lease) -> Option<bool> {
        self.see(version(lease), None)
    }

    fn see(&self, version: u64, record: Option<Record>) -> Option<bool> {
        let now = self.host.clock.now();
        let mut seen = self.seen.0.lock();
        if version < seen.version {
            let is_copy = record.is_some_and(|older| seen.observed.observe_older(now, &older));
            // Nor may a write go by it that is not sent yet.
            seen.read.take_if(|_| is_copy);
            return None;
        }
        seen.version = version;
        Some(seen.take(now, record))
    }

    /// The Lease as last seen.
    #[must_use]
    pub fn observed(&self) -> ObservedRecord {
        self.seen.0.lock().observed.clone()
    }

    /// Whether a write of the Lease was sent last, after a read that was answered, and is not answered.
    pub(crate) fn is_writing(&self) -> bool {
        self.seen.0.lock().writing
    }

    /// Whether somebody else, or nobody, held the Lease when this process first saw it.
    pub(crate) fn found_held_by_another(&self, identity: &str) -> bool {
        let seen = self.seen.0.lock();
        seen.found
            .as_deref()
            .is_some_and(|holder| holder != identity)
    }

    /// Takes note of when the term of this process ends, if it has one: until then it may take back a Lease that was
    /// deleted.
    pub(crate) fn leads_until(&self, deadline: Option<Duration>) {
        self.seen.0.lock().deadline = deadline.unwrap_or_default();
    }

    fn record(&self, lease: &Lease) -> Record {
        let spec = serde_json::to_value(&lease.spec).unwrap_or_default();
        self.record_of(lease, &spec)
    }

    /// What a Lease says, whatever is in it: anybody may have written it, and nothing in it may keep it from being
    /// taken for good (H7, H16).
    fn record_of(&self, lease: &Lease, spec: &Value) -> Record {
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| spec[field].as_i64().unwrap_or_default();
        let duration = u64::try_from(number("leaseDurationSeconds")).unwrap_or_default();
        let time = |field: &str| text(field).parse::<Timestamp>().ok();
        let (holder, renewed) = (text("holderIdentity"), time("renewTime"));
        // The crate adds one, and the API server takes no negative number.
        let transitions = i32::try_from(number("leaseTransitions")).unwrap_or_default();
        let transitions = transitions.max(0).checked_add(1).map_or(0, |next| next - 1);
        let version = lease.metadata.resource_version.clone();
        Record {
            uid: lease.metadata.uid.clone().unwrap_or_default(),
            vacant_at: version.filter(|_| holder.is_empty()).unwrap_or_default(),
            // Not shorter than ours: who made it so may be somebody else than its holder (H15).
            duration: Duration::from_secs(duration)
                .clamp(self.duration, LONGEST.max(self.duration)),
            // Who gives a Lease back signs it like that, as client-go does; who edits one clears its holder (H21).
            released: holder.is_empty()
                && duration == RELEASED
                && renewed.is_some()
                && renewed == time("acquireTime"),
            holder,
            renewed,
            transitions,
        }
    }

    /// A Lease without its spec, which may hold what makes no Lease, and what that says.
    fn parse(&self, body: &[u8]) -> Result<(Lease, Record), serde_json::Error> {
        let mut lease: Value = serde_json::from_slice(body)?;
        let spec = lease.as_object_mut().and_then(|lease| lease.remove("spec"));
        let lease: Lease = serde_json::from_value(lease)?;
        let record = self.record_of(&lease, &spec.unwrap_or_default());
        Ok((lease, record))
    }

    /// What the lock gets when it reads a Lease: nothing is missing (H7), and it has expired exactly if this process
    /// says so (H5). `None` where what came by another way since the read began, when this version was `known`, is newer: it would
    /// be forgotten. What is older than what was known before is what is there now (a restored backup).
    fn read(&self, mut lease: Lease, record: Record, known: u64) -> Option<Lease> {
        let now = self.host.clock.now();
        let mut seen = self.seen.0.lock();
        if seen.version > known && version(&lease) < seen.version {
            return None;
        }
        seen.read.clone_from(&lease.metadata.resource_version);
        seen.version = version(&lease);
        seen.take(now, Some(record.clone()));
        let free = seen.observed.is_free(now, seen.deadline);
        lease.spec = Some(LeaseSpec {
            renew_time: Some(MicroTime(if free { LONG_AGO } else { FAR_AHEAD })),
            // The lock adds it to that.
            lease_duration_seconds: Some(1),
            ..spec(record)
        });
        Some(lease)
    }

    /// Puts the condition into a Lease patch: the resourceVersion of the read that it is based on, which is used up. A
    /// creation has no such condition, and may land late: it makes nobody the holder (H12). What the crate dates by a clock
    /// of its own is dated by the host's.
    fn condition(&self, request: Request<Body>) -> Result<(Call, Request<Body>), BoxError> {
        let mut call = Call::of(&request);
        if let Call::Read { known } = &mut call {
            let mut seen = self.seen.0.lock();
            (*known, seen.writing) = (seen.version, false);
        }
        if !matches!(call, Call::Patch { .. } | Call::Create) {
            return Ok((call, request));
        }
        let (parts, body) = request.into_parts();
        let body = body
            .collect_bytes()
            .now_or_never()
            .ok_or(Error::Streamed)??;
        let mut write: Value = serde_json::from_slice(&body)?;
        if let Call::Patch { base } = &mut call {
            let read = self.seen.0.lock().read.take();
            *base = read.ok_or(Error::WriteWithoutRead)?;
            write["metadata"]["resourceVersion"] = base.clone().into();
        } else if let Some(spec) = write["spec"].as_object_mut() {
            spec.retain(|field, _| !HELD.contains(&field.as_str()));
        }
        self.seen.0.lock().writing = true;
        let date = serde_json::to_value(MicroTime(self.date()))?;
        for field in DATES {
            if let Some(field) = write["spec"].get_mut(field) {
                *field = date.clone();
            }
        }
        let body = Body::from(serde_json::to_vec(&write)?);
        Ok((call, Request::from_parts(parts, body)))
    }

    /// What the next write is dated. The others go by its being another date than before, and by a later one to tell a Lease that
    /// was given back, so that it moves on with each, from what was read, too, though the clock stands still or is behind (H11);
    /// but for a date that is so far ahead that no clock of a leader's can have had it (H16).
    fn date(&self) -> Timestamp {
        let mut seen = self.seen.0.lock();
        let now = self.host.now();
        let is_believable = |date: &Timestamp| date.duration_since(now) < BELIEVED;
        let renewed = seen.observed.renewed().filter(is_believable);
        let last = seen.dated.max(renewed.unwrap_or(Timestamp::MIN));
        let next = last.saturating_add(MOVES_ON).unwrap_or(Timestamp::MAX);
        seen.dated = if is_believable(&next) {
            now.max(next)
        } else {
            now
        };
        seen.dated
    }

    /// Looks at the reply to a request for the Lease.
    fn reply(&self, call: &Call, status: StatusCode, body: Bytes) -> Result<Bytes, BoxError> {
        if matches!(call, Call::Patch { .. } | Call::Create) {
            self.seen.0.lock().writing = false;
        }
        match call {
            Call::Read { known } if status == StatusCode::NOT_FOUND => {
                let mut seen = self.seen.0.lock();
                seen.read = None;
                if seen.version > *known && seen.observed.exists() {
                    return Err(Error::Overtaken.into());
                }
                seen.observed.observe(self.host.clock.now(), None);
                Ok(body)
            }
            Call::Read { known } if status.is_success() => {
                let (lease, record) = self.parse(&body)?;
                let lease = self.read(lease, record, *known).ok_or(Error::Overtaken)?;
                Ok(serde_json::to_vec(&lease)?.into())
            }
            Call::Patch { .. } | Call::Create if status.is_success() => {
                let (mut lease, record) = self.parse(&body)?;
                if let Call::Patch { base } = call
                    && !is_newer(&lease, base)
                {
                    return Err(Error::Unchanged(base.clone()).into());
                }
                self.see(version(&lease), Some(record.clone()));
                lease.spec = Some(spec(record));
                Ok(serde_json::to_vec(&lease)?.into())
            }
            _ => Ok(body),
        }
    }
}

/// Marks a request, by its extensions, that has nothing to do with what the lock does, which may be at it: a read of the Lease
/// that is none of the lock's is not what its next write is based on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside;

/// What a request is to the guard.
enum Call {
    /// GET of a Lease, the newest known version of which was this.
    Read { known: u64 },
    /// PATCH of a Lease, based on this resourceVersion.
    Patch { base: String },
    /// POST of a Lease: the API server lets one of several through by itself (H10), and it is nobody's (H12).
    Create,
    /// A stream, which ends when it ends; only its beginning is bounded.
    Watch,
    /// Anything else: a list, an event.
    Other,
}

impl Call {
    fn of<B>(request: &Request<B>) -> Self {
        let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let leases = path.starts_with(&["apis", "coordination.k8s.io"]);
        match (request.method(), path.as_slice()) {
            _ if request.extensions().get::<Aside>().is_some() => Self::Other,
            (&Method::GET, _)
                if request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains("watch=true")) =>
            {
                Self::Watch
            }
            (&Method::GET, [.., "leases", _]) if leases => Self::Read { known: 0 },
            (&Method::PATCH, [.., "leases", _]) if leases => Self::Patch {
                base: String::new(),
            },
            (&Method::POST, [.., "leases"]) if leases => Self::Create,
            _ => Self::Other,
        }
    }
}

impl<S> Layer<S> for LeaseGuardLayer {
    type Service = Layered<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(self, inner)
    }
}

impl<S, B> Around<S, Request<Body>> for LeaseGuardLayer
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;

    fn around(
        &self,
        request: Request<Body>,
        inner: &mut S,
    ) -> BoxFuture<'static, Result<Self::Response, BoxError>> {
        let guard = self.clone();
        let (call, request) = match guard.condition(request) {
            Ok(conditional) => conditional,
            Err(error) => return Box::pin(future::ready(Err(error))),
        };
        let timeout = guard.timeout;
        let reply = inner.call(request);
        let reply = async move {
            let (parts, body) = reply.await.map_err(Into::into)?.into_parts();
            if matches!(call, Call::Watch) {
                return Ok(Response::from_parts(parts, Either::Left(body)));
            }
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            let body = guard.reply(&call, parts.status, body)?;
            Ok(Response::from_parts(parts, Either::Right(Full::new(body))))
        };
        Box::pin(async move {
            tokio::time::timeout(timeout, reply)
                .await
                .map_err(|_| Error::TimedOut(timeout))?
        })
    }
}

#[cfg(test)]
mod tests;
