//! The fence: a tower layer of the controller's client that rejects writes after the end of the term.
//!
//! A mutation needs a live term: this replica leads until a known deadline (`term.rs`). The mutation ends before another
//! replica can take the Lease. The API server enforces that: it drops a request after its `timeout=` instead of carrying it out
//! late.
//!
//! The fence checks the term again when the request is handed to its connection ([`recheck_before_sending`]), and when the
//! connection hands it to the kernel (`connection.rs`). A write that was delayed before either step, for example in a frozen
//! process, is not sent late.
//!
//! Reads pass, because a standby keeps its caches warm. Events and access reviews pass too, because they change nothing that is
//! reconciled.
//!
//! With the fencing policy (`deploy/components/fencing`), the API server performs the same check. The fence reports a rejection
//! by the policy to the election, which rereads the Lease and renews the fencing record. If the policy continues to reject a
//! leader's writes, the fence logs a warning and sets a metric.

use self::{in_flight::Write, term::Term};
#[cfg(feature = "operator")]
use crate::telemetry::state;
use crate::{
    api::status::is_denied,
    client::{
        instrumented::FailedBy,
        middleware::{Middleware, MiddlewareService},
    },
    telemetry::{
        log_once::OutageLog,
        metrics::{Metrics, table},
    },
};
use futures::future::{self, BoxFuture};
use http::{Method, Request, Response, StatusCode, Uri, uri::Parts};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use kube::{
    Client,
    client::{Body, ClientBuilder},
    core::Status,
};
use opentelemetry::metrics::{BoundCounter, BoundGauge};
use parking_lot::Mutex;
use std::{
    error::Error as StdError,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tower::{BoxError, Layer, Service, service_fn};
use tracing::{debug, info, warn};

use permit::Permit;
pub use permit::Refused;

/// The fence reports rejections by the fencing policy if they last for this time. During a handover they last about 10 ms.
const REJECTED_FOR: Duration = Duration::from_secs(10);

/// Time to wait for a response after the `timeout=` of the request.
const ANSWER: Duration = Duration::from_millis(500);

/// No response arrived within the duration. The outcome of the write is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer from the API server in {0:?}; the write may or may not have happened")]
pub struct TimedOut(pub Duration);

/// Whether the fence or the API server's fencing policy rejected this call. If so, nothing was written.
#[must_use]
pub fn is_refused(error: &(dyn StdError + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(error) = source {
        // `source` skips the error that an `io::Error` wraps.
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        if error.is::<Refused>() || inner.is_some_and(<dyn StdError + Send + Sync>::is::<Refused>) {
            return true;
        }
        source = error.source();
    }
    false
}

/// Classifies the error of a request without a response, for `RequestLayer`.
#[must_use]
pub(crate) fn failed_by(error: &BoxError) -> FailedBy {
    if error.is::<Refused>() {
        FailedBy::Layer("fence")
    } else if error.is::<TimedOut>() {
        FailedBy::Timeout
    } else {
        FailedBy::Connection
    }
}

/// The fence: a layer for [`kube::client::ClientBuilder::with_layer`] that rejects writes while this replica does not lead.
///
/// A write needs a live [`Term`]. It ends before another replica can take the Lease. The fence sets `timeout=` in its URL, from
/// 1 ms to 35 s, and replaces the `timeout` of the caller. After that time, the API server cancels the request
/// (`WithRequestDeadline` in `k8s.io/apiserver`).
///
/// Without a term, these requests pass: `GET`, `HEAD` and `OPTIONS`, events, access reviews and token reviews.
///
/// # Errors
/// A write fails with [`Refused`] if it was not sent, or if the fencing policy rejected it: [`is_refused`]. It fails with
/// [`TimedOut`] if the API server has not responded 500 ms after the `timeout=`. Then its outcome is unknown.
#[derive(Clone, Debug)]
pub struct FenceLayer {
    term: watch::Receiver<Option<Term>>,
    refusals: BoundCounter<u64>,
    rejecting: BoundGauge<u64>,
    /// Substring of the fencing policy's name.
    policy: Arc<str>,
    rejections: Arc<Mutex<Option<Rejections>>>,
}

/// Rejections by the fencing policy in one term, without an admitted write in between.
#[derive(Debug)]
struct Rejections {
    term: u64,
    since: Instant,
    /// Logged messages of the policy.
    reported: OutageLog,
}

impl FenceLayer {
    /// Creates a fence that is open while `term` holds a live term. Its rejections are counted in `metrics`.
    #[must_use]
    pub fn new(term: watch::Receiver<Option<Term>>, metrics: &Metrics) -> Self {
        let refusals = metrics.counter(&table::FENCE_REFUSALS, &[]);
        let rejecting = metrics.gauge(&table::FENCING_REJECTS_LEADER, &[]);
        rejecting.record(0);
        Self {
            term,
            refusals,
            rejecting,
            policy: format!("{}-fencing", metrics.app().name).into(),
            rejections: Arc::default(),
        }
    }

    /// Returns `client` behind this fence: its writes fail without a live term.
    ///
    /// This is weaker than [`Candidate::client`](crate::Candidate::client). The term is checked only when a write is passed to the
    /// client. A later delay is not noticed: after a freeze of the process, a retry, or a wait in a proxy or the kernel, the write
    /// may arrive after the end of the term. Use it only for a client with layers of your own. Disable its retries
    /// (`kube::Config::default_retry = false`), and install the fencing policy of the API server (`deploy/components/fencing`).
    #[must_use]
    pub fn wrap(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let service = service_fn(move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        ClientBuilder::new(service, namespace)
            .with_layer(self)
            .build()
    }

    /// Admits a mutation and sets its `timeout=`. Fails without a live term, unless the request is [exempt](is_exempt).
    /// Attaches the permit for the later checks.
    fn admit(&self, request: &mut Request<Body>) -> Result<(Duration, Option<Write>), BoxError> {
        let mut limit = permit::DEFAULT_WEBHOOK;
        let mut write = None;
        if !is_exempt(request.uri().path()) {
            limit = permit::limit(permit::room(&self.term).ok_or_else(|| self.refused())?);
            let term = self.term.borrow();
            write = term.as_ref().map(|term| term.writes().begin(limit));
            request.extensions_mut().insert(Permit {
                term: self.term.clone(),
                limit,
                write: write.clone(),
            });
        }
        *request.uri_mut() = with_timeout(request.uri(), limit)?;
        Ok((limit, write))
    }

    /// Returns the term and the state of the fence, for `/debug/state`.
    #[cfg(feature = "operator")]
    pub(crate) fn state(&self) -> (Option<state::Term>, state::Fence) {
        let term = self.term.borrow().clone();
        let rejections = self.rejections.lock();
        let ours = term.as_ref().map(Term::id);
        let rejected = rejections.as_ref().filter(|it| Some(it.term) == ours);
        let fence = state::Fence {
            open: permit::room(&self.term).is_some(),
            record: None,
            policy_rejects_for_seconds: rejected.map(|it| state::seconds(it.since.elapsed())),
        };
        (term.and_then(|term| term.state()), fence)
    }

    fn refused(&self) -> Refused {
        self.refusals.add(1);
        Refused
    }

    /// Handles a rejection by the fencing policy. Makes the election reread the Lease, and reports rejections that continue.
    fn rejected(&self, message: &str) {
        let term = self.term.borrow().clone();
        let Some(term) = term.filter(|term| term.remaining().is_some()) else {
            info!("the fencing policy rejected a late write: {message}");
            return;
        };
        term.report_rejection(message);
        let mut rejections = self.rejections.lock();
        let Some(earlier) = rejections.as_mut().filter(|r| r.term == term.id()) else {
            info!("the fencing policy rejected a write, rereading the Lease: {message}");
            self.rejecting.record(0);
            *rejections = Some(Rejections {
                term: term.id(),
                since: Instant::now(),
                reported: OutageLog::default(),
            });
            return;
        };
        let lasted = earlier.since.elapsed();
        if lasted < REJECTED_FOR {
            debug!("the fencing policy rejected a write: {message}");
            return;
        }
        self.rejecting.record(1);
        if earlier.reported.is_new(message) {
            warn!(
                "the fencing policy has rejected this leader's writes for {lasted:.0?}, though it holds the Lease: {message}. \
                 Do the names in the fencing component agree with the controller's, and may it write the record?"
            );
        }
    }

    /// Records that the API server admitted a write.
    fn admitted(&self) {
        if self.rejections.lock().take().is_some() {
            self.rejecting.record(0);
        }
    }
}

/// Second check of the fence, for the innermost service of a client.
///
/// Checks again whether a write may be sent when hyper puts its bytes into the connection. The write may have waited for a
/// connection until then.
pub fn recheck_before_sending(mut request: Request<Body>) -> Request<Guarded> {
    let permit = request.extensions_mut().remove();
    let permit = permit.map(|permit| (permit, capture_connection(&mut request)));
    request.map(|body| Guarded { body, permit })
}

/// Request body that ends in [`Refused`] if the request must no longer be sent. hyper then drops the connection and the bytes
/// that it prepared.
#[derive(Debug)]
pub struct Guarded {
    body: Body,
    permit: Option<(Permit, CaptureConnection)>,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some((permit, connection)) = self.permit.take() {
            if !permit.is_valid() {
                return Poll::Ready(Some(Err(Refused.into())));
            }
            permit.write.iter().for_each(Write::sent);
            connection::begin(&connection, permit);
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.permit.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.permit.is_some() && self.body.is_end_stream() {
            // hyper does not poll a body that it knows to be empty.
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

/// Returns [`Refused`] without the HTTP client's errors around it. Other errors are unchanged.
fn plain(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    if is_refused(&*error) {
        Refused.into()
    } else {
        error
    }
}

/// Whether a write needs no leader: events, access reviews and token reviews.
pub(crate) fn is_exempt(path: &str) -> bool {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    matches!(
        path.as_slice(),
        ["api", "v1", "namespaces", _, "events", ..]
            | ["apis", "events.k8s.io", _, "namespaces", _, "events", ..]
            | ["apis", "authorization.k8s.io" | "authentication.k8s.io", ..]
    )
}

/// Returns the message of the fencing `policy` if this response is its rejection of a write.
///
/// The code is 403, or 422 if the policy could not be evaluated. Only the messages of the causes are compared: the policy alone
/// determines them. The message of the `Status` begins with names that users choose, which could imitate the policy's name.
fn denial(policy: &str, code: StatusCode, body: &[u8]) -> Option<String> {
    if !matches!(code.as_u16(), 403 | 422) {
        return None;
    }
    let details = serde_json::from_slice::<Status>(body).ok()?.details?;
    let mut messages = details.causes.into_iter().map(|cause| cause.message);
    messages.find(|message| {
        let names = message.strip_prefix("ValidatingAdmissionPolicy '");
        names
            .and_then(|names| names.split_once('\''))
            .is_some_and(|(name, _)| name.contains(policy))
    })
}

/// Whether a webhook rejected the write or could not be called. Webhooks are called before the API server writes, so nothing
/// was written. Without this check, such a write would still count as in flight, and a stopping leader would not release the
/// Lease.
fn is_from_a_webhook(code: StatusCode, body: &[u8]) -> bool {
    code.is_server_error()
        && serde_json::from_slice::<Status>(body).is_ok_and(|status| is_denied(&status.message))
}

/// Sets `timeout=` in the URI. The API server counts this Go duration from the arrival of the request, then cancels the request
/// and its write to etcd. It takes the first `timeout` of a URI, so the caller's is removed.
fn with_timeout(uri: &Uri, limit: Duration) -> Result<Uri, http::Error> {
    let query = uri.query().unwrap_or_default().split('&');
    let own = query.filter(|pair| pair.split('=').next() != Some("timeout"));
    let limit = format!("timeout={}ms", limit.as_millis());
    let query: Vec<_> = own.chain([&*limit]).collect();
    let query = query.join("&");
    let query = if uri.query().is_some() {
        &query
    } else {
        &limit
    };
    let path = format!("{}?{query}", uri.path());
    let mut parts: Parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

impl<S> Layer<S> for FenceLayer {
    type Service = MiddlewareService<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        MiddlewareService::new(self, inner)
    }
}

impl<S, B> Middleware<S, Request<Body>> for FenceLayer
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
        mut request: Request<Body>,
        inner: &mut S,
    ) -> BoxFuture<'static, Result<Self::Response, BoxError>> {
        if matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        ) {
            let reply = inner.call(request);
            return Box::pin(async move { Ok(reply.await.map_err(Into::into)?.map(Either::Left)) });
        }
        let (limit, write) = match self.admit(&mut request) {
            Ok(admitted) => admitted,
            Err(error) => return Box::pin(future::ready(Err(error))),
        };
        let fence = self.clone();
        let judged = !is_exempt(request.uri().path());
        let reply = inner.call(request);
        let reply = async move {
            let reply = reply.await.map_err(plain).inspect_err(|error| {
                if is_refused(&**error) {
                    fence.refused();
                    write.iter().for_each(Write::over);
                }
            })?;
            let (parts, body) = reply.into_parts();
            // A response means that the write has ended, except for 5xx. The sender of a 5xx may have stopped waiting: the API
            // server for etcd, or a proxy for the API server.
            if !parts.status.is_server_error() {
                write.iter().for_each(Write::over);
            }
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            if is_from_a_webhook(parts.status, &body) {
                write.iter().for_each(Write::over);
            }
            if let Some(message) = denial(&fence.policy, parts.status, &body) {
                fence.rejected(&message);
                return Err(fence.refused().into());
            }
            if judged && parts.status.is_success() {
                fence.admitted();
            }
            Ok(Response::from_parts(parts, Either::Right(Full::new(body))))
        };
        Box::pin(async move {
            // The API server's own timeout error is more precise, so it gets time to arrive.
            let wait = limit + ANSWER;
            tokio::time::timeout(wait, reply)
                .await
                .map_err(|_| TimedOut(wait))?
        })
    }
}

pub(crate) mod connection;
pub(crate) mod eligibility;
pub(crate) mod in_flight;
pub(crate) mod permit;
pub(crate) mod rejections;
pub(crate) mod term;
#[cfg(test)]
mod tests;
