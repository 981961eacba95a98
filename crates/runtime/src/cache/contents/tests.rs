#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod grants;

use std::{collections::BTreeMap, convert::Infallible};

use http::{Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::service_fn;

use super::*;
use crate::{
    api::reference::References,
    cache::{
        readiness::{
            Scopes,
            namespace::{ControllerAccess, RequiredAccess},
        },
        store::Owners,
    },
    config::{app::tests::APP, environment::Host},
    testing::fixtures::{Child, Parent, object},
};

const LATENCY: Duration = Duration::from_millis(10);

/// Responses to reads: a version, or a status code.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    answers: BTreeMap<String, Result<u64, u16>>,
    /// Annotations of the objects in the responses.
    grants: BTreeMap<String, &'static str>,
    read: Vec<String>,
    running: usize,
    most: usize,
}

impl Server {
    fn set(&self, name: &str, answer: Result<u64, u16>) {
        self.0.lock().answers.insert(name.to_owned(), answer);
    }

    /// Returns the names of the objects that were read since the last call.
    fn read(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().read)
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: http::Request<Body>| {
            let Server(inner) = server.clone();
            async move {
                let path = request.uri().path();
                let name = path.rsplit('/').next().unwrap().to_owned();
                let (answer, grant) = {
                    let mut inner = inner.lock();
                    inner.running += 1;
                    inner.most = inner.most.max(inner.running);
                    inner.read.push(name.clone());
                    let answer = inner.answers.get(&name).copied().unwrap_or(Err(404));
                    (answer, inner.grants.get(&name).copied())
                };
                sleep(LATENCY).await;
                inner.lock().running -= 1;
                let (code, body) = match answer {
                    Ok(version) => (200, granted(&name, version, grant)),
                    Err(code) => (
                        code,
                        json!({ "kind": "Status", "status": "Failure", "code": code, "details": { "retryAfterSeconds": 20 } }),
                    ),
                };
                let mut response = Response::new(Body::from(body.to_string().into_bytes()));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "default")
    }
}

/// Returns a Child with this annotation.
fn granted(name: &str, version: u64, grant: Option<&str>) -> Value {
    let annotations = grant.map(|grant| json!({ "example.com/grant-to": grant }));
    let namespace = key(name).namespace().to_owned();
    json!({ "metadata": { "name": name, "namespace": namespace, "uid": name, "resourceVersion": version.to_string(),
                          "annotations": annotations } })
}

/// Returns the key of a Child. If its name begins with `other`, it is in another namespace than the Parents.
fn key(name: &str) -> Key {
    let namespace = if name.starts_with("other") {
        "other"
    } else {
        "n"
    };
    Key::new(namespace, name)
}

type Handler = Box<dyn Fn(Change<Child>) + Send>;

