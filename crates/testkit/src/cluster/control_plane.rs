//! Processes of a control plane.

use std::{
    collections::BTreeMap,
    error::Error,
    fs::{self, File},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{process::Child, time::Instant};
use tokio_rustls::rustls;

use super::ready::{Ready, bound_command};

/// Result with an error message for the user.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const APISERVER: &str = "kube-apiserver";
/// Name of the second API server's log and kubeconfig.
const SECOND: &str = "kube-apiserver-2";
const USERS: [&str; 12] = [
    "admin",
    "replica-1",
    "replica-2",
    "replica-3",
    "replica-4",
    "replica-5",
    "replica-6",
    "replica-7",
    "replica-8",
    "bench-1",
    "bench-2",
    "bench-load",
];
const START_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(20);

/// Control plane with its own directory.
pub struct ControlPlane {
    bin: PathBuf,
    folder: Folder,
    ports: Ports,
    audit: bool,
    controllers: bool,
    tokens: BTreeMap<String, String>,
    children: BTreeMap<&'static str, Child>,
}

impl ControlPlane {
    /// Writes the configuration files of the programs in `bin`.
    pub fn new(bin: PathBuf, audit: bool, controllers: bool) -> Result<Self> {
        let folder = Folder::new()?;
        let ports = Ports::new()?;
        let tokens = USERS.map(|user| (user.to_owned(), uuid::Uuid::new_v4().to_string()));
        let dir = &folder.path;
        let lines = tokens
            .iter()
            .map(|(user, token)| format!("{token},{user},{user},system:masters\n"));
        fs::write(dir.join("tokens.csv"), lines.collect::<String>())?;
        fs::write(
            dir.join("audit-policy.yaml"),
            include_str!("audit-policy.yaml"),
        )?;
        // An API server appends to an existing log; both API servers share this one.
        if audit {
            File::create(dir.join("audit.log"))?;
        }
        write_service_account_key(dir)?;
        let plane = Self {
            bin,
            folder,
            ports,
            audit,
            controllers,
            tokens: tokens.into(),
            children: BTreeMap::new(),
        };
        for (user, token) in &plane.tokens {
            plane.write_kubeconfig(user, token, plane.ports.apiserver())?;
        }
        Ok(plane)
    }

    /// Starts all processes and waits until the control plane is ready.
    pub async fn start(&mut self) -> Result<()> {
        let etcd = self.ports.etcd();
        let peer = format!("http://127.0.0.1:{}", self.ports.base + 2);
        self.spawn(
            "etcd",
            "etcd",
            &[
                "--name=etcd".into(),
                format!("--data-dir={}", self.path("etcd")),
                format!("--listen-client-urls={etcd}"),
                format!("--advertise-client-urls={etcd}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=etcd={peer}"),
                // The data is discarded with the control plane, so it need not survive a machine crash.
                "--unsafe-no-fsync".into(),
            ],
        )?;
        self.start_apiserver().await?;
        if self.controllers {
            self.start_controllers().await?;
        }
        Ok(())
    }

    /// Starts the API server with its previous port and data, and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.start_apiserver_as(APISERVER, self.ports.apiserver(), "admin", &[])
            .await
    }

    /// Starts a second API server on the same data, with additional flags, and waits until it is ready.
    pub async fn start_second_apiserver(&mut self, flags: &[&str]) -> Result<()> {
        let port = self.ports.second_apiserver();
        self.write_kubeconfig(SECOND, &self.tokens["admin"], port)?;
        self.start_apiserver_as(SECOND, port, SECOND, flags).await
    }

    async fn start_apiserver_as(
        &mut self,
        name: &'static str,
        port: u16,
        kubeconfig: &str,
        more: &[&str],
    ) -> Result<()> {
        if self.children.contains_key(name) {
            return Err(format!("{name} runs already").into());
        }
        let mut flags = vec![
            format!("--etcd-servers={}", self.ports.etcd()),
            "--bind-address=127.0.0.1".into(),
            // No pod uses the endpoint; and from 1.37 on, 127.0.0.1 is rejected as an endpoint address.
            "--endpoint-reconciler-type=none".into(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", self.path("pki")),
            format!("--token-auth-file={}", self.path("tokens.csv")),
            "--authorization-mode=RBAC".into(),
            "--service-cluster-ip-range=10.0.0.0/16".into(),
            // As in most clusters.
            "--allow-privileged=true".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-signing-key-file={}", self.path("sa.key")),
            format!("--service-account-key-file={}", self.path("sa.pub")),
        ];
        if self.audit {
            flags.push(format!(
                "--audit-policy-file={}",
                self.path("audit-policy.yaml")
            ));
            flags.push(format!("--audit-log-path={}", self.path("audit.log")));
            flags.push("--audit-log-format=json".into());
            // In megabytes. A rotated log would hide events from the checker.
            flags.push("--audit-log-maxsize=100000".into());
        }
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        self.spawn(name, APISERVER, &flags)?;
        let config = Kubeconfig::read_from(self.kubeconfig(kubeconfig))?;
        let started = Instant::now();
        // The body of a failing response contains "ok" as well, so compare all of it.
        while readyz(&config).await.ok().as_deref() != Some("ok") {
            self.check(started)?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Kills the API server with SIGKILL.
    pub async fn kill_apiserver(&mut self) -> Result<()> {
        let mut child = self
            .children
            .remove(APISERVER)
            .ok_or("the API server does not run")?;
        Ok(child.kill().await?)
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) the API server. While it is stopped, connections stay open without responses.
    pub fn signal_apiserver(&mut self, signal: Signal) -> Result<()> {
        let pid = self
            .children
            .get(APISERVER)
            .and_then(Child::id)
            .ok_or("the API server does not run")?;
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or("not a pid")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills all processes and removes the directory.
    pub async fn stop(mut self) {
        for child in self.children.values_mut() {
            // It may have exited already.
            let _ = child.kill().await;
        }
    }

    /// Returns the description of this control plane.
    pub fn ready(&self) -> Ready {
        let pid = |(name, child): (&&str, &Child)| Some(((*name).to_owned(), child.id()?));
        Ready {
            kubeconfig: self.kubeconfig("admin"),
            server: self.ports.server(),
            tokens: self.tokens.clone(),
            pids: self.children.iter().filter_map(pid).collect(),
            audit_log: self.audit.then(|| self.folder.path.join("audit.log")),
            bin: self.bin.clone(),
            dir: self.folder.path.clone(),
        }
    }

    async fn start_controllers(&mut self) -> Result<()> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig("admin").display());
        // Metrics are not scraped. The rate limits must not slow down a thousand Deployments.
        let common = [
            kubeconfig.clone(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=1000".into(),
        ];
        self.spawn("kube-scheduler", "kube-scheduler", &common)?;
        let mut flags = common.to_vec();
        flags.push(format!(
            "--service-account-private-key-file={}",
            self.path("sa.key")
        ));
        flags.push(format!("--root-ca-file={}", self.path("pki/apiserver.crt")));
        // kwok's node may send heartbeats more rarely than a kubelet, and its pods would never become Ready again.
        flags.push("--node-monitor-grace-period=24h".into());
        self.spawn("kube-controller-manager", "kube-controller-manager", &flags)?;
        self.spawn(
            "kwok",
            "kwok",
            &[
                kubeconfig,
                format!("--config={}", self.bin.join("kwok-stages.yaml").display()),
                "--manage-all-nodes=true".into(),
            ],
        )?;

        let config = Kubeconfig::read_from(self.kubeconfig("admin"))?;
        let client = client(&config).await?;
        // As kubelet labels its node.
        let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
        let metadata = json!({"name": "kwok", "labels": labels});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        let create = http::Request::post("/api/v1/nodes").body(serde_json::to_vec(&node)?)?;
        client.request_text(create).await?;
        let started = Instant::now();
        loop {
            let get = http::Request::get("/api/v1/nodes/kwok").body(Vec::new())?;
            let node: serde_json::Value = client.request(get).await?;
            let ready = json!({"type": "Ready", "status": "True"});
            let conditions = node["status"]["conditions"].as_array();
            if conditions.is_some_and(|all| {
                all.iter()
                    .any(|one| one["type"] == ready["type"] && one["status"] == ready["status"])
            }) {
                return Ok(());
            }
            self.check(started)?;
            tokio::time::sleep(POLL).await;
        }
    }

    /// Fails if a process has exited or the start takes too long. The error contains the end of the logs.
    fn check(&mut self, started: Instant) -> Result<()> {
        for (name, child) in &mut self.children {
            if let Some(status) = child.try_wait()? {
                return Err(format!(
                    "{name} ended at its start ({status}):\n{}",
                    last_words(&self.folder.path, name)
                )
                .into());
            }
        }
        if started.elapsed() > START_DEADLINE {
            let words = self
                .children
                .keys()
                .map(|name| format!("{name}:\n{}", last_words(&self.folder.path, name)));
            return Err(format!(
                "not ready after {START_DEADLINE:?}\n{}",
                words.collect::<String>()
            )
            .into());
        }
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, program: &str, flags: &[String]) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.path.join(format!("{name}.log")))?;
        let mut command = bound_command(self.bin.join(program));
        command
            .args(flags)
            // The supervisor handles Ctrl-C of a terminal.
            .process_group(0)
            // kwok and client-go read files of the user there.
            .env("HOME", &self.folder.path)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()?;
        self.children.insert(name, child);
        Ok(())
    }

    fn write_kubeconfig(&self, user: &str, token: &str, port: u16) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testkit", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": self.path("pki/apiserver.crt"),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testkit", "context": {"cluster": "testkit", "user": user}}],
            "current-context": "testkit",
        });
        Ok(fs::write(
            self.kubeconfig(user),
            serde_json::to_vec_pretty(&config)?,
        )?)
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        self.folder.path.join(format!("{user}.kubeconfig"))
    }

    fn path(&self, name: &str) -> String {
        self.folder.path.join(name).display().to_string()
    }
}

