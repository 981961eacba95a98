//! Three replicas as real processes on one API server, whose leader is stopped, killed, frozen and cut off while Foos arrive
//! and change. The audit log is the judge (`invariants`). Delays are measured and printed; what is promised of them
//! holds for the median. `FOO_CONTROLLER_TEST_ROUNDS=full` takes every measure as often as the claims in the README do.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

mod cluster;
mod controller;
mod foos;
mod gateway;
mod invariants;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    process::Command,
    sync::Arc,
    time::Duration,
};

use cluster::{AuditEvent, Cluster, eventually};
use controller::Controller;
use foo_controller::{APP, FooConfig, api::Foo};
use foos::{audited_alone, create, delays, foo, longest, names, subject};
use gateway::{Gateway, Mode};
use invariants::{Election, MADE_FOR, Report, version};
use k8s_openapi::{
    api::{apps::v1::Deployment, coordination::v1::Lease},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    config::{KubeConfigOptions, Kubeconfig},
};
use operator_runtime::{
    client, config,
    election::{self, Identity},
    telemetry::{Telemetry, health::Health, http::Server},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{
        Semaphore,
        oneshot::{self, error::TryRecvError},
        watch,
    },
    task::{JoinHandle, JoinSet},
    time::{interval, sleep, timeout},
};

/// How long anything may take that is not itself what is measured.
const DEADLINE: Duration = Duration::from_mins(1);
const LEASE: &str = "foo-controller";
const USERS: [&str; 3] = ["replica-1", "replica-2", "replica-3"];
/// A Foo arrives this often.
const ARRIVAL: Duration = Duration::from_millis(50);
/// Most Foos change after this.
const CHANGE: Duration = Duration::from_secs(1);
/// How often somebody who waits for a Deployment polls, and how many may wait: it is not to be felt.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const HANDS: usize = 8;

/// `full`, or fewer rounds of the same.
fn rounds(full: usize, few: usize) -> usize {
    let asked = std::env::var("FOO_CONTROLLER_TEST_ROUNDS");
    if asked.is_ok_and(|rounds| rounds == "full") {
        full
    } else {
        few
    }
}

/// A new leader does what came while there was none, before the next fault.
const AFTER: Duration = Duration::from_secs(8);
const AFTER_RESTART: Duration = Duration::from_secs(3);

/// So many Foos come at once where the leader is to be found at work.
const BURST: usize = 200;
/// How often it is tried to have happen what is likely and not certain.
const ATTEMPTS: usize = 5;

/// The election's times.
#[derive(Clone, Copy)]
struct Pace {
    lease: Duration,
    renew: Duration,
    retry: Duration,
}

