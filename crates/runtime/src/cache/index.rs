//! Reverse index of one relation between objects, such as the references of the objects of a store.

use std::collections::{BTreeSet, HashMap};

use crate::api::{key::Key, kind::Kind, reference::Reference};

/// The objects of a store that are related to another object, which need not exist.
#[derive(Default)]
pub(super) struct Index(Vec<(&'static Kind, HashMap<Key, Keys>)>);

impl Index {
    /// Returns the objects that are related to this object.
    pub fn of(&self, kind: &Kind, to: &Key) -> impl Iterator<Item = &Key> {
        let of_kind = self.0.iter().find(|(it, _)| it.is_same(kind));
        let keys = of_kind.and_then(|(_, all)| all.get(to));
        keys.into_iter().flat_map(Keys::iter)
    }

    pub fn add(&mut self, (kind, to): Reference, key: &Key) {
        let place = self.0.iter().position(|(it, _)| it.is_same(kind));
        let place = place.unwrap_or_else(|| {
            self.0.push((kind, HashMap::new()));
            self.0.len() - 1
        });
        self.0[place].1.entry(to).or_default().add(key);
    }

    pub fn remove(&mut self, (kind, to): &Reference, key: &Key) {
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
    pub fn remove_all(&mut self, key: &Key) {
        for (_, all) in &mut self.0 {
            all.retain(|_, keys| {
                keys.remove(key);
                !keys.is_empty()
            });
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.iter().map(|(_, all)| all.len()).sum()
    }
}

/// Objects that are related to one object: usually one, sometimes all.
#[derive(Default)]
enum Keys {
    #[default]
    None,
    One(Key),
    Many(BTreeSet<Key>),
}

impl Keys {
    fn iter(&self) -> impl Iterator<Item = &Key> {
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
