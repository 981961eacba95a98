//! `Comparison` on a real API server: the manifests of `cases.rs`, and the changes of other clients.
//!
//! Each case creates an object, which must not differ from its manifest although the API server has set defaults. Other clients
//! change the object. The patch for another manifest must leave no difference, and the fields of the others as they are.

mod cases;

use cases::{CUSTOM, Dice, Subject, subjects};
use futures::{StreamExt as _, stream::iter};
use http::{Method, Request};
use kube::Client;
use operator_runtime::Comparison;
use operator_testkit::cluster::{Cluster, shared};
use serde_json::{Value, json};

/// Cases of each kind.
const CASES: u64 = 40;
const CONCURRENCY: usize = 6;
/// Maps in the manifests with a null.
const MAPS: [&str; 3] = [
    "/data",
    "/metadata/annotations",
    "/spec/template/metadata/annotations",
];

/// Requests for objects of one kind in one namespace.
struct Objects<'a> {
    client: &'a Client,
    namespace: &'a str,
    subject: &'a Subject,
}

impl Objects<'_> {
    async fn send(
        &self,
        method: Method,
        name: &str,
        style: &str,
        body: &Value,
    ) -> kube::Result<Value> {
        let kind = &self.subject.kind;
        let api = if kind.group.is_empty() { "api" } else { "apis" };
        let (version, namespace, plural) = (kind.api_version(), self.namespace, kind.plural);
        let path = if kind.is_cluster_scoped() {
            format!("/{api}/{version}/{plural}{name}")
        } else {
            format!("/{api}/{version}/namespaces/{namespace}/{plural}{name}")
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("Content-Type", format!("application/{style}"));
        let request = request.body(serde_json::to_vec(body).unwrap()).unwrap();
        self.client.request(request).await
    }

    async fn create(&self, mut manifest: Value, name: &str) -> Value {
        let kind = &self.subject.kind;
        // The API server takes the null of a new annotation for an empty string.
        for path in MAPS {
            let map = manifest.pointer_mut(path).and_then(Value::as_object_mut);
            if let Some(map) = map {
                map.retain(|_, value| !value.is_null());
            }
        }
        manifest["apiVersion"] = kind.api_version().into();
        manifest["kind"] = kind.kind.into();
        manifest["metadata"]["name"] = name.into();
        let created = self.send(Method::POST, "", "json", &manifest).await;
        created.unwrap_or_else(|error| panic!("{manifest}: {error}"))
    }

    async fn patch(&self, name: &str, patch: &Value) -> kube::Result<Value> {
        let style = if self.subject.kind == CUSTOM {
            "merge-patch+json"
        } else {
            "strategic-merge-patch+json"
        };
        let name = format!("/{name}");
        self.send(Method::PATCH, &name, style, patch).await
    }
}

