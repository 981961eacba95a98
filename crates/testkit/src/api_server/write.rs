//! Create, update and patch.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Release, Server, Store, Verb, definition, fields, job, metadata,
    patch::{self, Style},
    pods,
    policy::Operation,
    release::since,
    request::{Part, Request, Unknown},
    status::{Cause, Refusal, Result},
    strategy,
};

/// Part of the warning of owners that are found repeated after the mutating admission.
const AFTER_ADMISSION: &str = " after mutating admission happens";

impl Server {
    pub(super) fn create(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        key: &Key,
    ) -> Result<Value> {
        if key.kind == Kind::CustomResourceDefinition {
            return self.create_definition(store, now, request, None);
        }
        let mut object = self.body(store, request, key.kind)?;
        let text = |field: &str| {
            object["metadata"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let (mut name, prefix) = (text("name"), text("generateName"));
        if name.is_empty() && !prefix.is_empty() {
            // The causes of these kinds differ.
            let is_label = matches!(key.kind, Kind::Namespace | Kind::Service);
            if is_label && !metadata::check_label("", &format!("{prefix}a")).is_empty() {
                return Err(Unknown(format!("generateName={prefix:?}")).into());
            }
            // Admission precedes the name.
            if key.kind.is_namespaced() {
                check_lives(store, key)?;
            }
            name = store.new_name(key.kind, &key.namespace, &prefix);
            object["metadata"]["name"] = name.as_str().into();
        }
        let key = Key::new(key.kind, &key.namespace, &name);
        check_namespace(&mut object, &key)?;
        self.remove_repeated_owners(&mut object, "");
        self.create_as(store, now, request, &key, object)
    }

    fn create_definition(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        applied: Option<Value>,
    ) -> Result<Value> {
        let when = applied.as_ref().map_or("", |_| AFTER_ADMISSION);
        let mut definition = applied.map_or_else(|| definition::read(request), Ok)?;
        self.remove_repeated_owners(&mut definition, when);
        let created = definition::create(self, store, now, request, definition)?;
        self.warn(definition::warnings(&created, None, store.release));
        Ok(created)
    }

    fn create_as(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        key: &Key,
        mut object: Value,
    ) -> Result<Value> {
        if key.kind == Kind::CustomResourceDefinition {
            let of = (None, Some(key.name.as_str()));
            store.authorize(request, Verb::Create, (key.kind, Part::Whole), of)?;
            return self.create_definition(store, now, request, Some(object));
        }
        self.check_is_kept(store, key)?;
        if key.kind.is_namespaced() {
            check_lives(store, key)?;
        }
        let mut version = object["metadata"].as_object_mut().and_then(|metadata| {
            // Before 1.37, an update could create an object that is terminating from the beginning.
            if request.call.method == http::Method::POST || store.release >= Release::V1_37 {
                metadata.remove("deletionTimestamp");
                metadata.remove("deletionGracePeriodSeconds");
            }
            metadata.remove("resourceVersion")
        });
        if request.call.method != http::Method::PATCH {
            let whole = (key.kind, Part::Whole);
            self.manage(store, now, request, whole, (None, &mut object))?;
        }
        self.remove_repeated_owners(&mut object, AFTER_ADMISSION);
        // The version in an update that creates an object is ignored, but a dry run returns it.
        let unsaid = version.take_if(|_| request.call.method != http::Method::POST);
        let uid = store.new_uid();
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["creationTimestamp"] = now.seconds().into();
        self.mutate(store, key, Part::Whole, &mut object);
        let has_status = self.has_status(store, request, key.kind)?;
        strategy::prepare_new(key.kind, has_status, &mut object)?;
        // A removed status gets its default on the next read.
        if key.kind.is_custom() {
            self.with_version(store, request, key.kind, |_, version| {
                version.schema.fill(&mut object);
                Ok(())
            })?;
        }
        if key.kind == Kind::Namespace {
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = key.name.as_str().into();
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({ "phase": "Active" });
        }
        let causes = self.check_new(store, request, key, &object)?;
        if !causes.is_empty() {
            return Err(Refusal::invalid(key.kind, &key.name, &causes));
        }
        self.warn_of_finalizers(key.kind, &object, None);
        self.warn_of_pods(key, &object, None);
        if key.kind == Kind::Job {
            job::fill_labels(&mut object);
        }
        if request.call.method != http::Method::POST {
            let of = (Some(key.namespace.as_str()), Some(key.name.as_str()));
            store.authorize(request, Verb::Create, (key.kind, Part::Whole), of)?;
        }
        self.admit(
            store,
            request,
            key,
            (Operation::Create, Part::Whole),
            (Some(&object), None),
        )?;
        if version.is_some_and(|version| version != "0") {
            let words = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::new(500, "", words, None));
        }
        if let Some(there) = store.get(key) {
            let deleting = metadata::is_deleting(there);
            return Err(Refusal::already_exists(key.kind, &key.name, deleting));
        }
        if request.is_dry_run()?
            && let Some(version) = unsaid
        {
            object["metadata"]["resourceVersion"] = version;
        }
        if !store.keeps_managers() {
            let whole = (key.kind, Part::Whole);
            fields::replicas::note(request, whole, &Value::Null, &mut object);
        }
        let object = self.to_storage(store, key.kind, object)?;
        put(store, now, request, key, object)
    }

    /// Returns whether the kind has the subresource `status` in the version of the request.
    fn has_status(&self, store: &Store, request: &Request<'_>, kind: Kind) -> Result<bool> {
        if !kind.is_custom() {
            return Ok(kind.has_status());
        }
        self.with_version(store, request, kind, |_, version| Ok(version.status))
    }

    /// Removes equal owners, and warns of them (`dedupOwnerReferencesAndAddWarning`). The owners of a patch still repeat when its
    /// managers are set.
    fn remove_repeated_owners(&self, object: &mut Value, when: &str) {
        let owners = object.pointer_mut("/metadata/ownerReferences");
        let Some(owners) = owners.and_then(Value::as_array_mut) else {
            return;
        };
        let (mut seen, mut repeated) = (BTreeSet::new(), Vec::new());
        owners.retain(|owner| {
            let is_new = seen.insert(owner.to_string());
            if !is_new {
                repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
            }
            is_new
        });
        if !repeated.is_empty() {
            self.warn([format!(
                ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
                 reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
                repeated.join(", ")
            )]);
        }
    }

    /// Warns of new finalizers without a domain, like the API server for custom resources.
    fn warn_of_finalizers(&self, kind: Kind, new: &Value, old: Option<&Value>) {
        if !kind.is_custom() {
            return;
        }
        let had = old.map(metadata::finalizers).unwrap_or_default();
        let mut added = metadata::finalizers(new);
        added.retain(|name| !had.contains(name));
        added.sort_unstable();
        added.dedup();
        let is_standard =
            |name: &&str| matches!(*name, "orphan" | "foregroundDeletion" | "kubernetes");
        for name in added
            .into_iter()
            .filter(|name| !name.contains('/') && !is_standard(name))
        {
            let path = if name.contains('.') {
                " including a path (/)"
            } else {
                ""
            };
            self.warn([format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with \
                 other finalizer writers"
            )]);
        }
    }

