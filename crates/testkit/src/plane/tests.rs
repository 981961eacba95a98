use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use super::*;

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "shirts.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shirt", "plural": "shirts" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": { "size": { "type": "integer", "default": 3 } },
                            "x-kubernetes-validations": [{ "rule": "self.size < 10", "message": "too large" }],
                        },
                        "status": { "type": "object", "properties": { "sewn": { "type": "boolean" } } },
                    },
                } },
            }],
        },
    })
}

fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("example.com", "v1", "Shirt"),
        "shirts",
    )
}

fn shirts(plane: &ControlPlane, user: &str) -> Api<DynamicObject> {
    Api::namespaced_with(plane.client(user), "default", &resource())
}

fn shirt(name: &str, spec: &Value) -> DynamicObject {
    let mut shirt = DynamicObject::new(name, &resource());
    shirt.data = json!({ "spec": spec });
    shirt
}

fn plane() -> ControlPlane {
    let plane = ControlPlane::new();
    plane.install(&crd()).unwrap();
    plane
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// The comparison with real API servers of each version takes minutes.
#[tokio::test(start_paused = true)]
async fn responses_are_those_of_the_release() {
    for release in Release::ALL {
        let plane = ControlPlane::of(release);
        plane.install(&crd()).unwrap();
        let too_large = shirt("b", &json!({ "size": 10 }));
        let api = shirts(&plane, ADMIN);
        let created = api.create(&PostParams::default(), &too_large).await;
        let message = created.unwrap_err().to_string();
        let value = if release < Release::V1_35 {
            ": \"object\""
        } else {
            ""
        };
        let expected = format!("spec: Invalid value{value}: too large");
        assert!(message.contains(&expected), "{release}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_get_defaults_and_are_validated() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    let created = api
        .create(&PostParams::default(), &shirt("a", &json!({})))
        .await
        .unwrap();
    assert_eq!(created.data["spec"]["size"], 3);
    let error = api
        .create(&PostParams::default(), &shirt("b", &json!({ "size": 10 })))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
    assert_eq!(code(error), 422);
    assert_eq!(
        plane.get("shirts.example.com", "default", "a").unwrap()["spec"]["size"],
        3
    );
    let history = plane.history("shirts.example.com");
    assert_eq!((history.len(), history[0].by.as_str()), (1, ADMIN));
}

#[tokio::test(start_paused = true)]
async fn watches_deliver_changes() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    api.create(&PostParams::default(), &shirt("a", &json!({})))
        .await
        .unwrap();
    let status = Patch::Merge(json!({ "status": { "sewn": true } }));
    api.patch_status("a", &PatchParams::default(), &status)
        .await
        .unwrap();
    api.delete("a", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let events = watch.try_filter_map(async |event| {
        Ok(match event {
            WatchEvent::Added(_) => Some("added"),
            WatchEvent::Modified(_) => Some("modified"),
            WatchEvent::Deleted(_) => Some("deleted"),
            _ => None,
        })
    });
    let events: Vec<_> = futures::StreamExt::take(events, 3)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(events, ["added", "modified", "deleted"]);
}

/// Two programs apply to one object: the API server keeps their fields apart.
#[tokio::test(start_paused = true)]
async fn appliers_share_an_object() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    let apply = async |manager: &str, force: bool, rest: Value| {
        let params = PatchParams {
            force,
            ..PatchParams::apply(manager)
        };
        let mut shirt =
            json!({ "apiVersion": "example.com/v1", "kind": "Shirt", "metadata": { "name": "a" } });
        json_patch::merge(&mut shirt, &rest);
        api.patch("a", &params, &Patch::Apply(shirt)).await
    };
    let size = |size: i64| json!({ "spec": { "size": size } });
    let label = json!({ "metadata": { "labels": { "color": "red" } } });
    let first = apply("tailor", false, size(4)).await.unwrap();
    let second = apply("painter", false, label.clone()).await.unwrap();
    assert_eq!(second.data["spec"]["size"], 4);
    assert_eq!(second.labels()["color"], "red");
    let names = |shirt: &DynamicObject| -> Vec<_> {
        let entries = shirt.managed_fields().iter();
        entries
            .map(|entry| entry.manager.clone().unwrap_or_default())
            .collect()
    };
    assert_eq!(names(&first), ["tailor"]);
    assert_eq!(names(&second), ["painter", "tailor"]);
    // The same again stores nothing.
    let again = apply("painter", false, label).await.unwrap();
    assert_eq!(again.resource_version(), second.resource_version());
    let error = apply("painter", false, size(5)).await.unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}");
    };
    assert_eq!(status.code, 409);
    let words = "Apply failed with 1 conflict: conflict with \"tailor\": .spec.size";
    assert_eq!(status.message, words);
    let cause = &status.details.unwrap().causes[0];
    assert_eq!(
        (cause.reason.as_str(), cause.field.as_str()),
        ("FieldManagerConflict", ".spec.size")
    );
    // By force the painter takes the size, and no longer wants the label.
    let forced = apply("painter", true, size(5)).await.unwrap();
    assert_eq!(
        (&forced.data["spec"]["size"], forced.labels().len()),
        (&json!(5), 0)
    );
    assert_eq!(names(&forced), ["painter"]);
    // A field without a manager gets its default.
    let none = apply("painter", false, json!({})).await.unwrap();
    assert_eq!(none.data["spec"]["size"], json!(null), "{none:?}");
}

