//! Installs `deploy/` with server-side fencing, creates pods of the controller, and recognizes rejections by the policy.

use std::{path::Path, time::Duration};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, Config, api::PostParams, core::Status};
use operator_testkit::cluster::{AuditEvent, Cluster, as_pod, eventually};
use serde_json::json;

/// Namespace of the controller and its Lease.
pub const NAMESPACE: &str = "foo-system";
pub const ACCOUNT: &str = "system:serviceaccount:foo-system:foo-controller";
/// Name of the fencing record.
pub const RECORD: &str = "foo-controller-fencing";
/// Part of the message of a rejection.
pub const POLICY: &str = "ValidatingAdmissionPolicy 'foo-controller-fencing'";

/// Time limit of the wait for the policy: an API server enforces it with a delay.
const DEADLINE: Duration = Duration::from_secs(30);

/// Applies the overlay, and waits for the CRD and the policy.
pub async fn install(cluster: &Cluster) {
    apply_overlay(cluster).await;
    is_in_force(&cluster.kube_config().await).await;
    let crd = "crd/foos.samplecontroller.k8s.io";
    let wait = ["wait", "--for=condition=Established", "--timeout=30s", crd];
    cluster.kubectl(&wait).await.success();
}

/// Applies an overlay of `deploy/` with the component, written as a user would.
pub async fn apply_overlay(cluster: &Cluster) {
    let overlay = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = overlay.path().canonicalize().unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let deploy = format!(
        "{}{}",
        "../".repeat(path.components().count() - 1),
        deploy.strip_prefix("/").unwrap().display()
    );
    let kustomization = json!({
        "resources": [deploy],
        "components": [format!("{deploy}/components/fencing")],
    });
    std::fs::write(path.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let overlay = path.to_str().unwrap();
    cluster.kubectl(&["apply", "-k", overlay]).await.success();
}

/// Waits until this API server rejects a write of a pod that does not lead.
pub async fn is_in_force(server: &Config) {
    let mut config = server.clone();
    let pod = as_pod(ACCOUNT, "leads-never", "uid");
    config.headers.extend(pod);
    let client = Client::try_from(config).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client, "default");
    let labels = json!({ "app": "a" });
    let owner = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "f", "uid": "u", "controller": true,
    });
    let fenced = serde_json::from_value(json!({
        "metadata": { "name": "fenced", "ownerReferences": [owner] },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        },
    }));
    let fenced = fenced.unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(
        DEADLINE,
        "the policy is in force",
        async || match deployments.create(&dry_run, &fenced).await {
            Err(kube::Error::Api(status)) if is_fenced(&status) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
}

/// Creates a pod with this service account in the controller's namespace. No kubelet starts it. Returns its UID.
pub async fn create_pod(cluster: &Cluster, name: &str, account: &str) -> String {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "serviceAccountName": account,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "c",
                "image": "i",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let create = ["create", "-f", "-", "-o=jsonpath={.metadata.uid}"];
    let pod = pod.to_string();
    cluster.kubectl_stdin(&create, &pod).await.success()
}

/// Returns whether the policy has rejected a request.
pub fn is_fenced(refused: &Status) -> bool {
    refused.code == 403 && refused.message.contains(POLICY)
}

/// Returns the writes of a user that the policy has rejected.
pub fn rejections<'a>(log: &'a [AuditEvent], user: &str) -> impl Iterator<Item = &'a AuditEvent> {
    log.iter().filter(move |event| {
        let message = event.response_object["message"].as_str();
        let is_fenced = event.code == 403 && message.is_some_and(|it| it.contains(POLICY));
        is_fenced && event.user == user
    })
}