const DEFAULT: Pace = Pace {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
const FAST: Pace = Pace {
    lease: Duration::from_secs(3),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};

/// One replica: a user, under whom one process after the other runs.
struct Replica {
    user: &'static str,
    pod: usize,
    /// On its way to the API server, where it may be cut off.
    gateway: Option<Gateway>,
    process: Controller,
}

/// A control plane with three replicas.
struct Fleet {
    cluster: Cluster,
    client: Client,
    namespace: String,
    pace: Pace,
    program: Program,
    replicas: Vec<Replica>,
    /// How many times many Foos came at once.
    bursts: usize,
}

/// What a replica runs.
#[derive(Clone, Copy, Debug)]
enum Program {
    Shipped,
    /// [`a_replica_without_the_fence`].
    Unfenced,
}

impl Fleet {
    /// Starts three replicas that are warm when this returns, each behind a gateway if it is to be cut off (which makes it
    /// slower).
    async fn start(pace: Pace, gateways: bool) -> Self {
        Self::start_with(Program::Shipped, pace, gateways).await
    }

    async fn start_with(program: Program, pace: Pace, gateways: bool) -> Self {
        let cluster = audited_alone().await;
        let client = cluster.client().await;
        let namespace = cluster.namespace("replicas").await;
        cluster.release_lease(&namespace, LEASE).await;
        let mut replicas = Vec::new();
        for user in USERS {
            let gateway = if gateways {
                Some(gateway(&cluster, user).await)
            } else {
                None
            };
            let way = gateway.as_ref();
            let process = spawn(program, &cluster, &namespace, pace, (user, 0), way);
            replicas.push(Replica {
                user,
                pod: 0,
                gateway,
                process,
            });
        }
        let fleet = Self {
            cluster,
            client,
            namespace,
            pace,
            program,
            replicas,
            bursts: 0,
        };
        let leader = fleet.leader(None).await;
        for replica in 0..USERS.len() {
            fleet.warm(replica, leader).await;
        }
        fleet
    }

    /// Runs a new process under the user of a replica whose process has ended: as another pod, or as the `same`.
    fn restart(&mut self, replica: usize, same: bool) {
        let Replica {
            user,
            pod,
            gateway,
            process,
        } = &mut self.replicas[replica];
        *pod += usize::from(!same);
        *process = spawn(
            self.program,
            &self.cluster,
            &self.namespace,
            self.pace,
            (user, *pod),
            gateway.as_ref(),
        );
    }

    /// Waits until a replica other than `old` holds the Lease.
    async fn leader(&self, old: Option<usize>) -> usize {
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

    /// Waits until a replica has its caches, and stands by if it does not lead.
    async fn warm(&self, replica: usize, leader: usize) {
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
        // Its watch of the Lease opens right after the read of it that is logged.
        sleep(Duration::from_millis(200)).await;
    }

    /// Stops the leader by SIGTERM, waits for the next one, and starts it again as a standby.
    async fn stop_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        assert_eq!(self.replicas[old].process.stop().await, 0);
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    async fn kill_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        self.kill(old).await;
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    async fn kill(&mut self, replica: usize) {
        let process = &mut self.replicas[replica].process;
        process.signal(Signal::KILL);
        process.exit_code().await;
    }

    /// Freezes the leader in the midst of its work until another leads, and for `longer`; thawed, it stands by.
    async fn freeze_leader(&mut self, longer: Duration) -> usize {
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

    /// Cuts the leader off until another leads, and for `longer`.
    async fn cut_leader(&self, longer: Duration) -> usize {
        let old = self.leader(None).await;
        let Replica {
            gateway, process, ..
        } = &self.replicas[old];
        let before = process.logged("standing by");
        let gateway = gateway.as_ref().unwrap();
        gateway.set(Mode::Cut);
        self.leader(Some(old)).await;
        sleep(longer).await;
        gateway.set(Mode::Forward);
        stands_by_again(process, before).await;
        old
    }

    fn set_gateways(&self, mode: Mode) {
        let gateways = self.replicas.iter();
        let gateways = gateways.filter_map(|replica| replica.gateway.as_ref());
        gateways.for_each(|gateway| gateway.set(mode));
    }

    /// Deletes the Lease, and waits until all know who leads by the new one.
    async fn delete_lease(&self) {
        self.leases()
            .delete(LEASE, &DeleteParams::default())
            .await
            .unwrap();
        self.leader(None).await;
        sleep(self.pace.renew).await;
    }

    /// Waits until every Foo has its Deployment and no other, and its status, and nothing more is written; I3.
    async fn converged(&self) {
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

    /// The invariants that are violated so far.
    fn violated(&self, what: &str) -> BTreeSet<String> {
        let report = invariants::check(&self.cluster.audit(), &self.election(), &[]);
        println!("{what}: {report}");
        let lines = report.violations.iter();
        lines.map(|line| line[..2].to_owned()).collect()
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn election(&self) -> Election {
        Election {
            users: USERS.map(str::to_owned).into(),
            lease: LEASE.to_owned(),
            renew_deadline: self.pace.renew,
        }
    }
}

/// A gateway that is the same user to the API server.
async fn gateway(cluster: &Cluster, user: &str) -> Gateway {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_of(user)).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.unwrap();
    config.default_retry = false;
    Gateway::start(config.try_into().unwrap()).await
}

fn spawn(
    program: Program,
    cluster: &Cluster,
    namespace: &str,
    pace: Pace,
    (user, pod): (&str, usize),
    gateway: Option<&Gateway>,
) -> Controller {
    let time = |key: &str, duration: Duration| {
        let key = format!("FOO_CONTROLLER__LEADER_ELECTION__{key}");
        (key, format!("{}ms", duration.as_millis()))
    };
    let setup = |command: &mut Command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .env("POD_NAME", user)
            .env("POD_UID", pod.to_string())
            .env("POD_NAMESPACE", namespace)
            .env("FOO_CONTROLLER__NAMESPACES", namespace)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
            .envs([
                time("LEASE_DURATION", pace.lease),
                time("RENEW_DEADLINE", pace.renew),
                time("RETRY_PERIOD", pace.retry),
            ])
            .envs(gateway.map(|gateway| ("FOO_CONTROLLER__MASTER", gateway.url())));
    };
    match program {
        Program::Shipped => Controller::spawn(setup),
        Program::Unfenced => {
            let this = std::env::current_exe().unwrap();
            Controller::spawn_program(this, |command| {
                setup(command);
                let key = "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE";
                command.env(key, namespace);
                let only = ["--exact", "a_replica_without_the_fence"];
                command.args(only).args(["--ignored", "--nocapture"]);
            })
        }
    }
}

async fn stands_by_again(process: &Controller, before: usize) {
    eventually(DEADLINE, "it stands by again", async || {
        let times = process.logged("standing by");
        if times > before { Ok(()) } else { Err(times) }
    })
    .await;
    sleep(Duration::from_millis(200)).await;
}

/// Foos that arrive and change, are renamed, deleted and created again, and whose Deployments are edited, until it is stopped.
struct Load {
    stop: oneshot::Sender<()>,
    task: JoinHandle<usize>,
}

impl Load {
    fn start(fleet: &Fleet) -> Self {
        let user = User {
            foos: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            deployments: Api::namespaced(fleet.client.clone(), &fleet.namespace),
            hands: Arc::new(Semaphore::new(HANDS)),
        };
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut arrivals = interval(ARRIVAL);
            let mut lives = JoinSet::new();
            let mut count = 0;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                arrivals.tick().await;
                lives.spawn(timeout(DEADLINE, user.clone().life_of(count)));
                count += 1;
            }
            while let Some(life) = lives.join_next().await {
                life.unwrap().expect("a Deployment by now").unwrap();
            }
            count
        });
        Self { stop, task }
    }

    /// Stops it, and returns the number of Foos.
    async fn stop(self) -> usize {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// Whose Foos these are; and, as far as they need it, the other controllers of a cluster, of which none runs here.
#[derive(Clone)]
struct User {
    foos: Api<Foo>,
    deployments: Api<Deployment>,
    hands: Arc<Semaphore>,
}

impl User {
    async fn life_of(self, number: usize) -> kube::Result<()> {
        let name = &format!("foo-{number}");
        let old = self.create(name).await?;
        let replicas = 2 + number % 7;
        if number % 2 == 1 {
            return self.change(name, json!({ "replicas": replicas })).await;
        }
        let Ok(_hand) = self.hands.try_acquire() else {
            return Ok(());
        };
        self.deployment(name).await?;
        match number % 16 {
            2 => self.rename(name).await,
            6 | 10 => {
                self.change(name, json!({ "replicas": replicas })).await?;
                sleep(CHANGE).await;
                self.foos.delete(name, &DeleteParams::default()).await?;
                let new = self.create(name).await?;
                self.hand_over(name, [&old, &new], number % 16 == 10).await
            }
            14 => self.edit(name).await,
            _ => Ok(()),
        }
    }

    /// Its UID.
    async fn create(&self, name: &str) -> kube::Result<String> {
        let new = self.foos.create(&PostParams::default(), &foo(name)).await?;
        Ok(new.uid().unwrap())
    }

    async fn change(&self, name: &str, spec: Value) -> kube::Result<()> {
        sleep(CHANGE).await;
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        self.foos.patch(name, &params, &patch).await.map(drop)
    }

    /// The new Deployment has its pods as soon as it is there, so that the old one is deleted.
    async fn rename(&self, name: &str) -> kube::Result<()> {
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

    /// What the Foo of the same name before has left is deleted, as the garbage collector does, or given to this one.
    async fn hand_over(&self, name: &str, [old, new]: [&str; 2], adopt: bool) -> kube::Result<()> {
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
                // It is another one by now.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
                done => done?,
            }
        }
    }

    /// Somebody changes by hand what is the Foo's.
    async fn edit(&self, name: &str) -> kube::Result<()> {
        sleep(CHANGE).await;
        let edited =
            json!({ "metadata": { "labels": { "app": "theirs" } }, "spec": { "replicas": 9 } });
        let (params, edited) = (PatchParams::default(), Patch::Merge(edited));
        let patched = self.deployments.patch(name, &params, &edited);
        patched.await.map(drop)
    }

    /// Waits for a Deployment.
    async fn deployment(&self, name: &str) -> kube::Result<Deployment> {
        loop {
            sleep(POLL_INTERVAL).await;
            if let Some(found) = self.deployments.get_opt(name).await? {
                return Ok(found);
            }
        }
    }
}

/// How often each of what users do is in the log, and what the replicas have to do for it.
fn deeds(log: &[AuditEvent]) -> BTreeMap<&'static str, usize> {
    let ours = |event: &AuditEvent| USERS.contains(&&*event.user);
    let mut deeds = BTreeMap::new();
    let mut created = BTreeSet::new();
    let mut edited = BTreeSet::new();
    let mut made_for = BTreeMap::<_, BTreeSet<_>>::new();
    for event in log.iter().filter(|event| (200..300).contains(&event.code)) {
        let metadata = &event.response_object["metadata"];
        let deed = match (&*event.verb, &*event.resource, &*event.subresource) {
            ("patch", "foos", "") if event.request_object["spec"]["deploymentName"].is_string() => {
                "Foo renamed"
            }
            ("create", "foos", "") if !created.insert(subject(event)) => "Foo created again",
            ("delete", "deployments", "") if ours(event) => "Deployment deleted by a replica",
            ("create" | "patch", "deployments", "") if ours(event) => {
                let uid = metadata["uid"].as_str().unwrap();
                let foos = made_for.entry(uid).or_default();
                foos.insert(metadata["annotations"][MADE_FOR].as_str().unwrap());
                if foos.len() > 1 {
                    "Deployment taken over by the next Foo of its name"
                } else if edited.remove(&*event.name) {
                    "Deployment put right"
                } else {
                    continue;
                }
            }
            ("patch", "deployments", "") => {
                if event.request_object["spec"]["replicas"] == 9 {
                    edited.insert(&*event.name);
                }
                continue;
            }
            _ => continue,
        };
        *deeds.entry(deed).or_default() += 1;
    }
    deeds
}

