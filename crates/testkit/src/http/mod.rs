//! The simulated API server over HTTPS on loopback, for kubectl and other clients.
//!
//! A token names the user. A request that is not modelled gets the code 501, with the missing part: never a wrong success.

mod columns;
mod discovery;
mod json_path;
mod openapi;
mod protobuf;
mod table;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};

use ::http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
    request::Parts,
};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::generate_simple_self_signed;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::{
    api_server::{Answer, Call, Kind, METADATA, METADATA_LIST, User, Watch},
    plane::{ControlPlane, service::failed},
};
use columns::Column;
use protobuf::Undecoded;
use table::{Include, TABLE, table};

/// Maximum size of a request, as in etcd's default limit with room for its encoding.
const MAX_BODY: usize = 3 << 20;

/// Content type of [`protobuf`].
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A running server. Drop ends it and its connections.
pub struct Served {
    address: SocketAddr,
    certificate: String,
    _serving: JoinSet<()>,
}

impl ControlPlane {
    /// Serves the control plane on a free port of 127.0.0.1, with TLS. The token of a client is the name of its user.
    ///
    /// # Errors
    /// No port can be opened.
    pub async fn serve(&self) -> io::Result<Served> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let made = generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let key = made.signing_key.serialize_der();
        let key = PrivateKeyDer::try_from(key).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .map_err(io::Error::other)?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(accept(
            listener,
            Arc::new(config).into(),
            Front(self.clone()),
        ));
        Ok(Served {
            address,
            certificate: pem::encode(&pem::Pem::new("CERTIFICATE", made.cert.der().to_vec())),
            _serving: serving,
        })
    }
}

impl Served {
    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns a kubeconfig for a user.
    pub fn kubeconfig(&self, user: &str) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "simulated",
            "clusters": [{ "name": "simulated", "cluster": {
                "server": self.url(), "certificate-authority-data": base64(self.certificate.as_bytes()),
            } }],
            "users": [{ "name": "user", "user": { "token": user } }],
            "contexts": [{ "name": "simulated", "context": { "cluster": "simulated", "user": "user" } }],
        });
        // JSON is YAML.
        config.to_string()
    }
}

/// Encodes bytes in base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    // The only public encoder among the dependencies.
    let encoded = k8s_openapi::ByteString(bytes.to_vec());
    let text = serde_json::to_value(encoded).unwrap_or_default();
    text.as_str().unwrap_or_default().to_owned()
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, front: Front) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, front) = (tls.clone(), front.clone());
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| {
                let front = front.clone();
                async move { front.respond(request).await }
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Clone)]
struct Front(ControlPlane);

/// Form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    Metadata,
    Table(Include),
}

