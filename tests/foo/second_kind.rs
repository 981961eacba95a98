//! The guarantees of the runtime for other operators than Foo. Its examples run as real processes on one API server. The leader
//! is killed, frozen and stopped while objects are created, changed and deleted. `invariants` checks the audit log.
//!
//! The first example is an operator of another resource type (`second_kind`), with a finalizer and a Secret that it reads. The
//! second example is kube's own `Controller`, which uses only the runtime's election and fenced client (`kube_controller`). The
//! third one, `several_kinds`, is in the folder. So is the fourth one, an operator with a kind that may not be installed
//! (`optional_kind`).

mod optional;
mod several;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use futures::{StreamExt as _, future::ready, stream::iter};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret, Service},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use operator_simulation::invariants::{Election, Report, Work, check_of};
use operator_testkit::cluster::{Cluster, Options, eventually, example};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, watch},
    task::{JoinHandle, JoinSet},
    time::{interval, sleep},
};

use crate::support::controller::Controller;

/// Limit of each wait: the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(1);
const LEASE: Duration = Duration::from_secs(4);
const RENEW: Duration = Duration::from_millis(2500);
const RETRY: Duration = Duration::from_millis(500);
/// Interval between new objects, and size and concurrency of the burst during which a leader is frozen.
const ARRIVAL: Duration = Duration::from_millis(100);
const BURST: usize = 40;
const HANDS: usize = 8;
/// Time without changes, in which no write may occur.
const QUIET: Duration = Duration::from_secs(3);

/// Returns the control plane that all tests of this file share.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = async || {
        Cluster::start(Options {
            audit: true,
            controllers: false,
        })
    };
    CLUSTER.get_or_init(start).await
}

/// An example of the runtime.
struct Operator {
    example: &'static str,
    /// Prefix of its environment variables, and name of its Lease.
    prefix: &'static str,
    lease: &'static str,
    works: &'static [Work],
}

/// A replica: a user with a sequence of processes.
struct Replica {
    user: &'static str,
    pod: usize,
    process: Controller,
}

