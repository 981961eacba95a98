//! A new error that a user has to fix is reported by an Event.

use std::{ops::Range, sync::Arc, time::Duration};

use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{condition, text},
        hindered::felt_until,
        made, named,
    },
    plan::Fault,
    trace::{Call, Time, Who},
};
use operator_testkit::api_server::{Kind, Revision};
use serde_json::Value;

use super::{
    super::{FOO, users::NAMESPACE},
    deployments::is_going,
};

/// Reason after a complete rollout of a Deployment that a policy changed. The process knows of it since the patch had no
/// effect.
pub const OVERRULED: &str = "DeploymentOverruled";

/// Condition reasons that a user has to act on.
pub const TOLD: [&str; 10] = [
    OVERRULED,
    "ReplicaFailure",
    "DeploymentPaused",
    "ProgressDeadlineExceeded",
    "ErrResourceExists",
    "InvalidSpec",
    "DeploymentRejected",
    "DeploymentContested",
    "DeploymentTimedOut",
    "DeletionFailed",
];

/// Part of the message of a condition about a write that admission changed.
const OTHERWISE: &str = "admission changed";

/// Longest delay of an Event if it, or an Event before it, meets an obstacle. Includes a last attempt of up to 11 s.
pub const LATE: Duration = Duration::from_secs(75);

/// Time from the end of a term to its log line.
const MOMENT: Duration = Duration::from_millis(50);

/// When a status begins to report an error that a user has to fix, the same process writes an Event about it. The Event is
/// written without delay, or within its retry time if a fault obstructs it. No Event is required if the process or its term has
/// ended, or if the Event was rejected.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    for (index, revision) in case.store.history().iter().enumerate() {
        let Some(call) = case.writer(index).filter(|_| revision.key.kind == FOO) else {
            continue;
        };
        let before = reasons(revision.before.as_ref());
        let [ready, progressing] = reasons(revision.after.as_ref());
        let mut its = vec![ready, progressing];
        its.dedup();
        its.retain(|reason| TOLD.contains(reason));
        let was_overruled = is_overruled(revision.before.as_ref());
        if its.is_empty() && is_overruled(revision.after.as_ref()) && !was_overruled {
            its.push(OVERRULED);
        }
        its.retain(|reason| {
            !before.contains(reason) && !is_told(case, call, revision.after.as_ref(), reason)
        });
        found.extend(its.into_iter().map(|reason| Violation {
            invariant: "I14",
            at: made(revision),
            object: named(&revision.key),
            what: format!("says {reason}, and there was no event"),
        }));
    }
}

/// The reconcile that wrote a Deployment reports its rejection. Exceptions: the status already reports it, the Foo has changed,
/// or the term has ended.
pub fn refused(case: &Case, found: &mut Vec<Violation>) {
    for call in &case.trace.calls {
        let is_write = call.resource == "deployments" && matches!(call.verb, "create" | "patch");
        let (Some((at, code)), true) = (call.answered, is_write) else {
            continue;
        };
        let is_cut = call.felt && call.fault.as_deref() == Some("Cut");
        let foo = foo_of(case, call).filter(|_| is_refused(call) && !is_cut && !is_fenced(call));
        let Some(foo) = foo else {
            continue;
        };
        let name = format!("{NAMESPACE}/{foo}");
        let reconcile = case.reconcile_of(call, &name);
        let reconcile = reconcile.and_then(|one| Some((one, one.ended?)));
        // The process does not wait for a later response.
        let in_time = |ended| {
            let limit = call.limit().map_or(Time::MAX, |limit| call.sent + limit);
            at <= limit.min(ended)
        };
        let Some((reconcile, ended)) = reconcile.filter(|(_, ended)| in_time(*ended)) else {
            continue;
        };
        let as_of = |time| {
            let mut its = case.store.history().iter().rev();
            let last =
                its.find(|one| one.key.kind == FOO && *one.key.name == *foo && made(one) <= time);
            last.and_then(|last| last.after.as_ref())
        };
        let (then, now) = (as_of(reconcile.begun), as_of(ended));
        let generation =
            |foo: Option<&Arc<Value>>| foo.map(|foo| foo["metadata"]["generation"].clone());
        let of = &call.body["metadata"]["ownerReferences"][0]["uid"];
        let is_another = |now: &Value| of.is_string() && *of != now["metadata"]["uid"];
        let is_otherwise = now.is_none_or(|now| is_going(now) || is_another(now))
            || generation(then) != generation(now);
        let mut reports = case.trace.calls.iter().filter(|other| {
            other.who == call.who
                && other.resource == "foos/status"
                && (at..=ended).contains(&other.begun)
                && text(&other.body["metadata"]["name"]) == foo
        });
        // If the Deployment of an earlier name cannot be scaled, the error about the specified Deployment is reported.
        let is_of_earlier = |foo: &Value| foo["spec"]["deploymentName"] != call.name();
        let says = |foo: &Value| match condition(foo, "Ready") {
            (_, "DeploymentRejected") => true,
            (_, reason) => {
                reason == "ErrResourceExists" && call.verb == "patch" && is_of_earlier(foo)
            }
        };
        // The process had received at least this version of the Foo.
        let told = case.told(call.who, "foos", reconcile.begun);
        let its = case
            .store
            .history()
            .iter()
            .rev()
            .filter(|one| one.key.kind == FOO && *one.key.name == *foo && made(one) <= ended);
        // States of the Foo that the process may know, newest first.
        let mut known = Vec::new();
        for one in its {
            known.extend(one.after.as_deref());
            if one.version <= told {
                break;
            }
        }
        // A process does not repeat a report that it wrote before the restore.
        let is_restored = (case.restored.iter()).any(|restored| {
            *restored <= ended && reconcile.begun < *restored + Duration::from_mins(1)
        });
        // A report does not arrive while the process is cut off.
        let is_cut_off = case.trace.faults.iter().any(|(time, fault)| {
            let is_then = time.start < ended && felt_until(case, time, fault) > at;
            is_then && is_in_the_way(fault) && fault.is_about(call.who.replica)
        });
        if !is_otherwise
            && !is_restored
            && !is_cut_off
            && !known.iter().any(|known| says(known))
            && !is_known_to_be_refused(case, call.who, &known, ended, says)
            && !reports.any(|report| says(&report.body))
            && !is_over(case, call.who, &(reconcile.begun..ended + MOMENT))
        {
            found.push(Violation {
                invariant: "I14",
                at,
                object: format!("Foo {name}"),
                what: format!(
                    "a write of its Deployment was answered {code}, and its status does not say so"
                ),
            });
        }
    }
}

