//! Exhaustive exploration of the election: three replicas run the shipped decision function, in every order of events.
//!
//! The replicas, the API server and the network are a state machine, and stateright visits all its states. The model covers
//! these cases:
//! - Any time passes between a read and the write based on it.
//! - A write is stored after its sender has given up, crashed or stopped.
//! - Replicas crash, restart under the same name, and stop.
//! - The Lease is deleted, cleared, or replaced by a copy from before it was held.
//! - Monotonic clocks start at different times, and a wall clock is wrong.
//!
//! [`ElectionState`] and [`ObservedRecord`] are the shipped code. The lease guard and `kube-leader-election` are modelled after
//! their source.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::struct_excessive_bools,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it explored"
)]

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use operator_runtime::internals::state_machine::{
    Action, ElectionState, Eligibility, Event, ObservedRecord, Outcome, Record, Timing,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

// In ticks; the default is 2 seconds.
const RETRY: u64 = 1;
const YIELD: u64 = 1;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Initial value of each replica's monotonic clock.
const BOOT: [u64; 3] = [100, 200, 300];

/// Parameters of an exploration: the possible events and their limits.
#[derive(Clone, Copy, Debug)]
struct Election {
    /// Number of replicas, the first of [`NAMES`].
    replicas: usize,
    guard: bool,
    creation: Creation,
    /// In ticks; the default is 15 seconds.
    lease: u64,
    /// In ticks; the default is 10 seconds.
    renew: u64,
    /// Whether `a` leads at the start. Otherwise most states are about the first election.
    led: bool,
    wrong_clock: bool,
    ticks: u64,
    crashes: u8,
    stops: u8,
    deletions: u8,
    /// How many times a client may remove the holder.
    clearings: u8,
    /// How many times the ability of a replica may change.
    changes: u8,
    /// Maximum number of writes in flight whose senders no longer wait.
    late: usize,
    /// Number of successive terms that the exploration must reach.
    terms: i32,
    /// Whether each state is checked for progress: a replica must lead soon afterwards.
    converges: bool,
}

/// How a missing Lease is created.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Creation {
    /// As shipped: without a holder. It is taken after a whole lease duration.
    Unheld,
    /// With a holder, immediately by a replica that has not seen the Lease held.
    HeldAtOnce,
    /// With a holder, after a whole lease duration without a Lease.
    HeldInTime,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    lease: Option<Lease>,
    /// Number of Leases created.
    leases: u8,
    replicas: Vec<Replica>,
    late: Vec<Write>,
    crashes: u8,
    stops: u8,
    deletions: u8,
    clearings: u8,
    changes: u8,
    hazards: Hazards,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lease {
    /// Sequence number of the Lease.
    uid: u8,
    holder: Option<usize>,
    /// By the writer's wall clock.
    renewed: u64,
    transitions: i32,
    /// True time of the holder's last write; `None` if it never had a holder.
    landed: Option<u64>,
    /// Whether and how a client removed the holder.
    cleared: Option<Cleared>,
}

/// How a client removes the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cleared {
    /// Removes the holder's name.
    Edited,
    /// Restores a copy of the Lease from after an earlier release.
    PutBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    elector: ElectionState,
    observed: ObservedRecord,
    /// Call of `kube-leader-election` that has read the Lease and sent its write.
    call: Option<Call>,
    done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    sent: Duration,
    write: Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Write {
    by: usize,
    what: What,
    renewed: u64,
    /// Whether the Lease is unchanged since the read. If so, the precondition of the guard holds.
    current: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Create,
    /// With the transitions in the merge patch.
    Acquire(i32),
    Renew,
    Release,
}

/// Forbidden events that have happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Hazards {
    /// A replica acquired the Lease although another had acquired it since the read.
    h1: bool,
    /// An attempt counted as successful although another replica, or none, held the Lease.
    h2: bool,
    /// A write of another replica made the Lease of a live holder older.
    h3: bool,
    /// A release removed another holder.
    h4: bool,
    /// The Lease was acquired less than a lease duration after its holder's last renewal.
    h5: bool,
    /// The Lease was acquired or created during another replica's term.
    h12: bool,
    /// A replica that cannot work tried to acquire or renew the Lease.
    unable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Happens {
    Tick,
    /// A replica runs a step. If an attempt is due, it reads the Lease.
    Turn(usize),
    /// A replica's watch delivers the Lease.
    Watch(usize),
    /// A replica's write reaches the API server, and the response reaches the replica.
    Land(usize),
    /// A replica stops waiting for its call.
    GiveUp(usize),
    /// A write whose sender no longer waits reaches the API server.
    Late(usize),
    /// A replica crashes and restarts.
    Crash(usize),
    /// A replica stops after it has drained its work.
    Stop(usize),
    /// A client deletes the Lease.
    Delete,
    /// A client removes the holder.
    Clear(Cleared),
    /// The ability of a replica changes. It drains its work before it loses all ability.
    Able(usize, Eligibility),
}

fn standing(replica: usize, election: Election) -> Replica {
    let timing = Timing {
        renew_deadline: Duration::from_secs(election.renew),
        attempt: Duration::from_secs(election.renew),
        // Attempts may be brought forward at any time.
        retry_period: Duration::ZERO,
        yield_delay: Duration::from_secs(YIELD),
    };
    Replica {
        elector: ElectionState::new(NAMES[replica].to_owned(), timing),
        observed: ObservedRecord::default(),
        call: None,
        done: false,
    }
}

fn record(lease: &Lease, election: Election) -> Record {
    let is_held = lease.holder.is_some();
    let released = !is_held && lease.landed.is_some() && lease.cleared != Some(Cleared::Edited);
    // A tick is long. A renewal and a release in the same tick have different timestamps nevertheless.
    let renewed = |at: u64| Timestamp::from_second(2 * at.cast_signed() + i64::from(released));
    Record {
        uid: lease.uid.to_string(),
        holder: lease
            .holder
            .map(|holder| NAMES[holder].to_owned())
            .unwrap_or_default(),
        duration: Duration::from_secs(election.lease),
        renewed: lease.landed.map(|at| renewed(at).unwrap()),
        transitions: lease.transitions,
        released,
        // In this model, replicas always observe that the Lease was held in between.
        vacant_at: String::new(),
    }
}

impl State {
    fn clock(&self, replica: usize) -> Duration {
        Duration::from_secs(BOOT[replica] + self.now)
    }

    /// Whether the fence of this replica is open.
    fn acts(&self, replica: usize) -> bool {
        let held = self.replicas[replica].elector.held();
        held.is_some_and(|held| self.clock(replica) < held.deadline)
    }

    fn holder(&self) -> Option<usize> {
        self.lease.as_ref().and_then(|lease| lease.holder)
    }

    fn observe(&mut self, replica: usize, election: Election) -> bool {
        let record = |lease| record(lease, election);
        let (now, record) = (self.clock(replica), self.lease.as_ref().map(record));
        self.replicas[replica].observed.observe(now, record)
    }

    fn step(&mut self, replica: usize, event: Event, election: Election) {
        let now = self.clock(replica);
        let it = &mut self.replicas[replica];
        match it.elector.step(now, event, &it.observed) {
            Action::Wait(_) => {}
            Action::Try(_) => self.call(replica, false, election),
            Action::Release => self.call(replica, true, election),
            Action::Done => self.replicas[replica].done = true,
        }
    }

    /// Runs `try_acquire_or_renew` or `step_down` of `kube-leader-election`, up to the write.
    fn call(&mut self, replica: usize, release: bool, election: Election) {
        self.observe(replica, election);
        let sent = self.clock(replica);
        let wrong = election.wrong_clock && replica == 2;
        let ahead = if wrong { election.lease + 1 } else { 0 };
        // With the guard, nothing depends on the wall clock.
        let wall = if election.guard { 0 } else { self.now + ahead };
        let it = &self.replicas[replica];
        let deadline = it.elector.held().map(|held| held.deadline);
        let expired = |lease: &Lease| {
            if election.guard {
                it.observed.is_free(sent, deadline.unwrap_or_default())
            } else {
                lease.holder.is_none() || wall > lease.renewed + election.lease
            }
        };
        let what = match &self.lease {
            Some(lease) if lease.holder == Some(replica) => {
                if release {
                    What::Release
                } else {
                    What::Renew
                }
            }
            _ if release => return self.step(replica, Event::Released, election),
            None => {
                let gone = it.observed.free_at();
                let waited = sent >= gone + Duration::from_secs(election.lease);
                let own = it.observed.names(NAMES[replica]);
                let creates = match election.creation {
                    Creation::Unheld => true,
                    Creation::HeldAtOnce => {
                        let known = NAMES.iter().any(|name| it.observed.names(name));
                        waited || own || !known
                    }
                    Creation::HeldInTime => waited || deadline.is_some_and(|end| sent < end),
                };
                if election.guard && !creates {
                    return self.ended(replica, sent, Outcome::Failed, election);
                }
                What::Create
            }
            Some(lease) if expired(lease) => What::Acquire(lease.transitions + 1),
            Some(_) => return self.tried(replica, sent, election),
        };
        let able = self.replicas[replica].elector.ability() != Eligibility::None;
        self.hazards.unable |= !able && what != What::Release;
        let write = Write {
            by: replica,
            what,
            renewed: wall,
            current: true,
        };
        self.replicas[replica].call = Some(Call { sent, write });
    }

    /// Ends an attempt. The replica then knows the current Lease.
    fn tried(&mut self, replica: usize, sent: Duration, election: Election) {
        let lease = self.lease.clone().unwrap();
        // Without the guard, `kube-leader-election` treats every response to its write as a success.
        let answered = self.replicas[replica].call.is_some();
        let named = match lease.holder {
            _ if answered && !election.guard => NAMES[replica],
            holder => holder.map_or("", |holder| NAMES[holder]),
        };
        let uid = lease.uid.to_string();
        let outcome = Outcome::of(NAMES[replica], named.to_owned(), uid, lease.transitions);
        self.hazards.h2 |= matches!(outcome, Outcome::Held { .. }) && lease.holder != Some(replica);
        self.ended(replica, sent, outcome, election);
    }

    fn ended(&mut self, replica: usize, sent: Duration, outcome: Outcome, election: Election) {
        self.replicas[replica].call = None;
        let pause = Duration::from_secs(RETRY);
        self.step(
            replica,
            Event::Tried {
                sent,
                outcome,
                pause,
            },
            election,
        );
    }

    /// Applies a write on the API server. Returns false if it is rejected.
    fn land(&mut self, write: &Write, election: Election) -> bool {
        let conditional = election.guard && write.what != What::Create;
        if conditional && !write.current {
            return false;
        }
        let old = match (write.what, self.lease.clone()) {
            (What::Create, Some(_)) => return false,
            (What::Create, None) => {
                self.leases += 1;
                Lease {
                    uid: self.leases,
                    holder: None,
                    renewed: 0,
                    transitions: 0,
                    landed: None,
                    cleared: None,
                }
            }
            (_, old) => old.unwrap(),
        };
        let unheld = election.guard && election.creation == Creation::Unheld;
        if write.what == What::Create && unheld {
            self.lease = Some(old);
            self.outdate(election);
            return true;
        }
        let by_holder = old.holder == Some(write.by);
        let expiry = old.landed.map(|at| at + election.lease);
        let live = old.holder.is_some() && expiry.is_some_and(|expiry| self.now < expiry);
        let others_act = (0..self.replicas.len()).any(|it| it != write.by && self.acts(it));
        let hazards = &mut self.hazards;
        let new = match write.what {
            What::Create => {
                hazards.h12 |= others_act;
                Lease {
                    holder: Some(write.by),
                    ..old
                }
            }
            What::Acquire(transitions) => {
                hazards.h1 |= !write.current && old.holder.is_some() && !by_holder;
                hazards.h5 |= write.current && live;
                hazards.h12 |= others_act;
                Lease {
                    holder: Some(write.by),
                    transitions,
                    ..old
                }
            }
            What::Renew => {
                hazards.h3 |= !by_holder && live && (election.guard || write.renewed < old.renewed);
                old
            }
            What::Release => {
                hazards.h4 |= !by_holder && old.holder.is_some();
                Lease {
                    holder: None,
                    ..old
                }
            }
        };
        let landed = if new.holder == Some(write.by) || new.holder.is_none() {
            Some(self.now)
        } else {
            new.landed
        };
        self.lease = Some(Lease {
            renewed: write.renewed,
            landed,
            cleared: None,
            ..new
        });
        self.outdate(election);
        true
    }

    /// Marks all pending writes as based on an outdated Lease.
    fn outdate(&mut self, election: Election) {
        for other in self.late.iter_mut().chain(
            self.replicas
                .iter_mut()
                .filter_map(|it| Some(&mut it.call.as_mut()?.write)),
        ) {
            other.current = false;
        }
        if election.guard {
            // With the guard, outdated writes fail, except creations, which are unconditional.
            self.late.retain(|write| write.what == What::Create);
        }
    }

    fn landed(&mut self, replica: usize, election: Election) {
        let Call { sent, write } = self.replicas[replica].call.clone().unwrap();
        let landed = self.land(&write, election);
        match (write.what, landed) {
            (What::Release, _) => {
                self.replicas[replica].call = None;
                // After a conflict it reads again.
                let event = if landed { Event::Released } else { Event::Tick };
                self.step(replica, event, election);
            }
            (_, true) => {
                self.observe(replica, election);
                self.tried(replica, sent, election);
            }
            (_, false) => self.ended(replica, sent, Outcome::Failed, election),
        }
    }

    /// Returns whether a replica that can work leads soon if no more failures happen: within two lease durations and the
    /// maximum other delay. True if no replica can work.
    fn converges(mut self, election: Election) -> bool {
        let able = |it: &Replica| !it.done && it.elector.ability() != Eligibility::None;
        if !self.replicas.iter().any(able) {
            return true;
        }
        for _ in 0..=2 * election.lease + YIELD + RETRY {
            for replica in 0..self.replicas.len() {
                while self.replicas[replica].call.is_some() {
                    self.landed(replica, election);
                }
                if self.replicas[replica].done {
                    continue;
                }
                let changed = self.observe(replica, election);
                self.step(replica, Event::Watched { changed }, election);
                while self.replicas[replica].call.is_some() {
                    self.landed(replica, election);
                }
            }
            if (0..self.replicas.len()).any(|replica| self.acts(replica)) {
                return true;
            }
            self.now += 1;
        }
        false
    }

    /// Ends the wait for this replica's call. Its write stays in flight.
    fn abandon(&mut self, replica: usize, election: Election) -> Option<Call> {
        let call = self.replicas[replica].call.take();
        if let Some(Call { write, .. }) = &call
            && (write.current || write.what == What::Create || !election.guard)
            && self.late.len() < election.late
        {
            self.late.push(write.clone());
            self.late.sort();
        }
        call
    }
}

impl Model for Election {
    type State = State;
    type Action = Happens;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            now: 0,
            lease: None,
            leases: 0,
            replicas: (0..self.replicas)
                .map(|replica| standing(replica, *self))
                .collect(),
            late: Vec::new(),
            crashes: 0,
            stops: 0,
            deletions: 0,
            clearings: 0,
            changes: 0,
            hazards: Hazards::default(),
        };
        if self.led {
            // It has waited for a whole lease duration.
            state.lease = Some(Lease {
                uid: 0,
                holder: None,
                renewed: 0,
                transitions: 0,
                landed: Some(0),
                cleared: None,
            });
            state.now = 1;
            state.step(0, Event::Tick, *self);
            state.landed(0, *self);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Happens>) {
        if state.now < self.ticks + u64::from(self.led) {
            actions.push(Happens::Tick);
        }
        if let Some(holder) = state.holder().filter(|_| state.clearings < self.clearings) {
            actions.push(Happens::Clear(Cleared::Edited));
            // A replica that has not seen the Lease held would accept the copy as a release.
            let knows = |it: &Replica| it.observed.names(NAMES[holder]);
            if self.crashes == 0 && state.replicas.iter().all(knows) {
                actions.push(Happens::Clear(Cleared::PutBack));
            }
        }
        if state.lease.is_some() && state.deletions < self.deletions {
            actions.push(Happens::Delete);
        }
        actions.extend((0..state.late.len()).map(Happens::Late));
        for (replica, it) in state.replicas.iter().enumerate().filter(|(_, it)| !it.done) {
            if state.crashes < self.crashes {
                actions.push(Happens::Crash(replica));
            }
            if it.call.is_some() {
                actions.extend([Happens::Land(replica), Happens::GiveUp(replica)]);
                continue;
            }
            actions.push(Happens::Turn(replica));
            if it.elector.held().is_none() {
                actions.push(Happens::Watch(replica));
            }
            if state.stops < self.stops {
                actions.push(Happens::Stop(replica));
            }
            if state.changes < self.changes {
                let all = [Eligibility::None, Eligibility::Partial, Eligibility::Full];
                actions.extend(all.map(|ability| Happens::Able(replica, ability)));
            }
        }
    }

    fn next_state(&self, last: &State, happens: Happens) -> Option<State> {
        let (mut state, election) = (last.clone(), *self);
        match happens {
            Happens::Tick => state.now += 1,
            Happens::Turn(replica) => state.step(replica, Event::Tick, election),
            Happens::Watch(replica) => {
                if !state.observe(replica, election) {
                    return None;
                }
                state.step(replica, Event::Watched { changed: true }, election);
            }
            Happens::Land(replica) => state.landed(replica, election),
            Happens::GiveUp(replica) => match state.abandon(replica, election)? {
                Call { write, .. } if write.what == What::Release => {
                    state.step(replica, Event::Released, election);
                }
                Call { sent, .. } => state.ended(replica, sent, Outcome::Failed, election),
            },
            Happens::Late(index) => {
                let write = state.late.remove(index);
                state.land(&write, election);
            }
            Happens::Crash(replica) => {
                state.abandon(replica, election);
                state.replicas[replica] = standing(replica, election);
                state.crashes += 1;
            }
            Happens::Delete => {
                state.lease = None;
                state.deletions += 1;
                state.outdate(election);
            }
            Happens::Clear(cleared) => {
                let lease = state.lease.as_mut()?;
                lease.holder = None;
                lease.cleared = Some(cleared);
                if cleared == Cleared::PutBack {
                    lease.landed = Some(0);
                }
                state.clearings += 1;
                state.outdate(election);
            }
            Happens::Stop(replica) => {
                state.stops += 1;
                state.step(replica, Event::Stop, election);
            }
            Happens::Able(replica, ability) => {
                if state.replicas[replica].elector.ability() == ability {
                    return None;
                }
                state.changes += 1;
                state.step(replica, Event::Able(ability), election);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one replica acts", |_, state: &State| {
                (0..state.replicas.len())
                    .filter(|replica| state.acts(*replica))
                    .count()
                    <= 1
            }),
            Property::always("who acts holds the Lease", |_, state: &State| {
                // Or held a Lease that was deleted or cleared since.
                let never_held = state
                    .lease
                    .as_ref()
                    .is_none_or(|lease| lease.landed.is_none() || lease.cleared.is_some());
                (0..state.replicas.len()).all(|replica| {
                    !state.acts(replica) || never_held || state.holder() == Some(replica)
                })
            }),
            Property::always("who acts can work", |_, state: &State| {
                (0..state.replicas.len()).all(|replica| {
                    let ability = state.replicas[replica].elector.ability();
                    !state.acts(replica) || ability != Eligibility::None
                })
            }),
            Property::always("who cannot work asks for nothing", |_, state: &State| {
                !state.hazards.unable
            }),
            Property::always(
                "left alone, who can work leads before long",
                |election: &Election, state: &State| {
                    !election.converges || state.clone().converges(*election)
                },
            ),
            Property::always("H1", |_, state: &State| !state.hazards.h1),
            Property::always("H2", |_, state: &State| !state.hazards.h2),
            Property::always("H3", |_, state: &State| !state.hazards.h3),
            Property::always("H4", |_, state: &State| !state.hazards.h4),
            Property::always("H5", |_, state: &State| !state.hazards.h5),
            Property::always("H12", |_, state: &State| !state.hazards.h12),
            Property::sometimes(
                "the Lease was taken that often, and its holder acts",
                |election: &Election, state: &State| {
                    let lease = state.lease.as_ref();
                    lease.is_some_and(|lease| {
                        lease.transitions >= election.terms
                            && lease.holder.is_some_and(|holder| state.acts(holder))
                    })
                },
            ),
        ]
    }
}

