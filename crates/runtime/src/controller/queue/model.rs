//! Model of the queue: the same rules, implemented with linear searches and a clock in milliseconds. Tests compare the queue
//! with it.

#![allow(clippy::unwrap_used, reason = "a failed test panics")]

use std::{mem, time::Duration};

use super::{
    lane::{Lane, Stats},
    status_changes::BYPASSES,
};

pub(super) type Key = u8;

/// Backoff of the model: 5 ms, doubled up to 40 ms, and a bucket of three tokens, one every 10 ms.
const INITIAL: u64 = 5;
const MAX: u64 = 40;
const TOKEN: i64 = 10;
const FULL: i64 = 3 * TOKEN;

/// Change limit of one key: burst, and milliseconds between later changes.
const BURST: u64 = 20;
const INTERVAL: u64 = 1000;

/// Slow namespaces: duration of a slow attempt and memory after a success, in milliseconds, and the number of workers for them.
/// The other namespaces have as many.
const HUNG: u64 = 1000;
pub(super) const REMEMBERED: u64 = 60_000;
pub(super) const WORKERS: u32 = 3;

/// Namespaces of three keys each.
const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) fn namespace(key: Key) -> &'static str {
    NAMES[usize::from(key / 3)]
}

pub(super) fn backoff() -> crate::config::settings::Backoff {
    crate::config::settings::Backoff {
        initial: Duration::from_millis(INITIAL),
        max: Duration::from_millis(MAX),
        qps: 100.0,
        burst: 3,
    }
}

struct Waiting {
    key: Key,
    lane: Lane,
    since: u64,
    /// Turns until the key must be handed out at the latest. A slow namespace counts its own turns, all others count theirs
    /// together.
    bound: usize,
}

struct Delayed {
    key: Key,
    lane: Lane,
    due: u64,
    /// Time of the bucket's token, for a retry.
    slot: Option<u64>,
    since: u64,
    /// The key is not queued before this time.
    least: u64,
}

/// A key that a worker gets, with its lane, its wait and its number of failures.
pub(super) type Got = (Key, Lane, Duration, u32);

#[derive(Default)]
pub(super) struct Model {
    now: u64,
    /// In order of arrival in their lanes.
    waiting: Vec<Waiting>,
    /// Added while held.
    again: Vec<(Key, Lane, u64)>,
    /// In order of arrival.
    delayed: Vec<Delayed>,
    /// Key, start and last progress of each attempt.
    held: Vec<(Key, u64, u64)>,
    /// One entry for each failure since the last success.
    failures: Vec<Key>,
    /// One entry for each quiet retry since the last failure or success.
    quiet: Vec<Key>,
    /// Keys whose last attempt failed. The values are the number of consecutive failed attempts with a change, and whether a
    /// change arrived since the last attempt.
    failed: Vec<(Key, u32, bool)>,
    /// Time when the burst of each key is full again.
    whole: [u64; 9],
    /// Time until the bucket is full, in milliseconds.
    missing: i64,
    /// Number of keys handed out of namespaces that are not slow, and the namespaces of the other keys since they became slow.
    turn: u64,
    slow_turns: Vec<&'static str>,
    /// Keys that hang, or hung and failed.
    hung: Vec<Key>,
    /// Time until which each namespace is slow even without such keys, or zero.
    until: [u64; 3],
    /// Slow namespaces with waiting keys, in round-robin order.
    line: Vec<&'static str>,
    /// Held keys of slow namespaces.
    slow_held: Vec<Key>,
    adds: u64,
    retries: u64,
    down: bool,
}

