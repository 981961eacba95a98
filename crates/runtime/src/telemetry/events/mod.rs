//! Kubernetes events about reconciled objects, written asynchronously.
//!
//! Events inform users. No reconcile waits for them. Repeated events form a series, as with kube's recorder. That recorder is
//! not used because its events cannot carry the ID of their trace.
//!
//! A few events are written concurrently; events of one object are written in order. An event that cannot be written goes to a
//! backlog, and so do the later events of its namespace. The backlog is retried independently of other events.

mod backlog;
mod dropped;
pub(crate) mod event;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::{Arc, atomic::AtomicBool};

use kube::Client;
use tokio::sync::mpsc;

pub(crate) use self::event::{Event, EventSource};
use self::{
    dropped::DroppedEvents,
    event::{Queued, WAITING},
    writer::Writer,
};
use crate::{
    api::{key::Key, kind::Kind},
    config::environment::Host,
    telemetry::{metrics::Metrics, trace},
};

/// Sends events to the task that writes them.
#[derive(Clone)]
pub(crate) struct Recorder {
    sender: mpsc::Sender<Queued>,
    drops: Arc<DroppedEvents>,
    host: Host,
    kind: &'static Kind,
}

impl Recorder {
    /// Creates a recorder and the task that writes its events. The task ends after all clones of the recorder are dropped.
    /// `busy` returns whether objects wait for a worker, which have priority over events.
    pub(crate) fn new<F: Fn() -> bool>(
        client: Client,
        about: EventSource,
        metrics: &Metrics,
        busy: F,
    ) -> (Self, impl Future<Output = ()> + use<F>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let (drops, host) = (Arc::new(DroppedEvents::new(metrics)), about.host.clone());
        let kind = about.kind;
        let writer = Writer::new(client, about, Arc::clone(&drops));
        let recorder = Self {
            sender,
            drops,
            host,
            kind,
        };
        (recorder, writer.run(receiver, busy))
    }

    /// Returns a recorder for objects of another kind.
    #[cfg(feature = "operator")]
    pub(crate) fn about(&self, kind: &'static Kind) -> Self {
        Self {
            kind,
            ..self.clone()
        }
    }

    /// Queues an event about the object `key` with this UID. Drops it if the queue is full.
    pub(crate) fn send(&self, key: &Key, uid: &str, event: Event) {
        let queued = Queued {
            kind: self.kind,
            key: key.clone(),
            uid: uid.into(),
            event,
            time: self.host.now(),
            trace: trace::current(),
            is_sent: AtomicBool::new(false),
        };
        if self.sender.try_send(queued).is_err() {
            self.drops.full(key);
        }
    }
}
