//! The conversion webhook on a real API server: the example `two_versions`, whose users write both versions.
//!
//! The webhook runs as two processes behind a load balancer on loopback, which the CRD names by URL.

mod clients;
mod managed_fields;
mod world;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use operator_testkit::cluster::eventually;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::sleep;

use self::world::{CRD, Load, World, greeting};

// The conversion without the program.
#[allow(dead_code, reason = "the rest of the program")]
#[path = "../../crates/runtime/examples/two_versions.rs"]
mod two_versions;

const DEADLINE: Duration = Duration::from_mins(1);
const FORMER: &str = "v1alpha1";
const CURRENT: &str = "v1";

proptest! {
    #[test]
    fn v1_is_lossless(texts in prop::collection::btree_map("en|[a-z]{2}|.*", "|.*", 0..4)) {
        let object = greeting("a", CURRENT, &json!({ "texts": texts }));
        operator_runtime::testing::assert_lossless(&two_versions::greetings(), &object, FORMER);
    }

    #[test]
    fn v1alpha1_is_lossless(text in "|.*") {
        let object = greeting("a", FORMER, &json!({ "text": text }));
        operator_runtime::testing::assert_lossless(&two_versions::greetings(), &object, CURRENT);
    }
}

/// The upgrade from v1alpha1 to both versions and to v1. Users write both versions all the time, and no request fails: during
/// the rollout of the webhook, the rotation of its certificate and of its certificate authority, and `migrate`.
#[tokio::test(flavor = "multi_thread")]
async fn users_of_both_versions_notice_no_change_of_the_webhook() {
    let mut world = World::start().await;
    // Before: only v1alpha1 exists.
    world.install_former_only().await;
    for n in 0..20 {
        world
            .create(&greeting(
                &format!("old-{n}"),
                FORMER,
                &json!({ "text": "Hi" }),
            ))
            .await;
    }
    // The webhook first, then the CRD, then the controller.
    world.start_webhook().await;
    world.start_webhook().await;
    world.install_both().await;
    let controller = world.start_controller();
    assert_eq!(world.stored_versions().await, [FORMER, CURRENT]);
    world.has_config_map("old-7", &[("en", "Hi")]).await;

    // Each version shows the object in its own form, and a user of v1alpha1 does not remove the other texts.
    let texts = json!({ "texts": { "de": "Hallo", "en": "Hello" } });
    world.create(&greeting("both", CURRENT, &texts)).await;
    let former = world.get("both", FORMER).await;
    assert_eq!(former["spec"], json!({ "text": "Hello" }));
    let mut changed = former.clone();
    changed["spec"]["text"] = "Hey".into();
    let metadata = changed["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    let changed = changed.to_string();
    // kubectl reads the version, and the controller may write the status before kubectl replaces the object.
    eventually(DEADLINE, "the object is replaced", async || {
        let replace = ["replace", "-f", "-"];
        let replaced = world.cluster.kubectl_stdin(&replace, &changed).await;
        replaced.status.success().then_some(()).ok_or(replaced)
    })
    .await;
    let current = world.get("both", CURRENT).await;
    assert_eq!(
        current["spec"]["texts"],
        json!({ "de": "Hallo", "en": "Hey" })
    );
    assert_eq!(current["metadata"]["annotations"], Value::Null);
    world
        .has_config_map("both", &[("de", "Hallo"), ("en", "Hey")])
        .await;

    // kubectl apply and diff of a manifest in the former version.
    let manifest = greeting("applied", FORMER, &json!({ "text": "Hi" })).to_string();
    let added = r#"patch greetings.v1.example.com applied --type=merge -p={"spec":{"texts":{"de":"Hallo"}}}"#;
    for apply in ["apply -f -", "apply --server-side -f -"] {
        world.kubectl_stdin(apply, &manifest).await;
        world.kubectl_stdin("diff -f -", &manifest).await;
        // A user of v1 adds a text, which the unchanged manifest does not remove.
        world.kubectl_stdin(added, "").await;
    }
    world
        .kubectl_stdin("apply --server-side -f -", &manifest)
        .await;
    let both = [("de", "Hallo"), ("en", "Hi")];
    world.has_config_map("applied", &both).await;

    let load = Load::start(&world).await;
    // A rollout: each new process is ready before an old one stops.
    let leaving = world.webhooks.len();
    for _ in 0..leaving {
        world.start_webhook().await;
        world.stop_webhook(0).await;
    }
    load.is_well("the rollout").await;

    // The Secret is rotated, with the same authority.
    world.rotate_certificate().await;
    load.is_well("the rotation of the certificate").await;
    // Another authority: first trusted besides the former one, then used, and then alone.
    let former = world.next_authority();
    world.trust(&[&former, &world.authority.clone()]).await;
    load.is_well("two authorities").await;
    world.rotate_certificate().await;
    world.trust(&[&world.authority.clone()]).await;
    load.is_well("the rotation of the authority").await;

    world.migrate().await;
    assert_eq!(world.stored_versions().await, [CURRENT]);
    load.is_well("the migration").await;
    load.stop(&world).await;
    for webhook in &world.webhooks {
        assert_eq!(webhook.logged("ERROR"), 0, "{}", webhook.log());
        assert_eq!(webhook.logged("converted from"), 0, "{}", webhook.log());
    }
    assert_eq!(controller.logged("ERROR"), 0, "{}", controller.log());
}

/// While the webhook is down, requests in the stored version work, and so does the controller, once all objects are stored in
/// that version. Requests in the other version fail with the reason. Everything recovers with the webhook.
#[tokio::test(flavor = "multi_thread")]
async fn the_stored_version_needs_no_webhook() {
    let mut world = World::start().await;
    world.start_webhook().await;
    world.install_both().await;
    let mut controller = world.start_controller();
    world
        .create(&greeting("a", FORMER, &json!({ "text": "Hi" })))
        .await;
    world.has_config_map("a", &[("en", "Hi")]).await;
    world.kill_webhook();

    let failed = world
        .cluster
        .kubectl(&["get", "greetings.v1alpha1.example.com", "a"])
        .await;
    assert!(
        failed
            .stderr
            .contains("conversion webhook for example.com/v1, Kind=Greeting failed: Post"),
        "{failed:?}"
    );
    assert_eq!(
        world.get("a", CURRENT).await["spec"]["texts"],
        json!({ "en": "Hi" })
    );
    world
        .create(&greeting(
            "b",
            CURRENT,
            &json!({ "texts": { "en": "Hey" } }),
        ))
        .await;
    world.has_config_map("b", &[("en", "Hey")]).await;
    // A controller that starts now serves them as well.
    assert_eq!(controller.stop().await, 0);
    controller = world.start_controller();
    world
        .create(&greeting("c", CURRENT, &json!({ "texts": { "en": "Ho" } })))
        .await;
    world.has_config_map("c", &[("en", "Ho")]).await;

    world.start_webhook().await;
    eventually(DEADLINE, "the former version is back", async || {
        let got = world
            .cluster
            .kubectl(&["get", "greetings.v1alpha1.example.com"])
            .await;
        if got.status.success() {
            Ok(())
        } else {
            Err(got.stderr)
        }
    })
    .await;
    world
        .create(&greeting("d", FORMER, &json!({ "text": "Hi" })))
        .await;
    world.has_config_map("d", &[("en", "Hi")]).await;
    assert_eq!(controller.logged("ERROR"), 0, "{}", controller.log());
    assert_eq!(controller.stop().await, 0);
}

/// A controller whose objects are stored in the former version waits for the webhook, and recovers.
///
/// An object that cannot be converted fails the lists of its version; the message names it. Every other object can be read alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_cannot_be_converted_is_named() {
    let mut world = World::start().await;
    world.install_former_only().await;
    world
        .create(&greeting("old", FORMER, &json!({ "text": "Hi" })))
        .await;
    // The port is known, but nothing listens there.
    world.install_both().await;
    let controller = world.start_controller();
    controller.wait_for_log("conversion webhook").await;
    world.start_webhook().await;
    world.has_config_map("old", &[("en", "Hi")]).await;

    world.loosen().await;
    world
        .create(&greeting("bad", CURRENT, &json!({ "texts": 3 })))
        .await;
    world
        .create(&greeting(
            "good",
            CURRENT,
            &json!({ "texts": { "en": "Hi" } }),
        ))
        .await;
    let named = "Greeting default/bad cannot be converted from v1 to v1alpha1: spec: invalid type: integer `3`, expected a map";
    for (args, fails) in [
        ("get greetings.v1alpha1.example.com bad", true),
        ("get greetings.v1alpha1.example.com", true),
        ("get greetings.v1alpha1.example.com good", false),
        ("get greetings.v1.example.com", false),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        let got = world.cluster.kubectl(&args).await;
        assert_eq!(got.stderr.contains(named), fails, "{got:?}");
        assert_eq!(got.status.success(), !fails, "{got:?}");
    }
    world.webhooks[0].wait_for_log(named).await;
    // It can be mended in the version that has it.
    let mend = Patch::Merge(json!({ "spec": { "texts": { "en": "Hi" } } }));
    let api = world.api(CURRENT);
    api.patch("bad", &PatchParams::default(), &mend)
        .await
        .unwrap();
    world.get("bad", FORMER).await;
}

