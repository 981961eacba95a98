//! Names in `deploy/`: an overlay may change the namespace and all names, and every reference follows. So two installations fit
//! into one cluster.

use super::*;

const INSTALLATION: &str = "samplecontroller.k8s.io/installation";

/// Settings of an overlay that make the names of an installation unique.
pub(super) const OTHER_NAMES: [(&str, &str); 3] = [
    ("namespace", "elsewhere"),
    ("namePrefix", "second-"),
    ("nameSuffix", "-b"),
];

/// Returns an overlay with these names, directly of `base` with `components`, or nested over an overlay of them.
fn renamed(base: &str, components: &[&str], nested: bool) -> (TempDir, TempDir) {
    let inner = overlay(base, components);
    let outer = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut kustomization = read(&inner);
    if nested {
        let name = inner.path().file_name().unwrap().to_str().unwrap();
        kustomization = json!({"resources": [format!("../{name}")]});
    }
    for (field, value) in OTHER_NAMES {
        kustomization[field] = value.into();
    }
    write(&outer, &kustomization);
    (inner, outer)
}

pub(super) fn read(overlay: &TempDir) -> Value {
    let text = fs::read_to_string(overlay.path().join("kustomization.yaml")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(super) fn write(overlay: &TempDir, kustomization: &Value) {
    let file = overlay.path().join("kustomization.yaml");
    fs::write(file, kustomization.to_string()).unwrap();
}

/// Namespace, prefix and suffix of an overlay, or of an overlay over it, apply to every reference, with any components. Such an
/// installation shares no object name with another one.
#[tokio::test]
async fn every_reference_follows_the_names_of_an_overlay() {
    let components = folders(&root().join("deploy/components"));
    // The collector has its own namespace, which the `namespace` of an overlay must not change. The RoleBindings of
    // `namespaced` are in the namespaces of the Foos.
    let stay = ["collector", "namespaced"];
    let components = components.iter().filter(|name| !stay.contains(&&***name));
    let components: Vec<&str> = components.map(String::as_str).collect();
    let mut choices: Vec<(&str, Vec<&str>)> = components
        .iter()
        .map(|name| ("base", vec![*name]))
        .collect();
    choices.push(("base", components));
    choices.push(("base", vec![]));
    choices.push(("overlays/dev", vec!["fencing"]));
    choices.push(("overlays/production", vec!["prometheus", "metrics-auth"]));
    choices.push(("overlays/production", vec![FAST_FAILOVER]));
    for (base, components) in choices {
        let usual = rendered(overlay(base, &components).path()).await;
        let usual: BTreeSet<String> = usual.0.iter().map(id).collect();
        for nested in [false, true] {
            let what = format!("{base} {components:?}, nested: {nested}");
            let (_inner, outer) = renamed(base, &components, nested);
            let objects = rendered(outer.path()).await;
            let has_prometheus = components.contains(&"prometheus");
            let dangling: Vec<_> = (objects.dangling().into_iter())
                // The account of Prometheus, which is in the component `prometheus`.
                .filter(|to| has_prometheus || !to.contains("metrics-reader"))
                .collect();
            assert!(dangling.is_empty(), "{what}: {dangling:?}");
            for object in &objects.0 {
                let id = id(object);
                assert!(!usual.contains(&id), "{what}: {id} is in both");
                for (place, text) in texts(object, String::new()) {
                    let is_prometheus =
                        id.contains("metrics-reader") && place.starts_with("/subjects");
                    // For an alert about series that never existed: docs/operations.md, "Prometheus setups".
                    let is_expression =
                        id.starts_with("PrometheusRule ") && place.ends_with("/expr");
                    assert!(
                        !text.contains("foo-system")
                            || is_expression
                            || (is_prometheus && !has_prometheus),
                        "{what}: {id}: {place}: {text}"
                    );
                }
            }
        }
    }
}

/// The component `namespaced` over such an overlay, as its comment describes: its bindings refer to the account in the new
/// namespace.
#[tokio::test]
async fn namespaces_can_be_set_over_renamed_objects() {
    let (_inner, named) = renamed("base", &["fencing"], false);
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let component = root().join("deploy/components/namespaced");
    for file in ["kustomization.yaml", "rolebindings.yaml"] {
        let mut text = fs::read_to_string(component.join(file)).unwrap();
        if file == "rolebindings.yaml" {
            text = text.replace("foo-system", OTHER_NAMES[0].1);
        }
        fs::write(copy.path().join(file), text).unwrap();
    }
    let beside = |folder: &TempDir| {
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        format!("../{name}")
    };
    let outer = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write(
        &outer,
        &json!({"resources": [beside(&named)], "components": [beside(&copy)]}),
    );
    let objects = rendered(outer.path()).await;
    let dangling = objects.dangling();
    assert!(dangling.is_empty(), "{dangling:?}");
    assert!(objects.all("ClusterRoleBinding").next().is_none());
    for team in ["team-a", "team-b"] {
        let mut bindings = objects.all("RoleBinding");
        assert!(bindings.any(|it| it["metadata"]["namespace"] == team));
    }
    let config = objects.config();
    let namespaces = r#"namespaces = ["team-a", "team-b"]  # "#;
    assert!(config.contains(namespaces), "{config}");
}

impl Objects {
    /// Returns references to objects that are not included.
    pub(super) fn dangling(&self) -> Vec<String> {
        let there: BTreeSet<String> = self.0.iter().map(id).collect();
        let mut to = Vec::new();
        for object in &self.0 {
            let text = |place: &str| object.pointer(place).and_then(Value::as_str);
            let namespace = text("/metadata/namespace").unwrap_or_default();
            let mut refers = |kind: &str, namespace: &str, name: Option<&str>| {
                to.extend(name.map(|name| format!("{kind} {namespace}/{name}")));
            };
            let account = "ServiceAccount";
            for subject in object["subjects"].as_array().into_iter().flatten() {
                let namespace = subject["namespace"].as_str().unwrap_or_default();
                refers(account, namespace, subject["name"].as_str());
            }
            match object["kind"].as_str().unwrap() {
                "RoleBinding" | "ClusterRoleBinding" => {
                    let kind = text("/roleRef/kind").unwrap();
                    let namespace = if kind == "Role" { namespace } else { "" };
                    refers(kind, namespace, text("/roleRef/name"));
                }
                "ServiceAccount" => {
                    let named = object["metadata"]["annotations"][ACCOUNT].as_str();
                    refers(account, namespace, named);
                }
                "Deployment" => {
                    let pod = &object["spec"]["template"];
                    let record = pod["metadata"]["annotations"][RECORD].as_str();
                    refers(account, namespace, record);
                    let runs_as = pod["spec"]["serviceAccountName"].as_str();
                    refers(account, namespace, runs_as);
                    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                        refers("ConfigMap", namespace, volume["configMap"]["name"].as_str());
                    }
                }
                "ClusterRole" | "Role" => {
                    for rule in object["rules"].as_array().unwrap() {
                        let names = rule["resourceNames"].as_array().into_iter().flatten();
                        for name in names.map(|name| name.as_str().unwrap()) {
                            match rule["resources"][0].as_str().unwrap() {
                                "serviceaccounts" => {
                                    let is_called = |id: &String| {
                                        id.starts_with(account) && id.ends_with(&format!("/{name}"))
                                    };
                                    let found = there.iter().find(|id| is_called(id));
                                    to.push(found.cloned().unwrap_or_else(|| name.to_owned()));
                                }
                                "leases" => {
                                    let lease = Config::shipped(&APP).leader_election.lease_name;
                                    assert_eq!(name, lease, "the settings name it");
                                }
                                other => panic!("{other} {name}"),
                            }
                        }
                    }
                }
                "ValidatingAdmissionPolicyBinding" => {
                    let policy = text("/spec/policyName").unwrap();
                    let there = self.named("ValidatingAdmissionPolicy", policy);
                    assert!(policy.contains("foo-controller-fencing"), "{there}");
                    let namespace = text("/spec/paramRef/namespace").unwrap();
                    refers(account, namespace, text("/spec/paramRef/name"));
                }
                "Secret" => {
                    let key = "kubernetes.io/service-account.name";
                    let of = object["metadata"]["annotations"][key].as_str();
                    refers(account, namespace, of);
                }
                "PodMonitor" => {
                    let endpoints = object["spec"]["podMetricsEndpoints"].as_array().unwrap();
                    for endpoint in endpoints {
                        let secret = &endpoint["authorization"]["credentials"]["name"];
                        refers("Secret", namespace, secret.as_str());
                    }
                }
                _ => {}
            }
        }
        to.retain(|id| !there.contains(id));
        to
    }

    fn namespace(&self) -> &str {
        self.one("Namespace")["metadata"]["name"].as_str().unwrap()
    }
}

/// An installation beside others: the objects of its overlay, and a replica.
struct Installation {
    folder: TempDir,
    objects: Objects,
    kubeconfig: TempDir,
    pod: (String, String),
}

impl Installation {
    async fn apply(cluster: &Cluster, folder: TempDir) -> Self {
        let objects = rendered(folder.path()).await;
        let apply = ["apply", "-k", folder.path().to_str().unwrap()];
        let applied = cluster.kubectl(&apply).await.success();
        for line in applied.lines() {
            assert!(line.ends_with(" created"), "of another one: {line}");
        }
        let mut pod = objects.pod().clone();
        let name = format!("{}-0", objects.account());
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = name.as_str().into();
        pod["metadata"]["namespace"] = objects.namespace().into();
        let create = ["create", "-f", "-", "-o=jsonpath={.metadata.uid}"];
        let uid = cluster.kubectl_stdin(&create, &pod.to_string()).await;
        Self {
            folder,
            objects,
            kubeconfig: tempfile::tempdir().unwrap(),
            pod: (name, uid.success()),
        }
    }

    /// Writes a kubeconfig with its account. The token is bound to the pod, or unbound.
    async fn kubeconfig(&self, cluster: &Cluster, bound: bool) -> PathBuf {
        let (name, uid) = &self.pod;
        let of_pod =
            format!(" --bound-object-kind=Pod --bound-object-name={name} --bound-object-uid={uid}");
        let create = format!(
            "create token {} -n {}{}",
            self.objects.account(),
            self.objects.namespace(),
            if bound { &of_pod } else { "" }
        );
        let create: Vec<_> = create.split(' ').collect();
        let token = cluster.kubectl(&create).await.success();
        let admin = fs::read_to_string(cluster.kubeconfig()).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&admin).unwrap();
        kubeconfig["users"][0]["user"]["token"] = token.trim().into();
        let path = self.kubeconfig.path().join(format!("bound-{bound}"));
        fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }

    /// Returns the arguments of kubectl that delete it.
    fn uninstall(&self) -> String {
        let folder = self.folder.path().display();
        format!("delete --ignore-not-found -k {folder} --timeout=60s")
    }

    /// Returns the name of the Lease that its Role permits.
    fn lease(&self) -> &str {
        let rules = self.objects.one("Role")["rules"].as_array().unwrap();
        let mut names = rules
            .iter()
            .filter_map(|rule| rule["resourceNames"][0].as_str());
        names.next().unwrap()
    }

    /// Returns its setting `installation`.
    fn name(&self) -> Option<&str> {
        let variables = self.objects.pod()["spec"]["containers"][0]["env"].as_array();
        let mut variables = variables.unwrap().iter();
        let set = variables.find(|it| it["name"] == "FOO_CONTROLLER__INSTALLATION");
        set?["value"].as_str()
    }

    /// Starts the controller of the pod, and waits until it leads.
    async fn leads(&self, cluster: &Cluster) -> (Controller, TempDir) {
        let kubeconfig = self.kubeconfig(cluster, true).await;
        let namespace = self.objects.namespace();
        cluster.release_lease(namespace, self.lease()).await;
        let files = tempfile::tempdir().unwrap();
        let controller = Controller::spawn(|command| {
            self.objects.command(command, &files);
            command
                .env("KUBECONFIG", &kubeconfig)
                .env("POD_NAME", &self.pod.0)
                .env("POD_UID", &self.pod.1)
                .env("POD_NAMESPACE", namespace)
                .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
                .env_remove("FOO_CONTROLLER__TELEMETRY__ENDPOINT");
        });
        controller.wait_for_log("gained the lease").await;
        (controller, files)
    }

    /// Checks that a new Foo gets its Deployment, and that the policy rejects writes with an unbound token of this account.
    async fn serves(&self, cluster: &Cluster, namespace: &str, foo: &str) {
        let labels = self.name().map(|name| json!({INSTALLATION: name}));
        let object = json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
            "metadata": {"name": foo, "namespace": namespace, "labels": labels}, "spec": {"deploymentName": foo, "replicas": 1},
        });
        let create = ["create", "-f", "-"];
        let created = cluster.kubectl_stdin(&create, &object.to_string()).await;
        created.success();
        let deployment = format!("deployment/{foo}");
        eventually(DEADLINE, &format!("{foo} has its Deployment"), async || {
            let got = cluster
                .kubectl(&["get", &deployment, "-n", namespace])
                .await;
            got.status.success().then_some(()).ok_or(got.stderr)
        })
        .await;
        let unbound = self.kubeconfig(cluster, false).await;
        let unbound = format!("--kubeconfig={}", unbound.display());
        let delete = ["delete", &deployment, "-n", namespace, "--wait=false"];
        let delete = [&delete[..], &["--dry-run=server", &unbound]].concat();
        let policy = self.objects.one("ValidatingAdmissionPolicy");
        let policy = policy["metadata"]["name"].as_str().unwrap();
        let words = format!("ValidatingAdmissionPolicy '{policy}'");
        eventually(DEADLINE, &format!("{policy} judges"), async || {
            let refused = cluster.kubectl(&delete).await.stderr;
            let by_it = refused.contains(&words) && refused.contains("not bound to a pod");
            by_it.then_some(()).ok_or(refused)
        })
        .await;
    }
}

