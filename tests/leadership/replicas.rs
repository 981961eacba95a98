//! Three replicas as real processes on one API server. The leader is stopped, killed, frozen and cut off while Foos arrive and
//! change. `invariants` checks the audit log. Delays are measured and printed; the promised limits apply to the median.
//! `FOO_CONTROLLER_TEST_ROUNDS=full` runs as many rounds as the claims in the README are based on.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use foo_controller::{APP, FooConfig};
use foo_simulation::invariants::{self, MADE_FOR, Report, version};
use http::Request;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use operator_runtime::internals::{
    self, Controllers, Election, ElectionTarget, Health, Identity, SeenLease, Server, Telemetry,
    lease_transport,
};
use operator_testkit::{cluster::AuditEvent, proxy::Proxy};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{sync::watch, time::sleep};

use crate::support::{
    fencing::rejections,
    fleet::{DEFAULT, FAST, Fleet, Load, Options, Program, USERS, Way, rounds, stands_by_again},
    foos::{delays, longest, subject},
};

/// Pause after a kill. The new leader works off the backlog before the next fault.
const AFTER: Duration = Duration::from_secs(8);
const AFTER_RESTART: Duration = Duration::from_secs(3);

/// Attempts to provoke a likely, but not certain, event.
const ATTEMPTS: usize = 5;

/// Counts in the log the operations of users, and the reactions of the replicas to them.
fn deeds(log: &[AuditEvent]) -> BTreeMap<&'static str, usize> {
    let ours = |event: &AuditEvent| USERS.contains(&&*event.user);
    let mut deeds = BTreeMap::new();
    let mut created = BTreeSet::new();
    let mut edited = BTreeSet::new();
    let mut made_for = BTreeMap::<_, BTreeSet<_>>::new();
    for event in log.iter().filter(|event| event.is_success()) {
        let metadata = &event.response_object["metadata"];
        let deed = match (&*event.verb, &*event.resource, &*event.subresource) {
            ("patch", "foos", "") if event.request_object["spec"]["deploymentName"].is_string() => {
                "Foo renamed"
            }
            ("create", "foos", "") if !created.insert(subject(event)) => "Foo created again",
            ("delete", "deployments", "") if ours(event) => "Deployment deleted by a replica",
            ("create" | "patch", "deployments", "") if ours(event) => {
                let uid = metadata["uid"].as_str().unwrap();
                let foos = made_for.entry(uid).or_default();
                foos.insert(metadata["annotations"][MADE_FOR].as_str().unwrap());
                if foos.len() > 1 {
                    "Deployment taken over by the next Foo of its name"
                } else if edited.remove(&*event.name) {
                    "Deployment put right"
                } else {
                    continue;
                }
            }
            ("patch", "deployments", "") => {
                if event.request_object["spec"]["replicas"] == 9 {
                    edited.insert(&*event.name);
                }
                continue;
            }
            _ => continue,
        };
        *deeds.entry(deed).or_default() += 1;
    }
    deeds
}

/// Prints [`deeds`]. Fails unless each of them occurred.
fn print_deeds(log: &[AuditEvent]) {
    let deeds = deeds(log);
    println!("{deeds:#?}");
    assert_eq!(deeds.len(), 5, "{deeds:#?}");
}

/// All faults of a leader. The invariants hold, and every Foo converges.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_through_faults() {
    invariants_hold_through_faults(false).await;
}

/// Runs the test above with the fencing policy and the permissions of `deploy/`. Both have the times of components/fast-failover.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_through_faults_with_fencing() {
    invariants_hold_through_faults(true).await;
}

