//! Places of the replicas: pods, their containers, and the kubelet.

use std::{mem, time::Duration};

use super::{
    super::{
        draw::Draws,
        network::DoorState,
        outside::{self, Moment},
        plan::{Fault, Machine, Settings, Then, draw},
        record::Record,
        replica::Replica,
        trace::{End, Life, Log, Reconcile, Role, Time, Who},
    },
    Due, World,
};

/// First delay before the kubelet restarts a container. Doubled each time.
const RESTART: Duration = Duration::from_secs(1);
const LONGEST_RESTART: Duration = Duration::from_secs(10);

/// `terminationGracePeriodSeconds` of `deploy/`.
pub const GRACE: Duration = Duration::from_secs(40);

/// Interval of the checks whether a sleeping machine has woken.
const LOOKS: Duration = Duration::from_millis(100);

/// Pending stop request of a process.
#[derive(Clone, Debug, Default, PartialEq)]
enum Stopping {
    #[default]
    No,
    ForGood,
    /// Another pod with these settings follows.
    For(Settings),
}

/// A place for a replica.
pub struct Place {
    pub machine: Machine,
    /// Settings of this pod; `None`: as planned.
    pub settings: Option<Settings>,
    pub replica: Option<Replica>,
    pub pod: (String, String),
    /// Number of faults that freeze it or put its machine to sleep.
    pub still: u32,
    /// Number of faults that put its machine to sleep, and when the sleep began.
    pub asleep: (u32, Time),
    /// Whether the place should have a pod.
    pub is_wanted: bool,
    /// Number of calls when the process started.
    pub first_call: usize,
    /// Stop request that decides about the next pod.
    stopping: Stopping,
    pods: u32,
    lives: u32,
    restarts: u32,
    /// Killed until all faults are healed.
    pub gone: bool,
    /// API server that each client is connected to.
    pub connected: [Option<usize>; 2],
}

impl Place {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            settings: None,
            replica: None,
            pod: (String::new(), String::new()),
            still: 0,
            asleep: (0, Time::ZERO),
            is_wanted: true,
            first_call: 0,
            stopping: Stopping::No,
            pods: 0,
            lives: 0,
            restarts: 0,
            gone: false,
            connected: [None; 2],
        }
    }

    pub fn life(&self) -> u32 {
        self.lives.saturating_sub(1)
    }
}

impl World {
    /// Starts a process in this place. If its machine sleeps, it starts after the sleep.
    pub(super) fn start(&mut self, number: usize, pod: bool, settings: Option<Settings>) {
        let (seed, now) = (self.plan.seed, self.now);
        let is_asleep = |fault: &Fault| *fault == Fault::Suspend { replica: number };
        let is_still = self.is_going_on(|fault| *fault == Fault::WallStill { replica: number });
        let is_asleep = self.is_going_on(is_asleep);
        let place = &mut self.places[number];
        if place.replica.is_some() {
            return;
        }
        if is_asleep {
            place.is_wanted = true;
            let start = Due::Start {
                place: number,
                pod,
                settings,
            };
            self.due(now + LOOKS, start);
            return;
        }
        if pod || place.pods == 0 {
            let app = self.plan.program.app().name;
            place.pods += 1;
            place.restarts = 0;
            let uid = draw(seed, "pod", (number as u64) << 32 | u64::from(place.pods));
            let name = format!("{app}-{number}-{}", place.pods);
            let uid = format!("00000000-0000-4000-9000-{:012x}", uid & 0xffff_ffff_ffff);
            place.pod = (name, uid);
            place.settings = settings.or(place.settings.take());
        }
        let who = Who {
            replica: number,
            life: place.lives,
        };
        place.lives += 1;
        (place.gone, place.still, place.stopping) = (false, 0, Stopping::No);
        place.asleep = (0, Time::ZERO);
        place.connected = [None; 2];
        (place.is_wanted, place.first_call) = (true, self.trace.calls.len());
        let settings = place.settings.as_ref().unwrap_or(&self.plan.settings);
        let settings = settings.clone();
        let pod = (&*place.pod.0, &*place.pod.1);
        let its = outside::Place {
            settings: &settings,
            systems: Some(&self.trace.systems),
            who,
        };
        let program = self.plan.program;
        let replica = Replica::boot((seed, program), who, pod, now, place.machine, &its);
        if is_still {
            replica.wall_stands(Some(now));
        }
        place.replica = Some(replica);
        let pod = place.pod.clone();
        self.trace.lives.push(Life {
            who,
            pod,
            settings,
            begun: now,
            asked: None,
            unwell: None,
            still: Vec::new(),
            ended: None,
        });
        self.set_doors();
    }

