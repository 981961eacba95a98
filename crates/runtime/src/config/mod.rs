//! The inputs of a process at its start: settings, constants, clock and randomness.
//!
//! The configuration: what the operator may set, checked before anything talks to a cluster.
//!
//! Four layers, the later over the earlier: the defaults, the file of `--config`, the environment, the flags. Each value
//! keeps its origin, so that an error names the key, the value, what is wrong and where it came from, and
//! the command `config` can say it, too. Serde alone would stop at the first mistake; here each of the [`keys`] has
//! a rule, all are checked on the merged layers, and only then does serde make the one struct [`Config`] of them.

pub(crate) mod app;
pub(crate) mod build_info;
pub(crate) mod clock;
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

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, value_parser};

pub use app::{App, PodSecurity, keys};
pub use rule::Rule;
pub use settings::{Backoff, Config, Http, LeaderElection, Log, LogFormat, Telemetry};
pub use sources::{Problems, Settings};
pub use table::{Key, OTLP, Variable, WORK};

impl Config {
    /// The shipped configuration of `app`.
    ///
    /// # Panics
    /// If that breaks its own rules.
    #[must_use]
    pub fn shipped(app: &'static App) -> Self {
        Settings::defaults(app)
            .check()
            .expect("the shipped configuration keeps its own rules")
    }
}

/// The flags that set the configuration, `--config` among them, for a `clap::Command` whose matches [`load`] takes.
pub fn args(app: &'static App) -> impl Iterator<Item = Arg> {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file (TOML), over the defaults")
        .global(true);
    let defaults = Settings::defaults(app);
    std::iter::once(file).chain(keys(app).map(move |key| key.arg(&defaults.plain(key))))
}

/// All variables of OpenTelemetry's that have an effect, but for three that its SDK takes by itself, unchecked:
/// `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT`, `OTEL_SPAN_EVENT_COUNT_LIMIT` and `OTEL_SPAN_LINK_COUNT_LIMIT`.
pub fn variables() -> impl Iterator<Item = &'static Variable> {
    table::VARIABLES.iter()
}

/// The default of a key, as it would be written without quotes.
#[must_use]
pub fn default_of(app: &'static App, key: &Key) -> String {
    Settings::defaults(app).plain(key)
}

/// Read all layers: the file that `--config` or the variable `<APP>__CONFIG` names, the environment `env`, the flags. The
/// settings that come with the configuration say where each value is from.
///
/// # Errors
/// Everything that is wrong, at once: keys that are unknown, values of a wrong type or out of range, values at odds with
/// one another, a file that cannot be read.
pub fn load(
    app: &'static App,
    flags: &ArgMatches,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Config, Settings), Problems> {
    let mut settings = Settings::defaults(app);
    let variable = app.env_prefix() + "CONFIG";
    let (named, env): (Vec<_>, Vec<_>) = env.into_iter().partition(|(name, _)| *name == *variable);
    if let Some(path) = flags.get_one::<PathBuf>("config") {
        settings.file(path, "flag --config");
    } else if let Some((_, path)) = named.first() {
        settings.file(Path::new(path), &format!("environment variable {variable}"));
    }
    settings.env(env);
    settings.flags(flags);
    let config = settings.check()?;
    Ok((config, settings))
}
