//! Traces and logs as a real collector receives them. The controller continues to work if the collector fails.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use operator_testkit::{
    cluster::{Cluster, eventually},
    collector::{
        Balancer, Behaviour, Collector, Kind, Mock, Protocol, Received, Span, Trace, WORDS, page,
    },
    proxy::{Answer, Proxy},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    controller::Controller,
    foos::{self, DEADLINE, with_pods},
};

/// Starts a controller that works in `namespace` and exports to `endpoint` with short delays.
fn controller(
    cluster: &Cluster,
    namespace: &str,
    endpoint: &str,
    with: impl FnOnce(&mut Command),
) -> Controller {
    Controller::spawn(|command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .env("OTEL_BSP_SCHEDULE_DELAY", "100")
            .env("OTEL_BLRP_SCHEDULE_DELAY", "100")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "500")
            .args(["--namespace", namespace, "--resync=1h"]);
        with(command);
    })
}

const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

/// Runs a test over both protocols at once.
async fn over_both(test: impl AsyncFn(Protocol)) {
    futures::future::join_all(Protocol::ALL.map(|protocol| test(protocol))).await;
}

async fn apply(namespace: &str, foo: &Value) {
    let args = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "-n",
        namespace,
        "-f",
        "-",
    ];
    with_pods()
        .await
        .kubectl_stdin(&args, &foo.to_string())
        .await
        .success();
}

/// Creates a Deployment that no Foo controls.
async fn foreign(cluster: &Cluster, namespace: &str, name: &str) {
    let create = ["create", "deployment", name, "--image=theirs"];
    let create = [&["-n", namespace], &create[..]].concat();
    cluster.kubectl(&create).await.success();
}

fn foo(name: &str, deployment: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": { "name": name },
        "spec": { "deploymentName": deployment, "replicas": replicas },
    })
}

/// Returns the decisions of a reconcile.
fn decisions<'a>(trace: &Trace<'a>) -> Vec<&'a str> {
    let events = trace.roots().flat_map(|root| &root.events);
    events
        .filter_map(|event| event.attributes.get("decision")?.as_str())
        .collect()
}

fn requests<'a>(trace: &Trace<'a>) -> Vec<&'a Span> {
    trace
        .spans
        .iter()
        .copied()
        .filter(|span| span.kind == Kind::Client)
        .collect()
}

