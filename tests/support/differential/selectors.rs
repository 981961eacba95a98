//! Comparison of lists and watches with label and field selectors.

use operator_testkit::api_server::{Kind, Method};
use serde_json::{Value, json};

use super::{
    side::{ADMIN, get, path},
    special::{JSON, MERGE, same_of, sides},
};

const SELECTORS: &[&str] = &[
    "labelSelector=app%3Dx",
    "labelSelector=app%3D%3Dx,tier%3D1",
    "labelSelector=app!%3Dx",
    "labelSelector=app",
    "labelSelector=!app",
    "labelSelector=app%20in%20(x,y),tier",
    "labelSelector=app%20notin%20(x,z)",
    "fieldSelector=metadata.name%3Db",
    "fieldSelector=metadata.name!%3Db",
    "fieldSelector=metadata.name%3Da,type%3DOpaque",
    "fieldSelector=type!%3Dexample.com/other",
    "fieldSelector=type%3Dexample.com/other",
    "labelSelector=app&fieldSelector=metadata.name!%3Da",
];

/// Events of both APIs are selected by the fields of their involved object, and by others.
#[tokio::test]
async fn simulated_events_are_selected_like_real_ones() {
    let (mut sides, namespace) = sides("s").await;
    let [events, core] = [Kind::Event, Kind::CoreEvent].map(|kind| path(kind, &namespace));
    let old = json!({
        "metadata": { "name": "old" }, "reason": "Synced", "type": "Normal", "source": { "component": "scheduler" },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "a", "uid": "u1", "resourceVersion": "7",
            "fieldPath": "spec.containers{web}",
        },
    });
    let new = json!({
        "metadata": { "name": "new" }, "eventTime": "2026-01-01T00:00:00.123456Z", "type": "Warning", "reason": "Failed",
        "reportingController": "kubelet", "reportingInstance": "i", "action": "Pull", "note": "x",
        "regarding": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "name": "b", "uid": "u2" },
    });
    same_of(&mut sides, Method::POST, &core, JSON, &old).await;
    same_of(&mut sides, Method::POST, &events, JSON, &new).await;
    let fields = [
        ("kind", "Pod"),
        ("name", "b"),
        ("namespace", &*namespace),
        ("uid", "u1"),
        ("apiVersion", "apps%2Fv1"),
        ("resourceVersion", "7"),
        ("fieldPath", "spec.containers%7Bweb%7D"),
        ("unknown", "x"),
    ];
    let others = [
        "type%3DWarning",
        "type!%3DWarning,reason%3DSynced",
        "reportingComponent%3Dkubelet",
        "reportingController%3Dkubelet",
        "source%3Dscheduler",
        "source%3Dkubelet",
        "metadata.name%3Dold",
        "message%3Dx",
        "involvedObject.kind%3DPod",
        "regarding.kind%3DPod",
    ];
    for (all, of) in [(&core, "involvedObject"), (&events, "regarding")] {
        let fields = fields.map(|(field, value)| format!("{of}.{field}%3D{value}"));
        for selector in fields.into_iter().chain(others.map(ToOwned::to_owned)) {
            let query = format!("{all}?fieldSelector={selector}");
            same_of(&mut sides, Method::GET, &query, "", &Value::Null).await;
        }
    }
}

/// A list returns the selected objects. A watch reports an object as new when it begins to match, and as deleted when it ceases to.
#[tokio::test]
async fn simulated_selectors_select_like_the_real_ones() {
    let (mut sides, namespace) = sides("s").await;
    let secrets = path(Kind::Secret, &namespace);
    for (name, labels) in [
        ("a", json!({ "app": "x", "tier": "1" })),
        ("b", json!({ "app": "y", "tier": "1" })),
        ("c", json!({})),
    ] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "labels": labels },
        });
        same_of(&mut sides, Method::POST, &secrets, JSON, &secret).await;
    }
    for selector in SELECTORS {
        for query in [
            format!("{secrets}?{selector}"),
            format!("{secrets}?{selector}&limit=1"),
        ] {
            let (code, _) = same_of(&mut sides, Method::GET, &query, "", &Value::Null).await;
            assert_eq!(code, 200, "{query}");
        }
    }
    let mut watches = Vec::new();
    for run in &mut sides {
        let (_, list) = run.side.send(&get(&secrets), ADMIN).await;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let from = format!("watch=true&resourceVersion={version}");
        let watch = format!("{secrets}?{from}&labelSelector=app%3Dx");
        watches.push(run.side.watch(&get(&watch), ADMIN).await.ok().unwrap());
    }
    let app = |app: Value| json!({ "metadata": { "labels": { "app": app } } });
    for (name, change) in [
        ("b", app("x".into())),
        (
            "a",
            json!({ "metadata": { "annotations": { "note": "1" } } }),
        ),
        ("a", app("y".into())),
        (
            "a",
            json!({ "metadata": { "annotations": { "note": "2" } } }),
        ),
        ("b", app(Value::Null)),
        ("c", app("x".into())),
    ] {
        let path = format!("{secrets}/{name}");
        same_of(&mut sides, Method::PATCH, &path, MERGE, &change).await;
    }
    let path = format!("{secrets}/c");
    same_of(&mut sides, Method::DELETE, &path, JSON, &json!({})).await;
    let mut seen = Vec::new();
    for (run, watch) in sides.iter_mut().zip(watches) {
        let is_last = |event: &Value| {
            event["type"] == "DELETED" && event["object"]["metadata"]["name"] == "c"
        };
        let events = run.side.events(watch, is_last).await.into_iter();
        seen.push(
            events
                .map(|event| run.names.normal(event))
                .collect::<Vec<_>>(),
        );
    }
    let types: Vec<_> = seen[0].iter().map(|event| event["type"].clone()).collect();
    let expected = [
        "ADDED", "MODIFIED", "DELETED", "DELETED", "ADDED", "DELETED",
    ];
    assert_eq!(types, expected);
    assert_eq!(seen[0], seen[1], "the real one's first");
}
