//! The same trouble is not logged again and again.
//!
//! Of many objects that fail for one cause, [`LogDeduplication`] lets [`LINES`] lines through in one [`PERIOD`]; the
//! rest is counted, and the count is logged when the period is over. A cause is an error's text without what differs
//! from object to object.
//!
//! Of one thing that fails again and again, [`Causes`] lets each cause through once in an outage.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::failure::Failure;

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

/// The causes of one outage that are logged already.
#[derive(Debug)]
pub struct Causes {
    /// A failure after this long without one begins another outage.
    quiet: Duration,
    logged: Vec<String>,
    logged_at: Option<Instant>,
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
            ongoing: false,
            last: None,
        }
    }

    /// Takes note of a failure; true if its cause is to be logged.
    pub fn is_new(&mut self, cause: &str) -> bool {
        if self.is_quiet() {
            self.clear();
        }
        self.touch();
        if self.logged.iter().any(|logged| logged == cause) {
            return false;
        }
        if self.logged.len() >= CAUSES_OF_ONE {
            if self.logged_at.is_some_and(|at| at.elapsed() < MORE) {
                return false;
            }
            self.logged.truncate(CAUSES_OF_ONE - 1);
        }
        self.logged.push(cause.to_owned());
        self.logged_at = Some(Instant::now());
        self.ongoing = true;
        true
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
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::fixtures::TestError as Error;

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
                advance(QUIET / 2).await;
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
}
