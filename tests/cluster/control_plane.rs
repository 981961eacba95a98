//! The processes of a control plane: their flags, their order, their end.

use std::{
    collections::BTreeMap,
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

use crate::{
    Result,
    ready::{Ready, bound_command},
};

const APISERVER: &str = "kube-apiserver";
/// The name of the second one's log and kubeconfig.
const SECOND: &str = "kube-apiserver-2";
const USERS: [&str; 8] = [
    "admin",
    "replica-1",
    "replica-2",
    "replica-3",
    "replica-4",
    "bench-1",
    "bench-2",
    "bench-load",
];
const START_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(20);

/// A control plane in a folder of its own.
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
    /// Writes what the programs in the folder `bin` read at their start.
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
        // An API server appends to a log that is there; two of them share this one.
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

    /// Starts everything and waits until it serves.
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
                // The data does not outlive the machine, so it need not survive its crash.
                "--unsafe-no-fsync".into(),
            ],
        )?;
        self.start_apiserver().await?;
        if self.controllers {
            self.start_controllers().await?;
        }
        Ok(())
    }

    /// Starts the API server, on the port and the data that it had before, and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.start_apiserver_as(APISERVER, self.ports.apiserver(), "admin", &[])
            .await
    }

    /// Starts another API server on the same data, as one more behind a load balancer, with these flags more, and waits until
    /// it is ready.
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
            // No pod is told where it is; and of 127.0.0.1, none may be from 1.37 on.
            "--endpoint-reconciler-type=none".into(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", self.path("pki")),
            format!("--token-auth-file={}", self.path("tokens.csv")),
            "--authorization-mode=RBAC".into(),
            "--service-cluster-ip-range=10.0.0.0/16".into(),
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
            // Megabytes: a log that turned over would hide what a checker looks for.
            flags.push("--audit-log-maxsize=100000".into());
        }
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        self.spawn(name, APISERVER, &flags)?;
        let config = Kubeconfig::read_from(self.kubeconfig(kubeconfig))?;
        let started = Instant::now();
        // A failing answer contains "ok", too: it is ready when it says nothing else.
        while readyz(&config).await.ok().as_deref() != Some("ok") {
            self.check(started)?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Kills the API server as a crash would.
    pub async fn kill_apiserver(&mut self) -> Result<()> {
        let mut child = self
            .children
            .remove(APISERVER)
            .ok_or("the API server does not run")?;
        Ok(child.kill().await?)
    }

    /// Stops (SIGSTOP) or continues (SIGCONT) the API server: connections stay open, nothing answers.
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

    /// Kills everything and removes the folder.
    pub async fn stop(mut self) {
        for child in self.children.values_mut() {
            // It may have ended by itself; either way it is gone afterwards.
            let _ = child.kill().await;
        }
    }

    /// What there is to know about this control plane.
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
        // Nothing asks them for their own metrics; the API server should be what limits a thousand Deployments, not these.
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
        // kwok's node may go longer without a sign of life than a real one, and its pods never get Ready again.
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
        // As a kubelet labels its own.
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

    /// Fails when a process has ended, with its last words, or when starting takes too long.
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
            // A terminal's Ctrl-C is for the supervisor to answer.
            .process_group(0)
            // kwok and client-go look for files of the user there.
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
            "clusters": [{"name": "foo-controller", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": self.path("pki/apiserver.crt"),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "foo-controller", "context": {"cluster": "foo-controller", "user": user}}],
            "current-context": "foo-controller",
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
    // It is on loopback, whatever the environment names.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

async fn readyz(config: &Kubeconfig) -> Result<String> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    Ok(client(config).await?.request_text(request).await?)
}

/// The folder of the programs: `build.sh` beside this file builds them, the first time, and prints it.
pub fn programs() -> Result<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/build.sh");
    let output = Command::new(&build)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{} failed", build.display()).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}

/// The key that signs the tokens of service accounts, and its public half, which the API server wants in a file of its own.
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

/// The end of a program's log.
fn last_words(dir: &Path, name: &str) -> String {
    let log = fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A folder under the system's temporary one that is removed when this is dropped. A lock in it shows that it is in use.
struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    const PREFIX: &str = "foo-controller-cluster-";

    fn new() -> Result<Self> {
        Self::sweep()?;
        let path = tempfile::Builder::new()
            .prefix(Self::PREFIX)
            // It holds tokens.
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()?
            .keep();
        // The lock appears under its name only once it is held, so that a sweep never finds it free.
        let lock = File::create_new(path.join("new-lock"))?;
        lock.lock()?;
        fs::rename(path.join("new-lock"), path.join("lock"))?;
        Ok(Self { path, _lock: lock })
    }

    /// Removes the folders of supervisors that were killed.
    fn sweep() -> Result<()> {
        for entry in fs::read_dir(std::env::temp_dir())? {
            let path = entry?.path();
            let ours = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(Self::PREFIX.as_bytes()));
            if ours && File::open(path.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
                // Another supervisor may be at it, too.
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

/// Five loopback ports in a row, below those that the kernel gives to outgoing connections. The first is held as long as
/// this lives, which keeps other supervisors away from all five; then etcd's two and one for each API server.
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
