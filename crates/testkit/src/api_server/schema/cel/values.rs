//! JSON as values of CEL, by the schema (`k8s.io/apiserver/pkg/cel/common/valuesunstructured.go`).

use std::{collections::HashMap, sync::Arc};

use kube_cel::cel::{
    Value,
    objects::{Key, Map, Opaque, OptionalValue},
};
use serde_json::Value as Json;

use super::{
    super::{
        formats,
        node::{Additional, List, Node},
        ratchet,
    },
    functions,
};

/// A value that is invalid for its schema. Only a rule that uses it fails.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl Opaque for Invalid {
    fn runtime_type_name(&self) -> &'static str {
        "invalid"
    }
}

/// Name of a type, such as `int`.
#[derive(Debug, PartialEq, Eq)]
pub struct Type(pub &'static str);

impl Opaque for Type {
    fn runtime_type_name(&self) -> &'static str {
        "type"
    }
}

/// A list of type `set` or `map`, whose order is irrelevant.
#[derive(Debug)]
pub struct Unordered {
    /// Names of the keys of a list of type `map`, as rules see them.
    pub keys: Option<Vec<String>>,
    pub all: Arc<Vec<Value>>,
}

impl Opaque for Unordered {
    fn runtime_type_name(&self) -> &'static str {
        "unordered"
    }
}

impl PartialEq for Unordered {
    fn eq(&self, other: &Self) -> bool {
        self.equals(&other.all)
    }
}

impl Eq for Unordered {}

impl Unordered {
    /// Returns the identity of an element.
    fn key(&self, element: &Value) -> Vec<Value> {
        match (&self.keys, element) {
            (Some(keys), Value::Map(map)) => {
                let key = |name: &String| map.get(&Key::from(name.as_str())).cloned();
                keys.iter()
                    .map(|name| key(name).unwrap_or(Value::Null))
                    .collect()
            }
            (_, element) => vec![element.clone()],
        }
    }

    pub fn equals(&self, other: &[Value]) -> bool {
        self.all.len() == other.len()
            && other.iter().all(|it| {
                let key = self.key(it);
                self.all
                    .iter()
                    .any(|mine| self.key(mine) == key && mine == it)
            })
    }

    /// Returns the union: elements of `other` replace elements with the same keys.
    pub fn and(&self, other: &[Value]) -> Self {
        let mut all = Vec::clone(&self.all);
        for element in other {
            let key = self.key(element);
            match all.iter().position(|mine| self.key(mine) == key) {
                Some(at) => all[at] = element.clone(),
                None => all.push(element.clone()),
            }
        }
        Self {
            keys: self.keys.clone(),
            all: Arc::new(all),
        }
    }
}

/// Returns the unordered list, if the value is one.
pub fn unordered(value: &Value) -> Option<&Unordered> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

/// Returns the optional value, if the value is one.
pub fn as_optional(value: &Value) -> Option<&OptionalValue> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

/// Returns an optional value.
pub fn optional(value: Option<Value>) -> Value {
    Value::Opaque(Arc::new(
        value.map_or_else(OptionalValue::none, OptionalValue::of),
    ))
}

fn invalid(words: impl Into<String>) -> Value {
    Value::Opaque(Arc::new(Invalid(words.into())))
}

fn text(text: &str) -> Value {
    Value::String(Arc::new(text.to_owned()))
}

fn map(fields: HashMap<Key, Value>) -> Value {
    Value::Map(Map {
        map: Arc::new(fields),
    })
}

/// Returns the value as rules see it.
pub fn bind(value: &Json, node: &Node) -> Value {
    bind_at(value, node, node.embedded)
}

