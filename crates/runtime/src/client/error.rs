//! Errors on the way to the cluster.

use super::{exec, kubeconfig, tls};

/// No way to the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be read or makes no sense.
    #[error("kubeconfig {from}: {error}")]
    Kubeconfig {
        /// Which file, and who named it.
        from: String,
        /// What is wrong with it.
        error: kubeconfig::Error,
    },
    /// Nothing says where the cluster is.
    #[error(
        "no cluster: not in a pod, $KUBECONFIG is not set, and ~/.kube/config cannot be read ({0}); \
         name one by --kubeconfig or --master"
    )]
    NoCluster(kubeconfig::Error),
    /// What a proxy forwards after the end of a term, it forwards for a replica that leads no more.
    #[error(
        "the kubeconfig names the proxy {0} (proxy-url): the API server is to be reached without one"
    )]
    Proxy(http::Uri),
    /// The service account of this pod cannot be used.
    #[error("in-cluster configuration: {0}")]
    InCluster(String),
    /// Certificates or keys cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] tls::Error),
    /// The kubeconfig's exec plugin has no credentials.
    #[error(transparent)]
    Exec(#[from] exec::Error),
    /// Other credentials make no client.
    #[error("no client can be made from this configuration of the cluster: {0}")]
    Client(#[from] kube::Error),
}
