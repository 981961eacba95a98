//! Kubernetes events about the objects that are reconciled (rows R4 and R9), written off the path of the work.
//!
//! An event is news for people: it is never waited for, and never worth an object's delay. A repeated one is a
//! series, as kube's recorder would make it, which does not let an event name the trace that it is from.
//!
//! Events are written one after the other. One that cannot be written now is put aside, and with it those that come after
//! it in its namespace; they are tried again beside the others, which go on.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use opentelemetry::{KeyValue, metrics::BoundCounter, trace::SpanContext};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug, warn};

use crate::{
    App, Host, Key, Kind,
    failure::{Failure, root_cause},
    telemetry::{Metrics, metrics::table, trace},
    transport::retry_after,
};

/// How many events wait to be written; past that they are dropped. Enough for a first sync of 10,000 objects.
const WAITING: usize = 10_000;

/// How many of them may be of namespaces whose events cannot be written now, and how many of one such namespace.
const ASIDE: usize = WAITING;
const ASIDE_OF_ONE: usize = WAITING / 2;

/// How long an event lets work go first while there is some: it would take from it a share of the API server. With
/// half of the room taken, events are written without a pause.
const YIELD_DELAY: Duration = Duration::from_millis(100);

/// How many events are remembered, to make a series of them; past that, all are forgotten, and a series that
/// this cuts goes on as a new one.
const REMEMBERED: usize = 256;

/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// An event that was last written longer ago than this is written anew.
const SERIES: Duration = Duration::from_mins(6);

/// How long an event is tried to be written: an API server that is frozen or restarted loses none.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause before the second try, doubled before each of the next.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The pause between what fails in different namespaces, doubled up to [`PAUSE`] until something is written.
const GAP: Duration = Duration::from_millis(100);
/// How long the first try may hold up the events of others, and how long each of the next may last: as long as the API
/// server gives a webhook by default.
const QUICK: Duration = Duration::from_secs(1);
const TRY: Duration = Duration::from_secs(10);

/// How often it is told that events are dropped.
const LOG_INTERVAL: Duration = Duration::from_mins(10);

/// What there is to report to people: `kubectl describe` shows it.
///
/// It costs no object any time: it is written beside the work, within a minute if it can be, and past the fence, since it
/// changes nothing that is reconciled. The same event again within six minutes is one more of a series. Where 10,000 wait,
/// it is dropped and counted.
#[derive(Clone, Debug)]
pub struct Event {
    type_: &'static str,
    action: &'static str,
    reason: &'static str,
    note: Cow<'static, str>,
}

impl Event {
    /// One of type Normal, with its reason in CamelCase and a note for people.
    pub fn normal(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Normal",
            action: "Reconcile",
            reason,
            note: note.into(),
        }
    }

    /// One of type Warning.
    pub fn warning(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Warning",
            ..Self::normal(reason, note)
        }
    }

    /// The warning of an error that has a reason.
    #[must_use]
    pub fn failed(error: &impl Failure) -> Self {
        Self::warning(error.reason().unwrap_or("Error"), error.to_string())
    }

    /// The same, of another action than a reconcile.
    pub(crate) fn of(self, action: &'static str) -> Self {
        Self { action, ..self }
    }

    fn note(&self) -> Cow<'_, str> {
        cut(&self.note)
    }
}

/// As much of it as fits into a note.
fn cut(message: &str) -> Cow<'_, str> {
    const MORE: char = '…';
    if message.len() <= LONGEST_NOTE {
        return message.into();
    }
    let end = message.floor_char_boundary(LONGEST_NOTE - MORE.len_utf8());
    let mut short = message[..end].to_owned();
    short.push(MORE);
    short.into()
}

/// An event on its way.
struct Queued {
    key: Key,
    uid: Box<str>,
    event: Event,
    /// When it happened, which may be long before it is written.
    time: Timestamp,
    /// The reconcile that it is from, if that is traced.
    trace: Option<SpanContext>,
}

impl Queued {
    /// The trace that it is from.
    fn annotations(&self, app: &App) -> Option<BTreeMap<String, String>> {
        let trace = trace::annotation(self.trace.as_ref()?);
        Some(BTreeMap::from([(app.trace_annotation(), trace)]))
    }
}

/// Who reports, and about which kind.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub app: &'static App,
    /// What is named as the reporting controller.
    pub reporter: &'static str,
    /// The replica's name.
    pub instance: String,
    pub kind: Kind,
    pub host: Host,
}

/// Where events are handed in.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Queued>,
    drops: Arc<Drops>,
    host: Host,
}

