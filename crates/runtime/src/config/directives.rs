//! What `log.level` says: a level for everything, and others for what begins with some target.

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// What holds where no level is given for everything: `kube=debug` alone silences nothing else.
const DEFAULT: LevelFilter = LevelFilter::INFO;

/// `log.level`, parsed. Blanks around its parts mean nothing: a value from a `ConfigMap` often ends with a newline, and a
/// level with a blank would be taken for the name of a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Directives {
    default: Option<LevelFilter>,
    targets: Vec<(String, LevelFilter)>,
}

/// The text is not a list of levels and of `target=level`.
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
        // Which tracing takes for a level.
        "" => Err(Malformed),
        text => text.parse().map_err(|_| Malformed),
    }
}

fn is_target(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:.".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

impl Directives {
    /// As a filter. The targets in `quiet` are silent, unless a directive names one, or what it begins with.
    pub(crate) fn filter(&self, quiet: &[&str]) -> Targets {
        let named = |target: &str| {
            self.targets
                .iter()
                .any(|(name, _)| target.starts_with(name))
        };
        let quiet = quiet.iter().filter(|target| !named(target));
        Targets::new()
            .with_default(self.default.unwrap_or(DEFAULT))
            .with_targets(quiet.map(|target| (*target, LevelFilter::OFF)))
            .with_targets(self.targets.clone())
    }
}
