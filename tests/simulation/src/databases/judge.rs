//! The desired state of the operator of three kinds.

use std::sync::Arc;

use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{condition, owner, text},
        hindered::rejected_status,
        named,
        pauses::is_paused,
    },
    program::NAMESPACE,
};
use operator_testkit::api_server::{Key, Kind};
use serde_json::{Value, json};

use super::{
    GROUP,
    grants::{fingerprint, grants, secret_of},
};

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
