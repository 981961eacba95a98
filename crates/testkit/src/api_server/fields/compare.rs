//! Differences of two values (`typed/compare.go`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    check::{Form, step},
    set::{Set, Step},
    types::{List, Ref, Type},
};

/// Fields that differ.
#[derive(Debug, Default)]
pub struct Comparison {
    pub removed: Set,
    pub modified: Set,
    pub added: Set,
}

/// Change of a value itself.
#[derive(Default)]
struct Own {
    removed: bool,
    modified: bool,
    added: bool,
}

impl Comparison {
    pub fn of(of: &Ref, old: &Value, new: &Value) -> Self {
        let mut found = Self::default();
        compare(of, Some(old), Some(new), &mut found);
        found
    }

    /// Leaves out fields with everything below.
    pub fn ignore(&mut self, fields: &Set) {
        self.removed.remove_all(fields);
        self.modified.remove_all(fields);
        self.added.remove_all(fields);
    }

    /// Compares a value that is one step below.
    fn descend(&mut self, step: Step, of: &Ref, old: Option<&Value>, new: Option<&Value>) {
        if old == new {
            return;
        }
        let mut below = Self::default();
        let own = compare(of, old, new, &mut below);
        self.note(step, &own, below);
    }

    fn note(&mut self, step: Step, own: &Own, below: Self) {
        if own.removed || !below.removed.is_empty() {
            self.removed.add(step.clone(), own.removed, below.removed);
        }
        if own.modified || !below.modified.is_empty() {
            self.modified
                .add(step.clone(), own.modified, below.modified);
        }
        self.added.add(step, own.added, below.added);
    }
}

fn compare(of: &Ref, old: Option<&Value>, new: Option<&Value>, found: &mut Comparison) -> Own {
    let of = of.get();
    let form = |value: Option<&Value>| value.and_then(|value| of.form(value));
    let (was, is) = (form(old), form(new));
    let (mut own, mut is_leaf) = (Own::default(), false);
    if let (Some(was), Some(is)) = (was, is)
        && was != is
        && old.is_some_and(|old| !old.is_null())
        && new.is_some_and(|new| !new.is_null())
    {
        // The old form first.
        handle(of, was, old, new, found, &mut own);
    }
    if let Some(form) = is.or(was) {
        is_leaf = handle(of, form, old, new, found, &mut own);
    }
    if !is_leaf {
        own.added |= old.is_none();
        own.removed |= new.is_none();
    }
    own
}

/// Compares two values in one form. Returns whether they are compared as a whole.
fn handle<'a>(
    of: &Type,
    form: Form,
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    found: &mut Comparison,
    own: &mut Own,
) -> bool {
    match form {
        Form::Scalar => {}
        Form::Map => {
            let fields = |value: Option<&'a Value>| {
                let fields = value.and_then(Value::as_object);
                fields.filter(|fields| !fields.is_empty())
            };
            let (was, is) = (fields(old), fields(new));
            if let Some(map) = &of.map
                && !map.is_atomic
                && (was.is_some() || is.is_some())
            {
                let has = |name: &str| is.is_some_and(|is| is.contains_key(name));
                let gone = was.into_iter().flatten().filter(|(name, _)| !has(name));
                for (name, _) in is.into_iter().flatten().chain(gone) {
                    let side = |side: Option<&'a Map<String, Value>>| side?.get(name);
                    let (was, is) = (side(was), side(is));
                    if was != is
                        && let Some(of) = map.field(name)
                    {
                        found.descend(Step::Field(name.clone()), of, was, is);
                    }
                }
                return false;
            }
        }
        Form::List => {
            let items = |value: Option<&'a Value>| {
                let items = value.and_then(Value::as_array);
                items.map(Vec::as_slice).unwrap_or_default()
            };
            let (was, is) = (items(old), items(new));
            if let Some(list) = &of.list
                && !list.is_atomic()
                && !(was.is_empty() && is.is_empty())
            {
                compare_lists(list, was, is, found);
                return false;
            }
        }
    }
    match (old, new) {
        (None, _) => own.added = true,
        (_, None) => own.removed = true,
        (Some(old), Some(new)) => own.modified |= !is_same(old, new),
    }
    true
}

fn compare_lists(list: &List, old: &[Value], new: &[Value], found: &mut Comparison) {
    let mut all: BTreeMap<Step, [Vec<&Value>; 2]> = BTreeMap::new();
    for (side, items) in [old, new].into_iter().enumerate() {
        for item in items {
            if let Ok(step) = step(list, item) {
                all.entry(step).or_default()[side].push(item);
            }
        }
    }
    for (step, [old, new]) in all {
        // Repeated elements are one field.
        let (is_many, was_many) = (new.len() > 1, old.len() > 1);
        let own = match (was_many, is_many) {
            (false, false) => {
                found.descend(step, &list.of, old.first().copied(), new.first().copied());
                continue;
            }
            (true, true) => Own {
                modified: old.len() != new.len()
                    || old.iter().zip(&new).any(|(old, new)| !is_same(old, new)),
                ..Own::default()
            },
            (true, false) => {
                if let Some(new) = new.first() {
                    found.descend(step.clone(), &list.of, None, Some(new));
                }
                Own {
                    removed: true,
                    ..Own::default()
                }
            }
            (false, true) => {
                if let Some(old) = old.first() {
                    found.descend(step.clone(), &list.of, Some(old), None);
                }
                Own {
                    added: true,
                    ..Own::default()
                }
            }
        };
        found.note(step, &own, Comparison::default());
    }
}

/// Returns whether two values are the same. Numbers are compared by their values.
pub fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x == y,
            _ => x.as_f64() == y.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && (a.iter()).all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}
