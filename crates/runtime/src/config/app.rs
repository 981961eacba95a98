//! Description of the application that uses the runtime.

use std::fmt;

#[cfg(feature = "operator")]
use super::{controllers::ControllerKeys, table::Key};

/// Names of an application, and its additions to the configuration. A program has one.
#[derive(Clone, Copy, Debug)]
pub struct App {
    /// Name of the application, a DNS-1123 label that begins with a letter.
    ///
    /// It is the field manager of writes, the `User-Agent` of requests, the controller of events and the service of telemetry.
    /// The names of metrics begin with it, with underscores. The names of environment variables begin with it in upper case,
    /// with two more underscores. Reading the configuration panics if the name is invalid.
    pub name: &'static str,
    /// Description for `--help`, one sentence.
    pub about: &'static str,
    /// Version of the application.
    pub version: &'static str,
    /// API group of its resource types, and prefix of its annotations. Only `traceparent` has the prefix `name` instead.
    pub group: &'static str,
    /// Reporting controller of its events.
    pub reporter: &'static str,
    /// Default configuration in TOML. It contains each key that the application adds, and each key of the runtime with another
    /// default.
    pub defaults: &'static str,
    /// Configuration keys in addition to the runtime's.
    #[cfg(feature = "operator")]
    pub keys: &'static [Key],
    /// Controllers that may have their own settings: [`controllers!`](crate::controllers).
    #[cfg(feature = "operator")]
    pub controllers: &'static [ControllerKeys],
    /// Crates whose spans are exported in addition to the runtime's, named as in tracing.
    pub crates: &'static [&'static str],
    /// Level of the Pod Security Standards that the pods of its objects need. Used by `doctor`.
    pub pod_security: PodSecurity,
}

/// Level of the Pod Security Standards, the strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSecurity {
    /// Pods that every namespace admits, or no pods.
    Restricted,
    /// Unprivileged pods that run as root or without a security context.
    Baseline,
    /// Privileged pods.
    Privileged,
}

impl fmt::Display for PodSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restricted => "restricted",
            Self::Baseline => "baseline",
            Self::Privileged => "privileged",
        })
    }
}

impl App {
    /// Returns an application without configuration of its own. Its events have its name as the reporter. For `..App::new(…)`.
    #[must_use]
    pub const fn new(name: &'static str, version: &'static str, group: &'static str) -> Self {
        Self {
            name,
            about: "",
            version,
            group,
            reporter: name,
            defaults: "",
            #[cfg(feature = "operator")]
            keys: &[],
            #[cfg(feature = "operator")]
            controllers: &[],
            crates: &[],
            pod_security: PodSecurity::Restricted,
        }
    }

    /// Returns the name with underscores, for places where hyphens are not allowed.
    pub(crate) fn snake_case(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Returns the prefix of the environment variables. It has two underscores, because the kubelet injects variables such as
    /// `NAME_SERVICE_HOST` for a Service with the application's name.
    pub(crate) fn env_prefix(&self) -> String {
        format!("{}__", self.snake_case().to_uppercase())
    }

    /// Returns the name of the annotation that contains the trace of an object's last change, a `traceparent` of W3C Trace
    /// Context. Any client that changes an object may set it. On the controller's events, it contains the trace of the
    /// reconcile.
    #[must_use]
    pub(crate) fn trace_annotation(&self) -> String {
        format!("{}/traceparent", self.name)
    }

    /// Returns whether a target of logs or traces belongs to the application or the runtime.
    #[cfg(feature = "operator")]
    pub(crate) fn has(&self, target: &str) -> bool {
        let mut crates = self.crates.iter().chain(&[env!("CARGO_CRATE_NAME")]);
        crates.any(|name| target.split("::").next() == Some(name))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Application of the runtime's tests.
    pub(crate) static APP: App = App {
        about: "An operator",
        ..App::new("some-operator", "1.2.3", "example.com")
    };

    /// Key of the leader in the fencing record of that application.
    pub(crate) const HOLDER_KEY: &str = "example.com/lease-holder";

    #[test]
    fn a_target_is_ours_by_its_crate() {
        assert!(APP.has(module_path!()) && APP.has(env!("CARGO_CRATE_NAME")));
        assert!(!APP.has("kube_client::client") && !APP.has("operator_runtime_not"));
    }
}
