//! The state of one object: the response of a replica and the output of `doctor --object`, on a real API server.

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;

/// A namespace with Foos, and a user with few permissions.
struct World {
    cluster: &'static Cluster,
    namespace: String,
    folder: TempDir,
}

impl World {
    async fn new(prefix: &str, foos: &[&str]) -> Self {
        let cluster = audited().await;
        let namespace = cluster.namespace(prefix).await;
        let names: Vec<_> = foos.iter().map(|name| (*name).to_owned()).collect();
        create(&cluster.client().await, &namespace, &names).await;
        Self {
            cluster,
            namespace,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn start(&self, args: &[&str]) -> Controller {
        let common = ["--http-debug-state", "--namespace", &self.namespace];
        Controller::start(self.cluster, &[&common, args].concat())
    }

    async fn kubectl(&self, args: &str) -> String {
        let args: Vec<_> = ["-n", &self.namespace]
            .into_iter()
            .chain(args.split(' '))
            .collect();
        self.cluster.kubectl(&args).await.success()
    }

    /// Returns a kubeconfig that impersonates this user.
    fn kubeconfig_as(&self, user: &str) -> PathBuf {
        let text = std::fs::read(self.cluster.kubeconfig()).unwrap();
        let mut kubeconfig: Value = serde_json::from_slice(&text).unwrap();
        kubeconfig["users"][0]["user"]["as"] = user.into();
        let path = self.folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }

    /// Requests the state of one Foo. Returns the head and the body of the response.
    async fn get(&self, controller: &Controller, object: &str) -> (String, String) {
        let target = format!("/debug/state?object={object}");
        get(controller.http_addr().await, &target).await
    }

    async fn state(&self, controller: &Controller, foo: &str) -> Value {
        let (head, body) = self
            .get(controller, &format!("{}/{foo}", self.namespace))
            .await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head} {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Polls the state until its reason contains `text`.
    async fn reason(&self, controller: &Controller, foo: &str, text: &str) -> Value {
        eventually(DEADLINE, text, async || {
            let state = self.state(controller, foo).await;
            let reason = state["reason"].as_str().unwrap();
            if reason.contains(text) {
                Ok(state)
            } else {
                Err(state)
            }
        })
        .await
    }

    /// Runs `doctor` for one Foo. Returns its exit code and its lines, as `grade check: text`.
    async fn doctor(&self, foo: &str, args: &[&str]) -> (Option<i32>, Vec<String>) {
        let mut command = bound_command(env!("CARGO_BIN_EXE_foo-controller"));
        command
            .env_clear()
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .args(["doctor", "--leader-election=false"])
            .arg(format!("--namespace={}", self.namespace))
            .arg(format!("--object={}/{foo}", self.namespace))
            .args(args)
            .stdin(Stdio::null());
        let output = tokio::process::Command::from(command)
            .output()
            .await
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let lines = stdout.lines().map(|line| {
            let (grade, rest) = line.split_at(9);
            let (check, text) = rest.split_once("  ").unwrap();
            format!("{} {check}: {}", grade.trim_end(), text.trim_start())
        });
        (output.status.code(), lines.collect())
    }
}

fn names(state: &Value) -> Vec<&str> {
    let records = state["records"].as_array().unwrap().iter();
    records.map(|it| it["name"].as_str().unwrap()).collect()
}

/// Another client reverts the Deployment. After the lines about the cluster, `doctor` prints the same reason as the replica.
#[tokio::test]
async fn a_disputed_deployment_is_the_reason() {
    let world = World::new("why-dispute", &["fought"]).await;
    let controller = world.start(&[]);
    let namespace = &world.namespace;
    let deployments: Api<Deployment> = Api::namespaced(world.cluster.client().await, namespace);
    let theirs = Patch::Merge(json!({ "spec": { "replicas": 7 } }));
    let operator = async {
        loop {
            let _ = deployments
                .patch("fought", &PatchParams::default(), &theirs)
                .await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let text = format!("other clients revert the changes of Deployment {namespace}/fought");
    let user = async {
        let state = world.reason(&controller, "fought", &text).await;
        assert!(
            state["reason"]
                .as_str()
                .unwrap()
                .starts_with("dispute, for another ")
        );
        assert_eq!(names(&state)[0], "dispute");
        assert_eq!(
            (&state["kind"], &state["leads"]),
            (&json!("Foo"), &json!(true))
        );
        assert_eq!(state["cached"]["freshness"], "fresh");
        // Between two delays, nothing holds the Foo.
        eventually(DEADLINE, "doctor prints the reason", async || {
            let addr = format!("--http-addr={}", controller.http_addr().await);
            let (code, lines) = world.doctor("fought", &["--http-debug-state", &addr]).await;
            if lines.last().is_some_and(|line| line.contains(&text)) {
                Ok((code, lines))
            } else {
                Err(lines)
            }
        })
        .await
    };
    let (code, lines) = tokio::select! {
        () = operator => return,
        told = user => told,
    };
    assert_eq!(code, Some(0), "{lines:#?}");
    let begins = [
        "ok API server: v1".to_owned(),
        format!("warning Foo {namespace}/fought: generation 1; Ready=False ("),
        format!("ok namespace {namespace}: watched"),
        "ok permissions there: all granted".to_owned(),
        "skipped Lease: leader_election.enabled is false".to_owned(),
        "ok webhooks on writes: no webhook matches".to_owned(),
        "ok admission policies: none matches ".to_owned(),
        "ok foos there: 1 in 1".to_owned(),
        "ok replica: ".to_owned(),
        "warning its record: dispute, for another ".to_owned(),
    ];
    for (line, begin) in lines.iter().zip(&begins) {
        assert!(line.starts_with(begin), "{begin}: {lines:#?}");
    }
    assert!(
        lines
            .last()
            .unwrap()
            .starts_with("warning reason: dispute, for another "),
        "{lines:#?}"
    );
}

/// A replica and `doctor` name the missing permission. `doctor` does so without the state of a replica, too.
#[tokio::test]
async fn a_missing_permission_is_the_reason() {
    let world = World::new("why-rights", &["wanted"]).await;
    let namespace = &world.namespace;
    for role in [
        "works --verb=list,watch,patch --resource=foos.samplecontroller.k8s.io,deployments.apps",
        "tells --verb=update --resource=foos.samplecontroller.k8s.io/status",
    ] {
        world.kubectl(&format!("create role {role}")).await;
        let (name, _) = role.split_once(' ').unwrap();
        let binding = format!("create rolebinding {name} --role={name} --user=limited");
        world.kubectl(&binding).await;
    }
    let limited = world.kubeconfig_as("limited");
    let controller = world.start(&["--kubeconfig", limited.to_str().unwrap()]);
    let text = format!("readiness: not allowed to create deployments in namespace {namespace}");
    let state = world.reason(&controller, "wanted", &text).await;
    assert_eq!(names(&state)[0], "readiness");

    let flag = format!("--kubeconfig={}", limited.display());
    let (code, lines) = world.doctor("wanted", &[&flag]).await;
    assert_eq!(code, Some(1), "{lines:#?}");
    let rights = format!(
        "error permissions there: not allowed to create deployments, delete deployments, update foos/finalizers, create events, \
         patch events in namespace {namespace}: "
    );
    assert!(
        lines.iter().any(|line| line.starts_with(&rights)),
        "{lines:#?}"
    );
    let unknown = format!(
        "skipped reason: unknown: http.debug_state is false; the leader has it: set http.debug_state, then kubectl exec -n \
         NAMESPACE POD -- /proc/1/exe doctor --object={namespace}/wanted in the pod that holds the Lease"
    );
    assert_eq!(lines.last(), Some(&unknown));
}

/// With one slot, one of two Foos waits for the rollout of the other. Objects that the replica does not have are no error.
#[tokio::test]
async fn a_queued_rollout_is_the_reason() {
    let world = World::new("why-rollout", &["a", "b"]).await;
    let mut before = world.start(&["--image=nginx:before"]);
    let deployments: Api<Deployment> =
        Api::namespaced(world.cluster.client().await, &world.namespace);
    // No Deployment controller runs, so this status remains the status of the first generation.
    let complete = json!({ "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
                                       "availableReplicas": 1 } });
    for foo in ["a", "b"] {
        eventually(DEADLINE, "the Deployment exists", async || {
            let patch = Patch::Merge(&complete);
            deployments
                .patch_status(foo, &PatchParams::default(), &patch)
                .await
        })
        .await;
    }
    assert_eq!(before.stop().await, 0);

    let controller = world.start(&["--image=nginx:after", "--max-rollouts=1"]);
    let waits = "rolloutSlot: its rollout waits for a slot, place 1";
    let queued = eventually(DEADLINE, "one of them waits", async || {
        let mut states = Vec::new();
        for foo in ["a", "b"] {
            let (head, body) = world
                .get(&controller, &format!("{}%2F{foo}", world.namespace))
                .await;
            let state = serde_json::from_str(&body).unwrap_or(json!({ "head": head }));
            states.push(state);
        }
        states.retain(|state: &Value| state["reason"] == waits);
        if states.len() == 1 {
            Ok(states.remove(0))
        } else {
            Err(states)
        }
    })
    .await;
    assert_eq!(names(&queued)[0], "rolloutSlot");

    let namespace = &world.namespace;
    for (object, status, text) in [
        (
            format!("{namespace}/c"),
            404,
            format!("no Foo {namespace}/c in the cache\n"),
        ),
        (
            "default/a".to_owned(),
            404,
            "namespace default is not in the setting namespaces\n".to_owned(),
        ),
        (
            "a".to_owned(),
            400,
            "object=a: must be NAMESPACE/NAME, KIND/NAMESPACE/NAME, or KIND/NAME of a cluster-scoped object\n"
                .to_owned(),
        ),
    ] {
        let (head, body) = world.get(&controller, &object).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(body, text);
    }
}
