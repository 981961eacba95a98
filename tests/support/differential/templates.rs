//! Random pods for [`pods`](super::pods): values for each field of their specs.

use proptest::prelude::{Just, Strategy, prop, prop_oneof};
use serde_json::{Value, json};

/// Values of fields, each with its path in the spec of a pod. A path that ends with `+` adds an element to a list.
type Part = Vec<(&'static str, Value)>;

const DIGEST: &str = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

/// Returns a valid pod.
pub fn base() -> Value {
    json!({ "containers": [{ "name": "a", "image": "x:1" }] })
}

fn one(path: &'static str, value: Value) -> Part {
    vec![(path, value)]
}

/// Returns values of a field.
fn each(path: &'static str, values: Value) -> Vec<Part> {
    let Value::Array(values) = values else {
        panic!("{path} has no list");
    };
    values.into_iter().map(|value| one(path, value)).collect()
}

/// Returns volumes, each with a mount.
fn volumes(sources: Value) -> Vec<Part> {
    let Value::Array(sources) = sources else {
        panic!("no list");
    };
    let volumes = sources.into_iter().enumerate().map(|(at, source)| {
        let mut volume = source;
        let name = format!("v{}", at % 7);
        volume["name"] = name.as_str().into();
        let mount = json!({ "name": name, "mountPath": format!("/mnt/{at}") });
        vec![
            ("volumes/+", volume),
            ("containers/0/volumeMounts/+", mount),
        ]
    });
    volumes.collect()
}

/// Returns probes and hooks.
fn actions(valid: bool) -> Vec<Part> {
    let good = json!([
        { "httpGet": { "port": 80 } },
        { "httpGet": { "port": "http", "path": "/x", "scheme": "HTTPS", "httpHeaders": [{ "name": "A", "value": "" }] } },
        { "exec": { "command": ["true"] }, "timeoutSeconds": 0, "periodSeconds": 5 },
        { "tcpSocket": { "port": 8080, "host": "h" }, "initialDelaySeconds": 3, "failureThreshold": 0 },
        { "grpc": { "port": 9000 }, "successThreshold": 1 },
        { "grpc": { "port": 9000, "service": "s" }, "terminationGracePeriodSeconds": 10 },
    ]);
    let bad = json!([
        {},
        { "httpGet": {} },
        { "httpGet": { "port": 0 } },
        { "httpGet": { "port": "HTTP" } },
        { "httpGet": { "port": 70000, "scheme": "FTP" } },
        { "httpGet": { "port": 80, "httpHeaders": [{ "name": "a b", "value": "c" }] } },
        { "exec": { "command": [] } },
        { "exec": { "command": ["a"] }, "tcpSocket": { "port": 1 } },
        { "tcpSocket": { "port": 80 }, "successThreshold": 2 },
        { "tcpSocket": { "port": 80 }, "periodSeconds": -1, "terminationGracePeriodSeconds": 0 },
        { "grpc": { "port": 0 } },
        { "httpGet": { "port": 80 }, "periodSeconds": "x" },
    ]);
    let mut parts = Vec::new();
    let values = if valid { good } else { bad };
    for path in [
        "containers/0/livenessProbe",
        "containers/0/readinessProbe",
        "containers/0/startupProbe",
    ] {
        parts.extend(each(path, values.clone()));
    }
    let hooks = if valid {
        json!([
            { "preStop": { "sleep": { "seconds": 5 } } },
            { "preStop": { "exec": { "command": ["a"] } }, "postStart": { "httpGet": { "port": 80 } } },
            { "postStart": { "tcpSocket": { "port": "x" } } },
            {},
        ])
    } else {
        json!([
            { "preStop": { "sleep": { "seconds": 500 } } },
            { "preStop": {} },
            { "postStart": { "exec": {}, "httpGet": { "port": 1 } } },
            { "preStop": { "sleep": { "seconds": -1 } } },
        ])
    };
    parts.extend(each("containers/0/lifecycle", hooks));
    parts
}

/// Returns valid parts of a pod.
#[allow(clippy::too_many_lines, reason = "a list of values")]
fn valid() -> Vec<Part> {
    let mut parts = vec![
        one("terminationGracePeriodSeconds", json!(0)),
        one("terminationGracePeriodSeconds", json!(60)),
        one("dnsPolicy", json!("Default")),
        one("schedulerName", json!("mine")),
        one("nodeSelector", json!({ "a": "b", "c": "" })),
        one("nodeSelector", json!({ "beta.kubernetes.io/os": "linux" })),
        one("serviceAccountName", json!("sa")),
        one("serviceAccount", json!("old")),
        one("automountServiceAccountToken", json!(false)),
        one("nodeName", json!("n1")),
        one("hostNetwork", json!(true)),
        one("hostNetwork", json!(false)),
        one("hostPID", json!(true)),
        one("hostIPC", json!(true)),
        one("shareProcessNamespace", json!(false)),
        one("hostUsers", json!(true)),
        one("hostname", json!("h")),
        one("subdomain", json!("s")),
        one("setHostnameAsFQDN", json!(true)),
        one("hostnameOverride", json!("h.example.com")),
        one("priorityClassName", json!("high")),
        one("priority", json!(5)),
        one("preemptionPolicy", json!("Never")),
        one("runtimeClassName", json!("rc")),
        one("enableServiceLinks", json!(false)),
        one("overhead", json!({ "cpu": "0.1", "memory": "1024Ki" })),
        one("os", json!({ "name": "linux" })),
        one(
            "readinessGates",
            json!([{ "conditionType": "example.com/ready" }]),
        ),
        one("schedulingGates/+", json!({ "name": "example.com/gate" })),
        one("imagePullSecrets/+", json!({ "name": "pull" })),
        one("imagePullSecrets/+", json!({ "name": "pull2" })),
        one("imagePullSecrets/+", json!({})),
        one(
            "hostAliases/+",
            json!({ "ip": "10.0.0.1", "hostnames": ["a.b", "c"] }),
        ),
        one("hostAliases/+", json!({ "ip": "10.0.0.2" })),
        one(
            "dnsConfig",
            json!({ "nameservers": ["10.0.0.10"], "searches": ["a.b."], "options": [{ "name": "ndots", "value": "2" }, { "name": "x" }] }),
        ),
        one("restartPolicy", json!("")),
        one(
            "resources",
            json!({ "limits": { "cpu": "2" }, "requests": { "memory": "1000Mi" } }),
        ),
        one(
            "resourceClaims/+",
            json!({ "name": "gpu", "resourceClaimTemplateName": "gpus" }),
        ),
        vec![
            ("dnsPolicy", json!("None")),
            ("dnsConfig", json!({ "nameservers": ["10.0.0.10"] })),
        ],
        one("unknown", json!(1)),
        one("evictionResponders", json!([{ "name": "a.b/c" }])),
        one("workloadRef", json!({ "name": "w", "podGroup": "g" })),
        one("containers/0/unknown", json!({ "x": 1 })),
        one(
            "containers/0/livenessProbe",
            json!({ "httpGet": { "port": 80, "x": 1 } }),
        ),
        one("securityContext", json!({})),
        one("securityContext/runAsUser", json!(0)),
        one("securityContext/runAsNonRoot", json!(false)),
        one(
            "securityContext",
            json!({ "runAsUser": 1000, "runAsGroup": 0, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [0, 1] }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": { "type": "RuntimeDefault" }, "sysctls": [{ "name": "net.core.somaxconn", "value": "1" }], "seLinuxOptions": { "level": "l" } }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": "a/b.json" }, "supplementalGroupsPolicy": "Strict", "seLinuxChangePolicy": "Recursive" }),
        ),
        one(
            "securityContext/appArmorProfile",
            json!({ "type": "Localhost", "localhostProfile": "p" }),
        ),
        one(
            "affinity",
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }, { "key": "n", "operator": "Gt", "values": ["1"] }] },
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }, {},
        ] } } }),
        ),
        one(
            "affinity",
            json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "preference": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] } },
        ] } }),
        ),
        one(
            "affinity",
            json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "preference": { "matchExpressions": [{ "key": "a", "operator": "In", "values": ["-", "b"] }] } },
        ] } }),
        ),
        one(
            "affinity",
            json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "a": "" } }, "matchLabelKeys": ["x"], "mismatchLabelKeys": ["y"] },
        ] } }),
        ),
        one(
            "affinity",
            json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 100, "podAffinityTerm": { "topologyKey": "zone", "namespaces": ["a"], "namespaceSelector": {} } },
        ] } }),
        ),
        one("affinity", json!({})),
        one("affinity", json!({ "podAffinity": {} })),
        one(
            "tolerations/+",
            json!({ "key": "a", "operator": "Exists", "effect": "NoSchedule" }),
        ),
        one(
            "tolerations/+",
            json!({ "key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 0 }),
        ),
        one("tolerations/+", json!({ "operator": "Exists" })),
        one(
            "topologySpreadConstraints/+",
            json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "a" } }, "minDomains": 2 }),
        ),
        one(
            "topologySpreadConstraints/+",
            json!({ "maxSkew": 2, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["x"], "labelSelector": {} }),
        ),
        one(
            "topologySpreadConstraints/+",
            json!({ "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway" }),
        ),
        one("initContainers/+", json!({ "name": "i", "image": "init" })),
        one(
            "initContainers/+",
            json!({ "name": "side", "image": "s@sha256:0", "restartPolicy": "Always", "startupProbe": { "exec": { "command": ["a"] } }, "ports": [{ "containerPort": 80 }] }),
        ),
        one(
            "initContainers/+",
            json!({ "name": "j", "image": "init:latest", "env": [{ "name": "A", "value": "" }], "restartPolicy": "OnFailure" }),
        ),
        one(
            "containers/+",
            json!({ "name": "b", "image": "y:2", "ports": [{ "containerPort": 80, "name": "b" }] }),
        ),
        one(
            "containers/+",
            json!({ "name": "c", "image": "localhost:5000/z" }),
        ),
        one("containers/0/command", json!(["a", ""])),
        one("containers/0/args", json!([])),
        one("containers/0/args", json!([null, "x"])),
        one("containers/0/workingDir", json!("/w")),
        one("containers/0/stdin", json!(true)),
        one("containers/0/tty", json!(false)),
        one("containers/0/imagePullPolicy", json!("Never")),
        one("containers/0/image", json!("x")),
        one("containers/0/image", json!("${IMG}")),
        one("containers/0/image", json!("Foo:latest")),
        one("containers/0/image", json!("Foo/bar")),
        one("containers/0/image", json!("x/")),
        one("containers/0/image", json!("http://root")),
        one("containers/0/image", json!("[::1]:5000/x")),
        one("containers/0/image", json!(DIGEST)),
        one("containers/0/image", json!(format!("x@sha256:{DIGEST}"))),
        one(
            "containers/0/image",
            json!(format!("r:5000/x:latest@sha256:{DIGEST}")),
        ),
        one("containers/0/terminationMessagePath", json!("/x")),
        one(
            "containers/0/terminationMessagePolicy",
            json!("FallbackToLogsOnError"),
        ),
        one(
            "containers/0/resizePolicy",
            json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }]),
        ),
        one("containers/0/restartPolicy", json!("OnFailure")),
        vec![
            ("containers/0/restartPolicy", json!("Never")),
            (
                "containers/0/restartPolicyRules",
                json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [1, 0] } }]),
            ),
        ],
        one(
            "containers/0/resources",
            json!({ "limits": { "cpu": "1", "memory": "1Gi", "example.com/gpu": 1 }, "requests": { "cpu": "0.5" } }),
        ),
        one(
            "containers/0/resources",
            json!({ "requests": { "ephemeral-storage": "1.5Gi", "memory": "100m" } }),
        ),
        vec![
            (
                "resourceClaims/+",
                json!({ "name": "dev", "resourceClaimName": "d" }),
            ),
            ("containers/0/resources/claims", json!([{ "name": "dev" }])),
        ],
        one("containers/0/env/+", json!({ "name": "A", "value": "" })),
        one(
            "containers/0/env/+",
            json!({ "name": "A", "value": "$(A) b" }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['a/b']" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "D", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "E", "valueFrom": { "resourceFieldRef": { "resource": "requests.memory", "divisor": "1024Ki", "containerName": "a" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "F", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k", "optional": false } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "G", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }),
        ),
        vec![
            ("volumes/+", json!({ "name": "files", "emptyDir": {} })),
            (
                "containers/0/env/+",
                json!({ "name": "H", "valueFrom": { "fileKeyRef": { "volumeName": "files", "path": "a", "key": "K" } } }),
            ),
        ],
        one(
            "containers/0/envFrom/+",
            json!({ "configMapRef": { "name": "c" } }),
        ),
        one(
            "containers/0/envFrom/+",
            json!({ "prefix": "P_", "secretRef": { "name": "s", "optional": true } }),
        ),
        one("containers/0/ports/+", json!({ "containerPort": 80 })),
        one(
            "containers/0/ports/+",
            json!({ "containerPort": 80, "protocol": "UDP", "name": "dns" }),
        ),
        one(
            "containers/0/ports/+",
            json!({ "containerPort": 443, "hostPort": 443, "name": "https" }),
        ),
        one(
            "containers/0/ports/+",
            json!({ "containerPort": 444, "hostIP": "10.0.0.1" }),
        ),
        one("containers/0/securityContext", json!({})),
        one(
            "containers/0/securityContext",
            json!({ "privileged": true, "readOnlyRootFilesystem": true, "runAsUser": 0, "procMount": "Default" }),
        ),
        one(
            "containers/0/securityContext",
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] }, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } }),
        ),
        vec![
            (
                "volumes/+",
                json!({ "name": "block", "persistentVolumeClaim": { "claimName": "p" } }),
            ),
            (
                "containers/0/volumeDevices/+",
                json!({ "name": "block", "devicePath": "/dev/x" }),
            ),
        ],
        vec![
            (
                "volumes/+",
                json!({ "name": "m", "hostPath": { "path": "/x" } }),
            ),
            (
                "containers/0/volumeMounts/+",
                json!({ "name": "m", "mountPath": "/m", "readOnly": true, "recursiveReadOnly": "IfPossible", "subPath": "a/b" }),
            ),
            (
                "containers/0/volumeMounts/+",
                json!({ "name": "m", "mountPath": "/n", "mountPropagation": "HostToContainer", "subPathExpr": "$(A)" }),
            ),
        ],
    ];
    parts.extend(actions(true));
    parts.extend(volumes(json!([
        {},
        { "emptyDir": {} },
        { "emptyDir": { "medium": "Memory", "sizeLimit": "1024Mi" } },
        { "hostPath": { "path": "/x" } },
        { "hostPath": { "path": "/x", "type": "Directory" } },
        { "secret": { "secretName": "s" } },
        { "secret": { "secretName": "s", "defaultMode": 0, "optional": true, "items": [{ "key": "a", "path": "b", "mode": 0 }] } },
        { "configMap": { "name": "c", "items": [{ "key": "a", "path": "p" }, { "key": "b", "path": "p/q" }] } },
        { "configMap": { "name": "c", "defaultMode": 256 } },
        { "persistentVolumeClaim": { "claimName": "p", "readOnly": true } },
        { "downwardAPI": { "items": [{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }, { "path": "cpu", "resourceFieldRef": { "containerName": "a", "resource": "limits.cpu", "divisor": "1m" } }] } },
        { "projected": { "sources": [{ "secret": { "name": "s" } }, { "configMap": { "name": "c", "items": [{ "key": "k", "path": "x" }] } }, { "serviceAccountToken": { "path": "token" } }, { "downwardAPI": { "items": [{ "path": "x/y", "fieldRef": { "fieldPath": "metadata.name", "apiVersion": "v1" } }] } }] } },
        { "projected": { "sources": [{ "serviceAccountToken": { "path": "t", "audience": "a", "expirationSeconds": 600 } }, {}] } },
        { "ephemeral": { "volumeClaimTemplate": { "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1024Mi" } } } } } },
        { "ephemeral": { "volumeClaimTemplate": { "metadata": { "labels": { "a": "b" } }, "spec": { "accessModes": ["ReadWriteOncePod"], "storageClassName": "", "resources": { "requests": { "storage": "1500m" } } } } } },
        { "csi": { "driver": "d.example.com", "readOnly": false, "volumeAttributes": { "a": "" } } },
        { "image": { "reference": "x", "pullPolicy": "Never" } },
        { "image": {} },
        { "nfs": { "server": "s", "path": "/p" } },
        { "iscsi": { "targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:storage", "lun": 0 } },
        { "rbd": { "monitors": ["m"], "image": "i" } },
        { "cephfs": { "monitors": ["m"] } },
        { "azureDisk": { "diskName": "d", "diskURI": "https://x" } },
        { "azureFile": { "secretName": "s", "shareName": "f" } },
        { "scaleIO": { "gateway": "g", "system": "s", "secretRef": { "name": "x" }, "volumeName": "v" } },
        { "gcePersistentDisk": { "pdName": "p" } },
        { "awsElasticBlockStore": { "volumeID": "v", "partition": 1 } },
        { "gitRepo": { "repository": "r" } },
        { "glusterfs": { "endpoints": "e", "path": "p" } },
        { "flexVolume": { "driver": "a/b", "options": { "k8s.io.x/y": "z" } } },
        { "fc": { "targetWWNs": ["a"], "lun": 0 } },
        { "cinder": { "volumeID": "v" } },
        { "storageos": { "volumeName": "v" } },
        { "portworxVolume": { "volumeID": "v" } },
        { "vsphereVolume": { "volumePath": "v" } },
        { "quobyte": { "registry": "h:1", "volume": "v" } },
        { "flocker": { "datasetUUID": "A_b" } },
        { "photonPersistentDisk": { "pdID": "p" } },
    ])));
    parts
}

