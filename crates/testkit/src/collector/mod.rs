//! A real OpenTelemetry Collector for tests: start it with [`Collector::start`], export to [`Collector::endpoint`] and read the
//! telemetry with [`Collector::wait_for`]. A [`Mock`] imitates failures that a real collector cannot produce on demand. A
//! [`Receiver`] stands in for the collector where that is not built.

mod balancer;
mod mock;
mod page;
mod received;
mod receiver;
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
pub use receiver::Receiver;
pub use trace::Trace;

/// Time limit for a start, an exit and the arrival of telemetry.
const DEADLINE: Duration = Duration::from_secs(30);

/// Default listen address.
const LOOPBACK: &str = "127.0.0.1";

/// OTLP protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Grpc, Self::Http];

    /// Returns the value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http/protobuf",
        }
    }
}

/// Parties that need a certificate.
#[derive(Clone, Copy, PartialEq)]
enum Tls {
    Nobody,
    Server,
    Both,
}

/// Collector, running or stopped. It is killed on drop and when its starting thread ends.
pub struct Collector {
    program: PathBuf,
    folder: TempDir,
    host: &'static str,
    tls: Tls,
    /// Additional configuration file that overrides the default one.
    more: Option<PathBuf>,
    /// Ports for gRPC and HTTP; 0 until the first start has chosen free ones.
    ports: [u16; 2],
    /// Number of starts. Each run has its own directory, named by its number.
    runs: u32,
    child: Option<Child>,
}

impl Collector {
    /// Starts a collector on a free loopback port and waits until it accepts OTLP. Building it takes a minute.
    pub async fn start() -> Self {
        Self::new(LOOPBACK, Tls::Nobody, None).await
    }

    /// Like [`Self::start`], with a configuration file that overrides the default one.
    pub async fn start_with(config: &Path) -> Self {
        Self::new(LOOPBACK, Tls::Nobody, Some(config.to_owned())).await
    }

    /// Starts a collector that accepts only TLS, with a certificate of [`Self::ca`] for `localhost` and `127.0.0.1`.
    pub async fn start_tls() -> Self {
        Self::start_tls_at(LOOPBACK).await
    }

    /// Like [`Self::start_tls`], at another local address, which its certificate covers as well.
    pub async fn start_tls_at(host: &'static str) -> Self {
        Self::new(host, Tls::Server, None).await
    }

    /// Like [`Self::start_tls`], but clients need a certificate of [`Self::ca`], such as [`Self::client`].
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
            ports: [0; 2],
            runs: 0,
            child: None,
        };
        collector.restart().await;
        collector
    }

    /// Restarts it on the same ports after [`Self::stop`] or [`Self::kill`]. Received telemetry is kept.
    pub async fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.runs += 1;
        fs::create_dir(self.run(self.runs)).unwrap();
        self.child = Some(self.command().spawn().unwrap());
        self.ports = eventually(DEADLINE, "the collector listens", async || {
            let log = self.log();
            let port = |server: &str| -> Option<u16> {
                let line = log.lines().find(|line| line.contains(server))?;
                let (_, rest) = line.split_once(&format!("\"endpoint\": \"{}:", self.host))?;
                rest.split_once('"')?.0.parse().ok()
            };
            let ports = (port("Starting GRPC server"), port("Starting HTTP server"));
            let ready = log.contains("Everything is ready");
            match ports {
                (Some(grpc), Some(http)) if ready => Ok([grpc, http]),
                _ => Err(log),
            }
        })
        .await;
    }

    fn command(&self) -> Command {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/collector");
        let run = self.run(self.runs);
        let mut command = bound_command(&self.program);
        command
            .arg("--config")
            .arg(here.join("collector.yaml"))
            .env("COLLECTOR_HOST", self.host)
            .env("COLLECTOR_PORT", self.ports[0].to_string())
            .env("COLLECTOR_HTTP_PORT", self.ports[1].to_string())
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

    /// Returns its address for gRPC, `http://HOST:PORT`, or `https://HOST:PORT` with TLS.
    pub fn endpoint(&self) -> String {
        self.endpoint_of(Protocol::Grpc)
    }

    /// Returns its address for this protocol.
    pub fn endpoint_of(&self, protocol: Protocol) -> String {
        let scheme = if self.tls == Tls::Nobody {
            "http"
        } else {
            "https"
        };
        let [grpc, http] = self.ports;
        let port = match protocol {
            Protocol::Grpc => grpc,
            Protocol::Http => http,
        };
        format!("{scheme}://{}:{port}", self.host)
    }

    /// Returns the CA certificate file, in PEM.
    pub fn ca(&self) -> PathBuf {
        assert!(self.tls != Tls::Nobody, "Collector::start_tls");
        self.path("ca.crt")
    }

    /// Replaces all certificates with those of a new CA, at the same paths. The collector uses them from its next start.
    pub fn rotate(&self) {
        assert!(self.tls != Tls::Nobody, "Collector::start_tls");
        write_certificates(self.folder.path(), self.host);
    }

    /// Returns the client's certificate and key files, in PEM.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        assert!(self.tls == Tls::Both, "Collector::start_mutual_tls");
        (self.path("client.crt"), self.path("client.key"))
    }

    /// Sends SIGTERM and waits for the exit. The collector writes its remaining telemetry first.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut child = self.child.take().unwrap();
        eventually(DEADLINE, "the collector ends", async || {
            child.try_wait().unwrap().ok_or(())
        })
        .await;
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Freezes it: connections stay open without responses.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // On a busy machine its threads run for a while after the signal.
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Returns the telemetry of all runs so far.
    pub fn received(&self) -> Received {
        let mut all = Received::default();
        for run in 1..=self.runs {
            all.extend(Received::read(&self.run(run)));
        }
        all
    }

    /// Waits until `probe` finds something in the received telemetry, and returns it. Panics at the deadline with `what` and an
    /// overview.
    pub async fn wait_for<T>(&self, what: &str, probe: impl Fn(&Received) -> Option<T>) -> T {
        eventually(DEADLINE, what, async || {
            let received = self.received();
            probe(&received).ok_or_else(|| received.overview())
        })
        .await
    }

    /// Returns its log since the last start.
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

/// Returns the path of the collector. `build.sh` builds it on first use and prints the path.
fn program() -> PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/src/collector/build.sh");
    let mut command = Command::new(build);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{build} failed");
    String::from_utf8(output.stdout).unwrap().trim_end().into()
}

/// Writes the CA certificate `ca.crt`, and `server.crt` and `client.crt`, signed by it, with their keys.
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
