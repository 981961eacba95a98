//! What the `Status` of a refusal tells apart.

use kube::core::Status;

/// As API servers have it of a policy, and of a webhook, whatever the code: there is no field that says so of both.
pub(crate) fn is_denied(message: &str) -> bool {
    message.contains(" denied request: ")
        || message.contains(" denied the request")
        || message.starts_with("Internal error occurred: failed calling webhook ")
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
