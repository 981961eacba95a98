#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{hash::Hasher as _, sync::Arc, time::Duration};

use operator_runtime::{Primary as _, Retry, testing::snapshot};

use super::super::fixtures::{deployment, foo};
use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn deployed(change: impl FnOnce(&mut Deployment)) -> DeploymentState<'static> {
    let mut object = deployment();
    change(&mut object.view);
    DeploymentState {
        key: object.key.clone(),
        actual: snapshot::<Foo, _>(object),
        overruled: None,
        is_queued: false,
    }
}

/// Each condition as `Type=Status Reason`.
fn conditions(status: &FooStatus) -> Vec<String> {
    status
        .conditions
        .iter()
        .map(|c| format!("{}={} {}", c.type_, c.status, c.reason))
        .collect()
}

fn serving(deployed: &DeploymentState<'_>) -> Serving {
    Serving {
        key: deployed.key.clone(),
        view: Arc::clone(&deployed.actual.view),
    }
}

/// The status of a Foo that its specified Deployment serves.
fn of(
    foo: &Foo,
    deployed: Option<&DeploymentState<'_>>,
    error: Option<&Error>,
    now: Timestamp,
) -> Option<FooStatus> {
    let serving = deployed.map(serving);
    super::of(foo, deployed, serving.as_ref(), error, now)
}

fn reported(change: impl FnOnce(&mut Deployment)) -> FooStatus {
    of(&foo().view, Some(&deployed(change)), None, NOW).unwrap()
}

/// The status contains the counts, the selector and the name of the Deployment.
#[test]
fn a5a_status_follows_the_deployment() {
    let status = reported(|_| {});
    assert_eq!(status.available_replicas, Some(3));
    assert_eq!(status.replicas, Some(3));
    assert_eq!(status.observed_generation, Some(2));
    assert_eq!(status.selector.as_deref(), Some("app=nginx,controller=foo"));
    assert_eq!(status.deployment_name.as_deref(), Some("web"));
    assert_eq!(
        conditions(&status),
        [
            "Ready=True DeploymentAvailable",
            "Progressing=False DeploymentComplete"
        ]
    );
    assert_eq!(
        status.conditions[0].message,
        "Deployment \"web\" has 3 of 3 replicas available"
    );
}

/// Ready has the same conditions as the success of `kubectl rollout status`.
#[test]
fn ready_means_that_the_rollout_is_complete() {
    let under_way = [
        "Ready=False DeploymentProgressing",
        "Progressing=True DeploymentProgressing",
    ];
    assert_eq!(
        conditions(&reported(|d| d.progress.available = 2)),
        under_way
    );
    assert_eq!(conditions(&reported(|d| d.progress.updated = 2)), under_way);
    assert_eq!(
        conditions(&reported(|d| d.progress.replicas = 4)),
        under_way,
        "an old pod is still there"
    );
    assert_eq!(
        conditions(&reported(|d| d.generation = 5)),
        under_way,
        "its controller has not observed it yet"
    );
    assert_eq!(
        conditions(&reported(|d| {
            d.replicas = 1;
            d.progress.available = 2;
        })),
        under_way,
        "it is scaled down, and one of the pods that it has is not available"
    );
    let stuck = reported(|d| {
        d.progress.available = 0;
        d.progress.stuck = true;
    });
    let reason = "ProgressDeadlineExceeded";
    assert_eq!(
        conditions(&stuck),
        [
            format!("Ready=False {reason}"),
            format!("Progressing=False {reason}"),
            format!("Stalled=True {reason}")
        ]
    );
    let going = [
        "Ready=False DeploymentDeleting",
        "Progressing=True DeploymentDeleting",
    ];
    assert_eq!(conditions(&reported(|d| d.deleting = true)), going);
}

