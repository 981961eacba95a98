//! Election state machine: a pure step from the state and an event to the next action.
//!
//! It has no I/O, clock or randomness. Times are arguments, measured from a fixed instant of the local clock. The loop in
//! [`super`] runs this code, and the model in the tests explores it.

use std::time::Duration;

pub use super::observed_lease::ObservedRecord;
#[cfg(feature = "operator")]
pub use super::observed_lease::Record;
pub use crate::client::fence::eligibility::Eligibility;

/// Timing of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// A leader that has not renewed for this long stops leading.
    pub renew_deadline: Duration,
    /// Timeout of one attempt to acquire or renew.
    pub attempt: Duration,
    /// Interval between regular attempts. An event may shorten it by up to 90 %, at most once in four intervals. So a policy
    /// that always rejects, or a watch that is behind, cannot cause a busy loop.
    pub retry_period: Duration,
    /// Delay before a replica that can do only part of its work takes a free Lease. Other replicas go first.
    pub yield_delay: Duration,
}

/// Leadership of an elector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// Number of the term in this process, from 1.
    pub id: u64,
    /// The Lease's UID.
    pub uid: String,
    /// The Lease's `leaseTransitions`.
    pub transitions: i32,
    /// End of the leadership, unless it is renewed.
    pub deadline: Duration,
}

/// Input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Time passed.
    Tick,
    /// New ability of this replica. A leader that can do nothing has been drained.
    Able(Eligibility),
    /// The watch delivered the Lease, so the watch works. `changed` is the result of [`ObservedRecord::observe`].
    Watched {
        /// Whether the Lease differs from the previous observation.
        changed: bool,
    },
    /// The watch is down or not trustworthy.
    WatchLost,
    /// An attempt that began at `sent` has ended. The next may begin `pause` after `sent`.
    Tried {
        /// Instant before the first request of the attempt.
        sent: Duration,
        /// Result of the attempt.
        outcome: Outcome,
        /// Retry period with jitter.
        pause: Duration,
    },
    /// The API server rejected a write. Another replica holds the Lease, or the API server does not know this leader yet.
    Rejected,
    /// A read outside an attempt showed that another replica holds the Lease.
    Deposed,
    /// The process is stopping, and its work has been drained.
    Stop,
    /// The release succeeded or was abandoned.
    Released,
}

/// Result of an attempt to acquire or renew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The response names this elector as the holder.
    Held {
        /// The Lease's UID.
        uid: String,
        /// The Lease's `leaseTransitions`.
        transitions: i32,
    },
    /// Another replica holds the Lease.
    HeldBy(String),
    /// The Lease has no holder, and may not be taken yet.
    Unheld,
    /// No usable response: a conflict, a timeout or an error.
    Failed,
}

impl Outcome {
    /// Derives the result of an attempt of `me` from the Lease in the response. The lock's own result may differ.
    #[must_use]
    pub fn of(me: &str, holder: String, uid: String, transitions: i32) -> Self {
        if holder == me {
            Self::Held { uid, transitions }
        } else if holder.is_empty() {
            Self::Unheld
        } else {
            Self::HeldBy(holder)
        }
    }
}

/// Next action of an elector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wait until this instant or the next event.
    Wait(Duration),
    /// Try to acquire or renew, with this timeout.
    Try(Duration),
    /// Release the Lease if this replica holds it.
    Release,
    /// End the loop.
    Done,
}

/// State of one replica that runs for leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElectionState {
    me: String,
    timing: Timing,
    held: Option<Held>,
    terms: u64,
    ability: Eligibility,
    /// Instant at which the ability became [`Part`](Eligibility::Partial).
    part_since: Duration,
    next_try: Duration,
    /// Start of the last attempt.
    tried: Duration,
    /// Instant from which an attempt may be brought forward again.
    early: Duration,
    watching: bool,
    /// Whether this replica may hold the Lease. The outcome of an attempt may be unknown.
    may_hold: bool,
    stopping: bool,
}

impl ElectionState {
    /// Creates an elector called `me`. It has not read the Lease, and can do all its work until the first [`Event::Able`].
    #[must_use]
    pub fn new(me: String, timing: Timing) -> Self {
        Self {
            me,
            timing,
            held: None,
            terms: 0,
            ability: Eligibility::Full,
            part_since: Duration::ZERO,
            next_try: Duration::ZERO,
            tried: Duration::ZERO,
            early: Duration::ZERO,
            watching: false,
            may_hold: false,
            stopping: false,
        }
    }

