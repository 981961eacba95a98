//! Kinds of objects: built into the API server, or defined by a CRD.

use std::{
    cmp::Ordering,
    ptr,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

/// Kind of a stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    ServiceAccount,
    Deployment,
    Service,
    ConfigMap,
    Secret,
    Job,
    Lease,
    Event,
    /// The objects of [`Kind::Event`], in the core API. The store contains no keys of this kind.
    CoreEvent,
    /// Clients can read only its metadata.
    StorageClass,
    /// Defined by a CRD.
    Custom(&'static CustomKind),
    /// Clients can create and delete it, and read its metadata. It defines how custom kinds are served.
    CustomResourceDefinition,
    /// A policy of the fencing component or of another party. Not served.
    ValidatingAdmissionPolicy,
    MutatingAdmissionPolicy,
}

/// Names of a kind that a CRD defines, and how it is served.
#[derive(Debug)]
pub struct CustomKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    /// Whether it has the subresource `scale`, with the replicas in `.spec.replicas`.
    pub scale: bool,
    /// Whether its CRD has `selectableFields`.
    pub selectable: bool,
}

impl CustomKind {
    fn names(&self) -> [&'static str; 4] {
        [self.group, self.version, self.kind, self.plural]
    }
}

impl PartialEq for CustomKind {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other) || self.names() == other.names()
    }
}

impl Eq for CustomKind {}

impl PartialOrd for CustomKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CustomKind {
    fn cmp(&self, other: &Self) -> Ordering {
        if ptr::eq(self, other) {
            return Ordering::Equal;
        }
        self.names().cmp(&other.names())
    }
}

/// Kinds of all CRDs of this process. They are never freed: they are small, and tests have few CRDs.
static KNOWN: Mutex<Vec<&'static CustomKind>> = Mutex::new(Vec::new());

/// Differences between kinds.
pub struct Info {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// Whether an update may omit the resourceVersion.
    pub unconditional: bool,
    /// Whether an update creates a missing object.
    pub creates_on_update: bool,
    /// Whether the API server counts `metadata.generation`.
    pub generation: bool,
}

impl Kind {
    /// Served kinds that are built in.
    pub const BUILT_IN: [Self; 12] = [
        Self::Namespace,
        Self::ServiceAccount,
        Self::Deployment,
        Self::Service,
        Self::ConfigMap,
        Self::Secret,
        Self::Job,
        Self::Lease,
        Self::Event,
        Self::CoreEvent,
        Self::StorageClass,
        Self::CustomResourceDefinition,
    ];

    pub const fn info(self) -> Info {
        let (group, version, kind, plural) = match self {
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::Lease => ("coordination.k8s.io", "v1", "Lease", "leases"),
            Self::Event => ("events.k8s.io", "v1", "Event", "events"),
            Self::CoreEvent => ("", "v1", "Event", "events"),
            Self::StorageClass => ("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
            Self::Custom(it) => (it.group, it.version, it.kind, it.plural),
            Self::CustomResourceDefinition => (
                "apiextensions.k8s.io",
                "v1",
                "CustomResourceDefinition",
                "customresourcedefinitions",
            ),
            Self::ValidatingAdmissionPolicy => (
                "admissionregistration.k8s.io",
                "v1",
                "ValidatingAdmissionPolicy",
                "validatingadmissionpolicies",
            ),
            Self::MutatingAdmissionPolicy => (
                "admissionregistration.k8s.io",
                "v1",
                "MutatingAdmissionPolicy",
                "mutatingadmissionpolicies",
            ),
        };
        Info {
            group,
            version,
            kind,
            plural,
            unconditional: matches!(
                self,
                Self::Namespace
                    | Self::ServiceAccount
                    | Self::Deployment
                    | Self::Service
                    | Self::ConfigMap
                    | Self::Secret
                    | Self::Job
                    | Self::Event
                    | Self::CoreEvent
            ),
            creates_on_update: matches!(
                self,
                Self::Service | Self::Lease | Self::Event | Self::CoreEvent
            ),
            generation: matches!(self, Self::Deployment | Self::Job | Self::Custom(_)),
        }
    }

    pub fn api_version(self) -> String {
        let info = self.info();
        match info.group {
            "" => info.version.to_owned(),
            group => format!("{group}/{}", info.version),
        }
    }

    /// Returns the resource in messages, such as `deployments.apps`.
    pub fn resource(self) -> String {
        qualified(self.info().plural, self.info().group)
    }

    /// Returns the kind in messages, such as `Deployment.apps`.
    pub fn qualified(self) -> String {
        qualified(self.info().kind, self.info().group)
    }

    /// Returns the kind of the stored objects.
    pub const fn stored(self) -> Self {
        match self {
            Self::CoreEvent => Self::Event,
            kind => kind,
        }
    }

    /// Returns the group of the kind in messages. Events have the group of an older API, which stores them.
    pub fn stored_group(self) -> &'static str {
        match self {
            Self::Event => "",
            kind => kind.info().group,
        }
    }

    pub fn is_namespaced(self) -> bool {
        match self {
            Self::Custom(it) => it.namespaced,
            Self::Namespace
            | Self::StorageClass
            | Self::CustomResourceDefinition
            | Self::ValidatingAdmissionPolicy
            | Self::MutatingAdmissionPolicy => false,
            _ => true,
        }
    }

    /// Returns whether a CRD defines the kind. The others are compiled in.
    pub fn is_custom(self) -> bool {
        matches!(self, Self::Custom(_))
    }

    /// Returns whether the stored form of an object differs from that in requests.
    pub fn is_converted(self) -> bool {
        self.is_custom() || self != self.stored()
    }

    /// Returns whether the kind has the subresource `status`.
    pub fn has_status(self) -> bool {
        matches!(self, Self::Deployment | Self::Job | Self::Custom(_))
    }

    /// Returns whether the kind has the subresource `scale`.
    pub fn has_scale(self) -> bool {
        match self {
            Self::Custom(it) => it.scale,
            kind => kind == Self::Deployment,
        }
    }

    /// Returns the kind that a CRD defines, with its storage version.
    pub fn of_definition(definition: &Value) -> Self {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().into_iter().flatten();
        let mut versions = versions.filter(|version| version["storage"] == true);
        let version = versions.next().unwrap_or(&Value::Null);
        let scale = &version["subresources"]["scale"];
        let names = [
            text(&spec["group"]),
            text(&version["name"]),
            text(&spec["names"]["kind"]),
            text(&spec["names"]["plural"]),
        ];
        let (namespaced, scale) = (spec["scope"] == "Namespaced", scale.is_object());
        let versions = spec["versions"].as_array().into_iter().flatten();
        let selectable = versions.clone().any(|it| it["selectableFields"].is_array());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let one = known.iter().find(|it| {
            it.names() == names
                && (it.namespaced, it.scale, it.selectable) == (namespaced, scale, selectable)
        });
        let one = one.copied().unwrap_or_else(|| {
            let [group, version, kind, plural] = names.map(|name| &*name.leak());
            let new: &'static CustomKind = Box::leak(Box::new(CustomKind {
                group,
                version,
                kind,
                plural,
                namespaced,
                scale,
                selectable,
            }));
            known.push(new);
            new
        });
        Self::Custom(one)
    }
}

pub fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}
