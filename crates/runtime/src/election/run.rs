//! The election: a loop around `kube-leader-election` that publishes this replica's term as `Option<Term>`.
//!
//! [`state_machine`](super::state_machine) chooses the next action without I/O. [`lease_guard`] makes the lock's requests and
//! responses safe. This module executes the actions. A term ends well before another replica may take the Lease, and the fence
//! keeps the controller's writes within the term.

use kube::client::ClientBuilder;
use tokio::sync::watch;

use super::{
    alone,
    candidate::Candidate,
    error::Error,
    identity::ElectionTarget,
    lease_guard::{self, LeaseGuardLayer, SeenLease},
};
use crate::{
    client::{
        fence::{eligibility::Eligibility, term::Term},
        instrumented::RequestLayer,
        transport::Transport,
    },
    config::{environment::Host, settings::LeaderElection},
    telemetry::{heartbeat::Heartbeat, metrics::Metrics},
};

/// Parameters of an election.
pub struct Election {
    /// The API server's address, for metrics and traces.
    pub server: http::Uri,
    /// Transport to the API server, without retries ([`lease_transport`](crate::client::cluster::lease_transport)).
    pub transport: Transport,
    /// Source of time and randomness, including the clock of the deadlines.
    pub host: Host,
    /// Configuration of the election.
    pub settings: LeaderElection,
    /// Lease of the election, and identity of this replica.
    pub target: ElectionTarget,
    /// Receives the metrics of the election.
    pub metrics: Metrics,
    /// Receives the observations of the Lease, for other readers.
    pub seen: SeenLease,
    /// How much of its work this replica can do. A leader that reports `Nothing` has drained its work, and then releases the
    /// Lease.
    pub ability: watch::Receiver<Eligibility>,
}

/// Runs for leader until `stop`. Publishes each term in `term`, and `None` between terms. `heartbeat` shows that the loop makes
/// progress.
///
/// After a lost term, this replica continues as a candidate. Resolve `stop` once the work is drained. Then the term ends, and
/// after it the Lease is released, so that terms never overlap. This takes bounded time.
///
/// # Errors
/// [`Error::Namespace`] if the namespace of the Lease is not configured. An unavailable API server or a rejected request is no
/// error: the election keeps trying.
pub async fn run(
    Election {
        server,
        transport,
        host,
        settings,
        target,
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
        alone::run(host, &settings, &target, &client, &term, &metrics, stop).await;
        return Ok(());
    }
    let call = settings.call_timeout();
    let guard = LeaseGuardLayer::new(host.clone(), call, settings.lease_duration).seeing(seen);
    let client = ClientBuilder::new(transport, "default")
        .with_layer(&guard)
        .with_layer(&RequestLayer::new(&server, &metrics, lease_guard::failed_by).within_spans())
        .build();
    Candidate::new(host, &settings, target, client, guard, term, &metrics)?
        .run(&heartbeat, ability, stop)
        .await;
    Ok(())
}
