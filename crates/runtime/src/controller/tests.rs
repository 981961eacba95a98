//! Interaction of workers, resync and terms, on paused time.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and one does so on purpose"
)]

mod cluster;
mod control;
mod installations;
mod live;
mod object_state;
mod optional;
mod several;
mod triggers;
mod watches;

use std::{collections::HashMap, convert::Infallible, io, sync::Arc};

use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use http::{Method, Request, Response, request::Parts};
use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, advance, sleep, sleep_until},
};

use super::*;
use crate::{
    api::{failure::Retry, object::Cached as _},
    cache::{
        readiness::namespace::Reason,
        store::{Owners, Snapshot, Store},
        watch::STREAM_SILENCE,
    },
    client::transport::READ_TIMEOUT,
    config::app::tests::APP,
    controller::{
        builder::ControllerBuilder,
        metrics::Instruments,
        queue::{MIN_REQUEUE_DELAY, Outcome},
        work_queue::WorkQueue,
        worker::{QUIET_CONFLICTS, Worker},
    },
    reconcile::{
        context::{Context, View},
        error::ApiError,
        plan::Plan,
        reconciler::{Action, Failed, Reconciler},
        writer::{
            Writer,
            disputes::{AT_ONCE, Desired, DisputeTracker, Requester},
        },
    },
    telemetry::health::Probe,
    testing::fixtures::{Child, Parent, Parents, TestError as Error, object},
};

const FAILED: Outcome = Outcome::Failed(Retry::Backoff(Duration::ZERO));

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn queue() -> Queue<Key> {
    Queue::new(&Config::shipped(&APP).backoff, 2, Key::namespace)
}

fn worker(queue: &Queue<Key>) -> Worker {
    Worker {
        kind: Parent::KIND,
        work_queue: WorkQueue::new(queue.clone()),
        instruments: Instruments::new(&Metrics::disconnected(&APP), "parent", 1),
        log: Arc::default(),
    }
}

/// Exactly as many reconciles run concurrently as there are workers.
#[tokio::test(start_paused = true)]
async fn q2_workers_reconcile_concurrently() {
    let queue = Queue::new(&Config::shipped(&APP).backoff, 3, Key::namespace);
    for number in 0..10 {
        queue.add(key(&number.to_string()), Lane::Event);
    }
    let running = Arc::new(Semaphore::new(0));
    let mut work = JoinSet::new();
    for _ in 0..3 {
        let running = Arc::clone(&running);
        work.spawn(worker(&queue).work(move |_| {
            running.add_permits(1);
            std::future::pending::<Result<_, Error>>()
        }));
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(running.available_permits(), 3);
    assert_eq!(queue.stats().processing, 3);
}

/// A panic causes a retry of its object. It affects neither the worker nor other objects.
#[tokio::test(start_paused = true)]
async fn q6_a_panic_retries_only_its_object() {
    let queue = queue();
    queue.add(key("bad"), Lane::Event);
    queue.add(key("good"), Lane::Event);
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let seen = Arc::clone(&runs);
    let worker = tokio::spawn(worker(&queue).work(move |key| {
        *seen.lock().entry(key.name().to_owned()).or_insert(0) += 1;
        async move {
            assert!(key.name() != "bad", "on purpose");
            Ok::<_, Error>(Action::Done)
        }
    }));
    // Three retries: after 5 ms, 10 ms and 20 ms.
    sleep(Duration::from_millis(36)).await;
    assert_eq!(
        *runs.lock(),
        HashMap::from([("bad".to_owned(), 4), ("good".to_owned(), 1)])
    );
    assert_eq!(queue.stats().failing, 1);
    assert!(!worker.is_finished());
}

/// A pending status is reported by another reconcile when nothing more urgent waits.
#[tokio::test(start_paused = true)]
async fn a_pending_status_is_reported_by_another_reconcile() {
    let queue = queue();
    queue.add(key("a"), Lane::Event);
    queue.add(key("b"), Lane::Event);
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (seen, others) = (Arc::clone(&runs), queue.clone());
    let worker = worker(&queue);
    let triggers = Arc::clone(&worker.work_queue.triggers);
    tokio::spawn(worker.work(move |key| {
        seen.lock().push(key.name().to_owned());
        let wait = others.is_busy(Lane::Event);
        let action = if wait {
            Action::StatusPending
        } else {
            Action::Done
        };
        async move { Ok::<_, Error>(action) }
    }));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*runs.lock(), ["a", "b", "a"]);
    assert!(triggers.is_empty());
}

