//! Installations of one program, which divide the objects by label.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use tokio::sync::broadcast;

use super::{
    control::Traced,
    several::{build, build_jobs},
    *,
};
use crate::telemetry::{
    object_state::{INSTALLATION, parse},
    state::{Cache, Controller},
};

const LABEL: &str = "example.com/installation";

/// An API server that stores each write. It streams no lists, and its watches ignore the selectors.
#[derive(Clone)]
struct Api {
    /// The lists and watches with their selectors, and the writes with their bodies.
    reads: Arc<Mutex<Vec<String>>>,
    writes: Arc<Mutex<Vec<(String, Value)>>>,
    /// By resource type and name. The namespace is `n`.
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    events: broadcast::Sender<(String, String)>,
    version: Arc<AtomicU64>,
    term: Arc<channel::Sender<Option<Term>>>,
}

impl Api {
    fn new() -> Self {
        Self {
            reads: Arc::default(),
            writes: Arc::default(),
            objects: Arc::default(),
            events: broadcast::channel(64).0,
            version: Arc::new(AtomicU64::new(100)),
            term: Arc::new(channel::channel(Some(Term::unlimited())).0),
        }
    }

    /// Stores an object, and sends it to the watches.
    fn store(&self, path: &str, mut object: Value) -> Value {
        let version = self.version.fetch_add(1, SeqCst).to_string();
        let (plural, name) = path.split_once('/').unwrap();
        let fixed = json!({ "metadata": { "name": name, "namespace": "n", "uid": path, "generation": 1,
            "resourceVersion": version }, "spec": {} });
        json_patch::merge(&mut object, &fixed);
        self.objects.lock().insert(path.to_owned(), object.clone());
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
        let _ = self.events.send((plural.to_owned(), event));
        object
    }

    /// Sets the label of an object, which may be new. `None`: no label. Then waits for the reconciles.
    async fn label(&self, path: &str, value: Option<&str>) {
        let stored = self.objects.lock().get(path).cloned();
        let mut object = stored.unwrap_or_else(|| json!({}));
        let labels = json!({ "metadata": { "labels": { LABEL: value } } });
        json_patch::merge(&mut object, &labels);
        self.store(path, object);
        sleep(Duration::from_millis(500)).await;
    }

