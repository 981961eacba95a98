//! Client of the API server: configuration, credentials, transport and the fence that all writes pass.

pub(crate) mod cluster;
#[cfg(feature = "operator")]
pub(crate) mod context;
mod credentials;
pub(crate) mod error;
pub(crate) mod exec;
pub(crate) mod fence;
pub(crate) mod instrumented;
#[cfg(feature = "operator")]
mod kubeconfig;
pub(crate) mod middleware;
mod timeouts;
pub(crate) mod tls;
pub(crate) mod token_file;
pub(crate) mod transport;
pub(crate) mod warnings;

#[cfg(feature = "operator")]
pub use self::cluster::Cluster;
pub use self::error::Error;
