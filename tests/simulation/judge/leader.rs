//! Who may write, and that somebody does: I1, I9 and I10.

use std::{collections::BTreeMap, ops::Range, rc::Rc, sync::Arc, time::Duration};

use operator_runtime::election::YIELD_DELAY;
use serde_json::Value;

use super::{
    super::{
        api::{Key, Kind, RESTORED, Revision},
        network::longest_way,
        plan::{Fault, Settings},
        trace::{Call, Life, Time, comes_at},
        users::{LEASE, LEASE_NAMESPACE},
    },
    ASKED, Case, STEP, Violation, made, named, pod_of,
};

pub fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

pub fn lease() -> Key {
    Key::new(Kind::Lease, LEASE_NAMESPACE, LEASE)
}

/// I1: whoever writes a Deployment or a Foo's status holds the Lease at that moment, in the order of the store.
///
/// Two things are granted. Who led when somebody else than a replica edits the Lease, or a backup is restored that has another
/// one, works until it sees that, which its deadline bounds (H12). And a request that was on its way for longer than lies between a term's end and the Lease's lands
/// late: its preconditions are what makes it harmless. But who gives the Lease back has seen to it before that nothing of its
/// own is on its way any more (H19), unless the API server that it was sent to, or its own machine, stands still meanwhile.
pub fn holds_the_lease(case: &Case, found: &mut Vec<Violation>) {
    let term_ends = case.longest_of(|settings| settings.renew_deadline);
    let (mut now, mut edited) = (String::new(), Vec::<(Time, String)>::new());
    let mut gave_back = BTreeMap::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let writer = case.writer(index);
        if revision.key == lease() {
            if writer.is_none() {
                edited.push((made(revision), now.clone()));
            }
            let after = revision.after.as_deref();
            let next = after.map_or_else(String::new, |lease| holder(lease).into());
            if let Some(call) = writer.filter(|_| next.is_empty() && !now.is_empty()) {
                // Of its pod: another container may have sent what is on its way.
                gave_back.insert(case.pod(call), call.begun);
            }
            now = next;
            continue;
        }
        let is_work = matches!(revision.key.kind, Kind::Deployment | Kind::Foo);
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
        // It does not know of that before, and what it has sent by then may land later, but for what is seen to (H19).
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

/// Whether the API server that it was sent to, or the machine that it was sent from, stood still before it was carried out.
fn stood_still(case: &Case, call: &Call, carried_out: Time) -> bool {
    let is_then = |time: &Range<Time>| time.start < carried_out && call.sent < time.end;
    let mut asleep = case.asleep.get(&call.who.replica).into_iter().flatten();
    let mut faults = case.trace.faults.iter();
    asleep.any(is_then)
        || faults.any(|(time, fault)| {
            matches!(fault, Fault::Pause { server } if *server == call.server) && is_then(time)
        })
}

/// A time in which a process had a term.
struct Term<'a> {
    pod: &'a str,
    /// When the attempt that gained it had read the Lease, when its write landed, and when that was answered.
    read: Time,
    landed: Time,
    from: Time,
    until: Time,
    /// As it is configured.
    lease_duration: Duration,
    /// What gained it, in the store's history.
    gained: usize,
    /// What this process was told of the Lease, in the store's history, and when: by its watch, or by looking.
    looks: Rc<Vec<(Time, Range<usize>)>>,
}

/// I9: the terms of no two processes overlap, as each sees its own: from the answer that made it the leader to the deadline
/// of its last renewal, its release, or its end.
///
/// Three things are granted: who has not seen the Lease held, and sees it given back, cannot know that it was somebody else
/// than its holder who did that (H21); where a backup is restored that another one holds, that one goes on where it was,
/// and who led does so until its deadline; and where somebody shortens the Lease of one who is configured with longer than the
/// next is, that next one cannot know of its deadline (H15).
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
            // Nor can who takes it after somebody who could not.
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
            // Neither has renewed since. It takes a step of the world's, in which something may land.
            let mut restored = restored.iter();
            let is_restored = restored.any(|restored| {
                let until = one.until.min(other.until);
                one.landed <= *restored + STEP
                    && *restored < other.from
                    && until <= *restored + deadline
            });
            // By which the other one goes, who is configured with less (H15).
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

