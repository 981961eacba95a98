//! The Helm chart `deploy/chart` renders the objects of `deploy/`. Helm 3 and 4 install it on an API server, upgrade it, roll it
//! back, and uninstall it.

mod values;

use serde_json::Map;

use super::*;

/// Folders in tests/tools that pin Helm 4 and Helm 3.
const HELMS: [&str; 2] = ["helm", "helm3"];
const RELEASE: &str = "foo-controller";
const REPLICAS: &str =
    "get deployment/foo-controller -n foo-system -o=jsonpath={.status.availableReplicas}";
const WAIT: [&str; 3] = ["--wait", "--timeout", "60s"];

/// Helm, with an empty configuration of its own.
struct Helm {
    tool: &'static str,
    program: PathBuf,
    home: TempDir,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Returns the Helm of a folder of tests/tools. The first call builds it with Go.
    fn build(tool: &'static str, kubeconfig: &Path) -> Self {
        Self {
            tool,
            program: built(tool).join("helm"),
            home: tempfile::tempdir().unwrap(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Returns the output, or the error.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new("timeout")
            .arg("150")
            .arg(&self.program)
            .args(args)
            .current_dir(root())
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .env_remove("XDG_CACHE_HOME")
            .output()
            .unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        if output.status.success() {
            Ok(stdout)
        } else {
            Err(stderr)
        }
    }

    /// Runs the only command in docs/operations.md, "Helm", that begins with `helm` and `begin`, with the arguments `more`.
    fn documented(&self, begin: &str, more: &[&str]) -> Result<String, String> {
        let begin = format!("$ helm {begin} ");
        let document = docs::document("docs/operations.md");
        let mut lines = document.section("Helm").text.lines();
        let line = lines.find(|line| line.starts_with(&begin)).unwrap();
        assert!(!lines.any(|line| line.starts_with(&begin)), "{begin}");
        let args: Vec<_> = line["$ helm ".len()..].split(' ').collect();
        self.run(&[&args, more].concat())
    }

    /// Renders a release of the chart with these values.
    fn render(&self, release: &str, namespace: &str, values: &[&str]) -> Result<Objects, String> {
        let mut args = vec![
            "template",
            release,
            "deploy/chart",
            "--namespace",
            namespace,
        ];
        // A Helm that is built without its release flags renders for a version of Kubernetes that is too old for this chart.
        args.extend(["--kube-version", "1.36.0"]);
        args.extend(values.iter().flat_map(|value| ["--set-json", value]));
        let yaml = self.run(&args)?;
        // Helm separates the objects by `---` and a comment. A rendering may have no object, or comments alone.
        let objects: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
        Ok(Objects(
            objects.into_iter().filter(|it| !it.is_null()).collect(),
        ))
    }
}

/// Values that enable a component.
fn value_of(component: &str) -> &'static str {
    match component {
        "collector" => "collector.enabled=true",
        FENCING => "fencing.enabled=true",
        FAST_FAILOVER => r#"fencing={"enabled":true,"fastFailover":true}"#,
        "metrics-auth" => "metricsAuth.enabled=true",
        "namespaced" => r#"namespaces=["team-a","team-b"]"#,
        "networkpolicy" => "networkPolicy.enabled=true",
        "otlp" => "otlp.enabled=true",
        "prometheus" => "prometheus.enabled=true",
        other => panic!("the chart has no value for {other}"),
    }
}

/// Labels of objects that are not compared: Helm or the conventions of charts set them.
const IGNORED_LABELS: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Fields that only the chart has, at any depth.
const IGNORED_FIELDS: [&str; 3] = [
    "app.kubernetes.io/instance",
    "checksum/config",
    "helm.sh/resource-policy",
];

impl Objects {
    /// Returns the objects by name, without the differences between the chart and `deploy/`.
    fn comparable(mut self) -> Value {
        // Helm creates the namespace with `--create-namespace`, and not by the chart.
        self.0.retain(|object| {
            object["kind"] != "Namespace" || object["metadata"]["name"] != NAMESPACE
        });
        // The namespace of a release may have pods of others. The policy of the controller is enough for its pods.
        self.0
            .retain(|object| object["metadata"]["name"] != "default-deny");
        // kustomize appends a hash to the names of ConfigMaps.
        let hashed: Vec<String> = self
            .all("ConfigMap")
            .map(|map| map["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        for object in &mut self.0 {
            // kustomize sets a namespace for policies, which have none.
            if object["kind"]
                .as_str()
                .unwrap()
                .starts_with("ValidatingAdmissionPolicy")
            {
                object["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .remove("namespace");
            }
            if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
                labels.retain(|label, _| !IGNORED_LABELS.contains(&&**label));
            }
            reduce(object, &hashed);
        }
        self.by_name()
    }
}

/// Removes [`IGNORED_FIELDS`], empty maps, and the hash in the names of `ConfigMaps`.
fn reduce(value: &mut Value, hashed: &[String]) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, value| {
                reduce(value, hashed);
                let is_empty = value.as_object().is_some_and(Map::is_empty)
                    && ["annotations", "labels"].contains(&&**key);
                !IGNORED_FIELDS.contains(&&**key) && !is_empty
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| reduce(item, hashed)),
        Value::String(text) if hashed.contains(text) => {
            let (name, hash) = text.rsplit_once('-').unwrap();
            // The alphabet of kustomize.
            if hash.len() == 10 && hash.chars().all(|it| "2456789bcdfghkmt".contains(it)) {
                *text = name.to_owned();
            }
        }
        _ => {}
    }
}

