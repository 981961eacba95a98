//! The log: one line per event on standard error, and log records to a collector by OTLP.
//!
//! The lines are formatted here and not by `tracing-subscriber`, for two reasons. They carry the IDs of their trace. And no
//! name or message from outside can end a line or send escape sequences to a terminal.

pub(crate) mod stderr;

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

use super::log::stderr::Lines;
use crate::config::{
    app::App,
    log_filter::Directives,
    settings::{Log, LogFormat},
};

/// Libraries whose own log lines are off by default: this crate logs their errors once, with the cause, if they matter.
const OURS_ALONE: [&str; 3] = ["kube_client", "kube_runtime", "opentelemetry"];

/// First part of the log targets of the crates that the export uses. Exporting their lines would cause further exports, without
/// end.
const EXPORTERS_OWN: [&str; 10] = [
    "hyper",
    "hyper_util",
    "h2",
    "tonic",
    "tower",
    "rustls",
    "opentelemetry",
    "opentelemetry_sdk",
    "opentelemetry-otlp",
    "opentelemetry-proto",
];

pub(super) type BoxLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Handle to change the log level at runtime.
#[derive(Clone, Default)]
pub struct LogLevel {
    handles: Vec<reload::Handle<Targets, Registry>>,
    /// The application's crates.
    crates: &'static [&'static str],
}

impl LogLevel {
    /// Sets the `level` (see [`Log::level`]) of the log and of the exported log records.
    pub fn set(&self, level: &str) {
        for handle in &self.handles {
            // Fails if the subscriber no longer exists.
            let _ = handle.reload(self.directives(level));
        }
    }

    /// Returns a filter that admits events by `level` and no spans. Spans are for traces only, and cost nothing if traces are
    /// off.
    fn filter(&mut self, level: &str) -> impl Filter<Registry> + Send + Sync + 'static {
        let (filter, handle) = reload::Layer::new(self.directives(level));
        self.handles.push(handle);
        filter.and(
            filter_fn(|event: &Metadata<'_>| event.is_event()).with_max_level_hint(Level::TRACE),
        )
    }

    /// Parses `level`. A directive for a library or a prefix of its name (`kube`) overrides the default that silences it. The
    /// application's crates are never silent by default, even if their names begin like a library's.
    fn directives(&self, level: &str) -> Targets {
        // Validated with the configuration.
        let directives: Directives = level.parse().unwrap_or_default();
        let directives = directives.of_application(self.crates);
        directives.filter(&OURS_ALONE, self.crates)
    }
}

/// Starts the log: lines on standard error and, with `export`, records to a collector. `before` are layers that must run first,
/// such as the layer that sets the current trace.
///
/// Does nothing if the process has a subscriber already.
pub(super) fn start(
    app: &App,
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
    let mut level = LogLevel {
        crates: app.crates,
        ..LogLevel::default()
    };
    let mut layers = before;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Lines)
        .event_format(Line {
            json,
            colour: terminal,
        })
        .with_filter(level.filter(&log.level));
    layers.push(lines.boxed());
    // Last, so that events of the other layers are not exported.
    if let Some(export) = export {
        let ours = filter_fn(|event: &Metadata<'_>| !is_exporters_own(event.target()))
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
        // A panic is logged as one line with its location.
        std::panic::set_hook(Box::new(|panic| error!(%panic, "panicked")));
    }
    level
}

fn is_exporters_own(target: &str) -> bool {
    let name = target.split("::").next();
    name.is_some_and(|name| EXPORTERS_OWN.contains(&name))
}

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

/// Formats an event as a flat JSON object.
fn json(time: &str, event: &Event<'_>, trace: &SpanContext) -> String {
    let mut object = Json::default();
    object.put("timestamp", time);
    let level = event.metadata().level();
    object.put("level", level.as_str());
    object.put("severity", severity(*level));
    event.record(&mut object);
    object.put("target", event.metadata().target());
    if trace.is_valid() {
        object.put("trace_id", trace.trace_id().to_string());
        object.put("span_id", trace.span_id().to_string());
    }
    object.finish()
}

/// Returns the level in Google Cloud Logging's terms. Without it, Cloud Logging treats every line of standard error as an
/// error.
fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        _ => "DEBUG",
    }
}

/// Whether a character can end a line, or change how a terminal displays the text around it.
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
        // Writing to a `String` cannot fail. A value whose `Debug` fails is left out.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}

/// Keys that a field of an event cannot use.
const RESERVED: [&str; 6] = [
    "timestamp",
    "level",
    "severity",
    "target",
    "trace_id",
    "span_id",
];

/// The fields of an event as an unclosed JSON object.
#[derive(Default)]
struct Json {
    text: String,
    /// Keys of the event's own fields.
    fields: Vec<String>,
}

impl Json {
    /// Adds a field of the event. If its key is in use, the key gets the prefix `fields.`: with duplicate keys, some JSON
    /// parsers keep the first and some the last.
    fn field(&mut self, name: &str, value: impl Serialize) {
        let mut key = name.to_owned();
        while RESERVED.contains(&&*key) || self.fields.contains(&key) {
            key.insert_str(0, "fields.");
        }
        self.put(&key, value);
        self.fields.push(key);
    }

    fn put(&mut self, key: &str, value: impl Serialize) {
        let (Ok(key), Ok(value)) = (serde_json::to_string(key), serde_json::to_string(&value))
        else {
            return;
        };
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        // JSON requires escapes for only some of these characters.
        for c in key.chars().chain([':']).chain(value.chars()) {
            if is_unruly(c) {
                let _ = write!(self.text, "\\u{:04x}", u32::from(c));
            } else {
                self.text.push(c);
            }
        }
    }

    fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

impl Visit for Json {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field.name(), value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field.name(), value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field.name(), value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field.name(), value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.field(field.name(), value);
    }
}

#[cfg(test)]
mod tests;
