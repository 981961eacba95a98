//! What is generated is current, what is cited is there, and `deploy/` installs what it says.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cluster;
mod controller;

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use cluster::{Cluster, Options, eventually, shared};
use controller::Controller;
use foo_controller::Config;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

const DEADLINE: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "foo-system";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Row A1: the CRD that is installed is the one that the program was built with.
#[test]
fn deploy_has_the_current_crd() {
    let printed = Command::new(env!("CARGO_BIN_EXE_foo-controller"))
        .arg("crd")
        .output()
        .unwrap();
    let committed = fs::read_to_string(root().join("deploy/crd.yaml")).unwrap();
    assert!(
        String::from_utf8(printed.stdout).unwrap() == committed,
        "deploy/crd.yaml is out of date: run `make generate`"
    );
}

/// Every row, hazard and invariant that code or a test names stands in the tables, which is where a reader
/// looks it up; and every one in the tables is named somewhere.
#[test]
fn rows_lead_somewhere() {
    let tables = fs::read_to_string(root().join("tests/README.md")).unwrap();
    let listed: BTreeSet<String> = tables
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?
                .split(' ')
                .next()
                .map(str::to_owned)
        })
        .filter(|id| is_id(id))
        .collect();
    let mut cited = BTreeSet::new();
    let code = ["src", "tests"].map(|folder| sources(&root().join(folder)));
    let versions = ["Cargo.toml", "deny.toml"].map(|file| root().join(file));
    for file in code.into_iter().flatten().chain(versions) {
        let text = fs::read_to_string(&file).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
            // In the name of a test it is in lower case: `q2_workers_reconcile_at_once`.
            let id = word.to_ascii_uppercase();
            if is_id(&id) && (listed.contains(&id) || is_id(word)) {
                assert!(
                    listed.contains(&id),
                    "{}: {id} is in no table",
                    file.display()
                );
                cited.insert(id);
            }
        }
    }
    let uncited: Vec<_> = listed.difference(&cited).collect();
    assert!(
        uncited.is_empty(),
        "in the tables, and nowhere else: {uncited:?}"
    );
}

/// A letter of the tables and a number, as in R10, unlike a type such as I64.
fn is_id(word: &str) -> bool {
    let (letter, number) = word.split_at(word.len().min(1));
    matches!(letter, "A" | "R" | "Q" | "P" | "H" | "I")
        && number.parse().is_ok_and(|number: u8| number < 50)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

/// A folder of `deploy/` with one of its components, by an overlay as anybody would write it.
fn overlay(base: &str, component: &str) -> TempDir {
    let overlay = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let depth = overlay.path().canonicalize().unwrap().components().count() - 1;
    // Kustomize takes no absolute path.
    let deploy = format!("{}..{}/deploy", "../".repeat(depth - 1), root().display());
    let kustomization = json!({
        "resources": [format!("{deploy}/{base}")],
        "components": [format!("{deploy}/components/{component}")],
    });
    let file = overlay.path().join("kustomization.yaml");
    fs::write(file, kustomization.to_string()).unwrap();
    overlay
}

fn namespaced() -> TempDir {
    overlay("base", "namespaced")
}

/// The shared server with the CRD and [`namespaced`]; the namespaces that components name are there.
async fn installed() -> &'static Cluster {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let install = async || {
        shared().install_crd().await;
        for name in ["team-a", "team-b", "observability"] {
            let create = ["create", "namespace", name, "--save-config"];
            shared().kubectl(&create).await.success();
        }
        let overlay = namespaced();
        let apply = ["apply", "-k", overlay.path().to_str().unwrap()];
        shared().kubectl(&apply).await.success();
    };
    INSTALLED.get_or_init(install).await;
    shared()
}

/// What a kustomization amounts to, as the API server would have it, defaults and all. It has no objection, not even a warning.
async fn objects(kustomization: &str) -> Objects {
    let apply = ["apply", "--dry-run=server", "-o=json", "-k", kustomization];
    let output = installed().await.kubectl(&apply).await;
    assert_eq!(output.stderr, "", "{kustomization}");
    let list: Value = serde_json::from_str(&output.success()).unwrap();
    Objects(serde_json::from_value(list["items"].clone()).unwrap())
}

struct Objects(Vec<Value>);

impl Objects {
    /// Those of a kind.
    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The one of a kind.
    fn one(&self, kind: &str) -> &Value {
        let mut all = self.all(kind);
        let one = all.next().unwrap_or_else(|| panic!("no {kind}"));
        assert_eq!(all.next(), None, "more than one {kind}");
        one
    }

    fn pod(&self) -> &Value {
        &self.one("Deployment")["spec"]["template"]
    }

