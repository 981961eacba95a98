//! The operator of three kinds: its desired state, its pauses, and the watches that its kinds share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use operator_testkit::api_server::{Key, Kind, Revision};
use serde_json::{Value, json};

use super::{
    Case, Violation,
    fields::{condition, owner, text},
    grants::{fingerprint, grants, secret_of},
    made, named,
};
use crate::{databases::GROUP, program::NAMESPACE, trace::Time};

/// Kinds of the operator, as the store has them.
struct Kinds {
    database: Kind,
    class: Kind,
    backup: Kind,
}

impl Kinds {
    fn of(case: &Case) -> Self {
        let find = |plural: &str| {
            let mut kinds = case.store.custom_kinds().iter();
            *kinds.find(|kind| kind.info().plural == plural).unwrap()
        };
        Self {
            database: find("databases"),
            class: find("databaseclasses"),
            backup: find("backups"),
        }
    }
}

fn stored<'a>(case: &Case<'a>, kind: Kind, name: &str) -> Option<&'a Arc<Value>> {
    let namespace = if kind.is_namespaced() { NAMESPACE } else { "" };
    case.store.get(&Key::new(kind, namespace, name))
}

/// Returns the installation that the label of an object names.
pub fn installation_of(object: &Value) -> &str {
    text(&object["metadata"]["labels"][format!("{GROUP}/installation")])
}

pub fn is_paused(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let mut annotations = metadata["annotations"].as_object().into_iter().flatten();
    annotations.any(|(name, value)| name.ends_with("/paused") && value == "true")
        && metadata["deletionTimestamp"].is_null()
}

/// At the end, every object is in its desired state, or its status reports the reason.
pub fn settled(case: &Case, found: &mut Vec<Violation>) {
    let kinds = Kinds::of(case);
    for (kind, check) in [
        (
            kinds.database,
            database as fn(&Case, &Kinds, &Value) -> Verdict,
        ),
        (kinds.class, class),
        (kinds.backup, backup),
    ] {
        for (key, object) in case.store.list(kind, None) {
            let what = if object["metadata"]["deletionTimestamp"].is_string() {
                Err("is still terminating".to_owned())
            } else if is_paused(object) {
                is_condition(object, "Paused", "True", "Paused")
            } else {
                let verdict = |object: &Value| {
                    check(case, &kinds, object)
                        .and_then(|()| not_paused(object))
                        .and_then(|()| is_acknowledged(object))
                };
                verdict(object).or_else(|what| {
                    let mut object = Value::clone(object);
                    object["status"] = rejected_status(case, key, &object).ok_or(what)?.clone();
                    verdict(&object)
                })
            };
            found.extend(what.err().map(|what| Violation {
                invariant: "I3",
                at: case.plan.end,
                object: named(key),
                what,
            }));
        }
    }
}

type Verdict = Result<(), String>;

fn is_condition(object: &Value, of_type: &str, status: &str, reason: &str) -> Verdict {
    let is = condition(object, of_type);
    if is == (status, reason) {
        return Ok(());
    }
    Err(format!(
        "the condition {of_type} is {is:?}, not {status} because of {reason}"
    ))
}

fn not_paused(object: &Value) -> Verdict {
    match condition(object, "Paused") {
        ("", "") => Ok(()),
        is => Err(format!("has the condition Paused {is:?} without a pause")),
    }
}

/// Returns whether the API server has rejected the last status of this version of the object.
pub fn is_status_rejected(case: &Case, key: &Key, object: &Value) -> bool {
    rejected_status(case, key, object).is_some()
}

/// Returns the last status, if the API server has rejected it for this version of the object. It is not written again before the
/// object changes or is checked by a resync.
fn rejected_status<'a>(case: &Case<'a>, key: &Key, object: &Value) -> Option<&'a Value> {
    let status = format!("{}/status", key.kind.info().plural);
    let mut calls = case.trace.calls.iter().rev();
    let last =
        calls.find(|call| call.resource == status && call.body["metadata"]["name"] == *key.name)?;
    let code = last.answered.map(|(_, code)| code);
    let is_same = |field: &str| last.body["metadata"][field] == object["metadata"][field];
    let is_it = matches!(code, Some(400 | 422)) && is_same("uid") && is_same("resourceVersion");
    is_it.then(|| &last.body["status"])
}

/// A request to reconcile is acknowledged.
fn is_acknowledged(object: &Value) -> Verdict {
    let asked = &object["metadata"]["annotations"][format!("{GROUP}/reconcile-requested-at")];
    let is = &object["status"]["lastHandledReconcileAt"];
    if asked.is_null() || asked == is {
        return Ok(());
    }
    Err(format!("the request {asked} is not acknowledged, but {is}"))
}

