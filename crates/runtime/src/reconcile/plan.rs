//! The steps that bring an object to its desired state.

mod carried;
mod steps;
#[cfg(test)]
mod tests;

use std::{fmt::Display, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};

pub use self::{
    carried::{Carried, StepError},
    steps::{Apply, Delete},
};
use crate::{
    api::{
        applied::Applied,
        key::Key,
        kind::Kind,
        object::{Finalizable, Primary},
    },
    cache::store::Snapshot,
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        plan::steps::AnyWriter,
        writer::{Writer, finalizer::Finalizer},
    },
};

/// The steps of one reconcile, which a [`Reconciler`](crate::Reconciler) returns.
///
/// A step whose result exists already sends no request. The others run in their order up to the first error, except
/// [`Overruled`](ApiError::Overruled). A [finalizer](Self::finalizer) is set before all steps and cleared after them. A delete
/// counts as done when the API server has accepted it: the finalizers of that object may keep it longer. Nothing is created or
/// changed for a terminating object.
#[must_use = "only the returned plan is carried out"]
pub struct Plan<P> {
    finalizers: Vec<(Box<dyn AnyFinalizer<P>>, bool)>,
    work: Vec<Work<P>>,
    again: Option<Duration>,
}

enum Work<P> {
    Apply(Box<dyn AnyWriter<P>>, Box<Apply<P>>),
    Delete(Box<dyn AnyWriter<P>>, Delete<P>),
    Prune(Box<dyn AnyWriter<P>>),
    Outside(Box<dyn AnyFinalizer<P>>, Outside),
}

type Outside = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

impl<P> Default for Plan<P> {
    fn default() -> Self {
        Self {
            finalizers: Vec::new(),
            work: Vec::new(),
            again: None,
        }
    }
}

impl<P: Primary> Plan<P> {
    /// Returns a plan without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the object `key` with the `desired` fields, or changes the fields that differ.
    ///
    /// | in the store | request |
    /// |---|---|
    /// | missing | a create, with an owner reference to the reconciled object |
    /// | the [`Comparison`](crate::Comparison) with `desired` finds a difference | a patch with the UID and resourceVersion of the object |
    /// | no difference | none |
    /// | controlled by another object, or by none | none: [`ApiError::Foreign`] |
    ///
    /// If the object differs even after the change, the error is [`ApiError::Overruled`]. The change is not sent again until the
    /// object changes or is relisted. [`Writer`] documents the other errors.
    ///
    /// A null in `desired` means that the field must be missing.
    pub fn apply<V: Applied>(
        &mut self,
        writer: &Writer<V>,
        key: &Key,
        desired: &V::Desired,
    ) -> &mut Apply<P> {
        let apply = Box::new(Apply::new::<V>(key, desired));
        self.work.push(Work::Apply(Box::new(writer.clone()), apply));
        match self.work.last_mut() {
            Some(Work::Apply(_, apply)) => apply,
            _ => unreachable!("it was pushed"),
        }
    }

    /// Creates the object `key` if it is missing. An existing object is not changed, except for the label of its installation. For
    /// the errors, see [`apply`](Self::apply).
    pub fn create<V: Applied>(&mut self, writer: &Writer<V>, key: &Key, desired: &V::Desired) {
        self.apply(writer, key, desired).changes = false;
    }

    /// Changes the object `key` if it exists. A missing object is not created. For the errors, see [`apply`](Self::apply).
    pub fn change<V: Applied>(
        &mut self,
        writer: &Writer<V>,
        key: &Key,
        desired: &V::Desired,
    ) -> &mut Apply<P> {
        let apply = self.apply(writer, key, desired);
        apply.creates = false;
        apply
    }

    /// Deletes the object `key`, and its dependents in the background, if the reconciled object controls it.
    ///
    /// Before the request, a live read of the reconciled object must [confirm](Writer::verify_current) the plan. A newer spec may
    /// want the object. The delete has the UID and resourceVersion of the object as preconditions. For the errors, see
    /// [`Writer::delete`]. Declare the permission by [`ControllerBuilder::deletes`](crate::ControllerBuilder::deletes).
    pub fn delete<V: Applied>(&mut self, writer: &Writer<V>, key: &Key) -> &mut Delete<P> {
        let writer = Box::new(writer.clone());
        self.work.push(Work::Delete(writer, Delete::new(key)));
        match self.work.last_mut() {
            Some(Work::Delete(_, delete)) => delete,
            _ => unreachable!("it was pushed"),
        }
    }

    /// [Deletes](Self::delete) the objects of this resource type that the reconciled object controls, and that are not part of
    /// this plan. Needs the same permission.
    pub fn prune<V: Applied>(&mut self, writer: &Writer<V>) {
        self.work.push(Work::Prune(Box::new(writer.clone())));
    }

    /// Reconciles the object again after this time; see [`Action`](crate::Action). The shortest of several times applies. Also
    /// applies if a step fails with an error that is not retried otherwise. If the plan itself fails, it is lost.
    pub fn again_after(&mut self, time: Duration) {
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }

    /// Returns whether the plan creates or keeps the object.
    fn has(&self, kind: &Kind, key: &Key) -> bool {
        self.work.iter().any(|work| {
            matches!(work, Work::Apply(writer, apply) if writer.kind() == kind && apply.key == *key)
        })
    }

