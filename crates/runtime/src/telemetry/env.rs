//! The `OTEL_*` variables: which there are, what they may be, and what those come to that are set.
//!
//! The OpenTelemetry specification has what cannot be used warned about and ignored, as if it were not set. The SDK
//! does so where nobody listens yet, and does not do it for all; so what it reads itself is given to it from here, where
//! it can be. Two kinds of values end the program instead, as a key of the configuration does, since there is nothing to
//! fall back to: an address, which would leave everything unexported, and headers, which would leave out credentials.
//! Only what is going to be used is looked at: without an endpoint, nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_sdk::{metrics::Temporality, trace::Sampler};
use percent_encoding::percent_decode_str;

use super::Error;
use crate::config::is_address;

/// What is exported by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Logs,
    Metrics,
}

impl Signal {
    pub const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    /// As in the names of variables.
    const fn upper(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Logs => "LOGS",
            Self::Metrics => "METRICS",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Traces => "traces",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        })
    }
}

/// One variable.
pub(super) struct Variable {
    pub name: &'static str,
    pub rule: Rule,
}

/// What a value must be. As text it completes "must be ...".
pub(super) enum Rule {
    /// `true`, or else it is false.
    Switch,
    /// One of these.
    One(&'static [&'static str]),
    /// Some of these, with commas between them.
    Some(&'static [&'static str]),
    /// A whole number from 1 to this.
    Whole(u64),
    /// A number from 0 to 1.
    Ratio,
    /// `name=value` with commas between them, percent-encoded, that can be sent as headers; secret.
    Headers,
    /// `name=value` with commas between them, percent-encoded.
    Pairs,
    /// Where a collector is.
    Address,
    /// Anything; files are read when they are needed.
    Text,
}

const DAY: u64 = 86_400_000;
const QUEUE: u64 = 100_000;
const SWITCH: Rule = Rule::Switch;
const EXPORTER: Rule = Rule::Some(&["otlp", "none"]);
const OTLP: &str = "OTEL_EXPORTER_OTLP_";

