//! What users and other controllers can do to a Foo, and what it costs the Foos beside it. The controller is the real one, the
//! API server too; the audit log is the judge. No Deployment gets pods here, and nothing is garbage collected.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells what it measured"
)]

mod cluster;
mod controller;
mod foos;

use std::time::Instant;

use cluster::{AuditEvent, Cluster, Options, eventually};
use controller::Controller;
use foo_controller::api::Foo;
use foos::{
    DEADLINE, audited, converged, counts, create, events, foo, names, not_ready, owned, requests,
    subject, tries_allowed,
};
use futures::StreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ResourceQuota};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Foos that the schema refuses, stored before it was there, between 300 good ones: each is told what is wrong with it, no one
/// is tried hotly, and the good ones converge as fast as they do alone.
#[tokio::test]
async fn invalid_foos_from_before_the_schema() {
    const GOOD: usize = 300;
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    let client = cluster.client().await;
    install_permissive_crd(&cluster).await;
    let alone = cluster.namespace("alone").await;
    let mixed = cluster.namespace("mixed").await;
    let good = names("foo", GOOD);
    let bad = names("bad", GOOD);
    let kinds = bad.iter().map(|name| invalid(name)).enumerate();
    let kinds: Vec<_> = kinds
        .map(|(n, mut all)| all.swap_remove(n % all.len()))
        .collect();
    let mut stored = Vec::new();
    for ((good, bad), (_, spec, status, _)) in good.iter().zip(&bad).zip(&kinds) {
        let spec_of_good = json!({ "deploymentName": good, "replicas": 1 });
        stored.push((&*alone, object(good, &spec_of_good, &Value::Null)));
        stored.push((&*mixed, object(good, &spec_of_good, &Value::Null)));
        stored.push((&*mixed, object(bad, spec, status)));
    }
    store(&client, stored).await;
    install_schema(&cluster, &client, &alone).await;

    let later = names("later", GOOD);
    let mut took = Vec::new();
    let mut controllers = Vec::new();
    for namespace in [&alone, &mixed] {
        let begun = Instant::now();
        // Where each is a line, however many there are.
        let args = ["--namespace", namespace, "--log-level=debug"];
        controllers.push(Controller::start(&cluster, &args));
        converged(&client, namespace, &good).await;
        let first = begun.elapsed();
        create(&client, namespace, &later).await;
        converged(&client, namespace, &later).await;
        took.push((first, begun.elapsed().saturating_sub(first)));
    }
    let mut requests = requests(&cluster, &mixed);
    requests.retain(|request| request.resource != "events");
    // Counted rather than timed: other tests run beside this one.
    let among = (meanwhile(&requests, &good), meanwhile(&requests, &later));
    println!(
        "{GOOD} good Foos at the start, {GOOD} more later: alone {:?}, between invalid ones {:?}",
        took[0], took[1]
    );
    println!(
        "requests for others before the last of {} for them: {among:?}",
        2 * GOOD
    );
    // At the start every Foo is new; later, the invalid ones cost their retries.
    assert!(among.0 <= 6 * GOOD && among.1 <= 2 * GOOD, "{among:?}");
    let [_, controller] = &controllers[..] else {
        panic!("two controllers")
    };
    let kinds = bad.iter().zip(&kinds);
    for (name, (kind, _, _, told)) in kinds.clone() {
        assert_told(&client, &mixed, name, *told, controller, kind).await;
    }
    println!("{:#?}", counts(&requests));
    for (name, (kind, ..)) in kinds {
        let of: Vec<_> = requests.iter().filter(|e| subject(e) == name).collect();
        if !of.is_empty() {
            assert!(
                of.len() <= tries_allowed(&of) + 1,
                "{kind} ({name}): {} requests",
                of.len()
            );
        }
    }
}

async fn store(client: &Client, objects: Vec<(&str, DynamicObject)>) {
    let resource = ApiResource::erase::<Foo>(&());
    let store = async |(namespace, object): (&str, DynamicObject)| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    futures::stream::iter(objects)
        .for_each_concurrent(16, store)
        .await;
}

