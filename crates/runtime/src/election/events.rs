//! Events about changes of leader.

use std::{future::pending, panic::resume_unwind, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::{task::JoinSet, time};

use super::identity::Identity;
use crate::{
    api::{key::Key, kind::Kind},
    config::environment::Host,
    telemetry::{
        events::{
            Recorder,
            event::{Event, EventSource},
        },
        metrics::Metrics,
    },
};

/// Longest time to write the last events when the process ends. Nothing else waits for an event.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Records each change of leader as an event on the Lease, without blocking the election. It has its own recorder on the
/// Lease's client: its events bypass the fence, and do not queue behind the controller's.
pub(super) struct LeaseRecorder {
    recorder: Recorder,
    lease: Key,
    identity: Identity,
    writer: JoinSet<()>,
}

impl LeaseRecorder {
    pub(super) fn new(
        host: &Host,
        client: Client,
        namespace: &str,
        name: &str,
        identity: &Identity,
        metrics: &Metrics,
    ) -> Self {
        let app = metrics.app();
        let about = EventSource {
            app,
            reporter: app.name,
            instance: identity.to_string(),
            kind: const { &Kind::of::<Lease>() },
            host: host.clone(),
        };
        let (recorder, write) = Recorder::new(client, about, metrics, || false);
        let mut writer = JoinSet::new();
        writer.spawn(write);
        Self {
            recorder,
            lease: Key::new(namespace, name),
            identity: identity.clone(),
            writer,
        }
    }

    pub(super) fn record(&self, action: &'static str, what: &str, uid: &str) {
        let note = format!("{} {what}", self.identity);
        let event = Event::normal("LeaderElection", note).of(action);
        self.recorder.send(&self.lease, uid, event);
    }

    /// Panics if the writer has panicked. Otherwise never returns.
    pub(super) async fn died(&mut self) {
        if let Some(Err(ended)) = self.writer.join_next().await
            && let Ok(panic) = ended.try_into_panic()
        {
            resume_unwind(panic);
        }
        pending::<()>().await;
    }

    pub(super) async fn finish(mut self) {
        drop(self.recorder);
        let _ = time::timeout(FINISH_TIMEOUT, self.writer.join_next()).await;
    }
}
