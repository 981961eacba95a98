//! The steps that bring an object to its desired state.

#[cfg(test)]
mod tests;

use std::{fmt::Display, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};

use crate::{
    api::{
        applied::Applied,
        difference::{Comparison, without_nulls},
        key::Key,
        kind::Kind,
        object::{Finalizable, Primary, kind_of},
    },
    cache::store::Snapshot,
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        writer::{Writer, finalizer::Finalizer},
    },
};

/// The steps of one reconcile, which a [`Reconciler`](crate::Reconciler) returns.
///
/// A step whose result exists already sends no request. The others run in their order up to the first error. A
/// [finalizer](Self::finalizer) is set before all steps and cleared after them. A delete counts as done when the API server has
/// accepted it: the finalizers of that object may keep it longer. Nothing is created or changed for a terminating object.
#[must_use = "only the returned plan is carried out"]
pub struct Plan<P> {
    finalizers: Vec<(Box<dyn AnyFinalizer<P>>, bool)>,
    work: Vec<Work<P>>,
    again: Option<Duration>,
}

enum Work<P> {
    Apply(Box<dyn AnyWriter<P>>, Apply),
    Delete(Box<dyn AnyWriter<P>>, Key),
    Prune(Box<dyn AnyWriter<P>>),
    Outside(Box<dyn AnyFinalizer<P>>, Outside),
}