/// Waits for a reconcile of the Foo that `such` accepts, and returns its trace ID.
async fn reconciled(
    collector: &Collector,
    foo: &str,
    what: &str,
    such: impl Fn(&Trace<'_>) -> bool,
) -> String {
    let find = |received: &Received| {
        let found = received
            .reconciles(foo)
            .into_iter()
            .find(|trace| such(trace));
        found.map(|trace| trace.id().to_owned())
    };
    collector.wait_for(what, find).await
}

/// Trace context of the client that changed the Foo.
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The life of a Foo. Each reconcile is one trace with its trigger, its decisions, each request with its response, and its log
/// records.
#[tokio::test]
async fn a_foos_life_is_traced() {
    let (cluster, collector) = tokio::join!(with_pods(), Collector::start());
    let namespace = cluster.namespace("life").await;
    let pod = [
        ("POD_NAME", "pod-1"),
        ("POD_UID", "uid-1"),
        ("POD_NAMESPACE", "ns-1"),
        ("NODE_NAME", "node-1"),
    ];
    let mut controller = controller(cluster, &namespace, &collector.endpoint(), |command| {
        command.envs(pod);
    });

    let mut new = foo("life", "life", 1);
    new["metadata"]["annotations"] = json!({ "foo-controller/traceparent": TRACEPARENT });
    apply(&namespace, &new).await;
    let has =
        |decision: &'static str| move |trace: &Trace<'_>| decisions(trace).contains(&decision);
    let created = reconciled(&collector, "life", "the creation", |trace| {
        has("create")(trace) && requests(trace).len() >= 3 && trace.logs.len() == 1
    })
    .await;
    let received = collector.received();
    let all = received.reconciles("life");
    let trace = all.iter().find(|trace| trace.id() == created).unwrap();
    let root = trace.roots().next().unwrap();
    is_of_the_creation(trace, &namespace);
    let said = controller.wait_for_log("created the Deployment").await;
    let ids = format!("trace_id={created} span_id={}", root.span_id);
    assert!(said.ends_with(&ids), "{said}");
    let events = foos::events(&cluster.client().await, &namespace, "Synced").await;
    let annotation =
        &events[0].metadata.annotations.as_ref().unwrap()["foo-controller/traceparent"];
    assert_eq!(annotation, &format!("00-{created}-{}-01", root.span_id));

    apply(&namespace, &foo("life", "life", 2)).await;
    reconciled(&collector, "life", "the scaling", |trace| {
        let patched = requests(trace)
            .iter()
            .any(|span| span.name == "PATCH deployments");
        has("patch")(trace)
            && patched
            && trace
                .logs
                .iter()
                .any(|log| log.body == "changed the Deployment")
    })
    .await;

    let patch = ["scale", "deployment", "life", "--replicas=7"];
    let patch = [&["-n", &*namespace], &patch[..]].concat();
    cluster.kubectl(&patch).await.success();
    reconciled(&collector, "life", "the correction", |trace| {
        let mut roots = trace.roots();
        has("patch")(trace)
            && roots.all(|root| root.attributes["reconcile.changed"] == "Deployment")
    })
    .await;

    foreign(cluster, &namespace, "taken").await;
    apply(&namespace, &foo("life", "taken", 2)).await;
    let conflict = "Resource \"taken\" already exists and is not managed by Foo";
    reconciled(&collector, "life", "the conflict, tried again", |trace| {
        let root = trace.roots().next().unwrap();
        root.error() == Some(conflict)
            && root.attributes["error.type"] == "ErrResourceExists"
            && root.attributes["reconcile.trigger"] == "retry"
            && root.attributes["reconcile.attempt"].as_i64() > Some(1)
            && trace.logs.iter().any(|log| log.severity_text == "WARN")
    })
    .await;

    apply(&namespace, &foo("life", "life-2", 2)).await;
    reconciled(&collector, "life", "the renaming", |trace| {
        let deleted = requests(trace)
            .iter()
            .any(|span| span.name == "DELETE deployments");
        has("delete")(trace) && deleted
    })
    .await;

    cluster
        .kubectl(&["-n", &namespace, "delete", "foo", "life"])
        .await
        .success();
    reconciled(
        &collector,
        "life",
        "the deletion",
        has("nothing: the Foo is gone"),
    )
    .await;

    assert_eq!(controller.stop().await, 0);
    let received = collector.received();
    let reconciles = received.reconciles("life");
    reconciles.iter().for_each(is_whole);
    page_names(&reconciles);
    let said = |received: &Received| {
        let mut logs = received.logs.iter();
        logs.find(|log| log.body == "stopped").map(drop)
    };
    collector.wait_for("the last words", said).await;
}

/// The title of each trace on the trace page contains its trigger and its result.
fn page_names(reconciles: &[Trace<'_>]) {
    let page = page("life", reconciles);
    for heading in [
        "  Foo changed: create, status</summary>",
        "  Deployment changed: patch",
        "  retry: failed: Resource &quot;taken&quot; already exists",
        // A change of its Deployment may have triggered the last reconcile.
        " changed: nothing: the Foo is gone</summary>",
    ] {
        assert!(page.contains(heading), "{heading} is not in {page}");
    }
}

/// Checks the trace of a reconcile that creates the Deployment. The Foo has a trace context, and the process has the pod
/// variables of the test.
fn is_of_the_creation(trace: &Trace<'_>, namespace: &str) {
    let root = trace.roots().next().unwrap();
    assert_eq!(root.attributes["reconcile.trigger"], "change");
    assert_eq!(root.attributes["reconcile.changed"], "Foo");
    assert_eq!(root.attributes["reconcile.attempt"], 1);
    assert_eq!(root.attributes["object.generation"], 1);
    assert_eq!(root.attributes["object.namespace"], namespace);
    // Attributes of the process are only in the resource.
    assert!(!root.attributes.contains_key("k8s.namespace.name"));
    assert!(root.attributes["object.uid"].is_string());
    assert!(root.attributes["reconcile.queue_seconds"].is_f64());
    assert_eq!(root.links[0].trace_id, TRACEPARENT[3..35]);
    let requests = requests(trace);
    let names = requests.iter().map(|span| span.name.as_str()).collect();
    // Other requests and decisions may come between, for example about another owned object.
    for (mut all, these) in [
        (decisions(trace), &["create", "status"][..]),
        (
            names,
            &["POST deployments", "PUT foos/status", "POST events"],
        ),
    ] {
        all.retain(|one| these.contains(one));
        assert_eq!(all, these);
    }
    let post = requests[0];
    assert_eq!(post.parent_span_id, root.span_id);
    assert_eq!(post.attributes["http.request.method"], "POST");
    assert_eq!(post.attributes["http.response.status_code"], 201);
    assert_eq!(post.attributes["server.address"], "127.0.0.1");
    let url = post.attributes["url.full"].as_str().unwrap();
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    assert!(
        url.starts_with("https://127.0.0.1:") && url.contains(&path),
        "{url}"
    );
    assert_eq!(
        post.attributes["url.template"],
        "/apis/apps/v1/namespaces/{namespace}/deployments"
    );
    assert_eq!(trace.logs[0].body, "created the Deployment");
    assert_eq!(trace.logs[0].span_id, root.span_id);
    for (attribute, expected) in [
        ("service.name", "foo-controller"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", "uid-1"),
        ("k8s.pod.name", "pod-1"),
        ("k8s.pod.uid", "uid-1"),
        ("k8s.namespace.name", "ns-1"),
        ("k8s.node.name", "node-1"),
    ] {
        assert_eq!(root.origin.resource[attribute], expected, "{attribute}");
    }
}

/// Checks that there is one root span, a parent for every other span, and no object name in the name of a request.
fn is_whole(trace: &Trace<'_>) {
    assert_eq!(trace.roots().count(), 1, "{trace}");
    assert_eq!(trace.orphans().count(), 0, "{trace}");
    let failed = trace.roots().all(|root| root.error().is_some());
    assert!(failed || !decisions(trace).is_empty(), "{trace}");
    for request in requests(trace) {
        assert!(!request.name.contains("life"), "{trace}");
        assert_eq!(trace.logs_in(request).count(), 0, "{trace}");
    }
}

/// The initial sync of a new leader has its own trigger. Acquiring and releasing the Lease are traces with their requests.
/// Successful renewals are not traced.
#[tokio::test]
async fn an_election_is_traced() {
    let (cluster, collector) = tokio::join!(with_pods(), Collector::start());
    let namespace = cluster.namespace("election").await;
    cluster.release_lease(&namespace, "foo-controller").await;
    let lead = |command: &mut Command| {
        command.args(["--leader-election=true", "--lease-namespace", &namespace]);
        command.args([
            "--lease-duration=2s",
            "--lease-renew-deadline=1s",
            "--lease-retry-period=100ms",
        ]);
    };
    let mut first = controller(cluster, &namespace, &collector.endpoint(), lead);
    first.wait_for_log("gained the lease").await;
    apply(&namespace, &foo("a", "a", 1)).await;
    let ready = ["wait", "--for=condition=Ready", "foo/a", "--timeout=60s"];
    let ready = [&["-n", &namespace], &ready[..]].concat();
    cluster.kubectl(&ready).await.success();
    assert_eq!(first.stop().await, 0);
    // Gives the initial sync work to do: a resync without changes is not traced, and a changed Foo has another trigger.
    let delete = ["-n", &namespace, "delete", "deployment", "a"];
    cluster.kubectl(&delete).await.success();
    let mut second = controller(cluster, &namespace, &collector.endpoint(), lead);
    reconciled(
        &collector,
        "a",
        "the initial sync of a new leader",
        |trace| {
            trace
                .roots()
                .all(|root| root.attributes["reconcile.trigger"] == "takeover")
        },
    )
    .await;
    assert_eq!(second.stop().await, 0);
    let released = |received: &Received| {
        let releases = received.spans.iter().filter(|span| span.name == "release");
        (releases.count() == 2).then_some(())
    };
    collector.wait_for("both releases", released).await;
    let received = collector.received();
    let named = |name: &str| -> Vec<_> {
        let traces = received.traces().into_iter();
        traces
            .filter(|trace| trace.roots().any(|root| root.name == name))
            .collect()
    };
    assert!(named("acquire").len() <= 4, "{}", received.overview());
    assert_eq!(named("renew").len(), 0);
    let [release, _] = &named("release")[..] else {
        panic!("{}", received.overview())
    };
    assert_eq!(requests(release).last().unwrap().name, "PATCH leases");
    let lone = received
        .traces()
        .into_iter()
        .filter(|trace| trace.roots().any(|root| root.name.contains("leases")));
    assert_eq!(lone.count(), 0);
}

/// Uses TLS with a private authority. Proxy variables of the environment are ignored.
#[tokio::test]
async fn telemetry_is_exported_over_tls() {
    over_both(async |protocol| {
        let (cluster, collector) = tokio::join!(with_pods(), Collector::start_tls());
        let endpoint = collector.endpoint_of(protocol);
        let namespace = cluster.namespace("tls").await;
        let _controller = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
            let proxies = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"];
            let proxies = proxies.map(|name| [name.to_owned(), name.to_lowercase()]);
            let nowhere = proxies.as_flattened().iter();
            command.envs(nowhere.map(|name| (name, "http://127.0.0.1:1")));
            command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", collector.ca());
            command.env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        });
        let all = |received: &Received| {
            let arrived = !received.spans.is_empty() && !received.logs.is_empty();
            (arrived && !received.metrics.is_empty()).then_some(())
        };
        collector.wait_for("traces, logs and metrics", all).await;
        let untrusted = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
        });
        let line = untrusted.wait_for_log("cannot export").await;
        assert!(line.contains("not issued by a configured"), "{line}");
    })
    .await;
}

