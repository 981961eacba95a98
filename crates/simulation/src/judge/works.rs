//! Holder of the Lease.

use std::time::Duration;

use serde_json::Value;

use super::{
    super::{
        plan::{Calls, Fault, Settings, Way},
        trace::{End, Life, Role, Time, Who},
    },
    Case, Violation,
    hindered::is_hindered,
    leader::holder,
    made, named,
};

/// Longest time until a worker begins a due reconcile. There are few objects, and each takes few requests.
pub const SOON: Duration = Duration::from_secs(3);

/// Uninterrupted possession of the Lease by a process that renews it in time.
pub struct Hold {
    pub who: Who,
    pub from: Time,
    pub until: Time,
}

/// An unobstructed holder that is stopped releases the Lease. An unobstructed standby that has seen this holder takes the Lease
/// then, before it expires.
pub fn hands_over(case: &Case, found: &mut Vec<Violation>) {
    let mut wrong = |at: Time, what: String| {
        found.push(Violation {
            invariant: "I10",
            at,
            object: named(&case.lease),
            what,
        });
    };
    let leases = || {
        let history = case.store.history().iter().enumerate();
        history.filter(|(_, one)| one.key == case.lease)
    };
    let held = |at: Time| {
        let last = leases().take_while(|(_, one)| made(one) <= at).last();
        last.and_then(|(_, one)| one.after.as_deref())
            .map(holder)
            .unwrap_or_default()
    };
    let holds = holds(case);
    for life in &case.trace.lives {
        let (Some(asked), Some((ended, End::Returned))) = (life.asked, &life.ended) else {
            continue;
        };
        // A restarted container has the name of the previous container, but not its term.
        if !holds.iter().any(|hold| hold.who == life.who) {
            continue;
        }
        let identity = life.identity();
        // A holder keeps the Lease while a write may be in flight, and logs that.
        let mut logs = case.trace.logs.iter().filter(|log| log.who == life.who);
        let says_so = logs.any(|log| log.text.contains("lease not released"));
        let has_why = says_so && is_on_its_way(case, life, *ended);
        let keeps = !has_why && held(asked) == identity && held(*ended) == identity;
        if keeps && !is_hindered(case, life.who, asked, *ended) {
            wrong(
                *ended,
                format!("{} has ended, and still holds it", life.who),
            );
        }
    }
    for (index, one) in leases() {
        let at = made(one);
        let Some(life) = case.writer(index).and_then(|call| case.life(call.who)) else {
            continue;
        };
        let was = one.before.as_deref().map(holder);
        if !held(at).is_empty() || was != Some(&*life.identity()) {
            continue;
        }
        // A release by a clock that is an hour behind the renewals has an older timestamp. Other replicas do not accept it.
        let renewed = |lease: Option<&Value>| lease.map(|it| it["spec"]["renewTime"].to_string());
        if renewed(one.after.as_deref()) < renewed(one.before.as_deref()) {
            continue;
        }
        let due = at + case.longest_of(|settings| settings.retry_period * 2) + SOON;
        let identity = life.identity();
        let mut others = standbys(case, &identity, at, due);
        // After an edit by another client, the replicas do not know the previous holder.
        let is_taken = leases().any(|(index, next)| {
            let is_then = made(next) > at && made(next) <= due;
            let names = next.after.as_deref().map(holder);
            is_then && (names != Some("") || case.writer(index).is_none())
        });
        if due < case.plan.end
            && !is_taken
            && let Some(other) = others.next()
        {
            wrong(
                due,
                format!(
                    "was given back at {at:?}, and {} has not taken it",
                    other.who
                ),
            );
        }
    }
}

/// If a holder that was not stopped goes silent, an unobstructed standby that has seen this holder takes the Lease after the
/// lease duration.
pub fn takes_over(case: &Case, found: &mut Vec<Violation>) {
    let leases = case.store.history().iter().enumerate();
    let leases: Vec<_> = leases.filter(|(_, one)| one.key == case.lease).collect();
    let mut longest = case.longest_of(|settings| settings.lease_duration);
    for (number, (index, one)) in leases.iter().enumerate() {
        let Some(lease) = one.after.as_deref() else {
            continue;
        };
        let duration = lease["spec"]["leaseDurationSeconds"].as_u64();
        // A replica that has seen a longer duration may use it.
        longest = longest.max(case.longest(Duration::from_secs(duration.unwrap_or_default())));
        if holder(lease).is_empty() || case.writer(*index).is_none() {
            continue;
        }
        let at = made(one);
        let retries = case.longest_of(|settings| settings.retry_period * 2);
        let due = at + longest + retries + SOON;
        let next = leases.get(number + 1).map(|(_, next)| made(next));
        if next.unwrap_or(case.plan.end) <= due {
            continue;
        }
        found.extend(
            standbys(case, holder(lease), at, due)
                .next()
                .map(|other| Violation {
                    invariant: "I10",
                    at: due,
                    object: named(&one.key),
                    what: format!("is silent since {at:?}, and {} has not taken it", other.who),
                }),
        );
    }
}