/// All that have an effect. Those that start with [`OTLP`] exist for each signal, too, and go over the general
/// one there: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.
#[rustfmt::skip]
pub(super) const VARIABLES: &[Variable] = &[
    Variable { name: "OTEL_SDK_DISABLED", rule: SWITCH },
    Variable { name: "OTEL_TRACES_EXPORTER", rule: EXPORTER },
    Variable { name: "OTEL_LOGS_EXPORTER", rule: EXPORTER },
    Variable { name: "OTEL_METRICS_EXPORTER", rule: Rule::Some(&["otlp", "prometheus", "none"]) },
    Variable { name: "OTEL_EXPORTER_OTLP_ENDPOINT", rule: Rule::Address },
    Variable { name: "OTEL_EXPORTER_OTLP_INSECURE", rule: SWITCH },
    Variable { name: "OTEL_EXPORTER_OTLP_PROTOCOL", rule: Rule::One(&["grpc"]) },
    Variable { name: "OTEL_EXPORTER_OTLP_HEADERS", rule: Rule::Headers },
    Variable { name: "OTEL_EXPORTER_OTLP_TIMEOUT", rule: Rule::Whole(DAY) },
    Variable { name: "OTEL_EXPORTER_OTLP_COMPRESSION", rule: Rule::One(&["gzip", "none"]) },
    Variable { name: "OTEL_EXPORTER_OTLP_CERTIFICATE", rule: Rule::Text },
    Variable { name: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", rule: Rule::Text },
    Variable { name: "OTEL_EXPORTER_OTLP_CLIENT_KEY", rule: Rule::Text },
    Variable { name: "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", rule: Rule::One(&["cumulative", "delta", "lowmemory"]) },
    Variable { name: "OTEL_SERVICE_NAME", rule: Rule::Text },
    Variable { name: "OTEL_RESOURCE_ATTRIBUTES", rule: Rule::Pairs },
    Variable { name: "OTEL_PROPAGATORS", rule: Rule::Some(&["tracecontext", "baggage", "none"]) },
    Variable { name: "OTEL_TRACES_SAMPLER", rule: Rule::One(&["always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"]) },
    Variable { name: "OTEL_TRACES_SAMPLER_ARG", rule: Rule::Ratio },
    Variable { name: "OTEL_BSP_SCHEDULE_DELAY", rule: Rule::Whole(DAY) },
    Variable { name: "OTEL_BSP_MAX_QUEUE_SIZE", rule: Rule::Whole(QUEUE) },
    Variable { name: "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", rule: Rule::Whole(QUEUE) },
    Variable { name: "OTEL_BLRP_SCHEDULE_DELAY", rule: Rule::Whole(DAY) },
    Variable { name: "OTEL_BLRP_MAX_QUEUE_SIZE", rule: Rule::Whole(QUEUE) },
    Variable { name: "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", rule: Rule::Whole(QUEUE) },
    Variable { name: "OTEL_METRIC_EXPORT_INTERVAL", rule: Rule::Whole(DAY) },
];

/// The environment, as far as it concerns OpenTelemetry. What is empty, or blank, is not set.
#[derive(Default)]
pub(super) struct Env {
    /// What can be used, by name, as the rules write it.
    values: BTreeMap<String, String>,
    /// What cannot be used and is done without: the variable and the line that says so.
    ignored: Vec<(String, String)>,
    /// What cannot be done without, by name: the line that says so.
    refused: BTreeMap<String, String>,
}

/// What a rule makes of a value.
#[derive(Debug, PartialEq)]
enum Verdict {
    Usable(String),
    /// Usable in part; the rest, in words.
    Partly(Option<String>, String),
    Unusable,
}

impl Env {
    pub fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut env = Self::default();
        for (name, value) in vars {
            if let Ok(name) = name.into_string()
                && let Some(rule) = rule(&name)
            {
                env.take(name, rule, value);
            }
        }
        env
    }

    fn take(&mut self, name: String, rule: &Rule, value: OsString) {
        let (verdict, shown) = match value.into_string() {
            Ok(value) if value.trim().is_empty() => return,
            Ok(value) => {
                let secret = matches!(rule, Rule::Headers) || value.contains(['@', '?', '#']);
                let shown = if secret {
                    "(hidden)".to_owned()
                } else {
                    format!("{value:?}")
                };
                (rule.judge(value.trim()), shown)
            }
            Err(_) => (Verdict::Unusable, "(not UTF-8)".to_owned()),
        };
        let line = format!("{name} = {shown} (environment variable)");
        match verdict {
            Verdict::Usable(value) => _ = self.values.insert(name, value),
            Verdict::Partly(value, ignored) => {
                let line = format!("{line}: {ignored}; it must be {rule}");
                self.ignored.push((name.clone(), line));
                self.values.extend(value.map(|value| (name, value)));
            }
            Verdict::Unusable if matches!(rule, Rule::Address | Rule::Headers) => {
                self.refused.insert(name, format!("{line}: must be {rule}"));
            }
            Verdict::Unusable => {
                let line = format!("{line} is ignored: it must be {rule}");
                self.ignored.push((name, line));
            }
        }
    }

    /// The variable's value, if it is set to what can be used.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The same, of what cannot be done without.
    fn demand(&self, name: &str) -> Result<Option<&str>, Error> {
        match self.refused.get(name) {
            Some(line) => Err(Error::Variable(line.clone())),
            None => Ok(self.get(name)),
        }
    }

    /// The signal's own variable, or else the general one, `OTEL_EXPORTER_OTLP_<what>`: its name and its value.
    pub fn of(&self, signal: Signal, what: &str) -> Option<(String, &str)> {
        [own(signal, what), format!("{OTLP}{what}")]
            .into_iter()
            .find_map(|name| {
                let value = self.get(&name)?;
                Some((name, value))
            })
    }

    /// Where the signal goes, if anywhere: `endpoint` goes over the general variable, the signal's own over that.
    ///
    /// # Errors
    /// [`Error::Variable`], where the address is none.
    pub fn endpoint(
        &self,
        signal: Signal,
        endpoint: Option<&http::Uri>,
    ) -> Result<Option<String>, Error> {
        let exporters = self.get(exporter(signal)).unwrap_or("otlp");
        if self.get("OTEL_SDK_DISABLED") == Some("true") || !names(exporters).any(|e| e == "otlp") {
            return Ok(None);
        }
        let text = match (self.demand(&own(signal, "ENDPOINT"))?, endpoint) {
            (None, Some(configured)) => Some(configured.to_string()),
            (Some(own), _) => Some(own.to_owned()),
            (None, None) => self
                .demand("OTEL_EXPORTER_OTLP_ENDPOINT")?
                .map(str::to_owned),
        };
        let insecure = self
            .of(signal, "INSECURE")
            .is_some_and(|(_, value)| value == "true");
        Ok(text.map(|text| with_scheme(&text, insecure)))
    }

    /// What is to be said of the variables that count where `signals` are exported: a line for each that cannot be used.
    ///
    /// # Errors
    /// [`Error::Variable`], for headers that are none.
    pub fn warnings(&self, signals: &[Signal]) -> Result<Vec<String>, Error> {
        for signal in signals {
            if self.demand(&own(*signal, "HEADERS"))?.is_none() {
                self.demand("OTEL_EXPORTER_OTLP_HEADERS")?;
            }
        }
        let counts = |name: &str| {
            let Some(what) = name.strip_prefix(OTLP) else {
                return true;
            };
            let of_one = |signal: &Signal| what.starts_with(signal.upper());
            match Signal::ALL.iter().find(|signal| of_one(signal)) {
                Some(signal) => signals.contains(signal),
                // A general one that every signal goes over is nobody's.
                None => signals
                    .iter()
                    .any(|signal| self.get(&own(*signal, what)).is_none()),
            }
        };
        let ignored = self.ignored.iter().filter(|(name, _)| counts(name));
        Ok(ignored.map(|(_, line)| line.clone()).collect())
    }

    /// How long one export may take.
    pub fn timeout(&self, signal: Signal) -> Duration {
        let text = self.of(signal, "TIMEOUT").map(|(_, value)| value);
        Duration::from_millis(text.and_then(|text| text.parse().ok()).unwrap_or(10_000))
    }

    /// Whether exports are compressed.
    pub fn compresses(&self, signal: Signal) -> bool {
        self.of(signal, "COMPRESSION")
            .is_some_and(|(_, value)| value == "gzip")
    }

    /// What is sent with every export.
    pub fn headers(&self, signal: Signal) -> HeaderMap {
        let text = self.of(signal, "HEADERS").map(|(_, value)| value);
        text.and_then(headers).unwrap_or_default()
    }

    /// A number, or what it is where it is not set.
    pub fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> T {
        let set = self.get(name).and_then(|text| text.parse().ok());
        set.unwrap_or(default)
    }

    /// The same, in milliseconds.
    pub fn milliseconds(&self, name: &str, default: u64) -> Duration {
        Duration::from_millis(self.number(name, default))
    }

    /// Whether a counter is exported as what it is, or as what it has grown by.
    pub fn temporality(&self) -> Temporality {
        match self.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE") {
            Some("delta") => Temporality::Delta,
            Some("lowmemory") => Temporality::LowMemory,
            _ => Temporality::Cumulative,
        }
    }

    /// Which traces are exported.
    pub fn sampler(&self) -> Sampler {
        let share = Sampler::TraceIdRatioBased(self.number("OTEL_TRACES_SAMPLER_ARG", 1.));
        let by_parent = |sampler| Sampler::ParentBased(Box::new(sampler));
        match self.get("OTEL_TRACES_SAMPLER") {
            Some("always_on") => Sampler::AlwaysOn,
            Some("always_off") => Sampler::AlwaysOff,
            Some("traceidratio") => share,
            Some("parentbased_always_off") => by_parent(Sampler::AlwaysOff),
            Some("parentbased_traceidratio") => by_parent(share),
            _ => by_parent(Sampler::AlwaysOn),
        }
    }

    /// What is said of this process beyond what it knows itself.
    pub fn attributes(&self) -> Vec<KeyValue> {
        let list = self.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let name = self.get("OTEL_SERVICE_NAME");
        let name = name.map(|name| KeyValue::new("service.name", name.to_owned()));
        attributes(list).into_iter().flatten().chain(name).collect()
    }

    /// Whether the API server is told of our traces.
    pub fn propagates(&self) -> bool {
        let list = self.get("OTEL_PROPAGATORS").unwrap_or("tracecontext");
        names(list).any(|name| name == "tracecontext")
    }
}

