//! The manifests of `deploy/`, installed as real pods on a real node. `make e2e` runs these tests one after the other, in the
//! namespaces of `tests/node/node.sh`. After each test, the invariants are checked against the audit log of the whole run.
//!
//! Times are printed beside the promised limits. A limit applies to the median. Single values may exceed it by [`SLACK`],
//! because the machine may be busy.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Mutex,
    time::{Duration, Instant},
};

use foo_controller::{APP, api::Foo};
use foo_simulation::invariants::{self, Election};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Pod as PodObject},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::AuthInfo,
};
use operator_runtime::Config;
use operator_testkit::{
    cluster::{self, AuditEvent, eventually},
    collector::{Collector, Received},
    prometheus::promtool,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    process::Command,
    sync::oneshot::{self, error::TryRecvError},
    task::JoinHandle,
    time::{interval, sleep},
};

use crate::support::{
    controller::Controller,
    foos::{DEADLINE, delays, foo, longest},
};

mod families;

const NAMESPACE: &str = "foo-system";
const NAME: &str = "foo-controller";
const IMAGE: &str = concat!("foo-controller:", env!("CARGO_PKG_VERSION"));
/// Address of the node, reachable from pods (`tests/node/node.sh`).
const NODE_ADDRESS: &str = "10.231.0.1";
/// Image of the Foos' pods, built by `tests/node/e2e.sh`.
const STAND_IN: &str = "stand-in:e2e";
/// Promised limit: from `kubectl apply` to both replicas Ready.
const INSTALLED: Duration = Duration::from_secs(5);
/// Promised limit: longest wait of a Foo for its Deployment while pods are replaced in an orderly way.
const ORDERLY: Duration = Duration::from_secs(1);
/// Promised limit: resident memory of an idle replica, in bytes.
const IDLE: u64 = 12 << 20;
/// Tolerance for a busy machine: a Foo may wait for a second or two although no pod is replaced. Waiting out a Lease still
/// takes longer than [`ORDERLY`] and this together.
const SLACK: Duration = Duration::from_secs(5);

/// Returns the folder of the node: images, logs, results.
fn node() -> PathBuf {
    env::var_os("NODE").expect("`make e2e` runs this").into()
}

/// Prints a result, and records it for the summary.
fn report(what: &str, figure: &str) {
    let line = format!("{what}: {figure}");
    println!("  {line}");
    let results = File::options()
        .create(true)
        .append(true)
        .open(node().join("results"));
    writeln!(results.unwrap(), "{line}").unwrap();
}

/// Prints and returns the time since `begin`.
fn report_time(what: &str, begin: Instant) -> Duration {
    let took = begin.elapsed();
    report(what, &format!("{} ms", took.as_millis()));
    took
}

/// Runs a program on the node, and returns its output. Panics with the error output if the program fails.
async fn run(line: &str) -> String {
    let (output, succeeded) = try_run(line).await;
    assert!(succeeded, "{line}: {output}");
    output
}

/// Runs a program on the node. Returns its output, and whether it succeeded.
async fn try_run(line: &str) -> (String, bool) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap())
        .args(words)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let succeeded = output.status.success();
    let said = if succeeded {
        output.stdout
    } else {
        output.stderr
    };
    (String::from_utf8(said).unwrap(), succeeded)
}

/// Returns the audit log of the run so far. The controller's requests have the name of their pod as user.
fn audit() -> Vec<AuditEvent> {
    let log = fs::read_to_string(node().join("audit.log")).unwrap();
    let complete = log.rfind('\n').map_or("", |end| &log[..end]);
    let by_pod = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let pod = "/user/extra/authentication.kubernetes.io~1pod-name/0";
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if agent.starts_with("foo-controller/")
            && let Some(pod) = event.pointer(pod).cloned()
        {
            event["user"]["username"] = pod;
        }
        format!("{event}\n")
    };
    cluster::audit::parse(&complete.lines().map(by_pod).collect::<String>())
}

/// Checks the invariants in the whole run so far, above all I1: the writer held the Lease.
fn assert_invariants() {
    let log = audit();
    let ours = log
        .iter()
        .filter(|event| event.user_agent.starts_with("foo-controller/"));
    let settings = Config::shipped(&APP).leader_election;
    let election = Election {
        users: ours.map(|event| event.user.clone()).collect(),
        lease: NAME.to_owned(),
        lease_duration: settings.lease_duration,
        renew_deadline: settings.renew_deadline,
    };
    let mut report = invariants::check(&log, &election, &[]);
    // Requests that a cut network held back arrive late, no matter when they were sent. `replicas.rs` checks I2.
    report
        .violations
        .retain(|violation| !violation.starts_with("I2"));
    println!("  so far {} pods: {report}", election.users.len());
    assert!(report.violations.is_empty(), "{report}");
}

