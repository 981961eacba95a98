//! Reading of CRDs: fields that the API does not have are removed, and empty ones are omitted.

use serde_json::{Value, json};

use super::super::schema::store_numbers;

/// Fields of a schema whose content is any JSON.
const RAW: [&str; 3] = ["default", "example", "enum"];

/// Completes a CRD that was parsed: omits empty fields as Go does, and sets the defaults.
pub fn complete(definition: &mut Value) {
    let spec = &mut definition["spec"];
    drop_empty(spec, &["preserveUnknownFields"]);
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        drop_empty(
            version,
            &["deprecated", "additionalPrinterColumns", "selectableFields"],
        );
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            tidy(schema);
            store_numbers(schema);
        }
        let columns = version["additionalPrinterColumns"].as_array_mut();
        for column in columns.into_iter().flatten() {
            drop_empty(column, &["format", "description", "priority"]);
        }
    }
    if let Some(fields) = spec["versions"].as_array_mut() {
        for version in fields {
            let is_absent = version["additionalPrinterColumns"].is_null();
            if let Some(version) = version.as_object_mut().filter(|_| is_absent) {
                version.remove("additionalPrinterColumns");
            }
        }
    }
    let names = &mut spec["names"];
    drop_empty(names, &["singular", "listKind", "shortNames", "categories"]);
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if names["singular"].is_null() {
        names["singular"] = kind.to_lowercase().into();
    }
    if names["listKind"].is_null() && !kind.is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({ "strategy": "None" });
    }
}

/// Removes fields that are empty.
fn drop_empty(object: &mut Value, fields: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|field, value| !fields.contains(&field.as_str()) || !is_empty(value));
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(true) => false,
    }
}

/// Removes the empty fields of a schema. Bounds of 0 and `additionalProperties: false` stay.
fn tidy(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    fields.retain(|field, value| {
        let is_kept = RAW.contains(&field.as_str()) && field != "enum"
            || value.is_number()
            || matches!(
                field.as_str(),
                "additionalProperties"
                    | "items"
                    | "not"
                    | "x-kubernetes-preserve-unknown-fields"
                    | "x-kubernetes-list-type"
                    | "x-kubernetes-map-type"
            );
        is_kept || !is_empty(value)
    });
    for (field, value) in fields {
        match (field.as_str(), value) {
            ("properties" | "definitions" | "patternProperties", Value::Object(all)) => {
                all.values_mut().for_each(tidy);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter_mut().for_each(tidy),
            ("items" | "not" | "additionalProperties", schema) => tidy(schema),
            ("x-kubernetes-validations", Value::Array(all)) => {
                for rule in all {
                    drop_empty(rule, &["message", "messageExpression", "fieldPath"]);
                }
            }
            _ => {}
        }
    }
}
