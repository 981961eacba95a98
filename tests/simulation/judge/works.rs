//! Whoever holds the Lease works: I10.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use foo_controller::api::Foo;
use serde_json::Value;

use super::{
    super::{
        api::{Key, Kind, Revision},
        plan::{Calls, Fault, Settings, Way},
        trace::{Call, End, Life, Role, Time, Who},
    },
    Case, Violation,
    converge::{calls_of, condition, owner, retry_at, text},
    leader::{holder, lease},
    made, named,
    warnings::foo_of,
};

/// How soon what is to be looked at is with a worker: there are few objects, and each takes a few requests.
pub const SOON: Duration = Duration::from_secs(3);

/// A time in which a process held the Lease, and had renewed it in time.
pub struct Hold {
    pub who: Who,
    pub from: Time,
    pub until: Time,
}

/// I10: while a process holds the Lease, and nothing is in its way, it begins to reconcile whatever changes at once; and, as it
/// takes the Lease, what nobody has reported on, and what is not as it should be.
pub fn holder_works(case: &Case, found: &mut Vec<Violation>) {
    let holds = holds(case);
    let soon = case.longest(SOON);
    let mut check = |hold: &Hold, revision: &Revision, foo: &str, from: Time| {
        let due = from + soon;
        let key = format!("{}/{foo}", revision.key.namespace);
        let mut its = case.reconciles.get(&*key).into_iter().flatten();
        let is_begun = its.any(|one| one.who == hold.who && (from..=due).contains(&one.begun));
        if due > hold.until
            || is_begun
            || is_gone(case, &key, from, due)
            || is_hindered(case, hold.who, Some(foo), from, due)
        {
            return;
        }
        found.push(Violation {
            invariant: "I10",
            at: due,
            object: key,
            what: format!(
                "not looked at by {}, which holds the Lease, since {} at {from:?}",
                hold.who,
                named(&revision.key)
            ),
        });
    };
    let (mut foos, mut deployments) = (Objects::new(), Objects::new());
    let mut begins = holds.iter().peekable();
    let mut current = None;
    for (index, revision) in case.store.history().iter().enumerate() {
        while let Some(hold) = begins.next_if(|hold| hold.from <= made(revision)) {
            for (key, revision) in foos.iter().filter(|(_, foo)| is_unseen(foo)) {
                check(hold, revision, &key.name, hold.from);
            }
            for (key, foo) in &foos {
                if let Some(revision) = is_to_be_mended(case, hold, foo, &deployments) {
                    check(hold, revision, &key.name, hold.from);
                }
            }
            current = Some(hold);
        }
        if let Some(hold) = current.filter(|hold| hold.until > made(revision))
            && let Some(foo) = wakes(revision, case.writer(index).is_some())
        {
            check(hold, revision, foo, made(revision));
        }
        match revision.key.kind {
            Kind::Foo => foos.insert(&revision.key, revision),
            Kind::Deployment => deployments.insert(&revision.key, revision),
            _ => None,
        };
    }
}

