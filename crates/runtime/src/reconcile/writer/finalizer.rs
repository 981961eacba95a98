//! Finalizers, and what is done outside the cluster under one.

use std::{fmt::Display, sync::Arc};

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Writer, based_on, status::wait_and_tell};
use crate::{
    api::{
        failure::brief,
        object::{Finalizable, Primary},
    },
    cache::store::Snapshot,
    reconcile::{error::ApiError, reconciler::Context, writer::corrections::Asked},
};

/// A finalizer of this controller's: while an object has it, the object stays, and can be seen to be on its way out.
///
/// It is to be set before anything is done that has to be undone, and cleared when it is.
pub struct Finalizer<P> {
    name: &'static str,
    primary: Arc<Writer<P>>,
}

impl<P: Finalizable> Finalizer<P> {
    pub(crate) fn new(name: &'static str, primary: Arc<Writer<P>>) -> Self {
        Self { name, primary }
    }

    /// Whether an object has it.
    #[must_use]
    pub fn is_set(&self, seen: &Snapshot<P>) -> bool {
        self.is_in(&seen.view)
    }

    fn is_in(&self, view: &P) -> bool {
        view.finalizers().iter().any(|name| name == self.name)
    }

    /// Sets it where it is not set, and returns the object with it: what follows is based on that.
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

    /// Does something outside the cluster, where no precondition and no fence is, or undoes it: if the object is still as it was
    /// seen, by the word of the API server, and this replica still leads. (What the stores of a new leader have may be
    /// older than what the one before has undone.)
    ///
    /// `act` holds up everything else in this process, the renewal of the Lease too: what takes longer than some milliseconds is to
    /// be handed over in it, to a thread or a queue of the kind's own. A process that is frozen within `act` goes on with it when it is thawed. It is to be short, it must not harm when it is
    /// done twice, and what must never be done late, the other side has to refuse.
    ///
    /// # Errors
    /// See [`ApiError`]; what goes wrong in `act` is one of those that pass.
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
        // Somebody may have taken it away since, and then nothing holds the object until what is done is undone.
        if !self.is_in(&now) {
            return Err(ApiError::Conflict);
        }
        // The answer may have been long in coming.
        if !cx.attempt.leads() {
            return Err(ApiError::NotLeading);
        }
        act().map_err(|error| ApiError::transient(brief(&error.to_string())))
    }

    /// Clears it where it is set. An object that is being deleted is gone with its last one.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn clear(&self, cx: &Context<'_, P>, seen: &Snapshot<P>) -> Result<(), ApiError> {
        if !self.is_set(seen) {
            return Ok(());
        }
        let all = seen.view.finalizers().iter().map(String::as_str);
        let others: Vec<_> = all.filter(|name| *name != self.name).collect();
        self.replace(cx, seen, false, &others).await.map(drop)
    }

    /// Replaces the finalizers by `all`, so that this one is there, or is not.
    async fn replace(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        to_set: bool,
        all: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        let (key, ineffective) = (cx.key(), &self.primary.finalizers);
        let overruled = || {
            let done = if to_set { "set" } else { "cleared" };
            let words = format!(
                "the finalizer {} cannot be {done}: the API server takes the request and leaves it as it was",
                self.name
            );
            Err(ApiError::Rejected(words))
        };
        let asked = (self.name, to_set);
        let left = |view: &P| {
            (
                view.uid().to_owned(),
                view.generation(),
                view.finalizers().to_vec(),
            )
        };
        // Schemas do not apply to finalizers, so a new list changes nothing.
        if ineffective.contains(key, asked, left(&seen.view), 0) {
            return overruled();
        }
        let now = self.primary.set_finalizers(cx, seen, asked, all).await?;
        if self.is_set(&now) == to_set {
            ineffective.forget(key, asked);
            return Ok(now);
        }
        ineffective.record(key, asked, left(&now.view), 0, self.primary.exists());
        overruled()
    }
}

impl<P: Primary> Writer<P> {
    /// Replaces the finalizers, so that the one of this `name` is there or is not.
    async fn set_finalizers(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        (name, is_set): (&str, bool),
        finalizers: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        cx.may_act()?;
        let key = cx.key();
        let version = self.store.newest(key, seen);
        // Those of others are their own affair.
        let asked = json!({ "metadata": { "finalizers": { name: is_set } } });
        let asked = Asked::Fields(&asked);
        let wait = self.corrections.wait(key, cx.wanted_by(), asked, version);
        wait_and_tell(cx, wait, || format!("the finalizers {finalizers:?}"))?;
        let expectation = self.store.expect_write(key);
        // A custom resource takes no strategic merge patch.
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
        self.corrections.record(
            key,
            cx.wanted_by(),
            asked,
            version,
            answer.version,
            self.exists(),
        );
        Ok(Snapshot {
            version: answer.version,
            view: (self.store.record_response(answer, expectation)).ok_or(ApiError::Conflict)?,
        })
    }
}
