#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::api::{ObjectList, WatchEvent};
use serde_json::{Value, json};

use crate::foo::{
    api::FooStatus,
    fixtures::{deployment, foo, object},
};
use operator_runtime::{Cached, Object, Primary as _};

use super::{pool::Pool, status::CachedStatus, *};

/// An undecodable spec does not make the Foo, or a list that contains it, undecodable.
#[test]
fn r7_foo_of_any_shape_can_be_read() {
    for (spec, error) in [
        ("", "spec: invalid type: null, expected struct FooSpec"),
        (
            "spec: 5",
            "spec: invalid type: integer `5`, expected struct FooSpec",
        ),
        ("spec: {}", "spec: missing field `deploymentName`"),
        (
            "spec: {deploymentName: 5}",
            "spec.deploymentName: invalid type: integer `5`, expected a string",
        ),
        (
            "spec: {deploymentName: a, replicas: two}",
            "spec.replicas: invalid type: string \"two\", expected i32",
        ),
        (
            "spec: {deploymentName: a, replicas: 2147483648}",
            "spec.replicas: invalid value: integer `2147483648`, expected i32",
        ),
        (
            "spec: {deploymentName: {a: 1}, replicas: 2}",
            "spec.deploymentName: invalid type: map, expected a string",
        ),
        (
            "spec: {replicas: [1], deploymentName: a}",
            "spec.replicas: invalid type: sequence, expected i32",
        ),
    ] {
        let metadata =
            "metadata: {name: a, namespace: b, uid: u, resourceVersion: '1', labels: null}";
        let foo = object::<Foo>(&format!("{metadata}\n{spec}"));
        assert_eq!(foo.view.spec.unwrap_err().as_ref(), error, "{spec}");
    }
    let odd = object::<Foo>(
        "
            metadata: {name: a, namespace: b, uid: u, resourceVersion: '1'}
            spec: {deploymentName: a, unknown: [1]}
            status: garbage",
    );
    assert_eq!(*odd.view.status(), FooStatus::default());
    assert_eq!(odd.view.spec.unwrap().deployment_name, "a");
}

/// No value in any field, at any depth, makes an object or its list undecodable. The other fields are kept.
#[test]
fn r7_no_field_can_make_an_object_undecodable() {
    const DEEP: usize = 10_000;
    let nests = [
        format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP)),
        format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP)),
    ];
    let scalars = [
        "null",
        "true",
        "-1",
        "1e400",
        "\"text\"",
        "[]",
        "{}",
        "[{\"a\": []}, 5]",
    ];
    let values = nests.iter().map(String::as_str).chain(scalars);
    let values: Vec<_> = values.collect();
    let foo = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
        "metadata": { "name": "foo", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "generation": 2, "deletionTimestamp": null, "labels": {}, "managedFields": [],
            "annotations": { "foo-controller/traceparent": "t" }, "ownerReferences": [] },
        "spec": { "deploymentName": "web", "replicas": 3, "unknown": 1 },
        "status": { "availableReplicas": 1, "observedGeneration": 1, "replicas": 1, "selector": "s",
            "deploymentName": "web", "conditions": [{ "type": "Ready", "status": "True", "reason": "r",
                "message": "m", "lastTransitionTime": "2020-01-01T00:00:00Z", "observedGeneration": 1 }] },
        "unknown": 1,
    });
    let read = any_field_is::<Foo>(&foo, &values);
    let is_kept = |foo: &Foo, place: &str| {
        place.starts_with("/spec") || foo.spec.as_ref().unwrap().deployment_name == "web"
    };
    for (place, foo) in &read {
        assert!(is_kept(&foo.view, place), "{place}: {foo:?}");
    }
    let deployment = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "9",
            "generation": 2, "deletionTimestamp": null, "labels": { "app": "a" }, "managedFields": [],
            "annotations": { GENERATION_ANNOTATION: "2", MADE_FOR_ANNOTATION: "m" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Foo", "name": "f", "uid": "u" },
                { "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "foo",
                  "uid": "u", "controller": true }] },
        "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "a" } },
            "template": { "metadata": { "labels": { "app": "a" } },
                "spec": { "containers": [{ "name": "nginx", "image": "i", "env": [] }] } } },
        "status": { "observedGeneration": 2, "replicas": 3, "updatedReplicas": 3,
            "availableReplicas": 3, "conditions": [{ "type": "t", "reason": "r" }] },
    });
    for (place, deployment) in any_field_is::<Deployment>(&deployment, &values) {
        let owner = &deployment.owner;
        let is_kept = owner.as_ref().is_some_and(|owner| &*owner.name == "foo");
        let elsewhere = ["/metadata/ownerReferences/1", "/metadata/ownerReferences"];
        assert!(
            is_kept || elsewhere.iter().any(|other| place.starts_with(other)),
            "{place}: {deployment:?}"
        );
    }
}

