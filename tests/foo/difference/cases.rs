//! Manifests with random fields.

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{Deployment, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::Job,
    core::v1::{ConfigMap, Service},
    networking::v1::{Ingress, NetworkPolicy},
    policy::v1::PodDisruptionBudget,
};
use operator_runtime::Kind;
use serde_json::{Value, json};

pub const CUSTOM: Kind = Kind::custom("difference.example.com", "v1", "Thing", "things");

/// A kind of object, and how it changes.
pub struct Subject {
    pub kind: Kind,
    pub manifest: fn(&mut Dice) -> Value,
    /// Fields that the API server does not change.
    pub immutable: &'static [&'static str],
    /// Strategic merge patches of other clients; merge patches for the custom resource.
    pub by_others: Vec<Value>,
    /// Paths of the modifier `exactly`.
    pub exactly: &'static [&'static str],
}

/// A source of random numbers (`SplitMix64`).
pub struct Dice(pub u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((value ^ (value >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }

    pub fn is_heads(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn is_six(&mut self) -> bool {
        self.below(6) == 0
    }

    /// Returns a random element of a list.
    fn one(&mut self, values: &Value) -> Value {
        let values = values.as_array().unwrap();
        values[self.below(values.len())].clone()
    }

    /// Returns some of the elements of a list, in their order.
    fn some(&mut self, values: &Value) -> Value {
        let values = values.as_array().unwrap().iter();
        values.filter(|_| self.is_heads()).cloned().collect()
    }

    /// Adds some of these fields to an object, each with a random value.
    fn fill(&mut self, mut object: Value, fields: &Value) -> Value {
        for (field, values) in fields.as_object().unwrap() {
            if self.is_heads() {
                object[field] = self.one(values);
            }
        }
        object
    }
}

fn metadata(dice: &mut Dice) -> Value {
    let maps = json!([{}, { "a": "1" }, { "a": "2", "example.com/b": "" }]);
    let mut fields = json!({ "labels": maps, "annotations": maps });
    fields["annotations"][0] = json!({ "a": null });
    dice.fill(json!({}), &fields)
}

fn container(dice: &mut Dice, name: &str) -> Value {
    let fields = json!({
        "image": ["web:2"],
        "imagePullPolicy": ["Always", "IfNotPresent"],
        "command": [[], ["run"], ["run", "fast"]],
        "args": [["-v"], ["-v", "-v"]],
        "ports": [
            [{ "containerPort": 80 }],
            [{ "containerPort": 53, "protocol": "UDP", "name": "dns" }],
            [{ "containerPort": 53, "protocol": "UDP", "name": "dns" }, { "containerPort": 53, "name": "dns-tcp" }],
            [{ "containerPort": 53 }, { "containerPort": 443, "name": "https" }],
        ],
        "resources": [
            {},
            { "limits": { "cpu": 1, "memory": "1024Mi" } },
            { "limits": { "cpu": "0.5", "memory": "1.5Gi" }, "requests": { "cpu": "0.1" } },
            { "limits": { "cpu": "500m", "memory": "1536Mi" }, "requests": { "cpu": "100m", "memory": "1e6" } },
        ],
        "readinessProbe": [
            { "httpGet": { "port": 80 } },
            { "httpGet": { "port": "http", "path": "/ready" }, "periodSeconds": 3, "successThreshold": 2 },
        ],
        "lifecycle": [{}, { "preStop": { "exec": { "command": ["sleep", "1"] } } }],
        "securityContext": [
            {},
            { "runAsNonRoot": true, "runAsUser": null },
            { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": [] } },
        ],
        "volumeMounts": [
            [{ "name": "data", "mountPath": "/data" }],
            [{ "name": "data", "mountPath": "/data", "readOnly": true }, { "name": "more", "mountPath": "/more" }],
        ],
        "terminationMessagePolicy": ["FallbackToLogsOnError"],
        "workingDir": ["", "/data"],
    });
    let mut container = dice.fill(json!({ "name": name, "image": "web:1" }), &fields);
    let env = json!([
        { "name": "A", "value": dice.one(&json!(["1", "2", ""])) },
        { "name": "B" },
        { "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1000m" } } },
        { "name": "Z", "value": "$(A)" },
    ]);
    container["env"] = dice.some(&env);
    container
}

fn volumes(dice: &mut Dice) -> Value {
    let sources = json!([
        { "emptyDir": {} },
        { "emptyDir": { "sizeLimit": "1024Mi" } },
        { "emptyDir": { "medium": "Memory", "sizeLimit": 1_000_000 } },
        { "configMap": { "name": "config" } },
        { "configMap": { "name": "config", "items": [{ "key": "a", "path": "b" }], "optional": true } },
        { "secret": { "secretName": "secret", "defaultMode": 256 } },
        { "downwardAPI": { "items": [{
            "path": "cpu",
            "resourceFieldRef": { "containerName": "web", "resource": "limits.cpu", "divisor": "1m" },
        }] } },
        { "projected": { "sources": [{ "configMap": { "name": "a" } }, { "serviceAccountToken": { "path": "t" } }] } },
    ]);
    let volume = |name| {
        let mut volume = dice.one(&sources);
        volume["name"] = json!(name);
        volume
    };
    ["data", "more"].map(volume).into_iter().collect()
}

fn template(dice: &mut Dice) -> Value {
    let term =
        json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } } });
    let fields = json!({
        "affinity": [
            {},
            { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } },
            { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 5, "podAffinityTerm": term }] } },
        ],
        "automountServiceAccountToken": [false],
        "hostAliases": [[{ "ip": "10.0.0.1", "hostnames": ["a"] }], [{ "ip": "10.0.0.1", "hostnames": ["a", "b"] }]],
        "imagePullSecrets": [[{ "name": "pull" }], [{ "name": "pull" }, { "name": "other" }]],
        "nodeSelector": [{}, { "disk": "fast" }, { "disk": "slow" }],
        "priorityClassName": ["", "high"],
        "securityContext": [{}, { "fsGroup": 0, "supplementalGroups": [1, 2] }],
        "serviceAccountName": ["web", "other"],
        "terminationGracePeriodSeconds": [0, 30, 60],
        "tolerations": [[], [{ "key": "a", "operator": "Exists" }], [{ "key": "a", "value": "b" }, { "key": "c", "operator": "Exists" }]],
        "topologySpreadConstraints": [
            [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "web" } } }],
            [
                { "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" },
                { "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway" },
            ],
        ],
    });
    let mut spec = dice.fill(json!({}), &fields);
    spec["volumes"] = volumes(dice);
    spec["containers"] = json!([container(dice, "web"), container(dice, "worker")]);
    let mut init = |name: &str| {
        let mut init = container(dice, name);
        let fields = init.as_object_mut().unwrap();
        fields.retain(|field, _| !matches!(&**field, "lifecycle" | "readinessProbe"));
        init
    };
    let init = ["init-a", "init-b", "init-c"].map(&mut init);
    spec["initContainers"] = dice.some(&init.into_iter().collect());
    let mut metadata = metadata(dice);
    metadata["labels"]["app"] = json!("web");
    json!({ "metadata": metadata, "spec": spec })
}

