//! Validation of embedded resources (`structural-schema/objectmeta`).

use serde_json::Value;

use super::{
    super::{Release, metadata, names, release::since, status::Cause},
    go,
    node::{Additional, Node},
};

/// Checks all embedded resources below a value.
pub fn check(new: &Value, node: &Node) -> Vec<Cause> {
    let mut causes = Vec::new();
    below(new, node, "", &mut causes);
    causes
}

fn below(new: &Value, node: &Node, path: &str, causes: &mut Vec<Cause>) {
    match new {
        Value::Object(fields) => {
            if node.embedded {
                resource(new, path, node.release, causes);
            }
            for (name, value) in fields {
                if let Some(node) = node.properties.get(name) {
                    below(value, node, &go::child(path, name), causes);
                } else if let Additional::Schema(node) = &node.additional {
                    below(value, node, &format!("{path}[{name}]"), causes);
                }
            }
        }
        Value::Array(all) => {
            if let Some(items) = &node.items {
                for (at, value) in all.iter().enumerate() {
                    below(value, items, &format!("{path}[{at}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn resource(new: &Value, path: &str, release: Release, causes: &mut Vec<Cause>) {
    for name in ["apiVersion", "kind"] {
        let field = go::child(path, name);
        let Some(value) = new.get(name) else {
            let why = since(release, Release::V1_34, "must not be empty", "");
            causes.push(Cause::required(&field, why));
            continue;
        };
        let why = match (name, value.as_str()) {
            (_, None) => "must be a string".to_owned(),
            (_, Some("")) => "must not be empty".to_owned(),
            ("apiVersion", Some(text)) if text.matches('/').count() > 1 => {
                format!("unexpected GroupVersion string: {text}")
            }
            ("kind", Some(text)) => match names::dns1035_label(&text.to_lowercase()) {
                why if why.is_empty() => continue,
                why => format!(
                    "may have mixed case, but should otherwise match: {}",
                    why.join(",")
                ),
            },
            _ => continue,
        };
        causes.push(Cause::invalid(&field, go::shown(value, release), &why));
    }
    let Some(meta) = new.get("metadata").filter(|meta| meta.is_object()) else {
        return;
    };
    let mut meta = meta.clone();
    if meta["name"].as_str().unwrap_or_default().is_empty() {
        meta["name"] = "fakename".into();
    }
    for cause in metadata::check(&meta, false) {
        causes.push(Cause {
            field: go::child(path, &cause.field),
            ..cause
        });
    }
}
