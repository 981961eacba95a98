//! The HTTP server: `/livez` and `/readyz` for the kubelet, `/metrics` and `/debug/state`.
//!
//! The kubelet probes over plain HTTP without credentials. So with `http.metrics_auth`, metrics and state are served at another
//! address, over TLS and to authorized clients only. Each connection carries one request: probes and scrapes are rare, and an
//! idle connection would take the place of another.

pub(crate) mod auth;
pub(crate) mod tls;

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
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
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::rustls::ServerConnection;
use tracing::{info, warn};

use super::{
    health::{Health, Probe},
    metrics::Metrics,
    server::{
        auth::{Auth, Page},
        tls::{Certificate, Tls},
    },
};
use crate::{
    config::{self, app::App},
    telemetry::{
        log_once::OutageLog,
        object_state::{ObjectName, ObjectState, ObjectWork, requested},
        state::State,
    },
};

/// Limits of the connections to an address.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of connections. A further one ends the oldest connection of the peer with the most, so that a peer with
    /// many connections cannot exclude the others.
    pub connections: usize,
    /// Time limit of a connection.
    pub lifetime: Duration,
}

/// Limits for probes and scrapes. The lifetime includes access reviews and a slow reader. It equals Prometheus' default scrape
/// timeout. A probe takes milliseconds, so the oldest connection is a slow client's.
const LIMITS: Limits = Limits {
    connections: 256,
    lifetime: Duration::from_secs(10),
};
/// Delay after a failed accept.
const RETRY: Duration = Duration::from_millis(10);
/// An accept that fails after this long without a failure is logged again.
const QUIET: Duration = Duration::from_mins(1);
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Time limit of the TLS handshake, and of reading the request headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of the request line and all headers in bytes: enough for any token.
const HEADERS: usize = 16 * 1024;

/// Maximum size of the unsent data of a TLS connection in bytes: one record.
const TLS_BUFFER: usize = 16 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";

/// The server cannot be set up as configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("{0}: cannot listen on {1}: {2}")]
    Listen(&'static str, SocketAddr, io::Error),
    /// The certificate for metrics cannot be loaded or created.
    #[error("http.metrics_cert_dir: {0}")]
    Certificate(#[from] tls::Error),
}

/// Listeners of the HTTP server.
pub struct Server {
    /// For probes, and for metrics and state without `http.metrics_auth`.
    plain: Option<TcpListener>,
    /// For metrics and state with `http.metrics_auth`.
    secure: Option<(TcpListener, Tls)>,
    /// Source of `/debug/state`, if it is enabled.
    state: Option<Show>,
}

/// Source of `/debug/state`.
#[derive(Clone)]
struct Show {
    replica: Arc<dyn Fn() -> State + Send + Sync>,
    object: Arc<ShowObject>,
}

/// Returns the controller's state of one object, or the reason if the replica does not have the object.
type ShowObject = dyn Fn(&ObjectName) -> Result<ObjectWork, String> + Send + Sync;

impl Server {
    /// Binds the addresses early, so that a port conflict is reported before any other action.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn bind(app: &App, config: &config::Http) -> Result<Self, Error> {
        let plain = match config.addr {
            Some(addr) => Some(listen("http.addr", addr, bind)?),
            None => None,
        };
        let secure = if config.metrics_auth {
            let tls = Tls::new(app, config.metrics_cert_dir.clone(), tls::PERIOD).await?;
            Some((listen("http.metrics_addr", config.metrics_addr, bind)?, tls))
        } else {
            None
        };
        Ok(Self {
            plain,
            secure,
            state: None,
        })
    }

    /// Enables `/debug/state`, for the replica and for one object.
    pub(crate) fn with_state(
        self,
        replica: impl Fn() -> State + Send + Sync + 'static,
        object: impl Fn(&ObjectName) -> Result<ObjectWork, String> + Send + Sync + 'static,
    ) -> Self {
        let (replica, object) = (Arc::new(replica), Arc::new(object));
        Self {
            state: Some(Show { replica, object }),
            ..self
        }
    }

    /// Serves until cancelled. `client` sends the access reviews for metrics and state.
    pub async fn serve(self, client: Client, health: Health, metrics: Metrics) {
        let auth = Auth::new(metrics.app(), client);
        self.serve_all(Some(auth), health, Some(metrics)).await;
    }

    /// Serves health, and `metrics` if there are some, until cancelled. For a server without `http.metrics_auth`.
    pub(crate) async fn serve_without_client(self, health: Health, metrics: Option<Metrics>) {
        self.serve_all(None, health, metrics).await;
    }

    async fn serve_all(self, auth: Option<Auth>, health: Health, metrics: Option<Metrics>) {
        let health = Arc::new(health);
        let open = self.secure.is_none();
        let plain = async {
            let Some(listener) = self.plain else { return };
            if let Ok(addr) = listener.local_addr() {
                info!(%addr, metrics = open && metrics.is_some(), "serving health");
            }
            let routes = Routes {
                health: Some(Arc::clone(&health)),
                metrics: metrics.clone().filter(|_| open),
                state: self.state.clone().filter(|_| open),
                auth: None,
            };
            accept(listener, None, LIMITS, routes.serving()).await;
        };
        let secure = async {
            let Some((listener, tls)) = self.secure else {
                return;
            };
            if let Ok(metrics_addr) = listener.local_addr() {
                info!(%metrics_addr, "serving metrics over TLS");
            }
            let routes = Routes {
                health: None,
                metrics: metrics.clone(),
                state: self.state.clone(),
                auth,
            };
            accept_secure(listener, tls, LIMITS, routes.serving()).await;
        };
        tokio::join!(health.watch(), plain, secure);
    }
}

