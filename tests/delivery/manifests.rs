//! Generated files are current, cited rows and sections exist, and `deploy/` installs as documented.

mod chart;
mod conversion;
mod docs;
mod names;
mod platforms;
mod uninstall;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use foo_controller::APP;
use operator_runtime::Config;
use operator_testkit::cluster::{Cluster, Options, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::support::{built, controller::Controller, fleet};

/// Not shared with other files: the installed objects apply to all namespaces.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(Options::default()));

const DEADLINE: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "foo-system";
/// Annotation of the fencing record with the name of the controller's service account.
const ACCOUNT: &str = "samplecontroller.k8s.io/controller-account";
/// Annotation of the controller's pod with the name of the fencing record.
const RECORD: &str = "samplecontroller.k8s.io/fencing-record";

/// Folders with Rust code.
const CODE: [&str; 4] = ["src", "crates", "tests", "xtask"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The CRD, the permissions and the fencing policy in `deploy/` equal the output of the program.
#[test]
fn a1_deploy_has_the_current_manifests() {
    for (command, file) in [
        ("crd", "deploy/crd.yaml"),
        ("rbac", "deploy/base/clusterrole.yaml"),
        ("fencing-policy", "deploy/components/fencing/policy.yaml"),
    ] {
        let printed = Command::new(env!("CARGO_BIN_EXE_foo-controller"))
            .arg(command)
            .output()
            .unwrap();
        let committed = fs::read_to_string(root().join(file)).unwrap();
        assert!(
            String::from_utf8(printed.stdout).unwrap() == committed,
            "{file} is out of date: run `make generate`"
        );
    }
}

/// Every row of docs/guarantees.md has a test whose name begins with its number, and every numbered test has a row. A judge of
/// the simulation proves a row of I or O as well.
#[test]
fn guarantees_and_tests_have_the_same_numbers() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter_map(|row| Some(row.split_once(' ')?.0.to_ascii_uppercase()));
    let rows: BTreeSet<_> = rows.filter(|id| is_id(id)).collect();
    let (mut tested, mut judged) = (BTreeSet::new(), BTreeSet::new());
    let folders = ["crates", "tests"].map(|it| root().join(it).join("simulation/src"));
    let code = CODE.map(|folder| sources(&root().join(folder)));
    for path in code.into_iter().flatten() {
        let text = fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            if is_test && let Some((_, name)) = line.split_once("fn ") {
                let words = name.split('_').map(str::to_ascii_uppercase);
                tested.extend(words.take_while(|word| is_id(word)));
                is_test = false;
            }
        }
        if folders.iter().any(|folder| path.starts_with(folder)) {
            let words = text.split('"').filter(|word| is_id(word));
            judged.extend(words.map(str::to_owned));
        }
    }
    // The number without its letter: `Q3` for `Q3a`.
    let whole = |row: &str| row.trim_end_matches(char::is_alphabetic).to_owned();
    for row in &rows {
        let is_judged = row.starts_with(['I', 'O']) && judged.contains(&whole(row));
        assert!(is_judged || tested.contains(row), "{row} has no test");
    }
    for id in tested.union(&judged) {
        let has_row = rows.contains(id) || rows.iter().any(|row| whole(row) == *id);
        assert!(has_row, "{id} is not in docs/guarantees.md");
    }
    assert!(rows.len() > 80, "{}", rows.len());
}

/// The runtime works for any resource type. Its shipped code does not name Foo, and includes no file from outside the crate.
/// (Its tests may name Foo.)
#[test]
fn the_runtime_knows_no_foo() {
    let runtime = root().join("crates/runtime");
    let is_test = |path: &PathBuf| {
        let mut parts = path.strip_prefix(&runtime).unwrap().iter();
        parts.any(|part| part == "tests" || part == "tests.rs")
    };
    let shipped = sources(&runtime.join("src"))
        .into_iter()
        .filter(|path| !is_test(path))
        .chain([runtime.join("Cargo.toml")]);
    for path in shipped {
        let text = fs::read_to_string(&path).unwrap();
        let (shipped, _) = text
            .split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((&text, ""));
        for foreign in [OURS, "../"] {
            let line = shipped
                .lines()
                // The package contains its README.
                .filter(|line| !line.contains("include_str!(\"../README.md\")"))
                .find(|line| line.to_lowercase().contains(foreign));
            assert_eq!(line, None, "{}", path.display());
        }
    }
}

/// The kind of this repository, which its libraries do not name.
const OURS: &str = "foo";

/// The simulation works for any operator, and does not name Foo.
#[test]
fn the_simulation_knows_no_foo() {
    let simulation = root().join("crates/simulation");
    let all = ["rs", "toml", "md"].map(|extension| files(&simulation, extension));
    for path in all.into_iter().flatten() {
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        let line = lines.find(|line| line.to_lowercase().contains(OURS));
        assert_eq!(line, None, "{}", path.display());
    }
}

/// Whether the word is a row number in capitals, such as R10 or Q3A, unlike a type such as I64.
fn is_id(word: &str) -> bool {
    let mut rest = word.chars();
    let section = rest.next();
    let number = rest.as_str();
    let number = number
        .strip_suffix(|c: char| c.is_ascii_uppercase())
        .unwrap_or(number);
    matches!(section, Some('A' | 'R' | 'Q' | 'P' | 'H' | 'I' | 'O'))
        && number.parse().is_ok_and(|number: u8| number < 50)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

/// Returns the files with this extension in a folder and its subfolders.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => files(&path, extension),
            Some(there) if there == extension => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

/// Component that must follow [`FENCING`]. The other components have no order.
const FAST_FAILOVER: &str = "fast-failover";
const FENCING: &str = "fencing";

/// Returns an overlay of a folder of `deploy/` with these components, as a user would write it. [`FAST_FAILOVER`] is moved to the
/// end, and [`FENCING`] is added if it is missing.
fn overlay(base: &str, components: &[&str]) -> TempDir {
    let mut components = components.to_vec();
    if components.contains(&FAST_FAILOVER) {
        components.retain(|name| *name != FAST_FAILOVER);
        if !components.contains(&FENCING) && base != "overlays/production" {
            components.push(FENCING);
        }
        components.push(FAST_FAILOVER);
    }
    overlay_in_order(base, &components)
}

/// Returns an overlay with the components in this order.
fn overlay_in_order(base: &str, components: &[&str]) -> TempDir {
    let overlay = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let depth = overlay.path().canonicalize().unwrap().components().count() - 1;
    // Kustomize accepts no absolute path.
    let deploy = format!("{}..{}/deploy", "../".repeat(depth - 1), root().display());
    let components = components
        .iter()
        .map(|name| format!("{deploy}/components/{name}"));
    let kustomization = json!({
        "resources": [format!("{deploy}/{base}")],
        "components": components.collect::<Vec<_>>(),
    });
    let file = overlay.path().join("kustomization.yaml");
    fs::write(file, kustomization.to_string()).unwrap();
    overlay
}

fn namespaced() -> TempDir {
    overlay("base", &["namespaced"])
}

/// Returns the shared server with the CRD, with the controller for given namespaces and with authorized metrics. The namespaces
/// named by components exist.
async fn installed() -> &'static Cluster {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let install = async || {
        prepare(&CLUSTER).await;
        let create = ["create", "namespace", "foo-collector", "--save-config"];
        CLUSTER.kubectl(&create).await.success();
        let overlay = overlay("base", &["namespaced", "prometheus", "metrics-auth"]);
        let apply = ["apply", "-k", overlay.path().to_str().unwrap()];
        CLUSTER.kubectl(&apply).await.success();
    };
    INSTALLED.get_or_init(install).await;
    &CLUSTER
}

