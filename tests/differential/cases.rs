//! Where the two once differed, shrunk.

use serde_json::{Value, json};

use crate::{
    api::Kind,
    steps::{Act, Base, MERGE, STRATEGIC, Step, UNSAID, Which, valid},
};

fn step(kind: Kind, act: Act) -> Step {
    Step {
        kind,
        name: "a",
        act,
    }
}

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

/// The uids and versions that nothing has.
const WRONG: Base = Base {
    uid: Which::Wrong,
    version: Which::Wrong,
};

#[expect(clippy::too_many_lines, reason = "a list")]
pub fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let versioned = Base {
        uid: Which::Unsaid,
        version: Which::Wrong,
    };
    let leaving =
        json!({ "metadata": { "deletionTimestamp": "2020-01-01T00:00:00Z" }, "spec": {} });
    let side = json!({ "name": "side", "image": "x:1" });
    let more = json!({ "spec": { "template": { "spec": { "containers": [side] } } } });
    let none = json!({ "spec": { "deploymentName": "a" } });
    let three = json!({ "spec": { "replicas": 3 } });
    let uid = Base {
        uid: Which::Wrong,
        version: Which::Unsaid,
    };
    vec![
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
                Kind::Foo,
                Act::Delete {
                    options: json!({ "propagationPolicy": "None" }),
                    base: UNSAID,
                },
            )],
        ),
        (
            "the scale of a Foo without replicas",
            vec![
                create(Kind::Foo, &none),
                step(Kind::Foo, Act::Scale),
                patch(Kind::Foo, "scale", MERGE, json!({ "spec": {} })),
                patch(
                    Kind::Foo,
                    "scale",
                    MERGE,
                    json!({ "spec": { "replicas": 12 } }),
                ),
                patch(Kind::Foo, "scale", MERGE, three.clone()),
                patch(
                    Kind::Foo,
                    "scale",
                    MERGE,
                    json!({ "spec": { "replicas": -1 } }),
                ),
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
            "null is not a name",
            vec![create(
                Kind::Foo,
                &json!({ "spec": { "deploymentName": null } }),
            )],
        ),
        (
            "half a replica",
            vec![create(
                Kind::Foo,
                &json!({ "spec": { "deploymentName": "a", "replicas": 1.5 } }),
            )],
        ),
        (
            "a Foo of another version",
            vec![
                create(Kind::Foo, &json!({})),
                patch(
                    Kind::Foo,
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
                Kind::Foo,
                &json!({ "metadata": { "resourceVersion": "5" } }),
            )],
        ),
        (
            "no time",
            vec![
                create(Kind::Foo, &json!({})),
                patch(
                    Kind::Foo,
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
            "what is on its way out is still there",
            vec![
                create(
                    Kind::Foo,
                    &json!({ "metadata": { "finalizers": ["example.com/a"] } }),
                ),
                step(
                    Kind::Foo,
                    Act::Delete {
                        options: json!({}),
                        base: UNSAID,
                    },
                ),
                create(Kind::Foo, &json!({})),
            ],
        ),
        (
            "more replicas than a number has",
            vec![create(
                Kind::Foo,
                &json!({ "spec": { "deploymentName": "a", "replicas": 5_000_000_000_i64 } }),
            )],
        ),
        (
            "a deletion that takes another one's finalizer away, of one version",
            vec![
                create(Kind::Foo, &json!({})),
                step(
                    Kind::Foo,
                    Act::Delete {
                        options: json!({ "propagationPolicy": "Foreground" }),
                        base: UNSAID,
                    },
                ),
                step(
                    Kind::Foo,
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
