//! The command `migrate`: rewrites the objects of a CRD and their `managedFields` in its stored version, and removes all other
//! versions from `status.storedVersions`.
//!
//! An object keeps the version of its last write. The API server refuses a CRD without a version that
//! `status.storedVersions` contains. Source: Kubernetes documentation, "Versions in `CustomResourceDefinitions`".
//!
//! A rewrite does not change `managedFields`. So objects that are already stored in the right version are listed as well.
//!
//! No election is necessary: a run that repeats another one, or that was suspended for hours, does no harm. Each write has the UID
//! and the resourceVersion that was read. If an object changed after the list, that write has already stored it in the new version.
//! If the list showed former entries of its `managedFields`, they are read again and rewritten. The write of `storedVersions` fails if the CRD changed since before the first list.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams},
    core::{GroupVersionKind, Status},
};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use crate::{
    api::{
        conversion::{Definition, storage_version},
        failure::{brief, root_cause},
        managed_fields::{is_former, rewritten},
        status::retry_after,
    },
    config::backoff::Backoff,
};

/// Interval of the writes: 20 in a second, so that a migration of many objects leaves the API server to its other clients.
const PACE: Duration = Duration::from_millis(50);

/// Time from the start until the first list. After a change of the CRD, each API server writes the former version until it has
/// the new one. kube-apiserver itself waits 5 s for that reason before it serves a new CRD (`establishingController`).
const SETTLE: Duration = Duration::from_secs(10);

/// Delays between the attempts of a request or of the failed objects, and their number. They take two minutes together.
const DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));
const ATTEMPTS: u32 = 12;

/// Objects in a page of the list.
const PAGE: u32 = 500;

/// Rewritten objects between two log lines.
const LOGGED: usize = 1000;

/// Failed objects that are named in the log. Further ones are counted.
const NAMED: usize = 10;

/// The reason why a CRD cannot be migrated.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{crd}: cannot {what}: {why}")]
    Request {
        crd: String,
        what: &'static str,
        why: String,
    },
    #[error(
        "{crd}: the CRD in the cluster stores {theirs}, and this program {ours}: apply the CRD that the command crd prints, \
         and run migrate again"
    )]
    Stores {
        crd: String,
        theirs: String,
        ours: String,
    },
    #[error("{crd}: the CRD was changed during the migration: run migrate again")]
    Changed { crd: String },
    #[error(
        "{crd}: objects that could not be rewritten: {failed}, see the log above: mend them, and run migrate again. \
         status.storedVersions is unchanged"
    )]
    Objects { crd: String, failed: usize },
}

/// Migrates the objects of each CRD, one CRD after the other.
///
/// # Errors
/// The first [`Error`]. All other CRDs are migrated nevertheless.
pub(super) async fn migrate(client: &Client, definitions: &[Definition]) -> Result<(), Error> {
    let mut result = Ok(());
    for definition in definitions {
        let ended = Migration::new(client, definition).run().await;
        if let (Err(error), Err(_)) = (&ended, &result) {
            error!("{error}");
        }
        result = result.and(ended);
    }
    result
}

struct Migration<'a> {
    name: String,
    crds: Api<CustomResourceDefinition>,
    client: &'a Client,
    definition: &'a Definition,
    resource: ApiResource,
    stored: &'a str,
}

/// An object as it was listed.
struct Listed {
    name: String,
    namespace: Option<String>,
    uid: Option<String>,
    version: Option<String>,
    /// Whether an entry of its `managedFields` is in another version than the stored one.
    has_former: bool,
}

