//! The log: what is said of what happens, one line each, on standard error and, by OTLP, to a collector.
//!
//! A line is made here rather than by `tracing-subscriber`, for two reasons: it carries the trace that it
//! belongs to, and nothing in it, not a name or a message from elsewhere, can end it, or paint on a terminal.

use std::{
    fmt::{self, Debug, Write as _},
    io::{IsTerminal as _, stderr},
};

use opentelemetry::{
    Context as OtelContext,
    trace::{SpanContext, TraceContextExt as _},
};
use serde::Serialize;
use tracing::{
    Event, Level, Metadata, Subscriber, error,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterExt as _, Targets, filter_fn},
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::{Filter, SubscriberExt as _},
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt as _,
};

use crate::config::{Log, LogFormat};

/// What the libraries log for themselves is said by us once, with its cause, where it matters.
const OURS_ALONE: &str = "kube_client=off,kube_runtime=off,opentelemetry=off";

/// What an export itself makes use of, by the beginning of its target: exported, it would have no end.
const EXPORTERS_OWN: [&str; 6] = ["hyper", "h2", "tonic", "tower", "rustls", "opentelemetry"];

/// A layer of the subscriber.
pub(super) type BoxLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What is logged, which can be changed while the process runs.
#[derive(Clone, Default)]
pub struct LogLevel(Vec<reload::Handle<Targets, Registry>>);

impl LogLevel {
    /// From now on, `level` (see [`Log::level`]) says what is logged, and what of it is exported.
    pub fn set(&self, level: &str) {
        for handle in &self.0 {
            // Fails where nothing is logged any more.
            let _ = handle.reload(directives(level));
        }
    }

    /// A filter that admits events as `level` says, and no span: spans are for traces alone, and cost nothing
    /// where there are none.
    fn filter(&mut self, level: &str) -> impl Filter<Registry> + Send + Sync + 'static {
        let (filter, handle) = reload::Layer::new(directives(level));
        self.0.push(handle);
        filter.and(
            filter_fn(|event: &Metadata<'_>| event.is_event()).with_max_level_hint(Level::TRACE),
        )
    }
}

/// Checked with the configuration; the later of two directives about one target counts, so what is said there
/// of a library goes over its being silent.
fn directives(level: &str) -> Targets {
    format!("{OURS_ALONE},{level}").parse().unwrap_or_default()
}

/// Starts the log: lines on standard error and, through `export`, records to a collector. `before` is what has
/// to come before them: the layer that knows which trace is current.
///
/// Does nothing where the process logs already.
pub(super) fn start(
    log: &Log,
    before: Vec<BoxLayer>,
    export: Option<impl Layer<Registry> + Send + Sync>,
) -> LogLevel {
    let terminal = stderr().is_terminal();
    let json = match log.format {
        LogFormat::Text => false,
        LogFormat::Json => true,
        LogFormat::Auto => !terminal,
    };
    let mut level = LogLevel::default();
    let mut layers = before;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .event_format(Line {
            json,
            colour: terminal,
        })
        .with_filter(level.filter(&log.level));
    layers.push(lines.boxed());
    // Last, or records of what the other layers do would be exported, too.
    if let Some(export) = export {
        let ours = filter_fn(|event: &Metadata<'_>| !is_exporters_own(event))
            .with_max_level_hint(Level::TRACE);
        layers.push(
            export
                .with_filter(level.filter(&log.level).and(ours))
                .boxed(),
        );
    }
    if tracing_subscriber::registry()
        .with(layers)
        .try_init()
        .is_ok()
    {
        // A panic is a line of the log like any other, and names its place.
        std::panic::set_hook(Box::new(|panic| error!(%panic, "panicked")));
    }
    level
}

fn is_exporters_own(event: &Metadata<'_>) -> bool {
    EXPORTERS_OWN
        .iter()
        .any(|own| event.target().starts_with(own))
}

/// How an event becomes a line.
struct Line {
    json: bool,
    colour: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let trace = OtelContext::map_current(|context| context.span().span_context().clone());
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        if self.json {
            writeln!(out, "{}", json(&time, event, &trace))
        } else {
            writeln!(out, "{}", self.text(&time, event, &trace))
        }
    }
}

