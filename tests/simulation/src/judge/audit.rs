//! The checker of audit logs judges the calls.

use operator_simulation::{
    judge::{
        Case, Violation,
        audit::{at, log, of_works, since, take},
        fields::{owner, text},
        made,
    },
    trace::Time,
};
use operator_testkit::{api_server::RESTORED, cluster::AuditEvent};
use serde_json::Value;

use super::{
    super::invariants::{FOO, GENERATION, Report, i7_generation},
    converge::rests_from,
};

/// Reports the checker's violations, except for writes without the Lease.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    let log = log(case);
    of_works(
        case,
        &log,
        &[FOO],
        rests_from(case).min(case.plan.end),
        found,
    );
    // A restored backup resets generations, so the generations are checked for the writes between two restores. A write that names a
    // generation from before the restore counts as a user's edit: its writer had not seen the restore.
    let of_deployments = log.iter().filter(|event| event.resource == "deployments");
    let mut later: Vec<_> = of_deployments.cloned().collect();
    for event in later.iter_mut().filter(|event| is_edit(case, event)) {
        let annotations = event.response_object["metadata"]["annotations"].as_object_mut();
        annotations.map(|annotations| annotations.remove(GENERATION));
    }
    if !case.restored.is_empty() {
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
        let mut report = Report::default();
        i7_generation(&part, &mut report);
        take(&report, &["I7"], &log, found);
    }
}

/// Returns whether the write is another client's. A generation that it wrote is an edit, which the controller reverts.
fn is_edit(case: &Case, event: &AuditEvent) -> bool {
    !case.pods.contains(&event.user) && event.user != *RESTORED
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
