//! The program that the runtime runs in, as far as the runtime has to know it.

use std::fmt;

use super::table::{KEYS, Key};

/// What an application is called, and what it adds to the configuration. One for a program, handed to whatever needs it.
#[derive(Clone, Copy, Debug)]
pub struct App {
    /// Its name, a DNS-1123 label that begins with a letter: the field manager of its writes, the `User-Agent` of its
    /// requests, the controller of its events and the service of its telemetry. With underscores it begins the names of its
    /// metrics and, in capitals and with two more underscores, those of its environment variables, none of which may begin
    /// with a digit: whatever reads the configuration panics over another name.
    pub name: &'static str,
    /// What it is, in a sentence, for its help.
    pub about: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The API group of its kinds, which its annotations begin with: but for `traceparent`, which begins with `name`.
    pub group: &'static str,
    /// What its controller is called in metrics, as controller-runtime has it: its kind in lower case.
    pub controller: &'static str,
    /// What its events name as their reporting controller.
    pub reporter: &'static str,
    /// The shipped configuration, in TOML: the default of each key that it adds, and of each of the runtime's that is another
    /// one here.
    pub defaults: &'static str,
    /// The keys of the configuration that it adds to the runtime's.
    pub keys: &'static [Key],
    /// The crates whose spans are exported, as tracing has them: the runtime's come on top.
    pub crates: &'static [&'static str],
    /// The level of the Pod Security Standards that the pods of its objects need. For `doctor`.
    pub pod_security: PodSecurity,
}

/// A level of the Pod Security Standards, the strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSecurity {
    /// Pods are admitted everywhere, or there are none.
    Restricted,
    /// Pods run as root, or without a security context, and have no privileges.
    Baseline,
    /// Pods have privileges.
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
    /// One without anything of its own in the configuration, which reports events under its name. For `..App::new(…)`.
    #[must_use]
    pub const fn new(
        name: &'static str,
        version: &'static str,
        group: &'static str,
        controller: &'static str,
    ) -> Self {
        Self {
            name,
            about: "",
            version,
            group,
            controller,
            reporter: name,
            defaults: "",
            keys: &[],
            crates: &[],
            pod_security: PodSecurity::Restricted,
        }
    }

    /// Its name where a hyphen is not allowed.
    pub(crate) fn snake_case(&self) -> String {
        self.name.replace('-', "_")
    }

    /// What its environment variables begin with. Two underscores, since the kubelet injects `NAME_SERVICE_HOST` and the
    /// like where a Service is called as the application is.
    pub(crate) fn env_prefix(&self) -> String {
        format!("{}__", self.snake_case().to_uppercase())
    }

    /// The annotation by which an object names the trace that changed it: a `traceparent` of W3C Trace Context. Whoever
    /// changes an object may set it; on the controller's events it names the reconcile.
    #[must_use]
    pub(crate) fn trace_annotation(&self) -> String {
        format!("{}/traceparent", self.name)
    }

    /// Whether what is logged or traced with this target is the application's or the runtime's.
    pub(crate) fn has(&self, target: &str) -> bool {
        let mut crates = self.crates.iter().chain(&[env!("CARGO_CRATE_NAME")]);
        crates.any(|name| target.split("::").next() == Some(name))
    }
}

/// All keys: the application's, and the runtime's, sections last.
pub fn keys(app: &'static App) -> impl Iterator<Item = &'static Key> {
    app.keys.iter().chain(KEYS)
}

impl Key {
    /// The environment variable that sets it in the application `app`.
    #[must_use]
    pub fn variable(&self, app: &App) -> String {
        let name = self.name.to_uppercase().replace('.', "__");
        format!("{}{name}", app.env_prefix())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the tests of the runtime run in.
    pub(crate) static APP: App = App {
        about: "An operator",
        ..App::new("some-operator", "1.2.3", "example.com", "parent")
    };

    /// What a fencing record names its leader by, in that.
    pub(crate) const HOLDER_KEY: &str = "example.com/lease-holder";

    #[test]
    fn a_target_is_ours_by_its_crate() {
        assert!(APP.has(module_path!()) && APP.has(env!("CARGO_CRATE_NAME")));
        assert!(!APP.has("kube_client::client") && !APP.has("operator_runtime_not"));
    }
}
