//! The garbage collector honors the owner references of Deployments.

use std::collections::BTreeMap;

use operator_simulation::{
    actors::GARBAGE_COLLECTOR,
    judge::{
        Case, Violation,
        fields::{owner, text},
        made, named,
    },
};
use operator_testkit::api_server::Kind;
use serde_json::Value;

use super::super::FOO;

/// A Foo that is deleted with foreground propagation exists until its Deployments are deleted.
pub fn are_waited_for(case: &Case, found: &mut Vec<Violation>) {
    // UID of the owner of each Deployment that replicas wrote, by name.
    let mut ours = BTreeMap::<&str, &str>::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
        let name = &*revision.key.name;
        if revision.key.kind == Kind::Deployment {
            match after {
                Some(after) if ours.contains_key(name) || case.writer(index).is_some() => {
                    ours.insert(name, owner(after));
                }
                Some(_) => {}
                None => drop(ours.remove(name)),
            }
        }
        let is_over = is_in_the_foreground(before) && !is_in_the_foreground(after);
        if revision.key.kind != FOO || &*revision.by != GARBAGE_COLLECTOR || !is_over {
            continue;
        }
        let uid = before.map_or("", |foo| text(&foo["metadata"]["uid"]));
        let left = ours.iter().find(|(_, owner)| **owner == uid);
        found.extend(left.map(|(left, _)| Violation {
            invariant: "R2",
            at: made(revision),
            object: named(&revision.key),
            what: format!("does not wait for its Deployment {left} to be deleted"),
        }));
    }
}

fn is_in_the_foreground(object: Option<&Value>) -> bool {
    let finalizers = object.and_then(|object| object["metadata"]["finalizers"].as_array());
    let mut finalizers = finalizers.into_iter().flatten();
    finalizers.any(|finalizer| finalizer == "foregroundDeletion")
}
