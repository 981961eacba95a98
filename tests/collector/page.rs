//! Traces as a page to look at: a waterfall for each, in one HTML file without script that needs nothing else.

use std::fmt::Write as _;

use super::{
    received::Span,
    trace::{Trace, details, line},
};

const STYLE: &str = "
body { font: 14px system-ui, sans-serif; margin: 2em; }
summary { cursor: pointer; padding: .3em 0; font-weight: bold; }
.row { display: grid; grid-template-columns: 22em 1fr; gap: 1em; border-top: 1px solid #ddd; padding: .2em 0; }
.lane { position: relative; }
.bar { position: absolute; height: 1.2em; min-width: 2px; background: #48a; border-radius: 2px; }
.error { background: #c33; }
.text { padding-top: 1.3em; font: 12px ui-monospace, monospace; color: #555; overflow-wrap: anywhere; white-space: pre-wrap; }
";

/// The page; the first trace is unfolded.
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

fn heading(trace: &Trace<'_>) -> String {
    let name = trace.roots().next().map_or("", |root: &Span| &root.name);
    format!("{name}, trace {}", trace.id())
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