/// A kustomize overlay, as a user would write it.
struct Overlay {
    /// Folder of the project.
    base: &'static str,
    /// Lines that replace the lines of `config/foo-controller.toml` with the same key.
    config: &'static [&'static str],
    /// Tag of the image.
    tag: &'static str,
    /// Patches of the container and of the pod in the Deployment.
    container: Value,
    pod: Value,
}

const PLAIN: Overlay = Overlay {
    base: "deploy",
    config: &[],
    tag: env!("CARGO_PKG_VERSION"),
    container: Value::Null,
    pod: Value::Null,
};

impl Overlay {
    fn write(&self) -> TempDir {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().canonicalize().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut config = fs::read_to_string(root.join("config/foo-controller.toml")).unwrap();
        let image = format!("image = \"{STAND_IN}\"");
        for line in self.config.iter().copied().chain([&*image]) {
            let key = line.split('=').next().unwrap();
            let old = config.lines().find(|old| old.starts_with(key)).unwrap();
            config = config.replace(old, line);
        }
        fs::write(path.join("foo-controller.toml"), config).unwrap();
        // Kustomize accepts no absolute path.
        let up = "../".repeat(path.components().count() - 1);
        let base = format!(
            "{up}{}/{}",
            root.strip_prefix("/").unwrap().display(),
            self.base
        );
        let mut pod = json!({"containers": [{"name": NAME}]});
        merge(&mut pod, &self.pod);
        merge(&mut pod["containers"][0], &self.container);
        let over = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"template": {"spec": pod}},
        });
        let kustomization = json!({
            "resources": [base],
            "patches": [{"patch": over.to_string()}],
            "images": [{"name": NAME, "newTag": self.tag}],
            "configMapGenerator": [{
                "name": "foo-controller-config",
                "namespace": NAMESPACE,
                "behavior": "replace",
                "files": ["foo-controller.toml"],
            }],
        });
        fs::write(path.join("kustomization.yaml"), kustomization.to_string()).unwrap();
        folder
    }

    async fn apply(&self) {
        let folder = self.write();
        run(&format!("kubectl apply -k {}", folder.path().display())).await;
    }

    async fn delete(&self) {
        let folder = self.write();
        let path = folder.path().display();
        run(&format!(
            "kubectl delete -k {path} --ignore-not-found --timeout=60s"
        ))
        .await;
    }

    /// Applies the overlay. Waits until its pods are Ready and all other pods are gone.
    async fn install(&self) -> Installation {
        self.apply().await;
        rolled_out().await;
        let client = Client::try_default().await.unwrap();
        let installation = Installation { client };
        installation.leader(None).await;
        installation
    }
}

/// Adds members to an object.
fn merge(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}

async fn rolled_out() {
    let status = format!("kubectl rollout status deployment/{NAME} -n {NAMESPACE} --timeout=60s");
    let (said, done) = try_run(&status).await;
    if !done {
        let logs = format!("kubectl logs -n {NAMESPACE} -l app.kubernetes.io/name={NAME} --prefix");
        let (pods, logs) = (
            format!("kubectl get pods -n {NAMESPACE}"),
            try_run(&logs).await.0,
        );
        panic!("{said}{}{logs}", try_run(&pods).await.0);
    }
}

/// The installed controller.
struct Installation {
    client: Client,
}

/// A pod of the controller.
#[derive(Clone, Debug)]
struct Pod {
    name: String,
    uid: String,
    ip: String,
    ready: bool,
    restarts: i32,
    image: String,
}

impl Installation {
    /// Returns the pods that are not being deleted.
    async fn pods(&self) -> Vec<Pod> {
        let pods: Api<PodObject> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let there = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let pod = |pod: PodObject| {
            let status = pod.status.clone().unwrap_or_default();
            let container = status.container_statuses.unwrap_or_default().pop();
            Pod {
                name: pod.name_any(),
                uid: pod.uid().unwrap(),
                ip: status.pod_ip.unwrap_or_default(),
                ready: container.as_ref().is_some_and(|container| container.ready),
                restarts: container.map_or(0, |container| container.restart_count),
                image: pod.spec.unwrap().containers.remove(0).image.unwrap(),
            }
        };
        there.map(pod).collect()
    }

    /// Waits until another pod than `old` holds the Lease.
    async fn leader(&self, old: Option<&Pod>) -> Pod {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually(DEADLINE, "a pod holds the Lease", async || {
            let lease = leases
                .get_opt(NAME)
                .await
                .map_err(|error| error.to_string())?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            let pods = self.pods().await.into_iter();
            let mut others = pods.filter(|pod| old.is_none_or(|old| old.uid != pod.uid));
            let leads = |pod: &Pod| holder == Some(format!("{}_{}", pod.name, pod.uid));
            others.find(leads).ok_or(format!("{holder:?}"))
        })
        .await
    }

