//! Systems outside the cluster. A world has one system of each type. All replicas share it.
//!
//! A system changes at once ([`Outside::act`]), or when a slow request lands ([`Outside::begin`]). A slow request may land after
//! the term of its sender, and after its end.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

use super::{
    plan::Settings,
    trace::{Time, Who},
};

/// State of a system outside the cluster. `Default` is its state at the beginning.
pub trait System: Clone + Default + fmt::Debug + Send + Sync + 'static {}

impl<T: Clone + Default + fmt::Debug + Send + Sync + 'static> System for T {}

/// A replica in the simulated world, for the function that declares its controllers.
pub struct Place<'a> {
    /// The settings that the plan gives it.
    pub settings: &'a Settings,
    pub(super) systems: Option<&'a Systems>,
    pub(super) who: Who,
}

/// The settings of a replica that only declares its types.
static SHIPPED: LazyLock<Settings> = LazyLock::new(Settings::default);

impl Place<'_> {
    /// A place in no world.
    pub(super) fn nowhere() -> Self {
        Self {
            settings: &SHIPPED,
            systems: None,
            who: Who {
                replica: 0,
                life: 0,
            },
        }
    }

    /// Returns this replica's access to the system of type `T`.
    #[must_use]
    pub fn outside<T: System>(&self) -> Outside<T> {
        let system = self.systems.map(Systems::of).unwrap_or_default();
        let who = self.who;
        Outside { system, who }
    }
}

/// Access of one replica to a system outside the cluster.
pub struct Outside<T> {
    system: Arc<Mutex<State<T>>>,
    who: Who,
}

impl<T: System> Outside<T> {
    /// Reads the system.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.system.lock().now)
    }

    /// Changes the system at once.
    pub fn act<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let mut system = self.system.lock();
        let mut done = None;
        let act = |now: &mut T| done = Some(act(now));
        system.change(Some(self.who), None, act);
        done.expect("the change is made at once")
    }

    /// Begins a slow request, which changes the system when it lands: up to 30 seconds later, in any order.
    pub fn begin(&self, lands: impl FnOnce(&mut T) + Send + 'static) {
        let mut system = self.system.lock();
        let request = Request {
            who: self.who,
            begun: None,
            lands: Box::new(lands),
        };
        let number = system.requests.last_key_value();
        let number = number.map_or(0, |(last, _)| last + 1).max(system.next);
        system.next = number + 1;
        system.requests.insert(number, request);
    }
}

/// A moment: the time, and the number of changes in the store until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Simulated time.
    pub at: Time,
    /// Number of changes in the store.
    pub revisions: usize,
}

/// A change of a system.
#[derive(Clone, Debug)]
struct Change<T> {
    /// The replica that made the change, or began the request that made it.
    by: Option<Who>,
    /// When the replica acted. `None` within a step of the replica.
    begun: Option<Moment>,
    /// When the system changed.
    landed: Option<Moment>,
    before: Arc<T>,
    after: Arc<T>,
}

/// A change of a system of any type.
pub(super) struct AnyChange {
    pub of: TypeId,
    pub by: Who,
    pub begun: Moment,
    pub landed: Moment,
    pub before: AnyState,
    pub after: AnyState,
}

/// State of a system of any type.
pub(super) type AnyState = Arc<dyn Any + Send + Sync>;

/// States of the systems at a moment. A system that is missing has not changed.
pub(super) type States = BTreeMap<TypeId, AnyState>;

type Lands<T> = Box<dyn FnOnce(&mut T) + Send>;

struct Request<T> {
    who: Who,
    begun: Option<Moment>,
    lands: Lands<T>,
}

struct State<T> {
    now: Arc<T>,
    changes: Vec<Change<T>>,
    /// Requests that have not landed.
    requests: BTreeMap<u64, Request<T>>,
    next: u64,
    /// Number of changes whose moment is known.
    stamped: usize,
}

impl<T: System> Default for State<T> {
    fn default() -> Self {
        Self {
            now: Arc::default(),
            changes: Vec::new(),
            requests: BTreeMap::new(),
            next: 0,
            stamped: 0,
        }
    }
}

