//! Standard error that is not read: the controller continues to work, counts lost lines, and exits in time.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe},
    net::SocketAddr,
    process::Command,
    thread,
    time::Duration,
};

use operator_testkit::{
    cluster::eventually,
    proxy::{At, Proxy},
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    controller::Controller,
    foos::{self, with_pods},
};

const DEADLINE: Duration = Duration::from_mins(1);

/// A controller whose log is not captured. Its address is therefore chosen in advance.
struct Scene {
    controller: Controller,
    namespace: String,
    addr: SocketAddr,
}

impl Scene {
    async fn new(name: &str, with: impl FnOnce(&mut Command)) -> Self {
        let cluster = with_pods().await;
        let namespace = cluster.namespace(name).await;
        // This port was free a moment ago, and no other process on this machine is likely to take it.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let controller = Controller::spawn(|command| {
            command
                .env("KUBECONFIG", cluster.kubeconfig())
                .env("FOO_CONTROLLER__HTTP__ADDR", addr.to_string())
                .args(["--namespace", &namespace, "--resync=1h"]);
            with(command);
        });
        Self {
            controller,
            namespace,
            addr,
        }
    }

    /// Creates Foos, and waits for their Deployments.
    async fn works(&self, prefix: &str, count: usize) {
        let client = with_pods().await.client().await;
        let names = foos::names(prefix, count);
        foos::create(&client, &self.namespace, &names).await;
        foos::converged(&client, &self.namespace, &names).await;
    }

    async fn get(&self, path: &str) -> Result<String, std::io::Error> {
        let mut stream = TcpStream::connect(self.addr).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Waits until at least this many lines are lost, and returns their number.
    async fn lost(&self, least: u64) -> u64 {
        eventually(DEADLINE, "lost lines", async || {
            let metrics = self
                .get("/metrics")
                .await
                .map_err(|error| error.to_string())?;
            let name = "foo_controller_log_lines_lost_total ";
            let lost = metrics.lines().find_map(|line| line.strip_prefix(name));
            let lost: u64 = lost.ok_or("no such metric")?.parse().unwrap();
            if lost >= least {
                Ok(lost)
            } else {
                Err(format!("{lost} lost"))
            }
        })
        .await
    }
}

/// Returns a pipe that is always full.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // Ends when the reader is dropped.
    thread::spawn(move || while filler.write_all(&[b'\n'; 1 << 12]).is_ok() {});
    (reader, writer)
}

/// Standard error is a full pipe, a pipe without a reader, or a full disk. Foos get their Deployments, and SIGTERM ends the
/// process with exit code 0.
#[tokio::test]
async fn an_unread_log_does_not_stop_the_controller() {
    let (full, writer) = full_pipe();
    let gone = pipe().unwrap().1;
    let disk = File::options().write(true).open("/dev/full").unwrap();
    for (name, stderr) in [
        ("full", writer.into()),
        ("gone", gone.into()),
        ("disk", disk.into()),
    ] {
        let mut scene = Scene::new("stderr", |command| {
            let stderr: std::process::Stdio = stderr;
            command.stderr(stderr);
        })
        .await;
        scene.works(name, 5).await;
        if name != "full" {
            scene.lost(1).await;
        }
        assert_eq!(scene.controller.stop().await, 0, "{name}");
    }
    drop(full);
}

/// The second signal ends the process in spite of running work and a full pipe.
#[tokio::test]
async fn a_second_signal_ends_it_although_the_log_is_stuck() {
    let cluster = with_pods().await;
    let proxy = Proxy::start(cluster.kube_config().await).await;
    let mut create = proxy.on("create", "deployments").hold(At::Server);
    let (_full, writer) = full_pipe();
    let mut scene = Scene::new("second", |command| {
        command
            .args(["--master", &proxy.url(), "--shutdown-timeout=1h"])
            .stderr(writer);
    })
    .await;
    let client = cluster.client().await;
    foos::create(&client, &scene.namespace, &["held".to_owned()]).await;
    create.arrived().await;
    scene.controller.signal(Signal::TERM);
    // Two signals in quick succession may be delivered as one. The first was received once the replica is not Ready.
    eventually(DEADLINE, "it stops", async || {
        let ready = scene
            .get("/readyz")
            .await
            .map_err(|error| error.to_string())?;
        if ready.starts_with("HTTP/1.1 503 ") {
            Ok(())
        } else {
            Err(ready)
        }
    })
    .await;
    scene.controller.signal(Signal::TERM);
    assert_eq!(scene.controller.exit_code().await, 1);
}

/// Lines are lost only while the pipe is not read. Each line is complete, a report counts the lines lost before it, and the
/// last line arrives.
#[tokio::test]
async fn a_log_that_is_read_again_reports_lost_lines() {
    let (reader, writer) = pipe().unwrap();
    let mut scene = Scene::new("again", |command| {
        command
            .arg("--log-level=trace,hyper_util=trace")
            .stderr(writer);
    })
    .await;
    scene.works("first", 1).await;
    // Each API request logs several lines.
    let mut lost = 0;
    for round in 0..50 {
        if lost == 0 {
            scene.works(&format!("more-{round}"), 10).await;
            lost = scene.lost(0).await;
        }
    }
    assert!(lost > 0, "nothing is lost");
    let reading = thread::spawn(move || {
        let lines = BufReader::new(reader).lines();
        lines.map(Result::unwrap).collect::<Vec<_>>()
    });
    scene.works("then", 1).await;
    assert_eq!(scene.controller.stop().await, 0);
    let lines = reading.join().unwrap();
    let reports: Vec<u64> = lines
        .iter()
        .filter(|line| line.contains("lines of this log were lost"))
        .map(|line| line.rsplit_once(" lines=").unwrap().1.parse().unwrap())
        .collect();
    assert!(
        reports.iter().sum::<u64>() >= lost,
        "{reports:?} for {lost}"
    );
    for line in &lines {
        assert!(line.starts_with("20") && line.contains('Z'), "{line}");
    }
    // A library may trace its shutdown after the last line.
    let end = lines.iter().rev().find(|line| !line.contains(" TRACE "));
    assert!(end.unwrap().contains("INFO stopped"), "{end:?}");
}