    /// Waits until the Foo's status reports this number of available replicas.
    async fn available(&self, name: &str, replicas: i32) {
        let foos: Api<Foo> = Api::default_namespaced(self.client.clone());
        eventually(DEADLINE, "the status follows", async || {
            let status = foos.get(name).await.unwrap().status;
            let available = status.and_then(|status| status.available_replicas);
            if available == Some(replicas) {
                Ok(())
            } else {
                Err(available)
            }
        })
        .await;
    }
}

impl Pod {
    /// Returns the process ID of the controller in the pod.
    fn process(&self) -> Pid {
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
        let mut found = processes.filter_map(|entry| {
            let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            let ours = read("comm").trim() == NAME && read("cgroup").contains(&self.uid);
            ours.then(|| entry.file_name().to_str().unwrap().parse().unwrap())
        });
        Pid::from_raw(found.next().expect("the pod's process")).unwrap()
    }

    /// Returns the resident memory of the process in bytes.
    fn resident(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process().as_raw_nonzero());
        let status = fs::read_to_string(status).unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    /// Returns the log, or the error. A restarting container has no log for a moment.
    async fn log(&self) -> Result<String, String> {
        let logs = format!("kubectl logs -n {NAMESPACE} {}", self.name);
        let (said, there) = try_run(&logs).await;
        if there { Ok(said) } else { Err(said) }
    }

    /// Waits for a log line that contains `text`, and returns the first one.
    async fn logs(&self, text: &str) -> String {
        eventually(DEADLINE, &format!("the log says {text:?}"), async || {
            let log = self.log().await?;
            let mut lines = log.lines().filter(|line| line.contains(text));
            lines.next().map(str::to_owned).ok_or(log.clone())
        })
        .await
    }
}

/// Load of ten new Foos per second. Their pods fit no node, so that only the controller has work.
struct Load {
    client: Client,
    namespace: String,
    began: Timestamp,
    /// Start of the measurement: the controller is at work.
    at_work: Timestamp,
    stop: oneshot::Sender<()>,
    task: JoinHandle<usize>,
}

impl Load {
    async fn start(installation: &Installation) -> Self {
        let client = installation.client.clone();
        let namespace = format!("load-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let selector = [(
            "scheduler.alpha.kubernetes.io/node-selector",
            "runs=nowhere",
        )];
        let mut new = Namespace::default();
        new.metadata.name = Some(namespace.clone());
        new.metadata.annotations = Some(selector.map(|(k, v)| (k.into(), v.into())).into());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &new)
            .await
            .unwrap();
        let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
        let (stop, mut stopped) = oneshot::channel();
        let (prefix, began) = (namespace.clone(), Timestamp::now());
        let task = tokio::spawn(async move {
            let mut arrivals = interval(Duration::from_millis(100));
            let mut count = 0;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                arrivals.tick().await;
                let new = foo(&format!("{prefix}-{count}"));
                foos.create(&PostParams::default(), &new).await.unwrap();
                count += 1;
            }
            count
        });
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        eventually(DEADLINE, "the controller is at work", async || {
            let count = deployments.list(&ListParams::default()).await.unwrap();
            match count.items.len() {
                10.. => Ok(()),
                count => Err(count),
            }
        })
        .await;
        Self {
            client,
            namespace,
            began,
            at_work: Timestamp::now(),
            stop,
            task,
        }
    }

    /// Stops the load, and waits until every Foo has converged. Reports the longest delay of a Deployment. Fails if it exceeds
    /// `promised` and [`SLACK`].
    async fn stop(self, what: &str, promised: Duration) {
        self.stop.send(()).unwrap();
        let count = self.task.await.unwrap();
        let foos: Api<Foo> = Api::namespaced(self.client.clone(), &self.namespace);
        let deployments: Api<Deployment> = Api::namespaced(self.client, &self.namespace);
        eventually(DEADLINE, "I3: every Foo is right", async || {
            let all = ListParams::default();
            let foos = foos.list(&all).await.unwrap().items;
            let deployments = deployments.list(&all).await.unwrap().items;
            let mut wrong = invariants::unsettled(&foos, &deployments, STAND_IN);
            wrong.truncate(5);
            if wrong.is_empty() { Ok(()) } else { Err(wrong) }
        })
        .await;
        // The next test starts with an empty cluster.
        let namespace = self.namespace;
        run(&format!("kubectl delete foos --all -n {namespace}")).await;
        eventually(DEADLINE, "the load is gone", async || {
            let left = run(&format!(
                "kubectl get deployments,pods -n {namespace} -o name"
            ))
            .await;
            if left.is_empty() {
                Ok(())
            } else {
                Err(left.lines().count())
            }
        })
        .await;
        let delays = delays(&audit());
        let before = longest(&delays, (self.began, self.at_work));
        let longest = longest(&delays, (self.at_work, Timestamp::now()));
        let millis = longest.as_millis();
        let figure = format!(
            "longest wait of {count} Foos {millis} ms (promised: {promised:?}; before: {} ms)",
            before.as_millis()
        );
        report(what, &figure);
        assert!(longest <= promised + SLACK, "{what}: {figure}");
        if promised == ORDERLY {
            orderly(longest.saturating_sub(before));
        }
    }
}

