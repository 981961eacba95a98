//! From a Foo and its Deployment to the Foo's status. Pure: no client in sight, and the time is given.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use operator_runtime::{Event, Failure as _, Key};

use super::{
    api::FooStatus,
    cached::{Deployment, Foo, Labels},
    error::Error,
};

/// What became of a Foo's Deployment.
#[derive(Debug)]
pub struct Deployed {
    /// The Deployment's key.
    pub key: Key,
    /// The Deployment as it is now.
    pub view: std::sync::Arc<Deployment>,
    /// Whether anything was written to get there.
    pub changed: bool,
    /// What keeps it from being as the Foo says, where the API server stores something else: [`Error::Overruled`].
    pub overruled: Option<Error>,
    /// Whether its pod template waits for other rollouts to end.
    pub is_queued: bool,
}

/// The Deployment that serves a Foo, which its status names and counts.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Its key.
    pub key: Key,
    /// As it is now.
    pub view: std::sync::Arc<Deployment>,
}

impl Serving {
    /// Of the Deployment that the Foo specifies and the one of an `earlier` name, where they are there. The earlier one serves
    /// until the other is available, and is named for as long as nothing else shows that it is this Foo's to delete.
    #[must_use]
    pub fn of(
        foo: &Foo,
        specified: Option<Self>,
        earlier: Option<Self>,
        error: Option<&Error>,
    ) -> Option<Self> {
        let (Some(new), Some(old)) = (&specified, &earlier) else {
            return specified.or(earlier);
        };
        let is_named = foo.status.deployment_name.as_deref() == Some(old.key.name());
        let serves = match error {
            None => new.view.is_complete(),
            Some(Error::DeletionFailed(..)) => old.view.foo_generation.is_some(),
            Some(_) => false,
        };
        if is_named && !serves {
            earlier
        } else {
            specified
        }
    }
}

/// The status that reports how it went; `None` where that is nothing to bother the user with. `deployed` is the Deployment that
/// the Foo specifies, where it is as it should be or as close as it gets.
#[must_use]
pub fn of(
    foo: &Foo,
    deployed: Option<&Deployed>,
    serving: Option<&Serving>,
    error: Option<&Error>,
    now: Timestamp,
) -> Option<FooStatus> {
    let (old, view) = (&foo.status, serving.map(|serving| &*serving.view));
    let counts = FooStatus {
        available_replicas: Some(view.map_or(0, |view| view.progress.available)),
        replicas: Some(view.map_or(0, |view| view.progress.replicas)),
        selector: view
            .map(|view| selector(&view.selector))
            .or_else(|| old.selector.clone()),
        deployment_name: serving
            .map(|serving| serving.key.name().to_owned())
            .or_else(|| old.deployment_name.clone()),
        ..FooStatus::default()
    };
    if matches!(error, Some(Error::Transient(..))) {
        // What keeps the Deployment from being written does not keep its pods from dying, nor itself from being gone.
        return old.observed_generation.is_some().then(|| FooStatus {
            observed_generation: old.observed_generation,
            conditions: old.conditions.clone(),
            ..counts
        });
    }
    let (ready, progressing) = match (deployed, error) {
        (Some(deployed), None) => verdicts(foo, deployed, serving),
        // What the Foo asks for is there; what it asked for before is, too.
        (Some(deployed), Some(error @ Error::DeletionFailed(..))) => {
            (verdicts(foo, deployed, serving).0, Verdict::failed(error)?)
        }
        (_, Some(error)) => (Verdict::failed(error)?, Verdict::failed(error)?),
        (None, None) => return None,
    };
    let stalled = ready.stalls.then(|| Verdict {
        status: true,
        ..ready.clone()
    });
    let mut conditions: Vec<Condition> = old
        .conditions
        .iter()
        .filter(|c| !TYPES.contains(&&*c.type_))
        .cloned()
        .collect();
    let verdicts = [Some(ready), Some(progressing), stalled];
    for (type_, verdict) in TYPES.into_iter().zip(verdicts) {
        conditions.extend(verdict.map(|verdict| verdict.into_condition(type_, foo, now)));
    }
    Some(FooStatus {
        observed_generation: Some(foo.generation),
        conditions,
        ..counts
    })
}

/// The conditions that the controller writes. kstatus takes `Stalled=True` for a failure.
const TYPES: [&str; 3] = ["Ready", "Progressing", "Stalled"];

/// The pods, or the `ReplicaSet`, are refused.
const REPLICA_FAILURE: &str = "ReplicaFailure";
/// A person has to resume the Deployment.
const PAUSED: &str = "DeploymentPaused";
/// The pod template waits for other rollouts.
pub const ROLLOUT_QUEUED: &str = "RolloutQueued";
/// As the Deployment's own condition.
const DEADLINE: &str = "ProgressDeadlineExceeded";

