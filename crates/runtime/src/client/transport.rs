//! Transport of requests and responses between the client's layers and the API server.

use std::time::Duration;

use http::{Request, Response, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Bytes};
use kube::client::{Body, DynBody};
use serde_json::{Value, json};
use tower::{BoxError, util::BoxService};

/// Longest silence of an API server while a response is read. The API server ends an idle watch after 290 s, so a longer
/// silence means that it is stuck.
pub const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Placeholder in a configuration of kube, which keeps kube from using the proxy of `HTTPS_PROXY`.
pub(super) const NO_PROXY: &str = "http://no-proxy.invalid/";

/// Maximum size of the body of an error response, in bytes. A `Status` is far shorter, and a faulty server may send an endless
/// body.
const LONGEST_STATUS: usize = 1 << 20;

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

/// Converts the body of each error response to a `Status`. Copies the header `Retry-After` of a 429 or 503 into it, where
/// `retry_after` of `api::status` reads it.
///
/// API Priority and Fairness and proxies send only the header. Proxies send HTML, and an API server without the resource type
/// sends text. The watch of kube would parse both as events.
///
/// # Errors
/// Fails if the body of an error response cannot be read.
pub async fn complete_status<B>(response: Response<B>) -> Result<Response<Box<DynBody>>, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let code = parts.status;
    if !code.is_client_error() && !code.is_server_error() {
        let body: Box<DynBody> = Box::new(body.map_err(Into::into));
        return Ok(Response::from_parts(parts, body));
    }
    let text = beginning(body).await?;
    let status = serde_json::from_slice(&text).ok();
    let mut status = status
        .filter(|status: &Value| status["kind"] == "Status")
        .unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&text);
            let message = match text.trim() {
                "" => code.canonical_reason().unwrap_or_default(),
                text => text,
            };
            json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                "reason": code.canonical_reason(), "message": message,
            })
        });
    let retry_after = parts.headers.get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if let Some(seconds) = retry_after.filter(|_| matches!(code.as_u16(), 429 | 503)) {
        if !status["details"].is_object() {
            status["details"] = json!({});
        }
        status["details"]["retryAfterSeconds"] = seconds.into();
    }
    let text = Bytes::from(serde_json::to_vec(&status)?);
    let body: Box<DynBody> = Box::new(Full::new(text).map_err(|never| match never {}));
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

    async fn status_of<B>(response: Response<B>) -> Value
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let body = complete_status(response).await.unwrap().into_body();
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap()
    }

    /// The body of an error response may be endless.
    #[tokio::test]
    async fn endless_error_response_is_not_read_to_its_end() {
        let blanks = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b' '; 1 << 10])));
        let answer = Response::builder().status(503).header(RETRY_AFTER, "7");
        let answer = answer.body(StreamBody::new(repeat_with(blanks))).unwrap();
        let status = status_of(answer).await;
        assert_eq!(status["details"]["retryAfterSeconds"], 7);
        assert_eq!(status["code"], 503);
        assert_eq!(status["message"], "Service Unavailable");
    }

    /// The text of an API server without the resource type and the HTML of a proxy become a `Status`. An existing `Status` keeps
    /// all its fields.
    #[tokio::test]
    async fn error_in_another_format_becomes_a_status() {
        let denied = r#"{"kind":"Status","code":403,"reason":"Forbidden","message":"no","details":{"kind":"pods"}}"#;
        for (code, text, message, kind) in [
            (
                404,
                "404 page not found\n",
                "404 page not found",
                Value::Null,
            ),
            (502, "<html>no</html>", "<html>no</html>", Value::Null),
            (401, "null", "null", Value::Null),
            (403, denied, "no", "pods".into()),
        ] {
            let response = Response::builder().status(code);
            let status = status_of(response.body(Full::new(Bytes::from(text))).unwrap()).await;
            assert_eq!(status["code"], code);
            assert_eq!(status["message"], message);
            assert_eq!(status["details"]["kind"], kind);
        }
    }
}
