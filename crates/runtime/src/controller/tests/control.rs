//! Pauses and requests of users.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider};
use serde::Deserialize;
use tokio::{
    sync::{broadcast, oneshot},
    task::JoinHandle,
};
use tracing::{
    Dispatch, Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
    subscriber::{DefaultGuard, set_default},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context as LayerContext, SubscriberExt as _},
};

use super::*;
use crate::{
    api::{
        kind::Kind,
        object::{Cached, Primary as _},
        plain::{Custom, Spec},
        reported::Status,
    },
    telemetry::object_state::{ObjectWork, parse},
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Job {}

impl Spec for Job {
    const KIND: Kind = Kind::custom("example.com", "v1", "Job", "jobs");
    type Status = Status;
}

/// Fails with the error of the test, and records the attempts.
struct Jobs(Arc<Test>);

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
        _: &Context<'_, Custom<Job>>,
        seen: &Snapshot<Custom<Job>>,
    ) -> Result<Action, ApiError> {
        self.0.attempts.lock().push(Instant::now());
        *self.0.conditions.lock() = seen.view.status().conditions.clone();
        let error = self.0.error.lock().clone();
        error.map_or(Ok(Action::Done), Err)
    }

    fn release(&self, _: &Key) -> Vec<Key> {
        *self.0.pauses.lock() += 1;
        Vec::new()
    }

    fn is_up_to_date(&self, _: &Context<'_, Custom<Job>>, _: &Snapshot<Custom<Job>>) -> bool {
        *self.0.checks.lock() += 1;
        true
    }
}

/// The fields of each event and each new span of this thread, as `name=value`. A span begins with its name.
#[derive(Clone, Default)]
pub(super) struct Traced(Arc<Mutex<Vec<String>>>);

impl Traced {
    pub(super) fn begin() -> (Self, (DefaultGuard, Dispatch)) {
        let traced = Self::default();
        // With a single subscriber, a callsite that another thread reaches first would be disabled.
        let second = Dispatch::new(Registry::default());
        let guard = set_default(Registry::default().with(traced.clone()));
        (traced, (guard, second))
    }

    /// Returns whether an event or a span has all these texts.
    pub(super) fn has(&self, texts: &[&str]) -> bool {
        let all = self.0.lock();
        all.iter()
            .any(|it| texts.iter().all(|text| it.contains(text)))
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Traced {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().push(fields.0);
    }

    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: LayerContext<'_, S>) {
        let mut fields = Fields(format!("span {}", span.metadata().name()));
        span.record(&mut fields);
        self.0.lock().push(fields.0);
    }
}

/// Several controllers may have objects of the same names.
#[tokio::test(start_paused = true)]
async fn a_retry_and_its_span_name_the_controller() {
    let (traced, _guard) = Traced::begin();
    let test = Test::new(false);
    *test.error.lock() = Some(ApiError::transient("broken"));
    let _running = test.run();
    sleep(Duration::from_secs(1)).await;
    let own = r#"controller="job""#;
    assert!(traced.has(&["broken; retrying", "object=n/a", own]));
    assert!(traced.has(&["span reconcile ", own]));
}

fn source(job: &str, version: u64) -> Value {
    let metadata = json!({ "name": "s", "namespace": "n", "uid": "s", "resourceVersion": version.to_string() });
    json!({ "metadata": metadata, "spec": { "job": job } })
}

/// An API server with the Job `a`.
pub(super) struct Test {
    job: Mutex<Value>,
    watches: broadcast::Sender<String>,
    statuses: Mutex<Vec<Value>>,
    events: Mutex<Vec<String>>,
    /// The answer to a status, if it is not written.
    refusal: Mutex<Option<Value>>,
    /// The conditions that the last reconcile saw.
    conditions: Mutex<Vec<Condition>>,
    /// Whether the schema has no status fields.
    prunes: bool,
    pub attempts: Mutex<Vec<Instant>>,
    /// Number of calls while the object is paused.
    pauses: Mutex<u32>,
    pub error: Mutex<Option<ApiError>>,
    /// Number of checks of a resync.
    pub checks: Mutex<u32>,
    /// A Source, whose spec names a Job.
    source: Mutex<Value>,
    sources: broadcast::Sender<String>,
}

