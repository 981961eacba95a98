//! Versions of Kubernetes.

use std::fmt;

/// A minor version of Kubernetes, which the API server in memory imitates. They differ in few responses: find the uses of
/// [`Store::release`](super::Store::release).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    V1_33,
    V1_34,
    V1_35,
    #[default]
    V1_36,
    V1_37,
}

impl Release {
    pub const ALL: [Self; 5] = [
        Self::V1_33,
        Self::V1_34,
        Self::V1_35,
        Self::V1_36,
        Self::V1_37,
    ];

    /// Returns the release of a version such as `v1.36.3`, if it is imitated.
    #[must_use]
    pub fn of(version: &str) -> Option<Self> {
        let minor = version.strip_prefix("v1.")?.split(['.', '-', '+']).next()?;
        Self::ALL.into_iter().find(|it| it.minor() == minor)
    }

    /// Returns the minor version, such as `36`.
    #[must_use]
    pub const fn minor(self) -> &'static str {
        match self {
            Self::V1_33 => "33",
            Self::V1_34 => "34",
            Self::V1_35 => "35",
            Self::V1_36 => "36",
            Self::V1_37 => "37",
        }
    }
}

/// Returns `new` from this release on, else `old`.
pub fn since<T>(release: Release, from: Release, old: T, new: T) -> T {
    if release >= from { new } else { old }
}

/// Formats the version that a real API server reports, and that it is simulated. The comparison ran on this patch version.
impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patch = match self {
            Self::V1_33 => 13,
            Self::V1_34 | Self::V1_35 => 4,
            Self::V1_36 => 3,
            Self::V1_37 => 2,
        };
        write!(f, "v1.{}.{patch}+simulated", self.minor())
    }
}
