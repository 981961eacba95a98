//! References into other namespaces, with the consent of their targets.

use super::*;

struct World {
    databases: Databases,
    deployments: Api<Deployment>,
}

/// Creates a Secret, or changes its password and its grant.
async fn put(secrets: &Api<Secret>, name: &str, password: &str, grant: Option<&str>) {
    let annotations = grant.map(|to| json!({ "example.com/grant-to": to }));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "annotations": annotations },
        "stringData": { "password": password },
    });
    let params = PatchParams::apply("test").force();
    let patch = Patch::Apply(secret);
    secrets.patch(name, &params, &patch).await.unwrap();
}

impl World {
    /// Creates a Database whose password is in this namespace.
    async fn database(&self, name: &str, namespace: &str, secret: &str) {
        let spec =
            json!({ "class": "small", "password": { "name": secret, "namespace": namespace } });
        self.databases
            .create("Database", "databases", name, spec)
            .await;
    }

    /// Waits until a Deployment has other arguments than `before`, and returns them.
    async fn arguments(&self, name: &str, before: &[String]) -> Vec<String> {
        eventually(DEADLINE, "the Deployment changes", async || {
            let deployment = self.deployments.get_opt(name).await.unwrap();
            let pod = deployment.and_then(|it| it.spec?.template.spec);
            let arguments = pod.and_then(|pod| pod.containers[0].args.clone());
            arguments.filter(|found| found != before).ok_or("not yet")
        })
        .await
    }
}

/// The password of a Database is in another namespace. Without a grant, its user learns nothing about the Secret, and the operator
/// does not read it. A grant takes effect at once, and so does its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_another_namespace_needs_a_grant() {
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    install(&cluster).await;
    let (own, vault) = (
        cluster.namespace("tenant").await,
        cluster.namespace("vault").await,
    );
    let elsewhere = cluster.namespace("elsewhere").await;
    let settings = [
        ("POD_NAMESPACE", own.clone()),
        ("DATABASE_OPERATOR__NAMESPACES", format!("{own},{vault}")),
        ("DATABASE_OPERATOR__HTTP__ADDR", "127.0.0.1:0".to_owned()),
        ("DATABASE_OPERATOR__LOG__FORMAT", "text".to_owned()),
        // It would hide a change that does not enqueue.
        ("DATABASE_OPERATOR__RESYNC", "1h".to_owned()),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    let mut replica = spawn(&DATABASES, &cluster, &settings, USERS[0], 0);
    let client = cluster.client().await;
    let secrets = |namespace: &str| Api::<Secret>::namespaced(client.clone(), namespace);
    let (in_vault, in_elsewhere) = (secrets(&vault), secrets(&elsewhere));
    let world = World {
        databases: Databases {
            client: client.clone(),
            namespace: own.clone(),
        },
        deployments: Api::namespaced(client.clone(), &own),
    };
    world.databases.class("small", 1).await;

    // Nothing distinguishes these.
    put(&in_vault, "password", "first", None).await;
    put(&in_vault, "others", "p", Some("another")).await;
    put(&in_elsewhere, "granted", "p", Some("*")).await;
    let mut told = BTreeSet::new();
    for (name, namespace, secret) in [
        ("main", &vault, "password"),
        ("missing", &vault, "missing"),
        ("others", &vault, "others"),
        ("unwatched", &elsewhere, "granted"),
    ] {
        world.database(name, namespace, secret).await;
        let message = world.databases.has_reason(name, "NotGranted").await;
        let reference = format!("{namespace}/{secret}");
        assert!(message.contains(&reference), "{message}");
        told.insert(message.replace(&reference, "it"));
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(read_secrets(&cluster), [""; 0]);

    put(&in_vault, "password", "first", Some(&own)).await;
    let first = world.arguments("main", &[]).await;
    assert_read(&cluster, &["password"]).await;
    put(&in_vault, "password", "second", Some(&own)).await;
    let second = world.arguments("main", &first).await;
    assert_read(&cluster, &["password", "password"]).await;

    // Earlier writes stay, and no later content is applied.
    put(&in_vault, "password", "second", None).await;
    world.databases.has_reason("main", "NotGranted").await;
    put(&in_vault, "password", "third", None).await;
    put(&in_vault, "missing", "p", Some("*")).await;
    world.arguments("missing", &[]).await;
    assert_eq!(world.arguments("main", &[]).await, second);
    assert_read(&cluster, &["password", "password", "missing"]).await;
    assert_eq!(replica.stop().await, 0);
    assert_eq!(replica.logged("ERROR"), 0);
}

/// Waits until the operator has read the content of exactly these Secrets.
async fn assert_read(cluster: &Cluster, names: &[&str]) {
    eventually(DEADLINE, "the Secrets are read", async || {
        let read = read_secrets(cluster);
        if read == names { Ok(()) } else { Err(read) }
    })
    .await;
}

/// Returns the names of the Secrets whose content the operator has read.
fn read_secrets(cluster: &Cluster) -> Vec<String> {
    let log = cluster.audit().into_iter();
    let read = log.filter(|it| it.user == USERS[0] && it.resource == "secrets" && it.verb == "get");
    read.map(|it| it.name).collect()
}
