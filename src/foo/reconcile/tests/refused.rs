//! Rejected and postponed writes.

use super::*;

/// A rejection with this status code and `Retry-After`.
fn refusal(code: u16, retry_after: u64) -> (u16, Value) {
    let details = json!({ "name": "foo", "retryAfterSeconds": retry_after });
    (
        code,
        json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "details": details }),
    )
}

/// `Retry-After` is honored, and the status is the same with and without it.
#[tokio::test]
async fn a_postponed_write_is_reported_with_and_without_retry_after() {
    for (code, seconds) in [(503, 0), (503, 7), (429, 0), (429, 7), (500, 0)] {
        for verb in [Method::PATCH, Method::DELETE] {
            let put_off = verb.clone();
            let reported = Arc::<Mutex<Value>>::default();
            let status = Arc::clone(&reported);
            let (client, _) = server(move |method, path, body| match *method {
                Method::GET => listed(path, &pruned().1, &stored("9", "nginx:latest", 3)),
                ref method if *method == put_off => refusal(code, seconds),
                Method::PUT => {
                    *status.lock() = body["status"].clone();
                    pruned()
                }
                _ => (500, Value::Null),
            });
            let mut foo = foo();
            foo.view.edit_status(|it| it.observed_generation = Some(2));
            foo.view
                .edit_status(|it| it.deployment_name = Some("old".into()));
            let mut new = deployment();
            if verb == Method::PATCH {
                new.view.replicas = 5;
                new.view.progress.available = 2;
            }
            let reconciler = reconciler(&client, foo.clone(), new);
            let mut old = deployment();
            old.key = old.key.sibling("old");
            // Serves until the new Deployment is available.
            old.view.progress.available = 2;
            reconciler.apply_deployment(old);
            let error = reconciler.reconcile(&foo.key).await.unwrap_err();
            let asked = Retry::Backoff(Duration::from_secs(seconds));
            assert_eq!(error.retry(), asked, "{error:?}");
            let reported = reported.lock();
            if verb == Method::PATCH {
                assert_eq!(
                    reported["availableReplicas"], 2,
                    "{code} {seconds}: {reported}"
                );
            } else {
                assert_eq!(
                    reported["conditions"][1]["reason"], "DeletionFailed",
                    "{code} {seconds}"
                );
            }
        }
    }
}

/// If both the Deployment and the status cannot be written, the longer `Retry-After` is honored.
#[tokio::test]
async fn q3g_longer_retry_after_is_honored() {
    for (deployment_answer, status_answer, asked) in [
        (refusal(403, 0), refusal(429, 7), 7),
        (refusal(429, 7), refusal(500, 0), 7),
        (refusal(429, 7), refusal(503, 9), 9),
        (refusal(429, 9), refusal(503, 7), 9),
    ] {
        let (client, _) = server(move |method, _, _| match *method {
            Method::PATCH => deployment_answer.clone(),
            _ => status_answer.clone(),
        });
        let (mut foo, mut wrong) = (foo(), deployment());
        // The status differs from the stored status in any case.
        foo.view.edit_status(|it| it.observed_generation = Some(2));
        wrong.view.replicas = 5;
        wrong.view.progress.available = 2;
        let reconciler = reconciler(&client, foo.clone(), wrong);
        let error = reconciler.reconcile(&foo.key).await.unwrap_err();
        let asked = Retry::Backoff(Duration::from_secs(asked));
        assert_eq!(error.retry(), asked, "{error:?}");
    }
}

/// The `Retry-After` of a scale of the earlier Deployment is honored, even if the specified Deployment belongs to another client
/// or is rejected.
#[tokio::test]
async fn q3g_retry_after_of_the_earlier_deployment_is_honored() {
    type Change = fn(&mut Object<Deployment>);
    let changes: [Change; 2] = [|new| new.owner = None, |new| new.view.replicas = 5];
    for change in changes {
        let (client, asked) = server(move |method, path, _| match *method {
            Method::PATCH if path.ends_with("/web") => refusal(403, 0),
            Method::PATCH => refusal(429, 7),
            _ => pruned(),
        });
        let mut foo = foo();
        foo.view
            .edit_status(|it| it.deployment_name = Some("old".into()));
        let (mut new, mut old) = (deployment(), deployment());
        change(&mut new);
        old.key = old.key.sibling("old");
        old.view.replicas = 5;
        let reconciler = reconciler(&client, foo.clone(), new);
        reconciler.apply_deployment(old);
        let error = reconciler.reconcile(&foo.key).await.unwrap_err();
        let scaled = asked.lock().iter().any(|asked| asked.ends_with("/old"));
        assert!(scaled, "{:?}", asked.lock());
        let asked = Retry::Backoff(Duration::from_secs(7));
        assert_eq!(error.retry(), asked, "{error:?}");
    }
}

