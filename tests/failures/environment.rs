//! Effects of the environment on real processes that a simulation cannot show: an API server that freezes and continues with
//! stale data, wrong and jumping clocks, replaced credentials, and an hour of churn. The controller and the API server are
//! real. `invariants` checks the audit log.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::Permissions,
    net::SocketAddr,
    ops::RangeInclusive,
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use foo_controller::api::Foo;
use k8s_openapi::{api::apps::v1::Deployment, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use operator_testkit::{
    cluster::{Cluster, Options as Parts, eventually},
    proxy::Proxy,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval, sleep},
};

use crate::support::{
    controller::Controller,
    fleet::{Clock, DEADLINE, FAST, Fleet, Load, Options, USERS, Way, rounds},
    foos::{audited_alone, converged, create, foo, names},
};

/// Two API servers on one etcd behind a load balancer. All replicas use the first one. It is frozen, the Foos change through
/// the other server, and then it continues with stale data.
///
/// The replicas, one of them restarted, return to it at that moment. Their reads are stale, but no invariant is violated, and
/// they see the changes as soon as the server does. No write is in flight when the server is frozen: the server could execute
/// such a write after a takeover.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_by_an_api_server_that_was_frozen_and_is_stale() {
    invariants_hold_by_a_stale_api_server(false).await;
}

/// Runs the test above with server-side fencing. The view of the fencing record is stale, too.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_by_a_stale_api_server_with_fencing() {
    invariants_hold_by_a_stale_api_server(true).await;
}

async fn invariants_hold_by_a_stale_api_server(fencing: bool) {
    const FOOS: usize = 20;
    let mut fleet = Fleet::start(Options {
        fencing,
        ..Options::new(FAST, Way::Balancer)
    })
    .await;
    let api: Api<Foo> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let deployments: Api<Deployment> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let _collector = collect_garbage(&fleet);
    let go_to = |fleet: &Fleet, server: usize| {
        fleet.proxies().for_each(|proxy| {
            proxy.route(&[server]);
            proxy.disconnect();
        });
    };
    for round in 0..rounds(5, 1) {
        go_to(&fleet, 0);
        let foos = names(&format!("foo-{round}"), FOOS);
        create(&fleet.client, &fleet.namespace, &foos).await;
        fleet.converged().await;

        fleet.cluster.freeze_apiserver().await;
        go_to(&fleet, 1);
        let delete = DeleteParams::default();
        for (number, name) in foos.iter().enumerate() {
            match number % 4 {
                0 => drop(api.delete(name, &delete).await.unwrap()),
                1 => drop(deployments.delete(name, &delete).await.unwrap()),
                2 => {
                    let replicas = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
                    let patch = PatchParams::default();
                    api.patch(name, &patch, &replicas).await.unwrap();
                }
                _ => {}
            }
        }
        fleet.converged().await;
        // Changes that the frozen server has not seen are reconciled. Now a Foo that the replicas saw deleted exists again.
        create(&fleet.client, &fleet.namespace, &foos[..1]).await;
        fleet.converged().await;

        go_to(&fleet, 0);
        let old = fleet.leader(None).await;
        fleet.kill(old).await;
        fleet.restart(old, false);
        let later = names(&format!("later-{round}"), FOOS);
        tokio::join!(create(&fleet.client, &fleet.namespace, &later), async {
            sleep(FAST.retry / 2).await;
            fleet.cluster.thaw_apiserver().await;
        });
        // Any replica, including the restarted one.
        fleet.leader(None).await;
        fleet.converged().await;
    }
    if fencing {
        fleet.wait_for_record().await;
    }
    assert_eq!(fleet.violated("by a stale API server"), [].into());
}

