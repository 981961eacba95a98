//! Kubernetes events about the objects that are reconciled, written off the path of the work.
//!
//! An event is for people: it is never waited for, and never worth an object's delay. A repeated one is a
//! series, as kube's recorder would make it, which does not let an event name the trace that it is from.
//!
//! Events are written a few at once, those of one object one after the other. One that cannot be written now is put into a backlog, and with it those that
//! come after it in its namespace; they are tried again beside the others, which go on.

mod backlog;
mod dropped;
pub(crate) mod event;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use kube::Client;
use tokio::sync::mpsc;

pub use self::event::{About, Event};
use self::{
    dropped::Drops,
    event::{Queued, WAITING},
    writer::Writer,
};
use crate::{
    api::key::Key,
    config::environment::Host,
    telemetry::{metrics::Metrics, trace},
};

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