/// I10 (row P2): who is asked to stop while it holds the Lease, and nothing is in its way, gives it back; and a standby that has
/// seen who held it, and in whose way there is nothing either, takes it then, rather than wait for it to expire.
pub fn hands_over(case: &Case, found: &mut Vec<Violation>) {
    let mut wrong = |at: Time, what: String| {
        found.push(Violation {
            invariant: "I10",
            at,
            object: named(&lease()),
            what,
        });
    };
    let leases = || {
        let history = case.store.history().iter().enumerate();
        history.filter(|(_, one)| one.key == lease())
    };
    let held = |at: Time| {
        let last = leases().take_while(|(_, one)| made(one) <= at).last();
        last.and_then(|(_, one)| one.after.as_deref())
            .map(holder)
            .unwrap_or_default()
    };
    let holds = holds(case);
    for life in &case.trace.lives {
        let (Some(asked), Some((ended, End::Returned))) = (life.asked, &life.ended) else {
            continue;
        };
        // A container that is started again has the name of the one before, not its term.
        if !holds.iter().any(|hold| hold.who == life.who) {
            continue;
        }
        let identity = life.identity();
        // What may be on its way keeps it (H19): it says so, and something may be.
        let mut logs = case.trace.logs.iter().filter(|log| log.who == life.who);
        let says_so = logs.any(|log| log.text.contains("not releasing the lease"));
        let has_why = says_so && is_on_its_way(case, life, *ended);
        let keeps = !has_why && held(asked) == identity && held(*ended) == identity;
        if keeps && !is_hindered(case, life.who, None, asked, *ended) {
            wrong(
                *ended,
                format!("{} has ended, and still holds it", life.who),
            );
        }
    }
    for (index, one) in leases() {
        let at = made(one);
        let Some(life) = case.writer(index).and_then(|call| case.life(call.who)) else {
            continue;
        };
        let was = one.before.as_deref().map(holder);
        if !held(at).is_empty() || was != Some(&*life.identity()) {
            continue;
        }
        // By a clock that is an hour behind the renewals (H11): to others, nobody's release (H21).
        let renewed = |lease: Option<&Value>| lease.map(|it| it["spec"]["renewTime"].to_string());
        if renewed(one.after.as_deref()) < renewed(one.before.as_deref()) {
            continue;
        }
        let due = at + case.longest_of(|settings| settings.retry_period * 2) + SOON;
        let mut others = case.trace.lives.iter().filter(|other| {
            let ends = [other.asked, other.ended.as_ref().map(|(at, _)| *at)];
            let mut logs = case.trace.logs.iter();
            let said = format!("holder={} ", life.identity());
            other.who != life.who
                && ends.into_iter().flatten().all(|end| end > due)
                && logs.any(|log| {
                    let is_seen = log.text.contains("standing by") && log.text.contains(&said);
                    log.who == other.who && log.at < at && is_seen
                })
                && !is_hindered(case, other.who, None, at, due)
        });
        let is_taken = leases().any(|(_, next)| {
            let is_then = made(next) > at && made(next) <= due;
            is_then
                && next
                    .after
                    .as_deref()
                    .is_none_or(|next| !holder(next).is_empty())
        });
        if due < case.plan.end
            && !is_taken
            && let Some(other) = others.next()
        {
            wrong(
                due,
                format!(
                    "was given back at {at:?}, and {} has not taken it",
                    other.who
                ),
            );
        }
    }
}

/// Whether a write of the work, by this pod, may have been on its way when its process ended: one that was not answered long
/// before, or with what says nothing of it.
fn is_on_its_way(case: &Case, life: &Life, ended: Time) -> bool {
    /// As long as a write may take, and its connection is held on to.
    const LONGEST: Duration = Duration::from_secs(40);
    // Before the end, the Lease is looked at and given back, for which there is as long as for an answer to it.
    let releasing = case.longest((life.settings.renew_deadline / 2).max(Duration::from_secs(1)));
    let mut calls = case.trace.calls.iter();
    calls.any(|call| {
        let answered = call.answered.filter(|_| !call.is_spoilt());
        call.is_work()
            && case.pod(call) == life.pod.0
            && (ended.saturating_sub(case.longest(LONGEST))..ended).contains(&call.begun)
            && answered.is_none_or(|(at, code)| at + releasing > ended || code >= 500)
    })
}

/// Each object as it was last.
type Objects<'a> = BTreeMap<&'a Key, &'a Revision>;

/// What has made a Foo's Deployment other than the Foo asks, if it is, and its status does not say so, and this process has not
/// looked at that yet: what it looked at, it tries again when it has said so.
fn is_to_be_mended<'a>(
    case: &Case<'a>,
    hold: &Hold,
    foo: &'a Revision,
    deployments: &Objects<'a>,
) -> Option<&'a Revision> {
    let stored = foo.after.as_deref()?;
    let typed = serde_json::from_value::<Foo>(stored.clone()).ok()?;
    let is_asked_for = stored["metadata"]["deletionTimestamp"].is_null()
        && typed.spec.check(&foo.key.name).is_ok();
    let name = &typed.spec.deployment_name;
    let wanted = Key::new(Kind::Deployment, &foo.key.namespace, name);
    let last = deployments.get(&wanted).copied();
    let is_right = last
        .and_then(|last| last.after.as_deref())
        .is_some_and(|deployment| is_right(case, hold.who, stored, deployment));
    if !is_asked_for || is_right {
        return None;
    }
    // Its own writes it has seen, by their answers.
    let of_others = |key: &Key| {
        let mut history = case.store.history().iter().enumerate().rev();
        let last = history.find(|(index, one)| {
            let is_own = || case.writer(*index).is_some_and(|call| call.who == hold.who);
            let is_news = || one.before.is_none() || wakes(one, false).is_some();
            one.key == *key && made(one) <= hold.from && !is_own() && is_news()
        });
        last.map(|(_, one)| &**one)
    };
    let others = [&foo.key, &wanted].into_iter().filter_map(of_others);
    let last = others.max_by_key(|last| made(last)).unwrap_or(foo);
    let key = format!("{}/{}", foo.key.namespace, foo.key.name);
    let mut its = case.reconciles.get(&*key).into_iter().flatten();
    let has_looked =
        its.any(|one| one.who == hold.who && (made(last)..hold.from).contains(&one.begun));
    (!has_looked).then_some(last)
}

