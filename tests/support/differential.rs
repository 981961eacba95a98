//! Compares the simulated API server (`crates/testkit/src/api_server`) with the real one: the same requests get the same
//! responses, and the same watches deliver the same events.
//!
//! `FOO_CONTROLLER_TEST_REQUESTS=100000` sets the number of requests.

mod any;
mod caches;
mod cases;
mod clients;
mod definitions;
mod normal;
mod pods;
mod rights;
mod selectors;
mod side;
mod special;
mod steps;
mod templates;
mod writes;

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use operator_testkit::{
    api_server::{Kind, METADATA, Method, Release},
    cluster::{AS_SIMULATED, Cluster, Options, eventually},
    differential::differ,
};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};

use normal::Names;
use rights::LIMITED;
use side::{ADMIN, Events, Sent, Side, Simulated, Told, path, sent};
use steps::{Act, By, KINDS, Step};

/// Maximum number of requests in one sequence.
const STEPS: usize = 30;
/// Default number of requests.
const REQUESTS: usize = 1500;

/// Concurrent sequences. Most of the time is spent waiting for responses.
const WORKERS: u64 = 8;

/// Separate control plane, because these tests install cluster-scoped objects.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(Options::default()));

const DEADLINE: Duration = Duration::from_secs(30);

static SENT: AtomicUsize = AtomicUsize::new(0);

/// Returns the installed CRD of Foo.
fn definition() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Installs the CRD and the permissions of the limited user, once for all tests.
async fn install(cluster: &Cluster) {
    static INSTALLED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let install = async || {
        cluster.install_crd().await;
        let roles = rights::roles().to_string();
        let applied = cluster.kubectl_stdin(&["apply", "-f", "-"], &roles).await;
        applied.success();
        let mut side = Side::Real(client(cluster).await);
        let probe = side::get("/api/v1/namespaces/default");
        eventually(
            DEADLINE,
            "the limited user has its rights",
            async || match side.send(&probe, LIMITED).await {
                (200, _) => Ok(()),
                refused => Err(refused),
            },
        )
        .await;
    };
    INSTALLED.get_or_init(install).await;
}

/// Returns a client that does not retry.
async fn client(cluster: &Cluster) -> kube::Client {
    let mut config = cluster.kube_config().await;
    config.default_retry = false;
    let client: kube::Client = config.try_into().unwrap();
    let release = async || {
        let version = client.apiserver_version().await.unwrap().git_version;
        Release::of(&version).unwrap_or_else(|| panic!("Kubernetes {version} is not imitated"))
    };
    side::RELEASE.get_or_init(release).await;
    client
}

/// State of one side in one sequence.
struct Run {
    side: Side,
    told: Told,
    names: Names,
    /// Newest resourceVersion in a response.
    newest: String,
    /// resourceVersion at the end of the last streamed list, by kind.
    bookmarks: BTreeMap<Kind, String>,
}

impl Run {
    fn new(side: Side) -> Self {
        Self {
            side,
            told: Told::default(),
            names: Names::default(),
            newest: String::new(),
            bookmarks: BTreeMap::new(),
        }
    }

