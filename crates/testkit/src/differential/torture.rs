//! A CRD with every keyword, for the comparison with real API servers.

use serde_json::{Value, json};

/// Returns the CRD.
///
/// # Panics
/// Never: its text is part of this crate.
#[must_use]
pub fn crd() -> Value {
    serde_saphyr::from_str(include_str!("torture.yaml")).unwrap()
}

/// Returns valid objects, without metadata.
#[must_use]
pub fn good() -> Vec<Value> {
    vec![
        json!({ "spec": { "int": 1 } }),
        json!({
            "spec": {
                "int": 5, "exclusive": 4, "int32": 7, "low": 1, "high": 2, "number": 1.5, "bool": false, "text": "abc", "pattern": "ab1",
                "choice": "a", "numbers": 2, "nullable": null, "struct": { "a": 2 }, "map": { "k": 1 },
                "mapOfStructs": { "k": { "x": "a" } }, "anything": { "known": 1, "other": { "x": [1] } }, "untyped": [1, "x"],
                "anyMap": { "x": 1 }, "intOrString": "20%", "list": ["a", "b"], "matrix": [[1, 2], [3]], "set": ["a", "b"],
                "ports": [{ "port": 1 }, { "port": 2, "name": "dns" }], "pairs": [{ "a": "x", "b": 1 }, { "a": "y" }],
                "atomic": { "k": "v" }, "alternatives": { "a": 1, "c": 2 },
                "embedded": { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" }, "spec": {} },
                "size": { "replicas": 2 },
            },
            "status": { "replicas": 1, "phase": "New", "conditions": [{ "type": "Ready" }] },
        }),
        json!({
            "spec": {
                "int": 2, "intOrString": 5,
                "formats": {
                    "date": "2024-01-01", "dateTime": "2024-01-01T00:00:00Z", "duration": "1h", "ipv4": "10.0.0.1", "ipv6": "::1",
                    "cidr": "10.0.0.0/8", "mac": "01:23:45:67:89:ab", "byte": "YQ==", "hostname": "a.bc",
                },
                "rules": {
                    "list": ["a", "b"], "map": { "k": 1 }, "set": ["b", "a"], "quantity": "1Mi", "ip": "10.1.2.3", "url": "https://a.b",
                    "label": "a-b", "when": "2025-01-01T00:00:00Z", "after": "1m", "text": "ab-c", "index": 1, "namespace": "y",
                },
            },
        }),
    ]
}
