//! What goes wrong with the export, said once: when a collector fails, and when it is well again.
//!
//! The SDK tells of every failed export in events of its own, by name; they are the only way to know, and
//! `tests/telemetry.rs` holds the names. A layer hands them to a task, since a layer must not log.

use std::{fmt::Debug, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tracing::{Event, Metadata, Subscriber, field::Visit, info, warn};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterExt as _, LevelFilter, filter_fn},
    layer::Context,
};

use super::env::Signal;

/// What an event of the SDK's says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum News {
    /// A batch was lost, for the reason in this field.
    Failed(Signal, &'static str),
    /// A batch was taken.
    Taken(Signal),
    /// A batch was taken in part, for the reason in this field. The SDK says so each time.
    Partly(Signal, &'static str),
    /// The queue is full. The SDK says so once.
    Dropping(Signal),
}

impl News {
    fn of(event: &Metadata<'_>) -> Option<Self> {
        use Signal::{Logs, Metrics, Traces};
        Some(match event.name() {
            "BatchSpanProcessor.ExportError" => Self::Failed(Traces, "error"),
            "BatchLogProcessor.ExportError" => Self::Failed(Logs, "error"),
            "PeriodicReader.ExportError" => Self::Failed(Metrics, "error"),
            "TonicTracesClient.ExportSucceeded" => Self::Taken(Traces),
            "TonicLogsClient.ExportSucceeded" => Self::Taken(Logs),
            "TonicMetricsClient.ExportSucceeded" => Self::Taken(Metrics),
            "TonicTracesClient.PartialSuccess" => Self::Partly(Traces, "error_message"),
            "TonicLogsClient.PartialSuccess" => Self::Partly(Logs, "error_message"),
            "TonicMetricsClient.PartialSuccess" => Self::Partly(Metrics, "error_message"),
            "BatchSpanProcessor.SpanDroppingStarted" => Self::Dropping(Traces),
            "BatchLogProcessor.LogDroppingStarted" => Self::Dropping(Logs),
            _ => return None,
        })
    }
}

/// The layer that listens, and the task that speaks. Must be called within a Tokio runtime.
pub(super) fn listen() -> impl Layer<Registry> + Send + Sync {
    // Each export makes one; what does not fit will be repeated.
    let (sender, mut receiver) = mpsc::channel::<(News, String)>(64);
    tokio::spawn(async move {
        let mut outages = Outages::default();
        while let Some((news, reason)) = receiver.recv().await {
            outages.hear(news, &reason, Instant::now());
        }
    });
    let known = filter_fn(|event: &Metadata<'_>| event.is_event() && News::of(event).is_some());
    Ear(sender).with_filter(LevelFilter::DEBUG.and(known))
}

struct Ear(mpsc::Sender<(News, String)>);

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(news) = News::of(event.metadata()) else {
            return;
        };
        let mut reason = Reason {
            field: "",
            text: String::new(),
        };
        if let News::Failed(_, field) | News::Partly(_, field) = news {
            reason.field = field;
            event.record(&mut reason);
        }
        let _ = self.0.try_send((news, reason.text));
    }
}

/// The value of one field.
struct Reason {
    field: &'static str,
    text: String,
}

impl Visit for Reason {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        if field.name() == self.field {
            self.text = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// What is failing, and since when.
#[derive(Default)]
struct Outages {
    now: Vec<Outage>,
    partly: Vec<Signal>,
}

/// Signals that go to one collector fail for one cause.
struct Outage {
    cause: String,
    signals: Vec<Signal>,
    since: Instant,
    batches: u32,
}

impl Outages {
    fn hear(&mut self, news: News, reason: &str, now: Instant) {
        match news {
            News::Failed(signal, _) => {
                if let Some(cause) = self.failed(signal, reason, now) {
                    warn!(%signal, "cannot export: {cause}; the work goes on, and what is not taken is lost");
                }
            }
            News::Taken(signal) => {
                if let Some((outage, lost)) = self.taken(signal, now) {
                    info!(%signal, ?outage, lost_batches = lost, "the collector takes exports again");
                }
            }
            News::Partly(signal, _) => {
                if !self.partly.contains(&signal) {
                    self.partly.push(signal);
                    warn!(%signal, "the collector takes only part of what is exported: {}", brief(reason));
                }
            }
            News::Dropping(signal) => {
                warn!(
                    %signal,
                    "the collector is too slow: what the queue has no room for is dropped, and counted as \
                     queue_full in otel_sdk_processor_*_processed_total"
                );
            }
        }
    }

    /// The cause, if it is to be told.
    fn failed(&mut self, signal: Signal, reason: &str, now: Instant) -> Option<String> {
        let cause = cause(reason);
        let known = self
            .now
            .iter_mut()
            .find(|outage| outage.signals.contains(&signal));
        if let Some(outage) = known {
            outage.batches += 1;
            return None;
        }
        if let Some(outage) = self.now.iter_mut().find(|outage| outage.cause == cause) {
            outage.batches += 1;
            outage.signals.push(signal);
            return None;
        }
        self.now.push(Outage {
            cause: cause.clone(),
            signals: vec![signal],
            since: now,
            batches: 1,
        });
        Some(cause)
    }

    /// How long the outage was that ends with this, and how many batches it cost.
    fn taken(&mut self, signal: Signal, now: Instant) -> Option<(Duration, u32)> {
        let at = self
            .now
            .iter()
            .position(|outage| outage.signals.contains(&signal))?;
        let outage = &mut self.now[at];
        outage.signals.retain(|other| *other != signal);
        if !outage.signals.is_empty() {
            return None;
        }
        let outage = self.now.swap_remove(at);
        Some((now - outage.since, outage.batches))
    }
}

/// Without the SDK's own words before it, which differ by signal.
fn cause(reason: &str) -> String {
    let (_, told) = reason.split_once("gRPC code: ").unwrap_or(("", reason));
    brief(told)
}

fn brief(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Three signals that fail for one cause, again and again, are one line, and one line when all are well.
    #[test]
    fn an_outage_is_told_once() {
        let mut outages = Outages::default();
        let start = Instant::now();
        let reason = |signal: Signal| {
            format!("Operation failed: {signal} export failed with gRPC code: Unavailable: refused")
        };
        let mut told = Vec::new();
        for second in 0..100 {
            for signal in Signal::ALL {
                let now = start + Duration::from_secs(second);
                told.extend(outages.failed(signal, &reason(signal), now));
            }
        }
        assert_eq!(told, ["Unavailable: refused"]);
        let end = start + Duration::from_secs(100);
        assert_eq!(outages.taken(Signal::Logs, end), None);
        assert_eq!(outages.taken(Signal::Traces, end), None);
        assert_eq!(
            outages.taken(Signal::Metrics, end),
            Some((end - start, 300))
        );
        assert_eq!(
            outages.taken(Signal::Metrics, end),
            None,
            "nothing was wrong"
        );
        assert!(
            outages
                .failed(Signal::Logs, &reason(Signal::Logs), end)
                .is_some(),
            "a new outage"
        );
    }

    /// A collector that has no use for metrics does not hide what happens to traces.
    #[test]
    fn another_cause_is_another_outage() {
        let mut outages = Outages::default();
        let now = Instant::now();
        assert!(
            outages
                .failed(Signal::Metrics, "gRPC code: Unimplemented", now)
                .is_some()
        );
        assert!(
            outages
                .failed(Signal::Traces, "gRPC code: Unavailable", now)
                .is_some()
        );
        assert!(outages.taken(Signal::Traces, now).is_some());
    }
}
