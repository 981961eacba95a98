//! References between objects: by name, and by the controller reference in the metadata.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{key::Key, kind::Kind};

/// An object by its resource type and key.
pub(crate) type Reference = (&'static Kind, Key);

/// Reference of a spec to a namespaced object, by its name and an optional namespace. A reconciler reads the object with
/// [`View::granted`](crate::View::granted).
///
/// ```yaml
/// password: {name: database, namespace: secrets}
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ObjectRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the object. Default: the namespace of the referring object. An object of another namespace must grant the
    /// access, by its annotation `grant-to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

impl ObjectRef {
    /// Returns the reference to the object `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        let (namespace, name) = (Some(namespace.to_owned()), name.to_owned());
        Self { name, namespace }
    }

    /// Returns the key of the object that an object of the key `from` refers to. `None` if neither the reference nor `from` has a
    /// namespace.
    #[must_use]
    pub fn key(&self, from: &Key) -> Option<Key> {
        let namespace = self.namespace.as_deref().filter(|it| !it.is_empty());
        let namespace = namespace.unwrap_or(from.namespace());
        (!namespace.is_empty()).then(|| Key::new(namespace, &self.name))
    }
}

/// `namespace/name`, or the name alone.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

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
