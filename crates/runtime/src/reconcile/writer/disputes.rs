//! Limits disputes: another client reverts every correction that this controller makes.
//!
//! A write is for one reconciled object, its *owner*. It is a *correction* if each field that it sets was last set to the same
//! value by an earlier write for the same owner. The written object must also have changed since the last write. Fields are
//! compared one by one, so that alternating reverts are recognized, too. A new desired value is not a correction, so a rollout
//! in steps is not limited.
//!
//! Creating and deleting an object alternately, within seconds and for the same reason, is a correction as well. A webhook that
//! mutates the object may be the cause. Writes with an unknown outcome are counted, too.
//!
//! The first corrections are sent without delay. After that, the delay doubles from 1 s to 5 min. So a permanent dispute costs
//! the cluster little. The dispute ends when the desired state changes, or when no correction was needed for a while.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::LazyLock,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    api::{key::Key, object::Primary},
    config::backoff::Delays,
};

/// Number of corrections that are sent without delay.
pub(crate) const AT_ONCE: u32 = 10;

/// Delay of the next correction, which doubles for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
static PAUSES: LazyLock<Delays> = LazyLock::new(|| Delays::new(FIRST_PAUSE, LONGEST_PAUSE));

/// A dispute ends after this time without a correction, or after twice the next delay if that is more.
const OVER: Duration = Duration::from_mins(1);

/// Longest time between a creation and a deletion, or the reverse, for the second write to count as a correction. Slower
/// alternation is assumed to be intended.
const SOON: Duration = Duration::from_secs(5);

/// An object gets an [`Entry`] after this number of recent writes. Most objects are written less often, and need only a count.
const OFTEN: u8 = 4;

/// Number of entries below which expired entries are not removed.
const FEW: usize = 64;

/// Maximum number of remembered fields per object. The oldest are forgotten first.
const FIELDS: usize = 64;

/// Pseudo paths for the creation and deletion of the object itself. No patch has such a path.
const THERE: &str = ".there";
const GONE: &str = ".gone";

/// Placeholder for the object's state while no response has shown the result of a write.
const UNKNOWN: &str = ".unknown";

/// Recent writes, and the disputes among them.
#[derive(Default)]
pub(crate) struct DisputeTracker {
    hasher: RandomState,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    counts: Counts,
    /// By fingerprint of the written object's key and the owner's UID.
    by_pair: HashMap<u64, Entry>,
    /// Number of entries after the last removal of expired ones.
    kept: usize,
}

/// Number of recent writes for each pair of object and owner. The size is bounded by the number of pairs written in two
/// minutes. A count needs a twentieth of the memory of an `Entry`.
struct Counts {
    since: Instant,
    late: HashMap<Short, u8>,
    /// Counts of the previous minute.
    earlier: HashMap<Short, u8>,
}

/// Truncated fingerprint, to save memory. A collision only makes both objects get an `Entry` earlier.
type Short = [u8; 5];

impl Default for Counts {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            late: HashMap::new(),
            earlier: HashMap::new(),
        }
    }
}

impl Counts {
    /// Counts a write, and returns the number of recent writes.
    fn add(&mut self, key: u64) -> u8 {
        let [key @ .., _, _, _] = key.to_le_bytes();
        let age = self.since.elapsed();
        if age > OVER {
            let late = std::mem::take(&mut self.late);
            self.earlier = if age > 2 * OVER { HashMap::new() } else { late };
            self.since = Instant::now();
        }
        let count = self.late.entry(key);
        let count = count.or_insert_with(|| self.earlier.get(&key).copied().unwrap_or(0));
        *count = count.saturating_add(1);
        *count
    }

    fn forget(&mut self, key: u64) {
        let [key @ .., _, _, _] = key.to_le_bytes();
        self.late.remove(&key);
        self.earlier.remove(&key);
    }
}

/// Owner of a write: the reconciled object. A dispute belongs to one owner, and ends with a new generation of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester<'a> {
    pub uid: &'a str,
    pub generation: i64,
}

impl<'a> Requester<'a> {
    pub(crate) fn of<P: Primary>(view: &'a P) -> Self {
        Self {
            uid: view.uid(),
            generation: view.generation(),
        }
    }
}

