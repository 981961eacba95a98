//! Comparison of requests that clients in other languages send: generated names, deletions of collections, JSON patches, and selectors
//! of fields.

use operator_testkit::{
    api_server::{Kind, Method},
    cluster::AS_SIMULATED,
};
use serde_json::{Value, json};

use super::{
    CLUSTER, Run,
    side::{ADMIN, path},
    special::{JSON, ask, foo, same_of, sides},
    steps::{FOO, valid},
};

const JSON_PATCH: &str = "application/json-patch+json";

/// Replaces the suffixes of names that are generated from `it-`.
fn masked(body: &Value) -> Value {
    let text = body.to_string();
    let mut parts = text.split("it-");
    let first = parts.next().unwrap_or_default().to_owned();
    let masked = parts.fold(first, |text, part| {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let end = part.find(|c| !is_letter(c)).unwrap_or(part.len());
        let part = if end == 5 {
            &format!("?????{}", &part[5..])
        } else {
            part
        };
        text + "it-" + part
    });
    serde_json::from_str(&masked).unwrap()
}

/// Sends a manifest to both sides, and compares the responses without the suffixes of generated names. Returns the real one.
async fn same_but_names(sides: &mut [Run; 2], path: &str, manifest: &Value) -> (u16, Value) {
    let mut answers = Vec::new();
    for run in &mut *sides {
        let sent = ask(Method::POST, path, JSON, manifest);
        let (code, body) = run.side.send(&sent, ADMIN).await;
        answers.push((code, run.names.normal(masked(&body))));
    }
    assert_eq!(
        answers[0], answers[1],
        "{path} {manifest} (the real one's first)"
    );
    answers.swap_remove(0)
}

#[tokio::test]
async fn simulated_generated_names_match_the_real_ones() {
    let (mut sides, namespace) = sides("g").await;
    let configs = path(Kind::ConfigMap, &namespace);
    let foos = path(FOO, &namespace);
    let long = format!("{}it-{}", "a".repeat(55), "b".repeat(12));
    for (metadata, expected) in [
        (json!({ "generateName": "it-" }), 201),
        (json!({ "generateName": "it-" }), 201),
        (json!({ "generateName": "it-", "name": "" }), 201),
        (json!({ "generateName": "it-", "name": "fixed" }), 201),
        (json!({ "generateName": "It-", "name": "other" }), 422),
        (json!({ "generateName": "It_it-" }), 422),
        (json!({ "generateName": ".it-" }), 422),
        (json!({ "generateName": "" }), 422),
        (json!({ "generateName": null }), 422),
        (json!({ "generateName": long }), 201),
    ] {
        for kind in [Kind::ConfigMap, FOO] {
            let mut manifest = if kind == FOO { foo("") } else { json!({}) };
            manifest["metadata"] = metadata.clone();
            let all = path(kind, &namespace);
            let dry = format!("{all}?dryRun=All");
            same_but_names(&mut sides, &dry, &manifest).await;
            let (code, created) = same_but_names(&mut sides, &all, &manifest).await;
            assert_eq!(code, expected, "{created}");
        }
    }
    let manifest = json!({ "metadata": { "generateName": "it-" } });
    let nowhere = path(Kind::ConfigMap, "nowhere");
    same_but_names(&mut sides, &nowhere, &manifest).await;
    for all in [configs, foos] {
        for run in &mut sides {
            let (_, list) = run.side.send(&super::side::get(&all), ADMIN).await;
            let names = list["items"].as_array().unwrap().iter();
            let names = names.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
            let mut names: Vec<_> = names
                .filter(|name| name.starts_with("it-") && name.len() == 8)
                .collect();
            names.dedup();
            assert_eq!(names.len(), 3, "{names:?}");
        }
    }
}

