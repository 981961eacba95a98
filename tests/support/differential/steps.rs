//! Requests in a form that applies to both sides. UIDs and versions are relative to earlier responses.

pub use foo_simulation::FOO;
use operator_testkit::api_server::{Kind, Method};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Kinds and names of the objects.
pub const KINDS: [Kind; 10] = [
    FOO,
    Kind::Deployment,
    Kind::Service,
    Kind::ConfigMap,
    Kind::Secret,
    Kind::Job,
    Kind::Lease,
    Kind::ServiceAccount,
    Kind::Event,
    Kind::CoreEvent,
];
pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// UID or resourceVersion of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Unsaid,
    /// The latest of the object.
    Current,
    /// The previous one.
    Former,
    Wrong,
}

/// Preconditions of a write.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub uid: Which,
    pub version: Which,
}

pub const UNSAID: Base = Base {
    uid: Which::Unsaid,
    version: Which::Unsaid,
};
#[derive(Clone, Debug)]
pub enum Act {
    Get,
    /// A read of the metadata alone.
    Metadata(Box<Act>),
    Scale,
    /// Streamed list of all objects, or of one.
    Stream(bool),
    List,
    Find,
    /// All pages of this size.
    Pages(usize),
    /// Review of a permission on the kind or on a subresource, in the namespace or in all.
    Review {
        verb: &'static str,
        part: &'static str,
        everywhere: bool,
    },
    Create {
        body: Value,
        dry: bool,
    },
    Put {
        part: &'static str,
        body: Value,
        base: Base,
        dry: bool,
    },
    Patch {
        part: &'static str,
        style: &'static str,
        body: Value,
        base: Base,
        dry: bool,
    },
    /// Server-side apply.
    Apply {
        part: &'static str,
        body: Value,
        base: Base,
        manager: &'static str,
        force: bool,
        dry: bool,
    },
    Delete {
        options: Value,
        base: Base,
    },
    Raw {
        method: Method,
        style: &'static str,
        body: &'static str,
    },
}

/// A request for an object.
#[derive(Clone, Debug)]
pub struct Step {
    pub kind: Kind,
    pub name: &'static str,
    pub act: Act,
    pub by: By,
}

/// User that sends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// User with all permissions.
    Admin,
    /// User with the permissions in [`rights`](super::rights).
    Limited,
}

pub const MERGE: &str = "application/merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn conditions(types: &[&str]) -> Value {
    let condition = |type_: &&str| {
        json!({
            "type": type_, "status": "True", "reason": "R", "message": "m", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "unknown": 1,
        })
    };
    types.iter().map(condition).collect()
}

/// Returns valid and invalid bodies of a Foo.
fn foos() -> Vec<Value> {
    let long = "x".repeat(64);
    let spec = |spec: Value| json!({ "spec": spec });
    let status = |status: Value| json!({ "spec": { "deploymentName": "a" }, "status": status });
    vec![
        spec(json!({ "deploymentName": "a", "replicas": 1 })),
        spec(json!({ "deploymentName": "a", "replicas": 2 })),
        spec(json!({ "deploymentName": "b" })),
        spec(json!({ "deploymentName": "a", "replicas": null })),
        spec(json!({ "deploymentName": "a", "replicas": 0 })),
        spec(json!({ "deploymentName": "a", "replicas": 11 })),
        spec(json!({ "deploymentName": "a", "replicas": -1 })),
        spec(json!({ "deploymentName": "a", "replicas": "x" })),
        spec(json!({ "deploymentName": "a", "replicas": 1.5 })),
        spec(json!({ "deploymentName": "a", "replicas": 5_000_000_000_i64 })),
        spec(json!({ "deploymentName": "" })),
        spec(json!({ "deploymentName": "A_b" })),
        spec(json!({ "deploymentName": "a..b" })),
        spec(json!({ "deploymentName": long })),
        spec(json!({ "deploymentName": 5 })),
        spec(json!({ "deploymentName": null })),
        spec(json!({ "deploymentName": "a", "x": { "y": 1 } })),
        spec(json!({})),
        spec(json!([])),
        spec(json!(null)),
        json!({}),
        json!({ "x": 1, "spec": { "deploymentName": "a" } }),
        status(
            json!({ "availableReplicas": 1, "observedGeneration": 1, "conditions": conditions(&["Ready"]) }),
        ),
        status(
            json!({ "availableReplicas": 2, "x": 1, "conditions": conditions(&["Ready", "Progressing"]) }),
        ),
        status(json!({ "replicas": 3, "selector": "app=nginx", "deploymentName": "a" })),
        status(json!({ "conditions": conditions(&["Ready", "Ready"]) })),
        status(json!({ "conditions": [{ "type": "Ready", "status": "True" }] })),
        status(json!({ "conditions": [{
            "type": "Ready", "status": "True", "reason": "", "message": "", "lastTransitionTime": "yesterday",
        }] })),
        status(json!({ "availableReplicas": null, "deploymentName": null })),
        status(json!({ "availableReplicas": "many" })),
        status(json!({})),
        status(json!(null)),
        status(json!({ "conditions": null, "observedGeneration": null })),
        json!({ "status": { "observedGeneration": 2 } }),
        json!({ "status": {
            "availableReplicas": 0, "conditions": conditions(&["Ready", "Progressing"]), "deploymentName": "a",
            "observedGeneration": 1, "replicas": 0, "selector": "app=nginx,controller=a",
        } }),
        json!({ "apiVersion": "samplecontroller.k8s.io/v1", "spec": { "deploymentName": "a" } }),
        json!({ "apiVersion": null, "spec": { "deploymentName": "a" } }),
    ]
}

