//! The command `doctor` on a real API server: each line and exit code, and the absence of writes.

mod admission;
mod surroundings;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use foo_simulation::invariants::FENCING_HOLDER;
use operator_testkit::{
    cluster::{Cluster, Options, bound_command, eventually},
    collector::{Behaviour, Collector, Mock, Protocol},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::{Mutex, MutexGuard},
};

use crate::support::fencing;

/// Not shared with other files: the installed objects apply to all namespaces.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    Cluster::start(Options {
        audit: true,
        controllers: false,
    })
});

const DEADLINE: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_foo-controller");
const CRD: &str = "foos.samplecontroller.k8s.io";
const ANSWERS: [&str; 16] = [
    "ok API server: v1 at SERVER",
    "ok clock: within 5s of the API server's",
    "ok CRD foos.samplecontroller.k8s.io: established, the same as this program's",
    "ok permissions in all namespaces: all granted",
    "ok permissions for the Lease: all granted",
    "ok permissions for the fencing record: all granted",
    "ok Lease: foo-system/foo-controller: no holder",
    "ok fencing policy: foo-controller-fencing uses the record serviceaccount/foo-controller-fencing in foo-system",
    "ok webhooks on the Lease: no webhook matches",
    "ok webhooks on writes: no webhook matches",
    "ok admission policies: none matches the controller's writes, apart from the fencing policy",
    "ok other installations: none",
    "ok namespaces with foos: 0 in 0",
    "skipped collector: telemetry.endpoint is not set, nor an OTEL_EXPORTER_OTLP_*ENDPOINT",
    "ok file descriptors: enough for 2 watches",
    "skipped replica: http.debug_state is false",
];

/// Output and exit code of the command.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    /// Returns the lines as `grade check: text`, with variable parts replaced by a fixed word.
    fn lines(&self) -> Vec<String> {
        let server = &CLUSTER.ready().server;
        let lines = self.stdout.lines().map(|line| {
            let (grade, rest) = line.split_at(9);
            let (check, text) = rest.split_once("  ").unwrap();
            let text = text.trim_start().replace(server, "SERVER");
            let text = match text.strip_prefix("v1.") {
                Some(text) => format!("v1 {}", text.split_once(' ').unwrap().1),
                None => text,
            };
            format!("{} {check}: {text}", grade.trim_end())
        });
        lines.collect()
    }

    /// Checks the exit code, and that the lines describe a healthy cluster. Each line in `differ` replaces the line of the same
    /// check.
    fn is_but_for(&self, code: i32, differ: &[&str]) {
        let about = |line: &str| {
            line.split_once(' ')
                .unwrap()
                .1
                .split(": ")
                .next()
                .map(str::to_owned)
        };
        let expected = ANSWERS.map(|line| {
            let mut found = differ.iter().filter(|it| about(it) == about(line));
            found.next().map_or(line, |it| *it)
        });
        assert!(differ.iter().all(|it| expected.contains(it)), "{differ:?}");
        assert_eq!(self.lines(), expected, "{self:?}");
        assert_eq!((self.code, &*self.stderr), (Some(code), ""));
    }
}

/// Runs `doctor` for the Lease of `deploy`, with no other environment variables.
async fn doctor(kubeconfig: &Path, flags: &[&str]) -> Said {
    run(bound_command(PROGRAM), kubeconfig, flags).await
}

async fn run(mut command: Command, kubeconfig: &Path, flags: &[&str]) -> Said {
    let home = tempfile::tempdir().unwrap();
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home.path())
        .env("KUBECONFIG", kubeconfig)
        .args(["doctor", "--lease-namespace=foo-system"])
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

async fn administrator() -> Said {
    doctor(CLUSTER.kubeconfig(), &[]).await
}

async fn kubectl(args: &str) -> String {
    let args: Vec<_> = args.split(' ').collect();
    CLUSTER.kubectl(&args).await.success()
}

async fn apply(manifest: &Value) {
    let manifest = manifest.to_string();
    let applied = CLUSTER.kubectl_stdin(&["apply", "-f", "-"], &manifest);
    applied.await.success();
}

/// Changes `object` with a JSON merge patch.
async fn patch(object: &str, change: &Value) {
    let change = change.to_string();
    let args = ["patch", "--type=merge", "-p", &change, "-n", "foo-system"];
    let object = object.split(' ');
    let args: Vec<_> = args.into_iter().chain(object).collect();
    CLUSTER.kubectl(&args).await.success();
}