/// Checks that the median of the added delays of all tests so far is within [`ORDERLY`]. The tests run in one process.
fn orderly(added: Duration) {
    static ADDED: Mutex<Vec<Duration>> = Mutex::new(Vec::new());
    let mut all = ADDED.lock().unwrap();
    all.push(added);
    if all.len() > 2 {
        assert!(median(&all) <= ORDERLY, "{all:?}");
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_empty_cluster_has_two_small_replicas_within_seconds() {
    let what = format!("apply to both replicas Ready (promised: {INSTALLED:?})");
    let mut took = Vec::new();
    for _ in 0..3 {
        PLAIN.delete().await;
        let begin = Instant::now();
        PLAIN.apply().await;
        rolled_out().await;
        took.push(report_time(&what, begin));
    }
    assert!(median(&took) <= INSTALLED, "{took:?}");

    let installation = PLAIN.install().await;
    let pods = installation.pods().await;
    assert_eq!(pods.len(), 2);
    assert!(pods.iter().all(|pod| pod.ready), "{pods:?}");
    let leader = installation.leader(None).await;
    leader.logs("started workers").await;
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/foo-controller-metrics:http");
    let metrics = run(&format!("kubectl get --raw {service}/proxy/metrics")).await;
    assert!(metrics.contains("\n# TYPE "), "{metrics}");
    // Limit of the container: 384Mi.
    let limit = "\nfoo_controller_memory_limit_bytes 402653184\n";
    assert!(metrics.contains(limit), "{metrics}");
    // Idle, apart from Lease renewals and probes.
    sleep(Duration::from_secs(5)).await;
    for pod in pods {
        let role = if pod.uid == leader.uid {
            "leader"
        } else {
            "standby"
        };
        let resident = pod.resident();
        report(
            &format!("idle {role}"),
            &format!("{} KiB resident", resident / 1024),
        );
        assert!(resident <= IDLE, "{role}: {resident}");
    }
    assert_invariants();
}

/// Returns the configuration of the image under test.
async fn image() -> Value {
    let archive = node().join("images/under-test.tar");
    let read = async |file: &str| {
        let json = run(&format!("tar xOf {} {file}", archive.display())).await;
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let manifest = read("manifest.json").await;
    read(manifest[0]["Config"].as_str().unwrap()).await["config"].take()
}

/// Returns the bucket bounds of each histogram, as in a scrape.
fn bounds(metrics: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut bounds = BTreeMap::<_, BTreeSet<_>>::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, rest)) = line.split_once('{')
            && let Some((_, rest)) = rest.split_once("le=\"")
        {
            let (bound, _) = rest.split_once('"').unwrap();
            bounds.entry(name).or_default().insert(bound);
        }
    }
    bounds
}

/// The image runs the commit of its label, and serves the same metrics as cargo's build of the same source.
#[tokio::test]
#[ignore = "make e2e"]
async fn the_image_matches_the_build_of_cargo() {
    let installation = PLAIN.install().await;
    let built = Controller::spawn(|command| {
        command.args(["--master", "http://127.0.0.1:1"]);
    });
    let metrics = format!("curl -sSf http://{}/metrics", built.http_addr().await);
    let metrics = run(&metrics).await;
    let expected = bounds(&metrics);
    assert!(expected.len() >= 3, "{expected:?}");

    let labels = &image().await["Labels"];
    let commit = labels["org.opencontainers.image.revision"].as_str();
    let version = match commit {
        Some(commit) => format!("{NAME} {} ({commit})\n", env!("CARGO_PKG_VERSION")),
        None => format!("{NAME} {}\n", env!("CARGO_PKG_VERSION")),
    };
    report("the image", version.trim());
    for pod in installation.pods().await {
        let exec = format!("kubectl exec -n {NAMESPACE} {} --", pod.name);
        assert_eq!(run(&format!("{exec} /proc/1/exe --version")).await, version);
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy",
            pod.name
        );
        let checks = run(&format!("kubectl get --raw {path}/readyz?verbose")).await;
        assert!(checks.contains("\n[+]informer-sync ok\n"), "{checks}");
        let metrics = run(&format!("kubectl get --raw {path}/metrics")).await;
        let said = promtool(&["check", "metrics"], &metrics).await;
        assert_eq!(said.as_deref(), Ok(""));
        assert_eq!(bounds(&metrics), expected);
    }
    for (name, bounds) in expected {
        report(&format!("bounds of {name}"), &format!("{bounds:?}"));
    }
    assert_invariants();
}

