//! Whether the API server serves the resource type of a store. Only an optional type may be missing.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{Change, Store};
use crate::api::{key::Key, object::Cached};

/// Time without writes after the API server rejected one because it does not serve the type. The number of objects then does not
/// matter, while a CRD is terminating or the API servers disagree.
pub(crate) const REJECTED: Duration = Duration::from_secs(5);

impl<V: Cached> Store<V> {
    /// Returns whether the resource type is installed. A type that is not [optional](crate::ControllerBuilder::if_installed)
    /// always is. An optional type is installed once its objects are listed, and until the API server does not serve it any
    /// more. If namespaces are configured, a list in one of them suffices.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        let is_listed = || self.state.read().scopes.iter().any(|it| it.is_listed);
        !self.is_optional() || is_listed()
    }

    /// Whether objects can be written here: the type is installed, the objects of the scope are known, and the API server has not
    /// rejected a write [recently](Self::note_rejected).
    pub(crate) fn is_writable(&self, key: &Key) -> bool {
        let state = self.state.read();
        let is_rejected = state.rejected_until.is_some_and(|end| Instant::now() < end);
        let is_listed = || state.scope_of(key).is_some_and(|it| it.is_listed);
        !self.is_optional() || !is_rejected && is_listed()
    }

    /// Records that the API server rejected a write, because it does not serve the type.
    pub(crate) fn note_rejected(&self) {
        self.state.write().rejected_until = Some(Instant::now() + REJECTED);
    }

    pub(crate) fn is_optional(&self) -> bool {
        self.is_optional.load(Relaxed)
    }

    /// Declares the resource type as optional.
    pub(crate) fn make_optional(&self) {
        self.is_optional.store(true, Relaxed);
    }

    /// Declares an optional type as installed, with the objects that are in the store. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn appear(&self) {
        let mut state = self.state.write();
        for scope in &mut state.scopes {
            scope.is_listed = true;
        }
        state.changes += 1;
    }

    /// Removes all objects of a scope, because the API server does not serve the type. The scope is not listed any more.
    pub(crate) fn vanish(&self, scope: usize) -> Vec<Change<V>> {
        self.list_begins(scope);
        self.ends(scope, 0, false)
    }
}
