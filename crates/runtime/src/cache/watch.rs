//! Keeps a [`Store`](crate::Store) current: lists, watches, and lists again when the watch cannot continue.
//!
//! A watch is retried until cancelled. Each cause of an error is logged when it first occurs, with its fix, and again at
//! growing intervals while the outage lasts. The delay before the next attempt grows from 100 ms to 5 s, or is the API server's
//! `Retry-After` if that is longer. The end of an idle connection is not an error, because load balancers close such
//! connections.
//!
//! kube's `watcher` is not used for two reasons:
//!
//! - If each watch ends right after its opening, it reopens the watch without a delay, forever, and logs nothing.
//! - It does not report when a streamed list starts again. Objects that were deleted between two attempts would stay in the
//!   store.

use std::{collections::HashSet, io, marker::PhantomData, pin::pin, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use kube::{
    Client, Error, Resource as _,
    api::{ListParams, ObjectList, WatchEvent, WatchParams},
    core::Request,
};
use opentelemetry::metrics::BoundCounter;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, error};

use crate::{
    api::{
        key::Key,
        object::{Cached, Incoming, Object},
        panic::Panicked,
        select::Select,
        status::retry_after,
    },
    cache::{
        outage::{MAX_PAUSE, Outage, WATCH},
        presence::Attempts,
        readiness::Status,
        target::Target,
    },
    client::{context::ClientContext, transport::READ_TIMEOUT},
    telemetry::heartbeat::Heartbeat,
};

/// Minimum duration of a watch that may be reopened without a delay.
const SHORT: Duration = MAX_PAUSE;

/// Longest silence within a streamed list. The API server sends the list from memory, and the final bookmark within two
/// seconds. Some proxies drop bookmarks.
pub(crate) const STREAM_SILENCE: Duration = Duration::from_secs(10);

/// Timeout for the start of the API server's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// Longest silence of a watch that has delivered a bookmark. Bookmarks arrive about once a minute, so two are missing by then.
///
/// Detects a frozen API server behind a load balancer that keeps the connection open, sooner than [`READ_TIMEOUT`]. Lease
/// renewals do not detect it, because they may reach another API server. API servers may send no bookmarks, so the limit
/// applies only after the first bookmark.
const SILENCE: Duration = Duration::from_secs(150);

/// Objects per page, if the API server cannot stream a list.
const PAGE: u32 = 500;

/// Maximum number of unreadable objects whose log line is remembered. Further ones are left out without a log line.
pub(super) const NAMED: usize = 1000;

/// Heartbeat timeout for one event or one page. Handling takes far less.
const HANDLING: Duration = Duration::from_secs(10);

