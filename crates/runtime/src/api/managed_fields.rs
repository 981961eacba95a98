//! Entries of `metadata.managedFields` in other versions than the stored one, and their rewrite in the stored version.
//!
//! For each write, the API server converts the object into the version of each entry. Sources: `merge/update.go` of
//! structured-merge-diff, and `versionconverter.go` of apimachinery. If a CRD no longer has that version, each server-side apply
//! fails (kubernetes#111937). The storage version migrator of Kubernetes does not change these entries.
//!
//! A client may write the entries with the object (Kubernetes documentation, "Server-Side Apply", section "Clearing managed
//! fields").

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value, json};

use super::conversion::Definition;

/// A set of fields, in the format `FieldsV1`. Source: `fieldpath/serialize.go` of structured-merge-diff.
type Set = Map<String, Value>;

/// Members that `managedFields` does not track.
const TYPE: [&str; 2] = ["apiVersion", "kind"];

/// Members of `metadata` that a conversion may change.
const CONVERTED: [&str; 2] = ["labels", "annotations"];

/// Returns whether an entry has another version than `api_version`.
pub(crate) fn is_former(entry: &ManagedFieldsEntry, api_version: &str) -> bool {
    entry.api_version.as_deref() != Some(api_version)
}

/// Returns the entries of an object, all in the stored version. `object` has this version, and is complete.
///
/// - With a conversion, the fields of an entry are converted. The result leaves out fields that depend on fields of other managers
///   as well, and fields with the value that the conversion gives to a missing field. A manager that owned too much would delete
///   fields of others by its next server-side apply.
/// - Without a conversion, or if it fails, the fields keep their paths. Paths that the object does not have are left out.
///
/// Entries of one manager become one entry. An entry without fields is left out. If all are without fields, the fields with the
/// value of a missing field are kept: an object without entries would belong to the manager `before-first-apply`, and the next
/// server-side apply would fail with a conflict (`skipnonapplied.go` of apimachinery).
pub(crate) fn rewritten(definition: &Definition, object: &Value) -> Vec<ManagedFieldsEntry> {
    let all = entries(definition, object, false);
    if all.is_empty() {
        return entries(definition, object, true);
    }
    all
}

/// Returns the entries in the stored version. `keeps_defaults`: with the fields that have the value of a missing field.
fn entries(
    definition: &Definition,
    object: &Value,
    keeps_defaults: bool,
) -> Vec<ManagedFieldsEntry> {
    let entries = object["metadata"]["managedFields"].clone();
    let entries: Vec<ManagedFieldsEntry> = serde_json::from_value(entries).unwrap_or_default();
    let stored = format!("{}/{}", definition.crd().spec.group, definition.stored());
    let mut all: Vec<ManagedFieldsEntry> = Vec::new();
    for mut entry in entries {
        if is_former(&entry, &stored) {
            let fields = fields_of(&entry);
            let fields = converted(definition, object, &entry, &fields, keeps_defaults)
                .unwrap_or_else(|_| existing(&fields, object));
            if fields.is_empty() {
                continue;
            }
            entry.api_version = Some(stored.clone());
            entry.fields_v1 = Some(FieldsV1(Value::Object(fields)));
        }
        match all.iter_mut().find(|other| is_same_manager(other, &entry)) {
            Some(other) => {
                let mut fields = fields_of(other);
                add(&mut fields, fields_of(&entry));
                other.fields_v1 = Some(FieldsV1(Value::Object(fields)));
                if other.time < entry.time {
                    other.time = entry.time;
                }
            }
            None => all.push(entry),
        }
    }
    all
}

/// The API server knows one entry for these values (`BuildManagerIdentifier`).
fn is_same_manager(one: &ManagedFieldsEntry, other: &ManagedFieldsEntry) -> bool {
    let id = |it: &ManagedFieldsEntry| {
        (
            it.manager.clone(),
            it.operation.clone(),
            it.subresource.clone(),
            it.api_version.clone(),
        )
    };
    id(one) == id(other)
}

fn fields_of(entry: &ManagedFieldsEntry) -> Set {
    let fields = entry.fields_v1.as_ref();
    let fields = fields.and_then(|fields| fields.0.as_object());
    fields.cloned().unwrap_or_default()
}

