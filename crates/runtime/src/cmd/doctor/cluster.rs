//! Cluster reads that several checks share.
//!
//! Lists are bounded, and objects are dropped page by page: in a container, `doctor` shares the memory limit with the replica.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace as CoreNamespace;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::Value;

use super::{
    subject::{Doctor, Namespace, Primaries},
    verdict::{Verdict, failed, is_forbidden, skipped},
};
use crate::api::{control::other_installation, failure::brief, kind::Kind};

/// Objects per page. [`PAGES`] limits the pages of one list.
const PAGE: u32 = 500;
const PAGES: usize = 20;

/// Longest normal duration of a finalizer.
const FINALIZING: SignedDuration = SignedDuration::from_mins(5);

/// Names listed in one line.
const NAMED: usize = 3;

/// Passes the objects of a list to `take`, page by page. Returns whether the list was read to its end.
///
/// # Errors
/// The first request that failed.
pub(super) async fn each(
    api: &Api<DynamicObject>,
    params: &ListParams,
    mut take: impl FnMut(DynamicObject),
) -> kube::Result<bool> {
    let mut params = params.clone().limit(PAGE);
    for _ in 0..PAGES {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut take);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// The namespace of the events about cluster-scoped objects.
pub(super) const EVENTS_OF_CLUSTER: &str = "default";

/// Returns all objects of a cluster-scoped resource type, or of a namespaced type in all namespaces.
///
/// # Errors
/// The first request that failed.
pub(super) async fn all<K: Resource<DynamicType = ()>>(
    client: &Client,
    params: &ListParams,
) -> kube::Result<Vec<DynamicObject>> {
    let mut all = Vec::new();
    each(&api::<K>(client), params, |object| all.push(object)).await?;
    Ok(all)
}

/// Returns an API for untyped objects: the deserialization code of the typed objects is large.
pub(super) fn api<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// Returns an API for the objects of `kind` in one namespace or in all. A cluster-scoped one has no namespace.
pub(super) fn api_of(client: &Client, kind: &Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
    match namespace.filter(|_| !kind.is_cluster_scoped()) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Returns the verdict for a failed read. Without the permission, the check is skipped.
pub(super) fn unreadable(what: &str, error: &kube::Error) -> Verdict {
    if is_forbidden(error) {
        skipped(format!(
            "not allowed to list {what}: this requires the permissions of an administrator"
        ))
    } else {
        failed(&format!("list {what}"), error)
    }
}

/// Returns the served namespaces, the controller's own, and the namespace of events about cluster-scoped objects.
///
/// # Errors
/// The list failed or is forbidden.
pub(super) async fn namespaces(doctor: &Doctor) -> Result<&[Namespace], Verdict> {
    let read = doctor.namespaces.get_or_init(async || {
        let mut all = Vec::new();
        let served = |name: &String| {
            let configured = &doctor.config.namespaces;
            configured.is_empty() || configured.contains(name) || name == EVENTS_OF_CLUSTER
        };
        let take = |object: DynamicObject| {
            let name = object.name_any();
            if served(&name) || Some(&name) == doctor.namespace.as_ref() {
                all.push(Namespace {
                    name,
                    labels: object.metadata.labels.unwrap_or_default(),
                    annotations: object.metadata.annotations.unwrap_or_default(),
                });
            }
        };
        let api = api::<CoreNamespace>(&doctor.client);
        each(&api, &ListParams::default(), take)
            .await
            .map_err(|error| unreadable("namespaces", &error))?;
        Ok(all)
    });
    read.await.as_deref().map_err(Clone::clone)
}

/// Returns a summary of the primary objects for each namespace, up to the limit of a list. Cluster-scoped objects have an
/// empty namespace.
///
/// # Errors
/// The list failed or is forbidden.
pub(super) async fn primaries(doctor: &Doctor) -> Result<&BTreeMap<String, Primaries>, Verdict> {
    let read = doctor.primaries.get_or_init(async || {
        let kind = doctor.needs.primary();
        let now = doctor.host.now();
        let mut found: BTreeMap<String, Primaries> = BTreeMap::new();
        let take = |object: DynamicObject| {
            let namespace = object.namespace().unwrap_or_default();
            let found = found.entry(namespace).or_default();
            if installation_of(doctor, &object).is_none() {
                found.add(&object, now);
            }
        };
        each_in_scope(doctor, kind, &ListParams::default(), take).await?;
        Ok(found)
    });
    read.await.as_ref().map_err(Clone::clone)
}

/// Passes the objects of a reconciled type in the served namespaces to `take`, of all installations.
///
/// # Errors
/// The list failed or is forbidden.
pub(super) async fn each_in_scope(
    doctor: &Doctor,
    kind: &Kind,
    params: &ListParams,
    mut take: impl FnMut(DynamicObject),
) -> Result<(), Verdict> {
    let served = &doctor.config.namespaces;
    // Each namespace takes a request, so more than ten are listed together.
    let namespaces: Vec<_> = match served.len() {
        1..=10 if !kind.is_cluster_scoped() => served.iter().map(|it| Some(&**it)).collect(),
        _ => vec![None],
    };
    for namespace in namespaces {
        let take = |object: DynamicObject| {
            let namespace = object.namespace().unwrap_or_default();
            if served.is_empty() || namespace.is_empty() || served.contains(&namespace) {
                take(object);
            }
        };
        match each(&api_of(&doctor.client, kind, namespace), params, take).await {
            Ok(_) => {}
            // The CRD is not installed.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(unreadable(kind.plural, &error)),
        }
    }
    Ok(())
}

/// Returns whether a deletion has waited for the finalizers of the object for longer than normal.
pub(super) fn is_blocked(object: &DynamicObject, now: Timestamp) -> bool {
    let deleted = object.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|time| now.duration_since(time.0) > FINALIZING)
}

/// Returns the other installation that reconciles an object. Empty: the default installation.
pub(super) fn installation_of(doctor: &Doctor, object: &DynamicObject) -> Option<Box<str>> {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    let labels: Vec<_> = labels.into_iter().collect();
    other_installation(doctor.app.group, &labels, &doctor.config.installation)
}

impl Primaries {
    fn add(&mut self, object: &DynamicObject, now: Timestamp) {
        self.count += 1;
        if is_blocked(object, now) {
            for finalizer in object.finalizers() {
                *self.finalizers.entry(finalizer.clone()).or_default() += 1;
            }
        }
        let conditions = items(&object.data["status"]["conditions"]);
        let mut failures = conditions.filter(|it| it["reason"] == "ReplicaFailure");
        if self.replica_failure.is_none()
            && let Some(failure) = failures.next()
        {
            let message = brief(text(&failure["message"]));
            self.replica_failure = Some((object.name_any(), message));
        }
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Joins the first [`NAMED`] names, and adds the number of the others.
pub(super) fn few<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let mut text = String::new();
    for name in names.by_ref().take(NAMED) {
        let comma = if text.is_empty() { "" } else { ", " };
        text = format!("{text}{comma}{}", name.as_ref());
    }
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}
