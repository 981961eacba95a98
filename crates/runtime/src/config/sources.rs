//! Keys of the configuration, and its layers from file, environment and flags. Figment merges them, and each value keeps its
//! origin.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;
use figment::util::nest;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::{Deserialize, de::DeserializeOwned};
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::app::App;
use super::rule::duration;
use super::settings::{Config, after_the_term};
use super::table::{KEYS, Key};
use crate::api::names::is_label;

/// Returns all keys: of the application, of its controllers, and of the runtime.
pub fn keys(app: &'static App) -> impl Iterator<Item = &'static Key> {
    let of_controllers = app.controllers.iter().flat_map(|it| &it.keys);
    app.keys.iter().chain(of_controllers).chain(KEYS)
}

impl Key {
    /// Returns the environment variable of the key in the application `app`. For `crate::internals`.
    #[doc(hidden)]
    #[must_use]
    pub fn variable(&self, app: &App) -> String {
        let name = self.name.to_uppercase().replace('.', "__");
        format!("{}{name}", app.env_prefix())
    }
}

/// Errors of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    /// Returns one line per error, with key, value, origin and reason.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// Value and origin of every key.
///
/// `Display` writes a TOML file that `--config` accepts, with the origin of each value as a comment. A secret is a comment
/// without its value.
pub struct Settings {
    app: &'static App,
    merged: Figment,
    problems: Vec<String>,
}

/// Value of one key, as a figment provider. Its metadata contains the origin.
struct Setting {
    key: &'static Key,
    value: Value,
    origin: String,
}

impl Provider for Setting {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let dict = nest(self.key.name, self.value.clone())
            .into_dict()
            .unwrap_or_default();
        Ok(Profile::Default.collect(dict))
    }
}

impl Settings {
    /// Returns the lowest layer: the runtime's defaults, overridden by the application's defaults.
    pub(crate) fn defaults(app: &'static App) -> Self {
        assert!(
            is_label(app.name) && app.name.starts_with(|c: char| c.is_ascii_lowercase()),
            "App::name must be a DNS-1123 label that begins with a letter, not {:?}",
            app.name
        );
        let mut settings = Self {
            app,
            merged: Figment::new(),
            problems: Vec::new(),
        };
        let origin = |_| "default".to_owned();
        settings.toml(include_str!("defaults.toml"), &origin);
        settings.toml(
            &format!("leader_election.lease_name = {:?}", app.name),
            &origin,
        );
        settings.toml(app.defaults, &origin);
        settings
    }

    /// Adds the layer of a file with this text. `origin` is the flag or the variable that names it.
    pub(super) fn file(&mut self, path: &Path, origin: &str, text: io::Result<String>) {
        let shown = printable(&path.display().to_string());
        match text {
            Ok(text) => self.toml(&text, &|line| format!("file {shown}, line {line}")),
            Err(error) => self
                .problems
                .push(format!("{shown} ({origin}): cannot be read: {error}")),
        }
    }

    /// Adds the layer of the environment. Variables of other applications are ignored.
    pub(super) fn env(&mut self, vars: impl IntoIterator<Item = (OsString, OsString)>) {
        let prefix = self.app.env_prefix();
        for (name, text) in vars {
            let name = name.to_string_lossy();
            let Some(rest) = name.strip_prefix(&prefix) else {
                continue;
            };
            let path = rest.to_lowercase().replace("__", ".");
            let origin = format!("environment variable {}", printable(&name));
            match (self.find(&path), text.to_str()) {
                (Some(key), Some(text)) => self.text(key, &[text], origin),
                (Some(_), None) => self.problems.push(format!("{path} ({origin}): not UTF-8")),
                (None, _) => self.unknown(&path, &origin),
            }
        }
    }

    /// Adds the layer of the flags.
    pub(super) fn flags(&mut self, flags: &ArgMatches) {
        for key in keys(self.app) {
            if let Some(texts) = flags.get_many::<String>(key.name) {
                let texts: Vec<&str> = texts.map(String::as_str).collect();
                self.text(key, &texts, format!("flag --{}", key.flag));
            }
        }
    }

    /// Returns the effective configuration, or all errors.
    pub(super) fn check(&self) -> Result<Config, ConfigErrors> {
        let mut problems = self.problems.clone();
        let (good, bad): (Vec<&Key>, Vec<&Key>) = keys(self.app)
            .filter(|key| !self.is_general(key))
            .partition(|key| self.value(key).is_some_and(|value| key.rule.allows(&value)));
        problems.extend(
            bad.into_iter()
                .map(|key| format!("{}: must be {}", self.show(key), key.rule)),
        );
        problems.extend(self.contradictions(&good));
        if problems.is_empty() {
            // Cannot fail as long as the rules are at least as strict as the types.
            let config = self.merged.extract().map(with_suffix);
            config.map_err(|error| ConfigErrors(vec![printable(&error.to_string())]))
        } else {
            Err(ConfigErrors(problems))
        }
    }

