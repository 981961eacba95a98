//! Counts export failures and logs outages: each cause once, with repetitions while it lasts, and the end.
//!
//! The SDK reports a failed export only by its own `tracing` events, which are recognized by name. The [client of
//! OTLP/HTTP](super::http) adds events. `tests/process/telemetry.rs`
//! detects a change of the names. A layer must not log, so it sends the events to a task.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tracing::{Event, Metadata, Subscriber, field::Visit, info, warn};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterExt as _, LevelFilter, filter_fn},
    layer::Context,
};

use super::env::Signal;
use crate::telemetry::{
    log_once::{Lasting, OutageLog, Repeat},
    metrics::{Metrics, table},
};

/// Bursts of drops with a shorter pause between them are logged as one.
const QUIET: Duration = Duration::from_mins(1);

/// Minimum interval between counts of the drops. A count costs as much as a scrape. It is needed only after the first drop.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of logged causes per outage. A collector may return a different message in each response.
const CAUSES: usize = 10;

/// An event of the SDK.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExportEvent {
    /// The collector's message about a rejected batch, or the cause of a broken request. [`Failed`](Self::Failed) follows unless
    /// the SDK repeats the request.
    Said(Signal),
    /// A batch was lost.
    Failed(Signal),
    /// A batch was accepted.
    Taken(Signal),
    /// A batch was accepted except for this number of records. The SDK reports each such batch.
    Partly(Signal, u64),
    /// The queue is full. The SDK reports only the first time, so later drops are counted.
    Dropping,
}

impl ExportEvent {
    fn of(event: &Metadata<'_>) -> Option<Self> {
        use Signal::{Logs, Metrics, Traces};
        Some(match event.name() {
            "TonicTracesClient.ExportFailed" | "HttpTracesClient.ExportFailed" => {
                Self::Said(Traces)
            }
            "TonicLogsClient.ExportFailed" | "HttpLogsClient.ExportFailed" => Self::Said(Logs),
            "TonicMetricsClient.ExportFailed" | "HttpMetricsClient.ExportFailed" => {
                Self::Said(Metrics)
            }
            "BatchSpanProcessor.ExportError" => Self::Failed(Traces),
            "BatchLogProcessor.ExportError" => Self::Failed(Logs),
            "PeriodicReader.ExportError" => Self::Failed(Metrics),
            "TonicTracesClient.ExportSucceeded" | "HttpTracesClient.ExportSucceeded" => {
                Self::Taken(Traces)
            }
            "TonicLogsClient.ExportSucceeded" | "HttpLogsClient.ExportSucceeded" => {
                Self::Taken(Logs)
            }
            "TonicMetricsClient.ExportSucceeded" | "HttpMetricsClient.ExportSucceeded" => {
                Self::Taken(Metrics)
            }
            "TonicTracesClient.PartialSuccess" | "HttpTraceClient.PartialSuccess" => {
                Self::Partly(Traces, 0)
            }
            "TonicLogsClient.PartialSuccess" | "HttpLogsClient.PartialSuccess" => {
                Self::Partly(Logs, 0)
            }
            "TonicMetricsClient.PartialSuccess" | "HttpMetricsClient.PartialSuccess" => {
                Self::Partly(Metrics, 0)
            }
            "BatchSpanProcessor.SpanDroppingStarted" | "BatchLogProcessor.LogDroppingStarted" => {
                Self::Dropping
            }
            _ => return None,
        })
    }
}

/// Number of failed exports of all signals.
#[derive(Clone, Default)]
pub(crate) struct Failures(Arc<AtomicU64>);