    fn answer(&self, head: &Parts, body: &Value) -> Response<Answer> {
        let path = head.uri.path().rsplit_once("v1/").unwrap().1;
        let query = head.uri.query().unwrap_or_default();
        if path.ends_with("reviews") {
            return respond(201, &json!({ "spec": {}, "status": { "allowed": true } }));
        }
        if head.method == Method::GET {
            if query.contains("sendInitialEvents") {
                return respond(422, &json!({ "code": 422 }));
            }
            let mut selectors = query
                .split('&')
                .filter(|it| it.starts_with("labelSelector"));
            let selector = selectors.next().unwrap_or_default();
            self.reads.lock().push(format!("{path} {selector}"));
            if !query.contains("watch") {
                let metadata = json!({ "resourceVersion": "9" });
                // A live read selects one object.
                let name = query
                    .split('&')
                    .find_map(|it| it.strip_prefix("fieldSelector=metadata.name%3D"));
                let path = path.trim_start_matches("namespaces/n/");
                let items =
                    name.map(|name| self.objects.lock().get(&format!("{path}/{name}")).cloned());
                let items: Vec<_> = items.flatten().into_iter().collect();
                return respond(200, &json!({ "metadata": metadata, "items": items }));
            }
            let plural = path.to_owned();
            return streamed(stream::unfold(
                self.events.subscribe(),
                move |mut events| {
                    let plural = plural.clone();
                    async move {
                        loop {
                            let (of, line) = events.recv().await.ok()?;
                            if of == plural {
                                return Some((Ok(Frame::data(Bytes::from(line))), events));
                            }
                        }
                    }
                },
            ));
        }
        self.writes
            .lock()
            .push((format!("{} {path}", head.method), body.clone()));
        let path = path
            .trim_start_matches("namespaces/n/")
            .trim_end_matches("/status");
        let path = match head.method {
            Method::POST => format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()),
            _ => path.to_owned(),
        };
        let stored = self.objects.lock().get(&path).cloned();
        let mut object = stored.unwrap_or_else(|| json!({}));
        if head.method == Method::DELETE {
            // The watch does not show it yet.
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return respond(200, &object);
        }
        json_patch::merge(&mut object, body);
        respond(200, &self.store(&path, object))
    }

    /// Deletes an object, or shows to a watch with a selector that its label has changed.
    async fn remove(&self, path: &str) {
        let mut object = self.objects.lock().remove(path).unwrap();
        let version = self.version.fetch_add(1, SeqCst).to_string();
        object["metadata"]["resourceVersion"] = version.into();
        let (plural, _) = path.split_once('/').unwrap();
        let event = format!("{{\"type\":\"DELETED\",\"object\":{object}}}\n");
        let _ = self.events.send((plural.to_owned(), event));
        sleep(Duration::from_millis(500)).await;
    }

    /// Runs the program as this installation, and returns a function that reads its state.
    async fn run(
        &self,
        installation: &str,
    ) -> (
        JoinSet<Result<(), TaskExited>>,
        impl Fn() -> (Vec<Cache>, Vec<Controller>),
        impl Fn(&str) -> Result<Vec<String>, String>,
    ) {
        self.run_program(installation, build).await
    }

    async fn run_program<F: FnOnce(&mut Builder)>(
        &self,
        installation: &str,
        build: F,
    ) -> (
        JoinSet<Result<(), TaskExited>>,
        impl Fn() -> (Vec<Cache>, Vec<Controller>) + use<F>,
        impl Fn(&str) -> Result<Vec<String>, String> + use<F>,
    ) {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                Ok::<_, Infallible>(api.answer(&head, &body))
            }
        });
        let config = Config {
            installation: installation.to_owned(),
            ..Config::shipped(&APP)
        };
        let host = Host::of_this_process();
        let mut controllers = Controllers::new(
            &host,
            &Client::new(service, "default"),
            &config,
            "test".into(),
            &Metrics::disconnected(&APP),
            &mut Health::new(&host),
            build,
        );
        let (state, of) = (controllers.state(), controllers.object_state());
        let object = move |name: &str| {
            let work = of(&parse(name).unwrap())?;
            let records = work.records.iter().filter(|it| it.name == INSTALLATION);
            Ok(records.map(|it| it.text.clone()).collect())
        };
        let mut running = JoinSet::new();
        let term = self.term.subscribe();
        running.spawn(async move { controllers.run(term, std::future::pending()).await });
        sleep(Duration::from_secs(5)).await;
        (running, state, object)
    }

    /// Returns the writes since the last call.
    fn written(&self) -> Vec<String> {
        let writes = std::mem::take(&mut *self.writes.lock());
        writes.into_iter().map(|(write, _)| write).collect()
    }
}

const CHECKED: &str = "PUT namespaces/n/jobs/b/status";

/// An object is reconciled at once when it comes, and not at all when it has left: not even by an earlier `Action::After`.
#[tokio::test(start_paused = true)]
async fn an_object_comes_and_leaves() {
    let api = Api::new();
    let (_running, state, object) = api.run("canary").await;
    for time in ["the first time", "again"] {
        api.label("jobs/b", None).await;
        sleep(Duration::from_mins(5)).await;
        assert_eq!(api.written(), [""; 0], "{time}");
        assert_eq!(state().1[1].queue.as_ref().unwrap().delayed, 0, "{time}");
        let text = "the default installation reconciles it".to_owned();
        assert_eq!(object("job/n/b"), Ok(vec![text]));
        api.label("jobs/b", Some("canary")).await;
        assert_eq!(api.written(), [CHECKED], "{time}");
        assert_eq!(object("job/n/b"), Ok(Vec::new()));
        sleep(Duration::from_mins(2)).await;
        assert_eq!(api.written().len(), 2, "{time}");
    }
}

/// Another object may wait for state that both share.
#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_wakes_others() {
    let api = Api::new();
    let (_running, ..) = api.run("canary").await;
    for job in ["jobs/woken", "jobs/b"] {
        api.label(job, Some("canary")).await;
    }
    api.written();
    api.label("jobs/b", None).await;
    assert_eq!(api.written(), ["PUT namespaces/n/jobs/woken/status"]);
}

/// An object that is deleted, or that leaves an installation whose watch selects its objects.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_wakes_others() {
    for installation in ["", "canary"] {
        let api = Api::new();
        let (_running, state, _) = api.run_program(installation, build_jobs).await;
        let is_divided = !state().0[0].selector.is_empty();
        assert_eq!(is_divided, !installation.is_empty());
        let label = (!installation.is_empty()).then_some(installation);
        for job in ["jobs/woken", "jobs/b"] {
            api.label(job, label).await;
        }
        api.written();
        api.remove("jobs/b").await;
        assert_eq!(api.written(), ["PUT namespaces/n/jobs/woken/status"]);
    }
}

