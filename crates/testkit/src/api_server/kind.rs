//! Supported kinds.

/// Kind of a stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    ServiceAccount,
    Deployment,
    /// Not used by this controller, but by forks as in docs/make-it-yours.md.
    Service,
    Lease,
    Event,
    Foo,
    /// The CRD of Foos. Not served, but it defines how Foos are served.
    CustomResourceDefinition,
    /// A policy of the fencing component or of another party. Not served.
    ValidatingAdmissionPolicy,
    MutatingAdmissionPolicy,
}

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
    /// Served kinds.
    pub const SERVED: [Self; 7] = [
        Self::Namespace,
        Self::ServiceAccount,
        Self::Deployment,
        Self::Service,
        Self::Lease,
        Self::Event,
        Self::Foo,
    ];

    pub const fn info(self) -> Info {
        let (group, version, kind, plural) = match self {
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::Lease => ("coordination.k8s.io", "v1", "Lease", "leases"),
            Self::Event => ("events.k8s.io", "v1", "Event", "events"),
            Self::Foo => ("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos"),
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
                    | Self::Event
            ),
            creates_on_update: matches!(self, Self::Service | Self::Lease | Self::Event),
            generation: matches!(self, Self::Deployment | Self::Foo),
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

    /// Returns the group of the kind in messages. Events have the group of an older API, which stores them.
    pub fn stored_group(self) -> &'static str {
        match self {
            Self::Event => "",
            kind => kind.info().group,
        }
    }

    pub fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::Namespace
                | Self::CustomResourceDefinition
                | Self::ValidatingAdmissionPolicy
                | Self::MutatingAdmissionPolicy
        )
    }

    /// Returns whether a CRD defines the kind. The others are compiled in.
    pub fn is_custom(self) -> bool {
        self == Self::Foo
    }
}

pub fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}