/// The signal's own variable of those that start with [`OTLP`].
fn own(signal: Signal, what: &str) -> String {
    format!("{OTLP}{}_{what}", signal.upper())
}

const fn exporter(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "OTEL_TRACES_EXPORTER",
        Signal::Logs => "OTEL_LOGS_EXPORTER",
        Signal::Metrics => "OTEL_METRICS_EXPORTER",
    }
}

/// The rule of a variable that has an effect.
/// Every `OTEL_*` variable that is read, with what it may be.
pub fn variables() -> impl Iterator<Item = (&'static str, String)> {
    VARIABLES.iter().map(|Variable { name, rule }| {
        let rule = match rule {
            Rule::Address => "an address".to_owned(),
            rule => rule.to_string(),
        };
        (*name, rule)
    })
}

fn rule(name: &str) -> Option<&'static Rule> {
    let general = name.strip_prefix(OTLP).and_then(|rest| {
        let own = Signal::ALL.iter().find_map(|signal| {
            let what = rest.strip_prefix(signal.upper())?;
            what.strip_prefix('_')
        });
        own.map(|what| format!("{OTLP}{what}"))
    });
    let known = VARIABLES
        .iter()
        .find(|var| var.name == name || Some(var.name) == general.as_deref());
    known.map(|var| &var.rule)
}

