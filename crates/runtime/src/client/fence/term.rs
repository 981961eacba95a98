//! A term of leadership: the permission to write, until a deadline that is known before the first write.
//!
//! The deadline is kept on a clock that goes on while the machine is suspended, so a leader that slept through its
//! lease is deposed when it goes on, whatever its timers and its wall clock say. A hypervisor that pauses a virtual
//! machine, or restores it from a snapshot, stops that clock, too, and then the term goes on: only the API server can
//! refuse what such a leader writes, with `deploy/components/fencing` (H20).

use super::in_flight::Writes;
use crate::{config::clock::Clock, telemetry::state};
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// One term of leadership. A renewal keeps the [`id`](Self::id) and moves the deadline.
#[derive(Clone)]
pub struct Term {
    id: u64,
    transitions: i32,
    /// `None`: no election is held, so nobody can take over.
    deadline: Option<Duration>,
    /// How long after that the Lease is this replica's for certain, less the time that a write may be on its way.
    overtime: Duration,
    clock: Clock,
    rejections: Arc<Notify>,
    writes: Writes,
}

impl Term {
    /// A term that ends when `clock` reaches `deadline`, unless it is renewed.
    #[must_use]
    pub fn new(id: u64, transitions: i32, deadline: Duration, clock: Clock) -> Self {
        Self {
            id,
            transitions,
            deadline: Some(deadline),
            overtime: Duration::ZERO,
            clock,
            rejections: Arc::default(),
            writes: Writes::default(),
        }
    }

    /// A write that is sent within the term may be carried out until this long after it.
    #[must_use]
    pub(crate) fn with_overtime(self, overtime: Duration) -> Self {
        Self { overtime, ..self }
    }

    /// Where the writes under this term are kept account of.
    #[must_use]
    pub(crate) fn counted_in(self, writes: Writes) -> Self {
        Self { writes, ..self }
    }

    /// The writes under this term that may still land.
    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Where [`report_rejection`](Self::report_rejection) arrives.
    #[must_use]
    pub(crate) fn rejections_to(self, rejections: Arc<Notify>) -> Self {
        Self { rejections, ..self }
    }

    /// Reports to the election that the fencing policy rejected a write of this term.
    pub(crate) fn report_rejection(&self) {
        self.rejections.notify_one();
    }

    /// The term of a process that runs in no election (`--leader-election=false`): it never ends.
    #[must_use]
    pub(crate) fn unlimited() -> Self {
        Self {
            id: 1,
            transitions: 0,
            deadline: None,
            overtime: Duration::ZERO,
            clock: Clock::boottime(),
            rejections: Arc::default(),
            writes: Writes::default(),
        }
    }

    /// Counts the terms of this process from 1: a new id is a new term, the same id a renewal.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The Lease's `leaseTransitions` under this term, for logs.
    #[must_use]
    pub fn transitions(&self) -> i32 {
        self.transitions
    }

    /// The time left, never zero; `None` when the term is over; [`Duration::MAX`] without an election.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let Some(deadline) = self.deadline else {
            return Some(Duration::MAX);
        };
        deadline
            .checked_sub(self.clock.now())
            .filter(|left| !left.is_zero())
    }
}

impl Term {
    /// How long the API server may take for a write that is sent now; `None` when the term is over.
    pub(crate) fn room(&self) -> Option<Duration> {
        Some(self.remaining()?.saturating_add(self.overtime))
    }

    /// For `/debug/state`; `None` when it is over.
    pub(crate) fn state(&self) -> Option<state::Term> {
        let left = self.remaining()?;
        Some(state::Term {
            transitions: self.transitions,
            ends_in_seconds: self.deadline.map(|_| state::seconds(left)),
        })
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("id", &self.id)
            .field("transitions", &self.transitions)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
