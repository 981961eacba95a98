#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use http::{Method, Request, Response};
use k8s_openapi::{api::events::v1, jiff::Timestamp};
use kube::client::Body;
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::service_fn;
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
};

use super::{
    backlog::NAMESPACE_CAPACITY,
    event::*,
    writer::{AT_ONCE, FIRST_TIMEOUT, REMEMBERED, RETRY_TIMEOUT, YIELD_DELAY},
    *,
};
use crate::{
    api::{names::is_subdomain, object::Cached as _},
    config::app::tests::APP,
    testing::fixtures::{Parent, TestError, logged},
};

/// A fake API server: the methods of its requests, and the stored events.
#[derive(Clone, Default)]
struct Server {
    verbs: Arc<Mutex<Vec<Method>>>,
    stored: Arc<Mutex<HashMap<String, v1::Event>>>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                server.verbs.lock().push(head.method.clone());
                let body = body.collect_bytes().await?;
                let name = head.uri.path().rsplit('/').next().unwrap().to_owned();
                let mut stored = server.stored.lock();
                let answer = if head.method == Method::POST {
                    let event: v1::Event = serde_json::from_slice(&body).unwrap();
                    let name = event.metadata.name.clone().unwrap();
                    let is_new = stored.insert(name, event.clone()).is_none();
                    is_new.then_some(event)
                } else {
                    let patch: v1::Event = serde_json::from_slice(&body).unwrap();
                    stored.get_mut(&name).map(|event| {
                        event.series = patch.series;
                        event.clone()
                    })
                };
                let (code, reason) = match head.method {
                    Method::POST => (409, "AlreadyExists"),
                    _ => (404, "NotFound"),
                };
                let status =
                    json!({ "kind": "Status", "code": code, "reason": reason, "message": "no" });
                let (code, body) = match answer {
                    Some(event) => (200, serde_json::to_vec(&event).unwrap()),
                    None => (code, status.to_string().into_bytes()),
                };
                let answer = Response::builder().status(code);
                Ok::<_, tower::BoxError>(answer.body(Body::from(body)).unwrap())
            }
        };
        Client::new(service_fn(answer), "default")
    }

    fn verbs(&self) -> Vec<Method> {
        std::mem::take(&mut self.verbs.lock())
    }
}

fn about() -> EventSource {
    EventSource {
        app: &APP,
        reporter: APP.reporter,
        instance: "test".into(),
        kind: &Parent::KIND,
        host: Host::of_this_process(),
    }
}

const SYNCED: Event = Event {
    type_: "Normal",
    action: "Reconcile",
    reason: "Synced",
    note: Cow::Borrowed("synced"),
};

fn writer(server: &Server) -> Writer {
    let drops = Arc::new(DroppedEvents::new(&Metrics::disconnected(&APP)));
    Writer::new(server.client(), about(), drops)
}

fn queued(message: &str) -> Queued {
    Queued {
        kind: &Parent::KIND,
        key: Key::new("default", "parent"),
        uid: "parent-uid".into(),
        event: Event::failed(&TestError::Rejected(message.into())),
        time: Timestamp::now(),
        trace: None,
        is_sent: AtomicBool::new(false),
    }
}

/// An event with another note is a separate event and does not extend the series.
#[tokio::test]
async fn a_second_foreign_deployment_is_an_event_of_its_own() {
    let server = Server::default();
    let writer = writer(&server);
    for deployment in ["first", "second", "first"] {
        writer.publish(&queued(deployment)).await.unwrap();
    }
    assert_eq!(server.verbs(), [Method::POST, Method::POST, Method::PATCH]);
    let stored = server.stored.lock();
    let count = |deployment: &str| {
        let mut events = stored.values();
        let event = events.find(|e| e.note.as_ref().unwrap().contains(deployment));
        event.unwrap().series.as_ref().map(|series| series.count)
    };
    assert_eq!((count("first"), count("second")), (Some(2), None));
}

