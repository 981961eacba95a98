//! Rules for the values of keys and of OpenTelemetry variables: the check and its message.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use figment::value::Value;
use http::Uri;
use humantime_serde::Serde;

use super::log_filter::Directives;

/// Rule for a value. Its text completes "must be ...".
#[derive(Debug)]
pub enum Rule {
    /// True or false.
    Bool,
    /// A whole number between the two, inclusive.
    Whole(u32, u32),
    /// A number between the two, inclusive.
    Number(f64, f64),
    /// A duration between the two, inclusive.
    Duration(&'static str, &'static str),
    /// A duration between the two, inclusive, in whole seconds: the API has no smaller unit for a Lease.
    Seconds(&'static str, &'static str),
    /// A value from this list.
    Word(&'static [&'static str]),
    /// Values from this list, separated by commas.
    Words(&'static [&'static str]),
    /// The address of an API server or a collector; empty if there is none.
    Address,
    /// A file, which is read when it is needed.
    File,
    /// A string that passes the check, and a description of the check.
    Text(fn(&str) -> bool, &'static str),
    /// Like `Text`, but never printed.
    Secret(fn(&str) -> bool, &'static str),
    /// Strings that each pass the check, and a description of the check.
    List(fn(&str) -> bool, &'static str),
}

impl Rule {
    /// Converts text from a flag or the environment to the type in the file. Text that cannot be converted stays text, which
    /// [`Rule::allows`] rejects.
    #[must_use]
    pub(crate) fn value(&self, text: &str) -> Value {
        match self {
            Self::Bool => text.parse::<bool>().map_or(Value::from(text), Value::from),
            Self::Whole(..) | Self::Number(..) => {
                match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(whole), _) => Value::from(whole),
                    (_, Ok(number)) => Value::from(number),
                    _ => Value::from(text),
                }
            }
            Self::List(..) => {
                let text = text.trim();
                let inner = text
                    .strip_prefix('[')
                    .and_then(|text| text.strip_suffix(']'));
                match inner {
                    Some(inner) if inner.trim().is_empty() => Value::from(Vec::<Value>::new()),
                    _ => inner
                        .unwrap_or(text)
                        .split(',')
                        .map(|item| item.trim().trim_matches('"'))
                        .collect::<Vec<_>>()
                        .into(),
                }
            }
            _ => Value::from(text),
        }
    }

    /// Returns whether the value satisfies the rule.
    #[must_use]
    pub(crate) fn allows(&self, value: &Value) -> bool {
        let text = |check: &dyn Fn(&str) -> bool| value.as_str().is_some_and(check);
        match self {
            Self::Bool => value.to_bool().is_some(),
            Self::Whole(min, max) => value
                .deserialize::<u32>()
                .is_ok_and(|n| (*min..=*max).contains(&n)),
            Self::Number(min, max) => value
                .deserialize::<f64>()
                .is_ok_and(|n| (*min..=*max).contains(&n)),
            Self::Duration(min, max) => duration(value).is_some_and(|d| {
                duration(&Value::from(*min)) <= Some(d) && Some(d) <= duration(&Value::from(*max))
            }),
            Self::Seconds(min, max) => {
                duration(value).is_some_and(|d| d.subsec_nanos() == 0)
                    && Self::Duration(min, max).allows(value)
            }
            Self::Word(words) => text(&|text| words.contains(&text)),
            Self::Words(words) => text(&|text| items(text).all(|item| words.contains(&item))),
            Self::Address => text(&|text| text.is_empty() || is_address(text)),
            Self::File => text(&|_| true),
            Self::Text(check, _) | Self::Secret(check, _) => text(check),
            Self::List(check, _) => value
                .deserialize::<Vec<String>>()
                .is_ok_and(|items| items.iter().all(|item| check(item))),
        }
    }

    /// Returns whether errors and logs must hide a value: a secret, or an address that may contain credentials.
    #[must_use]
    pub(crate) fn hides(&self, text: &str) -> bool {
        match self {
            Self::Secret(..) => true,
            Self::Address => text.contains(CREDENTIALS),
            _ => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => write!(f, "true or false"),
            Self::Whole(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Self::Duration(min, max) => write!(f, "a duration from {min} to {max}"),
            Self::Seconds(min, max) => write!(f, "whole seconds from {min} to {max}"),
            Self::Word([word]) => f.write_str(word),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Words(words) => {
                write!(f, "a comma-separated list of {}", words.join(", "))
            }
            Self::Address => f.write_str(
                "an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query",
            ),
            Self::File => f.write_str("a file in PEM format"),
            Self::Text(_, demand) | Self::Secret(_, demand) | Self::List(_, demand) => {
                f.write_str(demand)
            }
        }
    }
}

/// Characters that an address contains only if it may contain credentials.
pub(crate) const CREDENTIALS: [char; 3] = ['@', '?', '#'];

/// Parses a duration such as `30s`.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    value
        .deserialize::<Serde<Duration>>()
        .ok()
        .map(Serde::into_inner)
}

/// Returns the items of a comma-separated list. A trailing comma adds no item.
pub(crate) fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// Returns whether the text is an http or https address without credentials. Addresses are printed and logged.
pub(crate) fn is_address(text: &str) -> bool {
    let fits = |uri: Uri| {
        let Some(authority) = uri.authority() else {
            return false;
        };
        let (whole, host) = (authority.as_str(), authority.host());
        let port_fits = whole == host || authority.port_u16().is_some();
        matches!(uri.scheme_str(), Some("http" | "https")) && !host.is_empty() && port_fits
    };
    !text.contains(CREDENTIALS) && text.parse().is_ok_and(fits)
}

pub(super) fn is_socket(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok()
}

pub(super) fn is_path(text: &str) -> bool {
    !text.contains('\0')
}

pub(super) fn is_filter(text: &str) -> bool {
    text.parse::<Directives>().is_ok()
}
