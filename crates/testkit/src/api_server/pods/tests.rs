use serde_json::{Value, json};

use super::{Cause, Release, check_template, fill_template};
use crate::api_server::{Kind, job, patch::Style, strategy};

/// Returns a template with this pod, as it is read.
fn read(pod: &Value) -> Value {
    let mut spec = json!({ "template": { "spec": pod } });
    fill_template(&mut spec).unwrap();
    spec["template"].take()
}

#[test]
fn a_template_has_the_defaults_of_the_api_server() {
    let template = read(&json!({
        "serviceAccountName": "a",
        "hostNetwork": false,
        "containers": [{
            "name": "a",
            "image": "x",
            "ports": [{ "containerPort": 80 }],
            "env": [
                { "name": "A", "value": "", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                { "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            ],
            "livenessProbe": { "httpGet": { "port": 80 }, "initialDelaySeconds": 0 },
            "lifecycle": { "preStop": { "httpGet": { "port": 80, "httpHeaders": [{ "name": "A" }] } } },
        }],
        "volumes": [
            { "name": "a" },
            { "name": "b", "hostPath": { "path": "/b" } },
            { "name": "c", "configMap": { "name": "", "items": [] } },
            { "name": "d", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } },
            { "name": "e", "rbd": { "monitors": ["m"], "image": "i", "readOnly": false } },
        ],
    }));
    let expected = json!({
        "metadata": {},
        "spec": {
            "serviceAccountName": "a",
            "serviceAccount": "a",
            "containers": [{
                "name": "a",
                "image": "x",
                "imagePullPolicy": "Always",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                "env": [
                    { "name": "A", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
                    { "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "0" } } },
                ],
                "livenessProbe": {
                    "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" },
                    "failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1,
                },
                "lifecycle": { "preStop": { "httpGet": {
                    "port": 80, "path": "/", "scheme": "HTTP", "httpHeaders": [{ "name": "A", "value": "" }],
                } } },
            }],
            "volumes": [
                { "name": "a", "emptyDir": {} },
                { "name": "b", "hostPath": { "path": "/b", "type": "" } },
                { "name": "c", "configMap": { "defaultMode": 420 } },
                { "name": "d", "projected": {
                    "defaultMode": 420,
                    "sources": [{ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } }],
                } },
                { "name": "e", "rbd": {
                    "monitors": ["m"], "image": "i", "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring",
                } },
            ],
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
        },
    });
    assert_eq!(template, expected);
}

/// Fields of a newer Kubernetes are not modelled in an older one.
#[test]
fn a_release_has_its_own_fields() {
    let pod = json!({ "hostnameOverride": "a", "containers": [{ "name": "a", "image": "x" }] });
    let template = read(&pod);
    assert_eq!(check_template(&template, Release::V1_36).unwrap(), []);
    assert!(check_template(&template, Release::V1_33).is_err());
}

/// Returns the errors of a template with this pod and a container.
fn causes(mut pod: Value, release: Release) -> Option<Vec<Cause>> {
    pod["containers"] = json!([{ "name": "a", "image": "x" }]);
    check_template(&read(&pod), release).ok()
}

#[test]
fn only_a_valid_reference_is_always_pulled() {
    let digest = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";
    let tagged = format!("x:latest@sha256:{digest}");
    let untagged = format!("x@sha256:{digest}");
    let always = [
        "x",
        "h:5000/a__b/c-d:latest",
        "Redis/bar",
        "[::1]:80/x",
        &tagged,
    ];
    let present = [
        "",
        "x:1",
        "h:5000",
        "Redis",
        "Redis:latest",
        "${IMG}",
        "x/",
        "http://root",
        "a//b",
        "x@sha256:0",
        digest,
        &untagged,
    ];
    for (images, policy) in [(&always[..], "Always"), (&present, "IfNotPresent")] {
        for image in images {
            let template = read(&json!({
                "containers": [{ "name": "a", "image": image }],
                "volumes": [{ "name": "a", "image": { "reference": image } }],
            }));
            let spec = &template["spec"];
            assert_eq!(spec["containers"][0]["imagePullPolicy"], policy, "{image}");
            assert_eq!(spec["volumes"][0]["image"]["pullPolicy"], policy, "{image}");
        }
    }
}

#[test]
fn a_release_has_its_own_errors() {
    let device = json!({
        "hostUsers": false,
        "initContainers": [{ "name": "b", "image": "x", "volumeDevices": [{ "name": "v", "devicePath": "/d" }] }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }],
    });
    let resize = json!({ "initContainers": [{
        "name": "b", "image": "x", "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }],
    }] });
    let image = json!({ "volumes": [{ "name": "v", "image": {} }] });
    for (pod, since, field) in [
        (device, Release::V1_34, "initContainers[0].volumeDevices"),
        (
            resize,
            Release::V1_36,
            "initContainers[0].resizePolicy[0].restartPolicy",
        ),
        (image, Release::V1_37, "volumes[0].image.reference"),
    ] {
        for release in Release::ALL {
            // Before 1.36, volumes of images are not modelled.
            let Some(causes) = causes(pod.clone(), release) else {
                assert!(
                    release < Release::V1_36 && since == Release::V1_37,
                    "{field}"
                );
                continue;
            };
            let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
            let expected = format!("spec.template.spec.{field}");
            let expected = (release >= since).then_some(expected.as_str());
            assert_eq!(fields, Vec::from_iter(expected), "{release}");
        }
    }
}

#[test]
fn only_required_values_of_node_affinities_are_validated() {
    let term = json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["-"] }] });
    let of = |nodes: Value| {
        causes(
            json!({ "affinity": { "nodeAffinity": nodes } }),
            Release::default(),
        )
    };
    let preferred = json!([{ "weight": 1, "preference": &term }]);
    let preferred = json!({ "preferredDuringSchedulingIgnoredDuringExecution": preferred });
    assert_eq!(of(preferred), Some(Vec::new()));
    let required = json!({ "nodeSelectorTerms": [term] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": required });
    assert_eq!(of(required).map(|causes| causes.len()), Some(1));
}

#[test]
fn a_wrong_source_of_a_volume_is_never_accepted() {
    let of = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        causes(json!({ "volumes": [volume] }), Release::default())
    };
    let iscsi = |iqn: &str| of(json!({ "iscsi": { "targetPortal": "p", "iqn": iqn, "lun": 0 } }));
    assert_eq!(iscsi("iqn.2001-04.com.example:a"), Some(Vec::new()));
    assert_eq!(iscsi("iqn.2001-04.com.example"), None);
    let flex =
        |option: &str| of(json!({ "flexVolume": { "driver": "d", "options": { option: "a" } } }));
    assert_eq!(flex("k8s.io.a/b"), Some(Vec::new()));
    for option in ["kubernetes.io", "a.Kubernetes.io/b", "k8s.io/b"] {
        assert_eq!(flex(option), None, "{option}");
    }
    let flocker =
        |name: &str, id: &str| of(json!({ "flocker": { "datasetName": name, "datasetUUID": id } }));
    assert_eq!(flocker("", "A_b"), Some(Vec::new()));
    for (name, id) in [("a", "A_b"), ("", ""), ("a/b", "")] {
        assert_eq!(flocker(name, id), None, "{name} {id}");
    }
    let causes = of(json!({ "quobyte": {} })).unwrap();
    let why = "Required value: must be a host:port pair or multiple pairs separated by commas";
    assert_eq!(causes[0].message, why);
}

