//! Changes of leadership: the leader stops, dies, is cut off or frozen. Runs the real election loop on a real API server.
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "the times are of one clock, in their order"
)]

use std::time::{Duration, Instant};

use foo_controller::APP;
use futures::future::select_all;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    client::ClientBuilder,
};
use operator_runtime::{
    config::LeaderElection,
    election::{FenceLayer, Term, is_refused},
    internals::{
        Election, ElectionTarget, Eligibility, Heartbeat, Identity, SeenLease, lease_transport, run,
    },
    telemetry::metrics::Metrics,
};
use operator_testkit::{
    cluster::{Cluster, Options, eventually, shared},
    proxy::{Answer, At, Proxy},
};
use serde_json::json;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::support::{controller::Controller, foos::audited};

const DEADLINE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

/// Divisor of the default times.
#[derive(Clone, Copy)]
struct Pace(u32);

struct Replica {
    name: String,
    term: watch::Receiver<Option<Term>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Replica {
    fn stand(config: kube::Config, namespace: &str, name: &str, Pace(pace): Pace) -> Self {
        let (sender, term) = watch::channel(None);
        let (stop, stopped) = oneshot::channel::<()>();
        let settings = LeaderElection {
            enabled: true,
            lease_name: "l".into(),
            lease_namespace: None,
            fencing_record: None,
            lease_duration: LEASE / pace,
            renew_deadline: RENEW / pace,
            retry_period: RETRY / pace,
        };
        let election = Election {
            server: config.cluster_url.clone(),
            transport: lease_transport(config, &settings).unwrap(),
            host: operator_runtime::Host::of_this_process(),
            settings,
            target: ElectionTarget {
                identity: Identity::new(name, "uid").unwrap(),
                namespace: Some(namespace.into()),
                installation: String::new(),
            },
            metrics: Metrics::disconnected(&APP),
            seen: SeenLease::default(),
            ability: watch::channel(Eligibility::Full).1,
        };
        let task = tokio::spawn(async move {
            run(election, sender, Heartbeat::default(), async {
                drop(stopped.await);
            })
            .await
            .unwrap();
        });
        Self {
            name: format!("{name}_uid"),
            term,
            stop,
            task,
        }
    }

    /// Waits until this replica leads, or does not, and returns the elapsed time.
    async fn leads(&mut self, leads: bool, within: Duration) -> Duration {
        let start = Instant::now();
        let changed = timeout(within, self.term.wait_for(|term| term.is_some() == leads)).await;
        assert!(
            changed.is_ok(),
            "{}: leads == {leads}: not within {within:?}",
            self.name
        );
        start.elapsed()
    }

    fn is_leader(&self) -> bool {
        self.term
            .borrow()
            .as_ref()
            .is_some_and(|term| term.remaining().is_some())
    }

    /// Like SIGTERM, after the work is drained.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }

    /// Like SIGKILL.
    fn kill(self) {
        self.task.abort();
    }
}

/// Waits until one replica leads. Fails if a second one does.
async fn leader(replicas: &mut Vec<Replica>) -> Replica {
    let waits = replicas
        .iter_mut()
        .map(|replica| Box::pin(replica.leads(true, DEADLINE)));
    let (_, first, _) = select_all(waits).await;
    let leader = replicas.remove(first);
    assert!(!replicas.iter().any(Replica::is_leader));
    leader
}

/// Returns a namespace with a released Lease `l`.
async fn namespace() -> (String, kube::Config, Api<Lease>) {
    let namespace = shared().namespace("takeover").await;
    shared().release_lease(&namespace, "l").await;
    let leases = Api::namespaced(shared().client().await, &namespace);
    (namespace, shared().kube_config().await, leases)
}

async fn holder(leases: &Api<Lease>) -> String {
    leases
        .get("l")
        .await
        .unwrap()
        .spec
        .unwrap()
        .holder_identity
        .unwrap()
}

#[tokio::test]
async fn h12_the_first_leader_starts_after_a_full_lease() {
    let namespace = shared().namespace("takeover").await;
    let config = shared().kube_config().await;
    let start = Instant::now();
    let mut replicas: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| Replica::stand(config.clone(), &namespace, name, Pace(5)))
        .collect();
    let leader = leader(&mut replicas).await;
    let waited = start.elapsed();
    println!("a new lease of {:?} was taken after {waited:?}", LEASE / 5);
    assert!(
        waited >= LEASE / 5 && waited < LEASE / 5 + Duration::from_secs(1),
        "{waited:?}"
    );
    sleep(LEASE / 5).await;
    assert!(leader.is_leader() && !replicas.iter().any(Replica::is_leader));
}

