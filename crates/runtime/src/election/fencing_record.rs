//! The fencing record: the name of the leader, where the API server's fencing policy (`deploy/components/fencing`) can read it.
//!
//! The policy cannot use the Lease. kube-apiserver watches Leases only while a policy has one as its parameter. After it has
//! stopped, it uses the last Lease that it saw until it restarts (kubernetes#130887). It watches service accounts for its own
//! purposes. So each leader writes its name into an annotation of an unused service account. The leader waits for that before
//! any other write, but leaves enough time to renew.
//!
//! A deposed leader cannot overwrite the record of its successor. An assertion reads the record, then checks that the Lease
//! names this replica, and writes with the resourceVersion of that read. A later holder of the Lease writes its record later,
//! and each term has another record. So a late write of the deposed leader is a conflict. It may succeed only before the
//! successor has written, and the successor's write follows.
//!
//! Fencing may be installed while replicas run whose settings name no record, for example under another name than the default.
//! The policy rejects their writes, and its message names its record. Such a leader writes its name into that record.

use super::{identity::Identity, lease_guard::BypassGuard};
use crate::{
    api::names::is_subdomain,
    client::fence::permit::DEFAULT_WEBHOOK,
    config::{
        app::App,
        backoff::Backoff,
        environment::Host,
        settings::{LeaderElection, MUTATION_TIMEOUT, SAFE_MARGIN},
    },
    telemetry::{fencing_record::FencingRecordState, log_once::OutageLog},
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
use tracing::{debug, info, warn};

/// Annotation that the policy compares with the caller, in the group of the application.
pub(crate) const HOLDER: &str = "lease-holder";
/// Annotation that names the controller's service account, whose writes the policy checks.
#[cfg(feature = "operator")]
pub(crate) const ACCOUNT: &str = "controller-account";
/// Annotation that makes the record of each term unique: `<UID of the Lease>/<leaseTransitions>/<UUID>`. The UUID distinguishes
/// two terms of one holder if the transitions were reset by hand, with or without a restart.
const TERM: &str = "lease-term";

/// Returns the key of the annotation that names the leader.
#[cfg(feature = "operator")]
pub(crate) fn holder_key(app: &App) -> String {
    format!("{}/{HOLDER}", app.group)
}

/// Returns the key of the annotation that names the controller's service account.
#[cfg(feature = "operator")]
pub(crate) fn account_key(app: &App) -> String {
    format!("{}/{ACCOUNT}", app.group)
}

/// Returns the key of [`TERM`].
#[cfg(feature = "operator")]
pub(crate) fn term_key(app: &App) -> String {
    format!("{}/{TERM}", app.group)
}

/// Returns the UID of the Lease in a value of [`TERM`]. It is empty without an election.
pub(crate) fn lease_of(term: &str) -> &str {
    term.split('/').next().unwrap_or_default()
}

/// Interval of the reads of the record in a term, if the election requires server-side fencing. A missing record disables the
/// policy, and no rejected write shows that.
const REVIEWED_EACH: Duration = Duration::from_mins(1);

/// Maximum number of reads before the write of an assertion.
const READS: u32 = 2;

/// Result of an assertion.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// The record already named this replica and its term.
    Named,
    /// The record was written.
    Written,
    /// There is no record, or no permission to read it: the component is not installed.
    NotInstalled(kube::Error),
    /// The policy's message named this record, and the leader of another Lease writes it.
    OfAnotherLease,
    /// The write had no response in time.
    Unanswered,
    /// The Lease has no holder, or was deleted. The next renewal decides.
    Unheld,
    /// The Lease names this other holder.
    Deposed(String),
}

/// The record of one Lease, for one replica.
#[derive(Clone)]
pub(crate) struct FencingRecord {
    group: &'static str,
    client: Client,
    records: Api<ServiceAccount>,
    name: String,
    /// Whether the settings name the record, so that a missing record is a failure.
    is_expected: bool,
    /// Whether `name` is from a message of the policy.
    is_adopted: bool,
    namespace: String,
    /// Why the election requires server-side fencing, if it does.
    required: Option<String>,
    /// The Lease that must name the writer; `None` without an election.
    lease: Option<String>,
    identity: Identity,
    /// Time limit of the write. It may outlast the term, because a late write is a conflict or followed by the successor's.
    limit: Duration,
}

