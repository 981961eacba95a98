//! Term of leadership: the permission to write until a deadline that is known before the first write.
//!
//! The clock of the deadline includes the time while the machine is suspended. A leader that was suspended for longer than its
//! lease has lost its term when it resumes, independent of its timers and its wall clock.
//!
//! A hypervisor that pauses a virtual machine, or restores it from a snapshot, stops this clock too. The term then continues.
//! Only the API server can reject the writes of such a leader, with `deploy/components/fencing`.

use super::{in_flight::Writes, rejections::RejectionReports};
use crate::config::clock::Clock;
#[cfg(feature = "operator")]
use crate::telemetry::state;
use std::{fmt, sync::Arc, time::Duration};

/// Term of leadership. A renewal keeps the [`id`](Self::id) and moves the deadline.
#[derive(Clone)]
pub struct Term {
    id: u64,
    transitions: i32,
    /// `None` without an election: no other replica can take over.
    deadline: Option<Duration>,
    /// Time from the deadline until another replica may take the Lease, less the longest delivery time of a write.
    overtime: Duration,
    clock: Clock,
    rejections: Arc<RejectionReports>,
    writes: Writes,
}

impl Term {
    /// Creates a term that ends when `clock` reaches `deadline`, unless it is renewed.
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

    /// Allows the API server to carry out a write of this term until `overtime` after the deadline.
    #[must_use]
    pub(crate) fn with_overtime(self, overtime: Duration) -> Self {
        Self { overtime, ..self }
    }

    /// Tracks the writes of this term in `writes`.
    #[must_use]
    pub(crate) fn counted_in(self, writes: Writes) -> Self {
        Self { writes, ..self }
    }

    /// Returns the writes of this term that are in flight.
    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Delivers the reports of [`report_rejection`](Self::report_rejection) to `rejections`.
    #[must_use]
    pub(crate) fn rejections_to(self, rejections: Arc<RejectionReports>) -> Self {
        Self { rejections, ..self }
    }

    /// Reports to the election that the fencing policy rejected a write of this term, with the policy's message.
    pub(crate) fn report_rejection(&self, message: &str) {
        self.rejections.report(message);
    }

    /// Creates the term of a process without election (`--leader-election=false`). It never ends.
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

    /// Returns the number of this term in the process, from 1. A renewal keeps it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the Lease's `leaseTransitions` in this term, for logs.
    #[must_use]
    pub fn transitions(&self) -> i32 {
        self.transitions
    }

    /// Returns the remaining time, never zero. `None` after the end of the term; [`Duration::MAX`] without an election.
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
    /// Returns how long the API server may take for a write that is sent now. `None` after the end of the term.
    pub(crate) fn room(&self) -> Option<Duration> {
        Some(self.remaining()?.saturating_add(self.overtime))
    }

    /// Returns the term for `/debug/state`. `None` after its end.
    #[cfg(feature = "operator")]
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
