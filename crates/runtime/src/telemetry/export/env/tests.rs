//! Values of the variables, by the specification.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn env(vars: &[(&str, &str)]) -> Env {
    Env::new(vars.iter().map(|(name, value)| (name.into(), value.into())))
}

fn configured(endpoint: Option<&'static str>, protocol: Option<Protocol>) -> Telemetry {
    Telemetry {
        endpoint: endpoint.map(http::Uri::from_static),
        protocol,
    }
}

/// An invalid value without a safe default is rejected with a one-line message without secrets.
#[test]
fn each_refusal_is_one_clear_line() {
    for (name, value, line) in [
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization: Bearer s3cret",
            " = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=b\nc",
            " = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            // As in a Secret whose text ends with a newline.
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20s3cret%0A",
            " = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
            "a=b,authorization=100%",
            " = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
            "grpc-status=0",
            " = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://u:p@h",
            " = (hidden) (environment variable): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query",
        ),
        (
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            "ftp://h",
            r#" = "ftp://h" (environment variable): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"#,
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/json",
            r#" = "http/json" (environment variable): must be one of grpc, http/protobuf"#,
        ),
        (
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
            "HTTP/JSON ",
            r#" = "HTTP/JSON " (environment variable): must be one of grpc, http/protobuf"#,
        ),
    ] {
        let env = env(&[(name, value)]);
        let configured = if name.ends_with("ENDPOINT") {
            None
        } else {
            Some("http://h")
        };
        let refusal = match env.target(Signal::Logs, &self::configured(configured, None)) {
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
    overridden
        .target(Signal::Logs, &configured(None, None))
        .unwrap();
    overridden.warnings(&[Signal::Logs]).unwrap();
}

/// An invalid value with a safe default is ignored with a one-line warning.
#[test]
fn each_warning_is_one_clear_line() {
    for (name, value, line) in [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http",
            r#" = "http" (environment variable) is ignored: it must be one of grpc, http/protobuf"#,
        ),
        (
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
            "thrift",
            r#" = "thrift" (environment variable) is ignored: it must be one of grpc, http/protobuf"#,
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
            r#" = "console,zipkin" (environment variable): "console", "zipkin" is ignored; it must be a comma-separated list of otlp, none"#,
        ),
        (
            "OTEL_PROPAGATORS",
            "tracecontext,baggage,b3",
            r#" = "tracecontext,baggage,b3" (environment variable): "b3" is ignored; it must be a comma-separated list of tracecontext, baggage, none"#,
        ),
        (
            "OTEL_TRACES_SAMPLER",
            "a\nb",
            r#" = "a\nb" (environment variable) is ignored: it must be one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio"#,
        ),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "a=b,c",
            r#" = "a=b,c" (environment variable) is ignored: it must be a comma-separated list of name=value, percent-encoded"#,
        ),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "a=b,c=100%",
            r#" = "a=b,c=100%" (environment variable) is ignored: it must be a comma-separated list of name=value, percent-encoded"#,
        ),
    ] {
        let env = env(&[(name, value)]);
        assert_eq!(env.attributes(), [], "{name}={value}");
        let warnings = env.warnings(&Signal::ALL).unwrap();
        assert_eq!(warnings, [format!("{name}{line}")]);
    }
}