/// Starts a worker whose reconciles return `answer(number of earlier reconciles)`. Returns the times of the reconciles.
fn answering(
    queue: &Queue<Key>,
    answer: impl Fn(usize) -> Action + Send + 'static,
) -> Arc<Mutex<Vec<Instant>>> {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&runs);
    tokio::spawn(worker(queue).work(move |_| {
        let action = answer(seen.lock().len());
        seen.lock().push(Instant::now());
        async move { Ok::<_, Error>(action) }
    }));
    runs
}

/// A reconciler that always requests a requeue runs ten times per second at most, even with a delay of zero.
#[tokio::test(start_paused = true)]
async fn a_reconciler_that_always_requeues_does_not_spin() {
    for action in [
        Action::After(Duration::ZERO),
        Action::After(Duration::from_millis(1)),
        Action::StatusPending,
    ] {
        let queue = queue();
        let runs = answering(&queue, move |_| action);
        queue.add(key("a"), Lane::Event);
        sleep(Duration::from_mins(1)).await;
        let runs = runs.lock().len();
        assert!(
            (590..=602).contains(&runs),
            "{action:?}: {runs} in a minute"
        );
    }
}

/// [`Action::After`] holds until the next reconcile. A change triggers that reconcile earlier; a resync does not.
#[tokio::test(start_paused = true)]
async fn a_change_triggers_a_requeued_reconcile_earlier() {
    let (queue, begun) = (queue(), Instant::now());
    let seconds = Duration::from_secs;
    let runs = answering(&queue, move |before| match before {
        0 | 1 => Action::After(seconds(10)),
        _ => Action::Done,
    });
    let at = |runs: &Mutex<Vec<Instant>>| -> Vec<u64> {
        let runs = runs.lock();
        runs.iter().map(|run| (*run - begun).as_secs()).collect()
    };
    queue.add(key("a"), Lane::Event);
    sleep(seconds(4)).await;
    queue.add(key("a"), Lane::Background);
    sleep(seconds(2)).await;
    assert_eq!(at(&runs), [0], "a resync");
    queue.add(key("a"), Lane::Event);
    sleep(seconds(9)).await;
    assert_eq!(at(&runs), [0, 6], "10 s from then");
    queue.add(key("a"), Lane::Event);
    sleep(seconds(100)).await;
    assert_eq!(at(&runs), [0, 6, 15], "all is done");
}

/// A failure that only the user can fix is not retried; all others are.
#[tokio::test(start_paused = true)]
async fn r7_a_final_failure_waits_for_the_user() {
    for (error, retries) in [
        (Error::Invalid("x".into()), 0),
        (Error::Rejected("x".into()), 1),
        (Error::Conflict, 1),
        (Error::Transient("x".into()), 1),
    ] {
        let queue = queue();
        queue.add(key("a"), Lane::Event);
        let item = queue.get().await.unwrap();
        let error = Failed::of(&Parent::KIND, &error);
        worker(&queue).complete(item, Err(error), false);
        assert_eq!(
            (queue.stats().delayed, queue.stats().failing),
            (retries, retries)
        );
    }
}

/// A postponed correction is made at its due time, regardless of reconciles in between. If it fails, that counts as the first
/// failure.
#[tokio::test(start_paused = true)]
async fn a_postponed_correction_is_made_when_due() {
    for undone in AT_ONCE..AT_ONCE + 10 {
        let (queue, corrections) = (queue(), DisputeTracker::default());
        let by = Requester {
            uid: "u",
            generation: 1,
        };
        for _ in 0..=undone {
            corrections.record(
                &key("a"),
                by,
                Desired::Present(0),
                "theirs",
                Some("ours"),
                |_| true,
            );
        }
        let wait = move || corrections.wait(&key("a"), by, Desired::Present(0), "theirs");
        let pause = wait().unwrap().time;
        let due = Instant::now() + pause;
        let corrected = Arc::new(Mutex::new(Vec::new()));
        let made = Arc::clone(&corrected);
        tokio::spawn(worker(&queue).work(move |_| {
            let error = wait().map_or_else(
                || {
                    made.lock().push(Instant::now());
                    ApiError::transient("the correction fails")
                },
                |wait| ApiError::Contested("a".into(), "ours".into(), wait.time),
            );
            async move { Err::<Action, _>(error) }
        }));
        // A rollout changes the object every second, then stops.
        for _ in 0..30 {
            queue.add(key("a"), Lane::Event);
            sleep(Duration::from_secs(1)).await;
        }
        sleep_until(due + Duration::from_secs(1)).await;
        let corrected = corrected.lock();
        let late = corrected[0] - due;
        assert!(late <= MIN_REQUEUE_DELAY, "{pause:?}: {late:?} late");
        let retried = corrected[1] - corrected[0];
        assert!(
            retried <= Duration::from_millis(10),
            "{pause:?}: {retried:?}"
        );
    }
}

