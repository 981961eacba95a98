#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refused;
mod rollouts;
mod superseded;

use std::{convert::Infallible, ops::Deref, time::Duration};

use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use operator_runtime::{
    Object,
    testing::{Harness, snapshot},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::foo::{
    FooConfig,
    cached::Labels,
    fixtures::{deployment, foo, object},
    status::Serving,
};

/// A concurrent change of the Foo is a conflict only if it changes a cached field.
#[tokio::test]
async fn a_status_names_the_newest_version_that_reads_the_same() {
    let sent = Arc::<Mutex<Vec<Value>>>::default();
    let server = {
        let sent = Arc::clone(&sent);
        tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let sent = Arc::clone(&sent);
            async move {
                let body = request.into_body().collect_bytes().await?;
                sent.lock().push(serde_json::from_slice(&body).unwrap());
                Ok::<_, kube::Error>(http::Response::new(kube::client::Body::empty()))
            }
        })
    };
    let reconciler = reconciler(&Client::new(server, "default"), foo(), deployment());
    let key = &foo().key;
    let seen = reconciler.reconciler().foos.store().get(key).unwrap();
    for (version, generation, named) in [(8, 2, "8"), (9, 3, "7")] {
        let mut changed = foo();
        (changed.version, changed.view.generation) = (version, generation);
        reconciler.apply_foo(changed);
        let (status, cx) = (FooStatus::default(), reconciler.context(key, &seen));
        let foos = &reconciler.reconciler().foos;
        let _no_answer = foos.update_status(&cx, &seen, &status).await;
        let update = sent.lock().pop().unwrap();
        assert_eq!(update["metadata"]["resourceVersion"], named);
    }
}

