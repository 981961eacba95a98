//! A real control plane for a test: `mod cluster;`, then [`shared`] for a namespace on the server that all tests of a file
//! share, or [`Cluster::start`] for a server that the test may break. The processes belong to the supervisor (the example
//! `cluster`), so that a test can end in any way and leave nothing.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

pub mod audit;
mod ready;

use std::{
    fmt::Debug,
    io::{self, BufRead, BufReader, Write},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout},
};

pub use audit::AuditEvent;
pub use ready::{Ready, bound_command};

/// What not every API server has, and which 1.x do; docs/operations.md has the tests that take it.
pub type Feature = (RangeInclusive<u32>, &'static str);
pub const MUTATING_POLICIES: Feature = (36..=u32::MAX, "MutatingAdmissionPolicy");
pub const STREAMED_LISTS: Feature = (34..=u32::MAX, "lists that are streamed");
pub const AS_SIMULATED: Feature = (36..=36, "the answers of the simulated API server");

/// How long a kubectl may take, which waits for ever for what is deleted.
const KUBECTL_TIMEOUT: Duration = Duration::from_mins(2);

/// What a control plane has beyond etcd and kube-apiserver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// An audit log, for [`Cluster::audit`].
    pub audit: bool,
    /// kube-controller-manager, kube-scheduler, and a kwok node whose pods become Ready a second after they are scheduled.
    pub controllers: bool,
}

/// A running control plane; dropped, it is gone.
pub struct Cluster {
    ready: Ready,
    supervisor: Arc<Mutex<Supervisor>>,
}

/// The control plane that tests share, without audit log and controllers. It ends with the process.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(Options::default()))
}

impl Cluster {
    /// Starts a control plane and waits (blocking, seconds; minutes where its programs are to be built) until it serves.
    pub fn start(options: Options) -> Self {
        let mut command = Command::new(supervisor());
        command.args(options.audit.then_some("--audit"));
        command.args(options.controllers.then_some("--controllers"));
        let (supervisor, ready) = Supervisor::start(command);
        Self {
            ready,
            supervisor: Arc::new(Mutex::new(supervisor)),
        }
    }

    /// What the supervisor reported of it; the API server's pid is the first one's.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// A kubeconfig of the user `admin`.
    pub fn kubeconfig(&self) -> &Path {
        &self.ready.kubeconfig
    }

