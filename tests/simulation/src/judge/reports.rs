//! The status of each Foo is written in time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use foo_controller::api::Foo;
use operator_simulation::{
    judge::{
        Case, KNOWN, STEP, Violation,
        fields::{owner, text},
        hindered::{AFTER, felt_until},
        made, named,
        works::{Hold, SOON, holds},
    },
    plan::Fault,
    trace::{Call, Time, Who},
};
use operator_testkit::api_server::{Key, Kind};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    deployments::is_going, hindered::is_hindered_for, statuses::is_rolled_out,
    warnings::is_for_good,
};

/// Required content of a status: the generation of the Foo, and the counts of the Deployment that serves it. If another
/// complete Deployment is about to serve the Foo, its counts are accepted as well.
#[derive(Clone, PartialEq)]
struct Asked {
    generation: Value,
    counts: Option<Vec<[i64; 2]>>,
}

/// Outdated status. `since` has the time when it became outdated, and of each later change of its required content.
struct Stale {
    asked: Asked,
    since: Vec<Time>,
}

/// While a process holds the Lease and no fault obstructs it, a status is outdated for no longer than a reconcile takes. The
/// time starts with a change, a term, or the end of an obstacle. Within it, the status has at some moment the generation of the
/// Foo and the counts of its Deployment.
pub fn in_time(case: &Case, found: &mut Vec<Violation>) {
    let holds = holds(case);
    let soon = case.longest(SOON);
    // A reconcile that failed or still runs has its own delay.
    let is_waiting = |key: &Key, who: Who, at: Time| {
        let its = case
            .reconciles
            .get(&*format!("{}/{}", key.namespace, key.name));
        let mut its = its.into_iter().flatten().rev();
        let last = its.find(|one| one.who == who && one.begun <= at);
        last.is_some_and(|one| one.failed || one.ended.is_none_or(|ended| ended > at))
    };
    let ends = ends(case);
    let mut judge = |key: &Key, stale: &Stale, until: Time| {
        let begun = stale.since.first().copied().unwrap_or(until);
        let begins = holds.iter().map(|hold| hold.from);
        let begins = begins.chain(ends.iter().copied().filter(|end| {
            let holder = holder(&holds, *end, *end);
            holder.is_some_and(|holder| !is_waiting(key, holder, *end))
        }));
        let later = begins.filter(|at| (begun..until).contains(at));
        let mut since = stale.since.iter().copied().chain(later);
        let late = since.find_map(|from| {
            let due = from + soon;
            let holder = holder(&holds, from, due).filter(|_| due < until)?;
            let has_failed = has_failed(case, key, holder, from, due);
            let is_free = !has_failed
                && !is_hindered_for(case, holder, &key.name, from, due)
                && !case.has_policy(from)
                && !case.has_policy(due)
                && !case.is_undefined(from);
            is_free.then_some((from, due, holder))
        });
        found.extend(late.map(|(from, due, holder)| Violation {
            invariant: "I13",
            at: due,
            object: named(key),
            what: format!(
                "says nothing of what has been so since {from:?}, and {holder} holds the Lease"
            ),
        }));
    };
    let (mut objects, mut deployments) = (BTreeMap::new(), BTreeMap::new());
    let mut behind = BTreeMap::<&Key, Stale>::new();
    for revision in case.store.history() {
        let (key, after) = (&revision.key, revision.after.as_deref());
        match (key.kind, after) {
            (Kind::Custom(_), Some(object)) => _ = objects.insert(key, (object, specified(object))),
            (Kind::Custom(_), None) => _ = objects.remove(key),
            (Kind::Deployment, Some(one)) => _ = deployments.insert(key, one),
            (Kind::Deployment, None) => _ = deployments.remove(key),
            _ => continue,
        }
        let at = made(revision);
        behind.retain(|key, stale| {
            let stays = objects.contains_key(*key);
            if !stays {
                judge(key, stale, at);
            }
            stays
        });
        for (key, (foo, specified)) in &objects {
            let asked = specified
                .as_deref()
                .map(|specified| asked(foo, specified, &deployments));
            let Some(asked) = asked.filter(|asked| !says(foo, asked)) else {
                if let Some(stale) = behind.remove(*key) {
                    judge(key, &stale, at);
                }
                continue;
            };
            let stale = behind.entry(*key).or_insert_with(|| Stale {
                asked: asked.clone(),
                since: vec![at],
            });
            if stale.asked != asked {
                stale.asked = asked;
                stale.since.push(at);
            }
        }
    }
    for (key, stale) in behind {
        judge(key, &stale, case.plan.end);
    }
}

