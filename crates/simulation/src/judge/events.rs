//! An Event reports a fact. If the fact recurs, the same Event becomes a series.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use operator_testkit::api_server::{Kind, Revision};

use super::{
    super::trace::Call,
    Case, Violation,
    converge::text,
    hindered::felt_until,
    made, named,
    warnings::{LATE, OVERRULED, TOLD, is_in_the_way, is_over},
    works::SOON,
};

/// A process does not create a second Event for the same fact about an object. It extends the first Event to a series. An Event
/// whose creation has an unknown outcome is written again under the same name.
pub fn said_once(case: &Case, found: &mut Vec<Violation>) {
    /// Minimum time between two Events about the same fact. Shorter than the retries of an Event without a response.
    const SERIES: Duration = Duration::from_secs(50);
    let mut said = BTreeMap::<_, &Revision>::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let is_new = revision.key.kind == Kind::Event && revision.before.is_none();
        let Some(call) = case.writer(index).filter(|_| is_new) else {
            continue;
        };
        let of = |field: &str| text(&call.body[field]);
        let about = text(&call.body["regarding"]["uid"]);
        let what = (call.who, about, of("type"), of("reason"), of("note"));
        let Some(earlier) = said.insert(what, revision) else {
            continue;
        };
        // The Event is gone, or a response reported it as missing or rejected.
        let is_gone = || {
            let mut since = case.store.history()[..index].iter();
            let mut calls = case.trace.calls.iter();
            let named = format!("/{}?", earlier.key.name);
            since.any(|one| one.key == earlier.key && one.after.is_none())
                || calls.any(|call| {
                    let code = call.answered.map_or(0, |(_, code)| code);
                    let is_missed = call.verb == "patch" && code == 404;
                    let is_refused = call.verb == "create" && matches!(code, 400..=408 | 410..=428);
                    is_missed && call.path.contains(&named)
                        || is_refused && text(&call.body["metadata"]["name"]) == &*earlier.key.name
                })
        };
        // The Event may have waited and been retried for a long time.
        let happened = |one: &Revision| {
            let event = one.after.as_deref()?;
            text(&event["eventTime"]).parse::<Timestamp>().ok()
        };
        let since = happened(revision).zip(happened(earlier));
        let is_long_ago =
            since.is_some_and(|(now, then)| now.duration_since(then).unsigned_abs() > SERIES);
        // The writer may have dropped the earlier Event if no response confirmed it.
        let is_given_up = || {
            let name = &*earlier.key.name;
            let calls = case.trace.calls.iter();
            let mut tries = calls.filter(|one| text(&one.body["metadata"]["name"]) == name);
            let told = |one: &Call| {
                let until = one.over.unwrap_or(Duration::MAX);
                let answered = one.answered.filter(|(at, _)| *at <= until);
                answered.is_some_and(|(_, code)| code < 300 || code == 409)
            };
            let first = tries.clone().next().map_or(call.begun, |one| one.begun);
            // An attempt that finds no connection is not a call.
            let says_so = || {
                let mut logs = case.trace.logs.iter();
                logs.any(|log| {
                    let is_then = (first..=call.begun).contains(&log.at);
                    is_then && log.who == call.who && log.text.contains("event dropped")
                })
            };
            (first + SERIES < call.begun || says_so())
                && !tries.any(|one| told(one) && !one.is_spoilt())
        };
        if made(revision) < made(earlier) + SERIES && !is_long_ago && !is_gone() && !is_given_up() {
            found.push(Violation {
                invariant: "I14",
                at: made(revision),
                object: named(&revision.key),
                what: format!("says what {} says: {}", earlier.key.name, of("note")),
            });
        }
    }
}

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
