//! Uniqueness of the elements of sets and maps (`structural-schema/listtype`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    super::{Release, status::Cause},
    go,
    node::{Additional, List, Node},
};

/// Checks all lists below an object.
pub fn check(new: &Value, node: &Node) -> Vec<Cause> {
    let mut causes = Vec::new();
    below(new, node, "", &mut causes);
    causes
}

fn below(new: &Value, node: &Node, path: &str, causes: &mut Vec<Cause>) {
    match new {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(node) = node.properties.get(name) {
                    below(value, node, &go::child(path, name), causes);
                } else if let Additional::Schema(node) = &node.additional {
                    below(value, node, &format!("{path}[{name}]"), causes);
                }
            }
        }
        Value::Array(all) => {
            match &node.list {
                List::Atomic => {}
                List::Set => {
                    for at in repeated(all.iter().cloned()) {
                        causes.push(duplicate(path, at, &all[at], node.release));
                    }
                }
                List::Map(keys) => map(all, keys, path, node.release, causes),
            }
            if let Some(items) = &node.items {
                for (at, value) in all.iter().enumerate() {
                    below(value, items, &format!("{path}[{at}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn duplicate(path: &str, at: usize, value: &Value, release: Release) -> Cause {
    Cause {
        field: format!("{path}[{at}]"),
        reason: "FieldValueDuplicate",
        message: format!("Duplicate value: {}", go::shown(value, release)),
    }
}

fn map(all: &[Value], keys: &[String], path: &str, release: Release, causes: &mut Vec<Cause>) {
    let wrong = all
        .iter()
        .position(|one| !one.is_object() && !one.is_null());
    if let Some(at) = wrong {
        let why = "must be an object for an array of list-type map";
        causes.push(Cause::invalid(
            &format!("{path}[{at}]"),
            go::shown(&all[at], release),
            why,
        ));
        return;
    }
    let key = |one: &Value| -> Value {
        let key = keys
            .iter()
            .filter_map(|name| Some((name.clone(), one.get(name)?.clone())));
        Value::Object(key.collect::<Map<_, _>>())
    };
    for at in repeated(all.iter().map(key)) {
        causes.push(duplicate(path, at, &key(&all[at]), release));
    }
}

/// Returns the places of the second of equal values.
fn repeated(all: impl Iterator<Item = Value>) -> Vec<usize> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut places = Vec::new();
    for (at, value) in all.enumerate() {
        let count = seen.entry(value.to_string()).or_default();
        *count += 1;
        if *count == 2 {
            places.push(at);
        }
    }
    places
}
