#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{io, sync::Arc};

use http::{Request, Response};
use kube::client::Body;
use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use tower::{BoxError, service_fn};
use tracing::{info, subscriber::with_default, warn};

use super::*;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that are written while `log` runs.
fn lines(json: bool, level: &mut LogLevel, log: impl FnOnce(&LogLevel)) -> Vec<String> {
    lines_at("info", json, level, log)
}

/// Like [`lines`], with `log.level` as in `text`.
fn lines_at(
    text: &str,
    json: bool,
    level: &mut LogLevel,
    log: impl FnOnce(&LogLevel),
) -> Vec<String> {
    let sink = Sink::default();
    let to = sink.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || to.clone())
        .event_format(Line {
            json,
            colour: false,
        })
        .with_filter(level.filter(text));
    with_default(tracing_subscriber::registry().with(layer), || log(level));
    let text = String::from_utf8(sink.0.lock().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A name from a user or a server cannot end a line or send escape sequences, as message or as field.
#[test]
fn no_name_can_forge_a_line() {
    let evil = "a\nb\r\x1b[31mc\u{9b}2Jd\u{2028}e\u{202e}f\x7f\0";
    for json in [false, true] {
        let lines = lines(json, &mut LogLevel::default(), |_| {
            warn!(thing = %evil, text = evil, debug = ?evil, "{evil}");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(!lines[0].contains(is_unruly), "{:?}", lines[0]);
        if json {
            let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
            for field in ["message", "thing", "text"] {
                assert_eq!(value[field], evil, "nothing is lost");
            }
        }
    }
}

/// Both formats contain the same fields. In JSON, numbers stay numbers.
#[test]
fn both_formats_contain_the_same_fields() {
    let log = |_: &LogLevel| info!(thing = %"ns/a", reason = Some("R"), attempt = 3, "said");
    let text = lines(false, &mut LogLevel::default(), log);
    let (time, rest) = text[0].split_once(' ').unwrap();
    assert_eq!(rest, r#" INFO said thing=ns/a reason="R" attempt=3"#);
    assert!(time.ends_with('Z'), "{time}");
    let json = lines(true, &mut LogLevel::default(), log);
    let mut value: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    value["timestamp"] = "t".into();
    let expected = serde_json::json!({
        "timestamp": "t", "level": "INFO", "severity": "INFO", "message": "said", "thing": "ns/a", "reason": "R", "attempt": 3,
        "target": "operator_runtime::telemetry::log::tests",
    });
    assert_eq!(value, expected);
}

/// Google Cloud Logging reads the severity of a line from its field `severity`.
#[test]
fn a_line_has_its_severity() {
    let lines = lines_at("trace", true, &mut LogLevel::default(), |_| {
        error!("");
        warn!("");
        info!("");
        tracing::debug!("");
        tracing::trace!("");
    });
    let severity = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["severity"].as_str().unwrap().to_owned()
    };
    let severities: Vec<_> = lines.iter().map(severity).collect();
    assert_eq!(severities, ["ERROR", "WARNING", "INFO", "DEBUG", "DEBUG"]);
}

/// A line of a trace carries the IDs of trace and span.
#[test]
fn a_line_names_its_trace() {
    let context = SpanContext::new(
        TraceId::from(1),
        SpanId::from(2),
        TraceFlags::SAMPLED,
        false,
        TraceState::NONE,
    );
    let _guard = OtelContext::new()
        .with_remote_span_context(context)
        .attach();
    let (trace, span) = (format!("{:032x}", 1), format!("{:016x}", 2));
    let text = lines(false, &mut LogLevel::default(), |_| info!("said"));
    assert!(
        text[0].ends_with(&format!(" INFO said trace_id={trace} span_id={span}")),
        "{text:?}"
    );
    let json = lines(true, &mut LogLevel::default(), |_| info!("said"));
    let value: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!(
        (&value["trace_id"], &value["span_id"]),
        (&trace.into(), &span.into())
    );
}

/// The level can be changed at runtime. The log never enables spans.
#[test]
fn the_level_can_be_changed() {
    // `is_disabled` would depend on the subscribers of other tests in this process.
    let span = with_default(tracing_subscriber::registry(), || {
        tracing::info_span!("s").metadata().unwrap()
    });
    let filter = LogLevel::default().filter("trace");
    assert!(filter.callsite_enabled(span).is_never());
    let lines = lines(false, &mut LogLevel::default(), |level| {
        let say = || info!("info");
        say();
        level.set("warn");
        say();
        warn!("warn");
        level.set("off,operator_runtime=info");
        say();
    });
    let levels: Vec<_> = lines
        .iter()
        .map(|line| line.split(' ').next_back().unwrap())
        .collect();
    assert_eq!(levels, ["info", "warn", "info"]);
}

proptest! {
    /// A `log.level` is rejected, or it logs errors, or it contains `off`.
    #[test]
    fn an_accepted_level_logs_errors_unless_it_is_off(
        parts in prop::collection::vec(
            (
                prop::sample::select(vec!["", " ", "\n", "\r\n", "\t "]),
                prop::sample::select(vec![
                    "info", "WARN", "error", "debug", "trace", "off", "kube=debug", "kube = trace", "kube=off", "loud",
                    "operator_runtime=warn", "an_operator", "an_operator=off", "[{a}]=info", "=info", "kube=", "",
                ]),
                prop::sample::select(vec!["", " ", "\n", "\r\n", "\t "]),
            ),
            1..4,
        )
    ) {
        let parts: Vec<String> = parts.into_iter().map(|(before, part, after)| format!("{before}{part}{after}")).collect();
        let text = parts.join(",");
        if text.parse::<Directives>().is_ok() && !text.contains("off") {
            let lines = lines_at(&text, false, &mut LogLevel::default(), |_| error!("said"));
            prop_assert_eq!(lines.len(), 1, "{:?}", text);
        }
    }

    /// The keys of a line are unique and no field is missing, for all names of fields.
    #[test]
    fn no_key_is_in_a_line_twice(
        names in prop::collection::vec(
            prop_oneof![
                any::<String>(),
                prop::sample::select(&RESERVED[..]).prop_map(str::to_owned),
                prop::sample::select(vec!["message", "a", "fields.a", "fields.level", "a\"b", "\u{2028}"])
                    .prop_map(str::to_owned),
            ],
            0..8,
        )
    ) {
        let mut object = Json::default();
        object.put("timestamp", "t");
        object.put("level", "INFO");
        object.put("severity", "INFO");
        for name in &names {
            object.field(name, 1);
        }
        object.put("target", "t");
        object.put("trace_id", "t");
        object.put("span_id", "t");
        let line = object.finish();
        let mut keys = keys(&line);
        prop_assert_eq!(keys.len(), RESERVED.len() + names.len());
        keys.sort_unstable();
        keys.dedup();
        prop_assert_eq!(keys.len(), RESERVED.len() + names.len(), "{}", line);
        prop_assert!(!line.contains(is_unruly));
    }
}

/// The keys of a JSON object, duplicates included.
fn keys(line: &str) -> Vec<String> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut keys = Vec::new();
            while let Some((key, IgnoredAny)) = map.next_entry()? {
                keys.push(key);
            }
            Ok(keys)
        }
    }
    let mut line = serde_json::Deserializer::from_str(line);
    line.deserialize_map(Keys).unwrap()
}