/// The message names mutated fields while they differ. The Foo is Ready only with the specified number of replicas.
#[test]
fn mutated_fields_are_reported() {
    for (replicas, is_ready) in [(3, true), (1, false)] {
        let mut deployed = deployed(|d| {
            d.replicas = replicas;
            let progress = &mut d.progress;
            (progress.replicas, progress.updated, progress.available) =
                (replicas, replicas, replicas);
        });
        let error = ApiError::Overruled("Deployment", "web".into(), "spec.x".into()).into();
        deployed.overruled = Some(&error);
        let status = of(&foo().view, Some(&deployed), None, NOW).unwrap();
        let expected = if is_ready {
            [
                "Ready=True DeploymentAvailable",
                "Progressing=False DeploymentComplete",
            ]
        } else {
            [
                "Ready=False DeploymentOverruled",
                "Progressing=False DeploymentOverruled",
            ]
        };
        assert_eq!(conditions(&status)[..2], expected);
        let message = &status.conditions[0].message;
        assert!(message.ends_with("desired spec.x"), "{message}");
    }
}

/// Errors that a user must resolve are reported. Transient errors are not.
#[test]
fn errors_that_concern_the_user_are_reported() {
    let error = Error::ResourceExists("web".into(), String::new());
    let status = of(&foo().view, None, Some(&error), NOW).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Ready=False ErrResourceExists",
            "Progressing=False ErrResourceExists",
            "Stalled=True ErrResourceExists"
        ]
    );
    assert_eq!(status.conditions[0].message, error.to_string());
    assert_eq!(status.available_replicas, Some(0));
    let deleting = Error::Deleting("web".into());
    let status = of(&foo().view, None, Some(&deleting), NOW).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Ready=False DeploymentDeleting",
            "Progressing=True DeploymentDeleting"
        ]
    );
    for quiet in [
        ApiError::Conflict.into(),
        ApiError::NotLeading.into(),
        Error::from(ApiError::transient("down")),
    ] {
        let view = deployed(|_| {});
        assert_eq!(of(&foo().view, None, Some(&quiet), NOW), None);
        assert_eq!(of(&foo().view, Some(&view), Some(&quiet), NOW), None);
    }
}

/// The status contains the current counts with every error.
#[test]
fn r5_counts_follow_the_deployment_with_every_error() {
    let mut foo = foo();
    foo.view.set_status(reported(|_| {}));
    let one_died = deployed(|d| d.progress.available = 2);
    for error in [
        Error::InvalidSpec("spec.deploymentName: must not be empty".into()),
        Error::ResourceExists("web".into(), String::new()),
        Error::from(ApiError::Rejected("no".into())),
        Error::DeletionFailed("no".into(), Retry::After(Duration::ZERO)),
        Error::from(ApiError::transient(
            "the API server returned 500: a webhook is down",
        )),
        Error::from(ApiError::Transient(
            "the API server returned 503: no".into(),
            Duration::from_secs(1),
        )),
    ] {
        let status = of(&foo.view, Some(&one_died), Some(&error), NOW).unwrap();
        assert_eq!(
            (status.available_replicas, status.replicas),
            (Some(2), Some(3)),
            "{error}"
        );
    }
    let down = Error::from(ApiError::transient("down"));
    let again = of(&foo.view, Some(&deployed(|_| {})), Some(&down), NOW).unwrap();
    assert_eq!(again, *foo.view.status(), "and nothing else is");
}

/// The Foo is Ready with the new Deployment, and Progressing reports the failed deletion of the old one.
#[test]
fn r11d_rejected_deletion_does_not_make_the_foo_unready() {
    let mut foo = foo();
    foo.view
        .edit_status(|it| it.deployment_name = Some("old".into()));
    let refused = Error::DeletionFailed(
        "admission webhook \"x\" denied the request".into(),
        Retry::Backoff(Duration::ZERO),
    );
    let status = of(&foo.view, Some(&deployed(|_| {})), Some(&refused), NOW).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Ready=True DeploymentAvailable",
            "Progressing=False DeletionFailed"
        ]
    );
    assert_eq!(status.conditions[1].message, refused.to_string());
}

