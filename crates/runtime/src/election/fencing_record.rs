//! The fencing record: who leads, where the API server's fencing policy (`deploy/components/fencing`) can see it.
//!
//! The policy cannot go by the Lease: kube-apiserver watches Leases only while a policy has one as its parameter, and having
//! stopped, it goes by the last one that it saw until it is restarted (kubernetes#130887). Service accounts it watches for
//! its own sake. So each leader writes its name into an annotation of one that nobody uses, and waits for that before it
//! writes anything else, but not for so long that its term would suffer.
//!
//! A leader that was deposed does not get back in past its successor's write. Its own carries the resourceVersion of a record
//! that it had read before it saw that the Lease names it: whoever takes the Lease later also writes the record later, and each
//! term's record differs from the one before, so the deposed leader's write is a conflict then, however late it arrives. Until
//! the successor has written, it may still land, and the record names the deposed one; the successor's write comes after it.

use super::{identity::Identity, lease_guard::Aside};
use crate::{
    config::{app::App, environment::Host, settings::LeaderElection},
    telemetry::{log::log_once::Causes, state::RecordIs},
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{GetParams, Patch, PatchParams},
    core::Request,
};
use serde_json::json;
use std::{panic::resume_unwind, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{debug, warn};

/// The annotation that the policy compares with the caller, in the group of the application.
pub const HOLDER: &str = "lease-holder";
/// The annotation that names the controller's service account, whose writes the policy judges.
pub(crate) const ACCOUNT: &str = "controller-account";
/// The annotation that makes each term's record another one: `<UID of the Lease>/<leaseTransitions>/<UUID>`. The UUID is for a
/// holder that leads again after somebody set the transitions back, be it restarted or not.
const TERM: &str = "lease-term";
/// The annotation that names the leader.
pub(crate) fn holder_key(app: &App) -> String {
    format!("{}/{HOLDER}", app.group)
}

/// The annotation that names the controller's service account.
pub(crate) fn account_key(app: &App) -> String {
    format!("{}/{ACCOUNT}", app.group)
}

/// The most requests of one assertion.
const REQUESTS: u32 = 3;

/// What became of an assertion.
#[derive(Debug)]
pub enum Asserted {
    /// The record named this replica and its term already.
    Named,
    /// It does now.
    Written,
    /// There is no record, or no leave to read it: the component is not installed.
    NotInstalled(kube::Error),
    /// Nobody holds the Lease by now, or it is gone: the next renewal shows what that means.
    Unheld,
    /// The Lease names this one by now.
    Deposed(String),
}

/// The record of one Lease, as one replica sees it.
#[derive(Clone)]
pub struct FencingRecord {
    group: &'static str,
    client: Client,
    records: Api<ServiceAccount>,
    name: String,
    /// Whether the settings name it, so that there has to be one.
    is_expected: bool,
    namespace: String,
    /// The Lease that has to name the writer; `None` without an election.
    lease: Option<String>,
    identity: Identity,
}

impl FencingRecord {
    /// The record in `namespace` that these settings name, to be written by `identity`.
    pub fn new(
        app: &App,
        client: &Client,
        namespace: &str,
        settings: &LeaderElection,
        identity: &Identity,
    ) -> Self {
        Self {
            group: app.group,
            client: client.clone(),
            records: Api::namespaced(client.clone(), namespace),
            name: settings.record_name(),
            is_expected: settings.fencing_record.is_some(),
            namespace: namespace.to_owned(),
            lease: settings.enabled.then(|| settings.lease_name.clone()),
            identity: identity.clone(),
        }
    }

    /// Has the record name this replica, in this [`TERM`], in [`REQUESTS`] at most. Without the component that is one request.
    ///
    /// # Errors
    /// What the API server says against it, a conflict too, or that it says nothing.
    async fn assert(&self, term: &str) -> Result<Asserted, kube::Error> {
        let record = match self.records.get_metadata(&self.name).await {
            Ok(record) => record,
            Err(error) if is(&error, &[403, 404]) => return Ok(Asserted::NotInstalled(error)),
            Err(error) => return Err(error),
        };
        let [holder_key, term_key] = [HOLDER, TERM].map(|name| format!("{}/{name}", self.group));
        let says = |key: &str, value| record.annotations().get(key).is_some_and(|is| is == value);
        if says(&holder_key, self.identity.as_str()) && says(&term_key, term) {
            return Ok(Asserted::Named);
        }
        if let Some(lease) = &self.lease {
            // Only now: see above.
            let holder = self.holder(lease).await?;
            if holder.is_empty() {
                return Ok(Asserted::Unheld);
            }
            if holder != self.identity.as_str() {
                return Ok(Asserted::Deposed(holder));
            }
        }
        let patch = json!({"metadata": {
            "resourceVersion": record.resource_version(),
            "annotations": {&holder_key: self.identity.as_str(), &term_key: term},
        }});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.records.patch_metadata(&self.name, &params, &patch);
        patched.await.map(|_| Asserted::Written)
    }

    /// Whom the Lease names, if anybody. This read is no part of an attempt, which may be under way.
    async fn holder(&self, lease: &str) -> Result<String, kube::Error> {
        let leases = Request::new(Lease::url_path(&(), Some(&self.namespace)));
        let request = leases.get(lease, &GetParams::default());
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(Aside);
        let lease: Lease = match self.client.request(request).await {
            Err(error) if is(&error, &[404]) => return Ok(String::new()),
            read => read?,
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        Ok(holder.unwrap_or_default())
    }
}

/// Asserts a record, beside the election and never in the way of a renewal: one assertion after the other, with pauses that
/// grow to `call`.
pub struct Assertions {
    record: FencingRecord,
    call: Duration,
    retry_period: Duration,
    host: Host,
    /// The last [`TERM`] to be asserted.
    term: String,
    /// Whether the record is known to name it, or known not to exist.
    is: RecordIs,
    /// The assertion that is under way, if any: of which term it is, and what came of it in time.
    under_way: JoinSet<(String, Option<Result<Asserted, kube::Error>>)>,
    /// When the next may begin, and how much later the one after it.
    due: Instant,
    pause: Duration,
    /// What went wrong since one succeeded.
    trouble: Causes,
}

impl Assertions {
    /// Those of `record`, of which each request may take `call`.
    pub fn new(host: Host, record: FencingRecord, call: Duration, retry_period: Duration) -> Self {
        Self {
            host,
            record,
            call,
            retry_period,
            term: String::new(),
            is: RecordIs::NotInstalled,
            under_way: JoinSet::new(),
            due: Instant::now(),
            pause: Duration::ZERO,
            trouble: Causes::default(),
        }
    }

    /// The Lease was acquired: the record is asserted, whatever is known of it from before. Somebody else may have led since.
    pub fn acquired(&mut self, uid: &str, transitions: i32) {
        let term = format!("{uid}/{transitions}/");
        // Else what is under way may end: who loses and gains its term faster than that would never have a record.
        if !self.term.starts_with(&term) {
            self.stop();
            self.pause = self.retry_period / 2;
        }
        self.due = Instant::now();
        self.term = term + &self.host.uuid().to_string();
        self.is = RecordIs::Pending;
        self.assert_if_due();
    }

    /// The record is asserted if it may not name this term yet, and was not just now. To be called at each renewal.
    pub fn assert_if_due(&mut self) {
        let now = Instant::now();
        if self.is != RecordIs::Pending || self.is_under_way() || now < self.due {
            return;
        }
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(self.call);
        let (record, term) = (self.record.clone(), self.term.clone());
        let limit = self.call * REQUESTS;
        self.under_way.spawn(async move {
            let asserted = timeout(limit, record.assert(&term)).await;
            (term, asserted.ok())
        });
    }

    /// The fencing policy rejected a write: perhaps the record names somebody else.
    pub fn rejected(&mut self) {
        self.is = RecordIs::Pending;
    }

    /// How far it is.
    pub fn is(&self) -> RecordIs {
        self.is
    }

    /// Gives up what is under way.
    pub fn stop(&mut self) {
        self.under_way = JoinSet::new();
    }

    /// Whether an assertion is under way.
    pub fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits for the one that is under way, if any; `Some` is who holds the Lease instead of this replica. May be dropped and
    /// called again.
    pub async fn ended(&mut self) -> Option<String> {
        let asserted = loop {
            let (term, asserted) = match self.under_way.join_next().await? {
                Ok(ended) => ended,
                Err(ended) => resume_unwind(ended.try_into_panic().ok()?),
            };
            match &asserted {
                Some(Ok(_)) => {}
                Some(Err(error)) => self.failed(&error.to_string()),
                None => {
                    let limit = self.call * REQUESTS;
                    self.failed(&format!("no answer from the API server in {limit:?}"));
                }
            }
            if term == self.term {
                break asserted?.ok()?;
            }
            // Of a term before: it does not say what this one's record is.
            self.assert_if_due();
        };
        match asserted {
            Asserted::Named | Asserted::Written => {
                self.trouble.clear();
                self.is = RecordIs::Written;
                if matches!(asserted, Asserted::Named) {
                    self.due = Instant::now();
                }
            }
            Asserted::NotInstalled(error) => {
                if self.record.is_expected {
                    self.failed(&format!("{error}; apply deploy/components/fencing, or unset leader_election.fencing_record"));
                } else {
                    debug!(record = self.object(), "no fencing record: {error}");
                }
                self.is = RecordIs::NotInstalled;
                self.due = Instant::now();
            }
            Asserted::Unheld => {}
            Asserted::Deposed(holder) => return Some(holder),
        }
        None
    }

    /// The same trouble is reported once.
    fn failed(&mut self, trouble: &str) {
        if self.trouble.is_new(trouble) {
            let record = self.object();
            warn!(record, "cannot write the fencing record: {trouble}");
        }
    }

    /// The record's name, for logs: `serviceaccount/NAME`.
    fn object(&self) -> String {
        format!("serviceaccount/{}", self.record.name)
    }
}

fn is(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

#[cfg(test)]
mod tests;
