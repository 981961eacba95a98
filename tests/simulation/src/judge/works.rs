//! The holder of the Lease does the work.

use std::collections::BTreeMap;

use foo_controller::api::Foo;
use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{condition, owner, text},
        made, named,
        works::{Hold, SOON, holds},
    },
    trace::{Life, Time, Who},
};
use operator_testkit::api_server::{Key, Kind, Revision};
use serde_json::Value;

use super::{
    hindered::{is_gone, is_hindered_for},
    rollouts::is_queued,
};

/// An unobstructed process that holds the Lease begins to reconcile every change without delay. When it takes the Lease, it
/// reconciles the Foos whose status is outdated or whose Deployment is not as specified.
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
            || is_hindered_for(case, hold.who, foo, from, due)
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
            Kind::Custom(_) => foos.insert(&revision.key, revision),
            Kind::Deployment => deployments.insert(&revision.key, revision),
            _ => None,
        };
    }
}

/// Last revision of each object.
type Objects<'a> = BTreeMap<&'a Key, &'a Revision>;

/// Returns the change that made a Foo's Deployment differ from its spec. `None`: it does not differ, the status reports the
/// difference, or this process has reconciled the change and retries on its own.
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
    // The process knows its own writes from their responses.
    let of_others = |key: &Key| {
        let mut history = case.store.history().iter().enumerate().rev();
        let last = history.find(|(index, one)| {
            let is_own = || case.writer(*index).is_some_and(|call| call.who == hold.who);
            let needs_status_update = || one.before.is_none() || wakes(one, false).is_some();
            one.key == *key && made(one) <= hold.from && !is_own() && needs_status_update()
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

/// Returns whether a Deployment is as this process makes it for its Foo, or cannot be changed by this process.
fn is_right(case: &Case, who: Who, foo: &Value, deployment: &Value) -> bool {
    if owner(deployment) != text(&foo["metadata"]["uid"]) {
        let told = condition(foo, "Ready");
        return matches!(told, ("False", "ErrResourceExists" | "DeploymentDeleting"));
    }
    let (metadata, spec) = (&deployment["metadata"], &deployment["spec"]);
    let replicas = &foo["spec"]["replicas"];
    let image = &spec["template"]["spec"]["containers"][0]["image"];
    let is_image = |life: &Life| *image == life.settings.image;
    metadata["deletionTimestamp"].is_string()
        || metadata["labels"]["app"] == "nginx"
            && metadata["labels"]["controller"] == foo["metadata"]["name"]
            && (replicas.is_null() || *replicas == spec["replicas"])
            && (is_queued(foo) || case.life(who).is_none_or(is_image))
}

/// Returns the name of the Foo that has to be reconciled after this change.
fn wakes(revision: &Revision, by_us: bool) -> Option<&str> {
    let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
    let is_other = |path: &str| {
        let of = |object: Option<&Value>| object?["metadata"].pointer(path).cloned();
        of(before) != of(after)
    };
    let is_another = after.is_none() || is_other("/generation");
    // Metadata without effect on the generation: the owner, and the labels that select the Deployment.
    let is_drift = || {
        ["/ownerReferences", "/labels/app", "/labels/controller"]
            .into_iter()
            .any(is_other)
    };
    match revision.key.kind {
        Kind::Custom(_) if after.is_some() && is_another => Some(&revision.key.name),
        Kind::Deployment if before.is_some() && !by_us && (is_another || is_drift()) => {
            let mut owners = before?["metadata"]["ownerReferences"].as_array()?.iter();
            let foo = owners.find(|owner| owner["controller"] == true)?;
            Some(text(&foo["name"]))
        }
        _ => None,
    }
}

/// Returns whether the Foo has no status of its present generation.
fn is_unseen(revision: &Revision) -> bool {
    let Some(foo) = revision.after.as_deref() else {
        return false;
    };
    let metadata = &foo["metadata"];
    metadata["deletionTimestamp"].is_null()
        && foo["status"]["observedGeneration"] != metadata["generation"]
}