impl Model {
    pub(super) fn add(&mut self, key: Key, lane: Lane) {
        if self.down {
            return;
        }
        if lane == Lane::Background && self.delayed.iter().any(|d| d.key == key) {
            return;
        }
        let paced = self.paced(key, lane) > self.now;
        let delayed = self.delayed.iter().any(|d| d.key == key);
        let waits = self.waiting.iter().position(|w| w.key == key);
        if let Some(i) = waits.filter(|_| paced) {
            if self.waiting[i].lane > lane {
                self.waiting.remove(i);
                self.settle();
                self.delay(key, lane, self.paced(key, lane), None);
            }
            return;
        }
        if self.least(key) > self.now || paced && (delayed || !self.holds(key)) {
            return self.delay(key, lane, self.paced(key, lane), None);
        }
        self.undelay(key);
        let mut since = None;
        if let Some(i) = self.waiting.iter().position(|w| w.key == key) {
            if self.waiting[i].lane <= lane {
                return;
            }
            since = Some(self.waiting.remove(i).since);
            self.settle();
        }
        if let Some(i) = self.again.iter().position(|a| a.0 == key) {
            if self.again[i].1 <= lane {
                return;
            }
            since = Some(self.again.remove(i).2);
        }
        self.adds += u64::from(since.is_none());
        self.place(key, lane, since.unwrap_or(self.now));
    }

    pub(super) fn add_after(&mut self, key: Key, lane: Lane, delay: u64) {
        if !self.down {
            self.delay(key, lane, self.now + delay, None);
        }
    }

    pub(super) fn add_anew(&mut self, key: Key) {
        let is_after = |d: &Delayed| d.lane == Lane::Background && d.slot.is_none();
        let waits = |d: &Delayed| d.key == key && is_after(d) && d.least <= self.now;
        if !self.down && self.delayed.iter().any(waits) {
            self.undelay(key);
        }
        let is_held = self.holds(key);
        self.add(
            key,
            if is_held {
                Lane::Retry
            } else {
                Lane::Background
            },
        );
    }

    pub(super) fn resync(&mut self, key: Key, longest: u64) {
        let now = self.now;
        let is_due = |d: &Delayed| d.since + longest <= now && d.least <= now;
        let is_retry = |d: &Delayed| d.lane == Lane::Retry && d.slot.is_some();
        let waits = |d: &&Delayed| d.key == key && is_retry(d) && is_due(d);
        let Some(due) = self.delayed.iter().find(waits).map(|d| d.due) else {
            return self.add(key, Lane::Background);
        };
        self.missing += TOKEN;
        let slot = now + u64::try_from(self.missing - FULL).unwrap_or(0);
        if slot >= due {
            return self.give_back(Some(slot));
        }
        self.undelay(key);
        self.delay(key, Lane::Background, slot, Some(slot));
    }

    pub(super) fn defer_to_retry(&mut self, key: Key) -> bool {
        let failed = self.failed.iter_mut().find(|f| f.0 == key);
        failed.is_some_and(|failed| {
            failed.2 = true;
            failed.1 >= BYPASSES
        })
    }

    /// Ends the deferral of changes after an attempt that did not fail.
    fn add_deferred(&mut self, key: Key) {
        let deferred = |f: &(Key, u32, bool)| f.0 == key && f.1 >= BYPASSES && f.2;
        if self.failed.iter().any(deferred) {
            self.add(key, Lane::Event);
        }
        self.failed.retain(|f| f.0 != key);
    }

    pub(super) fn get(&mut self) -> Option<Got> {
        let is_free = |taken: usize| taken < WORKERS as usize;
        let slow = is_free(self.slow_held.len()).then(|| self.line.first());
        let slow = slow.flatten().and_then(|name| self.next(Some(name)));
        let other = is_free(self.swift().count()).then(|| self.next(None));
        let next = other.flatten().or(slow)?;
        let w = self.waiting.remove(next);
        let pool = self.pool(w.key);
        for i in 0..self.waiting.len() {
            if self.pool(self.waiting[i].key) == pool {
                let other = &mut self.waiting[i];
                other.bound -= 1;
                assert!(other.bound > 0, "key {} starves", other.key);
            }
        }
        if let Some(name) = pool {
            self.slow_turns.push(name);
            self.slow_held.push(w.key);
            self.line.remove(0);
            self.settle();
        } else {
            self.turn += 1;
        }
        assert!(!self.holds(w.key), "two workers have key {}", w.key);
        self.held.push((w.key, self.now, self.now));
        if w.lane == Lane::Event {
            let whole = &mut self.whole[usize::from(w.key)];
            *whole = self.now.max(*whole) + INTERVAL;
        }
        let waited = Duration::from_millis(self.now - w.since);
        Some((w.key, w.lane, waited, count(&self.failures, w.key)))
    }

