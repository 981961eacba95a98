//! Only the leader writes, and there is a leader.

use std::{collections::BTreeMap, ops::Range, rc::Rc, sync::Arc, time::Duration};

use operator_runtime::internals::YIELD_DELAY;
use operator_testkit::api_server::{Kind, RESTORED, Revision};
use serde_json::Value;

use super::{
    super::{
        network::longest_way,
        plan::{Fault, Settings},
        trace::{Call, Life, Time, comes_at},
    },
    ASKED, Case, STEP, Violation, made, named, pod_of,
};

pub fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// A process that writes an object or a status holds the Lease at that moment, in the order of the store.
///
/// There are two exceptions:
/// - Another client edits the Lease, or a restored backup names another holder. The previous leader works until it notices. Its
///   deadline bounds that time.
/// - A request was in flight for longer than the time between the end of the term and the end of the Lease. Its preconditions
///   make a late write harmless.
///
/// A holder releases the Lease only after none of its writes is in flight. Only a suspended API server or machine excuses a
/// write after the release.
pub fn holds_the_lease(case: &Case, found: &mut Vec<Violation>) {
    let term_ends = case.longest_of(|settings| settings.renew_deadline);
    let (mut now, mut edited) = (String::new(), Vec::<(Time, String)>::new());
    let mut gave_back = BTreeMap::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let writer = case.writer(index);
        if revision.key == case.lease {
            if writer.is_none() {
                edited.push((made(revision), now.clone()));
            }
            let after = revision.after.as_deref();
            let next = after.map_or_else(String::new, |lease| holder(lease).into());
            if let Some(call) = writer.filter(|_| next.is_empty() && !now.is_empty()) {
                // Recorded by pod: a previous container of the pod may have sent the write in flight.
                gave_back.insert(case.pod(call), call.begun);
            }
            now = next;
            continue;
        }
        let is_work = !matches!(
            revision.key.kind,
            Kind::Lease | Kind::Event | Kind::ServiceAccount
        );
        let Some(call) = writer.filter(|_| is_work) else {
            continue;
        };
        let pod = case.pod(call);
        if pod_of(&now) == pod {
            continue;
        }
        let mut edited = edited.iter();
        let settings = case.life(call.who).map(|life| &life.settings);
        let margin = settings.map_or(Duration::ZERO, |settings| {
            let lease_ends = case.shortest(settings.lease_duration);
            lease_ends.saturating_sub(case.longest(settings.renew_deadline))
        });
        let was_over = gave_back.get(pod).is_some_and(|at| call.sent < *at);
        // The previous leader learns of the edit later, and its writes may land later still. A release ends the excuse, because
        // it waits for the writes in flight.
        let is_untold = edited.any(|(at, before)| {
            let known = *at + term_ends;
            pod_of(before) == pod && call.sent <= known
        });
        let is_untold = is_untold && !was_over;
        let was_late = made(revision).saturating_sub(call.sent) >= margin
            && (!was_over || stood_still(case, call, made(revision)));
        if is_untold || was_late {
            continue;
        }
        let holder = if now.is_empty() { "nobody" } else { &now };
        found.push(Violation {
            invariant: "I1",
            at: made(revision),
            object: named(&revision.key),
            what: format!("written by {pod}, while {holder} held the Lease"),
        });
    }
}

/// Returns whether the receiving API server or the sending machine was suspended before the call was carried out.
fn stood_still(case: &Case, call: &Call, carried_out: Time) -> bool {
    let is_then = |time: &Range<Time>| time.start < carried_out && call.sent < time.end;
    let mut asleep = case.asleep.get(&call.who.replica).into_iter().flatten();
    let mut faults = case.trace.faults.iter();
    asleep.any(is_then)
        || faults.any(|(time, fault)| {
            matches!(fault, Fault::Pause { server } if *server == call.server) && is_then(time)
        })
}

