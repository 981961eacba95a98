//! The OpenTelemetry Collector of the tests, which here counts what it receives and throws it away.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cluster::{bound_command, eventually};

/// How long it may take to start.
const DEADLINE: Duration = Duration::from_secs(30);

/// A running collector; dropped, it is killed.
pub struct Collector {
    child: Child,
    home: TempDir,
    pub endpoint: String,
}

impl Collector {
    pub async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = bound_command(root.join("tests/collector/build.sh"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let program = String::from_utf8(built.stdout).unwrap();
        let child = bound_command(program.trim_end())
            .arg("--config")
            .arg(root.join("tests/collector/collector.yaml"))
            .arg("--config")
            .arg(root.join("benches/collector.yaml"))
            .env("COLLECTOR_FOLDER", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut collector = Self {
            child,
            home,
            endpoint: String::new(),
        };
        collector.endpoint = eventually(DEADLINE, "the collector listens", async || {
            let log = collector.log();
            let address = numbers(&log, "\"endpoint\": \"127.0.0.1:").next();
            match address {
                Some(port) if log.contains("Everything is ready") => {
                    Ok(format!("http://127.0.0.1:{port}"))
                }
                _ => Err(log),
            }
        })
        .await;
        collector
    }

    /// Ends it; returns how many spans it has received.
    pub fn stop(mut self) -> u32 {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap();
        numbers(&self.log(), "\"spans\": ").sum()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers that follow this in a text.
fn numbers(text: &str, before: &str) -> impl Iterator<Item = u32> {
    text.split(before).skip(1).map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    })
}