/// What the Lease was, in the store's history, at this time; of what a watch tells, as of this version.
fn as_of(case: &Case, time: Time, version: Option<u64>) -> usize {
    let history = case.store.history().iter().enumerate();
    let mut leases = history
        .rev()
        .filter(|(_, one)| one.key == lease() && made(one) <= time);
    let is_it = |one: &Revision| {
        version.is_none_or(|version| {
            let own = one
                .after
                .as_deref()
                .map(|lease| &lease["metadata"]["resourceVersion"]);
            // A backup brings back what it is of, as it was.
            one.version <= version || own.and_then(Value::as_str) == Some(&*version.to_string())
        })
    };
    leases
        .find(|(_, one)| is_it(one))
        .map_or(0, |(index, _)| index)
}

/// When a backup was restored that another one holds, or nobody.
fn restored(case: &Case) -> Vec<Time> {
    let history = case.store.history().iter();
    let its = history.filter(|one| one.key == lease() && *one.by == *RESTORED);
    let of = |lease: &Option<Arc<Value>>| lease.as_deref().map_or("", holder).to_owned();
    its.filter(|one| of(&one.before) != of(&one.after))
        .map(|one| made(one))
        .collect()
}

/// When somebody else than a replica made the Lease's duration shorter.
fn shortened(case: &Case) -> Vec<Time> {
    let lasts = |lease: Option<&Value>| lease?["spec"]["leaseDurationSeconds"].as_i64();
    let (mut shortened, mut before) = (Vec::new(), None);
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key == lease() {
            let after = lasts(revision.after.as_deref());
            if case.writer(index).is_none() && after.is_some() && after < before {
                shortened.push(made(revision));
            }
            before = after;
        }
    }
    shortened
}

/// The terms of one process, as it sees them.
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
        // What its watch is told while it stands still it has not seen.
        let is_still = |at: &Time| {
            let mut still = life.still.iter().cloned().chain(case.asleep(life.who));
            still.any(|still| still.contains(at))
        };
        // Nor what comes for a watch that it has given up.
        let is_read = |at: &Time| call.over.is_none_or(|over| *at <= over);
        // With all that comes between.
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
            // Who is told that somebody else holds it has no term any more.
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
            // Who stands still when the answer comes reads it later, and may find that its term is over by then.
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

