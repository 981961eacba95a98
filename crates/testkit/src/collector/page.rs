//! Traces as a self-contained HTML page without scripts: one waterfall for each.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::trace::{Trace, details, line};

const STYLE: &str = "
body { font: 14px system-ui, sans-serif; margin: 2em; }
summary { cursor: pointer; padding: .3em 0; font-weight: bold; }
.row { display: grid; grid-template-columns: 22em 1fr; gap: 1em; border-top: 1px solid #ddd; padding: .2em 0; }
.lane { position: relative; }
.bar { position: absolute; height: 1.2em; min-width: 2px; background: #48a; border-radius: 2px; }
.error { background: #c33; }
.text { padding-top: 1.3em; font: 12px ui-monospace, monospace; color: #555; overflow-wrap: anywhere; white-space: pre-wrap; }
";

/// Returns the page. The first trace is expanded.
pub fn page(title: &str, traces: &[Trace<'_>]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{0}</title>\n\
         <style>{STYLE}</style>\n<h1>{0}</h1>\n",
        escape(title)
    );
    for (number, trace) in traces.iter().enumerate() {
        let open = if number == 0 { " open" } else { "" };
        let _ = writeln!(html, "<details{open}>{}</details>", waterfall(trace));
    }
    html
}

fn waterfall(trace: &Trace<'_>) -> String {
    let walk = trace.walk();
    let spans = || walk.iter().map(|(_, span)| *span);
    let start = spans().map(|span| span.start_time_unix_nano).min();
    let end = spans().map(|span| span.end_time_unix_nano).max();
    let start = start.unwrap_or_default();
    let whole = end.unwrap_or_default().saturating_sub(start).max(1);
    #[allow(clippy::cast_precision_loss, reason = "a picture")]
    let percent = |nanos: u64| nanos as f64 / whole as f64 * 100.0;

    let mut html = format!("<summary>{}</summary>\n", escape(&heading(trace)));
    for (depth, span) in walk {
        let _ = write!(
            html,
            "<div class=\"row\"><div style=\"padding-left:{depth}em\">{}</div><div class=\"lane\">\
             <div class=\"bar{}\" style=\"left:{:.2}%;width:{:.2}%\"></div><div class=\"text\">{}",
            escape(&span.name),
            span.error().map_or("", |_| " error"),
            percent(span.start_time_unix_nano - start),
            percent(span.end_time_unix_nano - span.start_time_unix_nano),
            escape(&details(span)),
        );
        for log in trace.logs_in(span) {
            let _ = write!(html, "<br>&gt; {}", escape(&line(log)));
        }
        html += "</div></div></div>\n";
    }
    html
}

/// Returns the heading: start, trigger and outcome of a reconcile, or the name of another trace.
fn heading(trace: &Trace<'_>) -> String {
    let Some(root) = trace.roots().next() else {
        return format!("trace {}", trace.id());
    };
    let begun = Timestamp::from_nanosecond(root.start_time_unix_nano.into()).unwrap_or_default();
    let begun = begun.strftime("%H:%M:%S%.3f");
    let of_root = |name: &str| root.attributes.get(name).and_then(Value::as_str);
    let Some(trigger) = of_root("reconcile.trigger") else {
        return format!("{begun}  {}", root.name);
    };
    let woken = match (trigger, of_root("reconcile.changed")) {
        ("change", Some(kind)) => format!("{kind} changed"),
        ("change", None) => "something changed".to_owned(),
        ("takeover", _) => "a new leader".to_owned(),
        ("status", _) => "its status was due".to_owned(),
        (other, _) => other.to_owned(),
    };
    let decided = root.events.iter();
    let decided = decided.filter_map(|event| event.attributes.get("decision")?.as_str());
    let failed = root.error().map(|error| format!("failed: {error}"));
    let outcome: Vec<_> = decided.map(str::to_owned).chain(failed).collect();
    format!("{begun}  {woken}: {}", outcome.join(", "))
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