fn deployment(change: impl FnOnce(&mut Value)) -> Value {
    let labels = json!({ "app": "nginx", "controller": "a" });
    let mut deployment = json!({ "spec": {
        "replicas": 1,
        "selector": { "matchLabels": labels },
        "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:latest" }] },
        },
    }});
    change(&mut deployment);
    deployment
}

/// Returns valid and invalid bodies of a Deployment.
#[allow(clippy::too_many_lines, reason = "a list of bodies")]
fn deployments() -> Vec<Value> {
    let spec = |field: &str, value: Value| deployment(|it| it["spec"][field] = value);
    let pod =
        |field: &str, value: Value| deployment(|it| it["spec"]["template"]["spec"][field] = value);
    let containers = |all: Value| pod("containers", all);
    let ordered = |names: &[&str], all: Value| {
        let order: Value = names.iter().map(|name| json!({ "name": name })).collect();
        deployment(|it| {
            let pod = &mut it["spec"]["template"]["spec"];
            pod["containers"] = all;
            pod["$setElementOrder/containers"] = order;
        })
    };
    let status = |status: Value| deployment(|it| it["status"] = status);
    let template =
        |labels: Value| deployment(|it| it["spec"]["template"]["metadata"]["labels"] = labels);
    vec![
        deployment(|_| {}),
        spec("replicas", json!(3)),
        json!({ "spec": { "replicas": 2 } }),
        spec("replicas", json!(0)),
        spec("replicas", json!(null)),
        spec("replicas", json!(-1)),
        spec("replicas", json!("x")),
        spec("selector", json!(null)),
        spec("selector", json!({})),
        spec("selector", json!({ "matchLabels": { "app": "nginx" } })),
        spec("selector", json!({ "matchLabels": { "app": "other" } })),
        spec(
            "selector",
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["nginx"] }] }),
        ),
        spec(
            "selector",
            json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["nginx"] }] }),
        ),
        spec(
            "selector",
            json!({ "matchExpressions": [{ "key": "a b", "operator": "In" }, { "key": "x", "operator": "Y" }] }),
        ),
        spec("selector", json!({ "matchLabels": { "app": "-" } })),
        spec("minReadySeconds", json!(600)),
        spec("template", json!({})),
        spec("strategy", json!({ "type": "Recreate" })),
        spec("paused", json!(true)),
        spec("paused", json!(false)),
        spec("minReadySeconds", json!(0)),
        spec("revisionHistoryLimit", json!(-1)),
        spec("unknown", json!({ "x": 1 })),
        template(json!({ "app": "nginx", "controller": "a", "more": "x" })),
        template(json!({ "app": "nginx" })),
        template(json!({ "app": "nginx", "controller": "a", "more": "-x" })),
        template(Value::Null),
        pod("restartPolicy", json!("Never")),
        pod("serviceAccountName", json!("")),
        pod("unknown", json!(1)),
        containers(json!([])),
        containers(
            json!([{ "name": "nginx", "image": "nginx" }, { "name": "side", "image": "x/y:1.2" }]),
        ),
        containers(
            json!([{ "name": "nginx", "image": "nginx" }, { "name": "nginx", "image": "nginx" }]),
        ),
        ordered(
            &["nginx", "side"],
            json!([{ "name": "side", "image": "x/y:1.3" }]),
        ),
        ordered(
            &["side", "nginx"],
            json!([{ "name": "side", "image": "x/y:1.3" }]),
        ),
        ordered(
            &["first", "side", "nginx"],
            json!([{ "name": "first", "image": "z" }]),
        ),
        ordered(
            &["nginx", "first"],
            json!([{ "name": "nginx", "image": "nginx:2" }, { "name": "first", "image": "z" }]),
        ),
        ordered(
            &["nginx"],
            json!([{
                "name": "nginx", "image": "nginx:2", "env": [{ "name": "C", "value": "c" }],
                "$setElementOrder/env": [{ "name": "B" }, { "name": "C" }, { "name": "A" }],
            }]),
        ),
        containers(json!([{
            "name": "nginx", "image": "nginx", "resources": {
                "limits": { "cpu": "1000m", "memory": "1024Mi" }, "requests": { "cpu": 0.5, "memory": 1024 },
            },
        }])),
        containers(
            json!([{ "name": "nginx", "image": "nginx", "resources": { "requests": { "cpu": "0.5" } } }]),
        ),
        containers(json!([{ "name": "Nginx", "image": "nginx@sha256:0000" }])),
        containers(json!([{ "name": "nginx" }])),
        containers(json!([{ "image": "nginx" }])),
        containers(json!([{
            "name": "nginx", "image": "nginx:1", "args": [], "command": ["x"],
            "env": [{ "name": "A", "value": "" }, { "name": "B", "value": "b" }], "ports": [{ "containerPort": 80 }],
        }])),
        status(
            json!({ "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1 }),
        ),
        status(json!({ "replicas": 0, "observedGeneration": 0, "unknown": 1 })),
        status(json!({ "replicas": 1, "availableReplicas": 2, "readyReplicas": 1 })),
        status(json!({ "replicas": -1 })),
        status(json!({ "conditions": [
            { "type": "Available", "status": "True", "reason": "R", "message": "m" },
            { "type": "Progressing", "status": "True", "reason": "R", "message": "m",
              "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] })),
        json!({ "spec": {} }),
        json!({}),
        json!({ "status": { "replicas": 2 } }),
        json!({ "apiVersion": "v1", "spec": {} }),
        json!({ "kind": "Foo", "spec": {} }),
        deployment(|it| it["apiVersion"] = json!(null)),
    ]
}

/// Returns bodies of a Service. Services without pods or with external access are not modelled.
fn services() -> Vec<Value> {
    let service =
        |ports: Value| json!({ "spec": { "selector": { "controller": "a" }, "ports": ports } });
    vec![
        service(json!([{ "port": 80 }])),
        service(json!([{ "port": 81, "protocol": "TCP", "targetPort": 8080 }])),
        service(
            json!([{ "port": 80, "name": "x" }, { "port": 443, "name": "y", "targetPort": "y" }]),
        ),
        service(json!([{ "port": 80 }, { "port": 443 }])),
        service(json!([{ "$patch": "replace" }, { "port": 80 }])),
        service(json!([])),
        service(json!(null)),
        json!({ "spec": { "selector": { "bad key": "x" }, "ports": [{ "port": 80 }] } }),
        json!({ "spec": { "selector": { "app": "nginx", "controller": null } } }),
        json!({ "spec": { "ports": [{ "port": "x" }] } }),
        json!({ "spec": {} }),
        json!({}),
    ]
}

/// Returns bodies of a `ConfigMap`.
fn config_maps() -> Vec<Value> {
    let data = |data: Value| json!({ "data": data });
    vec![
        data(json!({ "a": "1" })),
        data(json!({ "a": "2", "b.c-d_E": "" })),
        json!({ "binaryData": { "b": "AAE=" }, "data": { "a": "1" } }),
        data(json!({ "a": null })),
        data(json!({ "a b": "1" })),
        data(json!({ "a": 1 })),
        data(json!({})),
        data(json!(null)),
        data(json!([])),
        json!({ "binaryData": { "b": "?" } }),
        json!({ "unknown": 1 }),
        json!({}),
    ]
}

/// Returns bodies of a Secret.
fn secrets() -> Vec<Value> {
    vec![
        json!({ "data": { "password": "YQ==" } }),
        json!({ "stringData": { "password": "b" } }),
        json!({ "stringData": { "password": "c", "other": "" }, "data": { "password": "YQ==", "third": "" } }),
        json!({ "type": "Opaque", "data": { "a b": "YQ==" } }),
        json!({ "data": { "password": "?" } }),
        json!({ "data": { "password": null } }),
        json!({ "stringData": { "password": 1 } }),
        json!({ "data": {} }),
        json!({ "data": null }),
        json!({}),
    ]
}

/// Returns bodies of a new Job.
fn jobs() -> Vec<Value> {
    let job = |change: &dyn Fn(&mut Value)| {
        let container = json!({ "name": "backup", "image": "backup:1", "args": ["a"] });
        let pod = json!({ "containers": [container], "restartPolicy": "Never" });
        let mut job = json!({ "spec": { "template": { "spec": pod } } });
        change(&mut job["spec"]);
        job
    };
    vec![
        job(&|_| {}),
        job(&|spec| spec["template"]["metadata"] = json!({ "labels": { "app": "a" } })),
        job(&|spec| spec["parallelism"] = json!(2)),
        job(&|spec| spec["completions"] = json!(3)),
        job(&|spec| spec["ttlSecondsAfterFinished"] = json!(0)),
        job(&|spec| spec["activeDeadlineSeconds"] = json!(60)),
        job(&|spec| spec["backoffLimit"] = json!(-1)),
        job(&|spec| spec["template"]["spec"]["restartPolicy"] = json!("OnFailure")),
        job(&|spec| spec["template"]["spec"]["restartPolicy"] = json!("Always")),
        job(&|spec| spec["template"]["spec"]["containers"] = json!([])),
    ]
}

/// Returns bodies of a Lease.
fn leases() -> Vec<Value> {
    let spec = |spec: Value| json!({ "spec": spec });
    let named = |spec: Value| json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec });
    vec![
        spec(json!({
            "holderIdentity": "x", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        })),
        spec(
            json!({ "holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:01.123456Z" }),
        ),
        // The election creates, acquires, renews and releases the Lease with these bodies.
        spec(json!({ "leaseDurationSeconds": 15, "leaseTransitions": 0 })),
        named(json!({
            "holderIdentity": "pod_uid", "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "acquireTime": "2026-01-01T00:00:02.206000Z", "renewTime": "2026-01-01T00:00:02.206000Z",
        })),
        named(json!({ "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:04.000000Z" })),
        named(json!({
            "holderIdentity": "", "leaseDurationSeconds": 1,
            "acquireTime": "2026-01-01T00:00:05.206000Z", "renewTime": "2026-01-01T00:00:05.206000Z",
        })),
        spec(json!({ "holderIdentity": "y", "leaseTransitions": 3, "leaseDurationSeconds": 1 })),
        spec(json!({ "holderIdentity": "" })),
        spec(json!({ "holderIdentity": null })),
        spec(json!({ "holderIdentity": 5 })),
        spec(json!({ "leaseDurationSeconds": 0, "leaseTransitions": -1 })),
        spec(json!({ "leaseDurationSeconds": "x" })),
        spec(json!({ "renewTime": "yesterday" })),
        spec(json!({ "renewTime": "2026-01-01T00:00:00Z" })),
        spec(json!({ "renewTime": "2026-01-01T00:00:00.123456789Z" })),
        spec(json!({ "renewTime": "2026-01-01T00:00:00.123456+25:00" })),
        spec(json!({ "renewTime": "2026-01-01T5:00:00,+00001-24:60" })),
        // The limits of years, and Go's zero time.
        spec(
            json!({ "acquireTime": "0000-01-01T00:00:00.000000Z", "renewTime": "9999-12-31T23:59:59.999999Z" }),
        ),
        spec(json!({ "renewTime": "9999-12-31T23:59:59.999999-00:01" })),
        spec(json!({ "renewTime": "0000-01-01T00:00:00.000000+00:01" })),
        spec(json!({ "renewTime": "0001-01-01T00:00:00.000000Z" })),
        spec(json!({ "renewTime": null, "unknown": 1 })),
        spec(json!({})),
        spec(json!(null)),
        json!({}),
        json!({ "spec": { "holderIdentity": "z" }, "unknown": 1 }),
    ]
}

/// Returns bodies of a `ServiceAccount`. The operator has one for its annotations.
fn accounts() -> Vec<Value> {
    vec![
        json!({}),
        json!({ "automountServiceAccountToken": false }),
        json!({ "automountServiceAccountToken": true, "secrets": [{ "name": "x" }], "unknown": 1 }),
        json!({ "automountServiceAccountToken": "x" }),
    ]
}

/// Returns bodies of an Event.
fn events() -> Vec<Value> {
    let event = |note: &str| {
        json!({
            "eventTime": "2026-01-01T00:00:00.123456Z", "reportingController": "foo-controller", "type": "Normal",
            "reportingInstance": "i", "action": "Sync", "reason": "Synced", "note": note,
            "regarding": { "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "a", "uid": "u" },
        })
    };
    let of_lease = json!({
        "eventTime": "2026-01-01T00:00:00.234000Z", "reportingController": "foo-controller", "type": "Normal",
        "reportingInstance": "pod_uid", "action": "BecomeLeader", "reason": "LeaderElection",
        "note": "pod_uid became leader",
        "regarding": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "a", "uid": "u" },
    });
    let mut warning = event("not ours");
    warning["type"] = "Warning".into();
    let mut traced = event("x");
    traced["metadata"] = json!({ "annotations": { "samplecontroller.k8s.io/trace": "00-1-2-01" } });
    let with = |field: &str, value: Value| {
        let mut event = event("x");
        event[field] = value;
        event
    };
    let once = json!({ "count": 1, "lastObservedTime": null });
    vec![
        event("x"),
        event(""),
        event("y"),
        of_lease,
        warning,
        traced,
        with("type", json!("Other")),
        with("action", json!("")),
        with("reason", json!("x".repeat(129))),
        with("note", json!("x".repeat(1025))),
        with("reportingController", json!("a b")),
        with("reportingController", json!("")),
        with("eventTime", json!(null)),
        with("eventTime", json!("2026-01-01T00:00:00Z")),
        with("eventTime", json!("9999-12-31T23:59:59.999999Z")),
        with("series", once),
        with("deprecatedCount", json!(1)),
        with("deprecatedSource", json!({ "component": "c" })),
        with("deprecatedLastTimestamp", json!("2026-01-01T00:00:00Z")),
    ]
}

/// Returns bodies of an Event of the core API: of client-go's old recorder, of its new one, and less usual ones.
fn core_events() -> Vec<Value> {
    let of = json!({ "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "a", "uid": "u" });
    let old = |count: i32, last: &str| {
        json!({
            "involvedObject": of, "reason": "Synced", "message": "x", "type": "Normal", "count": count,
            "source": { "component": "sample-controller" }, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": last,
            "eventTime": null, "reportingComponent": "sample-controller", "reportingInstance": "",
        })
    };
    let new = |field: &str, value: Value| {
        let mut event = json!({
            "involvedObject": of, "reason": "Synced", "message": "x", "type": "Normal", "action": "Sync",
            "eventTime": "2026-01-01T00:00:00.123456Z", "reportingComponent": "foo-controller", "reportingInstance": "i",
        });
        event[field] = value;
        event
    };
    let series = |series: Value| new("series", series);
    vec![
        old(1, "2026-01-01T00:00:00Z"),
        old(2, "2026-01-01T00:00:01Z"),
        new("message", json!("y")),
        series(json!({ "count": 2, "lastObservedTime": "2026-01-01T00:00:01.123456Z" })),
        series(json!({})),
        json!({ "message": "only this" }),
        json!({ "involvedObject": { "namespace": "elsewhere" } }),
        json!({ "count": 3, "lastTimestamp": "2026-01-01T00:00:02Z" }),
        new("type", json!("Other")),
        new("action", json!(null)),
        new("reason", json!("x".repeat(129))),
        new("message", json!("x".repeat(1025))),
        new("reportingComponent", json!("a b")),
        new("reportingComponent", json!("")),
        new("related", json!({ "kind": "Foo", "name": "b" })),
        new("unknown", json!(1)),
        new("count", json!("x")),
        new("apiVersion", json!("events.k8s.io/v1")),
        json!({}),
    ]
}

fn event_patches() -> Vec<Value> {
    let series =
        |count: i32| json!({ "count": count, "lastObservedTime": "2026-01-01T00:00:01.123456Z" });
    vec![
        json!({ "series": series(2) }),
        json!({ "series": series(3), "metadata": { "annotations": { "a": "b" } } }),
        json!({ "series": series(3), "metadata": { "annotations": null } }),
        json!({ "metadata": { "annotations": { "a": "b" } } }),
        json!({ "series": series(1) }),
        json!({ "note": "changed" }),
        json!({ "reason": "Changed", "type": "Warning" }),
        json!({ "reportingInstance": "", "action": "Changed" }),
    ]
}

fn scales() -> Vec<Value> {
    let scale = |spec: Value| json!({ "spec": spec });
    vec![
        scale(json!({ "replicas": 2 })),
        scale(json!({ "replicas": 3 })),
        scale(json!({ "replicas": 0 })),
        scale(json!({ "replicas": 1 })),
        scale(json!({ "replicas": 12 })),
        scale(json!({ "replicas": -1 })),
    ]
}

/// Returns additional metadata.
fn metadata() -> Vec<Value> {
    let owner = |uid: &str, controller: bool| {
        json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "a", "uid": uid,
            "controller": controller, "blockOwnerDeletion": true,
        })
    };
    vec![
        json!({}),
        json!({ "labels": { "app": "nginx", "controller": "a" } }),
        json!({ "labels": { "app": "other" } }),
        json!({ "labels": null }),
        json!({ "labels": {} }),
        json!({ "labels": { "app": "-bad-" } }),
        json!({ "labels": { "bad key": "x" } }),
        json!({ "annotations": { "samplecontroller.k8s.io/foo-generation": "1" } }),
        json!({ "annotations": { "samplecontroller.k8s.io/foo-generation": "2", "x": "" } }),
        json!({ "annotations": {
            "samplecontroller.k8s.io/lease-holder": "pod_uid", "samplecontroller.k8s.io/lease-term": "uid/1",
        } }),
        json!({ "annotations": null }),
        json!({ "finalizers": ["example.com/a"] }),
        json!({ "finalizers": ["example.com/b", "example.com/a"] }),
        json!({ "$deleteFromPrimitiveList/finalizers": ["example.com/a"] }),
        json!({ "finalizers": ["example.com/c"], "$deleteFromPrimitiveList/finalizers": ["example.com/b"] }),
        json!({ "finalizers": [] }),
        json!({ "finalizers": null }),
        json!({ "finalizers": ["orphan", "foregroundDeletion"] }),
        json!({ "finalizers": ["foregroundDeletion"] }),
        json!({ "ownerReferences": [owner("u1", true)] }),
        json!({ "ownerReferences": [owner("u2", false)] }),
        json!({ "ownerReferences": [owner("u1", true), owner("u2", true)] }),
        json!({ "ownerReferences": [owner("u1", true), owner("u2", false), owner("u1", true)] }),
        json!({ "ownerReferences": null }),
        json!({ "ownerReferences": [] }),
        json!({ "generation": 7, "creationTimestamp": "2020-01-01T00:00:00Z" }),
        json!({ "deletionTimestamp": "2020-01-01T00:00:00Z" }),
        json!({ "namespace": "elsewhere" }),
        json!({ "unknown": 1 }),
        json!({ "name": "other" }),
        json!({ "name": null }),
        json!({ "name": "Not_a_name" }),
        json!({ "name": "x".repeat(64) }),
        json!({ "labels": 5 }),
    ]
}

/// Selects a value, and prefers the first `usual` values.
fn one_of(all: Vec<Value>, usual: usize) -> BoxedStrategy<Value> {
    let some = all[..usual].to_vec();
    prop_oneof![3 => prop::sample::select(some), 2 => prop::sample::select(all)].boxed()
}

fn bodies(kind: Kind) -> BoxedStrategy<Value> {
    let bodies = match kind {
        Kind::Custom(_) => one_of(foos(), 3),
        Kind::Deployment => one_of(deployments(), 3),
        Kind::Service => one_of(services(), 3),
        Kind::ServiceAccount => one_of(accounts(), 1),
        Kind::ConfigMap => one_of(config_maps(), 2),
        Kind::Secret => one_of(secrets(), 3),
        Kind::Job => one_of(jobs(), 2),
        Kind::Event => return one_of(events(), 6),
        Kind::CoreEvent => one_of(core_events(), 4),
        _ => one_of(leases(), 6),
    };
    // The API server handles the address of a Service before a null name.
    let mut metadata = metadata();
    metadata.retain(|it| kind != Kind::Service || !it.get("name").is_some_and(Value::is_null));
    (bodies, one_of(metadata, 1))
        .prop_map(|(mut body, metadata)| {
            body["metadata"] = metadata;
            body
        })
        .boxed()
}

fn bases() -> impl Strategy<Value = Base> {
    let which = || {
        prop_oneof![
            6 => Just(Which::Current), 2 => Just(Which::Unsaid), 1 => Just(Which::Former), 1 => Just(Which::Wrong),
        ]
    };
    (which(), which()).prop_map(|(uid, version)| Base { uid, version })
}

fn parts(kind: Kind) -> BoxedStrategy<&'static str> {
    match kind {
        Kind::Custom(_) | Kind::Deployment => {
            prop_oneof![4 => Just(""), 3 => Just("status"), 1 => Just("scale")].boxed()
        }
        _ => Just("").boxed(),
    }
}

/// Returns bodies for a write to this part. Two cases create a version that the simulation does not model, and are left out:
/// - A value of the wrong type outside the part is ignored, but clears the field managers.
/// - A `deletionTimestamp` is ignored, but has a field manager from then on.
fn of_part(part: &'static str, kind: Kind) -> BoxedStrategy<Value> {
    if part == "scale" {
        return prop::sample::select(scales()).boxed();
    }
    bodies(kind)
        .prop_map(move |mut body| {
            if let Some(metadata) = body["metadata"].as_object_mut() {
                metadata.remove("deletionTimestamp");
            }
            let typed = |value: &Value| value.is_null() || value.is_i64();
            let (rest, fits) = match part {
                "status" => {
                    let spec = &body["spec"];
                    let is_named = spec["deploymentName"].is_string() || kind != FOO;
                    let fits = spec.is_object() && typed(&spec["replicas"]) && is_named;
                    ("spec", fits)
                }
                _ => ("status", typed(&body["status"]["availableReplicas"])),
            };
            let fields = body.as_object_mut().unwrap();
            if !fits {
                fields.remove(rest);
            }
            if (kind, part) == (FOO, "status")
                && fields.get("apiVersion").is_some_and(|it| !it.is_null())
            {
                fields.remove("apiVersion");
            }
            body
        })
        .boxed()
}

fn deletions() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({ "propagationPolicy": "Background" }),
        json!({}),
        json!({ "propagationPolicy": "Foreground" }),
        json!({ "propagationPolicy": "Orphan" }),
        json!({ "propagationPolicy": "None" }),
        json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background" }),
    ])
}

