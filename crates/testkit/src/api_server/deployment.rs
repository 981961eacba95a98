//! Defaults and validation of Deployments.

use serde_json::{Value, json};

use super::{
    metadata,
    pod::{self, check_template, default, known, legal, negative, one_of},
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
    pod::fill_template(spec)?;
    Ok(())
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
        let policy = &template["spec"]["restartPolicy"];
        if policy != "Always" {
            causes.push(Cause {
                field: "spec.template.spec.restartPolicy".to_owned(),
                reason: "FieldValueNotSupported",
                message: format!("Unsupported value: {policy}: supported values: \"Always\""),
            });
        }
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
