//! Start, effect and end of faults.

use std::{mem, time::Duration};

use operator_testkit::api_server::{Backup, Lag, Others, Server};

use super::{
    super::{
        plan::{Calls, Fault, Happens, Then, Way},
        trace::{Call, Role, Time},
    },
    Due, World, at,
};

/// Page size of an API server that cannot stream lists. There are too few objects to fill a normal page.
const PAGE: usize = 2;

/// An active fault.
pub struct Ongoing {
    fault: Fault,
    /// Number of matching calls so far.
    seen: u32,
    /// Life of the affected process.
    life: u32,
    backup: Option<Backup>,
}

/// Returns whether both faults set the same switch. While one is active, the end of the other has no effect.
fn is_one_switch(one: &Fault, other: &Fault) -> bool {
    use Fault::{
        Behind, Cold, Fencing, FencingPart, Kill, NoDefinition, NoWatchList, Pause, Revoke, Stuck,
        WallStill,
    };
    match (one, other) {
        (
            Behind { server: one, .. } | Stuck { server: one },
            Behind { server, .. } | Stuck { server },
        ) => one == server,
        (Fencing | FencingPart { .. }, Fencing | FencingPart { .. }) => true,
        (
            Cold { .. }
            | Kill { .. }
            | NoDefinition
            | NoWatchList { .. }
            | Pause { .. }
            | Revoke { .. }
            | WallStill { .. },
            _,
        ) => one == other,
        _ => false,
    }
}

/// Returns whether the call matches.
fn is_one_of(calls: &Calls, call: &Call) -> bool {
    let is_write = matches!(call.verb, "create" | "update" | "patch" | "delete");
    calls
        .replica
        .is_none_or(|replica| replica == call.who.replica)
        && calls.role.is_none_or(|role| role == call.role)
        && calls.server.is_none_or(|server| server == call.server)
        && calls
            .verb
            .is_none_or(|verb| verb == call.verb || verb == "write" && is_write)
        && calls
            .resource
            .is_none_or(|resource| resource == call.resource)
}

fn is_that(one: Way, other: Way) -> bool {
    one == Way::Both || one == other
}

impl World {
    /// Returns the fault of a call, if any. If several are due, the others wait for the next call.
    pub(super) fn fault_of(&mut self, call: &Call) -> Option<(usize, Happens)> {
        let mut found = None;
        self.faults.retain(|number, ongoing| {
            let Fault::Call { of, nth, happens } = &ongoing.fault else {
                return true;
            };
            if !is_one_of(of, call) {
                return true;
            }
            ongoing.seen += 1;
            let is_its_turn = nth.is_none_or(|nth| nth <= ongoing.seen) && found.is_none();
            if is_its_turn {
                found = Some((*number, happens.clone()));
            }
            nth.is_none() || !is_its_turn
        });
        found
    }

    /// Returns whether this direction is cut, and the additional latency.
    pub(super) fn on_the_way(&self, call: &Call, way: Way) -> (bool, Duration) {
        let (mut is_cut, mut slow) = (false, Duration::ZERO);
        for ongoing in self.faults.values() {
            match &ongoing.fault {
                Fault::Partition { of, way: its } if is_that(*its, way) => {
                    is_cut |= is_one_of(of, call);
                }
                Fault::Slow { of, way: its, by } if is_that(*its, way) && is_one_of(of, call) => {
                    slow += *by;
                }
                _ => {}
            }
        }
        (is_cut, slow)
    }

    /// Returns whether this client cannot open a new connection.
    pub(super) fn is_cut_off(&self, place: usize, role: Role) -> bool {
        self.faults.values().any(|ongoing| match &ongoing.fault {
            Fault::Partition { of, .. } => {
                of.replica.is_none_or(|replica| replica == place)
                    && of.role.is_none_or(|its| its == role)
                    && of.server.is_none_or(|_| self.servers.len() == 1)
                    && of.verb.is_none()
                    && of.resource.is_none()
            }
            _ => false,
        })
    }

