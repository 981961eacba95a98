//! Controller metrics, under the names of controller-runtime and client-go.

use std::{sync::Arc, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;

use crate::{
    api::{failure::Failure, key::Key, object::Cached},
    cache::store::Store,
    controller::queue::{Queue, lane::Stats},
    reconcile::reconciler::{Action, Failed},
    telemetry::metrics::{
        Metrics, table,
        timer::{Timer, number},
    },
};

/// Metrics of the workers; clones share them.
#[derive(Clone)]
pub(crate) struct Instruments {
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

/// Queue of the current term and the totals of earlier terms, so that counters never decrease.
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
    pub(crate) fn new(metrics: &Metrics, name: &'static str, workers: u32) -> Self {
        let controller = KeyValue::new("controller", name);
        let name = KeyValue::new("name", name);
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

    /// Replaces the queue at the start of a term.
    pub(crate) fn term_begins(&self, queue: &Queue<Key>) {
        let mut queues = self.queue.lock();
        let Stats { adds, retries, .. } = queues.stats();
        *queues = Queues {
            current: Some(queue.clone()),
            adds,
            retries,
        };
    }

    /// Records the end of a reconcile. Call it within the reconcile's span, for exemplars.
    pub(crate) fn ended(&self, result: &Result<Action, Failed>, waited: Duration, took: Duration) {
        self.waited.record(waited);
        self.took.record(took);
        self.worked.record(took);
        match result {
            Ok(Action::Done) => self.succeeded.add(1),
            Err(error) if error.retry().is_failure() => {
                self.failed.add(1);
                self.errors.add(1);
                if error.panicked {
                    self.panics.add(1);
                }
            }
            Ok(_) | Err(_) => self.requeued.add(1),
        }
    }
}

/// Returns the counter of watch restarts after errors.
pub(crate) fn restarts<V: Cached>(metrics: &Metrics) -> BoundCounter<u64> {
    metrics.counter(
        &table::WATCH_RESTARTS,
        &[KeyValue::new("kind", V::KIND.kind)],
    )
}

/// Registers the number of cached objects of each resource type. They are counted at each scrape or export, not at each change.
pub(crate) fn observe_stores(metrics: &Metrics, stores: Vec<(&'static str, Count)>) {
    metrics.observe(&table::CACHE_OBJECTS, move |see| {
        for (kind, count) in &stores {
            let objects: usize = count().iter().sum();
            see(number(objects as u64), &[KeyValue::new("kind", *kind)]);
        }
    });
}

/// Registers the number of paused objects of a reconciled type.
pub(crate) fn observe_paused<P: Cached>(metrics: &Metrics, store: Arc<Store<P>>) {
    metrics.observe(&table::PAUSED_OBJECTS, move |see| {
        let paused = number(store.paused() as u64);
        see(paused, &[KeyValue::new("kind", P::KIND.kind)]);
    });
}

/// Counts the objects of a store by scope.
pub(crate) type Count = Arc<dyn Fn() -> Vec<usize> + Send + Sync>;

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::Resource;

    use super::*;
    use crate::{
        api::{failure::Retry, panic::Panicked},
        config::{app::tests::APP, settings::Config},
        controller::queue::{Outcome, lane::Lane},
        testing::fixtures::{Parent, TestError as Error},
    };

    /// Returns the value of a series.
    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        let (_, text) = metrics.scrape(None);
        let mut lines = text.lines();
        lines.find_map(|line| Some(line.strip_prefix(series)?.trim().to_owned()))
    }

    /// A term starts with its own queue, and counters do not decrease.
    #[tokio::test]
    async fn counters_continue_in_a_new_term() {
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let instruments = Instruments::new(&metrics, "parent", 1);
        let counted = |name: &str| {
            let series = format!("workqueue_{name}{{controller=\"parent\",name=\"parent\"}}");
            value(&metrics, &series).unwrap_or_default()
        };
        assert_eq!(
            (counted("adds_total"), counted("depth")),
            ("0".into(), "0".into())
        );
        for adds in ["2", "4"] {
            let queue = Queue::new(&Config::shipped(&APP).backoff, 2, Key::namespace);
            instruments.term_begins(&queue);
            queue.add(Key::new("n", "a"), Lane::Event);
            queue.add(Key::new("n", "b"), Lane::Event);
            assert_eq!(
                (counted("adds_total"), counted("depth")),
                (adds.into(), "2".into())
            );
            if let Some(taken) = queue.get().await {
                taken.complete(Outcome::Failed(Retry::Backoff(Duration::ZERO)));
            }
            queue.shut_down();
            assert_eq!(
                (counted("adds_total"), counted("depth")),
                (adds.into(), "0".into())
            );
        }
        assert_eq!(counted("retries_total"), "2");
    }

    /// Conflicts and fenced writes are not errors; a panic is.
    #[test]
    fn each_outcome_has_its_result() {
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let instruments = Instruments::new(&metrics, "parent", 1);
        let failed = |error| Failed::of(&Parent::KIND, error);
        let panicked = Panicked {
            kind: "Parent",
            method: "Reconciler::reconcile",
        };
        for result in [
            Ok(Action::Done),
            Ok(Action::StatusPending),
            Err(failed(&Error::Conflict)),
            Err(failed(&Error::NotLeading)),
            Err(failed(&Error::Transient("it".into()))),
            Err(failed(&Error::Invalid("it".into()))),
            Err(Failed::from(panicked)),
        ] {
            instruments.ended(&result, Duration::ZERO, Duration::from_millis(1));
        }
        for (series, count) in [
            (
                r#"reconcile_total{controller="parent",result="success"}"#,
                "1",
            ),
            (
                r#"reconcile_total{controller="parent",result="requeue"}"#,
                "3",
            ),
            (
                r#"reconcile_total{controller="parent",result="error"}"#,
                "3",
            ),
            (r#"reconcile_errors_total{controller="parent"}"#, "3"),
            (r#"reconcile_panics_total{controller="parent"}"#, "1"),
            (r#"reconcile_time_seconds_count{controller="parent"}"#, "7"),
        ] {
            let series = format!("controller_runtime_{series}");
            assert_eq!(value(&metrics, &series).as_deref(), Some(count), "{series}");
        }
    }
}
