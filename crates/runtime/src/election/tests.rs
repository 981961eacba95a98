//! Tests of the election loop on paused time, against a fake API server with one Lease and injected failures.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unchecked_time_subtraction,
    reason = "a test fails by panicking, and shows what it has measured"
)]

mod fencing;
mod pace;
mod release;
mod vacant;

use super::{
    candidate::{Candidate, YIELD_DELAY},
    events::FINISH_TIMEOUT,
    fake::{FakeApi, Mood, Seen, Service, Verb},
    identity::{ElectionTarget, Identity},
    lease_guard::LeaseGuardLayer,
};
use crate::{
    client::fence::{eligibility::Eligibility, term::Term},
    config::{
        app::tests::{APP, HOLDER_KEY},
        clock::Clock,
        environment::Host,
        settings::LeaderElection,
    },
    telemetry::{
        health::{Health, Probe},
        metrics::Metrics,
    },
    testing::fixtures::logged,
};
use http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use opentelemetry_sdk::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, advance, sleep, timeout},
};
use tower::{ServiceExt as _, service_fn, util::BoxService};

const LEASE: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
const CALL: Duration = Duration::from_secs(5);
/// Maximum number of requests of one replica in a minute, for any response of the API server.
const PER_MINUTE: usize = 120;
/// Time for consecutive requests on a paused clock.
const SOON: Duration = Duration::from_millis(20);

struct Replica {
    health: Health,
    term: watch::Receiver<Option<Term>>,
    ability: watch::Sender<Eligibility>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

fn candidate(api: &FakeApi, name: &str, sender: watch::Sender<Option<Term>>) -> Candidate {
    candidate_at(api.service(), name, (LEASE, DEADLINE, RETRY), sender)
}

fn candidate_at(
    service: Service,
    name: &str,
    (lease_duration, renew_deadline, retry_period): (Duration, Duration, Duration),
    sender: watch::Sender<Option<Term>>,
) -> Candidate {
    let settings = LeaderElection {
        lease_duration,
        renew_deadline,
        retry_period,
        ..LeaderElection::new("l")
    };
    candidate_of(service, name, &settings, sender)
}

fn candidate_of(
    service: Service,
    name: &str,
    settings: &LeaderElection,
    sender: watch::Sender<Option<Term>>,
) -> Candidate {
    let metrics = Metrics::disconnected(&APP);
    candidate_with(service, name, settings, sender, &metrics)
}

fn candidate_with(
    service: Service,
    name: &str,
    settings: &LeaderElection,
    sender: watch::Sender<Option<Term>>,
    metrics: &Metrics,
) -> Candidate {
    let start = Instant::now();
    let clock = Clock::from_fn(move || start.elapsed());
    let mut host = Host::for_tests([]);
    host.clock = clock;
    let guard = LeaseGuardLayer::new(
        host.clone(),
        settings.call_timeout(),
        settings.lease_duration,
    );
    let client = ClientBuilder::new(service, "n").with_layer(&guard).build();
    let target = ElectionTarget {
        identity: Identity::new(name, "1").unwrap(),
        namespace: Some("n".into()),
        installation: String::new(),
    };
    Candidate::new(host, settings, target, client, guard, sender, metrics).unwrap()
}

impl Replica {
    fn run(api: &FakeApi, name: &str) -> Self {
        Self::able(api, name, Eligibility::Full)
    }

    fn able(api: &FakeApi, name: &str, ability: Eligibility) -> Self {
        Self::able_at(api.service(), name, (LEASE, DEADLINE, RETRY), ability)
    }

    /// Runs a replica. `happens` runs before each of its requests arrives, and may take a while.
    fn behind<F>(
        api: &FakeApi,
        name: &str,
        times: (Duration, Duration, Duration),
        happens: impl Fn(&FakeApi, &Request<Body>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let api = api.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (happened, api) = (happens(&api, &request), api.clone());
            async move {
                happened.await;
                api.service().oneshot(request).await
            }
        });
        Self::able_at(BoxService::new(service), name, times, Eligibility::Full)
    }