fn of(dice: &mut Dice, spec: &Value) -> Value {
    json!({ "metadata": metadata(dice), "spec": spec })
}

fn deployment(dice: &mut Dice) -> Value {
    let template = template(dice);
    let required = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template });
    let fields = json!({
        "minReadySeconds": [5, 10],
        "paused": [true],
        "progressDeadlineSeconds": [600, 700],
        "replicas": [0, 1, 3],
        "revisionHistoryLimit": [0, 3],
        "strategy": [
            {},
            { "type": "Recreate" },
            { "type": "RollingUpdate" },
            { "rollingUpdate": { "maxSurge": 2 } },
            { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "50%", "maxUnavailable": 0 } },
        ],
    });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

fn stateful_set(dice: &mut Dice) -> Value {
    let template = template(dice);
    let required = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template });
    let claim = |size: &str| {
        json!([{
            "metadata": { "name": "data", "labels": {} },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
        }])
    };
    let fields = json!({
        "minReadySeconds": [5, 10],
        "ordinals": [{ "start": 1 }, {}],
        "persistentVolumeClaimRetentionPolicy": [{}, { "whenDeleted": "Delete" }],
        "podManagementPolicy": ["Parallel"],
        "replicas": [0, 1, 3],
        "serviceName": ["", "web"],
        "updateStrategy": [{}, { "rollingUpdate": { "partition": 2 } }, { "type": "RollingUpdate" }],
        "volumeClaimTemplates": [claim("1024Mi"), claim("0.5Gi")],
    });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

