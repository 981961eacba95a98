//! Tools that deploy and watch Foos: Argo CD's health of a Foo, the metrics of kube-state-metrics, and `helm install --wait`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use operator_testkit::{
    cluster::{bound_command, eventually},
    prometheus::Prometheus,
};
use serde_json::{Value, json};

use crate::{
    foo::{
        conditions::foos_by_state,
        scenarios::{DEADLINE, Scene, condition, foo},
    },
    support::{built, foos::with_pods},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a file of `deploy/integrations`.
fn integration(name: &str) -> Value {
    let file = fs::read_to_string(root().join("deploy/integrations").join(name)).unwrap();
    serde_saphyr::from_str(&file).unwrap()
}

/// Returns the status and the message of Argo CD's health.
fn argo_cd(program: &Path, script: &Path, object: &Value) -> (String, String) {
    let mut command = Command::new(program);
    command
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(object.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{object}");
    let printed = String::from_utf8(output.stdout).unwrap();
    println!("Argo CD of {}: {printed}", object["metadata"]["name"]);
    let (status, message) = printed.trim_end().split_once(": ").unwrap();
    (status.to_owned(), message.to_owned())
}

#[tokio::test]
#[ignore = "builds code of Argo CD, in minutes"]
async fn a5b_argo_cd_reports_the_health_of_each_state() {
    let program = built("argocd").join("argocd");
    let scene = Scene::with_sample("argo-cd").await;
    // The documented command, on a ConfigMap that has other keys.
    scene
        .kubectl(&["create", "configmap", "argocd-cm", "--from-literal=url=u"])
        .await;
    let file = root().join("deploy/integrations/argo-cd.yaml");
    let patch = format!("--patch-file={}", file.display());
    scene
        .kubectl(&["patch", "configmap", "argocd-cm", &patch])
        .await;
    let data = scene.get("configmap/argocd-cm").await["data"].clone();
    assert_eq!(data["url"], "u");
    // Argo CD (util/settings) splits this key at the underscore, into group and kind.
    let script = data["resource.customizations.health.samplecontroller.k8s.io_Foo"].as_str();
    let mut health = tempfile::NamedTempFile::new().unwrap();
    health.write_all(script.unwrap().as_bytes()).unwrap();

    let states = foos_by_state(&scene).await;
    for (name, status, of_type) in [
        ("unseen", "Progressing", None),
        ("foo-sample", "Healthy", Some("Ready")),
        ("invalid", "Degraded", Some("Stalled")),
        ("taken", "Degraded", Some("Stalled")),
        ("failing", "Progressing", Some("Ready")),
        ("refused", "Degraded", Some("Stalled")),
        ("late", "Degraded", Some("Stalled")),
        ("paused", "Suspended", Some("Paused")),
    ] {
        let (found, message) = argo_cd(&program, health.path(), &states[name]);
        assert_eq!(found, status, "{name}");
        let expected = match of_type {
            None => "The controller has not seen this generation".into(),
            Some(of_type) => condition(&states[name], of_type)["message"].clone(),
        };
        assert_eq!(json!(message), expected, "{name}");
    }
    // A Foo is not Healthy while its generation is unseen, or during a rollout.
    let mut changed = states["foo-sample"].clone();
    changed["metadata"]["generation"] = json!(7);
    assert_eq!(argo_cd(&program, health.path(), &changed).0, "Progressing");
    let mut rolling = states["foo-sample"].clone();
    let conditions = rolling["status"]["conditions"].as_array_mut().unwrap();
    for condition in conditions {
        let is_ready = condition["type"] == "Ready";
        condition["status"] = json!(if is_ready { "False" } else { "True" });
    }
    assert_eq!(argo_cd(&program, health.path(), &rolling).0, "Progressing");
    scene.set_finalizers("going", &Value::Null).await;
}

/// kube-state-metrics, as a service account with the permissions of the file. It is killed on drop.
struct KubeStateMetrics {
    child: Child,
    /// Its own loopback address. With port 0, kube-state-metrics would not print the port.
    host: String,
    _folder: tempfile::TempDir,
}

impl Drop for KubeStateMetrics {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl KubeStateMetrics {
    async fn start(scene: &Scene, values: &Value) -> Self {
        let cluster = with_pods().await;
        let account = format!("{}:kube-state-metrics", scene.namespace);
        scene
            .kubectl(&["create", "serviceaccount", "kube-state-metrics"])
            .await;
        let mut rules = values["rbac"]["extraRules"].as_array().unwrap().clone();
        // The chart adds this rule if `customResourceState` is enabled.
        rules.push(json!({
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": ["customresourcedefinitions"],
            "verbs": ["list", "watch"],
        }));
        let role = format!("{}-kube-state-metrics", scene.namespace);
        scene
            .apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": { "name": role },
                "rules": rules,
            }))
            .await;
        let (of_role, of_account) = (
            format!("--clusterrole={role}"),
            format!("--serviceaccount={account}"),
        );
        scene
            .kubectl(&["create", "clusterrolebinding", &role, &of_role, &of_account])
            .await;
        let token = scene
            .kubectl(&["create", "token", "kube-state-metrics"])
            .await;

        let folder = tempfile::tempdir().unwrap();
        let mut kubeconfig: Value =
            serde_json::from_slice(&fs::read(cluster.kubeconfig()).unwrap()).unwrap();
        kubeconfig["users"][0]["user"] = json!({ "token": token.trim() });
        let kubeconfig_file = folder.path().join("kubeconfig");
        fs::write(&kubeconfig_file, kubeconfig.to_string()).unwrap();
        let config = folder.path().join("config.yaml");
        fs::write(&config, values["customResourceState"]["config"].to_string()).unwrap();
        let [a, b, c, ..] = *uuid::Uuid::new_v4().as_bytes();
        let host = format!("127.{}.{b}.{c}", a.max(1));
        let child = bound_command(built("kube-state-metrics").join("kube-state-metrics"))
            .arg("--kubeconfig")
            .arg(kubeconfig_file)
            .arg("--custom-resource-state-only")
            .arg("--custom-resource-state-config-file")
            .arg(config)
            .args(["--host", &host, "--telemetry-host", &host])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            host,
            _folder: folder,
        }
    }

    fn address(&self) -> String {
        format!("{}:8080", self.host)
    }
}