#[tokio::test]
async fn graceful_handover_causes_no_downtime() {
    let (namespace, config, _) = namespace().await;
    let stand = |n: u32| Replica::stand(config.clone(), &namespace, &format!("r{n}"), Pace(1));
    let mut replicas: Vec<_> = (0..3).map(stand).collect();
    let mut gaps = Vec::new();
    for round in 3..8 {
        let leader = leader(&mut replicas).await;
        replicas.push(stand(round));
        // By now the standbys watch the Lease. A standby that is just starting would find the released Lease with its first
        // read.
        sleep(RETRY).await;
        let mut term = leader.term.clone();
        leader.stop.send(()).unwrap();
        term.wait_for(Option::is_none).await.unwrap();
        let start = Instant::now();
        let waits = replicas
            .iter_mut()
            .map(|replica| Box::pin(replica.leads(true, DEADLINE)));
        select_all(waits).await;
        gaps.push(start.elapsed());
    }
    assert!(median("nobody led", &mut gaps) < Duration::from_millis(250));
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test]
async fn a_takeover_after_a_crash_takes_one_lease() {
    let (namespace, config, _) = namespace().await;
    let stand = |n: u32| Replica::stand(config.clone(), &namespace, &format!("r{n}"), Pace(5));
    let mut replicas: Vec<_> = (0..3).map(stand).collect();
    let mut leads = leader(&mut replicas).await;
    let mut waits = Vec::new();
    for round in 3..6 {
        replicas.push(stand(round));
        // The standbys have now read the Lease, and the leader has renewed it.
        sleep(RETRY / 5 * 2).await;
        leads.kill();
        let start = Instant::now();
        leads = leader(&mut replicas).await;
        waits.push(start.elapsed());
    }
    let waited = median("from the crash to the next leader", &mut waits);
    assert!(waited < LEASE / 5 + Duration::from_millis(500));
}

fn median(what: &str, times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    println!("{what}: {times:?}");
    times[times.len() / 2]
}

#[tokio::test]
async fn a_restarted_pod_leads_again_immediately() {
    let (namespace, config, _) = namespace().await;
    let mut a = Replica::stand(config.clone(), &namespace, "a", Pace(1));
    a.leads(true, DEADLINE).await;
    let _b = Replica::stand(config.clone(), &namespace, "b", Pace(1));
    let mut waits = Vec::new();
    for _ in 0..5 {
        a.kill();
        a = Replica::stand(config.clone(), &namespace, "a", Pace(1));
        waits.push(a.leads(true, DEADLINE).await);
    }
    assert!(median("from the restart on", &mut waits) < Duration::from_secs(2));
}

#[tokio::test]
async fn a_standby_costs_one_watch_of_the_lease_and_nothing_else() {
    let (namespace, config, _) = namespace().await;
    let mut a = Replica::stand(config.clone(), &namespace, "a", Pace(1));
    a.leads(true, DEADLINE).await;
    let proxy = Proxy::start(config.clone()).await;
    let b = Replica::stand(proxy.config(&config), &namespace, "b", Pace(1));
    let mut requests = Vec::new();
    eventually(DEADLINE, "the watch", async || {
        requests.extend(proxy.requests());
        requests
            .iter()
            .find(|request| request.contains("watch=true"))
            .cloned()
            .ok_or(requests.clone())
    })
    .await;
    assert_eq!(requests.len(), 2, "a read, a watch: {requests:?}");
    sleep(RETRY * 5).await;
    let then: Vec<String> = proxy.requests();
    assert!(then.is_empty(), "{then:?}");
    b.stop().await;
    let last = proxy.requests();
    assert!(last.is_empty(), "it had nothing to release: {last:?}");
}