    /// Warns of the pods of a new or changed workload.
    fn warn_of_pods(&self, key: &Key, new: &Value, old: Option<&Value>) {
        let generation = |object: &Value| object["metadata"]["generation"].clone();
        let is_changed = old.is_none_or(|old| generation(new) != generation(old));
        if !matches!(key.kind, Kind::Deployment | Kind::Job) || !is_changed {
            return;
        }
        if old.is_none() {
            let wrong = metadata::wrong_label(&key.name);
            if !wrong.is_empty() {
                let wrong = wrong.join(" ");
                self.warn([format!(
                    "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label \
                     is recommended: [{wrong}]"
                )]);
            }
        }
        self.warn(pods::warnings::of_template(&new["spec"]["template"]));
    }

    /// Acts on unknown fields as the parameter `fieldValidation` requests.
    fn check_fields(&self, request: &Request<'_>, kind: Kind, unknown: &[String]) -> Result<()> {
        let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
        match request.text("fieldValidation") {
            "Ignore" => {}
            "Strict" => {
                let errors = unknown.collect::<Vec<_>>().join(", ");
                if !errors.is_empty() {
                    return Err(strategy::unreadable(
                        kind,
                        &format!("strict decoding error: {errors}"),
                    ));
                }
            }
            _ => self.warn(unknown),
        }
        Ok(())
    }