/// Where in the store's history the Lease named nobody because somebody else than a replica had cleared it, as its holder would have
/// (H21), until it named somebody again, or was gone; and since when.
fn cleared(case: &Case) -> Vec<(Time, Range<usize>)> {
    let (mut cleared, mut since) = (Vec::new(), None);
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key != lease() {
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

/// I2, as each process itself can know it, to the step: no write of the work is sent past the end of its sender's term, or
/// after an answer told it that another replica holds the Lease; and each names a time to the API server that ends before the Lease
/// can be another's, though the write is on its way for as long as the kernel lets it.
pub fn keeps_to_its_term(case: &Case, found: &mut Vec<Violation>) {
    const SLACK: Duration = STEP.saturating_mul(2);
    for life in &case.trace.lives {
        let deadline = life.settings.renew_deadline;
        let lease = life.settings.lease_duration;
        // Clocks differ by a 500th.
        let overtime = lease.saturating_sub(deadline + lease / 500 + longest_way(lease, deadline));
        let overtime = case.takes(life.who, overtime);
        let identity = life.identity();
        let calls = || case.trace.calls.iter().filter(|call| call.who == life.who);
        // Each answer: when it came, and until when the term lasts that it gave; `None`: it is somebody else's.
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
            // What has just come may not have been read yet.
            let read = told.partition_point(|(at, _)| *at + SLACK < call.sent);
            let arrived = told.partition_point(|(at, _)| *at <= call.sent);
            let term = told[..arrived].iter().skip(read.saturating_sub(1));
            let until = term.filter_map(|(_, until)| *until).max();
            // By its own clock: whoever sends it knows no other.
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

/// When each attempt to write the Lease began.
fn attempts<'a>(calls: impl Iterator<Item = &'a Call>) -> Vec<Time> {
    let attempts = calls.filter(|call| call.verb == "patch");
    attempts.map(|call| call.begun).collect()
}

/// Whether another attempt had begun by the time of the answer, which gives up the one before.
fn is_given_up(call: &Call, answered: Time, attempts: &[Time]) -> bool {
    let mut attempts = attempts.iter();
    attempts.any(|next| call.begun < *next && *next < answered)
}

/// Whether the answer to an attempt on the Lease came while the process still waited for it. Its timers stand still while its
/// machine sleeps; and who is frozen when one fires looks for the answer first when it thaws.
fn is_awaited(case: &Case, life: &Life, begun: Time, answered: Time) -> bool {
    let due = case.by_its_clock(life.who, begun, attempt(&life.settings));
    let mut still = life.still.iter();
    let frozen = still.find(|still| still.contains(&due));
    answered <= frozen.map_or(due, |frozen| frozen.end)
}

/// How long an attempt on the Lease may take.
fn attempt(settings: &Settings) -> Duration {
    (settings.renew_deadline / 2).max(Duration::from_secs(1))
}

/// Whether the answer says that somebody else holds the Lease, and can be read.
fn is_of_another(call: &Call, identity: &str) -> bool {
    let answer = call.answer.as_deref().filter(|_| !call.is_spoilt());
    answer.is_some_and(|lease| ![identity, ""].contains(&holder(lease)))
}

/// When the answer came that made this one the holder.
fn won(call: &Call, identity: &str) -> Option<Time> {
    let (at, code) = call.answered?;
    let is_write = matches!(call.verb, "patch" | "create" | "update");
    let is_holder = holder(call.answer.as_deref()?) == identity;
    // What changed nothing is no renewal to the others (H11).
    let is_write = is_write && !call.written.is_empty();
    (is_write && is_holder && (200..300).contains(&code)).then_some(at)
}

/// I10: as soon as it can be after the last thing that went wrong, the Lease names a process that is there, and that renews
/// it, to the end.
pub fn somebody_leads(case: &Case, found: &mut Vec<Violation>) {
    let Some(from) = leads_from(case) else {
        return;
    };
    // Who leads works until its own deadline, and by then others have seen the Lease change.
    let renewed = case.longest_of(|settings| settings.renew_deadline);
    let end = case.plan.end;
    let mut wrong = |at: Time, what: String| {
        found.push(Violation {
            invariant: "I10",
            at,
            object: named(&lease()),
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
        .filter(|revision| revision.key == lease());
    let writes = ours.map(|revision| {
        (
            made(revision),
            revision.after.as_deref().map(holder).unwrap_or_default(),
        )
    });
    for (at, next) in writes.chain([(end, "")]) {
        let checked = since.max(from);
        // Who lets go has to be followed as soon as who is to renew has to.
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

/// From when on somebody has to lead; `None`: there is nobody who could.
fn leads_from(case: &Case) -> Option<Time> {
    /// What a watch's answer is waited for, and then how long it may take to be opened anew.
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
    let edits = edits.filter(|(index, it)| it.key == lease() && case.writer(*index).is_none());
    let edits = edits.map(|(_, revision)| made(revision));
    let lives = || case.trace.lives.iter();
    let ends = lives().filter_map(|life| life.ended.as_ref().map(|(at, _)| *at));
    // What came to a machine that slept comes by its clock, which stood still.
    let asleep = case.asleep.values();
    let asleep = asleep.flat_map(|all| all.iter().map(|time| comes_at(all, time.end)));
    let calm = over.chain(edits).chain(ends).chain(asleep).max();
    let calm = calm.unwrap_or_default();
    // When each that is there at the end can do its work: what was asked before, and is answered late or never, it waits for.
    let there = lives().filter(|life| life.ended.is_none() && !goes_on(life.who.replica));
    let able = there.map(|life| {
        let waits = |call: &&Call| {
            call.who == life.who
                && matches!(call.verb, "list" | "stream" | "watch")
                && call.resource != "leases"
                && match call.answered {
                    // What has only just been asked waits for nothing that went wrong.
                    None => call.begun <= calm || call.begun + case.longest(ANSWER) < end,
                    Some(_) => call.begun <= calm,
                }
        };
        let waits = case.trace.calls.iter().filter(waits);
        let answered = waits.map(|call| {
            let until = case.by_its_clock(call.who, call.begun, ANSWER);
            // Or for as long as the answer asks.
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
