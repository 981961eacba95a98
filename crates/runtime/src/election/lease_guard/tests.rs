#![allow(
    clippy::unwrap_used,
    clippy::unchecked_time_subtraction,
    reason = "a test fails by panicking"
)]
use super::*;
use crate::{
    config::clock::Clock,
    election::{
        cause,
        fake::{FakeApi, Mood},
    },
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    client::ClientBuilder,
};
use kube_leader_election::{LeaseLock, LeaseLockParams};
use serde_json::json;
use tokio::time::{Instant, advance};
use tower::ServiceExt as _;

const DURATION: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(5);
const NOW: jiff::Timestamp = jiff::Timestamp::constant(1_600_000_000, 0);

fn guarded(api: &FakeApi) -> (LeaseGuardLayer, Api<Lease>) {
    guarded_at(api, || NOW)
}

/// Uses this time of day.
fn guarded_at(
    api: &FakeApi,
    now: impl Fn() -> Timestamp + Send + Sync + 'static,
) -> (LeaseGuardLayer, Api<Lease>) {
    let start = Instant::now();
    let clock = Clock::from_fn(move || start.elapsed());
    let host = Host::new(clock, now, || 0, []);
    let guard = LeaseGuardLayer::new(host, TIMEOUT, DURATION);
    let client = ClientBuilder::new(api.service(), "n")
        .with_layer(&guard)
        .build();
    (guard, Api::namespaced(client, "n"))
}

/// Returns the lock of the candidate `a`.
fn lock_of_a(leases: Api<Lease>) -> LeaseLock {
    let params = LeaseLockParams {
        holder_id: "a".into(),
        lease_name: "l".into(),
        lease_ttl: DURATION,
    };
    LeaseLock::new(leases.into_client(), "n", params)
}

fn held(renewed: &str) -> Value {
    json!({"holderIdentity": "b", "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 3})
}

async fn patch(leases: &Api<Lease>, holder: &str) -> kube::Result<Lease> {
    let patch = json!({"spec": {"holderIdentity": holder}});
    leases
        .patch("l", &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// Returns whether the lock would treat the Lease as expired.
async fn expired(leases: &Api<Lease>) -> bool {
    let spec = leases.get("l").await.unwrap().spec.unwrap();
    let age = jiff::Timestamp::now().duration_since(spec.renew_time.unwrap().0);
    age > jiff::SignedDuration::from_secs(spec.lease_duration_seconds.unwrap().into())
}

#[tokio::test(start_paused = true)]
async fn h1_a_write_is_conditional_on_the_read_before_it() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (_, leases) = guarded(&api);
    leases.get("l").await.unwrap();
    api.put(&held("2020-01-01T00:00:01.000000Z"));
    let conflict = patch(&leases, "a").await.unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.code == 409));
    assert_eq!(api.holder(), "b");

    leases.get("l").await.unwrap();
    patch(&leases, "a").await.unwrap();
    assert_eq!(api.holder(), "a");
}

/// The lock reads the system clock, and not the host's.
#[tokio::test(start_paused = true)]
async fn lease_writes_are_dated_by_the_hosts_clock() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (_, leases) = guarded(&api);
    leases.get("l").await.unwrap();
    let other = "2030-01-01T00:00:00.000000Z";
    let patch = json!({"spec": {"acquireTime": other, "renewTime": other}});
    let patch = Patch::Merge(patch);
    let dated = leases.patch("l", &PatchParams::default(), &patch).await;
    dated.unwrap();
    for date in DATES {
        assert_eq!(api.spec()[date], json!(MicroTime(NOW)));
    }
}

/// An example is the assertion of the fencing record during an attempt.
#[tokio::test(start_paused = true)]
async fn h1_a_bypassing_read_is_not_the_precondition_of_a_write() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (guard, leases) = guarded(&api);
    leases.get("l").await.unwrap();
    api.put(&held("2020-01-01T00:00:01.000000Z"));
    let observed = guard.observed();
    let path = format!("{}/l", leases.resource_url());
    let aside = Request::get(path).extension(BypassGuard).body(Vec::new());
    let client = leases.clone().into_client();
    let read: Lease = client.request(aside.unwrap()).await.unwrap();
    assert_eq!(json!(read.spec), json!(api.spec()), "as it is");
    assert_eq!(guard.observed(), observed);
    let conflict = patch(&leases, "a").await.unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.code == 409));
}