/// Runs a case. Returns whether the second manifest required a patch.
async fn run(objects: &Objects<'_>, seed: u64) -> bool {
    let subject = objects.subject;
    let (mut dice, name) = (Dice(seed), format!("case-{seed}"));
    let plain = Comparison::of(subject.kind);
    let mut comparison = plain.clone();
    for path in subject.exactly {
        if dice.is_six() {
            comparison = comparison.exactly(path);
        }
    }

    let first = (subject.manifest)(&mut dice);
    let created = objects.create(first.clone(), &name).await;
    let patch = plain.patch(&first, &created);
    assert_eq!(patch, None, "{name}: of the manifest {first}\n{created}");

    let mut actual = created;
    let mut changed = Vec::new();
    for change in subject.by_others.iter().filter(|_| dice.is_heads()) {
        actual = objects.patch(&name, change).await.unwrap();
        changed.push(change);
    }
    let mut second = if dice.is_six() {
        first.clone()
    } else {
        (subject.manifest)(&mut dice)
    };
    for path in subject.immutable {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let parent = second.pointer_mut(parent).and_then(Value::as_object_mut);
        let parent = parent.unwrap();
        parent.remove(field);
        let first = first.pointer(path).cloned();
        parent.extend(first.map(|first| (field.to_owned(), first)));
    }

    let patch = comparison.patch(&second, &actual);
    let is_needed = patch.is_some();
    if let Some(mut patch) = patch {
        patch["metadata"]["resourceVersion"] = actual["metadata"]["resourceVersion"].clone();
        let patched = objects.patch(&name, &patch).await;
        let after = patched.unwrap_or_else(|error| panic!("{name}: {error}\n{patch}\n{actual}"));
        assert_ne!(
            after["metadata"]["resourceVersion"],
            actual["metadata"]["resourceVersion"]
        );
        let again = comparison.patch(&second, &after);
        assert_eq!(again, None, "{name}: after {patch}\n{actual}\n{after}");
        let names = |of: &Value| -> Vec<Value> {
            let list = of.pointer("/spec/template/spec/initContainers");
            let list = list.and_then(Value::as_array).into_iter().flatten();
            list.map(|it| it["name"].clone()).collect()
        };
        let (desired, mut order) = (names(&second), names(&after));
        order.retain(|name| desired.contains(name));
        assert_eq!(order, desired, "{name}: after {patch}");
        actual = after;
    }
    if format!("{comparison:?}") == format!("{plain:?}") {
        for change in changed
            .into_iter()
            .filter(|change| is_not_in(change, &second))
        {
            let undone = plain.patch(change, &actual);
            assert_eq!(undone, None, "{name}: of {change}\n{actual}");
        }
    }
    is_needed
}

/// Whether a change of another client does not contradict the manifest.
fn is_not_in(change: &Value, manifest: &Value) -> bool {
    match (change, manifest) {
        (Value::Object(change), Value::Object(manifest)) => {
            let mut members = change.iter();
            members.all(|(name, value)| manifest.get(name).is_none_or(|it| is_not_in(value, it)))
        }
        (Value::Array(change), Value::Array(manifest)) => change.iter().all(|element| {
            let same = manifest.iter().find(|it| it["name"] == element["name"]);
            element["name"].is_string() && same.is_none_or(|it| is_not_in(element, it))
        }),
        (change, manifest) => change == manifest,
    }
}

#[tokio::test]
async fn what_was_patched_does_not_differ() {
    let cluster = shared();
    let (client, namespace) = (
        cluster.client().await,
        cluster.namespace("difference").await,
    );
    install(cluster).await;
    let subjects = subjects();
    for subject in &subjects {
        let objects = Objects {
            client: &client,
            namespace: &namespace,
            subject,
        };
        let cases = iter(1..=CASES).map(|seed| run(&objects, seed));
        let patched = cases.buffer_unordered(CONCURRENCY);
        let patched = patched.filter(|patched| futures::future::ready(*patched));
        let (patched, kind) = (patched.count().await, subject.kind.kind);
        println!("{kind}: {patched} of {CASES} needed a patch");
        assert!(patched > usize::try_from(CASES).unwrap() / 3, "{kind}");
    }
}

/// Installs the custom resource.
async fn install(cluster: &Cluster) {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema = json!({ "type": "object", "properties": { "spec": any } });
    let version = json!({
        "name": CUSTOM.version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
    });
    let name = format!("{}.{}", CUSTOM.plural, CUSTOM.group);
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": name },
        "spec": {
            "group": CUSTOM.group,
            "names": { "kind": CUSTOM.kind, "plural": CUSTOM.plural },
            "scope": "Namespaced",
            "versions": [version],
        },
    });
    let crd = crd.to_string();
    let apply = cluster.kubectl_stdin(&["apply", "-f", "-"], &crd);
    apply.await.success();
    let crd = format!("crd/{name}");
    let wait = ["wait", "--for=condition=Established", "--timeout=30s", &crd];
    cluster.kubectl(&wait).await.success();
}
