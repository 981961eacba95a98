//! Obstacles to a process.

use std::{ops::Range, time::Duration};

use operator_testkit::api_server::Key;
use serde_json::Value;

use super::{
    super::{
        plan::Fault,
        trace::{Call, Role, Time, Who},
    },
    Case,
};

/// Returns until when a fault may have effects. A delayed request is still in flight when the fault ends, and the delays of
/// overlapping faults add up.
pub fn felt_until(case: &Case, time: &Range<Time>, fault: &Fault) -> Time {
    if !matches!(fault, Fault::Slow { .. }) {
        return time.end;
    }
    let faults = case.trace.faults.iter();
    let late = faults.filter_map(|(other, fault)| match fault {
        Fault::Slow { by, .. } if other.start <= time.end && time.start <= other.end => Some(*by),
        _ => None,
    });
    time.end.saturating_add(late.sum::<Duration>())
}

/// Returns whether a fault may obstruct this process without showing in its calls.
pub fn hinders(fault: &Fault, who: Who) -> bool {
    // Faults of single calls show in the calls, and a policy rejects only objects that were reconciled. No work depends on the
    // wall clock.
    let is_shown = matches!(fault, Fault::Call { .. } | Fault::Policy(_));
    !is_shown && !fault.is_of_the_clock() && fault.is_about(who.replica)
}

/// Longest aftermath of a fault: the longest pause of a watch, and its list.
pub const AFTER: Duration = Duration::from_secs(10);

/// Returns whether a fault or its aftermath may have obstructed this process between `from` and `until`.
pub fn is_hindered(case: &Case, who: Who, from: Time, until: Time) -> bool {
    is_hindered_except(case, who, |_| false, from, until)
}

/// As [`is_hindered`], but a failed call for which `is_other` returns true does not count. A slow one counts, because it occupies a
/// worker.
pub fn is_hindered_except(
    case: &Case,
    who: Who,
    is_other: impl Fn(&Call) -> bool,
    from: Time,
    until: Time,
) -> bool {
    /// Longest wait for a response. `ASKED` is the longest `Retry-After`.
    const ANSWER: Duration = Duration::from_secs(62);
    const ASKED: Duration = Duration::from_secs(31);
    const QUICK: Duration = Duration::from_secs(1);
    let is_in = |time: Range<Time>| {
        time.start < until && time.end.saturating_add(case.longest(AFTER)) > from
    };
    let is_fault = case.trace.faults.iter().any(|(time, fault)| {
        is_in(time.start..felt_until(case, time, fault)) && hinders(fault, who)
    });
    let since = |time| from.saturating_sub(case.longest(time));
    let over = |call: &Call| {
        // A watch works once its response begins.
        let told = call.answered.map(|(at, _)| at);
        let over = if call.is_watch() {
            told.or(call.over)
        } else {
            call.over
        };
        over.unwrap_or(call.begun + case.longest(ANSWER))
    };
    let is_slow = |call: &Call| {
        let over = over(call);
        // A request after a `Retry-After` may have to wait as well.
        let was_spoilt = over >= since(ASKED + AFTER) && call.retry_after.is_some()
            || over >= since(AFTER) && call.is_spoilt();
        over > call.begun + QUICK && over >= since(AFTER) || was_spoilt && !is_other(call)
    };
    let calls = || {
        // Events are written beside the work.
        let calls = case.trace.calls.iter();
        calls.filter(|call| call.who == who && call.begun < until && call.resource != "events")
    };
    // A broken watch obstructs until the break is noticed, and for the pause after it.
    let is_broken = |call: &Call| {
        let fault = call.fault.as_deref().unwrap_or_default();
        let is_silent = fault.contains("Silent") || call.answered.is_none();
        let goes_on = call.over.is_none() && is_silent;
        call.role == Role::Work
            && call.is_watch()
            && call.is_spoilt()
            && (goes_on || call.over.is_some_and(|over| over >= since(AFTER)))
    };
    // Short delays add up for a worker.
    let late = calls().filter(|call| {
        let is_a_workers = call.role == Role::Work && !call.is_watch();
        call.felt && is_a_workers && over(call) >= since(AFTER)
    });
    let late = late.map(|call| over(call).saturating_sub(call.begun));
    let is_late = late.sum::<Duration>() > QUICK;
    let is_asleep = case.asleep(who).any(is_in);
    is_fault || is_asleep || is_late || calls().any(|call| is_slow(call) || is_broken(call))
}

/// Returns the last status, if the API server has rejected it for this version of the object. It is not written again before the
/// object changes or is checked by a resync.
pub fn rejected_status<'a>(case: &Case<'a>, key: &Key, object: &Value) -> Option<&'a Value> {
    let status = format!("{}/status", key.kind.info().plural);
    let mut calls = case.trace.calls.iter().rev();
    let last =
        calls.find(|call| call.resource == status && call.body["metadata"]["name"] == *key.name)?;
    let code = last.answered.map(|(_, code)| code);
    let is_same = |field: &str| last.body["metadata"][field] == object["metadata"][field];
    let is_it = matches!(code, Some(400 | 422)) && is_same("uid") && is_same("resourceVersion");
    is_it.then(|| &last.body["status"])
}
