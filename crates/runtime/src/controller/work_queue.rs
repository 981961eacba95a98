//! Work of one term: the queue, and the triggers and failures of its keys.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    api::{
        failure::{Failure as _, brief},
        key::Key,
    },
    controller::queue::{Queue, lane::Lane},
    reconcile::reconciler::Failed,
    telemetry::state,
};

/// Queue of a term with the triggers and failures of its keys; clones share it.
#[derive(Clone)]
pub(crate) struct WorkQueue {
    pub queue: Queue<Key>,
    pub triggers: Arc<Triggers>,
    pub failures: Arc<Failures>,
}

impl WorkQueue {
    pub(crate) fn new(queue: Queue<Key>) -> Self {
        Self {
            queue,
            triggers: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Enqueues an object after a change of an object of type `kind`.
    pub(crate) fn changed(&self, key: Key, kind: &'static str) {
        self.triggers.note(&key, Lane::Event, kind);
        self.queue.add(key, Lane::Event);
    }

    /// Enqueues an object after a change that left its spec as it was, such as a status update.
    ///
    /// The queue may [defer](Queue::defer_to_retry) the change of a failing object to its next retry.
    pub(crate) fn enqueue_status_change(&self, key: Key, kind: &'static str) {
        if !self.queue.defer_to_retry(&key) {
            self.changed(key, kind);
        }
    }

    /// Enqueues an object whose labels or annotations changed, if it is failing: a user may have removed the cause. The change
    /// may be deferred, like a [status change](Self::enqueue_status_change).
    pub(crate) fn touched(&self, key: Key, kind: &'static str) {
        if self.queue.has_failed(&key) {
            self.enqueue_status_change(key, kind);
        }
    }

    /// Returns the state for `/debug/state`.
    pub(crate) fn state(&self) -> state::Queue {
        let stats = self.queue.stats();
        let [event, retry, background] = stats.depth;
        let mut running = self.queue.running();
        running.sort_unstable_by(|(a, long), (b, longer)| (longer, a).cmp(&(long, b)));
        let total = running.len();
        running.truncate(state::MOST);
        let running = running.into_iter().map(|(key, since)| state::Running {
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            seconds: state::seconds(since),
        });
        state::Queue {
            waiting: state::Waiting {
                event,
                retry,
                background,
            },
            delayed: stats.delayed,
            in_work: state::List {
                total,
                objects: running.collect(),
            },
            failing: self.failing(),
        }
    }

    fn failing(&self) -> state::List<state::Failing> {
        let failures = self.failures.0.lock();
        let total = failures.known.len() + failures.others.len();
        let known = failures.known.iter();
        let mut known: Vec<_> = known.map(|(key, why)| (key.clone(), why.clone())).collect();
        drop(failures);
        known.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let tries = self.queue.tries(known.iter().map(|(key, _)| key));
        let failing = known
            .into_iter()
            .zip(tries)
            .map(|((key, why), (tries, next))| state::Failing {
                namespace: key.namespace().to_owned(),
                name: key.name().to_owned(),
                attempts: tries.max(1),
                reason: why.reason.to_owned(),
                error: why.error,
                retry_in_seconds: next.map(state::seconds),
            });
        state::List {
            total,
            objects: failing.collect(),
        }
    }
}

/// Trigger of each queued key, with its lane; recorded in the trace.
#[derive(Default)]
pub(crate) struct Triggers(Mutex<HashMap<Key, (Lane, &'static str)>>);

impl Triggers {
    /// Records why a key is about to be added to `lane`. The last trigger wins, unless its lane is less urgent.
    pub(crate) fn note(&self, key: &Key, lane: Lane, why: &'static str) {
        let mut triggers = self.0.lock();
        let noted = triggers.entry(key.clone()).or_insert((lane, why));
        if lane <= noted.0 {
            *noted = (lane, why);
        }
    }

    /// Removes the trigger of a key. Returns it if it was recorded for `lane`.
    pub(crate) fn take(&self, key: &Key, lane: Lane) -> Option<&'static str> {
        let noted = self.0.lock().remove(key);
        noted.filter(|noted| noted.0 == lane).map(|(_, why)| why)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Failing objects that are retried. Keeps the errors of as many objects as `/debug/state` shows, and only the keys of the
/// others.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Failing>);

#[derive(Default)]
struct Failing {
    known: HashMap<Key, Why>,
    others: HashSet<Key>,
}

#[derive(Clone)]
struct Why {
    reason: &'static str,
    error: String,
}

impl Failures {
    /// Records a failed attempt that will be retried.
    pub(crate) fn note(&self, key: &Key, failed: &Failed) {
        let mut failing = self.0.lock();
        if failing.known.len() < state::MOST || failing.known.contains_key(key) {
            let why = Why {
                reason: failed.reason().unwrap_or(failed.name()),
                error: brief(&failed.to_string()),
            };
            failing.known.insert(key.clone(), why);
            failing.others.remove(key);
        } else {
            failing.others.insert(key.clone());
        }
    }

    /// Returns the reason and the error of the last failure, if they are kept.
    pub(crate) fn last(&self, key: &Key) -> Option<(&'static str, String)> {
        let failing = self.0.lock();
        let why = failing.known.get(key)?;
        Some((why.reason, why.error.clone()))
    }

    /// Removes an object that has succeeded or that is not retried.
    pub(crate) fn forget(&self, key: &Key) {
        let mut failing = self.0.lock();
        if failing.known.remove(key).is_none() {
            failing.others.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::*;
    use crate::{
        api::{failure::Retry, object::Cached as _},
        config::{app::tests::APP, settings::Config},
        controller::queue::{Outcome, status_changes::BYPASSES},
        testing::fixtures::{Parent, TestError as Error},
    };

    fn work_queue() -> WorkQueue {
        WorkQueue::new(Queue::new(
            &Config::shipped(&APP).backoff,
            2,
            Key::namespace,
        ))
    }

    /// All failing objects are counted, but `/debug/state` shows a limited number.
    #[tokio::test(start_paused = true)]
    async fn the_number_of_listed_failures_is_bounded() {
        let work_queue = work_queue();
        let failed = Failed::of(&Parent::KIND, &Error::Transient("long ".repeat(1000)));
        let keys: Vec<_> = (0..1000)
            .map(|number| Key::new("n", &format!("{number:03}")))
            .collect();
        for _ in 0..2 {
            for key in &keys {
                work_queue.failures.note(key, &failed);
            }
        }
        let state = work_queue.state();
        assert_eq!(
            (state.failing.total, state.failing.objects.len()),
            (1000, state::MOST)
        );
        let text = serde_json::to_string(&state).unwrap_or_default();
        assert!(text.len() < 100_000, "{}", text.len());
        for key in &keys[..500] {
            work_queue.failures.forget(key);
        }
        assert_eq!(work_queue.failing().total, 500);
        // A removed object makes room for another.
        work_queue.failures.note(&keys[500], &failed);
        let state = work_queue.failing();
        assert_eq!((state.total, &*state.objects[0].name), (500, "500"));
    }

    /// `/debug/state` shows the attempts of the queue and the time until the retry.
    #[tokio::test(start_paused = true)]
    async fn a_failing_object_is_shown_with_its_retry() {
        let work_queue = work_queue();
        let key = Key::new("n", "a");
        work_queue.queue.add(key.clone(), Lane::Event);
        assert_eq!(work_queue.state().waiting.event, 1);
        let Some(item) = work_queue.queue.get().await else {
            return;
        };
        tokio::time::sleep(Duration::from_secs(3)).await;
        let state = work_queue.state();
        assert_eq!(
            (state.in_work.total, state.in_work.objects[0].seconds),
            (1, 3.)
        );
        let failed = Failed::of(&Parent::KIND, &Error::Rejected("no".into()));
        work_queue.failures.note(&key, &failed);
        item.complete(Outcome::Failed(Retry::Backoff(Duration::from_secs(7))));
        let state = work_queue.state();
        assert_eq!((state.delayed, state.in_work.total), (1, 0));
        let shown = &state.failing.objects[0];
        assert_eq!((shown.attempts, shown.retry_in_seconds), (1, Some(7.)));
        assert_eq!((&*shown.reason, &*shown.error), ("Rejected", "no"));
    }

    const REJECTED: Outcome = Outcome::Failed(Retry::Backoff(Duration::ZERO));

    /// Changes that each attempt causes bypass the backoff a few times, then not. It makes no difference whether the watch
    /// delivers them before or after the end of the attempt, or how many there are. A deferred change is enqueued after a
    /// success. An attempt without a change resets the limit.
    #[tokio::test(start_paused = true)]
    async fn q3c_status_changes_bypass_the_delay_a_few_times() {
        let work_queue = work_queue();
        let key = Key::new("n", "a");
        let is_queued = || work_queue.queue.stats().depth == [1, 0, 0];
        let told = || {
            for _ in 0..3 {
                work_queue.enqueue_status_change(key.clone(), Parent::KIND.kind);
            }
            is_queued()
        };
        let complete = async |is_told: bool, outcome| {
            let item = work_queue.queue.get().await.unwrap();
            if is_told {
                told();
            }
            item.complete(outcome);
        };
        assert!(told(), "it does not fail");
        complete(false, REJECTED).await;
        for _ in 0..2 {
            for tries in 0..BYPASSES {
                assert!(told(), "{tries}");
                complete(tries % 2 == 0, REJECTED).await;
            }
            for _ in 0..3 {
                assert!(!told());
                complete(true, REJECTED).await;
            }
            complete(false, REJECTED).await;
            complete(false, REJECTED).await;
        }
        for _ in 0..BYPASSES {
            told();
            complete(false, REJECTED).await;
        }
        // A conflict is not a failure: the change that waited for the retry is enqueued.
        assert!(!told());
        let conflict = Outcome::Failed(Retry::Conflict);
        complete(false, conflict).await;
        assert!(is_queued());
        for _ in 0..BYPASSES + 5 {
            assert!(told());
            complete(true, conflict).await;
        }
        complete(false, Outcome::Done).await;
        assert!(!is_queued());
    }

    /// A new annotation enqueues a failing object at most ten times in a row, and no other object.
    #[tokio::test(start_paused = true)]
    async fn q3c_annotation_bypasses_the_delay() {
        let work_queue = work_queue();
        let key = Key::new("n", "a");
        let touched = || {
            work_queue.touched(key.clone(), Parent::KIND.kind);
            work_queue.queue.stats().depth == [1, 0, 0]
        };
        let complete = async |outcome| {
            let item = work_queue.queue.get().await.unwrap();
            item.complete(outcome);
        };
        assert!(!touched(), "it does not fail");
        work_queue.changed(key.clone(), Parent::KIND.kind);
        for tries in 0..BYPASSES + 2 {
            complete(REJECTED).await;
            assert_eq!(touched(), tries < BYPASSES, "{tries}");
        }
        // A retry without a change before it resets the limit.
        for _ in 0..2 {
            complete(REJECTED).await;
        }
        assert!(touched());
        complete(Outcome::Done).await;
        assert!(!touched());
    }

    /// The last trigger of a lane wins, and a more urgent lane replaces the trigger of another. Nothing remains of a key that
    /// was handed out.
    #[test]
    fn the_trigger_of_the_lane_is_reported() {
        let triggers = Triggers::default();
        let key = Key::new("n", "a");
        triggers.note(&key, Lane::Background, "takeover");
        triggers.note(&key, Lane::Event, "Child");
        triggers.note(&key, Lane::Event, "Parent");
        triggers.note(&key, Lane::Background, "status");
        assert_eq!(triggers.take(&key, Lane::Event), Some("Parent"));
        triggers.note(&key, Lane::Background, "takeover");
        assert_eq!(triggers.take(&key, Lane::Retry), None);
        assert!(triggers.is_empty());
    }
}
