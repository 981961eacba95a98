//! From a Foo and its Deployment to the Foo's status. Pure: no client in sight, and the time is told.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use operator_runtime::{Failure as _, Key};

use super::{
    api::FooStatus,
    cached::{Deployment, Foo, Labels},
    error::Error,
};

/// What became of a Foo's Deployment.
#[derive(Clone, Debug)]
pub struct Deployed {
    /// The Deployment's key.
    pub key: Key,
    /// The Deployment as it is now.
    pub view: std::sync::Arc<Deployment>,
    /// Whether anything was written to get there.
    pub changed: bool,
}

/// The status that tells how it went; `None` where that is nothing to bother the user with. `deployed` is the Foo's
/// Deployment as it is, also where an error says that it is not as it should be.
#[must_use]
pub fn of(
    foo: &Foo,
    deployed: Option<&Deployed>,
    error: Option<&Error>,
    now: Timestamp,
) -> Option<FooStatus> {
    let old = &foo.status;
    if matches!(error, Some(Error::Transient(..))) {
        return counts_of(old, &deployed?.view);
    }
    let (ready, progressing) = match (deployed, error) {
        (Some(deployed), None) => verdicts(deployed),
        // What the Foo asks for is there; what it asked for before is, too.
        (Some(deployed), Some(error @ Error::DeletionFailed(..))) => {
            (verdicts(deployed).0, Verdict::failed(error)?)
        }
        (_, Some(error)) => (Verdict::failed(error)?, Verdict::failed(error)?),
        (None, None) => return None,
    };
    let serving = match (deployed, error) {
        // Row R11: the old Deployment serves until the new one is available.
        (Some(deployed), None) if ready.status => Some(deployed.key.name().to_owned()),
        (Some(deployed), None) => old
            .deployment_name
            .clone()
            .or_else(|| Some(deployed.key.name().to_owned())),
        // And is remembered until it is deleted.
        _ => old.deployment_name.clone(),
    };
    let view = deployed.map(|deployed| &*deployed.view);
    let mut conditions: Vec<Condition> = old
        .conditions
        .iter()
        .filter(|c| c.type_ != "Ready" && c.type_ != "Progressing")
        .cloned()
        .collect();
    conditions.push(ready.into_condition("Ready", foo, now));
    conditions.push(progressing.into_condition("Progressing", foo, now));
    Some(FooStatus {
        available_replicas: Some(view.map_or(0, |view| view.progress.available)),
        observed_generation: Some(foo.generation),
        replicas: Some(view.map_or(0, |view| view.progress.replicas)),
        selector: view
            .map(|view| selector(&view.selector))
            .or_else(|| old.selector.clone()),
        deployment_name: serving,
        conditions,
    })
}

/// What it said before, with the counts of now: what keeps the Deployment from being written does not keep its pods from
/// dying. `None` where nothing was said before.
fn counts_of(old: &FooStatus, deployment: &Deployment) -> Option<FooStatus> {
    old.observed_generation?;
    Some(FooStatus {
        available_replicas: Some(deployment.progress.available),
        replicas: Some(deployment.progress.replicas),
        ..old.clone()
    })
}

#[derive(Clone)]
struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
}

fn verdicts(deployed: &Deployed) -> (Verdict, Verdict) {
    let view = &deployed.view;
    let message = format!(
        "Deployment {:?} has {} of {} replicas available",
        deployed.key.name(),
        view.progress.available,
        view.replicas
    );
    let verdict = |status, reason| Verdict {
        status,
        reason,
        message: message.clone(),
    };
    if view.is_complete() {
        (
            verdict(true, "DeploymentAvailable"),
            verdict(false, "DeploymentComplete"),
        )
    } else if view.deleting {
        let message = format!("Deployment {:?} is being deleted", deployed.key.name());
        let verdict = |status| Verdict {
            status,
            reason: "DeploymentDeleting",
            message: message.clone(),
        };
        (verdict(false), verdict(true))
    } else if view.progress.stuck && view.progress.observed_generation >= view.generation {
        (
            verdict(false, "ProgressDeadlineExceeded"),
            verdict(false, "ProgressDeadlineExceeded"),
        )
    } else {
        (
            verdict(false, "DeploymentProgressing"),
            verdict(true, "DeploymentProgressing"),
        )
    }
}

impl Verdict {
    fn failed(error: &Error) -> Option<Self> {
        Some(Self {
            status: false,
            reason: error.reason()?,
            message: error.to_string(),
        })
    }

    /// A condition that stays as it is keeps its time, so that comparing statuses compares what they say.
    fn into_condition(self, type_: &str, foo: &Foo, now: Timestamp) -> Condition {
        let status = if self.status { "True" } else { "False" };
        let old = foo
            .status
            .conditions
            .iter()
            .find(|c| c.type_ == type_ && c.status == status);
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            observed_generation: Some(foo.generation),
            last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
        }
    }
}

/// The labels as the text that the scale subresource wants (row A6).
fn selector(labels: &Labels) -> String {
    let pairs = labels
        .to_map()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use std::hash::{Hash as _, Hasher as _};

    use super::super::{
        cached::Content,
        fixtures::{deployment, foo},
    };
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn deployed(change: impl FnOnce(&mut Deployment)) -> Deployed {
        let mut object = deployment();
        change(&mut object.view);
        Deployed {
            key: object.key,
            view: object.view.into(),
            changed: false,
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

    fn told(change: impl FnOnce(&mut Deployment)) -> FooStatus {
        of(&foo().view, Some(&deployed(change)), None, NOW).unwrap()
    }

    /// Rows R5, A5 and A6.
    #[test]
    fn follows_the_deployment() {
        let status = told(|_| {});
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
        assert_eq!(conditions(&told(|d| d.progress.available = 2)), under_way);
        assert_eq!(conditions(&told(|d| d.progress.updated = 2)), under_way);
        assert_eq!(
            conditions(&told(|d| d.progress.replicas = 4)),
            under_way,
            "an old pod is still there"
        );
        assert_eq!(
            conditions(&told(|d| d.generation = 5)),
            under_way,
            "its controller has not looked yet"
        );
        let stuck = told(|d| {
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
        assert_eq!(conditions(&told(|d| d.deleting = true)), going);
    }

    /// Row R4 and R7: the user is told; what passes by itself is not the user's concern.
    #[test]
    fn errors_that_concern_the_user_are_told() {
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
        foo.view.status = told(|_| {});
        let one_died = deployed(|d| d.progress.available = 2);
        for error in [
            Error::InvalidSpec("spec.deploymentName: must not be empty".into()),
            Error::ResourceExists("web".into()),
            Error::Rejected("no".into()),
            Error::DeletionFailed("no".into(), Duration::ZERO),
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
            Duration::ZERO,
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

    /// What says the same at another time says the same; everything else tells two apart.
    #[test]
    fn the_content_is_all_but_the_time() {
        let status = told(|_| {});
        let hash = |status: &FooStatus| {
            let mut hasher = std::hash::DefaultHasher::new();
            Content(status).hash(&mut hasher);
            hasher.finish()
        };
        let mut later = status.clone();
        later.conditions[0].last_transition_time = Time(Timestamp::from_second(3600).unwrap());
        assert!(Content(&status) == Content(&later) && hash(&status) == hash(&later));
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
            assert!(Content(&status) != Content(&other) && hash(&status) != hash(&other));
        }
    }

    /// Invariant I6: what is told again is the same, times included, and so is not written.
    #[test]
    fn what_stays_keeps_its_time() {
        let mut foo = foo();
        foo.view.status = told(|_| {});
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
        foo.view.status = told(|_| {});
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
    }
}