/// Deletes Deployments whose Foo is deleted, because no garbage collector runs here. (If its watch of Foos lags behind its
/// watch of Deployments, a replica may create a Deployment for a deleted Foo.)
fn collect_garbage(fleet: &Fleet) -> JoinSet<()> {
    let foos: Api<Foo> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let deployments: Api<Deployment> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let mut collector = JoinSet::new();
    collector.spawn(async move {
        loop {
            sleep(Duration::from_millis(500)).await;
            let all = deployments.list(&ListParams::default()).await.unwrap();
            // Listed after the Deployments, so that no owner is missed.
            let owners = foos.list(&ListParams::default()).await.unwrap();
            let owners: BTreeSet<_> = owners.iter().filter_map(ResourceExt::uid).collect();
            for deployment in all {
                let mut refs = deployment.owner_references().iter();
                if refs.all(|owner| !owners.contains(&owner.uid)) {
                    let name = deployment.name_any();
                    let this = Preconditions {
                        uid: deployment.uid(),
                        resource_version: None,
                    };
                    let params = DeleteParams::default().preconditions(this);
                    // The name may belong to a new Deployment.
                    let _ = deployments.delete(&name, &params).await;
                }
            }
        }
    });
    collector
}

/// Lets each replica lead with its clock, and kills it. No invariant may be violated. A successor with any clock must lead within
/// the lease duration and one retry period after the kill. components/fast-failover has these times.
///
/// Returns the range of errors of the times that each replica has written into the Lease.
async fn with_clocks(
    clock: Clock,
    fencing: bool,
    set: impl Fn(&Fleet) -> JoinSet<()>,
) -> [RangeInclusive<f64>; 3] {
    /// For a busy machine, and for the rate of the timers.
    const SLACK: Duration = Duration::from_secs(2);
    let mut fleet = Fleet::start(Options {
        clock,
        fencing,
        ..Options::new(FAST, Way::Proxy)
    })
    .await;
    let _setting = set(&fleet);
    let load = Load::start(&fleet);
    let mut waits = Vec::new();
    let mut leader = fleet.leader(None).await;
    let count = fleet.replicas.len();
    for _ in 0..count {
        // Longer than the renew deadline, which a wrong clock may have changed.
        sleep(FAST.lease).await;
        assert_eq!(fleet.leader(None).await, leader, "it lost its lease");
        // A standby may always be the first because of its clock. So the other one is cut off.
        let (next, other) = ((leader + 1) % count, (leader + 2) % count);
        let before = fleet.cut(other);
        let killed = Instant::now();
        fleet.kill(leader).await;
        assert_eq!(fleet.leader(Some(leader)).await, next);
        waits.push(killed.elapsed());
        fleet.reconnect(other, before).await;
        fleet.restart(leader, false);
        fleet.warm(leader, next).await;
        leader = next;
    }
    println!("{clock:?}: taken over after {waits:?}");
    let longest = FAST.lease + FAST.retry + SLACK;
    assert!(waits.iter().all(|wait| *wait < longest), "{waits:?}");
    load.stop().await;
    fleet.converged().await;
    if fencing {
        fleet.wait_for_record().await;
    }
    assert_eq!(fleet.violated("with wrong clocks"), [].into());
    let log = fleet.cluster.audit();
    let errors = USERS.map(|user| {
        let writes = log
            .iter()
            .filter(|event| event.user == user && event.resource == "leases");
        let errors = writes.filter_map(|event| {
            let written = event.request_object["spec"]["renewTime"].as_str()?;
            let written: Timestamp = written.parse().unwrap();
            Some(written.duration_since(event.received.0).as_secs_f64())
        });
        let (least, most) = errors.fold((f64::MAX, f64::MIN), |(least, most), error| {
            (least.min(error), most.max(error))
        });
        least..=most
    });
    println!("seconds by which their times are wrong: {errors:?}");
    errors
}

/// One wall clock is an hour ahead, one is an hour behind, and one jumps between the two every two seconds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_replicas_have_wrong_and_jumping_wall_clocks() {
    wrong_and_jumping_wall_clocks(false).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_replicas_have_wrong_and_jumping_wall_clocks_with_fencing() {
    wrong_and_jumping_wall_clocks(true).await;
}

async fn wrong_and_jumping_wall_clocks(fencing: bool) {
    let jump = |fleet: &Fleet| {
        let clock = fleet.clock(2);
        let mut jumping = JoinSet::new();
        jumping.spawn(async move {
            for offset in ["+3600", "-3600"].into_iter().cycle() {
                std::fs::write(&clock, offset).unwrap();
                sleep(Duration::from_secs(2)).await;
            }
        });
        jumping
    };
    let clocks = Clock::Wall(["+3600", "-3600", "+3600"]);
    let [ahead, behind, jumping] = with_clocks(clocks, fencing, jump).await;
    assert!(*ahead.start() > 3590.0 && *behind.end() < -3590.0);
    assert!(*jumping.start() < -3590.0 && *jumping.end() > 3590.0);
}

