//! Validation of a value by its schema, with the messages of `k8s.io/kube-openapi/pkg/validation/validate`.

use serde_json::{Number, Value};

use super::{
    super::{Release, status::Cause},
    formats, go,
    node::{Additional, Node},
    ratchet::Pair,
};

/// The errors of a value.
#[derive(Debug)]
enum Wrong {
    Required,
    /// With the permitted values.
    NotSupported(Value, Vec<Value>),
    TooLong(i64),
    /// Number of items or properties, and their maximum.
    TooMany(usize, i64),
    /// With the name of the type of the value, or the text.
    Type(String),
    /// With the value, if there is one.
    Invalid(Option<Value>),
    /// An error that names no field.
    Nameless,
}

#[derive(Debug)]
struct Failure {
    path: String,
    wrong: Wrong,
    message: String,
}

/// Result of a validation: errors, and the number of checks that chooses between the alternatives of `anyOf` and `oneOf`.
#[derive(Debug, Default)]
struct Outcome {
    failures: Vec<Failure>,
    matches: usize,
}

impl Outcome {
    fn add(&mut self, path: &str, wrong: Wrong, message: String) {
        if self.failures.iter().all(|one| one.message != message) {
            let path = path.to_owned();
            self.failures.push(Failure {
                path,
                wrong,
                message,
            });
        }
    }

    fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        for one in other.failures {
            self.add(&one.path, one.wrong, one.message);
        }
    }

    /// Adds an error that names no field.
    fn add_nameless(&mut self, message: Option<String>) {
        if let Some(message) = message {
            self.add("", Wrong::Nameless, message);
        }
    }

    fn merge_all(&mut self, others: impl IntoIterator<Item = Self>) {
        for other in others {
            self.merge(other);
        }
    }

    fn is_valid(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Validates a value. Errors at values that are unchanged are dropped. `base` is the path of the value in its object.
pub fn check(new: &Value, node: &Node, pair: Option<Pair<'_>>, base: &str) -> Vec<Cause> {
    let outcome = value(new, node, "", pair);
    let causes = outcome.failures.into_iter();
    causes
        .map(|failure| cause(failure, base, node.release))
        .collect()
}

fn cause(failure: Failure, base: &str, release: Release) -> Cause {
    let Failure {
        path,
        wrong,
        message,
    } = failure;
    let path = match path.strip_prefix('.').unwrap_or(&path) {
        "" => go::path(base),
        path => go::child(base, path),
    };
    let is_one = |most: i64| most == 1 && release >= Release::V1_34;
    let (field, reason, message) = match wrong {
        Wrong::Required => (path, "FieldValueRequired", "Required value".to_owned()),
        Wrong::NotSupported(value, values) => {
            let values = values.iter().map(|value| match value {
                Value::String(text) => go::quoted(text),
                other => go::quoted(&go::json(other)),
            });
            let values = values.collect::<Vec<_>>().join(", ");
            let value = go::shown(&value, release);
            let message = format!("Unsupported value: {value}: supported values: {values}");
            (path, "FieldValueNotSupported", message)
        }
        Wrong::TooLong(most) => {
            let bytes = if is_one(most) { "byte" } else { "bytes" };
            let message = format!("Too long: may not be more than {most} {bytes}");
            (path, "FieldValueTooLong", message)
        }
        Wrong::TooMany(is, most) => {
            let items = if is_one(most) { "item" } else { "items" };
            let message = format!("Too many: {is}: must have at most {most} {items}");
            (path, "FieldValueTooMany", message)
        }
        Wrong::Type(is) => {
            let message = format!("Invalid value: {}: {message}", go::quoted(&is));
            (path, "FieldValueTypeInvalid", message)
        }
        Wrong::Invalid(value) => {
            let value = value.as_ref();
            let value = value.map_or_else(|| "\"\"".to_owned(), |it| go::shown(it, release));
            (
                path,
                "FieldValueInvalid",
                format!("Invalid value: {value}: {message}"),
            )
        }
        Wrong::Nameless => (
            go::path(base),
            "FieldValueInvalid",
            format!("Invalid value: \"\": {message}"),
        ),
    };
    Cause {
        field,
        reason,
        message,
    }
}

/// Returns the type of a value, and the format that Go's type has.
fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

fn value(new: &Value, node: &Node, path: &str, pair: Option<Pair<'_>>) -> Outcome {
    let mut outcome = Outcome::default();
    if new.is_null() {
        outcome.merge(types(new, node, path));
        outcome.merge(values(new, node, path));
    } else {
        let mut checks = Vec::new();
        if !node.types.is_empty() || !node.format.is_empty() {
            checks.push(types(new, node, path));
        }
        checks.push(alternatives(new, node, path));
        match new {
            Value::String(text) => {
                checks.push(string(text, node, path));
                if !node.format.is_empty() && is_for_strings(&node.format) {
                    checks.push(format(text, node, path));
                }
            }
            Value::Number(is) => checks.push(number(is, node, path)),
            Value::Array(all) => checks.push(array(all, node, path, pair)),
            _ => {}
        }
        checks.push(values(new, node, path));
        if let Value::Object(_) = new {
            checks.push(object(new, node, path, pair));
        }
        outcome.matches += checks.len() + 1;
        outcome.merge_all(checks);
    }
    if !outcome.is_valid() && pair.is_some_and(Pair::is_unchanged) {
        outcome.failures.clear();
    }
    outcome
}

fn is_for_strings(format: &str) -> bool {
    !matches!(format, "int32" | "int64" | "float" | "double")
}

/// Returns whether Go considers a floating-point number an integer (`swag.IsFloat64AJSONInteger`).
fn is_whole(value: f64) -> bool {
    const EPSILON: f64 = 1e-9;
    const MOST: f64 = 9_007_199_254_740_991.0;
    if !value.is_finite() || value.abs() > MOST {
        return false;
    }
    let whole = value.trunc();
    if value.fract() == 0.0 {
        return true;
    }
    // Go converts to an unsigned integer, so a negative number is compared with a large one.
    value > 0.0 && whole != 0.0 && (value - whole).abs() / (value + whole) < EPSILON
}

fn types(new: &Value, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let has = |name: &str| node.types.iter().any(|it| it == name);
    let (is, format) = type_of(new);
    let fail = |outcome: &mut Outcome, wanted: &str, is: &str| {
        let message = format!(
            "{path} in body must be of type {wanted}: {}",
            go::quoted(is)
        );
        outcome.add(path, Wrong::Type(is.to_owned()), message);
    };
    let wanted = node.types.join(",");
    if new.is_null() {
        if node.types.is_empty() || has("null") || node.nullable {
            outcome.matches += 1;
        } else {
            fail(&mut outcome, &wanted, "null");
        }
        return outcome;
    }
    let float = new
        .as_number()
        .filter(|it| it.is_f64())
        .and_then(Number::as_f64);
    let is_whole = float.is_some_and(is_whole) && has("integer");
    let is_number = is == "integer" && has("number");
    let fits = has(is) || is_whole || is_number;
    let is_text = matches!(new, Value::String(_) | Value::Array(_));
    if !is_text && !node.format.is_empty() && !fits && format != node.format {
        fail(&mut outcome, &node.format, format);
        return outcome;
    }
    let is_for_numbers = has("number") || has("integer");
    let is_format = is_text && !node.format.is_empty() && !is_for_numbers;
    if !fits && !is_format {
        fail(&mut outcome, &wanted, is);
        return outcome;
    }
    outcome.matches += 1;
    outcome
}

/// Checks `anyOf`, `oneOf`, `allOf` and `not`. Their schemas do not ratchet.
fn alternatives(new: &Value, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let of = |node: &Node| value(new, node, path, None);
    if !node.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut valid = None;
        for one in &node.any_of {
            let result = of(one);
            if result.is_valid() {
                valid = Some(result);
                break;
            }
            if best
                .as_ref()
                .is_none_or(|best| result.matches > best.matches)
            {
                best = Some(result);
            }
        }
        if valid.is_none() {
            let message = format!(
                "{} must validate at least one schema (anyOf)",
                go::quoted(path)
            );
            outcome.add(path, Wrong::Nameless, message);
        }
        outcome.merge_all(valid.or(best));
    }
    if !node.one_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut valid = Vec::new();
        for one in &node.one_of {
            let result = of(one);
            if result.is_valid() {
                best = None;
                valid.push(result);
            } else if valid.is_empty()
                && best
                    .as_ref()
                    .is_none_or(|best| result.matches > best.matches)
            {
                best = Some(result);
            }
        }
        if valid.len() == 1 {
            outcome.merge_all(valid);
        } else {
            let found = match valid.len() {
                0 => "Found none valid".to_owned(),
                count => format!("Found {count} valid alternatives"),
            };
            let message = format!(
                "{} must validate one and only one schema (oneOf). {found}",
                go::quoted(path)
            );
            outcome.add(path, Wrong::Nameless, message);
            outcome.merge_all(best);
        }
    }
    if !node.all_of.is_empty() {
        let results: Vec<_> = node.all_of.iter().map(of).collect();
        let valid = results.iter().filter(|result| result.is_valid()).count();
        let all = results.len();
        outcome.merge_all(results);
        if valid != all {
            let words = if valid == 0 { ". None validated" } else { "" };
            let message = format!(
                "{} must validate all the schemas (allOf){words}",
                go::quoted(path)
            );
            outcome.add(path, Wrong::Nameless, message);
        }
    }
    if node.not.as_deref().is_some_and(|not| of(not).is_valid()) {
        let message = format!("{} must not validate the schema (not)", go::quoted(path));
        outcome.add(path, Wrong::Nameless, message);
    }
    outcome.matches += 1;
    outcome
}

