//! The command `migrate` on a real API server, with the permissions of `deploy/migrate`.

use std::{fs, path::PathBuf, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use operator_testkit::cluster::{Cluster, Options, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::controller::Controller;

const DEADLINE: Duration = Duration::from_secs(30);
const CRD: &str = "foos.samplecontroller.k8s.io";
const FORMER: &str = "v1alpha0";
const CURRENT: &str = "v1alpha1";
const FOOS: usize = 30;

/// A control plane with Foos that are stored in [`FORMER`].
struct World {
    cluster: Cluster,
    home: TempDir,
}

impl World {
    async fn start() -> Self {
        let cluster = Cluster::start(Options {
            audit: true,
            controllers: false,
        });
        let home = tempfile::tempdir().unwrap();
        let world = Self { cluster, home };
        world.apply(&crd(FORMER)).await;
        world.stores(FORMER).await;
        let foos = (0..FOOS).map(|n| foo(&format!("foo-{n}"), FORMER));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": foos.collect::<Vec<_>>() });
        world.apply(&list).await;
        world.kubectl("create namespace foo-system").await;
        let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/migrate/rbac.yaml");
        world.kubectl(&format!("apply -f {rbac}")).await;
        world
    }

    async fn kubectl(&self, args: &str) -> String {
        let args: Vec<_> = args.split(' ').collect();
        self.cluster.kubectl(&args).await.success()
    }

    async fn apply(&self, object: &Value) {
        let (args, input) = (["apply", "--server-side", "-f-"], object.to_string());
        self.cluster.kubectl_stdin(&args, &input).await.success();
    }

    async fn crd(&self) -> CustomResourceDefinition {
        let crds = Api::all(self.cluster.client().await);
        crds.get(CRD).await.unwrap()
    }

    /// Waits until the API server writes Foos in `version`.
    async fn stores(&self, version: &str) {
        self.kubectl(&format!(
            "wait --for=condition=Established --timeout=30s crd/{CRD}"
        ))
        .await;
        let what = format!("Foos are served in {version}");
        eventually(DEADLINE, &what, async || {
            let path = format!("/apis/samplecontroller.k8s.io/{version}/foos");
            let listed = self.cluster.kubectl(&["get", "--raw", &path]).await;
            listed.status.success().then_some(()).ok_or(())
        })
        .await;
    }

    async fn stored_versions(&self) -> Vec<String> {
        self.crd().await.status.unwrap().stored_versions.unwrap()
    }

    /// Starts `migrate` as the service account of `deploy/migrate`.
    async fn migrate(&self) -> Controller {
        let create = "create token foo-controller-migrate -n foo-system";
        let token = self.kubectl(create).await;
        let admin = fs::read_to_string(self.cluster.kubeconfig()).unwrap();
        let mut config: Value = serde_saphyr::from_str(&admin).unwrap();
        for user in config["users"].as_array_mut().unwrap() {
            user["user"] = json!({ "token": token.trim() });
        }
        let path: PathBuf = self.home.path().join("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        Controller::spawn(|command| {
            command.env("KUBECONFIG", &path).arg("migrate");
        })
    }
}

/// The CRD of `deploy`, stored in this version and served in both.
fn crd(stored: &str) -> Value {
    let mut crd = serde_json::to_value(foo_controller::api::crd()).unwrap();
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    versions.push(versions[0].clone());
    versions[1]["name"] = FORMER.into();
    for version in versions {
        version["storage"] = (version["name"] == stored).into();
    }
    crd
}

fn foo(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": format!("samplecontroller.k8s.io/{version}"),
        "kind": "Foo",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "deploymentName": name, "replicas": 1 },
    })
}

