//! Server-side fencing (`deploy/components/fencing`) on a real API server: which writes are rejected, how soon, and the
//! reaction of the controller. Fencing does not depend on the state of a deposed leader.
#![allow(clippy::large_futures, reason = "a future that runs once")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{Duration, Instant},
};

use foo_controller::{
    APP,
    api::{Foo, FooSpec, FooStatus},
};
use foo_simulation::invariants::FENCING_HOLDER;
use http::{HeaderName, HeaderValue};
use k8s_openapi::{
    api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ServiceAccount},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
    core::Status,
};
use operator_runtime::{
    election::{Clock, FenceLayer, Term},
    internals::Identity,
    telemetry::metrics::Metrics,
};
use operator_testkit::cluster::{AuditEvent, Cluster, Options, as_pod, eventually};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell, watch};

use crate::support::{
    controller::Controller,
    fencing::{ACCOUNT, NAMESPACE, POLICY, RECORD, apply_overlay, create_pod, install, is_fenced},
};

/// Not shared with other files: the policy applies to all namespaces.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(Options::default()));

const DEADLINE: Duration = Duration::from_secs(30);
const LEASE: &str = "foo-controller";
const UID: &str = "0b9b2f1c-7d6e-4c0a-9a3e-0d4c5b6a7f80";

/// Name and UID of a pod.
type Pod<'a> = (&'a str, &'a str);
const A: Pod = ("pod-a", "uid-a");
const B: Pod = ("pod-b", "uid-b");

/// Exclusive use of the cluster with the policy and its only record. In `default`, the Foo `f` controls the Deployment `owned`.
/// `free` has no owner.
struct Bench {
    foo: Foo,
    records: Api<ServiceAccount>,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Bench {
    async fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let alone = ALONE.lock().await;
        let admin = CLUSTER.client().await;
        INSTALLED
            .get_or_init(async || {
                install(&CLUSTER).await;
                let spec = FooSpec {
                    deployment_name: "owned".into(),
                    replicas: Some(1),
                };
                let foos: Api<Foo> = Api::default_namespaced(admin.clone());
                let foo = Foo::new("f", spec);
                let foo = foos.create(&PostParams::default(), &foo).await.unwrap();
                let deployments: Api<Deployment> = Api::default_namespaced(admin.clone());
                for (name, foo) in [("owned", Some(&foo)), ("free", None)] {
                    let new = deployment(name, foo);
                    deployments
                        .create(&PostParams::default(), &new)
                        .await
                        .unwrap();
                }
            })
            .await;
        let foos: Api<Foo> = Api::default_namespaced(admin.clone());
        let bench = Self {
            foo: foos.get("f").await.unwrap(),
            records: Api::namespaced(admin, NAMESPACE),
            _alone: alone,
        };
        bench.create_record().await;
        bench.refused_to(A, "").await;
        bench
    }

    /// Creates the record if it is missing. It names no holder.
    async fn create_record(&self) {
        let record = serde_json::from_value(json!({"metadata": {"name": RECORD}})).unwrap();
        let created = self.records.create(&PostParams::default(), &record).await;
        if let Err(error) = created {
            assert!(
                matches!(&error, kube::Error::Api(status) if status.code == 409),
                "{error}"
            );
            self.led_by(None).await;
        }
    }

    async fn led_by(&self, holder: Option<&str>) {
        let record = Patch::Merge(json!({"metadata": {"annotations": {FENCING_HOLDER: holder}}}));
        let params = PatchParams::default();
        self.records.patch(RECORD, &params, &record).await.unwrap();
    }

    /// Returns a client with the controller's account and a token bound to this pod.
    async fn pod(&self, pod: Pod<'_>) -> Client {
        self.config(pod).await.try_into().unwrap()
    }

    async fn config(&self, (name, uid): Pod<'_>) -> Config {
        impersonated(as_pod(ACCOUNT, name, uid)).await
    }

    /// Waits until the API server admits this pod's write of a Foo's Deployment.
    async fn admitted(&self, pod: Pod<'_>) {
        let client = self.pod(pod).await;
        eventually(DEADLINE, &format!("{pod:?} is admitted"), async || {
            self.write(&client, Write::Change).await
        })
        .await;
    }