/// The clocks and timers of replicas run at different rates, so that one renews late and one early.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_replicas_have_clocks_of_different_rates() {
    clocks_of_different_rates(false).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_replicas_have_clocks_of_different_rates_with_fencing() {
    clocks_of_different_rates(true).await;
}

async fn clocks_of_different_rates(fencing: bool) {
    let rates = Clock::Rate(["+0 x0.9", "+0 x1.1", "+0"]);
    let [slow, fast, _] = with_clocks(rates, fencing, |_| JoinSet::new()).await;
    assert!(*slow.start() < -0.2 && *fast.end() > 0.2);
}

/// Replaces a leader's token and revokes the old one. A request with it fails, the leader loads the new one, and its term
/// continues. `user` returns the kubeconfig's user. The token is in the file `token` beside the kubeconfig.
async fn a_revoked_token_costs_no_term(user: impl FnOnce(&TempDir) -> Value) -> TempDir {
    let cluster = audited_alone().await;
    let client = cluster.client().await;
    let namespace = &cluster.namespace("token").await;
    cluster.release_lease(namespace, "foo-controller").await;
    let kubectl = async |args: &[&str]| {
        let args = [&["--namespace", namespace], args].concat();
        cluster.kubectl(&args).await.success()
    };
    kubectl(&["create", "serviceaccount", "replica"]).await;
    let account = format!("--serviceaccount={namespace}:replica");
    let role = "--clusterrole=cluster-admin";
    kubectl(&["create", "clusterrolebinding", "replica", role, &account]).await;
    // A token is valid as long as its Secret exists.
    let token = async |secret: &str| {
        kubectl(&["create", "secret", "generic", secret]).await;
        let of = [
            "--bound-object-kind",
            "Secret",
            "--bound-object-name",
            secret,
        ];
        let token = kubectl(&[&["create", "token", "replica"], &of[..]].concat()).await;
        // A line break at the end, as most editors write it.
        format!("{}\n", token.trim())
    };
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    std::fs::write(&file, token("first").await).unwrap();
    let text = std::fs::read(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    kubeconfig["users"][0]["user"] = user(&home);
    let path = home.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let lease = format!("--lease-namespace={namespace}");
    let controller = Controller::spawn(|command| {
        command.env("KUBECONFIG", &path);
        command.args(["--leader-election", &lease]);
    });
    controller.wait_for_log("gained the lease").await;

    std::fs::write(&file, token("second").await).unwrap();
    kubectl(&["delete", "secret", "first"]).await;
    // The API server caches the result of a token review for 10 s.
    let refused = || {
        let mut events = cluster.audit();
        events.retain(|event| event.code == 401);
        events.len()
    };
    eventually(DEADLINE, "the first token is refused", async || {
        if refused() > 0 { Ok(()) } else { Err(()) }
    })
    .await;
    create(&client, namespace, &names("foo", 5)).await;
    converged(&client, namespace, &names("foo", 5)).await;
    // One request for each transport, and the requests in flight with the first token.
    let refused = refused();
    assert!(refused <= 5, "{refused} requests with the first token");
    assert_eq!(controller.logged("lost the lease"), 0);
    assert_eq!(controller.logged("gained the lease"), 1);
    home
}

#[tokio::test]
async fn a_token_that_is_replaced_and_revoked_costs_no_term() {
    let user = json!({ "tokenFile": "token" });
    a_revoked_token_costs_no_term(|_| user).await;
}

/// The exec plugin runs once at the start, and once after its token was rejected.
#[tokio::test]
async fn an_exec_plugin_is_run_again_when_its_token_is_revoked() {
    const PLUGIN: &str = r#"#!/bin/sh
cd "$(dirname "$0")" && echo >> runs
echo '{ "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential" }' |
  sed "s/ }/, \"status\": { \"token\": \"$(cat token)\" } }/"
"#;
    let home = a_revoked_token_costs_no_term(|home| {
        let plugin = home.path().join("plugin");
        std::fs::write(&plugin, PLUGIN).unwrap();
        std::fs::set_permissions(plugin, Permissions::from_mode(0o755)).unwrap();
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "interactiveMode": "Never",
        } })
    })
    .await;
    let runs = std::fs::read_to_string(home.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 2);
}

