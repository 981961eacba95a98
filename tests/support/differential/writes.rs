//! Comparison of writes that clients seldom send: repeated owners, namespaces of objects without one, addresses of Services, media
//! types with parameters, and quantities that are not canonical.

use operator_testkit::{
    api_server::{Kind, Method},
    cluster::AS_SIMULATED,
};
use serde_json::{Value, json};

use super::{
    CLUSTER, Run,
    side::{ADMIN, path},
    special::{JSON, ask, same_of, sides},
    steps::{APPLY, FOO, MERGE, STRATEGIC, valid},
};

/// Returns a valid object with these fields.
fn object(kind: Kind, name: &str, fields: &Value) -> Value {
    let mut object = valid(kind);
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.info().kind.into();
    object["metadata"] = json!({ "name": name });
    for (part, fields) in fields.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            object[part][field] = value.clone();
        }
    }
    object
}

/// Sends a request to both sides, and compares the responses with their warnings. Returns the real ones.
async fn same_warnings(
    sides: &mut [Run; 2],
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &Value,
) -> (u16, Vec<String>) {
    let mut answers = Vec::new();
    for run in &mut *sides {
        let sent = ask(method.clone(), path, content_type, body);
        let (code, warnings, body) = run.side.send_warned(&sent, ADMIN).await;
        answers.push((code, warnings, run.names.normal(body)));
    }
    assert_eq!(
        answers[0], answers[1],
        "{method} {path} {body} (the real one's first)"
    );
    let (code, warnings, _) = answers.swap_remove(0);
    (code, warnings)
}

#[tokio::test]
async fn repeated_owners_are_removed_alike() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("o").await;
    let owner = |uid: &str, controller: bool| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid, "controller": controller,
        })
    };
    let owners = |all: &[Value]| json!({ "metadata": { "ownerReferences": all } });
    let repeated = owners(&[
        owner("u1", true),
        owner("u1", true),
        owner("u2", false),
        owner("u1", false),
        owner("u2", false),
        owner("u1", true),
    ]);
    for kind in [Kind::ConfigMap, FOO] {
        let all = path(kind, &namespace);
        let one = format!("{all}/a");
        let whole = object(kind, "a", &repeated);
        let (code, warnings) = same_warnings(&mut sides, Method::POST, &all, JSON, &whole).await;
        assert_eq!((code, warnings.len()), (201, 1));
        same_warnings(&mut sides, Method::PUT, &one, JSON, &whole).await;
        let fewer = owners(&[owner("u3", false)]);
        same_warnings(&mut sides, Method::PATCH, &one, MERGE, &fewer).await;
        let (code, warnings) =
            same_warnings(&mut sides, Method::PATCH, &one, MERGE, &repeated).await;
        assert_eq!((code, warnings.len()), (200, 1));
        let by = format!("{one}?fieldManager=x&force=true");
        same_warnings(&mut sides, Method::PATCH, &by, APPLY, &whole).await;
        same_of(&mut sides, Method::GET, &one, "", &Value::Null).await;
    }
    let all = path(Kind::Lease, &namespace);
    let new = object(Kind::Lease, "new", &repeated);
    let one = format!("{all}/new");
    same_warnings(&mut sides, Method::PUT, &one, JSON, &new).await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
    let mut crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": repeated["metadata"],
        "spec": {
            "group": "owners.example.com", "scope": "Cluster", "names": { "kind": "Owned", "plural": "owneds" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    });
    crd["metadata"]["name"] = "owneds.owners.example.com".into();
    // A CRD has no namespace.
    crd["metadata"]["namespace"] = "elsewhere".into();
    let (code, warnings) = same_warnings(&mut sides, Method::POST, crds, JSON, &crd).await;
    assert_eq!((code, warnings.len()), (201, 1));
}

#[tokio::test]
async fn the_namespace_of_a_cluster_scoped_object_is_ignored_alike() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("s").await;
    let all = "/api/v1/namespaces";
    let name = format!("{namespace}-more");
    let one = format!("{all}/{name}");
    let meta = |labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "namespace": "elsewhere", "labels": labels },
        })
    };
    let by = format!("{one}?fieldManager=x&force=true");
    for (method, path, content_type, label) in [
        (Method::POST, all, JSON, "a"),
        (Method::PATCH, &one, MERGE, "b"),
        (Method::PATCH, &one, STRATEGIC, "c"),
        (Method::PATCH, &by, APPLY, "d"),
    ] {
        let body = meta(json!({ "x": label }));
        let (code, _) = same_of(&mut sides, method, path, content_type, &body).await;
        assert!(code < 300, "{code}");
    }
}

