//! A replica that stands in an election over a transport that a test has made, on the test's clock.

use super::*;
use crate::client::Stack;
use kube::client::ClientBuilder;
use tokio::time::Instant;

/// A clock that stands still with tokio's.
pub(crate) fn clock() -> Clock {
    let start = Instant::now();
    Clock::from_fn(move || start.elapsed())
}

/// As [`run`], but through `service`, and for ever.
pub(crate) async fn stand(
    service: Stack,
    settings: &LeaderElection,
    identity: Identity,
    term: watch::Sender<Option<Term>>,
    pulse: &Pulse,
    ability: watch::Receiver<Ability>,
) {
    let clock = clock();
    let guard = LeaseGuardLayer::new(
        clock.clone(),
        call_timeout(settings),
        settings.lease_duration,
    );
    let client = ClientBuilder::new(service, "n").with_layer(&guard).build();
    let counts = Counts::new(&Metrics::default(), &settings.lease_name);
    let standing = Standing::new(clock, settings, identity, client, guard, term, counts);
    let standing = standing.expect("a Lease with a namespace");
    standing.run(pulse, ability, std::future::pending()).await;
}
