//! Writes that are undone again and again: somebody else, a second operator perhaps, has a mind of their own about an object,
//! and each correction brings on the next.
//!
//! A write is a correction where it asks for nothing but what was asked before for the same, and taken back by nobody
//! here: field by field, so that who edits now this field and now that one is known, too. An object that has only gone
//! on, by its status or by what others keep in it, is undone by nobody, and the next step of a kind that follows it
//! asks for something new. But what is made and deleted here in turn, for the same and within seconds, is undone, too: what
//! comes of it each time, a webhook's doing perhaps, is not what was asked for. Nor is it known of a write whose answer never
//! came, or could not be read, whether it was made. The first few are made at once. Then each waits twice as long as the one before, so that two
//! who never agree cost the cluster little, until what is wanted changes or the other one leaves the object alone for a
//! while.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::api::key::Key;

/// So many are made at once.
pub const AT_ONCE: u32 = 10;

/// How long the next one waits, which is doubled for each that follows.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// When nothing had to be corrected for twice as long as the next one would have waited, and for this, the matter is over.
const OVER: Duration = Duration::from_mins(1);

/// What is made and deleted in turn is so for a reason, if it takes longer.
const SOON: Duration = Duration::from_secs(5);

/// So many writes of one object, no further apart than this, and more is remembered of it than their number: most objects
/// are left alone long before.
const OFTEN: u8 = 4;

/// So many entries are not worth a look at which of them are over.
const FEW: usize = 64;

/// So many fields are remembered of what was asked of one object, the last ones.
const FIELDS: usize = 64;

/// What stands for the path of a field where the object itself is made or deleted. No patch has such a path.
const THERE: &str = ".there";
const GONE: &str = ".gone";

/// What stands for an object that was never seen as a write left it.
const UNKNOWN: &str = ".unknown";

/// What was written of late.
#[derive(Default)]
pub struct Corrections {
    hasher: RandomState,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    counts: Counts,
    /// By fingerprints of what was written, and of whom for.
    by_pair: HashMap<u64, Entry>,
    /// How many there were when those that are over were last dropped.
    kept: usize,
}

/// How often each object was written of late. It is bounded by what is written in two minutes, at a twentieth of what an
/// [`Entry`] takes.
struct Counts {
    since: Instant,
    late: HashMap<Short, u8>,
    /// In the minute before.
    earlier: HashMap<Short, u8>,
}

/// What is kept of the fingerprint of a key: there are many, and two that share one are both remembered a little early.
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
    /// Counts one more, and returns how many there are.
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
}

/// The object being reconciled, as it is: what another one asks for, of the same object perhaps, is another matter, and so is
/// what it asks for as soon as it is another.
#[derive(Clone, Copy, Debug)]
pub struct WantedBy<'a> {
    pub uid: &'a str,
    pub generation: i64,
}

/// What is asked of an object.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// That these fields are so.
    Fields(&'a Value),
    /// That it is there, or is not, by what the object reconciled refers to, of which this is a fingerprint.
    There(u64),
    Gone(u64),
}

/// Fingerprints of a field's path and of its value.
type Field = (u64, u64);

struct Entry {
    /// What was written.
    key: Key,
    /// The generation that it was written for.
    generation: i64,
    /// Fingerprints of the fields that were asked for, and of what was asked of each last.
    asked: Vec<Field>,
    /// Whether the last one deleted it.
    deleted: bool,
    /// Fingerprint of the object as the last one left it.
    left: u64,
    /// How many writes there were before, of which nothing else is known. They are taken for corrections.
    counted: u32,
    /// How many of those since were corrections.
    times: u32,
    /// How many there were since the last one of which is known what came of it.
    unknown: u32,
    /// Whether it was told that one has to wait.
    told: bool,
    last: Instant,
}

impl Entry {
    fn pause(&self) -> Duration {
        let times = [self.counted, self.times, self.unknown];
        let times = times.into_iter().fold(0, u32::saturating_add);
        match times.checked_sub(AT_ONCE) {
            None => Duration::ZERO,
            Some(more) => FIRST_PAUSE
                .saturating_mul(2_u32.saturating_pow(more))
                .min(LONGEST_PAUSE),
        }
    }