/// A metric with the labels that the file adds, and its value.
type Metric = (String, BTreeMap<String, String>, i64);

fn expected(foo: &Value) -> Vec<Metric> {
    let (metadata, status) = (&foo["metadata"], &foo["status"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut metrics = Vec::new();
    let mut add = |name: &str, labels: &[(&str, &Value)], value: i64| {
        let mut all = BTreeMap::from([
            ("namespace".to_owned(), text(&metadata["namespace"])),
            ("foo".to_owned(), text(&metadata["name"])),
        ]);
        all.extend(
            labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), text(value))),
        );
        metrics.push((format!("kube_foo_{name}"), all, value));
    };
    let deployment = &foo["spec"]["deploymentName"];
    // Prometheus drops empty labels.
    let of_deployment = [("deployment", deployment)];
    let is_named = deployment != "";
    add("info", &of_deployment[..usize::from(is_named)], 1);
    let created: k8s_openapi::jiff::Timestamp =
        text(&metadata["creationTimestamp"]).parse().unwrap();
    add("created", &[], created.as_second());
    for (name, value) in [
        ("metadata_generation", &metadata["generation"]),
        ("status_observed_generation", &status["observedGeneration"]),
        ("spec_replicas", &foo["spec"]["replicas"]),
        ("status_replicas_available", &status["availableReplicas"]),
    ] {
        if let Some(value) = value.as_i64() {
            add(name, &[], value);
        }
    }
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let labels = [
            ("condition", &condition["type"]),
            ("reason", &condition["reason"]),
        ];
        add(
            "status_condition",
            &labels,
            i64::from(condition["status"] == "True"),
        );
    }
    metrics
}

