//! At the end of a run, every Foo has its desired state. While the system is idle, nothing is written.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::apps::v1::Deployment;
use operator_testkit::api_server::{Kind, Others, RESTORED, Revision};

use serde_json::Value;

use foo_controller::api::Foo;
use operator_simulation::{
    actors::{deployment_name, is_held},
    judge::{
        Case, KNOWN, Violation,
        fields::{condition, owner, text},
        made, name_of, named,
    },
    plan::{Fault, What},
    trace::{Call, Reconcile, Time},
};

use super::{
    super::{
        FOO,
        invariants::{CONTROLLER, GENERATION, MADE_FOR, unsettled},
        users::NAMESPACE,
    },
    deployments::is_going,
    retries::own_delay,
    rollouts::{QUEUED, is_queued, rolls_out},
    statuses::verdicts,
    warnings::{is_fenced, is_known_to_be_refused},
};

/// At the end, each Foo has its Deployment and a status that reports it, or a status that explains the difference. A status may
/// lack the explanation only if the API server rejected that status.
pub fn settled(case: &Case, found: &mut Vec<Violation>) {
    let of = |kind| {
        case.store
            .list(kind, Some(NAMESPACE))
            .map(|(_, object)| &**object)
            .collect::<Vec<_>>()
    };
    let deployments = of(Kind::Deployment);
    let asked_for: Vec<Value> = deployments
        .iter()
        .map(|deployment| as_asked(case, deployment))
        .collect();
    let deployments: Vec<_> = deployments.into_iter().zip(&asked_for).collect();
    for foo in of(FOO) {
        let wrong = is_settled(case, foo, &deployments).err();
        let is_untold = |what: &str| {
            let leader = case.last_leader().filter(|_| what.contains(" status "));
            leader.is_some_and(|leader| {
                let says = |report: &Value| condition(report, "Ready").0 == "False";
                is_known_to_be_refused(case, leader, &[foo], case.plan.end, says)
            })
        };
        if let Some(what) = wrong.filter(|what| !waits(case, foo) && !is_untold(what)) {
            found.push(Violation {
                invariant: "I3",
                at: case.plan.end,
                object: format!("Foo {}", text(&foo["metadata"]["name"])),
                what,
            });
        }
    }
}

/// Returns whether the Foo's next retry is due after the end of the run, and its last failure was caused by a fault.
///
/// Each failure doubles the delay, also in a reconcile that a change triggered. So the delay may exceed the time since the
/// first failure. Without a fault, a failure is no excuse: the status reports the obstacle.
fn waits(case: &Case, foo: &Value) -> bool {
    let key = format!("{NAMESPACE}/{}", text(&foo["metadata"]["name"]));
    let leader = case.last_leader();
    let its = case.reconciles.get(&*key).map_or(&[][..], Vec::as_slice);
    let last = its.iter().rposition(|one| Some(one.who) == leader);
    last.is_some_and(|last| {
        let (its, one) = (&its[..=last], its[last]);
        // A rejection by the fencing policy is not counted as a failure of the object.
        let is_fenced = calls_of(case, one).last().is_some_and(is_fenced);
        let delay = if is_fenced {
            own_delay(its, one)
        } else {
            delay(one)
        };
        let ended = one.ended.unwrap_or(one.begun);
        let is_to_come = one.failed && case.by_its_clock(one.who, ended, delay) > case.plan.end;
        is_to_come && is_in_trouble(case, one)
    })
}

/// Returns whether the reconcile began during or soon after a fault, or a fault affected its calls.
fn is_in_trouble(case: &Case, one: &Reconcile) -> bool {
    let over = case.trace.faults.iter().map(|(time, _)| time.end);
    let healed = over.filter(|over| *over < Time::MAX).max();
    // An API server may enforce a removed policy until it notices the removal.
    let is_refused = || {
        let mut calls = calls_of(case, one);
        calls.any(|call| matches!(call.answered, Some((_, 403 | 422))) && !is_fenced(call))
    };
    // A replica that was deposed during the fault may write until its deadline, and revert its successor's writes.
    let two_lead = case.longest_of(|settings| settings.renew_deadline);
    healed.is_some_and(|healed| {
        one.begun < healed + two_lead || one.begun < healed + KNOWN && is_refused()
    }) || calls_of(case, one).any(|call| call.fault.is_some())
}

