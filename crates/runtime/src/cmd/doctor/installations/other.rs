//! Another installation, and its election.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;

use crate::api::failure::brief;

/// The label of all objects in `deploy/`. Its value is the application's name.
pub const LABEL: &str = "app.kubernetes.io/name";

/// Another installation.
#[derive(Debug)]
pub struct Other {
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
pub type Election = (String, String);

/// Returns the holder of a Lease that has not expired.
pub fn held(lease: &LeaseSpec, now: Timestamp) -> Option<String> {
    let holder = lease
        .holder_identity
        .as_deref()
        .filter(|it| !it.is_empty())?;
    let renewed = lease.renew_time.as_ref()?.0;
    let duration = SignedDuration::from_secs(lease.lease_duration_seconds?.into());
    (now.duration_since(renewed) <= duration).then(|| brief(holder))
}