/// Returns when obstacles and their aftermath end.
fn ends(case: &Case) -> BTreeSet<Time> {
    let faults = case.trace.faults.iter();
    let ends = faults.map(|(time, fault)| match fault {
        // An API server that is behind enforces the policy for longer.
        Fault::Policy(_) => time.end.saturating_add(KNOWN),
        _ => felt_until(case, time, fault).saturating_add(case.longest(AFTER)),
    });
    // A fault may affect single calls until the end of the storm, so each affected call has its own end.
    let spoilt = case.trace.calls.iter().filter(|call| call.fault.is_some());
    let spoilt = spoilt.filter_map(|call| {
        let asked = call.retry_after.unwrap_or_default();
        Some(
            call.over?
                .saturating_add(case.longest(asked + AFTER) + STEP),
        )
    });
    ends.chain(spoilt).collect()
}

/// Returns whether no status of this Foo is expected, because the last status was rejected or failed. A failed status is
/// retried with the backoff of the object. A status that was rejected for its content is sent again after a change of the
/// object, or after a long time.
fn has_failed(case: &Case, key: &Key, holder: Who, from: Time, due: Time) -> bool {
    /// Time before a rejected status is sent again.
    const GIVEN_UP: Duration = Duration::from_secs(1000);
    let mut reports = case.trace.calls.iter().filter(|call| {
        call.who == holder
            && call.resource == "foos/status"
            && text(&call.body["metadata"]["name"]) == key.name
            && call.begun < due
    });
    let last = reports.clone().rfind(|call| call.begun < from);
    let is_given_up =
        last.is_some_and(|call| is_for_good(call) && call.begun >= from.saturating_sub(GIVEN_UP));
    let code = |call: &Call| call.answered.map_or(0, |(_, code)| code);
    is_given_up || reports.any(|call| call.begun >= from && !matches!(code(call), 200..300 | 409))
}

/// Returns the holder of the Lease, if it was the same for all of this time.
fn holder(holds: &[Hold], from: Time, until: Time) -> Option<Who> {
    let mut holds = holds.iter();
    let hold = holds.find(|hold| hold.from <= from && until <= hold.until)?;
    Some(hold.who)
}

/// Returns the specified name of the Deployment. `None`: the Foo is terminating, or its spec is invalid.
fn specified(foo: &Value) -> Option<String> {
    let typed = Foo::deserialize(foo).ok()?;
    let is_valid = typed.spec.check(text(&foo["metadata"]["name"])).is_ok();
    (is_valid && !is_going(foo)).then_some(typed.spec.deployment_name)
}

/// Returns the required content of the status.
fn asked(foo: &Value, specified: &str, deployments: &BTreeMap<&Key, &Value>) -> Asked {
    let metadata = &foo["metadata"];
    let namespace = text(&metadata["namespace"]);
    let its = |name: &str| {
        let one = deployments.get(&Key::new(Kind::Deployment, namespace, name));
        one.filter(|one| owner(one) == text(&metadata["uid"]))
    };
    let served = its(text(&foo["status"]["deploymentName"]));
    let specified = its(specified).filter(|one| served.is_none() || is_rolled_out(one));
    let all: Vec<_> = [served, specified].into_iter().flatten().collect();
    let counts = if all.is_empty() {
        let mut all = deployments.values();
        let is_served = all.any(|one| owner(one) == text(&metadata["uid"]));
        (!is_served).then(|| vec![[0, 0]])
    } else {
        let is_going = all.iter().any(|one| is_going(one));
        (!is_going).then(|| all.iter().map(|one| counts(&one["status"])).collect())
    };
    Asked {
        generation: metadata["generation"].clone(),
        counts,
    }
}

fn says(foo: &Value, asked: &Asked) -> bool {
    let status = &foo["status"];
    let mut asked_counts = asked.counts.iter();
    let is_counted = asked_counts.all(|all| all.contains(&counts(status)));
    status["observedGeneration"] == asked.generation && is_counted
}

fn counts(status: &Value) -> [i64; 2] {
    ["availableReplicas", "replicas"].map(|field| status[field].as_i64().unwrap_or_default())
}
