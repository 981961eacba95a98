//! Tests of a Lease without a holder: created, deleted, cleared by hand, or with any content.

use super::*;

/// No other replica leads before the term ends, and the term continues in between.
#[tokio::test(start_paused = true)]
async fn h12_a_leader_retakes_a_deleted_lease_in_another_term() {
    for alone in [true, false] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        let mut b = None;
        for id in 2..5 {
            // Just after a renewal.
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
                b.get_or_insert_with(|| Replica::run(&api, "b"));
            }
        }
        a.stop.take().unwrap().send(()).unwrap();
        if let Some(mut b) = b {
            b.leads(true, RETRY).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h12_the_first_leader_starts_after_a_full_lease() {
    let api = FakeApi::new();
    let mut replicas = ["a", "b", "c"].map(|name| Replica::run(&api, name));
    sleep(SOON).await;
    // Replicas that lost the race to create the Lease watch it, too.
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

/// This does not depend on whether the replica saw the holder: the holder may not know of the deletion.
#[tokio::test(start_paused = true)]
async fn h12_a_standby_waits_a_full_lease_after_a_deletion() {
    for (knows, recreates) in [(false, false), (false, true), (true, false), (true, true)] {
        let api = FakeApi::released();
        let mut b = Replica::able(&api, "b", Eligibility::None);
        if knows {
            // The replica has seen the Lease released, and nothing since.
            b.ability.send_replace(Eligibility::Full);
            b.leads(true, SOON).await;
            b.ability.send_replace(Eligibility::None);
            b.leads(false, SOON).await;
            sleep(SOON).await;
        }
        let mut a = Replica::run(&api, "a");
        a.leads(true, RETRY).await;
        sleep(LEASE).await;
        a.crash();
        api.delete();
        if recreates {
            api.put(&json!({}));
        }
        b.ability.send_replace(Eligibility::Full);
        let waited = b.leads(true, LEASE * 2).await;
        assert!(
            waited >= LEASE && waited <= LEASE + RETRY * 2,
            "{knows} {recreates}: {waited:?}"
        );
    }
}

/// Edit of a held Lease that leaves it without a holder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    /// The holder is cleared.
    Cleared,
    /// The holder is cleared, and the duration is set to the value of a released Lease.
    ClearedAndShortened,
    /// A copy of the released Lease is applied.
    CopyApplied,
    /// The Lease is deleted and created from such a copy.
    CopyCreated,
}

/// Knowledge of the other replica at the time of the edit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    /// The Lease, by a watch.
    All,
    /// The Lease as of some renewals ago, because its watch is rejected.
    Some,
    /// Nothing: it starts after the edit.
    Nothing,
}

/// Users clear the holder to change the leader. The holder does not know it yet.
#[tokio::test(start_paused = true)]
async fn h21_a_standby_waits_a_full_lease_after_the_holder_was_cleared() {
    use Edit::*;
    let edits = [Cleared, ClearedAndShortened, CopyApplied, CopyCreated];
    let sights = [Seen::All, Seen::Some, Seen::Nothing];
    let cases = edits
        .iter()
        .flat_map(|edit| sights.map(|seen| (*edit, seen)));
    let cases = cases.flat_map(|(edit, seen)| [false, true].map(|cut| (edit, seen, cut)));
    for (edit, seen, is_cut_off) in cases {
        // A replica that has not seen the Lease before trusts the copy.
        if seen == Seen::Nothing && matches!(edit, CopyApplied | CopyCreated) {
            continue;
        }
        let case = format!("{edit:?}, seen: {seen:?}, cut off: {is_cut_off}");
        let api = FakeApi::released();
        let copy = api.spec();
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
        if seen == Seen::Some {
            api.mood_of(Verb::Watch, Mood::Fails(403));
        }
        let mut b = (seen != Seen::Nothing).then(|| Replica::run(&api, "b"));
        // Just after a renewal.
        sleep(LEASE).await;
        a.term.borrow_and_update();
        a.term.changed().await.unwrap();
        cut.store(is_cut_off, Relaxed);
        let mut spec = api.spec();
        spec["holderIdentity"] = json!("");
        match edit {
            Cleared => api.put(&spec),
            ClearedAndShortened => {
                spec["leaseDurationSeconds"] = json!(1);
                api.put(&spec);
            }
            CopyApplied => api.put(&copy),
            CopyCreated => {
                api.delete();
                api.put(&copy);
            }
        }
        let b = b.get_or_insert_with(|| Replica::run(&api, "b"));
        let edited = Instant::now();
        let mut followed = None;
        while edited.elapsed() < LEASE * 3 {
            sleep(SOON).await;
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
            Some(after) => assert!(is_cut_off && after >= LEASE, "{case}: {after:?}"),
            None => assert!(!is_cut_off && api.holder() == "a_1", "{case}"),
        }
    }
}

/// Generates Leases with any content.
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
    let valid_time = prop_oneof![
        Just(json!("9999-12-31T23:59:59.999999Z")),
        Just(json!("0000-01-01T00:00:00.000000Z")),
        // Go prints them after a request with an offset, and does not parse them.
        Just(json!("10000-01-01T00:00:59.999999Z")),
        Just(json!("-0001-12-31T23:59:00.000000Z")),
        Just(json!("2020-01-01T00:00:00.000000Z")),
        Just(json!(null)),
    ];
    let time = prop_oneof![
        4 => valid_time.clone(),
        1 => ".*".prop_map(Value::from),
        1 => Just(json!(7)),
    ];
    let holder = prop_oneof![
        Just(json!("")),
        Just(json!("b_1")),
        ".*".prop_map(Value::from),
        Just(json!(null)),
        Just(json!(["b"])),
    ];
    let others = (holder, number.clone(), number, time.clone(), time);
    // A replica renews its own Lease with a patch of two fields. The API server validates the whole Lease, so the other fields must
    // be valid here.
    let valid_number = |least: i32| {
        prop_oneof![
            (least..=i32::MAX).prop_map(Value::from),
            Just(json!(i32::MAX)),
            Just(json!(least)),
            Just(json!(15)),
            Just(json!(null)),
        ]
    };
    let own = (
        Just(json!("a_1")),
        valid_number(1),
        valid_number(0),
        valid_time.clone(),
        valid_time,
    );
    let spec = prop_oneof![5 => others, 1 => own];
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
    fn h16_no_content_of_a_lease_prevents_leadership_forever(spec in anything()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let api = FakeApi::new();
            api.put(&spec);
            let mut a = Replica::run(&api, "a");
            // The longest lease duration that can be configured.
            a.leads(true, Duration::from_hours(1) + RETRY * 2).await;
            assert_eq!(api.holder(), "a_1");
            sleep(LEASE).await;
            assert_eq!(a.id(), Some(1));
            // This content does not prevent leadership during a term either.
            api.put(&spec);
            sleep(RETRY * 2).await;
            a.leads(true, Duration::from_hours(1) + RETRY * 2).await;
            a.stop.take().unwrap().send(()).unwrap();
            a.task.await.unwrap();
        });
    }
}
