//! docs/operations.md, "On your platform": the renderings of its recipes, and the admission of the pods on `OpenShift`.

use super::*;

/// A policy like `restricted-v2`, the security context constraints for pods on `OpenShift`, in a namespace with the user IDs
/// 1000680000 to 1000689999. (The original also sets missing fields of a pod.)
const RESTRICTED_V2: &str = r"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: restricted-v2
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  variables:
  - name: containers
    expression: object.spec.containers + object.spec.?initContainers.orValue([])
  - name: users
    expression: >-
      [object.spec.?securityContext.?runAsUser.orValue(1000680000)] +
      variables.containers.map(it, it.?securityContext.?runAsUser.orValue(1000680000))
  validations:
  - expression: variables.users.all(user, user >= 1000680000 && user <= 1000689999)
    message: runAsUser must be in the ranges [1000680000, 1000689999]
  - expression: object.spec.?securityContext.?fsGroup.orValue(1000680000) == 1000680000
    message: fsGroup is not an allowed group
  - expression: >-
      !object.spec.?securityContext.?seLinuxOptions.hasValue() &&
      variables.containers.all(it, !it.?securityContext.?seLinuxOptions.hasValue())
    message: seLinuxOptions must be those of the namespace
  - expression: >-
      variables.containers.all(it, it.?securityContext.?allowPrivilegeEscalation.orValue(true) == false &&
        it.?securityContext.?capabilities.?drop.orValue([]).exists(name, name == 'ALL'))
    message: allowPrivilegeEscalation and capabilities
  - expression: >-
      !object.spec.?hostNetwork.orValue(false) &&
      object.spec.?volumes.orValue([]).all(it, has(it.configMap) || has(it.projected) || has(it.secret) || has(it.emptyDir))
    message: neither the host's network nor its files
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: restricted-v2
spec:
  policyName: restricted-v2
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: openshift
";

/// The pods of every rendering of `deploy/` leave users and groups to `OpenShift`.
#[tokio::test]
async fn openshift_accepts_the_pods() {
    let cluster = installed().await;
    let create = ["create", "namespace", "openshift"];
    cluster.kubectl(&create).await.success();
    let create = ["create", "serviceaccount", "default", "-n", "openshift"];
    cluster.kubectl(&create).await.success();
    let apply = ["apply", "-f", "-"];
    let applied = cluster.kubectl_stdin(&apply, RESTRICTED_V2).await;
    applied.success();
    let create = async |pod: &Value| {
        let mut pod = pod.clone();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = "pod".into();
        pod["metadata"]["namespace"] = "openshift".into();
        // The account is in another namespace.
        pod["spec"]["serviceAccountName"] = Value::Null;
        let create = ["create", "--dry-run=server", "-f", "-"];
        cluster.kubectl_stdin(&create, &pod.to_string()).await
    };
    let mut tried = 0;
    for (name, yaml) in renderings().await {
        let objects = Objects(serde_saphyr::from_multiple(&yaml).unwrap());
        for deployment in objects.all("Deployment") {
            let mut pod = deployment["spec"]["template"].clone();
            if tried == 0 {
                pod["spec"]["securityContext"]["runAsUser"] = 65532.into();
                eventually(DEADLINE, "the policy judges", async || {
                    let refused = create(&pod).await.stderr;
                    let by_it = refused.contains("runAsUser must be in the ranges");
                    by_it.then_some(()).ok_or(refused)
                })
                .await;
                pod = deployment["spec"]["template"].clone();
            }
            let created = create(&pod).await;
            assert!(created.status.success(), "{name}: {}", created.stderr);
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

/// Returns the YAML blocks in a section of docs/operations.md.
fn blocks(title: &str) -> Vec<Value> {
    let document = docs::document("docs/operations.md");
    let blocks = document.section(title).text.split("\n```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("\n```").unwrap().0);
    blocks
        .map(|yaml| serde_saphyr::from_str(yaml).unwrap())
        .collect()
}

/// Returns an overlay of `deploy/base` with components, and with the additions of the documentation.
fn with(components: &[&str], added: &Value) -> TempDir {
    let overlay = overlay("base", components);
    let file = overlay.path().join("kustomization.yaml");
    let mut kustomization: Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for (field, value) in added.as_object().unwrap() {
        kustomization[field] = value.clone();
    }
    fs::write(&file, kustomization.to_string()).unwrap();
    overlay
}

#[tokio::test]
async fn labels_are_those_that_a_prometheus_selects() {
    let [labels] = &blocks("Labels for kube-prometheus-stack")[..] else {
        panic!("one block");
    };
    let objects = rendered(with(&["prometheus"], labels).path()).await;
    for kind in ELSEWHERE.split(',') {
        assert_eq!(
            objects.one(kind)["metadata"]["labels"]["release"],
            "kube-prometheus-stack"
        );
    }
    let pod = &objects.pod()["metadata"]["labels"];
    assert_eq!(pod["release"], Value::Null, "no pod is replaced for it");
}

/// The pods are excluded from service meshes.
#[tokio::test]
async fn pods_are_excluded_from_meshes() {
    let [patches] = &blocks("Service meshes")[..] else {
        panic!("one block");
    };
    let mut usual = rendered(&root().join("deploy/base")).await.pod().clone();
    let pod = rendered(with(&[], patches).path()).await.pod().clone();
    let metadata = &mut usual["metadata"];
    metadata["labels"]["sidecar.istio.io/inject"] = "false".into();
    metadata["labels"]["istio.io/dataplane-mode"] = "none".into();
    metadata["annotations"]["linkerd.io/inject"] = "disabled".into();
    assert_eq!(pod, usual);
}

/// The settings of an overlay take effect, and cause a rollout.
#[tokio::test]
async fn an_overlay_has_settings_of_its_own() {
    let usual = rendered(&root().join("deploy/base")).await;
    let mounted = |objects: &Objects| {
        let volume = &objects.pod()["spec"]["volumes"][0];
        volume["configMap"]["name"].as_str().unwrap().to_owned()
    };
    for settings in blocks("Settings in an overlay") {
        let overlay = with(&[], &settings);
        fs::write(overlay.path().join("foo-controller.toml"), "workers = 5\n").unwrap();
        let objects = rendered(overlay.path()).await;
        let config = objects.config();
        assert!(config.contains("workers = 5  # "), "{config}");
        assert_ne!(mounted(&objects), mounted(&usual));
    }
}

/// A copy of `deploy/` needs `config/`. Without it, the error contains the missing folder, and `deploy/base` explains it.
#[tokio::test]
async fn a_copy_of_deploy_needs_config() {
    let copy = tempfile::tempdir().unwrap();
    let cp = |folder: &str| {
        let mut cp = Command::new("cp");
        let from = root().join(folder);
        assert!(
            cp.arg("-r")
                .arg(from)
                .arg(copy.path())
                .status()
                .unwrap()
                .success()
        );
    };
    cp("deploy");
    let production = copy.path().join("deploy/overlays/production");
    let kustomize = ["kustomize", production.to_str().unwrap()];
    let failed = CLUSTER.kubectl(&kustomize).await.stderr;
    assert!(failed.contains("../../config"), "{failed}");
    let base = fs::read_to_string(copy.path().join("deploy/base/kustomization.yaml")).unwrap();
    assert!(base.contains("copy config/ with it"), "{base}");
    cp("config");
    let copied = rendered(&production).await;
    let here = rendered(&root().join("deploy/overlays/production")).await;
    assert_eq!(copied.by_name(), here.by_name());
}
