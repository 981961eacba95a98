//! Webhooks of somebody else's that hang in one namespace, are slow or refuse: what the controller writes lands as kubectl's does,
//! no other namespace is slower for it, and the Foo reports what is in the way.

use std::time::Duration;

use foo_controller::api::Foo;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{Cluster, eventually},
    controller::Controller,
    foos::{audited, audited_alone, create, delays, events, names, not_ready, owned},
    webhooks::{Does, Webhook},
};

/// What any webhook is that fails open, with all else left out.
const HANGS: Webhook = Webhook {
    resources: "apps/v1/deployments",
    does: Does::Hangs,
    timeout_seconds: None,
    fails_open: true,
};

/// A controller that leads, with the settings that ship.
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

/// Foos of a namespace with a webhook that hangs get their Deployments as kubectl does, and those of another one are as quick as
/// they were before.
#[tokio::test]
async fn q7_a_webhook_that_hangs_and_fails_open_holds_up_its_namespace_alone() {
    const FOOS: usize = 60;
    /// Less than a request that hangs holds up anything, and more than a busy machine does.
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
        // More of them than there are workers.
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
        // A namespace that begins to hang holds up others for a second.
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
            let subject = crate::foos::subject(event);
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

/// Each kind of webhook in a namespace of its own.
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

/// Many times what a webhook takes.
const LATE: Duration = Duration::from_mins(1);

async fn written(client: &Client, namespace: &str, reason: &str) {
    eventually(LATE, &format!("an event {reason}"), async || {
        let events = events(client, namespace, reason).await;
        events.first().map(drop).ok_or("none")
    })
    .await;
}

/// Hazard H6: a webhook that hangs on leases, which takes less than half of `renew_deadline`, costs no leadership. One that takes
/// longer does, and the log names the cause; with the longer lease that the documentation has for it, a replica leads.
#[tokio::test]
async fn h6_a_webhook_on_leases_that_takes_long_is_named_in_the_log() {
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
        // It is renewed, too.
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