/// Watches the selected objects of one scope into `target`, until cancelled. Reports progress to `heartbeat` and the state to
/// `status`. `restarts` counts reopenings after an error or a short watch. `attempts` is for an optional resource type: while the
/// API server does not serve the type, the store is empty, and the list is tried at longer intervals.
pub(crate) async fn watch<V: Cached>(
    shared: Arc<ClientContext>,
    status: Status,
    select: Select,
    restarts: BoundCounter<u64>,
    heartbeat: Heartbeat,
    target: impl Target<V>,
    attempts: Option<Attempts>,
) {
    let namespace = status.namespace();
    let client = shared.client.clone();
    let url = Object::<V>::url_path(&(), namespace.as_deref());
    let mut outage = Outage::new(shared, V::KIND, namespace, status.clone(), &WATCH);
    let mut watch = Watch {
        client,
        resource: Request::new(url),
        select,
        target,
        object: PhantomData,
        heartbeat,
        version: None,
        heard: Instant::now(),
        pages: false,
        is_endless: false,
        left_out: HashSet::new(),
        status,

        attempts,
    };
    let mut was_cut = false;
    loop {
        let opened = Instant::now();
        let after_cut = std::mem::take(&mut was_cut);
        let streamed = watch.version.is_none() && !watch.pages;
        let ended = watch.follow(&mut outage).await;
        if streamed && watch.version.is_none() {
            watch.pages = true;
            if ended.is_ok() && opened.elapsed() >= STREAM_SILENCE {
                watch.is_endless = true;
                outage.has_no_end();
            }
            if let Err(error) = &ended
                && means_no_stream(error)
            {
                if let Some(asked) = retry_after(error) {
                    outage.pause(&watch.heartbeat, asked).await;
                }
                continue;
            }
        }
        match ended {
            Ok(()) if opened.elapsed() >= SHORT => {}
            Err(error) if watch.was_idle(opened) && is_cut(&error) => {
                debug!(
                    resource = V::KIND.plural,
                    "reopening an idle watch that was cut: {error}"
                );
                was_cut = true;
            }
            // The pool may contain another cut connection.
            Err(error)
                if after_cut
                    && opened.elapsed() < SHORT
                    && !matches!(error, Error::Api(_) | Error::ReadEvents(_)) =>
            {
                debug!(
                    resource = V::KIND.plural,
                    "reopening the watch once more: {error}"
                );
                outage.pause(&watch.heartbeat, Duration::ZERO).await;
            }
            Ok(()) => {
                outage.ends_at_once();
                restarts.add(1);
                outage.pause(&watch.heartbeat, Duration::ZERO).await;
            }
            Err(error) => {
                if matches!(&error, Error::Api(status) if matches!(status.code, 400 | 404 | 410 | 422))
                {
                    // The resourceVersion is too old (410) or unknown to the API server (400, 422), or the resource type was
                    // removed with all its objects (404).
                    watch.version = None;
                }
                let asked = retry_after(&error).unwrap_or_default();
                if watch.is_absent(&error, &mut outage) {
                    watch.pause_attempts(&outage, asked).await;
                    continue;
                }
                outage.say(&error);
                restarts.add(1);
                if is_forbidden(&error) && watch.attempts.is_some() {
                    watch.pause_attempts(&outage, asked).await;
                } else {
                    outage.pause(&watch.heartbeat, asked).await;
                }
            }
        }
    }
}

/// Whether the API server cannot stream a list: it is too old for that (400, 422), or has just learned of the resource type
/// (429).
///
/// A response that is not an event counts, too. The next list is then paged, and its error is more precise.
fn means_no_stream(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 400 | 422 | 429),
        Error::SerdeError(_) => true,
        _ => false,
    }
}

fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 403)
}

/// Whether the connection was closed or reset. A timeout does not count.
fn is_cut(error: &Error) -> bool {
    let Error::ReadEvents(error) = error else {
        return false;
    };
    // kube wraps the cause in an error of the kind `Other`.
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let error_of_io = error.downcast_ref::<io::Error>();
        if error_of_io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return false;
        }
        // `source` skips the error that an `io::Error` wraps.
        cause = error_of_io
            .and_then(|error| error.get_ref().map(|inner| inner as _))
            .or_else(|| error.source());
    }
    true
}

struct Watch<V, T> {
    client: Client,
    resource: Request,
    select: Select,
    target: T,
    object: PhantomData<fn() -> V>,
    heartbeat: Heartbeat,
    /// Version to continue the watch from. `None`: list first.
    version: Option<String>,
    /// The time of the last change or of the opening.
    heard: Instant,
    /// Whether the next list is paged instead of streamed (KEP-3157). Streaming needs no memory for whole pages. As in
    /// client-go, a list is paged after a streamed list has failed.
    pages: bool,
    /// Whether a streamed list did not end. All later lists are paged.
    is_endless: bool,
    /// Objects that were logged because the code of their type panics.
    left_out: HashSet<Key>,
    status: Status,

    /// Of an optional resource type.
    attempts: Option<Attempts>,
}

