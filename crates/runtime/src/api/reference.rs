//! References between objects: by name, and by the controller reference in the metadata.

use serde::Deserialize;

use crate::api::{key::Key, kind::Kind, object::Cached};

/// An object by its resource type and key.
pub(crate) type Reference = (&'static Kind, Key);

/// Collects the references of an object; see [`Cached::references`].
pub struct References<'a> {
    key: &'a Key,
    all: Vec<Reference>,
}

impl<'a> References<'a> {
    /// Returns the references of an object.
    pub(crate) fn of<V: Cached>(key: &'a Key, view: &V) -> Vec<Reference> {
        let all = Vec::new();
        let mut to = References { key, all };
        view.references(&mut to);
        to.all
    }

    /// Returns the key of the object itself.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// Adds the object `name` of another resource type, in the same namespace.
    pub fn sibling<V: Cached>(&mut self, name: &str) {
        let reference = (kind_of::<V>(), self.key.sibling(name));
        if !self.all.contains(&reference) {
            self.all.push(reference);
        }
    }
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    api_version: String,
    kind: String,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Box<str>,
    #[serde(default)]
    pub(crate) controller: bool,
}

/// Controlling owner of an object. A store keeps it if its resource type is reconciled.
#[derive(Debug, PartialEq, Eq)]
pub struct Owner {
    /// Resource type of the owner.
    pub kind: &'static Kind,
    /// Key of the owner.
    pub key: Key,
    /// UID of the owner.
    pub uid: Box<str>,
}

impl Owner {
    pub(crate) fn reference(&self) -> Reference {
        (self.kind, self.key.clone())
    }
}

impl OwnerReference {
    /// Returns whether the owner is of this resource type, in any version.
    pub(crate) fn is_of(&self, kind: &Kind) -> bool {
        let group = self.api_version.split_once('/');
        let group = group.map_or("", |(group, _)| group);
        self.kind == kind.kind && group == kind.group
    }
}

/// Returns the resource type of a cached form.
pub(crate) fn kind_of<V: Cached>() -> &'static Kind {
    const { &V::KIND }
}
