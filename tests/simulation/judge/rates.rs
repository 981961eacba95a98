//! I11: no replica asks without end.

use std::{collections::BTreeMap, time::Duration};

use super::{Case, Violation};

const WINDOW: Duration = Duration::from_secs(10);

/// How many requests of one kind a replica sends in [`WINDOW`], whatever it is answered; what is written of objects is as
/// many as there are objects and changes of them.
pub fn bounded(case: &Case, found: &mut Vec<Violation>) {
    let attempts = |who| {
        let settings = case
            .life(who)
            .map_or(&case.plan.settings, |life| &life.settings);
        let retry_period = case.shortest(settings.retry_period);
        // An attempt is a look and a write; one in four more is out of turn.
        let attempts = WINDOW.as_millis() * 5 / (4 * retry_period.as_millis() * 9 / 10) + 4;
        usize::try_from(attempts).unwrap_or(usize::MAX)
    };
    let mut of_a_kind = BTreeMap::<_, Vec<_>>::new();
    for call in &case.trace.calls {
        let kind = (call.who, call.verb, &*call.resource);
        of_a_kind.entry(kind).or_default().push(call.begun);
    }
    for ((who, verb, resource), mut times) in of_a_kind {
        let most = match (verb, resource) {
            ("list" | "watch" | "stream", _) => 25,
            (_, "leases") => attempts(who),
            _ => 200,
        };
        times.sort();
        let crowded = times
            .iter()
            .zip(times.iter().skip(most))
            .find(|(first, last)| **last < **first + WINDOW);
        if let Some((first, _)) = crowded {
            found.push(Violation {
                invariant: "I11",
                at: *first,
                object: who.to_string(),
                what: format!("more than {most} times {verb} {resource} in {WINDOW:?}"),
            });
        }
    }
}
