//! The table of the chart's values: `values.yaml`, `values.schema.json` and the README.

use std::fmt::Write as _;

use foo_controller::APP;
use serde_json::{Map, Value as Json, json};

use super::{
    super::settings,
    text::{Text, indented},
};

/// A value of the chart.
struct ChartValue {
    /// Path with dots.
    name: &'static str,
    default: DefaultValue,
    schema: Schema,
    help: &'static str,
}

/// A default: of the chart, or read from `deploy`.
#[derive(Clone, Copy)]
enum DefaultValue {
    Yaml(&'static str),
    Replicas,
    Repository,
    GracePeriod,
    Resources,
    Endpoint,
    CollectorNamespace,
    CollectorPort,
}

#[derive(Clone, Copy)]
enum Schema {
    Text,
    /// A string with this pattern, of at most so many characters.
    Pattern(&'static str, u32),
    /// One of these strings.
    Word(&'static [&'static str]),
    /// An integer in this range.
    Integer(u32, u32),
    Boolean,
    /// A map of strings without these keys, which the chart sets.
    StringMap(&'static [&'static str]),
    /// An object of Kubernetes, which the API server validates.
    Object,
    /// Requests and limits.
    Resources,
    /// A list of such objects.
    Objects,
    /// A list of variables of a container.
    Variables,
    /// A list of objects with a name only.
    Names,
    /// A list of different strings with this pattern.
    List(&'static str),
}

const DIGEST: &str = "^(sha256:[0-9a-f]{64})?$";
/// No tag and no digest: those have values of their own.
const REPOSITORY: &str = "^([^\\s@/]+/)*[^\\s@/:]+$";
const TAG: &str = "^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$";
const NAME: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$";
/// Of a Service, which begins with a letter.
const SERVICE: &str = "^([a-z]([-a-z0-9]*[a-z0-9])?)?$";
const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const SUBDOMAIN: &str = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$";
const CIDR: &str = "^[0-9a-fA-F.:]+/[0-9]{1,3}$";
/// The program's limit is a duration of at most an hour.
const HOUR: u32 = 3600;
const LABELS: &[&str] = &["app.kubernetes.io/name", "app.kubernetes.io/instance"];
const COMMON: &[&str] = &[
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
const ANNOTATIONS: &[&str] = &["checksum/config", "samplecontroller.k8s.io/fencing-record"];
/// Values that `null` removes. Each other value is required.
const REMOVABLE: [&str; 2] = ["affinity", "topologySpreadConstraints"];

const VALUES: &[ChartValue] = &[
    ChartValue {
        name: "replicaCount",
        default: DefaultValue::Replicas,
        schema: Schema::Integer(0, 100),
        help: "Number of replicas. A single replica leads, the others stand by. A PodDisruptionBudget limits a drain to one pod at a time",
    },
    ChartValue {
        name: "image.repository",
        default: DefaultValue::Repository,
        schema: Schema::Pattern(REPOSITORY, 255),
        help: "Name of the image, with its registry",
    },
    ChartValue {
        name: "image.tag",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(TAG, 128),
        help: "Tag of the image; if empty, the version of the program in this chart. \
               A released chart has a digest: set `image.digest` to an empty string to use a tag",
    },
    ChartValue {
        name: "image.digest",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(DIGEST, 71),
        help: "Digest of the image (`sha256:…`), used instead of the tag",
    },
    ChartValue {
        name: "image.pullPolicy",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern("^(Always|IfNotPresent|Never)?$", 12),
        help: "`Always`, `IfNotPresent` or `Never`; if empty, the default of Kubernetes",
    },
    ChartValue {
        name: "imagePullSecrets",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Names,
        help: "Secrets for the registry, such as `[{name: registry}]`",
    },
    ChartValue {
        name: "fullnameOverride",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(SERVICE, 48),
        help: "Prefix of all names. If empty: the name of the release, followed by -foo-controller unless it contains foo-controller",
    },
    ChartValue {
        name: "commonLabels",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::StringMap(COMMON),
        help: "Labels of all objects except pods. The Prometheus of kube-prometheus-stack selects by `release`",
    },
    ChartValue {
        name: "crds.enabled",
        default: DefaultValue::Yaml("true"),
        schema: Schema::Boolean,
        help: "Installs the CRD. Only one release in a cluster may contain it. `helm uninstall` keeps it",
    },
    ChartValue {
        name: "configuration",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Text,
        help: "Content of `foo-controller.toml`, with the changed keys only. A change rolls the pods. Set it with `--set-file`. \
               The chart rejects settings that its other objects depend on, such as another Lease",
    },
    ChartValue {
        name: "namespaces",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::List(NAMESPACE),
        help: "Existing namespaces whose Foos are served. The controller has permissions only there. \
               If empty: all namespaces of the cluster",
    },
    ChartValue {
        name: "installation",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(NAME, 63),
        help: "Name of this installation. It serves only Foos whose label `samplecontroller.k8s.io/installation` has this value. \
            Do not set it in `configuration`: the Role needs it for the name of the Lease",
    },
    ChartValue {
        name: "extraEnv",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Variables,
        help: "Further variables of the container, such as `[{name: FOO_CONTROLLER__WORKERS, value: \"5\"}]`. \
               They override `configuration`. Variables that the chart sets are rejected",
    },
    ChartValue {
        name: "serviceAccount.create",
        default: DefaultValue::Yaml("true"),
        schema: Schema::Boolean,
        help: "Creates the ServiceAccount",
    },
    ChartValue {
        name: "serviceAccount.name",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(SUBDOMAIN, 253),
        help: "Name of the ServiceAccount; if empty, the prefix of all names. Each installation needs its own. \
               Required without `serviceAccount.create`. With fencing, do not change it: \
               the old pods would lose their permissions before the new ones are Ready",
    },
    ChartValue {
        name: "serviceAccount.annotations",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::StringMap(&[]),
        help: "Annotations of the ServiceAccount",
    },
    ChartValue {
        name: "resources",
        default: DefaultValue::Resources,
        schema: Schema::Resources,
        help: "Requests and limits. The memory limit is enough for 100,000 Foos. \
               Set no CPU limit: a throttled leader may lose the Lease",
    },
    ChartValue {
        name: "terminationGracePeriodSeconds",
        default: DefaultValue::GracePeriod,
        schema: Schema::Integer(1, 2 * HOUR),
        help: "Grace period of the pods. Increase it together with `shutdown_timeout` and `renew_deadline` in `configuration`",
    },
    ChartValue {
        name: "podLabels",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::StringMap(LABELS),
        help: "Further labels of the pods",
    },
    ChartValue {
        name: "podAnnotations",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::StringMap(ANNOTATIONS),
        help: "Further annotations of the pods",
    },
    ChartValue {
        name: "nodeSelector",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::StringMap(&[]),
        help: "Labels of the nodes that may run the pods",
    },
    ChartValue {
        name: "tolerations",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Objects,
        help: "Taints that the pods tolerate",
    },
    ChartValue {
        name: "affinity",
        default: DefaultValue::Yaml("{}"),
        schema: Schema::Object,
        help: "Replaces the default affinity: nodes with Linux on amd64 or arm64, and replicas on different nodes if possible. \
               `null` removes it",
    },
    ChartValue {
        name: "topologySpreadConstraints",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Objects,
        help: "Replaces the default constraint, which spreads the replicas over zones. `null` removes it",
    },
    ChartValue {
        name: "priorityClassName",
        default: DefaultValue::Yaml("\"\""),
        schema: Schema::Pattern(SUBDOMAIN, 253),
        help: "PriorityClass of the pods",
    },
    ChartValue {
        name: "extraVolumes",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Objects,
        help: "Further volumes of the pods, such as the Secret of a certificate",
    },
    ChartValue {
        name: "extraVolumeMounts",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::Objects,
        help: "Mounts of these volumes in the container",
    },
    ChartValue {
        name: "fencing.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "Server-side fencing: the API server rejects writes of a replica that does not lead",
    },
    ChartValue {
        name: "fencing.fastFailover",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "A Lease of 3 s instead of 15 s. Needs `fencing.enabled`, and raises the default request of CPU to 100m: a renewal must \
               take less than 1 s. To leave it, first set it to false and wait for the rollout, then disable fencing",
    },
    ChartValue {
        name: "metricsAuth.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "Serves metrics over TLS, for authorized users only",
    },
    ChartValue {
        name: "prometheus.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "PodMonitor, alerts and a dashboard. Needs the CRDs of the Prometheus Operator",
    },
    ChartValue {
        name: "otlp.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "Exports traces, logs and metrics by OTLP",
    },
    ChartValue {
        name: "otlp.endpoint",
        default: DefaultValue::Endpoint,
        schema: Schema::Pattern("^https?://[^\\s/]", 2048),
        help: "URL of the collector. Its port must match the protocol: usually 4317 for `grpc`, 4318 for `http/protobuf`",
    },
    ChartValue {
        name: "otlp.protocol",
        default: DefaultValue::Yaml("grpc"),
        schema: Schema::Word(&["grpc", "http/protobuf"]),
        help: "Protocol of the export: `grpc` or `http/protobuf`",
    },
    ChartValue {
        name: "collector.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "An OpenTelemetry Collector in a namespace of its own, for trials",
    },
    ChartValue {
        name: "networkPolicy.enabled",
        default: DefaultValue::Yaml("false"),
        schema: Schema::Boolean,
        help: "Denies all traffic of the controller's pods, except metrics, probes, DNS, the API server and the collector. \
            Needs a network plugin that enforces NetworkPolicy",
    },
    ChartValue {
        name: "networkPolicy.apiServerCIDRs",
        default: DefaultValue::Yaml("[]"),
        schema: Schema::List(CIDR),
        help: "CIDRs of the API server: the ClusterIP of the Service `kubernetes`, and each of its endpoints. \
            If empty, the usual ports are allowed at any address",
    },
    ChartValue {
        name: "networkPolicy.collector.namespace",
        default: DefaultValue::CollectorNamespace,
        schema: Schema::Pattern(NAMESPACE, 63),
        help: "Namespace of the collector in `otlp.endpoint`",
    },
    ChartValue {
        name: "networkPolicy.collector.port",
        default: DefaultValue::CollectorPort,
        schema: Schema::Integer(1, 65535),
        help: "Port of the collector's pods",
    },
];

/// The defaults that `deploy` contains.
pub struct Defaults {
    deployment: Text,
    otlp: Text,
    network: Text,
}

impl Defaults {
    pub fn read(read: &dyn Fn(&str) -> Text) -> Self {
        Self {
            deployment: read("deploy/base/deployment.yaml"),
            otlp: read("deploy/components/otlp/kustomization.yaml"),
            network: read("deploy/components/networkpolicy/networkpolicy.yaml"),
        }
    }

    /// Returns a default in YAML.
    fn of(&self, default: DefaultValue) -> String {
        let deployment = |key| self.deployment.value(key).to_owned();
        let collector = |key| {
            let (_, rule) = self
                .network
                .as_str()
                .split_once("# The collector of")
                .unwrap();
            Text::new(rule).value(key).to_owned()
        };
        match default {
            DefaultValue::Yaml(yaml) => yaml.to_owned(),
            DefaultValue::Replicas => deployment("replicas: "),
            DefaultValue::Repository => {
                deployment("image: ").rsplit_once(':').unwrap().0.to_owned()
            }
            DefaultValue::GracePeriod => deployment("terminationGracePeriodSeconds: "),
            DefaultValue::Resources => {
                format!("\n{}", self.deployment.block("resources:").trim_end())
            }
            DefaultValue::Endpoint => self.otlp.value("value: ").to_owned(),
            DefaultValue::CollectorNamespace => collector("kubernetes.io/metadata.name: "),
            DefaultValue::CollectorPort => collector("port: "),
        }
    }
}

/// Returns `values.yaml`.
pub fn yaml(defaults: &Defaults) -> String {
    let mut yaml = "# Generated by `make generate`. \
        README.md has the same list. Other keys are rejected (values.schema.json).\n"
        .to_owned();
    let mut parents: Vec<&str> = Vec::new();
    for value in VALUES {
        let mut path: Vec<_> = value.name.split('.').collect();
        let key = path.pop().unwrap();
        let common = path
            .iter()
            .zip(&parents)
            .take_while(|(a, b)| a == b)
            .count();
        if path.is_empty() || common == 0 {
            yaml.push('\n');
        }
        for (depth, parent) in path.iter().enumerate().skip(common) {
            let _ = writeln!(yaml, "{:1$}{parent}:", "", 2 * depth);
        }
        let depth = 2 * path.len();
        let default = defaults.of(value.default);
        let default = match default.strip_prefix('\n') {
            Some(block) => format!("\n{}", indented(block, 2).trim_end()),
            None => format!(" {default}"),
        };
        let mut comment = String::new();
        settings::comment(&mut comment, value.help);
        yaml += &indented(&format!("{comment}{key}:{default}"), depth);
        parents = path;
    }
    yaml
}

/// Returns `values.schema.json`, which allows no other values, and requires each one: a value that `null` has removed would be
/// reported as a nil pointer in a template. A parent chart sets `global`, and `enabled` as the `condition` of the dependency.
pub fn schema() -> String {
    let mut root = object();
    root["properties"]["global"] = json!({"type": "object"});
    root["properties"]["enabled"] = json!({"type": "boolean"});
    for value in VALUES {
        let mut at = &mut root;
        let mut path: Vec<_> = value.name.split('.').collect();
        let key = path.pop().unwrap();
        for parent in path {
            require(at, parent);
            let properties = at["properties"].as_object_mut().unwrap();
            at = properties.entry(parent).or_insert_with(object);
        }
        if !REMOVABLE.contains(&value.name) {
            require(at, key);
        }
        at["properties"][key] = of_type(value.schema);
    }
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    serde_json::to_string_pretty(&root).unwrap() + "\n"
}

fn object() -> Json {
    json!({"type": "object", "additionalProperties": false, "properties": Map::new(), "required": []})
}

fn require(object: &mut Json, key: &str) {
    let required = object["required"].as_array_mut().unwrap();
    if !required.contains(&key.into()) {
        required.push(key.into());
    }
}

fn of_type(schema: Schema) -> Json {
    match schema {
        Schema::Text => json!({"type": "string"}),
        Schema::Pattern(pattern, length) => {
            json!({"type": "string", "pattern": pattern, "maxLength": length})
        }
        Schema::Word(words) => json!({"type": "string", "enum": words}),
        Schema::Integer(minimum, maximum) => {
            json!({"type": "integer", "minimum": minimum, "maximum": maximum})
        }
        Schema::Boolean => json!({"type": "boolean"}),
        Schema::StringMap(others) => {
            let mut texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
            if !others.is_empty() {
                let others = others.iter().map(|key| ((*key).to_owned(), false.into()));
                texts["properties"] = Json::Object(others.collect());
            }
            texts
        }
        Schema::Object => json!({"type": "object"}),
        Schema::Resources => {
            let amounts =
                json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
            let claims = of_type(Schema::Objects);
            json!({"type": "object", "additionalProperties": false,
                "properties": {"limits": amounts, "requests": amounts, "claims": claims}})
        }
        Schema::Objects => json!({"type": "array", "items": {"type": "object"}}),
        Schema::Variables => json!({"type": "array", "items": {
            "type": "object", "additionalProperties": false, "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "value": {"type": "string"},
                "valueFrom": {"type": "object"},
            },
        }}),
        Schema::Names => json!({"type": "array", "items": {
            "type": "object", "additionalProperties": false, "required": ["name"],
            "properties": {"name": {"type": "string", "pattern": SUBDOMAIN, "minLength": 1}},
        }}),
        Schema::List(pattern) => json!({
            "type": "array", "uniqueItems": true,
            "items": {"type": "string", "pattern": pattern, "maxLength": 63},
        }),
    }
}

/// Returns the README of the chart.
pub fn reference(defaults: &Defaults) -> String {
    let mut page = format!(
        "# {}\n\n{}.\n\n\
         Generated by `make generate` from the manifests for kustomize. docs/operations.md of the project, section \"Helm\",\n\
         has the commands to install, upgrade and uninstall the chart. docs/configuration.md has all settings for `configuration`.\n\n\
         | value | default | meaning |\n|---|---|---|\n",
        APP.name, APP.about
    );
    for value in VALUES {
        let default = match value.default {
            DefaultValue::Resources => "as in `values.yaml`".to_owned(),
            default => format!("`{}`", defaults.of(default)),
        };
        let _ = writeln!(page, "| `{}` | {default} | {} |", value.name, value.help);
    }
    page
}