#[tokio::test(start_paused = true)]
async fn h3_each_write_needs_a_read_of_its_own() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (_, leases) = guarded(&api);
    assert!(
        patch(&leases, "a")
            .await
            .unwrap_err()
            .to_string()
            .contains("without a preceding read")
    );
    leases.get("l").await.unwrap();
    patch(&leases, "a").await.unwrap();
    assert!(
        patch(&leases, "c")
            .await
            .unwrap_err()
            .to_string()
            .contains("without a preceding read")
    );
    assert_eq!(api.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn h5_expiry_is_judged_by_how_long_the_lease_was_seen_unchanged() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let api = FakeApi::new();
        api.put(&held(renewed));
        let (_, leases) = guarded(&api);
        assert!(!expired(&leases).await, "at first sight");
        advance(DURATION - Duration::from_millis(1)).await;
        assert!(!expired(&leases).await, "before its time");
        advance(Duration::from_millis(1)).await;
        assert!(expired(&leases).await, "at its time");
        api.put(&held("2000-01-01T00:00:00.000000Z"));
        assert!(!expired(&leases).await, "renewed");
    }
}

/// A suspended replica has not seen that a vacant Lease had a holder in between. That holder acts until it notices.
#[tokio::test(start_paused = true)]
async fn h12_h21_a_lease_that_was_held_in_between_restarts_the_wait() {
    for vacant in [json!({}), FakeApi::released().spec()] {
        let api = FakeApi::new();
        api.put(&vacant);
        let (_, leases) = guarded(&api);
        advance(DURATION * 2).await;
        expired(&leases).await;
        advance(DURATION * 2).await;
        assert!(expired(&leases).await, "nobody has written it: {vacant}");
        api.put(&held("2021-01-01T00:00:00.000000Z"));
        api.put(&vacant);
        assert!(!expired(&leases).await, "as it was: {vacant}");
        advance(DURATION).await;
        assert!(expired(&leases).await, "after a lease: {vacant}");
    }
}

/// Writes without a change delay a takeover only a limited number of times.
#[tokio::test(start_paused = true)]
async fn h16_repeated_writes_do_not_block_a_vacant_lease_forever() {
    for vacant in [json!({}), FakeApi::released().spec()] {
        let api = FakeApi::new();
        api.put(&vacant);
        let (_, leases) = guarded(&api);
        expired(&leases).await;
        for touched in 0..240 {
            advance(DURATION - Duration::from_secs(1)).await;
            api.put(&vacant);
            assert!(!expired(&leases).await, "{touched}");
        }
        advance(DURATION - Duration::from_secs(1)).await;
        api.put(&vacant);
        advance(Duration::from_secs(1)).await;
        assert!(expired(&leases).await, "{vacant}");
    }
}

#[tokio::test(start_paused = true)]
async fn h5_a_watched_lease_counts_as_seen() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (guard, leases) = guarded(&api);
    let watched = leases.get("l").await.unwrap();
    let raw: Lease =
        serde_json::from_value(json!({"metadata": watched.metadata, "spec": api.spec()})).unwrap();
    assert_eq!(
        guard.observe(&raw),
        Some(false),
        "as read, the times in it aside"
    );
    assert_eq!(guard.observe_deleted(&raw), Some(true));
    assert_eq!(guard.observe(&raw), Some(true));
    advance(DURATION).await;
    assert!(expired(&leases).await);
}

/// A watch that is behind delivers such a version.
#[tokio::test(start_paused = true)]
async fn h21_a_held_version_dated_no_earlier_shows_that_a_release_is_a_copy() {
    let dates = [1, 2, 3].map(|second| format!("2020-01-01T00:00:0{second}.000000Z"));
    let copy = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": dates[1], "renewTime": dates[1]});
    for (date, is_copy) in dates.iter().zip([false, true, true]) {
        let api = FakeApi::new();
        api.put(&held(date));
        let (_, others) = guarded(&api);
        let metadata = others.get("l").await.unwrap().metadata;
        let before = serde_json::from_value(json!({"metadata": metadata, "spec": api.spec()}));
        api.put(&copy);
        let (guard, leases) = guarded(&api);
        assert!(expired(&leases).await, "nothing else was seen");
        assert_eq!(guard.observe(&before.unwrap()), None);
        assert_eq!(expired(&leases).await, !is_copy, "held at {date}");
        advance(DURATION).await;
        assert!(expired(&leases).await);
    }
}

