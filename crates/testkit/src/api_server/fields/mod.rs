//! Field management: the last writer of each field (`metadata.managedFields`), and server-side apply.
//!
//! [`set`] and [`text`] are sets of fields and their JSON. [`types`] is how the values of a kind are divided into fields; [`check`],
//! [`compare`] and [`merge`] walk along it. [`managers`] is `managedFields`. [`update`] has the rules of a write, and [`scope`] what
//! they need to know of the kind. All of this takes time: a store [`without_managers`](Store::without_managers) has only [`replicas`].

mod check;
mod compare;
mod managers;
mod merge;
mod reconcile;
pub mod replicas;
mod scale;
mod scope;
mod set;
#[cfg(test)]
mod tests;
mod text;
pub mod types;
mod update;
mod yaml;

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use super::{
    Key, Kind, Now, Release, Server, Store,
    definition::Definition,
    job,
    request::{Part, Request, Unknown},
    status::{Cause, Refusal, Result},
    strategy::{keep, unknown_fields, unreadable},
    typed,
    write::{check_name, check_namespace},
};
use managers::Managers;
use scope::{Scope, failed};

/// Largest length of a manager's name.
const MAX_MANAGER: usize = 128;

impl Server {
    /// Calls `then` with the types and versions of a kind.
    fn with_scope<T>(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        (kind, part): (Kind, Part),
        then: impl FnOnce(&Scope<'_>) -> Result<T>,
    ) -> Result<T> {
        let definition: Option<Arc<Definition>> =
            self.compiled(store, kind).map(|(definition, _)| definition);
        then(&Scope {
            kind,
            part,
            definition: definition.as_deref(),
            version: request.api_version(kind),
            now: now.seconds(),
            release: store.release,
        })
    }

    /// Sets the managers of `new`, which a client wants in place of `live`, or of nothing.
    pub(super) fn manage(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        (kind, part): (Kind, Part),
        (live, new): (Option<&Value>, &mut Value),
    ) -> Result<()> {
        let asked = new["metadata"]
            .as_object_mut()
            .and_then(|metadata| metadata.remove("managedFields"))
            .unwrap_or_default();
        if !store.keeps_managers() {
            return Ok(());
        }
        let of_live = || live.map(of_object).unwrap_or_default();
        let managers = if part == Part::Whole && managers::is_reset(&asked) {
            Managers::new()
        } else if part == Part::Whole
            && let Ok(managers) = managers::read(&asked)
            && !managers.is_empty()
        {
            managers
        } else {
            of_live()
        };
        let mut read = Cow::Borrowed(&*new);
        if kind == Kind::Job && live.is_none() {
            // Its creator owns the labels as well that it has from the template.
            job::fill_labels(read.to_mut());
        }
        let managers = self.with_scope(store, now, request, (kind, part), |scope| {
            scope.updated(live, &read, managers, &request.manager())
        });
        let entries = match managers {
            Ok(managers) => managers::write(&managers),
            Err(Refusal::Unknown(unknown)) => return Err(unknown.into()),
            // The API server ignores errors here. It keeps the managers since 1.37, and forgot them before.
            Err(_) if store.release >= Release::V1_37 => live
                .map(|live| live["metadata"]["managedFields"].clone())
                .filter(|entries| !entries.is_null()),
            Err(_) => None,
        };
        keep(&mut new["metadata"], "managedFields", entries.as_ref());
        Ok(())
    }

    /// Applies the body to `live`, or to nothing. Returns the object that the client wants, with its managers.
    pub(super) fn apply(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        (key, part): (&Key, Part),
        live: Option<&Value>,
    ) -> Result<Value> {
        if !store.keeps_managers() {
            return Err(Unknown("an apply to a store without managers".to_owned()).into());
        }
        let (kind, body) = (key.kind, yaml::read(request.call.body)?);
        unknown_fields(kind, store.release, &body.object)?;
        let mut live = live.cloned();
        let managers = live.as_ref().map(of_object).unwrap_or_default();
        if let Some(metadata) = live
            .as_mut()
            .and_then(|live| live["metadata"].as_object_mut())
        {
            metadata.remove("managedFields");
        }
        let (applied, managers) = self.with_scope(store, now, request, (kind, part), |scope| {
            let force = request.flag("force")?;
            scope.check_kind(&body.object)?;
            scope.applied(
                live.as_ref(),
                &body.object,
                managers,
                (request.text("fieldManager"), force),
            )
        })?;
        self.check_duplicates(request, &body)?;
        let mut new = match applied {
            Some(new) => self.completed(store, request, kind, new)?,
            None => live.clone().unwrap_or_default(),
        };
        let entries = managers::write(&managers);
        keep(&mut new["metadata"], "managedFields", entries.as_ref());
        if let (None, Some(uid)) = (&live, new["metadata"]["uid"].as_str()) {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Refusal::conflict(kind, &key.name, &why));
        }
        check_namespace(&mut new, key)?;
        check_name(&mut new, key)?;
        Ok(new)
    }

