//! The fencing record is written by who leads: I8.

use super::{super::trace::Call, Case, Violation, converge::text, leader::holder};

/// I8, of the fencing record: it is written on the condition that it is as it was read, and that was before its writer saw that
/// the Lease names it. Else who was deposed since could put it back, behind its successor's.
pub fn was_read(case: &Case, found: &mut Vec<Violation>) {
    let is_record = |call: &&Call| call.resource == "serviceaccounts";
    let calls = case.trace.calls.iter();
    for write in calls.filter(is_record).filter(|call| call.verb == "patch") {
        let identity = case.life(write.who).map(super::Life::identity);
        let looks = |resource: &'static str| {
            let calls = case.trace.calls.iter();
            calls.filter(move |call| {
                call.who == write.who
                    && call.verb == "get"
                    && call.resource == resource
                    && (call.answered).is_some_and(|(at, code)| at <= write.begun && code == 200)
            })
        };
        let base = text(&write.body["metadata"]["resourceVersion"]);
        let version = |call: &Call| {
            let answer = call.answer.as_deref()?;
            Some(text(&answer["metadata"]["resourceVersion"]).to_owned())
        };
        let read = looks("serviceaccounts").find(|look| version(look).as_deref() == Some(base));
        let is_named = read
            .and_then(|look| look.answered)
            .is_some_and(|(read, _)| {
                let mut later = looks("leases").filter(|look| read <= look.begun);
                later.any(|look| look.answer.as_deref().map(holder) == identity.as_deref())
            });
        let what = match read {
            _ if base.is_empty() => "on no condition",
            None => "on the condition that it is what was not read",
            Some(_) if !is_named => "with no look at the Lease since it was read",
            Some(_) => continue,
        };
        found.push(Violation {
            invariant: "I8",
            at: write.sent,
            object: write.who.to_string(),
            what: format!("writes the fencing record {what}"),
        });
    }
}