impl Line {
    /// `time LEVEL message name=value ...`
    fn text(&self, time: &str, event: &Event<'_>, trace: &SpanContext) -> String {
        let level = event.metadata().level();
        let (dim, colour, plain) = match *level {
            _ if !self.colour => ("", "", ""),
            Level::ERROR => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
            Level::WARN => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
            Level::INFO => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
            _ => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
        };
        let mut fields = Text::default();
        event.record(&mut fields);
        let mut line = format!("{dim}{time}{plain} {colour}{level:>5}{plain} ");
        for c in fields.message.chars().chain(fields.others.chars()) {
            if is_unruly(c) {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
        }
        if trace.is_valid() {
            let (trace, span) = (trace.trace_id(), trace.span_id());
            let _ = write!(line, " {dim}trace_id={trace} span_id={span}{plain}");
        }
        line
    }
}

/// An object with the fields at its top.
fn json(time: &str, event: &Event<'_>, trace: &SpanContext) -> String {
    let mut object = Json(String::from("{"));
    object.put("timestamp", time);
    object.put("level", event.metadata().level().as_str());
    event.record(&mut object);
    object.put("target", event.metadata().target());
    if trace.is_valid() {
        object.put("trace_id", trace.trace_id().to_string());
        object.put("span_id", trace.span_id().to_string());
    }
    object.0.push('}');
    object.0
}

/// Whether a character could end a line, or change how a terminal shows what is around it.
fn is_unruly(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The fields of an event as text.
#[derive(Default)]
struct Text {
    message: String,
    others: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail, a value that does not show itself is left out.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}

/// The fields of an event as JSON; a JSON object that is not closed yet.
struct Json(String);

impl Json {
    fn put(&mut self, name: &str, value: impl Serialize) {
        let Ok(value) = serde_json::to_string(&value) else {
            return;
        };
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":");
        // JSON itself demands this of some characters only.
        for c in value.chars() {
            if is_unruly(c) {
                let _ = write!(self.0, "\\u{:04x}", u32::from(c));
            } else {
                self.0.push(c);
            }
        }
    }
}

impl Visit for Json {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{io, sync::Arc};

    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
    use parking_lot::Mutex;
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

    /// What is written while `log` runs.
    fn lines(json: bool, level: &mut LogLevel, log: impl FnOnce(&LogLevel)) -> Vec<String> {
        let sink = Sink::default();
        let to = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || to.clone())
            .event_format(Line {
                json,
                colour: false,
            })
            .with_filter(level.filter("info"));
        with_default(tracing_subscriber::registry().with(layer), || log(level));
        let text = String::from_utf8(sink.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// What a user or a server chose can neither end a line nor paint on a terminal, whatever way it comes.
    #[test]
    fn no_name_can_forge_a_line() {
        let evil = "a\nb\r\x1b[31mc\u{9b}2Jd\u{2028}e\u{202e}f\x7f\0";
        for json in [false, true] {
            let lines = lines(json, &mut LogLevel::default(), |_| {
                warn!(foo = %evil, text = evil, debug = ?evil, "{evil}");
            });
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(!lines[0].contains(is_unruly), "{:?}", lines[0]);
            if json {
                let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
                for field in ["message", "foo", "text"] {
                    assert_eq!(value[field], evil, "nothing is lost");
                }
            }
        }
    }

    /// Text for people, JSON for machines; numbers stay numbers.
    #[test]
    fn both_formats_hold_the_same() {
        let log = |_: &LogLevel| info!(foo = %"ns/a", reason = Some("R"), attempt = 3, "said");
        let text = lines(false, &mut LogLevel::default(), log);
        let (time, rest) = text[0].split_once(' ').unwrap();
        assert_eq!(rest, r#" INFO said foo=ns/a reason="R" attempt=3"#);
        assert!(time.ends_with('Z'), "{time}");
        let json = lines(true, &mut LogLevel::default(), log);
        let mut value: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
        value["timestamp"] = "t".into();
        let expected = serde_json::json!({
            "timestamp": "t", "level": "INFO", "message": "said", "foo": "ns/a", "reason": "R", "attempt": 3,
            "target": "foo_controller::telemetry::log::tests",
        });
        assert_eq!(value, expected);
    }

    /// A line that belongs to a trace says to which.
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

    /// The level can be changed while the process runs, and spans are no business of the log's.
    #[test]
    fn the_level_can_be_changed() {
        let lines = lines(false, &mut LogLevel::default(), |level| {
            assert!(tracing::info_span!("s").is_disabled());
            let say = || info!("info");
            say();
            level.set("warn");
            say();
            warn!("warn");
            level.set("off,foo_controller=info");
            say();
        });
        let levels: Vec<_> = lines
            .iter()
            .map(|line| line.split(' ').next_back().unwrap())
            .collect();
        assert_eq!(levels, ["info", "warn", "info"]);
    }
}
