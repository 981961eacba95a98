//! Transport of requests and responses between the client's layers and the API server.

use std::time::Duration;

use http::{Request, Response, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Bytes};
use kube::client::{Body, DynBody};
use serde_json::{Value, json};
use tower::{BoxError, util::BoxService};

pub use crate::api::status::retry_after;

/// Longest silence of an API server while a response is read. The API server ends an idle watch after 290 s, so a longer
/// silence means that it is stuck.
pub const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Limit of the body of a response with `Retry-After`, in bytes. A `Status` is far shorter, and a faulty server may send an
/// endless body.
const LONGEST_STATUS: usize = 1 << 16;

/// Service below a client's layers: sends a request to the API server and returns its response.
pub type Transport = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// Reads the body. Returns an empty vector if it exceeds [`LONGEST_STATUS`].
async fn beginning<B>(mut body: B) -> Result<Vec<u8>, BoxError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(Into::into)?.into_data().unwrap_or_default();
        if text.len() + data.len() > LONGEST_STATUS {
            return Ok(Vec::new());
        }
        text.extend_from_slice(&data);
    }
    Ok(text)
}

/// Copies the header `Retry-After` into the `Status`, where [`retry_after`] finds it. API Priority and Fairness and proxies
/// send only the header.
///
/// # Errors
/// Fails if the body of a response with this header cannot be read.
pub async fn keep_retry_after<B>(response: Response<B>) -> Result<Response<Box<DynBody>>, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let seconds = || {
        parts
            .headers
            .get(RETRY_AFTER)?
            .to_str()
            .ok()?
            .parse::<u32>()
            .ok()
    };
    let asks = matches!(parts.status.as_u16(), 429 | 503);
    let body: Box<DynBody> = match asks.then(seconds).flatten() {
        None => Box::new(body.map_err(Into::into)),
        Some(seconds) => {
            let text = beginning(body).await?;
            let status = serde_json::from_slice(&text).ok();
            let mut status = status.filter(Value::is_object).unwrap_or_else(|| {
                json!({
                    "status": "Failure", "code": parts.status.as_u16(),
                    "reason": parts.status.canonical_reason(),
                    "message": String::from_utf8_lossy(&text).trim(),
                })
            });
            if !status["details"].is_object() {
                status["details"] = json!({});
            }
            status["details"]["retryAfterSeconds"] = seconds.into();
            let text = Bytes::from(serde_json::to_vec(&status)?);
            Box::new(Full::new(text).map_err(|never| match never {}))
        }
    };
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use futures::stream::repeat_with;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::convert::Infallible;

    use super::*;

    /// The server may send an endless body.
    #[tokio::test]
    async fn an_answer_that_asks_for_time_is_not_read_to_its_end() {
        let blanks = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b' '; 1 << 10])));
        let answer = Response::builder().status(503).header(RETRY_AFTER, "7");
        let answer = answer.body(StreamBody::new(repeat_with(blanks))).unwrap();
        let kept = keep_retry_after(answer).await.unwrap().into_body();
        let text = kept.collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(status["details"]["retryAfterSeconds"], 7);
        assert_eq!(
            (&status["code"], &status["message"]),
            (&503.into(), &"".into())
        );
    }
}
