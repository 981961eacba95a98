//! Simulates the operator of Foos as any other: `cargo run --profile bench --package foo-simulation --example foo -- --seeds 50`.
//!
//! The package also has users and judges for Foos alone, which know more of them.

use std::process::ExitCode;

use foo_controller::{APP, FooConfig, api::Foo, build, crds};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use operator_simulation::{Draws, Operator, Subject, Verdict, View, check};
use serde_json::{Value, json};

/// Image of every Deployment.
const IMAGE: &str = "nginx:latest";

struct Foos;

impl Subject for Foos {
    type Object = Foo;

    fn settled(&self, foo: &Foo, view: &View<'_>) -> Verdict {
        let (spec, status) = (&foo.spec, foo.status.clone().unwrap_or_default());
        if spec.check(view.key().name()).is_err() {
            return view.is_condition("Ready", "False", "InvalidSpec");
        }
        let wanted = view.get::<Deployment>(&spec.deployment_name);
        let owners = wanted.iter().flat_map(ResourceExt::owner_references);
        let mut controllers = owners.filter(|it| it.controller == Some(true));
        if wanted.is_some() && !controllers.any(|it| Some(&it.uid) == foo.metadata.uid.as_ref()) {
            return view
                .is_condition("Ready", "False", "ErrResourceExists")
                .or_else(|_| view.is_condition("Ready", "False", "DeploymentDeleting"));
        }
        // The Deployments of earlier names are deleted.
        let deployment = json!(view.owned::<Deployment>()?);
        let (metadata, has) = (&deployment["metadata"], &deployment["spec"]);
        check(
            metadata["name"] == *spec.deployment_name,
            "the Deployment has another name",
        )?;
        check(
            spec.replicas.is_none_or(|it| has["replicas"] == it),
            "the Deployment has other replicas",
        )?;
        let labels = json!({ "app": "nginx", "controller": view.key().name() });
        let pods = &has["template"];
        check(
            metadata["labels"] == labels && pods["metadata"]["labels"] == labels,
            "other labels",
        )?;
        let mut containers = pods["spec"]["containers"].as_array().into_iter().flatten();
        check(
            containers.any(|it| it["name"] == "nginx" && it["image"] == IMAGE),
            "the container has another image",
        )?;
        let counts = json!([status.replicas, status.available_replicas]);
        let is = &deployment["status"];
        check(
            counts == json!([is["replicas"], is["availableReplicas"]]),
            "the status has other counts",
        )?;
        check(
            status.deployment_name.as_ref() == Some(&spec.deployment_name),
            "the status names another Deployment",
        )?;
        view.is_condition("Ready", "True", "DeploymentAvailable")
    }

    fn values(&self, field: &str, draw: &mut Draws) -> Option<Value> {
        let names = ["foo-0", "foo-1", "foo-2", "foo-3", "web", ""];
        (field == "spec.deploymentName").then(|| draw.of(&names).into())
    }
}

/// The operator under simulation.
///
/// # Panics
/// If the CRD is missing.
#[must_use]
pub fn operator() -> Operator {
    let crd = crds().pop().expect("the CRD of Foos");
    Operator::new(&APP, |program, _| {
        let (image, max_rollouts) = (IMAGE.to_owned(), 2);
        let config = FooConfig {
            image,
            max_rollouts,
        };
        build(program, config);
    })
    .subject(crd, Foos)
}

#[allow(dead_code, reason = "`simulate` runs it with the other operators")]
fn main() -> ExitCode {
    operator_simulation::main(operator())
}
