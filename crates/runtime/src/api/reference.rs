//! References between objects: by name, and by the controller reference in the metadata.

use serde::Deserialize;

use crate::api::{key::Key, kind::Kind};

/// An object by its resource type and key.
pub(crate) type Reference = (&'static Kind, Key);

/// Collects the references of an object; see [`Cached::references`](crate::Cached::references).
pub struct References<'a> {
    key: &'a Key,
    all: Vec<Reference>,
}

impl<'a> References<'a> {
    pub(crate) fn none(key: &'a Key) -> Self {
        let all = Vec::new();
        Self { key, all }
    }

    pub(crate) fn into_all(self) -> Vec<Reference> {
        self.all
    }

    /// Returns the key of the object itself.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    pub(crate) fn add(&mut self, kind: &'static Kind, key: Key) {
        let reference = (kind, key);
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