#[tokio::test]
async fn a_leader_that_is_cut_off_fences_itself_before_another_leads() {
    let (namespace, config, leases) = namespace().await;
    let proxy = Proxy::start(config.clone()).await;
    let mut a = Replica::stand(proxy.config(&config), &namespace, "a", Pace(5));
    a.leads(true, DEADLINE).await;
    let mut b = Replica::stand(config.clone(), &namespace, "b", Pace(5));
    sleep(RETRY / 5 * 2).await;
    // Not through the proxy: the connection for work stays up.
    let fence = FenceLayer::new(a.term.clone(), &Metrics::disconnected(&APP));
    let fenced = ClientBuilder::try_from(config.clone())
        .unwrap()
        .with_layer(&fence)
        .build();
    let write = async |client: &Client, name: &str| {
        let map = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        maps.create(&PostParams::default(), &map).await
    };
    let wrapped = fence.wrap(Client::try_from(config.clone()).unwrap());
    write(&fenced, "leading").await.unwrap();
    write(&wrapped, "leading-wrapped").await.unwrap();

    proxy.stall();
    b.leads(true, DEADLINE).await;
    assert!(!a.is_leader());
    for client in [&fenced, &wrapped] {
        assert!(is_refused(&write(client, "deposed").await.unwrap_err()));
    }
    write(&Client::try_from(config).unwrap(), "unfenced")
        .await
        .expect("or the fence is needless");

    // Now the API server receives the delayed requests of `a`.
    proxy.resume();
    sleep(LEASE / 5 * 2).await;
    assert!(b.is_leader() && !a.is_leader());
    assert_eq!(holder(&leases).await, "b_uid");
    b.stop().await;
    a.leads(true, DEADLINE).await;
    assert_eq!(a.term.borrow().as_ref().unwrap().id(), 2);
}

#[tokio::test]
async fn h6_a_lost_response_to_a_renewal_costs_no_term() {
    let (namespace, config, _) = namespace().await;
    let proxy = Proxy::start(config.clone()).await;
    let mut a = Replica::stand(proxy.config(&config), &namespace, "a", Pace(1));
    a.leads(true, DEADLINE).await;
    let mut lost = proxy.on("patch", "leases").hold(At::Client);
    lost.arrived().await;
    sleep(RENEW).await;
    assert!(a.is_leader());
    assert_eq!(a.term.borrow().as_ref().unwrap().id(), 1);
}

#[tokio::test]
async fn h12_the_holder_recreates_a_deleted_lease_and_no_other_replica_leads() {
    let (namespace, config, leases) = namespace().await;
    let mut replicas: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| Replica::stand(config.clone(), &namespace, name, Pace(1)))
        .collect();
    let mut old = leader(&mut replicas).await;
    sleep(RETRY).await;
    leases.delete("l", &DeleteParams::default()).await.unwrap();
    let again = old
        .term
        .wait_for(|term| term.as_ref().is_some_and(|term| term.id() == 2));
    let others = replicas
        .iter_mut()
        .map(|replica| Box::pin(replica.leads(true, DEADLINE)));
    tokio::select! {
        again = timeout(RETRY * 2, again) => { again.expect("not taken again").unwrap(); }
        _ = select_all(others) => panic!("two led"),
    }
    assert_eq!(holder(&leases).await, old.name);
}

#[tokio::test]
async fn without_its_watch_a_standby_polls() {
    let (namespace, config, _) = namespace().await;
    let mut a = Replica::stand(config.clone(), &namespace, "a", Pace(1));
    a.leads(true, DEADLINE).await;
    let proxy = Proxy::start(config.clone()).await;
    proxy.on("list", "leases").lose();
    proxy.on("watch", "leases").lose();
    let mut b = Replica::stand(proxy.config(&config), &namespace, "b", Pace(1));
    eventually(DEADLINE, "a poll", async || {
        let requests = proxy.requests();
        let reads = requests
            .iter()
            .filter(|request| request.contains("/leases/l"))
            .count();
        if reads > 0 { Ok(()) } else { Err(requests) }
    })
    .await;
    a.stop().await;
    b.leads(true, RETRY * 2).await;
}