/// A Foo is up to date exactly if a reconcile would change nothing.
#[tokio::test]
async fn a_foo_is_up_to_date_if_a_reconcile_changes_nothing() {
    let changed = |change: &dyn Fn(&mut Object<Foo>, &mut Object<Deployment>)| {
        let (mut foo, mut deployment) = (foo(), deployment());
        let deployed = DeploymentState {
            key: deployment.key.clone(),
            actual: snapshot::<Foo, _>(deployment.clone()),
            overruled: None,
            is_queued: false,
        };
        let now = Timestamp::now();
        let serving = Serving {
            key: deployment.key.clone(),
            view: Arc::clone(&deployed.actual.view),
        };
        let status = status::of(&foo.view, Some(&deployed), Some(&serving), None, now);
        foo.view.set_status(status.unwrap());
        change(&mut foo, &mut deployment);
        let nobody = tower::service_fn(|_| async {
            Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        reconciler(&Client::new(nobody, "default"), foo, deployment)
    };
    let key = &foo().key;
    assert!(changed(&|_, _| {}).is_up_to_date(key));
    assert!(changed(&|foo, _| foo.view.deleting = true).is_up_to_date(key));
    assert!(!changed(&|foo, _| foo.view.set_status(FooStatus::default())).is_up_to_date(key));
    assert!(!changed(&|_, deployment| deployment.view.replicas = 5).is_up_to_date(key));
    assert!(!changed(&|_, deployment| deployment.view.progress.available = 1).is_up_to_date(key));
    assert!(!changed(&|_, deployment| deployment.owner = None).is_up_to_date(key));
    assert!(!changed(&|_, deployment| deployment.key = key.sibling("other")).is_up_to_date(key));

    // The result holds until the Foo or the Deployment changes.
    let noted = changed(&|_, _| {});
    for _ in 0..2 {
        assert!(noted.is_up_to_date(key));
    }
    let mut scaled = deployment();
    (scaled.version, scaled.view.replicas) = (10, 5);
    noted.apply_deployment(scaled);
    assert!(!noted.is_up_to_date(key), "the Deployment has changed");
    let mut as_before = deployment();
    as_before.version = 11;
    noted.apply_deployment(as_before);
    assert!(noted.is_up_to_date(key));
    let mut renamed = foo();
    renamed.version = 8;
    renamed.view.set_status(FooStatus::default());
    noted.apply_foo(renamed);
    assert!(!noted.is_up_to_date(key), "the Foo has changed");

    let two = changed(&|_, _| {});
    let mut old = deployment();
    old.key = key.sibling("old");
    two.apply_deployment(old);
    assert!(!two.is_up_to_date(key), "there is a superseded one");

    let gone: Object<Foo> =
        object("metadata: {name: gone, namespace: default, uid: u, resourceVersion: '1'}");
    assert!(two.is_up_to_date(&gone.key));
}

/// A Foo whose spec cannot be applied is up to date until the earlier Deployment, which serves, changes its counts.
#[tokio::test]
async fn the_serving_deployment_is_checked_though_the_spec_cannot_be_applied() {
    type Change = fn(&mut Object<Foo>, &mut Object<Deployment>);
    let foreign: Change = |_, wanted| wanted.owner = None;
    let invalid: Change = |foo, _| {
        let spec = foo.view.spec.as_mut().unwrap();
        spec.deployment_name.clear();
    };
    for change in [foreign, invalid] {
        let (client, _) = server(|_, _, _| (500, Value::Null));
        let (mut foo, mut wanted) = (foo(), deployment());
        change(&mut foo, &mut wanted);
        foo.view
            .edit_status(|it| it.deployment_name = Some("old".into()));
        let mut old = deployment();
        old.key = foo.key.sibling("old");
        let reconciler = reconciler(&client, foo.clone(), wanted);
        reconciler.apply_deployment(old.clone());
        let (_, status) = reconciler.deploy(&foo.key).await;
        foo.version = 8;
        foo.view.set_status(status.unwrap());
        reconciler.apply_foo(foo.clone());
        for _ in 0..2 {
            assert!(reconciler.is_up_to_date(&foo.key));
        }
        (old.version, old.view.progress.available) = (10, 1);
        reconciler.apply_deployment(old);
        assert!(!reconciler.is_up_to_date(&foo.key), "its pods died");
    }
}

/// Returns the client of an API server that computes each response with `answer` from the method, the path and the body. Also
/// returns the log of the requests.
fn server(
    answer: impl Fn(&Method, &str, &Value) -> (u16, Value) + Clone + Send + 'static,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (seen, answer) = (Arc::clone(&seen), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let path = head.uri.path();
            let what = path.split_once("/default/").map_or(path, |(_, what)| what);
            seen.lock().push(format!("{} {what}", head.method));
            let (code, answer) = answer(&head.method, path, &body);
            let answer = kube::client::Body::from(serde_json::to_vec(&answer).unwrap());
            let response = http::Response::builder().status(code).body(answer);
            Ok::<_, tower::BoxError>(response.unwrap())
        }
    });
    (Client::new(service, "default"), asked)
}

/// The JSON of the fixture Deployment with this version, image and number of replicas.
fn stored(version: &str, image: &str, replicas: i32) -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "web-uid", "resourceVersion": version, "generation": 4,
            "labels": { "app": "nginx", "controller": "foo" },
            "ownerReferences": [{ "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "foo",
                "uid": "foo-uid", "controller": true }],
        },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "nginx", "controller": "foo" } },
            "template": {
                "metadata": { "labels": { "app": "nginx", "controller": "foo" } },
                "spec": { "containers": [{ "name": "nginx", "image": image }] },
            },
        },
        "status": { "observedGeneration": 4, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3 },
    })
}

/// The response to a status update whose status was pruned.
fn pruned() -> (u16, Value) {
    let metadata = json!({
        "name": "foo", "namespace": "default", "uid": "foo-uid", "resourceVersion": "7", "generation": 2
    });
    let spec = json!({ "deploymentName": "web", "replicas": 3 });
    (200, json!({ "metadata": metadata, "spec": spec }))
}

