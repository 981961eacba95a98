//! What the objects of a kind are called.

use kube::api::Patch;
use serde_json::Value;

/// How the objects of a kind are called, which are in namespaces: nothing refers to one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// The kind itself, in CamelCase.
    pub kind: &'static str,
    /// The resource: the kind's plural, in lower case.
    pub plural: &'static str,
    /// Whether it is Kubernetes' own, and takes strategic merge patches.
    built_in: bool,
}

impl Kind {
    /// One of Kubernetes' own.
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

    /// One of one's own.
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

    /// A patch of an object of this kind, as the API server takes it.
    pub(crate) fn patch<'a>(&self, patch: &'a Value) -> Patch<&'a Value> {
        if self.built_in {
            Patch::Strategic(patch)
        } else {
            Patch::Merge(patch)
        }
    }

    /// `group/version`, as in `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}
