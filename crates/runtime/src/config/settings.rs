//! The configuration as Rust types.

#[cfg(feature = "operator")]
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};
use std::{fmt, str::FromStr, time::Duration};

#[cfg(feature = "operator")]
use http::Uri;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

#[cfg(feature = "operator")]
use super::protocol::Protocol;
use crate::api::names::is_subdomain;

/// The runtime's part of the effective configuration.
///
/// [`main`](crate::main) enforces the range of each key (docs/configuration.md). Code that constructs a `Config` must respect the
/// ranges.
// All other keys belong to the application.
#[cfg(feature = "operator")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Config {
    /// Interval of the full resync.
    #[serde(with = "humantime_serde")]
    pub resync: Duration,
    /// Number of workers. Slow namespaces have the same number in addition.
    pub workers: u32,
    /// Settings of single controllers, by their names.
    #[serde(default)]
    pub controllers: BTreeMap<String, ControllerConfig>,
    /// Namespaces of the objects; empty means all.
    pub namespaces: Vec<String>,
    /// Value of the label `<group>/installation` of the objects. Empty: the default installation, for objects without the label.
    pub installation: String,
    /// Time limit for running reconciles after a stop request.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// Kubeconfig file. It is read when the client is created.
    #[serde(deserialize_with = "unless_empty")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, overriding the kubeconfig.
    #[serde(deserialize_with = "unless_empty")]
    pub master: Option<Uri>,
    /// Delays of retries.
    pub backoff: Backoff,
    /// Leader election.
    pub leader_election: LeaderElection,
    /// HTTP endpoints.
    pub http: Http,
    /// Logging.
    pub log: Log,
    /// Export of telemetry.
    pub telemetry: Telemetry,
}

#[cfg(feature = "operator")]
impl Config {
    /// Returns the settings for one controller: its own `workers` and `resync`, as far as they are set.
    pub(crate) fn of_controller(&self, name: &str) -> Self {
        let own = self.controllers.get(name).cloned().unwrap_or_default();
        Self {
            workers: own.workers.unwrap_or(self.workers),
            resync: own.resync.unwrap_or(self.resync),
            ..self.clone()
        }
    }
}

/// Settings of one controller. Default: the settings of the program.
#[cfg(feature = "operator")]
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerConfig {
    /// Number of workers.
    pub workers: Option<u32>,
    /// Interval of the full resync.
    #[serde(with = "humantime_serde")]
    pub resync: Option<Duration>,
}

/// Delays of retries. A retry waits for the longer of two delays: the object's own backoff, and the token bucket of all
/// objects.
#[cfg(feature = "operator")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// Delay before an object's first retry, doubled each time up to `max`.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// Longest delay of one object.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
    /// Retries per second from the token bucket.
    pub qps: f64,
    /// Capacity of the token bucket.
    pub burst: u32,
}

/// Leader election by a Lease.
///
/// `lease_duration` must exceed `renew_deadline` by more than 700 ms and a 500th of itself. Otherwise, a write could arrive
/// after the Lease has ended. `renew_deadline` must exceed 1.2 × `retry_period`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderElection {
    /// Whether leaders are elected. Without an election, the replica always leads, so there must be only one.
    pub enabled: bool,
    /// Name of the Lease. `config::load` adds a hyphen and the [installation](Config::installation) to the setting, so that two
    /// installations have no Lease in common.
    pub lease_name: String,
    /// Namespace of the Lease; unset, the namespace of the pod.
    #[serde(deserialize_with = "unless_empty")]
    pub lease_namespace: Option<String>,
    /// Name of the fencing record, a `ServiceAccount` in the Lease's namespace; unset, the Lease's name and `-fencing`.
    #[serde(deserialize_with = "unless_empty")]
    pub fencing_record: Option<String>,
    /// Time without a renewal after which another replica may take the Lease.
    #[serde(with = "humantime_serde")]
    pub lease_duration: Duration,
    /// Time without a successful renewal after which the leader stops. Must be shorter than `lease_duration`, see above.
    #[serde(with = "humantime_serde")]
    pub renew_deadline: Duration,
    /// Pause between attempts to acquire or renew the Lease.
    #[serde(with = "humantime_serde")]
    pub retry_period: Duration,
}

