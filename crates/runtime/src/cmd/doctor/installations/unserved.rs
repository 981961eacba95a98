//! The objects that no installation serves: their label names an installation that does not run, or that does not serve their
//! namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
};

use super::{
    super::{
        cluster::{each_in_scope, few, installation_of},
        subject::Doctor,
        verdict::{Verdict, warning},
    },
    other::{Election, Other, held},
};
use crate::{
    api::{control::installation_label, failure::brief, kind::Kind},
    config::app::App,
};

/// Number of objects by namespace.
type Counts = BTreeMap<String, usize>;

/// Returns a warning for each reconciled type and each installation with such objects in the served namespaces.
pub(super) async fn unserved(doctor: &Doctor, others: &BTreeMap<Election, Other>) -> Vec<Verdict> {
    let mut found = Vec::new();
    for controller in &doctor.needs.controllers {
        for (name, counts) in of_others(doctor, controller.primary).await {
            let (left, is_running) = left(others, &name, counts);
            if !left.is_empty() && !leads_unknown(doctor, others, &name).await {
                let name = brief(&name);
                found.push(abandoned(
                    doctor.app,
                    controller.primary,
                    &name,
                    &left,
                    is_running,
                ));
            }
        }
    }
    found
}

/// Returns the number of objects of each other installation. Empty if they cannot be listed, which another check reports.
async fn of_others(doctor: &Doctor, kind: &Kind) -> BTreeMap<String, Counts> {
    let label = installation_label(doctor.app.group);
    let selector = match &*doctor.config.installation {
        // Objects with an empty value belong to this installation.
        "" => label,
        own => format!("{label}!={own}"),
    };
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    let take = |object: DynamicObject| {
        if let Some(other) = installation_of(doctor, &object) {
            let of = counts.entry(other.into()).or_default();
            *of.entry(object.namespace().unwrap_or_default())
                .or_default() += 1;
        }
    };
    let selected = ListParams::default().labels(&selector);
    match each_in_scope(doctor, kind, &selected, take).await {
        Ok(()) => counts,
        Err(_) => BTreeMap::new(),
    }
}

/// Returns the objects in namespaces that no known installation of this name serves, and whether such an installation is known.
fn left(others: &BTreeMap<Election, Other>, name: &str, mut counts: Counts) -> (Counts, bool) {
    let served = others.values().filter_map(|it| it.served.as_ref().ok());
    let served: Vec<_> = served.filter(|(its, _)| its == name).collect();
    counts.retain(|namespace, _| {
        !served.iter().any(|(_, namespaces)| {
            namespaces.is_empty() || namespace.is_empty() || namespaces.contains(namespace)
        })
    });
    (counts, !served.is_empty())
}

/// Returns whether the Lease of this installation is held anywhere in the cluster by a replica whose namespaces are unknown. Returns
/// `true` if the Leases cannot be listed.
async fn leads_unknown(
    doctor: &Doctor,
    others: &BTreeMap<Election, Other>,
    installation: &str,
) -> bool {
    let ours = &*doctor.config.leader_election.lease_name;
    let base = ours.strip_suffix(&*doctor.config.installation);
    let base = base.and_then(|base| base.strip_suffix('-'));
    let mut name = base.unwrap_or(ours).to_owned();
    if !installation.is_empty() {
        name = format!("{name}-{installation}");
    }
    let leases: Api<Lease> = Api::all(doctor.client.clone());
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let now = doctor.host.now();
    let is_unknown = |lease: Lease| {
        let election = (lease.namespace().unwrap_or_default(), lease.name_any());
        let is_known = others.get(&election).is_some_and(|it| it.served.is_ok());
        !is_known && lease.spec.is_some_and(|spec| held(&spec, now).is_some())
    };
    let found = leases.list(&named).await;
    found.map_or(true, |leases| leases.into_iter().any(is_unknown))
}

