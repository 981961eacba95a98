//! The HTTP server of the webhook: bounded memory, bounded time, and connections that stay open.
//!
//! These are bounded, and their sum is below the limit of the container in `deploy/conversion`:
//!
//! | | MiB |
//! |---|---|
//! | reviews that arrive, and responses that are sent: [`MEMORY`] + [`MAX_BODY`], twice because a `Vec` doubles its size | 40 |
//! | reviews that are converted, together [`MAX_BODY`]: maps of the members, and the result | 25 × 4 |
//! | connections: [`LIMITS`] × ([`BUFFER`] three times for reads and twice for writes, and 16 KiB three times for TLS) | 88 |
//! | the program | 12 |
//!
//! The conversions of the program are not bounded: the memory that they take, and the sizes of their results.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER},
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

use super::{
    review::Reviews,
    sending::{Sending, Unsent},
};
use crate::{
    api::conversion::PATH,
    telemetry::server::{Limits, Stream},
};

/// The connections last until the API server closes them. It keeps 25 idle ones for each URL, and its requests in flight are
/// limited to 600 (`--max-requests-inflight` and `--max-mutating-requests-inflight`). A client with more connections than others
/// cannot exclude them.
pub(super) const LIMITS: Limits = Limits {
    connections: 1024,
    lifetime: Duration::MAX,
};

/// Maximum size of a review in bytes. The API server stores objects of up to 1.5 MiB (`--max-request-bytes` of etcd), takes
/// requests of up to 3 MiB (`MaxRequestBodyBytes` in `server/config.go`), and sends a review for each object that it reads or
/// writes. A review of several objects is allowed, but version 1.36 sends none.
pub(super) const MAX_BODY: usize = 4 << 20;

/// Maximum size of the received parts of all reviews in progress, in KiB. Further parts wait. A further review at a time gets
/// [`MAX_BODY`] beyond this: otherwise, reviews that have arrived in part could wait for each other.
///
/// It is more than a part for each connection. So a first part waits until those before it have ended once.
const MEMORY: usize = 16 << 10;

/// Maximum size of all reviews that are converted at the same time, in KiB.
const CONVERTING: usize = MAX_BODY >> 10;

/// Maximum size of the request line and all headers in bytes, and of the read buffer.
const BUFFER: usize = 8 << 10;

/// Size of the parts of a response in bytes.
const PART: usize = BUFFER;

/// Time limit for the next request on a connection. Longer than the API server keeps an idle connection (90 s), so that it is
/// the one to close it.
const IDLE: Duration = Duration::from_mins(2);

/// Time limit of a request until its response. The API server waits as long (`webhook/authentication.go`).
const REQUEST: Duration = Duration::from_secs(30);

/// Time limit for a client to send the body of its request, and again to read the response. The API server has both in memory.
/// A wait for memory does not count, but a request that has some waits no longer than this for more. So it keeps its memory for
/// three times this, and for its conversion.
const CLIENT: Duration = Duration::from_secs(5);

/// Interval of the check of the time limits.
const WATCHDOG: Duration = Duration::from_secs(1);

/// State of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Serving,
    /// Each connection ends after its next response.
    Draining,
    /// Idle connections end at once.
    Closing,
}

