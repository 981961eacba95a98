//! Watches and streamed lists.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    Kind, Now, Revision, Server, Store,
    list::partial,
    request::{Request, Unknown},
    selector::Selector,
    status::{Cause, Refusal, Result},
};

/// Interval between two bookmarks.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// Time from the last bookmark to the end of the watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Duration of a watch without `timeoutSeconds`: the minimum of the API server.
const UNSAID: Duration = Duration::from_mins(30);

/// An open watch.
pub struct Watch {
    kind: Kind,
    /// Version of the API in the request.
    version: String,
    namespace: Option<String>,
    selector: Selector,
    /// UID of the CRD that defines the kind.
    definition: Option<String>,
    /// Whether the events contain only metadata.
    metadata_only: bool,
    state: State,
    /// All events up to this version have been sent.
    position: u64,
    /// Newest version of the store and version of the caches at the last poll.
    polled: Option<(u64, u64)>,
    /// Last version of the kind, for bookmarks.
    known: u64,
    /// Time of the next bookmark, if they are requested.
    bookmark: Option<Duration>,
    end: Duration,
}

/// A line of a watch: `{"type":…,"object":…}`.
pub struct Line {
    pub event: &'static str,
    /// Shared with the store if this watch shows it as it is stored.
    pub object: Arc<Value>,
}

enum State {
    /// A streamed list that waits until the caches have this version, at most until this time.
    Waits(u64, Duration),
    /// The existing objects are sent first. After a streamed list, a bookmark marks its end.
    Lists {
        streamed: bool,
    },
    Goes,
    /// Fails with this at the next poll.
    Fails(Box<Value>),
    Over,
}

impl Server {
    pub(super) fn watch(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        (kind, namespace): (Kind, Option<&str>),
    ) -> Result<Watch> {
        if let super::request::Target::Stored { name: Some(_), .. } = &request.target {
            return Err(Unknown("a watch of one object by its path".to_owned()).into());
        }
        let selector = Selector::of(request, kind)?;
        let streamed = self.is_streamed(request)?;
        let text = request.text("resourceVersion");
        let asked: u64 = match text {
            "" => 0,
            text => text.parse().map_err(|_| invalid_version(text))?,
        };
        if self.is_cold(store, kind, now) {
            return Err(Refusal::too_many_requests("storage is (re)initializing", 1));
        }
        let seen = self.seen(store, now);
        let (position, state) = match (streamed, text) {
            (true, "") => {
                let newest = store.version();
                (
                    newest,
                    State::Waits(newest, now.since_start + self.patience),
                )
            }
            (true, _) => (asked, State::Waits(asked, now.since_start + self.patience)),
            (false, "" | "0") => (seen, State::Lists { streamed: false }),
            _ if asked < self.forgotten(store, kind) => {
                let last = self.forgotten(store, kind);
                let words = format!("too old resource version: {asked} ({last})");
                (asked, failure(Refusal::expired(&words)))
            }
            _ => (asked, State::Goes),
        };
        let end = match request.text("timeoutSeconds") {
            "" | "0" => UNSAID,
            seconds => Duration::from_secs(
                seconds
                    .parse()
                    .map_err(|_| Unknown(format!("timeoutSeconds={seconds}")))?,
            ),
        };
        let end = now.since_start + end;
        let bookmarks = request.flag("allowWatchBookmarks")?;
        Ok(Watch {
            kind,
            version: request.version.clone(),
            namespace: namespace.map(ToOwned::to_owned),
            selector,
            definition: Self::definition_uid(store, kind, seen),
            metadata_only: request.metadata_only,
            state,
            position,
            polled: None,
            known: position,
            bookmark: bookmarks.then(|| next_bookmark(now.since_start, end)),
            end,
        })
    }

    /// Returns whether the existing objects are sent first, followed by a bookmark.
    fn is_streamed(&self, request: &Request<'_>) -> Result<bool> {
        let forbidden = |field: &str, why: &str| {
            let cause = Cause {
                field: field.to_owned(),
                reason: "FieldValueForbidden",
                message: format!("Forbidden: {why}"),
            };
            Refusal::invalid_of("ListOptions", "meta.k8s.io", "", &[cause])
        };
        if !request.query.contains_key("sendInitialEvents") {
            return match request.text("resourceVersionMatch") {
                "" => Ok(false),
                _ => Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )),
            };
        }
        if !self.watch_list {
            return Err(forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
            ));
        }
        if !request.flag("sendInitialEvents")?
            || request.text("resourceVersionMatch") != "NotOlderThan"
            || !request.flag("allowWatchBookmarks")?
        {
            return Err(Unknown("such a streamed list".to_owned()).into());
        }
        Ok(true)
    }
}

impl Watch {
    /// Returns whether the watch has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Returns when the watch next sends a bookmark, fails or ends, if nothing is written and the caches do not lag.
    pub fn due(&self) -> Duration {
        match self.state {
            State::Goes => self.bookmark.unwrap_or(Duration::MAX).min(self.end),
            State::Waits(_, until) => until,
            State::Lists { .. } | State::Fails(_) | State::Over => Duration::ZERO,
        }
    }

