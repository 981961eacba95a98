//! Spans and log records of one trace, as a tree for tests and as text.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::fmt::{self, Display};

use super::received::{Attributes, LogRecord, Received, Span};

/// One trace. Spans and log records are sorted by time.
#[derive(Debug)]
pub struct Trace<'a> {
    pub spans: Vec<&'a Span>,
    pub logs: Vec<&'a LogRecord>,
}

impl Received {
    /// Returns all traces, by the start of their first span.
    pub fn traces(&self) -> Vec<Trace<'_>> {
        let mut spans: Vec<_> = self.spans.iter().collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        let mut traces: Vec<Trace<'_>> = Vec::new();
        for span in spans {
            match traces.iter_mut().find(|it| it.id() == span.trace_id) {
                Some(trace) => trace.spans.push(span),
                None => traces.push(Trace {
                    spans: vec![span],
                    logs: self.logs_of(&span.trace_id),
                }),
            }
        }
        traces
    }

    /// Returns the traces whose root is named `reconcile` and has an attribute with the value `name`.
    pub fn reconciles(&self, name: &str) -> Vec<Trace<'_>> {
        let mut traces = self.traces();
        traces.retain(|trace| {
            trace.roots().any(|root| {
                root.name == "reconcile" && root.attributes.values().any(|it| it == name)
            })
        });
        traces
    }

    /// Returns the log records of a trace, by time.
    pub fn logs_of(&self, trace_id: &str) -> Vec<&LogRecord> {
        let of_it = |log: &&LogRecord| log.trace_id == trace_id;
        let mut logs: Vec<_> = self.logs.iter().filter(of_it).collect();
        logs.sort_by_key(|log| log.observed_time_unix_nano);
        logs
    }
}

impl<'a> Trace<'a> {
    pub fn id(&self) -> &'a str {
        &self.spans[0].trace_id
    }

    /// Returns the spans without a parent. A complete trace that began in this process has exactly one.
    pub fn roots(&self) -> impl Iterator<Item = &'a Span> {
        let spans = self.spans.iter().copied();
        spans.filter(|span| span.parent_span_id.is_empty())
    }

    /// Returns the spans whose parent has not arrived or belongs to another process.
    pub fn orphans(&self) -> impl Iterator<Item = &'a Span> {
        let has_parent = |span: &&Span| {
            self.spans
                .iter()
                .any(|it| it.span_id == span.parent_span_id)
        };
        let spans = self.spans.iter().copied();
        spans.filter(move |span| !span.parent_span_id.is_empty() && !has_parent(span))
    }

    /// Returns the spans whose parent is `span`, by start.
    pub fn children(&self, span: &Span) -> impl Iterator<Item = &'a Span> {
        let spans = self.spans.iter().copied();
        spans.filter(move |it| it.parent_span_id == span.span_id)
    }

    /// Returns the log records of a span.
    pub fn logs_in(&self, span: &Span) -> impl Iterator<Item = &'a LogRecord> {
        let logs = self.logs.iter().copied();
        logs.filter(move |it| it.span_id == span.span_id)
    }

    /// Returns each span with its depth, parents before children. Orphans have depth 0, like roots.
    pub fn walk(&self) -> Vec<(usize, &'a Span)> {
        let tops = self.roots().chain(self.orphans());
        let mut stack: Vec<_> = tops.map(|top| (0, top)).collect();
        stack.reverse();
        let mut walked = Vec::new();
        while let Some((depth, span)) = stack.pop() {
            walked.push((depth, span));
            let from = stack.len();
            stack.extend(self.children(span).map(|child| (depth + 1, child)));
            stack[from..].reverse();
        }
        walked
    }
}

/// Formats the tree: a line for each span (name, duration, error, attributes, links), followed by its log records.
impl Display for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "trace {}", self.id())?;
        for (depth, span) in self.walk() {
            let indent = 2 * depth;
            writeln!(f, "{:indent$}{}  {}", "", span.name, details(span))?;
            for log in self.logs_in(span) {
                writeln!(f, "{:indent$}  > {}", "", line(log))?;
            }
        }
        Ok(())
    }
}

/// Formats the details of a span, without its name.
pub fn details(span: &Span) -> String {
    let duration = format!("{:.1} ms", span.duration().as_secs_f64() * 1e3);
    let error = span.error().map(|error| format!("ERROR {error}"));
    let links = span.links.iter().map(|it| format!("link={}", it.trace_id));
    let parts = [duration].into_iter().chain(error);
    let parts = parts.chain(shown(&span.attributes)).chain(links);
    parts.collect::<Vec<_>>().join("  ")
}

/// Formats a log record as one line.
pub fn line(log: &LogRecord) -> String {
    let parts = [log.severity_text.clone(), plain(&log.body)];
    let parts = parts.into_iter().chain(shown(&log.attributes));
    parts.collect::<Vec<_>>().join("  ")
}

/// Formats the attributes, without source locations and thread names.
fn shown(attributes: &Attributes) -> impl Iterator<Item = String> {
    const NOISE: [&str; 6] = ["code.", "thread.", "target", "level", "busy_ns", "idle_ns"];
    let is_shown = |(name, _): &(&String, _)| !NOISE.iter().any(|it| name.starts_with(it));
    let shown = attributes.iter().filter(is_shown);
    shown.map(|(name, value)| format!("{name}={}", plain(value)))
}

fn plain(value: &serde_json::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
