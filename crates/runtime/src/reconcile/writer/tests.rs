//! Guarantees of the writer for every reconciler.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod installation;
mod labels;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};
use tower::service_fn;

use super::*;
use crate::{
    api::{
        failure::Failure as _,
        kind::Kind,
        plain::{Custom, Dependent, Fields, Spec},
        reference::References,
        reported::{Reported, Status},
    },
    config::{app::tests::APP, environment::Host},
    controller::builder::ControllerBuilder,
    reconcile::{
        context::{Detached, Step, View},
        plan::Plan,
        reconciler::{Action, Reconciler},
        writer::{disputes::AT_ONCE, finalizer::Finalizer},
    },
    telemetry::{
        events::{
            Recorder,
            event::{Event, EventSource},
        },
        metrics::Metrics,
    },
    testing::Harness,
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Wish {
    text: String,
}

impl Spec for Wish {
    const KIND: Kind = Kind::custom("example.com", "v1", "Wish", "wishes");
    type Status = Status;
    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Dependent<Data>>(to.key().name());
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
struct Data {
    data: BTreeMap<String, String>,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

/// Each Wish gets a `ConfigMap` with its text, and is granted outside the cluster.
struct Granter {
    wishes: Arc<Writer<Custom<Wish>>>,
    maps: Writer<Dependent<Data>>,
    finalizer: Finalizer<Custom<Wish>>,
    granted: AtomicUsize,
}

fn build(builder: &mut ControllerBuilder<'_, Custom<Wish>>) -> Granter {
    Granter {
        wishes: builder.primary(),
        maps: builder.owns(),
        finalizer: builder.finalizer("example.com/ours"),
        granted: AtomicUsize::new(0),
    }
}

impl Granter {
    async fn grant(&self, cx: &Context<'_, Custom<Wish>>) -> Result<(), ApiError> {
        let granted = || {
            self.granted.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(())
        };
        self.finalizer.outside(cx, granted).await
    }
}

fn plan(text: &str) -> impl Fn(&Dependent<Data>) -> Option<Value> {
    move |actual| {
        let right = actual.fields.data.get("text").is_some_and(|is| is == text);
        (!right).then(|| json!({ "data": { "text": text } }))
    }
}

impl<V: Cached> Writer<V> {
    /// Creates or patches an object, like a step of a plan.
    async fn ensure<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        manifest: Value,
        plan: impl Fn(&V) -> Option<Value>,
    ) -> Result<Snapshot<V>, ApiError> {
        if self.store.get(key).is_none() {
            let created = self.create_owned(cx, key, manifest).await?;
            if plan(&created).is_none() {
                return Ok(created);
            }
        }
        let actual = self.store.get(key).ok_or(ApiError::Conflict)?;
        Self::check_owner(cx, key, &actual)?;
        let Some(patch) = plan(&actual) else {
            return Ok(actual);
        };
        let step = Step::of::<V>("patch", key, patch.clone());
        let plan = |now: &Snapshot<V>| plan(now);
        let patched = self.patch(cx, &actual, &patch, step, plan).await?;
        patched.heeded(key)
    }
}

impl Reconciler for Granter {
    type Primary = Custom<Wish>;
    type Error = ApiError;

    fn plan(
        &self,
        _: &View<'_, Custom<Wish>>,
        _: &Snapshot<Custom<Wish>>,
    ) -> Result<Plan<Custom<Wish>>, ApiError> {
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Custom<Wish>>,
        seen: &Snapshot<Custom<Wish>>,
    ) -> Result<Action, ApiError> {
        let seen = self.finalizer.set(cx, seen).await?;
        let text = &seen.view.spec.as_ref().unwrap().text;
        let new = json!({ "data": { "text": text } });
        self.maps.ensure(cx, cx.key(), new, plan(text)).await?;
        let status = Status {
            observed_generation: Some(seen.view.generation),
            ..Status::default()
        };
        let event = Event::normal("Reported", "reported");
        self.wishes.report(cx, &seen, &status, event).await?;
        Ok(Action::Done)
    }
}

/// API server that stores every write unchanged and records each request.
#[derive(Clone, Default)]
struct Server {
    sent: Arc<Mutex<Vec<(Method, String, Value)>>>,
    listed: Arc<Mutex<Vec<Value>>>,
    /// Stored in place of any patch or update.
    overruling: Arc<Mutex<Option<Value>>>,
    /// Whether a proxy replaces each response with an unreadable one.
    is_garbled: Arc<AtomicBool>,
    versions: Arc<AtomicU64>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let path = parts.uri.path().to_owned();
                let exists = parts.method == Method::POST && !server.listed.lock().is_empty();
                let answer = if exists {
                    json!({ "kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists" })
                } else if parts.method == Method::GET {
                    json!({ "metadata": { "resourceVersion": "9" }, "items": *server.listed.lock() })
                } else {
                    let overruling = server.overruling.lock().clone();
                    let stored =
                        overruling.filter(|_| [Method::PATCH, Method::PUT].contains(&parts.method));
                    let mut answer = stored.unwrap_or_else(|| body.clone());
                    let metadata = &mut answer["metadata"];
                    metadata["name"] = "w".into();
                    metadata["namespace"] = "n".into();
                    metadata["resourceVersion"] = server.next_version().to_string().into();
                    if metadata["uid"].is_null() {
                        metadata["uid"] = "new".into();
                    }
                    if parts.method == Method::DELETE {
                        metadata["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
                    }
                    answer
                };
                server.sent.lock().push((parts.method, path, body));
                let answer = if server.is_garbled.load(SeqCst) {
                    "<html>".to_owned()
                } else {
                    answer.to_string()
                };
                let answer = Body::from(answer.into_bytes());
                let mut answer = Response::new(answer);
                if exists {
                    *answer.status_mut() = StatusCode::CONFLICT;
                }
                Ok::<_, Infallible>(answer)
            }
        });
        Client::new(service, "default")
    }

    /// Versions begin at 9.
    fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, SeqCst) + 9
    }

    fn sent(&self) -> Vec<(Method, String, Value)> {
        std::mem::take(&mut self.sent.lock())
    }
}

