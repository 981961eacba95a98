//! Limits the log lines of an outage.
//!
//! [`OutageLog`] logs each cause of an outage once and repeats it while the outage lasts. The interval starts at one minute and
//! doubles up to ten minutes.

use std::{fmt, time::Duration};

use tokio::time::Instant;

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
