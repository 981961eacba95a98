//! Validation of a pod's scheduling: affinities, tolerations, spread constraints.

use std::collections::BTreeSet;

use super::{
    Release,
    at::{At, Errors},
};
use crate::api_server::metadata;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates the affinities.
pub fn check_affinity(spec: &At<'_>, errors: &mut Errors) {
    let affinity = spec.child("affinity");
    if let Some(nodes) = affinity.get("nodeAffinity") {
        if let Some(required) = nodes.get(REQUIRED) {
            let terms = required.child("nodeSelectorTerms");
            if terms.is_empty() {
                errors.required(&terms, "must have at least one node selector term");
            }
            for term in required.list("nodeSelectorTerms") {
                check_node_term(&term, true, errors);
            }
        }
        for preferred in nodes.list(PREFERRED) {
            check_weight(&preferred, errors);
            check_node_term(&preferred.child("preference"), false, errors);
        }
    }
    for pods in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.child(pods);
        for term in pods.list(REQUIRED) {
            check_pod_term(&term, errors);
        }
        for preferred in pods.list(PREFERRED) {
            check_weight(&preferred, errors);
            check_pod_term(&preferred.child("podAffinityTerm"), errors);
        }
    }
}

fn check_weight(preferred: &At<'_>, errors: &mut Errors) {
    let weight = preferred.child("weight");
    if !(1..=100).contains(&weight.number()) {
        errors.invalid_number(&weight, "must be in the range 1-100");
    }
}

/// Validates a term for nodes. The API server validates only values that are `strict`, and [warns](super::warnings) of others.
fn check_node_term(term: &At<'_>, strict: bool, errors: &mut Errors) {
    for rule in term.list("matchExpressions") {
        check_expression(&rule, true, errors);
        let (operator, values) = (rule.child("operator"), rule.child("values"));
        let count = values.value.as_array().map_or(0, Vec::len);
        if matches!(operator.text(), "Gt" | "Lt") && count != 1 {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(&values, why);
        }
        for value in rule.list("values").filter(|_| strict) {
            let wrong = metadata::check_label_value(&value.path, value.text());
            errors.causes.extend(wrong);
        }
    }
    for rule in term.list("matchFields") {
        let (operator, values) = (rule.child("operator"), rule.child("values"));
        if matches!(operator.text(), "In" | "NotIn") {
            if values.value.as_array().map_or(0, Vec::len) != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&values, why);
            }
        } else {
            errors.invalid_as(
                &operator.path,
                operator.text(),
                "not a valid selector operator",
            );
        }
        let key = rule.child("key");
        if key.text() != "metadata.name" {
            errors.invalid_as(&key.path, key.text(), "not a valid field selector key");
            continue;
        }
        for value in rule.list("values") {
            errors.subdomain(&value);
        }
    }
}

/// Validates the operator and the key of an expression. Only labels of nodes are compared with `Gt` and `Lt`.
fn check_expression(rule: &At<'_>, is_of_nodes: bool, errors: &mut Errors) {
    let (operator, values) = (rule.child("operator"), rule.child("values"));
    match operator.text() {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.required(&values, why);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&values.path, why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if is_of_nodes => {}
        text => errors.invalid_as(&operator.path, text, "not a valid selector operator"),
    }
    errors.qualified(&rule.child("key"));
}

/// Validates a selector of labels (`ValidateLabelSelector`).
pub fn check_selector(selector: &At<'_>, errors: &mut Errors) {
    let labels = selector.child("matchLabels");
    errors
        .causes
        .extend(metadata::check_labels(&labels.path, labels.value));
    for rule in selector.list("matchExpressions") {
        check_expression(&rule, false, errors);
        for value in rule.list("values") {
            let wrong = metadata::check_label_value(&value.path, value.text());
            errors.causes.extend(wrong);
        }
    }
}