/// Term of a process.
struct Term<'a> {
    pod: &'a str,
    /// When the attempt that gained the term had read the Lease. `landed`: when its write arrived. `from`: when the response
    /// came.
    read: Time,
    landed: Time,
    from: Time,
    until: Time,
    /// Configured value, which may differ from the Lease.
    lease_duration: Duration,
    /// Index of the write that gained the term, in the store's history.
    gained: usize,
    /// States of the Lease (indexes into the store's history) that this process received from its watch or a read, and when.
    looks: Rc<Vec<(Time, Range<usize>)>>,
}

/// The terms of two processes do not overlap, as each process sees its own term. A term begins with the response that grants it.
/// It ends with the deadline of the last renewal, the release, or the end of the process.
///
/// There are three exceptions:
/// - A process that has not seen the Lease held cannot distinguish a release by the holder from an edit by another client.
/// - A restored backup brings back another holder, which continues. The previous leader works until its deadline.
/// - Another client shortens the Lease of a leader whose configured duration is longer than that of its successor. The
///   successor cannot know the deadline of the leader.
pub fn one_leads(case: &Case, found: &mut Vec<Violation>) {
    let deadline = case.longest_of(|settings| settings.renew_deadline);
    let cleared = cleared(case);
    let shortened = shortened(case);
    let restored = restored(case);
    let lives = case.trace.lives.iter();
    let mut terms: Vec<_> = lives.flat_map(|life| terms_of(case, life)).collect();
    terms.sort_by_key(|term| term.landed);
    for (number, one) in terms.iter().enumerate() {
        let mut later = terms[number + 1..].iter();
        let overlaps = |other: &&Term| {
            let mut cleared = cleared.iter();
            // Includes the successors of a process that could not know.
            let cannot_know = cleared.any(|(at, cleared)| {
                let mut before = terms.iter().filter(|term| term.landed <= other.landed);
                one.gained < cleared.end
                    && other.from <= *at + deadline
                    && before.any(|term| {
                        let by_then = term.looks.iter().filter(|(at, _)| *at <= term.read);
                        let looked = |at: Range<usize>| {
                            let mut looks = by_then.clone();
                            looks.any(|(_, look)| look.start < at.end && at.start < look.end)
                        };
                        term.gained == cleared.end
                            && term.pod != one.pod
                            && !looked(one.gained..cleared.start)
                            && looked(cleared.clone())
                    })
            });
            // Neither process has renewed since the restore. A write may land in the same step as the restore.
            let mut restored = restored.iter();
            let is_restored = restored.any(|restored| {
                let until = one.until.min(other.until);
                one.landed <= *restored + STEP
                    && *restored < other.from
                    && until <= *restored + deadline
            });
            // The other process uses the shortened duration, because its configured duration is shorter.
            let mut shortened = shortened.iter();
            let is_shortened = shortened.any(|shortened| {
                (one.landed..other.from).contains(shortened) && other.from <= *shortened + deadline
            }) && other.lease_duration < one.lease_duration;
            let is_granted = cannot_know || is_restored || is_shortened;
            let overlaps = other.from < one.until && one.from < other.until;
            overlaps && other.pod != one.pod && !is_granted
        };
        if let Some(other) = later.find(overlaps) {
            found.push(Violation {
                invariant: "I9",
                at: other.from,
                object: other.pod.to_owned(),
                what: format!("leads while {} does, until {:?}", one.pod, one.until),
            });
        }
    }
}

/// Returns the index of the Lease's state at this time. With a version, returns the state that a watch at that version has
/// delivered.
fn as_of(case: &Case, time: Time, version: Option<u64>) -> usize {
    let history = case.store.history().iter().enumerate();
    let mut leases = history
        .rev()
        .filter(|(_, one)| one.key == case.lease && made(one) <= time);
    let is_it = |one: &Revision| {
        version.is_none_or(|version| {
            let own = one
                .after
                .as_deref()
                .map(|lease| &lease["metadata"]["resourceVersion"]);
            // A restored object has its old resourceVersion.
            one.version <= version || own.and_then(Value::as_str) == Some(&*version.to_string())
        })
    };
    leases
        .find(|(_, one)| is_it(one))
        .map_or(0, |(index, _)| index)
}

