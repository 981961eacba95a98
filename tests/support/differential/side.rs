//! The two API servers, and the translation of steps to their requests.

use std::{collections::BTreeMap, time::Duration};

use futures::{AsyncBufReadExt as _, TryStreamExt as _, io::Lines};
use http_body_util::BodyExt as _;
use kube::client::Body;
use operator_testkit::api_server::{
    Answer, Call, Kind, METADATA, METADATA_LIST, Method, Now, Release, Server, Store, User, Watch,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    rights::LIMITED,
    steps::{APPLY, Act, Base, By, Step, Which},
};

pub struct Sent {
    pub method: Method,
    pub path: String,
    pub content_type: &'static str,
    pub accept: Option<&'static str>,
    pub body: Vec<u8>,
}

/// User with all permissions.
pub const ADMIN: User<'static> = User {
    name: "admin",
    pod: None,
};

impl By {
    pub fn user(self) -> User<'static> {
        match self {
            Self::Admin => ADMIN,
            Self::Limited => LIMITED,
        }
    }
}

pub enum Side {
    Real(kube::Client),
    Simulated(Box<Simulated>),
}

pub struct Simulated {
    pub store: Store,
    pub server: Server,
    pub now: Duration,
}

impl Simulated {
    pub fn new(namespace: &str) -> Self {
        Self::of(Store::of(release()), namespace)
    }

    /// As in a simulation, which keeps no managers of fields.
    pub fn without_managers(namespace: &str) -> Self {
        Self::of(Store::of(release()).without_managers(), namespace)
    }

    fn of(mut store: Store, namespace: &str) -> Self {
        let now = at(Duration::ZERO);
        store.install_definition(now, super::definition());
        store.create_namespace(now, namespace);
        super::rights::revoke(&mut store);
        let server = Server::new(&store);
        Self {
            store,
            server,
            now: Duration::ZERO,
        }
    }

    /// Returns the new events of a watch.
    pub fn poll(&self, watch: &mut Watch) -> Vec<Value> {
        let lines = watch.poll(&self.store, &self.server, at(self.now));
        let events = lines.iter();
        events
            .map(|line| json!({ "type": line.event, "object": line.object }))
            .collect()
    }

    pub fn send(&mut self, sent: &Sent, user: User<'_>) -> Result<Answer, String> {
        self.now += Duration::from_millis(10);
        let call = Call {
            user,
            method: &sent.method,
            path_and_query: &sent.path,
            content_type: Some(sent.content_type).filter(|it| !it.is_empty()),
            accept: sent.accept,
            user_agent: None,
            body: &sent.body,
        };
        let answer = self.server.serve(&mut self.store, at(self.now), &call);
        answer.map_err(|unknown| unknown.to_string())
    }
}

/// Version of the real control plane, once a test has a client of it.
pub static RELEASE: OnceCell<Release> = OnceCell::const_new();

fn release() -> Release {
    RELEASE.get().copied().unwrap_or_default()
}

pub fn at(since_start: Duration) -> Now {
    let epoch = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    Now {
        since_start,
        wall: epoch + since_start + Duration::from_hours(490_000),
    }
}

/// Open watch of either side.
pub enum Events {
    Real(Lines<Box<dyn futures::AsyncBufRead + Send + Unpin>>),
    Simulated(Watch),
}

impl Side {
    /// Sends a request. Returns the status code and the body; a body that is not JSON becomes a string.
    pub async fn send(&mut self, sent: &Sent, user: User<'_>) -> (u16, Value) {
        let (code, _, body) = self.send_warned(sent, user).await;
        (code, body)
    }

