//! Namespaces where attempts hang, and the delay of all others.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;
use crate::controller::queue::slow_namespaces::{HUNG, REMEMBERED};

/// Longest duration of a write.
const HANG: Duration = Duration::from_secs(10);

/// Normal duration of a write.
const FAST: Duration = Duration::from_millis(10);

/// How the keys of a hanging namespace enter the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Together, then by their retries.
    Retries,
    /// At the start of a term and at each resync.
    Resync,
    /// By frequent changes.
    Changed,
    /// By frequent creation of new keys.
    New,
    /// By frequent changes, beside a key with nothing to do.
    AtRest,
}

const SHAPES: [Shape; 5] = [
    Shape::Retries,
    Shape::Resync,
    Shape::Changed,
    Shape::New,
    Shape::AtRest,
];

fn namespace(key: &str) -> &str {
    key.split_once('/').unwrap().0
}

/// Queue with workers. An attempt in a hanging namespace takes [`HANG`], then fails or succeeds.
struct World {
    queue: Queue<String>,
    hanging: Arc<Mutex<BTreeSet<String>>>,
    /// Time, wait and namespace of each key that did not hang.
    waits: Arc<Mutex<Vec<(Instant, Duration, String)>>>,
    begun: Instant,
}

impl World {
    fn new(workers: u32, hanging: &[String], fails: bool) -> Self {
        let world = Self {
            queue: Queue::new(&q3(), workers, |key| namespace(key)),
            hanging: Arc::new(Mutex::new(hanging.iter().cloned().collect())),
            waits: Arc::default(),
            begun: Instant::now(),
        };
        for _ in 0..workers * 2 {
            let (queue, waits) = (world.queue.clone(), Arc::clone(&world.waits));
            let hanging = Arc::clone(&world.hanging);
            tokio::spawn(async move {
                while let Some(item) = queue.get().await {
                    let name = namespace(item.key()).to_owned();
                    let hangs = hanging.lock().contains(&name) && !item.key().ends_with("rest");
                    if hangs {
                        sleep(HANG).await;
                        if fails {
                            item.add_rate_limited_after(Duration::ZERO);
                        } else {
                            item.forget();
                        }
                    } else {
                        let entry = (Instant::now(), item.waited(), name);
                        waits.lock().push(entry);
                        sleep(FAST).await;
                        item.forget();
                    }
                }
            });
        }
        world
    }

    /// Adds the keys of each namespace for this second.
    fn trouble(&self, names: &[String], shape: Shape, keys: usize, second: usize) {
        let add = |number: usize, lane| {
            for name in names {
                self.queue.add(format!("{name}/{number}"), lane);
            }
        };
        match shape {
            Shape::Retries if second == 0 => (0..keys).for_each(|n| add(n, Lane::Event)),
            Shape::Resync if second.is_multiple_of(30) => {
                (0..keys).for_each(|n| add(n, Lane::Background));
            }
            Shape::Retries | Shape::Resync => {}
            Shape::Changed => (0..keys).for_each(|n| add(n, Lane::Event)),
            Shape::New => (0..=keys / 50).for_each(|n| add(n + second * keys, Lane::Event)),
            Shape::AtRest => {
                (0..keys).for_each(|n| add(n, Lane::Event));
                for name in names {
                    self.queue.add(format!("{name}/rest"), Lane::Event);
                }
            }
        }
    }

    /// Returns the longest wait of a key that was added at least `after` from the start, in a namespace that does not hang.
    fn longest(&self, after: Duration) -> Duration {
        let waits = self.waits.lock();
        let hanging = self.hanging.lock();
        let counted = waits.iter().filter(|(at, waited, name)| {
            !hanging.contains(name) && *at - *waited >= self.begun + after
        });
        counted.map(|(_, waited, _)| *waited).max().unwrap()
    }

    fn stop(&self) {
        self.queue.shut_down();
    }
}

fn names(number: usize) -> Vec<String> {
    (0..number).map(|n| format!("bad{n}")).collect()
}

/// When a namespace starts to hang, other keys wait for a second, once. If several start together, other keys wait for the
/// first attempts in each of them. The number of hanging keys, their arrival and their outcome make no difference.
#[tokio::test(start_paused = true)]
async fn q7_a_hanging_namespace_delays_others_once() {
    for (shape, fails) in SHAPES
        .iter()
        .flat_map(|shape| [(*shape, true), (*shape, false)])
    {
        for (workers, bad, keys) in [
            (1, 1, 2),
            (1, 1, 50),
            (2, 1, 2),
            (2, 1, 5),
            (2, 1, 50),
            (2, 1, 500),
            (2, 3, 50),
            (3, 1, 50),
            (8, 1, 500),
            (8, 5, 20),
        ] {
            let names = names(bad);
            let world = World::new(workers, &names, fails);
            let seconds = 10 * bad + 60;
            for second in 0..seconds {
                world.trouble(&names, shape, keys, second);
                world.queue.add(format!("good/{second}"), Lane::Event);
                world.queue.add(format!("fine/{second}"), Lane::Background);
                sleep(Duration::from_secs(1)).await;
            }
            let first = match bad {
                1 => HUNG,
                _ => HANG * u32::try_from(bad).unwrap(),
            };
            let case =
                format!("{shape:?}, fails: {fails}, {workers} workers, {bad} namespaces of {keys}");
            let all = world.longest(Duration::ZERO);
            assert!(all <= first + 100 * FAST, "{case}: waited {all:?}");
            let later = world.longest(first + HANG);
            assert!(later <= 10 * FAST, "{case}: waited {later:?} again");
            let done = world
                .waits
                .lock()
                .iter()
                .filter(|(.., n)| !names.contains(n))
                .count();
            assert_eq!(done, 2 * seconds, "{case}");
            world.stop();
        }
    }
}

