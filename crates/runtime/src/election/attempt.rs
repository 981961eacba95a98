//! Requests of a candidate: attempts to acquire or renew the Lease, the fencing record, and the release.

use std::{future::pending, time::Duration};

use humantime_serde::re::humantime::format_duration;
use k8s_openapi::api::coordination::v1::Lease;
use kube_leader_election::{Error as LockError, LeaseLockResult};
use tokio::time;
use tracing::{Instrument as _, Span, debug, info, warn};

use super::{
    candidate::Candidate,
    cause,
    state_machine::{Event, Outcome},
    watch::LeaseWatch,
};
use crate::telemetry::trace;

/// Interval of the warning that the Lease cannot be acquired or renewed.
const LOGGED_EACH: Duration = Duration::from_mins(1);

/// Retries of a release after a conflict. The Lease has few readers and one regular writer, so more conflicts are unlikely.
const CONFLICTS: u32 = 2;

/// Keeps the watch current during an attempt.
async fn drain(watch: Option<&mut LeaseWatch>) -> ! {
    match watch {
        Some(watch) => watch.drain().await,
        None => pending().await,
    }
}

impl Candidate {
    /// Tries to acquire or renew the Lease, with the timeout `within`. The guard sees watch events before the response.
    /// Otherwise a replica that has not seen the Lease held would trust a restored copy of a released Lease.
    pub(super) async fn attempt(
        &mut self,
        within: Duration,
        watch: Option<&mut LeaseWatch>,
    ) -> Event {
        let sent = self.clock.now();
        self.guard
            .leads_until(self.elector.held().map(|held| held.deadline));
        // Renewals are traced from a failure until the next success.
        let span = match &self.published {
            None => self.span("acquire"),
            Some(_) if self.trouble.is_empty() => Span::none(),
            Some(_) => self.span("renew"),
        };
        let attempt = time::timeout(within, self.lock.try_acquire_or_renew());
        let reply = tokio::select! {
            biased;
            never = drain(watch) => never,
            reply = attempt.instrument(span.clone()) => reply,
        };
        let _entered = span.entered();
        if self.published.is_some() {
            let took = self.clock.now().saturating_sub(sent);
            self.counts.renew.record(took);
        }
        let outcome = match reply {
            Ok(Ok(LeaseLockResult::Acquired(lease) | LeaseLockResult::NotAcquired(lease))) => {
                self.outcome(lease)
            }
            Ok(Err(error)) if cause::is_rivalry(&error) => Outcome::Failed,
            Ok(Err(error)) if !self.guard.is_writing() => self.failed(&cause::of_lock(&error)),
            Err(_) if !self.guard.is_writing() => {
                self.failed(&format!("no answer from the API server in {within:?}"))
            }
            _ => self.failed(&format!(
                "the Lease can be read, but no answer to its write came in {within:?}; \
                 does an admission webhook for leases hang?"
            )),
        };
        let pause = self.host.jitter(self.retry_period, 0.1);
        Event::Tried {
            sent,
            outcome,
            pause,
        }
    }

    /// Asserts the fencing record after each attempt that holds the Lease.
    ///
    /// A new term waits for the record, but leaves enough time to renew. A continuing term does not wait. A failed assertion
    /// does not end the term: if the policy is installed, it rejects the next write, and the assertion is repeated. If the
    /// assertion finds another holder of the Lease, the outcome becomes `HeldBy`.
    pub(super) async fn assert_record(&mut self, tried: Event) -> Event {
        let Event::Tried {
            sent,
            outcome: Outcome::Held { uid, transitions },
            pause,
        } = &tried
        else {
            return tried;
        };
        let now = self.clock.now();
        let goes_on = self.published.as_ref().is_some_and(|held| {
            held.uid == *uid && held.transitions == *transitions && now < held.deadline
        });
        let room = if goes_on {
            self.record.assert_if_due();
            Duration::ZERO
        } else {
            self.record.acquired(uid, *transitions);
            // The next attempt may take as long as this one.
            let took = now.saturating_sub(*sent);
            self.renew_deadline.saturating_sub(took * 2) / 2
        };
        let ended = time::timeout(room.min(self.call), self.record.ended());
        let Ok(Some(holder)) = ended.await else {
            return tried;
        };
        self.deposed(&holder);
        Event::Tried {
            sent: *sent,
            outcome: Outcome::HeldBy(holder),
            pause: *pause,
        }
    }

    pub(super) fn deposed(&mut self, holder: &str) {
        self.trouble = "another replica acquired the lease".into();
        self.standing_by(holder);
    }