#[tokio::test]
#[ignore = "takes Debian's prometheus, and builds kube-state-metrics in minutes"]
async fn kube_state_metrics_exports_each_foo() {
    let scene = Scene::with_sample("kube-state-metrics").await;
    let mut states = foos_by_state(&scene).await;
    states.remove("failing"); // the Foo `refused`, earlier
    let expected: BTreeSet<_> = states.values().flat_map(expected).collect();
    let values = integration("kube-state-metrics.yaml");
    let server = KubeStateMetrics::start(&scene, &values).await;
    let scraped = json!([{
        "job_name": "kube-state-metrics",
        // As a ServiceMonitor adds it: the namespace of kube-state-metrics.
        "static_configs": [{ "targets": [server.address()], "labels": { "namespace": "monitoring" } }],
        "honor_labels": values["prometheus"]["monitor"]["http"]["honorLabels"],
    }]);
    let prometheus = Prometheus::start(scraped, &[]).await;
    let namespaces: BTreeSet<_> = states
        .values()
        .map(|foo| foo["metadata"]["namespace"].as_str().unwrap())
        .collect();
    eventually(DEADLINE, "the metrics of all Foos", async || {
        let found: BTreeSet<Metric> = prometheus
            .query("{__name__=~'kube_foo_.*'}")
            .await
            .into_iter()
            .filter(|it| namespaces.contains(&*it.labels["namespace"]))
            .map(|mut it| {
                let name = it.labels.remove("__name__").unwrap();
                it.labels.retain(|label, _| {
                    !matches!(&**label, "instance" | "job") && !label.starts_with("customresource_")
                });
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the values are whole numbers"
                )]
                let value = it.value as i64;
                (name, it.labels, value)
            })
            .collect();
        let differ: Vec<_> = found.symmetric_difference(&expected).cloned().collect();
        if differ.is_empty() {
            Ok(())
        } else {
            Err(differ)
        }
    })
    .await;
    let shown = prometheus
        .query("kube_foo_status_condition{condition='Stalled'}")
        .await;
    println!("{shown:#?}");
    scene.set_finalizers("going", &Value::Null).await;
}

/// `helm install --wait` of Helm 4 returns once the Foo of a chart is Ready, and fails for a Foo that cannot become Ready.
#[tokio::test]
#[ignore = "builds Helm, in minutes"]
async fn helm_waits_for_foos() {
    let scene = Scene::with_sample("helm-wait").await;
    let chart = tempfile::tempdir().unwrap();
    fs::create_dir(chart.path().join("templates")).unwrap();
    let about = "apiVersion: v2\nname: web\nversion: 0.1.0\n";
    fs::write(chart.path().join("Chart.yaml"), about).unwrap();
    let object = foo("web", &json!({ "deploymentName": "web", "replicas": 1 }));
    let name = "{{ .Values.deployment | quote }}";
    let text = object.to_string().replacen(
        r#""deploymentName":"web""#,
        &format!(r#""deploymentName":{name}"#),
        1,
    );
    assert!(text.contains(name));
    fs::write(chart.path().join("templates/foo.yaml"), text).unwrap();
    let helm = async |verb: &str, deployment: &str| {
        let mut command = tokio::process::Command::from(bound_command(built("helm").join("helm")));
        let command = command
            .args([verb, "web"])
            .arg(chart.path())
            .args(["--wait", "--timeout=30s", "--namespace", &scene.namespace])
            .arg(format!("--set=deployment={deployment}"))
            .env("HOME", chart.path())
            .env("KUBECONFIG", with_pods().await.kubeconfig())
            .stdin(Stdio::null());
        let output = command.output().await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        println!("helm {verb}: {}: {stderr}", output.status);
        output.status.success().then_some(()).ok_or(stderr)
    };
    helm("install", "web").await.unwrap();
    let ready = scene.get("foo/web").await;
    assert_eq!(condition(&ready, "Ready")["status"], "True");
    let error = helm("upgrade", "").await.unwrap_err();
    // Helm judged the Foo. It did not wait for the timeout.
    let failed = "status: Failed, message: spec.deploymentName: must not be empty";
    assert!(error.contains("Foo/") && error.contains(failed), "{error}");

    // A quota rejects the pods for a while, as a quota does whose usage is being counted. The release waits.
    let quota = ["create", "quota", "few", "--hard=pods=0"];
    scene.kubectl(&quota).await;
    let released = helm("upgrade", "later");
    let mended = async {
        scene.not_ready("web", "ReplicaFailure").await;
        scene.lift_quota("few").await;
    };
    tokio::join!(released, mended).0.unwrap();
}
