//! The operators that run under simulation.

use foo_controller::{APP, FooConfig};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder};

use operator_testkit::api_server::Others;

use super::{databases, plan::Settings, seeds, shops};

/// Example of the runtime with three kinds: Databases, their classes and their backups.
#[allow(dead_code, clippy::pedantic, reason = "a program of its own")]
#[path = "../../runtime/examples/several_kinds.rs"]
mod several_kinds;

/// Example of the runtime with a kind that may not be installed.
#[allow(dead_code, clippy::pedantic, reason = "a program of its own")]
#[path = "../../runtime/examples/optional_kind.rs"]
mod optional_kind;

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Foo,
    Databases,
    Shops,
    /// The operator of the Databases, in two installations.
    Installations,
}

/// Name of the installation in every second place. The default installation is in the others.
pub const CANARY: &str = "canary";

impl Program {
    pub fn app(self) -> &'static App {
        match self {
            Self::Foo => &APP,
            Self::Databases | Self::Installations => &several_kinds::APP,
            Self::Shops => &optional_kind::APP,
        }
    }

    pub fn crds(self) -> Vec<CustomResourceDefinition> {
        match self {
            Self::Foo => foo_controller::crds(),
            Self::Databases | Self::Installations => several_kinds::crds(),
            Self::Shops => optional_kind::crds(),
        }
    }

    /// Returns the names of the installations. The default installation has an empty name.
    pub fn installations(self) -> &'static [&'static str] {
        match self {
            Self::Installations => &["", CANARY],
            _ => &[""],
        }
    }

    /// Returns the installation of the replicas in this place.
    pub fn installation(self, place: usize) -> &'static str {
        let all = self.installations();
        all[place % all.len()]
    }

    /// Returns the namespaces that neither the Foos nor the controller use.
    pub fn namespaces(self) -> &'static [&'static str] {
        match self {
            Self::Foo | Self::Shops => &[],
            // `default` is for Events about cluster-scoped objects.
            Self::Databases | Self::Installations => &["default", databases::VAULT],
        }
    }

    /// Returns the permissions that faults revoke: verb and resource.
    pub fn rights(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Foo => seeds::RIGHTS,
            Self::Databases | Self::Installations => databases::RIGHTS,
            Self::Shops => shops::RIGHTS,
        }
    }

    /// Returns the calls that faults affect: verb and resource.
    pub fn calls(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Foo => seeds::CALLS,
            Self::Databases | Self::Installations => databases::CALLS,
            Self::Shops => shops::CALLS,
        }
    }

    /// Returns the policies of others.
    pub fn policies(self) -> &'static [Others] {
        match self {
            Self::Foo => &Others::ALL,
            Self::Databases | Self::Installations => databases::POLICIES,
            Self::Shops => shops::POLICIES,
        }
    }

    pub fn build(self, builder: &mut Builder, settings: &Settings) {
        let foo = FooConfig {
            image: settings.image.to_owned(),
            max_rollouts: settings.max_rollouts,
        };
        match self {
            Self::Foo => {
                foo_controller::build(builder, foo);
            }
            Self::Databases | Self::Installations => {
                several_kinds::build(builder, several_kinds::NoSettings {});
            }
            Self::Shops => {
                optional_kind::build(builder, optional_kind::NoSettings {});
            }
        }
    }
}
