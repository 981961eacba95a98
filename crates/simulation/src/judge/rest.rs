//! Requests that no operator needs: writes at rest, and a second list of a resource.

use std::{collections::BTreeMap, time::Duration};

use super::{Case, Violation};

/// While the system is idle, replicas write nothing. They may list a resource again whose watch ended after a compaction.
pub fn at_rest(case: &Case, found: &mut Vec<Violation>) {
    let calls = case.trace.calls.iter().filter(|call| {
        let is_write = call.is_work() || call.resource == "events";
        call.begun >= case.plan.rest && is_write
    });
    found.extend(calls.map(|call| Violation {
        invariant: "I6",
        at: call.begun,
        object: call.path.clone(),
        what: format!("a {} of {} at rest", call.verb, call.who),
    }));
}

/// Each replica lists a resource once and has one watch of it, however many controllers use it. A request that a fault spoilt is
/// sent again.
pub fn share_watches(case: &Case, found: &mut Vec<Violation>) {
    /// Before the first fault of a seed. The scripts have earlier ones.
    const CALM: Duration = Duration::from_secs(9);
    let mut lists = BTreeMap::<_, u32>::new();
    let early = case.trace.calls.iter().filter(|call| call.begun < CALM);
    for call in early {
        // Not a page, and not the live read of one object.
        let is_part = ["continue=", "metadata.name%3D"].map(|part| call.path.contains(part));
        let is_list = matches!(call.verb, "list" | "stream") && !is_part.contains(&true);
        if is_list && call.resource != "leases" && !call.is_spoilt() {
            *lists.entry((call.who, &*call.resource)).or_default() += 1;
        }
    }
    let twice = lists.into_iter().filter(|(_, count)| *count > 1);
    found.extend(twice.map(|((who, resource), count)| Violation {
        invariant: "I11",
        at: CALM,
        object: resource.to_owned(),
        what: format!("listed {count} times by {who}"),
    }));
}
