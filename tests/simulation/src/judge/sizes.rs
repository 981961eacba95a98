//! The queue and the caches of a replica contain only objects that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use operator_simulation::{
    judge::{Case, STEP, Violation, made},
    plan::Fault,
    trace::{Sizes, Time},
};
use operator_testkit::api_server::{Key, Kind};

use super::super::FOO;

/// Longest time for a watch to deliver a change.
const MOMENT: Duration = Duration::from_secs(1);

/// The queue and the caches never hold more objects than have existed. While the system is idle, the queue is empty and a cache
/// holds the existing objects, unless a fault continues.
pub fn bounded(case: &Case, found: &mut Vec<Violation>) {
    let mut names = BTreeMap::<Kind, BTreeSet<&Key>>::new();
    for revision in case.store.history() {
        names
            .entry(revision.key.kind)
            .or_default()
            .insert(&revision.key);
    }
    let mut faults = case.trace.faults.iter();
    let goes_on = faults.any(|(time, fault)| {
        let is_nobodys = matches!(fault, Fault::NoPods { .. } | Fault::NoCollector);
        time.end > case.plan.rest && !is_nobodys
    });
    let ever = |kind| names.get(&kind).map_or(0, BTreeSet::len);
    let counts = [FOO, Kind::Deployment].map(|kind| counts(case, kind));
    let was = |counts: &[(Time, usize)], at: Time, has: Option<usize>| {
        let from = counts.partition_point(|(since, _)| *since + MOMENT <= at);
        let until = counts.partition_point(|(since, _)| *since <= at);
        let mut its = counts[from.saturating_sub(1)..until].iter();
        its.any(|(_, count)| Some(*count) == has)
    };
    let now = |kind| case.store.list(kind, None).count();
    for (at, who, sizes) in &case.trace.sizes {
        let Sizes { queue, caches } = sizes;
        let queue = *queue;
        let [foos, deployments] = ["Foo", "Deployment"].map(|kind| caches.get(kind).copied());
        let is_at_rest = *at >= case.plan.rest && !goes_on;
        // A key is in the queue right before its reconcile.
        let is_turn = || {
            let mut reconciles = case.trace.reconciles.iter();
            reconciles.any(|one| {
                one.who == *who && (at.saturating_sub(STEP)..=*at + STEP).contains(&one.begun)
            })
        };
        let what = if is_at_rest
            && (queue != Some(0) && !is_turn()
                || !was(&counts[0], *at, foos)
                || !was(&counts[1], *at, deployments))
        {
            "at rest"
        } else if queue.max(foos) > Some(ever(FOO)) || deployments > Some(ever(Kind::Deployment)) {
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
                now(FOO),
                now(Kind::Deployment)
            ),
        });
    }
}

/// Returns the number of objects of a kind, with the time of each change.
fn counts(case: &Case, kind: Kind) -> Vec<(Time, usize)> {
    let (mut count, mut counts) = (0, vec![(Time::ZERO, 0)]);
    for revision in case.store.history() {
        if revision.key.kind != kind {
            continue;
        }
        count += usize::from(revision.after.is_some());
        count -= usize::from(revision.before.is_some());
        counts.push((made(revision), count));
    }
    counts
}
