//! Values with other fields (`typed/merge.go` and `remove.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    check::{Form, step},
    set::{Set, Step},
    types::{List, Ref},
};

/// Returns an object with the fields of another one.
pub fn merged(of: &Ref, old: &Value, new: &Value) -> Value {
    merge(of, Some(old), Some(new)).unwrap_or_default()
}

fn merge(of: &Ref, old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    let of = of.get();
    let form = of.form(new.or(old)?);
    let whole = || new.or(old).cloned();
    match form {
        Some(Form::Map) => {
            let fields = |value: Option<&'_ Value>| -> Map<String, Value> {
                value
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default()
            };
            let (was, is) = (fields(old), fields(new));
            let Some(map) = of.map.as_ref().filter(|map| !map.is_atomic) else {
                return whole();
            };
            if was.is_empty() && is.is_empty() {
                return whole();
            }
            let mut out = Map::new();
            for name in was.keys().chain(is.keys()) {
                if !out.contains_key(name)
                    && let Some(of) = map.field(name)
                    && let Some(value) = merge(of, was.get(name), is.get(name))
                {
                    out.insert(name.clone(), value);
                }
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        Some(Form::List) => {
            let items = |value: Option<&'_ Value>| -> Vec<Value> {
                value.and_then(Value::as_array).cloned().unwrap_or_default()
            };
            let (was, is) = (items(old), items(new));
            let Some(list) = of.list.as_ref().filter(|list| !list.is_atomic()) else {
                return whole();
            };
            if was.is_empty() && is.is_empty() {
                return whole();
            }
            let out = merge_lists(list, &was, &is);
            (!out.is_empty()).then_some(Value::Array(out))
        }
        Some(Form::Scalar) | None => whole(),
    }
}

/// Merges two lists. Elements of both have the order of the new list, and all others stay between them.
fn merge_lists(list: &List, old: &[Value], new: &[Value]) -> Vec<Value> {
    let steps = |items: &[Value]| -> Vec<Step> {
        items
            .iter()
            .filter_map(|item| step(list, item).ok())
            .collect()
    };
    let (was, is) = (steps(old), steps(new));
    // A repeated element is not merged with the new one.
    let mut before: BTreeMap<&Step, &Value> = BTreeMap::new();
    for (step, item) in was.iter().zip(old) {
        before
            .entry(step)
            .and_modify(|item| *item = &Value::Null)
            .or_insert(item);
    }
    let after: BTreeMap<&Step, &Value> = is.iter().zip(new).collect();
    let mut shared = is.iter().filter(|step| before.contains_key(step));
    let mut next = shared.next();
    let mut done = BTreeSet::new();
    let mut out = Vec::new();
    let mut take = |old: Option<&Value>, new: Option<&Value>| {
        out.extend(merge(&list.of, old, new));
    };
    let (mut l, mut r) = (0, 0);
    while l < was.len() || r < is.len() {
        if l < was.len() && r < is.len() {
            let step = &was[l];
            if *step == is[r] {
                done.insert(step);
                take(before.get(step).copied(), after.get(step).copied());
                l += 1;
                r += 1;
                next = shared.next();
                continue;
            }
            if after.contains_key(step) && next.is_some_and(|next| next != step) {
                // An element of both, but not the one whose turn it is.
                l += 1;
                continue;
            }
        }
        if l < was.len() {
            let step = &was[l];
            if !after.contains_key(step) {
                take(Some(&old[l]), None);
                l += 1;
                continue;
            }
            if done.contains(step) {
                l += 1;
            }
        }
        if r < is.len() {
            let step = &is[r];
            done.insert(step);
            take(before.get(step).copied(), after.get(step).copied());
            r += 1;
            if next == Some(step) {
                next = shared.next();
            }
        }
    }
    out
}

/// Returns a value without these fields and elements.
pub fn without(of: &Ref, value: &Value, gone: &Set) -> Value {
    let of = of.get();
    match (of.form(value), value) {
        (Some(Form::Scalar), value) => value.clone(),
        (Some(Form::List), Value::Array(all)) => {
            let Some(list) = of.list.as_ref().filter(|list| !list.is_atomic()) else {
                return Value::Null;
            };
            let kept = all.iter().filter_map(|item| {
                let Ok(step) = step(list, item) else {
                    return Some(item.clone());
                };
                (!gone.has(&step)).then(|| match gone.below(&step) {
                    Some(below) => without(&list.of, item, below),
                    None => item.clone(),
                })
            });
            let kept: Vec<_> = kept.collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        (Some(Form::Map), Value::Object(fields)) => {
            let Some(map) = of.map.as_ref().filter(|map| !map.is_atomic) else {
                return Value::Null;
            };
            let mut kept = Map::new();
            for (name, value) in fields {
                let step = Step::Field(name.clone());
                if gone.has(&step) {
                    continue;
                }
                let value = match (gone.below(&step), map.field(name)) {
                    (Some(below), Some(of)) => without(of, value, below),
                    _ => value.clone(),
                };
                kept.insert(name.clone(), value);
            }
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        _ => Value::Null,
    }
}
