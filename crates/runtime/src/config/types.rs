//! The configuration, as the code has it.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use http::Uri;
use serde::{Deserialize, Deserializer};

/// The runtime's part of the configuration in force.
///
/// Whatever [`load`](super::load) returns keeps the ranges given here; code that builds one by hand keeps them itself.
// What else is among the keys is the application's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Config {
    /// How often every object is resynced, 1 s to 24 h.
    #[serde(with = "humantime_serde")]
    pub resync: Duration,
    /// How many objects are reconciled at once, 1 to 1000.
    pub workers: u32,
    /// The namespaces of the objects, valid names; empty means all.
    pub namespaces: Vec<String>,
    /// How long running work may take to finish once asked to stop, 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// The kubeconfig file. Whether it can be read is seen when the client is made.
    #[serde(deserialize_with = "unless_empty")]
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address, over what the kubeconfig says: http or https, with a host, without credentials.
    #[serde(deserialize_with = "unless_empty")]
    pub master: Option<Uri>,
    /// How failures are retried.
    pub backoff: Backoff,
    /// Who may act.
    pub leader_election: LeaderElection,
    /// What is served over HTTP.
    pub http: Http,
    /// What is logged.
    pub log: Log,
    /// What is exported.
    pub telemetry: Telemetry,
}

/// The delays of retries: the longer of what the object's own failures and the bucket over all objects ask for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// Delay before an object's first retry, doubled each time; 1 ms to 1 h, at most `max`.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// Longest delay of one object, 1 ms to 24 h.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
    /// Retries a second that the bucket lets through, 0.1 to 100,000.
    pub qps: f64,
    /// Retries that the bucket holds when full, 1 to 100,000.
    pub burst: u32,
}

/// The Lease, and how it is held: `lease_duration` is longer than `renew_deadline` by over a quarter of that (400 ms at
/// least, 2.5 s at most), and that longer than 1.2 × `retry_period` (hazards H8, H19).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderElection {
    /// Off means always leading: for one replica alone.
    pub enabled: bool,
    /// The Lease's name, a DNS-1123 subdomain.
    pub lease_name: String,
    /// The Lease's namespace; unset, it is the pod's own.
    #[serde(deserialize_with = "unless_empty")]
    pub lease_namespace: Option<String>,
    /// The name of the fencing record, a service account in the Lease's namespace; unset, the Lease's name and `-fencing`.
    #[serde(deserialize_with = "unless_empty")]
    pub fencing_record: Option<String>,
    /// How long a silent leader keeps the Lease: whole seconds, 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub lease_duration: Duration,
    /// How long a leader works on without renewing, at least 100 ms; how much less than `lease_duration`, see above.
    #[serde(with = "humantime_serde")]
    pub renew_deadline: Duration,
    /// Pause between tries to get or renew the Lease, at least 10 ms.
    #[serde(with = "humantime_serde")]
    pub retry_period: Duration,
}

impl LeaderElection {
    /// The name of the fencing record.
    pub(crate) fn record_name(&self) -> String {
        let named = self.fencing_record.clone();
        named.unwrap_or_else(|| format!("{}-fencing", self.lease_name))
    }

    /// How long one request for the Lease may take. As controller-runtime does it: one hung request must not cost the term.
    pub(crate) fn call_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// How long what was sent may be on its way to the API server before the kernel gives it up (H19): half of the time
    /// from a term's end to the Lease's. The other half is for what the fence grants a write beyond the term.
    /// `None` without an election: there is nobody who could lead meanwhile.
    #[must_use]
    pub(crate) fn send_timeout(&self) -> Option<Duration> {
        let between = self.lease_duration.saturating_sub(self.renew_deadline);
        // The kernel counts milliseconds, and takes 0 for no limit.
        self.enabled
            .then(|| (between / 2).max(Duration::from_millis(1)))
    }
}

/// What has to lie between a term's end and the Lease's, and be exceeded, so that no write of the term lands when another
/// may hold the Lease (H19). The last write that the fence lets out ends [`grace`] after the term, where the way to the API
/// server takes no time; half of what lies between is for the way ([`LeaderElection::send_timeout`]), and the other half has
/// to be longer than that. The kernel checks its limit for the way when it has sent for the second time, 200 ms after the
/// first or later, so that a limit below that is none.
pub(super) fn after_the_term(renew_deadline: Duration) -> Duration {
    let longest = MUTATION_TIMEOUT.min(renew_deadline);
    (grace(longest) * 2).max(FIRST_RESEND * 2)
}

/// The longest that any write may take; kube's client by itself would wait for ever.
pub(crate) const MUTATION_TIMEOUT: Duration = Duration::from_secs(10);

/// What is granted to each write that may take `limit`, for its way to its connection: it may end so much later than its term.
pub(crate) fn grace(limit: Duration) -> Duration {
    limit / 8
}

/// `TCP_RTO_MIN` of Linux.
const FIRST_RESEND: Duration = Duration::from_millis(200);

/// What is served over HTTP.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where probes are answered, and metrics served that are open to all; port 0 takes any free one, unset means nowhere.
    #[serde(deserialize_with = "unless_empty")]
    pub addr: Option<SocketAddr>,
    /// Whether metrics are for those alone who may `get` the path `/metrics`, by the API server's judgement: then they are
    /// served over TLS at `metrics_addr`.
    pub metrics_auth: bool,
    /// Where metrics are served that are not open to all; port 0 takes any free one.
    pub metrics_addr: SocketAddr,
    /// The folder with `tls.crt` and `tls.key` for those; unset, a self-signed certificate is made.
    #[serde(deserialize_with = "unless_empty")]
    pub metrics_cert_dir: Option<PathBuf>,
    /// Whether `/debug/state` is served, where metrics are and as they are.
    pub debug_state: bool,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// A level for everything, and others by target: `info`, or `info,kube=debug`.
    pub level: String,
    /// How lines are written.
    pub format: LogFormat,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The export of traces, logs and metrics by OTLP. All else about it is in the `OTEL_*` variables (see
/// [`crate::telemetry`]).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// The collector's address, over `OTEL_EXPORTER_OTLP_ENDPOINT`: http or https, with a host, without credentials.
    #[serde(deserialize_with = "unless_empty")]
    pub endpoint: Option<Uri>,
}

/// An empty string means unset: the only way to unset in an upper layer what a lower one sets.
fn unless_empty<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
