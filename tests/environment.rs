//! What the world around a replica does to it, and a simulation cannot show of real processes: API servers of which one
//! stands still and comes back with what it knew, clocks that are wrong or jump, credentials that are replaced, and an
//! hour of churn. The controller is the real one, the API server too; the audit log is the judge (`invariants`).

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
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval, sleep},
};

use crate::{
    cluster::{Cluster, Options as Parts, eventually},
    controller::Controller,
    fleet::{Clock, DEADLINE, FAST, Fleet, Load, Options, USERS, Way, rounds},
    foos::{audited_alone, converged, create, foo, names},
    proxy::Proxy,
};

/// Two API servers on one etcd behind a load balancer. The one that all replicas are with stands still while the Foos
/// change by the other, and comes back with what it knew before, to replicas that come to it at once, one of them new:
/// what they then read is stale, and they do nothing by it that they should not (I1 to I8), and see the rest as soon as
/// the server does. (Nothing is being written when it is frozen: what it has received by then, it may carry out after
/// another has taken over.)
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_by_an_api_server_that_was_frozen_and_is_stale() {
    const FOOS: usize = 20;
    let mut fleet = Fleet::start(Options::new(FAST, Way::Balancer)).await;
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
        // All that it has not seen is done, and a Foo that it has seen go is there again.
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
        // Whoever it is, the new one too.
        fleet.leader(None).await;
        fleet.converged().await;
    }
    assert_eq!(fleet.violated("by a stale API server"), [].into());
}

/// Does what of the garbage collector is needed, which does not run here: deletes Deployments whose Foo is gone. (A
/// replica whose watch of Foos goes on later than that of Deployments may create one for a Foo that has been deleted.)
fn collect_garbage(fleet: &Fleet) -> JoinSet<()> {
    let foos: Api<Foo> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let deployments: Api<Deployment> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let mut collector = JoinSet::new();
    collector.spawn(async move {
        loop {
            sleep(Duration::from_millis(500)).await;
            let all = deployments.list(&ListParams::default()).await.unwrap();
            // Later than those whose owners they may be.
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
                    // It may be another one by now.
                    let _ = deployments.delete(&name, &params).await;
                }
            }
        }
    });
    collector
}

/// Each replica leads, and is stopped and killed, while its clock does what it does. There are never two that write (I1
/// to I8), and a successor is not later than a lease after its predecessor's last renewal and one attempt, whatever its
/// own clock says (hazards H5 and H11). Returns how wrong the times are that each has written into the Lease.
async fn with_clocks(
    clock: Clock,
    set: impl Fn(&Fleet) -> JoinSet<()>,
) -> [RangeInclusive<f64>; 3] {
    /// For a busy machine, and for the rate of the timers.
    const SLACK: Duration = Duration::from_secs(2);
    let mut fleet = Fleet::start(Options {
        clock,
        ..Options::new(FAST, Way::Direct)
    })
    .await;
    let _setting = set(&fleet);
    let load = Load::start(&fleet);
    let (mut led, mut waits) = (BTreeSet::new(), Vec::new());
    while led.len() < fleet.replicas.len() {
        let leader = fleet.leader(None).await;
        // Longer than its deadline, which its clock may have moved.
        sleep(FAST.lease).await;
        assert_eq!(fleet.leader(None).await, leader, "it lost its lease");
        if led.insert(leader) {
            let killed = Instant::now();
            fleet.kill(leader).await;
            let next = fleet.leader(Some(leader)).await;
            waits.push(killed.elapsed());
            fleet.restart(leader, false);
            fleet.warm(leader, next).await;
        } else {
            fleet.stop_leader().await;
        }
    }
    println!("{clock:?}: taken over after {waits:?}");
    let longest = FAST.lease + FAST.retry + SLACK;
    assert!(waits.iter().all(|wait| *wait < longest), "{waits:?}");
    load.stop().await;
    fleet.converged().await;
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

/// Hazard H5: the wall clocks of replicas are an hour ahead, an hour behind, and jump between the two every other
/// second.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_wall_clocks_that_are_wrong_and_jump() {
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
    let [ahead, behind, jumping] = with_clocks(clocks, jump).await;
    assert!(*ahead.start() > 3590.0 && *behind.end() < -3590.0);
    assert!(*jumping.start() < -3590.0 && *jumping.end() > 3590.0);
}