fn object<V: Cached>(value: &Value) -> Object<V> {
    serde_json::from_str(&value.to_string()).unwrap()
}

fn wish(finalizers: &[&str], observed: i64) -> Value {
    json!({
        "metadata": { "name": "w", "namespace": "n", "uid": "wish", "resourceVersion": "3", "generation": 2,
            "finalizers": finalizers },
        "spec": { "text": "a" },
        "status": { "observedGeneration": observed },
    })
}

fn map(owner: &str, text: &str) -> Value {
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Wish", "name": "w", "uid": owner, "controller": true });
    json!({
        "metadata": { "name": "w", "namespace": "n", "uid": "map", "resourceVersion": "4", "ownerReferences": [owner] },
        "data": { "text": text },
    })
}

fn harness(server: &Server, wish: &Value, map: Option<&Value>) -> Harness<Granter> {
    let harness = Harness::new(&APP, &server.client(), build);
    let Granter { wishes, maps, .. } = harness.reconciler();
    harness.apply(wishes.store(), object(wish));
    if let Some(map) = map {
        harness.apply(maps.store(), object(map));
    }
    harness
}

fn key() -> Key {
    Key::new("n", "w")
}

/// A created object has the name of its key, and the reconciled object as its owner.
#[tokio::test]
async fn i4_a_created_object_is_controlled_by_the_reconciled_object() {
    let server = Server::default();
    let harness = harness(&server, &wish(&["example.com/ours"], 2), None);
    harness.reconcile(&key()).await.unwrap();
    let sent = server.sent();
    let [(method, path, body)] = &*sent else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (method, &**path),
        (&Method::POST, "/api/v1/namespaces/n/configmaps")
    );
    let metadata = &body["metadata"];
    assert_eq!(metadata["name"], "w");
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Wish", "name": "w", "uid": "wish",
        "controller": true, "blockOwnerDeletion": true });
    assert_eq!(metadata["ownerReferences"], json!([owner]));
}

/// A create in another namespace fails: the object could not be owned, and its changes would trigger no reconcile.
#[tokio::test]
async fn i4_nothing_is_made_in_another_namespace() {
    let server = Server::default();
    let harness = harness(&server, &wish(&["example.com/ours"], 2), None);
    let Granter { wishes, maps, .. } = harness.reconciler();
    let (key, elsewhere) = (key(), Key::new("other", "w"));
    let seen = wishes.store().get(&key).unwrap();
    let cx = harness.context(&key, &seen);
    let ensured = maps.ensure(&cx, &elsewhere, json!({}), plan("a")).await;
    assert!(matches!(ensured, Err(ApiError::Rejected(_))), "{ensured:?}");
    assert!(server.sent().is_empty());
}

