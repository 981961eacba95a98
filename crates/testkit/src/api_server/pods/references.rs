//! Validation of references to fields of a pod and to resources of a container.

use super::at::{At, Errors};
use crate::api_server::metadata;

/// Fields of a pod that the API knows (`ConvertDownwardAPIFieldLabel`).
const KNOWN_PATHS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Resources of a container that a variable or a file may have.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const DIVISORS: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";

/// Validates a reference to a field of the pod.
pub fn check_field(field: &At<'_>, paths: &[&str], errors: &mut Errors) {
    let (version, path) = (field.child("apiVersion"), field.child("fieldPath"));
    if path.is_empty() {
        errors.required(&path, "");
        return;
    }
    let wrong = |why: &str| format!("error converting fieldPath: {why}");
    let text = path.text();
    if version.text() != "v1" {
        let why = format!("unsupported pod version: {}", version.text());
        errors.invalid(&path, &wrong(&why));
    } else if let Some((map, key)) = text
        .strip_suffix("']")
        .and_then(|rest| rest.split_once("['"))
    {
        match map {
            "metadata.annotations" | "metadata.labels" => {
                let is_label = map == "metadata.labels";
                let key = if is_label { key } else { &key.to_lowercase() };
                let causes = metadata::check_qualified(&field.path, key);
                errors.causes.extend(causes);
            }
            _ => {
                let why = wrong(&format!("field label does not support subscript: {text}"));
                errors.invalid(&path, &why);
            }
        }
    } else if text == "spec.host" {
        errors.unknown(&path);
    } else if !KNOWN_PATHS.contains(&text) {
        let why = wrong(&format!("field label not supported: {text}"));
        errors.invalid(&path, &why);
    } else {
        errors.supported(&path, paths);
    }
}

/// Validates a reference to a resource of a container.
pub fn check_resource(of: &At<'_>, is_file: bool, errors: &mut Errors) {
    let (container, resource) = (of.child("containerName"), of.child("resource"));
    let name = resource.text();
    let is_huge = |list: &str| name.starts_with(&format!("{list}.hugepages-"));
    if is_file && container.is_empty() {
        errors.required(&container, "");
    } else if resource.is_empty() {
        errors.required(&resource, "");
    } else if !is_huge("limits") && !is_huge("requests") {
        errors.supported(&resource, &RESOURCES);
    }
    let divisor = of.child("divisor");
    let (texts, what) = match name.split_once('.').map_or("", |(_, what)| what) {
        "cpu" => ("1m and 1", "cpu"),
        "memory" => (DIVISORS, "memory"),
        "ephemeral-storage" => (DIVISORS, "local ephemeral storage"),
        huge if huge.starts_with("hugepages-") => (DIVISORS, "hugepages"),
        _ => return,
    };
    let mut supported = texts.split(", ").flat_map(|it| it.split(" and "));
    let is_zero = matches!(divisor.text(), "" | "0");
    let is_known = ["limits.", "requests."]
        .iter()
        .any(|list| name.starts_with(list));
    if is_known && !is_zero && !supported.any(|it| it == divisor.text()) {
        let why = format!("only divisor's values {texts} are supported with the {what} resource");
        errors.invalid_as(&divisor.path, name, &why);
    }
}
