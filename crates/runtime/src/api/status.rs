//! Classification of rejected requests by their `Status`.

use std::time::Duration;

use kube::core::Status;

/// Maximum `Retry-After` that is honored. The API server, or a proxy in front of it, may be ready much sooner.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Returns whether the message is from an admission policy or a webhook, or about a webhook that could not be called. The code
/// varies, and no field of the `Status` shows all of these.
pub(crate) fn is_denied(message: &str) -> bool {
    message.contains(" denied request: ")
        || message.contains(" denied the request")
        || message.starts_with("Internal error occurred: failed calling webhook ")
}

/// Returns whether the API server failed during admission or processing of the write. An example is a webhook's patch that does not
/// apply to the object. Such an error may be permanent, so it is reported like a denial. Errors of the storage have other
/// messages.
pub(crate) fn is_internal(status: &Status) -> bool {
    status.code == 500 && status.message.starts_with("Internal error occurred: ")
}

/// Returns whether the caller lacks a permission: `… is forbidden: User "…" cannot patch resource "…" …`, or, from the plugin
/// `OwnerReferencesPermissionEnforcement`, `… is forbidden: cannot set …`. A policy, a webhook or a quota causes other
/// messages.
pub(crate) fn lacks_right(message: &str) -> bool {
    let refusal = message.split_once(" is forbidden: ");
    let lacks = |words: &str| {
        words.starts_with("User ") && words.contains(" cannot ") || words.starts_with("cannot set ")
    };
    refusal.is_some_and(|(_, words)| lacks(words)) && !is_denied(message)
}

/// Returns the `Retry-After` of a response with 429 or 503, at most 30 s.
pub(crate) fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    let is_requested = matches!(status.code, 429 | 503) && seconds > 0;
    is_requested.then(|| Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
}

/// Returns whether the API server does not serve the resource type: its CRD is missing or terminating. The response about a
/// missing object contains the object's name.
///
/// The API server rejects a create while it deletes the objects of a terminating CRD: `forbidCreateAdmission` in
/// `customresource_handler.go` of `k8s.io/apiextensions-apiserver`. Older versions respond with 405 instead of 403.
pub(crate) fn is_not_installed(status: &Status) -> bool {
    let name = status.details.as_ref().map_or("", |details| &details.name);
    match status.code {
        404 => name.is_empty(),
        403 | 405 => status
            .message
            .ends_with("create not allowed while custom resource definition is terminating"),
        _ => false,
    }
}

/// Returns whether the namespace is terminating or deleted.
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
