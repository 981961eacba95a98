//! The fence: a tower layer in the work's client that lets no write past the end of the term (H6, I2).
//!
//! A mutation needs a live term, ends with it at the latest, and tells the API server so (`timeout=`), which then drops
//! it rather than carry it out late. It needs the term again when it is handed to its connection ([`recheck_before_sending`]):
//! what waited for a connection, or in a process that was frozen, is not sent late. Reads pass: a standby keeps its
//! caches warm. So do events, which tell people what happened and harm nobody, and reviews, which store nothing.
//!
//! Where the cluster has the fencing policy (`deploy/components/fencing`), the API server checks the same. Its refusal
//! is then told to the election, which looks at the Lease anew, and has the policy know this leader. Where it goes on
//! rejecting the writes of a leader, that is reported.

use super::{term::Term, writes::Write};
use crate::{
    config::{MUTATION_TIMEOUT, grace},
    layer::{Around, Layered},
    log_once::Causes,
    telemetry::{Metrics, metrics::table},
};
use futures::future::{self, BoxFuture};
use http::{
    Method, Request, Response, StatusCode, Uri,
    uri::{Parts, PathAndQuery},
};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use kube::{client::Body, core::Status};
use opentelemetry::metrics::{BoundCounter, BoundGauge};
use parking_lot::Mutex;
use std::{
    error::Error as StdError,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tower::{BoxError, Layer, Service};
use tracing::{debug, info, warn};

/// How long the fencing policy may reject a leader's writes before it is reported: a thousand times what a hand-over takes.
const REJECTED_FOR: Duration = Duration::from_secs(10);

/// A write that was not sent, or that the API server refused, because this replica does not lead, or no longer did when
/// the write's turn came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused to write: this replica does not lead")]
pub struct Refused;

/// A write whose fate is unknown: no answer came in this time, or before the term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer from the API server in {0:?}; the write may or may not have happened")]
pub struct TimedOut(pub Duration);

/// Whether the fence, or the API server's fencing policy, refused this call: nothing was written.
#[must_use]
pub fn is_refused(error: &(dyn StdError + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(error) = source {
        if error.is::<Refused>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The fence, as a layer for [`kube::client::ClientBuilder::with_layer`].
#[derive(Clone, Debug)]
pub struct FenceLayer {
    term: watch::Receiver<Option<Term>>,
    refusals: BoundCounter<u64>,
    rejecting: BoundGauge<u64>,
    /// What the name of the fencing policy contains.
    policy: Arc<str>,
    rejections: Arc<Mutex<Option<Rejections>>>,
}

/// Writes that the fencing policy rejected, with none admitted in between, in one term.
#[derive(Debug)]
struct Rejections {
    term: u64,
    since: Instant,
    /// The policy's messages, as far as they were reported.
    reported: Causes,
}

impl FenceLayer {
    /// A fence that is open while `term` holds a live term, and counts in `metrics` what it refuses.
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

    /// Lets a mutation begin: tells it how long it may take, and what its connection asks again.
    fn admit(&self, request: &mut Request<Body>) -> Result<(Duration, Option<Write>), BoxError> {
        let mut limit = MUTATION_TIMEOUT;
        let mut write = None;
        if !harmless(request.uri().path()) {
            limit = limit.min(self.left().ok_or_else(|| self.refused())?);
            let fence = self.clone();
            let term = self.term.borrow();
            write = term.as_ref().map(|term| term.writes().begin(limit));
            request.extensions_mut().insert(Leave {
                fence,
                limit,
                write: write.clone(),
            });
        }
        *request.uri_mut() = with_timeout(request.uri(), limit)?;
        Ok((limit, write))
    }

    /// What is left of the term, if it is live.
    fn left(&self) -> Option<Duration> {
        let left = self.term.borrow().as_ref().and_then(Term::remaining);
        // The API server takes `timeout=0ms` for "none".
        left.filter(|left| *left >= Duration::from_millis(1))
    }

    fn refused(&self) -> Refused {
        self.refusals.add(1);
        Refused
    }

    /// Takes note that the fencing policy rejected a write: has the election look at the Lease, and reports what that does
    /// not mend.
    fn rejected(&self, message: &str) {
        let term = self.term.borrow().clone();
        let Some(term) = term.filter(|term| term.remaining().is_some()) else {
            info!("the fencing policy rejected a late write: {message}");
            return;
        };
        term.dispute();
        let mut rejections = self.rejections.lock();
        let Some(earlier) = rejections.as_mut().filter(|r| r.term == term.id()) else {
            info!("the fencing policy rejected a write, looking at the Lease: {message}");
            self.rejecting.record(0);
            *rejections = Some(Rejections {
                term: term.id(),
                since: Instant::now(),
                reported: Causes::default(),
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
                 Do the names in components/fencing agree with the controller's, and may it write the record? \
                 docs/operations.md, \"Server-side fencing\""
            );
        }
    }

    /// Takes note that the API server admitted a write.
    fn admitted(&self) {
        if self.rejections.lock().take().is_some() {
            self.rejecting.record(0);
        }
    }
}

/// Leave to write, as it was when the write began.
#[derive(Clone, Debug)]
struct Leave {
    fence: FenceLayer,
    /// How long the API server is told that it may take, from when it gets it.
    limit: Duration,
    write: Option<Write>,
}

impl Leave {
    /// Whether the write can still be sent. The API server may then carry it out for `limit`, so that has to end with
    /// the term. A [`grace`] is given to that, since each write waits a little on its way to here; the configuration has the
    /// Lease last longer than that and the way to the API server.
    fn holds(&self) -> bool {
        let left = self.fence.left();
        left.is_some_and(|left| left.saturating_add(grace(self.limit)) >= self.limit)
    }
}

/// The other half of the fence, for the innermost service of a client: asks again whether a write may be sent, at the
/// moment when hyper puts its bytes into the connection. Until then it may have waited for one, or for its turn.
pub fn recheck_before_sending(mut request: Request<Body>) -> Request<Guarded> {
    let leave = request.extensions_mut().remove();
    request.map(|body| Guarded { body, leave })
}

/// The body of a request, which ends in [`Refused`] where the request must not be sent any more. hyper then drops the
/// connection, and with it what it had prepared to send.
#[derive(Debug)]
pub struct Guarded {
    body: Body,
    leave: Option<Leave>,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(leave) = self.leave.take() {
            if !leave.holds() {
                return Poll::Ready(Some(Err(leave.fence.refused().into())));
            }
            leave.write.iter().for_each(Write::sent);
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.leave.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.leave.is_some() && self.body.is_end_stream() {
            // hyper does not look into what it knows to be empty.
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

/// An error without what HTTP says around a refusal.
fn plain(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    if is_refused(&*error) {
        Refused.into()
    } else {
        error
    }
}

/// Writes that no leader is needed for: events, and reviews of who may do what.
fn harmless(path: &str) -> bool {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    matches!(
        path.as_slice(),
        ["api", "v1", "namespaces", _, "events", ..]
            | ["apis", "events.k8s.io", _, "namespaces", _, "events", ..]
            | ["apis", "authorization.k8s.io" | "authentication.k8s.io", ..]
    )
}

/// What the fencing `policy` says, if this is the answer to a write that it refused.
///
/// The code is 403, or 422 where the policy could not be evaluated. The cause's message is the policy's alone, unlike the
/// Status's, which begins with names that users chose.
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

/// Tells the API server to drop the request after `limit`: it takes Go durations, counts from the arrival of the
/// request, and cancels the write to etcd with it.
fn with_timeout(uri: &Uri, limit: Duration) -> Result<Uri, http::Error> {
    let separator = if uri.query().is_some() { '&' } else { '?' };
    let path = format!(
        "{}{separator}timeout={}ms",
        uri.path_and_query().map_or("/", PathAndQuery::as_str),
        limit.as_millis()
    );
    let mut parts: Parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

impl<S> Layer<S> for FenceLayer {
    type Service = Layered<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(self, inner)
    }
}

impl<S, B> Around<S, Request<Body>> for FenceLayer
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
        let judged = !harmless(request.uri().path());
        let reply = inner.call(request);
        let reply = async move {
            let reply = reply.await.map_err(plain).inspect_err(|error| {
                if is_refused(&**error) {
                    write.iter().for_each(Write::over);
                }
            })?;
            let (parts, body) = reply.into_parts();
            // The head of an answer comes when the write is done, unless the answer is that it takes too long.
            if !matches!(parts.status.as_u16(), 502 | 504) {
                write.iter().for_each(Write::over);
            }
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
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
            tokio::time::timeout(limit, reply)
                .await
                .map_err(|_| TimedOut(limit))?
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::{
        app::tests::APP,
        config::{self, Config, LeaderElection},
        election::{
            Clock,
            fake::{FakeApi, Mood, Seen},
            writes::Writes,
        },
    };
    use futures::{FutureExt as _, TryFutureExt as _};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use kube::{Client, client::ClientBuilder};
    use opentelemetry_sdk::Resource;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::Arc;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        time::{Instant, advance, timeout},
    };
    use tower::{ServiceBuilder, ServiceExt as _, service_fn};

    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/n/deployments";

    fn fenced(api: &FakeApi, term: watch::Receiver<Option<Term>>) -> Client {
        ClientBuilder::new(api.service(), "default")
            .with_layer(&FenceLayer::new(term, &Metrics::disconnected(&APP)))
            .build()
    }

    /// How long a write may be on its way.
    const WAY: Duration = Duration::from_secs(2);

    fn term(left: Duration) -> Term {
        let start = Instant::now();
        Term::new(1, 0, left, Clock::from_fn(move || start.elapsed())).counted_in(Writes::new(WAY))
    }

    async fn send(client: &Client, method: Method, uri: &str) -> kube::Result<()> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Body::empty())
            .unwrap();
        client.send(request).await.map(drop)
    }

    fn uris(requests: Vec<Seen>) -> Vec<String> {
        requests.into_iter().map(|seen| seen.uri).collect()
    }

    /// How long after the term began the last write may land that is permitted at `begun`: handed to its connection at the last
    /// moment, on its way for as long as the kernel lets it, and carried out at the end of the time that the API server has for
    /// it. `None`: it is not permitted.
    fn lands(election: &LeaderElection, begun: Duration) -> Option<Duration> {
        let now = Arc::new(Mutex::new(begun));
        let clock = Clock::from_fn({
            let now = now.clone();
            move || *now.lock()
        });
        let term = Term::new(1, 0, election.renew_deadline, clock);
        let (_sender, receiver) = watch::channel(Some(term));
        let mut request = Request::post(DEPLOYMENTS).body(Body::empty()).unwrap();
        let fence = FenceLayer::new(receiver, &Metrics::disconnected(&APP));
        let (limit, _) = fence.admit(&mut request).ok()?;
        let leave = request.extensions_mut().remove::<Leave>().unwrap();
        let (mut sent, mut refused) = (begun, election.renew_deadline);
        for _ in 0..40 {
            let middle = (sent + refused) / 2;
            *now.lock() = middle;
            if leave.holds() {
                sent = middle;
            } else {
                refused = middle;
            }
        }
        Some(sent + election.send_timeout().unwrap() + limit)
    }

    proptest! {
        /// In every configuration that is accepted; and none is refused without need.
        #[test]
        fn h19_the_last_write_of_a_term_lands_before_the_lease_is_anothers(
            (lease, renew) in prop_oneof![1_u64..=20, 1_u64..=3600].prop_flat_map(|lease| {
                let lease = lease * 1000;
                (Just(lease), prop_oneof![100..lease, lease.saturating_sub(4000).max(100)..lease])
            }),
            begun in 0.0..1.0,
        ) {
            let election = LeaderElection {
                lease_duration: Duration::from_millis(lease),
                renew_deadline: Duration::from_millis(renew),
                ..Config::shipped(&APP).leader_election
            };
            let set = [("LEASE_DURATION", lease), ("RENEW_DEADLINE", renew), ("RETRY_PERIOD", 10)];
            let env = set.map(|(key, value)| {
                let key = format!("SOME_OPERATOR__LEADER_ELECTION__{key}");
                (key.into(), format!("{value}ms").into())
            });
            let flags = clap::Command::new("c").args(config::args(&APP)).get_matches_from(["c"]);
            let accepted = config::load(&APP, &flags, env).is_ok();

            let full = election.renew_deadline.saturating_sub(MUTATION_TIMEOUT);
            let worst = lands(&election, full).unwrap();
            let some = lands(&election, election.renew_deadline.mul_f64(begun));
            if accepted {
                prop_assert!(worst < election.lease_duration);
                prop_assert!(some.is_none_or(|some| some < election.lease_duration));
            } else {
                let given_up = election.send_timeout().unwrap();
                let in_time = worst + Duration::from_millis(1) < election.lease_duration;
                prop_assert!(!in_time || given_up <= Duration::from_millis(200));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i2_no_mutation_without_a_live_term() {
        let api = FakeApi::new();
        let (sender, receiver) = watch::channel(None);
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let client = ClientBuilder::new(api.service(), "default")
            .with_layer(&FenceLayer::new(receiver, &metrics))
            .build();
        let refused = async || {
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert!(is_refused(
                    &send(&client, method, DEPLOYMENTS).await.unwrap_err()
                ));
            }
            assert!(uris(api.requests()).is_empty(), "nothing was sent");
        };
        refused().await;
        sender.send_replace(Some(term(Duration::from_secs(3))));
        send(&client, Method::POST, DEPLOYMENTS).await.unwrap();
        assert_eq!(
            uris(api.requests()),
            [format!("{DEPLOYMENTS}?timeout=3000ms")]
        );

        advance(Duration::from_millis(2999)).await;
        send(
            &client,
            Method::PATCH,
            &format!("{DEPLOYMENTS}/d?&fieldManager=f"),
        )
        .await
        .unwrap();
        assert_eq!(
            uris(api.requests()),
            [format!("{DEPLOYMENTS}/d?&fieldManager=f&timeout=1ms")]
        );

        advance(Duration::from_micros(1)).await;
        refused().await;
        sender.send_replace(Some(Term::unlimited()));
        send(&client, Method::DELETE, DEPLOYMENTS).await.unwrap();
        assert_eq!(
            uris(api.requests()),
            [format!("{DEPLOYMENTS}?timeout=10000ms")]
        );
        sender.send_replace(None);
        refused().await;
        let (_, text) = metrics.scrape(None);
        assert!(
            text.contains("\nsome_operator_fence_refusals_total 12\n"),
            "{text}"
        );
    }

    /// What waits for a connection, in a process that may be frozen meanwhile, leaves no byte on it once it is too late.
    #[tokio::test]
    async fn i2_a_mutation_that_waits_past_its_term_is_not_sent() {
        for (method, body) in [(Method::POST, "{}"), (Method::DELETE, "")] {
            for (waited, renewed, sent) in [
                (Duration::from_millis(1250), false, true),
                (Duration::from_millis(1251), false, false),
                (Duration::from_millis(1251), true, true),
                (Duration::from_secs(10), false, false),
            ] {
                let now = Arc::new(Mutex::new(Duration::ZERO));
                let clock = Clock::from_fn({
                    let now = Arc::clone(&now);
                    move || *now.lock()
                });
                let until =
                    move |end| Some(Term::new(1, 0, Duration::from_secs(end), clock.clone()));
                let (term, receiver) = watch::channel(until(10));
                let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let address = server.local_addr().unwrap();
                let connect = service_fn(move |_: Uri| {
                    *now.lock() = waited;
                    if renewed {
                        term.send_replace(until(12));
                    }
                    TcpStream::connect(address).map_ok(TokioIo::new).boxed()
                });
                let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
                let service = ServiceBuilder::new()
                    .layer(FenceLayer::new(receiver, &Metrics::disconnected(&APP)))
                    .map_request(recheck_before_sending)
                    .service(client.build(connect));
                let request = Request::builder()
                    .method(method.clone())
                    .uri(format!("http://{address}{DEPLOYMENTS}"))
                    .body(Body::from(body.as_bytes().to_vec()))
                    .unwrap();
                let serve = async {
                    let mut head = [0; 4];
                    let (mut connection, _) = server.accept().await.unwrap();
                    let is_sent = connection.read_exact(&mut head).await.is_ok();
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    let _ = connection.write_all(answer).await;
                    is_sent
                };
                let (answer, is_sent) = tokio::join!(service.oneshot(request), serve);
                assert_eq!(is_sent, sent, "{method} after {waited:?}");
                let refused = answer.err().is_some_and(|error| error.is::<Refused>());
                assert_eq!(refused, !sent, "{method} after {waited:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_reads_and_writes_events() {
        let api = FakeApi::new();
        let client = fenced(&api, watch::channel(None).1);
        send(&client, Method::GET, DEPLOYMENTS).await.unwrap();
        for path in [
            "/api/v1/namespaces/n/events",
            "/apis/events.k8s.io/v1/namespaces/n/events/e",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "/apis/authentication.k8s.io/v1/tokenreviews",
        ] {
            send(&client, Method::POST, path).await.unwrap();
        }
        for path in [
            "/apis/apps/v1/namespaces/n/deployments/events",
            "/apis/apps/v1/namespaces/events/deployments/events",
        ] {
            assert!(
                is_refused(&send(&client, Method::PATCH, path).await.unwrap_err()),
                "{path}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn h6_a_mutation_ends_with_its_term_at_the_latest() {
        for (left, limit) in [
            (Duration::from_secs(3), Duration::from_secs(3)),
            (Duration::MAX, MUTATION_TIMEOUT),
        ] {
            let api = FakeApi::new();
            api.mood(Mood::Hangs);
            let client = fenced(&api, watch::channel(Some(term(left))).1);
            let start = Instant::now();
            let error = send(&client, Method::POST, DEPLOYMENTS).await.unwrap_err();
            assert_eq!(start.elapsed(), limit);
            assert!(
                error.to_string().contains("may or may not") && !is_refused(&error),
                "{error}"
            );
        }
    }

    /// The lines at `level` or above that are logged on this thread while the guard lives.
    fn logged(level: tracing::Level) -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
        #[derive(Clone)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Arc::default();
        let writer = Lines(Arc::clone(&lines));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_the_policy_goes_on_rejecting_says_so_once() {
        let (lines, _guard) = logged(tracing::Level::WARN);
        let answer = Arc::new(Mutex::new(None::<&str>));
        let service = service_fn({
            let answer = Arc::clone(&answer);
            move |_: Request<Body>| {
                let cause = answer.lock().map(|why| {
                    format!("ValidatingAdmissionPolicy 'some-operator-fencing' with binding 'b' denied request: {why}")
                });
                async move {
                    let status = json!({"details": {"causes": [{"message": cause}]}, "code": 403});
                    let code = if cause.is_some() { 403 } else { 200 };
                    let body = Body::from(serde_json::to_vec(&status).unwrap());
                    Ok::<_, BoxError>(Response::builder().status(code).body(body).unwrap())
                }
            }
        });
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let (sender, receiver) = watch::channel(Some(term(Duration::from_hours(1))));
        let client = ClientBuilder::new(service, "default")
            .with_layer(&FenceLayer::new(receiver, &metrics))
            .build();
        let write = async || send(&client, Method::POST, DEPLOYMENTS).await;
        let rejecting = || {
            let (_, text) = metrics.scrape(None);
            text.contains("\nsome_operator_fencing_rejects_leader 1\n")
        };
        let warnings = || {
            let text = String::from_utf8(lines.lock().clone()).unwrap();
            text.matches("the fencing policy has rejected").count()
        };

        // A hand-over.
        *answer.lock() = Some("why");
        write().await.unwrap_err();
        advance(REJECTED_FOR / 2).await;
        write().await.unwrap_err();
        *answer.lock() = None;
        write().await.unwrap();
        advance(REJECTED_FOR).await;
        *answer.lock() = Some("why");
        write().await.unwrap_err();
        assert!(!rejecting() && warnings() == 0);

        advance(REJECTED_FOR).await;
        for _ in 0..3 {
            write().await.unwrap_err();
        }
        assert!(rejecting());
        assert_eq!(warnings(), 1, "once");
        *answer.lock() = Some("another cause");
        for _ in 0..3 {
            write().await.unwrap_err();
        }
        assert_eq!(warnings(), 2, "once a cause");
        // An event is no write that the policy judges.
        *answer.lock() = None;
        send(&client, Method::POST, "/api/v1/namespaces/n/events")
            .await
            .unwrap();
        assert!(rejecting());
        write().await.unwrap();
        assert!(!rejecting());

        // Another term is another matter.
        *answer.lock() = Some("why");
        write().await.unwrap_err();
        advance(REJECTED_FOR).await;
        let start = Instant::now();
        let clock = Clock::from_fn(move || start.elapsed());
        sender.send_replace(Some(Term::new(2, 1, Duration::from_hours(1), clock)));
        write().await.unwrap_err();
        assert!(!rejecting() && warnings() == 2);
    }

    /// What was answered has landed or never will; what was cut off may land until the API server drops it.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_was_cut_off_is_waited_for_and_one_that_was_answered_is_not() {
        let term = term(Duration::from_secs(8));
        let open = async |mood: Mood| {
            let api = FakeApi::new();
            api.mood(mood);
            let client = fenced(&api, watch::channel(Some(term.clone())).1);
            let begun = Instant::now();
            let _ = send(&client, Method::POST, DEPLOYMENTS).await;
            term.writes().over().await;
            begun.elapsed()
        };
        for mood in [Mood::Serves, Mood::Fails(403), Mood::Fails(500)] {
            assert_eq!(open(mood).await, Duration::ZERO);
        }
        let limit = Duration::from_secs(8);
        assert_eq!(open(Mood::Fails(504)).await, limit + WAY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_waited_for() {
        for cut_off in [Duration::from_secs(1), Duration::MAX] {
            let term = term(Duration::from_secs(8));
            let api = FakeApi::new();
            api.mood(Mood::Hangs);
            let client = fenced(&api, watch::channel(Some(term.clone())).1);
            let begun = Instant::now();
            let write = send(&client, Method::POST, DEPLOYMENTS);
            assert!(
                timeout(cut_off, write)
                    .await
                    .is_ok_and(|sent| sent.is_err())
                    == (cut_off == Duration::MAX)
            );
            term.writes().over().await;
            assert_eq!(begun.elapsed(), Duration::from_secs(8) + WAY);
        }
    }

    #[test]
    fn a_denial_is_known_by_the_policy_alone() {
        let body = |cause: &str| {
            let name = "ValidatingAdmissionPolicy 'some-operator-fencing'";
            let status = json!({
                "message": format!("deployments.apps \"{name}\" is forbidden: {cause}"),
                "details": {"causes": [{"message": cause}]},
            });
            serde_json::to_vec(&status).unwrap()
        };
        let ours = "ValidatingAdmissionPolicy 'a-some-operator-fencing-b' with binding 'c' denied request: d";
        for code in [StatusCode::FORBIDDEN, StatusCode::UNPROCESSABLE_ENTITY] {
            assert_eq!(
                denial("some-operator-fencing", code, &body(ours)).as_deref(),
                Some(ours)
            );
        }
        assert_eq!(
            denial("some-operator-fencing", StatusCode::CONFLICT, &body(ours)),
            None
        );
        for others in [
            "ValidatingAdmissionPolicy 'some' with binding 'some-operator-fencing' denied request: d",
            "exceeded quota: ValidatingAdmissionPolicy 'some-operator-fencing'",
        ] {
            assert_eq!(
                denial(
                    "some-operator-fencing",
                    StatusCode::FORBIDDEN,
                    &body(others)
                ),
                None
            );
        }
        assert_eq!(
            denial("some-operator-fencing", StatusCode::FORBIDDEN, b"<html>"),
            None
        );
    }
}