    /// Reads an object, and acts on its unknown fields.
    fn read_strictly(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        object: Value,
    ) -> Result<Value> {
        let is_strict = request.text("fieldValidation") == "Strict" && !kind.is_custom();
        let asked = is_strict.then(|| object.clone());
        let (object, unknown) = self.read(store, request, kind, object)?;
        if unknown.is_empty() && asked.is_some_and(|asked| !is_kept(&asked, &object)) {
            return Err(Unknown(format!(
                "fieldValidation=Strict with fields that a {} may not have",
                kind.info().kind
            ))
            .into());
        }
        self.check_fields(request, kind, &unknown)?;
        Ok(object)
    }

    /// Fails if the body of a write has an unknown media type.
    pub(super) fn check_media_type(request: &Request<'_>, kind: Kind) -> Result<()> {
        if request.call.method == http::Method::PATCH {
            if !fields::is_apply(request) {
                Style::of(kind, request.media_type.as_deref())?;
            }
            return Ok(());
        }
        Self::check_body_type(request)
    }

    /// Fails if a body that is no patch has an unknown media type.
    pub(super) fn check_body_type(request: &Request<'_>) -> Result<()> {
        match request.media_type.as_deref() {
            None | Some("application/json") => Ok(()),
            Some(
                other @ ("application/yaml"
                | "application/vnd.kubernetes.protobuf"
                | "application/cbor"),
            ) => Err(Unknown(format!("Content-Type: {other}")).into()),
            Some(_) => Err(Refusal::unsupported_media_type(
                "application/json, application/yaml, application/vnd.kubernetes.protobuf",
            )),
        }
    }

