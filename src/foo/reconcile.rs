//! The reconcile of one Foo: it compares and applies the specified Deployment, scales or deletes the Deployments of earlier
//! names, and writes the status. A Deployment of an earlier name is *superseded* when the specified Deployment is complete.
//!
//! [`plan`](super::plan) and [`status`](super::status) decide without a client. This module sends the requests.

use std::{sync::Arc, time::Duration};

use operator_runtime::{
    Action, ApiError, Context, Event, Failure as _, Key, Patched, Reconciler, Retry, Snapshot,
    Writer, telemetry::trace, wanted,
};
use serde_json::Value;

use super::{
    api::FooStatus,
    cached::{Deployment, Foo},
    error::Error,
    plan::Desired,
    previous::FollowUp,
    rollouts::Rollouts,
    status::{self, DeploymentState},
};

/// The reconciler for Foos.
pub struct FooReconciler {
    /// All Foos.
    pub foos: Arc<Writer<Foo>>,
    /// All Deployments, with or without a controlling Foo.
    pub deployments: Writer<Deployment>,
    /// The container image of every Deployment.
    pub image: String,
    /// The limit on rollouts.
    pub rollouts: Arc<Rollouts>,
}

/// The next write to a Foo's Deployment.
enum Change<'a> {
    /// No write: the Deployment is in its desired state, or as close to it as admission allows.
    Nothing(DeploymentState),
    Create(Desired<'a>),
    Patch(Correction<'a>),
}

/// A necessary patch of a Deployment.
pub struct Correction<'a> {
    /// The desired state.
    pub desired: Desired<'a>,
    /// The cached Deployment.
    pub actual: Snapshot<Deployment>,
    /// The fields that differ.
    pub patch: Value,
}

impl Reconciler for FooReconciler {
    type Primary = Foo;
    type Error = Error;