/// The hash of a status excludes transition times, and includes everything else.
#[test]
fn the_status_hash_excludes_transition_times() {
    let status = reported(|_| {});
    let hash = |status: &FooStatus| {
        let mut hasher = std::hash::DefaultHasher::new();
        Foo::says(status, &mut hasher);
        hasher.finish()
    };
    let mut later = status.clone();
    later.conditions[0].last_transition_time = Time(Timestamp::from_second(3600).unwrap());
    assert_eq!(hash(&status), hash(&later));
    let changes: [fn(&mut FooStatus); 6] = [
        |s| s.available_replicas = None,
        |s| s.conditions.clear(),
        |s| s.conditions[0].status = "False".into(),
        |s| s.conditions[1].message = "other".into(),
        |s| s.selector = None,
        |s| s.observed_generation = Some(9),
    ];
    for change in changes {
        let mut other = status.clone();
        change(&mut other);
        assert_ne!(hash(&status), hash(&other));
    }
}

/// An unchanged condition keeps its transition time, so that an equal status is not written.
#[test]
fn an_unchanged_condition_keeps_its_transition_time() {
    let mut foo = foo();
    foo.view.set_status(reported(|_| {}));
    let later = Timestamp::from_second(3600).unwrap();
    let again = of(&foo.view, Some(&deployed(|_| {})), None, later).unwrap();
    assert_eq!(again, *foo.view.status());
    let worse = of(
        &foo.view,
        Some(&deployed(|d| d.progress.available = 1)),
        None,
        later,
    )
    .unwrap();
    assert_eq!(worse.conditions[0].last_transition_time, Time(later));
}

/// Conditions of other clients stay in the status.
#[test]
fn conditions_of_other_clients_are_kept() {
    let mut foo = foo();
    foo.view.set_status(reported(|_| {}));
    foo.view
        .edit_status(|it| it.conditions[0].type_ = "Audited".into());
    let status = of(&foo.view, Some(&deployed(|_| {})), None, NOW).unwrap();
    let types: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["Audited", "Ready", "Progressing"]);
}

/// Returns the name of the Deployment that serves, and checks that the status counts its pods.
fn served(new: Option<&DeploymentState>, error: Option<&Error>, is_marked: bool) -> String {
    let mut foo = foo();
    foo.view.set_status(reported(|_| {}));
    foo.view
        .edit_status(|it| it.deployment_name = Some("old".into()));
    let mut old = deployed(|d| {
        (d.progress.available, d.progress.replicas) = (7, 8);
        d.selector = Arc::new(Labels::default());
        d.foo_generation = is_marked.then_some(1);
    });
    old.key = foo.key.sibling("old");
    let which = Serving::of(&foo.view, new.map(serving), Some(serving(&old)), error);
    let status = super::of(&foo.view, new, which.as_ref(), error, NOW).unwrap();
    let is_old = status.deployment_name.as_deref() == Some("old");
    let counts = (status.available_replicas, status.replicas, status.selector);
    assert_eq!(counts == (Some(7), Some(8), Some(String::new())), is_old);
    status.deployment_name.unwrap()
}

/// The status names the old Deployment, and counts its pods, until the new Deployment serves.
#[test]
fn r11c_status_counts_the_old_deployment_until_the_new_one_is_available() {
    let begun = deployed(|d| d.progress.available = 0);
    let complete = deployed(|_| {});
    let down = Error::from(ApiError::transient("the API server returned 503: no"));
    let taken = Error::ResourceExists("web".into(), String::new());
    let refused = Error::from(ApiError::Rejected("no".into()));
    let kept = Error::DeletionFailed("no".into(), Retry::Backoff(Duration::ZERO));
    for (new, error, expected) in [
        (Some(&begun), None, "old"),
        (Some(&complete), None, "web"),
        (None, Some(&taken), "old"),
        (Some(&begun), Some(&refused), "old"),
        (Some(&complete), Some(&refused), "old"),
        (None, Some(&down), "old"),
        (Some(&begun), Some(&down), "old"),
        (Some(&complete), Some(&kept), "web"),
    ] {
        assert_eq!(served(new, error, true), expected, "{new:?} {error:?}");
    }
    // Without the annotation, only the status records the old Deployment.
    assert_eq!(served(Some(&complete), Some(&kept), false), "old");
}

