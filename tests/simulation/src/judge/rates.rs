//! A replica honors `Retry-After`, and resets the backoff after a success.

use std::{collections::BTreeMap, time::Duration};

use operator_simulation::{
    judge::{
        ASKED, Case, STEP, Violation, name_of,
        rates::{is_watch, subject},
    },
    trace::{Call, Reconcile, Role, Time},
};

use super::{super::users::NAMESPACE, warnings};

/// A `Retry-After` in a 429 or 503 delays the watch, the Events of the namespace, or the reconciled object with all its requests.
/// The first reconcile of a new term does not wait. The election and permission reviews have their own pace.
pub fn heeds(case: &Case, found: &mut Vec<Violation>) {
    let asks = case.trace.calls.iter().filter_map(|call| {
        let (at, code) = call.answered?;
        let asked = call.retry_after.filter(|_| matches!(code, 429 | 503))?;
        let until = at + case.shortest(asked.min(ASKED)).saturating_sub(STEP);
        (call.role == Role::Work).then_some((call, at, until))
    });
    for (call, at, until) in asks {
        let time = at + Duration::from_micros(1)..until;
        let its = || {
            let calls = case.trace.calls.iter();
            calls.filter(|other| other.who == call.who && time.contains(&other.begun))
        };
        let again = match &*call.resource {
            // The client does not wait for a later response.
            _ if at >= patience(case, call) => None,
            // An Event that was in flight at the same time may be sent again.
            "events" => its()
                .filter(|other| other.begun > at + STEP)
                .find(|other| other.role == Role::Work && other.resource == "events")
                .map(|other| other.begun),
            "foos" | "deployments" if is_watch(call) => its()
                .find(|other| other.resource == call.resource && is_watch(other))
                .map(|other| other.begun),
            "foos" | "foos/status" | "deployments" => looked_at_again(case, call, at, until),
            _ => None,
        };
        found.extend(again.map(|again| Violation {
            invariant: "I11",
            at: again,
            object: call.who.to_string(),
            what: format!(
                "{} {} again, which was to wait from {at:?} to {until:?}",
                call.verb,
                subject(call)
            ),
        }));
    }
}

/// A success resets the backoff. The attempt number of a reconcile does not exceed the failures of the process with this object
/// since the last success, plus one.
pub fn forgets(case: &Case, found: &mut Vec<Violation>) {
    let mut failures = BTreeMap::<_, u32>::new();
    for one in case.reconciles.values().flatten() {
        let failed = failures.entry((one.who, &*one.key)).or_default();
        if one.attempt > *failed + 1 {
            found.push(Violation {
                invariant: "Q3",
                at: one.begun,
                object: one.key.clone(),
                what: format!(
                    "attempt {} of {}, after {failed} failures",
                    one.attempt, one.who
                ),
            });
        }
        if one.failed || one.ended.is_none() {
            *failed += 1;
        } else if !has_status_pending(case, one) {
            *failed = 0;
        }
    }
}

/// Returns whether a reconcile changed a Deployment and left the status to the next reconcile.
fn has_status_pending(case: &Case, one: &Reconcile) -> bool {
    let ended = one.ended.unwrap_or(one.begun);
    let name = name_of(&one.key);
    let its = |path: &str| {
        let mut calls = case.trace.calls.iter().filter(|call| call.who == one.who);
        calls.any(|call| {
            let is_write = !matches!(call.verb, "get" | "list" | "watch" | "stream");
            is_write && call.path.contains(path) && (one.begun..ended).contains(&call.begun)
        })
    };
    its("/deployments") && !its(&format!("/foos/{name}/status"))
}

/// Returns when the object that the reconcile of this call handled was reconciled again, if that was before `until`.
fn looked_at_again(case: &Case, call: &Call, at: Time, until: Time) -> Option<Time> {
    let foo = foo_of(call).or_else(|| warnings::foo_of(case, call));
    let reconciles = case.trace.reconciles.iter();
    let mut its = reconciles.filter(|one| {
        let name = one.key.strip_prefix(&format!("{NAMESPACE}/"));
        let is_it = foo.is_none_or(|foo| name == Some(foo));
        let is_then = one.begun <= call.begun && one.ended.is_some_and(|ended| at <= ended);
        one.who == call.who && is_then && is_it
    });
    // If several reconciles are possible, the object is unknown.
    let (Some(one), None) = (its.next(), its.next()) else {
        return None;
    };
    let ended = one.ended?;
    let again = case.reconciles.get(&*one.key)?.iter();
    let mut again = again.filter(|other| other.who == call.who && other.begun > ended);
    let begun = again.find(|other| other.begun < until)?.begun;
    let mut logs = case.trace.logs.iter();
    let is_new_term = logs.any(|log| {
        log.who == call.who
            && (at..=begun).contains(&log.at)
            && log.text.contains("started workers")
    });
    (!is_new_term).then_some(begun)
}

/// Returns the Foo that the call names, if any.
pub fn foo_of(call: &Call) -> Option<&str> {
    let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
    match (call.verb, &*call.resource) {
        ("update", "foos/status") => path.rsplit('/').nth(1),
        ("list", "foos") => query.split("metadata.name%3D").nth(1)?.split('&').next(),
        ("create", "deployments") => call.body["metadata"]["ownerReferences"][0]["name"].as_str(),
        _ => None,
    }
}

/// Returns when the client stops waiting for a response.
fn patience(case: &Case, call: &Call) -> Time {
    let limit = match &*call.resource {
        "events" => Duration::from_secs(1),
        _ if is_watch(call) => Duration::from_mins(1),
        _ => call.limit().unwrap_or(Duration::from_secs(10)),
    };
    call.begun + case.shortest(limit)
}
