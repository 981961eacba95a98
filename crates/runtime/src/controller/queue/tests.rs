//! Compares the queue with its model, checks delays on paused time, and runs workers on real threads.

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
    model::{self, Key, Model},
    *,
};
use crate::config::backoff::Delays;

const MS: Duration = Duration::from_millis(1);

/// Default backoff.
fn q3() -> Backoff {
    Backoff {
        initial: 5 * MS,
        max: Duration::from_secs(1000),
        qps: 50.0,
        burst: 300,
    }
}

/// Returns a queue with one namespace and more workers than a test needs.
fn queue<K: Clone + Eq + Hash>() -> Queue<K> {
    Queue::new(&q3(), 1000, |_| "")
}

/// Returns the next key, if one is ready.
fn try_take<K: Clone + Eq + Hash>(queue: &Queue<K>) -> Option<WorkItem<K>> {
    unconstrained(queue.get()).now_or_never().flatten()
}

/// Returns the next key, which must be ready.
fn take<K: Clone + Eq + Hash>(queue: &Queue<K>) -> WorkItem<K> {
    try_take(queue).unwrap()
}

/// Adds `key`, takes it and fails it. Returns the delay of its retry.
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
    AddAnew(Key),
    Resync(Key, u64),
    StatusChange(Key),
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
        10 => key().prop_map(Op::AddAnew),
        10 => (key(), 0..30_u64).prop_map(|(k, longest)| Op::Resync(k, longest)),
        20 => key().prop_map(Op::StatusChange),
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