/// Installs the CRD over whichever there was, and waits until its schema is in force.
async fn install_schema(cluster: &Cluster, client: &Client, namespace: &str) {
    cluster.install_crd().await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    let mut invalid = foo("dry");
    invalid.spec.replicas = Some(11);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(DEADLINE, "the schema is in force", async || {
        match foos.create(&params, &invalid).await {
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn assert_told(
    client: &Client,
    namespace: &str,
    name: &str,
    told: Told,
    controller: &Controller,
    kind: &str,
) {
    let resource = ApiResource::erase::<Foo>(&());
    let stored: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    eventually(
        DEADLINE,
        &format!("{kind} ({name}): {told:?}"),
        async || {
            let object = stored.get(name).await.map_err(|error| error.to_string())?;
            let reason = reason(&object);
            let is_told = match told {
                Told::Reason(expected) => reason == Some(expected),
                Told::Words(words) => controller
                    .log()
                    .lines()
                    .any(|line| line.contains(name) && line.contains(words)),
                Told::Converged => reason == Some("DeploymentProgressing"),
            };
            if is_told {
                Ok(())
            } else {
                Err(format!("{reason:?}"))
            }
        },
    )
    .await;
}

/// How many requests there were about others between the first and the last one about `names`.
fn meanwhile(requests: &[AuditEvent], names: &[String]) -> usize {
    let ours = |request: &AuditEvent| names.iter().any(|name| name == subject(request));
    let first = requests.iter().position(ours).unwrap();
    let last = requests.iter().rposition(ours).unwrap();
    requests[first..=last]
        .iter()
        .filter(|request| !ours(request))
        .count()
}

/// What may have been stored before there was a schema, by kind: the spec and the status (null: none), and what the controller
/// makes of it. `name` is for a Deployment of its own.
fn invalid(name: &str) -> Vec<(&'static str, Value, Value, Told)> {
    use Told::{Converged, Reason, Words};
    let none = || Value::Null;
    let named = |replicas: Value| json!({ "deploymentName": name, "replicas": replicas });
    let good = || named(json!(1));
    let is = |name: &str| json!({ "deploymentName": name });
    let invalid = Reason("InvalidSpec");
    vec![
        ("no spec", none(), none(), Words("expected struct FooSpec")),
        (
            "a spec that is text",
            json!("nginx"),
            none(),
            Words("expected struct FooSpec"),
        ),
        ("an empty spec", json!({}), none(), invalid),
        ("replicas in words", named(json!("two")), none(), invalid),
        (
            "replicas of 64 bits",
            named(json!(2_147_483_648_u64)),
            none(),
            invalid,
        ),
        ("replicas below zero", named(json!(-1)), none(), invalid),
        ("too many replicas", named(json!(11)), none(), invalid),
        ("an empty name", is(""), none(), invalid),
        (
            "a name that is a number",
            json!({ "deploymentName": 7 }),
            none(),
            Words("expected a string"),
        ),
        (
            "a name of 64 characters",
            is(&format!("{name:n<64}")),
            none(),
            invalid,
        ),
        (
            "a name of 300 characters",
            is(&format!("{name:n<300}")),
            none(),
            invalid,
        ),
        ("a name with a slash", is("a/b"), none(), invalid),
        ("a status that is text", good(), json!("fine"), Converged),
        (
            "a status of other types",
            good(),
            json!({ "availableReplicas": "many", "conditions": { "Ready": true }, "more": [1] }),
            Converged,
        ),
        (
            "conditions of another shape",
            good(),
            json!({ "conditions": [{ "type": "Ready" }, 7] }),
            Converged,
        ),
    ]
}

/// How a user learns of it.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// By a condition `Ready=False` with this reason.
    Reason(&'static str),
    /// By these words in the log: the API server takes no status for it.
    Words(&'static str),
    /// Not at all: it has its Deployment.
    Converged,
}

/// The reason of the condition Ready.
fn reason(object: &DynamicObject) -> Option<&str> {
    let mut conditions = object.data["status"]["conditions"].as_array()?.iter();
    conditions.find(|c| c["type"] == "Ready")?["reason"].as_str()
}

fn object(name: &str, spec: &Value, status: &Value) -> DynamicObject {
    let resource = ApiResource::erase::<Foo>(&());
    let mut object = DynamicObject::new(name, &resource);
    object.data = json!({});
    for (key, value) in [("spec", spec), ("status", status)] {
        if !value.is_null() {
            object.data[key] = value.clone();
        }
    }
    object
}

/// The CRD as it may have been once: without a schema, and without the status subresource, so that a status can be stored.
async fn install_permissive_crd(cluster: &Cluster) {
    let mut crd = serde_json::to_value(foo_controller::api::crd()).unwrap();
    let version = &mut crd["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    version.as_object_mut().unwrap().remove("subresources");
    let crd = crd.to_string();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], &crd)
        .await
        .success();
    cluster
        .kubectl_stdin(
            &[
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                "-f",
                "-",
            ],
            &crd,
        )
        .await
        .success();
}

/// A Foo with all the metadata that the API server takes is a Foo like any other.
#[tokio::test]
async fn as_much_metadata_as_the_server_takes() {
    let (cluster, client, namespace, _controller) = setup("large", &[]).await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let mut large = foo("large");
    large
        .annotations_mut()
        .insert("too-much".into(), "x".repeat(900 * 1024));
    let refused = foos
        .create(&PostParams::default(), &large)
        .await
        .unwrap_err();
    println!("900 KiB of annotations: {refused}");
    assert!(
        refused
            .to_string()
            .contains("must have at most 262144 bytes")
            || refused.to_string().contains("Too long"),
        "{refused}"
    );

    let mut large = foo("large");
    large
        .annotations_mut()
        .insert("much".into(), "x".repeat(250 * 1024));
    let prefix = [
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(61),
    ]
    .join(".");
    large
        .labels_mut()
        .extend((0..1600).map(|n| (format!("{prefix}/{n:063}"), "v".repeat(63))));
    let stored = foos.create(&PostParams::default(), &large).await.unwrap();
    println!(
        "{} KiB are stored",
        serde_json::to_vec(&stored).unwrap().len() / 1024
    );
    converged(&client, &namespace, &["large".to_owned()]).await;
    owned(&client, &namespace, "large", "large").await;
    let requests = requests(cluster, &namespace);
    println!("{:#?}", counts(&requests));
}

/// A Deployment that the API server refuses, here by quota: the user reads the server's words, the tries follow the backoff
/// (row Q3), the Foos elsewhere go on, and the Foo heals by itself when the quota is gone.
#[tokio::test]
async fn a_quota_refuses_the_deployment() {
    let (cluster, client, namespace, _controller) = setup("quota", &[]).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
    let none = json!({ "count/deployments.apps": "0" });
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": none } });
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    // What the quota controller would write.
    let status = json!({ "status": { "hard": none, "used": none } });
    quotas
        .patch_status("none", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();

    create(&client, &namespace, &["refused".to_owned()]).await;
    let message = not_ready(&client, &namespace, "refused", "DeploymentRejected").await;
    assert!(message.contains("exceeded quota: none"), "{message}");
    let tries = || {
        let mut requests = requests(cluster, &namespace);
        requests.retain(|e| e.resource == "deployments");
        requests
    };
    eventually(DEADLINE, "it was tried ten times", async || {
        let count = tries().len();
        if count >= 10 { Ok(()) } else { Err(count) }
    })
    .await;
    let refused = tries();
    assert!(
        refused.iter().all(|e| e.code == 403),
        "{:#?}",
        counts(&refused)
    );
    let refused: Vec<_> = refused.iter().collect();
    println!(
        "{} tries, {} allowed",
        refused.len(),
        tries_allowed(&refused)
    );
    assert!(refused.len() <= tries_allowed(&refused));
    let warnings = events(&client, &namespace, "DeploymentRejected").await;
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(warnings[0].type_.as_deref(), Some("Warning"));
    println!("{:?} {:?}", warnings[0].message, warnings[0].series);

    quotas
        .delete("none", &DeleteParams::default())
        .await
        .unwrap();
    owned(&client, &namespace, "refused", "refused").await;
    converged(&client, &namespace, &["refused".to_owned()]).await;
    println!("{:#?}", counts(&requests(cluster, &namespace)));
}

/// A namespace that goes away (and never gets there: nothing clears it here) costs nobody anything: what cannot be created in
/// it is tried by the backoff, without a word in the log, and a Foo being deleted gets no Deployment (row R8).
#[tokio::test]
async fn a_terminating_namespace() {
    let cluster = audited().await;
    let client = cluster.client().await;
    let going = cluster.namespace("going").await;
    let staying = cluster.namespace("staying").await;
    let controller = Controller::start(cluster, &["--namespace", &going, "--namespace", &staying]);
    let foos: Api<Foo> = Api::namespaced(client.clone(), &going);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &going);
    let mut held = foo("held");
    held.finalizers_mut().push("example.com/hold".into());
    foos.create(&PostParams::default(), &held).await.unwrap();
    create(&client, &going, &["left".to_owned()]).await;
    converged(&client, &going, &["held".to_owned(), "left".to_owned()]).await;

    cluster
        .kubectl(&["delete", "namespace", &going, "--wait=false"])
        .await
        .success();
    foos.delete("held", &DeleteParams::default()).await.unwrap();
    let before = requests(cluster, &going).len();
    for name in ["held", "left"] {
        deployments
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
    let tries = || requests(cluster, &going).split_off(before);
    eventually(DEADLINE, "it was tried eight times", async || {
        let count = tries().len();
        if count >= 8 { Ok(()) } else { Err(count) }
    })
    .await;
    create(&client, &staying, &["unharmed".to_owned()]).await;
    converged(&client, &staying, &["unharmed".to_owned()]).await;
    let tries = tries();
    println!("{:#?}", counts(&tries));
    assert!(
        tries
            .iter()
            .all(|e| e.resource == "deployments" && e.code == 403 && subject(e) == "left"),
        "{tries:#?}"
    );
    let tries: Vec<_> = tries.iter().collect();
    assert!(tries.len() <= tries_allowed(&tries));
    println!(
        "{} lines of warnings: {:?}",
        controller.logged("WARN"),
        controller.log().lines().find(|l| l.contains("WARN"))
    );
}

/// Row R4: a Deployment that is not the Foo's is never written to, and the user is warned once, however often it is tried.
#[tokio::test]
async fn a_foreign_deployment_is_left_alone() {
    let (cluster, client, namespace, controller) = setup("foreign", &[]).await;
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "taken",
            "--image=theirs",
            "-n",
            &namespace,
        ])
        .await
        .success();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let before = deployments.get("taken").await.unwrap();
    create(&client, &namespace, &["taken".to_owned()]).await;
    let message = not_ready(&client, &namespace, "taken", "ErrResourceExists").await;
    assert_eq!(
        message,
        r#"Resource "taken" already exists and is not managed by Foo"#
    );
    controller.wait_for_log("attempt=8").await;
    let warnings = events(&client, &namespace, "ErrResourceExists").await;
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].series.is_none(), "{warnings:#?}");
    assert_eq!(warnings[0].message, Some(message));
    assert_eq!(deployments.get("taken").await.unwrap(), before);
    let counts = counts(&requests(cluster, &namespace));
    println!("{counts:#?}");
    assert!(
        !counts.keys().any(|what| what.contains("deployments 20")),
        "{counts:#?}"
    );
}

/// Row R4: once the foreign Deployment is gone, the Foo gets its own, without a retry or a resync.
#[tokio::test]
async fn a_foreign_deployment_makes_way() {
    let (cluster, client, namespace, _controller) = setup("way", NO_RETRY).await;
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "taken",
            "--image=theirs",
            "-n",
            &namespace,
        ])
        .await
        .success();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    create(&client, &namespace, &["taken".to_owned()]).await;
    not_ready(&client, &namespace, "taken", "ErrResourceExists").await;
    deployments
        .delete("taken", &DeleteParams::default())
        .await
        .unwrap();
    owned(&client, &namespace, "taken", "taken").await;
    converged(&client, &namespace, &["taken".to_owned()]).await;
}

