//! Retries after a user or a new CRD has removed the cause of a failure. Runs the real controller on a real API server.

use std::time::Instant;

use foo_controller::api::Foo;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ResourceQuota};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use operator_testkit::cluster::{AuditEvent, Cluster, Options, eventually};
use serde_json::{Value, json};

use crate::support::{
    controller::Controller,
    foos::{DEADLINE, audited, create, events, foo, not_ready, owned, requests, subject},
};

/// Retry delays longer than the test's timeout.
pub const NO_RETRY: [&str; 4] = ["--backoff-initial", "1h", "--backoff-max", "1h"];

/// Makes a quota reject all Deployments of the namespace.
pub async fn refuse(client: &Client, namespace: &str) {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let none = json!({ "count/deployments.apps": "0" });
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": none } });
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    // Normally written by the quota controller.
    let status = json!({ "status": { "hard": none, "used": none } });
    let (params, status) = (PatchParams::default(), Patch::Merge(&status));
    let patched = quotas.patch_status("none", &params, &status).await;
    patched.unwrap();
}

/// Removes the quota, and waits until the API server accepts Deployments.
async fn allow(client: &Client, namespace: &str) {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let params = DeleteParams::default();
    quotas.delete("none", &params).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let labels = json!({ "app": "dry" });
    let dry = json!({
        "metadata": { "name": "dry" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "dry", "image": "dry" }] },
            },
        },
    });
    let dry: Deployment = serde_json::from_value(dry).unwrap();
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(DEADLINE, "Deployments are let in", async || {
        let created = deployments.create(&params, &dry).await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// A new annotation or label on a rejected Foo causes a retry without delay. The controller's own status write does not.
#[tokio::test]
async fn q3c_annotation_retries_a_rejected_foo() {
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("poked").await;
    refuse(&client, &namespace).await;
    let args = [&["--namespace", &*namespace][..], &NO_RETRY].concat();
    let _controller = Controller::start(cluster, &args);
    let names = ["annotated", "labelled", "alone"].map(str::to_owned);
    create(&client, &namespace, &names).await;
    for name in &names {
        not_ready(&client, &namespace, name, "DeploymentRejected").await;
    }
    allow(&client, &namespace).await;
    let tries = || {
        let requests = requests(cluster, &namespace);
        let of_it =
            |event: &&AuditEvent| event.resource == "deployments" && subject(event) == "alone";
        requests.iter().filter(of_it).count()
    };
    let before = tries();
    for (verb, name) in [("annotate", "annotated"), ("label", "labelled")] {
        let begun = Instant::now();
        let set = ["-n", &namespace, verb, "foo", name, "poke=1"];
        cluster.kubectl(&set).await.success();
        owned(&client, &namespace, name, name).await;
        println!("{verb}: {:?}", begun.elapsed());
    }
    assert_eq!(tries(), before, "nobody has asked for this one");
}

/// Without a change, a resync retries the Foo after at most ten intervals.
#[tokio::test]
async fn q3d_rejected_foo_waits_for_at_most_ten_resyncs() {
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("resynced").await;
    refuse(&client, &namespace).await;
    let args = ["--namespace", &*namespace, "--resync", "1s"];
    let args = [&args[..], &NO_RETRY].concat();
    let _controller = Controller::start(cluster, &args);
    create(&client, &namespace, &["refused".to_owned()]).await;
    not_ready(&client, &namespace, "refused", "DeploymentRejected").await;
    let begun = Instant::now();
    allow(&client, &namespace).await;
    owned(&client, &namespace, "refused", "refused").await;
    println!("after {:?}", begun.elapsed());
}

/// The CRD of kubernetes/sample-controller (`crd-status-subresource.yaml`) with the given `subresources`. It prunes our status
/// except `availableReplicas`.
pub fn reference_crd(subresources: &Value) -> Value {
    let spec = json!({ "type": "object", "properties": {
        "deploymentName": { "type": "string" },
        "replicas": { "type": "integer", "minimum": 1, "maximum": 10 },
    } });
    let status = json!({ "type": "object", "properties": {
        "availableReplicas": { "type": "integer" },
    } });
    let schema = json!({ "type": "object", "properties": { "spec": spec, "status": status } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "foos.samplecontroller.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, experimental-only" },
        },
        "spec": {
            "group": "samplecontroller.k8s.io",
            "names": { "kind": "Foo", "plural": "foos" },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema },
                "subresources": subresources,
            }],
        },
    })
}

