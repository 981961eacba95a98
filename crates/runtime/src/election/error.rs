//! Errors that prevent an election.

/// Reason why this replica cannot take part in an election.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The names do not form a valid identity.
    #[error(
        "no identity for the leader election: {0:?} is not 1 to 128 printable ASCII characters"
    )]
    Identity(String),
    /// A setting is out of range, or two settings contradict each other.
    #[error("invalid settings of the leader election: {0}")]
    Settings(String),
    /// The namespace of the Lease is unknown. Contains the prefix of the environment variables.
    #[error(
        "no namespace for the Lease, outside a pod: set leader_election.lease_namespace (--lease-namespace, \
         {0}LEADER_ELECTION__LEASE_NAMESPACE) to that of the other replicas, or \
         leader_election.enabled (--leader-election) to false for one replica alone"
    )]
    Namespace(String),
    /// The API server cannot be used.
    #[error(transparent)]
    Cluster(#[from] crate::client::error::Error),
    /// Another process runs under this identity, or the check for one failed.
    #[error(
        "another process uses the election identity {0}, or the check for one failed ({1}): set a different \
         leader_election.lease_name for each process of a pod"
    )]
    Claimed(String, #[source] std::io::Error),
}
