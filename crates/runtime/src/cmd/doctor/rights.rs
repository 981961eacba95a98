//! Permissions that a replica uses. It reviews some of them at its start.

use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use k8s_openapi::api::{
    authorization::v1::ResourceAttributes, coordination::v1::Lease, core::v1::ServiceAccount,
};

use super::{
    subject::Doctor,
    verdict::{Verdict, error, ok, skipped, warning},
};
use crate::{
    api::kind::Kind,
    cache::readiness::{
        access_review::{Answer, is_allowed},
        namespace::{NamespaceName, Permission},
    },
};

/// Concurrent access reviews.
const AT_ONCE: usize = 8;

/// A permission, with the name of the object if it is limited to one.
type Named<'a> = (Permission, Option<&'a str>);

/// Returns the missing permissions in a namespace (`None`: in all namespaces).
///
/// # Errors
/// A review failed or was undecided.
async fn missing(
    doctor: &Doctor,
    namespace: Option<&str>,
    permissions: impl Iterator<Item = Named<'_>>,
) -> Result<Vec<String>, Verdict> {
    let reviews = permissions.map(async |(right, name)| {
        let attributes = ResourceAttributes {
            name: name.map(str::to_owned),
            ..right.attributes(namespace)
        };
        let answer = is_allowed(&doctor.client, attributes).await;
        let answer =
            answer.map_err(|why| error(format!("cannot review the permission to {right}: {why}")))?;
        if let Answer::Undecided(why) = answer {
            return Err(warning(format!(
                "the API server cannot decide whether it is allowed to {right}: {why}; check its authorizers \
                 (--authorization-config)"
            )));
        }
        let slash = if name.is_some() { "/" } else { "" };
        let right = format!("{right}{slash}{}", name.unwrap_or_default());
        Ok(matches!(answer, Answer::Refused).then_some(right))
    });
    let missing = iter(reviews).buffered(AT_ONCE).try_collect::<Vec<_>>();
    Ok(missing.await?.into_iter().flatten().collect())
}

fn judge(missing: Result<Vec<String>, Verdict>, place: &str, mend: &str) -> Verdict {
    match missing {
        Ok(missing) if missing.is_empty() => ok("all granted"),
        Ok(missing) => error(format!(
            "not allowed to {} in {place}: {mend}",
            missing.join(", ")
        )),
        Err(verdict) => verdict,
    }
}

/// Checks the permissions for the resource types in a namespace or in all of them. An empty namespace: permissions for
/// cluster-scoped types, which need a `ClusterRoleBinding`.
pub(super) async fn of_scope(doctor: &Doctor, namespace: Option<&str>) -> Verdict {
    let needs = &doctor.needs;
    let is_of_cluster = namespace == Some("");
    let is_here =
        |right: &Permission| namespace.is_none() || right.kind.is_cluster_scoped() == is_of_cluster;
    let watched = needs.watched.iter();
    let watched = watched.flat_map(|kind| Permission::to(&["list", "watch"], *kind));
    let permissions = watched
        .chain(
            needs
                .rights()
                .into_iter()
                .chain(needs.unreviewed.iter().copied()),
        )
        .chain(Permission::to_events())
        .filter(is_here);
    let missing = missing(doctor, namespace, permissions.map(|it| (it, None))).await;
    let mend = Permission::REMEDY;
    let mut primaries = needs.controllers.iter().map(|it| it.primary);
    if is_of_cluster && missing == Ok(Vec::new()) && primaries.any(Kind::is_cluster_scoped) {
        // The events about cluster-scoped objects are written there.
        let place = Some("default");
        let missing =
            self::missing(doctor, place, Permission::to_events().map(|it| (it, None))).await;
        return judge(missing, &NamespaceName(place).to_string(), mend);
    }
    judge(missing, &NamespaceName(namespace).to_string(), mend)
}

/// Checks the permissions for the Lease and for its events. RBAC cannot limit `create` to a name.
pub(super) async fn of_lease(doctor: &Doctor) -> Verdict {
    let (namespace, name) = match doctor.lease() {
        Ok(lease) => lease,
        Err(verdict) => return verdict,
    };
    let lease = Kind::of::<Lease>();
    let unnamed = Permission::to(&["create"], lease).chain(Permission::to_events());
    let named = Permission::to(&["get", "watch", "patch"], lease).map(|it| (it, Some(name)));
    let permissions = named.chain(unnamed.map(|it| (it, None)));
    let missing = missing(doctor, Some(namespace), permissions).await;
    let mend = "apply the Role for the leader election, and its binding";
    judge(missing, &NamespaceName(Some(namespace)).to_string(), mend)
}

/// Checks the permissions for the fencing record. A replica that cannot read it assumes that server-side fencing is not
/// installed.
pub(super) async fn of_record(doctor: &Doctor) -> Verdict {
    // A replica without an election also has a record.
    let Some(namespace) = doctor.namespace.as_deref() else {
        return skipped("leader_election.lease_namespace is not set");
    };
    let record = doctor.config.leader_election.record_name();
    let name = Some(&*record);
    let asked = async |verb: &'static [&'static str]| {
        let permissions = Permission::to(verb, Kind::of::<ServiceAccount>()).map(|it| (it, name));
        missing(doctor, Some(namespace), permissions).await
    };
    match asked(&["get"]).await {
        Ok(missing) if !missing.is_empty() => {
            return skipped(format!(
                "not allowed to {}, which is normal without the fencing component",
                missing.concat()
            ));
        }
        Ok(_) => {}
        Err(verdict) => return verdict,
    }
    let mend = "install the fencing component, which has it";
    let place = NamespaceName(Some(namespace)).to_string();
    judge(asked(&["patch"]).await, &place, mend)
}