/// Applies a CRD, and waits until it is established.
pub async fn install(cluster: &Cluster, crd: &Value) {
    let crd = crd.to_string();
    let applied = cluster.kubectl_stdin(&["apply", "-f", "-"], &crd).await;
    applied.success();
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        "-f",
        "-",
    ];
    cluster.kubectl_stdin(&wait, &crd).await.success();
}

/// A status that was pruned, or had no subresource, is written each time the CRD changes. An additional version causes no
/// write.
#[tokio::test]
async fn i6b_pruned_status_is_written_when_the_crd_changes() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    let status = json!({ "status": {} });
    let subresources = json!({});
    install(&cluster, &reference_crd(&status)).await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("pruned").await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let (fine, mut nameless) = (foo("fine"), foo("nameless"));
    nameless.spec.deployment_name.clear();
    for foo in [&fine, &nameless] {
        foos.create(&PostParams::default(), foo).await.unwrap();
    }
    // The narrow CRD was installed before the program started. Neither retries nor resyncs can write the status in time.
    let args = [
        &["--namespace", &*namespace, "--resync", "1h"][..],
        &NO_RETRY,
    ]
    .concat();
    let controller = Controller::start(&cluster, &args);
    let statuses = || {
        let mut requests = requests(&cluster, &namespace);
        requests.retain(|event| event.subresource == "status" && event.verb != "get");
        requests.len()
    };
    let reported = async || {
        let all = foos.list(&ListParams::default()).await.unwrap();
        let status = |foo: &Foo| foo.status.clone().unwrap_or_default();
        let of_now = |foo: &&Foo| status(foo).observed_generation == foo.metadata.generation;
        all.items.iter().filter(of_now).count()
    };
    eventually(
        DEADLINE,
        "each status was written, and pruned",
        async || {
            let synced = events(&client, &namespace, "Synced").await.len();
            let seen = (statuses(), synced);
            if seen >= (2, 1) { Ok(()) } else { Err(seen) }
        },
    )
    .await;
    assert_eq!(reported().await, 0);
    let widened = async |number: usize| {
        let begun = Instant::now();
        cluster.install_crd().await;
        let wait = [
            "-n",
            &*namespace,
            "wait",
            "--for=condition=Ready=False",
            "foo",
            "--all",
        ];
        let wait = [&wait[..], &["--timeout=60s"]].concat();
        cluster.kubectl(&wait).await.success();
        assert_eq!(reported().await, 2);
        println!("widened for the {number}th time: {:?}", begun.elapsed());
    };
    widened(1).await;
    for number in 2..4 {
        // The second time without the subresource.
        let narrow = reference_crd(if number == 2 { &status } else { &subresources });
        let before = statuses();
        install(&cluster, &narrow).await;
        eventually(DEADLINE, "a status is written in vain", async || {
            let (now, reported) = (statuses(), reported().await);
            if now > before && reported == 0 || number == 3 && now >= before + 2 {
                Ok(())
            } else {
                Err((now, reported))
            }
        })
        .await;
        widened(number).await;
    }
    // An additional version is no reason for a write.
    let mut versions = serde_json::to_value(foo_controller::api::crd()).unwrap();
    let mut more = versions["spec"]["versions"][0].clone();
    (more["name"], more["storage"]) = ("v1beta1".into(), false.into());
    versions["spec"]["versions"]
        .as_array_mut()
        .unwrap()
        .push(more);
    let before = statuses();
    install(&cluster, &versions).await;
    create(&client, &namespace, &["after".to_owned()]).await;
    owned(&client, &namespace, "after", "after").await;
    not_ready(&client, &namespace, "after", "DeploymentProgressing").await;
    assert_eq!(statuses(), before + 1, "{}", controller.log());
    assert_eq!(reported().await, 3);
}
