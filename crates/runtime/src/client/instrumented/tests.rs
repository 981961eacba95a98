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
use crate::{client::fence, config::app::tests::APP};

/// Exporter of this thread's spans while the guard is alive.
fn exported() -> (InMemorySpanExporter, DefaultGuard) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans));
    (exporter, guard)
}

/// Sends a request through `layer`, within a span. The server returns `answer`. Returns the exported span.
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
        fence::failed_by,
    )
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

/// A span has the attributes of the conventions. Only its URL contains the object's name and the query.
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
    let named = named.filter(|label| label.value.as_str().contains("secret-name"));
    assert_eq!(named.count(), 1, "in url.full alone");
    assert_eq!(span.status, Status::Unset);
}

/// A failed span names its type. A 404 to a read is not a failure.
#[tokio::test]
async fn a_failure_is_counted_by_its_kind() {
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

/// Lease renewals every other second do not become traces outside a span.
#[tokio::test]
async fn a_request_within_no_span_can_be_left_out() {
    let unanswered = service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(())));
    let request = || Request::new(Body::empty());
    let (exporter, _guard) = exported();
    let service = layer().within_spans().layer(unanswered);
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

/// The URL contains the server's path and no credentials.
#[test]
fn a_url_has_the_servers_path_and_no_credentials() {
    for (server, expected) in [
        ("https://api:6443", "https://api:6443"),
        ("https://u:p@h/k8s/clusters/c/", "https://h/k8s/clusters/c"),
        ("https://u:p%40@[::1]:1", "https://[::1]:1"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ] {
        assert_eq!(base(&Uri::from_static(server)), expected);
    }
}

/// Span names contain no name that a user chose.
#[test]
fn span_names_contain_no_names_of_objects() {
    for (path, template, resource) in [
        (
            "/apis/apps/v1/namespaces/n/deployments/d",
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
            "deployments",
        ),
        (
            "/apis/g/v1alpha1/namespaces/n/things/f/status",
            "/apis/g/v1alpha1/namespaces/{namespace}/things/{name}/status",
            "things/status",
        ),
        (
            "/apis/g/v1alpha1/things",
            "/apis/g/v1alpha1/things",
            "things",
        ),
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
