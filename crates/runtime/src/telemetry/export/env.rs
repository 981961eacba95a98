//! Values of the `OTEL_*` variables that are set. The table of settings has their names and rules ([`config::variables`]).
//!
//! The OpenTelemetry specification requires that invalid values are ignored with a warning. The SDK warns before the log
//! exists, and not about all values. So if possible, values are read here and passed to the SDK. An invalid value without a
//! safe default ends the program, as in the configuration. Only values in use are checked: without an endpoint, none.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::{self, Debug},
    str::FromStr,
    time::Duration,
};

use http::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry_sdk::{metrics::Temporality, trace::Sampler};

use crate::{
    config::{
        self,
        key_value_list::{attributes, headers},
        protocol::Protocol,
        rule::{CREDENTIALS, Rule, is_address, items},
        settings::Telemetry,
        table::{OTLP, Variable},
    },
    telemetry::error::Error,
};

/// A signal. Each signal is exported independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Logs,
    Metrics,
}

impl Signal {
    pub(crate) const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    /// Returns the name in upper case, as in the names of variables.
    const fn upper(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Logs => "LOGS",
            Self::Metrics => "METRICS",
        }
    }

    /// Returns the name of the signal's own variable, which starts with [`OTLP`].
    fn own(self, what: &str) -> String {
        format!("{OTLP}{}_{what}", self.upper())
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.upper().to_lowercase())
    }
}

/// The environment variables of OpenTelemetry. A blank value counts as not set.
#[derive(Default)]
pub(crate) struct Env {
    /// Valid values by name, normalized by the rules.
    values: BTreeMap<String, String>,
    /// Variables with an ignored value, and the warning about each.
    ignored: Vec<(String, String)>,
    /// Error messages of invalid values without a safe default, by name.
    refused: BTreeMap<String, String>,
}

