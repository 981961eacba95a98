//! Messages for failed requests of the election.

use kube::core::Status;
use kube_leader_election::Error as LockError;

use super::lease_guard;
use crate::api::{
    failure::with_causes,
    status::{is_denied, lacks_right},
};

/// Returns the message for an error of the lock, without kube's debug output.
pub(super) fn of_lock(error: &LockError) -> String {
    let cause = match error {
        LockError::ApiError { response } => return refusal(response),
        LockError::GetLease(cause)
        | LockError::CreateLease(cause)
        | LockError::AcquireLease(cause)
        | LockError::RenewLease(cause)
        | LockError::ReleaseLease(cause)
        | LockError::Kube(cause) => cause,
        other => return other.to_string(),
    };
    of_request(cause)
}

/// Returns whether another replica won a race: its write caused a conflict, or the response is older than the watch.
pub(super) fn is_rivalry(error: &LockError) -> bool {
    match error {
        LockError::AcquireLease(kube::Error::Api(status))
        | LockError::CreateLease(kube::Error::Api(status)) => status.code == 409,
        LockError::Kube(kube::Error::Service(error)) => {
            matches!(
                error.downcast_ref(),
                Some(lease_guard::Error::StaleResponse)
            )
        }
        _ => false,
    }
}

/// Returns the message for an error of a request that the lock did not send.
pub(super) fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        kube::Error::Service(error) => with_causes(&**error),
        other => other.to_string(),
    }
}

/// Returns the API server's message, with a hint for rejected credentials and missing permissions. Webhooks, policies and quotas
/// reject requests with the same codes.
fn refusal(status: &Status) -> String {
    let hint = match status.code {
        401 if !is_denied(&status.message) => {
            ": check the kubeconfig or the service account's token"
        }
        403 if lacks_right(&status.message) => {
            ": allow get, watch, create and patch of leases by a Role"
        }
        _ => "",
    };
    format!("{}: {}{hint}", status.reason, status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_permission_has_the_hint_of_one() {
        let hint = |code, message: &str| {
            let status = Status {
                code,
                ..Status::failure(message, "Forbidden")
            };
            let text = refusal(&status);
            text.strip_prefix(&format!("Forbidden: {message}"))
                .unwrap_or("another message")
                .to_owned()
        };
        let user =
            r#"leases.coordination.k8s.io "l" is forbidden: User "u" cannot get resource "leases""#;
        assert!(hint(403, user).starts_with(": allow get"));
        assert!(hint(401, "Unauthorized").starts_with(": check"));
        for (code, message) in [
            (
                403,
                r#"leases.coordination.k8s.io "l" is forbidden: exceeded quota: q, requested: count/leases=1"#,
            ),
            (
                403,
                r#"admission webhook "w.example" denied the request: no"#,
            ),
            (
                401,
                r#"admission webhook "w.example" denied the request: no"#,
            ),
            (
                403,
                r#"leases.coordination.k8s.io "l" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: User u cannot"#,
            ),
            (
                403,
                r#"leases.coordination.k8s.io "l" is forbidden: violates PodSecurity "restricted:latest""#,
            ),
            (
                403,
                r#"leases.coordination.k8s.io "l" is forbidden: unable to create new content in namespace n because it is being terminated"#,
            ),
        ] {
            assert_eq!(hint(code, message), "", "{message}");
        }
    }
}
