//! What the controller counts, under the names that controller-runtime and client-go made known.

use std::{sync::Arc, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;

use super::{
    Error, Key,
    cache::Cache,
    queue::{Queue, Stats},
    view::{Deployment, Foo, View},
};
use crate::telemetry::{
    Metrics,
    metrics::{Timer, number, table},
};

/// The controller's name in labels.
const NAME: &str = "foo";

/// What the workers count; clones share it.
#[derive(Clone)]
pub(super) struct Instruments {
    succeeded: BoundCounter<u64>,
    failed: BoundCounter<u64>,
    requeued: BoundCounter<u64>,
    errors: BoundCounter<u64>,
    panics: BoundCounter<u64>,
    took: Timer,
    waited: Timer,
    worked: Timer,
    queue: Arc<Mutex<Queues>>,
}

/// The queue of the current term, and what those before it had counted: counters never go back.
#[derive(Default)]
struct Queues {
    current: Option<Queue<Key>>,
    adds: u64,
    retries: u64,
}

impl Queues {
    fn stats(&self) -> Stats {
        let stats = self.current.as_ref().map(Queue::stats).unwrap_or_default();
        Stats {
            adds: self.adds + stats.adds,
            retries: self.retries + stats.retries,
            ..stats
        }
    }
}

impl Instruments {
    pub(super) fn new(metrics: &Metrics, workers: u32) -> Self {
        let controller = KeyValue::new("controller", NAME);
        let name = KeyValue::new("name", NAME);
        let by_result = |result| {
            let labels = [controller.clone(), KeyValue::new("result", result)];
            metrics.counter(&table::RECONCILES, &labels)
        };
        let ours = [controller.clone()];
        metrics
            .gauge(&table::MAX_CONCURRENT_RECONCILES, &ours)
            .record(workers.into());

        let queue = Arc::new(Mutex::new(Queues::default()));
        let queues = [controller.clone(), name];
        let observe = |metric, labels: &[KeyValue], value: fn(&Stats) -> f64| {
            let (queue, labels) = (Arc::clone(&queue), labels.to_vec());
            metrics.observe(metric, move |see| {
                let stats = queue.lock().stats();
                see(value(&stats), &labels);
            });
        };
        observe(&table::ACTIVE_WORKERS, &ours, |stats| {
            number(stats.processing as u64)
        });
        observe(&table::QUEUE_DEPTH, &queues, |stats| {
            number(stats.depth.iter().sum::<usize>() as u64)
        });
        observe(&table::QUEUE_ADDS, &queues, |stats| number(stats.adds));
        observe(&table::QUEUE_RETRIES, &queues, |stats| {
            number(stats.retries)
        });
        observe(&table::QUEUE_UNFINISHED, &queues, |stats| {
            stats.unfinished.as_secs_f64()
        });
        observe(&table::QUEUE_LONGEST, &queues, |stats| {
            stats.longest_running.as_secs_f64()
        });
        Self {
            succeeded: by_result("success"),
            failed: by_result("error"),
            requeued: by_result("requeue"),
            errors: metrics.counter(&table::RECONCILE_ERRORS, &ours),
            panics: metrics.counter(&table::RECONCILE_PANICS, &ours),
            took: metrics.timer(&table::RECONCILE_TIME, &ours),
            waited: metrics.timer(&table::QUEUE_WAIT, &queues),
            worked: metrics.timer(&table::QUEUE_WORK, &queues),
            queue,
        }
    }

    /// A term begins, with a queue of its own.
    pub(super) fn term_begins(&self, queue: &Queue<Key>) {
        let mut queues = self.queue.lock();
        let Stats { adds, retries, .. } = queues.stats();
        *queues = Queues {
            current: Some(queue.clone()),
            adds,
            retries,
        };
    }

    /// A reconcile came to its end, within whose span this is to be said.
    pub(super) fn ended(&self, result: &Result<(), Error>, waited: Duration, took: Duration) {
        self.waited.record(waited);
        self.took.record(took);
        self.worked.record(took);
        match result {
            Ok(()) => self.succeeded.add(1),
            Err(error) if error.is_quiet() => self.requeued.add(1),
            Err(error) => {
                self.failed.add(1);
                self.errors.add(1);
                if matches!(error, Error::Panicked) {
                    self.panics.add(1);
                }
            }
        }
    }
}

/// How often the watch of a kind is opened again because something is wrong.
pub(super) fn restarts<V: View>(metrics: &Metrics) -> BoundCounter<u64> {
    metrics.counter(&table::WATCH_RESTARTS, &[kind::<V>()])
}

/// What is in the caches. Counted when somebody asks: 10,000 Foos take less than a millisecond.
pub(super) fn observe_caches(
    metrics: &Metrics,
    foos: &Arc<Cache<Foo>>,
    deployments: &Arc<Cache<Deployment>>,
) {
    let (all, deployments) = (Arc::clone(foos), Arc::clone(deployments));
    metrics.observe(&table::CACHE_OBJECTS, move |see| {
        see(number(all.len() as u64), &[kind::<Foo>()]);
        see(number(deployments.len() as u64), &[kind::<Deployment>()]);
    });
    let foos = Arc::clone(foos);
    metrics.observe(&table::FOOS, move |see| {
        let (mut ready, mut not, mut unknown) = (0, 0, 0);
        foos.for_each(|foo| {
            let conditions = &foo.status.conditions;
            let condition = conditions.iter().find(|c| c.type_ == "Ready");
            match condition.map(|condition| condition.status.as_str()) {
                Some("True") => ready += 1,
                Some("False") => not += 1,
                _ => unknown += 1,
            }
        });
        for (status, count) in [("true", ready), ("false", not), ("unknown", unknown)] {
            see(number(count), &[KeyValue::new("ready", status)]);
        }
    });
}

fn kind<V: View>() -> KeyValue {
    let (.., kind, _) = V::RESOURCE;
    KeyValue::new("kind", kind)
}
