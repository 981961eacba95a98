//! Judges of any operator: the rules of its subjects, and rules that hold for every operator on the runtime.

use std::sync::Arc;

use operator_testkit::api_server::{self, Kind, Revision};
use serde_json::Value;

use super::{
    super::{
        outside::{AnyChange, States},
        subject::{AnySubject, Operator, Verdict, View, users::HOLD, view::Objects},
        trace::{Life, Time},
    },
    Case, Violation, audit, events,
    fields::{condition, owner, text},
    hindered::{is_hindered, rejected_status},
    leader, made, named,
    pauses::{self, is_paused},
    rates, rest, sizes,
    works::{SOON, holds},
};

/// Judges a run of this operator.
pub fn judge(operator: &Operator, case: &Case<'_>, found: &mut Vec<Violation>) {
    rules(operator, case, found);
    act_only_while_leading(case, found);
    statuses(case, found);
    wake_their_owner(case, found);
    rest::at_rest(case, found);
    rest::share_watches(case, found);
    pauses::hold(case, found);
    let works = &case.plan.program.declared().works;
    audit::of_works(case, &audit::log(case), works, case.plan.rest, found);
    rates::bounded(case, found);
    sizes::bounded(case, found);
    events::said_once(case, found);
}

/// The key of an object in the runtime.
fn key_of(key: &api_server::Key) -> operator_runtime::Key {
    operator_runtime::Key::new(&key.namespace, &key.name)
}

fn is_of(subject: &dyn AnySubject, key: &api_server::Key) -> bool {
    matches!(key.kind, Kind::Custom(_)) && key.kind.info().plural == subject.plural()
}

/// State of the cluster and of the systems outside it, which follows the run.
#[derive(Default)]
struct Replay {
    objects: Objects,
    systems: States,
}

/// Checks the rules of the subjects: at each change, at each deletion, and at the end.
fn rules(operator: &Operator, case: &Case, found: &mut Vec<Violation>) {
    let changes = case.trace.systems.changes();
    let mut changes = changes.iter().peekable();
    let mut replay = Replay::default();
    for (index, revision) in case.store.history().iter().enumerate() {
        while let Some(change) = changes.next_if(|it| it.landed.revisions <= index) {
            replay.outside(operator, change, found);
        }
        replay.inside(operator, case, (index, revision), found);
    }
    for change in changes {
        replay.outside(operator, change, found);
    }
    let mut end = |invariant, key: &api_server::Key, verdict: Verdict| {
        found.extend(verdict.err().map(|what| Violation {
            invariant,
            at: case.plan.end,
            object: named(key),
            what,
        }));
    };
    let Replay { objects, systems } = &replay;
    for subject in &operator.subjects {
        for (key, object) in objects.iter().filter(|(key, _)| is_of(&**subject, key)) {
            let view = View::of(key_of(key), objects, systems).seen_from(object);
            let verdict = is_settled(case, &**subject, (key, object), &view, objects);
            end("I3", key, verdict);
        }
        let mut keys: Vec<_> = case.store.history().iter().map(|it| &it.key).collect();
        keys.sort();
        keys.dedup();
        let gone = keys
            .into_iter()
            .filter(|key| is_of(&**subject, key) && !objects.contains_key(key));
        for key in gone {
            let view = View::of(key_of(key), objects, systems);
            end("O3", key, subject.is_gone(view.key(), &view));
        }
    }
}

impl Replay {
    fn outside(&mut self, operator: &Operator, change: &AnyChange, found: &mut Vec<Violation>) {
        let mut before = self.systems.clone();
        before.insert(change.of, Arc::clone(&change.before));
        self.systems.insert(change.of, Arc::clone(&change.after));
        let nothing = || operator_runtime::Key::cluster("");
        for subject in &operator.subjects {
            let before = View::of(nothing(), &self.objects, &before);
            let now = View::of(nothing(), &self.objects, &self.systems);
            let verdict = subject.holds(&before, &now);
            found.extend(verdict.err().map(|what| Violation {
                invariant: "O1",
                at: change.landed.at,
                object: format!("a change by {}", change.by),
                what,
            }));
        }
    }