/// Installs the prerequisites of `deploy/`: the CRD, the namespaces of the component `namespaced`, and the resource types of
/// the Prometheus Operator, without their schemas.
async fn prepare(cluster: &Cluster) {
    cluster.install_crd().await;
    for name in ["team-a", "team-b"] {
        let create = ["create", "namespace", name];
        cluster.kubectl(&create).await.success();
    }
    for kind in ELSEWHERE.split(',') {
        define(cluster, "monitoring.coreos.com", kind).await;
    }
}

/// Installs a resource type of another project, without its schema.
async fn define(cluster: &Cluster, group: &str, kind: &str) {
    let plural = format!("{}s", kind.to_lowercase());
    let name = format!("{plural}.{group}");
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    let create = ["create", "-f", "-"];
    let created = cluster.kubectl_stdin(&create, &crd.to_string()).await;
    created.success();
    let wait = format!("wait --for=condition=Established --timeout=30s crd/{name}");
    let wait: Vec<_> = wait.split(' ').collect();
    cluster.kubectl(&wait).await.success();
}

/// Writes a kubeconfig with the controller's account into this folder.
async fn kubeconfig(cluster: &Cluster, folder: &TempDir) -> PathBuf {
    let token = token(cluster, "foo-controller").await;
    let admin = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&admin).unwrap();
    kubeconfig["users"][0]["user"]["token"] = token.into();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

/// Returns a token of an account in the controller's namespace.
async fn token(cluster: &Cluster, account: &str) -> String {
    let create = ["create", "token", account, "-n", NAMESPACE];
    cluster.kubectl(&create).await.success().trim().to_owned()
}

/// Returns the objects of a kustomization as the API server would store them, with defaults. Fails on a rejection or a warning.
async fn objects(kustomization: &str) -> Objects {
    let apply = ["apply", "--dry-run=server", "-o=json", "-k", kustomization];
    let output = installed().await.kubectl(&apply).await;
    assert_eq!(output.stderr, "", "{kustomization}");
    let list: Value = serde_json::from_str(&output.success()).unwrap();
    Objects(serde_json::from_value(list["items"].clone()).unwrap())
}

/// Returns the objects of a kustomization as kubectl would send them.
async fn rendered(kustomization: &Path) -> Objects {
    let kustomize = ["kustomize", kustomization.to_str().unwrap()];
    let yaml = CLUSTER.kubectl(&kustomize).await.success();
    Objects(serde_saphyr::from_multiple(&yaml).unwrap())
}

struct Objects(Vec<Value>);

