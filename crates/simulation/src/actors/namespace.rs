//! The namespace of the users' objects, which an administrator deletes and recreates, and the namespace controller, which empties it.

use operator_testkit::api_server::{Key, Kind, Method};
use serde_json::{Value, json};

use super::{
    super::{
        plan::{Fault, draw},
        world::{World, at},
    },
    COLLECTED, USER,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
const ALL: &str = "/api/v1/namespaces";

#[derive(Default)]
pub struct Namespace {
    /// Number of deletions.
    deletions: u64,
    /// Objects of custom types at the time of the deletion, with their paths. Their owner has the manifests and applies them again.
    objects: Vec<(String, Value)>,
}

impl Namespace {
    /// Takes one step towards the desired state. Returns whether steps remain.
    pub fn tick(&mut self, world: &mut World) -> bool {
        let is_wanted = !world.is_going_on(|fault| matches!(fault, Fault::NoNamespace));
        let namespace = world.store.get(&key(world));
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
        let name = world.plan.program.namespace();
        let kinds = world.store.custom_kinds().iter();
        let objects = kinds.flat_map(|kind| world.store.list(*kind, Some(name)));
        let objects = objects.map(|(key, object)| {
            let all = Key::new(key.kind, name, "").url();
            (all.trim_end_matches('/').to_owned(), applied(object))
        });
        let objects: Vec<_> = objects.collect();
        let path = format!("{ALL}/{name}");
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if world.request("admin", &Method::DELETE, &path, &options).0 == 200 {
            (self.objects, self.deletions) = (objects, self.deletions + 1);
        }
    }

    /// Deletes one object per step, and all events together. This leaves time to recreate a deleted object. Kubernetes
    /// specifies no order of the kinds, so it is random. When the namespace is wanted again, the `example.com/hold` finalizers
    /// are removed.
    fn empty(&self, world: &mut World, is_wanted: bool) {
        let custom = world.store.custom_kinds();
        let kinds = match draw(world.plan.seed, "namespace", self.deletions) % 2 {
            0 => [&COLLECTED[..], custom],
            _ => [custom, &COLLECTED[..]],
        };
        let kinds = [kinds.concat(), vec![Kind::Event]].concat();
        let name = world.plan.program.namespace();
        let mut is_empty = true;
        for kind in kinds {
            let there: Vec<_> = world
                .store
                .list(kind, Some(name))
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
            let key = key(world);
            world.store.put(at(world.now), CONTROLLER, &key, None);
        }
    }

    fn create(&mut self, world: &mut World) {
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": { "name": world.plan.program.namespace() },
        });
        if world.request("admin", &Method::POST, ALL, &namespace).0 != 201 {
            return;
        }
        for (path, object) in std::mem::take(&mut self.objects) {
            world.request(USER, &Method::POST, &path, &object);
        }
    }
}

fn key(world: &World) -> Key {
    Key::new(Kind::Namespace, "", world.plan.program.namespace())
}

/// Returns an object as it was applied.
fn applied(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": object["kind"], "apiVersion": object["apiVersion"], "spec": object["spec"],
        "metadata": { "name": metadata["name"], "namespace": metadata["namespace"] },
    })
}
