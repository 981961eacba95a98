//! Converts the calls to events of an audit log, which the checker [`invariants`](crate::invariants) judges.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::{SignedDuration, Timestamp},
};
use operator_testkit::{
    api_server::{Key, Revision},
    cluster::AuditEvent,
};
use serde_json::{Value, json};

use super::{Case, Violation};
use crate::{
    invariants::{Election, Report, Work, check_of as check_log},
    trace::{Call, Time},
};

/// Start of the simulated time in the audit log.
const ZERO: Timestamp = Timestamp::UNIX_EPOCH;

/// Returns the log: the calls, and the writes of other clients.
pub fn log(case: &Case) -> Vec<AuditEvent> {
    let mut log: Vec<_> = case
        .trace
        .calls
        .iter()
        .filter_map(|call| event(case, call))
        .collect();
    let history = case.store.history().iter().enumerate();
    let by_others = history.filter(|(index, _)| case.writer(*index).is_none());
    log.extend(by_others.map(|(_, revision)| event_of_others(revision)));
    log.sort_by_key(|event| event.received.0);
    log
}

/// Reports the checker's violations in the [`log`], except for writes without the Lease. The judge `holds_the_lease` finds these in
/// the store's history, which also orders deletions. At `rest`, nothing is written any more.
pub fn of_works(
    case: &Case,
    log: &[AuditEvent],
    works: &[Work],
    rest: Time,
    found: &mut Vec<Violation>,
) {
    let election = Election {
        users: case.pods.clone(),
        lease: case.lease.name.clone(),
        lease_duration: case.longest_of(|settings| settings.lease_duration),
        renew_deadline: case.longest_of(|settings| settings.renew_deadline),
    };
    let quiet = (at(rest), at(case.plan.end));
    let report = check_log(works, log, &election, &[quiet]);
    take(&report, &["I2", "I4", "I5", "I6", "I8"], log, found);
}

/// Adds the violations of these invariants in a report on the log.
pub fn take(
    report: &Report,
    judged: &[&'static str],
    log: &[AuditEvent],
    found: &mut Vec<Violation>,
) {
    for line in &report.violations {
        let invariant = line.split(' ').next().unwrap_or_default();
        let Some(invariant) = judged.iter().find(|judged| **judged == invariant) else {
            continue;
        };
        let what = line.trim_start_matches(invariant).trim_start();
        let (object, what) = what.split_once(": ").unwrap_or(("", what));
        found.push(Violation {
            invariant,
            at: log
                .iter()
                .find(|event| line.contains(&event.received.0.to_string()))
                .map_or(Time::ZERO, |event| since(event.received.0)),
            object: object.to_owned(),
            what: what.to_owned(),
        });
    }
}

/// Converts a call to the audit event of the API server, except that `received` is the time of sending. The checker judges only
/// writes, and the times of Lease reads.
fn event(case: &Case, call: &Call) -> Option<AuditEvent> {
    let (arrived, code) = call.arrived.zip(call.code)?;
    let is_write = matches!(call.verb, "create" | "update" | "patch" | "delete");
    if !is_write && call.resource != "leases" {
        return None;
    }
    let (path, _) = call.path.split_once('?').unwrap_or((&call.path, ""));
    let (namespace, name) = namespace_and_name(path);
    let (resource, subresource) = call
        .resource
        .split_once('/')
        .unwrap_or((&call.resource, ""));
    let answer = call.answer.as_deref().filter(|_| is_write && code < 400);
    Some(AuditEvent {
        verb: if call.verb == "stream" {
            "watch"
        } else {
            call.verb
        }
        .to_owned(),
        user: case.pod(call).to_owned(),
        user_agent: String::new(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace,
        name,
        uri: call.path.clone(),
        code,
        request_object: call.body.clone(),
        response_object: answer.cloned().unwrap_or_default(),
        stage: "ResponseComplete".to_owned(),
        received: MicroTime(at(call.sent)),
        reached: MicroTime(at(arrived)),
    })
}

/// Converts another client's write to an audit event. Only the result is known.
fn event_of_others(revision: &Revision) -> AuditEvent {
    let Revision {
        key,
        before,
        after,
        by,
        version,
        ..
    } = revision;
    let Key {
        kind,
        namespace,
        name,
    } = key;
    let verb = match (before, after) {
        (None, _) => "create",
        (_, Some(_)) => "update",
        (_, None) => "delete",
    };
    let time = MicroTime(at(revision.at.since_start));
    let stored = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    };
    // The response to a deletion has no version of its own.
    let gone = || json!({ "metadata": { "name": name } });
    AuditEvent {
        verb: verb.to_owned(),
        user: by.to_string(),
        user_agent: String::new(),
        resource: kind.info().plural.to_owned(),
        subresource: String::new(),
        namespace: namespace.clone(),
        name: name.clone(),
        uri: String::new(),
        code: 200,
        request_object: Value::Null,
        response_object: after.as_deref().map_or_else(gone, stored),
        stage: "ResponseComplete".to_owned(),
        received: time.clone(),
        reached: time,
    }
}

/// Returns the namespace and the name in the path of an object or of a collection.
fn namespace_and_name(path: &str) -> (String, String) {
    let (_, inner) = path.split_once("/namespaces/").unwrap_or(("", ""));
    let mut parts = inner.split('/');
    let namespace = parts.next().unwrap_or_default();
    let name = parts.nth(1).unwrap_or_default();
    (namespace.to_owned(), name.to_owned())
}

pub fn at(since_start: Time) -> Timestamp {
    ZERO + SignedDuration::try_from(since_start).unwrap_or_default()
}

pub fn since(at: Timestamp) -> Time {
    at.duration_since(ZERO).unsigned_abs()
}
