//! Writes events concurrently, and retries failed writes in parallel to them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug, warn};

use super::{
    backlog::{Backlog, PATIENCE, Unwritten},
    dropped::DroppedEvents,
    event::{EventSource, LONGEST_NAME, Queued, WAITING},
};
use crate::{
    api::{
        failure::root_cause,
        status::{is_denied, is_terminating, retry_after},
    },
    config::backoff::Backoff,
    telemetry::trace,
};

/// Maximum number of concurrent writes. Concurrency hides the latency of the API server.
pub(super) const AT_ONCE: usize = 8;

/// Delay of an event while objects wait for a worker: the event would take a share of the API server's capacity. Events are
/// then also written one at a time. From half of [`WAITING`] on, events are written without delay.
pub(super) const YIELD_DELAY: Duration = Duration::from_millis(100);

/// Number of events that are remembered to continue their series. Beyond it, the event with the oldest write is forgotten and
/// starts a new series. The documentation of [`Event`](super::event::Event) contains the number.
pub(super) const REMEMBERED: usize = 1500;

/// Maximum pause between two events of a series.
const SERIES: Duration = Duration::from_mins(6);

/// Delay after a failed write. For retries it doubles up to [`MAX_GAP`] until a write succeeds.
const GAP: Duration = Duration::from_millis(100);
const MAX_GAP: Duration = Duration::from_secs(1);
/// Time limits of the first attempt, which delays other events, and of each retry. The latter exceeds the API server's default
/// webhook timeout of 10 s, so that a webhook with `failurePolicy: Ignore` lets the event pass.
pub(super) const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const RETRY_TIMEOUT: Duration = FIRST_TIMEOUT.saturating_mul(PATIENCE);

pub(super) struct Writer {
    client: Client,
    about: EventSource,
    hasher: RandomState,
    memory: Mutex<Memory>,
    backlog: Backlog,
    /// Events that are in neither the queue nor the backlog: about to be attempted, or being attempted.
    trying: AtomicUsize,
    drops: Arc<DroppedEvents>,
}

/// Identity of a series: hash of the object's UID, the event's reason and its note.
type Series = u64;

/// The remembered events, and their order by last write.
#[derive(Default)]
struct Memory {
    written: HashMap<Series, Written>,
    by_age: BTreeSet<(Instant, Series)>,
}

/// A written event: its name, its count, and the time of the last write.
#[derive(Clone)]
struct Written {
    name: Box<str>,
    count: i32,
    last: Instant,
}

impl Writer {
    pub(super) fn new(client: Client, about: EventSource, drops: Arc<DroppedEvents>) -> Self {
        Self {
            client,
            about,
            hasher: RandomState::new(),
            memory: Mutex::default(),
            backlog: Backlog::new(Arc::clone(&drops)),
            trying: AtomicUsize::new(0),
            drops,
        }
    }

    /// Runs until all recorders are dropped and every event is written or dropped. `busy` returns whether objects wait for a
    /// worker.
    pub(super) async fn run(self, events: mpsc::Receiver<Queued>, busy: impl Fn() -> bool) {
        let mut waiting = Waiting(events, &self);
        let first = async {
            let events = &mut waiting.0;
            // An event whose object has a write in flight. It waits for the end of that write.
            let mut behind: Option<Queued> = None;
            let (mut objects, mut underway) = (HashSet::new(), FuturesUnordered::new());
            loop {
                if let Some(queued) = behind.take_if(|queued| !objects.contains(&queued.uid)) {
                    objects.insert(queued.uid.clone());
                    underway.push(self.try_first(queued));
                }
                let limit = if busy() {
                    let over = events.len().saturating_sub(WAITING / 2);
                    over.clamp(1, AT_ONCE)
                } else {
                    AT_ONCE
                };
                tokio::select! {
                    biased;
                    Some(uid) = underway.next() => {
                        objects.remove(&uid);
                    }
                    queued = events.recv(), if behind.is_none() && underway.len() < limit => {
                        let Some(queued) = queued else {
                            break;
                        };
                        self.trying.fetch_add(1, Relaxed);
                        // This branch may sleep because no write is in flight whose completion it would miss.
                        if underway.is_empty() && events.len() < WAITING / 2 && busy() {
                            sleep(YIELD_DELAY).await;
                        }
                        behind = Some(queued);
                    }
                }
            }
            underway.collect::<Vec<_>>().await;
            self.backlog.close();
        };
        tokio::join!(first, self.retry());
    }

    /// Makes the first attempt and returns the UID of the event's object.
    async fn try_first(&self, queued: Queued) -> Box<str> {
        let uid = queued.uid.clone();
        if let Some(queued) = self.backlog.push_if_blocked(queued) {
            let since = Instant::now();
            if let Err(failure) = self.write(&queued, FIRST_TIMEOUT).await {
                self.backlog.put(queued, since, &failure);
                sleep(GAP).await;
            }
        }
        self.trying.fetch_sub(1, Relaxed);
        uid
    }

    /// Retries the backlog until it is closed and empty.
    async fn retry(&self) {
        let mut gap = Backoff::new(GAP, MAX_GAP);
        while !self.backlog.is_over() {
            let Some((namespace, due)) = self.backlog.next() else {
                self.backlog.changed().await;
                continue;
            };
            tokio::select! {
                biased;
                // The new event may be due earlier.
                () = self.backlog.changed() => continue,
                () = sleep_until(due) => {}
            }
            let Some(queued) = self.backlog.take_first(&namespace) else {
                continue;
            };
            let begun = Instant::now();
            self.trying.fetch_add(1, Relaxed);
            let result = self.write(&queued, RETRY_TIMEOUT).await;
            self.trying.fetch_sub(1, Relaxed);
            if result.is_ok() {
                gap.reset();
            } else {
                sleep(gap.advance()).await;
            }
            let took = begun.elapsed();
            self.backlog.tried(&namespace, queued, result, took);
        }
    }

