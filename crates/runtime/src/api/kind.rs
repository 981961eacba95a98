//! Names of a resource type.

use kube::api::Patch;
use serde_json::Value;

/// Names of a namespaced resource type. Cluster-scoped types are not supported, because no object refers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

impl Kind {
    /// Returns a type that is built into Kubernetes. A cluster-scoped type does not compile:
    ///
    /// ```compile_fail,E0271
    /// let nodes = operator_runtime::Kind::of::<k8s_openapi::api::core::v1::Node>();
    /// ```
    #[must_use]
    pub const fn of<K>() -> Self
    where
        K: k8s_openapi::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Self {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::URL_PATH_SEGMENT,
            built_in: true,
        }
    }

    /// Returns the type of a custom resource.
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
