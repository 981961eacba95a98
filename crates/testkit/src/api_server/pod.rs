//! Defaults and validation of the pods of a workload.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    contents, metadata,
    quantity::Quantity,
    request::Unknown,
    status::{Cause, Result},
};

/// Sources of a variable that are modelled.
const SOURCES: [&str; 3] = ["fieldRef", "configMapKeyRef", "secretKeyRef"];
/// Resources of a container that are modelled.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Fields of a pod that a variable may have (`validEnvDownwardAPIFieldPathExpressions`).
const PATHS: [&str; 9] = [
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
/// Protocols of a port.
pub const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Sets a field that is missing, or an empty text.
pub fn default(value: &mut Value, field: &str, to: Value) {
    if value[field].is_null() || value[field] == "" {
        value[field] = to;
    }
}

/// Sets the defaults of `template` in the spec of a workload. Fails for fields with unknown defaults, instead of guessing.
pub fn fill_template(spec: &mut Value) -> Result<()> {
    default(spec, "template", json!({}));
    default(&mut spec["template"], "metadata", json!({}));
    default(&mut spec["template"], "spec", json!({}));
    let pod = &mut spec["template"]["spec"];
    known(
        pod,
        "a pod's spec",
        &[
            "containers",
            "restartPolicy",
            "terminationGracePeriodSeconds",
            "dnsPolicy",
            "securityContext",
            "schedulerName",
            "serviceAccountName",
            "serviceAccount",
            "nodeSelector",
        ],
    )?;
    default(pod, "restartPolicy", json!("Always"));
    default(pod, "terminationGracePeriodSeconds", json!(30));
    default(pod, "dnsPolicy", json!("ClusterFirst"));
    default(pod, "securityContext", json!({}));
    default(pod, "schedulerName", json!("default-scheduler"));
    one_of(pod, "restartPolicy", &["Always", "OnFailure", "Never"])?;
    one_of(
        pod,
        "dnsPolicy",
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default"],
    )?;
    let seconds = &pod["terminationGracePeriodSeconds"];
    let is_legal = seconds.as_i64().is_some_and(|seconds| seconds >= 0);
    legal(is_legal, "terminationGracePeriodSeconds", seconds)?;
    let selector = &pod["nodeSelector"];
    let is_legal = metadata::check_labels("", selector).is_empty();
    legal(is_legal, "nodeSelector", selector)?;
    // The API server rejects some repetitions, and warns of the others.
    let mut ports = BTreeSet::new();
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        fill_container(container, &mut ports)?;
    }
    Ok(())
}

/// Sets the defaults of a container. `ports` are the ports and the names of ports of the pod.
fn fill_container(container: &mut Value, ports: &mut BTreeSet<String>) -> Result<()> {
    known(
        container,
        "a container",
        &[
            "name",
            "image",
            "imagePullPolicy",
            "resources",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "command",
            "args",
            "env",
            "envFrom",
            "ports",
        ],
    )?;
    default(container, "resources", json!({}));
    let resources = &container["resources"];
    known(
        resources,
        "the resources of a container",
        &["limits", "requests"],
    )?;
    for list in ["limits", "requests"] {
        known(&resources[list], "the resources of a container", &RESOURCES)?;
    }
    fill_variables(container)?;
    default(
        container,
        "terminationMessagePath",
        json!("/dev/termination-log"),
    );
    default(container, "terminationMessagePolicy", json!("File"));
    let image = container["image"].as_str().unwrap_or_default();
    let policy = if is_latest(image) {
        "Always"
    } else {
        "IfNotPresent"
    };
    legal(image.trim() == image, "the image", &container["image"])?;
    default(container, "imagePullPolicy", json!(policy));
    one_of(
        container,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    )?;
    one_of(
        container,
        "terminationMessagePolicy",
        &["File", "FallbackToLogsOnError"],
    )?;
    for port in container
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let fields = ["name", "containerPort", "protocol"];
        known(port, "a port of a container", &fields)?;
        default(port, "protocol", json!("TCP"));
        one_of(port, "protocol", &PROTOCOLS)?;
        let (name, number) = (&port["name"], &port["containerPort"]);
        let is_number = number.as_i64().is_some_and(|it| (1..=65535).contains(&it));
        let is_name = name.is_null() || name.as_str().is_some_and(is_port_name);
        let is_new = ports.insert(format!("{number}/{}", port["protocol"]))
            && (name.is_null() || ports.insert(name.to_string()));
        legal(is_number && is_name && is_new, "the port", port)?;
    }
    Ok(())
}

