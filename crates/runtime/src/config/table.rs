//! Tables of all settings: the keys of the configuration, and the OpenTelemetry variables that have an effect.
//!
//! They are the source of flags, environment variables, checks with their messages, `--help`, and the reference
//! (`docs/configuration.md`). The default of a key comes from the application's defaults file or the runtime's, the default of
//! a variable from its row.

use clap::{Arg, ArgAction};

use super::key_value_list::{attributes, headers};
use super::protocol::Protocol;
use super::rule::{Rule, is_filter, is_path, is_socket};
use crate::api::names::{is_label, is_subdomain};

/// Key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// Name as in the file, with sections joined by a dot: `backoff.max`.
    pub name: &'static str,
    /// Flag without its dashes: `backoff-max`.
    pub flag: &'static str,
    /// Heading in `--help`.
    pub heading: &'static str,
    /// Name of the value in `--help`.
    pub placeholder: &'static str,
    /// Purpose of the key.
    pub help: &'static str,
    /// Rule for the value.
    pub rule: Rule,
}

impl Key {
    /// Returns a key of an application, outside all sections. Its flag is equal to its name, so choose a name without
    /// separators.
    #[must_use]
    pub const fn new(
        name: &'static str,
        placeholder: &'static str,
        rule: Rule,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            flag: name,
            heading: WORK,
            placeholder,
            help,
            rule,
        }
    }
}

/// Environment variable of OpenTelemetry. An invalid value is ignored with a warning, as the specification requires, unless the
/// variable [is strict](Self::is_strict).
#[derive(Debug)]
pub struct Variable {
    /// Name of the variable. A variable with the prefix [`OTLP`] also exists for each signal, and overrides the general
    /// variable there: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.
    pub name: &'static str,
    /// Rule for the value.
    pub rule: Rule,
    /// Value if the variable is not set; may be empty.
    pub default: &'static str,
    /// Purpose of the variable.
    pub help: &'static str,
}

/// Heading of the keys about reconciling.
pub const WORK: &str = "Work";
const RETRIES: &str = "Retries";
const CLUSTER: &str = "Cluster";
const ELECTION: &str = "Leader election";
const HEALTH: &str = "Logs, health and telemetry";