    /// Sends a request. Returns its warnings as well.
    pub async fn send_warned(&mut self, sent: &Sent, user: User<'_>) -> (u16, Vec<String>, Value) {
        match self {
            Self::Real(client) => {
                let answer = client.send(request(sent, user)).await.unwrap();
                let code = answer.status().as_u16();
                let warnings = answer.headers().get_all("Warning").iter();
                let warnings = warnings.map(|it| it.to_str().unwrap().to_owned()).collect();
                let mut body = whole_body(answer.into_body()).await;
                if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
                    items.retain(|item| !is_its_own(item));
                }
                (code, warnings, body)
            }
            Self::Simulated(simulated) => match simulated.send(sent, user) {
                Ok(Answer::Whole {
                    code,
                    headers,
                    body,
                }) => {
                    let warnings = headers.into_iter().filter(|(name, _)| *name == "Warning");
                    (code, warnings.map(|(_, text)| text).collect(), body)
                }
                Ok(Answer::Watch(_)) => panic!("{} is a watch", sent.path),
                Err(unknown) => (0, Vec::new(), Value::String(unknown)),
            },
        }
    }

    /// Opens a watch. Returns the code and the body if it is rejected.
    pub async fn watch(&mut self, sent: &Sent, user: User<'_>) -> Result<Events, (u16, Value)> {
        match self {
            Self::Real(client) => {
                let answer = client.send(request(sent, user)).await.unwrap();
                let code = answer.status().as_u16();
                if code != 200 {
                    return Err((code, whole_body(answer.into_body()).await));
                }
                let body = answer.into_body().into_data_stream();
                let lines = body.map_err(std::io::Error::other).into_async_read();
                let lines: Box<dyn futures::AsyncBufRead + Send + Unpin> = Box::new(lines);
                Ok(Events::Real(lines.lines()))
            }
            Self::Simulated(simulated) => match simulated.send(sent, user) {
                Ok(Answer::Watch(watch)) => Ok(Events::Simulated(watch)),
                Ok(Answer::Whole { code, body, .. }) => Err((code, body)),
                Err(unknown) => Err((0, Value::String(unknown))),
            },
        }
    }

    /// Returns the events of a watch up to the first that matches `is_last`.
    pub async fn events(&mut self, events: Events, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut all = Vec::new();
        match (self, events) {
            (Self::Real(_), Events::Real(mut lines)) => {
                while !all.last().is_some_and(&is_last) {
                    let next =
                        tokio::time::timeout(Duration::from_secs(30), lines.try_next()).await;
                    let Some(line) = next.expect("an event within 30 s").unwrap() else {
                        break;
                    };
                    let event: Value = serde_json::from_str(&line).unwrap();
                    if !is_its_own(&event["object"]) {
                        all.push(event);
                    }
                }
            }
            (Self::Simulated(it), Events::Simulated(mut watch)) => {
                all = it.poll(&mut watch);
                let last = all.iter().position(is_last);
                all.truncate(last.map_or(all.len(), |at| at + 1));
            }
            _ => panic!("a watch of the other side"),
        }
        all
    }
}

impl Side {
    /// Returns the events of a watch up to its end, which must come within `limit`.
    pub async fn rest(&mut self, events: Events, limit: Duration) -> Vec<Value> {
        match (self, events) {
            (Self::Real(_), Events::Real(lines)) => {
                let lines = tokio::time::timeout(limit, lines.try_collect::<Vec<String>>()).await;
                let lines = lines.expect("the end of the watch").unwrap();
                lines
                    .iter()
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect()
            }
            (Self::Simulated(it), Events::Simulated(mut watch)) => {
                let end = it.now + limit;
                let mut all = Vec::new();
                while !watch.is_over() {
                    assert!(it.now < end, "it does not end");
                    it.now += Duration::from_millis(100);
                    all.extend(it.poll(&mut watch));
                }
                all
            }
            _ => panic!("a watch of the other side"),
        }
    }
}

/// Returns whether it is an Event written by the API server, which checks the addresses of Services periodically.
fn is_its_own(object: &Value) -> bool {
    object["regarding"]["kind"] == "Service" || object["involvedObject"]["kind"] == "Service"
}

/// Returns JSON, or a string for other text.
async fn whole_body(body: Body) -> Value {
    let body = body.collect_bytes().await.unwrap();
    let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
    serde_json::from_slice(&body).unwrap_or_else(|_| text())
}

/// Returns a request without a body.
pub fn get(path: impl Into<String>) -> Sent {
    Sent {
        method: Method::GET,
        path: path.into(),
        content_type: "",
        accept: None,
        body: Vec::new(),
    }
}

