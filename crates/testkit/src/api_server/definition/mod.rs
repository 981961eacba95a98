//! CRDs, and the kinds that they define. The API server serves a kind once its CRD is established, and deletes the objects of a
//! CRD before the CRD.

mod compiled;

use std::sync::Arc;

use serde_json::{Value, json};

pub use compiled::{Definition, Scale, Version};

use super::{
    Key, Kind, Now, Server, Store, Verb, delete, metadata,
    request::{Part, Request, Target, Unknown},
    status::{Refusal, Result},
    write,
};

/// User of the API server's own controllers.
const CONTROLLER: &str = "system:apiserver";

/// Finalizer of a CRD until its objects are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Store {
    /// Makes the kind of a CRD known without installing the CRD: requests for the kind get 404. Requests for unknown kinds end the
    /// run.
    pub fn declare_kind(&mut self, definition: &Value) -> Kind {
        let kind = Kind::of_definition(definition);
        let is_same = |it: &Kind| it.resource() == kind.resource();
        match self.custom.iter().position(is_same) {
            None => self.custom.push(kind),
            // The kind of stored objects stays, even if their CRD has another version.
            Some(at) if self.list(self.custom[at], None).next().is_some() => {
                return self.custom[at];
            }
            Some(at) => self.custom[at] = kind,
        }
        kind
    }

    /// Installs a CRD, which is established without delay. Returns the kind that it defines.
    pub fn install_definition(&mut self, now: Now, mut definition: Value) -> Kind {
        let kind = self.new_kind(now, &mut definition);
        establish(&mut definition);
        self.put(now, "admin", &definition_key(kind), Some(definition));
        kind
    }

    /// Removes the CRD of a kind, and all objects of the kind.
    pub fn remove_definition(&mut self, now: Now, kind: Kind) {
        let objects: Vec<Key> = self.list(kind, None).map(|(key, _)| key.clone()).collect();
        for key in objects {
            self.put(now, CONTROLLER, &key, None);
        }
        self.put(now, "admin", &definition_key(kind), None);
    }

    /// Returns all kinds that a CRD defines or defined.
    pub fn custom_kinds(&self) -> &[Kind] {
        &self.custom
    }

    /// Returns the CRD of a kind, if it exists.
    pub fn definition(&self, kind: Kind) -> Option<&Arc<Value>> {
        self.get(&definition_key(kind))
    }

    /// Returns whether a step is due for the CRD of a kind: see [`settle_definition`](Self::settle_definition).
    pub fn is_unsettled(&self, kind: Kind) -> bool {
        let waits = |object: &Value| metadata::is_deleting(object) && has_finalizers(object);
        self.definition(kind).is_some_and(|definition| {
            if !metadata::is_deleting(definition) {
                return !is_established(definition);
            }
            let mut objects = self.list(kind, None).peekable();
            objects.peek().is_none() || objects.any(|(_, object)| !waits(object))
        })
    }

    /// Takes a step for the CRD of a kind, as the API server's controllers do: a new CRD is established. The objects of a
    /// terminating CRD are deleted, and then the CRD.
    pub fn settle_definition(&mut self, now: Now, kind: Kind) {
        let key = definition_key(kind);
        let Some(definition) = self.definition(kind).cloned() else {
            return;
        };
        if !metadata::is_deleting(&definition) {
            if !is_established(&definition) {
                let mut new = Value::clone(&definition);
                establish(&mut new);
                self.put(now, CONTROLLER, &key, Some(new));
            }
            return;
        }
        let objects = self.list(kind, None);
        let objects: Vec<_> = objects
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        if objects.is_empty() {
            self.put(now, CONTROLLER, &key, None);
        }
        for (key, object) in objects {
            if !has_finalizers(&object) {
                self.put(now, CONTROLLER, &key, None);
            } else if !metadata::is_deleting(&object) {
                let mut new = Value::clone(&object);
                delete::mark(&mut new, now);
                self.put(now, CONTROLLER, &key, Some(new));
            }
        }
    }

    /// Completes a new CRD, and records its kind.
    fn new_kind(&mut self, now: Now, definition: &mut Value) -> Kind {
        let kind = self.declare_kind(definition);
        let metadata = &mut definition["metadata"];
        metadata["uid"] = self.new_uid().into();
        metadata["creationTimestamp"] = now.seconds().into();
        metadata["generation"] = 1.into();
        kind
    }
}

