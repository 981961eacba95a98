//! A CRD: whether it is installed and served, and equals the CRD that this program prints.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};

use super::{
    cluster::{api, api_of, each, each_in_scope, few, is_blocked, items, text},
    conversion,
    subject::Doctor,
    verdict::{APPLY, Verdict, error, failed, is_forbidden, ok, skipped, warning},
};
use crate::api::{failure::brief, key::Key, kind::Kind};

pub(super) async fn examine(doctor: &Doctor, ours: &CustomResourceDefinition) -> Verdict {
    let client = &doctor.client;
    let crds = api::<CustomResourceDefinition>(client);
    match crds.get_opt(&ours.name_any()).await {
        Ok(Some(theirs)) if theirs.metadata.deletion_timestamp.is_some() => {
            terminating(doctor, ours).await
        }
        Ok(Some(theirs)) => {
            let conversion = conversion::problem(client, ours, &theirs).await;
            let scope = text(&theirs.data["spec"]["scope"]);
            let scope = kind_of(doctor, ours).and_then(|kind| other_scope(kind, ours, scope));
            scope.unwrap_or_else(|| judge(ours, &theirs, conversion))
        }
        Ok(None) => missing(doctor, ours).await,
        // The controller itself has no permission to read CRDs.
        Err(error) if is_forbidden(&error) => is_served(doctor, ours).await,
        Err(error) => failed("get it", &error),
    }
}

/// Returns the resource type of a CRD, if a controller uses it.
fn kind_of<'a>(doctor: &'a Doctor, ours: &CustomResourceDefinition) -> Option<&'a Kind> {
    let (group, plural) = (&ours.spec.group, &ours.spec.names.plural);
    let mut watched = doctor.needs.watched.iter();
    watched.find(|kind| kind.group == group && kind.plural == plural)
}

/// Returns an error if the objects have another scope than this program expects. The requests of this program then have paths
/// that the API server does not serve, or name objects that do not exist.
fn other_scope(kind: &Kind, ours: &CustomResourceDefinition, theirs: &str) -> Option<Verdict> {
    const CLUSTER: &str = "Cluster";
    let expected = if kind.is_cluster_scoped() {
        CLUSTER
    } else {
        "Namespaced"
    };
    let printed = &ours.spec.scope;
    if *printed != expected {
        let mend = if kind.is_cluster_scoped() {
            "remove `namespaced` from its attribute #[kube(..)], or `cluster_scoped()` from its Kind"
        } else {
            "add `namespaced` to its attribute #[kube(..)], or `cluster_scoped()` to its Kind"
        };
        return Some(error(format!(
            "its scope is {printed} in the CRD that this program prints, and {expected} in the code of its controllers: {mend}"
        )));
    }
    (theirs != expected).then(|| {
        error(format!(
            "its scope is {}, and this program requires {expected}: a scope cannot be changed; delete the CRD, and each {} with \
             it, and {APPLY}",
            brief(theirs),
            kind.kind
        ))
    })
}

/// Reports a terminating CRD, with the finalizers that block its deletion.
async fn terminating(doctor: &Doctor, ours: &CustomResourceDefinition) -> Verdict {
    let kind = &ours.spec.names.kind;
    let mut finalizers = BTreeSet::new();
    if let Some(kind) = kind_of(doctor, ours) {
        let now = doctor.host.now();
        // The deletion of a CRD concerns the objects of all installations and namespaces.
        let mut take = |object: DynamicObject| {
            if is_blocked(&object, now) {
                finalizers.extend(object.finalizers().iter().cloned());
            }
        };
        let everywhere = api_of(&doctor.client, kind, None);
        let listed = each(&everywhere, &ListParams::default(), &mut take).await;
        // Without the permission to list them, they are unknown.
        if listed.is_err_and(|error| is_forbidden(&error)) {
            _ = each_in_scope(doctor, kind, &ListParams::default(), take).await;
        }
    }
    let finalizers = few(finalizers);
    let waits = match &*finalizers {
        "" => String::new(),
        these => format!(", which waits for the finalizers {these}"),
    };
    error(format!(
        "being deleted, and each {kind} with it{waits}: when it is gone, {APPLY}"
    ))
}

