//! Failures of a reconcile, and when it is retried.

use std::{error::Error, time::Duration};

/// Error of a reconcile.
pub trait Failure: Error + Send + Sync + 'static {
    /// Returns one word in CamelCase for the failure, the same for all objects. It distinguishes failures in traces
    /// (`error.type`) and in suppressed log lines.
    fn name(&self) -> &'static str;
    /// Returns the reason for conditions, events and logs; `None` if the user need not know.
    fn reason(&self) -> Option<&'static str>;
    /// Returns when the reconcile is retried.
    fn retry(&self) -> Retry;
    /// Returns whether only a change of the object or of its [references](crate::Cached::references) can end the failure. A
    /// resync and a new leader then skip the object while its status reports the failure. By default, a failure that is not
    /// retried.
    fn is_settled(&self) -> bool {
        self.retry() == Retry::OnChange
    }
}

/// When a failed reconcile is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Retry after a change, because nothing else can help. The failure must already be reported.
    OnChange,
    /// Retry with backoff, but not before this delay, even after a change. The delay is the API server's `Retry-After`. Logged.
    Backoff(Duration),
    /// Requeue after this delay, at least 100 ms. Not a failure: it is not counted, and does not extend the backoff. Returned
    /// when a [`Writer`](crate::Writer) postpones a write. Logged.
    After(Duration),
    /// Like [`Requeue`](Self::Requeue), but logged if it persists.
    Conflict,
    /// Retry with a separate backoff. Not a failure of the object: it is not counted, and earlier failures do not delay it.
    /// Normal operation, not logged.
    Requeue,
}

impl Retry {
    /// Returns whether this counts as a failure.
    pub(crate) fn is_failure(self) -> bool {
        !self.is_quiet() && !matches!(self, Self::After(_))
    }

    /// Returns whether the cause is temporary and needs no attention.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        matches!(self, Self::Conflict | Self::Requeue)
    }
}

/// Returns the start of an external message, short enough for a condition, an event and a log line.
#[must_use]
pub fn brief(message: &str) -> String {
    const LONGEST: usize = 500;
    let mut text: String = message
        .chars()
        .take(LONGEST)
        .map(|c| if is_hidden(c) { ' ' } else { c })
        .collect();
    if message.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    text
}

/// Returns whether the character could break a line or change the direction of text on a terminal.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the innermost error, which is the most specific: "Connection refused", "certificate has expired", …
#[must_use]
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    brief(&cause.to_string())
}

/// Returns the error and all its causes, for a library with unspecific outermost errors ("transport error").
#[must_use]
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut error = error;
    while let Some(cause) = error.source() {
        // An `io::Error` has the text of its source.
        if !text.ends_with(&cause.to_string()) {
            text = format!("{text}: {cause}");
        }
        error = cause;
    }
    text
}
