//! Writes that are undone again and again: somebody else, a second operator perhaps, has a mind of their own about an object,
//! and each correction brings on the next.
//!
//! A write is a correction where somebody else has changed the object, deleted it or created it again since the last one that
//! was made for the same. The first few are made at once. Then each waits twice as long as the one before, so that two who
//! never agree cost the cluster little, until what is wanted changes or the other one leaves the object alone for a while.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Key;

/// So many are made at once.
pub const AT_ONCE: u32 = 10;

/// How long the next one waits, which is doubled for each that follows.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// When nothing had to be corrected for twice as long as the next one would have waited, and for this, the matter is over.
const OVER: Duration = Duration::from_mins(1);

/// So many entries are not worth a look at which of them are over.
const FEW: usize = 64;

/// So many objects that were written of late are remembered, beside those that were corrected.
const MANY: usize = 10_000;

/// What was written of late.
#[derive(Default)]
pub struct Corrections {
    hasher: RandomState,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    /// How many there were when those that are over were last dropped.
    kept: usize,
}

struct Entry {
    /// Fingerprint of what the writes were made for.
    wanted: u64,
    /// Fingerprint of the object as the last one left it.
    left: u64,
    /// How many of them were corrections.
    times: u32,
    /// Whether it was told that one has to wait.
    told: bool,
    last: Instant,
}

impl Entry {
    fn pause(&self) -> Duration {
        match self.times.checked_sub(AT_ONCE) {
            None => Duration::ZERO,
            Some(more) => FIRST_PAUSE
                .saturating_mul(2_u32.saturating_pow(more))
                .min(LONGEST_PAUSE),
        }
    }

    fn is_over(&self) -> bool {
        self.last.elapsed() > OVER.max(self.pause() * 2)
    }
}

/// That a correction has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For so long.
    pub time: Duration,
    /// Whether it is the first one since the object was left alone.
    pub is_first: bool,
}

impl Corrections {
    /// Whether a write of this object has to wait, as it is `wanted`, where it was `found` so.
    #[must_use]
    pub fn wait(&self, key: &Key, wanted: impl Hash, found: impl Hash) -> Option<Wait> {
        let [wanted, found] = [self.hasher.hash_one(wanted), self.hasher.hash_one(found)];
        let mut entries = self.entries.lock();
        let entry = entries.by_key.get_mut(key)?;
        if entry.wanted != wanted || entry.left == found || entry.is_over() {
            return None;
        }
        let time = entry.pause().saturating_sub(entry.last.elapsed());
        (!time.is_zero()).then(|| Wait {
            time,
            is_first: !std::mem::replace(&mut entry.told, true),
        })
    }