impl<V: Cached, T: Target<V>> Watch<V, T> {
    /// Runs one watch from its opening to its end, after a list if one is needed.
    async fn follow(&mut self, outage: &mut Outage) -> kube::Result<()> {
        outage.begin_anew_after_quiet();
        if self.version.is_none() {
            self.target.list_begins();
            if self.pages {
                self.list(outage).await?;
            }
        }
        let params = WatchParams {
            send_initial_events: self.version.is_none(),
            label_selector: self.select.label_selector(),
            field_selector: self.select.field_selector(),
            ..WatchParams::default()
        };
        // Without a version, the watch starts with the current objects.
        let version = self.version.as_deref().unwrap_or_default();
        let request = if V::METADATA_ONLY {
            self.resource.watch_metadata(&params, version)
        } else {
            self.resource.watch(&params, version)
        };
        let request = request.map_err(Error::BuildRequest)?;
        let opening = self.client.request_events::<Incoming<V>>(request);
        let mut events = pin!(outage.opened(in_time(opening, &self.heartbeat).await)?);
        self.heard = Instant::now();
        // Time of the last object of a streamed list. Later changes do not count.
        let mut listed = self.heard;
        // If a resumed watch is silent for this time, the outage ends. An error would have arrived at once, but a healthy watch
        // may have no event for long. The time is shorter than the grace period, so the scope remains served.
        let quiet = SHORT.min(outage.status.grace() / 3);
        let (mut first, mut has_bookmarks) = (true, false);
        loop {
            // The client's read timeout ends a longer silence, so the heartbeat does not fail.
            self.heartbeat.beat("reading", READ_TIMEOUT);
            let next = events.try_next();
            let next = if std::mem::take(&mut first) && self.version.is_some() {
                timeout(quiet, next).await
            } else if self.version.is_none() {
                timeout_at(listed + STREAM_SILENCE, next).await
            } else if has_bookmarks {
                timeout(SILENCE, next).await
            } else {
                Ok(next.await)
            };
            let event = match next {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) if has_bookmarks => {
                    let text = format!("the watch has been silent for {SILENCE:?}");
                    return Err(Error::Service(text.into()));
                }
                Err(_) if self.version.is_none() => return Ok(()),
                Err(_) => {
                    outage.is_over();
                    continue;
                }
            };
            self.heartbeat.beat("handling an event", HANDLING);
            outage.is_over();
            if !matches!(event, WatchEvent::Bookmark(_)) {
                self.heard = Instant::now();
            }
            if matches!(event, WatchEvent::Added(_)) {
                listed = self.heard;
            }
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.has_come_to(object.resource_version());
                    self.apply(object);
                }
                WatchEvent::Deleted(object) => {
                    self.has_come_to(object.resource_version());
                    let (key, version) = object.key_and_version();
                    self.left_out.remove(&key);
                    self.target.delete(&key, version);
                }
                WatchEvent::Bookmark(bookmark) => {
                    if bookmark
                        .metadata
                        .annotations
                        .contains_key("k8s.io/initial-events-end")
                    {
                        self.listed(bookmark.metadata.resource_version, outage)?;
                    } else if self.version.is_some() {
                        self.has_come_to(&bookmark.metadata.resource_version);
                        has_bookmarks = true;
                    }
                }
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            }
            outage.status.hears(self.version.as_deref());
        }
    }

    /// Reads a list in pages. Each page continues after the previous one in the order of etcd's keys.
    ///
    /// A list whose pages do not advance, or contain only a few objects, may be endless. Its pages are read with increasing
    /// delays.
    async fn list(&mut self, outage: &mut Outage) -> kube::Result<()> {
        let mut params = ListParams {
            label_selector: self.select.label_selector(),
            field_selector: self.select.field_selector(),
            ..ListParams::default().limit(PAGE)
        };
        let mut last = None;
        loop {
            let request = if V::METADATA_ONLY {
                self.resource.list_metadata(&params)
            } else {
                self.resource.list(&params)
            };
            let request = request.map_err(Error::BuildRequest)?;
            let answer = self.client.request::<ObjectList<Incoming<V>>>(request);
            let page = outage.opened(in_time(answer, &self.heartbeat).await)?;
            self.heartbeat.beat("handling a page", HANDLING);
            let end = page
                .items
                .last()
                .map(|object| object.key_and_version().0.to_string());
            let heartbeat = page.items.len() >= PAGE as usize && end > last;
            last = end;
            for object in page.items {
                self.apply(object);
            }
            outage.status.hears(None);
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                self.listed(page.metadata.resource_version.unwrap_or_default(), outage)?;
                outage.status.hears(self.version.as_deref());
                return Ok(());
            }
            if next == params.continue_token {
                return Err(Error::Service(
                    "a list page repeats its continue token".into(),
                ));
            }
            params.continue_token = next;
            if !heartbeat {
                outage.pause(&self.heartbeat, Duration::ZERO).await;
            }
        }
    }

    /// Ends a list that is complete. `version` is the list's.
    fn listed(&mut self, version: String, outage: &Outage) -> kube::Result<()> {
        let number = number(&version)?;
        self.version = Some(version);
        self.pages = self.is_endless;
        if self.target.list_ends(number) {
            outage.status.synced();
        }
        if let Some(attempts) = &mut self.attempts {
            attempts.listed();
        }
        Ok(())
    }

    /// Records that the API server does not serve an optional resource type, if that is the meaning of `error`.
    fn is_absent(&mut self, error: &Error, outage: &mut Outage) -> bool {
        let is_missing = matches!(error, Error::Api(status) if status.code == 404);
        let Some(attempts) = self.attempts.as_mut().filter(|_| is_missing) else {
            return false;
        };
        self.target.vanish();
        outage.is_absent(attempts.is_absent());
        true
    }

    async fn pause_attempts(&mut self, outage: &Outage, asked: Duration) {
        if let Some(attempts) = &mut self.attempts {
            attempts.pause(outage.host(), &self.heartbeat, asked).await;
        }
    }

    /// Whether a watch that was opened at `opened` has delivered no change for [`SHORT`].
    fn was_idle(&self, opened: Instant) -> bool {
        self.version.is_some() && opened.elapsed() >= SHORT && self.heard.elapsed() >= SHORT
    }

    /// Advances the version of the watch. Not during a streamed list, because its objects are not ordered by version. Ignores
    /// an invalid version, because no watch could continue from it.
    fn has_come_to(&mut self, reached: &str) {
        if let Some(version) = &mut self.version
            && number(reached).is_ok()
        {
            reached.clone_into(version);
        }
    }

    fn apply(&mut self, object: Incoming<V>) {
        let (key, version) = object.key_and_version();
        let read = object.0.map_err(|(_, panicked)| panicked);
        match read.and_then(|object| self.target.apply(object)) {
            Ok(()) => _ = self.left_out.remove(&key),
            Err(panicked) => self.leave_out(key, version, panicked),
        }
    }

    /// Removes an unreadable object from the store, and logs that. Without the removal, this process would keep the last
    /// readable version, unlike a process that starts later.
    fn leave_out(&mut self, key: Key, version: u64, panicked: Panicked) {
        self.target.delete(&key, version);
        self.status.leaves_out();
        if self.left_out.len() < NAMED && !self.left_out.contains(&key) {
            error!(object = %key, "{panicked}; leaving the object out until it changes");
            self.left_out.insert(key);
        }
    }
}

/// Parses a `resourceVersion`. Fails for 0 and for invalid versions: a watch from there would start with the current objects
/// and not report deletions.
fn number(version: &str) -> kube::Result<u64> {
    let number = version.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        Error::Service(format!("the list has an invalid resourceVersion {version:?}").into())
    })
}

async fn in_time<T>(
    answer: impl Future<Output = kube::Result<T>>,
    heartbeat: &Heartbeat,
) -> kube::Result<T> {
    heartbeat.beat("waiting for an answer", RESPONSE_TIMEOUT);
    match timeout(RESPONSE_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Service(
            format!("no answer in {RESPONSE_TIMEOUT:?}").into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::table;

    /// The metric's help text specifies the same duration.
    #[test]
    fn the_metrics_help_has_the_same_duration() {
        let said = format!("an end within {} s of its opening", SHORT.as_secs());
        assert!(table::WATCH_RESTARTS.help.contains(&said));
    }
}