/// Returns kind, namespace and name of an object.
fn id(object: &Value) -> String {
    let metadata = &object["metadata"];
    let [kind, namespace, name] = [&object["kind"], &metadata["namespace"], &metadata["name"]]
        .map(|part| part.as_str().unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}

impl Objects {
    /// Returns the objects of a kind.
    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// Returns the only object of a kind.
    fn one(&self, kind: &str) -> &Value {
        let mut all = self.all(kind);
        let one = all.next().unwrap_or_else(|| panic!("no {kind}"));
        assert_eq!(all.next(), None, "more than one {kind}");
        one
    }

    /// Returns the object of a kind with this name.
    fn named(&self, kind: &str, name: &str) -> &Value {
        let mut all = self.all(kind);
        let named = all.find(|object| object["metadata"]["name"] == name);
        named.unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    fn pod(&self) -> &Value {
        let is_ours =
            |it: &&Value| it["metadata"]["labels"]["app.kubernetes.io/name"] == "foo-controller";
        let mut deployments = self.all("Deployment").filter(is_ours);
        let deployment = deployments.next().unwrap();
        assert_eq!(deployments.next(), None, "more than one Deployment");
        &deployment["spec"]["template"]
    }

    /// Returns the controller's service account.
    fn account(&self) -> &str {
        self.pod()["spec"]["serviceAccountName"].as_str().unwrap()
    }

    fn container(&self) -> &Value {
        let containers = self.pod()["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        &containers[0]
    }

    /// Gives a command the container's environment, and writes the mounted files.
    fn command(&self, command: &mut Command, files: &TempDir) {
        let spec = &self.pod()["spec"];
        let mounted = spec["volumes"][0]["configMap"]["name"].as_str().unwrap();
        let map = self.named("ConfigMap", mounted);
        for (name, content) in map["data"].as_object().unwrap() {
            fs::write(files.path().join(name), content.as_str().unwrap()).unwrap();
        }
        let container = self.container();
        let mounted = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
        let files = files.path().to_str().unwrap();
        assert!(container["args"].is_null(), "the environment says it all");
        // Two processes with the same pod UID cannot both take part in the election.
        let uid = uuid::Uuid::new_v4().to_string();
        for variable in container["env"].as_array().unwrap() {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                None => variable["value"].as_str().unwrap(),
                Some("metadata.name") => "foo-controller-x",
                Some("metadata.uid") => &uid,
                Some("metadata.namespace") => NAMESPACE,
                Some("spec.nodeName") => "node-1",
                Some(other) => {
                    let annotation = other
                        .strip_prefix("metadata.annotations['")
                        .and_then(|rest| rest.strip_suffix("']"));
                    let annotation = annotation.unwrap_or_else(|| panic!("{other}"));
                    let annotations = &self.pod()["metadata"]["annotations"];
                    annotations[annotation].as_str().unwrap()
                }
            };
            command.env(
                variable["name"].as_str().unwrap(),
                value.replace(mounted, files),
            );
        }
    }

    /// Returns the objects by kind, namespace and name. Lists of named items become maps as well.
    fn by_name(&self) -> Value {
        fn by_name(value: &Value) -> Value {
            match value {
                Value::Object(fields) => {
                    let fields = fields
                        .iter()
                        .map(|(key, value)| (key.clone(), by_name(value)));
                    Value::Object(fields.collect())
                }
                Value::Array(items) if items.iter().all(|item| item["name"].is_string()) => {
                    let named = items
                        .iter()
                        .map(|item| (item["name"].as_str().unwrap().to_owned(), by_name(item)));
                    Value::Object(named.collect())
                }
                other => other.clone(),
            }
        }
        let objects = self.0.iter().map(|object| (id(object), by_name(object)));
        Value::Object(objects.collect())
    }

    /// Returns the output of `foo-controller config` in the container.
    fn config(&self) -> String {
        let files = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_foo-controller"));
        command.env_clear().arg("config");
        self.command(&mut command, &files);
        let output = command.output().unwrap();
        let problems = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{problems}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The API server accepts each kustomization, also over existing objects. The pods conform to the restricted Pod Security
/// level, which the namespace enforces. The program accepts its environment and the mounted configuration.
#[tokio::test]
async fn every_kustomization_is_accepted() {
    let mine = namespaced();
    let mine = mine.path().to_str().unwrap();
    for (kustomization, said) in [
        ("deploy", r#"level = "info"  # "#),
        ("deploy/base", r#"level = "info"  # "#),
        ("deploy/overlays/dev", r#"level = "debug"  # "#),
        (
            "deploy/overlays/production",
            r#"endpoint = "http://otel-collector.foo-collector:4317"  # "#,
        ),
        (mine, r#"namespaces = ["team-a", "team-b"]  # "#),
    ] {
        let objects = objects(kustomization).await;
        let mut pod = objects.pod().clone();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = "foo-controller-x".into();
        pod["metadata"]["namespace"] = NAMESPACE.into();
        let create = ["create", "--dry-run=server", "-f", "-"];
        let created = CLUSTER.kubectl_stdin(&create, &pod.to_string()).await;
        assert_eq!(created.stderr, "", "{kustomization}");
        pod["spec"]["securityContext"]["runAsNonRoot"] = Value::Null;
        let created = CLUSTER.kubectl_stdin(&create, &pod.to_string()).await;
        let refused = created.stderr.contains("violates PodSecurity");
        assert!(refused, "{kustomization}: {created:?}");

        let config = objects.config();
        assert!(config.contains(said), "{kustomization}: {config}");
    }
    let tried = overlay("overlays/production", &["collector", FAST_FAILOVER]);
    objects(tried.path().to_str().unwrap()).await;
}

/// `replicas.rs` and `environment.rs` test all faults with the times of components/fast-failover. The command `config`
/// loads them as the controller does, so they are also validated.
#[tokio::test]
async fn the_component_has_the_times_of_the_fault_tests() {
    let objects = rendered(overlay("base", &[FAST_FAILOVER]).path()).await;
    let config = objects.config();
    let fleet::Pace {
        lease,
        renew,
        retry,
    } = fleet::FAST;
    for (key, time) in [
        ("lease_duration", lease),
        ("renew_deadline", renew),
        ("retry_period", retry),
    ] {
        let line = format!("{key} = \"{time:?}\"  # environment variable ");
        assert!(config.contains(&line), "{line} is not in {config}");
    }
    let record = objects.named("ServiceAccount", "foo-controller-fencing");
    let noted = &record["metadata"]["annotations"]["samplecontroller.k8s.io/lease-duration"];
    assert_eq!(*noted, format!("{lease:?}"));
}

/// Without components/fencing, or before it, kustomize rejects components/fast-failover.
#[tokio::test]
async fn the_short_lease_needs_fencing() {
    for components in [&[FAST_FAILOVER][..], &[FAST_FAILOVER, FENCING]] {
        let overlay = overlay_in_order("base", components);
        let kustomize = ["kustomize", overlay.path().to_str().unwrap()];
        let output = CLUSTER.kubectl(&kustomize).await;
        assert!(!output.status.success(), "{components:?}");
        let account = "ServiceAccount.v1.[noGrp]/foo-controller-fencing.foo-system";
        assert!(output.stderr.contains(account), "{}", output.stderr);
    }
}

/// Returns the folder of kubeconform, kube-score and actionlint.
fn tools() -> PathBuf {
    built("manifests")
}

/// Runs a program with `input` as standard input. Returns its output, and whether it succeeded.
fn pipe(command: &mut Command, input: &str) -> (String, bool) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.success())
}

/// Returns the renderings of `deploy/` as YAML: as it is, its overlays, the base with each component, and with all of them.
async fn renderings() -> Vec<(String, String)> {
    let mut renderings = Vec::new();
    let mut render = async |name: String, path: &Path| {
        let kustomize = ["kustomize", path.to_str().unwrap()];
        let yaml = CLUSTER.kubectl(&kustomize).await.success();
        renderings.push((name, yaml));
    };
    let deploy = root().join("deploy");
    render("deploy".into(), &deploy).await;
    for name in folders(&deploy.join("overlays")) {
        render(name.clone(), &deploy.join("overlays").join(name)).await;
    }
    let components = folders(&deploy.join("components"));
    let mut choices: Vec<Vec<&str>> = components.iter().map(|name| vec![&**name]).collect();
    choices.push(components.iter().map(|name| &**name).collect());
    for choice in choices {
        let overlay = overlay("base", &choice);
        render(choice.join(" and "), overlay.path()).await;
    }
    renderings
}

/// Returns the names of the folders in a folder.
fn folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// Returns all strings in a value with their paths.
fn texts(value: &Value, place: String) -> Vec<(String, String)> {
    match value {
        Value::String(text) => vec![(place, text.clone())],
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .flat_map(|(n, item)| texts(item, format!("{place}/{n}")))
                .collect()
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .flat_map(|(key, value)| texts(value, format!("{place}/{key}")))
                .collect()
        }
        _ => vec![],
    }
}

/// Each component has the same effect alone, with any other component in either order, and with the overlays. Exception:
/// [`FAST_FAILOVER`] needs [`FENCING`] before it.
#[tokio::test]
async fn components_compose() {
    let deploy = root().join("deploy");
    let components = folders(&deploy.join("components"));
    let of = async |base: &str, components: &[&str]| {
        rendered(overlay(base, components).path()).await.by_name()
    };
    let base = of("base", &[]).await;
    let mut alone = BTreeMap::new();
    for component in &components {
        alone.insert(&**component, of("base", &[component]).await);
    }
    for (n, one) in components.iter().enumerate() {
        for other in &components[..n] {
            let both = merge(&base, &alone[&**one], &alone[&**other]);
            let both = both.unwrap_or_else(|at| panic!("{one} and {other} are at odds: {at}"));
            assert_eq!(of("base", &[one, other]).await, both, "{one}, {other}");
        }
    }
    let all = alone.values().fold(base.clone(), |all, component| {
        merge(&base, &all, component).unwrap()
    });
    let mut names: Vec<_> = alone.keys().copied().collect();
    assert_eq!(of("base", &names).await, all, "{names:?}");
    names.reverse();
    assert_eq!(of("base", &names).await, all, "{names:?}");

    for name in folders(&deploy.join("overlays")) {
        let folder = format!("overlays/{name}");
        let overlay = of(&folder, &[]).await;
        let yaml = fs::read_to_string(deploy.join(&folder).join("kustomization.yaml")).unwrap();
        for (component, alone) in &alone {
            // An overlay that contains the component does not get it a second time.
            if !yaml.contains(&format!("components/{component}\n")) {
                let both = merge(&base, &overlay, alone);
                let both = both.unwrap_or_else(|at| panic!("{name} and {component}: {at}"));
                assert_eq!(of(&folder, &[component]).await, both, "{name}, {component}");
            }
        }
    }
}

/// Returns `base` with the changes of both, or the path of a conflict.
fn merge(base: &Value, one: &Value, other: &Value) -> Result<Value, String> {
    if one == base || one == other {
        return Ok(other.clone());
    }
    if other == base {
        return Ok(one.clone());
    }
    let (Value::Object(ones), Value::Object(others)) = (one, other) else {
        return Err(format!("{one} or {other}"));
    };
    let mut merged = serde_json::Map::new();
    for key in ones.keys().chain(others.keys()) {
        let value = merge(&base[key], &one[key], &other[key]);
        let value = value.map_err(|at| format!("{key}: {at}"))?;
        if !value.is_null() {
            merged.insert(key.clone(), value);
        }
    }
    Ok(merged.into())
}

/// The component `prometheus`, alone and with each other component: each port that its `PodMonitor` scrapes returns metrics,
/// and so does the port of the Service.
#[tokio::test]
async fn each_port_of_the_podmonitor_returns_metrics() {
    let cluster = installed().await;
    let components = folders(&root().join("deploy/components"));
    let mut choices = vec![
        ("overlays/dev", vec!["prometheus"]),
        ("overlays/production", vec!["prometheus", "metrics-auth"]),
        ("base", vec!["prometheus"]),
    ];
    let others = components.iter().filter(|name| *name != "prometheus");
    choices.extend(others.map(|other| ("base", vec!["prometheus", &**other])));
    let own = tempfile::tempdir().unwrap();
    let own = kubeconfig(cluster, &own).await;
    for (base, components) in choices {
        let objects = rendered(overlay(base, &components).path()).await;
        let files = tempfile::tempdir().unwrap();
        let controller = Controller::spawn(|command| {
            objects.command(command, &files);
            command
                .env("KUBECONFIG", &own)
                .env("FOO_CONTROLLER__HTTP__METRICS_ADDR", "127.0.0.1:0");
        });
        let container = objects.container();
        let ports = container["ports"].as_array().unwrap();
        let monitor = &objects.one("PodMonitor")["spec"];
        let endpoints = monitor["podMetricsEndpoints"].as_array().unwrap();
        let service = &objects.named("Service", "foo-controller-metrics")["spec"]["ports"];
        let mut scraped = Vec::new();
        for endpoint in endpoints {
            // A pod without this port is not a target.
            let Some(port) = ports.iter().find(|port| port["name"] == endpoint["port"]) else {
                continue;
            };
            let defaults = Config::shipped(&APP).http;
            let default = port["containerPort"].as_u64().unwrap();
            let address = if default == u64::from(defaults.metrics_addr.port()) {
                controller.metrics_addr().await
            } else {
                assert_eq!(default, u64::from(defaults.addr.unwrap().port()));
                controller.http_addr().await
            };
            eventually(DEADLINE, "metrics", async || {
                let metrics = scrape(cluster, &objects, endpoint, address).await;
                let metrics = metrics.map_err(|error| error.to_string())?;
                if metrics.contains("\nleader_election_master_status{") {
                    Ok(())
                } else {
                    Err(format!("{base} {components:?}: {metrics}"))
                }
            })
            .await;
            scraped.push(&port["name"]);
        }
        assert_eq!(
            scraped,
            [&service[0]["targetPort"]],
            "{base} {components:?}"
        );
    }
}

/// Scrapes like Prometheus with this endpoint of a `PodMonitor`. Creates the token of a Secret, because no controller does that
/// in this cluster.
async fn scrape(
    cluster: &Cluster,
    objects: &Objects,
    endpoint: &Value,
    address: SocketAddr,
) -> Result<String, kube::Error> {
    let scheme = endpoint["scheme"].as_str().unwrap_or("http");
    let mut config = kube::Config::new(format!("{scheme}://{address}").parse().unwrap());
    config.accept_invalid_certs = endpoint["tlsConfig"]["insecureSkipVerify"] == true;
    let credentials = &endpoint["authorization"]["credentials"];
    if let Some(name) = credentials["name"].as_str() {
        assert_eq!(credentials["key"], "token");
        let secret = objects.named("Secret", name);
        assert_eq!(secret["type"], "kubernetes.io/service-account-token");
        let annotations = &secret["metadata"]["annotations"];
        let account = annotations["kubernetes.io/service-account.name"].as_str();
        let account = objects.named("ServiceAccount", account.unwrap());
        assert_eq!(
            secret["metadata"]["namespace"],
            account["metadata"]["namespace"]
        );
        let name = account["metadata"]["name"].as_str().unwrap();
        config.auth_info.token = Some(token(cluster, name).await.into());
    }
    let client = kube::Client::try_from(config).unwrap();
    let get = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(get).await
}

/// Writes a JSON schema for each of these kinds (apiVersion and kind) from the server's `OpenAPI` document. The schemas allow
/// no unknown fields.
async fn schemas(kinds: &BTreeSet<(String, String)>, folder: &Path) {
    let get = async |path: &str| -> Value {
        let got = installed().await.kubectl(&["get", "--raw", path]).await;
        serde_json::from_str(&got.success()).unwrap()
    };
    let index = get("/openapi/v3").await;
    for (version, kind) in kinds {
        let (group, number) = version.split_once('/').unwrap_or(("", version));
        let api = if group.is_empty() { "api" } else { "apis" };
        let path = &index["paths"][format!("{api}/{version}")]["serverRelativeURL"];
        let mut document = get(path.as_str().unwrap()).await;
        let schemas = document["components"]["schemas"].as_object_mut().unwrap();
        let of_kind = json!({"group": group, "version": number, "kind": kind});
        let is_kind = |schema: &Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(&of_kind))
        };
        let name = schemas.iter().find(|(_, schema)| is_kind(schema));
        let name = name.unwrap().0.clone();
        schemas.values_mut().for_each(close);
        document["$ref"] = format!("#/components/schemas/{name}").into();
        let file = format!("{kind}-{}.json", version.replace('/', "-")).to_lowercase();
        fs::write(folder.join(file), document.to_string()).unwrap();
    }
}

/// Forbids unknown fields in a schema and its subschemas.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            let open = [
                "additionalProperties",
                "x-kubernetes-preserve-unknown-fields",
            ];
            let closed = fields.get("properties").is_some_and(Value::is_object)
                && fields.get("type").is_some_and(|of| of == "object")
                && !open.iter().any(|key| fields.contains_key(*key));
            if closed {
                fields.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(close),
        _ => {}
    }
}

/// Kinds of the Prometheus Operator. This server has no schema for them.
const ELSEWHERE: &str = "PodMonitor,PrometheusRule";

/// kubeconform accepts every rendering, and rejects a rendering with a misspelt field.
#[tokio::test]
async fn every_rendering_conforms_to_the_servers_schemas() {
    let foo = fs::read_to_string(root().join("config/samples/foo.yaml")).unwrap();
    let mut renderings = renderings().await;
    renderings.push(("config/samples/foo.yaml".into(), foo));
    let mut kinds = BTreeSet::new();
    for (_, yaml) in &renderings {
        let objects = yaml.split("\n---\n").map(|object| {
            let field = |key| {
                let mut values = object.lines().filter_map(|line| line.strip_prefix(key));
                values.next().unwrap().to_owned()
            };
            (field("apiVersion: "), field("kind: "))
        });
        kinds.extend(objects);
    }
    kinds.retain(|(_, kind)| !ELSEWHERE.split(',').any(|other| other == kind));
    let folder = tempfile::tempdir().unwrap();
    schemas(&kinds, folder.path()).await;
    let tool = tools().join("kubeconform");
    // All renderings are checked in one run, because most of the work is loading the schemas.
    let conform = |change: fn(&str) -> String| {
        let files = tempfile::tempdir().unwrap();
        let mut command = Command::new(&tool);
        let core = "{{.ResourceKind}}-{{.ResourceAPIVersion}}.json";
        let others = "{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json";
        for name in [others, core] {
            let location = format!("{}/{name}", folder.path().display());
            command.args(["-schema-location", &location]);
        }
        command.args(["-strict", "-summary", "-skip", ELSEWHERE]);
        for (n, (_, yaml)) in renderings.iter().enumerate() {
            fs::write(files.path().join(format!("{n}.yaml")), change(yaml)).unwrap();
        }
        pipe(command.arg(files.path()), "")
    };
    let (said, fine) = conform(str::to_owned);
    assert!(fine, "{said}");
    let (said, fine) = conform(|yaml| yaml.replacen("\n  replicas: ", "\n  replica: ", 1));
    assert!(!fine);
    for (n, (name, _)) in renderings.iter().enumerate() {
        let its = format!("/{n}.yaml - ");
        let mut lines = said.lines();
        let found = lines.any(|line| line.contains(&its) && line.contains("replica"));
        assert!(found, "{name}: {said}");
    }
}

/// Findings of kube-score, and the reason why each is accepted.
const EXPLAINED: [(&str, &str); 9] = [
    (
        "CPU limit is not set",
        "throttled, a leader may miss the renewal of its Lease",
    ),
    (
        "Ephemeral Storage limit is not set",
        "the root is read-only; only the log grows, which the kubelet rotates",
    ),
    ("Ephemeral Storage request is not set", "as above"),
    (
        "ImagePullPolicy is not set to Always",
        "a release's tag never moves, and a pod can start while the registry is away",
    ),
    (
        "The pod does not have a matching NetworkPolicy",
        "components/networkpolicy, where a plugin enforces it; the collector is for trying",
    ),
    (
        "The container is running with a low user ID",
        "none is named: that of the image, or the one that OpenShift assigns",
    ),
    ("The container running with a low group ID", "as above"),
    (
        "Deployment few replicas",
        "overlays/dev and the collector are for trying",
    ),
    (
        "Deployment update strategy",
        "overlays/dev never has two pods",
    ),
];

/// kube-score has no findings without an explanation, and each explanation belongs to a finding.
#[tokio::test]
async fn every_rendering_scores() {
    let tool = tools().join("kube-score");
    let mut found = BTreeSet::new();
    for (_, yaml) in renderings().await {
        let mut command = Command::new(&tool);
        let (said, _) = pipe(command.args(["score", "--output-format=json", "-"]), &yaml);
        let objects: Vec<Value> = serde_json::from_str(&said).unwrap();
        let checks = objects
            .iter()
            .flat_map(|object| object["checks"].as_array().unwrap());
        let findings = checks.filter(|check| check["skipped"] == false && check["grade"] != 10);
        let comments = findings.flat_map(|check| check["comments"].as_array().unwrap().clone());
        found.extend(comments.map(|comment| comment["summary"].as_str().unwrap().to_owned()));
    }
    let explained: BTreeSet<_> = EXPLAINED.map(|(finding, _)| finding.to_owned()).into();
    assert_eq!(found, explained);
}

/// actionlint accepts the workflows, and rejects a workflow with a misspelt key. Actions of other projects are pinned by commit,
/// so that a moved tag changes nothing.
#[test]
fn workflows_are_valid() {
    let tool = tools().join("actionlint");
    let lint = |workflow: &str| {
        // shellcheck and pyflakes may not be installed.
        let mut command = Command::new(&tool);
        pipe(command.args(["-shellcheck=", "-pyflakes=", "-"]), workflow)
    };
    let workflows = fs::read_dir(root().join(".github/workflows")).unwrap();
    let workflows = workflows.map(|workflow| fs::read_to_string(workflow.unwrap().path()).unwrap());
    for workflow in workflows {
        assert_eq!(lint(&workflow), (String::new(), true));
        // A failure of the command would go unnoticed.
        let loops = workflow.lines().filter(|line| line.contains("for "));
        let silent: Vec<_> = loops.filter(|line| line.contains(" in $(")).collect();
        assert!(silent.is_empty(), "{silent:?}");
        let (said, _) = lint(&workflow.replacen("runs-on:", "runs-at:", 1));
        assert!(said.contains("runs-at"), "{said}");
        for (_, action) in (workflow.lines()).filter_map(|line| line.split_once("uses: ")) {
            let pinned = action
                .split_once('@')
                .and_then(|(_, at)| at.split_once(" # v"));
            let is_commit = |commit: &str| {
                commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            let is_ours = action.starts_with("./.github/workflows/");
            assert!(
                is_ours || pinned.is_some_and(|(commit, _)| is_commit(commit)),
                "{action}"
            );
        }
    }
}

/// Names and numbers that must agree, and that kustomize does not transfer, or transfers wrongly.
#[tokio::test]
async fn names_and_numbers_agree() {
    let config = Config::shipped(&APP);
    let objects = objects("deploy/overlays/production").await;
    let pod = objects.pod();
    let account = json!({
        "kind": "ServiceAccount",
        "name": pod["spec"]["serviceAccountName"],
        "namespace": objects.one("Deployment")["metadata"]["namespace"],
    });
    assert_eq!(account["namespace"], NAMESPACE);

    // Permissions.
    let lease = config.leader_election.lease_name;
    let record = format!("{lease}-fencing");
    let mut made: Vec<_> = objects
        .all("ServiceAccount")
        .map(|made| {
            assert_eq!(made["metadata"]["namespace"], NAMESPACE);
            &made["metadata"]["name"]
        })
        .collect();
    made.sort_by_key(ToString::to_string);
    assert_eq!(made, [&account["name"], &json!(record)]);
    for (binding, role, name) in [
        ("RoleBinding", "Role", "foo-controller"),
        ("RoleBinding", "ClusterRole", &record),
        ("ClusterRoleBinding", "ClusterRole", "foo-controller"),
    ] {
        let binding = objects.named(binding, name);
        assert_eq!(binding["subjects"], json!([account]));
        assert_eq!(binding["roleRef"]["kind"], role);
        assert_eq!(
            binding["roleRef"]["name"],
            objects.named(role, name)["metadata"]["name"]
        );
    }
    // The Lease, and the fencing record.
    let role = objects.one("Role");
    for (role, name) in [
        (role, &lease),
        (objects.named("ClusterRole", &record), &record),
    ] {
        let rules = role["rules"].as_array().unwrap().iter();
        let named: Vec<_> = rules.filter_map(|rule| rule.get("resourceNames")).collect();
        assert_eq!(named, [&json!([name])]);
    }
    assert_eq!(role["metadata"]["namespace"], NAMESPACE);
    assert_eq!(config.leader_election.lease_namespace, None, "the pod's");
    // Fencing.
    let named = &objects.named("ServiceAccount", &record)["metadata"]["annotations"];
    assert_eq!(named[ACCOUNT], account["name"]);
    assert_eq!(pod["metadata"]["annotations"][RECORD], record);
    let policy = objects.one("ValidatingAdmissionPolicy");
    let condition = policy["spec"]["matchConditions"][0]["expression"].as_str();
    assert!(condition.unwrap().contains(ACCOUNT));
    let binding = &objects.one("ValidatingAdmissionPolicyBinding")["spec"];
    assert_eq!(binding["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["paramRef"]["name"], record);
    assert_eq!(binding["paramRef"]["namespace"], NAMESPACE);
    // Selectors.
    let labels = &pod["metadata"]["labels"];
    let spec = &pod["spec"];
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let mut selectors = vec![
        &objects.one("Deployment")["spec"]["selector"],
        &objects.one("PodDisruptionBudget")["spec"]["selector"],
        &spec["topologySpreadConstraints"][0]["labelSelector"],
        &spec["affinity"]["podAntiAffinity"][preferred][0]["podAffinityTerm"]["labelSelector"],
    ];
    let policies = objects.all("NetworkPolicy");
    selectors.extend(
        policies
            .map(|policy| &policy["spec"]["podSelector"])
            .filter(|all| **all != json!({})),
    );
    assert_eq!(selectors.len(), 5);
    for selector in selectors {
        assert_eq!(selector["matchLabels"], *labels);
    }
    let metrics = &objects.one("Service")["spec"];
    assert_eq!(metrics["selector"], *labels);
    assert_eq!(metrics["ports"][0]["targetPort"], "http");

    // Numbers.
    let container = objects.container();
    let port = config.http.addr.unwrap().port();
    assert_eq!(container["ports"][0]["containerPort"], port);
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        let get = &container[probe]["httpGet"];
        assert_eq!((&get["port"], &get["path"]), (&json!("http"), &json!(path)));
    }
    // The longest shutdown: running work; then an attempt at the Lease, the writes in flight and the release, each for half a
    // renew deadline; then the last events, exports and log lines.
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    let stop = config.shutdown_timeout
        + config.leader_election.renew_deadline / 2 * 3
        + Duration::from_secs(2);
    assert!(Duration::from_secs(grace) > stop, "{grace} s for {stop:?}");
    let image = concat!("foo-controller:", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image);
}

/// Without leader election, the Deployment itself prevents a second pod. This holds for `deploy/`, and for the additions of
/// docs/operations.md, "Another Lease, or a shorter one".
#[tokio::test]
async fn without_election_there_are_never_two_pods() {
    let rules = |objects: &Objects| {
        let spec = &objects.named("Deployment", "foo-controller")["spec"];
        let alone = spec["strategy"] == json!({"type": "Recreate"}) && spec["replicas"] == 1;
        (objects.config().contains("\nenabled = true  # "), alone)
    };
    for (name, yaml) in renderings().await {
        let (election, alone) = rules(&Objects(serde_saphyr::from_multiple(&yaml).unwrap()));
        assert!(election || alone, "{name}");
    }
    let off = "- {op: add, path: /spec/template/spec/containers/0/env/-, value: \
        {name: FOO_CONTROLLER__LEADER_ELECTION__ENABLED, value: 'false'}}";
    let off = json!({"patch": off, "target": {"kind": "Deployment", "name": "foo-controller"}});
    let operations = docs::document("docs/operations.md");
    let another_lease = operations.section("Another Lease, or a shorter one");
    let (_, recreate) = another_lease.text.split_once("\n```yaml\n").unwrap();
    let (recreate, _) = recreate.split_once("\n```\n").unwrap();
    let recreate: Value = serde_saphyr::from_str(recreate).unwrap();
    for (base, add) in [
        ("overlays/dev", json!({"patches": [off]})),
        (
            "overlays/production",
            json!({
                "patches": [recreate["patches"][0], off],
                "replicas": [{"name": "foo-controller", "count": 1}],
            }),
        ),
    ] {
        let overlay = overlay(base, &[]);
        let file = overlay.path().join("kustomization.yaml");
        let mut kustomization: Value =
            serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let add = add.as_object().unwrap().clone();
        kustomization.as_object_mut().unwrap().extend(add);
        fs::write(&file, kustomization.to_string()).unwrap();
        let (election, alone) = rules(&rendered(overlay.path()).await);
        assert!(!election && alone, "{base}");
    }
}

/// The component `networkpolicy` allows connections to the API server and to DNS on common platforms.
#[tokio::test]
async fn the_api_server_and_dns_are_reached_everywhere() {
    let overlay = overlay("base", &["networkpolicy"]);
    let objects = rendered(overlay.path()).await;
    let rules = &objects.named("NetworkPolicy", "foo-controller")["spec"]["egress"];
    let rules = rules.as_array().unwrap();
    let port = |rule: &Value, number: u16, protocol: &str| {
        let ports = rule["ports"].as_array().unwrap();
        ports.iter().any(|port| {
            port["port"] == number && *port.get("protocol").unwrap_or(&json!("TCP")) == protocol
        })
    };
    for (cluster, number) in [
        ("the Service's port", 443),
        ("kubeadm, kind, k3s", 6443),
        ("minikube", 8443),
        ("MicroK8s", 16443),
    ] {
        // The API server is not a pod, so no selector matches it.
        let reached = rules
            .iter()
            .any(|rule| rule["to"].is_null() && port(rule, number, "TCP"));
        assert!(reached, "{cluster}");
    }
    let namespace = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let core = json!({
        "namespaceSelector": namespace("kube-system"), "podSelector": {
            "matchExpressions": [{"key": "k8s-app", "operator": "In", "values": ["kube-dns", "node-local-dns"]}],
        },
    });
    let openshift = json!({"namespaceSelector": namespace("openshift-dns")});
    let local = json!({"ipBlock": {"cidr": "169.254.20.10/32"}});
    let of_gke = json!({"ipBlock": {"cidr": "169.254.169.254/32"}});
    for (peer, number) in [(core, 53), (openshift, 5353), (local, 53), (of_gke, 53)] {
        for protocol in ["UDP", "TCP"] {
            let reached = rules.iter().any(|rule| {
                let peers = rule["to"].as_array();
                peers.is_some_and(|peers| peers.contains(&peer)) && port(rule, number, protocol)
            });
            assert!(reached, "{peer} {number} {protocol}");
        }
    }

    // With the additions of docs/operations.md, "Network policy", connections are allowed to the given addresses, and to no
    // other.
    let file = overlay.path().join("kustomization.yaml");
    let mut kustomization: Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let operations = docs::document("docs/operations.md");
    let (_, narrowed) = operations
        .section("Network policy")
        .text
        .split_once("\n```yaml\n")
        .unwrap();
    let (narrowed, _) = narrowed.split_once("\n```\n").unwrap();
    let narrowed: Value = serde_saphyr::from_str(narrowed).unwrap();
    kustomization["patches"] = narrowed["patches"].clone();
    fs::write(&file, kustomization.to_string()).unwrap();
    let objects = rendered(overlay.path()).await;
    let rules = &objects.named("NetworkPolicy", "foo-controller")["spec"]["egress"];
    let rules = rules.as_array().unwrap();
    assert!(rules.iter().all(|rule| rule["to"].is_array()), "{rules:?}");
    let server = rules.iter().find(|rule| port(rule, 6443, "TCP")).unwrap();
    let blocks = server["to"].as_array().unwrap();
    assert!(blocks.iter().all(|to| to["ipBlock"]["cidr"].is_string()));
}

/// An image of another architecture would crash in a loop.
#[tokio::test]
async fn pods_go_only_where_the_image_runs() {
    let objects = rendered(&root().join("deploy/base")).await;
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &objects.pod()["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    let expected = json!([{"matchExpressions": [
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]},
    ]}]);
    assert_eq!(*terms, expected);
}

