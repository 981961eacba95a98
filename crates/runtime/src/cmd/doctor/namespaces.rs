//! The namespaces with primary objects: whether pods are rejected, and whether deletions are stuck. Also whether the
//! controller's own namespace rejects its pods.

use std::collections::BTreeMap;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ResourceQuota};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    cluster::{all, few, items, namespaces, primaries, text},
    installations::LABEL,
    subject::{Doctor, Namespace, Primaries},
    verdict::{Verdict, ok, warning, worst},
};
use crate::{
    api::{key::Key, kind::Kind},
    config::app::{App, PodSecurity},
};

/// The label with the enforced level of the Pod Security Standards.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// The annotation of `OpenShift` with the allowed user ids of the pods in a namespace.
const UID_RANGE: &str = "openshift.io/sa.scc.uid-range";

pub(super) async fn examine(doctor: &Doctor) -> Verdict {
    match found(doctor).await {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

async fn found(doctor: &Doctor) -> Result<Verdict, Verdict> {
    let primaries = primaries(doctor).await?;
    let namespaces = namespaces(doctor).await?;
    let plural = doctor.needs.primary().plural;
    let mut found = Vec::new();
    let primaries = primaries.iter().filter(|(_, it)| it.count > 0);
    let primaries: BTreeMap<_, _> = primaries.map(|(name, it)| (&**name, it)).collect();
    for (name, objects) in &primaries {
        let namespace = namespaces.iter().find(|it| it.name == **name);
        let level = namespace.and_then(|it| it.labels.get(ENFORCE));
        found.extend(level.and_then(|it| refused(doctor.app, plural, name, objects, it)));
        found.extend(failing(plural, name, objects));
    }
    let kind = doctor.needs.primary();
    if !primaries.is_empty() && !kind.is_cluster_scoped() {
        let places: Vec<_> = primaries.keys().copied().collect();
        let written = doctor
            .needs
            .rights()
            .into_iter()
            .map(|right| count(&right.kind));
        let written: Vec<_> = written.collect();
        let full = full_quotas(doctor, &places, |resource| {
            is_of_pods(resource) || written.iter().any(|it| it == resource)
        });
        found.extend(full.await.into_iter().map(|quota| {
            warning(format!(
                "{quota}: new pods or objects there are rejected; raise it, or delete what is not needed"
            ))
        }));
    }
    found.extend(own_pods(doctor, namespaces).await);
    let count: usize = primaries.values().map(|it| it.count).sum();
    Ok(worst(found, || {
        ok(if kind.is_cluster_scoped() {
            count.to_string()
        } else {
            format!("{count} in {}", primaries.len())
        })
    }))
}

/// Returns a warning if a namespace that enforces `level` rejects the pods of these objects.
fn refused(
    app: &App,
    plural: &str,
    namespace: &str,
    objects: &Primaries,
    level: &str,
) -> Option<Verdict> {
    let enforced = match level {
        "restricted" => PodSecurity::Restricted,
        "baseline" => PodSecurity::Baseline,
        _ => PodSecurity::Privileged,
    };
    (app.pod_security > enforced).then(|| {
        warning(format!(
            "namespace {namespace} enforces the Pod Security level {level}, and the pods of its {} {plural} need {}: they \
             are rejected; kubectl label namespace {namespace} --overwrite {ENFORCE}={}",
            objects.count, app.pod_security, app.pod_security,
        ))
    })
}

/// Returns warnings about rejected pods and stuck deletions that the objects themselves report.
fn failing(plural: &str, namespace: &str, objects: &Primaries) -> Vec<Verdict> {
    let failure = objects.replica_failure.iter().map(|(name, message)| {
        warning(format!(
            "pods of {} are rejected: {message}",
            Key::new(namespace, name)
        ))
    });
    let place = match namespace {
        "" => String::new(),
        namespace => format!(" in {namespace}"),
    };
    let finalizers = objects.finalizers.iter().map(|(finalizer, count)| {
        warning(format!(
            "{count} {plural}{place} were deleted and wait for the finalizer {finalizer}: check that the controller \
             that removes it runs"
        ))
    });
    failure.chain(finalizers).collect()
}

/// Returns the quotas in these namespaces that leave no room for another object or its pods. `matters` selects their resources.
pub(super) async fn full_quotas(
    doctor: &Doctor,
    namespaces: &[&str],
    matters: impl Fn(&str) -> bool,
) -> Vec<String> {
    let quotas = all::<ResourceQuota>(&doctor.client, &ListParams::default()).await;
    // Without the permission, the check is skipped.
    let quotas = quotas.unwrap_or_default();
    let here = quotas.iter().filter(|quota| {
        let namespace = quota.namespace().unwrap_or_default();
        namespaces.contains(&&*namespace)
    });
    here.filter_map(|quota| {
        let resources = used_up(&quota.data, &matters);
        (!resources.is_empty()).then(|| {
            format!(
                "ResourceQuota {}/{} is used up: {}",
                quota.namespace().unwrap_or_default(),
                quota.name_any(),
                few(resources)
            )
        })
    })
    .collect()
}

/// Returns the resource by which quotas limit the number of objects.
pub(super) fn count(kind: &Kind) -> String {
    let dot = if kind.group.is_empty() { "" } else { "." };
    format!("count/{}{dot}{}", kind.plural, kind.group)
}

fn is_of_pods(resource: &str) -> bool {
    let computed = resource
        .strip_prefix("requests.")
        .or(resource.strip_prefix("limits."));
    matches!(resource, "pods" | "count/pods" | "count/replicasets.apps")
        || matches!(computed.unwrap_or(resource), "cpu" | "memory")
}

/// Returns the exhausted resources of a quota that `matters` selects.
fn used_up(quota: &Value, matters: impl Fn(&str) -> bool) -> Vec<String> {
    let spec = &quota["spec"];
    // Such a quota applies to some of the pods only.
    if spec["scopeSelector"].is_object() || items(&spec["scopes"]).next().is_some() {
        return Vec::new();
    }
    let status = &quota["status"];
    let hard = status["hard"].as_object().into_iter().flatten();
    let hard = hard.filter(|(resource, _)| matters(resource));
    let used_up = hard.filter_map(|(resource, hard)| {
        let [used, hard] = [&status["used"][resource], hard].map(text);
        let is_used_up = quantity(used)? >= quantity(hard)?;
        is_used_up.then(|| format!("{resource} {used} of {hard}"))
    });
    used_up.collect()
}

/// Parses a quantity, such as `1500m` or `2Gi`.
pub(super) fn quantity(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 2_f64.powi(10),
        "Mi" => 2_f64.powi(20),
        "Gi" => 2_f64.powi(30),
        "Ti" => 2_f64.powi(40),
        "Pi" => 2_f64.powi(50),
        "Ei" => 2_f64.powi(60),
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

/// Returns a warning if `OpenShift` rejects the controller's own pods.
async fn own_pods(doctor: &Doctor, namespaces: &[Namespace]) -> Option<Verdict> {
    let namespace = doctor.namespace.as_ref()?;
    let namespace = namespaces.iter().find(|it| it.name == *namespace)?;
    let range = namespace.annotations.get(UID_RANGE)?;
    let deployments = own_deployments(doctor, &namespace.name).await;
    let outside = deployments
        .iter()
        .find_map(|it| outside(range, &it.data["spec"]["template"]["spec"]));
    outside.map(|user| {
        warning(format!(
            "the pods in {} have runAsUser: {user}, and the namespace's {UID_RANGE} is {range}: OpenShift rejects them, \
             unless their service account may use another SCC; remove runAsUser",
            namespace.name
        ))
    })
}

/// Returns the Deployments of this installation. The list is empty if it cannot be read.
pub(super) async fn own_deployments(doctor: &Doctor, namespace: &str) -> Vec<DynamicObject> {
    let resource = ApiResource::erase::<Deployment>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(doctor.client.clone(), namespace, &resource);
    let labeled = ListParams::default().labels(&format!("{LABEL}={}", doctor.app.name));
    let found = api.list(&labeled).await;
    found.map(|found| found.items).unwrap_or_default()
}

/// Returns the first `runAsUser` of a pod that is outside a range such as `1000680000/10000` or `1000680000-1000689999`.
fn outside(range: &str, pod: &Value) -> Option<i64> {
    let (first, last) = match (range.split_once('/'), range.split_once('-')) {
        (Some((first, size)), _) => {
            let first: i64 = first.parse().ok()?;
            (first, first + size.parse::<i64>().ok()? - 1)
        }
        (_, Some((first, last))) => (first.parse().ok()?, last.parse().ok()?),
        _ => return None,
    };
    let containers = items(&pod["containers"]).chain(items(&pod["initContainers"]));
    let mut all = std::iter::once(pod).chain(containers);
    all.find_map(|it| {
        let user = it["securityContext"]["runAsUser"].as_i64()?;
        (!(first..=last).contains(&user)).then_some(user)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_compared_as_numbers() {
        for (text, number) in [
            ("10", Some(10.0)),
            ("1500m", Some(1.5)),
            ("2Gi", Some(2_147_483_648.0)),
            ("1k", Some(1000.0)),
            ("0.5", Some(0.5)),
            ("", None),
            ("1x", None),
        ] {
            assert_eq!(quantity(text), number, "{text}");
        }
    }

    #[test]
    fn quotas_that_are_used_up_are_found() {
        let matters = |resource: &str| is_of_pods(resource) || resource == "count/deployments.apps";
        for (hard, used, expected) in [
            (
                json!({ "pods": "2" }),
                json!({ "pods": "2" }),
                "pods 2 of 2",
            ),
            (json!({ "pods": "2" }), json!({ "pods": "1" }), ""),
            (json!({ "pods": "2" }), json!({}), ""),
            (
                json!({ "requests.cpu": "1" }),
                json!({ "requests.cpu": "1100m" }),
                "requests.cpu 1100m of 1",
            ),
            (json!({ "secrets": "0" }), json!({ "secrets": "0" }), ""),
            (
                json!({ "count/deployments.apps": "0" }),
                json!({ "count/deployments.apps": "0" }),
                "count/deployments.apps 0 of 0",
            ),
        ] {
            let mut quota = json!({ "status": { "hard": hard, "used": used } });
            assert_eq!(few(used_up(&quota, matters)), expected, "{quota}");
            quota["spec"] = json!({ "scopes": ["BestEffort"] });
            assert!(used_up(&quota, matters).is_empty(), "{quota}");
        }
    }

    #[test]
    fn user_ids_are_compared_with_openshifts_range() {
        let pod = json!({ "securityContext": { "runAsUser": 65532 } });
        let container = json!({ "containers": [{ "securityContext": { "runAsUser": 5 } }] });
        for (range, pod, expected) in [
            ("1000680000/10000", &pod, Some(65532)),
            ("65532/1", &pod, None),
            ("65533/1", &pod, Some(65532)),
            ("65000-65532", &pod, None),
            ("1000680000/10000", &json!({}), None),
            ("1000680000/10000", &container, Some(5)),
            ("nonsense", &pod, None),
        ] {
            assert_eq!(outside(range, pod), expected, "{range} {pod}");
        }
    }
}
