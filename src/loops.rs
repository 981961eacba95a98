//! No loop without a bound: whatever the API server answers to a request, a replica asks again at a pace that is written
//! down here, says so in a few lines, and goes on with its work when the answer is right again.
//!
//! Two whole replicas on paused time, over an API server in memory. `cargo test --lib loops:: -- --nocapture` prints what
//! was counted: of each request and answer the most that one replica sent in a minute, and its bound; all that it sent
//! then; the lines that both logged; and how soon all was well when the answer was.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows what it has measured"
)]

mod server;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderMap, header::AUTHORIZATION};
use k8s_openapi::jiff::Timestamp;
use kube::client::ClientBuilder;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{Level, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    layer::{Context, SubscriberExt as _},
};

use crate::{
    APP, FooConfig,
    foo::{self, cached::GENERATION_ANNOTATION},
};
use operator_runtime::{
    Config, Controller, Host,
    client::instrumented::RequestLayer,
    election::{self, Clock, Election, Identity, SeenLease, Term, fence::FenceLayer},
    telemetry::{
        Metrics,
        health::{Health, Probe},
        server::auth::{Auth, Page},
    },
};
use server::{Answer, Call, Seen, Server, call};

/// For how long an answer is amiss.
const FAULT: Duration = Duration::from_mins(1);

/// The most requests that any loop sends in that time.
const MOST: usize = 120;

/// The most that all of them send in that time: 60 for the Lease, and where that is what is measured, 120 for who asks for
/// metrics each second.
const IN_ALL: usize = 200;

/// The most lines in the logs of both replicas in that time.
const LINES: usize = 60;

/// How long a replica may take to set to rights what a user has changed while an answer was amiss: the longest pause of
/// an object that has failed for a minute (82 s), and a rollout or two.
const RECOVERY: Duration = Duration::from_secs(100);

/// What a replica asks for, how often in a minute at most, and why.
const LOOPS: &[(Call, usize, &str)] = &[
    (
        call("stream", "foos"),
        WATCH,
        "watch: pauses of 100 ms to 5 s, ±20 %",
    ),
    (call("list", "foos"), WATCH, "watch"),
    (call("watch", "foos"), WATCH, "watch"),
    (
        call("find", "foos"),
        5 * RETRIES,
        "five Foos: where a status met a conflict; before a deletion, and where a Deployment names a newer generation",
    ),
    (call("stream", "deployments"), WATCH, "watch"),
    (call("list", "deployments"), WATCH, "watch"),
    (call("watch", "deployments"), WATCH, "watch"),
    (
        call("find", "deployments"),
        RETRIES,
        "one Foo: before a deletion",
    ),
    (
        call("get", "leases"),
        LEASE + RECORD,
        "election: every 2 s, ±10 %, and before the fencing record is written",
    ),
    (call("create", "leases"), LEASE, "election"),
    (call("patch", "leases"), LEASE, "election"),
    (
        call("watch", "leases"),
        LEASE,
        "election: a standby's watch",
    ),
    (
        call("get", "serviceaccounts"),
        RECORD,
        "election: the fencing record, at a renewal; pauses of 1 s to 5 s",
    ),
    (
        call("patch", "serviceaccounts"),
        RECORD,
        "election: the fencing record, at a renewal; pauses of 1 s to 5 s",
    ),
    (
        call("create", "deployments"),
        3 * RETRIES,
        "three Foos, each retried after 5 ms, doubled each time",
    ),
    (call("patch", "deployments"), 2 * RETRIES, "two Foos"),
    (call("delete", "deployments"), RETRIES, "one Foo"),
    (call("update", "foos/status"), 5 * RETRIES, "five Foos"),
    (
        call("create", "events"),
        EVENTS,
        "one writer: of a namespace, pauses of 1 s to 10 s; each event for a minute",
    ),
    (
        call("patch", "events"),
        EVENTS,
        "one writer: of a namespace, pauses of 1 s to 10 s; each event for a minute",
    ),
    (
        call("create", "tokenreviews"),
        SCRAPES,
        "as often as somebody asks for metrics",
    ),
    (
        call("create", "subjectaccessreviews"),
        SCRAPES,
        "as often as somebody asks for metrics",
    ),
    (
        call("create", "selfsubjectaccessreviews"),
        RIGHTS,
        "three rights; pauses of 1 s to 10 s while there is cause",
    ),
];

