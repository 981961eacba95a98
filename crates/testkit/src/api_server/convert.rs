//! Custom resources in the versions of their CRD. The storage version is stored; clients of other versions get the same fields
//! with another `apiVersion`.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{
    Kind, Server, Store,
    definition::{Definition, Version},
    event,
    request::{Request, Unknown},
    schema::{read_numbers, store_numbers},
    status::{Refusal, Result},
    strategy::unreadable,
    typed,
};

impl Server {
    /// Calls `then` with the version of the CRD that a request for a custom resource names.
    pub(super) fn with_version<T>(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        then: impl FnOnce(&Definition, &Version) -> Result<T>,
    ) -> Result<T> {
        let (definition, _) = self.compiled(store, kind).ok_or_else(Refusal::not_served)?;
        let version = definition.version(&request.version);
        then(&definition, version.ok_or_else(Refusal::not_served)?)
    }

    /// Reads a custom resource from a request: prunes it, and sets defaults. Returns the paths of unknown fields.
    pub(super) fn read_custom(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        object: &mut Value,
    ) -> Result<Vec<String>> {
        self.with_version(store, request, kind, |_, version| {
            let (unknown, metadata) = typed::unknown_metadata(&object["metadata"]);
            read_numbers(object);
            let pruned = version.schema.prune(object);
            let mut paths = pruned.map_err(|words| unreadable(kind, &words))?;
            version.schema.fill(object);
            let metadata = metadata.map_err(|words| unreadable(kind, &words))?;
            object["metadata"] = metadata;
            paths.splice(0..0, unknown);
            Ok(paths)
        })
    }

    /// Returns a stored object in the form of a request.
    pub(super) fn present<'a>(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        object: &'a Value,
    ) -> Result<Cow<'a, Value>> {
        self.present_in(store, &request.version, kind, object)
    }

    /// Returns a stored object in another API of its kind, or in a version of its CRD. Borrows it if it is stored in this form.
    pub(super) fn present_in<'a>(
        &self,
        store: &Store,
        version: &str,
        kind: Kind,
        object: &'a Value,
    ) -> Result<Cow<'a, Value>> {
        if kind == Kind::CoreEvent {
            return Ok(event::present(kind, object));
        }
        let Some((definition, since)) = self.compiled(store, kind) else {
            return Ok(Cow::Borrowed(object));
        };
        let at = object["metadata"]["resourceVersion"].as_str();
        let at: u64 = at.and_then(|at| at.parse().ok()).unwrap_or_default();
        let stored = stored_version(object);
        // An object that a client of another version wrote lacks the defaults of the storage version.
        let has_defaults = definition.versions.len() == 1 && at > since;
        if stored == version && has_defaults {
            return Ok(Cow::Borrowed(object));
        }
        let mut object = object.clone();
        let metadata = object["metadata"].take();
        let decoded = definition.version(stored).ok_or_else(|| {
            Unknown(format!(
                "an object that is stored as {stored}, which the CRD no longer has"
            ))
        })?;
        decoded
            .schema
            .prune(&mut object)
            .map_err(|words| unreadable(kind, &words))?;
        decoded.schema.fill(&mut object);
        if decoded.name != version {
            convert(&definition, kind, version, &mut object)?;
        }
        object["metadata"] = metadata;
        Ok(Cow::Owned(object))
    }

    /// Returns an object as it is stored.
    pub(super) fn to_storage(&self, store: &Store, kind: Kind, mut object: Value) -> Result<Value> {
        if kind == Kind::CoreEvent {
            return Ok(event::to_storage(object));
        }
        let Some((definition, _)) = self.compiled(store, kind) else {
            return Ok(object);
        };
        let storage = definition.storage().map(|version| version.name.as_str());
        if let Some(storage) = storage.filter(|storage| stored_version(&object) != *storage) {
            let metadata = object["metadata"].take();
            convert(&definition, kind, storage, &mut object)?;
            object["metadata"] = metadata;
        }
        store_numbers(&mut object);
        Ok(object)
    }
}

/// Returns the version of an object.
fn stored_version(object: &Value) -> &str {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    api_version.rsplit('/').next().unwrap_or_default()
}

/// Converts an object by the strategy `None`.
fn convert(definition: &Definition, kind: Kind, version: &str, object: &mut Value) -> Result<()> {
    if !definition.converts {
        return Err(Unknown(format!(
            "a conversion of a {} by a webhook",
            kind.info().kind
        ))
        .into());
    }
    object["apiVersion"] = json!(format!("{}/{version}", kind.info().group));
    if let Some(version) = definition.version(version) {
        version
            .schema
            .prune(object)
            .map_err(|words| unreadable(kind, &words))?;
    }
    Ok(())
}
