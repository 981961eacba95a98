//! An operator of three kinds, the example `several_kinds`.

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
use operator_testkit::cluster::AuditEvent;

use super::*;

mod grants;
mod installations;

const USERS: [&str; 2] = ["replica-5", "replica-6"];

/// The watched resource types of all three controllers. Each replica lists each of them once.
const WATCHED: [&str; 8] = [
    "backups",
    "configmaps",
    "databaseclasses",
    "databases",
    "deployments",
    "jobs",
    "secrets",
    "services",
];

static DATABASES: Operator = Operator {
    example: "several_kinds",
    prefix: "DATABASE_OPERATOR__",
    lease: "database-operator",
    works: &[
        work(
            "Database",
            "databases",
            &["deployments", "services", "backups"],
        ),
        work("DatabaseClass", "databaseclasses", &["configmaps"]),
        work("Backup", "backups", &["jobs"]),
    ],
};

const fn work(kind: &'static str, primary: &'static str, owned: &'static [&'static str]) -> Work {
    Work {
        kind,
        primary,
        owned,
        status: true,
        finalizers: false,
        fencing_holder: "example.com/lease-holder",
    }
}

/// The objects of a namespace, and the cluster-scoped classes.
#[derive(Clone)]
struct Databases {
    client: Client,
    namespace: String,
}

