//! Tests of the control plane for other tests: it serves requests, keeps its data over a restart, and never outlives its test.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use operator_testkit::cluster::{self, Cluster, Options, Ready, Supervisor, eventually, shared};

const DEADLINE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_cluster_serves_kubectl_and_clients() {
    let namespace = shared().namespace("harness").await;
    let manifest = format!(
        r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "it", "namespace": "{namespace}"}}}}"#
    );
    shared()
        .kubectl_stdin(&["apply", "-f", "-"], &manifest)
        .await
        .success();
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(
        shared().client().await,
        &namespace,
    );
    assert_eq!(maps.get("it").await.unwrap().metadata.name.unwrap(), "it");
    let missing = shared()
        .kubectl(&["get", "configmap", "other", "-n", &namespace])
        .await;
    assert!(!missing.status.success());
    assert!(missing.stderr.contains("not found"), "{missing:?}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a thing: not within 5s; last seen: Some(\"nothing\")")]
async fn eventually_panics_at_its_deadline_with_the_last_state() {
    eventually(Duration::from_secs(5), "a thing", async || {
        Err::<(), _>("nothing")
    })
    .await;
}

#[tokio::test]
async fn the_api_server_audits_and_keeps_its_data_through_a_crash() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    cluster
        .kubectl(&["create", "deployment", "before", "--image=i"])
        .await
        .success();
    cluster.kill_apiserver().await;
    assert!(
        !cluster
            .kubectl(&["get", "deployment", "before", "--request-timeout=1s"])
            .await
            .status
            .success()
    );
    cluster.start_apiserver().await;
    cluster
        .kubectl(&["get", "deployment", "before"])
        .await
        .success();

    let replica = cluster.kubeconfig_of("replica-2");
    let scale = [
        "--kubeconfig",
        replica.to_str().unwrap(),
        "patch",
        "deployment",
        "before",
        "-p",
    ];
    cluster
        .kubectl(&[&scale[..], &[r#"{"spec":{"replicas":3}}"#]].concat())
        .await
        .success();
    let events = cluster.audit();
    let writes: Vec<_> = events
        .iter()
        .filter(|event| event.resource == "deployments" && event.verb != "get")
        .collect();
    let [create, patch] = writes[..] else {
        panic!("{writes:#?}")
    };
    assert_eq!(
        (&*create.verb, &*create.user, create.code),
        ("create", "admin", 201)
    );
    assert_eq!(
        (&*patch.verb, &*patch.user, &*patch.name),
        ("patch", "replica-2", "before")
    );
    assert!(patch.user_agent.starts_with("kubectl/"), "{patch:?}");
    assert_eq!(patch.request_object["spec"]["replicas"], 3);
    assert_ne!(
        patch.response_object["metadata"]["resourceVersion"],
        create.response_object["metadata"]["resourceVersion"]
    );
    assert!(create.reached < patch.received);
}

#[tokio::test]
async fn a_frozen_api_server_responds_after_the_thaw() {
    let cluster = Cluster::start(Options::default());
    cluster.freeze_apiserver().await;
    assert!(
        !cluster
            .kubectl(&["get", "namespaces", "--request-timeout=1s"])
            .await
            .status
            .success()
    );
    cluster.thaw_apiserver().await;
    cluster.kubectl(&["get", "namespaces"]).await.success();
}

#[tokio::test]
async fn pods_of_a_deployment_become_ready() {
    let cluster = Cluster::start(Options {
        audit: false,
        controllers: true,
    });
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "web",
            "--image=nginx",
            "--replicas=2",
        ])
        .await
        .success();
    cluster
        .kubectl(&[
            "wait",
            "deployment/web",
            "--for=condition=Available",
            "--timeout=30s",
        ])
        .await
        .success();
}

#[tokio::test]
async fn nothing_is_left_when_the_cluster_is_dropped() {
    let cluster = Cluster::start(Options::default());
    let ready = cluster.ready().clone();
    drop(cluster);
    assert_gone(&ready).await;
}

#[tokio::test]
async fn nothing_is_left_when_the_test_is_killed() {
    let (_, module) = module_path!().split_once("::").unwrap();
    let inner = format!("{module}::holds_a_cluster");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", &inner, "--nocapture"]);
    let mut test = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(test.stdout.take().unwrap()).lines();
    let ready = lines
        .map(Result::unwrap)
        .find(|line| line.starts_with('{'))
        .unwrap();
    let ready: Ready = serde_json::from_str(&ready).unwrap();
    assert!(ready.pids.values().all(|pid| alive(*pid)));
    test.kill().unwrap();
    test.wait().unwrap();
    assert_gone(&ready).await;
}

/// The test that [`nothing_is_left_when_the_test_is_killed`] runs and kills. Otherwise it ends at the end of stdin.
#[test]
#[ignore = "another test runs it"]
#[allow(clippy::print_stdout, reason = "that other test reads it")]
fn holds_a_cluster() {
    let cluster = Cluster::start(Options::default());
    println!("{}", serde_json::to_string(cluster.ready()).unwrap());
    std::io::stdin().lines().for_each(drop);
}

#[tokio::test]
async fn nothing_is_left_when_the_supervisor_is_killed() {
    let (mut supervisor, ready) = Supervisor::start(cluster::supervisor());
    supervisor.child.kill().unwrap();
    drop(supervisor);
    eventually(DEADLINE, "no process is left", async || {
        let left: Vec<_> = ready.pids.iter().filter(|(_, pid)| alive(**pid)).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;
    drop(Cluster::start(Options::default()));
    assert!(
        !ready.dir.exists(),
        "the next supervisor removes the folder of a killed one"
    );
}

async fn assert_gone(ready: &Ready) {
    eventually(DEADLINE, "neither process nor folder is left", async || {
        let left: Vec<_> = ready.pids.iter().filter(|(_, pid)| alive(**pid)).collect();
        if left.is_empty() && !ready.dir.exists() {
            Ok(())
        } else {
            Err(format!("{left:?} {}", ready.dir.display()))
        }
    })
    .await;
}

/// Returns whether the process runs. A zombie does not.
fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
