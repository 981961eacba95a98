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
        let versions = crd["spec"]["versions"].as_array().unwrap();
        for version in versions {
            if versions.len() > 1 {
                let _ = write!(tables, "\nVersion {}:\n", version["name"].as_str().unwrap());
            }
            tables += &table(&version["schema"]["openAPIV3Schema"]);
        }
    }
    tables + "\n"
}

/// Returns the table of one version. The object itself, `spec` and `status` have a row only if they have limits.
fn table(schema: &Value) -> String {
    let mut table = "\n| field | type | limits | meaning |\n|---|---|---|---|\n".to_owned();
    for path in ["", "spec", "status"] {
        let part = if path.is_empty() {
            schema
        } else {
            &schema["properties"][path]
        };
        let mut whole = part.clone();
        whole.as_object_mut().map(|it| it.remove("default")); // `{}`
        let limits = limits(&whole, false);
        if !limits.is_empty() {
            let name = if path.is_empty() { "the object" } else { path };
            let _ = writeln!(table, "| {name} | object | {limits} | |");
        }
        if !path.is_empty() {
            add(&mut table, path, part);
        }
    }
    table
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

/// Validations that no description here covers.
const UNKNOWN: [&str; 7] = [
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
];

/// Returns the limits of a value, as the API server validates them.
fn limits(field: &Value, is_required: bool) -> String {
    let mut limits = Vec::new();
    for key in field
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| &**key)
    {
        assert!(
            !UNKNOWN.contains(&key),
            "the list of fields has no words for {key}"
        );
    }
    if is_required {
        limits.push("required".to_owned());
    }
    for (key, before, after) in [
        ("default", "default ", ""),
        ("minimum", "at least ", ""),
        ("maximum", "at most ", ""),
        ("multipleOf", "a multiple of ", ""),
        ("pattern", "matches ", ""),
        ("minLength", "at least ", " characters"),
        ("maxLength", "at most ", " characters"),
        ("minItems", "at least ", " items"),
        ("maxItems", "at most ", " items"),
        ("minProperties", "at least ", " entries"),
        ("maxProperties", "at most ", " entries"),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The table contains each limit that the API server enforces, also for the whole object.
    #[test]
    fn every_limit_is_listed() {
        let rule = |message: &str| json!([{ "rule": "true", "message": message }]);
        let text = json!({ "type": "string", "pattern": "^a", "minLength": 1, "maxLength": 2, "enum": ["a", "b"] });
        let list =
            json!({ "type": "array", "minItems": 3, "maxItems": 4, "items": { "type": "string" } });
        let map = json!({
            "type": "object", "minProperties": 5, "maxProperties": 6, "additionalProperties": { "type": "string" },
        });
        let number = json!({ "type": "integer", "minimum": 7, "maximum": 8, "multipleOf": 9, "default": 10 });
        let table = table(&json!({
            "x-kubernetes-validations": rule("of the object"),
            "properties": {
                "spec": {
                    "x-kubernetes-validations": rule("of the spec"),
                    "required": ["text"],
                    "properties": { "list": list, "map": map, "number": number, "text": text },
                },
            },
        }));
        let rows = [
            "| the object | object | of the object | |",
            "| spec | object | of the spec | |",
            "| `spec.list` | array of strings | at least 3 items; at most 4 items |  |",
            "| `spec.map` | map of strings | at least 5 entries; at most 6 entries |  |",
            "| `spec.number` | integer | default 10; at least 7; at most 8; a multiple of 9 |  |",
            "| `spec.text` | string | required; matches `\"^a\"`; at least 1 characters; at most 2 characters; `\"a\"` or `\"b\"` |  |",
        ];
        assert_eq!(table.lines().skip(3).collect::<Vec<_>>(), rows, "{table}");
    }
}
