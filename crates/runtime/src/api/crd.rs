//! A CRD with several versions.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{ResourceExt as _, core::crd::merge_crds};
use serde_json::{Map, Value};

/// Merges the CRDs of the versions of one resource type into one, for the command `crd`. The API server stores the objects in
/// the version `stored`, which the controller reads, and serves all versions.
///
/// The API server does not convert the objects (`spec.conversion.strategy: None`). It changes `apiVersion`, and removes the
/// fields that the schema of the requested version lacks. A client that updates or patches an object in that version would
/// delete these fields. So all versions must have the same fields of the same types. Defaults, validation, descriptions and
/// columns may differ. [`converted`](crate::crd::converted) is for all other versions. Source: Kubernetes documentation,
/// "Versions in `CustomResourceDefinitions`".
///
/// When objects are no longer used in a former version, run the command `migrate` of the program that contains both versions.
/// Then the former version can be removed.
///
/// # Panics
///
/// - If the CRDs are not of the same resource type, or none has the version `stored`.
/// - If a field is in one version only, or has another type in another version. The message names the field.
///
/// A unit test that calls the same function as `main` finds both.
#[must_use]
pub fn versions(
    stored: &str,
    crds: impl IntoIterator<Item = CustomResourceDefinition>,
) -> CustomResourceDefinition {
    let crd = merged(stored, crds.into_iter().collect());
    let schemas = crd.spec.versions.iter().map(|version| {
        let schema = version.schema.as_ref();
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = serde_json::to_value(schema).unwrap_or_default();
        (&*version.name, schema)
    });
    let schemas: Vec<_> = schemas.collect();
    for (other, schema) in &schemas[1..] {
        let (stored, stored_schema) = &schemas[0];
        let differs = disagreement("", (stored, stored_schema), (other, schema));
        assert!(
            differs.is_none(),
            "{}: {}: without a conversion webhook (crd::converted), all versions must have the same fields, or a client of one \
             version removes the fields of another",
            crd.name_any(),
            differs.unwrap_or_default()
        );
    }
    crd
}

/// Merges the CRDs of the versions of one resource type into one.
pub(super) fn merged(
    stored: &str,
    crds: Vec<CustomResourceDefinition>,
) -> CustomResourceDefinition {
    let names: BTreeSet<_> = crds
        .iter()
        .map(CustomResourceDefinition::name_any)
        .collect();
    assert!(
        names.len() <= 1,
        "versions of different resource types: {names:?}"
    );
    merge_crds(crds, stored).expect("versions of one resource type")
}

/// Returns the first difference that the API server would resolve by removing a field: its path, and how it differs.
fn disagreement(
    path: &str,
    (one, a): (&str, &Value),
    (other, b): (&str, &Value),
) -> Option<String> {
    let field = path.trim_start_matches('.');
    for same in ["type", "x-kubernetes-preserve-unknown-fields"] {
        if a[same] != b[same] {
            return Some(format!(
                "{field} has another {same} in {one} than in {other}"
            ));
        }
    }
    for (below, place) in [("items", "[]"), ("additionalProperties", "[*]")] {
        let (a, b) = (&a[below], &b[below]);
        if a.is_object() && b.is_object() {
            let found = disagreement(&format!("{path}{place}"), (one, a), (other, b));
            if found.is_some() {
                return found;
            }
        } else if a != b {
            return Some(format!(
                "{field} has other {below} in {one} than in {other}"
            ));
        }
    }
    let none = Map::new();
    let [a, b] = [a, b].map(|schema| schema["properties"].as_object().unwrap_or(&none));
    let fields: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    fields.into_iter().find_map(|name| {
        let path = format!("{path}.{name}");
        match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) => disagreement(&path, (one, a), (other, b)),
            (a, _) => {
                let only = if a.is_some() { one } else { other };
                Some(format!(
                    "{} is in {only} only",
                    path.trim_start_matches('.')
                ))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::panic::catch_unwind;

    use serde_json::json;

    use super::*;

    fn crd(version: &str, spec: &Value) -> CustomResourceDefinition {
        let status = json!({ "type": "object", "properties": { "ready": { "type": "boolean" } } });
        let schema = json!({ "type": "object", "properties": { "spec": spec, "status": status } });
        let crd = json!({
            "metadata": { "name": "jobs.example.com" },
            "spec": {
                "group": "example.com",
                "names": { "kind": "Job", "plural": "jobs" },
                "scope": "Namespaced",
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": { "openAPIV3Schema": schema },
                }],
            },
        });
        serde_json::from_value(crd).unwrap()
    }

    fn object(properties: &Value) -> Value {
        json!({ "type": "object", "properties": properties })
    }

    #[test]
    fn one_version_is_stored_and_all_are_served() {
        let former = object(&json!({ "size": { "type": "integer", "maximum": 3 } }));
        let new = object(&json!({ "size": { "type": "integer", "description": "in GiB" } }));
        let merged = versions("v1", [crd("v1alpha1", &former), crd("v1", &new)]);
        let versions = merged.spec.versions.iter();
        let versions: Vec<_> = versions
            .map(|it| (&*it.name, it.served, it.storage))
            .collect();
        assert_eq!(versions, [("v1", true, true), ("v1alpha1", true, false)]);
    }

    /// Each of these schemas loses a field of the other, or of its own.
    #[test]
    fn fields_of_one_version_only_are_refused() {
        let list = |item: Value| object(&json!({ "all": { "type": "array", "items": item } }));
        let map = |value: Value| json!({ "type": "object", "additionalProperties": value });
        let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer" }));
        let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        for (former, new, expected) in [
            (
                object(&json!({})),
                object(&json!({ "a": text })),
                "spec.a is in v1 only",
            ),
            (
                object(&json!({ "a": text })),
                object(&json!({})),
                "spec.a is in v1alpha1 only",
            ),
            (
                object(&json!({ "a": text })),
                object(&json!({ "a": number })),
                "spec.a has another type in v1 than in v1alpha1",
            ),
            (
                list(object(&json!({}))),
                list(object(&json!({ "b": text }))),
                "spec.all[].b is in v1 only",
            ),
            (
                map(text.clone()),
                map(number.clone()),
                "spec[*] has another type",
            ),
            (
                object(&json!({})),
                map(text.clone()),
                "spec has other additionalProperties",
            ),
            (
                object(&json!({})),
                open,
                "spec has another x-kubernetes-preserve-unknown-fields",
            ),
        ] {
            let crds = [crd("v1alpha1", &former), crd("v1", &new)];
            let refused = catch_unwind(|| versions("v1", crds)).unwrap_err();
            let message = refused.downcast::<String>().unwrap();
            let expected = format!("jobs.example.com: {expected}");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn other_resource_types_are_refused() {
        let mut other = crd("v1", &object(&json!({})));
        other.metadata.name = Some("works.example.com".to_owned());
        let crds = [crd("v1alpha1", &object(&json!({}))), other];
        assert!(catch_unwind(|| versions("v1", crds)).is_err());
        assert!(catch_unwind(|| versions("v2", [crd("v1", &object(&json!({})))])).is_err());
    }
}