/// Returns the overlays of a section of docs/operations.md.
fn overlays(section: &str) -> Vec<TempDir> {
    let document = docs::document("docs/operations.md");
    let blocks = document.section(section).text.split("\n```yaml\n").skip(1);
    let overlays = blocks.map(|rest| {
        let yaml: Value = serde_saphyr::from_str(rest.split_once("\n```").unwrap().0).unwrap();
        let folder = overlay("overlays/production", &[]);
        let mut kustomization = read(&folder);
        for (field, value) in yaml.as_object().unwrap() {
            if field != "resources" {
                kustomization[field] = value.clone();
            }
        }
        write(&folder, &kustomization);
        folder
    });
    overlays.collect()
}

/// docs/operations.md, "An installation by label", with its overlay, beside an installation without a name. Both serve Foos of one
/// namespace under their own fencing policies, and a Foo moves from one to the other.
#[tokio::test]
async fn an_installation_by_label_lives_beside_the_default_one() {
    let cluster = with_controllers().await;
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    prepare(&cluster).await;
    let usual = Installation::apply(&cluster, overlay("overlays/production", &[])).await;
    let [canary] = <[_; 1]>::try_from(overlays("An installation by label"))
        .ok()
        .unwrap();
    let canary = Installation::apply(&cluster, canary).await;
    assert_eq!((usual.name(), usual.lease()), (None, "foo-controller"));
    assert_eq!(
        (canary.name(), canary.lease()),
        (Some("canary"), "foo-controller-canary")
    );
    let diff = format!("diff -k {}", usual.folder.path().display());
    assert_eq!(kubectl(&diff).await.success(), "");

    let (mut one, _files) = usual.leads(&cluster).await;
    let (mut other, _files_too) = canary.leads(&cluster).await;
    usual.serves(&cluster, "team-a", "a").await;
    canary.serves(&cluster, "team-a", "b").await;
    kubectl(&format!("label foo a -n team-a {INSTALLATION}=canary"))
        .await
        .success();
    assert_eq!(one.stop().await, 0);
    let scaled = async |replicas: &str| {
        let scale = format!("scale foo a -n team-a --replicas={replicas}");
        kubectl(&scale).await.success();
        eventually(DEADLINE, "its Deployment is scaled", async || {
            let got = "get deployment a -n team-a -o=jsonpath={.spec.replicas}";
            let got = kubectl(got).await.success();
            (got == replicas).then_some(()).ok_or(got)
        })
        .await;
    };
    scaled("2").await;
    kubectl(&format!("label foo a -n team-a {INSTALLATION}-"))
        .await
        .success();
    assert_eq!(other.stop().await, 0);
    let (mut again, _files_again) = usual.leads(&cluster).await;
    scaled("3").await;
    assert_eq!(again.stop().await, 0);
    for controller in [&one, &other, &again] {
        assert_eq!(controller.logged("WARN") + controller.logged("ERROR"), 0);
    }
    for installation in [&canary, &usual] {
        kubectl(&installation.uninstall()).await.success();
    }
    clean(&cluster).await;
}