/// All keys of the runtime, in the order of the file.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    Key { name: "resync", flag: "resync", heading: WORK, placeholder: "DURATION", rule: Rule::Duration("1s", "24h"),
        help: "Interval of the full resync; skipped while nothing has changed" },
    Key { name: "workers", flag: "workers", heading: WORK, placeholder: "N", rule: Rule::Whole(1, 1000),
        help: "Number of concurrent reconciles; namespaces where requests hang have as many more" },
    Key { name: "namespaces", flag: "namespace", heading: WORK, placeholder: "NAME",
        rule: Rule::List(is_label, "a list of namespace names (a-z, 0-9 and -, at most 63 characters)"),
        help: "Namespaces of the objects; if empty, all" },
    Key { name: "installation", flag: "installation", heading: WORK, placeholder: "NAME",
        rule: Rule::Text(|text| text.is_empty() || is_label(text), "empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it"),
        help: "Name of this installation: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease's name" },
    Key { name: "shutdown_timeout", flag: "shutdown-timeout", heading: WORK, placeholder: "DURATION", rule: Rule::Duration("1s", "1h"),
        help: "Time for running work to finish after a stop request; increase the pod's grace period with it" },
    Key { name: "kubeconfig", flag: "kubeconfig", heading: CLUSTER, placeholder: "FILE",
        rule: Rule::Text(is_path, "a path"),
        help: "Kubeconfig file; if empty, the pod's service account, else $KUBECONFIG, else ~/.kube/config" },
    Key { name: "master", flag: "master", heading: CLUSTER, placeholder: "URL",
        rule: Rule::Address,
        help: "Address of the API server; if empty, the kubeconfig's" },
    Key { name: "backoff.initial", flag: "backoff-initial", heading: RETRIES, placeholder: "DURATION", rule: Rule::Duration("1ms", "1h"),
        help: "Delay before the first retry of an object that failed, doubled each time" },
    Key { name: "backoff.max", flag: "backoff-max", heading: RETRIES, placeholder: "DURATION", rule: Rule::Duration("1ms", "24h"),
        help: "Longest delay between two retries of one object" },
    Key { name: "backoff.qps", flag: "backoff-qps", heading: RETRIES, placeholder: "RATE", rule: Rule::Number(0.1, 100_000.0),
        help: "Retries per second, of all objects together" },
    Key { name: "backoff.burst", flag: "backoff-burst", heading: RETRIES, placeholder: "N", rule: Rule::Whole(1, 100_000),
        help: "Retries without delay before qps limits them" },
    Key { name: "leader_election.enabled", flag: "leader-election", heading: ELECTION, placeholder: "BOOL", rule: Rule::Bool,
        help: "Work only while holding the Lease; false is only for a single replica" },
    Key { name: "leader_election.lease_name", flag: "lease-name", heading: ELECTION, placeholder: "NAME",
        rule: Rule::Text(|text| is_subdomain(text, 253), "lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters)"),
        help: "Name of the Lease, without the suffix of an installation" },
    Key { name: "leader_election.lease_namespace", flag: "lease-namespace", heading: ELECTION, placeholder: "NAME",
        rule: Rule::Text(|text| text.is_empty() || is_label(text), "a namespace name (a-z, 0-9 and -, at most 63 characters)"),
        help: "Namespace of the Lease, needed outside a pod; if empty, the pod's own" },
    Key { name: "leader_election.fencing_record", flag: "fencing-record", heading: ELECTION, placeholder: "NAME",
        rule: Rule::Text(|text| text.is_empty() || is_subdomain(text, 253), "a ServiceAccount's name (a DNS-1123 subdomain, at most 253 characters)"),
        help: "ServiceAccount in the Lease's namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists" },
    Key { name: "leader_election.lease_duration", flag: "lease-duration", heading: ELECTION, placeholder: "DURATION", rule: Rule::Seconds("1s", "1h"),
        help: "Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long" },
    Key { name: "leader_election.renew_deadline", flag: "lease-renew-deadline", heading: ELECTION, placeholder: "DURATION", rule: Rule::Duration("100ms", "1h"),
        help: "Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration" },
    Key { name: "leader_election.retry_period", flag: "lease-retry-period", heading: ELECTION, placeholder: "DURATION", rule: Rule::Duration("10ms", "1h"),
        help: "Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this" },
    Key { name: "http.addr", flag: "http-addr", heading: HEALTH, placeholder: "ADDRESS",
        rule: Rule::Text(|text| text.is_empty() || is_socket(text), "an IP address and port such as 0.0.0.0:8080, or [::]:8080 for IPv4 and IPv6"),
        help: "Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served" },
    Key { name: "http.metrics_auth", flag: "http-metrics-auth", heading: HEALTH, placeholder: "BOOL", rule: Rule::Bool,
        help: "Serve /metrics over TLS only, to clients that the API server allows to get /metrics" },
    Key { name: "http.metrics_addr", flag: "http-metrics-addr", heading: HEALTH, placeholder: "ADDRESS",
        rule: Rule::Text(is_socket, "an IP address and port such as 0.0.0.0:8443, or [::]:8443 for IPv4 and IPv6"),
        help: "Address of /metrics with http.metrics_auth" },
    Key { name: "http.metrics_cert_dir", flag: "http-metrics-cert-dir", heading: HEALTH, placeholder: "FOLDER",
        rule: Rule::Text(is_path, "a path"),
        help: "Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate" },
    Key { name: "http.debug_state", flag: "http-debug-state", heading: HEALTH, placeholder: "BOOL", rule: Rule::Bool,
        help: "Serve the replica's internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path" },
    Key { name: "log.level", flag: "log-level", heading: HEALTH, placeholder: "LEVEL",
        rule: Rule::Text(is_filter, "a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"),
        help: "Log level" },
    Key { name: "log.format", flag: "log-format", heading: HEALTH, placeholder: "FORMAT",
        rule: Rule::Text(|text| matches!(text, "auto" | "text" | "json"), "auto, text or json"),
        help: "Log format; auto is text on a terminal and json elsewhere" },
    Key { name: "telemetry.endpoint", flag: "otlp-endpoint", heading: HEALTH, placeholder: "URL",
        rule: Rule::Address,
        help: "OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export" },
    Key { name: "telemetry.protocol", flag: "otlp-protocol", heading: HEALTH, placeholder: "PROTOCOL",
        rule: Rule::Text(|text| text.is_empty() || Protocol::NAMES.contains(&text), "grpc or http/protobuf"),
        help: "OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc" },
];

