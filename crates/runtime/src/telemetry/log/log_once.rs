//! The same trouble is not logged again and again.
//!
//! Of many objects that fail for one cause, [`LogDeduplication`] lets [`LINES`] lines through in one [`PERIOD`]; the
//! rest is counted, and the count is logged when the period is over. A cause is an error's text without what differs
//! from object to object.
//!
//! [`Causes`] logs each cause of an outage once, and repeats it while the outage lasts: after a minute, then at doubled intervals, at
//! least every ten minutes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::api::failure::Failure;

/// Lines of one cause in one period: enough for all that a few objects have to say.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// How many causes are kept apart; what comes beyond is one cause.
const CAUSES: usize = 32;

/// What was logged of late.
#[derive(Default)]
pub struct LogDeduplication(Mutex<HashMap<String, Cause>>);

struct Cause {
    since: Instant,
    times: u32,
}

impl LogDeduplication {
    /// Whether this failure is worth a line.
    pub fn should_log(&self, error: &impl Failure) -> bool {
        let (cause, now) = (cause(error), Instant::now());
        let mut causes = self.0.lock();
        let cause = match causes.len() {
            CAUSES.. if !causes.contains_key(&cause) => "other causes".to_owned(),
            _ => cause,
        };
        let of_late = causes.entry(cause).or_insert(Cause {
            since: now,
            times: 0,
        });
        of_late.times += 1;
        of_late.times <= LINES
    }

    /// Logs what is counted when its period is over; for ever.
    pub async fn report_suppressed(self: Arc<Self>) {
        loop {
            sleep(PERIOD).await;
            self.report();
        }
    }

    fn report(&self) {
        let now = Instant::now();
        let mut over = Vec::new();
        self.0.lock().retain(|text, cause| {
            let goes_on = now - cause.since < PERIOD;
            if !goes_on && cause.times > LINES {
                over.push((text.clone(), cause.times - LINES));
            }
            goes_on
        });
        over.sort_unstable();
        for (cause, more) in over {
            warn!("{more} more like this in {PERIOD:?}: {cause}");
        }
    }
}

/// The kind of error and its text, without numbers and what is in quotes: Kubernetes quotes names.
fn cause(error: &impl Failure) -> String {
    let text = error.to_string();
    let unquoted = text.split('"').step_by(2).collect::<Vec<_>>().join("…");
    let text = unquoted.replace(|c: char| c.is_ascii_digit(), "");
    format!("{}: {text}", error.name())
}

/// How many causes of one outage are remembered as logged. An API server, or a collector, may put something new into each
/// answer: past that, one new cause is logged in each [`MORE`].
const CAUSES_OF_ONE: usize = 8;
const MORE: Duration = Duration::from_mins(1);

/// The interval before the first repetition of a line. It doubles up to the second value.
const FIRST_REPEAT: Duration = Duration::from_mins(1);
const LONGEST_REPEAT: Duration = Duration::from_mins(10);

/// The times of a line's repetitions.
#[derive(Debug)]
pub struct Repeat {
    due: Instant,
    pause: Duration,
}

impl Repeat {
    /// The line is logged now.
    pub fn new(now: Instant) -> Self {
        Self {
            due: now + FIRST_REPEAT,
            pause: FIRST_REPEAT,
        }
    }

    /// Whether the line is due again.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.pause = (2 * self.pause).min(LONGEST_REPEAT);
            self.due = now + self.pause;
        }
        is_due
    }
}

/// How long an outage has lasted, as a suffix of its log line; empty in the first minute.
#[derive(Debug, PartialEq)]
pub struct Lasting(pub Duration);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() / 60 {
            0 => Ok(()),
            minutes @ ..120 => write!(f, " (for {minutes} min now)"),
            minutes => write!(f, " (for {} h now)", minutes / 60),
        }
    }
}

/// The causes of one outage that are logged already.
#[derive(Debug)]
pub struct Causes {
    /// A failure after this long without one begins another outage.
    quiet: Duration,
    logged: Vec<(String, Repeat)>,
    logged_at: Option<Instant>,
    /// When the outage began.
    since: Option<Instant>,
    /// Whether one was logged, and [`is_over`](Self::is_over) has not been asked since.
    ongoing: bool,
    last: Option<Instant>,
}

/// Those of an outage that lasts until it is [cleared](Causes::clear).
impl Default for Causes {
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

impl Causes {
    /// None yet.
    pub fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            logged: Vec::new(),
            logged_at: None,
            since: None,
            ongoing: false,
            last: None,
        }
    }

    /// Records a failure; true if its cause is due in the log, for the first time or as a repetition.
    pub fn is_new(&mut self, cause: &str) -> bool {
        self.is_due(cause).is_some()
    }

    /// Like [`is_new`](Self::is_new); returns how long the outage has lasted.
    pub fn is_due(&mut self, cause: &str) -> Option<Lasting> {
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

    /// True once after what was logged. The causes stay logged until it is quiet: what works and fails by turns is one
    /// outage.
    pub fn is_over(&mut self) -> bool {
        std::mem::take(&mut self.ongoing)
    }

    /// Whether it has been quiet for so long that a failure would begin another outage.
    pub fn is_quiet(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.quiet)
    }

    /// It is not quiet while somebody waits before trying again.
    pub fn touch(&mut self) {
        self.last = Some(Instant::now());
    }

    /// The outage is over, and whatever comes begins another.
    pub fn clear(&mut self) {
        self.logged.clear();
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::testing::fixtures::TestError as Error;

    fn quota(number: u32) -> Error {
        Error::Rejected(format!(
            "deployments.apps \"web-{number}\" is forbidden: exceeded quota: q, used: count/deployments.apps={number}"
        ))
    }

    /// However many objects fail, and however often: a cause is a few lines in each period.
    #[tokio::test(start_paused = true)]
    async fn a_thousand_objects_are_a_few_lines() {
        let repeats = LogDeduplication::default();
        let mut logged = 0;
        for _ in 0..10 {
            logged += (0..1000)
                .filter(|number| repeats.should_log(&quota(*number)))
                .count();
            advance(Duration::from_secs(1)).await;
            repeats.report();
        }
        assert_eq!(logged, 10);
        assert!(repeats.should_log(&quota(0)), "the next period has its own");
    }

    /// One cause does not hide another, and even causes without number are bounded.
    #[tokio::test(start_paused = true)]
    async fn another_cause_is_logged() {
        let repeats = LogDeduplication::default();
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
        assert!(repeats.0.lock().len() <= CAUSES + 1);
    }

    /// Each cause once in an outage, and not without number; again after it was quiet, or after a success that ends it.
    #[tokio::test(start_paused = true)]
    async fn a_cause_is_logged_once_in_an_outage() {
        const QUIET: Duration = Duration::from_secs(30);
        let mut causes = Causes::new(QUIET);
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

    /// A line of an outage that lasts a day is repeated after 1, 2, 4 and 8 min, then every 10 min, with the outage's duration.
    #[tokio::test(start_paused = true)]
    async fn what_goes_on_is_logged_again() {
        const STEP: Duration = Duration::from_secs(5);
        let mut causes = Causes::new(Duration::from_secs(30));
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
