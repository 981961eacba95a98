//! The same cause is not told a thousand times: a thousand objects that fail for one reason are a few lines.
//!
//! Of each cause, [`TOLD`] lines go out in one [`PERIOD`]; the rest is counted, and the count is told when the
//! period is over. A cause is an error's text without what differs from object to object.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error::Failure;

/// Lines of one cause in one period: enough for all that a few objects have to say.
const TOLD: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// How many causes are told apart; what comes beyond is one cause.
const CAUSES: usize = 32;

/// What was told of late.
#[derive(Default)]
pub struct LogOnce(Mutex<HashMap<String, Cause>>);

struct Cause {
    since: Instant,
    times: u32,
}

impl LogOnce {
    /// Whether this failure is worth a line.
    pub fn is_news(&self, error: &impl Failure) -> bool {
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
        of_late.times <= TOLD
    }

    /// Tells what is counted when its period is over; for ever.
    pub async fn sum_up(self: Arc<Self>) {
        loop {
            sleep(PERIOD).await;
            self.tell();
        }
    }

    fn tell(&self) {
        let now = Instant::now();
        let mut over = Vec::new();
        self.0.lock().retain(|text, cause| {
            let goes_on = now - cause.since < PERIOD;
            if !goes_on && cause.times > TOLD {
                over.push((text.clone(), cause.times - TOLD));
            }
            goes_on
        });
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
        let repeats = LogOnce::default();
        let mut told = 0;
        for _ in 0..10 {
            told += (0..1000)
                .filter(|number| repeats.is_news(&quota(*number)))
                .count();
            advance(Duration::from_secs(1)).await;
            repeats.tell();
        }
        assert_eq!(told, 10);
        assert!(repeats.is_news(&quota(0)), "the next period has its own");
    }

    /// One cause does not hide another, and even causes without number are bounded.
    #[tokio::test(start_paused = true)]
    async fn another_cause_is_told() {
        let repeats = LogOnce::default();
        assert_eq!(
            (0..1000)
                .filter(|number| repeats.is_news(&quota(*number)))
                .count(),
            10
        );
        assert!(repeats.is_news(&Error::Transient("connection refused".into())));
        let word = |number: u32| {
            number
                .to_string()
                .replace(|c: char| c.is_ascii_digit(), "x")
        };
        let told = (1..1000).filter(|number| {
            let text = format!("{}{}", word(*number), "y".repeat(*number as usize));
            repeats.is_news(&Error::Transient(text))
        });
        assert!(told.count() < CAUSES + 10);
        assert!(repeats.0.lock().len() <= CAUSES + 1);
    }
}
