//! An API server in memory: objects with resourceVersions and conflicts, lists, pages and watches; and for one kind of
//! request, an answer that is not what it should be.

use std::{collections::BTreeMap, fmt, io, io::Write as _, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tower::{BoxError, ServiceExt as _, service_fn};

use operator_runtime::{
    testing::merge_patch,
    transport::{READ_TIMEOUT, Transport, keep_retry_after},
};

/// What a request is, in the words of the audit log; a list that comes as a watch (KEP-3157) is a `stream`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub verb: &'static str,
    pub resource: &'static str,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

pub const fn call(verb: &'static str, resource: &'static str) -> Call {
    Call { verb, resource }
}

/// What is answered instead of what is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// An HTTP status with a `Status` that says the same.
    Status(u16),
    /// An HTTP status, no `Status`, and this many seconds to wait in a header, as priority and fairness has it.
    RetryAfter(u16, u32),
    /// 200, and a page as a captive portal has it.
    Html,
    /// 200, and half of what is right.
    Truncated,
    /// 200, and JSON of another kind.
    OtherKind,
    /// The connection is reset before the request is carried out.
    Reset,
    /// It is carried out, and then the connection is reset.
    Lost,
    /// No answer at all.
    Hang,
    /// What a list or a watch says is nothing, in good order.
    Empty,
    /// A watch that says what it has to, or one thing at least, and ends after this.
    EndsAfter(Duration),
    /// A watch that begins with an `ERROR` event.
    ErrorEvent(u16),
    /// A list that ends nowhere: each page names itself as the next.
    Endless,
    /// A list of full pages, each of which names another, and says the same.
    Circle,
    /// A resourceVersion that is none.
    NoVersion,
    /// It is answered as if it had been carried out, and changes nothing.
    Ignored,
}

/// One request, what it is about, and when it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub by: &'static str,
    pub call: Call,
    /// An object's name, or nothing, where it is about all of a kind.
    pub object: String,
    pub at: Instant,
}

/// The API server; clones share it.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The newest version, for watches.
    version: watch::Sender<u64>,
    /// Streamed lists are served.
    streams: bool,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Id, Value>,
    history: Vec<Change>,
    /// Watches that go on from before this version get 410.
    compacted: u64,
    /// Grows when all connections are cut.
    cut: u64,
    fault: Option<(Call, Answer)>,
    seen: Vec<Seen>,
}

