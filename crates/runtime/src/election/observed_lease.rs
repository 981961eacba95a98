//! Observation of a Lease: its last content, and how long it has been unchanged.

use std::time::Duration;

use jiff::Timestamp;

#[cfg(feature = "operator")]
use crate::telemetry::state;

/// The parts of a Lease that the election uses.
///
/// `renewed` is compared with its previous value, never with a clock: the holder's clock is independent of the local one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// UID of the Lease object. A recreated Lease is another Lease.
    pub uid: String,
    /// The holder; empty if there is none.
    pub holder: String,
    /// Time for which the holder may be silent.
    pub duration: Duration,
    /// `spec.renewTime`; `None` if missing or invalid.
    pub renewed: Option<Timestamp>,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// Whether the Lease looks released by its holder. A Lease without a holder need not be released.
    pub released: bool,
    /// resourceVersion while the Lease has no holder, otherwise empty. Two vacant Leases with equal content but different
    /// versions are different observations. Another replica may have held the Lease in between, unseen by a suspended process.
    /// A held Lease changes only by renewals.
    pub vacant_at: String,
}

impl Record {
    /// Returns whether the records differ at most in their version.
    fn says_the_same_as(&self, other: &Self) -> bool {
        let vacant_at = other.vacant_at.clone();
        *other
            == Self {
                vacant_at,
                ..self.clone()
            }
    }

    /// Returns whether the holder has written nothing between the two records.
    fn is_same_renewal(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.holder == other.holder
            && self.renewed == other.renewed
            && self.transitions == other.transitions
    }
}

/// The last observation of a Lease, and its start (client-go's `observedTime`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObservedRecord {
    /// Content of the Lease, or its last content before a deletion; `None` if it was never seen.
    record: Option<Record>,
    /// Whether the Lease exists; `None` before the first read.
    exists: Option<bool>,
    /// The Lease looks released, but its holder did not release it, or not this time.
    cleared: bool,
    /// Start of this observation.
    since: Duration,
    /// Number of writes in a row that changed only the version.
    touched: u8,
}

/// Number of writes without a change that restart the wait for a Lease without a holder. The limit prevents such writes from
/// blocking the Lease forever.
const MAX_WAIT_RESTARTS: u8 = 240;

impl ObservedRecord {
    /// Records the content of the Lease at `now`, `None` if there is none. Returns whether it has changed.
    pub fn observe(&mut self, now: Duration, mut record: Option<Record>) -> bool {
        let was_released = self.is_released();
        if let (Some(new), Some(old)) = (&mut record, &self.record) {
            // A release by the holder advances `renewTime`. A Lease with another UID has had another holder, if any.
            let is_as_released = was_released && new.vacant_at == old.vacant_at;
            let follows = new.uid == old.uid
                && new.transitions >= old.transitions
                && (new.renewed > old.renewed || (new.renewed == old.renewed && is_as_released));
            self.cleared = new.released && !follows;
            // The holder does not know of a duration that another client shortened, or of that in a recreated Lease.
            let is_held_by_nobody_yet = new.holder.is_empty() && !new.released;
            if new.is_same_renewal(old) || self.cleared || (is_held_by_nobody_yet && !was_released)
            {
                new.duration = new.duration.max(old.duration);
            }
        }
        let exists = Some(record.is_some());
        let changed = exists != self.exists || (record.is_some() && record != self.record);
        if changed {
            let is_touched = record.as_ref().zip(self.record.as_ref());
            let is_touched = exists == self.exists
                && is_touched.is_some_and(|(new, old)| new.says_the_same_as(old));
            let is_over = is_touched && self.touched == MAX_WAIT_RESTARTS;
            *self = Self {
                record: record.or(self.record.take()),
                exists,
                cleared: self.cleared,
                since: if is_over { self.since } else { now },
                touched: if is_touched {
                    self.touched.saturating_add(1).min(MAX_WAIT_RESTARTS)
                } else {
                    0
                },
            };
        }
        changed
    }

    /// Records an older version than the known one. Returns whether it shows that the known Lease is a restored copy of a
    /// released one. A release has a later time than all writes before it.
    pub fn observe_older(&mut self, now: Duration, older: &Record) -> bool {
        let is_released = self.is_released();
        let Some(record) = &mut self.record else {
            return false;
        };
        let is_copy = is_released && record.uid == older.uid && record.renewed <= older.renewed;
        if is_copy {
            record.duration = record.duration.max(older.duration);
            self.cleared = true;
            self.since = now;
        }
        is_copy
    }

    fn is_released(&self) -> bool {
        !self.cleared && self.record.as_ref().is_some_and(|record| record.released)
    }

    /// Returns whether the Lease has no holder, and was not released. It was created, perhaps after a deletion, or another
    /// client cleared it. A previous holder may not know that yet.
    fn is_never_held(&self) -> bool {
        let is_nobodys = |record: &Record| record.holder.is_empty();
        !self.is_released() && self.record.as_ref().is_some_and(is_nobodys)
    }

    /// Returns when another replica may take the Lease if it does not change.
    ///
    /// A released Lease is free at once. Any other Lease is free after this observation has lasted for the whole duration. This
    /// includes a Lease that never had a holder: it may replace a deleted one, whose holder leads until it notices. A missing
    /// Lease may be created at once, because a new Lease has no holder.
    #[must_use]
    pub fn free_at(&self) -> Duration {
        match &self.record {
            Some(record) if self.exists() && !self.is_released() => {
                self.since.saturating_add(record.duration)
            }
            _ => self.since,
        }
    }

    /// Returns whether a replica with a term until `deadline` may take the Lease from its holder. Without a term, `deadline`
    /// has passed.
    ///
    /// During its own term, a replica takes a Lease without a holder at once: no other replica leads by a deleted Lease.
    #[must_use]
    pub fn is_free(&self, now: Duration, deadline: Duration) -> bool {
        now >= self.free_at() || (self.exists() && self.is_never_held() && now < deadline)
    }

    /// Returns whether the Lease exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.exists == Some(true)
    }

    /// Returns whether the Lease was read, with any result.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.exists.is_some()
    }

    /// Returns the last renewal, by the holder's clock.
    #[must_use]
    pub fn renewed(&self) -> Option<Timestamp> {
        self.record.as_ref()?.renewed
    }

    /// Returns the state of the Lease `name` at `now`, for `/debug/state`; `None` if it was never seen.
    #[cfg(feature = "operator")]
    pub(super) fn state(&self, name: &str, now: Duration) -> Option<state::Lease> {
        let record = self.record.as_ref()?;
        Some(state::Lease {
            name: name.to_owned(),
            exists: self.exists(),
            holder: record.holder.clone(),
            seen_seconds_ago: state::seconds(now.saturating_sub(self.since)),
            duration_seconds: state::seconds(record.duration),
            transitions: record.transitions,
        })
    }

    /// Returns whether `holder` holds the Lease, or held it when it was deleted.
    #[must_use]
    pub fn names(&self, holder: &str) -> bool {
        self.record
            .as_ref()
            .is_some_and(|record| record.holder == holder)
    }
}