/// Returns the calls of a reconcile. May include calls of another reconcile that the process ran at the same time.
pub fn calls_of<'a>(case: &'a Case, one: &'a Reconcile) -> impl Iterator<Item = &'a Call> {
    case.trace.calls.iter().filter(|call| {
        let is_then = one.begun <= call.begun && one.ended.is_none_or(|at| call.begun <= at);
        let is_look_up = call.resource == "foos" && call.path.contains("fieldSelector");
        let is_its = is_look_up || ["deployments", "foos/status"].contains(&&*call.resource);
        call.who == one.who && is_then && is_its
    })
}

/// Returns when a failed reconcile is retried.
pub fn retry_at(case: &Case, one: &Reconcile) -> Option<Time> {
    let ended = one.ended.unwrap_or(one.begun);
    one.failed
        .then(|| case.by_its_clock(one.who, ended, delay(one)))
}

pub fn delay(one: &Reconcile) -> Duration {
    backoff(one.attempt)
}

/// Returns the delay of a Foo after this number of consecutive failures.
pub fn backoff(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_secs(1000);
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
    FIRST.saturating_mul(doubled).min(LONGEST)
}

/// Returns when the system becomes idle: at the planned rest, or after the last retry that is pending then. Only the retry of a
/// reconcile with a failed request counts.
pub fn rests_from(case: &Case) -> Time {
    let retries = case.reconciles.keys();
    let retries = retries.filter_map(|key| last_retry(case, key));
    retries.fold(case.plan.rest, Time::max)
}

/// Returns when these Foos become idle, together with all Foos that have specified the same Deployments.
fn rests_of(case: &Case, foos: &[&str]) -> Time {
    let asked_for = |foo: &str| -> BTreeSet<&str> {
        let history = case.store.history().iter();
        let its = history.filter(|one| one.key.kind == FOO && one.key.name == foo);
        let specs = its.filter_map(|one| one.after.as_deref());
        specs
            .map(|foo| text(&foo["spec"]["deploymentName"]))
            .collect()
    };
    let ours: BTreeSet<&str> = foos.iter().flat_map(|foo| asked_for(foo)).collect();
    let retries = case.reconciles.keys().filter_map(|key| {
        let retry = last_retry(case, key)?;
        let name = name_of(key);
        let is_beside = foos.contains(&name) || !ours.is_disjoint(&asked_for(name));
        is_beside.then_some(retry)
    });
    retries.fold(case.plan.rest, Time::max)
}

/// Returns when the Foo's pending retry has ended, if it is due after the planned rest.
fn last_retry(case: &Case, key: &str) -> Option<Time> {
    const SOON: Duration = Duration::from_secs(3);
    const AT_ONCE: Duration = Duration::from_millis(40);
    let rest = case.plan.rest;
    // A long reconcile without calls waited for a connection. A rejection by the fencing policy is retried soon, however often
    // the Foo has failed.
    let was_in_vain = |one: &Reconcile| {
        let mut calls = calls_of(case, one).peekable();
        let took = one.ended.unwrap_or(Time::MAX).saturating_sub(one.begun);
        calls.peek().is_none() && took > AT_ONCE
            || calls.any(|call| {
                call.answered
                    .is_none_or(|(_, code)| code >= 300 && !is_fenced(call))
            })
    };
    let its = case.reconciles.get(key)?;
    let before = its.iter().rev().find(|one| one.begun < rest)?;
    let retry = retry_at(case, before).filter(|at| *at > rest && was_in_vain(before))?;
    Some(retry + SOON)
}