    fn inside(
        &mut self,
        operator: &Operator,
        case: &Case,
        (index, revision): (usize, &Revision),
        found: &mut Vec<Violation>,
    ) {
        let Revision {
            key, before, after, ..
        } = revision;
        match after {
            Some(after) => self.objects.insert(key.clone(), Arc::clone(after)),
            None => self.objects.remove(key),
        };
        let is_deleted_by_us = after.is_none() && case.writer(index).is_some();
        for subject in &operator.subjects {
            let view = || View::of(key_of(key), &self.objects, &self.systems);
            let (then, now) = (view().except(key, before.as_ref()), view());
            let mut verdict = subject.holds(&then, &now).map_err(|what| ("O1", what));
            if is_deleted_by_us && is_of(&**subject, key) {
                let gone = subject.is_gone(now.key(), &now);
                verdict = verdict.and(gone.map_err(|what| ("O3", what)));
            }
            found.extend(verdict.err().map(|(invariant, what)| Violation {
                invariant,
                at: made(revision),
                object: named(key),
                what,
            }));
        }
    }
}

fn is_settled(
    case: &Case,
    subject: &dyn AnySubject,
    (key, object): (&api_server::Key, &Value),
    view: &View<'_>,
    objects: &Objects,
) -> Verdict {
    let metadata = &object["metadata"];
    if metadata["deletionTimestamp"].is_string() {
        let finalizers = metadata["finalizers"].as_array();
        let is_held = finalizers.is_some_and(|all| all.iter().any(|it| it == HOLD));
        return is_held
            .then_some(())
            .ok_or_else(|| "it is still terminating".to_owned());
    }
    if is_paused(object) {
        return view.is_condition("Paused", "True", "Paused");
    }
    if is_in_the_way(case, object, objects) {
        return Ok(());
    }
    let paused = view.condition("Paused");
    let verdict = subject.is_settled(object, view).and_then(|()| {
        let is_current = paused == ("", "");
        is_current
            .then_some(())
            .ok_or_else(|| format!("the condition Paused is {paused:?}, without a pause"))
    });
    let generation = &metadata["generation"];
    let observed = &object["status"]["observedGeneration"];
    let verdict = verdict.and_then(|()| {
        (observed == generation)
            .then_some(())
            .ok_or_else(|| format!("the status is of generation {observed}, not {generation}"))
    });
    // A rejected status is written again after the next change or resync.
    verdict.or_else(|what| {
        rejected_status(case, key, object)
            .is_some()
            .then_some(())
            .ok_or(what)
    })
}

/// Returns whether the object reports that another owner has an object of a name that it needs, and that is true.
fn is_in_the_way(case: &Case, object: &Value, objects: &Objects) -> bool {
    if condition(object, "Ready") != ("False", "Foreign") {
        return false;
    }
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|it| it["type"] == "Ready");
    let message = ready.map_or("", |it| text(&it["message"]));
    let declared = case.plan.program.declared();
    objects.iter().any(|(key, other)| {
        let info = key.kind.info();
        let mut owned = declared.owned.iter();
        owned.any(|kind| (kind.group, kind.plural) == (info.group, info.plural))
            && message.contains(&format!("{} {:?}", info.kind, key.name))
            && owner(other) != text(&object["metadata"]["uid"])
    })
}

/// A replica changes a system outside the cluster, or begins to, only while it holds the Lease.
fn act_only_while_leading(case: &Case, found: &mut Vec<Violation>) {
    let changes = case.trace.systems.changes();
    let history = case.store.history();
    for change in &changes {
        let mut leases = history[..change.begun.revisions].iter().rev();
        let lease = leases.find(|it| it.key == case.lease);
        let holder = lease.and_then(|it| it.after.as_deref()).map(leader::holder);
        let life = case.life(change.by);
        if life.map(Life::identity).as_deref() != holder {
            found.push(Violation {
                invariant: "O2",
                at: change.begun.at,
                object: change.by.to_string(),
                what: format!("acts outside the cluster, and {holder:?} holds the Lease"),
            });
        }
    }
}