/// Decodes the object once for each field and value, with that value in that field: from a list, a watch event and a response.
/// Returns each field with the decoded object. Fields that the API server guarantees stay.
fn any_field_is<V: Cached>(object: &Value, values: &[&str]) -> Vec<(String, Object<V>)> {
    const HERE: &str = "\"this field\"";
    let certain = ["name", "namespace", "uid", "resourceVersion"];
    let certain = certain.map(|field| format!("/metadata/{field}"));
    let mut read = Vec::new();
    for place in places(object, "") {
        if place == "/metadata" || certain.contains(&place) {
            continue;
        }
        let mut there = object.clone();
        *there.pointer_mut(&place).unwrap() = "this field".into();
        for value in values {
            let text = there.to_string().replace(HERE, value);
            let list = format!(
                r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{object},{text},{object}]}}"#
            );
            let event = format!(r#"{{"type":"ADDED","object":{text}}}"#);
            let list: ObjectList<Object<V>> = serde_json::from_str(&list).expect(&place);
            let event: WatchEvent<Object<V>> = serde_json::from_str(&event).expect(&place);
            let answer: Object<V> = serde_json::from_str(&text).expect(&place);
            assert_eq!(list.items.len(), 3);
            let WatchEvent::Added(event) = event else {
                panic!("{event:?}")
            };
            assert_eq!(
                (&event.view, &list.items[1].view),
                (&answer.view, &answer.view)
            );
            read.push((place.clone(), answer));
        }
    }
    read
}

/// Returns JSON pointers to all values inside `value`.
fn places(value: &Value, place: &str) -> Vec<String> {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let below: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, v)| (escaped(key), v)).collect(),
        Value::Array(items) => (0..).map(|n: usize| n.to_string()).zip(items).collect(),
        _ => Vec::new(),
    };
    let below = below.into_iter().flat_map(|(key, value)| {
        let place = format!("{place}/{key}");
        let deeper = places(value, &place);
        [place].into_iter().chain(deeper)
    });
    below.collect()
}

/// A generation annotation is valid for one Foo and one Deployment name: not for another Foo, and not for a copy.
#[test]
fn a_generation_is_valid_for_one_foo_and_deployment_name() {
    let generation = |name: &str, owner: &str, made_for: &str| {
        object::<Deployment>(&format!(
                "
                metadata:
                  name: {name}
                  namespace: n
                  uid: u
                  resourceVersion: '1'
                  annotations: {{samplecontroller.k8s.io/foo-generation: '7', {made_for}}}
                  ownerReferences:
                  - {{apiVersion: samplecontroller.k8s.io/v1alpha1, kind: Foo, name: f, uid: {owner}, controller: true}}
                spec: {{template: {{}}}}"
            ))
            .view
            .foo_generation
    };
    let ours = format!("{MADE_FOR_ANNOTATION}: '{}'", made_for("foo-uid", "web"));
    assert_eq!(generation("web", "foo-uid", &ours), Some(7));
    assert_eq!(generation("web", "the-next-foo", &ours), None);
    assert_eq!(generation("web-copy", "foo-uid", &ours), None);
    assert_eq!(generation("web", "foo-uid", "by: hand"), None);
    // Earlier versions have written the same value.
    assert_eq!(made_for("uid", "web"), "8ec4771fe8120f2b");
}

/// The cache keeps the message about missing pods or a missing `ReplicaSet`, and whether the Deployment is paused or orphaned.
#[test]
fn a5c_cause_of_a_stalled_deployment_is_cached() {
    let read = |spec: &str, status: &str, owners: &str| {
        object::<Deployment>(&format!(
            "
            metadata:
              name: web
              namespace: n
              uid: u
              resourceVersion: '1'
              generation: 3
              annotations: {{{GENERATION_ANNOTATION}: '7', {MADE_FOR_ANNOTATION}: x}}
              ownerReferences: [{owners}]
            spec: {{template: {{}}, {spec}}}
            status: {{{status}}}"
        ))
        .view
    };
    let failure = |seen: i64, condition: &str| {
        let status =
            format!("observedGeneration: {seen}, conditions: [{{{condition}, message: why}}]");
        read("replicas: 1", &status, "").progress.failure
    };
    let refused = "type: ReplicaFailure, status: 'True', reason: FailedCreate";
    assert_eq!(failure(3, refused).as_deref(), Some("why"));
    assert_eq!(failure(2, refused), None, "it is of the spec before");
    assert_eq!(failure(3, &refused.replace("True", "False")), None);
    // The Deployment controller does not observe the generation in this case.
    let not_made = "type: Progressing, status: 'False', reason: ReplicaSetCreateError";
    assert_eq!(failure(2, not_made).as_deref(), Some("why"));
    let going = "type: Progressing, status: 'True', reason: ReplicaSetUpdated";
    assert_eq!(failure(3, going), None);
    assert!(read("paused: true", "", "").paused);
    assert!(!read("replicas: 1", "", "").paused);
    let owner = |controller: bool| {
        format!("{{apiVersion: v1, kind: It, name: it, uid: it, controller: {controller}}}")
    };
    assert!(read("replicas: 1", "", "").orphaned);
    assert!(read("replicas: 1", "", &owner(false)).orphaned);
    assert!(!read("replicas: 1", "", &owner(true)).orphaned);
}