/// Returns the Deployment without the changes of other clients' policies. A leader whose patch was changed by a policy sends it
/// again only after a change of the Deployment or its Foo.
fn as_asked(case: &Case, deployment: &Value) -> Value {
    let mut asked = deployment.clone();
    let name = text(&deployment["metadata"]["name"]);
    let Some(leader) = case.last_leader() else {
        return asked;
    };
    let its = case.trace.calls.iter().filter(|call| {
        call.who == leader
            && call.resource == "deployments"
            && call.verb == "patch"
            && call.name() == name
            && call.code == Some(200)
    });
    let asked_at: Vec<_> = its.filter_map(|call| call.arrived).collect();
    for (time, fault) in &case.trace.faults {
        let Fault::Policy(policy) = fault else {
            continue;
        };
        let known = time.start..time.end.saturating_add(KNOWN);
        if !asked_at.iter().any(|asked| known.contains(asked)) {
            continue;
        }
        match policy {
            Others::Mirror => {
                let image = &mut asked["spec"]["template"]["spec"]["containers"][0]["image"];
                let plain = image
                    .as_str()
                    .and_then(|it| it.strip_prefix(Others::MIRROR));
                if let Some(plain) = plain.map(ToOwned::to_owned) {
                    *image = plain.into();
                }
            }
            Others::Label if asked["metadata"]["labels"]["app"] == Others::APP => {
                asked["metadata"]["labels"]["app"] = "nginx".into();
            }
            Others::FewReplicas if asked["spec"]["replicas"] == Others::FEW => {
                asked["spec"]["replicas"] = Value::Null;
            }
            _ => {}
        }
    }
    asked
}

/// Returns the numbers of available and of existing pods.
fn counts(of: &Value) -> [i64; 2] {
    ["availableReplicas", "replicas"].map(|field| of[field].as_i64().unwrap_or_default())
}

/// Returns whether the leader has reached its limit of concurrent rollouts.
fn is_limit_full(case: &Case, deployments: &[(&Value, &Value)]) -> bool {
    let leader = case.last_leader().and_then(|leader| case.life(leader));
    let max = leader.map_or(0, |life| life.settings.max_rollouts);
    let under_way = deployments.iter().filter(|(one, _)| rolls_out(one));
    max > 0 && under_way.count() >= max
}

/// Returns the image of the last configuration.
fn image<'a>(case: &'a Case) -> &'a str {
    let mut upgrades = case.plan.steps.iter().filter_map(|step| match &step.what {
        What::Action(action) => action.settings().map(|settings| settings.image),
        _ => None,
    });
    upgrades.next_back().unwrap_or(case.plan.settings.image)
}

pub fn is_complete(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
    let is = |field: &str| status[field].as_i64().unwrap_or_default() == spec.as_i64().unwrap_or(1);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && is("updatedReplicas")
        && is("availableReplicas")
        && is("replicas")
}

