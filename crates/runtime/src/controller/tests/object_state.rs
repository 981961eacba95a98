//! `/debug/state?object=` contains each record while it holds the object, and no longer.

use std::any::Any;

use super::*;
use crate::{
    api::select::Select,
    cache::store::Freshness,
    controller::{object_reconciler::ObjectReconciler, single::Controller, work_queue::WorkQueue},
    telemetry::object_state::{ObjectWork, Record},
};

/// A controller with the object `parent`, whose caches are in sync, and the queue of a term.
struct World {
    controllers: Controllers,
    work_queue: WorkQueue,
    key: Key,
}

fn work(controllers: &Controllers) -> &ObjectReconciler<Parents> {
    let controller: &dyn Any = &*controllers.all[0];
    &controller
        .downcast_ref::<Controller<Parents>>()
        .unwrap()
        .work
}

impl World {
    async fn new() -> Self {
        let server = server();
        server.let_children.add_permits(1);
        let controllers = controllers(&server, &mut Health::new(&Host::of_this_process()));
        sleep(Duration::from_millis(1)).await;
        Self {
            controllers,
            work_queue: WorkQueue::new(queue()),
            key: key("parent"),
        }
    }

    fn work(&self) -> &ObjectReconciler<Parents> {
        work(&self.controllers)
    }

    fn state(&self) -> ObjectWork {
        let work = self.work();
        work.object_state(&self.key, Some(&self.work_queue))
            .unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.state().records.into_iter().map(|it| it.name).collect()
    }

    /// Returns the only record of this name, as a line.
    fn record(&self, name: &str) -> String {
        let mut records = self.state().records;
        records.retain(|it| it.name == name);
        let [record] = &*records else {
            panic!("{name}: {records:?}")
        };
        record.to_string()
    }

    /// Runs an attempt that fails.
    async fn fail(&self, least: Duration) {
        let item = self.work_queue.queue.get().await.unwrap();
        let failed = Failed::of(&Parent::KIND, &Error::Rejected("no".into()));
        self.work_queue.failures.note(&self.key, &failed);
        item.complete(Outcome::Failed(Retry::Backoff(least)));
    }

    fn change(&self) {
        let kind = Parent::KIND.kind;
        self.work_queue
            .enqueue_status_change(self.key.clone(), kind);
    }

