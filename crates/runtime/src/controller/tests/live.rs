//! Live reads without a watch.

use k8s_openapi::api::storage::v1::StorageClass;
use serde::Deserialize;
use tokio::join;

use super::*;
use crate::{
    api::{
        exists::Exists,
        failure::Failure as _,
        kind::Kind,
        plain::{Custom, Spec},
        reported::Status,
    },
    reconcile::{
        context::{Attempt, Detached},
        live::{Live, MOST},
    },
    testing::Harness,
};

/// It needs all of these classes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Claim {
    classes: Vec<String>,
}

impl Spec for Claim {
    const KIND: Kind = Kind::custom("example.com", "v1", "Claim", "claims");
    type Status = Status;
}

struct Claims {
    primary: Arc<Writer<Custom<Claim>>>,
    classes: Live<Exists<StorageClass>>,
    max_age: Duration,
}

impl Reconciler for Claims {
    type Primary = Custom<Claim>;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Custom<Claim>>,
        claim: &Snapshot<Custom<Claim>>,
    ) -> Result<Plan<Custom<Claim>>, ApiError> {
        for name in &claim.view.spec()?.classes {
            let found = cx.live(&self.classes, &Key::cluster(name), self.max_age)?;
            found.ok_or_else(|| ApiError::Waiting(format!("no class {name}")))?;
        }
        Ok(Plan::new())
    }
}

/// Response to each read: a status code after a time.
type Answer = Arc<Mutex<(u16, Duration)>>;

struct World {
    harness: Harness<Claims>,
    answer: Answer,
    reads: Arc<Mutex<Vec<String>>>,
}

const AGE: Duration = Duration::from_mins(10);

impl World {
    fn new(max_age: Duration) -> Self {
        let answer: Answer = Arc::new(Mutex::new((200, Duration::from_millis(10))));
        let reads = Arc::<Mutex<Vec<String>>>::default();
        let (told, noted) = (Arc::clone(&answer), Arc::clone(&reads));
        let client = client(move |request| {
            let (path, (code, time)) = (request.uri.path().to_owned(), *told.lock());
            let noted = Arc::clone(&noted);
            async move {
                let Some((_, name)) = path.split_once("/storageclasses/") else {
                    // A status.
                    return respond(422, &json!({ "kind": "Status", "code": 422 }));
                };
                assert_eq!(request.method, Method::GET);
                let accept = request.headers["accept"].to_str().unwrap();
                assert!(accept.contains("as=PartialObjectMetadata"), "{accept}");
                noted.lock().push(name.to_owned());
                sleep(time).await;
                let message = "storageclasses is forbidden: User \"u\" cannot get resource";
                let metadata = json!({ "name": name, "uid": name, "resourceVersion": "1" });
                match code {
                    200 => respond(200, &json!({ "metadata": metadata })),
                    404 if name != "unserved" => {
                        let details = json!({ "name": name });
                        respond(
                            404,
                            &json!({ "kind": "Status", "code": 404, "details": details }),
                        )
                    }
                    _ => respond(
                        code,
                        &json!({ "kind": "Status", "code": code, "message": message }),
                    ),
                }
            }
        });
        let harness = Harness::new(&APP, &client, |builder| Claims {
            primary: builder.primary(),
            classes: builder.reads(),
            max_age,
        });
        Self {
            harness,
            answer,
            reads,
        }
    }

    /// Adds a Claim with a current status.
    fn claim(&self, name: &str, classes: &[&str]) -> Key {
        let claim = object(&format!(
            "
            metadata: {{name: {name}, namespace: n, uid: {name}, resourceVersion: '1', generation: 1}}
            spec: {{classes: {classes:?}}}
            status: {{observedGeneration: 1, conditions: [{{type: Ready, status: 'True', reason: Synced, message: '',
                observedGeneration: 1, lastTransitionTime: '2020-01-01T00:00:00Z'}}]}}"
        ));
        let claims = self.harness.reconciler().primary.store();
        self.harness.apply(claims, claim);
        key(name)
    }

    /// Returns the names of the objects that were read since the last call.
    fn reads(&self) -> Vec<String> {
        std::mem::take(&mut *self.reads.lock())
    }
}

/// All objects share the result until it is too old. A resync then finds that they are not up to date.
#[tokio::test(start_paused = true)]
async fn a_live_read_is_sent_once_until_it_is_too_old() {
    let world = World::new(AGE);
    let (a, b) = (world.claim("a", &["fast"]), world.claim("b", &["fast"]));
    let harness = &world.harness;
    for _ in 0..2 {
        assert!(!harness.is_up_to_date(&a), "unread");
        assert_eq!(world.reads(), [""; 0], "a dry run");
        let done = join!(harness.reconcile(&a), harness.reconcile(&b));
        assert_eq!(done, (Ok(Action::Done), Ok(Action::Done)));
        assert_eq!(world.reads(), ["fast"]);
        advance(AGE.mul_f64(0.9)).await;
        assert_eq!(harness.reconcile(&b).await, Ok(Action::Done));
        assert!(harness.is_up_to_date(&a) && harness.is_up_to_date(&b));
        assert_eq!(world.reads(), [""; 0]);
        advance(AGE.mul_f64(0.2)).await;
    }
}

