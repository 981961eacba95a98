//! Writes that the API server accepted, but that did not have the requested effect.
//!
//! A schema prunes unknown fields, and a mutating policy or webhook replaces values. Without a record, the same request would
//! be sent at every resync. So the request and the resulting state are recorded. The request is not sent again until the
//! desired request or the object's state differs from the record.
//!
//! After a relist, the request is sent again, because the CRD may have changed: a change closes the watches and requires a new
//! list. If the request has no effect again, it is sent once more after a pause of a minute. Another API server may have
//! received the new schema later. Relists during the pause are ignored. The pause doubles each time, so frequent relists cause
//! few requests.
//!
//! The record is kept per process. A new leader sends the request once.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::key::Key;

/// Number of objects below which entries of deleted objects are not removed.
const FEW: usize = 64;

/// Pause after a request that a relist has caused, and that had no effect. Relists during the pause are ignored. The pause
/// doubles each time.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1000);

/// Maximum number of requests recorded per object, the most recent ones. A reconcile may have several plans for it.
const OF_ONE: usize = 8;

/// Requests without effect on the objects of one resource type. Only affected objects have entries.
#[derive(Default)]
pub(super) struct NoOpWrites {
    hasher: RandomState,
    entries: Mutex<Entries>,
    /// Lifetime of an entry; `None`: until something changes.
    lifetime: Option<Duration>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Vec<Entry>>,
    /// Number of objects with entries after the last removal of deleted ones.
    kept: usize,
}

/// Fingerprints of a request and of the resulting state.
#[derive(Clone, Copy)]
struct Entry {
    asked: u64,
    left: u64,
    at: Instant,
    /// Latest list at that time.
    list: u32,
    /// How long relists are ignored.
    pause: Duration,
    /// Whether the entry stays valid after the pause, until the next list. If not, the pause is followed by one more request.
    is_settled: bool,
}

impl NoOpWrites {
    /// Returns an empty record whose entries expire after `lifetime`, because the API server may behave differently by then.
    pub(super) fn forgotten_after(lifetime: Duration) -> Self {
        Self {
            lifetime: Some(lifetime),
            ..Self::default()
        }
    }

    /// Records that the request `asked`, sent after this `list`, left the object `key` in the state `left` instead.
    ///
    /// Entries of objects that no longer exist are removed whenever the number of objects has doubled.
    pub(super) fn record(
        &self,
        key: &Key,
        asked: impl Hash,
        left: impl Hash,
        list: u32,
        exists: impl Fn(&Key) -> bool,
    ) {
        let mut entry = Entry {
            asked: self.hasher.hash_one(asked),
            left: self.hasher.hash_one(left),
            at: Instant::now(),
            list,
            pause: Duration::ZERO,
            is_settled: true,
        };
        let mut entries = self.entries.lock();
        if entries.by_key.len() >= FEW.max(2 * entries.kept) {
            entries.by_key.retain(|key, _| exists(key));
            entries.kept = entries.by_key.len();
        }
        let of_one = entries.by_key.entry(key.clone()).or_default();
        let earlier = of_one.iter().position(|other| other.asked == entry.asked);
        if let Some(earlier) = earlier.map(|earlier| of_one.remove(earlier)) {
            let is_other = earlier.list != list;
            entry.is_settled = !is_other;
            entry.pause = if is_other {
                (2 * earlier.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE)
            } else {
                earlier.pause
            };
        }
        if of_one.len() >= OF_ONE {
            of_one.remove(0);
        }
        of_one.push(entry);
    }

    /// Returns whether the request `asked` is known to have no effect on the object `key` in the state `left`. `list` is the
    /// latest list.
    #[must_use]
    pub(super) fn contains(&self, key: &Key, asked: impl Hash, left: impl Hash, list: u32) -> bool {
        let asked = self.hasher.hash_one(asked);
        let is_it = |entry: &Entry| entry.asked == asked;
        self.known(key, left, list, is_it).is_some()
    }

    /// Returns whether a request is known to have no effect on the object `key` in the state `left`, but will be sent again
    /// even if the state stays the same.
    #[must_use]
    pub(super) fn has_passing(&self, key: &Key, left: impl Hash, list: u32) -> bool {
        let is_passing = |entry: &Entry| self.lifetime.is_some() || !entry.holds(list);
        self.known(key, left, list, is_passing).is_some()
    }

    /// Returns the age of a request, any request, that is known to have no effect on the object `key` in the state `left`.
    #[must_use]
    pub(super) fn age(&self, key: &Key, left: impl Hash, list: u32) -> Option<Duration> {
        let entry = self.known(key, left, list, |_| true)?;
        Some(entry.at.elapsed())
    }

    fn known(
        &self,
        key: &Key,
        left: impl Hash,
        list: u32,
        is_it: impl Fn(&Entry) -> bool,
    ) -> Option<Entry> {
        let entries = self.entries.lock();
        let of_one = entries.by_key.get(key)?;
        let (left, now) = (self.hasher.hash_one(left), Instant::now());
        let mut known = of_one.iter().filter(|entry| {
            let is_within = |time| entry.at + time > now;
            self.lifetime.is_none_or(is_within) && (entry.holds(list) || is_within(entry.pause))
        });
        known
            .find(|entry| entry.left == left && is_it(entry))
            .copied()
    }

