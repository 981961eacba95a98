//! One process: the shipped `run` in its own runtime. The world advances the clock.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider};
use operator_runtime::{
    Config, Host, client::Cluster, election::Clock, telemetry::metrics::Metrics,
};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    time::{Instant, advance, sleep, sleep_until},
};

use super::{
    network::{Limits, Wire},
    outside::Place,
    plan::{Machine, Settings, draw},
    program::Program,
    record::{self, Record},
    trace::{End, Role, Sizes, Time, Who},
};

/// Time of day at the start of a world.
pub const BEGIN: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Uptime of the machines at that time.
const UPTIME: Duration = Duration::from_hours(1000);

/// The only future of the process. It is polled when it is woken, and not at each step.
type Root = FuturesUnordered<LocalBoxFuture<'static, Result<(), String>>>;

/// Limit for clock reads at one instant, which no process has a reason to reach.
const SPINS: u64 = 1_000_000;

/// A running process.
pub struct Replica {
    pub who: Who,
    pub wire: Wire,
    pub limits: [Limits; 2],
    /// `None` once dropped.
    inside: Option<(Runtime, Root)>,
    stop: Option<oneshot::Sender<()>>,
    zero: Instant,
    times: Times,
    clocks: Arc<Clocks>,
    metrics: Metrics,
    /// Held because metrics stop without it.
    _meters: SdkMeterProvider,
}

/// Conversion between the world's time and the process's.
#[derive(Clone, Copy)]
struct Times {
    born: Time,
    /// Milliseconds of the process per second of the world.
    rate: u32,
    /// Total sleep of its machine, in the world's time.
    asleep: Duration,
}

/// Clocks that faults can change.
#[derive(Default)]
struct Clocks {
    /// Total sleep, in microseconds of its own time.
    asleep: AtomicU64,
    /// Offset of the time of day, in milliseconds.
    wall: AtomicI64,
    /// When the time of day stopped, in milliseconds of its own time; 0 while it runs.
    still: AtomicU64,
    looks: AtomicI64,
    drawn: AtomicU64,
    /// Reads of the clock of deadlines at `read_at`, its own time in microseconds.
    reads: AtomicU64,
    read_at: AtomicU64,
}

impl Clocks {
    /// Counts a read. Panics if the process is in a busy loop, because its step would never end.
    fn read(&self, at: u64) {
        if self.read_at.swap(at, Relaxed) != at {
            self.reads.store(0, Relaxed);
        }
        let reads = self.reads.fetch_add(1, Relaxed);
        assert!(
            reads < SPINS,
            "the clock was read {SPINS} times at one instant"
        );
    }
}

impl Times {
    fn local(self, at: Time) -> Duration {
        let lived = at.saturating_sub(self.born + self.asleep);
        lived * self.rate / 1000
    }

