//! Each step and modifier of a plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    api::{
        failure::{Failure as _, Retry},
        object::{Cached, Object},
        plain::{Custom, Dependent, Fields, Spec},
        reported::Status,
    },
    config::app::tests::APP,
    reconcile::{
        context::{Attempt, View},
        reconciler::{Action, Reconciler},
        writer::disputes::AT_ONCE,
    },
    testing::Harness,
};

const FINALIZER: &str = "example.com/ours";

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Wish {}

impl Spec for Wish {
    const KIND: Kind = Kind::custom("example.com", "v1", "Wish", "wishes");
    type Status = Status;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PartSpec {
    size: Value,
}

impl Spec for PartSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Part", "parts");
    type Status = Status;
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Data {
    data: BTreeMap<String, Value>,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

type Planning = Box<dyn Fn(&Planner, &Snapshot<Custom<Wish>>) -> Plan<Custom<Wish>> + Send + Sync>;

/// Has the plan of a test.
struct Planner {
    wishes: Arc<Writer<Custom<Wish>>>,
    maps: Writer<Dependent<Data>>,
    parts: Writer<Custom<PartSpec>>,
    finalizer: Finalizer<Custom<Wish>>,
    second: Finalizer<Custom<Wish>>,
    error: Mutex<Option<ApiError>>,
    plan: Planning,
}

impl Reconciler for Planner {
    type Primary = Custom<Wish>;
    type Error = ApiError;

    fn plan(
        &self,
        _: &View<'_, Custom<Wish>>,
        seen: &Snapshot<Custom<Wish>>,
    ) -> Result<Plan<Custom<Wish>>, ApiError> {
        let error = self.error.lock().clone();
        error.map_or_else(|| Ok((self.plan)(self, seen)), Err)
    }
}

/// API server that merges each patch. It records the writes, and the live reads.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    sent: Vec<(Method, String, Value)>,
    versions: u64,
    /// Merged into each stored object.
    mutation: Value,
    /// Whether each status is rejected.
    rejects_status: bool,
}

impl State {
    fn next_version(&mut self) -> Value {
        self.versions += 1;
        self.versions.to_string().into()
    }
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let answer = server.answer(&parts.method, parts.uri.path(), &body);
                let code = answer["code"]
                    .as_u64()
                    .and_then(|code| u16::try_from(code).ok())
                    .unwrap_or(200);
                let answer = Body::from(answer.to_string().into_bytes());
                let answer = Response::builder().status(code).body(answer);
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &Value) -> Value {
        let state = &mut *self.0.lock();
        let path = path.trim_end_matches("/status");
        state
            .sent
            .push((method.clone(), path.to_owned(), body.clone()));
        if *method == Method::GET {
            let all = state.objects.iter().filter(|(it, _)| it.starts_with(path));
            let all: Vec<_> = all.map(|(_, object)| object).collect();
            return json!({ "metadata": { "resourceVersion": "9" }, "items": all });
        }
        if *method == Method::PUT && state.rejects_status {
            return json!({ "kind": "Status", "code": 422, "reason": "Invalid", "message": "no" });
        }
        let precondition = &body["metadata"]["resourceVersion"];
        let stored = state.objects.get(path);
        let stored = stored.map(|stored| &stored["metadata"]["resourceVersion"]);
        if !precondition.is_null() && stored.is_some_and(|stored| stored != precondition) {
            return json!({ "kind": "Status", "code": 409, "reason": "Conflict", "message": "" });
        }
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = match *method {
            Method::POST => format!("{path}/{name}"),
            _ => path.to_owned(),
        };
        let mut object = state
            .objects
            .remove(&path)
            .unwrap_or_else(|| json!({ "metadata": { "uid": format!("uid of {path}") } }));
        if *method == Method::DELETE {
            object["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
            return object;
        }
        json_patch::merge(&mut object, body);
        if !state.mutation.is_null() {
            json_patch::merge(&mut object, &state.mutation);
        }
        object["metadata"]["resourceVersion"] = state.next_version();
        state.objects.insert(path, object.clone());
        object
    }

    /// Returns the requests except writes of the status.
    fn sent(&self) -> Vec<(Method, String, Value)> {
        let mut sent = std::mem::take(&mut self.0.lock().sent);
        sent.retain(|(method, ..)| *method != Method::PUT);
        sent
    }

    fn methods(&self) -> Vec<Method> {
        self.sent().into_iter().map(|sent| sent.0).collect()
    }

    fn stored(&self, path: &str) -> Value {
        self.0.lock().objects.get(path).cloned().unwrap_or_default()
    }

    /// Stores a new version of an object, and delivers it.
    fn insert<V: Cached>(&self, harness: &Harness<Planner>, writer: &Writer<V>, mut object: Value) {
        object["metadata"]["resourceVersion"] = self.0.lock().next_version();
        let path = format!(
            "{}/{}",
            path_of::<V>(),
            object["metadata"]["name"].as_str().unwrap()
        );
        let decoded: Object<V> = serde_json::from_str(&object.to_string()).unwrap();
        self.0.lock().objects.insert(path, object);
        harness.apply(writer.store(), decoded);
    }
}

fn path_of<V: Cached>() -> String {
    let root = if V::KIND.group.is_empty() {
        "api"
    } else {
        "apis"
    };
    let (version, plural) = (V::KIND.api_version(), V::KIND.plural);
    format!("/{root}/{version}/namespaces/n/{plural}")
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn wish(finalizers: &[&str]) -> Value {
    json!({
        "metadata": { "name": "w", "namespace": "n", "uid": "wish", "generation": 2,
            "finalizers": finalizers },
        "spec": {},
    })
}

fn owned(kind: &str, name: &str, owner: &str, fields: &Value) -> Value {
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Wish", "name": "w", "uid": owner, "controller": true });
    let mut object = json!({
        "kind": kind,
        "metadata": { "name": name, "namespace": "n", "uid": name, "ownerReferences": [owner] },
    });
    json_patch::merge(&mut object, fields);
    object
}

fn data(fields: Value) -> Data {
    let data = serde_json::from_value(fields).unwrap();
    Data { data }
}

fn harness(
    wish: Value,
    plan: impl Fn(&Planner, &Snapshot<Custom<Wish>>) -> Plan<Custom<Wish>> + Send + Sync + 'static,
) -> (Server, Harness<Planner>) {
    let server = Server::default();
    let plan = Box::new(plan);
    let harness = Harness::new(&APP, &server.client(), |builder| Planner {
        wishes: builder.primary(),
        maps: builder.owns(),
        parts: builder.owns(),
        finalizer: builder.finalizer(FINALIZER),
        second: builder.finalizer("example.com/second"),
        error: Mutex::default(),
        plan,
    });
    server.insert(&harness, &harness.reconciler().wishes, wish);
    (server, harness)
}

/// Returns the verbs, kinds and names of the requests of a plan.
fn steps(harness: &Harness<Planner>) -> Vec<String> {
    let steps = harness.plan(&key("w")).unwrap().into_iter();
    let steps = steps.filter(|step| step.verb != "update");
    steps
        .map(|step| format!("{} {} {}", step.verb, step.kind, step.key.name()))
        .collect()
}

/// A missing object is created with its fields and an owner. A difference is patched with preconditions. A resync
/// skips an object without a difference.
#[tokio::test]
async fn an_object_is_created_and_corrected() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })));
        plan.apply(&it.parts, &key("p"), &PartSpec { size: json!(5) });
        plan
    });
    assert_eq!(steps(&harness), ["create ConfigMap m", "create Part p"]);
    assert!(server.sent().is_empty());
    harness.reconcile(&key("w")).await.unwrap();
    let sent = server.sent();
    let part = &sent[1].2;
    assert_eq!(part["spec"], json!({ "size": 5 }));
    assert_eq!(part["metadata"]["ownerReferences"][0]["uid"], "wish");
    assert!(steps(&harness).is_empty() && harness.is_up_to_date(&key("w")));

    let maps = harness.reconciler().maps.clone();
    let other = json!({ "data": { "a": "2", "theirs": "3" } });
    server.insert(&harness, &maps, owned("ConfigMap", "m", "wish", &other));
    assert_eq!(steps(&harness), ["patch ConfigMap m"]);
    assert!(!harness.is_up_to_date(&key("w")));
    harness.reconcile(&key("w")).await.unwrap();
    let patch = json!({ "metadata": { "uid": "m", "resourceVersion": "5" }, "data": { "a": "1" } });
    let map = format!("{}/m", path_of::<Dependent<Data>>());
    assert_eq!(server.sent(), [(Method::PATCH, map, patch)]);
}