#[test]
fn a_job_has_no_other_restart_policy() {
    let template = read(
        &json!({ "restartPolicy": "Sometimes", "containers": [{ "name": "a", "image": "x" }] }),
    );
    let job = json!({ "spec": { "template": template } });
    let messages: Vec<_> = job::check(&job, Release::default()).unwrap();
    let messages: Vec<_> = messages
        .iter()
        .map(|cause| cause.message.as_str())
        .collect();
    let expected = [
        "Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        "Unsupported value: \"Sometimes\": supported values: \"OnFailure\", \"Never\"",
    ];
    assert_eq!(messages, expected);
}

/// They have a merge key only in a pod.
#[test]
fn a_strategic_patch_replaces_the_pull_secrets_of_a_service_account() {
    let of = |name: &str| json!({ "imagePullSecrets": [{ "name": name }] });
    let patch = of("b").to_string();
    let patched = |kind| {
        Style::Strategic
            .apply(kind, &of("a"), patch.as_bytes())
            .unwrap()
    };
    assert_eq!(patched(Kind::ServiceAccount), of("b"));
    let both = json!({ "imagePullSecrets": [{ "name": "b" }, { "name": "a" }] });
    assert_eq!(patched(Kind::Deployment), both);
}

#[test]
fn a_field_behind_a_gate_is_not_unknown() {
    let of = |field: &str, release| {
        let spec = json!({ "template": { "spec": { field: 1 } } });
        strategy::unknown_fields(Kind::Deployment, release, &json!({ "spec": spec })).ok()
    };
    for (field, release) in [
        ("workloadRef", Release::V1_35),
        ("evictionResponders", Release::V1_37),
    ] {
        assert_eq!(of(field, release), None);
        assert_eq!(
            of(field, Release::V1_36),
            Some(vec![format!("spec.template.spec.{field}")])
        );
    }
}
