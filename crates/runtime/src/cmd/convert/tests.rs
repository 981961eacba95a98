#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use opentelemetry_sdk::Resource;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    spawn,
    task::JoinHandle,
};

use super::*;
use crate::{
    api::{
        conversion::{Version, Versioned, converted},
        key::Key,
    },
    config::app::tests::APP,
};

fn crd(version: &str) -> CustomResourceDefinition {
    let crd = json!({
        "metadata": { "name": "jobs.example.com" },
        "spec": {
            "group": "example.com",
            "names": { "kind": "Job", "plural": "jobs" },
            "scope": "Namespaced",
            "versions": [{ "name": version, "served": true, "storage": true }],
        },
    });
    serde_json::from_value(crd).unwrap()
}

/// v1 has `size`, and v1alpha1 has `gibibytes`.
fn to_stored(job: &mut Versioned) -> Result<(), String> {
    let size: Option<u64> = job.get("gibibytes")?;
    assert_ne!(size, Some(13), "unlucky");
    job.set("gibibytes", &None::<u64>)?;
    job.set("size", &size)
}

fn from_stored(job: &mut Versioned) -> Result<(), String> {
    let size: Option<u64> = job.get("size")?;
    job.set("size", &None::<u64>)?;
    job.set("gibibytes", &size)
}

fn reviews(metrics: &Metrics) -> Reviews {
    let former = Version {
        crd: crd("v1alpha1"),
        to_stored,
        from_stored,
    };
    let service = Key::new("job-system", "job-conversion");
    let definition = converted(crd("v1"), &service, [former]);
    Reviews::new(vec![definition], metrics)
}

fn job(name: &str, version: &str, member: &str, size: &Value) -> Value {
    let mut job = json!({
        "apiVersion": format!("example.com/{version}"),
        "kind": "Job",
        "metadata": { "name": name, "namespace": "b" },
    });
    job[member] = size.clone();
    job
}

fn review(version: &str, objects: &[Value]) -> String {
    let request = json!({ "uid": "u", "desiredAPIVersion": version, "objects": objects });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request }).to_string()
}

/// The objects of a list are converted in order. The first error fails the review, as the API server requires, and names its
/// object.
#[tokio::test]
async fn a_review_converts_all_objects_or_none() {
    let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
    let reviews = reviews(&metrics);
    let answer = async |version: &str, objects: &[Value]| -> Value {
        let answer = reviews.answer(review(version, objects).as_bytes()).await;
        serde_json::from_slice(&answer.unwrap()).unwrap()
    };
    let old = |name: &str, size: Value| job(name, "v1alpha1", "gibibytes", &size);
    let new = |name: &str, size: Value| job(name, "v1", "size", &size);
    let converted = answer("example.com/v1", &[old("a", json!(1)), new("b", json!(2))]).await;
    let response = json!({
        "uid": "u",
        "convertedObjects": [new("a", json!(1)), new("b", json!(2))],
        "result": { "status": "Success" },
    });
    let expected = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response });
    assert_eq!(converted, expected);
    for (bad, why) in [
        (
            json!("x"),
            "gibibytes: invalid type: string \"x\", expected u64",
        ),
        (
            json!(13),
            "to_stored of v1alpha1 panicked: see the log of convert",
        ),
    ] {
        let failed = answer("example.com/v1", &[old("a", json!(1)), old("bad", bad)]).await;
        let response = &failed["response"];
        assert_eq!(response["uid"], "u");
        assert_eq!(response["convertedObjects"], json!([]));
        assert_eq!(response["result"]["status"], "Failure");
        let message = response["result"]["message"].as_str().unwrap();
        let expected = format!("Job b/bad cannot be converted from v1alpha1 to v1: {why}");
        assert!(message.starts_with(&expected), "{message}");
    }
    let other = answer("example.org/v1", &[old("a", json!(1))]).await;
    let message = "this program has no CRD of Job in example.org/v1";
    assert_eq!(other["response"]["result"]["message"], message);
    let unknown = answer("example.com/v9", &[old("a", json!(1))]).await;
    assert_eq!(unknown["response"]["result"]["status"], "Failure");
    let (_, scrape) = metrics.scrape(None);
    for series in [
        r#"some_operator_conversions_total{kind="Job",result="converted",version="v1"} 4"#,
        r#"some_operator_conversions_total{kind="Job",result="failed",version="v1"} 2"#,
        r#"some_operator_conversions_total{kind="Job",result="failed",version="v1alpha1"} 0"#,
        r#"some_operator_conversions_total{kind="Job",result="failed",version="other"} 1"#,
        r#"some_operator_conversions_total{kind="other",result="failed",version="other"} 1"#,
        "some_operator_conversion_seconds_count 5",
    ] {
        assert!(scrape.contains(series), "{scrape}");
    }
}