impl<'a> Migration<'a> {
    fn new(client: &'a Client, definition: &'a Definition) -> Self {
        let ours = definition.crd();
        let spec = &ours.spec;
        let stored = definition.stored();
        let kind = GroupVersionKind::gvk(&spec.group, stored, &spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
        Self {
            name: ours.name_any(),
            crds: Api::all(client.clone()),
            client,
            definition,
            resource,
            stored,
        }
    }

    async fn run(&self) -> Result<(), Error> {
        let before = self.crd().await?;
        let versions = stored_versions(&before);
        let is_stored = versions == [self.stored];
        if !is_stored {
            info!(crd = self.name, stored = ?versions, "migrating to {}", self.stored);
            sleep(SETTLE).await;
        }
        let all = self.list(|object| !is_stored || object.has_former).await?;
        if is_stored {
            if all.is_empty() {
                info!(
                    crd = self.name,
                    "nothing to migrate: {} is the only stored version, also in managedFields",
                    self.stored
                );
                return Ok(());
            }
            info!(
                crd = self.name,
                objects = all.len(),
                "migrating managedFields to {}",
                self.stored
            );
        }
        let failed = self.rewrite(&all).await;
        if failed > 0 {
            return Err(Error::Objects {
                crd: self.name.clone(),
                failed,
            });
        }
        if !is_stored {
            self.finish(&before).await?;
        }
        info!(
            crd = self.name,
            objects = all.len(),
            "migrated: {} is the only stored version",
            self.stored
        );
        Ok(())
    }

    /// Reads the CRD, which must store the version that this program stores.
    async fn crd(&self) -> Result<CustomResourceDefinition, Error> {
        let read = self
            .repeat("read the CRD", || self.crds.get(&self.name))
            .await;
        let crd = read.map_err(|error| self.failed("read the CRD", &error))?;
        let theirs = storage_version(&crd);
        if theirs != self.stored {
            return Err(Error::Stores {
                crd: self.name.clone(),
                theirs: theirs.to_owned(),
                ours: self.stored.to_owned(),
            });
        }
        Ok(crd)
    }

    /// Lists the objects to rewrite. Objects that are created later are stored in the new version.
    async fn list(&self, is_due: impl Fn(&Listed) -> bool) -> Result<Vec<Listed>, Error> {
        let what = "list the objects";
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &self.resource);
        let mut all = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.repeat(what, || api.list_metadata(&params)).await;
            let page = page.map_err(|error| self.failed(what, &error))?;
            let listed = page.items.into_iter().map(|it| Listed {
                has_former: self.has_former(&it.metadata),
                name: it.name_any(),
                namespace: it.metadata.namespace,
                uid: it.metadata.uid,
                version: it.metadata.resource_version,
            });
            all.extend(listed.filter(&is_due));
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => return Ok(all),
            }
        }
    }

    /// Rewrites the objects, and returns the number of failures. A failed object keeps no other object from being rewritten: it is
    /// tried again after all others, up to [`ATTEMPTS`] times.
    async fn rewrite(&self, all: &[Listed]) -> usize {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backoff = Backoff::new(DELAYS.0, DELAYS.1);
        let (mut left, mut failed): (Vec<_>, _) = (all.iter().collect(), 0);
        for attempt in 1..=ATTEMPTS {
            let mut again = Vec::new();
            let mut pause = Duration::ZERO;
            for (number, object) in left.iter().enumerate() {
                if number > 0 && number % LOGGED == 0 {
                    info!(
                        crd = self.name,
                        objects = number,
                        of = left.len(),
                        "rewritten"
                    );
                }
                pace.tick().await;
                let Err(error) = self.rewrite_one(object).await else {
                    continue;
                };
                // Another client changed the object between the read and the write of its `managedFields`.
                let is_conflict = object.has_former && is_conflict(&error);
                if attempt < ATTEMPTS && (is_conflict || is_temporary(&error)) {
                    pause = pause.max(retry_after(&error).unwrap_or_default());
                    again.push(*object);
                    continue;
                }
                failed += 1;
                if failed <= NAMED {
                    let namespace = object.namespace.as_deref().unwrap_or_default();
                    let (name, why) = (&object.name, why(&error));
                    warn!(
                        crd = self.name,
                        namespace, name, "cannot rewrite the object: {why}"
                    );
                }
            }
            if again.is_empty() {
                break;
            }
            let delay = backoff.advance().max(pause);
            warn!(
                crd = self.name,
                objects = again.len(),
                "not rewritten yet, next attempt in {delay:?}"
            );
            sleep(delay).await;
            left = again;
        }
        failed
    }

    /// Returns whether an entry of `managedFields` is in another version than the stored one.
    fn has_former(&self, metadata: &ObjectMeta) -> bool {
        let mut entries = metadata.managed_fields.iter().flatten();
        entries.any(|entry| is_former(entry, &self.resource.api_version))
    }

    /// Rewrites an object in the stored version, with its `managedFields`.
    async fn rewrite_one(&self, object: &Listed) -> kube::Result<()> {
        let client = self.client.clone();
        let api: Api<DynamicObject> = match &object.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        };
        if object.has_former {
            return self.rewrite_fields(&api, object).await;
        }
        // The API server writes the object without a change nevertheless, because its stored form differs.
        let metadata = json!({ "uid": object.uid, "resourceVersion": object.version });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let params = PatchParams::default();
        match api.patch_metadata(&object.name, &params, &patch).await {
            Ok(_) => Ok(()),
            // The object is gone or has changed, or something else denies the patch with this code.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                match api.get_metadata(&object.name).await {
                    Ok(now) if now.metadata.resource_version == object.version => {
                        Err(kube::Error::Api(status))
                    }
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(read)) if is_gone(&read, object) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Reads an object, and rewrites it with its `managedFields`.
    async fn rewrite_fields(&self, api: &Api<DynamicObject>, object: &Listed) -> kube::Result<()> {
        let now = match api.get(&object.name).await {
            Ok(now) if now.metadata.uid == object.uid => now,
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(read)) if is_gone(&read, object) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !self.has_former(&now.metadata) {
            return Ok(());
        }
        let (uid, version) = (now.uid(), now.resource_version());
        let now = serde_json::to_value(now).map_err(kube::Error::SerdeError)?;
        let mut entries = json!(rewritten(self.definition, &now));
        if entries == json!([]) {
            // Removes all entries (Kubernetes documentation, "Clearing managedFields").
            entries = json!([{}]);
        }
        let metadata = json!({ "uid": uid, "resourceVersion": version, "managedFields": entries });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let params = PatchParams::default();
        let written = match api.patch_metadata(&object.name, &params, &patch).await {
            Ok(written) => written,
            Err(kube::Error::Api(status)) if is_gone(&status, object) => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.has_former(&written.metadata) {
            // It ignores entries that it cannot decode (`decodeLiveOrNew`).
            let text = "the API server has not taken the managedFields in the stored version";
            let status = Status::failure(text, "Invalid").with_code(422);
            return Err(kube::Error::Api(Box::new(status)));
        }
        Ok(())
    }

    /// Sets `storedVersions`, if the CRD did not change since before the list.
    async fn finish(&self, before: &CustomResourceDefinition) -> Result<(), Error> {
        let what = "set status.storedVersions";
        let now = self.crd().await?;
        // The status changes without a new generation.
        if (&now.metadata.uid, now.metadata.generation)
            != (&before.metadata.uid, before.metadata.generation)
        {
            return Err(self.changed());
        }
        let patch = Patch::Merge(json!({
            "metadata": { "uid": now.metadata.uid, "resourceVersion": now.metadata.resource_version },
            "status": { "storedVersions": [self.stored] },
        }));
        let params = PatchParams::default();
        let patched = self.repeat(what, || self.crds.patch_status(&self.name, &params, &patch));
        match patched.await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Err(self.changed()),
            Err(error) => Err(self.failed(what, &error)),
        }
    }

    fn changed(&self) -> Error {
        Error::Changed {
            crd: self.name.clone(),
        }
    }

    fn failed(&self, what: &'static str, error: &kube::Error) -> Error {
        Error::Request {
            crd: self.name.clone(),
            what,
            why: why(error),
        }
    }

    /// Sends a request until it succeeds, fails permanently, or has failed [`ATTEMPTS`] times.
    async fn repeat<T, F: Future<Output = kube::Result<T>>>(
        &self,
        what: &str,
        request: impl Fn() -> F,
    ) -> kube::Result<T> {
        let mut backoff = Backoff::new(DELAYS.0, DELAYS.1);
        for _ in 1..ATTEMPTS {
            match request().await {
                Err(error) if is_temporary(&error) => {
                    let delay = backoff
                        .advance()
                        .max(retry_after(&error).unwrap_or_default());
                    warn!(
                        crd = self.name,
                        "cannot {what}, next attempt in {delay:?}: {}",
                        why(&error)
                    );
                    sleep(delay).await;
                }
                ended => return ended,
            }
        }
        request().await
    }
}

fn stored_versions(crd: &CustomResourceDefinition) -> Vec<&str> {
    let status = crd.status.as_ref();
    let versions = status.and_then(|status| status.stored_versions.as_ref());
    versions.into_iter().flatten().map(|it| &**it).collect()
}

/// Whether the API server reports that this object does not exist. A missing resource type has another text, and proxies send
/// another body.
fn is_gone(status: &Status, object: &Listed) -> bool {
    let details = status.details.as_ref();
    status.reason == "NotFound" && details.is_some_and(|details| details.name == object.name)
}

/// Whether another attempt may succeed: no response, too many requests, or a failure of the server.
fn is_temporary(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn why(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{}: {}", status.code, brief(&status.message)),
        other => root_cause(other),
    }
}

#[cfg(test)]
mod tests;
