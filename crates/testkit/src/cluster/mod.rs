//! A real control plane for tests. Use [`shared`] for a namespace on a server that all tests of a program share, or
//! [`Cluster::start`] for a server that the test may break. The supervisor (`xtask cluster`) owns the processes, so that no
//! process is left however a test ends.

pub mod audit;
pub mod control_plane;
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

use http::{HeaderName, HeaderValue};
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

/// Feature of some API servers, with the minor versions that have it. docs/operations.md lists the tests that need it.
pub type Feature = (RangeInclusive<u32>, &'static str);
pub const MUTATING_POLICIES: Feature = (36..=u32::MAX, "MutatingAdmissionPolicy");
pub const STREAMED_LISTS: Feature = (34..=u32::MAX, "lists that are streamed");
pub const AS_SIMULATED: Feature = (36..=36, "the messages of the simulated API server");

/// Time limit of a kubectl command. `kubectl delete` waits without limit until the object no longer exists.
const KUBECTL_TIMEOUT: Duration = Duration::from_mins(2);

/// Optional parts of a control plane, besides etcd and kube-apiserver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Audit log for [`Cluster::audit`].
    pub audit: bool,
    /// kube-controller-manager, kube-scheduler, and a kwok node whose pods become Ready one second after scheduling.
    pub controllers: bool,
}

/// Running control plane, stopped on drop.
pub struct Cluster {
    ready: Ready,
    supervisor: Arc<Mutex<Supervisor>>,
}

/// Returns the control plane that tests share, without audit log and controllers. It ends with the process.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(Options::default()))
}

impl Cluster {
    /// Starts a control plane and blocks until it is ready. This takes seconds, or minutes if its programs must be built.
    pub fn start(options: Options) -> Self {
        let mut command = supervisor();
        command.args(options.audit.then_some("--audit"));
        command.args(options.controllers.then_some("--controllers"));
        let (supervisor, ready) = Supervisor::start(command);
        Self {
            ready,
            supervisor: Arc::new(Mutex::new(supervisor)),
        }
    }

    /// Returns the supervisor's report. The pid of the API server is that of its first start.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Returns the kubeconfig of the user `admin`.
    pub fn kubeconfig(&self) -> &Path {
        &self.ready.kubeconfig
    }