/// Returns the output of a command of the operator.
fn printed(operator: &Operator, command: &str) -> String {
    let program = example(operator.example);
    let output = Command::new(program).arg(command).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Two replicas of an operator in their own namespace.
struct Fleet {
    operator: &'static Operator,
    namespace: String,
    client: Client,
    settings: Vec<(String, String)>,
    replicas: Vec<Replica>,
}

impl Fleet {
    /// Starts the replicas with additional settings.
    async fn start(
        operator: &'static Operator,
        users: [&'static str; 2],
        settings: &[(&str, &str)],
    ) -> Self {
        let cluster = cluster().await;
        let namespace = cluster.namespace("second").await;
        cluster.release_lease(&namespace, operator.lease).await;
        let prefix = operator.prefix;
        let time = |duration: Duration| format!("{}ms", duration.as_millis());
        let election = format!("{prefix}LEADER_ELECTION__");
        let mut all = vec![
            ("POD_NAMESPACE".to_owned(), namespace.clone()),
            (format!("{prefix}NAMESPACES"), namespace.clone()),
            (format!("{prefix}HTTP__ADDR"), "127.0.0.1:0".to_owned()),
            (format!("{prefix}LOG__FORMAT"), "text".to_owned()),
            (format!("{election}LEASE_DURATION"), time(LEASE)),
            (format!("{election}RENEW_DEADLINE"), time(RENEW)),
            (format!("{election}RETRY_PERIOD"), time(RETRY)),
        ];
        for (key, value) in settings {
            all.push((format!("{prefix}{key}"), (*value).to_owned()));
        }
        let replicas = users.map(|user| Replica {
            user,
            pod: 0,
            process: spawn(operator, cluster, &all, user, 0),
        });
        let fleet = Self {
            operator,
            namespace,
            client: cluster.client().await,
            settings: all,
            replicas: replicas.into(),
        };
        fleet.leader(None).await;
        fleet
    }

    /// Waits until a replica except `old` holds the Lease.
    async fn leader(&self, old: Option<usize>) -> usize {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(DEADLINE, "somebody leads", async || {
            let lease = leases.get(self.operator.lease).await;
            let lease = lease.map_err(|error| error.to_string())?;
            let holder = lease.spec.unwrap().holder_identity.unwrap_or_default();
            let leads = |replica: &Replica| holder == format!("{}_{}", replica.user, replica.pod);
            let leader = self.replicas.iter().position(leads);
            leader.filter(|leader| Some(*leader) != old).ok_or(holder)
        })
        .await
    }

    async fn restart(&mut self, replica: usize) {
        let Replica { user, pod, process } = &mut self.replicas[replica];
        *pod += 1;
        let cluster = cluster().await;
        *process = spawn(self.operator, cluster, &self.settings, user, *pod);
        eventually(DEADLINE, "it has read the Lease", async || {
            let runs = process.logged("standing by") + process.logged("gained the lease");
            if runs > 0 { Ok(()) } else { Err(()) }
        })
        .await;
    }

    /// Sends SIGKILL.
    async fn kill_leader(&mut self) {
        let leader = self.leader(None).await;
        let process = &mut self.replicas[leader].process;
        process.signal(Signal::KILL);
        process.exit_code().await;
        self.leader(Some(leader)).await;
        self.restart(leader).await;
    }

    /// Sends SIGTERM.
    async fn stop_leader(&mut self) {
        let leader = self.leader(None).await;
        assert_eq!(self.replicas[leader].process.stop().await, 0);
        self.leader(Some(leader)).await;
        self.restart(leader).await;
    }

    /// Sends SIGSTOP, and continues the process after another replica has led for a while.
    async fn freeze_leader(&mut self) {
        let leader = self.leader(None).await;
        let process = &self.replicas[leader].process;
        let before = process.logged("lost");
        process.signal(Signal::STOP);
        self.leader(Some(leader)).await;
        sleep(frozen_for()).await;
        process.signal(Signal::CONT);
        eventually(DEADLINE, "it knows that it leads no more", async || {
            let times = process.logged("lost");
            if times > before { Ok(()) } else { Err(()) }
        })
        .await;
    }

    async fn check(&self, quiet: &[(Timestamp, Timestamp)]) -> Report {
        let users = self.replicas.iter().map(|replica| replica.user.to_owned());
        let election = Election {
            users: users.collect(),
            lease: self.operator.lease.to_owned(),
            lease_duration: LEASE,
            renew_deadline: RENEW,
        };
        let report = check_of(
            self.operator.works,
            &cluster().await.audit(),
            &election,
            quiet,
        );
        println!("{}: {report}", self.operator.example);
        assert!(report.violations.is_empty(), "{report}");
        report
    }

    /// Waits for a period without changes.
    async fn quiet(&self) -> (Timestamp, Timestamp) {
        // Events are written last.
        let events = || async {
            let log = cluster().await.audit();
            let ours = |user: &str| self.replicas.iter().any(|replica| replica.user == user);
            log.iter()
                .filter(|event| event.resource == "events" && ours(&event.user))
                .count()
        };
        eventually(DEADLINE, "the last event", async || {
            let before = events().await;
            sleep(Duration::from_secs(1)).await;
            if events().await == before {
                Ok(())
            } else {
                Err(())
            }
        })
        .await;
        let from = Timestamp::now();
        sleep(QUIET).await;
        (from, Timestamp::now())
    }
}

/// Time that a leader stays frozen after a takeover. With `FOO_CONTROLLER_TEST_ROUNDS=full` it is as long as for Foo's
/// replicas.
fn frozen_for() -> Duration {
    let asked = std::env::var("FOO_CONTROLLER_TEST_ROUNDS");
    if asked.is_ok_and(|rounds| rounds == "full") {
        Duration::from_secs(25)
    } else {
        RENEW
    }
}

fn spawn(
    operator: &Operator,
    cluster: &Cluster,
    settings: &[(String, String)],
    user: &str,
    pod: usize,
) -> Controller {
    // `tests/package/test.sh` sets another build of the program.
    let program = std::env::var_os("FOO_CONTROLLER_TEST_PROGRAM");
    let program = program.map_or_else(|| example(operator.example), PathBuf::from);
    Controller::spawn_program(program, |command: &mut Command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .env("POD_NAME", user)
            .env("POD_UID", pod.to_string())
            .envs(settings.iter().cloned());
    })
}

/// Operations of users until it is stopped: objects are created one by one, and some of them changed or deleted.
struct Load {
    stop: watch::Sender<bool>,
    task: JoinHandle<BTreeMap<String, Value>>,
}

impl Load {
    fn start<L: Future<Output = Option<(String, Value)>> + Send + 'static>(
        life: impl Fn(usize) -> L + Send + 'static,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut arrivals = interval(ARRIVAL);
            let mut lives = JoinSet::new();
            for number in 0.. {
                arrivals.tick().await;
                if *stopped.borrow() {
                    break;
                }
                lives.spawn(life(number));
            }
            lives.join_all().await.into_iter().flatten().collect()
        });
        Self { stop, task }
    }

    /// Stops the load, and returns the remaining objects.
    async fn stop(self) -> BTreeMap<String, Value> {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}

