//! What the controller counts, under the names that controller-runtime and client-go made known.

use std::{sync::Arc, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;

use operator_runtime::{
    Key,
    queue::{Queue, Stats},
    telemetry::{
        Metrics,
        metrics::{
            Timer, number,
            table::{self, Kind, Metric},
        },
    },
};

use super::{
    Error,
    cache::Cache,
    reconcile::Done,
    view::{Deployment, Foo, View},
};

/// Foos by whether they are ready.
pub const FOOS: Metric = Metric {
    template: "{app}_foos",
    kind: Kind::Gauge,
    unit: "",
    labels: &["ready"],
    help: "Foos by the status of their condition Ready: true, false or unknown.",
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
    pub(super) fn ended(&self, result: &Result<Done, Error>, waited: Duration, took: Duration) {
        self.waited.record(waited);
        self.took.record(took);
        self.worked.record(took);
        match result {
            Ok(Done::Settled) => self.succeeded.add(1),
            Ok(Done::Untold) => self.requeued.add(1),
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

/// What is in the caches. Counted when somebody asks, rather than at each change.
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
    metrics.observe(&FOOS, move |see| {
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

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::Resource;

    use super::*;
    use operator_runtime::{Config, queue::Lane};

    /// The value of a series.
    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        let (_, text) = metrics.scrape(None);
        let mut lines = text.lines();
        lines.find_map(|line| Some(line.strip_prefix(series)?.trim().to_owned()))
    }

    /// Part 4 of what is seen from outside: a term begins with a queue of its own, and counters do not go back.
    #[tokio::test]
    async fn counters_go_on_in_a_new_term() {
        let (metrics, _provider) =
            Metrics::new(&crate::APP, Resource::builder_empty().build(), None);
        let instruments = Instruments::new(&metrics, 1);
        let counted = |name: &str| {
            let series = format!("workqueue_{name}{{controller=\"foo\",name=\"foo\"}}");
            value(&metrics, &series).unwrap_or_default()
        };
        assert_eq!(
            (counted("adds_total"), counted("depth")),
            ("0".into(), "0".into())
        );
        for adds in ["2", "4"] {
            let queue = Queue::new(&Config::shipped(&crate::APP).backoff);
            instruments.term_begins(&queue);
            queue.add(Key::new("n", "a"), Lane::Change);
            queue.add(Key::new("n", "b"), Lane::Change);
            assert_eq!(
                (counted("adds_total"), counted("depth")),
                (adds.into(), "2".into())
            );
            if let Some(taken) = queue.get().await {
                taken.retry();
            }
            queue.shut_down();
            assert_eq!(
                (counted("adds_total"), counted("depth")),
                (adds.into(), "0".into())
            );
        }
        assert_eq!(counted("retries_total"), "2");
    }

    /// Part 4: what is part of everyday life is no error; a panic (row Q6) is one.
    #[test]
    fn each_outcome_has_its_result() {
        let (metrics, _provider) =
            Metrics::new(&crate::APP, Resource::builder_empty().build(), None);
        let instruments = Instruments::new(&metrics, 1);
        for result in [
            Ok(Done::Settled),
            Ok(Done::Untold),
            Err(Error::Conflict),
            Err(Error::NotLeading),
            Err(Error::transient("it")),
            Err(Error::InvalidSpec("it".into())),
            Err(Error::Panicked),
        ] {
            instruments.ended(&result, Duration::ZERO, Duration::from_millis(1));
        }
        for (series, count) in [
            (r#"reconcile_total{controller="foo",result="success"}"#, "1"),
            (r#"reconcile_total{controller="foo",result="requeue"}"#, "3"),
            (r#"reconcile_total{controller="foo",result="error"}"#, "3"),
            (r#"reconcile_errors_total{controller="foo"}"#, "3"),
            (r#"reconcile_panics_total{controller="foo"}"#, "1"),
            (r#"reconcile_time_seconds_count{controller="foo"}"#, "7"),
        ] {
            let series = format!("controller_runtime_{series}");
            assert_eq!(value(&metrics, &series).as_deref(), Some(count), "{series}");
        }
    }
}