/// Reports a missing CRD, with the remaining owned objects. The garbage collector deletes them once the CRD is back.
async fn missing(doctor: &Doctor, ours: &CustomResourceDefinition) -> Verdict {
    let (group, kind) = (&ours.spec.group, &ours.spec.names.kind);
    let is_owner = |owner: &OwnerReference| {
        let of = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && owner.kind == *kind && of == Some(group)
    };
    let mut left = Vec::new();
    for permission in doctor.needs.rights() {
        if permission.verb != "create" {
            continue;
        }
        let take = |object: DynamicObject| {
            if object.owner_references().iter().any(is_owner) {
                let namespace = object.namespace().unwrap_or_default();
                let key = Key::new(&namespace, &object.name_any());
                left.push(format!("{}/{key}", permission.kind.plural));
            }
        };
        let api = api_of(&doctor.client, &permission.kind, None);
        // Without the permission to list them, they are not reported.
        if each(&api, &ListParams::default(), take).await.is_err() {
            break;
        }
    }
    let left = match &*few(&left) {
        "" => String::new(),
        names => format!(
            "; objects of deleted {kind}s still exist ({names}): the garbage collector deletes them when the CRD is \
             installed; to keep one, remove its ownerReferences first"
        ),
    };
    error(format!("missing: {APPLY}{left}"))
}

/// Checks the discovery API, which all users may read.
async fn is_served(doctor: &Doctor, ours: &CustomResourceDefinition) -> Verdict {
    let client = &doctor.client;
    let (group, plural) = (&ours.spec.group, &ours.spec.names.plural);
    for version in &ours.spec.versions {
        let version = format!("{group}/{}", version.name);
        match client.list_api_group_resources(&version).await {
            Ok(list) => {
                let Some(served) = list.resources.iter().find(|it| it.name == *plural) else {
                    return missing(doctor, ours).await;
                };
                let scope = if served.namespaced {
                    "Namespaced"
                } else {
                    "Cluster"
                };
                let kind = kind_of(doctor, ours);
                if let Some(other) = kind.and_then(|kind| other_scope(kind, ours, scope)) {
                    return other;
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return missing(doctor, ours).await;
            }
            Err(error) => return failed(&format!("list what {version} has"), &error),
        }
    }
    skipped(
        "served; cannot compare it with this program's: not allowed to get customresourcedefinitions",
    )
}

/// Compares two CRDs. `conversion`: why objects cannot be read in each version, with a fix.
fn judge(
    ours: &CustomResourceDefinition,
    theirs: &DynamicObject,
    conversion: Option<String>,
) -> Verdict {
    let conditions = theirs.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let is_established = |it: &Value| it["type"] == "Established" && it["status"] == "True";
    if !conditions.clone().any(is_established) {
        let refused = conditions.find(|it| it["status"] == "False");
        let why = refused.and_then(|it| it["message"].as_str());
        let why = why.map_or_else(
            || "the API server has not processed it yet".to_owned(),
            brief,
        );
        return error(format!("not established: {why}"));
    }
    if let Some(conversion) = conversion {
        return error(conversion);
    }
    let stored: Vec<_> = items(&theirs.data["status"]["storedVersions"])
        .map(text)
        .collect();
    let unknown = stored
        .iter()
        .find(|it| !ours.spec.versions.iter().any(|ours| ours.name == **it));
    let mend = unknown.map_or_else(
        || APPLY.to_owned(),
        |version| {
            format!(
                "the API server rejects this program's CRD while status.storedVersions contains {}: run the command migrate",
                brief(version)
            )
        },
    );
    let ours = serde_json::to_value(&ours.spec).unwrap_or_default();
    let theirs = &theirs.data["spec"];
    let mut found = Vec::new();
    compare("", &comparable(&ours), &comparable(theirs), &mut found);
    found.sort_by_key(|difference| difference.change);
    let Some((first, others)) = found.split_first() else {
        let same = "established, the same as this program's";
        let former = stored.into_iter().filter(|stored| {
            let mut versions = items(&theirs["versions"]);
            !versions.any(|it| it["name"] == **stored && it["storage"] == true)
        });
        return match &*few(former.collect::<Vec<_>>()) {
            "" => ok(same),
            former => warning(format!(
                "{same}; objects may still be stored in {former}: before an upgrade that no longer serves it, run the command \
                 migrate"
            )),
        };
    };
    let is_no_other = |it: &Difference| it.change == first.change || it.change == Change::Shows;
    let is_all = |change| first.change == change && others.iter().all(is_no_other);
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let text = &first.text;
    if is_all(Change::Knows) && unknown.is_some() && is_stored_by_both(&ours, theirs) {
        return error(format!("older than this program: {text}{more}: {mend}"));
    }
    if is_all(Change::Knows) {
        return warning(format!(
            "newer than this program: {text}{more}: upgrade this program, too"
        ));
    }
    let age = if is_all(Change::Lacks) {
        "older than this program"
    } else {
        "different from this program's"
    };
    let judged = if first.matters() { error } else { warning };
    judged(format!("{age}: {text}{more}: {mend}"))
}

/// Returns whether the cluster stores new objects in a version that this program has as well. Otherwise, the program is the older
/// one.
fn is_stored_by_both(ours: &Value, theirs: &Value) -> bool {
    let mut stored = items(&theirs["versions"]).filter(|it| it["storage"] == true);
    stored.any(|stored| items(&ours["versions"]).any(|it| it["name"] == stored["name"]))
}

/// The effect of a difference, most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Differs,
    /// The CRD in the cluster lacks a part of this program's CRD.
    Lacks,
    /// The CRD in the cluster has an additional field or version, which is harmless.
    Knows,
    /// Only a description, a column, a short name or a category differs.
    Shows,
}