/// Prefix of the OpenTelemetry variables that also exist for each signal.
pub const OTLP: &str = "OTEL_EXPORTER_OTLP_";

/// A day in milliseconds.
const DAY: u32 = 86_400_000;
/// Maximum number of items that may wait for export.
const QUEUE: u32 = 100_000;
const EXPORTER: Rule = Rule::Words(&["otlp", "none"]);
const TEXT: Rule = Rule::Text(|_| true, "text");

/// All OpenTelemetry variables that have an effect.
#[rustfmt::skip]
pub(super) const VARIABLES: &[Variable] = &[
    Variable { name: "OTEL_SDK_DISABLED", rule: Rule::Bool, default: "false",
        help: "If true, nothing is exported, regardless of other settings" },
    Variable { name: "OTEL_TRACES_EXPORTER", rule: EXPORTER, default: "otlp",
        help: "If none, traces are not exported" },
    Variable { name: "OTEL_LOGS_EXPORTER", rule: EXPORTER, default: "otlp",
        help: "If none, logs are not exported" },
    Variable { name: "OTEL_METRICS_EXPORTER", rule: Rule::Words(&["otlp", "prometheus", "none"]), default: "otlp",
        help: "Without otlp, metrics are not exported; /metrics is not affected" },
    Variable { name: "OTEL_EXPORTER_OTLP_ENDPOINT", rule: Rule::Address, default: "",
        help: "Endpoint of the collector, with TLS if it has no scheme; telemetry.endpoint overrides it; with http/protobuf, the base of /v1/traces, /v1/logs and /v1/metrics" },
    Variable { name: "OTEL_EXPORTER_OTLP_INSECURE", rule: Rule::Bool, default: "false",
        help: "If true, an endpoint without a scheme is used without TLS" },
    Variable { name: "OTEL_EXPORTER_OTLP_PROTOCOL", rule: Rule::Word(&Protocol::NAMES), default: "grpc",
        help: "Protocol of exports; telemetry.protocol overrides it; http/json is refused" },
    Variable { name: "OTEL_EXPORTER_OTLP_HEADERS", rule: Rule::Secret(|list| headers(list).is_some(), "a comma-separated list of name=value, percent-encoded, valid as HTTP headers"), default: "",
        help: "Headers of every export request, such as credentials" },
    Variable { name: "OTEL_EXPORTER_OTLP_TIMEOUT", rule: Rule::Whole(1, DAY), default: "10000",
        help: "Timeout of one export in milliseconds, with its repetitions" },
    Variable { name: "OTEL_EXPORTER_OTLP_COMPRESSION", rule: Rule::Word(&["gzip", "none"]), default: "none",
        help: "Compression of exports" },
    Variable { name: "OTEL_EXPORTER_OTLP_CERTIFICATE", rule: Rule::File, default: "",
        help: "Trusted certificate authorities; if not set, the system's" },
    Variable { name: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", rule: Rule::File, default: "",
        help: "Client certificate, if the collector requires one" },
    Variable { name: "OTEL_EXPORTER_OTLP_CLIENT_KEY", rule: Rule::File, default: "",
        help: "Private key of the client certificate" },
    Variable { name: "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", rule: Rule::Word(&["cumulative", "delta", "lowmemory"]), default: "cumulative",
        help: "Whether a counter is exported as its total or as its increase since the last export" },
    Variable { name: "OTEL_SERVICE_NAME", rule: TEXT, default: "",
        help: "Service name in exports; if not set, the program's name" },
    Variable { name: "OTEL_RESOURCE_ATTRIBUTES", rule: Rule::Text(|list| attributes(list).is_some(), "a comma-separated list of name=value, percent-encoded"), default: "",
        help: "Attributes of the resource; they override those from the pod's variables" },
    Variable { name: "OTEL_PROPAGATORS", rule: Rule::Words(&["tracecontext", "baggage", "none"]), default: "tracecontext",
        help: "With tracecontext, each request to the API server carries its trace (traceparent)" },
    Variable { name: "OTEL_TRACES_SAMPLER", rule: Rule::Word(&["always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"]), default: "parentbased_always_on",
        help: "Sampler that selects the exported traces" },
    Variable { name: "OTEL_TRACES_SAMPLER_ARG", rule: Rule::Number(0.0, 1.0), default: "1",
        help: "Share of traces for traceidratio" },
    Variable { name: "OTEL_BSP_SCHEDULE_DELAY", rule: Rule::Whole(1, DAY), default: "5000",
        help: "Milliseconds between two exports of spans" },
    Variable { name: "OTEL_BSP_MAX_QUEUE_SIZE", rule: Rule::Whole(1, QUEUE), default: "2048",
        help: "Maximum number of spans that wait for export; further ones are dropped" },
    Variable { name: "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", rule: Rule::Whole(1, QUEUE), default: "512",
        help: "Maximum number of spans in one export" },
    Variable { name: "OTEL_BLRP_SCHEDULE_DELAY", rule: Rule::Whole(1, DAY), default: "1000",
        help: "Milliseconds between two exports of log records" },
    Variable { name: "OTEL_BLRP_MAX_QUEUE_SIZE", rule: Rule::Whole(1, QUEUE), default: "2048",
        help: "Maximum number of log records that wait for export; further ones are dropped" },
    Variable { name: "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", rule: Rule::Whole(1, QUEUE), default: "512",
        help: "Maximum number of log records in one export" },
    Variable { name: "OTEL_METRIC_EXPORT_INTERVAL", rule: Rule::Whole(1, DAY), default: "60000",
        help: "Milliseconds between two exports of metrics" },
];

