//! Tests of the request rate, for any response of the API server.

use super::*;

/// All requests of a replica, with each response to each kind of request.
#[tokio::test(start_paused = true)]
async fn h14_the_request_rate_is_bounded_for_any_api_server_response() {
    let mut moods = vec![
        Mood::Serves,
        Mood::Hangs,
        Mood::Garbage,
        Mood::Resets,
        Mood::Ends,
        Mood::EndsStale,
        Mood::StaysStale,
    ];
    moods.extend([401, 403, 404, 405, 409, 410, 422, 429, 500, 503, 504].map(Mood::Fails));
    let held = json!({"holderIdentity": "b_1", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"});
    let at = "2020-01-01T00:00:00.000000Z";
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": at, "renewTime": at});
    for verb in [Verb::Get, Verb::Watch, Verb::Create, Verb::Patch] {
        for mood in &moods {
            let is_of_watches = matches!(mood, Mood::Ends | Mood::EndsStale | Mood::StaysStale);
            if is_of_watches && verb != Verb::Watch {
                continue;
            }
            // Held by a holder that keeps renewing, released, missing.
            for spec in [Some(&held), Some(&released), None] {
                let api = FakeApi::new();
                if let Some(spec) = spec {
                    api.put(spec);
                }
                api.mood_of(verb, *mood);
                let a = Replica::run(&api, "a");
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
        Mood::StaysStale,
    ] {
        let api = FakeApi::released();
        let mut a = Replica::run(&api, "a");
        a.leads(true, SOON).await;
        api.mood_of(Verb::Watch, mood);
        let mut b = Replica::run(&api, "b");
        sleep(Duration::from_mins(1)).await;
        // The first leader releases the Lease, the second crashes.
        a.stop.take().unwrap().send(()).unwrap();
        b.leads(true, RETRY * 2).await;
        let mut c = Replica::run(&api, "c");
        sleep(Duration::from_mins(1)).await;
        b.crash();
        let waited = c.leads(true, LEASE * 2).await;
        assert!(waited <= LEASE + RETRY * 2, "{mood:?}: {waited:?}");
        c.crash();
    }
}