/// A few conflicts are not logged; a long series is.
#[tokio::test(start_paused = true)]
async fn a_lasting_conflict_is_logged() {
    let queue = queue();
    let worker = worker(&queue);
    queue.add(key("a"), Lane::Event);
    for _ in 0..QUIET_CONFLICTS + 2 {
        let item = queue.get().await.unwrap();
        let conflict = Failed::of(&Parent::KIND, &Error::Conflict);
        worker.complete(item, Err(conflict), false);
    }
    let of_ten = (0..10).filter(|_| worker.log.should_log(&Error::Conflict));
    assert_eq!(of_ten.count(), 8, "two of ten lines are taken");
}

/// Earlier failures do not delay the retry of a conflict, which ends when the watch catches up.
#[tokio::test(start_paused = true)]
async fn q3b_conflict_does_not_wait_for_earlier_failures() {
    let queue = queue();
    let fail = async |error| {
        queue.add(key("a"), Lane::Event);
        let item = queue.get().await.unwrap();
        let failed = Failed::of(&Parent::KIND, &error);
        worker(&queue).complete(item, Err(failed), false);
        queue.tries([key("a")].iter())[0].1.unwrap()
    };
    let mut backoff = Duration::ZERO;
    for _ in 0..10 {
        backoff = fail(Error::Rejected("no".into())).await;
    }
    assert!(backoff >= Duration::from_secs(2), "{backoff:?}");
    let conflict = fail(Error::Conflict).await;
    assert!(conflict <= Duration::from_millis(5), "{conflict:?}");
    assert!(fail(Error::Conflict).await > conflict);
    assert!(fail(Error::Rejected("no".into())).await > backoff);
}

/// A change during a reconcile, deferred to a retry that does not come, is enqueued without delay. The result of the reconcile
/// makes no difference.
#[tokio::test(start_paused = true)]
async fn q3c_deferred_change_is_enqueued_if_no_retry_comes() {
    const TRIES: usize = 14;
    for last in [
        Ok(Action::Done),
        Ok(Action::After(Duration::from_hours(1))),
        Err(Error::Invalid("x".into())),
    ] {
        let queue = queue();
        let worker = worker(&queue);
        let (work_queue, runs) = (worker.work_queue.clone(), Arc::new(Mutex::new(0)));
        let (told, seen) = (work_queue.clone(), Arc::clone(&runs));
        let last = Arc::new(Mutex::new(Some(last)));
        tokio::spawn(worker.work(move |key| {
            *seen.lock() += 1;
            let run = *seen.lock();
            if run <= TRIES {
                told.enqueue_status_change(key, Parent::KIND.kind);
            }
            let result = match run {
                ..TRIES => Err(Error::Rejected("no".into())),
                TRIES => last.lock().take().unwrap(),
                _ => Ok(Action::Done),
            };
            async move { result }
        }));
        work_queue.changed(key("a"), Parent::KIND.kind);
        sleep(Duration::from_mins(30)).await;
        assert_eq!(*runs.lock(), TRIES + 1);
    }
}

/// A new leader checks every object. Objects that changed while there was no leader come first, the oldest change first.
#[tokio::test(start_paused = true)]
async fn a_new_leader_begins_with_the_oldest_change() {
    let parents = Store::new(&[None], Owners::default());
    parents.list_begins(0);
    for (name, version, observed) in [
        ("seen", 1, 2),
        ("young", 4, 1),
        ("changed", 3, 1),
        ("settled", 2, 2),
    ] {
        parents.apply(
            0,
            object(&format!(
                "
                metadata: {{name: {name}, namespace: n, uid: u, resourceVersion: '{version}', generation: 2}}
                spec: {{child: d}}
                status: {{observedGeneration: {observed}}}"
            )),
        );
    }
    let queue = queue();
    let looks = Arc::new(Mutex::new(Vec::new()));
    let worker = tokio::spawn({
        let (queue, looks) = (queue.clone(), Arc::clone(&looks));
        async move {
            while let Some(item) = queue.get().await {
                let look = format!("{} {:?}", item.key().name(), item.lane());
                looks.lock().push(look);
                item.complete(Outcome::Done);
            }
        }
    });
    let settled = |key: &Key| {
        looks.lock().push(format!("is {} settled?", key.name()));
        key.name() == "settled"
    };
    resync::first::<Parent>(
        &WorkQueue::new(queue.clone()),
        &parents,
        "parent",
        |_| true,
        settled,
    )
    .await;
    queue.shut_down();
    worker.await.unwrap();
    let expected = [
        "changed Event",
        "young Event",
        "is seen settled?",
        "is settled settled?",
        "seen Background",
    ];
    assert_eq!(*looks.lock(), expected);
}

