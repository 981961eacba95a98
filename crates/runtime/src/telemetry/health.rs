//! What liveness and readiness are judged by: named checks, as Kubernetes' own components have them.
//!
//! Each task whose standstill would be the end of the work has a [`Heartbeat`]. It says what it sets out to do and how long
//! that takes at most, and is stuck when it has not said so again by then. All bounds are about this process: an API
//! server that is down makes calls end, and the tasks go on.
//!
//! A false alarm would kill a healthy leader, so a check fails liveness only after three failures in a row, ten
//! seconds apart: a process that was frozen and thawed has had its turn by then, whatever its clock says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::config::environment::Host;

/// How often a check of liveness has to fail in a row, and how often it is made.
const FAILURE_THRESHOLD: u32 = 3;
const PERIOD: Duration = Duration::from_secs(10);

/// The checks behind `/livez` and `/readyz`. Each part of the program adds its own.
pub struct Health {
    live: Vec<Check>,
    ready: Vec<Check>,
    stopping: Arc<AtomicBool>,
    host: Host,
}

struct Check {
    name: String,
    /// What is wrong, if anything is.
    failure: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// What is to be known though nothing is wrong.
    note: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// How often it has failed in a row.
    failures: AtomicU32,
}

/// What is asked about a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Is it to be started anew?
    Live,
    /// May it be counted on? Never whether it leads: a rollout would wait for a leader that waits for the rollout.
    Ready,
}

impl Health {
    /// Health without a part that could fail.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut health = Self {
            live: Vec::new(),
            ready: Vec::new(),
            stopping: Arc::clone(&stopping),
            host: host.clone(),
        };
        // That there is an answer is what this says, as in kube-apiserver.
        health.live("ping", || None);
        health.ready("ping", || None);
        health.ready("shutdown", move || {
            stopping
                .load(Relaxed)
                .then(|| "the process is shutting down".to_owned())
        });
        health
    }

    /// Adds a check of liveness; `failure` says what is wrong, if anything is. It is asked again and again: it must
    /// be cheap.
    pub fn live(
        &mut self,
        name: impl Into<String>,
        failure: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.live.push(Check::new(name.into(), failure));
    }

    /// Adds a check of readiness, as [`live`](Self::live) does. What it says counts at once.
    pub fn ready(
        &mut self,
        name: impl Into<String>,
        failure: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.ready.push(Check::new(name.into(), failure));
    }

    /// Adds a check of readiness with a `note` on what is amiss without failing it, for those who list the checks.
    pub(crate) fn ready_with_note(
        &mut self,
        name: impl Into<String>,
        failure: impl Fn() -> Option<String> + Send + Sync + 'static,
        note: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.ready.push(Check {
            note: Box::new(note),
            ..Check::new(name.into(), failure)
        });
    }

    /// Adds a check of liveness that a task moves, and returns what the task says so with.
    #[must_use]
    pub fn heartbeat(&mut self, name: impl Into<String>) -> Heartbeat {
        let heartbeat = Heartbeat::default();
        let (sign, host) = (Arc::clone(&heartbeat.0), self.host.clone());
        self.live(name, move || sign.lock().failure(&host));
        heartbeat
    }

    /// `shutdown`, which ends readiness first of all.
    pub fn until<F: Future<Output = ()>>(&self, shutdown: F) -> impl Future<Output = ()> + use<F> {
        let stopping = Arc::clone(&self.stopping);
        async move {
            shutdown.await;
            stopping.store(true, Relaxed);
        }
    }

    /// Makes the checks of liveness, for ever.
    pub async fn watch(&self) {
        /// What the tasks of a process that stood still may take to have their turn.
        const MOMENT: Duration = Duration::from_secs(1);
        loop {
            for check in &self.live {
                check.run();
            }
            let begun = Instant::now();
            sleep(PERIOD).await;
            if begun.elapsed() > PERIOD + MOMENT / 10 {
                sleep(MOMENT).await;
            }
        }
    }

    /// The name of each check of this `probe`, with what is wrong, or else to be known: `Err`, or `Ok`.
    pub fn checks(
        &self,
        probe: Probe,
    ) -> impl Iterator<Item = (&str, Result<Option<String>, String>)> {
        let (checks, threshold) = match probe {
            Probe::Live => (&self.live, FAILURE_THRESHOLD),
            Probe::Ready => (&self.ready, 0),
        };
        checks.iter().map(move |check| {
            let failure = (check.failures.load(Relaxed) >= threshold).then(|| (check.failure)());
            let result = failure.flatten().map_or_else(|| Ok((check.note)()), Err);
            (check.name.as_str(), result)
        })
    }
}

