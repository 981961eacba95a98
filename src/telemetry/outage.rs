//! What goes wrong with the export, counted and said once: when a collector fails, and when it is well again.
//!
//! The SDK tells of every failed export in events of its own, by name; they are the only way to know, and
//! `tests/telemetry.rs` holds the names. A layer hands them to a task, since a layer must not log.

use std::{fmt::Debug, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use tokio::{sync::mpsc, time::Instant};
use tracing::{Event, Metadata, Subscriber, field::Visit, info, warn};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterExt as _, LevelFilter, filter_fn},
    layer::Context,
};

use super::{
    env::Signal,
    metrics::{Metrics, table},
};

/// Bursts with less than this between them are told as one.
const QUIET: Duration = Duration::from_mins(1);

/// What an event of the SDK's says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum News {
    /// A batch was lost, for the reason in this field.
    Failed(Signal, &'static str),
    /// A batch was taken.
    Taken(Signal),
    /// A batch was taken in part, for the reason in this field. The SDK says so each time.
    Partly(Signal, &'static str),
    /// The queue is full. The SDK says so once in its life; its count is looked at with all other news.
    Dropping,
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
            "BatchSpanProcessor.SpanDroppingStarted" | "BatchLogProcessor.LogDroppingStarted" => {
                Self::Dropping
            }
            _ => return None,
        })
    }
}

/// The layer that listens and counts in `metrics`, and the task that speaks. Must be called within a Tokio
/// runtime.
pub(super) fn listen(metrics: Metrics) -> impl Layer<Registry> + Send + Sync {
    let lost = Signal::ALL.map(|signal| {
        let labels = [KeyValue::new("signal", signal.to_string())];
        (signal, metrics.counter(&table::LOST, &labels))
    });
    // Each export makes one; what does not fit will be repeated.
    let (sender, mut receiver) = mpsc::channel::<(News, String)>(64);
    tokio::spawn(async move {
        let mut outages = Outages::default();
        let mut drops = Drops::default();
        while let Some((news, reason)) = receiver.recv().await {
            let now = Instant::now();
            outages.hear(news, &reason, now);
            drops.hear(metrics.dropped(), now);
        }
    });
    let known = filter_fn(|event: &Metadata<'_>| event.is_event() && News::of(event).is_some());
    Ear { sender, lost }.with_filter(LevelFilter::DEBUG.and(known))
}

struct Ear {
    sender: mpsc::Sender<(News, String)>,
    lost: [(Signal, BoundCounter<u64>); Signal::ALL.len()],
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(news) = News::of(event.metadata()) else {
            return;
        };
        // Here, since what the channel has no room for counts, too.
        if let News::Failed(failed, _) = news {
            let lost = self.lost.iter().filter(|(signal, _)| *signal == failed);
            lost.for_each(|(_, lost)| lost.add(1));
        }
        let mut reason = Reason {
            field: "",
            text: String::new(),
        };
        if let News::Failed(_, field) | News::Partly(_, field) = news {
            reason.field = field;
            event.record(&mut reason);
        }
        let _ = self.sender.try_send((news, reason.text));
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
            News::Dropping => {}
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

/// What the queues have no room for: spans and log records together.
#[derive(Default)]
struct Drops {
    /// The count, and how much of it belongs to what is over.
    count: u64,
    over: u64,
    /// When the count last grew, as long as that is not over.
    grew: Option<Instant>,
}

#[derive(Debug, PartialEq)]
enum Drop {
    Begins,
    /// So many were dropped.
    Ended(u64),
}

impl Drops {
    fn hear(&mut self, count: u64, now: Instant) {
        match self.counted(count, now) {
            Some(Drop::Begins) => warn!(
                "the collector is too slow: what the queue has no room for is dropped, and counted as \
                 queue_full in otel_sdk_processor_*_processed_total"
            ),
            Some(Drop::Ended(dropped)) => info!(dropped, "nothing is dropped any more"),
            None => {}
        }
    }

    /// What is to be told of the count.
    fn counted(&mut self, count: u64, now: Instant) -> Option<Drop> {
        if count > self.count {
            self.count = count;
            return self.grew.replace(now).is_none().then_some(Drop::Begins);
        }
        if now - self.grew? < QUIET {
            return None;
        }
        self.grew = None;
        let dropped = self.count - std::mem::replace(&mut self.over, self.count);
        Some(Drop::Ended(dropped))
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

    /// Drops are told when they begin and when they are over, burst or not, and each time anew.
    #[test]
    fn drops_are_told_once_each_time() {
        let mut drops = Drops::default();
        let start = Instant::now();
        let mut at = |second, count| drops.counted(count, start + Duration::from_secs(second));
        assert_eq!(at(0, 0), None);
        assert_eq!(at(1, 1), Some(Drop::Begins));
        assert_eq!(at(2, 1), None);
        assert_eq!(at(60, 5), None, "the same");
        assert_eq!(at(119, 5), None);
        assert_eq!(at(120, 5), Some(Drop::Ended(5)));
        assert_eq!(at(600, 5), None);
        assert_eq!(at(601, 7), Some(Drop::Begins));
        assert_eq!(at(661, 7), Some(Drop::Ended(2)));
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