/// Returns the name of the Foo that a write of a Deployment serves.
pub fn foo_of<'a>(case: &'a Case, call: &'a Call) -> Option<&'a str> {
    let name = call.name();
    let deployment = if call.verb == "create" {
        &call.body
    } else {
        // The version that the sender names. Otherwise the last version: the sender may not know of a deletion.
        let base = [
            "/metadata/resourceVersion",
            "/preconditions/resourceVersion",
        ];
        let base = base.iter().find_map(|at| call.body.pointer(at));
        let its = case.store.history().iter().rev().filter(|one| {
            one.key.kind == Kind::Deployment && *one.key.name == *name && made(one) <= call.begun
        });
        let is_base = |one: &&Arc<Revision>| {
            let version = one
                .after
                .as_deref()
                .map(|it| &it["metadata"]["resourceVersion"]);
            base.is_some() && version == base
        };
        let last = its.clone().find(is_base).or_else(|| its.clone().next())?;
        last.after.as_deref().or(last.before.as_deref())?
    };
    let owners = deployment["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    owner["name"].as_str()
}

/// Returns whether the process has reported in this time that its term has ended or is about to end. A stopping process reports
/// it only with an Event.
pub fn is_over(case: &Case, who: Who, time: &Range<Time>) -> bool {
    let said = ["lost the lease", "term ended"];
    let mut logs = case.trace.logs.iter().filter(|log| log.who == who);
    let mut calls = case.trace.calls.iter().filter(|call| call.who == who);
    logs.any(|log| time.contains(&log.at) && said.iter().any(|said| log.text.contains(said)))
        || calls.any(|call| time.contains(&call.begun) && call.body["action"] == "StopLeading")
}

/// Returns whether the process that wrote this status has written the Event, or could not.
fn is_told(case: &Case, status: &Call, foo: Option<&Arc<Value>>, reason: &str) -> bool {
    /// The Event is queued right before the status. `SOON`: it waits for more urgent work and for earlier Events.
    const BEFORE: Duration = Duration::from_millis(50);
    const SOON: Duration = Duration::from_secs(3);
    let Some(life) = case.life(status.who) else {
        return false;
    };
    let from = status.begun.saturating_sub(BEFORE);
    let its = || {
        let calls = case.trace.calls.iter();
        calls.filter(|call| call.who == status.who && call.resource == "events")
    };
    let until = |time: Duration| life.has_had(from, case.longest(time));
    let hindered = (from.saturating_sub(LATE))..until(SOON);
    let is_hindered = its().any(|call| hindered.contains(&call.begun) && !is_quick(call))
        || case.trace.faults.iter().any(|(time, fault)| {
            time.start < hindered.end
                && time.end.saturating_add(LATE) > hindered.start
                && fault.is_about(life.who.replica)
                && is_in_the_way(fault)
        });
    let until = until(if is_hindered { LATE } else { SOON });
    let from = if reason == OVERRULED {
        life.begun
    } else {
        from
    };
    let time = from..until;
    let ended = life.ended.as_ref().map_or(case.plan.end, |(at, _)| *at);
    let mut its = its().filter(|call| time.contains(&call.begun));
    its.any(|call| is_warning(case, call, foo, reason) && is_settled(call))
        || ended < time.end
        || is_over(case, status.who, &time)
}

/// Returns whether the first attempt to write an Event succeeded.
fn is_quick(call: &Call) -> bool {
    /// Longest first attempt.
    const FIRST: Duration = Duration::from_secs(1);
    let is_answered = |(at, code)| code < 300 && at < call.begun + FIRST;
    // A response may begin in time and be cut off.
    call.answered.is_some_and(is_answered) && !call.felt
}

/// Returns whether a fault may keep all requests of a client from arriving, or delay them. Faults of single calls show in the
/// calls.
pub fn is_in_the_way(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Partition { .. }
            | Fault::Slow { .. }
            | Fault::Kill { .. }
            | Fault::Pause { .. }
            | Fault::Restore
    )
}

