//! The loop on paused time, against an API server that knows one Lease and has bad days.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unchecked_time_subtraction,
    reason = "a test fails by panicking, and shows what it has measured"
)]

use super::{
    fake::{FakeApi, Mood, Seen, Service, Verb},
    *,
};
use crate::app::tests::{APP, HOLDER_KEY};
use crate::telemetry::health::{Health, Probe};
use http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, advance, sleep, timeout},
};
use tower::{ServiceExt as _, service_fn, util::BoxService};

const LEASE: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
const CALL: Duration = Duration::from_secs(5);
/// What one replica may ask of the API server in a minute, whatever that answers (H14).
const PER_MINUTE: usize = 120;
/// Time for one request after the other on a paused clock.
const SOON: Duration = Duration::from_millis(20);

struct Replica {
    health: Health,
    term: watch::Receiver<Option<Term>>,
    ability: watch::Sender<Ability>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

fn standing(api: &FakeApi, name: &str, sender: watch::Sender<Option<Term>>) -> Standing {
    standing_at(api.service(), name, (LEASE, DEADLINE, RETRY), sender)
}

fn standing_at(
    service: Service,
    name: &str,
    (lease_duration, renew_deadline, retry_period): (Duration, Duration, Duration),
    sender: watch::Sender<Option<Term>>,
) -> Standing {
    let start = Instant::now();
    let clock = Clock::from_fn(move || start.elapsed());
    let settings = LeaderElection {
        enabled: true,
        lease_name: "l".into(),
        lease_namespace: Some("n".into()),
        lease_duration,
        renew_deadline,
        retry_period,
    };
    let mut host = Host::for_tests([]);
    host.clock = clock;
    let guard = LeaseGuardLayer::new(host.clone(), settings.call_timeout(), lease_duration);
    let client = ClientBuilder::new(service, "n").with_layer(&guard).build();
    let identity = Identity::new(name, "1").unwrap();
    let metrics = Metrics::disconnected(&APP);
    Standing::new(host, &settings, identity, client, guard, sender, &metrics).unwrap()
}

impl Replica {
    fn stand(api: &FakeApi, name: &str) -> Self {
        Self::able(api, name, Ability::All)
    }

    fn able(api: &FakeApi, name: &str, ability: Ability) -> Self {
        Self::able_at(api.service(), name, (LEASE, DEADLINE, RETRY), ability)
    }

    /// One to whose requests something happens before they arrive, which may take a while.
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
        Self::able_at(BoxService::new(service), name, times, Ability::All)
    }

