//! The reference of the CRD's fields in docs/foo.md.

use std::fmt::Write as _;

use serde_json::Value;

use super::settings::between;

/// Returns `docs/foo.md` with current tables of fields.
pub fn reference(text: &str) -> String {
    between(text, "fields", &fields())
}

fn fields() -> String {
    let mut tables = String::new();
    for crd in foo_controller::crds() {
        let crd = serde_json::to_value(crd).unwrap();
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let schema = &version["schema"]["openAPIV3Schema"];
            let heading = "| field | type | limits | meaning |\n|---|---|---|---|";
            let _ = write!(tables, "\n{heading}\n");
            for part in ["spec", "status"] {
                add(&mut tables, part, &schema["properties"][part]);
            }
        }
    }
    tables + "\n"
}

/// Adds a row for each field below `path`, in the order of their names.
fn add(table: &mut String, path: &str, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = schema["required"]
            .as_array()
            .is_some_and(|all| all.contains(&name.as_str().into()));
        let items = &field["items"];
        let path = format!("{path}.{name}");
        let _ = writeln!(
            table,
            "| `{path}` | {} | {} | {} |",
            type_of(field),
            limits(field, is_required),
            meaning(field, path.contains("[]")),
        );
        add(table, &path, field);
        add(table, &format!("{path}[]"), items);
    }
}

fn type_of(field: &Value) -> String {
    let name = |schema: &Value| match (&schema["type"], &schema["format"]) {
        (Value::String(name), Value::Null) => name.clone(),
        (Value::String(_), Value::String(format)) => format.clone(),
        _ => "any".to_owned(),
    };
    match &*name(field) {
        "array" => format!("array of {}s", name(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}s", name(&field["additionalProperties"]))
        }
        other => other.to_owned(),
    }
}

/// Returns the limits of a value, as the API server validates them.
fn limits(field: &Value, is_required: bool) -> String {
    let mut limits = Vec::new();
    if is_required {
        limits.push("required".to_owned());
    }
    for (key, before, after) in [
        ("default", "default ", ""),
        ("minimum", "at least ", ""),
        ("maximum", "at most ", ""),
        ("minLength", "at least ", " characters"),
        ("maxLength", "at most ", " characters"),
        ("maxItems", "at most ", " items"),
    ] {
        let value = match &field[key] {
            Value::Null => continue,
            // The schema has bounds as floating-point numbers.
            Value::Number(number) => number.as_f64().unwrap().to_string(),
            other => format!("`{other}`"),
        };
        limits.push(format!("{before}{value}{after}"));
    }
    if let Some(values) = field["enum"].as_array() {
        let values = values.iter().map(|value| format!("`{value}`"));
        limits.push(values.collect::<Vec<_>>().join(" or "));
    }
    for rule in field["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        limits.push(rule["message"].as_str().unwrap_or_default().to_owned());
    }
    limits.join("; ").replace('|', "\\|")
}

/// Returns the description on one line; if `is_short`, only its first sentence. Items of lists are usually types of Kubernetes,
/// with long descriptions.
fn meaning(field: &Value, is_short: bool) -> String {
    let text = field["description"].as_str().unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = match text.split_once(". ") {
        Some((first, _)) if is_short => format!("{first}."),
        _ => text,
    };
    text.replace('|', "\\|")
}
