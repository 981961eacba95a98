//! Values as Go formats them in messages.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::Release;

/// Formats a value like `field.Error`.
pub fn shown(value: &Value, release: Release) -> String {
    match value {
        Value::Null if release < Release::V1_34 => quoted("null"),
        Value::Array(_) | Value::Object(_) if release < Release::V1_34 => syntax(value),
        Value::Array(_) | Value::Object(_) => json(value),
        value => scalar(value),
    }
}

/// Formats a value that is neither a list nor a map.
pub fn scalar(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.to_string(),
            None => float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Formats a value like `%#v`.
pub fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(all) => {
            let all = all.iter().map(syntax).collect::<Vec<_>>();
            format!("[]interface {{}}{{{}}}", all.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", quoted(name), syntax(value)));
            let fields = fields.collect::<Vec<_>>();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        value => scalar(value),
    }
}

/// Formats JSON like `json.Marshal`, which escapes the characters of HTML, and shows whole numbers without a fraction.
pub fn json(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            if float == 0.0 || (1e-6..1e21).contains(&float.abs()) {
                return format!("{float}");
            }
            let text = format!("{float:e}");
            let is_large = float.abs() >= 1.0;
            if is_large {
                text.replace('e', "e+")
            } else {
                text
            }
        }
        Value::Array(all) => {
            let all = all.iter().map(json).collect::<Vec<_>>();
            format!("[{}]", all.join(","))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let name = json(&Value::from(name.as_str()));
                format!("{name}:{}", json(value))
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        other => {
            let text = other.to_string();
            let text = text.replace('<', "\\u003c").replace('>', "\\u003e");
            text.replace('&', "\\u0026")
        }
    }
}

/// Quotes a text like `strconv.Quote`.
pub fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a floating-point number like `%v`: with an exponent if it is below -4 or above 5.
pub fn float(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Formats the path of a child.
pub fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Formats a path in an error. The path of the root is a nil pointer.
pub fn path(path: &str) -> String {
    if path.is_empty() {
        "<nil>".to_owned()
    } else {
        path.to_owned()
    }
}
