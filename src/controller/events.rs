//! Kubernetes events about Foos (rows R4 and R9), written off the path of the work.
//!
//! An event is news for people: it is never waited for, and never worth a Foo's delay. A repeated one is a
//! series, as kube's recorder would make it, which does not let an event name the trace that it is from.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
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
use opentelemetry::trace::SpanContext;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{Instrument as _, debug, warn};

use super::{
    error::{Error, root_cause},
    key::Key,
};
use crate::{api, client::retry_after, telemetry::trace};

/// The reporting component (row R9).
pub const REPORTER: &str = "sample-controller";

/// How many events wait to be written; past that they are dropped. Enough for a first sync of 10,000 Foos.
const WAITING: usize = 10_000;

/// How long an event lets work go first while there is some: it would take from it a share of the API server. With
/// half of the room taken, events are written without a pause.
const GIVE_WAY: Duration = Duration::from_millis(100);

/// How many events are remembered, to make a series of them; past that, all are forgotten, and a series that
/// this cuts goes on as a new one.
const REMEMBERED: usize = 256;

/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// An event that was last written longer ago than this is written anew.
const SERIES: Duration = Duration::from_mins(6);

/// How long an event is tried to be written: an API server that is frozen or restarted loses none.
const PATIENCE: Duration = Duration::from_mins(1);
/// The pause before the second try, doubled before each of the next.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// What there is to tell.
#[derive(Debug)]
pub enum Event {
    /// A sync changed something.
    Synced,
    /// A sync failed, in a way that the user should know.
    Failed {
        /// In CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
    },
}

impl Event {
    /// The event of an error that has a reason.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        Self::Failed {
            reason: error.reason().unwrap_or("Error"),
            message: error.to_string(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Synced => "Synced",
            Self::Failed { reason, .. } => reason,
        }
    }

    fn type_(&self) -> &'static str {
        match self {
            Self::Synced => "Normal",
            Self::Failed { .. } => "Warning",
        }
    }

    fn note(&self) -> Cow<'_, str> {
        match self {
            Self::Synced => "Foo synced successfully".into(),
            Self::Failed { message, .. } => cut(message),
        }
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
struct News {
    key: Key,
    uid: Box<str>,
    event: Event,
    /// The reconcile that it is from, if that is traced.
    trace: Option<SpanContext>,
}

impl News {
    /// The trace that it is from.
    fn annotations(&self) -> Option<BTreeMap<String, String>> {
        let trace = trace::annotation(self.trace.as_ref()?);
        Some(BTreeMap::from([(trace::ANNOTATION.to_owned(), trace)]))
    }
}

/// Where events are handed in.
#[derive(Clone)]
pub struct Events(mpsc::Sender<News>);

impl Events {
    /// The way in, and the task that writes. The task ends when every way in is gone; `busy` is whether there is work
    /// that goes first.
    pub fn new(
        client: Client,
        instance: String,
        busy: impl Fn() -> bool,
    ) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = Writer {
            client,
            instance,
            written: HashMap::new(),
        };
        (Self(sender), writer.run(receiver, busy))
    }

    /// Hands in an event about the Foo `key` with this UID, if there is room.
    pub fn send(&self, key: &Key, uid: &str, event: Event) {
        let news = News {
            key: key.clone(),
            uid: uid.into(),
            event,
            trace: trace::current(),
        };
        if self.0.try_send(news).is_err() {
            debug!(foo = %key, "too many events are waiting: this one is dropped");
        }
    }
}

/// Writes events, one after the other.
struct Writer {
    client: Client,
    instance: String,
    written: HashMap<Series, Written>,
}

