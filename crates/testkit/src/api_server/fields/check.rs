//! The forms of values, their errors, and the fields that they have (`typed/helpers.go`, `validate.go` and `tofieldset.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    super::schema::go,
    set::{Scalar, Set, Step},
    text,
    types::{self, Elements, List, Ref, Type},
};

/// A form that a type permits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Map,
    Scalar,
    List,
}

impl Type {
    /// Returns the form of a value. Null, and a value of a form that is not permitted, have the first one.
    pub fn form(&self, value: &Value) -> Option<Form> {
        let has = match value {
            Value::Null => None,
            Value::Array(_) => self.list.is_some().then_some(Form::List),
            Value::Object(_) => self.map.is_some().then_some(Form::Map),
            _ => self.scalar.is_some().then_some(Form::Scalar),
        };
        let first = || match self {
            Self { map: Some(_), .. } => Some(Form::Map),
            Self {
                scalar: Some(_), ..
            } => Some(Form::Scalar),
            Self { list: Some(_), .. } => Some(Form::List),
            _ => None,
        };
        has.or_else(first)
    }
}

/// Returns the step to an element of a list.
pub fn step(list: &List, item: &Value) -> Result<Step, String> {
    let keys = match (&list.elements, item) {
        (Elements::Atomic, _) => return Err("invalid indexing of non-associative list".to_owned()),
        (Elements::Set, item) => {
            let why = match item {
                Value::Object(_) => {
                    "associative list without keys has an element that's a map type"
                }
                Value::Array(_) => "not supported: associative list with lists as elements",
                Value::Null => {
                    "associative list without keys has an element that's an explicit null"
                }
                item => return Ok(Step::Item(Scalar(item.clone()))),
            };
            return Err(why.to_owned());
        }
        (Elements::Map(keys), _) => keys,
    };
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let map = list.of.get().map.as_ref();
    let value = |key: &String| {
        let default = || map?.fields.get(key)?.default.as_ref();
        let value = fields.get(key).or_else(default)?;
        Some((key.clone(), Scalar(value.clone())))
    };
    if let Some(key) = keys.iter().find(|key| value(key).is_none())
        && list.needs_all_keys
    {
        return Err(format!(
            "associative list with keys has an element that omits key field {key:?} (and doesn't have default value)"
        ));
    }
    let mut found: Vec<_> = keys.iter().filter_map(value).collect();
    if found.is_empty() {
        let keys = keys.iter().map(|key| format!("{key:?}"));
        let keys = keys.collect::<Vec<_>>().join(" ");
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values for any \
             key fields)"
        ));
    }
    found.sort();
    Ok(Step::Key(found))
}

/// Path and message of an error.
type Errors = Vec<(String, String)>;

/// Returns why a value does not have the type, as Go reports it. The elements of sets may be allowed to repeat.
pub fn validate(of: &Ref, value: &Value, may_repeat: bool) -> Result<(), String> {
    let mut errors = Vec::new();
    check(of.get(), value, may_repeat, "", &mut errors);
    let shown = |(path, words): &(String, String)| {
        if path.is_empty() {
            words.clone()
        } else {
            format!("{path}: {words}")
        }
    };
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(shown(one)),
        many => {
            let many = many.iter().map(|one| format!("\n  {}", shown(one)));
            Err(format!("errors:{}", many.collect::<String>()))
        }
    }
}

fn check(of: &Type, value: &Value, may_repeat: bool, path: &str, errors: &mut Errors) {
    let mut error = |words: String| errors.push((path.to_owned(), words));
    match (of.form(value), value) {
        (None, _) => error("schema error: invalid atom: inlined".to_owned()),
        (Some(_), Value::Null) => {}
        (Some(Form::Scalar), value) => {
            if let Some(scalar) = of.scalar {
                errors.extend(wrong(scalar, value).map(|words| (path.to_owned(), words)));
            }
        }
        (Some(Form::List), Value::Array(all)) => {
            if let Some(list) = &of.list {
                check_list(list, all, may_repeat, path, errors);
            }
        }
        (Some(Form::List), value) => error(format!("expected list, got {}", reflected(value))),
        (Some(Form::Map), Value::Object(fields)) => {
            let Some(map) = &of.map else {
                return;
            };
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                let Some(of) = map.field(name) else {
                    errors.push((path, "field not declared in schema".to_owned()));
                    return;
                };
                check(of.get(), value, may_repeat, &path, errors);
            }
        }
        (Some(Form::Map), value) => error(format!("expected map, got {}", reflected(value))),
    }
}