/// The collector requires a client certificate. With one the export succeeds, without one it fails.
#[tokio::test]
async fn telemetry_is_exported_with_a_client_certificate() {
    over_both(async |protocol| {
        let (cluster, collector) = tokio::join!(with_pods(), Collector::start_mutual_tls());
        let endpoint = collector.endpoint_of(protocol);
        let namespace = cluster.namespace("mtls").await;
        let nameless = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
            command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", collector.ca());
        });
        nameless.wait_for_log("cannot export").await;
        let received = collector.received();
        assert_eq!((received.spans.len(), received.logs.len()), (0, 0));
        drop(nameless);
        let (certificate, key) = collector.client();
        let _known = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
            command
                .env("OTEL_EXPORTER_OTLP_CERTIFICATE", collector.ca())
                .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate)
                .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", key);
        });
        let all = |received: &Received| {
            let arrived = !received.spans.is_empty() && !received.logs.is_empty();
            (arrived && !received.metrics.is_empty()).then_some(())
        };
        collector.wait_for("traces, logs and metrics", all).await;
    })
    .await;
}

/// Variables for all signals and for a single one take effect. The exporter's own log records are not exported at any level.
#[tokio::test]
async fn variables_take_effect() {
    let cluster = with_pods().await;
    let namespace = cluster.namespace("variables").await;
    let ok = Behaviour::Answer(Duration::ZERO, 0);
    let (mock, collector) = tokio::join!(Mock::start(ok), Collector::start());
    let nowhere = Mock::start(Behaviour::Refuse).await;
    let exporting = controller(cluster, &namespace, &nowhere.endpoint(), |command| {
        command
            .args([
                "--otlp-endpoint",
                &collector.endpoint(),
                "--log-level=trace",
            ])
            .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", mock.endpoint())
            .env("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip")
            .env(
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20s3cret,x-tenant=all",
            )
            .env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-tenant=metrics")
            .env("OTEL_SERVICE_NAME", "mine")
            .env(
                "OTEL_RESOURCE_ATTRIBUTES",
                "k8s.pod.name=theirs,team=a%20b%2Cc",
            )
            .env("OTEL_TRACES_SAMPLER", "always_off")
            .env("POD_NAME", "ours");
    });
    apply(&namespace, &foo("a", "a", 1)).await;
    exporting.wait_for_log("created the Deployment").await;
    let created = |received: &Received| {
        let mut logs = received.logs.iter();
        let log = logs.find(|log| log.body == "created the Deployment")?;
        let of = |name: &str| log.origin.resource[name].clone();
        Some((
            of("service.name"),
            of("k8s.pod.name"),
            of("team"),
            log.trace_id.clone(),
        ))
    };
    let (service, pod, team, trace) = collector.wait_for("the log", created).await;
    assert_eq!(
        (&service, &pod, &team),
        (&json!("mine"), &json!("theirs"), &json!("a b,c"))
    );
    assert!(
        !trace.is_empty(),
        "what is not sampled has an id all the same"
    );
    let headers = eventually(DEADLINE, "metrics", async || {
        mock.requests().pop().ok_or(())
    })
    .await;
    assert_eq!(headers["grpc-encoding"], "gzip");
    assert_eq!(headers["x-tenant"], "metrics");
    assert!(!exporting.log().contains("s3cret"));

    let received = collector.received();
    assert_eq!((received.spans.len(), received.metrics.len()), (0, 0));
    let own = ["hyper", "h2", "tonic", "tower", "rustls", "opentelemetry"];
    for log in &received.logs {
        assert!(
            !own.iter().any(|own| log.origin.scope.starts_with(own)),
            "{log:?}"
        );
    }

    let before = collector.received().logs.len();
    let disabled = controller(cluster, &namespace, &collector.endpoint(), |command| {
        command.env("OTEL_SDK_DISABLED", "true");
    });
    disabled.wait_for_log("started workers").await;
    drop(exporting);
    drop(disabled);
    let from_disabled = collector.received().logs.into_iter().skip(before);
    assert_eq!(
        from_disabled
            .filter(|log| log.origin.resource["service.name"] != "mine")
            .count(),
        0
    );
}