/// Desired state of a written object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Desired<'a> {
    /// The object has these fields.
    Fields(&'a Value),
    /// The object exists, or does not. The number is a fingerprint of the objects that the reconciled object refers to.
    Present(u64),
    Absent(u64),
}

/// Fingerprints of a field's path and of its value.
type Field = (u64, u64);

struct Entry {
    /// The written object.
    key: Key,
    /// Generation of the owner.
    generation: i64,
    /// Fields that were set, each with its last value.
    asked: Vec<Field>,
    /// Whether the last write deleted the object.
    deleted: bool,
    /// Fingerprint of the object after the last write.
    left: u64,
    /// Writes before this entry existed. They count as corrections, because their content is unknown.
    counted: u32,
    /// Corrections since this entry exists.
    times: u32,
    /// Consecutive writes with an unknown outcome.
    unknown: u32,
    /// Whether a delay of this dispute was reported.
    told: bool,
    last: Instant,
}

impl Entry {
    fn pause(&self) -> Duration {
        let times = [self.counted, self.times, self.unknown];
        let times = times.into_iter().fold(0, u32::saturating_add);
        match times.checked_sub(AT_ONCE) {
            None => Duration::ZERO,
            Some(more) => PAUSES.after(more),
        }
    }

    /// Returns whether a write of these `fields` is a correction of the object in the state `found`.
    ///
    /// It is one if another client has changed the object since the last write. It is also one if it creates the object soon
    /// after its deletion here, or the reverse.
    fn is_corrected(&self, asked: Desired<'_>, fields: &[Field], found: u64) -> bool {
        let is_undone = match asked {
            Desired::Present(_) if self.deleted => self.last.elapsed() < SOON,
            Desired::Absent(_) if !self.deleted => self.last.elapsed() < SOON,
            _ => self.left != found,
        };
        is_undone && fields.iter().all(|field| self.asked.contains(field))
    }

    /// Returns the remaining delay of the next correction for the owner `by`. `None` if the delay has passed, the dispute is
    /// over, or the owner has a new generation.
    fn wait(&self, by: Requester<'_>) -> Option<Wait> {
        let time = self.pause().saturating_sub(self.last.elapsed());
        let holds = !time.is_zero() && !self.is_over() && self.generation == by.generation;
        holds.then_some(Wait {
            time,
            is_undone: self.counted.saturating_add(self.times) >= AT_ONCE,
            is_first: false,
        })
    }

    fn is_over(&self) -> bool {
        self.last.elapsed() > OVER.max(self.pause() * 2)
    }
}

/// Delay of a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Remaining time.
    pub time: Duration,
    /// Whether reverts are the reason. Otherwise, the outcomes of earlier writes are unknown.
    pub is_undone: bool,
    /// Whether this is the first delay of the dispute.
    pub is_first: bool,
}

impl DisputeTracker {
    /// Returns the delay of a write for the owner `by`, if it has to wait. `found` is the object's current state.
    #[must_use]
    pub(crate) fn wait(
        &self,
        key: &Key,
        by: Requester<'_>,
        asked: Desired<'_>,
        found: impl Hash,
    ) -> Option<Wait> {
        let mut entries = self.entries.lock();
        let entry = entries.by_pair.get_mut(&self.pair(key, by))?;
        // The common case: no fingerprints needed.
        let wait = entry.wait(by)?;
        let fields = self.fingerprints(asked);
        if !entry.is_corrected(asked, &fields, self.hasher.hash_one(found)) {
            return None;
        }
        let is_first = wait.is_undone && !std::mem::replace(&mut entry.told, true);
        Some(Wait { is_first, ..wait })
    }

    /// Returns the remaining delay of the next correction, if the object may need one: its state `found` differs from the state
    /// after the last write.
    #[must_use]
    pub(crate) fn of(&self, key: &Key, by: Requester<'_>, found: impl Hash) -> Option<Wait> {
        let entries = self.entries.lock();
        let entry = entries.by_pair.get(&self.pair(key, by))?;
        entry
            .wait(by)
            .filter(|_| entry.left != self.hasher.hash_one(found))
    }