    /// Parses the body as this kind.
    fn body(&self, store: &Store, request: &Request<'_>, kind: Kind) -> Result<Value> {
        let info = kind.info();
        let mut object = request.json().map_err(|error| {
            Refusal::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {error}",
                info.kind
            ))
        })?;
        if !object.is_object() {
            return Err(Unknown(format!("the body {object}")).into());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, its_kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let expected = request.api_version(kind);
        if kind.is_custom() {
            let object = self.read_strictly(store, request, kind, object)?;
            if api_version != expected {
                return Err(Refusal::bad_request(format!(
                    "the API version in the data ({api_version}) does not match the expected API version ({expected})"
                )));
            }
            if its_kind != info.kind {
                return Err(Unknown(format!("a {its_kind} as a {}", info.kind)).into());
            }
            return Ok(object);
        }
        let is_other_api = (Kind::BUILT_IN.iter())
            .any(|it| it.stored() == kind.stored() && it.api_version() == api_version);
        if api_version != expected && is_other_api && its_kind == info.kind {
            return Err(Refusal::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({expected})"
            )));
        }
        // A compiled-in kind may omit both fields.
        let is = |said: &str, wanted: &str| said == wanted || said.is_empty();
        if !is(&api_version, &expected) || !is(&its_kind, info.kind) {
            return Err(Refusal::bad_request(format!(
                "{its_kind} in version \"{}\" cannot be handled as a {}: no kind \"{its_kind}\" is registered for version \
                 \"{api_version}\" in scheme \"pkg/runtime/scheme.go:111\"",
                info.version, info.kind
            )));
        }
        object["apiVersion"] = expected.into();
        object["kind"] = info.kind.into();
        self.read_strictly(store, request, kind, object)
    }

    pub(super) fn update(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        key: &Key,
        part: Part,
    ) -> Result<(u16, Value)> {
        if part == Part::Scale {
            return self.update_scale(store, now, request, key);
        }
        let old = self.current(store, request, key)?;
        if fields::is_apply(request) {
            if old.is_none() && part != Part::Whole {
                return Err(Refusal::not_found(key.kind, &key.name));
            }
            let new = self.apply(store, now, request, (key, part), old.as_deref())?;
            return match &old {
                Some(old) => {
                    let replaced = self.replace(store, now, request, (key, part), (new, &**old))?;
                    Ok((200, replaced))
                }
                None => Ok((201, self.create_as(store, now, request, key, new)?)),
            };
        }
        let mut new = if request.call.method == http::Method::PATCH {
            let style = Style::of(key.kind, request.media_type.as_deref())?;
            if store.release >= Release::V1_37
                && serde_json::from_slice::<IgnoredAny>(request.call.body).is_err()
            {
                return Err(Refusal::bad_request("invalid JSON patch"));
            }
            let old = old
                .as_ref()
                .ok_or_else(|| Refusal::not_found(key.kind, &key.name))?;
            let mut patched = style.apply(key.kind, old, request.call.body)?;
            if style == Style::Strategic {
                // The API server uses its own type for the kind, and ignores the type in the patch.
                patched["apiVersion"] = key.kind.api_version().into();
                patched["kind"] = key.kind.info().kind.into();
            }
            let mut new = self.patched(store, request, key, patched)?;
            check_name(&mut new, key)?;
            new
        } else {
            let mut new = self.body(store, request, key.kind)?;
            check_name(&mut new, key)?;
            self.remove_repeated_owners(&mut new, "");
            let Some(old) = &old else {
                let creates = key.kind.info().creates_on_update && part == Part::Whole;
                let uid = &new["metadata"]["uid"];
                if !uid.is_null() && (creates || store.release < Release::V1_34) {
                    return Err(wrong_uid(key, request.is_dry_run()?, uid, ""));
                }
                if creates {
                    return Ok((201, self.create_as(store, now, request, key, new)?));
                }
                return Err(Refusal::not_found(key.kind, &key.name));
            };
            let (uid, was) = (&new["metadata"]["uid"], &old["metadata"]["uid"]);
            if !uid.is_null() && uid != was {
                return Err(wrong_uid(
                    key,
                    request.is_dry_run()?,
                    uid,
                    was.as_str().unwrap_or_default(),
                ));
            }
            new
        };
        let old = old.ok_or_else(|| Refusal::not_found(key.kind, &key.name))?;
        self.manage(
            store,
            now,
            request,
            (key.kind, part),
            (Some(&*old), &mut new),
        )?;
        self.replace(store, now, request, (key, part), (new, &*old))
            .map(|object| (200, object))
    }

    /// Fails if the result of a patch is not an object of the kind.
    fn patched(
        &self,
        store: &Store,
        request: &Request<'_>,
        key: &Key,
        patched: Value,
    ) -> Result<Value> {
        let (kind, api_version) = (key.kind.info().kind, request.api_version(key.kind));
        let fits = patched["kind"] == kind && patched["apiVersion"] == *api_version;
        if patched["apiVersion"].is_null() {
            return Err(Unknown("a patch to an object of no version".to_owned()).into());
        }
        let is_other_api = (Kind::BUILT_IN.iter()).any(|it| {
            it.stored() == key.kind.stored() && patched["apiVersion"] == *it.api_version()
        });
        if !fits && is_other_api && patched["kind"] == kind {
            let words = format!("a patch of a {kind} to {}", patched["apiVersion"]);
            return Err(Unknown(words).into());
        }
        // For a custom resource, the later validation reports it.
        if !fits && !key.kind.is_custom() {
            return Err(patch::unfit("no kind is registered for that version"));
        }
        self.read_strictly(store, request, key.kind, patched)
            .map_err(|refusal| match refusal {
                Refusal::Status(status) => {
                    patch::unfit(status["message"].as_str().unwrap_or_default())
                }
                other => other,
            })
    }

    /// Returns the stored object, in the version of the request.
    pub(super) fn current(
        &self,
        store: &Store,
        request: &Request<'_>,
        key: &Key,
    ) -> Result<Option<Arc<Value>>> {
        let Some(stored) = store.get(key) else {
            return Ok(None);
        };
        let presented = (key.kind.is_converted())
            .then(|| self.present(store, request, key.kind, stored))
            .transpose()?;
        Ok(Some(match presented {
            Some(Cow::Owned(other)) => Arc::new(other),
            Some(Cow::Borrowed(_)) | None => Arc::clone(stored),
        }))
    }

    /// Replaces `old` with `new`.
    pub(super) fn replace(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        (key, part): (&Key, Part),
        (mut new, old): (Value, &Value),
    ) -> Result<Value> {
        self.remove_repeated_owners(&mut new, AFTER_ADMISSION);
        let info = key.kind.info();
        let version = match new["metadata"]["resourceVersion"].as_str() {
            None | Some("" | "0") if info.unconditional => {
                old["metadata"]["resourceVersion"].clone()
            }
            None | Some("" | "0") => {
                let cause = Cause::invalid(
                    "metadata.resourceVersion",
                    since(store.release, Release::V1_34, "0x0", "0"),
                    "must be specified for an update",
                );
                return Err(Refusal::invalid_of(
                    info.plural,
                    info.group,
                    &key.name,
                    &[cause],
                ));
            }
            Some(version) if version.parse::<u64>().is_err() => {
                return Err(Unknown(format!("the resourceVersion {version}")).into());
            }
            Some(version) => version.into(),
        };
        if version != old["metadata"]["resourceVersion"] {
            return Err(Refusal::outdated(key.kind, &key.name));
        }
        new["metadata"]["resourceVersion"] = version;
        self.mutate(store, key, part, &mut new);
        let has_status = self.has_status(store, request, key.kind)?;
        strategy::prepare_change((key.kind, has_status), part, &mut new, old);
        let was = &old["metadata"];
        let metadata = &mut new["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = was["uid"].clone();
        }
        strategy::keep(metadata, "creationTimestamp", was.get("creationTimestamp"));
        if metadata::is_deleting(old) {
            strategy::keep(metadata, "deletionTimestamp", was.get("deletionTimestamp"));
            if metadata.get("deletionGracePeriodSeconds").is_none() {
                strategy::keep(
                    metadata,
                    "deletionGracePeriodSeconds",
                    was.get("deletionGracePeriodSeconds"),
                );
            }
        }
        if metadata["uid"].is_null() && metadata.is_object() {
            strategy::keep(metadata, "uid", None);
        }
        let causes = self.check_change(store, request, (key, part), &new, old)?;
        if !causes.is_empty() {
            return Err(Refusal::invalid(key.kind, &key.name, &causes));
        }
        self.admit(
            store,
            request,
            key,
            (Operation::Update, part),
            (Some(&new), Some(old)),
        )?;
        if metadata::is_deleting(&new)
            && metadata::finalizers(&new).is_empty()
            && key.kind != Kind::Namespace
        {
            if !request.is_dry_run()? {
                store.put(now, request.call.user.name, key, None);
            }
            return Ok(new);
        }
        if store.keeps_managers() {
            fields::keep_times(&mut new, old);
        } else {
            fields::replicas::note(request, (key.kind, part), old, &mut new);
        }
        if key.kind == Kind::CustomResourceDefinition {
            self.warn(definition::warnings(&new, Some(old), store.release));
        }
        if part != Part::Status {
            self.warn_of_finalizers(key.kind, &new, Some(old));
            self.warn_of_pods(key, &new, Some(old));
        }
        let new = self.to_storage(store, key.kind, new)?;
        let is_same = match store.get(key) {
            Some(stored) => new == **stored,
            None => false,
        };
        if is_same && self.is_stored(store, request, key, old)? {
            return Ok(new);
        }
        put(store, now, request, key, new)
    }
}

