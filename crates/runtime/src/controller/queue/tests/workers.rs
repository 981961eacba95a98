//! Workers that wait or are cancelled.

use super::*;

/// Polls `get` and counts its wake-ups.
async fn counted<T>(get: impl Future<Output = T>, polls: &AtomicUsize) -> T {
    let mut get = pin!(get);
    poll_fn(|cx| {
        polls.fetch_add(1, SeqCst);
        get.as_mut().poll(cx)
    })
    .await
}

/// A key wakes a single worker, even if many wait. A delayed key costs a few more wake-ups: a worker that leaves wakes another
/// worker, which then waits for the delayed key.
#[tokio::test(start_paused = true)]
async fn a_key_wakes_one_worker() {
    let queue = queue();
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

/// After the cancellation of the worker that watches the next delayed key, another worker takes over.
#[tokio::test(start_paused = true)]
async fn another_worker_watches_the_delayed_key_after_a_cancellation() {
    let queue = queue();
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

    // So it does if the worker was cancelled after its wake-up, before it took the key.
    let mut first = Box::pin(queue.get());
    let mut second = Box::pin(queue.get());
    assert!(poll!(&mut first).is_pending());
    assert!(poll!(&mut second).is_pending());
    queue.add(2, Lane::Event);
    drop(first);
    let taken = timeout(Duration::from_secs(1), second).await;
    assert_eq!(*taken.unwrap().unwrap().key(), 2);
}

/// A worker waits for the earliest delayed key, even if that is added later.
#[tokio::test(start_paused = true)]
async fn an_earlier_key_moves_the_watch_forward() {
    let queue = queue();
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

/// A worker that never waits for a key lets other tasks run on its thread.
#[tokio::test]
async fn a_busy_worker_lets_others_run() {
    let queue = queue();
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

/// After the shutdown no key is taken. Attempts in progress can finish; then the queue is drained.
#[tokio::test(start_paused = true)]
async fn p2_a_shutdown_lets_running_work_finish() {
    let queue = queue();
    for key in 0..5 {
        queue.add(key, Lane::Event);
    }
    queue.add_after(5, Lane::Background, MS);
    let (running, failing) = (take(&queue), take(&queue));
    let mut drained = Box::pin(queue.drained());
    let idle = super::queue::<u8>();
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

/// Four threads, eight keys, and some attempts that fail: two workers never have the same key, and every key has an attempt
/// after its last change.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q1_holds_on_real_threads() {
    #[derive(Default)]
    struct Object {
        busy: AtomicBool,
        changed: AtomicUsize,
        seen: AtomicUsize,
    }
    let backoff = Backoff {
        initial: MS / 10,
        max: MS,
        qps: 1e6,
        burst: 1000,
    };
    let queue = Queue::<usize>::new(&backoff, 6, |_| "");
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

/// A worker that is aborted during its attempt releases its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_an_aborted_worker_releases_its_key() {
    let queue = queue();
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