/// The image trusts public authorities only, not this collector. The controller logs that and continues to work. With an
/// additional authority in `SSL_CERT_DIR`, all three signals arrive.
#[tokio::test]
#[ignore = "make e2e"]
async fn telemetry_uses_tls_with_the_authorities_of_the_image() {
    let collector = Collector::start_tls_at(NODE_ADDRESS).await;
    let endpoint = json!({
        "name": "FOO_CONTROLLER__TELEMETRY__ENDPOINT", "value": collector.endpoint(),
    });
    let strange = Overlay {
        container: json!({"env": [endpoint]}),
        ..PLAIN
    };
    let installation = strange.install().await;
    for pod in installation.pods().await {
        assert_eq!((pod.ready, pod.restarts), (true, 0));
        pod.logs("not issued by a configured certificate authority")
            .await;
    }
    let received = collector.received();
    assert_eq!((received.spans.len(), received.logs.len()), (0, 0));

    let ca = collector.ca();
    run(&format!(
        "kubectl create configmap authority -n {NAMESPACE} --from-file={}",
        ca.display()
    ))
    .await;
    let folder = "/etc/authorities";
    let known = Overlay {
        container: json!({
            "env": [
                endpoint,
                {"name": "SSL_CERT_DIR", "value": folder},
                {"name": "OTEL_METRIC_EXPORT_INTERVAL", "value": "500"},
            ],
            "volumeMounts": [{"name": "authority", "mountPath": folder}],
        }),
        pod: json!({"volumes": [{"name": "authority", "configMap": {"name": "authority"}}]}),
        ..PLAIN
    };
    known.install().await;
    let all = |received: &Received| {
        let arrived = !received.spans.is_empty() && !received.logs.is_empty();
        (arrived && !received.metrics.is_empty()).then_some(())
    };
    collector.wait_for("traces, logs and metrics", all).await;
    report("OTLP over TLS by the image's own trust", "all signals");
    PLAIN.install().await;
    run(&format!(
        "kubectl delete configmap authority -n {NAMESPACE}"
    ))
    .await;
    assert_invariants();
}

/// `OpenShift` assigns user IDs to each namespace, and the group 0.
#[tokio::test]
#[ignore = "make e2e"]
async fn the_image_works_as_any_user() {
    let user = 1_000_680_000;
    let assigned = Overlay {
        pod: json!({"securityContext": {"runAsUser": user, "runAsGroup": 0, "fsGroup": user}}),
        ..PLAIN
    };
    let installation = assigned.install().await;
    for pod in installation.pods().await {
        assert_eq!((pod.ready, pod.restarts), (true, 0));
        let status = format!("/proc/{}/status", pod.process().as_raw_nonzero());
        let status = fs::read_to_string(status).unwrap();
        assert!(status.contains(&format!("\nUid:\t{user}\t")), "{status}");
    }
    PLAIN.install().await;
    assert_invariants();
}

/// docs/telemetry.md: a new log level needs no restart. The program itself sends the signal, because its image contains no
/// other program.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_running_pod_adopts_a_changed_log_level() {
    let installation = PLAIN.install().await;
    let pod = installation.leader(None).await;
    let (name, process) = (&pod.name, pod.process().as_raw_nonzero());
    let map = run(&format!(
        "kubectl get pod -n {NAMESPACE} {name} -o=jsonpath={{.spec.volumes[?(@.name==\"config\")].configMap.name}}"
    ))
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(installation.client.clone(), NAMESPACE);
    let mut data = maps.get(&map).await.unwrap().data.unwrap();
    let config = data.get_mut("foo-controller.toml").unwrap();
    *config = config.replace("level = \"info\"", "level = \"debug\"");
    let patch = Patch::Merge(json!({"data": data}));
    let patched = maps.patch(&map, &PatchParams::default(), &patch).await;
    patched.unwrap();
    // The kubelet updates the mounted file when it next syncs the pod: once a minute, or when the pod changes.
    let mounted = format!("/proc/{process}/root/etc/foo-controller/foo-controller.toml");
    let mut changes = 0;
    eventually(DEADLINE, "the pod has the new file", async || {
        changes += 1;
        let note = format!("kubectl annotate pod -n {NAMESPACE} {name} --overwrite n={changes}");
        run(&note).await;
        let mounted = fs::read_to_string(&mounted).unwrap();
        mounted
            .contains("level = \"debug\"")
            .then_some(())
            .ok_or(())
    })
    .await;
    run(&format!(
        "kubectl exec -n {NAMESPACE} {name} -- /proc/1/exe reload"
    ))
    .await;
    let found = run(&format!(
        "kubectl exec -n {NAMESPACE} {name} -- /proc/1/exe doctor"
    ))
    .await;
    assert!(found.contains("permissions in all namespaces"), "{found}");
    let said = pod.logs("applied the configured log.level").await;
    assert!(said.contains("debug"), "{said}");
    let pods = installation.pods().await;
    assert!(pods.iter().all(|pod| pod.restarts == 0), "{pods:?}");
    PLAIN.install().await;
    assert_invariants();
}