/// A changed difference that stays is reported and not repeated. An object of another owner is left unchanged.
#[tokio::test]
async fn a_lasting_difference_and_a_foreign_object_are_errors() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })));
        plan
    });
    let overruling = json!({ "data": { "a": "2" } });
    server.0.lock().mutation = overruling.clone();
    let maps = harness.reconciler().maps.clone();
    server.insert(
        &harness,
        &maps,
        owned("ConfigMap", "m", "wish", &overruling),
    );
    for methods in [vec![Method::PATCH], vec![]] {
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert!(matches!(error, ApiError::Overruled(..)), "{error}");
        assert_eq!(server.methods(), methods);
    }
    let status = server.stored(&format!("{}/w", path_of::<Custom<Wish>>()))["status"].clone();
    let ready = &status["conditions"][0];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("Overruled"))
    );
    // A request of a user forgets it once.
    let token = json!({ format!("{}/reconcile-requested-at", APP.group): "t" });
    let mut requested = wish(&[]);
    requested["metadata"]["annotations"] = token;
    let wishes = Arc::clone(&harness.reconciler().wishes);
    server.insert(&harness, &wishes, requested);
    for methods in [vec![Method::PATCH], vec![]] {
        harness.reconcile(&key("w")).await.unwrap_err();
        assert_eq!(server.methods(), methods);
    }

    server.insert(
        &harness,
        &maps,
        owned("ConfigMap", "m", "another", &overruling),
    );
    let error = harness.reconcile(&key("w")).await.unwrap_err();
    assert!(matches!(error, ApiError::Foreign(..)), "{error}");
    assert!(server.sent().is_empty());
}