/// Each write that is rejected with 403 triggers a review of the permissions.
#[tokio::test]
async fn every_forbidden_write_triggers_a_review_of_permissions() {
    type Change = fn(&mut Object<Foo>, &mut Object<Deployment>);
    let changes: [(&str, Change); 7] = [
        ("POST deployments", |_, deployment| {
            deployment.key = deployment.key.sibling("other");
        }),
        ("PATCH deployments/web", |_, deployment| {
            deployment.view.replicas = 5;
        }),
        ("DELETE deployments/old", |foo, _| {
            foo.view
                .edit_status(|it| it.deployment_name = Some("old".into()));
        }),
        ("PUT foos/foo/status", |_, _| {}),
        ("PUT foos/foo/status", |_, deployment| {
            deployment.owner = None;
        }),
        ("PUT foos/foo/status", |foo, _| {
            foo.view.spec = Err("spec: no".into());
        }),
        ("PUT foos/foo/status", |foo, _| {
            foo.view.spec.as_mut().unwrap().deployment_name.clear();
        }),
    ];
    for (refused, change) in changes {
        let (client, asked) = server(move |method, path, _| match *method {
            Method::GET => listed(path, &pruned().1, &stored("9", "nginx:latest", 3)),
            Method::POST if path.ends_with("reviews") => {
                (201, json!({ "spec": {}, "status": { "allowed": true } }))
            }
            _ if format!("{method} {path}").ends_with(refused.split_once(' ').unwrap().1) => {
                refusal(403, 0)
            }
            _ => pruned(),
        });
        let (mut foo, mut deployment) = (foo(), deployment());
        let mut old = deployment.clone();
        change(&mut foo, &mut deployment);
        let reconciler = reconciler(&client, foo.clone(), deployment);
        old.key = old.key.sibling("old");
        reconciler.apply_deployment(old);
        let check = tokio::spawn(reconciler.check_rights());
        let _refused = reconciler.reconcile(&foo.key).await;
        let is_checked = async {
            while !asked.lock().iter().any(|asked| asked.ends_with("reviews")) {
                tokio::task::yield_now().await;
            }
        };
        let checked = timeout(Duration::from_secs(10), is_checked).await;
        assert!(checked.is_ok(), "{refused}: {:?}", asked.lock());
        assert!(
            asked.lock().iter().any(|asked| asked == refused),
            "{:?}",
            asked.lock()
        );
        check.abort();
    }
}

/// A rejected status is not written again until the Foo changes. A forbidden status is retried: permissions may be restored
/// without a notification.
#[tokio::test(start_paused = true)]
async fn a_rejected_status_is_retried_after_a_change_of_the_foo() {
    for code in [403, 422] {
        let (client, asked) = server(move |_, _, _| refusal(code, 0));
        let mut invalid = foo();
        invalid.view.spec.as_mut().unwrap().deployment_name.clear();
        let key = &foo().key;
        let reconciler = reconciler(&client, invalid.clone(), deployment());
        let written = async || {
            let error = reconciler.reconcile(key).await.unwrap_err();
            (error.retry(), std::mem::take(&mut *asked.lock()).len())
        };
        if code == 403 {
            for _ in 0..5 {
                assert_eq!(written().await, (Retry::Backoff(Duration::ZERO), 1));
                assert!(!reconciler.is_up_to_date(key));
            }
            continue;
        }
        assert_eq!(written().await, (Retry::OnChange, 1));
        assert!(reconciler.is_up_to_date(key));
        assert_eq!(written().await, (Retry::OnChange, 0));
        (invalid.version, invalid.view.generation) = (8, 3);
        reconciler.apply_foo(invalid.clone());
        assert!(!reconciler.is_up_to_date(key));
        assert_eq!(written().await, (Retry::OnChange, 1));
        assert_eq!(written().await, (Retry::OnChange, 0));
        assert!(reconciler.is_up_to_date(key), "as a resync finds");
        // The CRD may have changed by then.
        tokio::time::advance(Duration::from_secs(1000)).await;
        assert!(!reconciler.is_up_to_date(key));
        assert_eq!(written().await, (Retry::OnChange, 1));
    }
}