/// The queue and the model, side by side.
struct Both {
    queue: Queue<Key>,
    model: Model,
    held: Vec<WorkItem<Key>>,
    /// Keys that were added and not handed out since.
    owed: BTreeSet<Key>,
    /// End of the `Retry-After` of each key.
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
            Op::AddAnew(key) => {
                queue.add_anew(*key);
                model.add_anew(*key);
                self.owed.insert(*key);
            }
            Op::Resync(key, longest) => {
                queue.resync(*key, Duration::from_millis(*longest));
                model.resync(*key, *longest);
                self.owed.insert(*key);
            }
            Op::StatusChange(key) => {
                let is_deferred = queue.defer_to_retry(key);
                assert_eq!(is_deferred, model.defer_to_retry(*key));
                if !is_deferred {
                    queue.add(*key, Lane::Event);
                    model.add(*key, Lane::Event);
                    self.owed.insert(*key);
                }
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
                queue.heartbeat(key);
                model.heartbeat(*key);
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
                    assert_eq!(taken.requeue_rate_limited(), expected);
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
        // At the end, every added key is handed out, and no record of a key remains.
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
        while let Some(taken) = try_take(&both.queue) {
            taken.forget();
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

    /// The queue behaves like the model.
    #[test]
    fn q1_q3_the_queue_behaves_like_the_model(ops in prop::collection::vec(op(), 1..150)) {
        side_by_side(&ops);
    }

    /// The queue behaves like the model while a few keys change all the time.
    #[test]
    fn q3_paces_as_the_model_does(ops in prop::collection::vec(op_of_few(), 300..600)) {
        side_by_side(&ops);
    }

    /// The fairness bound holds under a storm on all lanes: the model counts the turns of every key.
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

/// Operations on a few keys that change all the time, so that the change limit applies.
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

// ---------- delays ----------

/// The delay doubles from 5 ms to 1000 s, and the key is ready exactly at its end.
#[tokio::test(start_paused = true)]
async fn q3a_delay_doubles_from_5_ms_to_1000_s() {
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

/// Delays stay finite with any number of failures and any configuration.
#[tokio::test(start_paused = true)]
async fn q3a_delays_are_always_finite() {
    let mut odd = q3();
    assert_eq!(Delays::new(odd.initial, odd.max).after(u32::MAX), odd.max);
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

/// The bucket admits 300 retries without delay, then 50 per second, over all objects. The longer of the two delays counts, and
/// tokens return with time.
#[tokio::test(start_paused = true)]
async fn q3a_bucket_is_shared_by_all_retries() {
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
    // 194 s of debt: 9,700 tokens at 50 per second. After that, one more second for 50 tokens.
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

/// A resync does not shorten the delay of a key that keeps failing; a change does.
#[tokio::test(start_paused = true)]
async fn q3a_resync_does_not_shorten_a_delay() {
    // Not even if the key is added during its attempt.
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

/// A success and `forget` reset the failures; a drop does not.
#[tokio::test(start_paused = true)]
async fn q3a_success_resets_the_delay() {
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

/// Quiet retries have their own backoff and do not change the count of failures. A failure resets the backoff of quiet retries.
#[tokio::test(start_paused = true)]
async fn q3b_quiet_retries_are_not_failures() {
    let queue = queue();
    for ms in [5, 10, 20, 40] {
        assert_eq!(fail(&queue, 1), ms * MS);
    }
    let quietly = || {
        queue.add(1, Lane::Event);
        let taken = take(&queue);
        (taken.failures(), taken.requeue_rate_limited())
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

/// A change replaces the delayed retry; the count of failures remains.
#[tokio::test(start_paused = true)]
async fn q3c_change_bypasses_the_delayed_retry() {
    let queue = queue();
    fail(&queue, 1);
    assert_eq!(queue.stats().delayed, 1);
    queue.add(1, Lane::Event);
    assert_eq!(queue.stats().delayed, 0);
    let taken = take(&queue);
    assert_eq!((taken.lane(), taken.failures()), (Lane::Event, 1));
    // A change during the attempt replaces the retry.
    queue.add(1, Lane::Event);
    assert_eq!(taken.add_rate_limited_after(Duration::ZERO), Duration::ZERO);
    let taken = take(&queue);
    assert_eq!((taken.lane(), taken.failures()), (Lane::Event, 2));
    assert_eq!(taken.add_rate_limited_after(Duration::ZERO), 20 * MS);
}

/// Nothing shortens a `Retry-After`, and it delays no other key.
#[tokio::test(start_paused = true)]
async fn q3g_nothing_shortens_retry_after() {
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
            // A change determines the lane.
            let has_changed = [before, after].iter().any(|change| [1, 2].contains(change));
            let lane = if has_changed {
                Lane::Event
            } else {
                Lane::Retry
            };
            assert_eq!((taken.lane(), taken.failures()), (lane, 1));
            assert_eq!(queue.stats().delayed, 0);
            // After that, a change shortens a delay as usual.
            taken.add_rate_limited_after(Duration::ZERO);
            queue.add(1, Lane::Event);
            assert_eq!(*take(&queue).key(), 1);
        }
    }
    // If the object's own backoff is longer, a change waits only for the `Retry-After`.
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

/// An object that fails and keeps changing does not delay the retries of others: the unused tokens return to the bucket.
#[tokio::test(start_paused = true)]
async fn q3a_replaced_retries_return_their_tokens() {
    let queue = queue();
    for key in 0..300 {
        fail(&queue, key + 10);
    }
    for _ in 0..change_limit::BURST {
        fail(&queue, 1);
    }
    assert!(fail(&queue, 2) <= 40 * MS);
}

/// The earliest of several delayed adds counts.
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

// ---------- change limit ----------

/// A key that changes during each attempt has a burst of attempts, then one per second. It delays no other key, and no record of
/// it remains in the end. This holds for failed and for successful attempts.
#[tokio::test(start_paused = true)]
async fn q3e_key_that_always_changes_is_paced() {
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

/// Forty keys change whenever they are taken, and there is one worker. Every other key is handed out within the fairness bound,
/// on each lane.
#[tokio::test(start_paused = true)]
async fn hot_keys_do_not_starve_other_keys() {
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

/// A reason that no attempt has seen shortens the delay of a success, also if the attempt is still in progress, but no
/// backoff.
#[tokio::test(start_paused = true)]
async fn an_add_anew_shortens_no_backoff() {
    let hour = Duration::from_hours(1);
    let queue = queue();
    queue.add(1, Lane::Event);
    take(&queue).complete(Outcome::After(hour));
    queue.add(1, Lane::Background);
    assert!(try_take(&queue).is_none());
    queue.add_anew(1);
    let taken = take(&queue);
    assert_eq!(taken.lane(), Lane::Background);
    queue.add_anew(1);
    taken.complete(Outcome::After(hour));
    take(&queue).complete(Outcome::Done);
    assert!(try_take(&queue).is_none());
    advance(2 * hour).await;
    assert!(try_take(&queue).is_none());

    fail(&queue, 1);
    queue.add_anew(1);
    assert!(try_take(&queue).is_none());
}
