//! Values that the schema of a CRD permits.

use serde_json::{Value, json};

use super::super::draw::Draws;

/// Words for text without other rules. Few, so that values are equal by chance.
const WORDS: &[&str] = &["a", "b", "alpha", "beta"];

/// Draws a value for the field of this path. `given` may choose it.
pub fn value(
    schema: &Value,
    path: &str,
    draw: &mut Draws,
    given: &dyn Fn(&str, &mut Draws) -> Option<Value>,
) -> Value {
    if let Some(value) = given(path, draw) {
        return value;
    }
    if let Some(all) = schema["enum"].as_array() {
        return draw.of(all);
    }
    match schema["type"].as_str() {
        Some("object") => object(schema, path, draw, given),
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            let most = schema["maxItems"].as_u64().unwrap_or(least + 2);
            let count = draw.between(least, most.min(least + 2) + 1);
            let items = &schema["items"];
            let path = format!("{path}[]");
            (0..count)
                .map(|_| value(items, &path, draw, given))
                .collect()
        }
        Some("integer" | "number") => number(schema, draw).into(),
        Some("boolean") => draw.once_in(2).into(),
        _ if schema["x-kubernetes-int-or-string"] == true => number(schema, draw).into(),
        _ => text(schema, draw).into(),
    }
}

fn object(
    schema: &Value,
    path: &str,
    draw: &mut Draws,
    given: &dyn Fn(&str, &mut Draws) -> Option<Value>,
) -> Value {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
    let mut object = json!({});
    let fields = schema["properties"].as_object();
    for (name, field) in fields.into_iter().flatten() {
        if is_required(name) || draw.once_in(2) {
            object[name] = value(field, &format!("{path}.{name}"), draw, given);
        }
    }
    let more = &schema["additionalProperties"];
    if more.is_object() {
        for _ in 0..draw.below(3) {
            let name = draw.of(WORDS);
            object[name] = value(more, &format!("{path}.{name}"), draw, given);
        }
    }
    object
}

/// Draws a bound, or a number near the lower bound.
fn number(schema: &Value, draw: &mut Draws) -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "schemas bound integers")]
    let bound = |name: &str| {
        let bound = &schema[name];
        bound.as_i64().or(bound.as_f64().map(|it| it as i64))
    };
    let least = bound("minimum").unwrap_or(0);
    let near = least.saturating_add(i64::try_from(draw.below(9)).unwrap_or(0));
    let most = bound("maximum").unwrap_or_else(|| least.saturating_add(1_000));
    match draw.below(6) {
        0 => least,
        1 => most,
        _ => near.min(most),
    }
}

fn text(schema: &Value, draw: &mut Draws) -> String {
    let bound = |name: &str| {
        schema[name]
            .as_u64()
            .and_then(|it| usize::try_from(it).ok())
    };
    let mut text = draw.of(WORDS).to_owned();
    while text.len() < bound("minLength").unwrap_or(1) {
        text.push('a');
    }
    text.truncate(bound("maxLength").unwrap_or(usize::MAX));
    text
}
