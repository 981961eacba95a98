//! The exporters against a server that sends prepared responses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use http::Uri;
use opentelemetry::{
    InstrumentationScope,
    logs::{LogRecord as _, Logger as _, LoggerProvider as _},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::{LogBatch, LogExporter as _, SdkLoggerProvider},
    metrics::{data::ResourceMetrics, exporter::PushMetricExporter as _},
    testing::trace::new_test_export_span_data,
    trace::SpanExporter as _,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{advance, pause, resume, sleep},
};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::{
    config::{app::tests::APP, protocol::Protocol, settings::Telemetry},
    telemetry::{
        export::{Exporters, env::Env, outage},
        metrics::Metrics,
    },
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Response of the server to one request.
#[derive(Clone)]
enum Answer {
    Text(String),
    /// The head, and a body that never ends.
    Endless(&'static str),
    /// The connection is closed.
    Close,
    /// A response after this time.
    Late(Duration, String),
    /// No response. The connection stays open.
    Silent,
}

/// A status line without a body.
fn status(code: u16, headers: &str) -> Answer {
    Answer::Text(head(code, headers))
}

fn head(code: u16, headers: &str) -> String {
    format!("HTTP/1.1 {code} Code\r\n{headers}Content-Length: 0\r\n\r\n")
}

/// Server of the answers, one for each request, the last one repeatedly.
struct Server {
    uri: Uri,
    /// Time and head of each request.
    requests: Arc<Mutex<Vec<(Instant, String)>>>,
    /// One item for each connection that the client has closed.
    closed: mpsc::Receiver<()>,
    _accepting: JoinSet<()>,
}

impl Server {
    async fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let (seen, answers) = (Arc::clone(&requests), answers.to_vec());
        let (report, closed) = mpsc::channel(8);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(
                    stream,
                    answers.clone(),
                    Arc::clone(&seen),
                    report.clone(),
                ));
            }
        });
        Self {
            uri: uri.parse().unwrap(),
            requests,
            closed,
            _accepting: accepting,
        }
    }

    fn count(&self) -> usize {
        self.requests.lock().len()
    }

    /// Exporters of all signals to this server.
    fn exporters(&self, variables: &[(&str, &str)]) -> Exporters {
        let variables = variables.iter();
        let env = Env::new(variables.map(|(name, value)| (name.into(), value.into())));
        let configured = Telemetry {
            endpoint: Some(self.uri.clone()),
            protocol: Some(Protocol::Http),
        };
        Exporters::new(&env, &configured).unwrap()
    }
}

async fn serve(
    stream: TcpStream,
    answers: Vec<Answer>,
    seen: Arc<Mutex<Vec<(Instant, String)>>>,
    closed: mpsc::Sender<()>,
) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                let _ = closed.send(()).await;
                return;
            }
        }
        for line in head.to_lowercase().lines() {
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        let answer = {
            let mut seen = seen.lock();
            seen.push((Instant::now(), head));
            answers[(seen.len() - 1).min(answers.len() - 1)].clone()
        };
        match answer {
            Answer::Text(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Answer::Endless(head) => {
                stream.write_all(head.as_bytes()).await.unwrap();
                while stream.write_all(&[b' '; 1 << 14]).await.is_ok() {}
                return;
            }
            Answer::Close => return,
            Answer::Late(after, text) => {
                sleep(after).await;
                let _ = stream.write_all(text.as_bytes()).await;
            }
            Answer::Silent => std::future::pending().await,
        }
    }
}

/// Exports one span to a server with these answers. Returns the result and the number of requests.
async fn export(answers: &[Answer]) -> (OTelSdkResult, usize) {
    let server = Server::start(answers).await;
    let traces = server.exporters(&[]).traces.unwrap();
    let sent = traces.export(vec![new_test_export_span_data()]).await;
    (sent, server.count())
}

/// Status codes and broken connections, by the specification
/// (<https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes>).
#[tokio::test]
async fn only_retryable_failures_are_repeated() {
    let ok = Answer::Text(OK.to_owned());
    for code in [429, 502, 503, 504] {
        let (sent, requests) = export(&[status(code, ""), ok.clone()]).await;
        assert_eq!((sent.is_ok(), requests), (true, 2), "{code}");
    }
    let (sent, requests) = export(&[Answer::Close, ok.clone()]).await;
    assert_eq!((sent.is_ok(), requests), (true, 2));
    for code in [301, 400, 401, 404, 413, 500] {
        // The server closes the connection, which is no reason to repeat the request.
        let failure = status(code, "Connection: close\r\n");
        let (sent, requests) = export(&[failure, ok.clone()]).await;
        let text = sent.unwrap_err().to_string();
        assert!(text.contains(&code.to_string()), "{text}");
        assert_eq!(requests, 1, "{code}");
    }
}