/// For each signal, its own variable applies unless it is blank. Otherwise the general one applies. Values are percent-encoded
/// in the variable, and sent decoded.
#[tokio::test]
async fn exports_follow_the_variables() {
    over_both(exports_follow_variables).await;
}

async fn exports_follow_variables(protocol: Protocol) {
    const GENERAL: &str =
        "authorization=Bearer%20s3cret,x-tenant=a%2Cb%3Dc,X-Twice=1,x-twice=%c3%a9";
    let general: &[(&str, &[&[u8]])] = &[
        ("authorization", &[b"Bearer s3cret"]),
        ("x-tenant", &[b"a,b=c"]),
        ("x-twice", &[b"1", "é".as_bytes()]),
    ];
    let none: &[(&str, &[&[u8]])] = &[("authorization", &[]), ("x-tenant", &[]), ("x-twice", &[])];
    let own: &[(&str, &[&[u8]])] = &[
        ("authorization", &[]),
        ("x-tenant", &[b"100% its own"]),
        ("x-twice", &[]),
    ];
    let encoding_header = match protocol {
        Protocol::Grpc => "grpc-encoding",
        Protocol::Http => "content-encoding",
    };
    let signals = ["TRACES", "LOGS", "METRICS"];
    let own_value = Some("x-tenant=100%25 its%20own");
    for (headers, own_headers, compression, own_compression, sent, gzip) in [
        (None, None, None, None, none, false),
        (Some(GENERAL), None, Some("gzip"), None, general, true),
        (
            Some(GENERAL),
            Some(""),
            Some("gzip"),
            Some(""),
            general,
            true,
        ),
        (
            Some(GENERAL),
            Some(" \n"),
            Some("GZIP"),
            Some(" "),
            general,
            true,
        ),
        (
            Some(GENERAL),
            own_value,
            Some("gzip"),
            Some("none"),
            own,
            false,
        ),
        // The general values are ignored, even if they are invalid.
        (
            Some("nonsense"),
            own_value,
            Some("none"),
            Some("gzip"),
            own,
            true,
        ),
        (Some(" "), own_value, Some(""), Some("gzip"), own, true),
    ] {
        let mocks = [(); 3].map(|()| Mock::start(Behaviour::Answer(Duration::ZERO, 0)));
        let mocks = futures::future::join_all(mocks).await;
        let _controller = Controller::spawn(|command| {
            command
                .arg("--master=http://127.0.0.1:1")
                .env("OTEL_BSP_SCHEDULE_DELAY", "100")
                .env("OTEL_BLRP_SCHEDULE_DELAY", "100")
                .env("OTEL_METRIC_EXPORT_INTERVAL", "100")
                .env(PROTOCOL, protocol.name());
            let general = [("HEADERS", headers), ("COMPRESSION", compression)];
            for (what, value) in general {
                command.envs(value.map(|value| (format!("OTEL_EXPORTER_OTLP_{what}"), value)));
            }
            for (signal, mock) in signals.iter().zip(&mocks) {
                let endpoint = mock.endpoint();
                let own = [
                    ("HEADERS", own_headers),
                    ("COMPRESSION", own_compression),
                    ("ENDPOINT", Some(&*endpoint)),
                ];
                for (what, value) in own {
                    let name = format!("OTEL_EXPORTER_OTLP_{signal}_{what}");
                    command.envs(value.map(|value| (name, value)));
                }
            }
        });
        for (signal, mock) in signals.iter().zip(&mocks) {
            let request =
                eventually(DEADLINE, signal, async || mock.requests().pop().ok_or(())).await;
            let case =
                format!("{protocol:?}, {signal}: {headers:?}, {own_headers:?}, {compression:?}");
            for (name, values) in sent {
                let found = request.get_all(*name).iter();
                let found: Vec<_> = found.map(http::HeaderValue::as_bytes).collect();
                assert_eq!(found, *values, "{name} of {case}");
            }
            let encoding = request.get(encoding_header);
            assert_eq!(encoding.is_some_and(|it| it == "gzip"), gzip, "{case}");
            let agent = request["user-agent"].to_str().unwrap();
            assert!(agent.starts_with("OTel-OTLP-Exporter-Rust/"), "{agent}");
        }
    }
}

