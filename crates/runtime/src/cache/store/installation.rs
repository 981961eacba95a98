//! Which objects of a reconciled resource type this installation reconciles, by their label `<group>/installation`.
//!
//! The store may contain the objects of other installations as well, because objects of any installation may refer to them.

use super::{Entry, Snapshot, State, Store};
use crate::api::{
    key::Key,
    object::Cached,
    reference::{Reference, References},
};

impl<V> Snapshot<V> {
    /// Returns the other installation that reconciles the object. Empty: the default installation. `None`: this installation
    /// does, or the resource type is not reconciled.
    pub(crate) fn other_installation(&self) -> Option<&str> {
        self.control.as_ref()?.other_installation.as_deref()
    }

    /// Returns whether this installation reconciles the object.
    pub(crate) fn is_served(&self) -> bool {
        self.other_installation().is_none()
    }
}

impl<V: Cached> Store<V> {
    /// Returns whether this installation reconciles the object of this key, by the label `<group>/installation`. A missing object
    /// counts as served, unless the watch selects this installation's objects and has listed its namespace.
    #[must_use]
    pub fn is_served(&self, key: &Key) -> bool {
        let state = self.state.read();
        let would_be_here = || {
            let scope = state.scope_of(key);
            state.is_divided && scope.is_none_or(|scope| scope.is_listed)
        };
        let entry = state.objects.get(key);
        entry.map_or_else(|| !would_be_here(), Entry::is_served)
    }

    /// Calls `see` with every object that this installation reconciles, as [`for_each`](Self::for_each).
    pub fn for_each_served(&self, mut see: impl FnMut(&V)) {
        let state = self.state.read();
        let served = state.objects.values().filter(|it| it.is_served());
        served.for_each(|entry| see(&entry.view));
    }

    /// Returns the keys of the objects that this installation reconciles and that `is_wanted`, as
    /// [`keys_where`](Self::keys_where).
    pub(crate) fn served_keys_where(&self, is_wanted: impl Fn(&Key, &V) -> bool) -> Vec<Key> {
        self.keys_of(|key, entry| entry.is_served() && is_wanted(key, &entry.view))
    }

    /// Records that the API server selects the objects of this installation.
    pub(crate) fn divide(&self) {
        self.state.write().is_divided = true;
    }

    /// Returns the label of the objects that this installation reconciles: its name, and its value. `None` if no controller
    /// reconciles the resource type. The default installation has an empty value: its objects have no label, or an empty one.
    pub(crate) fn installation_label(&self) -> Option<(String, &str)> {
        self.owners.installation_label::<V>()
    }
}

impl<V: Cached> State<V> {
    /// Returns the references of an object for the index. The changes of a referenced object do not enqueue an object of another
    /// installation.
    pub(super) fn references(key: &Key, object: &Snapshot<V>) -> Vec<Reference> {
        if object.is_served() {
            References::of(key, &**object)
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cache::store::Owners,
        testing::fixtures::{Child, Parent, object},
    };

    fn parents(installation: &str) -> Store<Parent> {
        let owners = Owners::new("example.com").of_installation(installation);
        owners.add::<Parent>();
        Store::new(&[None], owners)
    }

    /// Stores a Parent that refers to the Child `web`. Returns whether it is served.
    fn apply(store: &Store<Parent>, name: &str, version: u64, labels: &str) -> bool {
        let parent = format!(
            "{{metadata: {{name: {name}, namespace: n, uid: {name}, resourceVersion: '{version}', labels: {labels}}}, \
             spec: {{child: web}}}}"
        );
        let change = store.apply(0, object(&parent));
        change.is_some_and(|change| change.new.is_some_and(|it| it.is_served()))
    }

    const CANARY: &str = "{example.com/installation: canary}";

    /// Objects of another installation are known, but not scheduled, counted, or enqueued by the objects that they refer to.
    #[test]
    fn each_object_has_one_installation() {
        for (installation, served) in [("", ["a", "b"].as_slice()), ("canary", &["c"])] {
            let store = parents(installation);
            for (name, labels) in [
                ("a", "{}"),
                ("b", "{example.com/installation: ''}"),
                ("c", CANARY),
                ("d", "{example.com/installation: other}"),
            ] {
                let is_served = served.contains(&name);
                assert_eq!(apply(&store, name, 1, labels), is_served, "{name}");
                assert_eq!(store.is_served(&Key::new("n", name)), is_served, "{name}");
            }
            let served: Vec<_> = served.iter().map(|name| Key::new("n", name)).collect();
            assert_eq!(store.keys(), served);
            assert_eq!(store.keys_where(|_, _| true).len(), 4);
            assert_eq!(store.referrers(&Child::KIND, &Key::new("n", "web")), served);
            let mut seen = Vec::new();
            store.for_each_served(|parent| seen.push(parent.uid.to_string()));
            seen.sort();
            assert_eq!(seen, served.iter().map(Key::name).collect::<Vec<_>>());
        }
    }

    /// A store of a type that no controller reconciles does not read the label.
    #[test]
    fn only_reconciled_objects_have_an_installation() {
        let owners = Owners::new("example.com").of_installation("canary");
        let store = Store::<Parent>::new(&[None], owners);
        assert!(apply(&store, "a", 1, "{}"));
        assert_eq!(store.installation_label(), None);
    }

    #[test]
    fn the_index_follows_the_label() {
        let (store, web) = (parents(""), Key::new("n", "web"));
        let referrers = || store.referrers(&Child::KIND, &web).len();
        for (version, labels, expected) in
            [(1, "{}", 1), (2, CANARY, 0), (3, CANARY, 0), (4, "{}", 1)]
        {
            apply(&store, "a", version, labels);
            assert_eq!(referrers(), expected, "{version}");
        }
        apply(&store, "a", 5, CANARY);
        store.delete(0, &Key::new("n", "a"), 6);
        assert_eq!(referrers(), 0);
    }

    #[test]
    fn an_object_that_comes_starts_anew() {
        let (store, key) = (parents(""), Key::new("n", "a"));
        let mut entered = Vec::new();
        for (version, labels) in [(1, "{}"), (2, CANARY), (3, "{}"), (4, "{}")] {
            apply(&store, "a", version, labels);
            entered.push(store.take_request(&key, None));
        }
        assert_eq!(entered, [false, false, true, false]);
        // Each object that a selected watch adds may have been here before.
        let store = parents("canary");
        assert!(store.is_served(&key), "it may be created");
        store.divide();
        assert!(store.is_served(&key), "it may be in the list");
        store.list_begins(0);
        assert!(store.is_served(&key), "it may be in the list");
        store.list_ends(0, 1);
        assert!(!store.is_served(&key), "the watch would show it");
        assert!(apply(&store, "a", 1, CANARY));
        assert!(store.take_request(&key, None) && !store.take_request(&key, None));
    }
}