/// Deletes the objects of `prepare`.
async fn clean(cluster: &Cluster) {
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await.success()
    };
    kubectl("delete namespace team-a team-b --timeout=60s").await;
    let crds = ELSEWHERE
        .split(',')
        .map(|kind| kind.to_lowercase() + "s.monitoring.coreos.com");
    let crds = crds.collect::<Vec<_>>().join(" ");
    kubectl(&format!("delete crd foos.samplecontroller.k8s.io {crds}")).await;
}

/// docs/operations.md, "Two installations in one cluster", with its overlays. Each installation serves its own Foos under its
/// own fencing policy. Uninstalling one does not affect the other.
#[tokio::test]
async fn two_installations_live_in_one_cluster() {
    let cluster = with_controllers().await;
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await
    };
    prepare(&cluster).await;
    let mut installations = Vec::new();
    for folder in overlays("Two installations in one cluster") {
        installations.push(Installation::apply(&cluster, folder).await);
    }
    let [first, second] = <[_; 2]>::try_from(installations).ok().unwrap();
    // The second installation has not changed the first.
    let diff = format!("diff -k {}", first.folder.path().display());
    assert_eq!(kubectl(&diff).await.success(), "");

    let (mut one, _files) = first.leads(&cluster).await;
    let (mut other, _files_too) = second.leads(&cluster).await;
    first.serves(&cluster, "team-a", "a").await;
    second.serves(&cluster, "team-b", "b").await;

    assert_eq!(one.stop().await, 0);
    kubectl(&first.uninstall()).await.success();
    second.serves(&cluster, "team-b", "b-too").await;
    assert_eq!(other.stop().await, 0);
    assert_eq!(other.logged("WARN") + other.logged("ERROR"), 0);
    kubectl(&second.uninstall()).await.success();
    clean(&cluster).await;
}