/// [`deeds`], of which each was done.
fn print_deeds(log: &[AuditEvent]) {
    let deeds = deeds(log);
    println!("{deeds:#?}");
    assert_eq!(deeds.len(), 5, "{deeds:#?}");
}

/// I1 to I8 hold, whatever happens to leaders, and every Foo ends right.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_through_faults() {
    let mut fleet = Fleet::start(FAST, true).await;
    let load = Load::start(&fleet);
    let mut faults = BTreeMap::new();
    for _ in 0..rounds(20, 5) {
        fleet.stop_leader().await;
        *faults.entry("stopped").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.kill_leader().await;
        *faults.entry("killed").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.freeze_leader(FAST.renew).await;
        *faults.entry("frozen").or_insert(0) += 1;
    }
    for _ in 0..rounds(5, 2) {
        fleet.cut_leader(FAST.renew).await;
        *faults.entry("cut off").or_insert(0) += 1;
    }
    for _ in 0..rounds(3, 1) {
        fleet.delete_lease().await;
        *faults.entry("Lease deleted").or_insert(0) += 1;
    }
    let foos = load.stop().await;
    fleet.converged().await;
    let quiet = Timestamp::now();
    sleep(FAST.lease).await;
    let quiet = [(quiet, Timestamp::now())];
    let log = fleet.cluster.audit();
    let report = invariants::check(&log, &fleet.election(), &quiet);
    println!("{foos} Foos; faults: {faults:?}; {report}");
    assert!(report.violations.is_empty(), "{report}");
    print_deeds(&log);
    let changes: i32 = faults.values().sum();
    assert!(report.terms >= usize::try_from(changes).unwrap());
    assert!(report.writes >= 2 * foos);

    // The same log with one write that landed after a takeover; and with one deletion by another.
    let doctored = write_after_takeover(log.clone());
    let report = invariants::check(&doctored, &fleet.election(), &quiet);
    assert_eq!(report.violations.len(), 1, "{report}");
    assert!(report.violations[0].starts_with("I1"), "{report}");
    let doctored = deletion_by_another(log);
    let report = invariants::check(&doctored, &fleet.election(), &quiet);
    assert!(report.violations[0].starts_with("I1"), "{report}");
}