async fn invariants_hold_through_faults(fencing: bool) {
    let mut fleet = Fleet::start(Options {
        fencing,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    // A single round of each fault is enough in a short run with fencing: the run without fencing has more.
    let rounds = |full, few| {
        if fencing {
            rounds(full, 1)
        } else {
            rounds(full, few)
        }
    };
    let load = Load::start(&fleet);
    let mut faults = BTreeMap::new();
    for _ in 0..rounds(20, 5) {
        fleet.stop_leader().await;
        *faults.entry("stopped").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.kill_leader().await;
        *faults.entry("killed").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.freeze_leader(FAST.renew).await;
        *faults.entry("frozen").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.cut_leader(FAST.renew).await;
        *faults.entry("cut off").or_insert(0) += 1;
    }
    for _ in 0..rounds(3, 1) {
        fleet.delete_lease().await;
        *faults.entry("Lease deleted").or_insert(0) += 1;
    }
    let foos = load.stop().await;
    fleet.converged().await;
    if fencing {
        fleet.wait_for_record().await;
    }
    let quiet = Timestamp::now();
    sleep(FAST.lease).await;
    let quiet = [(quiet, Timestamp::now())];
    let log = fleet.cluster.audit();
    let report = invariants::check(&log, &fleet.election(), &quiet);
    println!("{foos} Foos; faults: {faults:?}; {report}");
    assert!(report.violations.is_empty(), "{report}");
    print_deeds(&log);
    let changes: i32 = faults.values().sum();
    assert!(report.terms >= usize::try_from(changes).unwrap());
    assert!(report.writes >= 2 * foos);

    // The checker finds a write that landed after a takeover, and a deletion by a replica that did not lead.
    let doctored = write_after_takeover(log.clone());
    let report = invariants::check(&doctored, &fleet.election(), &quiet);
    assert_eq!(report.violations.len(), 1, "{report}");
    assert!(report.violations[0].starts_with("I1"), "{report}");
    let doctored = deletion_by_another(log);
    let report = invariants::check(&doctored, &fleet.election(), &quiet);
    assert!(report.violations[0].starts_with("I1"), "{report}");
}

/// Moves the first status write of the first leader to a version after the takeover by another replica.
fn write_after_takeover(mut log: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let is_reported = |event: &AuditEvent| {
        (&*event.resource, &*event.subresource, event.code) == ("foos", "status", 200)
    };
    let first = log.iter().position(is_reported).unwrap();
    let by = log[first].user.clone();
    let taken = |event: &&AuditEvent| {
        let holder = event.response_object["spec"]["holderIdentity"].as_str();
        event.resource == "leases"
            && event.user != by
            && event.code == 200
            && holder.is_some_and(|holder| holder.starts_with(&event.user))
    };
    let takeover = log
        .iter()
        .filter(taken)
        .filter_map(|event| version(&event.response_object))
        .min()
        .unwrap();
    log[first].response_object["metadata"]["resourceVersion"] = (takeover + 1).to_string().into();
    log
}

/// Attributes a deletion to another replica.
fn deletion_by_another(mut log: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let ours = |event: &&mut AuditEvent| {
        (&*event.verb, &*event.resource, event.code) == ("delete", "deployments", 200)
            && USERS.contains(&&*event.user)
    };
    let deletion = log.iter_mut().find(ours).unwrap();
    let mut others = USERS.iter().filter(|user| **user != deletion.user);
    deletion.user = (*others.next().unwrap()).to_owned();
    log
}

/// Measures the delays of a change of leader with the default times, and the requests of a standby.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is measured alone"]
async fn a_leader_change_is_measured() {
    let mut fleet = Fleet::start(Options::new(DEFAULT, Way::Direct)).await;
    let load = Load::start(&fleet);
    sleep(Duration::from_secs(3)).await;

    let leader = fleet.leader(None).await;
    let standby = fleet.replicas[(leader + 1) % USERS.len()].user;
    let calm = (Timestamp::now(), {
        sleep(Duration::from_secs(rounds(60, 10).try_into().unwrap())).await;
        Timestamp::now()
    });

    let mut stopped = Vec::new();
    for _ in 0..rounds(20, 5) {
        let begin = Timestamp::now();
        fleet.stop_leader().await;
        stopped.push((begin, Timestamp::now()));
        sleep(Duration::from_millis(500)).await;
    }

    let mut killed = Vec::new();
    for _ in 0..rounds(3, 1) {
        let begin = Timestamp::now();
        fleet.kill_leader().await;
        killed.push((begin, Timestamp::now()));
        sleep(AFTER).await;
    }

    let mut restarted = Vec::new();
    for _ in 0..rounds(5, 3) {
        let leader = fleet.leader(None).await;
        fleet.kill(leader).await;
        fleet.restart(leader, true);
        restarted.push((fleet.replicas[leader].user, Timestamp::now()));
        fleet.replicas[leader]
            .process
            .wait_for_log("gained the lease")
            .await;
        sleep(AFTER_RESTART).await;
    }

    let frozen = fleet.leader(None).await;
    fleet.replicas[frozen].process.signal(Signal::STOP);
    sleep(Duration::from_secs(25)).await;
    let before = fleet.replicas[frozen].process.logged("standing by");
    let thawed = Timestamp::now();
    fleet.replicas[frozen].process.signal(Signal::CONT);
    stands_by_again(&fleet.replicas[frozen].process, before).await;
    sleep(Duration::from_secs(5)).await;

    let foos = load.stop().await;
    fleet.converged().await;
    let log = fleet.cluster.audit();
    let report = invariants::check(&log, &fleet.election(), &[]);
    println!("{foos} Foos; {report}");
    assert!(report.violations.is_empty(), "{report}");
    print_deeds(&log);
    let usual = longest(&delays(&log), calm);
    print_delays(&log, usual, &stopped, &killed);
    print_restarts(&log, usual, &restarted);
    print_thawed(&log, fleet.replicas[frozen].user, thawed, &report);
    print_standby(&log, standby, calm);
}

/// Like [`operator_runtime::run`], without the [fence](operator_runtime::election::FenceLayer). Runs as a process of its own, so
/// that it can be frozen.
#[tokio::test]
#[ignore = "another test runs it"]
async fn a_replica_without_the_fence() {
    let flags = clap::Command::new("unfenced").args(internals::args(&APP));
    let flags = flags.get_matches_from(["unfenced"]);
    let (config, settings) = internals::load(&APP, &flags, std::env::vars_os()).unwrap();
    let host = operator_runtime::Host::of_this_process();
    assert!(
        std::env::var_os("POD_NAME").is_some(),
        "another test runs this"
    );
    let metrics = Telemetry::start(&APP, &host, &config).unwrap().metrics();
    let mut kube = Config::infer().await.unwrap();
    kube.default_retry = false;
    // The address of this replica's proxy.
    if let Some(master) = &config.master {
        kube.cluster_url = master.clone();
    }
    let client = Client::try_from(kube.clone()).unwrap();
    let server = Server::bind(&APP, &config.http).await.unwrap();
    let identity = Identity::of(&host).unwrap();
    let (publish, term) = watch::channel(None);
    let mut health = Health::new(&host);
    let name = identity.to_string();
    let foo: FooConfig = settings.application();
    let mut controller = Controllers::new(
        &host,
        &client,
        &config,
        name,
        &metrics,
        &mut health,
        |program| {
            foo_controller::build(program, foo);
        },
    );
    let heartbeat = health.heartbeat("leader-election");
    let election = Election {
        server: kube.cluster_url.clone(),
        transport: lease_transport(kube, &config.leader_election).unwrap(),
        host,
        target: ElectionTarget {
            identity,
            namespace: config.leader_election.lease_namespace.clone(),
            installation: String::new(),
        },
        settings: config.leader_election,
        metrics: metrics.clone(),
        seen: SeenLease::default(),
        ability: controller.ability(),
    };
    tokio::select! {
        ended = internals::run(election, publish, heartbeat, pending()) => ended.unwrap(),
        ended = controller.run(term, pending()) => ended.unwrap(),
        () = server.serve(client, health, metrics) => {}
    }
}

/// Without the fence, a leader that is thawed during its work violates I1 and I2, and the checker reports it.
/// [`i1_to_i8_hold_through_faults`] is the same with the fence.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_fence_a_thawed_leader_is_found_to_write() {
    let mut fleet = Fleet::start(Options {
        program: Program::Unfenced,
        ..Options::new(FAST, Way::Direct)
    })
    .await;
    let (expected, mut found) = (["I1", "I2"].map(str::to_owned).into(), BTreeSet::new());
    for _ in 0..ATTEMPTS {
        fleet.freeze_leader(Duration::ZERO).await;
        found = fleet.violated("without the fence");
        if found.is_superset(&expected) {
            break;
        }
    }
    assert!(found.is_superset(&expected), "{found:?}");
}

/// Only server-side fencing is active, not the fence in the process. The thawed leader sends writes, and the
/// API server rejects them. [`without_the_fence_a_thawed_leader_is_found_to_write`] is the same without the policy.
#[tokio::test(flavor = "multi_thread")]
async fn h20_without_the_fence_the_api_server_rejects_a_thawed_leader() {
    let mut fleet = Fleet::start(Options {
        program: Program::Unfenced,
        fencing: true,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    let mut rejected = 0;
    for _ in 0..ATTEMPTS {
        // The new leader writes no status. So the old leader's view of the Foos is current, and its writes are not conflicts.
        let leader = fleet.leader(None).await;
        for (n, proxy) in fleet.proxies().enumerate() {
            if n != leader {
                proxy.on("update", "foos/status").lose();
            }
        }
        // The new leader writes the record in this time.
        let old = fleet.freeze_leader(FAST.renew).await;
        fleet.proxies().for_each(Proxy::clear);
        let found = fleet.violated("with server-side fencing only");
        assert!(!found.contains("I1"), "{found:?}");
        let user = fleet.replicas[old].user;
        let log = fleet.cluster.audit();
        rejected = rejections(&log, user).count();
        if rejected > 0 {
            assert!(found.contains("I2"), "{found:?}");
            break;
        }
    }
    assert!(rejected > 0);
    fleet.wait_for_record().await;
}

/// Delay of each Lease write, so that writes of several replicas overlap.
const LATE: Duration = Duration::from_millis(300);

/// Removes the precondition of a Lease write.
fn unguarded(request: &mut Request<Vec<u8>>) {
    let mut write: Value = serde_json::from_slice(request.body()).unwrap();
    let metadata = write["metadata"].as_object_mut();
    metadata.map(|metadata| metadata.remove("resourceVersion"));
    *request.body_mut() = serde_json::to_vec(&write).unwrap();
}

/// Without the precondition of the lease guard, two replicas acquire a Lease concurrently, violate I1 and I8, and the checker
/// reports it.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lease_guard_two_leaders_are_found() {
    let mut fleet = Fleet::start(Options::new(FAST, Way::Proxy)).await;
    let load = Load::start(&fleet);
    fleet.proxies().for_each(|proxy| {
        proxy.on("patch", "leases").change(LATE, |_| ());
    });
    fleet.stop_leader().await;
    assert_eq!(fleet.violated("late writes of the Lease"), [].into());
    fleet.proxies().for_each(|proxy| {
        proxy.clear();
        proxy.on("patch", "leases").change(LATE, unguarded);
    });
    let (expected, mut found) = (["I1", "I8"].map(str::to_owned).into(), BTreeSet::new());
    for _ in 0..ATTEMPTS {
        fleet.stop_leader().await;
        found = fleet.violated("without the lease guard");
        if found.is_superset(&expected) {
            break;
        }
    }
    assert!(found.is_superset(&expected), "{found:?}");
    fleet.proxies().for_each(Proxy::clear);
    load.stop().await;
}

type Span = (Timestamp, Timestamp);

/// Promised limits for the median. The usual delay without a fault is added, since the machine may be busy.
const HANDED_OVER: Duration = Duration::from_millis(250);
const RESTARTED: Duration = Duration::from_secs(2);

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// `usual` is the longest delay without a fault.
fn print_delays(log: &[AuditEvent], usual: Duration, stopped: &[Span], killed: &[Span]) {
    let delays = delays(log);
    let longest = |spans: &[Span]| -> Vec<Duration> {
        spans.iter().map(|span| longest(&delays, *span)).collect()
    };
    println!("longest delay of a Foo");
    println!("  no fault: {usual:?}");
    let stopped = longest(stopped);
    let felt = stopped.iter().filter(|delay| **delay > HANDED_OVER);
    println!(
        "  leader stopped (at most {HANDED_OVER:?}, {} above): {stopped:?}",
        felt.count()
    );
    let killed = longest(killed);
    println!(
        "  leader killed (at most {:?} + 500 ms): {killed:?}",
        DEFAULT.lease
    );
    assert!(median(&stopped) <= HANDED_OVER + usual, "{stopped:?}");
    // `takeover.rs` measures more kills.
    let slack = Duration::from_secs(5);
    assert!(
        killed.iter().all(|delay| *delay < DEFAULT.lease + slack),
        "{killed:?}"
    );
}

/// Measures the time from the start of the process to its first Deployment.
fn print_restarts(log: &[AuditEvent], usual: Duration, restarted: &[(&str, Timestamp)]) {
    let acts = |(user, at): &(&str, Timestamp)| -> Duration {
        let own = log
            .iter()
            .filter(|event| event.user == *user && event.resource == "deployments");
        let writes = own.filter(|event| event.verb == "create" && event.received.0 > *at);
        let first = writes.map(|event| event.reached.0).min().unwrap();
        first.duration_since(*at).try_into().unwrap()
    };
    let restarted: Vec<_> = restarted.iter().map(acts).collect();
    println!("the same pod restarted acts after (at most {RESTARTED:?}): {restarted:?}");
    assert!(median(&restarted) <= RESTARTED + usual, "{restarted:?}");
}

fn print_thawed(log: &[AuditEvent], user: &str, thawed: Timestamp, report: &Report) {
    let after = log.iter().filter(|event| {
        event.user == user
            && event.received.0 > thawed
            && matches!(&*event.resource, "deployments" | "foos")
            && !matches!(&*event.verb, "get" | "list" | "watch")
    });
    println!(
        "frozen for 25 s and thawed: {} writes by the leader of before, 0 of {} in all without the Lease",
        after.count(),
        report.writes
    );
}

/// A standby has three watches and sends no other request.
fn print_standby(log: &[AuditEvent], user: &str, calm: Span) {
    let of_user = || log.iter().filter(|event| event.user == user);
    let opened = of_user().filter(|event| {
        event.verb == "watch" && event.stage == "ResponseStarted" && event.received.0 < calm.0
    });
    let mut watches: BTreeMap<&str, usize> = BTreeMap::new();
    opened.for_each(|event| *watches.entry(&*event.resource).or_default() += 1);
    let then: Vec<_> = of_user()
        .filter(|event| (calm.0..calm.1).contains(&event.received.0))
        .map(|event| format!("{} {}", event.verb, event.resource))
        .collect();
    let seconds = calm.1.duration_since(calm.0).as_secs();
    println!("a standby opened {watches:?}; in {seconds} s after that it sent: {then:?}");
    // There may be several per resource: a watch that ended was reopened, for example while the API server had just learned of
    // the CRD.
    let resources: BTreeSet<_> = watches.into_keys().collect();
    assert_eq!(resources, BTreeSet::from(["deployments", "foos", "leases"]));
    assert!(
        then.iter().all(|request| request.starts_with("watch ")),
        "{then:?}"
    );
}