/// Runs the program without a cluster. Returns its exit code and standard error.
fn without_a_cluster(vars: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foo-controller"));
    command
        .env_clear()
        .args(["--kubeconfig=/nowhere"])
        .envs(vars.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1");

/// An invalid variable without a safe default ends the program with exit code 2 and one line. Without an endpoint it is
/// ignored.
#[test]
fn an_invalid_variable_is_rejected() {
    for (name, value, line) in [
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "secret",
            "OTEL_EXPORTER_OTLP_HEADERS = (hidden) (environment variable): must be a comma-separated list of name=value, percent-encoded, valid as HTTP headers",
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/json",
            r#"OTEL_EXPORTER_OTLP_PROTOCOL = "http/json" (environment variable): must be one of grpc, http/protobuf"#,
        ),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/nowhere",
            r#"OTEL_EXPORTER_OTLP_CERTIFICATE = "/nowhere" (environment variable): cannot be read: No such file or directory (os error 2)"#,
        ),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/etc/hostname",
            r#"OTEL_EXPORTER_OTLP_CERTIFICATE = "/etc/hostname" (environment variable): holds nothing in PEM format"#,
        ),
    ] {
        assert_eq!(
            without_a_cluster(&[ENDPOINT, (name, value)]),
            (Some(2), format!("error: {line}\n"))
        );
        let (_, unused) = without_a_cluster(&[(name, value)]);
        assert!(!unused.contains(name), "{unused}");
    }
}

/// Values that must be ignored by the OpenTelemetry specification do not end the program. It continues to look for its cluster,
/// and warns about each variable once. Valid values cause no warning. (`every_variable_follows_the_specification`, beside the
/// code, tests each variable separately.)
#[test]
fn values_that_the_specification_ignores_do_not_end_the_program() {
    let odd = [
        ("OTEL_SDK_DISABLED", "False"),
        ("OTEL_TRACES_EXPORTER", "otlp,console"),
        ("OTEL_METRICS_EXPORTER", "prometheus,OTLP"),
        ("OTEL_LOGS_EXPORTER", " "),
        ("OTEL_PROPAGATORS", "tracecontext,baggage,b3"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "0"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "GZIP\n"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "endpoint=h"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
    ];
    let allowed = [
        "OTEL_SDK_DISABLED",
        "OTEL_METRICS_EXPORTER",
        "OTEL_LOGS_EXPORTER",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    ];
    let (code, log) = without_a_cluster(&[&[ENDPOINT], &odd[..]].concat());
    assert_eq!(code, Some(2));
    assert!(log.contains("error: kubeconfig /nowhere: "), "{log}");
    let warnings = |name: &str| {
        let of = format!("{name} = ");
        let lines = log.lines();
        lines
            .filter(|line| line.contains("WARN") && line.contains(&of))
            .count()
    };
    for (name, _) in odd {
        assert_eq!(
            warnings(name),
            usize::from(!allowed.contains(&name)),
            "{name}: {log}"
        );
    }
    // OTLP is not used, so there is no warning.
    for vars in [
        &[("OTEL_METRICS_EXPORTER", "prometheus")][..],
        &[("OTEL_SDK_DISABLED", "True"), ENDPOINT, odd[4]],
    ] {
        let (_, log) = without_a_cluster(vars);
        assert!(!log.contains("OTEL_"), "{log}");
    }
}

/// The last export takes only the time that is left for it, however long the time limit of an export is.
#[tokio::test]
async fn the_exit_does_not_wait_for_a_silent_collector() {
    over_both(async |protocol| {
        let cluster = with_pods().await;
        let mock = Mock::start(Behaviour::Silent).await;
        let namespace = cluster.namespace("exit").await;
        let mut controller = controller(cluster, &namespace, &mock.endpoint(), |command| {
            command.env(PROTOCOL, protocol.name());
            command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "60000");
            command.arg("--shutdown-timeout=1s");
        });
        let name = foos::names("exit", 1).remove(0);
        apply(&namespace, &foo(&name, &name, 1)).await;
        let reconciled = format!("object={namespace}/{name} ");
        controller.wait_for_log(&reconciled).await;
        let asked = Instant::now();
        assert_eq!(controller.stop().await, 0);
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
    })
    .await;
}