#[tokio::test]
async fn other_bodies_are_refused() {
    let reviews = reviews(&Metrics::disconnected(&APP));
    for (body, expected) in [
        ("", "not a ConversionReview: "),
        ("{}", "not a ConversionReview of apiextensions.k8s.io/v1"),
        (
            r#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview"}"#,
            "not a ConversionReview of apiextensions.k8s.io/v1",
        ),
        (
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}"#,
            "a ConversionReview without request",
        ),
    ] {
        let refused = reviews.answer(body.as_bytes()).await.unwrap_err();
        assert!(refused.starts_with(expected), "{refused}");
    }
    let many = review("example.com/v1", &vec![json!(0); 1001]);
    let refused = reviews.answer(many.as_bytes()).await.unwrap_err();
    assert!(refused.contains("more than 1000 objects"), "{refused}");
}

/// A server with one connection at a time.
struct Scene {
    requests: Arc<Requests>,
    phase: watch::Sender<Phase>,
}

impl Scene {
    fn new() -> Self {
        Self::counted(&Metrics::disconnected(&APP))
    }

    fn counted(metrics: &Metrics) -> Self {
        Self {
            requests: Arc::new(Requests::new(reviews(metrics))),
            phase: watch::Sender::new(Phase::Serving),
        }
    }

    fn connect(&self) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = duplex(1024);
        let requests = Arc::clone(&self.requests);
        let serve = server::serve(Box::new(server), requests, self.phase.subscribe());
        (client, spawn(serve))
    }
}

fn post(length: usize) -> String {
    format!("POST /convert HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n")
}

/// Reads one response: its head and its body.
async fn response(client: &mut DuplexStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let (_, length) = head.split_once("content-length: ").unwrap();
    let length = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn convert(client: &mut DuplexStream, objects: usize) -> String {
    let one = job("a", "v1alpha1", "gibibytes", &json!(1));
    let review = review("example.com/v1", &vec![one; objects]);
    let request = post(review.len()) + &review;
    client.write_all(request.as_bytes()).await.unwrap();
    let (head, body) = response(client).await;
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let converted = body["response"]["convertedObjects"].as_array().unwrap();
    assert_eq!(converted.len(), objects);
    head
}

/// Idle connections stay open for longer than the API server keeps them. After a stop request, a connection ends with its next
/// response, and an idle one at the end of the drain.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_without_losing_a_request() {
    let scene = Scene::new();
    let (mut used, serving_used) = scene.connect();
    let (mut idle, serving_idle) = scene.connect();
    let head = convert(&mut used, 1000).await;
    assert!(!head.contains("connection: close"), "{head}");
    convert(&mut idle, 1).await;
    sleep(Duration::from_secs(100)).await;
    convert(&mut used, 1).await;
    convert(&mut idle, 1).await;

    scene.phase.send_replace(Phase::Draining);
    let head = convert(&mut used, 1).await;
    assert!(head.contains("connection: close"), "{head}");
    serving_used.await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(!serving_idle.is_finished());
    // A request that is running at the end of the drain is answered.
    let review = review("example.com/v1", &[]);
    let half = post(review.len());
    idle.write_all(half.as_bytes()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    scene.phase.send_replace(Phase::Closing);
    let (late, serving_late) = scene.connect();
    serving_late.await.unwrap();
    drop(late);
    idle.write_all(review.as_bytes()).await.unwrap();
    let (head, _) = response(&mut idle).await;
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    serving_idle.await.unwrap();
    scene.phase.closed().await;
}

/// A client has five seconds to send its review, and again to read the response.
#[tokio::test(start_paused = true)]
async fn a_slow_client_is_cut_off() {
    let scene = Scene::new();
    let (mut silent, serving_silent) = scene.connect();
    silent.write_all(post(10).as_bytes()).await.unwrap();
    let (mut drip, serving_drip) = scene.connect();
    drip.write_all(post(100).as_bytes()).await.unwrap();
    let (mut deaf, serving_deaf) = scene.connect();
    let review = review(
        "example.com/v1",
        &vec![job("a", "v1", "size", &json!(1)); 1000],
    );
    let sent = post(review.len()) + &review;
    deaf.write_all(sent.as_bytes()).await.unwrap();
    for _ in 0..4 {
        sleep(Duration::from_secs(1)).await;
        drip.write_all(b" ").await.unwrap();
    }
    for serving in [&serving_silent, &serving_drip, &serving_deaf] {
        assert!(!serving.is_finished());
    }
    sleep(Duration::from_secs(2)).await;
    for client in [&mut silent, &mut drip] {
        let (head, body) = response(client).await;
        assert!(head.starts_with("http/1.1 408"), "{head}");
        assert_eq!(body, "the body took longer than 5 s\n");
    }
    for serving in [serving_silent, serving_drip, serving_deaf] {
        timeout(Duration::from_secs(1), serving)
            .await
            .unwrap()
            .unwrap();
    }
}

/// The connection has the whole response at once.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_a_small_response_is_cut_off() {
    let scene = Scene::new();
    let (mut deaf, serving) = scene.connect();
    let one = job("a", "v1", "size", &json!(1));
    let review = review("example.com/v1", &vec![one; 50]);
    assert!((4000..8000).contains(&review.len()), "{}", review.len());
    let sent = post(review.len()) + &review;
    deaf.write_all(sent.as_bytes()).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    assert!(!serving.is_finished());
    timeout(Duration::from_secs(3), serving)
        .await
        .unwrap()
        .unwrap();
}

