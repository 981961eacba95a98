//! Webhooks of other owners that hang, are slow or deny requests. The controller's writes succeed wherever kubectl's do, other
//! namespaces are not delayed, and the Foo reports the failure.

use std::time::Duration;

use foo_controller::api::Foo;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use operator_testkit::{
    cluster::{Cluster, eventually},
    webhooks::{Does, Webhook},
};
use tokio::time::{Instant, sleep};

use crate::support::{
    controller::Controller,
    foos::{audited, audited_alone, create, delays, events, names, not_ready, owned},
};

/// Fails open and has the default timeout of 10 s.
const HANGS: Webhook = Webhook {
    resources: "apps/v1/deployments",
    does: Does::Hangs,
    timeout_seconds: None,
    fails_open: true,
};

/// Starts a controller with the default settings and a released Lease.
async fn leader(cluster: &Cluster, lease_namespace: &str, args: &[&str]) -> Controller {
    cluster
        .release_lease(lease_namespace, "foo-controller")
        .await;
    run(cluster, lease_namespace, args)
}

fn run(cluster: &Cluster, lease_namespace: &str, args: &[&str]) -> Controller {
    Controller::spawn(|command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
            .env("POD_NAMESPACE", lease_namespace)
            .env("POD_NAME", "it")
            .args(args);
    })
}

/// In a namespace whose webhook hangs, a Foo gets its Deployment as fast as kubectl creates one. Foos of another namespace are
/// as fast as before.
#[tokio::test]
async fn q7_a_hanging_webhook_that_fails_open_delays_only_its_namespace() {
    const FOOS: usize = 60;
    /// Lower bound of the limit: below the delay that a hanging request would cause, above the noise of a busy machine.
    const FLOOR: Duration = Duration::from_secs(2);
    let cluster = audited_alone().await;
    let client = cluster.client().await;
    let [slow, swift] = ["slow", "swift"].map(|name| cluster.namespace(name));
    let (slow, swift) = (slow.await, swift.await);
    let _controller = leader(&cluster, &swift, &[]).await;
    let one_by_one = async |prefix: &str, pause: Duration| {
        for name in names(prefix, FOOS) {
            create(&client, &swift, std::slice::from_ref(&name)).await;
            sleep(pause).await;
        }
        owned_all(&client, &swift, &names(prefix, FOOS)).await;
    };
    one_by_one("before", Duration::from_millis(20)).await;

    let _webhook = HANGS.install(&client, &slow).await;
    let ours = async {
        let name = ["foo-000".to_owned()];
        let begun = Instant::now();
        create(&client, &slow, &name).await;
        // More Foos than workers.
        create(&client, &slow, &names("more", 5)).await;
        owned(&client, &slow, "foo-000", "foo-000").await;
        begun.elapsed()
    };
    let theirs = async {
        let begun = Instant::now();
        let args = ["create", "deployment", "theirs", "--image=i", "-n", &slow];
        cluster.kubectl(&args).await.success();
        begun.elapsed()
    };
    let others = async {
        // A namespace that starts to hang may delay others for a second.
        sleep(Duration::from_secs(2)).await;
        one_by_one("during", Duration::from_millis(120)).await;
    };
    let (ours, theirs, ()) = tokio::join!(ours, theirs, others);
    println!("a Foo's Deployment after {ours:.2?}, kubectl's after {theirs:.2?}");
    assert!(theirs >= Duration::from_secs(10), "it does not hang");
    assert!(ours <= theirs + Duration::from_secs(2));

    let log = cluster.audit();
    let worst = |prefix: &str| {
        let its = log.iter().filter(|event| {
            let subject = crate::support::foos::subject(event);
            event.namespace == swift && subject.starts_with(prefix)
        });
        let its: Vec<_> = its.cloned().collect();
        let delays = delays(&its);
        assert_eq!(delays.len(), FOOS);
        delays.iter().map(|(_, delay)| *delay).max().unwrap()
    };
    let (before, during) = (worst("before"), worst("during"));
    println!("the slowest of {FOOS} elsewhere: {before:?} before, {during:?} during");
    assert!(during <= before.mul_f64(1.2).max(FLOOR));
}

async fn owned_all(client: &Client, namespace: &str, names: &[String]) {
    for name in names {
        owned(client, namespace, name, name).await;
    }
}

