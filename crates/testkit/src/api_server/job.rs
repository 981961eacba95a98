//! Defaults and validation of Jobs. A change of the spec or of the status is not modelled.

use serde_json::{Value, json};

use super::{
    Release,
    pods::{check_template, default, fill_template, known, negative, one_of},
    request::Unknown,
    status::{Cause, Result},
};

/// Sets the defaults of the API server. Fails for fields with unknown defaults, instead of guessing.
pub fn fill(object: &mut Value) -> Result<()> {
    let spec = &mut object["spec"];
    known(
        spec,
        "a Job's spec",
        &[
            "template",
            "selector",
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
            "completionMode",
            "suspend",
            "manualSelector",
            "podReplacementPolicy",
        ],
    )?;
    // These are pointers: an empty text is not a missing one.
    for (field, texts) in [
        ("completionMode", &["NonIndexed"][..]),
        ("podReplacementPolicy", &["TerminatingOrFailed", "Failed"]),
    ] {
        if !spec[field].is_null() {
            one_of(spec, field, texts)?;
        }
    }
    if spec["parallelism"].is_null() {
        default(spec, "completions", json!(1));
    }
    default(spec, "parallelism", json!(1));
    default(spec, "backoffLimit", json!(6));
    default(spec, "completionMode", json!("NonIndexed"));
    default(spec, "suspend", json!(false));
    default(spec, "manualSelector", json!(false));
    default(spec, "podReplacementPolicy", json!("TerminatingOrFailed"));
    fill_template(spec)?;
    // A new Job has no selector yet.
    if spec["selector"].is_object() {
        fill_labels(object);
    }
    Ok(())
}

fn has_labels(labels: &Value) -> bool {
    labels.as_object().is_some_and(|all| !all.is_empty())
}

/// A Job without labels has the labels of its pods.
pub fn fill_labels(object: &mut Value) {
    let labels = &object["spec"]["template"]["metadata"]["labels"];
    if has_labels(labels) && !has_labels(&object["metadata"]["labels"]) {
        object["metadata"]["labels"] = labels.clone();
    }
}

/// Returns whether the labels of a new Job are stored. Otherwise, each read adds them.
pub fn stores_labels(object: &Value) -> bool {
    let labels = object["metadata"]["labels"].as_object();
    let is_generated = |name: &String| name.contains("controller-uid") || name.contains("job-name");
    labels.is_some_and(|all| !all.keys().all(is_generated))
}

/// Selects the pods of a new Job by its UID.
pub fn prepare_new(object: &mut Value) {
    // The default labels and the labels of the pods are the same map in the API server's memory.
    let labels = &object["spec"]["template"]["metadata"]["labels"];
    let is_shared = has_labels(labels) && !has_labels(&object["metadata"]["labels"]);
    let metadata = &object["metadata"];
    let (name, uid) = (metadata["name"].clone(), metadata["uid"].clone());
    object["status"] = json!({});
    let spec = &mut object["spec"];
    spec["selector"] = json!({ "matchLabels": { "batch.kubernetes.io/controller-uid": uid } });
    let labels = &mut spec["template"]["metadata"]["labels"];
    for prefix in ["", "batch.kubernetes.io/"] {
        labels[format!("{prefix}controller-uid")] = uid.clone();
        labels[format!("{prefix}job-name")] = name.clone();
    }
    if is_shared {
        fill_labels(object);
    }
}

/// Validates a new Job.
pub fn check(object: &Value, release: Release) -> Result<Vec<Cause>> {
    const NUMBERS: [&str; 5] = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ];
    let (spec, template) = (&object["spec"], &object["spec"]["template"]);
    let numbers = NUMBERS.into_iter();
    let numbers = numbers.filter_map(|field| negative(&format!("spec.{field}"), &spec[field]));
    let mut causes: Vec<_> = numbers.collect();
    causes.extend(check_template(template, release)?);
    let (field, policy) = (
        "spec.template.spec.restartPolicy",
        &template["spec"]["restartPolicy"],
    );
    let valid = ["OnFailure", "Never"];
    match policy.as_str().unwrap_or_default() {
        "Always" => {
            let valid = "valid values: \"OnFailure\", \"Never\"";
            causes.push(Cause::required(field, valid));
        }
        text if valid.contains(&text) => {}
        _ => causes.push(Cause::unsupported(field, policy, &valid)),
    }
    Ok(causes)
}

/// Fails if the spec or the status changes.
pub fn known_change(new: &Value, old: &Value) -> Result<()> {
    for field in ["spec", "status"] {
        if new[field] != old[field] {
            return Err(Unknown(format!("a change of the {field} of a Job")).into());
        }
    }
    Ok(())
}
