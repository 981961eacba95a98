//! Three replicas as real processes on one control plane, and users that create and change Foos.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use foo_controller::api::Foo;
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    config::{KubeConfigOptions, Kubeconfig},
};
use operator_simulation::invariants::{self, Election, FENCING_HOLDER};
use operator_testkit::{
    cluster::{Cluster, eventually},
    proxy::{At, Proxy},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{
        Semaphore,
        oneshot::{self, error::TryRecvError},
    },
    task::{JoinHandle, JoinSet},
    time::{interval, sleep, timeout},
};

use crate::support::{
    controller::Controller,
    fencing,
    foos::{audited_alone, create, foo, names},
};

/// Time limit of waits that are not measured. On a slow machine Foos arrive faster than they are reconciled, and wait until the
/// arrivals end.
pub const DEADLINE: Duration = Duration::from_mins(2);
const LEASE: &str = "foo-controller";
pub const USERS: [&str; 3] = ["replica-1", "replica-2", "replica-3"];
/// Interval between new Foos.
const ARRIVAL: Duration = Duration::from_millis(50);
/// Delay until most Foos change.
const CHANGE: Duration = Duration::from_secs(1);
/// Poll interval of a wait for a Deployment, and number of kinds of lives. One life of each kind waits at a time, so that
/// polling adds little load.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const HANDS: usize = 8;

/// Number of Foos created together, so that the leader is busy when it is frozen.
const BURST: usize = 200;

/// Returns `full` if `FOO_CONTROLLER_TEST_ROUNDS` is `full`, otherwise `few`.
pub fn rounds(full: usize, few: usize) -> usize {
    let asked = std::env::var("FOO_CONTROLLER_TEST_ROUNDS");
    if asked.is_ok_and(|rounds| rounds == "full") {
        full
    } else {
        few
    }
}

/// Timing of the election.
#[derive(Clone, Copy)]
pub struct Pace {
    pub lease: Duration,
    pub renew: Duration,
    pub retry: Duration,
}

pub const DEFAULT: Pace = Pace {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
pub const FAST: Pace = Pace {
    lease: Duration::from_secs(3),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};

/// Replica: a user under which successive processes run.
pub struct Replica {
    pub user: &'static str,
    pod: usize,
    /// Proxy to the API server, which can disconnect the replica.
    pub proxy: Option<Proxy>,
    /// Timestamp file of libfaketime, if the clock is faked.
    clock: Option<NamedTempFile>,
    pub process: Controller,
}

/// A control plane with three replicas.
pub struct Fleet {
    pub cluster: Cluster,
    pub client: Client,
    /// Namespace of the Foos.
    pub namespace: String,
    lease_namespace: String,
    options: Options,
    pub replicas: Vec<Replica>,
    /// Number of bursts so far.
    bursts: usize,
}

/// Program of a replica.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    Shipped,
    /// The ignored test `a_replica_without_the_fence` of this test program.
    Unfenced,
}

/// Route to the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Direct,
    /// Through a proxy, which adds latency.
    Proxy,
    /// Through a load balancer in front of two API servers.
    Balancer,
}

