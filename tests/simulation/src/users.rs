//! Actions of users on the objects, and their requests.

use http::Method;
use operator_simulation::{
    actors::{USER, deployment_name},
    plan::User,
    request::Request,
    world::{World, at},
};
use operator_testkit::api_server::Key;
use serde_json::{Value, json};

use super::{FOO, invariants::GENERATION};

/// Namespace of the Foos and their Deployments.
pub const NAMESPACE: &str = "foos";
/// Namespace of the replicas and their Lease.
pub const SYSTEM: &str = "foo-system";
pub const LEASE: &str = "foo-controller";

/// Types in [`Deed`]: the text in front of a name, and the type of the name.
pub const TYPES: &[(&str, &str)] = &[
    ("User(", "Deed"),
    ("policy: ", "Policy"),
    ("with: ", "Spoilt"),
];

/// An action on the objects. Foos and Deployments have small numbers, so that actions collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Creates a Foo by name. Use [`Action::Request`](operator_simulation::plan::Action::Request) for an unusual spec.
    Create {
        foo: &'static str,
        deployment: &'static str,
        replicas: Option<i32>,
    },
    /// Changes `spec.replicas`.
    Scale {
        foo: &'static str,
        replicas: i32,
    },
    /// Changes `spec.deploymentName`.
    Rename {
        foo: &'static str,
        deployment: &'static str,
    },
    Delete {
        foo: &'static str,
        policy: Policy,
    },

    CreateFoo {
        foo: u8,
        deployment: u8,
        replicas: Option<u8>,
    },
    ScaleFoo {
        foo: u8,
        replicas: Option<u8>,
    },
    RenameDeployment {
        foo: u8,
        deployment: u8,
    },
    AnnotateFoo {
        foo: u8,
    },
    /// Makes the Foo invalid, as if it was stored before the CRD had its schema.
    SpoilFoo {
        foo: u8,
        with: Spoilt,
    },
    DeleteFoo {
        foo: u8,
        policy: Policy,
    },
    AddFinalizer {
        foo: u8,
    },
    RemoveFinalizer {
        foo: u8,
    },
    /// Deletes it and creates it again without delay.
    ReplaceFoo {
        foo: u8,
        deployment: u8,
        replicas: Option<u8>,
    },

    ScaleDeployment {
        deployment: u8,
        replicas: u8,
    },
    ChangeImage {
        deployment: u8,
    },
    /// `kubectl rollout pause`, or `resume`.
    PauseDeployment {
        deployment: u8,
        paused: bool,
    },
    ChangeLabels {
        deployment: u8,
    },
    /// Sets the annotation of the Foo's generation to a generation that it never had.
    ForgeGeneration {
        deployment: u8,
    },
    DeleteDeployment {
        deployment: u8,
        policy: Policy,
    },
    /// Creates a Deployment that belongs to no Foo.
    CreateDeployment {
        deployment: u8,
    },
    /// A pod dies and is replaced. Not an action of a user.
    LosePod {
        deployment: u8,
    },
    /// Removes its owner references.
    OrphanDeployment {
        deployment: u8,
    },
    /// Copies the Deployment of this Foo, with its labels, annotations and owner references, as for debugging.
    CopyDeployment {
        foo: u8,
        deployment: u8,
    },

    /// An autoscaler scales the Foo if that specifies its replicas, otherwise the Deployment.
    Autoscale {
        foo: u8,
        replicas: u8,
    },

    DeleteLease,
    /// `spec: {}`.
    EmptyLease,
    ClearHolder,
    GiveLeaseAway,
    /// `leaseDurationSeconds: 1`.
    ShortenLease,
    /// Replaces the Lease with a copy that was released long ago.
    RestoreLease,
    /// Sets `leaseTransitions` and the times to their maximum, so that no leader can increase them.
    SpoilLease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoilt {
    NoSpec,
    NameIsNumber,
    EmptyName,
    LongName,
    NoReplicas,
    ManyReplicas,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Background,
    Foreground,
    Orphan,
}

/// Another user than the owner of the Foos.
const ADMIN: &str = "admin";

fn foo_name(number: u8) -> String {
    format!("foo-{number}")
}