/// A web server that is no collector does not swallow the data in silence.
#[tokio::test(start_paused = true)]
async fn a_page_is_a_failure() {
    let page = "HTTP/1.1 200 OK\r\nContent-Type: Text/HTML; charset=utf-8\r\nContent-Length: 6\r\n\r\n<html>";
    let (ended, requests) = export(&[Answer::Text(page.into())]).await;
    assert!(ended.is_err());
    assert_eq!(requests, 1);
}

/// `Retry-After`, in seconds or as a date, delays the repetition. The date is relative to the date of the response.
#[tokio::test]
async fn a_batch_waits_for_retry_after() {
    let date =
        "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:49:38 GMT\r\n";
    for headers in ["Retry-After: 1\r\n", date] {
        let server = Server::start(&[status(503, headers), Answer::Text(OK.to_owned())]).await;
        let traces = server.exporters(&[]).traces.unwrap();
        let sent = traces.export(vec![new_test_export_span_data()]).await;
        sent.unwrap();
        let requests = server.requests.lock();
        assert_eq!(requests.len(), 2);
        let pause = requests[1].0 - requests[0].0;
        assert!(pause >= Duration::from_millis(900), "{headers}: {pause:?}");
    }
}

/// A pause that is longer than the time limit of a batch delays the batch, once, and later batches. It does not use their time.
#[tokio::test]
async fn later_batches_wait_for_retry_after() {
    let busy = status(429, "Retry-After: 2\r\n");
    let answers = [busy.clone(), busy, Answer::Text(OK.to_owned())];
    let server = Server::start(&answers).await;
    let limit = [("OTEL_EXPORTER_OTLP_TIMEOUT", "1900")];
    let traces = server.exporters(&limit).traces.unwrap();
    let batch = || traces.export(vec![new_test_export_span_data()]);
    batch().await.unwrap_err();
    assert_eq!(server.count(), 2);
    batch().await.unwrap();
    let requests = server.requests.lock();
    assert_eq!(requests.len(), 3);
    for pair in requests.windows(2) {
        let pause = pair[1].0 - pair[0].0;
        assert!(pause >= Duration::from_millis(1900), "{pause:?}");
    }
}

/// A collector, or a load balancer before it, may acknowledge a request and be dead. The export is repeated on a new connection.
#[tokio::test]
async fn a_silent_connection_loses_nothing() {
    let server = Server::start(&[Answer::Silent, Answer::Text(OK.to_owned())]).await;
    let limit = [("OTEL_EXPORTER_OTLP_TIMEOUT", "2000")];
    let traces = server.exporters(&limit).traces.unwrap();
    let sent = traces.export(vec![new_test_export_span_data()]).await;
    sent.unwrap();
    assert_eq!(server.count(), 2);
}

/// The time limit of an export includes all of its attempts. Here it ends the third one, in the middle.
#[tokio::test]
async fn an_export_ends_at_its_deadline() {
    const LIMIT: Duration = Duration::from_secs(4);
    let late = Answer::Late(LIMIT * 7 / 20, head(503, ""));
    let server = Server::start(&[late.clone(), late, Answer::Silent]).await;
    let limit = [("OTEL_EXPORTER_OTLP_TIMEOUT", "4000")];
    let traces = server.exporters(&limit).traces.unwrap();
    let sent = traces.export(vec![new_test_export_span_data()]).await;
    let text = sent.unwrap_err().to_string();
    assert!(text.contains("not accepted in 4s"), "{text}");
    assert_eq!(server.count(), 3);
}

/// A pause is rounded up.
#[test]
fn a_pause_has_whole_seconds() {
    for (milliseconds, seconds) in [(0, 0), (1, 1), (2000, 2), (2001, 3)] {
        assert_eq!(seconds_of(Duration::from_millis(milliseconds)), seconds);
    }
}

/// Longer pauses than 30 s, dates in the past and nonsense have no effect, or a limited one.
#[test]
fn retry_after_is_limited() {
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (code, after, expected) in [
        (503, "86400", Some(MAX_RETRY_AFTER)),
        (429, "2", Some(Duration::from_secs(2))),
        (429, "-1", None),
        (503, "soon", None),
        (
            503,
            "Sun, 06 Nov 1994 08:49:39 GMT",
            Some(Duration::from_secs(2)),
        ),
        (503, "Sun, 06 Nov 1994 08:49:36 GMT", None),
        (503, "Mon, 07 Nov 1994 08:49:37 GMT", Some(MAX_RETRY_AFTER)),
        (500, "2", None),
    ] {
        let response = Response::builder()
            .status(code)
            .header(RETRY_AFTER, after)
            .header(DATE, NOW)
            .body(Bytes::new())
            .unwrap();
        assert_eq!(pause_of(&response), expected, "{code} {after}");
    }
}

