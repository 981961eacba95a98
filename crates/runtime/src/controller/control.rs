//! The control of an object's reconciles by its user: a pause, or a request.

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{
        failure::{Failure, Retry},
        object::{Cached as _, Primary},
        reported::condition,
    },
    cache::store::Snapshot,
    controller::object_reconciler::ObjectReconciler,
    reconcile::{
        context::Context,
        error::ApiError,
        reconciler::{Action, Reconciler},
    },
    telemetry::{events::event::Event, trace},
};

/// Type of the condition, its reason, and the reason of the event.
const PAUSED: &str = "Paused";

impl<R: Reconciler> ObjectReconciler<R> {
    /// Reconciles the object unless it is paused, and reports its control in the status.
    pub async fn attempt(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<Action, R::Error> {
        if seen.is_paused() {
            trace::decided("nothing: the object is paused");
            let event = Event::normal(PAUSED, self.words());
            self.report(cx, seen, Some(event)).await?;
            return Ok(Action::Done);
        }
        let is_new =
            || seen.requested_at().is_some() && self.primary.store().take_request(cx.key());
        if !cx.is_dry_run && is_new() {
            self.informers.forget(cx.key(), &seen.view);
        }
        let done = self.reconciler.reconcile(cx, seen).await;
        let is_over = match &done {
            Ok(action) => *action != Action::StatusPending,
            Err(error) => !error.retry().is_quiet(),
        };
        let now = self.primary.store().get(cx.key());
        let now = now.filter(|now| now.uid() == seen.uid() && !now.is_paused());
        let Some(now) = now.filter(|_| is_over) else {
            return done;
        };
        let now = Snapshot {
            control: seen.control.clone(), // A later request needs another attempt.
            ..now
        };
        match self.report(cx, &now, None).await {
            Err(error) if done.as_ref().map_or_else(is_final, |_| true) => Err(error.into()),
            _ => done,
        }
    }

    /// Writes the [`control_status`](Self::control_status), and the event that explains it.
    async fn report(
        &self,
        cx: &Context<'_, R::Primary>,
        now: &Snapshot<R::Primary>,
        event: Option<Event>,
    ) -> Result<(), ApiError> {
        let status = self.control_status(now, cx.now());
        let status = status.filter(|it| self.primary.needs_status_update(cx.key(), now, it));
        let Some(status) = status else {
            return Ok(());
        };
        let written = match event {
            Some(event) => self.primary.report(cx, now, &status, event).await,
            None => self.primary.update_status(cx, now, &status).await,
        };
        // An object that is older than its schema may have no valid status.
        if let Err(rejected @ ApiError::Rejected(_)) = &written {
            cx.log_once(rejected, "the status cannot be written");
            self.primary.suppress_status(cx, now, &status);
            return Ok(());
        }
        written
    }

    /// Returns the status that reports the control of the object, if it may differ from the stored one: with the condition Paused
    /// while the object is paused, else without it and with the token of the last request. The status of a terminating object stays.
    pub fn control_status(
        &self,
        seen: &Snapshot<R::Primary>,
        now: Timestamp,
    ) -> Option<<R::Primary as Primary>::Status> {
        if seen.view.is_deleting() {
            return None;
        }
        let is_paused = seen.is_paused();
        let mut conditions = seen.view.conditions().iter();
        let is_reported = conditions.any(|it| it.type_ == PAUSED && it.status == "True");
        let token = seen.requested_at().filter(|_| !is_paused);
        if is_paused == is_reported && token.is_none() {
            return None;
        }
        let mut status = seen.view.status().clone();
        let (conditions, handled) = R::Primary::noted(&mut status)?;
        conditions.retain(|it| it.type_ != PAUSED);
        if is_paused {
            let verdict = (true, PAUSED, self.words());
            let generation = seen.view.generation();
            conditions.push(condition(&[], generation, PAUSED, verdict, now));
        }
        if let Some(token) = token {
            *handled = Some(token.to_owned());
        }
        Some(status)
    }

    /// Returns the message of the condition and of the event.
    pub fn words(&self) -> String {
        let group = self.group;
        format!("the annotation {group}/paused is true: only its deletion is reconciled")
    }
}

fn is_final<E: Failure>(error: &E) -> bool {
    error.retry() == Retry::OnChange
}
