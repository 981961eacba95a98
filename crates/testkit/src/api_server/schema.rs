//! Custom resources, as their CRDs specify them.

use serde_json::Value;

use super::{metadata, request::Part, status::Cause};

pub fn schema_of(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// Removes unknown fields, and nulls that the schema does not allow.
pub fn prune(object: &mut Value, schema: &Value) {
    prune_below(object, schema, true);
}

fn prune_below(value: &mut Value, schema: &Value, root: bool) {
    match value {
        Value::Object(fields) => {
            let known = &schema["properties"];
            let always = |field: &str| root && matches!(field, "apiVersion" | "kind" | "metadata");
            let fits = |value: &Value, schema: &Value| {
                !value.is_null() || schema["nullable"] == true || !schema["default"].is_null()
            };
            fields.retain(|field, value| {
                let schema = known.get(field);
                always(field) || schema.is_some_and(|schema| fits(value, schema))
            });
            for (field, value) in fields {
                if let Some(schema) = known.get(field) {
                    prune_below(value, schema, false);
                }
            }
        }
        Value::Array(all) => {
            for value in all {
                prune_below(value, &schema["items"], false);
            }
        }
        _ => {}
    }
}

/// Sets the defaults.
pub fn fill(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                let default = &schema["default"];
                let is_missing = match fields.get(field) {
                    None => true,
                    Some(value) => value.is_null() && schema["nullable"] != true,
                };
                if is_missing && !default.is_null() {
                    fields.insert(field.clone(), default.clone());
                }
                if let Some(value) = fields.get_mut(field) {
                    fill(value, schema);
                }
            }
        }
        Value::Array(all) => {
            for value in all {
                fill(value, &schema["items"]);
            }
        }
        _ => {}
    }
}

/// Validates an object, except for values that are unchanged since `old`.
pub fn check(new: &Value, old: Option<&Value>, schema: &Value, part: Part) -> Vec<Cause> {
    let mut causes = Vec::new();
    if part == Part::Status {
        // Errors name fields within the status.
        let old = old.and_then(|old| old.get("status"));
        let schema = &schema["properties"]["status"];
        check_value(&new["status"], old, schema, "", &mut causes);
        for cause in causes.iter_mut().filter(|cause| cause.field != "<nil>") {
            cause.field = join("status", &cause.field);
        }
    } else {
        check_value(new, old, schema, "", &mut causes);
        causes.extend(check_scale(new));
    }
    check_unique(new, old, schema, "", &mut causes);
    let blocking = |cause: &Cause| {
        matches!(
            cause.reason,
            "FieldValueRequired"
                | "FieldValueTooLong"
                | "FieldValueTooMany"
                | "FieldValueTypeInvalid"
        )
    };
    if causes.iter().any(blocking) || metadata::check(&new["metadata"], true).iter().any(blocking) {
        causes.push(Cause::invalid(
            "<nil>",
            "null",
            "some validation rules were not checked because the object was invalid; correct the existing errors to \
             complete validation",
        ));
    } else {
        check_rules(new, old, schema, "", &mut causes);
    }
    causes
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_value(
    new: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    if old == Some(new) || new.is_null() {
        return;
    }
    let (is, wanted) = (type_of(new), schema["type"].as_str().unwrap_or_default());
    if is == "number" && wanted == "integer" {
        let why = format!("Checked value must be of type integer with format int32 in {path}");
        causes.push(Cause::invalid("<nil>", "\"\"", &why));
        let why = format!("{path} in body must be of type int32: \"float64\"");
        causes.push(Cause {
            reason: "FieldValueTypeInvalid",
            ..Cause::invalid(path, "\"float64\"", &why)
        });
        return;
    }
    if is != wanted {
        causes.push(Cause {
            reason: "FieldValueTypeInvalid",
            ..Cause::invalid(
                path,
                format!("{is:?}"),
                &format!("{path} in body must be of type {wanted}: {is:?}"),
            )
        });
        return;
    }
    match new {
        Value::Object(fields) => {
            for required in schema["required"].as_array().into_iter().flatten() {
                // A null that is not allowed counts as missing.
                if let Some(field) = required.as_str()
                    && !fields.get(field).is_some_and(|value| {
                        !value.is_null() || schema["properties"][field]["nullable"] == true
                    })
                {
                    causes.push(Cause::required(&join(path, field), ""));
                }
            }
            for (field, value) in fields {
                if let Some(schema) = schema["properties"].get(field) {
                    let old = old.and_then(|old| old.get(field));
                    check_value(value, old, schema, &join(path, field), causes);
                }
            }
        }
        Value::Array(all) => {
            for (at, value) in all.iter().enumerate() {
                let old = correlated(value, old, schema);
                check_value(
                    value,
                    old,
                    &schema["items"],
                    &format!("{path}[{at}]"),
                    causes,
                );
            }
        }
        Value::String(text) => {
            if let Some(most) = schema["maxLength"].as_u64()
                && text.chars().count() as u64 > most
            {
                causes.push(Cause {
                    field: path.to_owned(),
                    reason: "FieldValueTooLong",
                    message: format!("Too long: may not be more than {most} bytes"),
                });
            }
            if schema["format"] == "date-time"
                && text.parse::<k8s_openapi::jiff::Timestamp>().is_err()
            {
                let why = format!("{path} in body must be of type date-time: {text:?}");
                causes.push(Cause {
                    reason: "FieldValueTypeInvalid",
                    ..Cause::invalid(path, format!("{text:?}"), &why)
                });
            }
        }
        Value::Number(number) => check_number(number, schema, path, causes),
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_number(number: &serde_json::Number, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(number) = number.as_i64() else {
        return;
    };
    if schema["format"] == "int32" && i32::try_from(number).is_err() {
        let why = format!("Checked value must be of type integer with format int32 in {path}");
        causes.push(Cause::invalid("<nil>", "\"\"", &why));
    }
    #[allow(
        clippy::cast_possible_truncation,
        reason = "bounds are small whole numbers"
    )]
    let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
    if let Some(least) = bound("minimum")
        && number < least
    {
        let why = format!("{path} in body should be greater than or equal to {least}");
        causes.push(Cause::invalid(path, number, &why));
    }
    if let Some(most) = bound("maximum")
        && number > most
    {
        let why = format!("{path} in body should be less than or equal to {most}");
        causes.push(Cause::invalid(path, number, &why));
    }
}

/// Returns the old element with the same keys.
fn correlated<'a>(value: &Value, old: Option<&'a Value>, schema: &Value) -> Option<&'a Value> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array()?;
    let same = |old: &&Value| {
        keys.iter()
            .filter_map(Value::as_str)
            .all(|key| old[key] == value[key])
    };
    old?.as_array()?.iter().find(same)
}

