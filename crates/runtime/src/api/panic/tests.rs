//! Tests of a panic in each method of each resource type.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and a kind does so on purpose"
)]

use std::{
    borrow::Cow,
    cell::Cell,
    convert::Infallible,
    future::pending,
    hash::{Hash as _, Hasher},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use http::{Method, Request, Response, request::Parts};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::watch as channel, time::sleep};
use tracing::{Level, subscriber::set_default};

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        object::{Cached, Field, Meta, Metadata, Primary},
        reference::References,
    },
    cache::store::{Author, Owners, Snapshot, Store},
    client::fence::term::Term,
    config::{app::tests::APP, environment::Host, settings::Config},
    controller::{Controllers, builder::Builder},
    reconcile::{
        context::{Context, View},
        error::ApiError,
        plan::Plan,
        reconciler::{Action, Reconciler},
        writer::Writer,
    },
    telemetry::{
        health::{Health, Probe},
        metrics::Metrics,
    },
};

const ODD: Kind = Kind::custom("example.com", "v1", "Odd", "odds");
const THING: Kind = Kind::custom("example.com", "v1", "Thing", "things");

/// An Odd, or the Thing of the same name whose number the Odd reports. `spec.panics` is the method that panics.
#[derive(Clone, Debug)]
struct Object<const IS_ODD: bool> {
    name: String,
    uid: Box<str>,
    generation: i64,
    spec: Spec,
    status: Status,
}

type Odd = Object<true>;
type Thing = Object<false>;

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
#[serde(default)]
struct Spec {
    panics: String,
    number: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
    number: i64,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default)]
    spec: Field<Spec>,
    #[serde(default)]
    status: Field<Status>,
}

impl<const IS_ODD: bool> Object<IS_ODD> {
    fn called(&self, method: &str) {
        let panics = [&*self.spec.panics, PANICS.get()];
        assert!(!panics.contains(&method), "on purpose");
    }
}

thread_local! {
    /// Method that panics for every object, including stored objects.
    static PANICS: Cell<&'static str> = const { Cell::new("") };
}

impl<const IS_ODD: bool> PartialEq for Object<IS_ODD> {
    fn eq(&self, other: &Self) -> bool {
        self.called("PartialEq::eq");
        (&self.uid, self.generation, &self.spec, self.status)
            == (&other.uid, other.generation, &other.spec, other.status)
    }
}

impl<const IS_ODD: bool> Cached for Object<IS_ODD> {
    type Wire = Wire;
    const KIND: Kind = if IS_ODD { ODD } else { THING };

    fn decode(mut wire: Wire) -> (Meta, Self) {
        let object = Self {
            name: wire.metadata.name.clone(),
            uid: std::mem::take(&mut wire.metadata.uid),
            generation: std::mem::take(&mut wire.metadata.generation).or_default(),
            spec: wire.spec.or_default(),
            status: wire.status.or_default(),
        };
        object.called("Cached::decode");
        (wire.metadata.into_meta(), object)
    }

    fn uid(&self) -> &str {
        self.called("Cached::uid");
        &self.uid
    }

    fn references(&self, to: &mut References<'_>) {
        self.called("Cached::references");
        to.sibling::<Thing>(&self.name);
    }

    fn content(&self, state: &mut impl Hasher) {
        self.called("Cached::content");
        self.spec.hash(state);
    }

    fn is_rollout_update(_: &Self, new: &Self) -> bool {
        new.called("Cached::is_rollout_update");
        false
    }
}

impl Primary for Odd {
    type Status = Status;

    fn generation(&self) -> i64 {
        self.called("Primary::generation");
        self.generation
    }

    fn is_deleting(&self) -> bool {
        false
    }

    fn status(&self) -> Cow<'_, Status> {
        Cow::Borrowed(&self.status)
    }

    fn is_observed(&self) -> bool {
        self.called("Primary::is_observed");
        self.status.observed_generation == self.generation
    }

    fn says(status: &Status, state: &mut impl Hasher) {
        status.hash(state);
    }
}

/// Reports the generation of an Odd and the number of its Thing, or fails.
struct Odds {
    odds: Arc<Writer<Odd>>,
    things: Arc<Store<Thing>>,
}

impl Reconciler for Odds {
    type Primary = Odd;
    type Error = OddError;

    fn plan(&self, _: &View<'_, Odd>, _: &Snapshot<Odd>) -> Result<Plan<Odd>, OddError> {
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Odd>,
        seen: &Snapshot<Odd>,
    ) -> Result<Action, OddError> {
        seen.view.called("Reconciler::reconcile");
        if seen.view.name == "bad" {
            return Err(OddError(seen.view.spec.panics.clone()));
        }
        let thing = self.things.get(cx.key());
        let status = Status {
            observed_generation: seen.view.generation,
            number: thing.map_or(0, |thing| thing.view.spec.number),
        };
        if self.odds.needs_status_update(cx.key(), seen, &status) {
            self.odds.update_status(cx, seen, &status).await?;
        }
        Ok(Action::Done)
    }

