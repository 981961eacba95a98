//! docs/operations.md, "Uninstall": its commands leave no objects, even with many Foos.

use std::fmt::Write as _;

use operator_testkit::cluster::bound_command;

use super::*;

/// Number of Foos in the figure of the documentation.
const FOOS: usize = 1000;
/// Number of Foos that one command creates.
const PART: usize = 50;
const LIMIT: Duration = Duration::from_mins(40);

/// Runs kube-controller-manager with its default request rate. The garbage collector then takes minutes, and needs the resource
/// type during that time.
#[tokio::test]
#[ignore = "takes ten minutes"]
async fn uninstalling_leaves_nothing_of_a_thousand_foos() {
    let cluster = Cluster::start(Options {
        controllers: true,
        audit: false,
    });
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    kubectl("apply -k deploy").await.success();
    cluster.install_crd().await;
    let mut controller = Controller::start(&cluster, &["--workers=8"]);
    let create = ["create", "-f", "-"];
    // In parts, because each command has a limit of its own, and this test runs with low priority.
    for first in (0..FOOS).step_by(PART) {
        let mut foos = String::new();
        for n in first..first + PART {
            let _ = write!(
                foos,
                "---\napiVersion: samplecontroller.k8s.io/v1alpha1\nkind: Foo\nmetadata: {{name: f{n}}}\n\
                 spec: {{deploymentName: f{n}, replicas: 1}}\n"
            );
        }
        cluster.kubectl_stdin(&create, &foos).await.success();
    }
    let left = async |kinds: &str| {
        let names = kubectl(&format!("get {kinds} -n default -o=name")).await;
        names.success().lines().count()
    };
    let running = "deployments,replicasets,pods";
    eventually(LIMIT, "all are deployed", async || {
        let there = left(running).await;
        (there == 3 * FOOS).then_some(()).ok_or(there)
    })
    .await;
    let _manager = default_controller_manager(&cluster).await;

    let document = docs::document("docs/operations.md");
    let mut blocks = document.section("Uninstall").text.split("\n```console\n");
    let all = blocks
        .find(|block| block.contains("$ kubectl delete foos "))
        .unwrap();
    let all = all.split_once("\n```").unwrap().0.replace("$ ", "");
    docs::commands::sh_within(&cluster, &all, LIMIT).await;
    assert_eq!(left(running).await, 0);
    let namespace = kubectl("get namespace foo-system").await;
    assert!(namespace.stderr.contains("NotFound"), "{namespace:?}");
    let crd = kubectl("get crd/foos.samplecontroller.k8s.io").await;
    assert!(crd.stderr.contains("NotFound"), "{crd:?}");
    controller.stop().await;
}

/// Replaces the cluster's own kube-controller-manager, which may send a thousand requests per second.
async fn default_controller_manager(cluster: &Cluster) -> tokio::process::Child {
    let ready = cluster.ready();
    let pid = ready.pids["kube-controller-manager"].cast_signed();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let path = |name: &str| ready.dir.join(name).display().to_string();
    let mut command = bound_command(ready.bin.join("kube-controller-manager"));
    command
        .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
        .args([
            "--leader-elect=false",
            "--secure-port=0",
            "--node-monitor-grace-period=24h",
        ])
        .arg(format!(
            "--service-account-private-key-file={}",
            path("sa.key")
        ))
        .arg(format!("--root-ca-file={}", path("pki/apiserver.crt")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let manager = command.kill_on_drop(true).spawn().unwrap();
    // It works once it has deleted an object with a missing owner.
    let owned = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": uuid::Uuid::new_v4().to_string()},
        ]},
    });
    let create = ["create", "-f", "-"];
    let created = cluster.kubectl_stdin(&create, &owned.to_string()).await;
    created.success();
    let wait = ["wait", "--for=delete", "configmap/owned", "--timeout=120s"];
    cluster.kubectl(&wait).await.success();
    manager
}