impl Failures {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Returns the layer that counts in `metrics` and `failures`, and starts the task that logs. Must be called within a Tokio
/// runtime.
pub(crate) fn export_events(
    metrics: Metrics,
    failures: Failures,
) -> impl Layer<Registry> + Send + Sync {
    let series = |signal: Signal| {
        let labels = [KeyValue::new("signal", signal.to_string())];
        Series {
            signal,
            lost: metrics.counter(&table::LOST, &labels),
            rejected: metrics.counter(&table::REJECTED, &labels),
            said: Mutex::default(),
        }
    };
    // Each export sends an event. Events that do not fit will be repeated.
    let (sender, mut receiver) = mpsc::channel::<(ExportEvent, String)>(64);
    let dropping = Arc::new(AtomicBool::new(false));
    let events = ExportEvents {
        sender,
        series: Signal::ALL.map(series),
        failures,
        dropping: Arc::clone(&dropping),
    };
    tokio::spawn(async move {
        let mut outages = Outages::default();
        let mut drops = Drops::default();
        while let Some((event, reason)) = receiver.recv().await {
            let now = Instant::now();
            outages.handle(event, &reason, now);
            if dropping.load(Relaxed) {
                drops.handle(|| metrics.dropped(), now);
            }
        }
    });
    let known =
        filter_fn(|event: &Metadata<'_>| event.is_event() && ExportEvent::of(event).is_some());
    events.with_filter(LevelFilter::DEBUG.and(known))
}

struct ExportEvents {
    sender: mpsc::Sender<(ExportEvent, String)>,
    series: [Series; Signal::ALL.len()],
    failures: Failures,
    /// Whether anything was ever dropped.
    dropping: Arc<AtomicBool>,
}

/// Counters of one signal.
struct Series {
    signal: Signal,
    lost: BoundCounter<u64>,
    rejected: BoundCounter<u64>,
    /// The collector's last message, which the SDK's next event lacks. An exporter runs one export at a time.
    said: Mutex<String>,
}

impl<S: Subscriber> Layer<S> for ExportEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(mut export) = ExportEvent::of(event.metadata()) else {
            return;
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let series = |wanted: Signal| self.series.iter().find(|series| series.signal == wanted);
        // Counted here, because events that do not fit into the channel must be counted too.
        match &mut export {
            ExportEvent::Said(signal) => {
                if let Some(series) = series(*signal) {
                    *series.said.lock() = fields.text;
                }
                return;
            }
            ExportEvent::Failed(signal) => {
                self.failures.0.fetch_add(1, Relaxed);
                if let Some(series) = series(*signal) {
                    series.lost.add(1);
                    let said = std::mem::take(&mut *series.said.lock());
                    fields.text = cause(&fields.text, &said);
                }
            }
            ExportEvent::Partly(signal, rejected) => {
                *rejected = fields.rejected;
                if let Some(series) = series(*signal) {
                    series.rejected.add(fields.rejected);
                }
            }
            ExportEvent::Dropping => self.dropping.store(true, Relaxed),
            ExportEvent::Taken(signal) => {
                // An earlier attempt failed.
                if let Some(series) = series(*signal) {
                    series.said.lock().clear();
                }
            }
        }
        let _ = self.sender.try_send((export, fields.text));
    }
}

/// The fields of an event, by the SDK's names.
#[derive(Default)]
struct Fields {
    text: String,
    rejected: u64,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        if let "error" | "error_message" | "grpc_message" = field.name() {
            self.text = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &tracing::field::Field, value: i64) {
        if field.name().starts_with("rejected_") {
            self.rejected = u64::try_from(value).unwrap_or_default();
        }
    }
}

/// Current outages.
#[derive(Default)]
struct Outages {
    now: Vec<Outage>,
    /// Causes of partly accepted batches.
    partly: OutageLog,
}

/// An outage of the signals of one collector, which fail for the same causes.
struct Outage {
    causes: Vec<String>,
    signals: Vec<Signal>,
    since: Instant,
    repeat: Repeat,
    batches: u32,
}

impl Outages {
    fn handle(&mut self, event: ExportEvent, reason: &str, now: Instant) {
        match event {
            ExportEvent::Failed(signal) => {
                if let Some(lasting) = self.failed(signal, reason, now) {
                    warn!(%signal, "cannot export: {reason}: data is dropped, reconciling continues{lasting}");
                }
            }
            ExportEvent::Taken(signal) => {
                if let Some((outage, lost)) = self.taken(signal, now) {
                    info!(%signal, ?outage, lost_batches = lost, "the collector takes exports again");
                }
            }
            ExportEvent::Partly(signal, rejected) => {
                let reason = brief(reason);
                if self.took_partly(signal, &reason) {
                    if rejected == 0 {
                        warn!(%signal, "the collector warns about an export: {reason}");
                    } else {
                        warn!(%signal, rejected, "collector rejected part of an export: {reason}");
                    }
                }
            }
            ExportEvent::Said(_) | ExportEvent::Dropping => {}
        }
    }

