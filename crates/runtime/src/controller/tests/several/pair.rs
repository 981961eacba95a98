//! Two controllers in one program: the state that they share, and the state that each has for itself.

use k8s_openapi::api::storage::v1::StorageClass;
use tokio::{sync::oneshot, task::JoinHandle};

use super::*;
use crate::{
    api::exists::Exists, config::settings::ControllerConfig, controller::single::NamedQueue,
    reconcile::live::Live, telemetry::events::event::Event,
};

/// Each Ping refers to the Pong of its name, and the reverse.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Ping {}
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Pong {}

impl Spec for Ping {
    const KIND: Kind = Kind::custom("example.com", "v1", "Ping", "pings");
    type Status = Said;
    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Custom<Pong>>(to.key().name());
    }
}

impl Spec for Pong {
    const KIND: Kind = Kind::custom("example.com", "v1", "Pong", "pongs");
    type Status = Said;
    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Custom<Ping>>(to.key().name());
    }
}

/// The work of one reconcile.
enum Act {
    Nothing,
    /// Writes a status that differs from the last one.
    Count,
    /// Reads a class live.
    Read,
    /// Sends an event.
    Tell,
    Fail,
    Hang,
    Later(Duration),
}

/// Returns the act for a kind, after this number of reconciles of the kind.
type Acts = fn(&'static str, usize) -> Act;

/// API server with Pings and one Pong, and the record of the reconciles.
struct Test {
    acts: Acts,
    pings: usize,
    runs: Mutex<Vec<(&'static str, Instant)>>,
    /// Paths of the writes and of the live reads, and the kind of the object of each event.
    sent: Mutex<Vec<String>>,
    /// Permits for the responses to the statuses of Pongs.
    pongs: Semaphore,
}

struct Side<S: Spec> {
    own: Arc<Writer<Custom<S>>>,
    classes: Live<Exists<StorageClass>>,
    test: Arc<Test>,
}

impl<S: Spec<Status = Said>> Reconciler for Side<S> {
    type Primary = Custom<S>;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Custom<S>>,
        _: &Snapshot<Custom<S>>,
    ) -> Result<Plan<Custom<S>>, ApiError> {
        cx.live(
            &self.classes,
            &Key::cluster("fast"),
            Duration::from_hours(1),
        )?;
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Custom<S>>,
        seen: &Snapshot<Custom<S>>,
    ) -> Result<Action, ApiError> {
        let before = self.test.times(S::KIND.kind).len();
        self.test.runs.lock().push((S::KIND.kind, Instant::now()));
        match (self.test.acts)(S::KIND.kind, before) {
            Act::Nothing => {}
            Act::Count => {
                let mut status = seen.status.clone();
                status.checks += 1;
                self.own.update_status(cx, seen, &status).await?;
            }
            Act::Read => drop(self.plan(&cx.view(), seen)?),
            Act::Tell => cx.event(Event::normal("Told", "told")),
            Act::Fail => return Err(ApiError::transient("on purpose")),
            Act::Hang => std::future::pending().await,
            Act::Later(delay) => return Ok(Action::After(delay)),
        }
        Ok(Action::Done)
    }

    fn is_up_to_date(&self, _: &Context<'_, Custom<S>>, _: &Snapshot<Custom<S>>) -> bool {
        !matches!((self.test.acts)(S::KIND.kind, 0), Act::Nothing)
    }
}

impl Test {
    /// Returns the times of the reconciles of a kind.
    fn times(&self, kind: &str) -> Vec<Instant> {
        let runs = self.runs.lock();
        let runs = runs.iter().filter(|(of, _)| *of == kind);
        runs.map(|(_, time)| *time).collect()
    }

    fn count(&self) -> [usize; 2] {
        ["Ping", "Pong"].map(|kind| self.times(kind).len())
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        if query.contains("sendInitialEvents") {
            return respond(422, &json!({ "code": 422 }));
        }
        if query.contains("watch") {
            return streamed(stream::pending());
        }
        let last = path.rsplit('/').next().unwrap();
        let part = |name: String| {
            json!({ "metadata": { "name": name, "namespace": "n", "uid": format!("{last}/{name}"), "resourceVersion": "1", "generation": 1 },
                    "spec": {} })
        };
        let items: Vec<_> = match last {
            "pings" => (0..self.pings).map(|it| part(format!("p{it}"))).collect(),
            "pongs" => vec![part("p0".to_owned())],
            "selfsubjectaccessreviews" => {
                let allowed = json!({ "spec": {}, "status": { "allowed": true } });
                return respond(201, &allowed);
            }
            "events" => {
                let kind = object["regarding"]["kind"].as_str().unwrap();
                self.sent.lock().push(kind.to_owned());
                return respond(201, &object);
            }
            "fast" => {
                self.sent.lock().push(path.to_owned());
                let metadata = json!({ "name": "fast", "uid": "c", "resourceVersion": "1" });
                return respond(200, &json!({ "metadata": metadata }));
            }
            _ => {
                self.sent.lock().push(path.to_owned());
                sleep(Duration::from_millis(10)).await;
                if path.contains("/pongs/") {
                    self.pongs.acquire().await.unwrap().forget();
                }
                let version = 9 + self.sent.lock().len();
                object["metadata"]["resourceVersion"] = version.to_string().into();
                object["metadata"]["generation"] = 1.into();
                object["spec"] = json!({});
                return respond(200, &object);
            }
        };
        let metadata = json!({ "resourceVersion": "9" });
        respond(200, &json!({ "metadata": metadata, "items": items }))
    }
}

/// A leading program with both controllers.
struct World {
    test: Arc<Test>,
    health: Health,
    work_queues: Vec<NamedQueue>,
    running: JoinHandle<Result<(), TaskExited>>,
    stop: oneshot::Sender<()>,
    _term: channel::Sender<Option<Term>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl World {
    fn new(pings: usize, acts: Acts) -> Self {
        Self::with(pings, acts, ControllerConfig::default())
    }

    /// `config`: the settings of the Pings.
    fn with(pings: usize, acts: Acts, config: ControllerConfig) -> Self {
        let test = Arc::new(Test {
            acts,
            pings,
            runs: Mutex::default(),
            sent: Mutex::default(),
            pongs: Semaphore::new(Semaphore::MAX_PERMITS),
        });
        let server = Arc::clone(&test);
        let service = tower::service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let mut health = Health::new(&Host::of_this_process());
        let config = Config {
            controllers: [("ping".to_owned(), config)].into(),
            ..Config::shipped(&APP)
        };
        let mut controllers = Controllers::new(
            &Host::of_this_process(),
            &Client::new(service, "default"),
            &config,
            "test".into(),
            &Metrics::disconnected(&APP),
            &mut health,
            |program| {
                program.controller("ping", |builder| {
                    builder.watches::<Custom<Pong>>();
                    side::<Ping>(builder, &test)
                });
                program.controller("pong", |builder| {
                    builder.watches::<Custom<Ping>>();
                    side::<Pong>(builder, &test)
                });
            },
        );
        let (term, terms) = channel::channel(Some(Term::unlimited()));
        let (stop, stopped) = oneshot::channel();
        let work_queues = controllers.all.iter().map(|it| it.work_queue()).collect();
        let running = tokio::spawn(async move { controllers.run(terms, stopped.map(drop)).await });
        Self {
            test,
            health,
            work_queues,
            running,
            stop,
            _term: term,
        }
    }
}

fn side<S: Spec<Status = Said>>(
    builder: &mut ControllerBuilder<'_, Custom<S>>,
    test: &Arc<Test>,
) -> Side<S> {
    Side {
        own: builder.primary(),
        classes: builder.reads(),
        test: Arc::clone(test),
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Each write of one controller enqueues the object of the other one. The limit of the changes of an object bounds the loop.
#[tokio::test(start_paused = true)]
async fn two_controllers_that_enqueue_each_other_are_slowed_down() {
    let world = World::new(1, |_, _| Act::Count);
    sleep(SECOND).await;
    for count in world.test.count() {
        assert!((20..=22).contains(&count), "{count} in the first second");
    }
    let before = world.test.count();
    sleep(SECOND * 100).await;
    for (count, before) in world.test.count().into_iter().zip(before) {
        let more = count - before;
        assert!((98..=102).contains(&more), "{more} in 100 s");
    }
}

/// The program stops when the last controller has drained. So the Lease is released after the last write.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_requests_of_all_controllers() {
    let mut world = World::new(1, |_, _| Act::Count);
    world.test.pongs.forget_permits(Semaphore::MAX_PERMITS);
    sleep(SECOND).await;
    let is_held = |(name, queue): &NamedQueue| {
        let processing = queue.borrow().as_ref().unwrap().queue.stats().processing;
        (*name, processing)
    };
    let held: Vec<_> = world.work_queues.iter().map(is_held).collect();
    assert_eq!(held, [("ping", 0), ("pong", 1)]);
    let (stop, _) = oneshot::channel();
    std::mem::replace(&mut world.stop, stop).send(()).unwrap();
    sleep(Config::shipped(&APP).shutdown_timeout.mul_f64(0.9)).await;
    assert!(!world.running.is_finished());
    world.test.pongs.add_permits(1);
    sleep(SECOND / 2).await;
    assert!(world.running.is_finished());
}

/// A worker that ends is a fault of the runtime: another replica takes over.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_worker_ends_the_program() {
    let mut world = World::new(1, |_, _| Act::Nothing);
    sleep(SECOND).await;
    assert!(!world.running.is_finished());
    let work_queue = world.work_queues[1].1.borrow().clone();
    work_queue.unwrap().queue.shut_down();
    let ended = timeout(SECOND, &mut world.running).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().0, "a worker");
}

/// Liveness names the controller whose reconcile is stuck.
#[tokio::test(start_paused = true)]
async fn liveness_names_the_controller_of_several() {
    let world = World::new(1, |kind, _| match kind {
        "Pong" => Act::Hang,
        _ => Act::Nothing,
    });
    let dead = dead_after(STALL_TIMEOUT + SECOND * 60, &world.health).await;
    assert_eq!(
        dead,
        [format!("workers: pong: {}", &STUCK["workers: ".len()..])]
    );
}

/// Each controller has the workers and the resync of its own settings, else those of the program.
#[tokio::test(start_paused = true)]
async fn a_controller_has_its_own_workers_and_resync() {
    let shipped = Config::shipped(&APP);
    let own = ControllerConfig {
        workers: Some(5),
        resync: Some(shipped.resync * 4),
    };
    let world = World::with(20, |_, _| Act::Hang, own.clone());
    sleep(SECOND / 100).await;
    assert_eq!(world.test.count(), [5, 1]);

    let world = World::with(1, |_, _| Act::Nothing, own);
    sleep(shipped.resync / 2).await;
    let first = world.test.count();
    sleep(shipped.resync * 40).await;
    let last = world.test.count();
    assert_eq!([last[0] - first[0], last[1] - first[1]], [10, 40]);
}

/// A controller whose objects all fail delays no retry of another one.
#[tokio::test(start_paused = true)]
async fn the_retries_of_a_controller_delay_no_other() {
    let world = World::new(3000, |kind, before| match (kind, before) {
        ("Ping", _) | (_, 1) => Act::Fail,
        (_, 0) => Act::Later(SECOND * 5),
        _ => Act::Hang,
    });
    sleep(SECOND * 7).await;
    let times = world.test.times("Pong");
    assert_eq!(times.len(), 3);
    let retried = times[2] - times[1];
    assert!(retried <= Duration::from_millis(10), "{retried:?}");
}

/// An event is about an object of the kind of its controller.
#[tokio::test(start_paused = true)]
async fn an_event_has_the_kind_of_its_controller() {
    let world = World::new(1, |_, _| Act::Tell);
    sleep(SECOND).await;
    let mut sent = world.test.sent.lock().clone();
    sent.sort();
    assert_eq!(sent, ["Ping", "Pong"]);
}

/// A live read of one controller is the result for all.
#[tokio::test(start_paused = true)]
async fn controllers_share_the_results_of_live_reads() {
    let world = World::new(1, |kind, before| match (kind, before) {
        ("Pong", 0) => Act::Later(SECOND / 2),
        _ => Act::Read,
    });
    sleep(SECOND).await;
    // The reconcile of the Ping begins again after the read.
    assert_eq!(world.test.count(), [2, 2]);
    let class = "/apis/storage.k8s.io/v1/storageclasses/fast";
    assert_eq!(*world.test.sent.lock(), [class]);
}

#[tokio::test]
#[should_panic(expected = "two controllers reconcile orders")]
async fn a_kind_has_one_controller() {
    let (client, _) = api_server(&[]);
    drop(controllers_of(&APP, &client, |program| {
        program.controller("order", |builder| Orders(builder.owns()));
        program.controller("order-again", |builder| Orders(builder.owns()));
    }));
}

#[tokio::test]
#[should_panic(expected = "two controllers are named \"order\"")]
async fn controllers_have_different_names() {
    let (client, _) = api_server(&[]);
    drop(controllers_of(&APP, &client, |program| {
        program.controller("order", |builder| Orders(builder.owns()));
        program.controller("order", |builder| Jobs(builder.primary()));
    }));
}