#[tokio::test]
async fn h3_an_attempt_that_fails_is_not_sent_again_before_its_time() {
    let (namespace, mut config, _) = namespace().await;
    let proxy = Proxy::start(config.clone()).await;
    proxy.on("*", "*").answer(Answer::json(503, ""));
    config.default_retry = true;
    let _a = Replica::stand(proxy.config(&config), &namespace, "a", Pace(1));
    sleep(RETRY * 3).await;
    let requests = proxy.requests();
    let reads = requests
        .iter()
        .filter(|request| request.contains("/leases/l"))
        .count();
    assert!((2..=4).contains(&reads), "{requests:?}");
}

#[tokio::test]
async fn a_shutdown_during_an_acquisition_releases_the_lease() {
    let (namespace, config, leases) = namespace().await;
    let mut a = Replica::stand(config.clone(), &namespace, "a", Pace(1));
    a.leads(true, DEADLINE).await;
    a.stop().await;
    let proxy = Proxy::start(config.clone()).await;
    let mut acquires = proxy.on("patch", "leases").hold(At::Client);
    let b = Replica::stand(proxy.config(&config), &namespace, "b", Pace(1));
    acquires.arrived().await;
    assert_eq!(holder(&leases).await, "b_uid");
    b.stop().await;
    assert_eq!(holder(&leases).await, "");
}

#[tokio::test]
async fn users_see_the_current_and_previous_leader() {
    let (namespace, config, _) = namespace().await;
    let mut a = Replica::stand(config, &namespace, "pod-a", Pace(1));
    a.leads(true, DEADLINE).await;
    let lease = shared()
        .kubectl(&["get", "lease", "l", "-n", &namespace])
        .await
        .success();
    assert!(lease.contains("pod-a_uid"), "{lease}");
    a.stop().await;
    let events = ["describe", "lease", "l", "-n", &namespace];
    let events = shared().kubectl(&events).await.success();
    for note in ["pod-a_uid became leader", "pod-a_uid stopped leading"] {
        assert!(
            events.contains("LeaderElection") && events.contains(note),
            "{events}"
        );
    }
}

#[tokio::test]
async fn h6_no_replica_leads_until_a_frozen_api_server_thaws() {
    let cluster = Cluster::start(Options::default());
    let config = cluster.kube_config().await;
    cluster.release_lease("default", "l").await;
    let mut replicas: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| Replica::stand(config.clone(), "default", name, Pace(5)))
        .collect();
    let mut old = leader(&mut replicas).await;
    cluster.freeze_apiserver().await;
    sleep(RENEW / 5).await;
    assert!(!old.is_leader());
    old.leads(false, DEADLINE).await;
    replicas.push(old);
    sleep(LEASE).await;
    assert!(!replicas.iter().any(Replica::is_leader));
    cluster.thaw_apiserver().await;
    leader(&mut replicas).await;
}

/// The documented recipe for the first start lets the first leader start without waiting for a full lease. The recipe does not
/// change an existing Lease.
#[tokio::test]
async fn first_leader_takes_the_lease_of_the_documented_recipe_immediately() {
    let docs = include_str!("../../docs/operations.md");
    let (_, recipe) = docs.split_once("### The first start\n").unwrap();
    let (_, recipe) = recipe.split_once("<<'EOF'\n").unwrap();
    let (recipe, _) = recipe.split_once("EOF\n").unwrap();
    let cluster = audited().await;
    let namespace = cluster.namespace("first").await;
    let lease = recipe.replace("foo-system", &namespace);
    let create = ["create", "-f", "-"];
    cluster.kubectl_stdin(&create, &lease).await.success();
    // Longer than the test's timeout.
    let election = ["--leader-election", "--lease-duration", "1h"];
    let places = ["--lease-namespace", &namespace, "--namespace", &namespace];
    let leader = Controller::start(cluster, &[&election[..], &places].concat());
    leader.wait_for_log("gained the lease").await;
    let leases: Api<Lease> = Api::namespaced(cluster.client().await, &namespace);
    let holder = async || {
        let lease = leases.get("foo-controller").await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap()
    };
    let before = holder().await;
    let again = cluster.kubectl_stdin(&create, &lease).await;
    assert!(!again.status.success() && !before.is_empty());
    assert_eq!(holder().await, before);
}
