//! Inputs of a process at its start: configuration, clock and randomness.
//!
//! The configuration is checked before the first request to a cluster. Its layers are the defaults, the file of `--config`, the
//! environment and the flags. A later layer overrides an earlier one. Each value keeps its origin, which the command `config`
//! prints.
//!
//! Serde alone would stop at the first error. So each of the [`keys`] has a rule, and all rules are checked on the merged
//! layers. An error contains the key, the value, the reason and the origin. Then serde deserializes the struct [`Config`].

pub(crate) mod app;
pub(crate) mod backoff;
pub(crate) mod build_info;
pub(crate) mod clock;
pub(crate) mod controllers;
pub(crate) mod descriptors;
pub(crate) mod environment;
pub(crate) mod key_value_list;
pub(crate) mod log_filter;
pub(crate) mod rule;
pub(crate) mod settings;
pub(crate) mod sources;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, value_parser};

pub use app::{App, PodSecurity, keys};
pub use controllers::{ControllerConfig, ControllerKeys};
pub use rule::Rule;
pub use settings::{Backoff, Config, Http, LeaderElection, Log, LogFormat, Telemetry};
pub use sources::{ConfigErrors, Settings};
pub use table::{Key, OTLP, Variable, WORK};

impl Config {
    /// Returns the default configuration of `app`.
    ///
    /// # Panics
    /// If it violates its own rules.
    #[must_use]
    pub fn shipped(app: &'static App) -> Self {
        Settings::defaults(app)
            .check()
            .expect("the default configuration satisfies its own rules")
    }
}

/// Returns the flags that set the configuration, including `--config`. Add them to a `clap::Command`, and pass its matches to
/// [`load`].
pub fn args(app: &'static App) -> impl Iterator<Item = Arg> {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file (TOML), overriding the defaults")
        .global(true);
    let defaults = Settings::defaults(app);
    std::iter::once(file).chain(keys(app).map(move |key| key.arg(&defaults.plain(key))))
}

/// Names the controllers that may have their own `workers` and `resync`. The default is the value of the program.
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

/// Returns all OpenTelemetry variables that have an effect, except three that its SDK reads without a check:
/// `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT`, `OTEL_SPAN_EVENT_COUNT_LIMIT` and `OTEL_SPAN_LINK_COUNT_LIMIT`.
pub fn variables() -> impl Iterator<Item = &'static Variable> {
    table::VARIABLES.iter()
}

/// Returns the default of a key, without quotes.
#[must_use]
pub fn default_of(app: &'static App, key: &Key) -> String {
    Settings::defaults(app).plain(key)
}

/// Reads all layers: the file that `--config` or the variable `<APP>__CONFIG` names, the environment `env`, and the flags. The
/// returned [`Settings`] contain the origin of each value.
///
/// # Errors
/// All errors together: unknown keys, values of a wrong type or out of range, contradictory values, an unreadable file.
pub fn load(
    app: &'static App,
    flags: &ArgMatches,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Config, Settings), ConfigErrors> {
    load_from(app, flags, env, |path| fs::read_to_string(path))
}

/// Like [`load`], with a function that reads the file.
pub(crate) fn load_from(
    app: &'static App,
    flags: &ArgMatches,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    read: impl Fn(&Path) -> io::Result<String>,
) -> Result<(Config, Settings), ConfigErrors> {
    let mut settings = Settings::defaults(app);
    let variable = app.env_prefix() + "CONFIG";
    let (named, env): (Vec<_>, Vec<_>) = env.into_iter().partition(|(name, _)| *name == *variable);
    if let Some(path) = flags.get_one::<PathBuf>("config") {
        settings.file(path, "flag --config", read(path));
    } else if let Some((_, path)) = named.first() {
        let path = Path::new(path);
        let origin = format!("environment variable {variable}");
        settings.file(path, &origin, read(path));
    }
    settings.env(env);
    settings.flags(flags);
    let config = settings.check()?;
    Ok((config, settings))
}
