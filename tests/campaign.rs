//! Every spec that the schema has a word about, from every other: what the API server refuses names its field, and what it takes
//! ends, whatever was before, as the last spec says, or with a condition that says why not.
//!
//! The specs are made from the schema in `deploy/crd.yaml`. Those that it refuses are stored nevertheless, as from before there
//! was a schema: by another version of the CRD that has none. Beside them are Foos that cannot have what they ask for,
//! that are being deleted, and that are gone. No Deployment has pods: `Cluster` here plays who counts them, and the garbage
//! collector. `FOO_CONTROLLER_TEST_STEPS=10000` takes as many random steps as that.

mod actor;
mod states;
mod values;
mod walker;

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream::iter};
use k8s_openapi::jiff::Timestamp;
use states::{State, States, TAKEN};
use tokio::time::sleep;
use walker::{Step, Walker};

use crate::{
    cluster::{AuditEvent, Cluster, Options, eventually},
    controller::Controller,
    foos::{DEADLINE, all_requests, counts, subject, tries_allowed},
    simulation::draw::Draws,
};

/// Random steps, unless more are asked for.
const STEPS: usize = 400;
/// How many of them come at once, at the most.
const BURST: u64 = 6;
const SEED: u64 = 1;
/// Foos that change at a time.
const AT_ONCE: usize = 16;
const RESYNC: Duration = Duration::from_secs(2);
/// What a step may cost beside what the backoff tries again: the Deployment, the one before, and a status for each.
const REQUESTS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_spec_after_every_other_ends_as_it_says() {
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

/// To each state after `from` and back, so that all walks together take every pair in both directions; then to some that are
/// visited once, then at random, and at last to what can be had.
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

/// Invariant I6: all Foos are as they should be, and no request is sent. What was sent before that.
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

/// No step costs more than it takes. The most that one did cost.
fn assert_bounded(sent: &[AuditEvent], walker: &Walker<'_>) -> usize {
    // Events wait for everything else, and may come with a later step.
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
