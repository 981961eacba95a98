//! Two installations in one namespace, which divide the Foos by label. Runs the real controller on a real API server.

use std::{net::SocketAddr, time::Duration};

use foo_controller::api::Foo;
use futures::future::join_all;
use k8s_openapi::{
    api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ServiceAccount},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use operator_testkit::cluster::{Cluster, eventually};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use crate::support::{
    controller::Controller,
    foos::{DEADLINE, audited_alone, converged, create, names},
    installations::{Judge, Judged},
};

const LABEL: &str = "samplecontroller.k8s.io/installation";
const HOLDER: &str = "samplecontroller.k8s.io/lease-holder";

/// The user and the name of each installation.
const INSTALLATIONS: [(&str, &str); 2] = [("replica-1", ""), ("replica-2", "canary")];
const FOOS: usize = 8;
/// Time without changes and requests. More than two resyncs.
const QUIET: Duration = Duration::from_secs(3);

fn start(cluster: &Cluster, namespace: &str, (user, installation): (&str, &str)) -> Controller {
    Controller::spawn(|command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .env("POD_NAME", user)
            .env("POD_UID", "0")
            .env("POD_NAMESPACE", namespace)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
            .args(["--namespace", namespace, "--resync", "1s"])
            .args(["--installation", installation]);
    })
}

async fn metrics(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Users move each Foo back and forth and change it at the same time. Each write is by the installation that the label names. Each
/// installation has its own Lease and its own fencing record.
#[tokio::test(flavor = "multi_thread")]
async fn i21_each_foo_is_written_by_its_installation() {
    let cluster = audited_alone().await;
    let (client, namespace) = (cluster.client().await, cluster.namespace("divided").await);
    let leases = ["foo-controller", "foo-controller-canary"];
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    for lease in leases {
        cluster.release_lease(&namespace, lease).await;
        let record = json!({ "metadata": { "name": format!("{lease}-fencing") } });
        let record = serde_json::from_value(record).unwrap();
        accounts
            .create(&PostParams::default(), &record)
            .await
            .unwrap();
    }
    let mut controllers = INSTALLATIONS.map(|it| start(&cluster, &namespace, it));
    for controller in &controllers {
        controller.wait_for_log("gained the lease").await;
    }
    let names = names("foo", FOOS);
    create(&client, &namespace, &names).await;

    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let moves = names.iter().enumerate().map(|(number, name)| {
        let foos = foos.clone();
        async move {
            // A few Foos move fast. The others stay for longer than the judge grants the former installation.
            let (moves, changes) = if number % 4 == 0 { (16, 1) } else { (4, 18) };
            for turn in 0..moves {
                let (_, installation) = INSTALLATIONS[usize::from(turn % 2 == 0)];
                // The default installation also serves an empty value.
                let value = (!installation.is_empty() || turn % 4 == 1).then_some(installation);
                let labels = json!({ "metadata": { "labels": { LABEL: value } } });
                let params = PatchParams::default();
                foos.patch(name, &params, &Patch::Merge(labels))
                    .await
                    .unwrap();
                for change in 0..changes {
                    let replicas = json!({ "spec": { "replicas": 1 + (turn + change) % 3 } });
                    foos.patch(name, &params, &Patch::Merge(replicas))
                        .await
                        .unwrap();
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    });
    join_all(moves).await;
    converged(&client, &namespace, &names).await;

    let holders = async || {
        let all: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        let mut found = Vec::new();
        for lease in leases {
            let held = all.get(lease).await.unwrap().spec.unwrap();
            let record = accounts.get(&format!("{lease}-fencing")).await.unwrap();
            let recorded = record.metadata.annotations.unwrap_or_default();
            assert_eq!(recorded.get(HOLDER), held.holder_identity.as_ref());
            found.push(held.holder_identity.unwrap_or_default());
        }
        found
    };
    assert_eq!(holders().await, ["replica-1_0", "replica-2_0"]);

    for (controller, (_, installation)) in controllers.iter().zip(INSTALLATIONS) {
        let metrics = metrics(controller.http_addr().await).await;
        let mut lines = metrics.lines();
        let leads = lines.find(|it| it.starts_with("leader_election_master_status{"));
        let leads = leads.unwrap();
        let label = format!("installation=\"{installation}\"");
        assert!(leads.contains(&label) && leads.ends_with(" 1"), "{leads}");
    }

    // Events are written last.
    sleep(Duration::from_secs(2)).await;
    let from = Timestamp::now();
    sleep(QUIET).await;
    let log = cluster.audit();
    let judge = Judge {
        log: &log,
        label: LABEL,
        users: INSTALLATIONS.into(),
        namespace: &namespace,
    };
    assert_eq!(judge.requests((from, Timestamp::now())), [""; 0]);
    let statuses = judge.statuses("foos/status");
    let deployments = judge.dependents("deployments", "foos");
    println!("statuses {statuses:?}, deployments {deployments:?}");
    for (user, _) in INSTALLATIONS {
        let Judged { right, in_flight } = deployments[user];
        assert!(statuses[user] >= FOOS / 2 && right > FOOS && in_flight < right / 2);
    }
    let lines = |text: &str| controllers.iter().map(|it| it.logged(text)).sum::<usize>();
    assert_eq!(lines("ERROR"), 0);
    assert_eq!(lines("lost the lease"), 0);
    assert_eq!(controllers[1].logged("installation=\"canary\""), 1);
    for controller in &mut controllers {
        assert_eq!(controller.stop().await, 0);
    }
}

/// A new leader reconciles the Foos of its installation only. `doctor` reports the others, unless their installation is its own.
#[tokio::test]
async fn a_label_without_its_installation_is_reported() {
    let cluster = audited_alone().await;
    let (client, namespace) = (cluster.client().await, cluster.namespace("nobody").await);
    let names = names("foo", 2);
    create(&client, &namespace, &names).await;
    let label = [
        "label",
        "foo",
        "foo-000",
        &format!("{LABEL}=gone"),
        "-n",
        &namespace,
    ];
    cluster.kubectl(&label).await.success();
    cluster.release_lease(&namespace, "foo-controller").await;
    let _controller = start(&cluster, &namespace, INSTALLATIONS[0]);
    converged(&client, &namespace, &names[1..]).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    assert!(deployments.get_opt("foo-000").await.unwrap().is_none());
    let doctor = async |args: &[&str]| {
        let mut command =
            operator_testkit::cluster::bound_command(env!("CARGO_BIN_EXE_foo-controller"));
        let output = command
            .args([
                "doctor",
                "--lease-namespace",
                &namespace,
                "--namespace",
                &namespace,
            ])
            .args(args)
            .env("KUBECONFIG", cluster.kubeconfig())
            .output()
            .unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        let lines = report
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    };
    let gap = "warning other installations 1 Foo has the label samplecontroller.k8s.io/installation=gone, and no installation of \
               this name runs: they are not reconciled";
    eventually(DEADLINE, "doctor reports it", async || {
        let report = doctor(&[]).await;
        if report.contains(gap) {
            Ok(())
        } else {
            Err(report)
        }
    })
    .await;
    let report = doctor(&["--installation=gone"]).await;
    assert!(!report.contains("has the label"), "{report}");
    let object = format!("--object={namespace}/foo-000");
    let report = doctor(&[&object]).await;
    let elsewhere = "the installation gone reconciles it, by its label samplecontroller.k8s.io/installation; this is the default \
                     installation";
    assert!(report.contains(elsewhere), "{report}");
}