/// A scope: a store of Parents, and the Children that they reference.
struct World {
    server: Server,
    parents: Arc<Store<Parent>>,
    contents: Arc<Contents<Child>>,
    heads: Heads<Child, Handler>,
    changes: Arc<Mutex<Vec<Key>>>,
    /// The namespaces n and m, for each change that Parents there may see.
    seen_from: Arc<Mutex<Vec<&'static str>>>,
    scopes: Arc<Scopes>,
    task: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    fn new() -> Self {
        let server = Server::default();
        let parents = Arc::new(Store::<Parent>::new(&[None], Owners::default()));
        let store = Arc::new(Store::<Child>::new(&[None], Owners::new("example.com")));
        let refusals = Refusals::new(&[None]);
        let contents = Arc::new(Contents::new(&[None], &store));
        contents.add(Arc::clone(&parents) as _, Arc::clone(&refusals));
        let needs = RequiredAccess {
            controllers: vec![ControllerAccess {
                name: "parent",
                primary: &Parent::KIND,
                watched: vec![0],
                rights: Vec::new(),
            }],
            watched: vec![Child::KIND],
            optional: Vec::new(),
            unreviewed: Vec::new(),
        };
        let scopes = Scopes::new(needs, &[None], vec![refusals], Duration::from_secs(15));
        let status = scopes.informer(0, 0);
        let changes = Arc::<Mutex<Vec<Key>>>::default();
        let noted = Arc::clone(&changes);
        let seen_from = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&seen_from);
        let stored = Arc::clone(&store);
        let handle = move |change: Change<Child>| {
            // Handlers see the content.
            assert_eq!(change.new.is_some(), stored.get(&change.key).is_some());
            let from = ["n", "m"].into_iter();
            let from = from.filter(|from| change.may_be_seen_by(&Key::new(from, "p")));
            seen.lock().extend(from);
            noted.lock().push(change.key);
        };
        let shared = Arc::new(ClientContext {
            app: &APP,
            host: Host::of_this_process(),
            client: server.client(),
        });
        let (reading, handler) = (Arc::clone(&contents), handle.clone());
        let task = tokio::spawn(async move { reading.read(&shared, status, handler).await });
        let heads = Heads {
            contents: Arc::clone(&contents),
            scope: 0,
            changed: Box::new(handle) as _,
        };
        Self {
            server,
            parents,
            contents,
            heads,
            changes,
            seen_from,
            scopes,
            task,
        }
    }

    /// Returns a world after the initial sync, with a Parent `p` of the Child `a`, and a Child `b`.
    async fn synced() -> Self {
        let world = Self::new();
        world.server.set("a", Ok(5));
        world.server.set("b", Ok(6));
        world.list_parents(&[("p", "a")]);
        world.list(&[("a", 5), ("b", 6)]);
        world.settle().await;
        assert!(world.is_synced());
        world.server.read();
        world.changes.lock().clear();
        world
    }

    fn list_parents(&self, parents: &[(&str, &str)]) {
        self.parents.list_begins(0);
        for (name, child) in parents {
            self.parent(name, child, 1);
        }
        self.parents.list_ends(0, 1);
    }

    fn parent(&self, name: &str, child: &str, version: u64) {
        let parent = object(&format!(
            "{{metadata: {{name: {name}, namespace: n, uid: u, resourceVersion: '{version}'}}, spec: {{child: {}}}}}",
            if child.starts_with("other") {
                format!("other/{child}")
            } else {
                child.to_owned()
            },
        ));
        let change = self.parents.apply(0, parent).unwrap();
        for object in [change.old, change.new].into_iter().flatten() {
            for (_, to) in References::of(&change.key, &*object.view) {
                self.contents.references_changed(&to);
            }
        }
    }

    fn list(&self, children: &[(&str, u64)]) {
        self.heads.list_begins();
        for (name, version) in children {
            self.head(name, *version);
        }
        self.heads.list_ends(9);
    }

    fn head(&self, name: &str, version: u64) {
        self.granted_head(name, version, None);
    }

    fn granted_head(&self, name: &str, version: u64, grant: Option<&str>) {
        let text = granted(name, version, grant).to_string();
        let head: Object<Head<Child>> = serde_json::from_str(&text).unwrap();
        assert!(self.heads.apply(head).is_ok());
    }

    async fn settle(&self) {
        sleep(Duration::from_millis(60)).await;
    }

    fn stored(&self, name: &str) -> Option<u64> {
        self.contents.store.version(&key(name))
    }

    fn is_awaited(&self, name: &str) -> bool {
        self.contents.is_awaited(&Key::new("n", "p"), &key(name))
    }

    fn is_synced(&self) -> bool {
        self.scopes.caches(&[vec![0]])[0].in_sync
    }

    fn failure(&self) -> Option<String> {
        self.scopes.caches(&[vec![0]])[0].failure.clone()
    }

    fn changed(&self) -> Vec<String> {
        let changes = std::mem::take(&mut *self.changes.lock());
        changes.iter().map(|key| key.name().to_owned()).collect()
    }
}

/// The sync waits for the reads. It does not wait for the list of the referrers, which may fail forever.
#[tokio::test(start_paused = true)]
async fn the_initial_sync_waits_for_the_referenced_objects() {
    let world = World::new();
    world.server.set("a", Ok(5));
    world.list_parents(&[("p", "a"), ("q", "missing")]);
    world.list(&[("a", 5), ("b", 6)]);
    assert!(world.is_awaited("a") && !world.is_awaited("missing"));
    sleep(LATENCY / 2).await;
    assert!(!world.is_synced(), "the read is not complete");
    world.settle().await;
    assert!(world.is_synced());
    assert_eq!(world.server.read(), ["a"]);
    assert_eq!((world.stored("a"), world.stored("b")), (Some(5), None));
    assert_eq!(world.changed(), ["a"]);
    assert!(!world.is_awaited("a"));
}

