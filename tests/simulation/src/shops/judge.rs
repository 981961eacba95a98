//! The operator with an optional kind: its desired state, and its behaviour while the kind is not installed.

use std::{ops::Range, time::Duration};

use operator_simulation::{
    judge::{
        Case, STEP, Violation,
        fields::{condition, owner, text},
        hindered::rejected_status,
        made, named,
    },
    plan::Fault,
    program::NAMESPACE,
    trace::{Call, Time, Who},
};
use operator_testkit::api_server::{Key, Kind};
use serde_json::{Value, json};

use super::{CLASS, MONITORS};

/// First delay before a list of a missing kind is tried again. Each further delay is twice as long, up to five minutes.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

fn optional(case: &Case) -> Kind {
    let mut kinds = case.store.custom_kinds().iter();
    let kind = kinds.find(|kind| kind.info().plural == MONITORS);
    *kind.unwrap()
}

/// At the end, every object is in its desired state, or its status reports the reason. The optional objects exist if their kind
/// is installed.
pub fn settled(case: &Case, found: &mut Vec<Violation>) {
    let kinds = case.store.custom_kinds().iter();
    let shops = kinds.filter(|kind| kind.info().plural == "shops");
    for (key, object) in shops.flat_map(|kind| case.store.list(*kind, None)) {
        let is_settled = shop(case, object).or_else(|what| {
            let is_known = rejected_status(case, key, object).is_some();
            is_known.then_some(()).ok_or(what)
        });
        found.extend(is_settled.err().map(|what| Violation {
            invariant: "I3",
            at: case.plan.end,
            object: named(key),
            what,
        }));
    }
}

fn shop(case: &Case, object: &Value) -> Result<(), String> {
    if object["metadata"]["deletionTimestamp"].is_string() {
        return Err("is still terminating".to_owned());
    }
    let (name, storage) = (
        text(&object["metadata"]["name"]),
        &object["spec"]["storage"],
    );
    if *storage != CLASS {
        return is_ready(object, "False", "Waiting");
    }
    let spec = json!({
        "selector": { "matchLabels": { "shop": name } }, "endpoints": [{ "port": "metrics" }],
    });
    let map = (Kind::ConfigMap, "data", json!({ "storage": storage }));
    let kind = optional(case);
    let is_installed = case.store.definition(kind).is_some();
    let monitor = is_installed.then_some((kind, "spec", spec));
    for (kind, field, wanted) in [Some(map), monitor].into_iter().flatten() {
        let child = case.store.get(&Key::new(kind, NAMESPACE, name));
        let child = child.ok_or_else(|| format!("there is no {kind:?}"))?;
        if owner(child) != text(&object["metadata"]["uid"]) {
            return is_ready(object, "False", "Foreign");
        }
        if child[field] != wanted {
            return Err(format!("the {field} of the {kind:?} is {}", child[field]));
        }
    }
    is_ready(object, "True", "Synced")
}

fn is_ready(object: &Value, status: &str, reason: &str) -> Result<(), String> {
    let is = condition(object, "Ready");
    let (seen, generation) = (
        &object["status"]["observedGeneration"],
        &object["metadata"]["generation"],
    );
    if is != (status, reason) {
        return Err(format!(
            "the condition Ready is {is:?}, not {status} because of {reason}"
        ));
    }
    if seen != generation {
        return Err(format!(
            "the observed generation is {seen}, not {generation}"
        ));
    }
    Ok(())
}

/// Replicas are ready whether the kind is installed or not.
pub fn stay_ready(case: &Case, found: &mut Vec<Violation>) {
    let logs = case.trace.logs.iter();
    let logs =
        logs.filter(|log| log.text.contains("no longer serving") && log.text.contains(MONITORS));
    found.extend(logs.map(|log| Violation {
        invariant: "I20",
        at: log.at,
        object: log.who.to_string(),
        what: log.text.clone(),
    }));
}

/// Returns the times without any CRD of the kind. No CRD appears or vanishes within such a time.
fn absences(case: &Case, kind: Kind) -> Vec<Range<Time>> {
    let name = kind.resource();
    let history = case.store.history().iter();
    let its = history
        .filter(|one| one.key.kind == Kind::CustomResourceDefinition && one.key.name == name);
    let mut since = Some(Time::ZERO);
    let mut absences = Vec::new();
    for revision in its {
        if revision.after.is_none() {
            since = Some(made(revision));
        } else if let Some(since) = since.take() {
            absences.push(since..made(revision));
        }
    }
    absences.extend(since.map(|since| since..case.plan.end));
    absences
}

