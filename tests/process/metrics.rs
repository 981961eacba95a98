//! Metrics of the real controller: all exist from the start, have the right values after a Foo's life, and are the same for a
//! scrape and an export. Prometheus, its rules and the dashboard can use them.
#![allow(clippy::float_cmp, reason = "counts are exact")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use foo_controller::APP;
use operator_runtime::{
    internals::{Page, Refusal},
    telemetry::metrics::Kind,
};
use operator_testkit::{
    cluster::eventually,
    collector::{Collector, Data, Received},
    prometheus::{Prometheus, promtool},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{controller::Controller, foos::audited};

const DEADLINE: Duration = Duration::from_mins(1);
const COMPONENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/prometheus");

/// Section of the metrics that exist only with an export.
const OF_THE_SDK: &str = "Telemetry export";

/// A controller with its own namespace. It is idle unless the test does something.
struct Scene {
    namespace: String,
    controller: Controller,
    addr: SocketAddr,
}

impl Scene {
    /// Starts a controller, and waits until its workers run.
    async fn new(name: &str, env: &[(&str, String)]) -> Self {
        let scene = Self::start(name, env).await;
        scene.controller.wait_for_log("started workers").await;
        scene
    }

    async fn start(name: &str, env: &[(&str, String)]) -> Self {
        let cluster = audited().await;
        let namespace = cluster.namespace(name).await;
        let controller = Controller::spawn(|command| {
            command
                .env("KUBECONFIG", cluster.kubeconfig())
                .envs(env.iter().map(|(name, value)| (name, value)))
                .args(["--resync=1h", "--namespace", &namespace]);
        });
        let addr = controller.http_addr().await;
        Self {
            namespace,
            controller,
            addr,
        }
    }

    async fn kubectl(&self, args: &[&str], input: &str) {
        let args = [&["--namespace", &self.namespace], args].concat();
        audited().await.kubectl_stdin(&args, input).await.success();
    }

    async fn apply(&self, name: &str, spec: Value) {
        let foo = json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
            "metadata": {"name": name}, "spec": spec,
        });
        self.kubectl(&["apply", "-f", "-"], &foo.to_string()).await;
    }

    async fn text(&self) -> String {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.to_owned()
    }

    async fn scrape(&self) -> Scrape {
        Scrape::parse(&self.text().await)
    }

    /// Scrapes until `so` returns true.
    async fn scrape_until(&self, what: &str, so: impl Fn(&Scrape) -> bool) -> Scrape {
        eventually(DEADLINE, what, async || {
            let scrape = self.scrape().await;
            if so(&scrape) { Ok(scrape) } else { Err(scrape) }
        })
        .await
    }

    /// Scrapes until the controller is idle.
    async fn at_rest(&self) -> Scrape {
        let mut before = self.scrape().await;
        eventually(DEADLINE, "all is at rest", async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = self.scrape().await;
            let last = std::mem::replace(&mut before, now);
            if last.about_work() == before.about_work() {
                Ok(())
            } else {
                Err(())
            }
        })
        .await;
        before
    }
}

/// Values by series, and types by name.
#[derive(Debug)]
struct Scrape {
    series: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
}

impl Scrape {
    fn parse(text: &str) -> Self {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let types = types.map(|line| line.split_once(' ').unwrap());
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series = series.map(|line| line.rsplit_once(' ').unwrap());
        Self {
            types: types
                .map(|(name, kind)| (name.into(), kind.into()))
                .collect(),
            series: series
                .map(|(name, value)| (name.into(), value.parse().unwrap()))
                .collect(),
        }
    }

    /// Returns the value of a series, written as in the text.
    fn get(&self, series: &str) -> f64 {
        let found = self.series.get(series);
        *found.unwrap_or_else(|| panic!("no {series} in {self:#?}"))
    }

