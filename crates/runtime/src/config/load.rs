//! Loading of the configuration: its layers, its flags and its checks.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, value_parser};

use super::{
    app::App,
    settings::Config,
    sources::{ConfigErrors, Settings, keys},
    table::{self, Key, Variable},
};

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
/// returned `Settings` contain the origin of each value.
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