/// Checks that the keys of a list of type `map` are unique.
fn check_unique(
    new: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    match new {
        Value::Object(fields) => {
            for (field, value) in fields {
                if let Some(schema) = schema["properties"].get(field) {
                    let old = old.and_then(|old| old.get(field));
                    check_unique(value, old, schema, &join(path, field), causes);
                }
            }
        }
        Value::Array(all) if schema["x-kubernetes-list-type"] == "map" => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let key = |value: &Value| -> Value {
                let names = keys.into_iter().flatten().filter_map(Value::as_str);
                names
                    .map(|name| (name.to_owned(), value[name].clone()))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            for (at, value) in all.iter().enumerate() {
                if all[..at].iter().any(|before| key(before) == key(value)) {
                    causes.push(Cause {
                        field: format!("{path}[{at}]"),
                        reason: "FieldValueDuplicate",
                        message: format!("Duplicate value: {}", key(value)),
                    });
                }
            }
        }
        _ => {}
    }
}

/// Largest int32.
const MAX: i64 = i32::MAX as i64;

/// Validates the fields of the scale subresource.
fn check_scale(new: &Value) -> Option<Cause> {
    let spec = new.get("spec").filter(|spec| !spec.is_null())?;
    let (value, wanted) = match spec {
        Value::Object(fields) => (fields.get("replicas")?, "int64"),
        other => (other, "map[string]interface{}"),
    };
    if let Some(number) = value.as_i64() {
        let words = match number {
            ..0 => "should be a non-negative integer",
            0..=MAX => return None,
            _ => "should be less than or equal to 2147483647",
        };
        return Some(Cause::invalid(".spec.replicas", number, words));
    }
    // As Go formats them.
    let (shown, is) = match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(is) => (is.to_string(), "bool"),
        Value::Number(number) => (number.to_string(), "float64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => ("[]".to_owned(), "[]interface {}"),
        Value::Object(_) => ("map[]".to_owned(), "map[string]interface {}"),
    };
    let why =
        format!(".spec.replicas accessor error: {shown} is of the type {is}, expected {wanted}");
    Some(Cause::invalid(".spec.replicas", 0, &why))
}

/// Checks the CEL rules of the schema.
fn check_rules(
    new: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    if old == Some(new) {
        return;
    }
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let text = rule["rule"].as_str().unwrap_or_default();
        if !holds(text, new) {
            let (field, shown) = match new {
                Value::Object(_) => ("<nil>".to_owned(), String::new()),
                other => (path.to_owned(), format!("{other}: ")),
            };
            let message = rule["message"].as_str().unwrap_or_default();
            causes.push(Cause {
                field,
                reason: "FieldValueInvalid",
                message: format!("Invalid value: {shown}{message}"),
            });
        }
    }
    for (field, value) in new.as_object().into_iter().flatten() {
        if let Some(schema) = schema["properties"].get(field) {
            let old = old.and_then(|old| old.get(field));
            check_rules(value, old, schema, &join(path, field), causes);
        }
    }
}

/// Evaluates a CEL rule. There is no interpreter: the known rules are recognized by their text.
fn holds(rule: &str, value: &Value) -> bool {
    match rule
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .as_str()
    {
        "self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')" =>
        {
            let name = value.as_str().unwrap_or_default();
            name.is_empty() || metadata::is_subdomain(name)
        }
        "self.metadata.name.size() <= 63" => {
            let name = value["metadata"]["name"].as_str();
            name.is_none_or(|name| name.chars().count() <= 63)
        }
        other => panic!("the rule `{other}` of a CRD is to be written down here, too"),
    }
}
