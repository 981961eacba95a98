//! A replica limits its requests.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::trace::{Call, Time},
    Case, Violation,
};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_mins(1);

/// The number of requests of a replica is bounded, in total, by kind and by object, regardless of the responses.
pub fn bounded(case: &Case, found: &mut Vec<Violation>) {
    let attempts = |who, window: Duration| {
        let settings = case
            .life(who)
            .map_or(&case.plan.settings, |life| &life.settings);
        let retry_period = case.shortest(settings.retry_period);
        // An attempt is a read and a write. Every fourth attempt may be repeated out of turn. The constant covers a deletion, a
        // rejected write and the end, each with a read before and after.
        let attempts = window.as_millis() * 5 / (4 * retry_period.as_millis() * 9 / 10) + 8;
        usize::try_from(attempts).unwrap_or(usize::MAX)
    };
    let mut of_a_kind = BTreeMap::<_, Vec<_>>::new();
    let mut of_one = BTreeMap::<_, Vec<_>>::new();
    let mut of_all = BTreeMap::<_, Vec<_>>::new();
    for call in &case.trace.calls {
        // A live read counts as a `get`, although it is sent as a list: there are as many as objects.
        let is_look = call.verb == "list" && !is_watch(call);
        let verb = if is_look { "get" } else { call.verb };
        let kind = (call.who, verb, &*call.resource);
        of_all.entry(call.who).or_default().push(call.begun);
        of_a_kind.entry(kind).or_default().push(call.begun);
        // Each permission is reviewed on its own.
        let review = &call.body["spec"]["resourceAttributes"];
        let review = review.is_object().then(|| review.to_string());
        let one = (
            call.who,
            call.verb,
            subject(call) + &review.unwrap_or_default(),
        );
        of_one.entry(one).or_default().push(call.begun);
    }
    let mut crowded =
        |who, of: String, times: &mut Vec<Time>, (most, window): (usize, Duration)| {
            times.sort();
            let mut windows = times.iter().zip(times.iter().skip(most));
            let crowded = windows.find(|(first, last)| **last < **first + window);
            found.extend(crowded.map(|(first, _)| Violation {
                invariant: "I11",
                at: *first,
                object: format!("{who}"),
                what: format!("more than {most} times {of} in {window:?}"),
            }));
        };
    for (who, mut times) in of_all {
        // There are a few objects, and each may be reconciled 20 times in a burst.
        crowded(who, "of all requests".to_owned(), &mut times, (200, SECOND));
    }
    for ((who, verb, resource), mut times) in of_a_kind {
        let bounds = match (verb, resource) {
            ("list" | "watch" | "stream", _) => [(25, WINDOW), (60, MINUTE)],
            (_, "leases") => [WINDOW, MINUTE].map(|window| (attempts(who, window), window)),
            _ => [(200, WINDOW), (400, MINUTE)],
        };
        for bound in bounds {
            crowded(who, format!("{verb} {resource}"), &mut times, bound);
        }
    }
    for ((who, verb, subject), mut times) in of_one {
        if subject.contains("/leases/") {
            continue;
        }
        // In a dispute, ten writes are sent without delay. Each may lead to several statuses, which may fail as well.
        let is_status = subject.ends_with("/status");
        let at_once = if is_status { 60 } else { 40 };
        // A status follows the counts of the Deployment. Other writes have a backoff, so they cannot continue once per second.
        let slowly = (!is_status).then_some((80, 2 * MINUTE));
        for bound in [(at_once, WINDOW), (120, MINUTE)].into_iter().chain(slowly) {
            crowded(who, format!("{verb} {subject}"), &mut times, bound);
        }
    }
}

/// Returns the subject of a call: its path without the query, the name and the owner of a new object, the name in a live read,
/// and the object of an Event.
pub fn subject(call: &Call) -> String {
    let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
    let mut query = query.split('&');
    let field = query.find(|part| part.starts_with("fieldSelector"));
    let metadata = &call.body["metadata"];
    let name = match call.verb {
        "create" if call.resource == "events" => call.body["regarding"]["uid"].as_str(),
        "create" => metadata["name"].as_str(),
        _ => field,
    };
    // Several owners may create an object of the same name.
    let owner = metadata["ownerReferences"][0]["uid"].as_str();
    let words = [Some(path), name, owner].into_iter().flatten();
    words.collect::<Vec<_>>().join("/")
}

/// Returns whether the call is a watch or the list of a watch.
pub fn is_watch(call: &Call) -> bool {
    matches!(call.verb, "list" | "watch" | "stream") && !call.path.contains("fieldSelector")
}
