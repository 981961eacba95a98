//! The `OTEL_*` variables: which there are, what they may be, and those that the SDK does not read itself.
//!
//! The SDK takes what is malformed for what is not set, and says so where nobody listens yet. Here every
//! variable has a rule, and the first one that breaks its rule ends the program, as a key of the configuration
//! does. Only what is going to be used is looked at: without an endpoint, nothing.

use std::{collections::BTreeMap, ffi::OsString, fmt, time::Duration};

use http::{HeaderName, HeaderValue};

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
    /// One of these.
    One(&'static [&'static str]),
    /// Some of these, with commas between them.
    Some(&'static [&'static str]),
    /// A whole number from 1 to this.
    Whole(u64),
    /// A number from 0 to 1.
    Ratio,
    /// `name=value` with commas between them, fit for HTTP headers; secret.
    Headers,
    /// `name=value` with commas between them.
    Pairs,
    /// Where a collector is.
    Address,
    /// Anything; files are read when they are needed.
    Text,
}

const DAY: u64 = 86_400_000;
const QUEUE: u64 = 100_000;
const SWITCH: Rule = Rule::One(&["true", "false"]);
const EXPORTER: Rule = Rule::One(&["otlp", "none"]);
const OTLP: &str = "OTEL_EXPORTER_OTLP_";