    /// A kubeconfig of another of [`Ready::tokens`]' users.
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        assert!(self.ready.tokens.contains_key(user), "no user {user}");
        self.ready.dir.join(format!("{user}.kubeconfig"))
    }

    /// The configuration that [`Self::kubeconfig`] amounts to.
    pub async fn kube_config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.unwrap();
        // It is on loopback, whatever the environment names.
        config.proxy_url = None;
        config
    }

    /// A client of the user `admin`. It lives on the calling test's runtime: tests must not share one.
    pub async fn client(&self) -> Client {
        self.kube_config().await.try_into().unwrap()
    }

    /// Whether the API server has this. A test that takes it is left out where it has not, and says so past libtest's capture.
    pub async fn has(&self, (versions, what): Feature) -> bool {
        let version = self.client().await.apiserver_version().await.unwrap();
        let has = versions.contains(&version.minor.parse().unwrap());
        if !has {
            let (test, on) = (std::thread::current(), version.git_version);
            let test = test.name().unwrap_or("a test");
            let says = format!("{test} is left out on {on}, which has not {what}");
            let mut stderr = io::stderr();
            writeln!(stderr, "{says}").unwrap();
        }
        has
    }

    /// Creates a namespace whose name starts with `prefix` and nobody else has.
    pub async fn namespace(&self, prefix: &str) -> String {
        let name = format!(
            "{prefix}-{}",
            &uuid::Uuid::new_v4().simple().to_string()[..8]
        );
        let namespaces: Api<Namespace> = Api::all(self.client().await);
        let namespace = serde_json::json!({ "metadata": { "name": &name } });
        let namespace = serde_json::from_value(namespace).unwrap();
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.unwrap();
        name
    }

    /// Puts a Lease there that was held and released: replicas that come need not wait to take it, as they do where there
    /// is none (H12).
    pub async fn release_lease(&self, namespace: &str, name: &str) {
        let lease = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "leaseTransitions": 0,
                "acquireTime": "2020-01-01T00:00:00.000000Z",
                "renewTime": "2020-01-01T00:00:00.000000Z",
            },
        });
        let leases: Api<Lease> = Api::namespaced(self.client().await, namespace);
        let apply = PatchParams::apply("test").force();
        let applied = leases.patch(name, &apply, &Patch::Apply(&lease)).await;
        applied.unwrap();
    }

    /// Installs the CRD from `deploy/crd.yaml` and waits until the API server serves it.
    pub async fn install_crd(&self) {
        let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd.yaml");
        self.kubectl(&["apply", "-f", crd]).await.success();
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=30s",
            "-f",
            crd,
        ])
        .await
        .success();
    }

    /// Runs kubectl as `admin`.
    pub async fn kubectl(&self, args: &[&str]) -> Output {
        self.kubectl_stdin(args, "").await
    }

    /// Runs kubectl as `admin`, with `input` to read (`-f -`), for two minutes at most.
    pub async fn kubectl_stdin(&self, args: &[&str], input: &str) -> Output {
        let mut command = bound_command(self.ready.bin.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(args)
            // Its discovery cache would go there.
            .env("HOME", &self.ready.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let run = async {
            tokio::join!(
                async move { stdin.write_all(input.as_bytes()).await },
                child.wait_with_output(),
            )
        };
        let Ok((written, output)) = timeout(KUBECTL_TIMEOUT, run).await else {
            panic!(
                "not done after {KUBECTL_TIMEOUT:?}: kubectl {}",
                args.join(" ")
            );
        };
        // It may end without reading everything, or anything.
        let _ = written;
        let output = output.unwrap();
        Output {
            command: args.join(" "),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            status: output.status,
        }
    }

    /// The audit log so far; it takes [`Options::audit`]. A request is in it by the time that its answer arrives.
    pub fn audit(&self) -> Vec<AuditEvent> {
        let log = self.ready.audit_log.as_ref().expect("Options::audit");
        audit::parse(&std::fs::read_to_string(log).unwrap())
    }

    /// Starts a second API server on the same etcd, and returns the kubeconfig of the user `admin` there. It has caches and
    /// informers of its own; [`Self::audit`] has what both serve. The other commands are about the first one.
    pub async fn start_second_apiserver(&self) -> PathBuf {
        self.start_second_apiserver_with("").await
    }

    /// The same, with these flags more.
    pub async fn start_second_apiserver_with(&self, flags: &str) -> PathBuf {
        self.command(&format!("second {flags}")).await;
        self.ready.dir.join("kube-apiserver-2.kubeconfig")
    }

    /// Kills the API server, as a crash would.
    pub async fn kill_apiserver(&self) {
        self.command("kill").await;
    }

    /// Starts the killed API server again, on its port and with its data, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        self.command("start").await;
    }

    /// Makes the API server stand still: connections stay open, nothing answers.
    pub async fn freeze_apiserver(&self) {
        self.command("freeze").await;
    }

    /// Ends [`Self::freeze_apiserver`].
    pub async fn thaw_apiserver(&self) {
        self.command("thaw").await;
    }

    async fn command(&self, line: &str) {
        let (supervisor, line) = (self.supervisor.clone(), line.to_owned());
        // A thread of its own, so that what runs on the test's runtime goes on meanwhile.
        tokio::task::spawn_blocking(move || supervisor.lock().unwrap().command(&line))
            .await
            .unwrap();
    }
}

/// What a kubectl said.
#[derive(Debug)]
pub struct Output {
    command: String,
    pub stdout: String,
    pub stderr: String,
    pub status: ExitStatus,
}

impl Output {
    /// Its stdout; panics with its stderr when it failed.
    pub fn success(self) -> String {
        assert!(
            self.status.success(),
            "kubectl {}: {}",
            self.command,
            self.stderr
        );
        self.stdout
    }
}

/// The supervisor's process and its two pipes. Dropped, it ends, and its end is waited for.
pub struct Supervisor {
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts the given supervisor and waits until its control plane is ready.
    pub fn start(mut command: Command) -> (Self, Ready) {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut supervisor = Self {
            child,
            stdin,
            stdout,
        };
        let ready = supervisor.answer();
        (supervisor, serde_json::from_value(ready).unwrap())
    }

    fn command(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let answer = self.answer();
        assert!(answer.get("error").is_none(), "{line}: {answer}");
    }

    fn answer(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line)
            .expect("an answer of the supervisor, which says on stderr why there is none")
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// The supervisor's program.
pub fn supervisor() -> PathBuf {
    example("cluster")
}

/// An example's program, beside the test's own: `target/debug/examples/cluster`.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        path.exists(),
        "`cargo test --test integration` builds no examples: run `cargo build --workspace --example {name}` first"
    );
    path
}

/// Calls `probe` until it finds something, and returns that; panics with `what` and the last thing that `probe` saw instead
/// when it has found nothing by `deadline`.
pub async fn eventually<T, S: Debug>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    const POLL: Duration = Duration::from_millis(25);
    let end = Instant::now() + deadline;
    let mut last = None;
    loop {
        match tokio::time::timeout_at(end, probe()).await {
            Ok(Ok(found)) => return found,
            Ok(Err(seen)) => last = Some(seen),
            Err(tokio::time::error::Elapsed { .. }) => {}
        }
        assert!(
            Instant::now() < end,
            "{what}: not within {deadline:?}; last seen: {last:?}"
        );
        tokio::time::sleep(POLL).await;
    }
}