/// If the serving Deployment is deleted, the new Deployment serves, or another earlier one.
#[test]
fn a_deleted_deployment_no_longer_serves() {
    let mut foo = foo();
    foo.view.set_status(reported(|_| {}));
    foo.view
        .edit_status(|it| it.deployment_name = Some("gone".into()));
    let begun = deployed(|d| d.progress.available = 0);
    let mut earlier = deployed(|_| {});
    earlier.key = foo.key.sibling("earlier");
    let name = |new: Option<Serving>| {
        let which = Serving::of(&foo.view, new, Some(serving(&earlier)), None);
        which.unwrap().key.name().to_owned()
    };
    assert_eq!(name(Some(serving(&begun))), "web");
    assert_eq!(name(None), "earlier");
}

/// The message counts the missing replicas, in the order of `kubectl rollout status`.
#[test]
fn a5c_message_counts_missing_replicas() {
    let says = |change: &dyn Fn(&mut Deployment)| {
        let status = reported(change);
        status.conditions[0].message.clone()
    };
    let counts = |replicas, updated, available| {
        says(&|d| {
            let progress = &mut d.progress;
            (progress.replicas, progress.updated, progress.available) =
                (replicas, updated, available);
        })
    };
    for (message, expected) in [
        (counts(3, 3, 3), "3 of 3 replicas available"),
        (counts(0, 0, 0), "0 of 3 replicas created"),
        (counts(2, 2, 2), "2 of 3 replicas created"),
        (counts(4, 1, 3), "1 of 3 replicas updated"),
        (counts(4, 3, 4), "1 old replica still to terminate"),
        (counts(5, 3, 5), "2 old replicas still to terminate"),
        (counts(3, 3, 1), "1 of 3 replicas available"),
        (counts(5, 5, 4), "4 of 5 replicas available"),
        (
            says(&|d| d.generation = 5),
            "a change that the Deployment controller has not observed",
        ),
    ] {
        assert_eq!(message, format!("Deployment \"web\" has {expected}"));
    }
}

/// A failure has its own reason, and stalls the Foo. If it may end without a user, it does so later.
#[test]
fn a5c_failure_for_the_user_has_its_own_reason() {
    let words = "pods \"web-1\" is forbidden: exceeded quota: few";
    let fails: &dyn Fn(&mut Deployment) = &|d| {
        (d.replicas, d.progress.failure) = (4, Some(words.into()));
    };
    let held: &dyn Fn(&mut Deployment) = &|d| {
        d.paused = true;
        (d.progress.replicas, d.progress.updated) = (3, 0);
    };
    let both: &dyn Fn(&mut Deployment) = &|d| {
        fails(d);
        held(d);
    };
    let late: &dyn Fn(&mut Deployment) = &|d| {
        fails(d);
        d.progress.stuck = true;
    };
    let resume = "; it is paused, to resume it: kubectl rollout resume deployment/web -n default";
    let at_once = ["Ready=False", "Progressing=False", "Stalled=True"];
    let later = ["Ready=False", "Progressing=True", "Stalled=False"];
    let refused = format!("3 of 3 replicas created: {words}");
    let of_four = format!("0 of 3 replicas updated{resume}");
    for (change, reason, expected, says) in [
        (fails, "ReplicaFailure", later, refused.clone()),
        (held, "DeploymentPaused", at_once, of_four.clone()),
        (both, "DeploymentPaused", at_once, of_four),
        (late, "ReplicaFailure", at_once, refused),
    ] {
        let status = reported(change);
        let expected = expected.map(|is| format!("{is} {reason}"));
        assert_eq!(conditions(&status), expected);
        for condition in &status.conditions {
            assert_eq!(condition.message, format!("Deployment \"web\" has {says}"));
        }
        let event = format!("{:?}", warning(&FooStatus::default(), &status).unwrap());
        assert!(
            event.contains(reason) && event.contains("Warning"),
            "{event}"
        );
        assert!(warning(&status, &status).is_none(), "once");
        let ready = reported(|_| {});
        assert!(warning(&status, &ready).is_none());
    }
    // A paused Deployment is scaled nevertheless.
    let scaled = reported(|d| {
        (d.paused, d.replicas) = (true, 4);
    });
    assert_eq!(scaled.conditions[0].reason, "DeploymentProgressing");
    // A complete Deployment ignores an old failure.
    let over = reported(|d| d.progress.failure = Some("no".into()));
    assert_eq!(over.conditions[0].reason, "DeploymentAvailable");
    assert_eq!(over.conditions.len(), 2);
}

