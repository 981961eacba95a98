//! Inputs of a process at its start: configuration, clock and randomness.
//!
//! The configuration is checked before the first request to a cluster. Its layers are the defaults, the file of `--config`, the
//! environment and the flags. A later layer overrides an earlier one. Each value keeps its origin, which the command `config`
//! prints.
//!
//! Serde alone would stop at the first error. So each of the keys has a rule, and all rules are checked on the merged
//! layers. An error contains the key, the value, the reason and the origin. Then serde deserializes the struct
//! [`Config`](crate::Config).

pub(crate) mod app;
pub(crate) mod backoff;
pub(crate) mod build_info;
pub(crate) mod clock;
#[cfg(feature = "operator")]
pub(crate) mod controllers;
pub(crate) mod descriptors;
pub(crate) mod environment;
#[cfg(feature = "operator")]
pub(crate) mod key_value_list;
#[cfg(feature = "operator")]
pub(crate) mod load;
#[cfg(feature = "operator")]
pub(crate) mod log_filter;
#[cfg(feature = "operator")]
pub(crate) mod protocol;
#[cfg(feature = "operator")]
pub(crate) mod rule;
pub(crate) mod settings;
#[cfg(feature = "operator")]
pub(crate) mod sources;
#[cfg(feature = "operator")]
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

#[cfg(feature = "operator")]
pub(crate) use load::{args, load, variables};

pub use {app::PodSecurity, settings::LeaderElection};
#[cfg(feature = "operator")]
pub use {
    controllers::ControllerKeys,
    protocol::Protocol,
    rule::Rule,
    settings::{Backoff, ControllerConfig, Http, Log, LogFormat, Telemetry},
    table::{Key, WORK},
};

/// Names the controllers that may have their own `workers` and `resync`. The default is the value of the program.
///
/// ```
/// use operator_runtime::{App, controllers};
///
/// static APP: App = App {
///     controllers: controllers!["database", "databasebackup"],
///     ..App::new("database-operator", "0.1.0", "example.com")
/// };
/// ```
///
/// In the configuration file:
///
/// ```toml
/// workers = 4
/// [controllers.databasebackup]
/// workers = 1
/// resync = "1h"
/// ```
///
/// The variable is `DATABASE_OPERATOR__CONTROLLERS__DATABASEBACKUP__WORKERS`, the flag `--databasebackup-workers`.
#[cfg(feature = "operator")]
#[macro_export]
macro_rules! controllers {
    ($($name:literal),+ $(,)?) => {
        &[$($crate::config::ControllerKeys::new(
            $name,
            [
                concat!("controllers.", $name, ".workers"),
                concat!($name, "-workers"),
                concat!("Number of concurrent reconciles of the controller ", $name, "; if not set, workers"),
            ],
            [
                concat!("controllers.", $name, ".resync"),
                concat!($name, "-resync"),
                concat!("Interval of the full resync of the controller ", $name, "; if not set, resync"),
            ],
        )),+]
    };
}