/// The response to a live read of the Foo or the Deployment. Null means that the object does not exist.
fn listed(path: &str, foo: &Value, deployment: &Value) -> (u16, Value) {
    let one = if path.ends_with("foos") {
        foo
    } else {
        deployment
    };
    let items: Vec<_> = Some(one).filter(|one| !one.is_null()).into_iter().collect();
    (
        200,
        json!({ "metadata": { "resourceVersion": "30" }, "items": items }),
    )
}

/// A write without effect is not repeated until an object changes. A webhook replaces the image (and stamps every write, so
/// that the version changes each time), and the schema prunes the status.
#[tokio::test]
async fn i6b_write_without_effect_is_not_repeated() {
    for stamped in [false, true] {
        let (client, asked) = server(move |method, path, _| {
            let version = if stamped { "10" } else { "9" };
            match (method, path.ends_with("/status")) {
                (&Method::PATCH, _) => (200, stored(version, "mirror", 3)),
                (_, true) => pruned(),
                _ => (500, Value::Null),
            }
        });
        let mut rewritten = deployment();
        rewritten.view.image = Some("mirror".into());
        let reconciler = reconciler(&client, foo(), rewritten);
        let key = &foo().key;
        let reconcile = async || {
            let done = reconciler.reconcile(key).await;
            assert_eq!(done.unwrap(), Action::Done);
            std::mem::take(&mut *asked.lock())
        };
        assert_eq!(
            reconcile().await,
            ["PATCH deployments/web", "PUT foos/foo/status"]
        );
        for _ in 0..3 {
            assert!(reconciler.is_up_to_date(key));
            assert_eq!(reconcile().await, [""; 0]);
        }
        // The progress of a rollout is no reason to patch the image again.
        let mut rolling: Object<Deployment> =
            serde_json::from_str(&stored("11", "mirror", 3).to_string()).unwrap();
        rolling.view.progress.available = 2;
        reconciler.apply_deployment(rolling);
        assert!(!reconciler.is_up_to_date(key));
        assert_eq!(reconcile().await, ["PUT foos/foo/status"]);
        // A change by another client is a reason.
        let mut edited: Object<Deployment> =
            serde_json::from_str(&stored("12", "theirs", 3).to_string()).unwrap();
        edited.view.generation = 5;
        reconciler.apply_deployment(edited);
        assert_eq!(reconcile().await[0], "PATCH deployments/web");
        // So is a changed Foo.
        let mut changed = foo();
        (changed.version, changed.view.generation) = (13, 3);
        reconciler.apply_foo(changed);
        assert_eq!(
            reconcile().await,
            ["PATCH deployments/web", "PUT foos/foo/status"]
        );
    }
}

/// The Foo is deleted, the watch has not delivered the deletion, and the garbage collector deletes the Deployment.
#[tokio::test]
async fn r8_deleted_foo_gets_no_deployment_while_the_watch_lags() {
    for (code, message) in [
        (404, "foos.samplecontroller.k8s.io \"foo\" not found"),
        (
            409,
            "Precondition failed: UID in precondition: foo-uid, UID in object meta: other",
        ),
    ] {
        let (client, asked) = server(move |method, path, _| match *method {
            Method::POST => (201, stored("20", "nginx:latest", 3)),
            Method::GET => listed(path, &Value::Null, &Value::Null),
            _ => (
                code,
                json!({
                    "kind": "Status", "status": "Failure", "code": code, "reason": "r", "message": message,
                    "details": { "name": "foo", "kind": "foos" }
                }),
            ),
        });
        let reconciler = reconciler(&client, foo(), deployment());
        let key = &foo().key;
        let collect = |version| {
            let mut collected = deployment();
            collected.version = version;
            reconciler.delete_deployment(&collected);
        };
        collect(10);
        let reconcile = async || {
            let done = reconciler.reconcile(key).await;
            assert!(
                matches!(done, Err(Error::Api(ApiError::Conflict))),
                "{done:?}"
            );
            std::mem::take(&mut *asked.lock())
        };
        let asked = ["POST deployments", "PUT foos/foo/status", "GET foos"];
        assert_eq!(reconcile().await, asked[..if code == 404 { 3 } else { 2 }]);
        collect(21);
        for _ in 0..3 {
            assert_eq!(reconcile().await, ["GET foos"]);
        }
        let mut again = foo();
        (again.version, again.view.uid) = (30, "other".into());
        reconciler.apply_foo(again);
        assert_eq!(reconcile().await[0], "POST deployments");
    }
}