/// All that have an effect. Those that start with [`OTLP`] exist for each signal, too, and go over the general
/// one there: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.
#[rustfmt::skip]
pub(super) const VARIABLES: &[Variable] = &[
    Variable { name: "OTEL_SDK_DISABLED", rule: SWITCH },
    Variable { name: "OTEL_TRACES_EXPORTER", rule: EXPORTER },
    Variable { name: "OTEL_LOGS_EXPORTER", rule: EXPORTER },
    Variable { name: "OTEL_METRICS_EXPORTER", rule: EXPORTER },
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

/// The environment, as far as it concerns OpenTelemetry. Empty is unset.
pub(super) struct Env(BTreeMap<String, String>);

impl Env {
    /// # Errors
    /// [`Error::Variable`], where one that is known is not UTF-8.
    pub fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Error> {
        let ours = vars.into_iter().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            (name.starts_with("OTEL_") && !value.is_empty()).then_some((name, value))
        });
        ours.map(|(name, value)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(Error::Variable(format!(
                "{name} (environment variable): not UTF-8"
            ))),
        })
        .collect::<Result<_, _>>()
        .map(Self)
    }

    /// The variable's value, if it is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The signal's own variable, or else the general one, `OTEL_EXPORTER_OTLP_<what>`: its name and its value.
    pub fn of(&self, signal: Signal, what: &str) -> Option<(String, &str)> {
        let own = format!("{OTLP}{}_{what}", signal.upper());
        let general = format!("{OTLP}{what}");
        [own, general].into_iter().find_map(|name| {
            let value = self.get(&name)?;
            Some((name, value))
        })
    }

    /// Where the signal goes, if anywhere: `endpoint` goes over the general variable, the signal's own over that.
    ///
    /// # Errors
    /// [`Error::Variable`], for what decides it.
    pub fn endpoint(
        &self,
        signal: Signal,
        endpoint: Option<&http::Uri>,
    ) -> Result<Option<String>, Error> {
        let exporter = format!("OTEL_{}_EXPORTER", signal.upper());
        self.check("OTEL_SDK_DISABLED")?;
        self.check(&exporter)?;
        if self.get("OTEL_SDK_DISABLED") == Some("true") || self.get(&exporter) == Some("none") {
            return Ok(None);
        }
        let own = format!("{OTLP}{}_ENDPOINT", signal.upper());
        let text = match (self.get(&own), endpoint) {
            (None, Some(configured)) => Some(configured.to_string()),
            (own, _) => own
                .or(self.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
                .map(str::to_owned),
        };
        let insecure = self
            .of(signal, "INSECURE")
            .is_some_and(|(_, value)| value == "true");
        Ok(text.map(|text| with_scheme(&text, insecure)))
    }

    /// Checks every variable that counts where `signals` are exported.
    ///
    /// # Errors
    /// [`Error::Variable`], for the first that is not what it must be.
    pub fn check_all(&self, signals: &[Signal]) -> Result<(), Error> {
        for Variable { name, .. } in VARIABLES {
            self.check(name)?;
            for signal in signals {
                if let Some(what) = name.strip_prefix(OTLP) {
                    self.check_as(&format!("{OTLP}{}_{what}", signal.upper()), name)?;
                }
            }
        }
        Ok(())
    }

    /// How long one export may take.
    pub fn timeout(&self, signal: Signal) -> Duration {
        let text = self.of(signal, "TIMEOUT").map(|(_, value)| value);
        Duration::from_millis(text.and_then(|text| text.parse().ok()).unwrap_or(10_000))
    }

    /// Whether the API server is told of our traces.
    pub fn propagates(&self) -> bool {
        let list = self.get("OTEL_PROPAGATORS").unwrap_or("tracecontext");
        list.split(',').any(|name| name.trim() == "tracecontext")
    }

    fn check(&self, name: &str) -> Result<(), Error> {
        self.check_as(name, name)
    }

    /// Checks the variable `name` by the rule of `known`.
    fn check_as(&self, name: &str, known: &str) -> Result<(), Error> {
        let Some(value) = self.get(name) else {
            return Ok(());
        };
        let Some(Variable { rule, .. }) = VARIABLES.iter().find(|var| var.name == known) else {
            return Ok(());
        };
        if rule.allows(value) {
            return Ok(());
        }
        let secret = matches!(rule, Rule::Headers) || value.contains(['@', '?', '#']);
        let shown = if secret {
            "(hidden)".to_owned()
        } else {
            format!("{value:?}")
        };
        Err(Error::Variable(format!(
            "{name} = {shown} (environment variable): must be {rule}"
        )))
    }
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
    fn allows(&self, text: &str) -> bool {
        let pairs = |fits: fn(&str, &str) -> bool| {
            let mut pairs = text.split_terminator(',').map(|pair| pair.split_once('='));
            pairs.all(|pair| pair.is_some_and(|(name, value)| fits(name.trim(), value.trim())))
        };
        match self {
            Self::One(words) => words.contains(&text),
            Self::Some(words) => text.split(',').all(|word| words.contains(&word.trim())),
            Self::Whole(most) => text.parse().is_ok_and(|n: u64| (1..=*most).contains(&n)),
            Self::Ratio => text.parse().is_ok_and(|n: f64| (0.0..=1.0).contains(&n)),
            Self::Headers => pairs(|name, value| {
                let fits =
                    HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
                fits && !value.is_empty()
            }),
            Self::Pairs => pairs(|name, _| !name.is_empty()),
            Self::Address => is_address(&with_scheme(text, false)),
            Self::Text => true,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One([word]) => f.write_str(word),
            Self::One(words) => write!(f, "one of {}", words.join(", ")),
            Self::Some(words) => write!(f, "some of {}, with commas between them", words.join(", ")),
            Self::Whole(most) => write!(f, "a whole number from 1 to {most}"),
            Self::Ratio => f.write_str("a number from 0 to 1"),
            Self::Headers => f.write_str("name=value, with commas between them, as HTTP headers can be"),
            Self::Pairs => f.write_str("name=value, with commas between them"),
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
        Env::new(vars.iter().map(|(name, value)| (name.into(), value.into()))).unwrap()
    }

    /// What is not what it must be is refused in one line that says so, headers without their values.
    #[test]
    fn each_mistake_is_one_clear_line() {
        for (name, value, line) in [
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "http/protobuf",
                r#" = "http/protobuf" (environment variable): must be grpc"#,
            ),
            (
                "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
                "http/json",
                r#" = "http/json" (environment variable): must be grpc"#,
            ),
            (
                "OTEL_TRACES_SAMPLER_ARG",
                "2",
                r#" = "2" (environment variable): must be a number from 0 to 1"#,
            ),
            (
                "OTEL_BSP_MAX_QUEUE_SIZE",
                "many",
                r#" = "many" (environment variable): must be a whole number from 1 to 100000"#,
            ),
            (
                "OTEL_METRIC_EXPORT_INTERVAL",
                "0",
                r#" = "0" (environment variable): must be a whole number from 1 to 86400000"#,
            ),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization: Bearer s3cret",
                " = (hidden) (environment variable): must be name=value, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "a=b\nc",
                " = (hidden) (environment variable): must be name=value, with commas between them, as HTTP headers can be",
            ),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "http://u:p@h",
                " = (hidden) (environment variable): must be http:// or https:// with a host, perhaps a port and a path, and no credentials or query",
            ),
            (
                "OTEL_SDK_DISABLED",
                "yes",
                r#" = "yes" (environment variable): must be one of true, false"#,
            ),
            (
                "OTEL_METRICS_EXPORTER",
                "prometheus",
                r#" = "prometheus" (environment variable): must be one of otlp, none"#,
            ),
            (
                "OTEL_PROPAGATORS",
                "b3",
                r#" = "b3" (environment variable): must be some of tracecontext, baggage, none, with commas between them"#,
            ),
            (
                "OTEL_TRACES_SAMPLER",
                "a\nb",
                r#" = "a\nb" (environment variable): must be one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio"#,
            ),
        ] {
            let refusal = env(&[(name, value)]).check_all(&Signal::ALL).unwrap_err();
            assert_eq!(refusal.to_string(), format!("{name}{line}"));
        }
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
                "deployment.environment=test,team=",
            ),
            ("OTEL_PROPAGATORS", "tracecontext,baggage"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "500"),
            ("OTEL_SDK_DISABLED", ""),
            ("OTEL_SOMETHING_ELSE", "is nobody's business"),
        ]);
        right.check_all(&Signal::ALL).unwrap();
        assert!(right.propagates());
        assert_eq!(right.timeout(Signal::Metrics), Duration::from_millis(500));
        assert_eq!(right.timeout(Signal::Logs), Duration::from_secs(10));
        assert!(!env(&[("OTEL_PROPAGATORS", "none")]).propagates());
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
            ("OTEL_TRACES_EXPORTER", "none"),
        ] {
            assert_eq!(
                endpoint(&[off, general], Some(&configured)),
                None,
                "{off:?}"
            );
        }
    }

    /// The README lists every variable with what it may be, and no other.
    #[test]
    fn readme_lists_every_variable() {
        let readme =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
        let row = |Variable { name, rule }: &Variable| match rule {
            Rule::Address => format!("| `{name}` | an address | "),
            rule => format!("| `{name}` | {rule} | "),
        };
        let expected: Vec<String> = VARIABLES.iter().map(row).collect();
        let rows = readme.lines().filter(|line| line.starts_with("| `OTEL_"));
        let found: Vec<&str> = rows
            .map(|line| &line[..line.match_indices(" | ").nth(1).unwrap().0 + 3])
            .collect();
        assert_eq!(found, expected);
    }
}
