//! What the `Status` of a refusal tells apart.

use std::time::Duration;

use kube::core::Status;

/// The longest that the API server, or what is in front of it, is given by its own wish. It may be well sooner.
const LONGEST_WISH: Duration = Duration::from_secs(30);

/// As API servers have it of a policy, and of a webhook, whatever the code: there is no field that says so of both.
pub(crate) fn is_denied(message: &str) -> bool {
    message.contains(" denied request: ")
        || message.contains(" denied the request")
        || message.starts_with("Internal error occurred: failed calling webhook ")
}

/// As API servers have it of whoever lacks a right, and of a policy, a webhook or a quota otherwise: `… is forbidden: User "…" cannot
/// patch resource "…" …`, or, by the plugin `OwnerReferencesPermissionEnforcement`, `… is forbidden: cannot set …`.
pub(crate) fn lacks_right(message: &str) -> bool {
    let refusal = message.split_once(" is forbidden: ");
    let lacks = |words: &str| {
        words.starts_with("User ") && words.contains(" cannot ") || words.starts_with("cannot set ")
    };
    refusal.is_some_and(|(_, words)| lacks(words)) && !is_denied(message)
}

/// For how long the API server asks not to be asked again, if this is such an answer; never for long.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    let asks = matches!(status.code, 429 | 503) && seconds > 0;
    asks.then(|| Duration::from_secs(seconds.into()).min(LONGEST_WISH))
}

/// Whether the namespace is being deleted, or gone.
pub(crate) fn is_terminating(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| {
        details.kind == "namespaces"
            || details
                .causes
                .iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
    })
}