struct Difference {
    change: Change,
    text: String,
}

impl Difference {
    /// Whether the difference changes the objects that the API server stores, admits or serves.
    fn matters(&self) -> bool {
        matches!(self.change, Change::Lacks | Change::Differs)
    }
}

/// Returns the compared parts of a CRD's spec: fields that the controller or its users notice, without defaults.
fn comparable(spec: &Value) -> Value {
    let names = &spec["names"];
    let mut all = json!({
        "scope": spec["scope"],
        "kind": names["kind"],
        "shortNames": names["shortNames"],
        "categories": names["categories"],
        "preserveUnknownFields": spec["preserveUnknownFields"],
    });
    for version in spec["versions"].as_array().into_iter().flatten() {
        all[version["name"].as_str().unwrap_or_default()] = json!({
            "served": version["served"],
            "schema": version["schema"]["openAPIV3Schema"],
            "subresources": version["subresources"],
            "additionalPrinterColumns": version["additionalPrinterColumns"],
        });
    }
    all
}

/// Returns the value that the API server stores for a field: null for a default.
fn stored<'a>(key: &str, of: &'a Value) -> &'a Value {
    let value = &of[key];
    let is_default = match value {
        // These keywords have no default. `served` is always stored.
        _ if matches!(key, "default" | "enum" | "example" | "served") => false,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => key == "priority" && number.as_i64() == Some(0),
        Value::Null | Value::Object(_) => false,
    };
    if is_default { &Value::Null } else { value }
}

fn compare(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Value::Object(our_fields), Value::Object(their_fields)) => {
            let keys: BTreeSet<_> = our_fields.keys().chain(their_fields.keys()).collect();
            for key in keys {
                let dot = if path.is_empty() { "" } else { "." };
                let [ours, theirs] = [ours, theirs].map(|it| stored(key, it));
                compare(&format!("{path}{dot}{key}"), ours, theirs, found);
            }
        }
        (Value::Array(our_items), Value::Array(their_items)) => {
            let mut inside = Vec::new();
            for (ours, theirs) in our_items.iter().zip(their_items) {
                compare(path, ours, theirs, &mut inside);
            }
            if our_items.len() != their_items.len() || !inside.is_empty() {
                found.push(difference(path, ours, theirs));
            }
        }
        // `1` and `1.0` are equal.
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => {}
        _ if ours != theirs => found.push(difference(path, ours, theirs)),
        _ => {}
    }
}