    /// Waits until the API server rejects that write, with this text in the message.
    async fn refused_to(&self, pod: Pod<'_>, words: &str) {
        let client = self.pod(pod).await;
        eventually(
            DEADLINE,
            &format!("{pod:?} is refused"),
            async || match self.write(&client, Write::Change).await {
                Err(refused) if is_fenced(&refused) && refused.message.contains(words) => Ok(()),
                other => Err(other),
            },
        )
        .await;
    }

    /// Sends a write as a dry run: the API server checks it without storing it.
    async fn write(&self, client: &Client, write: Write) -> Result<(), Box<Status>> {
        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        let post = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let patch = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let create = async |new| deployments.create(&post, &new).await.map(drop);
        let merge = async |name: &str, change: Value| {
            let change = Patch::Merge(change);
            deployments.patch(name, &patch, &change).await.map(drop)
        };
        let owned_by = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
        let owner = self.foo.controller_owner_ref(&()).unwrap();
        let scale = json!({"spec": {"replicas": 3}});
        let done = match write {
            Write::Create => create(deployment("new", Some(&self.foo))).await,
            Write::CreateFree => create(deployment("new", None)).await,
            Write::Change => merge("owned", scale).await,
            Write::ChangeFree => merge("free", scale).await,
            Write::Adopt => merge("free", owned_by(json!([owner]))).await,
            Write::Disown => merge("owned", owned_by(Value::Null)).await,
            Write::Delete(name) => {
                let params = DeleteParams::default().dry_run();
                deployments.delete(name, &params).await.map(drop)
            }
            Write::Status => {
                let foos: Api<Foo> = Api::default_namespaced(client.clone());
                let mut foo = self.foo.clone();
                foo.status = Some(FooStatus::default());
                let updated = foos.replace_subresource::<Foo>("status", "f", &post, &foo);
                updated.await.map(drop)
            }
        };
        done.map_err(|error| match error {
            kube::Error::Api(status) => status,
            other => panic!("{other}"),
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Create,
    Change,
    Adopt,
    Disown,
    Delete(&'static str),
    Status,
    CreateFree,
    ChangeFree,
}

/// Writes that the policy checks.
const FENCED: [Write; 6] = [
    Write::Create,
    Write::Change,
    Write::Adopt,
    Write::Disown,
    Write::Delete("owned"),
    Write::Status,
];
/// Writes that the policy does not check.
const FREE: [Write; 3] = [Write::CreateFree, Write::ChangeFree, Write::Delete("free")];

fn deployment(name: &str, foo: Option<&Foo>) -> Deployment {
    let owners: Vec<_> = foo
        .and_then(|foo| foo.controller_owner_ref(&()))
        .into_iter()
        .collect();
    let labels = json!({"app": "a"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }))
    .unwrap()
}

async fn impersonate(headers: &[(&'static str, &'static str)]) -> Client {
    let headers = headers.iter().map(|(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    });
    impersonated(headers).await.try_into().unwrap()
}

async fn impersonated(headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Config {
    let mut config = CLUSTER.kube_config().await;
    config.default_namespace = "default".into();
    config.headers.extend(headers);
    config
}

#[tokio::test]
async fn i1_only_the_holder_may_write_objects_of_foos() {
    let bench = Bench::new().await;
    bench.led_by(Some("pod-a_uid-a")).await;
    bench.admitted(A).await;
    bench
        .refused_to(
            B,
            "\"pod-b_uid-b\" is not the leader named by serviceaccount/foo-controller-fencing in foo-system: \"pod-a_uid-a\"",
        )
        .await;
    let (a, b) = (bench.pod(A).await, bench.pod(B).await);
    let renamed = bench.pod(("pod-a", "uid-b")).await;
    let pending = bench.pod(("pod-a_uid-a", "")).await;
    let bare = impersonate(&[("impersonate-user", ACCOUNT)]).await;
    for write in FENCED {
        bench.write(&a, write).await.unwrap();
        for other in [&b, &renamed, &pending, &bare] {
            let refused = bench.write(other, write).await.unwrap_err();
            assert!(is_fenced(&refused), "{write:?}: {refused:?}");
        }
    }
    let refused = bench.write(&bare, Write::Change).await.unwrap_err();
    let words = "not bound to a pod";
    assert!(refused.message.contains(words), "{}", refused.message);
    for write in FREE {
        for any in [&a, &b, &bare] {
            bench.write(any, write).await.unwrap();
        }
    }
    // RBAC forbids the other requests that scale or delete.
    let deployments: Api<Deployment> = Api::default_namespaced(a.clone());
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let params = PatchParams::default();
    for refused in [
        deployments
            .patch_scale("owned", &params, &scale)
            .await
            .map(drop),
        deployments
            .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())
            .await
            .map(drop),
    ] {
        let Err(kube::Error::Api(refused)) = refused else {
            panic!("{refused:?}");
        };
        assert!(refused.code == 403 && !is_fenced(&refused), "{refused:?}");
    }
}

/// A virtual machine was paused with all its clocks. For the fence in the controller the term is still valid, although another
/// replica leads. The API server rejects the write.
#[tokio::test]
async fn h20_a_leader_with_a_paused_clock_is_rejected_by_the_api_server() {
    let bench = Bench::new().await;
    let paused = Clock::from_fn(|| Duration::ZERO);
    let term = Term::new(1, 0, Duration::from_secs(10), paused);
    let layer = FenceLayer::new(watch::channel(Some(term)).1, &Metrics::disconnected(&APP));
    let client = ClientBuilder::try_from(bench.config(A).await).unwrap();
    let client = client.with_layer(&layer).build();
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let write = async |name: &str| {
        let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        deployments.patch(name, &params, &scale).await
    };
    bench.led_by(Some("pod-a_uid-a")).await;
    bench.admitted(A).await;
    write("owned").await.unwrap();
    bench.led_by(Some("pod-b_uid-b")).await;
    bench.admitted(B).await;
    let refused = write("owned").await.unwrap_err();
    assert!(
        operator_runtime::election::is_refused(&refused),
        "{refused}"
    );
    // The fence in the controller treats all writes alike, so the API server made the difference.
    write("free").await.unwrap();
}

#[tokio::test]
async fn a_record_without_a_holder_blocks_all_fenced_writes() {
    let bench = Bench::new().await;
    for holder in [Some(""), None] {
        bench.led_by(Some("pod-a_uid-a")).await;
        bench.admitted(A).await;
        bench.led_by(holder).await;
        bench.refused_to(A, "foo-system: none").await;
        let a = bench.pod(A).await;
        for write in FENCED {
            assert!(is_fenced(&bench.write(&a, write).await.unwrap_err()));
        }
    }
}

/// Requests of other users pass, no matter which holder the record names, and without a record. With `parameterNotFoundAction:
/// Deny`, a missing record would block all Deployments of the cluster.
#[tokio::test]
async fn other_users_pass_the_policy() {
    let bench = Bench::new().await;
    let gc = "system:serviceaccount:kube-system:generic-garbage-collector";
    let namesake = "system:serviceaccount:default:foo-controller";
    let mut others = Vec::new();
    for user in ["somebody", gc, namesake] {
        let group = ("impersonate-group", "system:masters");
        others.push(impersonate(&[("impersonate-user", user), group]).await);
    }
    let judged = async || {
        for other in &others {
            for write in FENCED.into_iter().chain(FREE) {
                bench.write(other, write).await.unwrap();
            }
        }
    };
    judged().await;
    bench.led_by(None).await;
    bench.refused_to(A, "foo-system: none").await;
    judged().await;
    let delete = DeleteParams::default();
    bench.records.delete(RECORD, &delete).await.unwrap();
    // The controller passes as well: without a record, the next leader could not name itself in it.
    bench.admitted(A).await;
    judged().await;
    bench.create_record().await;
    bench.refused_to(A, "foo-system: none").await;
}

/// CEL truncates the pod name like [`Identity`].
#[tokio::test]
async fn h9_a_long_identity_is_the_same_on_both_sides() {
    let bench = Bench::new().await;
    let names = [90, 91, 92, 253].map(|length| "p".repeat(length));
    for name in &names {
        let identity = Identity::new(name, UID).unwrap();
        bench.led_by(Some(identity.as_str())).await;
        bench.admitted((name, UID)).await;
        bench.refused_to((name, "another"), "").await;
        bench.refused_to((&name[..90 - 1], UID), "").await;
    }
}

/// The API server follows a changed record within a small multiple of the time that a write takes.
#[tokio::test]
async fn a_handover_is_seen_within_a_few_round_trips() {
    let bench = Bench::new().await;
    let clients = [bench.pod(A).await, bench.pod(B).await];
    let holders = ["pod-a_uid-a", "pod-b_uid-b"];
    bench.led_by(Some(holders[0])).await;
    bench.admitted(A).await;
    let (mut overstays, mut waits, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=50 {
        let (new, old) = (round % 2, (round + 1) % 2);
        let start = Instant::now();
        bench.write(&clients[old], Write::Change).await.unwrap();
        writes.push(start.elapsed());
        bench.led_by(Some(holders[new])).await;
        let changed = Instant::now();
        let old = async {
            let mut admitted = Duration::ZERO;
            loop {
                let sent = changed.elapsed();
                if bench.write(&clients[old], Write::Change).await.is_err() {
                    return admitted;
                }
                admitted = sent;
            }
        };
        let new = async {
            while bench.write(&clients[new], Write::Change).await.is_err() {}
            changed.elapsed()
        };
        let both = async { tokio::join!(old, new) };
        let (overstay, wait) = tokio::time::timeout(DEADLINE, both).await.unwrap();
        overstays.push(overstay);
        waits.push(wait);
    }
    let write = median("a write", &mut writes);
    for (what, times) in [
        ("last write of the old holder sent", &mut overstays),
        ("first write of the new holder answered", &mut waits),
    ] {
        let window = median(what, times);
        assert!(
            window < write * 20,
            "{window:?}, and a write takes {write:?}"
        );
    }
}

fn median(what: &str, times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{what}: {median:?} (median), {most:?} (most), {} times",
        times.len()
    );
    median
}

/// After `kubectl delete -k` and `apply -k`, the policy follows the next change of leader on both API servers of one etcd.
/// (With a Lease as its parameter, it would keep naming the previous leader: kubernetes#130887.)
#[tokio::test]
async fn fencing_that_was_reinstalled_follows_the_next_leader_on_every_api_server() {
    let cluster = Cluster::start(Options::default());
    // Both start before the policy exists: a server that finds the policy at its start never stops watching the parameter.
    let servers = [
        cluster.kubeconfig().to_owned(),
        cluster.start_second_apiserver().await,
    ];
    install(&cluster).await;
    cluster.release_lease(NAMESPACE, LEASE).await;
    let admin = cluster.client().await;
    let a = Replica::create(&cluster, "foo-controller-a").await;
    let b = Replica::create(&cluster, "foo-controller-b").await;
    // Each replica uses another server.
    let mut leader = a.run(&servers[0], &[]);
    leader.wait_for_log("gained the lease").await;
    let standby = b.run(&servers[1], &[]);
    standby.wait_for_log("standing by").await;
    let foos = Foos::new(admin);
    foos.deployed("before").await;

    let fencing = ["-k", "deploy/components/fencing"];
    cluster
        .kubectl(&[&["delete"], &fencing[..]].concat())
        .await
        .success();
    // Five times as long as an API server takes to stop a parameter's informer.
    tokio::time::sleep(Duration::from_secs(5)).await;
    apply_overlay(&cluster).await;
    // The new record names no holder until a write of the leader is rejected.
    for (pod, words) in [(&a, "foo-system: none"), (&b, "is not the leader")] {
        for server in &servers {
            pod.refused_at(server, "before", words).await;
        }
    }
    foos.deployed("between").await;

    assert_eq!(leader.stop().await, 0);
    standby.wait_for_log("gained the lease").await;
    let mut delays = Vec::new();
    for n in 0..5 {
        delays.push(foos.deployed(&format!("after-{n}")).await);
    }
    let delay = median(
        "from a Foo to its Deployment, after the hand-over",
        &mut delays,
    );
    assert!(delay < Duration::from_secs(2), "{delay:?}");
    for server in &servers {
        a.refused_at(
            server,
            "after-0",
            &format!("\"foo-controller-b_{}\"", b.uid),
        )
        .await;
        b.admitted_at(server, "after-0").await;
    }
    assert_eq!(standby.logged("the fencing policy has rejected"), 0);
}

/// Foos in `default`, as their user sees them.
struct Foos {
    foos: Api<Foo>,
    deployments: Api<Deployment>,
}

impl Foos {
    fn new(client: Client) -> Self {
        Self {
            foos: Api::default_namespaced(client.clone()),
            deployments: Api::default_namespaced(client),
        }
    }

    /// Creates a Foo and waits for its Deployment. Returns the elapsed time.
    async fn deployed(&self, name: &str) -> Duration {
        let spec = FooSpec {
            deployment_name: name.into(),
            replicas: Some(1),
        };
        let foo = Foo::new(name, spec);
        self.foos
            .create(&PostParams::default(), &foo)
            .await
            .unwrap();
        let created = Instant::now();
        eventually(
            DEADLINE,
            &format!("{name} has its Deployment"),
            async || self.deployments.get(name).await.map(drop),
        )
        .await;
        created.elapsed()
    }
}

/// Without leader election, the only replica writes the record at its start, and again after another client has changed it. If
/// the settings name no record, and the default is not the record of the policy, it writes the record that the policy names. A
/// configured record that does not exist is logged.
#[tokio::test]
async fn without_an_election_the_record_names_the_replica() {
    let bench = Bench::new().await;
    let namespace = CLUSTER.namespace("alone").await;
    let replica = Replica::create(&CLUSTER, "alone").await;
    let scope = format!("--namespace={namespace}");
    let args = ["--leader-election=false", &scope];
    let mut controller = replica.run(CLUSTER.kubeconfig(), &args);
    let client = CLUSTER.client().await;
    let foos = Foos {
        foos: Api::namespaced(client.clone(), &namespace),
        deployments: Api::namespaced(client, &namespace),
    };
    foos.deployed("a").await;
    bench.led_by(Some("intruder_1")).await;
    bench.refused_to(A, "\"intruder_1\"").await;
    foos.deployed("b").await;
    assert_eq!(controller.stop().await, 0);
    bench.led_by(None).await;
    bench.refused_to(A, "foo-system: none").await;
    let web = [&args[..], &["--lease-name=web"]].concat();
    let mut controller = replica.run(CLUSTER.kubeconfig(), &web);
    foos.deployed("c").await;
    controller
        .wait_for_log("writing the record that the fencing policy names")
        .await;
    assert_eq!(controller.stop().await, 0);
    let other = [&args[..], &["--fencing-record=other"]].concat();
    let mut controller = replica.run(CLUSTER.kubeconfig(), &other);
    controller
        .wait_for_log("install the fencing component, or unset leader_election.fencing_record")
        .await;
    assert_eq!(controller.stop().await, 0);
}

/// The life of a Foo under the policy, with exactly the permissions of `deploy/`. In between, a user edits the holder of the
/// Lease.
#[tokio::test]
async fn the_controller_works_with_the_policy_and_permissions_in_deploy() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: true,
    });
    install(&cluster).await;
    let admin = cluster.client().await;
    // Too long for an identity.
    let name = format!("foo-controller-{}", "x".repeat(100));
    let replica = Replica::create(&cluster, &name).await;
    // This replica creates the Lease. Another one would have to wait for its full duration.
    let mut creator = replica.run(cluster.kubeconfig(), &[]);
    creator.wait_for_log("lease has no holder").await;
    assert_eq!(creator.stop().await, 0);
    cluster.release_lease(NAMESPACE, LEASE).await;
    // The next renewal is later than all deadlines of this test, so it is not the cause of any event.
    let mut controller = replica.run(
        cluster.kubeconfig(),
        &[
            "--lease-duration=180s",
            "--lease-renew-deadline=120s",
            "--lease-retry-period=90s",
        ],
    );
    controller.wait_for_log("gained the lease").await;