    /// Notes a write of an object that was `found` so, and how the write `left` it.
    pub fn record(&self, key: &Key, wanted: impl Hash, found: impl Hash, left: impl Hash) {
        let [wanted, found] = [self.hasher.hash_one(wanted), self.hasher.hash_one(found)];
        let mut entries = self.entries.lock();
        if entries.by_key.len() >= FEW.max(2 * entries.kept) {
            entries.by_key.retain(|_, entry| !entry.is_over());
            if entries.by_key.len() > MANY {
                entries.by_key.retain(|_, entry| entry.times > 0);
            }
            entries.kept = entries.by_key.len();
        }
        let before = entries.by_key.get(key);
        let before = before.filter(|entry| entry.wanted == wanted && !entry.is_over());
        let (times, told) = before.map_or((0, false), |entry| {
            let is_correction = u32::from(entry.left != found);
            (entry.times.saturating_add(is_correction), entry.told)
        });
        let entry = Entry {
            wanted,
            left: self.hasher.hash_one(left),
            times,
            told,
            last: Instant::now(),
        };
        entries.by_key.insert(key.clone(), entry);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    /// How many corrections there are in this time, of one who is corrected again at once; and how often it was told that
    /// one has to wait.
    async fn count(corrections: &Corrections, wanted: u32, time: Duration) -> (u32, u32) {
        let key = Key::new("n", "d");
        let (end, mut count, mut told) = (Instant::now() + time, 0, 0);
        corrections.record(&key, wanted, "theirs", "ours");
        loop {
            let wait = corrections.wait(&key, wanted, "theirs");
            told += u32::from(wait.is_some_and(|wait| wait.is_first));
            let time = wait.map_or(Duration::ZERO, |wait| wait.time);
            sleep(time.max(Duration::from_millis(10))).await;
            if Instant::now() > end {
                return (count, told);
            }
            corrections.record(&key, wanted, "theirs", "ours");
            count += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_are_made_at_once_and_later_ones_ever_more_slowly() {
        let (second, corrections) = (Duration::from_secs(1), Corrections::default());
        assert_eq!(count(&corrections, 1, second).await, (AT_ONCE, 1));
        // 2, 4, … s.
        for (minutes, most) in [(1, 6), (60, 16)] {
            let (times, told) = count(&corrections, 1, Duration::from_mins(minutes)).await;
            assert!(times <= most, "{times} in {minutes} minutes");
            assert_eq!(told, 0, "again");
        }
        let (a_day, _) = count(&corrections, 1, Duration::from_hours(24)).await;
        assert!((280..=290).contains(&a_day), "{a_day}");
        // Something else is wanted.
        assert_eq!(count(&corrections, 2, second).await, (AT_ONCE, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_alone_for_a_while_is_corrected_at_once_again() {
        let corrections = Corrections::default();
        for _ in 0..2 {
            let second = Duration::from_secs(1);
            assert_eq!(count(&corrections, 1, second).await, (AT_ONCE, 1));
            advance(OVER + 3 * FIRST_PAUSE).await;
        }
        // Nor is one edit in a while a dispute.
        let key = Key::new("n", "e");
        for _ in 0..100 {
            assert_eq!(corrections.wait(&key, 1, "theirs"), None);
            corrections.record(&key, 1, "theirs", "ours");
            advance(OVER + Duration::from_secs(1)).await;
        }
    }

    /// However long the corrections waited: up to 10 minutes, which is what the docs say.
    #[tokio::test(start_paused = true)]
    async fn the_matter_is_over_after_twice_the_pause_and_a_minute() {
        let seconds = Duration::from_secs;
        for (corrections_made, quiet) in [
            (9, 60),
            (11, 60),
            (15, 64),
            (17, 256),
            (18, 512),
            (19, 600),
            (100, 600),
        ] {
            for (alone, at_once) in [(seconds(quiet - 1), false), (seconds(quiet + 1), true)] {
                let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
                for _ in 0..=corrections_made {
                    corrections.record(&key, 1, "theirs", "ours");
                }
                advance(alone).await;
                let (times, told) = count(&corrections, 1, Duration::from_millis(900)).await;
                let of_all = (AT_ONCE, 1);
                assert_eq!(
                    (times, told) == of_all,
                    at_once,
                    "{corrections_made}, {alone:?}: {times}, {told}"
                );
            }
        }
    }

    /// However often: a rollout changes a status many times in a minute.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_has_undone_is_no_correction() {
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        for number in 0..1000 {
            assert_eq!(corrections.wait(&key, 1, number), None);
            corrections.record(&key, 1, number, number + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_is_bounded_by_what_is_corrected_of_late() {
        let corrections = Corrections::default();
        let write = |number: u32| {
            let key = Key::new("n", &number.to_string());
            corrections.record(&key, 1, "theirs", "ours");
            corrections.entries.lock().by_key.len()
        };
        for number in 0..10_000 {
            let entries = write(number);
            advance(Duration::from_secs(1)).await;
            assert!(entries <= FEW.max(2 * 62));
        }
        // Many objects come at once, and somebody disputes a few of them.
        let few = 10_000..10_100;
        for number in few.clone().chain(few).chain(10_100..200_000) {
            assert!(write(number) <= 2 * MANY + 1);
        }
        let disputed = Key::new("n", "10000");
        assert_eq!(corrections.entries.lock().by_key[&disputed].times, 1);
    }
}