/// Moves the first write of the first leader to after the moment when another took the Lease.
fn write_after_takeover(mut log: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let is_reported = |event: &AuditEvent| {
        (&*event.resource, &*event.subresource, event.code) == ("foos", "status", 200)
    };
    let first = log.iter().position(is_reported).unwrap();
    let by = log[first].user.clone();
    let taken = |event: &&AuditEvent| {
        let holder = event.response_object["spec"]["holderIdentity"].as_str();
        event.resource == "leases"
            && event.user != by
            && event.code == 200
            && holder.is_some_and(|holder| holder.starts_with(&event.user))
    };
    let takeover = log
        .iter()
        .filter(taken)
        .filter_map(|event| version(&event.response_object))
        .min()
        .unwrap();
    log[first].response_object["metadata"]["resourceVersion"] = (takeover + 1).to_string().into();
    log
}

/// Has a replica delete what another one deleted.
fn deletion_by_another(mut log: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let ours = |event: &&mut AuditEvent| {
        (&*event.verb, &*event.resource, event.code) == ("delete", "deployments", 200)
            && USERS.contains(&&*event.user)
    };
    let deletion = log.iter_mut().find(ours).unwrap();
    let mut others = USERS.iter().filter(|user| **user != deletion.user);
    deletion.user = (*others.next().unwrap()).to_owned();
    log
}

