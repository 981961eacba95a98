//! Every key of the configuration, once: its flag, its place in `--help`, and the rule that a value must meet. The
//! flags, the names of the environment variables, the check and its message all come from this table; the defaults
//! come from the application's shipped file.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Arg, ArgAction};
use figment::value::Value;
use http::Uri;
use humantime_serde::Serde;

use super::directives::Directives;
use crate::App;
use crate::dns::{is_label, is_subdomain};

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// The name as in the file, sections joined by a dot: `backoff.max`.
    pub name: &'static str,
    /// The flag without its dashes: `backoff-max`.
    pub flag: &'static str,
    /// The heading in `--help`.
    pub heading: &'static str,
    /// What the value is called in `--help`.
    pub placeholder: &'static str,
    /// What the key is for.
    pub help: &'static str,
    /// What a value must be.
    pub rule: Rule,
}

/// What a value must be. As text it completes "must be ...".
#[derive(Debug)]
pub enum Rule {
    /// True or false.
    Bool,
    /// A whole number between the two, inclusive.
    Whole(u32, u32),
    /// A number between the two, inclusive.
    Number(f64, f64),
    /// A duration between the two, inclusive.
    Duration(&'static str, &'static str),
    /// The same, in whole seconds: the API has no smaller unit for a Lease (hazard H8).
    Seconds(&'static str, &'static str),
    /// A string that passes the check, and what the check demands.
    Text(fn(&str) -> bool, &'static str),
    /// Strings that each pass the check, and what the check demands.
    List(fn(&str) -> bool, &'static str),
}

/// The heading of what is about the work itself.
pub const WORK: &str = "Work";
const RETRIES: &str = "Retries";
const CLUSTER: &str = "Cluster";
const ELECTION: &str = "Leader election";
const HEALTH: &str = "Logs, health and telemetry";

/// What [`is_address`] demands.
const ADDRESS: &str =
    "http:// or https:// with a host, perhaps a port and a path, and no credentials or query";

/// All keys of the runtime, in the order of the file.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    Key { name: "resync", flag: "resync", heading: WORK, placeholder: "DURATION", rule: Rule::Duration("1s", "24h"),
        help: "How often every object is looked at again, changed or not" },
    Key { name: "workers", flag: "workers", heading: WORK, placeholder: "N", rule: Rule::Whole(1, 1000),
        help: "How many objects are reconciled at once" },
    Key { name: "namespaces", flag: "namespace", heading: WORK, placeholder: "NAME",
        rule: Rule::List(is_label, "a list of namespace names (a-z, 0-9 and -, at most 63 characters)"),
        help: "Where to look for objects, all namespaces if none is named" },
    Key { name: "shutdown_timeout", flag: "shutdown-timeout", heading: WORK, placeholder: "DURATION", rule: Rule::Duration("1s", "1h"),
        help: "How long running work may take to finish once asked to stop" },
    Key { name: "kubeconfig", flag: "kubeconfig", heading: CLUSTER, placeholder: "FILE",
        rule: Rule::Text(|path| !path.contains('\0'), "a path"),
        help: "Kubeconfig file; if empty, the pod's service account, else $KUBECONFIG, else ~/.kube/config" },
    Key { name: "master", flag: "master", heading: CLUSTER, placeholder: "URL",
        rule: Rule::Text(is_address, ADDRESS),
        help: "API server's address, in place of the kubeconfig's; if empty, the kubeconfig's" },
    Key { name: "backoff.initial", flag: "backoff-initial", heading: RETRIES, placeholder: "DURATION", rule: Rule::Duration("1ms", "1h"),
        help: "Delay before the first retry of an object that failed, doubled each time" },
    Key { name: "backoff.max", flag: "backoff-max", heading: RETRIES, placeholder: "DURATION", rule: Rule::Duration("1ms", "24h"),
        help: "Longest delay between two retries of one object" },
    Key { name: "backoff.qps", flag: "backoff-qps", heading: RETRIES, placeholder: "RATE", rule: Rule::Number(0.1, 100_000.0),
        help: "Retries a second over all objects" },
    Key { name: "backoff.burst", flag: "backoff-burst", heading: RETRIES, placeholder: "N", rule: Rule::Whole(1, 100_000),
        help: "Retries that may go at once before qps slows them down" },
    Key { name: "leader_election.enabled", flag: "leader-election", heading: ELECTION, placeholder: "BOOL", rule: Rule::Bool,
        help: "Work only while holding the Lease; false is for one replica alone" },
    Key { name: "leader_election.lease_name", flag: "lease-name", heading: ELECTION, placeholder: "NAME",
        rule: Rule::Text(|text| is_subdomain(text, 253), "lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters)"),
        help: "Name of the Lease" },
    Key { name: "leader_election.lease_namespace", flag: "lease-namespace", heading: ELECTION, placeholder: "NAME",
        rule: Rule::Text(|text| text.is_empty() || is_label(text), "a namespace name (a-z, 0-9 and -, at most 63 characters)"),
        help: "Namespace of the Lease, needed outside a pod; if empty, the pod's own" },
    Key { name: "leader_election.lease_duration", flag: "lease-duration", heading: ELECTION, placeholder: "DURATION", rule: Rule::Seconds("1s", "1h"),
        help: "How long a leader that went silent keeps the Lease, and the very first one waits for it" },
    Key { name: "leader_election.renew_deadline", flag: "lease-renew-deadline", heading: ELECTION, placeholder: "DURATION", rule: Rule::Duration("100ms", "1h"),
        help: "How long a leader works on without renewing, over a quarter of it (400ms at least, 2500ms at most) less than lease_duration" },
    Key { name: "leader_election.retry_period", flag: "lease-retry-period", heading: ELECTION, placeholder: "DURATION", rule: Rule::Duration("10ms", "1h"),
        help: "Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long" },
    Key { name: "http.addr", flag: "http-addr", heading: HEALTH, placeholder: "ADDRESS",
        rule: Rule::Text(|text| text.is_empty() || is_socket(text), "an IP address and port such as 0.0.0.0:8080, or [::]:8080 for IPv4 and IPv6"),
        help: "Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere" },
    Key { name: "http.metrics_auth", flag: "http-metrics-auth", heading: HEALTH, placeholder: "BOOL", rule: Rule::Bool,
        help: "Serve metrics over TLS only, to those who the API server says may get /metrics" },
    Key { name: "http.metrics_addr", flag: "http-metrics-addr", heading: HEALTH, placeholder: "ADDRESS",
        rule: Rule::Text(is_socket, "an IP address and port such as 0.0.0.0:8443, or [::]:8443 for IPv4 and IPv6"),
        help: "Where they are served with http.metrics_auth" },
    Key { name: "http.metrics_cert_dir", flag: "http-metrics-cert-dir", heading: HEALTH, placeholder: "FOLDER",
        rule: Rule::Text(|path| !path.contains('\0'), "a path"),
        help: "Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate" },
    Key { name: "log.level", flag: "log-level", heading: HEALTH, placeholder: "LEVEL",
        rule: Rule::Text(is_filter, "a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"),
        help: "What is logged" },
    Key { name: "log.format", flag: "log-format", heading: HEALTH, placeholder: "FORMAT",
        rule: Rule::Text(|text| matches!(text, "auto" | "text" | "json"), "auto, text or json"),
        help: "How it is written; auto is text on a terminal and json elsewhere" },
    Key { name: "telemetry.endpoint", flag: "otlp-endpoint", heading: HEALTH, placeholder: "URL",
        rule: Rule::Text(is_address, ADDRESS),
        help: "Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere" },
];

