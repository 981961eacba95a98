//! Defaults and validation of `ConfigMap`s and `Secret`s.

use serde_json::{Value, json};

use super::{
    Kind,
    request::Unknown,
    status::{Cause, Result},
};

/// Maps of a `ConfigMap` or a Secret.
pub const MAPS: [&str; 3] = ["data", "binaryData", "stringData"];

pub const NOT_A_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  \
     or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Sets the defaults of the API server. Fails for immutable content, which is not modelled.
pub fn fill(kind: Kind, object: &mut Value) -> Result<()> {
    if !object["immutable"].is_null() {
        return Err(Unknown("immutable content".to_owned()).into());
    }
    if kind == Kind::Secret {
        if object["type"].is_null() {
            object["type"] = "Opaque".into();
        }
        if object["type"] != "Opaque" {
            return Err(Unknown(format!("a Secret of type {}", object["type"])).into());
        }
        let texts = object
            .as_object_mut()
            .and_then(|all| all.remove("stringData"));
        for (key, text) in texts
            .as_ref()
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let bytes = text.as_str().unwrap_or_default().as_bytes();
            let text = serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec()));
            object["data"][key] = text.unwrap_or_default();
        }
    }
    Ok(())
}

pub fn is_key(key: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty() && key.chars().all(is_fine)
}

/// Validates the keys.
pub fn check(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for map in MAPS {
        for key in object[map]
            .as_object()
            .into_iter()
            .flat_map(|all| all.keys())
        {
            if !is_key(key) {
                causes.push(Cause::invalid(
                    &format!("{map}[{key}]"),
                    json!(key),
                    NOT_A_KEY,
                ));
            }
        }
    }
    causes
}
