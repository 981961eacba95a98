//! The Lease: its holder, and the time since its last renewal.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::{Lease, LeaseSpec},
    core::v1::Namespace,
};
use kube::Api;

use super::{
    namespaces::{count, full_quotas},
    server::MAX_CLOCK_OFFSET,
    subject::Doctor,
    verdict::{Verdict, error, failed, is_forbidden, ok, skipped, warning},
};
use crate::api::{failure::brief, kind::Kind};

pub(super) async fn examine(doctor: &Doctor) -> Verdict {
    let (namespace, name) = match doctor.lease() {
        Ok(lease) => lease,
        Err(verdict) => return verdict,
    };
    let object = format!("{namespace}/{name}");
    let leases: Api<Lease> = Api::namespaced(doctor.client.clone(), namespace);
    match leases.get_opt(name).await {
        Ok(None) => {
            let namespaces: Api<Namespace> = Api::all(doctor.client.clone());
            // Without the permission to read namespaces, the namespace is assumed to exist.
            if let Ok(None) = namespaces.get_metadata_opt(namespace).await {
                return error(format!(
                    "there is no namespace {namespace}: create it, or set another leader_election.lease_namespace"
                ));
            }
            let count = count(&Kind::of::<Lease>());
            match &*full_quotas(doctor, &[namespace], |it| it == count).await {
                [] => ok(format!("{object}: none yet, the first replica creates it")),
                [quota, ..] => error(format!(
                    "{object}: none yet, and no replica can create it: {quota}; raise it"
                )),
            }
        }
        Ok(Some(lease)) => {
            let ours = doctor.config.leader_election.lease_duration;
            judge(
                &object,
                &lease.spec.unwrap_or_default(),
                SignedDuration::try_from(ours).unwrap_or(SignedDuration::MAX),
                doctor.host.now(),
            )
        }
        Err(error) if is_forbidden(&error) => skipped(format!("{object}: not allowed to get it")),
        Err(error) => failed(&format!("get {object}"), &error),
    }
}

/// Judges a Lease by its timestamps. (A replica ignores them, and waits for a change instead.)
fn judge(object: &str, lease: &LeaseSpec, ours: SignedDuration, now: Timestamp) -> Verdict {
    let holder = lease.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return ok(format!("{object}: no holder"));
    }
    let holder = brief(holder);
    let duration = lease.lease_duration_seconds.unwrap_or_default();
    let renewed = lease.renew_time.as_ref().map(|time| time.0);
    let (Some(renewed), true) = (renewed, duration > 0) else {
        return warning(format!(
            "{object}: held by {holder}, but without a renewTime, or without a duration: it was edited; a replica takes it \
             after {ours:#}"
        ));
    };
    let duration = SignedDuration::from_secs(duration.into());
    let since = now.duration_since(renewed);
    // A Lease that the holder renews must not look expired because of an accepted clock offset, which adds to its age.
    let limit = duration + MAX_CLOCK_OFFSET;
    if since < -MAX_CLOCK_OFFSET {
        let ahead = SignedDuration::from_secs(-since.as_secs());
        return warning(format!(
            "{object}: held by {holder}, renewed {ahead:#} from now: its holder's clock or this one is wrong, or it was edited"
        ));
    }
    let ago = SignedDuration::from_secs(since.as_secs().max(0));
    let found = format!("{object}: held by {holder}, renewed {ago:#} ago");
    if since > limit {
        return warning(format!(
            "{found}, expired after {duration:#}: no running replica can take it; check their pods and logs"
        ));
    }
    if duration != ours {
        return warning(format!(
            "{found}, for {duration:#}, which is not the {ours:#} of leader_election.lease_duration: set the same value for \
             all replicas"
        ));
    }
    ok(found)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    fn found(holder: &str, duration: Option<i32>, renewed: Option<i64>) -> String {
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let lease = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: duration,
            renew_time: renewed.map(|seconds| MicroTime(at(seconds))),
            ..LeaseSpec::default()
        };
        let (grade, text) = judge("n/l", &lease, SignedDuration::from_secs(15), at(1000));
        format!("{} {text}", grade.word())
    }

    #[test]
    fn a_lease_is_judged_by_its_times() {
        let begins = |found: String, says: &str| assert!(found.starts_with(says), "{found}");
        assert_eq!(found("", Some(1), Some(0)), "ok n/l: no holder");
        assert_eq!(
            found("a", Some(15), Some(985)),
            "ok n/l: held by a, renewed 15s ago"
        );
        assert_eq!(
            found("a", Some(15), Some(1003)),
            "ok n/l: held by a, renewed 0s ago"
        );
        begins(
            found("a", Some(15), Some(979)),
            "warning n/l: held by a, renewed 21s ago, expired after 15s: ",
        );
        // The accepted offset between the clocks adds to the age.
        let short = |renewed| found("a", Some(3), Some(renewed));
        for renewed in [992, 1005] {
            let text = short(renewed);
            assert!(
                !text.contains("expired") && !text.contains("clock"),
                "{text}"
            );
        }
        begins(
            short(991),
            "warning n/l: held by a, renewed 9s ago, expired after 3s: ",
        );
        begins(short(1006), "warning n/l: held by a, renewed 6s from now: ");
        begins(
            found("a", Some(30), Some(999)),
            "warning n/l: held by a, renewed 1s ago, for 30s, which is not the 15s of ",
        );
        begins(
            found("a", Some(15), Some(1100)),
            "warning n/l: held by a, renewed 1m 40s from now: ",
        );
        for (duration, renewed) in [(None, Some(999)), (Some(15), None)] {
            begins(
                found("a\n", duration, renewed),
                "warning n/l: held by a , but without a renewTime, ",
            );
        }
    }
}
