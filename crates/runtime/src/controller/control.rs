//! The control of an object's reconciles by its user: a pause, or a request.

use std::{slice, time::Duration};

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{
        failure::{Failure, Retry},
        object::{Cached as _, Primary},
        panic::catch,
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
    pub(crate) async fn attempt(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<Action, R::Error> {
        if seen.is_paused() {
            trace::decided("nothing: the object is paused");
            if !cx.is_dry_run {
                self.release(cx.key(), cx.attempt);
            }
            // Not again for a new generation.
            let is_new = seen.view.condition(PAUSED).is_none();
            let event = is_new.then(|| Event::normal(PAUSED, self.words()));
            return Ok(self.report(cx, seen, event).await?);
        }
        let reported = seen.view.condition(PAUSED);
        if cx.is_dry_run || reported.is_none_or(|it| it.reason != PAUSED) {
            return self.reconcile_and_acknowledge(cx, seen).await;
        }
        // First, because this condition would confirm another pause while the reconcile still writes.
        let resumed = Snapshot {
            control: None,
            ..seen.clone()
        };
        self.report(cx, &resumed, None).await?;
        let now = self.primary.store().get(cx.key());
        let now = now.filter(|now| now.uid() == seen.uid() && !now.is_paused() && now.is_served());
        let now = now.ok_or(ApiError::Conflict)?;
        let cx = self.context(cx.key(), &now, cx.attempt);
        self.reconcile_and_acknowledge(&cx, &now).await
    }

    /// Reconciles the object, and acknowledges the request that the reconcile saw.
    async fn reconcile_and_acknowledge(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<Action, R::Error> {
        let is_new = || {
            let objects = self.primary.store();
            objects.take_request(cx.key(), seen.requested_at())
        };
        if !cx.is_dry_run && is_new() {
            self.informers.forget(cx.key(), &seen.view);
        }
        let mut done = loop {
            let done = self.reconciler.reconcile(cx, seen).await;
            if !cx.read_live().await {
                break done;
            }
        };
        // The worker reports a panic of this method.
        let retry_of = |error: &R::Error| {
            catch(&R::Primary::KIND, "Failure::retry", || error.retry())
                .unwrap_or(Retry::Backoff(Duration::ZERO))
        };
        let mut retry = done.as_ref().err().map(retry_of);
        // The plan of a terminating or waiting object may lack steps for its owned objects.
        if !retry.is_some_and(Retry::is_quiet)
            && let Err(error) = self.inherit(cx).await
            && matches!(retry, None | Some(Retry::OnChange))
            && (done.is_ok() || !cx.is_dry_run)
        {
            retry = Some(error.retry());
            done = Err(error.into());
        }
        let is_over = match &done {
            Ok(action) => *action != Action::StatusPending,
            Err(_) => !retry.is_some_and(Retry::is_quiet),
        };
        let now = self.primary.store().get(cx.key());
        let now = now.filter(|now| now.uid() == seen.uid() && !now.is_paused() && now.is_served());
        let Some(now) = now.filter(|_| is_over) else {
            return done;
        };
        let now = Snapshot {
            control: seen.control.clone(), // A later request needs another attempt.
            ..now
        };
        let reported = self.report(cx, &now, None).await;
        match (done, reported) {
            (Ok(Action::Done), Ok(action)) => Ok(action),
            (Err(_), Ok(action @ Action::After(_))) if retry == Some(Retry::OnChange) => Ok(action),
            (Ok(_), Err(later)) => Err(later.into()),
            (Err(_), Err(later))
                if retry == Some(Retry::OnChange) || asks(Some(later.retry())) > asks(retry) =>
            {
                Err(later.into())
            }
            (done, _) => done,
        }
    }

    /// Gives the objects that this one controls the label of this installation. Returns the first error.
    async fn inherit(&self, cx: &Context<'_, R::Primary>) -> Result<(), ApiError> {
        let mut all = Ok(());
        for owned in &self.owned {
            all = all.and(owned.inherit(cx).await);
        }
        all
    }

    /// Writes the [`control_status`](Self::control_status), and the event that explains it. The error has no reason: the reconciler
    /// would report it as the error of its own write.
    async fn report(
        &self,
        cx: &Context<'_, R::Primary>,
        now: &Snapshot<R::Primary>,
        event: Option<Event>,
    ) -> Result<Action, ApiError> {
        let status = self.control_status(now, cx.now());
        let status = status.filter(|it| self.primary.needs_status_update(cx.key(), now, it));
        let Some(status) = status else {
            return Ok(Action::Done);
        };
        let written = match event {
            Some(event) => self.primary.report(cx, now, &status, event).await,
            None => self.primary.update_status(cx, now, &status).await,
        };
        // An object that is older than its schema may have no valid status.
        if let Err(rejected @ ApiError::Rejected(_)) = &written {
            cx.log_once(rejected, "the status cannot be written");
            self.primary.suppress_status(cx, now, &status);
            return Ok(Action::Done);
        }
        without_reason(written)
    }

    /// Returns the status that reports the control of the object, if it may differ from the stored one: with the condition Paused
    /// while the object is paused, else without it and with the token of the last request. The status of a terminating object
    /// stays, and so does a condition Paused of another author.
    pub(crate) fn control_status(
        &self,
        seen: &Snapshot<R::Primary>,
        now: Timestamp,
    ) -> Option<<R::Primary as Primary>::Status> {
        if seen.view.is_deleting() {
            return None;
        }
        let (is_paused, generation) = (seen.is_paused(), seen.view.generation());
        let found = seen.view.condition(PAUSED);
        let is_reported = match &found {
            Some(it) if it.reason != PAUSED => is_paused,
            // `kubectl wait` ignores a condition of an earlier generation.
            Some(it) if is_paused => {
                it.status == "True" && it.observed_generation == Some(generation)
            }
            found => found.is_some(),
        };
        let token = seen.requested_at().filter(|_| !is_paused);
        if is_paused == is_reported && token.is_none() {
            return None;
        }
        let mut status = seen.view.status().into_owned();
        let (conditions, handled) = R::Primary::noted(&mut status)?;
        if is_paused != is_reported {
            conditions.retain(|it| it.type_ != PAUSED);
        }
        if is_paused {
            let verdict = (true, PAUSED, self.words());
            let old = found.as_deref().map_or(&[][..], slice::from_ref);
            conditions.push(condition(old, generation, PAUSED, verdict, now));
        }
        if let Some(token) = token {
            *handled = Some(token.to_owned());
        }
        Some(status)
    }

    /// Returns the message of the condition and of the event.
    pub(crate) fn words(&self) -> String {
        let group = self.group;
        format!(
            "the annotation {group}/paused is true: only the deletion of the object is reconciled"
        )
    }
}

/// Returns the `Retry-After` of the API server, or zero.
fn asks(retry: Option<Retry>) -> Duration {
    match retry {
        Some(Retry::Backoff(time)) => time,
        _ => Duration::ZERO,
    }
}

fn without_reason(written: Result<(), ApiError>) -> Result<Action, ApiError> {
    let Err(error) = written else {
        return Ok(Action::Done);
    };
    let text = format!("the status cannot be written: {error}");
    Err(match error {
        ApiError::Contested(.., time) => return Ok(Action::After(time)),
        ApiError::Denied(_, time) => ApiError::Transient(text, time),
        error if error.reason().is_some() => ApiError::transient(text),
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reconciler reports an error with a reason as the error of its own write. The delay stays.
    #[test]
    fn an_error_of_the_status_has_no_reason() {
        let (text, time) = (|| "x".to_owned(), Duration::from_secs(7));
        for error in [
            ApiError::Denied(text(), time),
            ApiError::TimedOut(text()),
            ApiError::Transient(text(), time),
            ApiError::Conflict,
            ApiError::NotLeading,
        ] {
            let reported = without_reason(Err(error.clone())).expect_err("an error");
            assert_eq!(reported.reason(), None, "{error:?}");
            assert_eq!(reported.retry(), error.retry(), "{error:?}");
        }
        let contested = ApiError::Contested(text(), text(), time);
        assert_eq!(without_reason(Err(contested)), Ok(Action::After(time)));
    }
}