/// What the change of a leader costs with the default times, and what a standby does.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_change_of_leader_costs() {
    let mut fleet = Fleet::start(DEFAULT, false).await;
    let load = Load::start(&fleet);
    sleep(Duration::from_secs(3)).await;

    let leader = fleet.leader(None).await;
    let standby = fleet.replicas[(leader + 1) % USERS.len()].user;
    let calm = (Timestamp::now(), {
        sleep(Duration::from_secs(rounds(60, 10).try_into().unwrap())).await;
        Timestamp::now()
    });

    let mut stopped = Vec::new();
    for _ in 0..rounds(20, 5) {
        let begin = Timestamp::now();
        fleet.stop_leader().await;
        stopped.push((begin, Timestamp::now()));
        sleep(Duration::from_millis(500)).await;
    }

    let mut killed = Vec::new();
    for _ in 0..rounds(3, 1) {
        let begin = Timestamp::now();
        fleet.kill_leader().await;
        killed.push((begin, Timestamp::now()));
        sleep(AFTER).await;
    }

    let mut restarted = Vec::new();
    for _ in 0..rounds(5, 3) {
        let leader = fleet.leader(None).await;
        fleet.kill(leader).await;
        fleet.restart(leader, true);
        restarted.push((fleet.replicas[leader].user, Timestamp::now()));
        fleet.replicas[leader]
            .process
            .wait_for_log("gained the lease")
            .await;
        sleep(AFTER_RESTART).await;
    }

    let frozen = fleet.leader(None).await;
    fleet.replicas[frozen].process.signal(Signal::STOP);
    sleep(Duration::from_secs(25)).await;
    let before = fleet.replicas[frozen].process.logged("standing by");
    let thawed = Timestamp::now();
    fleet.replicas[frozen].process.signal(Signal::CONT);
    stands_by_again(&fleet.replicas[frozen].process, before).await;
    sleep(Duration::from_secs(5)).await;

    let foos = load.stop().await;
    fleet.converged().await;
    let log = fleet.cluster.audit();
    let report = invariants::check(&log, &fleet.election(), &[]);
    println!("{foos} Foos; {report}");
    assert!(report.violations.is_empty(), "{report}");
    print_deeds(&log);
    let usual = longest(&delays(&log), calm);
    print_delays(&log, usual, &stopped, &killed);
    print_restarts(&log, usual, &restarted);
    print_thawed(&log, fleet.replicas[frozen].user, thawed, &report);
    print_standby(&log, standby, calm);
}