/// Writes this holder into the fencing record.
async fn record(holder: &str) {
    let named = json!({ "metadata": { "annotations": { (FENCING_HOLDER): holder } } });
    patch("serviceaccount foo-controller-fencing", &named).await;
}

/// Returns exclusive use of the cluster, with all of `deploy` and the fencing component installed, and with a released Lease.
async fn installed() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    let alone = ALONE.lock().await;
    // A failed test leaves its webhooks.
    kubectl("delete validatingwebhookconfiguration/checked mutatingwebhookconfiguration/changing --ignore-not-found").await;
    fencing::install(&CLUSTER).await;
    CLUSTER.release_lease("foo-system", "foo-controller").await;
    alone
}

/// Returns a kubeconfig that impersonates this user.
fn kubeconfig_as(folder: &Path, user: &str) -> PathBuf {
    let text = std::fs::read(CLUSTER.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    kubeconfig["users"][0]["user"]["as"] = user.into();
    let path = folder.join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

/// A complete installation has no findings. All requests except reviews are reads.
#[tokio::test]
async fn a_healthy_cluster_is_found_healthy_and_left_as_it_is() {
    let _alone = installed().await;
    let before = CLUSTER.audit().len();
    let said = administrator().await;
    said.is_but_for(0, &[]);
    let lines = said.stdout.lines().zip(ANSWERS).skip(1);
    let columns = lines.map(|(line, answer)| line.find(answer.split_once(": ").unwrap().1));
    assert_eq!(columns.collect::<BTreeSet<_>>().len(), 1, "{}", said.stdout);

    let requests = CLUSTER.audit().split_off(before);
    let requests = requests
        .into_iter()
        .filter(|it| it.user_agent.starts_with("foo-controller/"));
    let requests: Vec<_> = requests.map(|it| (it.verb, it.resource)).collect();
    assert!(requests.len() > 10, "{requests:?}");
    let odd: Vec<_> = requests
        .iter()
        .filter(|(verb, resource)| {
            !matches!(&**verb, "get" | "list") && !resource.ends_with("subjectaccessreviews")
        })
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}

/// The line about the Lease contains the holder and the time since the last renewal.
#[tokio::test]
async fn the_state_of_the_lease_is_reported() {
    let _alone = installed().await;
    let lease = "lease foo-controller";
    let hold = async |renewed: &str, seconds: i32| {
        let spec = json!({ "holderIdentity": "a_b", "renewTime": renewed, "leaseDurationSeconds": seconds });
        patch(lease, &json!({ "spec": spec })).await;
        record("a_b").await;
    };
    hold("2020-01-01T00:00:00.000000Z", 15).await;
    let said = administrator().await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let line = &said.lines()[6];
    assert!(
        line.starts_with("warning Lease: foo-system/foo-controller: held by a_b, renewed "),
        "{line}"
    );
    assert!(
        line.ends_with(
            " ago, expired after 15s: no running replica can take it; check their pods and logs"
        ),
        "{line}"
    );
    patch(lease, &json!({ "spec": { "renewTime": null } })).await;
    administrator().await.is_but_for(
        0,
        &[
            "warning Lease: foo-system/foo-controller: held by a_b, but without a renewTime, or without a duration: it was \
             edited; a replica takes it after 15s",
        ],
    );
    kubectl("delete lease foo-controller -n foo-system").await;
    administrator().await.is_but_for(
        0,
        &["ok Lease: foo-system/foo-controller: none yet, the first replica creates it"],
    );
    let count = "count/leases.coordination.k8s.io";
    kubectl(&format!("create quota q --hard={count}=0 -n foo-system")).await;
    let status = json!({ "status": { "hard": { count: "0" }, "used": { count: "0" } } });
    patch("quota q --subresource=status", &status).await;
    let said = administrator().await;
    kubectl("delete quota q -n foo-system").await;
    said.is_but_for(
        1,
        &[
            "error Lease: foo-system/foo-controller: none yet, and no replica can create it: ResourceQuota foo-system/q is \
             used up: count/leases.coordination.k8s.io 0 of 0; raise it",
        ],
    );
    doctor(CLUSTER.kubeconfig(), &["--leader-election=false"])
        .await
        .is_but_for(
            0,
            &[
                "skipped permissions for the Lease: leader_election.enabled is false",
                "skipped Lease: leader_election.enabled is false",
                "skipped webhooks on the Lease: leader_election.enabled is false",
            ],
        );
}

/// A CRD that is older, newer or different is graded by its effect on the API server. So is a missing CRD.
#[tokio::test]
async fn a_crd_of_another_version_is_reported() {
    type Change = fn(&mut Value);
    let _alone = installed().await;
    let cases: [(Change, i32, &str); 7] = [
        (
            |version| {
                remove(
                    version,
                    "/schema/openAPIV3Schema/properties/status/properties",
                    "selector",
                );
            },
            1,
            "error CRD foos.samplecontroller.k8s.io: older than this program: it lacks \
             v1alpha1.schema.properties.status.properties.selector: apply the CRD that the command crd prints",
        ),
        (
            |version| {
                remove(version, "", "subresources");
                remove(version, "", "additionalPrinterColumns");
            },
            1,
            "error CRD foos.samplecontroller.k8s.io: older than this program: it lacks v1alpha1.subresources (and 1 more): apply \
             the CRD that the command crd prints",
        ),
        (
            |version| {
                let schema = &mut version["schema"]["openAPIV3Schema"];
                schema["properties"]["spec"]["properties"]["replicas"]["maximum"] = 5.into();
            },
            1,
            "error CRD foos.samplecontroller.k8s.io: different from this program's: \
             v1alpha1.schema.properties.spec.properties.replicas.maximum is 5, and not 10: apply the CRD that the command crd \
             prints",
        ),
        (
            |version| {
                let schema = &mut version["schema"]["openAPIV3Schema"];
                schema["properties"]["spec"]["properties"]["color"] = json!({ "type": "string" });
            },
            0,
            "warning CRD foos.samplecontroller.k8s.io: newer than this program: it has \
             v1alpha1.schema.properties.spec.properties.color: upgrade this program, too",
        ),
        (
            |version| version["additionalPrinterColumns"][0]["name"] = "Of".into(),
            0,
            "warning CRD foos.samplecontroller.k8s.io: different from this program's: v1alpha1.additionalPrinterColumns \
             differs: apply the CRD that the command crd prints",
        ),
        (
            |version| version["served"] = false.into(),
            1,
            "error CRD foos.samplecontroller.k8s.io: different from this program's: v1alpha1.served is false, and not true: \
             apply the CRD that the command crd prints",
        ),
        (
            |_| {},
            0,
            "ok CRD foos.samplecontroller.k8s.io: established, the same as this program's",
        ),
    ];
    for (change, code, line) in cases {
        let mut crd = serde_json::to_value(foo_controller::api::crd()).unwrap();
        change(&mut crd["spec"]["versions"][0]);
        // `replace` keeps nothing of the previous CRD.
        let crd = crd.to_string();
        let replace = CLUSTER.kubectl_stdin(&["replace", "-f", "-"], &crd);
        replace.await.success();
        administrator().await.is_but_for(code, &[line]);
    }

    let folder = tempfile::tempdir().unwrap();
    let nobody = kubeconfig_as(folder.path(), "nobody");
    // The API server may never finish the deletion of a CRD whose storage it is reinitializing.
    eventually(DEADLINE, "Foos are served again", async || {
        let foos = CLUSTER.kubectl(&["get", "foos", "-A"]).await;
        foos.status.success().then_some(()).ok_or(foos.stderr)
    })
    .await;
    kubectl(&format!("delete crd {CRD}")).await;
    let missing = "error CRD foos.samplecontroller.k8s.io: missing: apply the CRD that the command crd prints";
    administrator().await.is_but_for(1, &[missing]);
    // A user without access to CRDs gets the same line, once the API server's discovery is updated.
    eventually(DEADLINE, "discovery forgets it", async || {
        let said = doctor(&nobody, &[]).await.lines().swap_remove(2);
        if said == missing { Ok(()) } else { Err(said) }
    })
    .await;
}

fn remove(version: &mut Value, path: &str, field: &str) {
    let fields = version.pointer_mut(path).unwrap().as_object_mut();
    assert!(fields.unwrap().remove(field).is_some());
}

/// With the controller's own permissions, its needs are met, and each check that needs an administrator is skipped. Without any
/// permission, each missing one is listed.
#[tokio::test]
async fn missing_permissions_are_listed() {
    let _alone = installed().await;
    let folder = tempfile::tempdir().unwrap();
    let account = kubeconfig_as(
        folder.path(),
        "system:serviceaccount:foo-system:foo-controller",
    );
    let unseen = [
        "skipped webhooks on the Lease: not allowed to list validatingwebhookconfigurations: this requires the permissions \
         of an administrator",
        "skipped webhooks on writes: not allowed to list validatingwebhookconfigurations: this requires the permissions of \
         an administrator",
        "skipped admission policies: not allowed to list namespaces: this requires the permissions of an administrator",
        "skipped CRD foos.samplecontroller.k8s.io: served; cannot compare it with this program's: not allowed to get \
         customresourcedefinitions",
        "skipped fencing policy: not allowed to get it: this requires the permissions of an administrator",
    ];
    let others = [
        "skipped other installations: not allowed to list leases: this requires the permissions of an administrator",
        "skipped namespaces with foos: not allowed to list namespaces: this requires the permissions of an administrator",
    ];
    let all = [&unseen[..], &others].concat();
    doctor(&account, &[]).await.is_but_for(0, &all);

    let without_record = "skipped permissions for the fencing record: not allowed to get serviceaccounts/foo-controller-fencing, \
                          which is normal without the fencing component";
    let nobody = kubeconfig_as(folder.path(), "nobody");
    doctor(&nobody, &[]).await.is_but_for(
        1,
        &[
            unseen[0],
            unseen[1],
            unseen[2],
            unseen[3],
            unseen[4],
            "skipped other installations: not allowed to list deployments: this requires the permissions of an administrator",
            "skipped namespaces with foos: not allowed to list foos: this requires the permissions of an administrator",
            "error permissions in all namespaces: not allowed to list foos, watch foos, list deployments, watch \
             deployments, create deployments, patch deployments, update foos/status, delete deployments, update \
             foos/finalizers, create events, patch events in all namespaces: apply the ClusterRole that the command rbac prints, \
             and its binding",
            "error permissions for the Lease: not allowed to get leases/foo-controller, watch leases/foo-controller, patch \
             leases/foo-controller, create leases, create events, patch events in namespace foo-system: apply the Role for the \
             leader election, and its binding",
            without_record,
            "skipped Lease: foo-system/foo-controller: not allowed to get it",
        ],
    );

    // deploy/ grants exactly the checked permissions.
    let said = doctor(&nobody, &[]).await;
    for (check, role) in [
        ("in all namespaces", "clusterrole/foo-controller"),
        ("for the Lease", "role/foo-controller"),
    ] {
        let role = kubectl(&format!("get {role} -o=json -n foo-system")).await;
        let role: Value = serde_json::from_str(&role).unwrap();
        let check = format!("error permissions {check}: not allowed to ");
        let lines = said.lines();
        let line = lines.iter().find_map(|line| line.strip_prefix(&check));
        let checked = line.unwrap().rsplit_once(" in ").unwrap().0;
        let checked = checked.split(" in ").next().unwrap().split(", ");
        let checked: BTreeSet<_> = checked.map(str::to_owned).collect();
        assert_eq!(checked, granted(&role), "{role}");
    }

    // Some permissions are missing in the second namespace.
    let folder = tempfile::tempdir().unwrap();
    let user = "system:serviceaccount:default:limited";
    let limited = kubeconfig_as(folder.path(), user);
    kubectl(&format!(
        "create rolebinding limited --clusterrole=foo-controller --user={user}"
    ))
    .await;
    kubectl("create namespace elsewhere").await;
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "limited", "namespace": "elsewhere" },
        "rules": [
            rule("samplecontroller.k8s.io", "foos", &["list", "watch"]),
            rule("samplecontroller.k8s.io", "foos/status", &["update"]),
            rule("apps", "deployments", &["list", "watch", "create"]),
            rule("events.k8s.io", "events", &["create", "patch"]),
        ],
    }))
    .await;
    kubectl(&format!(
        "create rolebinding limited --role=limited --user={user} -n elsewhere"
    ))
    .await;
    let said = doctor(&limited, &["--namespace=default", "--namespace=elsewhere"]).await;
    let expected = [
        "ok permissions in namespace default: all granted",
        "error permissions in namespace elsewhere: not allowed to patch deployments, delete deployments, update \
         foos/finalizers in namespace elsewhere: apply the ClusterRole that the command rbac prints, and its binding",
    ];
    assert_eq!(said.lines()[3..5], expected, "{said:?}");
    kubectl("delete namespace elsewhere --wait=false").await;
    kubectl("delete rolebinding limited").await;
}