    /// Returns whether such a fault is active.
    pub fn is_going_on(&self, is: impl Fn(&Fault) -> bool) -> bool {
        self.faults.values().any(|ongoing| is(&ongoing.fault))
    }

    /// Returns the place of the replica with this number in the plan. Only places that should have a pod count. An upgrade
    /// changes them.
    pub(super) fn place_of(&self, replica: usize) -> usize {
        let places = self.places.iter().enumerate();
        let mut wanted = places.filter(|(_, place)| place.is_wanted);
        wanted.nth(replica).map_or(replica, |(number, _)| number)
    }

    pub(super) fn begin(&mut self, mut fault: Fault, lasts: Duration) {
        if let Some(replica) = fault.replica_mut() {
            *replica = self.place_of(*replica);
        }
        self.say(match lasts {
            Duration::ZERO => format!("fault: {fault:?}"),
            lasts => format!("fault: {fault:?} for {lasts:?}"),
        });
        let now = self.now;
        // A fault with a call number waits for its call. A fault that lasts to the end is not healed.
        let waits = matches!(fault, Fault::Call { nth: Some(_), .. });
        let over = match now.saturating_add(lasts) {
            _ if waits => self.plan.end,
            over if over >= self.plan.end => Time::MAX,
            over => over,
        };
        let number = self.trace.faults.len();
        self.trace.faults.push((now..over, fault.clone()));
        let mut ongoing = Ongoing {
            seen: 0,
            life: 0,
            backup: None,
            fault,
        };
        match ongoing.fault.clone() {
            Fault::Crash { replica, then } => {
                self.kill(replica, now, then);
                return;
            }
            Fault::Freeze { replica } | Fault::Suspend { replica } => {
                self.stands_still(replica);
                if matches!(ongoing.fault, Fault::Suspend { .. }) {
                    self.falls_asleep(replica);
                }
                ongoing.life = self.places[replica].life();
            }
            Fault::WallJump { replica, by } => {
                let place = &mut self.places[replica];
                place.machine.wall += by;
                place.replica.iter().for_each(|it| it.wall_jumps(by));
            }
            Fault::WallStill { replica } => {
                ongoing.life = self.places[replica].life();
                self.places[replica]
                    .replica
                    .iter()
                    .for_each(|it| it.wall_stands(Some(now)));
            }
            Fault::Reset { of } => {
                self.reset(|call| is_one_of(&of, call));
                return;
            }
            Fault::Kill { server } => self.kill_server(server),
            Fault::Pause { .. }
            | Fault::Behind { .. }
            | Fault::Stuck { .. }
            | Fault::Cold { .. }
            | Fault::NoWatchList { .. } => self.spoil_server(&ongoing.fault),
            Fault::Compact => {
                let to = self.store.version();
                self.store.compact(to);
                for api in &mut self.servers {
                    api.server.iter_mut().for_each(|it| it.forget(to));
                }
                return;
            }
            Fault::Restore => ongoing.backup = Some(self.store.backup()),
            Fault::Revoke { verb, resource } => self.store.revoke(&self.user, verb, resource),
            Fault::NoDefinition => {
                if let Some(kind) = self.store.custom_kinds().first().copied() {
                    self.store.remove_definition(at(now), kind);
                }
            }
            Fault::Fencing => self.switch_fencing(false),
            Fault::FencingPart { record } => self.store.remove_fencing_part(at(now), record),
            Fault::NoCollector | Fault::NoNamespace | Fault::NoPods { .. } => self.actors.wake(),
            Fault::Policy(_)
            | Fault::Partition { .. }
            | Fault::Slow { .. }
            | Fault::Call { .. } => {}
        }
        let lasts_on = matches!(ongoing.fault, Fault::WallJump { .. }) && lasts.is_zero();
        if lasts_on {
            return;
        }
        self.faults.insert(number, ongoing);
        if !waits {
            self.due(over, Due::Over(number));
        }
        self.set_policies();
        self.set_doors();
    }