static RELAYS: Operator = Operator {
    example: "second_kind",
    prefix: "RELAY_OPERATOR__",
    lease: "relay-operator",
    works: &[Work {
        kind: "Relay",
        primary: "relays",
        owned: &["configmaps", "services"],
        status: true,
        finalizers: true,
        fencing_holder: "example.com/lease-holder",
    }],
};

/// The Relays of a namespace, and the objects owned by them.
#[derive(Clone)]
struct Relays {
    objects: Api<DynamicObject>,
    config_maps: Api<ConfigMap>,
    services: Api<Service>,
    secrets: Api<Secret>,
    resource: ApiResource,
}

impl Relays {
    async fn install() {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        INSTALLED.get_or_init(Self::apply).await;
    }

    async fn apply() {
        let crds = printed(&RELAYS, "crd");
        cluster().await.install_crds(&crds).await;
    }

    fn of(fleet: &Fleet) -> Self {
        Self::in_namespace(&fleet.client, &fleet.namespace)
    }

    fn in_namespace(client: &Client, namespace: &str) -> Self {
        let kind = GroupVersionKind::gvk("example.com", "v1", "Relay");
        let resource = ApiResource::from_gvk_with_plural(&kind, "relays");
        Self {
            objects: Api::namespaced_with(client.clone(), namespace, &resource),
            config_maps: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            resource,
        }
    }

    async fn create(&self, name: &str, port: usize, secret: &str) {
        let relay = DynamicObject::new(name, &self.resource);
        let spec = json!({ "spec": { "port": port, "secretName": secret } });
        let relay = relay.data(spec);
        let created = self.objects.create(&PostParams::default(), &relay).await;
        created.unwrap();
    }

