//! Classification of the API server's responses to writes.

use std::time::Duration;

use crate::{
    api::{
        failure::{Failure, Retry, brief, root_cause},
        plain::{Custom, Spec},
        status::{is_denied, is_internal, is_terminating, retry_after},
    },
    client::fence,
};

/// Error of a plan, a write or a live read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The spec is invalid. Not retried: a change of the object enqueues it.
    #[error("{0}")]
    InvalidSpec(String),

    /// The desired state depends on a missing object or field. Not retried: a change of a referenced object enqueues the object.
    #[error("{0}")]
    Waiting(String),

    /// The object refers to an object of another namespace that it may not [read](crate::View::granted), or that does not exist.
    /// Not retried: a grant enqueues the object.
    #[error("{0}")]
    NotGranted(String),

    /// The object refers to an object of this other namespace, whose objects have not been listed since the start.
    #[error("the objects of namespace {0:?} have not been listed yet")]
    NotListed(String),

    /// An action [outside](crate::Plan::outside) the cluster failed.
    #[error("{0}")]
    ActionFailed(String),

    /// The plan has an action [outside](crate::Plan::outside) the cluster, but does not set the finalizer of this name. Not
    /// retried: the next version of the program has another plan.
    #[error("the plan has an action outside the cluster, but does not set the finalizer {0}")]
    Unprotected(&'static str),

    /// The namespace is not in the setting `namespaces`, so its objects are unknown. Nothing was written. Not retried: another
    /// setting needs a restart, and the new leader checks every object.
    #[error("namespace {0:?} is not watched: it is not in the setting namespaces")]
    NotWatched(String),

    /// The [optional](crate::ControllerBuilder::if_installed) resource type of this name is not installed. Nothing was written.
    /// Its appearance enqueues the object.
    #[error("the {0} are not installed")]
    NotInstalled(&'static str),

    /// An object has to be [read live](crate::View::live) first. The runtime reads it, and makes the plan again. So another error
    /// type must not give it a reason.
    #[error("{0} {1} has not been read yet")]
    Unread(&'static str, String),

    /// The request is invalid, usually because the object violates its schema.
    #[error("{0}")]
    Rejected(String),

    /// The request is denied for a reason that may change at any time: missing permissions, a quota, an admission policy or a
    /// webhook. The duration is the delay that the API server requests, or zero.
    #[error("{0}")]
    Denied(String, Duration),

    /// The namespace is terminating or deleted: nothing can be created in it.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object was changed or deleted after it was read. The next reconcile sees the new state.
    #[error("conflict: the object changed since it was read")]
    Conflict,

    /// This replica is not the leader. Nothing was written.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// An object of this resource type and name exists, and the reconciled object does not control it. The existing object is
    /// left unchanged.
    #[error("{0} {1:?} already exists and is not controlled by this object")]
    Foreign(&'static str, String),

    /// The API server accepted a patch, but an admission policy or a webhook stored other values. The patch is not sent again
    /// until the object changes or is relisted.
    #[error("admission changed {0} {1:?}: desired {2}")]
    Overruled(&'static str, String, String),

    /// Another client reverts each change of the object, or deletes the object each time. The duration is the delay until the
    /// next correction.
    #[error("another client keeps reverting {0:?}: desired {1}")]
    Contested(String, String, Duration),

    /// The API server did not complete the write within the request's timeout. The write may have been carried out.
    #[error("{0}")]
    TimedOut(String),

    /// A temporary failure, such as a lost connection or a 5xx status. The write may have been carried out. The duration is the
    /// delay that the API server requests, or zero.
    #[error("{0}")]
    Transient(String, Duration),
}

impl ApiError {
    /// Returns a [`Transient`](Self::Transient) error without a requested delay.
    pub fn transient(words: impl Into<String>) -> Self {
        Self::Transient(words.into(), Duration::ZERO)
    }
}

impl<S: Spec> Custom<S> {
    /// Returns the spec.
    ///
    /// # Errors
    /// [`ApiError::InvalidSpec`].
    pub fn spec(&self) -> Result<&S, ApiError> {
        let spec = self.spec.as_ref();
        spec.map_err(|error| ApiError::InvalidSpec(error.clone()))
    }
}

/// For reconcilers without an error type of their own: `type Error = ApiError`.
impl Failure for ApiError {
    fn name(&self) -> &'static str {
        match self {
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::Waiting(_) => "Waiting",
            Self::NotGranted(_) => "NotGranted",
            Self::NotListed(_) => "NotListed",
            Self::ActionFailed(_) => "ActionFailed",
            Self::Unprotected(_) => "Unprotected",
            Self::NotWatched(_) => "NotWatched",
            Self::NotInstalled(_) => "NotInstalled",
            Self::Unread(..) => "Unread",
            Self::Rejected(_) | Self::Denied(..) => "Rejected",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::Conflict => "Conflict",
            Self::NotLeading => "NotLeading",
            Self::Foreign(..) => "Foreign",
            Self::Overruled(..) => "Overruled",
            Self::Contested(..) => "Contested",
            Self::TimedOut(_) => "TimedOut",
            Self::Transient(..) => "Transient",
        }
    }

    fn reason(&self) -> Option<&'static str> {
        let told = matches!(
            self,
            Self::InvalidSpec(_)
                | Self::Waiting(_)
                | Self::NotGranted(_)
                | Self::ActionFailed(_)
                | Self::Unprotected(_)
                | Self::NotWatched(_)
                | Self::Rejected(_)
                | Self::Denied(..)
                | Self::Foreign(..)
                | Self::Overruled(..)
                | Self::Contested(..)
                | Self::TimedOut(_)
        );
        told.then(|| self.name())
    }

    fn retry(&self) -> Retry {
        match self {
            Self::InvalidSpec(_)
            | Self::Waiting(_)
            | Self::NotGranted(_)
            | Self::NotWatched(_)
            | Self::Unprotected(_) => Retry::OnChange,
            Self::Conflict => Retry::Conflict,
            Self::NotLeading
            | Self::NamespaceTerminating
            | Self::NotListed(_)
            | Self::NotInstalled(_)
            | Self::Unread(..) => Retry::Requeue,
            Self::Contested(.., time) => Retry::After(*time),
            Self::Denied(_, time) | Self::Transient(_, time) => Retry::Backoff(*time),
            Self::ActionFailed(_)
            | Self::Rejected(_)
            | Self::Foreign(..)
            | Self::Overruled(..)
            | Self::TimedOut(_) => Retry::Backoff(Duration::ZERO),
        }
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
        let asks = retry_after(&error).unwrap_or_default();
        match status.code {
            403 | 404 if is_terminating(status) => Self::NamespaceTerminating,
            // Webhooks deny with any status code. A 403 is retried as well, because no watch reports that a missing permission
            // was restored.
            code if code == 403 || is_denied(&status.message) || is_internal(status) => {
                Self::Denied(brief(&without_ports(&status.message)), asks)
            }
            // 404: the object was deleted after it was read.
            404 | 409 => Self::Conflict,
            400 | 405 | 413 | 415 | 422 => Self::Rejected(brief(&status.message)),
            504 if status.message.contains("request did not complete within") => {
                Self::TimedOut(SLOW.to_owned())
            }
            code => {
                let words = format!("the API server returned {code}: {}", brief(&status.message));
                Self::Transient(words, asks)
            }
        }
    }
}

/// Message for a write that the API server did not complete in time. The API server's own message mentions no webhook. The text
/// is constant, so that a repeated failure does not change the status.
const SLOW: &str = "the API server did not complete the write in time: the usual cause is an admission webhook that \
                    hangs, see the ValidatingWebhookConfigurations and MutatingWebhookConfigurations that cover the namespace";

/// Removes the local address from the API server's message about an unreachable webhook (`read tcp FROM->TO: …`). Its port
/// differs in each attempt, so each failure would have a new message.
fn without_ports(message: &str) -> String {
    let words = message.split(' ');
    let words = words.map(|word| word.split_once("->").map_or(word, |(_, to)| to));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A webhook's denial is reported to the user with any status code. A requested delay is honored for every error.
    #[test]
    fn q3g_retry_after_is_honored_for_every_error() {
        let denied = "admission webhook \"w.example\" denied the request: no";
        for (code, message, asks, is_denied) in [
            (429, denied, 7, true),
            (503, denied, 7, true),
            (429, denied, 0, true),
            (403, "no", 0, true),
            (
                500,
                "Internal error occurred: add operation does not apply",
                0,
                true,
            ),
            (500, "etcdserver: request timed out", 0, false),
            (429, "too many requests", 7, false),
            (503, "not now", 0, false),
        ] {
            let status = json!({
                "kind": "Status", "code": code, "message": message, "reason": "",
                "details": { "retryAfterSeconds": asks },
            });
            let status = serde_json::from_value(status).expect("a status");
            let error = ApiError::from(kube::Error::Api(Box::new(status)));
            let backoff = Retry::Backoff(Duration::from_secs(asks));
            assert_eq!(error.retry(), backoff, "{code} {message}");
            assert_eq!(error.reason().is_some(), is_denied, "{code} {message}");
        }
    }
}
