use serde_json::{Value, json};

use super::{Release, check_template, fill_template};

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