/// Returns parts that the API server rejects.
#[allow(clippy::too_many_lines, reason = "a list of values")]
fn invalid() -> Vec<Part> {
    let mut parts = vec![
        one("restartPolicy", json!("Sometimes")),
        one("restartPolicy", json!("Never")),
        one("dnsPolicy", json!("X")),
        one("dnsPolicy", json!("None")),
        one("terminationGracePeriodSeconds", json!(-1)),
        one("nodeSelector", json!({ "a b": "c", "d": "-" })),
        one("nodeSelector", json!({ "a": 1 })),
        one("serviceAccountName", json!("A_b")),
        one("nodeName", json!("N")),
        one("hostname", json!("a.b")),
        one("subdomain", json!("_")),
        one("hostnameOverride", json!("H")),
        one("priorityClassName", json!("P!")),
        one("priority", json!("high")),
        one("preemptionPolicy", json!("X")),
        one("runtimeClassName", json!("")),
        one("activeDeadlineSeconds", json!(0)),
        one("activeDeadlineSeconds", json!(5)),
        one("overhead", json!({ "cpu": "-1" })),
        one("os", json!({ "name": "plan9" })),
        one("os", json!({})),
        one("readinessGates", json!([{ "conditionType": "a b" }])),
        one("schedulingGates", json!([{ "name": "g" }, { "name": "g" }])),
        one("hostAliases/+", json!({ "ip": "x", "hostnames": ["A"] })),
        one("hostAliases/+", json!({ "hostnames": ["a"] })),
        one(
            "dnsConfig",
            json!({ "nameservers": ["x"], "options": [{}] }),
        ),
        one(
            "dnsConfig",
            json!({ "nameservers": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] }),
        ),
        one(
            "resources",
            json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "2" } }),
        ),
        one(
            "resourceClaims",
            json!([{ "name": "x", "resourceClaimName": "a" }, { "name": "x", "resourceClaimName": "A" }]),
        ),
        vec![
            ("hostPID", json!(true)),
            ("shareProcessNamespace", json!(true)),
        ],
        vec![
            ("hostUsers", json!(false)),
            (
                "volumes/+",
                json!({ "name": "disk", "persistentVolumeClaim": { "claimName": "p" } }),
            ),
            (
                "containers/0/volumeDevices/+",
                json!({ "name": "disk", "devicePath": "/dev/y" }),
            ),
        ],
        vec![
            ("hostUsers", json!(false)),
            ("hostNetwork", json!(true)),
            ("hostIPC", json!(true)),
        ],
        vec![
            ("hostNetwork", json!(true)),
            (
                "containers/0/ports/+",
                json!({ "containerPort": 80, "hostPort": 81 }),
            ),
        ],
        one(
            "securityContext",
            json!({ "runAsUser": -1, "fsGroup": 3_000_000_000_i64, "supplementalGroups": [-5] }),
        ),
        one(
            "securityContext",
            json!({ "fsGroupChangePolicy": "X", "supplementalGroupsPolicy": "Y", "seLinuxChangePolicy": "MountOption" }),
        ),
        one(
            "securityContext",
            json!({ "sysctls": [{ "name": "A", "value": "1" }, { "value": "" }, { "name": "a.b", "value": "" }, { "name": "a.b", "value": "" }] }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": { "type": "X" } }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": {}, "appArmorProfile": {} }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": { "type": "Localhost" }, "appArmorProfile": { "type": "Localhost" } }),
        ),
        one(
            "securityContext",
            json!({ "appArmorProfile": { "type": "Unconfined", "localhostProfile": "x" } }),
        ),
        one(
            "securityContext",
            json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": "/a/../b" } }),
        ),
        one("securityContext", json!(5)),
        one(
            "affinity",
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [] } } }),
        ),
        one(
            "affinity",
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "a", "operator": "In" }, { "key": "", "operator": "Exists", "values": ["x"] }, { "key": "b", "operator": "X" }, { "key": "c", "operator": "Lt", "values": ["1", "2"] }] },
            { "matchFields": [{ "key": "metadata.uid", "operator": "Exists" }] },
        ] } } }),
        ),
        one(
            "affinity",
            json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 0, "preference": {} }] } }),
        ),
        one(
            "affinity",
            json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "labelSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }, { "key": "a", "operator": "Gt", "values": ["1"] }] } }] } }),
        ),
        one(
            "affinity",
            json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 101, "podAffinityTerm": { "topologyKey": "a b", "matchLabelKeys": ["x"], "namespaces": ["A"] } }] } }),
        ),
        one(
            "affinity",
            json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "a", "labelSelector": { "matchLabels": { "a": "-" } }, "matchLabelKeys": ["x"], "mismatchLabelKeys": ["x", "y z"] }] } }),
        ),
        one("tolerations/+", json!({ "key": "a", "operator": "X" })),
        one("tolerations/+", json!({ "value": "b" })),
        one(
            "tolerations/+",
            json!({ "key": "a b", "operator": "Exists", "value": "c", "effect": "X", "tolerationSeconds": 5 }),
        ),
        one("tolerations/+", json!({ "key": "a", "value": "-" })),
        one(
            "topologySpreadConstraints",
            json!([{ "maxSkew": 0, "whenUnsatisfiable": "X", "minDomains": 0, "nodeAffinityPolicy": "Y" }]),
        ),
        one(
            "topologySpreadConstraints",
            json!([{ "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule" }, { "maxSkew": -2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"] }]),
        ),
        one("containers/+", json!({ "name": "a", "image": "x" })),
        one("containers/+", json!({ "name": "A", "image": "" })),
        one("containers/+", json!({})),
        one("containers/+", json!(null)),
        one("containers", json!([])),
        one("containers", json!({})),
        one("initContainers/+", json!({ "name": "a", "image": "x" })),
        one(
            "initContainers/+",
            json!({ "name": "i", "image": "x", "restartPolicy": "X" }),
        ),
        one(
            "initContainers/+",
            json!({ "name": "i", "image": "x", "livenessProbe": { "exec": { "command": ["a"] } }, "lifecycle": {} }),
        ),
        one(
            "initContainers/+",
            json!({ "name": "r", "image": "x", "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }] }),
        ),
        one("containers/0/name", json!(5)),
        one("containers/0/imagePullPolicy", json!("Sometimes")),
        one("containers/0/terminationMessagePolicy", json!("X")),
        one("containers/0/command", json!("x")),
        one(
            "containers/0/resizePolicy",
            json!([{ "resourceName": "disk", "restartPolicy": "X" }, { "resourceName": "disk" }]),
        ),
        one("containers/0/restartPolicy", json!("X")),
        one(
            "containers/0/restartPolicyRules",
            json!([{ "action": "X" }, { "action": "Restart", "exitCodes": { "operator": "Y" } }]),
        ),
        one(
            "containers/0/resources",
            json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "2", "memory": "-1" } }),
        ),
        one(
            "containers/0/resources",
            json!({ "limits": { "example.com/gpu": "1.5" }, "requests": { "example.com/gpu": 1, "example.com/tpu": 1 } }),
        ),
        one(
            "containers/0/resources",
            json!({ "limits": { "cpu": "x" } }),
        ),
        one(
            "containers/0/resources/claims",
            json!([{ "name": "nope" }, { "name": "nope" }, {}]),
        ),
        one("containers/0/env/+", json!({ "value": "x" })),
        one("containers/0/env/+", json!({ "name": "a=b" })),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "value": "x", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": {} }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "spec.x" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "status.phase" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "spec['a']", "apiVersion": "v1" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name", "apiVersion": "v2" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fieldRef": {}, "secretKeyRef": { "name": "A", "key": "a b" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "configMapKeyRef": { "key": ".." } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.x" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "2" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "resourceFieldRef": { "divisor": "1Zi" } } }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": { "fileKeyRef": { "volumeName": "V", "path": "../a" } } }),
        ),
        one("containers/0/envFrom/+", json!({})),
        one(
            "containers/0/envFrom/+",
            json!({ "prefix": "=", "secretRef": { "name": "S" }, "configMapRef": {} }),
        ),
        one("containers/0/ports/+", json!({ "containerPort": 0 })),
        one(
            "containers/0/ports/+",
            json!({ "containerPort": 70000, "hostPort": -1, "protocol": "X", "name": "A--b" }),
        ),
        one(
            "containers/0/ports",
            json!([{ "containerPort": 1, "name": "x" }, { "containerPort": 2, "name": "x" }]),
        ),
        one(
            "containers/0/ports",
            json!([{ "containerPort": 1, "hostPort": 5 }, { "containerPort": 2, "hostPort": 5 }]),
        ),
        one(
            "containers/0/ports",
            json!([{ "containerPort": 1 }, { "containerPort": 1 }]),
        ),
        one(
            "containers/0/securityContext",
            json!({ "runAsUser": -1, "procMount": "X", "seccompProfile": { "type": "Localhost" } }),
        ),
        one(
            "containers/0/securityContext",
            json!({ "procMount": "Unmasked" }),
        ),
        one(
            "containers/0/volumeMounts/+",
            json!({ "name": "nope", "mountPath": "/x" }),
        ),
        one("containers/0/volumeMounts/+", json!({})),
        vec![
            ("volumes/+", json!({ "name": "d", "emptyDir": {} })),
            ("volumes/+", json!({ "name": "d", "emptyDir": {} })),
        ],
        vec![
            ("volumes/+", json!({ "name": "d", "emptyDir": {} })),
            (
                "containers/0/volumeMounts/+",
                json!({ "name": "d", "mountPath": "/d", "subPath": "/abs", "subPathExpr": "../x" }),
            ),
            (
                "containers/0/volumeMounts/+",
                json!({ "name": "d", "mountPath": "/d", "mountPropagation": "Bidirectional", "recursiveReadOnly": "Enabled" }),
            ),
            (
                "containers/0/volumeDevices/+",
                json!({ "name": "d", "devicePath": "/d" }),
            ),
            (
                "containers/0/volumeDevices/+",
                json!({ "name": "d", "devicePath": "../d" }),
            ),
        ],
        one("volumes/+", json!({ "name": "D", "emptyDir": {} })),
        one("volumes/+", json!({ "emptyDir": {} })),
    ];
    parts.extend(actions(false));
    parts.extend(volumes(json!([
        { "emptyDir": {}, "secret": { "secretName": "s" } },
        { "emptyDir": { "sizeLimit": "-1" } },
        { "emptyDir": { "sizeLimit": "x" } },
        { "hostPath": { "path": "/a/../b", "type": "X" } },
        { "hostPath": {} },
        { "secret": {} },
        { "secret": { "secretName": "s", "defaultMode": 1000, "items": [{ "key": "", "path": "/a" }, { "path": "..b", "key": "k", "mode": -1 }] } },
        { "configMap": {} },
        { "persistentVolumeClaim": {} },
        { "downwardAPI": { "items": [{ "path": "a" }, { "fieldRef": { "fieldPath": "spec.nodeName" }, "path": "../x" }, { "path": "b", "resourceFieldRef": { "resource": "limits.cpu" } }] } },
        { "projected": { "sources": [{ "secret": {}, "configMap": { "name": "c" } }, { "serviceAccountToken": { "expirationSeconds": 5 } }] } },
        { "projected": { "sources": [{ "secret": { "name": "s", "items": [{ "key": "a", "path": "p" }, { "key": "b", "path": "p" }] } }, { "serviceAccountToken": { "path": "/x" } }] } },
        { "ephemeral": {} },
        { "ephemeral": { "volumeClaimTemplate": { "spec": { "accessModes": ["X", "ReadWriteOncePod", "ReadOnlyMany"], "volumeMode": "Y" } } } },
        { "ephemeral": { "volumeClaimTemplate": { "spec": { "storageClassName": "A", "resources": { "requests": { "storage": "0" } } } } } },
        { "csi": {} },
        { "csi": { "driver": "d", "nodePublishSecretRef": {} } },
        { "image": { "pullPolicy": "X" } },
        { "nfs": {} },
        { "iscsi": {} },
        { "quobyte": {} },
        { "iscsi": { "targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example", "lun": 0 } },
        { "flocker": { "datasetName": "d", "datasetUUID": "A_b" } },
        { "flexVolume": { "driver": "a/b", "options": { "kubernetes.io": "y" } } },
        { "rbd": {} },
        { "cephfs": {} , "emptyDir": {} },
        { "azureDisk": { "cachingMode": "X", "kind": "Managed" } },
        { "azureFile": {} },
        { "scaleIO": {} },
        { "gcePersistentDisk": { "partition": 300 } },
        { "gitRepo": { "directory": "/x" } },
        { "glusterfs": {} },
        { "cinder": { "secretRef": {} } },
        { "storageos": { "volumeNamespace": "A" } },
        { "downwardAPI": {}, "emptyDir": {} },
        { "emptyDir": "x" },
    ])));
    parts
}

