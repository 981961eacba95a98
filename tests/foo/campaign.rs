//! Property test of the Foo spec, generated from `deploy/crd.yaml`. It covers each boundary value and each pair of old and
//! new spec.
//!
//! - A rejected spec names the field.
//! - An accepted spec leads to the matching Deployment or to a condition that explains why not.
//!
//! A second CRD version without a schema stores the rejected specs as well, as if they predated the schema. Other states are a
//! Foo whose spec cannot be fulfilled, a terminating Foo and a deleted Foo. Nothing creates pods: `actor` imitates the
//! Deployment controller and the garbage collector. `FOO_CONTROLLER_TEST_STEPS=10000` sets the number of random steps.

mod actor;
mod states;
mod values;
mod walker;

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream::iter};
use k8s_openapi::jiff::Timestamp;
use operator_simulation::draw::Draws;
use operator_testkit::cluster::{AuditEvent, Cluster, Options, eventually};
use states::{State, States, TAKEN};
use tokio::time::sleep;
use walker::{Step, Walker};

use crate::support::{
    controller::Controller,
    foos::{DEADLINE, all_requests, counts, subject, tries_allowed},
};

/// Default number of random steps.
const STEPS: usize = 400;
/// Maximum number of random steps without a wait.
const BURST: u64 = 6;
const SEED: u64 = 1;
/// Foos that change concurrently.
const AT_ONCE: usize = 16;
const RESYNC: Duration = Duration::from_secs(2);
/// Maximum requests for one step, without retries: the Deployment, the previous Deployment and a status for each.
const REQUESTS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_spec_after_every_other_converges() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    states::install(&cluster).await;
    let client = cluster.client().await;
    let states = States::all(&cluster, &client).await;
    let stores = actor::start(&client);
    let mut controller = Controller::start(&cluster, &["--resync=2s"]);

    let begun = Instant::now();
    let longest = "l".repeat(63);
    let names = ["walker", &*longest, "0.a-b.c"];
    let walks = (0..states.pairs.len()).map(|from| {
        let (cluster, client, states, stores) = (&cluster, &client, &states, &stores);
        let name = names[from % names.len()];
        async move {
            let walker = Walker::new(cluster, client, stores, name).await;
            walk(walker, states, from).await
        }
    });
    let too_long = "l".repeat(64);
    let mut misnamed = Walker::new(&cluster, &client, &stores, &too_long).await;
    misnamed.go(&states.misnamed).await;
    let walked: Vec<Walker> = iter(walks).buffer_unordered(AT_ONCE).collect().await;
    let took = begun.elapsed();
    for walker in walked.iter().chain([&misnamed]) {
        walker.assert_warned().await;
    }
    let sent = at_rest(&cluster).await;
    let theirs = |event: &AuditEvent| event.resource == "deployments" && subject(event) == TAKEN;
    assert!(!sent.iter().any(theirs), "somebody else's Deployment");
    let costs = walked.iter().map(|walker| assert_bounded(&sent, walker));
    let most = costs.max().unwrap();
    assert_eq!(controller.logged("panic"), 0);
    assert_eq!(controller.stop().await, 0);

    let steps: Vec<&Step> = walked.iter().flat_map(|walker| &walker.steps).collect();
    let updates: usize = steps.iter().map(|step| step.updates).sum();
    let slowest = steps.iter().max_by_key(|step| step.took).unwrap();
    println!(
        "{} states, {} of them in pairs; {} sequences of {updates} updates in {took:?}; \
         {} requests, at most {most} for one update; the slowest took {:?}: {}",
        states.pairs.len() + states.once.len(),
        states.pairs.len(),
        walked.len(),
        sent.len(),
        slowest.took,
        slowest.what,
    );
}

/// Moves to each state after `from` and back, so that all walks together cover every pair in both directions. Then it visits
/// its share of the other states and random states, and ends in the good state.
async fn walk<'a>(mut walker: Walker<'a>, states: &States, from: usize) -> Walker<'a> {
    let (pairs, once) = (&states.pairs, &states.once);
    walker.go(&pairs[from]).await;
    walker.refuses(&states.refused).await;
    for to in &pairs[from + 1..] {
        walker.go(to).await;
        walker.go(&pairs[from]).await;
    }
    for to in once.iter().skip(from).step_by(pairs.len()) {
        walker.go(to).await;
    }
    let asked = std::env::var("FOO_CONTROLLER_TEST_STEPS");
    let steps = asked.map_or(STEPS, |steps| steps.parse().unwrap()) / pairs.len();
    let mut draws = Draws::new(SEED, &format!("walk {from}"));
    let all: Vec<&State> = pairs.iter().chain(once).collect();
    let mut done = 0;
    while done < steps {
        let burst = draws.between(1, BURST + 1);
        let burst: Vec<&State> = (0..burst).map(|_| draws.of(&all)).collect();
        walker.hurry(&burst).await;
        done += burst.len();
    }
    walker.go(&states.good).await;
    walker
}

/// Waits until no request is sent for two resyncs, because all Foos match their specs. Returns the requests before that.
async fn at_rest(cluster: &Cluster) -> Vec<AuditEvent> {
    eventually(DEADLINE, "two resyncs without a request", async || {
        let from = Timestamp::now();
        sleep(2 * RESYNC + RESYNC / 2).await;
        let sent = all_requests(cluster);
        let late = sent.iter().filter(|event| event.received.0 >= from);
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            Ok(sent)
        } else {
            Err(counts(&late))
        }
    })
    .await
}

/// Asserts the request limit of each step. Returns the maximum number of requests for one update.
fn assert_bounded(sent: &[AuditEvent], walker: &Walker<'_>) -> usize {
    // Events have the lowest priority and may be written during a later step.
    let of =
        |event: &&AuditEvent| event.namespace == walker.namespace && event.resource != "events";
    let all: Vec<_> = sent.iter().filter(of).collect();
    let costs = walker.steps.iter().map(|step| {
        let mut within = all.clone();
        within.retain(|event| (step.from..step.to).contains(&event.received.0));
        if within.is_empty() {
            return 0;
        }
        let cost = within
            .len()
            .saturating_sub(tries_allowed(&within))
            .div_ceil(step.updates);
        let requests: Vec<_> = within.into_iter().cloned().collect();
        assert!(cost <= REQUESTS, "{}: {:#?}", step.what, counts(&requests));
        cost
    });
    costs.max().unwrap_or_default()
}
