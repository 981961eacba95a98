//! Tests of the telemetry test support. The real collector returns the telemetry sent to it, in each state that tests use. Each
//! mock fails as documented. Prometheus scrapes and alerts. A browser renders the page of traces.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant, SystemTime},
};

use opentelemetry::{
    Context, InstrumentationScope, KeyValue,
    logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity},
    metrics::MeterProvider as _,
    trace::{
        Link, Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource, logs::SdkLoggerProvider, metrics::SdkMeterProvider, trace::SdkTracerProvider,
};
use operator_testkit::{
    cluster,
    collector::{self, Behaviour, Collector, Data, Kind, Mock, page},
    prometheus::{Prometheus, promtool},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tonic::transport::{Certificate, ClientTlsConfig};

/// Time limit of an export or a connection.
const TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn the_collector_returns_the_sent_data() {
    let collector = Collector::start().await;
    let sent = send_all(&collector.endpoint(), "foo-sample").await;
    let trace_id = sent.to_string();
    let name = "the trace, its log record and the metrics";
    let received = collector.wait_for(name, |received| {
        let whole = !received.reconciles("foo-sample").is_empty()
            && !received.logs_of(&trace_id).is_empty()
            && received.metric("seconds").is_some();
        whole.then(|| collector.received())
    });
    let received = received.await;

    let traces = received.reconciles("foo-sample");
    let [trace] = &traces[..] else {
        panic!("{traces:#?}")
    };
    assert_eq!(trace.id(), trace_id);
    let [(0, root), (1, request)] = trace.walk()[..] else {
        panic!("{trace}")
    };
    assert_eq!(root.origin.resource["service.name"], "sender");
    assert_eq!(root.origin.scope, "scope");
    assert_eq!((root.kind, root.error()), (Kind::Internal, None));
    assert_eq!(root.links[0].trace_id, "000000000000000000000000000000aa");
    assert_eq!(request.kind, Kind::Client);
    assert_eq!(request.error(), Some("conflict"));
    assert_eq!(request.attributes["http.response.status_code"], 409);
    assert_eq!(request.events[0].name, "retried");
    let text = trace.to_string();
    assert!(
        text.contains("\nreconcile  ") && text.contains("\n  PATCH deployments  "),
        "{text}"
    );
    assert!(text.contains("\n  > INFO  created\n"), "{text}");

    let metric = received.metric("requests").unwrap();
    assert!(matches!(&metric.data, Data::Sum(points) if points.is_monotonic));
    let point = metric.point(&[("method", "PATCH")]).unwrap();
    assert!((point.value - 3.0).abs() < f64::EPSILON);
    let histogram = received.metric("seconds").unwrap();
    let point = &histogram.points()[0];
    assert_eq!((point.count, &point.bucket_counts[..]), (2, &[1, 0, 1][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_collector_keeps_its_port_and_data() {
    let mut collector = Collector::start().await;
    let endpoint = collector.endpoint();
    send(&endpoint, None, "before").await.unwrap();
    collector.stop().await;
    send(&endpoint, None, "lost").await.unwrap_err();
    collector.restart().await;
    send(&endpoint, None, "stopped").await.unwrap();
    arrives(&collector, "stopped").await;
    collector.kill();
    send(&endpoint, None, "lost").await.unwrap_err();
    collector.restart().await;
    collector.freeze();
    send(&endpoint, None, "lost, perhaps").await.unwrap_err();
    collector.thaw();
    send(&endpoint, None, "thawed").await.unwrap();
    arrives(&collector, "thawed").await;

    assert_eq!(collector.endpoint(), endpoint);
    let received = collector.received();
    let names: Vec<_> = received.spans.iter().map(|span| &*span.name).collect();
    assert!(names.starts_with(&["before", "stopped"]), "{names:?}");
    assert!(!names.contains(&"lost"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_with_tls_accepts_only_clients_that_trust_its_authority() {
    let collector = Collector::start_tls().await;
    let endpoint = collector.endpoint();
    let ca = Certificate::from_pem(fs::read(collector.ca()).unwrap());
    let trusting = || ClientTlsConfig::new().ca_certificate(ca.clone());
    send(&endpoint, Some(trusting()), "by address")
        .await
        .unwrap();
    let by_name = endpoint.replace("127.0.0.1", "localhost");
    send(&by_name, Some(trusting()), "by name").await.unwrap();
    arrives(&collector, "by name").await;

    send(&endpoint, Some(ClientTlsConfig::new()), "no")
        .await
        .unwrap_err();
    let plain = endpoint.replace("https", "http");
    send(&plain, None, "no").await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn mocks_have_the_configured_behaviour() {
    let after = Duration::from_millis(100);
    for behaviour in [
        Behaviour::Refuse,
        Behaviour::Silent,
        Behaviour::Garbage,
        Behaviour::Page,
        Behaviour::Answer(after, 0),
        Behaviour::Answer(after, 14),
    ] {
        let mock = Mock::start(behaviour).await;
        let started = Instant::now();
        let sent = send(&mock.endpoint(), None, "span").await;
        let waited = started.elapsed();
        let requests = mock.requests();
        let seen = format!("{behaviour:?}: {sent:?} after {waited:?}, {requests:?}");
        let (ok, error, answers) = match behaviour {
            Behaviour::Refuse => (false, "Connection refused", false),
            Behaviour::Silent => (false, "Timeout expired", false),
            Behaviour::Garbage => (false, "transport error", false),
            Behaviour::Page => (false, "Internal", true),
            Behaviour::Answer(_, code) => (code == 0, "Unavailable", true),
            Behaviour::BlackHole => unreachable!("not in this test"),
        };
        match sent {
            Ok(()) => assert!(ok, "{seen}"),
            Err(said) => assert!(!ok && said.contains(error), "{seen}"),
        }
        assert_eq!(!requests.is_empty(), answers, "{seen}");
        assert!(
            requests.iter().all(|it| it.contains_key("user-agent")),
            "{seen}"
        );
        assert!(
            !matches!(behaviour, Behaviour::Answer(..)) || waited >= after,
            "{seen}"
        );
    }
}

#[tokio::test]
async fn a_black_hole_accepts_no_connection() {
    let mock = Mock::start(Behaviour::BlackHole).await;
    let address = mock.endpoint().replace("http://", "");
    let connected = timeout(TIMEOUT, TcpStream::connect(address)).await;
    assert!(connected.is_err(), "{connected:?}");
}

/// Renders the page in a browser. Each bar is within its lane, a child's bar within its parent's, and external input is plain
/// text.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's chromium"]
async fn the_page_of_traces_is_drawn_in_chromium() {
    const HOSTILE: &str = "<script>document.body.textContent = ''</script>";
    // Boxes in the order of the page: lane, bar, lane, bar.
    const MEASURE: &str = "<script>document.title = [...document.querySelectorAll('.lane, .bar')].flatMap(it => \
        [it.getBoundingClientRect().left, it.getBoundingClientRect().right]).join()</script>";
    let collector = Collector::start().await;
    send_all(&collector.endpoint(), HOSTILE).await;
    let traced = |received: &collector::Received| {
        let traces = received.reconciles(HOSTILE);
        (!traces.is_empty()).then(|| page("The Foo", &traces))
    };
    let page = collector.wait_for("the trace", traced).await + MEASURE;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    fs::write(&file, page).unwrap();
    let chromium = cluster::bound_command("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", file.display()))
        .env("HOME", folder.path())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8(chromium.stdout).unwrap();
    assert!(dom.contains("PATCH deployments"), "{dom}");
    assert!(dom.contains("object.name=&lt;script&gt;"), "{dom}");
    let (_, title) = dom.split_once("<title>").unwrap();
    let (title, _) = title.split_once("</title>").unwrap();
    let edges: Vec<f64> = title.split(',').map(|it| it.parse().unwrap()).collect();
    let [
        lane_left,
        lane_right,
        root_left,
        root_right,
        _,
        _,
        left,
        right,
    ] = edges[..]
    else {
        panic!("{title}")
    };
    // The request took from 20 to 60 of the 100 ms.
    let share = |x| (x - lane_left) / (lane_right - lane_left);
    let shares = [root_left, left, right, root_right].map(share);
    let expected = [0.0, 0.2, 0.6, 1.0];
    let close = |(a, b): (f64, f64)| (a - b).abs() < 0.01;
    assert!(shares.into_iter().zip(expected).all(close), "{shares:?}");
}

/// Needs Prometheus 2.42 or later.
#[tokio::test]
#[ignore = "takes Debian's prometheus"]
async fn prometheus_scrapes_and_alerts() {
    const RULES: &str =
        "groups: [{name: g, rules: [{alert: Up, expr: 'answer == 42', labels: {severity: page}}]}]";
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let _serving = serve(
        listener,
        "# HELP answer All.\n# TYPE answer gauge\nanswer 42\n",
    );
    let config = json!([{"job_name": "it", "static_configs": [{"targets": [target]}]}]);
    let prometheus = Prometheus::start(config, std::slice::from_ref(&rules)).await;

    let found = prometheus.wait_for("answer{job=\"it\"} + 0").await;
    assert!((found[0].value - 42.0).abs() < f64::EPSILON, "{found:?}");
    let firing = "ALERTS{alertname=\"Up\", alertstate=\"firing\"}";
    let firing = prometheus.wait_for(firing).await;
    assert_eq!(firing[0].labels["severity"], "page");
    let alerts = prometheus.get("/api/v1/alerts").await;
    assert_eq!(alerts["alerts"][0]["labels"]["alertname"], "Up");
    assert_eq!(prometheus.query("no_such_metric").await, []);

    let rules = rules.to_str().unwrap();
    promtool(&["check", "rules", rules], "").await.unwrap();
    fs::write(rules, RULES.replace("== 42", "==")).unwrap();
    promtool(&["check", "rules", rules], "").await.unwrap_err();
    let check = ["check", "metrics"];
    let good = "# HELP a_total All.\n# TYPE a_total counter\na_total 1\n";
    promtool(&check, good).await.unwrap();
    let error = promtool(&check, "a_total 1\n").await.unwrap_err();
    assert!(error.contains("no help text"), "{error}");
}

/// Serves this text in response to every request.
fn serve(listener: TcpListener, text: &'static str) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let length = text.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all((head + text).as_bytes()).await;
        }
    })
}

async fn arrives(collector: &Collector, span: &str) {
    let there = |received: &collector::Received| {
        received
            .spans
            .iter()
            .any(|it| it.name == span)
            .then_some(())
    };
    collector.wait_for(span, there).await;
}

/// Sends one span and waits for the response.
async fn send(
    endpoint: &str,
    tls: Option<ClientTlsConfig>,
    name: &'static str,
) -> Result<(), String> {
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(TIMEOUT);
    if let Some(tls) = tls {
        exporter = exporter.with_tls_config(tls);
    }
    let exporter = exporter.build().map_err(|error| error.to_string())?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .build();
    provider.tracer("scope").start(name).end();
    // It blocks, and tonic needs this runtime in the meantime.
    let flushed = spawn_blocking(move || provider.force_flush())
        .await
        .unwrap();
    flushed.map_err(|error| error.to_string())
}

/// Sends a trace of two spans, a log record, a counter and a histogram, like the reconcile of a Foo. Returns the trace id.
async fn send_all(endpoint: &str, foo: &'static str) -> opentelemetry::TraceId {
    let resource = Resource::builder().with_service_name("sender").build();
    let spans = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let spans = SdkTracerProvider::builder()
        .with_batch_exporter(spans.build().unwrap())
        .with_resource(resource.clone())
        .build();
    let logs = LogExporter::builder().with_tonic().with_endpoint(endpoint);
    let logs = SdkLoggerProvider::builder()
        .with_batch_exporter(logs.build().unwrap())
        .with_resource(resource.clone())
        .build();
    let metrics = MetricExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint);
    let metrics = SdkMeterProvider::builder()
        .with_periodic_exporter(metrics.build().unwrap())
        .with_resource(resource)
        .build();

    let tracer = spans.tracer_with_scope(InstrumentationScope::builder("scope").build());
    let change = opentelemetry::trace::SpanContext::new(
        0xaa.into(),
        0xbb.into(),
        opentelemetry::trace::TraceFlags::SAMPLED,
        true,
        opentelemetry::trace::TraceState::NONE,
    );
    let start = SystemTime::now();
    let at = |millis| start + Duration::from_millis(millis);
    let root = tracer
        .span_builder("reconcile")
        .with_start_time(start)
        .with_attributes([KeyValue::new("object.name", foo)])
        .with_links(vec![Link::with_context(change)])
        .start(&tracer);
    let trace_id = root.span_context().trace_id();
    let context = Context::current_with_span(root);
    let mut request = tracer
        .span_builder("PATCH deployments")
        .with_start_time(at(20))
        .with_kind(SpanKind::Client)
        .with_attributes([KeyValue::new("http.response.status_code", 409)])
        .start_with_context(&tracer, &context);
    request.add_event("retried", vec![]);
    request.set_status(Status::error("conflict"));
    request.end_with_timestamp(at(60));

    {
        let _guard = context.clone().attach();
        let logger = logs.logger("scope");
        let mut record = logger.create_log_record();
        record.set_body(AnyValue::from("created"));
        record.set_severity_text("INFO");
        record.set_severity_number(Severity::Info);
        logger.emit(record);
    }
    context.span().end_with_timestamp(at(100));

    let meter = metrics.meter("scope");
    let requests = meter.u64_counter("requests").build();
    requests.add(3, &[KeyValue::new("method", "PATCH")]);
    let seconds = meter
        .f64_histogram("seconds")
        .with_boundaries(vec![0.001, 1.0]);
    let seconds = seconds.build();
    seconds.record(0.0005, &[]);
    seconds.record(2.0, &[]);

    spawn_blocking(move || {
        spans.force_flush().unwrap();
        logs.force_flush().unwrap();
        metrics.force_flush().unwrap();
    })
    .await
    .unwrap();
    trace_id
}
