//! The limit on concurrent rollouts, `max_rollouts`.

use std::collections::HashSet;

use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{owner, text},
        made, named,
    },
    trace::Call,
};
use operator_testkit::api_server::Kind;
use serde_json::Value;

use super::{super::FOO, deployments::is_going};

/// A process has at most `max_rollouts` rollouts under way. Its rollouts count unless another client has changed the Deployment
/// since, or its Foo is terminating.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    // Process that started each rollout, the Deployment, and the UID of its Foo.
    let mut started = Vec::new();
    let mut terminating = HashSet::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
        let is_foo = revision.key.kind == FOO;
        if let Some(foo) = after.filter(|it| is_foo && is_going(it)) {
            terminating.insert(text(&foo["metadata"]["uid"]));
        }
        if revision.key.kind != Kind::Deployment {
            continue;
        }
        let call = case.writer(index);
        let writer = call.map(|call| call.who);
        let template = |of: Option<&Value>| of.map(|of| of["spec"]["template"].clone());
        let generation = |of: Option<&Value>| of.map(|of| of["metadata"]["generation"].clone());
        let is_start = before.is_some() && after.is_some() && template(before) != template(after);
        let is_under_way =
            || after.is_some_and(|now| has_owner(now) && (rolls_out(now) || !is_observed(now)));
        // Another client has changed the Deployment, the rollout has ended, or the deleted Foo has orphaned the Deployment.
        if generation(before) != generation(after) && writer.is_none() || !is_under_way() {
            started.retain(|(_, key, _)| *key != &revision.key);
        }
        // A webhook may change the template in a patch that only scales.
        let is_asked = call.is_some_and(|call| !call.body["spec"]["template"].is_null());
        let Some(who) = writer.filter(|_| is_start && is_asked) else {
            continue;
        };
        // The process does not know the outcome of a patch without a readable response.
        let is_known = |call: &Call| call.code == Some(200) && call.fault.is_none();
        if !call.is_some_and(is_known) {
            continue;
        }
        let foo = after.map(owner).unwrap_or_default();
        let was_under_way = started.contains(&(who, &revision.key, foo));
        let is_paused = after.is_some_and(|now| now["spec"]["paused"] == true);
        if was_under_way || is_paused || before.is_some_and(is_replacing) {
            continue;
        }
        started.push((who, &revision.key, foo));
        let max = case.life(who).map_or(0, |life| life.settings.max_rollouts);
        let its = started
            .iter()
            .filter(|(by, _, foo)| *by == who && !terminating.contains(*foo));
        let its = its.count();
        if max > 0 && its > max {
            found.push(Violation {
                invariant: "I17",
                at: made(revision),
                object: named(&revision.key),
                what: format!("is rollout {its} of {who}, which may have {max}"),
            });
        }
    }
}

/// Returns whether the status reports that the rollout waits for others.
pub fn is_queued(foo: &Value) -> bool {
    let conditions = foo["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| text(&condition["message"]).contains("its rollout waits"))
}

/// `Progressing` of a Foo whose Deployment serves with its previous template.
pub const QUEUED: (&str, &str) = ("True", "RolloutQueued");

/// Returns whether the rollout of the Deployment is under way.
pub fn rolls_out(deployment: &Value) -> bool {
    let count = |field: &str| deployment["status"][field].as_i64().unwrap_or_default();
    let replaces = if is_observed(deployment) {
        count("replicas") > count("updatedReplicas")
    } else {
        count("observedGeneration") > 0
    };
    replaces && deployment["spec"]["paused"] != true && !is_going(deployment)
}

fn has_owner(deployment: &Value) -> bool {
    let owners = deployment["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| !owners.is_empty())
}

fn is_replacing(deployment: &Value) -> bool {
    is_observed(deployment) && rolls_out(deployment)
}

fn is_observed(deployment: &Value) -> bool {
    deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]
}
