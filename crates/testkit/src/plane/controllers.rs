//! The controllers of the control plane. They act at once after each request.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::deployments;
use crate::api_server::{Call, Key, Kind, Method, Now, Server, Store, User};

const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const NAMESPACES: &str = "system:serviceaccount:kube-system:namespace-controller";
/// Maximum number of rounds after one request.
const ROUNDS: usize = 1000;

/// A request of a controller.
type Request = (&'static str, Method, Key, Value);

/// Runs the controllers until they have nothing left to do. With `pods`, the pods of Deployments are available at once.
pub fn run(store: &mut Store, server: &mut Server, now: Now, pods: bool) {
    for _ in 0..ROUNDS {
        let before = store.version();
        for kind in store.custom_kinds().to_vec() {
            if store.is_unsettled(kind) {
                store.settle_definition(now, kind);
            }
        }
        if pods {
            deployments::report(store, now);
        }
        let mut requests = collect(store);
        requests.extend(end_namespaces(store, now));
        for (user, method, key, body) in requests {
            send(store, server, now, user, &method, &key, &body);
        }
        if store.version() == before {
            return;
        }
    }
}

fn send(
    store: &mut Store,
    server: &mut Server,
    now: Now,
    user: &str,
    method: &Method,
    key: &Key,
    body: &Value,
) {
    let content_type = match *method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = body.to_string();
    let call = Call {
        user: User {
            name: user,
            pod: None,
        },
        method,
        path_and_query: &key.url(),
        content_type: Some(content_type),
        accept: None,
        user_agent: Some(user),
        body: body.as_bytes(),
    };
    // A conflict is resolved in the next round, and a request that is not modelled has no effect.
    drop(server.serve(store, now, &call));
}

fn all(store: &Store) -> Vec<(Key, Arc<Value>)> {
    let skipped = [
        Kind::Event,
        Kind::CoreEvent,
        Kind::CustomResourceDefinition,
        Kind::StorageClass,
    ];
    let kinds = Kind::BUILT_IN.iter().filter(|kind| !skipped.contains(kind));
    let kinds = kinds.chain(store.custom_kinds()).copied();
    kinds
        .flat_map(|kind| store.list(kind, None))
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect()
}

fn texts<'a>(object: &'a Value, list: &str) -> Vec<&'a str> {
    let all = object["metadata"][list].as_array().into_iter().flatten();
    all.filter_map(Value::as_str).collect()
}

/// Returns the references to owners.
fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Deletes objects whose owners are all gone, and dependents of an owner in foreground deletion.
fn collect(store: &Store) -> Vec<Request> {
    let all = all(store);
    let mut alive = BTreeMap::new();
    for (_, object) in &all {
        alive.insert(
            object["metadata"]["uid"].as_str().unwrap_or_default(),
            &**object,
        );
    }
    let uid_of = |owner: &Value| owner["uid"].as_str().unwrap_or_default().to_owned();
    let mut requests = Vec::new();
    for (key, object) in &all {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let owners_of_it = owners(object);
        let owner = |owner: &Value| alive.get(uid_of(owner).as_str()).copied();
        let is_orphan =
            !owners_of_it.is_empty() && owners_of_it.iter().all(|it| owner(it).is_none());
        let is_waited_for = owners_of_it.iter().filter_map(owner).any(|owner| {
            is_deleting(owner) && texts(owner, "finalizers").contains(&"foregroundDeletion")
        });
        if (is_orphan || is_waited_for) && !is_deleting(object) {
            let policy = if is_waited_for {
                "Foreground"
            } else {
                "Background"
            };
            let options = json!({
                "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy, "preconditions": { "uid": uid },
            });
            requests.push((GARBAGE_COLLECTOR, Method::DELETE, key.clone(), options));
        }
        if !is_deleting(object) {
            continue;
        }
        let mut kept = texts(object, "finalizers");
        let had = kept.len();
        let mine = || {
            all.iter()
                .filter(|(_, other)| owners(other).iter().any(|it| uid_of(it) == uid))
        };
        if kept.contains(&"orphan") {
            for (other, dependent) in mine() {
                let left: Vec<_> = owners(dependent)
                    .iter()
                    .filter(|it| uid_of(it) != uid)
                    .collect();
                let left = if left.is_empty() {
                    Value::Null
                } else {
                    json!(left)
                };
                let patch = json!({ "metadata": { "ownerReferences": left, "uid": dependent["metadata"]["uid"] } });
                requests.push((GARBAGE_COLLECTOR, Method::PATCH, other.clone(), patch));
            }
            kept.retain(|it| *it != "orphan");
        }
        let blocks = |owner: &Value| uid_of(owner) == uid && owner["blockOwnerDeletion"] == true;
        if !mine().any(|(_, dependent)| owners(dependent).iter().any(blocks)) {
            kept.retain(|it| *it != "foregroundDeletion");
        }
        if kept.len() != had {
            let kept = if kept.is_empty() {
                Value::Null
            } else {
                json!(kept)
            };
            let version = &object["metadata"]["resourceVersion"];
            let patch = json!({ "metadata": { "finalizers": kept, "resourceVersion": version } });
            requests.push((GARBAGE_COLLECTOR, Method::PATCH, key.clone(), patch));
        }
    }
    requests
}

/// Deletes the objects of terminating namespaces, and then the namespaces.
fn end_namespaces(store: &mut Store, now: Now) -> Vec<Request> {
    let namespaces = store.list(Kind::Namespace, None);
    let ending: Vec<Key> = namespaces
        .filter(|(_, it)| is_deleting(it))
        .map(|(key, _)| key.clone())
        .collect();
    let mut requests = Vec::new();
    for namespace in ending {
        let kinds = Kind::BUILT_IN.iter().chain(store.custom_kinds()).copied();
        let content = kinds.filter(|kind| kind.is_namespaced() && *kind == kind.stored());
        let content: Vec<_> = content
            .flat_map(|kind| store.list(kind, Some(&namespace.name)))
            .map(|(key, object)| (key.clone(), is_deleting(object)))
            .collect();
        if content.is_empty() {
            store.put(now, NAMESPACES, &namespace, None);
        }
        for (key, _) in content.into_iter().filter(|(_, is_deleting)| !is_deleting) {
            let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background" });
            requests.push((NAMESPACES, Method::DELETE, key, options));
        }
    }
    requests
}
