#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::*;
use crate::api::{
    conversion::{self, Version, Versioned},
    key::Key,
};

fn crd(version: &str, spec: &Value) -> CustomResourceDefinition {
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": spec } } });
    let version = json!({
        "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
    });
    let crd = json!({
        "metadata": { "name": "jobs.example.com" },
        "spec": {
            "group": "example.com",
            "names": { "kind": "Job", "plural": "jobs" },
            "scope": "Namespaced",
            "versions": [version],
        },
    });
    serde_json::from_value(crd).unwrap()
}

fn current() -> CustomResourceDefinition {
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer" });
    let port = json!({ "type": "object", "properties": { "name": text, "port": number } });
    let spec = json!({
        "texts": { "type": "object", "additionalProperties": text },
        "ports": {
            "type": "array", "items": port,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        },
        "tags": { "type": "array", "items": text, "x-kubernetes-list-type": "set" },
        "words": { "type": "array", "items": text },
        "host": { "type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": text },
        "replicas": number,
    });
    crd("v1", &spec)
}

/// v1alpha1 has `text`, ports by name, and a text each for the tags and the words. It defaults to 1 replica.
fn to_stored(job: &mut Versioned) -> Result<(), String> {
    let Some(former) = job.get::<Option<Set>>("spec")? else {
        return Ok(());
    };
    let mut spec = json!({ "replicas": former.get("replicas").unwrap_or(&json!(1)) });
    if let Some(text) = former.get("text") {
        assert_ne!(text, "unlucky");
        spec["texts"] = json!({ "en": text });
    }
    if let Some(ports) = former.get("ports").and_then(Value::as_object) {
        let ports = ports
            .iter()
            .map(|(name, port)| json!({ "name": name, "port": port }));
        spec["ports"] = ports.collect();
    }
    for name in ["tags", "words"] {
        if let Some(text) = former.get(name).and_then(Value::as_str) {
            spec[name] = text.split(' ').map(Value::from).collect();
        }
    }
    if let Some(host) = former.get("host") {
        spec["host"] = json!({ "name": host });
    }
    job.set("spec", &spec)
}

fn from_stored(job: &mut Versioned) -> Result<(), String> {
    let Some(spec) = job.get::<Option<Value>>("spec")? else {
        return Ok(());
    };
    let mut former = json!({ "replicas": spec["replicas"], "text": spec["texts"]["en"] });
    let ports = spec["ports"].as_array().into_iter().flatten();
    let ports = ports.map(|it| (it["name"].as_str().unwrap().to_owned(), it["port"].clone()));
    former["ports"] = Value::Object(ports.collect());
    for name in ["tags", "words"] {
        let all = spec[name].as_array().into_iter().flatten();
        let all: Vec<_> = all.filter_map(Value::as_str).collect();
        former[name] = all.join(" ").into();
    }
    former["host"] = spec["host"]["name"].clone();
    job.set("spec", &former)
}

fn jobs() -> Definition {
    let former = json!({ "ports": { "type": "object" } });
    let former = Version {
        crd: crd("v1alpha1", &former),
        to_stored,
        from_stored,
    };
    conversion::converted(
        current(),
        &Key::new("job-system", "job-conversion"),
        [former],
    )
}

fn entry(manager: &str, version: &str, fields: &Value) -> Value {
    json!({
        "manager": manager, "operation": "Update", "apiVersion": format!("example.com/{version}"),
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
    })
}

fn job(entries: &[Value]) -> Value {
    json!({
        "apiVersion": "example.com/v1",
        "kind": "Job",
        "metadata": {
            "name": "a", "namespace": "b", "managedFields": entries,
            "labels": { "x": "y" }, "finalizers": ["example.com/a"],
        },
        "spec": {
            "texts": { "de": "Hallo", "en": "Hi" },
            "ports": [{ "name": "http", "port": 80 }, { "name": "https", "port": 443 }],
            "tags": ["a", "b"],
            "words": ["c", "d"],
            "host": { "name": "h" },
            "replicas": 1,
        },
        "status": { "ready": true },
    })
}

/// Returns the entries after the rewrite, as JSON.
fn rewrite(definition: &Definition, job: &Value) -> Vec<Value> {
    let entries = rewritten(definition, job);
    entries.iter().map(|entry| json!(entry)).collect()
}

/// Each manager owns the conversion of its fields, in the form of the new schema.
#[test]
fn the_owner_of_a_field_owns_its_conversion() {
    let metadata = json!({ "f:labels": { ".": {}, "f:x": {} }, "f:finalizers": { ".": {}, "v:\"example.com/a\"": {} } });
    for (before, after) in [
        (
            json!({ "f:text": {} }),
            json!({ "f:texts": { "f:en": {} } }),
        ),
        (
            json!({ ".": {}, "f:ports": { ".": {}, "f:http": {} } }),
            json!({ "f:ports": { "k:{\"name\":\"http\"}": { ".": {}, "f:name": {}, "f:port": {} } } }),
        ),
        (
            json!({ "f:tags": {} }),
            json!({ "f:tags": { "v:\"a\"": {}, "v:\"b\"": {} } }),
        ),
        (json!({ "f:words": {} }), json!({ "f:words": {} })),
        (json!({ "f:host": {} }), json!({ "f:host": {} })),
    ] {
        let fields = json!({ "f:metadata": metadata, "f:spec": before });
        let fields = rewrite(&jobs(), &job(&[entry("user", "v1alpha1", &fields)]));
        let expected = json!({ "f:metadata": metadata, "f:spec": after });
        assert_eq!(fields, [entry("user", "v1", &expected)], "{before}");
    }
}