/// Restored permissions trigger a retry of rejected objects regardless of their delay. Objects that are up to date are not
/// enqueued.
#[tokio::test(start_paused = true)]
async fn r10e_restored_permissions_bypass_the_delay() {
    let parents = Arc::new(Store::new(&[None], Owners::default()));
    parents.list_begins(0);
    for name in ["refused", "fine", "elsewhere"] {
        parents.apply(
            0,
            object::<Parent>(&format!(
                "metadata: {{name: {name}, namespace: n, uid: u, resourceVersion: '1'}}"
            )),
        );
    }
    parents.list_ends(0, 1);
    let (queue, regained) = (queue(), tokio::sync::watch::Sender::new(vec![0; 2]));
    tokio::spawn({
        let (queue, regained) = (queue.clone(), regained.subscribe());
        let fine = |key: &Key| key.name() == "fine";
        let covers = |scope, key: &Key| (scope == 0) == (key.name() == "elsewhere");
        async move { resync::regained(&queue, &parents, covers, fine, regained).await }
    });
    queue.add(key("refused"), Lane::Event);
    for _ in 0..20 {
        queue.get().await.unwrap().complete(FAILED);
    }
    let begun = Instant::now();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(queue.stats().delayed, 1);
    regained.send_modify(|counts| counts[1] += 1);
    assert_eq!(queue.get().await.unwrap().key(), &key("refused"));
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(queue.stats().depth.iter().sum::<usize>(), 0);
}

/// A resync spreads the objects over its period. It enqueues each once, unless the object is up to date.
#[tokio::test(start_paused = true)]
async fn q4_a_resync_is_spread_over_its_period() {
    let parents = Arc::new(Store::new(&[None], Owners::default()));
    parents.list_begins(0);
    for number in 0..100 {
        parents.apply(
            0,
            object::<Parent>(&format!(
                "metadata: {{name: f{number}, namespace: n, uid: u, resourceVersion: '1'}}"
            )),
        );
    }
    parents.list_ends(0, 1);
    let queue = queue();
    let period = Duration::from_secs(32);
    tokio::spawn({
        let queue = queue.clone();
        async move {
            let settled = |key: &Key| key.name() == "f7";
            resync::resync(&queue, &parents, settled, || parents.changes(), period).await;
        }
    });
    let mut handed_out = HashMap::new();
    let mut most = 0;
    let begun = Instant::now();
    while begun.elapsed() < 2 * period {
        sleep(Duration::from_millis(1001)).await;
        let waiting = queue.stats().depth.iter().sum::<usize>();
        most = most.max(waiting);
        for _ in 0..waiting {
            let item = queue.get().await.unwrap();
            assert_eq!(item.lane(), Lane::Background);
            *handed_out.entry(item.key().clone()).or_insert(0) += 1;
            item.complete(Outcome::Done);
        }
    }
    assert!(handed_out.len() == 99 && handed_out.values().all(|times| *times == 2));
    assert!(most <= 8, "{most} of 100 at once");
}

/// A resync retries an object that has waited for ten periods, however long its delay is. The bucket spreads these retries, and
/// each object keeps its count of failures.
#[tokio::test(start_paused = true)]
async fn q3d_resync_retries_an_object_after_ten_periods() {
    const FAILING: usize = 1000;
    let parents = Arc::new(Store::new(&[None], Owners::default()));
    parents.list_begins(0);
    let names: Vec<_> = (0..FAILING).map(|number| format!("f{number}")).collect();
    for name in &names {
        parents.apply(
            0,
            object::<Parent>(&format!(
                "metadata: {{name: {name}, namespace: n, uid: u, resourceVersion: '1'}}"
            )),
        );
    }
    parents.list_ends(0, 1);
    let queue = queue();
    let fail = async |tries| {
        for _ in 0..tries {
            let item = queue.get().await.unwrap();
            item.complete(FAILED);
        }
    };
    for name in &names {
        queue.add(key(name), Lane::Event);
    }
    // Up to a delay of 1,000 s.
    fail(FAILING * 19).await;
    assert_eq!(queue.stats().delayed, FAILING);
    let begun = Instant::now();
    let period = Duration::from_secs(30);
    tokio::spawn({
        let queue = queue.clone();
        async move {
            resync::resync(&queue, &parents, |_| false, || parents.changes(), period).await;
        }
    });
    for round in 1..=2_u32 {
        let mut first = None;
        for number in 0..FAILING {
            let item = queue.get().await.unwrap();
            first.get_or_insert_with(|| begun.elapsed());
            assert_eq!(
                (item.lane(), item.failures()),
                (Lane::Background, 18 + round),
                "{number}"
            );
            item.complete(FAILED);
        }
        let (first, last) = (first.unwrap(), begun.elapsed());
        assert!(
            first + period > 10 * period * round && first < 12 * period * round,
            "{first:?}"
        );
        // Each retry takes a token.
        assert!(
            last > first + Duration::from_secs(12),
            "{first:?} to {last:?}"
        );
        assert!(last < 13 * period * round, "{last:?}");
    }
}

