//! What goes wrong, and when it is tried again.

use std::{error::Error, time::Duration};

/// What a reconcile fails with.
pub trait Failure: Error + Send + Sync + 'static {
    /// One word in CamelCase for what happened, whichever the object: what traces (`error.type`) and suppressed log lines are
    /// distinguished by.
    fn name(&self) -> &'static str;
    /// The reason for conditions, events and logs; `None` where the user need not know.
    fn reason(&self) -> Option<&'static str>;
    /// When it is tried again.
    fn retry(&self) -> Retry;
}

/// When a failed reconcile is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// When something changes: without that, trying again cannot help. It must have been reported.
    OnChange,
    /// With backoff, and not before this has passed, whatever changes meanwhile: what the API server asks for. Logged.
    Backoff(Duration),
    /// After this, which is no failure: it is not counted, and nothing waits longer for it. What a [`Writer`](crate::Writer)
    /// puts off. 100 ms at least. Logged.
    After(Duration),
    /// As [`Quiet`](Self::Quiet), but logged where it goes on and on.
    Conflict,
    /// With a backoff of its own, for it is no failure of the object's: it is not counted among them, and what failed before does not
    /// make it wait. Part of everyday life, and not logged.
    Quiet,
}

impl Retry {
    /// How long to wait at least.
    pub(crate) fn after(self) -> Duration {
        match self {
            Self::Backoff(time) | Self::After(time) => time,
            Self::OnChange | Self::Conflict | Self::Quiet => Duration::ZERO,
        }
    }

    /// Whether it counts as one.
    pub(crate) fn is_failure(self) -> bool {
        !self.is_quiet() && !matches!(self, Self::After(_))
    }

    /// Whether it passes by itself, and is no concern of an operator's.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        matches!(self, Self::Conflict | Self::Quiet)
    }
}

/// A message from outside, short enough for a condition, an event and a log line.
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

/// Whether it could make another line, or another order, of what a terminal shows.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The innermost error says most: "Connection refused", "certificate has expired", …
#[must_use]
pub fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    brief(&cause.to_string())
}

/// The error and all its causes: for a library whose outermost error says little ("transport error").
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut error = error;
    while let Some(cause) = error.source() {
        text = format!("{text}: {cause}");
        error = cause;
    }
    text
}