    /// Performs a step. Returns all responses, normalized for the comparison.
    async fn take(&mut self, step: &Step, namespace: &str) -> Vec<Value> {
        let mut request = sent(step, namespace, &self.told);
        let first = request.path.clone();
        let mut answers = Vec::new();
        let read = match &step.act {
            Act::Metadata(read) => read,
            act => act,
        };
        if matches!(read, Act::Stream(_)) {
            SENT.fetch_add(1, Relaxed);
            return match self.side.watch(&request, step.by.user()).await {
                Ok(watch) => {
                    let events = self.side.events(watch, |event| event["type"] == "BOOKMARK");
                    let events = events.await;
                    let bookmark = &events.last().unwrap()["object"]["metadata"]["resourceVersion"];
                    let bookmark = bookmark.as_str().unwrap_or_default().to_owned();
                    self.bookmarks.insert(step.kind, bookmark);
                    self.normal(events)
                }
                Err((code, body)) => {
                    vec![json!({ "code": code, "body": self.names.normal(body) })]
                }
            };
        }
        loop {
            SENT.fetch_add(1, Relaxed);
            let (code, body) = self.side.send(&request, step.by.user()).await;
            if !matches!(
                step.act,
                Act::Put { dry: true, .. }
                    | Act::Patch { dry: true, .. }
                    | Act::Apply { dry: true, .. }
                    | Act::Create { dry: true, .. }
                    | Act::Review { .. }
            ) {
                self.told.note(step.kind, &body);
            }
            let version = body["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default();
            let number = |text: &str| text.parse::<u64>().unwrap_or(0);
            if number(version) > number(&self.newest) {
                version.clone_into(&mut self.newest);
            }
            let next = body["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            answers.push(json!({ "code": code, "body": self.names.normal(body) }));
            if next.is_empty() {
                return answers;
            }
            request.path = format!("{first}&continue={next}");
        }
    }

    async fn events(&mut self, watch: Events, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let events = self.side.events(watch, is_last).await;
        self.normal(events)
    }

    fn normal(&mut self, events: Vec<Value>) -> Vec<Value> {
        let events = events.into_iter();
        events.map(|event| self.names.normal(event)).collect()
    }
}

/// Performs the steps on both sides and compares the responses and events. The simulation keeps no managers of fields.
async fn compare(
    client: &kube::Client,
    steps: &[Step],
    keeps_managers: bool,
) -> Result<(), String> {
    let namespace = format!("d-{}", uuid::Uuid::new_v4().simple());
    let create = json!({ "metadata": { "name": namespace } }).to_string();
    let create = Sent {
        method: Method::POST,
        path: "/api/v1/namespaces".to_owned(),
        content_type: "application/json",
        accept: None,
        body: create.into_bytes(),
    };
    let simulated = if keeps_managers {
        Simulated::new(&namespace)
    } else {
        Simulated::without_managers(&namespace)
    };
    let mut sides = [
        Run::new(Side::Real(client.clone())),
        Run::new(Side::Simulated(Box::new(simulated))),
    ];
    for run in &mut sides {
        run.names.hides_managers = !keeps_managers;
    }
    let (code, created) = sides[0].side.send(&create, ADMIN).await;
    assert_eq!(code, 201, "{created}");
    let mut begun = Vec::new();
    for run in &mut sides {
        let list = sent(
            &Step {
                kind: KINDS[0],
                name: "a",
                act: Act::List,
                by: By::Admin,
            },
            &namespace,
            &run.told,
        );
        let (_, list) = run.side.send(&list, ADMIN).await;
        begun.push(
            list["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    for (run, begun) in sides.iter_mut().zip(&begun) {
        run.newest.clone_from(begun);
    }
    let mut amid = begun.clone();
    let mut kinds = KINDS.to_vec();
    kinds.retain(|kind| steps.iter().any(|step| step.kind == *kind));
    let end: Vec<_> = kinds
        .iter()
        .map(|&kind| Step {
            kind,
            name: "end",
            act: Act::Create {
                body: steps::valid(kind),
                dry: false,
            },
            by: By::Admin,
        })
        .collect();
    for (number, step) in steps.iter().chain(&end).enumerate() {
        let mut answers = Vec::new();
        for run in &mut sides {
            answers.push(run.take(step, &namespace).await);
        }
        if number == steps.len() / 2 {
            amid = sides.each_ref().map(|run| run.newest.clone()).to_vec();
        }
        if answers[0] != answers[1] {
            return Err(format!(
                "step {number}, {step:?}:\n{}",
                differences(&answers[0], &answers[1])
            ));
        }
    }
    for kind in kinds {
        let bookmarks = sides
            .each_ref()
            .map(|run| run.bookmarks.get(&kind).cloned());
        let bookmarks: Vec<_> = bookmarks.into_iter().flatten().collect();
        let all = path(kind, &namespace);
        for since in [&begun, &amid, &bookmarks] {
            if !since.is_empty() {
                compare_watches(&mut sides, &all, since, None).await?;
            }
        }
        // The metadata does not show the Events that the API server writes itself.
        if kind.stored() != Kind::Event {
            compare_watches(&mut sides, &all, &begun, Some(METADATA)).await?;
        }
        let now = [String::new(), String::new()];
        compare_watches(&mut sides, &all, &now, None).await?;
        // Like the watch of the election on its Lease.
        let one = format!("{all}?fieldSelector=metadata.name%3Dend");
        compare_watches(&mut sides, &one, &now, None).await?;
    }
    Ok(())
}

/// Compares the events since these versions, up to the object created last.
async fn compare_watches(
    sides: &mut [Run; 2],
    path: &str,
    since: &[String],
    accept: Option<&'static str>,
) -> Result<(), String> {
    let mut told = Vec::new();
    for (run, version) in sides.iter_mut().zip(since) {
        let and = if path.contains('?') { '&' } else { '?' };
        let watch = format!(
            "{path}{and}watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion={version}"
        );
        let watch = Sent {
            accept,
            ..side::get(watch)
        };
        let watch = run.side.watch(&watch, ADMIN).await;
        let watch = watch.map_err(|refused| format!("a watch of {path}: {refused:?}"))?;
        let is_last = |event: &Value| event["object"]["metadata"]["name"] == "end";
        told.push(run.events(watch, is_last).await);
    }
    if told[0] == told[1] {
        return Ok(());
    }
    let differences = differences(&told[0], &told[1]);
    Err(format!("events of {path} since {since:?}:\n{differences}"))
}

/// Formats the differences between two lists.
fn differences(real: &[Value], simulated: &[Value]) -> String {
    let mut lines = Vec::new();
    differ("", &json!(real), &json!(simulated), &mut lines);
    lines.truncate(12);
    lines.join("\n")
}

fn requests() -> usize {
    let asked = std::env::var("FOO_CONTROLLER_TEST_REQUESTS");
    asked.map_or(REQUESTS, |asked| asked.parse().unwrap())
}

/// Runs sequences with the seeds `first`, `first + by`, … until `enough` requests were sent.
fn sequences(first: u64, by: u64, enough: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = runtime.block_on(client(&CLUSTER));
    let mut seed = first;
    while SENT.load(Relaxed) < enough {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: 10,
            failure_persistence: None,
            max_shrink_iters: 300,
            ..Config::default()
        };
        let mut runner =
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let keeps_managers = seed.is_multiple_of(2);
        let result = runner.run(&steps::steps(STEPS, keeps_managers), |steps| {
            let compared = runtime.block_on(compare(&client, &steps, keeps_managers));
            compared.map_err(TestCaseError::fail)
        });
        if let Err(difference) = result {
            panic!("seed {seed}: {difference}");
        }
        seed += by;
    }
}

#[tokio::test]
async fn former_differences_do_not_recur() {
    if !CLUSTER.has(AS_SIMULATED).await {
        return;
    }
    install(&CLUSTER).await;
    let client = client(&CLUSTER).await;
    let cases =
        [true, false].map(|managers| cases::cases().into_iter().map(move |it| (managers, it)));
    let compared = cases.into_iter().flatten();
    let compared = compared.map(async |(managers, (name, steps))| {
        compare(&client, &steps, managers)
            .await
            .map_err(|difference| format!("{name}: {difference}"))
    });
    let compared = futures::future::join_all(compared).await;
    let differences: Vec<_> = compared.into_iter().filter_map(Result::err).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn the_same_requests_get_the_same_responses() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if !runtime.block_on(CLUSTER.has(AS_SIMULATED)) {
        return;
    }
    runtime.block_on(install(&CLUSTER));
    let enough = requests();
    std::thread::scope(|scope| {
        for first in 0..WORKERS {
            scope.spawn(move || sequences(first, WORKERS, enough * 2));
        }
    });
    eprintln!("{} requests to each", SENT.load(Relaxed) / 2);
}