fn reviews() -> impl Strategy<Value = Act> {
    let verb = prop::sample::select(vec![
        "get", "list", "watch", "create", "update", "patch", "delete",
    ]);
    let part = prop::sample::select(vec!["", "status", "scale"]);
    (verb, part, any::<bool>()).prop_map(|(verb, part, everywhere)| Act::Review {
        verb,
        part,
        everywhere,
    })
}

/// Returns reads of the metadata.
fn metadata_acts() -> impl Strategy<Value = Act> {
    let read = prop_oneof![
        1 => Just(Act::Get),
        1 => Just(Act::List),
        1 => Just(Act::Find),
        1 => (1..3_usize).prop_map(Act::Pages),
        2 => any::<bool>().prop_map(Act::Stream),
    ];
    read.prop_map(|read| Act::Metadata(Box::new(read)))
}

/// Returns the operator's requests for Events. Other requests for Events are not modelled.
fn event_acts() -> BoxedStrategy<Act> {
    let dry = || prop::bool::weighted(0.05);
    prop_oneof![
        1 => Just(Act::Get),
        1 => Just(Act::Metadata(Box::new(Act::Get))),
        1 => Just(Act::List),
        1 => any::<bool>().prop_map(Act::Stream),
        4 => (bodies(Kind::Event), dry()).prop_map(|(body, dry)| Act::Create { body, dry }),
        4 => (prop::sample::select(event_patches()), bases(), dry()).prop_map(|(body, base, dry)| Act::Patch {
            part: "", style: MERGE, body, base, dry,
        }),
        1 => (deletions(), bases()).prop_map(|(options, base)| Act::Delete { options, base }),
        1 => reviews(),
    ]
    .boxed()
}

