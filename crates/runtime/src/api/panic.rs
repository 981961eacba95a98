//! A kind's own code panics: that is a matter of the object that it was called for, and of no other (row Q6).

#[cfg(test)]
mod tests;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::api::kind::Kind;

/// That a kind's own code panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// Of which kind.
    pub kind: &'static str,
    /// In which of the methods that are called from here.
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

/// Calls a kind's `method` for one object.
///
/// # Errors
/// [`Panicked`] where that panicked. What, and where in the code, is logged by then.
pub fn catch<T>(
    kind: &Kind,
    method: &'static str,
    call: impl FnOnce() -> T,
) -> Result<T, Panicked> {
    let kind = kind.kind;
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked { kind, method })
}
