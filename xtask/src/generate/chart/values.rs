//! The table of the chart's values: `values.yaml`, `values.schema.json` and the README.

use std::fmt::Write as _;

use foo_controller::APP;
use serde_json::{Map, Value as Json, json};

use super::{
    super::settings,
    text::{Text, indented},
};

/// A value of the chart.
struct Value {
    /// Path with dots.
    name: &'static str,
    default: Default,
    schema: Schema,
    help: &'static str,
}

/// A default: of the chart, or read from `deploy`.
#[derive(Clone, Copy)]
enum Default {
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
    /// A string with this pattern.
    Pattern(&'static str),
    /// A whole number from this one.
    Whole(u32),
    Switch,
    /// A map of strings.
    Texts,
    /// An object of Kubernetes, which the API server validates.
    Object,
    /// A list of such objects.
    Objects,
    /// A list of strings with this pattern.
    List(&'static str),
}

const DIGEST: &str = "^(sha256:[0-9a-f]{64})?$";
const NAME: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$";
const CIDR: &str = "^[0-9a-fA-F.:]+/[0-9]+$";

const VALUES: &[Value] = &[
    Value {
        name: "replicaCount",
        default: Default::Replicas,
        schema: Schema::Whole(0),
        help: "Number of replicas. One leads, the others stand by. A PodDisruptionBudget lets a drain take one at a time",
    },
    Value {
        name: "image.repository",
        default: Default::Repository,
        schema: Schema::Pattern("."),
        help: "Name of the image, with its registry",
    },
    Value {
        name: "image.tag",
        default: Default::Yaml("\"\""),
        schema: Schema::Text,
        help: "Tag of the image; if empty, the version of the program in this chart",
    },
    Value {
        name: "image.digest",
        default: Default::Yaml("\"\""),
        schema: Schema::Pattern(DIGEST),
        help: "Digest of the image (`sha256:…`), used instead of the tag",
    },
    Value {
        name: "image.pullPolicy",
        default: Default::Yaml("\"\""),
        schema: Schema::Pattern("^(Always|IfNotPresent|Never)?$"),
        help: "`Always`, `IfNotPresent` or `Never`; if empty, the default of Kubernetes",
    },
    Value {
        name: "imagePullSecrets",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Secrets for the registry, such as `[{name: registry}]`",
    },
    Value {
        name: "fullnameOverride",
        default: Default::Yaml("\"\""),
        schema: Schema::Pattern(NAME),
        help: "Prefix of all names; if empty, the name of the release, and the name of the chart unless the release contains it",
    },
    Value {
        name: "commonLabels",
        default: Default::Yaml("{}"),
        schema: Schema::Texts,
        help: "Labels of all objects, except of the pods. The Prometheus of kube-prometheus-stack selects by `release`",
    },
    Value {
        name: "crds.enabled",
        default: Default::Yaml("true"),
        schema: Schema::Switch,
        help: "Installs the CRD. One release of a cluster has it. `helm uninstall` keeps it",
    },
    Value {
        name: "configuration",
        default: Default::Yaml("\"\""),
        schema: Schema::Text,
        help: "Content of `foo-controller.toml`, with the changed keys only. A change rolls the pods. Set it with `--set-file`",
    },
    Value {
        name: "namespaces",
        default: Default::Yaml("[]"),
        schema: Schema::List("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
        help: "Existing namespaces whose Foos are served, and where the controller has permissions; if empty, all (component `namespaced`)",
    },
    Value {
        name: "installation",
        default: Default::Yaml("\"\""),
        schema: Schema::Pattern(NAME),
        help: "Name of this installation: it serves the Foos with this label only. \
               Set it here and not in `configuration`, because it is part of the Lease's name in the Role",
    },
    Value {
        name: "extraEnv",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Further variables of the container, such as `[{name: FOO_CONTROLLER__WORKERS, value: \"5\"}]`. \
               They override `configuration`",
    },
    Value {
        name: "serviceAccount.create",
        default: Default::Yaml("true"),
        schema: Schema::Switch,
        help: "Creates the ServiceAccount",
    },
    Value {
        name: "serviceAccount.name",
        default: Default::Yaml("\"\""),
        schema: Schema::Text,
        help: "Name of the ServiceAccount. Each installation needs its own",
    },
    Value {
        name: "serviceAccount.annotations",
        default: Default::Yaml("{}"),
        schema: Schema::Texts,
        help: "Annotations of the ServiceAccount",
    },
    Value {
        name: "resources",
        default: Default::Resources,
        schema: Schema::Object,
        help: "Requests and limits. The memory limit is enough for 100,000 Foos. \
               Set no CPU limit: a throttled leader may lose the Lease",
    },
    Value {
        name: "terminationGracePeriodSeconds",
        default: Default::GracePeriod,
        schema: Schema::Whole(1),
        help: "Increase it with `shutdown_timeout` and `renew_deadline` in `configuration`",
    },
    Value {
        name: "podLabels",
        default: Default::Yaml("{}"),
        schema: Schema::Texts,
        help: "Further labels of the pods",
    },
    Value {
        name: "podAnnotations",
        default: Default::Yaml("{}"),
        schema: Schema::Texts,
        help: "Further annotations of the pods",
    },
    Value {
        name: "nodeSelector",
        default: Default::Yaml("{}"),
        schema: Schema::Texts,
        help: "Labels of the nodes that may run the pods",
    },
    Value {
        name: "tolerations",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Taints that the pods tolerate",
    },
    Value {
        name: "affinity",
        default: Default::Yaml("{}"),
        schema: Schema::Object,
        help: "Replaces the default affinity: nodes with Linux on amd64 or arm64, and replicas on different nodes if possible",
    },
    Value {
        name: "topologySpreadConstraints",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Replaces the default constraint, which spreads the replicas over zones",
    },
    Value {
        name: "priorityClassName",
        default: Default::Yaml("\"\""),
        schema: Schema::Text,
        help: "PriorityClass of the pods",
    },
    Value {
        name: "extraVolumes",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Further volumes of the pods, such as the Secret of a certificate",
    },
    Value {
        name: "extraVolumeMounts",
        default: Default::Yaml("[]"),
        schema: Schema::Objects,
        help: "Mounts of these volumes in the container",
    },
    Value {
        name: "fencing.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "Server-side fencing: the API server rejects writes of a replica that does not lead",
    },
    Value {
        name: "fencing.fastFailover",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "A Lease of 3 s instead of 15 s. Needs `fencing.enabled`. Set `resources.requests.cpu` to 100m with it: a renewal must \
               take less than 1 s",
    },
    Value {
        name: "metricsAuth.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "Serves metrics over TLS, for authorized users only",
    },
    Value {
        name: "prometheus.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "PodMonitor, alerts and a dashboard. Needs the CRDs of the Prometheus Operator",
    },
    Value {
        name: "otlp.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "Exports traces, logs and metrics by OTLP",
    },
    Value {
        name: "otlp.endpoint",
        default: Default::Endpoint,
        schema: Schema::Pattern("^https?://."),
        help: "URL of the collector",
    },
    Value {
        name: "collector.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "An OpenTelemetry Collector in a namespace of its own, for trials",
    },
    Value {
        name: "networkPolicy.enabled",
        default: Default::Yaml("false"),
        schema: Schema::Switch,
        help: "Denies all other traffic of the namespace. Needs a network plugin that enforces NetworkPolicy",
    },
    Value {
        name: "networkPolicy.apiServerCIDRs",
        default: Default::Yaml("[]"),
        schema: Schema::List(CIDR),
        help: "Addresses of the API server: of the Service `kubernetes` and of each endpoint; if empty, its ports at any address",
    },
    Value {
        name: "networkPolicy.collector.namespace",
        default: Default::CollectorNamespace,
        schema: Schema::Pattern(NAME),
        help: "Namespace of the collector in `otlp.endpoint`",
    },
    Value {
        name: "networkPolicy.collector.port",
        default: Default::CollectorPort,
        schema: Schema::Whole(1),
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
    fn of(&self, default: Default) -> String {
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
            Default::Yaml(yaml) => yaml.to_owned(),
            Default::Replicas => deployment("replicas: "),
            Default::Repository => deployment("image: ").rsplit_once(':').unwrap().0.to_owned(),
            Default::GracePeriod => deployment("terminationGracePeriodSeconds: "),
            Default::Resources => format!("\n{}", self.deployment.block("resources:").trim_end()),
            Default::Endpoint => self.otlp.value("value: ").to_owned(),
            Default::CollectorNamespace => collector("kubernetes.io/metadata.name: "),
            Default::CollectorPort => collector("port: "),
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

/// Returns `values.schema.json`, which allows no other values. `global` is set by Helm in a subchart.
pub fn schema() -> String {
    let mut root = object();
    root["properties"]["global"] = json!({"type": "object"});
    for value in VALUES {
        let mut at = &mut root;
        let mut path: Vec<_> = value.name.split('.').collect();
        let key = path.pop().unwrap();
        for parent in path {
            let properties = at["properties"].as_object_mut().unwrap();
            at = properties.entry(parent).or_insert_with(object);
        }
        at["properties"][key] = of_type(value.schema);
    }
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    serde_json::to_string_pretty(&root).unwrap() + "\n"
}

fn object() -> Json {
    json!({"type": "object", "additionalProperties": false, "properties": Map::new()})
}

fn of_type(schema: Schema) -> Json {
    match schema {
        Schema::Text => json!({"type": "string"}),
        Schema::Pattern(pattern) => json!({"type": "string", "pattern": pattern}),
        Schema::Whole(minimum) => json!({"type": "integer", "minimum": minimum}),
        Schema::Switch => json!({"type": "boolean"}),
        Schema::Texts => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Schema::Object => json!({"type": "object"}),
        Schema::Objects => json!({"type": "array", "items": {"type": "object"}}),
        Schema::List(pattern) => {
            json!({"type": "array", "items": {"type": "string", "pattern": pattern}})
        }
    }
}

/// Returns the README of the chart.
pub fn reference(defaults: &Defaults) -> String {
    let mut page = format!(
        "# {}\n\n{}.\n\n\
         Generated by `make generate` from the manifests for kustomize. The documentation of the project has the commands to\n\
         install, upgrade and uninstall the chart (Operations, \"Helm\"), and all settings for `configuration` (Configuration).\n\n\
         | value | default | meaning |\n|---|---|---|\n",
        APP.name, APP.about
    );
    for value in VALUES {
        let default = match value.default {
            Default::Resources => "as in `values.yaml`".to_owned(),
            default => format!("`{}`", defaults.of(default)),
        };
        let _ = writeln!(page, "| `{}` | {default} | {} |", value.name, value.help);
    }
    page
}
