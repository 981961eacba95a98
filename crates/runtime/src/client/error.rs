//! Errors of the connection to the cluster.

use super::exec;
#[cfg(feature = "operator")]
use super::kubeconfig;
use crate::config::tls;

/// Reason why the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be read or is invalid.
    #[cfg(feature = "operator")]
    #[error("kubeconfig {from}: {error}")]
    Kubeconfig {
        /// Path of the file, with `$KUBECONFIG` if the path comes from there.
        from: String,
        /// The cause.
        error: kubeconfig::Error,
    },
    /// Not in a pod, `$KUBECONFIG` is not set, and `~/.kube/config` cannot be used.
    #[cfg(feature = "operator")]
    #[error(
        "no cluster: not in a pod, $KUBECONFIG is not set, and ~/.kube/config cannot be read ({0}); specify one with \
         --kubeconfig or --master"
    )]
    NoCluster(kubeconfig::Error),
    /// The kubeconfig specifies a proxy. A proxy may forward a write after the end of the term, when another replica may lead.
    #[error("the kubeconfig specifies the proxy {0} (proxy-url): proxies are not supported")]
    Proxy(http::Uri),
    /// The service account of this pod cannot be used.
    #[cfg(feature = "operator")]
    #[error("in-cluster configuration: {0}")]
    InCluster(String),
    /// Certificates or keys cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] tls::Error),
    /// The kubeconfig's exec plugin returned no credentials.
    #[error(transparent)]
    Exec(#[from] exec::Error),
    /// kube cannot create a client from the other credentials.
    #[error("cannot create a client from the cluster configuration: {0}")]
    Client(#[from] kube::Error),
}