/// Another client reverts a patch or a status until the corrections are delayed. The request of a user ends that.
#[tokio::test(start_paused = true)]
async fn a_request_ends_the_disputes() {
    for disputed in [Method::PATCH, Method::PUT] {
        let (server, harness) = harness(wish(&[]), |it, _| {
            let mut plan = Plan::new();
            plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })));
            plan
        });
        let Planner { wishes, maps, .. } = harness.reconciler();
        // Returns whether the reverted write is sent again.
        let corrects = async |wish: Value| {
            server.insert(&harness, wishes, wish);
            let value = if disputed == Method::PATCH { "2" } else { "1" };
            let map = json!({ "data": { "a": value } });
            server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &map));
            let _ = harness.reconcile(&key("w")).await;
            let sent = std::mem::take(&mut server.0.lock().sent);
            // The acknowledgement of a request alone has no condition.
            let is_it = |(method, _, body): &(Method, String, Value)| {
                *method == disputed
                    && (disputed == Method::PATCH || body["status"]["conditions"].is_array())
            };
            sent.iter().any(is_it)
        };
        // The first write is no correction.
        for _ in 0..=AT_ONCE {
            assert!(corrects(wish(&[])).await, "{disputed}");
        }
        assert!(!corrects(wish(&[])).await, "{disputed}");
        let mut requested = wish(&[]);
        requested["metadata"]["annotations"] =
            json!({ format!("{}/reconcile-requested-at", APP.group): "t" });
        assert!(corrects(requested).await, "{disputed}");
    }
}

#[tokio::test]
async fn modifiers_change_what_is_sent_and_compared() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })))
            .initially(|| json!({ "data": { "once": "1" }, "immutable": false }))
            .stamp(|| json!({ "metadata": { "annotations": { "by": "us" } } }))
            .absent("data.gone");
        plan.apply(
            &it.parts,
            &key("p"),
            &PartSpec {
                size: json!({ "x": 1 }),
            },
        )
        .exactly("spec.size")
        .verified();
        plan
    });
    let Planner { maps, parts, .. } = harness.reconciler();
    harness.reconcile(&key("w")).await.unwrap();
    let created = &server.sent()[0].2;
    assert_eq!(created["data"], json!({ "a": "1", "once": "1" }));
    assert_eq!(created["metadata"]["annotations"], json!({ "by": "us" }));

    // Neither a field of the creation nor the stamp is a difference.
    let theirs = json!({ "data": { "a": "1" } });
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &theirs));
    assert!(steps(&harness).is_empty());
    let theirs = json!({ "data": { "a": "2", "gone": "1" } });
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &theirs));
    let patch = &harness.plan(&key("w")).unwrap()[0].body;
    let annotations = json!({ "annotations": { "by": "us" } });
    assert_eq!(
        *patch,
        json!({ "data": { "a": "1", "gone": null }, "metadata": annotations })
    );
    harness.reconcile(&key("w")).await.unwrap();
    assert_eq!(server.methods(), [Method::PATCH]);

    let theirs = json!({ "spec": { "size": { "x": 1, "y": 2 } } });
    server.insert(&harness, parts, owned("Part", "p", "wish", &theirs));
    let patch = &harness.plan(&key("w")).unwrap()[0].body;
    assert_eq!(*patch, json!({ "spec": { "size": { "y": null } } }));
    harness.reconcile(&key("w")).await.unwrap();
    assert_eq!(
        server.methods(),
        [Method::GET, Method::PATCH],
        "it is verified"
    );
    assert!(harness.is_up_to_date(&key("w")));

    // The Wish has been paused or changed since: a verified change is not sent.
    let wish = format!("{}/w", path_of::<Custom<Wish>>());
    let paused = json!({ format!("{}/paused", APP.group): "true" });
    for (field, value) in [("annotations", paused), ("generation", 3.into())] {
        server.insert(&harness, parts, owned("Part", "p", "wish", &theirs));
        server.0.lock().objects.get_mut(&wish).unwrap()["metadata"][field] = value;
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert_eq!(
            (error, server.methods()),
            (ApiError::Conflict, vec![Method::GET]),
            "{field}"
        );
        server.0.lock().objects.get_mut(&wish).unwrap()["metadata"][field] = Value::Null;
    }
}

