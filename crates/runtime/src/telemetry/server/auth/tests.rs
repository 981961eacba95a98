#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::interval};
use tower::{BoxError, service_fn};

use super::*;
use crate::config::app::tests::APP;

/// A fake API server whose reviews take this long. The token "good" may read metrics.
fn slow(review: Duration) -> Arc<Auth> {
    let service = service_fn(move |request: Request<Body>| async move {
        let body = request.into_body().collect().await?.to_bytes();
        let mut review_of: Value = serde_json::from_slice(&body)?;
        tokio::time::sleep(review).await;
        let good = review_of["spec"]["token"] == "good";
        review_of["status"] =
            json!({"authenticated": good, "allowed": true, "user": {"username": "u"}});
        Ok::<_, BoxError>(Response::new(Body::from(serde_json::to_vec(&review_of)?)))
    });
    Arc::new(Auth::new(&APP, Client::new(service, "default")))
}

async fn ask(auth: &Auth, peer: u8, token: &str) -> Result<(), Refusal> {
    let mut headers = HeaderMap::new();
    let bearer = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    headers.insert(AUTHORIZATION, bearer);
    auth.check(Page::Metrics, [10, 0, 0, peer].into(), &headers)
        .await
}

/// Sends 60 different invalid tokens per second.
async fn flood(auth: Arc<Auth>, peer: u8) {
    let mut asking = JoinSet::new();
    let mut next = interval(Duration::from_secs(1) / 60);
    for number in 0.. {
        next.tick().await;
        while asking.try_join_next().is_some() {}
        let auth = Arc::clone(&auth);
        asking.spawn(async move { ask(&auth, peer, &format!("bad-{number}")).await });
    }
}

/// During 60 invalid tokens per second, more than the API server can review, a valid scraper still gets its metrics. This
/// includes a scraper at the same address, and a new scraper at another address.
#[tokio::test(start_paused = true)]
async fn bad_tokens_starve_no_authorised_scrape() {
    let auth = slow(Duration::from_millis(300));
    assert_eq!(ask(&auth, 1, "good").await, Ok(()));
    let attacks = tokio::spawn(flood(Arc::clone(&auth), 1));
    for round in 0..10 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let begun = Instant::now();
        assert_eq!(ask(&auth, 1, "good").await, Ok(()), "round {round}");
        let took = begun.elapsed();
        assert!(took <= Duration::from_secs(1), "{took:?} in round {round}");
    }
    auth.answers.lock().0.clear();
    assert_eq!(ask(&auth, 2, "good").await, Ok(()), "who was never seen");
    assert!(auth.turns_of_peers.lock().len() <= 2);
    attacks.abort();
}

fn id(number: usize) -> Id {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.to_le_bytes());
    id
}

#[tokio::test(start_paused = true)]
async fn responses_of_reviews_are_cached() {
    let mut answers = Answers::default();
    answers.keep(id(0), Ok(()));
    answers.keep(id(1), Err(Refusal::InvalidToken));
    for (wait, yes, no) in [
        (
            Duration::ZERO,
            Some(Ok(())),
            Some(Err(Refusal::InvalidToken)),
        ),
        (DENIED_TTL, Some(Ok(())), None),
        (ALLOWED_TTL, None, None),
    ] {
        tokio::time::advance(wait).await;
        assert_eq!((answers.get(&id(0)), answers.get(&id(1))), (yes, no));
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_tokens_do_not_evict_valid_ones() {
    let mut answers = Answers::default();
    answers.keep(id(0), Ok(()));
    for number in 1..5 * CACHE_CAPACITY {
        answers.keep(id(number), Err(Refusal::InvalidToken));
        assert!(answers.0.len() <= CACHE_CAPACITY);
    }
    assert_eq!(answers.get(&id(0)), Some(Ok(())));
    for number in 1..5 * CACHE_CAPACITY {
        answers.keep(id(number), Ok(()));
        assert!(answers.0.len() <= CACHE_CAPACITY);
    }
}

#[test]
fn a_token_follows_the_word_bearer() {
    for (header, token) in [
        ("Bearer abc", Some("abc")),
        ("bearer  abc ", Some("abc")),
        ("Bearer ", None),
        ("Bearer", None),
        ("Basic abc", None),
        ("", None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, http::HeaderValue::from_static(header));
        assert_eq!(bearer(&headers), token, "{header:?}");
    }
    assert_eq!(bearer(&HeaderMap::new()), None);
}