/// Returns an error if the Foo is not in its desired state. `deployments` has each Deployment as stored, and as the controller
/// requested it.
fn is_settled(case: &Case, foo: &Value, deployments: &[(&Value, &Value)]) -> Result<(), String> {
    let metadata = &foo["metadata"];
    if metadata["deletionTimestamp"].is_string() {
        return Ok(());
    }
    let status = &foo["status"];
    let told = condition(foo, "Ready");
    let is_current = status["observedGeneration"] == metadata["generation"];
    let typed = serde_json::from_value::<Foo>(foo.clone());
    let is_valid = |typed: &Foo| typed.spec.check(text(&metadata["name"])).is_ok();
    let Some(typed) = typed.ok().filter(is_valid) else {
        // The API server rejects any status of a Foo that deviates too far from its schema.
        let says_so = told == ("False", "InvalidSpec") && is_current;
        return (says_so || foo["spec"].is_null() || !foo["spec"]["deploymentName"].is_string())
            .then_some(())
            .ok_or_else(|| format!("its spec is invalid, and its status says {told:?}"));
    };
    let wanted = &*typed.spec.deployment_name.clone();
    let actual = deployments
        .iter()
        .find(|(one, _)| one["metadata"]["name"] == wanted);
    let Some((actual, asked_for)) = actual else {
        return Err(format!("has no Deployment {wanted}"));
    };
    if owner(actual) != text(&metadata["uid"]) {
        // The status still counts the Deployment that serves the Foo.
        let serving = deployments.iter().find(|(one, _)| {
            one["metadata"]["name"] == status["deploymentName"]
                && owner(one) == text(&metadata["uid"])
        });
        if let Some((serving, _)) = serving
            && counts(&serving["status"]) != counts(status)
        {
            let (says, is) = (counts(status), counts(&serving["status"]));
            return Err(format!(
                "its status says that {says:?} are available and there, and {is:?} are"
            ));
        }
        is_scaled(foo, deployments)?;
        let is_told = matches!(told, ("False", "ErrResourceExists" | "DeploymentDeleting"));
        return (is_told && is_current).then_some(()).ok_or_else(|| {
            format!("Deployment {wanted} is another's, and its status says {told:?}")
        });
    }
    let asked = typed.spec.replicas;
    let waits_for_others = is_queued(foo) && is_limit_full(case, deployments);
    let typed_actual = serde_json::from_value::<Deployment>(Value::clone(asked_for));
    let mut typed_actual = typed_actual.map_err(|error| error.to_string())?;
    if let Some(spec) = typed_actual.spec.as_mut() {
        spec.replicas = spec.replicas.or(typed.spec.replicas);
    }
    let its = text(&actual["spec"]["template"]["spec"]["containers"][0]["image"]);
    let image = if waits_for_others { its } else { image(case) };
    if let Some(wrong) = unsettled(&[typed], &[typed_actual], image).pop() {
        return Err(wrong.trim_start_matches("I3 ").to_owned());
    }
    if !is_complete(actual) && (hangs(case, wanted) || is_held(actual)) {
        let mut says = ["Ready", "Progressing"].map(|of_type| condition(foo, of_type));
        // In progress until the Foo stalls.
        if condition(foo, "Stalled").0 == "False" && says[1] == ("True", says[0].1) {
            says[1].0 = "False";
        }
        let is = verdicts(actual, asked);
        is_scaled(foo, deployments)?;
        return (says == is && is_current).then_some(()).ok_or_else(|| {
            format!("the rollout of {wanted} hangs, {is:?}, and its status says {says:?}")
        });
    }
    if !is_complete(actual) {
        return Err(format!(
            "the rollout of {wanted} has not ended: {}",
            actual["status"]
        ));
    }
    let selector = format!("app=nginx,controller={}", text(&metadata["name"]));
    let progressing = condition(foo, "Progressing");
    let says = (counts(status), text(&status["deploymentName"]), told.0);
    let says = (says, text(&status["selector"]), progressing);
    // A policy may store a different number of replicas.
    let asked = &foo["spec"]["replicas"];
    let verdict = if waits_for_others {
        ("True", QUEUED.1)
    } else if asked.is_null() || *asked == actual["spec"]["replicas"] {
        ("True", "DeploymentComplete")
    } else {
        ("False", "DeploymentOverruled")
    };
    let is = (counts(&actual["status"]), wanted, verdict.0);
    let at_work = if waits_for_others { QUEUED.0 } else { "False" };
    let is = (is, &*selector, (at_work, verdict.1));
    if says != is {
        return Err(format!("its status says {says:?}, and it is {is:?}"));
    }
    if let Some(forged) = forged_generation(case, foo, actual) {
        return Err(format!(
            "{wanted} names its generation {forged}, which it has not had"
        ));
    }
    match earlier(case, foo, wanted, deployments) {
        Some(left) => Err(format!(
            "its earlier Deployment {} is still there",
            left["metadata"]["name"]
        )),
        None => Ok(()),
    }
}

/// Checks that a Deployment that serves under an earlier name has the Foo's replicas, unless a policy changed them.
fn is_scaled(foo: &Value, deployments: &[(&Value, &Value)]) -> Result<(), String> {
    let (asked, served) = (&foo["spec"]["replicas"], &foo["status"]["deploymentName"]);
    let mut all = deployments.iter();
    let its = all.find(|(one, asked_for)| {
        let (name, has) = (&one["metadata"]["name"], &asked_for["spec"]["replicas"]);
        let is_other = name == served && *name != foo["spec"]["deploymentName"];
        let is_its = owner(one) == text(&foo["metadata"]["uid"]) && !is_going(one);
        is_other && is_its && !has.is_null() && !asked.is_null() && has != asked
    });
    its.map_or(Ok(()), |(one, _)| {
        let has = &one["spec"]["replicas"];
        Err(format!(
            "asks for {asked} replicas, and {served}, which serves, has {has}"
        ))
    })
}