    /// Returns the series that change only when the controller works.
    fn about_work(&self) -> BTreeMap<&str, f64> {
        let prefixes = [
            "controller_runtime_",
            "workqueue_",
            "foo_controller_",
            "rest_client_",
        ];
        let series = self
            .series
            .iter()
            .map(|(name, value)| (name.as_str(), *value));
        series
            .filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)))
            // Also grows when idle.
            .filter(|(name, _)| !name.starts_with("foo_controller_cache_age_seconds"))
            .collect()
    }
}

/// Returns the metric name of a series, without the suffixes of a histogram.
fn family<'a>(series: &'a str, names: &BTreeMap<String, String>) -> &'a str {
    let name = series.split('{').next().unwrap();
    let stems = ["_bucket", "_sum", "_count"].map(|suffix| name.strip_suffix(suffix));
    let stem = stems.into_iter().flatten().next();
    stem.filter(|stem| names.contains_key(*stem))
        .unwrap_or(name)
}

/// Returns the label names of a series, without the bound of a bucket.
fn labels(series: &str) -> BTreeSet<&str> {
    let labels = series.split_once('{').map_or("", |(_, labels)| labels);
    let keys = labels
        .split("\",")
        .filter_map(|label| label.split_once('=').map(|(key, _)| key));
    keys.filter(|key| *key != "le").collect()
}

/// Metrics of programs that watch optional resource types, read live or convert. This program does not.
const OF_OTHERS: [&str; 4] = [
    "kind_installed",
    "live_reads_total",
    "conversions_total",
    "conversion_seconds",
];

