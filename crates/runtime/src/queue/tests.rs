//! The queue against its model, its delays on paused time, and its workers on real threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test panics")]

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use futures::{FutureExt, future::poll_fn, poll};
use proptest::prelude::*;
use tokio::{
    task::{coop::unconstrained, yield_now},
    time::{advance, sleep, timeout},
};

use super::{
    limiter::Delays,
    model::{self, Key, Model},
    *,
};

const MS: Duration = Duration::from_millis(1);

/// The defaults of row Q3.
fn q3() -> Backoff {
    Backoff {
        initial: 5 * MS,
        max: Duration::from_secs(1000),
        qps: 50.0,
        burst: 300,
    }
}

/// The next key, if one is there.
fn try_take<K: Clone + Eq + Hash>(queue: &Queue<K>) -> Option<WorkItem<K>> {
    unconstrained(queue.get()).now_or_never().flatten()
}

/// The next key, which is there.
fn take<K: Clone + Eq + Hash>(queue: &Queue<K>) -> WorkItem<K> {
    try_take(queue).unwrap()
}

/// Adds `key`, takes it and lets it fail; the delay of its retry.
fn fail(queue: &Queue<usize>, key: usize) -> Duration {
    queue.add(key, Lane::Event);
    let taken = take(queue);
    assert_eq!(*taken.key(), key);
    taken.add_rate_limited_after(Duration::ZERO)
}

// ---------- the model ----------

#[derive(Clone, Debug)]
enum Op {
    Add(Key, Lane),
    AddAfter(Key, Lane, u64),
    Get,
    Succeed(usize),
    Retry(usize),
    Drop(usize),
    Forget(Key),
    Advance(u64),
    ShutDown,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..8_u8;
    let lane = || prop::sample::select(&Lane::ALL[..]);
    let held = || 0..8_usize;
    prop_oneof![
        40 => (key(), lane()).prop_map(|(k, l)| Op::Add(k, l)),
        20 => (key(), lane(), 0..50_u64).prop_map(|(k, l, d)| Op::AddAfter(k, l, d)),
        60 => Just(Op::Get),
        10 => held().prop_map(Op::Succeed),
        30 => held().prop_map(Op::Retry),
        10 => held().prop_map(Op::Drop),
        3 => key().prop_map(Op::Forget),
        30 => (0..30_u64).prop_map(Op::Advance),
        1 => Just(Op::ShutDown),
    ]
}

/// Runs the queue and the model side by side.
struct Both {
    queue: Queue<Key>,
    model: Model,
    held: Vec<WorkItem<Key>>,
    /// Keys that were added and not handed out since.
    owed: BTreeSet<Key>,
}

impl Both {
    async fn run(&mut self, op: &Op) {
        let Self { queue, model, .. } = self;
        match op {
            Op::Add(key, lane) => {
                queue.add(*key, *lane);
                model.add(*key, *lane);
                self.owed.insert(*key);
            }
            Op::AddAfter(key, lane, ms) => {
                queue.add_after(*key, *lane, Duration::from_millis(*ms));
                model.add_after(*key, *lane, *ms);
                self.owed.insert(*key);
            }
            Op::Get => {
                let taken = try_take(queue);
                let got = taken
                    .as_ref()
                    .map(|t| (*t.key(), t.lane(), t.waited(), t.failures()));
                assert_eq!(got, model.get());
                if let Some(taken) = taken {
                    self.owed.remove(taken.key());
                    self.held.push(taken);
                }
            }
            Op::Succeed(i) => {
                if let Some(taken) = self.give_back(*i) {
                    self.model.forget(*taken.key());
                    self.model.release(*taken.key());
                    taken.forget();
                }
            }
            Op::Retry(i) => {
                if let Some(taken) = self.give_back(*i) {
                    self.owed.insert(*taken.key());
                    let expected = self.model.retry(*taken.key());
                    assert_eq!(taken.add_rate_limited_after(Duration::ZERO), expected);
                }
            }
            Op::Drop(i) => {
                if let Some(taken) = self.give_back(*i) {
                    self.model.release(*taken.key());
                }
            }
            Op::Forget(key) => {
                queue.forget(key);
                model.forget(*key);
            }
            Op::Advance(ms) => {
                advance(Duration::from_millis(*ms)).await;
                model.advance(*ms);
            }
            Op::ShutDown => {
                queue.shut_down();
                model.shut_down();
            }
        }
        assert_eq!(self.queue.stats(), self.model.stats());
    }

    fn give_back(&mut self, which: usize) -> Option<WorkItem<Key>> {
        let n = self.held.len();
        (n > 0).then(|| self.held.remove(which % n))
    }
}

