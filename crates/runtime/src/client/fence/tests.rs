#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod policy;

use super::*;
use crate::{
    client::fence::in_flight::Writes,
    config::{
        self,
        app::tests::APP,
        clock::Clock,
        settings::{Config, LeaderElection, MUTATION_TIMEOUT},
    },
    election::fake::{FakeApi, Mood, Seen},
    testing::fixtures::logged,
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

/// Longest delivery time of a write.
const WAY: Duration = Duration::from_secs(2);

fn term(left: Duration) -> Term {
    let start = Instant::now();
    Term::new(1, 0, left, Clock::from_fn(move || start.elapsed())).counted_in(Writes::new(WAY))
}

async fn send(client: &Client, method: Method, uri: &str) -> kube::Result<()> {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(Body::empty())
        .unwrap();
    client.send(request).await.map(drop)
}

fn uris(requests: Vec<Seen>) -> Vec<String> {
    requests.into_iter().map(|seen| seen.uri).collect()
}

/// Returns the longest time from handing a write to the kernel to its delivery. The kernel's limit counts from the first
/// retransmission. A tail loss probe may precede it. Each waits for 200 ms and a round trip.
fn on_its_way(election: &LeaderElection) -> Duration {
    let round_trip = Duration::from_millis(50);
    election.send_timeout().unwrap() + (Duration::from_millis(200) + round_trip) * 2
}

/// Returns how long after the start of the term a write may land that is admitted at `begun`. `None` if it is not admitted.
///
/// The write is handed to its connection at the last valid moment. Its delivery and the API server take as long as they may.
fn lands(election: &LeaderElection, begun: Duration) -> Option<Duration> {
    let now = Arc::new(Mutex::new(begun));
    let clock = Clock::from_fn({
        let now = now.clone();
        move || *now.lock()
    });
    let term = Term::new(1, 0, election.renew_deadline, clock).with_overtime(election.overtime());
    let (_sender, receiver) = watch::channel(Some(term));
    let mut request = Request::post(DEPLOYMENTS).body(Body::empty()).unwrap();
    let fence = FenceLayer::new(receiver, &Metrics::disconnected(&APP));
    let (limit, _) = fence.admit(&mut request).ok()?;
    let permit = request.extensions_mut().remove::<Permit>().unwrap();
    let (mut sent, mut refused) = (begun, election.renew_deadline);
    for _ in 0..40 {
        let middle = (sent + refused) / 2;
        *now.lock() = middle;
        if permit.is_valid() {
            sent = middle;
        } else {
            refused = middle;
        }
    }
    Some(sent + on_its_way(election) + limit)
}

proptest! {
    /// Holds in every accepted configuration. No configuration is rejected without need.
    #[test]
    fn h19_the_last_write_of_a_term_lands_before_the_lease_is_taken(
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
        let retried = LeaderElection { retry_period: Duration::from_millis(10), ..election.clone() };
        prop_assert_eq!(retried.check().is_ok(), accepted, "{:?}", retried.check());

        if accepted {
            let some = lands(&election, election.renew_deadline.mul_f64(begun));
            prop_assert!(some.is_none_or(|some| some < election.lease_duration));
            let last = lands(&election, election.renew_deadline.saturating_sub(Duration::from_millis(1)));
            prop_assert!(last.is_none_or(|last| last < election.lease_duration));
        } else {
            // Too short for the kernel's limit and a write that is sent at the end of the term.
            prop_assert!(lease - renew <= 700 + lease / 500);
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
        [format!("{DEPLOYMENTS}?timeout=2750ms")]
    );

    advance(Duration::from_millis(2992)).await;
    send(
        &client,
        Method::PATCH,
        &format!("{DEPLOYMENTS}/d?&fieldManager=f"),
    )
    .await
    .unwrap();
    assert_eq!(
        uris(api.requests()),
        [format!("{DEPLOYMENTS}/d?&fieldManager=f&timeout=7ms")]
    );
    // The limit of the caller could exceed the term.
    let longer = format!("{DEPLOYMENTS}/d?timeout=60s&force=true");
    send(&client, Method::PATCH, &longer).await.unwrap();
    assert_eq!(
        uris(api.requests()),
        [format!("{DEPLOYMENTS}/d?force=true&timeout=7ms")]
    );

    advance(Duration::from_millis(8)).await;
    refused().await;
    sender.send_replace(Some(Term::unlimited()));
    send(&client, Method::DELETE, DEPLOYMENTS).await.unwrap();
    assert_eq!(
        uris(api.requests()),
        [format!("{DEPLOYMENTS}?timeout=35000ms")]
    );
    sender.send_replace(None);
    refused().await;
    let (_, text) = metrics.scrape(None);
    assert!(
        text.contains("\nsome_operator_fence_refusals_total 12\n"),
        "{text}"
    );
}

/// A write that waits for its connection for too long, for example in a frozen process, sends no byte.
#[tokio::test]
async fn i2_a_mutation_that_waits_past_its_term_is_not_sent() {
    for (method, body) in [(Method::POST, "{}"), (Method::DELETE, "")] {
        for (waited, renewed, sent) in [
            (Duration::from_millis(500), false, true),
            (Duration::from_millis(501), false, false),
            (Duration::from_millis(501), true, true),
            // The replica still holds the Lease, but its term has ended.
            (Duration::from_secs(8), false, false),
        ] {
            let now = Arc::new(Mutex::new(Duration::ZERO));
            let clock = Clock::from_fn({
                let now = Arc::clone(&now);
                move || *now.lock()
            });
            let until = move |end| {
                let term = Term::new(1, 0, Duration::from_secs(end), clock.clone());
                Some(term.with_overtime(Duration::from_secs(3)))
            };
            let (term, receiver) = watch::channel(until(8));
            let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address = server.local_addr().unwrap();
            let connect = service_fn(move |_: Uri| {
                *now.lock() = waited;
                if renewed {
                    term.send_replace(until(10));
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

/// With the default settings, a webhook that fails open after its default 10 s leaves the API server half a second for the
/// write. The time since the last renewal, at most 2.2 s, does not matter.
#[test]
fn a_write_has_time_for_a_webhook_that_fails_open() {
    let election = Config::shipped(&APP).leader_election;
    let period = election.retry_period.mul_f64(1.1);
    for renewed in [Duration::ZERO, period / 2, period] {
        let room = election.renew_deadline.saturating_sub(renewed) + election.overtime();
        let limit = permit::limit(room);
        assert!(limit >= Duration::from_millis(10_500) && limit < room);
    }
    assert_eq!(permit::limit(Duration::MAX), MUTATION_TIMEOUT);
}

/// A client of the caller, behind the fence.
#[tokio::test(start_paused = true)]
async fn a_wrapped_client_writes_only_during_a_term() {
    let api = FakeApi::new();
    let (sender, receiver) = watch::channel(None);
    let fence = FenceLayer::new(receiver, &Metrics::disconnected(&APP));
    let client = fence.wrap(ClientBuilder::new(api.service(), "default").build());
    send(&client, Method::GET, DEPLOYMENTS).await.unwrap();
    let refused = send(&client, Method::POST, DEPLOYMENTS).await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    sender.send_replace(Some(term(Duration::from_secs(3))));
    send(&client, Method::POST, DEPLOYMENTS).await.unwrap();
    advance(Duration::from_secs(3)).await;
    let refused = send(&client, Method::POST, DEPLOYMENTS).await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    let sent = [
        DEPLOYMENTS.to_owned(),
        format!("{DEPLOYMENTS}?timeout=2750ms"),
    ];
    assert_eq!(uris(api.requests()), sent);
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
async fn h6_a_mutation_without_a_response_ends() {
    for (left, limit) in [
        (Duration::from_secs(4), Duration::from_millis(3750)),
        (Duration::MAX, MUTATION_TIMEOUT),
    ] {
        let api = FakeApi::new();
        api.mood(Mood::Hangs);
        let client = fenced(&api, watch::channel(Some(term(left))).1);
        let start = Instant::now();
        let error = send(&client, Method::POST, DEPLOYMENTS).await.unwrap_err();
        assert_eq!(start.elapsed(), limit + ANSWER);
        assert!(
            error.to_string().contains("may or may not") && !is_refused(&error),
            "{error}"
        );
    }
}

/// A write with a response has ended. A write without one may land until the API server drops it.
#[tokio::test(start_paused = true)]
async fn the_drain_waits_only_for_writes_without_a_response() {
    let open = async |mood: Mood| {
        let term = term(Duration::from_secs(8));
        let api = FakeApi::new();
        api.mood(mood);
        let client = fenced(&api, watch::channel(Some(term.clone())).1);
        let begun = Instant::now();
        let _ = send(&client, Method::POST, DEPLOYMENTS).await;
        term.writes().over().await;
        begun.elapsed()
    };
    for code in [400, 401, 403, 404, 409, 413, 422, 429] {
        assert_eq!(open(Mood::Fails(code)).await, Duration::ZERO, "{code}");
    }
    assert_eq!(open(Mood::Serves).await, Duration::ZERO);
    // The API server stopped waiting for etcd, or a proxy for the API server. The write may continue.
    let limit = Duration::from_millis(7750);
    for code in [500, 502, 503, 504] {
        assert_eq!(open(Mood::Fails(code)).await, limit + WAY, "{code}");
    }
}

/// Webhooks are called before anything is written, so a failed call leaves no write in flight.
#[tokio::test(start_paused = true)]
async fn the_drain_does_not_wait_for_a_write_whose_webhook_is_down() {
    let failed = |what: &str| format!("Internal error occurred: {what}");
    let webhook =
        r#"failed calling webhook "w.example": failed to call webhook: no endpoints available"#;
    let denied = r#"admission webhook "w.example" denied the request: no"#.to_owned();
    for (message, is_over) in [
        (failed(webhook), true),
        (denied, true),
        (failed("etcd"), false),
    ] {
        let term = term(Duration::from_secs(8));
        let answer = service_fn(move |_: Request<Body>| {
            let status =
                json!({ "kind": "Status", "status": "Failure", "code": 500, "message": message });
            let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            async { Ok::<_, std::convert::Infallible>(answer) }
        });
        let receiver = watch::channel(Some(term.clone())).1;
        let client = ClientBuilder::new(answer, "default")
            .with_layer(&FenceLayer::new(receiver, &Metrics::disconnected(&APP)))
            .build();
        let begun = Instant::now();
        let _ = send(&client, Method::POST, DEPLOYMENTS).await;
        term.writes().over().await;
        assert_eq!(begun.elapsed().is_zero(), is_over);
    }
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
        assert_eq!(begun.elapsed(), Duration::from_millis(7750) + WAY);
    }
}
