//! The command `plan` on a real API server: its steps before and after an upgrade, its exit codes, and the absence of writes.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use operator_testkit::cluster::{Cluster, Options, bound_command, example};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::support::{
    controller::Controller,
    foos::{audited, audited_alone, converged, create, names},
};

const FOOS: usize = 200;
const UP_TO_DATE: &str = "Plan: 0 to create, 0 to patch, 0 to delete";

/// A control plane without the CRD of Foos.
async fn without_foos() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || Cluster::start(Options::default()))
        .await
}

/// Output and exit code of the command.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    /// Returns the block of an object.
    fn block(&self, object: &str) -> &str {
        let mut blocks = self.stdout.split("\n\n");
        let found = blocks.find(|block| block.lines().next() == Some(object));
        found.unwrap_or_else(|| panic!("no {object}: {self:?}"))
    }
}

/// Runs `plan` of the controller, with no other environment variables.
async fn plan(kubeconfig: &Path, flags: &[&str]) -> Said {
    run(env!("CARGO_BIN_EXE_foo-controller"), kubeconfig, flags).await
}

async fn run(program: impl AsRef<OsStr>, kubeconfig: &Path, flags: &[&str]) -> Said {
    let home = tempfile::tempdir().unwrap();
    let mut command: Command = bound_command(program);
    command
        .env_clear()
        .env("HOME", home.path())
        .env("KUBECONFIG", kubeconfig)
        .arg("plan")
        .args(flags)
        .stdin(Stdio::null());
    let output = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    Said {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns a kubeconfig that impersonates this user.
fn kubeconfig_as(cluster: &Cluster, folder: &TempDir, user: &str) -> PathBuf {
    let text = std::fs::read(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    kubeconfig["users"][0]["user"]["as"] = user.into();
    let path = folder.path().join(user);
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

/// Another image changes 200 Foos. The command needs the permissions to list and watch only, and its requests are lists and
/// watches only, as the audit log shows.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_200_foos_is_planned_without_a_write() {
    let cluster = audited_alone().await;
    let namespace = cluster.namespace("plan").await;
    let (client, all) = (cluster.client().await, names("foo", FOOS));
    create(&client, &namespace, &all).await;
    let mut controller =
        Controller::start(&cluster, &["--image=nginx:1", "--namespace", &namespace]);
    converged(&client, &namespace, &all).await;

    let kubectl = async |args: &str| {
        let args: Vec<_> = args.split(' ').collect();
        cluster.kubectl(&args).await.success();
    };
    kubectl("create clusterrole plan --verb=list,watch --resource=foos.samplecontroller.k8s.io,deployments.apps").await;
    kubectl(&format!(
        "create rolebinding plan -n {namespace} --clusterrole=plan --user=planner"
    ))
    .await;
    let folder = tempfile::tempdir().unwrap();
    let planner = kubeconfig_as(&cluster, &folder, "planner");
    let this_one = format!("--namespace={namespace}");
    let flags = |more: &[&'static str]| -> Vec<String> {
        let more = more.iter().map(|it| (*it).to_owned());
        more.chain([this_one.clone()]).collect()
    };
    let plan = async |more: &[&'static str]| {
        let flags = flags(more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        plan(&planner, &flags).await
    };

    // While the controller runs, with its settings.
    let same = plan(&["--image=nginx:1", "--check"]).await;
    let expected = format!("{UP_TO_DATE}\nObjects: 0 with changes, {FOOS} up to date\n");
    assert_eq!(
        (same.code, &*same.stdout, &*same.stderr),
        (Some(0), &*expected, "")
    );
    assert_eq!(controller.stop().await, 0, "{}", controller.log());

    let before = cluster.audit().len();
    let next = plan(&["--image=nginx:2", "--max-rollouts=7"]).await;
    assert_eq!((next.code, &*next.stderr), (Some(0), ""), "{next:?}");
    let block = next.block(&format!("Foo {namespace}/foo-000"));
    let expected = format!(
        "Foo {namespace}/foo-000\n  patch Deployment {namespace}/foo-000\n    \
         ~ spec.template.spec.containers[nginx].image: \"nginx:1\" -> \"nginx:2\""
    );
    assert!(block.starts_with(&expected), "{block}");
    let headers = next.stdout.lines().filter(|line| line.starts_with("Foo "));
    let expected: Vec<_> = all
        .iter()
        .map(|name| format!("Foo {namespace}/{name}"))
        .collect();
    assert_eq!(headers.collect::<Vec<_>>(), expected);
    let summary = format!(
        "Plan: 0 to create, {FOOS} to patch, 0 to delete\nObjects: {FOOS} with changes, 0 up to date\n\
         Changes of spec.template: {FOOS}; max_rollouts = 7 limits how many of them run at the same time\n"
    );
    assert!(next.stdout.contains(&summary), "{}", next.stdout);

    let checked = plan(&["--image=nginx:2", "--check", "--output=json"]).await;
    assert_eq!((checked.code, &*checked.stderr), (Some(1), ""));
    let lines = checked.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), FOOS + 1);
    assert_eq!(lines[FOOS]["summary"]["steps"]["patch"], FOOS);
    let step = &lines[7]["steps"][0];
    let image = json!({ "path": "spec.template.spec.containers[nginx].image", "old": "nginx:1", "new": "nginx:2" });
    assert_eq!(step["changes"].as_array().unwrap().last(), Some(&image));

    let requests = cluster.audit().split_off(before);
    let ours = requests
        .iter()
        .filter(|it| it.user_agent.starts_with("foo-controller/"));
    let ours: Vec<_> = ours.map(|it| (&*it.verb, &*it.resource)).collect();
    assert!(ours.len() >= 4, "{ours:?}");
    let kinds: BTreeSet<_> = ours.iter().map(|(_, resource)| *resource).collect();
    assert_eq!(kinds, BTreeSet::from(["deployments", "foos"]));
    let other = ours
        .iter()
        .find(|(verb, _)| !matches!(*verb, "list" | "watch"));
    assert_eq!(other, None);

    // A missing permission ends the command without a plan.
    let nobody = kubeconfig_as(&cluster, &folder, "nobody");
    let refused = self::plan(&nobody, &[&this_one]).await;
    let line = |plural: &str| {
        format!(
            "error: not allowed to list and watch {plural} in namespace {namespace}: bind this user to a ClusterRole with \
             these permissions; `foo-controller rbac` prints one that has them\n"
        )
    };
    let expected = [line("foos"), line("deployments")].concat();
    assert_eq!(
        (refused.code, &*refused.stdout, &*refused.stderr),
        (Some(2), "", &*expected)
    );
}

/// A new, a paused, an invalid and a blocked Foo. An object that waits for its user is no error.
#[tokio::test]
async fn objects_that_are_not_reconciled_are_counted() {
    let cluster = audited().await;
    let namespace = cluster.namespace("plan").await;
    let foo = |name: &str, deployment: &str, paused: &str| {
        json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1",
            "kind": "Foo",
            "metadata": {
                "name": name,
                "annotations": { "samplecontroller.k8s.io/paused": paused },
            },
            "spec": { "deploymentName": deployment, "replicas": 1 },
        })
    };
    let foos = [
        foo("blocked", "taken", "false"),
        foo("invalid", "", "false"),
        foo("new", "new", "false"),
        foo("paused", "paused", "true"),
    ];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": foos }).to_string();
    let apply = ["apply", "-n", &namespace, "-f", "-"];
    cluster.kubectl_stdin(&apply, &list).await.success();
    let taken = format!("create deployment taken --image=theirs -n {namespace}");
    let taken: Vec<_> = taken.split(' ').collect();
    cluster.kubectl(&taken).await.success();

    let this_one = format!("--namespace={namespace}");
    let planned = plan(cluster.kubeconfig(), &["--check", &this_one]).await;
    assert_eq!((planned.code, &*planned.stderr), (Some(1), ""));
    for (name, held, lines) in [
        (
            "blocked",
            "",
            &["  update the status", "  blocked: ", "taken"][..],
        ),
        (
            "invalid",
            "",
            &[
                "  update the status",
                "  blocked: spec.deploymentName: must not be empty",
            ],
        ),
        (
            "new",
            "",
            &[
                &*format!("  create Deployment {namespace}/new"),
                "      name: new",
                "image: nginx:latest",
            ],
        ),
        (
            "paused",
            " (paused)",
            &["  update the status", "conditions", "Paused"],
        ),
    ] {
        let block = planned.block(&format!("Foo {namespace}/{name}{held}"));
        for line in lines {
            assert!(block.contains(line), "{line}: {block}");
        }
    }
    let summary = "Plan: 1 to create, 0 to patch, 0 to delete, 3 to update (status)\n\
                   Objects: 1 with changes, 0 up to date, 1 paused, 2 blocked\n";
    assert!(planned.stdout.contains(summary), "{}", planned.stdout);
}