/// Returns the permissions of a role as `verb resource`, or as `verb resource/name` if they are limited to one object.
fn granted(role: &Value) -> BTreeSet<String> {
    let list = |value: &Value| -> Vec<String> {
        serde_json::from_value::<Option<_>>(value.clone())
            .unwrap()
            .unwrap_or_default()
    };
    let rules = role["rules"].as_array().unwrap().iter();
    let rights = rules.flat_map(|rule| {
        let name = list(&rule["resourceNames"]).pop();
        let slash = name.map_or(String::new(), |name| format!("/{name}"));
        let [resources, verbs] = ["resources", "verbs"].map(|field| list(&rule[field]));
        let pairs = resources.into_iter().flat_map(move |resource| {
            let with = format!("{resource}{slash}");
            verbs
                .clone()
                .into_iter()
                .map(move |verb| format!("{verb} {with}"))
        });
        pairs.collect::<Vec<_>>()
    });
    rights.collect()
}

/// Returns the output while a pod of this service account holds the Lease and is in the record. Deletes the pod afterwards.
async fn led_by_a_pod_of(account: &str) -> Said {
    let service_account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": account, "namespace": "foo-system" },
    });
    apply(&service_account).await;
    let uid = fencing::create_pod(&CLUSTER, account, account).await;
    let holder = format!("{account}_{uid}");
    record(&holder).await;
    let held = json!({ "spec": { "holderIdentity": holder } });
    patch("lease foo-controller", &held).await;
    let said = administrator().await;
    kubectl(&format!("delete pod {account} -n foo-system --now")).await;
    said
}

