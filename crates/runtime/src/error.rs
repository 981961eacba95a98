//! What can go wrong with one object, and whether it is tried again.

use std::{error::Error, time::Duration};

use kube::core::Status;

use crate::{client::retry_after, election::fence};

/// What a reconcile fails with.
pub trait Failure: Error + Send + Sync + 'static {
    /// One word in CamelCase for what happened, whichever the object: what traces (`error.type`) and suppressed log lines are
    /// told apart by.
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
    /// With backoff, and not before this has passed: what the API server asks for. Logged.
    Backoff(Duration),
    /// With backoff. Part of everyday life, and logged only where it goes on and on.
    Conflict,
    /// With backoff. Part of everyday life, and not logged.
    Quiet,
}

impl Retry {
    /// How long to wait at least.
    pub(crate) fn after(self) -> Duration {
        match self {
            Self::Backoff(time) => time,
            Self::OnChange | Self::Conflict | Self::Quiet => Duration::ZERO,
        }
    }

    /// Whether it is no concern of an operator's.
    pub(crate) fn is_quiet(self) -> bool {
        matches!(self, Self::Conflict | Self::Quiet)
    }
}

/// What the API server's answer to a write means.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// It refuses the object: a quota, an admission policy, missing rights, a schema.
    #[error("{0}")]
    Rejected(String),

    /// The namespace is being deleted: nothing can be created there.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object is not there any more, or changed between reading and writing: another look will do.
    #[error("changed meanwhile")]
    Conflict,

    /// This replica does not lead (any more): whoever leads goes on.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// Somebody else changes the object, or deletes it, whenever it is as it should be. The next correction waits so long.
    #[error("somebody else changes {0:?} again and again: wanted {1}")]
    Contested(String, String, Duration),

    /// It was not done, for a reason that passes; and the time that the API server asks for, zero where it asks for none.
    #[error("{0}")]
    Transient(String, Duration),
}

impl ApiError {
    /// What passes, and in no certain time.
    pub fn transient(words: impl Into<String>) -> Self {
        Self::Transient(words.into(), Duration::ZERO)
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        if fence::is_refused(&error) {
            return Self::NotLeading;
        }
        let kube::Error::Api(status) = &error else {
            return Self::transient(root_cause(&error));
        };
        match status.code {
            403 | 404 if is_terminating(status) => Self::NamespaceTerminating,
            // 404: the object was deleted meanwhile.
            404 | 409 => Self::Conflict,
            400 | 403 | 405 | 413 | 422 => Self::Rejected(brief(&status.message)),
            code => {
                let words = format!("the API server answers {code}: {}", brief(&status.message));
                Self::Transient(words, retry_after(&error).unwrap_or_default())
            }
        }
    }
}

fn is_terminating(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| {
        details.kind == "namespaces"
            || details
                .causes
                .iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
    })
}

/// A message from outside, short enough for a condition, an event and a log line.
#[must_use]
pub fn brief(message: &str) -> String {
    const LONGEST: usize = 500;
    let mut text: String = message
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.len() < message.len() {
        text.push('…');
    }
    text
}

/// The innermost error tells most: "Connection refused", "certificate has expired", …
#[must_use]
pub fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    brief(&cause.to_string())
}