    /// Returns the kubeconfig of another user of [`Ready::tokens`].
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        assert!(self.ready.tokens.contains_key(user), "no user {user}");
        self.ready.dir.join(format!("{user}.kubeconfig"))
    }

    /// Returns the client configuration from [`Self::kubeconfig`].
    pub async fn kube_config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.unwrap();
        // The server is on loopback: ignore proxy variables.
        config.proxy_url = None;
        config
    }

    /// Returns a client of the user `admin`. It runs on the calling test's runtime, so tests must not share it.
    pub async fn client(&self) -> Client {
        self.kube_config().await.try_into().unwrap()
    }

    /// Returns whether the API server has a feature. If not, logs on stderr that the test is skipped; libtest does not capture
    /// this.
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

    /// Creates a namespace with a unique name that starts with `prefix`.
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

    /// Creates a Lease that looks released, so that replicas may take it without a wait. Without a Lease they would wait for a
    /// lease duration.
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

    /// Installs `deploy/crd.yaml` and waits until the API server serves it.
    pub async fn install_crd(&self) {
        let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crd.yaml");
        self.install_crds(&std::fs::read_to_string(crd).unwrap())
            .await;
    }

    /// Installs CRDs, as YAML, and waits until the API server serves them.
    pub async fn install_crds(&self, crds: &str) {
        let wait = "wait --for=condition=Established --timeout=60s -f -";
        for command in ["apply -f -", wait] {
            let args: Vec<_> = command.split(' ').collect();
            self.kubectl_stdin(&args, crds).await.success();
        }
    }

    /// Runs kubectl as `admin`.
    pub async fn kubectl(&self, args: &[&str]) -> Output {
        self.kubectl_stdin(args, "").await
    }

    /// Runs kubectl as `admin` with `input` on stdin (`-f -`), for at most two minutes.
    pub async fn kubectl_stdin(&self, args: &[&str], input: &str) -> Output {
        let mut command = bound_command(self.ready.bin.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(args)
            // Location of its discovery cache.
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
        // kubectl may exit before it has read its input.
        let _ = written;
        let output = output.unwrap();
        Output {
            command: args.join(" "),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            status: output.status,
        }
    }

    /// Returns the audit log so far; needs [`Options::audit`]. A request is logged before its response arrives.
    pub fn audit(&self) -> Vec<AuditEvent> {
        let log = self.ready.audit_log.as_ref().expect("Options::audit");
        audit::parse(&std::fs::read_to_string(log).unwrap())
    }

    /// Starts a second API server on the same etcd and returns its kubeconfig for the user `admin`. It has separate caches and
    /// informers. [`Self::audit`] contains the requests to both. The other commands affect only the first.
    pub async fn start_second_apiserver(&self) -> PathBuf {
        self.start_second_apiserver_with("").await
    }

    /// Like [`Self::start_second_apiserver`], with additional flags.
    pub async fn start_second_apiserver_with(&self, flags: &str) -> PathBuf {
        self.command(&format!("second {flags}")).await;
        self.ready.dir.join("kube-apiserver-2.kubeconfig")
    }

    /// Kills the API server with SIGKILL.
    pub async fn kill_apiserver(&self) {
        self.command("kill").await;
    }

    /// Restarts the killed API server with its port and data, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        self.command("start").await;
    }

    /// Freezes the API server: connections stay open without responses.
    pub async fn freeze_apiserver(&self) {
        self.command("freeze").await;
    }

    /// Ends [`Self::freeze_apiserver`].
    pub async fn thaw_apiserver(&self) {
        self.command("thaw").await;
    }

    async fn command(&self, line: &str) {
        let (supervisor, line) = (self.supervisor.clone(), line.to_owned());
        // Blocks a separate thread, so that other tasks on the test's runtime continue.
        tokio::task::spawn_blocking(move || supervisor.lock().unwrap().command(&line))
            .await
            .unwrap();
    }
}

/// Returns the headers that impersonate a service account with a token that is bound to a pod. `account` is its user name.
pub fn as_pod(account: &str, pod: &str, uid: &str) -> [(HeaderName, HeaderValue); 3] {
    let value = |value: &str| HeaderValue::from_str(value).unwrap();
    let extra = |key: &str| {
        let name = format!("impersonate-extra-authentication.kubernetes.io%2f{key}");
        name.parse().unwrap()
    };
    [
        (HeaderName::from_static("impersonate-user"), value(account)),
        (extra("pod-name"), value(pod)),
        (extra("pod-uid"), value(uid)),
    ]
}

/// Result of a kubectl command.
#[derive(Debug)]
pub struct Output {
    command: String,
    pub stdout: String,
    pub stderr: String,
    pub status: ExitStatus,
}

impl Output {
    /// Returns stdout. Panics with stderr if the command failed.
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

/// Supervisor process with its two pipes. Drop closes stdin and waits for the exit.
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

/// Returns the command of the supervisor.
pub fn supervisor() -> Command {
    let mut command = Command::new(built("xtask"));
    command.arg("cluster");
    command
}

/// Returns the path of an example, such as `target/debug/examples/second_kind`.
pub fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

/// Returns the path of a program in the build directory. The calling program is in that directory, or is a test in `deps`.
fn built(program: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let folders = this.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join(program));
    paths.find(|path| path.exists()).unwrap_or_else(|| {
        panic!(
            "no {program}: run `make test-built`, or `cargo build --workspace --bins --examples`"
        )
    })
}

/// Calls `probe` until it returns `Ok`, and returns the value. Panics after `deadline` with `what` and the last error. Calls
/// follow each other after 25 ms at first, and after 250 ms at most: frequent probes take CPU time from the awaited processes.
pub async fn eventually<T, S: Debug>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    const SHORTEST: Duration = Duration::from_millis(25);
    const LONGEST: Duration = Duration::from_millis(250);
    let begin = Instant::now();
    let end = begin + deadline;
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
        tokio::time::sleep((begin.elapsed() / 8).clamp(SHORTEST, LONGEST)).await;
    }
}