impl FencingRecord {
    /// Creates a handle for the record in `namespace` that the settings name. `identity` is the writer.
    pub(crate) fn new(
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
            is_adopted: false,
            namespace: namespace.to_owned(),
            required: settings.fencing_reason(),
            lease: settings.enabled.then(|| settings.lease_name.clone()),
            identity: identity.clone(),
            limit: DEFAULT_WEBHOOK,
        }
    }

    /// Makes the record name this replica and this [`TERM`], with at most [`READS`] reads and a write. Without the component, it
    /// sends one request.
    ///
    /// # Errors
    /// The API server rejected a request, for example with a conflict, or did not respond.
    async fn assert(&self, term: &str) -> Result<WriteOutcome, kube::Error> {
        let record = match self.records.get_metadata(&self.name).await {
            Ok(record) => record,
            Err(error) if is(&error, &[403, 404]) => return Ok(WriteOutcome::NotInstalled(error)),
            Err(error) => return Err(error),
        };
        let [holder_key, term_key] = [HOLDER, TERM].map(|name| format!("{}/{name}", self.group));
        let says = |key: &str, value| record.annotations().get(key).is_some_and(|is| is == value);
        if says(&holder_key, self.identity.as_str()) && says(&term_key, term) {
            return Ok(WriteOutcome::Named);
        }
        // Two installations share a service account, and only the first has a record. The second must not use it.
        if self.is_adopted
            && !says(&holder_key, self.identity.as_str())
            && let Some(written) = record.annotations().get(&term_key)
            && lease_of(written) != lease_of(term)
        {
            return Ok(WriteOutcome::OfAnotherLease);
        }
        if let Some(lease) = &self.lease {
            // After the read of the record: see the module documentation.
            let holder = self.holder(lease).await?;
            if holder.is_empty() {
                return Ok(WriteOutcome::Unheld);
            }
            if holder != self.identity.as_str() {
                return Ok(WriteOutcome::Deposed(holder));
            }
        }
        let patch = json!({"metadata": {
            "resourceVersion": record.resource_version(),
            "annotations": {&holder_key: self.identity.as_str(), &term_key: term},
        }});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.records.patch_metadata(&self.name, &params, &patch);
        match timeout(self.limit, patched).await {
            Ok(patched) => patched.map(|_| WriteOutcome::Written),
            Err(_) => Ok(WriteOutcome::Unanswered),
        }
    }

    /// Returns the name of the record in the policy's message, if the settings name no record. The rejected write must be of this
    /// replica, and the record must be in the namespace of the Lease.
    fn named_by<'a>(&self, message: &'a str) -> Option<&'a str> {
        let identity = self.identity.as_str();
        let rejected = format!("\"{identity}\" is not the leader named by serviceaccount/");
        let (_, named) = message.split_once(&rejected)?;
        let (name, rest) = named.split_once(" in ")?;
        let (namespace, _) = rest.split_once(':')?;
        let is_ours = !self.is_expected && namespace == self.namespace;
        (is_ours && is_subdomain(name, 253)).then_some(name)
    }

    /// Returns the holder of the Lease, or an empty string. The read bypasses the guard, because an attempt may be in progress.
    async fn holder(&self, lease: &str) -> Result<String, kube::Error> {
        let leases = Request::new(Lease::url_path(&(), Some(&self.namespace)));
        let request = leases.get(lease, &GetParams::default());
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(BypassGuard);
        let lease: Lease = match self.client.request(request).await {
            Err(error) if is(&error, &[404]) => return Ok(String::new()),
            read => read?,
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        Ok(holder.unwrap_or_default())
    }
}

/// Asserts a record beside the election, without delaying a renewal: one assertion at a time, with pauses that grow up to
/// `call`.
pub(crate) struct FencingRecordWriter {
    record: FencingRecord,
    call: Duration,
    host: Host,
    /// [`TERM`] of the last assertion.
    term: String,
    /// State of the record in this term.
    is: FencingRecordState,
    /// The assertion in progress, if any: its term and its result, `None` after a timeout.
    under_way: JoinSet<(String, Option<Result<WriteOutcome, kube::Error>>)>,
    /// Start of the last assertion.
    started: Instant,
    /// Earliest start of the next assertion, and the pause after it.
    due: Instant,
    pauses: Backoff,
    /// Failures since the last success.
    trouble: OutageLog,
}

impl FencingRecordWriter {
    /// Creates the assertions of `record`. Each read may take `call`.
    pub(crate) fn new(
        host: Host,
        record: FencingRecord,
        call: Duration,
        retry_period: Duration,
    ) -> Self {
        Self {
            host,
            record,
            call,
            term: String::new(),
            is: FencingRecordState::NotInstalled,
            under_way: JoinSet::new(),
            started: Instant::now(),
            due: Instant::now(),
            pauses: Backoff::new(retry_period / 2, call),
            trouble: OutageLog::default(),
        }
    }

    /// Asserts the record after the Lease was acquired, even if it was written before: another replica may have led since.
    pub(crate) fn acquired(&mut self, uid: &str, transitions: i32) {
        let term = format!("{uid}/{transitions}/");
        // In the same term, an assertion in progress continues. Otherwise a replica that loses and gains its term faster than
        // an assertion takes would never write its record.
        if !self.term.starts_with(&term) {
            self.stop();
            self.pauses.reset();
            self.record.limit = DEFAULT_WEBHOOK;
        }
        self.due = Instant::now();
        self.term = term + &self.host.uuid().to_string();
        self.is = FencingRecordState::Pending;
        self.assert_if_due();
    }