/// Every listed metric exists at the start, with the value 0, and no other metric does.
#[tokio::test]
async fn every_metric_exists_from_the_start() {
    let scene = Scene::new("start", &[]).await;
    let scrape = scene.scrape().await;
    let listed = foo_controller::metrics().filter(|(title, _)| *title != OF_THE_SDK);
    let listed = listed.flat_map(|(_, metrics)| metrics);
    let is_of_others = |name: &str| OF_OTHERS.iter().any(|it| name.ends_with(it));
    let listed = listed.filter(|metric| !is_of_others(&metric.name(&APP)));
    let listed: Vec<_> = listed.collect();
    for metric in &listed {
        let kind = scrape.types.get(&metric.name(&APP)).map(String::as_str);
        assert_eq!(kind, Some(metric.kind.name()), "{}", metric.name(&APP));
        let series = scrape.series.iter();
        let series =
            series.filter(|(series, _)| family(series, &scrape.types) == metric.name(&APP));
        for (series, value) in series {
            assert_eq!(
                labels(series),
                metric.labels.iter().copied().collect(),
                "{series}"
            );
            // Gauges may have a value. The watches send requests, which may fail at first while the API server learns of the CRD.
            let counts = metric.kind != Kind::Gauge;
            let busy = ["process_", "rest_client_", "foo_controller_watch_restarts_"]
                .iter()
                .any(|prefix| series.starts_with(prefix));
            assert!(*value == 0. || !counts || busy, "{series} {value}");
        }
    }
    let listed: BTreeSet<_> = listed.iter().map(|metric| metric.name(&APP)).collect();
    let scraped: BTreeSet<_> = scrape.types.keys().cloned().collect();
    assert_eq!(scraped, listed);
    assert_eq!(
        scrape.get(r#"leader_election_master_status{installation="",name="foo-controller"}"#),
        1.
    );
    let creates = format!(
        "rest_client_requests_total{{code=\"201\",host=\"{}\",method=\"POST\"}}",
        host(&scrape)
    );
    assert_eq!(scrape.get(&creates), 3., "it asked what it may write");
}

/// Returns the API server's name in labels.
fn host(scrape: &Scrape) -> &str {
    let series = scrape
        .series
        .keys()
        .find(|series| series.starts_with("rest_client_requests_total"));
    let (_, rest) = series.unwrap().split_once("host=\"").unwrap();
    rest.split('"').next().unwrap()
}

/// The counters match the audit log of the API server.
#[tokio::test]
async fn counters_match_the_audit_log() {
    let scene = Scene::new("life", &[]).await;
    let foos = |ready| format!("foo_controller_foos{{ready=\"{ready}\"}}");
    scene
        .apply("a", json!({"deploymentName": "a", "replicas": 1}))
        .await;
    scene.apply("b", json!({"deploymentName": ""})).await;
    scene
        .scrape_until("two Foos are not Ready", |scrape| {
            scrape.get(&foos("false")) == 2.
        })
        .await;
    scene.kubectl(&["scale", "foo/a", "--replicas=3"], "").await;
    let scrape = scene.at_rest().await;
    assert_eq!(
        scrape.get(r#"foo_controller_cache_objects{kind="Foo"}"#),
        2.
    );
    assert_eq!(
        scrape.get(r#"foo_controller_cache_objects{kind="Deployment"}"#),
        1.
    );
    assert_eq!(scrape.get(&foos("true")) + scrape.get(&foos("unknown")), 0.);

    let controller = r#"{controller="foo"}"#;
    let queue = r#"{controller="foo",name="foo"}"#;
    let by_result = |result| {
        scrape.get(&format!(
            "controller_runtime_reconcile_total{{controller=\"foo\",result=\"{result}\"}}"
        ))
    };
    let failed = by_result("error");
    assert!(failed >= 1., "b asks for no Deployment");
    assert_eq!(
        scrape.get(&format!(
            "controller_runtime_reconcile_errors_total{controller}"
        )),
        failed
    );
    assert!(by_result("success") >= 2.);
    let all = by_result("success") + failed + by_result("requeue");
    for series in [
        format!("controller_runtime_reconcile_time_seconds_count{controller}"),
        format!("workqueue_queue_duration_seconds_count{queue}"),
        format!("workqueue_work_duration_seconds_count{queue}"),
        format!("workqueue_adds_total{queue}"),
    ] {
        assert_eq!(scrape.get(&series), all, "{series}");
    }
    assert_eq!(scrape.get(&format!("workqueue_depth{queue}")), 0.);

    // The reviews of its permissions have no namespace.
    let mut expected = BTreeMap::from([(("POST", 201), 3.)]);
    for event in audited().await.audit() {
        let method = match &*event.verb {
            "create" => "POST",
            "patch" => "PATCH",
            "update" => "PUT",
            "delete" => "DELETE",
            _ => continue,
        };
        if event.user_agent.starts_with("foo-controller/") && event.namespace == scene.namespace {
            *expected.entry((method, event.code)).or_default() += 1.;
        }
    }
    assert!(expected.len() >= 2, "{expected:?}");
    for ((method, code), count) in expected {
        let series = format!(
            "rest_client_requests_total{{code=\"{code}\",host=\"{}\",method=\"{method}\"}}",
            host(&scrape)
        );
        assert_eq!(scrape.get(&series), count, "{series}");
    }

    scene.kubectl(&["delete", "foo", "--all"], "").await;
    scene
        .scrape_until("no Foo is counted", |scrape| {
            scrape.get(&foos("false")) == 0.
        })
        .await;
}

/// The metrics report which replica leads, and count acquisitions and renewals.
#[tokio::test]
async fn leadership_is_reported() {
    let cluster = audited().await;
    let lease = cluster.namespace("lease").await;
    cluster.release_lease(&lease, "foo-controller").await;
    let replica = async || {
        let pod = uuid::Uuid::new_v4().to_string();
        let env = [
            (
                "FOO_CONTROLLER__LEADER_ELECTION__ENABLED",
                "true".to_owned(),
            ),
            ("POD_NAME", "replica".to_owned()),
            ("POD_UID", pod),
            (
                "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE",
                lease.clone(),
            ),
        ];
        Scene::start("leader", &env).await
    };
    let leading = |leads: f64| {
        move |scrape: &Scrape| {
            let renewals = scrape.get("foo_controller_lease_renew_seconds_count");
            scrape.get(r#"leader_election_master_status{installation="",name="foo-controller"}"#)
                == leads
                && scrape.get("foo_controller_leader_transitions_total") == leads
                && (renewals > 0.) == (leads > 0.)
        }
    };
    let mut first = replica().await;
    first.scrape_until("the first leads", leading(1.)).await;
    let second = replica().await;
    second.controller.wait_for_log("standing by").await;
    second
        .scrape_until("the second stands by", leading(0.))
        .await;
    first.controller.stop().await;
    second.scrape_until("the second leads", leading(1.)).await;
}

/// Requests to an unreachable API server and restarts of watches are counted.
#[tokio::test]
async fn failed_requests_and_watch_restarts_are_counted() {
    let away = "FOO_CONTROLLER__MASTER";
    let scene = Scene::start("trouble", &[(away, "https://127.0.0.1:1".to_owned())]).await;
    scene
        .scrape_until("watches that fail", |scrape| {
            ["Foo", "Deployment"].iter().all(|kind| {
                let restarts = format!("foo_controller_watch_restarts_total{{kind=\"{kind}\"}}");
                scrape.get(&restarts) >= 2.
            }) && scrape.get(
                r#"rest_client_requests_total{code="<error>",host="127.0.0.1:1",method="GET"}"#,
            ) >= 4.
        })
        .await;
}

/// A scrape and an export have the same values, since both read the same instruments.
#[tokio::test(flavor = "multi_thread")]
async fn otlp_exports_equal_scrapes() {
    let collector = Collector::start().await;
    let export = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "500".to_owned()),
    ];
    let scene = Scene::new("otlp", &export).await;
    scene
        .apply("a", json!({"deploymentName": "a", "replicas": 1}))
        .await;
    scene
        .scrape_until("the Foo is reported on", |scrape| {
            scrape.get(r#"foo_controller_foos{ready="false"}"#) == 1.
        })
        .await;
    let scrape = scene.at_rest().await;
    let (_, listed) = foo_controller::metrics()
        .find(|(title, _)| *title == OF_THE_SDK)
        .unwrap();
    let listed: BTreeSet<_> = listed.iter().map(|metric| metric.name(&APP)).collect();
    let of_export = ["otel_", "foo_controller_telemetry_"];
    scene
        .scrape_until("the SDK's own metrics", |scrape| {
            let names = scrape.types.keys();
            names
                .filter(|name| of_export.iter().any(|start| name.starts_with(start)))
                .eq(&listed)
        })
        .await;
    eventually(DEADLINE, "the collector has what is scraped", async || {
        let received = exported(&collector.received());
        let mut differ = scrape.about_work();
        differ.retain(|series, value| {
            let histogram = scrape
                .types
                .get(family(series, &scrape.types))
                .is_some_and(|kind| kind == "histogram");
            // OTLP exports the series of a histogram from its first record on.
            let nothing = histogram.then_some(0.);
            let received = received.get(*series).copied().or(nothing);
            // The collector's JSON loses the last bit of a sum.
            !received.is_some_and(|received| (received - *value).abs() <= value.abs() * 1e-12)
        });
        if differ.is_empty() {
            Ok(())
        } else {
            Err(format!("{differ:#?}"))
        }
    })
    .await;
}

/// Returns the last OTLP export in the form of a scrape.
fn exported(received: &Received) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    for metric in &received.metrics {
        for point in metric.points() {
            let labels = point.attributes.iter();
            let labels =
                labels.map(|(key, value)| format!("{key}=\"{}\"", value.as_str().unwrap()));
            let labels: Vec<_> = labels.collect();
            let mut put = |suffix: &str, bound: Option<String>, value: f64| {
                let bound = bound.map(|bound| format!("le=\"{bound}\""));
                let labels: Vec<_> = labels.iter().cloned().chain(bound).collect();
                let braced = if labels.is_empty() {
                    String::new()
                } else {
                    format!("{{{}}}", labels.join(","))
                };
                series.insert(format!("{}{suffix}{braced}", metric.name), value);
            };
            if !matches!(metric.data, Data::Histogram(_)) {
                put("", None, point.value);
                continue;
            }
            let bounds = point
                .explicit_bounds
                .iter()
                .map(|bound| format!("{bound:?}"));
            let mut count = 0.;
            for (bound, values) in bounds.chain(["+Inf".to_owned()]).zip(&point.bucket_counts) {
                count += f64::from(u32::try_from(*values).unwrap());
                put("_bucket", Some(bound), count);
            }
            put("_sum", None, point.value);
            put("_count", None, count);
        }
    }
    series
}

/// Prometheus' own parser accepts the metrics.
#[tokio::test]
#[ignore = "takes Debian's prometheus"]
async fn promtool_has_no_complaint() {
    // Including the SDK's own metrics.
    let export = [(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://127.0.0.1:1".to_owned(),
    )];
    let scene = Scene::new("promtool", &export).await;
    scene.apply("a", json!({"deploymentName": "a"})).await;
    scene.at_rest().await;
    let said = promtool(&["check", "metrics"], &scene.text().await).await;
    assert_eq!(said.as_deref(), Ok(""));
}

/// A real Prometheus scrapes the real controller, stores the exemplars, and evaluates the rules.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's prometheus"]
async fn prometheus_scrapes_and_judges() {
    let collector = Collector::start().await;
    let export = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())];
    let scene = Scene::new("scrape", &export).await;
    let folder = TempDir::new().unwrap();
    let rules = rules_in(&folder);
    // The labels of the `PodMonitor`.
    let scrape = json!([{
        "job_name": "foo-controller",
        "static_configs": [{
            "targets": [scene.addr.to_string()],
            "labels": {"namespace": "n", "pod": "a"},
        }],
    }]);
    let prometheus = Prometheus::start(scrape, &[rules]).await;
    scene.apply("a", json!({"deploymentName": "a"})).await;
    let from = r#"{job="foo-controller",namespace="n",pod="a"}"#;
    let found = prometheus.wait_for(&format!("up{from} == 1")).await;
    assert_eq!(found.len(), 1);
    prometheus
        .wait_for(&format!(
            "controller_runtime_reconcile_time_seconds_count{from} > 0"
        ))
        .await;
    prometheus
        .wait_for("foo_controller:telemetry_dropped:sum == 0")
        .await;

    let trace = eventually(DEADLINE, "an exemplar", async || {
        let path = "/api/v1/query_exemplars?query=controller_runtime_reconcile_time_seconds_bucket&start=0&end=9999999999";
        let found = prometheus.get(path).await;
        let trace = found.pointer("/0/exemplars/0/labels/trace_id").cloned();
        trace.and_then(|trace| trace.as_str().map(str::to_owned)).ok_or(found)
    })
    .await;
    let name = "the exemplar's trace";
    let span = collector.wait_for(name, |received| {
        let mut spans = received.spans.iter();
        spans
            .any(|span| span.trace_id == trace && span.name == "reconcile")
            .then_some(())
    });
    span.await;

    // Prometheus also evaluates the queries of the dashboard, with the defaults of Grafana for its variables.
    let mut queries = Vec::new();
    let dashboard = dashboard().replace("$namespace", "n");
    let dashboard = dashboard
        .replace("$cluster", ".*")
        .replace("$__rate_interval", "1m");
    collect(&serde_json::from_str(&dashboard).unwrap(), &mut queries);
    for query in queries {
        let found = prometheus.query(&query).await;
        // A rate needs two scrapes, and a quantile needs observations.
        let is_of_others = OF_OTHERS.iter().any(|it| query.contains(it));
        assert!(
            query.contains("rate(") || query.contains("otel_") || is_of_others || !found.is_empty(),
            "{query}"
        );
    }

    let groups = prometheus.get("/api/v1/rules").await;
    let rules = groups
        .pointer("/groups/0/rules")
        .unwrap()
        .as_array()
        .unwrap()
        .clone();
    for rule in rules {
        assert_ne!(rule["health"], "err", "{rule}");
        assert_ne!(rule["state"], "firing", "{rule}");
    }
    drop(scene.controller);
}

