//! Whether the API server serves the resource type of a store. Only an optional type may be missing.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{Change, Store};
use crate::api::{key::Key, object::Cached};

/// Time without writes after the API server rejected one because it does not serve the type. The number of objects then does not
/// matter, while a CRD is terminating or the API servers disagree.
pub(crate) const REJECTED: Duration = Duration::from_secs(5);

impl<V: Cached> Store<V> {
    /// Returns whether the resource type of this object is installed. A type that is not
    /// [optional](crate::ControllerBuilder::if_installed) always is. An optional type is installed once the objects in the
    /// namespace of `key` are listed, and until the API server does not serve the type any more. Without the permission to list
    /// it in that namespace, it counts as missing there.
    #[must_use]
    pub fn is_installed(&self, key: &Key) -> bool {
        let is_listed = || {
            self.state
                .read()
                .scope_of(key)
                .is_some_and(|it| it.is_listed)
        };
        !self.is_optional() || is_listed()
    }

    /// Returns whether the resource type is installed in each scope: see [`is_installed`](Self::is_installed).
    pub(crate) fn installed_scopes(&self) -> Vec<bool> {
        let is_listed = || {
            self.state
                .read()
                .scopes
                .iter()
                .map(|it| it.is_listed)
                .collect()
        };
        if self.is_optional() {
            is_listed()
        } else {
            Vec::new()
        }
    }

    /// Whether objects can be written here: the type is installed, and the API server has not rejected a write
    /// [recently](Self::note_rejected).
    pub(crate) fn is_writable(&self, key: &Key) -> bool {
        let is_rejected = || {
            let until = self.state.read().rejected_until;
            until.is_some_and(|end| Instant::now() < end)
        };
        !self.is_optional() || self.is_installed(key) && !is_rejected()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache::store::Owners, testing::fixtures::Child};

    /// The type may be served in one namespace only, if the permission to list it is missing in the other.
    #[test]
    fn an_optional_type_is_installed_where_it_is_listed() {
        let namespaces = ["a", "b"].map(|name| Some(name.to_owned()));
        let store = Store::<Child>::new(&namespaces, Owners::default());
        let installed = || ["a", "b", "c"].map(|name| store.is_installed(&Key::new(name, "x")));
        assert_eq!(installed(), [true; 3], "not optional");
        store.make_optional();
        assert_eq!(installed(), [false; 3]);
        for (scope, expected) in [(1, [false, true, false]), (0, [true, true, false])] {
            store.list_begins(scope);
            store.list_ends(scope, 1);
            assert_eq!(installed(), expected);
            assert_eq!(store.installed_scopes(), expected[..2]);
        }
        store.vanish(1);
        assert_eq!(installed(), [true, false, false]);
    }
}
