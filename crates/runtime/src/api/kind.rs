//! Names and scope of a resource type.

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::Patch;
use serde_json::Value;

/// Names and scope of a resource type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "the names of Kubernetes")]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version, without the group.
    pub version: &'static str,
    /// Kind, in CamelCase.
    pub kind: &'static str,
    /// Resource: the plural of the kind, in lower case.
    pub plural: &'static str,
    /// Whether the type is built into Kubernetes, and accepts strategic merge patches.
    built_in: bool,
    is_cluster_scoped: bool,
}

/// Scope of a resource type: namespaced or cluster-scoped. Subresources have none.
pub trait Scope {
    /// Whether the type is cluster-scoped.
    const IS_CLUSTER: bool;
}

impl Scope for NamespaceResourceScope {
    const IS_CLUSTER: bool = false;
}

impl Scope for ClusterResourceScope {
    const IS_CLUSTER: bool = true;
}

impl Kind {
    /// Returns a type that is built into Kubernetes, with its scope.
    #[must_use]
    pub const fn of<K: k8s_openapi::Resource<Scope: Scope>>() -> Self {
        Self {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::URL_PATH_SEGMENT,
            built_in: true,
            is_cluster_scoped: K::Scope::IS_CLUSTER,
        }
    }

    /// Returns the type of a namespaced custom resource.
    #[must_use]
    pub const fn custom(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
            built_in: false,
            is_cluster_scoped: false,
        }
    }

    /// Returns this type as a cluster-scoped one, whose objects have no namespace.
    #[must_use]
    pub const fn cluster_scoped(mut self) -> Self {
        self.is_cluster_scoped = true;
        self
    }

    /// Returns whether the objects have no namespace.
    #[must_use]
    pub const fn is_cluster_scoped(&self) -> bool {
        self.is_cluster_scoped
    }

    /// Returns the scopes that have a watch of their own, for the setting `namespaces` (`None`: all). A cluster-scoped type is
    /// watched in the whole cluster.
    pub(crate) fn scopes(&self, namespaces: &[Option<String>]) -> Vec<Option<String>> {
        if self.is_cluster_scoped {
            vec![None]
        } else {
            namespaces.to_vec()
        }
    }

    /// Returns whether both are the same resource type, in any version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.group, self.plural) == (other.group, other.plural)
    }

    pub(crate) const fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Returns the patch in the format that the API server accepts for this type.
    pub(crate) fn patch<'a>(&self, patch: &'a Value) -> Patch<&'a Value> {
        if self.built_in {
            Patch::Strategic(patch)
        } else {
            Patch::Merge(patch)
        }
    }

    /// Returns `group/version`, as in `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node};

    use super::*;

    #[test]
    fn a_kind_has_the_scope_of_its_type() {
        assert!(Kind::of::<Node>().is_cluster_scoped());
        assert!(!Kind::of::<ConfigMap>().is_cluster_scoped());
        let custom = Kind::custom("example.com", "v1", "Class", "classes");
        assert!(!custom.is_cluster_scoped());
        assert!(custom.cluster_scoped().is_cluster_scoped());
    }
}