/// A status never names a generation that its object does not have yet, or an older one than before. The time of a condition
/// changes with its status only.
fn statuses(case: &Case, found: &mut Vec<Violation>) {
    for (index, revision) in case.store.history().iter().enumerate() {
        let Some(call) = case.writer(index) else {
            continue;
        };
        let (Some(before), Some(after)) = (&revision.before, &revision.after) else {
            continue;
        };
        if !call.resource.ends_with("/status") {
            continue;
        }
        let observed = |object: &Value| object["status"]["observedGeneration"].as_i64();
        let generation = after["metadata"]["generation"].as_i64();
        let what = if observed(after) > generation {
            format!("names generation {:?} of {generation:?}", observed(after))
        } else if observed(after) < observed(before) {
            format!("goes back to generation {:?}", observed(after))
        } else if let Some(of_type) = is_dated_otherwise(before, after) {
            format!("changes the time of the condition {of_type} only")
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
}

/// Returns the type of a condition whose time differs, and whose status does not.
fn is_dated_otherwise(before: &Value, after: &Value) -> Option<String> {
    let conditions = |object: &Value| object["status"]["conditions"].as_array().cloned();
    let before = conditions(before).unwrap_or_default();
    let after = conditions(after).unwrap_or_default();
    let is_other = |new: &&Value| before.iter().any(|old| is_moved(old, new));
    let other = after.iter().find(is_other);
    other.map(|it| text(&it["type"]).to_owned())
}

/// Returns whether these are the same condition with the same status, at another time.
pub fn is_moved(was: &Value, now: &Value) -> bool {
    let is_same = |field: &str| was[field] == now[field];
    // A change of the spec restarts the minute until the object stalls.
    let is_begun_again =
        now["type"] == "Stalled" && now["status"] == "False" && !is_same("observedGeneration");
    is_same("type") && is_same("status") && !is_same("lastTransitionTime") && !is_begun_again
}

/// An unobstructed process that holds the Lease begins to reconcile an object without delay when its spec changes, and when
/// another client changes or deletes an owned object.
fn wake_their_owner(case: &Case, found: &mut Vec<Violation>) {
    let holds = holds(case);
    let soon = case.longest(SOON);
    for (index, revision) in case.store.history().iter().enumerate() {
        let at = made(revision);
        let Some((primary, uid)) = wakes(case, revision, case.writer(index).is_some()) else {
            continue;
        };
        let mut holds = holds.iter();
        let hold = holds.find(|hold| (hold.from..hold.until).contains(&at));
        let Some(hold) = hold.filter(|hold| at + soon <= hold.until) else {
            continue;
        };
        let due = at + soon;
        let name = key_of(&primary).to_string();
        let mut its = case.reconciles.get(&*name).into_iter().flatten();
        let is_begun = its.any(|it| it.who == hold.who && (at..=due).contains(&it.begun));
        if is_begun
            || !exists(case, &primary, &uid, (at, due))
            || is_hindered(case, hold.who, at, due)
        {
            continue;
        }
        found.push(Violation {
            invariant: "I10",
            at: due,
            object: named(&primary),
            what: format!(
                "is not reconciled by {}, which holds the Lease, since {} changed at {at:?}",
                hold.who,
                named(&revision.key)
            ),
        });
    }
}

/// Returns the key and the UID of the object that has to be reconciled after this change.
fn wakes(case: &Case, revision: &Revision, by_us: bool) -> Option<(api_server::Key, String)> {
    let declared = case.plan.program.declared();
    let (key, info) = (&revision.key, revision.key.kind.info());
    let is_one =
        |kind: &operator_runtime::Kind| (kind.group, kind.plural) == (info.group, info.plural);
    let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
    if declared.primaries.iter().any(is_one) {
        let generation = |object: Option<&Value>| object?["metadata"]["generation"].as_i64();
        let after = after.filter(|_| generation(before) != generation(after))?;
        return Some((key.clone(), text(&after["metadata"]["uid"]).to_owned()));
    }
    let before = before.filter(|_| !by_us && declared.owned.iter().any(is_one))?;
    let content = |object: &Value| {
        let mut object = object.clone();
        let metadata = object["metadata"].take();
        object["status"] = Value::Null;
        (object, metadata["ownerReferences"].clone())
    };
    if after.is_some_and(|after| content(after) == content(before)) {
        return None;
    }
    let owners = before["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|it| it["controller"] == true)?;
    let mut kinds = case.store.custom_kinds().iter();
    let kind = *kinds.find(|kind| owner["kind"] == kind.info().kind)?;
    let namespace = if kind.is_namespaced() {
        &*key.namespace
    } else {
        ""
    };
    let primary = api_server::Key::new(kind, namespace, text(&owner["name"]));
    Some((primary, text(&owner["uid"]).to_owned()))
}

/// Returns whether the object of this UID exists throughout this time, neither paused nor terminating.
fn exists(case: &Case, key: &api_server::Key, uid: &str, (from, until): (Time, Time)) -> bool {
    let is_it = |object: &Value| {
        let metadata = &object["metadata"];
        metadata["uid"] == uid && metadata["deletionTimestamp"].is_null() && !is_paused(object)
    };
    let history = case.store.history().iter().filter(|it| it.key == *key);
    let (before, within): (Vec<_>, Vec<_>) = history
        .filter(|it| made(it) <= until)
        .partition(|it| made(it) <= from);
    let states = before.last().into_iter().chain(within.iter());
    let mut states = states.map(|it| it.after.as_deref()).peekable();
    states.peek().is_some() && states.all(|state| state.is_some_and(is_it))
}
