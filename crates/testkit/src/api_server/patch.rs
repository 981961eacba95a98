//! Patches.

use serde_json::{Map, Value, json};

use super::{
    Kind,
    status::{Cause, Refusal, Result},
};

/// Type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Json,
    Merge,
    Strategic,
}

/// Types of patches of built-in kinds.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

impl Style {
    pub fn of(kind: Kind, media_type: Option<&str>) -> Result<Self> {
        match media_type.unwrap_or_default() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !kind.is_custom() => Ok(Self::Strategic),
            _ if kind.is_custom() => Err(Refusal::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            // The route ignores a space, and the handler does not.
            spaced if PATCHES.contains(&spaced.trim()) => {
                Err(Refusal::unsupported_media_type(&PATCHES.join(", ")))
            }
            _ => Err(Refusal::no_media_type()),
        }
    }

    pub fn apply(self, kind: Kind, object: &Value, patch: &[u8]) -> Result<Value> {
        if self == Self::Json {
            return super::json_patch::apply(object, patch);
        }
        let parsed: Value = serde_json::from_slice(patch).map_err(|error| match self {
            Self::Json | Self::Merge => {
                Refusal::bad_request(format!("error decoding patch: {error}"))
            }
            Self::Strategic => Refusal::bad_request(format!("not JSON: {error}")),
        })?;
        if !parsed.is_object() {
            return Err(super::Unknown(format!("the patch {parsed}")).into());
        }
        let mut new = object.clone();
        match self {
            Self::Json | Self::Merge => json_patch::merge(&mut new, &parsed),
            Self::Strategic => strategic(kind, &mut new, &parsed)?,
        }
        Ok(new)
    }
}

/// Merge key of a list, unless the list is replaced as a whole. Only the fields of the served kinds are known.
enum Elements {
    By(&'static str),
    Themselves,
    Replaced,
}

/// Prefixes of directives for a list.
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";
/// Directive with the only fields that a map keeps.
const RETAIN: &str = "$retainKeys";

fn elements(kind: Kind, field: &str) -> Elements {
    match field {
        // A pod's list has a key instead.
        "imagePullSecrets" if kind == Kind::ServiceAccount => Elements::Replaced,
        "ownerReferences" => Elements::By("uid"),
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "volumes"
        | "imagePullSecrets"
        | "resourceClaims"
        | "schedulingGates"
        | "secrets" => Elements::By("name"),
        "hostAliases" => Elements::By("ip"),
        "topologySpreadConstraints" => Elements::By("topologyKey"),
        "volumeDevices" => Elements::By("devicePath"),
        "conditions" => Elements::By("type"),
        "ports" if kind == Kind::Service => Elements::By("port"),
        "ports" => Elements::By("containerPort"),
        "volumeMounts" => Elements::By("mountPath"),
        "finalizers" => Elements::Themselves,
        _ => Elements::Replaced,
    }
}

fn strategic(kind: Kind, target: &mut Value, patch: &Value) -> Result<()> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            if let Some(directive) = patch.get("$patch") {
                *target = match directive.as_str() {
                    Some("replace") if !patch.values().any(has_directive) => patch.clone(),
                    Some("delete") => Map::new(),
                    _ => {
                        let words = format!("$patch={directive} in a strategic merge patch");
                        return Err(super::Unknown(words).into());
                    }
                };
                target.remove("$patch");
                return Ok(());
            }
            retain(target, patch)?;
            for (key, value) in patch.iter().filter(|(key, _)| key.starts_with('$')) {
                if let (Some(list), Value::Array(those)) = (key.strip_prefix(DELETE), value) {
                    if let Some(Value::Array(list)) = target.get_mut(list) {
                        list.retain(|it| !those.contains(it));
                    }
                } else if key != RETAIN
                    && (key.strip_prefix(ORDER)).is_none_or(|list| !patch.contains_key(list))
                {
                    let words = format!("{key} in a strategic merge patch");
                    return Err(super::Unknown(words).into());
                }
            }
            for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
                let order = patch.get(&format!("{ORDER}{key}"));
                match (target.get_mut(key), value) {
                    (_, Value::Null) => _ = target.remove(key),
                    (Some(Value::Array(old)), Value::Array(value)) => {
                        *old = merged_list(kind, old, value, key, order)?;
                    }
                    (Some(old @ Value::Object(_)), Value::Object(_)) => {
                        strategic(kind, old, value)?;
                    }
                    (_, value) => match without_directives(value) {
                        Some(value) => _ = target.insert(key.clone(), value),
                        None => _ = target.remove(key),
                    },
                }
            }
        }
        (target, patch) => *target = as_it_is(patch)?,
    }
    Ok(())
}