/// Whether a Deployment is as this process has it, for its Foo, or it can do nothing about it.
fn is_right(case: &Case, who: Who, foo: &Value, deployment: &Value) -> bool {
    if owner(deployment) != text(&foo["metadata"]["uid"]) {
        return condition(foo, "Ready") == ("False", "ErrResourceExists");
    }
    let (metadata, spec) = (&deployment["metadata"], &deployment["spec"]);
    let replicas = &foo["spec"]["replicas"];
    let image = &spec["template"]["spec"]["containers"][0]["image"];
    let is_image = |life: &super::Life| *image == life.settings.image;
    metadata["deletionTimestamp"].is_string()
        || metadata["labels"]["app"] == "nginx"
            && metadata["labels"]["controller"] == foo["metadata"]["name"]
            && (replicas.is_null() || *replicas == spec["replicas"])
            && case.life(who).is_none_or(is_image)
}

/// The Foo, by its name, that has to be looked at after this.
fn wakes(revision: &Revision, by_us: bool) -> Option<&str> {
    let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
    let is_other = |path: &str| {
        let of = |object: Option<&Value>| object?["metadata"].pointer(path).cloned();
        of(before) != of(after)
    };
    let is_another = after.is_none() || is_other("/generation");
    // Which are of no generation: to whom it belongs, and by what labels it is found.
    let is_drift = || {
        ["/ownerReferences", "/labels/app", "/labels/controller"]
            .into_iter()
            .any(is_other)
    };
    match revision.key.kind {
        Kind::Foo if after.is_some() && is_another => Some(&revision.key.name),
        Kind::Deployment if before.is_some() && !by_us && (is_another || is_drift()) => {
            let mut owners = before?["metadata"]["ownerReferences"].as_array()?.iter();
            let foo = owners.find(|owner| owner["controller"] == true)?;
            Some(text(&foo["name"]))
        }
        _ => None,
    }
}

/// Whether no status is about this Foo as it is.
fn is_unseen(revision: &Revision) -> bool {
    let Some(foo) = revision.after.as_deref() else {
        return false;
    };
    let metadata = &foo["metadata"];
    metadata["deletionTimestamp"].is_null()
        && foo["status"]["observedGeneration"] != metadata["generation"]
}

/// In the order of time.
pub fn holds(case: &Case) -> Vec<Hold> {
    let mut holds = Vec::<Hold>::new();
    // Until when the last one's process has its term: an edit of somebody else does not end it.
    let mut term_ends = Time::ZERO;
    for (index, revision) in case.store.history().iter().enumerate() {
        if revision.key != lease() {
            continue;
        }
        let at = made(revision);
        let writer = case.writer(index).and_then(|call| case.life(call.who));
        let holder = revision.after.as_deref().map(holder);
        let renews = writer.filter(|life| holder == Some(&*life.identity()));
        let until = |life: &super::Life| {
            let until = at + case.shortest(life.settings.renew_deadline);
            let ends = life.asked.into_iter();
            ends.chain(life.ended.as_ref().map(|(ended, _)| *ended))
                .fold(until, Time::min)
        };
        match (holds.last_mut(), renews) {
            (Some(last), Some(life)) if last.who == life.who && term_ends >= at => {
                last.until = until(life);
                term_ends = last.until;
            }
            (Some(last), None) if case.writer(index).is_none() => {
                let before = revision.before.as_deref().map(self::holder);
                if holder != before {
                    last.until = last.until.min(at);
                }
            }
            (last, renews) => {
                if let Some(last) = last {
                    last.until = last.until.min(at);
                }
                term_ends = renews.map_or(at, until);
                holds.extend(renews.map(|life| Hold {
                    who: life.who,
                    from: at,
                    until: until(life),
                }));
            }
        }
    }
    holds
}

/// Whether it was written for the sake of another Foo than this one.
fn is_write_for_another(case: &Case, call: &Call, foo: &str) -> bool {
    match (call.verb, &*call.resource) {
        ("update", "foos/status") => text(&call.body["metadata"]["name"]) != foo,
        ("create" | "patch" | "delete", "deployments") => {
            foo_of(case, call).is_some_and(|its| its != foo)
        }
        _ => false,
    }
}