/// Resyncs are skipped while nothing changes. A change triggers a check of all objects. An object whose result is not cached is
/// checked at each resync.
#[tokio::test(start_paused = true)]
async fn q4_a_resync_is_skipped_while_nothing_changes() {
    const FOR_A_TIME: u64 = 4;
    let parents = Arc::new(Store::new(&[None], Owners::default()));
    let apply = |version: u64| {
        parents.apply(
            0,
            object::<Parent>(&format!(
                "metadata: {{name: f, namespace: n, uid: u, resourceVersion: '{version}'}}"
            )),
        );
    };
    parents.list_begins(0);
    apply(1);
    parents.list_ends(0, 1);
    let (looks, period) = (Arc::new(Mutex::new(0)), Duration::from_secs(32));
    tokio::spawn({
        let (queue, parents, looks) = (queue(), Arc::clone(&parents), Arc::clone(&looks));
        async move {
            let settled = |key: &Key| {
                *looks.lock() += 1;
                let version = parents.get(key).unwrap().version;
                if version != FOR_A_TIME {
                    parents.note_up_to_date(key, version, 1);
                }
                true
            };
            resync::resync(&queue, &parents, settled, || parents.changes(), period).await;
        }
    });
    sleep(period * 5).await;
    assert_eq!(*looks.lock(), 1);
    apply(2);
    sleep(period * 5).await;
    assert_eq!(*looks.lock(), 2);
    parents.delete(0, &key("f"), 3);
    assert_eq!(parents.changes(), 3);
    apply(FOR_A_TIME);
    sleep(period * 5).await;
    assert_eq!(*looks.lock(), 7);
}

/// An API server without streamed lists. It returns fixed lists and silent watches, and allows every review. A list of children
/// takes a permit. All other requests are recorded and fail with 500.
#[derive(Clone)]
struct FakeServer {
    parents: Value,
    children: Value,
    let_children: Arc<Semaphore>,
    writes: Arc<Mutex<Vec<(Method, String)>>>,
    writes_hang: bool,
}

impl FakeServer {
    fn client(&self) -> Client {
        let server = self.clone();
        client(move |request| {
            let server = server.clone();
            async move { server.answer(&request).await }
        })
    }

    async fn answer(&self, request: &Parts) -> Response<Answer> {
        let path = request.uri.path();
        let query = request.uri.query().unwrap_or_default();
        if query.contains("sendInitialEvents") {
            return respond(422, &json!({ "code": 422 }));
        }
        if query.contains("watch") {
            return streamed(stream::pending());
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let review = json!({ "spec": {}, "status": { "allowed": true } });
            return respond(201, &review);
        }
        let items = match (&request.method, path.rsplit('/').next()) {
            (&Method::GET, Some("parents")) => &self.parents,
            (&Method::GET, Some("children")) => {
                self.let_children.acquire().await.unwrap().forget();
                &self.children
            }
            (method, _) => {
                self.writes.lock().push((method.clone(), path.to_owned()));
                if self.writes_hang {
                    std::future::pending::<()>().await;
                }
                return respond(500, &json!({}));
            }
        };
        let list = json!({ "metadata": { "resourceVersion": "9" }, "items": items });
        respond(200, &list)
    }
}

/// Returns a client whose requests are answered by `answer`.
fn client<F>(answer: impl Fn(Parts) -> F + Send + 'static) -> Client
where
    F: Future<Output = Response<Answer>> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(request.into_parts().0);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    Client::new(service, "default")
}

/// Body of a response: a stream of watch events, or complete.
type Answer = Either<StreamBody<BoxStream<'static, Line>>, Full<Bytes>>;
type Line = Result<Frame<Bytes>, io::Error>;

fn streamed(lines: impl Stream<Item = Line> + Send + 'static) -> Response<Answer> {
    Response::new(Either::Left(StreamBody::new(lines.boxed())))
}

fn respond(status: u16, body: &Value) -> Response<Answer> {
    let body = Full::new(serde_json::to_vec(body).unwrap().into());
    Response::builder()
        .status(status)
        .body(Either::Right(body))
        .unwrap()
}

/// A reconciler without steps.
struct Idle;

impl Reconciler for Idle {
    type Primary = Parent;
    type Error = ApiError;

    fn plan(&self, _: &View<'_, Parent>, _: &Snapshot<Parent>) -> Result<Plan<Parent>, ApiError> {
        Ok(Plan::new())
    }
}

