//! Validation of resources and claims.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Release,
    at::{At, Errors},
    containers::Pod,
};
use crate::api_server::{metadata, quantity::Quantity};

/// Validates the claims of the pod for devices. Returns their names.
pub fn check_claims<'a>(spec: &At<'a>, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for claim in spec.list("resourceClaims") {
        errors.since(Release::V1_34, &claim);
        let name = claim.child("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else if names.insert(name.text()) {
            errors.label(&name);
        } else {
            errors.duplicate(&name.path, name.text());
        }
        let of = ["resourceClaimName", "resourceClaimTemplateName"].map(|field| claim.get(field));
        errors.legal(of.iter().flatten().count() == 1, &claim);
        for name in of.iter().flatten() {
            errors.subdomain(name);
        }
    }
    names
}

/// Validates the name of a resource of a container.
pub fn check_resource_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    let is_standard = matches!(name, "cpu" | "memory" | "ephemeral-storage");
    let is_extended = name.split_once('/').is_some_and(|(domain, _)| {
        !domain.contains("kubernetes.io")
            && !name.starts_with("requests.")
            && metadata::check_qualified("", &format!("requests.{name}")).is_empty()
    });
    errors.legal(is_standard || is_extended, at);
}

/// Validates the name of a resource of a pod.
fn check_pod_resource_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    errors.legal(matches!(name, "cpu" | "memory"), at);
}

/// Validates quantities of resources.
pub fn check_resources(
    resources: &At<'_>,
    check_name: fn(&str, &At<'_>, &mut Errors),
    errors: &mut Errors,
) {
    let limits = resources.child("limits");
    for list in ["limits", "requests"] {
        for (name, at) in resources.map(list) {
            check_name(name, &at, errors);
            let Some(quantity) = Quantity::of(at.value) else {
                continue;
            };
            if quantity.is_negative() {
                errors.invalid(&at, "must be greater than or equal to 0");
            }
            let is_extended = name.contains('/');
            if is_extended && !quantity.is_whole() {
                errors.invalid(&at, "must be an integer");
            }
            if list == "limits" {
                continue;
            }
            let limit = limits.value.get(name);
            let order = limit
                .and_then(Quantity::of)
                .map(|limit| quantity.compare(&limit));
            let limit = limit.and_then(Value::as_str).unwrap_or_default();
            let list = At::new(&format!("{}.requests", resources.path), at.value);
            match order {
                Some(order) if is_extended && order.is_ne() => {
                    errors.invalid(&list, &format!("must be equal to {name} limit of {limit}"));
                }
                Some(order) if order.is_gt() => {
                    let why = format!("must be less than or equal to {name} limit of {limit}");
                    errors.invalid(&list, &why);
                }
                None if is_extended => {
                    errors.required(
                        &limits,
                        "Limit must be set for non overcommitable resources",
                    );
                }
                _ => {}
            }
        }
    }
}

/// Validates the resources of the pod itself. A pod whose containers have resources, too, is not modelled.
pub fn check_pod_resources(spec: &At<'_>, errors: &mut Errors) {
    let Some(resources) = spec.get("resources") else {
        return;
    };
    errors.since(Release::V1_34, &resources);
    errors.legal(resources.child("claims").is_empty(), &resources);
    check_resources(&resources, check_pod_resource_name, errors);
    let all = spec.list("containers").chain(spec.list("initContainers"));
    for container in all {
        let own = container.child("resources");
        let is_empty = own.value.as_object().is_none_or(serde_json::Map::is_empty);
        errors.legal(is_empty, &own);
    }
}

pub fn check_overhead(spec: &At<'_>, errors: &mut Errors) {
    let Some(overhead) = spec.get("overhead") else {
        return;
    };
    for (name, value) in overhead.value.as_object().into_iter().flatten() {
        // As the API server has it, this is the list of limits of a container.
        let at = At::new(&format!("{}.limits[{name}]", overhead.path), value);
        check_resource_name(name, &at, errors);
        errors.legal(!name.contains('/'), &at);
        if Quantity::of(value).is_some_and(|it| it.is_negative()) {
            errors.invalid(&at, "must be greater than or equal to 0");
        }
    }
}

pub fn check_claim_names(resources: &At<'_>, claims: &BTreeSet<&str>, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for claim in resources.list("claims") {
        errors.since(Release::V1_34, &claim);
        let name = At::new(&claim.path, &claim.value["name"]);
        if name.is_empty() {
            errors.required(&name, "");
            continue;
        }
        if !names.insert(name.text()) {
            errors.duplicate(&name.path, name.text());
        }
        errors.legal(claim.child("request").is_empty(), &claim);
        if !claims.contains(name.text()) {
            let all = claims.iter().copied().collect::<Vec<_>>();
            let more = match all.join(", ") {
                all if all.is_empty() => " which is empty".to_owned(),
                all => format!(": {all}"),
            };
            let why = format!("must be one of the names in pod.spec.resourceClaims{more}");
            errors.not_found(&name, &why);
        }
    }
}

pub fn check_resizes(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let all = container.child("resizePolicy");
    let mut names = BTreeSet::new();
    for policy in container.list("resizePolicy") {
        // As the API server has it, these paths have no index.
        let part = |field: &str| At::new(&all.path, &policy.value[field]);
        let (name, restart) = (part("resourceName"), part("restartPolicy"));
        if !names.insert(name.text()) {
            errors.duplicate(&policy.path, name.text());
        }
        for (at, texts) in [
            (&name, ["cpu", "memory"]),
            (&restart, ["NotRequired", "RestartContainer"]),
        ] {
            if at.is_empty() {
                errors.required(at, "");
            } else {
                errors.supported(at, &texts);
            }
        }
        if pod.spec.value["restartPolicy"] == "Never" && restart.text() != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid_as(&all.path, restart.text(), why);
        }
    }
}
