//! An Event about a Foo is true.

use operator_simulation::judge::{
    Case, Violation, fields::text, hindered::felt_until, works::SOON,
};

use super::warnings::{LATE, OVERRULED, TOLD, is_in_the_way, is_over};

/// The reason of a Warning Event about a Foo is also in a status that the same process sends.
pub fn are_true(case: &Case, found: &mut Vec<Violation>) {
    for call in &case.trace.calls {
        let reason = text(&call.body["reason"]);
        let is_warning = call.resource == "events" && call.verb == "create";
        // This reason may be in an Event alone.
        if !is_warning || !TOLD.contains(&reason) || reason == OVERRULED {
            continue;
        }
        let Some(life) = case.life(call.who) else {
            continue;
        };
        // An Event may be written long after its cause. A status that finds no connection is not a call.
        let until = life.has_had(call.begun, case.takes(call.who, SOON));
        let then = call.begun.saturating_sub(LATE)..until;
        let is_cut_off = case.trace.faults.iter().any(|(time, fault)| {
            let is_then = time.start < then.end && felt_until(case, time, fault) > then.start;
            is_then && is_in_the_way(fault) && fault.is_about(call.who.replica)
        });
        // A term that expires while its holder stands still continues after the next renewal. Until then, writes are not sent.
        let is_cut_off = is_cut_off
            || (life.still.iter()).any(|still| still.start < then.end && still.end > then.start);
        let ended = life.ended.as_ref().map_or(case.plan.end, |(at, _)| *at);
        let about = &call.body["regarding"]["uid"];
        let statuses = case.trace.calls.iter().filter(|other| {
            other.who == call.who
                && other.resource == "foos/status"
                && other.begun <= until
                && other.body["metadata"]["uid"] == *about
        });
        let (before, mut within): (Vec<_>, Vec<_>) =
            statuses.partition(|other| other.begun < then.start);
        within.extend(before.last());
        let is_reported = within.iter().any(|other| {
            let conditions = other.body["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| one["reason"] == reason)
        });
        if !is_reported && !is_cut_off && ended > until && !is_over(case, call.who, &then) {
            found.push(Violation {
                invariant: "I14",
                at: call.begun,
                object: text(&call.body["regarding"]["name"]).to_owned(),
                what: format!("warns of {reason}, which no status says"),
            });
        }
    }
}
