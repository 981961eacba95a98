//! Rejections by the fencing policy.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_leader_that_the_policy_keeps_rejecting_logs_it_once() {
    let (lines, _guard) = logged(tracing::Level::WARN);
    let answer = Arc::new(Mutex::new(None::<&str>));
    let service = service_fn({
        let answer = Arc::clone(&answer);
        move |_: Request<Body>| {
            let cause = answer.lock().map(|why| {
                    format!("ValidatingAdmissionPolicy 'some-operator-fencing' with binding 'b' denied request: {why}")
                });
            async move {
                let status = json!({"details": {"causes": [{"message": cause}]}, "code": 403});
                let code = if cause.is_some() { 403 } else { 200 };
                let body = Body::from(serde_json::to_vec(&status).unwrap());
                Ok::<_, BoxError>(Response::builder().status(code).body(body).unwrap())
            }
        }
    });
    let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
    let (sender, receiver) = watch::channel(Some(term(Duration::from_hours(1))));
    let client = ClientBuilder::new(service, "default")
        .with_layer(&FenceLayer::new(receiver, &metrics))
        .build();
    let write = async || send(&client, Method::POST, DEPLOYMENTS).await;
    let rejecting = || {
        let (_, text) = metrics.scrape(None);
        text.contains("\nsome_operator_fencing_rejects_leader 1\n")
    };
    let warnings = || {
        let text = String::from_utf8(lines.lock().clone()).unwrap();
        text.matches("the fencing policy has rejected").count()
    };

    // A handover.
    *answer.lock() = Some("why");
    write().await.unwrap_err();
    advance(REJECTED_FOR / 2).await;
    write().await.unwrap_err();
    *answer.lock() = None;
    write().await.unwrap();
    advance(REJECTED_FOR).await;
    *answer.lock() = Some("why");
    write().await.unwrap_err();
    assert!(!rejecting() && warnings() == 0);

    advance(REJECTED_FOR).await;
    for _ in 0..3 {
        write().await.unwrap_err();
    }
    assert!(rejecting());
    assert_eq!(warnings(), 1, "once");
    *answer.lock() = Some("another cause");
    for _ in 0..3 {
        write().await.unwrap_err();
    }
    assert_eq!(warnings(), 2, "once a cause");
    // The policy does not check events.
    *answer.lock() = None;
    send(&client, Method::POST, "/api/v1/namespaces/n/events")
        .await
        .unwrap();
    assert!(rejecting());
    write().await.unwrap();
    assert!(!rejecting());

    // A new term starts without rejections.
    *answer.lock() = Some("why");
    write().await.unwrap_err();
    advance(REJECTED_FOR).await;
    let start = Instant::now();
    let clock = Clock::from_fn(move || start.elapsed());
    sender.send_replace(Some(Term::new(2, 1, Duration::from_hours(1), clock)));
    write().await.unwrap_err();
    assert!(!rejecting() && warnings() == 2);
}

#[test]
fn a_denial_is_known_by_the_policy_alone() {
    let body = |cause: &str| {
        let name = "ValidatingAdmissionPolicy 'some-operator-fencing'";
        let status = json!({
            "message": format!("deployments.apps \"{name}\" is forbidden: {cause}"),
            "details": {"causes": [{"message": cause}]},
        });
        serde_json::to_vec(&status).unwrap()
    };
    let ours =
        "ValidatingAdmissionPolicy 'a-some-operator-fencing-b' with binding 'c' denied request: d";
    for code in [StatusCode::FORBIDDEN, StatusCode::UNPROCESSABLE_ENTITY] {
        assert_eq!(
            denial("some-operator-fencing", code, &body(ours)).as_deref(),
            Some(ours)
        );
    }
    assert_eq!(
        denial("some-operator-fencing", StatusCode::CONFLICT, &body(ours)),
        None
    );
    for others in [
        "ValidatingAdmissionPolicy 'some' with binding 'some-operator-fencing' denied request: d",
        "exceeded quota: ValidatingAdmissionPolicy 'some-operator-fencing'",
    ] {
        assert_eq!(
            denial(
                "some-operator-fencing",
                StatusCode::FORBIDDEN,
                &body(others)
            ),
            None
        );
    }
    assert_eq!(
        denial("some-operator-fencing", StatusCode::FORBIDDEN, b"<html>"),
        None
    );
}