/// What [`operator_runtime::run`] is, less the [fence](operator_runtime::election::fence): a process of its own, which can be
/// frozen.
#[tokio::test]
#[ignore = "what another test runs"]
async fn a_replica_without_the_fence() {
    let flags = clap::Command::new("unfenced").args(config::args(&APP));
    let flags = flags.get_matches_from(["unfenced"]);
    let (config, settings) = config::load(&APP, &flags, std::env::vars_os()).unwrap();
    let host = operator_runtime::Host::of_this_process();
    assert!(
        std::env::var_os("POD_NAME").is_some(),
        "another test runs this"
    );
    let metrics = Telemetry::start(&APP, &host, &config).unwrap().metrics();
    let mut kube = Config::infer().await.unwrap();
    kube.default_retry = false;
    let client = Client::try_from(kube.clone()).unwrap();
    let server = Server::bind(&APP, &config.http).await.unwrap();
    let identity = Identity::of(&host).unwrap();
    let (publish, term) = watch::channel(None);
    let mut health = Health::new(&host);
    let name = identity.to_string();
    let foo: FooConfig = settings.application();
    let mut controller = operator_runtime::Controller::new(
        &host,
        &client,
        &config,
        name,
        &metrics,
        &mut health,
        |builder| foo_controller::foo::build(builder, foo),
    );
    let heartbeat = health.heartbeat("leader-election");
    let election = election::Election {
        server: kube.cluster_url.clone(),
        transport: client::lease_transport(kube, &config.leader_election).unwrap(),
        host,
        settings: config.leader_election,
        identity,
        metrics: metrics.clone(),
        ability: controller.ability(),
    };
    tokio::select! {
        ended = election::run(election, publish, heartbeat, pending()) => ended.unwrap(),
        ended = controller.run(term, pending()) => ended.unwrap(),
        () = server.serve(client, health, metrics) => {}
    }
}

/// The fence is what holds I1 and I2 where a leader is thawed in the midst of its work ([`i1_to_i8_hold_through_faults`]), and
/// the checker sees when it is not there.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_fence_a_thawed_leader_is_found_to_write() {
    let mut fleet = Fleet::start_with(Program::Unfenced, FAST, false).await;
    let (expected, mut found) = (["I1", "I2"].map(str::to_owned).into(), BTreeSet::new());
    for _ in 0..ATTEMPTS {
        fleet.freeze_leader(Duration::ZERO).await;
        found = fleet.violated("without the fence");
        if found.is_superset(&expected) {
            break;
        }
    }
    assert!(found.is_superset(&expected), "{found:?}");
}

/// The condition under which the lease guard writes is what holds I1 and I8 where two replicas take a Lease at once, and the
/// checker sees when it is not there.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lease_guard_two_leaders_are_found() {
    let mut fleet = Fleet::start(FAST, true).await;
    let load = Load::start(&fleet);
    fleet.set_gateways(Mode::LateLeases { guarded: true });
    fleet.stop_leader().await;
    assert_eq!(fleet.violated("late writes of the Lease"), [].into());
    fleet.set_gateways(Mode::LateLeases { guarded: false });
    let (expected, mut found) = (["I1", "I8"].map(str::to_owned).into(), BTreeSet::new());
    for _ in 0..ATTEMPTS {
        fleet.stop_leader().await;
        found = fleet.violated("without the lease guard");
        if found.is_superset(&expected) {
            break;
        }
    }
    assert!(found.is_superset(&expected), "{found:?}");
    fleet.set_gateways(Mode::Forward);
    load.stop().await;
}