    async fn token(&self, secret: &str, token: &str) {
        let secret_with_token = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret }, "stringData": { "token": token },
        });
        let params = PatchParams::apply("somebody").force();
        let patch = Patch::Apply(secret_with_token);
        self.secrets.patch(secret, &params, &patch).await.unwrap();
    }

    /// Runs the life of one Relay. Returns its name and port if it remains.
    async fn life_of(self, number: usize) -> Option<(String, Value)> {
        let (name, port) = (format!("relay-{number}"), 1000 + number);
        self.create(&name, port, "token").await;
        match number % 3 {
            0 => Some((name, port.into())),
            1 => {
                sleep(Duration::from_millis(300)).await;
                let patch = Patch::Merge(json!({ "spec": { "port": port + 1 } }));
                let params = PatchParams::default();
                self.objects.patch(&name, &params, &patch).await.unwrap();
                Some((name, (port + 1).into()))
            }
            _ => {
                sleep(Duration::from_millis(500)).await;
                let params = DeleteParams::default();
                self.objects.delete(&name, &params).await.unwrap();
                None
            }
        }
    }

    /// Returns status, reason and message of a Relay's condition.
    async fn condition(&self, name: &str, type_: &str) -> String {
        let relay = self.objects.get(name).await.unwrap();
        let conditions = relay.data["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.find(|condition| condition["type"] == type_);
        condition.map_or(String::new(), |condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            let condition = [text("status"), text("reason"), text("message")].join(" ");
            condition.trim_end().to_owned()
        })
    }

    async fn has_condition(&self, name: &str, type_: &str, expected: &str) {
        eventually(DEADLINE, &format!("{type_} is {expected}"), async || {
            let seen = self.condition(name, type_).await;
            if seen == expected { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// Waits until exactly these Relays exist, each has its objects, and exactly these are registered.
    async fn converged(
        &self,
        expected: &BTreeMap<String, Value>,
        registry: &Path,
        namespace: &str,
    ) {
        let all = ListParams::default();
        eventually(DEADLINE, "all Relays are right", async || {
            let (relays, maps, services) = (
                self.objects.list(&all).await.unwrap().items,
                self.config_maps.list(&all).await.unwrap().items,
                self.services.list(&all).await.unwrap().items,
            );
            let there: BTreeSet<_> = relays.iter().map(ResourceExt::name_any).collect();
            let mut wrong: Vec<String> = Vec::new();
            if !there.iter().eq(expected.keys()) {
                wrong.push(format!("{} of {} Relays", there.len(), expected.len()));
            }
            for relay in &relays {
                let (name, port) = (relay.name_any(), &relay.data["spec"]["port"]);
                let owned = |owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
                    owners.iter().any(|owner| Some(&owner.uid) == relay.uid().as_ref())
                };
                let map = maps.iter().find(|map| map.name_any() == name);
                let has_map = map.is_some_and(|map| {
                    let data = map.data.iter().flatten().next();
                    owned(map.owner_references())
                        && data.is_some_and(|(_, text)| text.starts_with(&format!("listen {port}\n")))
                });
                let service = services.iter().find(|service| service.name_any() == name);
                let has_service = service.is_some_and(|service| {
                    let spec = service.spec.as_ref().unwrap();
                    let ports: Vec<_> = spec.ports.iter().flatten().map(|port| port.port).collect();
                    owned(service.owner_references()) && json!(ports) == json!([port])
                });
                let status = &relay.data["status"];
                let is_reported = status["observedGeneration"].as_i64() == relay.metadata.generation
                    && self.condition(&name, "Ready").await == "True Made";
                if !(has_map && has_service && is_reported && expected.get(&name) == Some(port)) {
                    wrong.push(format!("{name}: {has_map} {has_service} {is_reported}"));
                }
            }
            let registered = registered(registry);
            let of = |(name, port): (&String, &Value)| (format!("{namespace}/{name}"), port.to_string());
            let expected: BTreeSet<_> = expected.iter().map(of).collect();
            for other in expected.symmetric_difference(&registered) {
                wrong.push(format!("registered: {other:?}"));
            }
            wrong.truncate(5);
            if wrong.is_empty() { Ok(()) } else { Err(wrong) }
        })
        .await;
    }
}

/// Returns the registered `namespace/name` with their ports.
fn registered(registry: &Path) -> BTreeSet<(String, String)> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let files = entries(registry).flat_map(|namespace| entries(&namespace));
    let files = files.map(|file| {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let name = file.strip_prefix(registry).unwrap();
        (name.to_str().unwrap().to_owned(), text)
    });
    files.collect()
}

/// A resource type other than Foo under all faults. A Secret that it reads and does not own enqueues its objects, and its
/// external action is undone at the end.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_for_another_kind_through_faults() {
    Relays::install().await;
    let registry = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // A resync would hide a change that does not enqueue.
    let settings = [
        ("REGISTRY", registry.path().to_str().unwrap()),
        ("RESYNC", "1h"),
    ];
    let mut fleet = Fleet::start(&RELAYS, ["replica-1", "replica-2"], &settings).await;
    let relays = Relays::of(&fleet);

    relays.create("first", 1, "missing").await;
    let missing = "no token in Secret \"missing\"";
    let found = "CredentialsFound";
    relays
        .has_condition("first", found, &format!("False Missing {missing}"))
        .await;
    relays
        .has_condition("first", "Ready", &format!("False Waiting {missing}"))
        .await;
    relays.token("missing", "one").await;
    relays.has_condition("first", found, "True Found").await;
    relays.has_condition("first", "Ready", "True Made").await;
    let mut conf = relays.config_maps.get("first").await.unwrap().data;
    // More changes than the limit on corrections. No other client changes the ConfigMap, so the limit does not apply.
    for token in 0..15 {
        relays.token("missing", &format!("token-{token}")).await;
        conf = eventually(
            Duration::from_secs(10),
            "the ConfigMap follows",
            async || {
                let new = relays.config_maps.get("first").await.unwrap().data;
                if new == conf { Err(new) } else { Ok(new) }
            },
        )
        .await;
    }

    relays.token("token", "shared").await;
    let load = Load::start({
        let relays = relays.clone();
        move |number| relays.clone().life_of(number)
    });
    fleet.kill_leader().await;
    let burst = (0..BURST).map(|number| format!("burst-{number}"));
    let burst: Vec<String> = burst.collect();
    let created = async {
        iter(&burst)
            .map(|name| relays.create(name, 80, "token"))
            .buffer_unordered(HANDS)
            .for_each(|()| ready(()))
            .await;
    };
    let begun = async {
        let first = &burst[BURST / 10];
        eventually(DEADLINE, "it is at work", async || {
            relays.config_maps.get(first).await.map(drop)
        })
        .await;
        fleet.freeze_leader().await;
    };
    tokio::join!(created, begun);
    fleet.stop_leader().await;
    let mut left = load.stop().await;
    left.insert("first".to_owned(), 1.into());
    left.extend(burst.into_iter().map(|name| (name, 80.into())));
    relays
        .converged(&left, registry.path(), &fleet.namespace)
        .await;
    let quiet = fleet.quiet().await;

    let all = (DeleteParams::default(), ListParams::default());
    relays
        .objects
        .delete_collection(&all.0, &all.1)
        .await
        .unwrap();
    relays
        .converged(&BTreeMap::new(), registry.path(), &fleet.namespace)
        .await;
    let report = fleet.check(&[quiet]).await;
    assert!(
        report.terms >= 4 && report.writes > 5 * left.len(),
        "{report}"
    );
    println!("{} Relays were left, and are gone", left.len());
}

