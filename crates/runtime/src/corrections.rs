//! Corrections that have to be made again and again: somebody else, a second operator perhaps, has a mind of their own about
//! an object, and each correction brings on the next.
//!
//! The first few are made at once. Then each waits twice as long as the one before, so that two who never agree cost the
//! cluster little, until what is wanted changes or the other one leaves the object alone for a while.

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

/// When nothing had to be corrected for so long, beyond what the corrections wait themselves, the matter is over.
const OVER: Duration = Duration::from_mins(1);

/// So many entries are not worth a look at which of them are over.
const FEW: usize = 64;

/// What was corrected of late.
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
    /// Fingerprint of what the corrections were made for.
    wanted: u64,
    times: u32,
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
        self.last.elapsed() > OVER + self.pause() * 2
    }
}

impl Corrections {
    /// How long the next correction of this object has to wait, as it is wanted.
    #[must_use]
    pub fn wait(&self, key: &Key, wanted: impl Hash) -> Duration {
        let wanted = self.hasher.hash_one(wanted);
        let entries = self.entries.lock();
        let entry = entries.by_key.get(key);
        let entry = entry.filter(|entry| entry.wanted == wanted && !entry.is_over());
        entry.map_or(Duration::ZERO, |entry| {
            entry.pause().saturating_sub(entry.last.elapsed())
        })
    }

    /// Notes that the object was corrected.
    pub fn record(&self, key: &Key, wanted: impl Hash) {
        let wanted = self.hasher.hash_one(wanted);
        let mut entries = self.entries.lock();
        if entries.by_key.len() >= FEW.max(2 * entries.kept) {
            entries.by_key.retain(|_, entry| !entry.is_over());
            entries.kept = entries.by_key.len();
        }
        let before = entries.by_key.get(key);
        let before = before.filter(|entry| entry.wanted == wanted && !entry.is_over());
        let times = before.map_or(0, |entry| entry.times).saturating_add(1);
        let last = Instant::now();
        let entry = Entry {
            wanted,
            times,
            last,
        };
        entries.by_key.insert(key.clone(), entry);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    /// How many corrections there are in this time, of one who is corrected again at once.
    async fn count(corrections: &Corrections, wanted: u32, time: Duration) -> u32 {
        let key = Key::new("n", "d");
        let (end, mut count) = (Instant::now() + time, 0);
        loop {
            sleep(
                corrections
                    .wait(&key, wanted)
                    .max(Duration::from_millis(10)),
            )
            .await;
            if Instant::now() > end {
                return count;
            }
            corrections.record(&key, wanted);
            count += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_are_made_at_once_and_later_ones_ever_more_slowly() {
        let corrections = Corrections::default();
        assert_eq!(
            count(&corrections, 1, Duration::from_secs(1)).await,
            AT_ONCE
        );
        // 1, 2, 4, … s.
        assert!(count(&corrections, 1, Duration::from_mins(1)).await <= 6);
        assert!(count(&corrections, 1, Duration::from_hours(1)).await <= 16);
        let a_day = count(&corrections, 1, Duration::from_hours(24)).await;
        assert!((280..=290).contains(&a_day), "{a_day}");
        // Something else is wanted.
        assert_eq!(
            count(&corrections, 2, Duration::from_secs(1)).await,
            AT_ONCE
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_alone_for_a_while_is_corrected_at_once_again() {
        let corrections = Corrections::default();
        for _ in 0..2 {
            assert_eq!(
                count(&corrections, 1, Duration::from_secs(1)).await,
                AT_ONCE
            );
            advance(OVER + 3 * FIRST_PAUSE).await;
        }
        // Nor is one edit in a while a dispute.
        for _ in 0..100 {
            assert!(corrections.wait(&Key::new("n", "e"), 1).is_zero());
            corrections.record(&Key::new("n", "e"), 1);
            advance(OVER + Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_is_bounded_by_what_is_corrected_of_late() {
        let corrections = Corrections::default();
        for number in 0..10_000 {
            corrections.record(&Key::new("n", &number.to_string()), 1);
            advance(Duration::from_secs(1)).await;
            assert!(corrections.entries.lock().by_key.len() <= FEW.max(2 * 62));
        }
    }
}
