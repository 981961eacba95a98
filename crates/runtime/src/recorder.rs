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
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider};
    use tower::service_fn;
    use tracing_subscriber::{
        Layer,
        layer::{Context, SubscriberExt as _},
    };

    use super::*;
    use crate::{
        Cached as _,
        app::tests::APP,
        fixtures::{Parent, TestError},
    };

    /// What an API server was asked for, and the notes of the events that it has.
    #[derive(Clone, Default)]
    struct Server {
        verbs: Arc<Mutex<Vec<Method>>>,
        stored: Arc<Mutex<HashMap<String, v1::Event>>>,
    }

    impl Server {
        fn client(&self) -> Client {
            let server = self.clone();
            let answer = move |request: Request<Body>| {
                let server = server.clone();
                async move {
                    let (head, body) = request.into_parts();
                    server.verbs.lock().push(head.method.clone());
                    let body = body.collect_bytes().await?;
                    let name = head.uri.path().rsplit('/').next().unwrap().to_owned();
                    let mut stored = server.stored.lock();
                    let answer = if head.method == Method::POST {
                        let event: v1::Event = serde_json::from_slice(&body).unwrap();
                        let name = event.metadata.name.clone().unwrap();
                        let is_new = stored.insert(name, event.clone()).is_none();
                        is_new.then_some(event)
                    } else {
                        let patch: v1::Event = serde_json::from_slice(&body).unwrap();
                        stored.get_mut(&name).map(|event| {
                            event.series = patch.series;
                            event.clone()
                        })
                    };
                    let (code, reason) = match head.method {
                        Method::POST => (409, "AlreadyExists"),
                        _ => (404, "NotFound"),
                    };
                    let status = json!({ "kind": "Status", "code": code, "reason": reason, "message": "no" });
                    let (code, body) = match answer {
                        Some(event) => (200, serde_json::to_vec(&event).unwrap()),
                        None => (code, status.to_string().into_bytes()),
                    };
                    let answer = Response::builder().status(code);
                    Ok::<_, tower::BoxError>(answer.body(Body::from(body)).unwrap())
                }
            };
            Client::new(service_fn(answer), "default")
        }

        fn verbs(&self) -> Vec<Method> {
            std::mem::take(&mut self.verbs.lock())
        }
    }

    fn about() -> About {
        About {
            app: &APP,
            reporter: APP.reporter,
            instance: "test".into(),
            kind: Parent::KIND,
            host: Host::of_this_process(),
        }
    }

    const SYNCED: Event = Event {
        type_: "Normal",
        action: "Reconcile",
        reason: "Synced",
        note: Cow::Borrowed("synced"),
    };

    fn writer(server: &Server) -> Writer {
        Writer {
            client: server.client(),
            about: about(),
            written: Mutex::default(),
            aside: Mutex::default(),
            put_aside: Notify::new(),
            drops: Arc::new(Drops::new(&Metrics::disconnected(&APP))),
        }
    }

    fn queued(message: &str) -> Queued {
        Queued {
            key: Key::new("default", "parent"),
            uid: "parent-uid".into(),
            event: Event::failed(&TestError::Rejected(message.into())),
            time: Timestamp::now(),
            trace: None,
        }
    }

    /// Row R4: what says something else is another event, and not one more of the first.
    #[tokio::test]
    async fn a_second_foreign_deployment_is_an_event_of_its_own() {
        let server = Server::default();
        let writer = writer(&server);
        for deployment in ["first", "second", "first"] {
            writer.publish(&queued(deployment)).await.unwrap();
        }
        assert_eq!(server.verbs(), [Method::POST, Method::POST, Method::PATCH]);
        let stored = server.stored.lock();
        let count = |deployment: &str| {
            let mut events = stored.values();
            let event = events.find(|e| e.note.as_ref().unwrap().contains(deployment));
            event.unwrap().series.as_ref().map(|series| series.count)
        };
        assert_eq!((count("first"), count("second")), (Some(2), None));
    }

    /// Row R4: somebody deletes an event; the next one of its kind is seen again, and is the first of a new series.
    #[tokio::test]
    async fn a_deleted_event_is_written_anew() {
        let server = Server::default();
        let writer = writer(&server);
        writer.publish(&queued("it")).await.unwrap();
        server.stored.lock().clear();
        writer.publish(&queued("it")).await.unwrap();
        assert_eq!(server.verbs(), [Method::POST, Method::PATCH, Method::POST]);
        assert_eq!(server.stored.lock().len(), 1);
        writer.publish(&queued("it")).await.unwrap();
        assert_eq!(server.verbs(), [Method::PATCH]);
        let stored = server.stored.lock();
        let series = stored.values().next().unwrap().series.as_ref();
        assert_eq!(series.unwrap().count, 2);
    }

    /// The API server counts bytes, whatever it calls them.
    #[test]
    fn a_note_is_at_most_1024_bytes() {
        for (letter, length) in [("a", 1024), ("é", 512), ("€", 341), ("𝄞", 256)] {
            let longest = letter.repeat(length);
            assert_eq!(cut(&longest), longest);
            let short = cut(&letter.repeat(length + 1)).into_owned();
            assert!((1018..=1024).contains(&short.len()), "{}", short.len());
            assert!(short.ends_with('…') && longest.starts_with(short.trim_end_matches('…')));
        }
    }

    /// Row R9: an event does not delay the work, and the work no event for long.
    #[tokio::test(start_paused = true)]
    async fn r9_events_give_way_to_work() {
        let (busy, written) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicUsize::new(0)),
        );
        let count = Arc::clone(&written);
        let api = service_fn(move |_: Request<Body>| {
            count.fetch_add(1, SeqCst);
            async { Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec()))) }
        });
        let is_busy = Arc::clone(&busy);
        let (events, write) = Recorder::new(
            Client::new(api, "default"),
            about(),
            &Metrics::disconnected(&APP),
            move || is_busy.load(SeqCst),
        );
        let writer = tokio::spawn(write);
        let send = |count| {
            for number in 0..count {
                events.send(&Key::new("default", "parent"), &format!("{number}"), SYNCED);
            }
        };
        send(WAITING / 2 + 3);
        // More than half of the room is taken, and then it is not.
        sleep(YIELD_DELAY / 2).await;
        assert_eq!(written.load(SeqCst), 3);
        for more in 1..=5 {
            sleep(YIELD_DELAY).await;
            assert_eq!(written.load(SeqCst), 3 + more);
        }
        busy.store(false, SeqCst);
        drop(events);
        writer.await.unwrap();
        assert_eq!(written.load(SeqCst), WAITING / 2 + 3);
    }

    /// What an API server does with the events of a namespace: its webhook, or its quota, or what stands before it.
    #[derive(Clone, Copy, Debug)]
    enum Trouble {
        Fails,
        Overloaded,
        Hangs,
        /// Longer than the others are held up for, but in time.
        Slow,
    }

    /// An API server with `trouble` in the namespaces whose name begins with `bad`, until it is over; and what it has stored:
    /// of which namespace, and how long after the beginning.
    #[derive(Clone)]
    struct Troubled {
        trouble: Arc<Mutex<Option<Trouble>>>,
        begun: Instant,
        stored: Arc<Mutex<Vec<(String, Duration)>>>,
        tries: Arc<AtomicUsize>,
    }

    impl Troubled {
        fn new(trouble: Trouble) -> Self {
            Self {
                trouble: Arc::new(Mutex::new(Some(trouble))),
                begun: Instant::now(),
                stored: Arc::default(),
                tries: Arc::default(),
            }
        }

        fn start(
            &self,
        ) -> (
            Recorder,
            tokio::task::JoinHandle<()>,
            (Metrics, SdkMeterProvider),
        ) {
            let server = self.clone();
            let client = Client::new(
                service_fn(move |request: Request<Body>| server.clone().answer(request)),
                "default",
            );
            let (metrics, provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
            let (events, write) = Recorder::new(client, about(), &metrics, || false);
            (events, tokio::spawn(write), (metrics, provider))
        }

        async fn answer(self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
            let path = request.uri().path().to_owned();
            let namespace = path.split('/').nth(5).unwrap().to_owned();
            let trouble = *self.trouble.lock();
            let mut code = 200;
            if namespace.starts_with("bad") {
                self.tries.fetch_add(1, SeqCst);
                match trouble {
                    Some(Trouble::Fails) => code = 500,
                    Some(Trouble::Overloaded) => code = 429,
                    Some(Trouble::Hangs) => std::future::pending().await,
                    Some(Trouble::Slow) => sleep(QUICK * 5).await,
                    None => {}
                }
            }
            let body = if code == 200 {
                let at = self.begun.elapsed();
                self.stored.lock().push((namespace, at));
                json!({})
            } else {
                json!({
                    "kind": "Status", "status": "Failure", "code": code, "message": "failed calling webhook",
                    "details": { "retryAfterSeconds": 30 },
                })
            };
            let answer = Response::builder().status(code);
            Ok(answer
                .body(Body::from(body.to_string().into_bytes()))
                .unwrap())
        }

        fn of(&self, namespace: &str) -> Vec<Duration> {
            let stored = self.stored.lock();
            let of = stored.iter().filter(|(of, _)| of == namespace);
            of.map(|(_, at)| *at).collect()
        }
    }

    fn dropped(metrics: &Metrics, reason: &str) -> u64 {
        let (_, text) = metrics.scrape(None);
        let series = format!("some_operator_events_dropped_total{{reason=\"{reason}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap().parse().unwrap()
    }

    /// Row R9: whatever is wrong with the events of one namespace, or of several, those of the others are written; and its own
    /// are when the trouble is over, none lost and in their order.
    #[tokio::test(start_paused = true)]
    async fn r9_a_namespaces_events_hold_up_no_others() {
        for trouble in [
            Trouble::Fails,
            Trouble::Overloaded,
            Trouble::Hangs,
            Trouble::Slow,
        ] {
            let server = Troubled::new(trouble);
            let (events, writer, (metrics, _provider)) = server.start();
            for number in 0..30 {
                for bad in ["bad", "bad-too", "bad-as-well"] {
                    let key = Key::new(bad, &format!("f{number}"));
                    events.send(&key, "u", SYNCED);
                }
                events.send(&Key::new("good", &format!("f{number}")), "u", SYNCED);
            }
            sleep(Duration::from_secs(10)).await;
            let good = server.of("good");
            assert_eq!(good.len(), 30, "{trouble:?}");
            assert!(good[29] < Duration::from_secs(5), "{trouble:?}: {good:?}");
            // A second namespace's trouble is not tried less often for the first one's.
            sleep(Duration::from_secs(30)).await;
            let tries = server.tries.load(SeqCst);
            assert!((6..=36).contains(&tries), "{trouble:?}: {tries} tries");
            *server.trouble.lock() = None;
            drop(events);
            writer.await.unwrap();
            for bad in ["bad", "bad-too", "bad-as-well"] {
                assert_eq!(server.of(bad).len(), 30, "{trouble:?}");
            }
            for reason in ["late", "full", "refused"] {
                assert_eq!(dropped(&metrics, reason), 0, "{trouble:?}: {reason}");
            }
        }
    }

    /// What waits is bounded, of one namespace and of all; what is dropped is counted, and told once in a while.
    #[tokio::test(start_paused = true)]
    async fn events_that_are_dropped_are_counted_and_told() {
        let lines = Arc::new(AtomicUsize::new(0));
        let layer = Warnings(Arc::clone(&lines));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let server = Troubled::new(Trouble::Fails);
        let (events, writer, (metrics, _provider)) = server.start();
        for bad in ["bad", "bad-too", "bad-as-well"] {
            for number in 0..ASIDE_OF_ONE + 10 {
                events.send(&Key::new(bad, &format!("f{number}")), "u", SYNCED);
                if number % 1000 == 0 {
                    sleep(QUICK).await;
                }
            }
            sleep(QUICK).await;
        }
        let full = u64::try_from(2 * 10 + ASIDE_OF_ONE + 10).unwrap();
        let found = dropped(&metrics, "full");
        assert!(found.abs_diff(full) <= 3, "{found} of about {full}");
        sleep(WRITE_TIMEOUT * 5).await;
        assert!(dropped(&metrics, "late") >= 4);
        assert_eq!(lines.load(SeqCst), 1);
        events.send(&Key::new("good", "f"), "u", SYNCED);
        sleep(QUICK).await;
        assert_eq!(server.of("good").len(), 1);
        writer.abort();
    }

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Warnings {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() <= tracing::Level::WARN {
                self.0.fetch_add(1, SeqCst);
            }
        }
    }

    /// An event tells when it happened, however late it is written; and a second try of one whose first answer was lost is
    /// the same event.
    #[tokio::test]
    async fn an_event_is_of_when_it_happened() {
        let server = Server::default();
        let mut late = queued("it");
        late.time = "2026-01-01T00:00:00Z".parse().unwrap();
        for _ in 0..2 {
            // Another writer remembers nothing of the first.
            writer(&server).publish(&late).await.unwrap();
        }
        let stored: Vec<_> = server.stored.lock().values().cloned().collect();
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].event_time.as_ref().unwrap().0, late.time);
        let writer = writer(&server);
        writer.publish(&late).await.unwrap();
        late.time = "2026-01-01T00:01:00Z".parse().unwrap();
        writer.publish(&late).await.unwrap();
        let stored = server.stored.lock();
        let series = stored.values().next().unwrap().series.as_ref().unwrap();
        assert_eq!(series.last_observed_time.0, late.time);
    }
}