#[tokio::test]
async fn simulated_deletions_of_collections_match_the_real_ones() {
    let (mut sides, namespace) = sides("c").await;
    for kind in [FOO, Kind::Secret, Kind::Service, Kind::Lease, Kind::Job] {
        let all = path(kind, &namespace);
        for (name, labels, finalizers) in [
            ("a", json!({ "app": "x" }), json!([])),
            ("b", json!({ "app": "x" }), json!(["example.com/it"])),
            ("c", json!({ "app": "y" }), json!([])),
            ("d", json!({}), json!([])),
            ("e", json!({}), json!([])),
        ] {
            let mut manifest = valid(kind);
            manifest["apiVersion"] = kind.api_version().into();
            manifest["kind"] = kind.info().kind.into();
            manifest["metadata"] =
                json!({ "name": name, "labels": labels, "finalizers": finalizers });
            same_of(&mut sides, Method::POST, &all, JSON, &manifest).await;
        }
        let none = Value::Null;
        let wrong = json!({ "preconditions": { "uid": "wrong" } });
        for (query, options) in [
            ("?labelSelector=app%3Dz", &none),
            ("?labelSelector=app%3Dx&dryRun=All", &none),
            ("?labelSelector=app%3Dx", &json!({ "dryRun": ["All"] })),
            (
                "?labelSelector=app%3Dx",
                &json!({ "propagationPolicy": "None" }),
            ),
            ("?labelSelector=app%3Dx", &wrong),
            (
                "?labelSelector=app%3Dx",
                &json!({ "propagationPolicy": "Background" }),
            ),
            (
                "?fieldSelector=metadata.name%3Dc",
                &json!({ "propagationPolicy": "Orphan" }),
            ),
            ("?limit=1", &none),
            ("", &json!({})),
            ("", &none),
        ] {
            let path = format!("{all}{query}");
            same_of(&mut sides, Method::DELETE, &path, JSON, options).await;
            same_of(&mut sides, Method::GET, &all, "", &none).await;
        }
    }
    for path in [
        "/api/v1/secrets",
        "/apis/samplecontroller.k8s.io/v1alpha1/foos",
        "/api/v1/namespaces",
    ] {
        let (code, _) = same_of(&mut sides, Method::DELETE, path, JSON, &Value::Null).await;
        assert!(code >= 404, "{path}");
    }
}

/// JSON patches of a `ConfigMap` in order. It begins with `data: { a: "1" }` and the finalizers `example.com/a` and `example.com/b`.
fn patches() -> Vec<Value> {
    let finalizers = "/metadata/finalizers";
    let one = |op: &str, path: &str| json!([{ "op": op, "path": path }]);
    let with =
        |op: &str, path: &str, value: Value| json!([{ "op": op, "path": path, "value": value }]);
    let from = |op: &str, from: &str, path: &str| json!([{ "op": op, "from": from, "path": path }]);
    vec![
        json!([]),
        with("add", "/data/b", "2".into()),
        with("add", "/data/a", "3".into()),
        with("add", "/data/x~1y", "4".into()),
        with("add", "/none/b", "2".into()),
        with("add", "/data/a/b", "2".into()),
        with("add", "/data/c", json!(1)),
        with("replace", "/data/b", "5".into()),
        with("replace", "/data/new", "6".into()),
        with("replace", "/none/b", "5".into()),
        with("test", "/data/b", "5".into()),
        with("test", "/data/b", "6".into()),
        with("test", "/data/none", Value::Null),
        with("test", "/data/none", "1".into()),
        with("test", "/none/b", Value::Null),
        from("copy", "/data/a", "/data/copied"),
        from("move", "/data/copied", "/data/moved"),
        from("move", "/data/none", "/data/more"),
        from("copy", "/none/a", "/data/more"),
        one("remove", "/data/moved"),
        one("remove", "/data/moved"),
        one("remove", "/none/a"),
        one("delete", "/data/a"),
        json!([{ "op": "remove" }]),
        json!([{ "path": "/data/a" }]),
        with("add", &format!("{finalizers}/-"), "example.com/c".into()),
        with("add", &format!("{finalizers}/0"), "example.com/d".into()),
        with("add", &format!("{finalizers}/9"), "example.com/e".into()),
        with("add", &format!("{finalizers}/x"), "example.com/e".into()),
        with(
            "replace",
            &format!("{finalizers}/1"),
            "example.com/f".into(),
        ),
        with("test", &format!("{finalizers}/-1"), "example.com/c".into()),
        one("remove", &format!("{finalizers}/-1")),
        one("remove", &format!("{finalizers}/7")),
        one("remove", finalizers),
        with("test", "/metadata/resourceVersion", "1".into()),
        with("replace", "/metadata/resourceVersion", "1".into()),
        with("replace", "/metadata/name", "other".into()),
        with("replace", "/kind", "Secret".into()),
        json!([
            { "op": "test", "path": "/data/a", "value": "3" },
            { "op": "replace", "path": "/data/a", "value": "7" },
            { "op": "remove", "path": "/data/none" },
        ]),
        json!([
            { "op": "test", "path": "/data/a", "value": "3" },
            { "op": "replace", "path": "/data/a", "value": "7" },
        ]),
        json!({ "data": {} }),
    ]
}

