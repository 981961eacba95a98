//! Fast failover (`deploy/components/fast-failover`): the delay of Foos after a leader was killed, the requests of the election,
//! and freezes around the end of the short Lease. `replicas.rs` and `environment.rs` check the invariants with the same times.

use std::time::Duration;

use foo_controller::api::Foo;
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use operator_testkit::{
    cluster::{AuditEvent, audit::Takeover},
    proxy::At,
};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::support::{
    fencing::rejections,
    fleet::{FAST, Fleet, Load, Options, Replica, USERS, Way, rounds, stands_by_again},
    foos::{create, delays, longest, names},
};

/// Pause after a kill. The new leader processes the backlog in this time.
const AFTER: Duration = Duration::from_secs(3);

/// Requests of a new leader before its first write of a Deployment.
const TAKEOVER: [&str; 5] = [
    "get leases",
    "patch leases",
    "get serviceaccounts",
    "get leases",
    "patch serviceaccounts",
];

type Span = (Timestamp, Timestamp);

/// The next leader creates its first Deployment within 3.5 s of the kill, in the median, plus the longest delay of a Foo without a
/// fault. The Foos wait for at most the same time, in the median. The latter is not checked on a machine where Foos wait for longer
/// than `retry_period` without a fault. No takeover lasts two Leases, as it would if the standby missed the renewals.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_replaced_within_its_short_lease() {
    let mut fleet = Fleet::start(Options {
        fencing: true,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    let load = Load::start(&fleet);
    sleep(AFTER).await;
    let leader = fleet.leader(None).await;
    let begin = Timestamp::now();
    sleep(FAST.lease * 2).await;
    let calm = (begin, Timestamp::now());
    let mut killed = Vec::new();
    for _ in 0..rounds(10, 3) {
        let begin = Timestamp::now();
        fleet.kill_leader().await;
        let end = Timestamp::now();
        let new = fleet.leader(None).await;
        killed.push(((begin, end), fleet.replicas[new].user));
        sleep(AFTER).await;
    }
    load.stop().await;
    fleet.converged().await;
    assert_eq!(fleet.violated("killed leaders"), [].into());
    let log = fleet.cluster.audit();

    let delays = delays(&log);
    let usual = longest(&delays, calm);
    let mut longest: Vec<_> = killed.iter().map(|it| longest(&delays, it.0)).collect();
    println!("longest delay of a Foo: {usual:?} without a fault; after a kill: {longest:?}");
    longest.sort_unstable();
    // A machine that is slow without a fault does not process the backlog in time.
    if usual <= FAST.retry {
        let median = longest[longest.len() / 2];
        assert!(median <= FAST.lease * 7 / 6 + usual, "{longest:?}");
    }

    for (user, leads) in USERS.iter().zip(0..).map(|(user, n)| (user, n == leader)) {
        let sent = requests_of(&log, user, calm)
            .map(describe)
            .collect::<Vec<_>>();
        if leads {
            check_renewal_rate(&sent, calm);
        } else {
            // Watches that have ended are opened again.
            assert!(sent.iter().all(|it| it.starts_with("watch ")), "{sent:?}");
        }
    }
    let mut first: Vec<_> = (killed.iter())
        .map(|(span, user)| takeover_time(&log, user, *span))
        .collect();
    println!("from a kill to the first Deployment: {first:?}");
    first.sort_unstable();
    assert!(
        first[first.len() / 2] <= FAST.lease * 7 / 6 + usual,
        "{first:?}"
    );
    assert!(
        first[first.len() - 1] <= FAST.lease * 2 + usual,
        "{first:?}"
    );
}

/// The busy leader is frozen for times from half a second before its deadline to half a second after the end of its Lease. So it is
/// thawed before its term has ended, without a leader, during the takeover, and when another replica leads. No write of a replica
/// that does not lead is stored, and none is sent later than the deadline allows.
#[tokio::test(flavor = "multi_thread")]
async fn h20_freezes_around_the_end_of_a_short_lease_cause_no_late_write() {
    let mut fleet = Fleet::start(Options {
        fencing: true,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    let count = u32::try_from(rounds(30, 6)).unwrap();
    let mut changes = Vec::new();
    for round in 0..count {
        // Evenly from 1.5 s to 3.5 s. The moment in the interval between two renewals is random.
        let time = FAST.renew * 3 / 4 + FAST.lease * 2 / 3 * round / (count - 1);
        changes.push(fleet.freeze_leader_for(time).await);
        assert_eq!(fleet.violated(&format!("frozen for {time:?}")), [].into());
    }
    fleet.converged().await;
    fleet.wait_for_record().await;
    assert_eq!(fleet.violated("frozen leaders"), [].into());
    let log = fleet.cluster.audit();
    let rejected = USERS.map(|user| rejections(&log, user).count());
    println!("changes of leader: {changes:?}; rejected by the policy: {rejected:?}");
    assert!(!changes[0] && changes[changes.len() - 1], "{changes:?}");
}

/// The leader is frozen while its writes are in transit, and they arrive when another replica leads. The Foos have changed in that
/// time: without the policy, the API server would create Deployments that no Foo specifies.
#[tokio::test(flavor = "multi_thread")]
async fn h20_writes_in_transit_at_a_freeze_are_rejected_after_the_takeover() {
    /// Concurrent writes: the number of workers.
    const WRITES: usize = 2;
    let fleet = Fleet::start(Options {
        fencing: true,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    let foos: Api<Foo> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let rounds = rounds(10, 2);
    for round in 0..rounds {
        let old = fleet.leader(None).await;
        let Replica { process, proxy, .. } = &fleet.replicas[old];
        let proxy = proxy.as_ref().unwrap();
        let mut held: Vec<_> = (0..WRITES)
            .map(|_| proxy.on("create", "deployments").hold(At::Server))
            .collect();
        let names = names(&format!("foo-{round}"), WRITES);
        create(&fleet.client, &fleet.namespace, &names).await;
        for write in &mut held {
            write.arrived().await;
        }
        process.signal(Signal::STOP);
        for name in &names {
            let patch = json!({ "spec": { "deploymentName": format!("{name}-renamed") } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            foos.patch(name, &params, &patch).await.unwrap();
        }
        fleet.leader(Some(old)).await;
        // The API server has seen the new record: it admits the writes of the new leader.
        fleet.converged().await;
        let before = process.logged("standing by");
        for mut write in held {
            assert_eq!(write.go().await, StatusCode::FORBIDDEN);
        }
        process.signal(Signal::CONT);
        stands_by_again(process, before).await;
    }
    fleet.converged().await;
    let log = fleet.cluster.audit();
    let rejected: usize = USERS
        .iter()
        .map(|user| rejections(&log, user).count())
        .sum();
    println!("the policy rejected {rejected} late writes");
    assert_eq!(rejected, rounds * WRITES);
    // The checker counts the delay in the network as a late write.
    assert_eq!(
        fleet.violated("frozen with writes in transit"),
        ["I2".to_owned()].into()
    );
}

fn describe(event: &AuditEvent) -> String {
    format!("{} {}", event.verb, event.resource)
}

/// Returns the requests of a user that arrived in this period, in the order of their arrival.
fn requests_of<'a>(
    log: &'a [AuditEvent],
    user: &str,
    (from, to): Span,
) -> impl Iterator<Item = &'a AuditEvent> {
    let mut sent: Vec<_> = log
        .iter()
        .filter(|event| event.user == user && (from..to).contains(&event.received.0))
        .collect();
    sent.sort_by_key(|event| event.received.0);
    sent.into_iter()
}

/// A renewal reads the Lease and writes it. The fencing record is not written again.
fn check_renewal_rate(sent: &[String], calm: Span) {
    let count = |request: &str| sent.iter().filter(|it| *it == request).count();
    let (reads, writes) = (count("get leases"), count("patch leases"));
    let span: Duration = calm.1.duration_since(calm.0).try_into().unwrap();
    println!("the leader sent {reads} reads and {writes} writes of the Lease in {span:?}");
    assert!(
        reads.abs_diff(writes) <= 1,
        "{reads} reads, {writes} writes"
    );
    // `retry_period` varies by 10 %, and is counted from the start of the previous attempt. A busy machine renews less often.
    let max_writes = span.div_duration_f64(FAST.retry) / 0.9 + 1.0;
    let min_writes = span.div_duration_f64(FAST.retry) / 1.2 / 2.0;
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let writes = writes as f64;
    assert!(
        (min_writes..=max_writes).contains(&writes),
        "{writes} of {min_writes} to {max_writes}"
    );
    assert_eq!(
        sent.iter()
            .filter(|it| it.ends_with("serviceaccounts"))
            .count(),
        0
    );
}

/// Checks that the new leader acquires the Lease and writes the record, and that it sends each write of a Deployment or Foo later,
/// also a write that the policy would reject. Returns the time from the kill to the first stored Deployment.
fn takeover_time(log: &[AuditEvent], user: &str, span: Span) -> Duration {
    let sent: Vec<_> = requests_of(log, user, span).collect();
    let election: Vec<_> = (sent.iter().copied())
        .filter(|event| event.verb != "watch")
        .filter(|event| ["leases", "serviceaccounts"].contains(&&*event.resource))
        .collect();
    let taken = election
        .iter()
        .position(|event| event.verb == "patch" && event.resource == "leases" && event.is_success())
        .unwrap();
    let requests: Vec<_> = election[taken - 1..]
        .iter()
        .map(|it| describe(it))
        .collect();
    assert!(
        requests.starts_with(&TAKEOVER.map(str::to_owned)),
        "{user}: {requests:?}"
    );
    let recorded = election[taken + 3];
    assert!(recorded.is_success(), "{user}: {}", recorded.code);
    let is_write = |event: &AuditEvent| {
        (event.resource.starts_with("deployments") || event.resource.starts_with("foos"))
            && ["create", "update", "patch", "delete"].contains(&&*event.verb)
    };
    let writes: Vec<_> = sent.iter().filter(|event| is_write(event)).collect();
    assert!(
        writes.iter().all(|it| it.received >= recorded.reached),
        "{user} writes before its record"
    );
    let takeover = Takeover::find(log, user, span.0, "deployments").unwrap();
    takeover.work.duration_since(span.0).try_into().unwrap()
}
