//! Pauses and requests of users. Runs the real controller on a real API server.

use std::time::Duration;

use foo_controller::api::{Foo, FooStatus};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{Api, Client, api::DeleteParams};
use operator_testkit::cluster::{Cluster, eventually};
use tokio::time::sleep;

use super::mended::{NO_RETRY, refuse};
use crate::support::{
    controller::Controller,
    foos::{DEADLINE, audited, converged, create, events, not_ready, requests, with_pods},
};

const PAUSED: &str = "samplecontroller.k8s.io/paused";
const REQUESTED_AT: &str = "samplecontroller.k8s.io/reconcile-requested-at";

async fn annotate(cluster: &Cluster, namespace: &str, annotation: &str) {
    let set = ["annotate", "--overwrite", "foo", "web", annotation];
    let args = [&["-n", namespace][..], &set].concat();
    cluster.kubectl(&args).await.success();
}

async fn pause(cluster: &Cluster, namespace: &str) {
    annotate(cluster, namespace, &format!("{PAUSED}=true")).await;
    let wait = ["wait", "foo/web", "--for=condition=Paused", "--timeout=60s"];
    let args = [&["-n", namespace][..], &wait].concat();
    cluster.kubectl(&args).await.success();
}

async fn status(client: &Client, namespace: &str) -> FooStatus {
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    foos.get("web").await.unwrap().status.unwrap_or_default()
}

/// The controller does not correct the Deployment of a paused Foo. The end of the pause does.
#[tokio::test]
async fn a_paused_foo_is_not_reconciled() {
    let cluster = audited().await;
    let (client, namespace) = (cluster.client().await, cluster.namespace("paused").await);
    let _controller = Controller::start(cluster, &["--namespace", &namespace]);
    create(&client, &namespace, &["web".to_owned()]).await;
    converged(&client, &namespace, &["web".to_owned()]).await;
    pause(cluster, &namespace).await;
    let writes = || {
        let mut all = requests(cluster, &namespace);
        all.retain(|event| event.resource != "events");
        all.len()
    };
    let before = writes();
    let scale = ["scale", "deployment/web", "--replicas=3", "-n", &namespace];
    cluster.kubectl(&scale).await.success();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(writes(), before);
    // A new spec is not reconciled either. The condition gets its generation: `kubectl wait` waits for that.
    let scale = ["scale", "foo/web", "--replicas=2", "-n", &namespace];
    cluster.kubectl(&scale).await.success();
    pause(cluster, &namespace).await;
    let paused = status(&client, &namespace).await;
    assert_eq!(paused.observed_generation, Some(1));
    assert_eq!(writes(), before + 1);
    assert_eq!(events(&client, &namespace, "Paused").await.len(), 1);

    annotate(cluster, &namespace, &format!("{PAUSED}-")).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    eventually(DEADLINE, "the Foo is reconciled", async || {
        let replicas = deployments.get("web").await.unwrap().spec.unwrap().replicas;
        let conditions = status(&client, &namespace).await.conditions;
        let is_paused = conditions.iter().any(|it| it.type_ == "Paused");
        match (replicas, is_paused) {
            (Some(2), false) => Ok(()),
            found => Err(found),
        }
    })
    .await;
}

/// A pause must not keep a namespace.
#[tokio::test]
async fn a_namespace_with_a_paused_foo_terminates() {
    let cluster = with_pods().await;
    let (client, namespace) = (cluster.client().await, cluster.namespace("leaving").await);
    let _controller = Controller::start(cluster, &["--namespace", &namespace]);
    create(&client, &namespace, &["web".to_owned()]).await;
    converged(&client, &namespace, &["web".to_owned()]).await;
    pause(cluster, &namespace).await;
    let namespaces: Api<Namespace> = Api::all(client);
    let params = DeleteParams::default();
    namespaces.delete(&namespace, &params).await.unwrap();
    eventually(DEADLINE, "the namespace is gone", async || {
        let left = namespaces.get_opt(&namespace).await.unwrap();
        left.map_or(Ok(()), |left| Err(left.status))
    })
    .await;
}

/// Each request gets an attempt in spite of the backoff, more often than other annotations do. The status acknowledges the request,
/// although the attempt fails.
#[tokio::test]
async fn a_request_is_handled_during_the_backoff() {
    let cluster = audited().await;
    let (client, namespace) = (cluster.client().await, cluster.namespace("asked").await);
    refuse(&client, &namespace).await;
    let args = [&["--namespace", &*namespace][..], &NO_RETRY].concat();
    let _controller = Controller::start(cluster, &args);
    create(&client, &namespace, &["web".to_owned()]).await;
    not_ready(&client, &namespace, "web", "DeploymentRejected").await;
    let attempts = || {
        let mut all = requests(cluster, &namespace);
        all.retain(|event| event.resource == "deployments");
        all.len()
    };
    let before = attempts();
    for number in 1..=12 {
        let token = format!("t{number}");
        annotate(cluster, &namespace, &format!("{REQUESTED_AT}={token}")).await;
        eventually(DEADLINE, "the request is acknowledged", async || {
            let handled = status(&client, &namespace).await.last_handled_reconcile_at;
            if handled.as_ref() == Some(&token) {
                Ok(())
            } else {
                Err(handled)
            }
        })
        .await;
        assert!(attempts() >= before + number, "{number}");
    }
}
