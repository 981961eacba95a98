//! The lease guard: a tower layer that makes `kube-leader-election` safe.
//!
//! It sits in the client of the lock, and changes requests and responses:
//! - A write is conditional on the version that was read. A creation has no holder.
//! - Expiry depends on how long this process has seen the Lease unchanged, never on the times in it.
//! - A write that changed nothing is a failure.
//! - Every call ends in bounded time.
//!
//! Use one guard per lock, and one call of the lock at a time.

use super::observed_lease::{ObservedRecord, Record};
use crate::{
    client::{
        instrumented::FailedBy,
        middleware::{Middleware, MiddlewareService},
    },
    config::environment::Host,
    telemetry::fencing_record::FencingRecordState,
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
use serde::Deserialize as _;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tower::{BoxError, Layer, Service};

/// Times that replace `renewTime` in a Lease that the lock reads. They are far from any clock that is merely wrong.
const LONG_AGO: Timestamp = Timestamp::UNIX_EPOCH;
const FAR_AHEAD: Timestamp = Timestamp::constant(200_000_000_000, 0);

/// Minimum step between the times of two writes: the resolution of the times in a Lease.
const MIN_TIMESTAMP_STEP: SignedDuration = SignedDuration::from_micros(1);

/// Longest time that a silent holder keeps the Lease: the longest lease duration that the configuration permits.
const LONGEST: Duration = Duration::from_hours(1);
/// Range of credible times ahead of this process's clock. The next write need not follow a time outside it.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);
/// Duration of a released Lease, in seconds.
const RELEASED: u64 = 1;
/// Fields of the holder, which the lock sets when it creates a Lease.
const HOLDER_FIELDS: [&str; 3] = ["holderIdentity", "acquireTime", "renewTime"];

/// Times that the lock sets in a write.
const DATES: [&str; 2] = ["acquireTime", "renewTime"];

/// Reason why the guard failed a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A write of the Lease without a read since the last write, or after the read of a restored copy.
    #[error("Lease write without a preceding read")]
    WriteWithoutRead,
    /// The response is older than the version that the watch delivered during the request.
    #[error("response is older than the watch")]
    StaleResponse,
    /// The API server treated the write as unchanged, so no other replica sees it.
    #[error("the write did not change the Lease (resourceVersion {0}), or the response is older")]
    Unchanged(String),
    /// The body of the write is not in memory. kube sends no such write.
    #[error("a Lease write with a streamed body")]
    Streamed,
    /// The call exceeded this timeout.
    #[error("no answer from the API server in {0:?}")]
    TimedOut(Duration),
}

/// Classifies the failure of a request without a response, for `RequestLayer`.
#[must_use]
pub(crate) fn failed_by(error: &BoxError) -> FailedBy {
    match error.downcast_ref() {
        Some(Error::TimedOut(_)) => FailedBy::Timeout,
        Some(_) => FailedBy::Layer("lease_guard"),
        None => FailedBy::Connection,
    }
}

/// The guard: a layer for the Lease's client, and its observations of the Lease.
#[derive(Clone)]
pub struct LeaseGuardLayer {
    seen: SeenLease,
    host: Host,
    timeout: Duration,
    duration: Duration,
}

/// The observations of a guard, for other readers.
#[derive(Clone, Default)]
pub struct SeenLease(Arc<Mutex<Seen>>);

#[cfg(feature = "operator")]
impl SeenLease {
    /// Returns the state of the Lease `name` at `now`, for `/debug/state`; `None` if it was never seen.
    pub(crate) fn state(
        &self,
        name: &str,
        now: Duration,
    ) -> Option<crate::telemetry::state::Lease> {
        self.0.lock().observed.state(name, now)
    }

    /// Returns the state of the fencing record; `None` while this process does not lead.
    pub(crate) fn record(&self) -> Option<FencingRecordState> {
        self.0.lock().record
    }
}

#[derive(Default)]
struct Seen {
    /// resourceVersion of the last read, until a write uses it.
    read: Option<String>,
    /// Newest version seen: a watch may be served by an API server that is behind.
    version: u64,
    observed: ObservedRecord,
    /// The holder when this process first saw the Lease.
    found: Option<String>,
    /// End of this process's term, if it has one.
    deadline: Duration,
    /// Time in the last write.
    dated: Timestamp,
    /// Whether the API server rejects `acquireTime` as it is stored: Go prints years that it does not parse.
    has_invalid_date: bool,
    /// Whether a write has no response yet.
    writing: bool,
    record: Option<FencingRecordState>,
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

/// Returns whether the Lease is newer than the version that the write was based on.
fn is_newer(lease: &Lease, base: &str) -> bool {
    base.parse().map_or_else(
        |_| lease.metadata.resource_version.as_deref() != Some(base),
        |base: u64| version(lease) > base,
    )
}

impl LeaseGuardLayer {
    /// Creates a guard with the clocks of `host`. It limits each call to `timeout`, and treats `duration` as the minimum
    /// duration of a Lease.
    #[must_use]
    pub fn new(host: Host, timeout: Duration, duration: Duration) -> Self {
        Self {
            seen: SeenLease::default(),
            host,
            timeout,
            duration,
        }
    }