#[tokio::test(start_paused = true)]
async fn the_initial_sync_does_not_wait_for_the_referrers() {
    let world = World::new();
    world.server.set("a", Ok(5));
    world.list(&[("a", 5), ("b", 6)]);
    world.settle().await;
    assert!(world.server.read().is_empty() && world.is_synced());
    world.list_parents(&[("p", "a")]);
    assert!(world.is_awaited("a"));
    world.settle().await;
    assert_eq!(
        (world.stored("a"), world.changed()),
        (Some(5), vec!["a".to_owned()])
    );
}

/// The object changes between its references, while it is not read.
#[tokio::test(start_paused = true)]
async fn a_reference_to_outdated_content_reads_it() {
    let world = World::synced().await;
    let parent = |child: &str, version: u64| {
        object(&format!(
            "{{metadata: {{name: p, namespace: n, uid: u, resourceVersion: '{version}'}}, spec: {{child: {child}}}}}"
        ))
    };
    assert!(world.parents.apply(0, parent("b", 2)).is_some());
    world.server.set("a", Ok(7));
    world.head("a", 7);
    world.parent("p", "a", 3);
    world.settle().await;
    assert_eq!(world.stored("a"), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_kept() {
    let world = World::synced().await;
    world.parent("q", "b", 2);
    world.settle().await;
    world.server.read();
    world.server.set("a", Err(429));
    world.server.set("b", Err(500));
    world.head("a", 7);
    world.head("b", 7);
    world.settle().await;
    assert_eq!(world.server.read(), ["a", "b"]);
    sleep(Duration::from_secs(15)).await;
    assert!(world.server.read().is_empty());
    sleep(Duration::from_secs(10)).await;
    assert!(!world.server.read().is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_a_new_version_of_a_referenced_object_is_read() {
    let world = World::synced().await;
    world.head("a", 5);
    world.head("b", 7);
    world.settle().await;
    assert!(world.server.read().is_empty());
    world.server.set("a", Ok(8));
    world.head("a", 8);
    assert_eq!(world.stored("a"), Some(5), "the last content stays");
    world.settle().await;
    assert_eq!(
        (world.server.read(), world.stored("a")),
        (vec!["a".to_owned()], Some(8))
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_reference_reads_and_the_end_of_the_last_one_drops() {
    let world = World::synced().await;
    world.parent("q", "a", 2);
    world.parent("p", "b", 3);
    assert!(world.is_awaited("b"));
    world.settle().await;
    assert_eq!(world.server.read(), ["b"]);
    assert_eq!(world.changed(), ["b"]);
    assert_eq!((world.stored("a"), world.stored("b")), (Some(5), Some(6)));
    world.parent("q", "b", 4);
    assert_eq!(world.stored("a"), None);
    world.settle().await;
    assert!(world.server.read().is_empty());
}

/// Handlers run also for an object whose content was never read: a reconcile may wait for it.
#[tokio::test(start_paused = true)]
async fn a_deletion_ends_the_wait() {
    let world = World::synced().await;
    world.server.set("b", Err(404));
    world.parent("p", "b", 2);
    world.settle().await;
    assert!(world.is_awaited("b"), "the watch removes it");
    sleep(Duration::from_secs(5)).await;
    assert!(world.server.read().len() > 1, "404 may be an old answer");
    world.changed();
    world.heads.delete(&Key::new("n", "b"), 7);
    assert!(!world.is_awaited("b"));
    assert_eq!(world.changed(), ["b"]);
    sleep(Duration::from_mins(1)).await;
    assert!(world.server.read().is_empty());
}

/// A response from before a change does not replace a later one, and an object that was created again is not lost.
#[tokio::test(start_paused = true)]
async fn a_change_during_a_read_is_read_again() {
    let world = World::synced().await;
    for before in [Ok(7), Err(404)] {
        world.server.set("a", before);
        world.head("a", 7);
        sleep(LATENCY / 2).await;
        world.heads.delete(&Key::new("n", "a"), 8);
        world.head("a", 9);
        world.server.set("a", Ok(9));
        world.settle().await;
        assert_eq!(world.stored("a"), Some(9));
        assert_eq!(world.server.read(), ["a", "a"]);
        world.list(&[("a", 5)]);
        world.server.set("a", Ok(5));
        world.settle().await;
        world.server.read();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_retried_and_reported() {
    for (code, text) in [
        (500, "cannot get children"),
        (403, "not allowed to get children"),
    ] {
        let world = World::synced().await;
        world.server.set("a", Err(code));
        world.head("a", 7);
        sleep(Duration::from_mins(1)).await;
        let tries = world.server.read().len();
        assert!((10..25).contains(&tries), "{tries}");
        assert!(
            world.failure().unwrap().starts_with(text),
            "{:?}",
            world.failure()
        );
        world.parent("q", "b", 2);
        sleep(Duration::from_secs(7)).await;
        assert_eq!(world.stored("b"), Some(6), "the others are read");
        assert!(world.failure().is_some());
        world.server.set("a", Ok(7));
        sleep(Duration::from_secs(7)).await;
        assert_eq!((world.stored("a"), world.failure()), (Some(7), None));
    }
}

/// No object is missing during a relist, and each referenced one is read, because an etcd restore may repeat versions.
#[tokio::test(start_paused = true)]
async fn a_relist_reads_the_referenced_objects() {
    let world = World::synced().await;
    world.parent("q", "gone", 2);
    world.head("gone", 7);
    world.list(&[("a", 5), ("b", 6)]);
    assert_eq!(world.stored("a"), Some(5));
    world.settle().await;
    assert_eq!(world.stored("a"), Some(5));
    assert!(world.server.read().contains(&"a".to_owned()));
    assert!(!world.is_awaited("gone"));
    world.list(&[("b", 6)]);
    world.settle().await;
    assert_eq!(world.stored("a"), None);
}

/// A read during a list stores the object, which is then deleted before the snapshot of the list.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_list_removes_an_object_read_during_the_list() {
    let world = World::synced().await;
    world.server.set("a", Ok(7));
    world.head("a", 7);
    sleep(LATENCY / 2).await;
    world.heads.list_begins();
    world.settle().await;
    assert_eq!(world.stored("a"), Some(7));
    world.heads.list_ends(9);
    assert_eq!(world.stored("a"), None);
    world.settle().await;
    assert_eq!(world.stored("a"), None);
}

/// A read that fails does not delay the removal of other objects.
#[tokio::test(start_paused = true)]
async fn a_failing_read_does_not_delay_a_removal() {
    let world = World::synced().await;
    world.parent("q", "b", 2);
    world.settle().await;
    world.server.set("b", Err(500));
    world.list(&[("b", 6)]);
    assert_eq!((world.stored("a"), world.stored("b")), (None, Some(6)));
    world.settle().await;
    assert_eq!((world.stored("a"), world.stored("b")), (None, Some(6)));
}

/// The object no longer matches the selector at version 7, and changes at version 8.
#[tokio::test(start_paused = true)]
async fn a_deletion_before_the_version_read_removes_the_object() {
    let world = World::synced().await;
    world.server.set("a", Ok(8));
    world.head("a", 6);
    world.settle().await;
    assert_eq!(world.stored("a"), Some(8));
    world.heads.delete(&Key::new("n", "a"), 7);
    assert_eq!(world.stored("a"), None);
}

#[tokio::test(start_paused = true)]
async fn at_most_four_reads_run_at_a_time() {
    let world = World::new();
    let names: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let parents: Vec<_> = names.iter().map(|name| (&**name, &**name)).collect();
    let children: Vec<_> = names.iter().map(|name| (&**name, 5)).collect();
    for name in &names {
        world.server.set(name, Ok(5));
    }
    world.list_parents(&parents);
    world.list(&children);
    let synced = async {
        while !world.is_synced() {
            sleep(LATENCY).await;
        }
    };
    timeout(Duration::from_secs(1), synced).await.unwrap();
    assert_eq!(world.server.0.lock().most, CONCURRENCY);
    assert_eq!(world.contents.store.len(), 20);
}