    let foos: Api<Foo> = Api::default_namespaced(admin.clone());
    let deployments: Api<Deployment> = Api::default_namespaced(admin.clone());
    let ready = async |name: &str, replicas: i32| {
        eventually(DEADLINE, &format!("{name} has {replicas}"), async || {
            let status = foos.get("f").await.unwrap().status.unwrap_or_default();
            let serves = status.deployment_name.as_deref() == Some(name);
            if serves && status.available_replicas == Some(replicas) {
                Ok(())
            } else {
                Err(status)
            }
        })
        .await;
    };
    let set = async |name: &str, replicas: i32| {
        let spec = json!({"spec": {"deploymentName": name, "replicas": replicas}});
        let patched = foos
            .patch("f", &PatchParams::default(), &Patch::Merge(spec))
            .await;
        patched.unwrap();
    };
    let gone = async |name: &str| {
        eventually(DEADLINE, &format!("{name} is gone"), async || {
            deployments.get_opt(name).await.unwrap().map_or(Ok(()), Err)
        })
        .await;
    };
    let spec = FooSpec {
        deployment_name: "first".into(),
        replicas: Some(1),
    };
    let new = Foo::new("f", spec);
    foos.create(&PostParams::default(), &new).await.unwrap();
    ready("first", 1).await;
    set("first", 2).await;
    ready("first", 2).await;
    set("second", 2).await;
    ready("second", 2).await;
    gone("first").await;