/// Clock of the replicas. The initial value for each replica has libfaketime's syntax (`+3600`, `+0 x1.1`).
///
/// The election's deadlines use `CLOCK_BOOTTIME`, which is never faked: the process reads it from the kernel and not through
/// libc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clock {
    /// Not faked.
    True,
    /// The wall clock is offset, and jumps when the file of [`Fleet::clock`] is written. Timers are correct.
    Wall([&'static str; 3]),
    /// The wall clock and tokio's timers run at another rate. Timed waits of the standard library never end: libfaketime gives
    /// them a deadline in seconds since 1970, and the kernel counts from boot.
    Rate([&'static str; 3]),
}

#[derive(Clone, Copy)]
pub struct Options {
    pub program: Program,
    pub pace: Pace,
    pub way: Way,
    pub clock: Clock,
    /// Whether `deploy/` is installed with server-side fencing. The proxy of each replica then impersonates a pod of the
    /// controller, so [`Way::Direct`] is not possible.
    pub fencing: bool,
}

impl Options {
    pub fn new(pace: Pace, way: Way) -> Self {
        Self {
            program: Program::Shipped,
            pace,
            way,
            clock: Clock::True,
            fencing: false,
        }
    }
}

impl Fleet {
    /// Starts three replicas and waits until they are warm.
    pub async fn start(options: Options) -> Self {
        let cluster = audited_alone().await;
        let mut client = cluster.client().await;
        let namespace = cluster.namespace("replicas").await;
        let lease_namespace = if options.fencing {
            assert_ne!(options.way, Way::Direct, "fencing requires a proxy");
            fencing::install(&cluster).await;
            fencing::NAMESPACE.to_owned()
        } else {
            namespace.clone()
        };
        cluster.release_lease(&lease_namespace, LEASE).await;
        let mut servers = Vec::new();
        if options.way != Way::Direct {
            servers.push(cluster.kube_config().await);
        }
        if options.way == Way::Balancer {
            let second = cluster.start_second_apiserver().await;
            servers.push(config(&second).await);
            // Tests break the first API server, so the client uses the second.
            client = servers[1].clone().try_into().unwrap();
        }
        let mut replicas = Vec::new();
        for user in USERS {
            let proxy = if servers.is_empty() {
                None
            } else {
                Some(Proxy::balance(servers.clone()).await)
            };
            let clock = match options.clock {
                Clock::True => None,
                Clock::Wall(clocks) | Clock::Rate(clocks) => {
                    let file = NamedTempFile::new().unwrap();
                    fs::write(&file, clocks[replicas.len()]).unwrap();
                    Some(file)
                }
            };
            let way = (proxy.as_ref(), clock.as_ref());
            let namespaces = [&*namespace, &lease_namespace];
            let process = spawn(&options, &cluster, namespaces, (user, 0), way);
            replicas.push(Replica {
                user,
                pod: 0,
                proxy,
                clock,
                process,
            });
        }
        let fleet = Self {
            cluster,
            client,
            namespace,
            lease_namespace,
            options,
            replicas,
            bursts: 0,
        };
        let leader = fleet.leader(None).await;
        for replica in 0..USERS.len() {
            fleet.warm(replica, leader).await;
        }
        fleet
    }

    /// Returns the file that sets a replica's clock. A change takes effect within a second.
    pub fn clock(&self, replica: usize) -> PathBuf {
        let file = self.replicas[replica].clock.as_ref().unwrap();
        file.path().to_owned()
    }

    /// Starts a new process for a replica whose process has ended, as another pod or as the `same` pod.
    pub fn restart(&mut self, replica: usize, same: bool) {
        let Replica {
            user,
            pod,
            proxy,
            clock,
            process,
        } = &mut self.replicas[replica];
        *pod += usize::from(!same);
        let way = (proxy.as_ref(), clock.as_ref());
        let id = (*user, *pod);
        let namespaces = [&*self.namespace, &self.lease_namespace];
        *process = spawn(&self.options, &self.cluster, namespaces, id, way);
    }

    /// Waits until a replica other than `old` holds the Lease.
    pub async fn leader(&self, old: Option<usize>) -> usize {
        eventually(DEADLINE, "somebody leads", async || {
            let lease = self
                .leases()
                .get(LEASE)
                .await
                .map_err(|error| error.to_string())?;
            let holder = lease.spec.unwrap().holder_identity.unwrap_or_default();
            let leads = |replica: &Replica| holder == format!("{}_{}", replica.user, replica.pod);
            let leader = self.replicas.iter().position(leads);
            leader.filter(|leader| Some(*leader) != old).ok_or(holder)
        })
        .await
    }

    /// Waits until a replica has filled its caches and, unless it leads, is standing by.
    pub async fn warm(&self, replica: usize, leader: usize) {
        let process = &self.replicas[replica].process;
        let address = process.http_addr().await;
        eventually(DEADLINE, "ready", async || {
            let answer = async {
                let mut stream = TcpStream::connect(address).await?;
                stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                Ok::<_, std::io::Error>(answer)
            };
            let answer = answer.await.map_err(|error| error.to_string())?;
            if answer.contains(" 200 ") {
                Ok(())
            } else {
                Err(answer)
            }
        })
        .await;
        if replica != leader {
            process.wait_for_log("standing by").await;
        }
        // Its watch of the Lease opens right after the logged read.
        sleep(Duration::from_millis(200)).await;
    }

    /// Stops the leader with SIGTERM, waits for the next leader, and restarts the old one as a standby.
    pub async fn stop_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        assert_eq!(self.replicas[old].process.stop().await, 0);
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    pub async fn kill_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        self.kill(old).await;
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    pub async fn kill(&mut self, replica: usize) {
        let process = &mut self.replicas[replica].process;
        process.signal(Signal::KILL);
        process.exit_code().await;
    }

    /// Freezes the busy leader until another replica leads, and for `longer`. Returns when the thawed replica is standing by.
    pub async fn freeze_leader(&mut self, longer: Duration) -> usize {
        let old = self.leader(None).await;
        self.bursts += 1;
        let burst = names(&format!("burst-{}", self.bursts), BURST);
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let early = burst[BURST / 10].clone();
        let arrival = tokio::spawn(async move { create(&client, &namespace, &burst).await });
        eventually(DEADLINE, "it is at work", async || {
            deployments.get(&early).await.map(drop)
        })
        .await;
        let process = &self.replicas[old].process;
        process.signal(Signal::STOP);
        arrival.await.unwrap();
        self.leader(Some(old)).await;
        sleep(longer).await;
        let before = process.logged("standing by");
        process.signal(Signal::CONT);
        stands_by_again(process, before).await;
        old
    }

    /// Disconnects the leader until another replica leads, and for `longer`.
    pub async fn cut_leader(&self, longer: Duration) -> usize {
        let old = self.leader(None).await;
        let Replica { proxy, process, .. } = &self.replicas[old];
        let before = process.logged("standing by");
        let proxy = proxy.as_ref().unwrap();
        proxy.on("*", "*").cut(At::Server);
        proxy.disconnect();
        self.leader(Some(old)).await;
        sleep(longer).await;
        proxy.clear();
        stands_by_again(process, before).await;
        old
    }

    /// Returns the proxies of the replicas.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.replicas
            .iter()
            .filter_map(|replica| replica.proxy.as_ref())
    }

    /// Deletes the Lease and waits until all replicas know the leader of the new one.
    pub async fn delete_lease(&self) {
        self.leases()
            .delete(LEASE, &DeleteParams::default())
            .await
            .unwrap();
        self.leader(None).await;
        sleep(self.options.pace.renew).await;
    }

    /// Waits until every Foo has a current status and only its own Deployment, and until no more events are written.
    pub async fn converged(&self) {
        let foos: Api<Foo> = Api::namespaced(self.client.clone(), &self.namespace);
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(DEADLINE, "I3: every Foo is right", async || {
            let (foos, deployments) = (
                foos.list(&ListParams::default()).await.unwrap().items,
                deployments
                    .list(&ListParams::default())
                    .await
                    .unwrap()
                    .items,
            );
            let mut wrong = invariants::unsettled(&foos, &deployments, "nginx:latest");
            if deployments.len() > foos.len() {
                wrong.push(format!("{} Deployments", deployments.len()));
            }
            wrong.truncate(5);
            if wrong.is_empty() && !foos.is_empty() {
                Ok(())
            } else {
                Err(wrong)
            }
        })
        .await;
        let mut before = 0;
        eventually(DEADLINE, "the last events", async || {
            sleep(Duration::from_secs(1)).await;
            let log = self.cluster.audit();
            let events = log
                .iter()
                .filter(|event| event.resource == "events")
                .count();
            if std::mem::replace(&mut before, events) == events {
                Ok(())
            } else {
                Err(events)
            }
        })
        .await;
    }

    /// Returns the invariants violated so far.
    pub fn violated(&self, what: &str) -> BTreeSet<String> {
        let report = invariants::check(&self.cluster.audit(), &self.election(), &[]);
        println!("{what}: {report}");
        let lines = report.violations.iter();
        lines.map(|line| line[..2].to_owned()).collect()
    }

    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.lease_namespace)
    }

    /// Waits until the Lease and the fencing record name the same replica.
    pub async fn wait_for_record(&self) {
        let records: Api<ServiceAccount> = Api::namespaced(self.client.clone(), fencing::NAMESPACE);
        eventually(DEADLINE, "the record names the leader", async || {
            let lease = self
                .leases()
                .get(LEASE)
                .await
                .map_err(|error| error.to_string())?;
            let record = records
                .get(fencing::RECORD)
                .await
                .map_err(|error| error.to_string())?;
            let holder = lease.spec.unwrap().holder_identity;
            let recorded = record.annotations().get(FENCING_HOLDER).cloned();
            if holder == recorded {
                Ok(())
            } else {
                Err(format!(
                    "{holder:?} holds the Lease, and the record names {recorded:?}"
                ))
            }
        })
        .await;
    }

    pub fn election(&self) -> Election {
        Election {
            users: USERS.map(str::to_owned).into(),
            lease: LEASE.to_owned(),
            renew_deadline: self.options.pace.renew,
        }
    }
}

