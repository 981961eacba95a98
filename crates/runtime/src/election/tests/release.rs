//! Tests of a replica that stops, or cannot work, and releases the Lease.

use super::*;

#[tokio::test(start_paused = true)]
async fn i8_shutdown_releases_the_lease_with_one_conditional_write() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    api.requests();
    a.stop.take().unwrap().send(()).unwrap();
    a.task.await.unwrap();
    assert_eq!(api.holder(), "");
    let requests = api.requests();
    let writes: Vec<_> = requests
        .iter()
        .filter(|seen| seen.method == Method::PATCH)
        .collect();
    assert_eq!(writes.len(), 1);
    assert!(writes[0].body["metadata"]["resourceVersion"].is_string());
}

/// A replica that holds no Lease, as far as it knows, waits for no writes. If it cannot read the Lease, the log does not claim
/// that it holds one.
#[tokio::test(start_paused = true)]
async fn p2_asked_to_stop_without_a_lease_it_ends_at_once() {
    let forbidden = FakeApi::released();
    forbidden.mood(Mood::Fails(403));
    let deleted = FakeApi::new();
    deleted.mood_of(Verb::Create, Mood::Fails(403));
    let held = FakeApi::new();
    held.put(&json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15}));
    for (api, then, after, cause) in [
        (
            forbidden,
            Mood::Fails(403),
            RETRY * 2,
            Some("Test: a bad day"),
        ),
        (held, Mood::Resets, LEASE + RETRY, Some("connection reset")),
        (deleted, Mood::Serves, RETRY * 2, None),
    ] {
        let mut a = Replica::run(&api, "a");
        sleep(SOON).await;
        api.mood(then);
        sleep(after).await;
        let (log, _guard) = logged(tracing::Level::WARN);
        let stopping = Instant::now();
        a.stop.take().unwrap().send(()).unwrap();
        a.task.await.unwrap();
        assert!(stopping.elapsed() <= SOON, "{:?}", stopping.elapsed());
        let log = String::from_utf8(log.lock().clone()).unwrap();
        assert_eq!(log.lines().count(), usize::from(cause.is_some()), "{log}");
        if let Some(cause) = cause {
            let text =
                "cannot read the lease to release it; if this replica holds it, it will expire: ";
            assert!(log.contains(text) && log.contains(cause), "{log}");
        }
    }
}

/// The term ends before the release is sent, even if the release hangs.
#[tokio::test(start_paused = true)]
async fn shutdown_takes_bounded_time_with_any_api_server_response() {
    for mood in [
        Mood::Serves,
        Mood::Hangs,
        Mood::Fails(500),
        Mood::Fails(409),
    ] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        api.mood(mood);
        let stopping = Instant::now();
        a.stop.take().unwrap().send(()).unwrap();
        a.leads(false, SOON).await;
        a.task.await.unwrap();
        assert!(
            stopping.elapsed() <= CALL * 2 + FINISH_TIMEOUT,
            "{:?}",
            stopping.elapsed()
        );
    }
}