/// With the number of Foos that README measures, the memory of a pod stays below the alert.
#[tokio::test]
async fn memory_is_enough_for_the_foos_that_are_documented() {
    let objects = rendered(&root().join("deploy/base")).await;
    let mebibytes =
        |text: &str, unit: &str| text.strip_suffix(unit).unwrap().parse::<f64>().unwrap();
    let limit = objects.container()["resources"]["limits"]["memory"]
        .as_str()
        .unwrap();
    let limit = mebibytes(limit, "Mi");
    assert!(
        limit >= 1.5 * (16. + 2. * 100.),
        "the rule beside it: {limit}"
    );
    let readme = docs::document("README.md");
    let mut figures = readme.section("Costs").text.lines();
    let row = figures.find(|row| row.starts_with("| resident memory: "));
    let row = row.unwrap().trim_end_matches(" |");
    assert!(row.contains("; 100,000 Foos and their Deployments | "));
    let measured = mebibytes(row.rsplit("; ").next().unwrap(), " MiB");
    let exporting = 5.;
    assert!(measured + exporting < 0.8 * limit, "{measured} of {limit}");
}

/// The component `namespaced`, with the controller as the container runs it, and with the permissions of its account.
#[tokio::test]
async fn the_controller_reaches_only_its_given_namespaces() {
    let cluster = installed().await;
    let overlay = namespaced();
    let objects = objects(overlay.path().to_str().unwrap()).await;
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:foo-controller");
    for (place, answer) in [
        ("--namespace=team-a", "yes\n"),
        ("--namespace=team-b", "yes\n"),
        ("--namespace=default", "no\n"),
        ("--all-namespaces", "no\n"),
    ] {
        for right in [["list", "foos"], ["patch", "deployments"]] {
            let ask = [&["auth", "can-i"], &right[..], &[place, &account]].concat();
            assert_eq!(cluster.kubectl(&ask).await.stdout, answer, "{ask:?}");
        }
    }
    // The Lease is in neither namespace. The events of the election are in the Lease's namespace.
    for verb in ["create", "patch"] {
        let ask = [
            "auth",
            "can-i",
            verb,
            "events.events.k8s.io",
            "-n",
            NAMESPACE,
            &account,
        ];
        assert_eq!(cluster.kubectl(&ask).await.stdout, "yes\n", "{ask:?}");
    }

    let files = tempfile::tempdir().unwrap();
    let uid = uuid::Uuid::new_v4().to_string();
    let kubeconfig = kubeconfig(cluster, &files).await;
    let lease = Config::shipped(&APP).leader_election.lease_name;
    cluster.release_lease(NAMESPACE, &lease).await;
    let mut controller = Controller::spawn(|command| {
        objects.command(command, &files);
        command
            .env("KUBECONFIG", &kubeconfig)
            .env("POD_UID", &uid)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true");
    });
    eventually(DEADLINE, "an event says who leads", async || {
        let column = "-o=jsonpath={.items[*].reportingInstance}";
        let get = ["get", "events.events.k8s.io", "-n", NAMESPACE, column];
        let got = cluster.kubectl(&get).await.stdout;
        got.contains(&uid).then_some(()).ok_or(got)
    })
    .await;
    for team in ["team-a", "team-b"] {
        let create = ["create", "-n", team, "-f", "config/samples/foo.yaml"];
        cluster.kubectl(&create).await.success();
        eventually(DEADLINE, "the Foo has its Deployment", async || {
            let get = ["get", "deployment/foo-sample", "-n", team];
            let got = cluster.kubectl(&get).await;
            got.status.success().then_some(()).ok_or(got.stderr)
        })
        .await;
    }
    assert_eq!(controller.stop().await, 0);
    assert_eq!(controller.logged("WARN") + controller.logged("ERROR"), 0);
}