/// Hazards H5 and H11: the clocks of replicas, and with them their timers, go at other rates, so that one renews late
/// and one early.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's libfaketime"]
async fn h5_clocks_of_other_rates() {
    let rates = Clock::Rate(["+0 x0.9", "+0 x1.1", "+0"]);
    let [slow, fast, _] = with_clocks(rates, |_| JoinSet::new()).await;
    assert!(*slow.start() < -0.2 && *fast.end() > 0.2);
}

/// A leader's token is replaced and the old one revoked: it is refused, gets the new one, and its term goes on.
/// `user` returns the kubeconfig's user. The token is in the file `token` beside the kubeconfig.
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
    // Each is good for as long as its Secret is there.
    let token = async |secret: &str| {
        kubectl(&["create", "secret", "generic", secret]).await;
        let of = [
            "--bound-object-kind",
            "Secret",
            "--bound-object-name",
            secret,
        ];
        let token = kubectl(&[&["create", "token", "replica"], &of[..]].concat()).await;
        // As files end that people write.
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
    // The API server goes by what it found of a token for 10 s.
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
    // One for each way to the API server, and what was sent at the same time.
    let refused = refused();
    assert!(refused <= 5, "{refused} requests with the first token");
    assert_eq!(controller.logged("lost the lease"), 0);
    assert_eq!(controller.logged("gained the lease"), 1);
    home
}

/// The file ends with a line break.
#[tokio::test]
async fn a_token_that_is_replaced_and_revoked_costs_no_term() {
    let user = json!({ "tokenFile": "token" });
    a_revoked_token_costs_no_term(|_| user).await;
}

/// An exec plugin is run once at the start, and once when its token is refused.
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

/// The API server gets a certificate by another CA, and the file that the kubeconfig names the new CA: the replica goes
/// on, within a minute, as soon as it reads the file again.
#[tokio::test]
#[ignore = "takes a minute"]
async fn a_ca_that_is_replaced_is_taken() {
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
    // It makes a CA and a certificate where there are none, here: in the file that the kubeconfigs name.
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

/// Foos that are there at a time, while one comes, one is changed and one goes each [`CHURN`].
const FOOS: usize = 50;
const CHURN: Duration = Duration::from_secs(1);
/// A connection that nobody uses is closed by then.
const IDLE: Duration = Duration::from_mins(2);
/// After this, a replica has done all that it does, and what it has for it is there.
const WARM: Duration = Duration::from_mins(5);

/// What a replica holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    memory: usize,
    files: usize,
    threads: usize,
    tasks: usize,
    series: usize,
}

impl Holdings {
    /// By its metrics: the least of ten scrapes, or a request that is under way would be in them.
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

    /// What is more than before, beyond what comes and goes: of the memory a tenth, as an allocator's fragments; of
    /// connections, and of the tasks that drive them, a few; of the series those of one more answer to one request, such as a conflict.
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

/// Nothing of what a replica holds grows with the Foos that have come and gone, with their changes, or with the
/// connections that have been cut: of a leader and of a standby, each of which loses its connections every other
/// minute, there is after an hour what there was after five minutes. `FOO_CONTROLLER_TEST_CHURN` names other minutes
/// than 60.
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
    // What a slow API server has had opened more of at once is kept for a while, for the next requests.
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

/// Foos come, are scaled and renamed, have their Deployments edited, and go, for ever.
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
            // It may not be there yet, or no more after a rename.
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