    /// Returns the next key of a slow namespace, or of all others.
    fn next(&self, pool: Option<&str>) -> Option<usize> {
        let turns = self.slow_turns.iter().filter(|name| pool == Some(**name));
        let turn = pool.map_or(self.turn, |_| u64::try_from(turns.count()).unwrap()) % 8 + 1;
        let is_one = |w: &Waiting, lane| w.lane == lane && self.pool(w.key) == pool;
        let first = |lane| self.waiting.iter().position(|w| is_one(w, lane));
        let favoured = match turn {
            4 => first(Lane::Retry),
            8 => first(Lane::Background),
            _ => None,
        };
        let leftover = match turn % 2 {
            1 => first(Lane::Background).or(first(Lane::Retry)),
            _ => first(Lane::Retry).or(first(Lane::Background)),
        };
        favoured.or(first(Lane::Event)).or(leftover)
    }

    /// Returns the held keys of namespaces that are not slow, in order of their start.
    fn swift(&self) -> impl Iterator<Item = (Key, u64)> {
        let held = self.held.iter().map(|h| (h.0, h.1));
        held.filter(|h| !self.slow_held.contains(&h.0))
    }

    /// Returns the key's namespace if it is slow.
    fn pool(&self, key: Key) -> Option<&'static str> {
        let name = namespace(key);
        let hangs = self.hung.iter().any(|key| namespace(*key) == name);
        let is_slow = hangs || self.until[usize::from(key / 3)] > 0;
        is_slow.then_some(name)
    }

    /// Updates `line` after a change of the waiting keys or of the slow namespaces.
    fn settle(&mut self) {
        let waiting = self.waiting.iter().filter_map(|w| self.pool(w.key));
        let waiting: Vec<_> = waiting.collect();
        self.line.retain(|name| waiting.contains(name));
        for name in waiting {
            if !self.line.contains(&name) {
                self.line.push(name);
            }
        }
    }

    /// Records whether a key hangs, or hung and failed. A time in `until` replaces the end of the namespace's memory.
    fn note(&mut self, key: Key, hung: bool, until: Option<u64>) {
        let before = self.pool(key);
        self.hung.retain(|h| *h != key);
        if hung {
            self.hung.push(key);
        }
        if let Some(until) = until {
            self.until[usize::from(key / 3)] = until;
        }
        let after = self.pool(key);
        if before == after {
            return;
        }
        let is_there = |k: Key| namespace(k) == namespace(key);
        self.slow_turns.retain(|name| *name != namespace(key));
        if after.is_some() {
            self.slow_held.retain(|k| !is_there(*k));
            let held = self.held.iter().map(|h| h.0).filter(|k| is_there(*k));
            self.slow_held.extend(held);
        }
        let (moved, stay): (Vec<_>, _) = mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| is_there(w.key));
        self.waiting = stay;
        for w in moved {
            self.place(w.key, w.lane, w.since);
        }
        self.settle();
    }

    fn has_hung(&self, key: Key) -> bool {
        let held = self.held.iter().find(|h| h.0 == key);
        held.is_some_and(|held| self.now - held.1 >= HUNG)
    }

    /// Records the end of an attempt that did not fail.
    fn is_over(&mut self, key: Key) {
        let hung = self.has_hung(key);
        if hung {
            self.note(key, true, None);
        }
        self.note(key, false, hung.then_some(self.now + REMEMBERED));
    }

    pub(super) fn heartbeat(&mut self, key: Key) {
        for held in self.held.iter_mut().filter(|h| h.0 == key) {
            held.2 = self.now;
        }
    }

    pub(super) fn release(&mut self, key: Key) {
        self.held.retain(|h| h.0 != key);
        self.slow_held.retain(|h| *h != key);
        if let Some(i) = self.again.iter().position(|a| a.0 == key) {
            let (key, lane, since) = self.again.remove(i);
            let due = self.paced(key, lane);
            if due > self.now {
                self.delay(key, lane, due, None);
            } else {
                self.place(key, lane, since);
            }
        }
    }

    /// Returns the earliest time when `lane` may hand out the key.
    fn paced(&self, key: Key, lane: Lane) -> u64 {
        let whole = self.whole[usize::from(key)];
        match lane {
            Lane::Event => whole.saturating_sub((BURST - 1) * INTERVAL).max(self.now),
            _ => self.now,
        }
    }

    pub(super) fn forget(&mut self, key: Key) {
        self.add_deferred(key);
        self.failures.retain(|f| *f != key);
        self.quiet.retain(|f| *f != key);
        self.is_over(key);
    }

    pub(super) fn retry(&mut self, key: Key, least: u64) -> Duration {
        let before = count(&self.failures, key);
        self.failures.push(key);
        let failed = self.failed.iter().find(|f| f.0 == key);
        let attempts = failed.filter(|f| f.2).map_or(0, |f| f.1 + 1);
        self.failed.retain(|f| f.0 != key);
        self.failed.push((key, attempts, false));
        self.quiet.retain(|f| *f != key);
        self.back_off(key, before, least)
    }

    pub(super) fn retry_quietly(&mut self, key: Key) -> Duration {
        self.add_deferred(key);
        let before = count(&self.quiet, key);
        self.quiet.push(key);
        self.back_off(key, before, 0)
    }

    fn back_off(&mut self, key: Key, before: u32, least: u64) -> Duration {
        self.retries += 1;
        let backoff = (INITIAL << before.min(10)).min(MAX);
        self.note(key, self.has_hung(key), None);
        let mut delay = 0;
        self.again.retain(|a| (a.0, a.1) != (key, Lane::Background));
        let again = self.again.iter().position(|a| a.0 == key);
        let paced = |i: usize| self.paced(key, self.again[i].1);
        if !self.down && again.is_none_or(|i| least > 0 || paced(i) > self.now) {
            let due = again.map(paced);
            let again = again.map(|i| self.again.remove(i).1).zip(due);
            let delayed = self.delayed.iter().find(|d| d.key == key);
            let added = again.or(delayed.map(|d| (d.lane, d.due)));
            self.undelay(key);
            self.missing += TOKEN;
            let slot = self.now + u64::try_from(self.missing - FULL).unwrap_or(0);
            let due = slot.max(self.now + backoff.max(least));
            self.delay(key, Lane::Retry, due, Some(slot));
            let retry = self.delayed.iter_mut().find(|d| d.key == key).unwrap();
            retry.least = self.now + least;
            if let Some((lane, due)) = added {
                self.delay(key, lane, due, None);
            }
            delay = self.delayed.iter().find(|d| d.key == key).unwrap().due - self.now;
        }
        self.release(key);
        Duration::from_millis(delay)
    }

    pub(super) fn put_off(&mut self, key: Key, delay: u64) -> Duration {
        self.retries += 1;
        self.add_deferred(key);
        self.is_over(key);
        self.add_after(key, Lane::Retry, delay);
        let delayed = self.delayed.iter().find(|d| d.key == key);
        let delay = delayed.map_or(0, |d| d.due - self.now);
        self.release(key);
        Duration::from_millis(delay)
    }

    pub(super) fn advance(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            self.missing = (self.missing - 1).max(0);
            let hangs = |held: &(Key, u64)| self.now - held.1 >= HUNG;
            let hanging: Vec<_> = self.swift().filter(hangs).collect();
            for (key, _) in hanging {
                // The previous key may have made its namespace slow already.
                if self.swift().any(|held| held.0 == key) {
                    self.note(key, true, None);
                }
            }
            for key in [0, 3, 6] {
                if self.until[usize::from(key / 3)] == self.now {
                    let hung = self.hung.contains(&key);
                    self.note(key, hung, Some(0));
                }
            }
            while let Some(i) = self.delayed.iter().position(|d| d.due == self.now) {
                let d = self.delayed.remove(i);
                self.adds += 1;
                self.place(d.key, d.lane, self.now);
            }
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.down = true;
        self.waiting.clear();
        self.again.clear();
        self.delayed.clear();
        self.hung.clear();
        self.until = [0; 3];
        self.line.clear();
    }

    pub(super) fn stats(&self) -> Stats {
        let ago = |time| Duration::from_millis(self.now - time);
        let running = |held: &(Key, u64, u64)| ago(held.1);
        let mut failing = [&*self.failures, &*self.quiet].concat();
        failing.sort_unstable();
        failing.dedup();
        Stats {
            depth: Lane::ALL.map(|lane| self.waiting.iter().filter(|w| w.lane == lane).count()),
            delayed: self.delayed.len(),
            processing: self.held.len(),
            failing: failing.len(),
            longest_running: self.held.iter().map(running).max().unwrap_or_default(),
            longest_standstill: (self.held.iter().map(|held| ago(held.2)).max())
                .unwrap_or_default(),
            unfinished: self.held.iter().map(running).sum(),
            adds: self.adds,
            retries: self.retries,
        }
    }

    fn holds(&self, key: Key) -> bool {
        self.held.iter().any(|h| h.0 == key)
    }

    fn place(&mut self, key: Key, lane: Lane, since: u64) {
        if self.holds(key) {
            self.again.push((key, lane, since));
        } else {
            let pool = self.pool(key);
            let is_before = |w: &&Waiting| w.lane == lane && self.pool(w.key) == pool;
            let before = self.waiting.iter().filter(is_before).count();
            self.waiting.push(Waiting {
                key,
                lane,
                since,
                bound: 8 * (before + 1),
            });
            self.settle();
        }
    }

    fn delay(&mut self, key: Key, lane: Lane, due: u64, slot: Option<u64>) {
        let least = self.least(key);
        let due = due.max(least);
        let queued = self.waiting.iter().any(|w| w.key == key)
            || (self.again.iter()).any(|a| a.0 == key && a.1 != Lane::Background)
            || (self.delayed.iter()).any(|d| d.key == key && (d.due, d.lane) <= (due, lane));
        if queued {
            self.give_back(slot);
        } else if due == self.now {
            self.add(key, lane);
        } else {
            self.undelay(key);
            self.again.retain(|a| a.0 != key);
            self.delayed.push(Delayed {
                key,
                lane,
                due,
                slot,
                since: self.now,
                least,
            });
        }
    }

    /// Returns the time before which the key is not queued.
    fn least(&self, key: Key) -> u64 {
        let delayed = self.delayed.iter().find(|d| d.key == key);
        delayed.map_or(0, |d| d.least)
    }

    fn undelay(&mut self, key: Key) {
        if let Some(i) = self.delayed.iter().position(|d| d.key == key) {
            let slot = self.delayed.remove(i).slot;
            self.give_back(slot);
        }
    }

    fn give_back(&mut self, slot: Option<u64>) {
        if slot.is_some_and(|slot| slot > self.now) {
            self.missing -= TOKEN;
        }
    }
}

/// Returns the number of entries of a key.
fn count(keys: &[Key], key: Key) -> u32 {
    keys.iter().map(|k| u32::from(*k == key)).sum()
}