type Outside = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// An object to create or to change, with modifiers.
pub struct Apply {
    key: Key,
    /// `null` if it cannot be serialized.
    desired: Value,
    initially: Value,
    stamp: Value,
    comparison: Comparison,
    is_verified: bool,
    is_only_created: bool,
}

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
    /// | the [`Comparison`] with `desired` finds a difference | a patch with the UID and resourceVersion of the object |
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
    ) -> &mut Apply {
        self.work.push(Work::Apply(
            Box::new(writer.clone()),
            Apply {
                key: key.clone(),
                desired: V::manifest(desired).unwrap_or_default(),
                initially: Value::Null,
                stamp: Value::Null,
                comparison: Comparison::of(V::KIND),
                is_verified: false,
                is_only_created: false,
            },
        ));
        match self.work.last_mut() {
            Some(Work::Apply(_, apply)) => apply,
            _ => unreachable!("it was pushed"),
        }
    }

    /// Creates the object `key` if it is missing. An existing object is not changed. For the errors, see
    /// [`apply`](Self::apply).
    pub fn create<V: Applied>(&mut self, writer: &Writer<V>, key: &Key, desired: &V::Desired) {
        self.apply(writer, key, desired).is_only_created = true;
    }

    /// Deletes the object `key`, and its dependents in the background, if the reconciled object controls it.
    ///
    /// Before the request, a live read of the reconciled object must [confirm](Writer::verify_current) the plan. A newer spec may
    /// want the object. The delete has the UID and resourceVersion of the object as preconditions. For the errors, see
    /// [`Writer::delete`].
    pub fn delete<V: Applied>(&mut self, writer: &Writer<V>, key: &Key) {
        let writer = Box::new(writer.clone());
        self.work.push(Work::Delete(writer, key.clone()));
    }

    /// [Deletes](Self::delete) the objects of this resource type that the reconciled object controls, and that are not part of
    /// this plan.
    pub fn prune<V: Applied>(&mut self, writer: &Writer<V>) {
        self.work.push(Work::Prune(Box::new(writer.clone())));
    }

    /// Reconciles the object again after this time; see [`Action`](crate::Action). The shortest of several times applies. Also
    /// applies after an error that is not retried otherwise.
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
    pub(crate) async fn carry_out(
        &self,
        cx: &Context<'_, P>,
        seen: &mut Snapshot<P>,
    ) -> Result<(), ApiError> {
        let is_deleting = seen.view.is_deleting();
        for (finalizer, is_wanted) in &self.finalizers {
            // The API server rejects a new finalizer of a terminating object.
            if *is_wanted && !is_deleting {
                let set = finalizer.put(cx, seen, true).await.map(|now| *seen = now);
                or_recorded(cx, set)?;
            }
        }
        for work in &self.work {
            let done = match work {
                // A terminating namespace rejects each create, which must not keep the finalizer.
                Work::Apply(..) if is_deleting => Ok(()),
                Work::Apply(writer, apply) => writer.apply(cx, apply).await,
                Work::Delete(writer, key) => writer.delete(cx, key).await,
                Work::Prune(writer) => {
                    for key in writer.controlled_by(cx.key()) {
                        if !self.has(writer.kind(), &key) {
                            or_recorded(cx, writer.delete(cx, &key).await)?;
                        }
                    }
                    Ok(())
                }
                Work::Outside(finalizer, act) => {
                    let name = finalizer.name();
                    let mut all = self.finalizers.iter();
                    let is_set = all.any(|(it, is_wanted)| *is_wanted && it.name() == name);
                    if is_deleting || is_set || finalizer.is_set(seen) {
                        finalizer.outside(cx, seen, act).await
                    } else {
                        Err(ApiError::Unprotected(name))
                    }
                }
            };
            or_recorded(cx, done)?;
        }
        for (finalizer, is_wanted) in &self.finalizers {
            if !is_wanted {
                let cleared = finalizer.put(cx, seen, false).await.map(|now| *seen = now);
                or_recorded(cx, cleared)?;
            }
        }
        Ok(())
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

impl Apply {
    /// Adds fields for a create. They are not compared later, so other clients may change them.
    pub fn initially(&mut self, fields: Value) -> &mut Self {
        self.initially = fields;
        self
    }

    /// Adds fields that are sent with a create or a change. They alone are no reason for a change.
    pub fn stamp(&mut self, fields: Value) -> &mut Self {
        self.stamp = fields;
        self
    }

    /// See [`Comparison::exactly`].
    pub fn exactly(&mut self, path: &'static str) -> &mut Self {
        self.comparison = self.comparison.clone().exactly(path);
        self
    }

    /// See [`Comparison::absent`].
    pub fn absent(&mut self, path: &'static str) -> &mut Self {
        self.comparison = self.comparison.clone().absent(path);
        self
    }

    /// Changes the object only after a live read of the reconciled object has [confirmed](Writer::verify_current) the plan. Use
    /// it if the object shows that this plan may be outdated.
    pub fn verified(&mut self) -> &mut Self {
        self.is_verified = true;
        self
    }

    /// Returns the object to create, which contains the desired fields.
    fn manifest(&self) -> Value {
        let mut manifest = json!({});
        for part in [&self.initially, &self.desired, &self.stamp] {
            if !part.is_null() {
                json_patch::merge(&mut manifest, part);
            }
        }
        if let Some(rest) = self.comparison.merge_patch(&self.desired, &manifest) {
            json_patch::merge(&mut manifest, &rest);
        }
        without_nulls(&manifest)
    }

    /// Returns the change of the object without the stamp, if one is needed.
    fn patch(&self, actual: &Value) -> Option<Value> {
        if self.is_only_created {
            return None;
        }
        self.comparison.patch(&self.desired, actual)
    }

    /// Returns the change of the object with the stamp.
    fn stamped(&self, actual: &Value) -> Option<Value> {
        let mut stamped = self.desired.clone();
        if !self.stamp.is_null() {
            json_patch::merge(&mut stamped, &self.stamp);
        }
        self.comparison.patch(&stamped, actual)
    }
}

/// Lets a dry run continue after a recorded step.
fn or_recorded<P: Primary>(
    cx: &Context<'_, P>,
    done: Result<(), ApiError>,
) -> Result<(), ApiError> {
    match done {
        Err(ApiError::NotLeading) if cx.is_dry_run => Ok(()),
        done => done,
    }
}

/// A writer of any resource type.
trait AnyWriter<P: Primary>: Send + Sync {
    fn kind(&self) -> &'static Kind;
    fn controlled_by(&self, owner: &Key) -> Vec<Key>;
    fn apply<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        apply: &'a Apply,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
    fn delete<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

impl<P: Primary, V: Applied> AnyWriter<P> for Writer<V> {
    fn kind(&self) -> &'static Kind {
        kind_of::<V>()
    }

    fn controlled_by(&self, owner: &Key) -> Vec<Key> {
        self.store().controlled_by::<P>(owner)
    }

    fn apply<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        apply: &'a Apply,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let key = &apply.key;
            if apply.desired.is_null() {
                let words = format!("the desired {} {key} cannot be serialized", V::KIND.kind);
                return Err(ApiError::Rejected(words));
            }
            let plan = |actual: &V| apply.patch(&actual.actual());
            let Some((actual, patch)) = self.compare(cx, key, || apply.manifest(), plan).await?
            else {
                return Ok(());
            };
            if apply.is_verified && !cx.is_dry_run && self.is_needed(key, &actual, &patch) {
                self.may_patch(cx, key, &actual, &patch)?;
                cx.primary.verify_current(cx).await?;
            }
            let stamped = apply.stamped(&actual.actual());
            let sent = stamped.as_ref().unwrap_or(&patch);
            let patched = self.patch_as(cx, key, &actual, &patch, sent, plan);
            patched.await?.heeded(key).map(drop)
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let actual = self.store().get(key);
            let actual = actual.filter(|actual| actual.is_controlled_by(&**cx.seen));
            let Some(actual) = actual.filter(|actual| !self.is_deletion_pending(key, actual))
            else {
                return Ok(());
            };
            if !cx.is_dry_run {
                cx.primary.verify_current(cx).await?;
            }
            self.delete(cx, key, &actual).await
        }
        .boxed()
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