/// Returns the permissions of a Role as `verb resource`.
fn granted(role: &Value) -> BTreeSet<String> {
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for resource in texts(&rule["resources"]) {
            let verbs = texts(&rule["verbs"]).into_iter();
            granted.extend(verbs.map(|verb| format!("{verb} {resource}")));
        }
    }
    granted
}

/// Returns the successful requests of a user as `verb resource`, except reviews of its own permissions.
fn used(cluster: &Cluster, user: &str) -> BTreeSet<String> {
    let log = cluster.audit().into_iter();
    let done = log.filter(|event| event.user == user && event.code < 300);
    let done = done.filter(|event| !event.resource.ends_with("reviews"));
    done.map(|event| match &*event.subresource {
        "" => format!("{} {}", event.verb, event.resource),
        subresource => format!("{} {}/{subresource}", event.verb, event.resource),
    })
    .collect()
}

/// The printed permissions are sufficient to create, correct, report and undo, also with the longest possible name. Every granted
/// permission is used.
#[tokio::test]
async fn the_documented_permissions_suffice() {
    /// Needed by API servers that cannot stream lists, or that run the admission plugin `OwnerReferencesPermissionEnforcement`.
    const NEEDED_ELSEWHERE: [&str; 4] = [
        "list configmaps",
        "list services",
        "list secrets",
        "update relays/finalizers",
    ];
    Relays::install().await;
    let cluster = cluster().await;
    let namespace = cluster.namespace("rights").await;
    let kubectl = async |args: &[&str], input: &str| {
        let args = [&["-n", &namespace], args].concat();
        cluster.kubectl_stdin(&args, input).await.success()
    };
    kubectl(&["apply", "-f", "-"], &printed(&RELAYS, "rbac")).await;
    // Other tests of this file check the Lease of the original name.
    let lease = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "lease" },
        "rules": [
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["rights"],
              "verbs": ["get", "watch", "patch"] },
        ],
    });
    kubectl(&["apply", "-f", "-"], &lease.to_string()).await;
    kubectl(&["create", "serviceaccount", "it"], "").await;
    let subject = format!("--serviceaccount={namespace}:it");
    for role in ["--clusterrole=relay-operator", "--role=lease"] {
        let name = role.split('=').next_back().unwrap();
        let bind = ["create", "rolebinding", name, role, &subject];
        kubectl(&bind, "").await;
    }
    let token = kubectl(&["create", "token", "it"], "").await;
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kubeconfig = std::fs::read(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    kubeconfig["users"][0]["user"]["token"] = token.trim().into();
    let file = files.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let registry = files.path().join("registry");
    std::fs::create_dir(&registry).unwrap();

    let mut process = Controller::spawn_program(example(RELAYS.example), |command| {
        command
            .env("KUBECONFIG", &file)
            .env("POD_NAMESPACE", &namespace)
            .env("RELAY_OPERATOR__NAMESPACES", &namespace)
            .env("RELAY_OPERATOR__HTTP__ADDR", "127.0.0.1:0")
            .env("RELAY_OPERATOR__LOG__FORMAT", "text")
            .env("RELAY_OPERATOR__LEADER_ELECTION__ENABLED", "true")
            .env("RELAY_OPERATOR__LEADER_ELECTION__LEASE_NAME", "rights")
            // Shorter, it would warn that it has no fencing.
            .env("RELAY_OPERATOR__LEADER_ELECTION__LEASE_DURATION", "8s")
            .env("RELAY_OPERATOR__LEADER_ELECTION__RENEW_DEADLINE", "2500ms")
            .env("RELAY_OPERATOR__LEADER_ELECTION__RETRY_PERIOD", "500ms")
            .env("RELAY_OPERATOR__REGISTRY", &registry);
    });
    let relays = Relays::in_namespace(&cluster.client().await, &namespace);
    relays.token("token", "one").await;
    relays.create("it", 80, "token").await;
    relays.has_condition("it", "Ready", "True Made").await;
    let resource = ["patch", "relay/it", "--type=merge", "-p"];
    let port = r#"{"spec": {"port": 81}}"#;
    kubectl(&[&resource[..], &[port]].concat(), "").await;
    let it = BTreeMap::from([("it".to_owned(), 81.into())]);
    relays.converged(&it, &registry, &namespace).await;
    let long = "a".repeat(253);
    relays.create(&long, 80, "missing").await;
    let missing = "False Missing no token in Secret \"missing\"";
    (relays.has_condition(&long, "CredentialsFound", missing)).await;
    let account = format!("system:serviceaccount:{namespace}:it");
    let role = kubectl(&["get", "clusterrole/relay-operator", "-o=json"], "").await;
    let mut granted = granted(&serde_json::from_str(&role).unwrap());
    granted.extend(self::granted(&lease));
    for right in NEEDED_ELSEWHERE {
        assert!(granted.remove(right), "{right}");
    }
    for name in ["it", &long] {
        let now = DeleteParams::default();
        relays.objects.delete(name, &now).await.unwrap();
    }
    (relays.converged(&BTreeMap::new(), &registry, &namespace)).await;
    eventually(DEADLINE, "what is granted is used", async || {
        let used = used(cluster, &account);
        let unused: Vec<_> = granted.difference(&used).cloned().collect();
        if unused.is_empty() && registered(&registry).is_empty() {
            Ok(())
        } else {
            Err(unused)
        }
    })
    .await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(
        process.logged("WARN") + process.logged("ERROR"),
        0,
        "{}",
        process.log()
    );
}

