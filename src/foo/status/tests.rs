#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{hash::Hasher as _, sync::Arc, time::Duration};

use operator_runtime::{Primary as _, Retry};

use super::super::fixtures::{deployment, foo};
use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn deployed(change: impl FnOnce(&mut Deployment)) -> Deployed {
    let mut object = deployment();
    change(&mut object.view);
    Deployed {
        key: object.key,
        view: object.view.into(),
        changed: false,
        overruled: None,
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

fn reported(change: impl FnOnce(&mut Deployment)) -> FooStatus {
    of(&foo().view, Some(&deployed(change)), None, NOW).unwrap()
}

/// Rows R5, A5 and A6.
#[test]
fn follows_the_deployment() {
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

/// Row A5: Ready means what `kubectl rollout status` means.
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
            format!("Progressing=False {reason}")
        ]
    );
    let going = [
        "Ready=False DeploymentDeleting",
        "Progressing=True DeploymentDeleting",
    ];
    assert_eq!(conditions(&reported(|d| d.deleting = true)), going);
}

/// Row A5: what an admission policy has otherwise is said as long as it is so; and Ready is what has as many replicas as are asked for.
#[test]
fn what_is_overruled_is_said() {
    for (replicas, is_ready) in [(3, true), (1, false)] {
        let mut deployed = deployed(|d| {
            d.replicas = replicas;
            let progress = &mut d.progress;
            (progress.replicas, progress.updated, progress.available) =
                (replicas, replicas, replicas);
        });
        deployed.overruled = Some(Error::Overruled("spec.x".into()));
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
        assert_eq!(conditions(&status), expected);
        let message = &status.conditions[0].message;
        assert!(message.ends_with("wanted spec.x"), "{message}");
    }
}

/// Row R4 and R7: it is reported to the user; what passes by itself is not the user's concern.
#[test]
fn errors_that_concern_the_user_are_reported() {
    let error = Error::ResourceExists("web".into());
    let status = of(&foo().view, None, Some(&error), NOW).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Ready=False ErrResourceExists",
            "Progressing=False ErrResourceExists"
        ]
    );
    assert_eq!(status.conditions[0].message, error.to_string());
    assert_eq!(status.available_replicas, Some(0));
    for quiet in [
        Error::Conflict,
        Error::NotLeading,
        Error::from(operator_runtime::ApiError::transient("down")),
    ] {
        let view = deployed(|_| {});
        assert_eq!(of(&foo().view, None, Some(&quiet), NOW), None);
        assert_eq!(of(&foo().view, Some(&view), Some(&quiet), NOW), None);
    }
}

/// Row R5: pods are counted as they are, whatever goes wrong with the Deployment beside that.
#[test]
fn the_counts_are_the_deployments_whatever_the_error() {
    let mut foo = foo();
    foo.view.status = reported(|_| {});
    let one_died = deployed(|d| d.progress.available = 2);
    for error in [
        Error::InvalidSpec("spec.deploymentName: must not be empty".into()),
        Error::ResourceExists("web".into()),
        Error::Rejected("no".into(), Duration::ZERO),
        Error::DeletionFailed("no".into(), Retry::After(Duration::ZERO)),
        Error::from(operator_runtime::ApiError::transient(
            "the API server answers 500: a webhook is down",
        )),
        Error::Transient(
            "the API server answers 503: no".into(),
            Duration::from_secs(1),
        ),
    ] {
        let status = of(&foo.view, Some(&one_died), Some(&error), NOW).unwrap();
        assert_eq!(
            (status.available_replicas, status.replicas),
            (Some(2), Some(3)),
            "{error}"
        );
    }
    let down = Error::from(operator_runtime::ApiError::transient("down"));
    let again = of(&foo.view, Some(&deployed(|_| {})), Some(&down), NOW).unwrap();
    assert_eq!(again, foo.view.status, "and nothing else is");
}

/// Row R11: the new Deployment is there and complete, and that the old one is still there is said beside it.
#[test]
fn a_refused_deletion_does_not_make_the_foo_unready() {
    let mut foo = foo();
    foo.view.status.deployment_name = Some("old".into());
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
    assert_eq!(
        status.deployment_name.as_deref(),
        Some("old"),
        "so that it is not forgotten"
    );
}

/// What says the same at another time says the same; everything else makes a difference.
#[test]
fn the_content_is_all_but_the_time() {
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

/// Invariant I6: what is reported again is the same, times included, and so is not written.
#[test]
fn what_stays_keeps_its_time() {
    let mut foo = foo();
    foo.view.status = reported(|_| {});
    let later = Timestamp::from_second(3600).unwrap();
    let again = of(&foo.view, Some(&deployed(|_| {})), None, later).unwrap();
    assert_eq!(again, foo.view.status);
    let worse = of(
        &foo.view,
        Some(&deployed(|d| d.progress.available = 1)),
        None,
        later,
    )
    .unwrap();
    assert_eq!(worse.conditions[0].last_transition_time, Time(later));
}

/// Others may keep conditions of their own on a Foo.
#[test]
fn conditions_of_others_stay() {
    let mut foo = foo();
    foo.view.status = reported(|_| {});
    foo.view.status.conditions[0].type_ = "Audited".into();
    let status = of(&foo.view, Some(&deployed(|_| {})), None, NOW).unwrap();
    let types: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["Audited", "Ready", "Progressing"]);
}

/// Row R11: the old Deployment is named until the new one serves.
#[test]
fn a_renamed_foo_names_its_old_deployment_until_the_new_one_is_available() {
    let mut foo = foo();
    foo.view.status.deployment_name = Some("old".into());
    let name = |deployed: Option<&Deployed>, error: Option<&Error>| {
        let status = of(&foo.view, deployed, error, NOW).unwrap();
        status.deployment_name.unwrap()
    };
    let begun = deployed(|d| d.progress.available = 0);
    assert_eq!(name(Some(&begun), None), "old");
    let taken = Error::ResourceExists("web".into());
    assert_eq!(name(None, Some(&taken)), "old");
    assert_eq!(name(Some(&deployed(|_| {})), None), "web");
    let refused = Error::Rejected("no".into(), Duration::ZERO);
    assert_eq!(name(Some(&deployed(|_| {})), Some(&refused)), "old");
}

/// Rows R5 and R11: where what is asked for cannot be had, and what served is gone, too, another earlier Deployment serves:
/// the status is about that one, whatever it says.
#[test]
fn the_status_names_what_it_counts() {
    let mut foo = foo();
    foo.view.status = reported(|_| {});
    foo.view.status.deployment_name = Some("gone".into());
    let mut earlier = deployed(|d| d.selector = Arc::new(Labels::default()));
    earlier.key = foo.key.sibling("earlier");
    let down = Error::Transient("the API server answers 503: no".into(), Duration::ZERO);
    for error in [Error::ResourceExists("web".into()), down] {
        let status = of(&foo.view, Some(&earlier), Some(&error), NOW).unwrap();
        assert_eq!(status.deployment_name.unwrap(), "earlier", "{error}");
        assert_eq!(status.selector.unwrap(), "", "{error}");
    }
}
