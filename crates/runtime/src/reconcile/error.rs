//! What the API server's answers to writes mean.

use std::time::Duration;

use crate::{
    api::{
        failure::{Failure, Retry, brief, root_cause},
        status::{is_denied, is_terminating, retry_after},
    },
    client::fence,
};

/// What the API server's answer to a write means.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// It refuses the object, which has to be another one: a schema, mostly.
    #[error("{0}")]
    Rejected(String),

    /// It is refused for what may be otherwise at any time: missing rights, a quota, an admission policy, a webhook; and the time
    /// that is asked for, zero where none is.
    #[error("{0}")]
    Denied(String, Duration),

    /// The namespace is being deleted: nothing can be created there.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,

    /// The object is not there any more, or changed between reading and writing: another look will do.
    #[error("conflict: the object changed since it was read")]
    Conflict,

    /// This replica does not lead (any more): whoever leads goes on.
    #[error("not leading: nothing was written")]
    NotLeading,

    /// There is an object of this kind and name, and what is being reconciled does not control it: it is not touched.
    #[error("{0} {1:?} already exists and is controlled by somebody else, or nobody")]
    Foreign(&'static str, String),

    /// It took a patch and stored something else: an admission policy or a webhook has the last word. Nothing is asked again until
    /// somebody changes the object.
    #[error(
        "{0} {1:?} is stored otherwise than asked, by an admission policy or a webhook: wanted {2}"
    )]
    Overruled(&'static str, String, String),

    /// Somebody else changes the object, or deletes it, whenever it is as it should be. The next correction waits so long.
    #[error("somebody else changes {0:?} again and again: wanted {1}")]
    Contested(String, String, Duration),

    /// The API server did not complete it in the time that it was given, which is longer than a webhook takes by default. It may
    /// have been done.
    #[error("{0}")]
    TimedOut(String),

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

/// For a kind that has no errors of its own: `type Error = ApiError`.
impl Failure for ApiError {
    fn name(&self) -> &'static str {
        match self {
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
            Self::Rejected(_)
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
            Self::Conflict => Retry::Conflict,
            Self::NotLeading | Self::NamespaceTerminating => Retry::Quiet,
            Self::Contested(.., time) => Retry::After(*time),
            Self::Denied(_, time) | Self::Transient(_, time) => Retry::Backoff(*time),
            Self::Rejected(_) | Self::Foreign(..) | Self::Overruled(..) | Self::TimedOut(_) => {
                Retry::Backoff(Duration::ZERO)
            }
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
            // Webhooks say no by whatever code. Rights come back, and of those that were away for a moment nobody learns it.
            code if code == 403 || is_denied(&status.message) => {
                Self::Denied(brief(&without_ports(&status.message)), asks)
            }
            // 404: the object was deleted meanwhile.
            404 | 409 => Self::Conflict,
            400 | 405 | 413 | 415 | 422 => Self::Rejected(brief(&status.message)),
            504 if status.message.contains("request did not complete within") => {
                Self::TimedOut(SLOW.to_owned())
            }
            code => {
                let words = format!("the API server answers {code}: {}", brief(&status.message));
                Self::Transient(words, asks)
            }
        }
    }
}

/// What a write comes to that an admission webhook takes too long for: the API server's words name neither. The same words for
/// each of them, so that none of them is news.
const SLOW: &str = "the API server did not complete the write in the time that it had: an admission webhook that hangs is the \
                    usual cause, see the ValidatingWebhookConfigurations and MutatingWebhookConfigurations that cover the namespace";

/// What the API server says of a webhook that it cannot reach has the port of that attempt (`read tcp FROM->TO: …`), which would
/// make each of them news.
fn without_ports(message: &str) -> String {
    let words = message.split(' ');
    let words = words.map(|word| word.split_once("->").map_or(word, |(_, to)| to));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rows R4 and Q3: a webhook's no is one whatever its code, for the user to see; and whoever asks for time is given it.
    #[test]
    fn q3_time_that_is_asked_for_is_given_whoever_asks() {
        let denied = "admission webhook \"w.example\" denied the request: no";
        for (code, message, asks, is_denied) in [
            (429, denied, 7, true),
            (503, denied, 7, true),
            (429, denied, 0, true),
            (403, "no", 0, true),
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