/// Returns a control plane with its controllers, for one test at a time. Each test removes its objects.
async fn with_controllers() -> MutexGuard<'static, Cluster> {
    static WITH_CONTROLLERS: LazyLock<Mutex<Cluster>> = LazyLock::new(|| {
        Mutex::new(Cluster::start(Options {
            controllers: true,
            audit: false,
        }))
    });
    WITH_CONTROLLERS.lock().await
}

/// docs/operations.md, "Uninstall": Foos and Deployments stay with the CRD, and are deleted with it. A leftover Deployment is
/// deleted when the CRD is installed again.
#[tokio::test]
async fn uninstalling_the_crd_deletes_the_foos_and_their_deployments() {
    // Not shared: for half a minute it only waits for the garbage collector.
    let cluster = Cluster::start(Options {
        controllers: true,
        audit: false,
    });
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    let install = async || {
        kubectl("apply -k deploy").await.success();
        let wait = "rollout status deployment/foo-controller -n foo-system --timeout=60s";
        kubectl(wait).await.success();
    };
    // No program runs in the pods of this cluster, so the test creates the Foo's Deployment.
    let api = "samplecontroller.k8s.io/v1alpha1";
    let new = ["create", "-f", "-", "-o=jsonpath={.metadata.uid}"];
    let deploy = async |name: &str, foo: &str| {
        let labels = json!({"app": name});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "ownerReferences": [{
                "apiVersion": api, "kind": "Foo", "name": name, "uid": foo, "controller": true, "blockOwnerDeletion": true,
            }]},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        });
        let made = cluster.kubectl_stdin(&new, &deployment.to_string()).await;
        made.success();
    };
    let create = async |name: &str| {
        let foo = json!({
            "apiVersion": api, "kind": "Foo", "metadata": {"name": name}, "spec": {"deploymentName": name},
        });
        let foo = cluster.kubectl_stdin(&new, &foo.to_string()).await;
        let uid = foo.success();
        deploy(name, &uid).await;
        uid
    };
    install().await;
    cluster.install_crd().await;
    let uid = create("foo-sample").await;
    // The garbage collector learns of a new resource type within half a minute. A deletion shows that it has.
    create("foo-other").await;
    kubectl("delete foo/foo-other").await.success();
    kubectl("wait --for=delete deployment/foo-other --timeout=60s")
        .await
        .success();

    // The manifest of a release contains the same objects.
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("install.yaml");
    fs::write(&manifest, kubectl("kustomize deploy").await.success()).unwrap();
    let manifest = manifest.display();
    for remove in [
        "delete --ignore-not-found -k deploy/base --timeout=60s".to_owned(),
        format!(
            "delete --ignore-not-found -f {manifest} -l app.kubernetes.io/name=foo-controller --timeout=60s"
        ),
    ] {
        kubectl(&remove).await.success();
        for gone in ["namespace/foo-system", "clusterrole/foo-controller"] {
            let gone = kubectl(&format!("get {gone}")).await;
            assert!(gone.stderr.contains("NotFound"), "{gone:?}");
        }
        kubectl("wait --for=condition=Available deployment/foo-sample --timeout=60s")
            .await
            .success();
        assert_eq!(
            kubectl("get foo/foo-sample -o=jsonpath={.metadata.uid}")
                .await
                .success(),
            uid
        );
        install().await;
    }

    kubectl("delete foos --all --all-namespaces --cascade=foreground --timeout=60s")
        .await
        .success();
    let deployment = kubectl("get deployment/foo-sample").await;
    assert!(deployment.stderr.contains("NotFound"), "{deployment:?}");
    kubectl(&format!(
        "delete --ignore-not-found -f {manifest} --timeout=60s"
    ))
    .await
    .success();
    let crd = kubectl("get crd/foos.samplecontroller.k8s.io").await;
    assert!(crd.stderr.contains("NotFound"), "{crd:?}");

    deploy("left-over", &uuid::Uuid::new_v4().to_string()).await;
    cluster.install_crd().await;
    kubectl("wait --for=delete deployment/left-over --timeout=120s")
        .await
        .success();
}

