//! States of a Foo, and the expected outcome of each.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;

use foo_controller::api;
use futures::{StreamExt as _, stream::iter};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use operator_testkit::cluster::{Cluster, eventually};
use serde_json::{Value, json};

use super::values::{Case, Kind, cases};

use crate::support::foos::DEADLINE;

/// API version without a schema.
pub const LAX: &str = "v1alpha0";
/// Name of a Deployment that no Foo controls.
pub const TAKEN: &str = "taken";
/// Deployment name that the policy rejects. It also rejects [`TOO_MANY`] replicas.
const REFUSED: &str = "refused";
pub const TOO_MANY: i64 = 5;
/// Condition reason of a Deployment named [`STUCK`].
pub const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
/// Deployment names with a fixed state: progress deadline exceeded, no pods yet, and terminating.
pub const STUCK: &str = "stuck";
pub const SLOW: &str = "slow";
pub const LEAVING: &str = "leaving";

#[derive(Clone, Debug)]
pub enum Put {
    /// Written through the version with a schema.
    Spec(Value),
    /// Written through the version without a schema. Null removes the spec.
    Stored(Value),
    /// Terminating, held by a finalizer.
    Deleting,
    Gone,
}

/// Status and reason of the conditions Ready and Progressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub ready: (&'static str, &'static str),
    pub progressing: (&'static str, &'static str),
    /// Whether the outcome causes a Warning event.
    pub warns: bool,
}

#[derive(Clone, Debug)]
pub struct State {
    pub put: Put,
    /// Spec as stored by the API server.
    pub spec: Value,
    pub outcome: Option<Outcome>,
    /// Text that the condition's message contains.
    pub words: String,
    /// Whether the API server accepts a status update in this state.
    pub reportable: bool,
}

pub struct States {
    /// Each of these states is visited after every other one.
    pub pairs: Vec<State>,
    /// Further states of the same kinds.
    pub once: Vec<State>,
    /// A rejected case of each kind.
    pub refused: Vec<Case>,
    pub good: State,
    /// A good spec in a Foo whose name is too long.
    pub misnamed: State,
}

impl States {
    pub async fn all(cluster: &Cluster, client: &Client) -> Self {
        let sample = read("config/samples/foo.yaml")["spec"].clone();
        let schema = &read("deploy/crd.yaml")["spec"]["versions"][0]["schema"];
        let schema = &schema["openAPIV3Schema"]["properties"]["spec"];
        let namespace = cluster.namespace("probe").await;
        let tried = iter(cases(schema, &sample)).map(async |case| {
            let state = probe(client, &namespace, &case).await;
            (case, state)
        });
        let tried: Vec<(Case, State)> = tried.buffered(16).collect().await;

        let good = State::of(sample.clone());
        let named = |name: &str| State::of(json!({ "deploymentName": name, "replicas": 1 }));
        let mut pairs: Vec<_> = [REFUSED, TAKEN, STUCK, SLOW, LEAVING].map(named).into();
        let too_many = json!({ "deploymentName": sample["deploymentName"], "replicas": TOO_MANY });
        pairs.extend([
            good.clone(),
            State::of(too_many),
            State::without(Put::Deleting),
            State::without(Put::Gone),
        ]);
        let (mut once, mut refused, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (case, state) in tried {
            let is_taken = matches!(state.put, Put::Spec(_));
            let is_first = seen.insert((case.field.clone(), case.kind, is_taken));
            if is_first || is_taken && case.kind == Kind::Inside || case.kind == Kind::Beside {
                pairs.push(state);
            } else {
                once.push(state);
            }
            if is_first && !is_taken {
                refused.push(case);
            }
        }
        pairs.push(State {
            put: Put::Stored(Value::Null),
            words: "spec".to_owned(),
            reportable: false,
            ..invalid()
        });
        let misnamed = State {
            put: Put::Stored(sample),
            words: "metadata.name".to_owned(),
            reportable: false,
            ..invalid()
        };
        Self {
            pairs,
            once,
            refused,
            good,
            misnamed,
        }
    }
}

impl State {
    /// Returns the state of a spec that the API server accepts.
    fn of(spec: Value) -> Self {
        let name = spec["deploymentName"].as_str().unwrap();
        let failed =
            |reason, words: &str| (("False", reason), ("False", reason), true, words.to_owned());
        // A policy may be changed without the Foo, so the Foo does not stall at once.
        let denied = || {
            let reason = "DeploymentRejected";
            (
                ("False", reason),
                ("True", reason),
                true,
                "not this one".to_owned(),
            )
        };
        let (ready, progressing, warns, words) = match name {
            "" => failed("InvalidSpec", "spec.deploymentName"),
            TAKEN => failed("ErrResourceExists", TAKEN),
            REFUSED => denied(),
            _ if spec["replicas"] == TOO_MANY => denied(),
            STUCK => (
                ("False", DEADLINE_EXCEEDED),
                ("False", DEADLINE_EXCEEDED),
                true,
                name.to_owned(),
            ),
            SLOW => (
                ("False", "DeploymentProgressing"),
                ("True", "DeploymentProgressing"),
                false,
                name.to_owned(),
            ),
            LEAVING => (
                ("False", "DeploymentDeleting"),
                ("True", "DeploymentDeleting"),
                false,
                name.to_owned(),
            ),
            _ => (
                ("True", "DeploymentAvailable"),
                ("False", "DeploymentComplete"),
                false,
                name.to_owned(),
            ),
        };
        let outcome = Outcome {
            ready,
            progressing,
            warns,
        };
        Self {
            put: Put::Spec(spec.clone()),
            spec,
            outcome: Some(outcome),
            words,
            reportable: true,
        }
    }