/// After `migrate`, the former version can be removed from the CRD, and all Foos can be read. Before, the API server rejects the
/// CRD.
///
/// A Foo that cannot be rewritten is named, keeps no other Foo from being rewritten, and keeps the former version.
#[tokio::test(flavor = "multi_thread")]
async fn every_foo_is_rewritten_before_the_former_version_is_removed() {
    let world = World::start().await;
    // Its managedFields have the stored version, and it is stored in the former one.
    world.apply(&foo("through", CURRENT)).await;
    let mut early = world.migrate().await;
    assert_eq!(early.exit_code().await, 1, "{}", early.log());
    let stores =
        format!("{CRD}: the CRD in the cluster stores {FORMER}, and this program {CURRENT}");
    early.wait_for_log(&stores).await;

    world.apply(&crd(CURRENT)).await;
    world.stores(CURRENT).await;
    assert_eq!(world.stored_versions().await, [FORMER, CURRENT]);
    let mut stopped = world.migrate().await;
    stopped.wait_for_log("migrating to v1alpha1").await;
    assert_eq!(stopped.stop().await, 1);
    stopped.wait_for_log("run migrate again").await;

    // A policy of the cluster rejects the writes of one Foo, and others change or vanish during the run.
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "frozen" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["samplecontroller.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["UPDATE"],
                "resources": ["foos"],
            }] },
            "validations": [{ "expression": "object.metadata.name != 'foo-7'", "message": "frozen" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "frozen" },
        "spec": { "policyName": "frozen", "validationActions": ["Deny"] },
    });
    world.apply(&policy).await;
    world.apply(&binding).await;
    eventually(DEADLINE, "the policy is in force", async || {
        let args = "label foo foo-7 -n default tried=yes --overwrite --dry-run=server";
        let args: Vec<_> = args.split(' ').collect();
        let labelled = world.cluster.kubectl(&args).await;
        (!labelled.status.success()).then_some(()).ok_or(())
    })
    .await;
    let mut migrate = world.migrate().await;
    migrate.wait_for_log("migrating to v1alpha1").await;
    world.apply(&foo("late", FORMER)).await;
    assert_eq!(migrate.exit_code().await, 1, "{}", migrate.log());
    migrate.wait_for_log("name=\"foo-7\"").await;
    migrate
        .wait_for_log("objects that could not be rewritten: 1")
        .await;
    assert_eq!(migrate.logged("cannot rewrite the object"), 1);
    assert_eq!(world.stored_versions().await, [FORMER, CURRENT]);
    let without = serde_json::to_string(&foo_controller::api::crd()).unwrap();
    let apply = ["apply", "--server-side", "-f-"];
    let refused = world.cluster.kubectl_stdin(&apply, &without);
    assert!(!refused.await.status.success(), "the CRD was accepted");

    world
        .kubectl("delete validatingadmissionpolicybinding frozen")
        .await;
    eventually(DEADLINE, "the policy is gone", async || {
        let args = "label foo foo-7 -n default tried=yes --overwrite --dry-run=server";
        let args: Vec<_> = args.split(' ').collect();
        let labelled = world.cluster.kubectl(&args).await;
        labelled.status.success().then_some(()).ok_or(())
    })
    .await;
    let mut migrate = world.migrate().await;
    assert_eq!(migrate.exit_code().await, 0, "{}", migrate.log());
    assert_eq!(world.stored_versions().await, [CURRENT]);
    world
        .apply(&serde_json::to_value(foo_controller::api::crd()).unwrap())
        .await;
    eventually(DEADLINE, "the former version is not served", async || {
        let path = format!("/apis/samplecontroller.k8s.io/{FORMER}/foos");
        let listed = world.cluster.kubectl(&["get", "--raw", &path]).await;
        (!listed.status.success()).then_some(()).ok_or(())
    })
    .await;
    let listed = world.kubectl("get foos -n default -o name").await;
    assert_eq!(listed.lines().count(), FOOS + 2, "{listed}");

    // Nothing is sent for a CRD that is migrated.
    let before = writes(&world.cluster);
    let mut migrate = world.migrate().await;
    assert_eq!(migrate.exit_code().await, 0, "{}", migrate.log());
    migrate.wait_for_log("nothing to migrate").await;
    assert_eq!(writes(&world.cluster), before);
}

/// Returns the number of requests of `migrate` that may write.
fn writes(cluster: &Cluster) -> usize {
    let log = cluster.audit();
    let ours = log
        .iter()
        .filter(|it| it.user.ends_with(":foo-controller-migrate"));
    ours.filter(|it| !matches!(&*it.verb, "get" | "list"))
        .count()
}