impl<T: System> State<T> {
    fn change(&mut self, by: Option<Who>, begun: Option<Moment>, act: impl FnOnce(&mut T)) {
        let before = Arc::clone(&self.now);
        act(Arc::make_mut(&mut self.now));
        self.changes.push(Change {
            by,
            begun,
            landed: None,
            before,
            after: Arc::clone(&self.now),
        });
    }
}

/// A system of any type.
trait AnySystem: Send {
    /// Sets the moment of the changes and requests since the last call. Returns the changes as text, and the new requests.
    fn stamp(&mut self, moment: Moment) -> (Vec<String>, Vec<u64>);

    /// Lets a request land.
    fn land(&mut self, number: u64);

    fn changes(&self) -> Vec<AnyChange>;

    fn describe(&self) -> String;
}

impl<T: System> AnySystem for State<T> {
    fn stamp(&mut self, moment: Moment) -> (Vec<String>, Vec<u64>) {
        let mut lines = Vec::new();
        for change in &mut self.changes[self.stamped..] {
            change.landed = Some(moment);
            change.begun.get_or_insert(moment);
            let by = change.by.map_or_else(String::new, |who| who.to_string());
            lines.push(format!("{by}: outside: {:?}", change.after));
        }
        self.stamped = self.changes.len();
        let new = (self.requests.iter_mut()).filter(|(_, request)| request.begun.is_none());
        let new = new.map(|(number, request)| {
            request.begun = Some(moment);
            *number
        });
        (lines, new.collect())
    }

    fn land(&mut self, number: u64) {
        if let Some(Request { who, begun, lands }) = self.requests.remove(&number) {
            self.change(Some(who), begun, lands);
        }
    }

    fn changes(&self) -> Vec<AnyChange> {
        let changes = self.changes.iter();
        let any = |change: &Change<T>| {
            Some(AnyChange {
                of: TypeId::of::<T>(),
                by: change.by?,
                begun: change.begun?,
                landed: change.landed?,
                before: Arc::clone(&change.before) as _,
                after: Arc::clone(&change.after) as _,
            })
        };
        changes.filter_map(any).collect()
    }

    fn describe(&self) -> String {
        format!("{:?}", self.changes)
    }
}

/// A type of system.
struct Entry {
    of: TypeId,
    /// An `Arc<Mutex<State<T>>>`, twice.
    typed: Box<dyn Any + Send>,
    system: Arc<Mutex<dyn AnySystem>>,
}

/// All systems of a world, in the order of their first use.
#[derive(Clone, Default)]
pub struct Systems(Arc<Mutex<Vec<Entry>>>);

impl Systems {
    fn of<T: System>(&self) -> Arc<Mutex<State<T>>> {
        let mut all = self.0.lock();
        let mut known = all.iter().filter(|it| it.of == TypeId::of::<T>());
        if let Some(known) = known.find_map(|it| it.typed.downcast_ref::<Arc<Mutex<State<T>>>>()) {
            return Arc::clone(known);
        }
        let new = Arc::<Mutex<State<T>>>::default();
        all.push(Entry {
            of: TypeId::of::<T>(),
            typed: Box::new(Arc::clone(&new)),
            system: Arc::clone(&new) as _,
        });
        new
    }

    /// Returns the changes of all systems, in order of time.
    pub(super) fn changes(&self) -> Vec<AnyChange> {
        let all = self.0.lock();
        let all = all.iter().flat_map(|it| it.system.lock().changes());
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|change| (change.landed.revisions, change.landed.at));
        all
    }

    /// Sets the moment of the changes since the last call. Returns them as text, and the requests that begin.
    pub(super) fn stamp(&self, moment: Moment) -> (Vec<String>, Vec<Landing>) {
        let (mut lines, mut landings) = (Vec::new(), Vec::new());
        for (system, it) in self.0.lock().iter().enumerate() {
            let (text, requests) = it.system.lock().stamp(moment);
            lines.extend(text);
            let requests = requests.into_iter();
            landings.extend(requests.map(|request| Landing { system, request }));
        }
        (lines, landings)
    }

    pub(super) fn land(&self, Landing { system, request }: Landing) {
        if let Some(it) = self.0.lock().get(system) {
            it.system.lock().land(request);
        }
    }
}

/// A slow request of a system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    system: usize,
    pub request: u64,
}

impl fmt::Debug for Systems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock();
        let all = all.iter().map(|it| it.system.lock().describe());
        f.debug_list().entries(all).finish()
    }
}
