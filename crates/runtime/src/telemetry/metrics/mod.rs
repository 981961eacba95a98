//! The instruments, with the names that dashboards use ([`SECTIONS`]).
//!
//! The instruments of the SDK serve both `/metrics` and OTLP. The text formats are written in `exposition.rs`:
//! `opentelemetry-prometheus` cannot write `OpenMetrics`, and the SDK keeps no exemplars. The SDK reports a histogram only
//! after its first record. So `/metrics` has every series from the start, and OTLP has a histogram only once it has a value.

mod exposition;
#[cfg(feature = "operator")]
mod process;
pub(crate) mod requests;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod timer;

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{BoundCounter, BoundGauge, Counter, Meter, MeterProvider as _},
};
#[cfg(feature = "operator")]
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        Instrument, InstrumentKind, ManualReader, MeterProviderBuilder, Pipeline, SdkMeterProvider,
        Stream, Temporality, data::ResourceMetrics, reader::MetricReader,
    },
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

#[cfg(feature = "operator")]
use super::{export::bounded::Bounded, log::stderr};
use crate::config::{app::App, build_info};
#[cfg(feature = "operator")]
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ScopeMetrics, SumDataPoint};

use self::{exposition::Format, timer::BOUNDS};
pub use self::{
    table::{Kind, Metric, SECTIONS},
    timer::{Timer, number},
};

/// Counters of the SDK for items that have left the queues before the export.
#[cfg(feature = "operator")]
const PROCESSED: [&str; 2] = [
    "otel.sdk.processor.span.processed",
    "otel.sdk.processor.log.processed",
];

/// All instruments; clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    app: &'static App,
    meter: Meter,
    reader: Arc<ManualReader>,
    /// All timers, with their exemplars. `/metrics` has their series from the start.
    timers: Mutex<Vec<Timer>>,
    /// The callbacks of [`Metrics::observe`], for [`Metrics::values`].
    #[cfg(feature = "testing")]
    observed: Mutex<Vec<(&'static Metric, Observed)>>,
    /// Calls of [`Metrics::dropped`].
    #[cfg(test)]
    counted: std::sync::atomic::AtomicUsize,
}

/// Callback that reads the values of a metric.
#[cfg(feature = "testing")]
type Observed = Arc<dyn Fn(&mut dyn FnMut(f64, &[KeyValue])) + Send + Sync>;