    pub(super) fn end(&mut self, number: usize) {
        let Some(ongoing) = self.faults.remove(&number) else {
            return;
        };
        let now = self.now;
        self.say(format!("over: {:?}", ongoing.fault));
        let mut others = self.faults.values().map(|other| &other.fault);
        if let Some(other) = others.rfind(|other| is_one_switch(&ongoing.fault, other)) {
            return self.spoil_server(&other.clone());
        }
        match ongoing.fault {
            Fault::Freeze { replica } | Fault::Suspend { replica } => {
                let place = &self.places[replica];
                if place.life() == ongoing.life && place.replica.is_some() {
                    self.stands_still_no_more(replica);
                    match ongoing.fault {
                        Fault::Suspend { .. } => self.wakes(replica),
                        _ => self.thaws(replica),
                    }
                }
            }
            Fault::WallJump { replica, by } => {
                let place = &mut self.places[replica];
                place.machine.wall -= by;
                place.replica.iter().for_each(|it| it.wall_jumps(-by));
            }
            Fault::WallStill { replica } => {
                self.places[replica]
                    .replica
                    .iter()
                    .for_each(|it| it.wall_stands(None));
            }
            Fault::Kill { server } => self.start_server(server),
            Fault::Pause { server } => {
                self.servers[server].paused = false;
                for arriving in mem::take(&mut self.servers[server].waiting) {
                    self.arrives(now, arriving);
                }
            }
            Fault::Behind { server, .. } | Fault::Stuck { server } => {
                self.set_lag(server, Lag::By(Duration::ZERO));
            }
            Fault::Cold { server } => self.with_server(server, |it| it.cold = false),
            Fault::NoWatchList { server } => self.with_server(server, |it| {
                (it.watch_list, it.page) = (true, usize::MAX);
            }),
            Fault::Restore => {
                if let Some(backup) = ongoing.backup {
                    let bump = self.store.version() + 1000;
                    self.store.restore(at(now), backup, bump);
                    for server in 0..self.servers.len() {
                        if self.servers[server].server.is_some() {
                            self.kill_server(server);
                            self.start_server(server);
                        }
                    }
                }
            }
            Fault::Revoke { verb, resource } => self.store.grant(&self.user, verb, resource),
            Fault::NoDefinition => self.install_definition(),
            Fault::Fencing | Fault::FencingPart { .. } => self.switch_fencing(true),
            Fault::NoCollector | Fault::NoNamespace | Fault::NoPods { .. } => self.actors.wake(),
            Fault::Policy(_)
            | Fault::Crash { .. }
            | Fault::Reset { .. }
            | Fault::Compact
            | Fault::Partition { .. }
            | Fault::Slow { .. }
            | Fault::Call { .. } => {}
        }
        self.set_policies();
        self.set_doors();
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.say("all faults are over".to_owned());
        self.is_healed = true;
        for number in 0..self.trace.faults.len() {
            let over = &mut self.trace.faults[number].0.end;
            if *over < Time::MAX {
                *over = self.now.min(*over);
                self.end(number);
            }
        }
        for silent in [Happens::WatchSilent, Happens::WatchFallsSilent] {
            self.heal_silence(&silent);
        }
        for place in 0..self.places.len() {
            if self.places[place].gone {
                self.start(place, true, None);
            }
        }
    }

    /// Leaves silent watches to their readers if the plan has time for that. Otherwise resets them.
    fn heal_silence(&mut self, silent: &Happens) {
        let until = self.now + silent.is_noticed_in().unwrap_or_default();
        let name = Some(format!("{silent:?}"));
        if until > self.plan.rest {
            self.reset(|call| call.fault == name);
        }
        let calls = &self.trace.calls;
        if !self.open.values().any(|call| calls[*call].fault == name) {
            return;
        }
        for (time, fault) in &mut self.trace.faults {
            if matches!(fault, Fault::Call { happens, .. } if happens == silent) {
                time.end = time.end.max(until);
            }
        }
    }