/// Each of many objects has its own series. A further event evicts only the series with the oldest write.
#[tokio::test(start_paused = true)]
async fn r9_each_of_many_objects_has_its_series() {
    let server = Server::default();
    let writer = writer(&server);
    let publish = async |number: usize| {
        sleep(Duration::from_millis(1)).await;
        let mut queued = queued("it");
        queued.uid = number.to_string().into();
        queued.key = Key::new("default", &format!("parent-{number}"));
        writer.publish(&queued).await.unwrap();
        server.verbs()
    };
    for verb in [Method::POST, Method::PATCH] {
        for number in 0..REMEMBERED {
            assert_eq!(
                publish(number).await,
                std::slice::from_ref(&verb),
                "{number}"
            );
        }
    }
    assert_eq!(publish(REMEMBERED).await, [Method::POST]);
    assert_eq!(publish(1).await, [Method::PATCH]);
    assert_eq!(publish(0).await, [Method::POST]);
}

/// A shutdown that runs out of time logs the number of unwritten events.
#[tokio::test(start_paused = true)]
async fn p2_unwritten_events_are_logged_at_shutdown() {
    for (hangs, left) in [(false, 0), (true, 3)] {
        let server = Server::default();
        let client = if hangs {
            let never = |_: Request<Body>| {
                std::future::pending::<Result<Response<Body>, tower::BoxError>>()
            };
            Client::new(service_fn(never), "default")
        } else {
            server.client()
        };
        let (log, _guard) = logged(tracing::Level::WARN);
        let metrics = Metrics::disconnected(&APP);
        let (recorder, write) = Recorder::new(client, about(), &metrics, || false);
        for name in ["a", "b", "c"] {
            recorder.send(&Key::new(name, "parent"), name, SYNCED);
        }
        drop(recorder);
        let _ = tokio::time::timeout(Duration::from_millis(500), write).await;
        let log = String::from_utf8(log.lock().clone()).unwrap();
        let message = format!("{left} events not written before shutdown");
        assert_eq!(log.contains(&message), hangs, "{log}");
    }
}

/// After a client has deleted an event, its next occurrence creates the event and starts a new series.
#[tokio::test]
async fn a_deleted_event_is_created_again() {
    let server = Server::default();
    let writer = writer(&server);
    writer.publish(&queued("it")).await.unwrap();
    server.stored.lock().clear();
    writer.publish(&queued("it")).await.unwrap();
    assert_eq!(server.verbs(), [Method::POST, Method::PATCH, Method::POST]);
    assert_eq!(server.stored.lock().len(), 1);
    writer.publish(&queued("it")).await.unwrap();
    assert_eq!(server.verbs(), [Method::PATCH]);
    let stored = server.stored.lock();
    let series = stored.values().next().unwrap().series.as_ref();
    assert_eq!(series.unwrap().count, 2);
}

/// The limit of the API server is in bytes, although it calls them characters. A queued note takes no more memory than that.
#[test]
fn a_note_is_at_most_1024_bytes() {
    let note = |text: String| Event::warning("Reason", text).note.into_owned();
    for (letter, length) in [("a", 1024), ("é", 512), ("€", 341), ("𝄞", 256)] {
        let longest = letter.repeat(length);
        assert_eq!(note(longest.clone()), longest);
        let short = note(letter.repeat(length + 1));
        assert!((1018..=1024).contains(&short.len()), "{}", short.len());
        assert!(short.ends_with('…') && longest.starts_with(short.trim_end_matches('…')));
    }
}

/// An event does not delay the work, and the work delays an event only briefly.
#[tokio::test(start_paused = true)]
async fn r9_events_give_way_to_work() {
    let (busy, written) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let count = Arc::clone(&written);
    let api = service_fn(move |_: Request<Body>| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec()))) }
    });
    let is_busy = Arc::clone(&busy);
    let (events, write) = Recorder::new(
        Client::new(api, "default"),
        about(),
        &Metrics::disconnected(&APP),
        move || is_busy.load(SeqCst),
    );
    let writer = tokio::spawn(write);
    let send = |count| {
        for number in 0..count {
            events.send(&Key::new("default", "parent"), &format!("{number}"), SYNCED);
        }
    };
    send(WAITING / 2 + 3);
    // More than half of the queue is in use at first, and then not.
    sleep(YIELD_DELAY / 2).await;
    assert_eq!(written.load(SeqCst), 3);
    for more in 1..=5 {
        sleep(YIELD_DELAY).await;
        assert_eq!(written.load(SeqCst), 3 + more);
    }
    busy.store(false, SeqCst);
    drop(events);
    writer.await.unwrap();
    assert_eq!(written.load(SeqCst), WAITING / 2 + 3);
}