/// Returns when a restored backup changed the holder of the Lease.
fn restored(case: &Case) -> Vec<Time> {
    let history = case.store.history().iter();
    let its = history.filter(|one| one.key == case.lease && *one.by == *RESTORED);
    let of = |lease: &Option<Arc<Value>>| lease.as_deref().map_or("", holder).to_owned();
    its.filter(|one| of(&one.before) != of(&one.after))
        .map(|one| made(one))
        .collect()
}

/// Returns when a client other than a replica shortened the duration of the Lease.
fn shortened(case: &Case) -> Vec<Time> {
    let lasts = |lease: Option<&Value>| lease?["spec"]["leaseDurationSeconds"].as_i64();
    let (mut shortened, mut before) = (Vec::new(), None);
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key == case.lease {
            let after = lasts(revision.after.as_deref());
            if case.writer(index).is_none() && after.is_some() && after < before {
                shortened.push(made(revision));
            }
            before = after;
        }
    }
    shortened
}

/// Returns the terms of one process, as it sees them.
fn terms_of<'a>(case: &Case<'a>, life: &'a Life) -> Vec<Term<'a>> {
    let mut terms = Vec::new();
    let calls = || {
        let calls = case.trace.calls.iter();
        calls.filter(|call| call.who == life.who && call.resource == "leases")
    };
    let looks = calls().flat_map(|call| {
        let is_answered = call
            .answered
            .is_some_and(|(at, code)| code < 300 && is_awaited(case, life, call.begun, at));
        let looked = call.answered.zip(call.arrived).filter(|_| {
            let is_read = is_answered && !call.is_spoilt();
            is_read && call.verb == "get"
        });
        let looked = looked.map(|((at, _), arrived)| {
            let seen = as_of(case, arrived, None);
            (at, seen..seen + 1)
        });
        // A process that stands still does not see the changes that its watch delivers.
        let is_still = |at: &Time| {
            let mut still = life.still.iter().cloned().chain(case.asleep(life.who));
            still.any(|still| still.contains(at))
        };
        // Nor does it see changes that arrive on a watch that it has closed.
        let is_read = |at: &Time| call.over.is_none_or(|over| *at <= over);
        // A delivery includes all changes since the previous delivery.
        let mut before = None;
        let told = call.told.iter().map(move |(at, version)| {
            let seen = as_of(case, *at, Some(*version));
            let from = before
                .replace(seen)
                .map_or(seen, |before| seen.min(before + 1));
            (*at, from..seen + 1)
        });
        looked
            .into_iter()
            .chain(told.filter(move |(at, _)| is_read(at) && !is_still(at)))
    });
    let looks = Rc::new(looks.collect::<Vec<_>>());
    let ended = life.ended.as_ref().map_or(case.plan.end, |(at, _)| *at);
    let identity = life.identity();
    let (mut looked, mut term) = (None, None::<Term>);
    let attempts = attempts(calls());
    for call in calls() {
        let answered = call.answered.filter(|(_, code)| *code < 300);
        let gives_back = || {
            call.body
                .pointer("/spec/holderIdentity")
                .is_some_and(|holder| matches!(holder.as_str(), None | Some("")))
        };
        if call.verb == "get" {
            let read = call.answered.map_or(call.begun, |(at, _)| at);
            looked = Some((call.begun, read));
            // A response that names another holder ends the term.
            if let Some((at, _)) = answered
                && is_awaited(case, life, call.begun, at)
                && is_of_another(call, &identity)
                && let Some(mut over) = term.take()
            {
                over.until = over.until.min(at);
                terms.push(over);
            }
        } else if call.verb == "patch" && gives_back() {
            let Some(mut over) = term.take() else {
                continue;
            };
            over.until = over.until.min(call.begun);
            terms.push(over);
        } else if let Some((answered, (looked, read))) = won(call, &identity).zip(looked) {
            if is_given_up(call, answered, &attempts) || !is_awaited(case, life, looked, answered) {
                continue;
            }
            let deadline = life.settings.renew_deadline;
            let until = (looked + case.takes(life.who, deadline)).min(ended);
            // A process that stands still reads the response later. Its term may have ended by then.
            let mut still = life.still.iter();
            let thawed = still.find(|still| still.contains(&answered));
            let answered = thawed.map_or(answered, |still| still.end);
            if until <= answered {
                continue;
            }
            match &mut term {
                Some(term) if answered <= term.until => term.until = until,
                none => {
                    let next = Term {
                        pod: &life.pod.0,
                        read,
                        landed: call.arrived.unwrap_or(answered),
                        from: answered,
                        until,
                        lease_duration: life.settings.lease_duration,
                        gained: call.written.start,
                        looks: Rc::clone(&looks),
                    };
                    terms.extend(none.replace(next));
                }
            }
        }
    }
    terms.extend(term);
    terms
}

