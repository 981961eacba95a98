//! Reconciles one object with the stores of this replica.

use std::sync::{Arc, atomic::AtomicBool};

use parking_lot::Mutex;
use tracing::{Span, warn};

use crate::{
    api::{
        key::Key,
        object::{Cached as _, Primary as _},
        panic::catch,
    },
    cache::{
        readiness::Scopes,
        store::{Freshness, Snapshot},
    },
    config::environment::Host,
    controller::informers::Informers,
    reconcile::{
        context::{Attempt, Context, Detached},
        error::ApiError,
        reconciler::{Action, Failed, Reconciler},
        writer::{Writer, labels::Owned},
    },
    telemetry::{events::Recorder, log_limiter::LogLimiter, trace},
};

/// The reconciler and its stores. The workers share it.
pub(crate) struct ObjectReconciler<R: Reconciler> {
    /// Position of the controller in the program.
    pub controller: usize,
    pub reconciler: R,
    pub primary: Arc<Writer<R::Primary>>,
    pub informers: Informers<R::Primary>,
    /// Writers of the owned types that the program reconciles.
    pub owned: Vec<Box<dyn Owned<R::Primary>>>,
    pub recorder: Recorder,
    pub scopes: Arc<Scopes>,
    pub log: Arc<LogLimiter>,
    pub host: Host,
    /// API group of the annotations for the runtime.
    pub group: &'static str,
}

/// Describes the installation that reconciles an object.
pub(super) fn elsewhere(installation: &str) -> String {
    match installation {
        "" => "the default installation reconciles it".to_owned(),
        name => format!("the installation {name:?} reconciles it"),
    }
}

impl<R: Reconciler> ObjectReconciler<R> {
    pub(crate) async fn reconcile(
        &self,
        key: &Key,
        attempt: &dyn Attempt,
    ) -> Result<Action, R::Error> {
        let objects = self.primary.store();
        let Some(seen) = objects.get(key) else {
            trace::decided(format!("nothing: the {} is gone", R::Primary::KIND.kind));
            self.release(key, attempt);
            return Ok(Action::Done);
        };
        if let Some(other) = seen.other_installation() {
            trace::decided(format!("nothing: {}", elsewhere(other)));
            self.release(key, attempt);
            return Ok(Action::Done);
        }
        let span = Span::current();
        span.record("object.uid", seen.view.uid());
        span.record("object.generation", seen.view.generation());
        if let Some(by) = seen.view.trace().filter(|_| !seen.view.is_observed()) {
            trace::because_of(by);
        }
        if !seen.is_paused() && self.informers.awaits_content(key, &seen.view) {
            trace::decided("nothing: a referenced object has not been read yet");
            return Ok(Action::Done);
        }
        let cx = self.context(key, &seen, attempt);
        self.check(&cx, &seen).await.inspect_err(|error| {
            let kind = R::Primary::KIND.kind;
            trace::decided(match error {
                ApiError::Conflict => format!("nothing: the watch of the {kind} is behind"),
                _ => format!("nothing: the {kind} cannot be looked up"),
            });
        })?;
        self.attempt(&cx, &seen).await
    }

    /// Enqueues the objects that wait for state of this one, which is not reconciled now.
    pub(crate) fn release(&self, key: &Key, attempt: &dyn Attempt) {
        for waiting in self.reconciler.release(key) {
            attempt.enqueue(waiting);
        }
    }

    /// Verifies the object with a live read if a response contradicts the cached version. So no write is based on a deleted
    /// object or an outdated spec.
    async fn check(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<(), ApiError> {
        let (key, objects) = (cx.key(), self.primary.store());
        match objects.standing(key) {
            Freshness::Fresh => Ok(()),
            Freshness::Conflicted | Freshness::Stale => self.primary.verify_current(cx, seen).await,
        }
    }

    pub(crate) fn context<'a>(
        &'a self,
        key: &'a Key,
        seen: &'a Snapshot<R::Primary>,
        attempt: &'a dyn Attempt,
    ) -> Context<'a, R::Primary> {
        Context {
            key,
            seen,
            host: &self.host,
            recorder: &self.recorder,
            log: &self.log,
            attempt,
            inputs: self.informers.inputs(key, &seen.view),
            primary: &*self.primary,
            is_dry_run: false,
            has_changes: AtomicBool::new(false),
            steps: Mutex::default(),
            errors: Mutex::default(),
            reads: Mutex::default(),
            patched: Mutex::default(),
        }
    }

    /// Whether a reconcile would have nothing to do. A positive result is cached until the object or a related object changes,
    /// or missing permissions in its scope are restored.
    pub(crate) fn is_up_to_date(&self, key: &Key) -> bool {
        let method = "Reconciler::is_up_to_date";
        catch(&R::Primary::KIND, method, || self.has_nothing_to_do(key)).unwrap_or_else(
            |panicked| {
                // The worker that reconciles it handles the panic.
                let failed = Failed::from(panicked);
                if self.log.should_log(&failed) {
                    warn!(object = %key, controller = self.log.controller, "{failed}; reconciling it");
                }
                false
            },
        )
    }

    /// Whether an earlier [`is_up_to_date`](Self::is_up_to_date) returned `true`, and nothing has changed since.
    pub(crate) fn is_noted_up_to_date(&self, key: &Key) -> bool {
        let noted = self.primary.store().input_fingerprint(key);
        noted.is_some_and(|(view, noted)| noted == self.basis(key, &view))
    }

    /// Returns a fingerprint of the conditions of a cached result: the related objects, and the number of restored permissions.
    fn basis(&self, key: &Key, view: &R::Primary) -> u64 {
        self.informers.basis(key, view) ^ self.scopes.rights_regained(self.controller, key) << 1
    }

    fn has_nothing_to_do(&self, key: &Key) -> bool {
        let objects = self.primary.store();
        if self.is_noted_up_to_date(key) {
            return true;
        }
        let Some(seen) = objects.get(key).filter(Snapshot::is_served) else {
            return true;
        };
        if objects.standing(key) != Freshness::Fresh {
            // The caller adds the object. If a retry is pending, it keeps its delay and verifies the object. If the retry was
            // lost with an earlier term, the add replaces it.
            return false;
        }
        // The change was ignored if it came before a term, or before the scope was in sync.
        if !seen.is_paused() && seen.requested_at().is_some() && objects.is_requested(key) {
            return false;
        }
        let basis = self.basis(key, &seen.view);
        // The result is not cached while a rejected or ineffective status is suppressed: the status must be written when the
        // suppression expires.
        let is_status_suppressed = self.primary.is_status_suppressed(key, &seen);
        // Nor if it depends on a live read, which becomes too old.
        let (is_up_to_date, is_lasting) = {
            let cx = Context {
                is_dry_run: true,
                ..self.context(key, &seen, &Detached { leads: true })
            };
            let reports = self.control_status(&seen, cx.now());
            let is_whole = || !self.owned.iter().any(|it| it.has_strays(key, &seen));
            let is_reported =
                reports.is_none_or(|status| !self.primary.needs_status_update(key, &seen, &status));
            let is_up_to_date = is_reported
                && (seen.is_paused() || is_whole() && self.reconciler.is_up_to_date(&cx, &seen));
            (is_up_to_date, !cx.reads.into_inner().is_used)
        };
        if is_up_to_date && is_lasting && !is_status_suppressed {
            objects.note_up_to_date(key, seen.version, basis);
        }
        is_up_to_date
    }
}