/// Events are written concurrently, but the events of an object in order and not in parallel.
#[tokio::test(start_paused = true)]
async fn r9_events_are_written_concurrently_and_in_order_per_object() {
    #[derive(Default)]
    struct Seen {
        underway: Vec<String>,
        most: usize,
        notes: HashMap<String, Vec<String>>,
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let server = Arc::clone(&seen);
    let api = service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&server);
        async move {
            let body = request.into_body().collect_bytes().await?;
            let event: v1::Event = serde_json::from_slice(&body).unwrap();
            let uid = event.regarding.unwrap().uid.unwrap();
            {
                let mut seen = seen.lock();
                assert!(!seen.underway.contains(&uid), "two events of {uid} at once");
                seen.underway.push(uid.clone());
                seen.most = seen.most.max(seen.underway.len());
                let notes = seen.notes.entry(uid.clone()).or_default();
                notes.push(event.note.unwrap());
            }
            sleep(Duration::from_millis(10)).await;
            seen.lock().underway.retain(|other| *other != uid);
            Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec())))
        }
    });
    let client = Client::new(api, "default");
    let metrics = Metrics::disconnected(&APP);
    let (events, write) = Recorder::new(client, about(), &metrics, || false);
    let notes: Vec<_> = (0..5).map(|note| note.to_string()).collect();
    for note in &notes {
        for uid in 0..AT_ONCE - 1 {
            let event = Event::warning("Reason", note.clone());
            events.send(&Key::new("default", "parent"), &uid.to_string(), event);
        }
    }
    drop(events);
    write.await;
    let seen = seen.lock();
    assert_eq!(seen.most, AT_ONCE - 1);
    assert_eq!(seen.notes.len(), AT_ONCE - 1);
    assert!(seen.notes.values().all(|its| *its == notes));
}

/// A slow write delays only the events of its own object.
#[tokio::test(start_paused = true)]
async fn r9_a_slow_event_delays_no_event_of_another_object() {
    const LONG: Duration = FIRST_TIMEOUT.checked_sub(Duration::from_millis(1)).unwrap();
    let written = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&written);
    let api = service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let body = request.into_body().collect_bytes().await?;
            let event: v1::Event = serde_json::from_slice(&body).unwrap();
            let uid = event.regarding.unwrap().uid.unwrap();
            sleep(if uid == "slow" {
                LONG
            } else {
                Duration::from_millis(10)
            })
            .await;
            seen.lock().push(uid);
            Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec())))
        }
    });
    let client = Client::new(api, "default");
    let metrics = Metrics::disconnected(&APP);
    let (events, write) = Recorder::new(client, about(), &metrics, || false);
    let of = |uid: &str| {
        let event = Event::warning("Reason", "note");
        events.send(&Key::new("default", "parent"), uid, event);
    };
    of("slow");
    for uid in 0..10 * AT_ONCE {
        of(&uid.to_string());
    }
    drop(events);
    let begun = Instant::now();
    write.await;
    assert_eq!(begun.elapsed(), LONG);
    assert_eq!(written.lock().len(), 1 + 10 * AT_ONCE);
}

/// The response of an API server to the events of a namespace: from a webhook, a quota or a proxy.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Fails,
    Overloaded,
    Hangs,
    /// Slower than [`FIRST_TIMEOUT`], faster than [`RETRY_TIMEOUT`].
    Slow,
    /// With this code, message and cause.
    Refuses(u16, &'static str, &'static str),
}

/// A fake API server with `trouble` in the namespaces whose names begin with `bad`, until it is cleared. It records the
/// namespace of each stored event and the time since the start.
#[derive(Clone)]
struct Troubled {
    trouble: Arc<Mutex<Option<Trouble>>>,
    begun: Instant,
    stored: Arc<Mutex<Vec<(String, Duration)>>>,
    tries: Arc<AtomicUsize>,
}

/// Time until the namespaces whose names begin with `once` recover.
const WELL_AGAIN: Duration = Duration::from_secs(30);

impl Troubled {
    fn new(trouble: Trouble) -> Self {
        Self {
            trouble: Arc::new(Mutex::new(Some(trouble))),
            begun: Instant::now(),
            stored: Arc::default(),
            tries: Arc::default(),
        }
    }