/// A missing object is a result. A name that no object can have is missing without a request.
#[tokio::test(start_paused = true)]
async fn a_missing_object_is_a_result_of_a_live_read() {
    let world = World::new(AGE);
    *world.answer.lock() = (404, Duration::ZERO);
    for (name, class, reads) in [("a", "slow", 1), ("b", "a%2fb", 0)] {
        let claim = world.claim(name, &[class]);
        for _ in 0..2 {
            let missing = ApiError::Waiting(format!("no class {class}"));
            assert_eq!(world.harness.reconcile(&claim).await, Err(missing));
        }
        assert_eq!(world.reads().len(), reads, "{class}");
    }
    // The response about a missing resource type names no object.
    let claim = world.claim("c", &["unserved"]);
    let text = "cannot read StorageClass unserved: the storageclasses are not installed";
    let failed = ApiError::transient(text);
    assert_eq!(world.harness.reconcile(&claim).await, Err(failed));
}

/// An attempt sends a limited number of reads. A result of the attempt is used, even if it is too old at once.
#[tokio::test(start_paused = true)]
async fn an_attempt_sends_a_limited_number_of_live_reads() {
    let names: Vec<String> = (0..=MOST).map(|number| format!("class-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new(Duration::ZERO);
    let claim = world.claim("a", &names[..MOST]);
    assert_eq!(world.harness.reconcile(&claim).await, Ok(Action::Done));
    assert_eq!(world.reads(), names[..MOST]);

    let claim = world.claim("a", &names);
    let error = world.harness.reconcile(&claim).await.unwrap_err();
    let text = "cannot read more than 64 objects live in one reconcile";
    assert_eq!(error, ApiError::transient(text));
    assert_eq!(world.reads(), names[..MOST]);
}

/// A failed read is the error of the plan. It is sent again in the next attempt.
#[tokio::test(start_paused = true)]
async fn a_failed_live_read_is_the_error_of_the_reconcile() {
    let (now, hangs) = (Duration::ZERO, Duration::from_mins(5));
    for (code, time, reason, text) in [
        (
            403,
            now,
            Some("Rejected"),
            "cannot read StorageClass fast: storageclasses is forbidden",
        ),
        (500, now, None, "cannot read StorageClass fast: "),
        (
            200,
            hangs,
            None,
            "cannot read StorageClass fast: no answer in 10s",
        ),
    ] {
        let world = World::new(AGE);
        let claim = world.claim("a", &["fast"]);
        *world.answer.lock() = (code, time);
        for _ in 0..2 {
            let begun = Instant::now();
            let error = world.harness.reconcile(&claim).await.unwrap_err();
            assert!(error.to_string().starts_with(text), "{error}");
            assert_eq!(
                (error.reason(), error.retry()),
                (reason, Retry::Backoff(now))
            );
            assert!(begun.elapsed() <= Duration::from_secs(11));
            assert_eq!(world.reads(), ["fast"]);
        }
        *world.answer.lock() = (200, now);
        assert_eq!(world.harness.reconcile(&claim).await, Ok(Action::Done));
    }
}

/// A dry run and a replica that does not lead send no read. A test of a plan sets its result. Objects of other namespaces are not
/// read.
#[tokio::test(start_paused = true)]
async fn live_reads_are_sent_for_the_leader_only() {
    let world = World::new(AGE);
    let (harness, claim) = (&world.harness, world.claim("a", &["fast"]));
    let unread = ApiError::Unread("StorageClass", "fast".to_owned());
    assert_eq!(harness.plan(&claim).unwrap_err(), unread);

    let reconciler = harness.reconciler();
    let seen = reconciler.primary.store().get(&claim).unwrap();
    let cx = Context {
        attempt: &Detached { leads: false },
        ..harness.context(&claim, &seen)
    };
    let planned = || reconciler.plan(&cx.view(), &seen).map(drop);
    assert_eq!(planned(), Err(unread));
    assert!(cx.read_live().await);
    assert_eq!(planned(), Err(ApiError::NotLeading));
    assert!(!cx.read_live().await);
    let elsewhere = cx
        .view()
        .live(&reconciler.classes, &Key::new("m", "x"), AGE);
    assert!(matches!(elsewhere, Err(ApiError::InvalidSpec(_))));
    assert_eq!(world.reads(), [""; 0]);

    let fast = object("metadata: {name: fast, uid: x, resourceVersion: '1'}");
    harness.read(&reconciler.classes, &Key::cluster("fast"), Some(fast));
    assert_eq!(harness.plan(&claim), Ok(Vec::new()));
    harness.read(&reconciler.classes, &Key::cluster("fast"), None);
    assert_eq!(
        harness.plan(&claim).map(|steps| steps.len()),
        Ok(1),
        "a status"
    );
}

/// The attempt of a leader, which records its heartbeats.
struct Beats(Mutex<Vec<Instant>>);

impl Attempt for Beats {
    fn has_urgent_work(&self) -> bool {
        false
    }
    fn leads(&self) -> bool {
        true
    }
    fn heartbeat(&self, _: &Key) {
        self.0.lock().push(Instant::now());
    }
    fn enqueue(&self, _: Key) {}
}

/// The reads of an attempt may take longer than [`STALL_TIMEOUT`]: the end of each is progress.
#[tokio::test(start_paused = true)]
async fn each_live_read_is_progress() {
    let names: Vec<String> = (0..REQUESTS)
        .map(|number| format!("class-{number}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new(AGE);
    let claim = world.claim("a", &names);
    *world.answer.lock() = (200, SLOW);
    let (begun, beats) = (Instant::now(), Beats(Mutex::default()));
    let done = world.harness.work.reconcile(&claim, &beats).await;
    assert_eq!(done, Ok(Action::Done));
    let beats = beats.0.into_inner().into_iter();
    let beats: Vec<_> = beats.map(|beat| beat - begun).collect();
    let expected: Vec<_> = (1..=REQUESTS).map(|number| SLOW * number).collect();
    assert_eq!(beats, expected);
}
