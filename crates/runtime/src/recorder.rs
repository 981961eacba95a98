//! Kubernetes events about the objects that are reconciled, written off the path of the work.
//!
//! An event is for people: it is never waited for, and never worth an object's delay. A repeated one is a
//! series, as kube's recorder would make it, which does not let an event name the trace that it is from.
//!
//! Events are written one after the other. One that cannot be written now is put into a backlog, and with it those that come after
//! it in its namespace; they are tried again beside the others, which go on.

mod backlog;
mod drops;
#[cfg(test)]
mod tests;
mod writer;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use opentelemetry::trace::SpanContext;
use tokio::sync::mpsc;

use self::{drops::Drops, writer::Writer};
use crate::{
    App, Host, Key, Kind,
    failure::Failure,
    telemetry::{Metrics, trace},
};

/// How many events wait to be written; past that they are dropped. Enough for a first sync of 10,000 objects.
const WAITING: usize = 10_000;

/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// How long an event is tried to be written: an API server that is frozen or restarted loses none.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

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
        let writer = Writer::new(client, about, Arc::clone(&drops));
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
