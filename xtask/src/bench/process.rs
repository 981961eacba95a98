//! Controller process.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

use super::{release_folder, report::Side, sockets::Sockets};
use operator_testkit::cluster::{Cluster, bound_command};

/// Concurrent reconciles of a controller.
pub const WORKERS: usize = 16;

/// A process is idle when it uses less than `AT_REST` seconds of CPU time in one interval.
const INTERVAL: Duration = Duration::from_millis(500);
const AT_REST: f64 = 0.015;

/// Time limit for a process to become idle or to exit.
const DEADLINE: Duration = Duration::from_mins(10);

/// Running controller, killed on drop.
pub struct Subject {
    child: Child,
    pub user: &'static str,
    pub sockets: Arc<Sockets>,
    home: TempDir,
}

impl Subject {
    /// Starts the controller as this user, with additional flags. The controller must win the election before it works.
    pub fn start(
        cluster: &Cluster,
        side: Side,
        user: &'static str,
        resync: Duration,
        more: &[&str],
    ) -> Self {
        let mut command = bound_command(program(side));
        command
            .env_clear()
            .args(["--workers".to_owned(), WORKERS.to_string()])
            .args(["--resync".to_owned(), format!("{}s", resync.as_secs())])
            .args(flags(side))
            .args(more)
            // The peer serves no HTTP either; it has no such variable.
            .env("FOO_CONTROLLER__HTTP__ADDR", "")
            // The peer's Lease namespace.
            .env(
                "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE",
                "default",
            );
        Self::spawn(cluster, command, user)
    }

    /// Starts a controller with its own flags and variables.
    pub fn spawn(cluster: &Cluster, mut command: Command, user: &'static str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let log = File::create(home.path().join("log")).unwrap();
        let child = command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let sockets = Arc::new(Sockets::new(child.id(), &cluster.ready().server));
        tokio::spawn(Sockets::look_often(Arc::downgrade(&sockets)));
        Self {
            child,
            user,
            sockets,
            home,
        }
    }

    /// Waits until the process is idle.
    pub async fn rest(&self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let before = self.cpu();
            sleep(INTERVAL).await;
            if self.cpu() - before < AT_REST {
                return;
            }
            assert!(Instant::now() < deadline, "it does not come to rest");
        }
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    /// Sends SIGTERM, waits for the exit and returns the log. The controller exports its remaining telemetry before it exits.
    pub fn end(&mut self) -> String {
        self.terminate();
        self.child.wait().unwrap();
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// Returns the CPU seconds of all threads. `schedstat` counts nanoseconds; `stat` counts only hundredths of a second.
    pub fn cpu(&self) -> f64 {
        let tasks = fs::read_dir(self.path("task")).expect("the controller runs");
        // A thread may have exited since the listing.
        let of_each = tasks.filter_map(|task| {
            let stat = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            let nanoseconds: u64 = stat.split(' ').next()?.parse().ok()?;
            Some(nanoseconds)
        });
        of_each.sum::<u64>() as f64 / 1e9
    }

    /// Resets the peak of the memory use.
    pub fn forget_peak(&self) {
        fs::write(self.path("clear_refs"), "5").unwrap();
    }

    /// Returns a line of `/proc/PID/status`, in MiB.
    pub fn memory(&self, line: &str) -> f64 {
        let status = fs::read_to_string(self.path("status")).expect("the controller runs");
        let line = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
        let kib: f64 = line
            .trim_start_matches(':')
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib / 1024.0
    }

    fn path(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.child.id()).into()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Name of the executable of [`Side::Shipped`], which `benches/shipped.sh` writes.
const SHIPPED: &str = "shipped";

/// Returns whether the program of the image is there.
pub fn has_shipped() -> bool {
    release_folder().join(SHIPPED).exists()
}

/// Returns the path of the executable of a side.
pub fn program(side: Side) -> PathBuf {
    built(match side {
        Side::Ours => "foo-controller",
        Side::Shipped => SHIPPED,
        Side::Tuned | Side::Defaults => "bench-peer",
        Side::KubeRs => "bench-kube-rs",
        Side::Bare => panic!("the bare server has no controller"),
    })
}

/// Returns the path of an executable beside this one.
pub fn built(name: &str) -> PathBuf {
    let program = release_folder().join(name);
    assert!(
        program.exists(),
        "no {}: `make bench` builds it",
        program.display()
    );
    program
}

fn flags(side: Side) -> &'static [&'static str] {
    match side {
        Side::Tuned => &["--tuned"],
        _ => &[],
    }
}
