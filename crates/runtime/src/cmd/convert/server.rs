//! The HTTP server of the webhook: bounded memory, bounded time, and connections that stay open.
//!
//! Its memory is limited by construction, below the limit of the container in `deploy/conversion`:
//!
//! | | MiB |
//! |---|---|
//! | reviews: [`MEMORY`] + [`MAX_BODY`], each as its body, the converted objects and the response | 3 × 48 |
//! | connections: [`LIMITS`] × ([`BUFFER`] for reads, as much for writes, and as much for each direction of TLS) | 64 |
//! | the program | 12 |

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
    time::{Instant, interval, timeout},
};

use super::review::Reviews;
use crate::{
    api::conversion::PATH,
    telemetry::server::{Limits, Stream},
};

/// The connections last until the API server closes them. It keeps 25 idle ones for each URL, and its requests in flight are
/// limited to 600 (`--max-requests-inflight` and `--max-mutating-requests-inflight`). A client with more connections than others
/// cannot exclude them.
pub const LIMITS: Limits = Limits {
    connections: 1024,
    lifetime: Duration::MAX,
};

/// Maximum size of a review in bytes. The API server stores objects of up to 1.5 MiB (etcd), and sends a review for each object
/// that it reads or writes. A review of several objects is allowed, but version 1.36 sends none.
const MAX_BODY: usize = 16 << 20;

/// Maximum size of the received parts of all reviews in progress, in KiB. Further parts wait. One more review at a time gets
/// [`MAX_BODY`] beyond this: otherwise, reviews that have arrived in part could wait for each other.
const MEMORY: usize = 32 << 10;

/// Maximum size of the request line and all headers in bytes, and of the read buffer.
const BUFFER: usize = 16 << 10;

/// Size of the parts of a response in bytes.
const PART: usize = BUFFER;

/// Time limit for the next request on a connection. Longer than the API server keeps an idle connection (90 s), so that it is
/// the one to close it.
const IDLE: Duration = Duration::from_mins(2);

/// Time limit of a request until its response. The API server waits as long (`webhook/authentication.go`).
const REQUEST: Duration = Duration::from_secs(30);

/// Time limit for a client to send the body of its request, and again to read the response. The API server has both in memory.
/// A wait for memory does not count.
const CLIENT: Duration = Duration::from_secs(5);

/// Interval of the check of the time limits.
const WATCHDOG: Duration = Duration::from_secs(1);

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
            *busy.lock() = Some(Instant::now() + REQUEST);
            let mut response = requests.answer(request).await;
            *busy.lock() = Some(Instant::now() + CLIENT);
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
                let until = *busy.lock();
                if until.is_some_and(|until| Instant::now() > until) {
                    return;
                }
            }
        }
    }
}

/// The reviews, and the memory for them.
pub struct Requests {
    reviews: Reviews,
    /// Its permits are KiB of [`MEMORY`].
    memory: Arc<Semaphore>,
    /// Its only permit is [`MAX_BODY`] beyond that.
    last: Arc<Semaphore>,
}

/// The memory of one review.
#[derive(Default)]
struct Memory {
    shared: Option<OwnedSemaphorePermit>,
    /// The rest of the review needs no more.
    last: Option<OwnedSemaphorePermit>,
}

impl Requests {
    pub fn new(reviews: Reviews) -> Self {
        Self {
            reviews,
            memory: Arc::new(Semaphore::new(MEMORY)),
            last: Arc::new(Semaphore::new(1)),
        }
    }

    #[cfg(test)]
    pub fn take_all_memory(&self) -> [OwnedSemaphorePermit; 2] {
        let all = u32::try_from(MEMORY).unwrap_or(u32::MAX);
        let shared = Arc::clone(&self.memory).try_acquire_many_owned(all);
        let last = Arc::clone(&self.last).try_acquire_owned();
        [shared, last].map(|permit| permit.expect("nothing is in use"))
    }

    /// Waits until there is memory for a review of `size` bytes.
    async fn grow(&self, memory: &mut Memory, size: usize) {
        let held = memory
            .shared
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = size.div_ceil(1024).saturating_sub(held);
        let Ok(more) = u32::try_from(more) else {
            return;
        };
        if more == 0 || memory.last.is_some() {
            return;
        }
        // The semaphores are never closed.
        tokio::select! {
            biased;
            Ok(more) = Arc::clone(&self.memory).acquire_many_owned(more) => match &mut memory.shared {
                Some(shared) => shared.merge(more),
                shared => *shared = Some(more),
            },
            Ok(last) = Arc::clone(&self.last).acquire_owned() => memory.last = Some(last),
            else => {}
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
        if request.body().size_hint().lower() > MAX_BODY as u64 {
            return too_large();
        }
        let mut body = request.into_body();
        let mut memory = Memory::default();
        let mut review = Vec::new();
        let mut left = CLIENT;
        loop {
            let waiting = Instant::now();
            let Ok(frame) = timeout(left, body.frame()).await else {
                let text = format!("the body took longer than {} s\n", CLIENT.as_secs());
                return self::text(StatusCode::REQUEST_TIMEOUT, text);
            };
            left = left.saturating_sub(waiting.elapsed());
            let Some(frame) = frame else { break };
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
            self.grow(&mut memory, review.len() + data.len()).await;
            review.extend_from_slice(&data);
        }
        let mut response = match self.reviews.answer(&review).await {
            Ok(review) => response(StatusCode::OK, "application/json", review),
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        response.body_mut().memory = memory;
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
        memory: Memory::default(),
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
    memory: Memory,
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
