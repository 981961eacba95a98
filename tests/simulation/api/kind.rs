//! The kinds that are known.

/// A kind of object that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    ServiceAccount,
    Deployment,
    /// Nothing of ours: what a fork owns besides, as docs/make-it-yours.md has it.
    Service,
    Lease,
    Event,
    Foo,
    /// Foo's; not served, but what is served of Foos goes by it.
    CustomResourceDefinition,
    /// The fencing component's, and others'; not served, either.
    ValidatingAdmissionPolicy,
    MutatingAdmissionPolicy,
}

/// What is different from kind to kind.
pub struct Info {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// Whether an update may do without a resourceVersion.
    pub unconditional: bool,
    /// Whether an update of what is not there creates it.
    pub creates_on_update: bool,
    /// Whether `metadata.generation` counts.
    pub generation: bool,
}

impl Kind {
    /// Those that are served.
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

    /// `deployments.apps`, as messages name it.
    pub fn resource(self) -> String {
        qualified(self.info().plural, self.info().group)
    }

    /// `Deployment.apps`.
    pub fn qualified(self) -> String {
        qualified(self.info().kind, self.info().group)
    }

    /// The group in which messages have the kind: Events are stored in that of an older API.
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

    /// A custom resource is what its CRD says; the others are compiled in.
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
