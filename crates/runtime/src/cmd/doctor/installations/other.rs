//! Another installation, and its election.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;

use crate::{api::failure::brief, cmd::doctor::server::MAX_CLOCK_OFFSET};

/// The label of all objects in `deploy/`. Its value is the application's name.
pub(crate) const LABEL: &str = "app.kubernetes.io/name";

/// Another installation.
#[derive(Debug)]
pub(super) struct Other {
    /// The leader's identity, while its Lease has not expired.
    pub holder: Option<String>,
    /// The setting `installation`, and the served namespaces; empty: all. Or why they are unknown.
    pub served: Result<(String, Vec<String>), String>,
}

impl Default for Other {
    fn default() -> Self {
        let why = format!("no Deployment with the label {LABEL} uses its Lease");
        Self {
            holder: None,
            served: Err(why),
        }
    }
}

/// The namespace and the name of a Lease. Without an election, the name is empty.
pub(super) type Election = (String, String);

/// Returns the holder of a Lease that has not expired. The accepted clock offset adds to its
/// duration.
pub(super) fn held(lease: &LeaseSpec, now: Timestamp) -> Option<String> {
    let holder = lease
        .holder_identity
        .as_deref()
        .filter(|it| !it.is_empty())?;
    let renewed = lease.renew_time.as_ref()?.0;
    let duration = SignedDuration::from_secs(lease.lease_duration_seconds?.into());
    let limit = duration + MAX_CLOCK_OFFSET;
    (now.duration_since(renewed) <= limit).then(|| brief(holder))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    /// The clock of another machine may be behind by the accepted offset, which adds to the age of a live Lease.
    #[test]
    fn a_lease_is_held_despite_an_accepted_clock_offset() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        for (duration, age, is_held) in
            [(3, 8, true), (3, 9, false), (15, 20, true), (15, 21, false)]
        {
            let lease = LeaseSpec {
                holder_identity: Some("a".to_owned()),
                lease_duration_seconds: Some(duration),
                renew_time: Some(MicroTime(now - SignedDuration::from_secs(age))),
                ..LeaseSpec::default()
            };
            assert_eq!(
                held(&lease, now).is_some(),
                is_held,
                "{duration} s, {age} s ago"
            );
        }
    }
}
