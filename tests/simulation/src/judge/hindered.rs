//! Obstacles to the work of a process on one Foo.

use operator_simulation::{
    judge::{Case, fields::text, hindered::is_hindered_except, made, name_of},
    trace::{Call, Time, Who},
};

use super::{super::FOO, warnings::foo_of};

/// Returns whether a fault or its aftermath may have obstructed the work of this process on a Foo between `from` and `until`.
pub fn is_hindered_for(case: &Case, who: Who, foo: &str, from: Time, until: Time) -> bool {
    let is_other = |call: &Call| is_write_for_another(case, call, foo);
    is_hindered_except(case, who, is_other, from, until)
}

/// Returns whether the call writes for a Foo other than this.
pub fn is_write_for_another(case: &Case, call: &Call, foo: &str) -> bool {
    match (call.verb, &*call.resource) {
        ("update", "foos/status") => text(&call.body["metadata"]["name"]) != foo,
        ("create" | "patch" | "delete", "deployments") => {
            foo_of(case, call).is_some_and(|its| its != foo)
        }
        _ => false,
    }
}

/// Returns whether the Foo of this key is missing at `from`, or is deleted by `due`.
pub fn is_gone(case: &Case, key: &str, from: Time, due: Time) -> bool {
    let name = name_of(key);
    let history = case.store.history().iter();
    let its =
        history.filter(|one| one.key.kind == FOO && *one.key.name == *name && made(one) <= due);
    let last = its.clone().rfind(|one| made(one) <= from);
    let is_there = last.is_some_and(|last| last.after.is_some());
    let mut its = its;
    !is_there || its.any(|one| one.after.is_none() && made(one) > from)
}
