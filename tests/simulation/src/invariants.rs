//! The checker of audit logs, and its rules for Foos: the desired state, and the recorded generation.

use std::collections::{BTreeMap, HashMap};

use foo_controller::api::Foo;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec},
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use operator_testkit::{api_server::Fencing, cluster::AuditEvent};

pub use operator_simulation::invariants::{Election, Report, Work, version};
use operator_simulation::invariants::{check_of, controller, is_made};

/// Annotation with the generation of the Foo that a Deployment was written from.
pub const GENERATION: &str = "samplecontroller.k8s.io/foo-generation";
/// Annotation with the owner of the generation. Generations of different Foos are not comparable.
pub const MADE_FOR: &str = "samplecontroller.k8s.io/made-for";

/// Annotation of the fencing record with the leader's identity (`deploy/components/fencing`).
pub const FENCING_HOLDER: &str = "samplecontroller.k8s.io/lease-holder";

/// Annotation of the fencing record with the term.
pub const FENCING_TERM: &str = "samplecontroller.k8s.io/lease-term";

/// User of the replicas.
pub const CONTROLLER: &str = "system:serviceaccount:foo-system:foo-controller";

/// The fencing component.
pub const FENCING: Fencing = Fencing {
    policy: "foo-controller-fencing",
    user: CONTROLLER,
    record: ("foo-system", "foo-controller-fencing"),
    holder: FENCING_HOLDER,
};

/// Work of the Foo controller.
pub const FOO: Work = Work {
    kind: "Foo",
    primary: "foos",
    owned: &["deployments"],
    status: true,
    finalizers: false,
    fencing_holder: FENCING_HOLDER,
};

/// Checks a whole log for I1, I2, I4, I5, I7 and I8, and the `quiet` periods without changes for I6.
pub fn check(log: &[AuditEvent], election: &Election, quiet: &[(Timestamp, Timestamp)]) -> Report {
    let mut report = check_of(&[FOO], log, election, quiet);
    i7_generation(log, &mut report);
    report
}

/// Returns an error for each Foo whose Deployment or status does not match its spec and the configured image.
pub fn unsettled(foos: &[Foo], deployments: &[Deployment], image: &str) -> Vec<String> {
    let key = |namespace: Option<String>, name: &str| (namespace, name.to_owned());
    let by_name: BTreeMap<_, _> = deployments
        .iter()
        .map(|deployment| {
            (
                key(deployment.namespace(), &deployment.name_any()),
                deployment,
            )
        })
        .collect();
    let wrong = |foo: &Foo| {
        let Some(deployment) = by_name.get(&key(foo.namespace(), &foo.spec.deployment_name)) else {
            return Some("has no Deployment");
        };
        let spec = deployment.spec.as_ref().unwrap();
        let observed = foo
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        if controller(deployment.owner_references())
            .is_none_or(|o| Some(&o.uid) != foo.uid().as_ref())
        {
            Some("does not control its Deployment")
        } else if foo.spec.replicas.is_some() && spec.replicas != foo.spec.replicas {
            Some("has another number of replicas")
        } else if images(spec) != [Some(image)] {
            Some("has another image")
        } else if !has_labels(deployment, &foo.name_any()) {
            Some("has other labels")
        } else if observed != foo.metadata.generation {
            Some("has a status of before")
        } else {
            None
        }
    };
    foos.iter()
        .filter_map(|foo| Some(format!("I3 {} {}", foo.name_any(), wrong(foo)?)))
        .collect()
}

/// Returns the images of the pods' containers.
fn images(spec: &DeploymentSpec) -> Vec<Option<&str>> {
    let pod = spec.template.spec.iter();
    let containers = pod.flat_map(|pod| &pod.containers);
    containers
        .map(|container| container.image.as_deref())
        .collect()
}

/// Returns whether the Deployment, its selector and its pods have the required labels.
fn has_labels(deployment: &Deployment, foo: &str) -> bool {
    let spec = deployment.spec.as_ref().unwrap();
    let pods = spec.template.metadata.as_ref();
    let all = [
        deployment.metadata.labels.as_ref(),
        spec.selector.match_labels.as_ref(),
        pods.and_then(|pods| pods.labels.as_ref()),
    ];
    all.into_iter().all(|labels| {
        labels.is_some_and(|labels| {
            let is = |name: &str, value: &str| labels.get(name).is_some_and(|v| v == value);
            is("app", "nginx") && is("controller", foo)
        })
    })
}

/// The generation of one Foo on a Deployment never decreases, for any writer.
pub fn i7_generation(log: &[AuditEvent], report: &mut Report) {
    let mut writes: Vec<_> = log
        .iter()
        .filter(|event| event.resource == "deployments" && is_made(event))
        .filter_map(|event| Some((version(&event.response_object)?, event)))
        .collect();
    writes.sort_by_key(|(version, _)| *version);
    let mut newest: HashMap<(&str, Option<&str>), i64> = HashMap::new();
    for (_, event) in writes {
        let metadata = &event.response_object["metadata"];
        let generation = metadata["annotations"][GENERATION].as_str();
        let Some(generation) = generation.and_then(|text| text.parse::<i64>().ok()) else {
            continue;
        };
        let made_for = metadata["annotations"][MADE_FOR].as_str();
        let newest = newest
            .entry((metadata["uid"].as_str().unwrap(), made_for))
            .or_default();
        if generation < *newest {
            report.violate(
                "I7",
                event,
                &format!("back from generation {newest} to {generation}"),
            );
        }
        *newest = generation.max(*newest);
    }
}
