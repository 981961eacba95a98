//! Writes of the reconciled object's status, and live reads of the object.

use futures::{FutureExt as _, future::BoxFuture};
use kube::core::{Status, response::StatusDetails};
use serde_json::json;

use super::{Writer, based_on, may_have_been_made, put_off};
use crate::{
    api::{
        key::Key,
        object::{Primary, asks_for},
        status::is_denied,
    },
    cache::store::{Freshness, ListEpoch, Snapshot},
    reconcile::{
        context::{Context, PrimaryWriter, Step},
        error::ApiError,
        writer::disputes::Wait,
    },
    telemetry::events::event::Event,
};

impl<P: Primary> Writer<P> {
    /// Returns whether this status must be written: it differs from the stored one, and is not known to be rejected or without
    /// effect.
    #[must_use]
    pub fn needs_status_update(&self, key: &Key, seen: &Snapshot<P>, status: &P::Status) -> bool {
        *status != *seen.view.status() && !self.history.is_futile_status(key, seen, status)
    }

    /// Writes the status if it is [news](Self::needs_status_update), and sends the `event` that explains it. If the API server
    /// rejects the status, the event is sent only if it is a warning.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn report(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
        event: Event,
    ) -> Result<(), ApiError> {
        if !self.needs_status_update(cx.key(), seen, status) {
            return Ok(());
        }
        self.may_report(cx, seen, status)?;
        if event.is_warning() {
            cx.event(event);
            return self.write_status(cx, seen, status).await;
        }
        let written = self.write_status(cx, seen, status).await;
        // With these errors, the status may have been written.
        if matches!(
            written,
            Ok(()) | Err(ApiError::Transient(..) | ApiError::TimedOut(_))
        ) {
            cx.event(event);
        }
        written
    }

    /// Checks whether the status may be written now. If not, an event informs the user, because the status cannot.
    fn may_report(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> Result<(), ApiError> {
        if cx.is_dry_run && cx.has_acted() {
            // The status would not be the one after the steps.
            return Err(ApiError::NotLeading);
        }
        let found = seen.view.status();
        cx.check_dry_run(|| Step {
            actual: json!({ "status": found }),
            ..Step::of::<P>("update", cx.key(), json!({ "status": status }))
        })?;
        let wait = (self.history).status_delay(cx.key(), cx.wanted_by(), status, &found);
        wait_and_tell(cx, wait, || "changes of status".to_owned())
    }

    /// Writes the status.
    ///
    /// This is an update, because it costs the API server an eighth less than a patch. It contains no spec, because the API
    /// server reads only the status.
    ///
    /// The update replaces the whole status, so status fields that the Rust type does not declare are lost. Its precondition is
    /// the newest version whose cached form equals `seen`.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn update_status(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> Result<(), ApiError> {
        self.may_report(cx, seen, status)?;
        self.write_status(cx, seen, status).await
    }

    async fn write_status(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> Result<(), ApiError> {
        let key = cx.key();
        // A change outside the cached form, such as an annotation, is no conflict.
        let version = self.store.newest(key, seen);
        let of = (seen.view.uid(), version);
        let mut update = json!({
            "apiVersion": P::KIND.api_version(),
            "kind": P::KIND.kind,
            "metadata": {
                "name": key.name(),
                "uid": seen.view.uid(),
                "resourceVersion": based_on(version)?,
            },
            "status": status,
        });
        if let Some(namespace) = key.namespace_if_any() {
            update["metadata"]["namespace"] = namespace.into();
        }
        let api = self.api(key);
        let expectation = self.store.begin_write(key);
        let answer = api
            .replace_subresource("status", key.name(), &self.params(), &update)
            .await;
        // A 404 can also mean that the resource type has no status subresource.
        if answer.as_ref().is_err_and(|error| is_not_found(error, key)) {
            let noted = |standing| self.store.note(key, of, standing, expectation);
            noted(Freshness::Stale);
            let there = self.get_live(cx, key).await?;
            if there.is_some_and(|there| there.uid() == seen.view.uid()) {
                noted(Freshness::Fresh);
                self.store.abort_write(key);
                self.store.note_unheeded(key);
                return Err(ApiError::Rejected(format!(
                    "its CustomResourceDefinition has no status subresource: does the CRD match this version of {}?",
                    self.shared.app.name
                )));
            }
        }
        self.notice_outdated(key, of, expectation, &answer);
        let (by, found) = (cx.wanted_by(), seen.view.status());
        if answer.as_ref().is_err_and(may_have_been_made) {
            (self.history).record_status_write(key, by, status, &found, None);
        }
        let answer = self.written(cx, key, answer);
        if matches!(answer, Err(ApiError::Rejected(_))) {
            self.store.note_unheeded(key);
        }
        let answer = answer?;
        let stored = self
            .store
            .record_response(answer, expectation, self.author(cx));
        let stored = stored.ok_or(ApiError::Conflict)?;
        let now = stored.view.status();
        (self.history).record_status_write(key, by, status, &found, Some(&now));
        // Times included, as in `needs_status_update`.
        let had_effect = *status == *now;
        (self.history).record_status(key, status, &stored, expectation, had_effect);
        if !had_effect {
            self.store.note_unheeded(key);
        }
        Ok(())
    }

    /// Marks the cached object as conflicting or doubtful, if the write failed because the object was changed or deleted.
    pub(super) fn notice_outdated<T>(
        &self,
        key: &Key,
        of: (&str, u64),
        sent: ListEpoch,
        answer: &kube::Result<T>,
    ) {
        if let Err(kube::Error::Api(status)) = answer
            && let Some(standing) = standing(status, key)
        {
            self.store.note(key, of, standing, sent);
        }
    }

    /// Suppresses a status that the API server rejects.
    ///
    /// It is written again when the object has another version, after a relist (which follows a change of the CRD), or after
    /// 1,000 s.
    pub fn suppress_status(&self, cx: &Context<'_, P>, seen: &Snapshot<P>, status: &P::Status) {
        if cx.is_dry_run {
            return;
        }
        (self.history).record_rejected_status(cx.key(), seen.version, status);
        self.store.forget_up_to_date(cx.key());
    }

    /// Returns whether a status for this version of the object is temporarily not written, because it was
    /// [rejected](Self::suppress_status) or had no effect.
    pub(crate) fn is_status_suppressed(&self, key: &Key, seen: &Snapshot<P>) -> bool {
        self.history.is_status_suppressed(key, seen)
    }

    /// Verifies with a live read that the cached object is current, apart from its metadata and status, that no user has paused
    /// it, and that this installation still reconciles it. Use it before an action that needs a current object, and that has no
    /// precondition.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if it is not current, or the error of the read.
    pub async fn verify_current(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
    ) -> Result<(), ApiError> {
        self.confirmed(cx, seen).await.map(drop)
    }

    /// Returns the object of the live read, if [`verify_current`](Self::verify_current) succeeds.
    pub(super) async fn confirmed(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
    ) -> Result<Snapshot<P>, ApiError> {
        let key = cx.key();
        let asked = self.store.now(key);
        let current = self.get_live(cx, key).await?;
        let current = current.filter(|is| {
            let is_same = is.uid() == seen.uid() && is.is_paused() == seen.is_paused();
            is_same && is.is_served() && asks_for(&**is) == asks_for(&**seen)
        });
        // If the cached object is not current, it is marked as doubtful, and the next reconcile begins with a live read.
        // Waiting for the watch is not enough: if this response is wrong, the watch delivers no change.
        let standing = match current {
            Some(_) => Freshness::Fresh,
            None => Freshness::Stale,
        };
        let of = (seen.view.uid(), seen.version);
        self.store.note(key, of, standing, asked);
        current.ok_or(ApiError::Conflict)
    }
}

