//! How many Deployments roll out a new pod template at once.
//!
//! A new version of the controller, or another `image`, gives every Deployment another template. Were all of them patched at once,
//! a bad image would stop every Foo, and a good one would start as many pods as there are Foos. So the template of a Deployment
//! is patched while fewer than `max_rollouts` roll out, and the next one when one of those is done.

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc};

use operator_runtime::{Key, Store};
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
    /// The Deployments whose template is being patched.
    starting: BTreeSet<Key>,
    /// The Foos whose rollout was put off.
    queued: BTreeSet<Key>,
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
    /// A Deployment that rolls out already is one of those under way, and may be given another template.
    #[must_use]
    pub fn start(
        &self,
        foo: &Key,
        (deployment, view): (&Key, &Deployment),
    ) -> Option<Starting<'_>> {
        let mut state = self.state.lock();
        if self.free(&mut state) == 0 && !view.rolls_out(&self.image) {
            state.queued.insert(foo.clone());
            return None;
        }
        state.queued.remove(foo);
        state.starting.insert(deployment.clone());
        Some(Starting(self, deployment.clone()))
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
        // The answer to a patch is in the store before the worker goes on.
        let is_counted = |deployment: &Key| {
            let stored = self.deployments.get(deployment);
            stored.is_some_and(|stored| stored.view.rolls_out(&self.image))
        };
        let starting = state.starting.iter().filter(|one| !is_counted(one));
        let taken = under_way + starting.count();
        max.get().saturating_sub(taken)
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
pub struct Starting<'a>(&'a Rollouts, Key);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().starting.remove(&self.1);
    }
}
