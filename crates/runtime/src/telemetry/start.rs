//! Start and end of the telemetry of a process.

use std::time::Duration;

use futures::future::join_all;
use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::{
    error::OTelSdkError,
    logs::{BatchConfigBuilder as LogBatches, BatchLogProcessor, SdkLoggerProvider},
    metrics::{PeriodicReader, SdkMeterProvider},
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder as SpanBatches, BatchSpanProcessor, SdkTracerProvider},
};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{Level, Metadata, info, warn};
use tracing_subscriber::{Layer as _, filter::filter_fn, layer::Identity};

use super::{
    error::Error,
    export::{
        self, Exporters, Way,
        bounded::Runtime,
        env::Env,
        outage::{self, Failures},
        resource,
    },
    log::{self, LogLevel, stderr},
    metrics::Metrics,
};
use crate::config::{
    app::App,
    environment::Host,
    settings::{Config, Log},
};

/// Maximum duration of the final export.
const FLUSH: Duration = Duration::from_secs(5);

/// Minimum duration of the final export, granted even if draining the work has used up the shutdown time.
const SHORTEST_FLUSH: Duration = Duration::from_millis(500);

/// Returns the export target of each signal that is exported.
///
/// # Errors
/// The errors of [`Telemetry::start`].
pub(crate) fn ways(host: &Host, config: &Config) -> Result<Vec<Way>, Error> {
    export::ways(&Env::new(host.variables()), &config.telemetry)
}

/// Starts the log on standard error, without an export.
///
/// # Errors
/// [`Error::Stderr`].
pub(crate) fn log_only(app: &'static App, log: &Log) -> Result<(), Error> {
    stderr::start().map_err(Error::Stderr)?;
    log::start(app, log, Vec::new(), None::<Identity>);
    Ok(())
}

/// The running telemetry: instruments, log level and export.
pub struct Telemetry {
    metrics: Metrics,
    level: LogLevel,
    meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    failures: Failures,
    _exports: Exports,
}

/// Closes the exports on drop, before the Tokio runtime ends.
struct Exports(Runtime);

impl Drop for Exports {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Telemetry {
    /// Starts the log, and the export if an endpoint is configured. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// An `OTEL_*` variable, the address of the collector or standard error cannot be used. An unreachable collector is not an error.
    pub fn start(app: &'static App, host: &Host, config: &Config) -> Result<Self, Error> {
        stderr::start().map_err(Error::Stderr)?;
        let env = Env::new(host.variables());
        let exporters = Exporters::new(&env, &config.telemetry)?;
        let resource = resource::resource(app, host, env.attributes());

        // Before the other providers: they count their dropped items with the global meter provider.
        let reader = exporters.metrics.map(|exporter| {
            let interval = env.milliseconds("OTEL_METRIC_EXPORT_INTERVAL");
            PeriodicReader::builder(exporter)
                .with_interval(interval)
                .build()
        });
        let exports = reader.is_some() || exporters.traces.is_some() || exporters.logs.is_some();
        let (metrics, meters) = Metrics::new(app, resource.clone(), reader);
        global::set_meter_provider(meters.clone());

        let traces = exporters.traces.map(|exporter| {
            let batches = SpanBatches::default()
                .with_scheduled_delay(env.milliseconds("OTEL_BSP_SCHEDULE_DELAY"))
                .with_max_queue_size(env.number("OTEL_BSP_MAX_QUEUE_SIZE"))
                .with_max_export_batch_size(env.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"));
            let processor =
                BatchSpanProcessor::builder(exporter).with_batch_config(batches.build());
            SdkTracerProvider::builder()
                .with_resource(resource.clone())
                .with_sampler(env.sampler())
                .with_span_processor(processor.build())
                .build()
        });
        if traces.is_some() && env.propagates() {
            global::set_text_map_propagator(TraceContextPropagator::new());
        }
        let logs = exporters.logs.map(|exporter| {
            let batches = LogBatches::default()
                .with_scheduled_delay(env.milliseconds("OTEL_BLRP_SCHEDULE_DELAY"))
                .with_max_queue_size(env.number("OTEL_BLRP_MAX_QUEUE_SIZE"))
                .with_max_export_batch_size(env.number("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE"));
            let processor = BatchLogProcessor::builder(exporter).with_batch_config(batches.build());
            SdkLoggerProvider::builder()
                .with_resource(resource)
                .with_log_processor(processor.build())
                .build()
        });

        let mut before = Vec::new();
        if let Some(provider) = &traces {
            // Spans only: events are exported as log records, which carry the ID of their span. Spans of libraries are not
            // exported.
            let ours = |span: &Metadata<'_>| span.is_span() && app.has(span.target());
            let layer = tracing_opentelemetry::layer()
                .with_tracer(provider.tracer(app.name))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false);
            let ours = filter_fn(ours).with_max_level_hint(Level::INFO);
            before.push(layer.with_filter(ours).boxed());
        }
        let failures = Failures::default();
        if exports {
            before.push(outage::export_events(metrics.clone(), failures.clone()).boxed());
        }
        let bridge = logs.as_ref().map(OpenTelemetryTracingBridge::new);
        let level = log::start(app, &config.log, before, bridge);
        for warning in exporters.warnings {
            warn!("{warning}");
        }
        if exports {
            info!("exporting {}", exporters.targets.join(", "));
        }
        Ok(Self {
            metrics,
            level,
            meters,
            traces,
            logs,
            failures,
            _exports: Exports(exporters.runtime),
        })
    }

    /// Returns the instruments.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Returns a handle to change the log level.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }

    /// Exports the queued data within the time that is `left`, clamped to 0.5 s to 5 s.
    pub async fn finish(self, left: Duration) {
        let limit = left.clamp(SHORTEST_FLUSH, FLUSH);
        let Self {
            meters,
            traces,
            logs,
            failures,
            _exports,
            ..
        } = self;
        let failed = failures.count();
        // In parallel, because each shutdown may use the whole limit. The outer timeout is needed because the shutdown of the
        // metrics exceeds its own limit.
        let all = join_all([
            spawn_blocking(move || traces.map(|traces| traces.shutdown_with_timeout(limit))),
            spawn_blocking(move || logs.map(|logs| logs.shutdown_with_timeout(limit))),
            spawn_blocking(move || Some(meters.shutdown_with_timeout(limit))),
        ]);
        let ended = timeout(limit, all).await;
        // The providers of traces and logs return `Ok` even if the last batch was rejected. Only the export events report that
        // failure.
        let lost = match &ended {
            Ok(ended) => ended.iter().any(|ended| {
                matches!(
                    ended,
                    Ok(Some(Err(
                        OTelSdkError::Timeout(_) | OTelSdkError::InternalFailure(_)
                    )))
                )
            }),
            Err(_) => true,
        };
        if lost || failures.count() > failed {
            warn!("final telemetry export failed: data lost");
        }
    }
}