fn server() -> FakeServer {
    FakeServer {
        parents: json!([{
            "metadata": { "name": "parent", "namespace": "n", "uid": "u", "resourceVersion": "1" },
            "spec": { "child": "web" },
        }]),
        children: json!([]),
        let_children: Arc::new(Semaphore::new(0)),
        writes: Arc::default(),
        writes_hang: false,
    }
}

fn controllers(server: &FakeServer, health: &mut Health) -> Controllers {
    controllers_at(&server.client(), health, Parents::build)
}

fn controllers_at<R: Reconciler>(
    client: &Client,
    health: &mut Health,
    build: impl FnOnce(&mut ControllerBuilder<'_, R::Primary>) -> R,
) -> Controllers {
    Controllers::new(
        &Host::of_this_process(),
        client,
        &Config::shipped(&APP),
        "test".into(),
        &Metrics::disconnected(&APP),
        health,
        |program| program.controller("parent", build),
    )
}

/// No reconcile starts before both caches are in sync: a Child that is not cached yet must not look missing.
#[tokio::test(start_paused = true)]
async fn q5_no_work_before_both_caches_are_in_sync() {
    let server = server();
    let mut health = Health::new(&Host::of_this_process());
    let mut controller = controllers(&server, &mut health);
    let (_publish, term) = channel::channel(Some(Term::unlimited()));
    let running = tokio::spawn(async move { controller.run(term, std::future::pending()).await });
    advance(Duration::from_mins(1)).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(
        health.failing(Probe::Ready),
        ["informer-sync: not in sync yet: children"]
    );
    assert_eq!(*server.writes.lock(), []);
    server.let_children.add_permits(1);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(health.failing(Probe::Ready), [""; 0]);
    let create = (
        Method::POST,
        "/apis/example.com/v1/namespaces/n/children".to_owned(),
    );
    assert_eq!(server.writes.lock().first(), Some(&create));
    assert!(!running.is_finished());
}

/// Reconciles run only during a term and end with it.
#[tokio::test(start_paused = true)]
async fn reconciles_run_only_during_a_term() {
    let server = server();
    server.let_children.add_permits(1);
    let mut health = Health::new(&Host::of_this_process());
    let mut controller = controllers(&server, &mut health);
    let (publish, term) = channel::channel(None);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let running = tokio::spawn(async move { controller.run(term, stopped).await });
    sleep(Duration::from_mins(1)).await;
    assert_eq!(health.failing(Probe::Ready), [""; 0], "a standby is warm");
    assert_eq!(*server.writes.lock(), []);

    publish.send_replace(Some(Term::unlimited()));
    sleep(Duration::from_mins(1)).await;
    assert!(
        server.writes.lock().len() > 5,
        "a new term looks at everything, and failures are retried"
    );

    publish.send_replace(None);
    sleep(Duration::from_millis(1)).await;
    server.writes.lock().clear();
    sleep(Duration::from_hours(1)).await;
    assert_eq!(*server.writes.lock(), [], "retries end with the term");

    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

/// Returns the failing liveness checks after `wait`, without their times.
async fn dead_after(wait: Duration, health: &Health) -> Vec<String> {
    assert!(timeout(wait, health.watch()).await.is_err());
    let failing = health.failing(Probe::Live).into_iter();
    failing
        .map(|line| line.split(" since ").next().unwrap().to_owned())
        .collect()
}

/// Requests of this client never end, unlike requests of the real client. Liveness names the reconcile and the watches that are
/// stuck in them.
#[tokio::test(start_paused = true)]
async fn liveness_names_stuck_reconciles_and_watches() {
    let server = FakeServer {
        writes_hang: true,
        ..server()
    };
    server.let_children.add_permits(1);
    let mut health = Health::new(&Host::of_this_process());
    let mut controller = controllers(&server, &mut health);
    let (_publish, term) = channel::channel(Some(Term::unlimited()));
    let _running = tokio::spawn(async move { controller.run(term, std::future::pending()).await });
    assert_eq!(dead_after(STALL_TIMEOUT, &health).await, [""; 0]);
    assert_eq!(dead_after(Duration::from_mins(1), &health).await, [STUCK]);
    assert_eq!(
        dead_after(READ_TIMEOUT, &health).await,
        ["watch-parents: reading", "watch-children: reading", STUCK]
    );
}

const STUCK: &str = "workers: a reconcile has made no progress";

/// Sends [`REQUESTS`] creates or live reads, ignores the responses, and never returns.
struct Busy {
    parents: Arc<Writer<Parent>>,
    children: Writer<Child>,
    asks: bool,
}

impl Reconciler for Busy {
    type Primary = Parent;
    type Error = Error;

    fn plan(&self, _: &View<'_, Parent>, _: &Snapshot<Parent>) -> Result<Plan<Parent>, Error> {
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Parent>,
        seen: &Snapshot<Parent>,
    ) -> Result<Action, Error> {
        for number in 0..REQUESTS {
            if self.asks {
                let _ = self.parents.verify_current(cx, seen).await;
            } else {
                let child = key(&number.to_string());
                let _ = self.children.create(cx, &child, &json!({})).await;
            }
        }
        std::future::pending().await
    }
}

/// [`REQUESTS`] of [`SLOW`] each take longer than [`STALL_TIMEOUT`].
const REQUESTS: u32 = 20;
const SLOW: Duration = Duration::from_secs(9);

/// Slow responses count as progress, regardless of their status and their number. A reconcile without further progress is
/// stuck.
#[tokio::test(start_paused = true)]
async fn liveness_bounds_stalls_and_not_reconciles() {
    for (asks, code) in [false, true]
        .into_iter()
        .flat_map(|asks| [201, 500, 0].map(|code| (asks, code)))
    {
        let server = server();
        server.let_children.add_permits(1);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, (request, _)) = (server.clone(), request.into_parts());
            async move {
                let query = request.uri.query().unwrap_or_default();
                let is_write =
                    request.uri.path().ends_with("/children") && request.method == Method::POST;
                if !is_write && !query.contains("fieldSelector") {
                    return Ok(server.answer(&request).await);
                }
                sleep(SLOW).await;
                if code == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
                }
                let answer = json!({
                    "code": code, "items": server.parents,
                    "metadata": { "name": "child", "namespace": "n", "uid": "c", "resourceVersion": "9" },
                });
                Ok(respond(code, &answer))
            }
        });
        let mut health = Health::new(&Host::of_this_process());
        let mut controller =
            controllers_at(&Client::new(service, "default"), &mut health, |builder| {
                Busy {
                    parents: builder.primary(),
                    children: builder.owns(),
                    asks,
                }
            });
        let (_publish, term) = channel::channel(Some(Term::unlimited()));
        let running =
            tokio::spawn(async move { controller.run(term, std::future::pending()).await });
        let busy = SLOW * REQUESTS + STALL_TIMEOUT;
        assert_eq!(dead_after(busy, &health).await, [""; 0], "{asks} {code}");
        let dead = dead_after(Duration::from_mins(1), &health).await;
        assert!(dead.contains(&STUCK.to_owned()), "{asks} {code}: {dead:?}");
        running.abort();
    }
}