fn side_by_side(ops: &[Op]) {
    paused(async {
        let mut both = Both {
            queue: Queue::new(&model::backoff()),
            model: Model::default(),
            held: Vec::new(),
            owed: BTreeSet::new(),
        };
        for op in ops {
            both.run(op).await;
        }
        // In the end every key that was added is handed out, and nothing is left of any.
        both.held.clear();
        advance(Duration::from_secs(100)).await;
        while let Some(taken) = try_take(&both.queue) {
            both.owed.remove(taken.key());
            taken.forget();
        }
        if !both.queue.0.state.lock().is_shut_down() {
            assert_eq!(both.owed, BTreeSet::new(), "lost");
        }
        for key in 0..8 {
            both.queue.forget(&key);
        }
        assert!(both.queue.0.state.lock().is_empty());
    });
}

fn paused(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Q1, Q3 and the module's fairness: whatever happens, the queue does what the model does.
    #[test]
    fn q1_q3_does_what_the_model_does(ops in prop::collection::vec(op(), 1..150)) {
        side_by_side(&ops);
    }

    /// The bound of the module's docs under a storm on any lanes: the model counts every key's turns.
    #[test]
    fn no_key_waits_longer_than_its_bound(
        adds in prop::collection::vec(prop::collection::vec(op_add(), 1..4), 1..150),
    ) {
        let mut ops = Vec::new();
        for adds in adds {
            ops.extend(adds);
            ops.extend([Op::Get, Op::Drop(0)]);
        }
        side_by_side(&ops);
    }
}

fn op_add() -> impl Strategy<Value = Op> {
    let lane = prop_oneof![
        8 => Just(Lane::Event),
        1 => Just(Lane::Retry),
        1 => Just(Lane::Background),
    ];
    (0..8_u8, lane).prop_map(|(k, l)| Op::Add(k, l))
}

// ---------- delays (Q3) ----------

/// Q3: 5 ms, doubling, 1000 s at most; and the key is there when the delay is over, not before.
#[tokio::test(start_paused = true)]
async fn q3_an_objects_delay_doubles_from_5_ms_to_1000_s() {
    let queue = Queue::new(&q3());
    queue.add("ns/a", Lane::Event);
    for failure in 0..25 {
        let taken = queue.get().await.unwrap();
        assert_eq!(taken.failures(), failure);
        let delay = taken.add_rate_limited_after(Duration::ZERO);
        let expected = (5 * MS * (1 << failure.min(20))).min(Duration::from_secs(1000));
        assert_eq!(delay, expected, "failure {failure}");
        let failed = Instant::now();
        let taken = queue.get().await.unwrap();
        assert_eq!(failed.elapsed(), delay);
        assert_eq!(
            (taken.lane(), taken.waited()),
            (Lane::Retry, Duration::ZERO)
        );
        drop(taken);
        queue.add("ns/a", Lane::Retry);
    }
}

/// Q3: no number of failures and no odd configuration breaks the arithmetic.
#[tokio::test(start_paused = true)]
async fn q3_the_delays_are_always_finite() {
    let mut odd = q3();
    assert_eq!(Delays::new(&odd).after(u32::MAX), odd.max);
    for (initial, max) in [
        (Duration::ZERO, odd.max),
        (odd.max, odd.initial),
        (Duration::from_nanos(1), Duration::MAX),
        (Duration::MAX, Duration::MAX),
    ] {
        for qps in [0.0, f64::MIN_POSITIVE, f64::MAX, f64::NAN] {
            odd = Backoff {
                initial,
                max,
                qps,
                burst: u32::MAX,
            };
            let queue = Queue::new(&odd);
            for _ in 0..3 {
                fail(&queue, 1);
            }
            queue.add_after(2, Lane::Event, Duration::MAX);
        }
    }
}

