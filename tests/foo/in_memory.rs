//! The control plane in memory, over HTTPS: kubectl and the controller, which are the real programs.

mod go_clients;

use std::{fs, process::Stdio, time::Duration};

use operator_testkit::{
    ADMIN, ControlPlane, Served,
    cluster::{Cluster, bound_command},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::support::foos::with_pods;

const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd.yaml");
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples/foo.yaml");

/// Time limit of a command.
const LIMIT: Duration = Duration::from_mins(2);

/// A served control plane, and the folder of its kubeconfig.
struct Memory {
    plane: ControlPlane,
    folder: TempDir,
    _served: Served,
}

impl Memory {
    async fn start() -> Self {
        let crd = fs::read_to_string(CRD).unwrap();
        Self::with(&serde_saphyr::from_str(&crd).unwrap()).await
    }

    async fn with(crd: &Value) -> Self {
        let plane = ControlPlane::new();
        plane.run_pods();
        plane.install(crd).unwrap();
        let served = plane.serve().await.unwrap();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("kubeconfig"), served.kubeconfig(ADMIN)).unwrap();
        Self {
            plane,
            folder,
            _served: served,
        }
    }

    /// Runs kubectl, and returns its output and its errors.
    async fn kubectl(&self, args: &str) -> (bool, String) {
        let bin = &with_pods().await.ready().bin;
        let mut command = Command::from(bound_command(bin.join("kubectl")));
        let output = command
            .arg("--kubeconfig")
            .arg(self.folder.path().join("kubeconfig"))
            .args(args.split_whitespace())
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(LIMIT, output).await.unwrap().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text.into_owned())
    }

    async fn done(&self, args: &str) -> String {
        let (is_done, text) = self.kubectl(args).await;
        assert!(is_done, "kubectl {args}: {text}");
        text
    }
}

/// Returns both control planes, and a namespace that both have.
async fn both(name: &str) -> (Memory, &'static Cluster, String) {
    let (memory, real) = (Memory::start().await, with_pods().await);
    let namespace = real.namespace(name).await;
    memory.plane.create_namespace(&namespace).unwrap();
    (memory, real, namespace)
}

/// kubectl prints the same columns for each kind, and the same documentation of a field, as with the real API server.
#[tokio::test]
async fn kubectl_prints_the_same() {
    let (memory, real, namespace) = both("columns").await;
    for create in [
        format!("apply -f {SAMPLE}"),
        format!("apply -f {}", deployment(&memory)),
        format!("create -f {}", event(&memory, &namespace)),
    ] {
        let create = format!("{create} --namespace {namespace}");
        memory.done(&create).await;
        let theirs: Vec<_> = create.split_whitespace().collect();
        real.kubectl(&theirs).await.success();
    }
    for kind in [
        "foo",
        "deployment",
        "namespace",
        "events",
        "events.events.k8s.io",
    ] {
        let get = ["get", kind, "-o", "wide", "--namespace", &namespace];
        let theirs = real.kubectl(&get).await.success();
        let ours = memory.done(&get.join(" ")).await;
        let head = |text: &str| -> Vec<String> {
            let line = text.lines().next().unwrap_or_default();
            line.split_whitespace().map(ToOwned::to_owned).collect()
        };
        assert_eq!(head(&ours), head(&theirs), "{kind}");
    }
    for explain in [
        "explain foo.spec.replicas",
        "explain foo.spec.deploymentName",
    ] {
        let theirs: Vec<_> = explain.split_whitespace().collect();
        let theirs = real.kubectl(&theirs).await.success();
        assert_eq!(memory.done(explain).await, theirs, "{explain}");
    }
}