fn request(sent: &Sent, user: User<'_>) -> http::Request<Body> {
    let mut request = http::Request::builder()
        .method(&sent.method)
        .uri(&sent.path);
    if !sent.content_type.is_empty() {
        request = request.header("Content-Type", sent.content_type);
    }
    if user.name != ADMIN.name {
        let extra = "Impersonate-Extra-authentication.kubernetes.io%2F";
        request = request.header("Impersonate-User", user.name);
        if user.name != LIMITED.name {
            request = request.header("Impersonate-Group", "system:masters");
        }
        if let Some((pod, uid)) = user.pod {
            request = request.header(format!("{extra}pod-name"), pod);
            request = request.header(format!("{extra}pod-uid"), uid);
        }
    }
    request = request.header("Accept", sent.accept.unwrap_or("application/json"));
    request.body(Body::from(sent.body.clone())).unwrap()
}

/// UIDs and versions of each object in the responses of one side, the newest last.
#[derive(Default)]
pub struct Told(BTreeMap<(Kind, String), (Vec<String>, Vec<String>)>);

impl Told {
    pub fn note(&mut self, kind: Kind, answer: &Value) {
        let metadata = &answer["metadata"];
        if let (Some(name), Some(uid), Some(version)) = (
            metadata["name"].as_str(),
            metadata["uid"].as_str(),
            metadata["resourceVersion"].as_str(),
        ) {
            let key = (kind.stored(), name.to_owned());
            let (uids, versions) = self.0.entry(key).or_default();
            for (all, one) in [(uids, uid), (versions, version)] {
                if all.last().is_none_or(|last| last != one) {
                    all.push(one.to_owned());
                }
            }
        }
    }

    /// Returns the UID and the version for `base`. The `wrong` values match no object.
    fn say(&self, step: &Step, base: Base) -> (Option<String>, Option<String>) {
        static NONE: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let (uids, versions) = self
            .0
            .get(&(step.kind.stored(), step.name.to_owned()))
            .unwrap_or(&NONE);
        let say = |which, all: &[String], wrong: &str| match which {
            Which::Unsaid => None,
            Which::Current => Some(all.last().cloned().unwrap_or_else(|| wrong.to_owned())),
            Which::Former => Some(
                all.iter()
                    .rev()
                    .nth(1)
                    .cloned()
                    .unwrap_or_else(|| wrong.to_owned()),
            ),
            Which::Wrong => Some(wrong.to_owned()),
        };
        (
            say(base.uid, uids, "00000000-0000-0000-0000-000000000000"),
            say(base.version, versions, "1"),
        )
    }
}

/// Returns the path of all objects of a kind in a namespace.
pub fn path(kind: Kind, namespace: &str) -> String {
    let info = kind.info();
    let group = if info.group.is_empty() {
        "api".to_owned()
    } else {
        format!("apis/{}", info.group)
    };
    format!(
        "/{group}/{}/namespaces/{namespace}/{}",
        info.version, info.plural
    )
}