/// Returns the child of this name. An error is a verdict about the object, whose status reports it.
fn child<'a>(
    case: &Case<'a>,
    object: &Value,
    (kind, name): (Kind, &str),
) -> Result<&'a Value, Verdict> {
    let Some(child) = stored(case, kind, name) else {
        return Err(Err(format!("there is no {kind:?} {name}")));
    };
    if owner(child) != text(&object["metadata"]["uid"]) {
        return Err(is_condition(object, "Ready", "False", "Foreign"));
    }
    Ok(child)
}

fn is_same(what: &str, is: &Value, wanted: &Value) -> Verdict {
    if is == wanted {
        return Ok(());
    }
    Err(format!("{what} is {is}, not {wanted}"))
}

fn database(case: &Case, kinds: &Kinds, object: &Value) -> Verdict {
    let (spec, name) = (&object["spec"], text(&object["metadata"]["name"]));
    let Some(class) = stored(case, kinds.class, text(&spec["class"])) else {
        return is_condition(object, "Ready", "False", "Waiting");
    };
    let secret = secret_of(NAMESPACE, object);
    let is_other = secret.namespace != NAMESPACE;
    let is_watched = !is_other || case.plan.settings.namespace.is_none();
    let secret = case.store.get(&secret).filter(|_| is_watched);
    let Some(secret) = secret.filter(|secret| !is_other || grants(secret, NAMESPACE)) else {
        let reason = if is_other { "NotGranted" } else { "Waiting" };
        return is_condition(object, "Ready", "False", reason);
    };
    let owned = |kind| child(case, object, (kind, name));
    let deployment = match owned(Kind::Deployment) {
        Ok(deployment) => deployment,
        Err(verdict) => return verdict,
    };
    let service = match owned(Kind::Service) {
        Ok(service) => service,
        Err(verdict) => return verdict,
    };
    is_same(
        "replicas",
        &deployment["spec"]["replicas"],
        &class["spec"]["replicas"],
    )?;
    let pod = &deployment["spec"]["template"]["spec"];
    is_same(
        "the password",
        &pod["containers"][0]["args"][1],
        &fingerprint(secret).into(),
    )?;
    is_same(
        "the port",
        &service["spec"]["ports"][0]["port"],
        &5432.into(),
    )?;
    let wanted = (!spec["backup"].is_null()).then_some(name);
    if wanted.is_some() {
        let backup = match owned(kinds.backup) {
            Ok(backup) => backup,
            Err(verdict) => return verdict,
        };
        let spec = json!({ "database": name, "target": spec["backup"] });
        is_same("the spec of the Backup", &backup["spec"], &spec)?;
    }
    for (key, backup) in case.store.list(kinds.backup, None) {
        let is_owned = owner(backup) == text(&object["metadata"]["uid"]);
        if is_owned && Some(&*key.name) != wanted {
            return Err(format!("still has the Backup {}", key.name));
        }
    }
    is_same(
        "the observed generation",
        &object["status"]["observedGeneration"],
        &object["metadata"]["generation"],
    )?;
    match deployment["status"]["readyReplicas"].as_i64() {
        None | Some(0) => is_condition(object, "Ready", "False", "NoPods"),
        _ => is_condition(object, "Ready", "True", "Deployed"),
    }
}

fn class(case: &Case, _: &Kinds, object: &Value) -> Verdict {
    let name = text(&object["metadata"]["name"]);
    let map = match child(case, object, (Kind::ConfigMap, name)) {
        Ok(map) => map,
        Err(verdict) => return verdict,
    };
    let wanted = json!({ "replicas": object["spec"]["replicas"].to_string() });
    is_same("the data", &map["data"], &wanted)?;
    is_condition(object, "Ready", "True", "Synced")
}

fn backup(case: &Case, kinds: &Kinds, object: &Value) -> Verdict {
    let name = text(&object["metadata"]["name"]);
    let database = stored(case, kinds.database, text(&object["spec"]["database"]));
    if database.is_none_or(|it| condition(it, "Ready").0 != "True") {
        return is_condition(object, "Ready", "False", "Waiting");
    }
    if let Err(verdict) = child(case, object, (Kind::Job, name)) {
        return verdict;
    }
    is_condition(object, "Ready", "True", "Synced")
}

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

/// From the condition Paused to the end of the pause, replicas write neither the object nor its dependents. Only the condition gets
/// the generation of a new spec. The status of a
/// dependent belongs to the controller of its own kind, which the pause of the owner does not concern. An installation that has
/// not reported the pause itself may write while its watch shows neither the pause nor the move of the object.
pub fn pauses_hold(case: &Case, found: &mut Vec<Violation>) {
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
        note(&mut paused, revision, by);
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
fn note(paused: &mut Paused, revision: &Revision, by: Option<&'static str>) {
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
    let holds = is_paused(object) && installation_of(object) == report.by;
    report.since = holds.then(|| report.since.unwrap_or(made(revision)));
}
