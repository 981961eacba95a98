//! CRDs that the API server rejects, for the comparison with real API servers.

use serde_json::{Value, json};

/// Returns a valid CRD.
fn base() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.testkit.example.com" },
        "spec": {
            "group": "testkit.example.com", "scope": "Namespaced", "names": { "kind": "Thing", "plural": "things" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": { "type": "object", "properties": { "a": { "type": "integer" } } } },
                } },
            }],
        },
    })
}

/// Paths that begin in the `spec` of the CRD.
const SPEC: &str = "/spec";
const VERSION: &str = "/spec/versions/0";
const ROOT: &str = "/spec/versions/0/schema/openAPIV3Schema";
const FIELD: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a";

/// Returns the valid CRD, and CRDs that differ from it in one field. Most are invalid.
#[must_use]
#[allow(clippy::too_many_lines, reason = "a list")]
pub fn definitions() -> Vec<Value> {
    let list = |more: Value| {
        let mut list = json!({ "type": "array", "items": { "type": "object", "properties": { "k": { "type": "string" } } } });
        json_patch::merge(&mut list, &more);
        list
    };
    let rule = |rule: Value| json!({ "type": "integer", "x-kubernetes-validations": [rule] });
    let changes = [
        (SPEC, "group", json!("")),
        (SPEC, "group", json!("example")),
        (SPEC, "group", json!("Example.com")),
        (SPEC, "scope", json!("Everywhere")),
        (SPEC, "scope", json!("Cluster")),
        (
            SPEC,
            "names",
            json!({ "kind": "Thing", "plural": "others" }),
        ),
        (
            SPEC,
            "names",
            json!({ "kind": "Thing", "plural": "Things" }),
        ),
        (
            SPEC,
            "names",
            json!({ "kind": "1Thing", "plural": "things" }),
        ),
        (
            SPEC,
            "names",
            json!({ "kind": "Thing", "plural": "things", "listKind": "Thing" }),
        ),
        (
            SPEC,
            "names",
            json!({ "kind": "Thing", "plural": "things", "shortNames": ["A", "ok"], "categories": ["all"] }),
        ),
        (SPEC, "conversion", json!({ "strategy": "Magic" })),
        (VERSION, "name", json!("V1")),
        (VERSION, "storage", json!(false)),
        (VERSION, "served", json!(false)),
        (VERSION, "deprecationWarning", json!("old")),
        (VERSION, "schema", json!(null)),
        (VERSION, "subresources", json!({ "status": {} })),
        (
            VERSION,
            "subresources",
            json!({ "scale": { "specReplicasPath": "spec.x", "statusReplicasPath": ".spec.x" } }),
        ),
        (
            VERSION,
            "subresources",
            json!({ "scale": { "specReplicasPath": "", "statusReplicasPath": ".status.x", "labelSelectorPath": ".x" } }),
        ),
        (
            VERSION,
            "additionalPrinterColumns",
            json!([{ "name": "A", "type": "text", "jsonPath": "spec.a" }, { "name": "", "type": "", "jsonPath": "" }]),
        ),
        (ROOT, "type", json!("string")),
        (ROOT, "type", json!(null)),
        (ROOT, "nullable", json!(true)),
        (ROOT, "additionalProperties", json!({ "type": "string" })),
        (
            ROOT,
            "properties",
            json!({ "metadata": { "type": "object", "properties": { "labels": { "type": "object" } } } }),
        ),
        (
            ROOT,
            "properties",
            json!({ "metadata": { "type": "object", "properties": { "name": { "type": "string", "maxLength": 5 } } } }),
        ),
        (ROOT, "properties", json!({ "kind": { "type": "integer" } })),
        (FIELD, "type", json!(null)),
        (FIELD, "type", json!("number")),
        (FIELD, "type", json!("decimal")),
        (FIELD, "type", json!("array")),
        (FIELD, "default", json!("x")),
        (FIELD, "default", json!(5)),
        (FIELD, "pattern", json!("(")),
        (FIELD, "uniqueItems", json!(true)),
        (FIELD, "nullable", json!(true)),
        (FIELD, "anyOf", json!([{ "type": "integer" }])),
        (FIELD, "anyOf", json!([{ "minimum": 1 }, { "default": 3 }])),
        (
            FIELD,
            "allOf",
            json!([{ "properties": { "x": { "minimum": 1 } } }]),
        ),
        (
            FIELD,
            "not",
            json!({ "nullable": true, "description": "no" }),
        ),
        (FIELD, "x-kubernetes-int-or-string", json!(true)),
        (FIELD, "x-kubernetes-preserve-unknown-fields", json!(false)),
        (FIELD, "x-kubernetes-embedded-resource", json!(true)),
        (FIELD, "x-kubernetes-list-type", json!("set")),
        (FIELD, "x-kubernetes-map-type", json!("atomic")),
        (
            FIELD,
            "",
            json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
        ),
        (
            FIELD,
            "",
            json!({ "x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true }),
        ),
        (
            FIELD,
            "",
            json!({ "type": "object", "x-kubernetes-embedded-resource": true }),
        ),
        (
            FIELD,
            "",
            json!({ "type": "object", "properties": { "x": { "type": "string" } }, "additionalProperties": { "type": "string" } }),
        ),
        (
            FIELD,
            "",
            json!({ "type": "object", "properties": { "x": { "type": "string" } }, "default": { "y": 1 } }),
        ),
        (FIELD, "", list(json!({ "x-kubernetes-list-type": "map" }))),
        (
            FIELD,
            "",
            list(json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"] })),
        ),
        (
            FIELD,
            "",
            list(
                json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "z", "k"] }),
            ),
        ),
        (
            FIELD,
            "",
            list(
                json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": { "required": ["k"] } }),
            ),
        ),
        (FIELD, "", list(json!({ "x-kubernetes-list-type": "set" }))),
        (FIELD, "", list(json!({ "x-kubernetes-list-type": "bag" }))),
        (
            FIELD,
            "",
            list(json!({ "x-kubernetes-list-map-keys": ["k"] })),
        ),
        (
            FIELD,
            "",
            list(
                json!({ "items": { "type": "string", "nullable": true, "properties": null }, "x-kubernetes-list-type": "set" }),
            ),
        ),
        (FIELD, "", rule(json!({ "rule": "" }))),
        (
            FIELD,
            "",
            rule(json!({ "rule": "self > 1", "message": " " })),
        ),
        (
            FIELD,
            "",
            rule(json!({ "rule": "self > 1", "message": "two\nlines" })),
        ),
        (FIELD, "", rule(json!({ "rule": "self\n> 1" }))),
        (
            FIELD,
            "",
            rule(json!({ "rule": "self > 1", "reason": "FieldValueOdd" })),
        ),
        (
            FIELD,
            "",
            rule(json!({ "rule": "self > 1", "fieldPath": ".x" })),
        ),
        (
            FIELD,
            "",
            rule(json!({ "rule": "self > 1", "messageExpression": " " })),
        ),
        (
            FIELD,
            "",
            rule(
                json!({ "rule": "self > 1", "reason": "FieldValueRequired", "message": "too small" }),
            ),
        ),
    ];
    let crds = changes.into_iter().map(|(place, field, value)| {
        let mut crd = base();
        if let Some(place) = crd.pointer_mut(place) {
            match field {
                "" => *place = value,
                field if value.is_null() => {
                    drop(place.as_object_mut().map(|fields| fields.remove(field)));
                }
                field => place[field] = value,
            }
        }
        crd
    });
    let mut twice = base();
    twice["spec"]["versions"] = json!([twice["spec"]["versions"][0], twice["spec"]["versions"][0]]);
    [base(), twice].into_iter().chain(crds).collect()
}
