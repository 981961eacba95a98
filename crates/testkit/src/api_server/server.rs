//! One API server, which responds from its caches.

use std::time::Duration;

use k8s_openapi::jiff::{Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use super::{
    Key, Kind, Store, Verb, Watch,
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
}

impl Server {
    pub fn new(store: &Store) -> Self {
        Self {
            watch_list: true,
            page: usize::MAX,
            cold: false,
            patience: Duration::from_secs(3),
            lag: Lag::By(Duration::ZERO),
            seen: store.version(),
            forgotten: store.version(),
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

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
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
        let (code, body) = match self.answer(store, now, call) {
            Ok(Answered::Watch(watch)) => return Ok(Answer::Watch(watch)),
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
        Ok(Answer::Whole {
            code,
            headers,
            body,
        })
    }

    fn answer(&self, store: &mut Store, now: Now, call: &Call<'_>) -> Result<Answered> {
        let request = Request::of(call, store.custom_kinds())?;
        let (kind, namespace, name, part) = match &request.target {
            Target::Review(review) if call.method == http::Method::POST => {
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
        if part != Part::Whole && !matches!(verb, Verb::Get | Verb::Update | Verb::Patch) {
            return Err(Refusal::method_not_allowed());
        }
        store.authorize(&request, verb, (kind, part), (namespace, name))?;
        let key = Key::new(
            kind,
            namespace.unwrap_or_default(),
            name.unwrap_or_default(),
        );
        if verb == Verb::Create && kind.is_namespaced() && namespace.is_none() {
            return Err(Refusal::method_not_allowed());
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
                    .map(Answered::Watch);
            }
            Verb::Create => (201, self.create(store, now, &request, &key)?),
            Verb::Update | Verb::Patch => self.update(store, now, &request, &key, part)?,
            Verb::Delete => (200, self.delete(store, now, &request, &key)?),
            Verb::DeleteCollection => return Err(Unknown("deletecollection".to_owned()).into()),
        };
        if request.metadata_only && object["kind"] != "Status" {
            let metadata = &object["metadata"];
            return Ok(Answered::Whole(
                code,
                json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                }),
            ));
        }
        Ok(Answered::Whole(code, object))
    }

    /// Returns whether the kind is served. For a custom kind, the server must have seen the CRD.
    fn serves(&self, store: &Store, kind: Kind) -> bool {
        !kind.is_custom() || self.definition(store, kind).is_some()
    }
}

enum Answered {
    Whole(u16, Value),
    Watch(Watch),
}
