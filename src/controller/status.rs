//! From a Foo and its Deployment to the Foo's status. Pure: no client in sight, and the time is told.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    error::Error,
    key::Key,
    view::{Deployment, Foo, Labels},
};
use crate::api::FooStatus;

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

/// The status that tells how it went; `None` where that is nothing to bother the user with.
#[must_use]
pub fn of(foo: &Foo, result: Result<&Deployed, &Error>, now: Timestamp) -> Option<FooStatus> {
    let old = &foo.status;
    let (ready, progressing, deployment) = match result {
        Ok(deployed) => {
            let (ready, progressing) = verdicts(deployed);
            (ready, progressing, Some(deployed))
        }
        Err(error) => {
            let verdict = Verdict {
                status: false,
                reason: error.reason()?,
                message: error.to_string(),
            };
            (verdict.clone(), verdict, None)
        }
    };
    let serving = match deployment {
        // Row R11: the old Deployment serves until the new one is available.
        Some(deployed) if ready.status => Some(deployed.key.name().to_owned()),
        Some(deployed) => old
            .deployment_name
            .clone()
            .or_else(|| Some(deployed.key.name().to_owned())),
        None => old.deployment_name.clone(),
    };
    let view = deployment.map(|deployed| &*deployed.view);
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

/// Whether all that the Deployment asks for is there: `kubectl rollout status` would say so, too.
#[must_use]
pub fn is_complete(deployment: &Deployment) -> bool {
    let progress = &deployment.progress;
    !deployment.deleting
        && progress.observed_generation >= deployment.generation
        && progress.updated >= deployment.replicas
        && progress.replicas <= progress.updated
        && progress.available >= deployment.replicas
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
    if is_complete(view) {
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

    use super::*;
    use crate::controller::fixtures::{deployment, foo};

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
        of(&foo().view, Ok(&deployed(change)), NOW).unwrap()
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
        let status = of(&foo().view, Err(&error), NOW).unwrap();
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
            Error::Transient("down".into()),
        ] {
            assert_eq!(of(&foo().view, Err(&quiet), NOW), None);
        }
    }

    /// Invariant I6: what is told again is the same, times included, and so is not written.
    #[test]
    fn what_stays_keeps_its_time() {
        let mut foo = foo();
        foo.view.status = told(|_| {});
        let later = Timestamp::from_second(3600).unwrap();
        let again = of(&foo.view, Ok(&deployed(|_| {})), later).unwrap();
        assert_eq!(again, foo.view.status);
        let worse = of(
            &foo.view,
            Ok(&deployed(|d| d.progress.available = 1)),
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
        let status = of(&foo.view, Ok(&deployed(|_| {})), NOW).unwrap();
        let types: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(types, ["Audited", "Ready", "Progressing"]);
    }

    /// Row R11: the old Deployment is named until the new one serves.
    #[test]
    fn a_renamed_foo_names_its_old_deployment_until_the_new_one_is_available() {
        let mut foo = foo();
        foo.view.status.deployment_name = Some("old".into());
        let name = |result: Result<&Deployed, &Error>| {
            of(&foo.view, result, NOW).unwrap().deployment_name.unwrap()
        };
        assert_eq!(name(Ok(&deployed(|d| d.progress.available = 0))), "old");
        assert_eq!(name(Err(&Error::ResourceExists("web".into()))), "old");
        assert_eq!(name(Ok(&deployed(|_| {}))), "web");
    }
}