impl Test {
    pub(super) fn new(prunes: bool) -> Arc<Self> {
        let metadata = json!({ "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1,
                               "annotations": {} });
        Arc::new(Self {
            job: Mutex::new(json!({ "metadata": metadata, "spec": {} })),
            watches: broadcast::Sender::new(1000),
            statuses: Mutex::default(),
            events: Mutex::default(),
            refusal: Mutex::default(),
            conditions: Mutex::default(),
            prunes,
            attempts: Mutex::default(),
            pauses: Mutex::default(),
            error: Mutex::default(),
            checks: Mutex::default(),
            source: Mutex::new(source("a", 1)),
            sources: broadcast::Sender::new(100),
        })
    }

    /// Changes the Source.
    pub(super) async fn name(&self, job: &str) {
        {
            let mut stored = self.source.lock();
            let version = &stored["metadata"]["resourceVersion"];
            let version: u64 = version.as_str().unwrap().parse().unwrap();
            *stored = source(job, version + 1);
            let _ =
                (self.sources).send(format!(r#"{{"type":"MODIFIED","object":{stored}}}"#) + "\n");
        }
        sleep(Duration::from_millis(1)).await;
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) -> Value {
        let mut job = self.job.lock();
        edit(&mut job);
        let version: u64 = job["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        job["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        let _ = self
            .watches
            .send(format!(r#"{{"type":"MODIFIED","object":{job}}}"#) + "\n");
        job.clone()
    }

    async fn annotate(&self, name: &str, value: impl Into<Value>) {
        let name = format!("{}/{name}", APP.group);
        let value = value.into();
        self.edit(|job| {
            let all = job["metadata"]["annotations"].as_object_mut().unwrap();
            if value.is_null() {
                all.remove(&name);
            } else {
                all.insert(name, value);
            }
        });
        sleep(Duration::from_millis(1)).await;
    }

    fn answer(&self, head: &Parts, body: &Value) -> Response<Answer> {
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        if query.contains("sendInitialEvents") {
            return respond(422, &json!({ "code": 422 }));
        }
        let of_sources = path.ends_with("/sources");
        if query.contains("watch") {
            let watches = if of_sources {
                &self.sources
            } else {
                &self.watches
            };
            return streamed(stream::unfold(watches.subscribe(), async |mut watches| {
                let line = watches.recv().await.ok()?;
                Some((Ok(Frame::data(Bytes::from(line))), watches))
            }));
        }
        if path.ends_with("/status") {
            self.statuses.lock().push(body["status"].clone());
            if let Some(refusal) = &*self.refusal.lock() {
                let code = refusal["code"].as_u64().unwrap().try_into().unwrap();
                return respond(code, refusal);
            }
            let stored = self.edit(|job| {
                if !self.prunes {
                    job["status"] = body["status"].clone();
                }
            });
            return respond(200, &stored);
        }
        if path.ends_with("/jobs") || of_sources {
            let job = if of_sources { &self.source } else { &self.job }.lock();
            let version = &job["metadata"]["resourceVersion"];
            return respond(
                200,
                &json!({ "metadata": { "resourceVersion": version }, "items": [*job] }),
            );
        }
        if path.ends_with("/events") {
            self.events
                .lock()
                .push(body["reason"].as_str().unwrap_or_default().to_owned());
        }
        respond(
            201,
            &json!({ "metadata": {}, "spec": {}, "status": { "allowed": true } }),
        )
    }

    /// Starts a leader.
    fn run(self: &Arc<Self>) -> Running {
        self.run_with(|_| {}).0
    }

    /// Starts a leader of the program to which `build` adds. The second value is the end of the program.
    pub(super) fn run_with(self: &Arc<Self>, build: impl FnOnce(&mut Builder)) -> (Running, Ended) {
        self.start(build, |_| {})
    }

    /// Starts a leader of a program that maps other objects to Jobs.
    pub(super) fn run_mapping<V: Cached>(
        self: &Arc<Self>,
        map: impl Fn(&Key, &V) -> Vec<Key> + Send + Sync + 'static,
    ) -> (Running, Ended) {
        self.start(|_| {}, |builder| builder.maps(map))
    }

    fn start(
        self: &Arc<Self>,
        build: impl FnOnce(&mut Builder),
        declare: impl FnOnce(&mut ControllerBuilder<'_, Custom<Job>>),
    ) -> (Running, Ended) {
        let test = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let test = Arc::clone(&test);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                Ok::<_, Infallible>(test.answer(&head, &body))
            }
        });
        let resource = Resource::builder_empty().build();
        let (metrics, provider) = Metrics::new(&APP, resource, None);
        let jobs = Jobs(Arc::clone(self));
        let mut controllers = Controllers::new(
            &Host::of_this_process(),
            &Client::new(service, "default"),
            &Config::shipped(&APP),
            "test".into(),
            &metrics,
            &mut Health::new(&Host::of_this_process()),
            |program| {
                build(program);
                program.controller("job", |builder| {
                    declare(builder);
                    jobs
                });
            },
        );
        let state = controllers.object_state();
        let state = Box::new(move || state(&parse("n/a").unwrap()).unwrap());
        let (publish, term) = channel::channel(Some(Term::unlimited()));
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let ended = controllers.run(term, stopped.map(drop)).await;
            controllers.finish().await;
            ended
        });
        let term = publish;
        (
            Running {
                metrics,
                _provider: provider,
                state,
                term,
                stop,
            },
            running,
        )
    }

    fn counts(&self) -> (usize, usize, usize) {
        let counts = [
            self.attempts.lock().len(),
            self.statuses.lock().len(),
            self.events.lock().len(),
        ];
        counts.into()
    }
}

type Ended = JoinHandle<Result<(), TaskExited>>;

pub(super) struct Running {
    metrics: Metrics,
    _provider: SdkMeterProvider,
    state: Box<dyn Fn() -> ObjectWork>,
    pub term: channel::Sender<Option<Term>>,
    pub stop: oneshot::Sender<()>,
}

impl Running {
    /// Returns the number of paused objects, and the names of the records of `a`.
    fn shows(&self) -> (String, Vec<String>) {
        let (_, text) = self.metrics.scrape(None);
        let paused = text
            .lines()
            .find(|line| line.contains(r#"_paused_objects{kind="Job"}"#));
        let paused = paused
            .and_then(|line| line.rsplit_once(' '))
            .unwrap()
            .1
            .to_owned();
        let work = (self.state)();
        (paused, work.records.into_iter().map(|it| it.name).collect())
    }
}

/// A pause is reported once. Nothing else is written until its end, which starts a reconcile without delay.
#[tokio::test(start_paused = true)]
async fn a_paused_object_is_not_reconciled() {
    let (hour, test) = (Duration::from_hours(1), Test::new(false));
    let running = test.run();
    sleep(hour).await;
    assert_eq!(test.counts(), (1, 0, 0));
    assert_eq!(running.shows(), ("0".into(), vec!["upToDate".into()]));

    test.annotate("paused", "true").await;
    sleep(hour).await;
    assert_eq!(test.counts(), (1, 1, 1));
    assert_eq!(*test.pauses.lock(), 1);
    assert_eq!(*test.events.lock(), ["Paused"]);
    let condition = test.statuses.lock()[0]["conditions"][0].clone();
    assert_eq!(condition["type"], "Paused");
    assert_eq!(condition["status"], "True");
    assert_eq!(
        running.shows(),
        ("1".into(), vec!["paused".into(), "upToDate".into()])
    );

    // A new spec waits, and so does a request. The condition gets the generation, without another event.
    test.edit(|job| job["metadata"]["generation"] = 2.into());
    test.annotate("reconcile-requested-at", "t").await;
    sleep(hour).await;
    assert_eq!(test.counts(), (1, 2, 1));

    // The condition is removed first: otherwise it would confirm the next pause while the reconcile writes.
    test.annotate("paused", Value::Null).await;
    assert_eq!(test.counts(), (2, 4, 1), "at once");
    assert_eq!(*test.conditions.lock(), []);
    sleep(hour).await;
    assert_eq!(test.counts(), (2, 4, 1));
    assert_eq!(*test.events.lock(), ["Paused"]);
    assert_eq!(
        test.statuses.lock()[1]["conditions"][0]["observedGeneration"],
        2
    );
    assert_eq!(
        test.statuses.lock()[2..],
        [json!({}), json!({ "lastHandledReconcileAt": "t" })]
    );
    assert_eq!(running.shows(), ("0".into(), vec!["upToDate".into()]));

    // Otherwise its namespace would never terminate.
    test.annotate("paused", "true").await;
    assert_eq!(test.counts(), (2, 5, 2));
    test.edit(|job| job["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(test.counts(), (3, 5, 2));
}

/// A condition of this type by another author stays, with and without a pause.
#[tokio::test(start_paused = true)]
async fn a_condition_of_another_author_stays() {
    let (hour, test) = (Duration::from_hours(1), Test::new(false));
    let theirs = json!({ "type": "Paused", "status": "True", "reason": "Theirs", "message": "",
                         "lastTransitionTime": "2020-01-01T00:00:00Z" });
    test.edit(|job| job["status"] = json!({ "conditions": [theirs] }));
    let _running = test.run();
    sleep(hour).await;
    assert_eq!(test.counts(), (1, 0, 0));
    test.annotate("paused", "true").await;
    sleep(hour).await;
    assert_eq!(test.counts(), (1, 0, 0));
    test.annotate("paused", Value::Null).await;
    sleep(hour).await;
    assert_eq!(test.counts(), (2, 0, 0));
}

/// A request resets the backoff, and is acknowledged although the attempt fails.
#[tokio::test(start_paused = true)]
async fn a_request_is_handled_at_once() {
    let test = Test::new(false);
    *test.error.lock() = Some(ApiError::transient("no"));
    let _running = test.run();
    sleep(Duration::from_hours(1)).await;
    let before = test.attempts.lock().len();
    assert_eq!(test.statuses.lock().len(), 0, "no object has a request");
    for token in ["t1", "t2"] {
        sleep(Duration::from_secs(100)).await;
        let retries = test.attempts.lock().len();
        test.annotate("reconcile-requested-at", token).await;
        assert_eq!(test.attempts.lock().len(), retries + 1);
        let last = test.statuses.lock().last().cloned();
        assert_eq!(last, Some(json!({ "lastHandledReconcileAt": token })));
        sleep(Duration::from_secs(1)).await;
        assert!(
            test.attempts.lock().len() > retries + 5,
            "the backoff starts again"
        );
    }
    assert_eq!(test.statuses.lock().len(), 2);
    assert!(before < 30, "{before}");
    test.annotate("other", "t3").await;
    assert_eq!(test.statuses.lock().len(), 2);
}

/// Another component that requests a reconcile after each acknowledgement makes a loop, at the pace of all changes. Only the burst
/// resets the backoff of a failing object.
#[tokio::test(start_paused = true)]
async fn requests_are_limited_like_changes() {
    for (error, most) in [(None, 33), (Some(ApiError::transient("no")), 80)] {
        let test = Test::new(false);
        test.error.lock().clone_from(&error);
        let _running = test.run();
        sleep(Duration::from_mins(1)).await;
        let before = test.attempts.lock().len();
        for number in 0..1000 {
            test.annotate("reconcile-requested-at", number.to_string())
                .await;
            sleep(Duration::from_millis(9)).await;
        }
        sleep(Duration::from_mins(1)).await;
        let attempts = test.attempts.lock().len() - before;
        assert!((26..=most).contains(&attempts), "{error:?}: {attempts}");
        let last = test.statuses.lock().last().cloned();
        assert_eq!(last, Some(json!({ "lastHandledReconcileAt": "999" })));
    }
}

/// A `Retry-After` in the answer to the acknowledgement delays the retry of a failed reconcile.
#[tokio::test(start_paused = true)]
async fn the_acknowledgement_delays_the_retry() {
    let test = Test::new(false);
    *test.error.lock() = Some(ApiError::transient("no"));
    *test.refusal.lock() = Some(
        json!({ "kind": "Status", "code": 429, "message": "too many requests",
                                        "details": { "retryAfterSeconds": 7 } }),
    );
    let _running = test.run();
    sleep(Duration::from_hours(1)).await;
    test.annotate("reconcile-requested-at", "t").await;
    let attempts = test.attempts.lock().len();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(test.attempts.lock().len(), attempts);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(test.attempts.lock().len(), attempts + 1);
}

/// No status shows the request of a terminating object, so the store remembers it until the next term.
#[tokio::test(start_paused = true)]
async fn a_request_between_two_terms_is_handled() {
    let test = Test::new(false);
    test.edit(|job| {
        job["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
        job["status"] = json!({ "observedGeneration": 1 });
    });
    let running = test.run();
    sleep(Duration::from_hours(1)).await;
    running.term.send_replace(None);
    sleep(Duration::from_secs(1)).await;
    let attempts = test.attempts.lock().len();
    test.annotate("reconcile-requested-at", "t").await;
    running.term.send_replace(Some(Term::unlimited()));
    sleep(Duration::from_hours(1)).await;
    assert_eq!(test.attempts.lock().len(), attempts + 1);
}

/// If the schema lacks the field, each request costs one status.
#[tokio::test(start_paused = true)]
async fn a_schema_without_the_field_is_no_loop() {
    let test = Test::new(true);
    let _running = test.run();
    sleep(Duration::from_mins(1)).await;
    for requests in 1..3 {
        test.annotate("reconcile-requested-at", requests.to_string())
            .await;
        sleep(Duration::from_hours(1)).await;
        assert_eq!(test.counts(), (1 + requests, requests, 0));
    }
}