async fn client(config: &Kubeconfig) -> Result<Client> {
    let mut config =
        Config::from_custom_kubeconfig(config.clone(), &KubeConfigOptions::default()).await?;
    // The server is on loopback: ignore proxy variables.
    config.proxy_url = None;
    // rustls has no default if the tests are built with a second TLS library.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(Client::try_from(config)?)
}

async fn readyz(config: &Kubeconfig) -> Result<String> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    Ok(client(config).await?.request_text(request).await?)
}

/// Returns the directory of the programs. `build.sh` beside this file builds them on first use and prints the path.
pub fn programs() -> Result<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cluster/build.sh");
    let output = Command::new(&build)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{} failed", build.display()).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}

/// Writes the key that signs service account tokens, and its public key, which the API server needs in a separate file.
fn write_service_account_key(dir: &Path) -> Result<()> {
    // SubjectPublicKeyInfo of an uncompressed point on P-256 (RFC 5480): the point follows.
    const SPKI: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
        .map_err(|_| "no key generated")?;
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random)
        .map_err(|error| error.to_string())?;
    let public = [SPKI, pair.public_key().as_ref()].concat();
    fs::write(
        dir.join("sa.key"),
        pem::encode(&pem::Pem::new("PRIVATE KEY", key.as_ref())),
    )?;
    fs::write(
        dir.join("sa.pub"),
        pem::encode(&pem::Pem::new("PUBLIC KEY", public)),
    )?;
    Ok(())
}