    /// Records a write for the owner `by`, with the object's state before (`found`) and after the write (`left`). `left` is
    /// `None` if the outcome is unknown.
    ///
    /// Sometimes removes expired entries. If `exists` returns `false` for an object, this also removes the entry of the object,
    /// unless it counts corrections.
    pub(crate) fn record(
        &self,
        key: &Key,
        by: Requester<'_>,
        asked: Desired<'_>,
        found: impl Hash,
        left: Option<impl Hash>,
        exists: impl Fn(&Key) -> bool,
    ) {
        let found = self.hasher.hash_one(found);
        let left = left.map(|left| self.hasher.hash_one(left));
        let mut entries = self.entries.lock();
        let pair = self.pair(key, by);
        let count = entries.counts.add(pair);
        if count < OFTEN && !entries.by_pair.contains_key(&pair) {
            return;
        }
        let mut fields = self.fingerprints(asked);
        if entries.by_pair.len() >= FEW.max(2 * entries.kept) {
            let matters = |entry: &Entry| entry.times + entry.unknown > 0 || exists(&entry.key);
            let by_pair = &mut entries.by_pair;
            by_pair.retain(|_, entry| !entry.is_over() && matters(entry));
            entries.kept = entries.by_pair.len();
        }
        let before = entries.by_pair.remove(&pair);
        // The first write was no correction.
        let is_known = left.is_some();
        let (counted, unknown) = match before {
            None if count == OFTEN && is_known => (u32::from(OFTEN) - 1, 0),
            None if count == OFTEN => (0, u32::from(OFTEN) - 1),
            _ => (0, 0),
        };
        let before = before.filter(|entry| entry.generation == by.generation && !entry.is_over());
        let (counted, times, unknown, told) =
            before
                .as_ref()
                .map_or((counted, 0, unknown, false), |entry| {
                    let is_correction =
                        is_known && entry.unknown == 0 && entry.is_corrected(asked, &fields, found);
                    let unknown = if is_known {
                        0
                    } else {
                        entry.unknown.saturating_add(1)
                    };
                    (
                        entry.counted,
                        entry.times.saturating_add(u32::from(is_correction)),
                        unknown,
                        entry.told,
                    )
                });
        // Without a response: the last known state, or a state that no object has.
        let left = left.or(before.as_ref().map(|entry| entry.left));
        let left = left.unwrap_or_else(|| self.hasher.hash_one(UNKNOWN));
        let mut earlier = before.map_or_else(Vec::new, |entry| entry.asked);
        earlier.retain(|(path, _)| fields.iter().all(|(new, _)| new != path));
        if matches!(asked, Desired::Absent(_)) {
            // The other fields are deleted with the object. Only its re-creation can be a correction.
            let there = self.hasher.hash_one(THERE);
            earlier.retain(|(path, _)| *path == there);
        }
        earlier.truncate(FIELDS.saturating_sub(fields.len()));
        fields.append(&mut earlier);
        let entry = Entry {
            key: key.clone(),
            generation: by.generation,
            asked: fields,
            deleted: matches!(asked, Desired::Absent(_)),
            left,
            counted,
            times,
            unknown,
            told,
            last: Instant::now(),
        };
        entries.by_pair.insert(pair, entry);
    }

    /// Forgets the writes of an object for the owner `by`.
    pub(crate) fn forget(&self, key: &Key, by: Requester<'_>) {
        let mut entries = self.entries.lock();
        let pair = self.pair(key, by);
        entries.by_pair.remove(&pair);
        entries.counts.forget(pair);
    }

    fn pair(&self, key: &Key, by: Requester<'_>) -> u64 {
        self.hasher.hash_one((key, by.uid))
    }

    /// Returns the fingerprints of the desired fields. If there are more than `FIELDS`, they get a single fingerprint.
    fn fingerprints(&self, asked: Desired<'_>) -> Vec<Field> {
        let print = |(path, value): (String, &Value)| {
            let value = self.hasher.hash_one(value.to_string());
            (self.hasher.hash_one(path), value)
        };
        let patch = match asked {
            Desired::Present(inputs) => return vec![(self.hasher.hash_one(THERE), inputs)],
            Desired::Absent(inputs) => return vec![(self.hasher.hash_one(GONE), inputs)],
            Desired::Fields(patch) => patch,
        };
        let fields = fields(patch);
        if fields.len() > FIELDS {
            return vec![print((".".to_owned(), patch))];
        }
        fields.into_iter().map(print).collect()
    }
}

