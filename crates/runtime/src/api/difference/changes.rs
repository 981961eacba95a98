//! The fields that a patch or an update changes, with their old and new values.

use std::{cmp::Ordering, collections::BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::api::{
    difference::{schema::Field, without_nulls},
    kind::Kind,
    merge_keys::{KINDS, OBJECT_META},
};

/// Stands for a value of a Secret.
const REDACTED: &str = "<redacted>";

/// kubectl's copy of a manifest. The copy of a Secret contains its values.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A changed field. A field without an old value is new, and a field without a new value is removed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// Names of members, and keys or positions of list elements: `spec.containers[web].image`.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// Returns the changes by a [patch](super::Comparison::patch) of `actual`, in the order of their paths. Values of a Secret are
/// redacted.
pub(crate) fn of_patch(kind: &Kind, patch: &Value, actual: &Value) -> Vec<Change> {
    let (name, actual) = ((kind.group, kind.version, kind.kind), object(actual));
    let known = KINDS.iter().find(|(it, _)| *it == name);
    let field = known.map(|(_, of)| Field::Object(of));
    let new = if kind.is_built_in() {
        patched(Some(&actual), patch, field, 0)
    } else {
        let mut new = actual.clone();
        json_patch::merge(&mut new, patch);
        Some(new)
    };
    changes(kind, &actual, &new.unwrap_or_default(), field)
}

/// Returns the changes from `actual` to `new`, in the order of their paths. Values of a Secret are redacted.
pub(crate) fn of_update(kind: &Kind, new: &Value, actual: &Value) -> Vec<Change> {
    changes(kind, &object(actual), &object(new), None)
}

/// Returns a manifest or a patch without the values of a Secret.
pub(crate) fn redacted(kind: &str, body: &Value) -> Value {
    let mut body = body.clone();
    if kind == "Secret" {
        hide_within(&mut body, 0);
    }
    body
}

/// Hides the values of a Secret in a part of it, which is at this depth: its data, and the copies of manifests that clients keep in
/// annotations.
fn hide_within(value: &mut Value, depth: usize) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if is_secret(name, depth) {
                    hide(value);
                } else {
                    hide_within(value, depth + 1);
                }
            }
        }
        Value::Array(elements) => {
            for element in elements {
                hide_within(element, depth + 1);
            }
        }
        Value::String(text) if serde_json::from_str::<Map<_, _>>(text).is_ok() => hide(value),
        _ => {}
    }
}

/// Whether a member at this depth of a Secret has secret values.
fn is_secret(name: &str, depth: usize) -> bool {
    name == LAST_APPLIED || depth == 0 && matches!(name, "data" | "stringData")
}

fn hide(value: &mut Value) {
    match value {
        Value::Null => {}
        Value::Object(members) => members.values_mut().for_each(hide),
        other => *other = REDACTED.into(),
    }
}

/// An object of an unknown form has no known fields.
fn object(value: &Value) -> Value {
    value.as_object().cloned().unwrap_or_default().into()
}

/// Returns a value after a strategic merge patch, or `None` if the patch removes it.
fn patched(
    actual: Option<&Value>,
    patch: &Value,
    field: Option<Field>,
    depth: usize,
) -> Option<Value> {
    match patch {
        Value::Null => None,
        Value::Object(_) if matches!(field, Some(Field::Replaced(_))) => Some(without_nulls(patch)),
        Value::Object(members) => {
            let mut all = actual
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            for (name, value) in members {
                if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
                    let list = all.get_mut(list).and_then(Value::as_array_mut);
                    let gone = value.as_array();
                    if let Some((list, gone)) = list.zip(gone) {
                        list.retain(|it| !gone.contains(it));
                    }
                } else if !name.starts_with('$') {
                    let field = member(field, name, depth);
                    match patched(all.get(name), value, field, depth + 1) {
                        Some(value) => _ = all.insert(name.clone(), value),
                        None => _ = all.remove(name),
                    }
                }
            }
            Some(all.into())
        }
        Value::Array(list) => {
            let is_replaced = list.first().is_some_and(|it| it["$patch"] == "replace");
            let actual = actual.and_then(Value::as_array).filter(|_| !is_replaced);
            let list = &list[usize::from(is_replaced)..];
            Some(match (actual, field) {
                (Some(actual), Some(Field::Keyed(keys, of))) => {
                    let mut all = actual.clone();
                    for patch in list {
                        let is_one = |it: &&mut Value| it.get(keys[0].0) == patch.get(keys[0].0);
                        let of = Some(Field::Object(of));
                        match all.iter_mut().find(is_one) {
                            Some(it) => *it = patched(Some(it), patch, of, depth + 1)?,
                            None => all.push(without_nulls(patch)),
                        }
                    }
                    all.into()
                }
                // Finalizers are replaced by the whole list.
                (Some(actual), Some(Field::Set)) if !list.iter().all(|it| actual.contains(it)) => {
                    let new = list.iter().filter(|it| !actual.contains(it));
                    actual.iter().chain(new).cloned().collect()
                }
                _ => list.iter().map(without_nulls).collect(),
            })
        }
        other => Some(other.clone()),
    }
}