    // A user edits the Lease and the record.
    hold(&admin, Some("intruder")).await;
    set("second", 3).await;
    // The first write may still pass, a later one does not.
    eventually(DEADLINE, "a write is refused", async || {
        let drift = uuid::Uuid::new_v4().to_string();
        let patch = Patch::Merge(json!({"metadata": {"labels": {"controller": drift}}}));
        deployments
            .patch("second", &PatchParams::default(), &patch)
            .await
            .unwrap();
        let audit = cluster.audit();
        audit.iter().any(is_refused).then_some(()).ok_or(())
    })
    .await;
    let lost = controller.wait_for_log("lost the lease").await;
    assert!(lost.contains("intruder holds it"), "{lost}");
    controller.wait_for_log("standing by").await;

    hold(&admin, None).await;
    ready("second", 3).await;
    assert_eq!(controller.stop().await, 0);
    assert_eq!(controller.logged("gained the lease"), 2);
    assert_eq!(
        controller.logged("lost the lease"),
        1,
        "nothing stale deposed the new leader"
    );
    assert_right_requests(&cluster).await;
    assert_well_typed(&cluster).await;
}

/// Edits the holder in the Lease and in the record. Without a holder, the Lease looks like one that its holder released.
async fn hold(admin: &Client, holder: Option<&str>) {
    let records: Api<ServiceAccount> = Api::namespaced(admin.clone(), NAMESPACE);
    let leases: Api<Lease> = Api::namespaced(admin.clone(), NAMESPACE);
    let now = MicroTime(Timestamp::now());
    let mut spec = json!({"holderIdentity": holder, "renewTime": now});
    if holder.is_none() {
        spec["leaseDurationSeconds"] = 1.into();
        spec["acquireTime"] = spec["renewTime"].clone();
    }
    let spec = Patch::Merge(json!({"spec": spec}));
    leases
        .patch(LEASE, &PatchParams::default(), &spec)
        .await
        .unwrap();
    let record = Patch::Merge(json!({"metadata": {"annotations": {FENCING_HOLDER: holder}}}));
    records
        .patch(RECORD, &PatchParams::default(), &record)
        .await
        .unwrap();
}

