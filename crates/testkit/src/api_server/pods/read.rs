//! The form of pod templates in Go: which values its JSON has, and the defaults (`pkg/apis/core/v1/defaults.go`).

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::super::fields::types::{self, Ref, Scalar, Type};

/// Defaults by type and field, beyond those in the schema. A zero value has the default as well, except where Go has a pointer.
static DEFAULTS: LazyLock<[(&str, &str, Value); 23]> = LazyLock::new(|| {
    [
        ("ConfigMapVolumeSource", "defaultMode", json!(0o644)),
        ("Container", "terminationMessagePath", json!(MESSAGE)),
        ("Container", "terminationMessagePolicy", json!("File")),
        ("DownwardAPIVolumeSource", "defaultMode", json!(0o644)),
        (
            "EphemeralContainer",
            "terminationMessagePath",
            json!(MESSAGE),
        ),
        (
            "EphemeralContainer",
            "terminationMessagePolicy",
            json!("File"),
        ),
        ("HTTPGetAction", "path", json!("/")),
        ("HTTPGetAction", "scheme", json!("HTTP")),
        ("HostPathVolumeSource", "type", json!("")),
        ("ObjectFieldSelector", "apiVersion", json!("v1")),
        (
            "PersistentVolumeClaimSpec",
            "volumeMode",
            json!("Filesystem"),
        ),
        ("PodSpec", "dnsPolicy", json!("ClusterFirst")),
        ("PodSpec", "restartPolicy", json!("Always")),
        ("PodSpec", "schedulerName", json!("default-scheduler")),
        ("PodSpec", "securityContext", json!({})),
        ("PodSpec", "terminationGracePeriodSeconds", json!(30)),
        ("Probe", "failureThreshold", json!(3)),
        ("Probe", "periodSeconds", json!(10)),
        ("Probe", "successThreshold", json!(1)),
        ("Probe", "timeoutSeconds", json!(1)),
        ("ProjectedVolumeSource", "defaultMode", json!(0o644)),
        ("SecretVolumeSource", "defaultMode", json!(0o644)),
        (
            "ServiceAccountTokenProjection",
            "expirationSeconds",
            json!(3600),
        ),
    ]
});
const MESSAGE: &str = "/dev/termination-log";
/// Valid references with the tag `latest`, or without a tag and a digest (`github.com/distribution/reference`).
static LATEST: LazyLock<Regex> = LazyLock::new(|| {
    let host = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:{host}(?:\.{host})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let part = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let digest = "@(?:sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})";
    Regex::new(&format!(
        r"^(?:{domain}/)?{part}(?:/{part})*(?::latest(?:{digest})?)?$"
    ))
    .unwrap()
});
/// `LocalObjectReference`, and the types that have its fields as their own: an empty name is omitted, in spite of its default.
const REFERENCES: [&str; 7] = [
    "LocalObjectReference",
    "ConfigMapEnvSource",
    "ConfigMapKeySelector",
    "ConfigMapProjection",
    "ConfigMapVolumeSource",
    "SecretEnvSource",
    "SecretKeySelector",
];

/// Returns the type of pod templates.
pub fn template() -> Option<&'static Ref> {
    let deployment = types::built_in("apps/v1", "Deployment")?;
    let spec = deployment.get().map.as_ref()?.field("spec")?;
    spec.get().map.as_ref()?.field("template")
}

/// Replaces nulls as Go does: a field is removed, and an element of a list or a map becomes the zero value.
pub fn read_nulls(of: &Ref, value: &mut Value) {
    let of = of.get();
    match value {
        Value::Object(fields) => {
            let Some(map) = &of.map else {
                return;
            };
            fields.retain(|name, value| !(value.is_null() && map.fields.contains_key(name)));
            for (name, value) in fields {
                if let Some(of) = map.field(name) {
                    if value.is_null() {
                        *value = zero(of.get());
                    }
                    read_nulls(of, value);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let Some(list) = &of.list else {
                    return;
                };
                if item.is_null() {
                    *item = zero(list.of.get());
                }
                read_nulls(&list.of, item);
            }
        }
        _ => {}
    }
}

/// Returns Go's zero value of a type.
fn zero(of: &Type) -> Value {
    match of.scalar {
        Some(Scalar::Number) => 0.into(),
        Some(Scalar::Text) => "".into(),
        Some(Scalar::Bool) => false.into(),
        Some(Scalar::Quantity) => "0".into(),
        Some(Scalar::Any) => Value::Null,
        None if of.map.is_some() => json!({}),
        None => json!([]),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Sets the defaults, removes the empty values that Go omits in JSON, and adds the empty values that Go writes.
pub fn complete(of: &Ref, value: &mut Value) {
    let of = of.get();
    match value {
        Value::Array(items) => {
            for item in items {
                if let Some(list) = &of.list {
                    complete(&list.of, item);
                }
            }
        }
        Value::Object(fields) => {
            let Some(map) = &of.map else {
                return;
            };
            if !map.fields.is_empty() {
                complete_fields(of, map, fields);
            }
            for (name, value) in fields {
                if let Some(of) = map.field(name) {
                    complete(of, value);
                }
            }
        }
        _ => {}
    }
}

fn complete_fields(of: &Type, map: &types::Map, fields: &mut Map<String, Value>) {
    match of.name.as_str() {
        "Volume"
            if !map
                .fields
                .keys()
                .any(|it| it != "name" && fields.contains_key(it)) =>
        {
            fields.insert("emptyDir".to_owned(), json!({}));
        }
        "Container" | "EphemeralContainer" => pull(fields, "image", "imagePullPolicy"),
        "ImageVolumeSource" => pull(fields, "reference", "pullPolicy"),
        _ => {}
    }
    let is_reference = REFERENCES.contains(&of.name.as_str());
    let own: Vec<_> = DEFAULTS.iter().filter(|(on, ..)| *on == of.name).collect();
    for (name, field) in &map.fields {
        let of_field = field.of.get();
        let is_struct = of_field
            .map
            .as_ref()
            .is_some_and(|it| !it.fields.is_empty());
        // A value that may be a number or a text, such as a port, is never omitted.
        let is_any = of_field.scalar == Some(Scalar::Any);
        let is_omitted = !field.is_pointer && !is_struct && !is_any && name != "containers";
        if is_omitted && fields.get(name).is_some_and(is_zero) {
            fields.remove(name);
        }
        if fields.contains_key(name) {
            continue;
        }
        let default = match of_field.scalar {
            Some(Scalar::Quantity) if !field.is_pointer => Some("0".into()),
            None if is_struct && !field.is_pointer => Some(json!({})),
            _ => match own.iter().find(|(_, it, _)| it == name) {
                Some((.., value)) => Some(value.clone()),
                None if is_reference && name == "name" => None,
                None => field.default.clone(),
            },
        };
        if let Some(default) = default {
            fields.insert(name.clone(), default);
        }
    }
}

/// Sets the default policy for an image.
fn pull(fields: &mut Map<String, Value>, image: &str, policy: &str) {
    let text = |field: &str| {
        fields
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    if text(policy).is_empty() {
        let new = if is_latest(text(image)) {
            "Always"
        } else {
            "IfNotPresent"
        };
        fields.insert(policy.to_owned(), new.into());
    }
}

/// Returns whether an image has the tag `latest`, or no tag and no digest. An invalid reference has neither.
fn is_latest(image: &str) -> bool {
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let is_identifier = image.len() == 64 && image.chars().all(is_hex);
    !is_identifier && LATEST.is_match(image)
}