/// Listens at the address of a flag or key. See [`listen`].
pub(crate) fn listen_on(key: &'static str, addr: SocketAddr) -> Result<TcpListener, Error> {
    listen(key, addr, bind)
}

/// Listens with `bind`. If the machine has no IPv6, the IPv6 wildcard address is replaced with the IPv4 wildcard address.
fn listen(
    key: &'static str,
    addr: SocketAddr,
    bind: impl Fn(SocketAddr) -> io::Result<TcpListener>,
) -> Result<TcpListener, Error> {
    let everywhere = addr.is_ipv6() && addr.ip().is_unspecified();
    let bound = match bind(addr) {
        Err(error) if everywhere && is_without_ipv6(&error) => {
            let addr = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port());
            info!("{key}: IPv6 is not available, listening on {addr}");
            bind(addr)
        }
        bound => bound,
    };
    bound.map_err(|error| Error::Listen(key, addr, error))
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Binds an address. `[::]` includes all IPv4 addresses, regardless of `net.ipv6.bindv6only`.
fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv6() {
        let socket = TcpSocket::new_v6()?;
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
        socket
    } else {
        TcpSocket::new_v4()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// A connection, perhaps over TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Like [`accept`], over TLS, and renews the certificate.
pub(crate) async fn accept_secure<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    tls: Tls,
    limits: Limits,
    serve: impl Fn(Box<dyn Stream>, IpAddr) -> F + Send + Sync + 'static,
) {
    let certificate = Some(tls.certificate());
    tokio::join!(accept(listener, certificate, limits, serve), tls.renewals());
}

/// Serves TLS without any routes.
#[cfg(test)]
pub(super) async fn serve_nothing(listener: TcpListener, tls: Tls) {
    let routes = Routes {
        health: None,
        metrics: None,
        state: None,
        auth: None,
    };
    accept_secure(listener, tls, LIMITS, routes.serving()).await;
}

