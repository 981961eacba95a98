//! Isolation of panics in the code of a resource type: a panic affects only the object of the call.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::api::kind::Kind;

/// A panic in the code of a resource type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked {
    /// Kind of the object.
    pub kind: &'static str,
    /// Method that panicked.
    pub method: &'static str,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, method } = self;
        write!(
            f,
            "{method} of a {kind} panicked: see the log line before this one"
        )
    }
}

/// Calls `method` of a resource type for one object.
///
/// # Errors
/// [`Panicked`] if it panicked. The panic message and its place in the code are already logged.
pub(crate) fn catch<T>(
    kind: &Kind,
    method: &'static str,
    call: impl FnOnce() -> T,
) -> Result<T, Panicked> {
    let kind = kind.kind;
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked { kind, method })
}
