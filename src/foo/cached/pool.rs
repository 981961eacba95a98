//! Values that many objects have.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use parking_lot::Mutex;

/// The values that were seen last, each in the place of its hash. Equal ones share memory. There are few places, so that none
/// needs to be given back.
pub struct Pool<T: ?Sized>(Mutex<[Option<Arc<T>>; PLACES]>);

const PLACES: usize = 64;

impl<T: ?Sized + PartialEq> Pool<T> {
    pub const fn new() -> Self {
        Self(Mutex::new([const { None }; PLACES]))
    }

    /// Returns an equal value with the same hash that was seen recently, or else this one.
    pub fn share(&self, value: Arc<T>, hash: &impl Hash) -> Arc<T> {
        let mut state = DefaultHasher::new();
        hash.hash(&mut state);
        let place = usize::try_from(state.finish() % PLACES as u64).unwrap_or_default();
        let seen = &mut self.0.lock()[place];
        match seen {
            Some(seen) if **seen == *value => Arc::clone(seen),
            _ => Arc::clone(seen.insert(value)),
        }
    }
}