fn check_list(list: &List, all: &[Value], may_repeat: bool, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (at, item) in all.iter().enumerate() {
        let step = if list.is_atomic() {
            Step::Index(i64::try_from(at).unwrap_or_default())
        } else {
            match step(list, item) {
                Ok(step) => step,
                Err(why) => return errors.push((path.to_owned(), format!("element {at}: {why}"))),
            }
        };
        let shown = text::shown(&step);
        if !seen.insert(step) && !may_repeat {
            errors.push((
                path.to_owned(),
                format!("duplicate entries for key {shown}"),
            ));
        }
        let path = format!("{path}{shown}");
        check(list.of.get(), item, may_repeat, &path, errors);
    }
}

/// Returns why a value is no such scalar.
fn wrong(scalar: types::Scalar, value: &Value) -> Option<String> {
    let is_scalar = !value.is_array() && !value.is_object();
    match scalar {
        types::Scalar::Number => (!value.is_number())
            .then(|| format!("expected numeric (int or float), got {}", go_type(value))),
        types::Scalar::Text => (!value.is_string()).then(|| {
            let shown = go::syntax(value);
            format!("expected string, got &value.valueUnstructured{{Value:{shown}}}")
        }),
        types::Scalar::Bool => {
            (!value.is_boolean()).then(|| format!("expected boolean, got {}", reflected(value)))
        }
        types::Scalar::Any | types::Scalar::Quantity => {
            (!is_scalar).then(|| format!("expected any scalar, got {}", reflected(value)))
        }
    }
}

/// Formats a pointer to a value like `%v`.
fn reflected(value: &Value) -> String {
    format!("&{{{}}}", super::super::patch::in_go(value))
}

/// Formats the type of a value like `%T`. Numbers of YAML are floating-point numbers.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Returns the fields that a value has. The content of a list or a map without a declared type is a field of its own.
pub fn fields_of(of: &Ref, value: &Value) -> Set {
    let mut set = Set::default();
    add_fields(of.get(), value, &mut set);
    set
}

/// Adds the fields of a value. Returns whether the value is one itself.
fn add_fields(of: &Type, value: &Value, set: &mut Set) -> bool {
    match of.form(value) {
        None => false,
        Some(Form::Scalar) => true,
        Some(Form::List) => {
            let Some(list) = of.list.as_ref().filter(|list| !list.is_atomic()) else {
                return true;
            };
            let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let steps: Vec<_> = all.iter().map(|item| step(list, item).ok()).collect();
            let mut counts = BTreeMap::new();
            for step in steps.iter().flatten() {
                *counts.entry(step).or_insert(0) += 1;
            }
            for (item, step) in all.iter().zip(&steps) {
                let Some(step) = step else {
                    continue;
                };
                let mut below = Set::default();
                if counts.get(step) == Some(&1) {
                    add_fields(list.of.get(), item, &mut below);
                }
                set.add(step.clone(), true, below);
            }
            false
        }
        Some(Form::Map) => {
            let Some(map) = of.map.as_ref().filter(|map| !map.is_atomic) else {
                return true;
            };
            for (name, value) in value.as_object().into_iter().flatten() {
                let Some(of) = map.field(name) else {
                    continue;
                };
                let mut below = Set::default();
                let is_field = add_fields(of.get(), value, &mut below);
                let is_empty =
                    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                let is_member = is_field || is_empty || !map.fields.contains_key(name);
                set.add(Step::Field(name.clone()), is_member, below);
            }
            false
        }
    }
}