/// The default roles of a cluster: `view` can read Foos in a namespace, `edit` and `admin` can also create and scale them. Only
/// the controller writes their status.
#[tokio::test]
async fn users_have_the_permissions_of_their_role_on_foos() {
    let cluster = with_controllers().await;
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    kubectl("apply -k deploy").await.success();
    let established = "wait --for=condition=Established --timeout=30s -f deploy/crd.yaml";
    kubectl(established).await.success();
    let namespace = cluster.namespace("roles").await;
    let create = "create -f config/samples/foo.yaml";
    let scale = "scale foo/foo-sample --replicas=3";
    let patch = r#"patch foo/foo-sample --type=merge --patch={"spec":{"replicas":2}}"#;
    let status = r#"patch foo/foo-sample --type=merge --subresource=status --patch={"status":{"availableReplicas":9}}"#;
    let see = "get foo/foo-sample";
    let see_status = "get foo/foo-sample --subresource=status";
    let delete = "delete foo/foo-sample --timeout=30s";
    for (role, may, may_not) in [
        (
            "edit",
            &[create, see, see_status, scale, patch][..],
            &[status][..],
        ),
        (
            "view",
            &[see, see_status],
            &[create, scale, patch, status, delete],
        ),
        ("admin", &[scale, patch, delete, create], &[status]),
    ] {
        let bind =
            format!("create rolebinding {role} --clusterrole={role} --user={role} -n {namespace}");
        kubectl(&bind).await.success();
        let as_it = async |line: &str| kubectl(&format!("{line} -n {namespace} --as={role}")).await;
        // kube-controller-manager aggregates the permissions.
        eventually(DEADLINE, "the role has its rights", async || {
            let got = as_it("get foos").await;
            got.status.success().then_some(()).ok_or(got.stderr)
        })
        .await;
        for line in may {
            eventually(DEADLINE, line, async || {
                let done = as_it(line).await;
                done.status.success().then_some(()).ok_or(done.stderr)
            })
            .await;
        }
        for line in may_not {
            // Only a missing permission counts. Another error could come from the state of the Foo.
            let refused = as_it(line).await.stderr;
            assert!(refused.contains("(Forbidden)"), "{role}: {line}: {refused}");
        }
    }
    kubectl(&format!("delete namespace {namespace} --timeout=60s"))
        .await
        .success();
    kubectl("delete --ignore-not-found -k deploy --timeout=60s")
        .await
        .success();
}

