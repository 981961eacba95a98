//! Several controllers in one program.

mod pair;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use super::*;
use crate::{
    api::{
        kind::Kind,
        plain::{Custom, Spec},
        reference::References,
        reported::{Reported, Status},
    },
    config::app::App,
    controller::builder::Builder,
    telemetry::object_state::parse,
    testing::Harness,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Said {
    #[serde(flatten)]
    common: Status,
    checks: u32,
}

/// Each Order makes a Job of its name, or deletes it if `drop` is set. If `after` is set, it waits for the Job of that Order. Each Job is checked once a minute, and
/// its status counts the checks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Order {
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    drop: bool,
}
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Job {}

impl Spec for Order {
    const KIND: Kind = Kind::custom("example.com", "v1", "Order", "orders");
    type Status = Status;
    fn references(&self, to: &mut References<'_>) {
        if let Some(after) = &self.after {
            to.sibling::<Custom<Job>>(after);
        }
    }
}

impl Spec for Job {
    const KIND: Kind = Kind::custom("example.com", "v1", "Job", "jobs");
    type Status = Said;
}

impl Reported for Said {
    fn common(&self) -> &Status {
        &self.common
    }
    fn common_mut(&mut self) -> &mut Status {
        &mut self.common
    }
}

struct Orders(Writer<Custom<Job>>);
struct Jobs(Arc<Writer<Custom<Job>>>);

impl Reconciler for Orders {
    type Primary = Custom<Order>;
    type Error = ApiError;
    fn plan(
        &self,
        cx: &View<'_, Custom<Order>>,
        order: &Snapshot<Custom<Order>>,
    ) -> Result<Plan<Custom<Order>>, ApiError> {
        if let Some(after) = &order.view.spec()?.after {
            cx.require(self.0.store(), &cx.key().sibling(after))?;
        }
        let mut plan = Plan::new();
        if order.view.spec()?.drop {
            plan.delete(&self.0, cx.key());
        } else {
            plan.create(&self.0, cx.key(), &Job {});
        }
        Ok(plan)
    }
    async fn reconcile(
        &self,
        cx: &Context<'_, Custom<Order>>,
        seen: &Snapshot<Custom<Order>>,
    ) -> Result<Action, ApiError> {
        let carried = self
            .plan(&cx.view(), seen)?
            .carry_out(cx, &mut seen.clone())
            .await;
        let mut errors = carried.errors.into_iter();
        errors.next().map_or(Ok(Action::Done), |it| Err(it.error))
    }
}

impl Reconciler for Jobs {
    type Primary = Custom<Job>;
    type Error = ApiError;
    fn plan(
        &self,
        _: &View<'_, Custom<Job>>,
        _: &Snapshot<Custom<Job>>,
    ) -> Result<Plan<Custom<Job>>, ApiError> {
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Custom<Job>>,
        seen: &Snapshot<Custom<Job>>,
    ) -> Result<Action, ApiError> {
        let mut status = seen.status.clone();
        status.common.observed_generation = Some(seen.generation);
        status.checks += 1;
        self.0.update_status(cx, seen, &status).await?;
        Ok(Action::After(Duration::from_mins(1)))
    }

    fn release(&self, key: &Key) -> Vec<Key> {
        let woken = key.sibling("woken");
        [woken].into_iter().filter(|woken| woken != key).collect()
    }
}

pub(super) fn build(program: &mut Builder) {
    program.controller("order", |builder| Orders(builder.owns()));
    build_jobs(program);
}

/// The program without Orders.
pub(super) fn build_jobs(program: &mut Builder) {
    program.controller("job", |builder| Jobs(builder.primary()));
}

/// An API server with Orders of these names and specs. It streams no lists, and its watch of Jobs delivers each write
/// a second after the response. Records the requests.
fn api_server(
    orders: &'static [(&'static str, &'static str)],
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let asked = Arc::clone(&requests);
    let (writes, _) = broadcast::channel::<String>(8);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (asked, writes) = (Arc::clone(&asked), writes.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
            let path = head.uri.path().rsplit_once("v1/").unwrap().1.to_owned();
            let query = head.uri.query().unwrap_or_default();
            let is_watch = query.contains("watch");
            let verb = if is_watch {
                "WATCH"
            } else {
                head.method.as_str()
            };
            let answer = match (verb, &*path) {
                ("WATCH", _) if query.contains("sendInitialEvents") => {
                    return Ok(respond(422, &json!({ "code": 422 })));
                }
                ("WATCH", "jobs") => {
                    let lines = stream::unfold(writes.subscribe(), async |mut writes| {
                        let line = writes.recv().await.ok()?;
                        Some((Ok(Frame::data(Bytes::from(line))), writes))
                    });
                    streamed(lines)
                }
                ("WATCH", _) => streamed(stream::pending()),
                ("GET", kind) => {
                    let orders = if kind == "orders" { orders } else { &[] };
                    let order = |(name, spec): &(&str, &str)| {
                        let spec: Value = serde_json::from_str(spec).unwrap();
                        json!({ "metadata": { "name": name, "namespace": "n", "uid": name,
                            "resourceVersion": "1", "generation": 1 }, "spec": spec })
                    };
                    let items: Vec<_> = orders.iter().map(order).collect();
                    let metadata = json!({ "resourceVersion": "9" });
                    respond(200, &json!({ "metadata": metadata, "items": items }))
                }
                ("POST", review) if review.ends_with("reviews") => {
                    return Ok(respond(
                        201,
                        &json!({ "spec": {}, "status": { "allowed": true } }),
                    ));
                }
                _ => {
                    sleep(Duration::from_millis(100)).await;
                    let metadata = &mut object["metadata"];
                    metadata["uid"] = "job".into();
                    metadata["generation"] = 1.into();
                    let version = 10 + asked.lock().len();
                    metadata["resourceVersion"] = version.to_string().into();
                    let event = format!(r#"{{"type":"MODIFIED","object":{object}}}"#);
                    tokio::spawn(async move {
                        sleep(Duration::from_secs(1)).await;
                        writes.send(event + "\n")
                    });
                    respond(200, &object)
                }
            };
            asked.lock().push(format!("{verb} {path}"));
            Ok::<_, Infallible>(answer)
        }
    });
    (Client::new(service, "default"), requests)
}

