//! The view of operators and probes: logs, traces, metrics and `/debug/state`.
//!
//! The log goes to standard error. Where there is an endpoint, traces, logs and metrics go there, too, by
//! OTLP/gRPC; everything about that but the endpoint is in the `OTEL_*` variables. Whatever becomes of the
//! collector, the work never waits for it: what is to be exported waits in queues with a limit, and what does
//! not fit is dropped and counted.

mod error;
pub(crate) mod events;
pub(crate) mod export;
pub mod health;
pub(crate) mod log;
pub mod metrics;
pub mod server;
pub(crate) mod state;
pub mod trace;

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
use tracing_subscriber::{Layer as _, filter::filter_fn};

pub(crate) use self::export::Way;
pub use self::{error::Error, log::LogLevel, metrics::Metrics};
use self::{
    export::{
        Exporters,
        env::Env,
        outage::{self, Failures},
        resource,
    },
    log::stderr,
};
use crate::config::{app::App, environment::Host, settings::Config};

/// How long the last export may take at most.
const FLUSH: Duration = Duration::from_secs(5);

/// The last export gets this long even where the work took all of the time that there was to stop.
const SHORTEST_FLUSH: Duration = Duration::from_millis(500);

/// The way of each signal that would be exported.
///
/// # Errors
/// Those of [`Telemetry::start`].
pub(crate) fn ways(host: &Host, config: &Config) -> Result<Vec<Way>, Error> {
    export::ways(
        &Env::new(host.variables()),
        config.telemetry.endpoint.as_ref(),
    )
}

/// Telemetry at work.
pub struct Telemetry {
    metrics: Metrics,
    level: LogLevel,
    meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    failures: Failures,
}

impl Telemetry {
    /// Starts the log, and the export where an endpoint is given. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// See [`Error`]. A collector that cannot be reached is none.
    pub fn start(app: &'static App, host: &Host, config: &Config) -> Result<Self, Error> {
        stderr::start().map_err(Error::Stderr)?;
        let env = Env::new(host.variables());
        let exporters = Exporters::new(&env, config.telemetry.endpoint.as_ref())?;
        let resource = resource::resource(app, host, env.attributes());

        // First, since the other providers count what they drop by it.
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
            // Events are log records, which name their span; the library's spans are not ours to export.
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
        })
    }

    /// The instruments.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// What is logged, to be changed.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }

    /// Exports what is still to be exported, if that can be done in the time that is `left`, and in 5 s.
    pub async fn finish(self, left: Duration) {
        let limit = left.clamp(SHORTEST_FLUSH, FLUSH);
        let Self {
            meters,
            traces,
            logs,
            failures,
            ..
        } = self;
        let failed = failures.count();
        // Side by side, since each may take all of the time; and given up from outside, since the metrics'
        // shutdown takes longer than it is given.
        let all = join_all([
            spawn_blocking(move || traces.map(|traces| traces.shutdown_with_timeout(limit))),
            spawn_blocking(move || logs.map(|logs| logs.shutdown_with_timeout(limit))),
            spawn_blocking(move || Some(meters.shutdown_with_timeout(limit))),
        ]);
        let ended = timeout(limit, all).await;
        // The providers of traces and logs answer Ok to a last batch that was refused: only the export's events show it.
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
            warn!("what was still to be exported is lost: the collector did not take it");
        }
    }
}
