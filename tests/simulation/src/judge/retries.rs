//! A failed reconcile is retried, but not before its delay has passed.

use std::{sync::Arc, time::Duration};

use operator_simulation::{
    judge::{
        Case, STEP, Violation,
        fields::text,
        hindered::{AFTER, felt_until, hinders, is_hindered},
        made, name_of,
        works::{SOON, holds},
    },
    plan::Fault,
    trace::{Call, Reconcile, Role, Time},
};
use operator_testkit::api_server::Kind;
use serde_json::Value;

use super::{
    converge::{backoff, calls_of, delay, retry_at},
    hindered::{is_gone, is_write_for_another},
    warnings::{is_fenced, is_of_the_end},
};

/// A reconcile that failed with a 5xx response of the API server is retried when its delay has passed.
pub fn tries_again(case: &Case, found: &mut Vec<Violation>) {
    const QUICK: Duration = Duration::from_secs(1);
    let holds = holds(case);
    for (key, its) in &case.reconciles {
        let name = name_of(key);
        for (number, one) in its.iter().enumerate() {
            let (Some(ended), Some(due)) = (one.ended, retry_at(case, one)) else {
                continue;
            };
            let due = due + case.takes(one.who, SOON);
            let is_write = |call: &&Call| call.is_work() && !is_write_for_another(case, call, name);
            let has_failed = calls_of(case, one).filter(is_write).any(|call| {
                let code = call.answered.map_or(0, |(_, code)| code);
                matches!(code, 500 | 502 | 503 | 504) && call.retry_after.is_none()
            });
            let mut holds = holds.iter();
            let is_held =
                holds.any(|hold| hold.who == one.who && hold.from <= one.begun && due < hold.until);
            let is_begun = || {
                let mut later = its[number + 1..].iter();
                later.any(|next| next.who == one.who && next.begun <= due)
            };
            if !has_failed || !is_held || is_begun() || is_gone(case, key, ended, due) {
                continue;
            }
            let after = case.longest(AFTER);
            let is_slow = case.trace.calls.iter().any(|call| {
                let over = call.over.unwrap_or(Time::MAX);
                let asked = call.retry_after.map(|asked| over.saturating_add(asked));
                let is_then = call.begun <= due && over > ended && over > call.begun + QUICK;
                call.who == one.who
                    && call.role == Role::Work
                    && (is_then && !call.is_watch()
                        || call.begun <= due && asked.is_some_and(|asked| asked >= one.begun))
            });
            let is_in_the_way = case.trace.faults.iter().any(|(time, fault)| {
                let is_then = time.start < due
                    && felt_until(case, time, fault).saturating_add(after) > one.begun;
                is_then && hinders(fault, one.who)
            });
            let is_asleep = case
                .asleep(one.who)
                .any(|asleep| asleep.start < due && asleep.end > one.begun);
            if may_be_contested(case, one, name) || is_slow || is_in_the_way || is_asleep {
                continue;
            }
            found.push(Violation {
                invariant: "I10",
                at: due,
                object: (*key).to_owned(),
                what: format!("failed at {ended:?}, and is not tried again by {}", one.who),
            });
        }
    }
}

/// A retry does not begin before its delay has passed, and each failure of the object is counted.
pub fn waits(case: &Case, found: &mut Vec<Violation>) {
    for (key, its) in &case.reconciles {
        for (number, one) in its.iter().enumerate() {
            let mut later = its[number + 1..].iter();
            let next = later.find(|next| next.who == one.who);
            let Some((next, ended)) = next.zip(one.ended.filter(|_| one.failed)) else {
                continue;
            };
            let is_counted = next.attempt != one.attempt;
            let delay = if is_counted {
                delay(one)
            } else {
                own_delay(&its[..=number], one)
            };
            let due = ended + case.takes(one.who, delay);
            let name = name_of(key);
            if next.trigger != "retry" || may_be_contested(case, one, name) {
                continue;
            }
            let what = if next.begun + 2 * STEP < due {
                format!(
                    "failed {} times, and {} tries again before {due:?}",
                    one.attempt, one.who
                )
            } else if !is_counted && has_failed(case, one, name) {
                format!(
                    "failed {} times, and {} does not count it",
                    one.attempt, one.who
                )
            } else {
                continue;
            };
            found.push(Violation {
                invariant: "Q3",
                at: next.begun,
                object: (*key).to_owned(),
                what,
            });
        }
    }
}

/// A failing object is retried with exponential backoff while only its own reconciles change anything.
pub fn backs_off(case: &Case, found: &mut Vec<Violation>) {
    /// Upper bound of the attempts in a minute: ten that changes bring forward, and fourteen with a delay that doubles.
    const MOST: usize = 30;
    const MINUTE: Duration = Duration::from_mins(1);
    for (key, its) in &case.reconciles {
        let name = name_of(key);
        let is_changed = |from: Time, until: Time| {
            let mut history = case.store.history().iter();
            history.any(|revision| {
                let generation = |of: &Option<Arc<Value>>| {
                    let metadata = of.as_deref().map(|of| &of["metadata"]);
                    metadata.map(|it| (it["generation"].clone(), it["deletionTimestamp"].clone()))
                };
                let is_about = match revision.key.kind {
                    Kind::Deployment => true,
                    Kind::Custom(_) => {
                        revision.key.name == name
                            && generation(&revision.before) != generation(&revision.after)
                    }
                    _ => false,
                };
                is_about && (from..=until).contains(&made(revision))
            })
        };
        for (number, one) in its.iter().enumerate() {
            let mut tries = 0;
            let before = its[..number].iter().rev().filter(|it| it.who == one.who);
            // Back to the last success.
            let mut last = one.attempt;
            let first = before.take_while(|it| {
                let is_in_a_row = it.attempt <= last;
                tries += usize::from(it.attempt < last);
                last = it.attempt;
                is_in_a_row && tries <= MOST
            });
            let Some(first) = first.last().filter(|_| tries >= MOST) else {
                continue;
            };
            let is_often = one.begun < first.begun + case.shortest(MINUTE);
            if is_often && !is_changed(first.begun.saturating_sub(MINUTE), one.begun) {
                found.push(Violation {
                    invariant: "Q3",
                    at: one.begun,
                    object: (*key).to_owned(),
                    what: format!("tried more than {MOST} times in vain by {}", one.who),
                });
                break;
            }
        }
    }
}

