//! Installs `deploy/` with server-side fencing, creates pods of the controller, and recognizes rejections by the policy.

use std::path::Path;

use kube::core::Status;
use operator_testkit::cluster::Cluster;
use serde_json::json;

/// Namespace of the controller and its Lease.
pub const NAMESPACE: &str = "foo-system";
pub const ACCOUNT: &str = "system:serviceaccount:foo-system:foo-controller";
/// Name of the fencing record.
pub const RECORD: &str = "foo-controller-fencing";
/// Part of the message of a rejection.
pub const POLICY: &str = "ValidatingAdmissionPolicy 'foo-controller-fencing'";

/// Applies the overlay, and waits for the CRD.
pub async fn install(cluster: &Cluster) {
    apply_overlay(cluster).await;
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