/// Returns the parts of the history, with their start times, when another client had cleared the holder of the Lease as the
/// holder would. A part ends when the Lease is held again or is deleted.
fn cleared(case: &Case) -> Vec<(Time, Range<usize>)> {
    let (mut cleared, mut since) = (Vec::new(), None);
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key != case.lease {
            continue;
        }
        let after = revision.after.as_deref();
        let is_signed = |lease: &Value| lease["spec"]["leaseDurationSeconds"] == 1;
        if after.is_none_or(|lease| !holder(lease).is_empty()) {
            cleared.extend(since.take().map(|(at, since)| (at, since..index)));
        } else if case.writer(index).is_none() && after.is_some_and(is_signed) {
            since.get_or_insert((made(revision), index));
        }
    }
    cleared
}

/// No write is sent after the end of the sender's term, nor after a response that names another holder. This is judged with the
/// knowledge of each process, and with a tolerance of two steps. Each write has a `timeout=` that ends before another replica can
/// take the Lease, even if the kernel delivers the write as late as possible.
pub fn keeps_to_its_term(case: &Case, found: &mut Vec<Violation>) {
    const SLACK: Duration = STEP.saturating_mul(2);
    for life in &case.trace.lives {
        let deadline = life.settings.renew_deadline;
        let lease = life.settings.lease_duration;
        // Clocks may differ by 1/500.
        let overtime = lease.saturating_sub(deadline + lease / 500 + longest_way(lease, deadline));
        let overtime = case.takes(life.who, overtime);
        let identity = life.identity();
        let calls = || case.trace.calls.iter().filter(|call| call.who == life.who);
        // When each response came, and the end of the term that it grants. `None`: another replica holds the Lease.
        let (mut looked, mut told) = (None, Vec::new());
        let attempts = attempts(calls().filter(|call| call.resource == "leases"));
        for call in calls().filter(|call| call.resource == "leases") {
            if call.verb == "get" {
                looked = Some(call.begun);
            }
            let Some((at, begun)) = call.answered.map(|(at, _)| at).zip(looked) else {
                continue;
            };
            if is_given_up(call, at, &attempts) || !is_awaited(case, life, begun, at) {
                continue;
            }
            if won(call, &identity).is_some() {
                told.push((at, Some(begun + case.takes(life.who, deadline))));
            } else if matches!(call.verb, "get" | "patch") && is_of_another(call, &identity) {
                told.push((at, None));
            }
        }
        told.sort_unstable();
        for call in calls().filter(|call| call.is_work()) {
            // The process may not have read a response that has just arrived.
            let read = told.partition_point(|(at, _)| *at + SLACK < call.sent);
            let arrived = told.partition_point(|(at, _)| *at <= call.sent);
            let term = told[..arrived].iter().skip(read.saturating_sub(1));
            let until = term.filter_map(|(_, until)| *until).max();
            // The sender measures this time with its own clock.
            let limit = call.limit().map(|limit| case.takes(life.who, limit));
            let what = match (until, limit) {
                (None, _) => "sent without a term".to_owned(),
                (Some(until), _) if call.sent > until + SLACK => {
                    let late = call.sent.saturating_sub(until);
                    format!("sent {late:?} past the end of the term")
                }
                (_, None) => "says not when it has to be over".to_owned(),
                (Some(until), Some(limit)) if call.sent + limit > until + overtime + SLACK => {
                    format!(
                        "may take {limit:?}, {:?} before the end of the term, and {overtime:?} after",
                        until.saturating_sub(call.sent)
                    )
                }
                _ => continue,
            };
            found.push(Violation {
                invariant: "I2",
                at: call.sent,
                object: life.pod.0.clone(),
                what: format!("{} {}: {what}", call.verb, call.resource),
            });
        }
    }
}