/// The created object has no field that the comparison would remove.
#[tokio::test]
async fn a_created_object_is_in_its_desired_state() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        let desired = data(json!({ "a": "1", "null": null }));
        plan.apply(&it.maps, &key("m"), &desired)
            .initially(|| json!({ "data": { "null": "x", "absent": "x", "once": "x" } }))
            .absent("data.absent");
        let desired = data(json!({ "a": "1" }));
        plan.apply(&it.maps, &key("exact"), &desired)
            .initially(|| json!({ "data": { "more": "x" } }))
            .exactly("data");
        plan
    });
    harness.reconcile(&key("w")).await.unwrap();
    let sent = server.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0].2["data"], json!({ "a": "1", "once": "x" }));
    assert_eq!(sent[1].2["data"], json!({ "a": "1" }));
    assert!(harness.is_up_to_date(&key("w")));
}

/// A patch without effect is remembered, and a reverted one is delayed, although the stamp differs each time.
#[tokio::test(start_paused = true)]
async fn a_stamp_is_not_part_of_the_records_of_a_patch() {
    let count = AtomicUsize::new(0);
    let (server, harness) = harness(wish(&[]), move |it, _| {
        let mut plan = Plan::new();
        let stamp = count.fetch_add(1, SeqCst).to_string();
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })))
            .stamp(move || json!({ "metadata": { "annotations": { "at": stamp } } }));
        plan
    });
    let maps = &harness.reconciler().maps;
    let theirs = owned("ConfigMap", "m", "wish", &json!({ "data": { "a": "2" } }));
    server.0.lock().mutation = json!({ "data": { "a": "2" } });
    server.insert(&harness, maps, theirs.clone());
    for methods in [vec![Method::PATCH], vec![]] {
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert!(matches!(error, ApiError::Overruled(..)), "{error}");
        assert_eq!(server.methods(), methods);
    }

    server.0.lock().mutation = Value::Null;
    let theirs = owned("ConfigMap", "m", "wish", &json!({ "data": { "a": "3" } }));
    let mut patches = 0;
    for _ in 0..20 {
        server.insert(&harness, maps, theirs.clone());
        let done = harness.reconcile(&key("w")).await;
        assert!(
            matches!(done, Ok(_) | Err(ApiError::Contested(..))),
            "{done:?}"
        );
        patches += server.methods().len();
    }
    assert!((5..15).contains(&patches), "{patches}");
}

/// Test output contains no value of a Secret.
#[test]
fn a_step_does_not_show_the_values_of_a_secret() {
    let body = json!({ "data": { "a": "c2VjcmV0", "b": null }, "stringData": { "c": "secret" }, "type": "Opaque" });
    let step = |kind| Step {
        verb: "patch",
        kind,
        key: key("s"),
        body: body.clone(),
        actual: json!({ "data": { "a": "b2xk" } }),
        limited: None,
        compared: Value::Null,
        of: &Data::KIND,
    };
    assert_eq!(
        format!("{:?}", step("Secret")),
        r#"patch Secret n/s: {"data":{"a":"<redacted>","b":null},"stringData":{"c":"<redacted>"},"type":"Opaque"}"#
    );
    assert!(format!("{:?}", step("ConfigMap")).contains("c2VjcmV0"));
}

/// A queue in which another object waits.
struct Busy;

impl Attempt for Busy {
    fn has_urgent_work(&self) -> bool {
        true
    }

    fn leads(&self) -> bool {
        true
    }