/// With any faulty collector, the Foos get their Deployments, the failure is logged once per signal, and the process exits in
/// time.
#[tokio::test]
async fn a_faulty_collector_does_not_delay_reconciles() {
    over_both(async |protocol| {
        let cluster = with_pods().await;
        for behaviour in [
            Behaviour::Refuse,
            Behaviour::BlackHole,
            Behaviour::Silent,
            Behaviour::Garbage,
            Behaviour::Page,
            Behaviour::Answer(Duration::ZERO, 14),
            Behaviour::Answer(Duration::ZERO, 16),
        ] {
            let mock = Mock::start(behaviour).await;
            let namespace = cluster.namespace("bad").await;
            let timeout = Duration::from_secs(6);
            let mut controller = controller(cluster, &namespace, &mock.endpoint(), |command| {
                command.env(PROTOCOL, protocol.name());
                command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "2000");
                command.arg("--shutdown-timeout=6s");
            });
            let names = foos::names("bad", 20);
            foos::create(&cluster.client().await, &namespace, &names).await;
            for name in &names {
                controller
                    .wait_for_log(&format!("object={namespace}/{name} "))
                    .await;
            }
            controller.wait_for_log("cannot export").await;
            if let Behaviour::Answer(..) = behaviour {
                // The collector's message, and not only its code.
                controller.wait_for_log(WORDS).await;
            }
            let asked = Instant::now();
            assert_eq!(controller.stop().await, 0);
            assert!(
                asked.elapsed() < timeout,
                "{behaviour:?}: {:?}",
                asked.elapsed()
            );
            let logged = controller.logged("cannot export");
            assert!(
                logged <= 3,
                "{behaviour:?}: logged {logged} times\n{}",
                controller.log()
            );
            controller
                .wait_for_log("final telemetry export failed")
                .await;
        }
    })
    .await;
}

/// A failed last export is logged for each signal: traces, logs, metrics, and all together.
#[tokio::test]
async fn a_last_export_that_is_lost_is_logged() {
    over_both(async |protocol| {
        let cluster = with_pods().await;
        let namespace = cluster.namespace("last").await;
        let collector = Collector::start().await;
        let refused = Mock::start(Behaviour::Refuse).await;
        for (number, exported) in ["TRACES", "LOGS", "METRICS", "all"].into_iter().enumerate() {
            for (endpoint, lost) in [
                (collector.endpoint_of(protocol), false),
                (refused.endpoint(), true),
            ] {
                let mut controller = controller(cluster, &namespace, &endpoint, |command| {
                    command.env(PROTOCOL, protocol.name());
                    // No export before shutdown.
                    for name in ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BLRP_SCHEDULE_DELAY"] {
                        command.env(name, "3600000");
                    }
                    command.env("OTEL_METRIC_EXPORT_INTERVAL", "3600000");
                    if lost {
                        command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "500");
                    }
                    for signal in ["TRACES", "LOGS", "METRICS"] {
                        if exported != "all" && exported != signal {
                            command.env(format!("OTEL_{signal}_EXPORTER"), "none");
                        }
                    }
                });
                let name = format!("last-{number}-{lost}");
                apply(&namespace, &foo(&name, &name, 1)).await;
                controller.wait_for_log("created the Deployment").await;
                assert_eq!(controller.stop().await, 0);
                let logged = controller.logged("final telemetry export failed");
                assert_eq!(
                    logged,
                    usize::from(lost),
                    "{exported}: {}",
                    controller.log()
                );
            }
        }
    })
    .await;
}

/// Certificates, keys and the CA are rotated at the same paths. The next connection uses the new ones. As long as the files do
/// not match, it uses the old ones.
#[tokio::test]
async fn rotated_certificates_are_read_again() {
    over_both(async |protocol| {
        let (cluster, mut collector) = tokio::join!(with_pods(), Collector::start_mutual_tls());
        let endpoint = collector.endpoint_of(protocol);
        let namespace = cluster.namespace("rotated").await;
        let (certificate, key) = collector.client();
        let controller = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
            command
                .env("OTEL_EXPORTER_OTLP_CERTIFICATE", collector.ca())
                .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate)
                .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key);
        });
        let arrives = async |collector: &Collector, name: &str| {
            apply(&namespace, &foo(name, name, 1)).await;
            let traced =
                |received: &Received| (!received.reconciles(name).is_empty()).then_some(());
            collector.wait_for("a trace", traced).await;
        };
        arrives(&collector, "before").await;

        let old = std::fs::read(&key).unwrap();
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").unwrap();
        collector.kill();
        collector.restart().await;
        controller
            .wait_for_log("cannot reload export certificates")
            .await;
        arrives(&collector, "amid").await;
        std::fs::write(&key, old).unwrap();

        collector.kill();
        collector.rotate();
        collector.restart().await;
        arrives(&collector, "after").await;
        controller
            .wait_for_log("reloaded the export certificates")
            .await;
        assert!(
            controller.logged("cannot reload export certificates") <= 3,
            "once for each signal"
        );
    })
    .await;
}

