//! What stands where a collector should be, and does what a real one cannot be made to do on demand.
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
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

/// What a mock does.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    /// Refuses connections: nobody listens on the port.
    Refuse,
    /// Lets connection attempts go unanswered, as a firewall that drops packets.
    BlackHole,
    /// Accepts connections, and never says a word.
    Silent,
    /// Answers with what is not even HTTP/2.
    Garbage,
    /// Answers with a proxy's error page: 502 and HTML.
    Page,
    /// Answers as a collector does, so long after the request, with this gRPC status (0 OK, 14 unavailable, 16 unauthenticated)
    /// and, where that is an error, with [`WORDS`].
    Answer(Duration, u8),
}

/// What a mock says when it does not take an export.
pub const WORDS: &str = "the mock wants nothing";

/// A mock on a loopback port, until it is dropped. It lives on the runtime of the test that started it.
pub struct Mock {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
    _held: Box<dyn Any>,
}

impl Mock {
    /// Starts one.
    pub async fn start(behaviour: Behaviour) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let requests = Arc::default();
        let held: Box<dyn Any> = match behaviour {
            // Bound, it keeps the port from others.
            Behaviour::Refuse => Box::new(socket),
            Behaviour::BlackHole => Box::new(fill(socket.listen(0).unwrap()).await),
            _ => {
                let listener = socket.listen(64).unwrap();
                let mut accepting = JoinSet::new();
                accepting.spawn(accept(listener, behaviour, Arc::clone(&requests)));
                Box::new(accepting)
            }
        };
        Self {
            address,
            requests,
            _held: held,
        }
    }

    /// Its address, `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The headers of all requests so far; none where the behaviour is not to answer HTTP/2.
    pub fn requests(&self) -> Vec<HeaderMap> {
        self.requests.lock().unwrap().clone()
    }
}

/// Fills the queue of connections that wait to be accepted: the kernel drops what comes after.
async fn fill(listener: TcpListener) -> (TcpListener, Vec<TcpStream>) {
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    (listener, waiting)
}

async fn accept(listener: TcpListener, behaviour: Behaviour, requests: Arc<Mutex<Vec<HeaderMap>>>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, behaviour, Arc::clone(&requests)));
    }
}

async fn serve(mut stream: TcpStream, behaviour: Behaviour, requests: Arc<Mutex<Vec<HeaderMap>>>) {
    match behaviour {
        Behaviour::Silent => std::future::pending::<()>().await,
        Behaviour::Garbage => {
            let garbage = b"\x00\xffSSH-2.0-who_are_you\r\n\r\n";
            stream.write_all(garbage).await.unwrap();
            // Listening on, until the client has had enough.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
        _ => {
            let service = service_fn(|request: Request<Incoming>| {
                requests.lock().unwrap().push(request.headers().clone());
                answer(behaviour, request)
            });
            let _ = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    }
}

async fn answer(
    behaviour: Behaviour,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    // A client may give up on its request meanwhile.
    let _ = request.into_body().collect().await;
    let (status, content, frames) = if let Behaviour::Answer(after, code) = behaviour {
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
