//! The order of start and stop of one replica.

use std::convert::Infallible;

use futures::FutureExt as _;
use tokio::sync::{oneshot, watch};
use tracing::info;

use crate::{
    Builder, Config, Host, Reconciler,
    client::{self, Cluster},
    controller::{Controller, Died},
    election::{self, Election, Identity},
    telemetry::{self, Metrics, health::Health, http::Server},
    version,
};

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
/// (row P2): no new work, running work drained, fence shut, Lease released. `build` declares what is watched.
///
/// # Errors
/// See [`Error`]. An API server that cannot be reached is none: that is waited for.
pub async fn run<R: Reconciler>(
    host: &Host,
    cluster: Cluster,
    mut config: Config,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
    build: impl FnOnce(&mut Builder<R::Primary>) -> R,
) -> Result<(), Error> {
    let app = metrics.app();
    let server = Server::bind(app, &config.http).await?;
    let identity = Identity::of(host)?;
    let mut _claim = None;
    if config.leader_election.enabled {
        let named = config.leader_election.lease_namespace.take();
        let namespace = named
            .or(cluster.pod_namespace)
            .ok_or_else(|| election::Error::Namespace(app.env_prefix()))?;
        let lease = &config.leader_election.lease_name;
        _claim = Some(identity.claim(&namespace, lease)?);
        config.leader_election.lease_namespace = Some(namespace);
    }
    let commit = version::commit().unwrap_or("unknown");
    info!(server = %cluster.server, version = app.version, commit, %identity, "starting");
    let (publish, term) = watch::channel(None);
    let client = client::fenced_over(
        cluster.requests,
        &cluster.server,
        cluster.namespace,
        term.clone(),
        &metrics,
    );
    let mut health = Health::new(host);
    let name = identity.to_string();
    let mut controller =
        Controller::new(host, &client, &config, name, &metrics, &mut health, build);
    let pulse = health.pulse("leader-election");
    let shutdown = health.until(shutdown);
    let serving = server.serve(client, health, metrics.clone());

    let (drained, stop) = oneshot::channel::<Infallible>();
    let election = Election {
        server: cluster.server,
        transport: cluster.lease,
        host: host.clone(),
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