    /// Derives the outcome from the holder in the response. The lock's own result is not used: the lock may report a late
    /// renewal as an acquisition.
    fn outcome(&mut self, lease: Lease) -> Outcome {
        let spec = lease.spec.unwrap_or_default();
        let outcome = Outcome::of(
            self.identity.as_str(),
            spec.holder_identity.unwrap_or_default(),
            lease.metadata.uid.unwrap_or_default(),
            spec.lease_transitions.unwrap_or_default(),
        );
        let was_unheld = std::mem::replace(&mut self.unheld, outcome == Outcome::Unheld);
        self.failing = None;
        match &outcome {
            Outcome::Held { .. } => {
                self.trouble.clear();
                self.failures.clear();
                self.leader.clear();
            }
            Outcome::HeldBy(holder) => {
                self.trouble = format!("{holder} holds it");
                self.standing_by(holder);
            }
            _ if was_unheld || self.published.is_some() => {}
            _ => {
                let wait = self.guard.observed().free_at();
                let wait = wait.saturating_sub(self.clock.now());
                let lease = &self.lease;
                info!(
                    lease,
                    "lease has no holder: waiting {wait:.0?} for a previous leader to stop"
                );
            }
        }
        outcome
    }

    /// Reports a failure in the trace and in the log. The same cause is a warning once, and then once a minute.
    fn failed(&mut self, trouble: &str) -> Outcome {
        let span = match Span::current() {
            span if span.is_none() => self.span("renew"),
            span => span,
        };
        trace::failed(&span, "lease", &trouble);
        let _entered = span.entered();
        let now = self.clock.now();
        let (since, logged) = self.failing.get_or_insert((now, now));
        if self.failures.is_new(trouble) {
            *logged = now;
            warn!(
                lease = self.lease,
                "cannot acquire or renew the lease: {trouble}"
            );
        } else if now.saturating_sub(*logged) >= LOGGED_EACH {
            *logged = now;
            let lasted = Duration::from_secs(now.saturating_sub(*since).as_secs());
            let lasted = format_duration(lasted);
            warn!(
                lease = self.lease,
                "cannot acquire or renew the lease for {lasted}: {trouble}"
            );
        } else {
            debug!(
                lease = self.lease,
                "cannot acquire or renew the lease: {trouble}"
            );
        }
        trouble.clone_into(&mut self.trouble);
        Outcome::Failed
    }

    /// Releases the Lease if this replica holds it. Reads the Lease first, in at most `call`, if the last observation names another
    /// holder, or none.
    ///
    /// Then waits for the writes in flight, at most `call`, because a released Lease lets another replica lead at once. If a
    /// write may still land after that, the Lease is left to expire, which is later.
    ///
    /// A conflict means that the Lease was written after it was read. If another replica wrote it, there is nothing to release.
    /// If it was a late renewal of this replica, the retry releases it.
    pub(super) async fn release(&mut self) {
        let identity = self.identity.as_str();
        // This replica may hold the Lease by a write without a response, or from the previous process of its container.
        if !self.guard.observed().names(identity) {
            let lease = &self.lease;
            if let Err(error) = self.leases.get_opt(&self.name).await {
                let reason = cause::of_request(&error);
                trace::failed(&Span::current(), "lease", &reason);
                warn!(
                    lease,
                    "cannot read the lease to release it; if this replica holds it, it will expire: {reason}"
                );
                return;
            }
            if !self.guard.observed().names(identity) {
                debug!(lease, "nothing to release");
                return;
            }
        }
        if let Some(before) = self
            .before
            .take_if(|_| self.guard.found_held_by_another(self.identity.as_str()))
        {
            before.over();
        }
        if time::timeout(self.call, self.writes.over()).await.is_err() {
            warn!(
                lease = self.lease,
                holder = %self.identity,
                "lease not released: a write may still be in flight; the lease will expire"
            );
            return;
        }
        let release = async {
            let mut conflicts = 0;
            loop {
                match self.lock.step_down().await {
                    Err(LockError::ReleaseLease(kube::Error::Api(status)))
                        if status.code == 409 && conflicts < CONFLICTS =>
                    {
                        conflicts += 1;
                    }
                    done => return done,
                }
            }
        };
        let (lease, holder) = (&self.lease, &self.identity);
        match time::timeout(self.call, release).await {
            Ok(Ok(())) => info!(lease, %holder, "released the lease"),
            Ok(Err(LockError::ReleaseLockWhenNotLeading { leader })) => {
                debug!(lease, leader, "nothing to release");
            }
            Ok(Err(LockError::GetLease(kube::Error::Api(status)))) if status.code == 404 => {
                debug!(lease, "nothing to release: the lease was deleted");
            }
            Ok(Err(error)) => {
                let reason = cause::of_lock(&error);
                trace::failed(&Span::current(), "lease", &reason);
                warn!(lease, %holder, "could not release the lease, it will expire: {reason}");
            }
            Err(_) => {
                trace::failed(
                    &Span::current(),
                    "timeout",
                    &"no answer from the API server",
                );
                warn!(lease, %holder, "could not release the lease in {:?}, it will expire", self.call);
            }
        }
    }
}
