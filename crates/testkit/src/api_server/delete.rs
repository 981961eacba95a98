//! Deletion.

use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Server, Store, definition, metadata,
    policy::Operation,
    request::{Part, Request, Unknown},
    status::{Cause, Refusal, Result},
    strategy, write,
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

impl Server {
    pub(super) fn delete(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        key: &Key,
    ) -> Result<Value> {
        let options = options(request)?;
        let policy = options["propagationPolicy"].as_str();
        let stored = store.get(key).cloned();
        let Some(old) = self.current(store, request, key)? else {
            return Err(Refusal::not_found(key.kind, &key.name));
        };
        check_preconditions(key, &options["preconditions"], &old)?;
        self.admit(
            store,
            request,
            key,
            (Operation::Delete, Part::Whole),
            (None, Some(&*old)),
        )?;
        match key.kind {
            Kind::Namespace => return terminate(store, now, request, key, &old),
            // Another deletion has the rules of any object with finalizers.
            Kind::CustomResourceDefinition if !metadata::is_deleting(&old) => {
                return definition::terminate(store, now, request, key, &old);
            }
            _ => {}
        }
        let had = metadata::finalizers(&old);
        let finalizers = finalizers_to_be(key.kind, &had, policy);
        if finalizers.is_empty() {
            // A version as precondition fails if the deletion also removes the garbage collector's last finalizer. The API
            // server considers the object changed, although it was not written, and compares an empty version.
            let precondition = &options["preconditions"]["resourceVersion"];
            if !had.is_empty() && !precondition.is_null() {
                let is = old["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default();
                let why = format!(
                    "ResourceVersion in precondition: , ResourceVersion in object meta: {is}"
                );
                return Err(write::failed(key, request.is_dry_run()?, &why));
            }
            if !request.is_dry_run()? {
                store.put(now, request.call.user.name, key, None);
            }
            if matches!(key.kind, Kind::Service | Kind::ServiceAccount) {
                return deleted(store, request, &old);
            }
            let info = key.kind.info();
            let mut details =
                json!({ "name": key.name, "kind": info.plural, "uid": old["metadata"]["uid"] });
            if !info.group.is_empty() {
                details["group"] = info.group.into();
            }
            return Ok(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            }));
        }
        let mut new = Value::clone(&old);
        new["metadata"]["finalizers"] = json!(finalizers);
        if !metadata::is_deleting(&old) {
            mark(&mut new, now);
        }
        new["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        let new = self.to_storage(store, key.kind, new)?;
        if stored.is_some_and(|stored| *stored == new) {
            return Ok(new);
        }
        write::put(store, now, request, key, new)
    }
}

impl Server {
    /// Deletes the objects of a list, and returns the list (`Store.DeleteCollection` of `k8s.io/apiserver`).
    pub(super) fn delete_collection(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        (kind, namespace): (Kind, Option<&str>),
    ) -> Result<Value> {
        let is_everywhere = kind.is_namespaced() && namespace.is_none();
        if kind.is_custom() && is_everywhere {
            return Err(Refusal::not_served());
        }
        if kind == Kind::Namespace || is_everywhere {
            return Err(Refusal::method_not_allowed());
        }
        // The controller of CRDs has other rules for a collection.
        if kind == Kind::CustomResourceDefinition {
            return Err(Unknown("the deletion of a collection of CRDs".to_owned()).into());
        }
        options(request)?;
        let list = self.list(store, request, (kind, namespace))?;
        for item in list["items"].as_array().into_iter().flatten() {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default();
            let key = Key::new(kind, text("namespace"), text("name"));
            self.delete(store, now, request, &key)?;
        }
        Ok(list)
    }
}

/// Marks an object with finalizers as terminating.
pub fn mark(object: &mut Value, now: Now) {
    strategy::count(object);
    object["metadata"]["deletionTimestamp"] = now.seconds().into();
    object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
}