fn is_of_monitors(call: &Call) -> bool {
    call.resource == MONITORS || call.resource.starts_with("servicemonitors/")
}

/// While the kind is not installed and its CRD does not change, the delays between the requests of a process to the missing
/// resource grow exponentially. Earlier changes of the CRD may arrive late, and each begins the delays again. An API server that
/// is behind may still serve the kind. So such times are not judged.
pub fn are_paced(case: &Case, found: &mut Vec<Violation>) {
    /// Longest time in flight of an event.
    const LATE: Duration = Duration::from_secs(65);
    /// Requests in addition to the number of doublings: one for each phase of a list, and for a new watch.
    const MORE: u32 = 6;
    for mut absence in absences(case, optional(case)) {
        absence.start += LATE;
        let is_late = case.trace.faults.iter().any(|(time, fault)| {
            let is_one = matches!(fault, Fault::Behind { .. } | Fault::Stuck { .. });
            is_one && time.start < absence.end && absence.start < time.end.saturating_add(LATE)
        });
        if is_late {
            continue;
        }
        for life in &case.trace.lives {
            let calls = case.trace.calls.iter().filter(|call| {
                call.who == life.who
                    && is_of_monitors(call)
                    && call.code == Some(404)
                    && call.fault.is_none()
                    && absence.contains(&call.begun)
            });
            let lasts = absence.end.saturating_sub(absence.start.max(life.begun));
            let doublings = (lasts.as_millis() / FIRST_PAUSE.as_millis()).max(1).ilog2();
            let count = u32::try_from(calls.count()).unwrap_or(u32::MAX);
            if count > doublings + MORE {
                found.push(Violation {
                    invariant: "I20",
                    at: absence.end,
                    object: life.who.to_string(),
                    what: format!("{count} requests to a missing resource in {lasts:?}"),
                });
            }
        }
    }
}

/// A process writes no object of a kind that is not installed, as far as it knew at the begin of the reconcile.
pub fn are_not_written(case: &Case, found: &mut Vec<Violation>) {
    for call in case.trace.calls.iter().filter(|call| is_of_monitors(call)) {
        if !call.is_work() {
            continue;
        }
        let begun = case.reconcile_begun(call, NAMESPACE);
        if knows_it_is_missing(case, call.who, begun, call.begun) {
            found.push(Violation {
                invariant: "I20",
                at: call.begun,
                object: call.path.clone(),
                what: format!(
                    "a {} of {}, for which the kind is not installed",
                    call.verb, call.who
                ),
            });
        }
    }
}

/// Returns whether the last response to a list or a watch of the kind before `from` was 404, and none until `until` was a list.
fn knows_it_is_missing(case: &Case, who: Who, from: Time, until: Time) -> bool {
    /// A response is read in the step of its arrival, or in the next.
    const READ: Duration = STEP.saturating_mul(2);
    let Some(life) = case.life(who) else {
        return false;
    };
    let calls = case.trace.calls.iter();
    let answers = calls.filter(|call| {
        let is_given_up = || {
            (call.over)
                .zip(call.answered)
                .is_some_and(|(over, (at, _))| over < at)
        };
        let is_a_read = matches!(call.verb, "list" | "stream" | "watch");
        call.who == who && call.resource == MONITORS && is_a_read && !is_given_up()
    });
    let mut answers: Vec<_> = answers
        .filter_map(|call| Some((call.answered?, call)))
        .collect();
    answers.sort_by_key(|((at, _), _)| *at);
    let mut missing = None;
    for ((at, code), call) in answers {
        match code {
            // An already open watch does not show that the kind exists.
            404 if at + READ <= from && !call.is_spoilt() => missing = missing.or(Some(at)),
            200 if at <= until => missing = None,
            _ => {}
        }
    }
    missing.is_some_and(|since| {
        let asleep = case.asleep(who);
        let mut still = life.still.iter().cloned().chain(asleep);
        !still.any(|still| still.start <= from && still.end + READ >= since)
    })
}
