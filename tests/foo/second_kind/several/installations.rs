//! Two installations of a program of several kinds, whose objects refer to each other across the installations.

use super::*;
use crate::support::installations::Judge;

const LABEL: &str = "example.com/installation";
const INSTALLATIONS: [(&str, &str); 2] = [("replica-5", ""), ("replica-6", "canary")];
const COUNT: usize = 6;
const MOVES: usize = 8;

async fn start(cluster: &Cluster, namespace: &str) -> Vec<Controller> {
    let mut replicas = Vec::new();
    for (user, installation) in INSTALLATIONS {
        let suffix = if installation.is_empty() { "" } else { "-" };
        let lease = format!("{}{suffix}{installation}", DATABASES.lease);
        cluster.release_lease(namespace, &lease).await;
        let settings = [
            ("POD_NAMESPACE", namespace),
            ("DATABASE_OPERATOR__NAMESPACES", namespace),
            ("DATABASE_OPERATOR__INSTALLATION", installation),
            ("DATABASE_OPERATOR__HTTP__ADDR", "127.0.0.1:0"),
            ("DATABASE_OPERATOR__LOG__FORMAT", "text"),
            ("DATABASE_OPERATOR__RESYNC", "1h"),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let replica = spawn(&DATABASES, cluster, &settings, user, 0);
        replica.wait_for_log("gained the lease").await;
        replicas.push(replica);
    }
    replicas
}

/// The Databases move back and forth. Their Backups follow, and the Jobs of the Backups. Their class stays with the default
/// installation, whose Databases and those of the canary use it.
#[tokio::test(flavor = "multi_thread")]
async fn i21_owned_objects_follow_their_owner() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    install(&cluster).await;
    let namespace = cluster.namespace("divided").await;
    let client = cluster.client().await;
    let databases = Databases {
        client: client.clone(),
        namespace: namespace.clone(),
    };
    let mut replicas = start(&cluster, &namespace).await;
    let pods = tokio::spawn(databases.clone().run_pods());
    databases.class("small", 1).await;
    let secret = json!({ "metadata": { "name": "password" }, "stringData": { "password": "a" } });
    let secret = serde_json::from_value(secret).unwrap();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams::default();
    secrets.create(&params, &secret).await.unwrap();
    let names: Vec<_> = (0..COUNT)
        .map(|number| format!("database-{number}"))
        .collect();
    for name in &names {
        databases.database(name, "small").await;
    }
    for turn in 0..MOVES {
        for (number, name) in names.iter().enumerate() {
            let (_, installation) = INSTALLATIONS[(turn + number) % 2];
            let value = (!installation.is_empty()).then_some(installation);
            let patch = json!({ "metadata": { "labels": { LABEL: value } }, "spec": { "backup": format!("s3://{turn}") } });
            let (api, params) = (databases.databases(), PatchParams::default());
            api.patch(name, &params, &Patch::Merge(patch))
                .await
                .unwrap();
            sleep(Duration::from_millis(50)).await;
        }
    }
    let expected = names
        .iter()
        .map(|name| (name.clone(), true.into()))
        .collect();
    databases.converged(&expected).await;
    let backups = databases.custom("Backup", "backups").0;
    let all = ListParams::default();
    eventually(DEADLINE, "the Backups have followed", async || {
        let label = |it: &DynamicObject| it.labels().get(LABEL).cloned().unwrap_or_default();
        let owners = databases.databases().list(&all).await.unwrap().items;
        let owners: BTreeMap<_, _> = owners.iter().map(|it| (it.name_any(), label(it))).collect();
        let found = backups.list(&all).await.unwrap().items;
        let found: BTreeMap<_, _> = found.iter().map(|it| (it.name_any(), label(it))).collect();
        if found == owners {
            Ok(())
        } else {
            Err((found, owners))
        }
    })
    .await;

    // Events are written last.
    sleep(Duration::from_secs(2)).await;
    let from = Timestamp::now();
    sleep(QUIET).await;
    pods.abort();
    let log = cluster.audit();
    let judge = Judge {
        log: &log,
        label: LABEL,
        users: INSTALLATIONS.into(),
        namespace: &namespace,
    };
    assert_eq!(judge.requests((from, Timestamp::now())), [""; 0]);
    let statuses = judge.statuses("databases/status");
    let of_backups = judge.statuses("backups/status");
    let deployments = judge.dependents("deployments", "databases");
    let owned = judge.dependents("backups", "databases");
    println!("{statuses:?} {of_backups:?} {deployments:?} {owned:?}");
    judge.dependents("jobs", "backups");
    for (user, _) in INSTALLATIONS {
        assert!(statuses[user] >= COUNT && owned[user].right >= COUNT);
    }
    // The class has no label.
    let of_class = log
        .iter()
        .filter(|event| event.resource == "databaseclasses" && event.subresource == "status");
    let by: BTreeSet<_> = of_class.map(|event| &*event.user).collect();
    assert_eq!(by, BTreeSet::from([INSTALLATIONS[0].0]));
    for replica in &mut replicas {
        assert_eq!(replica.logged("ERROR"), 0);
        assert_eq!(replica.stop().await, 0);
    }
}