    fn heartbeat(&self, _: &Key) {}

    fn enqueue(&self, _: Key) {}
}

/// The status is written after the urgent work, unless nothing else has changed.
#[tokio::test]
async fn the_status_waits_for_urgent_work() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.create(&it.maps, &key("m"), &data(json!({})));
        plan
    });
    let wishes = &harness.reconciler().wishes;
    for (action, method) in [
        (Action::StatusPending, Method::POST),
        (Action::Done, Method::PUT),
    ] {
        let (key, seen) = (key("w"), wishes.store().get(&key("w")).unwrap());
        let cx = Context {
            attempt: &Busy,
            ..harness.context(&key, &seen)
        };
        let done = harness.reconciler().reconcile(&cx, &seen).await;
        assert_eq!(done, Ok(action));
        let sent = std::mem::take(&mut server.0.lock().sent);
        let methods: Vec<_> = sent.into_iter().map(|sent| sent.0).collect();
        assert_eq!(methods, [method]);
    }
}

/// A fallback runs until another object is ready, or after a refused step. A deletion waits until a live read shows that the
/// other object is ready.
#[tokio::test]
async fn steps_depend_on_another_object() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let (mut plan, is_ready) = (Plan::new(), |it: &Dependent<Data>| it.fields.data.len() > 1);
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })));
        plan.change(&it.parts, &key("p"), &PartSpec { size: json!(5) })
            .until(&it.maps, &key("m"), is_ready);
        plan.delete(&it.parts, &key("old"))
            .once(&it.maps, &key("m"), is_ready);
        plan
    });
    let Planner { maps, parts, .. } = harness.reconciler();
    assert_eq!(steps(&harness), ["create ConfigMap m"]);
    for name in ["p", "old"] {
        let part = owned("Part", name, "wish", &json!({ "spec": { "size": 4 } }));
        server.insert(&harness, parts, part);
    }
    let map = |owner, more| {
        let fields = json!({ "data": { "a": "1", "more": more } });
        owned("ConfigMap", "m", owner, &fields)
    };
    for owner in ["wish", "another"] {
        server.insert(&harness, maps, map(owner, Value::Null));
        assert_eq!(steps(&harness), ["patch Part p"]);
    }
    server.insert(&harness, maps, map("wish", json!("1")));
    assert_eq!(steps(&harness), ["delete Part old"]);
    let path = format!("{}/m", path_of::<Dependent<Data>>());
    let ready = server.0.lock().objects.remove(&path).unwrap();
    let error = harness.reconcile(&key("w")).await.unwrap_err();
    assert_eq!(error, ApiError::Conflict);
    assert_eq!(server.methods(), [Method::GET, Method::GET]);
    server.0.lock().objects.insert(path, ready);
    harness.reconcile(&key("w")).await.unwrap();
    let methods = [Method::GET, Method::GET, Method::DELETE];
    assert_eq!(server.methods(), methods);
}

/// A change is sent without the limited field while no slot is free.
#[tokio::test]
async fn a_change_of_a_field_is_limited() {
    let (free, kept) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (slots, keep) = (Arc::clone(&free), Arc::clone(&kept));
    let (server, harness) = harness(wish(&[]), move |it, _| {
        let (mut plan, slots, keep) = (Plan::new(), Arc::clone(&slots), Arc::clone(&keep));
        plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1", "b": "1" })))
            .limited("data.a", "slots", move || {
                let keep = Arc::clone(&keep);
                let is_free = slots.load(SeqCst) > 0;
                is_free.then(|| -> Box<dyn FnOnce() + Send> {
                    Box::new(move || _ = keep.fetch_add(1, SeqCst))
                })
            });
        plan
    });
    let maps = &harness.reconciler().maps;
    let theirs = json!({ "data": { "a": "2", "b": "2" } });
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &theirs));
    let expected = [json!({ "b": "1" }), Value::Null, json!({ "a": "1" })];
    for (number, expected) in expected.into_iter().enumerate() {
        free.store(number / 2, SeqCst);
        assert!(!harness.is_up_to_date(&key("w")));
        harness.reconcile(&key("w")).await.unwrap();
        let sent = server.sent().pop().map(|sent| sent.2["data"].clone());
        assert_eq!(sent.unwrap_or_default(), expected);
        assert_eq!(kept.load(SeqCst), number / 2);
    }
    assert!(harness.is_up_to_date(&key("w")));
}

