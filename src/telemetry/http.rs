//! What is served over HTTP: `/livez` and `/readyz` for the kubelet, and `/metrics`.
//!
//! The kubelet speaks plain HTTP and brings no credentials. So with `http.metrics_auth` metrics are served at another
//! address, over TLS, to who may read them. Each connection carries one request: probes and scrapes are rare, and an idle
//! connection would take another one's place.

use std::{
    collections::VecDeque, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration,
};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    Metrics,
    auth::Auth,
    health::{Health, Question},
    tls::{self, Tls},
};
use crate::config;

/// Connections served at once at one address. One more ends the oldest: a probe takes milliseconds, so the oldest is
/// somebody's who dawdles.
const CONNECTIONS: usize = 256;
/// How long a client may take over the TLS handshake, and again over its request.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a connection may last, the API server's reviews and a slow reader included: as long as a scrape.
const LIFETIME: Duration = Duration::from_secs(10);
/// The request line and all headers together, in bytes: room for any token.
const HEADERS: usize = 16 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";

/// Nothing can be served as it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened on.
    #[error("{0}: cannot listen on {1}: {2}")]
    Listen(&'static str, SocketAddr, io::Error),
    /// There is no certificate to serve metrics with.
    #[error("http.metrics_cert_dir: {0}")]
    Certificate(#[from] tls::Error),
}

/// The addresses listened on.
pub struct Server {
    /// For probes, and for metrics where those are open to all.
    plain: Option<TcpListener>,
    /// For metrics that are not.
    secure: Option<(TcpListener, Tls)>,
}

impl Server {
    /// Listens, so that a port that is taken is known before anything else is done.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn bind(config: &config::Http) -> Result<Self, Error> {
        let plain = match config.addr {
            Some(addr) => Some(listen("http.addr", addr).await?),
            None => None,
        };
        let secure = if config.metrics_auth {
            let tls = Tls::new(config.metrics_cert_dir.clone())?;
            Some((listen("http.metrics_addr", config.metrics_addr).await?, tls))
        } else {
            None
        };
        Ok(Self { plain, secure })
    }

    /// Serves for ever. `client` asks the API server who may read metrics.
    pub async fn serve(self, client: Client, health: Health, metrics: Metrics) {
        let health = Arc::new(health);
        let open = self.secure.is_none();
        let plain = async {
            let Some(listener) = self.plain else { return };
            if let Ok(addr) = listener.local_addr() {
                info!(%addr, metrics = open, "serving health");
            }
            let site = Site {
                health: Some(Arc::clone(&health)),
                metrics: open.then(|| metrics.clone()),
                auth: None,
            };
            accept(listener, None, site).await;
        };
        let secure = async {
            let Some((listener, tls)) = self.secure else {
                return;
            };
            if let Ok(metrics_addr) = listener.local_addr() {
                info!(%metrics_addr, "serving metrics over TLS");
            }
            let site = Site {
                health: None,
                metrics: Some(metrics.clone()),
                auth: Some(Auth::new(client)),
            };
            accept(listener, Some(tls), site).await;
        };
        tokio::join!(health.watch(), plain, secure);
    }
}

async fn listen(key: &'static str, addr: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |error| Error::Listen(key, addr, error);
    TcpListener::bind(addr).await.map_err(failed)
}

/// Serves `site` on `listener`, for ever.
async fn accept(listener: TcpListener, mut tls: Option<Tls>, site: Site) {
    let site = Arc::new(site);
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = due(tls.as_mut()) => {
                if let Some(tls) = &mut tls {
                    tls.renew().await;
                }
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        by_age.retain(|connection| !connection.is_finished());
        if by_age.len() == CONNECTIONS
            && let Some(oldest) = by_age.pop_front()
        {
            oldest.abort();
        }
        let tls = tls.as_ref().map(Tls::acceptor);
        let connection = serve(stream, tls, Arc::clone(&site));
        // A client that errs or dawdles is no news.
        by_age.push_back(connections.spawn(async { drop(timeout(LIFETIME, connection).await) }));
    }
}