type Span = (Timestamp, Timestamp);

/// Promises, by the median of as many: beyond what a Foo waits where nothing is wrong, since the machine may be busy.
const HANDED_OVER: Duration = Duration::from_millis(250);
const RESTARTED: Duration = Duration::from_secs(2);

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// `usual` is the longest delay without a fault.
fn print_delays(log: &[AuditEvent], usual: Duration, stopped: &[Span], killed: &[Span]) {
    let delays = delays(log);
    let longest = |spans: &[Span]| -> Vec<Duration> {
        spans.iter().map(|span| longest(&delays, *span)).collect()
    };
    println!("longest delay of a Foo");
    println!("  no fault: {usual:?}");
    let stopped = longest(stopped);
    let felt = stopped.iter().filter(|delay| **delay > HANDED_OVER);
    println!(
        "  leader stopped (at most {HANDED_OVER:?}, {} above): {stopped:?}",
        felt.count()
    );
    let killed = longest(killed);
    println!(
        "  leader killed (at most {:?} + 500 ms): {killed:?}",
        DEFAULT.lease
    );
    assert!(median(&stopped) <= HANDED_OVER + usual, "{stopped:?}");
    // Killed more often: `takeover.rs`.
    let slack = Duration::from_secs(5);
    assert!(
        killed.iter().all(|delay| *delay < DEFAULT.lease + slack),
        "{killed:?}"
    );
}

/// From the start of the process to its first Deployment.
fn print_restarts(log: &[AuditEvent], usual: Duration, restarted: &[(&str, Timestamp)]) {
    let acts = |(user, at): &(&str, Timestamp)| -> Duration {
        let own = log
            .iter()
            .filter(|event| event.user == *user && event.resource == "deployments");
        let writes = own.filter(|event| event.verb == "create" && event.received.0 > *at);
        let first = writes.map(|event| event.reached.0).min().unwrap();
        first.duration_since(*at).try_into().unwrap()
    };
    let restarted: Vec<_> = restarted.iter().map(acts).collect();
    println!("the same pod restarted acts after (at most {RESTARTED:?}): {restarted:?}");
    assert!(median(&restarted) <= RESTARTED + usual, "{restarted:?}");
}

fn print_thawed(log: &[AuditEvent], user: &str, thawed: Timestamp, report: &Report) {
    let after = log.iter().filter(|event| {
        event.user == user
            && event.received.0 > thawed
            && matches!(&*event.resource, "deployments" | "foos")
            && !matches!(&*event.verb, "get" | "list" | "watch")
    });
    println!(
        "frozen for 25 s and thawed: {} writes by the leader of before, 0 of {} in all without the Lease",
        after.count(),
        report.writes
    );
}

/// A standby has three watches and asks for nothing else.
fn print_standby(log: &[AuditEvent], user: &str, calm: Span) {
    let of_user = || log.iter().filter(|event| event.user == user);
    let opened = of_user().filter(|event| {
        event.verb == "watch" && event.stage == "ResponseStarted" && event.received.0 < calm.0
    });
    let mut watches: BTreeMap<&str, usize> = BTreeMap::new();
    opened.for_each(|event| *watches.entry(&*event.resource).or_default() += 1);
    let then: Vec<_> = of_user()
        .filter(|event| (calm.0..calm.1).contains(&event.received.0))
        .map(|event| format!("{} {}", event.verb, event.resource))
        .collect();
    let seconds = calm.1.duration_since(calm.0).as_secs();
    println!("a standby opened {watches:?}; in {seconds} s after that it sent: {then:?}");
    // One each, but for those that ended and were opened again, as while the API server has just learnt of Foos.
    let resources: Vec<_> = watches.keys().copied().collect();
    assert_eq!(resources, ["deployments", "foos", "leases"]);
    assert!(
        then.iter().all(|request| request.starts_with("watch ")),
        "{then:?}"
    );
}