/// The API server selects the objects of a resource type that no other controller uses. The others are in the store.
#[tokio::test(start_paused = true)]
async fn only_unshared_types_are_selected() {
    for (installation, selector) in [
        ("", ""),
        (
            "canary",
            "labelSelector=example.com%2Finstallation%3Dcanary",
        ),
    ] {
        let api = Api::new();
        let (_running, state, object) = api.run(installation).await;
        let mut reads = api.reads.lock().clone();
        reads.sort();
        let orders = format!("orders {selector}");
        assert_eq!(reads, ["jobs ", "jobs ", &orders, &orders]);
        let selectors: Vec<_> = state().0.into_iter().map(|cache| cache.selector).collect();
        let shown = match installation {
            "" => "",
            _ => "labels example.com/installation=canary",
        };
        assert_eq!(selectors, [shown, ""]);
        let absent = object("order/n/a").expect_err("it is absent");
        let why = match installation {
            "" => "",
            _ => ", which contains only objects with the label example.com/installation=canary",
        };
        assert_eq!(absent, format!("no Order n/a in the cache{why}"));
    }
}

/// An owned object of a reconciled type belongs to the installation of its owner, also after another client has changed the label.
#[tokio::test(start_paused = true)]
async fn an_owned_object_inherits_the_label() {
    for (installation, own, other) in [
        ("", None, Some("canary")),
        ("", Some(""), Some("canary")),
        ("canary", Some("canary"), None),
        ("canary", Some("canary"), Some("other")),
    ] {
        let api = Api::new();
        let (_running, ..) = api.run(installation).await;
        api.label("orders/a", own).await;
        let created = api.writes.lock()[0].clone();
        assert_eq!(created.0, "POST namespaces/n/jobs");
        let value = (!installation.is_empty()).then_some(installation);
        assert_eq!(created.1["metadata"]["labels"][LABEL].as_str(), value);
        let checked = "PUT namespaces/n/jobs/a/status";
        assert_eq!(api.written(), ["POST namespaces/n/jobs", checked]);

        api.label("jobs/a", other).await;
        let patch = api.writes.lock()[0].1["metadata"]["labels"].clone();
        assert_eq!(patch, json!({ LABEL: value }));
        let written = api.written();
        assert_eq!(written[0], "PATCH namespaces/n/jobs/a");
        assert_eq!(written[1..], [checked], "it is back");
    }
}