    /// Carries out the steps. `seen` becomes the object with its new finalizers.
    ///
    /// In a dry run, a step is recorded where it would send its first request, and the next one follows.
    pub async fn carry_out(&self, cx: &Context<'_, P>, seen: &mut Snapshot<P>) -> Carried {
        let (mut carried, is_deleting) = (Carried::default(), seen.view.is_deleting());
        // The API server rejects a new finalizer of a terminating object.
        if !is_deleting {
            self.put_finalizers(cx, seen, true, &mut carried).await;
            if !carried.errors.is_empty() {
                return carried;
            }
        }
        for work in &self.work {
            let is_fallback = matches!(work, Work::Apply(_, apply) if apply.until.is_some());
            if !carried.goes_on(is_fallback) {
                continue;
            }
            match work {
                // A terminating namespace rejects each create, which must not keep the finalizer.
                Work::Apply(..) if is_deleting => {}
                Work::Apply(_, apply) if carried.goes_on(false) && apply.is_over(cx, &carried) => {}
                Work::Apply(writer, apply) => {
                    let done = writer.apply(cx, apply, &mut carried).await;
                    carried.note(cx, "apply", writer.kind().kind, &apply.key, done);
                }
                Work::Delete(writer, delete) => {
                    let done = writer.delete(cx, delete, &mut carried).await;
                    carried.note(cx, "delete", writer.kind().kind, &delete.key, done);
                }
                Work::Prune(writer) => {
                    for key in writer.controlled_by(cx.key()) {
                        if !self.has(writer.kind(), &key) && carried.goes_on(false) {
                            let delete = Delete::new(&key);
                            let done = writer.delete(cx, &delete, &mut carried).await;
                            carried.note(cx, "delete", writer.kind().kind, &key, done);
                        }
                    }
                }
                Work::Outside(finalizer, act) => {
                    let name = finalizer.name();
                    let mut all = self.finalizers.iter();
                    let is_set = all.any(|(it, is_wanted)| *is_wanted && it.name() == name);
                    let done = if is_deleting || is_set || finalizer.is_set(seen) {
                        finalizer.outside(cx, seen, act).await
                    } else {
                        Err(ApiError::Unprotected(name))
                    };
                    carried.note(cx, "outside", P::KIND.kind, cx.key(), done);
                }
            }
        }
        self.put_finalizers(cx, seen, false, &mut carried).await;
        carried
    }

    /// Sets or clears the finalizers, unless a step has failed.
    async fn put_finalizers(
        &self,
        cx: &Context<'_, P>,
        seen: &mut Snapshot<P>,
        is_set: bool,
        carried: &mut Carried,
    ) {
        for (finalizer, is_wanted) in &self.finalizers {
            if *is_wanted == is_set && carried.goes_on(false) {
                let put = finalizer.put(cx, seen, is_set).await;
                let put = put.map(|now| {
                    carried.is_changed |= now.version != seen.version;
                    *seen = now;
                });
                carried.note(cx, "finalizer", P::KIND.kind, cx.key(), put);
            }
        }
    }

    pub(crate) fn again(&self) -> Option<Duration> {
        self.again
    }
}

impl<P: Finalizable> Plan<P> {
    /// Sets the finalizer before all steps, or clears it after them. It is not set if the object is terminating.
    ///
    /// Both are patches with the UID and resourceVersion of the object. For the errors, see [`Finalizer::set`].
    pub fn finalizer(&mut self, finalizer: &Finalizer<P>, is_wanted: bool) {
        self.finalizers
            .push((Box::new(finalizer.clone()), is_wanted));
    }

    /// Runs `act` outside the cluster, after the checks of [`Finalizer::outside`]. It runs in each reconcile, so add it only if it
    /// is needed. If the object is terminating without the finalizer, the action is skipped: it has been undone, or it
    /// never ran.
    ///
    /// The plan must also set the finalizer ([`ApiError::Unprotected`]). An error of `act` is [`ApiError::ActionFailed`].
    pub fn outside<E: Display>(
        &mut self,
        finalizer: &Finalizer<P>,
        act: impl Fn() -> Result<(), E> + Send + Sync + 'static,
    ) {
        let act = Box::new(move || act().map_err(|error| error.to_string()));
        let finalizer = Box::new(finalizer.clone());
        self.work.push(Work::Outside(finalizer, act));
    }
}

/// A finalizer of a [`Primary`], which need not be [`Finalizable`].
trait AnyFinalizer<P: Primary>: Send + Sync {
    fn name(&self) -> &'static str;
    fn is_set(&self, seen: &Snapshot<P>) -> bool;
    /// Sets or clears the finalizer. Returns the resulting object.
    fn put<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        is_wanted: bool,
    ) -> BoxFuture<'a, Result<Snapshot<P>, ApiError>>;
    fn outside<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        act: &'a Outside,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

impl<P: Finalizable> AnyFinalizer<P> for Finalizer<P> {
    fn name(&self) -> &'static str {
        self.name()
    }

    fn is_set(&self, seen: &Snapshot<P>) -> bool {
        self.is_set(seen)
    }

    fn put<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        is_wanted: bool,
    ) -> BoxFuture<'a, Result<Snapshot<P>, ApiError>> {
        if is_wanted {
            self.set(cx, seen).boxed()
        } else {
            self.clear(cx, seen).boxed()
        }
    }

    fn outside<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        act: &'a Outside,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if seen.view.is_deleting() && !self.is_set(seen) {
                return Ok(());
            }
            cx.check_dry_run(|| Step::of::<P>("outside", cx.key(), self.name().into()))?;
            self.outside(cx, act).await
        }
        .boxed()
    }
}