    /// Returns the result of an apply as the API server reads it.
    fn completed(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        mut new: Value,
    ) -> Result<Value> {
        if kind.is_custom() {
            self.with_version(store, request, kind, |_, version| {
                version.schema.fill(&mut new);
                Ok(())
            })?;
            // Without the nulls of removed maps.
            if let Some(metadata) = new.get_mut("metadata").filter(|it| !it.is_null()) {
                let read = typed::read_metadata(metadata.take());
                *metadata = read.map_err(|words| unreadable(kind, &words))?;
            }
            return Ok(new);
        }
        let named = new["metadata"]["name"].clone();
        let read = self.read(store, request, kind, new);
        read.map(|(new, _)| new).map_err(|refusal| match refusal {
            Refusal::Status(status) => {
                let info = kind.info();
                let (name, words) = (named.as_str().unwrap_or_default(), &status["message"]);
                let kind = format!("{}/{}, Kind={}", info.group, info.version, info.kind);
                failed(&format!(
                    "failed to convert new object (/{name}; {kind}) to proper version: unable to convert unstructured object to \
                     {kind}: {}",
                    words.as_str().unwrap_or_default()
                ))
            }
            other => other,
        })
    }

    fn check_duplicates(&self, request: &Request<'_>, body: &yaml::Body) -> Result<()> {
        let Some(words) = &body.duplicates else {
            return Ok(());
        };
        match request.text("fieldValidation") {
            "Ignore" => {}
            "Strict" => {
                let words = format!(
                    "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {words}"
                );
                return Err(Refusal::bad_request(words));
            }
            _ => self.warn([words.clone()]),
        }
        Ok(())
    }
}

/// Returns the managers of a stored object.
fn of_object(object: &Value) -> Managers {
    managers::read(&object["metadata"]["managedFields"]).unwrap_or_default()
}

/// Takes back new times of managers, if nothing else has changed.
pub fn keep_times(new: &mut Value, old: &Value) {
    let entries = |object: &Value| object["metadata"]["managedFields"].as_array().cloned();
    let (Some(is), Some(was)) = (entries(new), entries(old)) else {
        return;
    };
    let without_time = |entry: &Value| {
        let mut entry = entry.clone();
        entry.as_object_mut().map(|entry| entry.remove("time"));
        entry
    };
    if is == was || !is.iter().map(without_time).eq(was.iter().map(without_time)) {
        return;
    }
    let rest = |object: &Value| {
        let mut object = object.clone();
        keep(&mut object["metadata"], "managedFields", None);
        object
    };
    if rest(new) == rest(old) {
        new["metadata"]["managedFields"] = was.into();
    }
}

/// Returns whether the request is a server-side apply.
pub fn is_apply(request: &Request<'_>) -> bool {
    *request.call.method == http::Method::PATCH
        && request.media_type.as_deref() == Some("application/apply-patch+yaml")
}

impl Request<'_> {
    /// Returns `fieldManager`, or else the name of the program in `User-Agent`.
    fn manager(&self) -> String {
        match self.text("fieldManager") {
            "" => {
                let agent = self.call.user_agent.unwrap_or_default();
                let program = agent.split('/').next().unwrap_or_default();
                let program = program.chars().filter(|c| !c.is_control());
                program.take(MAX_MANAGER).collect()
            }
            name => name.to_owned(),
        }
    }

    /// Checks the parameters of field management.
    pub(super) fn check_manager(&self) -> Result<()> {
        let mut causes = Vec::new();
        let manager = self.text("fieldManager");
        if is_apply(self) && manager.is_empty() {
            causes.push(Cause::required(
                "fieldManager",
                "is required for apply patch",
            ));
        }
        if !is_apply(self) && self.query.contains_key("force") {
            causes.push(Cause {
                field: "force".to_owned(),
                reason: "FieldValueForbidden",
                message: "Forbidden: may not be specified for non-apply patch".to_owned(),
            });
        }
        if manager.len() > MAX_MANAGER {
            causes.push(Cause {
                field: "fieldManager".to_owned(),
                reason: "FieldValueTooLong",
                message: format!("Too long: may not be more than {MAX_MANAGER} bytes"),
            });
        }
        if manager.chars().any(char::is_control) {
            return Err(Unknown(format!("fieldManager={manager:?}")).into());
        }
        if causes.is_empty() {
            return Ok(());
        }
        let what = match *self.call.method {
            http::Method::PATCH => "PatchOptions",
            http::Method::PUT => "UpdateOptions",
            _ => "CreateOptions",
        };
        Err(Refusal::invalid_of(what, "meta.k8s.io", "", &causes))
    }
}

impl Scope<'_> {
    /// Fails if a patch is for another kind or version.
    fn check_kind(&self, patch: &Value) -> Result<()> {
        let text = |field: &str| patch[field].as_str().unwrap_or_default();
        let (mut version, kind) = (text("apiVersion"), text("kind"));
        if version.split('/').count() > 2 {
            version = "";
        }
        if (version, kind) == (self.entry_version(), self.kind_name()) {
            return Ok(());
        }
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        Err(Refusal::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )))
    }
}