/// Like [`bind`], for the root of a resource: its names are always visible.
pub fn bind_at(value: &Json, node: &Node, is_resource: bool) -> Value {
    if value.is_null() {
        if node.nullable {
            return Value::Null;
        }
        return invalid("invalid data, got null for schema with nullable=false");
    }
    if node.int_or_string {
        return match value {
            Json::String(it) => text(it),
            Json::Number(it) if it.is_i64() => Value::Int(it.as_i64().unwrap_or_default()),
            _ => invalid(
                "invalid data, expected XIntOrString value to be either a string or integer",
            ),
        };
    }
    match (node.kind.as_str(), value) {
        ("object", Json::Object(fields)) => {
            let is_struct = is_resource || !node.properties.is_empty();
            let mut all = HashMap::new();
            for (name, value) in fields {
                if is_struct {
                    // A null is treated like a missing field.
                    if value.is_null() {
                        continue;
                    }
                    let bound = match node.properties.get(name) {
                        Some(node) if !(is_resource && name == "metadata") => bind(value, node),
                        _ if is_resource => match named(name, value) {
                            Some(bound) => bound,
                            None => continue,
                        },
                        _ => continue,
                    };
                    if let Some(name) = escaped(name) {
                        all.insert(Key::from(name), bound);
                    }
                } else if let Additional::Schema(node) = &node.additional {
                    all.insert(Key::from(name.as_str()), bind(value, node));
                }
            }
            map(all)
        }
        ("array", Json::Array(all)) => {
            let Some(items) = &node.items else {
                return invalid("invalid array type, expected Items with a non-empty Schema");
            };
            let all = Arc::new(
                all.iter()
                    .map(|value| bind(value, items))
                    .collect::<Vec<_>>(),
            );
            let keys = match &node.list {
                List::Atomic => return Value::List(all),
                List::Set => None,
                List::Map(keys) => Some(keys.iter().filter_map(|name| escaped(name)).collect()),
            };
            Value::Opaque(Arc::new(Unordered { keys, all }))
        }
        ("string", Json::String(it)) => string(it, node),
        ("number", Json::Number(it)) => Value::Float(it.as_f64().unwrap_or_default()),
        ("integer", Json::Number(it)) if it.is_i64() => Value::Int(it.as_i64().unwrap_or_default()),
        ("integer", Json::Number(_)) => invalid("invalid data, expected int, got float64"),
        ("boolean", Json::Bool(is)) => Value::Bool(*is),
        (kind, _) => invalid(format!("invalid data, expected {kind}")),
    }
}

/// Returns a field that each resource has: its type, or its names.
fn named(field: &str, value: &Json) -> Option<Value> {
    match field {
        "apiVersion" | "kind" => Some(text(value.as_str()?)),
        "metadata" => {
            let names = ["name", "generateName"].into_iter();
            let names =
                names.filter_map(|name| Some((Key::from(name), text(value[name].as_str()?))));
            Some(map(names.collect()))
        }
        _ => None,
    }
}

fn string(value: &str, node: &Node) -> Value {
    let failed = |what: &str| invalid(format!("Invalid {what} {value}"));
    match node.declared_format.as_str() {
        "duration" => formats::nanoseconds(value).map_or_else(
            || failed("duration"),
            |nanoseconds| {
                functions::library("duration", None, vec![text(&format!("{nanoseconds}ns"))])
                    .unwrap_or_else(|_| failed("duration"))
            },
        ),
        "date" => functions::library("timestamp", None, vec![text(&format!("{value}T00:00:00Z"))])
            .unwrap_or_else(|_| failed("date formatted string")),
        "date-time" => functions::library("timestamp", None, vec![text(value)])
            .unwrap_or_else(|_| failed("date-time formatted string")),
        "byte" => functions::library("base64.decode", None, vec![text(value)])
            .unwrap_or_else(|_| failed("byte formatted string")),
        _ => text(value),
    }
}

/// Returns the name of a field in rules (`cel.Escape`), if it has one.
pub fn escaped(name: &str) -> Option<String> {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if name.is_empty()
        || name.starts_with(|c: char| c.is_ascii_digit())
        || !name.chars().all(is_known)
    {
        return None;
    }
    let name = name.replace("__", "__underscores__");
    let name = name.replace('.', "__dot__").replace('-', "__dash__");
    Some(name.replace('/', "__slash__"))
}

/// Returns the old element that belongs to a new one, for `oldSelf`.
pub fn old_element<'a>(node: &Node, old: Option<&'a Json>, new: &Json) -> Option<&'a Json> {
    ratchet::element_of(node, old?.as_array()?, new)
}