/// With several shards of the Prometheus Operator, each shard scrapes all replicas. The test appends the operator's sharding
/// rules to the rules of the `PodMonitor`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's prometheus"]
async fn each_shard_scrapes_all_replicas() {
    let yaml = fs::read_to_string(Path::new(COMPONENT).join("podmonitor.yaml")).unwrap();
    let monitor: Value = serde_saphyr::from_str(&yaml).unwrap();
    let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().unwrap();
    for (endpoint, shard) in endpoints.iter().zip(0..2) {
        let mut rules = Vec::new();
        for rule in endpoint["relabelings"].as_array().unwrap() {
            rules.push(
                json!({"target_label": rule["targetLabel"], "replacement": rule["replacement"]}),
            );
        }
        let hash = ["__address__", "__tmp_hash"];
        rules.extend([
            json!({"source_labels": hash, "target_label": "__tmp_hash", "regex": "(.+);", "replacement": "$1"}),
            json!({"source_labels": ["__tmp_hash"], "target_label": "__tmp_hash", "modulus": 2, "action": "hashmod"}),
            json!({
                "source_labels": ["__tmp_hash", "__tmp_disable_sharding"], "regex": format!("{shard};|.+;.+"), "action": "keep",
            }),
        ]);
        let targets: Vec<_> = (1..5).map(|host| format!("127.0.0.{host}:1")).collect();
        let scrape = json!([{
            "job_name": "foo-controller", "static_configs": [{"targets": targets}], "relabel_configs": rules,
        }]);
        let prometheus = Prometheus::start(scrape, &[]).await;
        eventually(DEADLINE, "targets", async || {
            let found = prometheus.get("/api/v1/targets?state=active").await;
            let active = found["activeTargets"].as_array().unwrap().len();
            if active == 4 { Ok(()) } else { Err(found) }
        })
        .await;
    }
}

