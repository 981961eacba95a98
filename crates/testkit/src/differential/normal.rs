//! The form of responses for the comparison.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api_server::store_numbers;

/// UIDs and versions of one side, numbered in the order of their first use.
#[derive(Default)]
pub struct Names {
    uids: BTreeMap<String, usize>,
    versions: BTreeMap<u64, usize>,
}

/// Words of parsers, which differ.
const PARSERS: [&str; 8] = [
    "cannot be handled as a",
    "couldn't get version/kind",
    "error decoding patch",
    "JSON",
    "strict decoding error",
    "must be a valid regular expression",
    "patch:",
    "json:",
];

/// Words about a field of a patch.
const UNDECLARED: &str = "field not declared in schema";

/// Words before a rule that has an error.
const RULES: [&str; 2] = [
    " evaluating rule: ",
    "call arguments did not match a supported operator, function or macro signature for rule: ",
];

/// A value in Go's syntax, with memory addresses.
const VERSIONS: &str = "Invalid value: []apiextensions.CustomResourceDefinitionVersion{";

impl Names {
    pub fn normal(&mut self, mut body: Value) -> Value {
        store_numbers(&mut body);
        self.walk(&mut body);
        if body["kind"] == "Status" {
            self.status(&mut body);
        }
        body
    }

    fn uid(&mut self, uid: &str) -> Value {
        let next = self.uids.len();
        let number = *self.uids.entry(uid.to_owned()).or_insert(next);
        json!(format!("uid {number}"))
    }

    fn walk(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                    self.metadata(metadata);
                }
                if let Some(Value::Object(details)) = fields.get_mut("details")
                    && let Some(Value::String(uid)) = details.get("uid").cloned()
                {
                    details.insert("uid".to_owned(), self.uid(&uid));
                }
                if let Some(time) = fields.get_mut("lastTransitionTime") {
                    *time = json!("a time");
                }
                fields.values_mut().for_each(|value| self.walk(value));
            }
            Value::Array(all) => all.iter_mut().for_each(|value| self.walk(value)),
            _ => {}
        }
    }

    fn metadata(&mut self, metadata: &mut Map<String, Value>) {
        if let Some(Value::Array(entries)) = metadata.get_mut("managedFields") {
            for entry in entries.iter_mut() {
                if let Some(time) = entry.get_mut("time") {
                    *time = json!("a time");
                }
            }
            // The order follows from the times.
            entries.sort_by_key(|entry| {
                ["operation", "manager", "apiVersion", "subresource"]
                    .map(|it| entry[it].to_string())
            });
        }
        metadata.retain(|name, value| name != "continue" || *value != "");
        if let Some(Value::String(uid)) = metadata.get("uid").cloned()
            && uid.len() == 36
        {
            metadata.insert("uid".to_owned(), self.uid(&uid));
        }
        if let Some(Value::String(version)) = metadata.get("resourceVersion").cloned()
            && let Ok(version) = version.parse::<u64>()
        {
            let next = self.versions.len();
            let number = *self.versions.entry(version).or_insert(next);
            // Lists have the version of the server, which other requests increase on one side only.
            let is_list = !metadata.contains_key("name");
            let shown = if is_list {
                "a version".to_owned()
            } else {
                format!("version {number}")
            };
            if is_list && number == next {
                self.versions.remove(&version);
            }
            metadata.insert("resourceVersion".to_owned(), shown.into());
        }
        for time in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(value) = metadata.get_mut(time).filter(|value| value.is_string()) {
                *value = json!("a time");
            }
        }
    }

    fn status(&self, status: &mut Value) {
        let shown = |message: &str| -> String {
            let is_of_parser = PARSERS.iter().any(|words| message.contains(words));
            if is_of_parser {
                return "of the parser".to_owned();
            }
            let mut of_rule = RULES.iter().filter_map(|words| message.split_once(words));
            if let Some((_, rule)) = of_rule.next() {
                return format!("an error in the rule {rule}");
            }
            if let Some((value, why)) = message.rsplit_once("}: ")
                && value.starts_with(VERSIONS)
            {
                return format!("{VERSIONS}}}: {why}");
            }
            if message.contains(UNDECLARED) {
                // Go reports a single undeclared field of an object, and then skips its other fields.
                let words = message
                    .split_once("errors:\n")
                    .map_or(message, |(of, _)| of);
                let mut words = words.split(": ").filter(|part| !part.starts_with('.'));
                return words.next().unwrap_or_default().to_owned() + UNDECLARED;
            }
            if let Some((of, errors)) = message.split_once(": errors:\n") {
                let mut errors: Vec<_> = errors.lines().collect();
                errors.sort_unstable();
                return format!("{of}: errors: {errors:?}");
            }
            let mut message = message.to_owned();
            for (uid, number) in &self.uids {
                message = message.replace(uid, &format!("uid {number}"));
            }
            message
        };
        let mut count = 0;
        if let Some(causes) = status["details"]["causes"].as_array_mut() {
            for cause in causes.iter_mut() {
                let message = shown(cause["message"].as_str().unwrap_or_default());
                cause["message"] = message.into();
            }
            causes.sort_by_key(Value::to_string);
            count = causes.len();
        }
        let message = shown(status["message"].as_str().unwrap_or_default());
        status["message"] = if count > 1 {
            "several causes".into()
        } else {
            message.into()
        };
    }
}

/// Adds the paths of different values.
pub fn differ(path: &str, real: &Value, simulated: &Value, lines: &mut Vec<String>) {
    match (real, simulated) {
        (Value::Object(real), Value::Object(simulated)) => {
            let mut keys: Vec<_> = real.keys().chain(simulated.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let of = |fields: &Map<String, Value>| {
                    fields.get(key).cloned().unwrap_or(json!("NOTHING"))
                };
                differ(&format!("{path}.{key}"), &of(real), &of(simulated), lines);
            }
        }
        (Value::Array(real), Value::Array(simulated)) => {
            for at in 0..real.len().max(simulated.len()) {
                let of = |all: &[Value]| all.get(at).cloned().unwrap_or(json!("NOTHING"));
                differ(&format!("{path}[{at}]"), &of(real), &of(simulated), lines);
            }
        }
        (real, simulated) if real != simulated => {
            lines.push(format!("{path}: real {real}, in memory {simulated}"));
        }
        _ => {}
    }
}
