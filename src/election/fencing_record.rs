//! The fencing record: who leads, where the API server's fencing policy (`deploy/components/fencing`) can see it.
//!
//! The policy cannot go by the Lease: kube-apiserver watches Leases only while a policy has one as its parameter, and having
//! stopped, it goes by the last one that it saw until it is restarted (kubernetes#130887). Service accounts it watches for
//! its own sake. So each leader writes its name into an annotation of one that nobody uses, before it writes anything else.
//!
//! A leader that was deposed does not get back in past its successor's write. Its own carries the resourceVersion of a record
//! that it had read before it saw that the Lease names it: whoever takes the Lease later also writes the record later, and each
//! term's record differs from the one before, so the deposed leader's write is a conflict then, however late it arrives. Until
//! the successor has written, it may still land, and the record names the deposed one; the successor's write comes after it.

use super::Identity;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// The annotation that the policy compares with the caller.
pub const HOLDER: &str = "samplecontroller.k8s.io/lease-holder";
/// The annotation that makes each term's record another one: `<UID of the Lease>/<leaseTransitions>`.
const TERM: &str = "samplecontroller.k8s.io/lease-term";
/// How many conflicts a write tries to get past: a record is written once a term.
const CONFLICTS: u32 = 2;

/// What became of an assertion.
#[derive(Debug)]
pub enum Asserted {
    /// The record names this replica and its term.
    Named,
    /// There is no record, or no leave to read it: the component is not installed.
    NotInstalled(kube::Error),
    /// The Lease names this one by now.
    Deposed(String),
}

/// The record of one Lease, as one replica sees it.
#[derive(Clone, Debug)]
pub struct FencingRecord {
    records: Api<ServiceAccount>,
    name: String,
    leases: Api<Lease>,
    lease: String,
    identity: Identity,
}

impl FencingRecord {
    /// The record of the Lease `namespace`/`lease`, to be written by `identity`.
    pub fn new(client: &Client, namespace: &str, lease: &str, identity: &Identity) -> Self {
        Self {
            records: Api::namespaced(client.clone(), namespace),
            name: format!("{lease}-fencing"),
            leases: Api::namespaced(client.clone(), namespace),
            lease: lease.to_owned(),
            identity: identity.clone(),
        }
    }

    /// Its name, for logs: `serviceaccount/NAME`.
    pub fn object(&self) -> String {
        format!("serviceaccount/{}", self.name)
    }