/// The Warning event of a status whose reason is new and comes from the Deployment. Errors of the reconcile have theirs already.
#[must_use]
pub fn warning(old: &FooStatus, new: &FooStatus) -> Option<Event> {
    let [was, now] =
        [old, new].map(|status| status.conditions.iter().find(|c| c.type_ == TYPES[0]));
    let now = now?;
    let mut reasons = [REPLICA_FAILURE, PAUSED, DEADLINE].into_iter();
    let reason = reasons.find(|reason| *reason == now.reason)?;
    let is_news = was.is_none_or(|was| was.reason != reason);
    is_news.then(|| Event::warning(reason, now.message.clone()))
}

#[derive(Clone)]
struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
    /// Whether only a person can change it.
    stalls: bool,
}

fn verdicts(foo: &Foo, deployed: &Deployed, serving: Option<&Serving>) -> (Verdict, Verdict) {
    let (view, name) = (&deployed.view, deployed.key.name());
    let asked = foo.spec.as_ref().ok().and_then(|spec| spec.replicas);
    let wanted = asked.unwrap_or(view.replicas);
    let overruled = deployed.overruled.as_ref();
    let asked_otherwise = overruled.map_or(String::new(), |error| format!("; {error}"));
    let old = serving.filter(|serving| serving.key != deployed.key && !view.is_complete());
    let until_then = old.map_or(String::new(), |old| {
        format!("; until then, Deployment {:?} serves", old.key.name())
    });
    let queued = if deployed.is_queued {
        "; its rollout waits until fewer than max_rollouts others are under way"
    } else {
        ""
    };
    let message = format!(
        "Deployment {name:?} has {}{asked_otherwise}{until_then}{queued}",
        count(view, wanted)
    );
    let verdict = |status, reason| Verdict {
        status,
        reason,
        message: message.clone(),
        stalls: false,
    };
    let stalled = |reason, why: &str| {
        let verdict = Verdict {
            message: format!("{message}{why}"),
            stalls: true,
            ..verdict(false, reason)
        };
        (verdict.clone(), verdict)
    };
    if view.is_complete() && view.replicas == wanted {
        let progressing = if deployed.is_queued {
            verdict(true, ROLLOUT_QUEUED)
        } else {
            verdict(false, "DeploymentComplete")
        };
        (verdict(true, "DeploymentAvailable"), progressing)
    } else if view.deleting {
        let verdict = |status| Verdict {
            message: format!("Deployment {name:?} is being deleted"),
            ..verdict(status, "DeploymentDeleting")
        };
        (verdict(false), verdict(true))
    } else if view.is_held() {
        let namespace = deployed.key.namespace();
        let resume = format!("kubectl rollout resume deployment/{name} -n {namespace}");
        stalled(PAUSED, &format!("; it is paused, to resume it: {resume}"))
    } else if let Some(words) = &view.progress.failure {
        stalled(REPLICA_FAILURE, &format!(": {words}"))
    } else if view.progress.stuck && view.is_observed() {
        stalled(DEADLINE, "; no progress within its progressDeadlineSeconds")
    } else if let (true, Some(overruled)) = (view.is_complete(), overruled) {
        stalled(overruled.name(), "")
    } else {
        (
            verdict(false, "DeploymentProgressing"),
            verdict(true, "DeploymentProgressing"),
        )
    }
}

/// The missing replicas of a rollout, in the order in which `kubectl rollout status` waits for them.
fn count(view: &Deployment, wanted: i32) -> String {
    let progress = &view.progress;
    let (updated, all) = (progress.updated, progress.replicas);
    if !view.is_observed() && progress.failure.is_none() {
        "a change that the Deployment controller has not observed".to_owned()
    } else if updated < view.replicas && all > updated {
        format!("{updated} of {wanted} replicas updated")
    } else if updated < view.replicas {
        format!("{updated} of {wanted} replicas created")
    } else if all > updated {
        let old = all - updated;
        let plural = if old == 1 { "" } else { "s" };
        format!("{old} old replica{plural} still to terminate")
    } else {
        let (available, all) = (progress.available, wanted.max(updated));
        format!("{available} of {all} replicas available")
    }
}

impl Verdict {
    fn failed(error: &Error) -> Option<Self> {
        Some(Self {
            status: false,
            reason: error.reason()?,
            message: error.to_string(),
            stalls: true,
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

/// The labels as the text that the scale subresource wants.
fn selector(labels: &Labels) -> String {
    let pairs = labels
        .to_map()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