impl Env {
    pub(crate) fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut env = Self::default();
        for (name, value) in vars {
            if let Ok(name) = name.into_string()
                && let Some(variable) = variable(&name)
            {
                env.take(name, variable, value);
            }
        }
        env
    }

    fn take(&mut self, name: String, variable: &Variable, value: OsString) {
        let rule = &variable.rule;
        let mut refuses = variable.is_strict();
        let (usable, shown) = match value.into_string() {
            Ok(value) if value.trim().is_empty() => return,
            Ok(value) if rule.hides(&value) || value.contains(CREDENTIALS) => {
                (usable(rule, value.trim()), "(hidden)".to_owned())
            }
            Ok(value) => {
                refuses = variable.refuses(value.trim());
                (usable(rule, value.trim()), format!("{value:?}"))
            }
            Err(_) => (Usable::Nothing, "(not UTF-8)".to_owned()),
        };
        let line = format!("{name} = {shown} (environment variable)");
        match usable {
            Usable::All(value) => _ = self.values.insert(name, value),
            Usable::Part(value, rest) => {
                let line = format!("{line}: {rest}; it must be {rule}");
                self.ignored.push((name.clone(), line));
                self.values.extend(value.map(|value| (name, value)));
            }
            Usable::Nothing if refuses => {
                self.refused.insert(name, format!("{line}: must be {rule}"));
            }
            Usable::Nothing => {
                let line = format!("{line} is ignored: it must be {rule}");
                self.ignored.push((name, line));
            }
        }
    }

    /// Returns the variable's value, if it is set and valid.
    pub(crate) fn set(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Like [`set`](Self::set), but fails for an invalid value without a safe default.
    fn strict(&self, name: &str) -> Result<Option<&str>, Error> {
        match self.refused.get(name) {
            Some(line) => Err(Error::Variable(line.clone())),
            None => Ok(self.set(name)),
        }
    }

    /// Returns the variable's value or its default.
    fn value(&self, name: &str) -> &str {
        let default = || variable(name).map_or("", |variable| variable.default);
        self.set(name).unwrap_or_else(default)
    }

    /// Returns the value of the signal's own variable, else that of `OTEL_EXPORTER_OTLP_<what>`, else the default.
    fn value_for(&self, signal: Signal, what: &str) -> &str {
        let own = self.set(&signal.own(what));
        own.unwrap_or_else(|| self.value(&format!("{OTLP}{what}")))
    }

    /// Returns the signal's own variable, else the general one, with its value; `None` if neither is set. For variables without
    /// a safe default.
    ///
    /// # Errors
    /// [`Error::Variable`] if the value is invalid.
    pub(crate) fn strict_for(
        &self,
        signal: Signal,
        what: &str,
    ) -> Result<Option<(String, &str)>, Error> {
        for name in [signal.own(what), format!("{OTLP}{what}")] {
            if let Some(value) = self.strict(&name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// Returns the protocol and the URL of the signal, if it is exported. The signal's own variables override the configured
    /// settings, which override the general variables.
    ///
    /// With [`Protocol::Http`], a URL for all signals is a base to which the path of the signal is added
    /// (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/#endpoint-urls-for-otlphttp>).
    ///
    /// # Errors
    /// [`Error::Variable`] if the endpoint is invalid or the protocol is refused.
    pub(crate) fn target(
        &self,
        signal: Signal,
        configured: &Telemetry,
    ) -> Result<Option<(Protocol, String)>, Error> {
        let mut exporters = items(self.value(&exporter(signal)));
        if self.value("OTEL_SDK_DISABLED") == "true" || !exporters.any(|name| name == "otlp") {
            return Ok(None);
        }
        let own = self.strict(&signal.own("ENDPOINT"))?;
        let base = match (own, &configured.endpoint) {
            (Some(_), _) => None,
            (None, Some(configured)) => Some(configured.to_string()),
            (None, None) => self
                .strict("OTEL_EXPORTER_OTLP_ENDPOINT")?
                .map(str::to_owned),
        };
        if own.is_none() && base.is_none() {
            return Ok(None);
        }
        let protocol = self.protocol(signal, configured.protocol)?;
        let text = match (own, base, protocol) {
            (None, Some(base), Protocol::Http) => {
                Some(format!("{}/v1/{signal}", base.trim_end_matches('/')))
            }
            (own, base, _) => own.map(str::to_owned).or(base),
        };
        let insecure = self.value_for(signal, "INSECURE") == "true";
        Ok(text.map(|text| (protocol, with_scheme(&text, insecure))))
    }

    /// Returns the protocol of the signal.
    ///
    /// The specification recommends `http/protobuf` as the default, and `grpc` for a program that had this default before
    /// (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specify-protocol>).
    fn protocol(&self, signal: Signal, configured: Option<Protocol>) -> Result<Protocol, Error> {
        let own = self.strict(&signal.own("PROTOCOL"))?;
        let text = match (own, configured) {
            (Some(own), _) => own,
            (None, Some(configured)) => return Ok(configured),
            (None, None) => {
                let general = "OTEL_EXPORTER_OTLP_PROTOCOL";
                self.strict(general)?.unwrap_or_else(|| self.value(general))
            }
        };
        Ok(parsed(text))
    }

    /// Returns a warning for each invalid variable that applies to the exported `signals`.
    ///
    /// # Errors
    /// [`Error::Variable`] if headers are invalid.
    pub(crate) fn warnings(&self, signals: &[Signal]) -> Result<Vec<String>, Error> {
        for signal in signals {
            self.strict_for(*signal, "HEADERS")?;
        }
        let counts = |name: &str| {
            let Some(what) = name.strip_prefix(OTLP) else {
                return true;
            };
            let of_one = |signal: &Signal| what.starts_with(signal.upper());
            match Signal::ALL.iter().find(|signal| of_one(signal)) {
                Some(signal) => signals.contains(signal),
                // A general variable does not apply if every signal overrides it.
                None => signals
                    .iter()
                    .any(|signal| self.set(&signal.own(what)).is_none()),
            }
        };
        let ignored = self.ignored.iter().filter(|(name, _)| counts(name));
        Ok(ignored.map(|(_, line)| line.clone()).collect())
    }

    /// Returns the time limit of one export.
    pub(crate) fn timeout(&self, signal: Signal) -> Duration {
        Duration::from_millis(parsed(self.value_for(signal, "TIMEOUT")))
    }

    /// Whether exports are compressed with gzip.
    pub(crate) fn compresses(&self, signal: Signal) -> bool {
        self.value_for(signal, "COMPRESSION") == "gzip"
    }

    /// Returns the headers of every export.
    pub(crate) fn headers(&self, signal: Signal) -> HeaderMap {
        headers(self.value_for(signal, "HEADERS")).unwrap_or_default()
    }

    pub(crate) fn number<T: FromStr<Err: Debug>>(&self, name: &str) -> T {
        parsed(self.value(name))
    }

    pub(crate) fn milliseconds(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    /// Returns the temporality of exported counters: totals or increments.
    pub(crate) fn temporality(&self) -> Temporality {
        match self.value("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE") {
            "delta" => Temporality::Delta,
            "lowmemory" => Temporality::LowMemory,
            _ => Temporality::Cumulative,
        }
    }

    pub(crate) fn sampler(&self) -> Sampler {
        let share = Sampler::TraceIdRatioBased(self.number("OTEL_TRACES_SAMPLER_ARG"));
        let by_parent = |sampler| Sampler::ParentBased(Box::new(sampler));
        match self.value("OTEL_TRACES_SAMPLER") {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => share,
            "parentbased_always_off" => by_parent(Sampler::AlwaysOff),
            "parentbased_traceidratio" => by_parent(share),
            _ => by_parent(Sampler::AlwaysOn),
        }
    }

    /// Returns configured resource attributes.
    pub(crate) fn attributes(&self) -> Vec<KeyValue> {
        let list = attributes(self.value("OTEL_RESOURCE_ATTRIBUTES")).unwrap_or_default();
        let list = list.into_iter();
        let name = self.set("OTEL_SERVICE_NAME");
        let name = name.map(|name| KeyValue::new("service.name", name.to_owned()));
        list.map(|(name, value)| KeyValue::new(name, value))
            .chain(name)
            .collect()
    }

    /// Whether requests to the API server carry the trace context.
    pub(crate) fn propagates(&self) -> bool {
        items(self.value("OTEL_PROPAGATORS")).any(|name| name == "tracecontext")
    }
}

/// Returns the variable that selects the exporter of a signal.
fn exporter(signal: Signal) -> String {
    format!("OTEL_{}_EXPORTER", signal.upper())
}

/// Returns the row of a supported variable. A signal's own variable has the row of the general one.
fn variable(name: &str) -> Option<&'static Variable> {
    config::variables().find(|row| {
        let own = |what| Signal::ALL.iter().any(|signal| signal.own(what) == name);
        row.name == name || row.name.strip_prefix(OTLP).is_some_and(own)
    })
}

/// Parses a number or a protocol that its rule has validated.
fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("the rule allows valid values alone")
}

/// Adds a missing scheme by the specification: `https`, or `http` for an insecure connection. A given scheme is returned in lower
/// case: RFC 3986, 3.1, compares schemes without regard to case.
fn with_scheme(endpoint: &str, insecure: bool) -> String {
    match (endpoint.split_once("://"), insecure) {
        (Some((scheme, rest)), _) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
        (None, true) => format!("http://{endpoint}"),
        (None, false) => format!("https://{endpoint}"),
    }
}

/// The valid part of a value.
enum Usable {
    All(String),
    /// The valid part, if any, and a message about the treatment of the rest.
    Part(Option<String>, String),
    Nothing,
}

/// Validates a value without surrounding blanks. The specification compares keywords without regard to case.
fn usable(rule: &Rule, text: &str) -> Usable {
    let one_of = |words: &[&'static str]| {
        let mut words = words.iter().copied();
        words.find(|word| word.eq_ignore_ascii_case(text))
    };
    let value = match rule {
        Rule::Bool => match one_of(&["true", "false"]) {
            None => return Usable::Part(Some("false".to_owned()), "counts as false".to_owned()),
            word => word,
        },
        Rule::Word(words) => one_of(words),
        Rule::Words(words) => return some_of(words, text),
        Rule::Address => is_address(&with_scheme(text, false)).then_some(text),
        rule => rule.allows(&rule.value(text)).then_some(text),
    };
    value.map_or(Usable::Nothing, |value| Usable::All(value.to_owned()))
}

/// Validates a list of keywords. Each keyword is valid or invalid independently.
fn some_of(words: &[&str], list: &str) -> Usable {
    let is = |item: &str, word: &str| word.eq_ignore_ascii_case(item);
    let known = words
        .iter()
        .filter(|word| items(list).any(|item| is(item, word)));
    let known = known.copied().collect::<Vec<_>>().join(",");
    let unknown = items(list).filter(|item| !words.iter().any(|word| is(item, word)));
    let unknown: Vec<_> = unknown.map(|item| format!("{item:?}")).collect();
    let known = (!known.is_empty()).then_some(known);
    match known {
        Some(known) if unknown.is_empty() => Usable::All(known),
        None if unknown.is_empty() => Usable::Nothing,
        known => Usable::Part(known, format!("{} is ignored", unknown.join(", "))),
    }
}

#[cfg(test)]
mod tests;
