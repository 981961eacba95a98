//! Limits how often changes hand out one key. Otherwise a component that answers each write with another change would cause a
//! loop at request speed. That may be a webhook, a competing controller or the reconciler itself.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{bucket::later, lane::Lane};

/// Changes of one key without delay; then one per [`INTERVAL`]. That allows 80 in any minute.
pub(super) const BURST: u32 = 20;
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Interval of the removal of keys with a full burst.
const SWEEP: Duration = Duration::from_secs(20);

/// Time when the burst of each recently changed key is full again.
pub(super) struct ChangeLimit<K> {
    refilled_at: HashMap<K, Instant>,
    swept: Instant,
}

impl<K: Clone + Eq + Hash> ChangeLimit<K> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            refilled_at: HashMap::new(),
            swept: now,
        }
    }

    /// Records that `lane` handed out a key. Only [`Lane::Event`] is limited. Other limits apply to retries and to background
    /// work.
    pub(super) fn handed_out(&mut self, key: &K, lane: Lane, now: Instant) {
        if lane == Lane::Event {
            let refilled_at = self.refilled_at.entry(key.clone()).or_insert(now);
            *refilled_at = later(now.max(*refilled_at), INTERVAL);
        }
    }

    /// Returns the earliest time when a key that is added to `lane` now may be handed out.
    pub(super) fn due(&self, key: &K, lane: Lane, now: Instant) -> Instant {
        let refilled_at = self.refilled_at.get(key).filter(|_| lane == Lane::Event);
        let due = refilled_at.and_then(|at| at.checked_sub(INTERVAL * (BURST - 1)));
        due.map_or(now, |due| due.max(now))
    }

    /// Removes keys with a full burst.
    pub(super) fn advance(&mut self, now: Instant) {
        if now >= later(self.swept, SWEEP) {
            self.swept = now;
            self.refilled_at.retain(|_, at| *at > now);
            self.refilled_at.shrink_to(2 * self.refilled_at.len());
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.refilled_at.is_empty()
    }
}
