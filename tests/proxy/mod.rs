//! A proxy on loopback between one client and the API server: it counts requests, holds chosen ones (or their answers)
//! until asked to, and can cut the line. What it holds it forwards even when the client has long given up, as a network
//! does.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, Config, client::Body};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::AbortHandle,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// A proxy; dropped, it takes no new connections.
pub struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
    listener: AbortHandle,
}

struct Line {
    server: Client,
    holds: Mutex<Vec<Hold>>,
    cut: watch::Sender<bool>,
    overloaded: AtomicBool,
    requests: Mutex<Vec<String>>,
}

type Reply = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// Where a request is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    /// Before the API server gets it.
    Server,
    /// After the API server has answered it, before the client knows.
    Client,
}

struct Hold {
    method: Method,
    path: String,
    at: At,
    arrived: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
    done: oneshot::Sender<StatusCode>,
}

/// One request that is held, or will be; dropped, the request is lost.
pub struct Held {
    arrived: Option<oneshot::Receiver<()>>,
    go: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<StatusCode>,
}

impl Held {
    /// Waits until the request is there.
    pub async fn arrived(&mut self) {
        let arrived = self.arrived.take().unwrap();
        timeout(DEADLINE, arrived)
            .await
            .expect("no such request")
            .unwrap();
    }

    /// Lets it pass, and waits for the API server's answer.
    pub async fn pass(mut self) -> StatusCode {
        self.go().await
    }

    /// The same, once.
    pub async fn go(&mut self) -> StatusCode {
        self.go.take().unwrap().send(()).unwrap();
        timeout(DEADLINE, &mut self.done)
            .await
            .expect("no answer")
            .unwrap()
    }
}

impl Proxy {
    /// A proxy to the API server that `config` names.
    pub async fn start(mut config: Config) -> Self {
        // Each request brings its own credentials.
        config.auth_info = kube::config::AuthInfo::default();
        config.default_retry = false;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = Arc::new(Line {
            server: config.try_into().unwrap(),
            holds: Mutex::default(),
            cut: watch::Sender::new(false),
            overloaded: AtomicBool::new(false),
            requests: Mutex::default(),
        });
        let task = tokio::spawn(listen(listener, line.clone()));
        Self {
            address,
            line,
            listener: task.abort_handle(),
        }
    }

    /// The address for `--master`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `config`, by way of this proxy.
    pub fn config(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.cluster_url = self.url().parse().unwrap();
        config
    }

    /// Holds the next request by `method` whose path and query contain `path`.
    pub fn hold(&self, at: At, method: Method, path: &str) -> Held {
        let (arrived, has_arrived) = oneshot::channel();
        let (go, may_go) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let hold = Hold {
            method,
            path: path.to_owned(),
            at,
            arrived,
            go: may_go,
            done,
        };
        self.line.holds.lock().unwrap().push(hold);
        Held {
            arrived: Some(has_arrived),
            go: Some(go),
            done: is_done,
        }
    }

    /// Lets nothing through, in either direction, until [`Self::heal`]; what is sent meanwhile arrives then.
    pub fn cut(&self) {
        self.line.cut.send_replace(true);
    }

    /// Ends [`Self::cut`].
    pub fn heal(&self) {
        self.line.cut.send_replace(false);
    }

    /// Answers every request with 503 by itself from now on, as an API server with too much to do.
    pub fn overload(&self) {
        self.line.overloaded.store(true, Ordering::Relaxed);
    }

    /// The requests since the last call of this, as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.line.requests.lock().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, line: Arc<Line>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let line = line.clone();
        let service = service_fn(move |request| {
            // Not dropped with the connection: what is on its way arrives.
            let reply = tokio::spawn(line.clone().forward(request));
            async move { Ok::<_, Infallible>(reply.await.unwrap()) }
        });
        tokio::spawn(async move {
            // A client that goes away is none of our business.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Line {
    async fn forward(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (mut parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return answer(StatusCode::BAD_GATEWAY);
        };
        let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
        self.requests
            .lock()
            .unwrap()
            .push(format!("{} {path}", parts.method));
        let mut hold = self.held(&parts.method, &path);
        if self.overloaded.load(Ordering::Relaxed) {
            return answer(StatusCode::SERVICE_UNAVAILABLE);
        }
        parts.headers.remove(header::HOST);
        if let Some(hold) = &mut hold
            && hold.at == At::Server
        {
            hold.wait().await;
        }
        self.uncut().await;
        let request = Request::from_parts(parts, Body::from(body.to_bytes()));
        let Ok(reply) = self.server.send(request).await else {
            return answer(StatusCode::BAD_GATEWAY);
        };
        if let Some(mut hold) = hold {
            if hold.at == At::Client {
                hold.wait().await;
            }
            let _ = hold.done.send(reply.status());
        }
        self.uncut().await;
        reply.map(|body| {
            let frames = body.into_data_stream().then(move |data| {
                let line = self.clone();
                async move {
                    line.uncut().await;
                    data.map(Frame::data)
                }
            });
            StreamBody::new(frames).boxed_unsync()
        })
    }

    fn held(&self, method: &Method, path: &str) -> Option<Hold> {
        let mut holds = self.holds.lock().unwrap();
        let at = holds
            .iter()
            .position(|hold| hold.method == method && path.contains(&hold.path))?;
        Some(holds.remove(at))
    }

    async fn uncut(&self) {
        self.cut.subscribe().wait_for(|cut| !cut).await.unwrap();
    }
}

impl Hold {
    async fn wait(&mut self) {
        let (arrived, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.arrived, arrived).send(());
        if (&mut self.go).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn answer(status: StatusCode) -> Reply {
    let body = http_body_util::Empty::new().map_err(|never: Infallible| match never {});
    Response::builder()
        .status(status)
        .body(body.boxed_unsync())
        .unwrap()
}
