//! The start and stop of one replica.

use std::convert::Infallible;

use futures::FutureExt as _;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tracing::info;

use crate::{
    client::{self, cluster::Cluster, fence::FenceLayer},
    config::{app::App, build_info, environment::Host, settings::Config},
    controller::{Controllers, TaskExited, builder::Builder},
    election::{self, identity::ElectionTarget, lease_guard::SeenLease, run::Election},
    telemetry::{
        self,
        health::Health,
        metrics::Metrics,
        server::Server,
        state::{Fence, State, seconds},
    },
};

/// An error that ended [`run`] before its shutdown was requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration of the client is missing or invalid.
    #[error(transparent)]
    Client(#[from] client::error::Error),
    /// The HTTP server for health and metrics cannot start.
    #[error(transparent)]
    Http(#[from] telemetry::server::Error),
    /// The election cannot start: it has no identity or no client.
    #[error(transparent)]
    Election(#[from] election::error::Error),
    /// A task of the controller exited unexpectedly.
    #[error(transparent)]
    TaskExited(#[from] TaskExited),
}

impl Error {
    /// Whether the cause is the configuration rather than the cluster or the program.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        !matches!(self, Self::TaskExited(_))
    }
}

/// Runs one replica until `shutdown` resolves. `build` declares the controllers.
///
/// The order of the stop keeps two leaders from overlapping: no new work, running work drained, fence closed, Lease released.
///
/// # Errors
/// See [`Error`]. An unreachable API server is not an error: the replica retries.
pub async fn run(
    host: &Host,
    mut cluster: Cluster,
    config: Config,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
    build: impl FnOnce(&mut Builder),
) -> Result<(), Error> {
    let app = metrics.app();
    let server = Server::bind(app, &config.http).await?;
    let election = &config.leader_election;
    let (namespace, installation) = (cluster.pod_namespace.take(), &config.installation);
    let target = ElectionTarget::of(app, host, election, installation, namespace)?;
    let _claim = target.claim(host, election)?;
    let identity = &target.identity;
    let commit = build_info::commit().unwrap_or("unknown");
    let installation = (!config.installation.is_empty()).then_some(&*config.installation);
    info!(server = %cluster.server, version = app.version, commit, %identity, installation, "starting");
    let (publish, term) = watch::channel(None);
    let fence = FenceLayer::new(term.clone(), &metrics);
    let (client, api_server, lease) = cluster.fenced(&fence, &metrics);
    let mut health = Health::new(host);
    let name = identity.to_string();
    let mut controllers =
        Controllers::new(host, &client, &config, name, &metrics, &mut health, build);
    let seen = SeenLease::default();
    let server = if config.http.debug_state {
        let replica = state(host, &config, &target, app, &seen, fence, &controllers);
        server.with_state(replica, controllers.object_state())
    } else {
        server
    };
    let heartbeat = health.heartbeat("leader-election");
    let shutdown = health.until(shutdown);
    let serving = server.serve(client, health, metrics.clone());

    let (drained, stop) = oneshot::channel::<Infallible>();
    let election = Election {
        server: api_server,
        transport: lease,
        host: host.clone(),
        settings: config.leader_election,
        target,
        metrics,
        seen,
        ability: controllers.ability(),
    };
    let mut election = tokio::spawn(election::run::run(
        election,
        publish,
        heartbeat,
        stop.map(drop),
    ));
    let ended = tokio::select! {
        biased;
        ended = controllers.run(term, shutdown) => ended.map_err(Error::TaskExited),
        () = serving => Err(TaskExited("the HTTP server".into()).into()),
        ended = &mut election => {
            return Err(match ended {
                Ok(Err(error)) => error.into(),
                Ok(Ok(())) | Err(_) => TaskExited("the election".into()).into(),
            });
        }
    };
    drop(drained);
    let (released, ()) = tokio::join!(election, controllers.finish());
    ended?;
    released.map_err(|_| TaskExited("the election".into()))??;
    info!("stopped");
    Ok(())
}

/// Returns a function that reports the current state of this replica.
fn state(
    host: &Host,
    config: &Config,
    target: &ElectionTarget,
    app: &'static App,
    seen: &SeenLease,
    fence: FenceLayer,
    controllers: &Controllers,
) -> impl Fn() -> State + Send + Sync + use<> {
    let (began, clock, seen) = (Instant::now(), host.clock.clone(), seen.clone());
    let identity = target.identity.to_string();
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let lease = format!("{namespace}/{}", config.leader_election.lease_name);
    let (installation, work) = (config.installation.clone(), controllers.state());
    move || {
        let (caches, mut controllers) = work();
        let queue = controllers.first().and_then(|first| first.queue.clone());
        if controllers.len() == 1 {
            controllers.clear();
        }
        let (term, fence) = fence.state();
        State {
            identity: identity.clone(),
            version: app.version.to_owned(),
            installation: installation.clone(),
            commit: build_info::commit().map(str::to_owned),
            uptime_seconds: seconds(began.elapsed()),
            caches,
            lease: seen.state(&lease, clock.now()),
            term,
            fence: Fence {
                record: seen.record(),
                ..fence
            },
            queue,
            controllers,
        }
    }
}
