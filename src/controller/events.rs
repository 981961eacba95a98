//! Kubernetes events about Foos (rows R4 and R9), written off the path of the work.
//!
//! An event is news for people: it is never waited for, and never worth a Foo's delay. kube's recorder
//! turns a repeated one into a series.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    error::{Error, root_cause},
    key::Key,
};
use crate::api;

/// The reporting component (row R9).
pub const REPORTER: &str = "sample-controller";

/// How many events wait to be written; past that they are dropped. Enough for a first sync of 10,000 Foos.
const WAITING: usize = 10_000;

/// kube's recorder remembers what it wrote for six minutes, and goes through all of it at every event. A
/// fresh one after this many events bounds both; a series that it cuts goes on as a new one.
const REMEMBERED: usize = 256;

/// How long an event is tried to be written: an API server that is frozen or restarted loses none.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(1);

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
}

/// Where events are handed in.
#[derive(Clone)]
pub struct Events(mpsc::Sender<(Key, Box<str>, Event)>);

impl Events {
    /// The way in, and the task that writes. The task ends when every way in is gone.
    pub fn new(client: Client, instance: String) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), write(client, instance, receiver))
    }

    /// Hands in an event about the Foo `key` with this UID, if there is room.
    pub fn send(&self, key: &Key, uid: &str, event: Event) {
        if self.0.try_send((key.clone(), uid.into(), event)).is_err() {
            debug!(foo = %key, "too many events are waiting: this one is dropped");
        }
    }
}

async fn write(
    client: Client,
    instance: String,
    mut events: mpsc::Receiver<(Key, Box<str>, Event)>,
) {
    let reporter = Reporter {
        controller: REPORTER.to_owned(),
        instance: Some(instance),
    };
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut remembered = 0;
    while let Some((key, uid, event)) = events.recv().await {
        if remembered == REMEMBERED {
            recorder = Recorder::new(client.clone(), reporter.clone());
            remembered = 0;
        }
        remembered += 1;
        let about = ObjectReference {
            api_version: Some(api::api_version()),
            kind: Some(api::KIND.to_owned()),
            namespace: Some(key.namespace().to_owned()),
            name: Some(key.name().to_owned()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        let written = timeout(PATIENCE, publish(&recorder, &event.into(), &about)).await;
        match written {
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
async fn publish(
    recorder: &Recorder,
    event: &KubeEvent,
    about: &ObjectReference,
) -> Result<(), String> {
    loop {
        match recorder.publish(event, about).await {
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
                sleep(PAUSE).await;
            }
        }
    }
}

impl From<Event> for KubeEvent {
    fn from(event: Event) -> Self {
        let (type_, reason, note) = match event {
            Event::Synced => (
                EventType::Normal,
                "Synced",
                "Foo synced successfully".to_owned(),
            ),
            Event::Failed { reason, message } => (EventType::Warning, reason, message),
        };
        Self {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        }
    }
}
