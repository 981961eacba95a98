//! One API server, which responds from its caches.

use std::{borrow::Cow, cell::RefCell, collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use super::{
    Key, Kind, Release, Store, Verb, Watch,
    list::partial,
    request::{Call, Part, Request, Target, Unknown},
    status::{Refusal, Result},
};

/// Current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic time since the world began.
    pub since_start: Duration,
    /// Clock of the API server, for timestamps in objects.
    pub wall: Timestamp,
}

impl Now {
    /// Formats the time like `creationTimestamp`.
    pub fn seconds(self) -> String {
        let wall = self.wall.to_zoned(TimeZone::UTC);
        wall.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// Lag of an API server's caches behind the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// Each version arrives after this delay.
    By(Duration),
    /// No version arrives.
    Stuck,
}

/// A response.
pub enum Answer {
    Whole {
        code: u16,
        headers: Vec<(&'static str, String)>,
        /// A string is sent as it is, any other value as JSON.
        body: Value,
    },
    /// 200, and lines as they come.
    Watch(Watch),
}

/// A kube-apiserver. Its caches start with the current state. To kill it, drop it and its watches.
pub struct Server {
    /// Whether lists can be streamed (feature `WatchList`).
    pub watch_list: bool,
    /// Largest number of objects in a page.
    pub page: usize,
    /// Whether the caches are being filled: lists work, watches are rejected.
    pub cold: bool,
    /// Longest time that a streamed list waits for the caches.
    pub patience: Duration,
    lag: Lag,
    /// Version of the caches at the last check.
    seen: u64,
    /// Versions up to this version are no longer in the caches.
    forgotten: u64,
    /// First requests for the custom kinds, by the UID of the CRD: the version and the time. The cache of the kind begins there.
    first: BTreeMap<String, (u64, Duration)>,
    /// Warnings for the client of the current call.
    warnings: RefCell<Vec<String>>,
}

/// Time from the first request for a custom kind until its cache is filled.
const FILLING: Duration = Duration::from_millis(100);

impl Server {
    pub fn new(store: &Store) -> Self {
        let version = store.version();
        let kinds = store.custom_kinds().iter();
        let known = kinds.filter_map(|kind| Self::definition_uid(store, *kind, version));
        Self {
            first: known.map(|uid| (uid, (version, Duration::ZERO))).collect(),
            watch_list: store.release >= Release::V1_34,
            page: usize::MAX,
            cold: false,
            patience: Duration::from_secs(3),
            lag: Lag::By(Duration::ZERO),
            seen: version,
            forgotten: version,
            warnings: RefCell::default(),
        }
    }

    /// Sets the lag of the caches.
    pub fn set_lag(&mut self, store: &Store, now: Now, lag: Lag) {
        self.seen = self.seen(store, now);
        self.lag = lag;
    }

    /// Removes the versions up to this version from the caches. A watch from there must list again.
    pub fn forget(&mut self, to: u64) {
        self.forgotten = self.forgotten.max(to);
    }

    /// Returns the last version that is not in the cache of this kind.
    pub(super) fn forgotten(&self, store: &Store, kind: Kind) -> u64 {
        let first = self.first_request(store, kind);
        first.map_or(self.forgotten, |(version, _)| self.forgotten.max(version))
    }

    /// Returns whether the cache of this kind is being filled.
    pub(super) fn is_cold(&self, store: &Store, kind: Kind, now: Now) -> bool {
        let first = self.first_request(store, kind);
        self.cold || first.is_some_and(|(_, at)| !at.is_zero() && now.since_start < at + FILLING)
    }

    fn first_request(&self, store: &Store, kind: Kind) -> Option<(u64, Duration)> {
        let uid = Self::definition_uid(store, kind, self.seen)?;
        self.first.get(&uid).copied()
    }

    /// Returns the version of the caches at the last check, which is the beginning of a call.
    pub(super) fn seen_last(&self) -> u64 {
        self.seen
    }

    /// Returns the version of the caches.
    pub fn seen(&self, store: &Store, now: Now) -> u64 {
        let Lag::By(lag) = self.lag else {
            return self.seen;
        };
        if lag.is_zero() {
            return self.seen.max(store.version());
        }
        let news = store.since(self.seen);
        let come = news.partition_point(|one| one.at.since_start + lag <= now.since_start);
        let last = come.checked_sub(1).map(|last| news[last].version);
        last.unwrap_or(self.seen)
    }

