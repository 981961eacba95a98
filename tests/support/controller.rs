//! The real controller as a child process: `mod controller;` beside `mod cluster;`. It ends with its test, and a failed test
//! prints its log.

use std::{
    ffi::OsStr,
    fs::File,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use operator_testkit::cluster::{Cluster, bound_command, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit for a log line and for the exit.
const DEADLINE: Duration = Duration::from_secs(30);

/// Running controller, killed on drop.
pub struct Controller {
    child: Child,
    home: TempDir,
}

impl Controller {
    /// Starts the controller against `cluster`. `args` override the settings of [`Self::spawn`].
    pub fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::spawn(|command| {
            command.env("KUBECONFIG", cluster.kubeconfig()).args(args);
        })
    }

    /// Starts the controller with the command as changed by `with`. Environment variables disable leader election, set the log
    /// format to text and choose a free HTTP port. Flags override them. `$HOME` is an empty directory, so only `with` can
    /// specify a cluster.
    pub fn spawn(with: impl FnOnce(&mut Command)) -> Self {
        Self::spawn_program(env!("CARGO_BIN_EXE_foo-controller"), with)
    }

    /// Like [`Self::spawn`], with another controller program.
    pub fn spawn_program(program: impl AsRef<OsStr>, with: impl FnOnce(&mut Command)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut command = bound_command(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "false")
            .env("FOO_CONTROLLER__LOG__FORMAT", "text")
            .env("FOO_CONTROLLER__HTTP__ADDR", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(home.path().join("log")).unwrap());
        with(&mut command);
        let child = command.spawn().unwrap();
        Self { child, home }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// Returns how many lines of the log so far contain `text`.
    pub fn logged(&self, text: &str) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    /// Waits for a log line that contains `text`, and returns the first.
    pub async fn wait_for_log(&self, text: &str) -> String {
        eventually(DEADLINE, &format!("the log says {text:?}"), async || {
            let log = self.log();
            let complete = log.split_inclusive('\n').filter(|l| l.ends_with('\n'));
            let mut lines = complete.filter(|line| line.contains(text));
            lines.next().map(|l| l.trim_end().to_owned()).ok_or(())
        })
        .await
    }

    /// Waits for the address of the HTTP server. Needs the text log format.
    pub async fn http_addr(&self) -> SocketAddr {
        self.logged_addr(" addr=").await
    }

    /// Waits for the address of the metrics server with TLS. Needs the text log format.
    pub async fn metrics_addr(&self) -> SocketAddr {
        self.logged_addr("metrics_addr=").await
    }

    async fn logged_addr(&self, field: &str) -> SocketAddr {
        let line = self.wait_for_log(field).await;
        let (_, addr) = line.split_once(field).unwrap();
        addr.split(' ').next().unwrap().parse().unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends SIGTERM and returns the exit code.
    pub async fn stop(&mut self) -> i32 {
        self.signal(Signal::TERM);
        self.exit_code().await
    }

    /// Waits for the exit code; `128 + n` if signal n ended the process.
    pub async fn exit_code(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = eventually(DEADLINE, "the controller ends", async || {
            self.child.try_wait().unwrap().ok_or(())
        })
        .await;
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let from = log
                .rmatch_indices('\n')
                .nth(200)
                .map_or(0, |(at, _)| at + 1);
            eprintln!("--- log of the controller ---\n{}", &log[from..]);
        }
    }
}
