//! Shrunk cases in which the two sides once differed.

use operator_testkit::api_server::Kind;
use serde_json::{Value, json};

use super::steps::{Act, Base, By, FOO, MERGE, STRATEGIC, Step, UNSAID, Which, valid};

fn step(kind: Kind, act: Act) -> Step {
    Step {
        kind,
        name: "a",
        act,
        by: By::Admin,
    }
}

fn by_limited(kind: Kind, act: Act) -> Step {
    Step {
        by: By::Limited,
        ..step(kind, act)
    }
}

/// Returns steps that set the replicas through the object or its scale.
fn replicas(kind: Kind, first: i32, parts: &[(&'static str, i32)]) -> Vec<Step> {
    let mut body = valid(kind);
    body["spec"]["replicas"] = first.into();
    let mut steps = vec![step(kind, Act::Create { body, dry: false })];
    for (part, replicas) in parts {
        let body = match *part {
            "status" => json!({ "status": { "observedGeneration": replicas } }),
            "labels" => json!({ "metadata": { "labels": { "n": replicas.to_string() } } }),
            _ => json!({ "spec": { "replicas": replicas } }),
        };
        let part = if *part == "labels" { "" } else { part };
        steps.push(patch(kind, part, MERGE, body));
    }
    steps
}

/// Changes that add and remove field managers of the replicas in every way.
const MANAGED: &[(&str, i32)] = &[
    ("scale", 1),
    ("scale", 1),
    ("scale", 1),
    ("scale", 2),
    ("scale", 2),
    ("", 3),
    ("scale", 3),
    ("", 3),
    ("", 4),
    ("scale", 4),
    ("labels", 1),
    ("scale", 4),
    ("", 5),
    ("scale", 5),
    ("status", 1),
    ("scale", 5),
    ("", 6),
    ("scale", 5),
    ("scale", 5),
    ("scale", 4),
    ("", 4),
    ("labels", 2),
    ("", 3),
    ("scale", 4),
    ("", 3),
    ("scale", 3),
    ("", 2),
    ("scale", 2),
    ("scale", 2),
];

/// Changes to 0 replicas, which a scale omits.
const NONE_MANAGED: &[(&str, i32)] = &[
    ("scale", 0),
    ("scale", 0),
    ("scale", 1),
    ("", 0),
    ("scale", 0),
    ("labels", 1),
    ("", 2),
    ("scale", 0),
    ("scale", 0),
    ("", 0),
    ("labels", 2),
    ("", 1),
    ("scale", 2),
    ("scale", 0),
    ("scale", 0),
    ("scale", 3),
    ("", 0),
    ("scale", 3),
    ("scale", 3),
    ("", 0),
    ("scale", 0),
];

fn create(kind: Kind, change: &Value) -> Step {
    let mut body = valid(kind);
    for (field, value) in change.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    step(kind, Act::Create { body, dry: false })
}

fn put(kind: Kind, body: Value, base: Base, dry: bool) -> Step {
    step(
        kind,
        Act::Put {
            part: "",
            body,
            base,
            dry,
        },
    )
}

fn put_status(status: Value) -> Step {
    let mut body = valid(FOO);
    body["status"] = status;
    let base = Base {
        uid: Which::Current,
        version: Which::Current,
    };
    step(
        FOO,
        Act::Put {
            part: "status",
            body,
            base,
            dry: false,
        },
    )
}

fn patch(kind: Kind, part: &'static str, style: &'static str, body: Value) -> Step {
    step(
        kind,
        Act::Patch {
            part,
            style,
            body,
            base: UNSAID,
            dry: false,
        },
    )
}

/// UID and version that no object has.
const WRONG: Base = Base {
    uid: Which::Wrong,
    version: Which::Wrong,
};

#[allow(clippy::too_many_lines, reason = "a list")]
pub fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let versioned = Base {
        uid: Which::Unsaid,
        version: Which::Wrong,
    };
    let leaving =
        json!({ "metadata": { "deletionTimestamp": "2020-01-01T00:00:00Z" }, "spec": {} });
    let side = json!({ "name": "side", "image": "x:1" });
    let more_of = |containers: Value| json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    let more = more_of(json!([side]));
    let none = json!({ "spec": { "deploymentName": "a" } });
    let three = json!({ "spec": { "replicas": 3 } });
    let uid = Base {
        uid: Which::Wrong,
        version: Which::Unsaid,
    };
    let lists = |patches: &[Value]| {
        let patches = patches.iter().cloned();
        let patches = patches.map(|body| patch(Kind::Deployment, "", STRATEGIC, body));
        let created = create(Kind::Deployment, &json!({}));
        [created].into_iter().chain(patches).collect()
    };
    let ordered = |names: &[&str], containers: Value| {
        let order: Value = names.iter().map(|name| json!({ "name": name })).collect();
        let pod = json!({ "containers": containers, "$setElementOrder/containers": order });
        json!({ "spec": { "template": { "spec": pod } } })
    };
    let update = put(Kind::Lease, valid(Kind::Lease), UNSAID, false).act;
    vec![
        ("managed replicas of a Foo", replicas(FOO, 1, MANAGED)),
        (
            "managed replicas of a Deployment",
            replicas(Kind::Deployment, 1, MANAGED),
        ),
        (
            "no managed replicas",
            replicas(Kind::Deployment, 0, NONE_MANAGED),
        ),
        (
            "who may update may not create by it",
            vec![
                by_limited(Kind::Lease, update.clone()),
                create(Kind::Lease, &json!({})),
                by_limited(Kind::Lease, update),
            ],
        ),
        (
            "a Lease that is updated before it is there",
            vec![
                put(Kind::Lease, valid(Kind::Lease), versioned, true),
                put(Kind::Lease, valid(Kind::Lease), WRONG, true),
                put(Kind::Lease, valid(Kind::Lease), WRONG, false),
                put(Kind::Lease, valid(Kind::Lease), versioned, false),
                put(Kind::Lease, valid(Kind::Lease), UNSAID, false),
            ],
        ),
        (
            "a Lease that comes on its way out",
            vec![
                put(Kind::Lease, leaving, UNSAID, false),
                step(Kind::Lease, Act::Get),
            ],
        ),
        (
            "no such policy, of nothing",
            vec![step(
                FOO,
                Act::Delete {
                    options: json!({ "propagationPolicy": "None" }),
                    base: UNSAID,
                },
            )],
        ),
        (
            "the scale of a Foo without replicas",
            vec![
                create(FOO, &none),
                step(FOO, Act::Scale),
                patch(FOO, "scale", MERGE, json!({ "spec": {} })),
                patch(FOO, "scale", MERGE, json!({ "spec": { "replicas": 12 } })),
                patch(FOO, "scale", MERGE, three.clone()),
                patch(FOO, "scale", MERGE, json!({ "spec": { "replicas": -1 } })),
            ],
        ),
        (
            "the scale of another Deployment",
            vec![
                create(Kind::Deployment, &json!({})),
                step(
                    Kind::Deployment,
                    Act::Patch {
                        part: "scale",
                        style: MERGE,
                        body: three,
                        base: uid,
                        dry: false,
                    },
                ),
            ],
        ),
        (
            "a container more comes first",
            vec![
                create(Kind::Deployment, &json!({})),
                patch(Kind::Deployment, "", STRATEGIC, more),
            ],
        ),
        (
            "a Deployment without a selector",
            vec![create(Kind::Deployment, &json!({ "spec": {} }))],
        ),
        (
            "no replicas at all is nothing to say",
            vec![
                create(Kind::Deployment, &json!({})),
                patch(
                    Kind::Deployment,
                    "status",
                    MERGE,
                    json!({ "status": { "replicas": 0 } }),
                ),
            ],
        ),
        (
            "a Deployment of another version, or another kind",
            [MERGE, STRATEGIC]
                .into_iter()
                .flat_map(|style| {
                    [json!({ "apiVersion": "v1" }), json!({ "kind": "Foo" })]
                        .map(|body| patch(Kind::Deployment, "", style, body))
                })
                .fold(
                    vec![create(Kind::Deployment, &json!({}))],
                    |mut steps, step| {
                        steps.push(step);
                        steps
                    },
                ),
        ),
        (
            "a condition of no time",
            vec![
                create(Kind::Deployment, &json!({})),
                patch(
                    Kind::Deployment,
                    "status",
                    MERGE,
                    json!({ "status": { "conditions": [
                        { "type": "Available", "status": "True", "reason": "R", "message": "m" },
                    ] } }),
                ),
                patch(
                    Kind::Deployment,
                    "",
                    MERGE,
                    json!({ "spec": { "replicas": 3 } }),
                ),
            ],
        ),
        (
            "no conditions at all",
            vec![
                create(FOO, &json!({})),
                put_status(json!({ "conditions": null, "observedGeneration": null })),
                step(FOO, Act::Get),
            ],
        ),
        (
            "null is not a name",
            vec![create(FOO, &json!({ "spec": { "deploymentName": null } }))],
        ),
        (
            "half a replica",
            vec![create(
                FOO,
                &json!({ "spec": { "deploymentName": "a", "replicas": 1.5 } }),
            )],
        ),
        (
            "a Foo of another version",
            vec![
                create(FOO, &json!({})),
                patch(
                    FOO,
                    "",
                    MERGE,
                    json!({ "apiVersion": "samplecontroller.k8s.io/v1" }),
                ),
            ],
        ),
        (
            "a generation where none is counted",
            vec![
                create(
                    Kind::ServiceAccount,
                    &json!({ "metadata": { "generation": 7 } }),
                ),
                patch(
                    Kind::ServiceAccount,
                    "",
                    MERGE,
                    json!({ "metadata": { "generation": 8 } }),
                ),
                step(
                    Kind::ServiceAccount,
                    Act::Delete {
                        options: json!({}),
                        base: UNSAID,
                    },
                ),
            ],
        ),
        (
            "an Event is of an older group",
            vec![
                create(Kind::Event, &json!({})),
                step(
                    Kind::Event,
                    Act::Delete {
                        options: json!({}),
                        base: uid,
                    },
                ),
                step(
                    Kind::Event,
                    Act::Patch {
                        part: "",
                        style: MERGE,
                        body: json!({ "metadata": {} }),
                        base: uid,
                        dry: false,
                    },
                ),
            ],
        ),
        (
            "bad labels",
            vec![
                create(Kind::ServiceAccount, &json!({})),
                put(
                    Kind::ServiceAccount,
                    json!({ "metadata": { "labels": { "bad key": "x" } } }),
                    UNSAID,
                    false,
                ),
            ],
        ),
        (
            "a change of a Job repeats the validation of its metadata",
            vec![
                create(Kind::Job, &json!({})),
                patch(
                    Kind::Job,
                    "",
                    MERGE,
                    json!({ "metadata": { "finalizers": ["orphan", "foregroundDeletion"] } }),
                ),
                patch(
                    Kind::Job,
                    "",
                    MERGE,
                    json!({ "metadata": { "labels": { "bad key": "x" } } }),
                ),
            ],
        ),
        (
            "a Service by a name that is a Foo's",
            vec![create(
                Kind::Service,
                &json!({ "metadata": { "name": "a.b" } }),
            )],
        ),
        (
            "ports that are replaced",
            vec![
                create(Kind::Service, &json!({})),
                patch(
                    Kind::Service,
                    "",
                    STRATEGIC,
                    json!({ "spec": { "ports": [{ "$patch": "replace" }, { "port": 81 }] } }),
                ),
                patch(
                    Kind::Service,
                    "",
                    STRATEGIC,
                    json!({ "spec": { "ports": [{ "port": 81, "targetPort": 8080 }, { "port": 82, "name": "b" }] } }),
                ),
            ],
        ),
        (
            "directives of what is not there",
            lists(&[
                more_of(json!([{ "name": "other", "$patch": "delete" }])),
                json!({ "metadata": { "annotations": { "$patch": "replace", "a": "b" } } }),
                json!({ "metadata": { "annotations": { "a": "b" }, "finalizers": [] } }),
                more_of(json!([{
                    "name": "nginx",
                    "env": [{ "name": "A", "$patch": "delete" }, { "name": "B", "value": "b" }],
                }])),
                json!({ "metadata": { "ownerReferences": [{ "$patch": "replace" }] } }),
            ]),
        ),
        (
            "a container without a name",
            vec![
                create(Kind::Deployment, &json!({})),
                patch(
                    Kind::Deployment,
                    "",
                    STRATEGIC,
                    json!({ "spec": { "template": { "spec": { "containers": [{ "image": "x:1" }] } } } }),
                ),
            ],
        ),
        (
            "a version of what is new",
            vec![create(
                FOO,
                &json!({ "metadata": { "resourceVersion": "5" } }),
            )],
        ),
        (
            "no time",
            vec![
                create(FOO, &json!({})),
                patch(
                    FOO,
                    "status",
                    MERGE,
                    json!({ "status": { "availableReplicas": "many", "conditions": [{
                        "type": "Ready", "status": "True", "reason": "", "message": "",
                        "lastTransitionTime": "yesterday",
                    }] } }),
                ),
            ],
        ),
        (
            "new elements have the place of the patch",
            lists(&[
                ordered(&["nginx", "side"], json!([side])),
                ordered(
                    &["first", "nginx"],
                    json!([{ "name": "first", "image": "x:1" }]),
                ),
                ordered(
                    &["side", "last"],
                    json!([{ "name": "last", "image": "x:1" }]),
                ),
                ordered(
                    &["last", "first"],
                    json!([{ "name": "first", "image": "x:2" }]),
                ),
                ordered(
                    &["nginx", "side", "other"],
                    json!([{ "name": "nginx", "image": "x:2" }, { "name": "other", "image": "x:1" }]),
                ),
            ]),
        ),
        (
            "a patch removes elements of a list without keys",
            lists(&[
                json!({ "metadata": { "finalizers": ["example.com/a", "example.com/b"] } }),
                json!({ "metadata": {
                    "finalizers": ["example.com/c"],
                    "$deleteFromPrimitiveList/finalizers": ["example.com/a"],
                } }),
                json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["example.com/b"] } }),
                json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["example.com/c"] } }),
            ]),
        ),
        (
            "what is on its way out is still there",
            vec![
                create(
                    FOO,
                    &json!({ "metadata": { "finalizers": ["example.com/a"] } }),
                ),
                step(
                    FOO,
                    Act::Delete {
                        options: json!({}),
                        base: UNSAID,
                    },
                ),
                create(FOO, &json!({})),
            ],
        ),
        (
            "more replicas than a number has",
            vec![create(
                FOO,
                &json!({ "spec": { "deploymentName": "a", "replicas": 5_000_000_000_i64 } }),
            )],
        ),
        (
            "a deletion of an Event takes all finalizers of the garbage collector away",
            vec![
                create(
                    Kind::CoreEvent,
                    &json!({ "metadata": { "finalizers": ["foregroundDeletion"] } }),
                ),
                step(
                    Kind::CoreEvent,
                    Act::Delete {
                        options: json!({ "propagationPolicy": "Foreground" }),
                        base: Base {
                            uid: Which::Current,
                            version: Which::Current,
                        },
                    },
                ),
                step(
                    Kind::CoreEvent,
                    Act::Delete {
                        options: json!({ "propagationPolicy": "Orphan" }),
                        base: UNSAID,
                    },
                ),
            ],
        ),
        (
            "a deletion that takes another one's finalizer away, of one version",
            vec![
                create(FOO, &json!({})),
                step(
                    FOO,
                    Act::Delete {
                        options: json!({ "propagationPolicy": "Foreground" }),
                        base: UNSAID,
                    },
                ),
                step(
                    FOO,
                    Act::Delete {
                        options: json!({ "propagationPolicy": "Background" }),
                        base: Base {
                            uid: Which::Current,
                            version: Which::Current,
                        },
                    },
                ),
            ],
        ),
    ]
}
