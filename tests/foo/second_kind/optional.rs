//! A kind that may not be installed, and live reads: the example `optional_kind`.

use k8s_openapi::api::storage::v1::StorageClass;
use operator_testkit::cluster::AuditEvent;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

const USERS: [&str; 2] = ["replica-7", "replica-8"];
const SHOPS: usize = 5;
const MONITORS: &str = "servicemonitors";
const CRD: &str = "servicemonitors.monitoring.coreos.com";

static SHOP: Operator = Operator {
    example: "optional_kind",
    prefix: "SHOP_OPERATOR__",
    lease: "shop-operator",
    works: &[Work {
        kind: "Shop",
        primary: "shops",
        owned: &["configmaps", MONITORS],
        status: true,
        finalizers: false,
        fencing_holder: "example.com/lease-holder",
    }],
};

/// Returns the CRD of `ServiceMonitors`, with one served version.
fn monitors_crd(version: &str) -> String {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
    let names =
        json!({ "kind": "ServiceMonitor", "plural": MONITORS, "singular": "servicemonitor" });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": CRD },
        "spec": { "group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version] },
    })
    .to_string()
}

fn objects(
    fleet: &Fleet,
    group: &str,
    kind: &str,
    plural: &str,
) -> (Api<DynamicObject>, ApiResource) {
    let kind = GroupVersionKind::gvk(group, "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let api = Api::namespaced_with(fleet.client.clone(), &fleet.namespace, &resource);
    (api, resource)
}

/// Waits until each Shop has this number of `ServiceMonitors`, and both replicas are ready.
async fn has_monitors(fleet: &Fleet, expected: usize) {
    let (api, _) = objects(fleet, "monitoring.coreos.com", "ServiceMonitor", MONITORS);
    eventually(DEADLINE, "the ServiceMonitors", async || {
        let found = api.list(&ListParams::default()).await;
        let found = found.map_or(0, |list| list.items.len());
        if found == expected {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    is_ready(fleet, expected > 0).await;
}

/// Both replicas are ready, and report whether the kind is installed.
async fn is_ready(fleet: &Fleet, is_installed: bool) {
    for replica in &fleet.replicas {
        let addr = replica.process.http_addr().await;
        let get = async |path: &str| {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let request = format!("GET {path} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        eventually(DEADLINE, "the state of the kind", async || {
            let ready = get("/readyz?verbose").await;
            let note = format!("{CRD} are not installed (optional)");
            let metrics = get("/metrics").await;
            let value = u8::from(is_installed);
            let series = format!("shop_operator_kind_installed{{kind=\"ServiceMonitor\"}} {value}");
            let is_right = ready.contains("readyz check passed")
                && ready.contains(&note) != is_installed
                && metrics.contains(&series);
            if is_right { Ok(()) } else { Err(ready) }
        })
        .await;
    }
}

/// Returns the requests of the replicas for a resource since a time. A watch counts once.
async fn requests(resource: &str, from: Timestamp) -> Vec<AuditEvent> {
    let mut log = cluster().await.audit();
    log.retain(|event| {
        USERS.contains(&&*event.user)
            && event.resource == resource
            && event.received.0 >= from
            && event.stage != "ResponseStarted"
    });
    log
}

/// The kind is absent at the start, appears, vanishes and appears again. The replicas are ready all the time, and each object of
/// the kind is written once for each installation. While the kind is absent, few requests are sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_optional_kind_appears_and_vanishes() {
    let cluster = cluster().await;
    cluster.install_crds(&printed(&SHOP, "crd")).await;
    let started = Timestamp::now();
    // A resync would hide an appearance that does not enqueue.
    let mut fleet = Fleet::start(&SHOP, USERS, &[("RESYNC", "1h")]).await;
    is_ready(&fleet, false).await;
    let class =
        json!({ "metadata": { "name": "optional-kind" }, "provisioner": "example.com/none" });
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let classes: Api<StorageClass> = Api::all(fleet.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap();
    let (shops, resource) = objects(&fleet, "example.com", "Shop", "shops");
    for number in 0..SHOPS {
        let spec = json!({ "spec": { "storage": "optional-kind" } });
        let shop = DynamicObject::new(&format!("shop-{number}"), &resource).data(spec);
        shops.create(&PostParams::default(), &shop).await.unwrap();
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    eventually(DEADLINE, "the Shops are served", async || {
        let found = config_maps.list(&ListParams::default()).await.unwrap();
        if found.items.len() == SHOPS {
            Ok(())
        } else {
            Err(found.items.len())
        }
    })
    .await;
    // All objects share the live read.
    let reads = requests("storageclasses", started).await;
    assert_eq!(
        reads.iter().map(|it| &*it.verb).collect::<Vec<_>>(),
        ["get"]
    );

    // A version that the program does not use: the kind is still missing.
    let apply = async |version| cluster.install_crds(&monitors_crd(version)).await;
    let delete = async || {
        let deleted = cluster
            .kubectl(&["delete", "crd", CRD, "--wait=true"])
            .await;
        deleted.success();
    };
    apply("v1beta1").await;
    delete().await;
    is_ready(&fleet, false).await;
    for _ in 0..2 {
        let appeared = Timestamp::now();
        apply("v1").await;
        has_monitors(&fleet, SHOPS).await;
        let created = requests(MONITORS, appeared).await;
        let created = created
            .iter()
            .filter(|it| it.verb == "create" && it.code == 201);
        assert_eq!(created.count(), SHOPS);

        let vanished = Timestamp::now();
        delete().await;
        has_monitors(&fleet, 0).await;
        sleep(QUIET).await;
        let sent = requests(MONITORS, vanished).await;
        assert!(sent.len() < 40, "{} requests", sent.len());
    }
    apply("v1").await;
    has_monitors(&fleet, SHOPS).await;

    // A new leader finds nothing to do.
    let quiet = fleet.quiet().await;
    fleet.stop_leader().await;
    is_ready(&fleet, true).await;
    let again = fleet.quiet().await;
    let report = fleet.check(&[quiet, again]).await;
    assert!(report.writes >= 3 * SHOPS, "{report}");
    let polls = requests(MONITORS, quiet.0).await;
    let polls = polls
        .iter()
        .filter(|it| it.verb == "list" && it.received.0 < quiet.1);
    assert_eq!(polls.count(), 0, "the installed kind is watched only");
    for replica in &mut fleet.replicas {
        assert_eq!(replica.process.logged("ERROR"), 0);
        assert_eq!(replica.process.stop().await, 0);
    }
    delete().await;
}
