//! The key of an object in caches, queues and logs.

use std::{fmt, sync::Arc};

/// `namespace/name` of an object, or the `name` of a cluster-scoped object. Cheap to clone: one key per object is shared by
/// cache, queue and worker.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// Returns the key of the object `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            return Self::cluster(name);
        }
        Self(format!("{namespace}/{name}").into())
    }

    /// Returns the key of the cluster-scoped object `name`.
    #[must_use]
    pub fn cluster(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns whether this is the key of a cluster-scoped object.
    #[must_use]
    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace_if_any().is_none()
    }

    /// Returns the namespace. Empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Returns the namespace. `None` for a cluster-scoped object.
    pub(crate) fn namespace_if_any(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }

    /// Returns the name within the namespace, or within the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Returns the namespace whose requests fail together. A cluster-scoped object is its own.
    pub(crate) fn fault_domain(&self) -> &str {
        self.namespace_if_any().unwrap_or(&self.0)
    }

    /// Returns the key of another object in the same namespace. That of a cluster-scoped object is cluster-scoped.
    #[must_use]
    pub fn sibling(&self, name: &str) -> Self {
        if name == self.name() {
            self.clone()
        } else {
            Self::new(self.namespace(), name)
        }
    }

    // Neither a namespace nor a name can contain a slash.
    fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In caches, logs and URLs, an object without a namespace has its name only.
    #[test]
    fn a_cluster_scoped_object_has_no_namespace() {
        let (class, other) = (Key::cluster("a"), Key::new("", "a"));
        assert_eq!((&class, &*class.to_string()), (&other, "a"));
        assert_eq!((class.namespace(), class.name()), ("", "a"));
        assert_eq!(class.sibling("b"), Key::cluster("b"));
        assert!(class.is_cluster_scoped());
        let object = Key::new("n", "a");
        assert_eq!((object.namespace(), object.name()), ("n", "a"));
        assert!(!object.is_cluster_scoped());
        assert_ne!(object, class);
    }

    /// A cluster-scoped object whose requests hang takes no worker from the others.
    #[test]
    fn a_cluster_scoped_object_fails_alone() {
        let domains = [Key::cluster("a"), Key::cluster("b"), Key::new("n", "a")];
        let domains = domains.each_ref().map(Key::fault_domain);
        assert_eq!(domains, ["a", "b", "n"]);
    }
}