    fn is_up_to_date(&self, _: &Context<'_, Odd>, seen: &Snapshot<Odd>) -> bool {
        seen.view.called("Reconciler::is_up_to_date");
        false
    }
}

/// An error, with the name of its method that panics.
#[derive(Debug)]
struct OddError(String);

impl OddError {
    fn called(&self, method: &str) {
        assert!(self.0 != method, "on purpose");
    }
}

impl std::fmt::Display for OddError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.called("Display::fmt");
        f.write_str("it is odd")
    }
}

impl std::error::Error for OddError {}

impl Failure for OddError {
    fn name(&self) -> &'static str {
        self.called("Failure::name");
        "Odd"
    }

    fn reason(&self) -> Option<&'static str> {
        self.called("Failure::reason");
        None
    }

    fn retry(&self) -> Retry {
        self.called("Failure::retry");
        Retry::Backoff(Duration::ZERO)
    }
}

impl From<ApiError> for OddError {
    fn from(error: ApiError) -> Self {
        Self(error.to_string())
    }
}

/// API server with two objects of each type. The objects called bad panic. A second after a watch begins, it sends a change of
/// each object.
#[derive(Clone)]
struct Server {
    panics: (Kind, &'static str),
    /// Last status of the good object.
    reported: Arc<Mutex<Value>>,
    versions: Arc<AtomicU64>,
}

type Answer = Response<StreamBody<stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>>;

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                Ok::<_, Infallible>(server.answer(&parts, body))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Parts, mut body: Value) -> Answer {
        let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
        let kind = if path.contains("/odds") { ODD } else { THING };
        if path.ends_with("/status") {
            *self.reported.lock() = body["status"].clone();
            body["metadata"]["generation"] = body["status"]["observedGeneration"].clone();
            let version = self.versions.fetch_add(1, SeqCst) + 10;
            body["metadata"]["resourceVersion"] = version.to_string().into();
            return respond([body.to_string()]);
        }
        if request.method == Method::POST {
            let review = json!({ "spec": {}, "status": { "allowed": true } });
            return respond([review.to_string()]);
        }
        if query.contains("sendInitialEvents") {
            let mut refused = respond([json!({ "code": 422 }).to_string()]);
            *refused.status_mut() = http::StatusCode::UNPROCESSABLE_ENTITY;
            return refused;
        }
        if query.contains("watch") {
            // The type comes first, as from a real API server.
            let event = |object| format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
            let changed = self.objects(kind, 2, 1000).map(event);
            let later = stream::once(sleep(Duration::from_secs(1)))
                .flat_map(move |()| stream::iter(changed.clone().map(frame)).map(Ok))
                .chain(stream::pending());
            return Response::new(StreamBody::new(later.boxed()));
        }
        let items = self.objects(kind, 1, 1);
        let list = json!({ "metadata": { "resourceVersion": "9" }, "items": items });
        respond([list.to_string()])
    }

    fn objects(&self, kind: Kind, generation: i64, version: u64) -> [Value; 2] {
        let (of, method) = self.panics;
        ["bad", "good"].map(|name| {
            let panics = if name == "bad" && of == kind {
                method
            } else {
                ""
            };
            // A new leader calls `is_up_to_date` first for an object with an observed status.
            let observed = if name == "bad" { generation } else { 0 };
            json!({
                "metadata": { "name": name, "namespace": "n", "uid": name, "generation": generation,
                    "resourceVersion": version.to_string() },
                "spec": { "panics": panics, "number": generation },
                "status": { "observedGeneration": observed },
            })
        })
    }
}

fn frame(text: String) -> Frame<Bytes> {
    Frame::data(Bytes::from(text))
}