    /// Starts an assertion if the record may not name this term yet, none is in progress, and the pause has passed. Call it at
    /// each renewal. If the election requires fencing, the record is also read [every minute](REVIEWED_EACH).
    pub(crate) fn assert_if_due(&mut self) {
        let now = Instant::now();
        let due = match self.is {
            FencingRecordState::Pending => self.due,
            _ if self.record.required.is_some() => self.started + REVIEWED_EACH,
            _ => return,
        };
        if self.is_under_way() || now < due {
            return;
        }
        self.started = now;
        if self.is == FencingRecordState::Pending {
            self.due = now + self.pauses.advance();
        }
        let (record, term) = (self.record.clone(), self.term.clone());
        let limit = self.limit();
        self.under_way.spawn(async move {
            let asserted = timeout(limit, record.assert(&term)).await;
            (term, asserted.ok())
        });
    }

    /// Records that the fencing policy rejected a write with this message: the record may name another replica, or it may not be
    /// the record that the policy uses.
    pub(crate) fn rejected(&mut self, message: &str) {
        self.is = FencingRecordState::Pending;
        let Some(name) = self.record.named_by(message) else {
            return;
        };
        if name == self.record.name {
            return;
        }
        // The result of the assertion in progress is about the other record.
        self.under_way = JoinSet::new();
        self.record.name = name.to_owned();
        self.record.is_adopted = true;
        info!(
            record = self.object(),
            "leader_election.fencing_record is not set: writing the record that the fencing policy names"
        );
    }

    /// Returns the time limit of an assertion.
    fn limit(&self) -> Duration {
        self.call * READS + self.record.limit
    }

    /// Returns the state of the record.
    pub(crate) fn is(&self) -> FencingRecordState {
        self.is
    }

    /// Returns whether the election requires server-side fencing, and there is no record.
    pub(crate) fn is_missing(&self) -> bool {
        self.record.required.is_some() && self.is == FencingRecordState::NotInstalled
    }

    /// Aborts the assertion in progress.
    pub(crate) fn stop(&mut self) {
        self.under_way = JoinSet::new();
    }

    /// Returns whether an assertion is in progress.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits for the assertion in progress, if any. Returns the holder of the Lease if it is another replica. May be cancelled
    /// and called again.
    pub(crate) async fn ended(&mut self) -> Option<String> {
        let asserted = loop {
            let (term, asserted) = match self.under_way.join_next().await? {
                Ok(ended) => ended,
                Err(ended) => resume_unwind(ended.try_into_panic().ok()?),
            };
            match &asserted {
                Some(Ok(WriteOutcome::Unanswered)) => {
                    self.failed(
                        "no answer to its write in time: an admission webhook for serviceaccounts may hang, or the API server",
                    );
                    self.record.limit = MUTATION_TIMEOUT;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => self.failed(&error.to_string()),
                None => {
                    let limit = self.limit();
                    self.failed(&format!("no answer from the API server in {limit:?}"));
                }
            }
            if term == self.term {
                break asserted?.ok()?;
            }
            // The result is of an earlier term, and does not show the state of the current record.
            self.assert_if_due();
        };
        match asserted {
            WriteOutcome::Named | WriteOutcome::Written => {
                self.trouble.clear();
                self.is = FencingRecordState::Written;
                if matches!(asserted, WriteOutcome::Named) {
                    self.due = Instant::now();
                }
            }
            WriteOutcome::NotInstalled(error) => {
                let was_there = self.is == FencingRecordState::Written;
                if let Some(why) = &self.record.required
                    && (self.record.is_expected || was_there)
                {
                    self.failed(&format!(
                        "{error}: no fencing, and {why}; install the fencing component, or set lease_duration to at least \
                         {SAFE_MARGIN:?} more than renew_deadline"
                    ));
                } else if self.record.is_expected {
                    self.failed(&format!("{error}; install the fencing component, or unset leader_election.fencing_record"));
                } else {
                    debug!(record = self.object(), "no fencing record: {error}");
                }
                self.is = FencingRecordState::NotInstalled;
                self.due = Instant::now();
            }
            WriteOutcome::OfAnotherLease => {
                self.failed(
                    "the leader of another Lease writes it; give each installation a ServiceAccount of its own, or set \
                     leader_election.fencing_record",
                );
                self.is = FencingRecordState::NotInstalled;
                self.due = Instant::now();
            }
            WriteOutcome::Unanswered | WriteOutcome::Unheld => {}
            WriteOutcome::Deposed(holder) => return Some(holder),
        }
        None
    }

    /// Logs a failure. The same cause is repeated at growing intervals, up to ten minutes.
    fn failed(&mut self, trouble: &str) {
        if self.trouble.is_new(trouble) {
            let record = self.object();
            warn!(record, "cannot write the fencing record: {trouble}");
        }
    }

    /// Returns the record's name for logs: `serviceaccount/NAME`.
    fn object(&self) -> String {
        format!("serviceaccount/{}", self.record.name)
    }
}

fn is(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

#[cfg(test)]
mod tests;