/// Returns the request of `step` for a side that has returned these UIDs and versions.
#[allow(clippy::too_many_lines, reason = "one arm for each act")]
pub fn sent(step: &Step, namespace: &str, told: &Told) -> Sent {
    let all = path(step.kind, namespace);
    let one = format!("{all}/{}", step.name);
    let with = |part: &str| {
        if part.is_empty() {
            one.clone()
        } else {
            format!("{one}/{part}")
        }
    };
    let query = |dry: bool| {
        if dry {
            "?fieldManager=test&timeout=5000ms&dryRun=All"
        } else {
            "?fieldManager=test&timeout=5000ms"
        }
    };
    let json = "application/json";
    match &step.act {
        Act::Get => get(one),
        Act::Metadata(read) => {
            let is_list = matches!(**read, Act::List | Act::Find | Act::Pages(_));
            let read = Step {
                act: Act::clone(read),
                ..step.clone()
            };
            Sent {
                accept: Some(if is_list { METADATA_LIST } else { METADATA }),
                ..sent(&read, namespace, told)
            }
        }
        Act::Scale => get(format!("{one}/scale")),
        Act::Stream(one) => {
            let one = if *one {
                format!("&fieldSelector=metadata.name%3D{}", step.name)
            } else {
                String::new()
            };
            get(format!(
                "{all}?watch=true&timeoutSeconds=60&allowWatchBookmarks=true&sendInitialEvents=true\
                 &resourceVersionMatch=NotOlderThan&resourceVersion={one}"
            ))
        }
        Act::List => get(format!("{all}?limit=500")),
        Act::Find => get(format!("{all}?fieldSelector=metadata.name%3D{}", step.name)),
        Act::Pages(size) => get(format!("{all}?limit={size}")),
        Act::Create { body, dry } => Sent {
            method: Method::POST,
            path: format!("{all}{}", query(*dry)),
            content_type: json,
            accept: None,
            body: whole(step, namespace, "", body, (None, None)),
        },
        Act::Put {
            part,
            body,
            base,
            dry,
        } => Sent {
            method: Method::PUT,
            path: format!("{}{}", with(part), query(*dry)),
            content_type: json,
            accept: None,
            body: whole(step, namespace, part, body, told.say(step, *base)),
        },
        Act::Patch {
            part,
            style,
            body,
            base,
            dry,
        } => Sent {
            method: Method::PATCH,
            path: format!("{}{}", with(part), query(*dry)),
            content_type: style,
            // Like the operator, which requests only the metadata of its fencing record.
            accept: (step.kind == Kind::ServiceAccount).then_some(METADATA),
            body: based(body.clone(), told.say(step, *base))
                .to_string()
                .into_bytes(),
        },
        Act::Apply {
            part,
            body,
            base,
            manager,
            force,
            dry,
        } => {
            let dry = if *dry { "&dryRun=All" } else { "" };
            let query = format!("fieldManager={manager}&force={force}&timeout=5000ms{dry}");
            Sent {
                method: Method::PATCH,
                path: format!("{}?{query}", with(part)),
                content_type: APPLY,
                accept: None,
                body: whole(step, namespace, part, body, told.say(step, *base)),
            }
        }
        Act::Delete { options, base } => {
            let mut options = options.clone();
            let (uid, version) = told.say(step, *base);
            if uid.is_some() || version.is_some() {
                options["preconditions"] = json!({});
            }
            for (field, value) in [("uid", uid), ("resourceVersion", version)] {
                if let Some(value) = value {
                    options["preconditions"][field] = value.into();
                }
            }
            let body = options.to_string().into_bytes();
            Sent {
                method: Method::DELETE,
                path: format!("{one}?timeout=5000ms"),
                content_type: json,
                accept: None,
                body,
            }
        }
        Act::Review {
            verb,
            part,
            everywhere,
        } => {
            let info = step.kind.info();
            let mut attributes =
                json!({ "group": info.group, "resource": info.plural, "verb": verb });
            if !part.is_empty() {
                attributes["subresource"] = (*part).into();
            }
            if !everywhere {
                attributes["namespace"] = namespace.into();
            }
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                "spec": { "resourceAttributes": attributes },
            });
            Sent {
                method: Method::POST,
                path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?timeout=5000ms"
                    .to_owned(),
                content_type: json,
                accept: None,
                body: review.to_string().into_bytes(),
            }
        }
        Act::Raw {
            method,
            style,
            body,
        } => Sent {
            method: method.clone(),
            path: if *method == Method::POST { all } else { one },
            content_type: style,
            accept: None,
            body: body.as_bytes().to_vec(),
        },
    }
}

/// Returns a complete object. Adds the name and the kind unless the body specifies them.
fn whole(
    step: &Step,
    namespace: &str,
    part: &str,
    body: &Value,
    base: (Option<String>, Option<String>),
) -> Vec<u8> {
    let mut object = body.clone();
    let (api_version, kind) = match part {
        "scale" => ("autoscaling/v1".to_owned(), "Scale"),
        _ => (step.kind.api_version(), step.kind.info().kind),
    };
    for (field, value) in [("apiVersion", json!(api_version)), ("kind", json!(kind))] {
        match object.get(field) {
            None => object[field] = value,
            Some(Value::Null) => _ = object.as_object_mut().unwrap().remove(field),
            Some(_) => {}
        }
    }
    if object["metadata"].get("name").is_none() {
        object["metadata"]["name"] = step.name.into();
    }
    let of = match step.kind {
        Kind::Event => Some("regarding"),
        Kind::CoreEvent => Some("involvedObject"),
        _ => None,
    };
    if let Some(of) = of.filter(|of| object[of]["namespace"].is_null()) {
        object[of]["namespace"] = namespace.into();
    }
    based(object, base).to_string().into_bytes()
}

fn based(mut object: Value, (uid, version): (Option<String>, Option<String>)) -> Value {
    for (field, value) in [("uid", uid), ("resourceVersion", version)] {
        if let Some(value) = value {
            object["metadata"][field] = value.into();
        }
    }
    object
}