/// A created object is never changed.
#[tokio::test]
async fn create_leaves_an_existing_object() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.create(&it.maps, &key("m"), &data(json!({ "a": "1" })));
        plan
    });
    assert_eq!(steps(&harness), ["create ConfigMap m"]);
    let theirs = json!({ "data": { "a": "2" } });
    let maps = &harness.reconciler().maps;
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &theirs));
    assert!(steps(&harness).is_empty());
}

/// A deletion follows a live read of the owner. Objects of the plan and of other owners stay.
#[tokio::test]
async fn surplus_objects_are_deleted() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.prune(&it.maps);
        plan.create(&it.maps, &key("kept"), &data(json!({})));
        plan.delete(&it.parts, &key("old"));
        plan.delete(&it.parts, &key("foreign"));
        plan.delete(&it.parts, &key("missing"));
        plan
    });
    let Planner { maps, parts, .. } = harness.reconciler();
    for name in ["kept", "surplus"] {
        server.insert(&harness, maps, owned("ConfigMap", name, "wish", &json!({})));
    }
    server.insert(
        &harness,
        maps,
        owned("ConfigMap", "foreign", "another", &json!({})),
    );
    server.insert(&harness, parts, owned("Part", "old", "wish", &json!({})));
    server.insert(
        &harness,
        parts,
        owned("Part", "foreign", "another", &json!({})),
    );
    assert_eq!(
        steps(&harness),
        ["delete ConfigMap surplus", "delete Part old"]
    );
    harness.reconcile(&key("w")).await.unwrap();
    let sent = server.sent();
    let methods: Vec<_> = sent.iter().map(|sent| sent.0.clone()).collect();
    assert_eq!(
        methods,
        [Method::GET, Method::DELETE, Method::GET, Method::DELETE]
    );
    let preconditions = json!({ "uid": "surplus", "resourceVersion": "3" });
    assert_eq!(sent[1].2["preconditions"], preconditions);
    assert!(steps(&harness).is_empty(), "the deletions are pending");
}

/// The store does not have the objects of another namespace, so it does not show that nothing is left to delete.
#[tokio::test]
async fn a_delete_in_another_namespace_fails() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.delete(&it.maps, &Key::new("elsewhere", "m"));
        plan
    });
    let error = harness.reconcile(&key("w")).await.unwrap_err();
    assert!(
        error.to_string().contains("outside the namespace"),
        "{error}"
    );
    assert!(server.methods().is_empty());
}

/// An overruled step does not end the plan. A later error decides on the retry, and without one, the finalizer is cleared.
#[tokio::test]
async fn an_overruled_step_hides_no_later_error() {
    for has_foreign in [true, false] {
        let (server, harness) = harness(wish(&[FINALIZER]), move |it, _| {
            let mut plan = Plan::new();
            plan.finalizer(&it.finalizer, false);
            plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1" })));
            if has_foreign {
                plan.apply(&it.maps, &key("foreign"), &data(json!({})));
            }
            plan
        });
        let Planner {
            wishes,
            maps,
            finalizer,
            ..
        } = harness.reconciler();
        let overruling = json!({ "data": { "a": "2" } });
        server.0.lock().mutation = overruling.clone();
        for (name, owner) in [("m", "wish"), ("foreign", "another")] {
            server.insert(&harness, maps, owned("ConfigMap", name, owner, &overruling));
        }
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert_eq!(
            matches!(error, ApiError::Foreign(..)),
            has_foreign,
            "{error}"
        );
        let seen = wishes.store().get(&key("w")).unwrap();
        assert_eq!(finalizer.is_set(&seen), has_foreign);
    }
}

/// Returns a plan of two fields of one `ConfigMap`.
fn two_fields(it: &Planner, _: &Snapshot<Custom<Wish>>) -> Plan<Custom<Wish>> {
    let mut plan = Plan::new();
    plan.apply(&it.maps, &key("m"), &data(json!({ "a": "1", "b": "1" })));
    plan
}

/// A patch changes two fields, and admission replaces the first. The next patch would contain this field only, and is not sent.
#[tokio::test]
async fn i6_a_partly_overruled_patch_is_not_repeated() {
    let (server, harness) = harness(wish(&[]), two_fields);
    server.0.lock().mutation = json!({ "data": { "a": "2" } });
    let maps = &harness.reconciler().maps;
    let stored = json!({ "data": { "a": "2", "b": "2" } });
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &stored));
    for expected in [1, 0, 0] {
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert!(matches!(error, ApiError::Overruled(..)), "{error}");
        assert_eq!(server.methods().len(), expected);
    }
}

