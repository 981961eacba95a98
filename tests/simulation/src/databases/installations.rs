//! Objects that move between two installations by their label.
//!
//! An installation writes an object by its caches, which are late and never early. A write is a violation only if no state that
//! the cache of the process may have had at the time permits it, as in [`grants`](super::grants):
//!
//! - A write of a dependent requires a possible state of its owner with the label of the installation.
//! - A status has the version of its object as a precondition: no delay excuses it.

use operator_simulation::{
    judge::{Case, Violation, fields::text, made, named, pauses::is_paused},
    trace::Call,
};
use operator_testkit::api_server::{Key, Revision};
use serde_json::Value;

use super::grants::states;

/// Returns the object that controls this one, with its UID.
fn owner(case: &Case, dependent: &Key, object: &Value) -> Option<(Key, String)> {
    let mut owners = object["metadata"]["ownerReferences"].as_array()?.iter();
    let owner = owners.find(|it| it["controller"] == true)?;
    let mut kinds = case.store.custom_kinds().iter();
    let kind = *kinds.find(|kind| owner["kind"] == kind.info().kind)?;
    let namespace = if kind.is_namespaced() {
        &*dependent.namespace
    } else {
        ""
    };
    let key = Key::new(kind, namespace, text(&owner["name"]));
    Some((key, text(&owner["uid"]).to_owned()))
}

/// Each object, its status and its dependents are written by the installation that its label names.
pub fn write_their_own(case: &Case, found: &mut Vec<Violation>) {
    for (index, revision) in case.store.history().iter().enumerate() {
        let Some(call) = case.writer(index).filter(|call| call.is_work()) else {
            continue;
        };
        let other = if call.resource.ends_with("/status") {
            of_status(case, call, revision)
        } else {
            of_dependent(case, call, revision)
        };
        found.extend(other.map(|labels| Violation {
            invariant: "I21",
            at: made(revision),
            object: named(&revision.key),
            what: format!(
                "a {} of {} of the installation {:?}, while the label was {labels:?}",
                call.verb,
                call.who,
                case.plan.program.installation(call.who.replica),
            ),
        }));
    }
}

/// Returns the label of the object, if it names another installation than that of the writer.
fn of_status<'a>(case: &Case, call: &Call, revision: &'a Revision) -> Option<Vec<&'a str>> {
    let own = case.plan.program.installation(call.who.replica);
    let label = case.installation_of(revision.after.as_deref()?);
    (label != own).then(|| vec![label])
}

/// Returns the labels that the owner of the object may have had in the cache of the writer, if none of them names its
/// installation.
fn of_dependent<'a>(case: &'a Case, call: &Call, revision: &Revision) -> Option<Vec<&'a str>> {
    let own = case.plan.program.installation(call.who.replica);
    let object = revision.before.as_deref().or(revision.after.as_deref())?;
    let (owner, uid) = owner(case, &revision.key, object)?;
    let since = case.told(call.who, owner.kind.info().plural, call.begun);
    let states = states(case, &owner, since, call.begun).into_iter();
    let labels: Vec<_> = states
        .filter(|it| text(&it["metadata"]["uid"]) == uid)
        .map(|it| case.installation_of(it))
        .collect();
    (!labels.is_empty() && !labels.contains(&own)).then_some(labels)
}

/// At the end, the owned objects have the label of their owner, unless the owner is paused.
pub fn are_followed(case: &Case, found: &mut Vec<Violation>) {
    let kinds = case.store.custom_kinds().iter();
    for (key, object) in kinds.flat_map(|kind| case.store.list(*kind, None)) {
        let Some((owner, uid)) = owner(case, key, object) else {
            continue;
        };
        let Some(stored) = case.store.get(&owner) else {
            continue;
        };
        let is_it = text(&stored["metadata"]["uid"]) == uid && !is_paused(stored);
        let [label, of_owner] = [object, stored].map(|it| case.installation_of(it));
        if is_it && label != of_owner {
            found.push(Violation {
                invariant: "I21",
                at: case.plan.end,
                object: named(key),
                what: format!("has the label {label:?}, and its owner {of_owner:?}"),
            });
        }
    }
}
