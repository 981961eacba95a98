use serde_json::{Value, json};

use super::{
    super::{Kind, Release, request::Part},
    check::{fields_of, validate},
    managers::{self, Managers},
    merge::merged,
    scope::Scope,
    set::Set,
    text,
    types::{self, Ref},
};

/// A type with every way to divide a value.
fn of() -> Ref {
    let keyed = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": { "type": "object", "properties": {
            "port": { "type": "integer" }, "protocol": { "type": "string", "default": "TCP" }, "name": { "type": "string" },
        } },
    });
    let set =
        json!({ "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } });
    let atomic = json!({ "type": "array", "items": { "type": "string" } });
    let map = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    types::custom(
        &json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "keyed": keyed, "set": set, "atomic": atomic, "map": map,
    } } } }),
        Release::default(),
    )
}

fn spec(spec: &Value) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Any", "spec": spec })
}

#[test]
fn fields_have_the_text_of_go() {
    let object = spec(&json!({
        "keyed": [{ "port": 80, "name": "a" }], "set": ["x<y"], "atomic": ["a"], "map": { "k": 1 },
    }));
    let fields = fields_of(&of(), &object);
    let json = json!({
        "f:apiVersion": {}, "f:kind": {}, "f:spec": {
            "f:keyed": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {}, "f:name": {} } },
            "f:set": { "v:\"x\\u003cy\"": {} }, "f:atomic": {}, "f:map": { "f:k": {} },
        },
    });
    assert_eq!(text::to_json(&fields), json);
    assert_eq!(text::from_json(&json).unwrap(), fields);
    let mut paths = Vec::new();
    fields.paths(&mut Vec::new(), &mut |path| paths.push(text::path(path)));
    let expected = [
        ".apiVersion",
        ".kind",
        ".spec.atomic",
        ".spec.keyed[port=80,protocol=\"TCP\"]",
        ".spec.keyed[port=80,protocol=\"TCP\"].name",
        ".spec.keyed[port=80,protocol=\"TCP\"].port",
        ".spec.map.k",
        ".spec.set[=\"x<y\"]",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn merged_lists_have_the_order_of_the_applier() {
    for (old, new, both) in [
        (json!(["a", "b"]), json!(["b", "a"]), json!(["b", "a"])),
        (
            json!(["a", "b", "c"]),
            json!(["c", "d"]),
            json!(["a", "b", "c", "d"]),
        ),
        (
            json!(["a", "b", "c"]),
            json!(["c", "a"]),
            json!(["b", "c", "a"]),
        ),
        (json!([]), json!(["a"]), json!(["a"])),
        (json!(["a"]), json!([]), json!(["a"])),
    ] {
        let list = |set: &Value| spec(&json!({ "set": set }));
        assert_eq!(
            merged(&of(), &list(&old), &list(&new)),
            list(&both),
            "{old} {new}"
        );
    }
}

#[test]
fn the_oldest_updates_are_merged() {
    let entry = |at: usize| {
        json!({
            "manager": format!("m{at:02}"), "operation": "Update", "apiVersion": "example.com/v1", "fieldsType": "FieldsV1",
            "fieldsV1": { format!("f:{at}"): {} }, "time": format!("2026-01-01T00:00:{at:02}Z"),
        })
    };
    let entries: Value = (0..12).map(entry).collect();
    let mut managers: Managers = managers::read(&entries).unwrap();
    managers::cap(&mut managers);
    assert_eq!(managers.len(), 10);
    let (oldest, merged) = managers.iter().next().unwrap();
    assert_eq!(oldest.name, "ancient-changes");
    assert_eq!(merged.fields, Set::of(&[&["0"], &["1"], &["2"]]));
    assert_eq!(merged.time.as_deref(), Some("2026-01-01T00:00:02Z"));
}

#[test]
fn an_object_that_does_not_exist_has_the_types_of_its_kind() {
    for kind in Kind::BUILT_IN {
        let scope = Scope {
            kind,
            part: Part::Whole,
            definition: None,
            version: kind.api_version(),
            now: String::new(),
            release: Release::default(),
        };
        let checked = validate(scope.own().unwrap(), &scope.empty(), true);
        assert_eq!(checked, Ok(()), "{kind:?}");
    }
}