    /// Returns the application's part of the effective configuration. For use after [`load`](super::load) has succeeded.
    ///
    /// # Panics
    /// If the type accepts less than the rules of the application's keys.
    #[must_use]
    pub fn application<T: DeserializeOwned>(&self) -> T {
        let part = self.merged.extract();
        part.expect("the application's type accepts each value that its rules allow")
    }

    /// Returns the effective value of the key of this name, without quotes. `None` if there is no such key, or if its value is
    /// hidden.
    pub(crate) fn shown(&self, name: &str) -> Option<String> {
        let key = self.find(name)?;
        let value = literal(&self.value(key)?);
        (!key.rule.hides(&value)).then(|| self.plain(key))
    }

    fn find(&self, name: &str) -> Option<&'static Key> {
        keys(self.app).find(|key| key.name == name)
    }

    /// Returns errors of values that are valid alone and contradict each other.
    fn contradictions(&self, good: &[&Key]) -> Vec<String> {
        // The error of `small`, if there is one.
        type Wrong = fn(Duration, Duration) -> Option<String>;
        let pair = |small: &str, large: &str, wrong: Wrong| {
            let find = |name| good.iter().find(|key| key.name == name);
            let (small, large) = (find(small)?, find(large)?);
            let wrong = wrong(
                duration(&self.value(small)?)?,
                duration(&self.value(large)?)?,
            )?;
            Some(format!(
                "{}: {wrong} {}",
                self.show(small),
                self.show(large)
            ))
        };
        [
            pair("backoff.initial", "backoff.max", |a, b| {
                (a > b).then(|| "must be at most".to_owned())
            }),
            pair(
                "leader_election.renew_deadline",
                "leader_election.lease_duration",
                |a, b| {
                    let apart = after_the_term(b);
                    let shown = humantime_serde::re::humantime::format_duration(apart);
                    (a + apart >= b).then(|| format!("must be over {shown} less than"))
                },
            ),
            self.too_long(),
            // Required by client-go: an attempt is delayed by up to a fifth of the period.
            pair(
                "leader_election.retry_period",
                "leader_election.renew_deadline",
                |a, b| (a.mul_f64(1.2) >= b).then(|| "times 1.2 must be less than".to_owned()),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns an error if the name of the Lease is too long with the installation as its suffix.
    fn too_long(&self) -> Option<String> {
        let [installation, lease] = ["installation", "leader_election.lease_name"];
        let [installation, lease] = [self.find(installation)?, self.find(lease)?];
        let [suffix, name] = [installation, lease].map(|key| self.plain(key));
        let is_too_long =
            name.len() <= LONGEST_NAME && name.len() + 1 + suffix.len() > LONGEST_NAME;
        (is_too_long && !suffix.is_empty()).then(|| {
            format!(
                "{}: must be shorter: with a hyphen and {}, the name of the Lease has more than {LONGEST_NAME} characters",
                self.show(lease),
                self.show(installation),
            )
        })
    }

    /// Returns the value of a key without quotes.
    pub(super) fn plain(&self, key: &Key) -> String {
        self.value(key)
            .map(|value| {
                value
                    .as_str()
                    .map_or_else(|| literal(&value), str::to_owned)
            })
            .unwrap_or_default()
    }

    fn value(&self, key: &Key) -> Option<Value> {
        self.merged.find_value(key.name).ok()
    }

    fn origin(&self, key: &Key) -> &str {
        self.merged
            .find_metadata(key.name)
            .map_or("nowhere", |metadata| &metadata.name)
    }

    /// Returns whether the key is not set, and has the value of the program's key.
    fn is_general(&self, key: &Key) -> bool {
        key.general().is_some() && self.value(key).is_none()
    }

    /// Returns `key = value (origin)` on one line.
    fn show(&self, key: &Key) -> String {
        let value = self.value(key).unwrap_or_else(|| Value::from(""));
        format!(
            "{} = {} ({})",
            key.name,
            key.shown(&literal(&value)),
            self.origin(key)
        )
    }

    /// Sets a value from flags or environment. The texts of a repeated flag form one list.
    fn text(&mut self, key: &'static Key, texts: &[&str], origin: String) {
        self.set(Setting {
            key,
            value: key.rule.value(&texts.join(",")),
            origin,
        });
    }

    /// Adds a TOML document. `origin` returns the origin of a line.
    pub(super) fn toml(&mut self, text: &str, origin: &dyn Fn(usize) -> String) {
        let line =
            |at: usize| origin(text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1);
        match DeTable::parse(text) {
            Ok(table) => self.table("", table.into_inner(), &line),
            Err(error) => {
                let at = line(error.span().map_or(0, |span| span.start));
                self.problems
                    .push(format!("{at}: not TOML: {}", printable(error.message())));
            }
        }
    }

    /// Adds a table of the document, at the path `section`.
    fn table(&mut self, section: &str, table: DeTable<'_>, line: &dyn Fn(usize) -> String) {
        for (name, value) in table {
            let origin = line(name.span().start);
            let path = format!("{section}{}", name.into_inner());
            let prefix = format!("{path}.");
            match (self.find(&path), value.get_ref()) {
                (Some(key), _) => {
                    match <Value as Deserialize>::deserialize(ValueDeserializer::from(value)) {
                        Ok(value) => self.set(Setting { key, value, origin }),
                        Err(error) => self
                            .problems
                            .push(format!("{path} ({origin}): {}", printable(error.message()))),
                    }
                }
                (None, DeValue::Table(_))
                    if keys(self.app).any(|key| key.name.starts_with(&prefix)) =>
                {
                    if let DeValue::Table(inner) = value.into_inner() {
                        self.table(&prefix, inner, line);
                    }
                }
                (None, _) => self.unknown(&path, &origin),
            }
        }
    }

    /// Reports an unknown key, without its value, which may be a secret.
    fn unknown(&mut self, path: &str, origin: &str) {
        let names = |section: &str| -> Vec<&str> {
            let inside = keys(self.app).filter_map(|key| key.name.strip_prefix(section));
            let mut names: Vec<&str> = inside
                .map(|name| name.split('.').next().unwrap_or(name))
                .collect();
            names.dedup();
            names
        };
        let own = names(&format!("{path}."));
        let parent = path.rfind('.').map_or("", |dot| &path[..=dot]);
        let (what, known) = match (own.is_empty(), names(parent)) {
            (false, _) => ("a section, not a key; valid keys:", own),
            (true, siblings) if siblings.is_empty() => ("unknown key; valid keys:", names("")),
            (true, siblings) => ("unknown key; valid keys:", siblings),
        };
        self.problems.push(format!(
            "{} ({origin}): {what} {}",
            printable(path),
            known.join(", ")
        ));
    }

    /// Sets a value over the lower layers. Figment merges sections and replaces other values.
    fn set(&mut self, setting: Setting) {
        self.merged = std::mem::take(&mut self.merged).merge(setting);
    }
}

impl Settings {
    /// Returns all values on one line, for the log.
    #[must_use]
    pub fn line(&self) -> String {
        let show = |key: &Key| {
            let value = self.value(key).map(|value| literal(&value));
            format!("{} = {}", key.name, key.shown(&value.unwrap_or_default()))
        };
        let set = keys(self.app).filter(|key| !self.is_general(key));
        set.map(show).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |key: &'static Key| key.name.split_once('.').unwrap_or(("", key.name));
        let sections: Vec<&str> = keys(self.app).map(|key| of(key).0).collect();
        let mut keys: Vec<_> = keys(self.app).collect();
        // Keys without a section come first, and each section occurs once, because TOML requires both.
        keys.sort_by_key(|key| {
            let section = of(key).0;
            let first = sections.iter().position(|other| *other == section);
            (!section.is_empty(), first)
        });
        let mut current = "";
        for key in keys {
            let (section, name) = of(key);
            if section != current {
                writeln!(f, "\n[{section}]")?;
                current = section;
            }
            if let (None, Some(general)) = (self.value(key), key.general()) {
                writeln!(f, "# {name} is not set: {general} is used")?;
                continue;
            }
            let value = self
                .value(key)
                .map(|value| literal(&value))
                .unwrap_or_default();
            let hidden = if key.rule.hides(&value) { "# " } else { "" };
            let (value, origin) = (key.shown(&value), self.origin(key));
            writeln!(f, "{hidden}{name} = {value}  # {origin}")?;
        }
        Ok(())
    }
}

/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// Adds the installation to the name of the Lease.
fn with_suffix(mut config: Config) -> Config {
    if !config.installation.is_empty() {
        let name = &mut config.leader_election.lease_name;
        *name = format!("{name}-{}", config.installation);
    }
    config
}

/// Returns a value as TOML on one line.
fn literal(value: &Value) -> String {
    match value {
        // A JSON string is a TOML string, except that TOML requires one more character to be escaped.
        Value::String(_, text) => serde_json::Value::from(text.as_str())
            .to_string()
            .replace('\x7f', "\\u007f"),
        Value::Array(_, items) => format!(
            "[{}]",
            items.iter().map(literal).collect::<Vec<_>>().join(", ")
        ),
        Value::Dict(..) => "a table".to_owned(),
        other => {
            toml::Value::try_from(other).map_or_else(|_| "?".to_owned(), |value| value.to_string())
        }
    }
}

/// Replaces control characters, so that untrusted text fits on one line and into a comment.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}
