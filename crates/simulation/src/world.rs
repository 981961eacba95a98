//! The world: time, the store, the API servers, the replicas in their places, and the network between them.
//!
//! Replicas run in turn, one quantum at a time. They cannot interact within a quantum, because a message takes at least
//! [`SHORTEST`] to an API server, and as long from there.

mod calls;
mod faults;
mod places;
mod rollout;

use std::{collections::BTreeMap, mem, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use operator_testkit::api_server::{Answer, Call, METADATA, Method, Now, Server, Store, User};
use serde_json::Value;

use super::{
    actors::Actors,
    network::SHORTEST,
    outside::Landing,
    plan::{Action, Plan, Settings, Step, What},
    replica::BEGIN,
    trace::{Time, Trace, Who},
};
use calls::{Arriving, Printed, Stream};
use faults::Ongoing;
pub use places::GRACE;
use places::Place;

/// Longest turn of a replica.
const QUANTUM: Duration = Duration::from_millis(20);

/// Interval between two steps of the other clients.
const TICK: Duration = Duration::from_millis(100);

/// Interval between two scrapes of the replicas.
const SCRAPE: Duration = Duration::from_secs(30);

pub struct World {
    pub plan: Plan,
    /// User of the replicas.
    user: String,
    pub now: Time,
    /// Whether all faults have been healed.
    is_healed: bool,
    pub store: Store,
    pub trace: Trace,
    pub actors: Actors,
    servers: Vec<Api>,
    places: Vec<Place>,
    /// Scheduled steps by time, then by order of insertion.
    agenda: BTreeMap<(Time, u64), Due>,
    /// Requests in flight.
    arrivals: BTreeMap<(Time, u64), Arriving>,
    streams: Vec<Stream>,
    printed: Printed,
    /// Calls without a complete response: their index in the trace.
    open: BTreeMap<(Who, u64), usize>,
    /// Active faults, by their index in the trace.
    faults: BTreeMap<usize, Ongoing>,
    /// Target of a rolling update.
    rollout: Option<Settings>,
    /// Counter for unique numbers.
    count: u64,
    /// The API servers have served all requests up to this time.
    served: Time,
    ticked: Time,
    scraped: Time,
}

/// Place of one API server.
struct Api {
    /// `None` while it is killed.
    server: Option<Server>,
    paused: bool,
    /// Requests that arrived while it was paused.
    waiting: Vec<Arriving>,
    /// Store version that its watches last saw, and when.
    looked: (u64, Time),
    /// Whether they look now.
    tells: bool,
}

/// A scheduled step.
enum Due {
    Step(What),
    /// End of the fault with this number.
    Over(usize),
    /// A new process in this place: the next container of its pod, or another pod.
    Start {
        place: usize,
        pod: bool,
        settings: Option<Settings>,
    },
    /// A slow request lands at a system outside the cluster.
    Lands(Landing),
    /// SIGKILL, if the place still has this process.
    Kill {
        place: usize,
        life: u32,
        then: super::plan::Then,
    },
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut store = Store::new().without_managers();
        let now = at(Duration::ZERO);
        for namespace in [plan.program.namespace(), plan.program.system()] {
            store.create_namespace(now, namespace);
        }
        for namespace in plan.program.namespaces() {
            store.create_namespace(now, namespace);
        }
        plan.program.prepare(&mut store, now);
        for crd in plan.program.crds() {
            store.install_definition(now, serde_json::to_value(crd).unwrap());
        }
        let servers = (0..plan.servers).map(|_| Api {
            server: Some(Server::new(&store)),
            paused: false,
            waiting: Vec::new(),
            looked: (0, Duration::ZERO),
            tells: false,
        });
        let servers = servers.collect();
        let mut world = Self {
            now: Duration::ZERO,
            is_healed: false,
            trace: Trace::default(),
            actors: Actors::default(),
            places: plan
                .replicas
                .iter()
                .map(|machine| Place::new(*machine))
                .collect(),
            agenda: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            streams: Vec::new(),
            printed: Printed::default(),
            open: BTreeMap::new(),
            faults: BTreeMap::new(),
            rollout: None,
            count: 0,
            served: Duration::ZERO,
            ticked: Duration::ZERO,
            scraped: Duration::ZERO,
            store,
            servers,
            user: plan.program.user(),
            plan,
        };
        if world.plan.fencing {
            world.switch_fencing(true);
        }
        for place in 0..world.places.len() {
            world.due(
                Duration::ZERO,
                Due::Start {
                    place,
                    pod: true,
                    settings: None,
                },
            );
        }
        for Step { at, what } in mem::take(&mut world.plan.steps) {
            world.due(at, Due::Step(what.clone()));
            world.plan.steps.push(Step { at, what });
        }
        world
    }

    /// Runs until the planned end.
    pub fn run(&mut self) {
        self.run_until(self.plan.end);
    }

    pub fn run_until(&mut self, end: Time) {
        self.control();
        while self.now < end {
            let next = self.agenda.keys().next().map_or(end, |(at, _)| *at);
            let to = (self.now + QUANTUM)
                .min(end)
                .min(next.max(self.now + SHORTEST));
            self.serve(to.saturating_sub(SHORTEST));
            for place in 0..self.places.len() {
                self.step(place, to);
            }
            self.now = to;
            self.control();
        }
    }

    /// Carries out the steps that are due.
    fn control(&mut self) {
        let is_due = self
            .agenda
            .keys()
            .next()
            .is_some_and(|(at, _)| *at <= self.now);
        let ticks = self.now >= self.ticked + TICK;
        if !is_due && !ticks {
            return;
        }
        // Requests that arrived before are served first.
        self.serve(self.now);
        while let Some(first) = self
            .agenda
            .first_entry()
            .filter(|first| first.key().0 <= self.now)
        {
            match first.remove() {
                Due::Step(What::Action(action)) => self.act(action),
                Due::Step(What::Fault(fault, lasts)) => self.begin(fault, lasts),
                Due::Step(What::Heal) => self.heal(),
                Due::Over(fault) => self.end(fault),
                Due::Lands(landing) => {
                    self.trace.systems.land(landing);
                    self.stamp_outside(self.now);
                }
                Due::Start {
                    place,
                    pod,
                    settings,
                } if self.places[place].is_wanted => self.start(place, pod, settings),
                Due::Start { .. } => {}
                Due::Kill { place, life, then } => self.kill_if(place, life, then),
            }
        }
        if ticks {
            self.ticked = self.now;
            let mut actors = mem::take(&mut self.actors);
            actors.tick(self);
            self.actors = actors;
            self.roll_out();
        }
        if self.now >= self.scraped + SCRAPE {
            self.scraped = self.now;
            self.scrape();
        }
    }

    fn due(&mut self, at: Time, due: Due) {
        let number = self.number();
        self.agenda.insert((at, number), due);
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub fn say(&mut self, text: String) {
        self.trace.events.push((self.now, text));
    }

    fn act(&mut self, action: Action) {
        let text = format!("{action:?}");
        match action {
            Action::Stop { replica } => self.ask_to_stop(replica, None),
            Action::Replace { replica, .. } if !self.places[self.place_of(replica)].is_wanted => {}
            Action::Replace { replica, settings } => {
                let replica = self.place_of(replica);
                let settings = settings.or_else(|| self.places[replica].settings.clone());
                let settings = settings.unwrap_or_else(|| self.plan.settings.clone());
                self.ask_to_stop(replica, Some(settings));
            }
            Action::Start { replica, settings } => self.start(replica, true, settings),
            Action::Upgrade { settings } => self.rollout = Some(settings),
            action => {
                let code = super::actors::carry_out(self, &action);
                // Without an API server, the user retries.
                if code == 503 {
                    let again = Due::Step(What::Action(action));
                    self.due(self.now + Duration::from_secs(1), again);
                }
                self.say(format!("{text}: {code}"));
                return;
            }
        }
        self.say(text);
    }

    /// Sends the request of another client to the first running API server, which answers without delay. Returns 503 if no API
    /// server is running.
    pub fn request(
        &mut self,
        user: &str,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> (u16, Value) {
        let content_type = match *method {
            Method::PATCH => Some("application/merge-patch+json"),
            Method::POST | Method::PUT | Method::DELETE => Some("application/json"),
            _ => None,
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body).unwrap(),
        };
        let call = Call {
            user: User {
                name: user,
                pod: None,
            },
            method,
            path_and_query: path,
            content_type,
            // Only the metadata of a CRD is modelled.
            accept: path
                .starts_with("/apis/apiextensions.k8s.io/")
                .then_some(METADATA),
            user_agent: None,
            body: &body,
        };
        let mut there = self.servers.iter_mut().filter(|api| !api.paused);
        let Some(server) = there.find_map(|api| api.server.as_mut()) else {
            return (503, Value::Null);
        };
        match server.serve(&mut self.store, at(self.now), &call) {
            Ok(Answer::Whole { code, body, .. }) => (code, body),
            Ok(Answer::Watch(_)) => panic!("{user} watches {path}"),
            Err(unknown) => panic!("{unknown}: {user}: {method} {path}"),
        }
    }
}

/// Returns this time on the clocks of the API servers, which are correct.
pub fn at(time: Time) -> Now {
    Now {
        since_start: time,
        wall: BEGIN + SignedDuration::try_from(time).unwrap_or_default(),
    }
}