/// Returns the end of a program's log.
fn last_words(dir: &Path, name: &str) -> String {
    let log = fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Temporary directory that is removed on drop. A lock file in it shows that it is in use.
pub struct Folder {
    pub path: PathBuf,
    _lock: File,
}

impl Folder {
    const PREFIX: &str = "testkit-cluster-";

    /// Creates a directory that only this user can read.
    ///
    /// # Errors
    /// The directory for temporary files is not writable.
    pub fn new() -> Result<Self> {
        Self::sweep()?;
        let path = tempfile::Builder::new()
            .prefix(Self::PREFIX)
            // It contains tokens.
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()?
            .keep();
        // The lock file is renamed only after it is locked, so that a sweep never finds it unlocked.
        let lock = File::create_new(path.join("new-lock"))?;
        lock.lock()?;
        fs::rename(path.join("new-lock"), path.join("lock"))?;
        Ok(Self { path, _lock: lock })
    }

    /// Removes the directories of killed supervisors.
    fn sweep() -> Result<()> {
        for entry in fs::read_dir(std::env::temp_dir())? {
            let path = entry?.path();
            let ours = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(Self::PREFIX.as_bytes()));
            if ours && File::open(path.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
                // Another supervisor may be removing it as well.
                let _ = fs::remove_dir_all(path);
            }
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Five consecutive loopback ports below the kernel's range for outgoing connections. The first stays bound for the lifetime of
/// this value, which reserves all five against other supervisors. etcd has the next two, and each API server one.
struct Ports {
    base: u16,
    _held: TcpListener,
}

impl Ports {
    fn new() -> Result<Self> {
        let start = uuid::Uuid::new_v4().as_u128() % 2500;
        for n in 0..2500 {
            let base = 20_000 + 5 * u16::try_from((start + n) % 2500)?;
            let bind = |port| TcpListener::bind(("127.0.0.1", port));
            if let Ok(held) = bind(base)
                && (base + 1..=base + 4).all(|port| bind(port).is_ok())
            {
                return Ok(Self { base, _held: held });
            }
        }
        Err("no free ports on 127.0.0.1".into())
    }

    fn etcd(&self) -> String {
        format!("http://127.0.0.1:{}", self.base + 1)
    }

    fn apiserver(&self) -> u16 {
        self.base + 3
    }

    fn second_apiserver(&self) -> u16 {
        self.base + 4
    }

    fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.apiserver())
    }
}