impl Front {
    async fn respond(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let token = header(&head.headers, AUTHORIZATION.as_str()).strip_prefix("Bearer ");
        let Some(user) = token else {
            return Ok(status(401, "Unauthorized", "Unauthorized"));
        };
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
            return Ok(status(413, "RequestEntityTooLarge", "limit is 3145728"));
        };
        let body = body.to_bytes();
        if let Some(found) = self.document(&head) {
            return Ok(found);
        }
        let accept = header(&head.headers, ACCEPT.as_str());
        let Some(form) = form(accept, head.uri.query().unwrap_or_default()) else {
            let words = "only the following media types are accepted: application/json";
            return Ok(status(406, "NotAcceptable", words));
        };
        let content_type = header(&head.headers, CONTENT_TYPE.as_str());
        if content_type.contains("cbor") {
            let words = "the body of the request was in an unknown format - accepted media types include: application/json, \
                         application/vnd.kubernetes.protobuf";
            return Ok(status(415, "UnsupportedMediaType", words));
        }
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if body.is_empty() || media_type != PROTOBUF || head.method == Method::PATCH {
            return self.answer(&head, &body, user, content_type, form);
        }
        match protobuf::decode(&body) {
            Ok(object) => {
                let body = object.to_string();
                self.answer(&head, body.as_bytes(), user, "application/json", form)
            }
            Err(Undecoded::Malformed(why)) => {
                let words = format!("the object provided is unrecognized: {why}");
                Ok(status(400, "BadRequest", &words))
            }
            Err(Undecoded::NotModelled(what)) => {
                let body = self.0.refuse_unmodelled(what);
                Ok(whole(501, "application/json", body.to_string()))
            }
        }
    }

    /// Returns a document about the API itself.
    fn document(&self, head: &Parts) -> Option<Response<Body>> {
        let path = head.uri.path();
        if head.method != Method::GET || !is_about_the_api(path) {
            return None;
        }
        if matches!(path, "/readyz" | "/livez" | "/healthz") {
            return Some(whole(200, "text/plain", "ok".into()));
        }
        let definitions = self.definitions();
        let release = self.0.state().store.release;
        let mut resources = discovery::built_in();
        resources.extend(definitions.iter().flat_map(|it| discovery::custom(it)));
        let accept = header(&head.headers, ACCEPT.as_str());
        let found = discovery::document(path, accept, &resources, release).or_else(|| {
            let document = openapi::document(path, &resources, &definitions, release)?;
            Some(("application/json", document))
        });
        found.map(|(content, body)| whole(200, content, body.to_string()))
    }

    /// Returns the CRDs.
    fn definitions(&self) -> Vec<Arc<Value>> {
        let state = self.0.state();
        let all = state.store.list(Kind::CustomResourceDefinition, None);
        all.map(|(_, definition)| definition.clone()).collect()
    }

    fn answer(
        &self,
        head: &Parts,
        body: &[u8],
        user: &str,
        content_type: &str,
        form: Form,
    ) -> io::Result<Response<Body>> {
        let is_list = head.method == Method::GET && !names_object(head.uri.path());
        let query = head.uri.query().unwrap_or_default().split('&');
        let query: Vec<_> = query
            .filter(|it| !it.starts_with("includeObject="))
            .collect();
        let is_watch = query
            .iter()
            .any(|it| matches!(*it, "watch=true" | "watch=1"));
        let path_and_query = match query.join("&") {
            none if none.is_empty() => head.uri.path().to_owned(),
            query => format!("{}?{query}", head.uri.path()),
        };
        let call = Call {
            user: User {
                name: user,
                pod: None,
            },
            method: &head.method,
            path_and_query: &path_and_query,
            content_type: Some(content_type).filter(|it| !it.is_empty()),
            accept: Some(match form {
                Form::Metadata if is_list && !is_watch => METADATA_LIST,
                Form::Metadata => METADATA,
                Form::Whole | Form::Table(_) => "application/json",
            }),
            user_agent: head
                .headers
                .get(USER_AGENT)
                .and_then(|agent| agent.to_str().ok()),
            body,
        };
        let (code, headers, body) = match self.0.answer_as_scripted(&call)? {
            Ok(Answer::Whole {
                code,
                headers,
                body,
            }) => (code, headers, body),
            Ok(Answer::Watch(watch)) => return Ok(self.watch(watch, form)),
            Err(code) => (code, Vec::new(), failed(code)),
        };
        let body = match form {
            Form::Table(include) if code == 200 => match self.table(&body, include) {
                Ok(table) => table,
                Err(words) => return Ok(status(501, "NotModelled", &words)),
            },
            _ => body,
        };
        let text = match body {
            Value::String(text) => text,
            body => body.to_string(),
        };
        let mut response = whole(code, "application/json", text);
        for (name, value) in headers {
            if let Ok(value) = value.parse() {
                response.headers_mut().append(name, value);
            }
        }
        Ok(response)
    }

    fn columns(&self, api_version: &str, kind: &str) -> Result<Vec<Column>, String> {
        let unknown = || format!("not modelled: a table of {kind}");
        let Some((group, version)) = api_version.split_once('/') else {
            return columns::built_in(kind).ok_or_else(unknown);
        };
        for definition in self.definitions() {
            let spec = &definition["spec"];
            if spec["group"] == group && spec["names"]["kind"] == kind {
                let mut versions = spec["versions"].as_array().into_iter().flatten();
                let version = versions.find(|it| it["name"] == version);
                let columns = columns::custom(version.ok_or_else(unknown)?);
                return columns.map_err(|words| format!("not modelled: {words}"));
            }
        }
        columns::built_in(kind).ok_or_else(unknown)
    }

    /// Returns the table of a list or an object. A `Status` stays.
    fn table(&self, body: &Value, include: Include) -> Result<Value, String> {
        let text = |field: &str| body[field].as_str().unwrap_or_default();
        let (kind, api_version) = (text("kind"), text("apiVersion"));
        if kind == "Status" {
            return Ok(body.clone());
        }
        let now = self.0.now().wall;
        if let (Some(items), Some(kind)) = (body["items"].as_array(), kind.strip_suffix("List")) {
            let columns = self.columns(api_version, kind)?;
            return Ok(table(&columns, items, &body["metadata"], include, now));
        }
        let columns = self.columns(api_version, kind)?;
        let metadata = json!({ "resourceVersion": body["metadata"]["resourceVersion"] });
        Ok(table(
            &columns,
            std::slice::from_ref(body),
            &metadata,
            include,
            now,
        ))
    }

    /// Streams the events of a watch.
    fn watch(&self, watch: Watch, form: Form) -> Response<Body> {
        let shown = move |plane: &ControlPlane, mut line: Value| {
            if let Form::Table(include) = form
                && !matches!(line["type"].as_str(), Some("BOOKMARK" | "ERROR"))
                && let Ok(table) = Self(plane.clone()).table(&line["object"], include)
            {
                line["object"] = table;
            }
            line
        };
        let lines = self.0.clone().events(watch, shown);
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(lines)));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

/// Returns the form that a client accepts, or `None` if it accepts no JSON.
fn form(accept: &str, query: &str) -> Option<Form> {
    if accept.contains(TABLE) {
        let include = query
            .split('&')
            .find_map(|it| it.strip_prefix("includeObject="));
        return Some(Form::Table(match include {
            Some("Object") => Include::Object,
            Some("None") => Include::None,
            _ => Include::Metadata,
        }));
    }
    if accept.contains("as=PartialObjectMetadata") {
        return Some(Form::Metadata);
    }
    let is_json = accept.is_empty() || accept.contains("json") || accept.contains("*/*");
    is_json.then_some(Form::Whole)
}

/// Returns whether a path is that of a document, and not of objects.
fn is_about_the_api(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    match parts.next() {
        Some("api") => parts.count() <= 1,
        Some("apis") => parts.count() <= 2,
        _ => true,
    }
}

/// Returns whether a path names one object.
fn names_object(path: &str) -> bool {
    let mut parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let prefix = if parts[0] == "api" { 2 } else { 3 };
    parts.drain(..prefix.min(parts.len()));
    match parts.as_slice() {
        ["namespaces", _] => true,
        ["namespaces", _, rest @ ..] | rest => rest.len() > 1,
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

fn whole(code: u16, content: &str, text: String) -> Response<Body> {
    let mut response = Response::new(BodyExt::boxed_unsync(Full::new(Bytes::from(text))));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    if let Ok(content) = content.parse() {
        response.headers_mut().insert(CONTENT_TYPE, content);
    }
    response
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
        "code": code,
    });
    whole(code, "application/json", status.to_string())
}