/// 100 ms, doubled to 5 s, each a fifth less: seven in 5 s, and then one in 4 s; a start, a cut and a list come on top.
const WATCH: usize = 26;
/// Each 1.8 s at the fastest.
const LEASE: usize = 35;
/// 1 s, doubled to 5 s, and the renewals in between make 14.
const RECORD: usize = 16;
/// 5 ms, doubled each time, come to 41 s after 13 times and to 82 s after 14; a resync, a takeover and what the others
/// change come on top.
const RETRIES: usize = 20;
/// 1 s, doubled to 10 s; and what can be written of the other kind.
const EVENTS: usize = 30;
/// 1 s, doubled to 10 s, make eight checks.
const RIGHTS: usize = 30;
/// As often as somebody scrapes, who is asked about once each time.
const SCRAPES: usize = 62;
const SCRAPE: Duration = seconds(1);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What the API server answers to any request.
const ANSWERS: &[Answer] = &[
    Answer::Status(401),
    Answer::Status(403),
    Answer::Status(404),
    Answer::Status(405),
    Answer::Status(409),
    Answer::Status(410),
    Answer::Status(422),
    Answer::Status(500),
    Answer::Status(503),
    Answer::Status(504),
    Answer::RetryAfter(429, 10),
    Answer::RetryAfter(503, 10),
    Answer::RetryAfter(429, u32::MAX),
    Answer::Html,
    Answer::OtherKind,
    Answer::Truncated,
    Answer::Reset,
    Answer::Hang,
];
/// What it answers to a list, a watch and a write beside these.
const TO_LISTS: &[Answer] = &[
    Answer::Empty,
    Answer::Endless,
    Answer::Circle,
    Answer::NoVersion,
];
const TO_WATCHES: &[Answer] = &[
    Answer::Empty,
    Answer::EndsAfter(Duration::ZERO),
    Answer::EndsAfter(Duration::from_millis(1100)),
    Answer::EndsAfter(Duration::from_millis(5100)),
    Answer::ErrorEvent(410),
    Answer::ErrorEvent(500),
];
const TO_WRITES: &[Answer] = &[Answer::Lost, Answer::Ignored];

/// The Foos.
const NAMES: [&str; 5] = ["made", "scaled", "edited", "deleted", "renamed"];

/// When an answer begins to be amiss.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// With the replicas.
    Start,
    /// While one leads and one stands by, and then all connections are cut.
    Cut,
    /// That, and the watches that were cut have to list again.
    Compacted,
}

/// One replica, complete but for its transport.
async fn replica(server: Server, name: &'static str, scrape: Duration) {
    let metrics = Metrics::disconnected(&APP);
    let mut config = Config::shipped(&APP);
    config.leader_election.lease_name = "l".into();
    config.leader_election.lease_namespace = Some("n".into());
    let (publish, term) = watch::channel::<Option<Term>>(None);
    let client = ClientBuilder::new(server.service(name), "n")
        .with_layer(&FenceLayer::new(term.clone(), &metrics))
        .with_layer(&RequestLayer::new(
            &"http://127.0.0.1".parse().unwrap(),
            &metrics,
            election::fence::failed_by,
        ))
        .build();
    let start = Instant::now();
    let clock = Clock::from_fn(move || start.elapsed());
    let random = || uuid::Uuid::new_v4().as_u64_pair().1;
    let host = Host::new(clock, Timestamp::now, random, []);
    let mut health = Health::new(&host);
    let foo = FooConfig {
        image: "nginx".into(),
        max_rollouts: 10,
    };
    let mut controller = Controller::new(
        &host,
        &client,
        &config,
        name.into(),
        &metrics,
        &mut health,
        |builder| foo::build(builder, foo),
    );
    let heartbeat = health.heartbeat("leader-election");
    let ability = controller.ability();
    let election = Election {
        server: "http://127.0.0.1".parse().unwrap(),
        transport: server.service(name),
        host,
        settings: config.leader_election.clone(),
        identity: Identity::new(name, "1").unwrap(),
        metrics,
        seen: SeenLease::default(),
        ability,
    };
    let auth = Auth::new(&APP, client);
    let scrapes = async {
        for number in 0_u64.. {
            // One after the other, of which half are good.
            let token = match number % 2 {
                0 => format!("good {number}"),
                _ => number.to_string(),
            };
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
            let _ = auth
                .check(
                    Page::Metrics,
                    std::net::Ipv4Addr::LOCALHOST.into(),
                    &headers,
                )
                .await;
            sleep(scrape).await;
        }
    };
    let alive = async {
        loop {
            let _ = timeout(seconds(1), health.watch()).await;
            assert_eq!(health.failing(Probe::Live), [""; 0]);
        }
    };
    tokio::select! {
        ended = controller.run(term, std::future::pending()) => panic!("{ended:?}"),
        ended = election::run(election, publish, heartbeat, std::future::pending()) => panic!("{ended:?}"),
        () = scrapes => {}
        () = alive => {}
    }
}

