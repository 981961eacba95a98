//! JSON patches (RFC 6902), with the extensions of the library of the API server, `gopkg.in/evanphx/json-patch.v4`: an index may be
//! negative, and a missing member of an object counts as a null.

use serde_json::Value;

use super::{
    request::Unknown,
    status::{Refusal, Result},
};

/// Maximum number of operations (`maxJSONPatchOperations` of the API server).
const MAX_OPERATIONS: usize = 10_000;

/// Returns the object after the patch.
pub fn apply(object: &Value, patch: &[u8]) -> Result<Value> {
    let unknown = |what: &dyn std::fmt::Display| Unknown(format!("the JSON patch: {what}"));
    let patch: Value = serde_json::from_slice(patch).map_err(|error| unknown(&error))?;
    let Value::Array(operations) = &patch else {
        let Value::Object(_) = patch else {
            return Err(unknown(&patch).into());
        };
        let words = "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch";
        return Err(Refusal::bad_request(words));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(unknown(&"too many operations").into());
    }
    let mut new = object.clone();
    for operation in operations {
        if !operation.is_object() || operation["path"] == "" {
            return Err(unknown(operation).into());
        }
        carry_out(&mut new, operation).ok_or_else(Refusal::unprocessable)?;
    }
    Ok(new)
}

/// Carries out an operation, or returns `None` if it does not apply.
fn carry_out(object: &mut Value, operation: &Value) -> Option<()> {
    let path = operation["path"].as_str()?;
    let value = &operation["value"];
    match operation["op"].as_str()? {
        "add" => add(object, path, value.clone()),
        "remove" => remove(object, path).map(drop),
        "replace" => {
            let (parent, key) = parent(object, path)?;
            match parent {
                Value::Array(list) => {
                    let index = index(&key, list.len())?;
                    *list.get_mut(index)? = value.clone();
                }
                parent => parent[key] = value.clone(),
            }
            Some(())
        }
        "move" => {
            let moved = remove(object, operation["from"].as_str()?)?;
            add(object, path, moved)
        }
        "copy" => {
            let copied = get(object, operation["from"].as_str()?)?;
            add(object, path, copied)
        }
        "test" => (get(object, path)? == *value).then_some(()),
        _ => None,
    }
}

fn add(object: &mut Value, path: &str, value: Value) -> Option<()> {
    let (parent, key) = parent(object, path)?;
    match parent {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            let index = index(&key, list.len() + 1)?;
            list.insert(index, value);
        }
        parent => parent[key] = value,
    }
    Some(())
}

fn remove(object: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = parent(object, path)?;
    match parent {
        Value::Array(list) => {
            let index = index(&key, list.len())?;
            Some(list.remove(index))
        }
        parent => parent.as_object_mut()?.remove(&key),
    }
}

fn get(object: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = parent(object, path)?;
    match parent {
        Value::Array(list) => list.get(index(&key, list.len())?).cloned(),
        parent => Some(parent.get(&key).cloned().unwrap_or_default()),
    }
}

/// Returns the list or object that contains the value at a path, and the last part of the path.
fn parent<'a>(object: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut parts: Vec<_> = path.split('/').skip(1).map(decoded).collect();
    let key = parts.pop()?;
    let mut value = object;
    for part in parts {
        value = match value {
            Value::Array(list) => {
                let index = index(&part, list.len())?;
                list.get_mut(index)?
            }
            value => value.as_object_mut()?.get_mut(&part)?,
        };
    }
    (value.is_object() || value.is_array()).then_some((value, key))
}

/// Parses the index of an element of a list that has this length. A negative index counts from the end.
fn index(key: &str, length: usize) -> Option<usize> {
    let index: isize = key.parse().ok()?;
    let index = match usize::try_from(index) {
        Ok(index) => index,
        Err(_) => length.checked_sub(index.unsigned_abs())?,
    };
    (index < length).then_some(index)
}

/// Decodes the escapes of a JSON pointer (RFC 6901).
fn decoded(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
