//! What is seen of each request to the API server: a client span by the semantic conventions for HTTP.
//!
//! A tower layer, the outermost of a client's, so that what the fence or the lease guard refuses is seen, too.
//! A span ends with the answer's headers: that of a watch does not last as long as the watch. Neither a name
//! nor a query is in it, so that spans of one kind have one name.

use std::{
    error::Error as StdError,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use kube::client::Body;
use opentelemetry::{Context as OtelContext, global, propagation::Injector};
use tower::{BoxError, Layer, Service};
use tracing::{Instrument as _, Span, field::Empty, info_span};

use super::trace;
use crate::election::{fence, lease_guard};

/// Makes the spans of one client.
#[derive(Clone, Debug)]
pub struct RequestLayer {
    host: Arc<str>,
    port: u16,
    /// Whether a request that is no part of anything is a trace of its own.
    alone: bool,
}

impl RequestLayer {
    /// For a client of the API server at `server`.
    #[must_use]
    pub fn new(server: &Uri) -> Self {
        let default = if server.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        Self {
            host: server.host().unwrap_or_default().into(),
            port: server.port_u16().unwrap_or(default),
            alone: true,
        }
    }

    /// The same, but for requests that are part of a span: the others are of no interest each.
    #[must_use]
    pub fn within_spans(self) -> Self {
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
            url.template = Empty,
            error.type = Empty,
        );
        if !span.is_disabled() {
            let (template, resource) = shape(request.uri().path());
            span.record("otel.name", format!("{} {resource}", request.method()));
            span.record("url.template", template);
        }
        span
    }
}

impl<S> Layer<S> for RequestLayer {
    type Service = Requests<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Requests {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service that [`RequestLayer`] makes.
#[derive(Clone, Debug)]
pub struct Requests<S> {
    inner: S,
    layer: RequestLayer,
}

impl<S, B> Service<Request<Body>> for Requests<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let span = self.layer.span(&request);
        let reply = span.in_scope(|| {
            if !span.is_disabled() {
                tell(request.headers_mut());
            }
            let read = *request.method() == Method::GET;
            let reply = self.inner.call(request);
            async move {
                let reply = reply.await.map_err(Into::into);
                record(&Span::current(), read, &reply);
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

fn record<B>(span: &Span, read: bool, reply: &Result<Response<B>, BoxError>) {
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
        Err(error) => trace::failed(span, kind(error), &innermost(&**error)),
    }
}

/// What kind of failure it is that no answer came of.
fn kind(error: &BoxError) -> &'static str {
    if error.is::<fence::Refused>() {
        "fence"
    } else if error.is::<fence::TimedOut>() {
        "timeout"
    } else {
        match error.downcast_ref() {
            Some(lease_guard::Error::TimedOut(_)) => "timeout",
            Some(_) => "lease_guard",
            None => "connection",
        }
    }
}

fn innermost<'a>(mut error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
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
    use super::*;

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