fn options(request: &Request<'_>) -> Result<Value> {
    if request.call.body.is_empty() {
        return Ok(json!({}));
    }
    match request.media_type.as_deref() {
        None | Some("application/json") => {}
        other => return Err(Unknown(format!("Content-Type: {other:?}")).into()),
    }
    let options = request.json().map_err(Refusal::bad_request)?;
    let known = [
        "apiVersion",
        "kind",
        "propagationPolicy",
        "preconditions",
        "gracePeriodSeconds",
        "dryRun",
    ];
    let Some(fields) = options.as_object() else {
        return Err(Unknown(format!("the DeleteOptions {options}")).into());
    };
    for (field, value) in fields {
        let is_legal = match field.as_str() {
            "dryRun" => {
                (value.as_array()).map_or(value.is_null(), |all| all.iter().all(|it| it == "All"))
            }
            "propagationPolicy" => value.is_null() || value.is_string(),
            "kind" => value == "DeleteOptions",
            _ => true,
        };
        if !is_legal {
            return Err(Unknown(format!("{field} {value} in DeleteOptions")).into());
        }
        if !known.contains(&field.as_str()) {
            return Err(Unknown(format!("{field} in DeleteOptions")).into());
        }
    }
    let policy = options["propagationPolicy"].as_str();
    if let Some(other) = policy.filter(|it| !matches!(*it, "Foreground" | "Background" | "Orphan"))
    {
        let cause = Cause {
            field: "propagationPolicy".to_owned(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            ),
        };
        return Err(Refusal::invalid_of(
            "DeleteOptions",
            "meta.k8s.io",
            "",
            &[cause],
        ));
    }
    Ok(options)
}

fn check_preconditions(key: &Key, asked: &Value, old: &Value) -> Result<()> {
    let info = key.kind.info();
    let is = &old["metadata"];
    let conflict = |what: &str, field: &str, end: &str| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let why = format!(
            "the {what} in the precondition ({}) does not match the {what} in record ({}). The object might have been {end}",
            text(&asked[field]),
            text(&is[field])
        );
        Err(Refusal::conflict_of(
            info.kind,
            key.kind.stored_group(),
            &key.name,
            &why,
        ))
    };
    if !asked["uid"].is_null() && asked["uid"] != is["uid"] {
        return conflict("UID", "uid", "deleted and then recreated");
    }
    if !asked["resourceVersion"].is_null() && asked["resourceVersion"] != is["resourceVersion"] {
        return conflict("ResourceVersion", "resourceVersion", "modified");
    }
    Ok(())
}

/// Returns the finalizers of an object after a deletion with this policy.
fn finalizers_to_be(kind: Kind, had: &[&str], policy: Option<&str>) -> Vec<String> {
    let theirs = || {
        had.iter()
            .find(|name| matches!(**name, ORPHAN | FOREGROUND))
            .copied()
    };
    let ours = match policy {
        // An Event has no dependents.
        _ if kind.stored() == Kind::Event => None,
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        Some(_) => None,
        // For backwards compatibility, a Job is deleted without its pods.
        None => theirs().or((kind == Kind::Job).then_some(ORPHAN)),
    };
    let others: Vec<&str> = had
        .iter()
        .copied()
        .filter(|name| !matches!(*name, ORPHAN | FOREGROUND))
        .collect();
    let all: Vec<&str> = others.into_iter().chain(ours).collect();
    let same = all.len() == had.len() && all.iter().all(|name| had.contains(name));
    let all = if same { had.to_vec() } else { all };
    all.into_iter().map(ToOwned::to_owned).collect()
}

/// Marks a namespace as terminating. It is deleted when it is empty and has no finalizer.
fn terminate(
    store: &mut Store,
    now: Now,
    request: &Request<'_>,
    key: &Key,
    old: &Value,
) -> Result<Value> {
    if metadata::is_deleting(old) {
        return Ok(old.clone());
    }
    let mut new = old.clone();
    new["metadata"]["deletionTimestamp"] = now.seconds().into();
    new["status"]["phase"] = "Terminating".into();
    write::put(store, now, request, key, new)
}

/// Returns the deleted object, with the version of its deletion.
fn deleted(store: &Store, request: &Request<'_>, old: &Value) -> Result<Value> {
    let mut last = old.clone();
    if !request.is_dry_run()? {
        last["metadata"]["resourceVersion"] = store.version().to_string().into();
    }
    Ok(last)
}
