//! The HTTP server of the webhook: bounded memory, bounded time, and connections that stay open.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONNECTION, CONTENT_TYPE},
};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, interval},
};

use super::review::Reviews;
use crate::{
    api::conversion::PATH,
    telemetry::server::{Limits, Stream},
};

/// The connections last until the API server closes them. It keeps 25 idle ones for each URL, and its requests in flight are
/// limited to 600 (`--max-requests-inflight` and `--max-mutating-requests-inflight`).
pub const LIMITS: Limits = Limits {
    connections: 1024,
    lifetime: Duration::MAX,
};

/// Maximum size of a review in bytes. The API server stores objects of up to 1.5 MiB (etcd), and sends a review for each object
/// that it reads or writes. A review of several objects is allowed, but version 1.36 sends none.
const MAX_BODY: usize = 32 << 20;

/// Maximum size of all reviews in progress, in KiB. Further ones wait. Together with the responses, memory stays below three
/// times this.
const MEMORY: usize = 64 << 10;

/// Maximum size of the request line and all headers in bytes, and of the read buffer.
const BUFFER: usize = 128 << 10;

/// Size of the parts of a response in bytes.
const PART: usize = 64 << 10;

/// Time limit for the next request on a connection. Longer than the API server keeps an idle connection (90 s), so that it is
/// the one to close it.
const IDLE: Duration = Duration::from_mins(2);

/// Time limit of a request until the end of its response. The API server waits as long (`webhook/authentication.go`).
const REQUEST: Duration = Duration::from_secs(30);

/// Interval of the check of [`REQUEST`].
const WATCHDOG: Duration = Duration::from_secs(5);

/// State of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Each connection ends after its next response.
    Draining,
    /// Idle connections end at once.
    Closing,
}

/// Serves one connection, then drops `phase`. The stop waits until all are dropped.
pub async fn serve(
    stream: Box<dyn Stream>,
    requests: Arc<Requests>,
    mut phase: watch::Receiver<Phase>,
) {
    let busy = Arc::new(Mutex::new(None));
    let current = phase.clone();
    let service = service_fn(|request| {
        let (requests, busy) = (Arc::clone(&requests), Arc::clone(&busy));
        let current = current.clone();
        async move {
            *busy.lock() = Some(Instant::now());
            let mut response = requests.answer(request).await;
            if *current.borrow() != Phase::Serving {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            response.body_mut().busy = Some(busy);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut watchdog = interval(WATCHDOG);
    let mut is_closing = false;
    loop {
        tokio::select! {
            _ = &mut connection => return,
            closing = phase.wait_for(|phase| *phase == Phase::Closing), if !is_closing => {
                if closing.is_err() {
                    return;
                }
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = watchdog.tick() => {
                let since = *busy.lock();
                if since.is_some_and(|since: Instant| since.elapsed() > REQUEST) {
                    return;
                }
            }
        }
    }
}

/// The reviews, and the memory for them.
pub struct Requests {
    reviews: Reviews,
    memory: Arc<Semaphore>,
}

impl Requests {
    pub fn new(reviews: Reviews) -> Self {
        Self {
            reviews,
            memory: Arc::new(Semaphore::new(MEMORY)),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Held> {
        if request.uri().path() != PATH {
            return text(
                StatusCode::NOT_FOUND,
                format!("not found; available path: {PATH}\n"),
            );
        }
        if request.method() != Method::POST {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
            let allow = HeaderValue::from_static("POST");
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
        let length = request.body().size_hint().exact();
        let length = length.and_then(|length| usize::try_from(length).ok());
        let length = length.unwrap_or(MAX_BODY);
        if length > MAX_BODY {
            return too_large();
        }
        let kibibytes = u32::try_from(length.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(kibibytes).await;
        let mut body = request.into_body();
        let mut review = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                let text = "the body ended too early\n".to_owned();
                return self::text(StatusCode::BAD_REQUEST, text);
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if review.len() + data.len() > MAX_BODY {
                return too_large();
            }
            review.extend_from_slice(&data);
        }
        let mut response = match self.reviews.answer(&review).await {
            Ok(review) => response(StatusCode::OK, "application/json", review),
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        response.body_mut().memory = memory.ok();
        response
    }
}

fn too_large() -> Response<Held> {
    let text = format!("the review has more than {} MiB\n", MAX_BODY >> 20);
    self::text(StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn text(status: StatusCode, text: String) -> Response<Held> {
    response(status, "text/plain; charset=utf-8", text.into_bytes())
}

fn response(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Held> {
    let mut response = Response::new(Held {
        body: body.into(),
        memory: None,
        busy: None,
    });
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The body of a response, in parts: the connection takes the next part when most of the former ones are sent. At the end, the
/// review's memory is released, and its time limit ends.
struct Held {
    body: Bytes,
    memory: Option<OwnedSemaphorePermit>,
    busy: Option<Arc<Mutex<Option<Instant>>>>,
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.body.len().min(PART);
        let part = (part > 0).then(|| Ok(Frame::data(self.body.split_to(part))));
        Poll::Ready(part)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.len() as u64)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(busy) = &self.busy {
            *busy.lock() = None;
        }
    }
}
