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
mod dns;
pub mod election;
#[cfg(test)]
mod loops;
pub mod telemetry;
pub mod version;

use std::convert::Infallible;

use futures::FutureExt as _;
use tokio::sync::{oneshot, watch};
use tracing::info;

pub use config::Config;
use controller::{Controller, Died};
use election::{Election, Identity};
use telemetry::{Metrics, health::Health, http::Server};

/// Why [`run`] came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the cluster is configured, or it cannot be read.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// Health or metrics cannot be served as they are asked for.
    #[error(transparent)]
    Http(#[from] telemetry::http::Error),
    /// No election can be held: no identity, or no client.
    #[error(transparent)]
    Election(#[from] election::Error),
    /// A part of the controller ended that never should.
    #[error(transparent)]
    Died(#[from] Died),
}

impl Error {
    /// Whether the operator's settings are at fault rather than the cluster or the program.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        !matches!(self, Self::Died(_))
    }
}

/// Runs one replica until `shutdown` resolves, and then ends in the order that lets no two leaders overlap
/// (row P2): no new work, running work drained, fence shut, Lease released.
///
/// # Errors
/// See [`Error`]. An API server that cannot be reached is none: that is waited for.
pub async fn run(
    mut config: Config,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let kube = client::config(&config).await?;
    let server = Server::bind(&config.http).await?;
    let identity = Identity::from_env()?;
    let mut _claim = None;
    if config.leader_election.enabled {
        let named = config.leader_election.lease_namespace.take();
        let namespace = named
            .or_else(|| election::pod_namespace(client::is_pods_own(&config)))
            .ok_or(election::Error::Namespace)?;
        let lease = &config.leader_election.lease_name;
        _claim = Some(identity.claim(&namespace, lease)?);
        config.leader_election.lease_namespace = Some(namespace);
    }
    let commit = version::commit().unwrap_or("unknown");
    info!(server = %kube.cluster_url, version = env!("CARGO_PKG_VERSION"), commit, %identity, "starting");
    let (publish, term) = watch::channel(None);
    let client = client::fenced(&kube, &config.leader_election, term.clone(), &metrics)?;
    let mut health = Health::new();
    let name = identity.to_string();
    let mut controller = Controller::new(&client, &config, name, &metrics, &mut health);
    let pulse = health.pulse("leader-election");
    let shutdown = health.until(shutdown);
    let serving = server.serve(client, health, metrics.clone());

    let (drained, stop) = oneshot::channel::<Infallible>();
    let election = Election {
        kube,
        settings: config.leader_election,
        identity,
        metrics,
        ability: controller.ability(),
    };
    let mut election = tokio::spawn(election::run(election, publish, pulse, stop.map(drop)));
    let ended = tokio::select! {
        ended = controller.run(term, shutdown) => ended.map_err(Error::Died),
        () = serving => Err(Died("the HTTP server").into()),
        ended = &mut election => {
            return Err(match ended {
                Ok(Err(error)) => error.into(),
                Ok(Ok(())) | Err(_) => Died("the election").into(),
            });
        }
    };
    drop(drained);
    let (released, ()) = tokio::join!(election, controller.finish());
    ended?;
    released.map_err(|_| Died("the election"))??;
    info!("stopped");
    Ok(())
}