impl Server {
    /// Returns whether the stored object has the defaults that reading adds. If not, the first update stores them.
    fn is_stored(
        &self,
        store: &Store,
        request: &Request<'_>,
        key: &Key,
        old: &Value,
    ) -> Result<bool> {
        if !store.is_as_created(key) {
            return Ok(true);
        }
        match key.kind {
            // The status was removed before the object was stored.
            Kind::Custom(_) => self.with_version(store, request, key.kind, |_, version| {
                let mut object = json!({});
                version.schema.fill(&mut object);
                Ok(!version.status || object.get("status").is_none())
            }),
            Kind::Job => Ok(job::stores_labels(old)),
            _ => Ok(true),
        }
    }
}

/// Returns whether all fields of `asked` that are not empty are in `object`.
pub(super) fn is_kept(asked: &Value, object: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) => false,
    };
    match (asked, object) {
        (Value::Object(asked), Value::Object(object)) => asked.iter().all(|(name, value)| {
            is_empty(value)
                || object
                    .get(name)
                    .is_some_and(|object| is_kept(value, object))
                || name == "creationTimestamp"
        }),
        (Value::Array(asked), Value::Array(object)) => {
            asked.len() == object.len()
                && asked
                    .iter()
                    .zip(object)
                    .all(|(asked, object)| is_kept(asked, object))
        }
        (asked, object) => !is_empty(object) || is_empty(asked),
    }
}

