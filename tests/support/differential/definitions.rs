//! Comparison of CRDs that appear and vanish: the observations of clients of the CRD and of its objects.

use std::{cell::Cell, time::Duration};

use operator_testkit::{
    api_server::{Kind, METADATA, METADATA_LIST, Method},
    cluster::eventually,
};
use serde_json::{Value, json};

use super::{
    CLUSTER, DEADLINE, Run,
    side::{ADMIN, Sent, Side, at, get},
    special::{JSON, MERGE, ask, both, same},
};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Returns a CRD with a group of its own.
fn definition(group: &str) -> Value {
    let spec = json!({ "type": "object", "properties": { "size": { "type": "integer" } } });
    let schema =
        json!({ "type": "object", "properties": { "spec": spec, "status": { "type": "object" } } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("things.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": "Thing", "listKind": "ThingList", "plural": "things", "singular": "thing" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} }, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

fn of_metadata(sent: Sent) -> Sent {
    Sent {
        accept: Some(METADATA),
        ..sent
    }
}

struct Crd {
    sides: [Run; 2],
    kind: Kind,
    things: String,
    path: String,
}

impl Crd {
    /// Sends a request to both sides, and compares the responses.
    async fn same(&mut self, sent: impl Fn() -> Sent) -> (u16, Value) {
        same(&mut self.sides, ADMIN, [sent(), sent()]).await
    }

    /// Waits until the real API server responds to this request with this code. The simulated one takes a step.
    async fn settle(&mut self, sent: impl Fn() -> Sent, code: u16) {
        let [real, simulated] = &mut self.sides;
        if let Side::Simulated(it) = &mut simulated.side {
            while it.store.is_unsettled(self.kind) {
                it.store.settle_definition(at(it.now), self.kind);
            }
        }
        let waits = async || match real.side.send(&sent(), ADMIN).await {
            (is, _) if is == code => Ok(()),
            other => Err(other),
        };
        eventually(DEADLINE, "the CRD is settled", waits).await;
    }

    async fn install(&mut self, definition: &Value) {
        let create = || of_metadata(ask(Method::POST, CRDS, JSON, definition));
        assert_eq!(self.same(create).await.0, 201);
        let list = format!("{}?limit=500", self.things);
        self.settle(|| get(list.as_str()), 200).await;
        // The first requests fill the cache, and watches are rejected until then.
        self.sides[1].side.send(&get(list.as_str()), ADMIN).await;
        let watch = get(format!("{}?watch=true&timeoutSeconds=1", self.things));
        let [real, simulated] = &mut self.sides;
        let opens = async || match real.side.watch(&watch, ADMIN).await {
            Ok(_) => Ok(()),
            Err(refused) => Err(refused),
        };
        eventually(DEADLINE, "the cache is filled", opens).await;
        if let Side::Simulated(it) = &mut simulated.side {
            it.now += Duration::from_millis(200);
        }
    }

    async fn uninstall(&mut self) {
        let (path, list) = (self.path.clone(), self.things.clone());
        let options = json!({});
        let delete = || of_metadata(ask(Method::DELETE, path.as_str(), JSON, &options));
        assert_eq!(self.same(delete).await.0, 200);
        self.settle(|| get(list.as_str()), 404).await;
    }

    async fn create(&mut self, name: &str, finalizers: &Value) -> (u16, Value) {
        let (api_version, things) = (self.kind.api_version(), self.things.clone());
        let metadata = json!({ "name": name, "finalizers": finalizers });
        let body = json!({
            "apiVersion": api_version, "kind": "Thing", "metadata": metadata, "spec": { "size": 1 },
        });
        self.same(|| ask(Method::POST, things.as_str(), JSON, &body))
            .await
    }

    /// Returns the newest version of each side.
    async fn versions(&mut self) -> Vec<String> {
        let mut versions = Vec::new();
        for run in &mut self.sides {
            let (_, list) = run.side.send(&get(self.things.as_str()), ADMIN).await;
            let version = list["metadata"]["resourceVersion"].as_str();
            versions.push(version.unwrap().to_owned());
        }
        versions
    }

    /// Returns the events of a watch of the objects since these versions, up to its end.
    async fn events(&mut self, since: &[String]) -> Vec<Value> {
        let mut told = Vec::new();
        for (run, since) in self.sides.iter_mut().zip(since) {
            let watch = get(format!(
                "{}?watch=true&timeoutSeconds=2&resourceVersion={since}",
                self.things
            ));
            let watch = run.side.watch(&watch, ADMIN).await.ok().unwrap();
            let events = run.side.rest(watch, Duration::from_secs(10)).await;
            told.push(run.normal(events));
        }
        assert_eq!(told[0], told[1], "the real one's first");
        told.remove(0)
    }

    /// Asserts that no watch begins at these versions.
    async fn is_expired(&mut self, since: &[String]) {
        for (run, since) in self.sides.iter_mut().zip(since) {
            let query = format!("watch=true&timeoutSeconds=2&resourceVersion={since}");
            let watch = get(format!("{}?{query}", self.things));
            let watch = run.side.watch(&watch, ADMIN).await.ok().unwrap();
            let events = run.side.rest(watch, Duration::from_secs(10)).await;
            assert_eq!(events[0]["object"]["code"], 410, "{events:?}");
        }
    }
}

/// Returns the types of the events, without bookmarks and repetitions.
fn types(events: &[Value]) -> Vec<&str> {
    let types = events.iter().filter_map(|event| event["type"].as_str());
    let mut types: Vec<_> = types.filter(|it| *it != "BOOKMARK").collect();
    // A CRD has several changes of its status.
    types.dedup();
    types
}

/// A CRD is installed, removed with an object, and installed again. Clients observe the same on both sides: the responses before,
/// during and after, the events and the end of a watch, and a watch from a version of the first CRD.
#[tokio::test]
async fn a_simulated_crd_appears_and_vanishes_like_a_real_one() {
    let cluster = &*CLUSTER;
    super::install(cluster).await;
    let number = uuid::Uuid::new_v4().simple().to_string();
    let (namespace, group) = (format!("v-{number}"), format!("v-{number}.example.com"));
    let definition = definition(&group);
    let mut crd = Crd {
        sides: both(cluster, &namespace).await,
        kind: Kind::of_definition(&definition),
        things: format!("/apis/{group}/v1/namespaces/{namespace}/things"),
        path: format!("{CRDS}/things.{group}"),
    };
    let (list, path) = (format!("{}?limit=500", crd.things), crd.path.clone());
    if let Side::Simulated(it) = &mut crd.sides[1].side {
        it.store.declare_kind(&definition);
    }
    assert_eq!(crd.same(|| get(list.as_str())).await.0, 404);
    assert_eq!(crd.same(|| of_metadata(get(path.as_str()))).await.0, 404);
    let one = format!("fieldSelector=metadata.name%3Dthings.{group}");
    let find = || Sent {
        accept: Some(METADATA_LIST),
        ..get(format!("{CRDS}?{one}"))
    };
    assert_eq!(crd.same(find).await.1["items"], Value::Null);
    let mut of_crds = Vec::new();
    for run in &mut crd.sides {
        let (_, list) = run.side.send(&find(), ADMIN).await;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let query = "watch=true&timeoutSeconds=290&allowWatchBookmarks=true";
        let watch = get(format!("{CRDS}?{query}&resourceVersion={version}&{one}"));
        let watch = run.side.watch(&of_metadata(watch), ADMIN).await;
        of_crds.push(watch.ok().unwrap());
    }

    crd.install(&definition).await;
    assert_eq!(crd.same(|| of_metadata(get(path.as_str()))).await.0, 200);
    let again = || of_metadata(ask(Method::POST, CRDS, JSON, &definition));
    assert_eq!(crd.same(again).await.0, 409);
    let first = crd.versions().await;
    assert_eq!(crd.create("a", &Value::Null).await.0, 201);
    assert_eq!(crd.create("b", &json!(["example.com/hold"])).await.0, 201);
    assert_eq!(crd.same(|| get(list.as_str())).await.0, 200);

    // The watches of the objects deliver their deletions, and end.
    let mut watches = Vec::new();
    for (run, since) in crd.sides.iter_mut().zip(&first) {
        let watch = format!(
            "{}?watch=true&timeoutSeconds=290&resourceVersion={since}",
            crd.things
        );
        watches.push(run.side.watch(&get(watch), ADMIN).await.ok().unwrap());
    }
    let delete = || of_metadata(ask(Method::DELETE, path.as_str(), JSON, &json!({})));
    assert_eq!(crd.same(delete).await.0, 200);
    let one = format!("{}/a", crd.things);
    crd.settle(|| get(one.as_str()), 404).await;
    for _ in 0..2 {
        assert_eq!(crd.same(delete).await.0, 200);
    }
    // While the CRD terminates, its objects can be read and changed, but not created.
    // Before 1.34, the code is 405.
    let refused = crd.create("c", &Value::Null).await.0;
    assert!(matches!(refused, 403 | 405), "{refused}");
    assert_eq!(crd.same(|| get(list.as_str())).await.0, 200);
    let held = format!("{}/b", crd.things);
    let bigger = json!({ "spec": { "size": 2 } });
    let change = || ask(Method::PATCH, held.as_str(), MERGE, &bigger);
    assert_eq!(crd.same(change).await.0, 200);
    let let_go = json!({ "metadata": { "finalizers": null } });
    let change = || ask(Method::PATCH, held.as_str(), MERGE, &let_go);
    assert_eq!(crd.same(change).await.0, 200);
    crd.settle(|| get(list.as_str()), 404).await;
    assert_eq!(crd.create("a", &Value::Null).await.0, 404);
    assert_eq!(crd.same(|| of_metadata(get(path.as_str()))).await.0, 404);
    let mut told = Vec::new();
    for (run, watch) in crd.sides.iter_mut().zip(watches) {
        let events = run.side.rest(watch, Duration::from_secs(20)).await;
        told.push(run.normal(events));
    }
    assert_eq!(told[0], told[1], "the real one's first");
    let deleted = told[0].iter().filter(|event| event["type"] == "DELETED");
    assert_eq!(deleted.count(), 2, "{:?}", told[0]);

    // The new CRD has no objects, and its cache no history.
    crd.install(&definition).await;
    assert_eq!(crd.same(|| get(list.as_str())).await.0, 200);
    crd.is_expired(&first).await;
    let second = crd.versions().await;
    assert_eq!(crd.create("a", &Value::Null).await.0, 201);
    assert_eq!(types(&crd.events(&second).await), ["ADDED"]);
    crd.uninstall().await;

    for (run, watch) in crd.sides.iter_mut().zip(of_crds) {
        let deleted = Cell::new(0);
        let is_last = |event: &Value| {
            deleted.set(deleted.get() + u32::from(event["type"] == "DELETED"));
            deleted.get() == 2
        };
        let events = run.side.events(watch, is_last).await;
        let cycle = ["ADDED", "MODIFIED", "DELETED"];
        assert_eq!(types(&events), [cycle, cycle].concat());
    }
}

/// Only the metadata of a `StorageClass` is modelled.
#[tokio::test]
async fn the_metadata_of_a_simulated_storage_class_is_read_like_a_real_one() {
    const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
    let cluster = &*CLUSTER;
    super::install(cluster).await;
    let number = uuid::Uuid::new_v4().simple().to_string();
    let mut sides = both(cluster, &format!("s-{number}")).await;
    let name = format!("class-{number}");
    let body = json!({ "metadata": { "name": name }, "provisioner": "example.com/disk" });
    let create = ask(Method::POST, CLASSES, JSON, &body);
    assert_eq!(sides[0].side.send(&create, ADMIN).await.0, 201);
    if let Side::Simulated(it) = &mut sides[1].side {
        it.store.create_storage_class(at(it.now), &name);
    }
    for (name, code) in [(&*name, 200), ("missing", 404)] {
        let read = || of_metadata(get(format!("{CLASSES}/{name}")));
        assert_eq!(same(&mut sides, ADMIN, [read(), read()]).await.0, code);
    }
}
