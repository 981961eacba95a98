//! Converts the calls to events of an audit log, which the checker [`invariants`](crate::invariants) judges.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::{SignedDuration, Timestamp},
};
use operator_testkit::{
    api_server::{Key, RESTORED, Revision},
    cluster::AuditEvent,
};
use serde_json::{Value, json};

use super::{
    Case, Violation,
    converge::{owner, rests_from, text},
    made,
};
use crate::invariants::{Election, FOO, GENERATION, Work, check_of as check_log};

use super::super::{
    trace::{Call, Time},
    users::LEASE,
};

/// Start of the simulated time in the audit log.
const ZERO: Timestamp = Timestamp::UNIX_EPOCH;

/// Reports the checker's violations, except for writes without the Lease. The judge `holds_the_lease` finds these in the store's
/// history, which also orders deletions.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    of_works(case, &[FOO], rests_from(case).min(case.plan.end), found);
}

/// As [`check`], for any operator. At `rest`, nothing is written any more.
pub fn of_works(case: &Case, works: &[Work], rest: Time, found: &mut Vec<Violation>) {
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
    let election = Election {
        users: case.pods.clone(),
        lease: LEASE.to_owned(),
        lease_duration: case.longest_of(|settings| settings.lease_duration),
        renew_deadline: case.longest_of(|settings| settings.renew_deadline),
    };
    let quiet = (at(rest), at(case.plan.end));
    let of = |lines: Vec<String>, judged: &'static [&'static str]| {
        let named = move |line: String| {
            let invariant = line.split(' ').next().unwrap_or_default();
            let invariant = judged.iter().find(|judged| **judged == invariant)?;
            Some((*invariant, line))
        };
        lines.into_iter().filter_map(named)
    };
    let whole = check_log(works, &log, &election, &[quiet]).violations;
    let mut wrong: Vec<_> = if case.restored.is_empty() {
        of(whole, &["I2", "I4", "I5", "I6", "I7", "I8"]).collect()
    } else {
        of(whole, &["I2", "I4", "I5", "I6", "I8"]).collect()
    };
    // A restored backup resets generations, so the generations are checked separately for the writes between two restores. A
    // write that names a generation from before the restore counts as a user's edit: its writer had not seen the restore.
    let mut later = Vec::new();
    if !case.restored.is_empty() {
        later.clone_from(&log);
        let taken_back = |event: &&mut AuditEvent| is_taken_back(case, event);
        for event in later.iter_mut().filter(taken_back) {
            event.response_object["metadata"]["annotations"] = Value::Null;
        }
    }
    for restored in case.restored.iter().map(Some).chain([None]) {
        let is_before = |event: &AuditEvent| {
            restored.is_none_or(|time| {
                let version = text(&event.response_object["metadata"]["resourceVersion"]).parse();
                let is_older = version.is_ok_and(|version: u64| version < first_of(case, *time));
                event.reached.0 < at(*time) || (event.reached.0 == at(*time) && is_older)
            })
        };
        let (part, rest): (Vec<_>, _) = later.into_iter().partition(is_before);
        later = rest;
        wrong.extend(of(
            check_log(works, &part, &election, &[]).violations,
            &["I7"],
        ));
    }
    for (invariant, line) in wrong {
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

/// Returns the first version that the restore at this time wrote.
fn first_of(case: &Case, restored: Time) -> u64 {
    let mut history = case.store.history().iter();
    let first = history.find(|one| *one.by == *RESTORED && made(one) == restored);
    first.map_or(0, |first| first.version)
}

/// Returns whether the written Deployment names a newer generation than its Foo had at that time.
fn is_taken_back(case: &Case, event: &AuditEvent) -> bool {
    let metadata = &event.response_object["metadata"];
    let foo = owner(&event.response_object);
    let generation = text(&metadata["annotations"][GENERATION]).parse::<i64>();
    let reached = since(event.reached.0);
    let history = case.store.history().iter().rev();
    let before = history.skip_while(|revision| made(revision) > reached);
    let mut foos = before.filter_map(|revision| revision.after.as_deref());
    let foo = foos.find(|object| text(&object["metadata"]["uid"]) == foo);
    let had = foo.and_then(|foo| foo["metadata"]["generation"].as_i64());
    generation.is_ok_and(|generation| had.is_some_and(|had| generation > had))
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
    // A generation that another client wrote is an edit, which the controller reverts.
    let unforged = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        if **by == *RESTORED {
            return object;
        }
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(GENERATION);
        }
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
        response_object: after.as_deref().map_or_else(gone, unforged),
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

fn at(since_start: Time) -> Timestamp {
    ZERO + SignedDuration::try_from(since_start).unwrap_or_default()
}

fn since(at: Timestamp) -> Time {
    at.duration_since(ZERO).unsigned_abs()
}
