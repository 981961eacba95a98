//! The result of the steps of a plan.

use std::any::Any;

use crate::{
    api::{
        failure::Failure as _,
        key::Key,
        object::{Cached, Primary},
    },
    cache::store::{Snapshot, Store},
    reconcile::{context::Context, error::ApiError},
};

/// Result of the steps of a plan.
#[derive(Debug, Default)]
pub struct Carried {
    /// Whether a step has changed an object.
    pub is_changed: bool,
    /// Whether a field of a change was [held back](crate::Apply::limited).
    pub is_held_back: bool,
    /// The errors, in the order of their steps.
    pub errors: Vec<StepError>,
    /// The objects as the steps found or left them.
    left: Vec<(Key, Box<dyn Any + Send + Sync>)>,
}

/// Error of a step.
#[derive(Debug)]
pub struct StepError {
    /// `apply`, `delete`, `outside` or `finalizer`.
    pub step: &'static str,
    /// Kind of the object.
    pub kind: &'static str,
    /// Key of the object.
    pub key: Key,
    /// The error.
    pub error: ApiError,
}

impl Carried {
    /// Returns the object as the last step for it found or left it, or else the stored one. During a relist, the store does not
    /// contain the results of writes.
    pub fn get<V: Cached>(&self, store: &Store<V>, key: &Key) -> Option<Snapshot<V>> {
        let left = self.left.iter().rev().filter(|(of, _)| of == key);
        let mut left = left.filter_map(|(_, it)| it.downcast_ref::<Snapshot<V>>());
        left.next().cloned().or_else(|| store.get(key))
    }

    /// Returns the error to report: the first one, but an overruled step only if there is no other.
    pub(crate) fn into_error(self) -> Option<ApiError> {
        let is_other = |it: &StepError| !matches!(it.error, ApiError::Overruled(..));
        let other = self.errors.iter().position(is_other);
        let mut errors = self.errors.into_iter();
        errors.nth(other.unwrap_or(0)).map(|it| it.error)
    }

    pub(super) fn left<V: Cached>(&mut self, key: &Key, now: &Snapshot<V>) {
        self.left.push((key.clone(), Box::new(now.clone())));
    }

    /// Whether the next step runs. An overruled step has done its part. After other errors that are reported, only a
    /// [fallback](super::Apply::until) runs.
    pub(super) fn goes_on(&self, is_fallback: bool) -> bool {
        self.errors.iter().all(|StepError { error, .. }| {
            matches!(error, ApiError::Overruled(..)) || is_fallback && error.reason().is_some()
        })
    }

    /// Records the result of a step. A step that a dry run has recorded is no error.
    pub(super) fn note<P: Primary>(
        &mut self,
        cx: &Context<'_, P>,
        step: &'static str,
        kind: &'static str,
        key: &Key,
        done: Result<(), ApiError>,
    ) {
        match done {
            Ok(()) => {}
            Err(ApiError::NotLeading) if cx.is_dry_run => {}
            Err(error) => {
                cx.note_error(|| format!("{step} {kind} {key}"), &error);
                self.errors.push(StepError {
                    step,
                    kind,
                    key: key.clone(),
                    error,
                });
            }
        }
    }
}
