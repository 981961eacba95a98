//! A standby's watch of the one Lease.
//!
//! kube's `watcher` is not used: it lists before it watches, and where the list succeeds and the watch fails or ends at
//! once, it begins again without a pause, for ever and without a word.

use super::lease_guard::LeaseGuardLayer;
use crate::config::environment::Host;
use backoff::{ExponentialBackoff, backoff::Backoff as _};
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

/// The longest pause, but for its spread, before a watch that failed is opened again. Until then the Lease is read at the retry period.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How far a pause may lie from what it should be, as a ratio: replicas do not come back at the same instant.
const SPREAD: f64 = 0.2;
/// A watch that was open for this long has worked. It asks the API server to end it after 290 s.
pub(super) const LASTING: Duration = MAX_PAUSE;

/// So many events are read at once, where they have come.
const AT_ONCE: u8 = 16;

/// What the watch tells: the Lease as it is now, or why the watch does not work.
pub(super) type Report = Result<Told, Failure>;

/// The Lease as the watch tells it, of which the guard has taken note.
pub(super) struct Told {
    /// Who holds it; empty when nobody does, or it was deleted.
    pub(super) holder: String,
    /// Whether that is another than before.
    pub(super) changed: bool,
}

/// Why the watch does not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// The API server refused it, or it broke.
    Failed(Error),
    /// It ended as if it had done its work, much too soon.
    Ended,
}

/// The watch of the Lease, for ever: what it is now, and every change. What fails is opened again after a pause that begins at
/// the retry period and grows.
pub(super) struct LeaseWatch {
    reports: BoxStream<'static, Report>,
    unread: Option<Report>,
}

impl LeaseWatch {
    /// Watches the Lease `name`, for `guard` first.
    pub(super) fn new(
        host: Host,
        leases: Api<Lease>,
        name: &str,
        guard: LeaseGuardLayer,
        retry_period: Duration,
    ) -> Self {
        let pauses = backoff::ExponentialBackoffBuilder::new()
            .with_initial_interval(retry_period.min(MAX_PAUSE))
            .with_multiplier(2.0)
            .with_randomization_factor(0.0)
            .with_max_interval(MAX_PAUSE)
            .with_max_elapsed_time(None)
            .build();
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

    /// What it tells next, or the last that it told as it [went on](Self::go_on).
    pub(super) async fn next(&mut self) -> Report {
        match self.unread.take() {
            Some(report) => report,
            None => self.report().await,
        }
    }

    /// Goes on while something else is waited for: the guard is not behind it, however long that takes.
    pub(super) async fn go_on(&mut self) -> ! {
        loop {
            for _ in 0..AT_ONCE {
                self.unread = Some(self.report().await);
            }
            // Who keeps writing the Lease holds up nothing.
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
    pauses: ExponentialBackoff,
    /// Before it is opened next.
    pause: Duration,
    opened: Instant,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Lease>>>>,
}

impl Reports {
    async fn next(&mut self) -> Report {
        let mut turns = 0_u8;
        loop {
            // What is no report may come without a pause, and holds up nothing.
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(AT_ONCE) {
                yield_now().await;
            }
            let Some(events) = &mut self.events else {
                sleep(std::mem::take(&mut self.pause)).await;
                self.opened = Instant::now();
                // Without a version, the API server begins with what is true, as far as it knows.
                match self.leases.watch(&self.params, "").await {
                    Ok(events) => self.events = Some(events.boxed()),
                    Err(error) => return Err(self.failed(Failure::Failed(error))),
                }
                continue;
            };
            match events.next().await {
                // What is older than what is known says nothing of who leads, nor that the watch would tell the next change.
                Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => {
                    if let Some(changed) = self.guard.observe(&lease) {
                        let holder = lease.spec.and_then(|spec| spec.holder_identity);
                        let holder = holder.unwrap_or_default();
                        return Ok(Told { holder, changed });
                    }
                }
                Some(Ok(WatchEvent::Deleted(lease))) => {
                    if let Some(changed) = self.guard.observe_deleted(&lease) {
                        let holder = String::new();
                        return Ok(Told { holder, changed });
                    }
                }
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(status))) => {
                    return Err(self.failed(Failure::Failed(Error::Api(status))));
                }
                Some(Err(error)) => return Err(self.failed(Failure::Failed(error))),
                // As every watch ends at some time.
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
        // The crate's own draw would count for a nanosecond even where it is set not to spread.
        let pause = self.pauses.current_interval;
        self.pauses.next_backoff();
        self.pause = self.host.spread(pause, SPREAD);
        failure
    }
}