/// The API server gets a certificate of another CA, and the CA file of the kubeconfig is replaced. The replica reads the file
/// again within a minute, and continues.
#[tokio::test]
#[ignore = "takes a minute"]
async fn a_replaced_ca_is_accepted() {
    let cluster = audited_alone().await;
    let client = cluster.client().await;
    let namespace = &cluster.namespace("ca").await;
    let mut controller = Controller::start(&cluster, &["--namespace", namespace]);
    create(&client, namespace, &names("before", 1)).await;
    converged(&client, namespace, &names("before", 1)).await;
    cluster.kill_apiserver().await;
    for file in ["apiserver.crt", "apiserver.key"] {
        std::fs::remove_file(cluster.ready().dir.join("pki").join(file)).unwrap();
    }
    // The API server creates a missing CA and certificate. The kubeconfigs name this CA file.
    cluster.start_apiserver().await;
    println!("{}", controller.wait_for_log("certificate").await);
    let client = cluster.client().await;
    create(&client, namespace, &names("after", 1)).await;
    let begun = Instant::now();
    eventually(DEADLINE * 2, "the new certificate is trusted", async || {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        deployments.get("after-000").await
    })
    .await;
    println!("taken after {:?}", begun.elapsed());
    assert_eq!(controller.stop().await, 0);
}

/// Number of Foos at a time. Every [`CHURN`], one is created, one is changed and one is deleted.
const FOOS: usize = 50;
const CHURN: Duration = Duration::from_secs(1);
/// Unused connections are closed within this time.
const IDLE: Duration = Duration::from_mins(2);
/// Warm-up time. After it, a replica has performed all its operations and allocated their resources.
const WARM: Duration = Duration::from_mins(5);

/// Resources in use by a replica.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    memory: usize,
    files: usize,
    threads: usize,
    tasks: usize,
    series: usize,
}

impl Holdings {
    /// Scrapes ten times, and returns the minimum of each value. A single scrape could include a request in flight.
    async fn of(addr: SocketAddr) -> Self {
        let mut least = Self {
            memory: usize::MAX,
            files: usize::MAX,
            threads: usize::MAX,
            tasks: usize::MAX,
            series: usize::MAX,
        };
        for _ in 0..10 {
            sleep(Duration::from_secs(1)).await;
            let metrics = metrics(addr).await;
            let value = |name: &str| -> usize {
                let mut lines = metrics.lines();
                let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.expect(name).parse().unwrap()
            };
            let series = metrics.lines().filter(|line| !line.starts_with('#'));
            least = Self {
                memory: least.memory.min(value("process_resident_memory_bytes")),
                files: least.files.min(value("process_open_fds")),
                threads: least.threads.min(value("process_threads")),
                tasks: least.tasks.min(value("tokio_alive_tasks")),
                series: least.series.min(series.count()),
            };
        }
        least
    }

    /// Returns the resources that have grown beyond their normal variation. Allowed are a tenth of the memory (fragmentation),
    /// a few connections and their tasks, and the series of one more response code.
    fn grown_from(&self, before: &Self) -> Vec<String> {
        let limits = [
            ("memory", self.memory, before.memory + before.memory / 10),
            ("files", self.files, before.files + 4),
            ("threads", self.threads, before.threads),
            ("tasks", self.tasks, before.tasks + 4),
            ("series", self.series, before.series + 25),
        ];
        let grown = limits.into_iter().filter(|(_, now, limit)| now > limit);
        grown
            .map(|(what, now, limit)| format!("{what}: {now}, of at most {limit}"))
            .collect()
    }
}

async fn metrics(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = b"GET /metrics HTTP/1.0\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}");
    body.to_owned()
}

