//! I15: what a replica has does not grow: no more than there is.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        api::{Key, Kind},
        trace::Sizes,
    },
    Case, Violation,
};

/// A queue or a cache has no more than there has been; and at rest the queue is empty, and a cache has what there is, unless
/// something goes on to be wrong.
pub fn bounded(case: &Case, found: &mut Vec<Violation>) {
    let mut names = BTreeMap::<Kind, BTreeSet<&Key>>::new();
    for revision in case.store.history() {
        names
            .entry(revision.key.kind)
            .or_default()
            .insert(&revision.key);
    }
    let mut faults = case.trace.faults.iter();
    let goes_on = faults.any(|(time, _)| time.end > case.plan.rest);
    let ever = |kind| names.get(&kind).map_or(0, BTreeSet::len);
    let now = |kind| case.store.list(kind, None).count();
    for (at, who, sizes) in &case.trace.sizes {
        let Sizes {
            queue,
            foos,
            deployments,
        } = *sizes;
        let is_at_rest = *at >= case.plan.rest && !goes_on;
        let what = if is_at_rest
            && [queue, foos, deployments] != [0, now(Kind::Foo), now(Kind::Deployment)].map(Some)
        {
            "at rest"
        } else if queue.max(foos) > Some(ever(Kind::Foo))
            || deployments > Some(ever(Kind::Deployment))
        {
            "more than there ever was"
        } else {
            continue;
        };
        found.push(Violation {
            invariant: "I15",
            at: *at,
            object: who.to_string(),
            what: format!(
                "has {sizes:?} {what}, and there are {} Foos and {} Deployments",
                now(Kind::Foo),
                now(Kind::Deployment)
            ),
        });
    }
}
