//! What can go wrong with one Foo, and who has to know.

use std::time::Duration;

use operator_runtime::{ApiError, Failure, Retry};

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user has to change the Foo. Not retried: the change enqueues it.
    #[error("{0}")]
    InvalidSpec(String),

    /// The Foo does not control the Deployment of that name. The command that changes that, if the controller once made it.
    #[error("Resource \"{0}\" already exists and is not managed by Foo{1}")]
    ResourceExists(String, String),

    /// The API server refuses the Deployment: a quota, an admission policy, missing rights; and the time that it asks for, zero
    /// where it asks for none.
    #[error("the API server refuses the Deployment: {0}")]
    Rejected(String, Duration),

    /// The Deployment of the Foo's earlier name is not deleted. The one that replaces it is as it should be. With what is to
    /// come next.
    #[error("cannot delete the Deployment of the earlier spec.deploymentName: {0}")]
    DeletionFailed(String, Retry),

    /// The API server took a change of the Deployment and stored something else: an admission policy or a webhook has the
    /// last word. Asked again when the Foo or the Deployment changes.
    #[error(
        "the Deployment is stored otherwise than asked, by an admission policy or a webhook: wanted {0}"
    )]
    Overruled(String),

    /// Somebody changes the Deployment, or deletes it, whenever it is as it should be. The next correction waits so long.
    #[error("somebody else changes the Deployment {0:?} again and again: wanted {1}")]
    Contested(String, String, Duration),

    /// Somebody changes the Foo's status whenever it is reported. The next report waits so long. (The user is told by an event of
    /// the runtime's.)
    #[error("{0}")]
    StatusContested(String, Duration),

    /// The API server refuses the Foo's status: missing rights, or a Foo from before the schema. The time is as above.
    #[error("the API server refuses the Foo's status: {0}")]
    StatusRejected(String, Duration),

    /// The namespace is going away, and the Foo with it: nothing can be created there.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object changed between reading and writing: another reconcile will do.
    #[error("conflict: the object changed since it was read")]
    Conflict,

    /// This replica does not lead (any more): whoever leads goes on.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// The API server did not complete a write of the Deployment in the time that it had. It may have been done.
    #[error("{0}")]
    TimedOut(String),

    /// The API server did not do it, for a reason that passes; and the time that it asks for, zero where it asks for none.
    #[error("{0}")]
    Transient(String, Duration),
}

impl Error {
    /// The time that the API server asks for.
    #[must_use]
    pub fn asks(&self) -> Duration {
        match self.retry() {
            Retry::Backoff(time) => time,
            _ => Duration::ZERO,
        }
    }

    /// Whether it is put off.
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        matches!(self.retry(), Retry::After(_))
    }

    /// The same, and what is put off comes after this time at the soonest, and within the other if that is later.
    #[must_use]
    pub fn between(self, least: Duration, limit: Duration) -> Self {
        let within = |time: Duration| time.min(limit).max(least);
        match self {
            Self::Contested(name, wanted, time) => Self::Contested(name, wanted, within(time)),
            Self::DeletionFailed(words, Retry::After(time)) => {
                Self::DeletionFailed(words, Retry::After(within(time)))
            }
            other => other,
        }
    }
}

impl Failure for Error {
    fn name(&self) -> &'static str {
        match self {
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::ResourceExists(..) => "ErrResourceExists",
            Self::Rejected(..) => "DeploymentRejected",
            Self::DeletionFailed(..) => "DeletionFailed",
            Self::Overruled(_) => "DeploymentOverruled",
            Self::Contested(..) => "DeploymentContested",
            Self::StatusContested(..) => "StatusContested",
            Self::StatusRejected(..) => "StatusRejected",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::Conflict => "Conflict",
            Self::NotLeading => "NotLeading",
            Self::TimedOut(_) => "DeploymentTimedOut",
            Self::Transient(..) => "Transient",
        }
    }

    fn reason(&self) -> Option<&'static str> {
        let reported = matches!(
            self,
            Self::InvalidSpec(_)
                | Self::ResourceExists(..)
                | Self::Rejected(..)
                | Self::DeletionFailed(..)
                | Self::Overruled(_)
                | Self::Contested(..)
                | Self::TimedOut(_)
        );
        reported.then(|| self.name())
    }

    fn retry(&self) -> Retry {
        match self {
            Self::InvalidSpec(_) => Retry::OnChange,
            Self::Conflict => Retry::Conflict,
            Self::NotLeading | Self::NamespaceTerminating => Retry::Quiet,
            Self::DeletionFailed(_, retry) => *retry,
            Self::Contested(.., time) | Self::StatusContested(_, time) => Retry::After(*time),
            Self::Rejected(_, time) | Self::StatusRejected(_, time) | Self::Transient(_, time) => {
                Retry::Backoff(*time)
            }
            Self::ResourceExists(..) | Self::Overruled(_) | Self::TimedOut(_) => {
                Retry::Backoff(Duration::ZERO)
            }
        }
    }
}

/// What the API server's answer to a write of the Deployment means.
impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Rejected(words) => Self::Rejected(words, Duration::ZERO),
            ApiError::Denied(words, time) => Self::Rejected(words, time),
            ApiError::NamespaceTerminating => Self::NamespaceTerminating,
            ApiError::Conflict => Self::Conflict,
            ApiError::NotLeading => Self::NotLeading,
            ApiError::Foreign(_, name) => Self::ResourceExists(name, String::new()),
            ApiError::Overruled(.., wanted) => Self::Overruled(wanted),
            ApiError::Contested(name, what, time) => Self::Contested(name, what, time),
            ApiError::TimedOut(words) => Self::TimedOut(words),
            ApiError::Transient(words, time) => Self::Transient(words, time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows R4, R7 and P3: which errors wait for a change, which are part of everyday life, and which are reported to
    /// the user.
    #[test]
    fn each_error_is_tried_again_as_it_should_be() {
        let (text, time) = (|| "x".to_owned(), Duration::from_secs(7));
        let (soon, later) = (Retry::Backoff(Duration::ZERO), Retry::After(time));
        for (error, retry, reported) in [
            (Error::InvalidSpec(text()), Retry::OnChange, true),
            (Error::ResourceExists(text(), text()), soon, true),
            (Error::Rejected(text(), time), Retry::Backoff(time), true),
            (Error::DeletionFailed(text(), soon), soon, true),
            (Error::DeletionFailed(text(), later), later, true),
            (Error::Overruled(text()), soon, true),
            (Error::Contested(text(), text(), time), later, true),
            (Error::StatusContested(text(), time), later, false),
            (
                Error::StatusRejected(text(), time),
                Retry::Backoff(time),
                false,
            ),
            (Error::TimedOut(text()), soon, true),
            (Error::NamespaceTerminating, Retry::Quiet, false),
            (Error::Conflict, Retry::Conflict, false),
            (Error::NotLeading, Retry::Quiet, false),
            (Error::Transient(text(), time), Retry::Backoff(time), false),
        ] {
            assert_eq!(error.retry(), retry, "{error:?}");
            assert_eq!(error.reason(), reported.then(|| error.name()), "{error:?}");
        }
    }
}