impl Recorder {
    /// The way in, and the task that writes. The task ends when every way in is gone; `busy` is whether there is work
    /// that goes first.
    pub(crate) fn new<F: Fn() -> bool>(
        client: Client,
        about: About,
        metrics: &Metrics,
        busy: F,
    ) -> (Self, impl Future<Output = ()> + use<F>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let (drops, host) = (Arc::new(Drops::new(metrics)), about.host.clone());
        let writer = Writer {
            client,
            about,
            written: Mutex::default(),
            aside: Mutex::default(),
            put_aside: Notify::new(),
            drops: Arc::clone(&drops),
        };
        let recorder = Self {
            sender,
            drops,
            host,
        };
        (recorder, writer.run(receiver, busy))
    }

    /// Hands in an event about the object `key` with this UID, if there is room.
    pub fn send(&self, key: &Key, uid: &str, event: Event) {
        let queued = Queued {
            key: key.clone(),
            uid: uid.into(),
            event,
            time: self.host.now(),
            trace: trace::current(),
        };
        if self.sender.try_send(queued).is_err() {
            self.drops.full(key);
        }
    }
}

/// What becomes of events that are not written: they are counted, and that there are any is told now and then.
struct Drops {
    refused: BoundCounter<u64>,
    late: BoundCounter<u64>,
    full: BoundCounter<u64>,
    told: Mutex<Option<Instant>>,
}

impl Drops {
    fn new(metrics: &Metrics) -> Self {
        let counter = |reason| {
            let labels = [KeyValue::new("reason", reason)];
            metrics.counter(&table::EVENTS_DROPPED, &labels)
        };
        Self {
            refused: counter("refused"),
            late: counter("late"),
            full: counter("full"),
            told: Mutex::default(),
        }
    }

    /// Events of a namespace that is being deleted have nowhere to go, which is nothing to be told.
    fn refused(&self, key: &Key, refusal: &str) {
        self.refused.add(1);
        debug!(object = %key, "the API server refuses an event: {refusal}");
    }

    fn late(&self, key: &Key, error: &str) {
        self.late.add(1);
        self.tell(
            key,
            &format!("could not be written within {WRITE_TIMEOUT:?}: {error}"),
        );
    }

    fn full(&self, key: &Key) {
        self.full.add(1);
        self.tell(key, "finds too many others waiting");
    }

    fn tell(&self, key: &Key, why: &str) {
        let now = Instant::now();
        let mut told = self.told.lock();
        if told.is_none_or(|told| now - told >= LOG_INTERVAL) {
            *told = Some(now);
            warn!(object = %key, "an event is dropped, and more may be in the next {LOG_INTERVAL:?} without a word: it {why}");
        } else {
            debug!(object = %key, "an event is dropped: it {why}");
        }
    }
}

/// Writes events.
struct Writer {
    client: Client,
    about: About,
    written: Mutex<HashMap<Series, Written>>,
    aside: Mutex<Aside>,
    /// Something was put aside, or nothing will be any more.
    put_aside: Notify,
    drops: Arc<Drops>,
}

/// The events of namespaces where the last one could not be written.
#[derive(Default)]
struct Aside {
    lanes: BTreeMap<Box<str>, Lane>,
    /// How many events there are in all of them.
    count: usize,
    /// Nothing comes any more.
    closed: bool,
}

/// Those of one namespace, in their order.
struct Lane {
    events: VecDeque<Queued>,
    /// When the first of them was first tried.
    since: Instant,
    pause: Duration,
    due: Instant,
}