/// Converts the part of an object that an entry owns, and returns its fields in the stored version.
///
/// # Errors
/// There is no conversion, or it fails for this part.
fn converted(
    definition: &Definition,
    object: &Value,
    entry: &ManagedFieldsEntry,
    fields: &Set,
    keeps_defaults: bool,
) -> Result<Set, String> {
    let api_version = entry.api_version.as_deref().unwrap_or_default();
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let former = definition.convert(object, version)?;
    let identity = json!({
        "apiVersion": former["apiVersion"],
        "kind": former["kind"],
        "metadata": { "name": former["metadata"]["name"], "namespace": former["metadata"]["namespace"] },
    });
    let schema = definition.schema(version);
    let Value::Object(owned) = extracted(fields, &former, &schema) else {
        return Err("the object is no object".to_owned());
    };
    let (mut part, mut empty) = (identity.clone(), identity);
    for (name, value) in owned {
        if name == "metadata" {
            for name in CONVERTED {
                if let Some(map) = value.get(name) {
                    part["metadata"][name] = map.clone();
                }
            }
            continue;
        }
        if value.is_object() {
            empty[&name] = json!({});
        }
        part[&name] = value;
    }
    let part = definition.convert(&part, definition.stored())?;
    let empty = if keeps_defaults {
        Value::Null
    } else {
        definition.convert(&empty, definition.stored())?
    };
    let schema = definition.schema(definition.stored());
    let mut result = Set::new();
    for (name, value) in part.as_object().into_iter().flatten() {
        if name == "metadata" || TYPE.contains(&&**name) {
            continue;
        }
        let owned = fields_of_part(
            value,
            &object[name],
            &empty[name],
            &schema["properties"][name],
        );
        result.extend(owned.map(|owned| (format!("f:{name}"), owned)));
    }
    // All versions have the same metadata, except the labels and annotations that the conversion sets.
    let metadata = fields.get("f:metadata").and_then(Value::as_object);
    let mut metadata = metadata.cloned().unwrap_or_default();
    for name in CONVERTED {
        let before = metadata.remove(&format!("f:{name}"));
        let [part, live, empty] = [&part, object, &empty].map(|it| &it["metadata"][name]);
        if let Some(mut owned) = fields_of_part(part, live, empty, &Value::Null) {
            let is_whole = before.is_some_and(|before| before.get(".").is_some());
            if let (true, Some(owned)) = (is_whole, owned.as_object_mut()) {
                owned.insert(".".to_owned(), json!({}));
            }
            metadata.insert(format!("f:{name}"), owned);
        }
    }
    if !metadata.is_empty() {
        result.insert("f:metadata".to_owned(), Value::Object(metadata));
    }
    Ok(result)
}

