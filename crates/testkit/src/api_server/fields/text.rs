//! The form of sets in `fieldsV1` and in messages.

use serde_json::{Map, Value};

use super::{
    super::schema::go,
    set::{Scalar, Set, Step},
};

/// Returns the JSON of a set: `f:` for a field, `k:` and `v:` for an element of a list, `i:` for an index, and `.` for a member that
/// also has members below.
pub fn to_json(set: &Set) -> Value {
    let fields = set.iter().map(|(step, node)| {
        let mut below = to_json(&node.below);
        if node.is_member && !node.below.is_empty() {
            below["."] = Value::Object(Map::new());
        }
        (name(step), below)
    });
    Value::Object(fields.collect())
}

fn name(step: &Step) -> String {
    match step {
        Step::Field(name) => format!("f:{name}"),
        Step::Key(keys) => {
            let keys = keys.iter().map(|(name, Scalar(value))| {
                format!("{}:{}", go::json(&name.as_str().into()), go::json(value))
            });
            format!("k:{{{}}}", keys.collect::<Vec<_>>().join(","))
        }
        Step::Item(Scalar(value)) => format!("v:{}", go::json(value)),
        Step::Index(at) => format!("i:{at}"),
    }
}

/// Parses the JSON of a set. Steps of an unknown type are ignored.
pub fn from_json(json: &Value) -> Result<Set, String> {
    let mut set = Set::default();
    let fields = json.as_object().ok_or("not an object")?;
    for (name, below) in fields.iter().filter(|(name, _)| *name != ".") {
        let (kind, text) =
            (name.split_once(':')).ok_or_else(|| format!("missing colon: {name}"))?;
        let value = || serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        let step = match kind {
            "f" => Step::Field(text.to_owned()),
            "v" => Step::Item(Scalar(value()?)),
            "i" => Step::Index(text.parse().map_err(|_| format!("not an index: {text}"))?),
            "k" => match value()? {
                Value::Object(keys) => Step::Key(
                    keys.into_iter()
                        .map(|(name, value)| (name, Scalar(value)))
                        .collect(),
                ),
                _ => return Err(format!("not an object: {text}")),
            },
            _ => continue,
        };
        let nested = from_json(below)?;
        let is_member = nested.is_empty() || below.get(".").is_some();
        set.add(step, is_member, nested);
    }
    Ok(set)
}

/// Formats a path like `.spec.ports[containerPort=80,protocol="TCP"].name`.
pub fn path(steps: &[&Step]) -> String {
    steps.iter().map(|step| shown(step)).collect()
}

/// Formats a step in a path.
pub fn shown(step: &Step) -> String {
    match step {
        Step::Field(name) => format!(".{name}"),
        Step::Key(keys) => {
            let keys = keys
                .iter()
                .map(|(name, Scalar(value))| format!("{name}={}", value_text(value)));
            format!("[{}]", keys.collect::<Vec<_>>().join(","))
        }
        Step::Item(Scalar(value)) => format!("[={}]", value_text(value)),
        Step::Index(at) => format!("[{at}]"),
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Array(all) => {
            let all = all.iter().map(value_text).collect::<Vec<_>>();
            format!("[{}]", all.join(","))
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", value_text(value)));
            fields.collect()
        }
        scalar => go::scalar(scalar),
    }
}