    fn seen(&self) -> Snapshot<Parent> {
        self.work().primary.store().get(&self.key).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_is_shown_until_everything_is_in_sync() {
    let server = server();
    let controllers = controllers(&server, &mut Health::new(&Host::of_this_process()));
    sleep(Duration::from_millis(1)).await;
    let state = |name| work(&controllers).object_state(&key(name), None);
    for name in ["parent", "other"] {
        let found = state(name).unwrap();
        assert_eq!(found.cached.is_some(), name == "parent");
        let readiness = Record::new("readiness", "not in sync yet: children");
        assert_eq!((found.records, found.queue), (vec![readiness], None));
    }
    server.let_children.add_permits(1);
    sleep(Duration::from_millis(1)).await;
    let found = state("parent").unwrap();
    assert_eq!(found.records, []);
    let cached = found.cached.unwrap();
    assert_eq!(
        (&*cached.resource_version, &*cached.freshness),
        ("1", "fresh")
    );
    let unknown = state("other").err().unwrap();
    assert_eq!(unknown, "no Parent n/other in the cache");
}

#[tokio::test(start_paused = true)]
async fn the_queue_position_and_the_failures_are_shown() {
    let world = World::new().await;
    let place = || {
        let queue = world.state().queue.unwrap();
        (
            queue.lane,
            queue.delayed_for_seconds,
            queue.in_work_for_seconds,
        )
    };
    assert_eq!(place(), (None, None, None));
    world.change();
    assert_eq!(place(), (Some("event".into()), None, None));
    let item = world.work_queue.queue.get().await.unwrap();
    advance(Duration::from_millis(500)).await;
    assert_eq!(place(), (None, None, Some(0.5)));
    world.change();
    assert_eq!(place(), (Some("event".into()), None, Some(0.5)));
    drop(item);
    assert_eq!(world.names(), [""; 0]);
    world.fail(Duration::from_secs(7)).await;
    assert_eq!(place(), (Some("retry".into()), Some(7.), None));
    let queue = world.state().queue.unwrap();
    let last = (queue.last_reason.as_deref(), queue.last_error.as_deref());
    assert_eq!((queue.attempts, last), (1, (Some("Rejected"), Some("no"))));
    assert_eq!(world.names(), ["leastDelay", "backoff"]);
    assert!(
        world
            .record("leastDelay")
            .starts_with("leastDelay, for another 7s: ")
    );
    let backoff = "backoff, for another 7s: 1 in a row failed, last Rejected: no";
    assert_eq!(world.record("backoff"), backoff);
    advance(Duration::from_secs(7)).await;
    assert_eq!(world.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn deferred_changes_and_the_change_limit_are_shown() {
    let world = World::new().await;
    world.change();
    world.fail(Duration::ZERO).await;
    for _ in 0..10 {
        world.change();
        world.fail(Duration::ZERO).await;
    }
    assert_eq!(world.names(), ["backoff"]);
    world.change();
    assert_eq!(world.names(), ["backoff", "deferredChanges"]);

    let world = World::new().await;
    for _ in 0..20 {
        assert_eq!(world.names(), [""; 0]);
        world.change();
        world
            .work_queue
            .queue
            .get()
            .await
            .unwrap()
            .complete(Outcome::Done);
    }
    world.change();
    assert!(
        world
            .record("changeLimit")
            .starts_with("changeLimit, for another 1s: ")
    );
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_namespace_is_shown() {
    let world = World::new().await;
    world.change();
    let item = world.work_queue.queue.get().await.unwrap();
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.names(), ["slowNamespace"]);
    item.complete(Outcome::Done);
    advance(Duration::from_mins(1)).await;
    assert_eq!(world.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn records_of_the_cache_are_shown() {
    let world = World::new().await;
    let work = world.work();
    let objects = work.primary.store();
    for (standing, word) in [
        (Freshness::Conflicted, "conflicted"),
        (Freshness::Stale, "stale"),
    ] {
        objects.note(&world.key, ("u", 1), standing, objects.now(&world.key));
        assert_eq!(world.names(), ["freshness"]);
        assert_eq!(world.state().cached.unwrap().freshness, word);
    }
    objects.note(
        &world.key,
        ("u", 1),
        Freshness::Fresh,
        objects.now(&world.key),
    );

    objects.mark_deletion_pending(&world.key, "u");
    let text = "pendingDeletion: the deletion of Parent n/parent was accepted, ";
    assert!(world.record("pendingDeletion").starts_with(text));
    objects.mark_deletion_pending(&world.key, "another");
    assert_eq!(world.names(), [""; 0]);

    assert!(!work.is_up_to_date(&world.key), "the child is missing");
    let children = work.reconciler.children.store();
    let child = object("{metadata: {name: web, namespace: n, uid: c, resourceVersion: '10'}}");
    children.apply(0, child);
    assert!(work.is_up_to_date(&world.key));
    assert_eq!(world.names(), ["upToDate"]);
    children.delete(0, &key("web"), 11);
    assert_eq!(world.names(), [""; 0]);
}

/// The records of a dependent contain its name, even if it does not exist.
#[tokio::test(start_paused = true)]
async fn records_of_the_writers_are_shown() {
    let world = World::new().await;
    let work = world.work();
    let (seen, child) = (world.seen(), key("web"));
    let by = Requester::of(&*seen.view);
    let history = &work.reconciler.children.history;
    for _ in 0..=AT_ONCE {
        assert_eq!(world.names(), [""; 0]);
        history.record(&child, by, Desired::Present(0), 1, Some(2));
    }
    let dispute = "dispute, for another 1s: other clients revert the changes of Child n/web";
    assert_eq!(world.record("dispute"), dispute);
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.names(), [""; 0]);

    let patch = json!({ "spec": {} });
    let own = &work.primary.history;
    let record = |overruled| {
        let list = work.primary.store().now(&world.key);
        own.record_patch(&world.key, by, &patch, &*seen.view, list, overruled);
    };
    record(Some(&patch));
    let no_op = "noOpWrite: the API server accepted a change of Parent n/parent without effect";
    assert!(world.record("noOpWrite").starts_with(no_op));
    record(None);
    assert_eq!(world.names(), [""; 0]);

    own.record_rejected_status(&world.key, seen.version, &seen.view.status);
    let rejected = "rejectedStatus, for another 16m 40s: the API server rejected the status of Parent n/parent";
    assert!(world.record("rejectedStatus").starts_with(rejected));
    advance(Duration::from_secs(1000)).await;
    assert_eq!(world.names(), [""; 0]);
}

/// The content of a referenced object is read by a GET, which fails here.
#[tokio::test(start_paused = true)]
async fn a_content_that_has_not_been_read_is_shown() {
    let metadata = json!({ "name": "web", "namespace": "n", "uid": "c", "resourceVersion": "2" });
    let mut server = server();
    server.children = json!([{ "metadata": metadata }]);
    server.let_children.add_permits(1);
    let controllers = Controllers::new(
        &Host::of_this_process(),
        &server.client(),
        &Config::shipped(&APP),
        "test".into(),
        &Metrics::disconnected(&APP),
        &mut Health::new(&Host::of_this_process()),
        |program| {
            program.select::<Child>(Select::default().referenced_only());
            program.controller("parent", |builder| {
                builder.watches::<Child>();
                Idle
            });
        },
    );
    sleep(Duration::from_millis(1)).await;
    let found = controllers.all[0].object_state(&key("parent")).unwrap();
    let names: Vec<_> = found.records.iter().map(|it| &*it.name).collect();
    assert!(names.contains(&"unread"), "{names:?}");

    // This installation does not wait for the content.
    let controller: &dyn Any = &*controllers.all[0];
    let work = &controller.downcast_ref::<Controller<Idle>>().unwrap().work;
    let mut parent = server.parents[0].clone();
    parent["metadata"]["resourceVersion"] = "3".into();
    parent["metadata"]["labels"] = json!({ "example.com/installation": "canary" });
    let parent = serde_json::from_str(&parent.to_string()).unwrap();
    work.primary.store().apply(0, parent);
    let found = controllers.all[0].object_state(&key("parent")).unwrap();
    let names: Vec<_> = found.records.iter().map(|it| &*it.name).collect();
    assert!(!names.contains(&"unread"), "{names:?}");
    assert!(names.contains(&"installation"), "{names:?}");
}