async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.unwrap();
    // The server is on loopback: ignore proxy variables.
    config.proxy_url = None;
    config
}

fn spawn(
    options: &Options,
    cluster: &Cluster,
    [namespace, lease_namespace]: [&str; 2],
    (user, pod): (&str, usize),
    (proxy, clock): (Option<&Proxy>, Option<&NamedTempFile>),
) -> Controller {
    if options.fencing {
        // As with a token that is bound to the pod.
        let extra = [
            ("authentication.kubernetes.io/pod-name", user),
            ("authentication.kubernetes.io/pod-uid", &pod.to_string()),
        ];
        proxy.unwrap().impersonate(fencing::ACCOUNT, &extra);
    }
    let pace = options.pace;
    let time = |key: &str, duration: Duration| {
        let key = format!("FOO_CONTROLLER__LEADER_ELECTION__{key}");
        (key, format!("{}ms", duration.as_millis()))
    };
    let setup = |command: &mut Command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .env("POD_NAME", user)
            .env("POD_UID", pod.to_string())
            .env("POD_NAMESPACE", lease_namespace)
            .env("FOO_CONTROLLER__NAMESPACES", namespace)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
            .envs([
                time("LEASE_DURATION", pace.lease),
                time("RENEW_DEADLINE", pace.renew),
                time("RETRY_PERIOD", pace.retry),
            ])
            .envs(proxy.map(|proxy| ("FOO_CONTROLLER__MASTER", proxy.url())));
        if let Some(clock) = clock {
            command
                .env("LD_PRELOAD", libfaketime())
                .env("FAKETIME_TIMESTAMP_FILE", clock.path())
                // 0 reads the file every second. 1 reads it every two seconds, in step with a clock that jumps as often.
                .env("FAKETIME_CACHE_DURATION", "0");
        }
        if matches!(options.clock, Clock::Wall(_)) {
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
    };
    match options.program {
        Program::Shipped => Controller::spawn(setup),
        Program::Unfenced => {
            let this = std::env::current_exe().unwrap();
            Controller::spawn_program(this, |command| {
                setup(command);
                let key = "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE";
                command.env(key, lease_namespace);
                let only = [
                    "--exact",
                    "leadership::replicas::a_replica_without_the_fence",
                ];
                command.args(only).args(["--ignored", "--nocapture"]);
            })
        }
    }
}