/// `Stalled` is removed with its cause.
#[test]
fn stalled_is_removed_with_its_cause() {
    let mut foo = foo();
    foo.view.set_status(reported(|d| {
        (d.replicas, d.progress.failure) = (4, Some("no".into()));
    }));
    let status = of(&foo.view, Some(&deployed(|_| {})), None, NOW).unwrap();
    assert_eq!(status.conditions.len(), 2);
}

/// A failure that may end without a user stalls the Foo after a minute. A change of the Foo starts the minute again.
#[test]
fn a_failure_that_may_end_stalls_after_a_minute() {
    let of_api = |error: ApiError| Error::from(error);
    let words = || "words".to_owned();
    for error in [
        of_api(ApiError::Denied(words(), Duration::ZERO)),
        of_api(ApiError::TimedOut(words())),
        of_api(ApiError::Contested(words(), words(), Duration::ZERO)),
    ] {
        let reason = error.reason().unwrap();
        let is = |foo: &Foo, progressing: &str, stalled: &str, seconds: i64| {
            let now = NOW + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
            let status = of(foo, None, Some(&error), now).unwrap();
            let expected = [
                format!("Ready=False {reason}"),
                format!("Progressing={progressing} {reason}"),
                format!("Stalled={stalled} {reason}"),
            ];
            assert_eq!(conditions(&status), expected, "{seconds} s");
            let left = stalls_in(&status.conditions, now).unwrap();
            (status, left)
        };
        let mut foo = foo();
        let (status, left) = is(&foo.view, "True", "False", 0);
        assert_eq!(left, GRACE);
        foo.view.set_status(status);
        let (_, left) = is(&foo.view, "True", "False", 59);
        assert_eq!(left, Duration::from_secs(1));
        let (stalled, left) = is(&foo.view, "False", "True", 60);
        assert_eq!(left, Duration::ZERO);
        foo.view.set_status(stalled);
        is(&foo.view, "False", "True", 61);
        foo.view.generation += 1;
        let (_, left) = is(&foo.view, "True", "False", 62);
        assert_eq!(left, GRACE);
    }
    let rejected = of_api(ApiError::Rejected(words()));
    let status = of(&foo().view, None, Some(&rejected), NOW).unwrap();
    assert_eq!(conditions(&status)[2], "Stalled=True DeploymentRejected");
}

/// A Foo that is still stalled after a change of its spec has been stalled since the same time.
#[test]
fn a_change_does_not_date_a_stalled_foo_anew() {
    let mut foo = foo();
    for (at, error) in [
        (0, ApiError::Rejected("words".to_owned()).into()),
        (1, Error::InvalidSpec("words".to_owned())),
    ] {
        let now = NOW + k8s_openapi::jiff::SignedDuration::from_secs(at);
        foo.view
            .set_status(of(&foo.view, None, Some(&error), now).unwrap());
        foo.view.generation += 1;
        let stalled = foo.view.condition("Stalled").unwrap();
        assert_eq!(stalled.reason, error.name());
        assert_eq!(stalled.last_transition_time, Time(NOW));
    }
}