/// The status of an invalid Foo is retried after a rejection by a policy or a webhook, which may be removed at any time.
#[tokio::test]
async fn a_status_rejected_by_a_policy_is_retried() {
    let policy = "foos \"foo\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no";
    let webhook = "admission webhook \"w.example\" denied the request: not this week";
    let by_webhook = [400, 404, 409, 500].map(|code| (code, webhook));
    let by_policy = [401, 403, 422].map(|code| (code, policy));
    for (code, message) in by_webhook.into_iter().chain(by_policy) {
        let is_there = Arc::new(Mutex::new(true));
        let now = Arc::clone(&is_there);
        let (client, asked) = server(move |_, _, _| {
            if !*now.lock() {
                return pruned();
            }
            let status = json!({
                "kind": "Status", "status": "Failure", "code": code, "message": message,
            });
            (code, status)
        });
        let mut invalid = foo();
        invalid.view.spec.as_mut().unwrap().deployment_name.clear();
        let key = &foo().key;
        let reconciler = reconciler(&client, invalid, deployment());
        let written = || std::mem::take(&mut *asked.lock()).len();
        for _ in 0..3 {
            let error = reconciler.reconcile(key).await.unwrap_err();
            assert_eq!(error.retry(), Retry::Backoff(Duration::ZERO), "{error:?}");
            assert_eq!(written(), 1, "{code}");
            assert!(!reconciler.is_up_to_date(key));
        }
        *is_there.lock() = false;
        for times in [1, 0] {
            let error = reconciler.reconcile(key).await.unwrap_err();
            assert_eq!(error.retry(), Retry::OnChange, "{error:?}");
            assert_eq!(written(), times, "{code}");
        }
    }
}

/// An unreachable webhook is reported like a rejection. The status is written once, although the source port in the message
/// differs for each attempt.
#[tokio::test]
async fn a_webhook_that_is_down_is_reported() {
    let port = std::sync::atomic::AtomicU16::new(40_000);
    let (client, asked) = server({
        let port = Arc::new(port);
        move |method, _, body| {
            if *method == Method::PATCH {
                let port = port.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let message = format!(
                    "Internal error occurred: failed calling webhook \"w.example\": failed to call webhook: Post \"https://w.n.svc:443/\": \
                     read tcp 10.0.0.1:{port}->10.96.0.9:443: read: connection reset by peer"
                );
                let status = json!({ "kind": "Status", "status": "Failure", "code": 500, "message": message });
                (500, status)
            } else {
                let mut foo = pruned().1;
                foo["metadata"]["resourceVersion"] = "8".into();
                foo["status"] = body["status"].clone();
                (200, foo)
            }
        }
    });
    let mut wrong = deployment();
    wrong.view.replicas = 5;
    let reconciler = reconciler(&client, foo(), wrong);
    let key = &foo().key;
    for writes in [2, 1, 1] {
        let error = reconciler.reconcile(key).await.unwrap_err();
        assert_eq!(error.reason(), Some("DeploymentRejected"), "{error}");
        assert_eq!(std::mem::take(&mut *asked.lock()).len(), writes);
    }
}

/// A failed status report is not delayed as long as a disputed Deployment. The Deployment is not delayed by the status.
#[test]
fn an_unreported_status_is_not_postponed() {
    use super::super::merge_results;
    type Fails = fn(Duration) -> Error;
    let seconds = Duration::from_secs;
    let deletion: Fails = |time| Error::DeletionFailed(String::new(), Retry::After(time));
    let contested: Fails = |time| ApiError::Contested("web".into(), String::new(), time).into();
    let status = |time| Error::StatusContested(String::new(), seconds(time));
    let fails = |asked| Error::from(ApiError::Transient("500".into(), seconds(asked)));
    let retry = |error: Result<Action, Error>| error.unwrap_err().retry();
    for put_off in [deletion, contested] {
        for (time, unreported, expected) in [
            (240, Err(fails(0)), Retry::After(seconds(10))),
            (1, Err(fails(0)), Retry::After(seconds(1))),
            (1, Err(status(300)), Retry::After(seconds(1))),
            (240, Err(status(1)), Retry::After(seconds(1))),
            (240, Err(fails(7)), Retry::After(seconds(10))),
            (240, Err(fails(30)), Retry::After(seconds(30))),
            (1, Err(fails(7)), Retry::After(seconds(7))),
            (240, Ok(Action::Done), Retry::After(seconds(240))),
        ] {
            let both = merge_results(Err(put_off(seconds(time))), unreported);
            assert_eq!(retry(both), expected);
        }
    }
}

/// A fenced status or a conflict is retried without the backoff of the Foo's own error.
#[test]
fn q3b_fenced_or_conflicting_status_is_not_a_failure() {
    const ASKED: Duration = Duration::from_secs(2);
    use super::super::merge_results;
    let exists = || Error::ResourceExists("web".into(), String::new());
    let invalid = || Error::InvalidSpec(String::new());
    let denied = || Error::from(ApiError::Denied(String::new(), ASKED));
    for (wrong, unreported, expected) in [
        (exists(), ApiError::NotLeading, Retry::Requeue),
        (invalid(), ApiError::NotLeading, Retry::Requeue),
        // `Retry-After` takes precedence.
        (denied(), ApiError::NotLeading, Retry::Backoff(ASKED)),
        (exists(), ApiError::Conflict, Retry::Conflict),
        (invalid(), ApiError::Conflict, Retry::Conflict),
    ] {
        let both = merge_results::<Action>(Err(wrong), Err(unreported.into())).unwrap_err();
        assert_eq!(both.retry(), expected, "{both:?}");
    }
}