/// Returns the path of Debian's libfaketime.
fn libfaketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap();
    let files = folders.map(|folder| folder.unwrap().path().join("faketime/libfaketimeMT.so.1"));
    let mut files = files.filter(|file| file.exists());
    files.next().expect("libfaketime is not installed")
}

pub async fn stands_by_again(process: &Controller, before: usize) {
    eventually(DEADLINE, "it stands by again", async || {
        let times = process.logged("standing by");
        if times > before { Ok(()) } else { Err(times) }
    })
    .await;
    sleep(Duration::from_millis(200)).await;
}

/// Load that creates, changes, renames, deletes and recreates Foos and edits their Deployments, until it is stopped.
pub struct Load {
    stop: oneshot::Sender<()>,
    task: JoinHandle<usize>,
}

impl Load {
    pub fn start(fleet: &Fleet) -> Self {
        let user = User {
            foos: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            deployments: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            hands: std::array::from_fn(|_| Arc::new(Semaphore::new(1))),
        };
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut arrivals = interval(ARRIVAL);
            let mut lives = JoinSet::new();
            let mut count = 0;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                arrivals.tick().await;
                let user = user.clone();
                lives.spawn(async move {
                    match timeout(DEADLINE, user.clone().life_of(count)).await {
                        Ok(done) => done.unwrap(),
                        Err(_) => user.is_stuck(count).await,
                    }
                });
                count += 1;
            }
            while let Some(life) = lives.join_next().await {
                life.unwrap();
            }
            count
        });
        Self { stop, task }
    }

    /// Stops the load and returns the number of Foos.
    pub async fn stop(self) -> usize {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// User of the Foos. It also acts for the other controllers of a cluster as far as Foos need them, because none runs here.
#[derive(Clone)]
pub struct User {
    foos: Api<Foo>,
    deployments: Api<Deployment>,
    hands: [Arc<Semaphore>; HANDS],
}

impl User {
    pub async fn life_of(self, number: usize) -> kube::Result<()> {
        let name = &format!("foo-{number}");
        let old = self.create(name).await?;
        let replicas = 2 + number % 7;
        if number % 2 == 1 {
            return self.change(name, json!({ "replicas": replicas })).await;
        }
        let Ok(_hand) = self.hands[number / 2 % HANDS].try_acquire() else {
            return Ok(());
        };
        self.deployment(name).await?;
        match number % 16 {
            2 => self.rename(name).await,
            6 | 10 => {
                self.change(name, json!({ "replicas": replicas })).await?;
                // The next Foo of this name specifies another number.
                let replicas = i32::try_from(replicas).ok();
                while self.deployment(name).await?.spec.unwrap().replicas != replicas {}
                self.foos.delete(name, &DeleteParams::default()).await?;
                let new = self.create(name).await?;
                self.hand_over(name, [&old, &new], number % 16 == 10).await
            }
            14 => self.edit(name).await,
            _ => Ok(()),
        }
    }

    /// Panics with the state of the Foo whose life should have ended.
    async fn is_stuck(&self, number: usize) {
        let name = format!("foo-{number}");
        let foo = self.foos.get(&name).await;
        let deployments = self.deployments.list(&ListParams::default()).await;
        let mut of_it = deployments.unwrap().items;
        of_it.retain(|one| one.name_any().trim_end_matches("-renamed") == name);
        panic!("{name} should have its Deployment by now: {foo:#?} {of_it:#?}");
    }

    /// Creates a Foo and returns its UID.
    pub async fn create(&self, name: &str) -> kube::Result<String> {
        let new = self.foos.create(&PostParams::default(), &foo(name)).await?;
        Ok(new.uid().unwrap())
    }

    pub async fn change(&self, name: &str, spec: Value) -> kube::Result<()> {
        sleep(CHANGE).await;
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        self.foos.patch(name, &params, &patch).await.map(drop)
    }

    /// Renames the Foo's Deployment. Reports the new one as available when it exists, so that the old one is deleted.
    pub async fn rename(&self, name: &str) -> kube::Result<()> {
        let new = format!("{name}-renamed");
        self.change(name, json!({ "deploymentName": new })).await?;
        let created = self.deployment(&new).await?;
        let replicas = created.spec.unwrap().replicas;
        let status = Patch::Merge(json!({ "status": {
            "observedGeneration": created.metadata.generation, "replicas": replicas,
            "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        } }));
        let params = PatchParams::default();
        let patched = self.deployments.patch_status(&new, &params, &status);
        patched.await.map(drop)
    }

    /// Deletes the Deployment of the previous Foo with this name, as the garbage collector does, or transfers it to the new
    /// Foo.
    pub async fn hand_over(
        &self,
        name: &str,
        [old, new]: [&str; 2],
        adopt: bool,
    ) -> kube::Result<()> {
        let uid = "/metadata/ownerReferences/0/uid";
        let adoption = json!([
            { "op": "test", "path": uid, "value": old },
            { "op": "replace", "path": uid, "value": new },
        ]);
        let adoption = Patch::Json::<()>(serde_json::from_value(adoption).unwrap());
        loop {
            let found = self.deployment(name).await?;
            if found.owner_references()[0].uid == *new {
                return Ok(());
            }
            let done = if adopt {
                let params = PatchParams::default();
                let patched = self.deployments.patch(name, &params, &adoption);
                patched.await.map(drop)
            } else {
                let this = Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                };
                let params = DeleteParams::default().preconditions(this);
                self.deployments.delete(name, &params).await.map(drop)
            };
            match done {
                // The Deployment has changed or was replaced.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
                done => done?,
            }
        }
    }

    /// Edits the Deployment of a Foo, as a user might.
    pub async fn edit(&self, name: &str) -> kube::Result<()> {
        sleep(CHANGE).await;
        let edited =
            json!({ "metadata": { "labels": { "app": "theirs" } }, "spec": { "replicas": 9 } });
        let (params, edited) = (PatchParams::default(), Patch::Merge(edited));
        let patched = self.deployments.patch(name, &params, &edited);
        patched.await.map(drop)
    }

    /// Waits for a Deployment and returns it.
    pub async fn deployment(&self, name: &str) -> kube::Result<Deployment> {
        loop {
            sleep(POLL_INTERVAL).await;
            if let Some(found) = self.deployments.get_opt(name).await? {
                return Ok(found);
            }
        }
    }
}