fn string(text: &str, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let value = || Some(Value::from(text));
    if let Some(most) = node.max_length.filter(|most| length > *most) {
        let message = format!("{path} in body should be at most {most} chars long");
        outcome.add(path, Wrong::TooLong(most), message);
    } else if let Some(least) = node.min_length.filter(|least| length < *least) {
        let message = format!("{path} in body should be at least {least} chars long");
        outcome.add(path, Wrong::Invalid(value()), message);
    } else if let Some(pattern) = node.pattern.as_ref().filter(|it| !it.is_match(text)) {
        let message = format!("{path} in body should match '{}'", pattern.text);
        outcome.add(path, Wrong::Invalid(value()), message);
    }
    outcome
}

fn format(text: &str, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if !formats::is_valid(&node.format, text) {
        let shown = go::quoted(text);
        let message = format!("{path} in body must be of type {}: {shown}", node.format);
        outcome.add(path, Wrong::Type(text.to_owned()), message);
    }
    outcome
}

/// Checks that a number has the range of the type, since 1.36. `shown` is the number without an exponent.
fn range(shown: &str, node: &Node, prefix: &str, path: &str) -> Option<String> {
    let [kind] = node.types.as_slice() else {
        return None;
    };
    if node.release < Release::V1_36 {
        return None;
    }
    let (fits, format) = match (kind.as_str(), node.format.as_str()) {
        ("integer", "int32") => (shown.parse::<i32>().is_ok(), "int32"),
        ("integer", "int64") => (shown.parse::<i64>().is_ok(), "int64"),
        ("integer", _) => (shown.parse::<i64>().is_ok(), ""),
        ("number", "float") => (shown.parse::<f32>().is_ok_and(f32::is_finite), "float"),
        _ => return None,
    };
    let of = match format {
        "" => "(default format)".to_owned(),
        format => format!("with format {format}"),
    };
    (!fits).then(|| format!("{prefix} value must be of type {kind} {of} in {path}"))
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "as Go converts them"
)]
fn number(is: &Number, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let (whole, float) = (is.as_i64(), is.as_f64().unwrap_or_default());
    let value = || Wrong::Invalid(Some(Value::Number(is.clone())));
    let shown = whole.map_or_else(|| format!("{float}"), |whole| whole.to_string());
    let checked = range(&shown, node, "Checked", path);
    outcome.add_nameless(checked);
    if let Some(factor) = node.numbers.multiple_of {
        let wrong = range(&format!("{factor}"), node, "MultipleOf", path);
        let (fits, factor) = match (whole, &wrong) {
            (Some(whole), None) if factor as i64 > 0 => {
                (whole % (factor as i64) == 0, (factor as i64).to_string())
            }
            (Some(_), None) => (false, String::new()),
            _ if factor < 1.0 => (is_whole(1.0 / factor * float), go::float(factor)),
            _ => (is_whole(float / factor), go::float(factor)),
        };
        outcome.add_nameless(wrong);
        if factor.is_empty() {
            let factor = node.numbers.multiple_of.unwrap_or_default() as i64;
            let message =
                format!("factor MultipleOf declared for {path} must be positive: {factor}");
            outcome.add(path, Wrong::Invalid(Some(factor.into())), message);
        } else if !fits {
            let message = format!("{path} in body should be a multiple of {factor}");
            outcome.add(path, value(), message);
        }
    }
    let bounds = [
        (
            node.numbers.minimum,
            node.numbers.exclusive_minimum,
            "Minimum boundary",
            -1.0,
        ),
        (
            node.numbers.maximum,
            node.numbers.exclusive_maximum,
            "Maximum boundary",
            1.0,
        ),
    ];
    for (bound, exclusive, prefix, sign) in bounds {
        let Some(bound) = bound else {
            continue;
        };
        let wrong = range(&format!("{bound}"), node, prefix, path);
        let (order, shown) = match (whole, &wrong) {
            (Some(whole), None) => (whole.cmp(&(bound as i64)), (bound as i64).to_string()),
            _ => (float.total_cmp(&bound), go::float(bound)),
        };
        outcome.add_nameless(wrong);
        let beyond = if sign > 0.0 { order } else { order.reverse() };
        if beyond.is_gt() || exclusive && beyond.is_eq() {
            let words = match (sign > 0.0, exclusive) {
                (true, false) => "less than or equal to",
                (true, true) => "less than",
                (false, false) => "greater than or equal to",
                (false, true) => "greater than",
            };
            outcome.add(
                path,
                value(),
                format!("{path} in body should be {words} {shown}"),
            );
        }
    }
    outcome.matches += 1;
    outcome
}

