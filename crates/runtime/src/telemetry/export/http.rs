//! HTTP client of OTLP/HTTP, below the exporters of the SDK.
//!
//! The SDK encodes the requests, and repeats them after a broken connection and after the status codes 429, 502, 503 and 504
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>). This client sends one request over the connections that gRPC uses as
//! well,
//! with the same limits, and reads a bounded response. An attempt may take half of the export's time. HTTP/1.1 has no pings, so
//! only another attempt, on a new connection, gets past a dead collector or load balancer.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use http::{
    HeaderMap, Request, Response, StatusCode,
    header::{CONTENT_TYPE, DATE, HeaderName, RETRY_AFTER},
};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jiff::Zoned;
use opentelemetry_http::{Bytes, HttpClient, HttpError, ResponseBodyTooLarge};
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::{
    bounded::Pause,
    connection::{Connection, Pool},
    env::Signal,
};
use crate::api::failure::root_cause;

/// Log target of the SDK's exporters.
const TARGET: &str = "opentelemetry-otlp";

/// Maximum size of a response, as the specification recommends.
const MAX_RESPONSE: usize = 4 << 20;

/// Maximum `Retry-After` that is honored, as in the SDK.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// HTTP client of one signal.
pub(super) struct Client {
    signal: Signal,
    pool: Pool,
    /// Headers of every request, such as credentials.
    headers: HeaderMap,
    /// Time limit of one request.
    limit: Duration,
    pause: Pause,
}

impl Client {
    /// Creates a client, without a connection yet. `limit` is the time limit of one export.
    pub(super) fn new(
        signal: Signal,
        connection: &Connection,
        headers: HeaderMap,
        limit: Duration,
        pause: Pause,
    ) -> Self {
        Self {
            signal,
            pool: connection.pool(),
            headers,
            limit: limit / 2,
            pause,
        }
    }

    /// Sends a request and returns the whole response.
    async fn exchange(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The existing headers are those of the SDK and the headers that it read itself: at most a part of ours.
        request.headers_mut().extend(self.headers.clone());
        let limit = self.limit;
        let exchange = async {
            let response = self.pool.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    ResponseBodyTooLarge::new().into()
                } else {
                    error
                }
            })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let ended = timeout(limit, exchange).await;
        ended.unwrap_or_else(|_| Err(format!("no response in {limit:?}").into()))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut ended = self.exchange(request).await;
        match &mut ended {
            // The SDK would count the data as exported.
            Ok(response) if response.status().is_success() && is_page(response) => {
                failed(
                    self.signal,
                    "the endpoint is no collector: it returned an HTML page",
                );
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            Ok(response) if response.status().is_success() => succeeded(self.signal),
            Ok(response) => {
                let pause = pause_of(response);
                // The SDK waits for this header before it repeats the request. It would compare a date with its own clock.
                response.headers_mut().remove(RETRY_AFTER);
                if let Some(pause) = pause {
                    let seconds = seconds_of(pause).into();
                    response.headers_mut().insert(RETRY_AFTER, seconds);
                    self.pause.set(Instant::now() + pause);
                }
                failed(self.signal, &message(response));
            }
            Err(error) => failed(self.signal, &root_cause(&**error)),
        }
        ended
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.signal)
    }
}

/// Emits the event of an accepted request. The SDK's own events do not name the signal. The target is the SDK's, whose records are
/// not exported.
fn succeeded(signal: Signal) {
    match signal {
        Signal::Traces => debug!(name: "HttpTracesClient.ExportSucceeded", target: TARGET, ""),
        Signal::Logs => debug!(name: "HttpLogsClient.ExportSucceeded", target: TARGET, ""),
        Signal::Metrics => debug!(name: "HttpMetricsClient.ExportSucceeded", target: TARGET, ""),
    }
}

/// Emits the event of a failed request. The SDK's error lacks the cause.
fn failed(signal: Signal, error: &str) {
    match signal {
        Signal::Traces => debug!(name: "HttpTracesClient.ExportFailed", target: TARGET, error),
        Signal::Logs => debug!(name: "HttpLogsClient.ExportFailed", target: TARGET, error),
        Signal::Metrics => debug!(name: "HttpMetricsClient.ExportFailed", target: TARGET, error),
    }
}

/// Returns the pause that the collector requests with `Retry-After`, in seconds or as a date. A date is compared with the date of
/// the response, if there is one, so that the clocks need not agree.
fn pause_of(response: &Response<Bytes>) -> Option<Duration> {
    let throttles = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if !throttles.contains(&response.status()) {
        return None;
    }
    let text = |name: HeaderName| response.headers().get(name)?.to_str().ok();
    let date = |name| jiff::fmt::rfc2822::parse(text(name)?).ok();
    let pause = if let Ok(seconds) = text(RETRY_AFTER)?.parse() {
        Duration::from_secs(seconds)
    } else {
        let now = date(DATE).unwrap_or_else(Zoned::now);
        date(RETRY_AFTER)?.duration_since(&now).try_into().ok()?
    };
    Some(pause.min(MAX_RETRY_AFTER))
}

/// Rounds up to whole seconds.
fn seconds_of(pause: Duration) -> u64 {
    pause.as_secs() + u64::from(pause.subsec_nanos() > 0)
}

/// `google.rpc.Status`, the body of an error response. Only its message is of use.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// Returns whether the response is a page for browsers, as from the wrong web server.
fn is_page(response: &Response<Bytes>) -> bool {
    let content = response.headers().get(CONTENT_TYPE);
    let content = content.map(|content| content.as_bytes().to_ascii_lowercase());
    content.is_some_and(|content| content.starts_with(b"text/html"))
}

/// Returns the collector's error message, if the response has one. Pages of proxies are not messages.
fn message(response: &Response<Bytes>) -> String {
    let content = response.headers().get(CONTENT_TYPE);
    let content = content.and_then(|content| content.to_str().ok());
    let (content, body) = (content.unwrap_or_default(), response.body());
    if content.starts_with("application/x-protobuf") {
        let status = Status::decode(body.clone()).unwrap_or_default();
        status.message
    } else if content.starts_with("text/plain") {
        String::from_utf8_lossy(body).trim().to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests;
