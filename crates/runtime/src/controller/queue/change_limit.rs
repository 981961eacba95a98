//! How often a key is handed out because something changed. What answers each write with another change, be it a webhook, a
//! controller that wants the opposite, or the kind itself, would else make a loop at request speed, whatever backs off elsewhere.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{backoff::later, lane::Lane};

/// So many times at once, and then once in each [`INTERVAL`]: 80 times in any minute.
pub(super) const BURST: u32 = 20;
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// How often those are forgotten that have their whole burst again.
const SWEEP: Duration = Duration::from_secs(20);

/// When each key that was handed out of late has its whole burst again.
pub(super) struct Pace<K> {
    whole_at: HashMap<K, Instant>,
    swept: Instant,
}

impl<K: Clone + Eq + Hash> Pace<K> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            whole_at: HashMap::new(),
            swept: now,
        }
    }

    /// Notes that a key is handed out from `lane`. What failed, or can wait, has a pace of its own.
    pub(super) fn handed_out(&mut self, key: &K, lane: Lane, now: Instant) {
        if lane == Lane::Event {
            let whole_at = self.whole_at.entry(key.clone()).or_insert(now);
            *whole_at = later(now.max(*whole_at), INTERVAL);
        }
    }

    /// When a key that is added to `lane` now may be handed out, at the soonest.
    pub(super) fn due(&self, key: &K, lane: Lane, now: Instant) -> Instant {
        let whole_at = self.whole_at.get(key).filter(|_| lane == Lane::Event);
        let due = whole_at.and_then(|at| at.checked_sub(INTERVAL * (BURST - 1)));
        due.map_or(now, |due| due.max(now))
    }

    /// Forgets what makes no difference.
    pub(super) fn advance(&mut self, now: Instant) {
        if now >= later(self.swept, SWEEP) {
            self.swept = now;
            self.whole_at.retain(|_, at| *at > now);
            self.whole_at.shrink_to(2 * self.whole_at.len());
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.whole_at.is_empty()
    }
}
