//! Programs in Go against the control plane in memory: the original kubernetes/sample-controller, an election and an informer of
//! client-go, and a manager of controller-runtime (`tests/tools/go-clients`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::header::AUTHORIZATION;
use kube::config::{KubeConfigOptions, Kubeconfig};
use operator_testkit::{
    ADMIN, ControlPlane,
    api_server::Method,
    cluster::{bound_command, eventually},
    proxy::Proxy,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, Command},
};

use super::Memory;
use crate::support::built;

/// The Go module of the original controller, with its program, its CRD and an example.
const UPSTREAM: &str = "k8s.io/sample-controller";
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/go-clients");

const DEADLINE: Duration = Duration::from_mins(1);

/// A running program, and the lines of its output.
struct Program {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Program {
    /// Starts a program with this kubeconfig.
    fn start(name: &str, args: &[&str], kubeconfig: &Path) -> Self {
        Self::start_with(name, args, &[("KUBECONFIG", kubeconfig.to_str().unwrap())])
    }

    fn start_with(name: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let program = built("go-clients").join(name);
        let mut child = Command::from(bound_command(program))
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = Arc::default();
        collect(child.stdout.take().unwrap(), &lines);
        collect(child.stderr.take().unwrap(), &lines);
        Self { child, lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until the program has printed a line that starts with this text.
    async fn prints(&self, text: &str) {
        eventually(DEADLINE, text, async || {
            let lines = self.lines();
            let is_there = lines.iter().any(|line| line.starts_with(text));
            if is_there { Ok(()) } else { Err(lines) }
        })
        .await;
    }

    /// Ends the program with SIGTERM.
    async fn end(mut self) {
        let id = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let status = status.expect("the program ends").unwrap();
        assert!(status.success(), "{status}: {:?}", self.lines());
    }
}

/// Appends the lines of an output, until its end.
fn collect(output: impl AsyncRead + Unpin + Send + 'static, into: &Arc<Mutex<Vec<String>>>) {
    let (mut output, into) = (BufReader::new(output).lines(), into.clone());
    tokio::spawn(async move {
        while let Ok(Some(line)) = output.next_line().await {
            into.lock().unwrap().push(line);
        }
    });
}

impl Memory {
    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Asserts that all requests were modelled.
    fn check(&self) {
        let unknown = self.plane.not_modelled();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

/// Waits until an object fulfills a condition, and returns it.
async fn object(
    plane: &ControlPlane,
    (resource, name): (&str, &str),
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    eventually(DEADLINE, what, async || {
        match plane.get(resource, "default", name) {
            Some(object) if is(&object) => Ok(object),
            other => Err(other),
        }
    })
    .await
}

/// Waits until there is no such object.
async fn gone(plane: &ControlPlane, resource: &str, name: &str) {
    eventually(DEADLINE, "the deletion", async || {
        plane.get(resource, "default", name).map_or(Ok(()), Err)
    })
    .await;
}

fn send(plane: &ControlPlane, method: &Method, path: &str, body: &Value) -> Value {
    let (code, answer) = plane.send(ADMIN, method, path, body);
    assert!((200..300).contains(&code), "{method} {path}: {answer}");
    answer
}

/// Returns a manifest of the original project, by the start of its name.
async fn upstream(start: &str) -> Value {
    let download = Command::new("go")
        .args(["mod", "download", "-json", UPSTREAM])
        .current_dir(MODULE)
        .env("GOWORK", "off")
        .output();
    let download = download.await.unwrap().stdout;
    let module: Value = serde_json::from_slice(&download).unwrap();
    let folder = Path::new(module["Dir"].as_str().unwrap()).join("artifacts/examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let mut files = files.filter(|file| file.file_name().to_string_lossy().starts_with(start));
    let text = fs::read_to_string(files.next().unwrap().path()).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// The original controller with its own CRD: its object gets a Deployment, which is scaled and created again, and a status.
#[tokio::test]
async fn the_original_controller_works() {
    let crd = upstream("crd-status").await;
    let memory = Memory::with(&crd).await;
    let kubeconfig = memory.kubeconfig();
    let program = UPSTREAM.rsplit('/').next().unwrap();
    let controller = Program::start(
        program,
        &["-kubeconfig", kubeconfig.to_str().unwrap()],
        &kubeconfig,
    );

    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let [group, plural] = [&spec["group"], &spec["names"]["plural"]].map(text);
    let version = text(&spec["versions"][0]["name"]);
    let all = format!("/apis/{group}/{version}/namespaces/default/{plural}");
    let example = upstream("example").await;
    let name = text(&example["metadata"]["name"]);
    let deployment = text(&example["spec"]["deploymentName"]);
    let (this, deployment) = (
        (&*format!("{plural}.{group}"), &*name),
        ("deployments.apps", &*deployment),
    );
    let available =
        |count: i64| move |object: &Value| object["status"]["availableReplicas"] == count;

    send(&memory.plane, &Method::POST, &all, &example);
    object(&memory.plane, this, "the first status", available(1)).await;
    let scale = json!({ "spec": { "replicas": 3 } });
    send(
        &memory.plane,
        &Method::PATCH,
        &format!("{all}/{name}"),
        &scale,
    );
    object(
        &memory.plane,
        this,
        "the status after scaling",
        available(3),
    )
    .await;
    let scaled = object(&memory.plane, deployment, "the Deployment", available(3)).await;
    assert_eq!(scaled["metadata"]["ownerReferences"][0]["name"], *name);
    let path = format!(
        "/apis/apps/v1/namespaces/default/deployments/{}",
        deployment.1
    );
    send(&memory.plane, &Method::DELETE, &path, &Value::Null);
    let is_new = |object: &Value| object["metadata"]["uid"] != scaled["metadata"]["uid"];
    object(&memory.plane, deployment, "the next Deployment", is_new).await;
    // The recorder of client-go writes it to the core API.
    eventually(DEADLINE, "the Event", async || {
        let events = memory.plane.history("events.events.k8s.io");
        let mut events = events.iter().filter_map(|it| it.after.as_deref());
        let is_there =
            events.any(|it| it["reason"] == "Synced" && it["regarding"]["name"] == *name);
        if is_there { Ok(()) } else { Err("none") }
    })
    .await;
    controller.end().await;
    memory.check();
}

const LEASE: &str = "leases.coordination.k8s.io";

/// An election of client-go: the second candidate leads after the first one was killed and its lease has expired, and a leader that
/// ends releases the lease.
#[tokio::test]
async fn an_election_of_client_go_works() {
    let memory = Memory::start().await;
    let kubeconfig = memory.kubeconfig();
    let candidate = |name| Program::start("go-clients", &["elect", name], &kubeconfig);
    let mut first = candidate("first");
    first.prints("leads").await;
    let second = candidate("second");
    second.prints("leader first").await;
    let lease = memory.plane.get(LEASE, "default", "election").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "first");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3);

    first.child.kill().await.unwrap();
    let renewed = memory.plane.history(LEASE).last().unwrap().at;
    second.prints("leads").await;
    let lease = memory.plane.get(LEASE, "default", "election").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "second");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    let history = memory.plane.history(LEASE);
    let taken = history.iter().find(|change| change.at > renewed).unwrap();
    let waited = taken.at.checked_sub(renewed).unwrap();
    assert!(waited >= Duration::from_secs(3), "{waited:?}");

    second.end().await;
    let released = memory.plane.get(LEASE, "default", "election").unwrap();
    assert_eq!(released["spec"]["holderIdentity"], "");
    let third = candidate("third");
    third.prints("leads").await;
    memory.check();
}

/// An informer of client-go, with a streamed list and without. It prefers protobuf, and accepts JSON. It continues after lost
/// connections, and after its version was compacted.
#[tokio::test]
async fn an_informer_of_client_go_works() {
    const STREAMS: &str = "KUBE_FEATURE_WatchListClient";
    let memory = Memory::start().await;
    let config = Kubeconfig::read_from(memory.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await;
    let proxy = Proxy::start(config.unwrap()).await;
    // client-go sends no token without TLS.
    proxy.impersonate([(AUTHORIZATION, format!("Bearer {ADMIN}").parse().unwrap())]);
    let kubeconfig = memory.folder.path().join("proxied");
    let proxied = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "proxied",
        "clusters": [{ "name": "proxied", "cluster": { "server": proxy.url() } }],
        "contexts": [{ "name": "proxied", "context": { "cluster": "proxied" } }],
    });
    fs::write(&kubeconfig, proxied.to_string()).unwrap();
    let configs = "/api/v1/namespaces/default/configmaps";
    let config = |name: &str| json!({ "metadata": { "name": name }, "data": { "text": "1" } });
    send(&memory.plane, &Method::POST, configs, &config("first"));
    for streams in ["true", "false"] {
        let environment = [
            ("KUBECONFIG", kubeconfig.to_str().unwrap()),
            (STREAMS, streams),
        ];
        let informer = Program::start_with("go-clients", &["inform"], &environment);
        informer.prints("synced").await;
        informer.prints("added first 1").await;
        let requests = proxy.requests();
        let is_streamed = requests
            .iter()
            .any(|request| request.contains("sendInitialEvents=true"));
        assert_eq!(is_streamed, streams == "true", "{requests:?}");
        send(&memory.plane, &Method::POST, configs, &config("second"));
        informer.prints("added second 1").await;
        let second = format!("{configs}/second");
        let update = json!({ "data": { "text": "2" } });
        send(&memory.plane, &Method::PATCH, &second, &update);
        informer.prints("updated second 2").await;

        // It continues from the last version.
        proxy.disconnect();
        send(&memory.plane, &Method::DELETE, &second, &Value::Null);
        informer.prints("deleted second 2").await;
        let lists = |requests: &[String]| {
            let lists = requests.iter();
            lists
                .filter(|request| {
                    !request.contains("watch=true") || request.contains("sendInitialEvents=true")
                })
                .count()
        };
        let requests = proxy.requests();
        assert_eq!(lists(&requests), 0, "{requests:?} {:?}", informer.lines());

        // It lists again. The watch is interrupted first, so that the change is not sent.
        proxy.stall();
        send(&memory.plane, &Method::POST, configs, &config("third"));
        memory.plane.compact();
        proxy.disconnect();
        proxy.resume();
        informer.prints("added third 1").await;
        let requests = proxy.requests();
        assert_eq!(lists(&requests), 1, "{requests:?}");
        informer.end().await;
        send(
            &memory.plane,
            &Method::DELETE,
            &format!("{configs}/third"),
            &Value::Null,
        );
    }
    memory.check();
}

/// A manager of controller-runtime elects a leader. Its controller reads from a cache, and writes an owned object, a status and a
/// finalizer. A second replica takes over.
#[tokio::test]
async fn a_manager_of_controller_runtime_works() {
    let text = json!({ "type": "object", "properties": { "size": { "type": "string" } } });
    let schema = json!({ "type": "object", "properties": { "spec": text, "status": text } });
    let memory = Memory::with(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "shirts.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shirt", "plural": "shirts" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                "subresources": { "status": {} },
            }],
        },
    }))
    .await;
    let kubeconfig = memory.kubeconfig();
    let manager = || Program::start("go-clients", &["manage"], &kubeconfig);
    let first = manager();
    let shirts = "/apis/example.com/v1/namespaces/default/shirts";
    let shirt = json!({
        "apiVersion": "example.com/v1", "kind": "Shirt", "metadata": { "name": "blue" }, "spec": { "size": "M" },
    });
    let (blue, config) = (("shirts.example.com", "blue"), ("configmaps", "blue"));
    let status = |size: &'static str| move |object: &Value| object["status"]["size"] == size;
    let data = |size: &'static str| move |object: &Value| object["data"]["size"] == size;
    send(&memory.plane, &Method::POST, shirts, &shirt);
    object(&memory.plane, blue, "the status", status("M")).await;
    let created = object(&memory.plane, config, "the ConfigMap", data("M")).await;
    assert_eq!(created["metadata"]["ownerReferences"][0]["kind"], "Shirt");
    object(&memory.plane, (LEASE, "manager"), "the Lease", |lease| {
        lease["spec"]["holderIdentity"] != ""
    })
    .await;

    let second = manager();
    let change = |size: &str| {
        let size = json!({ "spec": { "size": size } });
        send(
            &memory.plane,
            &Method::PATCH,
            &format!("{shirts}/blue"),
            &size,
        )
    };
    change("L");
    object(&memory.plane, config, "the changed ConfigMap", data("L")).await;
    first.end().await;
    change("XL");
    object(
        &memory.plane,
        blue,
        "the status by the second",
        status("XL"),
    )
    .await;
    let path = "/api/v1/namespaces/default/configmaps/blue";
    send(&memory.plane, &Method::DELETE, path, &Value::Null);
    object(&memory.plane, config, "the next ConfigMap", data("XL")).await;

    let deleted = send(
        &memory.plane,
        &Method::DELETE,
        &format!("{shirts}/blue"),
        &Value::Null,
    );
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["example.com/shirts"])
    );
    gone(&memory.plane, blue.0, "blue").await;
    gone(&memory.plane, config.0, "blue").await;
    second.end().await;
    let events = memory.plane.history("events.events.k8s.io");
    assert!(events.iter().any(|event| event.kind == "Event"), "no Event");
    memory.check();
}

/// The control plane in memory decodes protobuf by the present Go types.
#[tokio::test]
async fn the_table_of_protobuf_is_up_to_date() {
    let table = "crates/testkit/src/http/protobuf.txt";
    let program = built("go-clients").join("go-clients");
    let printed = Command::from(bound_command(&program))
        .arg("fields")
        .output();
    let printed = String::from_utf8(printed.await.unwrap().stdout).unwrap();
    let stored = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(table)).unwrap();
    assert!(
        printed == stored,
        "write it: {} fields > {table}",
        program.display()
    );
}