/// While the API server does not answer whether the Foo exists, no Deployment is created.
#[tokio::test]
async fn r8_possibly_deleted_foo_gets_no_deployment() {
    let (client, asked) = server(move |method, _, _| match *method {
        Method::POST => (201, stored("20", "nginx:latest", 3)),
        Method::GET => (503, Value::Null),
        _ => (
            404,
            json!({ "kind": "Status", "code": 404, "details": { "name": "foo" } }),
        ),
    });
    let reconciler = reconciler(&client, foo(), deployment());
    for (version, expected) in [
        (
            10,
            &["POST deployments", "PUT foos/foo/status", "GET foos"][..],
        ),
        (21, &["GET foos"]),
    ] {
        let mut deleted = deployment();
        deleted.version = version;
        reconciler.delete_deployment(&deleted);
        reconciler.reconcile(&foo().key).await.unwrap_err();
        assert_eq!(std::mem::take(&mut *asked.lock()), expected);
    }
}

/// Without the status subresource in the CRD, the Deployment is created and corrected, and the error names the subresource. The
/// API server's response may be the same as for a deleted Foo.
#[tokio::test]
async fn a_missing_status_subresource_stops_no_deployment() {
    for (details, is_named) in [(json!({}), false), (json!({ "name": "foo" }), true)] {
        let (client, asked) = server(move |method, path, _| match *method {
            Method::POST | Method::PATCH => (201, stored("20", "nginx:latest", 3)),
            Method::GET => listed(path, &pruned().1, &Value::Null),
            _ => (
                404,
                json!({
                    "kind": "Status", "code": 404, "reason": "NotFound", "message": "not found", "details": details
                }),
            ),
        });
        let reconciler = reconciler(&client, foo(), deployment());
        let reconcile = async || {
            let done = reconciler.reconcile(&foo().key).await;
            let asked = std::mem::take(&mut *asked.lock());
            (done.unwrap_err().to_string(), asked[0].clone())
        };
        for version in [10, 21] {
            let mut deleted = deployment();
            deleted.version = version;
            reconciler.delete_deployment(&deleted);
            let (error, first) = reconcile().await;
            assert_eq!(error.contains("no status subresource"), is_named, "{error}");
            assert_eq!(first, "POST deployments");
        }
        let mut scaled = deployment();
        (scaled.version, scaled.view.replicas) = (22, 5);
        reconciler.apply_deployment(scaled);
        assert_eq!(reconcile().await.1, "PATCH deployments/web");
    }
}