/// Each attempt takes longer than the pause after it, so the loop never waits between two attempts.
#[tokio::test(start_paused = true)]
async fn shutdown_takes_bounded_time_while_all_attempts_hang() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    api.mood(Mood::Hangs);
    sleep(LEASE * 2).await;
    a.stop.take().unwrap().send(()).unwrap();
    let ended = timeout(CALL * 2 + FINISH_TIMEOUT, a.task).await;
    ended.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn h4_a_standby_releases_nothing() {
    let api = FakeApi::released();
    let spec = json!({"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 9});
    api.put(&spec);
    let mut a = Replica::run(&api, "a");
    advance(RETRY * 3).await;
    a.stop.take().unwrap().send(()).unwrap();
    a.task.await.unwrap();
    assert_eq!(api.spec(), spec);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_work_does_not_run_for_leader() {
    let api = FakeApi::released();
    let mut a = Replica::able(&api, "a", Eligibility::None);
    advance(LEASE * 4).await;
    sleep(SOON).await;
    let requests = api.requests();
    let written = requests.iter().any(|seen| seen.method != Method::GET);
    assert!(!written && a.id().is_none());
    assert_eq!(a.failing().await, [""; 0]);
    a.ability.send_replace(Eligibility::Full);
    a.leads(true, SOON).await;
}

#[tokio::test(start_paused = true)]
async fn an_ineligible_leader_releases_the_lease_and_becomes_a_standby() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    let mut b = Replica::run(&api, "b");
    sleep(RETRY).await;
    a.ability.send_replace(Eligibility::None);
    a.leads(false, SOON).await;
    b.leads(true, RETRY * 2).await;
    for ability in [Eligibility::Full, Eligibility::None, Eligibility::Full] {
        a.ability.send_replace(ability);
        sleep(LEASE * 2).await;
        assert!(a.id().is_none() && b.id() == Some(1));
    }
    b.ability.send_replace(Eligibility::None);
    a.leads(true, RETRY * 2).await;
}

/// A replica that cannot work releases a Lease that it holds, however it was acquired.
#[tokio::test(start_paused = true)]
async fn a_lease_acquired_by_an_ineligible_replica_is_released() {
    let api = FakeApi::released();
    api.mood(Mood::Hangs);
    let mut a = Replica::run(&api, "a");
    // It has not read the Lease, and no write of a previous process is in flight.
    sleep(LEASE + RETRY * 2).await;
    a.ability.send_replace(Eligibility::None);
    sleep(SOON).await;
    api.put(&json!({"holderIdentity": "a_1", "leaseDurationSeconds": 15}));
    api.mood(Mood::Serves);
    let led = timeout(LEASE, a.term.wait_for(Option::is_some)).await;
    assert!(led.is_err());
    assert_eq!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn a_partially_eligible_replica_yields_to_a_fully_eligible_one() {
    let api = FakeApi::released();
    let mut part = Replica::able(&api, "part", Eligibility::Partial);
    let waited = part.leads(true, YIELD_DELAY + SOON).await;
    assert!(waited >= YIELD_DELAY, "alone it leads: {waited:?}");

    let api = FakeApi::released();
    let mut first = Replica::run(&api, "first");
    first.leads(true, SOON).await;
    let part = Replica::able(&api, "part", Eligibility::Partial);
    let mut all = Replica::run(&api, "all");
    sleep(LEASE).await;
    first.crash();
    all.leads(true, LEASE + RETRY * 2).await;
    sleep(LEASE).await;
    assert!(part.id().is_none());
}

/// A cancelled write may land until the API server has dropped it. Only then may another replica lead: after the release, or
/// after the Lease has expired.
#[tokio::test(start_paused = true)]
async fn a_lease_is_released_when_no_write_can_land_any_more() {
    for (limit, is_released) in [(CALL / 4, true), (CALL, false)] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        let term = a.term.borrow().clone().unwrap();
        let cut_off = term.writes().begin(limit);
        drop(cut_off);
        let stopping = Instant::now();
        a.stop.take().unwrap().send(()).unwrap();
        a.leads(false, SOON).await;
        a.task.await.unwrap();
        assert_eq!(api.holder().is_empty(), is_released);
        let took = stopping.elapsed();
        // It may have arrived that much later than it was sent.
        let over = limit + (LEASE - DEADLINE) * 2 / 5;
        assert!(took >= over.min(CALL) && took <= CALL + SOON, "{took:?}");
        let mut b = Replica::run(&api, "b");
        b.leads(true, LEASE + RETRY * 2).await;
        let led = stopping.elapsed();
        assert!(led > limit, "{led:?}");
    }
}

/// A leader that gives up the Lease also waits for its writes in flight.
#[tokio::test(start_paused = true)]
async fn a_leader_that_releases_the_lease_waits_for_its_writes() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    let write = a.term.borrow().as_ref().unwrap().writes().begin(CALL * 2);
    a.ability.send_replace(Eligibility::None);
    a.leads(false, SOON).await;
    sleep(SOON).await;
    assert_eq!(api.holder(), "a_1");
    write.over();
    sleep(SOON).await;
    assert_eq!(api.holder(), "");
}

/// A restarted container continues with the Lease of the previous process, and does not know its writes. A write may be in flight
/// for the longest time limit of a write.
#[tokio::test(start_paused = true)]
async fn a_restarted_replica_waits_for_writes_of_the_previous_process() {
    for (led, is_released) in [(SOON, false), (LEASE, true)] {
        let api = FakeApi::released();
        let mut killed = Replica::run(&api, "a");
        killed.leads(true, SOON).await;
        killed.task.abort();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        sleep(led).await;
        a.stop.take().unwrap().send(()).unwrap();
        a.task.await.unwrap();
        assert_eq!(api.holder().is_empty(), is_released, "after {led:?}");
    }
}

/// This also applies if its own attempts fail.
#[tokio::test(start_paused = true)]
async fn a_restarted_replica_that_cannot_renew_does_not_release_the_lease() {
    let api = FakeApi::released();
    let mut killed = Replica::run(&api, "a");
    killed.leads(true, SOON).await;
    killed.task.abort();
    api.mood_of(Verb::Patch, Mood::Fails(500));
    let mut a = Replica::run(&api, "a");
    sleep(SOON).await;
    api.mood_of(Verb::Patch, Mood::Serves);
    a.stop.take().unwrap().send(()).unwrap();
    a.task.await.unwrap();
    assert_eq!(api.holder(), "a_1");
}
