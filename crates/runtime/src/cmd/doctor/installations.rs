//! Other installations in the cluster: whether they serve the same objects, or have taken over the `ClusterRoleBinding`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::{Lease, LeaseSpec},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    cluster::{all, few, items, text, unreadable},
    subject::Doctor,
    verdict::{Verdict, error, ok, skipped, warning, worst},
};
use crate::{api::failure::brief, config::app::App};

/// The label of all objects in `deploy/`. Its value is the application's name.
pub const LABEL: &str = "app.kubernetes.io/name";

pub async fn examine(doctor: &Doctor) -> Verdict {
    match found(doctor).await {
        Ok(verdict) => verdict,
        Err((what, error)) => unreadable(what, &error),
    }
}

type Failed = (&'static str, kube::Error);

async fn found(doctor: &Doctor) -> Result<Verdict, Failed> {
    let Some(namespace) = doctor.namespace.as_deref() else {
        return Ok(skipped(
            "leader_election.lease_namespace is not set: cannot tell which installation is this one",
        ));
    };
    let client = &doctor.client;
    let app = doctor.app;
    let labeled = ListParams::default().labels(&format!("{LABEL}={}", app.name));
    let deployments = all::<Deployment>(client, &labeled).await;
    let deployments = deployments.map_err(|error| ("deployments", error))?;
    let named = format!("metadata.name={}", doctor.config.leader_election.lease_name);
    let leases: Api<Lease> = Api::all(client.clone());
    let leases = leases.list(&ListParams::default().fields(&named)).await;
    let leases = leases.map_err(|error| ("leases", error))?;
    let bindings = all::<ClusterRoleBinding>(client, &ListParams::default()).await;
    let bindings = bindings.map_err(|error| ("clusterrolebindings", error))?;

    let mut others: BTreeMap<String, Other> = BTreeMap::new();
    let running = deployments
        .iter()
        .filter(|it| it.data["spec"]["replicas"] != 0);
    for deployment in running {
        let place = deployment.namespace().unwrap_or_default();
        others.entry(place).or_default().namespaces = configured(app, deployment);
    }
    for lease in leases {
        let spec = lease.spec.clone().unwrap_or_default();
        if let Some(holder) = held(&spec, doctor.host.now()) {
            let place = lease.namespace().unwrap_or_default();
            others.entry(place).or_default().holder = Some(holder);
        }
    }
    let is_installed = others.remove(namespace).is_some();
    let mut verdicts: Vec<Verdict> = others
        .iter()
        .filter_map(|(place, other)| overlaps(place, other, &doctor.config.namespaces))
        .collect();
    // An installation for certain namespaces may have RoleBindings instead.
    let needs_it = is_installed && doctor.config.namespaces.is_empty();
    verdicts.extend(is_bound(app.name, namespace, needs_it, &bindings));
    Ok(worst(verdicts, || match others.len() {
        0 => ok("none"),
        _ => ok(format!("in {}, for other namespaces", few(others.keys()))),
    }))
}

/// Another installation.
#[derive(Debug, Default, PartialEq)]
struct Other {
    /// The leader's identity, while its Lease has not expired.
    holder: Option<String>,
    /// The served namespaces; empty: all. `None`: unknown.
    namespaces: Option<Vec<String>>,
}

/// Returns the namespaces that a Deployment's replicas serve, from the arguments or the variables of its pods.
fn configured(app: &App, deployment: &DynamicObject) -> Option<Vec<String>> {
    let variable = format!("{}NAMESPACES", app.env_prefix());
    let containers = &deployment.data["spec"]["template"]["spec"]["containers"];
    let container = items(containers).next()?;
    let args = items(&container["args"]).chain(items(&container["command"]));
    let flags = args.filter_map(|it| text(it).strip_prefix("--namespace="));
    let flags: Vec<_> = flags.map(str::to_owned).collect();
    if !flags.is_empty() {
        return Some(flags);
    }
    let mut variables = items(&container["env"]).filter(|it| it["name"] == *variable);
    let variable = variables.next()?;
    // The API server does not store an empty value.
    let is_empty = variable["value"].is_null() && variable["valueFrom"].is_null();
    let value = variable["value"].as_str().or(is_empty.then_some(""))?;
    let names = value.split(',').map(str::trim).filter(|it| !it.is_empty());
    Some(names.map(str::to_owned).collect())
}

/// Returns the holder of a Lease that has not expired.
fn held(lease: &LeaseSpec, now: Timestamp) -> Option<String> {
    let holder = lease
        .holder_identity
        .as_deref()
        .filter(|it| !it.is_empty())?;
    let renewed = lease.renew_time.as_ref()?.0;
    let duration = SignedDuration::from_secs(lease.lease_duration_seconds?.into());
    (now.duration_since(renewed) <= duration).then(|| brief(holder))
}

/// Returns an error if the installation in the namespace `place` reconciles objects of this one, and a warning if it may.
fn overlaps(place: &str, other: &Other, ours: &[String]) -> Option<Verdict> {
    let Some(theirs) = &other.namespaces else {
        let leads = other.holder.as_ref();
        let leads = leads.map_or(String::new(), |holder| format!(", led by {holder}"));
        return Some(warning(format!(
            "there is an installation in {place}{leads}: both write the same objects unless their `namespaces` differ; compare its \
             configuration"
        )));
    };
    let shared = match (ours, &**theirs) {
        ([], []) => "all namespaces".to_owned(),
        ([], some) | (some, []) => few(some),
        (ours, theirs) => few(ours.iter().filter(|it| theirs.contains(it))),
    };
    (!shared.is_empty()).then(|| {
        error(format!(
            "the installation in {place} also serves {shared}, and both write the same objects: give them different \
             `namespaces`, or remove one"
        ))
    })
}

/// Returns a finding if the `ClusterRoleBinding` with the application's name belongs to another installation.
fn is_bound(
    name: &str,
    namespace: &str,
    needs_it: bool,
    bindings: &[DynamicObject],
) -> Option<Verdict> {
    let subjects = |binding: &DynamicObject| {
        let subjects = items(&binding.data["subjects"]);
        let accounts = subjects.filter(|it| it["kind"] == "ServiceAccount");
        let at = |it: &Value| text(&it["namespace"]).to_owned();
        accounts.map(at).collect::<Vec<_>>()
    };
    // The name of a binding may have a kustomize `namePrefix`.
    let ours = bindings.iter().filter(|it| it.name_any().contains(name));
    if ours
        .clone()
        .any(|it| subjects(it).iter().any(|at| at == namespace))
    {
        return None;
    }
    let taken = ours.filter(|it| it.name_any() == name);
    let taken: Vec<_> = taken.flat_map(subjects).collect();
    let other = taken.first()?;
    let text = format!(
        "ClusterRoleBinding {name} is for the service account in {other}, not in {namespace}"
    );
    Some(if needs_it {
        error(format!(
            "{text}: another installation was applied over this one, which has no permissions: give one of the two a namePrefix"
        ))
    } else {
        warning(format!(
            "{text}: applying this installation with the same names removes the permissions of that one: give it a namePrefix"
        ))
    })
}

#[cfg(test)]
mod tests {
    use kube::api::ApiResource;
    use serde_json::json;

    use super::*;
    use crate::config::app::tests::APP;

    fn object(name: &str, data: Value) -> DynamicObject {
        let mut object = DynamicObject::new(name, &ApiResource::erase::<Deployment>(&()));
        object.data = data;
        object
    }

    #[test]
    fn the_namespaces_of_another_installation_are_read_from_its_pods() {
        let of = |container: Value| {
            let template = json!({ "spec": { "containers": [container] } });
            let deployment = object("d", json!({ "spec": { "template": template } }));
            configured(&APP, &deployment)
        };
        let variable =
            |value: &str| json!([{ "name": "SOME_OPERATOR__NAMESPACES", "value": value }]);
        let names = |names: &[&str]| Some(names.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(of(json!({})), None);
        let empty = json!([{ "name": "SOME_OPERATOR__NAMESPACES" }]);
        assert_eq!(of(json!({ "env": empty })), names(&[]));
        assert_eq!(of(json!({ "env": variable("a, b") })), names(&["a", "b"]));
        let args = json!(["--namespace=c", "--resync=1m"]);
        let both = json!({ "args": args, "env": variable("a") });
        assert_eq!(of(both), names(&["c"]));
    }

    #[test]
    fn installations_with_the_same_namespaces_are_an_error() {
        let list = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        for (ours, theirs, expected) in [
            (
                &[][..],
                Some(&[][..]),
                "error the installation in p also serves all namespaces",
            ),
            (
                &[],
                Some(&["a"]),
                "error the installation in p also serves a",
            ),
            (
                &["a"],
                Some(&[]),
                "error the installation in p also serves a",
            ),
            (
                &["a", "b"],
                Some(&["b"]),
                "error the installation in p also serves b",
            ),
            (&["a"], Some(&["b"]), ""),
            (
                &["a"],
                None,
                "warning there is an installation in p, led by h: both",
            ),
        ] {
            let other = Other {
                holder: Some("h".to_owned()),
                namespaces: theirs.map(list),
            };
            let verdict = overlaps("p", &other, &list(ours));
            let found = verdict.map(|(grade, text)| format!("{} {text}", grade.word()));
            let found = found.unwrap_or_default();
            assert!(found.starts_with(expected), "{found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
        }
    }

    #[test]
    fn a_binding_of_another_installation_is_found() {
        let binding = |name: &str, namespace: &str| {
            let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
            object(name, json!({ "subjects": [subject] }))
        };
        let [ours, theirs, prefixed] = [("op", "a"), ("op", "b"), ("x-op", "a")]
            .map(|(name, namespace)| binding(name, namespace));
        for (bindings, expected) in [
            (vec![], false),
            (vec![ours.clone()], false),
            (vec![theirs.clone()], true),
            (vec![theirs, prefixed], false),
        ] {
            assert_eq!(
                is_bound("op", "a", true, &bindings).is_some(),
                expected,
                "{bindings:?}"
            );
        }
    }
}
