//! A real OpenTelemetry Collector for a test: `mod collector;` beside `mod cluster;`, then [`Collector::start`]. Point the
//! controller at [`Collector::endpoint`] and look at what has arrived with [`Collector::wait_for`]. What a real collector
//! cannot be made to do on demand, a [`Mock`] does.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(
    unused_imports,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test uses its part of this, fails by panicking, and shows the log then"
)]

mod balancer;
mod mock;
mod page;
mod received;
mod trace;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use crate::cluster::{bound_command, eventually};

pub use balancer::Balancer;
pub use mock::{Behaviour, Mock, WORDS};
pub use page::page;
pub use received::{
    Attributes, Data, Event, Exemplar, Kind, Link, LogRecord, Metric, Origin, Point, Points,
    Received, Span, Status,
};
pub use trace::Trace;

/// How long the collector may take to start or end, and telemetry to arrive.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where one listens by default.
const LOOPBACK: &str = "127.0.0.1";

/// Who has to have a certificate.
#[derive(Clone, Copy, PartialEq)]
enum Tls {
    Nobody,
    Server,
    Both,
}

/// A collector, running or stopped; dropped, it is gone. It ends with the thread that started it.
pub struct Collector {
    program: PathBuf,
    folder: TempDir,
    host: &'static str,
    tls: Tls,
    /// Configuration over the usual.
    more: Option<PathBuf>,
    /// 0 until the first start has found a free one.
    port: u16,
    /// How often it was started: each run has a folder of its own, named by its number.
    runs: u32,
    child: Option<Child>,
}

impl Collector {
    /// Starts one on a free loopback port, and waits until it takes OTLP there (a minute where it is to be built).
    pub async fn start() -> Self {
        Self::new(LOOPBACK, Tls::Nobody, None).await
    }

    /// The same, with this configuration over the usual.
    pub async fn start_with(config: &Path) -> Self {
        Self::new(LOOPBACK, Tls::Nobody, Some(config.to_owned())).await
    }

    /// Starts one that takes nothing but TLS, with a certificate of [`Self::ca`] for `localhost` and `127.0.0.1`.
    pub async fn start_tls() -> Self {
        Self::start_tls_at(LOOPBACK).await
    }

    /// The same, at another address of this machine's, for which its certificate is good, too.
    pub async fn start_tls_at(host: &'static str) -> Self {
        Self::new(host, Tls::Server, None).await
    }

    /// The same, but it talks to nobody without a certificate of [`Self::ca`], such as [`Self::client`]'s.
    pub async fn start_mutual_tls() -> Self {
        Self::new(LOOPBACK, Tls::Both, None).await
    }

    async fn new(host: &'static str, tls: Tls, more: Option<PathBuf>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if tls != Tls::Nobody {
            write_certificates(folder.path(), host);
        }
        let mut collector = Self {
            program: program(),
            folder,
            host,
            tls,
            more,
            port: 0,
            runs: 0,
            child: None,
        };
        collector.restart().await;
        collector
    }

    /// Starts it again, on the same port, after [`Self::stop`] or [`Self::kill`]; what it had received stays.
    pub async fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.runs += 1;
        fs::create_dir(self.run(self.runs)).unwrap();
        self.child = Some(self.command().spawn().unwrap());
        self.port = eventually(DEADLINE, "the collector listens", async || {
            let log = self.log();
            let address = log.split_once(&format!("\"endpoint\": \"{}:", self.host));
            let ready = log.contains("Everything is ready");
            match address.and_then(|(_, rest)| rest.split_once('"')) {
                Some((port, _)) if ready => Ok(port.parse().unwrap()),
                _ => Err(log),
            }
        })
        .await;
    }

    fn command(&self) -> Command {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collector");
        let run = self.run(self.runs);
        let mut command = bound_command(&self.program);
        command
            .arg("--config")
            .arg(here.join("collector.yaml"))
            .env("COLLECTOR_HOST", self.host)
            .env("COLLECTOR_PORT", self.port.to_string())
            .env("COLLECTOR_FOLDER", &run)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(run.join("log")).unwrap());
        if let Some(more) = &self.more {
            command.arg("--config").arg(more);
        }
        if self.tls != Tls::Nobody {
            command
                .arg("--config")
                .arg(here.join("tls.yaml"))
                .env("COLLECTOR_CERTIFICATE", self.path("server.crt"))
                .env("COLLECTOR_KEY", self.path("server.key"));
        }
        if self.tls == Tls::Both {
            command
                .arg("--config")
                .arg(here.join("mutual-tls.yaml"))
                .env("COLLECTOR_CA", self.path("ca.crt"));
        }
        command
    }

    /// Its address, `http://HOST:PORT`, or `https` if it was started so.
    pub fn endpoint(&self) -> String {
        let scheme = if self.tls == Tls::Nobody {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    /// The file of the authority that signed its certificate, in PEM.
    pub fn ca(&self) -> PathBuf {
        assert!(self.tls != Tls::Nobody, "Collector::start_tls");
        self.path("ca.crt")
    }

    /// Makes other certificates of another authority, at the same paths. It has its own at its next start.
    pub fn rotate(&self) {
        assert!(self.tls != Tls::Nobody, "Collector::start_tls");
        write_certificates(self.folder.path(), self.host);
    }

    /// The files of a client's certificate and its key, in PEM.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        assert!(self.tls == Tls::Both, "Collector::start_mutual_tls");
        (self.path("client.crt"), self.path("client.key"))
    }

    /// Asks it to stop (SIGTERM), which writes what it still has, and waits for its end.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut child = self.child.take().unwrap();
        eventually(DEADLINE, "the collector ends", async || {
            child.try_wait().unwrap().ok_or(())
        })
        .await;
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Makes it stand still: connections stay open, nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // Its threads go on for a while on a busy machine.
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// What has arrived so far, over all starts.
    pub fn received(&self) -> Received {
        let mut all = Received::default();
        for run in 1..=self.runs {
            all.extend(Received::read(&self.run(run)));
        }
        all
    }

    /// What `probe` finds in what has arrived, waited for; panics with `what` and an overview of it at the deadline.
    pub async fn wait_for<T>(&self, what: &str, probe: impl Fn(&Received) -> Option<T>) -> T {
        eventually(DEADLINE, what, async || {
            let received = self.received();
            probe(&received).ok_or_else(|| received.overview())
        })
        .await
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.run(self.runs).join("log")).unwrap()
    }

    fn run(&self, number: u32) -> PathBuf {
        self.path(&number.to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("a collector that runs");
        Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the collector ---\n{}", self.log());
        }
    }
}

/// The collector's program: `build.sh` builds it, the first time, and prints it.
fn program() -> PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/collector/build.sh");
    let mut command = Command::new(build);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{build} failed");
    String::from_utf8(output.stdout).unwrap().trim_end().into()
}

/// Writes an authority's certificate, `ca.crt`, and two that it signed, `server.crt` and `client.crt` with their keys.
fn write_certificates(folder: &Path, host: &str) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&key).unwrap();
    let issuer = Issuer::new(authority, key);
    write_pem(&folder.join("ca.crt"), "CERTIFICATE", ca.der());

    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost", LOOPBACK, host].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let file = |extension| folder.join(who).with_extension(extension);
        write_pem(&file("crt"), "CERTIFICATE", certificate.der());
        write_pem(&file("key"), "PRIVATE KEY", &key.serialize_der());
    }
}

fn write_pem(file: &Path, tag: &str, der: &[u8]) {
    fs::write(file, pem::encode(&pem::Pem::new(tag, der))).unwrap();
}
