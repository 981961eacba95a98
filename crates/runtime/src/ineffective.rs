//! Writes that the API server took and that left their object otherwise than asked.
//!
//! A schema prunes fields that it does not know, and a mutating policy or webhook puts its own value in the place of ours.
//! To ask again would be to ask for ever: once per resync, with nothing to show for it. So what was asked is remembered
//! here, together with how the object was left, and not asked again until one of the two is another.
//!
//! It is remembered per process. A new leader asks once for itself.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Key;

/// So many entries are not worth finding out which of their objects are gone.
const FEW: usize = 64;

/// So many requests are remembered of one object, the last ones: a reconcile may have several plans for it.
const OF_ONE: usize = 8;

/// What was asked in vain of the objects of one kind. An entry is a few words, and only such objects have any.
#[derive(Default)]
pub struct Ineffective {
    hasher: RandomState,
    entries: Mutex<Entries>,
    /// For how long it is known; `None`: as long as nothing changes.
    lifetime: Option<Duration>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Vec<Entry>>,
    /// Of how many objects there were some when those of gone ones were last dropped.
    kept: usize,
}

/// Fingerprints of a request, and of how its object was left by it.
#[derive(Clone, Copy)]
struct Entry {
    asked: u64,
    left: u64,
    at: Instant,
}

impl Ineffective {
    /// For what may be otherwise though neither side changes: it is known for so long.
    pub fn forgotten_after(lifetime: Duration) -> Self {
        Self {
            lifetime: Some(lifetime),
            ..Self::default()
        }
    }

    /// Notes that the request `asked` has left the object `key` as `left` says, which is not as asked.
    ///
    /// Entries of objects that are not there any more, as `exists` says, are dropped whenever there are twice as many as
    /// the last time.
    pub fn record(
        &self,
        key: &Key,
        asked: impl Hash,
        left: impl Hash,
        exists: impl Fn(&Key) -> bool,
    ) {
        let entry = self.entry(asked, left);
        let mut entries = self.entries.lock();
        if entries.by_key.len() >= FEW.max(2 * entries.kept) {
            entries.by_key.retain(|key, _| exists(key));
            entries.kept = entries.by_key.len();
        }
        let of_one = entries.by_key.entry(key.clone()).or_default();
        of_one.retain(|other| other.asked != entry.asked);
        if of_one.len() >= OF_ONE {
            of_one.remove(0);
        }
        of_one.push(entry);
    }

    /// Whether it is known that the request `asked` does nothing to the object `key`, which is as `left` says.
    #[must_use]
    pub fn contains(&self, key: &Key, asked: impl Hash, left: impl Hash) -> bool {
        let asked = self.hasher.hash_one(asked);
        self.knows(key, left, |entry| entry.asked == asked)
    }

    /// Whether it is known of any request that it does nothing to the object `key`, which is as `left` says.
    #[must_use]
    pub fn has_any(&self, key: &Key, left: impl Hash) -> bool {
        self.knows(key, left, |_| true)
    }

    fn knows(&self, key: &Key, left: impl Hash, is_it: impl Fn(&Entry) -> bool) -> bool {
        let entries = self.entries.lock();
        let Some(of_one) = entries.by_key.get(key) else {
            return false;
        };
        let (left, now) = (self.hasher.hash_one(left), Instant::now());
        let is_known = |at| self.lifetime.is_none_or(|lifetime| at + lifetime > now);
        let mut known = of_one.iter().filter(|entry| is_known(entry.at));
        known.any(|entry| entry.left == left && is_it(entry))
    }

    /// Forgets that this was asked of the object: it is as asked.
    pub fn forget(&self, key: &Key, asked: impl Hash) {
        let mut entries = self.entries.lock();
        if let Some(of_one) = entries.by_key.get_mut(key) {
            let asked = self.hasher.hash_one(asked);
            of_one.retain(|entry| entry.asked != asked);
            if of_one.is_empty() {
                entries.by_key.remove(key);
            }
        }
    }

    fn entry(&self, asked: impl Hash, left: impl Hash) -> Entry {
        Entry {
            asked: self.hasher.hash_one(asked),
            left: self.hasher.hash_one(left),
            at: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("n", &number.to_string())
    }

    #[test]
    fn what_was_asked_in_vain_is_known_until_either_side_changes() {
        let ineffective = Ineffective::default();
        assert!(!ineffective.contains(&key(1), "x", "y"));
        ineffective.record(&key(1), "x", "y", |_| true);
        assert!(ineffective.contains(&key(1), "x", "y"));
        assert!(!ineffective.contains(&key(1), "z", "y"), "asked otherwise");
        assert!(!ineffective.contains(&key(1), "x", "z"), "left otherwise");
        assert!(!ineffective.contains(&key(2), "x", "y"), "another object");
        ineffective.forget(&key(1), "x");
        assert!(!ineffective.contains(&key(1), "x", "y"));
        assert!(ineffective.entries.lock().by_key.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_forgotten() {
        let lifetime = Duration::from_secs(5);
        let ineffective = Ineffective::forgotten_after(lifetime);
        ineffective.record(&key(1), "x", "y", |_| true);
        tokio::time::advance(Duration::from_millis(4_999)).await;
        assert!(ineffective.contains(&key(1), "x", "y"));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!ineffective.contains(&key(1), "x", "y"));
        ineffective.record(&key(1), "x", "y", |_| true);
        assert!(ineffective.contains(&key(1), "x", "y"));
    }

    /// Several plans for one object do not displace one another, and plans without number leave no more than a few behind.
    #[test]
    fn what_was_asked_of_one_object_is_told_apart() {
        let ineffective = Ineffective::default();
        for asked in 0..OF_ONE {
            ineffective.record(&key(1), asked, "y", |_| true);
        }
        assert!((0..OF_ONE).all(|asked| ineffective.contains(&key(1), asked, "y")));
        ineffective.record(&key(1), 1_usize, "z", |_| true);
        assert!(
            !ineffective.contains(&key(1), 1_usize, "y"),
            "left otherwise since"
        );
        assert!(ineffective.contains(&key(1), 1_usize, "z"));
        ineffective.forget(&key(1), 2_usize);
        let known = |asked: usize| ineffective.contains(&key(1), asked, "y");
        assert!(!known(2) && known(3));
        for asked in 100..10_000 {
            ineffective.record(&key(1), asked, "y", |_| true);
            assert!(known(asked) && ineffective.entries.lock().by_key[&key(1)].len() <= OF_ONE);
        }
    }

    /// A million objects that come and go leave no more behind than there are at once.
    #[test]
    fn the_memory_is_bounded_by_what_exists() {
        let ineffective = Ineffective::default();
        for number in 0..100_000 {
            let young = |key: &Key| {
                let age = key.name().parse().map(|born: usize| number - born);
                age.is_ok_and(|age| age < 1000)
            };
            ineffective.record(&key(number), "x", "y", young);
            assert!(ineffective.entries.lock().by_key.len() <= 2 * 1000 + FEW);
        }
    }
}