/// `kubectl apply` keeps the caBundle that cert-manager's cainjector has written, and finds no difference.
#[tokio::test(flavor = "multi_thread")]
async fn apply_keeps_an_injected_ca() {
    let world = World::start().await;
    let printed = World::printed();
    for (apply, diff) in [
        ("apply -f -", "diff -f -"),
        ("apply --server-side -f -", "diff --server-side -f -"),
    ] {
        world.kubectl_stdin(apply, &printed).await;
        world.trust(&[&world.authority.clone()]).await;
        let before = world.ca_bundle().await;
        assert!(before.as_str().is_some_and(|ca| !ca.is_empty()));
        world.kubectl_stdin(diff, &printed).await;
        world.kubectl_stdin(apply, &printed).await;
        assert_eq!(world.ca_bundle().await, before, "{apply}");
        let args = format!("delete crd {CRD} --wait=true");
        world.kubectl(&args).await;
    }
}

/// `doctor` reports a webhook that the API server cannot use, and that converts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_the_webhook() {
    let mut world = World::start().await;
    let says = async |world: &World, expected: &str| {
        eventually(DEADLINE, expected, async || {
            let line = world.doctor().await;
            if line.contains(expected) {
                Ok(())
            } else {
                Err(line)
            }
        })
        .await;
    };
    // As printed: with a Service, which does not exist.
    world.kubectl_stdin("apply -f -", &World::printed()).await;
    says(
        &world,
        "its Service greeter-system/greeter-conversion does not exist; check that it runs",
    )
    .await;
    world.kubectl("create namespace greeter-system").await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "greeter-conversion", "namespace": "greeter-system" },
        "spec": { "ports": [{ "port": 443 }] },
    });
    world
        .kubectl_stdin("apply -f -", &service.to_string())
        .await;
    says(
        &world,
        "its Service greeter-system/greeter-conversion has no ready endpoint",
    )
    .await;
    let endpoints = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "greeter-conversion", "namespace": "greeter-system",
            "labels": { "kubernetes.io/service-name": "greeter-conversion" },
        },
        "endpoints": [{ "addresses": ["10.0.0.1"] }], "ports": [{ "port": 9443 }],
    });
    world
        .kubectl_stdin("apply -f -", &endpoints.to_string())
        .await;
    says(&world, "has issued the Certificate greeter-system/greeter-conversion (annotation cert-manager.io/inject-ca-from)").await;

    world
        .kubectl(&format!("delete crd {CRD} --wait=true"))
        .await;
    world.start_webhook().await;
    world.install_both().await;
    world
        .create(&greeting("a", CURRENT, &json!({ "texts": { "en": "Hi" } })))
        .await;
    says(
        &world,
        "ok CRD greetings.example.com: established, the same as this program's",
    )
    .await;
    // A caBundle that does not verify the certificate.
    let former = world.next_authority();
    world.trust(&[&world.authority.clone()]).await;
    says(
        &world,
        "error CRD greetings.example.com: objects cannot be read in v1alpha1: ",
    )
    .await;
    says(&world, "x509: certificate signed by unknown authority").await;
    world.trust(&[&former]).await;
    let none =
        Patch::Merge(json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } }));
    world.patch_crd(&none).await;
    says(
        &world,
        "its conversion strategy is None, and this program's is Webhook",
    )
    .await;
}
