//! Errors of the reconcile of one Foo: whether they are retried, and whether they are reported to the user.

use std::time::Duration;

use operator_runtime::{ApiError, Failure, Retry};

/// An error of a reconcile.
///
/// A [`Duration`] in a variant is the `Retry-After` of the API server, or zero. The documentation of a variant may define another
/// meaning.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec is invalid. Not retried: a change of the Foo enqueues it.
    #[error("{0}")]
    InvalidSpec(String),

    /// The Foo does not control the Deployment with the specified name. The second field contains the command to adopt the
    /// Deployment, if that is possible.
    #[error("Resource \"{0}\" already exists and is not managed by Foo{1}")]
    ResourceExists(String, String),

    /// The Deployment with the specified name is being deleted, or belongs to an earlier Foo of this name and will be. It is no
    /// lasting conflict, so it does not stall the Foo.
    #[error("Deployment {0:?} of another owner is being deleted")]
    Deleting(String),

    /// The superseded Deployment cannot be deleted. Its replacement is complete.
    #[error("cannot delete the Deployment of the earlier spec.deploymentName: {0}")]
    DeletionFailed(String, Retry),

    /// Another client keeps changing the Foo's status. The [`Duration`] is the delay of the next report. The runtime sends an
    /// event to the user.
    #[error("{0}")]
    StatusContested(String, Duration),

    /// The API server rejects the Foo's status: missing permissions, or the Foo is older than the schema.
    #[error("the API server rejected the Foo's status: {0}")]
    StatusRejected(String, Duration),

    /// Any other error of a request. Errors that are reported to the user are errors of a write of the Deployment.
    #[error("{}", message(.0))]
    Api(ApiError),
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

    /// Returns the error of the deletion of a superseded Deployment, or of a live read before it.
    #[must_use]
    pub fn of_deletion(error: ApiError) -> Self {
        let retry = error.retry();
        match error {
            ApiError::Rejected(words)
            | ApiError::Denied(words, _)
            | ApiError::TimedOut(words)
            | ApiError::Transient(words, _) => Self::DeletionFailed(words, retry),
            ApiError::Contested(..) => Self::DeletionFailed(error.to_string(), retry),
            other => other.into(),
        }
    }

    /// Whether the retry has a fixed delay rather than the backoff.
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        matches!(self.retry(), Retry::After(_))
    }

    /// Limits a fixed delay to `limit`, but not below `least`.
    #[must_use]
    pub fn between(self, least: Duration, limit: Duration) -> Self {
        let within = |time: Duration| time.min(limit).max(least);
        match self {
            Self::Api(ApiError::Contested(name, wanted, time)) => {
                Self::Api(ApiError::Contested(name, wanted, within(time)))
            }
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
            Self::Deleting(_) => "DeploymentDeleting",
            Self::DeletionFailed(..) => "DeletionFailed",
            Self::StatusContested(..) => "StatusContested",
            Self::StatusRejected(..) => "StatusRejected",
            Self::Api(ApiError::Rejected(_) | ApiError::Denied(..)) => "DeploymentRejected",
            Self::Api(ApiError::Overruled(..)) => "DeploymentOverruled",
            Self::Api(ApiError::Contested(..)) => "DeploymentContested",
            Self::Api(ApiError::TimedOut(_)) => "DeploymentTimedOut",
            Self::Api(error) => error.name(),
        }
    }

    fn reason(&self) -> Option<&'static str> {
        let is_reported = match self {
            Self::InvalidSpec(_)
            | Self::ResourceExists(..)
            | Self::Deleting(_)
            | Self::DeletionFailed(..) => true,
            Self::StatusContested(..) | Self::StatusRejected(..) => false,
            Self::Api(error) => error.reason().is_some(),
        };
        is_reported.then(|| self.name())
    }

    fn retry(&self) -> Retry {
        match self {
            Self::InvalidSpec(_) => Retry::OnChange,
            Self::ResourceExists(..) | Self::Deleting(_) => Retry::Backoff(Duration::ZERO),
            Self::DeletionFailed(_, retry) => *retry,
            Self::StatusContested(_, time) => Retry::After(*time),
            Self::StatusRejected(_, time) => Retry::Backoff(*time),
            Self::Api(error) => error.retry(),
        }
    }

    fn is_settled(&self) -> bool {
        let is_watched = matches!(self, Self::ResourceExists(..) | Self::Deleting(_));
        is_watched || self.retry() == Retry::OnChange
    }
}

/// Returns the message for the user, which names the Deployment.
fn message(error: &ApiError) -> String {
    match error {
        ApiError::Rejected(words) | ApiError::Denied(words, _) => {
            format!("the API server rejected the Deployment: {words}")
        }
        ApiError::Overruled(.., wanted) => {
            format!("admission changed the Deployment: desired {wanted}")
        }
        ApiError::Contested(name, wanted, _) => {
            format!("another client keeps reverting Deployment {name:?}: desired {wanted}")
        }
        other => other.to_string(),
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Foreign(_, name) => Self::ResourceExists(name, String::new()),
            other => Self::Api(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, retry and report of each error.
    #[test]
    fn each_error_has_its_retry_and_report() {
        let (text, time) = (|| "x".to_owned(), Duration::from_secs(7));
        let (soon, later) = (Retry::Backoff(Duration::ZERO), Retry::After(time));
        for (error, retry, reported) in [
            (Error::InvalidSpec(text()), Retry::OnChange, true),
            (Error::ResourceExists(text(), text()), soon, true),
            (Error::Deleting(text()), soon, true),
            (ApiError::Foreign("x", text()).into(), soon, true),
            (Error::DeletionFailed(text(), soon), soon, true),
            (Error::DeletionFailed(text(), later), later, true),
            (Error::StatusContested(text(), time), later, false),
            (
                Error::StatusRejected(text(), time),
                Retry::Backoff(time),
                false,
            ),
        ] {
            assert_eq!(error.retry(), retry, "{error:?}");
            assert_eq!(error.reason(), reported.then(|| error.name()), "{error:?}");
        }
        for (error, name) in [
            (ApiError::Rejected(text()), "DeploymentRejected"),
            (ApiError::Denied(text(), time), "DeploymentRejected"),
            (
                ApiError::Overruled("x", text(), text()),
                "DeploymentOverruled",
            ),
            (
                ApiError::Contested(text(), text(), time),
                "DeploymentContested",
            ),
            (ApiError::TimedOut(text()), "DeploymentTimedOut"),
            (ApiError::NamespaceTerminating, "NamespaceTerminating"),
            (ApiError::Conflict, "Conflict"),
            (ApiError::NotLeading, "NotLeading"),
            (ApiError::Transient(text(), time), "Transient"),
        ] {
            let ours = Error::from(error.clone());
            assert_eq!((ours.name(), ours.retry()), (name, error.retry()));
            assert_eq!(ours.reason(), error.reason().map(|_| name), "{error:?}");
        }
    }
}
