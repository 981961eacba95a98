//! What users are told: no status says what was never so, and what goes wrong in a new way is an event.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    super::api::{Key, Kind},
    Case, Violation,
    converge::condition,
    made, named,
};

/// As `kubectl rollout status` has it: with more pods than are asked for, too, while a Deployment is scaled down.
fn is_rolled_out(deployment: &Value) -> bool {
    let status = &deployment["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let (wanted, updated) = (&deployment["spec"]["replicas"], count("updatedReplicas"));
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && updated >= wanted.as_i64().unwrap_or(1)
        && count("replicas") <= updated
        && count("availableReplicas") >= updated
}

/// I13: what a status says of the Deployment was so at some time before, and it is about a generation that the Foo has had.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    // Of each Deployment, by its name: how many replicas were available at some time, and whether a rollout was over.
    let mut available = BTreeMap::<Key, BTreeSet<i64>>::new();
    let mut completed = BTreeSet::<Key>::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let Some(after) = revision.after.as_deref() else {
            continue;
        };
        match revision.key.kind {
            Kind::Deployment => {
                let seen = available.entry(revision.key.clone()).or_default();
                seen.insert(
                    after["status"]["availableReplicas"]
                        .as_i64()
                        .unwrap_or_default(),
                );
                if is_rolled_out(after) {
                    completed.insert(revision.key.clone());
                }
            }
            Kind::Foo if case.writer(index).is_some() => {
                let named_so = after["status"]["deploymentName"].as_str();
                let says = after["status"]["availableReplicas"]
                    .as_i64()
                    .unwrap_or_default();
                // The name is that of the one before, if there is one, until the one that is asked for is complete.
                let asked_for = after["spec"]["deploymentName"].as_str();
                let is_it = |key: &Key| {
                    key.namespace == revision.key.namespace
                        && (named_so.is_none() || [named_so, asked_for].contains(&Some(&key.name)))
                };
                let mut its = available.iter().filter(|(key, _)| is_it(key));
                let was = its.any(|(_, seen)| seen.contains(&says));
                let was_complete = completed.iter().any(is_it);
                let name = named_so.unwrap_or("a Deployment");
                let generation = |of: &Value| of.as_i64().unwrap_or_default();
                let what = if says != 0 && !was {
                    format!("says {says} replicas of {name} are available, which never was so")
                } else if condition(after, "Ready").0 == "True" && !was_complete {
                    format!("says that it is Ready, and no rollout of {name:?} was ever over")
                } else if generation(&after["status"]["observedGeneration"])
                    > generation(&after["metadata"]["generation"])
                {
                    "says that it has seen a generation that is to come".to_owned()
                } else {
                    continue;
                };
                found.push(Violation {
                    invariant: "I13",
                    at: made(revision),
                    object: named(&revision.key),
                    what,
                });
            }
            _ => {}
        }
    }
}

/// I14: a status that begins to say `ErrResourceExists` or `InvalidSpec` comes with an event that says so, from the same
/// process, a while before or after; unless that has ended by then.
pub fn warned(case: &Case, found: &mut Vec<Violation>) {
    const AROUND: Duration = Duration::from_secs(30);
    for (index, revision) in case.store.history().iter().enumerate() {
        let Some(call) = case
            .writer(index)
            .filter(|_| revision.key.kind == Kind::Foo)
        else {
            continue;
        };
        let reason = |object: &Option<std::sync::Arc<Value>>| {
            object
                .as_deref()
                .map(|object| condition(object, "Ready").1.to_owned())
                .unwrap_or_default()
        };
        let (before, now) = (reason(&revision.before), reason(&revision.after));
        if before == now || !matches!(&*now, "ErrResourceExists" | "InvalidSpec") {
            continue;
        }
        let life = case.trace.lives.iter().find(|life| life.who == call.who);
        let until = life
            .and_then(|life| life.ended.as_ref())
            .map_or(case.plan.end, |(at, _)| *at);
        let is_its = |other: &super::Call| {
            other.who == call.who
                && other.resource == "events"
                && other.begun + AROUND >= call.begun
                && other.begun <= call.begun + AROUND
        };
        let any = case.trace.calls.iter().any(is_its);
        if !any && until > call.begun + AROUND {
            found.push(Violation {
                invariant: "I14",
                at: made(revision),
                object: named(&revision.key),
                what: format!("says {now}, and there was no event"),
            });
        }
    }
}
