//! Tests of the fencing record, and of a leader whose writes the policy rejects.

use super::*;

/// A replica warns at its start if the Lease is too short for an election without fencing.
#[tokio::test]
async fn h20_a_short_margin_without_a_fencing_record_is_logged() {
    let default = LeaderElection::new("l");
    let short = LeaderElection {
        renew_deadline: default.lease_duration - Duration::from_millis(4_900),
        ..default.clone()
    };
    let fenced = LeaderElection {
        fencing_record: Some("l-fencing".to_owned()),
        ..short.clone()
    };
    for (settings, words) in [(default, ""), (short, "only 4s 900ms longer"), (fenced, "")] {
        let (log, _guard) = logged(tracing::Level::WARN);
        let service = FakeApi::released().service();
        let (sender, _term) = watch::channel(None);
        let _candidate = candidate_of(service, "a", &settings, sender);
        let log = String::from_utf8(log.lock().clone()).unwrap();
        assert!(
            log.contains(words) && log.is_empty() == words.is_empty(),
            "{words}: {log}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_term_is_renewed_and_continues_if_the_lease_is_held() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    advance(RETRY / 2).await;
    let term = a.term.borrow_and_update().clone().unwrap();
    api.requests();
    term.report_rejection("");
    advance(SOON).await;
    let renewals = api.requests();
    let renewals = renewals.iter().filter(|seen| seen.method == Method::PATCH);
    assert_eq!(renewals.count(), 1);
    assert!(a.term.has_changed().unwrap());
    assert_eq!(a.id(), Some(1));
}

/// The policy rejects every write forever, whether or not the Lease can be renewed.
#[tokio::test(start_paused = true)]
async fn h14_requests_after_rejections_are_limited() {
    for patches in [
        Mood::Serves,
        Mood::Fails(409),
        Mood::Fails(503),
        Mood::Resets,
    ] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        let term = a.term.borrow().clone().unwrap();
        api.mood_of(Verb::Patch, patches);
        api.requests();
        for _ in 0..6000 {
            term.report_rejection("");
            sleep(Duration::from_millis(10)).await;
        }
        let requests = api.requests().len();
        assert!(requests <= PER_MINUTE, "{patches:?}: {requests}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_term_ends_immediately_if_another_replica_holds_the_lease() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    advance(RETRY / 2).await;
    let term = a.term.borrow().clone().unwrap();
    api.put(&json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15}));
    term.report_rejection("");
    a.leads(false, SOON).await;
    a.leads(true, LEASE + RETRY * 2).await;
    assert_eq!(a.id(), Some(2));
}

/// The record is written before the leader's first write, and not at renewals.
#[tokio::test(start_paused = true)]
async fn the_fencing_record_names_a_leader_before_its_term_is_published() {
    let api = FakeApi::released();
    api.put_record(Some(json!({})));
    let mut a = Replica::run(&api, "a");
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

/// The component is installed during a term, for the first time or again, or the record is edited by hand.
#[tokio::test(start_paused = true)]
async fn a_leader_that_the_policy_does_not_know_makes_itself_known() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    for annotations in [json!({}), json!({HOLDER_KEY: "b_1"})] {
        api.put_record(Some(annotations));
        advance(RETRY / 2).await;
        a.term.borrow().clone().unwrap().report_rejection("");
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

/// The component is installed under another name, for example as a Helm release, while replicas run whose settings name no record.
/// The leader writes the record that the policy names, in this term and in the next one.
#[tokio::test(start_paused = true)]
async fn a_leader_without_a_configured_record_writes_the_one_that_the_policy_names() {
    let api = FakeApi::released();
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    api.put_record_named("web-fencing", Some(json!({})));
    let message = "ValidatingAdmissionPolicy 'some-operator-fencing' with binding 'b' denied request: \"a_1\" is not the leader \
                   named by serviceaccount/web-fencing in n: none";
    advance(RETRY / 2).await;
    a.term.borrow().clone().unwrap().report_rejection(message);
    sleep(RETRY).await;
    assert_eq!((&*api.recorded(), a.id()), ("a_1", Some(1)));
    api.put(&json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15}));
    a.leads(false, RETRY * 2).await;
    api.put_record_named("web-fencing", Some(json!({})));
    a.leads(true, LEASE + RETRY * 2).await;
    assert_eq!(api.recorded(), "a_1", "before the first write of the term");
}

/// With a short Lease, the leader notices that the record was deleted, and that it was restored. Without a short Lease, it does not
/// read the record during a term.
#[tokio::test(start_paused = true)]
async fn h20_a_record_that_disappears_under_a_short_lease_is_reported() {
    let minute = Duration::from_mins(1);
    for (seconds, is_configured, lines) in [(3, true, 1), (3, false, 1), (15, true, 0)] {
        let settings = LeaderElection {
            lease_duration: Duration::from_secs(seconds),
            renew_deadline: Duration::from_secs(2),
            retry_period: Duration::from_millis(500),
            fencing_record: is_configured.then(|| "l-fencing".to_owned()),
            ..LeaderElection::new("l")
        };
        let is_short = lines > 0;
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let is_missing = || {
            let (_, text) = metrics.scrape(None);
            text.contains("\nsome_operator_fencing_record_missing 1\n")
        };
        let api = FakeApi::released();
        api.put_record(Some(json!({})));
        let (sender, mut term) = watch::channel(None);
        let candidate = candidate_with(api.service(), "a", &settings, sender, &metrics);
        let (log, _guard) = logged(tracing::Level::WARN);
        let (_ability, able) = watch::channel(Eligibility::Full);
        let mut health = Health::new(&Host::of_this_process());
        let heartbeat = health.heartbeat("leader-election");
        let task = tokio::spawn(async move {
            candidate
                .run(&heartbeat, able, std::future::pending())
                .await;
        });
        term.wait_for(Option::is_some).await.unwrap();
        sleep(minute * 2).await;
        assert!(!is_missing());
        let asked = || {
            let requests = api.requests();
            let of_record = requests
                .iter()
                .filter(|seen| seen.uri.contains("l-fencing"));
            of_record.count()
        };
        asked();
        sleep(minute * 10).await;
        let reviews = asked();
        assert!(
            if is_short {
                (9..=10).contains(&reviews)
            } else {
                reviews == 0
            },
            "{reviews}"
        );
        api.put_record(None);
        sleep(minute + RETRY).await;
        assert_eq!(is_missing(), is_short, "{seconds} s");
        let log = String::from_utf8(log.lock().clone()).unwrap();
        assert_eq!(log.matches("no fencing, and").count(), lines, "{log}");
        api.put_record(Some(json!({})));
        sleep(minute + RETRY).await;
        assert!(!is_missing());
        assert_eq!(api.recorded() == "a_1", is_short);
        task.abort();
    }
}

/// Only the policy needs the record: a replica leads without it.
#[tokio::test(start_paused = true)]
async fn an_unwritable_fencing_record_does_not_prevent_leadership() {
    let api = FakeApi::released();
    api.mood_of(Verb::OfRecord, Mood::Fails(500));
    let mut a = Replica::run(&api, "a");
    a.leads(true, SOON).await;
    advance(LEASE * 4).await;
    assert_eq!(a.id(), Some(1));
    api.mood_of(Verb::OfRecord, Mood::Serves);
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

/// Returns for how long a fence is open within this time, and the number of terms. `takes` is the duration of each request.
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

/// Asserting the record takes at least as many requests as renewing.
#[tokio::test(start_paused = true)]
async fn a_fencing_record_does_not_close_the_fence_on_a_slow_api_server() {
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

/// A webhook may delay the record, or not respond.
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

/// A webhook that hangs delays the write of the record by its timeout, also if that is the longest one. If the sum of several
/// webhooks is longer, the log has the cause.
#[tokio::test(start_paused = true)]
async fn r4d_a_record_is_written_when_its_webhook_has_timed_out() {
    for (seconds, within) in [(10, 11), (30, 45), (40, 0)] {
        let api = FakeApi::released();
        api.put_record(Some(json!({})));
        let happens = move |_: &FakeApi, request: &Request<Body>| {
            let is_judged = is_of_the_record(request) && request.method() == Method::PATCH;
            sleep(Duration::from_secs(seconds) * u32::from(is_judged))
        };
        let (log, _guard) = logged(tracing::Level::WARN);
        let mut a = Replica::behind(&api, "a", (LEASE, DEADLINE, RETRY), happens);
        a.leads(true, CALL + SOON).await;
        let is_written = within > 0;
        sleep(Duration::from_secs(if is_written { within } else { 60 })).await;
        assert_eq!(api.recorded() == "a_1", is_written, "{seconds} s");
        assert_eq!(a.id(), Some(1), "{seconds} s");
        let log = String::from_utf8(log.lock().clone()).unwrap();
        let lines = log.matches("an admission webhook for serviceaccounts may hang");
        assert_eq!(lines.count(), usize::from(seconds > 10), "{log}");
    }
}

/// Any response to the assertion, and a policy that rejects every write.
#[tokio::test(start_paused = true)]
async fn h14_requests_for_the_record_are_limited() {
    let mut moods = vec![Mood::Serves];
    moods.extend([401, 409, 429, 500].map(Mood::Fails));
    for mood in moods {
        for is_rejected in [false, true] {
            let api = FakeApi::released();
            api.put_record(Some(json!({})));
            // A conflict at each write, or another client that reverts the write.
            let meets = if is_rejected {
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
            api.mood_of(Verb::OfRecord, mood);
            api.requests();
            for _ in 0..6000 {
                if is_rejected {
                    a.term.borrow().as_ref().unwrap().report_rejection("");
                }
                sleep(Duration::from_millis(10)).await;
            }
            let requests = api.requests();
            let of_record = requests
                .iter()
                .filter(|seen| seen.uri.contains("l-fencing"));
            let of_record = of_record.count();
            println!(
                "{mood:?} {is_rejected}: {} requests, {of_record} of them",
                requests.len()
            );
            assert!(of_record > 5, "it goes on trying");
            assert!(
                requests.len() <= PER_MINUTE,
                "{mood:?} {is_rejected}: {}",
                requests.len()
            );
            assert_eq!(a.id(), Some(1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_reads_another_holder_while_asserting_stops_immediately() {
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
    a.term.borrow().as_ref().unwrap().report_rejection("");
    a.leads(false, SOON).await;
    assert_eq!(api.recorded(), "");
}