/// Returns whether this is a rejected request of the controller's account.
fn is_refused(event: &AuditEvent) -> bool {
    event.code == 403 && event.user == ACCOUNT
}

/// Only the policy rejected requests, no rejection is in a status, and every granted permission was used.
async fn assert_right_requests(cluster: &Cluster) {
    let audit: Vec<_> = cluster
        .audit()
        .into_iter()
        .filter(|event| event.user == ACCOUNT)
        .collect();
    println!(
        "writes refused by the API server: {}",
        audit.iter().filter(|event| is_refused(event)).count()
    );
    for event in &audit {
        let message = event.response_object["message"]
            .as_str()
            .unwrap_or_default();
        assert!(event.code != 403 || message.contains(POLICY), "{event:?}");
        let reported = event.request_object["status"].to_string();
        assert!(
            !reported.contains("Rejected"),
            "not the Foo's fault: {reported}"
        );
    }
    let mut used = used(&audit);
    used.retain(|right| right != EVERYBODYS && !is_needed_elsewhere(right));
    assert_eq!(used, granted(cluster).await);
}

/// kube-controller-manager has type-checked the policy's expressions without a warning.
async fn assert_well_typed(cluster: &Cluster) {
    let policy = "validatingadmissionpolicy/foo-controller-fencing";
    let status = ["get", policy, "-o=jsonpath={.status}"];
    let status = cluster.kubectl(&status).await.success();
    assert!(
        status.contains("observedGeneration") && !status.contains("expressionWarnings"),
        "{status}"
    );
}