impl<P: Primary> PrimaryWriter<P> for Writer<P> {
    fn verify_current<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.verify_current(cx, cx.seen).boxed()
    }

    fn is_served(&self, key: &Key) -> bool {
        self.store.is_served(key)
    }

    fn needs_status_update(&self, key: &Key, seen: &Snapshot<P>, status: &P::Status) -> bool {
        self.needs_status_update(key, seen, status)
    }

    fn report<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        seen: &'a Snapshot<P>,
        status: &'a P::Status,
        event: Event,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.report(cx, seen, status, event).boxed()
    }

    fn suppress_status(&self, cx: &Context<'_, P>, seen: &Snapshot<P>, status: &P::Status) {
        self.suppress_status(cx, seen, status);
    }
}

/// Fails if a write of the reconciled object has to wait. An event reports the first delay of a dispute.
pub(super) fn wait_and_tell<P: Primary>(
    cx: &Context<'_, P>,
    wait: Option<Wait>,
    wanted: impl FnOnce() -> String,
) -> Result<(), ApiError> {
    let Some(wait) = wait else {
        return Ok(());
    };
    let put_off = put_off(cx, cx.key(), wanted(), wait);
    if wait.is_first {
        cx.event(Event::failed(&put_off));
    }
    Err(put_off)
}

fn is_not_found(error: &kube::Error, key: &Key) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 404 && standing(status, key) == Some(Freshness::Stale))
}

/// Returns the standing of the version that a write was based on, if its error concerns that version. (A 404 without the
/// object's name concerns the resource.)
fn standing(status: &Status, key: &Key) -> Option<Freshness> {
    let is_named = |details: &StatusDetails| details.name == key.name();
    match status.code {
        _ if is_denied(&status.message) => None,
        404 if status.details.as_ref().is_some_and(is_named) => Some(Freshness::Stale),
        409 if status.message.contains("UID in precondition") => Some(Freshness::Stale),
        409 => Some(Freshness::Conflicted),
        _ => None,
    }
}