/// Rules of the specification for every variable. Case and surrounding blanks do not matter. A blank value counts as not set.
/// An unknown value, alone or in a list, is ignored with a warning. Such values do not end the program.
#[test]
fn every_variable_follows_the_specification() {
    let every = config::variables().flat_map(|Variable { name, rule, .. }| {
        let own = name.strip_prefix(OTLP).into_iter();
        let own = own.flat_map(|what| Signal::ALL.map(|signal| signal.own(what)));
        [(*name).to_owned()]
            .into_iter()
            .chain(own)
            .map(move |name| (name, rule))
    });
    for (name, known) in every {
        assert!(variable(&name).is_some(), "{name}");
        let taken = |text: &str| {
            let env = env(&[(&name, text)]);
            assert!(env.refused.is_empty(), "{name}={text:?}");
            let warnings = env.warnings(&Signal::ALL).unwrap();
            (env.set(&name).map(str::to_owned), warnings)
        };
        for unset in ["", " ", "\n", "\t \r\n"] {
            assert_eq!(taken(unset), (None, vec![]), "{name}={unset:?}");
        }
        let (good, bad): (&[&str], Option<&str>) = match known {
            Rule::Bool => (&["true", "false"], None),
            Rule::Word(words) | Rule::Words(words) => (words, Some("somethingelse")),
            Rule::Whole(..) => (&["1", "99"], Some("-1")),
            Rule::Number(..) => (&["0", "0.5", "1"], Some("NaN")),
            Rule::Text(_, "text") => (&["text"], None),
            Rule::Text(..) => (&["a=b", "a=b,c=d"], Some("a")),
            // Invalid values of these are rejected.
            Rule::File => (&["/a/File"], None),
            Rule::Secret(..) => (&["a=b"], None),
            Rule::Address => (&["http://h:1"], None),
            other => unreachable!("no variable has {other:?}"),
        };
        for good in good {
            let as_it_is = (Some((*good).to_owned()), vec![]);
            assert_eq!(taken(good), as_it_is, "{name}");
            assert_eq!(taken(&format!(" {good}\n")), as_it_is, "{name}");
            if matches!(known, Rule::Bool | Rule::Word(_) | Rule::Words(_)) {
                assert_eq!(taken(&good.to_uppercase()), as_it_is, "{name}");
            }
            if matches!(known, Rule::Words(_)) {
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
        if matches!(known, Rule::Bool) {
            let (value, warnings) = taken("1");
            assert_eq!(
                (value.as_deref(), warnings.len()),
                (Some("false"), 1),
                "{name}"
            );
        }
    }
}

/// Each default is the specification's, and valid by the rule of its row.
#[test]
fn every_default_is_of_the_specification() {
    for row in config::variables().filter(|row| !row.default.is_empty()) {
        assert!(row.rule.allows(&row.rule.value(row.default)), "{row:?}");
    }
    let unset = Env::default();
    let number = |name: String| unset.number::<usize>(&name);
    for (batches, delay) in [("BSP", 5000), ("BLRP", 1000)] {
        assert_eq!(number(format!("OTEL_{batches}_SCHEDULE_DELAY")), delay);
        assert_eq!(number(format!("OTEL_{batches}_MAX_QUEUE_SIZE")), 2048);
        let batch = number(format!("OTEL_{batches}_MAX_EXPORT_BATCH_SIZE"));
        assert_eq!(batch, 512);
    }
    let interval = unset.milliseconds("OTEL_METRIC_EXPORT_INTERVAL");
    assert_eq!(interval, Duration::from_mins(1));
    assert!(unset.propagates() && unset.headers(Signal::Logs).is_empty());
    assert!(!unset.compresses(Signal::Traces));
    assert_eq!(unset.timeout(Signal::Metrics), Duration::from_secs(10));
    assert_eq!(unset.temporality(), Temporality::Cumulative);
    let sampler = format!("{:?}", unset.sampler());
    assert_eq!(sampler, "ParentBased(AlwaysOn)");
    assert_eq!(unset.attributes(), []);
}

/// A value that is not UTF-8 is invalid.
#[test]
fn a_value_that_is_not_utf8_is_ignored() {
    use std::os::unix::ffi::OsStringExt as _;
    let env = Env::new([
        ("OTEL_SERVICE_NAME".into(), OsString::from_vec(vec![0xff])),
        ("OTEL_OF_ANOTHER".into(), OsString::from_vec(vec![0xff])),
    ]);
    assert_eq!(env.set("OTEL_SERVICE_NAME"), None);
    let warnings = env.warnings(&Signal::ALL).unwrap();
    assert_eq!(
        warnings,
        ["OTEL_SERVICE_NAME = (not UTF-8) (environment variable) is ignored: it must be text"]
    );
}

/// A file name that is not UTF-8 is rejected like an unreadable file. The system's authorities must not replace it.
#[test]
fn a_file_name_that_is_not_utf8_is_rejected() {
    use std::os::unix::ffi::OsStringExt as _;
    let name = OsString::from_vec(vec![b'/', 0xff]);
    let env = Env::new([("OTEL_EXPORTER_OTLP_CERTIFICATE".into(), name)]);
    let refusal = env.strict_for(Signal::Logs, "CERTIFICATE").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "OTEL_EXPORTER_OTLP_CERTIFICATE = (not UTF-8) (environment variable): must be a file in PEM format"
    );
}

/// A general variable does not apply if every signal overrides it. A signal's own variable applies if the signal is exported.
#[test]
fn only_used_variables_cause_warnings() {
    let vars = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "HTTP/Protobuf"),
        ("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "zstd"),
    ];
    let warnings = |signals: &[Signal]| env(&vars).warnings(signals).unwrap().len();
    assert_eq!(warnings(&[Signal::Traces, Signal::Metrics]), 0);
    assert_eq!(warnings(&Signal::ALL), 2);
}