/// Returns the rules of a member. `depth` is the object's.
fn member(field: Option<Field>, name: &str, depth: usize) -> Option<Field> {
    if depth == 0 && name == "metadata" {
        return Some(Field::Object(&OBJECT_META));
    }
    field.and_then(|field| field.member(name))
}

fn changes(kind: &Kind, old: &Value, new: &Value, field: Option<Field>) -> Vec<Change> {
    let mut found = Vec::new();
    let at = At {
        path: String::new(),
        depth: 0,
        is_of_secret: kind.kind == "Secret",
        is_hidden: false,
    };
    at.compare(Some(old), Some(new), field, &mut found);
    found
}

/// Place of a value.
struct At {
    path: String,
    depth: usize,
    is_of_secret: bool,
    /// Whether the value is redacted.
    is_hidden: bool,
}

impl At {
    fn member(&self, name: &str) -> Self {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
        let step = match (name.chars().all(is_plain) && !name.is_empty(), self.depth) {
            (true, 0) => name.to_owned(),
            (true, _) => format!(".{name}"),
            (false, _) => format!("[{}]", Value::from(name)),
        };
        let is_secret = self.is_of_secret && is_secret(name, self.depth);
        Self {
            is_hidden: self.is_hidden || is_secret,
            ..self.below(&step)
        }
    }

    fn below(&self, step: &str) -> Self {
        Self {
            path: format!("{}{step}", self.path),
            depth: self.depth + 1,
            ..*self
        }
    }

    fn compare(
        &self,
        old: Option<&Value>,
        new: Option<&Value>,
        field: Option<Field>,
        found: &mut Vec<Change>,
    ) {
        if old == new {
            return;
        }
        match (old, new) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
                for name in names {
                    let field = member(field, name, self.depth);
                    let member = self.member(name);
                    member.compare(old.get(name), new.get(name), field, found);
                }
            }
            (Some(Value::Array(old)), Some(Value::Array(new)))
                if let Some(names) = names_of(field, old, new) =>
            {
                let of = field.map(|field| Field::Object(field.type_of_members()));
                for (name, old, new) in names {
                    self.below(&name).compare(old, new, of, found);
                }
            }
            (old, new) => {
                let shown = |value: Option<&Value>| {
                    let mut value = value.filter(|value| !value.is_null()).cloned()?;
                    if self.is_hidden {
                        hide(&mut value);
                    } else if self.is_of_secret {
                        hide_within(&mut value, self.depth);
                    }
                    Some(value)
                };
                let (path, old, new) = (self.path.clone(), shown(old), shown(new));
                if old.is_some() || new.is_some() {
                    found.push(Change { path, old, new });
                }
            }
        }
    }
}

type Pair<'a> = (String, Option<&'a Value>, Option<&'a Value>);

