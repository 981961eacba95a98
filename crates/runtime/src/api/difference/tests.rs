#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Comparison, DEPTH};
use crate::api::kind::Kind;

const CUSTOM: Kind = Kind::custom("example.com", "v1", "Thing", "things");

/// Checks a comparison of Pods by one field of their specs.
fn pod(field: &str, desired: &Value, actual: &Value, patch: &Value) {
    let of = |value: &Value| json!({ "spec": { field: value } });
    let (desired, actual) = (of(desired), of(actual));
    let found = Comparison::of(Kind::of::<Pod>()).patch(&desired, &actual);
    let found = found.map(|mut patch| patch["spec"].take());
    let patch = (!patch.is_null()).then(|| patch.clone());
    assert_eq!(found, patch, "{desired} in {actual}");
}

fn custom(desired: &Value, actual: &Value) -> Option<Value> {
    let of = |value: &Value| json!({ "spec": value });
    let found = Comparison::of(CUSTOM).patch(&of(desired), &of(actual));
    found.map(|mut patch| patch["spec"].take())
}

#[test]
fn only_desired_members_are_compared() {
    let actual = json!({ "a": 1, "b": { "c": 2, "d": [3] }, "n": null });
    for desired in [
        json!({}),
        json!({ "a": 1 }),
        json!({ "a": 1.0, "b": {} }),
        json!({ "b": { "d": [3.0] } }),
        json!({ "missing": null, "n": null, "b": { "missing": null } }),
    ] {
        assert_eq!(custom(&desired, &actual), None, "{desired}");
    }
    let desired = json!({ "a": null, "b": { "c": 3, "e": { "f": null, "g": "" } }, "n": 1 });
    let patch = json!({ "a": null, "b": { "c": 3, "e": { "g": "" } }, "n": 1 });
    assert_eq!(custom(&desired, &actual), Some(patch));
}

#[test]
fn the_names_of_an_object_are_not_compared() {
    let desired =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "b" } });
    let actual = json!({ "metadata": { "name": "c" } });
    let comparison = Comparison::of(Kind::of::<Pod>()).exactly("metadata");
    assert_eq!(comparison.patch(&desired, &actual), None);
}

#[test]
fn a_list_with_keys_has_the_desired_elements() {
    let (a, b) = (
        json!({ "name": "A", "value": "1" }),
        json!({ "name": "B", "value": "2" }),
    );
    let env = |list: &Value| json!([{ "name": "web", "env": list }]);
    let differ = |desired: &Value, actual: &Value, patch: &Value| {
        let patch = json!({ "containers": [{ "name": "web", "env": patch }] });
        pod("containers", &env(desired), &env(actual), &patch);
    };
    let same = |desired: &Value, actual: &Value| {
        pod("containers", &env(desired), &env(actual), &Value::Null);
    };
    same(&json!([]), &json!([a]));
    same(&json!([b, a]), &json!([a, b]));
    same(&json!([b]), &json!([a, b]));
    differ(&json!([b]), &json!([a]), &json!([b]));
    differ(
        &json!([{ "name": "A", "value": "3" }]),
        &json!([b, a]),
        &json!([{ "name": "A", "value": "3" }]),
    );
    differ(
        &json!([{ "name": "A", "value": null }]),
        &json!([a]),
        &json!([{ "name": "A", "value": null }]),
    );
    // An empty string is not stored.
    same(
        &json!([{ "name": "A", "value": "" }]),
        &json!([{ "name": "A" }]),
    );
    // Elements with the same key: the list is compared and replaced as a whole.
    let twice = json!([a, { "name": "A", "value": "2" }]);
    same(&twice, &twice);
    let whole = json!([{ "$patch": "replace" }, a, { "name": "A", "value": "2" }]);
    differ(&twice, &json!([a]), &whole);
    differ(
        &json!([{ "value": "2" }]),
        &json!([a]),
        &json!([{ "$patch": "replace" }, { "value": "2" }]),
    );
    let whole = json!([{ "$patch": "replace" }, { "name": "A", "value": "2" }, { "name": "A", "value": "1" }]);
    let two = json!([{ "name": "A", "value": "3" }, a]);
    differ(&json!([{ "name": "A", "value": "2" }]), &two, &whole);
}

#[test]
fn new_elements_of_a_list_get_the_desired_order() {
    let one = |name: &str| json!({ "name": name, "image": "i" });
    let (a, b, sidecar) = (one("a"), one("b"), one("sidecar"));
    let patch = json!({
        "initContainers": [b],
        "$setElementOrder/initContainers": [{ "name": "a" }, { "name": "b" }],
    });
    pod(
        "initContainers",
        &json!([a, b]),
        &json!([sidecar, a]),
        &patch,
    );
    pod(
        "initContainers",
        &json!([b]),
        &json!([a]),
        &json!({ "initContainers": [b] }),
    );
    pod(
        "initContainers",
        &json!([a, b]),
        &Value::Null,
        &json!({ "initContainers": [a, b] }),
    );
}

