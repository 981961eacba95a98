//! Writes of the load generator (Foos) and of the bare writers (results of a controller).

use http::Method;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::watch::{Metadata, Object};

/// The `apiVersion` of a Foo.
const VERSION: &str = "samplecontroller.k8s.io/v1alpha1";

pub const FOOS: &str = "/apis/samplecontroller.k8s.io/v1alpha1/namespaces/default/foos";
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/foo-controller";

pub async fn create_foo(client: &Client, name: &str) -> Object {
    let foo = json!({
        "apiVersion": VERSION,
        "kind": "Foo",
        "metadata": {"name": name},
        "spec": {"deploymentName": name, "replicas": 1},
    });
    write(client, Method::POST, FOOS, &foo).await
}

pub async fn create(client: &Client, path: &str, object: &Value) {
    write::<Value>(client, Method::POST, path, object).await;
}

pub async fn scale(client: &Client, resource: &str, name: &str, replicas: i32) -> Object {
    let patch = json!({"spec": {"replicas": replicas}});
    write(client, Method::PATCH, &format!("{resource}/{name}"), &patch).await
}

pub async fn delete(client: &Client, path: &str) {
    write::<Value>(client, Method::DELETE, path, &json!({})).await;
}

/// Creates the Deployment of a new Foo.
pub async fn create_deployment(client: &Client, foo: &Object) {
    let name = &foo.metadata.name;
    let labels = json!({"app": "nginx", "controller": name});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [{
            "apiVersion": VERSION,
            "kind": "Foo",
            "name": name,
            "uid": foo.metadata.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]},
        }},
    });
    write::<Object>(client, Method::POST, DEPLOYMENTS, &deployment).await;
}

/// Writes the status of a Foo whose Deployment was just written.
pub async fn report(client: &Client, foo: &Object) {
    let Metadata {
        name,
        resource_version,
        generation,
        ..
    } = &foo.metadata;
    let now = k8s_openapi::jiff::Timestamp::now();
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_,
            "status": status,
            "reason": "DeploymentProgressing",
            "message": format!("Deployment {name:?} has 0 of {} replicas available", foo.spec.replicas.unwrap_or(1)),
            "observedGeneration": generation,
            "lastTransitionTime": format!("{now:.0}"),
        })
    };
    let status = json!({
        "apiVersion": VERSION,
        "kind": "Foo",
        "metadata": {"name": name, "resourceVersion": resource_version},
        "status": {
            "availableReplicas": 0,
            "observedGeneration": generation,
            "replicas": 0,
            "selector": format!("app=nginx,controller={name}"),
            "deploymentName": name,
            "conditions": [condition("Ready", "False"), condition("Progressing", "True")],
        },
    });
    let path = format!("{FOOS}/{name}/status");
    write::<Object>(client, Method::PUT, &path, &status).await;
}

/// Creates the event that reports the sync.
pub async fn create_event(client: &Client, foo: &Object) {
    let Metadata { name, uid, .. } = &foo.metadata;
    let now = k8s_openapi::jiff::Timestamp::now();
    let event_name = event_name(foo);
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name},
        "eventTime": format!("{now:.6}"),
        "type": "Normal",
        "reason": "Synced",
        "action": "Reconcile",
        "note": "Foo synced successfully",
        "reportingController": "sample-controller",
        "reportingInstance": "bench",
        "regarding": {
            "apiVersion": VERSION,
            "kind": "Foo",
            "namespace": "default",
            "name": name,
            "uid": uid,
        },
    });
    write::<Value>(client, Method::POST, EVENTS, &event).await;
}

/// Repeats the event as part of a series.
pub async fn repeat_event(client: &Client, foo: &Object) {
    let now = k8s_openapi::jiff::Timestamp::now();
    let series = json!({"series": {"count": 2, "lastObservedTime": format!("{now:.6}")}});
    let path = format!("{EVENTS}/{}", event_name(foo));
    write::<Value>(client, Method::PATCH, &path, &series).await;
}

fn event_name(foo: &Object) -> String {
    format!("{}.bare", foo.metadata.name)
}

/// Sends one request and returns the response body.
async fn write<T: DeserializeOwned>(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> T {
    let content = match method {
        // As this controller sends it.
        Method::PATCH if path.starts_with(DEPLOYMENTS) => "application/strategic-merge-patch+json",
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(serde_json::to_vec(body).unwrap())
        .unwrap();
    let answer = client.request_text(request).await;
    let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&answer).unwrap()
}