/// Returns the fields of a patch, each with its path. A list is one field.
pub(crate) fn fields(patch: &Value) -> Vec<(String, &Value)> {
    fn add<'a>(path: &str, value: &'a Value, fields: &mut Vec<(String, &'a Value)>) {
        match value.as_object().filter(|map| !map.is_empty()) {
            None => fields.push((path.to_owned(), value)),
            Some(map) => add_all(path, map, fields),
        }
    }
    fn add_all<'a>(path: &str, map: &'a Map<String, Value>, fields: &mut Vec<(String, &'a Value)>) {
        for (name, value) in map {
            let dot = if path.is_empty() { "" } else { "." };
            add(&format!("{path}{dot}{name}"), value, fields);
        }
    }
    let mut fields = Vec::new();
    add("", patch, &mut fields);
    fields
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::{advance, sleep};

    use super::*;

    fn of(generation: i64) -> Requester<'static> {
        Requester {
            uid: "a",
            generation,
        }
    }

    /// Reverts each correction immediately, for this `time`. Returns the number of corrections, and of reported disputes.
    async fn count(corrections: &DisputeTracker, generation: i64, time: Duration) -> (u32, u32) {
        let key = Key::new("n", "d");
        let (end, mut count, mut told) = (Instant::now() + time, 0, 0);
        corrections.record(
            &key,
            of(generation),
            Desired::Present(0),
            "theirs",
            Some("ours"),
            |_| true,
        );
        loop {
            let wait = corrections.wait(&key, of(generation), Desired::Present(0), "theirs");
            told += u32::from(wait.is_some_and(|wait| wait.is_first));
            let time = wait.map_or(Duration::ZERO, |wait| wait.time);
            sleep(time.max(Duration::from_millis(10))).await;
            if Instant::now() > end {
                return (count, told);
            }
            corrections.record(
                &key,
                of(generation),
                Desired::Present(0),
                "theirs",
                Some("ours"),
                |_| true,
            );
            count += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn r6b_first_corrections_are_immediate_and_later_ones_delayed() {
        let (second, corrections) = (Duration::from_secs(1), DisputeTracker::default());
        assert_eq!(count(&corrections, 1, second).await, (AT_ONCE, 1));
        // The next delays are 2, 4, … s.
        for (minutes, most) in [(1, 6), (60, 16)] {
            let (times, told) = count(&corrections, 1, Duration::from_mins(minutes)).await;
            assert!(times <= most, "{times} in {minutes} minutes");
            assert_eq!(told, 0, "again");
        }
        let (a_day, _) = count(&corrections, 1, Duration::from_hours(24)).await;
        assert!((280..=290).contains(&a_day), "{a_day}");
        // A new generation is another dispute, and so is one that was forgotten.
        assert_eq!(count(&corrections, 2, second).await, (AT_ONCE, 1));
        corrections.forget(&Key::new("n", "d"), of(2));
        assert_eq!(count(&corrections, 2, second).await, (AT_ONCE, 1));
    }

    /// The first write with a known outcome ends an outage, however long. An outage is no dispute.
    #[tokio::test(start_paused = true)]
    async fn an_outage_is_not_a_dispute() {
        for failed in [u32::from(OFTEN), 20, 100] {
            let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
            let asked = Desired::Present(0);
            for _ in 0..failed {
                corrections.record(&key, of(1), asked, "theirs", None::<u64>, |_| true);
            }
            let wait = corrections.wait(&key, of(1), asked, "theirs");
            assert!(!wait.is_some_and(|wait| wait.is_undone || wait.is_first));
            assert_eq!(wait.is_some(), failed > AT_ONCE, "{failed}");
            assert_eq!(corrections.wait(&key, of(2), asked, "theirs"), None);
            assert_eq!(
                count(&corrections, 1, Duration::from_secs(1)).await,
                (AT_ONCE, 1),
                "{failed}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn corrections_are_immediate_again_after_a_quiet_period() {
        let corrections = DisputeTracker::default();
        for _ in 0..2 {
            let second = Duration::from_secs(1);
            assert_eq!(count(&corrections, 1, second).await, (AT_ONCE, 1));
            advance(OVER + 3 * FIRST_PAUSE).await;
        }
        // An occasional edit is no dispute.
        let key = Key::new("n", "e");
        for _ in 0..100 {
            assert_eq!(
                corrections.wait(&key, of(1), Desired::Present(0), "theirs"),
                None
            );
            corrections.record(
                &key,
                of(1),
                Desired::Present(0),
                "theirs",
                Some("ours"),
                |_| true,
            );
            advance(OVER + Duration::from_secs(1)).await;
        }
    }

    /// The time that ends a dispute is at most 10 minutes, as documented.
    #[tokio::test(start_paused = true)]
    async fn a_dispute_ends_after_twice_the_pause_and_a_minute() {
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
                let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
                for _ in 0..=corrections_made {
                    corrections.record(
                        &key,
                        of(1),
                        Desired::Present(0),
                        "theirs",
                        Some("ours"),
                        |_| true,
                    );
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

    /// Values for `Desired::Present` and `Desired::Absent`.
    const THERE: Value = Value::Bool(true);
    const GONE: Value = Value::Bool(false);

    /// Returns whether any of 1,000 writes has to wait. Each finds the object in the state `found`. They are half a second
    /// apart.
    async fn waits(asked: impl Fn(u32) -> Value, found: impl Fn(u32) -> u32) -> bool {
        let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = asked(number);
            let asked = match asked {
                Value::Bool(true) => Desired::Present(0),
                Value::Bool(false) => Desired::Absent(0),
                ref patch => Desired::Fields(patch),
            };
            if corrections
                .wait(&key, of(1), asked, found(number))
                .is_some()
            {
                return true;
            }
            corrections.record(&key, of(1), asked, found(number), Some(number), |_| true);
            advance(Duration::from_millis(500)).await;
        }
        false
    }

    /// A write is never delayed if its values are new, or if no other client has touched the object.
    #[tokio::test(start_paused = true)]
    async fn a_write_without_a_revert_is_no_correction() {
        let changed = |number: u32| number + 1000;
        let step =
            |number| json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "step": number } });
        assert!(!waits(step, changed).await, "steps");
        let toggle = |number| json!({ "spec": { "on": number % 2 == 0 } });
        assert!(!waits(toggle, changed).await, "on and off");
        let same = |_| json!({ "spec": { "step": 1 } });
        assert!(
            !waits(same, |number| number.wrapping_sub(1)).await,
            "as it was left"
        );
    }

    /// Creating and deleting an object alternately is delayed, even if no other client touches it. A webhook that mutates each
    /// new object is enough.
    #[tokio::test(start_paused = true)]
    async fn r6b_alternate_creation_and_deletion_is_delayed() {
        for found in [
            |number: u32| number + 1000,
            |number: u32| number.wrapping_sub(1),
        ] {
            let anew = |number| if number % 2 == 0 { THERE } else { GONE };
            assert!(waits(anew, found).await, "made and deleted");
            let one_by_one = |number| match number % 3 {
                0 => THERE,
                1 => json!({ "spec": { "step": 1 } }),
                _ => GONE,
            };
            assert!(waits(one_by_one, found).await, "and changed between");
        }
        // Slow alternation, such as a task that is run repeatedly.
        let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = if number % 2 == 0 {
                Desired::Present
            } else {
                Desired::Absent
            }(0);
            assert_eq!(corrections.wait(&key, of(1), asked, number), None);
            corrections.record(&key, of(1), asked, number, Some(number + 1), |_| true);
            advance(SOON).await;
        }
        // Changes of the referenced objects cause each write.
        let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = if number % 2 == 0 {
                Desired::Present
            } else {
                Desired::Absent
            }(number);
            assert_eq!(corrections.wait(&key, of(1), asked, number), None);
            corrections.record(&key, of(1), asked, number, Some(number + 1), |_| true);
        }
    }

    /// Two owners specify one object, and another client deletes it after each creation.
    #[tokio::test(start_paused = true)]
    async fn r6b_corrections_for_several_owners_are_delayed() {
        let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
        let mut made = 0;
        for number in 0..1000 {
            let uid = ["a", "b"][number % 2];
            let by = Requester { uid, generation: 1 };
            let asked = Desired::Present(0);
            if corrections.wait(&key, by, asked, 0).is_none() {
                corrections.record(&key, by, asked, 0, Some(number), |_| false);
                made += 1;
            }
            advance(Duration::from_millis(10)).await;
        }
        // For each owner: the first creation, the corrections without delay, and three after 1, 2 and 4 s.
        assert_eq!(made, 2 * (1 + AT_ONCE + 3));
    }

    /// The revert may affect other fields each time.
    #[tokio::test(start_paused = true)]
    async fn a_write_after_a_revert_is_a_correction() {
        let changed = |number: u32| number + 1000;
        let same = |_| json!({ "spec": { "step": 1 } });
        assert!(waits(same, changed).await, "one field");
        let fields = |number: u32| {
            let value = |bit: u32| (number & bit != 0).then_some(Some("ours"));
            let all = [("a", value(1)), ("b", value(2)), ("c", value(4))];
            let asked = all.into_iter().filter(|(_, value)| value.is_some());
            json!({ "made for": "it", "data": asked.collect::<HashMap<_, _>>() })
        };
        assert!(
            waits(|number| fields(1 + number % 7), changed).await,
            "any of three"
        );
        let gone_or_edited = |number| if number % 2 == 0 { THERE } else { fields(1) };
        assert!(waits(gone_or_edited, changed).await, "deleted or edited");
        let many = |_| {
            let names = (0..10 * FIELDS).map(|number| (number.to_string(), 1));
            json!({ "data": names.collect::<HashMap<_, _>>() })
        };
        assert!(waits(many, changed).await, "many fields");
    }

    #[test]
    fn no_more_than_some_fields_are_remembered() {
        let (corrections, key) = (DisputeTracker::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = json!({ "data": { (number.to_string()): 1 } });
            corrections.record(
                &key,
                of(1),
                Desired::Fields(&asked),
                number,
                Some(number + 1),
                |_| true,
            );
        }
        assert_eq!(
            corrections.entries.lock().by_pair[&corrections.pair(&key, of(1))]
                .asked
                .len(),
            FIELDS
        );
    }

    /// Disputes about 50,000 objects at a time are all recognized. An upgrade of a webhook may cause them.
    #[tokio::test(start_paused = true)]
    async fn reverts_of_many_objects_are_corrected_with_backoff() {
        let corrections = DisputeTracker::default();
        let keys: Vec<_> = (0..50_000).map(|n| Key::new("n", &n.to_string())).collect();
        for round in 0..12 {
            let written = keys.iter().filter(|key| {
                let is_written = corrections
                    .wait(key, of(1), Desired::Present(0), "theirs")
                    .is_none();
                if is_written {
                    corrections.record(
                        key,
                        of(1),
                        Desired::Present(0),
                        "theirs",
                        Some("ours"),
                        |_| true,
                    );
                }
                is_written
            });
            let all = if round <= AT_ONCE { keys.len() } else { 0 };
            assert_eq!(written.count(), all, "round {round}");
            advance(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_is_bounded_by_recent_writes_and_corrections() {
        let corrections = DisputeTracker::default();
        let write = |number: u32| {
            let young = |key: &Key| {
                let born: u32 = key.name().parse().unwrap_or(0);
                number.saturating_sub(born) < 1000
            };
            let key = Key::new("n", &number.to_string());
            corrections.record(
                &key,
                of(1),
                Desired::Present(0),
                "theirs",
                Some("ours"),
                young,
            );
            let entries = corrections.entries.lock();
            let counts = entries.counts.late.len() + entries.counts.earlier.len();
            (entries.by_pair.len(), counts)
        };
        for number in 0..10_000 {
            let (entries, counts) = write(number);
            advance(Duration::from_secs(1)).await;
            assert_eq!(entries, 0, "written once");
            assert!(counts <= 2 * 62, "{counts}");
        }
        // Each object is written often, and then left alone.
        for number in (0..40_000).map(|number| 10_000 + number / 10) {
            let (entries, counts) = write(number);
            advance(Duration::from_millis(100)).await;
            assert!(entries <= FEW.max(2 * 62) && counts <= 2 * 62);
        }
        advance(2 * OVER).await;
        // Many short-lived objects, and disputes about a few others.
        let disputed: Vec<_> = (50_000..50_100).collect();
        let many = (50_100..200_000).flat_map(|number| [number; OFTEN as usize]);
        for number in disputed
            .repeat(usize::from(OFTEN) + 1)
            .into_iter()
            .chain(many)
        {
            let (entries, _) = write(number);
            assert!(entries <= 2 * 1101 + 1, "{entries}");
        }
        let disputed = Key::new("n", "50000");
        assert_eq!(
            corrections.entries.lock().by_pair[&corrections.pair(&disputed, of(1))].times,
            1
        );
    }
}