impl Key {
    /// The environment variable that sets it in the application `app`.
    #[must_use]
    pub fn variable(&self, app: &App) -> String {
        let name = self.name.to_uppercase().replace('.', "__");
        format!("{}{name}", app.env_prefix())
    }

    /// What the key is for, and what a value must be.
    #[must_use]
    pub fn meaning(&self) -> String {
        format!("{}: {}", self.help, self.rule)
    }

    /// Its value as a complaint may show it: of an address, nothing that could be a credential.
    #[must_use]
    pub fn shown(&self, literal: &str) -> String {
        let secret = matches!(self.name, "master" | "telemetry.endpoint")
            && literal.contains(['@', '?', '#']);
        if secret {
            "(hidden)".to_owned()
        } else {
            literal.to_owned()
        }
    }

    /// Its flag. The value stays text: flags and environment go through the same check as the file.
    #[must_use]
    pub fn arg(&self, default: &str) -> Arg {
        let default = if default.is_empty() { "none" } else { default };
        let arg = Arg::new(self.name)
            .long(self.flag)
            .help_heading(self.heading)
            .value_name(self.placeholder)
            .help(format!(
                "{} [key: {}] [default: {default}]",
                self.meaning(),
                self.name
            ))
            .global(true);
        match self.rule {
            Rule::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            Rule::List(..) => arg.action(ArgAction::Append),
            Rule::Whole(..) | Rule::Number(..) => arg.allow_negative_numbers(true),
            _ => arg,
        }
    }
}