    /// Records a failure. Returns the duration of the outage if it must be logged: the cause is new, or a repetition is due.
    fn failed(&mut self, signal: Signal, cause: &str, now: Instant) -> Option<Lasting> {
        let had = |outage: &Outage| outage.causes.iter().any(|known| known == cause);
        let is_new = !self.now.iter().any(had);
        let mut outages = self.now.iter();
        let at = outages.position(|outage| outage.signals.contains(&signal));
        let at = at.or_else(|| self.now.iter().position(had));
        let Some(outage) = at.and_then(|at| self.now.get_mut(at)) else {
            self.now.push(Outage {
                causes: vec![cause.to_owned()],
                signals: vec![signal],
                since: now,
                repeat: Repeat::new(now),
                batches: 1,
            });
            return is_new.then_some(Lasting(Duration::ZERO));
        };
        outage.batches += 1;
        if !outage.signals.contains(&signal) {
            outage.signals.push(signal);
        }
        let logs = is_new && outage.causes.len() < CAUSES;
        if logs {
            outage.causes.push(cause.to_owned());
        }
        (logs || outage.repeat.is_due(now)).then(|| Lasting(now - outage.since))
    }

    /// Records a partly accepted batch. Returns whether to log it.
    fn took_partly(&mut self, signal: Signal, reason: &str) -> bool {
        self.partly.is_new(&format!("{signal}: {reason}"))
    }

    /// Records an accepted batch. If it ends an outage, returns the outage's duration and the number of lost batches.
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

/// Spans and log records that were dropped because the queues were full.
#[derive(Default)]
struct Drops {
    /// The total, and the part of it that belongs to ended bursts.
    count: u64,
    over: u64,
    /// Time of the last growth in the current burst.
    grew: Option<Instant>,
    /// Time of the last count.
    checked: Option<Instant>,
}

#[derive(Debug, PartialEq)]
enum Drop {
    Begins,
    /// Number of drops in the burst.
    Ended(u64),
}

impl Drops {
    fn handle(&mut self, count: impl FnOnce() -> u64, now: Instant) {
        if self
            .checked
            .is_some_and(|checked| now - checked < COUNT_INTERVAL)
        {
            return;
        }
        self.checked = Some(now);
        match self.counted(count(), now) {
            Some(Drop::Begins) => warn!(
                "collector too slow: queue full, dropping (counted as queue_full in otel_sdk_processor_*_processed_total)"
            ),
            Some(Drop::Ended(dropped)) => info!(dropped, "export queue recovered"),
            None => {}
        }
    }

    /// Returns the change to log for a new total.
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

/// Returns the cause of a failure: without the SDK's prefixes, which differ by signal, and with the collector's message.
fn cause(reason: &str, said: &str) -> String {
    let reason = reason.strip_prefix("Operation failed: ").unwrap_or(reason);
    let (_, reported) = reason.split_once("gRPC code: ").unwrap_or(("", reason));
    if said.is_empty() || reported.contains(said) {
        brief(reported)
    } else {
        brief(&format!("{reported}: {said}"))
    }
}

fn brief(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests;
