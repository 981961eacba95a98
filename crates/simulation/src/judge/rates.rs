//! A replica limits its requests, honors `Retry-After`, and resets the backoff after a success.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{
        trace::{Call, Reconcile, Role, Time},
        users::NAMESPACE,
    },
    ASKED, Case, STEP, Violation, name_of, warnings,
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
        // There are a few Foos, and each may be reconciled 20 times in a burst.
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
    // Several Foos may create a Deployment of the same name.
    let owner = metadata["ownerReferences"][0]["uid"].as_str();
    let words = [Some(path), name, owner].into_iter().flatten();
    words.collect::<Vec<_>>().join("/")
}

/// A `Retry-After` in a 429 or 503 delays the watch, the Events of the namespace, or the reconciled object with all its requests.
/// The first reconcile of a new term does not wait. The election and permission reviews have their own pace.
pub fn heeds(case: &Case, found: &mut Vec<Violation>) {
    let asks = case.trace.calls.iter().filter_map(|call| {
        let (at, code) = call.answered?;
        let asked = call.retry_after.filter(|_| matches!(code, 429 | 503))?;
        let until = at + case.shortest(asked.min(ASKED)).saturating_sub(STEP);
        (call.role == Role::Work).then_some((call, at, until))
    });
    for (call, at, until) in asks {
        let time = at + Duration::from_micros(1)..until;
        let its = || {
            let calls = case.trace.calls.iter();
            calls.filter(|other| other.who == call.who && time.contains(&other.begun))
        };
        let again = match &*call.resource {
            // The client does not wait for a later response.
            _ if at >= patience(case, call) => None,
            // An Event that was in flight at the same time may be sent again.
            "events" => its()
                .filter(|other| other.begun > at + STEP)
                .find(|other| other.role == Role::Work && other.resource == "events")
                .map(|other| other.begun),
            "foos" | "deployments" if is_watch(call) => its()
                .find(|other| other.resource == call.resource && is_watch(other))
                .map(|other| other.begun),
            "foos" | "foos/status" | "deployments" => looked_at_again(case, call, at, until),
            _ => None,
        };
        found.extend(again.map(|again| Violation {
            invariant: "I11",
            at: again,
            object: call.who.to_string(),
            what: format!(
                "{} {} again, which was to wait from {at:?} to {until:?}",
                call.verb,
                subject(call)
            ),
        }));
    }
}

/// A success resets the backoff. The attempt number of a reconcile does not exceed the failures of the process with this object
/// since the last success, plus one.
pub fn forgets(case: &Case, found: &mut Vec<Violation>) {
    let mut failures = BTreeMap::<_, u32>::new();
    for one in case.reconciles.values().flatten() {
        let failed = failures.entry((one.who, &*one.key)).or_default();
        if one.attempt > *failed + 1 {
            found.push(Violation {
                invariant: "Q3",
                at: one.begun,
                object: one.key.clone(),
                what: format!(
                    "attempt {} of {}, after {failed} failures",
                    one.attempt, one.who
                ),
            });
        }
        if one.failed || one.ended.is_none() {
            *failed += 1;
        } else if !has_status_pending(case, one) {
            *failed = 0;
        }
    }
}

/// Returns whether a reconcile changed a Deployment and left the status to the next reconcile.
fn has_status_pending(case: &Case, one: &Reconcile) -> bool {
    let ended = one.ended.unwrap_or(one.begun);
    let name = name_of(&one.key);
    let its = |path: &str| {
        let mut calls = case.trace.calls.iter().filter(|call| call.who == one.who);
        calls.any(|call| {
            let is_write = !matches!(call.verb, "get" | "list" | "watch" | "stream");
            is_write && call.path.contains(path) && (one.begun..ended).contains(&call.begun)
        })
    };
    its("/deployments") && !its(&format!("/foos/{name}/status"))
}

/// Returns when the object that the reconcile of this call handled was reconciled again, if that was before `until`.
fn looked_at_again(case: &Case, call: &Call, at: Time, until: Time) -> Option<Time> {
    let foo = foo_of(call).or_else(|| warnings::foo_of(case, call));
    let reconciles = case.trace.reconciles.iter();
    let mut its = reconciles.filter(|one| {
        let name = one.key.strip_prefix(&format!("{NAMESPACE}/"));
        let is_it = foo.is_none_or(|foo| name == Some(foo));
        let is_then = one.begun <= call.begun && one.ended.is_some_and(|ended| at <= ended);
        one.who == call.who && is_then && is_it
    });
    // If several reconciles are possible, the object is unknown.
    let (Some(one), None) = (its.next(), its.next()) else {
        return None;
    };
    let ended = one.ended?;
    let again = case.reconciles.get(&*one.key)?.iter();
    let mut again = again.filter(|other| other.who == call.who && other.begun > ended);
    let begun = again.find(|other| other.begun < until)?.begun;
    let mut logs = case.trace.logs.iter();
    let is_new_term = logs.any(|log| {
        log.who == call.who
            && (at..=begun).contains(&log.at)
            && log.text.contains("started workers")
    });
    (!is_new_term).then_some(begun)
}

/// Returns the Foo that the call names, if any.
pub fn foo_of(call: &Call) -> Option<&str> {
    let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
    match (call.verb, &*call.resource) {
        ("update", "foos/status") => path.rsplit('/').nth(1),
        ("list", "foos") => query.split("metadata.name%3D").nth(1)?.split('&').next(),
        ("create", "deployments") => call.body["metadata"]["ownerReferences"][0]["name"].as_str(),
        _ => None,
    }
}

/// Returns when the client stops waiting for a response.
fn patience(case: &Case, call: &Call) -> Time {
    let limit = match &*call.resource {
        "events" => Duration::from_secs(1),
        _ if is_watch(call) => Duration::from_mins(1),
        _ => call.limit().unwrap_or(Duration::from_secs(10)),
    };
    call.begun + case.shortest(limit)
}

/// Returns whether the call is a watch or the list of a watch.
fn is_watch(call: &Call) -> bool {
    matches!(call.verb, "list" | "watch" | "stream") && !call.path.contains("fieldSelector")
}