impl LeaderElection {
    /// Returns the default settings. The Lease has this name and the namespace of the pod, and lasts 15 s. The leader renews it
    /// every 2 s, and stops after 10 s without a successful renewal.
    #[must_use]
    pub fn new(lease_name: impl Into<String>) -> Self {
        Self {
            enabled: true,
            lease_name: lease_name.into(),
            lease_namespace: None,
            fencing_record: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Checks the rules that a configuration file must satisfy, too. Returns the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        let hour = Duration::from_hours(1);
        let [lease, renew, retry] = [self.lease_duration, self.renew_deadline, self.retry_period];
        if !is_subdomain(&self.lease_name, 253) {
            return Err(format!(
                "lease_name {:?} is not a valid name of a Lease (a DNS-1123 subdomain)",
                self.lease_name
            ));
        }
        for (key, name) in [
            ("lease_namespace", &self.lease_namespace),
            ("fencing_record", &self.fencing_record),
        ] {
            if let Some(name) = name.as_ref().filter(|name| !is_subdomain(name, 253)) {
                return Err(format!("{key} {name:?} is no name in Kubernetes"));
            }
        }
        if lease.subsec_nanos() != 0 || lease.is_zero() || lease > hour {
            return Err(format!(
                "lease_duration {lease:?} must be whole seconds from 1s to 1h"
            ));
        }
        if retry < Duration::from_millis(10) {
            return Err(format!("retry_period {retry:?} must be 10ms or more"));
        }
        if retry.saturating_mul(6) >= renew.saturating_mul(5) {
            return Err(format!(
                "retry_period {retry:?} times 1.2 must be less than renew_deadline {renew:?}"
            ));
        }
        let apart = after_the_term(lease);
        if renew.saturating_add(apart) >= lease {
            return Err(format!(
                "lease_duration {lease:?} must exceed renew_deadline {renew:?} by more than {apart:?}"
            ));
        }
        Ok(())
    }

    /// Returns why this election requires server-side fencing, if it does.
    pub(crate) fn fencing_reason(&self) -> Option<String> {
        let margin = self.between();
        (self.enabled && margin < SAFE_MARGIN).then(|| {
            let margin = SignedDuration::try_from(margin).unwrap_or(SignedDuration::MAX);
            format!(
                "leader_election.lease_duration is only {margin:#} longer than renew_deadline: after a longer pause of its \
                 machine, the old leader may write at the same time as the new one"
            )
        })
    }

    /// Returns the name of the fencing record.
    pub(crate) fn record_name(&self) -> String {
        let named = self.fencing_record.clone();
        named.unwrap_or_else(|| format!("{}-fencing", self.lease_name))
    }

    /// Returns the timeout of one request for the Lease. As in controller-runtime, a single hung request does not end the term.
    pub(crate) fn call_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// Returns the time from the end of a term to the end of the Lease.
    fn between(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline)
    }

    /// Returns the delivery timeout: the longest time from passing a write to the kernel until it arrives at the API server.
    /// After it, the kernel has closed the connection.
    ///
    /// It is two fifths of the time from the end of a term to the end of the Lease, at least 600 ms. Zero without an election.
    pub(crate) fn way(&self) -> Duration {
        if self.enabled {
            (self.between() * 2 / 5).max(SHORTEST_WAY)
        } else {
            Duration::ZERO
        }
    }

    /// Returns how long after its term a write may still be carried out, if it arrives at the API server without delay. This is
    /// the time until the Lease ends, less the delivery timeout and the tolerated difference of clocks.
    pub(crate) fn overtime(&self) -> Duration {
        let taken = self.way() + differ(self.lease_duration);
        self.between().saturating_sub(taken)
    }

    /// Returns the longest time that the API server has for a write.
    pub(crate) fn longest_write(&self) -> Duration {
        MUTATION_TIMEOUT.min(self.renew_deadline + self.overtime())
    }

