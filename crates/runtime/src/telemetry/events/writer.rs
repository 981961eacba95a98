//! Writes events, a few at once, and those that could not be written again, beside the others.

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
    dropped::Drops,
    event::{About, LONGEST_NAME, Queued, WAITING},
};
use crate::{
    api::{
        failure::root_cause,
        status::{is_denied, is_terminating, retry_after},
    },
    telemetry::trace,
};

/// How many events are written at once: as many as hide the way to the API server and back.
pub(super) const AT_ONCE: usize = 8;

/// How long an event lets work go first while there is some: it would take from it a share of the API server, and goes alone.
/// With half of the room taken, events are written without a pause.
pub(super) const YIELD_DELAY: Duration = Duration::from_millis(100);

/// How many events are remembered, to make a series of them; past that, the one written longest ago is forgotten, and goes on as
/// a new one. ([`Event`](super::event::Event) says so.)
pub(super) const REMEMBERED: usize = 1500;

/// An event that was last written longer ago than this is written anew.
const SERIES: Duration = Duration::from_mins(6);

/// The pause between what fails in different namespaces, doubled up to [`MAX_GAP`] until something is written.
const GAP: Duration = Duration::from_millis(100);
const MAX_GAP: Duration = Duration::from_secs(1);
/// How long the first try may hold up the events of others, and how long each of the next may last: longer than the 10 s
/// that the API server gives a webhook by default, so that one that fails open lets the event through.
pub(super) const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const RETRY_TIMEOUT: Duration = FIRST_TIMEOUT.saturating_mul(PATIENCE);

/// Writes events.
pub(super) struct Writer {
    client: Client,
    about: About,
    hasher: RandomState,
    memory: Mutex<Memory>,
    backlog: Backlog,
    /// How many are neither waiting nor in the backlog: about to be tried, or being tried.
    trying: AtomicUsize,
    drops: Arc<Drops>,
}

/// What makes two events one series: a fingerprint of the object's UID, the event's reason, and what it says.
type Series = u64;

/// What was written, and in which order.
#[derive(Default)]
struct Memory {
    written: HashMap<Series, Written>,
    by_age: BTreeSet<(Instant, Series)>,
}

/// What was written of an event: its name, how often, and when last.
#[derive(Clone)]
struct Written {
    name: Box<str>,
    count: i32,
    last: Instant,
}

impl Writer {
    pub(super) fn new(client: Client, about: About, drops: Arc<Drops>) -> Self {
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

    /// Until no more come and none is left; `busy` is whether there is work that goes first.
    pub(super) async fn run(self, events: mpsc::Receiver<Queued>, busy: impl Fn() -> bool) {
        let mut waiting = Waiting(events, &self);
        let first = async {
            let events = &mut waiting.0;
            // One's object is being written about: it goes after that.
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
                        // Nobody looks at what is being written meanwhile.
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

    /// Tries one for the first time, and returns which object it was about.
    async fn try_first(&self, queued: Queued) -> Box<str> {
        let uid = queued.uid.clone();
        if let Some(queued) = self.backlog.behind_others(queued) {
            let since = Instant::now();
            if let Err(failure) = self.write(&queued, FIRST_TIMEOUT).await {
                self.backlog.put(queued, since, &failure);
                sleep(GAP).await;
            }
        }
        self.trying.fetch_sub(1, Relaxed);
        uid
    }

    /// Tries the backlog again, until nothing more comes into it and nothing is left.
    async fn retry(&self) {
        let mut gap = GAP;
        while !self.backlog.is_over() {
            let Some((namespace, due)) = self.backlog.next() else {
                self.backlog.changed().await;
                continue;
            };
            tokio::select! {
                biased;
                // Which may be due before.
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
                gap = GAP;
            } else {
                sleep(gap).await;
                gap = (gap * 2).min(MAX_GAP);
            }
            let took = begun.elapsed();
            self.backlog.tried(&namespace, queued, result, took);
        }
    }

    /// Writes an event, or learns that the API server refuses it, once and within `limit`.
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
            "an event could not be written: {}; trying again", failure.error
        );
        Err(failure)
    }

    /// Creates an event, or counts it where it was created a short while ago.
    pub(super) async fn publish(&self, queued: &Queued) -> kube::Result<()> {
        let events = Api::namespaced(self.client.clone(), queued.key.namespace());
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
                // Somebody has deleted it, or its time was up.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => {
                    answer?;
                    self.remember(series, before.name, before.count + 1);
                    return Ok(());
                }
            }
        }
        let name = name_of(queued);
        match events
            .create(&PostParams::default(), &self.event(queued, &name))
            .await
        {
            // The first try was taken, and its answer lost.
            Err(kube::Error::Api(status))
                if status.code == 409 && status.reason == "AlreadyExists" => {}
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
                api_version: Some(self.about.kind.api_version()),
                kind: Some(self.about.kind.kind.to_owned()),
                namespace: Some(queued.key.namespace().to_owned()),
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

/// What waits to be written. Dropped before there is nothing left, as at the end of a stop that has no more time for it, it says so.
struct Waiting<'a>(mpsc::Receiver<Queued>, &'a Writer);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.0.len() + self.1.backlog.len() + self.1.trying.load(Relaxed);
        if left > 0 {
            warn!("events that are not written: {left}, for want of time before the end");
        }
    }
}

/// Whether an event is refused for good: for what it says, or since there is nowhere to put it. Tokens, rights and quotas
/// come back, and conflicts pass.
fn is_final(status: &Status) -> bool {
    match status.code {
        401 | 408 | 409 | 429 => false,
        403 => is_terminating(status) || is_denied(&status.message),
        code => (400..500).contains(&code),
    }
}

/// What an event is called: after its object, as far as the API server takes a name so long, and its time.
fn name_of(queued: &Queued) -> String {
    let (object, time) = (queued.key.name(), queued.time.as_nanosecond());
    let time = format!(".{time:x}");
    let room = object.floor_char_boundary(LONGEST_NAME - time.len());
    // A part of a name ends in neither.
    let object = object[..room].trim_end_matches(['.', '-']);
    format!("{object}{time}")
}
