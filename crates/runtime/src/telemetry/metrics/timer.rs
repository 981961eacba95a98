//! Histograms of durations, with an exemplar for each bucket.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    Context, SpanId, TraceId, metrics::BoundHistogram, trace::TraceContextExt as _,
};
use parking_lot::Mutex;

use super::table::Metric;

/// Upper bounds of the buckets of every histogram, in seconds.
pub(super) const BOUNDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2.5, 5., 10., 25., 50., 100.,
    250., 500., 1000.,
];

/// One series of a histogram of durations.
#[derive(Clone, Debug)]
pub struct Timer {
    pub(super) metric: &'static Metric,
    pub(super) name: Arc<str>,
    /// In the text format.
    pub(super) labels: Arc<str>,
    pub(super) histogram: BoundHistogram<f64>,
    /// The last traced value in each bucket.
    pub(super) exemplars: Arc<Mutex<[Option<Exemplar>; BOUNDS.len() + 1]>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Exemplar {
    pub(super) value: f64,
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) time: SystemTime,
}

impl Timer {
    /// Records a duration. If the current span is sampled, it becomes the exemplar of its bucket.
    pub fn record(&self, duration: Duration) {
        let value = duration.as_secs_f64();
        self.histogram.record(value);
        // The timestamp of an exemplar does not affect the work.
        #[expect(clippy::disallowed_methods, reason = "see above")]
        let now = SystemTime::now;
        Context::map_current(|context| {
            let span = context.span();
            let span = span.span_context();
            if span.is_sampled() {
                let bucket = BOUNDS.partition_point(|bound| *bound < value);
                if let Some(last) = self.exemplars.lock().get_mut(bucket) {
                    *last = Some(Exemplar {
                        value,
                        trace: span.trace_id(),
                        span: span.span_id(),
                        time: now(),
                    });
                }
            }
        });
    }
}

/// Converts a count for the text formats.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
#[must_use]
pub fn number(count: u64) -> f64 {
    count as f64
}