    /// Returns the `TCP_USER_TIMEOUT` for the kernel, or `None` without an election, because no other replica can lead.
    ///
    /// The kernel counts it from the first retransmission. So it is the [delivery timeout](Self::way) less the longest time
    /// until that retransmission. This time is a tail loss probe and a retransmission, each after 200 ms (`TCP_RTO_MIN`) and a
    /// round trip. A round trip takes at most a tenth of the delivery timeout.
    #[must_use]
    pub(crate) fn send_timeout(&self) -> Option<Duration> {
        let way = self.way();
        let resent = (RESENT_AFTER + way / 10) * 2;
        // The kernel counts milliseconds, and treats 0 as no limit.
        let left = way.saturating_sub(resent).max(Duration::from_millis(1));
        self.enabled.then_some(left)
    }
}

/// Returns the time that `lease_duration` minus `renew_deadline` must exceed.
///
/// A write at the end of a term then has time to arrive, and 100 ms to be carried out, before the Lease ends.
pub(super) fn after_the_term(lease_duration: Duration) -> Duration {
    SHORTEST_WAY + Duration::from_millis(100) + differ(lease_duration)
}

/// Returns the tolerated difference of two clocks over `time`: each is off by at most a thousandth.
fn differ(time: Duration) -> Duration {
    time / 500
}

/// A smaller margin between `renew_deadline` and `lease_duration` requires fencing. The time limits of a write follow from this
/// margin. A snapshot or a live migration pauses a virtual machine for seconds. A leader that was paused for longer than the margin
/// may write at the same time as the next leader.
pub(crate) const SAFE_MARGIN: Duration = Duration::from_secs(5);

/// Minimum [delivery timeout](LeaderElection::way). A shorter one would leave the kernel less than 80 ms after the first
/// retransmission.
const SHORTEST_WAY: Duration = Duration::from_millis(600);

/// `TCP_RTO_MIN` of Linux.
const RESENT_AFTER: Duration = Duration::from_millis(200);

/// Longest time that the API server has for any write. A webhook may take 30 s.
pub(crate) const MUTATION_TIMEOUT: Duration = Duration::from_secs(35);

/// HTTP endpoints.
#[cfg(feature = "operator")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Address of the probes, and of metrics without authorization. Port 0 is any free port; unset, there is no endpoint.
    #[serde(deserialize_with = "unless_empty")]
    pub addr: Option<SocketAddr>,
    /// Whether metrics require authorization: the API server must allow the client to `get` the path `/metrics`. Metrics are
    /// then served over TLS at `metrics_addr`.
    pub metrics_auth: bool,
    /// Address of metrics with authorization; port 0 is any free port.
    pub metrics_addr: SocketAddr,
    /// Folder with `tls.crt` and `tls.key` for `metrics_addr`; unset, a self-signed certificate is created.
    #[serde(deserialize_with = "unless_empty")]
    pub metrics_cert_dir: Option<PathBuf>,
    /// Whether `/debug/state` is served, at the address and with the authorization of metrics.
    pub debug_state: bool,
}

/// Logging.
#[cfg(feature = "operator")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Default level, and levels by target: `info`, or `info,kube=debug`.
    pub level: String,
    /// Format of log lines.
    pub format: LogFormat,
}

/// Format of log lines.
#[cfg(feature = "operator")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Export of traces, logs and metrics by OTLP. The `OTEL_*` variables configure the rest (see [`crate::telemetry`]).
#[cfg(feature = "operator")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Address of the collector, overriding `OTEL_EXPORTER_OTLP_ENDPOINT`: http or https, with a host, without credentials.
    #[serde(deserialize_with = "unless_empty")]
    pub endpoint: Option<Uri>,
    /// Protocol of the export, overriding `OTEL_EXPORTER_OTLP_PROTOCOL`.
    #[serde(deserialize_with = "unless_empty")]
    pub protocol: Option<Protocol>,
}

/// Deserializes an empty string as `None`: the only way for an upper layer to unset a value of a lower one.
fn unless_empty<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
