//! Reverse indexes of the objects of a store: by a relation, such as their references, and by names that the program computes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tracing::warn;

use crate::api::{key::Key, kind::Kind, object::Cached, panic::catch, reference::Reference};

/// The objects of a store that are related to another object, which need not exist.
#[derive(Default)]
pub(super) struct Relation(Vec<(&'static Kind, HashMap<Key, Keys>)>);

impl Relation {
    /// Returns the objects that are related to this object.
    pub(super) fn of(&self, kind: &Kind, to: &Key) -> impl Iterator<Item = &Key> {
        let of_kind = self.0.iter().find(|(it, _)| it.is_same(kind));
        let keys = of_kind.and_then(|(_, all)| all.get(to));
        keys.into_iter().flat_map(Keys::iter)
    }

    pub(super) fn add(&mut self, (kind, to): Reference, key: &Key) {
        let place = self.0.iter().position(|(it, _)| it.is_same(kind));
        let place = place.unwrap_or_else(|| {
            self.0.push((kind, HashMap::new()));
            self.0.len() - 1
        });
        self.0[place].1.entry(to).or_default().add(key);
    }

    pub(super) fn remove(&mut self, (kind, to): &Reference, key: &Key) {
        let Some((_, all)) = self.0.iter_mut().find(|(it, _)| it.is_same(kind)) else {
            return;
        };
        if let Some(keys) = all.get_mut(to) {
            keys.remove(key);
            if keys.is_empty() {
                all.remove(to);
            }
        }
    }

    /// Removes all relations of `key` with a search, if it is unknown which they are.
    pub(super) fn remove_all(&mut self, key: &Key) {
        for (_, all) in &mut self.0 {
            all.retain(|_, keys| {
                keys.remove(key);
                !keys.is_empty()
            });
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(_, all)| all.len()).sum()
    }
}

/// The objects of a resource type by names that the program computes. [`Builder::index`](crate::Builder::index) returns it. A call
/// scans no objects.
#[derive(Clone)]
pub struct Index {
    pub(super) store: Arc<dyn Named>,
    pub(super) number: usize,
}

impl Index {
    /// Returns the number of objects with this name.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        self.store.count(self.number, name)
    }

    /// Returns the objects with this name, in the order of their keys.
    #[must_use]
    pub fn keys(&self, name: &str) -> Vec<Key> {
        self.store.keys(self.number, name)
    }
}

/// A store of any resource type, with its indexes by name.
pub(super) trait Named: Send + Sync {
    fn count(&self, index: usize, name: &str) -> usize;
    fn keys(&self, index: usize, name: &str) -> Vec<Key>;
}

type NamesOf<V> = Box<dyn Fn(&V) -> Vec<String> + Send + Sync>;

/// The objects of a store by name.
pub(super) struct Names<V> {
    of: NamesOf<V>,
    all: HashMap<String, Keys>,
}

impl<V: Cached> Names<V> {
    pub(super) fn new(of: impl Fn(&V) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self {
            of: Box::new(of),
            all: HashMap::new(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Keys> {
        self.all.get(name)
    }

    pub(super) fn add(&mut self, key: &Key, view: &V) {
        match catch(&V::KIND, "Builder::index", || (self.of)(view)) {
            Ok(names) => {
                for name in names {
                    self.all.entry(name).or_default().add(key);
                }
            }
            Err(panicked) => warn!(object = %key, "{panicked}; it has no name in the index"),
        }
    }

    /// Removes all names of an object. They are searched if the function panics now.
    pub(super) fn remove(&mut self, key: &Key, view: &V) {
        match catch(&V::KIND, "Builder::index", || (self.of)(view)) {
            Ok(names) => {
                for name in names {
                    if let Some(keys) = self.all.get_mut(&name) {
                        keys.remove(key);
                        if keys.is_empty() {
                            self.all.remove(&name);
                        }
                    }
                }
            }
            Err(_) => self.all.retain(|_, keys| {
                keys.remove(key);
                !keys.is_empty()
            }),
        }
    }
}

/// Objects that are related to one object, or have one name: usually one, sometimes all.
#[derive(Default)]
pub(super) enum Keys {
    #[default]
    None,
    One(Key),
    Many(BTreeSet<Key>),
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(keys) => keys.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Key> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(key) => (Some(key), None),
            Self::Many(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn add(&mut self, key: &Key) {
        match self {
            Self::None => *self = Self::One(key.clone()),
            Self::One(one) if one == key => {}
            Self::One(one) => *self = Self::Many(BTreeSet::from([one.clone(), key.clone()])),
            Self::Many(keys) => _ = keys.insert(key.clone()),
        }
    }

    fn remove(&mut self, key: &Key) {
        match self {
            Self::One(one) if one == key => *self = Self::None,
            Self::Many(keys) => _ = keys.remove(key),
            Self::None | Self::One(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::{
        cache::store::{Owners, Store},
        testing::fixtures::{Child, Parent, object},
    };

    /// Parents by their Child. If the function panics, the object has no name.
    #[test]
    fn objects_are_found_by_name() {
        let store = Arc::new(Store::<Parent>::new(&[None], Owners::default()));
        let index = store.index(|parent: &Parent| {
            let name = parent.child.clone();
            assert!(name.as_deref() != Some("odd"), "on purpose");
            name.into_iter().collect()
        });
        let mut version = 0;
        let mut put = |name: &str, child: &str| {
            version += 1;
            store.apply(
                0,
                object(&format!(
                    "
                    metadata: {{name: {name}, namespace: n, uid: u, resourceVersion: '{version}'}}
                    spec: {{child: {child}}}"
                )),
            );
        };
        let keys = |name: &str| {
            let keys = index.keys(name);
            assert_eq!(keys.len(), index.count(name));
            keys.iter()
                .map(|key| key.name().to_owned())
                .collect::<Vec<_>>()
        };
        put("b", "web");
        put("a", "web");
        put("c", "odd");
        assert_eq!(keys("web"), ["a", "b"]);
        assert_eq!(keys("odd"), [""; 0]);
        put("a", "db");
        assert_eq!(
            (keys("web"), keys("db")),
            (vec!["b".into()], vec!["a".into()])
        );
        put("b", "odd");
        put("c", "web");
        assert_eq!(keys("web"), ["c"]);
        store.delete(0, &Key::new("n", "c"), 100);
        store.delete(0, &Key::new("n", "b"), 101);
        assert_eq!((keys("web"), keys("odd")), (vec![], vec![]));
        store.delete(0, &Key::new("n", "a"), 102);
        assert_eq!(keys("db"), [""; 0]);
    }

    /// A Parent and a Child have the same key. The relations to one are not those to the other.
    #[test]
    fn relations_are_separate_for_each_kind() {
        let [to, a, b] = ["to", "a", "b"].map(|name| Key::new("n", name));
        let mut relation = Relation::default();
        relation.add((&Parent::KIND, to.clone()), &a);
        relation.add((&Child::KIND, to.clone()), &b);
        let of = |relation: &Relation, kind| relation.of(kind, &to).cloned().collect::<Vec<_>>();
        assert_eq!(of(&relation, &Parent::KIND), slice::from_ref(&a));
        assert_eq!(of(&relation, &Child::KIND), slice::from_ref(&b));
        relation.remove(&(&Parent::KIND, to.clone()), &b);
        relation.remove(&(&Child::KIND, to.clone()), &a);
        assert_eq!(relation.len(), 2);
        relation.remove(&(&Parent::KIND, to.clone()), &a);
        assert!(of(&relation, &Parent::KIND).is_empty());
        assert_eq!(of(&relation, &Child::KIND), [b]);
    }
}
