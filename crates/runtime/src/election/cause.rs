//! Why a request of the election failed, in words.

use kube::core::Status;
use kube_leader_election::Error as LockError;

use super::lease_guard;
use crate::api::failure::with_causes;

/// What went wrong, without the debug output that kube adds to it.
pub fn of_lock(error: &LockError) -> String {
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

/// Whether another was faster (H1, H10): to write the Lease, or so that an answer is none of now (H5).
pub fn is_rivalry(error: &LockError) -> bool {
    match error {
        LockError::AcquireLease(kube::Error::Api(status))
        | LockError::CreateLease(kube::Error::Api(status)) => status.code == 409,
        LockError::Kube(kube::Error::Service(error)) => {
            matches!(error.downcast_ref(), Some(lease_guard::Error::Overtaken))
        }
        _ => false,
    }
}

/// The same of a request without the crate.
pub fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        kube::Error::Service(error) => with_causes(&**error),
        other => other.to_string(),
    }
}

/// The API server's words, and what to do where that is known.
fn refusal(status: &Status) -> String {
    let hint = match status.code {
        401 => ": check the kubeconfig or the service account's token",
        403 => ": allow get, watch, create and patch of leases, as the Role in deploy/base does",
        _ => "",
    };
    format!("{}: {}{hint}", status.reason, status.message)
}
