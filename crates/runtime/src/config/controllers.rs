//! Settings of a single controller, in a program that has several: the section `controllers.NAME` of the configuration.

use super::{rule::Rule, table::Key};

/// Section of these keys, with its dot.
const SECTION: &str = "controllers.";

/// Keys of one controller. [`controllers!`](crate::controllers) makes them.
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

impl Key {
    /// Returns the key of the program whose value this key has if it is not set.
    pub(super) fn general(&self) -> Option<&'static str> {
        let (_, setting) = self.name.strip_prefix(SECTION)?.rsplit_once('.')?;
        ["workers", "resync"].into_iter().find(|it| *it == setting)
    }
}