    /// Reconciles the Foo's Deployments, and then its status. Sends no request if nothing differs.
    ///
    /// After a successful write, the status is postponed while other Foos that may need a Deployment wait in the queue.
    async fn reconcile(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> Result<Action, Error> {
        self.wake(cx);
        if foo.view.deleting {
            trace::decided("nothing: the Foo is gone");
            return Ok(Action::Done); // The garbage collector deletes the Deployment.
        }
        let mut deployed = self.apply(cx, foo).await;
        let followed = self.follow(cx, foo, &mut deployed).await;
        let error = deployed.as_ref().err().or(followed.as_ref().err());
        let reported = self.report(cx, foo, deployed.as_ref().ok(), error).await;
        self.wake(cx);
        merge_results(merge_results(deployed.map(drop), followed), reported)
    }

    fn is_up_to_date(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> bool {
        let (key, view) = (cx.key(), &*foo.view);
        if view.deleting {
            return true;
        }
        let deployed = match self.compare(key, view) {
            Ok(Change::Nothing(deployed)) => Ok(deployed),
            Ok(_) => return false,
            Err(error) => Err(error),
        };
        match self.follow_up(key, view, deployed.as_ref()) {
            FollowUp::Delete(superseded) if superseded.is_empty() => {}
            _ => return false,
        }
        let status = self.status(cx, view, deployed.as_ref().ok(), deployed.as_ref().err());
        status.is_none_or(|status| !self.foos.needs_status_update(key, foo, &status))
    }

    fn why(&self, key: &Key) -> Vec<(&'static str, String)> {
        let waits = self.rollouts.place(key).map(|place| {
            let text = format!("its rollout waits for a slot, place {place}");
            ("rolloutSlot", text)
        });
        waits.into_iter().collect()
    }
}

impl FooReconciler {
    /// Adds Foos with a queued rollout to the work queue, one Foo for each free place in [`Rollouts`].
    fn wake(&self, cx: &Context<'_, Foo>) {
        for foo in self.rollouts.released() {
            cx.enqueue(foo);
        }
    }

    /// Scales or deletes the Deployments of earlier names.
    async fn follow(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        deployed: &mut Result<DeploymentState, Error>,
    ) -> Result<(), Error> {
        match self.follow_up(cx.key(), &foo.view, deployed.as_ref()) {
            FollowUp::Scale(scale) => {
                trace::decided("scale earlier");
                let plan = |actual: &Deployment| scale.desired.scale(actual);
                let patched = self.patch(cx, foo, &scale, plan).await?;
                if let Ok(deployed) = deployed {
                    deployed.changed |= patched.changed;
                }
            }
            FollowUp::Delete(superseded) => {
                let Ok(new) = deployed else {
                    return Ok(());
                };
                for (old, actual) in superseded {
                    trace::decided("delete superseded");
                    self.delete(cx, foo, &new.key, &old, &actual).await?;
                    new.changed = true;
                }
            }
        }
        Ok(())
    }

    /// Creates or patches the specified Deployment, if necessary.
    async fn apply(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
    ) -> Result<DeploymentState, Error> {
        let (key, view) = (cx.key(), &*foo.view);
        let mut need = self.compare(key, view)?;
        let mut starting = None;
        if let Change::Patch(Correction {
            desired, actual, ..
        }) = &need
            && desired.changes_template(&actual.view)
        {
            starting = self.rollouts.start(key, &desired.key, actual);
            if starting.is_none() {
                trace::decided("rollout queued");
                need = self.need(desired.clone().keeping_template())?;
            }
        }
        match need {
            Change::Nothing(deployed) => Ok(deployed),
            Change::Create(desired) => {
                trace::decided("create");
                let replaced = self.earlier(key, view, &desired.key).into_iter().next();
                let manifest = desired.manifest(replaced.map(|(_, old)| old.view).as_deref());
                let created = self.deployments.create(cx, &desired.key, &manifest);
                Ok(DeploymentState {
                    actual: created.await?,
                    key: desired.key,
                    changed: true,
                    overruled: None,
                    is_queued: false,
                })
            }
            Change::Patch(correction) => {
                trace::decided("patch");
                let plan = |actual: &Deployment| correction.desired.plan(actual);
                let patched = self.patch(cx, foo, &correction, plan).await?;
                let desired = correction.desired;
                if let Some(starting) = starting.filter(|_| patched.changed) {
                    starting.succeed();
                }
                let missing = patched.overruled.as_ref();
                let overruled = missing.map(|it| overruled(desired.key.name(), it));
                if let Some(missing) = &overruled {
                    cx.log_once(
                        missing,
                        "leaving it until the Foo or the Deployment changes",
                    );
                    cx.event(Event::failed(missing));
                }
                Ok(DeploymentState {
                    is_queued: desired.keeps_template(),
                    key: desired.key,
                    actual: patched.actual,
                    changed: patched.changed,
                    overruled,
                })
            }
        }
    }

    async fn patch(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        correction: &Correction<'_>,
        plan: impl Fn(&Deployment) -> Option<Value>,
    ) -> Result<Patched<Deployment>, Error> {
        let Correction {
            desired,
            actual,
            patch,
        } = correction;
        (self.deployments).may_patch(cx, &desired.key, actual, patch)?;
        // The Deployment's annotation contains a newer generation than the cached Foo. If a live read confirms the cached Foo,
        // a client has edited the annotation, and the patch reverts the edit. A write for a newer Foo changes the
        // resourceVersion of the Deployment, and this patch fails.
        if desired.is_behind(&actual.view) {
            self.foos.verify_current(cx, foo).await?;
        }
        let patched = (self.deployments).patch(cx, &desired.key, actual, patch, plan);
        Ok(patched.await?)
    }

    /// Compares the specified Deployment with the cached one.
    fn compare<'a>(&'a self, key: &'a Key, foo: &'a Foo) -> Result<Change<'a>, Error> {
        self.need(Desired::of(key, foo, &self.image)?)
    }

