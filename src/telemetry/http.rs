//! Health over HTTP: `/livez` (the process answers) and `/readyz` (its caches are in sync).
//!
//! Readiness never means leadership: a rollout would wait for a leader that waits for the rollout.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::Metrics;

/// Connections served at once; more wait.
const CONNECTIONS: usize = 256;
/// How long a client may take over one connection.
const PATIENCE: Duration = Duration::from_secs(3);

/// Serves health on `listener`, for ever.
pub async fn serve(
    listener: TcpListener,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    _metrics: Metrics,
) {
    if let Ok(addr) = listener.local_addr() {
        info!(%addr, "serving /livez and /readyz");
    }
    let ready = Arc::new(ready);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let ready = Arc::clone(&ready);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&request, &*ready);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A client that errs or dawdles is no news.
            let _ = timeout(PATIENCE, connection).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, ready: &impl Fn() -> bool) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/livez" => (StatusCode::OK, "ok\n"),
        "/readyz" if ready() => (StatusCode::OK, "ok\n"),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the caches are not in sync yet\n",
        ),
        _ => (StatusCode::NOT_FOUND, "try /livez or /readyz\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
