//! A leader-elected Kubernetes operator: each `Foo` gets a Deployment, kept right, with its status told.
//!
//! ```text
//!  config ─▶ telemetry ─▶ clients ─▶ caches (Foo, Deployment: warm in every replica)
//!                           │             │ changes
//!               lease client│             ▼
//!                           ▼           queue ─▶ workers ─▶ reconcile ─▶ fenced client ─▶ API server
//!                        election ──term──▶ fence ─────────────────────────┘
//! ```
//!
//! State flows one way. The term of leadership is one `watch` channel; nobody shares a lock. Three rooms,
//! one question each: who may act ([`election`]), what is to be done ([`controller`]), what can be seen
//! ([`telemetry`]).

pub mod api;
mod client;
pub mod config;
pub mod controller;
pub mod election;
pub mod telemetry;

use tokio::sync::watch;
use tracing::info;

pub use config::Config;
use controller::Controller;
use election::Term;

/// Why [`run`] came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the cluster is configured, or it cannot be read.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The address of `http.addr` cannot be listened on.
    #[error("http.addr: cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, std::io::Error),
    /// A part of the controller ended that never should.
    #[error(transparent)]
    Died(#[from] controller::Died),
}

impl Error {
    /// Whether the operator's settings are at fault rather than the cluster or the program.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Client(_) | Self::Listen(..))
    }
}

/// Runs one replica until `shutdown` resolves (row P2).
///
/// # Errors
/// See [`Error`]. An API server that cannot be reached is none: that is waited for.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let kube = client::config(&config).await?;
    info!(server = %kube.cluster_url, version = env!("CARGO_PKG_VERSION"), "starting");
    let (_term, term) = watch::channel(Some(Term::unlimited()));
    let client = client::fenced(kube, term.clone())?;
    let controller = Controller::new(&client, &config, "foo".to_owned());
    let ready = controller.ready();
    let http = match config.http.addr {
        Some(addr) => Some(
            telemetry::http::serve(addr, ready)
                .await
                .map_err(|e| Error::Listen(addr, e))?,
        ),
        None => None,
    };
    controller.run(term, shutdown).await?;
    info!("stopped");
    drop(http);
    Ok(())
}