    /// Shares the observations through `seen`.
    #[must_use]
    pub fn seeing(self, seen: SeenLease) -> Self {
        Self { seen, ..self }
    }

    /// Records the state of this process's fencing record, while it leads.
    pub(crate) fn record_is(&self, record: Option<FencingRecordState>) {
        self.seen.0.lock().record = record;
    }

    /// Records a Lease from another source than the lock's reads, such as a watch. Returns whether it is a change, or `None` if
    /// it is older than the known version. A write still needs a read by the lock.
    #[must_use]
    pub fn observe(&self, lease: &Lease) -> Option<bool> {
        self.see(version(lease), Some(self.record(lease)))
    }

    /// Records a deleted Lease, with the version of its deletion. Returns the same as [`observe`](Self::observe).
    #[must_use]
    pub fn observe_deleted(&self, lease: &Lease) -> Option<bool> {
        self.see(version(lease), None)
    }

    fn see(&self, version: u64, record: Option<Record>) -> Option<bool> {
        let now = self.host.clock.now();
        let mut seen = self.seen.0.lock();
        if version < seen.version {
            let is_copy = record.is_some_and(|older| seen.observed.observe_older(now, &older));
            // A write that is not sent yet must not be based on the copy either.
            seen.read.take_if(|_| is_copy);
            return None;
        }
        seen.version = version;
        Some(seen.take(now, record))
    }

    /// Returns the last observation of the Lease.
    #[must_use]
    pub fn observed(&self) -> ObservedRecord {
        self.seen.0.lock().observed.clone()
    }

    /// Returns whether the lock's last request is a write without a response.
    pub(crate) fn is_writing(&self) -> bool {
        self.seen.0.lock().writing
    }

    /// Returns whether the Lease had another holder, or none, when this process first saw it.
    pub(crate) fn found_held_by_another(&self, identity: &str) -> bool {
        let seen = self.seen.0.lock();
        seen.found
            .as_deref()
            .is_some_and(|holder| holder != identity)
    }

    /// Records the end of this process's term, if it has one. Until then, this process may take back a deleted Lease.
    pub(crate) fn leads_until(&self, deadline: Option<Duration>) {
        self.seen.0.lock().deadline = deadline.unwrap_or_default();
    }

    fn record(&self, lease: &Lease) -> Record {
        let spec = serde_json::to_value(&lease.spec).unwrap_or_default();
        self.record_of(lease, &spec)
    }

    /// Reads the content of a Lease. Any client may have written it, and no value in it may prevent a takeover forever.
    fn record_of(&self, lease: &Lease, spec: &Value) -> Record {
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| spec[field].as_i64().unwrap_or_default();
        let duration = u64::try_from(number("leaseDurationSeconds")).unwrap_or_default();
        let time = |field: &str| text(field).parse::<Timestamp>().ok();
        let (holder, renewed) = (text("holderIdentity"), time("renewTime"));
        // The lock adds 1, and the API server rejects negative numbers.
        let transitions = i32::try_from(number("leaseTransitions")).unwrap_or_default();
        let transitions = transitions.max(0).checked_add(1).map_or(0, |next| next - 1);
        let version = lease.metadata.resource_version.clone();
        Record {
            uid: lease.metadata.uid.clone().unwrap_or_default(),
            vacant_at: version.filter(|_| holder.is_empty()).unwrap_or_default(),
            // At least the own duration: another client may have shortened that of the Lease.
            duration: Duration::from_secs(duration)
                .clamp(self.duration, LONGEST.max(self.duration)),
            // A holder releases a Lease with these values, as client-go does. An edit by hand clears only the holder.
            released: holder.is_empty()
                && duration == RELEASED
                && renewed.is_some()
                && renewed == time("acquireTime"),
            holder,
            renewed,
            transitions,
        }
    }

    /// Parses a Lease without its spec, which may be invalid, and the content of the spec.
    fn parse(&self, body: &[u8]) -> Result<(Lease, Record), serde_json::Error> {
        let mut lease: Value = serde_json::from_slice(body)?;
        let spec = lease.as_object_mut().and_then(|lease| lease.remove("spec"));
        let spec = spec.unwrap_or_default();
        let acquired = Option::<MicroTime>::deserialize(&spec["acquireTime"]);
        self.seen.0.lock().has_invalid_date = acquired.is_err();
        let lease: Lease = serde_json::from_value(lease)?;
        let record = self.record_of(&lease, &spec);
        Ok((lease, record))
    }