fn controllers_of(
    app: &'static App,
    client: &Client,
    build: impl FnOnce(&mut Builder),
) -> Controllers {
    Controllers::new(
        &Host::of_this_process(),
        client,
        &Config::shipped(app),
        "test".into(),
        &Metrics::disconnected(app),
        &mut Health::new(&Host::of_this_process()),
        build,
    )
}

/// Only the first of these controllers exists.
static NAMED: App = App {
    controllers: crate::controllers!["order", "job"],
    ..APP
};

/// The settings of the other one would have no effect.
#[tokio::test]
#[should_panic(expected = "App::controllers names \"job\", but no controller has this name")]
async fn a_controller_with_its_own_settings_exists() {
    let (client, _) = api_server(&[]);
    drop(controllers_of(&NAMED, &client, |program| {
        program.controller("order", |builder| Orders(builder.owns()));
    }));
}

/// A test has a single controller.
#[tokio::test]
async fn a_test_of_one_controller_needs_no_other() {
    let (client, _) = api_server(&[]);
    drop(Harness::new(&NAMED, &client, |builder| {
        Orders(builder.owns())
    }));
}

/// The watch reports no change after a write, because the store has the response. So the response enqueues all other objects
/// that refer to the written object, also of the same controller.
#[tokio::test(start_paused = true)]
async fn a_response_enqueues_the_other_referrers_of_the_controller() {
    let (client, requests) = api_server(&[("a", r#"{"after": "b"}"#), ("b", "{}")]);
    let mut controllers = controllers_of(&APP, &client, |program| {
        program.controller("order", |builder| Orders(builder.owns()));
    });
    let (_publish, term) = channel::channel(Some(Term::unlimited()));
    let running = tokio::spawn(async move { controllers.run(term, std::future::pending()).await });
    // The first step of the resync comes later.
    sleep(Config::shipped(&APP).resync / 60).await;
    let requests = requests.lock();
    let jobs = requests.iter().filter(|it| *it == "POST namespaces/n/jobs");
    assert_eq!(jobs.count(), 2, "{requests:?}");
    running.abort();
}

/// A controller reconciles the objects that another one creates. Both share one list, one watch and one store.
#[tokio::test(start_paused = true)]
async fn a_controller_reconciles_what_another_one_owns() {
    let (client, requests) = api_server(&[("a", "{}")]);
    let mut controllers = controllers_of(&APP, &client, build);
    let (_publish, term) = channel::channel(Some(Term::unlimited()));
    let state = controllers.object_state();
    let running = tokio::spawn(async move { controllers.run(term, std::future::pending()).await });
    sleep(Duration::from_secs(5)).await;
    let mut asked = requests.lock().clone();
    asked.sort();
    let expected = [
        "GET jobs",
        "GET orders",
        "POST namespaces/n/jobs",
        "PUT namespaces/n/jobs/a/status",
        "WATCH jobs",
        "WATCH orders",
    ];
    assert_eq!(asked, expected);
    // The controller of Jobs writes for its own reasons only, although the other controller watches Jobs, too.
    sleep(Duration::from_mins(5)).await;
    let checks = requests
        .lock()
        .iter()
        .filter(|it| it.starts_with("PUT"))
        .count();
    assert_eq!(checks, 6);
    let state_of = |object| state(&parse(object).unwrap()).map(|work| work.kind);
    assert_eq!(state_of("order/n/a"), Ok("Order"));
    assert_eq!(state_of("Job/n/a"), Ok("Job"));
    let wanted = "must be KIND/NAMESPACE/NAME with one of the kinds Order, Job";
    assert_eq!(state_of("n/a"), Err(wanted.to_owned()));
    assert!(!running.is_finished());
    running.abort();
}
