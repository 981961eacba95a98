//! Messages for failed requests of the election.

use kube::core::Status;
use kube_leader_election::Error as LockError;

use super::lease_guard;
use crate::api::failure::with_causes;

/// Returns the message for an error of the lock, without kube's debug output.
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

/// Returns whether another replica won a race: its write caused a conflict, or the response is older than the watch.
pub fn is_rivalry(error: &LockError) -> bool {
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
pub fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        kube::Error::Service(error) => with_causes(&**error),
        other => other.to_string(),
    }
}

/// Returns the API server's message, with a hint for 401 and 403.
fn refusal(status: &Status) -> String {
    let hint = match status.code {
        401 => ": check the kubeconfig or the service account's token",
        403 => ": allow get, watch, create and patch of leases, as the Role in deploy/base does",
        _ => "",
    };
    format!("{}: {}{hint}", status.reason, status.message)
}