/// Runs each webhook in its own namespace. A write either succeeds, or its failure is in the Foo's status.
#[tokio::test]
async fn r4d_write_past_a_failing_webhook_succeeds_or_is_reported() {
    let cluster = audited().await;
    let client = &cluster.client().await;
    let namespace = async |webhook: Webhook| {
        let namespace = cluster.namespace("webhook").await;
        let installed = webhook.install(client, &namespace).await;
        (namespace, installed)
    };
    let refuses = Webhook {
        does: Does::Denies,
        ..HANGS
    };
    let is_slow = Webhook {
        does: Does::AllowsAfter(Duration::from_secs(3)),
        fails_open: false,
        ..HANGS
    };
    let fails_closed = Webhook {
        fails_open: false,
        ..HANGS
    };
    let too_long = Webhook {
        timeout_seconds: Some(30),
        ..HANGS
    };
    let on_status = Webhook {
        resources: "samplecontroller.k8s.io/v1alpha1/foos/status",
        ..HANGS
    };
    let on_events = Webhook {
        resources: "events.k8s.io/v1/events",
        ..HANGS
    };
    let kinds = [
        refuses,
        is_slow,
        fails_closed,
        too_long,
        on_status,
        on_events,
    ];
    let kinds = futures::future::join_all(kinds.map(namespace)).await;
    let [
        refuses,
        is_slow,
        fails_closed,
        too_long,
        on_status,
        on_events,
    ] = [0, 1, 2, 3, 4, 5].map(|kind| &*kinds[kind].0);
    let leads = cluster.namespace("leads").await;
    let mut args = vec!["--workers=8".to_owned()];
    args.extend(
        kinds
            .iter()
            .map(|(namespace, _)| format!("--namespace={namespace}")),
    );
    let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let _controller = leader(cluster, &leads, &args).await;
    for (namespace, _) in &kinds {
        create(client, namespace, &["it".to_owned()]).await;
    }

    let denied = async {
        let message = not_ready(client, refuses, "it", "DeploymentRejected").await;
        assert!(message.contains("not this week"), "{message}");
    };
    let closed = async {
        let message = not_ready(client, fails_closed, "it", "DeploymentRejected").await;
        assert!(message.contains("somebody.example.com"), "{message}");
    };
    let timed_out = async {
        let message = not_ready(client, too_long, "it", "DeploymentTimedOut").await;
        assert!(message.contains("webhook"), "{message}");
        written(client, too_long, "DeploymentTimedOut").await;
    };
    let reported = async {
        owned(client, on_status, "it", "it").await;
        let foos: Api<Foo> = Api::namespaced(client.clone(), on_status);
        eventually(LATE, "the status is written", async || {
            let foo = foos.get("it").await.map_err(|error| error.to_string())?;
            foo.status.map(drop).ok_or_else(String::new)
        })
        .await;
    };
    tokio::join!(
        denied,
        closed,
        timed_out,
        reported,
        owned(client, is_slow, "it", "it"),
        written(client, on_events, "Synced"),
    );
    for (_, installed) in kinds {
        installed.remove().await;
    }
}

/// A multiple of the webhook timeout of 10 s.
const LATE: Duration = Duration::from_mins(1);

async fn written(client: &Client, namespace: &str, reason: &str) {
    eventually(LATE, &format!("an event {reason}"), async || {
        let events = events(client, namespace, reason).await;
        events.first().map(drop).ok_or("none")
    })
    .await;
}

/// A webhook on leases that takes less than half of `renew_deadline` does not end the leadership. A slower one does, and the
/// log names the cause. With the longer lease of the documentation, a replica leads in spite of it.
#[tokio::test]
async fn h6_a_slow_webhook_on_leases_is_named_in_the_log() {
    let cluster = audited().await;
    let client = &cluster.client().await;
    let on_leases = |timeout_seconds| Webhook {
        resources: "coordination.k8s.io/v1/leases",
        timeout_seconds,
        ..HANGS
    };
    let leads = async |timeout_seconds, args: &[&str]| {
        let namespace = cluster.namespace("lease").await;
        cluster.release_lease(&namespace, "foo-controller").await;
        let installed = on_leases(timeout_seconds).install(client, &namespace).await;
        let args = [&["--namespace", &namespace], args].concat();
        let controller = run(cluster, &namespace, &args);
        controller.wait_for_log("gained the lease").await;
        // The renewals succeed, too.
        let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        let renewed = async || {
            let lease = leases.get("foo-controller").await.unwrap();
            lease.spec.unwrap().renew_time
        };
        let first = renewed().await;
        eventually(LATE, "the Lease is renewed", async || {
            let now = renewed().await;
            if now == first { Err(now) } else { Ok(()) }
        })
        .await;
        assert_eq!(controller.logged("lost the lease"), 0);
        installed.remove().await;
    };
    let does_not = async {
        let namespace = cluster.namespace("lease").await;
        cluster.release_lease(&namespace, "foo-controller").await;
        let installed = on_leases(None).install(client, &namespace).await;
        let controller = run(cluster, &namespace, &["--namespace", &namespace]);
        let line = controller
            .wait_for_log("does an admission webhook for leases hang?")
            .await;
        assert!(line.contains("cannot acquire or renew the lease"), "{line}");
        installed.remove().await;
        controller.wait_for_log("gained the lease").await;
    };
    let longer = ["--lease-duration=45s", "--lease-renew-deadline=30s"];
    tokio::join!(leads(Some(3), &[]), leads(None, &longer), does_not);
}