impl Metrics {
    /// Creates the instruments and their provider. A scrape and the export by `otlp` read the same instruments. For
    /// `crate::internals`.
    #[cfg(feature = "operator")]
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        app: &'static App,
        resource: Resource,
        otlp: Option<opentelemetry_sdk::metrics::PeriodicReader<Bounded<MetricExporter>>>,
    ) -> (Self, SdkMeterProvider) {
        let mut provider = SdkMeterProvider::builder().with_resource(resource);
        if let Some(otlp) = otlp {
            provider = provider.with_reader(otlp);
        }
        let (metrics, provider) = Self::build(app, provider);
        for (metric, read) in process::readings() {
            metrics.observe(metric, move |see| {
                // A value that cannot be read is left out.
                if let Some(value) = read() {
                    see(value, &[]);
                }
            });
        }
        metrics.observe(&table::LOG_LINES_LOST, |see| {
            see(number(stderr::lost()), &[]);
        });
        (metrics, provider)
    }

    fn build(app: &'static App, provider: MeterProviderBuilder) -> (Self, SdkMeterProvider) {
        let reader = Arc::new(ManualReader::default());
        let provider = provider
            .with_reader(Pull(Arc::clone(&reader)))
            .with_view(one_series(app))
            .build();
        let metrics = Self(Arc::new(Shared {
            app,
            meter: provider.meter(app.name),
            reader,
            timers: Mutex::default(),
            #[cfg(feature = "testing")]
            observed: Mutex::default(),
            #[cfg(test)]
            counted: std::sync::atomic::AtomicUsize::new(0),
        }));
        let build = [
            KeyValue::new("revision", build_info::commit().unwrap_or("unknown")),
            KeyValue::new("version", app.version),
        ];
        metrics.observe(&table::BUILD_INFO, move |see| see(1., &build));
        // Captured here: the export reads on a separate thread without a runtime.
        if let Ok(runtime) = Handle::try_current() {
            metrics.observe(&table::TOKIO_TASKS, move |see| {
                see(number(runtime.metrics().num_alive_tasks() as u64), &[]);
            });
        }
        (metrics, provider)
    }

    /// Returns all metrics as a content type and a body: `OpenMetrics` with exemplars if `accept` names it, otherwise
    /// Prometheus' text format.
    #[must_use]
    pub fn scrape(&self, accept: Option<&str>) -> (&'static str, String) {
        let format = Format::asked_for(accept.unwrap_or_default());
        let mut metrics = ResourceMetrics::default();
        // Fails after the shutdown of the provider. The body then contains only the series of the timers.
        let _ = self.0.reader.collect(&mut metrics);
        let text = exposition::write(&metrics, &self.0.timers.lock(), format);
        (format.content_type(), text)
    }

    /// Returns the value of the first label and the value of each series whose metric name ends with `name`. Reads only metrics
    /// with a callback ([`observe`](Self::observe)). A scrape reads all metrics, and takes a hundred times as long.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for (metric, observed) in &*self.0.observed.lock() {
            if metric.template.ends_with(name) {
                observed(&mut |value, labels| {
                    let label = labels.first().map(|label| label.value.to_string());
                    values.push((label.unwrap_or_default(), value));
                });
            }
        }
        values
    }

    /// Returns the SDK's count of spans and log records that were dropped because an export queue was full.
    #[cfg(feature = "operator")]
    pub(super) fn dropped(&self) -> u64 {
        #[cfg(test)]
        self.0
            .counted
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut metrics = ResourceMetrics::default();
        let _ = self.0.reader.collect(&mut metrics);
        let metrics = metrics.scope_metrics().flat_map(ScopeMetrics::metrics);
        let full = KeyValue::new("error.type", "queue_full");
        metrics
            .filter(|metric| PROCESSED.contains(&metric.name()))
            .filter_map(|metric| match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => Some(sum.data_points()),
                _ => None,
            })
            .flatten()
            .filter(|point| point.attributes().any(|attribute| *attribute == full))
            .map(SumDataPoint::value)
            .sum()
    }

    /// Returns the number of calls of [`Self::dropped`].
    #[cfg(test)]
    pub(super) fn times_counted(&self) -> usize {
        self.0.counted.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns one series of a counter, which starts at 0.
    pub fn counter(&self, metric: &'static Metric, labels: &[KeyValue]) -> BoundCounter<u64> {
        metric.check(labels);
        let counter = self.labelled(metric).bind(labels);
        counter.add(0);
        counter
    }

    /// Returns a counter for labels that are not known in advance.
    fn labelled(&self, metric: &'static Metric) -> Counter<u64> {
        let counter = self.0.meter.u64_counter(metric.name(self.0.app));
        counter
            .with_unit(metric.unit)
            .with_description(metric.help)
            .build()
    }

    /// Returns one series of a gauge, which starts at 0.
    pub fn gauge(&self, metric: &'static Metric, labels: &[KeyValue]) -> BoundGauge<u64> {
        metric.check(labels);
        let gauge = self
            .0
            .meter
            .u64_gauge(metric.name(self.0.app))
            .with_unit(metric.unit)
            .with_description(metric.help)
            .build()
            .bind(labels);
        gauge.record(0);
        gauge
    }

    /// Returns one series of a histogram of durations.
    #[must_use]
    pub fn timer(&self, metric: &'static Metric, labels: &[KeyValue]) -> Timer {
        metric.check(labels);
        let labels_text = Arc::<str>::from(exposition::labels(labels.iter()));
        let mut timers = self.0.timers.lock();
        let same = |timer: &&Timer| timer.metric == metric && timer.labels == labels_text;
        if let Some(timer) = timers.iter().find(same) {
            return timer.clone();
        }
        let histogram = self
            .0
            .meter
            .f64_histogram(metric.name(self.0.app))
            .with_unit(metric.unit)
            .with_description(metric.help)
            .with_boundaries(BOUNDS.to_vec())
            .build()
            .bind(labels);
        let timer = Timer {
            metric,
            name: metric.name(self.0.app).into(),
            labels: labels_text,
            histogram,
            exemplars: Arc::default(),
        };
        timers.push(timer.clone());
        timer
    }

    /// Registers a counter or a gauge whose values are read on each scrape and export. `callback` passes the value and labels
    /// of each series to its argument.
    pub fn observe(
        &self,
        metric: &'static Metric,
        callback: impl Fn(&mut dyn FnMut(f64, &[KeyValue])) + Send + Sync + 'static,
    ) {
        let meter = &self.0.meter;
        #[cfg(feature = "testing")]
        let callback = {
            let callback: Observed = Arc::new(callback);
            self.0.observed.lock().push((metric, Arc::clone(&callback)));
            callback
        };
        if metric.kind == Kind::Counter {
            meter
                .f64_observable_counter(metric.name(self.0.app))
                .with_unit(metric.unit)
                .with_description(metric.help)
                .with_callback(move |see| callback(&mut |value, labels| see.observe(value, labels)))
                .build();
        } else {
            meter
                .f64_observable_gauge(metric.name(self.0.app))
                .with_unit(metric.unit)
                .with_description(metric.help)
                .with_callback(move |see| callback(&mut |value, labels| see.observe(value, labels)))
                .build();
        }
    }
}

/// Limits the metrics of the table that have no labels to one series. For each instrument and reader, the SDK reserves memory for
/// 2,000 series by default: 132 KiB. It writes to 4 KiB of them.
fn one_series(app: &App) -> impl Fn(&Instrument) -> Option<Stream> + Send + Sync + 'static {
    let metrics = table::SECTIONS.iter().flat_map(|(_, metrics)| *metrics);
    let names: HashSet<String> = metrics
        .filter(|metric| metric.labels.is_empty())
        .map(|metric| metric.name(app))
        .collect();
    move |instrument| {
        let limited = Stream::builder().with_cardinality_limit(1);
        let is_one = names.contains(instrument.name());
        is_one.then(|| limited.build().ok()).flatten()
    }
}

impl Metrics {
    /// Creates instruments that are not exported. [`scrape`](Self::scrape) reads them, for an HTTP server of your own.
    #[must_use]
    pub fn disconnected(app: &'static App) -> Self {
        let resource = Resource::builder_empty().build();
        Self::build(app, SdkMeterProvider::builder().with_resource(resource)).0
    }

    /// Returns the application that the instruments belong to.
    #[must_use]
    pub fn app(&self) -> &'static App {
        self.0.app
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Pull(Arc<ManualReader>);

impl MetricReader for Pull {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