/// Invalid responses, and requests that only the client's timeout ends, do not stop a heartbeat.
#[tokio::test(start_paused = true)]
async fn liveness_does_not_depend_on_the_api_server() {
    for answer in [500, 0] {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            if answer == 0 || request.uri().path().contains("children") {
                // The client's own timeout.
                tokio::time::sleep(READ_TIMEOUT).await;
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
            }
            Ok(respond(answer, &json!({ "code": answer })))
        });
        let client = Client::new(service, "default");
        let mut health = Health::new(&Host::of_this_process());
        let mut controller = controllers_at(&client, &mut health, Parents::build);
        let (_publish, term) = channel::channel(Some(Term::unlimited()));
        let running =
            tokio::spawn(async move { controller.run(term, std::future::pending()).await });
        assert_eq!(dead_after(Duration::from_hours(1), &health).await, [""; 0]);
        assert_eq!(health.failing(Probe::Ready).len(), 1);
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn liveness_names_a_dead_watch() {
    let server = server();
    let mut health = Health::new(&Host::of_this_process());
    let mut controller = controllers(&server, &mut health);
    controller.tasks.shutdown().await;
    let dead = dead_after(Duration::from_mins(1), &health).await;
    assert_eq!(dead, ["watch-parents: dead", "watch-children: dead"]);
}

/// An API server is frozen, and a load balancer keeps its connections. A watch without its usual bookmarks resumes elsewhere,
/// from its version. A watch that never had a bookmark stays open, because bookmarks are optional.
#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_opened_again() {
    let minute = Duration::from_mins(1);
    for bookmarks in [0, 1, 20] {
        let (server, opened) = (server(), Arc::new(Mutex::new(Vec::new())));
        server.let_children.add_permits(1);
        let noted = Arc::clone(&opened);
        let client = client(move |request| {
            let (server, noted) = (server.clone(), noted.clone());
            async move {
                let query = request.uri.query().unwrap_or_default();
                if query.contains("sendInitialEvents") || !query.contains("watch") {
                    return server.answer(&request).await;
                }
                if request.uri.path().ends_with("/parents") {
                    noted.lock().push(query.to_owned());
                }
                let bookmark = json!({ "type": "BOOKMARK", "object": {
                    "kind": "Parent", "apiVersion": "example.com/v1", "metadata": { "resourceVersion": "17" },
                }});
                let line = Bytes::from(format!("{bookmark}\n"));
                let lines = stream::iter(0..bookmarks).then(move |_| {
                    let line = line.clone();
                    async move {
                        sleep(minute).await;
                        Ok(Frame::data(line))
                    }
                });
                streamed(lines.chain(stream::pending()))
            }
        });
        let mut health = Health::new(&Host::of_this_process());
        let _controller = controllers_at(&client, &mut health, Parents::build);
        sleep(minute * (bookmarks + 2)).await;
        assert_eq!(opened.lock().len(), 1, "{bookmarks}");
        sleep(minute).await;
        let opened = opened.lock();
        assert_eq!(opened.len(), if bookmarks == 0 { 1 } else { 2 });
        if let Some(query) = opened.get(1) {
            assert!(query.contains("resourceVersion=17"), "{query}");
        }
    }
}