    /// Whether a write that asks for this, which are these `fields`, undoes what somebody else did to the object, which was
    /// `found` so; or, soon after it, what was done here, where the object is made that was deleted last, or the other way round.
    fn is_corrected(&self, asked: Asked<'_>, fields: &[Field], found: u64) -> bool {
        let is_undone = match asked {
            Asked::There(_) if self.deleted => self.last.elapsed() < SOON,
            Asked::Gone(_) if !self.deleted => self.last.elapsed() < SOON,
            _ => self.left != found,
        };
        is_undone && fields.iter().all(|field| self.asked.contains(field))
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
    /// Whether it is known that somebody undoes it, and not only unknown what came of it.
    pub is_undone: bool,
    /// Whether it is the first one of those since the object was left alone.
    pub is_first: bool,
}

impl Corrections {
    /// Whether a write that asks this of the object, wanted `by` that one, has to wait, where it was `found` so.
    #[must_use]
    pub fn wait(
        &self,
        key: &Key,
        by: WantedBy<'_>,
        asked: Asked<'_>,
        found: impl Hash,
    ) -> Option<Wait> {
        let mut entries = self.entries.lock();
        let entry = entries.by_pair.get_mut(&self.pair(key, by))?;
        let time = entry.pause().saturating_sub(entry.last.elapsed());
        // Mostly so, and then nothing else is asked.
        if time.is_zero() || entry.is_over() || entry.generation != by.generation {
            return None;
        }
        let fields = self.fingerprints(asked);
        if !entry.is_corrected(asked, &fields, self.hasher.hash_one(found)) {
            return None;
        }
        let is_undone = entry.counted.saturating_add(entry.times) >= AT_ONCE;
        let is_first = is_undone && !std::mem::replace(&mut entry.told, true);
        Some(Wait {
            time,
            is_undone,
            is_first,
        })
    }

    /// Notes a write that `asked` this of an object that was `found` so, and how the write `left` it.
    ///
    /// Of what was written of late, that is remembered which `exists`, and what was corrected.
    pub fn record(
        &self,
        key: &Key,
        by: WantedBy<'_>,
        asked: Asked<'_>,
        found: impl Hash,
        left: impl Hash,
        exists: impl Fn(&Key) -> bool,
    ) {
        let left = Some(self.hasher.hash_one(left));
        self.note(key, by, asked, self.hasher.hash_one(found), left, exists);
    }

    /// Notes a write, as [`record`](Self::record) does, of which it is not known whether it was made.
    pub fn record_unknown(
        &self,
        key: &Key,
        by: WantedBy<'_>,
        asked: Asked<'_>,
        found: impl Hash,
        exists: impl Fn(&Key) -> bool,
    ) {
        self.note(key, by, asked, self.hasher.hash_one(found), None, exists);
    }

    fn note(
        &self,
        key: &Key,
        by: WantedBy<'_>,
        asked: Asked<'_>,
        found: u64,
        left: Option<u64>,
        exists: impl Fn(&Key) -> bool,
    ) {
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
        // The first of them was none.
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
        // As it was left last, so far as is known; else as nobody finds it.
        let left = left.or(before.as_ref().map(|entry| entry.left));
        let left = left.unwrap_or_else(|| self.hasher.hash_one(UNKNOWN));
        let mut earlier = before.map_or_else(Vec::new, |entry| entry.asked);
        earlier.retain(|(path, _)| fields.iter().all(|(new, _)| new != path));
        if matches!(asked, Asked::Gone(_)) {
            // Nothing else is asked of it any more, but to be there again.
            let there = self.hasher.hash_one(THERE);
            earlier.retain(|(path, _)| *path == there);
        }
        earlier.truncate(FIELDS.saturating_sub(fields.len()));
        fields.append(&mut earlier);
        let entry = Entry {
            key: key.clone(),
            generation: by.generation,
            asked: fields,
            deleted: matches!(asked, Asked::Gone(_)),
            left,
            counted,
            times,
            unknown,
            told,
            last: Instant::now(),
        };
        entries.by_pair.insert(pair, entry);
    }