    /// Returns the lines up to `now`.
    pub fn poll(&mut self, store: &Store, server: &Server, now: Now) -> Vec<Line> {
        let mut lines = Vec::new();
        let seen = server.seen(store, now);
        // Events and the CRD depend only on these versions.
        let versions = Some((store.version(), seen));
        let is_bookmark_due = self.bookmark.is_some_and(|due| now.since_start >= due);
        let is_same = matches!(self.state, State::Goes) && self.polled == versions;
        if is_same && !is_bookmark_due && now.since_start < self.end {
            return lines;
        }
        self.polled = versions;
        if let State::Waits(version, until) = self.state {
            if seen >= version {
                self.state = State::Lists { streamed: true };
            } else if now.since_start >= until {
                self.state = failure(Refusal::too_large(version, seen));
            } else {
                return lines;
            }
        }
        match std::mem::replace(&mut self.state, State::Goes) {
            State::Over => {
                self.state = State::Over;
                return lines;
            }
            State::Fails(status) => {
                let object = Arc::new(*status);
                lines.push(Line {
                    event: "ERROR",
                    object,
                });
                self.state = State::Over;
                return lines;
            }
            State::Lists { streamed } => {
                self.position = seen;
                self.known = seen;
                let there = store.list_at(self.kind, self.namespace.as_deref(), seen);
                let there = there.filter(|(key, object)| self.selector.selects(key, object));
                lines.extend(there.map(|(_, object)| Line {
                    event: "ADDED",
                    object: self.shown(store, server, object),
                }));
                if streamed {
                    lines.push(self.bookmark(true));
                }
            }
            State::Goes | State::Waits(..) => {}
        }
        for revision in store.since(self.position) {
            if revision.version > seen {
                break;
            }
            if revision.key.kind != self.kind.stored() {
                continue;
            }
            self.known = revision.version;
            if let Some((event, object)) = self.event(revision) {
                let object = self.shown(store, server, &object);
                lines.push(Line { event, object });
            }
        }
        self.position = self.position.max(seen);
        if is_bookmark_due {
            lines.push(self.bookmark(false));
            self.bookmark = Some(next_bookmark(now.since_start, self.end));
        }
        if now.since_start >= self.end
            || Server::definition_uid(store, self.kind, seen) != self.definition
        {
            self.state = State::Over;
        }
        lines
    }

    /// Returns the event of a change, if this watch selects the object before or after it. An object that the change removes from
    /// the selection is deleted for this watch. An object that the change adds is new.
    fn event(&self, revision: &Revision) -> Option<(&'static str, Arc<Value>)> {
        let Revision {
            key, before, after, ..
        } = revision;
        let mut namespace = self.namespace.iter();
        if namespace.any(|namespace| *namespace != key.namespace) {
            return None;
        }
        let selected = |object: &&Arc<Value>| self.selector.selects(key, object);
        let [before, after] = [before, after].map(|it| it.as_ref().filter(selected));
        match (before, after) {
            (None, None) => None,
            (None, Some(after)) => Some(("ADDED", Arc::clone(after))),
            (Some(_), Some(after)) => Some(("MODIFIED", Arc::clone(after))),
            // A deleted object has its last content, and the version of its deletion.
            (Some(before), None) => {
                let mut last = Value::clone(before);
                last["metadata"]["resourceVersion"] = revision.version.to_string().into();
                Some(("DELETED", Arc::new(last)))
            }
        }
    }

    /// Returns an object in the form of the watch.
    fn shown(&self, store: &Store, server: &Server, object: &Arc<Value>) -> Arc<Value> {
        if self.metadata_only {
            return Arc::new(partial(object));
        }
        if !self.kind.is_converted() {
            return Arc::clone(object);
        }
        match server.present_in(store, &self.version, self.kind, object) {
            Ok(Cow::Owned(shown)) => Arc::new(shown),
            Ok(Cow::Borrowed(_)) | Err(_) => Arc::clone(object),
        }
    }

    fn bookmark(&self, ends_list: bool) -> Line {
        let mut metadata = json!({ "resourceVersion": self.known.to_string() });
        if ends_list {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let api_version = if self.kind.is_custom() {
            format!("{}/{}", self.kind.info().group, self.version)
        } else {
            self.kind.api_version()
        };
        let object = json!({
            "kind": self.kind.info().kind, "apiVersion": api_version, "metadata": metadata,
        });
        let object = if self.metadata_only {
            partial(&object)
        } else {
            object
        };
        Line {
            event: "BOOKMARK",
            object: Arc::new(object),
        }
    }
}

fn next_bookmark(now: Duration, end: Duration) -> Duration {
    let last = end.saturating_sub(LAST_BOOKMARK);
    let next = (now + BOOKMARKS).min(last);
    // None after the last.
    if next <= now { Duration::MAX } else { next }
}

fn invalid_version(text: &str) -> Refusal {
    let words = format!(
        "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
    );
    Refusal::new(500, "", &words, None)
}

fn failure(refusal: Refusal) -> State {
    match refusal {
        Refusal::Status(status) => State::Fails(status),
        Refusal::Text(..) | Refusal::Unknown(_) => State::Over,
    }
}