fn respond<const N: usize>(texts: [String; N]) -> Answer {
    Response::new(StreamBody::new(
        stream::iter(texts.map(frame)).map(Ok).boxed(),
    ))
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// After a panic for one object, the other objects of both types are reconciled, and the process continues. A log line names
/// the method, the type and the object.
#[tokio::test(start_paused = true)]
async fn q6_a_panic_in_any_method_fails_only_one_object() {
    const RECONCILE: &str = "Reconciler::reconcile";
    for (kind, method, named) in [
        (ODD, "Cached::decode", None),
        (ODD, "Cached::references", None),
        (ODD, "PartialEq::eq", None),
        (ODD, "Cached::uid", Some(RECONCILE)),
        (ODD, "Primary::generation", Some(RECONCILE)),
        (ODD, "Primary::is_observed", None),
        (ODD, "Reconciler::is_up_to_date", None),
        (ODD, RECONCILE, None),
        (ODD, "Failure::name", None),
        (ODD, "Failure::reason", None),
        (ODD, "Failure::retry", None),
        (ODD, "Display::fmt", None),
        (THING, "Cached::decode", None),
        (THING, "Cached::references", None),
        (THING, "PartialEq::eq", None),
        (THING, "Cached::is_rollout_update", None),
        (THING, "Cached::content", Some("Reconciler::is_up_to_date")),
    ] {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(Level::WARN)
            .with_writer(move || writer.clone())
            .finish();
        let log = set_default(subscriber);
        let server = Server {
            panics: (kind, method),
            reported: Arc::default(),
            versions: Arc::default(),
        };
        let mut config = Config::shipped(&APP);
        config.backoff.initial = Duration::from_hours(1);
        config.backoff.max = Duration::from_hours(1);
        let mut health = Health::new(&Host::of_this_process());
        let build = |program: &mut Builder| {
            program.controller("odd", |builder| Odds {
                odds: builder.primary(),
                things: builder.watches(),
            });
        };
        let mut controller = Controllers::new(
            &Host::of_this_process(),
            &server.client(),
            &config,
            "test".into(),
            &Metrics::disconnected(&APP),
            &mut health,
            build,
        );
        let (_publish, term) = channel::channel(Some(Term::unlimited()));
        let running = tokio::spawn(async move { controller.run(term, pending()).await });
        sleep(Duration::from_millis(500)).await;
        let first = json!({ "observedGeneration": 1, "number": 1 });
        assert_eq!(*server.reported.lock(), first, "{method} of {kind:?}");
        sleep(Duration::from_secs(2)).await;
        let last = json!({ "observedGeneration": 2, "number": 2 });
        assert_eq!(*server.reported.lock(), last, "{method} of {kind:?}");
        assert!(!running.is_finished(), "{method} of {kind:?}");
        assert_eq!(health.failing(Probe::Live), [""; 0], "{method} of {kind:?}");
        assert_eq!(
            health.failing(Probe::Ready),
            [""; 0],
            "{method} of {kind:?}"
        );
        running.abort();
        drop(log);
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        let of = if named.is_some() { "Odd" } else { kind.kind };
        let says = format!("{} of a {of} panicked", named.unwrap_or(method));
        let says = |line: &&str| line.contains(&says) && line.contains("object=n/bad");
        let said = text.lines().filter(says).count();
        // At most one line for the list, and one for the change.
        assert!((1..=2).contains(&said), "{method} of {kind:?}: {text}");
        assert!(!text.contains("n/good"), "{method} of {kind:?}: {text}");
    }
}

fn odd(panics: &str, version: u64) -> serde_json::Result<crate::api::object::Object<Odd>> {
    let metadata = json!({ "name": "bad", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() });
    let text = json!({ "metadata": metadata, "spec": { "panics": panics } }).to_string();
    serde_json::from_str(&text)
}

/// The response to a write is checked like an object from a watch. An object that panics enters no store.
#[test]
fn q6_a_response_that_panics_is_an_error() {
    for method in ["Cached::decode", "Cached::references"] {
        let error = odd(method, 1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{method} of a Odd panicked")),
            "{error}"
        );
    }
}

/// A panic while an object is added leaves the store unchanged. A removal calls no method of the type: after a panic, it would
/// be unclear whether the object is removed.
#[test]
fn q6_a_panic_in_any_method_leaves_the_store_consistent() {
    for method in [
        "Cached::references",
        "Cached::uid",
        "Cached::content",
        "PartialEq::eq",
    ] {
        let store = Store::<Odd>::new(&[None], Owners::default());
        let key = Key::new("n", "bad");
        let put = || {
            store.list_begins(0);
            store.apply(0, odd("", 1).unwrap());
            store.list_ends(0, 1);
        };
        put();
        let sent = store.begin_write(&key);
        let answer = odd("", 2).unwrap();
        PANICS.set(method);
        let answer = catch_unwind(AssertUnwindSafe(|| {
            store.record_response(
                answer,
                sent,
                Author {
                    controller: 0,
                    key: &key,
                },
            )
        }));
        PANICS.set("");
        assert_eq!(store.version(&key), Some(1 + u64::from(answer.is_ok())));
        assert_eq!(store.referrers(&THING, &key), vec![key.clone()]);

        PANICS.set(method);
        assert!(store.delete(0, &key, 3).is_some());
        PANICS.set("");
        assert_eq!((store.len(), store.referrers(&THING, &key)), (0, vec![]));

        put();
        store.list_begins(0);
        PANICS.set(method);
        assert_eq!(store.list_ends(0, 4).len(), 1);
        PANICS.set("");
        assert_eq!((store.len(), store.referrers(&THING, &key)), (0, vec![]));
    }
}