/// When the certificate is to be looked at again.
async fn due(tls: Option<&mut Tls>) {
    match tls {
        Some(tls) => tls.due().await,
        None => std::future::pending().await,
    }
}

async fn serve(stream: TcpStream, tls: Option<tokio_rustls::TlsAcceptor>, site: Arc<Site>) {
    match tls {
        None => converse(stream, site).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(PATIENCE, tls.accept(stream)).await {
                converse(stream, site).await;
            }
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<Site>) {
    let service = service_fn(|request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(site.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

/// What there is at one address.
struct Site {
    health: Option<Arc<Health>>,
    metrics: Option<Metrics>,
    auth: Option<Auth>,
}

type Answer = Response<Full<Bytes>>;

impl Site {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            let allow = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allow);
            return answer;
        }
        let path = request.uri().path();
        let found = match (&self.health, &self.metrics) {
            (_, Some(metrics)) if path == "/metrics" => Some(self.scrape(metrics, request).await),
            (Some(health), _) => {
                let query = request.uri().query().unwrap_or_default();
                let keys = query.split('&').filter_map(|pair| pair.split('=').next());
                examine(health, path, keys.into_iter().any(|key| key == "verbose"))
            }
            _ => None,
        };
        found.unwrap_or_else(|| {
            let mut there = Vec::new();
            if self.health.is_some() {
                there.extend(["/livez", "/readyz"]);
            }
            there.extend(self.metrics.as_ref().map(|_| "/metrics"));
            text(
                StatusCode::NOT_FOUND,
                format!("there is nothing but {}\n", there.join(", ")),
            )
        })
    }

    async fn scrape(&self, metrics: &Metrics, request: &Request<Incoming>) -> Answer {
        if let Some(auth) = &self.auth
            && let Err(refusal) = auth.check(request.headers()).await
        {
            let mut answer = text(refusal.status(), format!("{refusal}\n"));
            if let Some(challenge) = refusal.challenge() {
                let challenge = HeaderValue::from_static(challenge);
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            return answer;
        }
        let accept = request.headers().get(ACCEPT);
        let (kind, body) = metrics.scrape(accept.and_then(|accept| accept.to_str().ok()));
        let mut answer = text(StatusCode::OK, body);
        let kind = HeaderValue::from_static(kind);
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }
}

/// Answers as kube-apiserver's health endpoints do: `/livez` for all checks, `/livez/NAME` for one. What is wrong is said,
/// though: it is nobody's secret. `None`: there is no such path.
fn examine(health: &Health, path: &str, verbose: bool) -> Option<Answer> {
    let (endpoint, one) = match path.strip_prefix('/')?.split_once('/') {
        Some((endpoint, one)) => (endpoint, Some(one)),
        None => (path.strip_prefix('/')?, None),
    };
    let question = match endpoint {
        "livez" => Question::Live,
        "readyz" => Question::Ready,
        _ => return None,
    };
    let checks = health.checks(question);
    let checks: Vec<_> = checks
        .filter(|(name, _)| one.is_none_or(|one| one == *name))
        .collect();
    if checks.is_empty() {
        return None;
    }
    let well = checks.iter().all(|(_, complaint)| complaint.is_none());
    let status = if well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if well && (one.is_some() || !verbose) {
        return Some(text(status, "ok"));
    }
    let mut lines: Vec<_> = checks
        .iter()
        .map(|(name, complaint)| match complaint {
            None => format!("[+]{name} ok\n"),
            Some(complaint) => format!("[-]{name} failed: {complaint}\n"),
        })
        .collect();
    if one.is_none() {
        let verdict = if well { "passed" } else { "failed" };
        lines.push(format!("{endpoint} check {verdict}\n"));
    }
    Some(text(status, lines.concat()))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(TEXT);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
