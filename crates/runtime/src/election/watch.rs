//! A standby's watch of the Lease.
//!
//! kube's `watcher` is not used, because it lists before it watches. If the list succeeds, and the watch fails or ends
//! immediately, it restarts without a pause or an error, forever.

use super::lease_guard::LeaseGuardLayer;
use crate::config::{backoff::Backoff, environment::Host};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Error,
    api::{WatchEvent, WatchParams},
};
use std::{future::pending, time::Duration};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

/// Longest pause, before jitter, until a failed watch is reopened. During the pause, the Lease is read once per retry period.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Jitter of a pause, as a ratio. It keeps replicas from reconnecting at the same instant.
const SPREAD: f64 = 0.2;
/// Age from which the end of a watch is normal. Each watch requests a timeout of 290 s.
pub(super) const LASTING: Duration = MAX_PAUSE;

/// Events to read before yielding to other tasks.
const AT_ONCE: u8 = 16;

/// A delivered Lease, or the reason why the watch does not work.
pub(super) type Report = Result<LeaseUpdate, Failure>;

/// A Lease delivered by the watch and recorded by the guard.
pub(super) struct LeaseUpdate {
    /// The holder; empty if there is none, or if the Lease was deleted.
    pub(super) holder: String,
    /// Whether the Lease differs from the previous observation.
    pub(super) changed: bool,
}

/// Reason why the watch does not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// The API server rejected the watch, or the watch broke.
    Failed(Error),
    /// The watch ended without an error, but too early.
    Ended,
}

/// Endless watch of the Lease: its current state, and every change. A failed watch is reopened with a backoff that starts at
/// the retry period.
pub(super) struct LeaseWatch {
    reports: BoxStream<'static, Report>,
    unread: Option<Report>,
}

impl LeaseWatch {
    /// Watches the Lease `name`. `guard` records each event first.
    pub(super) fn new(
        host: Host,
        leases: Api<Lease>,
        name: &str,
        guard: LeaseGuardLayer,
        retry_period: Duration,
    ) -> Self {
        let pauses = Backoff::new(retry_period.min(MAX_PAUSE), MAX_PAUSE);
        let reports = Reports {
            host,
            leases,
            guard,
            params: WatchParams::default().fields(&format!("metadata.name={name}")),
            pauses,
            pause: Duration::ZERO,
            opened: Instant::now(),
            events: None,
        };
        let reports = stream::unfold(reports, |mut reports| async {
            Some((reports.next().await, reports))
        });
        Self {
            reports: reports.boxed(),
            unread: None,
        }
    }

    /// Returns the next report, or the last one received by [`drain`](Self::drain).
    pub(super) async fn next(&mut self) -> Report {
        match self.unread.take() {
            Some(report) => report,
            None => self.report().await,
        }
    }

    /// Receives reports while the caller waits for something else, so that the guard is never behind. Keeps the last report.
    pub(super) async fn drain(&mut self) -> ! {
        loop {
            for _ in 0..AT_ONCE {
                self.unread = Some(self.report().await);
            }
            // Frequent writes of the Lease must not starve other tasks.
            yield_now().await;
        }
    }

    async fn report(&mut self) -> Report {
        match self.reports.next().await {
            Some(report) => report,
            None => pending().await,
        }
    }
}

struct Reports {
    host: Host,
    leases: Api<Lease>,
    guard: LeaseGuardLayer,
    params: WatchParams,
    pauses: Backoff,
    /// Delay before the watch is opened.
    pause: Duration,
    opened: Instant,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Lease>>>>,
}

impl Reports {
    async fn next(&mut self) -> Report {
        let mut turns = 0_u8;
        loop {
            // Events without a report may arrive without a pause. They must not starve other tasks.
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(AT_ONCE) {
                yield_now().await;
            }
            let Some(events) = &mut self.events else {
                sleep(std::mem::take(&mut self.pause)).await;
                self.opened = Instant::now();
                // Without a resourceVersion, the API server starts with the current state that it knows.
                match self.leases.watch(&self.params, "").await {
                    Ok(events) => self.events = Some(events.boxed()),
                    Err(error) => return Err(self.failed(Failure::Failed(error))),
                }
                continue;
            };
            match events.next().await {
                // An outdated event does not show the holder, and is no proof that the watch will deliver the next change.
                Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => {
                    if let Some(changed) = self.guard.observe(&lease) {
                        let holder = lease.spec.and_then(|spec| spec.holder_identity);
                        let holder = holder.unwrap_or_default();
                        return Ok(LeaseUpdate { holder, changed });
                    }
                }
                Some(Ok(WatchEvent::Deleted(lease))) => {
                    if let Some(changed) = self.guard.observe_deleted(&lease) {
                        let holder = String::new();
                        return Ok(LeaseUpdate { holder, changed });
                    }
                }
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(status))) => {
                    return Err(self.failed(Failure::Failed(Error::Api(status))));
                }
                Some(Err(error)) => return Err(self.failed(Failure::Failed(error))),
                // Every watch ends eventually.
                None if self.opened.elapsed() >= LASTING => self.events = None,
                None => return Err(self.failed(Failure::Ended)),
            }
        }
    }

    fn failed(&mut self, failure: Failure) -> Failure {
        self.events = None;
        if self.opened.elapsed() >= LASTING {
            self.pauses.reset();
        }
        self.pause = self.host.jitter(self.pauses.advance(), SPREAD);
        failure
    }
}