/// docs/operations.md, "Findings of doctor": inside a pod, `doctor` reports the state of that pod, even if other clients may not
/// read it.
#[tokio::test]
#[ignore = "make e2e"]
async fn doctor_reports_the_state_of_its_pod() {
    const RBAC: &str = "deploy/components/metrics-auth/rbac.yaml";
    let configs: [&'static [&'static str]; 2] = [
        &["debug_state = true"],
        &["debug_state = true", "metrics_auth = true"],
    ];
    for config in configs {
        let is_open = config.len() == 1;
        if !is_open {
            run(&format!("kubectl apply -f {RBAC}")).await;
        }
        let installation = Overlay { config, ..PLAIN }.install().await;
        let leader = installation.leader(None).await;
        for pod in installation.pods().await {
            let doctor = format!(
                "kubectl exec -n {NAMESPACE} {} -- /proc/1/exe doctor",
                pod.name
            );
            let role = if pod.uid == leader.uid {
                "leads for "
            } else {
                "stands by; "
            };
            let found = run(&doctor).await;
            let mut lines = found.lines();
            assert!(
                lines.any(|line| line.contains(" its Lease ") && line.contains(role)),
                "{found}"
            );
            let path = format!(
                "/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy",
                pod.name
            );
            let (said, shown) = try_run(&format!("kubectl get --raw {path}/debug/state")).await;
            assert_eq!(shown, is_open, "{said}");
        }
    }
    PLAIN.install().await;
    run(&format!("kubectl delete -f {RBAC}")).await;
    assert_invariants();
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_foo_gets_pods_that_are_deleted_with_it() {
    let installation = PLAIN.install().await;
    let begin = Instant::now();
    run("kubectl apply -f config/samples/foo.yaml").await;
    run("kubectl wait --for=condition=Ready foo/foo-sample --timeout=60s").await;
    report_time("a Foo applied to Ready", begin);
    installation.available("foo-sample", 1).await;
    let begin = Instant::now();
    run("kubectl scale foo/foo-sample --replicas=3").await;
    installation.available("foo-sample", 3).await;
    report_time("scaled to 3, all available", begin);
    let running =
        "kubectl get pods -l controller=foo-sample --field-selector=status.phase=Running -o name";
    assert_eq!(run(running).await.lines().count(), 3);
    let begin = Instant::now();
    run("kubectl delete foo/foo-sample").await;
    sample_gone().await;
    report_time("deleted, and its pods gone", begin);
    assert_invariants();
}

/// Waits until the sample's Deployment and pods are deleted.
async fn sample_gone() {
    run("kubectl wait --for=delete deployment/foo-sample --timeout=60s").await;
    run("kubectl wait --for=delete pod -l controller=foo-sample --timeout=60s").await;
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_leaders_pod_is_deleted() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let old = installation.leader(None).await;
    run(&format!("kubectl delete pod {} -n {NAMESPACE}", old.name)).await;
    installation.leader(Some(&old)).await;
    rolled_out().await;
    load.stop("leader's pod deleted", ORDERLY).await;
    assert_invariants();
}

/// The container restarts in the same pod, with the identity that holds the Lease.
#[tokio::test]
#[ignore = "make e2e"]
async fn the_leaders_container_is_killed() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let leader = installation.leader(None).await;
    kill_process(leader.process(), Signal::KILL).unwrap();
    eventually(DEADLINE, "it is Ready again", async || {
        let pods = installation.pods().await;
        let back = |pod: &Pod| pod.uid == leader.uid && pod.ready && pod.restarts > leader.restarts;
        if pods.iter().any(back) {
            Ok(())
        } else {
            Err(pods)
        }
    })
    .await;
    let lease = Config::shipped(&APP).leader_election.lease_duration;
    load.stop("leader's container killed", lease).await;
    assert_invariants();
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_kubelet_is_restarted() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let (leader, before) = (installation.leader(None).await, installation.pods().await);
    let file = node().join("kubelet.pid");
    let kubelet = || Pid::from_raw(fs::read_to_string(&file).ok()?.trim().parse().ok()?);
    let old = kubelet().unwrap();
    kill_process(old, Signal::TERM).unwrap();
    let started = eventually(DEADLINE, "a new kubelet", async || match kubelet() {
        Some(new) if new != old => Ok(Timestamp::now()),
        other => Err(other),
    })
    .await;
    let leases: Api<Lease> = Api::namespaced(installation.client.clone(), "kube-node-lease");
    eventually(DEADLINE, "it reports", async || {
        let lease = leases.get("node-1").await.unwrap();
        match lease.spec.and_then(|spec| spec.renew_time) {
            Some(renewed) if renewed.0 > started => Ok(()),
            other => Err(other),
        }
    })
    .await;
    run("kubectl wait --for=condition=Ready node/node-1 --timeout=60s").await;
    load.stop("kubelet restarted", ORDERLY).await;
    assert_eq!(installation.leader(None).await.uid, leader.uid);
    for pod in installation.pods().await {
        let same = |old: &Pod| (&old.uid, old.restarts) == (&pod.uid, pod.restarts);
        assert!(before.iter().any(same), "{pod:?}");
    }
    assert_invariants();
}