/// Returns when each attempt to write the Lease began.
fn attempts<'a>(calls: impl Iterator<Item = &'a Call>) -> Vec<Time> {
    let attempts = calls.filter(|call| call.verb == "patch");
    attempts.map(|call| call.begun).collect()
}

/// Returns whether a later attempt had begun before the response arrived. It cancels the earlier attempt.
fn is_given_up(call: &Call, answered: Time, attempts: &[Time]) -> bool {
    let mut attempts = attempts.iter();
    attempts.any(|next| call.begun < *next && *next < answered)
}

/// Returns whether the process still waited for the response to an attempt. Timers stand still while the machine sleeps. A
/// process that is frozen when the timer fires reads the response first when it thaws.
fn is_awaited(case: &Case, life: &Life, begun: Time, answered: Time) -> bool {
    let due = case.by_its_clock(life.who, begun, attempt(&life.settings));
    let mut still = life.still.iter();
    let frozen = still.find(|still| still.contains(&due));
    answered <= frozen.map_or(due, |frozen| frozen.end)
}

/// Returns the timeout of an attempt to write the Lease.
fn attempt(settings: &Settings) -> Duration {
    (settings.renew_deadline / 2).max(Duration::from_secs(1))
}

/// Returns whether the response is readable and names another holder.
fn is_of_another(call: &Call, identity: &str) -> bool {
    let answer = call.answer.as_deref().filter(|_| !call.is_spoilt());
    answer.is_some_and(|lease| ![identity, ""].contains(&holder(lease)))
}

/// Returns when the response came that made this process the holder.
fn won(call: &Call, identity: &str) -> Option<Time> {
    let (at, code) = call.answered?;
    let is_write = matches!(call.verb, "patch" | "create" | "update");
    let is_holder = holder(call.answer.as_deref()?) == identity;
    // To other replicas, a write that changes nothing is no renewal.
    let is_write = is_write && !call.written.is_empty();
    (is_write && is_holder && (200..300).contains(&code)).then_some(at)
}