/// Q3: the bucket lets 300 retries through at once and then 50 a second, over all objects; the
/// larger of the two delays counts, and tokens come back with time.
#[tokio::test(start_paused = true)]
async fn q3_the_bucket_is_over_all_retries() {
    let queue = Queue::new(&q3());
    for key in 0..300 {
        assert_eq!(fail(&queue, key), 5 * MS);
    }
    for key in 300..10_000 {
        assert_eq!(
            fail(&queue, key),
            20 * MS * u32::try_from(key - 299).unwrap()
        );
    }
    // 194 s of debt: 9,700 tokens at 50 a second. Paid back, then 1 s more for 50 tokens.
    for second in 0..=194 {
        let ready = queue.stats().depth[1];
        assert!(
            ready <= 300 + 50 * second,
            "{ready} retries after {second} s"
        );
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(queue.stats().depth[1], 10_000);
    for key in 10_000..10_050 {
        queue.add(key, Lane::Event);
    }
    let delays: Vec<_> = (0..52)
        .map(|_| take(&queue).add_rate_limited_after(Duration::ZERO))
        .filter(|delay| *delay <= 10 * MS)
        .collect();
    assert!((50..=52).contains(&delays.len()), "{delays:?}");
}

/// Q3: a resync adds what is refused again and again, and moves none of it past its delay; a change does.
#[tokio::test(start_paused = true)]
async fn q3_a_resync_does_not_shorten_a_delay() {
    let queue = Queue::new(&q3());
    let mut tries = 0;
    queue.add(1, Lane::Background);
    for _second in 0..600 {
        while let Some(taken) = try_take(&queue) {
            tries += 1;
            taken.add_rate_limited_after(Duration::ZERO);
        }
        queue.add(1, Lane::Background);
        advance(Duration::from_secs(1)).await;
    }
    assert!(
        tries <= 18,
        "{tries} tries in 600 s: 5 ms doubled 17 times are 655 s"
    );
    assert!(try_take(&queue).is_none());
    queue.add(1, Lane::Event);
    assert_eq!(take(&queue).lane(), Lane::Event);
}

/// Q3: success forgets the failures, and so does `forget`; a drop forgets nothing.
#[tokio::test(start_paused = true)]
async fn q3_success_forgets() {
    let queue = Queue::new(&q3());
    assert_eq!(fail(&queue, 1), 5 * MS);
    assert_eq!(fail(&queue, 1), 10 * MS);
    queue.add(1, Lane::Event);
    drop(take(&queue));
    assert_eq!(fail(&queue, 1), 20 * MS);
    queue.add(1, Lane::Event);
    take(&queue).forget();
    assert_eq!(queue.stats().failing, 0);
    assert_eq!(fail(&queue, 1), 5 * MS);
    queue.forget(&1);
    assert_eq!(fail(&queue, 1), 5 * MS);
}

/// A change does not wait for the retry, which is then not made; the failures stay counted.
#[tokio::test(start_paused = true)]
async fn q3_a_change_overtakes_the_delayed_retry() {
    let queue = Queue::new(&q3());
    fail(&queue, 1);
    assert_eq!(queue.stats().delayed, 1);
    queue.add(1, Lane::Event);
    assert_eq!(queue.stats().delayed, 0);
    let taken = take(&queue);
    assert_eq!((taken.lane(), taken.failures()), (Lane::Event, 1));
    // Changed again while it is being worked on: the retry is that change.
    queue.add(1, Lane::Event);
    assert_eq!(taken.add_rate_limited_after(Duration::ZERO), Duration::ZERO);
    let taken = take(&queue);
    assert_eq!((taken.lane(), taken.failures()), (Lane::Event, 2));
    assert_eq!(taken.add_rate_limited_after(Duration::ZERO), 20 * MS);
}

/// An object that fails and changes all the time keeps no other one from its retry: what it
/// borrowed from the bucket and did not use comes back.
#[tokio::test(start_paused = true)]
async fn q3_overtaken_retries_leave_no_debt() {
    let queue = Queue::new(&q3());
    for _ in 0..10_000 {
        fail(&queue, 1);
    }
    assert!(fail(&queue, 2) <= 40 * MS);
}

/// Of several delayed adds the earliest counts.
#[tokio::test(start_paused = true)]
async fn q1_delayed_adds_collapse_to_the_earliest() {
    let queue = Queue::new(&q3());
    let start = Instant::now();
    queue.add_after(1, Lane::Background, 30 * MS);
    queue.add_after(1, Lane::Retry, 10 * MS);
    queue.add_after(1, Lane::Event, 20 * MS);
    let taken = queue.get().await.unwrap();
    assert_eq!((start.elapsed(), taken.lane()), (10 * MS, Lane::Retry));
    taken.forget();
    assert!(timeout(100 * MS, queue.get()).await.is_err());
}

// ---------- fairness ----------

/// 40 hot keys, each changed again as soon as it is taken, and one worker: every other key is
/// handed out within the bound of the module's docs, whatever its lane.
#[tokio::test(start_paused = true)]
async fn hot_keys_starve_nobody() {
    const HOT: usize = 40;
    let queue = Queue::new(&q3());
    for key in 0..HOT {
        queue.add(key, Lane::Event);
    }
    let mut waiting = BTreeSet::new();
    for n in 0..20 {
        for lane in Lane::ALL {
            let before = n + if lane == Lane::Event { HOT } else { 0 };
            let key = 100 * (lane as usize + 1) + n;
            queue.add(key, lane);
            waiting.insert((8 * (before + 1), key));
        }
    }
    for turn in 1..=8 * (HOT + 20) {
        let taken = take(&queue);
        if *taken.key() < HOT {
            queue.add(*taken.key(), Lane::Event);
        }
        waiting.retain(|(bound, key)| {
            assert!(turn <= *bound, "{key} should have had turn {bound}");
            key != taken.key()
        });
    }
    assert_eq!(waiting, BTreeSet::new());
}

// ---------- workers that wait ----------

/// A worker in `get` that counts how often it is woken.
async fn counted<T>(get: impl Future<Output = T>, polls: &AtomicUsize) -> T {
    let mut get = pin!(get);
    poll_fn(|cx| {
        polls.fetch_add(1, SeqCst);
        get.as_mut().poll(cx)
    })
    .await
}

/// However many workers wait, a key wakes one of them; a delayed key costs a few wake-ups, to pass
/// the watch on, but never a herd.
#[tokio::test(start_paused = true)]
async fn a_key_wakes_one_worker() {
    let queue = Queue::new(&q3());
    let polls = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let (queue, polls) = (queue.clone(), polls.clone());
        tokio::spawn(async move {
            while let Some(taken) = counted(queue.get(), &polls).await {
                taken.forget();
            }
        });
    }
    sleep(MS).await;
    let woken = || polls.swap(0, SeqCst);
    assert_eq!(woken(), 50);
    queue.add(1, Lane::Event);
    sleep(MS).await;
    assert_eq!(woken(), 2, "one to take it, and the same to wait again");
    for delay in 1..=100 {
        queue.add_after(delay, Lane::Background, Duration::from_secs(delay));
    }
    sleep(Duration::from_secs(200)).await;
    let woken = woken();
    assert!(woken <= 50 + 4 * 100, "{woken} for 100 keys");
    assert_eq!(queue.stats().adds, 101);
    queue.shut_down();
}

