//! Client spans (OpenTelemetry semantic conventions for HTTP) and metrics of requests to the API server.
//!
//! This tower layer is the outermost of a client, so it also records requests that the fence or the lease guard rejects. A span
//! ends with the response headers, so the span of a watch is short. Only `url.full` contains the object's name and the query,
//! so that requests of the same kind share a span name.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    uri::{Authority, PathAndQuery},
};
use kube::client::Body;
use opentelemetry::{Context as OtelContext, global, propagation::Injector};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};
use tracing::{Instrument as _, Span, field::Empty, info_span};

use crate::{
    api::failure::root_cause,
    client::middleware::{Middleware, MiddlewareService},
    telemetry::{
        metrics::{self, Metrics},
        trace,
    },
};

/// Layer that creates the spans of one client.
#[derive(Clone, Debug)]
pub(crate) struct RequestLayer {
    host: Arc<str>,
    port: u16,
    /// Prefix of a request's path: scheme, host, port and optional path.
    base: Arc<str>,
    /// Whether a request outside any span becomes a trace of its own.
    alone: bool,
    counts: metrics::requests::Requests,
    failed_by: fn(&BoxError) -> FailedBy,
}

/// Cause of a request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedBy {
    /// A layer of the client rejected the request. It was never sent.
    Layer(&'static str),
    /// The request timed out.
    Timeout,
    /// The connection failed, or could not be opened.
    Connection,
}

impl FailedBy {
    fn name(self) -> &'static str {
        match self {
            Self::Layer(name) => name,
            Self::Timeout => "timeout",
            Self::Connection => "connection",
        }
    }
}

impl RequestLayer {
    /// Creates the layer for a client of the API server at `server`. Requests are counted in `metrics`. `failed_by` classifies
    /// the errors of the layers below.
    #[must_use]
    pub(crate) fn new(
        server: &Uri,
        metrics: &Metrics,
        failed_by: fn(&BoxError) -> FailedBy,
    ) -> Self {
        let default = if server.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let host = server.host().unwrap_or_default();
        let port = server.port_u16().unwrap_or(default);
        Self {
            host: host.into(),
            port,
            base: base(server).into(),
            alone: true,
            counts: metrics::requests::Requests::new(metrics, &format!("{host}:{port}")),
            failed_by,
        }
    }

    /// Limits the layer to requests within a span, for requests that are too frequent for a trace each.
    #[must_use]
    pub(crate) fn within_spans(self) -> Self {
        Self {
            alone: false,
            ..self
        }
    }

    fn span(&self, request: &Request<Body>) -> Span {
        if !self.alone && Span::current().is_none() {
            return Span::none();
        }
        let span = info_span!(
            "request",
            otel.name = Empty,
            otel.kind = "client",
            otel.status_description = Empty,
            http.request.method = %request.method(),
            http.response.status_code = Empty,
            server.address = &*self.host,
            server.port = i64::from(self.port),
            url.full = Empty,
            url.template = Empty,
            error.type = Empty,
        );
        if !span.is_disabled() {
            let (template, resource) = shape(request.uri().path());
            span.record("otel.name", format!("{} {resource}", request.method()));
            span.record("url.template", template);
            let path = request.uri().path_and_query();
            let path = path.map_or("/", PathAndQuery::as_str);
            span.record("url.full", format!("{}{path}", self.base));
        }
        span
    }
}

/// Removes the credentials from an address, so that it can be logged. They are never sent.
pub(crate) fn without_credentials(mut address: Uri) -> Uri {
    let authority = address.authority().map(Authority::as_str);
    let host = authority.and_then(|authority| authority.rsplit_once('@'));
    if let Some((_, host)) = host {
        let host = host.parse().ok();
        let mut parts = address.into_parts();
        parts.authority = host;
        address = Uri::from_parts(parts).unwrap_or_default();
    }
    address
}

/// Returns the server's address without credentials and trailing slash.
fn base(server: &Uri) -> String {
    let server = without_credentials(server.clone());
    let authority = server.authority().map(Authority::as_str);
    let host = authority.unwrap_or_default();
    let scheme = server.scheme_str().unwrap_or("https");
    let path = server.path().trim_end_matches('/');
    format!("{scheme}://{host}{path}")
}

impl<S> Layer<S> for RequestLayer {
    type Service = MiddlewareService<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        MiddlewareService::new(self, inner)
    }
}

impl<S, B> Middleware<S, Request<Body>> for RequestLayer
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;

    fn around(
        &self,
        mut request: Request<Body>,
        inner: &mut S,
    ) -> BoxFuture<'static, Result<Self::Response, BoxError>> {
        let span = self.span(&request);
        let reply = span.in_scope(|| {
            if !span.is_disabled() {
                propagate(request.headers_mut());
            }
            let method = request.method().clone();
            let (counts, failed_by) = (self.counts.clone(), self.failed_by);
            let begun = Instant::now();
            let reply = inner.call(request);
            async move {
                let reply = reply.await.map_err(Into::into);
                let code = reply.as_ref().map(|response| response.status().as_u16());
                // A request that a layer rejected was never sent.
                let failed = code.as_ref().err().map(|error| failed_by(error));
                if !matches!(failed, Some(FailedBy::Layer(_))) {
                    counts.ended(&method, code.ok(), begun.elapsed());
                }
                record(&Span::current(), method == Method::GET, &reply, failed);
                reply
            }
        });
        Box::pin(reply.instrument(span))
    }
}

/// Adds the current span to the headers, in the format of `OTEL_PROPAGATORS`.
fn propagate(headers: &mut HeaderMap) {
    struct Headers<'a>(&'a mut HeaderMap);
    impl Injector for Headers<'_> {
        fn set(&mut self, name: &str, value: String) {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                self.0.insert(name, value);
            }
        }
    }
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&OtelContext::current(), &mut Headers(headers));
    });
}

fn record<B>(
    span: &Span,
    read: bool,
    reply: &Result<Response<B>, BoxError>,
    failed: Option<FailedBy>,
) {
    if span.is_none() {
        return;
    }
    match reply {
        Ok(response) => {
            let status = response.status();
            span.record("http.response.status_code", i64::from(status.as_u16()));
            let absent = read && status == StatusCode::NOT_FOUND;
            if (status.is_client_error() || status.is_server_error()) && !absent {
                trace::failed(span, status.as_str(), &status);
            }
        }
        Err(error) => {
            let by = failed.map_or("connection", FailedBy::name);
            trace::failed(span, by, &root_cause(&**error));
        }
    }
}

/// Returns the path with placeholders for names, and the resource with its subresource.
fn shape(path: &str) -> (String, String) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let root = match parts.first() {
        Some(&"apis") => 3,
        Some(&"api") => 2,
        _ => return (path.to_owned(), path.to_owned()),
    };
    let (root, mut rest) = parts.split_at(root.min(parts.len()));
    let mut template = root.join("/");
    if let ["namespaces", _, inside @ ..] = rest
        && !inside.is_empty()
    {
        template.push_str("/namespaces/{namespace}");
        rest = inside;
    }
    let resource = match rest {
        [] => template.clone(),
        [resource] | [resource, _] => (*resource).to_owned(),
        [resource, _, sub @ ..] => format!("{resource}/{}", sub.join("/")),
    };
    for (at, part) in rest.iter().enumerate() {
        template.push('/');
        template.push_str(if at == 1 { "{name}" } else { part });
    }
    (format!("/{template}"), resource)
}

#[cfg(test)]
mod tests;
