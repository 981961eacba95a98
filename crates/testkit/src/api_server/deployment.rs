//! Defaults and validation of Deployments.

use serde_json::{Value, json};

use super::{
    metadata,
    request::Unknown,
    status::{Cause, Result},
};

fn default(value: &mut Value, field: &str, to: Value) {
    if value[field].is_null() {
        value[field] = to;
    }
}

/// Sets the defaults of the API server. Fails for fields with unknown defaults, instead of guessing.
pub fn fill(object: &mut Value) -> Result<()> {
    let spec = &mut object["spec"];
    known(
        spec,
        "spec",
        &[
            "replicas",
            "selector",
            "template",
            "strategy",
            "minReadySeconds",
            "revisionHistoryLimit",
            "progressDeadlineSeconds",
            "paused",
        ],
    )?;
    default(spec, "replicas", json!(1));
    default(spec, "revisionHistoryLimit", json!(10));
    default(spec, "progressDeadlineSeconds", json!(600));
    default(spec, "strategy", json!({}));
    let strategy = &mut spec["strategy"];
    default(strategy, "type", json!("RollingUpdate"));
    if strategy["type"] == "RollingUpdate" {
        default(strategy, "rollingUpdate", json!({}));
        default(
            &mut strategy["rollingUpdate"],
            "maxUnavailable",
            json!("25%"),
        );
        default(&mut strategy["rollingUpdate"], "maxSurge", json!("25%"));
    }
    default(spec, "template", json!({}));
    default(&mut spec["template"], "metadata", json!({}));
    default(&mut spec["template"], "spec", json!({}));
    let pod = &mut spec["template"]["spec"];
    known(
        pod,
        "spec.template.spec",
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
            "container",
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
                "ports",
            ],
        )?;
        default(container, "resources", json!({}));
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

fn known(value: &Value, what: &str, fields: &[&str]) -> Result<()> {
    let mut all = value.as_object().into_iter().flatten();
    match all.find(|(field, _)| !fields.contains(&field.as_str())) {
        Some((field, _)) => Err(Unknown(format!("{field} in a Deployment's {what}")).into()),
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

/// Validates the spec.
pub fn check(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut nonnegative =
        |field: &str| causes.extend(negative(&format!("spec.{field}"), &spec[field]));
    nonnegative("replicas");
    let selector = &spec["selector"];
    let matches = selector["matchLabels"].as_object();
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    } else {
        causes.extend(metadata::check_labels(
            "spec.selector.matchLabels",
            &selector["matchLabels"],
        ));
        if matches.is_none_or(serde_json::Map::is_empty) && selector["matchExpressions"].is_null() {
            causes.push(Cause::invalid(
                "spec.selector",
                selector,
                "empty selector is invalid for deployment",
            ));
        }
    }
    let template = &spec["template"];
    let labels = &template["metadata"]["labels"];
    // A missing selector selects nothing, an empty selector everything.
    let selects = !selector.is_null()
        && matches
            .into_iter()
            .flatten()
            .all(|(name, value)| labels[name] == *value);
    // With an empty selector, the template is not validated.
    let empty = !selector.is_null() && matches.is_none_or(serde_json::Map::is_empty);
    if !empty {
        if !selects {
            causes.push(Cause::invalid(
                "spec.template.metadata.labels",
                labels,
                "`selector` does not match template `labels`",
            ));
        }
        causes.extend(check_template(template));
    }
    let strategy = &spec["strategy"];
    // A patch that changes only the type leaves this behind.
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        causes.push(Cause {
            field: "spec.strategy.rollingUpdate".to_owned(),
            reason: "FieldValueForbidden",
            message: "Forbidden: may not be specified when strategy `type` is 'Recreate'"
                .to_owned(),
        });
    }
    for field in [
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        causes.extend(negative(&format!("spec.{field}"), &spec[field]));
    }
    causes
}

fn check_template(template: &Value) -> Vec<Cause> {
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
    }
    if template["spec"]["restartPolicy"] != "Always" {
        causes.push(Cause {
            field: "spec.template.spec.restartPolicy".to_owned(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {}: supported values: \"Always\"",
                template["spec"]["restartPolicy"]
            ),
        });
    }
    causes
}

fn negative(field: &str, value: &Value) -> Option<Cause> {
    let number = value.as_i64().filter(|number| *number < 0)?;
    Some(Cause::invalid(
        field,
        number,
        "must be greater than or equal to 0",
    ))
}

/// Validates the status.
pub fn check_status(status: &Value) -> Vec<Cause> {
    const COUNTS: [&str; 6] = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    ];
    let name = |field: &str| format!("status.{field}");
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let mut causes: Vec<_> = COUNTS
        .into_iter()
        .filter_map(|field| negative(&name(field), &status[field]))
        .collect();
    for field in ["updatedReplicas", "readyReplicas", "availableReplicas"] {
        if count(field) > count("replicas") {
            causes.push(Cause::invalid(
                &name(field),
                count(field),
                "cannot be greater than status.replicas",
            ));
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let why = "cannot be greater than readyReplicas";
        causes.push(Cause::invalid(
            "status.availableReplicas",
            count("availableReplicas"),
            why,
        ));
    }
    causes
}
