//! The key of an object in caches, queues and logs.

use std::{fmt, sync::Arc};

/// `namespace/name` of an object. Cheap to clone: one key per object is shared by cache, queue and worker.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// Returns the key of the object `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// Returns the namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Returns the name within the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Returns the key of another object in the same namespace.
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
        self.0.split_once('/').unwrap_or((&self.0, ""))
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