#[test]
fn an_omitted_key_has_its_default() {
    let ports = |list: Value| json!([{ "name": "dns", "ports": list }]);
    let (tcp, udp) = (
        json!({ "containerPort": 53, "protocol": "TCP" }),
        json!({ "containerPort": 53, "protocol": "UDP" }),
    );
    let omitted = json!({ "containerPort": 53 });
    for (desired, actual) in [
        (json!([omitted]), json!([udp, tcp])),
        (json!([tcp, udp]), json!([udp, tcp])),
    ] {
        pod("containers", &ports(desired), &ports(actual), &Value::Null);
    }
    // The API server would take the two for one element.
    let whole = json!([{ "$patch": "replace" }, udp, omitted]);
    pod(
        "containers",
        &ports(json!([omitted])),
        &ports(json!([udp])),
        &json!({ "containers": ports(whole) }),
    );
    let other = json!({ "containerPort": 53, "protocol": "UDP", "name": "dns" });
    let whole = json!([{ "$patch": "replace" }, tcp, other]);
    pod(
        "containers",
        &ports(json!([other])),
        &ports(json!([tcp, udp])),
        &json!({ "containers": ports(whole) }),
    );
    // A key without a default matches any value.
    let spread = |when: &str| json!({ "topologyKey": "zone", "whenUnsatisfiable": when });
    pod(
        "topologySpreadConstraints",
        &json!([{ "topologyKey": "zone" }]),
        &json!([spread("DoNotSchedule")]),
        &Value::Null,
    );
}

#[test]
fn any_other_list_has_the_same_length_and_is_replaced() {
    let one = |key: &str| json!({ "key": key });
    let with_default = |key: &str| json!({ "key": key, "operator": "Exists" });
    pod(
        "tolerations",
        &json!([one("a"), one("b")]),
        &json!([with_default("a"), with_default("b")]),
        &Value::Null,
    );
    pod("tolerations", &json!([]), &Value::Null, &Value::Null);
    for actual in [
        json!([with_default("b"), with_default("a")]),
        json!([with_default("a")]),
        json!([with_default("a"), with_default("b"), with_default("c")]),
        Value::Null,
        json!("a"),
    ] {
        let desired = json!([one("a"), { "key": "b", "value": null }]);
        let patch = json!({ "tolerations": [one("a"), one("b")] });
        pod("tolerations", &desired, &actual, &patch);
    }
    assert_eq!(
        custom(&json!({ "list": [] }), &json!({ "list": [1] })),
        Some(json!({ "list": [] }))
    );
    assert_eq!(
        custom(&json!({ "list": [null] }), &json!({ "list": [null] })),
        None
    );
}

#[test]
fn finalizers_contain_the_desired_ones() {
    let of = |list: &[&str]| json!({ "metadata": { "finalizers": list } });
    let [built_in, custom] = [Kind::of::<Pod>(), CUSTOM].map(Comparison::of);
    for comparison in [&built_in, &custom] {
        assert_eq!(
            comparison.patch(&of(&["b", "a"]), &of(&["a", "b", "c"])),
            None
        );
        assert_eq!(comparison.patch(&of(&[]), &json!({})), None);
    }
    let (desired, actual) = (of(&["a", "b"]), of(&["c", "a"]));
    assert_eq!(built_in.patch(&desired, &actual), Some(of(&["b"])));
    assert_eq!(custom.patch(&desired, &actual), Some(of(&["c", "a", "b"])));
    let [built_in, custom] = [built_in, custom].map(|it| it.exactly("metadata.finalizers"));
    let changes = json!({ "finalizers": ["b"], "$deleteFromPrimitiveList/finalizers": ["c"] });
    assert_eq!(
        built_in.patch(&desired, &actual),
        Some(json!({ "metadata": changes }))
    );
    assert_eq!(custom.patch(&desired, &actual), Some(of(&["a", "b"])));
}

#[test]
fn owner_references_of_a_custom_resource_are_sent_as_a_whole() {
    let of = |list: Value| json!({ "metadata": { "ownerReferences": list } });
    let (a, b) = (
        json!({ "uid": "a", "name": "a", "x": 1 }),
        json!({ "uid": "b", "name": "b" }),
    );
    let patch = Comparison::of(CUSTOM).patch(
        &of(json!([b, { "uid": "a", "name": "c" }])),
        &of(json!([a])),
    );
    assert_eq!(
        patch,
        Some(of(json!([{ "uid": "a", "name": "c", "x": 1 }, b])))
    );
}

