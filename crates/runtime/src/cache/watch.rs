//! Keeps a [`Store`] current: list, watch, and list again when the watch cannot go on.
//!
//! A watch never gives up. What goes wrong is logged once for each cause, in words that say what to do about
//! it, repeated while the outage lasts, and tried again after a delay that grows from 100 ms to 5 s, or that the API server asks for.
//! The end of an idle connection is no error: load balancers close such connections.
//!
//! kube's `watcher` is not used: it opens a watch that ends at once again without a pause, for ever and
//! without a word, and does not say when a streamed list begins anew, so that what vanished between two
//! attempts at it would stay in the cache.

use std::{collections::HashSet, io, pin::pin, sync::Arc, time::Duration};

use backoff::{ExponentialBackoff, backoff::Backoff as _};
use futures::TryStreamExt as _;
use kube::{
    Client, Error, Resource as _,
    api::{ListParams, ObjectList, WatchEvent, WatchParams},
    core::Request,
};
use opentelemetry::metrics::BoundCounter;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, error, info, warn};

use crate::{
    api::{
        failure::root_cause,
        key::Key,
        kind::Kind,
        object::{Cached, Incoming, Object},
        panic::{Panicked, catch},
        status::retry_after,
    },
    cache::{
        readiness::{
            Status,
            namespace::{Place, Reason},
        },
        store::{Change, Store},
    },
    client::{context::ClientContext, transport::READ_TIMEOUT},
    config::app::App,
    telemetry::{health::Heartbeat, log::log_once::Causes},
};

/// The longest pause between two tries: also how soon a CRD that is installed at last is noticed.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How far a pause may lie from what it should be, as a ratio.
const SPREAD: f64 = 0.2;

/// An error after this long without one is a new outage: it is said again, and the pauses start small.
/// (A watch that works has nothing to report where nothing changes.)
const QUIET: Duration = Duration::from_secs(30);

/// A watch that ends sooner than this, even without an error, is not opened again without a pause.
const SHORT: Duration = MAX_PAUSE;

/// The longest silence within a streamed list. The API server sends it from memory, and the bookmark at its end within two seconds.
/// Some proxies drop bookmarks.
pub(crate) const STREAM_SILENCE: Duration = Duration::from_secs(10);

/// How long the API server may take to begin its answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// How long a watch that has had a bookmark may be silent. They come each minute: two are missing then, and a server that was
/// frozen while its connections are kept, by what is in front of it, is not waited for until [`READ_TIMEOUT`]. Who leads does
/// not notice by its Lease, which may go to another server. (A server need not send any.)
const SILENCE: Duration = Duration::from_secs(150);

/// Objects in one page, where the API server cannot stream a list.
const PAGE: u32 = 500;

/// So many of the objects are named that are left out at a time.
const NAMED: usize = 1000;

/// Far longer than it takes to see to one event, or to the objects of one page.
const HANDLING: Duration = Duration::from_secs(10);

/// Watches the objects of one scope into `store`, for ever, and has `heartbeat` show that it does, and `status` how it
/// goes.
///
/// `restarts` counts how often the watch is opened again because something is wrong. `changed` gets every change,
/// on this task: it must not block.
pub(crate) async fn watch<V: Cached>(
    shared: Arc<ClientContext>,
    status: Status,
    store: Arc<Store<V>>,
    restarts: BoundCounter<u64>,
    heartbeat: Heartbeat,
    changed: impl Fn(Change<V>) + Send,
) {
    let namespace = status.namespace();
    let client = shared.client.clone();
    let url = Object::<V>::url_path(&(), namespace.as_deref());
    let scope = status.scope();
    let mut outage = Outage::new(shared, V::KIND, namespace, status);
    let mut watch = Watch {
        client,
        resource: Request::new(url),
        store,
        scope,
        heartbeat,
        changed,
        version: None,
        heard: Instant::now(),
        pages: false,
        is_endless: false,
        left_out: HashSet::new(),
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
            // The pool may have held another connection that was cut.
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
                    // The resourceVersion is too old (410), or none that the API server knows (400, 422), or the resource is
                    // gone (404), and with it, when it comes back, the objects.
                    watch.version = None;
                }
                outage.say(&error);
                restarts.add(1);
                let asked = retry_after(&error).unwrap_or_default();
                outage.pause(&watch.heartbeat, asked).await;
            }
        }
    }
}