/// Fails with the first difference.
fn assert_same(chart: &Value, deploy: &Value, what: &str) {
    fn difference(chart: &Value, deploy: &Value, place: &str) -> Option<String> {
        match (chart, deploy) {
            (Value::Object(ones), Value::Object(others)) => ones
                .keys()
                .chain(others.keys())
                .find_map(|key| difference(&chart[key], &deploy[key], &format!("{place}/{key}"))),
            // kustomize prints 10.0 as 10.
            (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => None,
            // kustomize prints a folded block with empty lines between the lines.
            (Value::String(one), Value::String(other))
                if place.to_lowercase().ends_with("expression")
                    && one.split_whitespace().eq(other.split_whitespace()) =>
            {
                None
            }
            _ if chart == deploy => None,
            _ => Some(format!("{place}: {chart} in the chart, {deploy} in deploy")),
        }
    }
    let found = difference(chart, deploy, "");
    assert_eq!(found, None, "{what}");
}

/// The chart and kustomize render the same objects: `deploy`, each component, each pair, all components, and the overlay for
/// production. A release with another name equals an overlay with that name as its `namePrefix`.
#[tokio::test]
#[ignore = "builds Helm"]
async fn the_chart_renders_deploy() {
    let helms = HELMS.map(|tool| Helm::build(tool, Path::new("/nonexistent")));
    let compare = async |kustomization: &Path, values: &[&str]| {
        let deploy = rendered(kustomization).await.comparable();
        for helm in &helms {
            let chart = helm
                .render(RELEASE, NAMESPACE, values)
                .unwrap()
                .comparable();
            assert_same(&chart, &deploy, &format!("{values:?}"));
        }
    };
    compare(&root().join("deploy"), &[]).await;

    let no_crd = "crds.enabled=false";
    let components = folders(&root().join("deploy/components"));
    let mut choices: Vec<Vec<&str>> = vec![components.iter().map(String::as_str).collect()];
    for (n, one) in components.iter().enumerate() {
        choices.push(vec![one]);
        choices.extend(components[..n].iter().map(|other| vec![&**one, &**other]));
    }
    for choice in choices {
        let mut values = vec![no_crd];
        values.extend(choice.iter().map(|component| value_of(component)));
        compare(overlay("base", &choice).path(), &values).await;
    }
    let components = ["fencing", "networkpolicy", "otlp"].map(value_of);
    let production = [&[no_crd, "replicaCount=3"], &components[..]].concat();
    compare(&root().join("deploy/overlays/production"), &production).await;

    let components = ["fencing", "metrics-auth", "otlp", "prometheus"];
    let canary = overlay("base", &components);
    let mut kustomization = names::read(&canary);
    kustomization["namespace"] = "foo-canary".into();
    kustomization["namePrefix"] = "canary-".into();
    names::write(&canary, &kustomization);
    let mut deploy = rendered(canary.path()).await;
    deploy.0.retain(|object| object["kind"] != "Namespace");
    let mut values = vec![no_crd];
    values.extend(components.map(value_of));
    for helm in &helms {
        let mut chart = helm.render("canary", "foo-canary", &values).unwrap();
        // The alert about series that never existed names the namespace (docs/operations.md, "Prometheus setups").
        let rules = chart
            .0
            .iter_mut()
            .find(|it| it["kind"] == "PrometheusRule")
            .unwrap();
        let text = rules.to_string();
        assert!(text.contains("foo-canary") && !text.contains(NAMESPACE));
        *rules = serde_json::from_str(
            &text
                .replace("foo-canary\\\"", "foo-system\\\"")
                .replace(r#""namespace":"foo-system""#, r#""namespace":"foo-canary""#),
        )
        .unwrap();
        assert_same(&chart.comparable(), &clone(&deploy).comparable(), "canary");
    }
}

fn clone(objects: &Objects) -> Objects {
    Objects(objects.0.clone())
}

/// Both versions of Helm install the chart, upgrade it with a changed CRD, roll it back and uninstall it. The controller works with
/// the environment, the configuration and the permissions of the release. The CRD and the Foos stay.
#[tokio::test]
#[ignore = "builds Helm"]
async fn helm_installs_upgrades_rolls_back_and_uninstalls() {
    for tool in HELMS {
        life_of_a_release(tool).await;
    }
}

async fn life_of_a_release(tool: &'static str) {
    let cluster = Cluster::start(Options {
        controllers: true,
        audit: false,
    });
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    let helm = Helm::build(tool, cluster.kubeconfig());
    let left = async || {
        let kinds = "deployments,configmaps,roles,networkpolicies,serviceaccounts,validatingadmissionpolicies,clusterroles,\
                     clusterrolebindings";
        let all = kubectl(&format!("get {kinds} -n foo-system -o=name")).await;
        let all = all.success();
        let ours = all.lines().filter(|name| name.contains("foo-controller"));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };

    // All components whose objects are built-in kinds.
    let values = "fencing.enabled=true,networkPolicy.enabled=true,metricsAuth.enabled=true";
    helm.documented("install", &["--set", values]).unwrap();
    assert!(left().await.len() > 10);
    let uninstalled = helm.documented("uninstall", &[]).unwrap();
    assert!(
        uninstalled.contains("kept due to the resource policy"),
        "{uninstalled}"
    );
    assert_eq!(left().await, [""; 0]);

    // The next release adopts the CRD.
    let installed = helm.documented("install", &[]).unwrap();
    assert!(installed.contains("kubectl get foos"), "{installed}");
    assert_eq!(kubectl(REPLICAS).await.success(), "2");

    let objects = helm.render(RELEASE, NAMESPACE, &[]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let own = kubeconfig(&cluster, &folder).await;
    cluster.release_lease(NAMESPACE, RELEASE).await;
    let mut controller = Controller::spawn(|command| {
        objects.command(command, &files);
        command
            .env("KUBECONFIG", &own)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true");
    });
    kubectl("apply -f config/samples/foo.yaml").await.success();
    let ready = "wait --for=condition=Ready foo/foo-sample --timeout=60s";
    kubectl(ready).await.success();
    let foo = "get foo/foo-sample deployment/foo-sample -o=jsonpath={.items[*].metadata.uid}";
    let before = kubectl(foo).await.success();

    // An upgrade changes the CRD, and a rollback changes it back.
    let newer = tempfile::tempdir().unwrap();
    let chart = newer.path().join("chart");
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(root().join("deploy/chart")).arg(&chart);
    assert!(copy.status().unwrap().success());
    let file = chart.join("templates/crd.yaml");
    let crd = fs::read_to_string(&file).unwrap();
    let changed = crd.replacen("    categories:\n", "    categories:\n    - newer\n", 1);
    assert_ne!(crd, changed);
    fs::write(&file, changed).unwrap();
    let categories = "get crd/foos.samplecontroller.k8s.io -o=jsonpath={.spec.names.categories}";
    helm.documented("upgrade", &["--set", "replicaCount=3"])
        .unwrap();
    assert_eq!(kubectl(categories).await.success(), r#"["all"]"#);
    let upgrade = [
        "upgrade",
        RELEASE,
        chart.to_str().unwrap(),
        "--namespace",
        NAMESPACE,
    ];
    let upgrade = [&upgrade[..], &["--reset-then-reuse-values"], &WAIT].concat();
    helm.run(&upgrade).unwrap();
    assert_eq!(kubectl(categories).await.success(), r#"["newer","all"]"#);
    assert_eq!(kubectl(REPLICAS).await.success(), "3");
    helm.documented("rollback", &[]).unwrap();
    assert_eq!(kubectl(categories).await.success(), r#"["all"]"#);
    assert_eq!(kubectl(REPLICAS).await.success(), "3");

    fast_failover_ends_before_fencing(|values| helm.run(&[&upgrade[..], values].concat()));
    a_second_release(&helm);
    helm.documented("uninstall", &[]).unwrap();
    assert_eq!(left().await, [""; 0]);
    assert_eq!(kubectl(foo).await.success(), before);
    controller.stop().await;
    in_place_of_kustomize(&helm, &cluster).await;
}

/// A release with fast failover must not lose fencing in one step, whether both values are changed or removed.
fn fast_failover_ends_before_fencing(upgrade: impl Fn(&[&str]) -> Result<String, String>) {
    let fencing = ["--set", "fencing.enabled=true"];
    let fast = [&fencing[..], &["--set", "fencing.fastFailover=true"]].concat();
    let slow = [&fencing[..], &["--set", "fencing.fastFailover=false"]].concat();
    upgrade(&fast).unwrap();
    for neither in [
        "fencing=null",
        "fencing.enabled=false,fencing.fastFailover=false",
    ] {
        let error = upgrade(&["--set", neither]).unwrap_err();
        assert!(
            error.contains("first upgrade with fencing.enabled=true"),
            "{error}"
        );
    }
    upgrade(&slow).unwrap();
    upgrade(&["--set", "fencing.enabled=false"]).unwrap();
}

/// A second release in the cluster must not contain the CRD. Otherwise Helm rejects the release before it changes an object.
fn a_second_release(helm: &Helm) {
    let second = [
        "install",
        "canary",
        "deploy/chart",
        "--namespace",
        "foo-canary",
        "--create-namespace",
    ];
    let refused = helm.run(&second).unwrap_err();
    let crd = "CustomResourceDefinition \"foos.samplecontroller.k8s.io\"";
    assert!(
        refused.contains(crd) && refused.contains("release-name"),
        "{refused}"
    );
    let settings = ["--set", "crds.enabled=false,installation=canary"];
    helm.run(&[&second[..], &settings, &WAIT].concat()).unwrap();
    let uninstall = ["uninstall", "canary", "--namespace", "foo-canary"];
    helm.run(&[&uninstall[..], &WAIT].concat()).unwrap();
}

/// A release adopts the objects that kustomize has installed.
async fn in_place_of_kustomize(helm: &Helm, cluster: &Cluster) {
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    kubectl("delete crd/foos.samplecontroller.k8s.io")
        .await
        .success();
    kubectl("apply -k deploy").await.success();
    kubectl("delete deployment/foo-controller -n foo-system --timeout=60s")
        .await
        .success();
    let force: &[&str] = if helm.tool == HELMS[0] {
        &["--force-conflicts"]
    } else {
        &[]
    };
    let take = [&["--take-ownership"], force].concat();
    helm.documented("install", &take).unwrap();
    assert_eq!(kubectl(REPLICAS).await.success(), "2");
}