/// Serves the connections to `listener` until cancelled.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    tls: Option<Certificate>,
    limits: Limits,
    serve: impl Fn(Box<dyn Stream>, IpAddr) -> F + Send + Sync + 'static,
) {
    let (listener, serve) = (Arc::new(listener), Arc::new(serve));
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<(IpAddr, AbortHandle)> = VecDeque::new();
    let (spare, mut outage) = (Arc::new(Spare::default()), OutageLog::new(QUIET));
    spare.keep(&listener);
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        by_age.retain(|(_, connection)| !connection.is_finished());
        if accepted.is_err() || by_age.len() == limits.connections {
            // The client stays in the listener's backlog until the next accept.
            if accepted.is_err() && spare.give_up() {
                continue;
            }
            if let Some(at) = crowding(by_age.iter().map(|(peer, _)| *peer))
                && let Some((_, connection)) = by_age.remove(at)
            {
                connection.abort();
            }
        }
        let (stream, peer) = match accepted {
            // An IPv4 client counts as the same peer over both address families.
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => {
                if outage.is_new(&error.to_string()) {
                    warn!("cannot accept a connection: {error}");
                }
                sleep(RETRY).await;
                continue;
            }
        };
        spare.keep(&listener);
        // A response is written at once: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let tls = tls.as_ref().map(Certificate::acceptor);
        let serve = Arc::clone(&serve);
        let connection = async move {
            if let Some(stream) = secured(stream, tls).await {
                serve(stream, peer).await;
            }
        };
        // Errors and timeouts of clients are not logged.
        let (spare, listener) = (Arc::clone(&spare), Arc::clone(&listener));
        let connection = connections.spawn(async move {
            drop(timeout(limits.lifetime, connection).await);
            spare.keep(&listener);
        });
        by_age.push_back((peer, connection));
    }
}

/// A spare descriptor. It is closed when the process runs out of descriptors, so that one connection at a time is still served.
#[derive(Default)]
struct Spare(Mutex<Option<OwnedFd>>);

impl Spare {
    fn keep(&self, listener: &TcpListener) {
        let mut spare = self.0.lock();
        if spare.is_none() {
            *spare = listener.as_fd().try_clone_to_owned().ok();
        }
    }

    /// Closes the descriptor. Returns whether there was one.
    fn give_up(&self) -> bool {
        self.0.lock().take().is_some()
    }
}

/// Returns the position of the oldest connection of the peer with the most. `peers` are ordered from the oldest connection.
fn crowding(mut peers: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let mut counts = HashMap::new();
    for peer in peers.clone() {
        *counts.entry(peer).or_insert(0_usize) += 1;
    }
    let most = counts.values().max()?;
    peers.position(|peer| counts.get(&peer) == Some(most))
}