/// If the created object differs from the desired state, it is patched once. If the patch has no effect, each reconcile reports
/// it.
#[tokio::test]
async fn a_mutated_creation_is_corrected_or_reported() {
    for overruled in [false, true] {
        let server = Server::default();
        *server.overruling.lock() = overruled.then(|| map("wish", "b"));
        let harness = harness(&server, &wish(&["example.com/ours"], 2), None);
        let Granter { wishes, maps, .. } = harness.reconciler();
        let key = key();
        let seen = wishes.store().get(&key).unwrap();
        let cx = harness.context(&key, &seen);
        let new = json!({ "data": { "text": "b" } });
        let ensured = maps.ensure(&cx, &key, new, plan("a")).await;
        let methods: Vec<_> = server.sent().into_iter().map(|sent| sent.0).collect();
        assert_eq!(methods, [Method::POST, Method::PATCH]);
        if overruled {
            let again = maps.ensure(&cx, &key, json!({}), plan("a")).await;
            let is_reported = |ensured| matches!(ensured, Err(ApiError::Overruled(..)));
            assert!(is_reported(ensured) && is_reported(again));
            assert!(server.sent().is_empty());
        } else {
            assert_eq!(ensured.unwrap().fields.data["text"], "a");
        }
    }
}

/// Ownership is decided by the UID, not by the name, for every kind of write.
#[tokio::test]
async fn i5_an_object_of_another_controller_is_not_changed() {
    let server = Server::default();
    let harness = harness(
        &server,
        &wish(&["example.com/ours"], 2),
        Some(&map("earlier", "b")),
    );
    let foreign = ApiError::Foreign("ConfigMap", "w".to_owned());
    assert_eq!(harness.reconcile(&key()).await.unwrap_err(), foreign);
    let Granter { wishes, maps, .. } = harness.reconciler();
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let cx = harness.context(&key, &seen);
    let actual = maps.store().get(&key).unwrap();
    let patch = plan("a")(&actual.view).unwrap();
    let step = Step::of::<Dependent<Data>>("patch", &key, patch.clone());
    let plan = |now: &Snapshot<_>| plan("a")(now);
    let patched = maps.patch(&cx, &actual, &patch, step, plan).await;
    assert_eq!(patched.map(drop).unwrap_err(), foreign);
    let deleted = maps.delete(&cx, &key, &actual).await;
    assert_eq!(deleted.unwrap_err(), foreign);
    assert!(server.sent().is_empty());
}

/// A patch of the finalizers contains the finalizers of other controllers. Its resourceVersion protects finalizers that are
/// added concurrently.
#[tokio::test]
async fn finalizers_of_other_controllers_are_kept() {
    let server = Server::default();
    let harness = harness(
        &server,
        &wish(&["others/theirs"], 2),
        Some(&map("wish", "a")),
    );
    let Granter {
        wishes, finalizer, ..
    } = harness.reconciler();
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let cx = harness.context(&key, &seen);
    let patch = |finalizers: Value, version: &str| json!({ "metadata": { "uid": "wish", "resourceVersion": version, "finalizers": finalizers } });
    let kept = finalizer.set(&cx, &seen).await.unwrap();
    assert!(finalizer.is_set(&kept) && !finalizer.is_set(&seen));
    finalizer.set(&cx, &kept).await.unwrap();
    let sent: Vec<_> = server.sent().into_iter().map(|(_, _, body)| body).collect();
    assert_eq!(
        sent,
        [patch(json!(["others/theirs", "example.com/ours"]), "3")]
    );
    finalizer.clear(&cx, &kept).await.unwrap();
    finalizer.clear(&cx, &seen).await.unwrap();
    let sent: Vec<_> = server.sent().into_iter().map(|(_, _, body)| body).collect();
    assert_eq!(sent, [patch(json!(["others/theirs"]), "9")]);
}

/// The default `is_up_to_date` is a dry run of the reconcile, which sends no request.
#[tokio::test]
async fn the_dry_run_of_a_reconcile_sends_no_request() {
    let server = Server::default();
    let ours = ["example.com/ours"];
    for (wish, map, expected) in [
        (wish(&ours, 2), Some(map("wish", "a")), true),
        (wish(&[], 2), Some(map("wish", "a")), false),
        (wish(&ours, 1), Some(map("wish", "a")), false),
        (wish(&ours, 2), Some(map("wish", "b")), false),
        (wish(&ours, 2), None, false),
        // A resync does not skip an object that fails.
        (wish(&ours, 2), Some(map("earlier", "b")), false),
    ] {
        let harness = harness(&server, &wish, map.as_ref());
        assert_eq!(harness.is_up_to_date(&key()), expected, "{wish} {map:?}");
    }
    assert!(server.sent().is_empty());
}