#[tokio::test]
async fn simulated_json_patches_match_the_real_ones() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("j").await;
    let configs = path(Kind::ConfigMap, &namespace);
    let config = json!({
        "metadata": { "name": "it", "finalizers": ["example.com/a", "example.com/b"] }, "data": { "a": "1" },
    });
    same_of(&mut sides, Method::POST, &configs, JSON, &config).await;
    let it = format!("{configs}/it");
    for patch in patches() {
        same_of(&mut sides, Method::PATCH, &it, JSON_PATCH, &patch).await;
    }
    let foos = path(FOO, &namespace);
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("a")).await;
    let deployments = path(Kind::Deployment, &namespace);
    let mut deployment = valid(Kind::Deployment);
    deployment["metadata"] = json!({ "name": "a" });
    same_of(&mut sides, Method::POST, &deployments, JSON, &deployment).await;
    let replace =
        |path: &str, value: Value| json!([{ "op": "replace", "path": path, "value": value }]);
    for all in [foos, deployments] {
        for (part, patch) in [
            ("", replace("/spec/replicas", 2.into())),
            ("", replace("/spec/replicas", (-1).into())),
            ("", replace("/spec/replicas", "2".into())),
            (
                "",
                json!([{ "op": "add", "path": "/spec/unknown", "value": 1 }]),
            ),
            ("", json!([{ "op": "remove", "path": "/spec" }])),
            ("/scale", replace("/spec/replicas", 3.into())),
            (
                "/scale",
                json!([{ "op": "test", "path": "/spec/replicas", "value": 2 }]),
            ),
            (
                "/status",
                json!([{ "op": "add", "path": "/status", "value": { "availableReplicas": 1 } }]),
            ),
            ("/status", replace("/spec/replicas", 4.into())),
        ] {
            let path = format!("{all}/a{part}");
            same_of(&mut sides, Method::PATCH, &path, JSON_PATCH, &patch).await;
        }
        let none = format!("{all}/none");
        let patch = replace("/spec/replicas", 1.into());
        same_of(&mut sides, Method::PATCH, &none, JSON_PATCH, &patch).await;
    }
}

#[tokio::test]
async fn simulated_selectors_of_fields_match_the_real_ones() {
    let (mut sides, namespace) = sides("h").await;
    let kinds = [
        FOO,
        Kind::Secret,
        Kind::Service,
        Kind::Lease,
        Kind::Job,
        Kind::ConfigMap,
        Kind::Deployment,
    ];
    for kind in kinds {
        let all = path(kind, &namespace);
        let mut manifest = valid(kind);
        manifest["apiVersion"] = kind.api_version().into();
        manifest["kind"] = kind.info().kind.into();
        manifest["metadata"] = json!({ "name": "a" });
        same_of(&mut sides, Method::POST, &all, JSON, &manifest).await;
        for selector in [
            format!("metadata.namespace%3D{namespace}"),
            format!("metadata.namespace!%3D{namespace}"),
            "spec.replicas%3D1".to_owned(),
            "status.successful%3D0".to_owned(),
            "status.successful%3D1".to_owned(),
            "spec.type%3DClusterIP".to_owned(),
            "spec.type!%3DClusterIP".to_owned(),
            "spec.clusterIP%3DNone".to_owned(),
            "type%3DOpaque".to_owned(),
        ] {
            let path = format!("{all}?fieldSelector={selector}");
            same_of(&mut sides, Method::GET, &path, "", &Value::Null).await;
        }
    }
    let name = format!("metadata.name%3D{namespace}");
    for selector in [
        "status.phase%3DActive",
        "status.phase%3DTerminating",
        "metadata.namespace%3Da",
    ] {
        let path = format!("/api/v1/namespaces?fieldSelector={name},{selector}");
        same_of(&mut sides, Method::GET, &path, "", &Value::Null).await;
    }
}

/// client-go sends the timeout of a watch in Go's format, such as `8m17s`.
#[tokio::test]
async fn simulated_timeouts_match_the_real_ones() {
    let (mut sides, namespace) = sides("o").await;
    let configs = path(Kind::ConfigMap, &namespace);
    for timeout in [
        "8m17s",
        "1h0m0.5s",
        "1.5h",
        ".5s",
        "100ms",
        "10000000us",
        "5000000%C2%B5s",
        "0",
        "%2B9s",
        "5",
        "5m5",
        "1x",
        "1s1x",
        ".s",
        "s",
        "1.2.3s",
        "-",
        "",
    ] {
        let list = format!("{configs}?timeout={timeout}");
        let (code, _) = same_of(&mut sides, Method::GET, &list, "", &Value::Null).await;
        println!("{timeout}: {code}");
        let mut accepted = Vec::new();
        for run in &mut sides {
            let watch = format!("{configs}?watch=true&timeoutSeconds=1&timeout={timeout}");
            let watch = run.side.watch(&super::side::get(&watch), ADMIN).await;
            accepted.push(watch.map(drop));
        }
        assert_eq!(accepted, [Ok(()), Ok(())], "a watch with {timeout}");
    }
}