/// A manager that owned too much would delete the fields of others.
#[test]
fn defaults_and_fields_of_others_are_not_owned() {
    // The conversion sets one replica also without an owner.
    let other = entry("other", "v1", &json!({ "f:spec": { "f:words": {} } }));
    let fields = json!({ "f:spec": { "f:replicas": {} } });
    let user = |version| entry("user", version, &fields);
    let one = job(&[user("v1alpha1"), other.clone()]);
    assert_eq!(rewrite(&jobs(), &one), std::slice::from_ref(&other));
    let mut two = one;
    two["spec"]["replicas"] = 2.into();
    assert_eq!(rewrite(&jobs(), &two), [user("v1"), other.clone()]);
    // An object keeps an entry, so that it has an owner.
    let alone = job(&[user("v1alpha1")]);
    assert_eq!(rewrite(&jobs(), &alone), [user("v1")]);
    // An owner of the empty map of ports does not own the ports that others have added.
    let fields = json!({ "f:spec": { "f:ports": {} } });
    let empty = job(&[entry("user", "v1alpha1", &fields), other.clone()]);
    assert_eq!(rewrite(&jobs(), &empty), [other]);
}

/// The API server adds the defaults of the schema to an object, and takes missing keys of a list from them.
#[test]
fn defaults_of_the_schema_are_no_difference() {
    let protocol = json!({ "type": "string", "default": "TCP" });
    let port = json!({ "type": "object", "properties": { "port": { "type": "integer" }, "protocol": protocol } });
    let (sparse, live) = (
        json!([{ "port": 80 }]),
        json!([{ "port": 80, "protocol": "TCP" }]),
    );
    let mut schema = json!({ "type": "array", "items": port });
    let owned = |schema: &Value| fields_of_part(&sparse, &live, &Value::Null, schema);
    assert_eq!(owned(&schema), Some(json!({})));
    schema["x-kubernetes-list-type"] = "map".into();
    schema["x-kubernetes-list-map-keys"] = json!(["port", "protocol"]);
    let key = "k:{\"port\":80,\"protocol\":\"TCP\"}";
    assert_eq!(
        owned(&schema),
        Some(json!({ key: { ".": {}, "f:port": {} } }))
    );
}

/// An entry of the stored version stays as it is, and takes the fields of the same manager.
#[test]
fn entries_of_one_manager_become_one() {
    let status = json!({ "f:status": { ".": {}, "f:ready": {} } });
    let mut status = entry("controller", "v1", &status);
    status["subresource"] = "status".into();
    let texts = json!({ "f:spec": { "f:texts": { "f:de": {} }, "f:words": {} } });
    let text = json!({ "f:spec": { "f:text": {} } });
    let mut later = entry("user", "v1alpha1", &text);
    later["time"] = "2026-01-02T00:00:00Z".into();
    let mut applied = later.clone();
    applied["operation"] = "Apply".into();
    let before = [
        status.clone(),
        entry("user", "v1", &texts),
        later,
        applied.clone(),
    ];
    let mut both = entry(
        "user",
        "v1",
        &json!({ "f:spec": { "f:texts": { "f:de": {}, "f:en": {} }, "f:words": {} } }),
    );
    both["time"] = "2026-01-02T00:00:00Z".into();
    applied["apiVersion"] = "example.com/v1".into();
    applied["fieldsV1"] = json!({ "f:spec": { "f:texts": { "f:en": {} } } });
    let after = [status, both, applied];
    assert_eq!(rewrite(&jobs(), &job(&before)), after);
    assert_eq!(rewrite(&jobs(), &job(&after)), after);
}

#[test]
fn a_member_stays_one_beside_its_fields() {
    for (one, other) in [
        (json!({ "f:a": {} }), json!({ "f:a": { "f:b": {} } })),
        (json!({ "f:a": { "f:b": {} } }), json!({ "f:a": {} })),
    ] {
        let mut fields = one.as_object().unwrap().clone();
        add(&mut fields, other.as_object().unwrap().clone());
        assert_eq!(
            Value::Object(fields),
            json!({ "f:a": { ".": {}, "f:b": {} } })
        );
    }
}

/// Without a conversion, with a failing one, and of a version that the program does not know, the existing paths stay.
#[test]
fn without_a_conversion_the_existing_paths_stay() {
    let fields = json!({
        "f:metadata": { "f:finalizers": { ".": {}, "v:\"example.com/a\"": {}, "v:\"gone\"": {} } },
        "f:spec": {
            "f:ports": { ".": {}, "k:{\"name\":\"http\"}": { ".": {}, "f:port": {} }, "k:{\"name\":\"no\"}": { ".": {} } },
            "f:text": {},
            "f:words": {},
        },
    });
    let kept = json!({
        "f:metadata": { "f:finalizers": { ".": {}, "v:\"example.com/a\"": {} } },
        "f:spec": {
            "f:ports": { ".": {}, "k:{\"name\":\"http\"}": { ".": {}, "f:port": {} } },
            "f:words": {},
        },
    });
    let same = Definition::from(current());
    let mut unlucky = job(&[entry("user", "v1alpha1", &fields)]);
    unlucky["spec"]["texts"]["en"] = "unlucky".into();
    for (definition, version, job) in [
        (
            &same,
            "v1alpha1",
            job(&[entry("user", "v1alpha1", &fields)]),
        ),
        (
            &jobs(),
            "v1alpha0",
            job(&[entry("user", "v1alpha0", &fields)]),
        ),
        (&jobs(), "v1alpha1", unlucky),
    ] {
        assert_eq!(
            rewrite(definition, &job),
            [entry("user", "v1", &kept)],
            "{version}"
        );
    }
}