    /// Returns the Lease that the lock reads. No field is missing, and it has expired exactly if this process considers it
    /// free.
    ///
    /// Returns `None` if the watch has delivered a newer version since the read began, when `known` was the newest. Otherwise
    /// the newer version would be lost. A version older than `known` is the current one after an etcd restore.
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
            // The lock adds the duration to the time.
            lease_duration_seconds: Some(1),
            ..spec(record)
        });
        Some(lease)
    }

    /// Prepares a request. A patch gets the resourceVersion of the read that it is based on, and each read serves one patch. A
    /// creation has no precondition and may land late, so it names no holder. The host's clock replaces the times of the lock.
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
            spec.retain(|field, _| !HOLDER_FIELDS.contains(&field.as_str()));
        }
        let has_invalid_date = {
            let mut seen = self.seen.0.lock();
            seen.writing = true;
            seen.has_invalid_date
        };
        let date = serde_json::to_value(MicroTime(self.date()))?;
        if let Some(spec) = write["spec"].as_object_mut() {
            // A renewal does not contain `acquireTime`, but the API server checks the whole Lease.
            if has_invalid_date && matches!(call, Call::Patch { .. }) {
                spec.insert("acquireTime".to_owned(), Value::Null);
            }
            for field in DATES {
                if let Some(field) = spec.get_mut(field) {
                    *field = date.clone();
                }
            }
        }
        let body = Body::from(serde_json::to_vec(&write)?);
        Ok((call, Request::from_parts(parts, body)))
    }

    /// Returns the time for the next write, later than the last one written or read.
    ///
    /// Other replicas recognize a renewal by a changed time, and a release by a later time. So the time advances even if the
    /// clock stands still or is behind. A time that is too far ahead for any leader's clock is ignored.
    fn date(&self) -> Timestamp {
        let mut seen = self.seen.0.lock();
        let now = self.host.now();
        let is_believable = |date: &Timestamp| date.duration_since(now) < MAX_CLOCK_SKEW;
        let renewed = seen.observed.renewed().filter(is_believable);
        let last = seen.dated.max(renewed.unwrap_or(Timestamp::MIN));
        let next = last
            .saturating_add(MIN_TIMESTAMP_STEP)
            .unwrap_or(Timestamp::MAX);
        seen.dated = if is_believable(&next) {
            now.max(next)
        } else {
            now
        };
        seen.dated
    }

    /// Checks and rewrites the response to a request for the Lease.
    fn reply(&self, call: &Call, status: StatusCode, body: Bytes) -> Result<Bytes, BoxError> {
        if matches!(call, Call::Patch { .. } | Call::Create) {
            self.seen.0.lock().writing = false;
        }
        match call {
            Call::Read { known } if status == StatusCode::NOT_FOUND => {
                let mut seen = self.seen.0.lock();
                seen.read = None;
                if seen.version > *known && seen.observed.exists() {
                    return Err(Error::StaleResponse.into());
                }
                seen.observed.observe(self.host.clock.now(), None);
                Ok(body)
            }
            Call::Read { known } if status.is_success() => {
                let (lease, record) = self.parse(&body)?;
                let lease = self
                    .read(lease, record, *known)
                    .ok_or(Error::StaleResponse)?;
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

/// Request extension that bypasses the guard. A read by other code must not become the base of the lock's next write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BypassGuard;

/// Kind of a request for the guard.
enum Call {
    /// GET of a Lease. `known` is the newest known version when it begins.
    Read { known: u64 },
    /// PATCH of a Lease, based on this resourceVersion.
    Patch { base: String },
    /// POST of a Lease. The API server accepts one of several, and the Lease has no holder.
    Create,
    /// A watch. Only its start is bounded in time.
    Watch,
    /// PATCH of the fencing record, which may take longer than a renewal. Its sender limits the time.
    Record,
    /// Any other request, such as a list or an event.
    Other,
}

impl Call {
    fn of<B>(request: &Request<B>) -> Self {
        let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let leases = path.starts_with(&["apis", "coordination.k8s.io"]);
        match (request.method(), path.as_slice()) {
            _ if request.extensions().get::<BypassGuard>().is_some() => Self::Other,
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
            (&Method::PATCH, [.., "serviceaccounts", _]) => Self::Record,
            _ => Self::Other,
        }
    }
}

impl<S> Layer<S> for LeaseGuardLayer {
    type Service = MiddlewareService<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        MiddlewareService::new(self, inner)
    }
}

impl<S, B> Middleware<S, Request<Body>> for LeaseGuardLayer
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
        let timeout = match call {
            Call::Record => Duration::MAX,
            _ => guard.timeout,
        };
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