fn definition_key(kind: Kind) -> Key {
    Key::new(Kind::CustomResourceDefinition, "", &kind.resource())
}

fn has_finalizers(object: &Value) -> bool {
    !metadata::finalizers(object).is_empty()
}

fn establish(definition: &mut Value) {
    definition["status"]["conditions"] = json!([{ "type": "Established", "status": "True" }]);
}

fn is_established(definition: &Value) -> bool {
    definition["status"]["conditions"][0]["type"] == "Established"
}

impl Server {
    /// Returns the CRD that defines the kind, if the kind needs one and this server has seen it.
    pub(super) fn definition<'a>(&self, store: &'a Store, kind: Kind) -> Option<&'a Arc<Value>> {
        if !kind.is_custom() {
            return None;
        }
        store.get_at(&definition_key(kind), self.seen_last())
    }

    /// Returns the compiled CRD of a kind, if this server has seen one, and the version since which it is the same.
    pub(super) fn compiled(&self, store: &Store, kind: Kind) -> Option<(Arc<Definition>, u64)> {
        store.compiled(self.definition(store, kind)?)
    }

    /// Returns the UID of the CRD that defines the kind at this version, if the kind needs a CRD.
    pub(super) fn definition_uid(store: &Store, kind: Kind, version: u64) -> Option<String> {
        let definition = kind
            .is_custom()
            .then(|| store.get_at(&definition_key(kind), version))??;
        Some(definition["metadata"]["uid"].as_str()?.to_owned())
    }

    /// Returns whether the kind is served. For a custom kind, the server must have seen the established CRD.
    pub(super) fn serves(&self, store: &Store, kind: Kind) -> bool {
        !kind.is_custom()
            || (self.definition(store, kind)).is_some_and(|definition| is_established(definition))
    }

    /// Fails if the CRD of a kind does not serve the path: another version, scope or subresource.
    pub(super) fn check_path(
        &self,
        store: &Store,
        request: &Request<'_>,
        verb: Verb,
    ) -> Result<()> {
        let Target::Stored {
            kind,
            namespace,
            name,
            part,
        } = &request.target
        else {
            return Ok(());
        };
        if !kind.is_custom() {
            return Ok(());
        }
        let is_for_all = matches!(verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        let fits = if kind.is_namespaced() {
            namespace.is_some() || is_for_all
        } else {
            namespace.is_none()
        };
        self.with_version(store, request, *kind, |_, version| {
            let has_part = match part {
                Part::Status => version.status,
                Part::Scale => version.scale.is_some(),
                Part::Whole | Part::Finalize => true,
            };
            match (fits && version.served, has_part) {
                (false, _) => Err(Refusal::not_served()),
                (true, false) => Err(Refusal::not_found(
                    *kind,
                    name.as_deref().unwrap_or_default(),
                )),
                (true, true) => {
                    self.warn(version.warning.clone());
                    Ok(())
                }
            }
        })
    }

    /// Fails if the CRD of the kind is terminating: no objects can be created then (`forbidCreateAdmission`).
    pub(super) fn check_is_kept(&self, store: &Store, key: &Key) -> Result<()> {
        let definition = self.definition(store, key.kind);
        if definition.is_some_and(|definition| metadata::is_deleting(definition)) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Refusal::forbidden(key.kind, &key.name, why));
        }
        Ok(())
    }
}

/// Creates a CRD, which is not established yet.
pub fn create(store: &mut Store, now: Now, request: &Request<'_>) -> Result<Value> {
    let mut definition = request.json().map_err(Refusal::bad_request)?;
    let kind = Kind::of_definition(&definition);
    let key = definition_key(kind);
    if definition["metadata"]["name"] != *key.name {
        return Err(Unknown(format!("a CRD of {} with another name", key.name)).into());
    }
    if let Some(there) = store.get(&key) {
        let deleting = metadata::is_deleting(there);
        return Err(Refusal::already_exists(key.kind, &key.name, deleting));
    }
    store.new_kind(now, &mut definition);
    write::put(store, now, request, &key, definition)
}

/// Marks a CRD as terminating, at its first deletion. It is deleted when it has no objects.
pub fn terminate(
    store: &mut Store,
    now: Now,
    request: &Request<'_>,
    key: &Key,
    old: &Value,
) -> Result<Value> {
    let mut new = old.clone();
    new["metadata"]["deletionTimestamp"] = now.seconds().into();
    new["metadata"]["finalizers"] = json!([CLEANUP]);
    write::put(store, now, request, key, new)
}
