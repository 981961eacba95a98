//! The start and stop of one replica.

use std::convert::Infallible;

use futures::FutureExt as _;
use kube::Client;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tracing::info;

use crate::{
    client::{
        self,
        cluster::Cluster,
        fence::{FenceLayer, eligibility::Eligibility, term::Term},
    },
    config::{app::App, build_info, environment::Host, settings::Config},
    controller::{Controllers, TaskExited, builder::Builder},
    election::{self, identity::ElectionTarget, lease_guard::SeenLease, run::Election},
    telemetry::{
        self,
        health::{Health, Heartbeat},
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
    let target = ElectionTarget::of(app, host, &config, cluster.pod_namespace.take())?;
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

/// The election and the fenced client, for another controller than the runtime's.
pub struct Candidate {
    /// A client that reads at any time, but [writes](crate::client::fence) only while this replica leads.
    pub client: Client,
    /// The term, while this replica leads. Run the controller during a term: without one, its writes fail.
    pub term: watch::Receiver<Option<Term>>,
    /// The election task. It ends after the release of the Lease. If it ends earlier, exit the process.
    pub election: JoinHandle<Result<(), election::error::Error>>,
}

/// Starts the election and the fence of [`run`] for another controller, such as kube's.
///
/// Resolve `drained` when the controller has stopped: then the election releases the Lease.
///
/// Without a term, the fence passes these requests:
///
/// - `GET`, `HEAD` and `OPTIONS`. As a WebSocket, a `GET` also runs `exec`, `attach`, `portforward` and `proxy`, which act on
///   the processes of a pod;
/// - all requests for events, of both API groups;
/// - access reviews and token reviews, which store nothing.
///
/// A controller whose work consists of such requests must check `term` itself.
///
/// # Errors
/// See [`Error`].
pub fn candidate(
    host: &Host,
    mut cluster: Cluster,
    config: Config,
    metrics: Metrics,
    drained: impl Future<Output = ()> + Send + 'static,
) -> Result<Candidate, Error> {
    let pod_namespace = cluster.pod_namespace.take();
    let target = ElectionTarget::of(metrics.app(), host, &config, pod_namespace)?;
    let settings = config.leader_election;
    let claim = target.claim(host, &settings)?;
    let (publish, term) = watch::channel(None);
    let fence = FenceLayer::new(term.clone(), &metrics);
    let (client, server, transport) = cluster.fenced(&fence, &metrics);
    let election = Election {
        server,
        transport,
        host: host.clone(),
        settings,
        target,
        metrics,
        seen: SeenLease::default(),
        ability: watch::channel(Eligibility::Full).1,
    };
    let election = async move {
        let ended = election::run::run(election, publish, Heartbeat::default(), drained).await;
        drop(claim);
        ended
    };
    Ok(Candidate {
        client,
        term,
        election: tokio::spawn(election),
    })
}