    fn container(&self) -> &Value {
        let containers = self.pod()["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        &containers[0]
    }

    /// The controller with the container's arguments and environment, and the files that are mounted.
    fn command(&self, command: &mut Command, files: &TempDir) {
        let map = self.one("ConfigMap");
        let spec = &self.pod()["spec"];
        assert_eq!(
            spec["volumes"][0]["configMap"]["name"],
            map["metadata"]["name"]
        );
        for (name, content) in map["data"].as_object().unwrap() {
            fs::write(files.path().join(name), content.as_str().unwrap()).unwrap();
        }
        let container = self.container();
        let mounted = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
        let files = files.path().to_str().unwrap();
        for arg in container["args"].as_array().unwrap() {
            command.arg(arg.as_str().unwrap().replace(mounted, files));
        }
        for variable in container["env"].as_array().unwrap() {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                None => variable["value"].as_str().unwrap(),
                Some("metadata.name") => "foo-controller-x",
                Some("metadata.uid") => "0b9b2f1c-7d6e-4c0a-9a3e-0d4c5b6a7f80",
                Some("metadata.namespace") => NAMESPACE,
                Some("spec.nodeName") => "node-1",
                Some(other) => panic!("{other}"),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
    }

    /// What `foo-controller config` says in the container.
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

/// The API server takes each of them, over what is there already; its pods are within the restricted pod security level, which
/// the namespace enforces; and the program takes its arguments, its environment and the mounted configuration.
#[tokio::test]
async fn every_kustomization_is_taken() {
    let mine = namespaced();
    let mine = mine.path().to_str().unwrap();
    for (kustomization, said) in [
        ("deploy", r#"level = "info"  # "#),
        ("deploy/base", r#"level = "info"  # "#),
        ("deploy/overlays/dev", r#"level = "debug"  # "#),
        (
            "deploy/overlays/production",
            r#"endpoint = "http://otel-collector.observability:4317"  # "#,
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
        let created = shared().kubectl_stdin(&create, &pod.to_string()).await;
        assert_eq!(created.stderr, "", "{kustomization}");
        pod["spec"]["securityContext"]["runAsNonRoot"] = Value::Null;
        let created = shared().kubectl_stdin(&create, &pod.to_string()).await;
        let refused = created.stderr.contains("violates PodSecurity");
        assert!(refused, "{kustomization}: {created:?}");

        let config = objects.config();
        assert!(config.contains(said), "{kustomization}: {config}");
    }
    let tried = overlay("overlays/production", "collector");
    objects(tried.path().to_str().unwrap()).await;
}

/// kubeconform and kube-score, which Go builds the first time.
fn tools() -> PathBuf {
    let build = root().join("tests/tools/build.sh");
    let output = Command::new(build).arg("manifests").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap().trim_end().into()
}

/// Runs a program with `input` to read; its output, and whether it succeeded.
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

/// What `deploy/` can be made into, as YAML: as it is, its overlays, and the base with each component.
async fn renderings() -> Vec<(String, String)> {
    let mut renderings = Vec::new();
    let mut render = async |name: String, path: &Path| {
        let kustomize = ["kustomize", path.to_str().unwrap()];
        let yaml = shared().kubectl(&kustomize).await.success();
        renderings.push((name, yaml));
    };
    let deploy = root().join("deploy");
    render("deploy".into(), &deploy).await;
    for name in folders(&deploy.join("overlays")) {
        render(name.clone(), &deploy.join("overlays").join(name)).await;
    }
    for name in folders(&deploy.join("components")) {
        let overlay = overlay("base", &name);
        render(name, overlay.path()).await;
    }
    renderings
}

/// The names of the folders in this one.
fn folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.collect()
}

/// Makes what the server says of its objects, Foos among them, into a JSON schema for each of these kinds (apiVersion and kind),
/// in which no unknown field is allowed.
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

/// Refuses unknown fields, in this schema and those within.
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

/// Kinds of the Prometheus Operator, which this server does not know.
const ELSEWHERE: &str = "PodMonitor,PrometheusRule";

/// kubeconform finds nothing wrong, and does find a field that is misspelt.
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
    let conforms = |yaml: &str| {
        let mut command = Command::new(&tool);
        let core = "{{.ResourceKind}}-{{.ResourceAPIVersion}}.json";
        let others = "{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json";
        for name in [others, core] {
            let location = format!("{}/{name}", folder.path().display());
            command.args(["-schema-location", &location]);
        }
        pipe(
            command.args(["-strict", "-summary", "-skip", ELSEWHERE]),
            yaml,
        )
    };
    for (name, yaml) in &renderings {
        let (said, fine) = conforms(yaml);
        assert!(fine, "{name}: {said}");
        let misspelt = yaml.replacen("\n  replicas: ", "\n  replica: ", 1);
        let (said, fine) = conforms(&misspelt);
        assert!(!fine && said.contains("replica"), "{name}: {said}");
    }
}

/// What kube-score says against it, and why it stays so.
const EXPLAINED: [(&str, &str); 6] = [
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
        "Deployment few replicas",
        "overlays/dev and the collector are for trying",
    ),
];

/// kube-score says nothing that is not explained, and every explanation is of use.
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

/// What kustomize does not carry over from one place to another, or carries over wrongly.
#[tokio::test]
async fn names_and_numbers_agree() {
    let config = Config::default();
    let objects = objects("deploy/overlays/production").await;
    let pod = objects.pod();
    let account = json!({
        "kind": "ServiceAccount",
        "name": pod["spec"]["serviceAccountName"],
        "namespace": objects.one("Deployment")["metadata"]["namespace"],
    });
    assert_eq!(account["namespace"], NAMESPACE);

    // Rights.
    let made = &objects.one("ServiceAccount")["metadata"];
    assert_eq!(
        (&made["name"], &made["namespace"]),
        (&account["name"], &account["namespace"])
    );
    for (binding, role) in [
        ("RoleBinding", "Role"),
        ("ClusterRoleBinding", "ClusterRole"),
    ] {
        let binding = objects.one(binding);
        assert_eq!(binding["subjects"], json!([account]));
        assert_eq!(binding["roleRef"]["kind"], role);
        assert_eq!(
            binding["roleRef"]["name"],
            objects.one(role)["metadata"]["name"]
        );
    }
    // The Lease.
    let lease = config.leader_election.lease_name;
    let role = objects.one("Role");
    let named: Vec<_> = role["rules"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|rule| rule.get("resourceNames"))
        .collect();
    assert_eq!(named, [&json!([lease])]);
    assert_eq!(role["metadata"]["namespace"], NAMESPACE);
    assert_eq!(config.leader_election.lease_namespace, None, "the pod's");
    // Fencing.
    let policy = objects.one("ValidatingAdmissionPolicy");
    let binding = &objects.one("ValidatingAdmissionPolicyBinding")["spec"];
    assert_eq!(binding["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["paramRef"]["name"], lease);
    assert_eq!(binding["paramRef"]["namespace"], NAMESPACE);
    let user = format!(
        "request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{}'",
        account["name"].as_str().unwrap()
    );
    assert_eq!(
        policy["spec"]["matchConditions"][0]["expression"],
        user.as_str()
    );

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
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(Duration::from_secs(grace) > config.shutdown_timeout);
    let image = concat!("foo-controller:", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image);
}

/// The component `namespaced`: the controller as the container runs it, with the rights that its account has there.
#[tokio::test]
async fn given_namespaces_are_all_that_it_reaches() {
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

    let create = ["create", "token", "foo-controller", "-n", NAMESPACE];
    let token = cluster.kubectl(&create).await.success();
    let admin = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&admin).unwrap();
    kubeconfig["users"][0]["user"]["token"] = token.trim().into();
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut controller = Controller::spawn(|command| {
        objects.command(command, &files);
        command
            .env("KUBECONFIG", &path)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true");
    });
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

/// README, "Uninstall": without the CRD the Foos and their Deployments stay; with it, they go.
#[tokio::test]
async fn uninstalling_the_crd_takes_the_foos_and_their_deployments() {
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
    // Nothing runs in the pods of this cluster: the Foo's Deployment is made here.
    let create = async |name: &str| {
        let create = ["create", "-f", "-", "-o=jsonpath={.metadata.uid}"];
        let api = "samplecontroller.k8s.io/v1alpha1";
        let foo = json!({
            "apiVersion": api, "kind": "Foo", "metadata": {"name": name}, "spec": {"deploymentName": name},
        });
        let foo = cluster.kubectl_stdin(&create, &foo.to_string()).await;
        let uid = foo.success();
        let labels = json!({"app": name});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "ownerReferences": [{
                "apiVersion": api, "kind": "Foo", "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true,
            }]},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        });
        let made = cluster
            .kubectl_stdin(&create, &deployment.to_string())
            .await;
        made.success();
        uid
    };
    install().await;
    cluster.install_crd().await;
    let uid = create("foo-sample").await;
    // The garbage collector learns of a new kind within half a minute. It has once it does its work.
    create("foo-other").await;
    kubectl("delete foo/foo-other").await.success();
    kubectl("wait --for=delete deployment/foo-other --timeout=60s")
        .await
        .success();

    kubectl("delete -k deploy/base --timeout=60s")
        .await
        .success();
    let namespace = kubectl("get namespace foo-system").await;
    assert!(namespace.stderr.contains("NotFound"), "{namespace:?}");
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
    kubectl("delete -k deploy --timeout=60s").await.success();
    kubectl("wait --for=delete deployment/foo-sample --timeout=60s")
        .await
        .success();
    let crd = kubectl("get crd/foos.samplecontroller.k8s.io").await;
    assert!(crd.stderr.contains("NotFound"), "{crd:?}");
}