/// Whoever waits for the next delayed key may be cancelled: another worker takes over.
#[tokio::test(start_paused = true)]
async fn a_cancelled_get_passes_the_watch_on() {
    let queue = Queue::new(&q3());
    queue.add_after(1, Lane::Event, 10 * MS);
    let mut first = Box::pin(queue.get());
    let mut second = Box::pin(queue.get());
    assert!(poll!(&mut first).is_pending());
    assert!(poll!(&mut second).is_pending());
    drop(first);
    let start = Instant::now();
    let taken = timeout(Duration::from_secs(1), &mut second).await;
    assert_eq!(*taken.unwrap().unwrap().key(), 1);
    assert_eq!(start.elapsed(), 10 * MS);

    // The same for a worker that was woken and did not live to take the key.
    let mut first = Box::pin(queue.get());
    let mut second = Box::pin(queue.get());
    assert!(poll!(&mut first).is_pending());
    assert!(poll!(&mut second).is_pending());
    queue.add(2, Lane::Event);
    drop(first);
    let taken = timeout(Duration::from_secs(1), second).await;
    assert_eq!(*taken.unwrap().unwrap().key(), 2);
}

/// A worker waits for the earliest delayed key, also for one that is added later.
#[tokio::test(start_paused = true)]
async fn an_earlier_key_moves_the_watch_forward() {
    let queue = Queue::new(&q3());
    queue.add_after(1, Lane::Event, 100 * MS);
    let start = Instant::now();
    let mut get = Box::pin(queue.get());
    assert!(poll!(&mut get).is_pending());
    queue.add_after(2, Lane::Event, 10 * MS);
    assert_eq!(*get.await.unwrap().key(), 2);
    assert_eq!(start.elapsed(), 10 * MS);
    assert_eq!(*queue.get().await.unwrap().key(), 1);
    assert_eq!(start.elapsed(), 100 * MS);
}

/// A worker that never has to wait for a key leaves room for other tasks on its thread.
#[tokio::test]
async fn a_busy_worker_lets_others_run() {
    let queue = Queue::new(&q3());
    for key in 0..1000 {
        queue.add(key, Lane::Background);
    }
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            while let Some(taken) = queue.get().await {
                taken.forget();
            }
        }
    });
    while queue.stats().depth[2] == 1000 {
        yield_now().await;
    }
    assert_ne!(queue.stats().depth[2], 0);
    queue.shut_down();
    worker.await.unwrap();
}