    fn world(self, local: Duration) -> Time {
        let world = self.born + self.asleep + local * 1000 / self.rate;
        // Whole microseconds, so that both conversions agree.
        Duration::from_micros(u64::try_from(world.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Results of a step, with the world's time.
pub struct Stepped {
    pub records: Vec<(Time, Record)>,
    pub end: Option<End>,
}

impl Replica {
    /// Starts a process in the pod with this name and UID.
    pub fn boot(
        (seed, program): (u64, &'static dyn Program),
        who: Who,
        (pod, uid): (&str, &str),
        born: Time,
        machine: Machine,
        place: &Place<'_>,
    ) -> Self {
        let settings = place.settings;
        let rt = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let rt = rt.expect("a runtime");
        let zero = rt.block_on(async {
            sleep(Duration::from_millis(1)).await;
            Instant::now()
        });
        let times = Times {
            born,
            rate: machine.rate,
            asleep: Duration::ZERO,
        };
        let clocks = Arc::new(Clocks::default());
        clocks.wall.store(machine.wall, Relaxed);
        let config = config(program, program.installation(who.replica), settings);
        let limits = [Role::Work, Role::Lease].map(|role| Limits::of(&config, role));
        let wire = Wire::default();
        let (stop, stopped) = oneshot::channel();
        let host = host(
            &clocks,
            zero,
            times,
            seed,
            who,
            [("POD_NAME", pod), ("POD_UID", uid)],
        );
        let cluster = Cluster {
            server: http::Uri::from_static("https://api.simulation"),
            namespace: "default".to_owned(),
            requests: wire.transport(Role::Work, limits[0]),
            lease: wire.transport(Role::Lease, limits[1]),
            pod_namespace: Some(program.system().to_owned()),
        };
        let (settings, systems) = (settings.clone(), place.systems.cloned());
        let (metrics, meters) =
            Metrics::new(program.app(), Resource::builder_empty().build(), None);
        let its_metrics = metrics.clone();
        let root = async move {
            let metrics = its_metrics;
            let stopped = stopped.map(drop);
            let place = Place {
                settings: &settings,
                systems: systems.as_ref(),
                who,
            };
            let build = |builder: &mut _| program.build(builder, &place);
            let ended = operator_runtime::run(&host, cluster, config, metrics, stopped, build);
            ended.await.map_err(|error| error.to_string())
        };
        Self {
            who,
            wire,
            limits,
            inside: Some((rt, Root::from_iter([root.boxed_local()]))),
            stop: Some(stop),
            zero,
            times,
            clocks,
            metrics,
            _meters: meters,
        }
    }

    /// Returns the sizes from its metrics.
    pub fn sizes(&self) -> Option<Sizes> {
        let (rt, _) = self.inside.as_ref()?;
        let _inside = rt.enter();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "numbers of objects"
        )]
        let series = |metric: &str| {
            let values = self.metrics.values(metric).into_iter();
            values.map(|(label, value)| (label, value as usize))
        };
        let queues = series("workqueue_depth");
        Some(Sizes {
            queue: (queues.len() > 0).then(|| queues.map(|(_, depth)| depth).sum()),
            caches: series("_cache_objects").collect(),
        })
    }

    /// Runs the process up to the world's time `to`.
    pub fn step(&mut self, to: Time) -> Stepped {
        let until = self.zero + whole_ms(self.times.local(to));
        self.turn(|rt, root| {
            rt.block_on(async {
                tokio::select! {
                    biased;
                    Some(ended) = root.next() => Some(ended),
                    () = sleep_until(until) => None,
                }
            })
        })
    }

    /// SIGCONT at the world's time `now`. The timers that have expired in the meantime fire now, late and all together.
    pub fn thaw(&mut self, now: Time) -> Stepped {
        let at = self.zero + whole_ms(self.times.local(now));
        self.turn(|rt, _| {
            rt.block_on(async {
                advance(at.saturating_duration_since(Instant::now())).await;
                None
            })
        })
    }

    fn turn(
        &mut self,
        turn: impl FnOnce(&Runtime, &mut Root) -> Option<Result<(), String>>,
    ) -> Stepped {
        let Some((rt, root)) = &mut self.inside else {
            return Stepped {
                records: Vec::new(),
                end: None,
            };
        };
        let (ended, records) = record::during(|| catch_unwind(AssertUnwindSafe(|| turn(rt, root))));
        let end = match ended {
            Ok(None) => None,
            Ok(Some(Ok(()))) => Some(End::Returned),
            Ok(Some(Err(error))) => Some(End::Failed(error)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
                Some(End::Panicked(text.unwrap_or_default()))
            }
        };
        let timed = records
            .into_iter()
            .map(|(at, record)| (self.world(at), record));
        Stepped {
            records: timed.collect(),
            end,
        }
    }

    /// Sends SIGTERM.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
    }

    /// Adds a sleep of its machine. tokio's clock stops during the sleep, the clock of deadlines does not.
    pub fn slept(&mut self, time: Duration) {
        self.times.asleep += time;
        let asleep = self.times.asleep * self.times.rate / 1000;
        self.clocks.asleep.store(micros(asleep), Relaxed);
    }

    /// Moves the time of day by `by` milliseconds.
    pub fn wall_jumps(&self, by: i64) {
        self.clocks.wall.fetch_add(by, Relaxed);
    }

    /// Stops the time of day at the world's time `since`, or lets it run again.
    pub fn wall_stands(&self, since: Option<Time>) {
        let since = since.map_or(0, |since| micros(self.times.local(since)) / 1000);
        self.clocks.still.store(since, Relaxed);
    }

    /// Converts an instant of the process to the world's time.
    pub fn world(&self, at: Instant) -> Time {
        self.times.world(at.saturating_duration_since(self.zero))
    }

    /// Converts the world's time to an instant of the process.
    pub fn instant(&self, at: Time) -> Instant {
        self.zero + self.times.local(at)
    }
}

impl Drop for Replica {
    /// Actions during the drop have no effect: the world does not take out the requests, and records no event.
    fn drop(&mut self) {
        if let Some((rt, root)) = self.inside.take() {
            record::during(|| {
                let inside = rt.enter();
                drop(root);
                drop(inside);
                drop(rt);
            });
        }
    }
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(micros(time) / 1000)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the shipped configuration with the settings of the plan. Without an HTTP listener.
fn config(program: &dyn Program, installation: &str, settings: &Settings) -> Config {
    /// Parsed once: parsing takes nine tenths of a start.
    static SHIPPED: Mutex<BTreeMap<&str, Config>> = Mutex::new(BTreeMap::new());
    let app = program.app();
    let mut shipped = SHIPPED.lock();
    let shipped = shipped.entry(app.name);
    let mut config = shipped.or_insert_with(|| Config::shipped(app)).clone();
    config.workers = settings.workers;
    config.resync = settings.resync;
    config.namespaces = settings.namespace.into_iter().map(Into::into).collect();
    config.http.addr = None;
    installation.clone_into(&mut config.installation);
    let election = &mut config.leader_election;
    election.lease_name = program.lease(installation);
    election.lease_duration = settings.lease_duration;
    election.renew_deadline = settings.renew_deadline;
    election.retry_period = settings.retry_period;
    config
}

fn host(
    clocks: &Arc<Clocks>,
    zero: Instant,
    times: Times,
    seed: u64,
    who: Who,
    variables: [(&str, &str); 2],
) -> Host {
    let lived = move || Instant::now().saturating_duration_since(zero);
    // Its own time when it was born, if it had run from the beginning.
    let before = times.born * times.rate / 1000;
    let clock = {
        let clocks = Arc::clone(clocks);
        Clock::from_fn(move || {
            let asleep = Duration::from_micros(clocks.asleep.load(Relaxed));
            clocks.read(micros(lived() + asleep));
            UPTIME + before + lived() + asleep
        })
    };
    let wall = {
        let clocks = Arc::clone(clocks);
        move || {
            let asleep = Duration::from_micros(clocks.asleep.load(Relaxed));
            let since = match clocks.still.load(Relaxed) {
                0 => lived(),
                still => Duration::from_millis(still),
            };
            let since = SignedDuration::try_from(before + since + asleep).unwrap_or_default();
            let off = SignedDuration::from_millis(clocks.wall.load(Relaxed));
            // As with a real clock, two reads never return the same nanosecond.
            let looks = SignedDuration::from_nanos(clocks.looks.fetch_add(1, Relaxed));
            BEGIN + since + off + looks
        }
    };
    let random = {
        let clocks = Arc::clone(clocks);
        let purpose = who.replica as u64 * 1000 + u64::from(who.life);
        let seed = draw(seed, "replica", purpose);
        move || draw(seed, "random", clocks.drawn.fetch_add(1, Relaxed))
    };
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    Host::new(clock, wall, random, variables)
}