/// Returns the item of a set, if `value` has it.
fn item<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let (kind, text) = path.split_once(':')?;
    match kind {
        "f" => value.as_object()?.get(text),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(text).ok()?;
            let mut items = value.as_array()?.iter();
            items.find(|item| keys.iter().all(|(key, value)| &item[key] == value))
        }
        "v" => {
            let wanted: Value = serde_json::from_str(text).ok()?;
            value.as_array()?.iter().find(|item| **item == wanted)
        }
        "i" => value.as_array()?.get(text.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns the part of a set that `value` has.
fn existing(fields: &Set, value: &Value) -> Set {
    let kept = fields.iter().filter_map(|(path, below)| {
        if path == "." {
            return Some((path.clone(), json!({})));
        }
        let (value, below) = (item(value, path)?, below.as_object()?);
        let kept = existing(below, value);
        (below.is_empty() || !kept.is_empty()).then(|| (path.clone(), Value::Object(kept)))
    });
    kept.collect()
}

/// Returns the items of a set. Like `ExtractItems` of structured-merge-diff, except that a map or list whose members the set
/// does not contain is empty.
fn extracted(fields: &Set, value: &Value, schema: &Value) -> Value {
    match value {
        Value::Object(map) if fields.is_empty() && !is_atomic_map(schema) => json!({}),
        Value::Array(_) if fields.is_empty() && list_type(schema) != ATOMIC => json!([]),
        _ if fields.is_empty() => value.clone(),
        Value::Object(map) => {
            let owned = fields.iter().filter_map(|(path, below)| {
                let name = path.strip_prefix("f:")?;
                let (value, below) = (map.get(name)?, below.as_object()?);
                let value = extracted(below, value, member(schema, name));
                Some((name.to_owned(), value))
            });
            Value::Object(owned.collect())
        }
        Value::Array(_) => {
            let owned = fields.iter().filter_map(|(path, below)| {
                let (value, below) = (item(value, path)?, below.as_object()?);
                let mut owned = extracted(below, value, &schema["items"]);
                let keys = path
                    .strip_prefix("k:")
                    .and_then(|it| serde_json::from_str(it).ok());
                if let (Some(owned), Some(Value::Object(keys))) = (owned.as_object_mut(), keys) {
                    owned.extend(keys);
                }
                Some(owned)
            });
            Value::Array(owned.collect())
        }
        other => other.clone(),
    }
}

/// Returns the fields of `part` that the object has with the same value (`live`), and that do not come from an object without
/// fields (`empty`). Like `ToFieldSet` of structured-merge-diff.
fn fields_of_part(part: &Value, live: &Value, empty: &Value, schema: &Value) -> Option<Value> {
    match (part, live) {
        (Value::Object(part), Value::Object(live)) if !is_atomic_map(schema) => {
            if part.is_empty() {
                return (!empty.is_object()).then(|| json!({}));
            }
            let owned = part.iter().filter_map(|(name, part)| {
                let live = live.get(name)?;
                let owned = fields_of_part(part, live, &empty[name], member(schema, name))?;
                Some((format!("f:{name}"), owned))
            });
            let owned: Set = owned.collect();
            (!owned.is_empty()).then_some(Value::Object(owned))
        }
        (Value::Array(items), Value::Array(_)) if list_type(schema) == "map" => {
            let owned = items.iter().filter_map(|part| {
                let names = schema["x-kubernetes-list-map-keys"].as_array()?.iter();
                let keys = names.filter_map(Value::as_str).map(|name| {
                    let default = || schema["items"]["properties"][name].get("default");
                    let value = part.get(name).or_else(default);
                    value.map(|value| (name.to_owned(), value.clone()))
                });
                let keys = Value::Object(keys.collect::<Option<_>>()?);
                let path = format!("k:{keys}");
                let empty = item(empty, &path).unwrap_or(&Value::Null);
                let owned = fields_of_part(part, item(live, &path)?, empty, &schema["items"]);
                let mut owned = owned?.as_object()?.clone();
                owned.insert(".".to_owned(), json!({}));
                Some((path, Value::Object(owned)))
            });
            let owned: Set = owned.collect();
            (!owned.is_empty()).then_some(Value::Object(owned))
        }
        (Value::Array(items), Value::Array(live)) if list_type(schema) == "set" => {
            let empty = empty.as_array();
            let is_owned = |part: &&Value| {
                live.contains(part) && !empty.is_some_and(|empty| empty.contains(part))
            };
            let owned = items.iter().filter(is_owned);
            let owned: Set = owned.map(|part| (format!("v:{part}"), json!({}))).collect();
            (!owned.is_empty()).then_some(Value::Object(owned))
        }
        _ => {
            let is_same = part == live || with_defaults(part, schema) == *live;
            (is_same && part != empty).then(|| json!({}))
        }
    }
}

/// Returns the value with the defaults of the schema, which the API server has added to the object.
fn with_defaults(value: &Value, schema: &Value) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Object(map) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = property.get("default") {
                    map.entry(name).or_insert_with(|| default.clone());
                }
            }
            for (name, value) in map {
                *value = with_defaults(value, member(schema, name));
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = with_defaults(item, &schema["items"]);
            }
        }
        _ => {}
    }
    value
}

/// Adds the fields of `other` to `fields`.
fn add(fields: &mut Set, other: Set) {
    // A field without fields below is a member itself, and so is one with the field ".".
    let was_empty = fields.is_empty();
    if was_empty != other.is_empty() {
        fields.insert(".".to_owned(), json!({}));
    }
    for (path, below) in other {
        match (fields.get_mut(&path), below) {
            (Some(Value::Object(known)), Value::Object(below)) => add(known, below),
            (_, below) => {
                fields.insert(path, below);
            }
        }
    }
}

const ATOMIC: &str = "atomic";

fn is_atomic_map(schema: &Value) -> bool {
    schema["x-kubernetes-map-type"] == ATOMIC
}

/// Returns the type of a list: `atomic`, which is the default of custom resources, `map` or `set`.
fn list_type(schema: &Value) -> &str {
    schema["x-kubernetes-list-type"].as_str().unwrap_or(ATOMIC)
}

/// Returns the schema of a member of an object or of a map.
fn member<'a>(schema: &'a Value, name: &str) -> &'a Value {
    let declared = schema["properties"].get(name);
    declared.unwrap_or(&schema["additionalProperties"])
}

#[cfg(test)]
mod tests;