fn array(all: &[Value], node: &Node, path: &str, pair: Option<Pair<'_>>) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(items) = &node.items {
        for (at, one) in all.iter().enumerate() {
            let pair = pair.and_then(|pair| pair.element(at));
            outcome.merge(value(one, items, &format!("{path}[{at}]"), pair));
        }
    }
    let size = i64::try_from(all.len()).unwrap_or(i64::MAX);
    if let Some(least) = node.min_items.filter(|least| size < *least) {
        let message = format!("{path} in body should have at least {least} items");
        outcome.add(path, Wrong::Invalid(Some(size.into())), message);
    }
    if let Some(most) = node.max_items.filter(|most| size > *most) {
        let message = format!("{path} in body should have at most {most} items");
        outcome.add(path, Wrong::TooMany(all.len(), most), message);
    }
    outcome.matches += 1;
    outcome
}

/// Checks `enum`.
fn values(new: &Value, node: &Node, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if !node.values.is_empty() && !node.values.iter().any(|one| is_same(new, one)) {
        let values = node.values.iter().map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        let values = values.collect::<Vec<_>>().join(" ");
        let message = format!("{path} in body should be one of [{values}]");
        let wrong = Wrong::NotSupported(new.clone(), node.values.clone());
        outcome.add(path, wrong, message);
    }
    outcome
}

/// Returns whether a value, converted to the type of a permitted value, equals it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "as Go converts them"
)]
fn is_same(new: &Value, permitted: &Value) -> bool {
    match (new, permitted) {
        (Value::Number(new), Value::Number(permitted)) => match permitted.as_i64() {
            Some(whole) => match new.as_i64() {
                Some(new) => new == whole,
                None => new.as_f64().is_some_and(|new| new as i64 == whole),
            },
            None => new.as_f64() == permitted.as_f64(),
        },
        (Value::Null, _) => false,
        (new, permitted) => new == permitted,
    }
}

fn object(new: &Value, node: &Node, path: &str, pair: Option<Pair<'_>>) -> Outcome {
    let mut outcome = Outcome::default();
    let Value::Object(fields) = new else {
        return outcome;
    };
    let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = node.min_properties.filter(|least| size < *least) {
        let message = format!("{path} in body should have at least {least} properties");
        outcome.add(path, Wrong::Invalid(Some(size.into())), message);
    }
    if let Some(most) = node.max_properties.filter(|most| size > *most) {
        let message = format!("{path} in body should have at most {most} properties");
        outcome.add(path, Wrong::TooMany(fields.len(), most), message);
    }
    for (name, one) in fields {
        let is_type = path.is_empty() && matches!(name.as_str(), "kind" | "apiVersion");
        let pair = pair.filter(|_| !is_type).and_then(|pair| pair.field(name));
        match (node.properties.get(name), &node.additional) {
            (Some(node), _) => outcome.merge(value(one, node, &go::child(path, name), pair)),
            (None, Additional::Schema(node)) => {
                outcome.merge(value(one, node, &format!("{path}.{name}"), pair));
            }
            (None, Additional::Any(false)) => {
                let message = format!("{path}.{name} in body is a forbidden property");
                outcome.add(path, Wrong::Invalid(Some(name.as_str().into())), message);
            }
            _ => {}
        }
    }
    for name in &node.required {
        if !fields.contains_key(name) {
            let path = format!("{path}.{name}");
            outcome.add(
                &path,
                Wrong::Required,
                format!("{path} in body is required"),
            );
        }
    }
    outcome
}