/// kubectl create sends protobuf. Objects are stored alike, with and without zero values.
#[tokio::test]
async fn kubectl_creates_the_same() {
    let (memory, real, namespace) = both("created").await;
    for create in [
        "deployment web --image nginx --replicas 0 --port 80",
        "configmap settings --from-literal a=1 --from-literal b=",
        "secret generic token --from-literal password=x --from-literal empty=",
        "service clusterip web --tcp 80:8080",
        "serviceaccount robot",
        "job once --image busybox -- date",
    ] {
        let create = format!("create -o json --namespace {namespace} {create}");
        let theirs: Vec<_> = create.split_whitespace().collect();
        let theirs = real.kubectl(&theirs).await.success();
        let ours = memory.done(&create).await;
        assert_eq!(created(&ours), created(&theirs), "{create}");
    }
    let unknown = memory.plane.not_modelled();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Returns an object without the parts that differ for each object.
fn created(object: &str) -> Value {
    let mut object: Value = serde_json::from_str(object).unwrap();
    let uid = object["metadata"]["uid"].as_str().unwrap();
    object = serde_json::from_str(&object.to_string().replace(uid, "UID")).unwrap();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["creationTimestamp", "managedFields", "resourceVersion"] {
        metadata.remove(field);
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, _| !field.starts_with("clusterIP"));
    }
    object
}

/// Server-side applies of kubectl have the same results: by the first and by another manager, with conflicts, and after a client-side
/// apply.
#[tokio::test]
async fn kubectl_applies_the_same() {
    let (memory, real, namespace) = both("memory-applies").await;
    let other = memory.folder.path().join("other.yaml");
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let mut changed: Value = serde_saphyr::from_str(&sample).unwrap();
    changed["spec"] = serde_json::json!({ "replicas": 5 });
    fs::write(&other, changed.to_string()).unwrap();
    let other = other.display().to_string();
    for command in [
        "apply --server-side -f SAMPLE",
        "apply --server-side -f SAMPLE",
        "apply --server-side --field-manager=other -f OTHER",
        "apply --server-side --field-manager=other --force-conflicts -f OTHER",
        "apply --server-side -f SAMPLE",
        "delete -f SAMPLE",
        "apply -f SAMPLE",
        "apply --server-side -f SAMPLE",
        "apply --server-side --dry-run=server -f OTHER",
        "get foos --show-managed-fields -o jsonpath={range(.items[*].metadata.managedFields[*])}{.manager}{.operation}{.fieldsV1}{end}",
    ] {
        let command = command.replace("SAMPLE", SAMPLE).replace("OTHER", &other);
        let args = format!("-n {namespace} {command}");
        let (is_done, ours) = memory.kubectl(&args).await;
        let theirs = real
            .kubectl(&args.split_whitespace().collect::<Vec<_>>())
            .await;
        let text = theirs.stdout + &theirs.stderr;
        assert_eq!(
            (is_done, &*ours),
            (theirs.status.success(), &*text),
            "kubectl {command}"
        );
    }
}

/// kubectl shows the Events of an object.
#[tokio::test]
async fn kubectl_shows_events() {
    let memory = Memory::start().await;
    memory.done(&format!("apply -f {SAMPLE}")).await;
    memory
        .done(&format!("create -f {}", event(&memory, "default")))
        .await;
    let events = memory
        .done("get events --field-selector=involvedObject.kind=Foo")
        .await;
    let words = |text: &str| {
        text.split_whitespace()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let expected = "Normal Synced foo/foo-sample It is synced";
    assert!(words(&events).ends_with(expected), "{events}");
    let wide = memory.done("get events -o wide").await;
    assert!(
        words(&wide).contains("foo/foo-sample recorder It is synced"),
        "{wide}"
    );
    let shown = memory.done("events --for foo/foo-sample").await;
    assert!(
        words(&shown).ends_with("Normal Synced Foo/foo-sample It is synced"),
        "{shown}"
    );
    let described = memory.done("describe foo/foo-sample").await;
    assert!(described.contains("It is synced"), "{described}");
    let unknown = memory.plane.not_modelled();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Writes an Event of the sample, with the UID of the sample in `default`, and returns its file.
fn event(memory: &Memory, namespace: &str) -> String {
    let file = memory.folder.path().join("event.json");
    let foo = memory
        .plane
        .get("foos.samplecontroller.k8s.io", "default", "foo-sample");
    let uid = foo.map(|foo| foo["metadata"]["uid"].clone());
    let event = serde_json::json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "foo-sample.1", "namespace": namespace },
        "involvedObject": {
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "foo-sample", "namespace": namespace,
            "uid": uid,
        },
        "reason": "Synced", "message": "It is synced", "type": "Normal", "count": 2, "source": { "component": "recorder" },
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:01Z",
    });
    fs::write(&file, event.to_string()).unwrap();
    file.display().to_string()
}