/// Nulls and directives, which each style of patch has in its way.
fn odd() -> Vec<Part> {
    vec![
        one("volumes", json!(null)),
        one("affinity", json!(null)),
        one(
            "containers/0/env/+",
            json!({ "name": "A", "$patch": "delete" }),
        ),
        one(
            "containers/0/env/+",
            json!({ "name": "B", "valueFrom": null, "value": "b" }),
        ),
        one("containers/0/livenessProbe", json!(null)),
        one(
            "containers/0/livenessProbe",
            json!({ "exec": null, "httpGet": { "port": 80 } }),
        ),
        one(
            "volumes/+",
            json!({ "name": "v0", "emptyDir": null, "configMap": { "name": "c" } }),
        ),
        one(
            "volumes/+",
            json!({ "name": "v1", "$retainKeys": ["name", "configMap"], "configMap": { "name": "c" } }),
        ),
        one("volumes/+", json!({ "name": "v2", "$patch": "delete" })),
        one(
            "volumes/+",
            json!({ "name": "v3", "$patch": "replace", "emptyDir": {} }),
        ),
        one(
            "securityContext",
            json!({ "$patch": "replace", "runAsUser": 5 }),
        ),
        one(
            "securityContext",
            json!({ "runAsUser": null, "fsGroup": 5 }),
        ),
        one("tolerations", json!([])),
        one("nodeSelector", json!({ "a": null })),
        one(
            "$setElementOrder/containers",
            json!([{ "name": "a" }, { "name": "b" }]),
        ),
        one("hostUsers", json!(null)),
        one("serviceAccountName", json!(null)),
        one("serviceAccountName", json!("")),
    ]
}