/// A load balancer drops idle connections, and resets them at the next request. No telemetry is lost.
#[tokio::test]
async fn a_connection_that_is_reset_loses_nothing() {
    over_both(async |protocol| loses_nothing(protocol, 6, Balancer::forget).await).await;
}

/// A load balancer acknowledges the requests of a connection, and forwards nothing more. No telemetry is lost.
#[tokio::test]
async fn a_connection_that_falls_silent_loses_nothing() {
    over_both(async |protocol| loses_nothing(protocol, 2, Balancer::swallow).await).await;
}

/// Exports by a load balancer, whose open connections `cut` makes unusable several times.
async fn loses_nothing(protocol: Protocol, times: usize, cut: fn(&Balancer)) {
    let (cluster, collector) = tokio::join!(with_pods(), Collector::start());
    let address = collector.endpoint_of(protocol).replace("http://", "");
    let balancer = Balancer::start(address).await;
    let namespace = cluster.namespace("cut").await;
    let controller = controller(cluster, &namespace, &balancer.endpoint(), |command| {
        command.env(PROTOCOL, protocol.name());
        // Twice the time to detect a silent connection.
        command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "20000");
    });
    let arrived = |name: String| {
        move |received: &Received| {
            let traces = received.reconciles(&name);
            traces
                .iter()
                .any(|trace| {
                    trace
                        .logs
                        .iter()
                        .any(|log| log.body == "created the Deployment")
                })
                .then_some(())
        }
    };
    for time in 0..times {
        // The connections are open and idle.
        controller.wait_for_log("started workers").await;
        cut(&balancer);
        let name = format!("time-{time}");
        apply(&namespace, &foo(&name, &name, 1)).await;
        collector
            .wait_for("the trace and its log record", arrived(name))
            .await;
    }
    let metrics = metrics(&controller).await;
    for signal in ["traces", "logs", "metrics"] {
        let lost = format!("foo_controller_telemetry_lost_total{{signal=\"{signal}\"}} 0\n");
        assert!(metrics.contains(&lost), "{metrics}");
    }
}

/// Returns the controller's metrics.
async fn metrics(controller: &Controller) -> String {
    let url = format!("http://{}", controller.http_addr().await);
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap()
}

/// A collector that is down causes a loss of telemetry. The loss is counted and logged once, and so is the recovery.
#[tokio::test]
async fn a_recovered_collector_receives_later_telemetry() {
    over_both(async |protocol| {
        let (cluster, mut collector) = tokio::join!(with_pods(), Collector::start());
        let endpoint = collector.endpoint_of(protocol);
        let namespace = cluster.namespace("back").await;
        let controller = controller(cluster, &namespace, &endpoint, |command| {
            command.env(PROTOCOL, protocol.name());
            command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "2000");
        });
        let client = cluster.client().await;
        let traced = |name: &str| {
            let name = name.to_owned();
            move |received: &Received| (!received.reconciles(&name).is_empty()).then_some(())
        };
        foos::create(&client, &namespace, &["before".to_owned()]).await;
        collector.wait_for("a trace", traced("before")).await;
        collector.kill();
        let names = foos::names("amid", 20);
        foos::create(&client, &namespace, &names).await;
        for name in &names {
            controller
                .wait_for_log(&format!("object={namespace}/{name} "))
                .await;
        }
        controller.wait_for_log("cannot export").await;
        loses_traces(&controller).await;
        collector.restart().await;
        controller
            .wait_for_log("the collector takes exports again")
            .await;
        foos::create(&client, &namespace, &["after".to_owned()]).await;
        collector.wait_for("a trace", traced("after")).await;
        let counted = |received: &Received| {
            let lost = received.metric("foo_controller_telemetry_lost_total")?;
            let lost = lost.point(&[("signal", "traces")])?.value;
            (lost >= 1.).then_some(())
        };
        collector
            .wait_for("a count of what was lost", counted)
            .await;
        let logged = controller.logged("cannot export");
        assert!(logged <= 3, "{}", controller.log());
    })
    .await;
}

/// Waits until an export of spans has failed. (The first log line may be about the metrics.)
async fn loses_traces(controller: &Controller) {
    eventually(DEADLINE, "spans that are lost", async || {
        let metrics = metrics(controller).await;
        let lost = r#"foo_controller_telemetry_lost_total{signal="traces"} "#;
        let count = metrics.lines().find_map(|line| line.strip_prefix(lost));
        count
            .filter(|count| *count != "0")
            .map(drop)
            .ok_or(metrics.clone())
    })
    .await;
}

/// Spans that do not fit into the queue are dropped, counted and logged. The work does not wait for the queue.
#[tokio::test]
async fn dropped_spans_are_counted() {
    let (cluster, collector) = tokio::join!(with_pods(), Collector::start());
    let namespace = cluster.namespace("drops").await;
    let silent = Mock::start(Behaviour::Silent).await;
    let controller = controller(cluster, &namespace, &silent.endpoint(), |command| {
        command
            .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", collector.endpoint())
            .env("OTEL_LOGS_EXPORTER", "none")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "1");
    });
    let names = foos::names("drop", 20);
    foos::create(&cluster.client().await, &namespace, &names).await;
    foos::converged(&cluster.client().await, &namespace, &names).await;
    let dropped = |received: &Received| {
        let processed = received.metric("otel.sdk.processor.span.processed")?;
        let point = processed.point(&[("error.type", "queue_full")])?;
        (point.value > 20.0).then_some(())
    };
    collector.wait_for("spans that were dropped", dropped).await;
    assert_eq!(controller.logged("collector too slow"), 1);
}