/// A field with a reserved name does not change the meaning of that key.
#[test]
fn a_field_does_not_replace_a_reserved_key() {
    let json = lines(true, &mut LogLevel::default(), |_| {
        info!(
            level = "debug",
            severity = "low",
            timestamp = 1,
            target = "there",
            trace_id = 2,
            span_id = 3,
            "said"
        );
    });
    let mut keys = keys(&json[0]);
    keys.sort_unstable();
    let expected = [
        "fields.level",
        "fields.severity",
        "fields.span_id",
        "fields.target",
        "fields.timestamp",
        "fields.trace_id",
        "level",
        "message",
        "severity",
        "target",
        "timestamp",
    ];
    assert_eq!(keys, expected);
    let value: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!(
        (&value["level"], &value["fields.level"]),
        (&"INFO".into(), &"debug".into())
    );
}

/// The log lines of kube's client for a request that the API server rejects.
fn lines_of_kube(level: &str) -> Vec<String> {
    let lines = lines_at(level, true, &mut LogLevel::default(), |_| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let refusal = service_fn(async |_: Request<Body>| {
                let refusal = Response::builder().status(404);
                Ok::<_, BoxError>(refusal.body(Body::from(b"no".to_vec())).unwrap())
            });
            let client = kube::Client::new(refusal, "default");
            let request = Request::get("/api/v1").body(Vec::new()).unwrap();
            client.request_text(request).await.unwrap_err();
        });
    });
    let kubes = |line: &String| line.contains(r#""target":"kube_"#);
    lines.into_iter().filter(kubes).collect()
}

/// As documented: `kube` stands for the crates of kube, which are silent by default.
#[test]
fn kube_logs_only_at_its_configured_level() {
    for level in [
        "info,kube=debug",
        "kube=debug",
        "off, kube = debug",
        "info,kube_client=debug",
        "info,kube_client::client=debug",
    ] {
        let lines = lines_of_kube(level);
        assert!(!lines.is_empty(), "{level}");
    }
    for level in ["info", "trace", "info,kube=off", "debug,kube_runtime=debug"] {
        let lines = lines_of_kube(level);
        assert!(lines.is_empty(), "{level}: {lines:?}");
    }
}

/// Crates are distinguished by their whole names. The rules for a library do not apply to a crate whose name only begins alike.
#[test]
fn a_crate_that_is_called_like_a_library_logs() {
    let mut level = LogLevel {
        crates: &["opentelemetry_operator"],
        ..LogLevel::default()
    };
    let lines = lines(false, &mut level, |_| {
        warn!(target: "opentelemetry_operator::thing", "ours");
        warn!(target: "opentelemetry_sdk", "the library's");
        warn!(target: "opentelemetry-otlp", "the library's");
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let own = ["h2::codec", "hyper_util::client", "opentelemetry-otlp"];
    assert!(own.into_iter().all(is_exporters_own));
    let others = ["h2x::codec", "tower_x", "opentelemetry_operator::thing"];
    assert!(!others.into_iter().any(is_exporters_own));
}
