//! Test specs derived from the schema. Each field is absent, null, at each bound, next to it, and of other types. The other
//! fields have the values of a good spec. Fields added to the schema later are covered as well.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use serde_json::{Value, json};

/// Spec and its expected validity.
#[derive(Clone, Debug)]
pub struct Case {
    /// The field that differs from the good spec.
    pub field: String,
    /// How the field differs.
    pub kind: Kind,
    pub spec: Value,
    /// Whether the API server must accept it. `None` if a pattern or a subresource decides.
    pub valid: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Absent,
    Null,
    WrongType,
    Inside,
    /// Outside the bounds by one.
    Beside,
    Outside,
    /// Within the bounds, but unusual.
    Edge,
}

/// Returns all cases for the spec's `schema`, based on the spec `good`.
pub fn cases(schema: &Value, good: &Value) -> Vec<Case> {
    let empty = Vec::new();
    let required = schema["required"].as_array().unwrap_or(&empty);
    let fields = schema["properties"].as_object().into_iter().flatten();
    let cases = fields.flat_map(|(field, schema)| {
        let required = required.iter().any(|name| name == field);
        // The API server drops a null that the schema does not allow.
        let mut values = vec![
            (Kind::Absent, None, Some(!required)),
            (
                Kind::Null,
                Some(Value::Null),
                Some(schema["nullable"] == true || !required),
            ),
        ];
        let others = of_type(field, schema)
            .into_iter()
            .chain(other_types(schema));
        values.extend(others.map(|(kind, value, valid)| (kind, Some(value), valid)));
        values.into_iter().map(move |(kind, value, valid)| {
            let mut spec = good.clone();
            match value {
                Some(value) => spec[field] = value,
                None => _ = spec.as_object_mut().and_then(|spec| spec.remove(field)),
            }
            let field = field.clone();
            Case {
                field,
                kind,
                spec,
                valid,
            }
        })
    });
    cases.filter(|case| case.spec != *good).collect()
}

type Tried = (Kind, Value, Option<bool>);

fn of_type(field: &str, schema: &Value) -> Vec<Tried> {
    match schema["type"].as_str() {
        Some("integer") => integers(schema),
        Some("string") => texts(schema),
        Some("boolean") => [true, false]
            .map(|value| (Kind::Inside, json!(value), Some(true)))
            .into(),
        other => panic!(
            "spec.{field}: no values for the type {other:?} yet: say here which are worth a try"
        ),
    }
}

fn other_types(schema: &Value) -> Vec<Tried> {
    let others = [
        ("boolean", json!(true)),
        ("string", json!("two")),
        ("array", json!([])),
        ("object", json!({})),
        ("number", json!(1.5)),
    ];
    let others = others
        .into_iter()
        .filter(|(type_, _)| schema["type"] != *type_);
    others
        .map(|(_, value)| (Kind::WrongType, value, Some(false)))
        .collect()
}

fn integers(schema: &Value) -> Vec<Tried> {
    let (least, most) = match schema["format"].as_str() {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    // The schema contains `10.0`.
    let bound = |name: &str, or: i64| {
        let text = schema[name].to_string();
        text.trim_end_matches(".0").parse().unwrap_or(or)
    };
    let (from, to) = (bound("minimum", least), bound("maximum", most));
    let mut values = vec![from, from + 1, to - 1, to, 0, i64::MIN, i64::MAX];
    values.extend(
        [from.checked_sub(1), to.checked_add(1), most.checked_add(1)]
            .into_iter()
            .flatten(),
    );
    values.sort_unstable();
    values.dedup();
    let tried = values.into_iter().map(|value| {
        let inside = (from..=to).contains(&value);
        let beside = (from..=to).contains(&value.saturating_add(1))
            || (from..=to).contains(&value.saturating_sub(1));
        let kind = match (inside, beside) {
            (true, _) => Kind::Inside,
            (false, true) => Kind::Beside,
            (false, false) => Kind::Outside,
        };
        (kind, json!(value), Some(inside))
    });
    // Some clients write `1.0`.
    let whole = serde_json::from_str(&format!("{from}.0")).unwrap();
    let whole = (Kind::Edge, whole, None);
    let above = (Kind::Outside, json!(u64::MAX), Some(false));
    tried.chain([whole, above]).collect()
}

fn texts(schema: &Value) -> Vec<Tried> {
    let most = schema["maxLength"].as_u64().unwrap_or(1000);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let has_pattern =
        schema.get("pattern").is_some() || schema.get("x-kubernetes-validations").is_some();
    let by_pattern = (!has_pattern).then_some(true);
    let lengths =
        [0, 1, most - 1, most].map(|length| (Kind::Inside, "a".repeat(length), by_pattern));
    let longer = [(Kind::Beside, most + 1), (Kind::Outside, 20 * most)]
        .map(|(kind, length)| (kind, "a".repeat(length), Some(false)));
    let marks = [
        "-", ".", "_", "/", " ", "\n", "\t", "\0", "\"", "A", "0", "ü", "１", "名", "🦀",
        "\u{202e}", "\u{301}",
    ];
    let edges = marks.into_iter().flat_map(|mark| {
        [
            mark.to_owned(),
            format!("{mark}a"),
            format!("a{mark}"),
            format!("a{mark}b"),
            format!("a{mark}{mark}b"),
        ]
    });
    let edges = edges.chain(["a.-b", "a-.b", "1.2.3.4", "xn--3e0b707e", "null"].map(str::to_owned));
    // Maximum length in characters, longer in bytes.
    let edges = edges.chain([0, 1].map(|more| "ü".repeat(most + more)));
    let edges = edges.map(|text| (Kind::Edge, text, by_pattern));
    let all = lengths.into_iter().chain(longer).chain(edges);
    all.map(|(kind, text, valid)| (kind, json!(text), valid))
        .collect()
}
