//! A controller as a process, and what it uses: time and memory by `/proc`, bytes by its sockets, requests by the API
//! server's audit log.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    cluster::{AuditEvent, Cluster, bound_command},
    release_folder,
    report::Side,
};

/// How many Foos a controller reconciles at once.
const WORKERS: &str = "16";

/// `USER_HZ`, in which Linux counts every process's times.
const TICKS_PER_SECOND: f64 = 100.0;

/// At rest a process has used no more than one tick in this time.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long a process may take to come to rest, or to end.
const DEADLINE: Duration = Duration::from_mins(10);

/// A running controller; dropped, it is killed.
pub struct Subject {
    child: Child,
    user: &'static str,
    sockets: Arc<Sockets>,
    home: TempDir,
}

impl Subject {
    /// Starts it as this user, with more flags if need be. It has to be elected before it works.
    pub fn start(
        cluster: &Cluster,
        side: Side,
        user: &'static str,
        resync: Duration,
        more: &[&str],
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = program(side);
        assert!(
            program.exists(),
            "no {}: `make bench` builds it",
            program.display()
        );
        let log = File::create(home.path().join("log")).unwrap();
        let child = bound_command(program)
            .args(["--workers", WORKERS])
            .args(["--resync".to_owned(), format!("{}s", resync.as_secs())])
            .args(more)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            // The other one serves nothing either; it has no such variable.
            .env("FOO_CONTROLLER__HTTP__ADDR", "")
            // Where the other one has its Lease.
            .env(
                "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE",
                "default",
            )
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

    /// Waits until it has nothing to do.
    pub async fn rest(&self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let before = self.cpu();
            sleep(INTERVAL).await;
            if self.cpu() - before < 1.5 / TICKS_PER_SECOND {
                return;
            }
            assert!(Instant::now() < deadline, "it does not come to rest");
        }
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    /// Asks it to stop, waits until it has (on its way out it exports what it still has), and returns its log.
    pub fn end(&mut self) -> String {
        self.terminate();
        self.child.wait().unwrap();
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// Seconds of processor time so far.
    fn cpu(&self) -> f64 {
        let stat = self.proc("stat");
        // After the name, which may contain anything: state is the third field, utime and stime the 14th and 15th.
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let ticks = |n: usize| fields[n - 3].parse::<f64>().unwrap();
        (ticks(14) + ticks(15)) / TICKS_PER_SECOND
    }

    /// A line of `/proc/PID/status`, in MiB.
    fn memory(&self, line: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
        let kib: f64 = line
            .trim_start_matches(':')
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib / 1024.0
    }

    fn proc(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.child.id());
        fs::read_to_string(path).expect("the controller runs")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(side: Side) -> PathBuf {
    release_folder().join(match side {
        Side::Ours => "foo-controller",
        Side::Peer => "bench-peer",
        Side::Bare => panic!("the bare server has no controller"),
    })
}

/// What a controller uses from one moment on.
pub struct Meter<'a> {
    cluster: &'a Cluster,
    subject: &'a Subject,
    cpu: f64,
    received: u64,
    requests: usize,
}

impl<'a> Meter<'a> {
    pub fn start(cluster: &'a Cluster, subject: &'a Subject) -> Self {
        // The peak of its memory is that from now on.
        fs::write(format!("/proc/{}/clear_refs", subject.child.id()), "5").unwrap();
        let received = subject.sockets.received();
        let requests = cluster.audit().len();
        Self {
            cluster,
            subject,
            cpu: subject.cpu(),
            received,
            requests,
        }
    }

    /// The same, of a controller that has just been started.
    pub fn of_all(cluster: &'a Cluster, subject: &'a Subject, requests: usize) -> Self {
        Self {
            cluster,
            subject,
            cpu: 0.0,
            received: 0,
            requests,
        }
    }

    /// What was used, by name.
    pub fn used(&self) -> Vec<(String, f64)> {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let mut used = vec![
            ("CPU, s".to_owned(), self.subject.cpu() - self.cpu),
            ("peak memory, MiB".to_owned(), self.subject.memory("VmHWM")),
            (
                "settled memory, MiB".to_owned(),
                self.subject.memory("VmRSS"),
            ),
            (
                "received, MiB".to_owned(),
                mib(self.subject.sockets.received() - self.received),
            ),
        ];
        let mut requests = BTreeMap::from([("requests".to_owned(), 0.0)]);
        for AuditEvent {
            verb,
            resource,
            subresource,
            ..
        } in self.requests()
        {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let kind = format!("requests: {verb} {resource}{slash}{subresource}");
            for count in [kind, "requests".to_owned()] {
                *requests.entry(count).or_default() += 1.0;
            }
        }
        used.extend(requests);
        used
    }

    /// The requests but those about its Lease, which it renews at its own pace. A watch is in the log when it is opened, and
    /// again when it ends.
    fn requests(&self) -> impl Iterator<Item = AuditEvent> {
        let asked = self.cluster.audit().into_iter().skip(self.requests);
        let user = self.subject.user;
        asked.filter(move |event| {
            let is_watch = event.verb == "watch";
            event.user == user
                && event.resource != "leases"
                && (event.stage == "ResponseStarted") == is_watch
        })
    }

    /// Seconds from getting the Lease to the first write under it.
    pub fn lease_to_write(&self) -> f64 {
        let user = self.subject.user;
        let asked: Vec<_> = self.cluster.audit();
        let writes = |resource: &str| {
            let mut writes = asked.iter().filter(|event| {
                event.user == user
                    && event.resource == resource
                    && event.code < 300
                    && matches!(&*event.verb, "create" | "update" | "patch")
            });
            writes.next().expect("a write").clone()
        };
        let (lease, first) = (writes("leases").reached.0, writes("deployments").received.0);
        first.duration_since(lease).as_secs_f64()
    }
}

/// The connections of a process to the API server, and what each has received: as it went over the wire, encrypted.
struct Sockets {
    pid: u32,
    port: String,
    received: Mutex<BTreeMap<String, u64>>,
}

impl Sockets {
    fn new(pid: u32, server: &str) -> Self {
        let port = server.rsplit(':').next().unwrap().to_owned();
        Self {
            pid,
            port,
            received: Mutex::default(),
        }
    }

    /// Counts every half second, so that of a connection that is closed little is missed.
    async fn look_often(sockets: std::sync::Weak<Self>) {
        while let Some(sockets) = sockets.upgrade() {
            sockets.count();
            drop(sockets);
            sleep(Duration::from_millis(500)).await;
        }
    }

    fn received(&self) -> u64 {
        self.count();
        self.received.lock().unwrap().values().sum()
    }

    fn count(&self) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", self.pid)) else {
            return;
        };
        let links = descriptors.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        let inodes: Vec<_> = links
            .filter_map(|link| {
                Some(
                    link.to_str()?
                        .strip_prefix("socket:[")?
                        .trim_end_matches(']')
                        .to_owned(),
                )
            })
            .collect();
        let output = Command::new("ss")
            .args(["-tinHOe", "dport", "=", &format!(":{}", self.port)])
            .output();
        let output = String::from_utf8(output.expect("ss, of iproute2").stdout).unwrap();
        for line in output.lines() {
            let field = |name: &str| {
                line.split_whitespace()
                    .find_map(|field| field.strip_prefix(name))
            };
            if let (Some(inode), Some(received)) = (field("ino:"), field("bytes_received:"))
                && inodes.iter().any(|ours| ours == inode)
            {
                self.received
                    .lock()
                    .unwrap()
                    .insert(inode.to_owned(), received.parse().unwrap());
            }
        }
    }
}
