//! Exporters of the SDK, with one deadline for each export.
//!
//! They add four rules to the exporters of the SDK:
//! - An export ends at its deadline, with all of its attempts. The SDK checks its time limit only between two attempts.
//! - An export runs within a Tokio [`Runtime`]. The threads of the SDK have none. Timers and connections need one.
//! - An export starts after the [`Pause`] that the collector requested. The pause does not use the time of the export. An export
//!   whose pause exceeds its time is sent once more, with the whole time.
//! - A batch is sent again while its gRPC connections break before the response. The SDK retries the code "unavailable", but tonic
//!   returns "unknown" for a reset connection. A load balancer that has forgotten an idle connection would cost the first batch
//!   after each pause. OTLP delivers at least once, so a batch whose response was lost may be delivered twice.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::{self, LogBatch},
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{self, SpanData},
};
use parking_lot::{Mutex, RwLock};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::connection::Breaks;

/// Delays before a batch is sent again on a new connection, which double. The SDK has the same for its own attempts.
const SHORTEST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_millis(1600);

/// Pause that the collector requested of later exports.
#[derive(Clone, Debug, Default)]
pub struct Pause(Arc<Mutex<Option<Instant>>>);

impl Pause {
    /// Sets the end of the pause.
    pub fn set(&self, end: Instant) {
        *self.0.lock() = Some(end);
    }

    fn is_over(&self) -> bool {
        self.0.lock().is_none_or(|end| end <= Instant::now())
    }

    /// Waits for the end of the pause.
    async fn wait(&self) {
        let end = *self.0.lock();
        if let Some(end) = end {
            sleep_until(end).await;
        }
    }
}

/// The Tokio runtime of the program, for the threads of the SDK.
#[derive(Clone, Debug)]
pub struct Runtime {
    handle: Handle,
    /// Whether the runtime may be used. The lock is held during each use.
    open: Arc<RwLock<bool>>,
}

impl Runtime {
    /// Returns the current runtime.
    ///
    /// # Panics
    /// There is none.
    pub fn current() -> Self {
        Self {
            handle: Handle::current(),
            open: Arc::new(RwLock::new(true)),
        }
    }

    /// Ends each running export at its next poll. Must be called before the runtime ends: a timer of an ended runtime
    /// panics. The end
    /// of the runtime wakes each export.
    pub fn close(&self) {
        *self.open.write() = false;
    }

    /// Runs `future` on this thread, but with the timers and connections of the runtime. Returns `None` after
    /// [`close`](Self::close).
    async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = Some(Box::pin(future));
        poll_fn(|cx| {
            let open = self.open.read();
            // Also for the end of a connection, which spawns a task.
            let _entered = self.handle.enter();
            match &mut future {
                Some(future) if *open => future.as_mut().poll(cx).map(Some),
                _ => {
                    future = None;
                    Poll::Ready(None)
                }
            }
        })
        .await
    }
}

/// An exporter of the SDK, and the rules for its exports.
#[derive(Debug)]
pub struct Bounded<E> {
    pub exporter: E,
    /// Time limit of one export, with all of its attempts.
    pub limit: Duration,
    pub breaks: Breaks,
    pub pause: Pause,
    pub runtime: Runtime,
}

impl<E> Bounded<E> {
    /// Sends a batch by `attempt`, repeatedly if needed.
    async fn sent<F>(&self, mut attempt: impl FnMut() -> F) -> OTelSdkResult
    where
        F: Future<Output = OTelSdkResult>,
    {
        let export = async {
            let first = self.in_time(&mut attempt).await;
            if first.is_ok() || self.pause.is_over() {
                return first;
            }
            self.in_time(&mut attempt).await
        };
        let ended = self.runtime.run(export).await;
        ended.unwrap_or(Err(OTelSdkError::AlreadyShutdown))
    }

    /// Waits for the end of the pause, and sends a batch until the deadline. Repeats attempts whose connection broke.
    async fn in_time<F>(&self, attempt: &mut impl FnMut() -> F) -> OTelSdkResult
    where
        F: Future<Output = OTelSdkResult>,
    {
        self.pause.wait().await;
        let attempts = async {
            let mut delay = SHORTEST_DELAY;
            loop {
                let before = self.breaks.count();
                let sent = attempt().await;
                if sent.is_ok() || self.breaks.count() == before {
                    return sent;
                }
                sleep(delay).await;
                delay = (delay * 2).min(LONGEST_DELAY);
            }
        };
        let sent = timeout(self.limit, attempts).await;
        sent.unwrap_or_else(|_| {
            let (limit, cause) = (self.limit, self.breaks.cause());
            let because = if cause.is_empty() { "" } else { ": " };
            Err(OTelSdkError::InternalFailure(format!(
                "not accepted in {limit:?}{because}{cause}"
            )))
        })
    }
}

impl trace::SpanExporter for Bounded<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.sent(|| self.exporter.export(batch.clone())).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl logs::LogExporter for Bounded<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let records: Vec<_> = batch.iter().collect();
        self.sent(|| self.exporter.export(LogBatch::new(&records)))
            .await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl PushMetricExporter for Bounded<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.sent(|| self.exporter.export(metrics)).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

#[cfg(test)]
mod tests;