impl Variable {
    /// Returns whether an invalid value ends the program, because there is no safe default. Without an address, nothing would
    /// be exported. Without headers or files, the export would lack credentials or go to another server.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        matches!(self.rule, Rule::Address | Rule::Secret(..) | Rule::File)
    }

    /// Returns whether this invalid value ends the program. Besides the values of strict variables, that is `http/json`. The
    /// specification knows this protocol, so its collector expects neither of the supported protocols.
    pub(crate) fn refuses(&self, value: &str) -> bool {
        let is_protocol = self.name == "OTEL_EXPORTER_OTLP_PROTOCOL";
        self.is_strict() || (is_protocol && value.eq_ignore_ascii_case("http/json"))
    }
}

impl Key {
    /// Returns the purpose of the key and the rule for its value. For `crate::internals`.
    #[doc(hidden)]
    #[must_use]
    pub fn meaning(&self) -> String {
        format!("{}: {}", self.help, self.rule)
    }

    /// Returns the value as errors may show it: secrets and possible credentials are hidden.
    #[must_use]
    pub(crate) fn shown(&self, literal: &str) -> String {
        if self.rule.hides(literal) {
            "(hidden)".to_owned()
        } else {
            literal.to_owned()
        }
    }

    /// Returns the flag. Its value stays text, because flags and environment go through the same check as the file.
    #[must_use]
    pub(crate) fn arg(&self, default: &str) -> Arg {
        let default = match (self.general(), default) {
            (Some(general), _) => general,
            (None, "") => "none",
            (None, _) => default,
        };
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