    fn need<'a>(&self, desired: Desired<'a>) -> Result<Change<'a>, Error> {
        let Some(actual) = self.deployments.store().get(&desired.key) else {
            return Ok(Change::Create(desired));
        };
        let is_needed = |patch: &Value| (self.deployments).is_needed(&desired.key, &actual, patch);
        match desired.difference(&actual)? {
            Some(patch) if is_needed(&patch) => Ok(Change::Patch(Correction {
                desired,
                actual,
                patch,
            })),
            difference => Ok(Change::Nothing(DeploymentState {
                is_queued: desired.keeps_template(),
                overruled: difference.map(|it| overruled(desired.key.name(), &it)),
                key: desired.key,
                actual,
                changed: false,
            })),
        }
    }

    /// Deletes the superseded Deployment `old`, after two live reads.
    ///
    /// The first read confirms the cached Foo: a newer Foo may specify the old name again. The second read confirms that the
    /// `new` Deployment is complete: the watch may be behind.
    async fn delete(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        new: &Key,
        old: &Key,
        actual: &Snapshot<Deployment>,
    ) -> Result<(), Error> {
        // A failed live read also counts as a failed deletion.
        let failed = |error: ApiError| {
            let retry = error.retry();
            match error {
                ApiError::Rejected(words)
                | ApiError::Denied(words, _)
                | ApiError::TimedOut(words)
                | ApiError::Transient(words, _) => Error::DeletionFailed(words, retry),
                ApiError::Contested(..) => Error::DeletionFailed(error.to_string(), retry),
                other => other.into(),
            }
        };
        self.foos.verify_current(cx, foo).await.map_err(failed)?;
        let new = self.deployments.get_live(cx, new).await.map_err(failed)?;
        if !new.is_some_and(|new| new.is_controlled_by(&*foo.view) && new.is_complete()) {
            return Err(ApiError::Conflict.into());
        }
        let deleted = self.deployments.delete(cx, old, actual).await;
        deleted.map_err(failed)
    }

    /// Returns the status after a reconcile with this result.
    fn status(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Foo,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Option<FooStatus> {
        let serving = self.serving(cx.key(), foo, deployed, error);
        status::of(foo, deployed, serving.as_ref(), error, cx.now())
    }

    /// Writes the status if it differs, and an event after a change or for a new error.
    async fn report(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Result<Action, Error> {
        let Some(status) = self.status(cx, &foo.view, deployed, error) else {
            return Ok(Action::Done);
        };
        let news = self.foos.needs_status_update(cx.key(), foo, &status);
        let changed = deployed.is_some_and(|deployed| deployed.changed);
        match error {
            None if changed => cx.event(Event::normal("Synced", "Foo synced successfully")),
            Some(error) if news && error.reason().is_some() => {
                if error.retry() == Retry::OnChange {
                    cx.log_once(error, "waiting for the Foo to change");
                }
                if !matches!(error, Error::Deleting(_)) {
                    cx.event(Event::failed(error));
                }
            }
            _ => {}
        }
        if !news {
            if error.is_none() && !changed {
                trace::decided("nothing");
            }
            return Ok(Action::Done);
        }
        if error.is_none() && changed && cx.has_urgent_work() {
            trace::decided("status later");
            return Ok(Action::StatusPending);
        }
        if let Some(warning) = status::warning(&foo.view.status, &status) {
            cx.event(warning);
        }
        trace::decided("status");
        self.update_status(cx, foo, &status, error.is_some())
            .await?;
        Ok(Action::Done)
    }

    /// Writes the status.
    ///
    /// The API server may reject every status of a Foo that is older than the schema. If the reconcile itself failed
    /// (`is_wrong`), such a rejection is only logged, and the error of the reconcile decides on the retry.
    async fn update_status(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        status: &FooStatus,
        is_wrong: bool,
    ) -> Result<(), Error> {
        match self.foos.update_status(cx, foo, status).await {
            Err(ApiError::Rejected(words)) => {
                let refused = Error::StatusRejected(words, Duration::ZERO);
                if !is_wrong {
                    return Err(refused);
                }
                cx.log_once(&refused, "the status cannot be written");
                self.foos.suppress_status(cx, foo, status);
                Ok(())
            }
            // The cause may lie outside the Foo, so it is always retried.
            Err(ApiError::Denied(words, time)) => Err(Error::StatusRejected(words, time)),
            Err(error @ ApiError::Contested(.., time)) => {
                Err(Error::StatusContested(error.to_string(), time))
            }
            Err(ApiError::TimedOut(words)) => Err(Error::StatusRejected(words, Duration::ZERO)),
            updated => Ok(updated?),
        }
    }
}

/// Returns the error for changes that a policy or a webhook has reverted.
fn overruled(name: &str, missing: &Value) -> Error {
    ApiError::Overruled("Deployment", name.to_owned(), wanted(missing)).into()
}

/// Merges the results of two steps of a reconcile, for example of the Deployment and of the status.
///
/// If both failed and the first error has a fixed delay, the first error is returned. Its delay is at most the fixed delay of the
/// second error (10 s if that has none), but at least the `Retry-After` of the second error.
///
/// Otherwise, the second error is returned in three cases, and the first error in all others:
///
/// - The first error is not retried. The second step must be retried, for example to write the first error to the status.
/// - The second error is quiet (for example a conflict), and the first error has no `Retry-After`.
/// - The second error has the longer `Retry-After`.
fn merge_results<T>(first: Result<(), Error>, second: Result<T, Error>) -> Result<T, Error> {
    const SOON: Duration = Duration::from_secs(10);
    match (first, second) {
        (Err(error), Err(later)) if error.is_put_off() => {
            let limit = match later.retry() {
                Retry::After(time) => time,
                _ => SOON,
            };
            Err(error.between(later.asks(), limit))
        }
        (Err(error), Err(later))
            if error.retry() == Retry::OnChange
                || later.retry().is_quiet() && error.asks().is_zero()
                || later.asks() > error.asks() =>
        {
            Err(later)
        }
        (first, second) => first.and(second),
    }
}

#[cfg(test)]
mod tests;