/// Returns whether an Event exists, or was rejected for its content or because its namespace terminates.
fn is_settled(call: &Call) -> bool {
    call.code.is_some_and(|code| code < 300 || code == 409)
        || call.answered.is_some_and(|(_, code)| {
            let passes = matches!(code, 401 | 403 | 408 | 409 | 429);
            let is_anew = code == 404 && call.verb == "patch";
            (400..500).contains(&code) && !passes && !is_anew
        })
        || call.code == Some(403) && is_of_the_end(call)
}

/// Returns whether the call was rejected because its namespace terminates or is deleted.
pub fn is_of_the_end(call: &Call) -> bool {
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    let details = &answer["details"];
    details["kind"] == "namespaces" || details["causes"][0]["reason"] == "NamespaceTerminating"
}

/// Returns whether the status of a Foo reports that admission changed a write, for a ready or a failing Foo.
fn is_overruled(foo: Option<&Arc<Value>>) -> bool {
    let conditions = foo.and_then(|foo| foo["status"]["conditions"].as_array());
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| text(&condition["message"]).contains(OTHERWISE))
}

/// Returns the reasons of `Ready` and `Progressing`.
fn reasons(foo: Option<&Arc<Value>>) -> [&str; 2] {
    ["Ready", "Progressing"].map(|of_type| foo.map_or("", |foo| condition(foo, of_type).1))
}

/// Returns whether the call writes a Warning Event with this reason about this Foo, or extends such an Event to a series.
fn is_warning(case: &Case, call: &Call, foo: Option<&Arc<Value>>, reason: &str) -> bool {
    if call.resource != "events" {
        return false;
    }
    let is_it = |body: &Value| {
        let is_about =
            |field: &str| foo.is_some_and(|foo| body["regarding"][field] == foo["metadata"][field]);
        body["type"] == "Warning" && body["reason"] == reason && is_about("name") && is_about("uid")
    };
    let name = call.name();
    call.verb == "create" && is_it(&call.body)
        || call.verb == "patch"
            && case.trace.calls.iter().any(|first| {
                first.who == call.who
                    && first.resource == "events"
                    && first.body["metadata"]["name"] == name
                    && is_it(&first.body)
            })
}

/// Returns whether a write of a Deployment was rejected. A rejection by a terminating namespace does not count.
pub fn is_refused(call: &Call) -> bool {
    let code = call.answered.map_or(0, |(_, code)| code);
    is_refusal(code) && !is_of_the_end(call)
        || code == 429 && is_of_a_webhook(call) && !call.is_spoilt()
}

/// Returns whether the fencing policy rejected the call, because its sender is not the leader.
pub fn is_fenced(call: &Call) -> bool {
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    text(&answer["message"]).contains("-fencing")
}

/// Returns whether a webhook denied the call, with any status code.
fn is_of_a_webhook(call: &Call) -> bool {
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    text(&answer["message"]).contains(" denied the request: ")
}

/// Returns whether a matching status of these Foos was rejected before. The process does not send it again for a while.
pub fn is_known_to_be_refused(
    case: &Case,
    who: Who,
    foos: &[&Value],
    by: Time,
    says: impl Fn(&Value) -> bool,
) -> bool {
    let is_of = |call: &Call| {
        let of = &call.body["metadata"];
        let mut foos = foos.iter().map(|foo| &foo["metadata"]);
        foos.any(|foo| {
            ["name", "resourceVersion"]
                .iter()
                .all(|it| of[it] == foo[it])
        })
    };
    let mut calls = case.trace.calls.iter();
    calls.any(|call| {
        call.who == who
            && call.resource == "foos/status"
            && call.answered.is_some_and(|(at, _)| at <= by)
            && is_of(call)
            && says(&call.body)
            && is_for_good(call)
    })
}

/// Returns whether the call was rejected for its content. Permissions, policies and webhooks do not count, because they may
/// change at any time.
pub fn is_for_good(call: &Call) -> bool {
    let code = call.answered.map_or(0, |(_, code)| code);
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    let words = text(&answer["message"]);
    let is_denied = [" denied request: ", " denied the request: "]
        .iter()
        .any(|denied| words.contains(denied));
    code != 403 && is_refusal(code) && !is_denied
}

/// Returns whether this code rejects a request for its content.
fn is_refusal(code: u16) -> bool {
    matches!(code, 400 | 403 | 405 | 413 | 415 | 422)
}
