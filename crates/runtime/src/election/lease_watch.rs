//! A standby's watch of the one Lease.
//!
//! kube's `watcher` is not used: it lists before it watches, and where the list succeeds and the watch fails or ends at
//! once, it begins again without a pause, for ever and without a word.

use crate::Host;
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
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The longest pause before a watch that failed is opened again. Until then the Lease is read at the retry period.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How far a pause may lie from what it should be, as a ratio: replicas do not come back at the same instant.
const SPREAD: f64 = 0.2;
/// A watch that was open for this long has worked. It asks the API server to end it after 290 s.
pub(super) const LASTING: Duration = MAX_PAUSE;

/// What the watch says next: the Lease, `None` where it was deleted, or why the watch does not work.
pub(super) type Observed = Result<Option<Lease>, Failure>;

/// Why the watch does not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// The API server refused it, or it broke.
    Failed(Error),
    /// It ended as if it had done its work, much too soon.
    Ended,
}

/// Watches the Lease `name`, for ever: what it is now, and every change. A watch that fails is opened again after a
/// pause that begins at `retry_period` and grows.
pub(super) fn watch(
    host: Host,
    leases: Api<Lease>,
    name: &str,
    retry_period: Duration,
) -> BoxStream<'static, Observed> {
    let pauses = backoff::ExponentialBackoffBuilder::new()
        .with_initial_interval(retry_period.min(MAX_PAUSE))
        .with_multiplier(2.0)
        .with_randomization_factor(0.0)
        .with_max_interval(MAX_PAUSE)
        .with_max_elapsed_time(None)
        .build();
    let watch = LeaseWatch {
        host,
        leases,
        params: WatchParams::default().fields(&format!("metadata.name={name}")),
        pauses,
        pause: Duration::ZERO,
        opened: Instant::now(),
        events: None,
    };
    stream::unfold(watch, |mut watch| async {
        Some((watch.next().await, watch))
    })
    .boxed()
}

struct LeaseWatch {
    host: Host,
    leases: Api<Lease>,
    params: WatchParams,
    pauses: ExponentialBackoff,
    /// Before it is opened next.
    pause: Duration,
    opened: Instant,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Lease>>>>,
}

impl LeaseWatch {
    async fn next(&mut self) -> Observed {
        loop {
            let Some(events) = &mut self.events else {
                sleep(std::mem::take(&mut self.pause)).await;
                self.opened = Instant::now();
                // Without a version, the API server begins with what is true now.
                match self.leases.watch(&self.params, "").await {
                    Ok(events) => self.events = Some(events.boxed()),
                    Err(error) => return Err(self.failed(Failure::Failed(error))),
                }
                continue;
            };
            match events.next().await {
                Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => {
                    return Ok(Some(lease));
                }
                Some(Ok(WatchEvent::Deleted(_))) => return Ok(None),
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