/// Returns the unobstructed processes that knew this holder by then, and stood by until `due`.
fn standbys<'a>(
    case: &'a Case<'a>,
    holder: &str,
    at: Time,
    due: Time,
) -> impl Iterator<Item = &'a Life> {
    let (holder, said) = (holder.to_owned(), format!("holder={holder} "));
    case.trace.lives.iter().filter(move |life| {
        let ends = [life.asked, life.ended.as_ref().map(|(at, _)| *at)];
        let mut logs = case.trace.logs.iter();
        life.identity() != holder
            && ends.into_iter().flatten().all(|end| end > due)
            && logs.any(|log| {
                let is_seen = log.text.contains("standing by") && log.text.contains(&said);
                log.who == life.who && log.at < at && is_seen
            })
            && !is_hindered(case, life.who, at, due)
    })
}

/// Returns whether a write of this pod may have been in flight when its process ended. Its response came shortly before the
/// end, was inconclusive, or was missing. The process knows nothing of the writes of the previous container.
fn is_on_its_way(case: &Case, life: &Life, ended: Time) -> bool {
    /// Longest time that a write takes and that its connection is kept.
    const LONGEST: Duration = Duration::from_secs(40);
    // Before the end, the Lease is read and released, within the timeout of an attempt.
    let releasing = case.longest((life.settings.renew_deadline / 2).max(Duration::from_secs(1)));
    let mut lives = case.trace.lives.iter();
    let is_restarted = lives.any(|other| other.pod == life.pod && other.begun < life.begun)
        && ended < life.begun + case.longest(LONGEST);
    let mut calls = case.trace.calls.iter();
    is_restarted
        || calls.any(|call| {
            let answered = call.answered.filter(|_| !call.is_spoilt());
            call.is_work()
                && case.pod(call) == life.pod.0
                && (ended.saturating_sub(case.longest(LONGEST))..ended).contains(&call.begun)
                && answered.is_none_or(|(at, code)| at + releasing > ended || code >= 500)
        })
}

/// Returns when each process held the Lease, in order of time.
pub fn holds(case: &Case) -> Vec<Hold> {
    let mut holds = Vec::<Hold>::new();
    // End of the last holder's term. An edit by another client does not end it.
    let mut term_ends = Time::ZERO;
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key != case.lease {
            continue;
        }
        let at = made(revision);
        let writer = case.writer(index).and_then(|call| case.life(call.who));
        let holder = revision.after.as_deref().map(holder);
        let renews = writer.filter(|life| holder == Some(&*life.identity()));
        let until = |life: &super::Life| {
            let until = at + case.shortest(life.settings.renew_deadline);
            let ends = life.asked.into_iter();
            ends.chain(life.ended.as_ref().map(|(ended, _)| *ended))
                .fold(until, Time::min)
        };
        match (holds.last_mut(), renews) {
            (Some(last), Some(life)) if last.who == life.who && term_ends >= at => {
                last.until = until(life);
                term_ends = last.until;
            }
            (Some(last), None) if case.writer(index).is_none() => {
                let before = revision.before.as_deref().map(self::holder);
                if holder != before {
                    last.until = last.until.min(at);
                }
            }
            (last, renews) => {
                if let Some(last) = last {
                    last.until = last.until.min(at);
                }
                term_ends = renews.map_or(at, until);
                holds.extend(renews.map(|life| Hold {
                    who: life.who,
                    from: at,
                    until: until(life),
                }));
            }
        }
    }
    holds
}

/// A holder whose work is cut off gives the Lease up to a replica that can work.
pub fn lets_go(case: &Case, found: &mut Vec<Violation>) {
    /// Longest silence of a connection before the kernel closes it.
    const BROKEN: Duration = Duration::from_secs(42);
    let holds = holds(case);
    for (time, fault) in &case.trace.faults {
        let cut_off = |replica| Fault::Partition {
            of: Calls {
                replica: Some(replica),
                role: Some(Role::Work),
                ..Calls::default()
            },
            way: Way::Both,
        };
        for hold in &holds {
            let from = time.start.max(hold.from);
            let Some(life) = case.life(hold.who) else {
                continue;
            };
            // Time until the work counts as cut off, and the rest of a term.
            let Settings {
                lease_duration,
                renew_deadline,
                ..
            } = life.settings;
            let takes = BROKEN + lease_duration + renew_deadline + SOON;
            let due = life.has_had(from, case.takes(hold.who, takes));
            if *fault != cut_off(hold.who.replica) || due >= hold.until.min(time.end) {
                continue;
            }
            let mut others = case.trace.lives.iter().filter(|other| {
                let ends = [other.asked, other.ended.as_ref().map(|(at, _)| *at)];
                other.who.replica != hold.who.replica
                    && other.begun <= from
                    && ends.into_iter().flatten().all(|end| end > due)
                    && !is_hindered(case, other.who, from, due)
            });
            found.extend(others.next().map(|other| Violation {
                invariant: "I10",
                at: due,
                object: named(&case.lease),
                what: format!(
                    "is held by {}, which can do nothing since {from:?}, and {} could",
                    hold.who, other.who
                ),
            }));
        }
    }
}
