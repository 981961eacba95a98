//! An Event reports a fact. If the fact recurs, the same Event becomes a series.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use operator_testkit::api_server::{Kind, Revision};

use super::{super::trace::Call, Case, Violation, fields::text, made, named};

/// A process does not create a second Event for the same fact about an object. It extends the first Event to a series. An Event
/// whose creation has an unknown outcome is written again under the same name.
pub fn said_once(case: &Case, found: &mut Vec<Violation>) {
    /// Minimum time between two Events about the same fact. Shorter than the retries of an Event without a response.
    const SERIES: Duration = Duration::from_secs(50);
    let mut said = BTreeMap::<_, &Revision>::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let is_new = revision.key.kind == Kind::Event && revision.before.is_none();
        let Some(call) = case.writer(index).filter(|_| is_new) else {
            continue;
        };
        let of = |field: &str| text(&call.body[field]);
        let about = text(&call.body["regarding"]["uid"]);
        let what = (call.who, about, of("type"), of("reason"), of("note"));
        let Some(earlier) = said.insert(what, revision) else {
            continue;
        };
        // The Event is gone, or a response reported it as missing or rejected.
        let is_gone = || {
            let mut since = case.store.history()[..index].iter();
            let mut calls = case.trace.calls.iter();
            let named = format!("/{}?", earlier.key.name);
            since.any(|one| one.key == earlier.key && one.after.is_none())
                || calls.any(|call| {
                    let code = call.answered.map_or(0, |(_, code)| code);
                    let is_missed = call.verb == "patch" && code == 404;
                    let is_refused = call.verb == "create" && matches!(code, 400..=408 | 410..=428);
                    is_missed && call.path.contains(&named)
                        || is_refused && text(&call.body["metadata"]["name"]) == &*earlier.key.name
                })
        };
        // The Event may have waited and been retried for a long time.
        let happened = |one: &Revision| {
            let event = one.after.as_deref()?;
            text(&event["eventTime"]).parse::<Timestamp>().ok()
        };
        let since = happened(revision).zip(happened(earlier));
        let is_long_ago =
            since.is_some_and(|(now, then)| now.duration_since(then).unsigned_abs() > SERIES);
        // The writer may have dropped the earlier Event if no response confirmed it.
        let is_given_up = || {
            let name = &*earlier.key.name;
            let calls = case.trace.calls.iter();
            let mut tries = calls.filter(|one| text(&one.body["metadata"]["name"]) == name);
            let told = |one: &Call| {
                let until = one.over.unwrap_or(Duration::MAX);
                let answered = one.answered.filter(|(at, _)| *at <= until);
                answered.is_some_and(|(_, code)| code < 300 || code == 409)
            };
            let first = tries.clone().next().map_or(call.begun, |one| one.begun);
            // An attempt that finds no connection is not a call.
            let says_so = || {
                let mut logs = case.trace.logs.iter();
                logs.any(|log| {
                    let is_then = (first..=call.begun).contains(&log.at);
                    is_then && log.who == call.who && log.text.contains("event dropped")
                })
            };
            (first + SERIES < call.begun || says_so())
                && !tries.any(|one| told(one) && !one.is_spoilt())
        };
        if made(revision) < made(earlier) + SERIES && !is_long_ago && !is_gone() && !is_given_up() {
            found.push(Violation {
                invariant: "I14",
                at: made(revision),
                object: named(&revision.key),
                what: format!("says what {} says: {}", earlier.key.name, of("note")),
            });
        }
    }
}
