//! Defaults and validation of the pods of a workload.

use serde_json::{Value, json};

use super::{
    metadata,
    quantity::Quantity,
    request::Unknown,
    status::{Cause, Result},
};

/// Sources of a variable that are modelled.
const SOURCES: [&str; 3] = ["fieldRef", "configMapKeyRef", "secretKeyRef"];
/// Resources of a container that are modelled.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Sets a missing field.
pub fn default(value: &mut Value, field: &str, to: Value) {
    if value[field].is_null() {
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
    for container in pod
        .get_mut("containers")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
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
        let variables = container.get_mut("env").and_then(Value::as_array_mut);
        for variable in variables.into_iter().flatten() {
            let Some(source) = variable.get_mut("valueFrom") else {
                continue;
            };
            known(source, "the source of a variable", &SOURCES)?;
            if let Some(field) = source.get_mut("fieldRef").filter(|it| it.is_object()) {
                default(field, "apiVersion", json!("v1"));
            }
        }
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
        default(container, "imagePullPolicy", json!(policy));
        for port in container
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            default(port, "protocol", json!("TCP"));
        }
    }
    Ok(())
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