    fn able_at(
        service: Service,
        name: &str,
        times: (Duration, Duration, Duration),
        ability: Ability,
    ) -> Self {
        let (sender, term) = watch::channel(None);
        let (stop, stopped) = oneshot::channel::<()>();
        let standing = standing_at(service, name, times, sender);
        let (ability, able) = watch::channel(ability);
        let mut health = Health::new(&Host::of_this_process());
        let pulse = health.pulse("leader-election");
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            standing.run(&pulse, able, stopped).await;
        });
        Self {
            health,
            term,
            ability,
            stop: Some(stop),
            task,
        }
    }

    /// Waits until this replica leads, or does not, and returns how long that took.
    async fn leads(&mut self, leads: bool, within: Duration) -> Duration {
        let start = Instant::now();
        let wait = self.term.wait_for(|term| term.is_some() == leads);
        timeout(within, wait)
            .await
            .unwrap_or_else(|_| panic!("leads == {leads}: not within {within:?}"))
            .unwrap();
        start.elapsed()
    }

    /// What fails liveness, looked at for an hour.
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
async fn a_lease_that_was_released_is_taken_at_once() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let api = FakeApi::new();
        api.put(&json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": renewed}));
        let mut a = Replica::stand(&api, "a");
        a.leads(true, SOON).await;
        assert_eq!(api.holder(), "a_1");
        let left = a.term.borrow().as_ref().and_then(Term::remaining).unwrap();
        assert!(left <= DEADLINE, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_loop_turns_whatever_the_api_server_does() {
    let api = FakeApi::released();
    let mut leader = Replica::stand(&api, "a");
    leader.leads(true, SOON).await;
    let standby = Replica::stand(&api, "b");
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
    let pulse = health.pulse("leader-election");
    let standing = standing(&api, "a", watch::channel(None).0);
    let mut running = std::pin::pin!(standing.run(
        &pulse,
        watch::channel(Ability::All).1,
        std::future::pending()
    ));
    assert!(timeout(SOON, &mut running).await.is_err());
    // Nobody polls it any more.
    let _ = timeout(Duration::from_mins(1), health.watch()).await;
    let failing = health.failing(Probe::Live).concat();
    assert!(
        failing.starts_with("leader-election: taking its turn since "),
        "{failing}"
    );
    assert!(timeout(LEASE, &mut running).await.is_err());
    let _ = timeout(SOON, health.watch()).await;
    assert_eq!(health.failing(Probe::Live), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_the_same_term_with_a_later_deadline() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    for _ in 0..20 {
        a.term.changed().await.unwrap();
        let term = a.term.borrow().clone().unwrap();
        assert_eq!(term.id(), 1);
        assert!(term.remaining().unwrap() > DEADLINE - SOON);
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_leader_that_cannot_renew_stops_at_its_deadline_and_stands_again() {
    for mood in [
        Mood::Hangs,
        Mood::Fails(500),
        Mood::Fails(409),
        Mood::Fails(403),
    ] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
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
    let (mut a, mut b) = (Replica::stand(&api, "a"), Replica::stand(&api, "b"));
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
async fn the_same_identity_takes_its_own_lease_back_at_once() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    a.crash();
    advance(RETRY).await;
    Replica::stand(&api, "a").leads(true, SOON).await;
}

#[tokio::test(start_paused = true)]
async fn h2_a_leader_that_sees_another_holder_stops_at_once() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    api.put(&json!({"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 9}));
    a.leads(false, RETRY * 2).await;
    assert_eq!(api.holder(), "b");
}

/// Nobody else leads before the term ends, which goes on meanwhile.
#[tokio::test(start_paused = true)]
async fn h12_a_leader_takes_the_lease_that_was_deleted_at_once_which_is_another_term() {
    for alone in [true, false] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
        a.leads(true, SOON).await;
        let mut b = None;
        for id in 2..5 {
            // Right after a renewal.
            a.term.borrow_and_update();
            a.term.changed().await.unwrap();
            api.delete();
            let again = a
                .term
                .wait_for(|term| term.as_ref().is_none_or(|term| term.id() == id));
            let again = timeout(RETRY * 3 / 2, again).await.unwrap();
            assert!(again.unwrap().is_some(), "the term ended meanwhile");
            assert_eq!(api.holder(), "a_1");
            sleep(LEASE).await;
            if !alone {
                b.get_or_insert_with(|| Replica::stand(&api, "b"));
            }
        }
        a.stop.take().unwrap().send(()).unwrap();
        if let Some(mut b) = b {
            b.leads(true, RETRY).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h12_at_the_first_start_of_all_one_leads_after_a_lease() {
    let api = FakeApi::new();
    let mut replicas = ["a", "b", "c"].map(|name| Replica::stand(&api, name));
    sleep(SOON).await;
    // Also those that another was faster than (H10).
    let watches = api.requests();
    let watches = watches
        .iter()
        .filter(|seen| seen.uri.contains("watch=true"));
    assert_eq!(watches.count(), 3);
    sleep(LEASE - SOON * 2).await;
    assert!(replicas.iter().all(|replica| replica.id().is_none()));
    let [a, b, c] = &mut replicas;
    tokio::select! {
        _ = a.leads(true, RETRY) => {}
        _ = b.leads(true, RETRY) => {}
        _ = c.leads(true, RETRY) => {}
    }
    for _ in 0..60 {
        let leaders = replicas.iter().filter(|replica| replica.id().is_some());
        assert_eq!(leaders.count(), 1);
        sleep(Duration::from_secs(1)).await;
    }
}

/// Whether it saw who held it or not: the one who did may not know of the deletion yet.
#[tokio::test(start_paused = true)]
async fn h12_who_has_not_led_leads_no_sooner_than_a_lease_after_a_deletion() {
    for (knows, recreates) in [(false, false), (false, true), (true, false), (true, true)] {
        let api = FakeApi::released();
        let mut b = Replica::able(&api, "b", Ability::Nothing);
        if knows {
            // It has seen it released, and nothing since.
            b.ability.send_replace(Ability::All);
            b.leads(true, SOON).await;
            b.ability.send_replace(Ability::Nothing);
            b.leads(false, SOON).await;
            sleep(SOON).await;
        }
        let mut a = Replica::stand(&api, "a");
        a.leads(true, RETRY).await;
        sleep(LEASE).await;
        a.crash();
        api.delete();
        if recreates {
            api.put(&json!({}));
        }
        b.ability.send_replace(Ability::All);
        let waited = b.leads(true, LEASE * 2).await;
        assert!(
            waited >= LEASE && waited <= LEASE + RETRY * 2,
            "{knows} {recreates}: {waited:?}"
        );
    }
}

/// As people do who want another to lead: its holder does not know of it yet.
#[tokio::test(start_paused = true)]
async fn h21_who_has_not_led_leads_no_sooner_than_a_lease_after_somebody_else_cleared_the_holder() {
    for (is_another, is_cut_off) in [(false, false), (false, true), (true, false), (true, true)] {
        let api = FakeApi::released();
        let cut = Arc::new(AtomicBool::new(false));
        let happens = {
            let cut = Arc::clone(&cut);
            move |_: &FakeApi, _: &Request<Body>| {
                let wait = Duration::from_hours(u64::from(cut.load(Relaxed)));
                async move { sleep(wait).await }
            }
        };
        let mut a = Replica::behind(&api, "a", (LEASE, DEADLINE, RETRY), happens);
        a.leads(true, SOON).await;
        let b = Replica::stand(&api, "b");
        sleep(LEASE).await;
        cut.store(is_cut_off, Relaxed);
        let mut spec = api.spec();
        spec["holderIdentity"] = json!("");
        spec["leaseDurationSeconds"] = json!(1);
        if is_another {
            // It is put back from a copy that was made when nobody held it.
            api.delete();
        }
        api.put(&spec);
        let edited = Instant::now();
        let mut followed = None;
        while edited.elapsed() < LEASE * 2 {
            sleep(SOON).await;
            let case = format!("another Lease: {is_another}, cut off: {is_cut_off}");
            assert!(
                !(a.is_open() && b.is_open()),
                "{case}: {:?}",
                edited.elapsed()
            );
            assert!(is_cut_off || a.is_open(), "{case}: {:?}", edited.elapsed());
            if b.is_open() {
                followed.get_or_insert(edited.elapsed());
            }
        }
        match followed {
            Some(after) => assert!(
                is_cut_off && after >= LEASE && after <= LEASE + RETRY,
                "{after:?}"
            ),
            None => assert!(!is_cut_off && api.holder() == "a_1"),
        }
    }
}

/// Whatever stands in a Lease.
fn anything() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        Just(json!(i32::MAX)),
        Just(json!(i32::MIN)),
        Just(json!(0)),
        Just(json!(15)),
        Just(json!(1e300)),
        Just(json!("15")),
        Just(json!(null)),
    ];
    let time = prop_oneof![
        Just(json!("9999-12-31T23:59:59.999999Z")),
        Just(json!("0000-01-01T00:00:00.000000Z")),
        Just(json!("2020-01-01T00:00:00.000000Z")),
        ".*".prop_map(Value::from),
        Just(json!(null)),
        Just(json!(7)),
    ];
    let holder = prop_oneof![
        Just(json!("")),
        Just(json!("b_1")),
        Just(json!("a_1")),
        ".*".prop_map(Value::from),
        Just(json!(null)),
        Just(json!(["b"])),
    ];
    let spec = (holder, number.clone(), number, time.clone(), time);
    let spec = spec.prop_map(|(holder, duration, transitions, renewed, acquired)| {
        json!({
            "holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions,
            "renewTime": renewed, "acquireTime": acquired,
        })
    });
    prop_oneof![8 => spec, 1 => Just(json!({})), 1 => Just(json!(null)), 1 => Just(json!("no"))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn h16_nothing_in_a_lease_keeps_everybody_from_leading_for_good(spec in anything()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let api = FakeApi::new();
            api.put(&spec);
            let mut a = Replica::stand(&api, "a");
            // The longest lease that can be configured.
            a.leads(true, Duration::from_hours(1) + RETRY * 2).await;
            assert_eq!(api.holder(), "a_1");
            sleep(LEASE).await;
            assert_eq!(a.id(), Some(1));
            // Nor when it is put there while it leads.
            api.put(&spec);
            sleep(RETRY * 2).await;
            a.leads(true, Duration::from_hours(1) + RETRY * 2).await;
            a.stop.take().unwrap().send(()).unwrap();
            a.task.await.unwrap();
        });
    }
}

#[tokio::test(start_paused = true)]
async fn i8_asked_to_stop_it_releases_the_lease_by_one_conditional_write() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
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

/// The term ends before the release is sent: it ends even while that hangs.
#[tokio::test(start_paused = true)]
async fn asked_to_stop_it_ends_in_bounded_time_whatever_the_api_server_does() {
    for mood in [
        Mood::Serves,
        Mood::Hangs,
        Mood::Fails(500),
        Mood::Fails(409),
    ] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
        a.leads(true, SOON).await;
        api.mood(mood);
        let stopping = Instant::now();
        a.stop.take().unwrap().send(()).unwrap();
        a.leads(false, SOON).await;
        a.task.await.unwrap();
        assert!(
            stopping.elapsed() <= CALL * 2 + EVENT_TIMEOUT,
            "{:?}",
            stopping.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn h4_a_standby_releases_nothing() {
    let api = FakeApi::released();
    let spec = json!({"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 9});
    api.put(&spec);
    let mut a = Replica::stand(&api, "a");
    advance(RETRY * 3).await;
    a.stop.take().unwrap().send(()).unwrap();
    a.task.await.unwrap();
    assert_eq!(api.spec(), spec);
}

#[tokio::test(start_paused = true)]
async fn a_disputed_term_is_renewed_at_once_and_goes_on_if_the_lease_is_held() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    advance(RETRY / 2).await;
    let term = a.term.borrow_and_update().clone().unwrap();
    api.requests();
    term.dispute();
    advance(SOON).await;
    let renewals = api.requests();
    let renewals = renewals.iter().filter(|seen| seen.method == Method::PATCH);
    assert_eq!(renewals.count(), 1);
    assert!(a.term.has_changed().unwrap());
    assert_eq!(a.id(), Some(1));
}

/// A policy that refuses every write for ever, whether the Lease can be renewed or not.
#[tokio::test(start_paused = true)]
async fn h14_disputes_do_not_make_a_leader_ask_all_the_time() {
    for patches in [
        Mood::Serves,
        Mood::Fails(409),
        Mood::Fails(503),
        Mood::Resets,
    ] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
        a.leads(true, SOON).await;
        let term = a.term.borrow().clone().unwrap();
        api.mood_of(Verb::Patch, patches);
        api.requests();
        for _ in 0..6000 {
            term.dispute();
            sleep(Duration::from_millis(10)).await;
        }
        let requests = api.requests().len();
        assert!(requests <= PER_MINUTE, "{patches:?}: {requests}");
    }
}

/// All that a replica asks for, from an API server that answers each kind of request in each way.
#[tokio::test(start_paused = true)]
async fn h14_whatever_the_api_server_answers_a_replica_asks_at_a_bounded_pace() {
    let mut moods = vec![
        Mood::Serves,
        Mood::Hangs,
        Mood::Garbage,
        Mood::Resets,
        Mood::Ends,
        Mood::EndsStale,
    ];
    moods.extend([401, 403, 404, 405, 409, 410, 422, 429, 500, 503, 504].map(Mood::Fails));
    let held = json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"});
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
    for verb in [Verb::Get, Verb::Watch, Verb::Create, Verb::Patch] {
        for mood in &moods {
            if verb != Verb::Watch && matches!(mood, Mood::Ends | Mood::EndsStale) {
                continue;
            }
            // Held by somebody who goes on renewing it, released, not there.
            for spec in [Some(&held), Some(&released), None] {
                let api = FakeApi::new();
                if let Some(spec) = spec {
                    api.put(spec);
                }
                api.mood_of(verb, *mood);
                let a = Replica::stand(&api, "a");
                for second in 0..60 {
                    if spec == Some(&held) {
                        let mut renewed = held.clone();
                        renewed["renewTime"] =
                            json!(format!("2020-01-01T00:00:{second:02}.000000Z"));
                        api.put(&renewed);
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                let requests = api.requests().len();
                assert!(
                    requests <= PER_MINUTE,
                    "{verb:?} {mood:?} {spec:?}: {requests} requests in a minute"
                );
                a.crash();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h14_a_standby_whose_watch_fails_takes_over_in_time() {
    for mood in [
        Mood::Fails(403),
        Mood::Fails(410),
        Mood::Fails(429),
        Mood::Fails(500),
        Mood::Hangs,
        Mood::Garbage,
        Mood::Resets,
        Mood::Ends,
        Mood::EndsStale,
    ] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
        a.leads(true, SOON).await;
        api.mood_of(Verb::Watch, mood);
        let mut b = Replica::stand(&api, "b");
        sleep(Duration::from_mins(1)).await;
        // It leaves, and it dies.
        a.stop.take().unwrap().send(()).unwrap();
        b.leads(true, RETRY * 2).await;
        let mut c = Replica::stand(&api, "c");
        sleep(Duration::from_mins(1)).await;
        b.crash();
        let waited = c.leads(true, LEASE * 2).await;
        assert!(waited <= LEASE + RETRY * 2, "{mood:?}: {waited:?}");
        c.crash();
    }
}

#[tokio::test(start_paused = true)]
async fn a_disputed_term_is_over_at_once_if_somebody_else_holds_the_lease() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    advance(RETRY / 2).await;
    let term = a.term.borrow().clone().unwrap();
    api.put(&json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15}));
    term.dispute();
    a.leads(false, SOON).await;
    a.leads(true, LEASE + RETRY * 2).await;
    assert_eq!(a.id(), Some(2));
}

/// Before anything is written as its leader, and by no renewal.
#[tokio::test(start_paused = true)]
async fn the_fencing_record_names_a_leader_before_its_term_is_published() {
    let api = FakeApi::released();
    api.put_record(Some(json!({})));
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    assert_eq!(api.recorded(), "a_1");
    let asked = |requests: Vec<Seen>| {
        let record = requests
            .iter()
            .filter(|seen| seen.uri.contains("l-fencing"));
        record.count()
    };
    assert_eq!(asked(api.requests()), 2, "a read and a write");
    advance(LEASE * 4).await;
    assert_eq!(asked(api.requests()), 0);
}

/// The component is installed, or installed again, while somebody leads; or somebody wrote the record by hand.
#[tokio::test(start_paused = true)]
async fn a_leader_that_the_policy_does_not_know_makes_itself_known() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    for annotations in [json!({}), json!({HOLDER_KEY: "b_1"})] {
        api.put_record(Some(annotations));
        advance(RETRY / 2).await;
        a.term.borrow().clone().unwrap().dispute();
        advance(RETRY).await;
        timeout(RETRY, async {
            while api.recorded() != "a_1" {
                tokio::time::sleep(SOON).await;
            }
        })
        .await
        .unwrap();
        assert_eq!(a.id(), Some(1), "the same term");
    }
}

/// The record is no more than the policy needs: a leader leads without it.
#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_keeps_nobody_from_leading() {
    let api = FakeApi::released();
    api.refuse_records(500);
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    advance(LEASE * 4).await;
    assert_eq!(a.id(), Some(1));
    api.refuse_records(0);
    api.put_record(Some(json!({})));
    advance(RETRY * 2).await;
    timeout(RETRY * 2, async {
        while api.recorded() != "a_1" {
            tokio::time::sleep(SOON).await;
        }
    })
    .await
    .unwrap();
}

fn is_of_the_record(request: &Request<Body>) -> bool {
    request.uri().path().contains("l-fencing")
}

/// For how long of this time a fence is open, and how many terms that takes, where each request takes as long as this says.
async fn open(
    api: &FakeApi,
    times: (Duration, Duration, Duration),
    within: Duration,
    takes: impl Fn(&Request<Body>) -> Duration + Clone + Send + Sync + 'static,
) -> (Duration, u64) {
    let replicas = ["a", "b"].map(|name| {
        let takes = takes.clone();
        Replica::behind(api, name, times, move |_, request| sleep(takes(request)))
    });
    let (mut open, mut terms) = (Duration::ZERO, 0);
    let begun = Instant::now();
    while begun.elapsed() < within {
        sleep(SOON).await;
        if replicas.iter().any(Replica::is_open) {
            open += SOON;
        }
        let ids = replicas.iter().filter_map(Replica::id);
        terms = ids.fold(terms, u64::max);
        api.requests();
    }
    replicas.into_iter().for_each(Replica::crash);
    (open, terms)
}

/// To assert the record takes as many requests as to renew, and more.
#[tokio::test(start_paused = true)]
async fn a_slow_api_server_closes_no_fence_because_there_is_a_record() {
    let within = LEASE * 20;
    for milliseconds in [500, 1700, 2000, 2400] {
        let mut led = Vec::new();
        for is_installed in [false, true] {
            let api = FakeApi::released();
            api.put_record(is_installed.then(|| json!({})));
            let times = (LEASE, DEADLINE, RETRY);
            let takes = move |request: &Request<Body>| {
                let query = request.uri().query().unwrap_or_default();
                Duration::from_millis(milliseconds) * u32::from(!query.contains("watch=true"))
            };
            let (open, terms) = open(&api, times, within, takes).await;
            println!("{milliseconds} ms, installed {is_installed}: {open:?} in {terms} terms");
            assert_eq!(terms, 1, "{milliseconds} ms, installed: {is_installed}");
            assert_eq!(
                api.recorded(),
                if is_installed {
                    api.holder()
                } else {
                    String::new()
                }
            );
            led.push(open);
        }
        assert!(led[1] >= within.mul_f64(0.9), "{milliseconds} ms: {led:?}");
    }
}

/// As one is behind a webhook that is slow, or does not answer.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_slow_closes_no_fence() {
    let hangs = Duration::from_hours(1).as_millis();
    for (lease, renew, retry, takes) in [
        (15000, 10000, 2000, hangs),
        (15000, 10000, 2000, 4000),
        (3000, 1500, 500, hangs),
        (2000, 1000, 500, hangs),
        (2000, 1000, 500, 900),
        (1000, 500, 200, 600),
        (1000, 500, 200, hangs),
    ] {
        let api = FakeApi::released();
        api.put_record(Some(json!({})));
        let times = [lease, renew, retry].map(Duration::from_millis);
        let takes = Duration::from_millis(takes.try_into().unwrap());
        let takes = move |request: &Request<Body>| takes * u32::from(is_of_the_record(request));
        let within = Duration::from_mins(1);
        let (open, terms) = open(&api, times.into(), within, takes).await;
        println!("{times:?}: {open:?} in {terms} terms");
        assert_eq!(terms, 1, "{times:?}");
        assert!(open >= within.mul_f64(0.9), "{times:?}: {open:?}");
    }
}

/// Whatever its record is answered, and a policy that refuses for ever.
#[tokio::test(start_paused = true)]
async fn h14_a_record_does_not_make_a_leader_ask_all_the_time() {
    for refused in [0, 401, 409, 429, 500] {
        for is_disputed in [false, true] {
            let api = FakeApi::released();
            api.put_record(Some(json!({})));
            // A conflict at each write; or a write that somebody undoes.
            let meets = if is_disputed {
                Method::GET
            } else {
                Method::PATCH
            };
            let happens = move |api: &FakeApi, request: &Request<Body>| {
                if is_of_the_record(request) && request.method() == meets {
                    api.put_record(Some(json!({})));
                }
                std::future::ready(())
            };
            let mut a = Replica::behind(&api, "a", (LEASE, DEADLINE, RETRY), happens);
            a.leads(true, RETRY * 2).await;
            api.refuse_records(refused);
            api.requests();
            for _ in 0..6000 {
                if is_disputed {
                    a.term.borrow().as_ref().unwrap().dispute();
                }
                sleep(Duration::from_millis(10)).await;
            }
            let requests = api.requests();
            let of_record = requests
                .iter()
                .filter(|seen| seen.uri.contains("l-fencing"));
            let of_record = of_record.count();
            println!(
                "{refused} {is_disputed}: {} requests, {of_record} of them",
                requests.len()
            );
            assert!(of_record > 5, "it goes on trying");
            assert!(
                requests.len() <= PER_MINUTE,
                "{refused} {is_disputed}: {}",
                requests.len()
            );
            assert_eq!(a.id(), Some(1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_asserts_its_record_and_reads_that_another_leads_stops_at_once() {
    let api = FakeApi::released();
    let asserts = Arc::new(AtomicBool::new(false));
    let happens = {
        let asserts = Arc::clone(&asserts);
        move |api: &FakeApi, request: &Request<Body>| {
            if is_of_the_record(request) && asserts.swap(false, Relaxed) {
                api.put(&json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15}));
            }
            std::future::ready(())
        }
    };
    let mut a = Replica::behind(&api, "a", (LEASE, DEADLINE, RETRY), happens);
    a.leads(true, SOON).await;
    api.put_record(Some(json!({})));
    asserts.store(true, Relaxed);
    advance(RETRY / 2).await;
    a.term.borrow().as_ref().unwrap().dispute();
    a.leads(false, SOON).await;
    assert_eq!(api.recorded(), "");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_work_does_not_run_for_leader() {
    let api = FakeApi::released();
    let mut a = Replica::able(&api, "a", Ability::Nothing);
    advance(LEASE * 4).await;
    sleep(SOON).await;
    let requests = api.requests();
    let written = requests.iter().any(|seen| seen.method != Method::GET);
    assert!(!written && a.id().is_none());
    assert_eq!(a.failing().await, [""; 0]);
    a.ability.send_replace(Ability::All);
    a.leads(true, SOON).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_work_any_more_lets_another_lead_and_stands_by() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    let mut b = Replica::stand(&api, "b");
    sleep(RETRY).await;
    a.ability.send_replace(Ability::Nothing);
    a.leads(false, SOON).await;
    b.leads(true, RETRY * 2).await;
    for ability in [Ability::All, Ability::Nothing, Ability::All] {
        a.ability.send_replace(ability);
        sleep(LEASE * 2).await;
        assert!(a.id().is_none() && b.id() == Some(1));
    }
    b.ability.send_replace(Ability::Nothing);
    a.leads(true, RETRY * 2).await;
}

/// Whoever holds the Lease without being able to work gives it back, however it came to hold it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_came_too_late_is_given_back() {
    let api = FakeApi::released();
    api.mood(Mood::Hangs);
    let mut a = Replica::stand(&api, "a");
    sleep(SOON).await;
    a.ability.send_replace(Ability::Nothing);
    sleep(SOON).await;
    api.put(&json!({"holderIdentity": "a_1", "leaseDurationSeconds": 15}));
    api.mood(Mood::Serves);
    let led = timeout(LEASE, a.term.wait_for(Option::is_some)).await;
    assert!(led.is_err());
    assert_eq!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_can_do_a_part_leaves_the_lease_to_one_that_can_do_all() {
    let api = FakeApi::released();
    let mut part = Replica::able(&api, "part", Ability::Part);
    let waited = part.leads(true, YIELD_DELAY + SOON).await;
    assert!(waited >= YIELD_DELAY, "alone it leads: {waited:?}");

    let api = FakeApi::released();
    let mut first = Replica::stand(&api, "first");
    first.leads(true, SOON).await;
    let part = Replica::able(&api, "part", Ability::Part);
    let mut all = Replica::stand(&api, "all");
    sleep(LEASE).await;
    first.crash();
    all.leads(true, LEASE + RETRY * 2).await;
    sleep(LEASE).await;
    assert!(part.id().is_none());
}

/// What was cut off may land until the API server has dropped it. Only then may another lead: by the release, or else
/// because the Lease has expired.
#[tokio::test(start_paused = true)]
async fn a_lease_is_released_when_no_write_can_land_any_more() {
    for (limit, is_released) in [(CALL / 4, true), (CALL, false)] {
        let api = FakeApi::released();
        let mut a = Replica::stand(&api, "a");
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
        // It may have arrived that much later than it was sent (H19).
        let over = limit + (LEASE - DEADLINE) / 2;
        assert!(took >= over.min(CALL) && took <= CALL + SOON, "{took:?}");
        let mut b = Replica::stand(&api, "b");
        b.leads(true, LEASE + RETRY * 2).await;
        let led = stopping.elapsed();
        assert!(led > limit, "{led:?}");
    }
}

/// A leader that lets go, too, waits for what may still land.
#[tokio::test(start_paused = true)]
async fn a_leader_that_lets_go_waits_for_its_writes() {
    let api = FakeApi::released();
    let mut a = Replica::stand(&api, "a");
    a.leads(true, SOON).await;
    let write = a.term.borrow().as_ref().unwrap().writes().begin(CALL * 2);
    a.ability.send_replace(Ability::Nothing);
    a.leads(false, SOON).await;
    sleep(SOON).await;
    assert_eq!(api.holder(), "a_1");
    write.over();
    sleep(SOON).await;
    assert_eq!(api.holder(), "");
}
