//! The installation by Helm and by kustomize with real pods. `make e2e` runs this on a cluster with IPv4, and on a cluster with IPv6
//! alone.

use std::{env, fs, net::IpAddr, time::Instant};

use kube::Client;

use super::{
    Installation, NAME, NAMESPACE, PLAIN, STAND_IN, assert_invariants, node, report_time,
    rolled_out, run, sample_gone,
};

/// docs/operations.md, "Helm": three commands to a Ready Foo.
#[tokio::test]
#[ignore = "make e2e"]
async fn three_commands_lead_to_a_ready_foo() {
    let family = env::var("FAMILY").unwrap_or_else(|_| "4".to_owned());
    PLAIN.delete().await;
    // The node pulls no image, so the Foos' pods have an image that is there.
    let configuration = node().join("configuration.toml");
    fs::write(&configuration, format!("image = \"{STAND_IN}\"\n")).unwrap();
    let begin = Instant::now();
    run(&format!(
        "helm install {NAME} deploy/chart --namespace {NAMESPACE} --create-namespace --wait --set-file configuration={}",
        configuration.display()
    ))
    .await;
    run("kubectl apply -f config/samples/foo.yaml").await;
    run("kubectl wait --for=condition=Ready foo/foo-sample --timeout=60s").await;
    report_time(
        &format!("IPv{family}: helm install to a Ready Foo, three commands"),
        begin,
    );

    let installation = Installation {
        client: Client::try_default().await.unwrap(),
    };
    let pods = installation.pods().await;
    assert_eq!(pods.len(), 2);
    for pod in &pods {
        let ip: IpAddr = pod.ip.parse().unwrap();
        assert_eq!(ip.is_ipv6(), family == "6", "{pods:?}");
    }
    // A Service of this family, and the address that the program listens on.
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/foo-controller-metrics:http");
    let metrics = run(&format!("kubectl get --raw {service}/proxy/metrics")).await;
    assert!(metrics.contains("\n# TYPE "), "{metrics}");
    let leader = installation.leader(None).await;
    let doctor = format!(
        "kubectl exec -n {NAMESPACE} {} -- /proc/1/exe doctor",
        leader.name
    );
    let found = run(&doctor).await;
    assert!(
        found.contains(&format!("held by {}", leader.name)),
        "{found}"
    );

    let begin = Instant::now();
    run(&format!(
        "kubectl delete pod -n {NAMESPACE} {}",
        leader.name
    ))
    .await;
    installation.leader(Some(&leader)).await;
    report_time(
        &format!("IPv{family}: the leader's pod deleted, another leads"),
        begin,
    );
    run("kubectl scale foo/foo-sample --replicas=2").await;
    installation.available("foo-sample", 2).await;
    assert_invariants();

    run("kubectl delete foo/foo-sample --cascade=foreground --timeout=60s").await;
    sample_gone().await;
    run(&format!(
        "helm uninstall {NAME} --namespace {NAMESPACE} --wait --timeout 60s"
    ))
    .await;
    run("kubectl delete crd foos.samplecontroller.k8s.io").await;

    // Install by kustomize as well.
    let begin = Instant::now();
    PLAIN.apply().await;
    rolled_out().await;
    run("kubectl apply -f config/samples/foo.yaml").await;
    run("kubectl wait --for=condition=Ready foo/foo-sample --timeout=60s").await;
    report_time(
        &format!("IPv{family}: kubectl apply -k to a Ready Foo"),
        begin,
    );
    run("kubectl delete foo/foo-sample --cascade=foreground --timeout=60s").await;
    sample_gone().await;
    assert_invariants();
}
