//! A dry run of one object's reconcile: the requests that it would send.

use futures::FutureExt as _;
use parking_lot::Mutex;

use crate::{
    api::{
        failure::{Failure, brief},
        key::Key,
        object::{Cached as _, Primary as _},
        panic::catch,
    },
    cache::store::Snapshot,
    controller::object_reconciler::ObjectReconciler,
    reconcile::{
        context::{Context, Detached, DoneReads, Reads, Step},
        error::ApiError,
        reconciler::{Failed, Reconciler},
    },
};

/// Result of a dry run.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    pub is_paused: bool,
    pub is_terminating: bool,
    /// The requests, in their order. Each is a first one: its response may cause more.
    pub steps: Vec<Step>,
    pub problems: Vec<Problem>,
}

/// Error of a plan or of a step.
#[derive(Debug, PartialEq)]
pub(crate) struct Problem {
    pub text: String,
    /// Whether only a change of the object or of another watched object can end it: no request is missing from the steps.
    pub is_settled: bool,
}

impl Problem {
    pub(crate) fn lasting(text: &impl ToString) -> Self {
        Self {
            text: brief(&text.to_string()),
            is_settled: false,
        }
    }
}

impl<R: Reconciler> ObjectReconciler<R> {
    /// Returns the requests that a reconcile would send, and the live reads that the plan lacks besides the `done` ones. `None` if
    /// the object does not exist, or if another installation reconciles it.
    pub(crate) fn dry_run(&self, key: &Key, done: DoneReads) -> Option<(DryRun, Reads)> {
        let seen = self.primary.store().get(key).filter(Snapshot::is_served)?;
        let mut found = DryRun {
            is_paused: seen.is_paused(),
            is_terminating: seen.view.is_deleting(),
            ..DryRun::default()
        };
        if !found.is_paused && self.informers.awaits_content(key, &seen.view) {
            let text = "a referenced object has not been read yet";
            found.problems.push(Problem::lasting(&text));
            return Some((found, Reads::default()));
        }
        let cx = Context {
            is_dry_run: true,
            reads: Mutex::new(Reads {
                done,
                ..Reads::default()
            }),
            ..self.context(key, &seen, &Detached { leads: true })
        };
        let method = "Reconciler::reconcile";
        let run = || {
            let done = self.attempt(&cx, &seen).now_or_never();
            done.map(|done| done.map(drop).map_err(|error| Self::copy(&error)))
        };
        let problems = match catch(&R::Primary::KIND, method, run) {
            Err(panicked) => vec![Problem::lasting(&panicked)],
            Ok(None) => vec![Problem::lasting(
                &"the reconcile waits for a response that is no step, so further steps are unknown",
            )],
            Ok(Some(done)) => self.problems(&cx, &seen, done.err()),
        };
        found.problems = problems;
        found.steps = std::mem::take(&mut *cx.steps.lock());
        Some((found, cx.reads.into_inner()))
    }

    /// Returns the errors of a dry run that ended with the error `last`.
    fn problems(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
        last: Option<(&'static str, Problem)>,
    ) -> Vec<Problem> {
        let steps = std::mem::take(&mut *cx.errors.lock());
        let is_missing = |steps: &[(String, ApiError)]| {
            let mut errors = steps.iter().map(|(_, error)| error);
            errors.any(|error| matches!(error, ApiError::NotInstalled(_)))
        };
        // The first status of an error ends the dry run, too, and hides the error.
        let is_hidden = last
            .as_ref()
            .is_some_and(|(name, _)| *name == ApiError::NotLeading.name());
        match last.filter(|_| !is_hidden) {
            // No request is missing of an optional type that is not installed.
            Some((_, last)) if steps.len() < 2 && !is_missing(&steps) => vec![last],
            _ if steps.is_empty() && is_hidden && !seen.is_paused() => {
                let plan = || {
                    let plan = self.reconciler.plan(&cx.view(), seen);
                    plan.err().map(|error| Self::copy(&error).1)
                };
                let plan = catch(&R::Primary::KIND, "Reconciler::plan", plan);
                let plan = plan.unwrap_or_else(|panicked| Some(Problem::lasting(&panicked)));
                plan.into_iter().collect()
            }
            _ => {
                let problem = |(step, error): (String, ApiError)| Problem {
                    is_settled: error.is_settled()
                        || matches!(error, ApiError::Foreign(..) | ApiError::NotInstalled(_)),
                    ..Problem::lasting(&format!("{step}: {error}"))
                };
                steps.into_iter().map(problem).collect()
            }
        }
    }

    /// Returns the name and a copy of an error. Its methods may panic.
    fn copy(error: &R::Error) -> (&'static str, Problem) {
        let kind = &R::Primary::KIND;
        let failed = Failed::of(kind, error);
        let is_settled = || error.is_settled();
        let is_settled = catch(kind, "Failure::is_settled", is_settled).unwrap_or(false);
        let problem = Problem {
            is_settled: is_settled && !failed.panicked,
            ..Problem::lasting(&failed)
        };
        (failed.name(), problem)
    }
}

#[cfg(test)]
mod tests;
