//! Limits repeated log lines.
//!
//! [`LogLimiter`] limits the lines of objects that fail for the same cause to [`LINES`] per [`PERIOD`]. It counts the
//! rest, and logs the count after the period, with the last error as an example. A cause is an error's text without the parts
//! that differ between objects.
//!
//! [`OutageLog`] logs each cause of an outage once and repeats it while the outage lasts. The interval starts at one minute and
//! doubles up to ten minutes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

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

/// Number of causes that are remembered per outage. An API server or a collector may return a different message in each
/// response. So beyond this number, at most one new cause is logged per [`MORE`].
const CAUSES_OF_ONE: usize = 8;
const MORE: Duration = Duration::from_mins(1);

/// Interval before the first repetition of a line. It doubles up to the second value.
const FIRST_REPEAT: Duration = Duration::from_mins(1);
const LONGEST_REPEAT: Duration = Duration::from_mins(10);

/// Schedule of a line's repetitions.
#[derive(Debug)]
pub(crate) struct Repeat {
    due: Instant,
    pause: Duration,
}

impl Repeat {
    /// Starts the schedule: the line has just been logged.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            due: now + FIRST_REPEAT,
            pause: FIRST_REPEAT,
        }
    }

    /// Whether to repeat the line now.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.pause = (2 * self.pause).min(LONGEST_REPEAT);
            self.due = now + self.pause;
        }
        is_due
    }
}

/// Duration of an outage as a suffix of its log line; empty in the first minute.
#[derive(Debug, PartialEq)]
pub(crate) struct Lasting(pub Duration);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() / 60 {
            0 => Ok(()),
            minutes @ ..120 => write!(f, " (for {minutes} min now)"),
            minutes => write!(f, " (for {} h now)", minutes / 60),
        }
    }
}

/// Causes of one outage that have been logged.
#[derive(Debug)]
pub(crate) struct OutageLog {
    /// A failure after this time without one begins another outage.
    quiet: Duration,
    logged: Vec<(String, Repeat)>,
    logged_at: Option<Instant>,
    /// Start of the outage.
    since: Option<Instant>,
    /// Whether a cause was logged since the last call of [`is_over`](Self::is_over).
    ongoing: bool,
    last: Option<Instant>,
}

/// For an outage that lasts until it is [cleared](OutageLog::clear).
impl Default for OutageLog {
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

impl OutageLog {
    /// Creates an empty set.
    pub(crate) fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            logged: Vec::new(),
            logged_at: None,
            since: None,
            ongoing: false,
            last: None,
        }
    }

    /// Records a failure. Returns true if its cause must be logged, as new or as a repetition.
    pub(crate) fn is_new(&mut self, cause: &str) -> bool {
        self.is_due(cause).is_some()
    }

    /// Like [`is_new`](Self::is_new), but returns the duration of the outage.
    pub(crate) fn is_due(&mut self, cause: &str) -> Option<Lasting> {
        if self.is_quiet() {
            self.clear();
        }
        self.touch();
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let mut logged = self.logged.iter_mut();
        if let Some((_, repeat)) = logged.find(|(logged, _)| logged == cause) {
            if !repeat.is_due(now) {
                return None;
            }
        } else {
            if self.logged.len() >= CAUSES_OF_ONE {
                if self.logged_at.is_some_and(|at| now - at < MORE) {
                    return None;
                }
                self.logged.truncate(CAUSES_OF_ONE - 1);
            }
            self.logged.push((cause.to_owned(), Repeat::new(now)));
            self.logged_at = Some(now);
        }
        self.ongoing = true;
        Some(Lasting(now - since))
    }

    /// Returns true once after a cause was logged. The causes stay remembered until the end of the outage: alternating success
    /// and failure is one outage.
    pub(crate) fn is_over(&mut self) -> bool {
        std::mem::take(&mut self.ongoing)
    }

    /// Whether a failure now would begin another outage.
    pub(crate) fn is_quiet(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.quiet)
    }

    /// Extends the outage while its next attempt is delayed.
    pub(crate) fn touch(&mut self) {
        self.last = Some(Instant::now());
    }

    /// Ends the outage: the next failure begins another.
    pub(crate) fn clear(&mut self) {
        self.logged.clear();
        self.since = None;
    }
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

    /// One cause does not hide another. The number of causes is bounded.
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

    /// Each cause is logged once per outage, up to a limit. It is logged again after a quiet time or a success.
    #[tokio::test(start_paused = true)]
    async fn a_cause_is_logged_once_in_an_outage() {
        const QUIET: Duration = Duration::from_secs(30);
        let mut causes = OutageLog::new(QUIET);
        assert!(causes.is_quiet() && !causes.is_over());
        for _ in 0..3 {
            assert!(causes.is_new("one") && causes.is_over() && !causes.is_over());
            for _ in 0..10 {
                assert!(!causes.is_new("one"));
                advance(QUIET / 20).await;
            }
            assert!(causes.is_new("another") && !causes.is_new("one"));
            assert!((0..1000).filter(|n| causes.is_new(&n.to_string())).count() < CAUSES_OF_ONE);
            advance(QUIET / 2).await;
            causes.touch();
            advance(QUIET / 2).await;
            assert!(!causes.is_quiet() && !causes.is_new("one"));
            advance(QUIET).await;
        }
        assert!(causes.is_new("one"));
        causes.clear();
        assert!(causes.is_new("one"));
    }

    /// The line of a long outage is repeated with its duration: after 1, 2, 4 and 8 min, then every 10 min.
    #[tokio::test(start_paused = true)]
    async fn a_long_outage_is_logged_again() {
        const STEP: Duration = Duration::from_secs(5);
        let mut causes = OutageLog::new(Duration::from_secs(30));
        let mut logged = Vec::new();
        for step in 0..24 * 60 * 12 {
            if let Some(lasting) = causes.is_due("one") {
                assert_eq!(lasting, Lasting(STEP * step));
                logged.push((STEP * step).as_secs() / 60);
            }
            advance(STEP).await;
        }
        assert_eq!(logged[..7], [0, 1, 3, 7, 15, 25, 35]);
        assert_eq!(logged.len(), 6 + (24 * 60 - 25) / 10);
        let shown = [59, 60, 7_199, 7_200].map(|s| Lasting(Duration::from_secs(s)).to_string());
        assert_eq!(
            shown,
            [
                "",
                " (for 1 min now)",
                " (for 119 min now)",
                " (for 2 h now)"
            ]
        );
        advance(Duration::from_secs(30)).await;
        assert_eq!(causes.is_due("one"), Some(Lasting(Duration::ZERO)));
    }
}
