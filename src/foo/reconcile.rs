//! The reconcile of one Foo: observe, decide, apply, delete superseded Deployments, report. A Deployment of an earlier name is
//! *superseded* once the Deployment of the current name is complete.
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
    rollouts::Rollouts,
    status::{self, DeploymentState, Serving},
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
    /// A correction.
    Patch(Desired<'a>, Snapshot<Deployment>),
}

impl Reconciler for FooReconciler {
    type Primary = Foo;
    type Error = Error;

    /// Reconciles the Foo's Deployment, and then its status. Sends no request if nothing differs.
    ///
    /// After a successful write, the status is postponed while other Foos that may need a Deployment wait in the queue.
    async fn reconcile(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> Result<Action, Error> {
        self.wake(cx);
        if foo.view.deleting {
            trace::decided("nothing: the Foo is gone");
            return Ok(Action::Done); // The garbage collector deletes the Deployment.
        }
        let (mut deployed, mut result) = match self.apply(cx, foo).await {
            Ok(deployed) => (Some(deployed), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let scaled = self.scale_earlier(cx, foo, &mut deployed, result.as_ref().err());
        let scaled = scaled.await;
        if let (Some(new), Ok(())) = (&mut deployed, &scaled) {
            result = self.delete_superseded(cx, foo, new).await;
        }
        let error = result.as_ref().err().or(scaled.as_ref().err());
        let reported = self.report(cx, foo, deployed.as_ref(), error).await;
        self.wake(cx);
        merge_results(merge_results(result, scaled), reported)
    }

    fn is_up_to_date(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> bool {
        let key = cx.key();
        if foo.view.deleting {
            return true;
        }
        let (deployed, error) = match self.compare(key, &foo.view) {
            Ok(Change::Nothing(deployed))
                if self.superseded(key, &foo.view, &deployed).is_empty() =>
            {
                (Some(deployed), None)
            }
            Ok(_) => return false,
            Err(error) => (None, Some(error)),
        };
        let (deployed, error) = (deployed.as_ref(), error.as_ref());
        if self.unscaled(key, &foo.view, deployed, error).is_some() {
            return false;
        }
        let serving = self.serving(key, &foo.view, deployed, error);
        let status = status::of(&foo.view, deployed, serving.as_ref(), error, cx.now());
        status.is_none_or(|status| !self.foos.needs_status_update(key, foo, &status))
    }
}

impl FooReconciler {
    /// Adds Foos whose rollout waits to the work queue, one for each free place in [`Rollouts`].
    fn wake(&self, cx: &Context<'_, Foo>) {
        let exists = |foo: &Key| self.foos.store().version(foo).is_some();
        for foo in self.rollouts.released(exists) {
            cx.enqueue(foo);
        }
    }

    /// Scales the Deployment of an earlier name while it serves in place of the specified one.
    async fn scale_earlier(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        deployed: &mut Option<DeploymentState>,
        error: Option<&Error>,
    ) -> Result<(), Error> {
        let (key, view) = (cx.key(), &*foo.view);
        let Some((desired, actual)) = self.unscaled(key, view, deployed.as_ref(), error) else {
            return Ok(());
        };
        trace::decided("scale earlier");
        let plan = |actual: &Snapshot<Deployment>| desired.scale(&actual.view);
        let patched = self.patch(cx, foo, &desired, &actual, plan).await?;
        if let Some(deployed) = deployed {
            deployed.changed |= patched.changed;
        }
        Ok(())
    }

    /// Deletes the Deployments of earlier names once the `new` one is complete.
    async fn delete_superseded(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        new: &mut DeploymentState,
    ) -> Result<(), Error> {
        for (old, actual) in self.superseded(cx.key(), &foo.view, new) {
            trace::decided("delete superseded");
            self.delete(cx, foo, &new.key, &old, &actual).await?;
            new.changed = true;
        }
        Ok(())
    }

    /// Applies the specified Deployment.
    async fn apply(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
    ) -> Result<DeploymentState, Error> {
        let (key, view) = (cx.key(), &*foo.view);
        let mut need = self.compare(key, view)?;
        let mut starting = None;
        if let Change::Patch(desired, actual) = &need
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
                    view: created.await?,
                    key: desired.key,
                    changed: true,
                    overruled: None,
                    is_queued: false,
                })
            }
            Change::Patch(desired, actual) => {
                trace::decided("patch");
                let plan = |actual: &Snapshot<Deployment>| desired.plan(actual);
                let patched = self.patch(cx, foo, &desired, &actual, plan).await?;
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
                    view: patched.view,
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
        desired: &Desired<'_>,
        actual: &Snapshot<Deployment>,
        plan: impl Fn(&Snapshot<Deployment>) -> Option<Value>,
    ) -> Result<Patched<Deployment>, Error> {
        if let Some(patch) = plan(actual) {
            self.deployments
                .may_patch(cx, &desired.key, actual, &patch)?;
        }
        // The Deployment's annotation contains a newer generation than the cached Foo. If a live read confirms the cached Foo,
        // a client has edited the annotation, and the patch reverts the edit. A write for a newer Foo changes the
        // resourceVersion of the Deployment, and this patch fails.
        if desired.is_behind(&actual.view) {
            self.foos.verify_current(cx, foo).await?;
        }
        let patched = self.deployments.patch(cx, &desired.key, actual, plan);
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
        let difference = desired.difference(&actual.view)?;
        let plan = |_: &_| difference.clone();
        if self
            .deployments
            .needed(&desired.key, &actual, plan)
            .is_some()
        {
            return Ok(Change::Patch(desired, actual));
        }
        Ok(Change::Nothing(DeploymentState {
            is_queued: desired.keeps_template(),
            overruled: (difference.as_ref()).map(|it| overruled(desired.key.name(), it)),
            key: desired.key,
            view: actual.view,
            changed: false,
        }))
    }

    /// Returns the Deployment that the status describes (see [`Serving`]). `deployed` takes precedence over the cache, which
    /// may be older.
    fn serving(
        &self,
        key: &Key,
        foo: &Foo,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Option<Serving> {
        let name = foo.spec.as_ref().map(|spec| &*spec.deployment_name);
        let wanted = key.sibling(name.unwrap_or_default());
        let view = match deployed {
            Some(deployed) => Some(Arc::clone(&deployed.view)),
            None => self.deployments.store().get(&wanted).map(|it| it.view),
        };
        let view = view.filter(|view| is_controlled_by(view, foo));
        if let Some(view) = view
            .as_ref()
            .filter(|view| error.is_none() && view.is_complete())
        {
            let view = Arc::clone(view);
            return Some(Serving { key: wanted, view });
        }
        let earlier = self.earlier(key, foo, &wanted).into_iter().next();
        let earlier = earlier.map(|(key, old)| Serving {
            key,
            view: old.view,
        });
        let specified = view.map(|view| Serving { key: wanted, view });
        Serving::of(foo, specified, earlier, error)
    }

    /// Returns the Deployment of an earlier name that still serves, if its number of replicas differs from the Foo's.
    ///
    /// It is scaled while the specified Deployment is not complete or not controlled by the Foo, or while writes to it are
    /// rejected, disputed or timed out.
    fn unscaled<'a>(
        &'a self,
        key: &'a Key,
        foo: &'a Foo,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Option<(Desired<'a>, Snapshot<Deployment>)> {
        use ApiError::{Contested, Denied, Rejected, TimedOut};
        let is_to_come = match error {
            None => deployed.is_some_and(|new| !new.view.is_complete()),
            Some(error) => matches!(
                error,
                Error::ResourceExists(..)
                    | Error::Api(Rejected(_) | Denied(..) | Contested(..) | TimedOut(_))
            ),
        };
        let served = foo
            .status
            .deployment_name
            .as_deref()
            .filter(|_| is_to_come)?;
        let desired = Desired::of(key, foo, &self.image).ok()?;
        let earlier = self.earlier(key, foo, &desired.key).into_iter();
        let (old, actual) = earlier.take(1).find(|(old, _)| old.name() == served)?;
        let desired = desired.of_earlier(old);
        let plan = |actual: &Snapshot<Deployment>| desired.scale(&actual.view);
        let patch = self.deployments.needed(&desired.key, &actual, plan);
        patch.map(|_| (desired, actual))
    }

    /// Returns the Foo's Deployments of earlier names. `wanted` is the specified Deployment.
    ///
    /// First comes the Deployment that the status names. Then come Deployments that the controller created but that never
    /// became available. A Deployment that another client created is not included, even if it is a copy that names the Foo as
    /// its controller.
    fn earlier(&self, key: &Key, foo: &Foo, wanted: &Key) -> Vec<(Key, Snapshot<Deployment>)> {
        let deployments = self.deployments.store();
        let served = |old: &Key| foo.status.deployment_name.as_deref() == Some(old.name());
        let others = deployments.referrers(key).into_iter();
        let others = others.filter(|old| old != wanted);
        let there = others.filter_map(|old| deployments.get(&old).map(|actual| (old, actual)));
        let mut earlier: Vec<_> = there
            .filter(|(old, actual)| {
                is_controlled_by(&actual.view, foo)
                    && (actual.view.foo_generation.is_some() || served(old))
            })
            .collect();
        earlier.sort_by_key(|(old, actual)| (!served(old), actual.view.foo_generation));
        earlier
    }

    /// Returns the Deployments of earlier names to delete. The list is empty until the new Deployment is complete.
    fn superseded(
        &self,
        key: &Key,
        foo: &Foo,
        new: &DeploymentState,
    ) -> Vec<(Key, Snapshot<Deployment>)> {
        if !new.view.is_complete() {
            return Vec::new();
        }
        let mut earlier = self.earlier(key, foo, &new.key);
        earlier.retain(|(key, old)| {
            !old.view.deleting && !self.deployments.is_deletion_pending(key, old)
        });
        earlier
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
        if !new.is_some_and(|new| is_controlled_by(&new, &foo.view) && new.is_complete()) {
            return Err(ApiError::Conflict.into());
        }
        let deleted = self.deployments.delete(cx, old, actual).await;
        deleted.map_err(failed)
    }

    /// Writes the status if it differs, and an event after a change or for a new error.
    async fn report(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Result<Action, Error> {
        let serving = self.serving(cx.key(), &foo.view, deployed, error);
        let status = status::of(&foo.view, deployed, serving.as_ref(), error, cx.now());
        let Some(status) = status else {
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
                cx.event(Event::failed(error));
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

/// Returns the error for changes that a policy or a webhook has overridden.
fn overruled(name: &str, missing: &Value) -> Error {
    ApiError::Overruled("Deployment", name.to_owned(), wanted(missing)).into()
}

fn is_controlled_by(deployment: &Deployment, foo: &Foo) -> bool {
    let owner = deployment.owner.as_ref();
    owner.is_some_and(|owner| owner.uid == foo.uid)
}

/// Merges the results of two steps of a reconcile, for example of the Deployment and of the status report.
///
/// If both failed, the error of the second step wins in three cases:
///
/// - The first error is not retried. The second step is retried, because the status must contain the first error.
/// - The second error is quiet (for example a conflict), and the first has no `Retry-After`.
/// - The second error has the longer `Retry-After`.
///
/// If the first error has a fixed delay, that error wins. The delay of the second error limits its delay (10 s if the second has
/// none). The `Retry-After` of the second error is the minimum.
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