/// An external action has no precondition, so a live read and a check of the leadership come before it.
#[tokio::test]
async fn an_external_action_needs_the_current_object_and_leadership() {
    let (ours, server) = (["example.com/ours"], Server::default());
    let now = wish(&ours, 2);
    let mut newer = now.clone();
    newer["metadata"]["generation"] = 3.into();
    let mut deleting = now.clone();
    deleting["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
    let mut another = now.clone();
    another["metadata"]["uid"] = "another".into();
    for (seen, listed, leads, expected) in [
        (&now, Some(&now), true, true),
        (&deleting, Some(&deleting), true, true),
        (&now, Some(&now), false, false),
        (&now, Some(&newer), true, false),
        (&now, Some(&deleting), true, false),
        (&now, Some(&another), true, false),
        (&now, None, true, false),
        (&wish(&[], 2), Some(&now), true, false),
        // Another client has removed the finalizer.
        (&now, Some(&wish(&["others/theirs"], 2)), true, false),
    ] {
        let harness = harness(&server, seen, None);
        *server.listed.lock() = listed.into_iter().cloned().collect();
        let wishes = harness.reconciler();
        let (key, seen) = (key(), wishes.wishes.store().get(&key()).unwrap());
        let cx = Context {
            attempt: &Detached { leads },
            ..harness.context(&key, &seen)
        };
        let granted = wishes.grant(&cx).await;
        assert_eq!(
            granted.is_ok(),
            expected,
            "{seen:?} {listed:?}: {granted:?}"
        );
        assert_eq!(wishes.granted.load(SeqCst), usize::from(expected));
    }
}

/// Kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Create,
    Patch,
    Delete,
    Report,
    SetFinalizer,
    ClearFinalizer,
}

/// Each kind of write, and its description in the error of a delayed one.
const VERBS: [(Verb, &str); 6] = [
    (Verb::Create, "creation"),
    (Verb::Patch, "changes of data.text"),
    (Verb::Delete, "deletion"),
    (Verb::Report, "changes of status"),
    (Verb::SetFinalizer, "the finalizers [\"example.com/ours\"]"),
    (Verb::ClearFinalizer, "the finalizers []"),
];

impl Verb {
    /// Reverts the write as another client would.
    fn undo(self, harness: &Harness<Granter>, generation: i64, version: u64) {
        let Granter { wishes, maps, .. } = harness.reconciler();
        let at = |mut object: Value| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            object
        };
        let finalizers: &[&str] = match self {
            Self::SetFinalizer => &[],
            _ => &["example.com/ours"],
        };
        let observed = generation - i64::from(self == Self::Report);
        let mut wish = at(wish(finalizers, observed));
        wish["metadata"]["generation"] = generation.into();
        harness.apply(wishes.store(), object(&wish));
        let mut map = at(map("wish", "theirs"));
        if self == Self::Delete {
            // The deleted object was created again.
            map["metadata"]["uid"] = version.to_string().into();
        }
        let map = object(&map);
        if self == Self::Create {
            harness.delete(maps.store(), &map);
        } else {
            harness.apply(maps.store(), map);
        }
    }

    async fn write(
        self,
        granter: &Granter,
        cx: &Context<'_, Custom<Wish>>,
    ) -> Result<(), ApiError> {
        let Granter {
            wishes,
            maps,
            finalizer,
            ..
        } = granter;
        let (key, seen) = (cx.key(), cx.seen);
        let actual = || maps.store().get(key).unwrap();
        match self {
            Self::Create | Self::Patch => {
                let new = json!({ "data": { "text": "a" } });
                maps.ensure(cx, key, new, plan("a")).await.map(drop)
            }
            Self::Delete => maps.delete(cx, key, &actual()).await,
            Self::Report => {
                let status = Status {
                    observed_generation: Some(seen.view.generation),
                    ..Status::default()
                };
                let event = Event::normal("Reported", "reported");
                wishes.report(cx, seen, &status, event).await
            }
            Self::SetFinalizer => finalizer.set(cx, seen).await.map(drop),
            Self::ClearFinalizer => finalizer.clear(cx, seen).await.map(drop),
        }
    }
}