/// A folder of `deploy/` with additional components.
struct Overlay {
    base: &'static str,
    components: &'static [&'static str],
}

impl Overlay {
    const fn new(base: &'static str, components: &'static [&'static str]) -> Self {
        Self { base, components }
    }

    fn folder(&self) -> TempDir {
        overlay(self.base, self.components)
    }

    /// Whether it has this component, or is this overlay.
    fn has(&self, name: &str) -> bool {
        let file = format!("deploy/{}/kustomization.yaml", self.base);
        let file = fs::read_to_string(root().join(file)).unwrap();
        self.components.contains(&name)
            || file.contains(&format!("components/{name}\n"))
            || self.base == format!("overlays/{name}")
    }
}

/// docs/operations.md, "Switch overlays or components": after its commands, exactly the objects of the new overlay exist.
/// Objects of other owners, such as the namespaces of other collectors, stay unchanged from the first `apply -k` to the last
/// `delete -k`.
#[allow(
    clippy::too_many_lines,
    reason = "one installation, from switch to switch"
)]
#[tokio::test]
async fn a_switch_of_overlays_and_an_uninstallation_keep_foreign_objects() {
    let cluster = with_controllers().await;
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    for theirs in ["observability", "monitoring"] {
        kubectl(&format!("create namespace {theirs}"))
            .await
            .success();
        let label = "pod-security.kubernetes.io/enforce=privileged";
        kubectl(&format!("label namespace {theirs} {label}"))
            .await
            .success();
        let theirs = format!("create configmap theirs -n {theirs} --from-literal=a=b");
        kubectl(&theirs).await.success();
    }
    prepare(&cluster).await;
    let others = async || {
        let line = "get namespaces,configmaps,clusterroles,clusterrolebindings -A -o=json";
        let list: Value = serde_json::from_str(&kubectl(line).await.success()).unwrap();
        let objects = list["items"].as_array().unwrap().clone();
        // Aggregated ClusterRoles change with the roles that they aggregate.
        let changing = ["/view", "/edit", "/admin"];
        let objects = objects.into_iter().filter(|object| {
            let id = id(object);
            let made =
                id.starts_with("ClusterRole ") && changing.iter().any(|name| id.ends_with(name));
            !made && (object["kind"] != "ConfigMap" || id.ends_with("/theirs"))
        });
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        objects
            .map(|object| format!("{} at {}", id(&object), version(&object)))
            .collect::<BTreeSet<_>>()
    };
    let before = others().await;

    let switches = docs::commands::switches();
    let mut used = BTreeSet::new();
    let mut ever: BTreeMap<String, Value> = BTreeMap::new();
    let mut old = Overlay::new("base", &[]);
    for new in [
        Overlay::new("base", &[]),
        Overlay::new("overlays/dev", &[]),
        Overlay::new("overlays/production", &[]),
        Overlay::new("overlays/production", &[FAST_FAILOVER]),
        Overlay::new("base", &["namespaced", FENCING]),
        Overlay::new("base", &["metrics-auth", "prometheus", "collector", "otlp"]),
        Overlay::new("overlays/dev", &["namespaced"]),
        Overlay::new(
            "overlays/production",
            &["collector", "metrics-auth", "prometheus"],
        ),
        Overlay::new("base", &[]),
    ] {
        let folder = new.folder();
        let path = folder.path().to_str().unwrap();
        kubectl(&format!("apply -k {path}")).await.success();
        for (change, command) in &switches {
            let needed = match change {
                docs::commands::Switch::To(name) => new.has(name) && !old.has(name),
                docs::commands::Switch::Without(name) => old.has(name) && !new.has(name),
            };
            if needed {
                docs::commands::sh(&cluster, command).await;
                used.insert(command.clone());
            }
        }
        let objects = rendered(folder.path()).await;
        let wanted: BTreeSet<String> = objects.0.iter().map(id).collect();
        ever.extend(objects.0.into_iter().map(|object| (id(&object), object)));
        let list =
            json!({"apiVersion": "v1", "kind": "List", "items": ever.values().collect::<Vec<_>>()});
        let get = ["get", "-f", "-", "-o=json", "--ignore-not-found"];
        let there = cluster
            .kubectl_stdin(&get, &list.to_string())
            .await
            .success();
        let there: Value = serde_json::from_str(&there).unwrap();
        let there: BTreeSet<String> = there["items"].as_array().unwrap().iter().map(id).collect();
        assert_eq!(there, wanted, "{} {:?}", new.base, new.components);
        let diff = kubectl(&format!("diff -k {path}")).await;
        assert!(diff.status.success(), "{}", diff.stdout);
        old = new;
    }
    assert_eq!(
        used.len(),
        switches.len(),
        "each of the documented commands is used"
    );

    kubectl("delete --ignore-not-found -k deploy/base --timeout=60s")
        .await
        .success();
    let after = others().await;
    let changed: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(changed.is_empty(), "{changed:?}");
    for line in [
        "delete -f deploy/crd.yaml",
        "delete namespace team-a team-b observability monitoring",
    ] {
        kubectl(&format!("{line} --timeout=60s")).await.success();
    }
    for kind in ELSEWHERE.split(',') {
        let crd = format!("delete crd {}s.monitoring.coreos.com", kind.to_lowercase());
        kubectl(&crd).await.success();
    }
}