    /// Records the changes of systems outside the cluster, and schedules the requests that began.
    pub(super) fn stamp_outside(&mut self, at: Time) {
        /// Shortest and longest time until a request lands, in milliseconds.
        const LANDS: (u64, u64) = (10, 30_000);
        let revisions = self.store.history().len();
        let (lines, landings) = self.trace.systems.stamp(Moment { at, revisions });
        for line in lines {
            self.trace.events.push((at, line));
        }
        for landing in landings {
            let mut draws = Draws::new(self.plan.seed ^ landing.request, "outside");
            let after = Duration::from_millis(draws.log_uniform(LANDS.0, LANDS.1));
            self.due(at + after, Due::Lands(landing));
        }
    }

    /// Scrapes the sizes of every replica.
    pub(super) fn scrape(&mut self) {
        let there = self.places.iter().filter(|place| place.still == 0);
        let replicas = there.filter_map(|place| place.replica.as_ref());
        let sizes = replicas.filter_map(|replica| Some((self.now, replica.who, replica.sizes()?)));
        self.trace.sizes.extend(sizes);
    }

    /// Runs one replica up to the world's time `to`.
    pub(super) fn step(&mut self, number: usize, to: Time) {
        let place = &mut self.places[number];
        if place.still > 0 {
            return;
        }
        let Some(replica) = &mut place.replica else {
            return;
        };
        let stepped = replica.step(to);
        self.take_in(number, stepped, to);
    }

    /// Records the results of a turn.
    pub(super) fn take_in(
        &mut self,
        number: usize,
        stepped: super::super::replica::Stepped,
        to: Time,
    ) {
        let Some(replica) = &self.places[number].replica else {
            return;
        };
        let who = replica.who;
        let (sent, given_up) = replica.wire.take();
        if !given_up.is_empty() {
            self.streams
                .retain(|stream| stream.who != who || !given_up.contains(&stream.id));
        }
        self.stamp_outside(to);
        let is_idle = stepped.records.is_empty() && stepped.end.is_none();
        if is_idle && sent.is_empty() && given_up.is_empty() {
            return;
        }
        // A fault may kill the replica at a request. Anything after that has not happened.
        let mut killed = None;
        for sent in sent {
            killed = self.send(number, sent, to);
            if killed.is_some() {
                break;
            }
        }
        for id in &given_up {
            if let Some(call) = self.open.remove(&(who, *id)) {
                self.trace.calls[call].over = Some(to);
            }
        }
        let mut unwell = false;
        for (at, record) in stepped.records {
            if killed.is_some_and(|(killed, _)| at > killed) {
                continue;
            }
            match record {
                Record::Log { level, text } => {
                    unwell |= text.contains("liveness fails");
                    self.trace.logs.push(Log {
                        at,
                        who,
                        level,
                        text,
                    });
                }
                Record::Begins {
                    span,
                    key,
                    trigger,
                    attempt,
                } => {
                    let reconcile = Reconcile {
                        who,
                        key,
                        trigger,
                        attempt,
                        begun: at,
                        ended: None,
                        failed: false,
                    };
                    self.actors.spans.insert(span, self.trace.reconciles.len());
                    self.trace.reconciles.push(reconcile);
                }
                Record::Fails { span } => {
                    if let Some(&index) = self.actors.spans.get(&span) {
                        self.trace.reconciles[index].failed = true;
                    }
                }
                Record::Ends { span } => {
                    if let Some(index) = self.actors.spans.remove(&span) {
                        self.trace.reconciles[index].ended = Some(at);
                    }
                }
            }
        }
        if let Some((at, then)) = killed {
            self.kill(number, at, then);
        } else if let Some(end) = stepped.end {
            self.ended(number, to, end);
        } else if unwell {
            self.say(format!("{who}: the kubelet has it start again"));
            // The kubelet does not probe a pod that is already terminating.
            if let Some(life) = self.life_mut(number)
                && life.asked.is_none()
            {
                life.unwell = Some(to);
            }
            self.terminate(number, Some(Then::Container(RESTART)));
        }
    }

