//! A gateway before the API server, such as a load balancer, that breaks connections and answers in the API server's place. The
//! controller takes it by `--master` ([`Gateway::url`]), in plain HTTP; to the API server it is the user of the client that it
//! forwards through, whatever credentials the controller sends. (`proxy` is a network that is late; this one is wrong.)
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream};
use http::{
    Method, Request, Response,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING},
};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tower::BoxError;

/// How late.
const LATE: Duration = Duration::from_millis(300);

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// The API server answers it.
    Forward,
    /// The API server answers it; what changes a Lease gets there late, as if several replicas wrote it at once, and, unless it
    /// is to stay `guarded`, without the condition that it is as it was read.
    LateLeases { guarded: bool },
    /// The connection is closed on it.
    Cut,
    /// A watch gets this answer; everything else is forwarded.
    Watches(Answer),
    /// Everything gets this answer.
    Everything(Answer),
}

/// An answer that is not the API server's.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The content type.
    pub content: &'static str,
    /// The body.
    pub body: &'static str,
    /// Whether the connection breaks after the body, before the answer's end.
    pub breaks_off: bool,
}

/// A gateway, until it is dropped. It lives on the runtime of the test that started it.
pub struct Gateway {
    url: String,
    mode: watch::Sender<Mode>,
    answered: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Gateway {
    /// Starts one on a free loopback port that forwards through `client`.
    pub async fn start(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mode = watch::Sender::new(Mode::Forward);
        let answered = Arc::new(AtomicUsize::new(0));
        let connection = Connection {
            client,
            mode: mode.subscribe(),
            answered: Arc::clone(&answered),
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // Or a short answer waits for the acknowledgement of the one before.
                stream.set_nodelay(true).unwrap();
                connections.spawn(connection.clone().serve(stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            url,
            mode,
            answered,
            _accepting: accepting,
        }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Closes all connections, and does this to every request from now on.
    pub fn set(&self, mode: Mode) {
        self.answered.store(0, Ordering::Relaxed);
        self.mode.send_replace(mode);
    }

    /// How many requests have got the [`Answer`] of the present mode.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Connection {
    client: Client,
    mode: watch::Receiver<Mode>,
    answered: Arc<AtomicUsize>,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        let mode = *self.mode.borrow_and_update();
        let service = service_fn(|request| self.clone().answer(mode, request));
        let mut changes = self.mode.clone();
        let http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            // What goes wrong here is the controller's to see.
            _ = http => {}
            _ = changes.changed() => {}
        }
    }

    async fn answer(
        self,
        mode: Mode,
        request: Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError> {
        let watches = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch="));
        let answer = match mode {
            Mode::Cut => return Err("cut".into()),
            Mode::Everything(answer) => answer,
            Mode::Watches(answer) if watches => answer,
            Mode::LateLeases { guarded } if changes_lease(&request) => {
                sleep(LATE).await;
                return forward(&self.client, request, guarded).await;
            }
            Mode::Watches(_) | Mode::LateLeases { .. } | Mode::Forward => {
                return forward(&self.client, request, true).await;
            }
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        let body = Ok(Frame::data(Bytes::from_static(answer.body.as_bytes())));
        let end = stream::iter(answer.breaks_off.then_some(()));
        let end = end.then(async |()| {
            // Else the body would be gone before it is sent.
            sleep(Duration::from_millis(10)).await;
            Err("broken off".into())
        });
        let body = stream::iter([body]).chain(end);
        Ok(Response::builder()
            .status(answer.code)
            .header(CONTENT_TYPE, answer.content)
            .body(StreamBody::new(body).boxed_unsync())?)
    }
}

fn changes_lease(request: &Request<Incoming>) -> bool {
    request.method() == Method::PATCH && request.uri().path().contains("/leases/")
}

/// `guarded`: with the condition that is in a write.
async fn forward(
    client: &Client,
    request: Request<Incoming>,
    guarded: bool,
) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError> {
    let (mut head, body) = request.into_parts();
    head.headers.remove(HOST);
    let mut body = body.collect().await?.to_bytes().to_vec();
    if !guarded {
        let mut write: Value = serde_json::from_slice(&body)?;
        let metadata = write["metadata"].as_object_mut();
        metadata.map(|metadata| metadata.remove("resourceVersion"));
        body = serde_json::to_vec(&write)?;
        head.headers.remove(CONTENT_LENGTH);
    }
    let answer = client.send(Request::from_parts(head, body.into())).await?;
    let (mut head, body) = answer.into_parts();
    head.headers.remove(CONNECTION);
    head.headers.remove(TRANSFER_ENCODING);
    Ok(Response::from_parts(
        head,
        body.map_err(Into::into).boxed_unsync(),
    ))
}