static MIRRORS: Operator = Operator {
    example: "kube_controller",
    prefix: "MIRROR_OPERATOR__",
    lease: "mirror-operator",
    works: &[Work {
        kind: "ConfigMap",
        primary: "configmaps",
        owned: &["configmaps"],
        status: false,
        finalizers: false,
        fencing_holder: "example.com/lease-holder",
    }],
};

/// kube's own `Controller` with the runtime's fenced client, under the same faults.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_for_kubes_controller_through_faults() {
    let mut fleet = Fleet::start(&MIRRORS, ["replica-3", "replica-4"], &[]).await;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let create = |maps: Api<ConfigMap>, name: String| async move {
        let labels = json!({ "mirror": "yes" });
        let source =
            json!({ "metadata": { "name": name, "labels": labels }, "data": { "a": "1" } });
        let source = serde_json::from_value(source).unwrap();
        maps.create(&PostParams::default(), &source).await.unwrap();
    };
    let load = Load::start({
        let maps = maps.clone();
        move |number| {
            let (maps, name) = (maps.clone(), format!("source-{number}"));
            async move {
                create(maps.clone(), name.clone()).await;
                if number % 2 == 0 {
                    return Some((name, "1".into()));
                }
                sleep(Duration::from_millis(300)).await;
                let patch = Patch::Merge(json!({ "data": { "a": "2" } }));
                maps.patch(&name, &PatchParams::default(), &patch)
                    .await
                    .unwrap();
                Some((name, "2".into()))
            }
        }
    });
    let names = (0..BURST * 5).map(|number| format!("burst-{number}"));
    let names: Vec<String> = names.collect();
    let created = async {
        iter(&names)
            .map(|name| create(maps.clone(), name.clone()))
            .buffer_unordered(HANDS)
            .for_each(|()| ready(()))
            .await;
    };
    let begun = async {
        let first = format!("{}-mirror", names[BURST / 10]);
        eventually(DEADLINE, "it is at work", async || {
            maps.get(&first).await.map(drop)
        })
        .await;
        fleet.freeze_leader().await;
    };
    tokio::join!(created, begun);
    fleet.kill_leader().await;
    fleet.stop_leader().await;
    let mut expected = load.stop().await;
    expected.extend(names.into_iter().map(|name| (name, "1".into())));
    eventually(DEADLINE, "all mirrors are right", async || {
        let all = maps.list(&ListParams::default()).await.unwrap().items;
        let data: BTreeMap<_, _> = all.iter().map(|map| (map.name_any(), &map.data)).collect();
        let is_right = |(name, value): &(&String, &Value)| {
            let mirror = data.get(&format!("{name}-mirror"));
            mirror.is_some_and(|data| data.as_ref().is_some_and(|data| data["a"] == **value))
        };
        match expected.iter().filter(|source| !is_right(source)).count() {
            0 => Ok(()),
            wrong => Err(format!("{wrong} of {} are not", expected.len())),
        }
    })
    .await;
    let report = fleet.check(&[]).await;
    assert!(
        report.terms >= 4 && report.writes >= expected.len(),
        "{report}"
    );
}
