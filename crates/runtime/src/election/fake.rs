//! API server for unit tests, with one Lease and optionally its fencing record. It implements merge patches with an optional
//! resourceVersion, conflicts, no-op writes and watches. A [`Mood`] makes it fail.

use crate::config::app::tests::HOLDER_KEY;
use futures::{Stream, StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{io, sync::Arc};
use tokio::sync::watch;
use tower::{BoxError, service_fn, util::BoxService};

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
pub(crate) type Service = BoxService<Request<Body>, Answer, BoxError>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Serves,
    Fails(u16),
    Hangs,
    /// Status 200 with a body that is not JSON.
    Garbage,
    /// The connection breaks.
    Resets,
    /// A watch sends the current Lease and ends.
    Ends,
    /// A watch reports that the Lease was just released, and ends. Another API server may lag behind like this.
    EndsStale,
    /// Like [`EndsStale`](Self::EndsStale), but the watch stays open.
    StaysStale,
}

/// Maximum number of requests that get a response between two calls of [`FakeApi::requests`].
const LIMIT: usize = 10_000;

/// Verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Get,
    Watch,
    Create,
    Patch,
}

pub(crate) struct Seen {
    pub method: Method,
    pub uri: String,
    pub body: Value,
}

#[derive(Clone)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

struct State {
    mood: Mood,
    /// Moods of single verbs. They take precedence over `mood`.
    moods: Vec<(Verb, Mood)>,
    lease: Option<Value>,
    record: Option<Value>,
    /// Status of the response to each request for the record; 0 serves it.
    refuse_records: u16,
    changed: watch::Sender<Option<Value>>,
    version: u64,
    seen: Vec<Seen>,
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            mood: Mood::Serves,
            moods: Vec::new(),
            lease: None,
            record: None,
            refuse_records: 0,
            changed: watch::Sender::new(None),
            version: 1,
            seen: Vec::new(),
        })))
    }

    /// Returns a server whose Lease was released, so that a new replica need not wait.
    pub(crate) fn released() -> Self {
        let api = Self::new();
        api.put(&json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0,
            "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z",
        }));
        api
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.0.lock().mood = mood;
    }

    /// Sets the mood for all requests of this verb.
    pub(crate) fn mood_of(&self, verb: Verb, mood: Mood) {
        self.0.lock().moods.insert(0, (verb, mood));
    }

    /// Writes the Lease's spec as another client.
    pub(crate) fn put(&self, spec: &Value) {
        let mut state = self.0.lock();
        let uid = state.lease.as_ref().map_or_else(
            || json!(format!("u{}", state.version)),
            |lease| lease["metadata"]["uid"].clone(),
        );
        let lease = json!({"metadata": {"name": "l", "uid": uid}, "spec": spec});
        state.store(lease);
    }

    pub(crate) fn delete(&self) {
        let mut state = self.0.lock();
        state.version += 1;
        state.lease = None;
        state.changed.send_replace(None);
    }

    /// Writes the fencing record as another client, or deletes it.
    pub(crate) fn put_record(&self, annotations: Option<Value>) {
        self.put_record_named("l-fencing", annotations);
    }

    /// Writes the only fencing record, with this name, as another client, or deletes it.
    pub(crate) fn put_record_named(&self, name: &str, annotations: Option<Value>) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        state.record = annotations.map(|annotations| {
            json!({"metadata": {"name": name, "resourceVersion": version, "annotations": annotations}})
        });
    }

    /// Rejects each request for the fencing record with this status; 0 serves it.
    pub(crate) fn refuse_records(&self, code: u16) {
        self.0.lock().refuse_records = code;
    }

    /// Returns the leader that the fencing record names.
    pub(crate) fn recorded(&self) -> String {
        let state = self.0.lock();
        let metadata = state.record.as_ref().map(|record| &record["metadata"]);
        let holder = metadata.and_then(|m| m["annotations"][HOLDER_KEY].as_str());
        holder.unwrap_or_default().to_owned()
    }

    pub(crate) fn spec(&self) -> Value {
        self.0
            .lock()
            .lease
            .as_ref()
            .map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub(crate) fn holder(&self) -> String {
        self.spec()["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().seen)
    }

    /// Returns the server as a service, below the layers of a client.
    pub(crate) fn service(&self) -> Service {
        let api = self.clone();
        BoxService::new(service_fn(move |request| {
            let api = api.clone();
            async move { api.serve(request).await }
        }))
    }

    async fn serve(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let watches = parts
            .uri
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        let mood = self.0.lock().mood_for(&parts.method, watches);
        let answer = match mood {
            Mood::Serves if watches => streaming(self.0.lock().watch()),
            Mood::Ends => streaming(self.0.lock().watch().take(1)),
            Mood::EndsStale => streaming(stream::iter([self.0.lock().released()])),
            Mood::StaysStale => {
                let stale = stream::iter([self.0.lock().released()]);
                streaming(stale.chain(stream::pending()))
            }
            Mood::Serves => self
                .0
                .lock()
                .answer(&parts.method, parts.uri.path(), &body)
                .into(),
            Mood::Fails(code) => failure(code).into(),
            Mood::Hangs => Reply::Hangs,
            Mood::Garbage => Reply::Raw("<html>\n".into()),
            Mood::Resets => Reply::Resets,
        };
        self.0.lock().seen.push(Seen {
            method: parts.method,
            uri: parts.uri.to_string(),
            body,
        });
        // A client that sends requests without a pause would prevent paused time from advancing.
        if self.0.lock().seen.len() > LIMIT {
            return std::future::pending().await;
        }
        let (status, body) = match answer {
            Reply::Json(status, value) => (status, full(serde_json::to_vec(&value)?)),
            Reply::Raw(text) => (StatusCode::OK, full(text.into_bytes())),
            Reply::Stream(body) => (StatusCode::OK, body),
            Reply::Hangs => std::future::pending().await,
            Reply::Resets => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        };
        Ok(Response::builder().status(status).body(body)?)
    }
}

enum Reply {
    Json(StatusCode, Value),
    Raw(String),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
    Hangs,
    Resets,
}

impl From<(StatusCode, Value)> for Reply {
    fn from((status, value): (StatusCode, Value)) -> Self {
        Self::Json(status, value)
    }
}

fn full(bytes: Vec<u8>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::from(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn streaming(events: impl Stream<Item = Value> + Send + 'static) -> Reply {
    let frames = events.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
    Reply::Stream(StreamBody::new(frames).boxed_unsync())
}

impl State {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        self.changed.send_replace(Some(lease.clone()));
        lease
    }

    fn mood_for(&self, method: &Method, watches: bool) -> Mood {
        let verb = match *method {
            Method::GET if watches => Verb::Watch,
            Method::GET => Verb::Get,
            Method::POST => Verb::Create,
            _ => Verb::Patch,
        };
        let of_verb = self.moods.iter().find(|(of, _)| *of == verb);
        of_verb.map_or(self.mood, |(_, mood)| *mood)
    }

    /// Returns the current Lease and each later change.
    fn watch(&self) -> impl Stream<Item = Value> + use<> {
        let mut changes = self.changed.subscribe();
        if self.lease.is_some() {
            changes.mark_changed();
        }
        stream::unfold((changes, None), |(mut changes, last)| async {
            changes.changed().await.ok()?;
            let now = changes.borrow_and_update().clone();
            let event = match (&now, last) {
                (Some(lease), _) => json!({"type": "MODIFIED", "object": lease}),
                (None, last) => {
                    let mut lease: Value = last.unwrap_or(json!({"metadata": {"name": "l"}}));
                    let version = &mut lease["metadata"]["resourceVersion"];
                    let before: Option<u64> = version.as_str().and_then(|it| it.parse().ok());
                    *version = json!(before.map(|before| (before + 1).to_string()));
                    json!({"type": "DELETED", "object": lease})
                }
            };
            Some((event, (changes, now)))
        })
    }

    fn released(&mut self) -> Value {
        self.version += 1;
        let mut lease = self.lease.clone().unwrap_or_default();
        lease["metadata"]["resourceVersion"] = "1".into();
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        let now = format!("2020-01-01T00:00:00.{:06}Z", self.version % 1_000_000);
        lease["spec"]["acquireTime"] = now.as_str().into();
        lease["spec"]["renewTime"] = now.into();
        json!({"type": "MODIFIED", "object": lease})
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        if let Some((_, name)) = path.rsplit_once("/serviceaccounts/") {
            return self.answer_record(name, method, body);
        }
        let named = path.ends_with("/leases/l");
        match (method, self.lease.clone()) {
            (&Method::GET, Some(lease)) if named => (StatusCode::OK, lease),
            (&Method::GET, None) if named => failure(404),
            (&Method::POST, None) if path.ends_with("/leases") => {
                let mut lease = body.clone();
                lease["metadata"]["uid"] = format!("u{}", self.version).into();
                (StatusCode::CREATED, self.store(lease))
            }
            (&Method::POST, Some(_)) if path.ends_with("/leases") => failure(409),
            (&Method::PATCH, Some(old)) if named => {
                let condition = &body["metadata"]["resourceVersion"];
                if !condition.is_null() && *condition != old["metadata"]["resourceVersion"] {
                    return failure(409);
                }
                let mut new = old.clone();
                json_patch::merge(&mut new, body);
                let transitions = &body["spec"]["leaseTransitions"];
                if transitions.as_i64().is_some_and(|number| number < 0) {
                    return failure(422);
                }
                if new["spec"] == old["spec"] {
                    (StatusCode::OK, old)
                } else {
                    (StatusCode::OK, self.store(new))
                }
            }
            _ => failure(405),
        }
    }

    fn answer_record(&mut self, name: &str, method: &Method, body: &Value) -> (StatusCode, Value) {
        if self.refuse_records != 0 {
            return failure(self.refuse_records);
        }
        let Some(record) = self
            .record
            .as_mut()
            .filter(|it| it["metadata"]["name"] == name)
        else {
            return failure(404);
        };
        if method == Method::PATCH {
            if body["metadata"]["resourceVersion"] != record["metadata"]["resourceVersion"] {
                return failure(409);
            }
            json_patch::merge(record, body);
            self.version += 1;
            record["metadata"]["resourceVersion"] = self.version.to_string().into();
        }
        (StatusCode::OK, record.clone())
    }
}

fn failure(code: u16) -> (StatusCode, Value) {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "a bad day", "reason": reason});
    (StatusCode::from_u16(code).unwrap_or_default(), status)
}