    fn start(
        &self,
    ) -> (
        Recorder,
        tokio::task::JoinHandle<()>,
        (Metrics, SdkMeterProvider),
    ) {
        let server = self.clone();
        let client = Client::new(
            service_fn(move |request: Request<Body>| server.clone().answer(request)),
            "default",
        );
        let (metrics, provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let (events, write) = Recorder::new(client, about(), &metrics, || false);
        (events, tokio::spawn(write), (metrics, provider))
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let path = request.uri().path().to_owned();
        let namespace = path.split('/').nth(5).unwrap().to_owned();
        let trouble = *self.trouble.lock();
        let (mut code, mut message, mut cause) = (200, "failed calling webhook", "");
        if namespace.starts_with("once") && self.begun.elapsed() < WELL_AGAIN {
            code = 500;
        } else if namespace == "once-busy" {
            sleep(FIRST_TIMEOUT / 2).await;
        } else if namespace.starts_with("bad") {
            self.tries.fetch_add(1, SeqCst);
            match trouble {
                Some(Trouble::Fails) => code = 500,
                Some(Trouble::Overloaded) => code = 429,
                Some(Trouble::Hangs) => std::future::pending().await,
                Some(Trouble::Slow) => sleep(FIRST_TIMEOUT * 5).await,
                Some(Trouble::Refuses(with, words, reason)) => {
                    (code, message, cause) = (with, words, reason);
                }
                None => {}
            }
        }
        let body = if code == 200 {
            let at = self.begun.elapsed();
            self.stored.lock().push((namespace, at));
            json!({})
        } else {
            json!({
                "kind": "Status", "status": "Failure", "code": code, "reason": cause, "message": message,
                "details": { "retryAfterSeconds": 30, "causes": [{ "reason": cause }] },
            })
        };
        let answer = Response::builder().status(code);
        Ok(answer
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap())
    }

    fn of(&self, namespace: &str) -> Vec<Duration> {
        let stored = self.stored.lock();
        let of = stored.iter().filter(|(of, _)| of == namespace);
        of.map(|(_, at)| *at).collect()
    }
}

fn dropped(metrics: &Metrics, reason: &str) -> u64 {
    let (_, text) = metrics.scrape(None);
    let series = format!("some_operator_events_dropped_total{{reason=\"{reason}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap().parse().unwrap()
}

/// Failures in several namespaces do not delay the events of other namespaces. After the failures, the delayed events are
/// written in order, and none is lost.
#[tokio::test(start_paused = true)]
async fn r9_events_of_one_namespace_do_not_delay_others() {
    for trouble in [
        Trouble::Fails,
        Trouble::Overloaded,
        Trouble::Hangs,
        Trouble::Slow,
    ] {
        let server = Troubled::new(trouble);
        let (events, writer, (metrics, _provider)) = server.start();
        for number in 0..30 {
            for bad in ["bad", "bad-too", "bad-as-well"] {
                let key = Key::new(bad, &format!("f{number}"));
                events.send(&key, "u", SYNCED);
            }
            events.send(&Key::new("good", &format!("f{number}")), "u", SYNCED);
        }
        sleep(Duration::from_secs(10)).await;
        let good = server.of("good");
        assert_eq!(good.len(), 30, "{trouble:?}");
        assert!(good[29] < Duration::from_secs(5), "{trouble:?}: {good:?}");
        // The failures of one namespace do not make the attempts of another less frequent.
        sleep(Duration::from_secs(30)).await;
        let tries = server.tries.load(SeqCst);
        assert!((6..=36).contains(&tries), "{trouble:?}: {tries} tries");
        *server.trouble.lock() = None;
        drop(events);
        writer.await.unwrap();
        for bad in ["bad", "bad-too", "bad-as-well"] {
            assert_eq!(server.of(bad).len(), 30, "{trouble:?}");
        }
        for reason in ["late", "full", "refused"] {
            assert_eq!(dropped(&metrics, reason), 0, "{trouble:?}: {reason}");
        }
    }
}

/// The events of a recovered namespace are written soon, even if many other namespaces fail.
#[tokio::test(start_paused = true)]
async fn r9_a_recovered_namespace_does_not_wait_for_failing_ones() {
    for (trouble, bads) in [
        Trouble::Fails,
        Trouble::Overloaded,
        Trouble::Hangs,
        Trouble::Slow,
    ]
    .into_iter()
    .flat_map(|trouble| [2_u32, 5, 20].map(|bads| (trouble, bads)))
    {
        let server = Troubled::new(trouble);
        let (events, writer, (metrics, _provider)) = server.start();
        let send = |namespace: &str, uid: &str| {
            events.send(&Key::new(namespace, "f"), uid, SYNCED);
        };
        send("once", "first");
        for bad in 0..bads {
            for number in 0..30 {
                send(&format!("bad-{bad}"), &number.to_string());
            }
        }
        for second in 0..120 {
            send("once", &second.to_string());
            sleep(Duration::from_secs(1)).await;
        }
        // Its own longest delay, one attempt that hangs, and one more.
        let wait = RETRY_TIMEOUT * 3;
        sleep(wait).await;
        let once = server.of("once");
        assert_eq!(once.len(), 121, "{trouble:?} {bads}");
        for (second, stored) in once[1..].iter().enumerate() {
            let from = WELL_AGAIN.max(Duration::from_secs(second as u64));
            let waited = stored.saturating_sub(from);
            assert!(
                waited <= wait,
                "{trouble:?} {bads}: {second} waited {waited:?}"
            );
        }
        assert_eq!(dropped(&metrics, "full"), 0, "{trouble:?} {bads}");
        writer.abort();
    }
}

/// A namespace with a constant stream of events leaves the others their turns.
#[tokio::test(start_paused = true)]
async fn r9_a_busy_namespace_does_not_delay_other_namespaces() {
    let server = Troubled::new(Trouble::Hangs);
    let (events, writer, _metrics) = server.start();
    for bad in ["bad", "bad-too"] {
        events.send(&Key::new(bad, "f"), "u", SYNCED);
    }
    for number in 0..400 {
        events.send(&Key::new("once-busy", "f"), &number.to_string(), SYNCED);
        events.send(&Key::new("once-busy", "g"), &number.to_string(), SYNCED);
        events.send(&Key::new("once-busy", "h"), &number.to_string(), SYNCED);
        if number == 50 {
            *server.trouble.lock() = None;
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(server.of("once-busy").len() < 1200, "it is busy");
    for bad in ["bad", "bad-too"] {
        let stored = server.of(bad);
        assert!(
            stored[0] < Duration::from_secs(50) + RETRY_TIMEOUT * 5,
            "{stored:?}"
        );
    }
    writer.abort();
}

/// A transient rejection costs no event if it ends within a minute, and no more requests than a failure. A final rejection is
/// not retried.
#[tokio::test(start_paused = true)]
async fn an_event_is_retried_unless_its_rejection_is_final() {
    for (code, message, cause, passes) in [
        (400, "the body is no event", "", false),
        (401, "Unauthorized", "", true),
        (403, "events is forbidden: User cannot create", "", true),
        (403, "events is forbidden: exceeded quota: q", "", true),
        (
            403,
            "admission webhook \"w\" denied the request: no",
            "",
            false,
        ),
        (403, "it is being terminated", "NamespaceTerminating", false),
        (
            404,
            "the server could not find the requested resource",
            "",
            false,
        ),
        (408, "Timeout", "", true),
        (409, "Operation cannot be fulfilled", "", true),
        // Another client's event has the name, or a webhook chose this reason.
        (409, "events \"f.1\" already exists", "AlreadyExists", false),
        (
            409,
            "admission webhook \"w\" denied the request: no",
            "AlreadyExists",
            false,
        ),
        (413, "Request entity too large", "", false),
        (
            422,
            "ValidatingAdmissionPolicy 'p' denied request: no",
            "",
            false,
        ),
    ] {
        let lines = Arc::new(AtomicUsize::new(0));
        let layer = Warnings(Arc::clone(&lines));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let refusal = Trouble::Refuses(code, message, cause);
        let server = Troubled::new(refusal);
        let (events, writer, (metrics, _provider)) = server.start();
        for event in ["first", "second"] {
            events.send(&Key::new("bad", "f"), event, SYNCED);
        }
        sleep(Duration::from_secs(20)).await;
        let tries = server.tries.load(SeqCst);
        let expected = if passes { 2..=6 } else { 2..=2 };
        assert!(expected.contains(&tries), "{refusal:?}: {tries} tries");
        *server.trouble.lock() = None;
        sleep(WRITE_TIMEOUT / 2).await;
        let stored = server.of("bad").len();
        assert_eq!(stored, if passes { 2 } else { 0 }, "{refusal:?}");
        assert_eq!(
            dropped(&metrics, "refused"),
            2 - stored as u64,
            "{refusal:?}"
        );
        assert_eq!(lines.load(SeqCst), 0, "{refusal:?}");

        *server.trouble.lock() = Some(refusal);
        server.tries.store(0, SeqCst);
        for event in ["third", "fourth", "fifth"] {
            events.send(&Key::new("bad", "f"), event, SYNCED);
        }
        sleep(WRITE_TIMEOUT * 5).await;
        let tries = server.tries.load(SeqCst);
        assert!((3..=35).contains(&tries), "{refusal:?}: {tries} tries");
        let late = dropped(&metrics, "late");
        assert_eq!(late, if passes { 3 } else { 0 }, "{refusal:?}");
        assert_eq!(lines.load(SeqCst), usize::from(passes), "{refusal:?}");
        writer.abort();
    }
}

/// The backlog is bounded, per namespace and in total. Dropped events are counted, and logged at intervals.
#[tokio::test(start_paused = true)]
async fn events_that_are_dropped_are_counted_and_logged() {
    let lines = Arc::new(AtomicUsize::new(0));
    let layer = Warnings(Arc::clone(&lines));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let server = Troubled::new(Trouble::Fails);
    let (events, writer, (metrics, _provider)) = server.start();
    for bad in ["bad", "bad-too", "bad-as-well"] {
        for number in 0..NAMESPACE_CAPACITY + 10 {
            events.send(&Key::new(bad, &format!("f{number}")), "u", SYNCED);
            if number % 1000 == 0 {
                sleep(FIRST_TIMEOUT).await;
            }
        }
        sleep(FIRST_TIMEOUT).await;
    }
    let full = u64::try_from(2 * 10 + NAMESPACE_CAPACITY + 10).unwrap();
    let found = dropped(&metrics, "full");
    assert!(found.abs_diff(full) <= 3, "{found} of about {full}");
    sleep(WRITE_TIMEOUT * 5).await;
    assert!(dropped(&metrics, "late") >= 4);
    assert_eq!(lines.load(SeqCst), 1);
    events.send(&Key::new("good", "f"), "u", SYNCED);
    sleep(FIRST_TIMEOUT).await;
    assert_eq!(server.of("good").len(), 1);
    writer.abort();
}

struct Warnings(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= tracing::Level::WARN {
            self.0.fetch_add(1, SeqCst);
        }
    }
}

/// An event has the time of its occurrence, however late it is written. A retry after a lost response writes the same event.
#[tokio::test]
async fn an_event_has_the_time_of_its_occurrence() {
    let server = Server::default();
    let mut late = queued("it");
    late.time = "2026-01-01T00:00:00Z".parse().unwrap();
    for _ in 0..2 {
        // Another writer does not remember the first write.
        writer(&server).publish(&late).await.unwrap();
    }
    let stored: Vec<_> = server.stored.lock().values().cloned().collect();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].event_time.as_ref().unwrap().0, late.time);
    let writer = writer(&server);
    writer.publish(&late).await.unwrap();
    late.time = "2026-01-01T00:01:00Z".parse().unwrap();
    writer.publish(&late).await.unwrap();
    let stored = server.stored.lock();
    let series = stored.values().next().unwrap().series.as_ref().unwrap();
    assert_eq!(series.last_observed_time.0, late.time);
}

/// An event about an object with a long name has a valid name that begins like the object's.
#[tokio::test]
async fn an_event_of_a_long_name_has_a_name() {
    let lengths = [1, 235, 236, 237, 252, 253].map(|length| "a".repeat(length));
    let cut = ["-", ".", "-.-"].map(|cut| {
        let begin = "a".repeat(236 - cut.len());
        format!("{begin}{cut}{}", "b".repeat(17))
    });
    for name in lengths.into_iter().chain(cut) {
        let server = Server::default();
        let mut queued = queued("it");
        queued.key = Key::new("default", &name);
        writer(&server).publish(&queued).await.unwrap();
        let stored = server.stored.lock();
        let event = stored.keys().next().unwrap();
        assert!(is_subdomain(event, 253), "{event}");
        let (of, _) = event.rsplit_once('.').unwrap();
        assert!(
            name.starts_with(of) && of.len() >= name.len().min(233),
            "{event}"
        );
    }
}