    /// Sends SIGTERM. With `then`, another pod with these settings follows.
    pub(super) fn ask_to_stop(&mut self, number: usize, then: Option<Settings>) {
        let place = &mut self.places[number];
        place.is_wanted = then.is_some();
        if place.replica.is_none() {
            place.gone &= place.is_wanted;
            if let settings @ Some(_) = then {
                self.start(number, true, settings);
            }
            return;
        }
        place.stopping = then.map_or(Stopping::ForGood, Stopping::For);
        self.terminate(number, None);
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    fn terminate(&mut self, number: usize, then: Option<Then>) {
        let now = self.now;
        let Some(replica) = &mut self.places[number].replica else {
            return;
        };
        replica.stop();
        let life = replica.who.life;
        if let Some(life) = self.life_mut(number) {
            life.asked.get_or_insert(now);
        }
        let then = then.unwrap_or(Then::Nobody);
        self.due(
            now + GRACE,
            Due::Kill {
                place: number,
                life,
                then,
            },
        );
    }

    /// Adds a fault that halts the replica.
    pub(super) fn stands_still(&mut self, number: usize) {
        let now = self.now;
        self.places[number].still += 1;
        if self.places[number].still == 1
            && let Some(life) = self.life_mut(number)
        {
            life.still.push(now..Time::MAX);
        }
    }

    /// Removes a fault that halts the replica.
    pub(super) fn stands_still_no_more(&mut self, number: usize) {
        let now = self.now;
        self.places[number].still -= 1;
        if self.places[number].still == 0
            && let Some(life) = self.life_mut(number)
            && let Some(still) = life.still.last_mut()
        {
            still.end = now;
        }
    }

    fn life_mut(&mut self, number: usize) -> Option<&mut Life> {
        let lives = self.trace.lives.iter_mut().rev();
        lives.into_iter().find(|life| life.who.replica == number)
    }

    /// Handles the end of a process that was not killed.
    fn ended(&mut self, number: usize, at: Time, end: End) {
        self.gone(number, at, end);
        let place = &mut self.places[number];
        match mem::take(&mut place.stopping) {
            Stopping::ForGood => {}
            Stopping::For(settings) => {
                let settings = Some(settings);
                let start = Due::Start {
                    place: number,
                    pod: true,
                    settings,
                };
                self.due(at + Duration::from_millis(100), start);
            }
            Stopping::No => {
                let wait = (RESTART * 2_u32.saturating_pow(place.restarts)).min(LONGEST_RESTART);
                place.restarts += 1;
                self.due(
                    at + wait,
                    Due::Start {
                        place: number,
                        pod: false,
                        settings: None,
                    },
                );
            }
        }
    }

    fn gone(&mut self, number: usize, at: Time, end: End) {
        let Some(replica) = self.places[number].replica.take() else {
            return;
        };
        let who = replica.who;
        self.streams.retain(|stream| stream.who != who);
        self.open.retain(|(whose, _), _| *whose != who);
        drop(replica);
        if let Some(life) = self.life_mut(number) {
            life.ended = Some((at, end));
        }
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self, number: usize, at: Time, then: Then) {
        if self.places[number].replica.is_none() {
            return;
        }
        self.gone(number, at, End::Killed);
        let place = &mut self.places[number];
        if let Stopping::For(settings) = mem::take(&mut place.stopping) {
            let settings = Some(settings);
            self.due(
                at,
                Due::Start {
                    place: number,
                    pod: true,
                    settings,
                },
            );
            return;
        }
        let (wait, pod) = match then {
            Then::Container(wait) => (wait, false),
            Then::Pod(wait) => (wait, true),
            Then::Nobody if self.is_healed => (Duration::ZERO, true),
            Then::Nobody => {
                place.gone = true;
                return;
            }
        };
        self.due(
            at + wait,
            Due::Start {
                place: number,
                pod,
                settings: None,
            },
        );
    }

    pub(super) fn kill_if(&mut self, number: usize, life: u32, then: Then) {
        let place = &self.places[number];
        if place
            .replica
            .as_ref()
            .is_some_and(|replica| replica.who.life == life)
        {
            // A replica that was stopped without a successor stays away.
            let is_asked = place.stopping == Stopping::ForGood;
            self.kill(number, self.now, then);
            self.places[number].gone &= !is_asked;
        }
    }

    /// Sets whether each client can connect now.
    pub(super) fn set_doors(&mut self) {
        let is_up = self.servers.iter().any(|api| api.server.is_some());
        for number in 0..self.places.len() {
            for role in [Role::Work, Role::Lease] {
                let state = if !is_up {
                    DoorState::Refuses
                } else if self.is_cut_off(number, role) {
                    DoorState::Hangs
                } else {
                    DoorState::Open
                };
                if let Some(replica) = &self.places[number].replica {
                    replica.wire.set_door(role, state);
                }
            }
        }
    }
}
