//! Hostile or invalid objects of users and other controllers, and their cost for the other Foos. The controller and the API
//! server are real. The tests check the audit log. No Deployment gets pods here, and no garbage collector runs.

use std::time::{Duration, Instant};

use foo_controller::{
    api::{self, Foo},
    foo::cached::GENERATION_ANNOTATION,
};
use futures::StreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ResourceQuota};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Request},
};
use operator_testkit::cluster::{AuditEvent, Cluster, MUTATING_POLICIES, Options, eventually};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    foo::mended::{install, reference_crd},
    support::{
        controller::Controller,
        foos::{
            DEADLINE, audited, converged, counts, create, events, foo, names, not_ready, owned,
            requests, subject, tries_allowed,
        },
    },
};

/// 300 Foos that the schema rejects, stored before the schema was installed, between 300 valid ones. Each reports its error and
/// is retried with backoff. The valid ones converge as fast as without them.
#[tokio::test]
async fn r7_invalid_foos_from_before_the_schema_delay_no_other() {
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
    let deep = cluster.namespace("deep").await;
    let nested = store_nested(&client, &deep).await;
    let beside = object(
        "beside",
        &json!({ "deploymentName": "beside" }),
        &Value::Null,
    );
    store(&client, vec![(&*deep, beside)]).await;
    install_schema(&cluster, &client, &alone).await;

    let later = names("later", GOOD);
    let mut took = Vec::new();
    let mut controllers = Vec::new();
    for namespace in [&alone, &mixed] {
        let begun = Instant::now();
        // At debug level every invalid Foo has its own log line.
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
    // Counted instead of timed, because other tests run at the same time.
    let among = (meanwhile(&requests, &good), meanwhile(&requests, &later));
    println!(
        "{GOOD} good Foos at the start, {GOOD} more later: alone {:?}, between invalid ones {:?}",
        took[0], took[1]
    );
    println!(
        "requests for others before the last of {} for them: {among:?}",
        2 * GOOD
    );
    // At the start every Foo is new. Later the invalid Foos cost only their retries.
    assert!(among.0 <= 6 * GOOD && among.1 <= 2 * GOOD, "{among:?}");
    assert_nested_stop_nobody(&cluster, &client, &deep, &nested).await;
    let [_, controller] = &controllers[..] else {
        panic!("two controllers")
    };
    let kinds = bad.iter().zip(&kinds);
    for (name, (kind, _, _, reported)) in kinds.clone() {
        assert_reported(&client, &mixed, name, *reported, controller, kind).await;
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

/// Stores Foos with a field that is nested too deeply for a recursive parser. Returns their names, and the expected log message
/// of each.
async fn store_nested(client: &Client, namespace: &str) -> Vec<(String, Option<&'static str>)> {
    const DEEP: usize = 1000;
    let lists = || format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP));
    let maps = || format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP));
    let expected = "expected a string";
    let mut stored = Vec::new();
    for (number, (spec, status, words)) in [
        (
            format!(r#"{{"deploymentName":{}}}"#, lists()),
            None,
            Some(expected),
        ),
        (
            format!(r#"{{"deploymentName":{}}}"#, maps()),
            None,
            Some(expected),
        ),
        (lists(), None, Some("expected")),
        (
            format!(r#"{{"deploymentName":"nested-3","more":{}}}"#, lists()),
            None,
            None,
        ),
        (
            r#"{"deploymentName":"nested-4"}"#.to_owned(),
            Some(maps()),
            None,
        ),
        (
            r#"{"deploymentName":"nested-5"}"#.to_owned(),
            Some(format!(r#"{{"conditions":{}}}"#, lists())),
            None,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("nested-{number}");
        let status = status.map(|status| format!(r#","status":{status}"#));
        let foo = format!(
            r#"{{"apiVersion":"{}/{}","kind":"Foo","metadata":{{"name":"{name}"}},"spec":{spec}{}}}"#,
            api::GROUP,
            api::VERSION,
            status.unwrap_or_default()
        );
        let request = Request::new(Foo::url_path(&(), Some(namespace)));
        let request = request.create(&PostParams::default(), foo.into_bytes());
        client.request_text(request.unwrap()).await.unwrap();
        stored.push((name, words));
    }
    stored
}

/// A Foo that is nested too deeply affects neither other Foos nor its namespace. It is skipped, and the log reports it alone.
async fn assert_nested_stop_nobody(
    cluster: &Cluster,
    client: &Client,
    namespace: &str,
    nested: &[(String, Option<&str>)],
) {
    let controller = Controller::start(cluster, &["--namespace", namespace]);
    owned(client, namespace, "beside", "beside").await;
    for (name, words) in nested {
        match words {
            None => owned(client, namespace, name, name).await,
            Some(words) => {
                eventually(DEADLINE, &format!("{name}: {words}"), async || {
                    let log = controller.log();
                    let mut lines = log.lines();
                    let logged = lines.any(|line| line.contains(name) && line.contains(words));
                    if logged { Ok(()) } else { Err(log) }
                })
                .await;
            }
        }
    }
    assert_eq!(controller.logged("cannot watch"), 0);
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

/// Replaces the CRD, and waits until its schema is enforced.
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

async fn assert_reported(
    client: &Client,
    namespace: &str,
    name: &str,
    reported: Reported,
    controller: &Controller,
    kind: &str,
) {
    let resource = ApiResource::erase::<Foo>(&());
    let stored: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    eventually(
        DEADLINE,
        &format!("{kind} ({name}): {reported:?}"),
        async || {
            let object = stored.get(name).await.map_err(|error| error.to_string())?;
            let reason = reason(&object);
            let is_reported = match reported {
                Reported::Reason(expected) => reason == Some(expected),
                Reported::Words(words) => controller
                    .log()
                    .lines()
                    .any(|line| line.contains(name) && line.contains(words)),
                Reported::Converged => reason == Some("DeploymentProgressing"),
            };
            if is_reported {
                Ok(())
            } else {
                Err(format!("{reason:?}"))
            }
        },
    )
    .await;
}

/// Returns the number of requests about other objects between the first and the last request about `names`.
fn meanwhile(requests: &[AuditEvent], names: &[String]) -> usize {
    let ours = |request: &AuditEvent| names.iter().any(|name| name == subject(request));
    let first = requests.iter().position(ours).unwrap();
    let last = requests.iter().rposition(ours).unwrap();
    requests[first..=last]
        .iter()
        .filter(|request| !ours(request))
        .count()
}

/// Objects that may have been stored before there was a schema: description, spec, status (null: none) and expected result.
/// `name` is a unique name for the Deployment.
fn invalid(name: &str) -> Vec<(&'static str, Value, Value, Reported)> {
    use Reported::{Converged, Reason, Words};
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

/// Visible result of an invalid Foo.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// Condition `Ready=False` with this reason.
    Reason(&'static str),
    /// Log line with this text, because the API server accepts no status for the object.
    Words(&'static str),
    /// No error: the Foo has its Deployment.
    Converged,
}

/// Returns the reason of the condition Ready.
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

/// Installs a CRD without a schema and without the status subresource, so that a status can be stored.
async fn install_permissive_crd(cluster: &Cluster) {
    let mut crd = serde_json::to_value(foo_controller::api::crd()).unwrap();
    let version = &mut crd["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    version.as_object_mut().unwrap().remove("subresources");
    install(cluster, &crd).await;
}

/// The API server prunes a part of the status. The pruned part is not written again, whether or not the Foo has an error. A
/// resync causes no request, event or log line.
#[tokio::test]
async fn i6b_at_rest_on_the_reference_crd_nothing_is_written() {
    const FOOS: usize = 20;
    const RESYNC: Duration = Duration::from_secs(2);
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    install(&cluster, &reference_crd(&json!({ "status": {} }))).await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("reference").await;
    let names = names("foo", FOOS);
    create(&client, &namespace, &names).await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let mut nameless = foo("nameless");
    nameless.spec.deployment_name.clear();
    foos.create(&PostParams::default(), &nameless)
        .await
        .unwrap();
    let resync = format!("{}s", RESYNC.as_secs());
    let args = ["--namespace", &namespace, "--resync", &resync];
    let controller = Controller::start(&cluster, &args);
    eventually(
        DEADLINE,
        "each Foo has its count, and its event",
        async || {
            let statuses = requests(&cluster, &namespace);
            let statuses = statuses.iter().filter(|e| e.subresource == "status");
            let synced = events(&client, &namespace, "Synced").await.len();
            let invalid = events(&client, &namespace, "InvalidSpec").await.len();
            let seen = (statuses.count(), synced, invalid);
            if seen >= (FOOS + 1, FOOS, 1) {
                Ok(())
            } else {
                Err(seen)
            }
        },
    )
    .await;
    let before = requests(&cluster, &namespace).len();
    let log = controller.log();
    sleep(2 * RESYNC + RESYNC / 2).await;
    let after = requests(&cluster, &namespace);
    println!("{FOOS} Foos from the start on: {:#?}", counts(&after));
    assert_eq!(after.len(), before, "{:#?}", counts(&after[before..]));
    assert_eq!(controller.log(), log);

    // Changes are still written.
    let two = json!({ "spec": { "replicas": 2 } });
    foos.patch("foo-000", &PatchParams::default(), &Patch::Merge(&two))
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let available =
        json!({ "status": { "replicas": 2, "readyReplicas": 2, "availableReplicas": 2 } });
    eventually(DEADLINE, "the Deployment follows", async || {
        let found = deployments.get("foo-000").await.unwrap();
        let replicas = found.spec.unwrap().replicas;
        if replicas == Some(2) {
            Ok(())
        } else {
            Err(replicas)
        }
    })
    .await;
    deployments
        .patch_status(
            "foo-000",
            &PatchParams::default(),
            &Patch::Merge(&available),
        )
        .await
        .unwrap();
    eventually(DEADLINE, "and the count follows it", async || {
        let status = foos.get_status("foo-000").await.unwrap().status;
        match status.and_then(|status| status.available_replicas) {
            Some(2) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

/// Returns a policy that replaces the image of every Deployment in the namespace.
fn rewriting_policy(namespace: &str) -> Value {
    let policy = [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicy",
            "metadata": { "name": namespace },
            "spec": {
                "reinvocationPolicy": "Never",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["apps"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["deployments"],
                }] },
                "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression":
                    r#"[JSONPatch{op: "replace", path: "/spec/template/spec/containers/0/image", value: "mirror/nginx"}]"#
                } }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": { "name": namespace },
            "spec": {
                "policyName": namespace,
                "matchResources": { "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": namespace },
                } },
            },
        }),
    ];
    json!({ "apiVersion": "v1", "kind": "List", "items": policy })
}

/// A policy stores another value than the controller writes. The controller writes it once and reports it once. It writes again
/// after the Foo or the Deployment changes.
#[tokio::test]
async fn i6b_at_rest_under_a_mutating_policy_nothing_is_written() {
    const FOOS: usize = 20;
    const RESYNC: Duration = Duration::from_secs(2);
    if !audited().await.has(MUTATING_POLICIES).await {
        return;
    }
    let resync = format!("{}s", RESYNC.as_secs());
    let (cluster, client, namespace, controller) = setup("mutated", &["--resync", &resync]).await;
    let policy = rewriting_policy(&namespace).to_string();
    let apply = cluster.kubectl_stdin(&["apply", "-f", "-"], &policy);
    apply.await.success();
    let args = [
        "create",
        "deployment",
        "dry",
        "--image=i",
        "--dry-run=server",
        "-o",
        "yaml",
        "-n",
    ];
    let is_in_force = async || {
        let dry = cluster.kubectl(&[&args[..], &[&namespace]].concat()).await;
        dry.success().contains("mirror/nginx")
    };
    eventually(DEADLINE, "the policy is in force", async || {
        if is_in_force().await { Ok(()) } else { Err(()) }
    })
    .await;

    let names = names("foo", FOOS);
    create(&client, &namespace, &names).await;
    converged(&client, &namespace, &names).await;
    let events_of = async |reason: &str, count: usize| {
        eventually(DEADLINE, reason, async || {
            let events = events(&client, &namespace, reason).await;
            if events.len() == count {
                Ok(())
            } else {
                Err(events)
            }
        })
        .await;
    };
    events_of("Synced", FOOS).await;
    events_of("DeploymentOverruled", FOOS).await;
    let at_rest = async || {
        let before = requests(cluster, &namespace).len();
        let log = controller.log();
        sleep(2 * RESYNC + RESYNC / 2).await;
        let after = requests(cluster, &namespace);
        assert_eq!(after.len(), before, "{:#?}", counts(&after[before..]));
        assert_eq!(controller.log(), log);
    };
    at_rest().await;
    let all = counts(&requests(cluster, &namespace));
    println!("{FOOS} Foos from the start on: {all:#?}");
    assert_eq!(
        all["patch deployments 200"], FOOS,
        "each was asked for once"
    );

    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let scaled = async |replicas: i32, image: &str| {
        let spec = json!({ "spec": { "replicas": replicas } });
        foos.patch("foo-000", &PatchParams::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
        eventually(DEADLINE, "the Deployment follows", async || {
            let spec = deployments.get("foo-000").await.unwrap().spec.unwrap();
            let pod = spec.template.spec.unwrap();
            let seen = (spec.replicas, pod.containers[0].image.clone());
            if seen == (Some(replicas), Some(image.to_owned())) {
                Ok(())
            } else {
                Err(seen)
            }
        })
        .await;
    };
    scaled(2, "mirror/nginx").await;
    cluster
        .kubectl_stdin(&["delete", "-f", "-"], &policy)
        .await
        .success();
    eventually(DEADLINE, "the policy is gone", async || {
        if is_in_force().await { Err(()) } else { Ok(()) }
    })
    .await;
    scaled(3, "nginx:latest").await;
}

/// A Deployment outlives its Foo, and a user gives it to the next Foo of that name. The new Foo is at its first generation. The
/// Deployment was made from a later generation of the old Foo.
#[tokio::test]
async fn r6a_i7_deployment_adopted_by_a_recreated_foo_is_corrected() {
    let (_, client, namespace, _controller) = setup("adopted", NO_RETRY).await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let name = ["again".to_owned()];
    create(&client, &namespace, &name).await;
    for replicas in 2..5 {
        let spec = json!({ "spec": { "replicas": replicas } });
        foos.patch("again", &PatchParams::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
    }
    converged(&client, &namespace, &name).await;
    foos.delete("again", &DeleteParams::default())
        .await
        .unwrap();
    create(&client, &namespace, &name).await;
    not_ready(&client, &namespace, "again", "DeploymentDeleting").await;
    let uid = foos.get("again").await.unwrap().uid().unwrap();
    let adopted =
        json!([{ "op": "replace", "path": "/metadata/ownerReferences/0/uid", "value": uid }]);
    let adopted = Patch::Json::<()>(serde_json::from_value(adopted).unwrap());
    deployments
        .patch("again", &PatchParams::default(), &adopted)
        .await
        .unwrap();
    eventually(DEADLINE, "the Foo's replicas are its own", async || {
        let replicas = deployments
            .get("again")
            .await
            .unwrap()
            .spec
            .unwrap()
            .replicas;
        if replicas == Some(1) {
            Ok(())
        } else {
            Err(replicas)
        }
    })
    .await;
    converged(&client, &namespace, &name).await;
}

/// A Foo with as much metadata as the API server accepts is reconciled like any other.
#[tokio::test]
async fn a_foo_with_the_most_metadata_is_reconciled() {
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

/// The API server rejects a Deployment because of a quota. The status contains its message, and retries follow the backoff. When
/// the quota is removed, the Foo converges without further action.
#[tokio::test]
async fn a_deployment_rejected_by_a_quota_is_retried() {
    let (cluster, client, namespace, _controller) = setup("quota", &[]).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
    let none = json!({ "count/deployments.apps": "0" });
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": none } });
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    // Normally written by the quota controller.
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

/// A terminating namespace, which is never deleted because no namespace controller runs here. A create that fails in it is
/// retried with backoff, without a warning, and a terminating Foo gets no Deployment.
#[tokio::test]
async fn r8_terminating_namespace_gets_no_deployment() {
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
    let warned = || controller.logged(" WARN ") + controller.logged(" ERROR ");
    let warned_before = warned();
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
    assert_eq!(warned(), warned_before, "{}", controller.log());
}

/// A Deployment that the Foo does not control is never written. The user gets one warning, no matter how often the reconcile is
/// retried.
#[tokio::test]
async fn r4a_foreign_deployment_is_left_alone() {
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

/// Once the Deployment of another owner is deleted, the Foo gets its own, without a retry or a resync.
#[tokio::test]
async fn r4b_foo_gets_its_deployment_when_the_foreign_one_is_deleted() {
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

/// Two Foos specify the same Deployment. The first gets it, and the second reports the conflict. The second takes over when both
/// the first Foo and the Deployment are deleted.
#[tokio::test]
async fn r4b_second_foo_gets_the_deployment_when_the_first_is_deleted() {
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
    // When a later Foo has its Deployment, the controller has seen the deletion. Otherwise it may create the Deployment once more
    // for the deleted Foo.
    create(&client, &namespace, &["later".to_owned()]).await;
    converged(&client, &namespace, &["later".to_owned()]).await;
    deployments
        .delete("wanted", &DeleteParams::default())
        .await
        .unwrap();
    owned(&client, &namespace, "wanted", other).await;
    converged(&client, &namespace, &[other.to_owned()]).await;
    let requests = requests(cluster, &namespace);
    println!("{:#?}", counts(&requests));
    let writes = requests.iter().filter(|e| {
        let is_wanted = e.name == "wanted" || e.request_object["metadata"]["name"] == "wanted";
        e.resource == "deployments" && is_wanted && e.code < 300
    });
    assert_eq!(
        writes.map(|e| &*e.verb).collect::<Vec<_>>(),
        ["create", "create"]
    );
}

/// An owned Deployment whose ownerReference is removed is reported, and no longer written. Once the reference is restored, it is
/// the Foo's again. Its selector is immutable.
#[tokio::test]
async fn r4a_deployment_without_its_owner_reference_is_left_alone() {
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

/// A generation annotation that the Foo never had is reverted like any other edit. Replicas edited in the same patch are reverted
/// too, and later changes of the Foo take effect.
#[tokio::test]
async fn r6a_i7_unknown_generation_is_reverted() {
    let (_cluster, client, namespace, _controller) = setup("generation", NO_RETRY).await;
    let names = names("foo", 3);
    create(&client, &namespace, &names).await;
    converged(&client, &namespace, &names).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams::default();
    let metadata = json!({ "annotations": { GENERATION_ANNOTATION: "99" } });
    let edits = [
        json!({ "metadata": metadata }),
        json!({ "metadata": metadata, "spec": { "replicas": 7 } }),
        json!({ "metadata": metadata, "spec": { "paused": true } }),
    ];
    for (name, edit) in names.iter().zip(&edits) {
        let edit = Patch::Merge(edit);
        deployments.patch(name, &params, &edit).await.unwrap();
    }
    let are = async |generation: &str, replicas: i32| {
        for name in &names {
            eventually(DEADLINE, &format!("{name} is put right"), async || {
                let found = deployments.get(name).await.map_err(|e| e.to_string())?;
                let made_from = found.annotations().get(GENERATION_ANNOTATION);
                let spec = found.spec.clone().unwrap();
                if made_from.is_some_and(|it| it == generation) && spec.replicas == Some(replicas) {
                    Ok(())
                } else {
                    Err(format!("{:?} {:?}", found.annotations(), spec.replicas))
                }
            })
            .await;
        }
    };
    are("1", 1).await;
    let two = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
    for name in &names {
        foos.patch(name, &params, &two).await.unwrap();
    }
    are("2", 2).await;
}

/// Another operator reverts the image at once. The controller limits its corrections and reports the dispute. The user's next
/// change takes effect.
#[tokio::test]
async fn r6b_corrections_against_another_operator_are_delayed() {
    const AT_ONCE: usize = 10;
    let (cluster, client, namespace, controller) = setup("fight", &[]).await;
    let names = names("foo", 1);
    create(&client, &namespace, &names).await;
    converged(&client, &namespace, &names).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let theirs = json!({ "spec": { "template": { "spec": { "containers": [
        { "name": "nginx", "image": "theirs" },
    ] } } } });
    let operator = async {
        loop {
            let params = PatchParams::default();
            // No change if the image is already theirs.
            let _ = deployments
                .patch("foo-000", &params, &Patch::Strategic(&theirs))
                .await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let patches = || {
        let all = requests(cluster, &namespace).into_iter();
        all.filter(|e| e.verb == "patch" && e.resource == "deployments")
            .count()
    };
    let user = async {
        let message = not_ready(&client, &namespace, "foo-000", "DeploymentContested").await;
        assert!(
            message.contains("foo-000") && message.contains("spec.template.spec.containers"),
            "{message}"
        );
        let begun = Instant::now();
        controller.wait_for_log("keeps reverting Deployment").await;
        sleep(Duration::from_secs(4)).await;
        // At most one per second after the first ten.
        let most = AT_ONCE + 1 + usize::try_from(begun.elapsed().as_secs()).unwrap();
        let patches = patches();
        assert!((AT_ONCE..=most).contains(&patches), "{patches} of {most}");
        let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
        let two = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
        foos.patch("foo-000", &PatchParams::default(), &two)
            .await
            .unwrap();
        eventually(
            DEADLINE,
            "the Deployment follows",
            async || match deployments
                .get("foo-000")
                .await
                .unwrap()
                .spec
                .unwrap()
                .replicas
            {
                Some(2) => Ok(()),
                other => Err(other),
            },
        )
        .await;
    };
    tokio::select! {
        () = operator => {}
        () = user => {}
    }
    eventually(DEADLINE, "the event is written", async || {
        let warnings = events(&client, &namespace, "DeploymentContested").await;
        if warnings.is_empty() { Err(()) } else { Ok(()) }
    })
    .await;
}

/// Delays longer than the tests. With them, each reaction was caused by a change.
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