/// What makes two events one series: the object's UID, the event's reason, and what it says.
type Series = (Box<str>, &'static str, Box<str>);

/// What was written of an event: its name, how often, and when last.
#[derive(Clone)]
struct Written {
    name: String,
    count: i32,
    last: Instant,
}

/// Why an event is not written, and how soon it may be tried again.
struct Unwritten {
    error: String,
    wait: Duration,
}

impl Writer {
    async fn run(self, mut events: mpsc::Receiver<Queued>, busy: impl Fn() -> bool) {
        let first = async {
            while let Some(queued) = events.recv().await {
                let Some(queued) = self.behind_others(queued) else {
                    continue;
                };
                if events.len() < WAITING / 2 && busy() {
                    sleep(YIELD_DELAY).await;
                }
                let since = Instant::now();
                if let Err(failure) = self.write(&queued, QUICK).await {
                    self.put_aside(queued, since, &failure);
                    sleep(GAP).await;
                }
            }
            self.aside.lock().closed = true;
            self.put_aside.notify_one();
        };
        tokio::join!(first, self.try_again());
    }

    /// Puts an event aside where there are others of its namespace; hands it back where there are none.
    fn behind_others(&self, queued: Queued) -> Option<Queued> {
        let mut aside = self.aside.lock();
        let full = aside.count >= ASIDE;
        let Some(lane) = aside.lanes.get_mut(queued.key.namespace()) else {
            return Some(queued);
        };
        if full || lane.events.len() >= ASIDE_OF_ONE {
            drop(aside);
            self.drops.full(&queued.key);
        } else {
            lane.events.push_back(queued);
            aside.count += 1;
        }
        None
    }

    /// Puts the first of a namespace aside.
    fn put_aside(&self, queued: Queued, since: Instant, failure: &Unwritten) {
        let mut aside = self.aside.lock();
        if aside.count >= ASIDE {
            drop(aside);
            self.drops.full(&queued.key);
            return;
        }
        let lane = Lane {
            since,
            pause: PAUSE,
            due: Instant::now() + failure.wait.max(PAUSE),
            events: VecDeque::new(),
        };
        let namespace = queued.key.namespace().into();
        let lane = aside.lanes.entry(namespace).or_insert(lane);
        lane.events.push_back(queued);
        aside.count += 1;
        drop(aside);
        self.put_aside.notify_one();
    }

    /// Tries what was put aside again, until nothing comes any more and nothing is left.
    async fn try_again(&self) {
        let mut gap = GAP;
        loop {
            let next = {
                let aside = self.aside.lock();
                let lanes = aside.lanes.iter();
                let next = lanes.min_by_key(|(_, lane)| lane.due);
                if next.is_none() && aside.closed {
                    return;
                }
                next.map(|(namespace, lane)| (namespace.clone(), lane.due))
            };
            let Some((namespace, due)) = next else {
                self.put_aside.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                // Which may be due before.
                () = self.put_aside.notified() => continue,
                () = sleep_until(due) => {}
            }
            let Some(queued) = self.first_of(&namespace) else {
                continue;
            };
            let result = self.write(&queued, TRY).await;
            let is_written = result.is_ok();
            self.tried_again(&namespace, queued, result);
            if is_written {
                gap = GAP;
            } else {
                sleep(gap).await;
                gap = (gap * 2).min(PAUSE);
            }
        }
    }

    /// Takes out the first event of a namespace, whose others stay.
    fn first_of(&self, namespace: &str) -> Option<Queued> {
        let mut aside = self.aside.lock();
        let queued = aside.lanes.get_mut(namespace)?.events.pop_front()?;
        aside.count -= 1;
        Some(queued)
    }

    /// Has the namespace's next event tried, or the same one after a while; without any it is like all others.
    fn tried_again(&self, namespace: &str, queued: Queued, result: Result<(), Unwritten>) {
        let now = Instant::now();
        let mut overdue = None;
        let mut aside = self.aside.lock();
        let Some(lane) = aside.lanes.get_mut(namespace) else {
            return;
        };
        let mut back = 0;
        match result {
            Ok(()) => (lane.since, lane.pause, lane.due) = (now, PAUSE, now),
            Err(failure) => {
                lane.pause = (lane.pause * 2).min(MAX_PAUSE);
                lane.due = now + failure.wait.max(lane.pause);
                if now - lane.since < WRITE_TIMEOUT {
                    lane.events.push_front(queued);
                    back = 1;
                } else {
                    lane.since = lane.due;
                    overdue = Some((queued.key, failure.error));
                }
            }
        }
        if lane.events.is_empty() {
            aside.lanes.remove(namespace);
        }
        aside.count += back;
        drop(aside);
        if let Some((key, error)) = overdue {
            self.drops.late(&key, &error);
        }
    }

    /// Writes an event, or learns that the API server refuses it, once and within `limit`.
    async fn write(&self, queued: &Queued, limit: Duration) -> Result<(), Unwritten> {
        let span = trace::within(queued.trace.as_ref(), "event");
        let failure = match timeout(limit, self.publish(queued)).instrument(span).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(kube::Error::Api(status)))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
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
    async fn publish(&self, queued: &Queued) -> kube::Result<()> {
        let events = Api::namespaced(self.client.clone(), queued.key.namespace());
        let note = queued.event.note();
        let series = (
            queued.uid.clone(),
            queued.event.reason,
            note.as_ref().into(),
        );
        let before = self.written.lock().get(&series).cloned();
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
        let name = format!("{}.{:x}", queued.key.name(), queued.time.as_nanosecond());
        match events
            .create(&PostParams::default(), &self.event(queued, &name))
            .await
        {
            // The first try was taken, and its answer lost.
            Err(kube::Error::Api(status))
                if status.code == 409 && status.reason == "AlreadyExists" => {}
            answer => _ = answer?,
        }
        self.remember(series, name, 1);
        Ok(())
    }

    fn remember(&self, series: Series, name: String, count: i32) {
        let last = Instant::now();
        let mut written = self.written.lock();
        if written.len() >= REMEMBERED && !written.contains_key(&series) {
            written.clear();
        }
        written.insert(series, Written { name, count, last });
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
            note: Some(queued.event.note().into_owned()),
            ..v1::Event::default()
        }
    }
}

#[cfg(test)]
mod tests;