/// Returns the pairs of elements of two lists: by their key, or by position if no element is new or removed. `None` if the
/// lists are compared as a whole.
fn names_of<'a>(field: Option<Field>, old: &'a [Value], new: &'a [Value]) -> Option<Vec<Pair<'a>>> {
    let key = match field {
        Some(Field::Keyed(keys, _)) => keys[0].0,
        _ => "type", // of conditions
    };
    let name = |it: &'a Value| match it.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let named = |list: &'a [Value]| -> Option<Vec<(String, &'a Value)>> {
        let named: Option<Vec<_>> = list.iter().map(|it| Some((name(it)?, it))).collect();
        let unique: BTreeSet<_> = list.iter().filter_map(name).collect();
        named.filter(|_| unique.len() == list.len())
    };
    if let Some((old, new)) = named(old).zip(named(new)) {
        let find = |list: &[(String, &'a Value)], name: &str| {
            let found = list.iter().find(|(it, _)| it == name);
            found.map(|(_, value)| *value)
        };
        let added = new.iter().filter(|(name, _)| find(&old, name).is_none());
        let all = old.iter().chain(added).map(|(name, _)| {
            let (old, new) = (find(&old, name), find(&new, name));
            (format!("[{name}]"), old, new)
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        return Some(all);
    }
    if old.len().cmp(&new.len()) != Ordering::Equal {
        return None;
    }
    let pairs = old.iter().zip(new).enumerate();
    Some(
        pairs
            .map(|(at, (old, new))| (format!("[{at}]"), Some(old), Some(new)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
    use serde_json::json;

    use super::*;
    use crate::api::difference::Comparison;

    const CUSTOM: Kind = Kind::custom("example.com", "v1", "Wish", "wishes");

    /// A client's copy of a Secret is also hidden in a map that is added or removed as a whole.
    #[test]
    fn a_copy_of_a_secret_is_hidden_at_any_depth() {
        let copy = r#"{"data":{"password":"aHVudGVyMg=="}}"#;
        let copies = json!({ LAST_APPLIED: copy, "kapp.k14s.io/original": copy, "note": "{" });
        let hidden =
            json!({ LAST_APPLIED: REDACTED, "kapp.k14s.io/original": REDACTED, "note": "{" });
        let (kind, without) = (Kind::of::<Secret>(), json!({ "metadata": {} }));
        for metadata in [
            json!({ "annotations": copies }),
            json!({ "annotations": copies, "labels": {} }),
        ] {
            let with = json!({ "metadata": metadata });
            for (old, new) in [
                (&with, &without),
                (&without, &with),
                (&with, &json!({})),
                (&json!({}), &with),
            ] {
                let text = format!("{:?}", of_update(&kind, new, old));
                assert!(!text.contains("aHVu") && text.contains(REDACTED), "{text}");
            }
            let body = redacted("Secret", &with);
            assert_eq!(body["metadata"]["annotations"], hidden);
        }
    }

    /// Returns the changes as `path: old -> new`, with `-` for a missing value.
    fn shown(changes: &[Change]) -> Vec<String> {
        let text = |value: &Option<Value>| value.as_ref().map_or("-".into(), Value::to_string);
        let lines = changes.iter();
        let lines = lines.map(|it| format!("{}: {} -> {}", it.path, text(&it.old), text(&it.new)));
        lines.collect()
    }

    /// Each change of a patch has its old and its new value, and elements of lists have the names of their keys.
    #[test]
    fn a_patch_shows_old_and_new_values() {
        let kind = Kind::of::<Deployment>();
        let proxy = json!({ "name": "proxy", "image": "proxy:1" });
        let web = |image: &str, port: i32| {
            let ports = json!([{ "containerPort": port, "protocol": "TCP" }]);
            json!({ "name": "web", "image": image, "ports": ports })
        };
        let object = |containers: Value, labels: Value, finalizers: Value| {
            let template = json!({ "spec": { "containers": containers } });
            json!({
                "metadata": { "labels": labels, "finalizers": finalizers },
                "spec": { "template": template },
            })
        };
        let labels = json!({ "a": "1", "example.com/b": "1" });
        let actual = object(json!([proxy, web("web:1", 80)]), labels, json!(["x/y"]));
        let labels = json!({ "a": null, "example.com/b": "2" });
        let new = json!({ "name": "log", "image": "log:1" });
        let desired = object(json!([new, web("web:2", 81)]), labels, json!(["z/z"]));
        let patch = Comparison::of(kind)
            .patch(&desired, &actual)
            .expect("a change");
        let port = r#"{"containerPort":81,"protocol":"TCP"}"#;
        assert_eq!(
            shown(&of_patch(&kind, &patch, &actual)),
            [
                r#"metadata.finalizers: ["x/y"] -> ["x/y","z/z"]"#.to_owned(),
                r#"metadata.labels.a: "1" -> -"#.to_owned(),
                r#"metadata.labels["example.com/b"]: "1" -> "2""#.to_owned(),
                r#"spec.template.spec.containers[log]: - -> {"image":"log:1","name":"log"}"#
                    .to_owned(),
                r#"spec.template.spec.containers[web].image: "web:1" -> "web:2""#.to_owned(),
                format!("spec.template.spec.containers[web].ports[81]: - -> {port}"),
            ]
        );
    }

    /// A list of a custom resource is replaced. The elements of a list of the same length are compared one by one.
    #[test]
    fn lists_of_a_custom_resource_are_replaced() {
        let actual = json!({ "spec": { "a": [1, 2], "b": [1], "$c": 1, "d": { "e": 1 } } });
        let patch = json!({ "spec": { "a": [1, 3], "b": [1, 2], "$c": 2, "d": null, "f": null } });
        assert_eq!(
            shown(&of_patch(&CUSTOM, &patch, &actual)),
            [
                r#"spec["$c"]: 1 -> 2"#,
                "spec.a[1]: 2 -> 3",
                "spec.b: [1] -> [1,2]",
                r#"spec.d: {"e":1} -> -"#,
            ]
        );
        let all = json!({ "spec": { "a": [] } });
        assert_eq!(
            shown(&of_patch(&CUSTOM, &all, &Value::Null)),
            [r#"spec: - -> {"a":[]}"#]
        );
    }

    /// A condition of a status has the name of its type. A field that the new status lacks is removed.
    #[test]
    fn an_update_replaces_the_status() {
        let condition = |of: &str, status: &str| json!({ "type": of, "status": status });
        let status = |conditions: Value, more: Value| json!({ "status": { "conditions": conditions, "more": more } });
        let old = status(
            json!([condition("Ready", "True"), condition("Old", "True")]),
            5.into(),
        );
        let new = status(json!([condition("Ready", "False")]), Value::Null);
        assert_eq!(
            shown(&of_update(&CUSTOM, &new, &old)),
            [
                r#"status.conditions[Old]: {"status":"True","type":"Old"} -> -"#,
                r#"status.conditions[Ready].status: "True" -> "False""#,
                "status.more: 5 -> -",
            ]
        );
    }

    /// Neither old nor new values of a Secret are shown, and neither are its copies.
    #[test]
    fn values_of_a_secret_are_redacted() {
        let kind = Kind::of::<Secret>();
        let copy = |text: &str| json!({ LAST_APPLIED: text, "a": text });
        let actual = json!({
            "data": { "a": "b2xk", "b": "b2xk" },
            "metadata": { "annotations": copy("old") },
            "stringData": null,
        });
        let patch = json!({
            "data": { "a": "bmV3", "b": null, "c": "bmV3" },
            "metadata": { "annotations": copy("new") },
            "stringData": { "d": "new" },
            "type": "Opaque",
        });
        assert_eq!(
            shown(&of_patch(&kind, &patch, &actual)),
            [
                r#"data.a: "<redacted>" -> "<redacted>""#,
                r#"data.b: "<redacted>" -> -"#,
                r#"data.c: - -> "<redacted>""#,
                r#"metadata.annotations.a: "old" -> "new""#,
                &format!(r#"metadata.annotations["{LAST_APPLIED}"]: "<redacted>" -> "<redacted>""#),
                r#"stringData: - -> {"d":"<redacted>"}"#,
                r#"type: - -> "Opaque""#,
            ]
        );
        let all = shown(&of_patch(&kind, &json!({ "data": null }), &actual));
        assert_eq!(all, [r#"data: {"a":"<redacted>","b":"<redacted>"} -> -"#]);
        let body = redacted("Secret", &patch);
        let text = body.to_string();
        assert!(!text.contains("bmV3") && text.contains("Opaque"), "{text}");
        assert_eq!(body["data"]["b"], Value::Null);
        assert_eq!(
            body["metadata"]["annotations"],
            json!({ LAST_APPLIED: REDACTED, "a": "new" })
        );
        assert_eq!(redacted("ConfigMap", &patch), patch);
        let of_map = Kind::of::<k8s_openapi::api::core::v1::ConfigMap>();
        let text = format!("{:?}", of_patch(&of_map, &patch, &actual));
        assert!(text.contains("bmV3") && text.contains("b2xk"), "{text}");
    }
}