/// Row R6 for each kind of write. Another client reverts it a thousand times in a minute. The first corrections are sent
/// without delay, later corrections with exponential backoff. An event informs the user. A new generation is written without
/// delay.
#[tokio::test(start_paused = true)]
async fn r6b_reverted_writes_are_delayed() {
    // Also if no response confirms the write.
    for ((verb, wanted), is_garbled) in VERBS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let server = Server::default();
        server.is_garbled.store(is_garbled, SeqCst);
        let harness = harness(&server, &wish(&[], 2), None);
        let about = EventSource {
            app: &APP,
            reporter: "test",
            instance: "test".into(),
            kind: &Wish::KIND,
            host: Host::of_this_process(),
        };
        let metrics = Metrics::disconnected(&APP);
        let (recorder, write_events) = Recorder::new(server.client(), about, &metrics, || false);
        let events = tokio::spawn(write_events);
        let key = key();
        let by_status = [Verb::Create, Verb::Patch, Verb::Delete].contains(&verb);
        let is_itself = [Verb::Create, Verb::Delete].contains(&verb);
        let undo_and_write = async |generation| {
            verb.undo(&harness, generation, server.next_version());
            let seen = harness.reconciler().wishes.store().get(&key).unwrap();
            let cx = Context {
                recorder: &recorder,
                // Referenced objects change all the time, but do not change the request.
                inputs: if is_itself { 0 } else { seen.version },
                ..harness.context(&key, &seen)
            };
            verb.write(harness.reconciler(), &cx).await
        };
        let begun = Instant::now();
        let mut written = 0;
        for time in 0..1000 {
            sleep_until(begun + Duration::from_millis(60) * time).await;
            match undo_and_write(2).await {
                Ok(()) => written += 1,
                Err(ApiError::Contested(name, what, wait)) => {
                    assert_eq!((&*name, &*what), ("w", wanted), "{verb:?}");
                    assert!(wait <= Duration::from_mins(1), "{verb:?}: {wait:?}");
                    assert!(!is_garbled, "{verb:?}: nothing is known of others");
                }
                Err(ApiError::Transient(words, time)) if is_garbled => {
                    assert_eq!(time, Duration::ZERO, "{verb:?}: nobody asks for it");
                    written += u32::from(!words.contains("outcome of the last writes"));
                }
                Err(other) => panic!("{verb:?}: {other}"),
            }
            // The first write is no correction.
            let at_once = u32::min(time + 1, 1 + AT_ONCE);
            assert!(written >= at_once, "{verb:?}: {written} of {at_once}");
        }
        // Five more follow after 1, 2, 4, 8 and 16 s.
        assert_eq!(written, 1 + AT_ONCE + 5, "{verb:?}");
        sleep(Duration::from_secs(1)).await;
        let (of_events, sent): (Vec<_>, Vec<_>) = server
            .sent()
            .into_iter()
            .partition(|(_, path, _)| path.contains("/events"));
        assert_eq!(sent.len(), 1 + AT_ONCE as usize + 5, "{verb:?}");
        // Only a dispute that the status cannot report has an event. The event of the reconciler itself has another reason.
        let told = of_events
            .iter()
            .filter(|(_, _, event)| event["reason"] == "Contested");
        assert_eq!(
            told.count(),
            usize::from(!by_status && !is_garbled),
            "{verb:?}: {of_events:?}"
        );
        server.is_garbled.store(false, SeqCst);
        assert_eq!(undo_and_write(3).await, Ok(()), "{verb:?}");
        events.abort();
    }
}

/// Status updates during a rollout, and different patches of one object, are not reverted. So they are not delayed.
#[tokio::test(start_paused = true)]
async fn writes_without_reverts_are_not_postponed() {
    let server = Server::default();
    let harness = harness(&server, &wish(&["example.com/ours"], 2), None);
    let Granter { wishes, maps, .. } = harness.reconciler();
    let key = key();
    let seen = wishes.store().get(&key).unwrap();
    let cx = harness.context(&key, &seen);
    for number in 0..1000 {
        let status = Status {
            observed_generation: Some(number),
            ..Status::default()
        };
        let now = wishes.store().get(&key).unwrap();
        wishes.update_status(&cx, &now, &status).await.unwrap();
    }
    let mut map = map("wish", "a");
    for number in 0..1000 {
        map["metadata"]["resourceVersion"] = server.next_version().to_string().into();
        *server.overruling.lock() = Some(map.clone());
        let new = json!({ "data": { "text": number } });
        let plan = |_: &_| Some(json!({ "data": { "text": number } }));
        let ensured = maps.ensure(&cx, &key, new, plan).await;
        assert!(matches!(ensured, Err(ApiError::Overruled(..))));
    }
    // A further request created the object.
    assert_eq!(server.sent().len(), 2001);
}

