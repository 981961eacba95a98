//! Resource types that may not be installed.

use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider};
use serde::{Deserialize, Serialize};
use tokio::{sync::broadcast, task::JoinHandle};

use super::*;
use crate::{
    api::{
        kind::Kind,
        plain::{Custom, Dependent, Fields, Spec},
        reported::Status,
    },
    cache::store::installed::REJECTED,
    controller::builder::Builder,
    testing::Harness,
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Order {}

impl Spec for Order {
    const KIND: Kind = Kind::custom("example.com", "v1", "Order", "orders");
    type Status = Status;
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Monitor {
    spec: Value,
}

impl Fields for Monitor {
    const KIND: Kind = Kind::custom("other.com", "v1", "Monitor", "monitors");
}

/// Each Order has a Monitor of its name, and no other one. Without a check whether Monitors are installed, it always plans the
/// Monitor.
struct Orders {
    primary: Arc<Writer<Custom<Order>>>,
    monitors: Writer<Dependent<Monitor>>,
    asks: bool,
}

impl Reconciler for Orders {
    type Primary = Custom<Order>;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Custom<Order>>,
        _: &Snapshot<Custom<Order>>,
    ) -> Result<Plan<Custom<Order>>, ApiError> {
        let mut plan = Plan::new();
        if !self.asks || self.monitors.is_installed(cx.key()) {
            let spec = json!({ "a": 1 });
            plan.apply(&self.monitors, cx.key(), &Monitor { spec });
        }
        plan.prune(&self.monitors);
        Ok(plan)
    }
}

fn harness(client: &Client) -> Harness<Orders> {
    Harness::new(&APP, client, |builder| Orders {
        primary: builder.primary(),
        monitors: builder.if_installed().owns(),
        asks: true,
    })
}

/// The state of the type.
#[derive(Clone, Copy, PartialEq)]
enum Crd {
    Missing,
    Served,
    /// Its objects are being deleted.
    Terminating,
}

/// An API server with two Orders, and without streamed lists.
#[derive(Clone)]
struct ApiServer {
    crd: Arc<Mutex<Crd>>,
    may_watch_crds: bool,
    /// Events of the watch of the CRD.
    crds: broadcast::Sender<String>,
    /// Ends the watches of Monitors.
    monitors: broadcast::Sender<()>,
    sent: Arc<Mutex<Vec<String>>>,
    version: Arc<Mutex<u64>>,
}

impl ApiServer {
    fn new(crd: Crd, may_watch_crds: bool) -> Self {
        Self {
            crd: Arc::new(Mutex::new(crd)),
            may_watch_crds,
            crds: broadcast::channel(8).0,
            monitors: broadcast::channel(8).0,
            sent: Arc::default(),
            version: Arc::new(Mutex::new(100)),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let object = serde_json::from_slice(&body).unwrap_or_default();
                Ok::<_, Infallible>(server.answer(&head, object))
            }
        });
        Client::new(service, "default")
    }

    /// Changes the state, and reports it in the watch of the CRD. The watches of a missing type end.
    fn becomes(&self, crd: Crd, event: &str) {
        *self.crd.lock() = crd;
        self.tell(event);
        if crd == Crd::Missing {
            let _ = self.monitors.send(());
        }
    }

    fn tell(&self, event: &str) {
        let mut version = self.version.lock();
        *version += 1;
        let metadata = json!({ "uid": "u", "name": "monitors.other.com", "resourceVersion": version.to_string() });
        let event = json!({ "type": event, "object": { "metadata": metadata } });
        let _ = self.crds.send(format!("{event}\n"));
    }

    fn answer(&self, request: &Parts, mut object: Value) -> Response<Answer> {
        let path = request.uri.path();
        let query = request.uri.query().unwrap_or_default();
        if query.contains("sendInitialEvents") {
            return respond(422, &json!({ "code": 422 }));
        }
        let of = path
            .rsplit("v1/")
            .next()
            .unwrap()
            .trim_start_matches("namespaces/n/");
        let is_watch = query.contains("watch=true");
        let verb = if is_watch {
            "WATCH"
        } else {
            request.method.as_str()
        };
        self.sent.lock().push(format!("{verb} {of}"));
        let crd = *self.crd.lock();
        if of == "customresourcedefinitions" {
            assert!(
                query.contains("fieldSelector=metadata.name%3Dmonitors.other.com"),
                "{query}"
            );
            if !self.may_watch_crds {
                return respond(403, &json!({ "code": 403 }));
            }
            let events = stream::unfold(self.crds.subscribe(), async |mut events| {
                let event = events.recv().await.ok()?;
                Some((Ok(Frame::data(event.into())), events))
            });
            return streamed(events);
        }
        if of == "selfsubjectaccessreviews" {
            return respond(201, &json!({ "spec": {}, "status": { "allowed": true } }));
        }
        if of.starts_with("monitors") {
            if crd == Crd::Missing {
                return missing();
            }
            if crd == Crd::Terminating && request.method == Method::POST {
                return terminating();
            }
            if is_watch {
                let mut end = self.monitors.subscribe();
                let end = async move {
                    let _ = end.recv().await;
                };
                return streamed(stream::pending().take_until(end));
            }
        }
        if is_watch {
            return streamed(stream::pending());
        }
        if request.method != Method::GET {
            let mut version = self.version.lock();
            *version += 1;
            let metadata = &mut object["metadata"];
            if metadata["uid"].is_null() {
                metadata["uid"] = format!("uid-{version}").into();
            }
            metadata["resourceVersion"] = version.to_string().into();
            metadata["generation"] = 1.into();
            object["spec"] = json!({ "a": 1 });
            return respond(200, &object);
        }
        let order = |name: &str| {
            json!({ "spec": {}, "metadata":
                { "name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1 } })
        };
        let orders = [order("a"), order("b")];
        let items = if of == "orders" { &orders[..] } else { &[] };
        let metadata = json!({ "resourceVersion": "9" });
        respond(200, &json!({ "metadata": metadata, "items": items }))
    }

    /// Returns the requests since the last call whose text contains this, in alphabetical order.
    fn sent(&self, word: &str) -> Vec<String> {
        let mut sent = std::mem::take(&mut *self.sent.lock());
        sent.retain(|it| it.contains(word));
        sent.sort();
        sent
    }
}

/// The response of an API server to a request for an unknown path, as the client receives it.
fn missing() -> Response<Answer> {
    let message = "404 page not found";
    respond(
        404,
        &json!({ "kind": "Status", "code": 404, "reason": "Not Found", "message": message }),
    )
}

/// The response to a create while the objects of the CRD are being deleted.
fn terminating() -> Response<Answer> {
    let text = "monitors.other.com \"a\" is forbidden: create not allowed while custom resource definition is terminating";
    let details = json!({ "name": "a", "group": "other.com", "kind": "monitors" });
    respond(
        403,
        &json!({ "kind": "Status", "code": 403, "reason": "Forbidden", "message": text, "details": details }),
    )
}

/// A replica that leads.
struct Replica {
    server: ApiServer,
    health: Health,
    metrics: Metrics,
    _provider: SdkMeterProvider,
    running: JoinHandle<Result<(), TaskExited>>,
}

impl Replica {
    fn start(server: ApiServer, asks: bool) -> Self {
        let build = move |program: &mut Builder| {
            program.controller("order", |builder| Orders {
                primary: builder.primary(),
                monitors: builder.if_installed().owns(),
                asks,
            });
        };
        let host = Host::of_this_process();
        let mut health = Health::new(&host);
        let (metrics, provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let (client, name, config) = (server.client(), "test".to_owned(), Config::shipped(&APP));
        let mut controllers =
            Controllers::new(&host, &client, &config, name, &metrics, &mut health, build);
        let running = tokio::spawn(async move {
            let (_publish, term) = channel::channel(Some(Term::unlimited()));
            controllers.run(term, std::future::pending()).await
        });
        Self {
            server,
            health,
            metrics,
            _provider: provider,
            running,
        }
    }

    /// Asserts that the replica is ready, and whether Monitors are installed.
    fn is_ready(&self, is_installed: bool) {
        assert!(!self.running.is_finished());
        assert_eq!(self.health.failing(Probe::Ready), [""; 0]);
        let mut checks = self.health.checks(Probe::Ready);
        let note = checks
            .find(|(name, _)| *name == "informer-sync")
            .unwrap()
            .1
            .unwrap();
        let says = "monitors.other.com are not installed (optional)".to_owned();
        assert_eq!(note, (!is_installed).then_some(says));
        let series = format!("{}_kind_installed{{kind=\"Monitor\"}} ", APP.snake_case());
        let (_, text) = self.metrics.scrape(None);
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        assert_eq!(value, Some(if is_installed { "1" } else { "0" }));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.running.abort();
    }
}

const MADE: [&str; 2] = ["POST monitors", "POST monitors"];

/// A replica serves without the type. Once the type is listed, the objects of the controller are reconciled. While it is
/// missing, there are few requests and no error.
#[tokio::test(start_paused = true)]
async fn an_optional_type_appears_and_vanishes() {
    let seconds = Duration::from_secs;
    let replica = Replica::start(ApiServer::new(Crd::Missing, true), true);
    let server = &replica.server;
    sleep(seconds(5)).await;
    replica.is_ready(false);
    let sent = server.sent("");
    let reported = |name| sent.contains(&format!("PUT orders/{name}/status"));
    assert!(reported("a") && reported("b"), "{sent:?}");

    sleep(Duration::from_hours(1)).await;
    let sent = server.sent("monitors");
    assert!(
        sent.len() <= 20 && sent.iter().all(|it| it == "GET monitors"),
        "{sent:?}"
    );

    // The API server serves the type some time after the CRD has appeared.
    server.tell("ADDED");
    sleep(seconds(2)).await;
    assert!(server.sent("POST").is_empty());
    server.becomes(Crd::Served, "MODIFIED");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.sent("POST monitors"), MADE);
    replica.is_ready(true);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(server.sent("GET"), [""; 0], "no polling");

    server.becomes(Crd::Terminating, "MODIFIED");
    sleep(seconds(2)).await;
    server.becomes(Crd::Missing, "DELETED");
    sleep(Duration::from_mins(10)).await;
    let sent = server.sent("");
    replica.is_ready(false);
    let is_expected = |it: &String| {
        [
            "GET monitors",
            "WATCH monitors",
            "WATCH orders",
            "WATCH customresourcedefinitions",
        ]
        .contains(&&**it)
    };
    let others: Vec<_> = sent.iter().filter(|it| !is_expected(it)).collect();
    assert!(others.is_empty() && sent.len() < 25, "{sent:?}");

    server.becomes(Crd::Served, "ADDED");
    sleep(seconds(1)).await;
    assert_eq!(server.sent("POST monitors"), MADE, "the objects were lost");
    replica.is_ready(true);
}

/// Without the permission to watch the CRD, the list is tried again.
#[tokio::test(start_paused = true)]
async fn without_permission_for_the_crd_the_type_is_noticed_within_minutes() {
    let replica = Replica::start(ApiServer::new(Crd::Missing, false), true);
    let server = &replica.server;
    sleep(Duration::from_hours(1)).await;
    replica.is_ready(false);
    let sent = server.sent("");
    let count = |what| sent.iter().filter(|it| *it == what).count();
    assert!(count("GET monitors") <= 30, "{sent:?}");
    assert!(count("WATCH customresourcedefinitions") <= 30, "{sent:?}");
    *server.crd.lock() = Crd::Served;
    sleep(Duration::from_mins(6)).await; // 5 min and the jitter
    assert_eq!(server.sent("POST monitors"), MADE);
    replica.is_ready(true);
}

/// A plan without a check whether the type is installed sends no request for it, and neither reports nor logs the error. While
/// the CRD is terminating, the API server rejects each create: few are sent, without an error.
#[tokio::test(start_paused = true)]
async fn a_step_for_a_missing_type_is_requeued_quietly() {
    let (lines, _guard) = crate::testing::fixtures::logged(tracing::Level::WARN);
    let replica = Replica::start(ApiServer::new(Crd::Missing, true), false);
    let server = &replica.server;
    sleep(Duration::from_mins(30)).await;
    assert_eq!(server.sent("POST"), ["POST selfsubjectaccessreviews"]);

    server.becomes(Crd::Terminating, "ADDED");
    sleep(Duration::from_mins(30)).await;
    let mut sent = server.sent("POST");
    sent.retain(|it| it != "POST selfsubjectaccessreviews");
    let is_create = |it: &String| it == "POST monitors";
    assert!(sent.iter().all(is_create) && sent.len() < 100, "{sent:?}");
    replica.is_ready(true);
    assert_eq!(String::from_utf8_lossy(&lines.lock()), "");
    let (_, text) = replica.metrics.scrape(None);
    assert!(text.contains("controller_runtime_reconcile_errors_total{controller=\"order\"} 0"));

    server.becomes(Crd::Served, "MODIFIED");
    sleep(Duration::from_mins(20)).await;
    assert!(server.sent("POST monitors").len() >= 2);
}

/// The list of an appearing type stores its objects one by one. Until its end, the plan takes the type for missing, so its objects
/// look superfluous.
#[tokio::test]
async fn nothing_is_deleted_before_the_end_of_the_list() {
    let sent = Arc::<Mutex<Vec<Method>>>::default();
    let noted = Arc::clone(&sent);
    let server = client(move |request| {
        noted.lock().push(request.method.clone());
        async { respond(500, &json!({})) }
    });
    let harness = harness(&server);
    let Orders {
        primary, monitors, ..
    } = harness.reconciler();
    let order = "{metadata: {name: a, namespace: n, uid: u, resourceVersion: '1'}, spec: {}}";
    harness.apply(primary.store(), object(order));
    let monitor = "
        metadata: {name: a, namespace: n, uid: m, resourceVersion: '2', ownerReferences: [
            {apiVersion: example.com/v1, kind: Order, name: a, uid: u, controller: true}]}
        spec: {a: 1}";
    harness.apply(monitors.store(), object(monitor));
    assert!(!monitors.is_installed(&key("a")));
    let done = harness.reconcile(&key("a")).await;
    assert_eq!(done, Err(ApiError::NotInstalled("monitors")));
    assert_eq!(*sent.lock(), [Method::GET; 0]);
}

/// A type that is not installed has no objects. The result of a resync holds only while the type is installed, or missing.
#[tokio::test]
async fn a_plan_may_depend_on_the_presence() {
    let offline = client(|_| async { respond(500, &json!({})) });
    let harness = harness(&offline);
    let Orders {
        primary, monitors, ..
    } = harness.reconciler();
    let monitors = monitors.store();
    harness.apply(
        primary.store(),
        object(
            "
            metadata: {name: a, namespace: n, uid: u, resourceVersion: '1', generation: 1}
            spec: {}
            status: {observedGeneration: 1, conditions: [{type: Ready, status: 'True', reason: Synced, message: '',
                observedGeneration: 1, lastTransitionTime: '2020-01-01T00:00:00Z'}]}",
        ),
    );
    let key = key("a");
    for is_installed in [false, true, false] {
        assert_eq!(monitors.is_installed(&key), is_installed);
        assert_eq!(harness.plan(&key).unwrap().len(), usize::from(is_installed));
        assert_eq!(harness.is_up_to_date(&key), !is_installed);
        if is_installed {
            harness.uninstall(monitors);
        } else {
            harness.install(monitors);
        }
    }
}

/// A single rejected write of a type that the API server does not serve any more suffices for all objects, for a while.
#[tokio::test(start_paused = true)]
async fn after_a_rejected_write_no_other_is_sent_for_a_while() {
    for rejection in [missing as fn() -> _, terminating] {
        let sent = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&sent);
        let server = client(move |_| {
            *counted.lock() += 1;
            async move { rejection() }
        });
        let harness = harness(&server);
        let Orders {
            primary, monitors, ..
        } = harness.reconciler();
        for name in ["a", "b"] {
            let order = format!(
                "{{metadata: {{name: {name}, namespace: n, uid: {name}, resourceVersion: '1'}}, spec: {{}}}}"
            );
            harness.apply(primary.store(), object(&order));
        }
        harness.install(monitors.store());
        for expected in 1..4 {
            for name in ["a", "b"] {
                let done = harness.reconcile(&key(name)).await;
                assert_eq!(done, Err(ApiError::NotInstalled("monitors")));
            }
            assert_eq!(*sent.lock(), expected);
            advance(REJECTED).await;
        }
        assert!(
            monitors.is_installed(&key("a")),
            "no event would enqueue the objects again"
        );
    }
}