/// A response that is too large fails the export without a repetition. A response that does not end fails it at its time limit.
#[tokio::test]
async fn responses_are_bounded() {
    let large = "HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n";
    let failed = "HTTP/1.1 503 Busy\r\nContent-Length: 9999999999\r\n\r\n";
    for head in [large, chunked, failed] {
        let (sent, requests) = export(&[Answer::Endless(head)]).await;
        let text = sent.unwrap_err().to_string();
        assert!(text.contains("exceeded"), "{text}");
        assert_eq!(requests, 1, "{head}");
    }
    let slow = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_owned();
    let server = Server::start(&[Answer::Text(slow)]).await;
    let limit = [("OTEL_EXPORTER_OTLP_TIMEOUT", "300")];
    let traces = server.exporters(&limit).traces.unwrap();
    let sent = traces.export(vec![new_test_export_span_data()]).await;
    sent.unwrap_err();
}

/// Requests have the path of the signal, the headers of the SDK and the configured headers.
#[tokio::test]
async fn requests_have_path_and_headers() {
    let server = Server::start(&[Answer::Text(OK.to_owned())]).await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1,x-a=2,user-agent=mine"),
    ];
    let traces = server.exporters(&variables).traces.unwrap();
    let sent = traces.export(vec![new_test_export_span_data()]).await;
    sent.unwrap();
    let requests = server.requests.lock();
    let head = requests[0].1.to_lowercase();
    for line in [
        "post /v1/traces http/1.1",
        "content-type: application/x-protobuf",
        "content-encoding: gzip",
        "x-a: 1",
        "x-a: 2",
        "user-agent: mine",
        &format!("host: {}", server.uri.authority().unwrap()),
    ] {
        assert!(head.lines().any(|it| it == line), "{line} in {head}");
    }
}

/// Exports share a connection. An idle connection is closed before collectors and load balancers close it, after 60 s or more.
#[tokio::test]
async fn an_idle_connection_is_closed() {
    let mut server = Server::start(&[Answer::Text(OK.to_owned())]).await;
    let traces = server.exporters(&[]).traces.unwrap();
    for _ in 0..2 {
        let sent = traces.export(vec![new_test_export_span_data()]).await;
        sent.unwrap();
    }
    assert!(server.closed.try_recv().is_err());
    pause();
    for _ in 0..101 {
        advance(Duration::from_millis(500)).await;
    }
    resume();
    let closed = timeout(Duration::from_secs(5), server.closed.recv()).await;
    closed.unwrap().unwrap();
    assert!(server.closed.try_recv().is_err(), "one connection");
}

/// The events of the SDK and of this client have the names that [`outage`] knows.
#[tokio::test]
async fn rejected_records_are_counted() {
    // `partial_success { rejected: 3, error_message: "old" }` of all three signals.
    let partly = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\n\u{7}\u{8}\u{3}\u{12}\u{3}old";
    let server = Server::start(&[Answer::Text(partly.to_owned())]).await;
    let resource = opentelemetry_sdk::Resource::builder_empty().build();
    let (metrics, _meters) = Metrics::new(&APP, resource, None);
    let layer = outage::export_events(metrics.clone(), outage::Failures::default());
    let subscriber = tracing_subscriber::registry().with(layer);
    let _default = tracing::subscriber::set_default(subscriber);

    let exporters = server.exporters(&[]);
    let batch = vec![new_test_export_span_data()];
    exporters.traces.unwrap().export(batch).await.unwrap();
    let logger = SdkLoggerProvider::builder().build().logger("scope");
    let mut record = logger.create_log_record();
    record.set_observed_timestamp(SystemTime::UNIX_EPOCH);
    let record = (&record, &InstrumentationScope::default());
    let batch = LogBatch::new(std::slice::from_ref(&record));
    exporters.logs.unwrap().export(batch).await.unwrap();
    let batch = ResourceMetrics::default();
    exporters.metrics.unwrap().export(&batch).await.unwrap();

    let (_, text) = metrics.scrape(None);
    for signal in Signal::ALL {
        let line = format!(r#"telemetry_rejected_total{{signal="{signal}"}} 3"#);
        assert!(text.contains(&line), "{text}");
    }
}

/// Messages of collectors are in protobuf or plain text. A page in another format is from a proxy.
#[test]
fn error_messages_are_read() {
    let status = b"\x08\x0e\x12\x05words";
    for (content, body, expected) in [
        ("application/x-protobuf", &status[..], "words"),
        ("application/x-protobuf", b"nonsense", ""),
        (
            "text/plain; charset=utf-8",
            b"no such tenant\n",
            "no such tenant",
        ),
        ("text/html", b"<h1>502</h1>", ""),
        ("", b"words", ""),
    ] {
        let response = Response::builder().header(CONTENT_TYPE, content);
        let response = response.body(Bytes::from_static(body)).unwrap();
        assert_eq!(message(&response), expected, "{content}");
    }
}