    /// Makes one attempt within `limit`. After a [final](is_final) rejection the event is dropped, and the result is `Ok`.
    async fn write(&self, queued: &Queued, limit: Duration) -> Result<(), Unwritten> {
        let span = trace::within(queued.trace.as_ref(), "event");
        let published = timeout(limit, self.publish(queued)).instrument(span).await;
        let failure = match published {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if is_final(&status) => {
                self.drops.refused(&queued.key, &status.message);
                return Ok(());
            }
            Ok(Err(error)) => Unwritten {
                error: root_cause(&error),
                wait: retry_after(&error).unwrap_or_default(),
            },
            Err(_) => Unwritten {
                error: format!("no answer within {limit:?}"),
                wait: Duration::ZERO,
            },
        };
        debug!(
            object = %queued.key,
            "event not written, retrying: {}", failure.error
        );
        Err(failure)
    }

    /// Creates an event, or updates its series if it was written recently.
    pub(super) async fn publish(&self, queued: &Queued) -> kube::Result<()> {
        let events = Api::namespaced(self.client.clone(), queued.namespace());
        let event = &queued.event;
        let series = (self.hasher).hash_one((&queued.uid, event.reason, &event.note));
        let before = self.memory.lock().written.get(&series).cloned();
        if let Some(before) = before.filter(|before| before.last.elapsed() < SERIES) {
            let again = json!({
                "metadata": { "annotations": queued.annotations(self.about.app) },
                "series": { "count": before.count + 1, "lastObservedTime": MicroTime(queued.time) },
            });
            let params = PatchParams::default();
            match events
                .patch(&before.name, &params, &Patch::Merge(&again))
                .await
            {
                // A client deleted the event, or its TTL expired.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => {
                    answer?;
                    self.remember(series, before.name, before.count + 1);
                    return Ok(());
                }
            }
        }
        let name = name_of(queued);
        let may_exist = queued.is_sent.swap(true, Relaxed);
        match events
            .create(&PostParams::default(), &self.event(queued, &name))
            .await
        {
            // An earlier attempt created the event, but its response was lost.
            Err(kube::Error::Api(status))
                if may_exist && is_taken(&status) && !is_denied(&status.message) => {}
            answer => _ = answer?,
        }
        self.remember(series, name.into(), 1);
        Ok(())
    }

    fn remember(&self, series: Series, name: Box<str>, count: i32) {
        let last = Instant::now();
        let Memory { written, by_age } = &mut *self.memory.lock();
        if let Some(before) = written.insert(series, Written { name, count, last }) {
            by_age.remove(&(before.last, series));
        } else if written.len() > REMEMBERED
            && let Some((_, oldest)) = by_age.pop_first()
        {
            written.remove(&oldest);
        }
        by_age.insert((last, series));
    }

    fn event(&self, queued: &Queued, name: &str) -> v1::Event {
        v1::Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: queued.annotations(self.about.app),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(queued.time)),
            regarding: Some(ObjectReference {
                api_version: Some(queued.kind.api_version()),
                kind: Some(queued.kind.kind.to_owned()),
                namespace: queued.key.namespace_if_any().map(str::to_owned),
                name: Some(queued.key.name().to_owned()),
                uid: Some(queued.uid.to_string()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(self.about.reporter.to_owned()),
            reporting_instance: Some(self.about.instance.clone()),
            action: Some(queued.event.action.to_owned()),
            reason: Some(queued.event.reason.to_owned()),
            type_: Some(queued.event.type_.to_owned()),
            note: Some(queued.event.note.to_string()),
            ..v1::Event::default()
        }
    }
}

/// The queue of events. Logs the number of unwritten events if it is dropped early, as on a shutdown that runs out of time.
struct Waiting<'a>(mpsc::Receiver<Queued>, &'a Writer);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.0.len() + self.1.backlog.len() + self.1.trying.load(Relaxed);
        if left > 0 {
            warn!("{left} events not written before shutdown");
        }
    }
}

/// Whether the name of the event is taken. An event that no earlier attempt has sent is then another one.
fn is_taken(status: &Status) -> bool {
    status.code == 409 && status.reason == "AlreadyExists"
}

/// Whether a rejection is final: because of the event's content or its name, or because the namespace is terminating. Tokens,
/// permissions and quotas may recover, and conflicts are transient. As in client-go, a taken name is final.
fn is_final(status: &Status) -> bool {
    match status.code {
        409 => is_taken(status),
        401 | 408 | 429 => false,
        403 => is_terminating(status) || is_denied(&status.message),
        code => (400..500).contains(&code),
    }
}

/// Returns the name of an event: the name of its object, truncated if necessary, and the time in hexadecimal.
fn name_of(queued: &Queued) -> String {
    let (object, time) = (queued.key.name(), queued.time.as_nanosecond());
    let time = format!(".{time:x}");
    let room = object.floor_char_boundary(LONGEST_NAME - time.len());
    // A label of the name must not be empty or end with a hyphen.
    let object = object[..room].trim_end_matches(['.', '-']);
    format!("{object}{time}")
}