/// The start and the end of a failure are enqueued without delay.
#[test]
fn r10a_failure_is_enqueued_without_delay() {
    let at = |change: fn(&mut Deployment)| {
        let mut one = deployment().view;
        one.progress.available = 1;
        change(&mut one);
        one
    };
    let begun = at(|_| {});
    let further = at(|d| d.progress.available = 2);
    let failed = at(|d| d.progress.failure = Some("why".into()));
    let failed_further = at(|d| {
        (d.progress.available, d.progress.failure) = (2, Some("why".into()));
    });
    assert!(Deployment::is_rollout_update(&begun, &further));
    assert!(Deployment::is_rollout_update(&failed, &failed_further));
    assert!(!Deployment::is_rollout_update(&begun, &failed));
    assert!(!Deployment::is_rollout_update(&failed, &further));
}

#[test]
fn fields_that_reconcile_reads_are_kept() {
    let foo = foo();
    assert_eq!(
        (
            foo.key.to_string().as_str(),
            foo.version,
            foo.view.generation
        ),
        ("default/foo", 7, 2)
    );
    let Object {
        key, version, view, ..
    } = deployment();
    assert_eq!((key.to_string().as_str(), version), ("default/web", 9));
    assert_eq!(view.foo_generation, Some(2));
    assert_eq!(view.image.as_deref(), Some("nginx:latest"));
    assert_eq!((view.replicas, view.progress.available), (3, 3));
    // Equal labels share memory.
    assert_eq!(view.labels.controller.as_deref(), Some("foo"));
    assert!(Arc::ptr_eq(&view.labels, &view.selector));
    assert!(Arc::ptr_eq(&view.labels, &view.pod_labels));
}

/// A status in the cache equals the stored one, with any text, and Foos in the same state share it.
#[test]
fn a_cached_status_is_the_stored_one() {
    let condition = |message: &str, seconds: i64| Condition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        reason: "web".to_owned(),
        message: message.to_owned(),
        observed_generation: Some(seconds),
        last_transition_time: Time(Timestamp::from_second(seconds).unwrap()),
    };
    let status = |name: &str, selector: &str, conditions: Vec<Condition>| FooStatus {
        replicas: Some(1),
        selector: Some(format!("app=nginx,controller={selector}")),
        deployment_name: Some(name.to_owned()),
        observed_generation: conditions.last().and_then(|it| it.observed_generation),
        conditions,
        ..FooStatus::default()
    };
    let two = |name: &str, times: [i64; 2]| {
        let message = format!("Deployment {name:?} has no pods");
        Vec::from(times.map(|time| condition(&message, time)))
    };
    let mut odd = vec![
        FooStatus::default(),
        status("web", "web", two("web", [1, 1])),
        status("web", "foo", two("web", [1, 2])),
        status("web", "web", vec![condition("web\u{1}", 3)]),
    ];
    let edits: [fn(&mut FooStatus); 5] = [
        |it| it.observed_generation = None,
        |it| it.observed_generation = Some(0),
        |it| it.conditions[0].observed_generation = None,
        |it| it.conditions[1].observed_generation = None,
        |it| it.last_handled_reconcile_at = Some("web".to_owned()),
    ];
    for edit in edits {
        let mut status = odd[2].clone();
        edit(&mut status);
        odd.push(status);
    }
    for name in ["web", "e", "", "other"] {
        for status in &odd {
            let cached = CachedStatus::new(status.clone(), name);
            assert_eq!(cached.full(name), *status);
            assert_eq!(cached.observed_generation(), status.observed_generation);
            let ready = cached.condition("Ready", name);
            assert_eq!(ready.as_ref(), status.conditions.first());
            assert_eq!(cached.condition("Paused", name), None);
        }
    }
    let [a, b] = [("a1", 1), ("b2", 7)].map(|(name, generation)| {
        let mut status = status(name, name, two(name, [generation; 2]));
        status.last_handled_reconcile_at = (generation > 1).then(|| "token".to_owned());
        CachedStatus::new(status, name)
    });
    assert!(std::ptr::eq(a.shape(), b.shape()));
}

/// Values in use stay shared, however many others there are.
#[test]
fn frequent_values_are_shared() {
    let pool = Pool::<str>::new();
    let [a, b] = ["a", "b"].map(|text| pool.share(text.into()));
    for number in 0..200 {
        pool.share(number.to_string().into());
        for frequent in [&a, &b] {
            let again = pool.share((&**frequent).into());
            assert!(Arc::ptr_eq(&again, frequent), "{frequent} after {number}");
        }
    }
    let c = pool.share("c".into());
    for number in 0..64 {
        pool.share(number.to_string().into());
    }
    assert!(!Arc::ptr_eq(&pool.share("c".into()), &c), "it was replaced");
}