/// The line names the CRD and how to install it.
#[tokio::test]
async fn a_missing_crd_ends_the_plan() {
    let said = plan(without_foos().await.kubeconfig(), &[]).await;
    let line = "error: the CustomResourceDefinition foos.samplecontroller.k8s.io is not installed: run `foo-controller \
                crd | kubectl apply -f -`\n";
    assert_eq!(
        (said.code, &*said.stdout, &*said.stderr),
        (Some(2), "", line)
    );
}

/// Three controllers, in the order of their declaration. The classes are cluster-scoped.
#[tokio::test]
async fn the_plan_has_all_controllers() {
    let (cluster, program) = (without_foos().await, example("several_kinds"));
    let namespace = cluster.namespace("plan").await;
    let crds = Command::new(&program).arg("crd").output().unwrap();
    let crds = String::from_utf8(crds.stdout).unwrap();
    cluster.install_crds(&crds).await;
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "example.com/v1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        })
    };
    let class = format!("class-{namespace}");
    let items = [
        object(
            "DatabaseClass",
            &class,
            json!({ "replicas": 2, "namespace": namespace }),
        ),
        object(
            "Database",
            "a",
            json!({ "class": class, "password": { "name": "s" }, "backup": "s3://b" }),
        ),
        object("Backup", "own", json!({ "database": "a", "target": "t" })),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "stringData": { "password": "hunter2" },
        }),
    ];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let apply = ["apply", "-n", &namespace, "-f", "-"];
    cluster.kubectl_stdin(&apply, &list).await.success();

    let this_one = format!("--namespace={namespace}");
    let planned = run(program, cluster.kubeconfig(), &[&this_one]).await;
    assert_eq!((planned.code, &*planned.stderr), (Some(0), ""));
    let headers = planned
        .stdout
        .lines()
        .filter(|line| line.chars().next().is_some_and(char::is_uppercase));
    let headers: Vec<_> = headers.take(3).collect();
    let expected = [
        format!("Database {namespace}/a"),
        format!("DatabaseClass {class}"),
        format!("Backup {namespace}/own"),
    ];
    assert_eq!(headers, expected, "{}", planned.stdout);
    let block = planned.block(&expected[0]);
    for kind in ["Deployment", "Service", "Backup"] {
        let step = format!("  create {kind} {namespace}/a\n");
        assert!(block.contains(&step), "{block}");
    }
    let step = format!("  create ConfigMap {namespace}/{class}\n");
    assert!(planned.block(&expected[1]).contains(&step), "{planned:?}");
    let reason = "  blocked: no ready Database \"a\"";
    assert!(planned.block(&expected[2]).contains(reason), "{planned:?}");
    assert!(!planned.stdout.contains("hunter2"), "{planned:?}");
    let summary =
        "Plan: 4 to create, 0 to patch, 0 to delete, 1 to update (status)\nObjects: 2 with changes";
    assert!(planned.stdout.contains(summary), "{}", planned.stdout);
}