    /// Carries out a call completely at this instant.
    ///
    /// # Errors
    /// The response of the API server is not known.
    pub fn serve(
        &mut self,
        store: &mut Store,
        now: Now,
        call: &Call<'_>,
    ) -> std::result::Result<Answer, Unknown> {
        self.seen = self.seen(store, now);
        self.warnings.take();
        let (code, body) = match self.answer(store, now, call) {
            Ok(Answered::Watch(watch)) => return Ok(Answer::Watch(*watch)),
            Ok(Answered::Whole(code, body)) => (code, body),
            Err(Refusal::Status(status)) => {
                let code = status["code"]
                    .as_u64()
                    .and_then(|code| code.try_into().ok());
                (code.unwrap_or(500), *status)
            }
            Err(Refusal::Text(code, text)) => (code, Value::String(text)),
            Err(Refusal::Unknown(unknown)) => return Err(unknown),
        };
        let kind = match body {
            Value::String(_) => "text/plain; charset=utf-8",
            _ => "application/json",
        };
        let mut headers = vec![("Content-Type", kind.to_owned())];
        if let Some(seconds) = body["details"]["retryAfterSeconds"].as_u64() {
            headers.push(("Retry-After", seconds.to_string()));
        }
        for warning in self.warnings.take() {
            let warning = warning.replace('\\', "\\\\").replace('"', "\\\"");
            headers.push(("Warning", format!("299 - \"{warning}\"")));
        }
        Ok(Answer::Whole {
            code,
            headers,
            body,
        })
    }

    /// Adds warnings for the client, each once.
    pub(super) fn warn(&self, warnings: impl IntoIterator<Item = String>) {
        let mut all = self.warnings.borrow_mut();
        for warning in warnings {
            if !all.contains(&warning) {
                all.push(warning);
            }
        }
    }

    /// Records the first request for a custom kind.
    fn note_first(&mut self, store: &Store, now: Now, kind: Kind) {
        if let Some(uid) = Self::definition_uid(store, kind, self.seen) {
            let first = (store.version(), now.since_start);
            self.first.entry(uid).or_insert(first);
        }
    }

    fn answer(&mut self, store: &mut Store, now: Now, call: &Call<'_>) -> Result<Answered> {
        let request = Request::of(call, store.custom_kinds())?;
        let (kind, namespace, name, part) = match &request.target {
            Target::Review(review) if call.method == http::Method::POST => {
                Self::check_body_type(&request)?;
                return Ok(Answered::Whole(201, store.review(&request, review)?));
            }
            Target::Review(review) => {
                return Err(Unknown(format!("{} {review}", call.method)).into());
            }
            Target::Stored {
                kind,
                namespace,
                name,
                part,
            } => (*kind, namespace.as_deref(), name.as_deref(), *part),
        };
        if !self.serves(store, kind) {
            return Err(Refusal::not_served());
        }
        let verb = request.verb()?;
        self.check_path(store, &request, verb)?;
        self.note_first(store, now, kind);
        if part != Part::Whole && !matches!(verb, Verb::Get | Verb::Update | Verb::Patch) {
            return Err(Refusal::method_not_allowed());
        }
        store.authorize(&request, verb, (kind, part), (namespace, name))?;
        let is_read = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
        let is_modelled = match kind {
            Kind::StorageClass => is_read && request.metadata_only,
            Kind::CustomResourceDefinition => part == Part::Whole || verb == Verb::Get,
            _ => true,
        };
        if !is_modelled {
            let (verb, kind) = (verb.name(), kind.info().kind);
            return Err(Unknown(format!("to {verb} a whole {kind}")).into());
        }
        let key = Key::new(
            kind,
            namespace.unwrap_or_default(),
            name.unwrap_or_default(),
        );
        if verb == Verb::Create && kind.is_namespaced() && namespace.is_none() {
            return Err(Refusal::method_not_allowed());
        }
        match verb {
            Verb::Create | Verb::Patch => {
                Self::check_media_type(&request, kind)?;
                request.check_manager()?;
            }
            // In an update the parameters are checked first.
            Verb::Update => {
                request.check_manager()?;
                Self::check_media_type(&request, kind)?;
            }
            _ => {}
        }
        let (code, object) = match verb {
            Verb::Get => (200, self.get(store, &request, &key, part)?),
            Verb::List => {
                return Ok(Answered::Whole(
                    200,
                    self.list(store, &request, (kind, namespace))?,
                ));
            }
            Verb::Watch => {
                return self
                    .watch(store, now, &request, (kind, namespace))
                    .map(|watch| Answered::Watch(Box::new(watch)));
            }
            Verb::Create => (201, self.create(store, now, &request, &key)?),
            Verb::Update | Verb::Patch => self.update(store, now, &request, &key, part)?,
            Verb::Delete => (200, self.delete(store, now, &request, &key)?),
            Verb::DeleteCollection => {
                return Ok(Answered::Whole(
                    200,
                    self.delete_collection(store, now, &request, (kind, namespace))?,
                ));
            }
        };
        let is_object = part != Part::Scale && object["kind"] != "Status";
        let presented = (kind.is_converted() && is_object)
            .then(|| self.present(store, &request, kind, &object))
            .transpose()?;
        let object = match presented {
            Some(Cow::Owned(other)) => other,
            Some(Cow::Borrowed(_)) | None => object,
        };
        if request.metadata_only && object["kind"] != "Status" {
            return Ok(Answered::Whole(code, partial(&object)));
        }
        Ok(Answered::Whole(code, object))
    }
}

enum Answered {
    Whole(u16, Value),
    Watch(Box<Watch>),
}
