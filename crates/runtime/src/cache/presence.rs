//! Presence of an optional resource type, whose CRD or API service may appear and vanish.
//!
//! The list decides: the type is installed while the API server serves it. So a CRD counts as installed only once it is
//! established and the version is served, and an aggregated API without a CRD works as well. A metadata watch of the CRD only
//! determines when the list is tried again: without delay after each change of the CRD, else with a backoff of up to 5 minutes.
//! Without the permission for this watch, only the backoff remains.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Error, Resource as _,
    api::{WatchEvent, WatchParams},
    core::Request,
};
use serde::Deserialize;
use tokio::{
    sync::watch as channel,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info};

use crate::{
    api::kind::Kind,
    cache::outage::{MAX_PAUSE, MIN_PAUSE, SPREAD},
    client::{context::ClientContext, transport::READ_TIMEOUT},
    config::{backoff::Backoff, environment::Host},
    telemetry::heartbeat::Heartbeat,
};

/// Longest delay between two lists of a type that is not installed.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Timeout for the start of the API server's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// Presence of one optional resource type. The watches of all its scopes share it.
pub(crate) struct Presence {
    kind: Kind,
    /// Number of changes of the CRD.
    changes: channel::Sender<u64>,
}

impl Presence {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            changes: channel::Sender::new(0),
        }
    }

    /// Returns the name of the CRD, if a CRD may define the type.
    pub(crate) fn definition(&self) -> Option<String> {
        (!self.kind.is_built_in()).then(|| definition_of(&self.kind))
    }

    /// Returns the state of the watch of one scope. `appeared` is called after each first list of the installed type.
    pub(crate) fn of_scope(&self, appeared: impl Fn() + Send + Sync + 'static) -> Attempts {
        Attempts {
            name: definition_of(&self.kind),
            changes: self.changes.subscribe(),
            appeared: Box::new(appeared),
            pauses: Backoff::new(MIN_PAUSE, LONGEST_PAUSE),
            is_listed: false,
            is_noted: false,
        }
    }

    /// Watches the CRD, until cancelled. Only a change matters, so there is no list: a watch without a version begins with the
    /// current object.
    pub(crate) async fn watch_definition(
        self: Arc<Self>,
        shared: Arc<ClientContext>,
        heartbeat: Heartbeat,
    ) {
        let mut pauses = Backoff::new(MIN_PAUSE, LONGEST_PAUSE);
        let (mut seen, mut is_noted) = (None, false);
        loop {
            let opened = Instant::now();
            let ended = self.follow(&shared, &heartbeat, &mut seen).await;
            if opened.elapsed() >= MAX_PAUSE {
                pauses.reset();
                if ended.is_ok() {
                    continue;
                }
            }
            let is_forbidden =
                matches!(&ended, Err(Error::Api(status)) if matches!(status.code, 401 | 403));
            let longest = if is_forbidden {
                LONGEST_PAUSE
            } else {
                MAX_PAUSE
            };
            if is_forbidden && !std::mem::replace(&mut is_noted, true) {
                info!(
                    "not allowed to watch the CustomResourceDefinition {}: its installation is noticed within {} minutes",
                    definition_of(&self.kind),
                    LONGEST_PAUSE.as_secs() / 60
                );
            }
            debug!("watching the CustomResourceDefinition again: {ended:?}");
            let pause = pauses.advance().min(longest);
            wait(&shared.host, &heartbeat, pause).await;
        }
    }

    /// Runs one watch of the CRD from its opening to its end. `seen` is the last known version of the CRD.
    async fn follow(
        &self,
        shared: &ClientContext,
        heartbeat: &Heartbeat,
        seen: &mut Option<Metadata>,
    ) -> kube::Result<()> {
        let params =
            WatchParams::default().fields(&format!("metadata.name={}", definition_of(&self.kind)));
        let request = Request::new(CustomResourceDefinition::url_path(&(), None));
        let request = request.watch_metadata(&params, "");
        let request = request.map_err(Error::BuildRequest)?;
        heartbeat.beat("waiting for an answer", RESPONSE_TIMEOUT);
        let opening = shared.client.request_events::<Definition>(request);
        let late = |_| Error::Service(format!("no answer in {RESPONSE_TIMEOUT:?}").into());
        let events = timeout(RESPONSE_TIMEOUT, opening).await.map_err(late)??;
        let mut events = std::pin::pin!(events);
        loop {
            // The client's read timeout ends a longer silence, so the heartbeat does not fail.
            heartbeat.beat("reading", READ_TIMEOUT);
            let Some(event) = events.try_next().await? else {
                return Ok(());
            };
            let now = match event {
                WatchEvent::Added(Definition { metadata })
                | WatchEvent::Modified(Definition { metadata }) => Some(metadata),
                WatchEvent::Deleted(_) => None,
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            if *seen != now {
                *seen = now;
                self.changes.send_modify(|changes| *changes += 1);
            }
        }
    }
}

/// The JSON of a CRD's metadata.
#[derive(Clone, Deserialize)]
struct Definition {
    metadata: Metadata,
}

#[derive(Clone, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    resource_version: String,
}

/// The attempts to list an optional resource type in one scope.
pub(crate) struct Attempts {
    name: String,
    changes: channel::Receiver<u64>,
    appeared: Box<dyn Fn() + Send + Sync>,
    pauses: Backoff,
    /// Whether the store has a list of the installed type.
    is_listed: bool,
    /// Whether the absence was logged.
    is_noted: bool,
}

impl Attempts {
    /// Records a complete list. If the type has appeared, the objects that may use it are reconciled.
    pub(crate) fn listed(&mut self) {
        self.pauses.reset();
        self.is_noted = false;
        if !std::mem::replace(&mut self.is_listed, true) {
            info!("{} are installed", self.name);
            (self.appeared)();
        }
    }

    /// Records that the API server does not serve the type. Returns the text for users.
    pub(crate) fn is_absent(&mut self) -> String {
        self.is_listed = false;
        let name = &self.name;
        if !std::mem::replace(&mut self.is_noted, true) {
            info!("{name} are not installed: optional, waiting for them");
        }
        format!("{name} are not installed (optional)")
    }

    /// Waits until the next attempt: for the backoff or `asked` (`Retry-After`), but not long after a change of the CRD. Until
    /// the API server serves a new CRD, the backoff begins again.
    pub(crate) async fn pause(&mut self, host: &Host, heartbeat: &Heartbeat, asked: Duration) {
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.mark_unchanged();
            self.pauses.reset();
        }
        let pause = host.jitter(self.pauses.advance(), SPREAD).max(asked);
        heartbeat.beat("pausing", pause + MAX_PAUSE);
        let end = Instant::now() + pause;
        tokio::select! {
            biased;
            Ok(()) = self.changes.changed() => {
                self.pauses.reset();
                let soon = Instant::now() + self.pauses.advance();
                sleep_until(soon.min(end)).await;
            }
            () = sleep_until(end) => {}
        }
    }
}

async fn wait(host: &Host, heartbeat: &Heartbeat, pause: Duration) {
    let pause = host.jitter(pause, SPREAD);
    heartbeat.beat("pausing", pause + MAX_PAUSE);
    sleep(pause).await;
}

/// Returns the name of the resource type's CRD.
pub(crate) fn definition_of(kind: &Kind) -> String {
    format!("{}.{}", kind.plural, kind.group)
}