/// A namespace recovers while another still hangs. Hanging keys are still attempted.
#[tokio::test(start_paused = true)]
async fn q7_a_recovered_namespace_is_no_longer_slow() {
    for workers in [2, 8] {
        let names = names(2);
        let world = World::new(workers, &names, true);
        for key in 0..500 {
            world.queue.add(format!("bad0/{key}"), Lane::Event);
        }
        for key in 0..5 {
            world.queue.add(format!("bad1/{key}"), Lane::Event);
        }
        let is_slow = |name: &str| {
            let key = format!("{name}/0");
            world.queue.0.state.lock().is_slow(&key)
        };
        let begun = Instant::now();
        while !(is_slow("bad0") && is_slow("bad1")) {
            assert!(begun.elapsed() <= 4 * HANG);
            sleep(FAST).await;
        }
        world.hanging.lock().remove("bad1");
        let well = Instant::now();
        while is_slow("bad1") {
            // Each of its keys takes turns with the keys of the other namespace.
            assert!(well.elapsed() <= 12 * HANG);
            sleep(FAST).await;
        }
        let since = world.begun.elapsed();
        for second in 0..100 {
            world.queue.add(format!("bad1/{second}"), Lane::Event);
            sleep(Duration::from_secs(1)).await;
        }
        let longest = world.longest(since);
        assert!(longest <= 10 * FAST, "{longest:?}");

        world.hanging.lock().clear();
        sleep(HANG * 200).await;
        assert_eq!(world.queue.stats().delayed, 0);
        assert!(world.queue.0.state.lock().is_empty(), "something is left");
        let mut done = BTreeMap::<_, usize>::new();
        for (.., name) in &*world.waits.lock() {
            *done.entry(name.clone()).or_default() += 1;
        }
        assert!(done["bad0"] >= 500 && done["bad1"] >= 105, "{done:?}");
        world.stop();
    }
}

/// A namespace stays slow for a minute after a slow attempt that succeeded, even if other attempts there succeed faster.
#[tokio::test(start_paused = true)]
async fn q7_a_namespace_stays_slow_for_a_minute_after_a_slow_success() {
    let queue = Queue::new(&q3(), 2, |_: &usize| "bad");
    queue.add(0, Lane::Event);
    let hangs = take(&queue);
    let is_slow = || {
        let _ = queue.stats();
        queue.0.state.lock().is_slow(&0)
    };
    advance(HUNG.saturating_sub(MS)).await;
    assert!(!is_slow());
    advance(MS).await;
    assert!(is_slow(), "while it is with its worker");
    advance(HANG).await;
    hangs.forget();
    for _ in 0..6 {
        for key in [0, 1] {
            queue.add(key, Lane::Background);
            take(&queue).forget();
        }
        assert!(is_slow());
        advance(REMEMBERED / 6).await;
    }
    assert!(!is_slow());
}

/// Slow namespaces have their share of the workers and no more, with and without other keys in the queue.
#[tokio::test(start_paused = true)]
async fn q7_slow_namespaces_get_their_share_of_the_workers() {
    for workers in [1, 2, 3, 8] {
        let most = usize::try_from(workers).unwrap();
        let queue = Queue::new(&q3(), workers, |key: &usize| ["bad", "good"][key % 2]);
        queue.add(0, Lane::Event);
        let hung = take(&queue);
        advance(HANG).await;
        hung.add_rate_limited_after(Duration::ZERO);
        for key in 0..200 {
            queue.add(key, Lane::ALL[key % 3]);
        }
        let mut held = Vec::new();
        let mut bad = 0;
        while let Some(item) = try_take(&queue) {
            if item.key() % 2 == 0 {
                bad += 1;
                held.push(item);
            } else {
                item.forget();
            }
        }
        assert_eq!((bad, queue.stats().depth.iter().sum()), (most, 100 - most));
        assert!(!queue.is_busy(Lane::Background), "others need not mind");
        // The end of one attempt makes room for one other.
        held.pop();
        held.push(take(&queue));
        assert!(try_take(&queue).is_none());
    }
}