    fn pair(&self, key: &Key, by: WantedBy<'_>) -> u64 {
        self.hasher.hash_one((key, by.uid))
    }

    /// Those of more fields than are remembered are taken together.
    fn fingerprints(&self, asked: Asked<'_>) -> Vec<Field> {
        let print = |(path, value): (String, &Value)| {
            let value = self.hasher.hash_one(value.to_string());
            (self.hasher.hash_one(path), value)
        };
        let patch = match asked {
            Asked::There(inputs) => return vec![(self.hasher.hash_one(THERE), inputs)],
            Asked::Gone(inputs) => return vec![(self.hasher.hash_one(GONE), inputs)],
            Asked::Fields(patch) => patch,
        };
        let fields = fields(patch);
        if fields.len() > FIELDS {
            return vec![print((".".to_owned(), patch))];
        }
        fields.into_iter().map(print).collect()
    }
}

/// The fields of a patch, each with its path. A list is one field.
pub fn fields(patch: &Value) -> Vec<(String, &Value)> {
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

    fn of(generation: i64) -> WantedBy<'static> {
        WantedBy {
            uid: "a",
            generation,
        }
    }

    /// How many corrections there are in this time, of one who is corrected again at once; and how often it was told that
    /// one has to wait.
    async fn count(corrections: &Corrections, generation: i64, time: Duration) -> (u32, u32) {
        let key = Key::new("n", "d");
        let (end, mut count, mut told) = (Instant::now() + time, 0, 0);
        corrections.record(
            &key,
            of(generation),
            Asked::There(0),
            "theirs",
            "ours",
            |_| true,
        );
        loop {
            let wait = corrections.wait(&key, of(generation), Asked::There(0), "theirs");
            told += u32::from(wait.is_some_and(|wait| wait.is_first));
            let time = wait.map_or(Duration::ZERO, |wait| wait.time);
            sleep(time.max(Duration::from_millis(10))).await;
            if Instant::now() > end {
                return (count, told);
            }
            corrections.record(
                &key,
                of(generation),
                Asked::There(0),
                "theirs",
                "ours",
                |_| true,
            );
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

    /// An outage, of whatever length, is over with the first write that is known to be made: nobody disputes anything.
    #[tokio::test(start_paused = true)]
    async fn what_is_known_again_is_not_what_was_unknown() {
        for failed in [u32::from(OFTEN), 20, 100] {
            let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
            let asked = Asked::There(0);
            for _ in 0..failed {
                corrections.record_unknown(&key, of(1), asked, "theirs", |_| true);
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
            assert_eq!(
                corrections.wait(&key, of(1), Asked::There(0), "theirs"),
                None
            );
            corrections.record(&key, of(1), Asked::There(0), "theirs", "ours", |_| true);
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
                    corrections.record(&key, of(1), Asked::There(0), "theirs", "ours", |_| true);
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

    /// That the object is there, or is not.
    const THERE: Value = Value::Bool(true);
    const GONE: Value = Value::Bool(false);

    /// Whether the last of many writes waits, each `asked` in turn of an object that somebody has changed since; and
    /// half a second after the one before.
    async fn waits(asked: impl Fn(u32) -> Value, found: impl Fn(u32) -> u32) -> bool {
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = asked(number);
            let asked = match asked {
                Value::Bool(true) => Asked::There(0),
                Value::Bool(false) => Asked::Gone(0),
                ref patch => Asked::Fields(patch),
            };
            if corrections
                .wait(&key, of(1), asked, found(number))
                .is_some()
            {
                return true;
            }
            corrections.record(&key, of(1), asked, found(number), number, |_| true);
            advance(Duration::from_millis(500)).await;
        }
        false
    }

    /// However often it is written: what is asked for is new, or nobody has touched the object since.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_has_undone_is_no_correction() {
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

    /// Row Q3: nobody else need have touched what is made and deleted again and again, for the same; a webhook that makes
    /// something else of it each time is enough.
    #[tokio::test(start_paused = true)]
    async fn q3_what_is_made_and_deleted_again_and_again_waits() {
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
        // What is run, looked at, and run again.
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = if number % 2 == 0 {
                Asked::There
            } else {
                Asked::Gone
            }(0);
            assert_eq!(corrections.wait(&key, of(1), asked, number), None);
            corrections.record(&key, of(1), asked, number, number + 1, |_| true);
            advance(SOON).await;
        }
        // What is read of others says each time that it is to be otherwise.
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = if number % 2 == 0 {
                Asked::There
            } else {
                Asked::Gone
            }(number);
            assert_eq!(corrections.wait(&key, of(1), asked, number), None);
            corrections.record(&key, of(1), asked, number, number + 1, |_| true);
        }
    }

    /// Row Q3: two that want one object, which somebody else deletes whenever one of them has made it.
    #[tokio::test(start_paused = true)]
    async fn q3_who_undoes_what_several_ask_for_is_answered_ever_more_slowly() {
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        let mut made = 0;
        for number in 0..1000 {
            let uid = ["a", "b"][number % 2];
            let by = WantedBy { uid, generation: 1 };
            let asked = Asked::There(0);
            if corrections.wait(&key, by, asked, 0).is_none() {
                corrections.record(&key, by, asked, 0, number, |_| false);
                made += 1;
            }
            advance(Duration::from_millis(10)).await;
        }
        // Of each the first, which corrects nothing, those that are made at once, and those after 1, 2 and 4 s.
        assert_eq!(made, 2 * (1 + AT_ONCE + 3));
    }

    /// Whichever of the fields it is each time.
    #[tokio::test(start_paused = true)]
    async fn what_somebody_has_undone_is_a_correction() {
        let changed = |number: u32| number + 1000;
        let same = |_| json!({ "spec": { "step": 1 } });
        assert!(waits(same, changed).await, "one field");
        let fields = |number: u32| {
            let value = |bit: u32| (number & bit != 0).then_some("ours");
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
        let (corrections, key) = (Corrections::default(), Key::new("n", "d"));
        for number in 0..1000 {
            let asked = json!({ "data": { (number.to_string()): 1 } });
            corrections.record(
                &key,
                of(1),
                Asked::Fields(&asked),
                number,
                number + 1,
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

    /// However many there are, they come round before they are forgotten: an upgrade of somebody's webhook is enough.
    #[tokio::test(start_paused = true)]
    async fn who_undoes_everything_is_answered_ever_more_slowly() {
        let corrections = Corrections::default();
        let keys: Vec<_> = (0..50_000).map(|n| Key::new("n", &n.to_string())).collect();
        for round in 0..12 {
            let written = keys.iter().filter(|key| {
                let is_written = corrections
                    .wait(key, of(1), Asked::There(0), "theirs")
                    .is_none();
                if is_written {
                    corrections.record(key, of(1), Asked::There(0), "theirs", "ours", |_| true);
                }
                is_written
            });
            let all = if round <= AT_ONCE { keys.len() } else { 0 };
            assert_eq!(written.count(), all, "round {round}");
            advance(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_is_bounded_by_what_is_written_and_corrected_of_late() {
        let corrections = Corrections::default();
        let write = |number: u32| {
            let young = |key: &Key| {
                let born: u32 = key.name().parse().unwrap_or(0);
                number.saturating_sub(born) < 1000
            };
            let key = Key::new("n", &number.to_string());
            corrections.record(&key, of(1), Asked::There(0), "theirs", "ours", young);
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
        // Each is written often, and then left alone.
        for number in (0..40_000).map(|number| 10_000 + number / 10) {
            let (entries, counts) = write(number);
            advance(Duration::from_millis(100)).await;
            assert!(entries <= FEW.max(2 * 62) && counts <= 2 * 62);
        }
        advance(2 * OVER).await;
        // Many objects come and go at once, and somebody disputes a few of them.
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
