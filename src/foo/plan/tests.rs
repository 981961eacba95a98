#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;
use kube::Client;
use operator_runtime::{
    Failure as _, Object, Retry, Step,
    testing::{Harness, snapshot},
};

use super::*;
use crate::foo::{
    FooConfig,
    fixtures::{deployment, foo},
    reconcile::FooReconciler,
};

/// Returns the writes of Deployments for the Foo.
fn steps(foo: Object<Foo>, deployments: Vec<Object<Deployment>>) -> Vec<Step> {
    let nobody = tower::service_fn(|_| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let config = FooConfig {
        image: "nginx:latest".into(),
        max_rollouts: 1,
    };
    let client = Client::new(nobody, "default");
    let harness: Harness<FooReconciler> = Harness::new(&crate::APP, &client, |builder| {
        crate::foo::controller(builder, config)
    });
    let (reconciler, key) = (harness.reconciler(), foo.key.clone());
    harness.apply(reconciler.foos.store(), foo);
    for deployment in deployments {
        harness.apply(reconciler.deployments.store(), deployment);
    }
    let mut steps = harness.plan(&key).unwrap();
    steps.retain(|step| step.kind == "Deployment");
    steps
}

/// Returns the patch for the fixture Foo's Deployment.
fn difference(actual: &Object<Deployment>) -> Option<Value> {
    let mut steps = steps(foo(), vec![actual.clone()]).into_iter();
    let first = steps.next()?;
    assert_eq!((first.verb, steps.next()), ("patch", None));
    Some(first.body)
}

fn patch(actual: &Object<Deployment>) -> Value {
    difference(actual).unwrap()
}

/// Returns the manifest of the new Deployment.
fn manifest(foo: Object<Foo>, others: Vec<Object<Deployment>>) -> apps::Deployment {
    let step = steps(foo, others).swap_remove(0);
    assert_eq!(step.verb, "create");
    serde_json::from_value(step.body).unwrap()
}

/// The Deployment as it was written for this generation of the Foo.
fn of_generation(generation: i64) -> Object<Deployment> {
    let mut actual = deployment();
    actual.view.foo_generation = Some(generation);
    actual
}

/// The Deployment of an earlier name, with this number of replicas.
fn earlier(replicas: i32) -> Object<Deployment> {
    let mut old = of_generation(1);
    (old.key, old.view.replicas) = (old.key.sibling("old"), replicas);
    old
}

/// The manifest follows the Foo, and carries the annotations.
#[tokio::test]
async fn r1_new_deployment_matches_the_foo() {
    let manifest_of_foo = manifest(foo(), vec![]);
    let expected = "
            metadata:
              name: web
              namespace: default
              labels: {app: nginx, controller: foo}
              annotations:
                samplecontroller.k8s.io/foo-generation: '2'
                samplecontroller.k8s.io/made-for: MADE-FOR
              ownerReferences:
              - apiVersion: samplecontroller.k8s.io/v1alpha1
                kind: Foo
                name: foo
                uid: foo-uid
                controller: true
                blockOwnerDeletion: true
            spec:
              replicas: 3
              selector: {matchLabels: {app: nginx, controller: foo}}
              template:
                metadata: {labels: {app: nginx, controller: foo}}
                spec: {containers: [{name: nginx, image: 'nginx:latest'}]}";
    let expected = expected.replace("MADE-FOR", &made_for("foo-uid", "web"));
    let expected: apps::Deployment = serde_saphyr::from_str(&expected).unwrap();
    assert_eq!(manifest_of_foo, expected);
    let said = manifest(foo(), vec![earlier(5)]).spec.unwrap();
    assert_eq!(said.replicas, Some(3), "the Foo says how many");
}

/// A Foo without replicas leaves the replicas to other clients, such as a `HorizontalPodAutoscaler`.
#[tokio::test]
async fn a3_unset_replicas_leave_the_deployment_alone() {
    let mut foo = foo();
    foo.view.spec.as_mut().unwrap().replicas = None;
    assert_eq!(manifest(foo.clone(), vec![]).spec.unwrap().replicas, None);
    let mut scaled = deployment();
    scaled.view.replicas = 9;
    assert_eq!(steps(foo, vec![scaled]), []);
}

#[tokio::test]
async fn an_equal_deployment_has_no_difference() {
    assert_eq!(difference(&deployment()), None);
}

/// The patch contains only the fields that differ.
#[tokio::test]
async fn r3_r6a_patch_contains_only_differences() {
    let metadata = |more: Value| {
        let mut metadata = json!({
            "annotations": { GENERATION_ANNOTATION: "2", MADE_FOR_ANNOTATION: made_for("foo-uid", "web") },
        });
        metadata
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        metadata
    };
    let mut actual = of_generation(1);
    actual.view.replicas = 5;
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": { "replicas": 3 } })
    );

    let mut actual = of_generation(1);
    actual.view.image = Some("evil".into());
    let containers = json!([{ "name": "nginx", "image": "nginx:latest" }]);
    let template = json!({ "template": { "spec": { "containers": containers } } });
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": template })
    );

    let mut actual = of_generation(1);
    Arc::make_mut(&mut actual.view.labels).app = None;
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({ "labels": { "app": "nginx" } })) })
    );

    let mut actual = of_generation(1);
    Arc::make_mut(&mut actual.view.pod_labels).controller = Some("other".into());
    let template = json!({ "template": { "metadata": { "labels": { "controller": "foo" } } } });
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": template })
    );
}

/// If the Foo does not specify replicas, a rename keeps the replicas of the old Deployment.
#[tokio::test]
async fn r11a_new_deployment_starts_with_the_replicas_of_the_old_one() {
    let mut foo = foo();
    foo.view.spec.as_mut().unwrap().replicas = None;
    for scaled in [10, 0] {
        let manifest = manifest(foo.clone(), vec![earlier(scaled)]);
        assert_eq!(manifest.spec.unwrap().replicas, Some(scaled));
    }
}