/// I10: who holds the Lease, and of whose work nothing gets through, gives it up to somebody who can work.
pub fn lets_go(case: &Case, found: &mut Vec<Violation>) {
    /// What the kernel takes to give up a connection on which nothing comes.
    const BROKEN: Duration = Duration::from_secs(42);
    let holds = holds(case);
    for (time, fault) in &case.trace.faults {
        let cut_off = |replica| Fault::Partition {
            of: Calls {
                replica: Some(replica),
                role: Some(Role::Work),
                ..Calls::default()
            },
            way: Way::Both,
        };
        for hold in &holds {
            let from = time.start.max(hold.from);
            let Some(life) = case.life(hold.who) else {
                continue;
            };
            // What it takes the work to be given up for, and what is left of a term then.
            let Settings {
                lease_duration,
                renew_deadline,
                ..
            } = life.settings;
            let takes = BROKEN + lease_duration + renew_deadline + SOON;
            let due = life.has_had(from, case.takes(hold.who, takes));
            if *fault != cut_off(hold.who.replica) || due >= hold.until.min(time.end) {
                continue;
            }
            let mut others = case.trace.lives.iter().filter(|other| {
                let ends = [other.asked, other.ended.as_ref().map(|(at, _)| *at)];
                other.who.replica != hold.who.replica
                    && other.begun <= from
                    && ends.into_iter().flatten().all(|end| end > due)
                    && !is_hindered(case, other.who, None, from, due)
            });
            found.extend(others.next().map(|other| Violation {
                invariant: "I10",
                at: due,
                object: named(&lease()),
                what: format!(
                    "is held by {}, which can do nothing since {from:?}, and {} could",
                    hold.who, other.who
                ),
            }));
        }
    }
}