fn job(dice: &mut Dice) -> Value {
    let mut template = template(dice);
    template["spec"]["restartPolicy"] = json!("Never");
    let fields = json!({
        "activeDeadlineSeconds": [100, 200],
        "backoffLimit": [0, 3],
        "completionMode": ["NonIndexed"],
        "parallelism": [0, 1, 2],
        "suspend": [true, false],
        "ttlSecondsAfterFinished": [0, 100],
    });
    let spec = dice.fill(json!({ "template": template }), &fields);
    of(dice, &spec)
}

fn service(dice: &mut Dice) -> Value {
    let ports = json!([
        [{ "name": "http", "port": 80 }],
        [{ "name": "http", "port": 80, "targetPort": "http", "appProtocol": "http" }],
        [{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53, "targetPort": 5353 }],
    ]);
    let fields = json!({
        "internalTrafficPolicy": ["Cluster", "Local"],
        "publishNotReadyAddresses": [true],
        "selector": [{}, { "app": "web" }, { "app": "web", "tier": "front" }],
        "sessionAffinity": ["None"],
        "type": ["ClusterIP", "NodePort"],
    });
    let required = json!({ "ports": dice.one(&ports) });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

fn config_map(dice: &mut Dice) -> Value {
    let fields = json!({
        "data": [{}, { "a": "1" }, { "a": "", "b": "2" }, { "a": null, "c": "3" }],
        "binaryData": [{}, { "x": "AAEC" }],
    });
    let metadata = metadata(dice);
    dice.fill(json!({ "metadata": metadata }), &fields)
}

fn budget(dice: &mut Dice) -> Value {
    let fields = json!({
        "minAvailable": [0, 1, "50%"],
        "selector": [
            { "matchLabels": { "app": "web" } },
            { "matchLabels": { "app": "web", "tier": "front" } },
            { "matchExpressions": [{ "key": "app", "operator": "Exists" }] },
            { "matchLabels": {}, "matchExpressions": [{ "key": "app", "operator": "In", "values": ["a", "b"] }] },
        ],
        "unhealthyPodEvictionPolicy": ["AlwaysAllow", "IfHealthyBudget"],
    });
    let spec = dice.fill(json!({}), &fields);
    of(dice, &spec)
}

fn autoscaler(dice: &mut Dice) -> Value {
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
    let value = |value: Value| json!({ "type": "AverageValue", "averageValue": value });
    let pods = |size: Value| json!({ "type": "Pods", "pods": { "metric": { "name": "load" }, "target": value(size) } });
    let cpu = json!({ "type": "Resource", "resource": {
        "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 70 },
    } });
    let fields = json!({
        "behavior": [
            {},
            { "scaleDown": { "stabilizationWindowSeconds": 0 } },
            { "scaleUp": { "policies": [{ "type": "Pods", "value": 4, "periodSeconds": 15 }] } },
        ],
        "metrics": [[cpu], [pods(json!("1000m")), cpu], [pods(json!(1))], [pods(json!("0.5k"))]],
        "minReplicas": [1, 2],
    });
    let required = json!({ "scaleTargetRef": target, "maxReplicas": dice.one(&json!([3, 5])) });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

fn ingress(dice: &mut Dice) -> Value {
    let backend = |port: Value| json!({ "service": { "name": "web", "port": port } });
    let path = |path: &str, port: Value| json!({ "path": path, "pathType": "Prefix", "backend": backend(port) });
    let rule = |paths: Value| json!({ "host": "a.example.com", "http": { "paths": paths } });
    let fields = json!({
        "ingressClassName": ["nginx", "other"],
        "rules": [
            [],
            [rule(json!([path("/", json!({ "number": 80 }))]))],
            [rule(json!([path("/", json!({ "name": "http" })), path("/b", json!({ "number": 81 }))])), { "host": "b.example.com" }],
        ],
        "tls": [[], [{ "hosts": ["a.example.com"], "secretName": "tls" }], [{}]],
    });
    let required = json!({ "defaultBackend": backend(dice.one(&json!([{ "number": 80 }, { "number": 81 }]))) });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

fn network_policy(dice: &mut Dice) -> Value {
    let everyone = json!({ "namespaceSelector": {} });
    let web = json!({ "podSelector": { "matchLabels": { "app": "web" } } });
    let fields = json!({
        "egress": [[], [{}], [{ "to": [web, { "ipBlock": { "cidr": "10.0.0.0/8" } }] }]],
        "ingress": [[], [{}], [{ "from": [everyone] }], [{ "from": [web], "ports": [{ "port": 80 }, { "port": "dns", "protocol": "UDP" }] }]],
        "policyTypes": [["Ingress"], ["Ingress", "Egress"]],
    });
    let selectors = json!([{}, { "matchLabels": {} }, { "matchLabels": { "app": "web" } }]);
    let required = json!({ "podSelector": dice.one(&selectors) });
    let spec = dice.fill(required, &fields);
    of(dice, &spec)
}

/// A cluster-scoped object. Its webhooks concern a resource that does not exist.
fn webhooks(dice: &mut Dice) -> Value {
    let rule = |operations: Value| json!([{ "apiGroups": ["nothing.example.com"], "apiVersions": ["*"], "resources": ["*"], "operations": operations }]);
    let fields = json!({
        "rules": [rule(json!(["CREATE"])), rule(json!(["*"]))],
        "namespaceSelector": [{}, { "matchLabels": { "a": "1" } }, { "matchExpressions": [{ "key": "a", "operator": "Exists" }] }],
        "failurePolicy": ["Ignore", "Fail"],
        "timeoutSeconds": [1, 30],
        "matchConditions": [[{ "name": "a", "expression": "true" }], [{ "name": "b", "expression": "false" }]],
    });
    let mut webhook = |name: &str| {
        let required = json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": "https://a.example.com/" },
        });
        dice.fill(required, &fields)
    };
    let (first, others) = (webhook("a.example.com"), json!([webhook("b.example.com")]));
    let mut all = dice.some(&others);
    all.as_array_mut().unwrap().push(first);
    json!({ "metadata": metadata(dice), "webhooks": all })
}

fn custom(dice: &mut Dice) -> Value {
    let fields = json!({
        "empty": [{}, [], ""],
        "list": [[], [1.0, 2], [{ "name": "a" }], [{ "name": "a", "x": null }, { "name": "b" }]],
        "number": [0, 1.0, 1.5, 3],
        "other": [null, false, true],
        "cpu": ["1", "1000m"],
        "object": [{}, { "a": {} }, { "a": { "b": [] }, "c": null }],
    });
    let spec = dice.fill(json!({}), &fields);
    let mut object = of(dice, &spec);
    let finalizers = json!(["example.com/a", "example.com/b"]);
    object["metadata"]["finalizers"] = dice.some(&finalizers);
    object
}

fn subject(kind: Kind, manifest: fn(&mut Dice) -> Value, by_others: &Value) -> Subject {
    let label = json!({ "labels": { "others": "1" }, "annotations": { "others": "1" } });
    let mut changes = vec![json!({ "metadata": label })];
    let specs = by_others.as_array().unwrap().iter();
    changes.extend(specs.map(|spec| json!({ "spec": spec })));
    Subject {
        kind,
        manifest,
        immutable: &[],
        by_others: changes,
        exactly: &[],
    }
}

/// Returns the kinds of objects with Pods.
fn workloads() -> [Subject; 3] {
    let port = |port: u16, name: &str| json!([{ "containerPort": port, "name": name }]);
    let sidecar = json!({ "name": "injected", "image": "proxy:1", "ports": port(53, "proxy") });
    let env = json!([{ "name": "INJECTED", "value": "1" }]);
    let web = json!({ "name": "web", "env": env, "ports": port(9090, "metrics"), "stdin": true });
    let pod = json!({
        "containers": [sidecar, web],
        "initContainers": [{ "name": "injected-init", "image": "proxy:1" }],
        "volumes": [{ "name": "injected", "emptyDir": {} }],
        "tolerations": [{ "key": "theirs", "operator": "Exists" }],
        "nodeSelector": { "theirs": "1" },
    });
    let template = json!({ "metadata": { "labels": { "others": "1" } }, "spec": pod });
    let other = json!({ "spec": { "containers": [{ "name": "web", "image": "web:3" }] } });
    let by_others = json!([{ "template": template }, { "replicas": 7 }, { "template": other }]);
    [
        Subject {
            exactly: &[
                "spec.template.spec.containers",
                "spec.template.spec.containers.env",
                "metadata.labels",
            ],
            ..subject(Kind::of::<Deployment>(), deployment, &by_others)
        },
        Subject {
            immutable: &[
                "/spec/ordinals",
                "/spec/podManagementPolicy",
                "/spec/serviceName",
                "/spec/volumeClaimTemplates",
            ],
            exactly: &[
                "spec.template.spec.initContainers",
                "spec.template.spec.volumes",
            ],
            ..subject(Kind::of::<StatefulSet>(), stateful_set, &by_others)
        },
        Subject {
            immutable: &["/spec/template", "/spec/completionMode"],
            ..subject(Kind::of::<Job>(), job, &json!([{ "parallelism": 5 }]))
        },
    ]
}

/// Returns all kinds of objects.
pub fn subjects() -> Vec<Subject> {
    let port = json!({ "name": "theirs", "port": 8080 });
    let address = json!({ "selector": { "theirs": "1" }, "externalIPs": ["192.0.2.1"] });
    let service = Subject {
        exactly: &["spec.ports", "spec.selector"],
        ..subject(
            Kind::of::<Service>(),
            service,
            &json!([{ "ports": [port] }, address]),
        )
    };
    let mut config_map = Subject {
        exactly: &["data", "metadata.annotations"],
        ..subject(Kind::of::<ConfigMap>(), config_map, &json!([]))
    };
    config_map
        .by_others
        .push(json!({ "data": { "theirs": "1" } }));
    let theirs = json!([{ "selector": { "matchLabels": { "theirs": "1" } } }]);
    let budget = subject(Kind::of::<PodDisruptionBudget>(), budget, &theirs);
    let kind = Kind::of::<HorizontalPodAutoscaler>();
    let autoscaler = subject(kind, autoscaler, &json!([{ "maxReplicas": 9 }]));
    let theirs = json!([{ "rules": [{ "host": "theirs.example.com" }] }]);
    let ingress = subject(Kind::of::<Ingress>(), ingress, &theirs);
    let theirs = json!([{ "policyTypes": ["Egress"] }]);
    let policy = subject(Kind::of::<NetworkPolicy>(), network_policy, &theirs);
    let theirs = json!([{ "theirs": [{}], "object": { "theirs": {} } }]);
    let custom = Subject {
        exactly: &["spec", "metadata.finalizers"],
        ..subject(CUSTOM, custom, &theirs)
    };
    let kind = Kind::of::<MutatingWebhookConfiguration>();
    let mut webhooks = Subject {
        exactly: &["webhooks"],
        ..subject(kind, webhooks, &json!([]))
    };
    // As cert-manager's CA injector does.
    let bundle = json!({ "name": "a.example.com", "matchPolicy": "Exact" });
    webhooks.by_others.push(json!({ "webhooks": [bundle] }));
    let others = [
        service, config_map, budget, autoscaler, ingress, policy, custom, webhooks,
    ];
    workloads().into_iter().chain(others).collect()
}