/// Returns the error for a Deployment that the fixture Foo does not control.
fn foreign(actual: &Object<Deployment>) -> Error {
    let foo = foo();
    let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
    desired.foreign(&snapshot::<Foo, _>(actual.clone()))
}

/// Ownership is decided by UID, not by name.
#[tokio::test]
async fn r4a_deployment_of_another_owner_is_never_changed() {
    let mut actual = deployment();
    actual.view.replicas = 5;
    actual.owner = None;
    assert_eq!(difference(&actual), None);
    let error = foreign(&actual);
    assert_eq!(
        error.to_string(),
        "Resource \"web\" already exists and is not managed by Foo"
    );
    assert_eq!(error.reason(), Some("ErrResourceExists"));

    // These Deployments will be gone without an action of the user.
    actual.view.deleting = true;
    assert!(matches!(foreign(&actual), Error::Deleting(_)));
    let mut actual = deployment();
    actual.owner.as_mut().unwrap().uid = "an-earlier-foo".into();
    assert!(matches!(foreign(&actual), Error::Deleting(_)));
}

/// A Deployment without an owner, after a restore or an orphaning deletion, is not changed. The message contains the command.
#[test]
fn r4c_orphaned_deployment_can_be_given_to_its_foo() {
    let words = |change: fn(&mut Deployment)| {
        let mut actual = deployment();
        (actual.owner, actual.view.orphaned) = (None, true);
        change(&mut actual.view);
        foreign(&actual).to_string()
    };
    let owner = r#"{"apiVersion":"samplecontroller.k8s.io/v1alpha1","blockOwnerDeletion":true,"controller":true,"kind":"Foo","name":"foo","uid":"foo-uid"}"#;
    assert_eq!(
        words(|_| {}),
        format!(
            "Resource \"web\" already exists and is not managed by Foo; it was made for a Foo of this name. To give it to this Foo: \
             kubectl patch deployment web -n default -p '{{\"metadata\":{{\"ownerReferences\":[{owner}]}}}}'"
        )
    );
    let changes: [fn(&mut Deployment); 4] = [
        |d| d.orphaned = false,
        |d| Arc::make_mut(&mut d.labels).controller = Some("other".into()),
        |d| Arc::make_mut(&mut d.selector).controller = Some("other".into()),
        |d| Arc::make_mut(&mut d.pod_labels).app = None,
    ];
    for change in changes {
        let words = words(change);
        assert!(words.ends_with("is not managed by Foo"), "{words}");
    }
}

/// Until the new Deployment is available, the earlier Deployment is scaled and not changed otherwise.
#[tokio::test]
async fn r11c_old_deployment_is_only_scaled() {
    let mut foo = foo();
    foo.view
        .edit_status(|it| it.deployment_name = Some("old".into()));
    let patch = |mut old: Object<Deployment>| {
        old.view.image = Some("nginx:old".into());
        let mut steps = steps(foo.clone(), vec![old]).into_iter();
        assert_eq!(steps.next().unwrap().verb, "create");
        steps.next().map(|step| (step.verb, step.body))
    };
    assert_eq!(patch(earlier(3)), None);
    let annotations = json!({
        "samplecontroller.k8s.io/foo-generation": "2",
        "samplecontroller.k8s.io/made-for": made_for("foo-uid", "old"),
    });
    let scale = json!({ "metadata": { "annotations": annotations }, "spec": { "replicas": 3 } });
    assert_eq!(patch(earlier(1)), Some(("patch", scale)));
    let mut old = earlier(1);
    old.view.deleting = true;
    assert_eq!(patch(old), None);
}

/// A terminating Deployment is not patched. After its deletion, a new Deployment is created.
#[tokio::test]
async fn a_deployment_being_deleted_is_waited_for() {
    let mut actual = deployment();
    actual.view.replicas = 5;
    actual.view.deleting = true;
    assert_eq!(difference(&actual), None);
}

/// A generation newer than the Foo's is a difference.
#[tokio::test]
async fn a_newer_generation_is_a_difference() {
    let mut actual = deployment();
    actual.view.foo_generation = Some(3);
    let patch = patch(&actual);
    let annotations = &patch["metadata"]["annotations"];
    assert_eq!(annotations[GENERATION_ANNOTATION], "2");
    assert_eq!(patch.get("spec"), None);
    for generation in [Some(2), Some(1), None] {
        actual.view.foo_generation = generation;
        assert_eq!(difference(&actual), None);
    }
}

/// An empty name, replicas out of range and an undecodable spec are invalid, and not retried.
#[test]
fn r7_impossible_spec_is_invalid() {
    let mut empty = foo();
    empty.view.spec.as_mut().unwrap().deployment_name.clear();
    let error = Desired::of(&empty.key, &empty.view, "i").unwrap_err();
    assert_eq!(error.retry(), Retry::OnChange);
    assert_eq!(error.to_string(), "spec.deploymentName: must not be empty");

    let mut stored_before_the_schema = foo();
    stored_before_the_schema
        .view
        .spec
        .as_mut()
        .unwrap()
        .replicas = Some(11);
    let key = &stored_before_the_schema.key;
    let error = Desired::of(key, &stored_before_the_schema.view, "i").unwrap_err();
    assert_eq!(error.to_string(), "spec.replicas: must be 1 to 10, not 11");

    let mut undecodable = foo();
    undecodable.view.spec = Err("spec: invalid type".into());
    let error = Desired::of(&undecodable.key, &undecodable.view, "i").unwrap_err();
    assert_eq!(error.retry(), Retry::OnChange);
}
