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
    /// How many objects are reconciled at once, and as many more where requests hang; 1 to 1000.
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

/// The Lease, and how it is held: `lease_duration` is longer than `renew_deadline` by over 700 ms and a 500th of itself, and
/// that longer than 1.2 × `retry_period` (hazards H8, H19).
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

    /// The time from a term's end to the Lease's.
    fn between(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline)
    }

    /// The longest time from when a write is handed to the kernel to when it reaches the API server (H19). After it, the
    /// kernel has closed the connection. Two fifths of the time from a term's end to the Lease's; zero without an election.
    pub(crate) fn way(&self) -> Duration {
        if self.enabled {
            (self.between() * 2 / 5).max(SHORTEST_WAY)
        } else {
            Duration::ZERO
        }
    }

    /// How long after the end of its term a write may still be carried out that reaches the API server without delay: the
    /// rest of the time to the Lease's end, by the clock of a replica that is as much faster as clocks may be.
    pub(crate) fn overtime(&self) -> Duration {
        let taken = self.way() + differ(self.lease_duration);
        self.between().saturating_sub(taken)
    }

    /// The longest time that the API server is ever given for a write.
    pub(crate) fn longest_write(&self) -> Duration {
        MUTATION_TIMEOUT.min(self.renew_deadline + self.overtime())
    }

    /// The kernel's `TCP_USER_TIMEOUT`. It counts from the first retransmission, so this is the [way](Self::way) less the
    /// longest time to that: a tail loss probe and a retransmission, each of which waits for 200 ms and a round trip
    /// (`TCP_RTO_MIN`). A round trip takes a tenth of the way at most.
    ///
    /// `None` without an election: no other replica could lead meanwhile.
    #[must_use]
    pub(crate) fn send_timeout(&self) -> Option<Duration> {
        let way = self.way();
        let resent = (RESENT_AFTER + way / 10) * 2;
        // The kernel counts milliseconds, and takes 0 for no limit.
        let left = way.saturating_sub(resent).max(Duration::from_millis(1));
        self.enabled.then_some(left)
    }
}

/// `lease_duration` has to be longer than `renew_deadline` by more than this, so that a write that is sent at the end of a
/// term has time to arrive, and 100 ms to be carried out, before the Lease ends (H19).
pub(super) fn after_the_term(lease_duration: Duration) -> Duration {
    SHORTEST_WAY + Duration::from_millis(100) + differ(lease_duration)
}

/// How much less than this the clock of another machine may count meanwhile: each is off by a thousandth at most.
fn differ(time: Duration) -> Duration {
    time / 500
}

/// A shorter [way](LeaderElection::way) would leave the kernel less than 80 ms from the first retransmission.
const SHORTEST_WAY: Duration = Duration::from_millis(600);

/// `TCP_RTO_MIN` of Linux.
const RESENT_AFTER: Duration = Duration::from_millis(200);

/// The longest time that the API server is given for any write. A webhook may take 30 s.
pub(crate) const MUTATION_TIMEOUT: Duration = Duration::from_secs(35);

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