/// Sets a value at a path.
fn set(target: &mut Value, path: &str, value: Value) {
    let (step, rest) = path.split_once('/').unwrap_or((path, ""));
    if path.starts_with('$') {
        target[path] = value;
        return;
    }
    if step == "+" {
        match target {
            Value::Array(all) => all.push(value),
            other => *other = json!([value]),
        }
        return;
    }
    let next = match step.parse::<usize>() {
        Ok(at) => match target.get_mut(at) {
            Some(next) => next,
            None => return,
        },
        Err(_) if target.is_object() || target.is_null() => &mut target[step],
        Err(_) => return,
    };
    if rest.is_empty() {
        *next = value;
    } else {
        set(next, rest, value);
    }
}

/// Returns random pods.
pub fn pods() -> impl Strategy<Value = Value> {
    let several =
        |parts: Vec<Part>, most| prop::collection::vec(prop::sample::select(parts), 0..=most);
    let wrong = prop_oneof![
        3 => Just(Vec::new()),
        1 => several(invalid(), 2),
        1 => several(odd(), 2),
    ];
    (several(valid(), 6), wrong).prop_map(|(parts, wrong)| {
        let mut pod = base();
        for (path, value) in parts.into_iter().chain(wrong).flatten() {
            set(&mut pod, path, value);
        }
        pod
    })
}