/// Plural, namespace and name.
type Id = (&'static str, String, String);

#[derive(Clone)]
struct Change {
    version: u64,
    id: Id,
    event: &'static str,
    object: Value,
}

/// The plurals that are known, each with its `apiVersion` and kind.
const RESOURCES: &[(&str, &str, &str)] = &[
    ("foos", "samplecontroller.k8s.io/v1alpha1", "Foo"),
    ("deployments", "apps/v1", "Deployment"),
    ("leases", "coordination.k8s.io/v1", "Lease"),
    ("serviceaccounts", "v1", "ServiceAccount"),
    ("events", "events.k8s.io/v1", "Event"),
    ("tokenreviews", "authentication.k8s.io/v1", "TokenReview"),
    (
        "subjectaccessreviews",
        "authorization.k8s.io/v1",
        "SubjectAccessReview",
    ),
    (
        "selfsubjectaccessreviews",
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
    ),
];

/// The body of an answer: whole, or a stream.
pub type Reply = UnsyncBoxBody<Bytes, BoxError>;

/// A request, taken apart.
struct Asked {
    call: Call,
    method: Method,
    plural: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    status: bool,
    query: BTreeMap<String, String>,
    body: Value,
}

impl Server {
    /// An empty one, from before streamed lists or not.
    pub fn new(streams: bool) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            version: watch::Sender::new(0),
            streams,
        }))
    }

    /// From now on, `fault.0` is answered by `fault.1`.
    pub fn fault(&self, fault: Option<(Call, Answer)>) {
        self.0.state.lock().fault = fault;
    }

    /// The requests since the last call of this.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.state.lock().seen)
    }

    /// Ends all watches, as a restart of the API server does; those that go on have to list again if `compact`.
    pub fn cut(&self, compact: bool) {
        let mut state = self.0.state.lock();
        state.cut += 1;
        state.version += 1;
        if compact {
            state.compacted = state.version;
        }
        self.0.version.send_replace(state.version);
    }

    /// The object, as it is stored.
    pub fn get(&self, plural: &'static str, name: &str) -> Option<Value> {
        let id = (plural, "n".to_owned(), name.to_owned());
        self.0.state.lock().objects.get(&id).cloned()
    }

    /// All objects of a kind.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.0.state.lock();
        let of = state.objects.iter().filter(|((of, ..), _)| *of == plural);
        of.map(|(_, object)| object.clone()).collect()
    }

    /// Merges `patch` into the object, or makes it, as a user would.
    pub fn apply(&self, plural: &'static str, name: &str, patch: &Value) {
        let id = (plural, "n".to_owned(), name.to_owned());
        let mut state = self.0.state.lock();
        let mut object = state.objects.get(&id).cloned().unwrap_or(json!({}));
        merge_patch(&mut object, patch);
        state.put(id, object);
        self.0.version.send_replace(state.version);
    }

    /// Deletes the object, as a user would.
    pub fn delete(&self, plural: &'static str, name: &str) {
        let id = (plural, "n".to_owned(), name.to_owned());
        let mut state = self.0.state.lock();
        state.remove(&id);
        self.0.version.send_replace(state.version);
    }

    /// The transport of the client of the replica `by`.
    pub fn service(&self, by: &'static str) -> Transport {
        let server = self.clone();
        service_fn(move |request| server.clone().serve(by, request))
            .and_then(keep_retry_after)
            .boxed()
    }

    async fn serve(
        self,
        by: &'static str,
        request: Request<Body>,
    ) -> Result<Response<Reply>, BoxError> {
        let asked = Asked::of(request).await?;
        let fault = {
            let mut state = self.0.state.lock();
            // The clock, which is to bound the loops, stands still in one that never pauses.
            assert!(state.seen.len() < 100_000, "a loop without a pause");
            state.seen.push(Seen {
                by,
                call: asked.call,
                object: asked.object(),
                at: Instant::now(),
            });
            state.fault
        };
        // The network takes a moment.
        sleep(Duration::from_millis(1)).await;
        match fault {
            Some((call, answer)) if call == asked.call => self.amiss(&asked, answer).await,
            _ => self.answer(&asked),
        }
    }

    fn answer(&self, asked: &Asked) -> Result<Response<Reply>, BoxError> {
        match asked.call.verb {
            "stream" if !self.0.streams => whole(422, &failure(422)),
            "stream" | "watch" => Ok(self.watch(asked, None)),
            "list" | "find" => whole(200, &self.list(asked)),
            _ => {
                let (code, body) = self.carry_out(asked);
                whole(code, &body)
            }
        }
    }

    async fn amiss(&self, asked: &Asked, answer: Answer) -> Result<Response<Reply>, BoxError> {
        let lists = matches!(asked.call.verb, "list" | "find");
        let reads = lists || matches!(asked.call.verb, "stream" | "watch");
        match answer {
            Answer::Status(code) => whole(code, &failure(code)),
            Answer::RetryAfter(code, seconds) => Ok(Response::builder()
                .status(code)
                .header("Retry-After", seconds.to_string())
                .body(bytes("Too many requests, please try again later."))?),
            Answer::Html => Ok(Response::new(bytes(
                "<html>\n<p>Please log in</p>\n</html>\n",
            ))),
            Answer::OtherKind => whole(200, &json!({ "kind": "Pizza", "apiVersion": "v1" })),
            Answer::Truncated => {
                let body = match asked.call.verb {
                    "stream" | "watch" => {
                        json!({ "type": "ADDED", "object": { "metadata": { "name": "it" } } })
                    }
                    "list" | "find" => self.list(asked),
                    _ => self.carry_out(asked).1,
                };
                let mut body = serde_json::to_vec(&body)?;
                body.truncate(body.len() / 2);
                Ok(Response::new(bytes(body)))
            }
            Answer::Reset => Err(reset()),
            Answer::Lost => {
                self.carry_out(asked);
                Err(reset())
            }
            Answer::Hang => std::future::pending().await,
            Answer::Empty if lists => whole(
                200,
                &json!({ "kind": "List", "metadata": { "resourceVersion": "" }, "items": [] }),
            ),
            Answer::Empty => Ok(Response::new(bytes(""))),
            Answer::EndsAfter(limit) => Ok(self.watch(asked, Some(limit))),
            Answer::ErrorEvent(code) => {
                whole(200, &json!({ "type": "ERROR", "object": failure(code) }))
            }
            Answer::Endless => {
                let mut list = self.list(asked);
                list["metadata"]["continue"] = json!("more");
                whole(200, &list)
            }
            Answer::Circle if lists => {
                let mut list = self.list(asked);
                let items = list["items"].as_array().cloned().unwrap_or_default();
                list["items"] = items.iter().cycle().take(500).cloned().collect();
                let number = self.0.state.lock().seen.len();
                list["metadata"]["continue"] = json!(format!("page {number}"));
                whole(200, &list)
            }
            Answer::NoVersion if lists => {
                let mut list = self.list(asked);
                list["metadata"]["resourceVersion"] = json!("none");
                whole(200, &list)
            }
            Answer::Ignored if !reads => {
                let now = asked
                    .id()
                    .and_then(|id| self.0.state.lock().objects.get(&id).cloned());
                match now {
                    Some(now) => whole(200, &now),
                    None => whole(200, &asked.body),
                }
            }
            answer => Err(format!("{:?} cannot be answered by {answer:?}", asked.call).into()),
        }
    }

    fn list(&self, asked: &Asked) -> Value {
        let state = self.0.state.lock();
        let items: Vec<&Value> = (state.objects.iter())
            .filter(|(id, _)| asked.is_about(id))
            .map(|(_, object)| object)
            .collect();
        let (_, api_version, kind) = resource(asked.plural);
        json!({
            "apiVersion": api_version, "kind": format!("{kind}List"),
            "metadata": { "resourceVersion": state.version.to_string() },
            "items": items,
        })
    }

    /// A stream of what happens, with what is there before it if that is asked for; it ends when all connections do,
    /// or after `limit`.
    fn watch(&self, asked: &Asked, limit: Option<Duration>) -> Response<Reply> {
        let is_about = {
            let (plural, namespace, name) =
                (asked.plural, asked.namespace.clone(), asked.field_name());
            move |id: &Id| is_about(id, plural, namespace.as_deref(), name.as_deref())
        };
        let state = self.0.state.lock();
        let from = asked
            .query
            .get("resourceVersion")
            .map(String::as_str)
            .unwrap_or_default();
        let mut first = Vec::new();
        let mut position = from.parse::<u64>().unwrap_or(0);
        if position == 0 {
            position = state.version;
            let there = state.objects.iter().filter(|(id, _)| is_about(id));
            first.extend(there.map(|(_, object)| json!({ "type": "ADDED", "object": object })));
        } else if position < state.compacted {
            first.push(json!({ "type": "ERROR", "object": failure(410) }));
        } else if limit.is_some()
            && let Some((_, object)) = state.objects.iter().find(|(id, _)| is_about(id))
        {
            first.push(json!({ "type": "MODIFIED", "object": object }));
        }
        if asked.call.verb == "stream" {
            let (_, api_version, kind) = resource(asked.plural);
            first.push(json!({ "type": "BOOKMARK", "object": {
                "apiVersion": api_version, "kind": kind,
                "metadata": {
                    "resourceVersion": state.version.to_string(),
                    "annotations": { "k8s.io/initial-events-end": "true" },
                },
            }}));
        }
        let cut = state.cut;
        drop(state);
        let (server, version) = (self.clone(), self.0.version.subscribe());
        let until = limit.map(|limit| Instant::now() + limit);
        let rest = stream::unfold(Some(position), move |position| {
            let (server, is_about) = (server.clone(), is_about.clone());
            let mut version = version.clone();
            async move {
                let mut position = position?;
                loop {
                    let lines = {
                        let state = server.0.state.lock();
                        if state.cut != cut {
                            return None;
                        }
                        let changes = state
                            .history
                            .iter()
                            .filter(|change| change.version > position && is_about(&change.id));
                        let lines: Vec<_> = changes
                            .map(|change| json!({ "type": change.event, "object": change.object }))
                            .collect();
                        position = state.version;
                        lines
                    };
                    if !lines.is_empty() {
                        return Some((Ok(lines), Some(position)));
                    }
                    version.mark_unchanged();
                    if server.0.state.lock().version > position {
                        continue;
                    }
                    let silence =
                        until.map_or(READ_TIMEOUT, |until| until.duration_since(Instant::now()));
                    match timeout(silence, version.changed()).await {
                        Ok(_) => {}
                        Err(_) if until.is_some() => return None,
                        // The client's own end of it.
                        Err(_) => {
                            return Some((
                                Err(BoxError::from(io::Error::from(io::ErrorKind::TimedOut))),
                                None,
                            ));
                        }
                    }
                }
            }
        });
        let all = stream::once(async move { Ok(first) }).chain(rest);
        let frames = all.map(|lines| {
            let mut text = Vec::new();
            for line in lines? {
                // In the order in which the API server writes them.
                let (event, object) = (&line["type"], &line["object"]);
                writeln!(text, r#"{{"type":{event},"object":{object}}}"#)?;
            }
            Ok::<_, BoxError>(Frame::data(Bytes::from(text)))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    /// Anything but a list or a watch.
    fn carry_out(&self, asked: &Asked) -> (u16, Value) {
        let mut state = self.0.state.lock();
        let answer = state.carry_out(asked);
        self.0.version.send_replace(state.version);
        answer
    }
}

impl State {
    fn carry_out(&mut self, asked: &Asked) -> (u16, Value) {
        if asked.plural.ends_with("reviews") {
            let mut review = asked.body.clone();
            let token = asked.body["spec"]["token"].as_str();
            review["status"] = json!({
                "allowed": true,
                "authenticated": token.is_some_and(|token| token.starts_with("good")),
                "user": { "username": "prometheus" },
            });
            return (201, review);
        }
        let named = asked
            .name
            .clone()
            .or_else(|| Some(asked.body["metadata"]["name"].as_str()?.to_owned()));
        let (Some(namespace), Some(name)) = (asked.namespace.clone(), named) else {
            return (405, failure(405));
        };
        let id = (asked.plural, namespace, name);
        let old = self.objects.get(&id).cloned();
        let old = match (&asked.method, old) {
            (&Method::POST, Some(_)) => return (409, failure(409)),
            (&Method::POST, None) => return (201, self.put(id, asked.body.clone())),
            (_, None) => {
                let mut gone = failure(404);
                gone["details"] = json!({ "name": id.2 });
                return (404, gone);
            }
            (_, Some(old)) => old,
        };
        let conditions = if asked.method == Method::DELETE {
            &asked.body["preconditions"]
        } else {
            &asked.body["metadata"]
        };
        for field in ["uid", "resourceVersion"] {
            if !conditions[field].is_null() && conditions[field] != old["metadata"][field] {
                let mut conflict = failure(409);
                // In the API server's words.
                let field = if field == "uid" {
                    "UID"
                } else {
                    "ResourceVersion"
                };
                conflict["message"] =
                    format!("Precondition failed: {field} in precondition").into();
                return (409, conflict);
            }
        }
        match asked.method {
            Method::GET => (200, old),
            Method::DELETE => {
                self.remove(&id);
                (200, json!({ "kind": "Status", "status": "Success" }))
            }
            Method::PATCH => {
                let mut new = old;
                merge_patch(&mut new, &asked.body);
                (200, self.put(id, new))
            }
            Method::PUT if asked.status => {
                let mut new = old;
                new["status"] = asked.body["status"].clone();
                (200, self.put(id, new))
            }
            _ => (405, failure(405)),
        }
    }

    /// Stores an object; one that is as it was keeps its version.
    fn put(&mut self, id: Id, mut object: Value) -> Value {
        let old = self.objects.get(&id).cloned();
        if old.as_ref() == Some(&object) {
            return object;
        }
        self.version += 1;
        let (_, api_version, kind) = resource(id.0);
        let metadata =
            json!({ "namespace": id.1, "name": id.2, "resourceVersion": self.version.to_string() });
        merge_patch(
            &mut object,
            &json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata }),
        );
        let changed = old.as_ref().map(|old| &old["spec"]) != Some(&object["spec"]);
        if let Some(old) = &old {
            object["metadata"]["uid"] = old["metadata"]["uid"].clone();
        } else {
            object["metadata"]["uid"] = format!("u{}", self.version).into();
        }
        if changed {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = (generation + 1).into();
        }
        self.objects.insert(id.clone(), object.clone());
        let event = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.history.push(Change {
            version: self.version,
            id: id.clone(),
            event,
            object: object.clone(),
        });
        // The controllers of the cluster are quick.
        let owner = &object["metadata"]["ownerReferences"][0]["uid"];
        let mut foos = self.objects.iter().filter(|(id, _)| id.0 == "foos");
        if id.0 == "deployments" && !foos.any(|(_, foo)| foo["metadata"]["uid"] == *owner) {
            self.remove(&id);
        } else if id.0 == "deployments" && changed {
            let count = object["spec"]["replicas"].as_i64().unwrap_or(1);
            let mut available = object.clone();
            available["status"] = json!({
                "observedGeneration": object["metadata"]["generation"],
                "replicas": count, "updatedReplicas": count, "availableReplicas": count,
            });
            self.put(id, available);
        }
        object
    }

    fn remove(&mut self, id: &Id) {
        if let Some(mut object) = self.objects.remove(id) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.history.push(Change {
                version: self.version,
                id: id.clone(),
                event: "DELETED",
                object,
            });
        }
    }
}

