//! The namespace of the Foos, which an administrator deletes and recreates, and the namespace controller, which empties it.

use operator_testkit::api_server::{Key, Kind, Method};
use serde_json::{Value, json};

use super::{
    super::{
        plan::{Fault, draw},
        world::{FOO, FOOS, World, at},
    },
    USER,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
const ALL: &str = "/api/v1/namespaces";

#[derive(Default)]
pub struct Namespace {
    /// Number of deletions.
    deletions: u64,
    /// Foos at the time of the deletion. Their owner has the manifests and applies them again.
    foos: Vec<Value>,
}

impl Namespace {
    /// Takes one step towards the desired state. Returns whether steps remain.
    pub fn tick(&mut self, world: &mut World) -> bool {
        let is_wanted = !world.is_going_on(|fault| matches!(fault, Fault::NoNamespace));
        let namespace = world.store.get(&Key::new(Kind::Namespace, "", FOOS));
        let is_deleting = namespace.map(|it| it["metadata"]["deletionTimestamp"].is_string());
        match is_deleting {
            Some(false) if is_wanted => return false,
            None if !is_wanted => return false,
            Some(false) => self.delete(world),
            Some(true) => self.empty(world, is_wanted),
            None => self.create(world),
        }
        true
    }

    fn delete(&mut self, world: &mut World) {
        let foos = world.store.list(FOO, Some(FOOS));
        let foos: Vec<_> = foos.map(|(_, foo)| applied(foo)).collect();
        let path = format!("{ALL}/{FOOS}");
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if world.request("admin", &Method::DELETE, &path, &options).0 == 200 {
            (self.foos, self.deletions) = (foos, self.deletions + 1);
        }
    }

    /// Deletes one object per step, and all events together. This leaves time to recreate a deleted object. Kubernetes
    /// specifies no order of the kinds, so it is random. When the namespace is wanted again, the `example.com/hold` finalizers
    /// are removed.
    fn empty(&self, world: &mut World, is_wanted: bool) {
        let kinds = match draw(world.plan.seed, "namespace", self.deletions) % 2 {
            0 => [Kind::Deployment, Kind::Service, FOO, Kind::Event],
            _ => [FOO, Kind::Deployment, Kind::Service, Kind::Event],
        };
        let mut is_empty = true;
        for kind in kinds {
            let there: Vec<_> = world
                .store
                .list(kind, Some(FOOS))
                .map(|(key, object)| (key.clone(), object["metadata"].clone()))
                .collect();
            is_empty &= there.is_empty();
            for (key, metadata) in there {
                let path = key.url();
                if metadata["deletionTimestamp"].is_null() {
                    let options = json!({
                        "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                    });
                    world.request(CONTROLLER, &Method::DELETE, &path, &options);
                    if kind != Kind::Event {
                        return;
                    }
                } else if is_wanted && metadata["finalizers"][0] == "example.com/hold" {
                    let let_go = json!({ "metadata": { "finalizers": null } });
                    world.request("admin", &Method::PATCH, &path, &let_go);
                }
            }
        }
        if is_empty {
            let key = Key::new(Kind::Namespace, "", FOOS);
            world.store.put(at(world.now), CONTROLLER, &key, None);
        }
    }

    fn create(&mut self, world: &mut World) {
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": FOOS },
        });
        if world.request("admin", &Method::POST, ALL, &namespace).0 != 201 {
            return;
        }
        let all = Key::new(FOO, FOOS, "").url();
        for foo in std::mem::take(&mut self.foos) {
            world.request(USER, &Method::POST, all.trim_end_matches('/'), &foo);
        }
    }
}

/// Returns a Foo as it was applied.
fn applied(foo: &Value) -> Value {
    json!({
        "kind": foo["kind"], "apiVersion": foo["apiVersion"], "spec": foo["spec"],
        "metadata": { "name": foo["metadata"]["name"], "namespace": FOOS },
    })
}