/// Stores the object, except in a dry run.
pub(super) fn put(
    store: &mut Store,
    now: Now,
    request: &Request<'_>,
    key: &Key,
    object: Value,
) -> Result<Value> {
    if request.is_dry_run()? {
        return Ok(object);
    }
    let stored = store.put(now, request.call.user.name, key, Some(object));
    Ok(stored
        .map(|object| Value::clone(&object))
        .unwrap_or_default())
}

pub(super) fn check_namespace(object: &mut Value, key: &Key) -> Result<()> {
    let metadata = &mut object["metadata"];
    match metadata["namespace"].as_str() {
        _ if !key.kind.is_namespaced() => strategy::keep(metadata, "namespace", None),
        None | Some("") => metadata["namespace"] = key.namespace.as_str().into(),
        Some(namespace) if namespace != key.namespace => {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
    }
    Ok(())
}

pub(super) fn check_name(object: &mut Value, key: &Key) -> Result<()> {
    match object["metadata"]["name"].as_str() {
        None | Some("") => {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                key.name
            )));
        }
        Some(name) if name != key.name => {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                key.name
            )));
        }
        Some(_) => {}
    }
    check_namespace(object, key)
}

pub(super) fn wrong_uid(key: &Key, dry: bool, asked: &Value, is: &str) -> Refusal {
    let asked = asked.as_str().unwrap_or_default();
    let why = format!("UID in precondition: {asked}, UID in object meta: {is}");
    failed(key, dry, &why)
}

/// Returns the error for an object in etcd that does not meet the precondition.
pub(super) fn failed(key: &Key, dry: bool, precondition: &str) -> Refusal {
    let info = key.kind.info();
    // A dry run uses the key without the prefix.
    let registry = if dry { "" } else { "/registry" };
    let path = match info.group {
        _ if key.kind == Kind::Service => "services/specs".to_owned(),
        "" | "apps" | "batch" | "coordination.k8s.io" | "events.k8s.io" => info.plural.to_owned(),
        group => format!("{group}/{}", info.plural),
    };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {registry}/{path}/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: {precondition}",
        key.namespace, key.name
    );
    Refusal::conflict(key.kind, &key.name, &why)
}

/// Fails if the namespace does not exist or is terminating.
fn check_lives(store: &Store, key: &Key) -> Result<()> {
    let namespace = store.get(&Key::new(Kind::Namespace, "", &key.namespace));
    let namespace = namespace.ok_or_else(|| Refusal::not_found(Kind::Namespace, &key.namespace))?;
    if namespace["status"]["phase"] != "Terminating" {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {} because it is being terminated",
        key.namespace
    );
    let mut refusal = Refusal::forbidden(key.kind, &key.name, &why);
    if let Refusal::Status(status) = &mut refusal {
        status["details"]["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {} is being terminated", key.namespace),
            "field": "metadata.namespace",
        }]);
    }
    Err(refusal)
}