/// A watch does not resume from an invalid version of a bookmark. If the API server rejects the version of a watch, all objects
/// are relisted.
#[tokio::test(start_paused = true)]
async fn a_watch_resumes_only_from_valid_versions() {
    for odd in ["none", "", "0"] {
        for code in [400, 422] {
            let (server, asked) = (server(), Arc::new(Mutex::new(Vec::new())));
            server.let_children.add_permits(1);
            let noted = Arc::clone(&asked);
            let client = client(move |request| {
                let (server, noted) = (server.clone(), noted.clone());
                async move {
                    let query = request.uri.query().unwrap_or_default();
                    let is_watch = query.contains("watch") && !query.contains("sendInitialEvents");
                    if !request.uri.path().ends_with("/parents") || query.contains("sendInitial") {
                        return server.answer(&request).await;
                    }
                    noted.lock().push(query.to_owned());
                    let so_far = noted.lock().iter().filter(|q| q.contains("watch")).count();
                    match (is_watch, so_far) {
                        (true, 1) => {
                            let bookmark = json!({ "type": "BOOKMARK", "object": {
                                "kind": "Parent", "apiVersion": "example.com/v1", "metadata": { "resourceVersion": odd },
                            }});
                            let line = Bytes::from(format!("{bookmark}\n"));
                            let line = stream::iter([Ok(Frame::data(line))]);
                            streamed(line)
                        }
                        (true, 2) => respond(code, &json!({ "code": code })),
                        _ => server.answer(&request).await,
                    }
                }
            });
            let mut health = Health::new(&Host::of_this_process());
            let _controller = controllers_at(&client, &mut health, Parents::build);
            sleep(Duration::from_mins(1)).await;
            let asked = asked.lock();
            let kinds: Vec<_> = (asked.iter())
                .map(|query| (query.contains("watch"), query.contains("resourceVersion=9")))
                .collect();
            let (list, watch) = ((false, false), (true, true));
            assert_eq!(
                kinds,
                [list, watch, watch, list, watch],
                "{odd:?} {code}: {asked:?}"
            );
        }
    }
}

/// A leader that can serve nothing reports it after its work is drained. It reports a new ability after its term.
#[tokio::test(start_paused = true)]
async fn an_ineligible_leader_is_drained_before_it_reports() {
    let server = FakeServer {
        writes_hang: true,
        ..server()
    };
    server.let_children.add_permits(1);
    let mut controller = controllers(&server, &mut Health::new(&Host::of_this_process()));
    let (ability, scopes) = (controller.ability(), Arc::clone(&controller.scopes));
    let says = |expected| assert_eq!(*ability.borrow(), expected);
    let (publish, term) = channel::channel(None);
    let running = tokio::spawn(async move { controller.run(term, std::future::pending()).await });
    sleep(Duration::from_secs(1)).await;
    says(Eligibility::Full);
    publish.send_replace(Some(Term::unlimited()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.writes.lock().len(), 1, "which hangs");

    let parents = scopes.informer(0, 0);
    parents.fails(Reason::NotFound, "the CRD is gone".into());
    let Config {
        leader_election,
        shutdown_timeout,
        ..
    } = Config::shipped(&APP);
    sleep(leader_election.lease_duration + Duration::from_secs(1)).await;
    says(Eligibility::Full);
    sleep(shutdown_timeout).await;
    says(Eligibility::None);
    parents.works();
    sleep(Duration::from_secs(1)).await;
    says(Eligibility::None);
    assert_eq!(
        server.writes.lock().len(),
        1,
        "its term goes on, its work does not"
    );
    publish.send_replace(None);
    sleep(Duration::from_secs(1)).await;
    says(Eligibility::Full);
    publish.send_replace(Some(Term::unlimited()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.writes.lock().len(), 2);
    assert!(!running.is_finished());
}