/// A fencing policy for another Lease, or without effect, is an error.
#[allow(
    clippy::too_many_lines,
    reason = "one policy, one mistake after the other"
)]
#[tokio::test]
async fn a_policy_for_another_lease_is_reported() {
    let _alone = installed().await;
    let binding = "validatingadmissionpolicybinding foo-controller-fencing";
    let is = async |code: i32, line: &str| administrator().await.is_but_for(code, &[line]);
    let param = |namespace: &str, name: &str| json!({ "spec": { "paramRef": { "namespace": namespace, "name": name } } });
    patch(binding, &param("elsewhere", "foo-controller-fencing")).await;
    for (action, effect) in [
        ("Allow", "is not in force"),
        (
            "Deny",
            "rejects all matching writes, also those of other users",
        ),
    ] {
        let action = json!({ "spec": { "paramRef": { "parameterNotFoundAction": action } } });
        patch(binding, &action).await;
        let line = format!(
            "error fencing policy: foo-controller-fencing {effect}: its record serviceaccount/foo-controller-fencing in \
             elsewhere is missing; the Lease's is foo-controller-fencing in foo-system: specify foo-controller-fencing in the \
             binding's paramRef"
        );
        is(1, &line).await;
    }
    let allow = json!({ "spec": { "paramRef": { "parameterNotFoundAction": "Allow" } } });
    patch(binding, &allow).await;
    patch(binding, &param("foo-system", "foo-controller-fencing")).await;
    // With another Lease, the installed policy is the wrong one.
    let other = doctor(CLUSTER.kubeconfig(), &["--lease-name=other"]).await;
    assert_eq!(
        other.lines()[7],
        "error fencing policy: foo-controller-fencing uses the record serviceaccount/foo-controller-fencing in foo-system, \
         but the Lease's is other-fencing in foo-system: if the controller uses foo-controller-fencing, run doctor with \
         --fencing-record=foo-controller-fencing; otherwise install the fencing component"
    );
    // With a record in that namespace, the policy belongs to another installation.
    patch(binding, &param("default", "foo-controller-fencing")).await;
    kubectl("create serviceaccount foo-controller-fencing -n default").await;
    is(
        0,
        "skipped fencing policy: not installed for this installation: foo-controller-fencing protects the installation in \
         default; the fencing component has it",
    )
    .await;
    kubectl("delete serviceaccount foo-controller-fencing -n default").await;
    patch(binding, &param("foo-system", "foo-controller-fencing")).await;
    kubectl("delete rolebinding foo-controller-fencing -n foo-system").await;
    is(
        1,
        "error fencing policy: system:serviceaccount:foo-system:foo-controller has no permission to patch \
         serviceaccount/foo-controller-fencing in foo-system, so the policy rejects each leader: install the fencing component",
    )
    .await;
    kubectl("delete serviceaccount foo-controller -n foo-system").await;
    is(
        1,
        "error fencing policy: the fencing policy is not in force: it applies to \
         system:serviceaccount:foo-system:foo-controller, and there is no such service account; specify the controller's in \
         the annotation samplecontroller.k8s.io/controller-account of serviceaccount/foo-controller-fencing in foo-system",
    )
    .await;
    fencing::install(&CLUSTER).await;
    patch(
        binding,
        &json!({ "spec": { "validationActions": ["Audit"] } }),
    )
    .await;
    is(
        1,
        "error fencing policy: foo-controller-fencing rejects nothing: its binding's validationActions lack Deny; install the \
         fencing component",
    )
    .await;
    kubectl("delete validatingadmissionpolicybinding foo-controller-fencing").await;
    is(
        1,
        "error fencing policy: foo-controller-fencing has no binding, and is not in force: install the fencing component",
    )
    .await;
    fencing::install(&CLUSTER).await;
    kubectl("delete serviceaccount foo-controller-fencing -n foo-system").await;
    is(
        1,
        "error fencing policy: foo-controller-fencing is not in force: its record serviceaccount/foo-controller-fencing in \
         foo-system is missing; install the fencing component",
    )
    .await;
    fencing::install(&CLUSTER).await;
    let policy = "validatingadmissionpolicy foo-controller-fencing";
    patch(policy, &json!({ "spec": { "failurePolicy": "Ignore" } })).await;
    is(
        0,
        "warning fencing policy: foo-controller-fencing admits writes that it cannot evaluate: failurePolicy is Ignore, not \
         Fail; install the fencing component",
    )
    .await;
    patch(policy, &json!({ "spec": { "failurePolicy": "Fail" } })).await;
    assert_eq!(
        led_by_a_pod_of("renamed").await.lines()[7],
        "error fencing policy: foo-controller-fencing does not apply to system:serviceaccount:foo-system:renamed, which \
         holds the Lease: specify its service account in the annotation samplecontroller.k8s.io/controller-account of \
         serviceaccount/foo-controller-fencing in foo-system"
    );
    let said = led_by_a_pod_of("foo-controller").await;
    assert_eq!(said.lines()[7], ANSWERS[7], "{said:?}");
    let held =
        json!({ "spec": { "holderIdentity": "a_b", "renewTime": "2020-01-01T00:00:00.000000Z" } });
    patch("lease foo-controller", &held).await;
    record("c_d").await;
    assert_eq!(
        administrator().await.lines()[7],
        "warning fencing policy: foo-controller-fencing: the record serviceaccount/foo-controller-fencing in foo-system \
         names \"c_d\", but the Lease's holder is \"a_b\": if this lasts, check the holder's log and its permission to \
         patch the record"
    );
    CLUSTER.release_lease("foo-system", "foo-controller").await;
    let kind = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" });
    patch(policy, &json!({ "spec": { "paramKind": kind } })).await;
    is(
        1,
        "error fencing policy: foo-controller-fencing uses coordination.k8s.io/v1 Lease as the record, not a \
         ServiceAccount: install the fencing component of this version",
    )
    .await;
    kubectl("delete -k deploy/components/fencing").await;
    is(
        0,
        "skipped fencing policy: not installed; the fencing component has it",
    )
    .await;
    // The settings of components/fast-failover.
    let short = [
        "--lease-duration=3s",
        "--lease-renew-deadline=2s",
        "--lease-retry-period=500ms",
    ];
    let short = doctor(CLUSTER.kubeconfig(), &short).await;
    assert_eq!(
        short.lines()[7],
        "warning fencing policy: not installed, and leader_election.lease_duration is only 1s longer than \
         renew_deadline: after a longer pause of its machine, the old leader may write at the same time as the new one; install \
         the fencing component, or set lease_duration to at least 5s more than renew_deadline"
    );
}