/// Valid values are accepted.
#[test]
fn valid_values_are_accepted() {
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
    assert_eq!(right.number::<usize>("OTEL_BSP_MAX_QUEUE_SIZE"), 7);
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

/// Without `otlp` in its list of exporters, a signal is not exported.
#[test]
fn exporters_that_are_not_otlp_export_nothing() {
    let configured = configured(Some("http://configured:1"), None);
    for (signal, list, exported) in [
        (Signal::Metrics, "prometheus", false),
        (Signal::Metrics, "Prometheus,OTLP", true),
        (Signal::Metrics, "none", false),
        (Signal::Traces, "none", false),
        (Signal::Traces, "otlp,console", true),
        // As if the variable were not set.
        (Signal::Traces, "zipkin", true),
    ] {
        let env = env(&[(&exporter(signal), list)]);
        let target = env.target(signal, &configured).unwrap();
        assert_eq!(target.is_some(), exported, "{signal} by {list}");
    }
}

/// The signal's own endpoint overrides the configured one, which overrides the general variable. A disabled signal has no
/// endpoint.
#[test]
fn each_signal_finds_its_endpoint() {
    let here = Some("http://configured:1");
    let endpoint = |vars: &[(&str, &str)], endpoint| {
        let target = env(vars).target(Signal::Traces, &configured(endpoint, None));
        target.unwrap().map(|(_, address)| address)
    };
    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:1");
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "own:1");
    assert_eq!(endpoint(&[], None), None);
    assert_eq!(endpoint(&[general], None).unwrap(), "http://general:1");
    assert_eq!(endpoint(&[general], here).unwrap(), "http://configured:1/");
    assert_eq!(endpoint(&[general, own], here).unwrap(), "https://own:1");
    let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
    assert_eq!(endpoint(&[own, insecure], None).unwrap(), "http://own:1");
    for off in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_SDK_DISABLED", "True"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ] {
        assert_eq!(endpoint(&[off, general], here), None, "{off:?}");
    }
}

/// The signal's own protocol overrides the configured one, which overrides the general variable. The default is gRPC. An URL for
/// all signals is a base with OTLP/HTTP. A signal's own URL is used as it is.
#[test]
fn each_signal_finds_its_protocol() {
    const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "HTTP/protobuf");
    const OWN: (&str, &str) = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf");
    const OWN_GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc");
    let base = |url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let own = |url| ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", url);
    let http = Some(Protocol::Http);
    for (vars, configured, protocol, url) in [
        (
            &[base("http://h:1/a")][..],
            None,
            Protocol::Grpc,
            "http://h:1/a",
        ),
        (
            &[base("http://h:1")],
            http,
            Protocol::Http,
            "http://h:1/v1/logs",
        ),
        (
            &[base("http://h:1/")],
            http,
            Protocol::Http,
            "http://h:1/v1/logs",
        ),
        (
            &[base("http://h/a"), GENERAL],
            None,
            Protocol::Http,
            "http://h/a/v1/logs",
        ),
        (
            &[base("h:1/a/"), OWN],
            None,
            Protocol::Http,
            "https://h:1/a/v1/logs",
        ),
        (
            &[base("http://h:1"), OWN_GRPC],
            http,
            Protocol::Grpc,
            "http://h:1",
        ),
        (
            &[base("http://h"), GENERAL],
            Some(Protocol::Grpc),
            Protocol::Grpc,
            "http://h",
        ),
        (
            &[own("http://h:1"), base("http://i")],
            http,
            Protocol::Http,
            "http://h:1",
        ),
        // Schemes are compared without regard to case.
        (&[own("HTTPS://h:1/")], http, Protocol::Http, "https://h:1/"),
        (
            &[base("HTTPS://H:1/")],
            http,
            Protocol::Http,
            "https://H:1/v1/logs",
        ),
        (&[base("Http://h:1")], None, Protocol::Grpc, "http://h:1"),
        (
            &[own("http://h:1/logs"), GENERAL],
            None,
            Protocol::Http,
            "http://h:1/logs",
        ),
        // Overridden by the own variable.
        (
            &[
                base("http://h"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
                OWN_GRPC,
            ],
            None,
            Protocol::Grpc,
            "http://h",
        ),
    ] {
        let target = env(vars).target(Signal::Logs, &self::configured(None, configured));
        assert_eq!(
            target.unwrap().unwrap(),
            (protocol, url.to_owned()),
            "{vars:?}"
        );
    }
    let target = env(&[]).target(Signal::Traces, &configured(Some("http://h:4318"), http));
    assert_eq!(target.unwrap().unwrap().1, "http://h:4318/v1/traces");
}
