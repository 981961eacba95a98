//! Defaults and validation of Deployments.

use serde_json::{Map, Value, json};

use super::{
    Release,
    pods::{self, check_template, default, known, legal, negative, one_of},
    status::{Cause, Result},
};

/// Sets the defaults of the API server. Fails for fields with unknown defaults, instead of guessing.
pub fn fill(object: &mut Value) -> Result<()> {
    let spec = &mut object["spec"];
    known(
        spec,
        "a Deployment's spec",
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
    one_of(strategy, "type", &["RollingUpdate", "Recreate"])?;
    // These are pointers: an empty text is not a missing one.
    let amount = |value: &Value| match value.as_str() {
        Some(text) => {
            let digits = text.strip_suffix('%')?;
            let is_number = digits.chars().all(|c| c.is_ascii_digit());
            let percent = digits.parse().ok().filter(|percent| *percent <= 100);
            percent.filter(|_| is_number)
        }
        None => value.as_u64(),
    };
    let rolling = &strategy["rollingUpdate"];
    let fields = ["maxUnavailable", "maxSurge"];
    let is_legal = fields
        .iter()
        .all(|field| rolling[field].is_null() || amount(&rolling[field]).is_some())
        && fields
            .iter()
            .any(|field| amount(&rolling[field]) != Some(0));
    legal(is_legal, "rollingUpdate", rolling)?;
    if strategy["type"] == "RollingUpdate" {
        default(strategy, "rollingUpdate", json!({}));
        default(
            &mut strategy["rollingUpdate"],
            "maxUnavailable",
            json!("25%"),
        );
        default(&mut strategy["rollingUpdate"], "maxSurge", json!("25%"));
    }
    pods::fill_template(spec)?;
    Ok(())
}

/// Validates the spec.
pub fn check(spec: &Value, release: Release) -> Result<Vec<Cause>> {
    let mut causes = Vec::new();
    let mut nonnegative =
        |field: &str| causes.extend(negative(&format!("spec.{field}"), &spec[field]));
    nonnegative("replicas");
    let (selector, template) = (&spec["selector"], &spec["template"]);
    let wrong = pods::check_selector("spec.selector", selector);
    let is_valid = wrong.is_empty();
    causes.extend(wrong);
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    } else if is_empty(selector) {
        let why = "empty selector is invalid for deployment";
        causes.push(Cause::invalid("spec.selector", selector, why));
    }
    if is_valid {
        causes.extend(check_pods(selector, template, release)?);
    } else {
        let why = "invalid label selector";
        causes.push(Cause::invalid("spec.selector", shown(selector)?, why));
    }
    let strategy = &spec["strategy"];
    // A patch that changes only the type leaves this behind.
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        causes.push(Cause::forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        ));
    }
    for field in [
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        causes.extend(negative(&format!("spec.{field}"), &spec[field]));
    }
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    if let Some(deadline) = deadline
        && deadline <= spec["minReadySeconds"].as_i64().unwrap_or_default()
    {
        causes.push(Cause::invalid(
            "spec.progressDeadlineSeconds",
            deadline,
            "must be greater than minReadySeconds",
        ));
    }
    Ok(causes)
}

/// Validates the template (`ValidatePodTemplateSpecForReplicaSet`).
fn check_pods(selector: &Value, template: &Value, release: Release) -> Result<Vec<Cause>> {
    let mut causes = Vec::new();
    let labels = &template["metadata"]["labels"];
    if !selects(selector, labels) {
        causes.push(Cause::invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        ));
    }
    causes.extend(check_template(template, release)?);
    let pod = &template["spec"];
    let policy = &pod["restartPolicy"];
    if policy != "Always" {
        let field = "spec.template.spec.restartPolicy";
        causes.push(Cause::unsupported(field, policy, &["Always"]));
    }
    if !pod["activeDeadlineSeconds"].is_null() {
        causes.push(Cause::forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        ));
    }
    Ok(causes)
}

fn is_empty(selector: &Value) -> bool {
    let labels = selector["matchLabels"].as_object();
    labels.is_none_or(Map::is_empty) && selector["matchExpressions"].is_null()
}

/// Returns whether a valid selector selects labels. A missing one selects nothing, and an empty one everything.
fn selects(selector: &Value, labels: &Value) -> bool {
    let mut all = selector["matchLabels"].as_object().into_iter().flatten();
    let mut rules = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    !selector.is_null()
        && all.all(|(name, value)| labels[name] == *value)
        && rules.all(|rule| {
            let label = rule["key"].as_str().and_then(|key| labels.get(key));
            let mut values = rule["values"].as_array().into_iter().flatten();
            let mut has = || label.is_some_and(|label| values.any(|value| value == label));
            match rule["operator"].as_str().unwrap_or_default() {
                "In" => has(),
                "NotIn" => !has(),
                "Exists" => label.is_some(),
                _ => label.is_none(),
            }
        })
}

/// Returns a selector as in messages. Fails if it has two fields, whose order differs.
pub fn shown(selector: &Value) -> Result<&Value> {
    let fields = selector.as_object().map_or(0, Map::len);
    legal(fields < 2, "the selector", selector)?;
    Ok(selector)
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