/// A pod of the controller's account, with a token bound to it.
struct Replica {
    name: String,
    uid: String,
    token: String,
    home: tempfile::TempDir,
}

impl Replica {
    async fn create(cluster: &Cluster, name: &str) -> Self {
        let uid = create_pod(cluster, name, "foo-controller").await;
        let (named, with) = (
            format!("--bound-object-name={name}"),
            format!("--bound-object-uid={uid}"),
        );
        let create = [
            "create",
            "token",
            "foo-controller",
            "--namespace",
            NAMESPACE,
            "--bound-object-kind=Pod",
            &named,
            &with,
        ];
        let token = cluster.kubectl(&create).await.success();
        Self {
            name: name.to_owned(),
            uid,
            token: token.trim().to_owned(),
            home: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns its kubeconfig for the server of the kubeconfig `admin`.
    fn kubeconfig(&self, admin: &Path) -> PathBuf {
        let config = std::fs::read_to_string(admin).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["users"][0]["user"]["token"] = self.token.as_str().into();
        let path = self.home.path().join(admin.file_name().unwrap());
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Starts the controller of this pod, connected to this server.
    fn run(&self, admin: &Path, args: &[&str]) -> Controller {
        let kubeconfig = self.kubeconfig(admin);
        Controller::spawn(|command| {
            command
                .env("KUBECONFIG", &kubeconfig)
                .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
                .env("POD_NAME", &self.name)
                .env("POD_UID", &self.uid)
                .env("POD_NAMESPACE", NAMESPACE)
                .args(args);
        })
    }

    /// Sends a write of this pod to a Foo's Deployment, as a dry run, and returns the server's response.
    async fn write(&self, admin: &Path, name: &str) -> Result<(), Box<Status>> {
        let config = Kubeconfig::read_from(self.kubeconfig(admin)).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(config, &options).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
        let deployments: Api<Deployment> = Api::default_namespaced(client);
        match deployments.patch(name, &params, &scale).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(status),
            Err(other) => panic!("{other}"),
        }
    }

    async fn refused_at(&self, admin: &Path, name: &str, words: &str) {
        let what = format!("{} is refused at {}: {words}", self.name, admin.display());
        eventually(DEADLINE, &what, async || {
            match self.write(admin, name).await {
                Err(refused) if is_fenced(&refused) && refused.message.contains(words) => Ok(()),
                other => Err(other),
            }
        })
        .await;
    }

    async fn admitted_at(&self, admin: &Path, name: &str) {
        let what = format!("{} is admitted at {}", self.name, admin.display());
        eventually(DEADLINE, &what, async || self.write(admin, name).await).await;
    }
}

/// Returns the successful requests as `verb resource`.
fn used(audit: &[AuditEvent]) -> BTreeSet<String> {
    let done = audit
        .iter()
        .filter(|event| event.code < 300 && !event.resource.is_empty());
    done.map(|event| match &*event.subresource {
        "" => format!("{} {}", event.verb, event.resource),
        subresource => format!("{} {}/{subresource}", event.verb, event.resource),
    })
    .collect()
}

/// Permission of every user (`ClusterRole` `system:basic-user`): to review its own permissions.
const EVERYBODYS: &str = "create selfsubjectaccessreviews";

/// Returns whether only other servers need this permission. Servers that cannot stream lists need `list`. Servers with the
/// admission plugin `OwnerReferencesPermissionEnforcement` check `foos/finalizers`, which the controller never writes.
fn is_needed_elsewhere(right: &str) -> bool {
    match right {
        "update foos/finalizers" => true,
        _ => right.starts_with("list "),
    }
}

/// Returns the permissions of `deploy/` as `verb resource`, except those of [`is_needed_elsewhere`].
async fn granted(cluster: &Cluster) -> BTreeSet<String> {
    let in_namespace = format!("--namespace={NAMESPACE}");
    let roles = [
        vec!["clusterrole/foo-controller"],
        vec!["clusterrole/foo-controller-fencing"],
        vec!["role/foo-controller", &in_namespace],
    ];
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let mut granted = BTreeSet::new();
    for role in roles {
        let get = [&["get", "-o=json"], &role[..]].concat();
        let role = cluster.kubectl(&get).await.success();
        let role: Value = serde_json::from_str(&role).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            for resource in texts(&rule["resources"]) {
                let verbs = texts(&rule["verbs"]).into_iter();
                granted.extend(verbs.map(|verb| format!("{verb} {resource}")));
            }
        }
    }
    for right in ["list foos", "list deployments", "update foos/finalizers"] {
        assert!(granted.contains(right), "{right}");
    }
    granted.retain(|right| !is_needed_elsewhere(right));
    granted
}