/// Sets the defaults of the variables of a container.
fn fill_variables(container: &mut Value) -> Result<()> {
    let is_name = |name: &str| {
        let is_known = |c: char| matches!(c, ' '..='~') && c != '=';
        !name.is_empty() && name.chars().all(is_known)
    };
    let is_named = |it: &Value| it["name"].as_str().is_some_and(metadata::is_subdomain);
    let mut names = BTreeSet::new();
    let variables = container.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        // The API server warns of a repeated name.
        let is_legal = is_name(name) && names.insert(name.to_owned());
        legal(is_legal, "the variable", variable)?;
        let has_value = variable.get("value").is_some();
        let Some(source) = variable.get_mut("valueFrom") else {
            continue;
        };
        known(source, "the source of a variable", &SOURCES)?;
        if let Some(field) = source.get_mut("fieldRef").filter(|it| it.is_object()) {
            default(field, "apiVersion", json!("v1"));
            one_of(field, "apiVersion", &["v1"])?;
            one_of(field, "fieldPath", &PATHS)?;
        }
        let mut all = source.as_object().into_iter().flatten();
        let is_legal = match (all.next(), all.next()) {
            (Some((field, _)), None) if field == "fieldRef" => true,
            (Some((_, it)), None) => {
                let key = it["key"].as_str().unwrap_or_default();
                let is_key = contents::is_key(key) && key != "." && !key.starts_with("..");
                is_named(it) && is_key && key.len() <= 253
            }
            _ => false,
        };
        legal(is_legal && !has_value, "the variable", variable)?;
    }
    for source in container["envFrom"].as_array().into_iter().flatten() {
        let fields = ["prefix", "configMapRef", "secretRef"];
        known(source, "a source of variables", &fields)?;
        let prefix = source.get("prefix").map(Value::as_str);
        let mut all = fields[1..].iter().filter_map(|field| source.get(field));
        let is_legal = prefix.is_none_or(|it| it.is_some_and(is_name))
            && all.next().is_some_and(is_named)
            && all.next().is_none();
        legal(is_legal, "the source of variables", source)?;
    }
    Ok(())
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

/// Returns whether this is the name of a port (`IsValidPortName`).
pub fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && metadata::is_label(name)
        && !name.contains("--")
        && name.contains(|c: char| c.is_ascii_lowercase())
}

/// Fails for other fields than these.
pub fn known(value: &Value, what: &str, fields: &[&str]) -> Result<()> {
    let mut all = value.as_object().into_iter().flatten();
    match all.find(|(field, _)| !fields.contains(&field.as_str())) {
        Some((field, _)) => Err(Unknown(format!("{field} in {what}")).into()),
        None => Ok(()),
    }
}

/// Returns whether an image is always pulled.
fn is_latest(image: &str) -> bool {
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        _ if image.contains('@') => false,
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

/// Validates the pods of a workload, except for their restart policy.
pub fn check_template(template: &Value) -> Vec<Cause> {
    let mut causes =
        metadata::check_labels("spec.template.labels", &template["metadata"]["labels"]);
    let containers = template["spec"]["containers"].as_array();
    if containers.is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.template.spec.containers", ""));
    }
    let mut names = Vec::new();
    for (at, container) in containers.into_iter().flatten().enumerate() {
        let field = |field: &str| format!("spec.template.spec.containers[{at}].{field}");
        match container["name"].as_str() {
            None | Some("") => causes.push(Cause::required(&field("name"), "")),
            Some(name) => {
                causes.extend(metadata::check_label(&field("name"), name));
                if names.contains(&name) {
                    causes.push(Cause {
                        field: field("name"),
                        reason: "FieldValueDuplicate",
                        message: format!("Duplicate value: {name:?}"),
                    });
                }
                names.push(name);
            }
        }
        if container["image"].as_str().unwrap_or_default().is_empty() {
            causes.push(Cause::required(&field("image"), ""));
        }
        causes.extend(check_resources(
            &field("resources"),
            &container["resources"],
        ));
    }
    causes
}

/// Validates the resources of a container.
fn check_resources(field: &str, resources: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (list, name) in ["limits", "requests"]
        .iter()
        .flat_map(|list| RESOURCES.map(|it| (list, it)))
    {
        let asked = &resources[list][name];
        let Some(quantity) = Quantity::of(asked) else {
            continue;
        };
        if quantity.is_negative() {
            let field = format!("{field}.{list}[{name}]");
            causes.push(Cause::invalid(
                &field,
                asked,
                "must be greater than or equal to 0",
            ));
        }
        let limit = &resources["limits"][name];
        if Quantity::of(limit).is_some_and(|limit| quantity.compare(&limit).is_gt()) {
            let limit = limit.as_str().unwrap_or_default();
            let why = format!("must be less than or equal to {name} limit of {limit}");
            causes.push(Cause::invalid(&format!("{field}.requests"), asked, &why));
        }
    }
    causes
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