#[tokio::test(start_paused = true)]
async fn scripted_answers_come_once() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    plane.next("create", "shirts", Scripted::Code(409));
    plane.next("create", "shirts", Scripted::AnswerLost);
    let create = async || {
        api.create(&PostParams::default(), &shirt("a", &json!({})))
            .await
    };
    assert_eq!(code(create().await.unwrap_err()), 409);
    assert!(plane.get("shirts.example.com", "default", "a").is_none());
    assert!(!matches!(create().await.unwrap_err(), kube::Error::Api(_)));
    assert!(plane.get("shirts.example.com", "default", "a").is_some());
    assert_eq!(code(create().await.unwrap_err()), 409);
}

#[tokio::test(start_paused = true)]
async fn another_client_may_have_left_anything() {
    let plane = plane();
    let put = |object| {
        plane.put("shirts.example.com", "default", "a", object);
        plane.get("shirts.example.com", "default", "a")
    };
    assert_eq!(put(None), None);
    let torn = || put(Some(json!({ "spec": "torn" }))).unwrap();
    let [first, second] = [torn(), torn()];
    assert_eq!(first["spec"], "torn");
    let [before, after] = [&first["metadata"], &second["metadata"]];
    assert_eq!(before["uid"], after["uid"]);
    assert_ne!(before["resourceVersion"], after["resourceVersion"]);
    assert_eq!(after["generation"], 1);
    let path = "/apis/example.com/v1/namespaces/default/shirts/a";
    let size = json!({ "spec": { "size": 4 } });
    let (code, patched) = plane.send(ADMIN, &Method::PATCH, path, &size);
    assert_eq!(
        (code, &patched["metadata"]["generation"]),
        (200, &json!(2)),
        "{patched}"
    );
    let kept = put(Some(json!({ "spec": {} }))).unwrap();
    assert_eq!(kept["metadata"]["generation"], 2);
    assert_eq!(put(None), None);
    assert_eq!(plane.history("shirts.example.com").len(), 5);
}

/// Pods that start to run are a change that wakes watches, without a request.
#[tokio::test(start_paused = true)]
async fn a_watch_sees_pods_that_start_to_run() {
    let plane = plane();
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "nginx" }] },
            },
        },
    });
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let (code, created) = plane.send(ADMIN, &Method::POST, path, &deployment);
    assert_eq!(code, 201, "{created}");
    let all: Api<Deployment> = Api::default_namespaced(plane.client(ADMIN));
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = all.watch(&WatchParams::default(), version).await.unwrap();
    let started = tokio::time::Instant::now();
    let (event, ()) = tokio::join!(watch.boxed().into_future(), async { plane.run_pods() });
    assert!(
        matches!(event.0, Some(Ok(WatchEvent::Modified(_)))),
        "{event:?}",
        event = event.0
    );
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn rules_of_roles_limit_a_user() {
    let plane = plane();
    let role = "
kind: ClusterRole
rules: [{ apiGroups: [example.com], resources: [shirts], verbs: [get, create], resourceNames: [] }]
---
kind: Role
metadata: { namespace: other }
rules: [{ apiGroups: ['*'], resources: ['*'], verbs: ['*'] }]
";
    plane.grant("tailor", role).unwrap();
    let api = shirts(&plane, "tailor");
    api.create(&PostParams::default(), &shirt("a", &json!({})))
        .await
        .unwrap();
    assert_eq!(
        code(
            api.delete("a", &kube::api::DeleteParams::default())
                .await
                .unwrap_err()
        ),
        403
    );
    let status = Patch::Merge(json!({ "status": {} }));
    assert_eq!(
        code(
            api.patch_status("a", &PatchParams::default(), &status)
                .await
                .unwrap_err()
        ),
        403
    );
}

