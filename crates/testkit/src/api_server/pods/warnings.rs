//! Warnings of valid pod templates (`pkg/api/pod/warnings.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::at::At;
use crate::api_server::{metadata, quantity::Quantity};

const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";
/// Labels of nodes that are deprecated.
const LABELS: [(&str, &str); 8] = [
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];
/// Types of volumes that are deprecated, with their name in the warning.
const VOLUMES: [(&str, &str, &str); 9] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

fn deprecated(label: &str) -> Option<&'static str> {
    let found = LABELS.iter().find(|(it, _)| *it == label);
    found.map(|(_, why)| *why)
}

/// Returns the warnings of the template in the spec of a workload.
pub fn of_template(template: &Value) -> Vec<String> {
    let spec = At::new("spec.template", template).child("spec");
    let mut warnings = Vec::new();
    of_nodes(&spec, &mut warnings);
    of_volumes(&spec, &mut warnings);
    of_repeated(&spec, ("hostAliases", "ip"), &mut warnings);
    of_repeated(&spec, ("imagePullSecrets", "name"), &mut warnings);
    for secret in spec.list("imagePullSecrets") {
        let name = secret.child("name");
        if name.is_empty() {
            warnings.push(format!("{}: invalid empty name \"\"", name.path));
        }
    }
    of_fractions(&spec, "overhead", &mut warnings);
    let containers = || spec.list("initContainers").chain(spec.list("containers"));
    for container in containers() {
        let resources = container.child("resources");
        of_fractions(&resources, "limits", &mut warnings);
        of_fractions(&resources, "requests", &mut warnings);
        of_variables(&container, &mut warnings);
    }
    of_ports(containers(), &mut warnings);
    let mut names = BTreeMap::new();
    for port in containers().flat_map(|container| container.list("ports")) {
        let name = port.child("name").text();
        if name.is_empty() {
            continue;
        }
        if let Some(other) = names.get(name) {
            warnings.push(format!(
                "{}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}",
                port.path
            ));
        } else {
            names.insert(name, port.path);
        }
    }
    let grace = spec.child("terminationGracePeriodSeconds");
    if grace.number() < 0 {
        warnings.push(format!(
            "{}: must be >= 0; negative values are invalid and will be treated as 1",
            grace.path
        ));
    }
    for pods in ["podAffinity", "podAntiAffinity"] {
        let pods = spec.child("affinity").child(pods);
        let required = pods.list("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = pods.list("preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.map(|it| it.child("podAffinityTerm"));
        for selector in required
            .chain(preferred)
            .map(|it| it.child("labelSelector"))
        {
            if !selector.is_there() {
                warnings.push(format!("{}: {NO_SELECTOR}", selector.path));
            }
        }
    }
    warnings
}

fn of_nodes(spec: &At<'_>, warnings: &mut Vec<String>) {
    for (label, at) in spec.map("nodeSelector") {
        warnings.extend(deprecated(label).map(|why| format!("{}: {why}", at.path)));
    }
    let nodes = spec.child("affinity").child("nodeAffinity");
    let required = nodes.child("requiredDuringSchedulingIgnoredDuringExecution");
    let preferred = nodes.list("preferredDuringSchedulingIgnoredDuringExecution");
    let terms = required.list("nodeSelectorTerms").map(|term| (term, false));
    let preferred = preferred.map(|it| (it.child("preference"), true));
    for (term, checks_values) in terms.chain(preferred) {
        for rule in term.list("matchExpressions") {
            let key = rule.child("key");
            let is = |why| format!("{}: {} is {why}", key.path, key.text());
            warnings.extend(deprecated(key.text()).map(is));
            for value in rule.list("values").filter(|_| checks_values) {
                for cause in metadata::check_label_value("", value.text()) {
                    let words = cause.message.splitn(3, ": ").nth(2).unwrap_or_default();
                    warnings.push(format!(
                        "{}: {} is invalid, {words}",
                        value.path,
                        value.text()
                    ));
                }
            }
        }
    }
    for constraint in spec.list("topologySpreadConstraints") {
        let key = constraint.child("topologyKey");
        let is = |why| format!("{}: {} is {why}", key.path, key.text());
        warnings.extend(deprecated(key.text()).map(is));
        let selector = constraint.child("labelSelector");
        if !selector.is_there() {
            warnings.push(format!("{}: {NO_SELECTOR}", selector.path));
        }
    }
}

fn of_volumes(spec: &At<'_>, warnings: &mut Vec<String>) {
    for volume in spec.list("volumes") {
        for (field, name, why) in VOLUMES {
            // In the order of the warnings, the claim precedes this type.
            if field == "cephfs" {
                let claim = volume.child("ephemeral").child("volumeClaimTemplate");
                for list in ["requests", "limits"] {
                    of_fractions(&claim.child("spec").child("resources"), list, warnings);
                }
            }
            if volume.get(field).is_some() {
                warnings.push(format!("{}.{name}: {why}", volume.path));
            }
        }
    }
    for volume in spec.list("volumes") {
        of_overlaps(&volume, warnings);
    }
}

/// Warns of files of a volume with the same path, or with a path in another one.
fn of_overlaps(volume: &At<'_>, warnings: &mut Vec<String>) {
    let name = volume.child("name").text();
    let mut paths: Vec<(String, String)> = Vec::new();
    let mut add = |path: &str, source: &str, what: &str, warnings: &mut Vec<String>| {
        let path = path.trim_end_matches('/').to_owned();
        let shown = |path: &str, source: &str| match source {
            "" => format!("{path:?}"),
            source => format!("{path:?} ({source})"),
        };
        let is_in = |one: &str, other: &str| format!("{one}/").starts_with(&format!("{other}/"));
        for (other, its_source) in &paths {
            let overlaps = is_in(other, &path) || is_in(&path, other);
            if !path.is_empty() && overlaps {
                let (one, other) = (shown(&path, source), shown(other, its_source));
                warnings.push(format!(
                    "volume {name:?} ({what}): overlapping paths: {one} with {other}"
                ));
            }
        }
        paths.push((path, source.to_owned()));
    };
    for (source, called, field) in [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("downwardAPI", "DownwardAPI", ""),
    ] {
        let source = volume.child(source);
        let what = match field {
            "" => called.to_owned(),
            field => format!("{called} {:?}", source.child(field).text()),
        };
        for item in source.list("items") {
            add(item.child("path").text(), "", &what, warnings);
        }
    }
    for source in volume.child("projected").list("sources") {
        if source
            .value
            .as_object()
            .is_none_or(serde_json::Map::is_empty)
        {
            warnings.push(format!(
                "volume {name:?} (Projected) has no sources provided"
            ));
        }
        for (field, called) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
            let part = source.child(field);
            let of = format!("{called} {:?}", part.child("name").text());
            for item in part.list("items") {
                add(item.child("path").text(), &of, "Projected", warnings);
            }
        }
        for item in source.child("downwardAPI").list("items") {
            let path = item.child("path").text();
            add(path, "DownwardAPI", "Projected", warnings);
        }
        if let Some(token) = source.get("serviceAccountToken") {
            let path = token.child("path").text();
            add(path, "ServiceAccountToken", "Projected", warnings);
        }
    }
}

