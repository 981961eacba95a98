//! Dry runs of plans with steps and errors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and one does so on purpose"
)]

use std::{collections::BTreeMap, convert::Infallible};

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    api::{
        kind::Kind,
        object::Object,
        plain::{Custom, Dependent, Fields, Spec},
        reported::Status,
    },
    config::app::tests::APP,
    reconcile::{context::View, plan::Plan, writer::Writer},
    testing::Harness,
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Wish {
    #[serde(default)]
    of: String,
}

impl Spec for Wish {
    const KIND: Kind = Kind::custom("example.com", "v1", "Wish", "wishes");
    type Status = Status;
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Data {
    data: BTreeMap<String, String>,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

type Planned = Result<Plan<Custom<Wish>>, ApiError>;

type Planning = Box<dyn Fn(&Writer<Dependent<Data>>) -> Planned + Send>;

struct Wishes {
    maps: Writer<Dependent<Data>>,
    plan: Mutex<Planning>,
}

impl Reconciler for Wishes {
    type Primary = Custom<Wish>;
    type Error = ApiError;

    fn plan(&self, _: &View<'_, Custom<Wish>>, _: &Snapshot<Custom<Wish>>) -> Planned {
        (self.plan.lock())(&self.maps)
    }
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

/// Returns a harness with this Wish, for a reconciler with this plan. Each request fails the test.
fn harness(
    annotations: &Value,
    plan: impl Fn(&Writer<Dependent<Data>>) -> Planned + Send + 'static,
) -> Harness<Wishes> {
    let nobody = service_fn(|request: Request<Body>| async move {
        let path = request.uri();
        if path.path().is_empty() {
            return Ok::<_, Infallible>(Response::new(Body::empty()));
        }
        panic!("a dry run has sent a request to {path}")
    });
    let harness = Harness::new(&APP, &Client::new(nobody, "default"), |builder| Wishes {
        maps: builder.owns(),
        plan: Mutex::new(Box::new(plan)),
    });
    let wish = json!({
        "metadata": {
            "name": "w", "namespace": "n", "uid": "wish", "generation": 2, "resourceVersion": "5",
            "annotations": annotations,
        },
        "spec": {},
    });
    insert(&harness, harness.work.primary.store(), &wish);
    harness
}

fn insert<V: crate::api::object::Cached>(
    harness: &Harness<Wishes>,
    store: &crate::cache::store::Store<V>,
    object: &Value,
) {
    let object: Object<V> = serde_json::from_str(&object.to_string()).unwrap();
    harness.apply(store, object);
}

/// Stores a `ConfigMap`, controlled by the object with this UID.
fn insert_map(harness: &Harness<Wishes>, name: &str, owner: &str) {
    let owner = json!({
        "apiVersion": "example.com/v1", "kind": "Wish", "name": "w", "uid": owner, "controller": true,
    });
    let map = json!({
        "metadata": {
            "name": name, "namespace": "n", "uid": name, "resourceVersion": "7", "ownerReferences": [owner],
        },
        "data": { "a": "1" },
    });
    insert(harness, harness.reconciler().maps.store(), &map);
}

fn data(text: &str) -> Data {
    let data = BTreeMap::from([("a".to_owned(), text.to_owned())]);
    Data { data }
}

fn steps(run: &DryRun) -> Vec<String> {
    let steps = run.steps.iter();
    let steps = steps.map(|it| format!("{} {} {}", it.verb, it.kind, it.key.name()));
    steps.collect()
}

/// Stores the status that the dry run would have written.
fn write_status(harness: &Harness<Wishes>, run: &DryRun) {
    let status = run.steps.iter().find(|step| step.verb == "update").unwrap();
    let mut wish = json!({
        "metadata": { "name": "w", "namespace": "n", "uid": "wish", "generation": 2, "resourceVersion": "6" },
        "spec": {},
    });
    wish["status"] = status.body["status"].clone();
    insert(harness, harness.work.primary.store(), &wish);
}

/// The steps have the stored fields. After them, nothing is needed.
#[tokio::test]
async fn a_dry_run_has_all_steps_with_the_stored_fields() {
    let harness = harness(&Value::Null, |maps| {
        let mut plan = Plan::new();
        plan.apply(maps, &key("new"), &data("1"));
        plan.apply(maps, &key("old"), &data("2"))
            .limited("data.a", "slots", || None);
        plan.delete(maps, &key("left"));
        Ok(plan)
    });
    for name in ["old", "left"] {
        insert_map(&harness, name, "wish");
    }
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert_eq!(
        steps(&run),
        [
            "create ConfigMap new",
            "patch ConfigMap old",
            "delete ConfigMap left"
        ]
    );
    assert_eq!((run.problems.len(), run.is_paused), (0, false));
    let patch = &run.steps[1];
    assert_eq!(patch.body, json!({ "data": { "a": "2" } }));
    assert_eq!(patch.actual, json!({ "data": { "a": "1" } }));
    assert_eq!(patch.limited, Some(("data.a", "slots")));
    assert!(harness.work.dry_run(&key("another"), Vec::new()).is_none());
}

/// An error of the plan is a problem, also beside the status that reports it. Only a change of the object ends it.
#[tokio::test]
async fn an_error_of_the_plan_is_a_problem() {
    let invalid = || ApiError::InvalidSpec("of is empty".to_owned());
    let harness = harness(&Value::Null, move |_| Err(invalid()));
    let problem = Problem {
        text: "of is empty".to_owned(),
        is_settled: true,
    };
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert_eq!(steps(&run), ["update Wish w"]);
    assert_eq!(run.problems, [problem]);
    write_status(&harness, &run);
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert!(run.steps.is_empty(), "{:?}", run.steps);
    assert_eq!(run.problems[0].text, "of is empty");

    *harness.reconciler().plan.lock() = Box::new(|_| Err(ApiError::transient("no memory")));
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert!(run.steps.is_empty(), "{:?}", run.steps);
    assert_eq!(run.problems, [Problem::lasting(&"no memory")]);
}

/// Errors of steps are problems with their objects, also beside the steps before them.
#[tokio::test]
async fn an_error_of_a_step_is_a_problem() {
    let harness = harness(&Value::Null, |maps| {
        let mut plan = Plan::new();
        plan.apply(maps, &key("new"), &data("1"));
        plan.apply(maps, &key("theirs"), &data("2"));
        Ok(plan)
    });
    insert_map(&harness, "theirs", "another");
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert_eq!(steps(&run), ["create ConfigMap new"]);
    let text = "apply ConfigMap n/theirs: ConfigMap \"theirs\" already exists and is not controlled by this object";
    let problem = Problem {
        text: text.to_owned(),
        is_settled: true,
    };
    assert_eq!(run.problems, [problem]);
}

/// A panic costs only its object.
#[tokio::test]
async fn a_panic_is_a_problem() {
    let harness = harness(&Value::Null, |_| panic!("on purpose"));
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert!(run.steps.is_empty() && !run.problems[0].is_settled);
    let text = "Reconciler::reconcile of a Wish panicked: see the log line before this one";
    assert_eq!(run.problems[0].text, text);
}

/// A paused object only gets its condition.
#[tokio::test]
async fn a_paused_object_has_no_steps() {
    let harness = harness(&json!({ "example.com/paused": "true" }), |maps| {
        let mut plan = Plan::new();
        plan.apply(maps, &key("new"), &data("1"));
        Ok(plan)
    });
    let run = harness.work.dry_run(&key("w"), Vec::new()).unwrap().0;
    assert_eq!(
        (steps(&run), run.is_paused),
        (vec!["update Wish w".to_owned()], true)
    );
    assert!(run.problems.is_empty());
    let condition = &run.steps[0].body["status"]["conditions"][0];
    assert_eq!(condition["type"], "Paused");
}
