//! What is seen of each request to the API server: a client span by the semantic conventions for HTTP, and a count.
//!
//! A tower layer, the outermost of a client's, so that what the fence or the lease guard refuses is seen, too.
//! A span ends with the answer's headers: that of a watch does not last as long as the watch. An object's name and
//! the query are in `url.full` alone, so that spans of one kind have one name.

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

use super::{
    metrics::{self, Metrics},
    trace,
};
use crate::{
    failure::root_cause,
    layer::{Around, Layered},
};

/// Makes the spans of one client.
#[derive(Clone, Debug)]
pub struct RequestLayer {
    host: Arc<str>,
    port: u16,
    /// What a request's path is added to: scheme, host, port, and perhaps a path.
    base: Arc<str>,
    /// Whether a request that is no part of anything is a trace of its own.
    alone: bool,
    counts: metrics::requests::Requests,
    failed_by: fn(&BoxError) -> FailedBy,
}

/// What a request came to that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBy {
    /// A layer of the client's refused it: it was never sent.
    Layer(&'static str),
    /// It took too long.
    Timeout,
    /// The connection, or there was none.
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
    /// For a client of the API server at `server`, whose requests are counted in `metrics`; `failed_by` knows the errors of
    /// the layers below.
    #[must_use]
    pub fn new(server: &Uri, metrics: &Metrics, failed_by: fn(&BoxError) -> FailedBy) -> Self {
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

    /// The same, but for requests that are part of a span: the others are of no interest each.
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

/// An address that can be printed: credentials in it are nothing that is ever sent.
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

/// The server's address without credentials, and without a slash at its end.
fn base(server: &Uri) -> String {
    let server = without_credentials(server.clone());
    let authority = server.authority().map(Authority::as_str);
    let host = authority.unwrap_or_default();
    let scheme = server.scheme_str().unwrap_or("https");
    let path = server.path().trim_end_matches('/');
    format!("{scheme}://{host}{path}")
}

impl<S> Layer<S> for RequestLayer {
    type Service = Layered<Self, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(self, inner)
    }
}

impl<S, B> Around<S, Request<Body>> for RequestLayer
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
                tell(request.headers_mut());
            }
            let method = request.method().clone();
            let (counts, failed_by) = (self.counts.clone(), self.failed_by);
            let begun = Instant::now();
            let reply = inner.call(request);
            async move {
                let reply = reply.await.map_err(Into::into);
                let code = reply.as_ref().map(|response| response.status().as_u16());
                // What was refused here was never a request.
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

/// Tells the API server of the current span, as `OTEL_PROPAGATORS` says.
fn tell(headers: &mut HeaderMap) {
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

/// The path with placeholders for what is chosen by users, and the resource with its subresource.
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
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]

    use opentelemetry::trace::{SpanKind, Status, TracerProvider as _};
    use opentelemetry_sdk::{
        propagation::TraceContextPropagator,
        trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
    };
    use tower::{ServiceExt as _, service_fn};
    use tracing::subscriber::DefaultGuard;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::app::tests::APP;
    use crate::election::{self, fence};

    /// Where this thread's spans go, as long as the guard is there.
    fn exported() -> (InMemorySpanExporter, DefaultGuard) {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans));
        (exporter, guard)
    }

    /// Sends a request that is answered so, through `layer` within a span; returns what was exported of it.
    async fn span_of(layer: RequestLayer, method: Method, answer: Answer) -> Option<SpanData> {
        let (exporter, _guard) = exported();
        let request = Request::builder()
            .method(method)
            .uri("/apis/apps/v1/namespaces/n/deployments/secret-name?timeout=1s")
            .body(Body::empty())
            .unwrap();
        let server = service_fn(move |request: Request<Body>| async move {
            assert!(request.headers().contains_key("traceparent"));
            let status = answer()?;
            Ok::<_, BoxError>(Response::builder().status(status).body(()).unwrap())
        });
        let _ = layer.layer(server).oneshot(request).await;
        exporter.get_finished_spans().unwrap().pop()
    }

    type Answer = fn() -> Result<u16, BoxError>;

    fn layer() -> RequestLayer {
        global::set_text_map_propagator(TraceContextPropagator::new());
        RequestLayer::new(
            &Uri::from_static("https://api:6443"),
            &Metrics::disconnected(&APP),
            election::failed_by,
        )
    }

    fn attribute(span: &SpanData, name: &str) -> Option<String> {
        let mut attributes = span.attributes.iter();
        let found = attributes.find(|attribute| attribute.key.as_str() == name);
        found.map(|attribute| attribute.value.to_string())
    }

    /// A request's span has what the conventions ask for, and no object's name or query but in its URL.
    #[tokio::test]
    async fn a_request_is_a_client_span() {
        let span = span_of(layer(), Method::PATCH, || Ok(200)).await.unwrap();
        assert_eq!(
            (&*span.name, span.span_kind.clone()),
            ("PATCH deployments", SpanKind::Client)
        );
        for (name, value) in [
            ("http.request.method", "PATCH"),
            ("http.response.status_code", "200"),
            ("server.address", "api"),
            ("server.port", "6443"),
            (
                "url.full",
                "https://api:6443/apis/apps/v1/namespaces/n/deployments/secret-name?timeout=1s",
            ),
            (
                "url.template",
                "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
            ),
        ] {
            assert_eq!(attribute(&span, name).as_deref(), Some(value), "{name}");
        }
        let named = span.attributes.iter();
        let named = named.filter(|told| told.value.as_str().contains("secret-name"));
        assert_eq!(named.count(), 1, "in url.full alone");
        assert_eq!(span.status, Status::Unset);
    }

    /// A failure says of which kind it is; that something is not there is an answer like any other.
    #[tokio::test]
    async fn a_failure_is_told_by_its_kind() {
        let outcomes: [(Method, Answer, Option<&str>); 6] = [
            (Method::GET, || Ok(404), None),
            (Method::DELETE, || Ok(404), Some("404")),
            (Method::POST, || Ok(409), Some("409")),
            (Method::POST, || Err(fence::Refused.into()), Some("fence")),
            (
                Method::POST,
                || Err(fence::TimedOut(std::time::Duration::MAX).into()),
                Some("timeout"),
            ),
            (
                Method::GET,
                || Err("broken pipe".into()),
                Some("connection"),
            ),
        ];
        for (method, answer, kind) in outcomes {
            let span = span_of(layer(), method, answer).await.unwrap();
            assert_eq!(attribute(&span, "error.type").as_deref(), kind);
            let failed = matches!(span.status, Status::Error { .. });
            assert_eq!(failed, kind.is_some(), "{:?}", span.status);
        }
    }

    /// Renewals of the Lease every other second are no traces, unless something is made of them.
    #[tokio::test]
    async fn a_request_within_no_span_can_be_left_out() {
        let untold = service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(())));
        let request = || Request::new(Body::empty());
        let (exporter, _guard) = exported();
        let service = layer().within_spans().layer(untold);
        service.clone().oneshot(request()).await.unwrap();
        assert_eq!(exporter.get_finished_spans().unwrap().len(), 0);
        service
            .oneshot(request())
            .instrument(info_span!("acquire"))
            .await
            .unwrap();
        let spans = exporter.get_finished_spans().unwrap();
        let [request, acquire] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!(request.parent_span_id, acquire.span_context.span_id());
    }

    /// The URL is the server's, with its path, and without credentials.
    #[test]
    fn a_url_begins_with_the_servers() {
        for (server, expected) in [
            ("https://api:6443", "https://api:6443"),
            ("https://u:p@h/k8s/clusters/c/", "https://h/k8s/clusters/c"),
            ("https://u:p%40@[::1]:1", "https://[::1]:1"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
        ] {
            assert_eq!(base(&Uri::from_static(server)), expected);
        }
    }

    /// No name that a user chose is in what spans are told apart by.
    #[test]
    fn a_path_has_a_shape() {
        for (path, template, resource) in [
            (
                "/apis/apps/v1/namespaces/n/deployments/d",
                "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
                "deployments",
            ),
            (
                "/apis/g/v1alpha1/namespaces/n/foos/f/status",
                "/apis/g/v1alpha1/namespaces/{namespace}/foos/{name}/status",
                "foos/status",
            ),
            ("/apis/g/v1alpha1/foos", "/apis/g/v1alpha1/foos", "foos"),
            (
                "/api/v1/namespaces/n",
                "/api/v1/namespaces/{name}",
                "namespaces",
            ),
            ("/api/v1", "/api/v1", "api/v1"),
            ("/version", "/version", "/version"),
            ("/apis", "/apis", "apis"),
        ] {
            assert_eq!(
                shape(path),
                (template.to_owned(), resource.to_owned()),
                "{path}"
            );
        }
    }
}