/// A patch of one field lets admission change another one. The next patch contains this field for the first time, and is sent.
#[tokio::test]
async fn a_field_that_was_not_sent_is_not_overruled() {
    let (server, harness) = harness(wish(&[]), two_fields);
    let maps = &harness.reconciler().maps;
    let stored = json!({ "data": { "a": "2", "b": "1" } });
    server.insert(&harness, maps, owned("ConfigMap", "m", "wish", &stored));
    server.0.lock().mutation = json!({ "data": { "b": "2" } });
    harness.reconcile(&key("w")).await.unwrap_err();
    server.0.lock().mutation = Value::Null;
    let _ = server.methods();
    harness.reconcile(&key("w")).await.unwrap();
    assert_eq!(server.methods(), [Method::PATCH]);
}

/// The finalizer is set before the action and cleared after it has been undone, at any place in the plan.
#[tokio::test]
async fn a_finalizer_encloses_an_action_outside() {
    let runs = Arc::new(AtomicUsize::new(0));
    let run = Arc::clone(&runs);
    let (server, harness) = harness(wish(&["others/theirs"]), move |it, seen| {
        let (mut plan, run) = (Plan::new(), Arc::clone(&run));
        plan.outside(&it.finalizer, move || {
            run.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(())
        });
        plan.finalizer(&it.finalizer, !seen.view.deleting);
        plan.again_after(Duration::from_mins(9));
        plan.again_after(Duration::from_mins(5));
        plan
    });
    let wishes = harness.reconciler().wishes.clone();
    assert_eq!(steps(&harness), ["patch Wish w", "outside Wish w"]);
    assert_eq!(runs.load(SeqCst), 0);
    let done = harness.reconcile(&key("w")).await.unwrap();
    assert_eq!(done, Action::After(Duration::from_mins(5)));
    assert_eq!(
        (server.methods(), runs.load(SeqCst)),
        (vec![Method::PATCH, Method::GET], 1)
    );

    let mut terminating = wish(&["others/theirs", FINALIZER]);
    terminating["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
    server.insert(&harness, &wishes, terminating.clone());
    assert_eq!(steps(&harness), ["outside Wish w", "patch Wish w"]);
    harness.reconcile(&key("w")).await.unwrap();
    let sent = server.sent();
    assert_eq!(
        sent[1].2["metadata"]["finalizers"],
        json!(["others/theirs"])
    );
    assert_eq!((sent.len(), runs.load(SeqCst)), (2, 2));

    // Another controller's finalizer keeps the object. Nothing is undone twice.
    assert!(steps(&harness).is_empty());
    harness.reconcile(&key("w")).await.unwrap();
    assert!(server.0.lock().sent.is_empty());
}

/// An error of the plan runs no step. An error with a reason is reported once.
#[tokio::test]
async fn an_error_of_the_plan_is_reported() {
    let (server, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.apply(&it.maps, &key("m"), &data(json!({})));
        plan
    });
    let error = ApiError::Waiting("no class".to_owned());
    *harness.reconciler().error.lock() = Some(error.clone());
    let update = harness.plan(&key("w")).unwrap();
    assert_eq!((update.len(), update[0].verb), (1, "update"));
    for _ in 0..2 {
        assert_eq!(harness.reconcile(&key("w")).await.unwrap_err(), error);
        assert!(harness.is_up_to_date(&key("w")));
    }
    let sent = std::mem::take(&mut server.0.lock().sent);
    assert_eq!(sent.len(), 1);
    let ready = &sent[0].2["status"]["conditions"][0];
    assert_eq!(
        (&ready["reason"], &ready["message"]),
        (&json!("Waiting"), &json!("no class"))
    );

    *harness.reconciler().error.lock() = Some(ApiError::transient("down"));
    harness.reconcile(&key("w")).await.unwrap_err();
    assert!(server.0.lock().sent.is_empty());
}

/// A rejected status does not replace the error of the plan, and is not repeated.
#[tokio::test]
async fn a_rejected_status_leaves_the_error_of_the_plan() {
    let (server, harness) = harness(wish(&[]), |_, _| Plan::new());
    server.0.lock().rejects_status = true;
    let error = ApiError::Waiting("no class".to_owned());
    *harness.reconciler().error.lock() = Some(error.clone());
    for _ in 0..2 {
        assert_eq!(harness.reconcile(&key("w")).await.unwrap_err(), error);
    }
    assert_eq!(server.0.lock().sent.len(), 1);
}

