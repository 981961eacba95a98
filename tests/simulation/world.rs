//! The world: its time, the store, the API servers, the replicas in their places, and the network between them.
//!
//! Nobody runs further than anything can reach it: in a quantum no two replicas can meet, since nothing that one does takes
//! less than [`SHORTEST`] to an API server, and from there as long again.

mod calls;
mod faults;
mod places;
mod rollout;

use std::{collections::BTreeMap, mem, time::Duration};

use k8s_openapi::jiff::SignedDuration;
use serde_json::Value;

use super::{
    actors::Actors,
    api::{Call, Method, Now, Server, Store, User},
    network::SHORTEST,
    plan::{Action, Plan, Settings, Step, What},
    replica::{BEGIN, NAMESPACE},
    trace::{Time, Trace, Who},
};
use calls::{Arriving, Stream};
use faults::Ongoing;
pub use places::GRACE;
use places::Place;

/// How far everybody is let at once.
const QUANTUM: Duration = Duration::from_millis(20);

/// How often those who are no replicas look.
const TICK: Duration = Duration::from_millis(100);

/// How often the replicas are scraped.
const SCRAPE: Duration = Duration::from_secs(30);

/// Where Foos are: not in `default`, which nobody can delete.
pub const FOOS: &str = "foos";

pub struct World {
    pub plan: Plan,
    pub now: Time,
    /// Whether what goes wrong has been healed.
    is_healed: bool,
    pub store: Store,
    pub trace: Trace,
    pub actors: Actors,
    servers: Vec<Api>,
    places: Vec<Place>,
    /// What is to be done when, in the order in which it was put here.
    agenda: BTreeMap<(Time, u64), Due>,
    /// Requests on their way.
    arrivals: BTreeMap<(Time, u64), Arriving>,
    streams: Vec<Stream>,
    /// What the replicas wait for the answer of, or for more of it: which call it is.
    open: BTreeMap<(Who, u64), usize>,
    /// Those that go on, by their numbers in the trace.
    faults: BTreeMap<usize, Ongoing>,
    /// What the replicas are being updated to.
    rollout: Option<Settings>,
    /// Counts whatever needs a number.
    count: u64,
    /// Up to when the API servers have served.
    served: Time,
    ticked: Time,
    scraped: Time,
}

/// One API server's place.
struct Api {
    /// `None`: it was killed.
    server: Option<Server>,
    paused: bool,
    /// What came while it was paused.
    waiting: Vec<Arriving>,
    /// The store's version that its watches were last asked for news of, and when.
    looked: (u64, Time),
}

/// What is to be done.
enum Due {
    Step(What),
    /// The fault of this number is over.
    Over(usize),
    /// A new process in this place: another container of its pod, or another pod.
    Start {
        place: usize,
        pod: bool,
        settings: Option<Settings>,
    },
    /// SIGKILL, if it is still this process.
    Kill {
        place: usize,
        life: u32,
        then: super::plan::Then,
    },
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut store = Store::new();
        let now = at(Duration::ZERO);
        for namespace in [FOOS, NAMESPACE] {
            store.create_namespace(now, namespace);
        }
        let definition = serde_json::to_value(foo_controller::api::crd()).unwrap();
        store.install_definition(now, definition);
        let servers = (0..plan.servers).map(|_| Api {
            server: Some(Server::new(&store)),
            paused: false,
            waiting: Vec::new(),
            looked: (0, Duration::ZERO),
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
            open: BTreeMap::new(),
            faults: BTreeMap::new(),
            rollout: None,
            count: 0,
            served: Duration::ZERO,
            ticked: Duration::ZERO,
            scraped: Duration::ZERO,
            store,
            servers,
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

    /// Until the end that is planned.
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

    /// What is due by now.
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
        // What came before has happened before.
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
                // Who is told that nobody is there tries again.
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

    /// Somebody who is no replica asks the first API server that is there, which answers at once; 503: there is none.
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
            accept: None,
            body: &body,
        };
        let mut there = self.servers.iter_mut().filter(|api| !api.paused);
        let Some(server) = there.find_map(|api| api.server.as_mut()) else {
            return (503, Value::Null);
        };
        match server.serve(&mut self.store, at(self.now), &call) {
            Ok(super::api::Answer::Whole { code, body, .. }) => (code, body),
            Ok(super::api::Answer::Watch(_)) => panic!("{user} watches {path}"),
            Err(unknown) => panic!("{unknown}: {user}: {method} {path}"),
        }
    }
}

/// What the API servers' clocks say then, which are right.
pub fn at(time: Time) -> Now {
    Now {
        since_start: time,
        wall: BEGIN + SignedDuration::try_from(time).unwrap_or_default(),
    }
}