    fn able_at(
        service: Service,
        name: &str,
        times: (Duration, Duration, Duration),
        ability: Eligibility,
    ) -> Self {
        let (sender, term) = watch::channel(None);
        let (stop, stopped) = oneshot::channel::<()>();
        let candidate = candidate_at(service, name, times, sender);
        let (ability, able) = watch::channel(ability);
        let mut health = Health::new(&Host::of_this_process());
        let heartbeat = health.heartbeat("leader-election");
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            candidate.run(&heartbeat, able, stopped).await;
        });
        Self {
            health,
            term,
            ability,
            stop: Some(stop),
            task,
        }
    }

    /// Waits until this replica leads, or does not, and returns the elapsed time.
    async fn leads(&mut self, leads: bool, within: Duration) -> Duration {
        let start = Instant::now();
        let wait = self.term.wait_for(|term| term.is_some() == leads);
        timeout(within, wait)
            .await
            .unwrap_or_else(|_| panic!("leads == {leads}: not within {within:?}"))
            .unwrap();
        start.elapsed()
    }

    /// Returns the failed liveness checks after an hour.
    async fn failing(&self) -> Vec<String> {
        let _ = timeout(Duration::from_hours(1), self.health.watch()).await;
        self.health.failing(Probe::Live)
    }

    fn id(&self) -> Option<u64> {
        self.term.borrow().as_ref().map(Term::id)
    }

    fn is_open(&self) -> bool {
        let term = self.term.borrow();
        term.as_ref().is_some_and(|term| term.remaining().is_some())
    }

    fn crash(self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_immediately() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let api = FakeApi::new();
        api.put(&json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": renewed, "renewTime": renewed,
        }));
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        assert_eq!(api.holder(), "a_1");
        let left = a.term.borrow().as_ref().and_then(Term::remaining).unwrap();
        assert!(left <= DEADLINE, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_election_loop_stays_alive_during_api_server_errors() {
    let api = FakeApi::released();
    let mut leader = Replica::run(&api, "a");
    leader.leads(true, SOON).await;
    let standby = Replica::run(&api, "b");
    for mood in [Mood::Serves, Mood::Hangs, Mood::Fails(500)] {
        api.mood(mood);
        assert_eq!(leader.failing().await, [""; 0]);
        assert_eq!(standby.failing().await, [""; 0]);
    }
    standby.task.abort();
    let failing = standby.failing().await.concat();
    assert!(
        failing.starts_with("leader-election: dead since "),
        "{failing}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_stuck_fails_liveness() {
    let api = FakeApi::released();
    let mut health = Health::new(&Host::of_this_process());
    let heartbeat = health.heartbeat("leader-election");
    let candidate = candidate(&api, "a", watch::channel(None).0);
    let mut running = std::pin::pin!(candidate.run(
        &heartbeat,
        watch::channel(Eligibility::Full).1,
        std::future::pending()
    ));
    assert!(timeout(SOON, &mut running).await.is_err());
    // The loop is not polled from here.
    let _ = timeout(Duration::from_mins(1), health.watch()).await;
    let failing = health.failing(Probe::Live).concat();
    assert!(
        failing.starts_with("leader-election: running the election loop since "),
        "{failing}"
    );
    assert!(timeout(LEASE, &mut running).await.is_err());
    let _ = timeout(SOON, health.watch()).await;
    assert_eq!(health.failing(Probe::Live), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_the_same_term_with_a_later_deadline() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    for _ in 0..20 {
        a.term.changed().await.unwrap();
        let term = a.term.borrow().clone().unwrap();
        assert_eq!(term.id(), 1);
        assert!(term.remaining().unwrap() > DEADLINE - SOON);
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_leader_that_cannot_renew_stops_at_its_deadline_and_runs_again() {
    for mood in [
        Mood::Hangs,
        Mood::Fails(500),
        Mood::Fails(409),
        Mood::Fails(403),
    ] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        api.mood(mood);
        let led = a.leads(false, LEASE).await;
        assert!(led <= DEADLINE && led > DEADLINE - RETRY * 2, "{led:?}");
        advance(LEASE * 4).await;
        assert_eq!(a.id(), None);
        api.mood(Mood::Serves);
        a.leads(true, CALL + RETRY * 2).await;
        assert_eq!(a.id(), Some(2), "another term");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_costs_its_lease_and_no_more() {
    let api = FakeApi::released();
    let (mut a, mut b) = (Replica::run(&api, "a"), Replica::run(&api, "b"));
    tokio::select! {
        _ = a.leads(true, SOON) => {}
        _ = b.leads(true, SOON) => std::mem::swap(&mut a, &mut b),
    }
    sleep(Duration::from_mins(1)).await;
    a.crash();
    let waited = b.leads(true, LEASE * 2).await;
    assert!(
        waited > LEASE - RETRY * 2 && waited < LEASE + RETRY * 2,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_same_identity_retakes_its_lease_immediately() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    a.crash();
    advance(RETRY).await;
    Replica::run(&api, "a").leads(true, SOON).await;
}

#[tokio::test(start_paused = true)]
async fn h2_a_leader_that_sees_another_holder_stops_immediately() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    api.put(&json!({"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 9}));
    a.leads(false, RETRY * 2).await;
    assert_eq!(api.holder(), "b");
}

/// An outage is logged once, and then each minute. Later lines contain its duration. If only writes hang, the line suggests the
/// cause.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_written_is_logged_each_minute() {
    let (lines, _guard) = logged(tracing::Level::WARN);
    let api = FakeApi::released();
    api.mood_of(Verb::Patch, Mood::Hangs);
    let a = Replica::run(&api, "a");
    sleep(Duration::from_secs(310)).await;
    let text = String::from_utf8(lines.lock().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("cannot acquire or renew the lease"))
        .collect();
    assert!((5..=6).contains(&lines.len()), "{text}");
    assert!(lines.iter().all(|line| line.contains("webhook")), "{text}");
    assert!(lines[4].contains("lease for 4m"), "{text}");
    a.crash();
}
