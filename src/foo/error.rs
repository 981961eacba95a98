//! Errors of the reconcile of one Foo: whether they are retried, and whether they are reported to the user.

use std::time::Duration;

use operator_runtime::{ApiError, Failure, Retry};

/// An error of a reconcile.
///
/// A [`Duration`] in a variant is the `Retry-After` of the API server (zero: none), unless its documentation differs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec is invalid. Not retried: a change of the Foo enqueues it.
    #[error("{0}")]
    InvalidSpec(String),

    /// The Foo does not control the Deployment with the specified name. The second field contains the command to adopt the
    /// Deployment, if that is possible.
    #[error("Resource \"{0}\" already exists and is not managed by Foo{1}")]
    ResourceExists(String, String),

    /// The API server rejects the Deployment because of a quota, an admission policy or missing permissions.
    #[error("the API server rejected the Deployment: {0}")]
    Rejected(String, Duration),

    /// The superseded Deployment cannot be deleted. Its replacement is complete.
    #[error("cannot delete the Deployment of the earlier spec.deploymentName: {0}")]
    DeletionFailed(String, Retry),

    /// An admission policy or a webhook mutated a change of the Deployment. The change is sent again when the Foo or the
    /// Deployment changes.
    #[error("admission changed the Deployment: desired {0}")]
    Overruled(String),

    /// Another client keeps reverting or deleting the Deployment. The [`Duration`] is the delay of the next correction.
    #[error("another client keeps reverting Deployment {0:?}: desired {1}")]
    Contested(String, String, Duration),

    /// Another client keeps changing the Foo's status. The [`Duration`] is the delay of the next report. The runtime sends an
    /// event to the user.
    #[error("{0}")]
    StatusContested(String, Duration),

    /// The API server rejects the Foo's status: missing permissions, or the Foo is older than the schema.
    #[error("the API server rejected the Foo's status: {0}")]
    StatusRejected(String, Duration),

    /// The namespace is terminating, with the Foo. No object can be created there.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object changed between read and write. The next reconcile uses the new version.
    #[error("conflict: the object changed since it was read")]
    Conflict,

    /// This replica does not lead, or no longer. The leader continues.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// A write of the Deployment timed out in the API server. Its outcome is unknown.
    #[error("{0}")]
    TimedOut(String),

    /// A transient failure of the API server.
    #[error("{0}")]
    Transient(String, Duration),
}

impl Error {
    /// Returns the `Retry-After` of the API server, or zero.
    #[must_use]
    pub fn asks(&self) -> Duration {
        match self.retry() {
            Retry::Backoff(time) => time,
            _ => Duration::ZERO,
        }
    }

    /// Whether the retry has a fixed delay rather than the backoff.
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        matches!(self.retry(), Retry::After(_))
    }

    /// Limits the delay of a postponed error to `limit`, but keeps it at `least` or longer.
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
            Self::NotLeading | Self::NamespaceTerminating => Retry::Requeue,
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

/// Maps an error of a Deployment write.
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

    /// Each error has the right retry, and is reported to the user or not.
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
            (Error::NamespaceTerminating, Retry::Requeue, false),
            (Error::Conflict, Retry::Conflict, false),
            (Error::NotLeading, Retry::Requeue, false),
            (Error::Transient(text(), time), Retry::Backoff(time), false),
        ] {
            assert_eq!(error.retry(), retry, "{error:?}");
            assert_eq!(error.reason(), reported.then(|| error.name()), "{error:?}");
        }
    }
}
