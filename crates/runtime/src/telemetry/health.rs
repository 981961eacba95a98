//! Liveness and readiness: named checks, as in Kubernetes' own components.
//!
//! Each essential task has a [`Heartbeat`]. The task announces each step and the step's time limit. A task that announces no
//! next step within the limit is stuck. The limits concern this process only: if the API server is down, calls time out and the
//! tasks continue.
//!
//! A false alarm would restart a healthy leader. So a check fails liveness only after three consecutive failures, ten seconds
//! apart. This gives the tasks of a process that was frozen and thawed time to run, although its clock has advanced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::heartbeat::{Heartbeat, Sign};
use crate::config::environment::Host;

/// Consecutive failures of a liveness check that fail the probe, and the interval of the checks.
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
    /// Returns the failure, if the check fails.
    failure: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Returns a remark for a check that passes.
    note: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Consecutive failures.
    failures: AtomicU32,
}

/// A kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Liveness: whether the kubelet must restart the process.
    Live,
    /// Readiness. It never depends on leadership: a rollout would wait for the new replica to lead, which would wait for the
    /// rollout.
    Ready,
}

impl Health {
    /// Creates a `Health` with the built-in checks only.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut health = Self {
            live: Vec::new(),
            ready: Vec::new(),
            stopping: Arc::clone(&stopping),
            host: host.clone(),
        };
        // Always passes: the response itself is the check, as in kube-apiserver.
        health.live("ping", || None);
        health.ready("ping", || None);
        health.ready("shutdown", move || {
            stopping
                .load(Relaxed)
                .then(|| "the process is shutting down".to_owned())
        });
        health
    }

    /// Adds a liveness check. `failure` returns the failure, if any. It is called often, so it must be cheap.
    pub fn live(
        &mut self,
        name: impl Into<String>,
        failure: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.live.push(Check::new(name.into(), failure));
    }

    /// Adds a readiness check, as [`live`](Self::live) does. A single failure fails the probe.
    pub fn ready(
        &mut self,
        name: impl Into<String>,
        failure: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        self.ready.push(Check::new(name.into(), failure));
    }

    /// Adds a readiness check. `note` returns a remark that the list of checks shows without failing the probe.
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

    /// Adds a liveness check for a task, and returns the task's heartbeat.
    #[must_use]
    pub fn heartbeat(&mut self, name: impl Into<String>) -> Heartbeat {
        let heartbeat = Heartbeat::default();
        let (sign, host) = (heartbeat.sign(), self.host.clone());
        self.live(name, move || sign.lock().failure(&host));
        heartbeat
    }

    /// Wraps `shutdown`. Readiness fails as soon as it resolves.
    pub fn until<F: Future<Output = ()>>(&self, shutdown: F) -> impl Future<Output = ()> + use<F> {
        let stopping = Arc::clone(&self.stopping);
        async move {
            shutdown.await;
            stopping.store(true, Relaxed);
        }
    }

    /// Runs the liveness checks until cancelled.
    pub async fn watch(&self) {
        /// Time for the tasks of a process that was frozen to run again.
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

    /// Returns each check of this `probe` by name: `Err` with its failure, or `Ok` with its remark.
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
    /// Returns the failing checks, each as `name: failure`.
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
            // The log of the previous container then explains the restart.
            warn!(check = self.name, "liveness fails: {failure}");
        }
    }
}

impl Sign {
    fn failure(&self, host: &Host) -> Option<String> {
        let elapsed = self.since.elapsed();
        let stuck = self.limit.is_some_and(|limit| elapsed > limit);
        stuck.then(|| format!("{} since {}", self.doing, ago(host, elapsed)))
    }
}

/// Returns the time of day `elapsed` ago, to the second, as in log lines.
#[must_use]
pub(crate) fn ago(host: &Host, elapsed: Duration) -> String {
    let then = host.now().checked_sub(elapsed).unwrap_or_default();
    format!("{then:.0}")
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// The failing liveness checks after `wait`, without the time of day.
    async fn failing_after(wait: Duration, health: &Health) -> Vec<String> {
        assert!(timeout(wait, health.watch()).await.is_err());
        let failing = health.failing(Probe::Live).into_iter();
        failing
            .filter_map(|line| Some(line.split_once(" since ")?.0.to_owned()))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_exceeds_its_time_fails_liveness() {
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

    /// The clock of a frozen process advances, but its tasks do not run.
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
    async fn readiness_ends_when_the_shutdown_begins() {
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