/// SIGHUP applies a changed `log.level`. An invalid configuration changes nothing.
#[tokio::test]
async fn sighup_changes_the_log_level() {
    let cluster = with_pods().await;
    let namespace = cluster.namespace("hangup").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("foo.toml");
    std::fs::write(&file, "log.level = 'info'").unwrap();
    let controller = Controller::spawn(|command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .arg("--config")
            .arg(&file);
        command.args(["--namespace", &namespace, "--resync=1h"]);
    });
    let configuration = controller.wait_for_log("configuration: ").await;
    assert!(
        configuration.contains("log.level = \"info\""),
        "{configuration}"
    );
    controller.wait_for_log("started workers").await;
    assert_eq!(controller.logged("DEBUG"), 0);

    std::fs::write(&file, "log.level = 'loud'").unwrap();
    controller.signal(Signal::HUP);
    let line = controller
        .wait_for_log("SIGHUP: invalid configuration, nothing changed: ")
        .await;
    assert!(line.contains("log.level = \"loud\""), "{line}");

    std::fs::write(&file, "log.level = 'info,hyper_util=trace'").unwrap();
    controller.signal(Signal::HUP);
    controller
        .wait_for_log("SIGHUP: applied the configured log.level")
        .await;
    apply(&namespace, &foo("a", "a", 1)).await;
    controller.wait_for_log("TRACE").await;
}

/// Credentials in the server URL or proxy URL of a kubeconfig are in no log line of any crate.
#[tokio::test]
async fn no_line_has_credentials_of_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = |name: &str, cluster: Value| {
        let path = folder.path().join(name);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster }],
            "contexts": [{ "name": "c", "context": { "cluster": "c" } }],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    };
    for scheme in ["http", "https"] {
        let server = format!("{scheme}://admin:s3cret@127.0.0.1:1/below");
        let path = kubeconfig(scheme, json!({ "server": server }));
        let controller = Controller::spawn(|command| {
            command
                .env("KUBECONFIG", path)
                .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
                .args(["--lease-namespace=n", "--log-level=trace"]);
        });
        let starting = controller.wait_for_log(" starting ").await;
        let address = format!("server={scheme}://127.0.0.1:1/below ");
        assert!(starting.contains(&address), "{starting}");
        controller.wait_for_log("cannot watch foos").await;
        assert!(!controller.log().contains("s3cret"), "{}", controller.log());
    }
    for (proxy, shown) in [
        ("http://u:s3cret@proxy:1", "http://proxy:1/"),
        ("https://s3cret@proxy", "https://proxy/"),
        ("socks5://u:s3cret%40@[::1]:1080", "socks5://[::1]:1080/"),
    ] {
        let server = json!({ "server": "https://127.0.0.1:1", "proxy-url": proxy });
        let output = Command::new(env!("CARGO_BIN_EXE_foo-controller"))
            .env_clear()
            .env("KUBECONFIG", kubeconfig("proxied", server))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{log}");
        assert!(
            log.contains(&format!("specifies the proxy {shown} ")),
            "{log}"
        );
        assert!(!log.contains("s3cret"), "{log}");
    }
}

/// A message of the API server, or of an impostor, cannot forge a log line in either format.
#[tokio::test]
async fn an_api_server_cannot_forge_a_line() {
    const FORGERY: Answer = Answer::json(
        500,
        r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500,
            "message": "no\n2026-01-01T00:00:00Z ERROR forged\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}\u001b[2J\u2028x"}"#,
    );
    let proxy = Proxy::start(with_pods().await.kube_config().await).await;
    proxy.on("*", "*").answer(FORGERY);
    for format in ["text", "json"] {
        let controller = Controller::spawn(|command| {
            command.args(["--master", &proxy.url(), "--log-format", format]);
        });
        controller.wait_for_log("forged").await;
        for line in controller.log().lines() {
            assert!(!line.contains(['\r', '\u{1b}', '\u{2028}']), "{line:?}");
            if format == "json" {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_ne!(line["message"], "forged");
                assert!(line["target"].is_string(), "{line}");
            } else {
                assert!(
                    !line.starts_with("2026-01-01") && !line.starts_with('{'),
                    "{line}"
                );
            }
        }
    }
}

/// A hundred Foos that keep failing for the same reason cause only a few log lines.
#[tokio::test]
async fn one_cause_is_logged_a_few_times() {
    let cluster = with_pods().await;
    let namespace = cluster.namespace("quota").await;
    foreign(cluster, &namespace, "taken").await;
    let controller = Controller::start(cluster, &["--namespace", &namespace, "--resync=1h"]);
    controller.wait_for_log("started workers").await;
    let items: Vec<_> = foos::names("f", 100)
        .iter()
        .map(|name| foo(name, "taken", 1))
        .collect();
    apply(
        &namespace,
        &json!({ "apiVersion": "v1", "kind": "List", "items": items }),
    )
    .await;
    let line = controller.wait_for_log("more like this").await;
    assert!(
        line.contains("already exists and is not managed by Foo"),
        "{line}"
    );
    let logged = controller.logged("; retrying");
    assert!((10..=60).contains(&logged), "{logged} lines");
}