/// What one case has come to.
struct Measured {
    /// The most that one replica sent in [`FAULT`].
    requests: BTreeMap<Call, usize>,
    /// The shortest time after which a replica sent the same of the same object again.
    again: Duration,
    /// All that one replica sent then.
    all: usize,
    lines: usize,
    recovered: Duration,
}

/// Two replicas, with `call` answered by `answer` for a while, and then as is right.
async fn measure(
    streams: bool,
    when: When,
    call: Call,
    answer: Answer,
    lines: &AtomicUsize,
) -> Measured {
    let server = Server::new(streams);
    for name in NAMES {
        server.apply("foos", name, &foo(name, 1));
    }
    // The fencing component is installed.
    server.apply("serviceaccounts", "l-fencing", &json!({}));
    let mut replicas = JoinSet::new();
    // As Prometheus does by default; where that is what is measured, by somebody who is in a hurry.
    let scrape = if ["tokenreviews", "subjectaccessreviews"].contains(&call.resource) {
        SCRAPE
    } else {
        seconds(15)
    };
    let start = |replicas: &mut JoinSet<()>| {
        for name in ["a", "b"] {
            replicas.spawn(replica(server.clone(), name, scrape));
        }
    };
    if when != When::Start {
        start(&mut replicas);
        converged(&server, &mut replicas, seconds(30)).await;
    }
    server.fault(Some((call, answer)));
    if when == When::Start {
        start(&mut replicas);
    } else {
        server.cut(when == When::Compacted);
    }
    drop(server.seen());
    // What the users do.
    if call.resource == "leases" && call.verb == "create" {
        server.delete("leases", "l");
    }
    server.delete("foos", "made");
    server.delete("deployments", "made");
    server.apply("foos", "made", &foo("made", 1));
    server.apply("foos", "scaled", &json!({ "spec": { "replicas": 2 } }));
    server.apply(
        "foos",
        "renamed",
        &json!({ "spec": { "deploymentName": "new" } }),
    );
    if when != When::Start {
        server.apply(
            "deployments",
            "edited",
            &json!({
                "metadata": { "annotations": { GENERATION_ANNOTATION: "99" } },
                "spec": { "replicas": 7 },
            }),
        );
    }
    server.delete("deployments", "deleted");
    lines.store(0, Relaxed);
    sleep(FAULT).await;
    let (seen, lines) = (server.seen(), lines.load(Relaxed));
    server.fault(None);
    server.apply("foos", "scaled", &json!({ "spec": { "replicas": 3 } }));
    if answer == Answer::Ignored {
        // What a write did not change is left until somebody changes it.
        for name in NAMES {
            server.apply("foos", name, &json!({ "spec": { "replicas": 4 } }));
        }
    }
    let recovered = converged(&server, &mut replicas, RECOVERY).await;
    let (mut requests, mut all) = (BTreeMap::new(), 0);
    for name in ["a", "b"] {
        all = all.max(seen.iter().filter(|seen| seen.by == name).count());
        for (call, count) in count(seen.iter().filter(|seen| seen.by == name)) {
            let most: &mut usize = requests.entry(call).or_default();
            *most = count.max(*most);
        }
    }
    Measured {
        requests,
        again: again(call, &seen),
        all,
        lines,
        recovered,
    }
}

