//! Fields of types that have changed since (`typed/reconcile_schema.go`).

use super::{
    set::{Set, Step},
    types::{Map, Ref},
};

/// Returns the fields, if a list or a map has become atomic: its manager owns it as a whole.
pub fn reconciled(fields: &Set, of: &Ref) -> Option<Set> {
    let of = of.get();
    let mut all = Set::default();
    let mut has_changed = false;
    for (step, node) in fields.iter() {
        let child = match (&of.map, of.scalar, &of.list) {
            (Some(map), _, _) => match step {
                Step::Field(name) => map.field(name),
                _ => map.others.as_ref(),
            },
            (None, None, Some(list)) => Some(&list.of),
            _ => None,
        };
        let is_whole = node.is_member && node.below.is_empty();
        let collapses = child.is_some_and(|child| {
            let of = child.get();
            match (&of.map, of.scalar, &of.list) {
                (Some(map), _, _) => !map.is_untyped() && map.is_atomic && !node.below.is_empty(),
                (None, None, Some(list)) => list.is_atomic() && !is_whole,
                _ => false,
            }
        });
        let is_untyped = |of: &Ref| of.get().map.as_ref().is_some_and(Map::is_untyped);
        let below = child.filter(|child| !collapses && !is_untyped(child));
        let below = below.and_then(|child| reconciled(&node.below, child));
        has_changed |= collapses || below.is_some();
        let below = match below {
            Some(below) => below,
            None if collapses => Set::default(),
            None => node.below.clone(),
        };
        all.add(step.clone(), node.is_member || collapses, below);
    }
    has_changed.then_some(all)
}