#[test]
fn quantities_are_compared_by_value_where_the_api_has_quantities() {
    let limits = |cpu: Value, memory: &str| json!([{ "name": "a", "resources": { "limits": { "cpu": cpu, "memory": memory } } }]);
    let actual = limits(json!("1"), "1Gi");
    for cpu in [json!("1000m"), json!(1), json!(1.0), json!("1")] {
        pod("containers", &limits(cpu, "1024Mi"), &actual, &Value::Null);
    }
    let patch = json!([{ "name": "a", "resources": { "limits": { "memory": "1G" } } }]);
    pod(
        "containers",
        &limits(json!("1"), "1G"),
        &actual,
        &json!({ "containers": patch }),
    );
    let patch = json!([{ "name": "a", "resources": { "limits": { "cpu": "much" } } }]);
    pod(
        "containers",
        &limits(json!("much"), "1Gi"),
        &actual,
        &json!({ "containers": patch }),
    );

    let of = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    let claims = Comparison::of(Kind::of::<PersistentVolumeClaim>());
    assert_eq!(claims.patch(&of("1024Mi"), &of("1Gi")), None);
    let data = |size: &str| json!({ "data": { "storage": size } });
    let maps = Comparison::of(Kind::of::<ConfigMap>());
    assert_eq!(
        maps.patch(&data("1024Mi"), &data("1Gi")),
        Some(data("1024Mi"))
    );
    assert!(
        custom(
            &json!({ "resources": { "limits": { "cpu": "1000m" } } }),
            &json!({ "resources": { "limits": { "cpu": "1" } } })
        )
        .is_some()
    );
    // An integer or a string is compared as it is.
    let services = Comparison::of(Kind::of::<Service>());
    let port =
        |target: Value| json!({ "spec": { "ports": [{ "port": 80, "targetPort": target }] } });
    assert_eq!(
        services.patch(&port(json!("80")), &port(json!(80))),
        Some(port(json!("80")))
    );
}

#[test]
fn what_is_empty_is_missing_unless_it_is_an_object() {
    let nothing = json!({
        "metadata": { "labels": {}, "annotations": { "a": null }, "finalizers": [], "ownerReferences": [] },
        "spec": { "nodeSelector": {}, "tolerations": [], "nodeName": "", "containers": [] },
    });
    let pods = Comparison::of(Kind::of::<Pod>());
    let object = json!({ "metadata": {}, "spec": {} });
    assert_eq!(pods.patch(&nothing, &object), None);
    let null = json!({ "spec": { "nodeSelector": null, "tolerations": null, "nodeName": null } });
    assert_eq!(pods.patch(&null, &nothing), None);
    // It does not remove elements of other clients.
    let others =
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "nodeSelector": { "a": "b" } } });
    let nothing = json!({ "metadata": { "labels": {} }, "spec": { "nodeSelector": {} } });
    assert_eq!(pods.patch(&nothing, &others), None);

    pod(
        "securityContext",
        &json!({}),
        &Value::Null,
        &json!({ "securityContext": {} }),
    );
    for (desired, actual) in [
        (json!({ "a": {} }), json!({})),
        (json!({ "a": [] }), json!({})),
    ] {
        assert_eq!(custom(&desired, &actual), Some(desired));
    }
}

#[test]
fn what_excludes_another_member_replaces_it() {
    let config = json!({ "name": "a", "configMap": { "name": "c", "defaultMode": 420 } });
    let patch = json!({ "name": "a", "emptyDir": {}, "configMap": null });
    pod(
        "volumes",
        &json!([{ "name": "a", "emptyDir": {} }]),
        &json!([config]),
        &json!({ "volumes": [patch] }),
    );
    let desired = json!([{ "name": "a", "configMap": { "name": "d" } }]);
    pod(
        "volumes",
        &desired,
        &json!([config]),
        &json!({ "volumes": desired }),
    );
    let comparison = Comparison::of(Kind::of::<Deployment>());
    let of = |strategy: Value| json!({ "spec": { "strategy": strategy } });
    let rolling = of(json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1 } }));
    let patch = of(json!({ "type": "Recreate", "rollingUpdate": null }));
    assert_eq!(
        comparison.patch(&of(json!({ "type": "Recreate" })), &rolling),
        Some(patch)
    );
    assert_eq!(
        comparison.patch(&of(json!({ "type": "RollingUpdate" })), &rolling),
        None
    );
}

