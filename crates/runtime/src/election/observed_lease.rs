//! What is known of a Lease: what it said when it was last seen, and since when.

use std::time::Duration;

use jiff::Timestamp;

use crate::telemetry::state;

/// What a Lease says, as far as the election goes.
///
/// `renewed` is compared with what it was before, and never with a clock: another machine's says nothing about ours (H5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The Lease object's UID: a Lease created again is another Lease.
    pub uid: String,
    /// Who holds it; empty when it was released, or never held.
    pub holder: String,
    /// How long the holder may be silent.
    pub duration: Duration,
    /// `spec.renewTime`; `None` when nobody has ever held it.
    pub renewed: Option<Timestamp>,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// It says that its holder gave it back, rather than that it names nobody.
    pub released: bool,
    /// The resourceVersion of a Lease that nobody holds, else empty. What says the same again may do so after somebody has held
    /// it, unseen by who slept (H12, H21); of what is held, renewals alone count.
    pub vacant_at: String,
}

impl Record {
    /// Whether nothing but its version is another.
    fn says_the_same_as(&self, other: &Self) -> bool {
        let vacant_at = other.vacant_at.clone();
        *other
            == Self {
                vacant_at,
                ..self.clone()
            }
    }

    /// Whether its holder has written nothing between these two.
    fn is_same_renewal(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.holder == other.holder
            && self.renewed == other.renewed
            && self.transitions == other.transitions
    }
}

/// The Lease as last seen, and since when (client-go's observedTime, H5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObservedRecord {
    /// What it says, or said before it was deleted; `None` if it was never seen.
    record: Option<Record>,
    /// `None` if nobody has read it yet.
    exists: Option<bool>,
    /// It says that it was released, and that was not its holder, or not this time (H21).
    cleared: bool,
    /// When this was first seen.
    since: Duration,
    /// How often it was written without saying anything else.
    touched: u8,
}

/// Who keeps writing a Lease that nobody holds keeps nobody from it for good: so often it is waited for anew.
const TOUCHED: u8 = 240;

impl ObservedRecord {
    /// Takes note of what the Lease says at `now`, `None` if there is none; true when that is a change.
    pub fn observe(&mut self, now: Duration, mut record: Option<Record>) -> bool {
        let was_released = self.is_released();
        if let (Some(new), Some(old)) = (&mut record, &self.record) {
            // Its holder moves renewTime on as it gives a Lease back, and another Lease has had another holder, if any.
            let is_as_released = was_released && new.vacant_at == old.vacant_at;
            let follows = new.uid == old.uid
                && new.transitions >= old.transitions
                && (new.renewed > old.renewed || (new.renewed == old.renewed && is_as_released));
            self.cleared = new.released && !follows;
            // A holder knows nothing of a duration that somebody else made shorter (H15), nor of one in a Lease created anew.
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
            let is_over = is_touched && self.touched == TOUCHED;
            *self = Self {
                record: record.or(self.record.take()),
                exists,
                cleared: self.cleared,
                since: if is_over { self.since } else { now },
                touched: if is_touched {
                    self.touched.saturating_add(1).min(TOUCHED)
                } else {
                    0
                },
            };
        }
        changed
    }

    /// Takes note of an older version than what is known; true when that shows what is known to be a copy of a Lease that was given
    /// back once (H21): whoever gives one back dates that later than all that was written before.
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

    /// Nobody holds it, and as far as is known nobody ever has: it was just created, perhaps after a deletion that its
    /// holder does not know of yet (H12), or somebody else than its holder cleared it (H21).
    fn is_never_held(&self) -> bool {
        let is_nobodys = |record: &Record| record.holder.is_empty();
        !self.is_released() && self.record.as_ref().is_some_and(is_nobodys)
    }

    /// When somebody else than its holder may take the Lease, if nothing else is seen of it: at once when it was
    /// released, or else when this has been seen for the whole duration. One that nobody has held may come after one that
    /// was deleted, whose holder goes on until it notices (H12). Where there is none, it may be created at once, which
    /// gives it to nobody.
    #[must_use]
    pub fn free_at(&self) -> Duration {
        match &self.record {
            Some(record) if self.exists() && !self.is_released() => {
                self.since.saturating_add(record.duration)
            }
            _ => self.since,
        }
    }

    /// Whether who leads until `deadline`, which has passed where it does not lead, may take the Lease from its holder. While
    /// its own term lasts, nobody else leads by a Lease that was deleted, and it need not wait to take the next.
    #[must_use]
    pub fn is_free(&self, now: Duration, deadline: Duration) -> bool {
        now >= self.free_at() || (self.exists() && self.is_never_held() && now < deadline)
    }

    /// Whether there is a Lease.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.exists == Some(true)
    }

    /// Whether somebody has read it, whatever was found.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.exists.is_some()
    }

    /// When it was renewed last, by its holder's clock.
    #[must_use]
    pub fn renewed(&self) -> Option<Timestamp> {
        self.record.as_ref()?.renewed
    }

    /// The Lease of this name at `now`, for `/debug/state`; `None` where it was never seen.
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

    /// Whether the Lease is this one's, or was when it was deleted.
    #[must_use]
    pub fn names(&self, holder: &str) -> bool {
        self.record
            .as_ref()
            .is_some_and(|record| record.holder == holder)
    }
}