/// The shortest time after which a replica sent `call` of the same object again; after a streamed list, one in pages, too.
fn again(call: Call, seen: &[Seen]) -> Duration {
    let (mut last, mut shortest) = (BTreeMap::new(), Duration::MAX);
    let is_again = |seen: &&Seen| {
        let lists = call.verb == "stream" && seen.call.verb == "list";
        seen.call.resource == call.resource && (lists || seen.call.verb == call.verb)
    };
    for seen in seen.iter().filter(is_again) {
        if let Some(last) = last.insert((seen.by, &seen.object), seen.at) {
            shortest = shortest.min(seen.at - last);
        }
    }
    shortest
}

fn count<'a>(seen: impl Iterator<Item = &'a Seen>) -> BTreeMap<Call, usize> {
    let mut counts = BTreeMap::new();
    for seen in seen {
        *counts.entry(seen.call).or_default() += 1;
    }
    counts
}

fn foo(name: &str, replicas: i32) -> Value {
    json!({ "spec": { "deploymentName": name, "replicas": replicas } })
}

/// Waits until one replica leads and every Foo has what it asks for; says how long that took.
async fn converged(server: &Server, replicas: &mut JoinSet<()>, within: Duration) -> Duration {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(ended) = replicas.try_join_next() {
            panic!("a replica ended: {ended:?}");
        }
        let wrong = wrong(server);
        if wrong.is_empty() {
            return begun.elapsed();
        }
        assert!(
            begun.elapsed() < within,
            "not within {within:?}: {wrong:#?}"
        );
        sleep(Duration::from_millis(500)).await;
    }
}

/// What is not as it should be.
fn wrong(server: &Server) -> Vec<String> {
    let mut wrong = Vec::new();
    let lease = server.get("leases", "l").unwrap_or_default();
    if lease["spec"]["holderIdentity"]
        .as_str()
        .is_none_or(str::is_empty)
    {
        wrong.push(format!("nobody leads: {}", lease["spec"]));
    }
    let foos = server.all("foos");
    for foo in &foos {
        let wanted = foo["spec"]["deploymentName"].as_str().unwrap();
        let deployment = server.get("deployments", wanted).unwrap_or_default();
        let (name, status) = (&foo["metadata"]["name"], &foo["status"]);
        if deployment["spec"]["replicas"] != foo["spec"]["replicas"] {
            wrong.push(format!(
                "{name} wants {}, has {}",
                foo["spec"], deployment["spec"]
            ));
        }
        if deployment["metadata"]["ownerReferences"][0]["uid"] != foo["metadata"]["uid"] {
            wrong.push(format!("{name} does not own its Deployment"));
        }
        if status["observedGeneration"] != foo["metadata"]["generation"]
            || status["availableReplicas"] != foo["spec"]["replicas"]
        {
            wrong.push(format!("{name}: {} and {status}", foo["metadata"]));
        }
    }
    let deployments = server.all("deployments").len();
    if deployments != foos.len() {
        wrong.push(format!("{deployments} Deployments for {} Foos", foos.len()));
    }
    wrong
}