fn difference(path: &str, ours: &Value, theirs: &Value) -> Difference {
    const SHOWN: [&str; 4] = [
        "description",
        "additionalPrinterColumns",
        "shortNames",
        "categories",
    ];
    let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
    // A field of the spec may have one of these names.
    let is_shown = SHOWN.contains(&key) && !ours.is_object() && !theirs.is_object();
    let is_field = parent.is_empty() || parent.ends_with(".properties");
    let change = match (ours, theirs) {
        _ if is_shown => Change::Shows,
        (_, Value::Null) => Change::Lacks,
        (Value::Null, _) if is_field => Change::Knows,
        _ => Change::Differs,
    };
    let text = match (ours, theirs) {
        (_, Value::Null) => format!("it lacks {path}"),
        (Value::Null, _) => format!("it has {path}"),
        // Long values are not printed.
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => {
            format!("{path} differs")
        }
        _ => {
            let [ours, theirs] = [ours, theirs].map(|it| match it.as_f64() {
                Some(number) => number.to_string(),
                None => brief(&it.to_string()),
            });
            format!("{path} is {theirs}, and not {ours}")
        }
    };
    Difference { change, text }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        cmd::doctor::verdict::Grade,
        config::{app::tests::APP, settings::Config},
    };

    /// The changes from `ours` to `theirs`, each with its text.
    fn changes(ours: &Value, theirs: &Value) -> Vec<String> {
        let mut found = Vec::new();
        compare("", ours, theirs, &mut found);
        let found = found.into_iter();
        found
            .map(|it| format!("{:?}: {}", it.change, it.text))
            .collect()
    }

    /// The deletion of a CRD deletes the objects of all namespaces, also of those that this installation does not serve.
    #[tokio::test]
    async fn the_finalizers_of_all_namespaces_block_a_deletion() {
        static JOB: Kind = Kind::custom("example.com", "v1", "Job", "jobs");
        let config = Config {
            namespaces: vec!["a".to_owned()],
            ..Config::shipped(&APP)
        };
        let doctor = Doctor::for_tests(config, &[&JOB], |_| {
            let metadata = json!({ "name": "x", "namespace": "b", "finalizers": ["other.com/f"],
                "deletionTimestamp": "2020-01-01T00:00:00Z" });
            vec![json!({ "metadata": metadata })]
        });
        let ours = json!({ "metadata": { "name": "jobs.example.com" }, "spec": {
            "group": "example.com", "names": { "kind": "Job", "plural": "jobs" }, "scope": "Namespaced", "versions": [],
        } });
        let ours = serde_json::from_value(ours).unwrap();
        let (_, text) = terminating(&doctor, &ours).await;
        assert!(
            text.contains("waits for the finalizers other.com/f"),
            "{text}"
        );
    }

    /// The versions in `storedVersions`, and the grade and the end of the text.
    #[test]
    fn a_former_stored_version_needs_a_migration() {
        let version = |name: &str| json!({ "name": name, "served": true, "storage": name == "v1" });
        let spec = json!({
            "group": "example.com",
            "names": { "kind": "Job", "plural": "jobs" },
            "scope": "Namespaced",
            "versions": [version("v1"), version("v1beta1")],
        });
        let ours = json!({ "metadata": { "name": "jobs.example.com" }, "spec": spec });
        let ours: CustomResourceDefinition = serde_json::from_value(ours).unwrap();
        let newer = |name: &str| {
            let mut spec = spec.clone();
            let versions = spec["versions"].as_array_mut().unwrap();
            versions.push(version(name));
            if name == "v2" {
                versions[0]["storage"] = false.into();
                versions[2]["storage"] = true.into();
            }
            spec
        };
        for (spec, stored, grade, text) in [
            (
                spec.clone(),
                json!(["v1"]),
                Grade::Ok,
                "the same as this program's",
            ),
            (
                spec.clone(),
                json!(["v1beta1", "v1"]),
                Grade::Warning,
                "run the command migrate",
            ),
            // This program does not serve the former version any more.
            (
                newer("v1alpha1"),
                json!(["v1alpha1", "v1"]),
                Grade::Error,
                "while status.storedVersions contains v1alpha1: run the command migrate",
            ),
            (
                newer("v1alpha1"),
                json!(["v1"]),
                Grade::Warning,
                "upgrade this program, too",
            ),
        ] {
            let conditions = json!([{ "type": "Established", "status": "True" }]);
            let theirs = json!({
                "metadata": { "name": "jobs.example.com" },
                "spec": spec,
                "status": { "conditions": conditions, "storedVersions": stored },
            });
            let theirs = serde_json::from_value(theirs).unwrap();
            let verdict = judge(&ours, &theirs, None);
            assert!(
                verdict.0 == grade && verdict.1.ends_with(text),
                "{verdict:?}"
            );
        }
    }

    /// The deletion of a CRD waits for the objects of all installations, of each reconciled type.
    #[tokio::test]
    async fn the_finalizers_of_all_installations_are_named() {
        static ORDER: Kind = Kind::custom("example.com", "v1", "Order", "orders");
        static JOB: Kind = Kind::custom("example.com", "v1", "Job", "jobs");
        let objects = |plural: &str| {
            let object = |finalizer: &str, deleted: &str, installation: &str| {
                json!({ "metadata": {
                    "name": "x", "namespace": "n", "finalizers": [finalizer], "deletionTimestamp": deleted,
                    "labels": { "example.com/installation": installation },
                } })
            };
            let jobs = vec![
                object("a/own", "2020-01-01T00:00:00Z", ""),
                object("b/other", "2020-01-01T00:00:00Z", "canary"),
                object("c/new", "9000-01-01T00:00:00Z", ""),
            ];
            if plural == "jobs" { jobs } else { Vec::new() }
        };
        let config = Config::shipped(&APP);
        let doctor = Doctor::for_tests(config, &[&ORDER, &JOB], objects);
        let names = json!({ "kind": "Job", "plural": "jobs" });
        let spec = json!({ "group": "example.com", "names": names, "scope": "Namespaced", "versions": [] });
        let ours = json!({ "metadata": { "name": "jobs.example.com" }, "spec": spec });
        let ours: CustomResourceDefinition = serde_json::from_value(ours).unwrap();
        let (_, text) = terminating(&doctor, &ours).await;
        assert!(
            text.contains("waits for the finalizers a/own, b/other:"),
            "{text}"
        );
    }

    /// The scope of the code, of the printed CRD and of the CRD in the cluster.
    #[test]
    fn another_scope_is_an_error() {
        let namespaced = Kind::custom("example.com", "v1", "Job", "jobs");
        for (kind, printed, theirs, expected) in [
            (namespaced, "Namespaced", "Namespaced", None),
            (namespaced.cluster_scoped(), "Cluster", "Cluster", None),
            (
                namespaced,
                "Namespaced",
                "Cluster",
                Some(
                    "its scope is Cluster, and this program requires Namespaced: a scope cannot be changed; delete the CRD",
                ),
            ),
            (
                namespaced.cluster_scoped(),
                "Cluster",
                "Namespaced",
                Some(
                    "its scope is Namespaced, and this program requires Cluster: a scope cannot be changed; delete the CRD",
                ),
            ),
            (
                namespaced,
                "Cluster",
                "Cluster",
                Some(
                    "its scope is Cluster in the CRD that this program prints, and Namespaced in the code",
                ),
            ),
        ] {
            let names = json!({ "kind": "Job", "plural": "jobs" });
            let spec =
                json!({ "group": "example.com", "names": names, "scope": printed, "versions": [] });
            let ours = json!({ "metadata": { "name": "jobs.example.com" }, "spec": spec });
            let ours: CustomResourceDefinition = serde_json::from_value(ours).unwrap();
            let found = other_scope(&kind, &ours, theirs);
            let is_right = match (&found, expected) {
                (Some((Grade::Error, found)), Some(text)) => found.starts_with(text),
                (found, None) => found.is_none(),
                _ => false,
            };
            assert!(is_right, "{found:?}");
        }
    }

    #[test]
    fn omitted_defaults_are_no_difference() {
        let ours = json!({ "nullable": false, "format": "", "required": [], "columns": [{ "name": "a", "priority": 0 }] });
        let theirs = json!({ "columns": [{ "name": "a" }] });
        assert_eq!(changes(&ours, &theirs), [""; 0]);
        // `default` has no default of its own.
        let [none, no] = [json!({}), json!({ "default": false })];
        assert_eq!(changes(&no, &none), ["Lacks: it lacks default"]);
    }

    #[test]
    fn a_description_is_distinguished_from_a_field_named_description() {
        let of = |field: Value| json!({ "v1": { "properties": { "description": field } } });
        let [old, new] =
            ["a", "b"].map(|text| of(json!({ "description": text, "type": "string" })));
        let words = "v1.properties.description.description is \"b\", and not \"a\"";
        assert_eq!(changes(&old, &new), [format!("Shows: {words}")]);
        let none = json!({ "v1": { "properties": {} } });
        assert_eq!(
            changes(&old, &none),
            ["Lacks: it lacks v1.properties.description"]
        );
        assert_eq!(
            changes(&none, &old),
            ["Knows: it has v1.properties.description"]
        );
        // An unknown limit may reject the values that this program writes.
        let bound = of(json!({ "description": "a", "type": "string", "maxLength": 1 }));
        assert_eq!(
            changes(&old, &bound),
            ["Differs: it has v1.properties.description.maxLength"]
        );
    }
}
