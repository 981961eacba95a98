//! Deployments of earlier names, and Deployments that were written for a newer Foo.

use super::*;
use crate::foo::cached::made_for;

/// Superseded are the Deployment that the status names, and Deployments that the controller created. Copies and Deployments of
/// another Foo are not.
#[tokio::test]
async fn superseded_deployments_are_those_of_the_foo() {
    let (client, _) = server(|_, _, _| (500, Value::Null));
    let mut renamed = foo();
    renamed
        .view
        .edit_status(|it| it.deployment_name = Some("served".into()));
    let reconciler = reconciler(&client, renamed.clone(), deployment());
    let add = |name: &str, change: fn(&mut Object<Deployment>)| {
        let mut other = deployment();
        other.key = renamed.key.sibling(name);
        change(&mut other);
        reconciler.apply_deployment(other);
    };
    // A Deployment without the annotation, as earlier releases created it.
    add("served", |d| {
        d.view.foo_generation = None;
    });
    add("never-available", |d| {
        d.view.foo_generation = Some(1);
    });
    add("a-copy", |d| {
        d.view.foo_generation = None;
    });
    add("of-an-earlier-foo", |d| {
        d.owner.as_mut().unwrap().uid = "earlier".into();
    });
    let steps = reconciler.plan(&renamed.key).unwrap();
    let steps = steps.iter().map(|step| (step.verb, step.key.name()));
    let expected = [("delete", "served"), ("delete", "never-available")];
    assert_eq!(steps.collect::<Vec<_>>(), expected);
}

/// The earlier Deployment is scaled while the new one is not available, or belongs to another owner.
#[tokio::test]
async fn the_serving_deployment_is_scaled_until_the_new_one_is_available() {
    for is_another in [false, true] {
        let (client, asked) = server(|method, path, _| match *method {
            Method::PATCH if path.ends_with("old") => {
                let mut old = stored("20", "nginx:latest", 3);
                old["metadata"]["name"] = "old".into();
                (200, old)
            }
            Method::PUT => pruned(),
            _ => (500, Value::Null),
        });
        let mut foo = foo();
        foo.view
            .edit_status(|it| it.deployment_name = Some("old".into()));
        let mut new = deployment();
        new.view.progress.available = 0;
        if is_another {
            new.owner = None;
        }
        let reconciler = reconciler(&client, foo.clone(), new);
        let mut old = deployment();
        (old.key, old.view.replicas) = (foo.key.sibling("old"), 1);
        reconciler.apply_deployment(old);
        assert!(!reconciler.is_up_to_date(&foo.key));
        let done = reconciler.reconcile(&foo.key).await;
        assert_eq!(done.is_err(), is_another, "{done:?}");
        let expected = ["PATCH deployments/old", "PUT foos/foo/status"];
        assert_eq!(*asked.lock(), expected);
    }
}

/// A reconciler for the fixture Foo after a rename from the Deployment `old`.
fn renamed(client: &Client) -> Fixture {
    let mut foo = foo();
    foo.view
        .edit_status(|it| it.deployment_name = Some("old".into()));
    let mut old = deployment();
    old.key = old.key.sibling("old");
    let fixture = reconciler(client, foo, deployment());
    fixture.apply_deployment(old);
    fixture
}

/// The UID, the generation and `spec.deploymentName` of the Foo in the API server.
type Has = (&'static str, i64, &'static str);

/// States in which the cached Foo is outdated. The last state follows an etcd restore, which reuses generations.
const OTHERS: [Has; 3] = [
    ("foo-uid", 3, "web"),
    ("another", 2, "web"),
    ("foo-uid", 2, "old"),
];

/// Returns the client and the request log of an API server with the Foo in this state, and the fixture Deployment.
fn server_of(has: Has) -> (Client, Arc<Mutex<Vec<String>>>) {
    server_with(has, stored("9", "nginx:latest", 3))
}

fn server_with(
    (uid, generation, wanted): Has,
    deployment: Value,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (_, mut foo) = pruned();
    foo["metadata"]["uid"] = uid.into();
    foo["metadata"]["generation"] = generation.into();
    foo["spec"]["deploymentName"] = wanted.into();
    server(move |method, path, _| match *method {
        Method::GET => listed(path, &foo, &deployment),
        Method::PATCH => {
            let mut answer = stored("31", "nginx:latest", 3);
            answer["metadata"]["annotations"] = json!({
                "samplecontroller.k8s.io/foo-generation": "2",
                "samplecontroller.k8s.io/made-for": made_for("foo-uid", "web"),
            });
            (200, answer)
        }
        Method::DELETE => (200, json!({ "kind": "Status", "status": "Success" })),
        _ => pruned(),
    })
}

