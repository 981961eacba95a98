//! Finalizers, and the actions outside the cluster that they protect.

use std::{fmt::Display, sync::Arc};

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Writer, based_on, status::wait_and_tell};
use crate::{
    api::{failure::brief, object::Finalizable},
    cache::store::Snapshot,
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        writer::disputes::Desired,
    },
};

/// A finalizer of this controller. An object with it stays visible while it is terminating.
///
/// Set it before any action that has to be undone. Clear it when the action is undone.
pub struct Finalizer<P> {
    name: &'static str,
    primary: Arc<Writer<P>>,
}

impl<P> Clone for Finalizer<P> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            primary: Arc::clone(&self.primary),
        }
    }
}

impl<P: Finalizable> Finalizer<P> {
    pub(crate) fn new(name: &'static str, primary: Arc<Writer<P>>) -> Self {
        Self { name, primary }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether the object has the finalizer.
    #[must_use]
    pub fn is_set(&self, seen: &Snapshot<P>) -> bool {
        self.is_in(&seen.view)
    }

    fn is_in(&self, view: &P) -> bool {
        view.finalizers().iter().any(|name| name == self.name)
    }

    /// Adds the finalizer if it is missing. Returns the resulting object, the base of later writes.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn set(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
    ) -> Result<Snapshot<P>, ApiError> {
        if self.is_set(seen) {
            return Ok(seen.clone());
        }
        let others = seen.view.finalizers().iter().map(String::as_str);
        let all: Vec<_> = others.chain([self.name]).collect();
        self.replace(cx, seen, true, &all).await
    }

    /// Runs `act`, an action outside the cluster, after a last check. A live read must show the object unchanged and with its
    /// finalizer, and this replica must still lead. (The stores of a new leader may be older than the last action of its
    /// predecessor.)
    ///
    /// The check narrows the race but cannot close it: a process that is frozen in `act` continues when it is thawed. So `act`
    /// must be short and idempotent, and the external system must reject actions that come too late.
    ///
    /// `act` blocks the whole process, including the renewal of the Lease. Work of more than some milliseconds belongs in a
    /// thread or a queue.
    ///
    /// # Errors
    /// See [`ApiError`]. An error of `act` is [`ApiError::ActionFailed`].
    pub async fn outside<T, E: Display>(
        &self,
        cx: &Context<'_, P>,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, ApiError> {
        let now = self.primary.store().get(cx.key());
        if !now.is_some_and(|now| self.is_in(&now.view)) {
            let words = format!("the finalizer {} is not set yet", self.name);
            return Err(ApiError::transient(words));
        }
        let now = self.primary.confirmed(cx, cx.seen).await?;
        // Another client may have removed the finalizer. Then nothing protects the object from deletion before the action is
        // undone.
        if !self.is_in(&now) {
            return Err(ApiError::Conflict);
        }
        // The leadership may have ended during the read.
        if !cx.attempt.leads() {
            return Err(ApiError::NotLeading);
        }
        act().map_err(|error| ApiError::ActionFailed(brief(&error.to_string())))
    }

    /// Removes the finalizer if it is set. A terminating object is deleted with its last finalizer. Returns the resulting object,
    /// the base of later writes.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn clear(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
    ) -> Result<Snapshot<P>, ApiError> {
        if !self.is_set(seen) {
            return Ok(seen.clone());
        }
        let all = seen.view.finalizers().iter().map(String::as_str);
        let others: Vec<_> = all.filter(|name| *name != self.name).collect();
        self.replace(cx, seen, false, &others).await
    }

    /// Replaces the finalizers with `all`, which contains this one if `to_set`.
    async fn replace(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        to_set: bool,
        all: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        let (key, history) = (cx.key(), &self.primary.history);
        let overruled = || {
            let done = if to_set { "set" } else { "cleared" };
            let words = format!(
                "the finalizer {} cannot be {done}: the API server accepted the request without effect",
                self.name
            );
            Err(ApiError::Rejected(words))
        };
        let change = (self.name, to_set);
        if history.is_no_op_finalizer(key, change, &seen.view) {
            return overruled();
        }
        let now = self.primary.set_finalizers(cx, seen, change, all).await?;
        let had_effect = self.is_set(&now) == to_set;
        history.record_finalizer(key, change, &now.view, had_effect);
        if had_effect { Ok(now) } else { overruled() }
    }
}

impl<P: Finalizable> Writer<P> {
    /// Replaces the finalizers with `finalizers`, which contain this `name` if `is_set`.
    async fn set_finalizers(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        (name, is_set): (&str, bool),
        finalizers: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        let key = cx.key();
        let version = self.store.newest(key, seen);
        // The finalizers of other controllers are not part of the desired state.
        let asked = json!({ "metadata": { "finalizers": { name: is_set } } });
        let lists = |all: &[&str]| json!({ "metadata": { "finalizers": all } });
        let old: Vec<_> = seen.view.finalizers().iter().map(String::as_str).collect();
        cx.check_dry_run(|| Step {
            actual: lists(&old),
            ..Step::of::<P>("patch", key, lists(finalizers))
        })?;
        let asked = Desired::Fields(&asked);
        let wait = self.history.delay(key, cx.wanted_by(), asked, version);
        wait_and_tell(cx, wait, || format!("the finalizers {finalizers:?}"))?;
        let expectation = self.store.begin_write(key);
        // Custom resources do not support strategic merge patches.
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": seen.view.uid(),
            "resourceVersion": based_on(version)?,
            "finalizers": finalizers,
        }}));
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = self.api(key).patch(key.name(), &params, &patch).await;
        self.notice_outdated(key, (seen.view.uid(), version), expectation, &answer);
        self.note_unknown(cx, key, &answer, asked, version);
        let answer = self.written(cx, key, answer)?;
        let by = cx.wanted_by();
        (self.history).record(key, by, asked, version, Some(answer.version));
        let now = self
            .store
            .record_response(answer, expectation, self.author(cx));
        now.ok_or(ApiError::Conflict)
    }
}