/// Returns whether the reconcile ended with a rejection that counts as a failure of the object. Conflicts, rejections by the
/// fencing policy and a terminating namespace do not count. Considers only calls that name their Foo, because another worker
/// may reconcile another Foo at the same time.
fn has_failed(case: &Case, one: &Reconcile, foo: &str) -> bool {
    const AT_ONCE: Duration = Duration::from_millis(100);
    let its = calls_of(case, one).filter(|call| {
        matches!(call.verb, "create" | "update") && !is_write_for_another(case, call, foo)
    });
    its.last().is_some_and(|call| {
        let (at, code) = call.answered.unwrap_or_default();
        // If the reconcile ended later, another error ended it. A request that finds no connection is not a call.
        let is_the_end = one.ended.is_none_or(|ended| ended <= at + AT_ONCE);
        let is_failure = code >= 300 && !matches!(code, 404 | 409);
        is_the_end && is_failure && !is_fenced(call) && !is_of_the_end(call)
    })
}

/// Returns the delay after an error that is not counted as a failure: the backoff of the consecutive errors of this sort.
pub fn own_delay(its: &[&Reconcile], one: &Reconcile) -> Duration {
    let mut own = 0;
    for before in its.iter().rev().filter(|before| before.who == one.who) {
        if before.attempt != one.attempt {
            break;
        }
        own += 1;
        if before.trigger != "retry" {
            break;
        }
    }
    backoff(own)
}

/// Returns whether this Foo was written so often that the next write may be delayed as disputed.
fn may_be_contested(case: &Case, one: &Reconcile, foo: &str) -> bool {
    const OFTEN: usize = 6;
    const LATELY: Duration = Duration::from_mins(2);
    let from = one.begun.saturating_sub(case.longest(LATELY));
    let until = one.ended.unwrap_or(one.begun);
    let writes = case.trace.calls.iter().filter(|call| {
        call.who == one.who
            && call.is_work()
            && call.code.is_some_and(|code| code < 300)
            && (from..=until).contains(&call.begun)
            && !is_write_for_another(case, call, foo)
    });
    writes.count() > OFTEN
}

/// A write that was rejected for a missing permission is retried when the permission is restored, without waiting for its
/// backoff.
pub fn rights_are_used_again(case: &Case, found: &mut Vec<Violation>) {
    /// Longest pause between two permission reviews, and the time of the reviews.
    const LOOKS: Duration = Duration::from_secs(11);
    let holds = holds(case);
    for (time, fault) in &case.trace.faults {
        let Fault::Revoke { verb, resource } = fault else {
            continue;
        };
        let back = time.end;
        // A permission that is not reviewed is tried after at most the time for which permissions were missing.
        let away = {
            let before = case.trace.faults.iter().filter(|(other, fault)| {
                matches!(fault, Fault::Revoke { .. }) && other.start < back
            });
            let lasted = before.map(|(other, _)| other.end.min(back).saturating_sub(other.start));
            lasted.sum::<Duration>()
        };
        let tried = match (*verb, *resource) {
            // Reviewed permissions.
            ("create" | "patch", "deployments") | ("update", "foos/status") => LOOKS,
            ("delete", "deployments") | ("list", "foos") => away + LOOKS,
            _ => continue,
        };
        let due = back.saturating_add(case.longest(tried + SOON));
        let mut holds = holds.iter();
        let Some(hold) = holds.find(|hold| hold.from <= back && due <= hold.until) else {
            continue;
        };
        // Only obstacles after the restoration count. Before it, the missing permission was the obstacle.
        let after = back + case.longest(AFTER) + Duration::from_millis(1);
        if is_hindered(case, hold.who, after, due) {
            continue;
        }
        for (key, its) in &case.reconciles {
            let its = || its.iter().filter(|one| one.who == hold.who);
            let Some(last) = its().rfind(|one| one.begun < back) else {
                continue;
            };
            let name = name_of(key);
            let was_refused = last.failed
                && calls_of(case, last).any(|call| {
                    let is_it = call.verb == *verb && call.resource == *resource;
                    let is_it = is_it && !is_write_for_another(case, call, name);
                    is_it && call.code == Some(403) && call.fault.is_none() && is_forbidden(call)
                });
            let is_tried = its().any(|one| (back..=due).contains(&one.begun));
            if !was_refused || is_tried || is_gone(case, key, back, due) {
                continue;
            }
            found.push(Violation {
                invariant: "I10",
                at: due,
                object: (*key).to_owned(),
                what: format!(
                    "was refused for want of rights, and is not tried by {} since they are back at {back:?}",
                    hold.who
                ),
            });
        }
    }
}

/// Returns whether the call was rejected for a missing permission and not by a policy.
fn is_forbidden(call: &Call) -> bool {
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    text(&answer["message"]).contains(" cannot ")
}
