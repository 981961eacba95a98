//! How many Deployments roll out a new pod template at once.
//!
//! A new version of the controller, or another `image`, gives every Deployment another template. Were all of them patched at once,
//! a bad image would stop every Foo, and a good one would start as many pods as there are Foos. So the template of a Deployment
//! is patched while fewer than `max_rollouts` roll out, and the next one when one of those is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::Arc,
};

use operator_runtime::{Key, Snapshot, Store};
use parking_lot::Mutex;

use super::cached::Deployment;

/// The rollouts that are under way, as the store shows them, and the Foos that wait for one.
pub struct Rollouts {
    deployments: Arc<Store<Deployment>>,
    image: String,
    /// `None`: no limit.
    max: Option<NonZeroUsize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// [`Store::changes`] when `under_way` was counted.
    changes: Option<u64>,
    under_way: usize,
    /// The Deployments whose template is being patched, or was: the store does not take the answer while it is listed anew.
    starting: BTreeMap<Key, Start>,
    /// The Foos whose rollout was put off.
    queued: BTreeSet<Key>,
}

struct Start {
    /// The version that the patch is based on.
    from: u64,
    is_patched: bool,
}

impl Rollouts {
    /// At most `max` rollouts of `image` at once, or all of them.
    #[must_use]
    pub fn new(
        deployments: Arc<Store<Deployment>>,
        image: String,
        max: Option<NonZeroUsize>,
    ) -> Self {
        Self {
            deployments,
            image,
            max,
            state: Mutex::default(),
        }
    }

    /// Lets the Foo patch the template of its Deployment while the result is held; `None`: it waits for another rollout to end.
    /// A Deployment that rolls out already has its place, and may be given another template.
    #[must_use]
    pub fn start(
        &self,
        foo: &Key,
        deployment: &Key,
        actual: &Snapshot<Deployment>,
    ) -> Option<Starting<'_>> {
        let mut state = self.state.lock();
        let free = self.free(&mut state);
        let has_place =
            state.starting.contains_key(deployment) || actual.view.rolls_out(&self.image);
        if free == 0 && !has_place {
            state.queued.insert(foo.clone());
            return None;
        }
        state.queued.remove(foo);
        let start = Start {
            from: actual.version,
            is_patched: false,
        };
        state.starting.insert(deployment.clone(), start);
        Some(Starting {
            rollouts: self,
            deployment: deployment.clone(),
            is_patched: false,
        })
    }

    /// The Foos that need not wait any longer.
    #[must_use]
    pub fn released(&self) -> Vec<Key> {
        let mut state = self.state.lock();
        if state.queued.is_empty() {
            return Vec::new();
        }
        let free = self.free(&mut state);
        let released = std::iter::from_fn(|| state.queued.pop_first());
        released.take(free).collect()
    }

    /// The rollouts under way, and the Foos that wait for one.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let mut state = self.state.lock();
        (self.under_way(&mut state), state.queued.len())
    }

    /// How many more may start.
    fn free(&self, state: &mut State) -> usize {
        let Some(max) = self.max else {
            return usize::MAX;
        };
        let under_way = self.under_way(state);
        let mut starting = 0;
        state.starting.retain(|deployment, start| {
            let stored = self.deployments.get(deployment);
            let is_counted = (stored.as_ref()).is_some_and(|it| it.view.rolls_out(&self.image));
            let is_open = !start.is_patched || stored.is_some_and(|it| it.version == start.from);
            starting += usize::from(is_open && !is_counted);
            is_open
        });
        max.get().saturating_sub(under_way + starting)
    }

    fn under_way(&self, state: &mut State) -> usize {
        // Before the count: what changes meanwhile has it counted again.
        let changes = self.deployments.changes();
        if state.changes != Some(changes) {
            state.under_way = 0;
            self.deployments.for_each(|deployment| {
                state.under_way += usize::from(deployment.rolls_out(&self.image));
            });
            state.changes = Some(changes);
        }
        state.under_way
    }
}

/// A patch that starts a rollout.
pub struct Starting<'a> {
    rollouts: &'a Rollouts,
    deployment: Key,
    is_patched: bool,
}

impl Starting<'_> {
    /// The patch has changed the Deployment.
    pub fn succeed(mut self) {
        self.is_patched = true;
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut state = self.rollouts.state.lock();
        if !self.is_patched {
            state.starting.remove(&self.deployment);
        } else if let Some(start) = state.starting.get_mut(&self.deployment) {
            start.is_patched = true;
        }
    }
}