/// The contents of referenced Secrets are read for the plan, which needs the permission to get them, and are not part of it.
#[tokio::test]
async fn referenced_contents_are_read() {
    let (cluster, program) = (without_foos().await, example("second_kind"));
    let namespace = cluster.namespace("plan").await;
    let crds = Command::new(&program).arg("crd").output().unwrap();
    let crds = String::from_utf8(crds.stdout).unwrap();
    cluster.install_crds(&crds).await;
    let items = [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "stringData": { "token": "hunter2" },
        }),
        json!({
            "apiVersion": "example.com/v1", "kind": "Relay", "metadata": { "name": "r" },
            "spec": { "port": 80, "secretName": "s" },
        }),
    ];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let apply = ["apply", "-n", &namespace, "-f", "-"];
    cluster.kubectl_stdin(&apply, &list).await.success();

    let flags = [&*format!("--namespace={namespace}"), "--registry=/nowhere"];
    let planned = run(&program, cluster.kubeconfig(), &flags).await;
    assert_eq!(
        (planned.code, &*planned.stderr),
        (Some(0), ""),
        "{planned:?}"
    );
    let block = planned.block(&format!("Relay {namespace}/r"));
    let finalizer = format!(
        "  patch Relay {namespace}/r\n    ~ metadata.finalizers: [] -> [\"example.com/registered\"]\n"
    );
    assert!(block.contains(&finalizer), "{block}");
    // The required label of the selection is part of the manifest.
    let label = "      app.kubernetes.io/managed-by: relay-operator\n";
    assert!(block.contains(label), "{block}");
    let outside = "  act outside the cluster (finalizer example.com/registered)";
    assert!(block.ends_with(outside), "{block}");
    let summary = "Plan: 2 to create, 1 to patch, 0 to delete, 1 outside the cluster\n";
    assert!(planned.stdout.contains(summary), "{}", planned.stdout);

    let folder = tempfile::tempdir().unwrap();
    let user = format!("reader-of-{namespace}");
    for args in [
        format!(
            "create role reader -n {namespace} --verb=list,watch --resource=relays.example.com,configmaps,services,secrets"
        ),
        format!("create rolebinding reader -n {namespace} --role=reader --user={user}"),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        cluster.kubectl(&args).await.success();
    }
    let reader = kubeconfig_as(cluster, &folder, &user);
    let refused = run(&program, &reader, &flags).await;
    let line = format!(
        "error: not allowed to get secrets in namespace {namespace}: bind this user to a ClusterRole with these permissions; \
         `relay-operator rbac` prints one that has them\n"
    );
    assert_eq!(
        (refused.code, &*refused.stdout, &*refused.stderr),
        (Some(2), "", &*line)
    );
}
