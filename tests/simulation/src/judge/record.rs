//! The leader writes the fencing record.

use operator_simulation::{
    judge::{
        Case, Violation, fields::text, hindered::is_hindered, leader::holder, made, works::holds,
    },
    trace::{Call, Life, Time},
};

use super::super::invariants::{FENCING, FENCING_TERM};

/// A write of the fencing record requires the version that was read. After that read, its writer has seen its own name in the
/// Lease. Otherwise a deposed leader could overwrite the record of its successor.
pub fn was_read(case: &Case, found: &mut Vec<Violation>) {
    let is_record = |call: &&Call| call.resource == "serviceaccounts";
    let calls = case.trace.calls.iter();
    for write in calls.filter(is_record).filter(|call| call.verb == "patch") {
        let identity = case.life(write.who).map(Life::identity);
        let looks = |resource: &'static str| {
            let calls = case.trace.calls.iter();
            calls.filter(move |call| {
                call.who == write.who
                    && call.verb == "get"
                    && call.resource == resource
                    && (call.answered).is_some_and(|(at, code)| at <= write.begun && code == 200)
            })
        };
        let base = text(&write.body["metadata"]["resourceVersion"]);
        let version = |call: &Call| {
            let answer = call.answer.as_deref()?;
            Some(text(&answer["metadata"]["resourceVersion"]).to_owned())
        };
        let is_read = |look: &&Call| version(look).as_deref() == Some(base);
        let mut reads = looks("serviceaccounts").filter(is_read).peekable();
        let was_read = reads.peek().is_some();
        // A read may belong to an earlier attempt whose response came late.
        let is_named = reads.filter_map(|look| look.answered).any(|(read, _)| {
            let mut later = looks("leases").filter(|look| read <= look.begun);
            later.any(|look| look.answer.as_deref().map(holder) == identity.as_deref())
        });
        let what = if base.is_empty() {
            "on no condition"
        } else if !was_read {
            "on the condition that it is what was not read"
        } else if !is_named {
            "with no look at the Lease since it was read"
        } else {
            continue;
        };
        found.push(Violation {
            invariant: "I8",
            at: write.sent,
            object: write.who.to_string(),
            what: format!("writes the fencing record {what}"),
        });
    }
}

/// In a new term, the fencing record is up to date before the first write of the work, unless a fault obstructs it. Otherwise
/// the fencing policy would reject the first writes of each term, because it still accepts the previous leader.
pub fn is_waited_for(case: &Case, found: &mut Vec<Violation>) {
    let holds = holds(case);
    for (index, hold) in holds.iter().enumerate() {
        let mut history = case.store.history().iter().enumerate();
        let begins = history.find(|(_, one)| one.key == case.lease && made(one) == hold.from);
        // The Lease was renewed after the holder's deadline, and no other replica led in between.
        let is_renewed = begins.is_none_or(|(_, one)| {
            let [before, after] = [&one.before, &one.after].map(|it| it.as_deref().map(holder));
            before == after
        });
        // The next renewal may be as slow as this one. Half of the time that it leaves is available for the record.
        let is_late = begins.is_some_and(|(index, _)| {
            let writer = case.writer(index);
            writer.is_some_and(|call| call.felt && call.answered.is_some())
        });
        if is_renewed || is_late {
            continue;
        }
        let its = || {
            let calls = case.trace.calls.iter();
            calls.filter(|call| {
                call.who == hold.who && call.begun > hold.from && call.begun < hold.until
            })
        };
        let Some(first) = its().find(|call| call.is_work()) else {
            continue;
        };
        // The term continues if the Lease was deleted in between.
        let before = index.checked_sub(1).map(|before| &holds[before]);
        let is_of_the_last_term = before.is_some_and(|before| {
            let life = case.life(hold.who);
            let term = life.map_or(Time::ZERO, |life| {
                case.longest(life.settings.renew_deadline)
            });
            before.who == hold.who && first.begun < before.until + term
        });
        let seen_to = its().filter(|call| {
            let is_over = call.answered.is_some_and(|(at, _)| at <= first.begun);
            call.resource == "serviceaccounts" && is_over
        });
        // The fencing component may be installed right after this check. An API server may store a write later than it arrives.
        let stored = |call: &Call| {
            let written = case.store.history().get(call.written.clone())?;
            written.last().map(|one| made(one))
        };
        let seen_to = seen_to.filter_map(|call| call.arrived.max(stored(call)));
        let seen_to = seen_to.max();
        let record_key = FENCING.record_key();
        let mut records = case.store.history().iter().rev();
        let record = records.find(|one| one.key == record_key && Some(made(one)) <= seen_to);
        let record = record.and_then(|one| one.after.as_deref());
        let names = record.map(|record| text(&record["metadata"]["annotations"][FENCING.holder]));
        // The term differs from all earlier terms. Otherwise a late write of another leader could restore the record of that
        // leader.
        let term = record.map(|record| &record["metadata"]["annotations"][FENCING_TERM]);
        let is_another = term.is_none_or(|term| {
            let history = case.store.history().iter();
            let mut before = history
                .filter(|one| one.key == record_key && made(one) < hold.from)
                .filter_map(|one| one.after.as_deref());
            before.all(|record| record["metadata"]["annotations"][FENCING_TERM] != *term)
        });
        let is_named = names.is_none_or(|names| {
            let leader = case.life(hold.who).map(Life::identity);
            leader.as_deref() == Some(names)
        });
        // After another client has changed the holder, the record is not written, but the term continues.
        let is_taken = || {
            let mut history = case.store.history().iter().enumerate();
            history.any(|(index, one)| {
                let is_then = hold.from <= made(one) && made(one) <= first.begun;
                let [before, after] = [&one.before, &one.after].map(|it| it.as_deref().map(holder));
                one.key == case.lease && is_then && case.writer(index).is_none() && before != after
            })
        };
        let is_excused = || is_hindered(case, hold.who, hold.from, first.begun);
        if is_of_the_last_term
            || seen_to.is_some() && is_named && is_another
            || is_taken()
            || is_excused()
        {
            continue;
        }
        found.push(Violation {
            invariant: "I8",
            at: first.begun,
            object: hold.who.to_string(),
            what: format!(
                "{} {} before the fencing record is seen to",
                first.verb, first.resource
            ),
        });
    }
}