#[tokio::test(start_paused = true)]
async fn dependents_of_a_deleted_owner_are_deleted() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    let owner = api
        .create(&PostParams::default(), &shirt("a", &json!({})))
        .await
        .unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "of-a", "ownerReferences": [{
            "apiVersion": "example.com/v1", "kind": "Shirt", "name": "a", "uid": owner.uid(),
        }] },
    });
    let (created, _) = plane.send(
        ADMIN,
        &Method::POST,
        "/api/v1/namespaces/default/configmaps",
        &config,
    );
    assert_eq!(created, 201);
    api.delete("a", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert!(plane.get("configmaps", "default", "of-a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_is_emptied() {
    let plane = plane();
    plane.create_namespace("n").unwrap();
    let body = serde_json::to_value(shirt("a", &json!({}))).unwrap();
    let all = "/apis/example.com/v1/namespaces/n/shirts";
    assert_eq!(plane.send(ADMIN, &Method::POST, all, &body).0, 201);
    assert_eq!(
        plane
            .send(ADMIN, &Method::DELETE, "/api/v1/namespaces/n", &Value::Null)
            .0,
        200
    );
    assert!(plane.get("shirts.example.com", "n", "a").is_none());
    assert!(plane.get("namespaces", "", "n").is_none());
}

#[tokio::test(start_paused = true)]
async fn settle_waits_for_the_last_request() {
    let plane = plane();
    let api = shirts(&plane, ADMIN);
    let writer = tokio::spawn(async move {
        for name in ["a", "b", "c"] {
            tokio::time::sleep(Duration::from_millis(900)).await;
            api.create(&PostParams::default(), &shirt(name, &json!({})))
                .await
                .unwrap();
        }
    });
    plane.settle().await;
    assert!(writer.is_finished());
    assert_eq!(plane.history("shirts.example.com").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn crds_are_objects() {
    let plane = plane();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shirts.example.com";
    let (code, crd) = plane.send(ADMIN, &Method::GET, path, &Value::Null);
    let conditions: Vec<_> = crd["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        (code, conditions),
        (200, vec!["NamesAccepted", "Established"])
    );
    let mut changed = crd.clone();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    changed.pointer_mut(schema).unwrap()["color"] = json!({ "type": "string", "default": "blue" });
    assert_eq!(plane.send(ADMIN, &Method::PUT, path, &changed).0, 200);
    let api = shirts(&plane, ADMIN);
    let created = api
        .create(&PostParams::default(), &shirt("a", &json!({})))
        .await
        .unwrap();
    assert_eq!(created.data["spec"]["color"], "blue");
    changed
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()["type"] = json!("string");
    let error = plane
        .install(&json!({ "metadata": { "name": "x" }, "spec": changed["spec"] }))
        .unwrap_err();
    assert_eq!(error.0["code"], 422);
    assert_eq!(
        plane.send(ADMIN, &Method::DELETE, path, &Value::Null).0,
        200
    );
    let all = "/apis/example.com/v1/namespaces/default/shirts";
    assert_eq!(plane.send(ADMIN, &Method::GET, all, &Value::Null).0, 404);
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_not_modelled_fail() {
    let plane = plane();
    let (code, status) = plane.send(
        ADMIN,
        &Method::GET,
        "/apis/rbac.authorization.k8s.io/v1/roles",
        &Value::Null,
    );
    assert_eq!((code, &status["reason"]), (501, &json!("NotModelled")));
    assert_eq!(plane.not_modelled().len(), 1);
}

/// Returns a Deployment with these fields in its container.
fn deployment(container: &Value) -> Value {
    let mut pod = json!({ "containers": [{ "name": "a", "image": "a:1" }] });
    for (field, value) in container.as_object().into_iter().flatten() {
        pod["containers"][0][field] = value.clone();
    }
    let labels = json!({ "app": "a" });
    json!({
        "metadata": { "name": "a" },
        "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } },
    })
}

/// The API server may reject or change these. A success would be a guess.
#[tokio::test]
async fn values_that_are_not_modelled_fail() {
    let plane = plane();
    let deployments = "/apis/apps/v1/namespaces/default/deployments?dryRun=All";
    let services = "/api/v1/namespaces/default/services?dryRun=All";
    let port = |port: Value| json!({ "ports": [port] });
    let variable = |it: Value| json!({ "env": [it] });
    let source = |from: Value| json!({ "env": [{ "name": "A", "valueFrom": from }] });
    let memory = |memory: Value| json!({ "resources": { "limits": { "memory": memory } } });
    let invalid = [
        port(json!({ "containerPort": 0 })),
        port(json!({ "containerPort": 80, "protocol": "X" })),
        json!({ "imagePullPolicy": "Sometimes" }),
        variable(json!({ "name": "a=b" })),
        source(json!({})),
        source(json!({ "secretKeyRef": { "name": "a" } })),
        json!({ "envFrom": [{}] }),
        json!({ "volumeMounts": [{ "name": "a", "mountPath": "/a" }] }),
        json!({ "livenessProbe": {} }),
    ];
    for it in &invalid {
        assert_eq!(post(&plane, deployments, &deployment(it)), 422, "{it}");
    }
    let pods = [
        json!({ "lifecycle": { "stopSignal": "SIGTERM" } }),
        json!({ "securityContext": { "windowsOptions": {} } }),
        json!({ "securityContext": { "privileged": true, "allowPrivilegeEscalation": false } }),
        json!({ "resources": { "limits": { "hugepages-2Mi": "2Mi", "cpu": "1" } } }),
        memory(json!(1.5)),
    ];
    let service = |spec: Value| json!({ "metadata": { "name": "a" }, "spec": spec });
    let of_ports = |ports: Value| service(json!({ "selector": { "a": "b" }, "ports": ports }));
    let ports = json!([{ "port": 80 }]);
    let addressed = |ip: &str, selector: Value| {
        let ports = ports.clone();
        service(json!({ "clusterIP": ip, "selector": selector, "ports": ports }))
    };
    let selector = json!({ "a": "b" });
    let others = [
        of_ports(json!([{ "port": 80, "nodePort": 30000 }])),
        of_ports(json!([{ "port": 80, "appProtocol": "http" }])),
        of_ports(json!([{ "port": 80, "protocol": "X" }])),
        of_ports(json!([{ "port": 80, "name": "a" }, { "port": 80, "name": "b" }])),
        of_ports(json!([{ "port": 80, "name": "a" }, { "port": 81, "name": "a" }])),
        addressed("None", json!({})),
        addressed("10.96.0.1", selector.clone()),
        service(json!({ "clusterIPs": ["None"], "selector": selector, "ports": ports })),
    ];
    let pods = pods.iter().map(|it| (deployments, deployment(it)));
    let others = others.into_iter().map(|it| (services, it));
    for (path, body) in pods.chain(others) {
        assert_eq!(post(&plane, path, &body), 501, "{body}");
    }
    let one = "/api/v1/namespaces/default/configmaps/a";
    for options in [
        json!([]),
        json!({ "dryRun": "All" }),
        json!({ "dryRun": ["Some"] }),
        json!({ "propagationPolicy": 1 }),
        json!({ "kind": "ConfigMap" }),
    ] {
        let (code, _) = plane.send(ADMIN, &Method::DELETE, one, &options);
        assert_eq!(code, 501, "{options}");
    }
    let headless = service(json!({ "clusterIP": "None", "selector": { "a": "b" } }));
    let full = deployment(&json!({
        "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "a", "key": "a" } } }],
        "envFrom": [{ "prefix": "A_", "secretRef": { "name": "a" } }],
        "ports": [{ "containerPort": 80, "name": "http", "protocol": "" }, { "containerPort": 80, "protocol": "UDP" }],
        "resources": { "limits": { "memory": 0.5 } },
    }));
    for (path, body) in [(services, headless), (deployments, full)] {
        assert_eq!(post(&plane, path, &body), 201, "{body}");
    }
}

fn post(plane: &ControlPlane, path: &str, body: &Value) -> u16 {
    plane.send(ADMIN, &Method::POST, path, body).0
}

/// Both APIs of Events have pages.
#[tokio::test]
async fn core_events_have_pages() {
    let plane = plane();
    let all = "/api/v1/namespaces/default/events";
    for name in ["a", "b", "c"] {
        let event = json!({
            "metadata": { "name": name }, "reason": "Made", "type": "Normal",
            "involvedObject": { "kind": "Shirt", "namespace": "default", "name": "blue" },
        });
        assert_eq!(post(&plane, all, &event), 201);
    }
    for all in [all, "/apis/events.k8s.io/v1/namespaces/default/events"] {
        let mut names = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{all}?limit=1&continue={next}");
            let (_, page) = plane.send(ADMIN, &Method::GET, &path, &Value::Null);
            names.push(page["items"][0]["metadata"]["name"].clone());
            match page["metadata"]["continue"].as_str() {
                Some(token) => token.clone_into(&mut next),
                None => break,
            }
        }
        assert_eq!(names, ["a", "b", "c"], "{all}");
    }
}

/// Requests with invalid parts fail, also without an object that they concern.
#[tokio::test]
async fn invalid_parts_of_requests_are_not_ignored() {
    let plane = plane();
    let generated = |prefix: &str| json!({ "metadata": { "generateName": prefix } });
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(post(&plane, maps, &generated("é-")), 422);
    assert_eq!(post(&plane, "/api/v1/namespaces", &generated("a-")), 201);
    for (name, code) in [("a.b", 422), ("A", 422), ("a", 201)] {
        let namespace = json!({ "metadata": { "name": name } });
        assert_eq!(
            post(&plane, "/api/v1/namespaces", &namespace),
            code,
            "{name}"
        );
    }
    let options = json!({ "propagationPolicy": "None" });
    let (code, _) = plane.send(ADMIN, &Method::DELETE, maps, &options);
    assert_eq!(code, 422);
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for path in [crds, "/api/v1/namespaces?timeout=9999999999h"] {
        let method = if path == crds {
            Method::DELETE
        } else {
            Method::GET
        };
        let (code, _) = plane.send(ADMIN, &method, path, &Value::Null);
        assert_eq!(code, 501, "{path}");
    }
}

/// A selector on a field that a CRD declares is not modelled. Other fields are unknown.
#[tokio::test]
async fn selectable_fields_are_not_modelled() {
    let get = |plane: &ControlPlane| {
        let path = "/apis/example.com/v1/namespaces/default/shirts?fieldSelector=spec.size%3D3";
        plane.send(ADMIN, &Method::GET, path, &Value::Null).0
    };
    assert_eq!(get(&plane()), 400);
    let mut crd = crd();
    crd["spec"]["versions"][0]["selectableFields"] = json!([{ "jsonPath": ".spec.size" }]);
    let plane = ControlPlane::new();
    plane.install(&crd).unwrap();
    assert_eq!(get(&plane), 501);
}

/// The example of README: kube's `Controller`, with a finalizer, server-side apply and the garbage collector.
#[allow(dead_code, reason = "a program of its own")]
#[path = "../../examples/control_plane.rs"]
mod example;

#[test]
fn the_controller_of_the_example_works() {
    example::main();
}

#[test]
#[should_panic(expected = "no resource deployments, which needs its group")]
fn a_resource_without_its_group_is_reported() {
    _ = plane().get("deployments", "default", "a");
}

/// A change of the scale is a change of the Deployment, whose warnings it repeats.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_scale_warns_of_the_pods() {
    let plane = ControlPlane::new();
    let client = plane.client(ADMIN);
    let labels = json!({ "app": "a" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "a" },
        "spec": { "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": {
                "nodeSelector": { "beta.kubernetes.io/os": "linux" },
                "containers": [{ "name": "a", "image": "x" }],
            },
        } },
    });
    let all = "/apis/apps/v1/namespaces/default/deployments";
    for (method, path, style, body) in [
        ("POST", all.to_owned(), "application/json", deployment),
        (
            "PATCH",
            format!("{all}/a/scale"),
            "application/merge-patch+json",
            json!({ "spec": { "replicas": 2 } }),
        ),
    ] {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", style);
        let request = request.body(body.to_string().into_bytes().into()).unwrap();
        let answer = client.send(request).await.unwrap();
        assert!(answer.status().is_success());
        let warning = answer.headers()["warning"].to_str().unwrap();
        assert!(warning.contains("deprecated since v1.14"), "{warning}");
    }
}