fn of_repeated(spec: &At<'_>, (list, key): (&str, &str), warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for item in spec.list(list) {
        let key = item.child(key);
        if !seen.insert(key.text()) {
            let field = key.path.rsplit('.').next().unwrap_or_default();
            let (path, text) = (&key.path, key.text());
            warnings.push(format!("{path}: duplicate {field} {text:?}"));
        }
    }
}

/// Warns of fractions of bytes.
fn of_fractions(of: &At<'_>, list: &str, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage", "storage"] {
        let mut all = of.map(list);
        let Some((_, at)) = all.find(|(it, _)| *it == name) else {
            continue;
        };
        if Quantity::of(at.value).is_some_and(|it| !it.is_whole()) {
            warnings.push(format!(
                "{}: fractional byte value {} is invalid, must be an integer",
                at.path, at.value
            ));
        }
    }
}

fn of_variables(container: &At<'_>, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for variable in container.list("env") {
        let name = variable.child("name").text();
        let reference = format!("$({name})");
        let value = variable.child("value").text();
        if seen.insert(name) {
            continue;
        }
        let is_bad = variable.get("valueFrom").is_some()
            || value == reference
            || !value.contains(&reference);
        if is_bad {
            warnings.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                variable.path
            ));
        }
    }
}

fn of_ports<'a>(containers: impl Iterator<Item = At<'a>>, warnings: &mut Vec<String>) {
    let mut all: BTreeMap<String, Vec<At<'a>>> = BTreeMap::new();
    for port in containers.flat_map(|container| container.list("ports")) {
        let host = |port: &At<'_>| {
            (
                port.child("hostIP").text().to_owned(),
                port.child("hostPort").number(),
            )
        };
        let (ip, number) = host(&port);
        let part = |field: &str| port.child(field);
        if !ip.is_empty() && number == 0 {
            warnings.push(format!(
                "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{ip}}}",
                port.path,
                part("name").text(),
                part("containerPort").number(),
                part("protocol").text(),
            ));
        }
        let key = format!(
            "{}/{}",
            part("containerPort").number(),
            part("protocol").text()
        );
        let others = all.entry(key).or_default();
        for other in &*others {
            let (its_ip, its_number) = host(other);
            let what = if (&ip, number) == (&its_ip, its_number) {
                "duplicate"
            } else if number == 0 || its_number == 0 {
                "overlapping"
            } else if number == its_number && (ip.is_empty() != its_ip.is_empty()) {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!(
                "{}: {what} port definition with {}",
                port.path, other.path
            ));
        }
        others.push(port);
    }
}