/// A rollout of a thousand steps, one per second, while other clients change their own fields. No step is reverted.
#[tokio::test(start_paused = true)]
async fn a_rollout_without_reverts_is_not_postponed() {
    type Touch = fn(&mut Value, &mut Value, u64);
    let touches: [(&str, Touch); 4] = [
        ("its status, which is kept", |_, map, step| {
            map["data"]["status"] = step.to_string().into();
        }),
        ("its status, which is not kept", |_, map, step| {
            map["status"] = step.into();
        }),
        ("another reader's fields", |_, map, step| {
            map["metadata"]["labels"] = json!({ "others": step.to_string() });
        }),
        ("an annotation of the primary", |wish, _, step| {
            wish["metadata"]["annotations"] = json!({ "others": step.to_string() });
        }),
    ];
    for (which, touch) in touches {
        let server = Server::default();
        let harness = harness(&server, &wish(&["example.com/ours"], 2), None);
        let Granter { wishes, maps, .. } = harness.reconciler();
        let (key, begun) = (key(), Instant::now());
        for step in 0..1000 {
            sleep_until(begun + Duration::from_secs(step)).await;
            let mut wish = wish(&["example.com/ours"], 2);
            let mut map = map("wish", &step.to_string());
            touch(&mut wish, &mut map, step);
            for object in [&mut wish, &mut map] {
                object["metadata"]["resourceVersion"] = server.next_version().to_string().into();
            }
            harness.apply(wishes.store(), object(&wish));
            harness.apply(maps.store(), object(&map));
            map["data"]["text"] = (step + 1).to_string().into();
            *server.overruling.lock() = Some(map);
            let seen = wishes.store().get(&key).unwrap();
            let cx = harness.context(&key, &seen);
            let next = (step + 1).to_string();
            let patched = maps.ensure(&cx, &key, json!({}), plan(&next)).await;
            assert!(patched.is_ok(), "{which}: {step}");
        }
    }
}

/// A finalizer or a long shutdown can delay a deletion. The deletion is requested once, and is not a dispute. Only a new object
/// with the same name is deleted again.
#[tokio::test(start_paused = true)]
async fn a_slow_deletion_is_requested_once() {
    let server = Server::default();
    let mut stored = map("wish", "a");
    let harness = harness(&server, &wish(&["example.com/ours"], 2), Some(&stored));
    let Granter { wishes, maps, .. } = harness.reconciler();
    let key = key();
    let seen = wishes.store().get(&key).unwrap();
    for uid in ["map", "again"] {
        for _ in 0..100 {
            stored["metadata"]["uid"] = uid.into();
            stored["metadata"]["resourceVersion"] = server.next_version().to_string().into();
            harness.apply(maps.store(), object(&stored));
            let cx = harness.context(&key, &seen);
            let there = maps.store().get(&key).unwrap();
            assert_eq!(maps.delete(&cx, &key, &there).await, Ok(()));
            sleep(Duration::from_secs(1)).await;
        }
        let sent = server.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].2["preconditions"]["uid"], uid);
    }
}

/// After a conflict, any change that the watch delivers triggers a retry. After a rejection, only a relevant change or the
/// backoff does.
#[tokio::test]
async fn a_rejected_write_is_retried_only_after_relevant_changes() {
    for (code, wakes) in [(409, true), (500, true), (403, false), (422, false)] {
        let refusing = service_fn(move |_: Request<Body>| async move {
            let status =
                json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no" });
            let answer = Response::builder().status(code);
            Ok::<_, Infallible>(
                answer
                    .body(Body::from(status.to_string().into_bytes()))
                    .unwrap(),
            )
        });
        let harness = Harness::new(&APP, &Client::new(refusing, "default"), build);
        let Granter {
            wishes,
            maps,
            finalizer,
            ..
        } = harness.reconciler();
        let key = key();
        harness.apply(wishes.store(), object(&wish(&["example.com/ours"], 1)));
        harness.apply(maps.store(), object(&map("wish", "0")));
        let seen = wishes.store().get(&key).unwrap();
        let there = maps.store().get(&key).unwrap();
        let cx = harness.context(&key, &seen);
        let mut versions = 10..;
        let mut told = |mut value: Value| {
            value["metadata"]["resourceVersion"] = versions.next().unwrap().to_string().into();
            value
        };
        let mut wakes_map = || {
            let change = maps.store().apply(0, object(&told(map("wish", "0"))));
            !change.unwrap().is_touch
        };
        maps.ensure(&cx, &key, json!({}), plan("a"))
            .await
            .unwrap_err();
        assert_eq!(wakes_map(), wakes, "patch: {code}");
        maps.delete(&cx, &key, &there).await.unwrap_err();
        assert_eq!(wakes_map(), wakes, "delete: {code}");
        let mut wakes_wish = || {
            let wish = told(wish(&["example.com/ours"], 1));
            !wishes.store().apply(0, object(&wish)).unwrap().is_touch
        };
        let said = Status {
            observed_generation: Some(2),
            ..Status::default()
        };
        wishes.update_status(&cx, &seen, &said).await.unwrap_err();
        assert_eq!(wakes_wish(), wakes, "status: {code}");
        finalizer.clear(&cx, &seen).await.unwrap_err();
        assert_eq!(wakes_wish(), wakes, "finalizer: {code}");
    }
}

