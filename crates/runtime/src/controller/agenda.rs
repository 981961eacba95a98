//! What is to be done in one term: the queue, and what is known of its keys beside it.

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

/// So many retries of an object in a row are overtaken by changes after which it asks for what it asked for before.
const OVERTAKEN: u32 = 10;

/// The queue of a term, with why its keys are in it; clones share it.
#[derive(Clone)]
pub(crate) struct Agenda {
    pub queue: Queue<Key>,
    pub triggers: Arc<Triggers>,
    pub failures: Arc<Failures>,
}

impl Agenda {
    pub fn new(queue: Queue<Key>) -> Self {
        Self {
            queue,
            triggers: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Enqueues what a change of an object of this kind concerns.
    pub fn changed(&self, key: Key, kind: &'static str) {
        self.triggers.note(&key, Lane::Event, kind);
        self.queue.add(key, Lane::Event);
    }

    /// Enqueues an object that asks for what it asked for before. Where it fails, the change may be what the try has written itself: it
    /// overtakes a few retries, and then none until one succeeds. Else an object that fails with other words each time would be tried
    /// at request speed (row Q3), and it does not have to be known whose a change was.
    pub fn changed_by_the_way(&self, key: Key, kind: &'static str) {
        if !self.failures.hold_back(&key) {
            self.changed(key, kind);
        }
    }

    /// Enqueues a failing object whose labels or annotations changed: a user may have removed the cause of the failure. The limit on
    /// [status changes](Self::changed_by_the_way) applies.
    pub fn touched(&self, key: Key, kind: &'static str) {
        if self.failures.has_failed(&key) {
            self.changed_by_the_way(key, kind);
        }
    }

    /// How it is, for `/debug/state`.
    pub fn state(&self) -> state::Queue {
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

/// Why a key is in the queue, by the lane that it is on for that: what its trace says.
#[derive(Default)]
pub(crate) struct Triggers(Mutex<HashMap<Key, (Lane, &'static str)>>);

impl Triggers {
    /// Notes why a key is about to be added on `lane`. The last cause counts, but for one that is less urgent than another.
    pub fn note(&self, key: &Key, lane: Lane, why: &'static str) {
        let mut triggers = self.0.lock();
        let noted = triggers.entry(key.clone()).or_insert((lane, why));
        if lane <= noted.0 {
            *noted = (lane, why);
        }
    }

    /// Why the key has come from `lane`, where that was noted.
    pub fn take(&self, key: &Key, lane: Lane) -> Option<&'static str> {
        let noted = self.0.lock().remove(key);
        noted.filter(|noted| noted.0 == lane).map(|(_, why)| why)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// The objects that fail and are tried again, and of as many as are ever shown, why.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Failing>);

#[derive(Default)]
struct Failing {
    known: HashMap<Key, Why>,
    others: HashSet<Key>,
    /// Of those whose last try failed, and did not only meet what passes by itself.
    changes: HashMap<Key, Changes>,
}

/// What has become of changes of an object after which it asks for what it asked for before.
#[derive(Default)]
struct Changes {
    /// How many of its tries in a row there was one after, or else during the next.
    tries: u32,
    /// Whether there was one since the last try ended.
    is_told: bool,
}

impl Changes {
    /// Whether they are left to the retry.
    fn are_held_back(&self) -> bool {
        self.is_told && self.tries >= OVERTAKEN
    }
}

#[derive(Clone)]
struct Why {
    reason: &'static str,
    error: String,
}

impl Failures {
    /// The object has failed, and is tried again. Whether a change of it was [held back](Self::hold_back) for a retry that backs off,
    /// which this one does not.
    #[must_use]
    pub fn note(&self, key: &Key, failed: &Failed) -> bool {
        let mut failing = self.0.lock();
        let mut was_held_back = false;
        if failed.retry().is_failure() {
            let changes = failing.changes.entry(key.clone()).or_default();
            let is_told = std::mem::take(&mut changes.is_told);
            changes.tries = if is_told {
                changes.tries.saturating_add(1)
            } else {
                0
            };
        } else {
            let changes = failing.changes.remove(key);
            was_held_back = changes.is_some_and(|changes| changes.are_held_back());
        }
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
        was_held_back
    }

    /// Whether its last attempt failed, and not by a conflict.
    pub fn has_failed(&self, key: &Key) -> bool {
        self.0.lock().changes.contains_key(key)
    }

    /// Whether a change of the object is left to its retry, or else to whoever finds that there is [none](Self::forget), or [another](Self::note).
    pub fn hold_back(&self, key: &Key) -> bool {
        let mut failing = self.0.lock();
        failing.changes.get_mut(key).is_some_and(|changes| {
            changes.is_told = true;
            changes.are_held_back()
        })
    }

    /// It has not failed, or is not tried again. Whether a change of it was [held back](Self::hold_back) for that.
    #[must_use]
    pub fn forget(&self, key: &Key) -> bool {
        let mut failing = self.0.lock();
        if failing.known.remove(key).is_none() {
            failing.others.remove(key);
        }
        let changes = failing.changes.remove(key);
        changes.is_some_and(|changes| changes.are_held_back())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::*;
    use crate::{
        api::object::Cached as _,
        config::{app::tests::APP, settings::Config},
        testing::fixtures::{Parent, TestError as Error},
    };

    fn agenda() -> Agenda {
        Agenda::new(Queue::new(
            &Config::shipped(&APP).backoff,
            2,
            Key::namespace,
        ))
    }

    /// However many objects fail, and for whatever it is: all are counted, and as many are shown as may be.
    #[tokio::test(start_paused = true)]
    async fn what_is_shown_of_failures_is_bounded() {
        let agenda = agenda();
        let failed = Failed::of(&Parent::KIND, &Error::Transient("long ".repeat(1000)));
        let keys: Vec<_> = (0..1000)
            .map(|number| Key::new("n", &format!("{number:03}")))
            .collect();
        for _ in 0..2 {
            for key in &keys {
                assert!(!agenda.failures.note(key, &failed));
            }
        }
        let state = agenda.state();
        assert_eq!(
            (state.failing.total, state.failing.objects.len()),
            (1000, state::MOST)
        );
        let text = serde_json::to_string(&state).unwrap_or_default();
        assert!(text.len() < 100_000, "{}", text.len());
        for key in &keys[..500] {
            assert!(!agenda.failures.forget(key));
        }
        assert_eq!(agenda.failing().total, 500);
        // There is room for another one that fails.
        assert!(!agenda.failures.note(&keys[500], &failed));
        let state = agenda.failing();
        assert_eq!((state.total, &*state.objects[0].name), (500, "500"));
    }

    /// What is shown is what the queue knows: tries, and when the next is.
    #[tokio::test(start_paused = true)]
    async fn a_failing_object_is_shown_with_its_retry() {
        let agenda = agenda();
        let key = Key::new("n", "a");
        agenda.queue.add(key.clone(), Lane::Event);
        assert_eq!(agenda.state().waiting.event, 1);
        let Some(item) = agenda.queue.get().await else {
            return;
        };
        tokio::time::sleep(Duration::from_secs(3)).await;
        let state = agenda.state();
        assert_eq!(
            (state.in_work.total, state.in_work.objects[0].seconds),
            (1, 3.)
        );
        let failed = Failed::of(&Parent::KIND, &Error::Rejected("no".into()));
        assert!(!agenda.failures.note(&key, &failed));
        item.add_rate_limited_after(Duration::from_secs(7));
        let state = agenda.state();
        assert_eq!((state.delayed, state.in_work.total), (1, 0));
        let shown = &state.failing.objects[0];
        assert_eq!((shown.attempts, shown.retry_in_seconds), (1, Some(7.)));
        assert_eq!((&*shown.reason, &*shown.error), ("Rejected", "no"));
    }

    /// Row Q3: what each try writes itself overtakes a few retries and then none, whether the watch tells of it before the try is over
    /// or later, and however often; what does not fail any more is looked at once more. Where a try was told of nothing, that begins
    /// anew.
    #[tokio::test(start_paused = true)]
    async fn q3_what_each_try_writes_overtakes_no_retry_for_long() {
        let agenda = agenda();
        let key = Key::new("n", "a");
        let told = || {
            for _ in 0..3 {
                agenda.changed_by_the_way(key.clone(), Parent::KIND.kind);
            }
            agenda.queue.stats().depth == [1, 0, 0]
        };
        let fail = async |is_told: bool, error| {
            let item = agenda.queue.get().await.unwrap();
            if is_told {
                told();
            }
            let failed = Failed::of(&Parent::KIND, &error);
            let was_held_back = agenda.failures.note(&key, &failed);
            item.add_rate_limited_after(Duration::ZERO);
            was_held_back
        };
        let rejected = || Error::Rejected("no".into());
        assert!(told(), "it does not fail");
        assert!(!fail(false, rejected()).await);
        for _ in 0..2 {
            for tries in 0..OVERTAKEN {
                assert!(told(), "{tries}");
                assert!(!fail(tries % 2 == 0, rejected()).await);
            }
            for _ in 0..3 {
                assert!(!told());
                assert!(!fail(true, rejected()).await);
            }
            assert!(!fail(false, rejected()).await);
            assert!(!fail(false, rejected()).await);
        }
        for _ in 0..OVERTAKEN {
            told();
            assert!(!fail(false, rejected()).await);
        }
        // What passes by itself is no failure: what was left to one is looked at.
        assert!(!told());
        assert!(fail(false, Error::Conflict).await);
        for _ in 0..OVERTAKEN + 5 {
            assert!(told());
            assert!(!fail(true, Error::Conflict).await);
        }
        let item = agenda.queue.get().await.unwrap();
        assert!(!agenda.failures.forget(&key));
        item.forget();
    }

    /// An annotation enqueues a failing object, and no other; ten times in a row.
    #[tokio::test(start_paused = true)]
    async fn q3_an_annotation_has_what_fails_tried_at_once() {
        let agenda = agenda();
        let key = Key::new("n", "a");
        let touched = || {
            agenda.touched(key.clone(), Parent::KIND.kind);
            agenda.queue.stats().depth == [1, 0, 0]
        };
        assert!(!touched(), "it does not fail");
        agenda.changed(key.clone(), Parent::KIND.kind);
        for tries in 0..OVERTAKEN + 2 {
            let item = agenda.queue.get().await.unwrap();
            let rejected = Failed::of(&Parent::KIND, &Error::Rejected("no".into()));
            assert!(!agenda.failures.note(&key, &rejected));
            item.add_rate_limited_after(Duration::ZERO);
            assert_eq!(touched(), tries < OVERTAKEN, "{tries}");
        }
        // A retry without a change before it resets the limit.
        for _ in 0..2 {
            let item = agenda.queue.get().await.unwrap();
            let rejected = Failed::of(&Parent::KIND, &Error::Rejected("no".into()));
            assert!(!agenda.failures.note(&key, &rejected));
            item.add_rate_limited_after(Duration::ZERO);
        }
        assert!(touched());
        let item = agenda.queue.get().await.unwrap();
        assert!(!agenda.failures.forget(&key));
        item.forget();
        assert!(!touched());
    }

    /// The last change is told, also where it had waited for less; and nothing is kept of what was handed out.
    #[test]
    fn the_cause_of_the_lane_is_told() {
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