#[tokio::test]
async fn addresses_of_services_change_alike() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("a").await;
    let all = path(Kind::Service, &namespace);
    let spec = |spec: Value| json!({ "spec": spec });
    for (name, address) in [("a", json!({})), ("none", json!({ "clusterIP": "None" }))] {
        let new = object(Kind::Service, name, &spec(address));
        let (code, _) = same_of(&mut sides, Method::POST, &all, JSON, &new).await;
        assert_eq!(code, 201);
        let one = format!("{all}/{name}");
        for (change, expected) in [
            (json!({ "clusterIP": "10.96.0.77" }), 422),
            (json!({ "clusterIP": "None-drift" }), 422),
            (json!({ "clusterIP": "10.96.0.77", "ports": [] }), 422),
            (
                json!({ "clusterIP": "10.96.0.77", "clusterIPs": ["10.96.0.77"] }),
                422,
            ),
            (json!({ "clusterIP": "", "clusterIPs": [] }), 200),
            (
                json!({ "clusterIP": null, "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null }),
                200,
            ),
            (
                json!({ "clusterIP": "None" }),
                if name == "a" { 422 } else { 200 },
            ),
        ] {
            let patch = spec(change);
            let whole = object(Kind::Service, name, &patch);
            for (method, query, style, body) in [
                (Method::PATCH, "", MERGE, &patch),
                (Method::PUT, "", JSON, &whole),
                (Method::PATCH, "?fieldManager=x&force=true", APPLY, &whole),
            ] {
                let url = format!("{one}{query}");
                let (code, answer) = same_of(&mut sides, method, &url, style, body).await;
                // A null of an apply is kept, and no text.
                assert!(code == expected || style == APPLY, "{body}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn media_types_are_read_alike() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("m").await;
    let long = "x".repeat(129);
    for kind in [Kind::ConfigMap, FOO] {
        let all = path(kind, &namespace);
        let body = object(kind, "a", &json!({}));
        for manager in [long.as_str(), "x"] {
            let all = format!("{all}?fieldManager={manager}");
            let one = format!("{}/a?fieldManager={manager}", path(kind, &namespace));
            for style in [
                JSON,
                "application/json; charset=utf-8",
                "application/json;charset=UTF-8;",
                "Application/JSON ; a=b",
                "application/xml",
                MERGE,
                "",
            ] {
                same_of(&mut sides, Method::POST, &all, style, &body).await;
                same_of(&mut sides, Method::PUT, &one, style, &body).await;
            }
            for style in [
                "application/merge-patch+json; charset=utf-8",
                "application/merge-patch+json;charset",
                "application/merge-patch+json ;charset=utf-8",
                "Application/merge-patch+json",
                "application/strategic-merge-patch+json;charset=utf-8",
                "application/apply-patch+yaml; charset=utf-8",
                "application/json",
                "application/xml",
            ] {
                same_of(&mut sides, Method::PATCH, &one, style, &body).await;
                let forced = format!("{one}&force=true");
                same_of(&mut sides, Method::PATCH, &forced, style, &body).await;
            }
        }
        let one = format!("{all}/a");
        let style = "application/json; charset=utf-8";
        let options = json!({ "propagationPolicy": "Background" });
        let (code, _) = same_of(&mut sides, Method::DELETE, &one, style, &options).await;
        assert_eq!(code, 200);
    }
}

#[tokio::test]
async fn quantities_are_canonical_alike() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    let (mut sides, namespace) = sides("q").await;
    let all = path(Kind::Deployment, &namespace);
    let with = |name: &str, container: &Value| {
        let mut body = object(Kind::Deployment, name, &json!({}));
        let pod = &mut body["spec"]["template"]["spec"];
        for (field, value) in container.as_object().unwrap() {
            pod["containers"][0][field] = value.clone();
        }
        body
    };
    let new = with("a", &json!({}));
    same_of(&mut sides, Method::POST, &all, JSON, &new).await;
    let dry = format!("{all}?dryRun=All");
    let applied = format!("{all}/a?fieldManager=x&force=true");
    let mut accepted = 0;
    for quantity in [
        json!("1000m"),
        json!("1500m"),
        json!("0.5"),
        json!(".5"),
        json!("1."),
        json!("1024Mi"),
        json!("1.5Gi"),
        json!("0.5Ki"),
        json!("1.1Ki"),
        json!("1000"),
        json!("1000Ki"),
        json!("1e3"),
        json!("1E3"),
        json!("10e2"),
        json!("1000e3"),
        json!("1e-10"),
        json!("0.0000000001"),
        json!("0.0001"),
        json!("1n"),
        json!("100Ei"),
        json!("12345678901234567890"),
        json!("+5"),
        json!("007"),
        json!("1.500"),
        json!(" 1 "),
        json!("-1"),
        json!("-0.0001"),
        json!("0"),
        json!("-0"),
        json!(1),
        json!(2000),
        json!(0.5),
        json!(-1),
        json!(""),
        json!("x"),
        json!("1 Gi"),
        json!("1ki"),
        json!("1e"),
        json!("--1"),
        json!("k"),
        json!("."),
        json!("Ei"),
        json!("e-10"),
        json!("\t1"),
        json!(true),
        json!({}),
        json!([]),
    ] {
        for container in [
            json!({ "resources": { "limits": { "memory": quantity } } }),
            json!({ "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": quantity } } }),
        ] {
            let body = with("b", &container);
            let (code, _) = same_of(&mut sides, Method::POST, &dry, JSON, &body).await;
            accepted += usize::from(code == 201);
            let body = with("a", &container);
            same_of(&mut sides, Method::PATCH, &applied, APPLY, &body).await;
        }
    }
    assert!(accepted > 40, "{accepted}");
    // The same number in another form is no change for the generation.
    let one = format!("{all}/c");
    for (method, url, memory) in [
        (Method::POST, &all, "1Gi"),
        (Method::PUT, &one, "1073741824"),
    ] {
        let body = with(
            "c",
            &json!({ "resources": { "limits": { "memory": memory } } }),
        );
        let (_, answer) = same_of(&mut sides, method, url, JSON, &body).await;
        assert_eq!(answer["metadata"]["generation"], 1, "{answer}");
    }
    let references = json!({ "env": [
        { "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
    ] });
    let body = with("b", &references);
    same_of(&mut sides, Method::POST, &dry, JSON, &body).await;
}