/// What makes two events one series: the Foo's UID, the event's reason, and what it says.
type Series = (Box<str>, &'static str, Box<str>);

/// What was written of an event: its name, how often, and when last.
struct Written {
    name: String,
    count: i32,
    last: Instant,
}

impl Writer {
    async fn run(mut self, mut events: mpsc::Receiver<News>, busy: impl Fn() -> bool) {
        while let Some(news) = events.recv().await {
            if events.len() < WAITING / 2 && busy() {
                sleep(GIVE_WAY).await;
            }
            let key = &news.key;
            let span = trace::within(news.trace.as_ref(), "event");
            match timeout(PATIENCE, self.write(&news)).instrument(span).await {
                Ok(Ok(())) => {}
                // Events of a namespace that is being deleted have nowhere to go.
                Ok(Err(refusal)) => {
                    debug!(foo = %key, "the API server refuses an event: {refusal}");
                }
                Err(_) => warn!(foo = %key, "an event could not be written within {PATIENCE:?}"),
            }
        }
    }

    /// Writes an event, for as long as it takes; fails where the API server refuses it.
    async fn write(&mut self, news: &News) -> Result<(), String> {
        let mut pause = PAUSE;
        loop {
            match self.publish(news).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status))
                    if (400..500).contains(&status.code) && status.code != 429 =>
                {
                    return Err(status.message);
                }
                Err(error) => {
                    debug!(
                        "an event could not be written: {}; trying again",
                        root_cause(&error)
                    );
                    sleep(retry_after(&error).unwrap_or_default().max(pause)).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
    }

    /// Creates an event, or counts it where it was created a short while ago.
    async fn publish(&mut self, news: &News) -> kube::Result<()> {
        let now = Timestamp::now();
        let events = Api::namespaced(self.client.clone(), news.key.namespace());
        let note = news.event.note();
        let series = (news.uid.clone(), news.event.reason(), note.as_ref().into());
        if let Some(before) = self.written.get_mut(&series)
            && before.last.elapsed() < SERIES
        {
            let again = json!({
                "metadata": { "annotations": news.annotations() },
                "series": { "count": before.count + 1, "lastObservedTime": MicroTime(now) },
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
                    before.count += 1;
                    before.last = Instant::now();
                    return Ok(());
                }
            }
        }
        let name = format!("{}.{:x}", news.key.name(), now.as_nanosecond());
        let event = self.event(news, &name, now);
        events.create(&PostParams::default(), &event).await?;
        if self.written.len() == REMEMBERED {
            self.written.clear();
        }
        let written = Written {
            name,
            count: 1,
            last: Instant::now(),
        };
        self.written.insert(series, written);
        Ok(())
    }

    fn event(&self, news: &News, name: &str, now: Timestamp) -> v1::Event {
        v1::Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: news.annotations(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                api_version: Some(api::api_version()),
                kind: Some(api::KIND.to_owned()),
                namespace: Some(news.key.namespace().to_owned()),
                name: Some(news.key.name().to_owned()),
                uid: Some(news.uid.to_string()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some("Reconcile".to_owned()),
            reason: Some(news.event.reason().to_owned()),
            type_: Some(news.event.type_().to_owned()),
            note: Some(news.event.note().into_owned()),
            ..v1::Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    };

    use http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use tower::service_fn;

    use super::*;
    use crate::controller::fixtures::foo;

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
                        stored.insert(event.metadata.name.clone().unwrap(), event.clone());
                        Some(event)
                    } else {
                        let patch: v1::Event = serde_json::from_slice(&body).unwrap();
                        stored.get_mut(&name).map(|event| {
                            event.series = patch.series;
                            event.clone()
                        })
                    };
                    let missing = json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "no" });
                    let (code, body) = match answer {
                        Some(event) => (200, serde_json::to_vec(&event).unwrap()),
                        None => (404, missing.to_string().into_bytes()),
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

    fn writer(server: &Server) -> Writer {
        Writer {
            client: server.client(),
            instance: "test".into(),
            written: HashMap::new(),
        }
    }

    fn news(message: &str) -> News {
        News {
            key: foo().key,
            uid: "foo-uid".into(),
            event: Event::failed(&Error::ResourceExists(message.into())),
            trace: None,
        }
    }

    /// Row R4: what says something else is another event, and not one more of the first.
    #[tokio::test]
    async fn a_second_foreign_deployment_is_an_event_of_its_own() {
        let server = Server::default();
        let mut writer = writer(&server);
        for deployment in ["first", "second", "first"] {
            writer.write(&news(deployment)).await.unwrap();
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
        let mut writer = writer(&server);
        writer.write(&news("it")).await.unwrap();
        server.stored.lock().clear();
        writer.write(&news("it")).await.unwrap();
        assert_eq!(server.verbs(), [Method::POST, Method::PATCH, Method::POST]);
        assert_eq!(server.stored.lock().len(), 1);
        writer.write(&news("it")).await.unwrap();
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
        let (events, write) = Events::new(Client::new(api, "default"), "test".into(), move || {
            is_busy.load(SeqCst)
        });
        let writer = tokio::spawn(write);
        let send = |count| {
            for number in 0..count {
                events.send(&foo().key, &format!("{number}"), Event::Synced);
            }
        };
        send(WAITING / 2 + 3);
        // More than half of the room is taken, and then it is not.
        sleep(GIVE_WAY / 2).await;
        assert_eq!(written.load(SeqCst), 3);
        for more in 1..=5 {
            sleep(GIVE_WAY).await;
            assert_eq!(written.load(SeqCst), 3 + more);
        }
        busy.store(false, SeqCst);
        drop(events);
        writer.await.unwrap();
        assert_eq!(written.load(SeqCst), WAITING / 2 + 3);
    }
}