/// The `PodMonitor` selects the pods, and Grafana finds the dashboard.
#[tokio::test]
async fn the_component_fits_the_base() {
    // kustomize accepts no absolute paths.
    let overlay = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let depth = overlay.path().canonicalize().unwrap().components().count() - 1;
    let deploy = format!(
        "{}{}/deploy",
        "../".repeat(depth),
        env!("CARGO_MANIFEST_DIR").trim_start_matches('/')
    );
    let kustomization = json!({
        "resources": [format!("{deploy}/base"), format!("{deploy}/conversion")],
        "components": [format!("{deploy}/components/prometheus")],
    });
    fs::write(
        overlay.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )
    .unwrap();
    let rendered = audited()
        .await
        .kubectl(&["kustomize", overlay.path().to_str().unwrap()])
        .await;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered.success()).unwrap();
    let find = |kind: &str, name: &str| {
        let mut objects = objects.iter();
        let found =
            objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    let pod = &find("Deployment", "foo-controller")["spec"]["template"];
    let webhook = &find("Deployment", "foo-controller-conversion")["spec"]["template"];
    let monitor = &find("PodMonitor", "foo-controller")["spec"];
    let (job, selector) = (
        &monitor["jobLabel"],
        &monitor["selector"]["matchExpressions"][0],
    );
    assert_eq!(
        (&selector["key"], &selector["operator"]),
        (job, &"In".into())
    );
    let names = json!(["foo-controller", "foo-controller-conversion"]);
    assert_eq!(selector["values"], names);
    for (pod, name) in [pod, webhook].into_iter().zip(names.as_array().unwrap()) {
        assert_eq!(&pod["metadata"]["labels"][job.as_str().unwrap()], name);
    }
    // The panels and the alert of the webhook select its job.
    let alerts = rules().to_string();
    for queries in [dashboard(), alerts] {
        let of_webhook = r#"{job=\"foo-controller-conversion\","#;
        assert!(queries.contains(of_webhook));
        for (at, _) in queries.match_indices("foo_controller_conversion") {
            let (before, query) = queries.split_at(at);
            let selector = query.trim_start_matches(|it: char| it.is_alphanumeric() || it == '_');
            let is_title = before.ends_with(r#""title": ""#);
            assert!(is_title || selector.starts_with(of_webhook), "{query}");
        }
    }
    let ports = webhook["spec"]["containers"][0]["ports"]
        .as_array()
        .unwrap();
    let mut endpoints = monitor["podMetricsEndpoints"].as_array().unwrap().iter();
    assert!(endpoints.any(|endpoint| ports.iter().any(|port| port["name"] == endpoint["port"])));

    let map = find("ConfigMap", "foo-controller-dashboard");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["data"]["foo-controller.json"], dashboard());
    let rules_there = find("PrometheusRule", "foo-controller");
    assert_eq!(rules_there["spec"], rules()["spec"]);
}

