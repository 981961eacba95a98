//! The control plane as the tower service of a `kube::Client`.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Request, Response, StatusCode, header::HeaderName};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};

use super::{ControlPlane, Scripted, State};
use crate::api_server::{Answer, Call, User, Watch, describe};

/// Body of a response: complete, or the events of a watch.
type Answered = UnsyncBoxBody<Bytes, Infallible>;

/// Requests of one user.
#[derive(Clone)]
pub struct Service {
    plane: ControlPlane,
    user: String,
}

impl Service {
    pub fn new(plane: ControlPlane, user: &str) -> Self {
        Self {
            plane,
            user: user.to_owned(),
        }
    }

    async fn answer(self, request: Request<Body>) -> io::Result<Response<Answered>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let accept = header("accept").and_then(preferred);
        let call = Call {
            user: User {
                name: &self.user,
                pod: None,
            },
            method: &head.method,
            path_and_query: path,
            content_type: header("content-type"),
            accept: accept.as_deref(),
            user_agent: header("user-agent"),
            body: &body,
        };
        let answer = match self.plane.answer_as_scripted(&call)? {
            Ok(answer) => answer,
            Err(code) => return Ok(whole(code, &[], &failed(code))),
        };
        Ok(match answer {
            Answer::Whole {
                code,
                headers,
                body,
            } => whole(code, &headers, &body),
            Answer::Watch(watch) => {
                let body = StreamBody::new(self.plane.events(watch, |_, line| line));
                let mut response = Response::new(UnsyncBoxBody::new(body));
                let json = http::HeaderValue::from_static("application/json");
                response
                    .headers_mut()
                    .insert(http::header::CONTENT_TYPE, json);
                response
            }
        })
    }
}

impl ControlPlane {
    /// Carries out a call, unless a test has scripted its answer. Fails if the connection breaks. Returns the scripted code of a
    /// `Status` as an error.
    pub(crate) fn answer_as_scripted(&self, call: &Call<'_>) -> io::Result<Result<Answer, u16>> {
        let scripted = self.scripted(call);
        match scripted {
            Some(Scripted::Lost) => return Err(lost()),
            Some(Scripted::Code(code)) => return Ok(Err(code)),
            Some(Scripted::AnswerLost) | None => {}
        }
        let answer = self.answer(call);
        if scripted.is_some() {
            return Err(lost());
        }
        Ok(Ok(answer))
    }

    /// Takes the answer that a test has scripted for this request.
    fn scripted(&self, call: &Call<'_>) -> Option<Scripted> {
        let mut state = self.state();
        let State {
            store, scripted, ..
        } = &mut *state;
        let (verb, resource) = describe(call, store)?;
        let is_it = |(of, what, _): &(String, String, Scripted)| *of == verb && *what == resource;
        let at = scripted.iter().position(is_it)?;
        scripted.remove(at).map(|(_, _, answer)| answer)
    }

    /// Streams the events of a watch, as lines. A watch first lists the current objects.
    pub(crate) fn events(
        self,
        mut watch: Watch,
        shown: impl Fn(&Self, Value) -> Value + Clone + Send,
    ) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
        let requests = self.shared.requests.subscribe();
        let first = poll(&self, &mut watch, &shown);
        let rest = stream::unfold(
            (self, watch, requests, shown),
            async |(plane, mut watch, mut requests, shown)| {
                loop {
                    if watch.is_over() {
                        return None;
                    }
                    let lines = poll(&plane, &mut watch, &shown);
                    if !lines.is_empty() {
                        return Some((lines, (plane, watch, requests, shown)));
                    }
                    let quiet = watch.due().saturating_sub(plane.now().since_start);
                    drop(tokio::time::timeout(quiet, requests.changed()).await);
                }
            },
        );
        stream::iter([first]).chain(rest).flat_map(|text| {
            let frame = (!text.is_empty()).then(|| Ok(Frame::data(Bytes::from(text))));
            stream::iter(frame)
        })
    }
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Answered>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

/// Returns the first media type of `Accept` that is JSON.
fn preferred(accept: &str) -> Option<String> {
    let types = accept.split(',').map(|one| one.trim().replace("; ", ";"));
    let mut types = types.filter(|one| one.starts_with("application/json"));
    types
        .next()
        .map(|one| one.split(";q=").next().unwrap_or_default().to_owned())
}

fn lost() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the test breaks the connection",
    )
}

pub(crate) fn failed(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "code": code,
        "message": "a scripted answer",
    })
}

fn whole(code: u16, headers: &[(&'static str, String)], body: &Value) -> Response<Answered> {
    let bytes = match body {
        Value::String(text) => text.clone().into_bytes(),
        body => body.to_string().into_bytes(),
    };
    let frame = Ok(Frame::data(Bytes::from(bytes)));
    let body = StreamBody::new(stream::iter([frame]));
    let mut response = Response::new(UnsyncBoxBody::new(body));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
            all.append(name, value);
        }
    }
    *response.headers_mut() = all;
    response
}

/// Returns the next lines of a watch, in the order of the real API server.
fn poll(
    plane: &ControlPlane,
    watch: &mut Watch,
    shown: &impl Fn(&ControlPlane, Value) -> Value,
) -> String {
    let lines = {
        let now = plane.now();
        let state = plane.state();
        watch.poll(&state.store, &state.server, now)
    };
    lines.into_iter().fold(String::new(), |text, line| {
        let line = json!({ "type": line.event, "object": *line.object });
        let line = shown(plane, line);
        text + &format!(r#"{{"type":{},"object":{}}}"#, line["type"], line["object"]) + "\n"
    })
}