impl User for Deed {
    fn act(&self, world: &mut World) -> u16 {
        act(world, *self)
    }
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn act(world: &mut World, deed: Deed) -> u16 {
    let request = match deed {
        Deed::Create {
            foo,
            deployment,
            replicas,
        } => return create_named(foo, deployment, replicas).send(world, USER).0,
        Deed::Scale { foo, replicas } => {
            let spec = json!({ "replicas": replicas });
            return Request::patch(path_of(foo), json!({ "spec": spec }))
                .send(world, USER)
                .0;
        }
        Deed::Rename { foo, deployment } => {
            let spec = json!({ "deploymentName": deployment });
            return Request::patch(path_of(foo), json!({ "spec": spec }))
                .send(world, USER)
                .0;
        }
        Deed::Delete { foo, policy } => return delete(path_of(foo), policy).send(world, USER).0,
        Deed::CreateFoo {
            foo,
            deployment,
            replicas,
        } => create_foo(foo, deployment, replicas),
        Deed::ReplaceFoo {
            foo,
            deployment,
            replicas,
        } => {
            delete(foo_path(foo), Policy::Background).send(world, ADMIN);
            create_foo(foo, deployment, replicas)
        }
        Deed::ScaleFoo { foo, replicas } => {
            Request::patch(foo_path(foo), json!({ "spec": { "replicas": replicas } }))
        }
        Deed::RenameDeployment { foo, deployment } => {
            let spec = json!({ "deploymentName": deployment_name(deployment) });
            Request::patch(foo_path(foo), json!({ "spec": spec }))
        }
        Deed::AnnotateFoo { foo } => {
            let (_, object) = Request::get(foo_path(foo)).send(world, ADMIN);
            let version = &object["metadata"]["resourceVersion"];
            Request::patch(
                foo_path(foo),
                json!({ "metadata": { "annotations": { "note": version } } }),
            )
        }
        Deed::SpoilFoo { foo, with } => return spoil(world, &foo_name(foo), with),
        Deed::DeleteFoo { foo, policy } => delete(foo_path(foo), policy),
        Deed::AddFinalizer { foo } => {
            let metadata = json!({ "finalizers": ["example.com/hold"] });
            Request::patch(foo_path(foo), json!({ "metadata": metadata }))
        }
        Deed::RemoveFinalizer { foo } => {
            Request::patch(foo_path(foo), json!({ "metadata": { "finalizers": null } }))
        }
        Deed::DeleteDeployment { deployment, policy } => {
            delete(deployment_path(deployment), policy)
        }
        Deed::CreateDeployment { deployment } => create_deployment(deployment),
        Deed::CopyDeployment { foo, deployment } => {
            let (_, foo) = Request::get(foo_path(foo)).send(world, ADMIN);
            let name = foo["spec"]["deploymentName"].as_str().unwrap_or_default();
            let (code, one) =
                Request::get(format!("{}/{name}", deployments_path())).send(world, ADMIN);
            if name.is_empty() || code != 200 {
                return code;
            }
            copy(&one, deployment)
        }
        Deed::ScaleDeployment {
            deployment,
            replicas,
        } => Request::patch(
            deployment_path(deployment),
            json!({ "spec": { "replicas": replicas } }),
        ),
        Deed::LosePod { deployment } => return lose_pod(world, &deployment_path(deployment)),
        Deed::ChangeImage { deployment } => {
            let containers = json!([{ "name": "nginx", "image": "another:1" }]);
            let spec = json!({ "template": { "spec": { "containers": containers } } });
            Request::patch(deployment_path(deployment), json!({ "spec": spec }))
        }
        Deed::PauseDeployment { deployment, paused } => Request::patch(
            deployment_path(deployment),
            json!({ "spec": { "paused": Some(true).filter(|_| paused) } }),
        ),
        Deed::ChangeLabels { deployment } => {
            let labels = json!({ "app": "another", "more": "of-it" });
            Request::patch(
                deployment_path(deployment),
                json!({ "metadata": { "labels": labels } }),
            )
        }
        Deed::ForgeGeneration { deployment } => {
            let annotations = json!({ GENERATION: "999" });
            Request::patch(
                deployment_path(deployment),
                json!({ "metadata": { "annotations": annotations } }),
            )
        }
        Deed::OrphanDeployment { deployment } => {
            let metadata = json!({ "ownerReferences": null });
            Request::patch(deployment_path(deployment), json!({ "metadata": metadata }))
        }
        Deed::Autoscale { foo, replicas } => return autoscale(world, foo, replicas),
        Deed::DeleteLease => delete(lease_path(), Policy::Background),
        Deed::EmptyLease => {
            let (200, mut lease) = Request::get(lease_path()).send(world, ADMIN) else {
                return 404;
            };
            lease["spec"] = json!({});
            Request::new(Method::PUT, lease_path(), lease)
        }
        Deed::ClearHolder => {
            Request::patch(lease_path(), json!({ "spec": { "holderIdentity": null } }))
        }
        Deed::GiveLeaseAway => Request::patch(
            lease_path(),
            json!({ "spec": { "holderIdentity": "somebody_else" } }),
        ),
        Deed::ShortenLease => Request::patch(
            lease_path(),
            json!({ "spec": { "leaseDurationSeconds": 1 } }),
        ),
        Deed::SpoilLease => {
            let last = "9999-12-31T23:59:59.999999Z";
            let spec = json!({
                "leaseTransitions": i32::MAX, "acquireTime": last, "renewTime": last,
            });
            Request::patch(lease_path(), json!({ "spec": spec }))
        }
        Deed::RestoreLease => {
            let then = "2020-01-01T00:00:00.000000Z";
            let spec = json!({
                "holderIdentity": null, "leaseDurationSeconds": 1, "acquireTime": then, "renewTime": then,
            });
            Request::patch(lease_path(), json!({ "spec": spec }))
        }
    };
    request.send(world, ADMIN).0
}

fn autoscale(world: &mut World, foo: u8, replicas: u8) -> u16 {
    const AUTOSCALER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
    let (200, foo_now) = Request::get(foo_path(foo)).send(world, ADMIN) else {
        return 404;
    };
    let spec = &foo_now["spec"];
    let target = match (spec["replicas"].as_i64(), spec["deploymentName"].as_str()) {
        (Some(_), _) => foo_path(foo),
        (None, Some(name)) => format!("{}/{name}", deployments_path()),
        (None, None) => return 404,
    };
    let scale = json!({ "spec": { "replicas": replicas } });
    let path = format!("{target}/scale");
    world.request(AUTOSCALER, &Method::PATCH, &path, &scale).0
}

fn create_foo(number: u8, of: u8, replicas: Option<u8>) -> Request {
    create_named(
        &foo_name(number),
        &deployment_name(of),
        replicas.map(i32::from),
    )
}

fn create_named(name: &str, deployment: &str, replicas: Option<i32>) -> Request {
    let mut spec = json!({ "deploymentName": deployment });
    if let Some(replicas) = replicas {
        spec["replicas"] = replicas.into();
    }
    Request::create(
        foos_path(),
        json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1",
            "kind": "Foo",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": spec,
        }),
    )
}

