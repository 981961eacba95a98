//! CRDs, and the kinds that they define. The API server serves a kind once its CRD is established, and deletes the objects of a
//! CRD before the CRD.

mod check;
mod compiled;
mod read;
mod structure;

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

pub use compiled::{Definition, Scale, Version};

use super::{
    Key, Kind, Now, Release, Server, Store, Verb, delete, metadata,
    release::since,
    request::{Part, Request, Target, Unknown},
    schema::formats,
    status::{Cause, Refusal, Result},
    strategy, typed, write,
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
        if let Ok(parsed) = parse(definition.clone()) {
            definition = parsed;
        }
        let kind = self.new_kind(now, &mut definition);
        establish(now, &mut definition);
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
                let is_settled = is_established(definition) && has_accepted_names(definition);
                return !is_settled
                    && (conflict(self, definition).is_none()
                        || definition["status"]["conditions"].is_null());
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
            if !is_established(&definition) || !has_accepted_names(&definition) {
                let mut new = Value::clone(&definition);
                match conflict(self, &definition) {
                    Some((reason, message)) => reject_names(now, &mut new, reason, &message),
                    None => establish(now, &mut new),
                }
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

fn has_accepted_names(definition: &Value) -> bool {
    definition["status"]["acceptedNames"] == definition["spec"]["names"]
}

/// Accepts the names of a CRD, and establishes it.
fn establish(now: Now, definition: &mut Value) {
    let at = now.seconds();
    definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
    if definition["status"]["storedVersions"].is_null() {
        definition["status"]["storedVersions"] = json!([storage(definition)]);
    }
    definition["status"]["conditions"] = json!([
        {
            "type": "NamesAccepted", "status": "True", "lastTransitionTime": at, "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established", "status": "True", "lastTransitionTime": at, "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]);
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it["type"] == "Established" && it["status"] == "True")
}

/// Returns the conflict of the names of a CRD: another CRD of the group has them.
fn conflict(store: &Store, definition: &Value) -> Option<(&'static str, String)> {
    let spec = &definition["spec"];
    let taken = |is_kind: bool, name: &Value| {
        let others = store.list(Kind::CustomResourceDefinition, None);
        let mut others = others.map(|(_, other)| other).filter(|other| {
            other["spec"]["group"] == spec["group"]
                && other["metadata"]["name"] != definition["metadata"]["name"]
        });
        let names: &[&str] = if is_kind {
            &["/kind", "/listKind"]
        } else {
            &["/plural", "/singular"]
        };
        others.any(|other| {
            let accepted = &other["status"]["acceptedNames"];
            let short = accepted["shortNames"].as_array().into_iter().flatten();
            names
                .iter()
                .any(|path| accepted.pointer(path) == Some(name))
                || !is_kind && short.into_iter().any(|short| short == name)
        })
    };
    let names = &spec["names"];
    let mut found = None;
    for (field, reason, is_kind) in [
        ("plural", "PluralConflict", false),
        ("singular", "SingularConflict", false),
        ("kind", "KindConflict", true),
        ("listKind", "ListKindConflict", true),
    ] {
        if taken(is_kind, &names[field]) {
            found = Some((reason, format!("{} is already in use", names[field])));
        }
    }
    found
}

/// Reports that the names of a CRD are in use.
fn reject_names(now: Now, definition: &mut Value, reason: &str, message: &str) {
    let at = now.seconds();
    definition["status"]["conditions"] = json!([
        { "type": "NamesAccepted", "status": "False", "lastTransitionTime": at, "reason": reason, "message": message },
        {
            "type": "Established", "status": "False", "lastTransitionTime": at, "reason": "NotAccepted",
            "message": "not all names are accepted",
        },
    ]);
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

    /// Fails if the CRD of the kind is terminating: no objects can be created then (`forbidCreateAdmission`; before 1.34 the
    /// handler of requests).
    pub(super) fn check_is_kept(&self, store: &Store, key: &Key) -> Result<()> {
        let definition = self.definition(store, key.kind);
        if definition.is_some_and(|definition| metadata::is_deleting(definition)) {
            let why = "create not allowed while custom resource definition is terminating";
            if store.release < Release::V1_34 {
                let info = key.kind.info();
                let details = json!({ "group": info.group, "kind": info.plural });
                return Err(Refusal::new(405, "MethodNotAllowed", why, Some(details)));
            }
            return Err(Refusal::forbidden(key.kind, &key.name, why));
        }
        Ok(())
    }
}

/// Reads a CRD from a request.
pub fn read(request: &Request<'_>) -> Result<Value> {
    let asked = request.json().map_err(Refusal::bad_request)?;
    let definition = parse(asked.clone())?;
    if request.text("fieldValidation") == "Strict" && !write::is_kept(&asked, &definition) {
        return Err(Unknown(
            "fieldValidation=Strict with fields that a CRD may not have".to_owned(),
        )
        .into());
    }
    Ok(definition)
}

/// Parses a CRD, and sets its defaults.
pub fn parse(asked: Value) -> Result<Value> {
    let unreadable = |words: String| strategy::unreadable(Kind::CustomResourceDefinition, &words);
    let mut definition = typed::read_definition(asked).map_err(unreadable)?;
    read::complete(&mut definition);
    Ok(definition)
}

/// Fails if a CRD is invalid, or not modelled.
fn validate(new: &Value, old: Option<&Value>, release: Release) -> Result<()> {
    let meta = &new["metadata"];
    let mut causes = metadata::check(meta, true);
    let name = meta["name"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wanted = format!(
        "{}.{}",
        text(&new["spec"]["names"]["plural"]),
        text(&new["spec"]["group"])
    );
    match old {
        None if name != wanted => {
            let why = "must be spec.names.plural+\".\"+spec.group";
            causes.push(Cause::invalid("metadata.name", format!("{name:?}"), why));
        }
        None => {}
        Some(old) => {
            let was = &old["metadata"];
            causes = metadata::check_update(meta, was);
            causes.extend(metadata::check_update(meta, was));
        }
    }
    causes.extend(check::check(new, old, release));
    let stored = match old {
        Some(old) => old["status"]["storedVersions"]
            .as_array()
            .cloned()
            .unwrap_or_default(),
        None => Vec::new(),
    };
    causes.extend(stored_versions(new, stored, release));
    if causes.is_empty() {
        Definition::compile(new, release)?;
        return Ok(());
    }
    Err(Refusal::invalid(
        Kind::CustomResourceDefinition,
        name,
        &causes,
    ))
}

/// Checks that all stored versions are in the CRD.
fn stored_versions(new: &Value, mut stored: Vec<Value>, release: Release) -> Vec<Cause> {
    let storage = storage(new);
    if !storage.is_null() && !stored.contains(&storage) {
        stored.push(storage);
    }
    let field = "status.storedVersions";
    if stored.is_empty() {
        return vec![Cause::invalid(
            field,
            since(release, Release::V1_34, "[]string(nil)", "null"),
            "must have at least one stored version",
        )];
    }
    let mut causes = Vec::new();
    let mut left = stored.clone();
    for version in new["spec"]["versions"].as_array().into_iter().flatten() {
        let name = &version["name"];
        if version["storage"] == true && !left.contains(name) {
            let why = format!(
                "must have the storage version {}",
                name.as_str().unwrap_or_default()
            );
            causes.push(Cause::invalid(field, names_of(&stored, release), &why));
        }
        left.retain(|it| it != name);
    }
    let gone = stored
        .iter()
        .enumerate()
        .filter(|(_, version)| left.contains(version));
    causes.extend(gone.map(|(at, version)| {
        let name = version.as_str().unwrap_or_default();
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage \
             migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        Cause::invalid(&format!("{field}[{at}]"), version, &why)
    }));
    causes
}

/// Formats a list of names like `field.Error`.
pub(super) fn names_of(all: &[Value], release: Release) -> String {
    let shown = Value::from(all.to_vec()).to_string();
    if release >= Release::V1_34 {
        return shown;
    }
    let names = shown.trim_matches(['[', ']']).replace(',', ", ");
    format!("[]string{{{names}}}")
}

/// Returns warnings for formats that the API server ignores, and for sets of compound values, unless they were in `old`.
pub fn warnings(new: &Value, old: Option<&Value>, release: Release) -> Vec<String> {
    let of = |definition: &Value| {
        let (mut formats, mut sets) = (Vec::new(), BTreeSet::new());
        let versions = definition["spec"]["versions"].as_array();
        for version in versions.into_iter().flatten() {
            each_schema(&version["schema"]["openAPIV3Schema"], &mut |schema| {
                let text = |name: &str| schema[name].as_str().unwrap_or_default();
                let (kind, format) = (text("type"), text("format"));
                if release >= Release::V1_34 && !formats::is_known(kind, format, release) {
                    formats.push(format!("unrecognized format {format:?}"));
                }
                let items = schema["items"]["type"].as_str().unwrap_or_default();
                let is_set = text("x-kubernetes-list-type") == "set";
                if release >= Release::V1_37 && is_set && matches!(items, "object" | "array") {
                    sets.insert(format!(
                        "x-kubernetes-list-type: set for items of type {items:?} is not supported by server-side apply or CEL \
                         validation rules"
                    ));
                }
            });
        }
        formats.into_iter().chain(sets).collect::<Vec<_>>()
    };
    let had = old.map(of).unwrap_or_default();
    let new = of(new).into_iter();
    new.filter(|warning| !had.contains(warning)).collect()
}

/// Visits a schema and all schemas in it (`SchemaHas`).
fn each_schema(schema: &Value, visit: &mut impl FnMut(&Value)) {
    visit(schema);
    let lists = ["allOf", "anyOf", "oneOf"].map(|name| schema[name].as_array());
    let lists = lists.into_iter().flatten().flatten();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let one = ["items", "not", "additionalProperties"].map(|name| &schema[name]);
    let nested = lists.chain(properties.map(|(_, it)| it)).chain(one);
    for schema in nested.filter(|schema| schema.is_object()) {
        each_schema(schema, visit);
    }
}

/// Returns the name of the storage version.
fn storage(definition: &Value) -> Value {
    let versions = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut versions = versions.filter(|version| version["storage"] == true);
    versions
        .next()
        .map_or(Value::Null, |version| version["name"].clone())
}

/// Creates a CRD, which is not established yet.
pub fn create(
    server: &Server,
    store: &mut Store,
    now: Now,
    request: &Request<'_>,
    mut definition: Value,
) -> Result<Value> {
    let metadata = &mut definition["metadata"];
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("namespace");
    }
    let whole = (Kind::CustomResourceDefinition, Part::Whole);
    // An apply has set the managers.
    if *request.call.method == http::Method::POST {
        server.manage(store, now, request, whole, (None, &mut definition))?;
    }
    validate(&definition, None, store.release)?;
    let key = definition_key_of(&definition);
    if let Some(there) = store.get(&key) {
        let deleting = metadata::is_deleting(there);
        return Err(Refusal::already_exists(key.kind, &key.name, deleting));
    }
    definition["metadata"]["uid"] = store.new_uid().into();
    definition["metadata"]["creationTimestamp"] = now.seconds().into();
    definition["metadata"]["generation"] = 1.into();
    definition["status"] = json!({
        "conditions": null, "acceptedNames": { "kind": "", "plural": "" }, "storedVersions": [storage(&definition)],
    });
    if !request.is_dry_run()? {
        store.declare_kind(&definition);
    }
    write::put(store, now, request, &key, definition)
}

/// Returns the key of a CRD.
fn definition_key_of(definition: &Value) -> Key {
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    Key::new(Kind::CustomResourceDefinition, "", name)
}

/// Completes a CRD that replaces `old`: its status stays, and the generation counts the changes of its `spec`.
pub fn prepare_change(new: &mut Value, old: &Value) {
    new["status"] = old["status"].clone();
    new["metadata"]["generation"] = old["metadata"]["generation"].clone();
    if new["spec"] != old["spec"] {
        strategy::count(new);
    }
    let storage = storage(new);
    if let Some(stored) = new["status"]["storedVersions"].as_array_mut()
        && !stored.contains(&storage)
    {
        stored.push(storage);
    }
}

/// Fails if a CRD that replaces `old` is invalid.
pub fn check_change(new: &Value, old: &Value, release: Release) -> Result<()> {
    validate(new, Some(old), release)
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