/// Serves one connection, then drops `phase`. The stop waits until all are dropped.
pub(super) async fn serve(
    stream: Box<dyn Stream>,
    requests: Arc<Requests>,
    mut phase: watch::Receiver<Phase>,
) {
    let (deadline, unsent) = (Arc::new(Mutex::new(None)), Unsent::default());
    let current = phase.clone();
    let service = service_fn(|request| {
        let (requests, deadline) = (Arc::clone(&requests), Arc::clone(&deadline));
        let current = current.clone();
        async move {
            *deadline.lock() = Some(Instant::now() + REQUEST);
            let mut response = requests.answer(request).await;
            *deadline.lock() = None;
            if *current.borrow() != Phase::Serving {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = Sending::new(stream, unsent.clone());
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
                let answer = *deadline.lock();
                let read = unsent.since().map(|since| since + CLIENT);
                if [answer, read].into_iter().flatten().any(|until| Instant::now() > until) {
                    return;
                }
            }
        }
    }
}

/// The reviews, and the memory for them.
pub(super) struct Requests {
    reviews: Reviews,
    /// Its permits are KiB of [`MEMORY`].
    memory: Arc<Semaphore>,
    /// Its only permit is [`MAX_BODY`] beyond that.
    last: Arc<Semaphore>,
    /// Its permits are KiB of [`CONVERTING`].
    converting: Semaphore,
}

/// The memory of one review.
#[derive(Default)]
struct Memory {
    shared: Option<OwnedSemaphorePermit>,
    /// The rest of the review needs no more.
    last: Option<OwnedSemaphorePermit>,
}

impl Requests {
    pub(super) fn new(reviews: Reviews) -> Self {
        Self {
            reviews,
            memory: Arc::new(Semaphore::new(MEMORY)),
            last: Arc::new(Semaphore::new(1)),
            converting: Semaphore::new(CONVERTING),
        }
    }

    #[cfg(test)]
    pub(super) fn take_memory(&self) -> [OwnedSemaphorePermit; 2] {
        let all = u32::try_from(self.memory.available_permits()).unwrap_or(u32::MAX);
        let shared = Arc::clone(&self.memory).try_acquire_many_owned(all);
        let last = Arc::clone(&self.last).try_acquire_owned();
        [shared, last].map(|permit| permit.expect("it is available"))
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.memory.available_permits() == MEMORY && self.last.available_permits() == 1
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
        let (status, text) = match self.converted(request).await {
            Ok(response) => return response,
            Err(refused) => refused,
        };
        self.reviews.refused(&text);
        let mut response = self::text(status, text + "\n");
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let after = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, after);
        }
        response
    }

    /// Returns the response to a review.
    ///
    /// # Errors
    /// The status and the text of the refusal.
    async fn converted(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Held>, (StatusCode, String)> {
        if request.body().size_hint().lower() > MAX_BODY as u64 {
            return Err(too_large());
        }
        let mut body = request.into_body();
        let mut memory = Memory::default();
        let mut review = Vec::new();
        let (mut left, mut patience) = (CLIENT, CLIENT);
        loop {
            let waiting = Instant::now();
            let Ok(frame) = timeout(left, body.frame()).await else {
                let text = format!("the body took longer than {} s", CLIENT.as_secs());
                return Err((StatusCode::REQUEST_TIMEOUT, text));
            };
            left = left.saturating_sub(waiting.elapsed());
            let Some(frame) = frame else { break };
            let Ok(frame) = frame else {
                let text = "the body ended too early".to_owned();
                return Err((StatusCode::BAD_REQUEST, text));
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if review.len() + data.len() > MAX_BODY {
                return Err(too_large());
            }
            let waiting = Instant::now();
            let grown = self.grow(&mut memory, review.len() + data.len());
            if review.is_empty() {
                grown.await;
            } else if timeout(patience, grown).await.is_err() {
                let text = format!("no memory for the review for {} s", CLIENT.as_secs());
                return Err((StatusCode::SERVICE_UNAVAILABLE, text));
            } else {
                patience = patience.saturating_sub(waiting.elapsed());
            }
            review.extend_from_slice(&data);
        }
        let size = u32::try_from(review.len().div_ceil(1024)).unwrap_or(u32::MAX);
        // It is never closed.
        let converting = self.converting.acquire_many(size).await;
        let answer = self.reviews.answer(&review).await;
        drop(converting);
        let answer = answer.map_err(|error| (StatusCode::BAD_REQUEST, error))?;
        let mut response = response(StatusCode::OK, "application/json", answer);
        response.body_mut().memory = memory;
        Ok(response)
    }
}

fn too_large() -> (StatusCode, String) {
    let text = format!("the review has more than {} MiB", MAX_BODY >> 20);
    (StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn text(status: StatusCode, text: String) -> Response<Held> {
    response(status, "text/plain; charset=utf-8", text.into_bytes())
}

fn response(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Held> {
    let mut response = Response::new(Held {
        body: body.into(),
        memory: Memory::default(),
    });
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The body of a response, in parts: the connection takes the next part when most of the former ones are sent. With the last one,
/// the review's memory is released. Each part is a copy, because a slice of the body would keep all of it until it is sent.
struct Held {
    body: Bytes,
    memory: Memory,
}

impl Held {
    fn next(&mut self) -> Bytes {
        let part = self.body.split_to(self.body.len().min(PART));
        Bytes::copy_from_slice(&part)
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.next();
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that a client has not read keeps no more than itself.
    #[test]
    fn the_parts_of_a_response_are_copies() {
        let mut held = response(StatusCode::OK, "text/plain", vec![b' '; 3 * PART]).into_body();
        let part = held.next();
        assert_eq!(part.len(), PART);
        assert!(part.is_unique());
    }
}
