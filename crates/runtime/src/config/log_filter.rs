//! Parser of `log.level`: a default level, and levels by the prefix of a target.

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Default level if none is specified. So `kube=debug` alone does not silence other targets.
const DEFAULT: LevelFilter = LevelFilter::INFO;

/// Parsed `log.level`. Blanks around its parts are ignored. A value from a `ConfigMap` often ends with a newline, and a level
/// with a blank would be parsed as a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Directives {
    default: Option<LevelFilter>,
    targets: Vec<(String, LevelFilter)>,
}

/// The text is not a list of `level` and `target=level`.
#[derive(Debug)]
pub(crate) struct Malformed;

impl FromStr for Directives {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut directives = Self::default();
        for part in text.split(',') {
            match part.split_once('=') {
                None => directives.default = Some(level(part)?),
                Some((target, text)) => {
                    let target = target.trim();
                    if !is_target(target) {
                        return Err(Malformed);
                    }
                    directives.targets.push((target.to_owned(), level(text)?));
                }
            }
        }
        Ok(directives)
    }
}

fn level(text: &str) -> Result<LevelFilter, Malformed> {
    match text.trim() {
        // tracing would parse it as a level.
        "" => Err(Malformed),
        text => text.parse().map_err(|_| Malformed),
    }
}

fn is_target(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:.".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

impl Directives {
    /// Applies the level of the application's `crates` to the runtime, too, unless a directive names the runtime. To a reader
    /// of the log, both are one program.
    pub(crate) fn of_application(mut self, crates: &[&str]) -> Self {
        const RUNTIME: &str = env!("CARGO_CRATE_NAME");
        if !self
            .targets
            .iter()
            .any(|(name, _)| name.starts_with(RUNTIME))
        {
            let of_crate = |(name, _): &&(String, _)| crates.contains(&name.as_str());
            let level = self.targets.iter().find(of_crate).map(|(_, level)| *level);
            self.targets
                .extend(level.map(|level| (RUNTIME.to_owned(), level)));
        }
        self
    }

    /// Returns the directives as a filter. Targets with a prefix in `quiet` are silent, unless they have a prefix in `crates`.
    /// A directive for a target or its prefix takes precedence.
    pub(crate) fn filter(&self, quiet: &[&str], crates: &[&str]) -> Targets {
        let default = self.default.unwrap_or(DEFAULT);
        let quiet = quiet.iter().map(|target| (*target, LevelFilter::OFF));
        let others = quiet.chain(crates.iter().map(|name| (*name, default)));
        let is_named = |target: &str| {
            self.targets
                .iter()
                .any(|(name, _)| target.starts_with(name))
        };
        Targets::new()
            .with_default(default)
            .with_targets(others.filter(|(target, _)| !is_named(target)))
            .with_targets(self.targets.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A directive for the application also applies to the runtime, unless another one names the runtime.
    #[test]
    fn a_directive_for_the_application_applies_to_the_runtime() {
        for (text, runtime) in [
            ("off,app=info", Some(LevelFilter::INFO)),
            ("app=off", Some(LevelFilter::OFF)),
            ("app=off,operator_runtime=warn", Some(LevelFilter::WARN)),
            ("other=debug", None),
        ] {
            let directives: Directives = text.parse().unwrap();
            let directives = directives.of_application(&["app"]);
            let mut of_runtime = directives.targets.iter();
            let found = of_runtime.find(|(name, _)| name == env!("CARGO_CRATE_NAME"));
            assert_eq!(found.map(|(_, level)| *level), runtime, "{text}");
        }
    }
}
