//! The limit on concurrent rollouts of pod templates.
//!
//! A new controller version or another `image` changes the pod template of every Deployment. Without a limit, a bad image would
//! stop all Foos, and a good image would start pods for all of them at the same time. So a template is patched only while fewer
//! than `max_rollouts` Deployments hold a place. The other Foos are queued.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    sync::Arc,
};

use operator_runtime::{Key, Store};
use parking_lot::Mutex;

use super::cached::{Deployment, Foo};

/// The places for rollouts, and the queue of Foos that wait for a place.
pub struct Rollouts {
    foos: Arc<Store<Foo>>,
    deployments: Arc<Store<Deployment>>,
    image: String,
    /// `None`: no limit.
    max: Option<NonZeroUsize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// [`Store::changes`] when `under_way` was read.
    changes: Option<u64>,
    /// The Deployments that the store shows in a rollout, also of terminating Foos.
    under_way: Vec<Key>,
    /// Deployments whose patch is in flight, or whose patched version the store does not contain yet. (During a relist, the
    /// store ignores responses.)
    starting: BTreeMap<Key, Start>,
    queue: Queue,
}

struct Start {
    /// The resourceVersion that the patch is based on.
    from: u64,
    is_patched: bool,
}

/// FIFO queue that holds each Foo at most once.
#[derive(Default)]
struct Queue {
    next: u64,
    by_ticket: BTreeMap<u64, Key>,
    tickets: HashMap<Key, u64>,
}

impl Queue {
    fn add(&mut self, foo: &Key) {
        if !self.tickets.contains_key(foo) {
            self.tickets.insert(foo.clone(), self.next);
            self.by_ticket.insert(self.next, foo.clone());
            self.next += 1;
        }
    }

    fn remove(&mut self, foo: &Key) {
        if let Some(ticket) = self.tickets.remove(foo) {
            self.by_ticket.remove(&ticket);
        }
    }

    fn pop(&mut self) -> Option<Key> {
        let (_, foo) = self.by_ticket.pop_first()?;
        self.tickets.remove(&foo);
        Some(foo)
    }
}

impl Rollouts {
    /// Limits concurrent rollouts of `image` to `max`; `None`: no limit.
    #[must_use]
    pub fn new(
        foos: Arc<Store<Foo>>,
        deployments: Arc<Store<Deployment>>,
        image: String,
        max: Option<NonZeroUsize>,
    ) -> Self {
        Self {
            foos,
            deployments,
            image,
            max,
            state: Mutex::default(),
        }
    }

    /// Takes a place for the patch of a pod template. Returns `None` if all places are taken, and queues the Foo.
    ///
    /// A Deployment that is already replacing its pods, or already holds a place, is never queued.
    #[must_use]
    pub fn start(self: &Arc<Self>, foo: &Key, deployment: &Key) -> Option<Starting> {
        let actual = self.deployments.get(deployment)?;
        let mut state = self.state.lock();
        let free = self.free(&mut state, Some(deployment));
        let holds_one = state.starting.contains_key(deployment);
        if free == 0 && !holds_one && !actual.view.is_replacing() {
            state.queue.add(foo);
            return None;
        }
        state.queue.remove(foo);
        if !holds_one && self.max.is_some() {
            let start = Start {
                from: actual.version,
                is_patched: false,
            };
            state.starting.insert(deployment.clone(), start);
        }
        Some(Starting {
            rollouts: Arc::clone(self),
            deployment: deployment.clone(),
            is_new: !holds_one,
            is_patched: false,
        })
    }

    /// Returns one Foo from the queue for each free place, and removes it from the queue. Skips Foos that no longer exist, or that
    /// have left this installation.
    #[must_use]
    pub fn released(&self) -> Vec<Key> {
        let mut state = self.state.lock();
        if state.queue.tickets.is_empty() {
            return Vec::new();
        }
        let free = self.free(&mut state, None);
        let released = std::iter::from_fn(|| state.queue.pop());
        let exists = |foo: &Key| self.foos.version(foo).is_some() && self.foos.is_served(foo);
        released.filter(exists).take(free).collect()
    }

    /// Returns the place of a Foo in the queue of rollouts; the next Foo has place 1.
    #[must_use]
    pub fn place(&self, foo: &Key) -> Option<usize> {
        let queue = &self.state.lock().queue;
        let ticket = queue.tickets.get(foo)?;
        Some(queue.by_ticket.range(..=ticket).count())
    }

    /// Returns the number of rollouts under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let mut state = self.state.lock();
        self.read(&mut state);
        let under_way = state.under_way.iter();
        under_way.filter(|it| self.holds_place(it)).count()
    }

    /// Whether the stored Deployment rolls out, for a Foo of this installation that is not terminating. A finalizer of another
    /// client may keep a terminating Foo for long, and its Deployment is not reconciled any more.
    fn holds_place(&self, deployment: &Key) -> bool {
        let stored = self.deployments.get(deployment);
        stored.is_some_and(|it| {
            let owner = it.owner.as_ref();
            let is_held = owner.is_none_or(|owner| {
                let foo = self.foos.get(&owner.key);
                self.foos.is_served(&owner.key) && !foo.is_some_and(|foo| foo.deleting)
            });
            it.view.rolls_out(&self.image) && is_held
        })
    }

    /// Returns the number of free places. The Deployment `this` is not counted as a holder.
    fn free(&self, state: &mut State, this: Option<&Key>) -> usize {
        let Some(max) = self.max.map(NonZeroUsize::get) else {
            return usize::MAX;
        };
        let others = |it: &&Key| Some(*it) != this;
        let under_way = |state: &State| {
            let all = state.under_way.iter().filter(others);
            all.filter(|it| self.holds_place(it)).count()
        };
        // While rollouts are stuck, this avoids a scan of all Deployments at each event.
        if under_way(state) >= max {
            return 0;
        }
        let mut starting = 0;
        state.starting.retain(|deployment, start| {
            let version = self.deployments.version(deployment);
            let is_open = !start.is_patched || version == Some(start.from);
            starting +=
                usize::from(is_open && others(&deployment) && !self.holds_place(deployment));
            is_open
        });
        self.read(state);
        let under_way = under_way(state);
        max.saturating_sub(under_way + starting)
    }

    fn read(&self, state: &mut State) {
        // Read before the Deployments: after a change in between, the next call reads them again.
        let changes = self.deployments.changes();
        if state.changes != Some(changes) {
            let all = &self.deployments;
            state.under_way = all.keys_where(|_, view| view.rolls_out(&self.image));
            state.changes = Some(changes);
        }
    }
}

/// A place for a patch that starts a rollout. Dropping it returns the place unless the patch succeeded.
pub struct Starting {
    rollouts: Arc<Rollouts>,
    deployment: Key,
    /// Whether this value took the place. Otherwise an earlier patch already held it.
    is_new: bool,
    is_patched: bool,
}

impl Starting {
    /// Keeps the place: the patch has changed the Deployment.
    pub fn succeed(mut self) {
        self.is_patched = true;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let mut state = self.rollouts.state.lock();
        if self.is_patched {
            if let Some(start) = state.starting.get_mut(&self.deployment) {
                start.is_patched = true;
            }
        } else if self.is_new {
            state.starting.remove(&self.deployment);
        }
    }
}
