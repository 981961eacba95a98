//! Destination of the objects that a watch delivers.

use std::sync::Arc;

use crate::{
    api::{
        key::Key,
        object::{Cached, Object},
        panic::{Panicked, catch},
    },
    cache::store::{Change, Store},
};

/// Destination of the objects of one scope, in the order of the watch.
pub(crate) trait Target<V: Cached>: Send {
    fn list_begins(&self);
    /// Fails if the code of the type panics. Nothing is stored then.
    fn apply(&self, object: Object<V>) -> Result<(), Panicked>;
    fn delete(&self, key: &Key, version: u64);
    /// Ends a list that is complete. Returns whether the scope of the store is now in sync.
    fn list_ends(&self, version: u64) -> bool;
    /// Removes all objects, because the API server does not serve the resource type.
    fn vanish(&self);
}

/// Stores each object.
pub(crate) struct Direct<V, F> {
    pub store: Arc<Store<V>>,
    pub scope: usize,
    /// Called for each change. Must not block.
    pub changed: F,
}

impl<V: Cached, F: Fn(Change<V>) + Send> Target<V> for Direct<V, F> {
    fn list_begins(&self) {
        self.store.list_begins(self.scope);
    }

    fn apply(&self, object: Object<V>) -> Result<(), Panicked> {
        let apply = || self.store.apply(self.scope, object);
        let change = catch(&V::KIND, "PartialEq::eq", apply)?;
        change.into_iter().for_each(&self.changed);
        Ok(())
    }

    fn delete(&self, key: &Key, version: u64) {
        let change = self.store.delete(self.scope, key, version);
        change.into_iter().for_each(&self.changed);
    }

    fn list_ends(&self, version: u64) -> bool {
        let gone = self.store.list_ends(self.scope, version);
        gone.into_iter().for_each(&self.changed);
        true
    }
    fn vanish(&self) {
        let gone = self.store.vanish(self.scope);
        gone.into_iter().for_each(&self.changed);
    }
}
