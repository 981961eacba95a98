//! Limits the log lines of objects that fail for the same cause to [`LINES`] per [`PERIOD`].
//!
//! The rest is counted. After the period, the count is logged with the last error as an example. A cause is an error's text
//! without the parts that differ between objects.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::api::failure::Failure;

/// Lines per cause and period: enough to log every failure of a few objects.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Number of separate causes. All further causes count as one.
const CAUSES: usize = 32;

/// Rate limit for the log lines about the failing objects of a controller.
#[derive(Default)]
pub(crate) struct LogLimiter {
    /// Name of the controller, for its lines.
    pub controller: &'static str,
    causes: Mutex<HashMap<String, Cause>>,
}

struct Cause {
    since: Instant,
    times: u32,
    /// Name and text of the last error.
    last: String,
}

impl LogLimiter {
    pub(crate) fn of(controller: &'static str) -> Self {
        Self {
            controller,
            ..Self::default()
        }
    }

    /// Whether to log this failure.
    pub(crate) fn should_log(&self, error: &impl Failure) -> bool {
        let mut last = format!("{}: {error}", error.name());
        let (mut cause, now) = (without_names(&last), Instant::now());
        let mut causes = self.causes.lock();
        if causes.len() >= CAUSES && !causes.contains_key(&cause) {
            "other causes".clone_into(&mut cause);
            last = format!("other causes, such as {last}");
        }
        let of_late = causes.entry(cause).or_insert(Cause {
            since: now,
            times: 0,
            last: String::new(),
        });
        of_late.times += 1;
        of_late.last = last;
        of_late.times <= LINES
    }

    /// Logs the number of suppressed lines of each period after its end. Runs until cancelled.
    pub(crate) async fn report_suppressed(self: Arc<Self>) {
        loop {
            sleep(PERIOD).await;
            self.report();
        }
    }

    fn report(&self) {
        let now = Instant::now();
        let mut over = Vec::new();
        self.causes.lock().retain(|_, cause| {
            let goes_on = now - cause.since < PERIOD;
            if !goes_on && cause.times > LINES {
                over.push((std::mem::take(&mut cause.last), cause.times - LINES));
            }
            goes_on
        });
        over.sort_unstable();
        for (last, more) in over {
            let controller = self.controller;
            warn!(controller, "{more} more like this in {PERIOD:?}: {last}");
        }
    }
}

/// Returns an error's text without digits and quoted parts. Kubernetes quotes names.
fn without_names(text: &str) -> String {
    let unquoted = text.split('"').step_by(2).collect::<Vec<_>>().join("…");
    unquoted.replace(|c: char| c.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::testing::fixtures::{TestError as Error, logged};

    fn quota(number: u32) -> Error {
        Error::Rejected(format!(
            "deployments.apps \"web-{number}\" is forbidden: exceeded quota: q, used: count/deployments.apps={number}"
        ))
    }

    /// A cause is logged a few times per period, however many objects fail.
    #[tokio::test(start_paused = true)]
    async fn a_thousand_objects_are_a_few_lines() {
        let (lines, _logs) = logged(tracing::Level::WARN);
        let repeats = LogLimiter::default();
        let mut logged = 0;
        for _ in 0..10 {
            logged += (0..1000)
                .filter(|number| repeats.should_log(&quota(*number)))
                .count();
            advance(Duration::from_secs(1)).await;
            repeats.report();
        }
        assert_eq!(logged, 10);
        let lines = String::from_utf8_lossy(&lines.lock()).into_owned();
        let last = format!(
            "9990 more like this in 10s: {}: {}",
            quota(999).name(),
            quota(999)
        );
        assert!(lines.contains(&last), "{lines}");
        assert!(repeats.should_log(&quota(0)), "the next period has its own");
    }

    /// A cause does not hide another cause. The number of causes is bounded.
    #[tokio::test(start_paused = true)]
    async fn another_cause_is_logged() {
        let repeats = LogLimiter::default();
        assert_eq!(
            (0..1000)
                .filter(|number| repeats.should_log(&quota(*number)))
                .count(),
            10
        );
        assert!(repeats.should_log(&Error::Transient("connection refused".into())));
        let word = |number: u32| {
            number
                .to_string()
                .replace(|c: char| c.is_ascii_digit(), "x")
        };
        let logged = (1..1000).filter(|number| {
            let text = format!("{}{}", word(*number), "y".repeat(*number as usize));
            repeats.should_log(&Error::Transient(text))
        });
        assert!(logged.count() < CAUSES + 10);
        assert!(repeats.causes.lock().len() <= CAUSES + 1);
    }
}