/// If the API server rejects the status, a warning is still sent as an event, and a normal event is not.
#[tokio::test(start_paused = true)]
async fn i14_a_rejected_status_is_announced_by_a_warning_event() {
    for (event, expected) in [
        (Event::warning("Wrong", "wrong"), vec!["Wrong"]),
        (Event::normal("Reported", "reported"), vec![]),
    ] {
        let told = Arc::<Mutex<Vec<Value>>>::default();
        let events = Arc::clone(&told);
        let server = service_fn(move |request: Request<Body>| {
            let events = Arc::clone(&events);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let (code, answer) = if parts.uri.path().contains("/events") {
                    events.lock().push(body["reason"].clone());
                    (201, body)
                } else {
                    (
                        422,
                        json!({ "kind": "Status", "code": 422, "message": "no" }),
                    )
                };
                let answer = Body::from(answer.to_string().into_bytes());
                let answer = Response::builder().status(code).body(answer);
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let client = Client::new(server, "default");
        let harness = Harness::new(&APP, &client, build);
        let wishes = &harness.reconciler().wishes;
        harness.apply(wishes.store(), object(&wish(&[], 2)));
        let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
        let about = EventSource {
            app: &APP,
            reporter: "test",
            instance: "test".into(),
            kind: &Wish::KIND,
            host: Host::of_this_process(),
        };
        let metrics = Metrics::disconnected(&APP);
        let (recorder, write_events) = Recorder::new(client, about, &metrics, || false);
        let cx = Context {
            recorder: &recorder,
            ..harness.context(&key, &seen)
        };
        let status = Status {
            observed_generation: Some(1),
            ..Status::default()
        };
        let reported = wishes.report(&cx, &seen, &status, event).await;
        assert!(
            matches!(reported, Err(ApiError::Rejected(_))),
            "{reported:?}"
        );
        drop(recorder);
        write_events.await;
        assert_eq!(*told.lock(), expected);
    }
}

/// If a webhook reverts a finalizer within the same write, the request is not repeated until the object changes. The reconcile
/// fails with a message for the user, because nothing may be done without the finalizer.
#[tokio::test]
async fn i6_a_reverted_finalizer_is_requested_once() {
    for (to_set, finalizers) in [(true, &[][..]), (false, &["example.com/ours"])] {
        let server = Server::default();
        let stored = wish(finalizers, 2);
        let harness = harness(&server, &stored, None);
        *server.overruling.lock() = Some(stored.clone());
        let Granter {
            wishes, finalizer, ..
        } = harness.reconciler();
        let key = key();
        let ask = async || {
            let seen = wishes.store().get(&key).unwrap();
            let cx = harness.context(&key, &seen);
            if to_set {
                finalizer.set(&cx, &seen).await.map(drop)
            } else {
                finalizer.clear(&cx, &seen).await.map(drop)
            }
        };
        let mut changed = stored.clone();
        for generation in [2, 3] {
            changed["metadata"]["generation"] = generation.into();
            *server.overruling.lock() = Some(changed.clone());
            changed["metadata"]["resourceVersion"] = server.next_version().to_string().into();
            harness.apply(wishes.store(), object(&changed));
            for _ in 0..20 {
                let error = ask().await.unwrap_err();
                assert_eq!(error.reason(), Some("Rejected"), "{to_set}: {error}");
                assert!(error.to_string().contains("example.com/ours"), "{error}");
            }
            assert_eq!(server.sent().len(), 1, "{to_set}, generation {generation}");
        }
        // The webhook is deleted. The finalizer of another controller changes the object.
        *server.overruling.lock() = None;
        changed["metadata"]["finalizers"]
            .as_array_mut()
            .unwrap()
            .push("others/theirs".into());
        changed["metadata"]["resourceVersion"] = server.next_version().to_string().into();
        harness.apply(wishes.store(), object(&changed));
        assert_eq!(ask().await, Ok(()), "{to_set}");
    }
}

/// A dry run does not suppress a status, because none was rejected. An object with a suppressed status loses its up-to-date
/// mark, because its status must be retried.
#[tokio::test]
async fn a_dry_run_suppresses_no_status() {
    let harness = harness(&Server::default(), &wish(&[], 1), None);
    let Granter { wishes, .. } = harness.reconciler();
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let status = Status {
        observed_generation: Some(2),
        ..Status::default()
    };
    for (is_dry_run, needs_status_update) in [(true, true), (false, false)] {
        let cx = Context {
            is_dry_run,
            ..harness.context(&key, &seen)
        };
        wishes.store().note_up_to_date(&key, seen.version, 1);
        wishes.suppress_status(&cx, &seen, &status);
        assert_eq!(
            wishes.needs_status_update(&key, &seen, &status),
            needs_status_update
        );
        assert_eq!(
            wishes.store().input_fingerprint(&key).is_some(),
            needs_status_update
        );
    }
}

/// A message contains the fields of a patch. A value may be secret, and of any length.
#[test]
fn a_patch_is_described_by_its_fields_without_values() {
    let noted = json!({ "annotations": { "made-for": "SECRET" } });
    for (patch, expected) in [
        (
            json!({ "data": { "a": "SECRET", "b": null } }),
            "changes of data.a, data.b",
        ),
        (
            json!({ "metadata": noted, "spec": { "containers": [{ "env": "SECRET" }], "replicas": 3 } }),
            "changes of spec.containers, spec.replicas",
        ),
        (
            json!({ "metadata": noted, "spec": {} }),
            "changes of metadata.annotations.made-for",
        ),
    ] {
        assert_eq!(wanted(&patch), expected);
    }
    let names = (0..10_000).map(|number| (number.to_string(), "SECRET"));
    let many = json!({ "data": names.collect::<BTreeMap<_, _>>() });
    assert!(wanted(&many).chars().count() <= 501);
}

/// A status is not repeated if the API server prunes a field of it, of any type.
#[tokio::test]
async fn i6_a_status_that_is_pruned_is_written_once() {
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Timed {
        #[serde(flatten)]
        common: Status,
        last_transition_time: Option<String>,
        words: Option<String>,
    }
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    struct Timer {}
    impl Spec for Timer {
        const KIND: Kind = Kind::custom("example.com", "v1", "Timer", "timers");
        type Status = Timed;
    }
    impl Reported for Timed {
        fn common(&self) -> &Status {
            &self.common
        }
        fn common_mut(&mut self) -> &mut Status {
            &mut self.common
        }
    }
    struct Reporter(Arc<Writer<Custom<Timer>>>, Timed);
    impl Reconciler for Reporter {
        type Primary = Custom<Timer>;
        type Error = ApiError;
        fn plan(
            &self,
            _: &View<'_, Custom<Timer>>,
            _: &Snapshot<Custom<Timer>>,
        ) -> Result<Plan<Custom<Timer>>, ApiError> {
            Ok(Plan::new())
        }

        async fn reconcile(
            &self,
            cx: &Context<'_, Custom<Timer>>,
            seen: &Snapshot<Custom<Timer>>,
        ) -> Result<Action, ApiError> {
            let event = Event::normal("Said", "said");
            self.0.report(cx, seen, &self.1, event).await?;
            Ok(Action::Done)
        }
    }
    let timed = |time: Option<&str>, words: Option<&str>| Timed {
        common: Status {
            observed_generation: Some(2),
            ..Status::default()
        },
        last_transition_time: time.map(str::to_owned),
        words: words.map(str::to_owned),
    };
    let time = Some("2020-01-01T00:00:00Z");
    for status in [
        timed(time, None),
        timed(None, Some("a")),
        timed(time, Some("a")),
    ] {
        let server = Server::default();
        let stored = |version| {
            json!({
            "metadata": { "name": "w", "namespace": "n", "uid": "t", "resourceVersion": version, "generation": 2 },
            "spec": {}, "status": { "observedGeneration": 2 } })
        };
        *server.overruling.lock() = Some(stored("6"));
        let build = |builder: &mut ControllerBuilder<'_, Custom<Timer>>| {
            Reporter(builder.primary(), status.clone())
        };
        let harness = Harness::new(&APP, &server.client(), build);
        harness.apply(harness.reconciler().0.store(), object(&stored("5")));
        for _ in 0..5 {
            harness.reconcile(&key()).await.unwrap();
        }
        assert_eq!(server.sent().len(), 1, "{status:?}");
        assert!(harness.is_up_to_date(&key()), "{status:?}");
    }
}

/// A reconcile has two plans for one object, and a policy overrides both.
#[tokio::test]
async fn i6_two_no_op_plans_are_requested_once_each() {
    let server = Server::default();
    let stored = map("wish", "theirs");
    let harness = harness(&server, &wish(&["example.com/ours"], 2), Some(&stored));
    *server.overruling.lock() = Some(stored);
    let Granter { wishes, maps, .. } = harness.reconciler();
    let key = key();
    let seen = wishes.store().get(&key).unwrap();
    let cx = harness.context(&key, &seen);
    for expected in [2, 0, 0] {
        for patch in [
            json!({ "data": { "text": "a" } }),
            json!({ "metadata": { "labels": { "a": "b" } } }),
        ] {
            let actual = maps.store().get(&key).unwrap();
            let plan = |_: &_| Some(patch.clone());
            let step = Step::of::<Dependent<Data>>("patch", &key, patch.clone());
            let patched = maps.patch(&cx, &actual, &patch, step, plan).await;
            let patched = patched.unwrap();
            assert_eq!(patched.overruled, Some(patch));
        }
        assert_eq!(server.sent().len(), expected);
    }
}