/// Soon after the last fault, the Lease names a running process that renews it until the end.
pub fn somebody_leads(case: &Case, found: &mut Vec<Violation>) {
    let Some(from) = leads_from(case) else {
        return;
    };
    // The leader works until its own deadline. By then, the other replicas have seen a change of the Lease.
    let renewed = case.longest_of(|settings| settings.renew_deadline);
    let end = case.plan.end;
    let mut wrong = |at: Time, what: String| {
        found.push(Violation {
            invariant: "I10",
            at,
            object: named(&case.lease),
            what,
        });
    };
    if from + renewed >= end {
        return wrong(
            end,
            format!("may be nobody's until {from:?}: nothing is judged"),
        );
    }
    let is_up = |identity: &str, at: Time| {
        let lives = case.trace.lives.iter();
        let mut its = lives.filter(|life| life.identity() == identity);
        its.any(|life| life.begun <= at && life.ended.as_ref().is_none_or(|(ended, _)| *ended > at))
    };
    let (mut now, mut since) = (String::new(), Time::ZERO);
    let ours = case
        .store
        .history()
        .iter()
        .filter(|revision| revision.key == case.lease);
    let writes = ours.map(|revision| {
        (
            made(revision),
            revision.after.as_deref().map(holder).unwrap_or_default(),
        )
    });
    for (at, next) in writes.chain([(end, "")]) {
        let checked = since.max(from);
        // A released Lease must be taken as quickly as a held Lease must be renewed.
        if at > checked && at < end && !now.is_empty() && !is_up(&now, checked) {
            return wrong(
                checked,
                format!("held by {now:?}, which is nobody who is there"),
            );
        }
        if at > checked + renewed {
            let late = at.saturating_sub(checked);
            return wrong(checked, format!("not renewed by {now:?} for {late:?}"));
        }
        if since >= case.plan.rest && at < end && now != next {
            return wrong(checked, format!("goes from {now:?} to {next:?} at rest"));
        }
        (now, since) = (next.to_owned(), at);
    }
}

/// Returns when a replica must lead at the latest, or `None` if no replica can lead.
fn leads_from(case: &Case) -> Option<Time> {
    /// Longest wait for the response to a watch. `ANEW` is the time to reopen the watch.
    const ANSWER: Duration = Duration::from_mins(1);
    const ANEW: Duration = Duration::from_secs(8);
    let goes_on = |replica: usize| {
        let mut for_good = case
            .trace
            .faults
            .iter()
            .filter(|(time, _)| time.end == Time::MAX);
        for_good.any(|(_, fault)| fault.is_about(replica))
    };
    let end = case.plan.end;
    let over = case.trace.faults.iter().map(|(time, _)| time.end);
    let over = over.filter(|over| *over < Time::MAX);
    let edits = case.store.history().iter().enumerate();
    let edits = edits.filter(|(index, it)| it.key == case.lease && case.writer(*index).is_none());
    let edits = edits.map(|(_, revision)| made(revision));
    let lives = || case.trace.lives.iter();
    let ends = lives().filter_map(|life| life.ended.as_ref().map(|(at, _)| *at));
    // A message to a sleeping machine arrives later, because the clock of the machine stood still.
    let asleep = case.asleep.values();
    let asleep = asleep.flat_map(|all| all.iter().map(|time| comes_at(all, time.end)));
    let calm = over.chain(edits).chain(ends).chain(asleep).max();
    let calm = calm.unwrap_or_default();
    // A replica can work when its earlier requests have been answered or have timed out.
    let there = lives().filter(|life| life.ended.is_none() && !goes_on(life.who.replica));
    let able = there.map(|life| {
        let waits = |call: &&Call| {
            call.who == life.who
                && matches!(call.verb, "list" | "stream" | "watch")
                && call.resource != "leases"
                && match call.answered {
                    // A fault has not delayed a request that was sent after it.
                    None => call.begun <= calm || call.begun + case.longest(ANSWER) < end,
                    Some(_) => call.begun <= calm,
                }
        };
        let waits = case.trace.calls.iter().filter(waits);
        let answered = waits.map(|call| {
            let until = case.by_its_clock(call.who, call.begun, ANSWER);
            // A response may specify `Retry-After`.
            let asked = call.retry_after.unwrap_or_default().min(ASKED);
            call.answered.map_or(until, |(at, _)| {
                case.by_its_clock(call.who, at, asked).min(until)
            })
        });
        let answered = answered.max().unwrap_or_default();
        calm.max(life.begun).max(answered)
    });
    let taken = case.longest_of(|settings| {
        settings.lease_duration + attempt(settings) + settings.retry_period * 3
    });
    Some(able.min()? + case.longest(ANEW + YIELD_DELAY) + taken)
}