/// The warning about objects that no installation serves.
fn abandoned(
    app: &App,
    kind: &Kind,
    installation: &str,
    counts: &Counts,
    is_running: bool,
) -> Verdict {
    let label = installation_label(app.group);
    let count: usize = counts.values().sum();
    let have = match count {
        1 => format!("1 {} has", kind.kind),
        _ => format!("{count} {} have", kind.plural),
    };
    let objects = match installation {
        "" => format!("{have} no label {label}, or an empty one"),
        name => format!("{have} the label {label}={name}"),
    };
    let left = "they are not reconciled and keep their finalizers";
    let namespaces = few(counts.keys());
    let text = match (installation, is_running) {
        ("", false) => format!(
            "the default installation does not run: {left}: install it, or set their label to an installation that runs"
        ),
        ("", true) => format!(
            "the default installation does not serve {namespaces}: {left}: add these namespaces to its `namespaces`, or set their \
             label to another installation"
        ),
        (name, false) => format!(
            "no installation of this name runs: {left}: install {name}, or set their label to an installation that runs"
        ),
        (_, true) => format!(
            "no installation of this name serves {namespaces}: {left}: add these namespaces to its `namespaces`, or set their \
             label to another installation"
        ),
    };
    warning(format!("{objects}, and {text}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{app::tests::APP, settings::Config};

    static JOB: Kind = Kind::custom("example.com", "v1", "Job", "jobs");
    static CLASS: Kind = Kind::custom("example.com", "v1", "Class", "classes").cluster_scoped();

    /// The objects with the namespaces and the installations of the test.
    fn objects(plural: &str) -> Vec<Value> {
        let object = |namespace: &str, installation: &str| {
            let labels = json!({ installation_label(APP.group): installation });
            json!({ "metadata": { "name": "x", "namespace": namespace, "labels": labels } })
        };
        match plural {
            "jobs" => vec![
                object("a", "canary"),
                object("b", "canary"),
                object("c", "canary"),
                object("c", "own"),
            ],
            "classes" => vec![object("", "")],
            _ => Vec::new(),
        }
    }

    /// Each reconciled type counts, and each namespace that this installation serves.
    #[tokio::test]
    async fn the_objects_of_all_types_are_counted() {
        let label = installation_label(APP.group);
        for namespaces in [&["a", "b"][..], &[]] {
            let config = Config {
                installation: "own".to_owned(),
                namespaces: namespaces.iter().map(|it| (*it).to_owned()).collect(),
                ..Config::shipped(&APP)
            };
            let doctor = Doctor::for_tests(config, &[&JOB, &CLASS], objects);
            let found = unserved(&doctor, &BTreeMap::new()).await;
            let starts: Vec<_> = found
                .iter()
                .map(|(_, text)| text.split(", and ").next().unwrap_or_default())
                .collect();
            let jobs = if namespaces.is_empty() { 3 } else { 2 };
            let expected = [
                format!("{jobs} jobs have the label {label}=canary"),
                format!("1 Class has no label {label}, or an empty one"),
            ];
            assert_eq!(starts, expected);
        }
    }

    #[test]
    fn a_label_needs_an_installation_that_serves_the_namespace() {
        let all = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let other = |name: &str, namespaces: &[&str]| Other {
            holder: None,
            served: Ok((name.to_owned(), all(namespaces))),
        };
        let label = installation_label(APP.group);
        for (others, name, expected) in [
            (vec![other("canary", &[])], "canary", String::new()),
            (
                vec![other("canary", &["a"]), other("canary", &["b"])],
                "canary",
                String::new(),
            ),
            (
                vec![other("canary", &["a"])],
                "canary",
                format!(
                    "2 jobs have the label {label}=canary, and no installation of this name serves b: they are not reconciled and keep \
                     their finalizers: add these namespaces to its `namespaces`, or set their label to another installation"
                ),
            ),
            (
                vec![other("other", &[]), Other::default()],
                "canary",
                format!(
                    "3 jobs have the label {label}=canary, and no installation of this name runs: they are not reconciled and keep their \
                     finalizers: install canary, or set their label to an installation that runs"
                ),
            ),
            (
                vec![],
                "",
                format!(
                    "3 jobs have no label {label}, or an empty one, and the default installation does not run: they are not \
                     reconciled and keep their finalizers: install it, or set their label to an installation that runs"
                ),
            ),
            (
                vec![other("", &["b"])],
                "",
                format!(
                    "1 Job has no label {label}, or an empty one, and the default installation does not serve a: they are not \
                     reconciled and keep their finalizers: add these namespaces to its `namespaces`, or set their label"
                ),
            ),
        ] {
            let others = others.into_iter().enumerate();
            let others = others.map(|(number, it)| ((number.to_string(), String::new()), it));
            let counts = Counts::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
            let (left, is_running) = left(&others.collect(), name, counts);
            let found = if left.is_empty() {
                String::new()
            } else {
                abandoned(&APP, &JOB, name, &left, is_running).1
            };
            assert!(found.starts_with(&expected), "{found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
        }
    }

    /// Objects of a cluster-scoped type have no namespace.
    #[test]
    fn each_installation_serves_cluster_scoped_objects() {
        let other = Other {
            holder: None,
            served: Ok(("canary".to_owned(), vec!["a".to_owned()])),
        };
        let others = BTreeMap::from([((String::new(), String::new()), other)]);
        let counts = Counts::from([(String::new(), 1)]);
        assert_eq!(left(&others, "canary", counts), (Counts::new(), true));
    }
}