/// A firewall rule that drops all packets from a pod to the API server.
struct Cut(String);

impl Cut {
    async fn off(pod: &Pod) -> Self {
        let rule = format!("INPUT -s {} -p tcp --dport 6443 -j DROP", pod.ip);
        run(&format!("iptables -I {rule}")).await;
        Self(rule)
    }

    async fn heal(self) {
        run(&format!("iptables -D {}", self.0)).await;
    }
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_leaders_network_is_cut() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let old = installation.leader(None).await;
    let begin = Instant::now();
    let cut = Cut::off(&old).await;
    installation.leader(Some(&old)).await;
    report_time("leader cut off, another leads after", begin);
    // The old leader keeps trying to write.
    sleep(Duration::from_secs(3)).await;
    cut.heal().await;
    let lease = Config::shipped(&APP).leader_election.lease_duration;
    load.stop("leader cut off", lease).await;
    let lost = old.logs("lost the lease").await;
    println!("  {lost}");
    eventually(DEADLINE, "it stands by again", async || {
        let log = old.log().await?;
        let (_, since) = log.split_once("lost the lease").unwrap();
        if since.contains("standing by") {
            Ok(())
        } else {
            Err(since.to_owned())
        }
    })
    .await;
    assert_invariants();
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_rollout_restart_causes_no_delay() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let before = installation.pods().await;
    let begin = Instant::now();
    run(&format!(
        "kubectl rollout restart deployment/{NAME} -n {NAMESPACE}"
    ))
    .await;
    rolled_out().await;
    report_time("rollout restart", begin);
    replaced(&installation, &before).await;
    load.stop("rollout restart", ORDERLY).await;
    assert_invariants();
}

/// Waits until all these pods are deleted and a new pod leads.
async fn replaced(installation: &Installation, before: &[Pod]) {
    eventually(DEADLINE, "all pods are new", async || {
        let old = installation.pods().await.into_iter();
        let old: Vec<_> = old
            .filter(|pod| before.iter().any(|old| old.uid == pod.uid))
            .collect();
        if old.is_empty() { Ok(()) } else { Err(old) }
    })
    .await;
    installation.leader(None).await;
}

