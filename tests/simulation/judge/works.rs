//! Whoever holds the Lease works: I10.

use std::{collections::BTreeMap, time::Duration};

use foo_controller::api::Foo;
use serde_json::Value;

use super::{
    super::{
        api::{Key, Kind, Revision},
        plan::{Calls, Fault, Settings, Way},
        trace::{End, Life, Role, Time, Who},
    },
    Case, Violation,
    converge::{condition, owner, text},
    hindered::{is_gone, is_hindered},
    leader::{holder, lease},
    made, named,
    rollouts::is_queued,
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
        let identity = life.identity();
        let mut others = standbys(case, &identity, at, due);
        // Or somebody has edited it, of whom nobody knows who held it.
        let is_taken = leases().any(|(index, next)| {
            let is_then = made(next) > at && made(next) <= due;
            let names = next.after.as_deref().map(holder);
            is_then && (names != Some("") || case.writer(index).is_none())
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

/// I10: where a holder that nobody stopped is silent, a standby that has seen who holds the Lease, and in whose way there is nothing,
/// takes it as soon as it has been so for the Lease's duration.
pub fn takes_over(case: &Case, found: &mut Vec<Violation>) {
    let leases = case.store.history().iter().enumerate();
    let leases: Vec<_> = leases.filter(|(_, one)| one.key == lease()).collect();
    let mut longest = case.longest_of(|settings| settings.lease_duration);
    for (number, (index, one)) in leases.iter().enumerate() {
        let Some(lease) = one.after.as_deref() else {
            continue;
        };
        let duration = lease["spec"]["leaseDurationSeconds"].as_u64();
        // Who knows of a longer one may go by that (H15).
        longest = longest.max(case.longest(Duration::from_secs(duration.unwrap_or_default())));
        if holder(lease).is_empty() || case.writer(*index).is_none() {
            continue;
        }
        let at = made(one);
        let retries = case.longest_of(|settings| settings.retry_period * 2);
        let due = at + longest + retries + SOON;
        let next = leases.get(number + 1).map(|(_, next)| made(next));
        if next.unwrap_or(case.plan.end) <= due {
            continue;
        }
        found.extend(
            standbys(case, holder(lease), at, due)
                .next()
                .map(|other| Violation {
                    invariant: "I10",
                    at: due,
                    object: named(&one.key),
                    what: format!("is silent since {at:?}, and {} has not taken it", other.who),
                }),
        );
    }
}

/// Who knew by then that this one holds the Lease, stood by until it is due to take it, and had nothing in its way.
fn standbys<'a>(
    case: &'a Case<'a>,
    holder: &str,
    at: Time,
    due: Time,
) -> impl Iterator<Item = &'a Life> {
    let (holder, said) = (holder.to_owned(), format!("holder={holder} "));
    case.trace.lives.iter().filter(move |life| {
        let ends = [life.asked, life.ended.as_ref().map(|(at, _)| *at)];
        let mut logs = case.trace.logs.iter();
        life.identity() != holder
            && ends.into_iter().flatten().all(|end| end > due)
            && logs.any(|log| {
                let is_seen = log.text.contains("standing by") && log.text.contains(&said);
                log.who == life.who && log.at < at && is_seen
            })
            && !is_hindered(case, life.who, None, at, due)
    })
}

/// Whether a write of the work, by this pod, may have been on its way when its process ended: one that was not answered long
/// before, or with what says nothing of it, or, for all that the process knows, one of the container before.
fn is_on_its_way(case: &Case, life: &Life, ended: Time) -> bool {
    /// As long as a write may take, and its connection is held on to.
    const LONGEST: Duration = Duration::from_secs(40);
    // Before the end, the Lease is looked at and given back, for which there is as long as for an answer to it.
    let releasing = case.longest((life.settings.renew_deadline / 2).max(Duration::from_secs(1)));
    let mut lives = case.trace.lives.iter();
    let is_restarted = lives.any(|other| other.pod == life.pod && other.begun < life.begun)
        && ended < life.begun + case.longest(LONGEST);
    let mut calls = case.trace.calls.iter();
    is_restarted
        || calls.any(|call| {
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
            && (is_queued(foo) || case.life(who).is_none_or(is_image))
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