/// Explores all states with the guard.
fn explore(election: Election) {
    let checker = election
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!("{election:?}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

const GUARDED: Election = Election {
    replicas: 3,
    guard: true,
    creation: Creation::Unheld,
    lease: 3,
    renew: 2,
    led: true,
    wrong_clock: true,
    ticks: 3,
    crashes: 0,
    stops: 0,
    deletions: 0,
    clearings: 0,
    changes: 0,
    late: 1,
    terms: 2,
    converges: false,
};

/// Shortest lease and deadline that still distinguish late replicas from punctual ones, so that more terms fit in.
const BRIEF: Election = Election {
    lease: 2,
    renew: 1,
    ..GUARDED
};

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_replica_acts_and_holds_the_lease_at_the_first_election() {
    explore(Election {
        led: false,
        late: 0,
        terms: 1,
        ..BRIEF
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_replica_acts_and_holds_the_lease_with_late_writes() {
    explore(Election {
        ticks: 4,
        ..GUARDED
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_replica_acts_and_holds_the_lease_through_two_takeovers() {
    explore(Election {
        replicas: 2,
        ticks: 5,
        late: 0,
        terms: 3,
        ..BRIEF
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_replica_acts_and_holds_the_lease_when_a_replica_crashes() {
    explore(Election {
        crashes: 1,
        ..GUARDED
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_replica_acts_and_holds_the_lease_when_a_replica_stops() {
    explore(Election {
        stops: 1,
        ..GUARDED
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn h12_one_replica_acts_though_the_lease_is_deleted_at_any_time() {
    explore(DELETED);
    // Two takeovers.
    explore(Election {
        ticks: 5,
        deletions: 1,
        late: 0,
        terms: 3,
        ..DELETED
    });
    explore(Election {
        replicas: 3,
        ticks: 2,
        deletions: 1,
        late: 0,
        ..DELETED
    });
}

const DELETED: Election = Election {
    replicas: 2,
    ticks: 3,
    deletions: 2,
    late: 1,
    ..BRIEF
};

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn h21_one_replica_acts_after_the_holder_is_cleared() {
    explore(Election {
        clearings: 2,
        stops: 1,
        ..CLEARED
    });
    explore(Election {
        clearings: 1,
        crashes: 1,
        ..CLEARED
    });
    // Two takeovers.
    explore(Election {
        clearings: 1,
        ticks: 5,
        late: 0,
        terms: 3,
        ..CLEARED
    });
}

const CLEARED: Election = Election {
    replicas: 2,
    ..BRIEF
};

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn one_eligible_replica_acts_when_replicas_lose_eligibility() {
    explore(Election {
        changes: 1,
        ticks: 2,
        late: 0,
        terms: 1,
        converges: true,
        ..GUARDED
    });
    // Two replicas lose the ability, or one loses and regains it.
    explore(Election {
        changes: 2,
        ticks: 1,
        late: 0,
        terms: 1,
        converges: true,
        ..GUARDED
    });
}

/// A replica that never saw the Lease held creates it immediately, or a replica creates it after a lease duration and the
/// creation is stored late.
#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn h12_creation_with_a_holder_makes_two_replicas_act() {
    for creation in [Creation::HeldAtOnce, Creation::HeldInTime] {
        found(
            Election {
                creation,
                ..DELETED
            },
            &["H12", "one replica acts"],
        );
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for a build that is optimised")]
fn without_the_guard_the_hazards_are_found() {
    let bare = Election {
        guard: false,
        wrong_clock: false,
        ticks: 4,
        stops: 1,
        ..GUARDED
    };
    found(
        bare,
        &[
            "H1",
            "H2",
            "H3",
            "H4",
            "one replica acts",
            "who acts holds the Lease",
        ],
    );
    found(
        Election {
            wrong_clock: true,
            ticks: 1,
            ..bare
        },
        &["H5"],
    );
}

/// Finds the shortest path to each of these properties.
fn found(election: Election, hazards: &[&'static str]) {
    let all = HasDiscoveries::AllOf(hazards.iter().copied().collect());
    let checker = election
        .checker()
        .threads(2)
        .finish_when(all)
        .spawn_bfs()
        .join();
    for hazard in hazards {
        let path = checker
            .discovery(hazard)
            .unwrap_or_else(|| panic!("no {hazard}"));
        println!("{hazard}: {:?}", path.into_actions());
    }
}
