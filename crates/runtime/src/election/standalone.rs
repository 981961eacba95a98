//! The election and the fence for another controller, such as kube's.

use kube::Client;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    error::Error,
    identity::ElectionTarget,
    lease_guard::SeenLease,
    run::{Election, run},
};
use crate::{
    client::{
        cluster::Cluster,
        fence::{FenceLayer, eligibility::Eligibility, term::Term},
    },
    config::{environment::Host, settings::LeaderElection},
    telemetry::{health::Heartbeat, metrics::Metrics},
};

/// The election and the fenced client, for another controller than the runtime's.
pub struct Candidate {
    /// A client that reads at any time, but [writes](crate::client::fence) only while this replica leads.
    pub client: Client,
    /// The fence of `client`. [Wrap](FenceLayer::wrap) another client in it if `client` cannot be used.
    pub fence: FenceLayer,
    /// The term, while this replica leads. Run the controller during a term: without one, its writes fail.
    pub term: watch::Receiver<Option<Term>>,
    /// The election task. It ends after the release of the Lease. If it ends earlier, exit the process.
    pub election: JoinHandle<Result<(), Error>>,
}

/// Starts the election and the fence of the runtime for another controller, such as kube's.
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
    settings: LeaderElection,
    metrics: Metrics,
    drained: impl Future<Output = ()> + Send + 'static,
) -> Result<Candidate, Error> {
    settings.check().map_err(Error::Settings)?;
    let pod_namespace = cluster.pod_namespace.take();
    let target = ElectionTarget::of(metrics.app(), host, &settings, "", pod_namespace)?;
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
        let ended = run(election, publish, Heartbeat::default(), drained).await;
        drop(claim);
        ended
    };
    Ok(Candidate {
        client,
        fence,
        term,
        election: tokio::spawn(election),
    })
}
