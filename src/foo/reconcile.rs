//! The plan for one Foo, and the report of its result. The plan applies the specified Deployment, and scales or deletes the
//! Deployments of earlier names. A Deployment of an earlier name is *superseded* when the specified Deployment is complete.

use std::{sync::Arc, time::Duration};

use operator_runtime::{
    Action, ApiError, Cached as _, Carried, Context, Event, Failure as _, Key, Plan, Primary as _,
    Reconciler, Retry, Snapshot, StepError, View, Writer, telemetry::trace,
};
use serde_json::{Value, json};

use super::{
    api::FooStatus,
    cached::{Deployment, Foo, GENERATION_ANNOTATION},
    error::Error,
    plan::Desired,
    previous::wanted,
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

/// Result of a plan.
#[derive(Default)]
struct Done {
    errors: Vec<Error>,
    /// The specified Deployment.
    deployed: Option<Snapshot<Deployment>>,
    /// See [`DeploymentState::overruled`].
    overruled: Option<Error>,
    is_changed: bool,
    is_queued: bool,
}

impl Reconciler for FooReconciler {
    type Primary = Foo;
    type Error = Error;

    fn plan(&self, cx: &View<'_, Foo>, foo: &Snapshot<Foo>) -> Result<Plan<Foo>, Error> {
        let mut plan = Plan::new();
        let view = &*foo.view;
        if view.deleting {
            return Ok(plan); // The garbage collector deletes the Deployment.
        }
        let desired = Desired::of(cx.key(), view, &self.image)?;
        let (deployments, new) = (&self.deployments, &desired.key);
        let generation = view.generation;
        // The Deployment's annotation contains a newer generation than the cached Foo. If a live read confirms the cached Foo,
        // a client has edited the annotation, and the patch reverts the edit. A write for a newer Foo changes the
        // resourceVersion of the Deployment, and this patch fails.
        let is_newer = move |actual: &Value| {
            let annotation = &actual["metadata"]["annotations"][GENERATION_ANNOTATION];
            let made_from = annotation.as_str().and_then(|it| it.parse::<i64>().ok());
            made_from.is_some_and(|made_from| made_from > generation)
        };
        let earlier = self.earlier(cx.key(), view, new);
        let actual = self.deployed(new, view);
        // A terminating Deployment is created again after its deletion.
        if !actual.as_ref().is_some_and(|actual| actual.deleting) {
            let is_behind = actual.is_some_and(|actual| desired.is_behind(&actual.view));
            let replaced = earlier.first().map(|(_, old)| &*old.view);
            let (rollouts, foo, key) = (self.rollouts.clone(), cx.key().clone(), new.clone());
            plan.apply(deployments, new, &desired.fields(is_behind))
                .initially(desired.initially(replaced))
                .stamp(desired.stamp(new.name()))
                .verified_if(is_newer)
                .limited("spec.template", "max_rollouts", move || {
                    let starting = rollouts.start(&foo, &key)?;
                    Some(Box::new(|| starting.succeed()))
                });
        }
        let mut there = earlier.iter().filter(|(_, old)| !old.deleting).peekable();
        let served_by = view.served_by();
        let served = served_by.as_deref();
        if let (Some((old, _)), Some(replicas)) = (there.peek(), desired.replicas)
            && served == Some(old.name())
        {
            plan.change(
                deployments,
                old,
                &json!({ "spec": { "replicas": replicas } }),
            )
            .stamp(desired.stamp(old.name()))
            .verified_if(is_newer)
            .until(deployments, new, Deployment::is_complete);
        }
        for (old, _) in there {
            // The watch may be behind, so a live read must show that the new Deployment is complete.
            plan.delete(deployments, old)
                .once(deployments, new, Deployment::is_complete);
        }
        Ok(plan)
    }

    /// Reconciles the Foo's Deployments, and then its status. Sends no request if nothing differs.
    ///
    /// After a successful write, the status is postponed while other Foos that may need a Deployment wait in the queue.
    async fn reconcile(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> Result<Action, Error> {
        self.wake(cx);
        if foo.view.deleting {
            trace::decided("nothing: the Foo is gone");
            return Ok(Action::Done);
        }
        let done = self.deploy(cx, foo).await;
        let reported = self.report(cx, foo, &done).await;
        self.wake(cx);
        let failed = done.errors.into_iter().map(Err);
        merge_results(failed.fold(Ok(()), merge_results), reported)
    }

    fn release(&self, _: &Key) -> Vec<Key> {
        self.rollouts.released()
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
        if cx.is_dry_run() {
            return;
        }
        for foo in self.rollouts.released() {
            cx.enqueue(foo);
        }
    }

    /// Carries out the plan.
    async fn deploy(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>) -> Done {
        match self.plan(&cx.view(), foo) {
            Ok(plan) => self.done(cx, foo, plan.carry_out(cx, &mut foo.clone()).await),
            Err(error) => Done {
                errors: vec![error],
                ..Done::default()
            },
        }
    }

    /// Returns the result with the errors of a Foo.
    fn done(&self, cx: &Context<'_, Foo>, foo: &Snapshot<Foo>, carried: Carried) -> Done {
        let wanted = wanted(cx.key(), &foo.view);
        let mut done = Done {
            deployed: carried.get(self.deployments.store(), &wanted),
            is_changed: carried.is_changed,
            is_queued: carried.is_held_back,
            ..Done::default()
        };
        for failed in carried.errors {
            let StepError {
                step,
                kind,
                key,
                error,
            } = failed;
            match error {
                error if kind != Deployment::KIND.kind => done.errors.push(error.into()),
                ApiError::Overruled(..) if key == wanted => done.overruled = Some(error.into()),
                ApiError::Overruled(..) => {}
                error if step == "delete" => done.errors.push(Error::of_deletion(error)),
                ApiError::Foreign(..) => {
                    let found = self.deployments.store().get(&key);
                    let desired = Desired::of(cx.key(), &foo.view, &self.image).ok();
                    let foreign = desired.zip(found).map(|(desired, it)| desired.foreign(&it));
                    done.errors.push(foreign.unwrap_or_else(|| error.into()));
                }
                error => done.errors.push(error.into()),
            }
        }
        done
    }

    /// Returns the status after a plan with this result.
    fn status(&self, cx: &Context<'_, Foo>, foo: &Foo, done: &Done) -> Option<FooStatus> {
        let (key, error) = (wanted(cx.key(), foo), done.errors.first());
        let serving = self.serving(cx.key(), foo, done.deployed.as_ref(), error);
        let deployed = done.deployed.clone().map(|actual| DeploymentState {
            key,
            actual,
            overruled: done.overruled.as_ref(),
            is_queued: done.is_queued,
        });
        status::of(foo, deployed.as_ref(), serving.as_ref(), error, cx.now())
    }

    /// Writes the status if it differs, and an event after a change or for a new error.
    async fn report(
        &self,
        cx: &Context<'_, Foo>,
        foo: &Snapshot<Foo>,
        done: &Done,
    ) -> Result<Action, Error> {
        let (error, changed) = (done.errors.first(), done.is_changed);
        if let Some(missing) = done.overruled.as_ref().filter(|_| cx.has_acted()) {
            cx.log_once(
                missing,
                "leaving it until the Foo or the Deployment changes",
            );
            cx.event(Event::failed(missing));
        }
        let Some(status) = self.status(cx, &foo.view, done) else {
            return Ok(Action::Done);
        };
        let news = self.foos.needs_status_update(cx.key(), foo, &status);
        // An error has its own retries.
        let again = match status::stalls_in(&status.conditions, cx.now()) {
            Some(time) if error.is_none() && !time.is_zero() => Action::After(time),
            _ => Action::Done,
        };
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
            return Ok(again);
        }
        if error.is_none() && changed && cx.has_urgent_work() {
            trace::decided("status later");
            return Ok(Action::StatusPending);
        }
        if let Some(warning) = status::warning(&foo.view.status(), &status) {
            cx.event(warning);
        }
        trace::decided("status");
        self.update_status(cx, foo, &status, error.is_some())
            .await?;
        Ok(again)
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