    fn falls_asleep(&mut self, place: usize) {
        let (by, since) = &mut self.places[place].asleep;
        if *by == 0 {
            *since = self.now;
        }
        *by += 1;
    }

    /// Removes a fault that put the machine to sleep. The sleep lasts from the start of the first fault to the end of the last.
    fn wakes(&mut self, number: usize) {
        let place = &mut self.places[number];
        let (by, since) = &mut place.asleep;
        *by -= 1;
        if *by == 0
            && let Some(replica) = &mut place.replica
        {
            replica.slept(self.now.saturating_sub(*since));
        }
        self.thaws(number);
    }

    fn thaws(&mut self, place: usize) {
        let now = self.now;
        let is_still = self.places[place].still > 0;
        if let Some(replica) = &mut self.places[place].replica
            && !is_still
        {
            let stepped = replica.thaw(now);
            self.take_in(place, stepped, now);
        }
    }

    fn with_server(&mut self, server: usize, change: impl Fn(&mut Server)) {
        self.servers[server].server.iter_mut().for_each(change);
    }

    fn set_lag(&mut self, server: usize, lag: Lag) {
        let now = at(self.now);
        if let Some(server) = &mut self.servers[server].server {
            server.set_lag(&self.store, now, lag);
        }
    }

    fn kill_server(&mut self, server: usize) {
        self.servers[server].server = None;
        let waiting = mem::take(&mut self.servers[server].waiting);
        self.servers[server].paused = false;
        // Responses in flight still arrive.
        self.reset(|call| call.server == server && call.is_watch());
        for arriving in waiting {
            self.arrives(self.now, arriving);
        }
        self.set_doors();
    }

    /// Starts an API server. Active faults apply to it.
    fn start_server(&mut self, number: usize) {
        self.servers[number].server = Some(Server::new(&self.store));
        let faults = self.faults.values().map(|ongoing| ongoing.fault.clone());
        for fault in faults.collect::<Vec<_>>() {
            if matches!(
                fault,
                Fault::Pause { server }
                    | Fault::Behind { server, .. }
                    | Fault::Stuck { server }
                    | Fault::Cold { server }
                    | Fault::NoWatchList { server } if server == number
            ) {
                self.spoil_server(&fault);
            }
        }
        self.set_doors();
    }

    /// Applies a fault to a running API server.
    fn spoil_server(&mut self, fault: &Fault) {
        match *fault {
            Fault::Pause { server } => self.servers[server].paused = true,
            Fault::Behind { server, by } => self.set_lag(server, Lag::By(by)),
            Fault::Stuck { server } => self.set_lag(server, Lag::Stuck),
            Fault::Cold { server } => self.with_server(server, |it| it.cold = true),
            Fault::NoWatchList { server } => self.with_server(server, |it| {
                (it.watch_list, it.page) = (false, PAGE);
            }),
            _ => {}
        }
    }

    pub(super) fn install_definition(&mut self) {
        for crd in self.plan.program.crds() {
            let definition = serde_json::to_value(crd).unwrap();
            self.store.install_definition(at(self.now), definition);
        }
    }

    /// Installs the active policies of others and removes the rest, as their owners would even after a restored backup.
    fn set_policies(&mut self) {
        for policy in Others::ALL {
            let is_there =
                self.is_going_on(|fault| matches!(fault, Fault::Policy(its) if *its == policy));
            self.store.set_policy(at(self.now), policy, is_there);
        }
    }

    /// Sets the fencing component to its planned state, or to the opposite.
    pub(super) fn switch_fencing(&mut self, as_planned: bool) {
        let fencing = self.plan.program.fencing();
        if let Some(fencing) = fencing.filter(|_| self.plan.fencing == as_planned) {
            self.store.install_fencing(at(self.now), fencing);
        } else {
            self.store.remove_fencing(at(self.now));
        }
    }
}

impl Then {
    /// The next container of the same pod, after the kubelet's first delay.
    pub const SOON: Self = Self::Container(Duration::from_secs(1));
}