    /// Returns the leadership to publish after a step.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Returns how much of its work this replica can do.
    #[must_use]
    pub fn ability(&self) -> Eligibility {
        self.ability
    }

    /// Returns whether the watch of the Lease is known to work.
    #[must_use]
    pub fn watching(&self) -> bool {
        self.watching
    }

    /// Applies an event and returns the next action. `lease` is the latest observation of the Lease in this process.
    pub fn step(&mut self, now: Duration, event: Event, lease: &ObservedRecord) -> Action {
        match event {
            Event::Tick => {}
            Event::Able(ability) => {
                if ability != self.ability {
                    let part = ability == Eligibility::Partial;
                    self.part_since = if part { now } else { Duration::ZERO };
                }
                self.ability = ability;
            }
            Event::Watched { changed } => {
                self.watching = true;
                if changed && lease.free_at() <= now {
                    self.bring_forward(now);
                }
            }
            Event::WatchLost => self.watching = false,
            Event::Tried {
                sent,
                outcome,
                pause,
            } => {
                self.tried = sent;
                self.next_try = sent.saturating_add(pause);
                let unheld = outcome == Outcome::Unheld;
                self.tried(sent, outcome);
                // The Lease was deleted and recreated. Before the term ends, this replica can take it without delay.
                if unheld && self.held.is_some() {
                    self.bring_forward(now);
                }
            }
            // The term continues: the rejection may be older than the term. The next renewal is conditional, so it shows the
            // holder.
            Event::Rejected => self.bring_forward(now),
            Event::Deposed => self.deposed(),
            Event::Stop => self.stopping = true,
            Event::Released => self.may_hold = false,
        }
        let over = self.stopping || self.ability == Eligibility::None;
        self.held.take_if(|held| over || now >= held.deadline);
        self.next(now, lease)
    }

    /// Schedules the next attempt as early as permitted.
    fn bring_forward(&mut self, now: Duration) {
        let period = self.timing.retry_period;
        let at = now.max(self.tried + period / 10).max(self.early);
        if at < self.next_try {
            self.next_try = at;
            self.early = at + period * 4;
        }
    }

    fn tried(&mut self, sent: Duration, outcome: Outcome) {
        match outcome {
            Outcome::Held { uid, transitions } => {
                let same = self
                    .held
                    .take()
                    .filter(|held| held.uid == uid && held.transitions == transitions);
                let id = same.map_or(self.terms + 1, |held| held.id);
                self.terms = id;
                self.may_hold = true;
                self.held = Some(Held {
                    id,
                    uid,
                    transitions,
                    deadline: sent + self.timing.renew_deadline,
                });
            }
            Outcome::HeldBy(_) => self.deposed(),
            // The term continues until its deadline: no other replica leads before it.
            Outcome::Unheld => {}
            Outcome::Failed => self.may_hold = true,
        }
    }

    fn deposed(&mut self) {
        // The early attempt has found the change. The next change may be a release, so allow another early attempt.
        if self.held.take().is_some() {
            self.early = Duration::ZERO;
        }
        self.may_hold = false;
        // The watch should have reported the change before the attempt found it.
        self.watching = false;
    }

    fn next(&self, now: Duration, lease: &ObservedRecord) -> Action {
        if self.stopping || self.ability == Eligibility::None {
            return match (self.may_hold, self.stopping) {
                (true, _) => Action::Release,
                (false, true) => Action::Done,
                (false, false) => Action::Wait(Duration::MAX),
            };
        }
        // A leader renews. A standby takes a Lease without a holder, with a silent holder, or of its own before a restart.
        // While its watch works, it sends nothing else.
        let ours = self.held.is_some() || lease.names(&self.me);
        let free_at = lease.free_at();
        let mut due = self.next_try;
        if self.watching && !ours {
            due = due.max(free_at);
        }
        // An attempt on a Lease that is not free takes it from no other replica.
        if self.ability == Eligibility::Partial && !ours && (self.watching || now >= free_at) {
            let offered = free_at.max(self.part_since);
            due = due.max(offered.saturating_add(self.timing.yield_delay));
        }
        let end = self.held.as_ref().map(|held| held.deadline);
        if now < due {
            return Action::Wait(end.map_or(due, |end| due.min(end)));
        }
        Action::Try(end.map_or(self.timing.attempt, |end| {
            self.timing.attempt.min(end.saturating_sub(now))
        }))
    }
}