impl Rule {
    /// Text from a flag or the environment, as the type that the file would have. Text that does not fit stays text,
    /// for [`Rule::allows`] to refuse.
    #[must_use]
    pub fn value(&self, text: &str) -> Value {
        match self {
            Self::Bool => text.parse::<bool>().map_or(Value::from(text), Value::from),
            Self::Whole(..) | Self::Number(..) => {
                match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(whole), _) => Value::from(whole),
                    (_, Ok(number)) => Value::from(number),
                    _ => Value::from(text),
                }
            }
            Self::List(..) => {
                let text = text.trim();
                let inner = text
                    .strip_prefix('[')
                    .and_then(|text| text.strip_suffix(']'));
                match inner {
                    Some(inner) if inner.trim().is_empty() => Value::from(Vec::<Value>::new()),
                    _ => inner
                        .unwrap_or(text)
                        .split(',')
                        .map(|item| item.trim().trim_matches('"'))
                        .collect::<Vec<_>>()
                        .into(),
                }
            }
            Self::Duration(..) | Self::Seconds(..) | Self::Text(..) => Value::from(text),
        }
    }

    /// Whether the value is what it must be.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        match self {
            Self::Bool => value.to_bool().is_some(),
            Self::Whole(min, max) => value
                .deserialize::<u32>()
                .is_ok_and(|n| (*min..=*max).contains(&n)),
            Self::Number(min, max) => value
                .deserialize::<f64>()
                .is_ok_and(|n| (*min..=*max).contains(&n)),
            Self::Duration(min, max) => duration(value).is_some_and(|d| {
                duration(&Value::from(*min)) <= Some(d) && Some(d) <= duration(&Value::from(*max))
            }),
            Self::Seconds(min, max) => {
                duration(value).is_some_and(|d| d.subsec_nanos() == 0)
                    && Self::Duration(min, max).allows(value)
            }
            Self::Text(check, _) => value.as_str().is_some_and(check),
            Self::List(check, _) => value
                .deserialize::<Vec<String>>()
                .is_ok_and(|items| items.iter().all(|item| check(item))),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => write!(f, "true or false"),
            Self::Whole(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Self::Duration(min, max) => write!(f, "a duration from {min} to {max}"),
            Self::Seconds(min, max) => write!(f, "whole seconds from {min} to {max}"),
            Self::Text(_, demand) | Self::List(_, demand) => f.write_str(demand),
        }
    }
}

/// The value as a duration, written as `30s`.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    value
        .deserialize::<Serde<Duration>>()
        .ok()
        .map(Serde::into_inner)
}

fn is_socket(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok()
}

/// Credentials have no place in an address: it is printed and logged.
pub fn is_address(text: &str) -> bool {
    let fits = |uri: Uri| {
        let Some(authority) = uri.authority() else {
            return false;
        };
        let (whole, host) = (authority.as_str(), authority.host());
        let port_fits = whole == host || authority.port_u16().is_some();
        matches!(uri.scheme_str(), Some("http" | "https")) && !host.is_empty() && port_fits
    };
    text.is_empty() || (!text.contains(['@', '?', '#']) && text.parse().is_ok_and(fits))
}

fn is_filter(text: &str) -> bool {
    text.parse::<Directives>().is_ok()
}