impl Health {
    /// What fails, and why.
    #[must_use]
    pub fn failing(&self, probe: Probe) -> Vec<String> {
        let failing =
            |(name, result): (&str, Result<_, String>)| Some(format!("{name}: {}", result.err()?));
        self.checks(probe).filter_map(failing).collect()
    }
}

impl Check {
    fn new(name: String, failure: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            name,
            failure: Box::new(failure),
            note: Box::new(|| None),
            failures: AtomicU32::new(0),
        }
    }

    fn run(&self) {
        let Some(failure) = (self.failure)() else {
            self.failures.store(0, Relaxed);
            return;
        };
        let failures = self.failures.load(Relaxed).saturating_add(1);
        self.failures.store(failures, Relaxed);
        if failures == FAILURE_THRESHOLD {
            // Whoever finds this process started anew finds out why.
            warn!(check = self.name, "liveness fails: {failure}");
        }
    }
}

/// A task's sign of life. Dropped, the task is dead.
#[derive(Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Sign>>);

/// What a task said last.
#[derive(Debug)]
struct Sign {
    doing: &'static str,
    since: Instant,
    /// How long it takes at most; `None`: for ever.
    limit: Option<Duration>,
}

impl Default for Sign {
    fn default() -> Self {
        Self {
            doing: "",
            since: Instant::now(),
            limit: None,
        }
    }
}

impl Heartbeat {
    /// The task sets out to be `doing` something, for `limit` at most; it says so again when it is done. Before the
    /// first time nothing is expected of it.
    pub fn beat(&self, doing: &'static str, limit: Duration) {
        *self.0.lock() = Sign {
            doing,
            since: Instant::now(),
            limit: Some(limit),
        };
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.beat("dead", Duration::ZERO);
    }
}

impl Sign {
    fn failure(&self, host: &Host) -> Option<String> {
        let elapsed = self.since.elapsed();
        let stuck = self.limit.is_some_and(|limit| elapsed > limit);
        stuck.then(|| format!("{} since {}", self.doing, ago(host, elapsed)))
    }
}

/// The time of day `elapsed` ago, as log lines have it.
#[must_use]
pub fn ago(host: &Host, elapsed: Duration) -> String {
    let then = host.now().checked_sub(elapsed).unwrap_or_default();
    format!("{then:.0}")
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// What fails liveness after `wait`, without the time of day.
    async fn failing_after(wait: Duration, health: &Health) -> Vec<String> {
        assert!(timeout(wait, health.watch()).await.is_err());
        let failing = health.failing(Probe::Live).into_iter();
        failing
            .filter_map(|line| Some(line.split_once(" since ")?.0.to_owned()))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_may_take_its_time_and_no_more() {
        let mut health = Health::new(&Host::of_this_process());
        let heartbeat = health.heartbeat("task");
        let hour = Duration::from_hours(1);
        assert_eq!(failing_after(hour, &health).await, [""; 0], "not begun");
        heartbeat.beat("working", hour);
        assert_eq!(failing_after(hour, &health).await, [""; 0]);
        let late = failing_after(PERIOD * (FAILURE_THRESHOLD + 2), &health).await;
        assert_eq!(late, ["task: working"]);
        heartbeat.beat("working", hour);
        assert_eq!(failing_after(PERIOD, &health).await, [""; 0]);
        drop(heartbeat);
        let dead = failing_after(PERIOD * (FAILURE_THRESHOLD + 2), &health).await;
        assert_eq!(dead, ["task: dead"]);
    }

    /// The clock goes on while a process is frozen; its tasks do not.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_frozen_gets_its_turn() {
        let mut health = Health::new(&Host::of_this_process());
        let heartbeat = health.heartbeat("task");
        heartbeat.beat("working", PERIOD * 2);
        failing_after(PERIOD, &health).await;
        advance(Duration::from_hours(1)).await;
        assert_eq!(failing_after(PERIOD, &health).await, [""; 0]);
        let late = failing_after(PERIOD * FAILURE_THRESHOLD, &health).await;
        assert_eq!(late, ["task: working"]);
    }

    #[tokio::test]
    async fn readiness_ends_with_the_wish_to_stop() {
        let health = Health::new(&Host::of_this_process());
        let shutdown = health.until(std::future::ready(()));
        assert_eq!(health.failing(Probe::Ready), [""; 0]);
        shutdown.await;
        assert_eq!(
            health.failing(Probe::Ready),
            ["shutdown: the process is shutting down"]
        );
        assert_eq!(health.failing(Probe::Live), [""; 0]);
    }
}