/// Each alert fires in the cases where it should, and in no other.
#[tokio::test]
#[ignore = "takes Debian's prometheus"]
async fn alerts_fire_when_they_should() {
    let folder = TempDir::new().unwrap();
    let rules = rules_in(&folder);
    promtool(&["check", "rules", rules.to_str().unwrap()], "")
        .await
        .unwrap();
    for file in ["alerts.yaml", "day.yaml"] {
        fs::copy(cases(file), folder.path().join(file)).unwrap();
        test_rules(&folder, file).await;
    }
}

/// The alerts also work with two clusters in one Prometheus, a pair of Prometheus servers for each, and the same metrics by
/// OTLP. Each cluster has the same alerts as alone.
#[tokio::test]
#[ignore = "takes Debian's prometheus"]
async fn alerts_fire_when_they_should_in_any_setup() {
    let folder = TempDir::new().unwrap();
    rules_in(&folder);
    let alerts = fs::read_to_string(cases("alerts.yaml")).unwrap();
    let mut alerts: Value = serde_saphyr::from_str(&alerts).unwrap();
    let array = |value: &mut Value| value.as_array_mut().map(std::mem::take).unwrap_or_default();
    for case in alerts["tests"].as_array_mut().unwrap() {
        let series = array(&mut case["input_series"]);
        let name = |series: &Value| series["series"].as_str().unwrap().to_owned();
        // A series that only OTLP exports, or that has a cluster label, is not changed.
        let plain = |series: &Value| {
            let name = name(series);
            name.contains("pod=") && !name.contains("cluster=")
        };
        if series.is_empty() || !series.iter().all(plain) {
            case["input_series"] = series.into();
            continue;
        }
        let mut all = Vec::new();
        for one in &series {
            let mut with = |labels: &str| {
                let mut one = one.clone();
                one["series"] = name(&one).replacen('{', &format!("{{{labels},"), 1).into();
                all.push(one);
            };
            for cluster in CLUSTERS {
                for replica in 0..2 {
                    with(&format!(
                        "cluster={cluster:?},prometheus_replica=\"{replica}\""
                    ));
                }
            }
            let mut by_otlp = one.clone();
            let labels = name(one).replace("namespace=", "k8s_namespace_name=");
            by_otlp["series"] = labels.replace("pod=", "instance=").into();
            all.push(by_otlp);
        }
        case["input_series"] = all.into();
        for expected in case["alert_rule_test"].as_array_mut().unwrap() {
            let alerts = array(&mut expected["exp_alerts"]);
            let of_each = alerts.iter().flat_map(|alert| {
                CLUSTERS.map(|cluster| {
                    let mut alert = alert.clone();
                    alert["exp_labels"]["cluster"] = cluster.into();
                    alert
                })
            });
            expected["exp_alerts"] = of_each.collect();
        }
    }
    fs::write(folder.path().join("setup.yaml"), alerts.to_string()).unwrap();
    test_rules(&folder, "setup.yaml").await;
}