impl Asked {
    async fn of(request: Request<Body>) -> Result<Self, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        let rest = if path[0] == "api" {
            &path[2..]
        } else {
            &path[3..]
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let known = rest
            .first()
            .and_then(|plural| RESOURCES.iter().find(|(known, ..)| known == plural));
        let Some((plural, ..)) = known else {
            return Err(format!("nothing is known of {}", parts.uri).into());
        };
        let name = rest.get(1).map(|name| (*name).to_owned());
        let status = rest.get(2) == Some(&"status");
        let query = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let query: BTreeMap<_, _> = query
            .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=")))
            .collect();
        let verb = match parts.method {
            Method::GET if query.contains_key("sendInitialEvents") => "stream",
            Method::GET if query.get("watch").is_some_and(|watch| watch == "true") => "watch",
            Method::GET if name.is_some() => "get",
            // A list of one, by its name.
            Method::GET if query.contains_key("fieldSelector") => "find",
            Method::GET => "list",
            Method::POST => "create",
            Method::PATCH => "patch",
            Method::PUT => "update",
            Method::DELETE => "delete",
            _ => "",
        };
        let resource = if status && *plural == "foos" {
            "foos/status"
        } else {
            plural
        };
        Ok(Self {
            call: call(verb, resource),
            method: parts.method,
            plural,
            namespace,
            name,
            status,
            query,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }

    /// The object that it is about; of an event, what that is about.
    fn object(&self) -> String {
        let made = || self.body["metadata"]["name"].as_str().map(str::to_owned);
        let name = self
            .name
            .clone()
            .or_else(|| self.field_name())
            .or_else(made);
        let mut name = name.unwrap_or_default();
        if self.plural == "events" {
            name.truncate(name.find('.').unwrap_or(name.len()));
        }
        name
    }

    fn id(&self) -> Option<Id> {
        Some((self.plural, self.namespace.clone()?, self.name.clone()?))
    }

    /// The one name that a list or a watch is about.
    fn field_name(&self) -> Option<String> {
        let selector = self.query.get("fieldSelector")?;
        Some(selector.strip_prefix("metadata.name=")?.to_owned())
    }

    fn is_about(&self, id: &Id) -> bool {
        is_about(
            id,
            self.plural,
            self.namespace.as_deref(),
            self.field_name().as_deref(),
        )
    }
}

fn is_about(id: &Id, plural: &str, namespace: Option<&str>, name: Option<&str>) -> bool {
    id.0 == plural && namespace.is_none_or(|it| it == id.1) && name.is_none_or(|it| it == id.2)
}

fn resource(plural: &str) -> (&'static str, &'static str, &'static str) {
    let known = RESOURCES.iter().find(|(known, ..)| *known == plural);
    known.copied().unwrap_or(("", "", ""))
}

fn whole(code: u16, body: &Value) -> Result<Response<Reply>, BoxError> {
    let body = bytes(serde_json::to_vec(body)?);
    Ok(Response::builder().status(code).body(body)?)
}

fn failure(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": "Test", "message": "a bad day",
    })
}

fn bytes(bytes: impl Into<Bytes>) -> Reply {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn reset() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}