/// I10 (row Q3): what an API server that failed has answered is tried again when its delay is over, and not later.
pub fn tries_again(case: &Case, found: &mut Vec<Violation>) {
    const QUICK: Duration = Duration::from_secs(1);
    /// So many writes for one Foo, and the next may have to wait for another reason than that one failed.
    const OFTEN: usize = 6;
    let holds = holds(case);
    for (key, its) in &case.reconciles {
        let name = key.rsplit('/').next().unwrap_or_default();
        for (number, one) in its.iter().enumerate() {
            let (Some(ended), Some(due)) = (one.ended, retry_at(case, one)) else {
                continue;
            };
            let due = due + case.takes(one.who, SOON);
            let is_write = |call: &&Call| {
                call.who == one.who && call.is_work() && !is_write_for_another(case, call, name)
            };
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
            let writes = case.trace.calls.iter().filter(|call| call.begun <= ended);
            let is_often = writes.filter(is_write).count() > OFTEN;
            let is_slow = case.trace.calls.iter().any(|call| {
                let over = call.answered.map_or(Time::MAX, |(at, _)| at);
                let is_of_work = call.who == one.who && call.role == Role::Work;
                is_of_work
                    && call.begun < due
                    && over > ended
                    && over > call.begun + QUICK
                    && !matches!(call.verb, "watch" | "stream")
                    || is_of_work && call.begun <= due && call.retry_after.is_some()
            });
            let is_in_the_way = case.trace.faults.iter().any(|(time, fault)| {
                let is_shown = matches!(fault, Fault::Call { .. } | Fault::Policy(_));
                let is_then =
                    time.start < due && felt_until(time, fault).saturating_add(after) > one.begun;
                is_then && !is_shown && !fault.is_of_the_clock() && fault.is_about(one.who.replica)
            });
            if is_often || is_slow || is_in_the_way || case.asleep(one.who).next().is_some() {
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

/// I10 (row R10): what was refused for want of rights is tried when they are back, and not only when its delay is over.
pub fn rights_are_used_again(case: &Case, found: &mut Vec<Violation>) {
    /// The longest pause between two looks at the rights, and the looks.
    const LOOKS: Duration = Duration::from_secs(11);
    let holds = holds(case);
    for (time, fault) in &case.trace.faults {
        let Fault::Revoke { verb, resource } = fault else {
            continue;
        };
        // Those that are looked at.
        let asked = [
            ("create", "deployments"),
            ("patch", "deployments"),
            ("update", "foos/status"),
        ];
        let back = time.end;
        let due = back.saturating_add(case.longest(LOOKS + SOON));
        let mut holds = holds.iter();
        let hold = holds.find(|hold| hold.from <= back && due <= hold.until);
        let Some(hold) = hold.filter(|_| asked.contains(&(*verb, *resource))) else {
            continue;
        };
        // What is in the way of the last moment; the rights themselves were until then.
        let after = back + case.longest(AFTER) + Duration::from_millis(1);
        if is_hindered(case, hold.who, None, after, due) {
            continue;
        }
        for (key, its) in &case.reconciles {
            let its = || its.iter().filter(|one| one.who == hold.who);
            let Some(last) = its().rfind(|one| one.begun < back) else {
                continue;
            };
            let was_refused = last.failed
                && calls_of(case, last).any(|call| {
                    let is_it = call.verb == *verb && call.resource == *resource;
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

/// Whether it was refused for want of rights, and not by a policy.
fn is_forbidden(call: &Call) -> bool {
    let answer = call.answer.as_deref().unwrap_or(&Value::Null);
    text(&answer["message"]).contains(" cannot ")
}

/// Whether the Foo of this key is not there at this time, or goes before it is to be looked at.
fn is_gone(case: &Case, key: &str, from: Time, due: Time) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    let history = case.store.history().iter();
    let its = history
        .filter(|one| one.key.kind == Kind::Foo && *one.key.name == *name && made(one) <= due);
    let last = its.clone().rfind(|one| made(one) <= from);
    let is_there = last.is_some_and(|last| last.after.is_some());
    let mut its = its;
    !is_there || its.any(|one| one.after.is_none() && made(one) > from)
}

/// Until when it may be felt: what is slow is still on its way when that is over.
pub fn felt_until(time: &Range<Time>, fault: &Fault) -> Time {
    match fault {
        Fault::Slow { by, .. } => time.end.saturating_add(*by),
        _ => time.end,
    }
}

/// What follows a fault: the longest pause of a watch, and its list.
pub const AFTER: Duration = Duration::from_secs(10);

/// Whether something was in the way of this process, or may still have been; of its work on this Foo, if one is named: what was
/// done to the writes for others is not in the way of that, unless they took long, and a worker with them.
pub fn is_hindered(case: &Case, who: Who, foo: Option<&str>, from: Time, until: Time) -> bool {
    /// For so long, an answer is waited for; and so long the API server may ask for.
    const ANSWER: Duration = Duration::from_secs(62);
    const ASKED: Duration = Duration::from_secs(31);
    const QUICK: Duration = Duration::from_secs(1);
    let is_in = |time: Range<Time>| {
        time.start < until && time.end.saturating_add(case.longest(AFTER)) > from
    };
    let is_fault = case.trace.faults.iter().any(|(time, fault)| {
        let is_now = is_in(time.start..felt_until(time, fault));
        // What is done to single calls, they show; and what is refused was looked at. Nobody works by the time of day.
        let is_shown = matches!(fault, Fault::Call { .. } | Fault::Policy(_));
        is_now && !is_shown && !fault.is_of_the_clock() && fault.is_about(who.replica)
    });
    let since = |time| from.saturating_sub(case.longest(time));
    let is_slow = |call: &Call| {
        // Who gives up what nothing is in the way of is not waiting for it.
        let is_felt = || {
            let mut faults = case.trace.faults.iter();
            call.fault.is_some()
                || faults.any(|(time, fault)| {
                    let is_then = time.start <= call.begun + case.longest(ANSWER)
                        && felt_until(time, fault) >= call.begun;
                    is_then && fault.is_about(who.replica)
                })
        };
        let over = match call.answered {
            Some((at, _)) => at,
            None if is_felt() => call.begun + case.longest(ANSWER),
            None => call.begun,
        };
        let is_other = || foo.is_some_and(|foo| is_write_for_another(case, call, foo));
        let was_spoilt = call.begun >= since(ASKED) && call.retry_after.is_some()
            || call.begun >= since(AFTER) && call.fault.is_some();
        over > call.begun + QUICK && over >= since(AFTER) || was_spoilt && !is_other()
    };
    let calls = || {
        // Events are nobody's work: they are written beside it.
        let calls = case.trace.calls.iter();
        calls.filter(|call| call.who == who && call.begun < until && call.resource != "events")
    };
    let is_broken = |resource: &str| {
        let mut its = calls().filter(|call| {
            let is_watch = matches!(call.verb, "stream" | "watch");
            call.role == Role::Work && call.resource == resource && is_watch
        });
        its.next_back().is_some_and(|call| call.fault.is_some())
    };
    let is_asleep = case.asleep(who).any(is_in);
    is_fault
        || is_asleep
        || ["foos", "deployments"].into_iter().any(is_broken)
        || calls().any(is_slow)
}