/// The parts of a list; a comma at its end ends nothing more.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// The pairs in a list of `name=value`; `None` for what is not one.
fn pairs(list: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    names(list).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some((name, value.trim()))
    })
}

/// What a list of `name=value` comes to as headers; `None` where one of them cannot be sent.
fn headers(list: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in pairs(list) {
        let (name, value) = pair?;
        let name = HeaderName::try_from(name).ok()?;
        let mut value = HeaderValue::try_from(decoded(value)?).ok()?;
        if value.is_empty() || is_grpcs(&name) {
            return None;
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Some(headers)
}

/// What a list of `name=value` comes to as attributes; `None` where one of them is wrong: the specification has none of them
/// taken then.
fn attributes(list: &str) -> Option<Vec<KeyValue>> {
    let attribute = |pair: Option<(&str, &str)>| {
        let (name, value) = pair?;
        Some(KeyValue::new(decoded(name)?, decoded(value)?))
    };
    pairs(list).map(attribute).collect()
}

/// Whether gRPC, or HTTP/2, has a use of its own for a header, and leaves out, or takes offence at, anybody else's.
fn is_grpcs(name: &HeaderName) -> bool {
    const THEIRS: [&str; 9] = [
        "connection",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    name.as_str().starts_with("grpc-") || THEIRS.contains(&name.as_str())
}

/// What is percent-encoded as `text`; `None` where that is nothing, or not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    let whole = |escape: &[u8]| escape.len() >= 2 && escape[..2].iter().all(u8::is_ascii_hexdigit);
    if !escapes.all(whole) {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// As the specification has it: without a scheme it is TLS, unless it is said to be insecure.
fn with_scheme(endpoint: &str, insecure: bool) -> String {
    match (endpoint.contains("://"), insecure) {
        (true, _) => endpoint.to_owned(),
        (false, true) => format!("http://{endpoint}"),
        (false, false) => format!("https://{endpoint}"),
    }
}

impl Rule {
    /// Judges a value without blanks around it. Words are taken in any case.
    fn judge(&self, text: &str) -> Verdict {
        let usable = |fits| {
            if fits {
                Verdict::Usable(text.to_owned())
            } else {
                Verdict::Unusable
            }
        };
        let known = |words: &[&'static str], text: &str| {
            let mut words = words.iter();
            words.find(|word| word.eq_ignore_ascii_case(text)).copied()
        };
        match self {
            Self::Switch => match known(&["true", "false"], text) {
                Some(word) => Verdict::Usable(word.to_owned()),
                None => Verdict::Partly(Some("false".to_owned()), "counts as false".to_owned()),
            },
            Self::One(words) => {
                known(words, text).map_or(Verdict::Unusable, |word| Verdict::Usable(word.into()))
            }
            Self::Some(words) => {
                let (mut found, mut unknown) = (BTreeSet::new(), Vec::new());
                for name in names(text) {
                    match known(words, name) {
                        Some(word) => _ = found.insert(word),
                        None => unknown.push(format!("{name:?}")),
                    }
                }
                let found = Vec::from_iter(found).join(",");
                let found = (!found.is_empty()).then_some(found);
                match (found, unknown.is_empty()) {
                    (Some(found), true) => Verdict::Usable(found),
                    (found, false) => {
                        Verdict::Partly(found, format!("{} is ignored", unknown.join(", ")))
                    }
                    (None, true) => Verdict::Unusable,
                }
            }
            Self::Whole(most) => usable(text.parse().is_ok_and(|n: u64| (1..=*most).contains(&n))),
            Self::Ratio => usable(text.parse().is_ok_and(|n: f64| (0.0..=1.0).contains(&n))),
            Self::Headers => usable(headers(text).is_some()),
            Self::Pairs => usable(attributes(text).is_some()),
            Self::Address => usable(is_address(&with_scheme(text, false))),
            Self::Text => usable(true),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("true or false"),
            Self::One([word]) => f.write_str(word),
            Self::One(words) => write!(f, "one of {}", words.join(", ")),
            Self::Some(words) => write!(f, "some of {}, with commas between them", words.join(", ")),
            Self::Whole(most) => write!(f, "a whole number from 1 to {most}"),
            Self::Ratio => f.write_str("a number from 0 to 1"),
            Self::Headers => f.write_str("name=value, percent-encoded, with commas between them, as HTTP headers can be"),
            Self::Pairs => f.write_str("name=value, percent-encoded, with commas between them"),
            Self::Address => f.write_str(
                "http:// or https:// with a host, perhaps a port and a path, and no credentials or query",
            ),
            Self::Text => f.write_str("text"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env::new(vars.iter().map(|(name, value)| (name.into(), value.into())))
    }

    /// What there is nothing to fall back to is refused in one line that says so, and shows nothing secret.
    #[test]
    fn each_refusal_is_one_clear_line() {
        for (name, value, line) in [
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization: Bearer s3cret",
                " = (hidden) (environment variable): must be name=value, percent-encoded, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "a=b\nc",
                " = (hidden) (environment variable): must be name=value, percent-encoded, with commas between them, as HTTP headers can be",
            ),
            (
                // As of a Secret whose text ends with a newline.
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20s3cret%0A",
                " = (hidden) (environment variable): must be name=value, percent-encoded, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
                "a=b,authorization=100%",
                " = (hidden) (environment variable): must be name=value, percent-encoded, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
                "grpc-status=0",
                " = (hidden) (environment variable): must be name=value, percent-encoded, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "http://u:p@h",
                " = (hidden) (environment variable): must be http:// or https:// with a host, perhaps a port and a path, and no credentials or query",
            ),
            (
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
                "ftp://h",
                r#" = "ftp://h" (environment variable): must be http:// or https:// with a host, perhaps a port and a path, and no credentials or query"#,
            ),
        ] {
            let env = env(&[(name, value)]);
            let refusal = match env.endpoint(Signal::Logs, None) {
                Ok(_) => env.warnings(&Signal::ALL).unwrap_err(),
                Err(refusal) => refusal,
            };
            assert_eq!(refusal.to_string(), format!("{name}{line}"));
        }
        let overridden = env(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://h"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "h"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a"),
            ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "a=b"),
        ]);
        overridden.endpoint(Signal::Logs, None).unwrap();
        overridden.warnings(&[Signal::Logs]).unwrap();
    }

    /// What the specification has ignored is ignored, in one line that says so.
    #[test]
    fn each_warning_is_one_clear_line() {
        for (name, value, line) in [
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "http/protobuf",
                r#" = "http/protobuf" (environment variable) is ignored: it must be grpc"#,
            ),
            (
                "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
                "http/json",
                r#" = "http/json" (environment variable) is ignored: it must be grpc"#,
            ),
            (
                "OTEL_TRACES_SAMPLER_ARG",
                "2",
                r#" = "2" (environment variable) is ignored: it must be a number from 0 to 1"#,
            ),
            (
                "OTEL_BSP_MAX_QUEUE_SIZE",
                "many",
                r#" = "many" (environment variable) is ignored: it must be a whole number from 1 to 100000"#,
            ),
            (
                "OTEL_METRIC_EXPORT_INTERVAL",
                "0",
                r#" = "0" (environment variable) is ignored: it must be a whole number from 1 to 86400000"#,
            ),
            (
                "OTEL_SDK_DISABLED",
                "yes",
                r#" = "yes" (environment variable): counts as false; it must be true or false"#,
            ),
            (
                "OTEL_TRACES_EXPORTER",
                "console,zipkin",
                r#" = "console,zipkin" (environment variable): "console", "zipkin" is ignored; it must be some of otlp, none, with commas between them"#,
            ),
            (
                "OTEL_PROPAGATORS",
                "tracecontext,baggage,b3",
                r#" = "tracecontext,baggage,b3" (environment variable): "b3" is ignored; it must be some of tracecontext, baggage, none, with commas between them"#,
            ),
            (
                "OTEL_TRACES_SAMPLER",
                "a\nb",
                r#" = "a\nb" (environment variable) is ignored: it must be one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio"#,
            ),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "a=b,c",
                r#" = "a=b,c" (environment variable) is ignored: it must be name=value, percent-encoded, with commas between them"#,
            ),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "a=b,c=100%",
                r#" = "a=b,c=100%" (environment variable) is ignored: it must be name=value, percent-encoded, with commas between them"#,
            ),
        ] {
            let env = env(&[(name, value)]);
            assert_eq!(env.attributes(), [], "{name}={value}");
            let warnings = env.warnings(&Signal::ALL).unwrap();
            assert_eq!(warnings, [format!("{name}{line}")]);
        }
    }

    /// What the specification allows, of every variable: in another case and with blanks around it it counts as it stands
    /// in the table; empty or blank it is not set; what nobody knows, alone or in a list, is warned about and ignored. None
    /// of it ends the program.
    #[test]
    fn every_variable_goes_by_the_specification() {
        let every = VARIABLES.iter().flat_map(|Variable { name, rule }| {
            let own = name.strip_prefix(OTLP).into_iter();
            let own = own.flat_map(|what| Signal::ALL.map(|signal| super::own(signal, what)));
            [(*name).to_owned()]
                .into_iter()
                .chain(own)
                .map(move |name| (name, rule))
        });
        for (name, known) in every {
            assert!(super::rule(&name).is_some(), "{name}");
            let taken = |text: &str| {
                let env = env(&[(&name, text)]);
                assert!(env.refused.is_empty(), "{name}={text:?}");
                let warnings = env.warnings(&Signal::ALL).unwrap();
                (env.get(&name).map(str::to_owned), warnings)
            };
            for unset in ["", " ", "\n", "\t \r\n"] {
                assert_eq!(taken(unset), (None, vec![]), "{name}={unset:?}");
            }
            let (good, bad): (&[&str], Option<&str>) = match known {
                Rule::Switch => (&["true", "false"], None),
                Rule::One(words) | Rule::Some(words) => (words, Some("somethingelse")),
                Rule::Whole(_) => (&["1", "99"], Some("-1")),
                Rule::Ratio => (&["0", "0.5", "1"], Some("NaN")),
                Rule::Pairs => (&["a=b", "a=b,c=d"], Some("a")),
                // What is wrong with these is refused; text cannot be wrong.
                Rule::Headers => (&["a=b"], None),
                Rule::Address => (&["http://h:1"], None),
                Rule::Text => (&["text"], None),
            };
            for good in good {
                let as_it_is = (Some((*good).to_owned()), vec![]);
                assert_eq!(taken(good), as_it_is, "{name}");
                assert_eq!(taken(&format!(" {good}\n")), as_it_is, "{name}");
                if matches!(known, Rule::Switch | Rule::One(_) | Rule::Some(_)) {
                    assert_eq!(taken(&good.to_uppercase()), as_it_is, "{name}");
                }
                if matches!(known, Rule::Some(_)) {
                    let (value, warnings) = taken(&format!("{good}, b3 ,{good}"));
                    assert_eq!(
                        (value.as_deref(), warnings.len()),
                        (Some(*good), 1),
                        "{name}"
                    );
                }
            }
            if let Some(bad) = bad {
                let (value, warnings) = taken(bad);
                assert_eq!((value, warnings.len()), (None, 1), "{name}={bad}");
                assert!(warnings[0].contains(&name) && warnings[0].contains(bad));
            }
            if matches!(known, Rule::Switch) {
                let (value, warnings) = taken("1");
                assert_eq!(
                    (value.as_deref(), warnings.len()),
                    (Some("false"), 1),
                    "{name}"
                );
            }
        }
    }

    /// Half an escape, what is not hexadecimal, and what is not UTF-8 are nothing that was encoded.
    #[test]
    fn what_is_encoded_is_decoded_or_refused() {
        for (text, value) in [
            ("", Some("")),
            ("plain", Some("plain")),
            ("a%20b%2cc%3D", Some("a b,c=")),
            ("%25%41", Some("%A")),
            ("%E2%82%AC€", Some("€€")),
            ("%", None),
            ("a%2", None),
            ("%%20", None),
            ("%+1", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded(text).as_deref(), value, "{text:?}");
        }
    }

    /// What is not UTF-8 cannot be used either.
    #[test]
    fn what_is_not_text_is_ignored() {
        use std::os::unix::ffi::OsStringExt as _;
        let env = Env::new([
            ("OTEL_SERVICE_NAME".into(), OsString::from_vec(vec![0xff])),
            ("OTEL_OF_ANOTHER".into(), OsString::from_vec(vec![0xff])),
        ]);
        assert_eq!(env.get("OTEL_SERVICE_NAME"), None);
        let warnings = env.warnings(&Signal::ALL).unwrap();
        assert_eq!(
            warnings,
            ["OTEL_SERVICE_NAME = (not UTF-8) (environment variable) is ignored: it must be text"]
        );
    }

    /// A general variable that all signals go over is nobody's; a signal's own counts where that is exported.
    #[test]
    fn only_what_is_used_is_warned_about() {
        let vars = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "GRPC"),
            ("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "zstd"),
        ];
        let warnings = |signals: &[Signal]| env(&vars).warnings(signals).unwrap().len();
        assert_eq!(warnings(&[Signal::Traces, Signal::Metrics]), 0);
        assert_eq!(warnings(&Signal::ALL), 2);
    }

    /// What users write is taken.
    #[test]
    fn what_is_right_is_taken() {
        let right = env(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20abc, x-tenant=a,",
            ),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "deployment.environment=test,team=,owner=a%2Cb%3Dc%20%c3%a9,a%3Db=%25,half= a b ",
            ),
            ("OTEL_PROPAGATORS", "tracecontext,baggage"),
            ("OTEL_TRACES_SAMPLER", "ParentBased_TraceIDRatio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "500"),
            ("OTEL_SDK_DISABLED", ""),
            ("OTEL_SERVICE_NAME", "mine\n"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", " 7 "),
            ("OTEL_SOMETHING_ELSE", "is nobody's business"),
        ]);
        assert_eq!(right.warnings(&Signal::ALL).unwrap(), [""; 0]);
        assert!(right.propagates() && right.compresses(Signal::Traces));
        assert_eq!(right.timeout(Signal::Metrics), Duration::from_millis(500));
        assert_eq!(right.timeout(Signal::Logs), Duration::from_secs(10));
        assert_eq!(right.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048), 7);
        let sampler = "ParentBased(TraceIdRatioBased(0.25))";
        assert_eq!(format!("{:?}", right.sampler()), sampler);
        let attribute = |name: &'static str, value: &'static str| KeyValue::new(name, value);
        assert_eq!(
            right.attributes(),
            [
                attribute("deployment.environment", "test"),
                attribute("team", ""),
                attribute("owner", "a,b=c é"),
                attribute("a=b", "%"),
                attribute("half", "a b"),
                attribute("service.name", "mine")
            ]
        );
        assert!(!env(&[("OTEL_PROPAGATORS", "none")]).propagates());
    }

    /// Metrics that Prometheus fetches go nowhere by themselves.
    #[test]
    fn exporters_that_are_not_otlp_export_nothing() {
        let configured = http::Uri::from_static("http://configured:1");
        for (signal, list, exported) in [
            (Signal::Metrics, "prometheus", false),
            (Signal::Metrics, "Prometheus,OTLP", true),
            (Signal::Metrics, "none", false),
            (Signal::Traces, "none", false),
            (Signal::Traces, "otlp,console", true),
            // As if it were not set.
            (Signal::Traces, "zipkin", true),
        ] {
            let env = env(&[(exporter(signal), list)]);
            let endpoint = env.endpoint(signal, Some(&configured)).unwrap();
            assert_eq!(endpoint.is_some(), exported, "{signal} by {list}");
        }
    }

    /// The signal's own endpoint goes over the configured one, that over the general variable; and what is
    /// switched off goes nowhere.
    #[test]
    fn each_signal_finds_its_endpoint() {
        let configured = http::Uri::from_static("http://configured:1");
        let endpoint = |vars: &[(&str, &str)], configured| {
            env(vars).endpoint(Signal::Traces, configured).unwrap()
        };
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:1");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "own:1");
        assert_eq!(endpoint(&[], None), None);
        assert_eq!(endpoint(&[general], None).unwrap(), "http://general:1");
        assert_eq!(
            endpoint(&[general], Some(&configured)).unwrap(),
            "http://configured:1/"
        );
        assert_eq!(
            endpoint(&[general, own], Some(&configured)).unwrap(),
            "https://own:1"
        );
        let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
        assert_eq!(endpoint(&[own, insecure], None).unwrap(), "http://own:1");
        for off in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_SDK_DISABLED", "True"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ] {
            assert_eq!(
                endpoint(&[off, general], Some(&configured)),
                None,
                "{off:?}"
            );
        }
    }
}