#[test]
fn a_field_that_a_patch_replaces_is_sent_as_a_whole() {
    let of = |selector: Value| json!({ "spec": { "selector": selector } });
    let actual = of(json!({ "matchLabels": { "a": "1", "b": "2", "c": "3" } }));
    let desired = of(json!({ "matchLabels": { "a": "4", "b": null } }));
    let patch = of(json!({ "matchLabels": { "a": "4", "c": "3" } }));
    let comparison = Comparison::of(Kind::of::<PodDisruptionBudget>());
    assert_eq!(comparison.patch(&desired, &actual), Some(patch));
}

#[test]
fn exactly_removes_others_at_its_path_only() {
    let data = |data: Value| json!({ "data": data });
    let comparison = Comparison::of(Kind::of::<ConfigMap>()).exactly("data");
    let actual = data(json!({ "a": "1", "b": "2", "n": null }));
    for (desired, patch) in [
        (data(json!({ "a": "1", "b": "2" })), None),
        (data(json!({ "a": "1" })), Some(data(json!({ "b": null })))),
        (
            data(json!({ "a": "2", "b": null })),
            Some(data(json!({ "a": "2", "b": null }))),
        ),
        (json!({}), Some(data(json!({ "a": null, "b": null })))),
    ] {
        assert_eq!(comparison.patch(&desired, &actual), patch, "{desired}");
    }

    let ports = |ports: Value| json!({ "spec": { "ports": ports } });
    let comparison = Comparison::of(Kind::of::<Service>()).exactly("spec.ports");
    let http = json!({ "port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 31000 });
    let dns = json!({ "port": 53, "protocol": "UDP", "targetPort": 53 });
    let actual = ports(json!([dns, http]));
    let desired = ports(json!([{ "port": 80 }]));
    let patch = ports(json!([{ "$patch": "replace" }, http]));
    assert_eq!(comparison.patch(&desired, &actual), Some(patch));
    assert_eq!(comparison.patch(&desired, &ports(json!([http]))), None);
    let patch = ports(json!([{ "$patch": "replace" }, { "port": 81 }]));
    assert_eq!(
        comparison.patch(&ports(json!([{ "port": 81 }])), &actual),
        Some(patch)
    );
    assert_eq!(
        comparison.patch(&ports(json!([])), &actual),
        Some(ports(json!([{ "$patch": "replace" }])))
    );

    // In the desired elements of a list.
    let of = |containers: Value| json!({ "spec": { "containers": containers } });
    let actual = of(
        json!([{ "name": "a", "env": [{ "name": "A" }] }, { "name": "b", "env": [{ "name": "B" }] }]),
    );
    let comparison = Comparison::of(Kind::of::<Pod>()).exactly("spec.containers.env");
    let patch = of(json!([{ "name": "a", "env": [{ "$patch": "replace" }] }]));
    assert_eq!(
        comparison.patch(&of(json!([{ "name": "a" }])), &actual),
        Some(patch)
    );
}

#[test]
fn absent_removes_what_is_at_its_path() {
    let comparison = Comparison::of(CUSTOM)
        .absent("spec.a.b")
        .absent("spec.list.x");
    let of = |a: Value| json!({ "spec": { "a": a, "list": [{ "x": 1, "y": 1 }] } });
    let actual = of(json!({ "b": { "c": 1 }, "d": 1 }));
    let patch = json!({ "spec": { "a": { "b": null } } });
    for desired in [
        json!({}),
        json!({ "spec": {} }),
        json!({ "spec": { "a": { "b": 2, "d": 1 } } }),
    ] {
        assert_eq!(
            comparison.patch(&desired, &actual),
            Some(patch.clone()),
            "{desired}"
        );
    }
    for actual in [
        json!({}),
        json!({ "spec": { "a": 1 } }),
        json!({ "spec": { "a": null } }),
        of(json!({ "d": 1 })),
    ] {
        assert_eq!(comparison.patch(&json!({}), &actual), None, "{actual}");
    }
    let desired = json!({ "spec": { "list": [{ "y": 1 }] } });
    let patch = comparison.patch(&desired, &of(json!({})));
    assert_eq!(patch, Some(desired));
}

/// A rule also holds in a value that is sent as a whole.
#[test]
fn absent_removes_what_is_desired() {
    let comparison = Comparison::of(CUSTOM).absent("spec.list.a");
    let of = |list: Value| json!({ "spec": { "list": list } });
    let desired = of(json!([{ "a": 1, "b": 2 }]));
    for actual in [json!({}), of(json!([])), of(json!([{ "a": 3 }]))] {
        let patch = of(json!([{ "b": 2 }]));
        assert_eq!(comparison.patch(&desired, &actual), Some(patch.clone()));
        assert_eq!(comparison.patch(&desired, &patch), None);
    }
}

#[test]
fn a_value_of_another_type_is_replaced() {
    for (desired, actual) in [
        (json!({ "b": 1 }), json!("text")),
        (json!({ "b": 1 }), json!([1])),
        (json!([1]), json!({ "b": 1 })),
        (json!("1"), json!(1)),
        (json!(1), json!(true)),
        (json!(true), json!({})),
    ] {
        let desired = json!({ "a": desired });
        assert_eq!(custom(&desired, &json!({ "a": actual })), Some(desired));
    }
    for list in [
        json!("a"),
        json!(["a"]),
        json!([null]),
        json!([[]]),
        json!([{ "name": {} }]),
        json!({}),
    ] {
        for actual in [
            json!("a"),
            json!(["a"]),
            json!([{ "name": 1 }]),
            json!({ "name": "a" }),
        ] {
            if list == actual || list == json!({}) && actual.is_object() {
                continue;
            }
            let of = |value: &Value| json!({ "spec": { "containers": value, "volumes": value } });
            let patch = Comparison::of(Kind::of::<Pod>()).patch(&of(&list), &of(&actual));
            assert!(patch.is_some(), "{list} in {actual}");
        }
    }
    let comparison = Comparison::of(CUSTOM);
    for nothing in [json!(null), json!("a"), json!([1])] {
        assert_eq!(comparison.patch(&nothing, &json!({ "a": 1 })), None);
        assert_eq!(
            comparison.patch(&json!({ "a": 1 }), &nothing),
            Some(json!({ "a": 1 }))
        );
    }
}

#[test]
fn a_deep_value_is_compared_as_a_whole() {
    let deep =
        |levels, end: Value| (0..levels).fold(end, |value, _| json!({ "a": value, "b": [value] }));
    let small = |levels, end: Value| (0..levels).fold(end, |value, _| json!({ "a": value }));
    let comparison = Comparison::of(CUSTOM);
    let (part, whole) = (json!({ "a": 1 }), json!({ "a": 1, "b": 2 }));
    assert_eq!(
        comparison.patch(
            &small(DEPTH - 1, part.clone()),
            &small(DEPTH - 1, whole.clone())
        ),
        None
    );
    let patch = comparison.patch(
        &small(2 * DEPTH, part.clone()),
        &small(2 * DEPTH, whole.clone()),
    );
    assert_eq!(patch, Some(small(2 * DEPTH, part)));
    assert_eq!(
        comparison.patch(
            &small(2 * DEPTH, whole.clone()),
            &small(2 * DEPTH, whole.clone())
        ),
        None
    );
    assert_eq!(
        comparison.patch(&deep(8, whole.clone()), &deep(8, whole)),
        None
    );
}

/// Any JSON with few names and values, so that two of them have much in common.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i32).prop_map(Value::from),
        Just(json!(1.0)),
        "[ab]?".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            Just("metadata"),
            Just("spec"),
            Just("labels"),
            Just("containers"),
            Just("volumes"),
            Just("env"),
            Just("finalizers"),
            Just("ownerReferences"),
            Just("name"),
            Just("uid"),
            Just("limits"),
        ];
        let members = proptest::collection::vec((name, inner.clone()), 0..5);
        prop_oneof![
            proptest::collection::vec(inner, 0..3).prop_map(Value::from),
            members.prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(members.collect::<Map<_, _>>())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For custom resources, whose patches need no API server.
    #[test]
    fn a_merge_patch_leaves_no_difference(desired in any_json(), mut actual in any_json()) {
        for comparison in [
            Comparison::of(CUSTOM),
            Comparison::of(CUSTOM).exactly("spec").absent("metadata.labels").exactly("spec.containers.name"),
        ] {
            if let Some(patch) = comparison.patch(&desired, &actual) {
                json_patch::merge(&mut actual, &patch);
                let again = comparison.patch(&desired, &actual);
                prop_assert_eq!(again, None, "after {} the object is {}", patch, actual);
            }
        }
    }

    /// A strategic merge patch of any two values, of wrong types as well.
    #[test]
    fn no_values_cause_a_panic(desired in any_json(), actual in any_json()) {
        let of = |value: &Value| json!({ "spec": value, "metadata": value });
        let comparison = Comparison::of(Kind::of::<Pod>()).exactly("spec.containers").absent("spec.volumes.name");
        let patch = comparison.patch(&of(&desired), &of(&actual));
        prop_assert!(patch.is_none_or(|patch| patch.is_object()));
    }
}
