//! Who may act: the loop around `kube-leader-election` that publishes this replica's term, `Option<Term>`.
//!
//! [`decide`] says what to do next and knows no I/O; [`lease_guard`] makes what the crate sends and believes safe; this
//! module does what was decided. The Lease is held at most until a deadline that lies well before anybody else may take
//! it, and [`fence`] keeps the controller's writes within it.

mod alone;
mod attempt;
mod candidate;
mod cause;
mod counts;
pub mod decide;
mod error;
#[cfg(test)]
mod fake;
pub mod fence;
mod fencing_record;
mod identity;
pub mod lease_guard;
mod lease_recorder;
mod lease_watch;
mod observed;
mod term;
#[cfg(test)]
mod tests;
mod writes;

pub use crate::clock::Clock;
pub use candidate::YIELD_DELAY;
pub use decide::Ability;
pub use error::Error;
pub(crate) use fencing_record::{RecordIs, account_key, holder_key};
pub use identity::Identity;
pub(crate) use identity::pod_namespace;
pub use lease_guard::SeenLease;
pub use term::Term;

use crate::{
    Host,
    config::LeaderElection,
    telemetry::{
        Metrics,
        health::Heartbeat,
        request::{FailedBy, RequestLayer},
    },
    transport::Transport,
};
use candidate::Candidate;
use kube::client::ClientBuilder;
use lease_guard::LeaseGuardLayer;
use tokio::sync::watch;
use tower::BoxError;

/// What an election needs.
pub struct Election {
    /// The API server's address, for metrics and traces.
    pub server: http::Uri,
    /// The way there, without retries ([`lease_transport`](crate::client::lease_transport)).
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
            .with_layer(&RequestLayer::new(&server, &metrics, failed_by).within_spans())
            .build();
        alone::run(host, &settings, &identity, &client, &term, &metrics, stop).await;
        return Ok(());
    }
    let call = settings.call_timeout();
    let guard = LeaseGuardLayer::new(host.clone(), call, settings.lease_duration).seeing(seen);
    let client = ClientBuilder::new(transport, "default")
        .with_layer(&guard)
        .with_layer(&RequestLayer::new(&server, &metrics, failed_by).within_spans())
        .build();
    Candidate::new(host, &settings, identity, client, guard, term, &metrics)?
        .run(&heartbeat, ability, stop)
        .await;
    Ok(())
}

/// What kind of failure it is that no answer came of, for [`RequestLayer`].
#[must_use]
pub fn failed_by(error: &BoxError) -> FailedBy {
    if error.is::<fence::Refused>() {
        return FailedBy::Layer("fence");
    }
    if error.is::<fence::TimedOut>() {
        return FailedBy::Timeout;
    }
    match error.downcast_ref() {
        Some(lease_guard::Error::TimedOut(_)) => FailedBy::Timeout,
        Some(_) => FailedBy::Layer("lease_guard"),
        None => FailedBy::Connection,
    }
}
