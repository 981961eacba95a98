//! Scaffold for the tower layers of a client.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tower::{BoxError, Service};

/// Middleware around the service `S`.
pub trait Middleware<S, R>: Clone {
    /// Response that the middleware returns.
    type Response;

    /// Handles one request, and decides whether to call `inner`, which is ready.
    fn around(
        &self,
        request: R,
        inner: &mut S,
    ) -> BoxFuture<'static, Result<Self::Response, BoxError>>;
}

/// Service of a middleware layer.
#[derive(Clone, Debug)]
pub struct MiddlewareService<L, S> {
    layer: L,
    inner: S,
}

impl<L: Clone, S> MiddlewareService<L, S> {
    pub(crate) fn new(layer: &L, inner: S) -> Self {
        let layer = layer.clone();
        Self { layer, inner }
    }
}

impl<L, S, R> Service<R> for MiddlewareService<L, S>
where
    L: Middleware<S, R>,
    S: Service<R>,
    S::Error: Into<BoxError>,
{
    type Response = L::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<L::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.layer.around(request, &mut self.inner)
    }
}