/// Returns the generation that a Foo's Deployment names if the Foo has not reached it: then a user has edited it. An annotation
/// that was made for another Foo or Deployment does not count.
fn forged_generation(case: &Case, foo: &Value, deployment: &Value) -> Option<i64> {
    let note = |of: &Value, name| {
        of["metadata"]["annotations"][name]
            .as_str()
            .map(String::from)
    };
    let made_for = note(deployment, MADE_FOR)?;
    let its = case.history_of(Kind::Deployment, text(&deployment["metadata"]["name"]));
    let mut written = its.iter().filter(|one| *one.by == *CONTROLLER);
    let is_of_this_one = written.any(|one| {
        one.after.as_deref().is_some_and(|after| {
            owner(after) == text(&foo["metadata"]["uid"])
                && note(after, MADE_FOR).as_ref() == Some(&made_for)
        })
    });
    let named = note(deployment, GENERATION)?.parse::<i64>().ok()?;
    let has = foo["metadata"]["generation"].as_i64().unwrap_or_default();
    (is_of_this_one && named > has).then_some(named)
}

/// Returns an earlier Deployment of the Foo that still exists.
fn earlier<'a>(
    case: &Case,
    foo: &Value,
    wanted: &str,
    deployments: &[(&'a Value, &Value)],
) -> Option<&'a Value> {
    let uid = text(&foo["metadata"]["uid"]);
    // A user's copy has the same annotations, so only Deployments that the controller wrote count. A restored backup may lack
    // the controller's write.
    let is_written_by_us = |other: &Value| {
        let version = |of: &Value| text(&of["metadata"]["resourceVersion"]).parse::<u64>().ok();
        let its = case.history_of(Kind::Deployment, text(&other["metadata"]["name"]));
        let its = its.iter().filter_map(|one| {
            let after = one.after.as_deref()?;
            (after["metadata"]["uid"] == other["metadata"]["uid"]).then_some((&*one.by, after))
        });
        let mut written = None;
        for (by, after) in its {
            if *by == *CONTROLLER {
                written = written.or(version(after));
            } else if *by == *RESTORED {
                written = written.filter(|written| Some(*written) <= version(after));
            }
        }
        written.is_some()
    };
    let mut all = deployments.iter().map(|(other, _)| *other);
    all.find(|other| {
        owner(other) == uid
            && is_written_by_us(other)
            && other["metadata"]["name"] != wanted
            && other["metadata"]["deletionTimestamp"].is_null()
    })
}

/// Returns whether a fault keeps the pods of this Deployment unavailable until the end.
fn hangs(case: &Case, deployment: &str) -> bool {
    let mut for_good = case
        .trace
        .faults
        .iter()
        .filter(|(time, _)| time.end == Time::MAX);
    for_good.any(|(_, fault)| {
        matches!(fault, Fault::NoPods { deployment: its, .. } if deployment_name(*its) == deployment)
    })
}

/// While the system is idle, only the Lease changes, and no replica logs a warning.
pub fn at_rest(case: &Case, found: &mut Vec<Violation>) {
    let rest = rests_from(case);
    // Objects of a Foo are idle after the retries of that Foo and the Foos that share its Deployments.
    let rest_of = |revision: &Revision| {
        let object = revision.after.as_deref().or(revision.before.as_deref());
        match revision.key.kind {
            Kind::Custom(_) => rests_of(case, &[&revision.key.name]),
            Kind::Deployment => {
                let owners = object.and_then(|it| it["metadata"]["ownerReferences"].as_array());
                let owners = owners.into_iter().flatten();
                let foos: Vec<_> = owners.map(|owner| text(&owner["name"])).collect();
                if foos.is_empty() {
                    rest
                } else {
                    rests_of(case, &foos)
                }
            }
            _ => rest,
        }
    };
    let is_late = |revision: &Revision| {
        made(revision) >= case.plan.rest
            && revision.key.kind != Kind::Lease
            && made(revision) >= rest_of(revision)
    };
    let ours = case
        .store
        .history()
        .iter()
        .find(|revision| is_late(revision));
    if let Some(revision) = ours {
        found.push(Violation {
            invariant: "I6",
            at: made(revision),
            object: named(&revision.key),
            what: format!("changed by {} at rest", revision.by),
        });
    }
    // Each retry logs that a Deployment of another owner is in the way.
    let is_expected =
        |text: &str| text.contains("ErrResourceExists") || text.contains("fell too far behind");
    let mut logs = case.trace.logs.iter();
    let warning = logs
        .find(|log| log.at >= rest && log.level <= tracing::Level::WARN && !is_expected(&log.text));
    if let Some(log) = warning {
        found.push(Violation {
            invariant: "I6",
            at: log.at,
            object: log.who.to_string(),
            what: format!("warns at rest: {}", log.text),
        });
    }
}