/// The previous image is the same code under another tag, since there is no previous release yet.
#[tokio::test]
#[ignore = "make e2e"]
async fn an_upgrade_and_a_rollback_cause_no_delay() {
    let (image, previous) = (IMAGE, format!("{NAME}:previous"));
    let tag = format!(
        "ctr -n k8s.io images tag --force docker.io/library/{image} docker.io/library/{previous}"
    );
    run(&tag).await;
    let old = Overlay {
        tag: "previous",
        ..PLAIN
    };
    let installation = old.install().await;
    let runs = async |image: &str| {
        let pods = installation.pods().await;
        let right = pods.len() == 2 && pods.iter().all(|pod| pod.image == image);
        assert!(right, "{image}: {pods:?}");
    };
    let load = Load::start(&installation).await;
    let before = installation.pods().await;
    PLAIN.apply().await;
    rolled_out().await;
    replaced(&installation, &before).await;
    load.stop("upgraded by apply -k", ORDERLY).await;
    runs(image).await;

    let load = Load::start(&installation).await;
    let before = installation.pods().await;
    run(&format!(
        "kubectl rollout undo deployment/{NAME} -n {NAMESPACE}"
    ))
    .await;
    rolled_out().await;
    replaced(&installation, &before).await;
    load.stop("rolled back by rollout undo", ORDERLY).await;
    runs(&previous).await;
    assert_invariants();
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_changed_configuration_rolls_out_and_back() {
    let installation = PLAIN.install().await;
    let said = async || {
        installation
            .leader(None)
            .await
            .logs("\"started workers\"")
            .await
    };
    assert!(said().await.contains(r#""workers":2,"resync":"30s""#));

    let before = installation.pods().await;
    let changed = Overlay {
        config: &["workers = 5", "resync = \"45s\""],
        ..PLAIN
    };
    changed.apply().await;
    rolled_out().await;
    replaced(&installation, &before).await;
    assert!(said().await.contains(r#""workers":5,"resync":"45s""#));

    let before = installation.pods().await;
    run(&format!(
        "kubectl rollout undo deployment/{NAME} -n {NAMESPACE}"
    ))
    .await;
    rolled_out().await;
    replaced(&installation, &before).await;
    assert!(said().await.contains(r#""workers":2,"resync":"30s""#));
    assert_invariants();
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_broken_configuration_does_not_stop_running_pods() {
    let installation = PLAIN.install().await;
    let load = Load::start(&installation).await;
    let before = installation.pods().await;
    let broken = Overlay {
        config: &["workers = 0"],
        ..PLAIN
    };
    broken.apply().await;
    let new = eventually(DEADLINE, "a new pod fails", async || {
        let pods = installation.pods().await;
        let failed = |pod: &&Pod| pod.restarts > 0 && !before.iter().any(|old| old.uid == pod.uid);
        pods.iter().find(failed).cloned().ok_or(pods)
    })
    .await;
    let log = eventually(DEADLINE, "it says why", async || match new.log().await? {
        log if log.ends_with('\n') => Ok(log),
        log => Err(log),
    })
    .await;
    report("a broken configuration", log.trim());
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.starts_with("error: ") && log.contains("workers"),
        "{log}"
    );
    let pods = installation.pods().await;
    for old in &before {
        let ready = |pod: &Pod| pod.uid == old.uid && pod.ready && pod.restarts == old.restarts;
        assert!(pods.iter().any(ready), "{pods:?}");
    }
    load.stop("a broken configuration", ORDERLY).await;
    PLAIN.install().await;
    assert_invariants();
}

/// A deposed pod still has a valid token.
#[tokio::test]
#[ignore = "make e2e"]
async fn production_rejects_a_deposed_pods_write() {
    let production = Overlay {
        base: "deploy/overlays/production",
        ..PLAIN
    };
    run("kubectl apply -f deploy/crd.yaml").await;
    let installation = production.install().await;
    assert_eq!(installation.pods().await.len(), 3);
    run("kubectl apply -f config/samples/foo.yaml").await;
    run("kubectl wait --for=condition=Ready foo/foo-sample --timeout=60s").await;

    let write = async |pod: &Pod| {
        let process = pod.process().as_raw_nonzero();
        let token = "root/var/run/secrets/kubernetes.io/serviceaccount/token";
        let token = fs::read_to_string(format!("/proc/{process}/{token}")).unwrap();
        let mut config = kube::Config::infer().await.unwrap();
        config.auth_info = AuthInfo {
            token: Some(token.into()),
            ..AuthInfo::default()
        };
        let deployments: Api<Deployment> = Api::default_namespaced(config.try_into().unwrap());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"written": "by-hand"}}}));
        let patched = deployments
            .patch("foo-sample", &PatchParams::default(), &patch)
            .await;
        patched.map(drop).map_err(|error| match error {
            kube::Error::Api(status) => status.message,
            other => other.to_string(),
        })
    };
    let old = installation.leader(None).await;
    write(&old).await.unwrap();
    kill_process(old.process(), Signal::STOP).unwrap();
    let new = installation.leader(Some(&old)).await;
    // The policy learns of the new holder with a delay.
    let refused = eventually(DEADLINE, "the API server refuses", async || {
        write(&old).await.err().ok_or("taken")
    })
    .await;
    kill_process(old.process(), Signal::CONT).unwrap();
    report("a deposed pod's write", &refused);
    let holds = format!("\"{}_{}\"", new.name, new.uid);
    assert!(
        refused.contains("foo-controller-fencing") && refused.contains(&holds),
        "{refused}"
    );
    write(&new).await.unwrap();

    run("kubectl delete foo/foo-sample").await;
    sample_gone().await;
    assert_invariants();
    production.delete().await;
}

/// docs/operations.md, "Uninstall".
#[tokio::test]
#[ignore = "make e2e"]
async fn uninstalling_leaves_the_foos_unless_the_crd_goes() {
    PLAIN.install().await;
    run("kubectl apply -f config/samples/foo.yaml").await;
    run("kubectl wait --for=condition=Ready foo/foo-sample --timeout=60s").await;
    let pods = "kubectl get pods -l controller=foo-sample -o=jsonpath={.items[*].metadata.uid}";
    let before = run(pods).await;
    let base = Overlay {
        base: "deploy/base",
        ..PLAIN
    };
    base.delete().await;
    run("kubectl get foo/foo-sample").await;
    run("kubectl wait --for=condition=Available deployment/foo-sample --timeout=60s").await;

    let installation = PLAIN.install().await;
    assert_eq!(run(pods).await, before);
    run("kubectl scale foo/foo-sample --replicas=2").await;
    installation.available("foo-sample", 2).await;

    PLAIN.delete().await;
    let begin = Instant::now();
    sample_gone().await;
    report_time("uninstalled with the CRD, Foos' pods gone after", begin);
    let (said, there) = try_run("kubectl get foos").await;
    assert!(!there, "{said}");
    assert_invariants();
}