const MIB: usize = 1 << 20;

#[tokio::test(start_paused = true)]
async fn large_reviews_are_refused() {
    let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
    let scene = Scene::counted(&metrics);
    let chunked = "POST /convert HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", MIB, " ".repeat(MIB));
    let announced = post(4 * MIB + 1);
    for (head, chunks) in [(announced, 0), (chunked.to_owned(), 5)] {
        let (mut client, serving) = scene.connect();
        client.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..chunks {
            // The server may close the connection before the end.
            let _ = client.write_all(chunk.as_bytes()).await;
        }
        let (head, body) = response(&mut client).await;
        assert!(head.starts_with("http/1.1 413"), "{head}");
        assert_eq!(body, "the review has more than 4 MiB\n");
        drop(client);
        serving.await.unwrap();
    }
    let (_, scrape) = metrics.scrape(None);
    let refused = r#"conversions_total{kind="other",result="refused",version="other"} 2"#;
    assert!(scrape.contains(refused), "{scrape}");
}

/// A review takes memory as it arrives, so an announced one takes none.
#[tokio::test(start_paused = true)]
async fn idle_clients_take_no_memory() {
    let scene = Scene::new();
    let mut idle = Vec::new();
    for _ in 0..100 {
        let (mut client, _serving) = scene.connect();
        client.write_all(post(4 * MIB).as_bytes()).await.unwrap();
        client.write_all(b" ").await.unwrap();
        idle.push(client);
    }
    let (mut client, _serving) = scene.connect();
    let good = convert(&mut client, 1);
    timeout(Duration::from_millis(10), good).await.unwrap();
}

/// Clients with parts of large reviews take the memory until their time limit. Then the next review continues.
#[tokio::test(start_paused = true)]
async fn memory_is_bounded() {
    let scene = Scene::new();
    let mut stalled = Vec::new();
    for part in [3; 6] {
        let (mut client, serving) = scene.connect();
        client.write_all(post(4 * MIB).as_bytes()).await.unwrap();
        client.write_all(&vec![b' '; part * MIB]).await.unwrap();
        stalled.push((client, serving));
    }
    // Five times 3 MiB, then 1 MiB, and 4 MiB for the sixth one.
    let (mut client, _serving) = scene.connect();
    let mut waiting = Box::pin(convert(&mut client, 1));
    let early = timeout(Duration::from_secs(4), &mut waiting).await;
    assert!(early.is_err(), "more than 20 MiB");
    timeout(Duration::from_secs(2), waiting).await.unwrap();
}

