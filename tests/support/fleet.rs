//! Three replicas as real processes on one control plane: `process.rs` starts them, `faults.rs` breaks them, and `load.rs` has the
//! users that create and change Foos.

mod faults;
mod load;
mod process;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use foo_controller::api::Foo;
use foo_simulation::invariants::{self, Election, FENCING_HOLDER};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use operator_testkit::{
    cluster::{Cluster, eventually},
    proxy::Proxy,
};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use crate::support::{controller::Controller, fencing, foos::audited_alone};

pub use faults::stands_by_again;
pub use load::Load;
use process::{new_pod, spawn};

/// Time limit of waits that are not measured. On a slow machine Foos arrive faster than they are reconciled, and wait until the
/// arrivals end.
pub const DEADLINE: Duration = Duration::from_mins(2);
const LEASE: &str = "foo-controller";
pub const USERS: [&str; 3] = ["replica-1", "replica-2", "replica-3"];

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
    /// UID of the pod.
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
            if options.fencing {
                fencing::is_in_force(&servers[1]).await;
            }
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
            let pod = new_pod();
            let process = spawn(&options, &cluster, namespaces, (user, pod), way);
            replicas.push(Replica {
                user,
                pod,
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
        if !same {
            *pod = new_pod();
        }
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

    /// Returns the proxies of the replicas.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.replicas
            .iter()
            .filter_map(|replica| replica.proxy.as_ref())
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
            lease_duration: self.options.pace.lease,
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