/// `doctor` connects to the collector and sends no telemetry. A collector that is down or silent is a warning, since the controller
/// works without it. So is a collector that has another protocol, or requires a client certificate.
#[tokio::test]
async fn a_collector_that_is_down_is_reported() {
    let _alone = installed().await;
    let up = Mock::start(Behaviour::Answer(Duration::ZERO, 0)).await;
    let with = async |flag: &str| doctor(CLUSTER.kubeconfig(), &[flag]).await;
    let said = with(&format!("--otlp-endpoint={}", up.endpoint())).await;
    let connected = format!(
        "ok collector: traces, logs, metrics: connected to {}/",
        up.endpoint()
    );
    said.is_but_for(0, &[&connected]);
    let endpoint = format!("--otlp-endpoint={}", up.endpoint());
    let flags = [&endpoint, "--otlp-protocol=http/protobuf"];
    let said = doctor(CLUSTER.kubeconfig(), &flags).await;
    let connected = ["traces", "logs", "metrics"]
        .map(|signal| format!("{signal}: connected to {}/v1/{signal}", up.endpoint()))
        .join("; ");
    said.is_but_for(0, &[&format!("ok collector: {connected}")]);
    assert!(up.requests().is_empty(), "{:?}", up.requests());

    let then = "; exported data is lost until then, and reconciling continues: check telemetry.endpoint, telemetry.protocol and the collector";
    let down = Mock::start(Behaviour::Refuse).await;
    let said = with(&format!("--otlp-endpoint={}", down.endpoint())).await;
    let refused = format!(
        "warning collector: traces, logs, metrics: cannot connect to {}/: Connection refused (os error 111){then}",
        down.endpoint()
    );
    said.is_but_for(0, &[&refused]);

    let silent = Mock::start(Behaviour::Silent).await;
    let endpoint = silent.endpoint().replace("http://", "https://");
    let said = with(&format!("--otlp-endpoint={endpoint}")).await;
    let unanswered = format!(
        "warning collector: traces, logs, metrics: cannot connect to {endpoint}/: not connected in 3s{then}"
    );
    said.is_but_for(0, &[&unanswered]);
    let said = with(&format!("--otlp-endpoint={}", silent.endpoint())).await;
    let unanswered = format!(
        "warning collector: traces, logs, metrics: cannot connect to {}/: no answer in 5s{then}",
        silent.endpoint()
    );
    said.is_but_for(0, &[&unanswered]);

    let (plain, mutual) = tokio::join!(Collector::start(), Collector::start_mutual_tls());
    for (protocol, other, missing) in [
        (Protocol::Grpc, Protocol::Http, "HTTP/2, which grpc needs"),
        (
            Protocol::Http,
            Protocol::Grpc,
            "HTTP/1.1, which http/protobuf needs",
        ),
    ] {
        let flag = format!("--otlp-protocol={}", protocol.name());
        for (collector, port, expected) in [
            (&plain, protocol, "ok collector: "),
            (&plain, other, missing),
            (&mutual, protocol, "CertificateRequired"),
        ] {
            let endpoint = format!("--otlp-endpoint={}", collector.endpoint_of(port));
            let mut command = bound_command("env");
            if collector.endpoint().starts_with("https:") {
                let authority = collector.ca().display().to_string();
                command.arg(format!("OTEL_EXPORTER_OTLP_CERTIFICATE={authority}"));
            }
            command.arg(PROGRAM);
            let said = run(command, CLUSTER.kubeconfig(), &[&flag, &endpoint]).await;
            let lines = said.lines();
            let line = lines.iter().find(|line| line.contains(" collector: "));
            let line = line.unwrap();
            assert!(line.contains(expected), "{protocol:?}: {line}");
            assert_eq!(
                line.starts_with("ok"),
                port == protocol && expected.starts_with("ok"),
                "{line}"
            );
        }
    }
}