/// Counts what is logged.
#[derive(Clone)]
struct Lines(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::INFO {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// The answers to a call, each with when it begins, and whether the API server streams lists.
fn cases(call: Call) -> Vec<(Answer, Vec<(When, bool)>)> {
    let others = match call.verb {
        "list" | "find" => TO_LISTS,
        "stream" | "watch" => TO_WATCHES,
        "get" => &[],
        _ => TO_WRITES,
    };
    let whens = match (call.verb, call.resource) {
        // A record that is written is not read again, nor are rights that nothing speaks against.
        (_, "serviceaccounts" | "selfsubjectaccessreviews") => vec![(When::Start, true)],
        (_, "leases") if call.verb == "create" => vec![(When::Start, true)],
        (_, "leases") => vec![(When::Start, true), (When::Cut, true)],
        ("stream", _) => vec![(When::Start, true), (When::Compacted, true)],
        ("list", _) => vec![(When::Start, false), (When::Compacted, false)],
        ("watch", _) => vec![(When::Cut, true), (When::Cut, false)],
        _ => vec![(When::Cut, true)],
    };
    let answers = ANSWERS.iter().chain(others);
    answers.map(|answer| (*answer, whens.clone())).collect()
}

/// Runs each case of these calls, prints what it has come to, and fails where that is more than is written down.
fn hold(resource: &str) {
    let lines = Arc::new(AtomicUsize::new(0));
    let filter = Targets::new()
        .with_target("foo_controller", Level::INFO)
        .with_target("operator_runtime", Level::INFO);
    let layer = Lines(Arc::clone(&lines)).with_filter(filter);
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let mut failures = Vec::new();
    let of_resource = LOOPS.iter().filter(|(call, ..)| call.resource == resource);
    for (call, bound, why) in of_resource {
        assert!(*bound <= MOST);
        println!("{call:?}: at most {bound} a minute: {why}");
        for (answer, whens) in cases(*call) {
            let (mut most, mut all, mut logged, mut recovered) = (0, 0, 0, Duration::ZERO);
            for (when, streams) in whens {
                let case = format!("{call:?} {answer:?} {when:?} streams={streams}");
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .start_paused(true)
                    .build()
                    .unwrap();
                let measured = catch_unwind(AssertUnwindSafe(|| {
                    runtime.block_on(measure(streams, when, *call, answer, &lines))
                }));
                let Ok(measured) = measured else {
                    failures.push(format!("{case}: see above"));
                    continue;
                };
                for (call, count) in &measured.requests {
                    if *count > bound_of(*call) {
                        failures.push(format!("{case}: {count} times {call:?}"));
                    }
                }
                let asked = asked(*call, answer);
                if measured.again < asked {
                    let again = measured.again;
                    failures.push(format!("{case}: again after {again:?}, not {asked:?}"));
                }
                most = most.max(measured.requests.get(call).copied().unwrap_or_default());
                all = all.max(measured.all);
                logged = logged.max(measured.lines);
                recovered = recovered.max(measured.recovered);
            }
            println!(
                "{:<32}{:<30}{most:>6} of {bound:<4}{all:>5} in all{logged:>4} lines{:>6.1} s",
                format!("{call:?}"),
                format!("{answer:?}"),
                recovered.as_secs_f64()
            );
            if most == 0 {
                failures.push(format!("{call:?} {answer:?}: was not asked for"));
            }
            if logged > LINES {
                failures.push(format!("{call:?} {answer:?}: {logged} lines"));
            }
            if all > IN_ALL {
                failures.push(format!("{call:?} {answer:?}: {all} requests in all"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// How long the same request of the same object waits at least after this answer: as long as that asks for, 30 s at most.
/// The election and who asks for rights or about tokens go at their own pace: a leader has until its deadline to renew.
fn asked(call: Call, answer: Answer) -> Duration {
    let own_pace = ["leases", "serviceaccounts"].contains(&call.resource)
        || call.resource.ends_with("reviews");
    match answer {
        Answer::RetryAfter(_, time) if !own_pace => seconds(time.min(30).into()),
        _ => Duration::ZERO,
    }
}

fn bound_of(call: Call) -> usize {
    let known = LOOPS.iter().find(|(known, ..)| *known == call);
    known.map_or(0, |(_, bound, _)| *bound)
}

#[test]
fn q3f_i11_requests_about_foos_are_bounded() {
    hold("foos");
    hold("foos/status");
}

#[test]
fn q3f_i11_requests_about_deployments_are_bounded() {
    hold("deployments");
}

#[test]
fn q3f_i11_requests_about_leases_are_bounded() {
    hold("leases");
    hold("serviceaccounts");
}

#[test]
fn q3f_i11_requests_about_events_are_bounded() {
    hold("events");
}

#[test]
fn q3f_i11_requests_about_reviews_are_bounded() {
    hold("tokenreviews");
    hold("subjectaccessreviews");
    hold("selfsubjectaccessreviews");
}