/// Writes a Deployment, and returns its file.
fn deployment(memory: &Memory) -> String {
    let file = memory.folder.path().join("deployment.json");
    let deployment = serde_json::json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "it" },
        "spec": {
            "selector": { "matchLabels": { "app": "it" } },
            "template": {
                "metadata": { "labels": { "app": "it" } },
                "spec": { "containers": [{ "name": "nginx", "image": "nginx" }] },
            },
        },
    });
    fs::write(&file, deployment.to_string()).unwrap();
    file.display().to_string()
}

/// The controller with its election serves Foos: they are created, scaled, corrected and deleted by kubectl.
#[tokio::test]
async fn the_controller_works() {
    let memory = Memory::start().await;
    let mut controller = Command::from(bound_command(env!("CARGO_BIN_EXE_foo-controller")))
        .args([
            "run",
            "--lease-namespace=default",
            "--http-addr=127.0.0.1:0",
        ])
        .arg("--kubeconfig")
        .arg(memory.folder.path().join("kubeconfig"))
        .env("FOO_CONTROLLER__LEADER_ELECTION__LEASE_DURATION", "3s")
        .env("FOO_CONTROLLER__LEADER_ELECTION__RENEW_DEADLINE", "2s")
        .env("FOO_CONTROLLER__LEADER_ELECTION__RETRY_PERIOD", "500ms")
        .env("HOME", memory.folder.path())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    for command in [
        &*format!("apply -f {SAMPLE}"),
        "wait --for=condition=Ready --timeout=60s foo/foo-sample",
        "scale foo/foo-sample --replicas=3",
        "wait --for=jsonpath={.status.availableReplicas}=3 --timeout=60s foo/foo-sample",
        "scale deployment/foo-sample --replicas=7",
        "wait --for=jsonpath={.spec.replicas}=3 --timeout=60s deployment/foo-sample",
        "delete deployment/foo-sample",
        "wait --for=create --timeout=60s deployment/foo-sample",
        "describe foo/foo-sample",
        "label foo/foo-sample team=a",
        "get foo --selector=team=a -o name",
        "get events",
        "get events.events.k8s.io",
    ] {
        memory.done(command).await;
    }
    let table = memory.done("get foo,deploy,lease").await;
    assert!(
        table.contains("deployment.apps/foo-sample   3/3"),
        "{table}"
    );
    memory
        .done("delete foo/foo-sample --cascade=foreground --timeout=60s")
        .await;
    let left = memory
        .plane
        .get("deployments.apps", "default", "foo-sample");
    assert!(left.is_none(), "{left:?}");
    let unknown = memory.plane.not_modelled();
    assert!(unknown.is_empty(), "{unknown:?}");
    controller.kill().await.unwrap();
}

/// A request that is not modelled fails with its part. It is no wrong success.
#[tokio::test]
async fn a_request_that_is_not_modelled_fails() {
    let memory = Memory::start().await;
    for (command, part) in [
        ("get storageclass", "doesn't have a resource type"),
        ("auth can-i --list", ""),
    ] {
        let (is_done, text) = memory.kubectl(&command.replace("SAMPLE", SAMPLE)).await;
        assert!(!is_done && text.contains(part), "kubectl {command}: {text}");
    }
}