/// Removes the fields that the patch does not retain (`applyRetainKeysDirective`).
fn retain(target: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<()> {
    let Some(kept) = patch.get(RETAIN) else {
        return Ok(());
    };
    let is_kept = |key: &str| {
        let mut kept = kept.as_array().into_iter().flatten();
        kept.any(|it| it == key)
    };
    let mut values = patch.iter().filter(|(_, value)| !value.is_null());
    if !kept.is_array() || values.any(|(key, _)| !key.starts_with('$') && !is_kept(key)) {
        return Err(Refusal::bad_request("invalid patch format of retainKeys"));
    }
    target.retain(|key, _| is_kept(key));
    Ok(())
}

/// Fails if elements that are merged have no key, or the same one.
fn check_keys(field: &str, key: &str, old: &[Value], patch: &[Value]) -> Result<()> {
    let fails = |words: String| Err(Refusal::new(500, "", &words, None));
    if patch.contains(&Value::Null) {
        let both = in_go(&json!([old, patch]));
        return fails(format!("list element types are not identical: {both}"));
    }
    let with = |value: &Value| old.iter().filter(|it| it[key] == value[key]).count();
    // The API server looks at each old element for a new one.
    let is_read = patch.iter().any(|value| with(value) == 0);
    let mut read = patch.iter().chain(old.iter().filter(|_| is_read));
    if let Some(value) = read.find(|value| value[key].is_null()) {
        let value = in_go(value);
        return fails(format!(
            "map: {value} does not contain declared merge key: {key}"
        ));
    }
    let unknown = if let Some(value) = patch.iter().find(|value| with(value) > 1) {
        format!("a patch of the repeated element {}", value[key])
    } else if old.iter().any(|it| it[key].is_null()) {
        format!("a patch of {field} with an element without {key}")
    } else {
        return Ok(());
    };
    Err(super::Unknown(unknown).into())
}

fn merged_list(
    kind: Kind,
    old: &[Value],
    patch: &[Value],
    field: &str,
    order: Option<&Value>,
) -> Result<Vec<Value>> {
    let key = match elements(kind, field) {
        Elements::Replaced => return patch.iter().map(as_it_is).collect(),
        Elements::By(key) => Some(key),
        Elements::Themselves => None,
    };
    if patch.iter().any(|value| value["$patch"] == "replace") {
        let rest = patch.iter().filter(|value| value.get("$patch").is_none());
        return rest.map(as_it_is).collect();
    }
    let identity = |value: &Value| key.map_or_else(|| value.clone(), |key| value[key].clone());
    if let Some(key) = key {
        check_keys(field, key, old, patch)?;
    }
    let place =
        |list: &[Value], value: &Value| list.iter().position(|it| identity(it) == identity(value));
    let is_deletion = |value: &&Value| key.is_some() && value["$patch"] == "delete";
    let deleted: Vec<_> = patch.iter().filter(is_deletion).collect();
    let is_deleted = |it: &Value| deleted.iter().any(|value| identity(value) == identity(it));
    let old: Vec<_> = old.iter().filter(|it| !is_deleted(it)).cloned().collect();
    let old = &*old;
    let mut patched = Vec::new();
    for value in patch.iter().filter(|value| !is_deletion(value)) {
        if key.is_some()
            && let Some(at) = place(&patched, value)
        {
            strategic(kind, &mut patched[at], value)?;
            continue;
        }
        let new = match place(old, value) {
            Some(at) if key.is_some() => {
                let mut new = old[at].clone();
                strategic(kind, &mut new, value)?;
                new
            }
            Some(at) => old[at].clone(),
            None => as_it_is(value)?,
        };
        if place(&patched, value).is_none() {
            patched.push(new);
        }
    }
    if let Some(order) = order.and_then(Value::as_array) {
        // Elements in the order that the patch does not change are sorted with its elements.
        let named = order.iter().map(|it| (place(&patched, it), place(old, it)));
        let named = named.filter_map(|(new, old_place)| match new {
            Some(new) => Some((Some(new), patched[new].clone())),
            None => old_place.map(|at| (None, old[at].clone())),
        });
        let named: Vec<_> = named.collect();
        let places = named.iter().filter_map(|(new, _)| *new);
        if !places.eq(0..patched.len()) {
            let words = format!("a patch of {field} in another order than its {ORDER}{field}");
            return Err(super::Unknown(words).into());
        }
        patched = named.into_iter().map(|(_, value)| value).collect();
    }
    let rest = old.iter().filter(|it| place(&patched, it).is_none());
    let mut rest = rest.collect::<Vec<_>>().into_iter().peekable();
    let mut patched = patched.into_iter().peekable();
    let mut all = Vec::new();
    // An element that is not in the patch stays in front of its successors. All new elements precede it.
    loop {
        let first = match (rest.peek(), patched.peek()) {
            (None, None) => return Ok(all),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(mine), Some(theirs)) => {
                place(old, theirs).is_some_and(|theirs| place(old, mine) < Some(theirs))
            }
        };
        if first {
            all.extend(rest.next().cloned());
        } else {
            all.extend(patched.next());
        }
    }
}

/// Returns the value of a field that is not there yet, without nulls (`discardNullValuesFromPatch`) and without the maps and elements
/// that are directives (`removeDirectives`).
fn without_directives(patch: &Value) -> Option<Value> {
    Some(match patch {
        Value::Object(fields) if fields.contains_key("$patch") => return None,
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            let fields =
                fields.filter_map(|(key, value)| Some((key.clone(), without_directives(value)?)));
            Value::Object(fields.collect())
        }
        Value::Array(all) => all.iter().filter_map(without_directives).collect(),
        other => other.clone(),
    })
}

/// Returns a new element of a list. Go takes a directive in it for data, which is not modelled.
fn as_it_is(element: &Value) -> Result<Value> {
    let new = without_directives(element).filter(|_| !has_directive(element));
    let words = || super::Unknown(format!("a directive in {element}, a new element of a list"));
    new.ok_or_else(|| words().into())
}

fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.contains_key("$patch") || fields.values().any(has_directive)
        }
        Value::Array(all) => all.iter().any(has_directive),
        _ => false,
    }
}

/// Returns the error for a patch whose result is not an object of the kind.
pub fn unfit(words: &str) -> Refusal {
    let cause = Cause::invalid("patch", "\"\"", words);
    Refusal::invalid_of("", "", "", &[cause])
}

/// Formats a map like Go.
pub fn in_go(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", in_go(value)));
            format!("map[{}]", fields.collect::<Vec<_>>().join(" "))
        }
        Value::Array(all) => {
            let all = all.iter().map(in_go).collect::<Vec<_>>();
            format!("[{}]", all.join(" "))
        }
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