/// Another client reverts or deletes the Deployment after each correction. The first corrections are sent without delay, then
/// with exponential backoff, which is reported to the user. A change of the Foo is not delayed.
#[tokio::test(start_paused = true)]
async fn r6b_corrections_of_a_deployment_are_delayed() {
    for deletes in [false, true] {
        let version = Arc::new(Mutex::new(100_u64));
        let next = Arc::clone(&version);
        let (client, asked) = server(move |method, _, _| match *method {
            Method::PATCH | Method::POST => {
                let mut next = next.lock();
                *next += 1;
                (201, stored(&next.to_string(), "nginx:latest", 3))
            }
            _ => pruned(),
        });
        let mut foo = foo();
        foo.view.edit_status(|it| it.observed_generation = Some(2));
        foo.view
            .edit_status(|it| it.deployment_name = Some("web".into()));
        let reconciler = reconciler(&client, foo.clone(), deployment());
        let fight = async |time| {
            let mut reasons = Vec::new();
            let end = tokio::time::Instant::now() + time;
            while tokio::time::Instant::now() < end {
                let number = {
                    let mut version = version.lock();
                    *version += 1;
                    *version
                };
                let theirs = stored(&number.to_string(), "mirror", 3).to_string();
                let mut theirs: Object<Deployment> = serde_json::from_str(&theirs).unwrap();
                theirs.view.generation = i64::try_from(number).unwrap();
                if deletes {
                    reconciler.delete_deployment(&theirs);
                } else {
                    reconciler.apply_deployment(theirs);
                }
                let done = reconciler.reconcile(&foo.key).await;
                let wait = match done.as_ref().map_err(Error::retry) {
                    Err(Retry::After(wait)) => wait,
                    _ => Duration::ZERO,
                };
                reasons.extend(done.err().and_then(|error| error.reason()));
                tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
            }
            let asked = std::mem::take(&mut *asked.lock());
            let is_write = |asked: &&String| asked.contains("deployments");
            (asked.iter().filter(is_write).count(), reasons)
        };
        let (writes, reasons) = fight(Duration::from_mins(10)).await;
        // Ten without delay, then after 1, 2, 4, … s.
        assert!(
            (16..=20).contains(&writes),
            "{writes} writes in ten minutes"
        );
        assert!(reasons.len() >= 6 && reasons.iter().all(|it| *it == "DeploymentContested"));
        (foo.version, foo.view.generation) = (1000, 3);
        foo.view.edit_status(|it| it.observed_generation = Some(3));
        reconciler.apply_foo(foo.clone());
        let (writes, _) = fight(Duration::from_millis(9)).await;
        assert!(writes >= 8, "{writes} for the changed Foo");
    }
}

/// With an invalid spec, the status counts the pods of the Deployment that serves.
#[tokio::test]
async fn r5_serving_deployment_is_counted_with_an_invalid_spec() {
    let (client, _) = server(|_, _, _| (500, Value::Null));
    let mut emptied = foo();
    let spec = emptied.view.spec.as_mut().unwrap();
    spec.deployment_name.clear();
    emptied
        .view
        .edit_status(|it| it.deployment_name = Some("web".into()));
    let reconciler = reconciler(&client, emptied.clone(), deployment());
    let serving = reconciler
        .reconciler()
        .serving(&emptied.key, &emptied.view, None, None)
        .unwrap();
    assert_eq!(
        (serving.key.name(), serving.view.progress.available),
        ("web", 3)
    );
}

/// A reconciler whose stores contain this Foo and this Deployment.
fn reconciler(client: &Client, foo: Object<Foo>, deployment: Object<Deployment>) -> Fixture {
    let config = FooConfig {
        image: "nginx:latest".into(),
        max_rollouts: 1,
    };
    let fixture = Fixture(Harness::new(&crate::APP, client, |builder| {
        crate::foo::controller(builder, config)
    }));
    fixture.apply_foo(foo);
    fixture.apply_deployment(deployment);
    fixture
}

struct Fixture(Harness<FooReconciler>);

impl Deref for Fixture {
    type Target = Harness<FooReconciler>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Fixture {
    /// Carries out the plan. Returns the result and the status.
    async fn deploy(&self, key: &Key) -> (Done, Option<FooStatus>) {
        let reconciler = self.reconciler();
        let seen = reconciler.foos.store().get(key).unwrap();
        let cx = self.context(key, &seen);
        let done = reconciler.deploy(&cx, &seen).await;
        reconciler.wake(&cx);
        let status = reconciler.status(&cx, &seen.view, &done);
        (done, status)
    }

    fn apply_foo(&self, foo: Object<Foo>) {
        self.apply(self.reconciler().foos.store(), foo);
    }

    fn apply_deployment(&self, deployment: Object<Deployment>) {
        self.apply(self.reconciler().deployments.store(), deployment);
    }

    fn delete_deployment(&self, deployment: &Object<Deployment>) {
        self.delete(self.reconciler().deployments.store(), deployment);
    }
}
