//! The status of a Foo, computed from the Foo and its Deployment. Pure functions: no client, and the time is an argument.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use operator_runtime::{ApiError, Event, Failure as _, Key, Primary as _, Snapshot, condition};

use super::{
    api::FooStatus,
    cached::{Deployment, Foo, Labels},
    error::Error,
};

/// The Deployment of a Foo after a reconcile.
#[derive(Debug)]
pub struct DeploymentState<'a> {
    /// The Deployment's key.
    pub key: Key,
    /// The current Deployment.
    pub actual: Snapshot<Deployment>,
    /// [`ApiError::Overruled`] if admission keeps the Deployment from its desired state.
    pub overruled: Option<&'a Error>,
    /// Whether its pod template waits for other rollouts to end.
    pub is_queued: bool,
}

/// The Deployment that serves a Foo. The Foo's status contains its name and its pod counts.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The Deployment's key.
    pub key: Key,
    /// The current Deployment.
    pub view: std::sync::Arc<Deployment>,
}

impl Serving {
    /// Chooses between the Deployment that the Foo specifies and the Deployment of an `earlier` name.
    ///
    /// If the status names the earlier Deployment, it serves until the specified one is available, and while the reconcile
    /// fails. After a failed deletion it serves only if it has no valid generation annotation. In that case, only the name in
    /// the status shows that the Foo may delete it.
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
        let is_named = foo.served_by().as_deref() == Some(old.key.name());
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

/// Returns the status after a reconcile, or `None` if the user need not know of the error.
///
/// `deployed` is the specified Deployment, if it is in its desired state or as close to it as possible.
#[must_use]
pub fn of(
    foo: &Foo,
    deployed: Option<&DeploymentState<'_>>,
    serving: Option<&Serving>,
    error: Option<&Error>,
    now: Timestamp,
) -> Option<FooStatus> {
    let (old, view) = (foo.status(), serving.map(|serving| &*serving.view));
    let counts = FooStatus {
        available_replicas: Some(view.map_or(0, |view| view.progress.available)),
        replicas: Some(view.map_or(0, |view| view.progress.replicas)),
        selector: view
            .map(|view| selector(&view.selector))
            .or_else(|| old.selector.clone()),
        deployment_name: serving
            .map(|serving| serving.key.name().to_owned())
            .or_else(|| old.deployment_name.clone()),
        last_handled_reconcile_at: old.last_handled_reconcile_at.clone(),
        ..FooStatus::default()
    };
    if matches!(error, Some(Error::Api(ApiError::Transient(..)))) {
        // The pods may die and the Deployment may be deleted while writes fail, so the counts are updated.
        return old.observed_generation.is_some().then(|| FooStatus {
            observed_generation: old.observed_generation,
            conditions: old.conditions.clone(),
            ..counts
        });
    }
    let (ready, mut progressing) = match (deployed, error) {
        (Some(deployed), None) => verdicts(foo, deployed, serving),
        // The specified Deployment is complete; only the superseded one remains.
        (Some(deployed), Some(error @ Error::DeletionFailed(..))) => {
            (verdicts(foo, deployed, serving).0, Verdict::failed(error)?)
        }
        (_, Some(error)) => {
            let ready = Verdict::failed(error)?;
            (ready.clone(), ready)
        }
        (None, None) => return None,
    };
    // A change of the Foo starts the time again.
    let is_since_change =
        |c: &Condition| c.type_ == STALLED && c.observed_generation == Some(foo.generation);
    let failing: &[Condition] = if old.conditions.iter().any(is_since_change) {
        &old.conditions
    } else {
        &[]
    };
    let is_stalled = match ready.stalls {
        Stalls::Never => None,
        Stalls::AtOnce => Some(true),
        Stalls::Later => Some(stalls_in(failing, now) == Some(Duration::ZERO)),
    };
    if ready.reason == progressing.reason {
        progressing.status = is_stalled != Some(true);
    }
    let stalled = is_stalled.map(|status| Verdict {
        status,
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
        conditions.extend(verdict.map(|it| {
            let said = (it.status, it.reason, it.message);
            let before = if type_ == STALLED && !said.0 {
                failing
            } else {
                &old.conditions
            };
            condition(before, foo.generation, type_, said, now)
        }));
    }
    Some(FooStatus {
        observed_generation: Some(foo.generation),
        conditions,
        ..counts
    })
}

/// The condition types that the controller writes. kstatus reports `Stalled=True` as a failure.
const TYPES: [&str; 3] = ["Ready", "Progressing", STALLED];
const STALLED: &str = "Stalled";

/// Time until `Stalled` becomes True for a failure that may end without the user: a quota whose usage is being counted, a webhook
/// whose pods are being replaced. Flux, Helm 4 and Argo CD fail a release at once for `Stalled=True`.
const GRACE: Duration = Duration::from_mins(1);

/// Returns the time until `Stalled` becomes True, if it is present.
#[must_use]
pub fn stalls_in(conditions: &[Condition], now: Timestamp) -> Option<Duration> {
    let stalled = conditions.iter().find(|c| c.type_ == STALLED)?;
    let since = now.duration_since(stalled.last_transition_time.0);
    let since = Duration::try_from(since).unwrap_or_default();
    let is_over = stalled.status == "True";
    Some(if is_over {
        Duration::ZERO
    } else {
        GRACE.saturating_sub(since)
    })
}

/// The API server rejects the pods or the `ReplicaSet`.
const REPLICA_FAILURE: &str = "ReplicaFailure";
/// The Deployment is paused until a user resumes it.
const PAUSED: &str = "DeploymentPaused";
/// The pod template waits for other rollouts.
pub const ROLLOUT_QUEUED: &str = "RolloutQueued";
/// The reason of the Deployment's own condition.
const DEADLINE: &str = "ProgressDeadlineExceeded";

/// Returns a Warning event if the status has a new reason that comes from the Deployment. Reconcile errors have their own
/// event.
#[must_use]
pub fn warning(old: &FooStatus, new: &FooStatus) -> Option<Event> {
    let [was, now] =
        [old, new].map(|status| status.conditions.iter().find(|c| c.type_ == TYPES[0]));
    let now = now?;
    let mut reasons = [REPLICA_FAILURE, PAUSED, DEADLINE].into_iter();
    let reason = reasons.find(|reason| *reason == now.reason)?;
    let needs_status_update = was.is_none_or(|was| was.reason != reason);
    needs_status_update.then(|| Event::warning(reason, now.message.clone()))
}

#[derive(Clone)]
struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
    stalls: Stalls,
}

/// When `Stalled` becomes True.
#[derive(Clone, Copy)]
enum Stalls {
    /// The failure ends without the user, or there is none.
    Never,
    /// Only a user can end the failure.
    AtOnce,
    /// The failure may end without the user: after [`GRACE`].
    Later,
}

fn verdicts(
    foo: &Foo,
    deployed: &DeploymentState<'_>,
    serving: Option<&Serving>,
) -> (Verdict, Verdict) {
    let (view, name) = (&deployed.actual.view, deployed.key.name());
    let asked = foo.spec.as_ref().ok().and_then(|spec| spec.replicas);
    let wanted = asked.unwrap_or(view.replicas);
    let overruled = deployed.overruled;
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
        stalls: Stalls::Never,
    };
    let stalled = |stalls, reason, why: &str| {
        let verdict = Verdict {
            message: format!("{message}{why}"),
            stalls,
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
        let why = format!("; it is paused, to resume it: {resume}");
        stalled(Stalls::AtOnce, PAUSED, &why)
    } else if let Some(words) = &view.progress.failure {
        let stalls = if view.progress.stuck {
            Stalls::AtOnce
        } else {
            Stalls::Later
        };
        stalled(stalls, REPLICA_FAILURE, &format!(": {words}"))
    } else if view.progress.stuck && view.is_observed() {
        let why = "; no progress within its progressDeadlineSeconds";
        stalled(Stalls::AtOnce, DEADLINE, why)
    } else if let (true, Some(overruled)) = (view.is_complete(), overruled) {
        stalled(Stalls::AtOnce, overruled.name(), "")
    } else {
        (
            verdict(false, "DeploymentProgressing"),
            verdict(true, "DeploymentProgressing"),
        )
    }
}

/// Describes the missing replicas of a rollout. `kubectl rollout status` waits for them in the same order.
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
            stalls: match error {
                Error::Deleting(_) => Stalls::Never,
                Error::Api(
                    ApiError::Denied(..) | ApiError::TimedOut(_) | ApiError::Contested(..),
                ) => Stalls::Later,
                _ => Stalls::AtOnce,
            },
        })
    }
}

/// Formats labels as a selector for the scale subresource.
fn selector(labels: &Labels) -> String {
    let pairs = labels
        .to_map()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