    /// Has the record name this replica, in its term (`leaseTransitions`) of the Lease with this UID. Without the component
    /// that is one request.
    ///
    /// # Errors
    /// What the API server says against it, or that it says nothing.
    pub async fn assert(&self, uid: &str, transitions: i32) -> Result<Asserted, kube::Error> {
        let term = format!("{uid}/{transitions}");
        let mut conflicts = 0;
        loop {
            let record = match self.records.get_metadata(&self.name).await {
                Ok(record) => record,
                Err(error) if is(&error, &[403, 404]) => return Ok(Asserted::NotInstalled(error)),
                Err(error) => return Err(error),
            };
            let says = |key, value| record.annotations().get(key).is_some_and(|is| is == value);
            if says(HOLDER, self.identity.as_str()) && says(TERM, &term) {
                return Ok(Asserted::Named);
            }
            // Only now: see above.
            let lease = self.leases.get_opt(&self.lease).await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            if holder.as_deref() != Some(self.identity.as_str()) {
                return Ok(Asserted::Deposed(holder.unwrap_or_default()));
            }
            let patch = json!({"metadata": {
                "resourceVersion": record.resource_version(),
                "annotations": {HOLDER: self.identity.as_str(), TERM: term},
            }});
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let patched = self.records.patch_metadata(&self.name, &params, &patch);
            match patched.await {
                Ok(_) => return Ok(Asserted::Named),
                Err(error) if is(&error, &[409]) && conflicts < CONFLICTS => conflicts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

fn is(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]
    use super::*;
    use crate::election::fake::{FakeApi, Mood};
    use futures::FutureExt as _;
    use http::{Method, Request};
    use kube::client::Body;
    use std::sync::Arc;
    use tower::{ServiceExt as _, service_fn};

    fn held_by(api: &FakeApi, name: &str) {
        api.put(&json!({"holderIdentity": format!("{name}_1"), "leaseDurationSeconds": 15}));
    }

    fn record_of(api: &FakeApi, name: &str) -> FencingRecord {
        let client = Client::new(api.service(), "n");
        FencingRecord::new(&client, "n", "l", &Identity::new(name, "1").unwrap())
    }

    /// A record as this replica sees it, to whom something happens just before each of its requests of this method arrives.
    fn with(
        api: &FakeApi,
        name: &str,
        method: Method,
        happens: impl Fn(&FakeApi) + Send + Sync + 'static,
    ) -> FencingRecord {
        let (api, happens) = (api.clone(), Arc::new(happens));
        let service = service_fn(move |request: Request<Body>| {
            if request.method() == method {
                happens(&api);
            }
            api.service().oneshot(request).boxed()
        });
        let client = Client::new(service, "n");
        FencingRecord::new(&client, "n", "l", &Identity::new(name, "1").unwrap())
    }

    #[tokio::test]
    async fn a_record_is_written_once_a_term() {
        let api = FakeApi::new();
        held_by(&api, "a");
        api.put_record(Some(json!({})));
        let a = record_of(&api, "a");
        for (term, requests) in [
            (("u1", 1), 3),
            (("u1", 1), 1),
            (("u1", 2), 3),
            (("u2", 2), 3),
        ] {
            assert!(matches!(
                a.assert(term.0, term.1).await,
                Ok(Asserted::Named)
            ));
            assert_eq!(api.recorded(), "a_1");
            assert_eq!(api.requests().len(), requests, "{term:?}");
        }
    }

    #[tokio::test]
    async fn without_the_component_there_is_one_request() {
        let api = FakeApi::new();
        held_by(&api, "a");
        let a = record_of(&api, "a");
        for mood in [Mood::Serves, Mood::Fails(403)] {
            api.mood(mood);
            let asserted = a.assert("u1", 1).await;
            assert!(
                matches!(asserted, Ok(Asserted::NotInstalled(_))),
                "{asserted:?}"
            );
            assert_eq!(api.requests().len(), 1);
        }
    }

    #[tokio::test]
    async fn who_does_not_hold_the_lease_writes_nothing() {
        let api = FakeApi::new();
        held_by(&api, "b");
        api.put_record(Some(json!({HOLDER: "b_1"})));
        let asserted = record_of(&api, "a").assert("u1", 1).await;
        assert!(matches!(asserted, Ok(Asserted::Deposed(holder)) if holder == "b_1"));
        assert_eq!(api.recorded(), "b_1");
    }

    /// Whatever it had read before, and however late its write arrives.
    #[tokio::test]
    async fn i1_a_late_write_does_not_bring_a_deposed_leader_back() {
        let api = FakeApi::new();
        held_by(&api, "a");
        api.put_record(Some(json!({HOLDER: "c_1"})));
        let a = with(&api, "a", Method::PATCH, |api| {
            held_by(api, "b");
            api.put_record(Some(json!({HOLDER: "b_1"})));
        });
        let asserted = a.assert("u1", 1).await;
        assert!(matches!(asserted, Ok(Asserted::Deposed(holder)) if holder == "b_1"));
        assert_eq!(api.recorded(), "b_1");
    }

    /// A record that never rests is given up, until it is asserted the next time.
    #[tokio::test]
    async fn conflicts_end() {
        let api = FakeApi::new();
        held_by(&api, "a");
        api.put_record(Some(json!({})));
        let a = with(&api, "a", Method::PATCH, |api| {
            api.put_record(Some(json!({})));
        });
        assert!(is(&a.assert("u1", 1).await.unwrap_err(), &[409]));
        assert_eq!(api.requests().len(), 9);
    }
}