fn create_deployment(number: u8) -> Request {
    let labels = json!({ "app": "foreign" });
    let containers = json!([{ "name": "foreign", "image": "foreign:1" }]);
    Request::create(
        deployments_path(),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": deployment_name(number), "namespace": NAMESPACE, "labels": labels },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } },
            },
        }),
    )
}

/// Writes the status like the Deployment controller.
fn lose_pod(world: &mut World, path: &str) -> u16 {
    let (_, one) = Request::get(path.to_owned()).send(world, ADMIN);
    let count = |field: &str| one["status"][field].as_i64().unwrap_or_default();
    let left = count("availableReplicas") - 1;
    if left < 0 {
        return 404;
    }
    let left_out = |count: i64| Some(count).filter(|count| *count > 0);
    let counts = json!({
        "readyReplicas": left_out(left),
        "availableReplicas": left_out(left),
        "unavailableReplicas": count("replicas") - left,
    });
    let status = Request::patch(format!("{path}/status"), json!({ "status": counts }));
    status.send(world, ADMIN).0
}

/// Returns the request that creates a copy under another name.
fn copy(one: &Value, number: u8) -> Request {
    let metadata = &one["metadata"];
    Request::create(
        deployments_path(),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": deployment_name(number),
                "namespace": NAMESPACE,
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "ownerReferences": metadata["ownerReferences"],
            },
            "spec": one["spec"],
        }),
    )
}

/// Stores an invalid Foo without validation, as if it was stored before the CRD had its schema.
fn spoil(world: &mut World, name: &str, with: Spoilt) -> u16 {
    let key = Key::new(FOO, NAMESPACE, name);
    let Some(mut foo) = world.store.get(&key).map(|foo| Value::clone(foo)) else {
        return 404;
    };
    let spec = &mut foo["spec"];
    match with {
        Spoilt::NoSpec => *spec = Value::Null,
        Spoilt::NameIsNumber => spec["deploymentName"] = 7.into(),
        Spoilt::EmptyName => spec["deploymentName"] = "".into(),
        Spoilt::LongName => spec["deploymentName"] = "n".repeat(64).into(),
        Spoilt::NoReplicas => spec["replicas"] = 0.into(),
        Spoilt::ManyReplicas => spec["replicas"] = 11.into(),
    }
    if with == Spoilt::NoSpec
        && let Some(foo) = foo.as_object_mut()
    {
        foo.remove("spec");
    }
    let generation = foo["metadata"]["generation"].as_i64().unwrap_or_default();
    foo["metadata"]["generation"] = (generation + 1).into();
    world.store.put(at(world.now), "admin", &key, Some(foo));
    200
}

fn foos_path() -> String {
    format!("/apis/samplecontroller.k8s.io/v1alpha1/namespaces/{NAMESPACE}/foos")
}

fn foo_path(number: u8) -> String {
    path_of(&foo_name(number))
}

/// Returns the path of the Foo of this name.
fn path_of(name: &str) -> String {
    format!("{}/{name}", foos_path())
}

fn deployments_path() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
}

fn deployment_path(number: u8) -> String {
    format!("{}/{}", deployments_path(), deployment_name(number))
}

fn lease_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{LEASE}")
}

fn delete(path: String, policy: Policy) -> Request {
    Request::delete(path, &format!("{policy:?}"))
}