/// The object alone does not: another controller may have an object of this name.
#[tokio::test(start_paused = true)]
async fn a_write_names_its_controller() {
    let (traced, _guard) = Traced::begin();
    let api = Api::new();
    let (_running, ..) = api.run("").await;
    api.label("orders/a", None).await;
    let fields = ["object=n/a", "dependent=n/a", r#"controller="order""#];
    for write in ["created the Job", "changed the Job", "deleted the Job"] {
        assert!(traced.has(&[&[write], &fields[..]].concat()), "{write}");
        match write {
            "created the Job" => api.label("jobs/a", Some("canary")).await,
            _ => drop(api.store("orders/a", json!({ "spec": { "drop": true } }))),
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Stores a Job that `orders/a` controls, with this label.
fn owned_job(api: &Api, label: Option<&str>) {
    let owner = json!([{ "apiVersion": "example.com/v1", "kind": "Order", "name": "a", "uid": "orders/a", "controller": true }]);
    let labels = json!({ LABEL: label });
    api.store(
        "jobs/a",
        json!({ "metadata": { "ownerReferences": owner, "labels": labels } }),
    );
}

/// Without its installation, the object would keep its finalizers, and its owner would wait for it.
#[tokio::test(start_paused = true)]
async fn an_owned_object_follows_an_owner_without_steps() {
    let now = "2026-01-01T00:00:00Z";
    for change in [
        json!({ "metadata": { "deletionTimestamp": now } }),
        json!({ "spec": { "after": "missing" } }),
    ] {
        let api = Api::new();
        let (_running, ..) = api.run("canary").await;
        owned_job(&api, None);
        let order = json!({ "metadata": { "labels": { LABEL: "canary" } } });
        let mut changed = order.clone();
        json_patch::merge(&mut changed, &change);
        api.store("orders/a", changed);
        sleep(Duration::from_millis(500)).await;
        let (request, patch) = api.writes.lock()[0].clone();
        assert_eq!(request, "PATCH namespaces/n/jobs/a", "{change}");
        assert_eq!(patch["metadata"]["labels"], json!({ LABEL: "canary" }));
        let checked = "PUT namespaces/n/jobs/a/status";
        assert_eq!(api.written()[1..], [checked], "{change}");

        // Another client moves it.
        owned_job(&api, Some("other"));
        sleep(Duration::from_millis(500)).await;
        assert_eq!(api.written()[0], "PATCH namespaces/n/jobs/a", "{change}");
    }
}

/// The watch of the owner is behind, and that of the owned object is not. The next installation has moved the object.
#[tokio::test(start_paused = true)]
async fn an_owned_object_is_not_moved_back_after_its_owner_has_left() {
    for spec in [json!({}), json!({ "after": "missing" })] {
        let api = Api::new();
        let (_running, ..) = api.run("").await;
        api.store("orders/a", json!({ "spec": spec }));
        owned_job(&api, None);
        sleep(Duration::from_millis(500)).await;
        api.written();
        let left = json!({ "metadata": { "labels": { LABEL: "canary" } } });
        json_patch::merge(api.objects.lock().get_mut("orders/a").unwrap(), &left);
        owned_job(&api, Some("canary"));
        sleep(Duration::from_mins(3)).await;
        assert_eq!(api.written(), [""; 0], "{spec}");
        // The owner comes back, with a newer version.
        api.label("orders/a", None).await;
        assert_eq!(api.written()[0], "PATCH namespaces/n/jobs/a", "{spec}");
    }
}

/// Its deletion needs no label, and a patch would be a conflict.
#[tokio::test(start_paused = true)]
async fn an_object_that_the_reconcile_deletes_is_not_moved() {
    let api = Api::new();
    let (_running, ..) = api.run("canary").await;
    owned_job(&api, Some("other"));
    let labels = json!({ LABEL: "canary" });
    api.store(
        "orders/a",
        json!({ "metadata": { "labels": labels }, "spec": { "drop": true } }),
    );
    sleep(Duration::from_mins(3)).await;
    assert_eq!(api.written(), ["DELETE namespaces/n/jobs/a"]);
}

/// A new leader finds the objects that the former one has not moved.
#[tokio::test(start_paused = true)]
async fn a_stray_object_is_found_by_a_new_leader() {
    let api = Api::new();
    api.term.send_replace(None);
    let (_running, ..) = api.run("canary").await;
    let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": { LABEL: "canary" } } });
    api.store("orders/a", terminating);
    owned_job(&api, None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(api.written(), [""; 0]);
    api.term.send_replace(Some(Term::unlimited()));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(api.written()[0], "PATCH namespaces/n/jobs/a");
}

/// While its owner is paused, an object stays with the installation of its own label.
#[tokio::test(start_paused = true)]
async fn an_owned_object_of_a_paused_owner_stays() {
    let api = Api::new();
    let (_running, ..) = api.run("canary").await;
    owned_job(&api, None);
    let paused = |value: &str| {
        json!({ "metadata": {
        "labels": { LABEL: "canary" }, "annotations": { "example.com/paused": value },
    } })
    };
    api.store("orders/a", paused("true"));
    sleep(Duration::from_mins(1)).await;
    let written = api.written();
    assert_eq!(written[0], "PUT namespaces/n/orders/a/status");
    assert!(
        !written.iter().any(|it| it.contains("/jobs/")),
        "{written:?}"
    );
    api.store("orders/a", paused("false"));
    sleep(Duration::from_millis(500)).await;
    assert!(
        api.written()
            .contains(&"PATCH namespaces/n/jobs/a".to_owned())
    );
}

/// The changes of related objects enqueue nothing of another installation.
#[tokio::test(start_paused = true)]
async fn another_installation_enqueues_nothing() {
    let api = Api::new();
    let (_running, state, _) = api.run("").await;
    api.label("orders/a", Some("canary")).await;
    let owner = json!([{ "apiVersion": "example.com/v1", "kind": "Order", "name": "a", "uid": "orders/a", "controller": true }]);
    api.store(
        "jobs/a",
        json!({ "metadata": { "ownerReferences": owner, "labels": { LABEL: "canary" } } }),
    );
    sleep(Duration::from_mins(3)).await;
    assert_eq!(api.written(), [""; 0]);
    let queues = state().1;
    let busy = queues
        .iter()
        .any(|it| it.queue.as_ref().is_some_and(|queue| queue.delayed > 0));
    assert!(!busy);
}