/// A Deployment that names a newer generation is not changed unless a live read shows that the Foo does not have that
/// generation. Then the annotation is an edit, and is reverted.
#[tokio::test]
async fn i7_unknown_generation_is_an_edit() {
    let edits: [fn(&mut Deployment); 3] = [
        |_| {},
        |deployment| deployment.replicas = 5,
        |deployment| deployment.image = Some("evil".into()),
    ];
    for edit in edits {
        let edited = || {
            let mut edited = deployment();
            edited.view.foo_generation = Some(99);
            edit(&mut edited.view);
            edited
        };
        let key = &foo().key;
        // The cache is behind: the Foo was replaced, or has a later generation.
        for has in OTHERS.into_iter().chain([("foo-uid", 99, "web")]) {
            let (client, asked) = server_of(has);
            let reconciler = reconciler(&client, foo(), edited());
            for _ in 0..3 {
                assert!(!reconciler.is_up_to_date(key));
                let done = reconciler.reconcile(key).await;
                assert!(
                    matches!(done, Err(Error::Api(ApiError::Conflict))),
                    "{done:?}"
                );
                assert_eq!(std::mem::take(&mut *asked.lock()), ["GET foos"]);
            }
        }
        let (client, asked) = server_of(("foo-uid", 2, "web"));
        let reconciler = reconciler(&client, foo(), edited());
        reconciler.reconcile(key).await.unwrap();
        assert_eq!(
            std::mem::take(&mut *asked.lock()),
            ["GET foos", "PATCH deployments/web", "PUT foos/foo/status"]
        );
        let stored = reconciler
            .reconciler()
            .deployments
            .store()
            .get(&key.sibling("web"))
            .unwrap();
        assert_eq!(stored.view.foo_generation, Some(2));
        assert!(reconciler.is_up_to_date(key));
    }
}

/// If the live read of the Foo fails with any status code, the Deployment is not changed. The error is retried with backoff.
#[tokio::test]
async fn a_generation_that_cannot_be_confirmed_is_reported() {
    for code in 400..600 {
        let (client, asked) = server(move |_, _, _| {
            (
                code,
                json!({ "kind": "Status", "code": code, "message": "no" }),
            )
        });
        let mut edited = deployment();
        edited.view.foo_generation = Some(99);
        let reconciler = reconciler(&client, foo(), edited);
        let done = reconciler.reconcile(&foo().key).await;
        let error = done.unwrap_err();
        assert!(matches!(error.retry(), Retry::Backoff(_)), "{error:?}");
        assert_eq!(*asked.lock(), ["GET foos"]);
    }
}

/// The watch is behind: the Foo may have been renamed back, and specify the old Deployment again.
#[tokio::test]
async fn r11b_stale_foo_deletes_nothing() {
    let current = [("foo-uid", 2, "web")];
    for has in OTHERS.into_iter().chain(current) {
        let deletes = current.contains(&has);
        let (client, asked) = server_of(has);
        let reconciler = renamed(&client);
        let done = reconciler.reconcile(&foo().key).await;
        let mut expected = vec!["GET foos"];
        if deletes {
            assert_eq!(done.unwrap(), Action::Done);
            expected.extend([
                "GET deployments",
                "DELETE deployments/old",
                "PUT foos/foo/status",
            ]);
        } else {
            assert!(
                matches!(done, Err(Error::Api(ApiError::Conflict))),
                "{done:?}"
            );
        }
        assert_eq!(*asked.lock(), expected);
    }
}

/// If a live read fails, the earlier Deployment is not deleted, and the status reports the error.
#[tokio::test]
async fn a_deletion_that_cannot_be_confirmed_is_reported() {
    for resource in ["foos", "deployments"] {
        let reported = Arc::<Mutex<Value>>::default();
        let said = Arc::clone(&reported);
        let (client, asked) = server(move |method, path, body| match *method {
            Method::GET if path.ends_with(resource) => (
                403,
                json!({ "kind": "Status", "code": 403, "message": "no" }),
            ),
            Method::GET => listed(path, &pruned().1, &Value::Null),
            _ => {
                *said.lock() = body["status"].clone();
                pruned()
            }
        });
        let reconciler = renamed(&client);
        let error = reconciler.reconcile(&foo().key).await.unwrap_err();
        assert!(matches!(error.retry(), Retry::Backoff(_)), "{error:?}");
        assert_eq!(asked.lock().last().unwrap(), "PUT foos/foo/status");
        let conditions = &reported.lock()["conditions"];
        assert_eq!(conditions[0]["status"], "True", "{conditions}");
        assert_eq!(conditions[1]["reason"], "DeletionFailed", "{conditions}");
        assert_eq!(conditions[1]["observedGeneration"], 2);
    }
}

/// The watch is behind: the new Deployment is deleted, terminating, controlled by another Foo, or not available.
#[tokio::test]
async fn r11b_old_deployment_stays_until_a_live_read_shows_the_new_one_available() {
    let edits: [fn(&mut Value); 4] = [
        |new| *new = Value::Null,
        |new| new["metadata"]["ownerReferences"][0]["uid"] = "another".into(),
        |new| new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
        |new| new["status"]["availableReplicas"] = 2.into(),
    ];
    for edit in edits {
        let mut new = stored("31", "nginx:latest", 3);
        edit(&mut new);
        let (client, asked) = server_with(("foo-uid", 2, "web"), new);
        let reconciler = renamed(&client);
        let done = reconciler.reconcile(&foo().key).await;
        assert!(
            matches!(done, Err(Error::Api(ApiError::Conflict))),
            "{done:?}"
        );
        assert_eq!(asked.lock()[..2], ["GET foos", "GET deployments"]);
        assert!(!asked.lock().iter().any(|asked| asked.starts_with("DELETE")));
    }
}
