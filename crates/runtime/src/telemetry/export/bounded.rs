//! Exporters of the SDK, with one deadline for each export.
//!
//! They add four rules to the exporters of the SDK:
//! - An export ends at its deadline, with all of its attempts. The SDK checks its time limit only between two attempts.
//! - An export runs within a Tokio [`Runtime`]. The threads of the SDK have none, so its pauses between two attempts would block
//!   the thread.
//! - An export starts after the [`Pause`] that the collector requested. The pause does not use the time of the export.
//! - A batch is sent again if its gRPC connection broke before the response. The SDK retries the code "unavailable", but tonic
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
    time::{Instant, sleep_until, timeout},
};

use super::connection::Breaks;

/// Pause that the collector requested of later exports.
#[derive(Clone, Debug, Default)]
pub struct Pause(Arc<Mutex<Option<Instant>>>);

impl Pause {
    /// Sets the end of the pause.
    pub fn set(&self, end: Instant) {
        *self.0.lock() = Some(end);
    }

    /// Waits until the pause is over.
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

    /// Ends all exports. Must be called before the runtime ends: a timer of an ended runtime panics.
    pub fn close(&self) {
        *self.open.write() = false;
    }

    /// Runs `future` on this thread, but with the timers and connections of the runtime. Returns `None` after
    /// [`close`](Self::close).
    async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        poll_fn(|cx| {
            let open = self.open.read();
            if !*open {
                return Poll::Ready(None);
            }
            let _entered = self.handle.enter();
            future.as_mut().poll(cx).map(Some)
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
    /// Sends a batch with `first`. If that fails and a connection broke during it, sends the batch with `again`.
    async fn sent(
        &self,
        first: impl Future<Output = OTelSdkResult>,
        again: impl Future<Output = OTelSdkResult>,
    ) -> OTelSdkResult {
        let attempts = async {
            let before = self.breaks.count();
            let sent = first.await;
            if sent.is_ok() || self.breaks.count() == before {
                return sent;
            }
            again.await
        };
        let export = async {
            self.pause.wait().await;
            timeout(self.limit, attempts).await
        };
        match self.runtime.run(export).await {
            Some(Ok(sent)) => sent,
            Some(Err(_)) => {
                let (limit, cause) = (self.limit, self.breaks.cause());
                let because = if cause.is_empty() { "" } else { ": " };
                Err(OTelSdkError::InternalFailure(format!(
                    "not accepted in {limit:?}{because}{cause}"
                )))
            }
            None => Err(OTelSdkError::AlreadyShutdown),
        }
    }
}

impl trace::SpanExporter for Bounded<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let first = Box::pin(self.exporter.export(batch.clone()));
        self.sent(first, Box::pin(self.exporter.export(batch)))
            .await
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
        let first = Box::pin(self.exporter.export(LogBatch::new(&records)));
        let again = Box::pin(self.exporter.export(LogBatch::new(&records)));
        self.sent(first, again).await
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
        let first = Box::pin(self.exporter.export(metrics));
        self.sent(first, Box::pin(self.exporter.export(metrics)))
            .await
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
