//! From a Foo and its Deployment to the Foo's status. Pure: no client in sight, and the time is given.

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
}

/// The status that reports how it went; `None` where that is nothing to bother the user with. `deployed` is the Foo's
/// Deployment as it is, also where an error says that it is not as it should be.
#[must_use]
pub fn of(
    foo: &Foo,
    deployed: Option<&Deployed>,
    error: Option<&Error>,
    now: Timestamp,
) -> Option<FooStatus> {
    let (old, view) = (&foo.status, deployed.map(|deployed| &*deployed.view));
    let counts = FooStatus {
        available_replicas: Some(view.map_or(0, |view| view.progress.available)),
        replicas: Some(view.map_or(0, |view| view.progress.replicas)),
        selector: view
            .map(|view| selector(&view.selector))
            .or_else(|| old.selector.clone()),
        deployment_name: serving(foo, deployed, error),
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
        (Some(deployed), None) => verdicts(foo, deployed),
        // What the Foo asks for is there; what it asked for before is, too.
        (Some(deployed), Some(error @ Error::DeletionFailed(..))) => {
            (verdicts(foo, deployed).0, Verdict::failed(error)?)
        }
        (_, Some(error)) => (Verdict::failed(error)?, Verdict::failed(error)?),
        (None, None) => return None,
    };
    let mut conditions: Vec<Condition> = old
        .conditions
        .iter()
        .filter(|c| c.type_ != "Ready" && c.type_ != "Progressing")
        .cloned()
        .collect();
    conditions.push(ready.into_condition("Ready", foo, now));
    conditions.push(progressing.into_condition("Progressing", foo, now));
    Some(FooStatus {
        observed_generation: Some(foo.generation),
        conditions,
        ..counts
    })
}

/// The name of the Deployment that serves.
fn serving(foo: &Foo, deployed: Option<&Deployed>, error: Option<&Error>) -> Option<String> {
    let old = foo.status.deployment_name.clone();
    let Some(Deployed { key, view, .. }) = deployed else {
        return old;
    };
    let spec = foo.spec.as_ref().ok();
    let is_asked_for = spec.is_some_and(|spec| spec.deployment_name == key.name());
    match error {
        // Row R11: the old one serves until the new one is available, and is remembered until it is deleted.
        Some(_) if is_asked_for => old,
        None if !view.is_complete() => old.or_else(|| Some(key.name().to_owned())),
        _ => Some(key.name().to_owned()),
    }
}

#[derive(Clone)]
struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
}

fn verdicts(foo: &Foo, deployed: &Deployed) -> (Verdict, Verdict) {
    let view = &deployed.view;
    let asked = foo.spec.as_ref().ok().and_then(|spec| spec.replicas);
    let wanted = asked.unwrap_or(view.replicas);
    let overruled = deployed.overruled.as_ref();
    let message = format!(
        "Deployment {:?} has {} of {wanted} replicas available{}",
        deployed.key.name(),
        view.progress.available,
        overruled.map_or(String::new(), |error| format!("; {error}")),
    );
    let verdict = |status, reason| Verdict {
        status,
        reason,
        message: message.clone(),
    };
    if view.is_complete() && view.replicas == wanted {
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
    } else if let (true, Some(overruled)) = (view.is_complete(), overruled) {
        let reason = overruled.name();
        (verdict(false, reason), verdict(false, reason))
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
