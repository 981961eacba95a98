//! The queue and the caches of a replica contain only objects that exist.

use std::collections::{BTreeMap, BTreeSet};

use operator_testkit::api_server::Key;

use super::{Case, STEP, Violation};

/// The queue and the caches never hold more objects than have existed. While the system is idle, the queue is empty. A cache may hold
/// fewer objects than exist, so that only the largest size is known.
pub fn bounded(case: &Case, found: &mut Vec<Violation>) {
    let declared = case.plan.program.declared();
    let mut names = BTreeMap::<&str, BTreeSet<&Key>>::new();
    for revision in case.store.history() {
        let kind = revision.key.kind.info().kind;
        names.entry(kind).or_default().insert(&revision.key);
    }
    let ever = |kind: &str| names.get(kind).map_or(0, BTreeSet::len);
    let most: usize = declared.primaries.iter().map(|it| ever(it.kind)).sum();
    for (at, who, sizes) in &case.trace.sizes {
        let mut reconciles = case.trace.reconciles.iter();
        let is_turn = reconciles.any(|one| {
            one.who == *who && (at.saturating_sub(STEP)..=*at + STEP).contains(&one.begun)
        });
        let waits = *at >= case.plan.rest && sizes.queue != Some(0) && !is_turn;
        let mut caches = sizes.caches.iter();
        let is_larger = sizes.queue > Some(most) || caches.any(|(kind, has)| *has > ever(kind));
        if waits || is_larger {
            found.push(Violation {
                invariant: "I15",
                at: *at,
                object: who.to_string(),
                what: format!("has {sizes:?}, and there were at most {most} reconciled objects"),
            });
        }
    }
}
