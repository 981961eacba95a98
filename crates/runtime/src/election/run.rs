//! Who may act: the loop around `kube-leader-election` that publishes this replica's term, `Option<Term>`.
//!
//! [`decide`](super::decide) says what to do next and knows no I/O; [`lease_guard`] makes what the crate sends and believes safe; this
//! module does what was decided. The Lease is held at most until a deadline that lies well before anybody else may take
//! it, and the fence keeps the controller's writes within it.

use kube::client::ClientBuilder;
use tokio::sync::watch;

use super::{
    alone,
    candidate::Candidate,
    error::Error,
    identity::Identity,
    lease_guard::{self, LeaseGuardLayer, SeenLease},
};
use crate::{
    client::{
        fence::{ability::Ability, term::Term},
        instrumented::RequestLayer,
        transport::Transport,
    },
    config::{environment::Host, settings::LeaderElection},
    telemetry::{health::Heartbeat, metrics::Metrics},
};

/// What an election needs.
pub struct Election {
    /// The API server's address, for metrics and traces.
    pub server: http::Uri,
    /// The way there, without retries ([`lease_transport`](crate::client::cluster::lease_transport)).
    pub transport: Transport,
    /// Where the time and chance come from: among them the clock of its deadlines.
    pub host: Host,
    /// The election's configuration.
    pub settings: LeaderElection,
    /// Who runs for leader.
    pub identity: Identity,
    /// Where it is counted.
    pub metrics: Metrics,
    /// Where what is seen of the Lease can be looked at.
    pub seen: SeenLease,
    /// How much of its work this replica can do. A leader says that it can do none once its work is drained, and then
    /// lets the Lease go.
    pub ability: watch::Receiver<Ability>,
}

/// Runs for leader until `stop`, publishes each term in `term`, `None` between them, and has `heartbeat` show that the
/// loop turns.
///
/// A lost term is not the end: this replica goes on as a candidate. `stop` is to resolve once the work is drained: then the
/// term ends, and after that the Lease is released, so that the next leader never overlaps. That takes bounded time.
///
/// # Errors
/// [`Error::Namespace`] if the Lease's is not configured. An API server that is down or refuses is no error: the election
/// goes on asking.
pub async fn run(
    Election {
        server,
        transport,
        host,
        settings,
        identity,
        metrics,
        seen,
        ability,
    }: Election,
    term: watch::Sender<Option<Term>>,
    heartbeat: Heartbeat,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    if !settings.enabled {
        let client = ClientBuilder::new(transport, "default")
            .with_layer(
                &RequestLayer::new(&server, &metrics, lease_guard::failed_by).within_spans(),
            )
            .build();
        alone::run(host, &settings, &identity, &client, &term, &metrics, stop).await;
        return Ok(());
    }
    let call = settings.call_timeout();
    let guard = LeaseGuardLayer::new(host.clone(), call, settings.lease_duration).seeing(seen);
    let client = ClientBuilder::new(transport, "default")
        .with_layer(&guard)
        .with_layer(&RequestLayer::new(&server, &metrics, lease_guard::failed_by).within_spans())
        .build();
    Candidate::new(host, &settings, identity, client, guard, term, &metrics)?
        .run(&heartbeat, ability, stop)
        .await;
    Ok(())
}