    fn without(put: Put) -> Self {
        Self {
            put,
            spec: Value::Null,
            outcome: None,
            words: String::new(),
            reportable: false,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.outcome
            .is_some_and(|outcome| outcome.ready.0 == "True")
    }
}

fn invalid() -> State {
    State::of(json!({ "deploymentName": "" }))
}

/// Checks with dry runs whether the API server accepts the spec and, if not, a status for the stored Foo.
async fn probe(client: &Client, namespace: &str, case: &Case) -> State {
    let strict = api(client, namespace, api::VERSION);
    let object = foo(api::VERSION, "probe", &case.spec);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = strict.create(&dry, &object).await;
    if let Some(valid) = case.valid {
        assert_eq!(answer.is_ok(), valid, "{case:?}: {answer:?}");
    }
    match answer {
        Ok(taken) => State {
            put: Put::Spec(case.spec.clone()),
            ..State::of(taken.data["spec"].clone())
        },
        Err(error) => {
            assert_names_field(&error, case);
            let mut object = foo(LAX, "probe", &case.spec);
            object.metadata.name = None;
            object.metadata.generate_name = Some("stored-".to_owned());
            let stored = api(client, namespace, LAX)
                .create(&PostParams::default(), &object)
                .await
                .unwrap();
            let name = stored.metadata.name.unwrap();
            // The spec as the API server returns it: without nulls, and with 1 for `1.0`.
            let read = strict.get(&name).await.unwrap().data["spec"].clone();
            let again = foo(api::VERSION, "probe", &read);
            if strict.create(&dry, &again).await.is_ok() {
                return State {
                    put: Put::Stored(case.spec.clone()),
                    ..State::of(read)
                };
            }
            let status = Patch::Merge(json!({ "status": { "replicas": 1 } }));
            let dry = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            let reported = strict.patch_status(&name, &dry, &status).await;
            State {
                put: Put::Stored(case.spec.clone()),
                words: case.field.clone(),
                reportable: reported.is_ok(),
                ..invalid()
            }
        }
    }
}

pub fn assert_names_field(error: &kube::Error, case: &Case) {
    let field = format!("spec.{}", case.field);
    assert!(error.to_string().contains(&field), "{case:?}: {error}");
}

/// Returns a Foo to create through this version.
pub fn foo(version: &str, name: &str, spec: &Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, &resource(version));
    object.data = json!({});
    if !spec.is_null() {
        object.data["spec"] = spec.clone();
    }
    object
}

/// Returns a Deployment that no Foo controls.
pub fn taken() -> Deployment {
    let labels = json!({ "app": "theirs" });
    let pods = json!({ "containers": [{ "name": "nginx", "image": "theirs" }] });
    let deployment = json!({
        "metadata": { "name": TAKEN },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pods },
        },
    });
    serde_json::from_value(deployment).unwrap()
}

pub fn resource(version: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(api::GROUP, version, api::KIND);
    ApiResource::from_gvk_with_plural(&kind, api::PLURAL)
}

/// Returns the API for Foos in this version.
pub fn api(client: &Client, namespace: &str, version: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(version))
}

fn read(path: &str) -> Value {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Installs the CRD with a second version, and the policy.
pub async fn install(cluster: &Cluster) {
    let mut crd = read("deploy/crd.yaml");
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    let mut lax = versions[0].clone();
    lax["name"] = LAX.into();
    lax["storage"] = false.into();
    lax["subresources"] = json!({ "status": {} });
    lax["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    versions.push(lax);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": REFUSED },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["deployments"],
            }] },
            "validations": [{
                "expression": format!("object.metadata.name != '{REFUSED}' && object.spec.replicas != {TOO_MANY}"),
                "message": "not this one",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": REFUSED },
        "spec": { "policyName": REFUSED, "validationActions": ["Deny"] },
    });
    let list =
        json!({ "apiVersion": "v1", "kind": "List", "items": [crd, policy, binding] }).to_string();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], &list)
        .await
        .success();
    let established = [
        "wait",
        "crd/foos.samplecontroller.k8s.io",
        "--for=condition=Established",
        "--timeout=30s",
    ];
    cluster.kubectl(&established).await.success();
    let dry = [
        "create",
        "deployment",
        REFUSED,
        "--image=i",
        "--dry-run=server",
    ];
    eventually(DEADLINE, "the policy is in force", async || {
        let output = cluster.kubectl(&dry).await;
        if output.status.success() {
            Err(output)
        } else {
            Ok(())
        }
    })
    .await;
}
