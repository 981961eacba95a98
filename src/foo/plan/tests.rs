#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use super::*;
use crate::foo::fixtures::{deployment, foo};
use operator_runtime::{Failure as _, Object, Retry, testing::snapshot};

/// The difference between the fixture Foo's desired state and this Deployment.
fn difference(actual: &Object<Deployment>) -> Result<Option<Value>, Error> {
    let foo = foo();
    let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
    desired.difference(&snapshot::<Foo, _>(actual.clone()))
}

fn patch(actual: &Object<Deployment>) -> Value {
    difference(actual).unwrap().unwrap()
}

/// The manifest follows the Foo, and carries the annotations.
#[test]
fn r1_new_deployment_matches_the_foo() {
    let foo = foo();
    let desired = Desired::of(&foo.key, &foo.view, "nginx:1").unwrap();
    let manifest = desired.manifest(None);
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
                spec: {containers: [{name: nginx, image: 'nginx:1'}]}";
    let expected = expected.replace("MADE-FOR", &made_for("foo-uid", "web"));
    let expected: Manifest = serde_saphyr::from_str(&expected).unwrap();
    assert_eq!(manifest, expected);
    let said = desired.manifest(Some(&deployment().view)).spec.unwrap();
    assert_eq!(said.replicas, Some(3), "the Foo says how many");
}

/// A Foo without replicas leaves the replicas to other clients, such as a `HorizontalPodAutoscaler`.
#[test]
fn a3_unset_replicas_leave_the_deployment_alone() {
    let mut foo = foo();
    foo.view.spec.as_mut().unwrap().replicas = None;
    let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
    let manifest = desired.manifest(None);
    assert_eq!(manifest.spec.unwrap().replicas, None);
    let mut scaled = deployment();
    scaled.view.replicas = 9;
    assert_eq!(desired.plan(&scaled.view), None);
}

#[test]
fn an_equal_deployment_has_no_difference() {
    assert_eq!(difference(&deployment()).unwrap(), None);
}

/// The patch contains only the fields that differ.
#[test]
fn r3_r6a_patch_contains_only_differences() {
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
    let labels = json!({ "app": "nginx", "controller": "foo" });

    let mut actual = deployment();
    actual.view.replicas = 5;
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": { "replicas": 3 } })
    );

    let mut actual = deployment();
    actual.view.image = Some("evil".into());
    let containers = json!([{ "name": "nginx", "image": "nginx:latest" }]);
    let template = json!({ "template": { "spec": { "containers": containers } } });
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": template })
    );

    let mut actual = deployment();
    Arc::make_mut(&mut actual.view.labels).app = None;
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({ "labels": labels })), "spec": {} })
    );

    let mut actual = deployment();
    Arc::make_mut(&mut actual.view.pod_labels).controller = Some("other".into());
    let template = json!({ "template": { "metadata": { "labels": labels } } });
    assert_eq!(
        patch(&actual),
        json!({ "metadata": metadata(json!({})), "spec": template })
    );
}

/// If the Foo does not specify replicas, a rename keeps the replicas of the old Deployment.
#[test]
fn r11a_new_deployment_starts_with_the_replicas_of_the_old_one() {
    let mut foo = foo();
    foo.view.spec.as_mut().unwrap().replicas = None;
    let desired = Desired::of(&foo.key, &foo.view, "i").unwrap();
    let replicas = |old: Option<&Deployment>| desired.manifest(old).spec.unwrap().replicas;
    assert_eq!(replicas(None), None);
    let mut old = deployment().view;
    for scaled in [10, 0] {
        old.replicas = scaled;
        assert_eq!(replicas(Some(&old)), Some(scaled));
    }
}

/// Ownership is decided by UID, not by name.
#[test]
fn r4a_deployment_of_another_owner_is_never_changed() {
    let mut actual = deployment();
    actual.view.replicas = 5;
    actual.owner = None;
    let error = difference(&actual).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Resource \"web\" already exists and is not managed by Foo"
    );
    assert_eq!(error.reason(), Some("ErrResourceExists"));

    // These Deployments will be gone without an action of the user.
    actual.view.deleting = true;
    assert!(matches!(difference(&actual), Err(Error::Deleting(_))));
    let mut actual = deployment();
    actual.owner.as_mut().unwrap().uid = "an-earlier-foo".into();
    assert!(matches!(difference(&actual), Err(Error::Deleting(_))));
}

/// A Deployment without an owner, after a restore or an orphaning deletion, is not changed. The message contains the command.
#[test]
fn r4c_orphaned_deployment_can_be_given_to_its_foo() {
    let words = |change: fn(&mut Deployment)| {
        let mut actual = deployment();
        (actual.owner, actual.view.orphaned) = (None, true);
        change(&mut actual.view);
        difference(&actual).unwrap_err().to_string()
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
#[test]
fn r11c_old_deployment_is_only_scaled() {
    let foo = foo();
    let desired = Desired::of(&foo.key, &foo.view, "nginx:next").unwrap();
    let desired = desired.of_earlier(foo.key.sibling("old"));
    let mut old = deployment().view;
    assert_eq!(desired.scale(&old), None);
    old.replicas = 1;
    let annotations = json!({
        "samplecontroller.k8s.io/foo-generation": "2",
        "samplecontroller.k8s.io/made-for": made_for("foo-uid", "old"),
    });
    let patch = json!({ "metadata": { "annotations": annotations }, "spec": { "replicas": 3 } });
    assert_eq!(desired.scale(&old), Some(patch));
    old.deleting = true;
    assert_eq!(desired.scale(&old), None);
}

/// A terminating Deployment is not patched. After its deletion, a new Deployment is created.
#[test]
fn a_deployment_being_deleted_is_waited_for() {
    let mut actual = deployment();
    actual.view.replicas = 5;
    actual.view.deleting = true;
    assert_eq!(difference(&actual).unwrap(), None);
}

/// A generation newer than the Foo's is a difference.
#[test]
fn a_newer_generation_is_a_difference() {
    let foo = foo();
    let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
    let mut actual = deployment();
    actual.view.foo_generation = Some(3);
    assert!(desired.is_behind(&actual.view));
    let patch = patch(&actual);
    let annotations = &patch["metadata"]["annotations"];
    assert_eq!(annotations[GENERATION_ANNOTATION], "2");
    assert_eq!(patch["spec"], json!({}));
    for generation in [Some(2), Some(1), None] {
        actual.view.foo_generation = generation;
        assert!(!desired.is_behind(&actual.view));
        assert_eq!(difference(&actual).unwrap(), None);
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
