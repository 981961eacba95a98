//! Validation of containers (`validateContainers`, `validateInitContainers`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Release,
    at::{At, Errors},
    mounts::{check_devices, check_mounts},
    references::{check_field, check_resource},
    resources::{
        check_claim_names, check_claims, check_resizes, check_resource_name, check_resources,
    },
    running::{PROBES, check_restarts, check_running},
    security, volumes,
};
use crate::api_server::{contents, metadata};

pub const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Protocols of a port.
pub const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Fields of a pod that a variable may have (`validEnvDownwardAPIFieldPathExpressions`).
const VARIABLE_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The pod of a container.
pub struct Pod<'a> {
    pub spec: At<'a>,
    /// The valid ones.
    pub volumes: BTreeMap<&'a str, &'a Value>,
}

/// Validates all containers of a pod.
pub fn check(spec: &At<'_>, errors: &mut Errors) {
    let volumes = volumes::check(spec, errors);
    let claims = check_claims(spec, errors);
    let pod = &Pod {
        spec: spec.clone(),
        volumes,
    };
    let mut names = BTreeSet::new();
    if spec.child("containers").is_empty() {
        errors.required(&spec.child("containers"), "");
    }
    let mut host_ports = BTreeSet::new();
    for container in spec.list("containers") {
        check_common(&container, pod, &claims, errors);
        check_name_is_new(&container, false, &mut names, errors);
        check_running(&container, pod, errors);
        check_restarts(&container, false, errors);
    }
    for container in spec.list("containers") {
        check_host_ports(&container, &mut host_ports, errors);
    }
    for container in spec.list("initContainers") {
        check_common(&container, pod, &claims, errors);
        check_restarts(&container, true, errors);
        check_name_is_new(&container, true, &mut names, errors);
        // As the API server has it: the index is that in a list of one.
        let first = At::new(&format!("{}.initContainers[0]", spec.path), container.value);
        check_host_ports(&first, &mut BTreeSet::new(), errors);
        let is_sidecar = container.child("restartPolicy").text() == "Always";
        if is_sidecar {
            check_running(&container, pod, errors);
            continue;
        }
        for field in ["lifecycle"].iter().chain(&PROBES) {
            if let Some(at) = container.get(field) {
                let why = "may not be set for init containers without restartPolicy=Always";
                errors.forbidden(&at.path, why);
            }
        }
        for policy in container.list("resizePolicy") {
            let restart = policy.child("restartPolicy");
            if restart.text() == "RestartContainer" && errors.release >= Release::V1_36 {
                let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.invalid(&restart, why);
            }
        }
    }
    if !spec.child("ephemeralContainers").is_empty() {
        errors.unknown(&spec.child("ephemeralContainers"));
    }
}

fn check_name_is_new<'a>(
    container: &At<'a>,
    is_init: bool,
    names: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    let name = container.child("name");
    if names.contains(name.text()) {
        errors.duplicate(&name.path, name.text());
    } else if !name.is_empty() || !is_init {
        names.insert(name.text());
    }
}

