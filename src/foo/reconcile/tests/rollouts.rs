//! The limit on rollouts.

use super::*;
use crate::foo::cached::Progress;

const OLD: &str = "nginx:old";

/// A Foo and its Deployment with this name. The image is not the configured image.
fn outdated(name: &str) -> (Object<Foo>, Object<Deployment>) {
    let (mut foo, mut deployment) = (foo(), deployment());
    foo.key = foo.key.sibling(name);
    foo.view.spec.as_mut().unwrap().deployment_name = name.to_owned();
    deployment.key = deployment.key.sibling(name);
    deployment.owner.as_mut().unwrap().name = name.into();
    deployment.view.labels = Arc::new(Labels {
        controller: Some(name.into()),
        ..(*deployment.view.labels).clone()
    });
    deployment.view.pod_labels = Arc::clone(&deployment.view.labels);
    deployment.view.image = Some(OLD.into());
    (foo, deployment)
}

/// Adds old pods beside the new pods.
fn roll_out(deployment: &mut Deployment) {
    deployment.image = Some("nginx:latest".into());
    deployment.progress = Progress {
        replicas: 4,
        updated: 1,
        ..deployment.progress.clone()
    };
}

/// If all places are taken, only the pod template waits. The end of a rollout enqueues a waiting Foo.
#[tokio::test]
async fn r12_a_full_limit_holds_back_the_pod_template_alone() {
    let patches = Arc::<Mutex<Vec<Value>>>::default();
    let (client, _) = server({
        let patches = Arc::clone(&patches);
        move |method, _, body| {
            if *method == Method::PATCH {
                patches.lock().push(body["spec"].clone());
            }
            (500, Value::Null)
        }
    });
    let (first, mut rolling) = outdated("first");
    roll_out(&mut rolling.view);
    let harness = reconciler(&client, first.clone(), rolling.clone());
    let (mut second, waiting) = outdated("second");
    harness.apply_foo(second.clone());
    harness.apply_deployment(waiting.clone());
    let reconciler = harness.reconciler();

    let (queued, status) = harness.deploy(&second.key).await;
    assert!(queued.is_queued && patches.lock().is_empty());
    let status = status.unwrap();
    let (ready, progressing) = (&status.conditions[0], &status.conditions[1]);
    assert_eq!(
        (&*ready.reason, &*progressing.reason, &*progressing.message),
        (
            "DeploymentAvailable",
            "RolloutQueued",
            "Deployment \"second\" has 3 of 3 replicas available; its rollout waits until fewer than max_rollouts others are \
             under way"
        )
    );
    assert!(!harness.is_up_to_date(&second.key), "a resync tries again");
    let waits = "its rollout waits for a slot, place 1".to_owned();
    assert_eq!(reconciler.why(&second.key), [("rolloutSlot", waits)]);
    assert_eq!(reconciler.why(&first.key), []);

    // The user's change of the replicas does not wait.
    (second.version, second.view.spec.as_mut().unwrap().replicas) = (8, Some(5));
    harness.apply_foo(second.clone());
    harness.deploy(&second.key).await;
    assert_eq!(patches.lock().pop(), Some(json!({ "replicas": 5 })));

    // A Deployment that already rolls out does not wait.
    (rolling.version, rolling.view.image) = (10, Some("nginx:bad".into()));
    harness.apply_deployment(rolling.clone());
    harness.deploy(&first.key).await;
    let template =
        json!({ "spec": { "containers": [{ "name": "nginx", "image": "nginx:latest" }] } });
    assert_eq!(patches.lock().pop(), Some(json!({ "template": template })));
    assert_eq!(harness.enqueued(), []);

    let mut done = outdated("first").1;
    (done.version, done.view.image) = (11, Some("nginx:latest".into()));
    harness.apply_deployment(done);
    // A pause of the first Foo does not keep its place.
    let released = harness.reconciler().release(&first.key);
    assert_eq!(released, [second.key.clone()]);
    harness.deploy(&second.key).await;
    let both = json!({ "replicas": 5, "template": template });
    assert_eq!(patches.lock().pop(), Some(both));
}

/// A finalizer of another client may keep a terminating Foo and its Deployment for long. Its rollout holds no place.
#[tokio::test]
async fn r12_a_terminating_foo_gives_its_place_back() {
    let (client, _) = server(|_, _, _| (500, Value::Null));
    let (mut first, mut rolling) = outdated("first");
    roll_out(&mut rolling.view);
    let harness = reconciler(&client, first.clone(), rolling);
    let (second, waiting) = outdated("second");
    harness.apply_foo(second.clone());
    harness.apply_deployment(waiting);
    let reconciler = harness.reconciler();
    assert!(harness.deploy(&second.key).await.0.is_queued);
    assert_eq!(reconciler.rollouts.under_way(), 1);

    (first.version, first.view.deleting) = (8, true);
    harness.apply_foo(first.clone());
    let seen = reconciler.foos.store().get(&first.key).unwrap();
    let cx = harness.context(&first.key, &seen);
    reconciler.reconcile(&cx, &seen).await.unwrap();
    assert_eq!(harness.enqueued(), [second.key]);
    assert_eq!(reconciler.rollouts.under_way(), 0);
}

/// A Foo is deleted in the background, or the watch of a named installation shows that it has left.
#[tokio::test]
async fn r12_a_foo_that_is_gone_gives_its_place_back() {
    let (client, _) = server(|_, _, _| (500, Value::Null));
    let (first, mut rolling) = outdated("first");
    roll_out(&mut rolling.view);
    let harness = reconciler(&client, first.clone(), rolling.clone());
    let (second, waiting) = outdated("second");
    harness.apply_foo(second.clone());
    harness.apply_deployment(waiting);
    let reconciler = harness.reconciler();
    assert!(harness.deploy(&second.key).await.0.is_queued);

    harness.delete(reconciler.foos.store(), &first);
    harness.reconcile(&first.key).await.unwrap();
    assert_eq!(harness.enqueued(), [], "its Deployment still rolls out");
    harness.delete(reconciler.deployments.store(), &rolling);
    harness.reconcile(&first.key).await.unwrap();
    assert_eq!(harness.enqueued(), [second.key]);
}

/// A rollout of the configured image holds its place until it is complete or paused, even if it fails.
#[test]
fn r12_a_rollout_holds_its_place() {
    let rolls_out = |change: fn(&mut Deployment)| {
        let mut view = deployment().view;
        roll_out(&mut view);
        change(&mut view);
        view.rolls_out("nginx:latest")
    };
    assert!(rolls_out(|_| {}));
    assert!(rolls_out(|d| d.image = Some(OLD.into())));
    assert!(rolls_out(|d| d.progress.stuck = true));
    assert!(!rolls_out(|d| {
        d.progress.stuck = true;
        d.image = Some(OLD.into());
    }));
    assert!(!rolls_out(|d| d.paused = true));
    assert!(rolls_out(|d| d.progress.failure = Some("quota".into())));
    assert!(!rolls_out(|d| {
        d.progress.failure = Some("quota".into());
        d.image = Some(OLD.into());
    }));
    assert!(!rolls_out(|d| d.deleting = true));
    assert!(!rolls_out(|d| d.foo_generation = None));
    assert!(!rolls_out(|d| d.progress.replicas = 1), "all are new");
    // After the patch, before the Deployment controller has observed it.
    assert!(rolls_out(|d| {
        d.progress.replicas = 1;
        d.generation += 1;
    }));
    assert!(!rolls_out(|d| d.progress.observed_generation = 0), "new");
}
