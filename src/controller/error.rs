//! What can go wrong with one Foo, and who has to know.

use std::time::Duration;

use kube::core::Status;

use operator_runtime::{client::retry_after, election::fence};

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user has to change the Foo (row R7). Not retried: the change wakes it.
    #[error("{0}")]
    InvalidSpec(String),

    /// Somebody else's Deployment has the name (row R4).
    #[error("Resource \"{0}\" already exists and is not managed by Foo")]
    ResourceExists(String),

    /// The API server refuses the Deployment: a quota, an admission policy, missing rights.
    #[error("the API server refuses the Deployment: {0}")]
    Rejected(String),

    /// The Deployment of the Foo's earlier name is not deleted. The one that replaces it is as it should be. With the time
    /// that the API server asks for.
    #[error("cannot delete the Deployment of the earlier spec.deploymentName: {0}")]
    DeletionFailed(String, Duration),

    /// The API server took a change of the Deployment and stored something else: an admission policy or a webhook has the
    /// last word. Asked again when the Foo or the Deployment changes.
    #[error(
        "the Deployment is stored otherwise than asked, by an admission policy or a webhook: wanted {0}"
    )]
    Overruled(String),

    /// Somebody changes the Deployment, or deletes it, whenever it is as it should be. The next correction waits so long.
    #[error("somebody else changes the Deployment {0:?} again and again: wanted {1}")]
    Contested(String, String, Duration),

    /// The API server refuses the Foo's status: missing rights, or a Foo from before the schema.
    #[error("the API server refuses the Foo's status: {0}")]
    StatusRejected(String),

    /// The namespace is going away, and the Foo with it: nothing can be created there.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object changed between reading and writing: another look will do.
    #[error("changed meanwhile")]
    Conflict,

    /// This replica does not lead (any more): whoever leads goes on.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// The API server did not do it, for a reason that passes; and the time that it asks for, zero where it asks for none.
    #[error("{0}")]
    Transient(String, Duration),

    /// A bug of ours (row Q6).
    #[error("the reconcile panicked: see the log line before this one")]
    Panicked,
}

impl Error {
    /// What passes, and in no certain time.
    pub(super) fn transient(words: impl Into<String>) -> Self {
        Self::Transient(words.into(), Duration::ZERO)
    }

    /// The reason in the Foo's conditions and events, in CamelCase; `None` where the user need not know.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        let told = matches!(
            self,
            Self::InvalidSpec(_)
                | Self::ResourceExists(_)
                | Self::Rejected(_)
                | Self::DeletionFailed(..)
                | Self::Overruled(_)
                | Self::Contested(..)
        );
        told.then(|| self.kind())
    }

    /// One word for what happened, whichever the object: what traces and causes are told apart by.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::ResourceExists(_) => "ErrResourceExists",
            Self::Rejected(_) => "DeploymentRejected",
            Self::DeletionFailed(..) => "DeletionFailed",
            Self::Overruled(_) => "DeploymentOverruled",
            Self::Contested(..) => "DeploymentContested",
            Self::StatusRejected(_) => "StatusRejected",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::Conflict => "Conflict",
            Self::NotLeading => "NotLeading",
            Self::Transient(..) => "Transient",
            Self::Panicked => "Panicked",
        }
    }

    /// Whether trying again without a change cannot help.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::InvalidSpec(_))
    }

    /// How long to wait at least: what the API server asks for, or what a dispute is worth.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Transient(_, time)
            | Self::DeletionFailed(_, time)
            | Self::Contested(.., time) => *time,
            _ => Duration::ZERO,
        }
    }

    /// Whether it is part of everyday life and no concern of an operator's.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::NotLeading | Self::NamespaceTerminating
        )
    }
}

/// What the API server's answer to a write means.
impl From<kube::Error> for Error {
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
pub(super) fn brief(message: &str) -> String {
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
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    brief(&cause.to_string())
}