/// Validates a term for other pods.
fn check_pod_term(term: &At<'_>, errors: &mut Errors) {
    for selector in ["labelSelector", "namespaceSelector"] {
        check_selector(&term.child(selector), errors);
    }
    for name in term.list("namespaces") {
        // As the API server has it.
        let name = At::new(&format!("{}.namespace", term.path), name.value);
        errors.label(&name);
    }
    check_label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.is_empty() {
        errors.required(&key, "can not be empty");
    }
    let wrong = metadata::check_qualified(&key.path, key.text());
    errors.causes.extend(wrong);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`.
fn check_label_keys(of: &At<'_>, errors: &mut Errors) {
    let selector = of.child("labelSelector");
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = of.child(list);
        if keys.is_empty() {
            continue;
        }
        if !selector.is_there() {
            let why = "must not be specified when labelSelector is not set";
            errors.forbidden(&keys.path, why);
            continue;
        }
        for key in of.list(list) {
            errors.qualified(&key);
        }
    }
    let keys: Vec<_> = of.list("matchLabelKeys").collect();
    for rule in selector.list("matchExpressions") {
        let is_key = keys.iter().any(|it| it.value == &rule.value["key"]);
        errors.legal(!is_key, &rule);
    }
    for key in &keys {
        let mut others = of.list("mismatchLabelKeys");
        if others.any(|it| it.value == key.value) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(key, why);
        }
    }
}

/// Validates the spread constraints.
pub fn check_spread(spec: &At<'_>, errors: &mut Errors) {
    let all: Vec<_> = spec.list("topologySpreadConstraints").collect();
    for (at, constraint) in all.iter().enumerate() {
        errors.positive(&constraint.child("maxSkew"));
        let (key, action) = (
            constraint.child("topologyKey"),
            constraint.child("whenUnsatisfiable"),
        );
        if key.is_empty() {
            errors.required(&key, "can not be empty");
        }
        errors.supported(&action, &["DoNotSchedule", "ScheduleAnyway"]);
        let is_same = |other: &At<'_>| {
            other.child("topologyKey").text() == key.text()
                && other.child("whenUnsatisfiable").text() == action.text()
        };
        if all[at + 1..].iter().any(is_same) {
            let path = format!("{}.{{topologyKey, whenUnsatisfiable}}", constraint.path);
            errors.duplicate(&path, &format!("{{{}, {}}}", key.text(), action.text()));
        }
        if let Some(domains) = constraint.get("minDomains") {
            errors.positive(&domains);
            if action.text() != "DoNotSchedule" {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    action.text()
                );
                errors.invalid(&domains, &why);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = constraint.get(policy) {
                errors.supported(&policy, &["Honor", "Ignore"]);
            }
        }
        if let Some(keys) = constraint.get("matchLabelKeys") {
            errors.since(Release::V1_34, &keys);
        }
        check_label_keys(constraint, errors);
        check_selector(&constraint.child("labelSelector"), errors);
    }
}

/// Validates the tolerations.
pub fn check_tolerations(spec: &At<'_>, errors: &mut Errors) {
    for toleration in spec.list("tolerations") {
        let part = |field: &str| toleration.child(field);
        let (key, operator) = (part("key"), part("operator"));
        let (value, effect) = (part("value"), part("effect"));
        if !key.is_empty() {
            errors.qualified(&key);
        } else if operator.text() != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid_as(&operator.path, operator.text(), why);
        }
        if part("tolerationSeconds").is_there() && effect.text() != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid_as(&effect.path, effect.text(), why);
        }
        match operator.text() {
            "" | "Equal" => {
                let wrong = metadata::check_label_value(&operator.path, value.text());
                errors.legal(wrong.len() <= 1, &value);
                errors.causes.extend(wrong);
            }
            "Exists" if !value.is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.invalid_as(&operator.path, value.text(), why);
            }
            "Exists" => {}
            // A gate decides.
            "Lt" | "Gt" => errors.unknown(&operator),
            _ => errors.supported(&operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            errors.supported(&effect, &effects);
        }
    }
}

/// Validates the gates.
pub fn check_gates(spec: &At<'_>, errors: &mut Errors) {
    for gate in spec.list("readinessGates") {
        errors.qualified(&gate.child("conditionType"));
    }
    let mut names = BTreeSet::new();
    for gate in spec.list("schedulingGates") {
        let name = At::new(&gate.path, &gate.value["name"]);
        errors.qualified(&name);
        if !names.insert(name.text()) {
            errors.duplicate(&name.path, name.text());
        }
    }
}