/// Row R4 between Foos: one gets the Deployment, the other is told, and takes over when both Foo and Deployment are gone.
#[tokio::test]
async fn two_foos_want_one_deployment() {
    let (cluster, client, namespace, _controller) = setup("two", &[]).await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    for name in ["first", "second"] {
        let mut foo = foo(name);
        foo.spec.deployment_name = "wanted".into();
        foos.create(&PostParams::default(), &foo).await.unwrap();
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let owner = eventually(DEADLINE, "one has it", async || {
        let found = deployments.get("wanted").await.map_err(|e| e.to_string())?;
        Ok::<_, String>(found.owner_references()[0].name.clone())
    })
    .await;
    let other = if owner == "first" { "second" } else { "first" };
    not_ready(&client, &namespace, other, "ErrResourceExists").await;
    converged(&client, &namespace, std::slice::from_ref(&owner)).await;
    foos.delete(&owner, &DeleteParams::default()).await.unwrap();
    deployments
        .delete("wanted", &DeleteParams::default())
        .await
        .unwrap();
    owned(&client, &namespace, "wanted", other).await;
    converged(&client, &namespace, &[other.to_owned()]).await;
    let requests = requests(cluster, &namespace);
    println!("{:#?}", counts(&requests));
    let writes = requests
        .iter()
        .filter(|e| e.resource == "deployments" && e.code < 300);
    assert_eq!(
        writes.map(|e| &*e.verb).collect::<Vec<_>>(),
        ["create", "create"]
    );
}

/// An owned Deployment whose ownerReference is edited away is foreign (row R4): left alone and told; given back, it is the
/// Foo's again. Its selector nobody can edit.
#[tokio::test]
async fn an_owned_deployment_is_edited() {
    let (cluster, client, namespace, _controller) = setup("edit", NO_RETRY).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    create(&client, &namespace, &["mine".to_owned()]).await;
    converged(&client, &namespace, &["mine".to_owned()]).await;
    let edit = async |patch: Value| {
        let patch = Patch::Merge(patch);
        deployments
            .patch("mine", &PatchParams::default(), &patch)
            .await
    };
    let selector = json!({ "spec": { "selector": { "matchLabels": { "app": "other" } } } });
    let refused = edit(selector).await.unwrap_err();
    assert!(refused.to_string().contains("immutable"), "{refused}");

    let owners = deployments
        .get("mine")
        .await
        .unwrap()
        .metadata
        .owner_references;
    edit(json!({ "metadata": { "ownerReferences": [] }, "spec": { "replicas": 5 } }))
        .await
        .unwrap();
    not_ready(&client, &namespace, "mine", "ErrResourceExists").await;
    let writes = requests(cluster, &namespace)
        .into_iter()
        .filter(|e| e.resource == "deployments");
    assert_eq!(writes.count(), 1, "its creation");

    edit(json!({ "metadata": { "ownerReferences": owners } }))
        .await
        .unwrap();
    converged(&client, &namespace, &["mine".to_owned()]).await;
    assert_eq!(
        deployments
            .get("mine")
            .await
            .unwrap()
            .spec
            .unwrap()
            .replicas,
        Some(1)
    );
}

/// What happens without these happens because of a change.
const NO_RETRY: &[&str] = &[
    "--backoff-initial",
    "1h",
    "--backoff-max",
    "1h",
    "--resync",
    "1h",
];

async fn setup(prefix: &str, args: &[&str]) -> (&'static Cluster, Client, String, Controller) {
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace(prefix).await;
    let args = [&["--namespace", &namespace], args].concat();
    let controller = Controller::start(cluster, &args);
    (cluster, client, namespace, controller)
}
