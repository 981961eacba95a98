//! Settings of a single controller, in a program that has several: the section `controllers.NAME` of the configuration.

use std::time::Duration;

use serde::Deserialize;

use super::{rule::Rule, table::Key};

/// Section of these keys, with its dot.
const SECTION: &str = "controllers.";

/// Keys of one controller. [`controllers!`](crate::controllers) makes them, for [`App::controllers`](super::App::controllers).
#[derive(Debug)]
pub struct ControllerKeys {
    pub(crate) name: &'static str,
    pub(super) keys: [Key; 2],
}

impl ControllerKeys {
    /// Use [`controllers!`](crate::controllers) instead. Each setting has a name, a flag and a purpose.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        name: &'static str,
        workers: [&'static str; 3],
        resync: [&'static str; 3],
    ) -> Self {
        const fn key(texts: [&'static str; 3], placeholder: &'static str, rule: Rule) -> Key {
            let [name, flag, help] = texts;
            Key {
                flag,
                ..Key::new(name, placeholder, rule, help)
            }
        }
        Self {
            name,
            keys: [
                key(workers, "N", Rule::Whole(1, 1000)),
                key(resync, "DURATION", Rule::Duration("1s", "24h")),
            ],
        }
    }
}

/// Names the controllers that may have their own `workers` and `resync`. A value that is not set is that of the program.
///
/// ```
/// use operator_runtime::{config::App, controllers};
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

impl Key {
    /// Returns the key of the program whose value this key has if it is not set.
    pub(super) fn general(&self) -> Option<&'static str> {
        let (_, setting) = self.name.strip_prefix(SECTION)?.rsplit_once('.')?;
        ["workers", "resync"].into_iter().find(|it| *it == setting)
    }
}

/// Settings of one controller. Unset, those of the program hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerConfig {
    /// Number of workers.
    pub workers: Option<u32>,
    /// Interval of the full resync.
    #[serde(with = "humantime_serde")]
    pub resync: Option<Duration>,
}
