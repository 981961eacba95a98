//! Values that many objects have.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

/// The values that were used last, the newest at the end. Equal ones share memory. The size is fixed, so values that nothing
/// uses any more need not be removed.
pub struct Pool<T: ?Sized>(Mutex<VecDeque<Arc<T>>>);

const SIZE: usize = 64;

impl<T: ?Sized + PartialEq> Pool<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Returns an equal value that was used recently, or else this one.
    pub fn share(&self, value: Arc<T>) -> Arc<T> {
        let mut used = self.0.lock();
        let at = used.iter().rposition(|it| **it == *value);
        let shared = at.and_then(|at| used.remove(at)).unwrap_or(value);
        if used.len() == SIZE {
            used.pop_front();
        }
        used.push_back(Arc::clone(&shared));
        shared
    }
}
