//! Defaults and validation of the pods of a workload.
//!
//! [`read`] has the form of templates and the defaults. The other modules are the validation (`pkg/apis/core/validation` of
//! Kubernetes), in its order and with its paths. Values with other errors than these are not modelled.

mod at;
mod containers;
mod mounts;
pub mod read;
mod references;
mod resources;
mod running;
mod scheduling;
mod security;
#[cfg(test)]
mod tests;
mod volumes;
pub mod warnings;

use serde_json::{Value, json};

use super::{
    Release, metadata,
    request::Unknown,
    status::{Cause, Result},
    strategy::keep,
};
use at::{At, Errors};
pub use containers::{PROTOCOLS, wrong_port_name};

/// Sets a field that is missing, or an empty text.
pub fn default(value: &mut Value, field: &str, to: Value) {
    if value[field].is_null() || value[field] == "" {
        value[field] = to;
    }
}

/// Sets the defaults of `template` in the spec of a workload.
pub fn fill_template(spec: &mut Value) -> Result<()> {
    default(spec, "template", json!({}));
    let template = &mut spec["template"];
    let annotations = template["metadata"]["annotations"].as_object();
    let mut names = annotations.into_iter().flatten().map(|(name, _)| name);
    if let Some(name) = names.find(|name| is_special(name)) {
        let words = format!("the annotation {name} of a pod");
        return Err(Unknown(words).into());
    }
    if let Some(of) = read::template() {
        read::complete(of, template);
    }
    // The older field is an alias of the newer one.
    let pod = &mut template["spec"];
    let names = ["serviceAccountName", "serviceAccount"];
    let name = names.into_iter().find_map(|field| pod.get(field)).cloned();
    for field in names {
        keep(pod, field, name.as_ref());
    }
    Ok(())
}

/// Returns whether an annotation of a pod has a meaning for the API server.
fn is_special(annotation: &str) -> bool {
    const PREFIXES: [&str; 6] = [
        "container.apparmor.security.beta.kubernetes.io/",
        "container.seccomp.security.alpha.kubernetes.io/",
        "pod.alpha.kubernetes.io/",
        "pod.beta.kubernetes.io/",
        "scheduler.alpha.kubernetes.io/",
        "security.alpha.kubernetes.io/",
    ];
    const NAMES: [&str; 3] = [
        "controller.kubernetes.io/pod-deletion-cost",
        "kubernetes.io/config.mirror",
        "seccomp.security.alpha.kubernetes.io/pod",
    ];
    NAMES.contains(&annotation) || PREFIXES.iter().any(|it| annotation.starts_with(it))
}

/// Fails for a value that the API server may reject or warn of.
pub fn legal(is_legal: bool, what: &str, value: &Value) -> Result<()> {
    if is_legal {
        return Ok(());
    }
    Err(Unknown(format!("{what} {value}")).into())
}

/// Fails for another text in a field than these.
pub fn one_of(value: &Value, field: &str, texts: &[&str]) -> Result<()> {
    let text = value[field].as_str();
    let is_legal = text.is_some_and(|text| texts.contains(&text));
    legal(is_legal, field, &value[field])
}

/// Fails for other fields than these.
pub fn known(value: &Value, what: &str, fields: &[&str]) -> Result<()> {
    let mut all = value.as_object().into_iter().flatten();
    match all.find(|(field, _)| !fields.contains(&field.as_str())) {
        Some((field, _)) => Err(Unknown(format!("{field} in {what}")).into()),
        None => Ok(()),
    }
}

/// Validates a selector of labels.
pub fn check_selector(field: &str, selector: &Value) -> Vec<Cause> {
    let mut errors = Errors::new(Release::default());
    scheduling::check_selector(&At::new(field, selector), &mut errors);
    errors.causes
}

/// Validates the pods of a workload (`ValidatePodTemplateSpec`), except for the restart policy of the workload. Fails for values
/// whose errors are not imitated.
pub fn check_template(template: &Value, release: Release) -> Result<Vec<Cause>> {
    let mut errors = Errors::new(release);
    let template = At::new("spec.template", template);
    let meta = template.value.get("metadata").unwrap_or(&Value::Null);
    for (field, check) in [
        ("labels", metadata::check_labels as fn(&str, &Value) -> _),
        ("annotations", metadata::check_annotations),
    ] {
        let path = format!("spec.template.{field}");
        errors.causes.extend(check(&path, &meta[field]));
    }
    check_spec(&template.child("spec"), &mut errors);
    match errors.unknown {
        Some(unknown) => Err(unknown.into()),
        None => Ok(errors.causes),
    }
}