/// Each change is reported once.
#[tokio::test(start_paused = true)]
async fn h5_a_response_older_than_the_watch_is_ignored() {
    // The Lease in the response, and the Lease in the watch event.
    for (is_there, was_there, is_taken) in [
        (true, true, false),
        (true, false, false),
        (false, true, false),
        (false, false, true),
    ] {
        let api = FakeApi::new();
        if is_there {
            api.put(&held("2020-01-01T00:00:00.000000Z"));
        }
        let watched_lease = json!({"metadata": {"resourceVersion": "999"}, "spec": held("2020-01-01T00:00:01.000000Z")});
        let watched_lease: Lease = serde_json::from_value(watched_lease).unwrap();
        let (guard, _) = guarded(&api);
        let service = {
            let guard = guard.clone();
            tower::service_fn(move |request| {
                let _ = if was_there {
                    guard.observe(&watched_lease)
                } else {
                    guard.observe_deleted(&watched_lease)
                };
                api.service().oneshot(request)
            })
        };
        let client = ClientBuilder::new(service, "n").with_layer(&guard);
        let lock = lock_of_a(Api::namespaced(client.build(), "n"));
        let attempt = lock.try_acquire_or_renew().await;
        assert_eq!(attempt.is_ok(), is_taken, "{attempt:?}");
        let Err(overtaken) = attempt else { continue };
        assert!(cause::is_rivalry(&overtaken), "{overtaken}");
        assert_eq!(guard.observed().exists(), was_there);
        assert_eq!(guard.observed().names("b"), was_there);
        // The next read is accepted, as after an etcd restore.
        assert!(lock.try_acquire_or_renew().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_hanging_call_ends() {
    let api = FakeApi::new();
    let (_, leases) = guarded(&api);
    api.mood(Mood::Hangs);
    let start = Instant::now();
    assert!(
        leases
            .get("l")
            .await
            .unwrap_err()
            .to_string()
            .contains("no answer")
    );
    assert_eq!(start.elapsed(), TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn h7_a_lease_that_is_read_has_all_fields() {
    let at = "2020-01-01T00:00:00.000000Z";
    let released = [
        json!({"leaseDurationSeconds": 1, "acquireTime": at, "renewTime": at}),
        json!({"holderIdentity": null, "leaseDurationSeconds": 1, "acquireTime": at, "renewTime": at}),
        // The notation of a time is not unique.
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": at, "renewTime": "2020-01-01T00:00:00Z"}),
    ];
    let not_yet = [
        json!({}),
        json!({"holderIdentity": null, "leaseDurationSeconds": 15}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
        json!({"holderIdentity": "b"}),
        json!({"holderIdentity": "b", "leaseDurationSeconds": 15}),
        // An edit that clears only the holder is no release.
        json!({"renewTime": at}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 15, "acquireTime": at, "renewTime": at}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": at}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": "2019-12-31T23:59:59Z", "renewTime": at}),
    ];
    let cases = released
        .iter()
        .map(|spec| (spec, true))
        .chain(not_yet.iter().map(|spec| (spec, false)));
    for (spec, free) in cases {
        let api = FakeApi::new();
        api.put(spec);
        let (_, leases) = guarded(&api);
        assert_eq!(expired(&leases).await, free, "{spec}");
        let read = leases.get("l").await.unwrap().spec.unwrap();
        assert!(
            read.holder_identity.is_some() && read.lease_transitions.is_some(),
            "{spec}"
        );
        advance(DURATION).await;
        assert!(expired(&leases).await, "{spec}");
    }
}

async fn create(leases: &Api<Lease>, holder: &str) -> kube::Result<Lease> {
    let at = "2020-01-01T00:00:00.000000Z";
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": at, "renewTime": at,
    });
    let lease = serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": spec}));
    leases.create(&PostParams::default(), &lease.unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn h12_a_lease_is_created_with_no_holder() {
    let api = FakeApi::new();
    let (_, leases) = guarded(&api);
    let created = create(&leases, "a").await.unwrap();
    assert_eq!(created.spec.unwrap().holder_identity.unwrap(), "");
    let spec = json!({"leaseDurationSeconds": 15, "leaseTransitions": 0});
    assert_eq!(api.spec(), spec);
}

#[tokio::test(start_paused = true)]
async fn h12_a_lease_without_a_holder_is_free_after_a_full_duration() {
    let api = FakeApi::new();
    let (guard, leases) = guarded(&api);
    assert!(leases.get("l").await.is_err());
    create(&leases, "a").await.unwrap();
    advance(DURATION - Duration::from_millis(1)).await;
    assert!(!expired(&leases).await, "before its time");
    guard.leads_until(Some(DURATION));
    assert!(expired(&leases).await, "for who leads");
    guard.leads_until(Some(DURATION - Duration::from_millis(1)));
    assert!(!expired(&leases).await, "for who led");
    advance(Duration::from_millis(1)).await;
    assert!(expired(&leases).await, "at its time");

    // Another replica may have held the first Lease in between.
    api.delete();
    create(&leases, "a").await.unwrap();
    assert!(!expired(&leases).await, "another");
    advance(DURATION).await;
    assert!(expired(&leases).await);
}

/// The holder may have had a longer duration than this replica.
#[tokio::test(start_paused = true)]
async fn h12_a_lease_after_one_that_was_held_is_free_after_the_longer_of_both_durations() {
    let api = FakeApi::new();
    let mut long = held("2020-01-01T00:00:00.000000Z");
    long["leaseDurationSeconds"] = json!(60);
    api.put(&long);
    let (_, leases) = guarded(&api);
    leases.get("l").await.unwrap();
    api.delete();
    assert!(leases.get("l").await.is_err());
    create(&leases, "a").await.unwrap();
    advance(Duration::from_mins(1) - Duration::from_millis(1)).await;
    assert!(!expired(&leases).await);
    advance(Duration::from_millis(1)).await;
    assert!(expired(&leases).await);
}

#[tokio::test(start_paused = true)]
async fn h15_shortening_the_duration_does_not_shorten_the_wait() {
    for (before, after, free) in [(15, 1, 15), (60, 1, 60), (60, 15, 60), (1, 1, 15)] {
        let api = FakeApi::new();
        let mut spec = held("2020-01-01T00:00:00.000000Z");
        spec["leaseDurationSeconds"] = before.into();
        api.put(&spec);
        let (_, leases) = guarded(&api);
        assert!(!expired(&leases).await);
        spec["leaseDurationSeconds"] = after.into();
        api.put(&spec);
        advance(Duration::from_secs(free) - Duration::from_millis(1)).await;
        assert!(!expired(&leases).await, "{before} {after}");
        advance(Duration::from_millis(1)).await;
        assert!(expired(&leases).await, "{before} {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn h11_a_write_that_changes_nothing_is_a_failure() {
    let api = FakeApi::new();
    api.put(&held("2020-01-01T00:00:00.000000Z"));
    let (_, leases) = guarded(&api);
    leases.get("l").await.unwrap();
    assert!(
        patch(&leases, "b")
            .await
            .unwrap_err()
            .to_string()
            .contains("did not change the Lease")
    );
}

/// A response that is no newer than the version read does not show the result of the write.
#[test]
fn h11_a_response_to_a_write_is_newer_than_the_version_read() {
    for (version, base, newer) in [
        (Some("8"), "7", true),
        (Some("10"), "9", true),
        (Some("7"), "7", false),
        (Some("6"), "7", false),
        (Some("x"), "7", false),
        (None, "7", false),
        (Some("y"), "x", true),
        (Some("x"), "x", false),
    ] {
        let mut lease = Lease::default();
        lease.metadata.resource_version = version.map(Into::into);
        assert_eq!(is_newer(&lease, base), newer, "{version:?} after {base}");
    }
}

/// Other replicas do not see a renewal with the time of the previous one, so its holder must not rely on it. Each renewal has a
/// later time, even if the clock does not advance.
#[tokio::test(start_paused = true)]
async fn h11_a_renewal_by_a_clock_that_stands_still_is_seen() {
    let api = FakeApi::released();
    let (_, leases) = guarded(&api);
    let lock = lock_of_a(leases);
    lock.try_acquire_or_renew().await.unwrap();
    assert_eq!(api.holder(), "a");
    let mut renewed = api.spec()["renewTime"].clone();
    for _ in 0..3 {
        advance(Duration::from_secs(2)).await;
        lock.try_acquire_or_renew().await.unwrap();
        let later = api.spec()["renewTime"].clone();
        assert!(later.as_str() > renewed.as_str(), "{later} after {renewed}");
        renewed = later;
    }
}

/// This includes a clock that is set back by more than a lease duration, and a previous clock that was ahead. A time that is
/// too far ahead for a clock is an edit, and no write waits for it.
#[tokio::test(start_paused = true)]
async fn h11_a_renewal_by_a_clock_that_was_set_back_is_seen() {
    for (read, behind, is_later) in [
        (0, 20, true),
        (1800, 0, true),
        (1800, 1700, true),
        (7200, 0, false),
    ] {
        let api = FakeApi::new();
        let seconds = |seconds: i64| SignedDuration::from_secs(seconds);
        let mut lease = held(&(NOW + seconds(read)).to_string());
        lease["holderIdentity"] = "a".into();
        api.put(&lease);
        let set_back = Arc::new(Mutex::new(NOW));
        let now = Arc::clone(&set_back);
        let (_, leases) = guarded_at(&api, move || *now.lock());
        let lock = lock_of_a(leases);
        lock.try_acquire_or_renew().await.unwrap();
        let date = || api.spec()["renewTime"].as_str().unwrap().parse().unwrap();
        let first: Timestamp = date();
        assert_eq!(first > NOW + seconds(read), is_later, "{first}");
        *set_back.lock() = NOW - seconds(behind);
        advance(Duration::from_secs(2)).await;
        lock.try_acquire_or_renew().await.unwrap();
        let second: Timestamp = date();
        assert!(second > first, "{second} after {first}");
    }
}