/// An administrator's token is not sent to a process that only listens on the address of a replica.
#[tokio::test]
async fn a_replica_with_metrics_auth_is_queried_only_from_its_container() {
    let _alone = installed().await;
    let flags = ["--http-debug-state", "--http-metrics-auth"];
    doctor(CLUSTER.kubeconfig(), &flags).await.is_but_for(
        0,
        &[
            "skipped replica: with http.metrics_auth, run doctor inside the container: kubectl exec -n NAMESPACE POD -- \
             /proc/1/exe doctor",
        ],
    );
}

/// An API server that is down, silent or untrusted, or that sends an endless response, is reported within half a minute. Checks
/// that do not need it still run.
#[tokio::test]
async fn an_unreachable_cluster_is_reported_in_time() {
    let _alone = installed().await;
    let silent = "skipped clock|skipped CRD foos.samplecontroller.k8s.io|skipped permissions in all namespaces|skipped permissions for \
                  the Lease|skipped permissions for the fencing record|skipped Lease|skipped fencing policy|skipped webhooks on \
                  the Lease|skipped webhooks on writes|skipped admission policies|skipped other installations|skipped namespaces with foos";
    let silent: Vec<_> = silent
        .split('|')
        .map(|it| format!("{it}: the API server does not answer"))
        .collect();
    let mut lines: Vec<&str> = silent.iter().map(String::as_str).collect();
    let see = "check that it runs, and that the address is right (--kubeconfig, --master)";
    let nobody = Mock::start(Behaviour::Refuse).await;
    let address = nobody.endpoint().replace("http://", "https://");
    let said = doctor(CLUSTER.kubeconfig(), &[&format!("--master={address}")]).await;
    let refused = format!(
        "error API server: {address}: client error (Connect): tcp connect error: Connection refused (os error 111); {see}"
    );
    lines.push(&refused);
    said.is_but_for(1, &lines);
    lines.pop();

    let endless = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", endless.local_addr().unwrap());
    let sending = tokio::spawn(async move {
        let (mut connection, _) = endless.accept().await.unwrap();
        // The client ignores a response that arrives before its request.
        connection.read_u8().await.unwrap();
        let mut part = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        while connection.write_all(&part).await.is_ok() {
            part = vec![b' '; 1 << 16];
        }
    });
    let said = doctor(CLUSTER.kubeconfig(), &[&format!("--master={address}")]).await;
    let too_long = format!("error API server: {address}: length limit exceeded; {see}");
    lines.push(&too_long);
    said.is_but_for(1, &lines);
    lines.pop();
    sending.await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = folder.path().join("ca.crt");
    let pem = pem::encode(&pem::Pem::new("CERTIFICATE", made.cert.der().to_vec()));
    fs::write(&other, pem).unwrap();
    let kubeconfig = fs::read(CLUSTER.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    kubeconfig["clusters"][0]["cluster"]["certificate-authority"] = json!(other);
    let path = folder.path().join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let said = doctor(&path, &[]).await;
    let untrusted = "error API server: SERVER: client error (Connect): invalid peer certificate: it was not issued by a configured \
                     certificate authority; check its certificate, and the CA bundle and tls-server-name in the kubeconfig";
    lines.push(untrusted);
    said.is_but_for(1, &lines);
    lines.pop();

    CLUSTER.freeze_apiserver().await;
    let begun = Instant::now();
    let said = doctor(CLUSTER.kubeconfig(), &[]).await;
    let took = begun.elapsed();
    CLUSTER.thaw_apiserver().await;
    let frozen =
        format!("error API server: SERVER: client error (Connect): not connected within 5s; {see}");
    lines.push(&frozen);
    said.is_but_for(1, &lines);
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// `doctor` rejects the same configuration as a replica.
#[tokio::test]
async fn an_invalid_configuration_exits_with_2() {
    let nowhere = Path::new("/nowhere/kubeconfig");
    for (flags, says) in [
        (
            &["--workers=0"][..],
            "error: workers = 0 (flag --workers): must be a whole number from 1 to 1000\n",
        ),
        (&["--lease-namespace="], "error: "),
        (
            &[],
            "error: kubeconfig /nowhere/kubeconfig (from $KUBECONFIG): ",
        ),
    ] {
        let said = doctor(nowhere, flags).await;
        assert_eq!((said.code, &*said.stdout), (Some(2), ""), "{said:?}");
        assert!(said.stderr.starts_with(says), "{said:?}");
    }
}