/// The resources of a replica do not grow with deleted Foos, changes or cut connections. A leader and a standby, each of which
/// loses its connections every other minute, use as much after an hour as after five minutes. `FOO_CONTROLLER_TEST_CHURN` sets
/// another number of minutes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour"]
async fn an_hour_of_churn_with_connections_cut_each_minute_leaves_nothing_behind() {
    let minutes = std::env::var("FOO_CONTROLLER_TEST_CHURN");
    let minutes = minutes.map_or(60, |minutes| minutes.parse().unwrap());
    let cluster = Cluster::start(Parts {
        audit: false,
        controllers: true,
    });
    cluster.install_crd().await;
    let client = cluster.client().await;
    let namespace = &cluster.namespace("churn").await;
    cluster.release_lease(namespace, "foo-controller").await;
    let proxies = [
        Proxy::start(cluster.kube_config().await).await,
        Proxy::start(cluster.kube_config().await).await,
    ];
    let replica = |proxy: &Proxy| {
        let (url, lease) = (proxy.url(), format!("--lease-namespace={namespace}"));
        let args = ["--leader-election", &lease, "--master", &url];
        Controller::start(&cluster, &args)
    };
    let leader = replica(&proxies[0]);
    leader.wait_for_log("gained the lease").await;
    let standby = replica(&proxies[1]);
    let addrs = [leader.http_addr().await, standby.http_addr().await];
    let holdings = async || {
        let [leader, standby] = addrs.map(Holdings::of);
        let (leader, standby) = tokio::join!(leader, standby);
        [leader, standby]
    };

    let churn = churn(&client, namespace);
    let watched = async {
        let begun = Instant::now();
        let mut warm = None;
        for minute in 1..=minutes {
            sleep((begun + Duration::from_secs(60 * minute)).duration_since(Instant::now())).await;
            if begun.elapsed() >= WARM && warm.is_none() {
                warm = Some(holdings().await);
                println!("after {minute} minutes: {warm:#?}");
            }
            if minute < minutes {
                proxies[usize::from(minute % 2 == 0)].disconnect();
            }
        }
        warm.expect("longer than five minutes")
    };
    let warm = tokio::select! {
        warm = watched => warm,
        () = churn => unreachable!(),
    };
    // Connections opened during slow responses are kept for a while, for reuse.
    let ends = Instant::now() + IDLE;
    loop {
        let end = holdings().await;
        println!("after {minutes} minutes: {end:#?}");
        let grown = end.iter().zip(&warm);
        let grown: Vec<_> = grown.flat_map(|(end, warm)| end.grown_from(warm)).collect();
        if grown.is_empty() {
            break;
        }
        assert!(Instant::now() < ends, "{grown:?}");
    }
    let gained = leader.logged("gained the lease") + standby.logged("gained the lease");
    println!("{gained} terms");
}

/// Creates, scales, renames and deletes Foos, and edits their Deployments, until cancelled.
async fn churn(client: &Client, namespace: &str) {
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let (params, patch) = (PostParams::default(), PatchParams::default());
    let mut there = VecDeque::new();
    let mut ticks = interval(CHURN);
    for number in 0_usize.. {
        ticks.tick().await;
        let name = format!("foo-{number}");
        foos.create(&params, &foo(&name)).await.unwrap();
        there.push_back(name);
        let changed = &there[number % there.len()];
        let replicas = json!({ "spec": { "replicas": 1 + number % 3 } });
        if number % 4 == 3 {
            // The Deployment may not exist yet, or no longer after a rename.
            let _ = deployments
                .patch(changed, &patch, &Patch::Merge(&replicas))
                .await;
        } else if number % 4 == 2 {
            let renamed = json!({ "spec": { "deploymentName": format!("{changed}-of-{number}") } });
            foos.patch(changed, &patch, &Patch::Merge(&renamed))
                .await
                .unwrap();
        } else {
            foos.patch(changed, &patch, &Patch::Merge(&replicas))
                .await
                .unwrap();
        }
        if there.len() > FOOS {
            let gone = there.pop_front().unwrap();
            foos.delete(&gone, &DeleteParams::default()).await.unwrap();
        }
        if number % 100 == 99 {
            let names: Vec<_> = there.iter().cloned().collect();
            converged(client, namespace, &names).await;
        }
    }
}