/// P2: after the shutdown nothing is taken any more, what runs may finish, and then it is drained.
#[tokio::test(start_paused = true)]
async fn p2_a_shutdown_lets_running_work_finish() {
    let queue = Queue::new(&q3());
    for key in 0..5 {
        queue.add(key, Lane::Event);
    }
    queue.add_after(5, Lane::Background, MS);
    let (running, failing) = (take(&queue), take(&queue));
    let mut drained = Box::pin(queue.drained());
    let idle = Queue::<u8>::new(&q3());
    let mut waiting = [Box::pin(idle.get()), Box::pin(idle.get())];
    for get in &mut waiting {
        assert!(poll!(get).is_pending());
    }
    assert!(poll!(&mut drained).is_pending());

    queue.shut_down();
    idle.shut_down();
    for get in waiting {
        assert!(timeout(MS, get).await.unwrap().is_none());
    }
    assert!(timeout(MS, queue.get()).await.unwrap().is_none());
    queue.add(9, Lane::Event);
    queue.add_after(9, Lane::Event, MS);
    assert!(poll!(&mut drained).is_pending());
    failing.add_rate_limited_after(Duration::ZERO);
    assert!(poll!(&mut drained).is_pending());
    running.forget();
    timeout(MS, drained).await.unwrap();
    let stats = queue.stats();
    assert_eq!(
        (stats.depth, stats.delayed, stats.processing),
        ([0; 3], 0, 0)
    );
}

// ---------- real threads ----------

/// Q1 with four threads on eight keys, some of whose work fails or is cut short: never two workers
/// on a key, and each key is worked on once more after its last change.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q1_holds_on_real_threads() {
    #[derive(Default)]
    struct Object {
        busy: AtomicBool,
        changed: AtomicUsize,
        seen: AtomicUsize,
    }
    let queue = Queue::<usize>::new(&Backoff {
        initial: MS / 10,
        max: MS,
        qps: 1e6,
        burst: 1000,
    });
    let objects = Arc::<[Object; 8]>::default();
    let clashes = Arc::new(AtomicUsize::new(0));
    let worker = || {
        let (queue, objects, clashes) = (queue.clone(), objects.clone(), clashes.clone());
        async move {
            let mut n = 0;
            while let Some(taken) = queue.get().await {
                let object = &objects[*taken.key()];
                clashes.fetch_add(usize::from(object.busy.swap(true, SeqCst)), SeqCst);
                let changed = object.changed.load(SeqCst);
                yield_now().await;
                object.busy.store(false, SeqCst);
                n += 1;
                if n % 5 == 0 {
                    taken.add_rate_limited_after(Duration::ZERO);
                } else {
                    object.seen.store(changed, SeqCst);
                    taken.forget();
                }
            }
        }
    };
    let workers: Vec<_> = (0..6).map(|_| tokio::spawn(worker())).collect();
    let adders: Vec<_> = (0..2)
        .map(|adder| {
            let (queue, objects) = (queue.clone(), objects.clone());
            tokio::spawn(async move {
                for n in 0..5000_usize {
                    let key = (n * 7 + adder) % objects.len();
                    objects[key].changed.fetch_add(1, SeqCst);
                    queue.add(key, Lane::ALL[n % 3]);
                    if n % 16 == 0 {
                        yield_now().await;
                    }
                }
            })
        })
        .collect();
    for adder in adders {
        adder.await.unwrap();
    }
    let idle = || {
        objects
            .iter()
            .all(|o| o.seen.load(SeqCst) == o.changed.load(SeqCst))
    };
    timeout(Duration::from_secs(30), async {
        while !idle() {
            sleep(MS).await;
        }
    })
    .await
    .expect("a change was lost");
    queue.shut_down();
    timeout(Duration::from_secs(30), queue.drained())
        .await
        .unwrap();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(clashes.load(SeqCst), 0, "two workers on one key");
}

/// Q1: a worker that is aborted in the middle of its work gives the key back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_an_aborted_worker_gives_its_key_back() {
    let queue = Queue::new(&q3());
    queue.add("ns/a", Lane::Event);
    let (taken, has_taken) = tokio::sync::oneshot::channel();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let _key = queue.get().await;
            taken.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    });
    has_taken.await.unwrap();
    queue.add("ns/a", Lane::Event);
    let mut next = Box::pin(queue.get());
    assert!(poll!(&mut next).is_pending());
    worker.abort();
    let next = timeout(Duration::from_secs(30), next).await;
    assert_eq!(*next.unwrap().unwrap().key(), "ns/a");
}