/// Together, the reviews need more memory than there is. None waits for a part of another one without an end.
#[tokio::test(start_paused = true)]
async fn large_reviews_do_not_block_each_other() {
    let scene = Arc::new(Scene::new());
    let clients = (0..8).map(|_| {
        let (mut client, _serving) = scene.connect();
        spawn(async move {
            let review = review("example.com/v1", &[]) + &" ".repeat(3 * MIB);
            let sent = post(review.len()) + &review;
            client.write_all(sent.as_bytes()).await.unwrap();
            response(&mut client).await.0
        })
    });
    let clients: Vec<_> = clients.collect();
    let began = tokio::time::Instant::now();
    for client in clients {
        let head = client.await.unwrap();
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }
    assert!(began.elapsed() < Duration::from_secs(1));
}

/// Without memory, a request ends after the time that the API server waits.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_forever() {
    let scene = Scene::new();
    let _all = scene.requests.take_memory();
    let (mut client, serving) = scene.connect();
    client.write_all((post(2) + "{}").as_bytes()).await.unwrap();
    sleep(Duration::from_secs(29)).await;
    assert!(!serving.is_finished());
    timeout(Duration::from_secs(3), serving)
        .await
        .unwrap()
        .unwrap();
}

/// A request that has memory, and waits for more, releases it soon: otherwise, the others wait as long as this one.
#[tokio::test(start_paused = true)]
async fn a_request_with_memory_does_not_wait_for_long() {
    let scene = Scene::new();
    let (mut client, _serving) = scene.connect();
    client.write_all(post(4 * MIB).as_bytes()).await.unwrap();
    client.write_all(&[b' '; 8192]).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let all = scene.requests.take_memory();
    client.write_all(&[b' '; 2048]).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    let refused = response(&mut client);
    let (head, body) = timeout(Duration::from_secs(2), refused).await.unwrap();
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert!(head.contains("retry-after: 1"), "{head}");
    assert_eq!(body, "no memory for the review for 5 s\n");
    drop(all);
    assert!(scene.requests.is_unused());
}

#[tokio::test]
async fn only_the_webhook_is_served() {
    let scene = Scene::new();
    let (mut client, _serving) = scene.connect();
    for (request, status) in [
        ("GET /convert", StatusCode::METHOD_NOT_ALLOWED),
        ("POST /metrics", StatusCode::NOT_FOUND),
    ] {
        let request = format!("{request} HTTP/1.1\r\nhost: a\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let (head, _) = response(&mut client).await;
        assert!(
            head.starts_with(&format!("http/1.1 {}", status.as_u16())),
            "{head}"
        );
    }
    client.write_all((post(2) + "[]").as_bytes()).await.unwrap();
    let (head, body) = response(&mut client).await;
    assert!(head.starts_with("http/1.1 400"), "{head}");
    assert!(body.starts_with("not a ConversionReview"), "{body}");
}

/// Without a certificate, the process is not ready, and tries again.
#[tokio::test(start_paused = true)]
async fn the_first_certificate_may_come_late() {
    let folder = tempfile::tempdir().unwrap();
    let failure = Arc::new(Mutex::new(Some("not loaded yet".to_owned())));
    let shown = Arc::clone(&failure);
    let path = folder.path().to_owned();
    let loading = spawn(async move { loaded(&APP, path, &shown).await });
    sleep(3 * RETRY).await;
    let text = failure.lock().clone().unwrap();
    assert!(
        text.contains("cannot read") && text.contains("tls.crt"),
        "{text}"
    );
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (name, label, der) in [
        ("tls.crt", "CERTIFICATE", made.cert.der().to_vec()),
        ("tls.key", "PRIVATE KEY", made.signing_key.serialize_der()),
    ] {
        let text = pem::encode(&pem::Pem::new(label, der));
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    loading.await.unwrap();
    assert_eq!(*failure.lock(), None);
}

#[tokio::test]
async fn a_program_without_a_conversion_refuses() {
    let options = Options {
        listen: ([127, 0, 0, 1], 0).into(),
        certificates: PathBuf::new(),
    };
    let definitions = vec![Definition::from(crd("v1"))];
    let (host, config) = (Host::of_this_process(), Config::shipped(&APP));
    let metrics = Metrics::disconnected(&APP);
    let ended = run(
        &host,
        definitions,
        options,
        &config,
        metrics,
        std::future::pending(),
    )
    .await;
    let error = ended.unwrap_err().to_string();
    assert!(
        error.starts_with("no CustomResourceDefinition of this program has a conversion"),
        "{error}"
    );
}
