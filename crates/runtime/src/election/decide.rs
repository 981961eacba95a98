//! What an elector does next: a pure step from what it knows and what just happened to what it does.
//!
//! No I/O, no clock and no chance in here: times come in as arguments, in time since a fixed instant of the local
//! clock. The same code is run by the loop in [`super`] and explored by the model in the tests.

use std::time::Duration;

pub use super::observed_lease::{ObservedRecord, Record};
pub use crate::client::fence::ability::Ability;

/// The times of an election, and the bound of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// A leader that could not renew for this long stops leading (H6).
    pub renew_deadline: Duration,
    /// The longest that one attempt to acquire or renew may take (H6).
    pub attempt: Duration,
    /// What lies between two attempts that nothing brings forward. Something may bring one forward once in four of these,
    /// by all but a tenth: what would do so again and again, a policy that refuses for ever or a watch that is behind,
    /// makes no replica ask all the time (H14).
    pub retry_period: Duration,
    /// How long a replica that can do only a part of the work leaves a free Lease to others.
    pub yield_delay: Duration,
}

/// The leadership that an elector has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// Counts the terms of this process from 1.
    pub id: u64,
    /// The Lease's UID.
    pub uid: String,
    /// The Lease's `leaseTransitions`.
    pub transitions: i32,
    /// When it ends, unless it is renewed.
    pub deadline: Duration,
}

/// What just happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Time passed.
    Tick,
    /// How much of its work this replica can do from now on. A leader that can do none has been drained.
    Able(Ability),
    /// The watch delivered the Lease: it works. `changed` as [`ObservedRecord::observe`] said.
    Watched {
        /// Whether the Lease differs from what was seen before.
        changed: bool,
    },
    /// The watch is down, or cannot be trusted.
    WatchLost,
    /// An attempt that began at `sent` ended; the next may begin `pause` after that.
    Tried {
        /// The instant before the attempt's first request was sent.
        sent: Duration,
        /// How it ended.
        outcome: Outcome,
        /// The jittered retry period.
        pause: Duration,
    },
    /// The API server refused a write because somebody else holds the Lease, or because it does not know yet that this
    /// elector does.
    Rejected,
    /// The Lease turned out to be somebody else's, by a read that was no attempt.
    Deposed,
    /// The process wants to end, and its work has been drained.
    Stop,
    /// The release is done, or was given up.
    Released,
}

/// How an attempt to acquire or renew ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The API server's reply names this elector as the holder (H2).
    Held {
        /// The Lease's UID.
        uid: String,
        /// The Lease's `leaseTransitions`.
        transitions: i32,
    },
    /// Somebody else holds the Lease.
    HeldBy(String),
    /// There is a Lease now that nobody has ever held, and it may not be taken yet.
    Unheld,
    /// No answer, or not one to build on: a conflict, a timeout, an error.
    Failed,
}

impl Outcome {
    /// How an attempt of `me` ended, by what the API server's reply says: whoever sent it may think otherwise (H2).
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

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing, before this instant, a change of the Lease or another [`Ability`].
    Wait(Duration),
    /// Try to acquire or renew, giving up after this long.
    Try(Duration),
    /// Release the Lease if it is ours.
    Release,
    /// Nothing, ever again.
    Done,
}

/// An elector: one replica that runs for leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elector {
    me: String,
    timing: Timing,
    held: Option<Held>,
    terms: u64,
    ability: Ability,
    /// Since when the ability is [`Part`](Ability::Part).
    part_since: Duration,
    next_try: Duration,
    /// When the last attempt began.
    tried: Duration,
    /// When an attempt may be brought forward again.
    early: Duration,
    watching: bool,
    /// An attempt may have made us the holder without our knowing it.
    may_hold: bool,
    stopping: bool,
}

impl Elector {
    /// An elector called `me` that has not read the Lease yet, and can do all its work until it is said otherwise.
    #[must_use]
    pub fn new(me: String, timing: Timing) -> Self {
        Self {
            me,
            timing,
            held: None,
            terms: 0,
            ability: Ability::All,
            part_since: Duration::ZERO,
            next_try: Duration::ZERO,
            tried: Duration::ZERO,
            early: Duration::ZERO,
            watching: false,
            may_hold: false,
            stopping: false,
        }
    }

    /// The leadership that is to be published after a step.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// How much of its work this replica can do.
    #[must_use]
    pub fn ability(&self) -> Ability {
        self.ability
    }

    /// Whether the watch of the Lease is known to work.
    #[must_use]
    pub fn watching(&self) -> bool {
        self.watching
    }

    /// Takes in what happened and says what to do. `lease` is the Lease as last seen by anyone in this process.
    pub fn step(&mut self, now: Duration, event: Event, lease: &ObservedRecord) -> Action {
        match event {
            Event::Tick => {}
            Event::Able(ability) => {
                if ability != self.ability {
                    let part = ability == Ability::Part;
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
                // Its Lease was deleted, and is there again: before the term ends, it can be taken at once.
                if unheld && self.held.is_some() {
                    self.bring_forward(now);
                }
            }
            // Not the end of the term: the refusal may be older than it. A renewal shows it, because it is conditional.
            Event::Rejected => self.bring_forward(now),
            Event::Deposed => self.deposed(),
            Event::Stop => self.stopping = true,
            Event::Released => self.may_hold = false,
        }
        let over = self.stopping || self.ability == Ability::Nothing;
        self.held.take_if(|held| over || now >= held.deadline);
        self.next(now, lease)
    }

    /// Has the next attempt begin as soon as may be.
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
            // The term goes on to its deadline: nobody else leads before that.
            Outcome::Unheld => {}
            Outcome::Failed => self.may_hold = true,
        }
    }

    fn deposed(&mut self) {
        // What the attempt was brought forward for is done: a release may bring about the next.
        if self.held.take().is_some() {
            self.early = Duration::ZERO;
        }
        self.may_hold = false;
        // The watch should have reported it before we asked.
        self.watching = false;
    }

    fn next(&self, now: Duration, lease: &ObservedRecord) -> Action {
        if self.stopping || self.ability == Ability::Nothing {
            return match (self.may_hold, self.stopping) {
                (true, _) => Action::Release,
                (false, true) => Action::Done,
                (false, false) => Action::Wait(Duration::MAX),
            };
        }
        // A leader renews. A standby takes a Lease that nobody holds, whose holder was silent, or that is its own from
        // before a restart; while its watch works it asks for nothing else.
        let ours = self.held.is_some() || lease.names(&self.me);
        let free_at = lease.free_at();
        let mut due = self.next_try;
        if self.watching && !ours {
            due = due.max(free_at);
        }
        // While nobody can take it, asking takes it from nobody.
        if self.ability == Ability::Part && !ours && (self.watching || now >= free_at) {
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
