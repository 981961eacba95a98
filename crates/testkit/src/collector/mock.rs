//! Mock of a collector, for failures that a real one cannot produce on demand.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    any::Any,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    body::{Body, Bytes, Frame, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Behaviour of a mock.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    /// Refuses connections: the port has no listener.
    Refuse,
    /// Drops connection attempts, as some firewalls do.
    BlackHole,
    /// Accepts connections and sends nothing.
    Silent,
    /// Responds with bytes that are not HTTP.
    Garbage,
    /// Responds with a proxy's error page: 502 and HTML.
    Page,
    /// Responds like a collector after this delay, with this gRPC status (0 OK, 14 unavailable, 16 unauthenticated), or the
    /// status of OTLP/HTTP for it. An error has the message [`WORDS`].
    Answer(Duration, u8),
}

/// Error message of a mock that rejects an export.
pub const WORDS: &str = "the mock wants nothing";

/// Receives the path and the body of each request that a mock answers.
type Sink = Arc<dyn Fn(&str, &[u8]) + Send + Sync>;

/// Mock of a collector for both protocols, on a loopback port. It runs on the runtime of its test and stops on drop.
pub struct Mock {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
    _held: Box<dyn Any>,
}

impl Mock {
    /// Starts a mock.
    pub async fn start(behaviour: Behaviour) -> Self {
        Self::start_with(behaviour, |_, _| {}).await
    }

    /// Starts a mock that passes the path and the body of each answered request to `sink`.
    pub async fn start_with(
        behaviour: Behaviour,
        sink: impl Fn(&str, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let requests = Arc::default();
        let held: Box<dyn Any> = match behaviour {
            // The bound socket reserves the port.
            Behaviour::Refuse => Box::new(socket),
            Behaviour::BlackHole => Box::new(fill(socket.listen(0).unwrap()).await),
            _ => {
                let listener = socket.listen(64).unwrap();
                let mut accepting = JoinSet::new();
                let state = (Arc::clone(&requests), Arc::new(sink) as Sink);
                accepting.spawn(accept(listener, behaviour, state));
                Box::new(accepting)
            }
        };
        Self {
            address,
            requests,
            _held: held,
        }
    }

    /// Returns its address, `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns its address without a scheme.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the headers of all requests so far. Empty if the behaviour is not a response.
    pub fn requests(&self) -> Vec<HeaderMap> {
        self.requests.lock().unwrap().clone()
    }
}

/// Fills the accept queue: the kernel drops further connection attempts.
async fn fill(listener: TcpListener) -> (TcpListener, Vec<TcpStream>) {
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    (listener, waiting)
}

/// Headers of all requests, and the receiver of their bodies.
type State = (Arc<Mutex<Vec<HeaderMap>>>, Sink);

async fn accept(listener: TcpListener, behaviour: Behaviour, state: State) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, behaviour, state.clone()));
    }
}

async fn serve(mut stream: TcpStream, behaviour: Behaviour, (requests, sink): State) {
    match behaviour {
        Behaviour::Silent => std::future::pending::<()>().await,
        Behaviour::Garbage => {
            let garbage = b"\x00\xffSSH-2.0-who_are_you\r\n\r\n";
            stream.write_all(garbage).await.unwrap();
            // Keeps reading until the client closes the connection.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
        _ => {
            let service = service_fn(|request: Request<Incoming>| {
                requests.lock().unwrap().push(request.headers().clone());
                answer(behaviour, request, Arc::clone(&sink))
            });
            // HTTP/2 starts with `PRI`, and an export by HTTP/1.1 with `POST`.
            let mut first = [0; 2];
            while stream
                .peek(&mut first)
                .await
                .is_ok_and(|peeked| peeked == 1)
            {
                tokio::task::yield_now().await;
            }
            let stream = TokioIo::new(stream);
            if &first == b"PR" {
                let server = http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(stream, service).await;
            } else {
                let _ = http1::Builder::new()
                    .serve_connection(stream, service)
                    .await;
            }
        }
    }
}

async fn answer(
    behaviour: Behaviour,
    request: Request<Incoming>,
    sink: Sink,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let is_http = request.version() == http::Version::HTTP_11;
    let (head, body) = request.into_parts();
    // The client may have cancelled its request.
    if let Ok(body) = body.collect().await {
        sink(head.uri.path(), &body.to_bytes());
    }
    let (status, content, frames) =
        if let (true, Behaviour::Answer(after, code)) = (is_http, behaviour) {
            sleep(after).await;
            // `google.rpc.Status` with the message alone, or an empty response.
            let words = [
                &[0x12, u8::try_from(WORDS.len()).unwrap()],
                WORDS.as_bytes(),
            ]
            .concat();
            let (status, body) = match code {
                0 => (200, Vec::new()),
                14 => (503, words),
                _ => (401, words),
            };
            (
                status,
                "application/x-protobuf",
                vec![Frame::data(body.into())],
            )
        } else if let Behaviour::Answer(after, code) = behaviour {
            sleep(after).await;
            let name = http::HeaderName::from_static("grpc-status");
            let mut status = HeaderMap::from_iter([(name, u16::from(code).into())]);
            if code != 0 {
                let words = http::HeaderValue::from_static(WORDS);
                status.insert("grpc-message", words);
            }
            let status = Frame::trailers(status);
            // An empty message: not compressed, of length 0.
            let empty = (code == 0).then(|| Frame::data(Bytes::from_static(&[0; 5])));
            let frames = empty.into_iter().chain([status]).collect();
            (200, "application/grpc", frames)
        } else {
            let page = Bytes::from_static(b"<html><h1>502 Bad Gateway</h1></html>");
            (502, "text/html", vec![Frame::data(page)])
        };
    let body = StreamBody::new(stream::iter(frames.into_iter().map(Ok)));
    let response = Response::builder().status(status);
    Ok(response.header("content-type", content).body(body).unwrap())
}
