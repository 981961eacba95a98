//! Pruning and defaulting: the API server's form of an object.

use serde_json::{Number, Value};

use super::{
    super::typed,
    node::{Additional, Field, Node},
};

/// Fields that each resource has.
const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields, and returns their paths (`structural-schema/pruning`).
pub fn prune(object: &mut Value, root: &Node) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_value(object, Some(root), true, "", &mut unknown);
    unknown.sort_unstable();
    unknown
}

/// Like [`prune`], for a value that is no resource.
pub fn prune_at(value: &mut Value, node: &Node) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_value(value, Some(node), false, "", &mut unknown);
    unknown
}

fn prune_value(
    value: &mut Value,
    node: Option<&Node>,
    is_root: bool,
    path: &str,
    unknown: &mut Vec<String>,
) {
    if let Some(node) = node.filter(|node| node.preserves) {
        return skip(value, node, is_root, path, unknown);
    }
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(node) = node else {
                unknown.push(join(path, name));
                return false;
            };
            if (node.embedded || is_root) && META.contains(&name.as_str()) {
                return true;
            }
            match node.field(name) {
                Field::Known(node) => {
                    prune_value(value, Some(node), false, &join(path, name), unknown);
                }
                Field::Untyped => prune_value(value, None, false, &join(path, name), unknown),
                Field::Unknown => {
                    if !path.is_empty() || !META.contains(&name.as_str()) {
                        unknown.push(join(path, name));
                    }
                    return false;
                }
            }
            true
        }),
        Value::Array(all) => {
            for (at, value) in all.iter_mut().enumerate() {
                let items = node.and_then(|node| node.items.as_deref());
                prune_value(value, items, false, &format!("{path}[{at}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Prunes only where the schema specifies fields.
fn skip(value: &mut Value, node: &Node, is_root: bool, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if (node.embedded || is_root) && META.contains(&name.as_str()) {
                    continue;
                }
                match node.field(name) {
                    Field::Known(node) => {
                        prune_value(value, Some(node), false, &join(path, name), unknown);
                    }
                    Field::Untyped => prune_value(value, None, false, &join(path, name), unknown),
                    Field::Unknown => {}
                }
            }
        }
        Value::Array(all) => {
            if let Some(items) = &node.items {
                for (at, value) in all.iter_mut().enumerate() {
                    skip(value, items, false, &format!("{path}[{at}]"), unknown);
                }
            }
        }
        _ => {}
    }
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

/// Removes nulls that the schema neither allows nor replaces with a default.
pub fn drop_nulls(value: &mut Value, node: Option<&Node>) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let node = node.and_then(|node| node.child(name));
            let is_dropped = node.is_some_and(|node| !node.nullable && node.default.is_none());
            if value.is_null() && is_dropped {
                return false;
            }
            drop_nulls(value, node);
            true
        }),
        Value::Array(all) => {
            let items = node.and_then(|node| node.items.as_deref());
            for value in all {
                drop_nulls(value, items);
            }
        }
        _ => {}
    }
}

/// Removes the unknown fields of the metadata of embedded resources, or returns the parser's error. Only nested resources are
/// concerned: the metadata of the root is read with the object.
pub fn read_embedded(value: &mut Value, node: &Node) -> Result<(), String> {
    match value {
        Value::Object(fields) => {
            if node.embedded {
                for name in ["apiVersion", "kind"] {
                    if fields.get(name).is_some_and(|value| !value.is_string()) {
                        let value = &fields[name];
                        return Err(format!("{name}: Invalid value: {value}: must be a string"));
                    }
                }
                if let Some(metadata) = fields.get_mut("metadata") {
                    *metadata = typed::read_metadata(metadata.take())?;
                }
            }
            for (name, value) in fields {
                if let Some(node) = node.child(name) {
                    read_embedded(value, node)?;
                }
            }
        }
        Value::Array(all) => {
            if let Some(items) = &node.items {
                for value in all {
                    read_embedded(value, items)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Sets the defaults.
pub fn fill(value: &mut Value, node: &Node) {
    match value {
        Value::Object(fields) => {
            for (name, node) in &node.properties {
                let Some(default) = &node.default else {
                    continue;
                };
                let is_missing = match fields.get(name) {
                    None => true,
                    Some(value) => value.is_null() && !node.nullable,
                };
                if is_missing {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(known) = node.properties.get(name) {
                    fill(value, known);
                } else if let Additional::Schema(known) = &node.additional {
                    if value.is_null() && !known.nullable {
                        *value = known.default.clone().unwrap_or_default();
                    }
                    fill(value, known);
                }
            }
        }
        Value::Array(all) => {
            let Some(items) = &node.items else {
                return;
            };
            for value in all {
                if value.is_null() && !items.nullable {
                    *value = items.default.clone().unwrap_or_default();
                }
                fill(value, items);
            }
        }
        _ => {}
    }
}

/// Converts integers that Go cannot store in 64 bits, which are floating-point numbers there.
pub fn read_numbers(value: &mut Value) {
    walk_numbers(value, &|number| {
        let is_large = !number.is_f64() && number.as_i64().is_none();
        is_large.then(|| number.as_f64().and_then(Number::from_f64))?
    });
}

/// Converts whole floating-point numbers to integers, as storing them does.
pub fn store_numbers(value: &mut Value) {
    walk_numbers(value, &|number| {
        #[allow(clippy::cast_possible_truncation, reason = "the range is checked")]
        let whole = |float: f64| {
            let fits = float.fract() == 0.0 && float.abs() < 9.2e18;
            fits.then_some(float as i64)
        };
        number
            .is_f64()
            .then(|| number.as_f64())?
            .and_then(whole)
            .map(Number::from)
    });
}

fn walk_numbers(value: &mut Value, convert: &impl Fn(&Number) -> Option<Number>) {
    match value {
        Value::Number(number) => {
            if let Some(new) = convert(number) {
                *number = new;
            }
        }
        Value::Array(all) => all
            .iter_mut()
            .for_each(|value| walk_numbers(value, convert)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|value| walk_numbers(value, convert)),
        _ => {}
    }
}