impl Databases {
    fn custom(&self, kind: &str, plural: &str) -> (Api<DynamicObject>, ApiResource) {
        let gvk = GroupVersionKind::gvk("example.com", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let client = self.client.clone();
        let api = match kind {
            "DatabaseClass" => Api::all_with(client, &resource),
            _ => Api::namespaced_with(client, &self.namespace, &resource),
        };
        (api, resource)
    }

    fn databases(&self) -> Api<DynamicObject> {
        self.custom("Database", "databases").0
    }

    async fn create(&self, kind: &str, plural: &str, name: &str, spec: Value) {
        let (api, resource) = self.custom(kind, plural);
        let object = DynamicObject::new(name, &resource).data(json!({ "spec": spec }));
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn database(&self, name: &str, class: &str) {
        let spec =
            json!({ "class": class, "password": { "name": "password" }, "backup": "s3://backups" });
        self.create("Database", "databases", name, spec).await;
    }

    async fn class(&self, name: &str, replicas: i32) {
        let spec = json!({ "replicas": replicas, "namespace": self.namespace });
        self.create("DatabaseClass", "databaseclasses", name, spec)
            .await;
    }

    /// Waits until the condition of a Database contains this text, and returns its message.
    async fn has_reason(&self, name: &str, expected: &str) -> String {
        eventually(DEADLINE, expected, async || {
            let database = self.databases().get(name).await.unwrap();
            let ready = &database.data["status"]["conditions"][0];
            let seen = format!("{} {}", ready["reason"], ready["message"]);
            if seen.contains(expected) {
                Ok(ready["message"].as_str().unwrap().to_owned())
            } else {
                Err(seen)
            }
        })
        .await
    }

    /// Creates a Database, and then changes or deletes it, or neither. Returns its name and whether it has a backup, if it
    /// remains.
    async fn life_of(self, number: usize) -> Option<(String, Value)> {
        let name = format!("database-{number}");
        self.database(&name, "small").await;
        match number % 3 {
            0 => Some((name, true.into())),
            1 => {
                sleep(Duration::from_millis(300)).await;
                let patch = Patch::Merge(json!({ "spec": { "backup": null } }));
                let params = PatchParams::default();
                self.databases()
                    .patch(&name, &params, &patch)
                    .await
                    .unwrap();
                Some((name, false.into()))
            }
            _ => {
                sleep(Duration::from_millis(500)).await;
                let (api, params) = (self.databases(), DeleteParams::default());
                api.delete(&name, &params).await.unwrap();
                None
            }
        }
    }

    /// Reports one ready pod for each Deployment, as the cluster's Deployment controller and kubelet would.
    async fn run_pods(self) {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            for deployment in deployments.list(&ListParams::default()).await.unwrap() {
                let status = deployment.status.as_ref();
                if status.is_none_or(|status| status.ready_replicas != Some(1)) {
                    let status = json!({ "status": { "replicas": 1, "readyReplicas": 1 } });
                    let (name, params) = (deployment.name_any(), PatchParams::default());
                    // It may be gone.
                    let patch = Patch::Merge(status);
                    let _ = deployments.patch_status(&name, &params, &patch).await;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until exactly these Databases exist and are Ready, and only Databases with a backup have a Job.
    async fn converged(&self, expected: &BTreeMap<String, Value>) {
        let all = ListParams::default();
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        let backups = self.custom("Backup", "backups").0;
        eventually(DEADLINE, "all Databases are right", async || {
            let found = self.databases().list(&all).await.unwrap().items;
            let is_ready = |database: &DynamicObject| {
                let status = &database.data["status"];
                status["observedGeneration"].as_i64() == database.metadata.generation
                    && status["conditions"][0]["reason"] == "Deployed"
            };
            let ready = found.iter().filter(|database| is_ready(database));
            let ready: BTreeSet<_> = ready.map(ResourceExt::name_any).collect();
            let owner =
                |owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
                    owners[0].uid.clone()
                };
            let backups = backups.list(&all).await.unwrap().items;
            let kept: BTreeMap<_, _> = backups
                .iter()
                .filter(|backup| {
                    found
                        .iter()
                        .any(|it| it.uid().unwrap() == owner(backup.owner_references()))
                })
                .map(|backup| (backup.uid().unwrap(), backup.name_any()))
                .collect();
            let jobs = jobs.list(&all).await.unwrap().items;
            let saved = jobs
                .iter()
                .filter_map(|job| kept.get(&owner(job.owner_references())));
            let saved: BTreeSet<_> = saved.cloned().collect();
            let with_backup = expected
                .iter()
                .filter(|(_, has_backup)| **has_backup == true);
            let with_backup: BTreeSet<_> = with_backup.map(|(name, _)| name.clone()).collect();
            let kept: BTreeSet<_> = kept.into_values().collect();
            let is_right = found.len() == expected.len()
                && ready.iter().eq(expected.keys())
                && saved == with_backup
                && kept == with_backup;
            let seen = (found.len(), ready.len(), kept.len(), saved.len());
            if is_right {
                Ok(())
            } else {
                Err((seen, with_backup.len()))
            }
        })
        .await;
    }
}

/// Installs the CRDs of the example.
async fn install(cluster: &Cluster) {
    cluster.install_crds(&printed(&DATABASES, "crd")).await;
}

/// Three controllers under all faults, and ownership in two steps: a Database owns a Backup, which owns a Job. The replicas list
/// and watch each resource type once, although two or three controllers use it, and send nothing when nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn i1_to_i8_hold_for_several_kinds_through_faults() {
    install(cluster().await).await;
    // A resync would hide a change that does not enqueue.
    let mut fleet = Fleet::start(&DATABASES, USERS, &[("RESYNC", "1h")]).await;
    let databases = Databases {
        client: fleet.client.clone(),
        namespace: fleet.namespace.clone(),
    };
    let pods = tokio::spawn(databases.clone().run_pods());

    // Each object that a Database waits for enqueues it.
    databases.database("first", "large").await;
    databases.has_reason("first", "no DatabaseClass").await;
    databases.class("large", 2).await;
    databases.has_reason("first", "no Secret").await;
    let secret = json!({ "metadata": { "name": "password" }, "stringData": { "password": "a" } });
    let secret = serde_json::from_value(secret).unwrap();
    let secrets: Api<Secret> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    databases.has_reason("first", "Deployed").await;

    for resource in WATCHED {
        // A GET reads the Secret of the Database.
        let reads_of_each = if resource == "secrets" { 2 } else { 1 };
        let expected = reads_of_each * fleet.replicas.len();
        eventually(DEADLINE, resource, async || {
            let found = reads(resource, None).await;
            if found == expected {
                Ok(())
            } else {
                Err(found)
            }
        })
        .await;
    }

    databases.class("small", 1).await;
    let load = Load::start({
        let databases = databases.clone();
        move |number| databases.clone().life_of(number)
    });
    fleet.kill_leader().await;
    let burst: Vec<String> = (0..BURST).map(|number| format!("burst-{number}")).collect();
    let created = async {
        iter(&burst)
            .map(|name| databases.database(name, "small"))
            .buffer_unordered(HANDS)
            .for_each(|()| ready(()))
            .await;
    };
    let begun = async {
        let services: Api<Service> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
        let first = &burst[BURST / 10];
        eventually(DEADLINE, "the leader works", async || {
            services.get(first).await.map(drop)
        })
        .await;
        fleet.freeze_leader().await;
    };
    tokio::join!(created, begun);
    fleet.stop_leader().await;
    let mut left = load.stop().await;
    left.insert("first".to_owned(), true.into());
    left.extend(burst.into_iter().map(|name| (name, true.into())));
    databases.converged(&left).await;
    let quiet = fleet.quiet().await;
    pods.abort();

    let report = fleet.check(&[quiet]).await;
    assert!(
        report.terms >= 4 && report.writes > 4 * left.len(),
        "{report}"
    );
    for resource in WATCHED {
        assert_eq!(reads(resource, Some(quiet)).await, 0, "{resource}");
    }
    println!("{} Databases were left", left.len());
}

/// The API server accepts the printed permissions and the fencing policy of a program of several kinds.
#[tokio::test]
async fn the_printed_manifests_are_valid() {
    for command in ["rbac", "fencing-policy"] {
        let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        let manifest = printed(&DATABASES, command);
        cluster()
            .await
            .kubectl_stdin(&args, &manifest)
            .await
            .success();
    }
}

/// The garbage collector accepts a cluster-scoped owner of objects in a namespace: it deletes them with the owner, not before.
/// A class that specifies a namespace which is not watched is reported, and its `ConfigMap` is not created.
#[tokio::test(flavor = "multi_thread")]
async fn the_garbage_collector_deletes_the_dependents_of_a_cluster_scoped_owner() {
    let cluster = Cluster::start(Options {
        audit: false,
        controllers: true,
    });
    install(&cluster).await;
    let namespaces = [
        cluster.namespace("own").await,
        cluster.namespace("classes").await,
    ];
    let settings = [
        ("POD_NAMESPACE", namespaces[0].clone()),
        ("DATABASE_OPERATOR__NAMESPACES", namespaces.join(",")),
        ("DATABASE_OPERATOR__HTTP__ADDR", "127.0.0.1:0".to_owned()),
        ("DATABASE_OPERATOR__LOG__FORMAT", "text".to_owned()),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    let mut replica = spawn(&DATABASES, &cluster, &settings, USERS[0], 0);
    let client = cluster.client().await;
    let databases = Databases {
        client: client.clone(),
        namespace: namespaces[1].clone(),
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespaces[1]);
    let classes = databases.custom("DatabaseClass", "databaseclasses").0;
    let uid_of = async |name: &str| {
        eventually(DEADLINE, "its ConfigMap", async || {
            config_maps.get(name).await.map(|it| it.uid())
        })
        .await
    };
    let delete = async |name: &str| {
        let params = DeleteParams::default();
        classes.delete(name, &params).await.unwrap();
        eventually(
            DEADLINE,
            "its ConfigMap is deleted",
            async || match config_maps.get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(other),
            },
        )
        .await;
    };
    databases.class("kept", 1).await;
    databases.class("deleted", 1).await;
    let kept = uid_of("kept").await;
    uid_of("deleted").await;
    // The garbage collector learns of a new resource type within half a minute. A deletion shows that it has.
    delete("deleted").await;
    // It has judged the ConfigMap of the other class, too, before it judges a later one.
    databases.class("later", 1).await;
    uid_of("later").await;
    delete("later").await;
    assert_eq!(uid_of("kept").await, kept);

    let elsewhere = Databases {
        namespace: cluster.namespace("elsewhere").await,
        ..databases.clone()
    };
    elsewhere.class("elsewhere", 1).await;
    eventually(DEADLINE, "it is reported", async || {
        let class = classes.get("elsewhere").await.unwrap();
        let ready = class.data["status"]["conditions"][0].clone();
        if ready["reason"] == "NotWatched" {
            Ok(())
        } else {
            Err(ready)
        }
    })
    .await;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, &elsewhere.namespace);
    assert!(config_maps.get_opt("elsewhere").await.unwrap().is_none());

    let mut doctor = Command::new(example(DATABASES.example));
    doctor
        .args(["doctor", "--object=databaseclass/kept"])
        .envs(settings);
    doctor.env("KUBECONFIG", cluster.kubeconfig_of(USERS[0]));
    let report = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    let lines = report
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<_> = lines.collect();
    for expected in [
        "ok DatabaseClass kept generation 1; Ready=True (Synced)".to_owned(),
        "ok permissions in the cluster all granted".to_owned(),
        format!("ok permissions in namespace {} all granted", namespaces[1]),
        "ok databaseclasses 2".to_owned(),
    ] {
        assert!(lines.contains(&expected), "{expected}\n{report}");
    }
    assert_eq!(replica.stop().await, 0);
    assert_eq!(replica.logged("ERROR"), 0);
    for name in ["database", "databaseclass", "backup"] {
        let starts = "started workers controller=";
        assert_eq!(replica.logged(&format!("{starts}{name:?} ")), 1, "{name}");
    }
}

/// Returns the number of reads of a resource by the replicas, between two times if there are any. A watch counts if it streams a
/// list.
async fn reads(resource: &str, times: Option<(Timestamp, Timestamp)>) -> usize {
    let log = cluster().await.audit();
    let ours = log.iter().filter(|event| {
        let time = event.received.0;
        // 429: the API server does not yet have the storage of a new CRD.
        USERS.contains(&&*event.user)
            && event.resource == resource
            && event.code == 200
            && times.is_none_or(|(from, to)| (from..to).contains(&time))
    });
    let is_read = |event: &&AuditEvent| match &*event.verb {
        "get" | "list" => true,
        "watch" => event.stage == "ResponseStarted" && event.uri.contains("sendInitialEvents=true"),
        _ => false,
    };
    ours.filter(is_read).count()
}