/// Returns the connection after the TLS handshake. `None` if that failed.
async fn secured(
    stream: TcpStream,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> Option<Box<dyn Stream>> {
    let Some(tls) = tls else {
        return Some(Box::new(stream));
    };
    let limited = |connection: &mut ServerConnection| connection.set_buffer_limit(Some(TLS_BUFFER));
    let handshake = tls.accept_with(stream, limited);
    let stream = timeout(HEADERS_TIMEOUT, handshake).await.ok()?;
    Some(Box::new(stream.ok()?))
}

async fn serve_connection(stream: Box<dyn Stream>, peer: IpAddr, routes: Arc<Routes>) {
    let service = service_fn(|request| {
        let routes = Arc::clone(&routes);
        async move { Ok::<_, Infallible>(routes.answer(peer, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

/// Routes of one address.
struct Routes {
    health: Option<Arc<Health>>,
    metrics: Option<Metrics>,
    state: Option<Show>,
    auth: Option<Auth>,
}

type Answer = Response<Full<Bytes>>;

impl Routes {
    /// Returns the function that serves a connection.
    fn serving(
        self,
    ) -> impl Fn(Box<dyn Stream>, IpAddr) -> BoxFuture<'static, ()> + Send + Sync + 'static {
        let routes = Arc::new(self);
        move |stream, peer| serve_connection(stream, peer, Arc::clone(&routes)).boxed()
    }

    async fn answer(&self, peer: IpAddr, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            let allow = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allow);
            return answer;
        }
        let path = request.uri().path();
        let found = match (&self.health, &self.metrics, &self.state) {
            (_, Some(metrics), _) if path == Page::Metrics.path() => {
                let answer = || scrape(metrics, request);
                Some(self.guarded(Page::Metrics, peer, request, answer).await)
            }
            (_, _, Some(state)) if path == Page::State.path() => {
                let answer = || state.answer(request.uri().query().unwrap_or_default());
                Some(self.guarded(Page::State, peer, request, answer).await)
            }
            (Some(health), ..) => {
                let query = request.uri().query().unwrap_or_default();
                let keys = query.split('&').filter_map(|pair| pair.split('=').next());
                health_response(health, path, keys.into_iter().any(|key| key == "verbose"))
            }
            _ => None,
        };
        found.unwrap_or_else(|| {
            let mut there = Vec::new();
            if self.health.is_some() {
                there.extend(["/livez", "/readyz"]);
            }
            there.extend(self.metrics.as_ref().map(|_| Page::Metrics.path()));
            there.extend(self.state.as_ref().map(|_| Page::State.path()));
            text(
                StatusCode::NOT_FOUND,
                format!("not found; available paths: {}\n", there.join(", ")),
            )
        })
    }

    /// Returns the page if the request is authorized to read it, otherwise the refusal.
    async fn guarded(
        &self,
        page: Page,
        peer: IpAddr,
        request: &Request<Incoming>,
        answer: impl FnOnce() -> Answer,
    ) -> Answer {
        if let Some(auth) = &self.auth
            && let Err(refusal) = auth.check(page, peer, request.headers()).await
        {
            let mut answer = text(refusal.status(), format!("{refusal}\n"));
            if let Some(challenge) = refusal.challenge() {
                let challenge = HeaderValue::from_static(challenge);
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            return answer;
        }
        answer()
    }
}

fn scrape(metrics: &Metrics, request: &Request<Incoming>) -> Answer {
    let accept = request.headers().get(ACCEPT);
    let (kind, body) = metrics.scrape(accept.and_then(|accept| accept.to_str().ok()));
    answer(StatusCode::OK, kind, body)
}

impl Show {
    fn answer(&self, query: &str) -> Answer {
        match requested(query) {
            Ok(None) => json(&(self.replica)()),
            Ok(Some(name)) => match (self.object)(&name) {
                Ok(work) => json(&ObjectState::new(work, (self.replica)())),
                Err(unknown) => text(StatusCode::NOT_FOUND, format!("{unknown}\n")),
            },
            Err(malformed) => text(StatusCode::BAD_REQUEST, format!("{malformed}\n")),
        }
    }
}

fn json(state: &impl Serialize) -> Answer {
    match serde_json::to_vec_pretty(state) {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Responds like kube-apiserver's health endpoints: `/livez` for all checks, `/livez/NAME` for one. Unlike kube-apiserver's,
/// the response contains the reason of a failure, which is not confidential. Returns `None` if the path does not exist.
fn health_response(health: &Health, path: &str, verbose: bool) -> Option<Answer> {
    let (endpoint, one) = match path.strip_prefix('/')?.split_once('/') {
        Some((endpoint, one)) => (endpoint, Some(one)),
        None => (path.strip_prefix('/')?, None),
    };
    let probe = match endpoint {
        "livez" => Probe::Live,
        "readyz" => Probe::Ready,
        _ => return None,
    };
    let checks = health.checks(probe);
    let checks: Vec<_> = checks
        .filter(|(name, _)| one.is_none_or(|one| one == *name))
        .collect();
    if checks.is_empty() {
        return None;
    }
    let well = checks.iter().all(|(_, result)| result.is_ok());
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
        .map(|(name, result)| match result {
            Ok(None) => format!("[+]{name} ok\n"),
            Ok(Some(note)) => format!("[+]{name} ok: {note}\n"),
            Err(failure) => format!("[-]{name} failed: {failure}\n"),
        })
        .collect();
    if one.is_none() {
        let verdict = if well { "passed" } else { "failed" };
        lines.push(format!("{endpoint} check {verdict}\n"));
    }
    Some(text(status, lines.concat()))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, TEXT, body)
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests;