/// The error of an action is reported. So is an action without protection, which is not tried again.
#[tokio::test]
async fn a_failed_action_is_reported() {
    for (is_protected, reason) in [(true, "ActionFailed"), (false, "Unprotected")] {
        let (server, harness) = harness(wish(&[]), move |it, _| {
            let mut plan = Plan::new();
            plan.outside(&it.finalizer, || Err("no space left"));
            if is_protected {
                plan.finalizer(&it.finalizer, true);
            }
            plan
        });
        let error = harness.reconcile(&key("w")).await.unwrap_err();
        assert_eq!(error.reason(), Some(reason), "{error}");
        assert_eq!(error.retry() == Retry::OnChange, !is_protected);
        assert_eq!(harness.is_up_to_date(&key("w")), !is_protected);
        let wish = server.stored(&format!("{}/w", path_of::<Custom<Wish>>()));
        let ready = &wish["status"]["conditions"][0];
        assert_eq!(
            (&ready["status"], &ready["reason"]),
            (&"False".into(), &reason.into())
        );
    }
}

/// The time of the plan applies after an error that is not retried.
#[tokio::test]
async fn a_plan_is_repeated_after_an_error_that_is_not_retried() {
    let (_, harness) = harness(wish(&[]), |it, _| {
        let mut plan = Plan::new();
        plan.outside(&it.finalizer, || Ok::<_, Infallible>(()));
        plan.again_after(Duration::from_mins(5));
        plan
    });
    let done = harness.reconcile(&key("w")).await;
    assert_eq!(done, Ok(Action::After(Duration::from_mins(5))));
}

/// Each write after the clearing of a finalizer is based on the resulting object.
#[tokio::test]
async fn two_finalizers_and_the_status_are_written_one_after_the_other() {
    let all = [FINALIZER, "example.com/second", "others/theirs"];
    let (server, harness) = harness(wish(&all), |it, _| {
        let mut plan = Plan::new();
        plan.finalizer(&it.finalizer, false);
        plan.finalizer(&it.second, false);
        plan
    });
    harness.reconcile(&key("w")).await.unwrap();
    let wish = server.stored(&format!("{}/w", path_of::<Custom<Wish>>()));
    assert_eq!(wish["metadata"]["finalizers"], json!(["others/theirs"]));
    assert_eq!(wish["status"]["conditions"][0]["status"], "True");
}

/// Nothing is created for a terminating object, so its finalizer is cleared.
#[tokio::test]
async fn a_terminating_object_gets_no_new_objects() {
    let mut terminating = wish(&[FINALIZER]);
    terminating["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
    let (server, harness) = harness(terminating, |it, seen| {
        let mut plan = Plan::new();
        plan.finalizer(&it.finalizer, !seen.view.deleting);
        plan.create(&it.maps, &key("m"), &data(json!({})));
        plan.apply(&it.parts, &key("p"), &PartSpec { size: json!(5) });
        plan
    });
    assert_eq!(steps(&harness), ["patch Wish w"]);
    harness.reconcile(&key("w")).await.unwrap();
    assert_eq!(server.methods(), [Method::PATCH]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After a plan was carried out, the stored objects leave no step of it.
    #[test]
    fn a_plan_leaves_no_step(
        desired in values(), actual in values(), is_there in any::<bool>(), is_exact in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let wanted = desired.clone();
        let (server, harness) = harness(wish(&[]), move |it, _| {
            let mut plan = Plan::new();
            let apply = plan.apply(&it.parts, &key("p"), &PartSpec { size: wanted.clone() });
            apply.initially(|| json!({ "spec": { "more": 1 } }));
            if is_exact {
                apply.exactly("spec.size");
            }
            plan
        });
        let parts = harness.reconciler().parts.clone();
        if is_there {
            let theirs = json!({ "spec": { "size": actual } });
            server.insert(&harness, &parts, owned("Part", "p", "wish", &theirs));
        }
        runtime.block_on(harness.reconcile(&key("w"))).unwrap();
        prop_assert_eq!(steps(&harness), Vec::<String>::new(), "{:?}", server.sent());
        prop_assert!(harness.is_up_to_date(&key("w")));
    }
}

/// Objects and lists of few levels and few names, so that two of them have common members.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0..3).prop_map(Value::from),
        "[ab]?".prop_map(Value::from),
    ];
    let inner = leaf.prop_recursive(3, 12, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from);
        prop_oneof![list, members(inner)]
    });
    members(inner)
}

fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let members = prop::collection::btree_map("[abc]", value, 0..4);
    members.prop_map(|members| members.into_iter().collect())
}