    /// Removes all entries of an object.
    pub(super) fn forget_all(&self, key: &Key) {
        self.entries.lock().by_key.remove(key);
    }

    /// Removes the entry of a request that now has its effect.
    pub(super) fn forget(&self, key: &Key, asked: impl Hash) {
        let mut entries = self.entries.lock();
        if let Some(of_one) = entries.by_key.get_mut(key) {
            let asked = self.hasher.hash_one(asked);
            of_one.retain(|entry| entry.asked != asked);
            if of_one.is_empty() {
                entries.by_key.remove(key);
            }
        }
    }
}

impl Entry {
    /// Returns whether the entry is valid while `list` is the latest one.
    fn holds(&self, list: u32) -> bool {
        self.is_settled && self.list == list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("n", &number.to_string())
    }

    #[test]
    fn i6b_no_op_patch_is_remembered_until_object_or_patch_changes() {
        let ineffective = NoOpWrites::default();
        assert!(!ineffective.contains(&key(1), "x", "y", 1));
        ineffective.record(&key(1), "x", "y", 1, |_| true);
        assert!(ineffective.contains(&key(1), "x", "y", 1));
        assert!(
            !ineffective.contains(&key(1), "z", "y", 1),
            "asked otherwise"
        );
        assert!(
            !ineffective.contains(&key(1), "x", "z", 1),
            "left otherwise"
        );
        assert!(
            !ineffective.contains(&key(2), "x", "y", 1),
            "another object"
        );
        ineffective.forget(&key(1), "x");
        assert!(!ineffective.contains(&key(1), "x", "y", 1));
        assert!(ineffective.entries.lock().by_key.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_no_op_write_is_forgotten_after_its_lifetime() {
        let lifetime = Duration::from_secs(5);
        let ineffective = NoOpWrites::forgotten_after(lifetime);
        ineffective.record(&key(1), "x", "y", 1, |_| true);
        tokio::time::advance(Duration::from_millis(4_999)).await;
        assert!(ineffective.contains(&key(1), "x", "y", 1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!ineffective.contains(&key(1), "x", "y", 1));
        ineffective.record(&key(1), "x", "y", 1, |_| true);
        assert!(ineffective.contains(&key(1), "x", "y", 1));
    }

    /// A new list causes two more requests, with pauses that double.
    #[tokio::test(start_paused = true)]
    async fn a_no_op_write_is_repeated_after_another_list() {
        let ineffective = NoOpWrites::default();
        let knows = |list| ineffective.contains(&key(1), "x", "y", list);
        let record = |list| ineffective.record(&key(1), "x", "y", list, |_| true);
        let is_passing = |list| ineffective.has_passing(&key(1), "y", list);
        record(1);
        assert!(knows(1) && !is_passing(1) && !knows(2));
        let mut pause = FIRST_PAUSE;
        for list in 2..20 {
            record(list);
            assert!(knows(list) && is_passing(list) && knows(list + 1));
            tokio::time::advance(pause).await;
            assert!(!knows(list), "once more");
            record(list);
            assert!(knows(list) && !is_passing(list), "it is settled");
            assert!(knows(list + 1) && is_passing(list + 1), "not at each list");
            tokio::time::advance(pause).await;
            assert!(knows(list) && !knows(list + 1));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        ineffective.forget(&key(1), "x");
        assert!(!knows(19));
    }

    /// Several plans for one object do not displace one another. The number of recorded plans is bounded.
    #[test]
    fn plans_for_one_object_are_recorded_separately() {
        let ineffective = NoOpWrites::default();
        for asked in 0..OF_ONE {
            ineffective.record(&key(1), asked, "y", 1, |_| true);
        }
        assert!((0..OF_ONE).all(|asked| ineffective.contains(&key(1), asked, "y", 1)));
        ineffective.record(&key(1), 1_usize, "z", 1, |_| true);
        assert!(
            !ineffective.contains(&key(1), 1_usize, "y", 1),
            "left otherwise since"
        );
        assert!(ineffective.contains(&key(1), 1_usize, "z", 1));
        ineffective.forget(&key(1), 2_usize);
        let known = |asked: usize| ineffective.contains(&key(1), asked, "y", 1);
        assert!(!known(2) && known(3));
        for asked in 100..10_000 {
            ineffective.record(&key(1), asked, "y", 1, |_| true);
            assert!(known(asked) && ineffective.entries.lock().by_key[&key(1)].len() <= OF_ONE);
        }
    }

    /// The memory for 100,000 short-lived objects is bounded by the number that exists at the same time.
    #[test]
    fn the_memory_is_bounded_by_existing_objects() {
        let ineffective = NoOpWrites::default();
        for number in 0..100_000 {
            let young = |key: &Key| {
                let age = key.name().parse().map(|born: usize| number - born);
                age.is_ok_and(|age| age < 1000)
            };
            ineffective.record(&key(number), "x", "y", 1, young);
            assert!(ineffective.entries.lock().by_key.len() <= 2 * 1000 + FEW);
        }
    }
}
