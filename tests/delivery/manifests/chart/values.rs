//! The values of the chart: the effect of each one, and the rejected ones.

use super::*;

/// Each value, the values that it needs, and a text that is then in the rendering.
const EFFECTS: &[(&str, &str, &str)] = &[
    ("replicaCount=5", "", r#""replicas":5"#),
    (
        r#"image.repository="registry.example/it""#,
        "",
        r#""image":"registry.example/it:"#,
    ),
    (r#"image.tag="nightly""#, "", r#":nightly""#),
    (
        r#"image.digest="sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#,
        "",
        "@sha256:aaa",
    ),
    (
        r#"image.pullPolicy="Always""#,
        "",
        r#""imagePullPolicy":"Always""#,
    ),
    (
        r#"imagePullSecrets=[{"name":"registry"}]"#,
        "",
        r#""imagePullSecrets":[{"name":"registry"}]"#,
    ),
    (r#"fullnameOverride="other""#, "", r#""name":"other""#),
    (r#"commonLabels={"release":"it"}"#, "", r#""release":"it""#),
    ("crds.enabled=false", "", "ClusterRole"),
    (
        r#"configuration="workers = 5\n""#,
        "",
        r#""foo-controller.toml":"workers = 5\n""#,
    ),
    (r#"namespaces=["team-x"]"#, "", r#""namespace":"team-x""#),
    (
        r#"installation="canary""#,
        "",
        r#""resourceNames":["foo-controller-canary"]"#,
    ),
    (
        r#"extraEnv=[{"name":"FOO_CONTROLLER__WORKERS","value":"5"}]"#,
        "",
        r#"{"name":"FOO_CONTROLLER__WORKERS","value":"5"}"#,
    ),
    (
        "serviceAccount.create=false",
        r#"serviceAccount.name="existing""#,
        r#""serviceAccountName":"existing""#,
    ),
    (
        r#"serviceAccount.name="other""#,
        "",
        r#""serviceAccountName":"other""#,
    ),
    (
        r#"serviceAccount.annotations={"a":"b"}"#,
        "",
        r#""annotations":{"a":"b"}"#,
    ),
    (
        r#"resources={"limits":{"memory":"1Gi"}}"#,
        "",
        r#""memory":"1Gi""#,
    ),
    (
        "terminationGracePeriodSeconds=90",
        "",
        r#""terminationGracePeriodSeconds":90"#,
    ),
    (r#"podLabels={"team":"it"}"#, "", r#""team":"it""#),
    (
        r#"podAnnotations={"linkerd.io/inject":"disabled"}"#,
        "",
        r#""linkerd.io/inject":"disabled""#,
    ),
    (
        r#"nodeSelector={"pool":"it"}"#,
        "",
        r#""nodeSelector":{"pool":"it"}"#,
    ),
    (
        r#"tolerations=[{"operator":"Exists"}]"#,
        "",
        r#""tolerations":[{"operator":"Exists"}]"#,
    ),
    (
        r#"affinity={"podAffinity":{}}"#,
        "",
        r#""affinity":{"podAffinity":{}}"#,
    ),
    (
        r#"topologySpreadConstraints=[{"maxSkew":2}]"#,
        "",
        r#""topologySpreadConstraints":[{"maxSkew":2}]"#,
    ),
    (
        r#"priorityClassName="system-cluster-critical""#,
        "",
        r#""priorityClassName":"system-cluster-critical""#,
    ),
    (r#"extraVolumes=[{"name":"tls"}]"#, "", r#"{"name":"tls"}"#),
    (
        r#"extraVolumeMounts=[{"name":"tls"}]"#,
        "",
        r#"{"name":"tls"}"#,
    ),
    (
        "fencing.enabled=true",
        "",
        "ValidatingAdmissionPolicyBinding",
    ),
    (
        "fencing.fastFailover=true",
        "fencing.enabled=true",
        r#""samplecontroller.k8s.io/lease-duration":"3s""#,
    ),
    ("metricsAuth.enabled=true", "", "tokenreviews"),
    ("prometheus.enabled=true", "", "PodMonitor"),
    ("otlp.enabled=true", "", "__TELEMETRY__ENDPOINT"),
    (
        r#"otlp.endpoint="https://collector:4317""#,
        "otlp.enabled=true",
        r#""value":"https://collector:4317""#,
    ),
    (
        r#"otlp.protocol="http/protobuf""#,
        "otlp.enabled=true",
        r#"{"name":"FOO_CONTROLLER__TELEMETRY__PROTOCOL","value":"http/protobuf"}"#,
    ),
    ("collector.enabled=true", "", "foo-collector"),
    ("networkPolicy.enabled=true", "", "NetworkPolicy"),
    (
        r#"networkPolicy.apiServerCIDRs=["10.96.0.1/32"]"#,
        "networkPolicy.enabled=true",
        r#""cidr":"10.96.0.1/32""#,
    ),
    (
        r#"networkPolicy.collector.namespace="telemetry""#,
        "networkPolicy.enabled=true",
        r#""kubernetes.io/metadata.name":"telemetry""#,
    ),
    (
        "networkPolicy.collector.port=4319",
        "networkPolicy.enabled=true",
        r#""port":4319"#,
    ),
];

/// Returns the paths of the values in the README's table.
fn value_names() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("deploy/chart/README.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split_once('`').unwrap().0.to_owned())
        .collect()
}

/// Every value has its effect.
#[test]
#[ignore = "builds Helm"]
fn each_value_of_the_chart_has_an_effect() {
    let tested: BTreeSet<_> = EFFECTS
        .iter()
        .map(|(value, ..)| value.split_once('=').unwrap().0.to_owned())
        .collect();
    assert_eq!(tested, value_names());
    let helm = Helm::build(HELMS[0], Path::new("/nonexistent"));
    let text = |values: &[&str]| {
        let objects = helm.render(RELEASE, NAMESPACE, values).unwrap();
        Value::Array(objects.0).to_string()
    };
    for (value, needed, effect) in EFFECTS {
        let needed: Vec<_> = Some(*needed)
            .into_iter()
            .filter(|it| !it.is_empty())
            .collect();
        let [before, after] = [text(&needed), text(&[&needed[..], &[value]].concat())];
        assert!(after.contains(effect), "{value}: {after}");
        assert_ne!(before, after, "{value}");
        // These remove an object.
        let removes = ["crds.enabled=false", "serviceAccount.create=false"].contains(value);
        assert!(removes || !before.contains(effect), "{value}");
    }
    assert!(!text(&["crds.enabled=false"]).contains("CustomResourceDefinition"));
    assert!(!text(&["replicaCount=1"]).contains("PodDisruptionBudget"));
    let roles = helm.render(
        "it",
        NAMESPACE,
        &[r#"serviceAccount={"create":false,"name":"it"}"#],
    );
    assert_eq!(roles.unwrap().all("ServiceAccount").count(), 0);
    let account = [
        "serviceAccount.create=false",
        r#"serviceAccount.name="existing""#,
        "fencing.enabled=true",
    ];
    assert!(text(&account).contains(r#""samplecontroller.k8s.io/controller-account":"existing""#));
    // The default request becomes larger, and no other one.
    for (more, cpu) in [
        (r#"resources.requests.memory="1Gi""#, r#""100m""#),
        (r#"resources.requests.cpu="2""#, r#""2""#),
        ("resources.requests.cpu=2", "2"),
    ] {
        let fast = text(&["fencing.enabled=true", "fencing.fastFailover=true", more]);
        assert!(fast.contains(&format!(r#""cpu":{cpu}"#)), "{more}");
    }
    // `null` removes a default, also a default that is not in values.yaml. A parent chart may set `enabled`.
    for key in ["affinity", "topologySpreadConstraints"] {
        assert!(text(&[]).contains(&format!("{key:?}:")));
        let removed = text(&[&format!("{key}=null"), "enabled=true"]);
        assert!(!removed.contains(&format!("{key:?}:")), "{key}");
    }

    // A change of the configuration rolls the pods, and a change of other values does not.
    let pod = |values: &[&str]| {
        helm.render(RELEASE, NAMESPACE, values)
            .unwrap()
            .pod()
            .clone()
    };
    assert_ne!(pod(&[r#"configuration="workers = 5""#]), pod(&[]));
    assert_eq!(
        pod(&[r#"commonLabels={"a":"b"}"#, "replicaCount=3"]),
        pod(&[])
    );

    // The controller recognizes the policy by a part of its name.
    for (release, values, name) in [
        (
            "web",
            &["fencing.enabled=true"][..],
            "web-foo-controller-fencing",
        ),
        (
            "foo-controller-b",
            &["fencing.enabled=true"],
            "foo-controller-b-foo-controller-fencing",
        ),
        (
            "web",
            &["fencing.enabled=true", r#"fullnameOverride="it""#],
            "it-foo-controller-fencing",
        ),
    ] {
        let mut objects = helm.render(release, NAMESPACE, values).unwrap();
        objects
            .0
            .retain(|object| object["kind"] != "CustomResourceDefinition");
        objects.named("ValidatingAdmissionPolicy", name);
        assert!(objects.dangling().is_empty());
    }
}

/// Names that look like numbers, and a configuration of any form, reach the API server as strings.
#[test]
#[ignore = "builds Helm"]
fn strings_of_the_chart_stay_strings() {
    for tool in HELMS {
        let helm = Helm::build(tool, Path::new("/nonexistent"));
        let values = [
            r#"fullnameOverride="null""#,
            r#"serviceAccount.name="0123""#,
            r#"priorityClassName="1e3""#,
            r#"installation="20250101""#,
            r#"namespaces=["123"]"#,
            r#"networkPolicy.collector.namespace="456""#,
            "fencing.enabled=true",
            "metricsAuth.enabled=true",
            "networkPolicy.enabled=true",
            "prometheus.enabled=true",
        ];
        let objects = helm.render("789", "0", &values).unwrap();
        for object in &objects.0 {
            let metadata = &object["metadata"];
            let instance = "app.kubernetes.io/instance";
            assert!(metadata["name"].is_string(), "{object}");
            assert!(!metadata["namespace"].is_number(), "{object}");
            assert!(!metadata["labels"][instance].is_number(), "{object}");
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert!(
                    subject["name"].is_string() && !subject["namespace"].is_number(),
                    "{object}"
                );
            }
        }
        let pod = objects.pod();
        assert_eq!(pod["spec"]["serviceAccountName"], "0123");
        assert_eq!(pod["spec"]["priorityClassName"], "1e3");
        let all = Value::Array(objects.0.clone()).to_string();
        for text in [
            r#"{"name":"FOO_CONTROLLER__INSTALLATION","value":"20250101"}"#,
            r#""kubernetes.io/metadata.name":"456""#,
            r#""samplecontroller.k8s.io/controller-account":"0123""#,
            r#""namespace":"123""#,
        ] {
            assert!(all.contains(text), "{text}: {all}");
        }

        for configuration in [
            "  workers = 5\nresync = \"1m\"\n",
            "\tworkers = 5\n",
            "\n\n workers = 5\n",
            "[http]\naddr = \"0.0.0.0:8080\" # IPv4 only\n",
        ] {
            let value = format!("configuration={}", Value::from(configuration));
            let objects = helm.render(RELEASE, NAMESPACE, &[&value]).unwrap();
            let map = objects.named("ConfigMap", "foo-controller-config");
            assert_eq!(map["data"]["foo-controller.toml"], configuration);
        }
    }
}

/// Values with which the release would not work, or not be safe, fail with the remedy.
#[test]
#[ignore = "builds Helm"]
fn values_that_do_not_work_are_rejected() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!(r#"image={{"tag":"1.2","digest":"{digest}"}}"#);
    let variable = |name: &str| format!(r#"extraEnv=[{{"name":"{name}","value":"x"}}]"#);
    let twice = r#"extraEnv=[{"name":"A","value":"1"},{"name":"A","value":"2"}]"#;
    let rejected = [
        (
            vec!["fencing.fastFailover=true".to_owned()],
            "needs fencing.enabled",
        ),
        (vec![image], r#"set image.digest="""#),
        (
            vec!["serviceAccount.create=false".into()],
            "needs serviceAccount.name",
        ),
        (vec![variable("POD_NAME")], "extraEnv: POD_NAME is set"),
        (vec![variable("POD_UID")], "extraEnv: POD_UID is set"),
        (
            vec![variable("FOO_CONTROLLER__CONFIG")],
            "FOO_CONTROLLER__CONFIG is set",
        ),
        (
            vec![
                variable("FOO_CONTROLLER__TELEMETRY__ENDPOINT"),
                "otlp.enabled=true".into(),
            ],
            "FOO_CONTROLLER__TELEMETRY__ENDPOINT is set",
        ),
        (
            vec![
                variable("FOO_CONTROLLER__NAMESPACES"),
                r#"namespaces=["a"]"#.into(),
            ],
            "FOO_CONTROLLER__NAMESPACES is set",
        ),
        (vec![twice.into()], "extraEnv: A is set"),
        (
            vec![variable("FOO_CONTROLLER__LEADER_ELECTION__ENABLED")],
            "deploy/overlays/dev",
        ),
        (
            vec![variable("FOO_CONTROLLER__INSTALLATION")],
            "set the value installation",
        ),
        (
            vec![variable("FOO_CONTROLLER__LEADER_ELECTION__FENCING_RECORD")],
            "set the value fencing.enabled",
        ),
    ];
    let settings = [
        (
            "[leader_election]\nenabled = false",
            "leader_election.enabled = false",
        ),
        (
            "leader_election.enabled = false",
            "leader_election.enabled = false",
        ),
        ("[leader_election]\nlease_name = \"x\"", "lease_name = x"),
        (
            "[leader_election]\nlease_namespace = \"x\"",
            "lease_namespace = x",
        ),
        ("installation = \"x\"", "set the value installation"),
        ("[http]\naddr = \"0.0.0.0:9090\"", "port 8080"),
        ("[http]\naddr = \"0.0.0.0:18080\"", "port 8080"),
        ("[http]\naddr = \"127.0.0.1:8080\"", "address of the pod"),
        ("[http]\naddr = \"[::1]:8080\"", "address of the pod"),
        ("leader_election = 5", "write [leader_election]"),
        (
            "[http]\nmetrics_auth = true",
            "set the value metricsAuth.enabled",
        ),
        ("workers =", "configuration: "),
    ];
    let settings =
        settings.map(|(toml, said)| (vec![format!("configuration={}", Value::from(toml))], said));
    for helm in HELMS.map(|tool| Helm::build(tool, Path::new("/nonexistent"))) {
        for (values, said) in rejected.iter().chain(&settings) {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            let Err(error) = helm.render(RELEASE, NAMESPACE, &values) else {
                panic!("{values:?} is accepted");
            };
            assert!(error.contains(said), "{values:?}: {error}");
        }
        let error = helm.render("2nd", NAMESPACE, &[]).err().unwrap();
        assert!(error.contains("set fullnameOverride"), "{error}");
        let named = helm.render("2nd", NAMESPACE, &[r#"fullnameOverride="second""#]);
        named.unwrap();
    }
}

/// Helm rejects unknown and invalid values, and names each in its error.
#[test]
#[ignore = "builds Helm"]
fn other_values_of_the_chart_are_rejected() {
    let helms = HELMS.map(|tool| Helm::build(tool, Path::new("/nonexistent")));
    for (value, said) in [
        ("replicas=3", "additional properties 'replicas' not allowed"),
        (
            "image.name=3",
            "at '/image': additional properties 'name' not allowed",
        ),
        (
            r#"replicaCount="3""#,
            "at '/replicaCount': got string, want integer",
        ),
        (
            r#"image.digest="sha256:0""#,
            "at '/image/digest': 'sha256:0' does not match pattern",
        ),
        (
            r#"namespaces="team-a""#,
            "at '/namespaces': got string, want array",
        ),
        (
            r#"namespaces=["Team"]"#,
            "at '/namespaces/0': 'Team' does not match pattern",
        ),
        (
            r#"namespaces=["a","a"]"#,
            "at '/namespaces': items at 0 and 1 are equal",
        ),
        ("fencing=null", "at '': missing property 'fencing'"),
        (
            "replicaCount=null",
            "at '': missing property 'replicaCount'",
        ),
        (
            "networkPolicy.collector=null",
            "at '/networkPolicy': missing property 'collector'",
        ),
        (
            r#"extraEnv=[{"name":"FOO_CONTROLLER__WORKERS","value":5}]"#,
            "at '/extraEnv/0/value': got number, want string",
        ),
        (
            r#"extraEnv=[{"value":"5"}]"#,
            "at '/extraEnv/0': missing property 'name'",
        ),
        (
            r#"imagePullSecrets=[{"name":"a","b":"c"}]"#,
            "at '/imagePullSecrets/0': additional properties 'b' not allowed",
        ),
        (
            r#"resources={"limit":{"memory":"1Gi"}}"#,
            "at '/resources': additional properties 'limit' not allowed",
        ),
        (
            r#"image.repository="registry:5000/it:v1""#,
            "at '/image/repository': 'registry:5000/it:v1' does not match pattern",
        ),
        (
            r#"image.tag="a b""#,
            "at '/image/tag': 'a b' does not match pattern",
        ),
        (
            r#"otlp.protocol="http/json""#,
            "at '/otlp/protocol': value must be one of 'grpc', 'http/protobuf'",
        ),
        (
            "networkPolicy.collector.port=70000",
            "at '/networkPolicy/collector/port': maximum: got 70,000, want 65,535",
        ),
        (
            r#"podAnnotations={"checksum/config":"x"}"#,
            "at '/podAnnotations/checksum~1config': false schema",
        ),
    ] {
        for helm in &helms {
            let Err(error) = helm.render(RELEASE, NAMESPACE, &[value]) else {
                panic!("{value} is accepted");
            };
            let lines: Vec<_> = error
                .lines()
                .filter(|line| line.starts_with("- "))
                .collect();
            assert!(
                lines.len() == 1 && lines[0].contains(said),
                "{value}: {error}"
            );
        }
    }
}
