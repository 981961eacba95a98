//! The limit on the workers of a slow namespace.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::trace::{Reconcile, Time, Who},
    Case, STEP, Violation,
};

/// A namespace is slow from an attempt that fails after more than a second to the end of the next attempt with that object.
/// During this time, at most `workers` attempts run in it: slow namespaces have as many workers as all others.
pub fn are_left_to_others(case: &Case, found: &mut Vec<Violation>) {
    /// Minimum duration of a slow attempt.
    const HUNG: Duration = Duration::from_secs(1);
    let mut by_process = BTreeMap::<Who, Vec<&Reconcile>>::new();
    for one in &case.trace.reconciles {
        if one.key.split('/').next() == Some(case.plan.program.namespace()) {
            by_process.entry(one.who).or_default().push(one);
        }
    }
    for (who, all) in by_process {
        let Some(life) = case.life(who) else {
            continue;
        };
        let most = usize::try_from(life.settings.workers).unwrap_or(usize::MAX);
        // From the end of a slow attempt that counted as a failure to the end of the next attempt, whose number shows the
        // count.
        let slow: Vec<(Time, Time)> = all
            .iter()
            .enumerate()
            .filter_map(|(index, one)| {
                let ended = one.ended.filter(|_| one.failed)?;
                // Measured by the clock of the process, which stands still with its machine.
                let stood_still = life.stood_still(&(one.begun..ended));
                let took = ended.saturating_sub(one.begun).saturating_sub(stood_still);
                let mut later = all[index + 1..].iter();
                let next = later.find(|other| other.key == one.key)?;
                let is_slow = took > case.longest(HUNG) + STEP && next.attempt > one.attempt;
                is_slow.then_some((ended + STEP, next.ended.unwrap_or(Time::MAX)))
            })
            .collect();
        for one in &all {
            let is_slow = |(from, until): &(Time, Time)| (*from..*until).contains(&one.begun);
            if !slow.iter().any(is_slow) {
                continue;
            }
            let running = all.iter().filter(|other| {
                let is_over = other.ended.is_some_and(|ended| ended <= one.begun);
                other.begun <= one.begun && !is_over
            });
            let running = running.count();
            if running > most {
                found.push(Violation {
                    invariant: "Q7",
                    at: one.begun,
                    object: one.key.clone(),
                    what: format!(
                        "is the {running}th that {who} is at of a namespace that is slow, which may have {most}"
                    ),
                });
            }
        }
    }
}
