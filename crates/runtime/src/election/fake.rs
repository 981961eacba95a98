//! API server of unit tests: a [`ControlPlane`] with one Lease and optionally its fencing record. It collects the requests, and a
//! [`Mood`] makes it fail.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::config::app::tests::HOLDER_KEY;
use futures::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use http::{Method, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use operator_testkit::{ADMIN, ControlPlane};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{io, sync::Arc};
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

const NAMESPACE: &str = "n";
const LEASES: &str = "leases.coordination.k8s.io";
const ACCOUNTS: &str = "serviceaccounts";

/// Verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Get,
    Watch,
    Create,
    Patch,
    /// A request for the fencing record, with any verb.
    OfRecord,
}

pub(crate) struct Seen {
    pub method: Method,
    pub uri: String,
    pub body: Value,
}

#[derive(Clone)]
pub(crate) struct FakeApi {
    plane: ControlPlane,
    state: Arc<Mutex<State>>,
}

struct State {
    mood: Mood,
    /// Moods of single verbs, the latest first. They take precedence over `mood`.
    moods: Vec<(Verb, Mood)>,
    seen: Vec<Seen>,
    /// Number of stale events sent. It gives each event a different time.
    stale: u32,
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        let plane = ControlPlane::new();
        plane.create_namespace(NAMESPACE).unwrap();
        let state = State {
            mood: Mood::Serves,
            moods: Vec::new(),
            seen: Vec::new(),
            stale: 0,
        };
        Self {
            plane,
            state: Arc::new(Mutex::new(state)),
        }
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
        self.state.lock().mood = mood;
    }

    /// Sets the mood for all requests of this verb.
    pub(crate) fn mood_of(&self, verb: Verb, mood: Mood) {
        self.state.lock().moods.insert(0, (verb, mood));
    }

    /// Writes the Lease's spec as another client.
    pub(crate) fn put(&self, spec: &Value) {
        let lease = json!({ "spec": spec });
        self.plane.put(LEASES, NAMESPACE, "l", Some(lease));
    }

    pub(crate) fn delete(&self) {
        self.plane.put(LEASES, NAMESPACE, "l", None);
    }

    /// Writes the fencing record as another client, or deletes it.
    pub(crate) fn put_record(&self, annotations: Option<Value>) {
        self.put_record_named("l-fencing", annotations);
    }

    /// Writes the only fencing record, with this name, as another client, or deletes it.
    pub(crate) fn put_record_named(&self, name: &str, annotations: Option<Value>) {
        let record = annotations.map(|it| json!({"metadata": {"annotations": it}}));
        self.plane.put(ACCOUNTS, NAMESPACE, name, record);
    }

    /// Returns the leader that the fencing record names.
    pub(crate) fn recorded(&self) -> String {
        let changes = self.plane.history(ACCOUNTS);
        let record = changes.last().and_then(|last| last.after.as_ref());
        let holder = record.and_then(|it| it["metadata"]["annotations"][HOLDER_KEY].as_str());
        holder.unwrap_or_default().to_owned()
    }

    pub(crate) fn spec(&self) -> Value {
        let lease = self.plane.get(LEASES, NAMESPACE, "l");
        lease.map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub(crate) fn holder(&self) -> String {
        self.spec()["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().seen)
    }

    /// Returns the server as a service, below the layers of a client.
    pub(crate) fn service(&self) -> Service {
        let api = self.clone();
        let client = api.plane.client(ADMIN);
        BoxService::new(service_fn(move |request| {
            let (api, client) = (api.clone(), client.clone());
            async move { api.serve(&client, request).await }
        }))
    }

    async fn serve(
        &self,
        plane: &kube::Client,
        request: Request<Body>,
    ) -> Result<Answer, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let mood = self.state.lock().see(&head, &body);
        let request = Request::from_parts(head, body.into());
        match mood {
            Mood::Serves | Mood::Ends => {
                let frames = if mood == Mood::Ends { 1 } else { usize::MAX };
                let path = request.uri().path();
                let is_ours = path.contains("/leases") || path.contains("/serviceaccounts");
                let answer = plane.send(request).await?;
                assert!(!is_ours || answer.status() != 501, "not modelled");
                Ok(answer.map(|body| {
                    let body = BodyStream::new(body).take(frames);
                    UnsyncBoxBody::new(StreamBody::new(body.err_into()))
                }))
            }
            Mood::EndsStale => Ok(streaming(stream::iter([self.stale()]))),
            Mood::StaysStale => {
                let stale = stream::iter([self.stale()]);
                Ok(streaming(stale.chain(stream::pending())))
            }
            Mood::Fails(code) => failure(code),
            Mood::Hangs => future::pending().await,
            Mood::Garbage => Ok(Response::new(full("<html>\n"))),
            Mood::Resets => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        }
    }

    /// Returns a watch event with an old version of the Lease that looks released.
    fn stale(&self) -> Value {
        let lease = self.plane.get(LEASES, NAMESPACE, "l");
        let mut lease = lease.unwrap_or_default();
        let mut state = self.state.lock();
        state.stale += 1;
        let time = format!("2020-01-01T00:00:00.{:06}Z", state.stale);
        lease["metadata"]["resourceVersion"] = "1".into();
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        lease["spec"]["acquireTime"] = time.as_str().into();
        lease["spec"]["renewTime"] = time.into();
        json!({"type": "MODIFIED", "object": lease})
    }
}

impl State {
    /// Records a request, and returns the mood for its response.
    fn see(&mut self, head: &Parts, body: &[u8]) -> Mood {
        self.seen.push(Seen {
            method: head.method.clone(),
            uri: head.uri.to_string(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        });
        // A client that sends requests without a pause would prevent paused time from advancing.
        if self.seen.len() > LIMIT {
            return Mood::Hangs;
        }
        let query = head.uri.query().unwrap_or_default();
        let verb = match head.method {
            Method::GET if query.contains("watch=true") => Verb::Watch,
            Method::GET => Verb::Get,
            Method::POST => Verb::Create,
            _ => Verb::Patch,
        };
        let is_of_record = head.uri.path().contains("/serviceaccounts/");
        let is_of = |of: Verb| of == verb || is_of_record && of == Verb::OfRecord;
        let of_verb = self.moods.iter().find(|(of, _)| is_of(*of));
        of_verb.map_or(self.mood, |(_, mood)| *mood)
    }
}

fn full(body: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, BoxError> {
    UnsyncBoxBody::new(Full::new(body.into()).map_err(|never| match never {}))
}

fn streaming(events: impl Stream<Item = Value> + Send + 'static) -> Answer {
    let frames = events.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
    Response::new(UnsyncBoxBody::new(StreamBody::new(frames)))
}

fn failure(code: u16) -> Result<Answer, BoxError> {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "a bad day", "reason": reason});
    let answer = Response::builder().status(StatusCode::from_u16(code)?);
    Ok(answer.body(full(status.to_string()))?)
}
