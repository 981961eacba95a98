//! The queue against its model, its delays on paused time, and its workers on real threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test panics")]

mod slow;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
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
    backoff::Delays,
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

/// A queue of one namespace, for more workers than a test has.
fn queue<K: Clone + Eq + Hash>() -> Queue<K> {
    Queue::new(&q3(), 1000, |_| "")
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
    Resync(Key, u64),
    Get,
    GetsOn(Key),
    Succeed(usize),
    Retry(usize, u64),
    RetryQuietly(usize),
    PutOff(usize, u64),
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
        10 => (key(), 0..30_u64).prop_map(|(k, longest)| Op::Resync(k, longest)),
        60 => Just(Op::Get),
        10 => key().prop_map(Op::GetsOn),
        10 => held().prop_map(Op::Succeed),
        25 => held().prop_map(|h| Op::Retry(h, 0)),
        5 => (held(), 1..50_u64).prop_map(|(h, least)| Op::Retry(h, least)),
        5 => held().prop_map(Op::RetryQuietly),
        10 => (held(), 0..50_u64).prop_map(|(h, d)| Op::PutOff(h, d)),
        10 => held().prop_map(Op::Drop),
        3 => key().prop_map(Op::Forget),
        30 => (0..30_u64).prop_map(Op::Advance),
        5 => prop_oneof![9 => 990..1010_u64, 1 => 59_990..60_010_u64].prop_map(Op::Advance),
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
    /// When a key may be handed out again for which the API server asked to wait.
    not_before: BTreeMap<Key, Instant>,
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
            Op::Resync(key, longest) => {
                queue.resync(*key, Duration::from_millis(*longest));
                model.resync(*key, *longest);
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
                    let not_before = self.not_before.remove(taken.key());
                    assert!(not_before <= Some(Instant::now()), "{:?}", taken.key());
                    self.held.push(taken);
                }
            }
            Op::GetsOn(key) => {
                queue.gets_on(key);
                model.gets_on(*key);
            }
            Op::Succeed(i) => {
                if let Some(taken) = self.give_back(*i) {
                    self.model.forget(*taken.key());
                    self.model.release(*taken.key());
                    taken.forget();
                }
            }
            Op::Retry(i, least) => {
                if let Some(taken) = self.give_back(*i) {
                    let key = *taken.key();
                    self.owed.insert(key);
                    let expected = self.model.retry(key, *least);
                    let least = Duration::from_millis(*least);
                    assert_eq!(taken.add_rate_limited_after(least), expected);
                    self.not_before.insert(key, Instant::now() + least);
                }
            }
            Op::RetryQuietly(i) => {
                if let Some(taken) = self.give_back(*i) {
                    self.owed.insert(*taken.key());
                    let expected = self.model.retry_quietly(*taken.key());
                    assert_eq!(taken.add_rate_limited_quietly(), expected);
                }
            }
            Op::PutOff(i, ms) => {
                if let Some(taken) = self.give_back(*i) {
                    self.owed.insert(*taken.key());
                    let expected = self.model.put_off(*taken.key(), *ms);
                    assert_eq!(taken.add_after(Duration::from_millis(*ms)), expected);
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
            queue: Queue::new(&model::backoff(), model::WORKERS, |key| {
                model::namespace(*key)
            }),
            model: Model::default(),
            held: Vec::new(),
            owed: BTreeSet::new(),
            not_before: BTreeMap::new(),
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
        advance(Duration::from_secs(100)).await;
        let _ = both.queue.stats();
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

    /// Q3: so it does where keys change ever so often.
    #[test]
    fn q3_paces_as_the_model_does(ops in prop::collection::vec(op_of_few(), 300..600)) {
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

/// Of a few keys that change all the time, so that each has a pace.
fn op_of_few() -> impl Strategy<Value = Op> {
    let key = || 0..2_u8;
    let held = || 0..2_usize;
    prop_oneof![
        40 => key().prop_map(|k| Op::Add(k, Lane::Event)),
        5 => key().prop_map(|k| Op::Add(k, Lane::Background)),
        5 => (key(), 0..2000_u64).prop_map(|(k, d)| Op::AddAfter(k, Lane::Event, d)),
        40 => Just(Op::Get),
        10 => held().prop_map(Op::Succeed),
        10 => (held(), 0..2000_u64).prop_map(|(h, least)| Op::Retry(h, least.saturating_sub(1500))),
        5 => held().prop_map(Op::RetryQuietly),
        5 => (held(), 0..2000_u64).prop_map(|(h, d)| Op::PutOff(h, d)),
        10 => held().prop_map(Op::Drop),
        10 => (0..400_u64).prop_map(Op::Advance),
    ]
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
    let queue = queue();
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
            let queue = Queue::new(&odd, 2, |_| "");
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
    let queue = queue();
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
    // Of what fails slowly, either: it is added while it is with its worker.
    let queue = queue();
    queue.add(1, Lane::Background);
    for backoff in [5, 10, 20] {
        let taken = queue.get().await.unwrap();
        queue.add(1, Lane::Background);
        assert_eq!(taken.add_rate_limited_after(Duration::ZERO), backoff * MS);
    }
    let taken = queue.get().await.unwrap();
    queue.add(1, Lane::Background);
    queue.add_after(1, Lane::Background, 7 * MS);
    assert_eq!(taken.add_after(70 * MS), 7 * MS);

    let queue = self::queue();
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
    let queue = queue();
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

/// Q3: what is no failure backs off by itself, however often the key has failed before, and neither is forgotten for the other;
/// a failure begins it anew, so that no key that fails between is tried ever so often.
#[tokio::test(start_paused = true)]
async fn q3_what_is_no_failure_is_not_counted_as_one() {
    let queue = queue();
    for ms in [5, 10, 20, 40] {
        assert_eq!(fail(&queue, 1), ms * MS);
    }
    let quietly = || {
        queue.add(1, Lane::Event);
        let taken = take(&queue);
        (taken.failures(), taken.add_rate_limited_quietly())
    };
    for ms in [5, 10, 20] {
        assert_eq!(quietly(), (4, ms * MS));
    }
    assert_eq!(fail(&queue, 1), 80 * MS);
    assert_eq!(quietly(), (5, 5 * MS));
    queue.add(1, Lane::Event);
    take(&queue).forget();
    assert_eq!(queue.stats().failing, 0);
    assert_eq!(quietly(), (0, 5 * MS));
}

/// A change does not wait for the retry, which is then not made; the failures stay counted.
#[tokio::test(start_paused = true)]
async fn q3_a_change_overtakes_the_delayed_retry() {
    let queue = queue();
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

/// Q3: what the API server asks for is waited for, whatever happens to the object meanwhile; others do not wait.
#[tokio::test(start_paused = true)]
async fn q3_nothing_overtakes_what_the_api_server_asks_for() {
    const ASKED: Duration = Duration::from_secs(10);
    type Change = fn(&Queue<usize>);
    let changes: [Change; 4] = [
        |_| {},
        |queue| queue.add(1, Lane::Event),
        |queue| queue.add_after(1, Lane::Event, 5 * MS),
        |queue| queue.add(1, Lane::Background),
    ];
    for (before, change) in changes.iter().enumerate() {
        for (after, again) in changes.iter().enumerate() {
            let queue = queue();
            queue.add(1, Lane::Event);
            let taken = take(&queue);
            change(&queue);
            let failed = Instant::now();
            assert_eq!(taken.add_rate_limited_after(ASKED), ASKED);
            advance(ASKED / 2).await;
            again(&queue);
            queue.add(2, Lane::Event);
            assert_eq!(*take(&queue).key(), 2);
            let taken = queue.get().await.unwrap();
            assert_eq!(failed.elapsed(), ASKED, "{before} {after}");
            // It is what changed, where anything did.
            let has_changed = [before, after].iter().any(|change| [1, 2].contains(change));
            let lane = if has_changed {
                Lane::Event
            } else {
                Lane::Retry
            };
            assert_eq!((taken.lane(), taken.failures()), (lane, 1));
            assert_eq!(queue.stats().delayed, 0);
            // From then on, a change overtakes a delay as always.
            taken.add_rate_limited_after(Duration::ZERO);
            queue.add(1, Lane::Event);
            assert_eq!(*take(&queue).key(), 1);
        }
    }
    // Where the object's own backoff is longer, what it asks for is all that a change waits for.
    let queue = queue();
    for _ in 0..change_limit::BURST - 1 {
        fail(&queue, 1);
    }
    queue.add(1, Lane::Event);
    let failed = Instant::now();
    assert_eq!(
        take(&queue).add_rate_limited_after(ASKED),
        1000 * ASKED / 10
    );
    queue.add(1, Lane::Event);
    assert_eq!(queue.get().await.unwrap().lane(), Lane::Event);
    assert_eq!(failed.elapsed(), ASKED);
}

/// An object that fails and changes all the time keeps no other one from its retry: what it
/// borrowed from the bucket and did not use comes back.
#[tokio::test(start_paused = true)]
async fn q3_overtaken_retries_leave_no_debt() {
    let queue = queue();
    for key in 0..300 {
        fail(&queue, key + 10);
    }
    for _ in 0..change_limit::BURST {
        fail(&queue, 1);
    }
    assert!(fail(&queue, 2) <= 40 * MS);
}

/// Of several delayed adds the earliest counts.
#[tokio::test(start_paused = true)]
async fn q1_delayed_adds_collapse_to_the_earliest() {
    let queue = queue();
    let start = Instant::now();
    queue.add_after(1, Lane::Background, 30 * MS);
    queue.add_after(1, Lane::Retry, 10 * MS);
    queue.add_after(1, Lane::Event, 20 * MS);
    let taken = queue.get().await.unwrap();
    assert_eq!((start.elapsed(), taken.lane()), (10 * MS, Lane::Retry));
    taken.forget();
    assert!(timeout(100 * MS, queue.get()).await.is_err());
}

// ---------- pace ----------

/// Q3: what changes whenever it is worked on, whether that fails or not, is worked on at once a few times, and then once in a second,
/// and is not forgotten for that; no other key waits with it, nor is anything kept of it once it is left alone.
#[tokio::test(start_paused = true)]
async fn q3_what_changes_at_each_try_is_paced() {
    for (fails, before) in [(false, false), (false, true), (true, false), (true, true)] {
        let (queue, begun) = (queue(), Instant::now());
        let mut times = Vec::new();
        queue.add(1, Lane::Event);
        while begun.elapsed() < 300 * change_limit::INTERVAL {
            let taken = timeout(change_limit::INTERVAL, queue.get()).await;
            let taken = taken.unwrap().unwrap();
            times.push(begun.elapsed());
            advance(MS).await;
            if before {
                queue.add(1, Lane::Event);
            }
            if fails {
                taken.add_rate_limited_after(Duration::ZERO);
            } else {
                taken.forget();
            }
            queue.add(1, Lane::Event);
            if times.len() > 30 {
                assert!(try_take(&queue).is_none());
                queue.add(2, Lane::Event);
                take(&queue).forget();
            }
        }
        let burst = usize::try_from(change_limit::BURST).unwrap();
        assert!(times[burst - 1] < change_limit::BURST * MS, "{times:?}");
        assert!(times[burst] >= change_limit::INTERVAL, "{times:?}");
        assert!(times.len() <= burst + 300, "{}", times.len());
        queue.get().await.unwrap().forget();
        sleep(100 * change_limit::INTERVAL).await;
        assert_eq!(queue.stats().delayed, 0);
        assert!(queue.0.state.lock().is_empty(), "something is left");
    }
}

// ---------- fairness ----------

/// 40 hot keys, each changed again as soon as it is taken, and one worker: every other key is
/// handed out within the bound of the module's docs, whatever its lane.
#[tokio::test(start_paused = true)]
async fn hot_keys_starve_nobody() {
    const HOT: usize = 40;
    let queue = queue();
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