const CLUSTERS: [&str; 2] = ["one", "two"];

fn cases(file: &str) -> PathBuf {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/process/prometheus"
    ))
    .join(file)
}

async fn test_rules(folder: &TempDir, file: &str) {
    let file = folder.path().join(file);
    promtool(&["test", "rules", file.to_str().unwrap()], "")
        .await
        .unwrap();
}

/// Writes the rules as Prometheus reads them, without the object of the Prometheus Operator.
fn rules_in(folder: &TempDir) -> PathBuf {
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules()["spec"].to_string()).unwrap();
    file
}

fn dashboard() -> String {
    fs::read_to_string(Path::new(COMPONENT).join("dashboard.json")).unwrap()
}

fn rules() -> Value {
    let yaml = fs::read_to_string(Path::new(COMPONENT).join("rules.yaml")).unwrap();
    serde_saphyr::from_str(&yaml).unwrap()
}

/// Every metric in a rule or in the dashboard exists, and every alert has test cases.
#[test]
fn metrics_in_rules_and_dashboard_exist() {
    let listed: BTreeMap<String, String> = foo_controller::metrics()
        .flat_map(|(_, metrics)| metrics)
        .map(|metric| (metric.name(&APP), metric.kind.name().to_owned()))
        .collect();
    let dashboard: Value = serde_json::from_str(&dashboard()).unwrap();
    let mut expressions = Vec::new();
    for all in [&rules(), &dashboard] {
        collect(all, &mut expressions);
    }
    assert!(expressions.len() > listed.len());
    for expression in expressions {
        // A metric name contains an underscore, and a selector follows it.
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let selected = words.filter(|word| expression.contains(&format!("{word}{{")));
        for name in selected.filter(|word| word.contains('_')) {
            assert!(
                listed.contains_key(family(name, &listed)),
                "{name} in {expression}"
            );
        }
    }
    let cases = include_str!("prometheus/alerts.yaml");
    let rules = rules();
    let rules = rules
        .pointer("/spec/groups/0/rules")
        .unwrap()
        .as_array()
        .unwrap();
    for alert in rules.iter().filter_map(|rule| rule["alert"].as_str()) {
        assert!(
            cases.contains(&format!("{{alertname: {alert},")),
            "a case in which {alert} is quiet"
        );
        assert!(
            cases.contains(&format!("- alertname: {alert}\n")),
            "a case in which {alert} fires"
        );
    }
}

/// Collects every `expr` of a value.
fn collect(value: &Value, expressions: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "expr" => expressions.push(text.clone()),
                    _ => collect(value, expressions),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, expressions)),
        _ => {}
    }
}

/// The documentation lists each status code of a rejected scrape, and no other.
#[test]
fn every_code_of_a_rejected_scrape_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/telemetry.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, about) = text.split_once("(SubjectAccessReview). ").unwrap();
    let (about, _) = about.split_once(". A positive answer").unwrap();
    let words = about.split(|c: char| !c.is_ascii_digit());
    let mut named: Vec<_> = words.filter(|word| word.len() == 3).collect();
    named.sort_unstable();
    let codes = [
        Refusal::InvalidToken,
        Refusal::NotAllowed(String::new(), Page::Metrics, APP.name),
        Refusal::MayNotAsk,
        Refusal::NoAnswer,
    ];
    assert_eq!(
        named,
        codes.map(|refusal| refusal.status().as_str().to_owned())
    );
}