/// Validates the spec of a pod (`ValidatePodSpec`).
fn check_spec(spec: &At<'_>, errors: &mut Errors) {
    containers::check(spec, errors);
    resources::check_pod_resources(spec, errors);
    let is = |field: &str| spec.value[field] == true;
    if is("hostNetwork") {
        for port in spec.list("containers").flat_map(|it| it.list("ports")) {
            let host = port.child("hostPort");
            if host.number() != 0 && host.number() != port.child("containerPort").number() {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&host, why);
            }
        }
    }
    let policies = ["Always", "OnFailure", "Never"];
    errors.supported(&spec.child("restartPolicy"), &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.supported(&spec.child("dnsPolicy"), &policies);
    let selector = spec.child("nodeSelector");
    let wrong = metadata::check_labels(&selector.path, selector.value);
    errors.causes.extend(wrong);
    security::check_pod(spec, errors);
    scheduling::check_affinity(spec, errors);
    check_dns(spec, errors);
    scheduling::check_gates(spec, errors);
    scheduling::check_spread(spec, errors);
    if let Some(name) = spec.get("hostnameOverride") {
        errors.since(Release::V1_35, &name);
        for field in ["setHostnameAsFQDN", "hostNetwork"] {
            if is(field) {
                let why = format!("may not be specified when {field} is true");
                errors.forbidden(&name.path, &why);
            }
        }
        errors.legal(name.text().len() <= 64, &name);
        errors.subdomain(&name);
    }
    for name in ["serviceAccountName", "nodeName", "priorityClassName"] {
        let name = spec.child(name);
        if !name.is_empty() {
            errors.subdomain(&name);
        }
    }
    if let Some(name) = spec.get("runtimeClassName") {
        errors.subdomain(&name);
    }
    errors.range(&spec.child("activeDeadlineSeconds"), 1..=i32::MAX.into());
    for name in ["hostname", "subdomain"] {
        let name = spec.child(name);
        if !name.is_empty() {
            errors.label(&name);
        }
    }
    scheduling::check_tolerations(spec, errors);
    for alias in spec.list("hostAliases") {
        check_address(&alias.child("ip"), errors);
        for name in alias.list("hostnames") {
            errors.subdomain(&name);
        }
    }
    if let Some(policy) = spec.get("preemptionPolicy") {
        if policy.is_empty() {
            errors.required(&policy, "");
        } else {
            errors.supported(&policy, &["PreemptLowerPriority", "Never"]);
        }
    }
    resources::check_overhead(spec, errors);
    if let Some(os) = spec.get("os") {
        let name = os.child("name");
        match name.text() {
            "" => errors.required(&name, ""),
            "windows" => errors.unknown(&name),
            // As the API server has it.
            _ => errors.supported(&At::new(&os.path, name.value), &["linux", "windows"]),
        }
    }
    if let Some(group) = spec.get("schedulingGroup") {
        errors.unknown(&group);
    }
}

/// Validates an address of IPv4. IPv6 is not modelled.
fn check_address(address: &At<'_>, errors: &mut Errors) {
    let text = address.text();
    // Before 1.36, leading zeros are valid.
    let is_odd = text.contains(':')
        || text
            .split('.')
            .any(|it| it.len() > 1 && it.starts_with('0'));
    errors.legal(!is_odd, address);
    if text.parse::<std::net::Ipv4Addr>().is_err() {
        let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.invalid_as(&address.path, text, why);
    }
}

fn check_dns(spec: &At<'_>, errors: &mut Errors) {
    let config = spec.child("dnsConfig");
    let servers = config.child("nameservers");
    if spec.child("dnsPolicy").text() == "None" {
        if !config.is_there() {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.required(&config, why);
            return;
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(&servers, why);
            return;
        }
    }
    if servers.value.as_array().map_or(0, Vec::len) > 3 {
        errors.invalid(&servers, "must not have more than 3 nameservers");
    }
    for server in config.list("nameservers") {
        check_address(&server, errors);
    }
    let mut length = 0;
    for search in config.list("searches") {
        length += search.text().len() + 1;
        // Since 1.33, underscores and a single dot are valid as well.
        let name = search.text().strip_suffix('.').unwrap_or(search.text());
        let is_legal = metadata::is_subdomain(&name.replace('_', "x")) && !name.contains('_');
        errors.legal(is_legal || search.text() == ".", &search);
    }
    let count = config.list("searches").count();
    errors.legal(count <= 32 && length <= 2048, &config.child("searches"));
    for option in config.list("options") {
        if option.child("name").is_empty() {
            errors.required(&option, "must not be empty");
        }
    }
}

/// Returns the error for a number below zero.
pub fn negative(field: &str, value: &Value) -> Option<Cause> {
    let number = value.as_i64().filter(|number| *number < 0)?;
    Some(Cause::invalid(
        field,
        number,
        "must be greater than or equal to 0",
    ))
}