/// What an API server says to a streamed list that is from before them, or that has just learnt of the
/// resource (429); and what is no event at all, about which a list in pages says more: kube looks at the
/// HTTP status of that.
fn means_no_stream(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 400 | 422 | 429),
        Error::SerdeError(_) => true,
        _ => false,
    }
}

/// Whether the connection was closed or reset, as opposed to a timeout.
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

struct Watch<V, F> {
    client: Client,
    resource: Request,
    store: Arc<Store<V>>,
    scope: usize,
    heartbeat: Heartbeat,
    changed: F,
    /// Where the watch goes on; `None`: everything has to be listed first.
    version: Option<String>,
    /// The time of the last change or of the opening.
    heard: Instant,
    /// Whether the next list comes in pages rather than as a watch (KEP-3157), which takes no memory for
    /// whole pages. As in client-go, that is so after a streamed list that came to nothing.
    pages: bool,
    /// Whether a streamed list had no end. All later lists come in pages.
    is_endless: bool,
    /// What its kind's code panics at, as far as it was named.
    left_out: HashSet<Key>,
}

impl<V: Cached, F: Fn(Change<V>)> Watch<V, F> {
    /// One watch, from its opening to its end, with a list before it where one is needed.
    async fn follow(&mut self, outage: &mut Outage) -> kube::Result<()> {
        outage.begin_anew_after_quiet();
        if self.version.is_none() {
            self.store.list_begins(self.scope);
            if self.pages {
                self.list(outage).await?;
            }
        }
        let params = WatchParams {
            send_initial_events: self.version.is_none(),
            ..WatchParams::default()
        };
        // Without a version, the API server begins with what is true now.
        let version = self.version.as_deref().unwrap_or_default();
        let request = self.resource.watch(&params, version);
        let request = request.map_err(Error::BuildRequest)?;
        let opening = self.client.request_events::<Incoming<V>>(request);
        let mut events = pin!(outage.opened(in_time(opening, &self.heartbeat).await)?);
        self.heard = Instant::now();
        // The time of the last object of a streamed list. Changes, which may follow, do not count.
        let mut listed = self.heard;
        // What is wrong is reported at once. A watch that goes on where it was may have nothing to report for long.
        // Not for so long that the scope, which is served again, is given up.
        let quiet = SHORT.min(outage.status.grace() / 3);
        let (mut first, mut has_bookmarks) = (true, false);
        loop {
            // One that is silent for longer is ended by the client.
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
                    self.delete(&key, version);
                }
                WatchEvent::Bookmark(bookmark) => {
                    if bookmark
                        .metadata
                        .annotations
                        .contains_key("k8s.io/initial-events-end")
                    {
                        self.listed(bookmark.metadata.resource_version)?;
                        outage.status.synced();
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

    /// A list in pages, each of which begins behind the one before in the order of etcd's keys. One that does not come further,
    /// or only by a few objects at a time, may have no end, and is read ever more slowly.
    async fn list(&mut self, outage: &mut Outage) -> kube::Result<()> {
        let mut params = ListParams::default().limit(PAGE);
        let mut last = None;
        loop {
            let request = self.resource.list(&params).map_err(Error::BuildRequest)?;
            let answer = self.client.request::<ObjectList<Incoming<V>>>(request);
            let page = outage.opened(in_time(answer, &self.heartbeat).await)?;
            self.heartbeat.beat("handling a page", HANDLING);
            let end = page
                .items
                .last()
                .map(|object| object.key_and_version().0.to_string());
            let gets_on = page.items.len() >= PAGE as usize && end > last;
            last = end;
            for object in page.items {
                self.apply(object);
            }
            outage.status.hears(None);
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                self.listed(page.metadata.resource_version.unwrap_or_default())?;
                outage.status.hears(self.version.as_deref());
                outage.status.synced();
                return Ok(());
            }
            if next == params.continue_token {
                return Err(Error::Service(
                    "a page of the list names itself as the next".into(),
                ));
            }
            params.continue_token = next;
            if !gets_on {
                outage.pause(&self.heartbeat, Duration::ZERO).await;
            }
        }
    }

    /// All that there is has come, as it was at this version.
    fn listed(&mut self, version: String) -> kube::Result<()> {
        let number = number(&version)?;
        self.version = Some(version);
        self.pages = self.is_endless;
        self.store
            .list_ends(self.scope, number)
            .into_iter()
            .for_each(&self.changed);
        Ok(())
    }

    /// Whether a watch that was opened at that time had no change in the last seconds.
    fn was_idle(&self, opened: Instant) -> bool {
        self.version.is_some() && opened.elapsed() >= SHORT && self.heard.elapsed() >= SHORT
    }

    /// While a list is being streamed, its objects come in no order of versions. And from what is no version no watch goes on.
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
        let applied = read.and_then(|object| {
            let apply = || self.store.apply(self.scope, object);
            catch(&V::KIND, "PartialEq::eq", apply)
        });
        match applied {
            Ok(change) => {
                self.left_out.remove(&key);
                change.into_iter().for_each(&self.changed);
            }
            Err(panicked) => self.leave_out(key, version, panicked),
        }
    }

    fn delete(&self, key: &Key, version: u64) {
        let change = self.store.delete(self.scope, key, version);
        change.into_iter().for_each(&self.changed);
    }

    /// Row Q6: what cannot be read is as if it were not there, as it would be to a process that begins with it.
    fn leave_out(&mut self, key: Key, version: u64, panicked: Panicked) {
        self.delete(&key, version);
        if self.left_out.len() < NAMED && !self.left_out.contains(&key) {
            error!(object = %key, "{panicked}; leaving the object out until it changes");
            self.left_out.insert(key);
        }
    }
}

/// The number of a `resourceVersion`. From 0, or from none, a watch would begin with what there is, and not tell what is gone.
fn number(version: &str) -> kube::Result<u64> {
    let number = version.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        Error::Service(format!("the list is at the version {version:?}, which is none").into())
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

/// What is going wrong, said once and tried again ever more slowly.
struct Outage {
    shared: Arc<ClientContext>,
    kind: Kind,
    namespace: Option<String>,
    status: Status,
    /// Whether the status has a failure, and nothing else since.
    failing: bool,
    pauses: ExponentialBackoff,
    /// What was said of it already.
    causes: Causes,
}

impl Outage {
    fn new(
        shared: Arc<ClientContext>,
        kind: Kind,
        namespace: Option<String>,
        status: Status,
    ) -> Self {
        Self {
            shared,
            kind,
            namespace,
            status,
            failing: false,
            pauses: pauses(),
            causes: Causes::new(QUIET),
        }
    }

    fn say(&mut self, error: &Error) {
        let cause = explain(
            error,
            self.shared.app,
            &self.kind,
            self.namespace.as_deref(),
        );
        let code = match error {
            Error::Api(status) => Some(status.code),
            _ => None,
        };
        self.status.fails(Reason::of(code), cause.clone());
        self.failing = true;
        self.begin_anew_after_quiet();
        if let Some(lasting) = self.causes.is_due(&cause) {
            warn!(
                resource = self.kind.plural,
                namespace = self.namespace,
                "{cause}{lasting}"
            );
        }
    }

    /// Passes the answer on. A request may take long to fail, and that time is part of the outage.
    fn opened<T>(&mut self, answer: kube::Result<T>) -> kube::Result<T> {
        if answer.is_err() {
            self.causes.touch();
        }
        answer
    }

    /// Logged once: the process requests no other streamed list.
    fn has_no_end(&self) {
        let (place, plural) = (Place(self.namespace.as_deref()), self.kind.plural);
        warn!(
            "the list of {plural} in {place} comes as a stream that does not end, as behind a proxy that lets no bookmarks through: \
             listing in pages from now on"
        );
    }

    fn ends_at_once(&mut self) {
        let place = Place(self.namespace.as_deref());
        let text = format!("the watch of {} in {place} ends at once", self.kind.plural);
        self.status.fails(Reason::Failing, text);
        self.failing = true;
    }

    /// Waits for its own time, or for as long as the API server has `asked` for.
    async fn pause(&mut self, heartbeat: &Heartbeat, asked: Duration) {
        self.begin_anew_after_quiet();
        // The crate's own draw would count for a nanosecond even where it is set not to spread.
        let pause = self.pauses.current_interval;
        self.pauses.next_backoff();
        let pause = self.shared.host.spread(pause, SPREAD).max(asked);
        if !asked.is_zero() {
            self.status.waits(asked);
        }
        heartbeat.beat("pausing", pause.max(MAX_PAUSE.mul_f64(1.0 + SPREAD)));
        sleep(pause).await;
        self.causes.touch();
    }

    /// Something came. The pauses and the cause stay for a while: a list that succeeds every time before a
    /// watch that fails every time is one outage.
    fn is_over(&mut self) {
        if std::mem::take(&mut self.failing) {
            self.status.works();
        }
        if self.causes.is_over() {
            info!(
                resource = self.kind.plural,
                namespace = self.namespace,
                "watch re-established"
            );
        }
    }

    fn begin_anew_after_quiet(&mut self) {
        if self.causes.is_quiet() {
            self.causes.clear();
            self.pauses.reset();
        }
    }
}

fn pauses() -> ExponentialBackoff {
    backoff::ExponentialBackoffBuilder::new()
        .with_initial_interval(Duration::from_millis(100))
        .with_multiplier(2.0)
        .with_randomization_factor(0.0)
        .with_max_interval(MAX_PAUSE)
        .with_max_elapsed_time(None)
        .build()
}

fn explain(error: &Error, app: &App, kind: &Kind, namespace: Option<&str>) -> String {
    let (place, plural) = (Place(namespace), kind.plural);
    let status = match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    };
    match status {
        Some(404) if kind.group == app.group => format!(
            "the CustomResourceDefinition {plural}.{} is not installed: run `kubectl apply -k deploy` or \
             `{} crd | kubectl apply -f -`; waiting for it",
            kind.group, app.name
        ),
        Some(403) => format!(
            "not allowed to list and watch {plural} in {place}: apply the ClusterRole in deploy/base and its binding; \
             trying again"
        ),
        Some(401) => "the API server does not accept the credentials: check the kubeconfig or the service account's \
                      token; trying again"
            .to_owned(),
        // What kube makes of anything that is neither an event nor an error.
        Some(0) => format!("cannot watch {plural} in {place}: what came is no watch event; trying again"),
        Some(410) => format!("the watch of {plural} fell too far behind: listing again"),
        Some(code) => format!(
            "cannot watch {plural} in {place}: the API server answers {code} ({}); trying again",
            root_cause(error)
        ),
        _ => format!("cannot watch {plural} in {place}: {}; trying again", root_cause(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::table;

    /// What counts as a restart is what is said of the metric.
    #[test]
    fn the_metric_says_what_is_short() {
        let said = format!("an end within {} s of its opening", SHORT.as_secs());
        assert!(table::WATCH_RESTARTS.help.contains(&said));
    }
}
