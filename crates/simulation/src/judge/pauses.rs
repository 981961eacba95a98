//! Pauses of objects.

use std::collections::BTreeMap;

use operator_testkit::api_server::Revision;
use serde_json::Value;

use super::{
    Case, Violation,
    fields::{condition, owner, text},
    made, named,
};
use crate::trace::Time;

/// Returns whether an annotation pauses the object.
pub fn is_paused(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let mut annotations = metadata["annotations"].as_object().into_iter().flatten();
    annotations.any(|(name, value)| name.ends_with("/paused") && value == "true")
        && metadata["deletionTimestamp"].is_null()
}

/// From the condition Paused to the end of the pause, replicas write neither the object nor its dependents. Only the condition gets
/// the generation of a new spec. The status of a dependent belongs to the controller of its own kind, which the pause of the owner
/// does not concern. An installation that has not reported the pause itself may write while its watch shows neither the pause nor
/// the move of the object.
pub fn hold(case: &Case, found: &mut Vec<Violation>) {
    let mut paused = Paused::new();
    for (index, revision) in case.store.history().iter().enumerate() {
        let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
        let call = case.writer(index);
        let is_status = call.is_some_and(|call| call.resource.ends_with("/status"));
        let concerned = [before, after].into_iter().flatten().flat_map(|object| {
            let owner = (!is_status).then(|| owner(object));
            owner.into_iter().chain([text(&object["metadata"]["uid"])])
        });
        let by = call.map(|call| case.plan.program.installation(call.who.replica));
        let reports = concerned.filter_map(|uid| paused.get(uid));
        let own = reports.filter(|report| Some(report.by) == by);
        let pause = own.filter_map(|report| report.since).max();
        if let (Some(since), Some(call)) = (pause, call)
            && call.begun > since
            && !(is_status && is_of_new_generation(before, after))
        {
            found.push(Violation {
                invariant: "I18",
                at: made(revision),
                object: named(&revision.key),
                what: format!("written by {} during a pause since {since:?}", call.who),
            });
        }
        note(case, &mut paused, revision, by);
    }
}

/// Returns whether only the condition Paused changed: it now has the generation of the object.
fn is_of_new_generation(before: Option<&Value>, after: Option<&Value>) -> bool {
    let [before, after] = [before, after].map(|object| {
        let mut status = object.map(|object| object["status"].clone());
        let conditions = status
            .as_mut()
            .and_then(|it| it["conditions"].as_array_mut());
        let mut paused = conditions
            .into_iter()
            .flatten()
            .filter(|it| it["type"] == "Paused");
        let generation = paused.next().map(|it| it["observedGeneration"].take());
        (status, generation)
    });
    before.0 == after.0 && before.1.is_some() && before.1 != after.1
}

/// The last report of each pause, by the UID of the object.
type Paused = BTreeMap<String, Report>;

/// A condition Paused.
struct Report {
    /// The installation that wrote it.
    by: &'static str,
    /// Since when the object has been paused, and its label has named this installation.
    since: Option<Time>,
}

/// Records the begin and the end of pauses.
fn note(case: &Case, paused: &mut Paused, revision: &Revision, by: Option<&'static str>) {
    let Some(object) = revision.after.as_deref().or(revision.before.as_deref()) else {
        return;
    };
    let uid = text(&object["metadata"]["uid"]).to_owned();
    if revision.after.is_none() || condition(object, "Paused").0 != "True" {
        paused.remove(&uid);
        return;
    }
    let by = by.unwrap_or_default();
    let report = paused.entry(uid).or_insert(Report { by, since: None });
    let holds = is_paused(object) && case.installation_of(object) == report.by;
    report.since = holds.then(|| report.since.unwrap_or(made(revision)));
}
