//! The simulated API server (`tests/simulation/api`) against the real one: the same requests get the same answers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "simulation/api/mod.rs"]
mod api;

use std::time::Duration;

use serde_json::{Value, json};

use api::{Answer, Call, Method, Now, Server, Store, User};

const FOOS: &str = "/apis/samplecontroller.k8s.io/v1alpha1/namespaces/n/foos";

fn now(seconds: u64) -> Now {
    let since_start = Duration::from_secs(seconds);
    let wall = "2026-01-01T00:00:00Z"
        .parse::<k8s_openapi::jiff::Timestamp>()
        .unwrap()
        + since_start;
    Now { since_start, wall }
}

#[test]
fn it_stores_and_tells() {
    let mut store = Store::new();
    let crd =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd.yaml")).unwrap();
    store.install_definition(now(0), serde_saphyr::from_str(&crd).unwrap());
    store.create_namespace(now(0), "n");
    let mut server = Server::new(&store);
    let mut send = |method: Method, path: &str, content_type: &str, body: Value| {
        let body = body.to_string().into_bytes();
        let call = Call {
            user: User {
                name: "admin",
                pod: None,
            },
            method: &method,
            path_and_query: path,
            content_type: Some(content_type),
            accept: None,
            body: &body,
        };
        match server.serve(&mut store, now(1), &call).unwrap() {
            Answer::Whole { code, body, .. } => (code, body),
            Answer::Watch(mut watch) => (200, Value::Array(watch.poll(&store, &server, now(1)))),
        }
    };
    let foo = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": { "name": "a" },
        "spec": { "deploymentName": "a", "replicas": 1 },
    });
    let (code, created) = send(Method::POST, FOOS, "application/json", foo.clone());
    assert_eq!((code, &created["metadata"]["generation"]), (201, &json!(1)));
    let (code, _) = send(Method::POST, FOOS, "application/json", foo);
    assert_eq!(code, 409);
    let patch = json!({ "spec": { "replicas": 2 } });
    let path = format!("{FOOS}/a");
    let (code, patched) = send(Method::PATCH, &path, "application/merge-patch+json", patch);
    assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(2)));
    let (_, told) = send(
        Method::GET,
        &format!("{FOOS}?watch=true"),
        "application/json",
        json!({}),
    );
    assert_eq!(told, json!([{ "type": "ADDED", "object": patched }]));
}