/// Returns requests for Events of the core API. A page and the metadata of a list show the Events that the API server writes itself.
fn core_event_acts() -> BoxedStrategy<Act> {
    let dry = || prop::bool::weighted(0.05);
    let body = || bodies(Kind::CoreEvent);
    let patch = (body(), bases(), dry(), any::<bool>());
    prop_oneof![
        2 => Just(Act::Get),
        1 => Just(Act::Metadata(Box::new(Act::Get))),
        1 => Just(Act::List),
        1 => Just(Act::Find),
        1 => any::<bool>().prop_map(Act::Stream),
        4 => (body(), dry()).prop_map(|(body, dry)| Act::Create { body, dry }),
        3 => (body(), bases(), dry()).prop_map(|(body, base, dry)| Act::Put { part: "", body, base, dry }),
        4 => patch.prop_map(|(mut body, base, dry, strategic)| {
            // A patch to the other API is not modelled.
            body.as_object_mut().unwrap().remove("apiVersion");
            Act::Patch { part: "", style: if strategic { STRATEGIC } else { MERGE }, body, base, dry }
        }),
        1 => (deletions(), bases()).prop_map(|(options, base)| Act::Delete { options, base }),
        1 => reviews(),
    ]
    .boxed()
}

/// Returns the name for a request. A write through another API than the last one changes the field managers, which are not modelled:
/// each API has its own names, and reads the others.
fn named(kind: Kind, name: &'static str, act: &Act) -> &'static str {
    let writes = matches!(
        act,
        Act::Create { .. } | Act::Put { .. } | Act::Patch { .. } | Act::Delete { .. }
    );
    match (kind, name) {
        (Kind::CoreEvent, "a") => "core-a",
        (Kind::CoreEvent, "b") => "core-b",
        (Kind::CoreEvent, _) if writes => "core-c",
        _ => name,
    }
}

/// Returns requests for Jobs that do not change their specs. Other requests for Jobs are not modelled.
fn job_acts() -> BoxedStrategy<Act> {
    let dry = || prop::bool::weighted(0.05);
    let labels = one_of(metadata(), 1).prop_map(|mut metadata| {
        let fields = metadata.as_object_mut().unwrap();
        fields.remove("deletionTimestamp");
        json!({ "metadata": fields })
    });
    // Another UID contradicts the labels of the pods as well.
    let based = bases().prop_map(|base| match base.uid {
        Which::Former | Which::Wrong => Base {
            uid: Which::Current,
            ..base
        },
        _ => base,
    });
    prop_oneof![
        1 => Just(Act::Get),
        1 => metadata_acts(),
        1 => Just(Act::List),
        1 => any::<bool>().prop_map(Act::Stream),
        4 => (bodies(Kind::Job), dry()).prop_map(|(body, dry)| Act::Create { body, dry }),
        3 => (labels, based, dry(), any::<bool>()).prop_map(|(body, base, dry, strategic)| Act::Patch {
            part: "", style: if strategic { STRATEGIC } else { MERGE }, body, base, dry,
        }),
        2 => (deletions(), bases()).prop_map(|(options, base)| Act::Delete { options, base }),
        1 => reviews(),
    ]
    .boxed()
}

/// Returns applies. Events and Jobs have none: they are rarely applied.
fn applies(kind: Kind) -> impl Strategy<Value = Act> {
    let manager = prop::sample::select(vec!["one", "one", "two", "test", "kubectl"]);
    // A body with a version conflicts with each later write.
    let bases = prop_oneof![3 => Just(UNSAID), 1 => bases()];
    let how = (bases, manager, any::<bool>(), prop::bool::weighted(0.05));
    (parts(kind), how).prop_flat_map(move |(part, (base, manager, force, dry))| {
        of_part(part, kind).prop_map(move |body| Act::Apply {
            part,
            body,
            base,
            manager,
            force,
            dry,
        })
    })
}

/// Returns requests, with applies if `applies`.
fn acts(kind: Kind, with_applies: bool) -> BoxedStrategy<Act> {
    match (kind, with_applies) {
        (Kind::Event | Kind::CoreEvent | Kind::Job, _) | (_, false) => updates(kind),
        (_, true) => prop_oneof![3 => updates(kind), 1 => applies(kind)].boxed(),
    }
}

fn updates(kind: Kind) -> BoxedStrategy<Act> {
    match kind {
        Kind::Event => return event_acts(),
        Kind::CoreEvent => return core_event_acts(),
        Kind::Job => return job_acts(),
        _ => {}
    }
    let scale = match kind {
        Kind::Custom(_) | Kind::Deployment => Act::Scale,
        _ => Act::Get,
    };
    let dry = || prop::bool::weighted(0.05);
    let raw = prop::sample::select(vec![
        (Method::POST, "application/json", "{"),
        (Method::POST, "application/json", ""),
        (Method::PUT, "application/json", "{\"metadata\":"),
        (Method::PATCH, MERGE, "{\"spec\":"),
        (Method::PATCH, STRATEGIC, "{\"spec\":"),
        (Method::PATCH, "application/xml", "{}"),
        (Method::POST, MERGE, "{}"),
    ]);
    prop_oneof![
        2 => Just(Act::Get),
        2 => metadata_acts(),
        1 => Just(Act::List),
        1 => any::<bool>().prop_map(Act::Stream),
        1 => Just(scale),
        1 => Just(Act::Find),
        1 => (1..3_usize).prop_map(Act::Pages),
        6 => (bodies(kind), dry()).prop_map(|(body, dry)| Act::Create { body, dry }),
        5 => parts(kind).prop_flat_map(move |part| (of_part(part, kind), bases(), dry()).prop_map(
            move |(body, base, dry)| Act::Put { part, body, base, dry })),
        8 => parts(kind).prop_flat_map(move |part| (of_part(part, kind), bases(), dry(), any::<bool>()).prop_map(
            move |(mut body, base, dry, strategic)| {
                            // A patch must not remove `apiVersion`, because the kind would be unknown.
                            if body["apiVersion"].is_null() {
                                body.as_object_mut().unwrap().remove("apiVersion");
                            }
                let style = if strategic && part != "scale" { STRATEGIC } else { MERGE };
                Act::Patch { part, style, body, base, dry }
            })),
        2 => (deletions(), bases()).prop_map(|(options, base)| Act::Delete { options, base }),
        1 => reviews(),
        1 => raw.prop_map(|(method, style, body)| Act::Raw { method, style, body }),
    ]
    .boxed()
}

/// Generates steps on all kinds and names, or on a single kind or name so that more steps share an object.
pub fn steps(count: usize, with_applies: bool) -> impl Strategy<Value = Vec<Step>> {
    let kinds = prop_oneof![
        2 => Just(KINDS.to_vec()),
        1 => prop::sample::select(KINDS.to_vec()).prop_map(|kind| vec![kind]),
    ];
    let names = prop_oneof![2 => Just(NAMES.to_vec()), 1 => Just(vec![NAMES[0]])];
    (kinds, names).prop_flat_map(move |(kinds, names)| {
        let step = (
            prop::sample::select(kinds),
            prop::sample::select(names),
            prop_oneof![6 => Just(By::Admin), 1 => Just(By::Limited)],
        )
            .prop_flat_map(move |(kind, name, by)| {
                acts(kind, with_applies).prop_map(move |act| Step {
                    kind,
                    name: named(kind, name, &act),
                    act,
                    by,
                })
            });
        prop::collection::vec(step, 1..=count)
    })
}

/// Returns a valid body.
pub fn valid(kind: Kind) -> Value {
    let bodies = match kind {
        Kind::Custom(_) => foos(),
        Kind::Deployment => deployments(),
        Kind::Service => services(),
        Kind::ServiceAccount => accounts(),
        Kind::ConfigMap => config_maps(),
        Kind::Secret => secrets(),
        Kind::Job => jobs(),
        Kind::Event => events(),
        Kind::CoreEvent => core_events(),
        _ => leases(),
    };
    bodies[0].clone()
}