/// Validates the fields that all containers have.
fn check_common(container: &At<'_>, pod: &Pod<'_>, claims: &BTreeSet<&str>, errors: &mut Errors) {
    let name = container.child("name");
    if name.is_empty() {
        errors.required(&name, "");
    } else {
        errors.label(&name);
    }
    errors.require(container, &["image"]);
    // A longer name of an image can be invalid, which decides its policy.
    let image = container.child("image");
    errors.legal(image.text().len() <= 240, &image);
    errors.supported(
        &container.child("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    check_ports(container, errors);
    check_variables(container, pod, errors);
    check_mounts(container, pod, errors);
    check_devices(container, pod, errors);
    errors.supported(&container.child("imagePullPolicy"), &PULL_POLICIES);
    let resources = container.child("resources");
    check_resources(&resources, check_resource_name, errors);
    check_claim_names(&resources, claims, errors);
    check_resizes(container, pod, errors);
    security::check_container(container, &pod.spec, errors);
}

fn check_ports(container: &At<'_>, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for port in container.list("ports") {
        let name = port.child("name");
        if !name.is_empty() {
            let wrong = wrong_port_name(name.text());
            for why in &wrong {
                errors.invalid(&name, why);
            }
            if wrong.is_empty() && !names.insert(name.text()) {
                errors.duplicate(&name.path, name.text());
            }
        }
        let number = port.child("containerPort");
        if number.number() == 0 {
            errors.required(&number, "");
        } else {
            errors.range(&number, 1..=65535);
        }
        errors.range(&port.child("hostPort"), 1..=65535);
        errors.supported(&port.child("protocol"), &PROTOCOLS);
    }
}

/// Returns the errors of a port's name (`IsValidPortName`).
pub fn wrong_port_name(name: &str) -> Vec<&'static str> {
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let mut wrong = Vec::new();
    if name.len() > 15 {
        wrong.push("must be no more than 15 characters");
    }
    if name.is_empty() || !name.chars().all(is_known) {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !name.contains(|c: char| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        wrong.push("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong.push("must not begin or end with a hyphen");
    }
    wrong
}

fn check_host_ports(container: &At<'_>, all: &mut BTreeSet<String>, errors: &mut Errors) {
    for port in container.list("ports") {
        let number = port.child("hostPort");
        if number.number() != 0 {
            let text = |field: &str| port.child(field).text();
            let one = format!(
                "{}/{}/{}",
                text("protocol"),
                text("hostIP"),
                number.number()
            );
            if !all.insert(one.clone()) {
                errors.duplicate(&number.path, &one);
            }
        }
    }
}

fn is_variable(name: &str) -> bool {
    name.chars().all(|c| matches!(c, ' '..='~') && c != '=')
}

fn check_variable_name(name: &At<'_>, errors: &mut Errors) {
    if !is_variable(name.text()) {
        let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        errors.invalid(name, why);
    }
}

fn check_key(key: &At<'_>, errors: &mut Errors) {
    let text = key.text();
    if text.is_empty() {
        errors.required(key, "");
        return;
    }
    if text.len() > 253 {
        errors.invalid(key, "must be no more than 253 characters");
    }
    if !contents::is_key(text) {
        errors.invalid(key, contents::NOT_A_KEY);
    }
    match text {
        "." => errors.invalid(key, "must not be '.'"),
        ".." => errors.invalid(key, "must not be '..'"),
        text if text.starts_with("..") => errors.invalid(key, "must not start with '..'"),
        _ => {}
    }
}

fn check_variables(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for variable in container.list("env") {
        let name = variable.child("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else {
            check_variable_name(&name, errors);
        }
        let Some(from) = variable.get("valueFrom") else {
            continue;
        };
        let mut sources = 0;
        for (name, source) in from.value.as_object().into_iter().flatten() {
            let source = At::new(&format!("{}.{name}", from.path), source);
            sources += 1;
            match name.as_str() {
                "fieldRef" => check_field(&source, &VARIABLE_PATHS, errors),
                "resourceFieldRef" => check_resource(&source, false, errors),
                "configMapKeyRef" | "secretKeyRef" => {
                    let name = source.child("name");
                    errors
                        .causes
                        .extend(metadata::check_subdomain(&name.path, name.text()));
                    check_key(&source.child("key"), errors);
                }
                "fileKeyRef" => check_file_key(&source, pod, errors),
                _ => errors.unknown(&source),
            }
        }
        let why = if sources == 0 {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        } else if !variable.child("value").is_empty() {
            "may not be specified when `value` is not empty"
        } else if sources > 1 {
            "may not have more than one field specified at a time"
        } else {
            continue;
        };
        errors.invalid_as(&from.path, "", why);
    }
    let all = container.child("envFrom");
    for from in container.list("envFrom") {
        check_variable_name(&from.child("prefix"), errors);
        let sources = ["configMapRef", "secretRef"].map(|field| from.get(field));
        for source in sources.iter().flatten() {
            let name = source.child("name");
            if name.is_empty() {
                errors.required(&name, "");
            } else {
                // A name may end with a hyphen here, as a prefix of names.
                errors.legal(!name.text().ends_with('-'), &name);
                errors.subdomain(&name);
            }
        }
        let why = match sources.iter().flatten().count() {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.invalid_as(&all.path, "", why);
    }
}

fn check_file_key(file: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    errors.since(Release::V1_36, file);
    errors.require(file, &["key", "volumeName", "path"]);
    check_variable_name(&file.child("key"), errors);
    let volume = file.child("volumeName");
    if !volume.is_empty() {
        errors.label(&volume);
    }
    volumes::no_backsteps(&file.child("path"), errors);
    let all = pod.spec.list("volumes");
    // The last volume of a name counts.
    match all.filter(|it| it.value["name"] == *volume.value).last() {
        None => errors.not_found(&volume, ""),
        Some(found) if !found.child("emptyDir").is_there() => {
            errors.invalid(&volume, "referenced volume must be of type emptyDir");
        }
        Some(_) => {}
    }
}
